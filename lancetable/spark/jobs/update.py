"""Updating rows: tasks write changed rows to new fragments, and one commit replaces the old ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lancetable.format import transaction as tx
from lancetable.format.transaction import Transaction
from lancetable.ops.change import update
from lancetable.ops.change.rewritten_rows import Prepared, commit_prepared, discard_prepared
from lancetable.spark.jobs.base import TableJob
from lancetable.spark.jobs.plans import (
    fragment_from_json,
    fragment_ids,
    fragment_to_json,
    pin_to_json,
    plan_row_tasks,
    planned_pin,
)
from lancetable.spark.pin import Pin
from lancetable.spark.runner import Json
from lancetable.table.version import TableVersion

__all__ = ["UpdateJob", "UpdateRows", "discard_update", "update_from_results", "update_to_json"]

_NO_ROWS: Json = {"rows": 0}


@dataclass(frozen=True)
class UpdateJob(TableJob):
    assignments: Mapping[str, str]
    where: str | None

    def plan(self) -> Json:
        version = self.begin()
        if version is None:
            return {"result": _NO_ROWS}
        return {"pin": pin_to_json(version), "tasks": plan_row_tasks(version, whole=True)}

    def work(self, plan: Json) -> UpdateRows:
        return UpdateRows(planned_pin(self.options, plan), self.assignments, self.where)

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        base = self._base(plan)
        prepared = Prepared(self._transaction(base, update_from_results(results), uuid), {})
        rows = {"rows": sum(each["rows"] for each in results)}
        return self._once(lambda: commit_prepared(base, prepared, keep_files=keep_files), rows, _NO_ROWS)

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
        "updated": [fragment_to_json(each) for each in operation.updated_fragments],
        "removed": list(operation.removed_fragment_ids),
        "new": [fragment_to_json(each) for each in operation.new_fragments],
        "fields": list(operation.fields_for_preserving_frag_bitmap),
    }


def update_from_results(results: Sequence[Json]) -> tx.Update:
    """One Update of what all tasks have prepared; each fragment was in the hands of one of them."""
    updated = sorted(
        (fragment_from_json(each) for result in results for each in result["updated"]), key=lambda each: each.id
    )
    return tx.Update(
        removed_fragment_ids=tuple(sorted(each for result in results for each in result["removed"])),
        updated_fragments=tuple(updated),
        new_fragments=tuple(fragment_from_json(each) for result in results for each in result["new"]),
        fields_for_preserving_frag_bitmap=tuple(sorted({each for result in results for each in result["fields"]})),
    )


def discard_update(base: TableVersion, operation: tx.Update) -> Json:
    """Remove the files of an Update that is not committed."""
    discard_prepared(base, Prepared(Transaction.create(base.version, operation), {}))
    return {}
