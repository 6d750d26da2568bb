"""Containers of many roaring bitmaps in columns, so that NumPy processes small bitmaps by the million.

    bitmap 0: rows 0:1, 0:2, 3:70000        bitmap 1: row 3:5

    key     0      0            1           number of the bitmap
    high    0<<16  3<<16 | 1    3<<16       upper 48 bits of the rows of a container
    count   2      1            1           number of its rows, at most 2^16
    data    1 2    4464         5           lower 16 bits of the rows as uint16, or a bitset if there are more than 4096

Each bitmap is serialized as one roaring bitmap for each fragment. Numbers are little-endian:

    RowAddrTreeMap    u32 n    n x (u32 fragment, u32 size, bitmap)
    RoaringTreemap    u64 n    n x (u32 upper half, bitmap)
    bitmap            u32 12346, u32 m    m x (u16 high, u16 count - 1)    m x u32 offset of the data    data

Bitmaps with run containers start with another number; pyroaring parses them one by one. Runs are expanded, so that a
few bytes can require much memory. Sets of too many rows, or of a whole fragment (of size 0), are therefore refused; the
callers use other means then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.kernels.varbin import gather, offsets_of, offsets_of_sizes
from lancetable.format.roaring import (
    BITSET_BYTES,
    CONTAINER_VALUES,
    COOKIE,
    MAX_ARRAY,
    RUN_COOKIE,
    parse_first_bitmap,
    values_of,
)
from lancetable.format.row_address import U64Array, join
from lancetable.index.sort_keys import Int64, radix_order

Bytes = npt.NDArray[np.uint8]

RowMapper = Callable[["U64Array"], "tuple[U64Array, npt.NDArray[np.bool_]]"]
"""Function that returns the new rows of an index, and for each whether it still exists."""

_MAX_BINARY_BYTES: Final = 1 << 30
_EXPANDED_ROWS: Final = 1 << 20
_MAX_RUN_BYTES: Final = 64 << 20  # size of the expanded containers of bitmaps with runs that are parsed at once


class Form(NamedTuple):
    """Serialized form of a set of rows: the width of the number of its bitmaps, and whether sizes are stored."""

    count_bytes: int
    has_sizes: bool


ROW_ADDR_TREE_MAP: Final = Form(4, has_sizes=True)
ROARING_TREEMAP: Final = Form(8, has_sizes=False)


@dataclass(frozen=True, slots=True)
class Containers:
    """Containers in the order of their bitmaps, and within a bitmap in the order of their rows."""

    key: Int64
    high: U64Array
    count: Int64
    data: Bytes

    @classmethod
    def empty(cls) -> Containers:
        """Return no containers."""
        return cls(np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.uint8))

    @classmethod
    def of(cls, keys: Int64, rows: U64Array) -> Containers:
        """Return containers of rows, each in the bitmap with the number in `keys`. They may repeat, in any order."""
        if not len(rows):
            return cls.empty()
        same = keys[1:] == keys[:-1]
        if (keys[1:] < keys[:-1]).any() or (same & (rows[1:] < rows[:-1])).any():
            order = np.lexsort((rows, keys))
            keys, rows = keys[order], rows[order]
            same = keys[1:] == keys[:-1]
        repeats = same & (rows[1:] == rows[:-1])
        if repeats.any():
            distinct = np.concatenate(([True], ~repeats))
            keys, rows = keys[distinct], rows[distinct]
            same = keys[1:] == keys[:-1]
        high = rows >> np.uint64(16)
        starts = np.flatnonzero(np.concatenate(([True], ~same | (high[1:] != high[:-1]))))
        count = np.diff(starts, append=len(rows))
        return cls(keys[starts], high[starts], count, _pack(rows.astype(np.uint16), starts, count))

    @classmethod
    def concat(cls, parts: Sequence[Containers]) -> Containers:
        """Return the union of several sets of containers. Their order is restored, and equal containers are merged."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.empty()
        joined = cls(
            np.concatenate([part.key for part in parts]),
            np.concatenate([part.high for part in parts]),
            np.concatenate([part.count for part in parts]),
            np.concatenate([part.data for part in parts]),
        )
        return joined._normalized()

    def __len__(self) -> int:
        return len(self.key)

    @property
    def memory_bytes(self) -> int:
        """Size in memory."""
        return self.key.nbytes + self.high.nbytes + self.count.nbytes + self.data.nbytes

    @property
    def num_rows(self) -> int:
        """Total number of rows."""
        return int(self.count.sum())

    def data_offsets(self) -> Int64:
        """Return the (n + 1,) offsets of the data of each container."""
        return offsets_of_sizes(_sizes(self.count))

    def rows(self) -> tuple[Int64, U64Array]:
        """Return the rows, and the number of the bitmap of each."""
        low = _unpack(self.count, self.data)
        return np.repeat(self.key, self.count), np.repeat(self.high << np.uint64(16), self.count) | low

    def mapped(self, mapper: RowMapper) -> Containers:
        """Return the containers of the mapped rows. The rows are expanded a limited number at once."""
        offsets = self.data_offsets()
        batches = np.cumsum(self.count) // _EXPANDED_ROWS
        edges = np.flatnonzero(np.diff(batches, prepend=-1, append=-1)).tolist()
        parts = []
        for start, end in pairwise(edges):
            data = self.data[offsets[start] : offsets[end]]
            part = Containers(self.key[start:end], self.high[start:end], self.count[start:end], data)
            numbers, rows = part.rows()
            rows, exists = mapper(rows)
            parts.append(Containers.of(numbers[exists], rows[exists]))
        return Containers.concat(parts)

    def renumbered(self, numbers: Int64) -> Containers:
        """Return the containers with the new number of each bitmap; the order is restored by `concat`."""
        return Containers(numbers[self.key], self.high, self.count, self.data)

    def take(self, order: Int64) -> Containers:
        """Return some containers in another order."""
        offsets = self.data_offsets()
        data = gather(offsets[order], offsets[order + 1], self.data)[1]
        return Containers(self.key[order], self.high[order], self.count[order], data)

    def _normalized(self) -> Containers:
        ascending, repeats = self._order()
        result = self
        if not ascending.all():
            # Parts mostly follow each other, so that a stable sort by bitmap is enough.
            result = self.take(radix_order(self.key))
            ascending, repeats = result._order()
        if not ascending.all():
            result = self.take(np.lexsort((self.high, self.key)))
            repeats = result._order()[1]
        return result._merged(repeats) if repeats.any() else result

    def _merged(self, repeats: npt.NDArray[np.bool_]) -> Containers:
        """Merge equal containers, which are adjacent."""
        firsts = np.flatnonzero(np.concatenate(([True], ~repeats)))
        count = np.add.reduceat(self.count, firsts)
        # The data of arrays is already in the right order if the last row of each is below the first row of the next.
        offsets = self.data_offsets()
        later = np.flatnonzero(repeats) + 1
        words = self.data[: len(self.data) // 2 * 2].view("<u2")
        overlap = np.zeros(len(self), np.bool_)
        overlap[later] = words[offsets[later] // 2] <= words[offsets[later] // 2 - 1]
        sizes = np.diff(firsts, append=len(self))
        simple = (sizes == 1) | (count <= MAX_ARRAY) & ~np.logical_or.reduceat(overlap, firsts)
        if simple.all():
            return Containers(self.key[firsts], self.high[firsts], count, self.data)
        rest = self.take(np.flatnonzero(np.repeat(simple, sizes)))
        # Other groups are expanded to rows, a limited number of them at once.
        groups = np.flatnonzero(~simple)
        batches = np.cumsum(count[groups]) // _EXPANDED_ROWS
        edges = np.flatnonzero(np.diff(batches, prepend=-1, append=-1)).tolist()
        expanded = []
        for start, end in pairwise(edges):
            members = np.concatenate([np.arange(firsts[at], firsts[at] + sizes[at]) for at in groups[start:end]])
            expanded.append(Containers.of(*self.take(members).rows()))
        return Containers.concat([rest._normalized(), *expanded])

    def _order(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return for each container but the first whether it is in order, and whether it equals the previous one."""
        same = self.key[1:] == self.key[:-1]
        above = (self.key[1:] > self.key[:-1]) | (same & (self.high[1:] >= self.high[:-1]))
        return above, same & (self.high[1:] == self.high[:-1])

    # ------------------------------------------------------------------------------------------------ serialization

    def serialized(self, num_keys: int, form: Form) -> pa.Array:
        """Return the serialized bitmaps 0 to `num_keys`, exclusive, as binaries.

        Raises UnsupportedFeatureError if they have more than 1 GiB in total.
        """
        fragments = (self.high >> np.uint64(16)).astype(np.uint32)
        new_entry = np.ones(len(self), np.bool_)
        new_entry[1:] = (self.key[1:] != self.key[:-1]) | (fragments[1:] != fragments[:-1])
        firsts = np.flatnonzero(new_entry)  # the first container of each roaring bitmap
        num_containers = np.diff(firsts, append=len(self))
        sizes = _sizes(self.count)
        data_bytes = np.add.reduceat(sizes, firsts) if len(firsts) else sizes
        words, entry_starts, prefix_starts = self._headers(fragments, firsts, num_containers, sizes, num_keys, form)

        # The bytes of a bitmap are its prefix, then the header and the data of each entry.
        pool = np.concatenate((words.view(np.uint8), self.data))
        num_entries = np.bincount(self.key[firsts], minlength=num_keys)
        entry_numbers = np.arange(len(firsts))
        prefix_at = np.arange(num_keys) + 2 * (np.cumsum(num_entries) - num_entries)
        header_at = 2 * entry_numbers + self.key[firsts] + 1
        starts, ends = np.empty((2, num_keys + 2 * len(firsts)), np.int64)
        starts[prefix_at] = prefix_starts
        ends[prefix_at] = prefix_starts + form.count_bytes
        starts[header_at] = entry_starts[:-1]
        ends[header_at] = entry_starts[1:]
        data_ends = words.nbytes + np.cumsum(data_bytes)
        starts[header_at + 1], ends[header_at + 1] = data_ends - data_bytes, data_ends
        offsets, data = gather(starts, ends, pool)
        offsets = offsets[np.append(prefix_at, len(starts))]
        if offsets[-1] > _MAX_BINARY_BYTES:
            raise UnsupportedFeatureError(
                "an index cannot store a set of rows above 1 GiB", feature="sets of rows above 1 GiB"
            )
        return pa.Array.from_buffers(
            pa.binary(), num_keys, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
        )

    def _headers(
        self,
        fragments: npt.NDArray[np.uint32],
        firsts: Int64,
        num_containers: Int64,
        sizes: Int64,
        num_keys: int,
        form: Form,
    ) -> tuple[npt.NDArray[np.uint32], Int64, Int64]:
        """Return words with all headers, the (n + 1,) first bytes of those of entries, and those of prefixes."""
        fixed = 4 if form.has_sizes else 3
        entry_words = offsets_of_sizes(fixed + 2 * num_containers)
        prefix_words = entry_words[-1] + np.arange(num_keys) * (form.count_bytes // 4)
        words = np.zeros(entry_words[-1] + num_keys * (form.count_bytes // 4), "<u4")
        words[prefix_words] = np.bincount(self.key[firsts], minlength=num_keys)

        at = entry_words[:-1]
        data_bytes = np.add.reduceat(sizes, firsts) if len(firsts) else sizes
        words[at] = fragments[firsts]
        if form.has_sizes:
            words[at + 1] = 8 + 8 * num_containers + data_bytes
        words[at + fixed - 2], words[at + fixed - 1] = COOKIE, num_containers

        number = np.arange(len(self)) - np.repeat(firsts, num_containers)  # of a container in its bitmap
        described = np.repeat(at + fixed, num_containers) + number
        words[described] = (self.high & np.uint64(0xFFFF)).astype(np.uint32) | (self.count - 1 << 16).astype(np.uint32)
        before = np.cumsum(sizes) - sizes
        before -= np.repeat(before[firsts], num_containers)
        words[described + np.repeat(num_containers, num_containers)] = (
            np.repeat(8 + 8 * num_containers, num_containers) + before
        )
        return words, 4 * entry_words, 4 * prefix_words


def parse(bitmaps: pa.Array, form: Form, path: str) -> Containers:
    """Parse serialized bitmaps.

    Raises CorruptFileError, with `path`, if one is null or damaged, and UnsupportedFeatureError if one selects a whole
    fragment, or if runs of rows require too much memory.
    """
    if bitmaps.null_count:
        raise CorruptFileError("a set of rows is null", path=path)
    parser = _Parser(bitmaps, path)
    with np.errstate(over="ignore"):
        return parser.parse(form)


def whole_fragment_error(path: str) -> UnsupportedFeatureError:
    """Return the error for a set that selects a whole fragment, whose number of rows is not known here."""
    return UnsupportedFeatureError(
        "sets of whole fragments cannot be merged or rewritten; create the index again",
        feature="sets of whole fragments",
        path=path,
    )


class _Parser:
    """Parser of many bitmaps at once: each step reads the next entry of all bitmaps that have one."""

    def __init__(self, bitmaps: pa.Array, path: str) -> None:
        self._path = path
        offsets = offsets_of(bitmaps).astype(np.int64)
        content = bitmaps.buffers()[2]
        self._data: Bytes = np.frombuffer(b"" if content is None else content, np.uint8)
        self._at, self._end = offsets[:-1].copy(), offsets[1:]
        self._parts: list[Containers] = []
        self._run_bytes = 0

    def parse(self, form: Form) -> Containers:
        every = np.arange(len(self._at))
        remaining = self._word(every)
        if form.count_bytes == 8 and self._word(every).any():
            self._fail("has more than 2^32 parts")
        last = np.full(len(every), -1, np.int64)
        active = np.flatnonzero(remaining)
        while len(active):
            fragments = self._word(active)
            if (fragments <= last[active]).any():
                self._fail("does not have ascending fragments")
            last[active] = fragments
            limits = self._end[active]
            if form.has_sizes:
                sizes = self._word(active)
                if (sizes == 0).any():
                    raise whole_fragment_error(self._path)
                limits = self._at[active] + sizes
                if (limits > self._end[active]).any():
                    self._fail("extends beyond its end")
            self._entries(active, fragments, limits)
            if form.has_sizes and (self._at[active] != limits).any():
                self._fail("has a wrong size")
            remaining[active] -= 1
            active = active[remaining[active] > 0]
        if (self._at != self._end).any():
            self._fail("has a wrong size")
        # Each step appends an entry of every bitmap, so their order has to be restored.
        return Containers.concat(self._parts)

    def _entries(self, owners: Int64, fragments: Int64, limits: Int64) -> None:
        """Read one roaring bitmap of each owner, and advance the owners to its end."""
        cookies = self._word(owners, limits)
        runs = cookies & 0xFFFF == RUN_COOKIE
        if not (runs | (cookies == COOKIE)).all():
            self._fail("is not a roaring bitmap")
        for place in np.flatnonzero(runs).tolist():
            self._entry_with_runs(int(owners[place]), int(fragments[place]), int(limits[place]))
        owners, fragments, limits = owners[~runs], fragments[~runs], limits[~runs]
        num_containers = self._word(owners, limits)
        described = self._at[owners]
        if (num_containers > CONTAINER_VALUES).any() or (described + 8 * num_containers > limits).any():
            self._fail("has too many containers")

        place = np.repeat(np.arange(len(owners)), num_containers)
        firsts = np.cumsum(num_containers) - num_containers
        at = described[place] + 4 * (np.arange(len(place)) - firsts[place])
        low = self._u16(at)
        count = self._u16(at + 2) + 1
        sizes = _sizes(count)
        # The data of the containers follows their descriptions and offsets, without gaps.
        before = offsets_of_sizes(sizes)
        data_at = described + 8 * num_containers
        data_ends = data_at + before[firsts + num_containers] - before[firsts]
        if (data_ends > limits).any():
            self._fail("extends beyond its end")
        self._at[owners] = data_ends
        starts = (data_at - before[firsts])[place] + before[:-1]
        ends = starts + sizes

        data = gather(starts, ends, self._data)[1]
        high = fragments[place].astype(np.uint64) << np.uint64(16) | low.astype(np.uint64)
        part = Containers(owners[place], high, count, data)
        above, repeats = part._order()
        if not above.all() or repeats.any() or not _are_valid(count, data):
            self._fail("does not have ascending rows")
        self._parts.append(part)

    def _entry_with_runs(self, owner: int, fragment: int, limit: int) -> None:
        start = int(self._at[owner]) - 4
        bitmap = parse_first_bitmap(self._data[start:limit].data, self._path)
        self._at[owner] = start + len(bitmap.serialize())
        num_containers = bitmap.get_statistics()["n_containers"] if len(bitmap) > MAX_ARRAY else 1
        self._run_bytes += min(2 * len(bitmap), BITSET_BYTES * num_containers)
        if self._run_bytes > _MAX_RUN_BYTES:
            raise UnsupportedFeatureError(
                "sets of runs of rows are too large to be expanded", feature="large runs of rows", path=self._path
            )
        for first in range(0, len(bitmap), _EXPANDED_ROWS):
            offsets = values_of(bitmap[first : first + _EXPANDED_ROWS])
            self._parts.append(Containers.of(np.full(len(offsets), owner), join(fragment, offsets)))

    def _word(self, owners: Int64, limits: Int64 | None = None) -> Int64:
        """Read the next u32 of some bitmaps, and advance them."""
        at = self._at[owners]
        if (at + 4 > (self._end[owners] if limits is None else limits)).any():
            self._fail("ends early")
        self._at[owners] = at + 4
        return self._u16(at) | self._u16(at + 2) << 16

    def _u16(self, at: Int64) -> Int64:
        return self._data[at].astype(np.int64) | self._data[at + 1].astype(np.int64) << 8

    def _fail(self, reason: str) -> Any:
        raise CorruptFileError(f"damaged set of rows: it {reason}", path=self._path)


def _sizes(count: Int64) -> Int64:
    """Return the sizes of the data of containers."""
    return np.where(count > MAX_ARRAY, BITSET_BYTES, 2 * count)


def _pack(low: npt.NDArray[np.uint16], starts: Int64, count: Int64) -> Bytes:
    """Return the data of containers, given the lower 16 bits of their rows."""
    plain = low.astype("<u2", copy=False).view(np.uint8)
    dense = np.flatnonzero(count > MAX_ARRAY)
    if not len(dense):
        return plain
    bitsets = np.zeros((len(dense), BITSET_BYTES), np.uint8)
    bits = np.empty(CONTAINER_VALUES, np.bool_)
    for number, (start, size) in enumerate(zip(starts[dense].tolist(), count[dense].tolist())):
        bits[:] = False
        bits[low[start : start + size]] = True
        bitsets[number] = np.packbits(bits, bitorder="little")
    begins, ends = 2 * starts, 2 * (starts + count)
    begins[dense] = len(plain) + BITSET_BYTES * np.arange(len(dense))
    ends[dense] = begins[dense] + BITSET_BYTES
    return gather(begins, ends, np.concatenate((plain, bitsets.reshape(-1))))[1]


def _unpack(count: Int64, data: Bytes) -> npt.NDArray[np.uint16]:
    """Return the lower 16 bits of the rows of containers. Inverse of `_pack`."""
    dense = np.flatnonzero(count > MAX_ARRAY)
    if not len(dense):
        return data.view("<u2")
    offsets = offsets_of_sizes(_sizes(count))
    parts, at = [], 0
    for number in dense.tolist():
        start = int(offsets[number])
        parts.append(data[at:start].view("<u2"))
        bits = np.unpackbits(data[start : start + BITSET_BYTES], bitorder="little")
        parts.append(np.flatnonzero(bits).astype(np.uint16))
        at = start + BITSET_BYTES
    parts.append(data[at:].view("<u2"))
    return np.concatenate(parts)


def _are_valid(count: Int64, data: Bytes) -> bool:
    """Return True if the rows of each container ascend, and their number is that of the container."""
    dense = np.flatnonzero(count > MAX_ARRAY)
    offsets = offsets_of_sizes(_sizes(count))
    for number in dense.tolist():
        start = int(offsets[number])
        if int(np.unpackbits(data[start : start + BITSET_BYTES]).sum()) != count[number]:
            return False
    low = _unpack(count, data)
    descents = np.flatnonzero(low[1:] <= low[:-1]) + 1
    starts = np.cumsum(count)
    return bool(np.isin(descents, starts, assume_unique=True).all())
