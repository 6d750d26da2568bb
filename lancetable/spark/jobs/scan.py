"""The plan of a read of a table as a frame."""

from __future__ import annotations

from dataclasses import dataclass

from lancetable.ops.read.null_free import null_free_columns
from lancetable.ops.read.scan_plan import resolve_filter
from lancetable.ops.read.splits import plan_splits
from lancetable.spark.jobs.base import pin_to_json, rows_per_task, schema_to_string, task_of_slices
from lancetable.spark.options import SourceOptions
from lancetable.spark.pin import pinned
from lancetable.spark.reader import projected_schema
from lancetable.spark.runner import Json

__all__ = ["PlanScan"]

_MOST_TAILS, _MOST_PAGES = 64, 512  # 0.2 ms to read the tail of a data file, 0.04 ms for each page of a column


@dataclass(frozen=True)
class PlanScan:
    """The version, schema and tasks of a read: of `task_rows` rows, or as many as suit the `cores` of the cluster.

    `without_nulls` are nullable columns in which files have no nulls. It is empty for a single task: with the union of
    `SparkTable.scan`, Spark would no longer see that all rows are in one partition.
    """

    options: SourceOptions
    columns: tuple[str, ...] | None
    filter: str | None
    task_rows: int | None
    task_bytes: int
    cores: int | None

    def __call__(self) -> Json:
        pin = pinned(self.options)
        version = pin.open()
        schema = projected_schema(pin, self.columns)
        if self.filter is not None:
            resolve_filter(version.schema, self.filter)  # raises here rather than in a task
        task_rows = self.task_rows or rows_per_task(version, self.cores)
        names = schema.names
        tasks = plan_splits(version, columns=names, task_rows=task_rows, task_bytes=self.task_bytes)
        without_nulls: list[str] = []
        if len(tasks) > 1:
            without_nulls = null_free_columns(version, names, most_files=_MOST_TAILS, most_pages=_MOST_PAGES)
        return {
            "pin": pin_to_json(version),
            "schema": schema_to_string(schema),
            "without_nulls": without_nulls,
            "tasks": [task_of_slices(task) for task in tasks],
        }
