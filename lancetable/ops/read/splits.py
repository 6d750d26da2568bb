"""Splits of a scan: the row ranges of fragments that one task reads.

    fragments   0 0 0 | 1 | 2 2 2 2 2 2 2 2 2      small fragments share a task, large ones are split at zone bounds
    tasks       -- A --------| B ---| C ---| D --

Sizes are estimated from the manifest and the footer of one data file, so planning costs one or two reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from lancetable.format.fragment import Fragment
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.table.row_count_index import physical_rows
from lancetable.table.row_sizes import memory_per_row
from lancetable.table.version import TableVersion

__all__ = ["Slice", "options_of", "plan_slices", "rows_of_each"]

_ZONE_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Slice:
    """The physical rows of one fragment from `start` up to, but excluding, `stop`."""

    fragment_id: int
    start: int
    stop: int


def plan_slices(
    version: TableVersion,
    *,
    columns: Sequence[str] | None = None,
    task_rows: int,
    task_bytes: int,
    whole_fragments: bool = False,
    fragments: Collection[int] | None = None,
) -> list[tuple[Slice, ...]]:
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
    list[tuple[Slice, ...]]
        The slices of each task.
    """
    chosen = [
        fragment
        for fragment in version.manifest.fragments
        if (fragments is None or fragment.id in fragments) and physical_rows(version, fragment)
    ]
    per_task = _rows_per_task(version, chosen, columns, task_rows, task_bytes)
    tasks: list[tuple[Slice, ...]] = []
    task: list[Slice] = []
    filled = 0
    for fragment in chosen:
        for part in _split_fragment(
            fragment.id, physical_rows(version, fragment), 1 << 62 if whole_fragments else per_task
        ):
            rows = part.stop - part.start
            if task and filled + rows > per_task:
                tasks.append(tuple(task))
                task, filled = [], 0
            task.append(part)
            filled += rows
    if task:
        tasks.append(tuple(task))
    return tasks


def rows_of_each(version: TableVersion, count: int) -> int:
    """Return the number of rows per task if `count` tasks share the version."""
    return -(-sum(physical_rows(version, each) for each in version.manifest.fragments) // count)


def options_of(slices: Iterable[Slice], options: ScanOptions) -> list[ScanOptions]:
    """Return scans that read the rows of `slices` in order, with the other options unchanged.

    Returns one scan, or several if a fragment occurs in more than one slice.
    """
    scans: list[dict[int, range]] = [{}]
    for part in slices:
        if part.fragment_id in scans[-1]:
            scans.append({})
        scans[-1][part.fragment_id] = range(part.start, part.stop)
    return [replace(options, fragments=list(ranges), row_ranges=ranges) for ranges in scans if ranges]


def _rows_per_task(
    version: TableVersion,
    fragments: Sequence[Fragment],
    columns: Sequence[str] | None,
    task_rows: int,
    task_bytes: int,
) -> int:
    if not fragments:
        return task_rows
    projection = plan_scan(version, ScanOptions(columns=columns)).projection
    row_bytes = max(1.0, memory_per_row(version, fragments[0], projection.columns))
    return max(1, min(task_rows, int(task_bytes / row_bytes)))


def _split_fragment(fragment_id: int, num_rows: int, most: int) -> list[Slice]:
    """Split a fragment into slices of about equal size, at zone bounds if a slice spans more than one zone."""
    count = -(-num_rows // most)
    step = -(-num_rows // count)
    if step > _ZONE_ROWS:
        step = round(step / _ZONE_ROWS) * _ZONE_ROWS
    starts = list(range(0, num_rows, step))
    if len(starts) > 1 and num_rows - starts[-1] < step // 2:
        starts.pop()  # merge a short remainder into the previous slice
    return [Slice(fragment_id, start, stop) for start, stop in zip(starts, [*starts[1:], num_rows], strict=True)]
