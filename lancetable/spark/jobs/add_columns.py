"""Adding columns: tasks write a data file for each fragment, and one commit makes the columns visible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lancetable.errors import LanceError
from lancetable.format.fragment import Fragment
from lancetable.ops.schema import new_columns
from lancetable.spark.jobs.base import TableJob, from_string, schema_from_string, schema_to_string, to_string
from lancetable.spark.task_runner import Json
from lancetable.table.version import TableVersion
from lancetable.udf import as_batch


@dataclass(frozen=True)
class AddColumnsJob(TableJob):
    """Job that adds columns, defined by SQL expressions or by a function of batches of `columns`.

    `new` is the schema of the columns that a function returns. The schema of expressions is derived from the table. A
    task maps {"fragment"} to {"fragment", "reused"}. Files of a failed run are kept, because the next run of the same
    `job` reuses them.
    """

    values: Mapping[str, str] | Callable[[pa.RecordBatch], Any]
    new: pa.Schema | None
    columns: tuple[str, ...] | None
    batch_rows: int | None
    job: str
    verb = "add_columns"

    def plan_tasks(self, version: TableVersion) -> Json:
        """Return a task for each fragment, and the schema of the columns."""
        new = self.new
        if isinstance(self.values, Mapping):
            new = new_columns.expression_schema(version, self.values)
        assert new is not None
        tasks = [{"fragment": fragment.id} for fragment in version.manifest.fragments]
        return {"new": schema_to_string(new), "tasks": tasks}

    def execute(self, plan: Json, task: Json) -> Json:
        """Write one more data file for a fragment, unless an earlier run has written it.

        Raises
        ------
        LanceError
            If the version lacks the fragment.
        """
        version, new, values = self.open_planned_version(plan), schema_from_string(plan["new"]), self.values
        fragment = version.manifest.fragments.by_id(task["fragment"])
        if fragment is None:
            raise LanceError(f"version {version.version} has no fragment {task['fragment']}")
        if isinstance(values, Mapping):
            added = new_columns.from_expressions(version, values, self.batch_rows)
        else:
            added = new_columns.from_function(
                version,
                lambda batch: as_batch(values(batch), new),
                new,
                columns=self.columns,
                batch_size=self.batch_rows,
            )
        done, reused = new_columns.resumable_fragment(version, fragment, added, self.job)
        return {"fragment": to_string(done), "reused": reused}

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        """Commit the columns, and return the number of fragments that an earlier run had completed."""
        fragments = [from_string(Fragment, result["fragment"]) for result in results]
        base, new = self.open_planned_version(plan), schema_from_string(plan["new"])
        version = new_columns.commit_fragments(base, fragments, new, uuid)
        return {"reused": sum(result["reused"] for result in results), "version": version.version}
