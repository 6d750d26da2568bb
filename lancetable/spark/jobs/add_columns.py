"""Adding columns: tasks write a data file for each fragment, and one commit makes the columns visible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lancetable.errors import LanceError
from lancetable.ops.schema import new_columns
from lancetable.spark.jobs.base import (
    TableJob,
    fragment_from_json,
    fragment_to_json,
    planned_pin,
    schema_from_string,
    schema_to_string,
)
from lancetable.spark.pin import Pin
from lancetable.spark.runner import Json
from lancetable.table.version import TableVersion

__all__ = ["AddColumns", "AddColumnsJob"]


@dataclass(frozen=True)
class AddColumnsJob(TableJob):
    """`new` is the schema of the columns that a function returns; that of expressions follows from the table."""

    values: Mapping[str, str] | Callable[[pa.RecordBatch], Any]
    new: pa.Schema | None
    columns: tuple[str, ...] | None
    batch_rows: int | None
    job: str

    def plan_tasks(self, version: TableVersion) -> Json:
        new = self.new
        if isinstance(self.values, Mapping):
            new = new_columns.expression_schema(version, self.values)
        assert new is not None
        tasks = [{"fragment": fragment.id} for fragment in version.manifest.fragments]
        return {"new": schema_to_string(new), "tasks": tasks}

    def work(self, plan: Json) -> AddColumns:
        pin, new = planned_pin(self.options, plan), schema_from_string(plan["new"])
        return AddColumns(pin, new, self.values, self.columns, self.batch_rows, self.job)

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        fragments = [fragment_from_json(result["fragment"]) for result in results]
        new_columns.commit_fragments(self._base(plan), fragments, schema_from_string(plan["new"]), uuid)
        return {"reused": sum(result["reused"] for result in results)}

    def discard(self, plan: Json, results: list[Json]) -> Json:
        return {}  # files stay: the next run of the job finds them


@dataclass(frozen=True)
class AddColumns:
    """{"fragment"} -> {"fragment", "reused"}: one more data file for a fragment.

    `values` are SQL expressions by name, or a function of a batch of `columns`.
    """

    pin: Pin
    new: pa.Schema
    values: Mapping[str, str] | Callable[[pa.RecordBatch], Any]
    columns: tuple[str, ...] | None
    batch_rows: int | None
    job: str

    def __call__(self, task: Json) -> Json:
        version = self.pin.open()
        fragment = version.manifest.fragments.by_id(task["fragment"])
        if fragment is None:
            raise LanceError(f"version {version.version} has no fragment {task['fragment']}")
        if isinstance(self.values, Mapping):
            added = new_columns.from_expressions(version, self.values, self.batch_rows)
        else:
            function = self.values
            from lancetable.udf import as_batch

            added = new_columns.from_function(
                version,
                lambda batch: as_batch(function(batch), self.new),
                self.new,
                columns=self.columns,
                batch_size=self.batch_rows,
            )
        done, reused = new_columns.resumable_fragment(version, fragment, added, self.job)
        return {"fragment": fragment_to_json(done), "reused": reused}
