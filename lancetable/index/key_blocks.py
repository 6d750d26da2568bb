"""Sorted keys of an index file, read in blocks.

    row   0     1   2  ...   16384  ...   32768  ...      a null key is in row 0
    key   null  aa  ab       ka           ra
    fences                   ka           ra

A search finds the block of a key by the fences, which are read first, and reads only this block. Fences and blocks are
cached. A file with one block has no fences. Older releases wrote keys in any order; such a file is read completely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.index.index_files import plain_values
from lancetable.index.key_ranges import KeyRanges, expand
from lancetable.index.sort_keys import (
    Int64,
    Keys,
    Side,
    is_ascending,
    is_ordered,
    keys_of,
    positions,
    sort_indices,
    take,
)

if TYPE_CHECKING:
    from lancetable.index.index_files import IndexFileReader

_BLOCK_ROWS: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class _Layout:
    """Row of the null key, and the fences; in a file whose keys are not sorted also their order and the sorted keys."""

    null_row: int | None
    fences: Keys
    order: Int64 | None = None
    sorted_keys: Keys | None = None

    @property
    def memory_bytes(self) -> int:
        parts = (self.fences, self.order, self.sorted_keys)
        return 256 + sum(part.nbytes for part in parts if part is not None)


class KeyBlocks:
    """The column `keys` of a file. Positions count the keys in ascending order, without null.

    Raises CorruptFileError if the type of the keys has no order, if there are several nulls, or if the keys of a block
    do not ascend.
    """

    def __init__(self, reader: IndexFileReader, column: str) -> None:
        self._reader, self._column = reader, column
        self.stored_type = reader.column_type(column)
        is_dictionary = pa.types.is_dictionary(self.stored_type)
        self.data_type = self.stored_type.value_type if is_dictionary else self.stored_type
        if not is_ordered(self.data_type) and not pa.types.is_null(self.data_type):
            what = "the keys of an index have a type without order"
            raise CorruptFileError(what, found=self.stored_type, path=reader.path)

    @property
    def null_row(self) -> int | None:
        """The row of the file whose key is null."""
        return self._layout.null_row

    def __len__(self) -> int:
        return self._reader.num_rows - (self.null_row is not None)

    def prewarm(self) -> None:
        """Read all keys into the cache."""
        if self._layout.sorted_keys is None:
            for number in range(len(self._layout.fences) + 1):
                self._block(number)

    def read(self, start: int, end: int) -> pa.Array:
        """Read the keys at some consecutive positions."""
        return self._read(self.rows(np.arange(start, end)))

    def rows(self, positions: Int64) -> Int64:
        """Return the rows of the file at some positions."""
        layout = self._layout
        if layout.order is not None:
            return layout.order[positions]
        return positions + (layout.null_row is not None)

    def selected(self, ranges: KeyRanges) -> Int64:
        """Return the ascending positions of the keys in ranges."""
        find = self._positions
        spans = [expand(each.starts(find), each.ends(find, len(self)))[1] for each in ranges.with_nan()]
        return np.unique(np.concatenate(spans))

    def _positions(self, probes: Keys, side: Side) -> Int64:
        layout = self._layout
        if layout.sorted_keys is not None:
            return positions(layout.sorted_keys, probes, side)
        numbers = positions(layout.fences, probes, side)
        result = np.empty(len(numbers), np.int64)
        for number in np.unique(numbers).tolist():
            members = np.flatnonzero(numbers == number)
            first_row = max(number * _BLOCK_ROWS - (layout.null_row is not None), 0)
            result[members] = first_row + positions(self._block(number), take(probes, members), side)
        return result

    def _block(self, number: int) -> Keys:
        start = max(number * _BLOCK_ROWS, int(self.null_row is not None))
        end = min((number + 1) * _BLOCK_ROWS, self._reader.num_rows)
        keys: Keys = self._reader.cached(
            f"keys {number}", lambda: self._sorted_block(start, end), lambda block: 128 + block.nbytes
        )
        return keys

    def _sorted_block(self, start: int, end: int) -> Keys:
        array = self._read(np.arange(start, end))
        keys = keys_of(array)
        if array.null_count or not is_ascending(keys):
            raise CorruptFileError(
                f"the keys of the index are not sorted in rows {start} to {end - 1}", path=self._reader.path
            )
        return keys

    @property
    def _layout(self) -> _Layout:
        layout: _Layout = self._reader.cached("key layout", self._read_layout, lambda read: read.memory_bytes)
        return layout

    def _read_layout(self) -> _Layout:
        num_rows, size_bytes = self._reader.num_rows, self._reader.metadata.size_bytes
        if num_rows > 8 * size_bytes:  # keys are distinct, so that each takes more than a bit
            what = "an index has more keys than its file can contain"
            raise CorruptFileError(what, f"at most {8 * size_bytes}", num_rows, path=self._reader.path)
        if num_rows > _BLOCK_ROWS:
            array = self._read(np.arange(0, num_rows, _BLOCK_ROWS))
            fences = keys_of(array[1:])
            if not array[1:].null_count and is_ascending(fences):
                return _Layout(0 if array.null_count else None, fences)
        (array,) = map(
            plain_values, self._reader.read_arrays([self._column])
        )  # before anything is allocated for each row
        if array.null_count > 1:
            raise CorruptFileError("several keys of the index are null", path=self._reader.path)
        nulls = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist()
        null_row = nulls[0] if nulls else None
        order = np.delete(np.arange(num_rows), nulls)
        keys = keys_of(array.take(pa.array(order)))
        if is_ascending(keys):
            if null_row in (0, None):
                return _Layout(null_row, keys[:0], None, keys)
        else:
            by_key = sort_indices(keys)
            keys, order = take(keys, by_key), order[by_key]
        return _Layout(null_row, keys[:0], order, keys)

    def _read(self, rows: Int64) -> pa.Array:
        return read_column(self._reader, self._column, rows)


def read_column(reader: IndexFileReader, name: str, rows: Int64) -> pa.Array:
    """Read a column of an index file at some distinct rows, in any order."""
    if not len(rows):
        return pa.nulls(0, reader.column_type(name))
    ascending = np.sort(rows)
    first, last = int(ascending[0]), int(ascending[-1])
    consecutive = last - first + 1 == len(rows)
    (array,) = map(plain_values, reader.read_arrays([name], range(first, last + 1) if consecutive else ascending))
    return array if (ascending == rows).all() else array.take(pa.array(np.searchsorted(ascending, rows)))
