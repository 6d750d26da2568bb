"""Lookup of keys as 64-bit numbers: hashes of strings, and tables from numbers to rows of a column.

    keys of a column   70  30  70        table   30 -> row 1   70 -> row 0       first_rows   0 1 0
    numbers to find    30  50  70        matches rows 0 and 2 of these, rows 1 and 0 of the column

With compiled kernels, numbers in a small range use a direct table with a slot for each number; others use a hash table.
"""

from __future__ import annotations

import os
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lancetable.file.kernels import native_keys as native
from lancetable.file.kernels.bitpacking import aligned
from lancetable.file.kernels.varbin import gather

Rows: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[np.uint64]
Ends: TypeAlias = "npt.NDArray[np.int32] | npt.NDArray[np.int64]"
Matches: TypeAlias = "tuple[Rows, Rows]"
"""Indices of the numbers that were found, ascending, and the first row with the key of each."""

# Limits of the size of a direct table: slots for each value, and in total.
_SLOTS_PER_VALUE: Final = 32
_MIN_SLOTS: Final = 1 << 16
_MAX_SLOTS: Final = 1 << 26
# Factors of the hash of a value, for its bytes and for its length.
_BYTES_FACTOR: Final = 0x9E3779B97F4A7C15
_LENGTH_FACTOR: Final = 0xD6E8FEB86659FD93
# Random, so that an adversary cannot choose keys that all collide. No result depends on it.
_MULTIPLIER: Final = int.from_bytes(os.urandom(8), "little") | 1
_MAX_NATIVE_ROWS: Final = 1 << 29  # slots are 32-bit row numbers, at least four for each row of a hash table


def hash_values(ends: Ends, data: npt.NDArray[np.uint8]) -> Numbers:
    """Hash the values between the (n + 1,) `ends` in `data`. Raises ValueError for ends outside the data."""
    if native is not None:
        hashes = native.hash_values(aligned(ends), data, _BYTES_FACTOR, _LENGTH_FACTOR)
        if hashes is None:
            raise ValueError("ends do not match the data")
        return hashes
    starts: Rows = ends[:-1].astype(np.int64)
    sizes: Rows = ends[1:] - starts
    total: Numbers = sizes.astype(np.uint64) * np.uint64(_LENGTH_FACTOR)
    # `words[i]` starts at byte i. Zeros after the data allow reading past its end.
    padded = np.concatenate((data, np.zeros(8, np.uint8)))
    words = np.ndarray((len(data) + 1,), np.dtype("<u8"), padded.data, strides=(1,))
    for step in range(0, int(sizes.max(initial=0)), 8):  # mix the next eight bytes of each row with bytes left
        rows = np.flatnonzero(sizes > step)
        unused_bits = (64 - 8 * np.minimum(sizes[rows] - step, 8)).astype(np.uint64)
        mixed = total[rows] ^ ((words[starts[rows] + step] << unused_bits) >> unused_bits)
        mixed *= np.uint64(_BYTES_FACTOR)
        total[rows] = mixed ^ (mixed >> np.uint64(29))
    return total


def equal_values(
    ends: Ends,
    data: npt.NDArray[np.uint8],
    rows: Rows,
    other_ends: Ends,
    other_data: npt.NDArray[np.uint8],
    other_rows: Rows,
) -> bool:
    """Return True if the values at `rows` equal those at `other_rows`, pair by pair.

    `ends` and `data` are as in `hash_values`.
    """
    if not len(rows):
        return True
    if native is not None and ends.dtype == other_ends.dtype:
        return bool(native.equal_values(aligned(ends), data, rows, aligned(other_ends), other_data, other_rows))
    offsets, values = gather(ends[rows].astype(np.int64), ends[rows + 1].astype(np.int64), data)
    other_offsets, others = gather(
        other_ends[other_rows].astype(np.int64), other_ends[other_rows + 1].astype(np.int64), other_data
    )
    return np.array_equal(offsets, other_offsets) and np.array_equal(values, others)


def table_of(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None) -> KeyTable:
    """Build a table of the `valid` ones of (n,) integers of any width; None means that all are valid."""
    rows = None if valid is None else np.flatnonzero(valid)
    keys = values if rows is None else values[rows]
    if native is not None and len(values) < _MAX_NATIVE_ROWS:
        low, high = (int(keys.min()), int(keys.max())) if len(keys) else (0, 0)
        slots = high - low + 1
        if slots <= min(max(_MIN_SLOTS, _SLOTS_PER_VALUE * len(keys)), _MAX_SLOTS):
            return _DirectTable(keys, rows, len(values), low, slots)
    rows = np.arange(len(values), dtype=np.int64) if rows is None else rows
    if native is not None and len(values) < _MAX_NATIVE_ROWS:
        return _HashTable(keys, rows, len(values))
    return _SortedTable(keys, rows, len(values))


class KeyTable:
    """Mapping from numbers to rows.

    `first_rows[row]` is the first row with the same number as `row`, or -1 if `row` is not valid.
    """

    first_rows: Rows

    def matches(self, values: npt.NDArray[Any]) -> Matches:
        """Return the indices of the (m,) `values` that are in the table, and their rows.

        `values` have the same width as the numbers of the table.
        """
        raise NotImplementedError

    def find(self, values: npt.NDArray[Any]) -> Rows:
        """Return the first row with each of the (m,) `values`, or -1 if there is none."""
        first_rows = np.full(len(values), -1, np.int64)
        indices, rows = self.matches(values)
        first_rows[indices] = rows
        return first_rows


class _DirectTable(KeyTable):
    """Table with one slot for each number between the minimum and the maximum."""

    def __init__(self, values: npt.NDArray[Any], rows: Rows | None, num_rows: int, low: int, slots: int) -> None:
        """Build the table; `rows` are the rows of the values, None for all rows."""
        self._low = low % 2**64  # unsigned distances are correct for signed values as well
        self._slots = np.full(slots, -1, np.int32)
        self.first_rows = np.full(num_rows, -1, np.int64)
        native.build_near(_unsigned(values), rows, self._low, self._slots, self.first_rows)

    def matches(self, values: npt.NDArray[Any]) -> Matches:
        return native.find_near(_unsigned(values), self._low, self._slots)


class _HashTable(KeyTable):
    """Hash table of rows with linear probing."""

    def __init__(self, values: npt.NDArray[Any], rows: Rows, num_rows: int) -> None:
        self._keys = np.zeros(num_rows, np.uint64)
        self._keys[rows] = _unsigned(values)
        self.first_rows = np.full(num_rows, -1, np.int64)
        self._slots = np.full(1 << max(8, (4 * len(rows)).bit_length()), -1, np.int32)
        native.build(self._keys, rows, self._slots, _MULTIPLIER, self.first_rows)

    def matches(self, values: npt.NDArray[Any]) -> Matches:
        return native.find(_unsigned(values), self._keys, self._slots, _MULTIPLIER)


class _SortedTable(KeyTable):
    """Table of the distinct numbers in ascending order, with the first row of each. Used without compiled kernels."""

    def __init__(self, values: npt.NDArray[Any], rows: Rows, num_rows: int) -> None:
        self._keys, first, inverse = np.unique(_unsigned(values), return_index=True, return_inverse=True)
        self._rows = rows[first]
        self.first_rows = np.full(num_rows, -1, np.int64)
        self.first_rows[rows] = self._rows[inverse]

    def matches(self, values: npt.NDArray[Any]) -> Matches:
        numbers = _unsigned(values)
        indices = np.flatnonzero(np.isin(numbers, self._keys))
        return indices, self._rows[np.searchsorted(self._keys, numbers[indices])]


def _unsigned(values: npt.NDArray[Any]) -> Numbers:
    """Convert integers to contiguous unsigned 64-bit numbers that are equal if the integers are."""
    return aligned(values).view(np.uint64) if values.dtype.itemsize == 8 else values.astype(np.uint64)
