"""`SparkTable`: a Lance table in a Spark session, classic or Connect. What touches many rows runs as Spark tasks.

Every verb opens the newest version here, plans small tasks, has them run, and commits once here. Nothing asks for a
SparkContext or a JAR; the library must be installed where the tasks run.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from lancetable.cleanup import CleanupStats
from lancetable.commit.once import is_done, properties_of
from lancetable.dataset import LanceDataset
from lancetable.errors import AlreadyExistsError, CommitStateUnknownError, InvalidInputError, LanceError
from lancetable.format.transaction import Delete, Transaction
from lancetable.ops import commit as commits
from lancetable.ops import evolution
from lancetable.ops.marks import remove_marks
from lancetable.ops.moved_rows import Prepared, commit_prepared
from lancetable.ops.retry import on_newest
from lancetable.ops.scan_plan import ScanOptions, resolve_filter
from lancetable.ops.slices import Slice, plan_slices
from lancetable.optimize import Compaction, CompactionMetrics, CompactionOptions, MigrationMetrics, RewriteResult
from lancetable.spark.jobs import (
    AddColumns,
    CompactFragments,
    CountRows,
    DeleteRows,
    UpdateRows,
    fragment_of,
    marked_of,
    slice_task,
    update_of,
)
from lancetable.spark.merge import SparkMergeBuilder
from lancetable.spark.options import DEFAULT_BATCH_ROWS, DEFAULT_TASK_BYTES, DEFAULT_TASK_ROWS, SourceOptions
from lancetable.spark.pin import Pin, pinned
from lancetable.spark.reader import BATCH_BYTES, projected_schema, scan_slices
from lancetable.spark.tasks import Runner, SparkRunner
from lancetable.spark.types import spark_schema, table_schema, wire_schema
from lancetable.table.version import TableVersion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["SparkTable"]

T = TypeVar("T")
_RETRY_SECONDS = 24 * 3600.0  # a distributed job may take hours; attempts are counted instead


class SparkTable:
    """A table, by its address; get one with `for_path`.

    Verbs that change rows run again on the newest version when another commit touched the same ones, at most
    `conflict_retries` times.
    """

    def __init__(
        self,
        spark: SparkSession,
        uri: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        branch: str | None = None,
        runner: Runner | None = None,
        conflict_retries: int = 10,
    ) -> None:
        self._spark = spark
        self._options = SourceOptions(uri=uri, storage_options=dict(storage_options or {}), branch=branch)
        self._runner = runner or SparkRunner(spark)
        self._conflict_retries = conflict_retries

    @classmethod
    def for_path(
        cls,
        spark: SparkSession,
        path: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        branch: str | None = None,
        runner: Runner | None = None,
    ) -> SparkTable:
        """The table at a path. Raises DatasetNotFoundError, RefNotFoundError for the branch.

        `runner` says where tasks run: on the executors of the session by default, see `lancetable.spark.tasks`.

        Example: `SparkTable.for_path(spark, "s3://bucket/t.lance").to_df(columns=["id"], filter="price > 10")`
        """
        table = cls(spark, str(path), storage_options=storage_options, branch=branch, runner=runner)
        table.pin()
        return table

    def __repr__(self) -> str:
        return f"SparkTable({self._options.uri!r})"

    def pin(self) -> Pin:
        """The newest version, as a value that other processes can open."""
        return pinned(self._options)

    @property
    def dataset(self) -> LanceDataset:
        """The newest version as a dataset of the library, for everything that needs no Spark."""
        return LanceDataset.from_version(self._newest())

    # ------------------------------------------------------------------------------------------------------ reading

    def to_df(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        *,
        version: int | None = None,
        tag: str | None = None,
        as_of: datetime | str | None = None,
        batch_size: int = DEFAULT_BATCH_ROWS,
        target_rows_per_task: int = DEFAULT_TASK_ROWS,
        target_bytes_per_task: int = DEFAULT_TASK_BYTES,
    ) -> DataFrame:
        """The rows as a frame of one version, which is chosen now: the newest, or that of a number, tag or time.

        `columns` and `filter`, SQL of the library, are worth giving: Spark reads every column of the frame, and filters
        of its own see all rows. Raises ColumnNotFoundError, InvalidSqlError, VersionNotFoundError,
        UnsupportedFeatureError for a column of a type that Spark has not.
        """
        if sum(each is not None for each in (version, tag, as_of)) > 1:
            raise InvalidInputError("version, tag and as_of name a version each; give one of them")
        moment = as_of.isoformat() if isinstance(as_of, datetime) else as_of
        pin = pinned(replace(self._options, version=tag if version is None else version, timestamp_as_of=moment))
        names = list(columns) if columns is not None else projected_schema(pin, None).names
        schema = spark_schema(projected_schema(pin, names))
        options = ScanOptions(columns=names, filter=filter, batch_size=batch_size, batch_size_bytes=BATCH_BYTES)
        base = pin.open()
        if filter is not None:
            resolve_filter(base.schema, filter)  # a mistake is told here rather than by a task

        def read(slices: tuple[Slice, ...], wire: pa.Schema) -> Iterator[pa.RecordBatch]:
            return scan_slices(pin, slices, options, wire)

        return self.scan(base, read, names, schema, target_rows_per_task, target_bytes_per_task)

    def scan(
        self,
        base: TableVersion,
        read: Callable[[tuple[Slice, ...], pa.Schema], Iterator[pa.RecordBatch]],
        columns: Sequence[str],
        schema: StructType,
        task_rows: int = DEFAULT_TASK_ROWS,
        task_bytes: int = DEFAULT_TASK_BYTES,
    ) -> DataFrame:
        """What `read` yields for the slices of a version, as a frame; `columns` are those that it reads.

        Through `mapInArrow` rather than the data source: the same rows in less time.
        """
        tasks = plan_slices(base, columns=columns, task_rows=task_rows, task_bytes=task_bytes)
        if not tasks:
            return self._spark.createDataFrame([], schema)
        wire = wire_schema(schema)

        def read_some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from read(tasks[number], wire)

        return self._spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read_some, schema)

    def count_rows(self, filter: str | None = None) -> int:
        """How many rows there are; without `filter` from the manifest alone."""
        base = self._newest()
        if filter is None:
            return LanceDataset.from_version(base).count_rows()
        results = self._runner.run(CountRows(Pin.of(base), filter), self._tasks(base, whole=False))
        return sum(each["rows"] for each in results)

    # ----------------------------------------------------------------------------------------------------- changing

    def delete(self, predicate: str, *, txn: tuple[str, int] | None = None) -> int:
        """Delete the rows for which `predicate` is true; returns how many. Tasks write the deletion files.

        `txn` is the name of an application and the number of its change: one that was made is not made again, and 0
        returned. Raises InvalidSqlError, ColumnNotFoundError; RetryableCommitConflictError when every attempt lost.
        """

        def attempt(base: TableVersion) -> int:
            results = self._runner.run(DeleteRows(Pin.of(base), predicate), self._tasks(base))
            marked = marked_of(results)
            operation = Delete(marked.updated, marked.removed, predicate)
            try:
                commits.commit(base, Transaction.create(base.version, operation, properties=_properties(txn)))
            except CommitStateUnknownError:
                raise
            except LanceError:
                remove_marks(base, marked.updated)
                raise
            return sum(each["rows"] for each in results)

        return self._once(attempt, txn, 0)

    def update(self, set: Mapping[str, str], where: str | None = None, *, txn: tuple[str, int] | None = None) -> int:
        """Set columns to the values of SQL expressions, in the rows for which `where` is true; returns how many.

        Example: `t.update(set={"v": "v + 1"}, where="id < 10")`. Errors as in `LanceDataset.update` and `delete`.
        """

        def attempt(base: TableVersion) -> int:
            results = self._runner.run(UpdateRows(Pin.of(base), dict(set), where), self._tasks(base))
            transaction = Transaction.create(base.version, update_of(results), properties=_properties(txn))
            commit_prepared(base, Prepared(transaction, {}))
            return sum(each["rows"] for each in results)

        return self._once(attempt, txn, 0)

    def merge(self, source: DataFrame, on: str | Sequence[str]) -> SparkMergeBuilder:
        """Begin a merge of a frame into the table, by the key columns `on`; see `SparkMergeBuilder`.

        Example: `t.merge(updates, "id").when_matched_update_all().when_not_matched_insert_all().execute()`
        """
        return SparkMergeBuilder(self, source, (on,) if isinstance(on, str) else tuple(on))

    def add_columns(
        self,
        values: Mapping[str, str] | Callable[[pa.RecordBatch], Any],
        schema: pa.Schema | StructType | str | None = None,
        *,
        input_columns: Sequence[str] | None = None,
        vector_columns: Mapping[str, int] | None = None,
        batch_size: int | None = None,
        job: str | None = None,
    ) -> int:
        """Add columns to all rows, fragment by fragment in tasks; returns how many fragments an earlier run had done.

        `values` are SQL expressions by column name; or a function from a batch of `input_columns` to one of the new
        columns, of the types of `schema` (Arrow's, Spark's, or DDL as "emb array<float>", with the dimensions of
        vectors in `vector_columns`). Nothing is visible until all is done. A run that was interrupted goes on where it
        was, for a function if both runs name the same `job`. Rows that others add meanwhile are taken in.
        """
        expressions = dict(values) if isinstance(values, Mapping) else None
        if expressions is None and schema is None:
            raise InvalidInputError("a function needs the schema of the columns that it makes")
        name = job or str(uuid.uuid4())
        if expressions is not None and job is None:
            name = hashlib.sha256(json.dumps(expressions, sort_keys=True).encode()).hexdigest()

        def attempt(base: TableVersion) -> int:
            if expressions is not None:
                new = evolution.expression_schema(base, expressions)
            else:
                new = self._arrow_schema(schema, vector_columns)
            columns = None if input_columns is None else tuple(input_columns)
            work = AddColumns(Pin.of(base), new, expressions or values, columns, batch_size, name)
            results = self._runner.run(work, [{"fragment": each.id} for each in base.manifest.fragments])
            evolution.commit_fragments(base, [fragment_of(each["fragment"]) for each in results], new)
            return sum(each["reused"] for each in results)

        return self._on_newest(attempt)

    # -------------------------------------------------------------------------------------------------- maintenance

    def compact(self, **options: Any) -> CompactionMetrics:
        """Write small neighbouring fragments, and those with many deleted rows, anew, in tasks.

        The options are those of `LanceDataset.optimize.compact_files`, as `target_rows_per_fragment=1_000_000`.
        """
        known = CompactionOptions.__annotations__
        unknown = [each for each in options if each not in known]
        if unknown:
            raise InvalidInputError(f"compact has no option {unknown[0]!r}; there are {', '.join(known)}")

        def attempt(base: TableVersion) -> CompactionMetrics:
            dataset = LanceDataset.from_version(base)
            plan = Compaction.plan(dataset, options)
            if not plan.num_tasks():
                return CompactionMetrics()
            results = self._runner.run(CompactFragments(Pin.of(base)), [{"task": task.json()} for task in plan.tasks])
            return Compaction.commit(dataset, [RewriteResult.from_json(each["result"]) for each in results], options)

        return self._on_newest(attempt)

    def vacuum(
        self,
        older_than_days: float | None = None,
        *,
        retain_versions: int | None = None,
        delete_unverified: bool = False,
    ) -> CleanupStats:
        """Remove old versions and the files that no other needs, those of failed jobs too; see
        `LanceDataset.cleanup_old_versions`. Files younger than seven days that no version names are left, since a job
        may be under way, unless `delete_unverified`."""
        return self.dataset.cleanup_old_versions(
            None if older_than_days is None else timedelta(days=older_than_days),
            retain_versions,
            delete_unverified=delete_unverified,
        )

    def migrate(self, data_storage_version: str = "2.1") -> MigrationMetrics:
        """Bring the table forward to a newer data format, here rather than in tasks; see `LanceDataset.optimize`."""
        return self.dataset.optimize.migrate(data_storage_version)

    def restore(self, version: int | str) -> None:
        """Make an older version, by number or tag, the newest again."""
        self.dataset.checkout_version(version).restore()

    def tag(self, name: str, version: int | None = None) -> None:
        """Name a version, the newest by default, so that no cleanup removes it; a tag that exists is moved."""
        dataset = self.dataset
        target = dataset.version if version is None else version
        if name in dataset.tags.list():
            dataset.tags.update(name, target)
        else:
            dataset.tags.create(name, target)

    # --------------------------------------------------------------------------------------------------- looking in

    def history(self) -> DataFrame:
        """A row for each version, newest first: version, timestamp, operation, message, rows and data files."""
        dataset = self.dataset
        rows = []
        for entry in reversed(dataset.versions()):
            transaction = dataset.read_transaction(entry["version"])
            properties = {} if transaction is None else dict(transaction.transaction_properties or {})
            metadata = entry["metadata"]
            rows.append(
                (
                    entry["version"],
                    entry["timestamp"],
                    None if transaction is None else type(transaction.operation).__name__,
                    None if transaction is None else transaction.read_version,
                    int(metadata["total_rows"]) if "total_rows" in metadata else None,
                    int(metadata["total_data_files"]) if "total_data_files" in metadata else None,
                    properties,
                )
            )
        columns = (
            "version bigint, timestamp timestamp, operation string, read_version bigint, num_rows bigint,"
            " num_data_files bigint, properties map<string,string>"
        )
        return self._spark.createDataFrame(rows, columns)

    def fragments(self) -> DataFrame:
        """A row for each fragment: its id, rows, deleted rows, data files and their bytes."""
        rows = [
            (
                each.fragment_id,
                each.physical_rows - each.num_deletions,
                each.num_deletions,
                [file.path for file in each.data_files()],
                sum(file.file_size_bytes or 0 for file in each.data_files()),
            )
            for each in self.dataset.get_fragments()
        ]
        columns = "fragment_id bigint, num_rows bigint, num_deleted bigint, files array<string>, size_bytes bigint"
        return self._spark.createDataFrame(rows, columns)

    # ------------------------------------------------------------------------------------------------------- inside

    def _newest(self) -> TableVersion:
        return self.pin().open()

    def _on_newest(self, attempt: Callable[[TableVersion], T]) -> T:
        return on_newest(
            self._newest(), attempt, conflict_retries=self._conflict_retries, retry_timeout_s=_RETRY_SECONDS
        )

    def _once(self, attempt: Callable[[TableVersion], T], txn: tuple[str, int] | None, nothing: T) -> T:
        """As `_on_newest`, or `nothing` where the change was made before."""
        if is_done(self._newest().manifest.config, txn):
            return nothing
        try:
            return self._on_newest(attempt)
        except AlreadyExistsError:
            if not is_done(self._newest().manifest.config, txn):
                raise
            return nothing

    def _tasks(self, base: TableVersion, *, whole: bool = True) -> list[dict[str, Any]]:
        """Tasks over all rows; `whole`: none cuts a fragment, so that each writes the deletion files of its own."""
        tasks = plan_slices(base, task_rows=DEFAULT_TASK_ROWS, task_bytes=DEFAULT_TASK_BYTES, whole_fragments=whole)
        return [slice_task(task) for task in tasks]

    def _arrow_schema(self, schema: Any, vectors: Mapping[str, int] | None) -> pa.Schema:
        if isinstance(schema, pa.Schema):
            return schema
        parsed = self._spark.createDataFrame([], schema).schema if isinstance(schema, str) else schema
        return table_schema(parsed, dict(vectors or {}))


def _properties(txn: tuple[str, int] | None) -> dict[str, str]:
    return {} if txn is None else properties_of(*txn)
