"""What tasks do: each class holds what all tasks of a job have in common, and is called with one task.

Nothing here knows Spark, and nothing commits: results name files and count rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from lancetable.dataset import LanceDataset
from lancetable.errors import LanceError
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.ops import delete, evolution, update
from lancetable.ops.marks import Marked
from lancetable.ops.merge_clauses import Counts
from lancetable.ops.moved_rows import Prepared
from lancetable.ops.scan import count_plan
from lancetable.ops.scan_plan import ScanOptions, plan_scan
from lancetable.ops.slices import Slice, options_of
from lancetable.optimize import CompactionTask
from lancetable.spark.pin import Pin
from lancetable.spark.tasks import Json

__all__ = [
    "AddColumns",
    "CompactFragments",
    "CountRows",
    "DeleteRows",
    "UpdateRows",
    "counts_of",
    "fragment_of",
    "json_of",
    "marked_of",
    "merged",
    "slice_task",
    "update_of",
    "update_result",
]


def json_of(fragment: Fragment) -> Json:
    return FragmentMetadata.from_format(fragment).to_json()


def fragment_of(value: Json) -> Fragment:
    return FragmentMetadata.from_json(json.dumps(value)).to_format()


def slice_task(slices: Iterable[Slice]) -> Json:
    return {"slices": [[each.fragment_id, each.start, each.stop] for each in slices]}


def _ids(task: Json) -> list[int]:
    return [fragment_id for fragment_id, _, _ in task["slices"]]


@dataclass(frozen=True)
class CountRows:
    """{"slices"} -> {"rows"}: rows for which a predicate is true."""

    pin: Pin
    predicate: str

    def __call__(self, task: Json) -> Json:
        version = self.pin.open()
        slices = [Slice(*each) for each in task["slices"]]
        scans = options_of(slices, ScanOptions(columns=[], filter=self.predicate))
        return {"rows": sum(count_plan(version, plan_scan(version, scan)) for scan in scans)}


@dataclass(frozen=True)
class DeleteRows:
    """{"slices"} -> {"updated", "removed", "rows"}: deletion files of whole fragments."""

    pin: Pin
    predicate: str

    def __call__(self, task: Json) -> Json:
        version = self.pin.open()
        marked, rows = delete.prepare(version, self.predicate, _ids(task))
        version.store.sync(version.base)
        return {"updated": [json_of(each) for each in marked.updated], "removed": list(marked.removed), "rows": rows}


@dataclass(frozen=True)
class UpdateRows:
    """{"slices"} -> {"updated", "removed", "new", "fields", "rows"}: changed rows of whole fragments, written anew."""

    pin: Pin
    assignments: Mapping[str, str]
    where: str | None

    def __call__(self, task: Json) -> Json:
        version = self.pin.open()
        prepared, rows = update.prepare(version, self.assignments, self.where, fragments=_ids(task))
        version.store.sync(version.base)
        return {**update_result(prepared.operation), "rows": rows}


def update_result(operation: tx.Update) -> Json:
    """What a task has prepared, as JSON."""
    return {
        "updated": [json_of(each) for each in operation.updated_fragments],
        "removed": list(operation.removed_fragment_ids),
        "new": [json_of(each) for each in operation.new_fragments],
        "fields": list(operation.fields_for_preserving_frag_bitmap),
    }


def update_of(results: Sequence[Json]) -> tx.Update:
    """One Update of what all tasks have prepared; each fragment was in the hands of one of them."""
    updated = sorted((fragment_of(each) for result in results for each in result["updated"]), key=lambda each: each.id)
    return tx.Update(
        removed_fragment_ids=tuple(sorted(each for result in results for each in result["removed"])),
        updated_fragments=tuple(updated),
        new_fragments=tuple(fragment_of(each) for result in results for each in result["new"]),
        fields_for_preserving_frag_bitmap=tuple(sorted({each for result in results for each in result["fields"]})),
    )


def merged(prepared: Prepared, counts: Counts) -> Json:
    """What a task of a merge has prepared, and the rows of it."""
    return {
        **update_result(prepared.operation),
        "counts": asdict(counts),
    }


def counts_of(results: Iterable[Json]) -> Counts:
    """Return the sum of the counts of all tasks of a merge."""
    total = Counts()
    for result in results:
        total.add(Counts(**result["counts"]))
    return total


@dataclass(frozen=True)
class CompactFragments:
    """{"task"} -> {"result"}: both as `lancetable.optimize` writes them."""

    pin: Pin

    def __call__(self, task: Json) -> Json:
        dataset = LanceDataset.from_version(self.pin.open())
        return {"result": CompactionTask.from_json(task["task"]).execute(dataset).json()}


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
            values = evolution.computed_values(version, self.values, self.batch_rows)
        else:
            function = self.values
            from lancetable.udf import as_batch

            values = evolution.applied_values(
                version, lambda batch: as_batch(function(batch), self.new), self.new, self.columns, self.batch_rows
            )
        done, reused = evolution.resumable_fragment(version, fragment, self.new, values, self.job)
        return {"fragment": json_of(done), "reused": reused}


def marked_of(results: Sequence[Json]) -> Marked:
    """What all tasks of a `DeleteRows` have marked."""
    updated = sorted((fragment_of(each) for result in results for each in result["updated"]), key=lambda each: each.id)
    return Marked(tuple(updated), tuple(sorted(each for result in results for each in result["removed"])))
