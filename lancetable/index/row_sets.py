"""Sets of rows, with one roaring bitmap of row offsets for each fragment.

    {0: {1, 2, 7}, 3: {0, 1, ..., 9}}       addresses 0:1, 0:2, 0:7, 3:0 ... 3:9

In an index that stores stable row ids, the upper 32 bits of an id take the place of the fragment.

Serialized forms, with all numbers little-endian and each bitmap in the portable 32-bit roaring format:

    RowAddrTreeMap    u32 n    n x (u32 fragment, u32 size, bitmap)     size 0: all rows of the fragment
    RoaringTreemap    u64 n    n x (u32 upper half, bitmap)

A whole fragment is a set of 2^32 rows; `bounded` restricts it to the rows that the fragment has.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from lancetable.errors import CorruptFileError
from lancetable.format.roaring import CONTAINER_VALUES, bitmap_of_members, build_bitmap, parse_first_bitmap, values_of
from lancetable.format.row_address import U64Array, join, split

_U32, _U64, _ENTRY = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<II")
MAX_ROWS = 1 << 32
"""Largest number of rows of a fragment."""

_LAST_OFFSET = MAX_ROWS - 1

_MAX_WAITING_ROWS = 1 << 20
_MAX_CELLS_PER_ROW = 32  # ratio up to which marking rows in an array is faster than sorting them
_MAX_CELLS = 1 << 26
_SIZES = ("n_bytes_array_containers", "n_bytes_run_containers", "n_bytes_bitset_containers")


class RowSet:
    """Immutable set of row addresses or stable row ids.

    Parameters
    ----------
    bitmaps
        The offsets of each fragment. The caller does not modify them afterwards. Empty bitmaps are ignored.
    """

    __slots__ = ("_bitmaps",)

    def __init__(self, bitmaps: Mapping[int, BitMap] | None = None) -> None:
        self._bitmaps = {fragment_id: bitmap for fragment_id, bitmap in (bitmaps or {}).items() if bitmap}

    @classmethod
    def of(cls, addresses: npt.NDArray[Any]) -> RowSet:
        """Return the set of (n,) addresses, in any order, with or without repeats."""
        if len(addresses) <= 1:
            return cls({int(row) >> 32: BitMap([int(row) & 0xFFFF_FFFF]) for row in addresses.tolist()})
        fragments, offsets = split(addresses)
        first = int(fragments.min())
        num_fragments = int(fragments.max()) - first + 1
        width = (int(offsets.max()) | CONTAINER_VALUES - 1) + 1
        if num_fragments * width <= min(_MAX_CELLS_PER_ROW * len(addresses), _MAX_CELLS):
            is_member = np.zeros((num_fragments, width), np.bool_)
            is_member.reshape(-1)[(fragments - np.uint64(first)) * np.uint64(width) + offsets] = True
            return cls({first + number: bitmap_of_members(members) for number, members in enumerate(is_member)})
        ascending = np.sort(addresses)
        fragments, offsets = split(ascending)
        borders = [0, *(np.flatnonzero(fragments[1:] != fragments[:-1]) + 1).tolist(), len(ascending)]
        return cls({int(fragments[start]): build_bitmap(offsets[start:end]) for start, end in pairwise(borders)})

    @classmethod
    def of_parts(cls, parts: Iterable[npt.NDArray[Any]]) -> RowSet:
        """Return the set of the addresses of some arrays. The arrays need not be in memory at the same time."""
        sets: list[RowSet] = []
        waiting: list[npt.NDArray[Any]] = []
        num_rows = 0
        for part in parts:
            waiting.append(part)
            num_rows += len(part)
            if num_rows >= _MAX_WAITING_ROWS:
                sets.append(cls.of(np.concatenate(waiting)))
                waiting, num_rows = [], 0
        last = cls.of(waiting[0] if len(waiting) == 1 else np.concatenate(waiting)) if waiting else cls()
        return cls.union([*sets, last]) if sets else last

    @classmethod
    def of_ranges(cls, fragment_ids: npt.NDArray[Any], starts: npt.NDArray[Any], ends: npt.NDArray[Any]) -> RowSet:
        """Return the rows from offset `starts` to before `ends` of fragments."""
        bitmaps: dict[int, BitMap] = {}
        for fragment_id, start, end in zip(fragment_ids.tolist(), starts.tolist(), ends.tolist()):
            bitmaps.setdefault(fragment_id, BitMap()).add_range(start, end)
        return cls(bitmaps)

    @classmethod
    def of_fragments(cls, num_rows: Mapping[int, int]) -> RowSet:
        """Return all rows of fragments, given the number of physical rows of each."""
        return cls({fragment_id: BitMap(range(count)) for fragment_id, count in num_rows.items()})

    @classmethod
    def union(cls, sets: Iterable[RowSet]) -> RowSet:
        """Return the union of any number of sets."""
        collected: dict[int, list[BitMap]] = {}
        for rows in sets:
            for fragment_id, bitmap in rows._bitmaps.items():
                collected.setdefault(fragment_id, []).append(bitmap)
        return cls({fragment_id: BitMap.union(*bitmaps) for fragment_id, bitmaps in collected.items()})

    def __and__(self, other: RowSet) -> RowSet:
        common = self._bitmaps.keys() & other._bitmaps.keys()
        return RowSet({fragment_id: self._bitmaps[fragment_id] & other._bitmaps[fragment_id] for fragment_id in common})

    def __or__(self, other: RowSet) -> RowSet:
        return RowSet.union((self, other))

    def __sub__(self, other: RowSet) -> RowSet:
        return RowSet(
            {
                fragment_id: bitmap - other._bitmaps[fragment_id] if fragment_id in other._bitmaps else bitmap
                for fragment_id, bitmap in self._bitmaps.items()
            }
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowSet) and self._bitmaps == other._bitmaps

    __hash__ = None  # type: ignore[assignment]  # compared by value, and too large to hash

    def __len__(self) -> int:
        return sum(map(len, self._bitmaps.values()))

    def __bool__(self) -> bool:
        return bool(self._bitmaps)

    def __iter__(self) -> Iterator[int]:
        return iter(self.addresses().tolist())

    def __repr__(self) -> str:
        return f"RowSet({len(self)} rows of {len(self._bitmaps)} fragments)"

    @property
    def fragments(self) -> frozenset[int]:
        """The ids of the fragments with rows in the set."""
        return frozenset(self._bitmaps)

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory."""
        statistics: list[Any] = [bitmap.get_statistics() for bitmap in self._bitmaps.values()]
        return sum(128 + sum(entry[size] for size in _SIZES) for entry in statistics)

    def extent(self, fragment_id: int) -> tuple[int, int]:
        """Return the number of rows of one fragment, and the offset of the last one; (0, -1) without rows."""
        bitmap = self._bitmaps.get(fragment_id)
        return (0, -1) if bitmap is None else (len(bitmap), bitmap.max())

    @property
    def last(self) -> int:
        """The greatest address; -1 without rows. That of a whole fragment is its first one."""
        if not self._bitmaps:
            return -1
        fragment_id = max(self._bitmaps)
        offset = self._bitmaps[fragment_id].max()
        return fragment_id << 32 | (0 if offset == _LAST_OFFSET else offset)

    @property
    def whole_fragments(self) -> list[int]:
        """The fragments of which the set contains all rows that they may have, with or without some exceptions."""
        # No fragment has as many rows, so that only sets of whole fragments contain the last offset.
        return [fragment_id for fragment_id, bitmap in self._bitmaps.items() if bitmap.max() == _LAST_OFFSET]

    def bounded(self, num_rows: Callable[[int], int]) -> RowSet:
        """Return the set without the rows that whole fragments do not have, given the function of their numbers."""
        whole = self.whole_fragments
        if not whole:
            return self
        return RowSet(
            self._bitmaps | {number: self._bitmaps[number] & BitMap(range(num_rows(number))) for number in whole}
        )

    def offsets(self, fragment_id: int) -> npt.NDArray[np.uint32]:
        """Return the offsets of the rows of one fragment, ascending."""
        bitmap = self._bitmaps.get(fragment_id)
        return np.empty(0, np.uint32) if bitmap is None else values_of(bitmap)

    def addresses(self) -> U64Array:
        """Return all addresses, ascending."""
        parts = [join(fragment_id, values_of(self._bitmaps[fragment_id])) for fragment_id in sorted(self._bitmaps)]
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)

    def batches(self) -> Iterator[U64Array]:
        """Yield all addresses, ascending, in arrays of a limited size."""
        waiting: list[U64Array] = []
        num_rows = 0
        for fragment_id in sorted(self._bitmaps):
            bitmap = self._bitmaps[fragment_id]
            for start in range(0, len(bitmap), _MAX_WAITING_ROWS):
                part = bitmap if len(bitmap) <= _MAX_WAITING_ROWS else bitmap[start : start + _MAX_WAITING_ROWS]
                waiting.append(join(fragment_id, values_of(part)))
                num_rows += len(part)
                if num_rows >= _MAX_WAITING_ROWS:
                    yield np.concatenate(waiting)
                    waiting, num_rows = [], 0
        if waiting:
            yield np.concatenate(waiting)

    def in_fragments(self, fragment_ids: Set[int]) -> RowSet:
        """Return the rows of some fragments."""
        if self._bitmaps.keys() <= fragment_ids:
            return self
        return RowSet({number: bitmap for number, bitmap in self._bitmaps.items() if number in fragment_ids})

    def below(self, end: int) -> RowSet:
        """Return the rows below an address or a stable row id."""
        last, count = divmod(end, MAX_ROWS)
        below = {number: bitmap for number, bitmap in self._bitmaps.items() if number < last}
        if last in self._bitmaps:
            below[last] = self._bitmaps[last] & BitMap(range(count))
        return RowSet(below)

    # ------------------------------------------------------------------------------------------------ serialization

    def to_row_addr_tree_map(self) -> bytes:
        """Serialize the set as RowAddrTreeMap."""
        parts = [_U32.pack(len(self._bitmaps))]
        for fragment_id in sorted(self._bitmaps):
            data = _serialize(self._bitmaps[fragment_id])
            parts += (_ENTRY.pack(fragment_id, len(data)), data)
        return b"".join(parts)

    @classmethod
    def from_row_addr_tree_map(cls, data: memoryview, path: str) -> RowSet:
        """Parse a RowAddrTreeMap. Raises CorruptFileError, with `path`, if it is damaged."""
        count, at = _unpack(_U32, data, 0, path)[0], _U32.size
        bitmaps: dict[int, BitMap] = {}
        for _ in range(count):
            fragment_id, size = _unpack(_ENTRY, data, at, path)
            at += _ENTRY.size
            if fragment_id in bitmaps or size > len(data) - at:
                raise _corrupt(path, at)
            bitmaps[fragment_id] = parse_first_bitmap(data[at : at + size], path) if size else _all_rows()
            at += size
        if at != len(data):
            raise _corrupt(path, at)
        return cls(bitmaps)

    def to_roaring_treemap(self) -> bytes:
        """Serialize the set as RoaringTreemap."""
        parts = [_U64.pack(len(self._bitmaps))]
        for fragment_id in sorted(self._bitmaps):
            parts += (_U32.pack(fragment_id), _serialize(self._bitmaps[fragment_id]))
        return b"".join(parts)

    @classmethod
    def from_roaring_treemap(cls, data: memoryview, path: str) -> RowSet:
        """Parse a RoaringTreemap. Raises CorruptFileError, with `path`, if it is damaged."""
        count, at = _unpack(_U64, data, 0, path)[0], _U64.size
        bitmaps: dict[int, BitMap] = {}
        for _ in range(count):
            fragment_id = _unpack(_U32, data, at, path)[0]
            at += _U32.size
            if fragment_id in bitmaps:
                raise _corrupt(path, at)
            bitmaps[fragment_id] = parse_first_bitmap(data[at:], path)
            at += len(bitmaps[fragment_id].serialize())
        if at != len(data):
            raise _corrupt(path, at)
        return cls(bitmaps)


def _serialize(bitmap: BitMap) -> bytes:
    bitmap = bitmap.copy()
    bitmap.run_optimize()
    return bytes(bitmap.serialize())


@cache
def _all_rows() -> BitMap:
    """Return all rows of a fragment whose size is not known. Sets share it, because it takes 1 MB."""
    return BitMap(range(MAX_ROWS))


def _unpack(form: struct.Struct, data: memoryview, at: int, path: str) -> tuple[Any, ...]:
    if len(data) - at < form.size:
        raise _corrupt(path, at)
    return form.unpack_from(data, at)


def _corrupt(path: str, at: int) -> CorruptFileError:
    return CorruptFileError(f"damaged set of rows (at byte {at})", path=path, offset=at)
