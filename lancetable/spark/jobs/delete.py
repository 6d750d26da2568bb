"""Deleting rows: tasks write deletion files, and one commit names them."""

from __future__ import annotations

from dataclasses import dataclass

from lancetable.format import transaction as tx
from lancetable.ops import commit as commits
from lancetable.ops.change import delete
from lancetable.ops.change.deletion_vectors import discard_deletions
from lancetable.spark.jobs.base import TableJob, deletions_from_results, fragment_ids, fragment_to_json, planned_pin
from lancetable.spark.pin import Pin
from lancetable.spark.runner import Json

__all__ = ["DeleteJob", "DeleteRows"]


@dataclass(frozen=True)
class DeleteJob(TableJob):
    predicate: str

    def work(self, plan: Json) -> DeleteRows:
        return DeleteRows(planned_pin(self.options, plan), self.predicate)

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        base, deletions = self._base(plan), deletions_from_results(results)
        transaction = self._transaction(base, tx.Delete(deletions.updated, deletions.removed, self.predicate), uuid)

        def discard() -> None:
            if not keep_files:
                discard_deletions(base, deletions.updated)

        def commit() -> None:
            with commits.discarding_on_failure(discard):
                commits.commit(base, transaction)

        return self._once(commit, {"rows": sum(result["rows"] for result in results)})

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
        deletions, rows = delete.prepare(version, self.predicate, fragment_ids(task))
        version.store.sync(version.base)
        return {
            "updated": [fragment_to_json(fragment) for fragment in deletions.updated],
            "removed": list(deletions.removed),
            "rows": rows,
        }
