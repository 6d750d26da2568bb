"""Statistics of a column, merged from the zone maps or sampled rows of several data files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.report.model import ColumnStatistics

if TYPE_CHECKING:
    from lancetable.file.zone_map_builder import ZoneStats

_MAX_TEXT = 80


class FileBounds(NamedTuple):
    """Statistics of one field in one file, as a single zone of `num_rows` rows."""

    source: str
    num_rows: int
    stats: ZoneStats

    @property
    def num_nulls(self) -> int | None:
        """Number of nulls; None if unknown."""
        return None if self.stats.null_count is None else int(self.stats.null_count[0])

    @property
    def num_nans(self) -> int | None:
        """Number of NaN values; None for types without NaN."""
        return None if self.stats.nan_count is None else int(self.stats.nan_count[0])

    @property
    def has_values(self) -> bool:
        """True unless all rows are null or NaN, whose bounds are the widest of the type."""
        return (self.num_nulls or 0) + (self.num_nans or 0) < self.num_rows


def merge_statistics(files: Sequence[FileBounds]) -> ColumnStatistics | None:
    """Return the statistics of all files; None without files."""
    if not files:
        return None
    sources = sorted({file.source for file in files}, reverse=True)  # zone maps first
    with_values = [file.stats for file in files if file.has_values]
    return ColumnStatistics(
        " and ".join(sources),
        sum(file.num_rows for file in files),
        _sum([file.num_nulls for file in files]),
        _sum([file.num_nans for file in files]),
        _bound([stats.min for stats in with_values], "min"),
        _bound([stats.max for stats in with_values], "max"),
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(count or 0 for count in counts)


def _bound(bounds: Sequence[pa.Array | None], which: str) -> str | None:
    """Return the lowest or highest bound as text; None if one is unknown or the type changed between files."""
    known = [bound for bound in bounds if bound is not None and not bound.null_count]
    if not known or len(known) < len(bounds) or len({bound.type for bound in known}) > 1:
        return None
    return value_text(pc.min_max(pa.concat_arrays(known))[which])


def value_text(value: pa.Scalar) -> str:
    """Return a value as text of at most 80 characters: bytes in hexadecimal, times in ISO format."""
    is_bytes = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    text: str = value.as_py().hex() if any(test(value.type) for test in is_bytes) else value.cast(pa.string()).as_py()
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
