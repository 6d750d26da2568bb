"""What each verb of `SparkTable` plans, and how it is committed: jobs and questions for a desk (`desk.py`).

All of it goes to and fro as JSON, since it may run on the cluster.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from lancetable.commit.once import is_done, last_number, properties_of
from lancetable.dataset import LanceDataset
from lancetable.errors import (
    AlreadyExistsError,
    CommitStateUnknownError,
    LanceError,
    SchemaMismatchError,
    UnsupportedFeatureError,
)
from lancetable.format import flags
from lancetable.format import transaction as tx
from lancetable.format.transaction import Transaction
from lancetable.ops import commit as commits
from lancetable.ops import evolution
from lancetable.ops.batches import follows
from lancetable.ops.marks import remove_marks
from lancetable.ops.merge_clauses import Clauses, Condition, Counts, check_source, key_fields
from lancetable.ops.merge_rows import ADDRESS, IN_SOURCE
from lancetable.ops.moved_rows import Prepared, commit_prepared, discard_prepared
from lancetable.ops.null_free import null_free_columns
from lancetable.ops.scan_plan import ScanOptions, plan_scan, resolve_filter
from lancetable.ops.slices import Slice, plan_slices, rows_of_each
from lancetable.optimize import Compaction, RewriteResult
from lancetable.spark.jobs import (
    AddColumns,
    CompactFragments,
    CountRows,
    DeleteRows,
    UpdateRows,
    counts_of,
    fragment_of,
    marked_of,
    slice_task,
    update_of,
)
from lancetable.spark.options import (
    DEFAULT_TASK_BYTES,
    DEFAULT_TASK_ROWS,
    LEAST_TASK_ROWS,
    MOST_TASK_ROWS,
    SourceOptions,
)
from lancetable.spark.pin import Pin, mark_of, pinned
from lancetable.spark.reader import projected_schema
from lancetable.spark.tasks import Json
from lancetable.table.version import TableVersion

__all__ = [
    "DELETE",
    "KEY",
    "AddColumnsJob",
    "Call",
    "CompactJob",
    "CountPlan",
    "DeleteJob",
    "MergeJob",
    "ReadPlan",
    "UpdateJob",
    "incoming_schema",
    "pin_of",
    "quoted",
    "schema_of",
    "schema_text",
    "slices_of",
]


logger = logging.getLogger(__name__)


# --- values on their way -------------------------------------------------------------------------------------------


def pin_of(options: SourceOptions, plan: Json) -> Pin:
    """The version that was planned on. Storage options, secrets among them, are not part of what travels."""
    uri, branch, version, mark = plan["pin"]
    return Pin(uri, branch, version, tuple(sorted(options.storage_options.items())), mark)


def schema_of(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def slices_of(plan: Json) -> list[tuple[Slice, ...]]:
    """The tasks of a scan."""
    return [tuple(Slice(*each) for each in task["slices"]) for task in plan["tasks"]]


def schema_text(schema: pa.Schema) -> str:
    """Return a schema as a string, for `schema_of`."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _pin(version: TableVersion) -> list[Any]:
    return [version.uri, version.branch, version.version, mark_of(version)]


def _suitable(version: TableVersion, cores: int | None) -> int:
    """Rows for a task: one task for each core, as Spark deals out files, since every task of Python costs as much as
    reading a million numbers. Large tables have more of them, by their bytes."""
    if cores is None:
        return DEFAULT_TASK_ROWS
    return max(LEAST_TASK_ROWS, min(MOST_TASK_ROWS, rows_of_each(version, cores)))


def _tasks(version: TableVersion, *, whole: bool) -> list[Json]:
    """Tasks over all rows; `whole`: none cuts a fragment, so that each writes the deletion files of its own."""
    tasks = plan_slices(version, task_rows=DEFAULT_TASK_ROWS, task_bytes=DEFAULT_TASK_BYTES, whole_fragments=whole)
    return [slice_task(task) for task in tasks]


# --- questions -----------------------------------------------------------------------------------------------------


_MOST_TAILS, _MOST_PAGES = 64, 512  # 0.2 ms to read the tail of a data file, 0.04 ms for each page of a column


@dataclass(frozen=True)
class ReadPlan:
    """The version, schema and tasks of a read: of `task_rows` rows, or as many as suit the `cores` of the cluster.

    `without_nulls` are nullable columns in which files have no nulls. It is empty for a single task: with the union of
    `SparkTable.scan`, Spark would no longer see that all rows are in one partition.
    """

    options: SourceOptions
    columns: tuple[str, ...] | None
    filter: str | None
    task_rows: int | None
    task_bytes: int
    cores: int | None

    def __call__(self) -> Json:
        pin = pinned(self.options)
        version = pin.open()
        schema = projected_schema(pin, self.columns)
        if self.filter is not None:
            resolve_filter(version.schema, self.filter)  # a mistake is told here rather than by a task
        task_rows = self.task_rows or _suitable(version, self.cores)
        tasks = plan_slices(version, columns=schema.names, task_rows=task_rows, task_bytes=self.task_bytes)
        return {
            "pin": _pin(version),
            "schema": schema_text(schema),
            "without_nulls": self._without_nulls(version, schema) if len(tasks) > 1 else [],
            "tasks": [slice_task(task) for task in tasks],
        }

    @staticmethod
    def _without_nulls(version: TableVersion, schema: pa.Schema) -> list[str]:
        return null_free_columns(version, schema.names, most_files=_MOST_TAILS, most_pages=_MOST_PAGES)


@dataclass(frozen=True)
class CountPlan:
    """The tasks of a count, or the count where the manifest tells it."""

    options: SourceOptions
    filter: str | None

    def __call__(self) -> Json:
        version = pinned(self.options).open()
        if self.filter is None:
            return {"rows": LanceDataset.from_version(version).count_rows()}
        return {"pin": _pin(version), "tasks": _tasks(version, whole=False)}

    def work(self, plan: Json) -> CountRows:
        return CountRows(pin_of(self.options, plan), str(self.filter))


@dataclass(frozen=True)
class Call:
    """What a function makes of the newest version."""

    options: SourceOptions
    function: Callable[..., Any]
    arguments: Mapping[str, Any]

    def __call__(self) -> Json:
        dataset = LanceDataset.from_version(pinned(self.options).open())
        found = self.function(dataset, **self.arguments)
        return {"value": asdict(found) if hasattr(found, "__dataclass_fields__") else found}


# --- jobs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Numbered:
    """A job on the newest version that may carry the number of an application's change."""

    options: SourceOptions
    txn: tuple[str, int] | None

    def _begin(self, *, consecutive: bool = False) -> TableVersion | None:
        """The newest version; None if the change was made before. Raises UnsupportedFeatureError."""
        version = pinned(self.options).open()
        manifest = version.manifest
        flags.check_writable(manifest.writer_flags, version.uri, reader_flags=manifest.reader_flags)
        if self.txn is not None and consecutive:
            remedy = "consecutive=False for this change (of a pipeline: continue_from_checkpoint=True)"
            return version if follows(version, *self.txn, remedy=remedy) else None
        if not is_done(manifest.config, self.txn):
            return version
        app, number = self.txn or ("", 0)
        last = last_number(manifest.config, app)
        if last != number:
            logger.warning(
                "%s: change %d of %r is not made, since change %s was made before. Numbers must rise: a job or"
                " checkpoint that numbers its changes from the start again needs another name",
                version.uri,
                number,
                app,
                last,
            )
        return None

    def _transaction(self, base: TableVersion, operation: tx.Operation, uuid: str) -> Transaction:
        return Transaction(base.version, uuid, operation, "", {} if self.txn is None else properties_of(*self.txn))

    def _base(self, plan: Json) -> TableVersion:
        return pin_of(self.options, plan).open()

    def _once(self, commit: Callable[[], object], result: Json, nothing: Json) -> Json:
        """`result`, or `nothing` if another run of the same change was faster."""
        try:
            commit()
        except AlreadyExistsError:
            if not is_done(pinned(self.options).open().manifest.config, self.txn):
                raise
            return nothing
        return result


def _discard_update(base: TableVersion, operation: tx.Update) -> Json:
    discard_prepared(base, Prepared(Transaction.create(base.version, operation), {}))
    return {}


_NO_ROWS: Json = {"rows": 0}


@dataclass(frozen=True)
class DeleteJob(_Numbered):
    predicate: str

    def plan(self) -> Json:
        version = self._begin()
        if version is None:
            return {"result": _NO_ROWS}
        return {"pin": _pin(version), "tasks": _tasks(version, whole=True)}

    def work(self, plan: Json) -> DeleteRows:
        return DeleteRows(pin_of(self.options, plan), self.predicate)

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        base, marked = self._base(plan), marked_of(results)
        operation = tx.Delete(marked.updated, marked.removed, self.predicate)

        def commit() -> None:
            try:
                commits.commit(base, self._transaction(base, operation, uuid))
            except CommitStateUnknownError:
                raise
            except LanceError:
                if not keep_files:
                    remove_marks(base, marked.updated)
                raise

        return self._once(commit, {"rows": sum(each["rows"] for each in results)}, _NO_ROWS)

    def discard(self, plan: Json, results: list[Json]) -> Json:
        remove_marks(self._base(plan), marked_of(results).updated)
        return {}


@dataclass(frozen=True)
class UpdateJob(_Numbered):
    assignments: Mapping[str, str]
    where: str | None

    def plan(self) -> Json:
        version = self._begin()
        if version is None:
            return {"result": _NO_ROWS}
        return {"pin": _pin(version), "tasks": _tasks(version, whole=True)}

    def work(self, plan: Json) -> UpdateRows:
        return UpdateRows(pin_of(self.options, plan), self.assignments, self.where)

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        base = self._base(plan)
        prepared = Prepared(self._transaction(base, update_of(results), uuid), {})
        rows = {"rows": sum(each["rows"] for each in results)}
        return self._once(lambda: commit_prepared(base, prepared, keep_files=keep_files), rows, _NO_ROWS)

    def discard(self, plan: Json, results: list[Json]) -> Json:
        return _discard_update(self._base(plan), update_of(results))


KEY, DELETE = "_key_", "_delete"

_NOTHING_MERGED: Json = {"counts": asdict(Counts()), "repeated": True}


@dataclass(frozen=True)
class MergeJob(_Numbered):
    """Its `tasks` are those of a scan of the keys, for a join in Spark, its `parts` whole fragments, for tasks that
    know the source; `merge.py` takes one or the other."""

    clauses: Clauses
    source: Sequence[str]
    cores: int | None
    consecutive: bool = False

    def plan(self) -> Json:
        version = self._begin(consecutive=self.consecutive)
        if version is None:
            return {"result": _NOTHING_MERGED}
        on = tuple(field.name for field in key_fields(version.schema, self.clauses.on))
        incoming = incoming_schema(version, self.source)
        check_source(version.schema, replace(self.clauses, on=on), incoming)
        for name in (ADDRESS, IN_SOURCE):
            if name in incoming.names:
                raise UnsupportedFeatureError(f"a merge by Spark has a column {name!r} of its own", feature="merge")
        condition = self.clauses.update_condition
        if condition is not None:
            Condition(condition, version.schema, set(incoming.names))  # refused here, not in every task
        columns = _key_columns(self.clauses, on)
        keys = plan_scan(version, ScanOptions(columns=columns)).output_schema.append(pa.field(ADDRESS, pa.int64()))
        tasks = plan_slices(version, columns=on, task_rows=DEFAULT_TASK_ROWS, task_bytes=DEFAULT_TASK_BYTES)
        # Each part indexes the source and writes a file of its own: no more of them than are of use.
        part_rows = _suitable(version, self.cores)
        parts = plan_slices(
            version, columns=on, task_rows=part_rows, task_bytes=DEFAULT_TASK_BYTES, whole_fragments=True
        )
        return {
            "pin": _pin(version),
            "on": list(on),
            "incoming": schema_text(incoming),
            "columns": columns,
            "keys": schema_text(keys),
            "tasks": [slice_task(task) for task in tasks],
            "parts": [slice_task(task) for task in parts],
        }

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        base = self._base(plan)
        primary = {field.name for field in base.schema.primary_key()}
        unique = bool(primary) and primary == set(plan["on"])
        transaction = self._transaction(base, update_of(results), uuid)
        prepared = Prepared(transaction, {}, inserts_keys=unique and self.clauses.insert)
        merged = {"counts": asdict(counts_of(results)), "repeated": False}
        return self._once(lambda: commit_prepared(base, prepared, keep_files=keep_files), merged, _NOTHING_MERGED)

    def discard(self, plan: Json, results: list[Json]) -> Json:
        return _discard_update(self._base(plan), update_of(results))


def incoming_schema(version: TableVersion, names: Sequence[str]) -> pa.Schema:
    """The columns that a source brings, in the table's types and order. Raises SchemaMismatchError."""
    table = version.schema.to_arrow()
    unknown = [name for name in names if name not in table.names]
    if unknown:
        raise SchemaMismatchError(
            f"the source has a column {unknown[0]!r} that {version.uri} has not; there are {', '.join(table.names)}",
            column=unknown[0],
        )
    return pa.schema([field for field in table if field.name in names])


def _key_columns(clauses: Clauses, on: Sequence[str]) -> dict[str, str]:
    """The keys of a row, and whether it shall be deleted without a match."""
    columns = {f"{KEY}{number}": quoted(name) for number, name in enumerate(on)}
    if clauses.delete_unmatched:
        columns[DELETE] = "true" if clauses.delete_condition is None else clauses.delete_condition
    return columns


def quoted(name: str) -> str:
    """A column's name as SQL has it, Spark's and the library's."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class CompactJob(_Numbered):
    settings: Mapping[str, Any]

    def plan(self) -> Json:
        version = self._begin()
        assert version is not None, "a compaction has no number"
        found = Compaction.plan(LanceDataset.from_version(version), dict(self.settings))
        if not found.num_tasks():
            return {"result": {}}
        return {"pin": _pin(version), "tasks": [{"task": task.json()} for task in found.tasks]}

    def work(self, plan: Json) -> CompactFragments:
        return CompactFragments(pin_of(self.options, plan))

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        rewritten = [RewriteResult.from_json(each["result"]) for each in results]
        dataset = LanceDataset.from_version(self._base(plan))
        return asdict(Compaction.commit(dataset, rewritten, dict(self.settings)))

    def discard(self, plan: Json, results: list[Json]) -> Json:
        made = [each for result in results for each in RewriteResult.from_json(result["result"]).new_fragments]
        operation = tx.Update(new_fragments=tuple(each.to_format() for each in made))
        return _discard_update(self._base(plan), operation)


@dataclass(frozen=True)
class AddColumnsJob(_Numbered):
    """`new` is the schema of what a function makes; that of expressions follows from the table."""

    values: Mapping[str, str] | Callable[[pa.RecordBatch], Any]
    new: pa.Schema | None
    columns: tuple[str, ...] | None
    batch_rows: int | None
    job: str

    def plan(self) -> Json:
        version = self._begin()
        assert version is not None, "a backfill has no number"
        new = self.new
        if isinstance(self.values, Mapping):
            new = evolution.expression_schema(version, self.values)
        assert new is not None
        tasks = [{"fragment": each.id} for each in version.manifest.fragments]
        return {"pin": _pin(version), "new": schema_text(new), "tasks": tasks}

    def work(self, plan: Json) -> AddColumns:
        pin, new = pin_of(self.options, plan), schema_of(plan["new"])
        return AddColumns(pin, new, self.values, self.columns, self.batch_rows, self.job)

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        fragments = [fragment_of(each["fragment"]) for each in results]
        evolution.commit_fragments(self._base(plan), fragments, schema_of(plan["new"]), uuid)
        return {"reused": sum(each["reused"] for each in results)}

    def discard(self, plan: Json, results: list[Json]) -> Json:
        return {}  # files stay: the next run of the job finds them
