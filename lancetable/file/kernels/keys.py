"""Keys as numbers of 64 bits: hashes of strings, and tables that tell which row of a column has a number.

    keys of a column   70  30  70        table   30 -> row 1   70 -> row 0       own    0 1 0   (first row of each key)
    numbers to find    30  50  70        matches rows 0 and 2 of these, rows 1 and 0 of the column

Numbers that lie close together have a slot for each one between the least and the greatest; else a table hashes.
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
"""Rows that were found, ascending, and the first row with the key of each."""

# A table of all values between the least and the greatest may have so many slots for each value, and in all.
_SLOTS_PER_VALUE: Final = 32
_MIN_SLOTS: Final = 1 << 16
_MAX_SLOTS: Final = 1 << 26
_BY: Final = 0x9E3779B97F4A7C15
_LENGTH: Final = 0xD6E8FEB86659FD93
# Unforeseeable, so that nobody can choose keys which all go to one slot. No result depends on it.
_PLACE: Final = int.from_bytes(os.urandom(8), "little") | 1
# What is looked up at a time: its intermediate results fit the caches.
_BLOCK_ROWS: Final = 32 * 1024


def hash_values(ends: Ends, data: npt.NDArray[np.uint8]) -> Numbers:
    """(n,) hashes of the values of bytes between (n + 1,) `ends`. Raises ValueError for ends beyond the data."""
    if native is not None:
        hashes = native.hash_values(ends, data, _BY, _LENGTH)
        if hashes is None:
            raise ValueError("ends that do not fit their data")
        return hashes  # type: ignore[no-any-return]  # the compiled module comes without types
    starts: Rows = ends[:-1].astype(np.int64)
    sizes: Rows = ends[1:] - starts
    total: Numbers = sizes.astype(np.uint64) * np.uint64(_LENGTH)
    # Words at any byte: the last one of a value may reach into zeros behind all of them.
    padded = np.zeros(len(data) + 8, np.uint8)
    padded[: len(data)] = data
    words = np.ndarray((len(data) + 1,), np.dtype("<u8"), padded.data, strides=(1,))
    for begin in range(0, len(starts), _BLOCK_ROWS):
        end = begin + _BLOCK_ROWS
        _hash_words(words, starts[begin:end], sizes[begin:end], total[begin:end])
    return total


def _hash_words(words: Numbers, starts: Rows, sizes: Rows, total: Numbers) -> None:
    """Take the bytes of values into `total`, eight at a time."""
    rows: Rows | None = None  # those that have bytes left, None for all
    part, step = total.copy(), 0
    while True:
        left = sizes - step
        ended = left <= 0
        if ended.any():
            kept = np.flatnonzero(~ended)
            if not len(kept):
                return
            rows = kept if rows is None else rows[kept]
            starts, sizes, left, part = starts[kept], sizes[kept], left[kept], part[kept]
        word = words[starts + step]
        cut = (64 - 8 * np.minimum(left, 8)).astype(np.uint64)
        part ^= (word << cut) >> cut
        part *= np.uint64(_BY)
        part ^= part >> np.uint64(29)
        total[slice(None) if rows is None else rows] = part
        step += 8


def equal_values(
    ends: Ends,
    data: npt.NDArray[np.uint8],
    rows: Rows,
    other_ends: Ends,
    other_data: npt.NDArray[np.uint8],
    other_rows: Rows,
) -> bool:
    """Whether the values of bytes at `rows` equal those at `other_rows`, one by one; see `hash_values`."""
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
    """A table of (n,) integers of any width, without those that are not `valid` (None: all are)."""
    rows = None if valid is None else np.flatnonzero(valid)
    kept = values if rows is None else values[rows]
    if len(kept):
        low, high = int(kept.min()), int(kept.max())
        slots = high - low + 1
        if slots <= min(max(_MIN_SLOTS, _SLOTS_PER_VALUE * len(kept)), _MAX_SLOTS):
            return _NearTable(kept, rows, len(values), low, slots)
    rows = np.arange(len(values), dtype=np.int64) if rows is None else rows
    if native is not None and 4 * len(values) < 2**31:
        return _NativeTable(kept, rows, len(values))
    return _HashTable(kept, rows, len(values))


class KeyTable:
    """Which row has a number: `own` is the first row with the number of each row, -1 for one that is not valid."""

    own: Rows

    def matches(self, values: npt.NDArray[Any]) -> Matches:
        """Which of (m,) numbers, of the same width as those of the table, are in it, and where."""
        found = self.find(values)
        hits = np.flatnonzero(found >= 0)
        return hits, found[hits]

    def find(self, values: npt.NDArray[Any]) -> Rows:
        """(m,) the first row with each of `values`, -1 for none."""
        found = np.full(len(values), -1, np.int64)
        hits, rows = self.matches(values)
        found[hits] = rows
        return found


class _NearTable(KeyTable):
    """One slot for every value between the least and the greatest."""

    def __init__(self, values: npt.NDArray[Any], rows: Rows | None, num_rows: int, low: int, slots: int) -> None:
        """`rows` are those of the values, None: all."""
        self._low, self._high = low, low + slots - 1
        self._slots = np.full(slots, -1, np.int64 if num_rows > 2**31 else np.int32)
        self.own = np.full(num_rows, -1, np.int64)
        if native is not None and self._slots.dtype == np.int32:
            native.build_near(np.ascontiguousarray(_unsigned(values)), rows, low % 2**64, self._slots, self.own)
            return
        rows = np.arange(num_rows, dtype=np.int64) if rows is None else rows
        # Unsigned distances are right whatever the type of the values.
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
    """Slots with rows; one that is taken sends a key to the next."""

    def __init__(self, values: npt.NDArray[Any], rows: Rows, num_rows: int) -> None:
        self._keys = np.zeros(num_rows, np.uint64)
        self._keys[rows] = _unsigned(values)
        self.own = np.full(num_rows, -1, np.int64)
        self._slots = np.full(1 << max(8, (4 * len(rows)).bit_length()), -1, np.int32)
        native.build(self._keys, rows, self._slots, _PLACE, self.own)

    def matches(self, values: npt.NDArray[Any]) -> Matches:
        found: Matches = native.find(_unsigned(values), self._keys, self._slots, _PLACE)
        return found


class _HashTable(KeyTable):
    """Tables with one row for each slot; who loses a slot goes to the next table.

    A value that is stored in the second table lost its slot in the first to another one, so an empty slot ends the
    search: most rows of a large table are done after one look.
    """

    def __init__(self, values: npt.NDArray[Any], rows: Rows, num_rows: int) -> None:
        self._keys = np.zeros(num_rows, np.uint64)
        self._keys[rows] = _unsigned(values)
        self._levels: list[tuple[np.uint64, np.uint64, npt.NDArray[np.int32] | Rows]] = []
        self.own = np.full(num_rows, -1, np.int64)
        dtype = np.int64 if num_rows > 2**31 else np.int32
        left = rows
        while len(left):
            bits = max(8, int(8 * len(left)).bit_length())
            factor = np.uint64((_PLACE + 0x165667B19E3779FA * len(self._levels)) % 2**64)
            shift = np.uint64(64 - bits)
            slots = np.full(1 << bits, -1, dtype)
            places = (self._keys[left] * factor) >> shift
            slots[places[::-1]] = left[::-1]
            winners = slots[places].astype(np.int64)
            settled = self._keys[winners] == self._keys[left]
            self.own[left[settled]] = winners[settled]
            self._levels.append((factor, shift, slots))
            left = left[~settled]

    def find(self, values: npt.NDArray[Any]) -> Rows:
        found = np.full(len(values), -1, np.int64)
        keys = _unsigned(values)
        for start in range(0, len(values), _BLOCK_ROWS):
            self._find_block(keys[start : start + _BLOCK_ROWS], found[start : start + _BLOCK_ROWS])
        return found

    def _find_block(self, keys: Numbers, found: Rows) -> None:
        rows: Rows | None = None
        for factor, shift, slots in self._levels:
            places = keys * factor
            places >>= shift
            candidates = slots[places.view(np.int64)]
            taken = np.flatnonzero(candidates >= 0)
            keys, candidates = keys[taken], candidates[taken]
            rows = taken if rows is None else rows[taken]
            equal = self._keys[candidates] == keys
            found[rows[equal]] = candidates[equal]
            keys, rows = keys[~equal], rows[~equal]
            if not len(keys):
                return


def _unsigned(values: npt.NDArray[Any]) -> Numbers:
    """Integers as numbers that are equal where these are."""
    return values.view(np.uint64) if values.dtype.itemsize == 8 else values.astype(np.uint64)
