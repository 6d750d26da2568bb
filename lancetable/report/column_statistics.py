"""Statistics of a column, merged from the zone maps or sampled rows of several data files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lancetable.file.zone_map_builder import ZoneStats
from lancetable.file.zone_maps import FileStatistics
from lancetable.report.model import ColumnStatistics

_MAX_TEXT = 80


class FileBounds(NamedTuple):
    """Statistics of one field in one file, as a single zone of `num_rows` rows."""

    source: str
    num_rows: int
    stats: ZoneStats


def merge_statistics(files: Sequence[FileBounds]) -> ColumnStatistics | None:
    """Return the statistics of all files; None without files.

    Bounds are None if one is unknown, if the type changed between files, or if there are only nulls and NaN.
    """
    if not files:
        return None
    zones = FileStatistics(np.array([file.num_rows for file in files], np.int64), {0: _concatenated(files)})
    stats, num_rows = zones.fold().columns[0], int(zones.zone_rows.sum())
    num_nulls = None if stats.null_count is None else int(stats.null_count[0])
    num_nans = None if stats.nan_count is None else int(stats.nan_count[0])
    has_values = (num_nulls or 0) + (num_nans or 0) < num_rows  # without values, bounds are the widest of the type
    return ColumnStatistics(
        " and ".join(sorted({file.source for file in files}, reverse=True)),  # zone maps first
        num_rows,
        num_nulls,
        num_nans,
        _bound_text(stats.min) if has_values else None,
        _bound_text(stats.max) if has_values else None,
    )


def _concatenated(files: Sequence[FileBounds]) -> ZoneStats:
    """Return the statistics of all files as zones."""
    nulls = [file.stats.null_count for file in files if file.stats.null_count is not None]
    nans = [file.stats.nan_count for file in files if file.stats.nan_count is not None]
    low = [file.stats.min for file in files if file.stats.min is not None]
    high = [file.stats.max for file in files if file.stats.max is not None]
    ordered = len(low) == len(high) == len(files) and len({bound.type for bound in low}) == 1
    return ZoneStats(
        np.concatenate(nulls) if len(nulls) == len(files) else None,
        pa.concat_arrays(low) if ordered else None,
        pa.concat_arrays(high) if ordered else None,
        np.concatenate(nans) if len(nans) == len(files) else None,
    )


def _bound_text(bound: pa.Array | None) -> str | None:
    return None if bound is None or bound.null_count else value_text(bound[0])


def value_text(value: pa.Scalar) -> str:
    """Return at most 80 characters for a value: bytes in hexadecimal, times in ISO format, durations with a unit."""
    is_bytes = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    if any(test(value.type) for test in is_bytes):
        text: str = value.as_py().hex()
    elif pa.types.is_float16(value.type):
        text = str(value.as_py())  # Arrow cannot cast it to a string
    elif pa.types.is_duration(value.type):
        text = f"{value.value} {value.type.unit}"
    else:
        try:
            text = value.cast(pa.string()).as_py()
        except pa.ArrowInvalid:  # a time zone that is not installed
            text = f"{value.value} {value.type.unit}"
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
