"""Splits of a scan into tasks, each of which reads row ranges of fragments.

    fragments   0 0 0 | 1 | 2 2 2 2 2 2 2 2 2      small fragments share a task, large ones are split at zone bounds
    tasks       -- A --------| B ---| C ---| D --

Sizes are estimated from the manifest and the footer of one data file, so planning costs one or two reads. With a
filter, indexes are searched too: rows of the fragments that they cover are left out if they do not select them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lancetable.ops.read.scan_plan import Filter, ScanOptions, plan_scan, resolve_filter
from lancetable.table.row_counts import physical_rows
from lancetable.table.row_sizes import memory_per_row
from lancetable.table.version import TableVersion

_ZONE_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Split:
    """The physical rows of one fragment from `start` up to, but excluding, `stop`."""

    fragment_id: int
    start: int
    stop: int


def plan_splits(
    version: TableVersion,
    *,
    columns: Sequence[str] | None = None,
    task_rows: int,
    task_bytes: int,
    whole_fragments: bool = False,
    fragments: Collection[int] | None = None,
    filter: Filter | None = None,
) -> list[tuple[Split, ...]]:
    """Split the rows of a version into tasks, in table order.

    Parameters
    ----------
    version
        The version to read.
    columns
        Columns whose size in memory counts towards `task_bytes`; all by default.
    task_rows, task_bytes
        Target size of a task; the smaller of the two limits applies.
    whole_fragments
        Never split a fragment.
    fragments
        Ids of the fragments to read; all by default.
    filter
        Filter of the scan. Rows that indexes rule out are not part of a split.

    Returns
    -------
    list[tuple[Split, ...]]
        The splits of each task.

    Raises
    ------
    InvalidSqlError, ColumnNotFoundError
        If the filter does not fit the table.
    CorruptFileError
        If an index is damaged.
    """
    candidates = {} if filter is None else _candidates(version, filter, fragments)
    selected = [
        (fragment, ranges)
        for fragment in version.manifest.fragments
        if (fragments is None or fragment.id in fragments)
        and (num_rows := physical_rows(version, fragment))
        and (ranges := candidates.get(fragment.id, [range(num_rows)]))
    ]
    if not selected:
        return []
    projection = plan_scan(version, ScanOptions(columns=columns)).projection
    row_bytes = max(1.0, memory_per_row(version, selected[0][0], projection.columns))
    max_rows = max(1, min(task_rows, int(task_bytes / row_bytes)))
    tasks: list[list[Split]] = [[]]
    num_task_rows = 0
    for fragment, ranges in selected:
        if whole_fragments:
            num_rows = physical_rows(version, fragment)
            splits = [Split(fragment.id, 0, num_rows)]
        else:
            splits = [split for rows in ranges for split in _split_range(fragment.id, rows, max_rows)]
        for split in splits:
            split_rows = split.stop - split.start
            if tasks[-1] and num_task_rows + split_rows > max_rows:
                tasks.append([])
                num_task_rows = 0
            tasks[-1].append(split)
            num_task_rows += split_rows
    return [tuple(task) for task in tasks]


def even_task_rows(version: TableVersion, num_tasks: int) -> int:
    """Return the number of rows per task if a version is split into `num_tasks` tasks."""
    return -(-sum(physical_rows(version, fragment) for fragment in version.manifest.fragments) // num_tasks)


def scan_options_of(splits: Iterable[Split], options: ScanOptions) -> list[ScanOptions]:
    """Return options of scans that read the rows of `splits` in order, with the other options unchanged.

    Several scans are returned only if the splits of a fragment are not ascending and consecutive. The scans do not use
    indexes, because each task would search them for the rows of all tasks: `plan_splits` has searched them.
    """
    scans: list[dict[int, list[range]]] = [{}]
    for split in splits:
        earlier = scans[-1].get(split.fragment_id)
        if earlier and (earlier[-1].stop > split.start or next(reversed(scans[-1])) != split.fragment_id):
            scans.append({})
        scans[-1].setdefault(split.fragment_id, []).append(range(split.start, split.stop))
    options = replace(options, use_scalar_index=False)
    return [replace(options, fragments=list(ranges), row_ranges=ranges) for ranges in scans if ranges]


def _candidates(
    version: TableVersion, filter: Filter, fragments: Collection[int] | None
) -> Mapping[int, Sequence[range]]:
    if version.manifest.index_section is None:
        resolve_filter(version.schema, filter)  # raises the same errors as with indexes
        return {}
    from lancetable.ops.read.candidate_ranges import candidate_ranges  # imported here: most tables have no indexes

    return candidate_ranges(version, filter, fragments)


def _split_range(fragment_id: int, rows: range, max_rows: int) -> list[Split]:
    """Split a range of rows into splits of about equal size, of whole zones if a split has more rows than a zone."""
    num_rows = len(rows)
    count = -(-num_rows // max_rows)
    step = -(-num_rows // count)
    if step > _ZONE_ROWS:
        step = round(step / _ZONE_ROWS) * _ZONE_ROWS
    starts = list(range(rows.start, rows.stop, step))
    if len(starts) > 1 and rows.stop - starts[-1] < step // 2:
        starts.pop()  # merge a short remainder into the previous split
    return [Split(fragment_id, start, stop) for start, stop in zip(starts, [*starts[1:], rows.stop], strict=True)]
