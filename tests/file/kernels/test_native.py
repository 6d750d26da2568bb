"""The compiled form of every kernel against its NumPy form: one property each."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file import kernels, zone_map_builder
from lancetable.file.kernels import (
    bitpacking,
    compression,
    fsst,
    fullzip,
    gather,
    interleave,
    levels,
    miniblock,
    varbin,
)
from lancetable.file.zone_maps import StatisticsBuilder
from lancetable.format.schema import Schema
from lancetable.proto import file2_pb2

needs_native = pytest.mark.skipif(not kernels.NATIVE, reason="the compiled kernels are not built or switched off")
DTYPES = [np.dtype(name) for name in ("u1", "u2", "u4", "u8")]


@pytest.mark.skipif(
    os.environ.get("LANCETABLE_REQUIRE_KERNELS") != "1", reason="LANCETABLE_REQUIRE_KERNELS is not set to 1"
)
def test_kernels_are_built() -> None:
    """scripts/test builds and requires the kernels; they are optional elsewhere."""
    wanted = os.environ.get("LANCETABLE_KERNELS") != "0"
    assert kernels.NATIVE is wanted


def outcome(module: ModuleType, native: Any, call: Callable[[], Any]) -> Any:
    """Return the result of a kernel in its compiled or NumPy form, or CorruptFileError if it rejects its input."""
    forms = {"native": kernels.native, "native_write": kernels.native_write}
    used = [name for name in forms if hasattr(module, name)]
    for name in used:
        setattr(module, name, None if native is None else forms[name])
    try:
        return call()
    except CorruptFileError:
        return CorruptFileError
    finally:
        for name in used:
            setattr(module, name, forms[name])


def same(left: Any, right: Any) -> bool:
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())
    if isinstance(left, pa.Buffer):
        return left.equals(right)
    return type(left) is type(right) and left == right


def agree(module: ModuleType, call: Callable[[], Any]) -> Any:
    """Assert that both forms have the same outcome, and return it."""
    numpy_form, compiled = outcome(module, None, call), outcome(module, kernels.native, call)
    assert same(numpy_form, compiled), (numpy_form, compiled)
    return compiled


def random_values(seed: int, count: int, dtype: np.dtype[Any], width: int) -> np.ndarray:
    bits = np.random.default_rng(seed).integers(0, 1 << 64, count, dtype=np.uint64, endpoint=False)
    return (bits >> np.uint64(64 - width)).astype(dtype) if width else np.zeros(count, dtype)


@st.composite
def numbers(draw: st.DrawFn, most: int = 2600) -> tuple[np.ndarray, int]:
    """Draw values and a bit width that is sufficient for them."""
    dtype = draw(st.sampled_from(DTYPES))
    width = draw(st.integers(0, dtype.itemsize * 8))
    count = draw(st.one_of(st.integers(0, 40), st.sampled_from([1023, 1024, 1025, 2048]), st.integers(0, most)))
    return random_values(draw(st.integers(0, 1 << 32)), count, dtype, width), width


@st.composite
def pieces(draw: st.DrawFn, contents: st.SearchStrategy[list[bytes]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw data, starts and sizes of pieces with gaps between them; some are truncated or out of bounds."""
    content = draw(contents)
    gap = draw(st.integers(0, 9))
    data = bytearray(b"\xfe" * gap)
    starts, sizes = [], []
    for piece in content:
        starts.append(len(data))
        sizes.append(len(piece))
        data += piece + b"\xfe" * gap
    return np.frombuffer(bytes(data), np.uint8), np.array(starts, np.int64), np.array(sizes, np.int64)


def joined(content: list[bytes], gap: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    sizes = np.array([len(piece) for piece in content], np.int64)
    starts = gap + np.cumsum(sizes + gap) - sizes - gap
    data = b"\xfe" * gap + b"".join(piece + b"\xfe" * gap for piece in content)
    return np.frombuffer(data, np.uint8), starts, sizes


def damaged(data: np.ndarray, spot: int) -> np.ndarray:
    """Return a copy with one byte changed, or unchanged if the position is past the end."""
    copy = data.copy()
    if spot < len(copy):
        copy[spot] ^= 0x55
    return copy


# ---------------------------------------------------------------------------------------------------------- bitpacking


@needs_native
@given(numbers())
def test_pack_blocks(case: tuple[np.ndarray, int]) -> None:
    agree(bitpacking, lambda: bitpacking.pack_blocks(*case))


@needs_native
@given(numbers())
def test_unpack_blocks(case: tuple[np.ndarray, int]) -> None:
    values, width = case
    packed = bitpacking.pack_blocks(values, width)
    # At an odd address as well.
    for data in (packed, np.concatenate((packed[:1], packed))[1:]):
        found = agree(bitpacking, lambda data=data: bitpacking.unpack_blocks(data, width, values.dtype))
        assert width == 0 or (found[: len(values)] == values).all()


@needs_native
@given(numbers())
def test_pack_inline(case: tuple[np.ndarray, int]) -> None:
    packed, sizes = agree(bitpacking, lambda: bitpacking.pack_inline(case[0]))
    assert int(sizes.sum()) == len(packed)


# ----------------------------------------------------------------------------------------------------------- miniblock


@needs_native
@given(numbers(), st.integers(0, 1 << 14), st.integers(0, 9))
def test_unpack_inline(case: tuple[np.ndarray, int], spot: int, gap: int) -> None:
    values, _ = case
    packed, sizes = bitpacking.pack_inline(values)
    content = [piece.tobytes() for piece in np.split(packed, np.cumsum(sizes)[:-1])] if len(sizes) else []
    counts = np.full(len(sizes), 1024, np.int64)
    counts[-1:] = len(values) - 1024 * (len(sizes) - 1)
    data, starts, sizes = joined(content, gap)
    found = agree(miniblock, lambda: miniblock.unpack_inline(data, starts, sizes, counts, values.dtype))
    assert (found == values).all()
    if len(sizes):
        broken = data.copy()
        broken[starts[spot % len(starts)]] += 1  # a width that the size contradicts
        refused = agree(miniblock, lambda: miniblock.unpack_inline(broken, starts, sizes, counts, values.dtype))
        assert refused is CorruptFileError


@needs_native
@given(st.lists(numbers(), min_size=1, max_size=3), st.integers(1, 16), st.booleans(), st.integers(-2, 2))
def test_unpack_out_of_line(cases: list[tuple[np.ndarray, int]], width: int, raw_tails: bool, excess: int) -> None:
    content, counts = [], []
    for values, _ in cases:
        values = values.astype(np.uint16) & np.uint16((1 << width) - 1)
        full = len(values) // 1024 * 1024
        tail = values[full:]
        packed = bitpacking.pack_blocks(values[:full], width).tobytes()
        content.append(packed + (tail.tobytes() if raw_tails else bitpacking.pack_blocks(tail, width).tobytes()))
        counts.append(len(values))
    data, starts, sizes = joined(content, 4)
    sizes[-1] = max(0, sizes[-1] + excess)
    numbers_of = np.array(counts, np.int64)
    agree(miniblock, lambda: miniblock.unpack_out_of_line(data, starts, sizes, numbers_of, width, np.dtype("u2")))


@needs_native
@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.lists(st.binary(max_size=40), max_size=3), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 1),
    st.booleans(),
    st.booleans(),
    st.integers(0, 400),
)
def test_chunk_headers(
    chunks: list[tuple[int, list[bytes], bool]], num_levels: int, large: bool, is_mixed: bool, spot: int
) -> None:
    num_buffers = 2
    content = []
    mixed = np.array([leveled for _, _, leveled in chunks]) if is_mixed else None
    for count, buffers, leveled in chunks:
        own_levels = num_levels if leveled or not is_mixed else 0
        buffers = (buffers + [b""] * 3)[: own_levels + num_buffers]
        head = count.to_bytes(2, "little")
        for number, buffer in enumerate(buffers):
            head += len(buffer).to_bytes(4 if large and number >= own_levels else 2, "little")
        content.append(b"".join(part + b"\xfe" * (-len(part) % 8) for part in [head, *buffers]))
    data, starts, sizes = joined(content, 0)
    good = agree(miniblock, lambda: miniblock.chunk_headers(data, starts, sizes, num_levels, num_buffers, large, mixed))
    assert good is not CorruptFileError
    broken = damaged(data, spot)
    agree(miniblock, lambda: miniblock.chunk_headers(broken, starts, sizes, num_levels, num_buffers, large, mixed))


@needs_native
@given(st.binary(min_size=4, max_size=200), st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.booleans())
def test_chunk_bounds(words: bytes, start: int, num_values: int, large: bool) -> None:
    data = np.frombuffer(words[: len(words) // 4 * 4], np.uint8)
    agree(miniblock, lambda: miniblock.chunk_bounds(data, start, num_values, large=large))


@needs_native
@given(pieces(st.lists(st.binary(max_size=50), max_size=8)))
def test_join_pieces(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    agree(varbin, lambda: miniblock.join_pieces(*case))


@needs_native
@given(
    st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=6), min_size=1, max_size=5),
    st.sampled_from([4, 8]),
    st.one_of(st.none(), st.integers(0, 200)),
)
def test_variable(chunks: list[list[bytes]], width: int, spot: int | None) -> None:
    content = []
    for values in chunks:
        ends = np.cumsum([width * (len(values) + 1), *map(len, values)]).astype(f"<u{width}")
        content.append(ends.tobytes() + b"".join(values))
    data, starts, sizes = joined(content, 3)
    counts = np.array([len(values) for values in chunks], np.int64)
    if spot is not None:
        data = damaged(data, spot)
    found = agree(miniblock, lambda: miniblock.variable(data, starts, sizes, counts, width))
    if spot is None:
        assert found[1].tobytes() == b"".join(b"".join(values) for values in chunks)


@needs_native
@given(
    st.sampled_from(DTYPES),
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 255)), max_size=5), min_size=1, max_size=4),
    st.integers(-2, 1),
)
def test_run_lengths(dtype: np.dtype[Any], chunks: list[list[tuple[int, int]]], excess: int) -> None:
    runs = np.array(list(map(len, chunks)), np.int64)
    flat = [run for chunk in chunks for run in chunk]
    values = np.array([value for value, _ in flat], dtype)
    lengths = np.array([length for _, length in flat], np.uint8)
    counts = np.array([max(0, sum(length for _, length in chunk) + excess) for chunk in chunks], np.int64)
    agree(miniblock, lambda: miniblock.run_lengths(values, lengths, runs, counts))


@needs_native
@given(st.sampled_from([4, 8]), st.lists(st.integers(0, 300), min_size=1, max_size=4), st.integers(0, 1 << 32))
def test_byte_streams(width: int, counts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    data, starts, _ = joined([rng.bytes(count * width) for count in counts], 5)
    agree(miniblock, lambda: miniblock.byte_streams(data, starts, np.array(counts, np.int64), width))


# -------------------------------------------------------------------------------------------------------------- levels


@needs_native
@given(numbers(), st.integers(0, 5), st.booleans())
def test_validity(case: tuple[np.ndarray, int], low: int, high_levels: bool) -> None:
    definition = case[0].astype(np.uint16) % np.uint16(65535 if high_levels else 4)
    agree(levels, lambda: levels.validity(definition, low))


@needs_native
@given(numbers(), st.integers(0, 1 << 32), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2), st.booleans())
def test_list_layer(case: tuple[np.ndarray, int], seed: int, low: int, own: int, beyond: int, nullable: bool) -> None:
    repetition = case[0].astype(np.uint16) % np.uint16(3)
    definition = np.random.default_rng(seed).integers(0, low + own + beyond + 2, len(repetition)).astype(np.uint16)
    high = low + own
    null = low + 1 if nullable and own else 0
    call = lambda: levels.list_layer(repetition, definition, low, high, high + beyond, null)  # noqa: E731
    numpy_form, compiled = outcome(levels, None, call), outcome(levels, kernels.native, call)
    if isinstance(numpy_form, tuple):
        # A mask without nulls is equivalent to no mask.
        mask = numpy_form[1]
        mask = None if mask is None or mask.all() else mask
        numpy_form = (numpy_form[0], mask, *numpy_form[2:])
    assert same(numpy_form, compiled)


# ------------------------------------------------------------------------------------------------------------- fullzip


@needs_native
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=9)), min_size=1, max_size=6), max_size=40),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0, 4, 8]),
    st.one_of(st.none(), st.integers(0, 500)),
)
def test_walk(rows: list[list[tuple[int, bytes]]], control: int, length_bytes: int, spot: int | None) -> None:
    top, value_bytes = 1, 3
    content = []
    for row in rows:
        entries = b""
        for level, value in row:
            entries += level.to_bytes(control, "little")
            if length_bytes and level == 0:
                entries += len(value).to_bytes(length_bytes, "little") + value
            elif not length_bytes and level <= top:
                entries += value.ljust(value_bytes, b"x")[:value_bytes]
        content.append(entries)
    data, starts, sizes = joined(content, 1)
    if spot is not None:
        data = damaged(data, spot)
    found = agree(
        fullzip, lambda: fullzip.walk(data, starts, starts + sizes, control, 2, top, value_bytes, length_bytes)
    )
    if spot is None:
        assert np.diff(found[3]).tolist() == list(map(len, rows))


@needs_native
@given(pieces(st.lists(st.binary(max_size=90), max_size=8)))
def test_gather_of_values(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    data, positions, sizes = case
    agree(varbin, lambda: varbin.gather(positions, positions + sizes, data))


@needs_native
@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=12), st.binary(max_size=3)), max_size=20))
def test_interleave(runs: list[tuple[bytes, bytes, bytes]]) -> None:
    streams = [
        interleave.runs_of(b"".join(stream), np.array(list(map(len, stream)), np.int64))
        for stream in ([run[number] for run in runs] for number in range(3))
    ]
    agree(interleave, lambda: interleave.interleave(streams))


# -------------------------------------------------------------------------------------------------------------- varbin


@needs_native
@given(st.binary(max_size=60), st.lists(st.tuples(st.integers(-1, 62), st.integers(-1, 62)), max_size=20))
def test_gather(data: bytes, spans: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in spans], np.int64)
    ends = np.array([end for _, end in spans], np.int64)
    agree(varbin, lambda: varbin.gather(starts, ends, np.frombuffer(data, np.uint8)))


@needs_native
@given(
    st.lists(st.binary(max_size=30), min_size=1, max_size=20),
    st.lists(st.integers(0, 21), max_size=40),
    st.sampled_from([np.dtype(name) for name in ("i4", "i8")]),
    st.sampled_from([*DTYPES, np.dtype("i8")]),
    st.one_of(st.none(), st.integers(0, (1 << 40) - 1)),
)
def test_take(
    values: list[bytes], rows: list[int], dtype: np.dtype[Any], row_dtype: np.dtype[Any], bits: int | None
) -> None:
    offsets = np.cumsum([0, *map(len, values)]).astype(dtype)
    data = np.frombuffer(b"".join(values), np.uint8)
    validity = None if bits is None else pa.py_buffer(bits.to_bytes(5, "little"))
    found = agree(varbin, lambda: varbin.take(offsets, data, np.array(rows, row_dtype), validity))
    seen = [row for place, row in enumerate(rows) if bits is None or bits >> place & 1]
    if max(seen, default=0) < len(values):
        assert found[1].tobytes() == b"".join(values[row] for row in seen)
    else:
        assert found is CorruptFileError


@needs_native
@given(st.lists(st.one_of(st.text(max_size=30), st.binary(max_size=4)), max_size=20), st.integers(0, 40))
def test_check_utf8(values: list[str | bytes], more: int) -> None:
    content = [value.encode() if isinstance(value, str) else value for value in values] + [b"long" * more * more]
    offsets = np.cumsum([0, *map(len, content)]).astype(np.int32)
    data = np.frombuffer(b"".join(content), np.uint8)
    agree(varbin, lambda: varbin.check_utf8(offsets, data))


@needs_native
@given(st.integers(0, 9000), st.integers(0, 12000), st.integers(0, 7))
def test_is_ascii(size: int, spot: int, start: int) -> None:
    data = np.full(size + start, 0x7F, np.uint8)
    if spot < len(data):
        data[spot] = 0x80
    assert agree(varbin, lambda: varbin.is_ascii(data[start:])) == (not start <= spot < len(data))


# ---------------------------------------------------------------------------------------------------------------- fsst


WORDS = [b"http://", b"www.", b"customer#", b"order", b"\xff", b"\x00\x00", "ä€".encode(), b"0123456789" * 12]


@st.composite
def texts(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Draw data and offsets of values of 0 to 400 bytes, large enough for a symbol table."""
    seed = draw(st.integers(0, 1 << 32))
    most = draw(st.sampled_from([1, 3, 30]))
    rng = np.random.default_rng(seed)
    values: list[bytes] = []
    size = 0
    while size < fsst.MIN_INPUT_BYTES + 100:
        words = [WORDS[number] for number in rng.integers(0, len(WORDS), rng.integers(0, most + 1))]
        values.append(b" ".join(words) + rng.bytes(rng.integers(0, 4)))
        size += len(values[-1])
    return np.frombuffer(b"".join(values), np.uint8), np.cumsum([0, *map(len, values)]).astype(np.int32)


@needs_native
@given(texts())
def test_fsst_output_of_one_form_is_read_by_the_other(case: tuple[np.ndarray, np.ndarray]) -> None:
    data, offsets = case
    for writer in (None, kernels.native):
        codes, ends, table = outcome(fsst, writer, lambda: fsst.compress(data, offsets))
        assert table.encoded and len(codes) < len(data)
        found = agree(fsst, lambda codes=codes, ends=ends, table=table: fsst.decompress(codes, ends, table))
        assert (found[0] == data).all() and (found[1] == offsets).all()


@needs_native
@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5), st.integers(0, 255))
def test_both_forms_of_fsst_reject_the_same_codes(codes: bytes, cuts: list[int], symbols: int) -> None:
    table = fsst.SymbolTable(np.arange(symbols, dtype=np.uint64), (np.arange(symbols) % 8 + 1).astype(np.uint8), True)
    stored = np.frombuffer(codes, np.uint8)
    offsets = np.array([0, *sorted(min(cut, len(codes)) for cut in cuts), len(codes)], np.int32)
    agree(fsst, lambda: fsst.decompress(stored, offsets, table))


# ---------------------------------------------------------------------------------------------------------- statistics


BOUNDED = [
    pa.string(), pa.large_binary(), pa.bool_(), pa.list_(pa.int8()), pa.int32(), pa.decimal128(9, 2),
    pa.decimal256(60, 0), pa.binary(11), pa.binary(3),
]  # fmt: skip


@needs_native
@given(
    st.sampled_from(BOUNDED),
    st.lists(st.one_of(st.none(), st.text(st.sampled_from("ab\0é"), max_size=18)), max_size=30),
    st.integers(0, 5),
    st.lists(st.integers(1, 3000), min_size=1, max_size=4),
)
def test_zone_maps(kind: pa.DataType, values: list[str | None], offset: int, batches: list[int]) -> None:
    plain = [
        None
        if value is None
        else value
        if kind == pa.string()
        else value.encode()
        if kind == pa.large_binary()
        else "a" in value
        if kind == pa.bool_()
        else [len(value)]
        if kind == BOUNDED[3]
        else value.encode().ljust(11)[-kind.byte_width :]
        if pa.types.is_fixed_size_binary(kind)
        else 5 - len(value)
        for value in values
    ]
    whole = pa.array((plain or [None]) * (sum(batches) // max(len(plain), 1) + offset + 1), kind).slice(offset)
    schema = Schema.from_arrow(pa.schema([("x", kind)]))

    def zone_maps() -> list[Any]:
        builder = StatisticsBuilder(schema, 1024)
        start = 0
        for rows in batches:
            builder.add(pa.record_batch([whole.slice(start, rows)], names=["x"]))
            start += rows
        zones = builder.statistics().columns[0]
        bounds = [None if bound is None else bound.to_pylist() for bound in (zones.min, zones.max)]
        return [zones.null_count.tolist(), *bounds]

    agree(zone_map_builder, zone_maps)


# --------------------------------------------------------------------------------------------------------------- gather


def picked(seed: int, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, counts: np.ndarray) -> gather.Pieces:
    """Select a few values of each piece, sometimes one past its end."""
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.integers(0, len(starts), 12)) if len(starts) else np.zeros(0, np.int64)
    chosen = chosen[counts[chosen] > 0]
    places = rng.integers(0, counts[chosen] + (rng.random() < 0.2))
    order = np.lexsort((places, chosen))
    chosen, places = chosen[order], places[order].astype(np.int64)
    return gather.Pieces(data, starts[chosen], sizes[chosen], counts[chosen], places)


def in_chunks(values: np.ndarray, count: int) -> list[np.ndarray]:
    return [values[first : first + count] for first in range(0, len(values), count)]


def packed_to(chunk: np.ndarray, width: int) -> bytes:
    """Return the packed blocks of a chunk; a last block that is as large as the values stores them unpacked."""
    packed = bitpacking.pack_blocks(chunk, width).tobytes()
    return chunk.tobytes() if len(chunk) % 1024 and len(packed) == chunk.nbytes else packed


@needs_native
@example((np.arange(1023, dtype=np.uint8) % 128, 7), 896, 0, None)
@given(numbers(), st.integers(1, 1024), st.integers(0, 1 << 32), st.one_of(st.none(), st.integers(0, 3000)))
def test_gather_numbers(case: tuple[np.ndarray, int], size: int, seed: int, spot: int | None) -> None:
    values, width = case
    chunks = in_chunks(values, size)
    counts = np.array([len(chunk) for chunk in chunks], np.int64)
    word = values.dtype.itemsize
    forms: list[tuple[list[bytes], Callable[[gather.Pieces], Any]]] = [
        ([chunk.tobytes() for chunk in chunks], lambda found: gather.fixed(found, word).view(values.dtype)),
        (
            [bitpacking.pack_inline(chunk)[0].tobytes() for chunk in chunks],
            lambda found: gather.inline(found, word).view(values.dtype),
        ),
        (
            [packed_to(chunk, width) for chunk in chunks],
            lambda found: gather.out_of_line(found, width, values.dtype),
        ),
    ]
    if word >= 4:
        streams = [chunk.view(np.uint8).reshape(-1, word).T.tobytes() for chunk in chunks]
        forms.append((streams, lambda found: gather.streams(found, word).view(values.dtype)))
    for content, pick in forms:
        data, starts, sizes = joined(content, 8)
        wanted = picked(seed, data, starts, sizes, counts)
        found = agree(gather, lambda pick=pick, wanted=wanted: pick(wanted))
        if found is not CorruptFileError:
            chunk_of = np.searchsorted(starts, wanted.starts)
            assert found.tolist() == [chunks[at][place] for at, place in zip(chunk_of, wanted.value_indices)]
        if spot is not None:
            # The result may be right if another chunk is damaged, so only the absence of a crash is checked.
            outcome(gather, kernels.native, lambda: pick(wanted._replace(data=damaged(data, spot))))  # noqa: B023


@needs_native
@given(
    st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=6), min_size=1, max_size=5),
    st.sampled_from([4, 8]),
    st.integers(0, 1 << 32),
    st.one_of(st.none(), st.integers(0, 200)),
)
def test_gather_strings(chunks: list[list[bytes]], width: int, seed: int, spot: int | None) -> None:
    content = []
    for values in chunks:
        ends = np.cumsum([width * (len(values) + 1), *map(len, values)]).astype(f"<u{width}")
        content.append(ends.tobytes() + b"".join(values))
    data, starts, sizes = joined(content, 3)
    counts = np.array([len(values) for values in chunks], np.int64)
    if spot is not None:
        data = damaged(data, spot)
    agree(gather, lambda: gather.variable(picked(seed, data, starts, sizes, counts), width))


@given(st.lists(st.booleans(), max_size=90), st.integers(1, 40), st.integers(0, 1 << 32))
def test_gather_bits(values: list[bool], size: int, seed: int) -> None:
    chunks = in_chunks(np.array(values, np.bool_), size)
    content = [np.packbits(chunk, bitorder="little").tobytes() for chunk in chunks]
    counts = np.array([len(chunk) for chunk in chunks], np.int64)
    data, starts, sizes = joined(content, 2)
    pieces = picked(seed, data, starts, sizes, counts)
    if (pieces.value_indices >= pieces.counts).any():
        with pytest.raises(CorruptFileError, match="outside its page"):
            gather.bits(pieces)
        return
    chosen = zip(np.searchsorted(starts, pieces.starts).tolist(), pieces.value_indices.tolist())
    expected = [bool(chunks[chunk][place]) for chunk, place in chosen]
    bitmap = agree(gather, lambda: gather.bits(pieces))
    found = np.unpackbits(bitmap, bitorder="little", count=len(expected))
    assert found.astype(bool).tolist() == expected


@needs_native
@given(
    st.sampled_from(DTYPES),
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 255)), min_size=1, max_size=5), min_size=1, max_size=4
    ),
    st.integers(0, 1 << 32),
    st.integers(0, 1),
)
def test_gather_runs(dtype: np.dtype[Any], chunks: list[list[tuple[int, int]]], seed: int, excess: int) -> None:
    values = [np.array([value for value, _ in chunk], dtype).tobytes() for chunk in chunks]
    lengths = [bytes(length for _, length in chunk) for chunk in chunks]
    counts = np.array([sum(length for _, length in chunk) - excess for chunk in chunks], np.int64)
    data, starts, sizes = joined([*values, *lengths], 8)
    half = len(chunks)
    found = picked(seed, data, starts[half:], sizes[half:], counts)
    at = np.searchsorted(starts[half:], found.starts)
    agree(gather, lambda: gather.runs(found, starts[:half][at], sizes[:half][at], dtype))


SIZES = st.sampled_from([0, 1, 5, 255, 256, 261, 66_000, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1])


@needs_native
@given(
    st.lists(
        st.tuples(SIZES, st.integers(0, 255), SIZES, st.binary(max_size=4), st.integers(1, 3)), min_size=1, max_size=4
    ),
    st.sampled_from([b"\x28\xb5\x2f\xfd", b"\0\0\0\0"]),
    st.sampled_from([0, 300, 70_000, 1 << 62]),
    st.booleans(),
)
def test_packed_frames(
    headers: list[tuple[int, int, int, bytes, int]], last_magic: bytes, most: int, agreeing: bool
) -> None:
    """The size before a frame and the size in its header may differ, and a frame may be referenced several times."""
    contents = []
    for number, (size, descriptor, other, rest, _) in enumerate(headers):
        magic = last_magic if number == len(headers) - 1 else b"\x28\xb5\x2f\xfd"
        said = size if agreeing else other
        width = 1 << (descriptor >> 6) if descriptor >> 6 else int(descriptor & 0x20 != 0)
        window_and_dictionary = bytes((not descriptor & 0x20) + (0, 1, 2, 4)[descriptor & 3])
        stored = max(said - 256 * (width == 2), 0) % (1 << 8 * width)
        header = magic + bytes([descriptor]) + window_and_dictionary + stored.to_bytes(width, "little")
        contents.append(size.to_bytes(8, "little") + header + rest)
    data, starts, sizes = joined(contents, 8)
    named = np.repeat(np.arange(len(headers)), [times for *_, times in headers])
    packed = kernels.native.pack_frames(data, starts[named], sizes[named], most)

    def declared(buffer: bytes) -> int:
        """Return the size before a frame; raise if the frame declares another size or cannot have as much content."""
        size = int.from_bytes(buffer[:8], "little")
        compression._check_size("zstd", size, most, len(buffer) - 8)
        if buffer[:4] == b"\x28\xb5\x2f\xfd" or compression._zstd_content_size(memoryview(buffer)[8:]) != size:
            raise CorruptFileError("sizes differ")
        return size

    try:
        expected = list(map(declared, contents))
        if sum(expected) > most:
            raise CorruptFileError("together too large")
    except (CorruptFileError, UnsupportedFeatureError):
        assert packed is None
        return
    frames, total, content_starts, content_sizes = packed
    assert frames.tobytes() == b"".join(content[8:] for content in contents)
    assert total == sum(expected)
    assert content_sizes.tolist() == [expected[number] for number in named]
    assert content_starts.tolist() == [sum(expected[:number]) for number in named]


@needs_native
@given(st.integers(0, 1 << 32))
def test_both_forms_locate_rows_in_the_same_chunks(seed: int) -> None:
    """Chunks of several pages, some without values."""
    rng = np.random.default_rng(seed)
    tables, indices, rows, forms = [], [], [], []
    for _ in range(int(rng.integers(1, 4))):
        counts = rng.integers(0, 4, int(rng.integers(1, 9)))
        counts[0] += 1
        values = np.append(0, np.cumsum(counts))
        ends = np.cumsum(rng.integers(1, 99, len(counts)))
        tables.append((ends - 1, ends, values))
        # The last row of each chunk but the last may continue in the next chunk.
        continues = (rng.random(len(counts)) < 0.5) & (np.arange(len(counts)) < len(counts) - 1)
        indices.append((values, continues))
        rows.append(np.unique(rng.integers(0, values[-1], 5)))
        forms.append((int(rng.integers(1, 5)), int(rng.integers(5))))
    found = agree(gather, lambda: gather.locate(tables, rows))
    assert found.shape == (4, sum(map(len, rows)))
    assert (found[3] < found[2]).all()
    agree(gather, lambda: gather.locate_lists(tables, indices, rows, forms))


@needs_native
@given(st.integers(0, 1 << 32), st.booleans(), st.one_of(st.none(), st.integers(0, 400)))
def test_rows_of_lists(seed: int, with_definition: bool, spot: int | None) -> None:
    """Levels cut into chunks anywhere, each chunk stored in one of the four ways."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 600))
    repetition = (rng.random(count) < rng.choice([0.02, 0.4])).astype(np.uint16) * 2
    repetition += (repetition == 0) & (rng.random(count) < 0.3)
    repetition[0] = 2
    definition = rng.integers(0, 4, count).astype(np.uint16)
    cuts = np.unique([0, count, *rng.integers(0, count, int(rng.integers(5)))])
    bounds = list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))

    def store(levels_of_all: np.ndarray) -> tuple[list[bytes], list[int]]:
        content, forms = [], []
        for first, end in bounds:
            chunk = levels_of_all[first:end]
            form = int(rng.integers(1, 5))
            if 2 * len(chunk) == 128 * 3:  # as large as the packed form, so a reader takes it for flat
                form = gather.FLAT
            if form == gather.FLAT:
                content.append(chunk.tobytes())
            elif form == gather.INLINE:
                content.append(bitpacking.pack_inline(chunk)[0].tobytes())
            elif form == gather.OUT_OF_LINE:
                content.append(bitpacking.pack_blocks(chunk, 3).tobytes())
                form |= 3 << 8
            else:
                content.append((2 * len(chunk)).to_bytes(8, "little") + chunk.tobytes() + b"\1" * len(chunk))
            forms.append(form)
        return content, forms

    stored = store(repetition)
    other = store(definition)
    data, starts, sizes = joined([*stored[0], *other[0]], 8)
    if spot is not None:
        data = damaged(data, spot)
    half = len(bounds)
    num_levels = np.array([end - first for first, end in bounds], np.int64)
    counts = np.array([int((definition[first:end] <= 1).sum()) for first, end in bounds], np.int64)
    if not with_definition:
        counts = num_levels
    row_starts = np.flatnonzero(repetition == 2)
    before = np.searchsorted(row_starts, cuts)
    continues = np.append(repetition[cuts[1:-1]] != 2, False)
    rows = np.unique(rng.integers(0, len(row_starts), 5))
    chosen = agree(gather, lambda: gather.chunks_of_rows(before, continues, rows))
    found = agree(
        gather,
        lambda: gather.entries_of_rows(
            data,
            gather.StoredLevels(starts[:half][chosen], sizes[:half][chosen], np.array(stored[1])[chosen]),
            gather.StoredLevels(starts[half:][chosen], sizes[half:][chosen], np.array(other[1])[chosen])
            if with_definition
            else None,
            num_levels[chosen],
            counts[chosen],
            chosen,
            before[chosen],
            before[chosen + 1] - before[chosen],
            rows,
            2,
            1,
            3,
        ),
    )
    if spot is None:
        ends = np.append(row_starts[1:], count)
        wanted = np.concatenate([np.arange(row_starts[row], ends[row]) for row in rows])
        assert found[0].tolist() == repetition[wanted].tolist()
        if with_definition:
            assert found[1].tolist() == definition[wanted].tolist()
            wanted = wanted[definition[wanted] <= 1]
        owner = np.searchsorted(cuts, wanted, "right") - 1
        chunk_starts, chunk_sizes = starts[None, chosen], sizes[None, chosen]
        values = agree(gather, lambda: gather.expand_spans(found[2], chunk_starts, chunk_sizes, counts[chosen]))
        assert values[0].tolist() == starts[owner].tolist()
        visible = definition <= 1 if with_definition else np.ones(count, np.bool_)
        assert values[3].tolist() == [int(visible[cuts[own] : at].sum()) for own, at in zip(owner, wanted)]


@needs_native
@pytest.mark.parametrize("block", [b"", b"\x00", b"\x08", b"\x0f", b"\x10", b"\x00\x00", b"\x08\x01\x00"])
def test_lz4_blocks_without_content(block: bytes) -> None:
    data = np.frombuffer(bytes(4) + block, np.uint8)
    starts, sizes = np.zeros(1, np.int64), np.array([len(data)])
    agree(compression, lambda: compression.decompress_pieces("lz4", data, starts, sizes, 100))


# ---------------------------------------------------------------------------------------------------- column metadata

NUMBERS = st.lists(st.integers(0, 2**64 - 1), max_size=4)


@st.composite
def encodings(draw: st.DrawFn) -> file2_pb2.Encoding:
    message = file2_pb2.Encoding()
    form = draw(st.sampled_from(["direct", "direct", "direct", "indirect", "none", "missing"]))
    if form == "direct":
        message.direct.encoding = draw(st.binary(max_size=20))
    elif form == "indirect":
        message.indirect.buffer_location = draw(st.integers(0, 99))
    elif form == "none":
        message.none.SetInParent()
    return message


@st.composite
def column_metadata(draw: st.DrawFn) -> bytes:
    message = file2_pb2.ColumnMetadata()
    if draw(st.booleans()):
        message.encoding.CopyFrom(draw(encodings()))
    for _ in range(draw(st.sampled_from([1, 1, 1, 0, 2]))):
        starts = draw(NUMBERS)
        sizes = draw(st.one_of(st.lists(st.integers(0, 999), min_size=len(starts), max_size=len(starts)), NUMBERS))
        page = message.pages.add(buffer_offsets=starts, buffer_sizes=sizes, length=draw(st.integers(0, 2**64 - 1)))
        page.priority = draw(st.integers(0, 9))
        if draw(st.integers(0, 9)):
            page.encoding.CopyFrom(draw(encodings()))
    if draw(st.integers(0, 9)) == 0:
        message.buffer_sizes.append(1)
    content = bytearray(message.SerializeToString())
    for position in draw(st.lists(st.integers(0, 200), max_size=2)):
        if position < len(content):
            content[position] ^= draw(st.integers(1, 255))
    return bytes(content)


@needs_native
@given(column_metadata(), st.binary(max_size=9))
def test_the_metadata_of_a_column_is_that_of_the_parsed_message(content: bytes, before: bytes) -> None:
    found = kernels.native.column_metadata(before + content, len(before), len(content), 2)
    if found is not None:
        message = file2_pb2.ColumnMetadata.FromString(content)
        assert not message.buffer_sizes
        assert not message.buffer_offsets
        assert not any(part.encoding.HasField("indirect") for part in (message, *message.pages))
        pages = [
            (page.length, (*page.buffer_offsets, *page.buffer_sizes), page.encoding.direct.encoding)
            for page in message.pages
        ]
        assert found == (pages, message.encoding.direct.encoding)


@needs_native
def test_the_metadata_of_a_usual_column_is_found() -> None:
    message = file2_pb2.ColumnMetadata()
    message.pages.add(buffer_offsets=[64, 1 << 40], buffer_sizes=[8, 300], length=100).encoding.direct.encoding = b"e"
    message.pages.add(buffer_offsets=[1 << 41], buffer_sizes=[9], length=7, priority=100)
    message.encoding.direct.encoding = b"column"
    content = message.SerializeToString()
    pages = [(100, (64, 1 << 40, 8, 300), b"e"), (7, (1 << 41, 9), b"")]
    assert kernels.native.column_metadata(content, 0, len(content), 2) == (pages, b"column")
    assert kernels.native.column_metadata(content, 0, len(content), 1) is None
    assert kernels.native.column_metadata(content, 0, len(content) - 1, 2) is None
    with pytest.raises(ValueError, match="exceed"):
        kernels.native.column_metadata(content, 1, len(content), 2)
