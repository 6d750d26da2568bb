"""Targets: zone maps, JSONB, and kernels, whose compiled and NumPy form must do the same."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from integration.fuzz.target import Target
from lancetable.errors import CorruptFileError
from lancetable.expr.evaluate import json_items
from lancetable.file import kernels
from lancetable.file.kernels import bitpacking, compression, fsst, fullzip, gather, miniblock, varbin
from lancetable.file.zone_maps import StatisticsBuilder, parse_statistics
from lancetable.format import jsonb
from lancetable.format.schema import Schema

# ----------------------------------------------------------------------------------------------------------- zone maps

_ROWS = 2500
_NUMBERS = pa.array(np.arange(_ROWS))
_ZONED = pa.table(
    {
        "i": _NUMBERS,
        "u": _NUMBERS.cast(pa.uint16()),
        "f": pa.array(np.where(np.arange(_ROWS) % 9, np.arange(_ROWS) / 7, np.nan)),
        "b": pa.array(np.arange(_ROWS) % 2 == 0),
        "d": _NUMBERS.cast(pa.int32()).cast(pa.date32()),
        "t": _NUMBERS.cast(pa.timestamp("us", "UTC")),
        "n": _NUMBERS.cast(pa.decimal128(30, 2)),
        "s": pa.array([None if number % 5 == 0 else f"wörd {number}" for number in range(_ROWS)]),
        "y": pa.array([number.to_bytes(4, "big") * 20 for number in range(_ROWS)], pa.large_binary()),
        "p": pa.array([{"x": number} for number in range(_ROWS)], pa.struct([("x", pa.int16())])),
        "l": pa.array([[number] for number in range(_ROWS)]),
    }
)
_SCHEMA = Schema.from_arrow(_ZONED.schema)


def read_zone_maps(data: bytes) -> None:
    """Parse zone maps and merge their zones."""
    statistics = parse_statistics(data, _SCHEMA, _ROWS)
    if statistics is not None:
        assert int(statistics.zone_rows.sum()) == _ROWS
        statistics.fold()


def _zone_map_seeds() -> Iterator[bytes]:
    for step in (1, 3):
        builder = StatisticsBuilder(_SCHEMA, zone_rows=1024)
        for batch in _ZONED.to_batches(max_chunksize=_ROWS // step):
            builder.add(batch)
        data = builder.finish()
        yield data
        # Zone maps of large files are compressed.
        batch = pa.ipc.open_file(data).get_batch(0)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_batch(batch)
        yield sink.getvalue().to_pybytes()


# --------------------------------------------------------------------------------------------------------------- JSONB


def read_jsonb(data: bytes) -> None:
    """Decode a JSONB value to valid JSON, and walk through its items."""
    _walk_items(data)
    (text,) = jsonb.to_text(pa.array([data], pa.large_binary())).to_pylist()
    json.loads(text, parse_constant=_no_constant)


def _walk_items(data: bytes) -> None:
    with suppress(CorruptFileError):
        items, seen = json_items.open_documents(pa.array([data], pa.large_binary())), 0
        while len(items) and seen < 200:
            seen += len(items)
            for data_type in (pa.bool_(), pa.string(), pa.int64(), pa.float64()):
                json_items.values_of_type(items, data_type)
            for item in items:
                jsonb.text_of(item)
            is_array = json_items.is_array(items)
            elements = json_items.elements(items.select(is_array))
            items = elements if len(elements) else json_items.all_members(items)


def _no_constant(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


def _jsonb_seeds() -> Iterator[bytes]:
    numbers = "[0, 1, -1, 127, -128, 300, -70000, 5000000000, 18446744073709551615, 0.5, 1e300, -2.5e-7]"
    texts = ["null", "true", '"a"', "[]", "{}", numbers, '{"b": [1, {"a": null}], "a": {"é": [false, ""]}}']
    texts.append("[" * 60 + "]" * 60)
    yield from jsonb.from_text(pa.array(texts), "c").to_pylist()


# ------------------------------------------------------------------------------------------------- kernels, both forms

_WITH_FORMS = (bitpacking, fsst, fullzip, gather, compression, miniblock, varbin)


def _outcome(native: Any, call: Callable[[], Any]) -> Any:
    """Return the result of a kernel in its compiled or NumPy form, or CorruptFileError if it rejects the input."""
    for module in _WITH_FORMS:
        module.native = native
    try:
        return call()
    except CorruptFileError:
        return CorruptFileError
    finally:
        for module in _WITH_FORMS:
            module.native = kernels.native


def _compare(call: Callable[[], Any], *, checks_all: bool = True) -> Any:
    """Assert that both forms of a kernel return the same or reject the input; return the result of the NumPy form.

    With `checks_all` False, one form may reject bytes that the other one does not read.
    """
    plain = _outcome(None, call)
    if kernels.native is not None:
        compiled = _outcome(kernels.native, call)
        if checks_all or (plain is not CorruptFileError and compiled is not CorruptFileError):
            assert _same(plain, compiled), f"NumPy form: {plain!r}, compiled form: {compiled!r}"
    return plain


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, tuple):
        return isinstance(right, tuple) and len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, pa.Buffer):
        return isinstance(right, pa.Buffer) and left.equals(right)
    return type(left) is type(right) and bool(left == right)


def _numbers(data: bytes, count: int) -> tuple[list[int], bytes]:
    """Split the input into `count` numbers of 16 bits, zero if it is too short, and the rest."""
    head = data[: 2 * count].ljust(2 * count, b"\0")
    return list(struct.unpack(f"<{count}H", head)), data[2 * count :]


# ---------------------------------------------------------------------------------------------------------------- FSST


def read_fsst(data: bytes) -> None:
    """Decompress values: a symbol table, the number of values, their ends, and the codes."""
    table = fsst.SymbolTable.parse(data[: fsst.TABLE_BYTES].ljust(fsst.TABLE_BYTES, b"\0"))
    (count,), rest = _numbers(data[fsst.TABLE_BYTES :], 1)
    ends, codes = _numbers(rest, count % 64)
    offsets = np.minimum(np.sort(np.array([0, *ends], np.int32)), len(codes))
    _compare(lambda: fsst.decompress(np.frombuffer(codes, np.uint8), offsets, table))


def _fsst_seeds() -> Iterator[bytes]:
    values = [f"https://www.example.org/{number % 7}/{'é' * (number % 3)}".encode() for number in range(2000)]
    offsets = np.cumsum([0, *map(len, values)])
    codes, ends, table = fsst.compress(np.frombuffer(b"".join(values), np.uint8), offsets)
    for count in (0, 1, 30):
        stored = codes[: int(ends[count])].tobytes()
        yield table.to_bytes() + struct.pack(f"<{count + 1}H", count, *ends[1 : count + 1].tolist()) + stored
    yield fsst.SymbolTable(table.words[:0], table.lengths[:0], False).to_bytes() + struct.pack("<HH", 1, 3) + b"abc"


# ---------------------------------------------------------------------------------------------------------- bit packing

_DTYPES = [np.dtype(name) for name in ("u1", "u2", "u4", "u8")]


def read_packed(data: bytes) -> None:
    """Unpack a stream and blocks: type, width, number of values, and the packed bytes."""
    (kind, width, count), rest = _numbers(data, 3)
    dtype, packed = _DTYPES[kind % 4], np.frombuffer(rest, np.uint8)
    unpacked = _compare(lambda: bitpacking.unpack_stream(packed, count, width, dtype))
    assert unpacked is CorruptFileError or len(unpacked) == count
    if unpacked is not CorruptFileError:
        bitpacking.sign_extend(unpacked, width)
    blocks = _compare(lambda: bitpacking.unpack_blocks(packed, width, dtype))
    if blocks is not CorruptFileError and width:
        again = _compare(lambda: bitpacking.pack_blocks(blocks, width))
        assert again.tobytes() == rest


def _packed_seeds() -> Iterator[bytes]:
    for kind, dtype in enumerate(_DTYPES):
        for width in (0, 1, 3, dtype.itemsize * 8 - 1, dtype.itemsize * 8):
            values = (np.arange(1024) * 7919 % (1 << min(width, 20))).astype(dtype)
            head = struct.pack("<3H", kind, width, 900)
            yield head + bitpacking.pack_stream(values, width).tobytes()
            yield head + bitpacking.pack_blocks(values, width).tobytes()


# ---------------------------------------------------------------------------------------------------------- mini-blocks


class _Chunks:
    """Chunks of an input, with their numbers of values; one byte between them.

    Starts and sizes are limited to the bytes, because the callers of the kernels check them.
    """

    def __init__(self, data: bytes, number: int) -> None:
        described, content = _numbers(data, 2 * number)
        self.data = np.frombuffer(content, np.uint8)
        wanted = np.array(described[:number], np.int64)
        self.starts = np.minimum(np.cumsum(wanted + 1) - wanted, len(content))
        self.sizes = np.minimum(wanted, len(content) - self.starts)
        self.counts = np.array(described[number:], np.int64)

    def runs(self, item_bytes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return values, lengths, and the number of runs of each chunk."""
        most = len(self.data) // (item_bytes + 1)
        runs = np.diff(np.minimum(np.cumsum(self.sizes), most), prepend=0)
        total = int(runs.sum())
        return self.data[total : total * (item_bytes + 1)], self.data[:total], runs


def read_chunks(data: bytes) -> None:
    """Decode chunks: kernel, type, parameter, number of chunks, size and number of values of each, and their bytes."""
    (kernel, kind, width, number), rest = _numbers(data, 4)
    chunks, dtype = _Chunks(rest, number % 8), _DTYPES[kind % 4]
    _KERNELS[kernel % len(_KERNELS)](chunks, dtype, width)


def _unpack_inline(chunks: _Chunks, dtype: np.dtype[Any], width: int) -> None:
    _compare(lambda: miniblock.unpack_inline(chunks.data, chunks.starts, chunks.sizes, chunks.counts, dtype))


def _unpack_out_of_line(chunks: _Chunks, dtype: np.dtype[Any], width: int) -> None:
    _compare(
        lambda: miniblock.unpack_out_of_line(chunks.data, chunks.starts, chunks.sizes, chunks.counts, width % 66, dtype)
    )


def _variable(chunks: _Chunks, dtype: np.dtype[Any], width: int) -> None:
    offset_bytes = 4 if width % 2 else 8
    _compare(lambda: miniblock.variable(chunks.data, chunks.starts, chunks.sizes, chunks.counts, offset_bytes))


def _run_lengths(chunks: _Chunks, dtype: np.dtype[Any], width: int) -> None:
    values, lengths, runs = chunks.runs(dtype.itemsize)
    _compare(lambda: miniblock.run_lengths(values.view(dtype), lengths, runs, chunks.counts))


def _byte_streams(chunks: _Chunks, dtype: np.dtype[Any], width: int) -> None:
    counts = chunks.sizes // dtype.itemsize
    _compare(lambda: miniblock.byte_streams(chunks.data, chunks.starts, counts, dtype.itemsize))


def _chunk_headers(chunks: _Chunks, dtype: np.dtype[Any], width: int) -> None:
    data = chunks.data[: len(chunks.data) // 8 * 8]
    starts = np.minimum(chunks.starts // 8 * 8, len(data))
    sizes = np.minimum(chunks.sizes // 8 * 8, len(data) - starts)
    options = width % 3, width // 3 % 4, bool(width // 12 % 2)
    _compare(lambda: miniblock.chunk_headers(data, starts, sizes, *options))


def _single_values(chunks: _Chunks, dtype: np.dtype[Any], width: int) -> None:
    """Read one value of each chunk. The compiled form checks only the bytes of these values."""
    places = chunks.counts * (width % 256) // 256
    alone = np.diff(chunks.starts, prepend=-1) > 0  # chunks beyond the bytes start at the same place
    columns = chunks.starts, chunks.sizes, chunks.counts, places
    pieces = gather.Pieces(chunks.data, *(column[alone] for column in columns))
    bits = width // 256 % 66
    for call in (
        lambda: gather.fixed(pieces, bits),
        lambda: gather.bits(pieces),
        lambda: gather.inline(pieces, dtype.itemsize),
        lambda: gather.out_of_line(pieces, bits, dtype),
        lambda: gather.variable(pieces, 4 if bits % 2 else 8),
        lambda: gather.runs(pieces, pieces.starts, pieces.sizes, np.dtype("u1")),
        lambda: gather.streams(pieces, dtype.itemsize),
    ):
        _compare(call, checks_all=False)


def _walk(chunks: _Chunks, dtype: np.dtype[Any], width: int) -> None:
    control, length_bytes = (0, 1, 2, 4)[width % 4], (0, 4, 8)[width // 4 % 3]
    bits_def, top, ends = width // 16 % 9, width // 256 % 4, chunks.starts + chunks.sizes
    _compare(
        lambda: fullzip.walk(
            chunks.data, chunks.starts, ends, control, min(bits_def, 8 * control), top, dtype.itemsize, length_bytes
        )
    )


_KERNELS = (_unpack_inline, _unpack_out_of_line, _variable, _run_lengths, _byte_streams, _chunk_headers)
_KERNELS += (_single_values, _walk)


def _chunk_seeds() -> Iterator[bytes]:
    numbers = np.arange(1024) * 7919 % 60
    for kind, dtype in enumerate(_DTYPES):
        values = numbers.astype(dtype)
        inline = bitpacking.pack_inline(values)[0].tobytes()
        packed = bitpacking.pack_blocks(values, 6).tobytes()
        yield _described(0, kind, 0, [inline, inline], [1024, 9])
        yield _described(1, kind, 6, [packed, packed + values[:3].tobytes()], [1000, 1027])
        yield _described(4, kind, 0, [values[:20].tobytes(), values[:7].tobytes()], [20, 7])
        for bits in (0, 6):
            yield _described(6, kind, bits << 8 | 128, [inline, inline], [1024, 9])
            yield _described(6, kind, bits << 8 | 128, [packed], [1024])
        yield _described(3, kind, 0, [bytes([1, 2]), bytes([3]) + values[:3].tobytes()], [3, 3])
    for offset_bytes in (4, 8):
        offsets = np.array([4, 6, 6, 9], f"<u{offset_bytes}") + 3 * offset_bytes
        piece = (offsets + offset_bytes - 4).tobytes() + b"abcde"
        yield _described(2, 0, offset_bytes % 8 // 4, [piece, piece], [3, 3])
        yield _described(6, 0, (offset_bytes % 8 // 4) << 8 | 128, [piece, piece], [3, 3])
    header = struct.pack("<HHH", 2, 5, 3)
    yield _described(5, 0, 3, [bytes(7) + header + bytes(2) + b"aaaaa\0\0\0bbb\0\0\0\0\0"], [2])
    yield _described(7, 0, 1 + 4 + 32, [b"\0\2\0\0\0ab\1\0\1\0\0\0c"], [3])


def _described(kernel: int, kind: int, width: int, chunks: Sequence[bytes], counts: Sequence[int]) -> bytes:
    head = struct.pack("<4H", kernel, kind, width, len(chunks))
    sizes = struct.pack(f"<{len(chunks)}H", *map(len, chunks))
    return head + sizes + struct.pack(f"<{len(chunks)}H", *counts) + b"".join(b"\0" + chunk for chunk in chunks)


# --------------------------------------------------------------------------------------------------- compressed buffers


def read_compressed(data: bytes) -> None:
    """Decompress buffers: scheme, number of buffers, size of each, and their bytes."""
    (scheme, number), rest = _numbers(data, 2)
    chunks = _Chunks(rest, number % 8)
    name = compression.SCHEMES[scheme % len(compression.SCHEMES)]
    _compare(lambda: compression.decompress_pieces(name, chunks.data, chunks.starts, chunks.sizes, 1 << 20))


def _compressed_seeds() -> Iterator[bytes]:
    for scheme, name in enumerate(compression.SCHEMES):
        buffers = [compression.compress(name, content) for content in (b"a" * 90, bytes(range(99)), b"ab" * 300)]
        yield struct.pack("<H", scheme) + _described(0, 0, 0, buffers, [0, 0, 0])[6:]
    frame = pa.Codec("zstd").compress(b"abc" * 30, asbytes=True)
    yield struct.pack("<H", 0) + _described(0, 0, 0, [frame], [0])[6:]


def _target(name: str, function: Callable[[bytes], None], seeds: Callable[[], Iterator[bytes]]) -> Target:
    return Target(name, function, seeds, lambda data, mutator: mutator.buffer(data))


TARGETS = [
    _target("zone-maps", read_zone_maps, _zone_map_seeds),
    _target("jsonb", read_jsonb, _jsonb_seeds),
    _target("fsst", read_fsst, _fsst_seeds),
    _target("bitpacking", read_packed, _packed_seeds),
    _target("mini-blocks", read_chunks, _chunk_seeds),
    _target("compression", read_compressed, _compressed_seeds),
]
