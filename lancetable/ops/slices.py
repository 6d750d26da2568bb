"""Work cut for machines elsewhere: which rows of which fragments one task takes.

    fragments   0 0 0 | 1 | 2 2 2 2 2 2 2 2 2      small ones share a task, a large one is cut at whole zones
    tasks       -- A --------| B ---| C ---| D --

Sizes come from the manifest and from the footer of one data file, so that cutting a table costs one or two reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from lancetable.format.fragment import Fragment
from lancetable.ops.scan_plan import ScanOptions, plan_scan
from lancetable.table.row_sizes import memory_per_row
from lancetable.table.version import TableVersion
from lancetable.table.version_rows import physical_rows

__all__ = ["Slice", "options_of", "plan_slices", "rows_of_each"]

_ZONE_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Slice:
    """The physical rows from `start` to before `stop` of a fragment."""

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
    """All rows of a version in tasks of about `task_rows` rows or `task_bytes` bytes of `columns` in memory, whichever
    is less, in table order. With `whole_fragments` none is cut; `fragments` are the ids of those wanted, all
    by default.
    """
    chosen = [
        each
        for each in version.manifest.fragments
        if (fragments is None or each.id in fragments) and physical_rows(version, each)
    ]
    per_task = _rows_per_task(version, chosen, columns, task_rows, task_bytes)
    tasks: list[tuple[Slice, ...]] = []
    task: list[Slice] = []
    filled = 0
    for fragment in chosen:
        for piece in _pieces(fragment.id, physical_rows(version, fragment), 1 << 62 if whole_fragments else per_task):
            rows = piece.stop - piece.start
            if task and filled + rows > per_task:
                tasks.append(tuple(task))
                task, filled = [], 0
            task.append(piece)
            filled += rows
    if task:
        tasks.append(tuple(task))
    return tasks


def rows_of_each(version: TableVersion, count: int) -> int:
    """The rows of a task where `count` of them share the version."""
    return -(-sum(physical_rows(version, each) for each in version.manifest.fragments) // count)


def options_of(slices: Iterable[Slice], options: ScanOptions) -> list[ScanOptions]:
    """Scans that read the rows of `slices` in order, otherwise as `options` say.

    One for all, unless a fragment stands in several slices.
    """
    found: list[dict[int, range]] = [{}]
    for each in slices:
        if each.fragment_id in found[-1]:
            found.append({})
        found[-1][each.fragment_id] = range(each.start, each.stop)
    return [replace(options, fragments=list(ranges), row_ranges=ranges) for ranges in found if ranges]


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


def _pieces(fragment_id: int, num_rows: int, most: int) -> list[Slice]:
    """Equal pieces of whole zones, or of single rows where a zone is too much."""
    count = -(-num_rows // most)
    step = -(-num_rows // count)
    if step > _ZONE_ROWS:
        step = round(step / _ZONE_ROWS) * _ZONE_ROWS
    starts = list(range(0, num_rows, step))
    if len(starts) > 1 and num_rows - starts[-1] < step // 2:
        starts.pop()  # what rounding has left over is no piece of its own
    return [Slice(fragment_id, start, stop) for start, stop in zip(starts, [*starts[1:], num_rows], strict=True)]
