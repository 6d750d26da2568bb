"""Updating rows: tasks write changed rows to new fragments, and one commit replaces the old ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lancetable.format import transaction as tx
from lancetable.format.transaction import Transaction
from lancetable.ops.change import update
from lancetable.ops.change.rewritten_rows import Prepared, commit_prepared, discard_prepared
from lancetable.spark.jobs.base import (
    TableJob,
    deletions_from_results,
    fragment_from_json,
    fragment_ids,
    fragment_to_json,
    planned_pin,
)
from lancetable.spark.pin import Pin
from lancetable.spark.runner import Json
from lancetable.table.version import TableVersion

__all__ = ["UpdateJob", "UpdateRows", "discard_update", "update_from_results", "update_to_json"]


@dataclass(frozen=True)
class UpdateJob(TableJob):
    assignments: Mapping[str, str]
    where: str | None

    def work(self, plan: Json) -> UpdateRows:
        return UpdateRows(planned_pin(self.options, plan), self.assignments, self.where)

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        base = self._base(plan)
        prepared = Prepared(self._transaction(base, update_from_results(results), uuid), {})
        rows = {"rows": sum(result["rows"] for result in results)}
        return self._once(lambda: commit_prepared(base, prepared, keep_files=keep_files), rows)

    def discard(self, plan: Json, results: list[Json]) -> Json:
        return discard_update(self._base(plan), update_from_results(results))


@dataclass(frozen=True)
class UpdateRows:
    """{"slices"} -> {"updated", "removed", "new", "fields", "rows"}: new fragments of changed rows."""

    pin: Pin
    assignments: Mapping[str, str]
    where: str | None

    def __call__(self, task: Json) -> Json:
        version = self.pin.open()
        prepared, rows = update.prepare(version, self.assignments, self.where, fragments=fragment_ids(task))
        version.store.sync(version.base)
        return {**update_to_json(prepared.operation), "rows": rows}


def update_to_json(operation: tx.Update) -> Json:
    """Return the result of a task: an uncommitted Update as JSON."""
    return {
        "updated": [fragment_to_json(fragment) for fragment in operation.updated_fragments],
        "removed": list(operation.removed_fragment_ids),
        "new": [fragment_to_json(fragment) for fragment in operation.new_fragments],
        "fields": list(operation.fields_for_preserving_frag_bitmap),
    }


def update_from_results(results: Sequence[Json]) -> tx.Update:
    """Return one Update of the results of all tasks, each of which changed other fragments."""
    deletions = deletions_from_results(results)
    return tx.Update(
        removed_fragment_ids=deletions.removed,
        updated_fragments=deletions.updated,
        new_fragments=tuple(fragment_from_json(value) for result in results for value in result["new"]),
        fields_for_preserving_frag_bitmap=tuple(sorted({field for result in results for field in result["fields"]})),
    )


def discard_update(base: TableVersion, operation: tx.Update) -> Json:
    """Remove the files of an Update that is not committed."""
    discard_prepared(base, Prepared(Transaction.create(base.version, operation), {}))
    return {}
