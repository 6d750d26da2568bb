"""`SparkTable`: a Lance table in a Spark session, classic or Connect. Operations on many rows run as Spark tasks.

Each method opens the newest version, plans small tasks, runs them, and commits once (`jobs/`). Neither a SparkContext
nor a JAR is needed; the library must be installed on the executors.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from lancetable.cleanup import CleanupStats
from lancetable.dataset import LanceDataset
from lancetable.errors import InvalidInputError
from lancetable.ops.change.retry import retried
from lancetable.ops.read.diff import LINEAGE
from lancetable.optimize import CompactionMetrics, CompactionOptions, MigrationMetrics
from lancetable.spark.change_feed import changed_rows
from lancetable.spark.coordinator import RETRY_SECONDS, DeployMode, coordinator_for, run_job
from lancetable.spark.jobs.add_columns import AddColumnsJob
from lancetable.spark.jobs.base import TableJob, pin_of_plan, read_slices, schema_from_string, schema_to_string
from lancetable.spark.jobs.compact import CompactJob
from lancetable.spark.jobs.delete import DeleteJob
from lancetable.spark.jobs.read import count_rows, plan_count, plan_frame
from lancetable.spark.jobs.update import UpdateJob
from lancetable.spark.merge import NullKeys, SparkMergeBuilder
from lancetable.spark.options import DEFAULT_BATCH_ROWS, DEFAULT_TASK_BYTES, SourceOptions
from lancetable.spark.pinned_version import PinnedVersion, pin_of
from lancetable.spark.reader import scan_options, scan_slices
from lancetable.spark.refs import SparkBranches, SparkTags
from lancetable.spark.schema_evolution import Evolution, fit_table
from lancetable.spark.sql import check_sql_text
from lancetable.spark.table_indexes import TableIndexes
from lancetable.spark.task_runner import Json, Runner, SparkRunner, init_worker, raise_failures
from lancetable.spark.types import spark_schema, table_schema, wire_schema
from lancetable.spark.write_table import write_table
from lancetable.types import AlterColumn


class SparkTable(TableIndexes):
    """A Lance table in a Spark session, created with `for_path`.

    Each method uses the version that is the newest one when it is called. Methods that change rows run again on the
    newest version if another commit changed the same rows.

    Parameters
    ----------
    spark, uri, storage_options, branch, runner, run_on
        As in `for_path`, which also checks that the table exists.
    conflict_retries
        Maximum number of retries of a change after conflicts.

    Examples
    --------
    >>> table = SparkTable.for_path(spark, "s3://bucket/t.lance")  # doctest: +SKIP
    >>> table.delete("price < 0")  # doctest: +SKIP
    >>> table.compact(target_rows_per_fragment=1_000_000)  # doctest: +SKIP
    """

    def __init__(
        self,
        spark: SparkSession,
        uri: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        branch: str | None = None,
        runner: Runner | None = None,
        run_on: DeployMode = "client",
        conflict_retries: int = 10,
    ) -> None:
        self._spark = spark
        self.options = SourceOptions(uri=uri, storage_options=dict(storage_options or {}), branch=branch)
        self.runner = runner or SparkRunner(spark)
        self.coordinator = coordinator_for(run_on, self.runner)
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
        run_on: DeployMode = "client",
    ) -> SparkTable:
        """Open the table at a path.

        Parameters
        ----------
        spark, path
            The session, and the address of the table.
        storage_options, branch
            As in `lancetable.dataset`.
        runner
            Runner of the tasks; by default, the executors of the session. See `lancetable.spark.task_runner`.
        run_on
            Process that plans and commits jobs: "client" for this process, or "cluster" for a task. The latter is for
            clients without access to the table's store and its credentials.

        Returns
        -------
        SparkTable
            The table.

        Raises
        ------
        DatasetNotFoundError, RefNotFoundError
            If the table or the branch does not exist.
        InvalidInputError
            If `run_on` is unknown.

        Examples
        --------
        >>> table = SparkTable.for_path(spark, "s3://bucket/t.lance")  # doctest: +SKIP
        >>> table.to_df(columns=["id"], filter="price > 10").show()  # doctest: +SKIP
        """
        table = cls(spark, str(path), storage_options=storage_options, branch=branch, runner=runner, run_on=run_on)
        table._call(attrgetter("version"))  # raises for a missing table or branch
        return table

    def __repr__(self) -> str:
        return f"SparkTable({self.options.uri!r})"

    def pin(self) -> PinnedVersion:
        """Return the newest version as a value that other processes can open.

        Returns
        -------
        PinnedVersion
            The version; `PinnedVersion.open` opens it.

        Raises
        ------
        DatasetNotFoundError, RefNotFoundError
            If the table or the branch does not exist.
        """
        return pin_of(self.options)

    @property
    def dataset(self) -> LanceDataset:
        """The newest version as a dataset of the library, for operations without Spark."""
        return LanceDataset.from_version(self.pin().open())

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
        target_rows_per_task: int | None = None,
        target_bytes_per_task: int = DEFAULT_TASK_BYTES,
    ) -> DataFrame:
        """Return the rows of one version as a frame.

        Parameters
        ----------
        columns, filter
            Columns to read, and a predicate in the library's SQL. Pass both where possible, because Spark pushes
            neither projections nor filters into the frame. Scalar indexes limit the rows that tasks read. Spark
            cannot estimate how many rows match `filter`; use `F.broadcast(frame)` in a join if they are few.
        version, tag, as_of
            The version to read; pass at most one of them. The newest version by default. It is selected by this call,
            not when the frame is computed.
        batch_size
            Rows of an Arrow batch.
        target_rows_per_task, target_bytes_per_task
            Limits of a task. By default, a classic session has about one task per core.

        Returns
        -------
        DataFrame
            The rows, in the order of the table.

        Raises
        ------
        InvalidInputError
            If more than one of `version`, `tag` and `as_of` is given.
        ColumnNotFoundError, InvalidSqlError, VersionNotFoundError
            If a column or the version does not exist, or the filter is invalid.
        UnsupportedFeatureError
            If Spark cannot represent the type of a column.

        Examples
        --------
        >>> table.to_df(["id", "price"], "price > 10", version=3)  # doctest: +SKIP
        """
        return self._frame(
            replace(self._options_at(version, tag, as_of), batch_rows=batch_size),
            columns=None if columns is None else list(columns),
            filter=filter,
            task_rows=target_rows_per_task,
            task_bytes=target_bytes_per_task,
        )

    def _options_at(self, version: int | None, tag: str | None, as_of: datetime | str | None) -> SourceOptions:
        """Return the options of a read of one version.

        Raises
        ------
        InvalidInputError
            If more than one of the arguments is given.
        """
        if sum(selector is not None for selector in (version, tag, as_of)) > 1:
            raise InvalidInputError("pass at most one of version, tag and as_of")
        time = as_of.isoformat() if isinstance(as_of, datetime) else as_of
        return replace(self.options, version=version, tag=tag, timestamp_as_of=time)

    def _frame(
        self, options: SourceOptions, filter: str | None = None, task_bytes: int = DEFAULT_TASK_BYTES, **how: Any
    ) -> DataFrame:
        plan = self._call(plan_frame, options, filter=filter, task_bytes=task_bytes, cores=self.cores(), **how)
        pin, schema = pin_of_plan(self.options, plan), schema_from_string(plan["schema"])
        scan = scan_options(schema.names, filter, options.batch_rows)
        read = partial(read_slices, partial(scan_slices, pin, scan))
        return self.scan(plan["tasks"], read, spark_schema(schema), plan["without_nulls"])

    @property
    def schema(self) -> StructType:
        """The schema of the newest version."""
        return self.to_df().schema

    def create_view(self, name: str, **options: Any) -> DataFrame:
        """Create or replace a temporary view of one version, for Spark SQL.

        Parameters
        ----------
        name
            Name of the view.
        options
            Arguments of `to_df`. Pass `columns` if possible, because Spark reads all columns of the view.

        Returns
        -------
        DataFrame
            The frame of the view.

        Examples
        --------
        >>> table.create_view("prices", columns=["id", "price"])  # doctest: +SKIP
        >>> spark.sql("SELECT avg(price) FROM prices")  # doctest: +SKIP
        """
        frame = self.to_df(**options)
        frame.createOrReplaceTempView(name)
        return frame

    def changes(self, begin: int, end: int | None = None, *, key: str | Sequence[str] | None = None) -> DataFrame:
        """Return the rows that differ between two versions. Fragments that both versions contain are not read.

        Parameters
        ----------
        begin, end
            The versions. The result contains the changes after `begin`, up to and including `end`, which is the newest
            version by default.
        key
            Columns that identify a row; required for a table without stable row ids. With a key, a row is updated if
            its values differ. Without a key, it is updated if an update or a merge has written it.

        Returns
        -------
        DataFrame
            The columns of `end`, `_change_type` (insert, update_preimage, update_postimage or delete), and
            `_commit_version`, the version of the insert or of the last update. It is null for a delete, and for all
            rows if a key is passed.

        Raises
        ------
        InvalidInputError
            If the table has no stable row ids and no key is passed.
        ColumnNotFoundError, VersionNotFoundError
            If a version or a column of the key does not exist.
        Exception
            An error of Spark, when the frame is computed, if a key occurs twice in a version.

        Examples
        --------
        >>> table.changes(3).where("_change_type = 'delete'").show()  # doctest: +SKIP
        """
        keys = [key] if isinstance(key, str) else list(key or [])
        last = self._call(attrgetter("version")) if end is None else end
        older, newer = (
            self._frame(
                replace(self.options, version=version),
                columns=["*", *([] if keys else LINEAGE)],
                task_rows=None,
                other=other,
                needs_row_ids=not keys,
            )
            for version, other in ((begin, last), (last, begin))
        )
        return changed_rows(older, newer, keys)

    def scan(
        self,
        tasks: Sequence[Json],
        read: Callable[[Json, pa.Schema], Iterator[pa.RecordBatch]],
        schema: StructType,
        without_nulls: Collection[str] = (),
    ) -> DataFrame:
        """Return a frame of the batches that `read` yields for each task.

        `mapInArrow` returns the same rows as the data source in less time. Spark assumes that `mapInArrow` returns as
        many rows as its input has, and broadcasts a frame that it considers small. It estimates 8 bytes for each number
        of the input, and 16 bytes for a row. The input is therefore a range of twice as many numbers as there are rows,
        of which each task gets one.

        Parameters
        ----------
        tasks
            The tasks of a plan; see `lancetable.spark.jobs`.
        read
            Function that takes a task and the schema of batches, and yields the batches. It runs in tasks.
        schema
            The schema of the frame.
        without_nulls
            Columns to declare as not nullable inside of the plan, which saves Spark a check of every row: about a tenth
            of the CPU time of two columns. `read` must raise an error for nulls in them. In the returned frame they are
            nullable, as in the table: a union with an empty frame removes the declaration, so that it is not copied to
            new tables and files.

        Returns
        -------
        DataFrame
            The rows, in the order of the tasks.
        """
        if not tasks:
            return self._spark.createDataFrame([], schema)
        sent = StructType(
            [StructField(f.name, f.dataType, f.nullable and f.name not in without_nulls) for f in schema.fields]
        )
        wire = wire_schema(sent)
        encoded = [json.dumps(task) for task in tasks]
        rows = sum(stop - start for task in tasks for _, start, stop in task["slices"])
        numbers_per_task = max(1, min(2 * rows, _MAX_NUMBERS) // len(tasks))
        shift = numbers_per_task.bit_length() - 1  # a division for each number would take longer than narrow columns

        def read_some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            init_worker()
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from read(json.loads(encoded[number >> shift]), wire)

        numbers = self._spark.range(0, len(tasks) << shift, 1, len(tasks)).where(f"(id & {(1 << shift) - 1}) = 0")
        frame = numbers.mapInArrow(read_some, sent)
        if sent == schema:
            return frame
        # An empty frame without tasks. It is a union itself, because Spark 4.3 compiles a union that has no union below
        # it, and then copies each row.
        nothing = self._spark.range(0, 0, 1, 1)
        return frame.union(nothing.union(nothing).mapInArrow(read_some, schema))

    def count_rows(self, filter: str | None = None) -> int:
        """Return the number of rows. Without `filter`, only the manifest is read.

        Parameters
        ----------
        filter
            Predicate in the library's SQL. Tasks count the rows for which it is true.

        Returns
        -------
        int
            The number of rows.

        Raises
        ------
        InvalidSqlError, ColumnNotFoundError
            If the predicate does not fit the table.

        Examples
        --------
        >>> table.count_rows("price > 10")  # doctest: +SKIP
        """
        plan = self._call(plan_count, filter=filter)
        if "rows" in plan:
            return int(plan["rows"])
        work = partial(count_rows, pin_of_plan(self.options, plan), filter)
        return sum(result["rows"] for result in raise_failures(self.runner.run(work, plan["tasks"])))

    count = count_rows  # the name in Spark frames

    # ----------------------------------------------------------------------------------------------------- changing

    def insert(self, rows: DataFrame, *, txn: tuple[str, int] | None = None) -> None:
        """Append a frame; see `write_table`.

        Parameters
        ----------
        rows
            The frame, with columns of the table.
        txn
            Name of an application and number of its change. A change that is already committed is not repeated.

        Raises
        ------
        Exception
            An error of Spark. Its message contains SchemaMismatchError if rows do not fit the table.

        Examples
        --------
        >>> table.insert(spark.createDataFrame([(1, 2.5)], "id bigint, price double"))  # doctest: +SKIP
        """
        path = self._call(attrgetter("uri"))  # address of the branch
        write_table(rows, path, "append", storage_options=self.options.storage_options, txn=txn)

    def delete(self, predicate: str, *, txn: tuple[str, int] | None = None) -> int:
        """Delete the rows for which `predicate` is true. Tasks write the deletion files.

        Parameters
        ----------
        predicate
            Predicate in the library's SQL.
        txn
            Name of an application and number of its change. A change that is already committed is not repeated.

        Returns
        -------
        int
            The number of deleted rows, 0 for a repeated change.

        Raises
        ------
        InvalidInputError
            If the predicate is a Column of Spark.
        InvalidSqlError, ColumnNotFoundError
            If the predicate does not fit the table.
        RetryableCommitConflictError
            If every attempt lost against another commit.

        Examples
        --------
        >>> table.delete("id < 10", txn=("daily clean", 7))  # doctest: +SKIP
        """
        check_sql_text(predicate=predicate)
        return int(self._change(DeleteJob(self.options, txn, predicate))["rows"])

    def update(self, set: Mapping[str, str], where: str | None = None, *, txn: tuple[str, int] | None = None) -> int:
        """Set columns to the values of SQL expressions in the rows for which `where` is true.

        Parameters
        ----------
        set
            SQL expressions by column name.
        where
            SQL predicate; all rows by default.
        txn
            Name of an application and number of its change. A change that is already committed is not repeated.

        Returns
        -------
        int
            The number of updated rows, 0 for a repeated change.

        Raises
        ------
        InvalidInputError
            If an expression or the predicate is a Column of Spark.
        InvalidSqlError, ColumnNotFoundError
            If an expression or the predicate does not fit the table.
        RetryableCommitConflictError
            If every attempt lost against another commit.

        Examples
        --------
        >>> table.update(set={"v": "v + 1"}, where="id < 10")  # doctest: +SKIP
        """
        check_sql_text(where=where, **{f"set[{name!r}]": value for name, value in set.items()})
        return int(self._change(UpdateJob(self.options, txn, dict(set), where))["rows"])

    def merge(self, source: DataFrame, on: str | Sequence[str], *, null_keys: NullKeys = "refuse") -> SparkMergeBuilder:
        """Return a builder for a merge of a frame into the table.

        Parameters
        ----------
        source
            The frame, with columns of the table.
        on
            The key columns.
        null_keys
            Treatment of source rows with a null in a key. Such a row has no match, so each repeated merge would insert
            it again. "refuse" raises an error, "drop" drops and counts the rows, and "keep" inserts them every time.

        Returns
        -------
        SparkMergeBuilder
            The builder, which selects the actions.

        Raises
        ------
        InvalidInputError
            If `null_keys` is unknown.

        Examples
        --------
        >>> merge = table.merge(updates, "id").when_matched_update_all()  # doctest: +SKIP
        >>> merge.when_not_matched_insert_all().execute()  # doctest: +SKIP
        """
        keys = (on,) if isinstance(on, str) else tuple(on)
        return SparkMergeBuilder(self, source, keys, null_keys=null_keys)

    def fit_to(self, source: StructType, evolution: Evolution) -> tuple[pa.Schema, list[str]]:
        """Change the schema of the table so that a source can be merged, as far as `evolution` permits.

        Parameters
        ----------
        source
            The schema of the source.
        evolution
            The permitted changes.

        Returns
        -------
        tuple of pyarrow.Schema and list of str
            The fields of the table that the source has, in the order of the table, and descriptions of the changes.

        Raises
        ------
        SchemaMismatchError, InvalidSchemaError, UnsupportedFeatureError
            If the source does not fit the table.
        """
        fields, changes = self._call(_fit, source=table_schema(source), evolution=evolution)
        return schema_from_string(fields), changes

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
        """Add columns to all rows. Each task processes one fragment.

        The columns become visible when all fragments are done. Rows that other writers append during the call are
        included.

        Parameters
        ----------
        values
            SQL expressions by column name, or a function from a batch of `input_columns` to a batch of the new columns.
        schema
            The types of the columns that a function returns: an Arrow schema, a Spark schema, or DDL such as
            "emb array<float>".
        input_columns
            The columns that the function reads; all by default.
        vector_columns
            Dimensions of vector columns, by name.
        batch_size
            Rows of a batch.
        job
            Name of the job, by which a call with a function resumes an interrupted run. Expressions need no name.

        Returns
        -------
        int
            The number of fragments that an earlier run had completed.

        Raises
        ------
        InvalidInputError
            If a function has no schema, or a column exists.
        InvalidSqlError, ColumnNotFoundError
            If an expression does not fit the table.

        Examples
        --------
        >>> table.add_columns({"total": "price * amount"})  # doctest: +SKIP
        >>> table.add_columns(embed, "emb array<float>", input_columns=["text"], job="embed 1")  # doctest: +SKIP
        """
        new = None
        if isinstance(values, Mapping):
            values = dict(values)
            name = job or hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        elif schema is None:
            raise InvalidInputError("missing argument: schema, the types of the columns that the function returns")
        else:
            name = job or str(uuid.uuid4())
            if isinstance(schema, str):
                schema = self._spark.createDataFrame([], schema).schema
            new = schema if isinstance(schema, pa.Schema) else table_schema(schema, dict(vector_columns or {}))
        columns = None if input_columns is None else tuple(input_columns)
        add_columns = AddColumnsJob(self.options, None, values, new, columns, batch_size, name)
        return int(self._change(add_columns)["reused"])

    def alter_columns(self, *alterations: AlterColumn) -> None:
        """Rename columns, change their types, or make them nullable; see `LanceDataset.alter_columns`.

        Parameters
        ----------
        *alterations
            Dicts with the key `path` and any of `name`, `nullable` and `data_type` (an Arrow type). One process
            rewrites the columns whose types change.

        Raises
        ------
        ColumnNotFoundError, SchemaMismatchError, InvalidOperationError
            If a column does not exist, or if its values do not fit.
        RetryableCommitConflictError
            If every attempt lost against another commit.

        Examples
        --------
        >>> table.alter_columns({"path": "v", "name": "value"})  # doctest: +SKIP
        """
        self._retried(methodcaller("alter_columns", *alterations))

    def drop_columns(self, columns: Sequence[str]) -> None:
        """Remove columns from the schema.

        Parameters
        ----------
        columns
            Names of the columns.

        Raises
        ------
        ColumnNotFoundError, InvalidInputError
            If a column does not exist, or if no column would remain.
        RetryableCommitConflictError
            If every attempt lost against another commit.
        """
        self._retried(LanceDataset.drop_columns, columns=columns)

    # -------------------------------------------------------------------------------------------------- maintenance

    def compact(self, **options: Any) -> CompactionMetrics:
        """Rewrite small adjacent fragments, and those with many deleted rows, in tasks. Indexes remain valid.

        Parameters
        ----------
        options
            As in `LanceDataset.optimize.compact_files`, for instance `target_rows_per_fragment=1_000_000`.

        Returns
        -------
        CompactionMetrics
            Counts of removed and added fragments and files.

        Raises
        ------
        InvalidInputError
            If an option is unknown.
        """
        known = CompactionOptions.__annotations__
        for name in options:
            if name not in known:
                raise InvalidInputError(f"unknown option {name!r} of compact; valid options: {', '.join(known)}")
        return CompactionMetrics(**self._change(CompactJob(self.options, None, options)))

    optimize = compact  # the name in Delta

    def vacuum(
        self,
        older_than_days: float | None = None,
        *,
        retain_versions: int | None = None,
        delete_unverified: bool = False,
    ) -> CleanupStats:
        """Remove old versions and unreferenced files, including those of failed jobs. Tagged versions are kept.

        Parameters
        ----------
        older_than_days, retain_versions
            Minimum age of removed versions, and number of newest versions to keep; see
            `LanceDataset.cleanup_old_versions`.
        delete_unverified
            Also remove unreferenced files that are less than seven days old. A running job may need them.

        Returns
        -------
        CleanupStats
            Counts of removed versions and bytes.
        """
        older_than = None if older_than_days is None else timedelta(days=older_than_days)
        stats = self._call(
            LanceDataset.cleanup_old_versions,
            older_than=older_than,
            retain_versions=retain_versions,
            delete_unverified=delete_unverified,
            error_if_tagged_old_versions=False,
        )
        return CleanupStats(**stats)

    def migrate(self, data_storage_version: str = "stable") -> MigrationMetrics:
        """Migrate the table to a newer data format, in one process, without tasks; see `DatasetOptimizer.migrate`.

        Parameters
        ----------
        data_storage_version
            The data format.

        Returns
        -------
        MigrationMetrics
            Counts of changed fragments, of files, and of bytes.

        Raises
        ------
        InvalidInputError
            If the format is older than that of the table.
        UnsupportedFeatureError
            If a column cannot be converted.
        CommitConflictError
            If the table keeps changing.
        """
        return MigrationMetrics(**self._retried(_migrate, data_storage_version=data_storage_version))

    def restore(self, version: int | str) -> None:
        """Restore an older version as the newest.

        Parameters
        ----------
        version
            The number of the version, or its tag.

        Raises
        ------
        VersionNotFoundError, RefNotFoundError
            If the version or the tag does not exist.
        """
        self._retried(_restore, version=version)

    def tag(self, name: str, version: int | None = None) -> None:
        """Create or move a tag. A cleanup does not remove tagged versions.

        Parameters
        ----------
        name
            The tag.
        version
            The number of the version, the newest by default.

        Raises
        ------
        VersionNotFoundError
            If the version does not exist.
        InvalidRefError
            If the name is invalid.
        """
        self._call(_tag, name=name, version=version)

    @property
    def tags(self) -> SparkTags:
        """The tags of the table."""
        return SparkTags(self._call)

    @property
    def branches(self) -> SparkBranches:
        """The branches of the table."""
        return SparkBranches(self._call)

    # -------------------------------------------------------------------------------------------------- inspecting

    def detail(self) -> DataFrame:
        """Return one row that describes the newest version, as `detail` does in Delta.

        Returns
        -------
        DataFrame
            Address of the table, number and time of the version, time of the first version, numbers of rows, fragments
            and data files, bytes of the data files, data format, kind of row ids, and configuration. `created_at` is
            null if the first version was removed.
        """
        columns = (
            "format string, uri string, version bigint, created_at timestamp, last_modified timestamp, num_rows bigint,"
            " num_fragments bigint, num_files bigint, size_bytes bigint, data_storage_version string,"
            " has_stable_row_ids boolean, config map<string,string>"
        )
        uri, version, times, *rest = self._call(_detail)
        created_at, last_modified = (time and datetime.fromisoformat(time) for time in times)
        return self._spark.createDataFrame([("lance", uri, version, created_at, last_modified, *rest)], columns)

    def history(self) -> DataFrame:
        """Return the versions, newest first.

        Returns
        -------
        DataFrame
            One row per version: number, time, operation, read version, rows, data files and properties.
        """
        rows = [(number, datetime.fromisoformat(time), *rest) for number, time, *rest in self._call(_history)]
        columns = (
            "version bigint, timestamp timestamp, operation string, read_version bigint, num_rows bigint,"
            " num_data_files bigint, properties map<string,string>"
        )
        return self._spark.createDataFrame(rows, columns)

    def fragments(self) -> DataFrame:
        """Return the fragments of the newest version.

        Returns
        -------
        DataFrame
            One row per fragment: id, rows, deleted rows, data files and their size in bytes.
        """
        rows = [tuple(row) for row in self._call(_fragments)]
        columns = "fragment_id bigint, num_rows bigint, num_deleted bigint, files array<string>, size_bytes bigint"
        return self._spark.createDataFrame(rows, columns)

    # ---------------------------------------------------------------------------------------------------- internals

    def _change(self, job: TableJob) -> Json:
        return run_job(
            job,
            self.coordinator,
            partial(job.run, self.runner),
            conflict_retries=self._conflict_retries,
        )

    def _retried(self, function: Callable[..., Any], **arguments: Any) -> Any:
        """Call a function that commits. After a conflict, call it again with the newest version."""
        call, retries = partial(self._call, function, **arguments), self._conflict_retries
        return retried(call, self.options.uri, conflict_retries=retries, retry_timeout_s=RETRY_SECONDS)

    def cores(self) -> int | None:
        """Return the number of concurrent tasks; None in a Connect session, where it is unknown."""
        try:
            return int(self._spark.sparkContext.defaultParallelism)
        except PySparkException:
            return None

    def _call(self, function: Callable[..., Any], options: SourceOptions | None = None, **arguments: Any) -> Any:
        """Call a function in the process of the coordinator, with the version that the options select."""
        return self.coordinator.submit(partial(_call_on_dataset, options or self.options, function, arguments))["value"]


_MAX_NUMBERS = 1 << 25  # 256 MB: too large for a broadcast, and counted within 0.1 s


# Functions for `SparkTable._call`, which run on the client or on the cluster. They return JSON or a dataclass of JSON
# values.


def _call_on_dataset(options: SourceOptions, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Json:
    value = function(LanceDataset.from_version(pin_of(options).open()), **arguments)
    return {"value": asdict(value) if is_dataclass(value) and not isinstance(value, type) else value}


def _fit(dataset: LanceDataset, source: pa.Schema, evolution: Evolution) -> list[Any]:
    _, fields, changes = fit_table(dataset.table_version, source, evolution)
    return [schema_to_string(fields), changes]


def _migrate(dataset: LanceDataset, data_storage_version: str) -> MigrationMetrics:
    return dataset.optimize.migrate(data_storage_version)


def _detail(dataset: LanceDataset) -> list[Any]:
    fragments, first = dataset.get_fragments(), dataset.version_refs()[0]["version"]
    files = [file for fragment in fragments for file in fragment.data_files()]
    created = dataset.checkout_version(1).get_version()["timestamp"].isoformat() if first == 1 else None
    times = [created, dataset.get_version()["timestamp"].isoformat()]
    counts = [dataset.count_rows(), len(fragments), len(files), sum(file.file_size_bytes or 0 for file in files)]
    settings = [dataset.data_storage_version, dataset.has_stable_row_ids, dataset.config()]
    return [dataset.uri, dataset.version, times, *counts, *settings]


def _restore(dataset: LanceDataset, version: int | str) -> None:
    dataset.checkout_version(version).restore()


def _tag(dataset: LanceDataset, name: str, version: int | None) -> None:
    target = dataset.version if version is None else version
    if name in dataset.tags.list():
        dataset.tags.update(name, target)
    else:
        dataset.tags.create(name, target)


def _history(dataset: LanceDataset) -> list[list[Any]]:
    rows = []
    for entry in reversed(dataset.versions()):
        transaction = dataset.read_transaction(entry["version"])
        metadata = entry["metadata"]
        made_by: list[Any] = [None, None, {}]
        if transaction is not None:
            properties = dict(transaction.transaction_properties or {})
            operation = transaction.operation
            name = getattr(operation, "name", type(operation).__name__)  # LanceOperation.Other has a name
            made_by = [name, transaction.read_version, properties]
        totals = [int(metadata[name]) if name in metadata else None for name in ("total_rows", "total_data_files")]
        rows.append([entry["version"], entry["timestamp"].isoformat(), *made_by[:2], *totals, made_by[2]])
    return rows


def _fragments(dataset: LanceDataset) -> list[list[Any]]:
    return [
        [
            fragment.fragment_id,
            fragment.physical_rows - fragment.num_deletions,
            fragment.num_deletions,
            [file.path for file in fragment.data_files()],
            sum(file.file_size_bytes or 0 for file in fragment.data_files()),
        ]
        for fragment in dataset.get_fragments()
    ]
