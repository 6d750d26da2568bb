"""Deleting rows: tasks write deletion files, and one commit names them."""

from __future__ import annotations

from dataclasses import dataclass

from lancetable.errors import CommitStateUnknownError, LanceError
from lancetable.format import transaction as tx
from lancetable.ops import commit as commits
from lancetable.ops.change import delete
from lancetable.ops.change.deletion_vectors import discard_deletions
from lancetable.spark.jobs.base import TableJob
from lancetable.spark.jobs.plans import (
    deletions_from_results,
    fragment_ids,
    fragment_to_json,
    pin_to_json,
    plan_row_tasks,
    planned_pin,
)
from lancetable.spark.pin import Pin
from lancetable.spark.runner import Json

__all__ = ["DeleteJob", "DeleteRows"]

_NO_ROWS: Json = {"rows": 0}


@dataclass(frozen=True)
class DeleteJob(TableJob):
    predicate: str

    def plan(self) -> Json:
        version = self.begin()
        if version is None:
            return {"result": _NO_ROWS}
        return {"pin": pin_to_json(version), "tasks": plan_row_tasks(version, whole=True)}

    def work(self, plan: Json) -> DeleteRows:
        return DeleteRows(planned_pin(self.options, plan), self.predicate)

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        base, marked = self._base(plan), deletions_from_results(results)
        operation = tx.Delete(marked.updated, marked.removed, self.predicate)

        def commit() -> None:
            try:
                commits.commit(base, self._transaction(base, operation, uuid))
            except CommitStateUnknownError:
                raise
            except LanceError:
                if not keep_files:
                    discard_deletions(base, marked.updated)
                raise

        return self._once(commit, {"rows": sum(each["rows"] for each in results)}, _NO_ROWS)

    def discard(self, plan: Json, results: list[Json]) -> Json:
        discard_deletions(self._base(plan), deletions_from_results(results).updated)
        return {}


@dataclass(frozen=True)
class DeleteRows:
    """{"slices"} -> {"updated", "removed", "rows"}: deletion files of whole fragments."""

    pin: Pin
    predicate: str

    def __call__(self, task: Json) -> Json:
        version = self.pin.open()
        marked, rows = delete.prepare(version, self.predicate, fragment_ids(task))
        version.store.sync(version.base)
        return {
            "updated": [fragment_to_json(each) for each in marked.updated],
            "removed": list(marked.removed),
            "rows": rows,
        }
