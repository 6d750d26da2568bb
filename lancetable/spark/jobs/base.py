"""Base classes of jobs, and the JSON form of plans and results.

A plan may be created on the cluster and is sent to the client and to the tasks, so it contains only JSON.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from lancetable.commit.commit_loop import commit_transaction
from lancetable.commit.idempotency import is_done, properties_of
from lancetable.commit.publish import discarding_on_failure
from lancetable.errors import AlreadyExistsError
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.format.protobuf_conversion import ProtoMessage
from lancetable.ops.change.rewritten_rows import Prepared, discard_prepared
from lancetable.ops.read.splits import Split, even_task_rows, plan_splits
from lancetable.spark import options as limits
from lancetable.spark.options import SourceOptions
from lancetable.spark.pinned_version import PinnedVersion, commit_id_of, pin_of
from lancetable.spark.task_runner import Json, Runner, Work
from lancetable.spark.writer import log_if_repeated
from lancetable.table.version import TableVersion

T = TypeVar("T", bound=ProtoMessage)


@dataclass(frozen=True)
class TableJob:
    """Picklable description of a change to the newest version of a table.

    `txn` is the name of an application and the number of its change. `repeated` is the result of a change that is
    already committed. `verb` is the name of the change in log records.
    """

    options: SourceOptions
    txn: tuple[str, int] | None

    verb: ClassVar[str]
    repeated: ClassVar[Json] = {"rows": 0}

    def plan(self) -> Json:
        """Return {"pin", "tasks"} for the newest version, or {"result"} if nothing is left to do."""
        version = pin_of(self.options).open()
        version.check_writable()
        if self.is_repeat(version):
            return {"result": self.repeated}
        return {"pin": pin_to_json(version), **self.plan_tasks(version)}

    def plan_tasks(self, version: TableVersion) -> Json:
        """Return the plan for a version, without its pin. By default, tasks consist of whole fragments."""
        return {"tasks": plan_row_tasks(version, whole=True)}

    def work(self, plan: Json) -> Work:
        """Return the function that executes a task of a plan. It contains the plan without the tasks."""
        return partial(self.execute, {**plan, "tasks": []})

    def run(self, runner: Runner, plan: Json) -> Iterable[Json]:
        """Execute the tasks of a plan, and return their results. By default, all tasks run at the same time."""
        return runner.run(self.work(plan), plan["tasks"])

    def execute(self, plan: Json, task: Json) -> Json:
        """Write the files of one task, and return their description."""
        raise NotImplementedError

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        """Commit a transaction with this uuid, and return the result of the job, including its "version".

        If the commit certainly failed, the files of the tasks are removed, unless `keep_files` is True.

        Raises
        ------
        RetryableCommitConflictError
            If the job must be planned again.
        """
        raise NotImplementedError

    def discard(self, plan: Json, results: list[Json]) -> Json:
        """Remove the files of these results, because other tasks failed. By default, the files are kept."""
        return {}

    def is_repeat(self, version: TableVersion) -> bool:
        """Return True if a version contains the change, or a later change of the application."""
        return log_if_repeated(version, self.txn)

    def open_planned_version(self, plan: Json) -> TableVersion:
        """Open the version that a plan was made for."""
        return pin_of_plan(self.options, plan).open()


@dataclass(frozen=True)
class RowsJob(TableJob):
    """Base of jobs whose tasks write deletion files and new fragments. Each fragment is changed by one task only.

    The result of a task is an uncommitted Update in the form of `update_to_json`, and the values that `result` needs.
    """

    def operation(self, update: tx.Update) -> tx.Operation:
        """Return the operation that commits the files of all tasks."""
        return update

    def inserts_keys(self, base: TableVersion, plan: Json) -> bool:
        """Return True if no other commit may insert the keys of the inserted rows."""
        return False

    def result(self, results: list[Json]) -> Json:
        """Return the result of the job after its commit."""
        return {"rows": sum(result["rows"] for result in results)}

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        """Commit the files of all tasks as one operation, unless another run has committed the same change.

        Raises
        ------
        AlreadyExistsError
            If another commit inserted the same keys.
        """
        base, update = self.open_planned_version(plan), update_from_results(results)
        properties = {} if self.txn is None else properties_of(*self.txn)
        transaction = tx.Transaction(base.version, uuid, self.operation(update), "", properties)
        try:
            with discarding_on_failure(lambda: None if keep_files else discard_update(base, update)):
                version = commit_transaction(base, transaction, inserts_keys=self.inserts_keys(base, plan))
        except AlreadyExistsError:
            if not is_done(pin_of(self.options).open().manifest.config, self.txn):
                raise
            return self.repeated
        return {**self.result(results), "version": version.version}

    def discard(self, plan: Json, results: list[Json]) -> Json:
        """Remove the deletion files and the data files of these results."""
        discard_update(self.open_planned_version(plan), update_from_results(results))
        return {}


def update_to_json(operation: tx.Update) -> Json:
    """Return an uncommitted Update as JSON: {"updated", "removed", "new", "fields"}."""
    return {
        "updated": [to_string(fragment) for fragment in operation.updated_fragments],
        "removed": list(operation.removed_fragment_ids),
        "new": [to_string(fragment) for fragment in operation.new_fragments],
        "fields": list(operation.fields_for_preserving_frag_bitmap),
    }


def update_from_results(results: Sequence[Json]) -> tx.Update:
    """Combine the results of all tasks, which changed different fragments, into one Update."""

    def all_of(name: str) -> Iterable[Any]:
        return (value for result in results for value in result[name])

    updated = map(partial(from_string, Fragment), all_of("updated"))
    return tx.Update(
        removed_fragment_ids=tuple(sorted(all_of("removed"))),
        updated_fragments=tuple(sorted(updated, key=lambda fragment: fragment.id)),
        new_fragments=tuple(map(partial(from_string, Fragment), all_of("new"))),
        fields_for_preserving_frag_bitmap=tuple(sorted(set(all_of("fields")))),
    )


def discard_update(base: TableVersion, operation: tx.Update) -> None:
    """Remove the files of an Update that is not committed."""
    discard_prepared(base, Prepared(tx.Transaction.create(base.version, operation), {}))


def pin_of_plan(options: SourceOptions, plan: Json) -> PinnedVersion:
    """Return the pin of a plan. The plan itself has no storage options, because they may contain secrets."""
    uri, branch, version, commit_id = plan["pin"]
    return PinnedVersion(uri, branch, version, tuple(sorted(options.storage_options.items())), commit_id)


def pin_to_json(version: TableVersion) -> list[Any]:
    """Return a version as JSON, for `pin_of_plan`."""
    return [version.uri, version.branch, version.version, commit_id_of(version)]


def schema_from_string(encoded: str) -> pa.Schema:
    """Decode a schema that `schema_to_string` encoded."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded)))


def schema_to_string(schema: pa.Schema) -> str:
    """Encode a schema as a string, for `schema_from_string`."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def from_string(kind: type[T], encoded: str) -> T:
    """Decode a value of a frozen class that `to_string` encoded."""
    decoded: T = kind.from_proto(kind.message_class.FromString(base64.b64decode(encoded)))
    return decoded


def to_string(value: ProtoMessage) -> str:
    """Encode a value of a frozen class as a string, for `from_string`."""
    return base64.b64encode(value.to_proto().SerializeToString()).decode()


def slices_of_task(task: Json) -> tuple[Split, ...]:
    """Return the slices of a task that `tasks_of_slices` created."""
    return tuple(Split(*values) for values in task["slices"])


def read_slices(
    read: Callable[[tuple[Split, ...], pa.Schema], Iterator[pa.RecordBatch]], task: Json, wire: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of `read` for the slices of a task."""
    return read(slices_of_task(task), wire)


def tasks_of_slices(tasks: Iterable[Iterable[Split]]) -> list[Json]:
    """Return one task as JSON for each group of slices."""
    return [{"slices": [list(astuple(part)) for part in slices]} for slices in tasks]


def fragment_ids(task: Json) -> list[int]:
    """Return the ids of the fragments of a task."""
    return [fragment_id for fragment_id, _, _ in task["slices"]]


def rows_per_task(version: TableVersion, cores: int | None) -> int:
    """Return the number of rows per task for which there is about one task per core.

    Starting a Python task takes as long as reading a million numbers. Large tables have more tasks, because the number
    of bytes per task is limited too.
    """
    if cores is None:
        return limits.DEFAULT_TASK_ROWS
    return max(limits.LEAST_TASK_ROWS, min(limits.MOST_TASK_ROWS, even_task_rows(version, cores)))


def plan_row_tasks(version: TableVersion, *, whole: bool, filter: str | None = None) -> list[Json]:
    """Return tasks over all rows that may satisfy a filter.

    With `whole`, no fragment is split, so that one task can write its deletion file.

    Raises
    ------
    InvalidSqlError, ColumnNotFoundError
        If the filter does not fit the table.
    """
    rows, size = limits.DEFAULT_TASK_ROWS, limits.DEFAULT_TASK_BYTES
    tasks = plan_splits(version, task_rows=rows, task_bytes=size, whole_fragments=whole, filter=filter)
    return tasks_of_slices(tasks)
