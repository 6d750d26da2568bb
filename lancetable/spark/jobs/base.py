"""Common parts of jobs: a base class, and plans and results as JSON.

A plan may be made on the cluster and is sent to the client and to the tasks, so it contains nothing but JSON.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

import pyarrow as pa

from lancetable.commit.idempotency import is_done, last_number, properties_of
from lancetable.errors import AlreadyExistsError
from lancetable.format import flags
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.format.transaction import Transaction
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.ops.change.deletion_vectors import WrittenDeletions
from lancetable.ops.read.splits import Split, even_task_rows, plan_splits
from lancetable.spark import options as limits
from lancetable.spark.options import SourceOptions
from lancetable.spark.pin import Pin, mark_of, pinned
from lancetable.spark.runner import Json, Work
from lancetable.table.version import TableVersion

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableJob:
    """A change of the newest version of a table. Pickles.

    `txn` is an application and the number of its change, and `repeated` the result of a change that was committed
    before.
    """

    options: SourceOptions
    txn: tuple[str, int] | None

    repeated: ClassVar[Json] = {"rows": 0}

    def plan(self) -> Json:
        """Return {"pin", "tasks"} for the newest version, or {"result"} if nothing is left to do."""
        version = pinned(self.options).open()
        manifest = version.manifest
        flags.check_writable(manifest.writer_flags, version.uri, reader_flags=manifest.reader_flags)
        if self.is_repeat(version):
            return {"result": self.repeated}
        return {"pin": pin_to_json(version), **self.plan_tasks(version)}

    def plan_tasks(self, version: TableVersion) -> Json:
        """Return the plan for a version, without its pin. By default each task has whole fragments."""
        return {"tasks": plan_row_tasks(version, whole=True)}

    def work(self, plan: Json) -> Work:
        """Return the work of the tasks of a plan, if all of them do the same."""
        raise NotImplementedError

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        """Commit under this uuid, and return the result of the job.

        If the commit certainly failed, the files of the tasks are removed, unless `keep_files`. Raises
        RetryableCommitConflictError if the job has to be planned again.
        """
        raise NotImplementedError

    def discard(self, plan: Json, results: list[Json]) -> Json:
        """Remove the files that results name, because other tasks failed."""
        raise NotImplementedError

    def is_repeat(self, version: TableVersion) -> bool:
        """Return True if a version contains the change, or a later one of the application."""
        if self.txn is None or not is_done(version.manifest.config, self.txn):
            return False
        app, number = self.txn
        last = last_number(version.manifest.config, app)
        if last != number:
            logger.warning(
                "%s: change %d of %r is not made, since change %s was made before. Numbers must rise: a job or"
                " checkpoint that numbers its changes from the start again needs another name",
                version.uri,
                number,
                app,
                last,
            )
        return True

    def _transaction(self, base: TableVersion, operation: tx.Operation, uuid: str) -> Transaction:
        return Transaction(base.version, uuid, operation, "", {} if self.txn is None else properties_of(*self.txn))

    def _base(self, plan: Json) -> TableVersion:
        return planned_pin(self.options, plan).open()

    def _once(self, commit: Callable[[], Any], result: Json) -> Json:
        """Return `result`, or `repeated` if another run of the same change was faster."""
        try:
            commit()
        except AlreadyExistsError:
            if not is_done(pinned(self.options).open().manifest.config, self.txn):
                raise
            return self.repeated
        return result


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
    return [slices_of_task(task) for task in plan["tasks"]]


def slices_of_task(task: Json) -> tuple[Split, ...]:
    """Return the slices of a task that `task_of_slices` made."""
    return tuple(Split(*values) for values in task["slices"])


def task_of_slices(slices: Iterable[Split]) -> Json:
    """Return the task that reads some slices."""
    return {"slices": [list(astuple(part)) for part in slices]}


def fragment_ids(task: Json) -> list[int]:
    """Return the ids of the fragments of a task."""
    return [fragment_id for fragment_id, _, _ in task["slices"]]


def rows_per_task(version: TableVersion, cores: int | None) -> int:
    """Return the rows of a task for which there is about one task for each core.

    A Python task costs as much as reading a million numbers. Large tables have more tasks, by their bytes.
    """
    if cores is None:
        return limits.DEFAULT_TASK_ROWS
    return max(limits.LEAST_TASK_ROWS, min(limits.MOST_TASK_ROWS, even_task_rows(version, cores)))


def plan_row_tasks(version: TableVersion, *, whole: bool) -> list[Json]:
    """Return tasks over all rows. With `whole` no fragment is split, so that each task writes its deletion files."""
    rows, size = limits.DEFAULT_TASK_ROWS, limits.DEFAULT_TASK_BYTES
    tasks = plan_splits(version, task_rows=rows, task_bytes=size, whole_fragments=whole)
    return [task_of_slices(task) for task in tasks]


def fragment_to_json(fragment: Fragment) -> Json:
    """Return a fragment as JSON, in the form of `FragmentMetadata`."""
    return FragmentMetadata.from_format(fragment).to_json()


def fragment_from_json(value: Json) -> Fragment:
    """Return a fragment from the JSON of `fragment_to_json`."""
    return FragmentMetadata.from_json(json.dumps(value)).to_format()


def deletions_from_results(results: Sequence[Json]) -> WrittenDeletions:
    """Return the deletion files of the fragments that all tasks changed, and the ids of those that they removed."""
    updated = (fragment_from_json(value) for result in results for value in result["updated"])
    removed = (fragment_id for result in results for fragment_id in result["removed"])
    return WrittenDeletions(tuple(sorted(updated, key=lambda fragment: fragment.id)), tuple(sorted(removed)))
