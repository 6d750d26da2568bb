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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the conventional alias

from lancetable.dataset import dataset, write_dataset
from lancetable.errors import AlreadyExistsError, DatasetNotFoundError, InvalidInputError, InvalidOperationError
from lancetable.ops.change.batch_history import follows
from lancetable.spark.checkpoint import accept_table, out_of_step, read_checkpoint
from lancetable.spark.file_batches import FileBatch, InferredSchema, open_batch
from lancetable.spark.merge.null_keys import NullKeys, check_null_keys
from lancetable.spark.pipeline_sources import Files, Query, Source, Stream
from lancetable.spark.sql import quote_name
from lancetable.spark.table import SparkTable
from lancetable.spark.upsert import UpsertResult, upsert
from lancetable.spark.write_table import write_table

__all__ = ["METRICS_SCHEMA", "Files", "Pipeline", "Query", "Source", "Step", "Stream", "UpsertResult", "upsert"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """The result of one step of a run: a row of `METRICS_SCHEMA`.

    Attributes
    ----------
    step
        "upsert", "compact" or "vacuum".
    rows_read
        Rows of the batch, as returned by `clean`. It is the sum of the seven counts below.
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
        Number of records with unparsable values, and number of such values by column. These values become null. A
        malformed record, such as a line with too few columns, is not counted by column.
    repeated
        True if an earlier run that was stopped had already merged the batch. It is not read again, and all counts are
        0.
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
        }
        parts += [f"{rows:,} {name}" for name, rows in others.items() if rows]
        if self.rows_unparsed:
            values = ", ".join(f"{name}: {count:,}" for name, count in self.unparsed.items())
            parts.append(f"{self.rows_unparsed:,} records do not parse" + (f" ({values})" if values else ""))
        return ", ".join(parts)


_METRIC_TYPES = {
    "str": pa.string(),
    "int": pa.int64(),
    "int | None": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "datetime": pa.timestamp("us", "UTC"),
    "Mapping[str, int]": pa.string(),
}
METRICS_SCHEMA = pa.schema([(column.name, _METRIC_TYPES[str(column.type)]) for column in fields(Step)])
"""The columns of the table of metrics: one row for each step of a run. `unparsed` is a JSON object."""


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
        they are read.
    compact : mapping or None
        Options of `SparkTable.compact`; None disables compaction.
    keep_days : float or None
        Age in days from which versions, and files of failed jobs, are removed; None disables the removal.
    vector_columns, storage_options
        Vector columns of a new table; options of the store.
    metrics : str, optional
        Address of a table to which each step is added, as a row of `METRICS_SCHEMA`.
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

    def __post_init__(self) -> None:
        if not isinstance(self.source, Query) and self.checkpoint is None:
            raise InvalidInputError(
                f"pipeline {self.name!r} reads files or a stream: pass checkpoint, a directory in which Spark records"
                " what was read"
            )
        for address in (self.checkpoint, self.table, self.metrics):
            if isinstance(self.source, Files) and address is not None and _is_below(address, self.source.path):
                raise InvalidInputError(
                    f"{address} is below {self.source.path}, whose files are read as data: choose a place outside of it"
                )
        check_null_keys(self.null_keys)

    def run(
        self,
        spark: SparkSession,
        progress: Callable[[Step], None] | None = None,
        *,
        continue_from_checkpoint: bool = False,
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

        Returns
        -------
        list of Step
            The steps, in order.

        Raises
        ------
        InvalidOperationError
            If table and checkpoint are out of sync, because one of them was removed, moved, replaced or restored since
            the last batch, or the table was overwritten. Also if a key is null and `null_keys` is "refuse".
        Exception
            Any error of Spark or of the table. Committed batches are kept, and the next run continues after them.
        """
        steps = _Steps(self, str(uuid.uuid4()), progress)
        if isinstance(self.source, Query):
            self._run_query(spark, self.source, steps)
        else:
            self._run_stream(spark, self.source, steps, continue_from_checkpoint)
        table = self._existing(spark)
        if table is None:
            return steps.done  # there was no batch yet
        if self.compact is not None:
            with steps.step("compact", table=table) as step:
                metrics = table.compact(**self.compact)
                step.counts.update(fragments_removed=metrics.fragments_removed, fragments_added=metrics.fragments_added)
        if self.keep_days is not None:
            with steps.step("vacuum", table=table) as step:
                stats = table.vacuum(self.keep_days)
                step.counts.update(versions_removed=stats.old_versions, bytes_removed=stats.bytes_removed)
        return steps.done

    def _run_query(self, spark: SparkSession, source: Query, steps: _Steps) -> None:
        with steps.step("upsert") as step:
            table, since = self._existing(spark), None
            if table is not None:
                since = table.to_df([source.cursor]).agg(F.max(F.col(quote_name(source.cursor)))).collect()[0][0]
            rows = source.read(spark, since)
            rows = rows if self.clean is None else self.clean(rows)
            step.table = self._created(rows) if table is None else table
            self._upsert(step, rows, None)

    def _run_stream(self, spark: SparkSession, source: Files | Stream, steps: _Steps, accepts_table: bool) -> None:
        path = str(self.checkpoint)
        checkpoint = read_checkpoint(spark, path)
        run = _StreamRun(None if checkpoint is None else checkpoint.stream_id)
        if checkpoint is not None:
            table, app = self._existing(spark), self._app(checkpoint.stream_id)
            problem = out_of_step(None if table is None else table.dataset, self.table, app, checkpoint)
            if problem is not None:
                if not accepts_table:
                    raise InvalidOperationError(problem)
                logger.warning("%s: continue_from_checkpoint accepts: %s", self.name, problem)
                if table is None:
                    run.creates_after = checkpoint.completed
                else:
                    accept_table(table.dataset, app, checkpoint.completed)

        def merge(frame: DataFrame, number: int) -> None:
            with steps.step("upsert", number) as step:
                self._merge_batch(step, frame, number, run)

        stream = source.stream(spark) if isinstance(source, Files) else source.read(spark)
        writer = stream.writeStream.foreachBatch(merge).option("checkpointLocation", path)
        writer.trigger(availableNow=True).start().awaitTermination()

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
                f"batch {number} does not follow: there is no table at {self.table}. It was removed or moved during the"
                f" run: restore it, or start again with a new checkpoint, which reads everything"
            )
        if step.table is not None and not follows(step.table.dataset.table_version, app, number, remedy=_REMEDY):
            step.counts.update(repeated=True)
            return
        with ExitStack() as stack:
            batch = FileBatch(frame)
            if isinstance(self.source, Files):
                batch = stack.enter_context(open_batch(self.source, spark, frame, run.inferred))
            rows = self._rows(batch, step.table)
            if step.table is None:
                step.table = self._created(rows)
                accept_table(step.table.dataset, app, number - 1)
            step.counts.update(rows_unparsed=batch.rows_unparsed, unparsed=batch.unparsed)
            persist = not (batch.is_persisted and self.clean is None)
            self._upsert(step, rows, (app, number), persist=persist)

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
        write_table(rows.limit(0), self.table, "ignore", vector_columns=vectors, storage_options=storage)
        return self._opened(rows.sparkSession)

    def _upsert(
        self, step: _RunningStep, rows: DataFrame, txn: tuple[str, int] | None, *, persist: bool = True
    ) -> None:
        assert step.table is not None
        keys = [self.key] if isinstance(self.key, str) else list(self.key)
        cursor = self.source.cursor if isinstance(self.source, Query) else None
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


@dataclass
class _StreamRun:
    """The state of a stream in one run.

    `stream_id` is None until Spark has written it. A missing table may be created only after batch `creates_after`.
    """

    stream_id: str | None
    creates_after: int | None = None
    inferred: InferredSchema = field(default_factory=InferredSchema)


@dataclass
class _RunningStep:
    """A step in progress: its table, if it exists yet, and its counts by field name of `Step`."""

    table: SparkTable | None
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
        yield running
        assert running.table is not None, "a step that succeeds has a table"
        seconds, version = time.perf_counter() - start, running.table.dataset.version
        done = replace(started, **running.counts, seconds=seconds, version=version)
        self.done.append(done)
        self._progress(done)
        uri, storage_options = self._pipeline.metrics, dict(self._pipeline.storage_options or {}) or None
        if uri is None:
            return
        row = pa.Table.from_pylist([{**asdict(done), "unparsed": json.dumps(done.unparsed)}], METRICS_SCHEMA)
        try:
            write_dataset(row, uri, storage_options=storage_options)
        except AlreadyExistsError:
            # Tables of earlier releases have fewer columns.
            metrics = dataset(uri, storage_options=storage_options)
            write_dataset(row, metrics, mode="append", schema_mode="merge")


def _is_below(address: str, folder: str) -> bool:
    def plain(path: str) -> str:
        path = re.sub(r"^file:/*", "/", re.sub(r"^s3[an]:", "s3:", path))
        return path if "://" in path else os.path.abspath(path)

    return f"{plain(address)}/".startswith(f"{plain(folder).rstrip('/')}/")
