"""Comparison of the zone maps of a data file with the values of one column.

If a zone map excludes a value of its zone, filters can miss rows. Counts must therefore be equal, and bounds must
enclose all values. Bounds of strings and binary values may be wider than the values. Deleted rows are included.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.file.zone_map_builder import (
    RowRanges,
    ZoneLeaf,
    ZoneStats,
    is_bytes,
    is_text,
    leaves_of,
    number_dtype,
    values_of,
)
from lancetable.file.zone_maps import FileStatistics
from lancetable.format.schema import Field

_MAX_ZONES = 3  # zones listed in one message

Int64 = npt.NDArray[np.int64]


class ZoneCheck:
    """Check of one top-level field. Batches are added in row order."""

    def __init__(self, statistics: FileStatistics, field: Field) -> None:
        self._zone_rows = statistics.zone_rows
        self._ends = np.cumsum(statistics.zone_rows)
        self._leaves = [
            (leaf, statistics.columns[leaf.field.id])
            for leaf in leaves_of(field, 0)
            if leaf.field.id in statistics.columns
        ]
        self._piece_zones: list[Int64] = []
        self._extremes: dict[int, tuple[list[Any], list[Any]]] = {
            index: ([None] * len(self._ends), [None] * len(self._ends))
            for index, (leaf, stats) in enumerate(self._leaves)
            if _is_binary(leaf) and stats.min is not None
        }

    @property
    def num_leaves(self) -> int:
        """Number of fields with an entry in the zone maps."""
        return len(self._leaves)

    @property
    def has_bounds(self) -> bool:
        """True if an entry of the zone maps has bounds."""
        return any(stats.min is not None for _, stats in self._leaves)

    def add(self, array: pa.Array, first_row: int) -> None:
        """Add the next rows of the column."""
        last_row = first_row + len(array)
        zone = int(np.searchsorted(self._ends, first_row, side="right"))
        last = int(np.searchsorted(self._ends, last_row, side="left"))
        borders = np.concatenate(([first_row], self._ends[zone:last], [last_row])) - first_row
        starts, ends = borders[:-1], borders[1:]
        pieces = RowRanges(starts, ends)

        for index, (leaf, _) in enumerate(self._leaves):
            picked = leaf.pick([array])
            leaf.summary.add(picked, pieces)
            if index in self._extremes:
                self._widen(index, picked, pieces, zone)
        self._piece_zones.append(np.arange(zone, zone + len(starts)))

    def _widen(self, index: int, array: pa.Array, pieces: RowRanges, zone: int) -> None:
        low, high = self._extremes[index]
        for number, (start, count) in enumerate(pieces, zone):
            bounds = pc.min_max(array.slice(start, count)).as_py()
            if bounds["min"] is None:
                continue
            least, greatest = _raw(bounds["min"]), _raw(bounds["max"])
            low[number] = least if low[number] is None else min(low[number], least)
            high[number] = greatest if high[number] is None else max(high[number], greatest)

    def contradictions(self) -> Iterator[str]:
        """Yield a message for each entry of the zone maps that the values contradict, after all rows were added."""
        zones = np.concatenate(self._piece_zones) if self._piece_zones else np.empty(0, np.int64)
        firsts = np.flatnonzero(np.diff(zones, prepend=-1))
        if len(firsts) != len(self._zone_rows):
            return
        for index, (leaf, stats) in enumerate(self._leaves):
            actual = leaf.summary.finish(firsts, self._zone_rows)
            for problem, wrong in self._compare(index, stats, actual):
                if wrong.any():
                    yield self._message(leaf, problem, wrong)

    def _compare(self, index: int, stats: ZoneStats, actual: ZoneStats) -> Iterator[tuple[str, Any]]:
        assert actual.null_count is not None
        if stats.null_count is not None:
            yield "the number of nulls differs from that of the values", stats.null_count != actual.null_count
        if stats.nan_count is not None and actual.nan_count is not None:
            yield "the number of NaN differs from that of the values", stats.nan_count != actual.nan_count
        if stats.min is None or stats.max is None:
            return
        if index in self._extremes:
            low, high = self._extremes[index]
            below = [_is_above(bound, value) for bound, value in zip(_bounds(stats.min), low)]
            above = [_is_above(value, bound) for bound, value in zip(_bounds(stats.max), high)]
        elif actual.min is not None and actual.max is not None:
            empty = actual.null_count + (0 if actual.nan_count is None else actual.nan_count) == self._zone_rows
            below = _greater(stats.min, actual.min) & ~empty
            above = _greater(actual.max, stats.max) & ~empty
        else:
            return
        yield "a value is below the minimum", np.array(below, np.bool_)
        yield "a value is above the maximum", np.array(above, np.bool_)

    def _message(self, leaf: ZoneLeaf, problem: str, wrong: npt.NDArray[np.bool_]) -> str:
        zones = np.flatnonzero(wrong)
        starts = self._ends - self._zone_rows
        shown = ", ".join(f"rows {starts[zone]} to {self._ends[zone]}" for zone in zones[:_MAX_ZONES].tolist())
        more = "" if len(zones) <= _MAX_ZONES else f" and {len(zones) - _MAX_ZONES} more zones"
        return f"column {leaf.field.name!r}: zone map of {shown}{more}: {problem}, so filters may lose rows"


def _is_binary(leaf: ZoneLeaf) -> bool:
    return is_text(leaf.field.data_type) or is_bytes(leaf.field.data_type)


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _bounds(array: pa.Array) -> list[bytes | None]:
    return [None if value is None else _raw(value) for value in array.to_pylist()]


def _is_above(left: bytes | None, right: bytes | None) -> bool:
    return left is not None and right is not None and left > right


def _greater(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    """Return True for each zone in which both values are known and the first is greater."""
    dtype = number_dtype(left.type)
    if dtype is not None:
        known = np.asarray(pc.and_(left.is_valid(), right.is_valid()))
        return np.asarray(known & (values_of(left, dtype) > values_of(right, dtype)))
    if pa.types.is_boolean(left.type):
        left, right = left.cast(pa.int8()), right.cast(pa.int8())
    return np.asarray(pc.greater(left, right).fill_null(False))
