"""Zones: consecutive rows of one fragment, which ZONEMAP and BLOOMFILTER indexes summarize.

    fragment       |  0  0  0  0  0 |  1  1  1 |
    offset         |  0  1  4  5  6 |  0  1  2 |       rows that are not deleted
    zones of 3     |  0:0-4  | 0:5-6|   1:0-2  |       fragment, first and last offset

A zone has a fixed number of rows, or fewer at the end of a fragment. Its length is the span of its offsets, including
deleted rows between them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.zone_map_builder import RowRanges
from lancetable.format.row_address import U64Array, join, split
from lancetable.index.index_files import IndexFileReader
from lancetable.index.kind import OpenIndex, RowFilter, Sources
from lancetable.index.queries import IndexQuery, IsNull
from lancetable.index.results import Exactness, IndexResult
from lancetable.index.row_sets import RowSet
from lancetable.index.search_statistics import note_comparisons

Bools = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]

ZONE_FIELDS: Final = [
    pa.field(name, pa.uint64(), nullable=False) for name in ("fragment_id", "zone_start", "zone_length")
]
NULL_BITMAP_KEY: Final = "null_bitmap"
_MAX_ROWS: Final = 1 << 32  # also the number of fragment ids
_WAITING_ROWS: Final = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Zones:
    """Zones of an index: the fragment of each, and its first offset and length."""

    fragment_ids: Int64
    starts: Int64
    lengths: Int64

    @classmethod
    def of(cls, firsts: U64Array, lasts: U64Array) -> Zones:
        """Return zones by the addresses of their first and last rows."""
        (fragments, starts), (_, ends) = split(firsts), split(lasts)
        return cls(fragments.astype(np.int64), starts.astype(np.int64), (ends - starts).astype(np.int64) + 1)

    @classmethod
    def parse(cls, columns: pa.Table, path: str) -> Zones:
        """Return the zones in the columns of a file. Raises CorruptFileError if they are invalid or overlap."""
        parts = []
        for field in ZONE_FIELDS:
            column = columns.column(field.name).combine_chunks()
            if column.type != field.type or column.null_count:
                raise CorruptFileError(f"invalid column {field.name!r} of an index", path=path)
            parts.append(column.to_numpy())
        if any((part >= _MAX_ROWS).any() for part in parts):
            raise CorruptFileError("a zone of an index is outside of any fragment", path=path)
        zones = cls(*(part.astype(np.int64) for part in parts))
        order = np.lexsort((zones.starts, zones.fragment_ids))
        fragments, starts, ends = zones.fragment_ids[order], zones.starts[order], zones.ends[order]
        if (ends > _MAX_ROWS).any() or ((fragments[1:] == fragments[:-1]) & (starts[1:] < ends[:-1])).any():
            raise CorruptFileError("zones of an index overlap", path=path)
        return zones

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def ends(self) -> Int64:
        """The offset after the last row of each zone."""
        return self.starts + self.lengths

    def rows(self, selected: Bools) -> RowSet:
        """Return the rows of some zones."""
        at = np.flatnonzero(selected)
        if not len(at):
            return RowSet()
        fragments, starts, ends = self.fragment_ids[at], self.starts[at], self.ends[at]
        # Adjacent zones become one range.
        first = np.ones(len(at), np.bool_)
        first[1:] = (fragments[1:] != fragments[:-1]) | (starts[1:] != ends[:-1])
        return RowSet.of_ranges(fragments[first], starts[first], ends[np.append(first[1:], True)])

    def kept(self, keep: RowFilter) -> Bools:
        """Return, for each zone, whether `keep` accepts its rows. Filters of addresses accept whole fragments."""
        return keep(join(self.fragment_ids, self.starts))

    def columns(self) -> dict[str, pa.Array]:
        """Return the columns of a file."""
        parts = (self.fragment_ids, self.starts, self.lengths)
        return {field.name: pa.array(part, pa.uint64()) for field, part in zip(ZONE_FIELDS, parts)}


class ZoneCutter:
    """Division of batches into zones of `rows_per_zone` rows."""

    def __init__(self, rows_per_zone: int) -> None:
        self._rows_per_zone = rows_per_zone
        self._fragment = -1
        self._num_rows = 0  # of the last zone

    def cut(self, rows: U64Array) -> tuple[RowRanges, Bools]:
        """Divide the rows of one fragment, which follow those of the last call.

        Returns the ranges of rows in each zone, and whether each range starts a zone.
        """
        fragment = int(rows[0]) >> 32
        assert int(rows[-1]) >> 32 == fragment, "a batch contains rows of one fragment"
        if fragment != self._fragment or self._num_rows == self._rows_per_zone:
            self._fragment, self._num_rows = fragment, 0
        starts = np.arange(-self._num_rows, len(rows), self._rows_per_zone)
        is_new = starts >= 0
        starts[0] = 0
        ranges = RowRanges(starts, np.append(starts[1:], len(rows)))
        self._num_rows = int(ranges.ends[-1] - starts[-1]) + (self._num_rows if len(starts) == 1 else 0)
        return ranges, is_new


class NullRows:
    """Rows whose values are null, collected from batches."""

    def __init__(self) -> None:
        self._sets: list[RowSet] = []
        self._waiting: list[U64Array] = []
        self._num_waiting = 0

    def add(self, values: pa.Array, rows: U64Array) -> None:
        """Add the rows of a batch whose values are null."""
        if not values.null_count:
            return
        self._waiting.append(rows[values.is_null().to_numpy(zero_copy_only=False)])
        self._num_waiting += values.null_count
        if self._num_waiting >= _WAITING_ROWS:
            self._sets.append(self.rows())

    def rows(self) -> RowSet:
        """Return the collected rows and remove them."""
        sets, self._sets = [*self._sets, RowSet.of_parts(self._waiting)], []
        self._waiting, self._num_waiting = [], 0
        return RowSet.union(sets)


class ZonedIndex(OpenIndex):
    """Base of open segments that consist of zones; `has_null` is True for zones with nulls."""

    def __init__(self, file: IndexFileReader, zones: Zones, has_null: Bools) -> None:
        self.file, self.zones, self.has_null = file, zones, has_null

    def null_rows(self) -> RowSet | None:
        """Return the rows whose values are null, or None if the file does not contain them."""
        if self.file.text(NULL_BITMAP_KEY) is None:
            return None
        number = self.file.number(NULL_BITMAP_KEY, 0)

        def read() -> RowSet:
            return RowSet.from_row_addr_tree_map(self.file.buffer(number), self.file.path)

        return self.file.cached("null rows", read, lambda rows: rows.memory_bytes)

    def search(self, query: IndexQuery) -> IndexResult:
        """Return the rows that a query selects. See OpenIndex."""
        note_comparisons(len(self.has_null))
        if isinstance(query, IsNull):
            nulls = self.null_rows()
            if nulls is not None:
                return IndexResult(nulls)
            return IndexResult(self.zones.rows(self.has_null), exactness=Exactness.AT_MOST)
        true = self.zones.rows(self.select(query))

        def null() -> RowSet:
            nulls = self.null_rows()
            return (self.zones.rows(self.has_null) if nulls is None else nulls) - true

        return IndexResult(true, null, Exactness.AT_MOST)

    def check_rows(self, fragment_ids: Int64, num_rows: Int64) -> None:
        """Raise CorruptFileError if the zones of a fragment have fewer rows than the fragment. See OpenIndex."""
        order = np.argsort(self.zones.fragment_ids, kind="stable")
        zones = self.zones.fragment_ids[order]
        ends = np.append(0, np.cumsum(self.zones.lengths[order]))
        found = ends[np.searchsorted(zones, fragment_ids, "right")] - ends[np.searchsorted(zones, fragment_ids, "left")]
        if (found < num_rows).any():
            what = f"zones are missing for fragment {fragment_ids[found < num_rows][0]} in an index"
            raise CorruptFileError(what, path=self.file.path)

    @abstractmethod
    def select(self, query: IndexQuery) -> Bools:
        """Return, for each zone, whether it may contain a value that a query selects."""


def merged_nulls(sources: Sources, new: RowSet) -> RowSet | None:
    """Return the rows with nulls of several segments and new rows, or None if they are not known."""
    sets = [new]
    for source, keep in sources:
        assert isinstance(source, ZonedIndex)
        nulls = source.null_rows()
        if nulls is None:
            return None
        sets.append(nulls & source.zones.rows(source.zones.kept(keep)))
    return RowSet.union(sets)
