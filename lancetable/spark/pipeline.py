"""Pipelines that keep a table up to date: ingest, clean, upsert, compact, vacuum.

    Files  ─┐ each file once
    Stream ─┼─► clean ─► newest row of each key ─► merge, one commit per batch ─► compact ─► vacuum
    Query  ─┘ rows newer than the table                       │
                                                             metrics: one row per step

A run may be stopped at any time and started again. A batch of files or of a stream is merged together with its number,
which the table records (`commit/idempotency.py`), so a batch that Spark repeats changes nothing. A run starts only if
the number fits the checkpoint (`checkpoint.py`). A query needs no checkpoint: it reads the rows from the greatest
cursor value in the table on, and merges them by key.

    flights = Pipeline(
        "flights", "s3://lake/flights.lance", key="id", newest_by="updated_at",
        source=Files("s3a://landing/flights", format="csv", options={"header": "true"}),
        checkpoint="s3a://lake/checkpoints/flights",
        clean=lambda df: df.where("id IS NOT NULL"),
        metrics="s3://lake/metrics.lance",
    )
    flights.run(spark)                  # or: python -m lancetable.spark run pipelines.py:flights

On Spark Connect, a process of the server merges the batches of a stream. `clean` and the source must then be picklable,
and the steps of these batches are reported only in `metrics`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the conventional alias

from lancetable import telemetry
from lancetable.argument_validation import check_choice
from lancetable.dataset import dataset, write_dataset
from lancetable.errors import AlreadyExistsError, DatasetNotFoundError, InvalidInputError, InvalidOperationError
from lancetable.ops.change.batch_history import follows
from lancetable.spark.checkpoint import accept_table, checkpoint_mismatch, read_checkpoint
from lancetable.spark.failures import named_failures
from lancetable.spark.file_batches import FileBatch, InferredSchema, open_batch
from lancetable.spark.merge.null_keys import NullKeys
from lancetable.spark.pipeline_sources import FILE, Files, Query, Source, Stream
from lancetable.spark.rejects import Rejects
from lancetable.spark.schema_evolution import Evolution, SchemaPolicy
from lancetable.spark.sql import quote_name
from lancetable.spark.table import SparkTable
from lancetable.spark.upsert import UpsertResult, upsert
from lancetable.spark.write_table import write_table

__all__ = [
    "METRICS_SCHEMA",
    "Files",
    "Pipeline",
    "Query",
    "RunReport",
    "Source",
    "Step",
    "Stream",
    "UpsertResult",
    "upsert",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """The result of one step of a run: a row of `METRICS_SCHEMA`.

    Attributes
    ----------
    step
        "upsert", "compact" or "vacuum".
    rows_read
        Rows of the batch, as returned by `clean`, and records that are rejected before `clean`. It is the sum of the
        seven counts below and `rows_rejected`.
    rows_inserted, rows_updated
        Rows that were written.
    rows_unchanged
        Rows that equal the stored row.
    rows_dropped
        Rows with a null in their key, which `null_keys="drop"` drops.
    rows_superseded
        Rows that were replaced by another row of the batch with the same key.
    rows_older
        Rows whose `newest_by` is less than that of the stored row.
    rows_without_order
        Rows whose `newest_by` is null while that of the stored row is not.
    rows_unparsed, unparsed
        Number of records with unparsable values, and number of such values by column. These values become null; with
        `rejects`, the records are rejected instead. A malformed record, such as a line with too few columns, is not
        counted by column.
    repeated
        True if an earlier run that was stopped had already merged the batch. It is not read again, and all counts are
        0.
    files_read, bytes_read
        Number of non-empty files of the batch, and their total size.
    files_removed, files_added
        For "compact", numbers of replaced files (data files and deletion files) and of new data files. For "vacuum",
        `files_removed` is the number of removed data files.
    rows_rejected
        Rejected rows; see the parameter `rejects` of `Pipeline`.
    schema_changes
        Descriptions of the changes of the table schema before the merge.
    """

    run: str
    pipeline: str
    step: str
    batch: int | None = None
    started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    seconds: float = 0.0
    rows_read: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    fragments_removed: int = 0
    fragments_added: int = 0
    versions_removed: int = 0
    bytes_removed: int = 0
    version: int = 0
    rows_unchanged: int = 0
    rows_dropped: int = 0
    rows_superseded: int = 0
    rows_older: int = 0
    rows_without_order: int = 0
    rows_unparsed: int = 0
    unparsed: Mapping[str, int] = field(default_factory=dict)
    repeated: bool = False
    files_read: int = 0
    bytes_read: int = 0
    files_removed: int = 0
    files_added: int = 0
    rows_rejected: int = 0
    schema_changes: Sequence[str] = ()

    def __str__(self) -> str:
        done = {
            "upsert": self._upserted(),
            "compact": f"{self.fragments_removed:,} fragments became {self.fragments_added:,}",
            "vacuum": f"{self.versions_removed:,} versions and {self.bytes_removed / 1e6:,.1f} MB removed",
        }[self.step]
        batch = "" if self.batch is None else f" {self.batch}"
        return f"{self.pipeline}: {self.step}{batch}: {done}, version {self.version} ({self.seconds:.1f} s)"

    def _upserted(self) -> str:
        if self.repeated:
            return "merged before"
        parts = [f"{self.rows_read:,} rows read", f"{self.rows_inserted:,} inserted", f"{self.rows_updated:,} updated"]
        others = {
            "unchanged": self.rows_unchanged,
            "dropped for a null key": self.rows_dropped,
            "superseded in the batch": self.rows_superseded,
            "older than the stored row": self.rows_older,
            "without order value": self.rows_without_order,
            "rejected": self.rows_rejected,
        }
        parts += [f"{rows:,} {name}" for name, rows in others.items() if rows]
        if self.rows_unparsed:
            values = ", ".join(f"{name}: {count:,}" for name, count in self.unparsed.items())
            parts.append(f"{self.rows_unparsed:,} records do not parse" + (f" ({values})" if values else ""))
        return ", ".join([*parts, *self.schema_changes])


_SUMS = [column.name for column in fields(Step) if column.type in ("int", "float") and column.name != "version"]


@dataclass(frozen=True)
class RunReport:
    """Report of a run: its steps and their totals, as readable text (`str`) or as JSON.

    Examples
    --------
    >>> print(RunReport(pipeline.run(spark)))  # doctest: +SKIP
    flights: upsert 0: 2 rows read, 2 inserted, 0 updated, version 3 (1.2 s)
    total: 1 steps, rows_read 2, rows_inserted 2, files_read 1, bytes_read 20, version 3 (1.2 s)
    """

    steps: Sequence[Step]

    @property
    def total(self) -> dict[str, float]:
        """Sums of the counts and seconds of all steps, and the version of the last step."""
        sums = {name: sum(getattr(step, name) for step in self.steps) for name in _SUMS}
        return {**sums, "version": self.steps[-1].version if self.steps else 0}

    def __str__(self) -> str:
        return "\n".join(map(str, [*self.steps, self.summary()]))

    def summary(self) -> str:
        """Return the totals that are not 0.

        Returns
        -------
        str
            One line.
        """
        total = self.total
        seconds = total.pop("seconds")
        shown = "".join(f", {name} {number:,}" for name, number in total.items() if number)
        return f"total: {len(self.steps)} steps{shown} ({seconds:.1f} s)"

    def json(self) -> str:
        """Return {"steps": [...], "total": {...}} as JSON. The names are the fields of `Step`.

        Returns
        -------
        str
            A JSON object. Times are in ISO 8601.
        """
        return json.dumps({"steps": [asdict(step) for step in self.steps], "total": self.total}, default=str)


_METRIC_TYPES = {
    "str": pa.string(),
    "int": pa.int64(),
    "int | None": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "datetime": pa.timestamp("us", "UTC"),
    "Mapping[str, int]": pa.string(),
    "Sequence[str]": pa.string(),
}
METRICS_SCHEMA = pa.schema([(column.name, _METRIC_TYPES[str(column.type)]) for column in fields(Step)])
"""Columns of the metrics table, which has one row for each step. `unparsed` and `schema_changes` are JSON strings."""


@dataclass(frozen=True)
class Pipeline:
    """A table, its source, and the steps of a run.

    Parameters
    ----------
    name : str
        Name of the pipeline in metrics and in the numbers of its batches.
    table : str
        Address of the table. The first batch creates it.
    source : Files, Stream or Query
    key : str or sequence of str
        The columns that identify a row.
    checkpoint : str, optional
        Directory in which Spark records the data that was read; required for `Files` and `Stream`. With a new
        directory, all data is read and merged again.
    clean : function, optional
        Function that converts the frame that was read to the frame to merge.
    newest_by : str, optional
        See `upsert`. For a `Query`, the cursor by default.
    null_keys : {"refuse", "drop", "keep"}
        Treatment of rows with a null in a key column; see `upsert`. With "keep", such rows are inserted again each time
        they are read. With `rejects`, "refuse" rejects the rows instead of raising an error.
    schema : {"fixed", "add", "evolve"}
        Permitted changes of the table schema; see `upsert`.
    compact : mapping or None
        Options of `SparkTable.compact`; None disables compaction.
    keep_days : float or None
        Age in days from which versions, and files of failed jobs, are removed; None disables the removal.
    vector_columns, storage_options
        Vector columns of a new table; options of the store.
    metrics : str, optional
        Address of a table to which each step is added, as a row of `METRICS_SCHEMA`. A failure to do so is logged as a
        warning.
    rejects : str, optional
        Address of a table to which rows that cannot be merged are written; the other rows of the batch are merged. Such
        rows are unparsable records, rows with a null in the key or in another required column, and rows with a value
        that does not fit the type of its column. The table has the columns `pipeline`, `stream`, `batch`, `time`,
        `file` (null if unknown), `row` (an unparsable record as it was read, any other row as JSON after `clean`), and
        `reason`. After a batch is merged, the table contains each of its rejected rows once. With `Files`, the frame
        that `clean` receives has the additional column `_lancetable_file`. If `clean` drops this column, the file is
        known only for unparsable records.
    max_reject_share : float, optional
        Maximum share of rejected rows in a batch, from 0 to 1. A batch that exceeds it stops the run; none of its rows
        are merged or written to `rejects`.
    """

    name: str
    table: str
    source: Source
    key: str | Sequence[str]
    checkpoint: str | None = None
    clean: Callable[[DataFrame], DataFrame] | None = None
    newest_by: str | None = None
    compact: Mapping[str, Any] | None = field(default_factory=dict)
    keep_days: float | None = 7.0
    vector_columns: Mapping[str, int] | None = None
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    metrics: str | None = None
    null_keys: NullKeys = "refuse"
    rejects: str | None = None
    max_reject_share: float | None = None
    schema: SchemaPolicy = "fixed"

    def __post_init__(self) -> None:
        if not isinstance(self.source, Query) and self.checkpoint is None:
            raise InvalidInputError(
                f"pipeline {self.name!r} reads files or a stream: pass checkpoint, a directory in which Spark records"
                " its progress"
            )
        for address in (self.checkpoint, self.table, self.metrics, self.rejects):
            if isinstance(self.source, Files) and address is not None and _is_below(address, self.source.path):
                raise InvalidInputError(
                    f"{address} is below {self.source.path}, whose files are read as data: choose a location outside"
                )
        check_choice("null_keys", self.null_keys, NullKeys)
        if self.max_reject_share is not None and (self.rejects is None or not 0 <= self.max_reject_share <= 1):
            raise InvalidInputError(
                f"max_reject_share must be from 0 to 1 and requires rejects, the table of rejected rows; got"
                f" max_reject_share={self.max_reject_share}, rejects={self.rejects!r}"
            )
        Evolution(self.schema)  # raises for an unknown policy

    def run(
        self,
        spark: SparkSession,
        progress: Callable[[Step], None] | None = None,
        *,
        continue_from_checkpoint: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[Step]:
        """Merge all new data, then compact and vacuum the table.

        Parameters
        ----------
        spark
            A classic or Connect session.
        progress
            Function that is called with each completed step. By default, steps are logged.
        continue_from_checkpoint
            Accept a table that does not fit the checkpoint, for example after a restore, and continue after the last
            batch that the checkpoint has completed. Pass it for one run only. The difference is logged as a warning.
        stop
            Function that is called before each batch of files or of a stream, before compaction and before vacuum. If
            it returns True, the run ends, and the next run resumes there. An example is the method `is_set` of a
            `threading.Event`. On Connect, the function must be picklable.

        Returns
        -------
        list of Step
            The steps, in order. `RunReport` adds up their counts.

        Raises
        ------
        InvalidOperationError
            If table and checkpoint are out of sync, because one of them was removed, moved, replaced or restored since
            the last batch, or the table was overwritten. Also if a key is null and `null_keys` is "refuse" without
            `rejects`, or if the share of rejected rows exceeds `max_reject_share`.
        LanceError
            For any other error. The message has the form "orders failed in batch 3: cause", and the error of Spark or
            of `clean` is the cause of the exception. Committed batches are kept, and the next run continues after them.
        """
        steps = _Steps(self, str(uuid.uuid4()), progress)
        with named_failures(self.name):
            return self._run(spark, steps, continue_from_checkpoint, stop)

    def _run(self, spark: SparkSession, steps: _Steps, accepts_table: bool, stop: Callable[[], bool]) -> list[Step]:
        if isinstance(self.source, Query):
            self._run_query(spark, self.source, steps)
        else:
            self._run_stream(spark, self.source, steps, accepts_table, stop)
        table = self._existing(spark)
        if table is None or stop():
            return steps.done  # there was no batch yet, or the run is stopped
        if self.compact is not None:
            with steps.step("compact", table=table) as step:
                metrics = table.compact(**self.compact)
                step.counts.update(asdict(metrics))
        if self.keep_days is not None and not stop():
            with steps.step("vacuum", table=table) as step:
                stats = table.vacuum(self.keep_days)
                step.counts.update(versions_removed=stats.old_versions, bytes_removed=stats.bytes_removed)
                step.counts.update(files_removed=stats.data_files_removed)
        return steps.done

    def _run_query(self, spark: SparkSession, source: Query, steps: _Steps) -> None:
        with steps.step("upsert") as step:
            table, since = self._existing(spark), None
            if table is not None:
                since = table.to_df([source.cursor]).agg(F.max(F.col(quote_name(source.cursor)))).collect()[0][0]
            rows = source.read(spark, since)
            rows = rows if self.clean is None else self.clean(rows)
            step.table = self._created(rows) if table is None else table
            self._upsert(step, FileBatch(rows), rows, None)

    def _run_stream(
        self,
        spark: SparkSession,
        source: Files | Stream,
        steps: _Steps,
        accepts_table: bool,
        stop: Callable[[], bool],
    ) -> None:
        path = str(self.checkpoint)
        checkpoint = read_checkpoint(spark, path)
        run = _StreamRun(None if checkpoint is None else checkpoint.stream_id)
        if checkpoint is not None:
            table, app = self._existing(spark), self._app(checkpoint.stream_id)
            problem = checkpoint_mismatch(None if table is None else table.dataset, self.table, app, checkpoint)
            if problem is not None:
                if not accepts_table:
                    raise InvalidOperationError(problem)
                logger.warning(
                    "%s: continue_from_checkpoint accepts: %s",
                    self.name,
                    problem,
                    extra=telemetry.fields("pipeline.checkpoint_accepted", pipeline=self.name),
                )
                if table is None:
                    run.creates_after = checkpoint.completed
                else:
                    accept_table(table.dataset, app, checkpoint.completed)

        def merge(frame: DataFrame, number: int) -> None:
            if stop():
                raise _StopRequestedError  # Spark records a batch as complete if its function returns
            try:
                with steps.step("upsert", number) as step:
                    self._merge_batch(step, frame, number, run)
            except Exception as error:
                run.failure = error
                raise

        stream = source.stream(spark) if isinstance(source, Files) else source.read(spark)
        writer = stream.writeStream.foreachBatch(merge).option("checkpointLocation", path)
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        except PySparkException as error:
            # Spark keeps the message of an error of a batch, but not its type.
            if _StopRequestedError.__name__ in str(error):
                return
            if run.failure is None:  # on Connect, or if the error was not raised in a batch
                raise
            raise run.failure  # noqa: B904  # it has a cause already

    def _merge_batch(self, step: _RunningStep, frame: DataFrame, number: int, run: _StreamRun) -> None:
        """Merge a batch of a stream unless it was merged before.

        Raises
        ------
        InvalidOperationError
            If the table was removed during the run.
        """
        spark = frame.sparkSession
        if run.stream_id is None:
            started = read_checkpoint(spark, str(self.checkpoint))
            assert started is not None, "Spark writes the stream's id before the first batch"
            run.stream_id = started.stream_id
        app = self._app(run.stream_id)
        step.table = self._existing(spark)
        if step.table is None and number > 0 and run.creates_after != number - 1:
            raise InvalidOperationError(
                f"batch {number} is not the next batch: there is no table at {self.table}. It was removed or moved"
                " during the run: restore it, or start again with a new checkpoint, which reads everything"
            )
        if step.table is not None and not follows(step.table.dataset.table_version, app, number, remedy=_REMEDY):
            step.counts.update(repeated=True)
            return
        with ExitStack() as stack:
            batch = FileBatch(frame)
            if isinstance(self.source, Files):
                rejects = self.rejects is not None
                batch = stack.enter_context(open_batch(self.source, spark, frame, run.inferred, rejects=rejects))
            step.files += batch.paths
            rows = self._rows(batch, step.table)
            if step.table is None:
                step.table = self._created(rows)
                accept_table(step.table.dataset, app, number - 1)
            step.counts.update(rows_unparsed=batch.rows_unparsed, unparsed=batch.unparsed)
            step.counts.update(files_read=batch.files_read, bytes_read=batch.bytes_read)
            self._upsert(step, batch, rows, (app, number))

    def _rows(self, batch: FileBatch, table: SparkTable | None) -> DataFrame:
        if batch.rows is not None:
            return batch.rows if self.clean is None else self.clean(batch.rows)
        if table is None:
            assert isinstance(self.source, Files)
            raise InvalidInputError(
                f"the files of {self.source.path} have no records to infer a schema from, and there is no table yet:"
                " pass schema to Files"
            )
        return table.to_df().limit(0)

    def _app(self, stream_id: str) -> str:
        """Return the name under which the table records the batches of a stream."""
        return f"pipeline {self.name} stream:{stream_id}"

    def _created(self, rows: DataFrame) -> SparkTable:
        """Create an empty table with the schema of `rows`."""
        vectors, storage = self.vector_columns, self.storage_options
        write_table(rows.drop(FILE).limit(0), self.table, "ignore", vector_columns=vectors, storage_options=storage)
        return self._opened(rows.sparkSession)

    def _upsert(self, step: _RunningStep, batch: FileBatch, rows: DataFrame, txn: tuple[str, int] | None) -> None:
        assert step.table is not None
        keys = [self.key] if isinstance(self.key, str) else list(self.key)
        cursor = self.source.cursor if isinstance(self.source, Query) else None
        persist, rejected = not (batch.is_persisted and self.clean is None), 0
        evolution = Evolution(self.schema, origins=batch.origins)
        schema, changes = step.table.fit_to(rows.drop(FILE).schema, evolution)
        with ExitStack() as stack:
            if self.rejects is not None:
                rejects = Rejects(self.rejects, self.name, txn, self.max_reject_share, self.storage_options)
                required = keys if self.null_keys == "refuse" else []
                removed = rejects.removed(batch, rows, schema, required, persist=persist)
                (rows, rejected), persist = stack.enter_context(removed), False
            result = upsert(
                step.table,
                rows,
                keys,
                newest_by=self.newest_by or cursor,
                null_keys=self.null_keys,
                txn=txn,
                consecutive=txn is not None,
                persist=persist,
            )
        if result["repeated"]:  # a concurrent run has merged the batch
            step.counts = {"repeated": True}
            return
        step.counts.update({metric: result[number] for metric, number in _UPSERT_METRICS.items()})  # type: ignore[literal-required]  # keys of an UpsertResult
        step.counts.update(rows_read=result["num_source_rows"] + rejected, rows_rejected=rejected)
        step.counts.update(schema_changes=changes)

    def _opened(self, spark: SparkSession) -> SparkTable:
        return SparkTable.for_path(spark, self.table, storage_options=self.storage_options)

    def _existing(self, spark: SparkSession) -> SparkTable | None:
        try:
            return self._opened(spark)
        except DatasetNotFoundError:
            return None


_REMEDY = "continue_from_checkpoint=True for one run"
_UPSERT_METRICS = {
    "rows_read": "num_source_rows",
    "rows_inserted": "num_inserted_rows",
    "rows_updated": "num_updated_rows",
    "rows_unchanged": "num_unchanged_rows",
    "rows_dropped": "num_null_key_rows",
    "rows_superseded": "num_superseded_rows",
    "rows_older": "num_older_rows",
    "rows_without_order": "num_rows_without_order",
}


class _StopRequestedError(Exception):
    """Raised instead of starting a batch, because a stop was requested."""


@dataclass
class _StreamRun:
    """The state of a stream in one run.

    `stream_id` is None until Spark has written it. A missing table may be created only after batch `creates_after`.
    `failure` is the error of a batch, because Spark raises another error instead.
    """

    stream_id: str | None
    creates_after: int | None = None
    inferred: InferredSchema = field(default_factory=InferredSchema)
    failure: Exception | None = None


@dataclass
class _RunningStep:
    """A step in progress: its table, if it exists yet, its files, and its counts by field name of `Step`."""

    table: SparkTable | None
    files: list[str] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)


class _Steps:
    """The completed steps of one run."""

    def __init__(self, pipeline: Pipeline, run: str, progress: Callable[[Step], None] | None) -> None:
        self._pipeline, self._run = pipeline, run
        self._progress = progress or partial(logger.info, "%s")
        self.done: list[Step] = []

    @contextmanager
    def step(self, name: str, batch: int | None = None, table: SparkTable | None = None) -> Iterator[_RunningStep]:
        """Time a step, report it if it succeeds, and add it to the table of metrics."""
        started, start = Step(self._run, self._pipeline.name, name, batch), time.perf_counter()
        running = _RunningStep(table)
        place = name if batch is None else f"batch {batch}"
        with named_failures(self._pipeline.name, f" in {place}", running.files):
            yield running
        assert running.table is not None, "a step that succeeds has a table"
        seconds, version = time.perf_counter() - start, running.table.dataset.version
        done = replace(started, **running.counts, seconds=seconds, version=version)
        self.done.append(done)
        self._progress(done)
        uri, storage_options = self._pipeline.metrics, dict(self._pipeline.storage_options or {}) or None
        if uri is None:
            return
        values = {name: json.dumps(getattr(done, name)) for name in ("unparsed", "schema_changes")}
        row = pa.Table.from_pylist([{**asdict(done), **values}], METRICS_SCHEMA)
        try:
            try:
                write_dataset(row, uri, storage_options=storage_options)
            except AlreadyExistsError:
                # Tables of earlier releases have fewer columns.
                metrics = dataset(uri, storage_options=storage_options)
                write_dataset(row, metrics, mode="append", schema_mode="merge")
        except Exception as error:  # of the library or of a store; the step is committed
            logger.warning(
                "%s: step not written to the metrics table %s: %s",
                self._pipeline.name,
                uri,
                error,
                extra=telemetry.fields("pipeline.metrics_lost", uri, pipeline=self._pipeline.name),
            )


def _is_below(address: str, folder: str) -> bool:
    def plain(path: str) -> str:
        path = re.sub(r"^file:/*", "/", re.sub(r"^s3[an]:", "s3:", path))
        return path if "://" in path else os.path.abspath(path)

    return f"{plain(address)}/".startswith(f"{plain(folder).rstrip('/')}/")
