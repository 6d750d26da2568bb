"""Splits of a scan into tasks, each of which reads row ranges of fragments.

    fragments   0 0 0 | 1 | 2 2 2 2 2 2 2 2 2      small fragments share a task, large ones are split at zone bounds
    tasks       -- A --------| B ---| C ---| D --

Sizes are estimated from the manifest and the footer of one data file, so planning costs one or two reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
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

    Returns
    -------
    list[tuple[Split, ...]]
        The splits of each task.
    """
    selected = [
        (fragment, num_rows)
        for fragment in version.manifest.fragments
        if (fragments is None or fragment.id in fragments) and (num_rows := physical_rows(version, fragment))
    ]
    if not selected:
        return []
    projection = plan_scan(version, ScanOptions(columns=columns)).projection
    row_bytes = max(1.0, memory_per_row(version, selected[0][0], projection.columns))
    max_rows = max(1, min(task_rows, int(task_bytes / row_bytes)))
    tasks: list[list[Split]] = [[]]
    num_task_rows = 0
    for fragment, num_rows in selected:
        for split in _split_fragment(fragment.id, num_rows, num_rows if whole_fragments else max_rows):
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

    Several scans are returned only if a fragment occurs in more than one split. The scans do not use indexes, because
    each task would search them for the rows of all tasks.
    """
    scans: list[dict[int, range]] = [{}]
    for split in splits:
        if split.fragment_id in scans[-1]:
            scans.append({})
        scans[-1][split.fragment_id] = range(split.start, split.stop)
    options = replace(options, use_scalar_index=False)
    return [replace(options, fragments=list(ranges), row_ranges=ranges) for ranges in scans if ranges]


def _split_fragment(fragment_id: int, num_rows: int, max_rows: int) -> list[Split]:
    """Split a fragment into splits of about equal size, at zone bounds if a split spans more than one zone."""
    count = -(-num_rows // max_rows)
    step = -(-num_rows // count)
    if step > _ZONE_ROWS:
        step = round(step / _ZONE_ROWS) * _ZONE_ROWS
    starts = list(range(0, num_rows, step))
    if len(starts) > 1 and num_rows - starts[-1] < step // 2:
        starts.pop()  # merge a short remainder into the previous split
    return [Split(fragment_id, start, stop) for start, stop in zip(starts, [*starts[1:], num_rows], strict=True)]
