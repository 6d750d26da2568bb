"""Zone-map pruning: detection of the row ranges of a fragment that can contain a match.

    zones      [0, 8192)   [8192, 16384)   [16384, 20000)          id > 15000
    max(id)       9999          18003           31200       ->     range(8192, 20000)

`expr.prune_mask` evaluates a predicate on zones; this module converts zones of files to rows of a fragment. The columns
of a predicate may be in several files, each with its own zones. Each file is pruned independently, and the result is
the intersection of the remaining rows. Missing or malformed statistics keep all rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lancetable import expr
from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v0_1.statistics import read_zones
from lancetable.file.io_scheduler import run
from lancetable.file.legacy_footer import LegacyMetadata
from lancetable.file.zone_maps import FileStatistics, StatisticsWarning, parse_statistics
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.schema import Schema
from lancetable.table.data_file_metadata import file_metadata
from lancetable.table.field_locations import field_index
from lancetable.table.row_counts import physical_rows
from lancetable.table.version import TableVersion

Mask = npt.NDArray[np.bool_]

# Cached for a file without usable statistics, so that the file is not read again.
_NONE = FileStatistics(np.zeros(0, dtype=np.int64), {})


def prunable_columns(schema: Schema, predicate: expr.Expr) -> dict[str, int]:
    """Return the stored columns of a predicate: field ids by column name."""
    fields = ((name, schema.field(name)) for name in expr.columns_of(predicate) if name not in expr.VIRTUAL_COLUMNS)
    return {name: field.id for name, field in fields if field is not None}


def prune_fragment(
    version: TableVersion, fragment: Fragment, predicate: expr.Expr, columns: Mapping[str, int]
) -> list[range]:
    """Return the row ranges of a fragment in which the predicate may be true, ascending and disjoint.

    `columns` are its `prunable_columns`. Reads the statistics of the files that contain them.
    """
    total = physical_rows(version, fragment)
    kept = [range(total)] if total else []
    owner = field_index(version, fragment).owner
    by_file: dict[int, dict[str, int]] = {}
    for name, field_id in columns.items():
        if field_id in owner:
            by_file.setdefault(owner[field_id], {})[name] = field_id
    for file_number, fields in by_file.items():
        statistics = file_statistics(version, fragment.files[file_number])
        if statistics is None or int(statistics.zone_rows.sum()) != total:
            continue
        keep = zones_to_keep(statistics, predicate, fields)
        if not keep.all():
            kept = intersect(kept, ranges_of(statistics.zone_rows, keep))
    return kept


def file_statistics(version: TableVersion, data_file: DataFile) -> FileStatistics | None:
    """Return the zone maps of a data file, from the cache or the file; None if it has no usable zone maps."""
    metadata = file_metadata(version, data_file)
    if isinstance(metadata, LegacyMetadata):
        return _legacy_statistics(version, metadata)
    index = metadata.statistics_index
    if index is None:
        return None
    path = version.data_file_path(data_file)
    key = ("statistics", version.store.key(path))
    statistics = version.cache.get(key)
    if not isinstance(statistics, FileStatistics):
        start, end = metadata.global_buffers[index]
        data = version.store.read(path, start, end)
        statistics = parse_statistics(data, metadata.schema, metadata.num_rows) or _NONE
        version.cache.put(key, statistics, 1024 + 4 * (end - start))
    return None if statistics is _NONE else statistics


def _legacy_statistics(version: TableVersion, metadata: LegacyMetadata) -> FileStatistics | None:
    """Return the statistics of a 0.1 file: one zone per batch, for the current fields of the table."""
    if metadata.statistics is None:
        return None

    def read() -> FileStatistics | None:
        try:
            return run(read_zones(metadata, version.schema), version.store, metadata.path)
        except CorruptFileError as error:
            warnings.warn(f"statistics of a data file are ignored: {error}", StatisticsWarning, stacklevel=2)
            return None

    return version.cache.get_or_derive(
        f"statistics of {version.store.key(metadata.path)}",
        version.manifest,
        read,
        lambda stats: 1024 if stats is None else 1024 + 64 * stats.num_zones * len(stats.columns),
    )


def zones_to_keep(statistics: FileStatistics, predicate: expr.Expr, fields: dict[str, int]) -> Mask:
    """Return one boolean per zone: False only if no row can satisfy the predicate.

    `fields` maps column names to field ids.
    """

    def lookup(name: str) -> expr.ZoneValues | None:
        field_id = fields.get(name)
        zones = None if field_id is None else statistics.columns.get(field_id)
        if zones is None:
            return None
        return expr.ZoneValues(statistics.zone_rows, zones.min, zones.max, zones.null_count, zones.nan_count)

    return expr.prune_mask(predicate, lookup, statistics.num_zones)


def ranges_of(zone_rows: npt.NDArray[np.int64], keep: Mask) -> list[range]:
    """Return the row ranges of the kept zones, with adjacent ranges merged."""
    ends = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(zone_rows)))
    edges = np.diff(np.concatenate((np.zeros(1, np.int8), keep.astype(np.int8), np.zeros(1, np.int8))))
    starts, stops = ends[np.flatnonzero(edges == 1)], ends[np.flatnonzero(edges == -1)]
    return [range(start, stop) for start, stop in zip(starts.tolist(), stops.tolist()) if stop > start]


def intersect(left: Sequence[range], right: Sequence[range]) -> list[range]:
    """Return the intersection of two ascending lists of ranges."""
    shared: list[range] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, stop = max(left[i].start, right[j].start), min(left[i].stop, right[j].stop)
        if start < stop:
            shared.append(range(start, stop))
        if left[i].stop <= right[j].stop:
            i += 1
        else:
            j += 1
    return shared
