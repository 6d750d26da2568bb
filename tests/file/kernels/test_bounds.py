"""Compiled kernels with positions of any size and unaligned arrays.

`scripts/sanitize` reports the accesses outside of a buffer and the overflows that these calls could cause.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.expr.evaluate import operators
from lancetable.file import kernels
from lancetable.file.encodings_v2_1.chunks import ChunkLimits
from lancetable.file.kernels import distinct, key_tables
from lancetable.file.zone_maps import StatisticsBuilder
from lancetable.format.schema import Schema

pytestmark = pytest.mark.skipif(not kernels.NATIVE, reason="the compiled kernels are not built or switched off")

native, native_keys, native_search, native_write = (
    kernels.native,
    kernels.native_keys,
    kernels.native_search,
    kernels.native_write,
)

LEAST, MOST = -(2**63), 2**63 - 1
DATA = np.frombuffer(bytes(range(1, 33)), np.uint8)
EXTREMES = [LEAST, LEAST + 1, -(2**62), -1, 0, 1, 2, 8, 31, 32, 33, 2**31, 2**62, MOST - 1, MOST]
three = st.lists(st.sampled_from(EXTREMES), min_size=3, max_size=3).map(lambda found: np.array(found, np.int64))
small = st.lists(st.integers(0, 8), min_size=3, max_size=3).map(lambda found: np.array(found, np.int64))


def int32(values: np.ndarray) -> np.ndarray:
    return np.clip(values, -(2**31), 2**31 - 1).astype(np.int32)


def levels(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Any:
    flat, two = np.ones(3, np.int64), np.full(3, 2, np.int64)
    return native.entries_of_rows(DATA, (a, two, flat), None, flat, flat, b, c, flat, np.sort(a), 1, 0, 0)


def small_pages(array: pa.Array, width: int, first: Any = 0, position: Any = 0) -> Any:
    limits = ChunkLimits(1024, 8192, 4096)
    shared = native.SmallColumns(2, True, limits, limits, 1 << 15, 256, 2, 0)
    return native.small_pages(shared, [array], [width], int(first), int(position), bytes(64), lambda *_: b"x")


def unchecked(kind: pa.DataType, first: np.ndarray, *more: np.ndarray, start: Any = 0) -> pa.Array:
    """Return an array of two values whose second buffer changes to `first` after the checks of Arrow."""
    memory = np.zeros(len(first), first.dtype)
    buffers = [pa.py_buffer(b"\5"), *map(pa.py_buffer, (memory, *more))]
    array = pa.Array.from_buffers(kind, 2, buffers, 1, max(0, min(int(start), 1)))
    memory[:] = first
    return array


# Each call gets three arrays of three positions; the third one also serves as a number of values.
CALLS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], Any]] = {
    "gather": lambda a, b, c: native.gather(a, b, DATA),
    "take": lambda a, b, c: native.take(a, DATA, b.view(np.uint64), None),
    "take of 32 bits": lambda a, b, c: native.take(int32(a), DATA, np.abs(b).view(np.uint64), None),
    "interleave": lambda a, b, c: native.interleave([(DATA, a), (DATA, b)]),
    "walk": lambda a, b, c: native.walk(DATA, a, b, 1, 1, 0, 1, 4),
    "walk with invalid levels": lambda a, b, c: native.walk(DATA, a, b, 1, max(-5, min(int(c[0]), 99)), 0, 1, 4),
    "chunk headers": lambda a, b, c: native.chunk_headers(DATA, a, b, 1, 1, True),
    "chunk headers with and without levels": lambda a, b, c: native.chunk_headers(DATA, a, b, 1, 1, False, c > 1),
    "chunk headers with too few flags": lambda a, b, c: native.chunk_headers(DATA, a, b, 1, 1, False, c[:2] > 1),
    "metadata of a column": lambda a, b, c: native.column_metadata(DATA, int(a[0]), int(b[0]), int(c[0])),
    "chunk bounds": lambda a, b, c: native.chunk_bounds(DATA[: int(a[0]) % 33], int(b[0]), int(c[0]), True),
    "variable": lambda a, b, c: native.variable(DATA, a, b, c, np.zeros(9, np.int64)),
    "variable of 32 bits": lambda a, b, c: native.variable(DATA, a, b, c, np.zeros(9, np.int32)),
    "inline": lambda a, b, c: native.unpack_inline(DATA, a, b, c, np.zeros(2048, np.uint16)),
    "out of line": lambda a, b, c: native.unpack_out_of_line(DATA, a, b, c, 3, np.zeros(2048, np.uint32)),
    "run lengths": lambda a, b, c: native.run_lengths(DATA, DATA, a, c, np.zeros(99, np.uint8)),
    "byte streams": lambda a, b, c: native.byte_streams(DATA, a, c, np.zeros(8, np.uint32)),
    "one fixed value": lambda a, b, c: native.gather_fixed(DATA, a, b, c, np.zeros(3, np.int64), 8),
    "one bit": lambda a, b, c: native.gather_bits(DATA, a, b, c, np.zeros(3, np.int64)),
    "one inline value": lambda a, b, c: native.gather_inline(DATA, a, b, c, np.zeros(3, np.int64), 16),
    "one packed value": lambda a, b, c: native.gather_out_of_line(DATA, a, b, c, c - 1, 3, 16),
    "one packed value of width 0": lambda a, b, c: native.gather_out_of_line(DATA, a, b, c, c - 1, 0, 16),
    "one string": lambda a, b, c: native.gather_variable(DATA, a, b, c, np.zeros(3, np.int64), 8),
    "one value of a run": lambda a, b, c: native.gather_runs(DATA, a, b, c, c - 1, a, b, 1),
    "levels": levels,
    "chunks of rows": lambda a, b, c: native.locate([(a, b, np.append(0, c))], [np.abs(b)]),
    "training": lambda a, b, c: native.train(DATA, a, b),
    "compression": lambda a, b, c: native.compress(DATA, a, np.zeros(0, np.uint64), np.zeros(0, np.uint8)),
    "decompression": lambda a, b, c: native.decompress(DATA, a, np.zeros(0, np.uint64), np.zeros(0, np.uint8)),
    "page of strings": lambda a, b, c: native.string_page(a, DATA, None, int(b[0]), int(c[0]), False),
    "page of strings of 32 bits": lambda a, b, c: native.string_page(int32(a), DATA, DATA[:4], 2, 99, True),
    "page of numbers": lambda a, b, c: native.number_page(DATA, a[:1], int(b[0]) % 99, 4, int(c[0]), 999, False),
    "small page of strings": lambda a, b, c: small_pages(
        unchecked(pa.binary(), int32(a), DATA, start=c[0]), -32, position=b[0]
    ),
    "small page of long strings": lambda a, b, c: small_pages(unchecked(pa.large_binary(), a, DATA), -64, first=b[0]),
    "small page of numbers": lambda a, b, c: small_pages(
        unchecked(pa.int64(), a, start=c[0]), int(c[1]) if abs(int(c[1])) < 99 else 64, position=b[0]
    ),
    "chunks": lambda a, b, c: native.assemble_chunks(np.abs(c[:2]), [[(DATA, a)]], [[(DATA, b), (DATA, a)]], True, 999),
    "zstd": lambda a, b, c: native.pack_frames(DATA, a, b, int(c[0])),
    "lz4": lambda a, b, c: native.unpack_lz4(DATA, a, b, min(int(c[0]), 99)),
    "extremes": lambda a, b, c: native_write.extremes(a, DATA, None, 0, np.array([0]), np.array([2])),
    "extremes of 32 bits": lambda a, b, c: native_write.extremes(int32(a), DATA, None, 0, np.array([0]), np.array([2])),
    "zones": lambda a, b, c: native_write.number_zones(c, None, 0, a, b, np.zeros(3, int), np.zeros(3, int)),
    "distinct": lambda a, b, c: native_write.index_strings(a, DATA, None, 0, 9),
    "distinct of 32 bits": lambda a, b, c: native_write.index_strings(int32(a), DATA, None, 0, 9),
    "hashes": lambda a, b, c: native_keys.hash_values(a, DATA, 3, 5),
    "hashes of 32 bits": lambda a, b, c: native_keys.hash_values(int32(a), DATA, 3, 5),
    "equal values": lambda a, b, c: native_keys.equal_values(a, DATA, c, b, DATA, c),
    "near keys": lambda a, b, c: native_keys.build_near(
        a.view(np.uint64), b, int(c[0]) % 2**64, np.full(9, -1, np.int32), np.zeros(9, np.int64)
    ),
    "search": lambda a, b, c: native_search.containing(int32(a), DATA, b"\x03", b"\x00", False),
}


@pytest.mark.parametrize("name", CALLS)
@given(a=st.one_of(three, small.map(np.sort)), b=st.one_of(three, small, small.map(np.sort)), c=st.one_of(three, small))
def test_positions_of_any_size_are_within_the_data_or_rejected(
    name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> None:
    try:
        CALLS[name](a, b, c)
    except (CorruptFileError, ValueError):
        pass


def test_a_value_after_the_runs_of_a_shorter_piece_is_rejected() -> None:
    data = np.array([1, 1, 1, 7, 8, 9], np.uint8)
    starts, sizes, counts, places = (np.array(each, np.int64) for each in ([0, 0], [3, 1], [3, 3], [2, 2]))
    with pytest.raises(CorruptFileError, match="runs end before the last value"):
        native.gather_runs(data, starts, sizes, counts, places, np.array([3, 3]), sizes, 1)


@pytest.mark.parametrize("offsets", [[-(2**31), 5], [1, -(2**31)], [3, 2], [0, 6]])
def test_the_search_rejects_offsets_outside_of_the_data(offsets: list[int]) -> None:
    data = np.frombuffer(b"abcde", np.uint8)
    for ascii_only in (False, True):
        assert native_search.containing(np.array(offsets, np.int32), data, b"c", b"\0", ascii_only) is None


# ----------------------------------------------------------------------------------------------------- unaligned arrays


def moved(array: pa.Array, by: int = 1) -> pa.Array:
    """Return a copy whose buffers start `by` bytes after an aligned address."""
    buffers = [each and pa.py_buffer(bytes(by) + each.to_pybytes()).slice(by) for each in array.buffers()]
    return pa.Array.from_buffers(array.type, len(array), buffers, array.null_count, array.offset)


STRINGS = [pa.string(), pa.large_string()]
NUMBERS = [pa.int16(), pa.uint32(), pa.int64(), pa.float32(), pa.float64()]


def many(kind: pa.DataType) -> pa.Array:
    """Return 3,000 values, repeated and with nulls; a slice."""
    values = [None if number % 7 == 0 else number % 300 for number in range(3_001)]
    return pa.array(values, pa.int16()).cast(kind)[1:]


@pytest.mark.parametrize("kind", STRINGS, ids=str)
def test_unaligned_strings_are_indexed_compared_and_searched(kind: pa.DataType) -> None:
    values = many(kind)
    strange = moved(values)
    found, expected = distinct.index_values(strange, 1_000), distinct.index_values(values, 1_000)
    assert found is not None and expected is not None
    assert found.indices.tolist() == expected.indices.tolist() and found.items.equals(expected.items)

    def offsets(array: pa.Array) -> np.ndarray:
        width = 4 if kind == pa.string() else 8
        return np.frombuffer(array.buffers()[1], f"<i{width}", len(array) + 1, array.offset * width)

    ends, other_ends = (offsets(each) for each in (strange, values))
    data = np.frombuffer(values.buffers()[2], np.uint8)
    assert (key_tables.hash_values(ends, data) == key_tables.hash_values(other_ends, data)).all()
    rows = np.arange(len(values))
    assert key_tables.equal_values(ends, data, rows, other_ends, data, rows)
    assert operators.contains(strange, "12").equals(operators.contains(values, "12"))


@pytest.mark.parametrize("kind", [pa.int16(), pa.uint32(), pa.int64()], ids=str)
def test_unaligned_numbers_are_found_by_their_keys(kind: pa.DataType) -> None:
    dtype = kind.to_pandas_dtype()
    values = np.array([5, 3, 5, 2**14], dtype)
    strange = np.frombuffer(b"\0" + values.tobytes(), dtype, offset=1)
    for each in (values, strange, np.repeat(values, 2)[::2]):
        table = key_tables.table_of(each, None)
        assert table.first_rows.tolist() == [0, 1, 0, 3]
        assert table.find(strange).tolist() == [0, 1, 0, 3]


@pytest.mark.parametrize("kind", [*STRINGS, *NUMBERS], ids=str)
def test_unaligned_arrays_have_the_same_zone_maps(kind: pa.DataType) -> None:
    def zone_maps(array: pa.Array) -> list[Any]:
        builder = StatisticsBuilder(Schema.from_arrow(pa.schema([("x", kind)])), 1024)
        builder.add(pa.record_batch([array], names=["x"]))
        zones = builder.statistics().columns[0]
        assert zones.min is not None and zones.max is not None
        return [zones.null_count.tolist(), zones.min.to_pylist(), zones.max.to_pylist()]

    assert zone_maps(moved(many(kind))) == zone_maps(many(kind))
