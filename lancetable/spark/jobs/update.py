"""Updating rows: tasks write changed rows to new fragments, and one commit replaces the old ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lancetable.ops.change import update
from lancetable.spark.jobs.base import RowsJob, fragment_ids, plan_row_tasks, update_to_json
from lancetable.spark.task_runner import Json
from lancetable.table.version import TableVersion


@dataclass(frozen=True)
class UpdateJob(RowsJob):
    """Job that updates rows. A task maps {"slices"}, whole fragments, to an Update and {"rows"}, the number of rows."""

    assignments: Mapping[str, str]
    where: str | None
    verb = "update"

    def plan_tasks(self, version: TableVersion) -> Json:
        """Return tasks of whole fragments that may contain rows to update."""
        return {"tasks": plan_row_tasks(version, whole=True, filter=self.where)}

    def execute(self, plan: Json, task: Json) -> Json:
        """Write the changed rows of some fragments."""
        version = self.open_planned_version(plan)
        prepared, rows = update.prepare(version, self.assignments, self.where, fragments=fragment_ids(task))
        version.store.sync(version.base)
        return {**update_to_json(prepared.operation), "rows": rows}
