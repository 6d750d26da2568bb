"""Deleting rows: tasks write deletion files, and one commit refers to all of them."""

from __future__ import annotations

from dataclasses import dataclass

from lancetable.format import transaction as tx
from lancetable.ops.change import delete
from lancetable.spark.jobs.base import RowsJob, fragment_ids, plan_row_tasks, update_to_json
from lancetable.spark.task_runner import Json
from lancetable.table.version import TableVersion


@dataclass(frozen=True)
class DeleteJob(RowsJob):
    """Job that deletes rows.

    A task maps {"slices"}, whole fragments, to an Update without new fragments and {"rows"}, the number of rows.
    """

    predicate: str
    verb = "delete"

    def plan_tasks(self, version: TableVersion) -> Json:
        """Return tasks of whole fragments that may contain rows to delete."""
        return {"tasks": plan_row_tasks(version, whole=True, filter=self.predicate)}

    def execute(self, plan: Json, task: Json) -> Json:
        """Write the deletion files of some fragments."""
        version = self.open_planned_version(plan)
        deletions, rows = delete.prepare(version, self.predicate, fragment_ids(task))
        version.store.sync(version.base)
        update = tx.Update(removed_fragment_ids=deletions.removed, updated_fragments=deletions.updated)
        return {**update_to_json(update), "rows": rows}

    def operation(self, update: tx.Update) -> tx.Operation:
        """Return the Delete to commit."""
        return tx.Delete(update.updated_fragments, update.removed_fragment_ids, self.predicate)
