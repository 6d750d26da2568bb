"""Lookup of keys as 64-bit numbers: hashes of strings, and tables from numbers to rows of a column.

    keys of a column   70  30  70        table   30 -> row 1   70 -> row 0       own    0 1 0   (first row of each key)
    numbers to find    30  50  70        matches rows 0 and 2 of these, rows 1 and 0 of the column

Numbers in a small range have a direct table, with a slot for each number; others a hash table.
"""

from __future__ import annotations

import os
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lancetable.file.kernels import native_keys as native

__all__ = ["KeyTable", "Matches", "equal_values", "hash_values", "table_of"]

Rows: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[np.uint64]
Ends: TypeAlias = "npt.NDArray[np.int32] | npt.NDArray[np.int64]"
Matches: TypeAlias = "tuple[Rows, Rows]"
"""Indices of the numbers that were found, ascending, and the first row with the key of each."""

# Limits of the size of a direct table: slots for each value, and in total.
_SLOTS_PER_VALUE: Final = 32
_MIN_SLOTS: Final = 1 << 16
_MAX_SLOTS: Final = 1 << 26
_BY: Final = 0x9E3779B97F4A7C15
_LENGTH: Final = 0xD6E8FEB86659FD93
# Random, so that an adversary cannot choose keys that all collide. No result depends on it.
_PLACE: Final = int.from_bytes(os.urandom(8), "little") | 1
# Rows that are compared at a time, which bounds the memory of intermediate results.
_BLOCK_ROWS: Final = 32 * 1024


def hash_values(ends: Ends, data: npt.NDArray[np.uint8]) -> Numbers:
    """Hash values of bytes, which are between (n + 1,) `ends`. Raises ValueError for ends outside the data."""
    if native is not None:
        hashes = native.hash_values(ends, data, _BY, _LENGTH)
        if hashes is None:
            raise ValueError("ends do not match the data")
        return hashes  # type: ignore[no-any-return]  # the compiled module has no types
    starts: Rows = ends[:-1].astype(np.int64)
    sizes: Rows = ends[1:] - starts
    total: Numbers = sizes.astype(np.uint64) * np.uint64(_LENGTH)
    # Words at any byte; zeros after the data allow to read past its end.
    padded = np.concatenate((data, np.zeros(8, np.uint8)))
    words = np.ndarray((len(data) + 1,), np.dtype("<u8"), padded.data, strides=(1,))
    step = 0
    rows = np.flatnonzero(sizes > 0)
    while len(rows):  # mix the next eight bytes of each row that has some left
        left = sizes[rows] - step
        unused_bits = (64 - 8 * np.minimum(left, 8)).astype(np.uint64)
        mixed = total[rows] ^ ((words[starts[rows] + step] << unused_bits) >> unused_bits)
        mixed *= np.uint64(_BY)
        total[rows] = mixed ^ (mixed >> np.uint64(29))
        step += 8
        rows = rows[left > 8]
    return total


def equal_values(
    ends: Ends,
    data: npt.NDArray[np.uint8],
    rows: Rows,
    other_ends: Ends,
    other_data: npt.NDArray[np.uint8],
    other_rows: Rows,
) -> bool:
    """Return whether the values at `rows` equal those at `other_rows`, pair by pair.

    `ends` and `data` are as in `hash_values`.
    """
    if not len(rows):
        return True
    if native is not None and ends.dtype == other_ends.dtype:
        return bool(native.equal_values(ends, data, rows, other_ends, other_data, other_rows))
    starts, others = ends[rows].astype(np.int64), other_ends[other_rows].astype(np.int64)
    sizes = ends[rows + 1] - starts
    if (sizes != other_ends[other_rows + 1] - others).any():
        return False
    for begin in range(0, len(rows), _BLOCK_ROWS):
        block = slice(begin, begin + _BLOCK_ROWS)
        within = np.arange(int(sizes[block].sum())) - np.repeat(np.cumsum(sizes[block]) - sizes[block], sizes[block])
        one = data[np.repeat(starts[block], sizes[block]) + within]
        if (one != other_data[np.repeat(others[block], sizes[block]) + within]).any():
            return False
    return True


def table_of(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None) -> KeyTable:
    """Build a table of (n,) integers of any width, without those that are not `valid` (None: all are valid)."""
    rows = None if valid is None else np.flatnonzero(valid)
    kept = values if rows is None else values[rows]
    if len(kept):
        low, high = int(kept.min()), int(kept.max())
        slots = high - low + 1
        if slots <= min(max(_MIN_SLOTS, _SLOTS_PER_VALUE * len(kept)), _MAX_SLOTS):
            return _DirectTable(kept, rows, len(values), low, slots)
    rows = np.arange(len(values), dtype=np.int64) if rows is None else rows
    if native is not None and 4 * len(values) < 2**31:
        return _NativeTable(kept, rows, len(values))
    return _SortedTable(kept, rows, len(values))


class KeyTable:
    """Mapping from numbers to rows.

    `own` is the first row with the number of each row, -1 for a row that is not valid.
    """

    own: Rows

    def matches(self, values: npt.NDArray[Any]) -> Matches:
        """Return the indices of the (m,) `values` that are in the table, and their rows.

        `values` have the same width as the numbers of the table.
        """
        found = self.find(values)
        hits = np.flatnonzero(found >= 0)
        return hits, found[hits]

    def find(self, values: npt.NDArray[Any]) -> Rows:
        """Return the first row with each of the (m,) `values`, -1 for none."""
        found = np.full(len(values), -1, np.int64)
        hits, rows = self.matches(values)
        found[hits] = rows
        return found


class _DirectTable(KeyTable):
    """A table with one slot for every number between the minimum and the maximum."""

    def __init__(self, values: npt.NDArray[Any], rows: Rows | None, num_rows: int, low: int, slots: int) -> None:
        """Build the table; `rows` are the rows of the values, None for all rows."""
        self._low, self._high = low, low + slots - 1
        self._slots = np.full(slots, -1, np.int64 if num_rows > 2**31 else np.int32)
        self.own = np.full(num_rows, -1, np.int64)
        if native is not None and self._slots.dtype == np.int32:
            native.build_near(np.ascontiguousarray(_unsigned(values)), rows, low % 2**64, self._slots, self.own)
            return
        rows = np.arange(num_rows, dtype=np.int64) if rows is None else rows
        # Unsigned distances are correct for signed values as well.
        places = (_unsigned(values) - np.uint64(low % 2**64)).astype(np.int64)
        self._slots[places[::-1]] = rows[::-1]
        self.own[rows] = self._slots[places]

    def matches(self, values: npt.NDArray[Any]) -> Matches:
        if native is None or self._slots.dtype != np.int32:
            return super().matches(values)
        found: Matches = native.find_near(_unsigned(values), self._low % 2**64, self._slots)
        return found

    def find(self, values: npt.NDArray[Any]) -> Rows:
        if not len(values):
            return np.zeros(0, np.int64)
        low, high = int(values.min()), int(values.max())
        if low >= self._low and high <= self._high:
            places = (_unsigned(values) - np.uint64(self._low % 2**64)).astype(np.int64)
            found: Rows = self._slots[places].astype(np.int64)
            return found
        found = np.full(len(values), -1, np.int64)
        if low > self._high or high < self._low:
            return found
        limits = np.iinfo(values.dtype)
        inside = np.ones(len(values), np.bool_)
        if self._low > limits.min:
            inside &= values >= values.dtype.type(self._low)
        if self._high < limits.max:
            inside &= values <= values.dtype.type(self._high)
        rows = np.flatnonzero(inside)
        places = (_unsigned(values[rows]) - np.uint64(self._low % 2**64)).astype(np.int64)
        found[rows] = self._slots[places]
        return found


class _NativeTable(KeyTable):
    """A hash table of rows with linear probing."""

    def __init__(self, values: npt.NDArray[Any], rows: Rows, num_rows: int) -> None:
        self._keys = np.zeros(num_rows, np.uint64)
        self._keys[rows] = _unsigned(values)
        self.own = np.full(num_rows, -1, np.int64)
        self._slots = np.full(1 << max(8, (4 * len(rows)).bit_length()), -1, np.int32)
        native.build(self._keys, rows, self._slots, _PLACE, self.own)

    def matches(self, values: npt.NDArray[Any]) -> Matches:
        found: Matches = native.find(_unsigned(values), self._keys, self._slots, _PLACE)
        return found


class _SortedTable(KeyTable):
    """The distinct numbers in ascending order, with the first row of each."""

    def __init__(self, values: npt.NDArray[Any], rows: Rows, num_rows: int) -> None:
        self._keys, first, inverse = np.unique(_unsigned(values), return_index=True, return_inverse=True)
        self._rows = rows[first]
        self.own = np.full(num_rows, -1, np.int64)
        self.own[rows] = self._rows[inverse]

    def find(self, values: npt.NDArray[Any]) -> Rows:
        keys = _unsigned(values)
        if not len(self._keys):
            return np.full(len(keys), -1, np.int64)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._rows[at], -1)


def _unsigned(values: npt.NDArray[Any]) -> Numbers:
    """Convert integers to unsigned 64-bit numbers that are equal if the integers are."""
    return values.view(np.uint64) if values.dtype.itemsize == 8 else values.astype(np.uint64)
