"""Plans of counts and of frames, and the tasks of counts."""

from __future__ import annotations

from lancetable.dataset import LanceDataset
from lancetable.errors import InvalidInputError
from lancetable.ops.read.diff import only_in
from lancetable.ops.read.matching_rows import count_plan
from lancetable.ops.read.nullability import null_free_columns
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.read.splits import plan_splits, scan_options_of
from lancetable.spark.jobs.base import (
    pin_to_json,
    plan_row_tasks,
    rows_per_task,
    schema_to_string,
    slices_of_task,
    tasks_of_slices,
)
from lancetable.spark.pinned_version import PinnedVersion
from lancetable.spark.task_runner import Json
from lancetable.table.version import checkout

_MOST_TAILS, _MOST_PAGES = 64, 512  # limits: 0.2 ms per tail of a data file, 0.04 ms per page of a column


def plan_count(dataset: LanceDataset, filter: str | None) -> Json:
    """Return the tasks of a count, or the count itself if the manifest contains it."""
    if filter is None:
        return {"rows": dataset.count_rows()}
    version = dataset.table_version
    return {"pin": pin_to_json(version), "tasks": plan_row_tasks(version, whole=False, filter=filter)}


def count_rows(pin: PinnedVersion, filter: str | None, task: Json) -> Json:
    """Count the rows of one task for which a predicate is true: map {"slices"} to {"rows"}."""
    version = pin.open()
    scans = scan_options_of(slices_of_task(task), ScanOptions(columns=[], filter=filter))
    return {"rows": sum(count_plan(version, plan_scan(version, scan)) for scan in scans)}


def plan_frame(
    dataset: LanceDataset,
    columns: list[str] | None,
    filter: str | None,
    task_rows: int | None,
    task_bytes: int,
    cores: int | None,
    other: int | None = None,
    needs_row_ids: bool = False,
) -> Json:
    """Return the version, schema and tasks of a read. By default, the number of rows per task depends on `cores`.

    `other` is another version of the table; fragments that it also contains are not read.

    The entry `without_nulls` lists nullable columns whose files contain no nulls. It is empty for a single task:
    because of the union in `SparkTable.scan`, Spark would no longer recognize that all rows are in one partition.

    Raises
    ------
    InvalidInputError
        If `needs_row_ids` is True and the version has no stable row ids.
    """
    version = dataset.table_version
    if needs_row_ids and not version.manifest.has_stable_row_ids:
        raise InvalidInputError(
            f"version {version.version} of {version.uri} has no stable row ids, which identify changed rows: pass"
            " key, the columns that identify a row, or create tables with enable_stable_row_ids=True"
        )
    schema = plan_scan(version, ScanOptions(columns=columns)).output_schema
    names = schema.names
    rows = task_rows or rows_per_task(version, cores)
    fragments = None
    if other is not None:
        fragments = frozenset(fragment.id for fragment in only_in(version, checkout(version, other)))
    tasks = plan_splits(
        version, columns=names, task_rows=rows, task_bytes=task_bytes, fragments=fragments, filter=filter
    )
    without_nulls: list[str] = []
    if len(tasks) > 1:
        without_nulls = null_free_columns(version, names, most_files=_MOST_TAILS, most_pages=_MOST_PAGES)
    return {
        "pin": pin_to_json(version),
        "schema": schema_to_string(schema),
        "without_nulls": without_nulls,
        "tasks": tasks_of_slices(tasks),
    }
