"""Zone maps against a predicate: which row ranges of a fragment can hold a match.

    zones      [0, 8192)   [8192, 16384)   [16384, 20000)          id > 15000
    max(id)       9999          18003           31200       ->     range(8192, 20000)

A bound rules a zone out only when the statistics prove that no row of it matches, so a missing, malformed or foreign
statistic keeps rows and never loses them. NaN is greater than every number here (and a NaN with the sign bit less), so
a zone with NaN survives every inequality. Source: format/statistics; the comparison rules are those of the predicates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr import Bound
from lancetable.file.statistics import FileStatistics, ZoneStats, parse_statistics
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.schema import Schema
from lancetable.table.fragments import file_metadata, files_of, physical_rows
from lancetable.table.version import TableVersion

if TYPE_CHECKING:
    from lancetable.file.reader import FileMetadata

__all__ = ["file_statistics", "intersect", "keep_zones", "prune_fragment", "ranges_of"]

Mask = npt.NDArray[np.bool_]

# Up to this many values an IN is tested value by value, beyond it by its smallest and largest only.
_MAX_IN_VALUES = 64
# Kept under the same key when a file has no usable statistics, so that it is asked once.
_NONE = FileStatistics(np.zeros(0, dtype=np.int64), {})


def prune_fragment(version: TableVersion, fragment: Fragment, bounds: Sequence[Bound]) -> list[range]:
    """The row ranges of a fragment that may satisfy all `bounds`, ascending and apart from each other.

    Reads the statistics of the files that hold the bounded columns; everything is kept where there are none.
    """
    total = physical_rows(version, fragment)
    kept = [range(total)] if total else []
    for file_number, file_bounds in _bounds_by_file(version, fragment, bounds).items():
        data_file = fragment.files[file_number]
        statistics = file_statistics(version, data_file)
        if statistics is None or int(statistics.zone_rows.sum()) != total:
            continue
        keep = np.ones(len(statistics.zone_rows), dtype=np.bool_)
        for field_id, bound in file_bounds:
            zones = statistics.columns.get(field_id)
            if zones is not None:
                keep &= keep_zones(zones, statistics.zone_rows, bound)
        if not keep.all():
            kept = intersect(kept, ranges_of(statistics.zone_rows, keep))
    return kept


def _bounds_by_file(
    version: TableVersion, fragment: Fragment, bounds: Sequence[Bound]
) -> dict[int, list[tuple[int, Bound]]]:
    schema: Schema = version.schema
    owner: Mapping[int, int] = files_of(version, fragment).owner
    found: dict[int, list[tuple[int, Bound]]] = {}
    for bound in bounds:
        field = schema.field(bound.column)
        if field is not None and field.id in owner:
            found.setdefault(owner[field.id], []).append((field.id, bound))
    return found


def file_statistics(version: TableVersion, data_file: DataFile) -> FileStatistics | None:
    """The zone maps of a data file from the cache or the file, None where it has none that can be used."""
    metadata: FileMetadata = file_metadata(version, data_file)
    index = metadata.statistics_index
    if index is None:
        return None
    path = version.data_file_path(data_file)
    key = ("statistics", version.store.uri(path))
    found = version.cache.get(key)
    if not isinstance(found, FileStatistics):
        position, size = metadata.global_buffers[index]
        data = version.store.read(path, position, position + size)
        found = parse_statistics(data, metadata.schema, metadata.num_rows) or _NONE
        version.cache.put(key, found, 1024 + 4 * size)
    return None if found is _NONE else found


def keep_zones(zones: ZoneStats, zone_rows: npt.NDArray[np.int64], bound: Bound) -> Mask:
    """One bool per zone: False only where no row of the zone can satisfy `bound`."""
    nulls = np.asarray(zones.null_count)
    if bound.op == "is_null":
        return np.asarray(nulls > 0)
    has_values: Mask = np.asarray(nulls < zone_rows)
    if bound.op == "is_not_null":
        return has_values
    if zones.min is None or zones.max is None:
        return has_values
    has_nan = np.zeros(len(zone_rows), dtype=np.bool_) if zones.nan_count is None else np.asarray(zones.nan_count) > 0
    try:
        if bound.op == "in":
            inside = _any_value(zones.min, zones.max, bound.value, has_nan)
        else:
            inside = _compare(zones.min, zones.max, bound.op, bound.value, has_nan)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        # No ordering between the literal's type and the column's: nothing is proved.
        return has_values
    return has_values & inside


def _compare(low: pa.Array, high: pa.Array, op: str, value: pa.Scalar, has_nan: Mask) -> Mask:
    value, low, high = _comparable(value, low, high)
    if value is None:
        return np.ones(len(has_nan), dtype=np.bool_)
    if op in ("=", "=="):
        return _true(pc.less_equal(low, value)) & _true(pc.greater_equal(high, value))
    if op == "<":
        return _true(pc.less(low, value)) | has_nan
    if op == "<=":
        return _true(pc.less_equal(low, value)) | has_nan
    if op == ">":
        return _true(pc.greater(high, value)) | has_nan
    if op == ">=":
        return _true(pc.greater_equal(high, value)) | has_nan
    return np.ones(len(has_nan), dtype=np.bool_)


def _any_value(low: pa.Array, high: pa.Array, values: Sequence[pa.Scalar], has_nan: Mask) -> Mask:
    if len(values) <= _MAX_IN_VALUES:
        found = np.zeros(len(has_nan), dtype=np.bool_)
        for value in values:
            found |= _compare(low, high, "=", value, has_nan)
        return found
    array = pa.array([value.as_py() for value in values], values[0].type)
    ends = pc.min_max(array)
    return _compare(low, high, ">=", ends["min"], has_nan) & _compare(low, high, "<=", ends["max"], has_nan)


def _comparable(value: pa.Scalar, low: pa.Array, high: pa.Array) -> tuple[pa.Scalar | None, pa.Array, pa.Array]:
    """The three in one type with an order, or None for a literal that proves nothing (null, NaN)."""
    if not value.is_valid or (pa.types.is_floating(value.type) and np.isnan(value.as_py())):
        return None, low, high
    if pa.types.is_boolean(low.type):
        return value.cast(pa.uint8()), low.cast(pa.uint8()), high.cast(pa.uint8())
    if value.type != low.type and not (pa.types.is_floating(value.type) and pa.types.is_integer(low.type)):
        # Checked: a literal that does not fit the column's type raises, and the caller keeps the zones.
        value = value.cast(low.type)
    return value, low, high


def _true(comparison: pa.Array) -> Mask:
    # An unknown bound (null) never excludes.
    return np.asarray(pc.fill_null(comparison, True).to_numpy(zero_copy_only=False))


def ranges_of(zone_rows: npt.NDArray[np.int64], keep: Mask) -> list[range]:
    """The row ranges of the kept zones, neighbours joined."""
    ends = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(zone_rows)))
    edges = np.diff(np.concatenate((np.zeros(1, np.int8), keep.astype(np.int8), np.zeros(1, np.int8))))
    starts, stops = ends[np.flatnonzero(edges == 1)], ends[np.flatnonzero(edges == -1)]
    return [range(start, stop) for start, stop in zip(starts.tolist(), stops.tolist()) if stop > start]


def intersect(one: Sequence[range], other: Sequence[range]) -> list[range]:
    """The rows in both of two ascending lists of ranges."""
    found: list[range] = []
    i = j = 0
    while i < len(one) and j < len(other):
        start, stop = max(one[i].start, other[j].start), min(one[i].stop, other[j].stop)
        if start < stop:
            found.append(range(start, stop))
        if one[i].stop <= other[j].stop:
            i += 1
        else:
            j += 1
    return found
