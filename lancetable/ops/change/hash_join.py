"""Hash join on key columns: find the source row, if any, with the key of each table row.

    source   key    7     3    null   7          KeyIndex   3 -> row 1    7 -> row 0, again in row 3
    table    key    3     5     7    null        find       1    -1    0    -1

A key has one or more columns. As in SQL, a null equals no value. As in the total order of floating point numbers, NaN
equals NaN and 0.0 does not equal -0.0. All operations are vectorized. Values of up to 8 bytes use a table indexed by
the value if they are dense, or a hash table; longer values use hashes or Arrow's hash tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import SchemaMismatchError, UnsupportedFeatureError
from lancetable.file.kernels.key_tables import KeyTable, Matches, equal_values, hash_values, table_of
from lancetable.format.row_address import U64Array
from lancetable.lazy import lazy_property

Rows = npt.NDArray[np.int64]

_VARIABLE_WIDTH: Final = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
_Part: TypeAlias = "_FixedPart | _HashedPart | _ArrowPart"
"""One column of the key; `first_rows` holds the first source row with the value of each source row."""
_FACTORS: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


class KeyIndex:
    """Index of source rows by key.

    `representative[row]` is the first source row with the same key, or -1 if a key column is null.
    """

    def __init__(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        """Index the key `columns`. Raises UnsupportedFeatureError for a nested column."""
        self._parts: list[_Part] = []
        self._pairs: list[KeyTable] = []
        self.num_rows = len(columns[0])
        combined: Rows | None = None
        for column in columns:
            part = _part_of(column)
            self._parts.append(part)
            if combined is None:
                combined = part.first_rows
                continue
            values, valid = _combined(combined, part.first_rows, self.num_rows)
            table = table_of(values, valid)
            self._pairs.append(table)
            combined = table.first_rows
        assert combined is not None
        self.representative: Rows = combined

    def matches(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Matches:
        """Return (k,) ascending rows of `columns` whose key is in the source, and (k,) their representatives."""
        hits, rows = _chunked_matches(self._parts[0], columns[0])
        for part, pair, column in zip(self._parts[1:], self._pairs, columns[1:], strict=True):
            candidates = column if len(hits) == len(column) else column.take(pa.array(hits))
            part_hits, part_rows = _chunked_matches(part, candidates)
            values, _ = _combined(rows[part_hits], part_rows, self.num_rows)
            pair_hits, rows = pair.matches(values)
            hits = hits[part_hits[pair_hits]]
        return hits, rows

    def find(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Rows:
        """Return (n,) representative source rows of the keys in `columns`, -1 for a key that is not in the source."""
        return _scattered(self.matches(columns), len(columns[0]))

    @lazy_property
    def is_unique(self) -> bool:
        """True if the keys of all source rows are distinct and not null."""
        return bool((self.representative == np.arange(self.num_rows)).all())

    @property
    def has_repeats(self) -> bool:
        """True if a key occurs in several source rows."""
        rows = np.flatnonzero(self.representative >= 0)
        return not self.is_unique and bool((self.representative[rows] != rows).any())

    @lazy_property
    def last(self) -> Rows:
        """(n,) last source row with the same key; defined for rows that are the representative of their key."""
        rows = np.flatnonzero(self.representative >= 0)
        last = np.arange(self.num_rows)
        last[self.representative[rows]] = rows
        return last


def _chunked_matches(part: _Part, column: pa.Array | pa.ChunkedArray) -> Matches:
    """Return the matches of a column, chunk by chunk."""
    if isinstance(column, pa.Array):
        return part.matches(_plain(column))
    hits, rows, start = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    for chunk in column.chunks:
        chunk_hits, chunk_rows = part.matches(_plain(chunk))
        hits.append(chunk_hits + start)
        rows.append(chunk_rows)
        start += len(chunk)
    return np.concatenate(hits), np.concatenate(rows)


def _scattered(matches: Matches, num_rows: int) -> Rows:
    """Return (num_rows,) source rows, -1 for rows without a match."""
    source_rows = np.full(num_rows, -1, np.int64)
    source_rows[matches[0]] = matches[1]
    return source_rows


def _part_of(column: pa.Array | pa.ChunkedArray) -> _Part:
    column = _plain(column)
    if _width(column.type):
        return _FixedPart(column)
    if pa.types.is_nested(column.type) or pa.types.is_null(column.type):
        raise UnsupportedFeatureError(f"join keys of type {column.type} are unsupported", feature=f"{column.type} keys")
    return _HashedPart(column) if _has_bytes(column.type) else _ArrowPart(column)


class _FixedPart:
    """Index of values of up to 8 bytes, as integers."""

    def __init__(self, column: pa.Array) -> None:
        values, valid = _numbers(column)
        self._table = table_of(values, valid)
        self.first_rows = self._table.first_rows

    def matches(self, column: pa.Array) -> Matches:
        values, valid = _numbers(column)
        return _drop_null_matches(self._table.matches(values), valid)


class _HashedPart:
    """Index of longer values: a table of hashes, with candidates verified by comparison."""

    def __init__(self, column: pa.Array) -> None:
        self._column = column
        self._bytes = _bytes_of(column)
        self._table = table_of(hash_values(*self._bytes), _valid(column))
        self.first_rows = self._table.first_rows
        self._exact: _ArrowPart | None = None
        repeated = np.flatnonzero((self.first_rows >= 0) & (self.first_rows != np.arange(len(column))))
        if not equal_values(*self._bytes, repeated, *self._bytes, self.first_rows[repeated]):
            self._exact = _ArrowPart(column)
            self.first_rows = self._exact.first_rows

    def matches(self, column: pa.Array) -> Matches:
        if self._exact is None:
            values = _bytes_of(column)
            hits, rows = _drop_null_matches(self._table.matches(hash_values(*values)), _valid(column))
            if equal_values(*values, hits, *self._bytes, rows):
                return hits, rows
            # Two values have the same hash, which hardly occurs except in crafted data: use exact matching.
            self._exact = _ArrowPart(self._column)
        return self._exact.matches(column)


class _ArrowPart:
    """Index of values of any size, using Arrow's hash tables."""

    def __init__(self, column: pa.Array) -> None:
        self._distinct = pc.unique(column.drop_null())
        self._first = np.zeros(len(self._distinct), np.int64)
        codes = self._codes(column)
        rows = np.flatnonzero(codes >= 0)
        self._first[codes[rows[::-1]]] = rows[::-1]
        self.first_rows = _scattered((rows, self._first[codes[rows]]), len(column))

    def matches(self, column: pa.Array) -> Matches:
        codes = self._codes(column)
        hits = np.flatnonzero(codes >= 0)
        return hits, self._first[codes[hits]]

    def _codes(self, column: pa.Array) -> Rows:
        """Return (n,) positions of the values among the distinct values, -1 for other values and nulls."""
        codes = pc.index_in(column, value_set=self._distinct, skip_nulls=True)
        return np.asarray(codes.fill_null(-1)).astype(np.int64)


def _drop_null_matches(matches: Matches, valid: npt.NDArray[np.bool_] | None) -> Matches:
    if valid is None:
        return matches
    hits, rows = matches
    kept = valid[hits]
    return hits[kept], rows[kept]


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array. Raises SchemaMismatchError for a dictionary too large for its index type."""
    if isinstance(column, pa.Array):
        return column
    return concat(column.chunks, column.type)


def concat(chunks: Sequence[pa.Array], data_type: pa.DataType) -> pa.Array:
    """Concatenate arrays of one type. Raises the error of `whole`."""
    if len(chunks) < 2:
        return chunks[0] if chunks else pa.nulls(0, data_type)
    if not pa.types.is_dictionary(data_type):
        return pa.concat_arrays(chunks)
    # Arrow cannot concatenate dictionaries with nulls, or dictionaries whose union exceeds the index type.
    values = pa.concat_arrays([chunk.cast(data_type.value_type) for chunk in chunks])
    try:
        return values.dictionary_encode().cast(data_type)
    except pa.ArrowInvalid as error:
        raise SchemaMismatchError(f"the dictionary of a {data_type} exceeds its index type: {error}") from error


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return one array of plain values, without extension type or dictionary."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return whole(column)


# --- numbers ---------------------------------------------------------------------------------------------------------


def _width(data_type: pa.DataType) -> int:
    """Return the size in bytes of a primitive type of up to 64 bits, 0 for other types."""
    return max(1, data_type.bit_width // 8) if pa.types.is_primitive(data_type) and data_type.bit_width <= 64 else 0


def _valid(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    return None if not column.null_count else np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


def _numbers(column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Return integers that are equal if and only if the values are, and a validity mask (None: all valid)."""
    valid = _valid(column)
    if pa.types.is_boolean(column.type):
        return np.asarray(column.fill_null(False).to_numpy(zero_copy_only=False)).astype(np.int64), valid
    width = _width(column.type)
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), np.int64), valid
    kind = "u" if pa.types.is_unsigned_integer(column.type) else "i"
    values = np.frombuffer(data, np.dtype(f"<{kind}{width}"), len(column), column.offset * width)
    return values, valid


def _combined(first: Rows, second: Rows, size: int) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Combine two row numbers below `size` into one number; also return a mask of the entries that have both.

    Row numbers have 31 bits, so the square of `size` fits in 63 bits.
    """
    return first * np.int64(size) + second, (first >= 0) & (second >= 0)


# --- for spilling and messages ---------------------------------------------------------------------------------------


def hashes(columns: Sequence[pa.Array | pa.ChunkedArray]) -> U64Array:
    """Return (n,) hashes of keys, for partitioning rows; undefined for null keys."""
    total = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        total = (total ^ (total >> np.uint64(29))) * np.uint64(_FACTORS[1]) + _hash(_plain(column))
    mixed: U64Array = (total ^ (total >> np.uint64(32))) * np.uint64(_FACTORS[0]) >> np.uint64(20)
    return mixed


def _hash(column: pa.Array) -> U64Array:
    """Return (n,) hashes of values, which do not depend on the offset width of the type; undefined for nulls."""
    if _width(column.type):
        values, _ = _numbers(column)
        numbers: U64Array = values.astype(np.uint64) * np.uint64(_FACTORS[2])
        return numbers
    return hash_values(*_bytes_of(column))


def _has_bytes(data_type: pa.DataType) -> bool:
    return data_type in _VARIABLE_WIDTH or _fixed_bytes(data_type) > 0


def _fixed_bytes(data_type: pa.DataType) -> int:
    """Return the size in bytes of a decimal or fixed-size binary value, 0 for other types."""
    fixed = pa.types.is_decimal(data_type) or pa.types.is_fixed_size_binary(data_type)
    return int(data_type.bit_width) // 8 if fixed else 0


def _bytes_of(column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Return (n + 1,) offsets of the values, and the bytes of all values."""
    if not _has_bytes(column.type):
        column = pc.cast(column, pa.string())
    fixed = _fixed_bytes(column.type)
    buffers = column.buffers()
    data = np.frombuffer(buffers[-1], np.uint8) if buffers[-1] is not None else np.zeros(0, np.uint8)
    if fixed or not len(column):
        return (np.arange(len(column) + 1, dtype=np.int64) + column.offset) * fixed, data
    width = 8 if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type) else 4
    return np.frombuffer(buffers[1], f"<i{width}", len(column) + 1, column.offset * width), data


def example(names: Sequence[str], columns: Sequence[pa.Array | pa.ChunkedArray], row: int) -> str:
    """Return a key as a string for messages: `id = 1, name = 'x'`."""
    values = [str(column[row].as_py()) for column in columns]
    return ", ".join(f"{name} = {value[:100]}" for name, value in zip(names, values, strict=True))
