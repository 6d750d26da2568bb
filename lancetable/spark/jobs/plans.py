"""Plans and results of jobs as JSON.

A plan may be made on the cluster and travels to the client and to the tasks, so that it contains nothing but JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from lancetable.format.fragment import Fragment
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.ops.change.deletion_vectors import WrittenDeletions
from lancetable.ops.read.splits import Split, even_task_rows, plan_splits
from lancetable.spark.options import (
    DEFAULT_TASK_BYTES,
    DEFAULT_TASK_ROWS,
    LEAST_TASK_ROWS,
    MOST_TASK_ROWS,
    SourceOptions,
)
from lancetable.spark.pin import Pin, mark_of
from lancetable.spark.runner import Json
from lancetable.table.version import TableVersion


def planned_pin(options: SourceOptions, plan: Json) -> Pin:
    """Return the version that a plan was made for. A plan has no storage options, since those contain secrets."""
    uri, branch, version, mark = plan["pin"]
    return Pin(uri, branch, version, tuple(sorted(options.storage_options.items())), mark)


def pin_to_json(version: TableVersion) -> list[Any]:
    """Return a version as JSON, for `planned_pin`."""
    return [version.uri, version.branch, version.version, mark_of(version)]


def schema_from_string(encoded: str) -> pa.Schema:
    """Return a schema from a string that `schema_to_string` made."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded)))


def schema_to_string(schema: pa.Schema) -> str:
    """Return a schema as a string, for `schema_from_string`."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def slices_from_plan(plan: Json) -> list[tuple[Split, ...]]:
    """Return the slices of each task of a plan."""
    return [tuple(Split(*each) for each in task["slices"]) for task in plan["tasks"]]


def task_of_slices(slices: Iterable[Split]) -> Json:
    """Return the task that reads some slices."""
    return {"slices": [[each.fragment_id, each.start, each.stop] for each in slices]}


def fragment_ids(task: Json) -> list[int]:
    """Return the ids of the fragments of a task."""
    return [fragment_id for fragment_id, _, _ in task["slices"]]


def rows_per_task(version: TableVersion, cores: int | None) -> int:
    """Return the rows of a task for which there is about one task for each core.

    A Python task costs as much as reading a million numbers. Large tables have more tasks, by their bytes.
    """
    if cores is None:
        return DEFAULT_TASK_ROWS
    return max(LEAST_TASK_ROWS, min(MOST_TASK_ROWS, even_task_rows(version, cores)))


def plan_row_tasks(version: TableVersion, *, whole: bool) -> list[Json]:
    """Return tasks over all rows. With `whole` no fragment is split, so that each task writes its deletion files."""
    tasks = plan_splits(version, task_rows=DEFAULT_TASK_ROWS, task_bytes=DEFAULT_TASK_BYTES, whole_fragments=whole)
    return [task_of_slices(task) for task in tasks]


def fragment_to_json(fragment: Fragment) -> Json:
    """Return a fragment as JSON, in the form of `FragmentMetadata`."""
    return FragmentMetadata.from_format(fragment).to_json()


def fragment_from_json(value: Json) -> Fragment:
    """Return a fragment from the JSON of `fragment_to_json`."""
    return FragmentMetadata.from_json(json.dumps(value)).to_format()


def deletions_from_results(results: Sequence[Json]) -> WrittenDeletions:
    """Return the deletion files that all tasks of a delete wrote."""
    updated = sorted(
        (fragment_from_json(each) for result in results for each in result["updated"]), key=lambda each: each.id
    )
    return WrittenDeletions(tuple(updated), tuple(sorted(each for result in results for each in result["removed"])))
