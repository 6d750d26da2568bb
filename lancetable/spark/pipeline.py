"""A table kept up to date by one command: ingest, clean, upsert, compact, vacuum.

    Files  ─┐ each file once
    Stream ─┼─► clean ─► newest row of each key ─► merge, one commit a batch ─► compact ─► vacuum
    Query  ─┘ what is newer than the table                    │
                                                             metrics: one row a step

Every part may be stopped anywhere and begun again. A batch of files or of a stream is merged under its number, which
the table keeps (`commit.once`), so that a batch which Spark repeats changes nothing. A query is asked for the rows from
the greatest cursor that the table has, which are merged by key: the table itself is the state.

    flights = Pipeline(
        "flights", "s3://lake/flights.lance", key="id", newest_by="updated_at",
        source=Files("s3a://landing/flights", format="csv", options={"header": "true"}),
        checkpoint="s3a://lake/checkpoints/flights",
        clean=lambda df: df.where("id IS NOT NULL"),
        metrics="s3://lake/metrics.lance",
    )
    flights.run(spark)                  # or: python -m lancetable.spark run pipelines.py:flights

On Connect the batches of a stream are merged in a process of the server: then `clean` and the source must pickle, and
what was merged is told by `metrics` alone.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812  # as every Spark user writes it
from pyspark.sql.window import Window

from lancetable.dataset import dataset, write_dataset
from lancetable.errors import AlreadyExistsError, DatasetNotFoundError, InvalidInputError, InvalidOperationError
from lancetable.spark.merge import MergeResult
from lancetable.spark.stream_sink import name_of_stream
from lancetable.spark.table import SparkTable
from lancetable.spark.verbs import quoted
from lancetable.spark.write import write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["METRICS_SCHEMA", "Files", "Pipeline", "Query", "Source", "Step", "Stream", "upsert"]

logger = logging.getLogger(__name__)

METRICS_SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("pipeline", pa.string()),
        ("step", pa.string()),
        ("batch", pa.int64()),
        ("started", pa.timestamp("us", "UTC")),
        ("seconds", pa.float64()),
        ("rows_read", pa.int64()),
        ("rows_inserted", pa.int64()),
        ("rows_updated", pa.int64()),
        ("fragments_removed", pa.int64()),
        ("fragments_added", pa.int64()),
        ("versions_removed", pa.int64()),
        ("bytes_removed", pa.int64()),
        ("version", pa.int64()),
    ]
)
"""The columns of the table of metrics: one row for each step of a run."""


@dataclass(frozen=True)
class Files:
    """The files below a folder, each of them once, when it is first seen; one that changes later is not read again.

    `format` and `options` are those of `spark.read`. Without a `schema` it is inferred anew in each run. A run takes in
    all files that are there, in batches of at most `files_per_batch`.
    """

    path: str
    format: str = "parquet"
    schema: StructType | str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    files_per_batch: int | None = None

    def __call__(self, spark: SparkSession) -> DataFrame:
        schema = self.schema
        if schema is None:
            schema = spark.read.format(self.format).options(**self.options).load(self.path).schema
        reader = spark.readStream.format(self.format).options(**self.options).schema(schema)
        if self.files_per_batch is not None:
            reader = reader.option("maxFilesPerTrigger", self.files_per_batch)
        return reader.load(self.path)


@dataclass(frozen=True)
class Stream:
    """A stream, taken in as far as it goes when a run begins: `read` makes the streaming frame, as of Kafka, or of
    another table: `lambda spark: spark.readStream.format("lance").load(uri)`."""

    read: Callable[[SparkSession], DataFrame]

    def __call__(self, spark: SparkSession) -> DataFrame:
        return self.read(spark)


@dataclass(frozen=True)
class Query:
    """A source that can be asked for what is new, such as a table behind JDBC.

    `read` gets the session and the greatest value of the column `cursor` that the table has, None for an empty one, and
    returns the rows from that value on, itself included. The column is one of the table.

    >>> def orders(spark, since):  # doctest: +SKIP
    ...     where = "true" if since is None else f"updated_at >= TIMESTAMP '{since}'"
    ...     return spark.read.jdbc(url, f"(SELECT * FROM orders WHERE {where}) AS newer", properties=login)
    """

    read: Callable[[SparkSession, Any], DataFrame]
    cursor: str


Source: TypeAlias = Files | Stream | Query


@dataclass(frozen=True)
class Step:
    """What one step of a run did: a row of `METRICS_SCHEMA`. `step` is upsert, compact or vacuum."""

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

    def __str__(self) -> str:
        what = {
            "upsert": f"{self.rows_read:,} rows read, {self.rows_inserted:,} inserted, {self.rows_updated:,} updated",
            "compact": f"{self.fragments_removed:,} fragments became {self.fragments_added:,}",
            "vacuum": f"{self.versions_removed:,} versions and {self.bytes_removed / 1e6:,.1f} MB removed",
        }[self.step]
        batch = "" if self.batch is None else f" {self.batch}"
        return f"{self.pipeline}: {self.step}{batch}: {what}, version {self.version} ({self.seconds:.1f} s)"


def upsert(
    table: SparkTable,
    frame: DataFrame,
    key: Sequence[str],
    *,
    newest_by: str | None = None,
    txn: tuple[str, int] | None = None,
) -> MergeResult:
    """Merge a frame by key: rows that match get its values, the others are inserted.

    With `newest_by` the row with the greatest value of this column counts, of those in the frame and of those in the
    table, however late it comes. Without it a key that the frame has twice raises InvalidOperationError. `txn` is for
    `foreachBatch`:

    >>> def merge(batch, number):  # doctest: +SKIP
    ...     upsert(SparkTable.for_path(batch.sparkSession, uri), batch, ["id"], txn=("my stream", number))
    >>> query = stream.writeStream.foreachBatch(merge).option("checkpointLocation", cp).start()  # doctest: +SKIP
    """
    condition = None
    keys = [F.col(quoted(name)) for name in key]
    if newest_by is None:
        for row in frame.groupBy(*keys).count().where("count > 1").limit(1).collect():
            twice = ", ".join(f"{name} = {row[number]}" for number, name in enumerate(key))
            raise InvalidOperationError(
                f"rows to upsert have the key {twice} more than once: say with newest_by which one counts"
            )
    else:
        order = Window.partitionBy(*keys).orderBy(F.col(quoted(newest_by)).desc_nulls_last())
        frame = frame.withColumn(_RANK, F.row_number().over(order)).where(F.col(_RANK) == 1).drop(_RANK)
        name = quoted(newest_by)
        condition = f"target.{name} IS NULL OR source.{name} >= target.{name}"
    merge = table.merge(frame, list(key)).when_matched_update_all(condition).when_not_matched_insert_all()
    return merge.execute(txn=txn)


@dataclass(frozen=True)
class Pipeline:
    """What is done to a table in each run.

    Parameters
    ----------
    name : str
        Names the pipeline in metrics and in the numbers of its batches.
    table : str
        Address of the table; it is made by the first batch.
    source : Files, Stream or Query
    key : str or sequence of str
        The columns that name a row.
    checkpoint : str, optional
        Where Spark notes what was read; needed by `Files` and `Stream`. A new one begins from the start.
    clean : function, optional
        From the frame that was read to the one that is merged.
    newest_by : str, optional
        See `upsert`. For a `Query` its cursor by default.
    compact : mapping or None
        Options of `SparkTable.compact`; None for never.
    keep_days : float or None
        Older versions are removed, and what jobs left behind; None for never.
    vector_columns, storage_options
        Of a new table; of the store.
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

    def __post_init__(self) -> None:
        if not isinstance(self.source, Query) and self.checkpoint is None:
            raise InvalidInputError(
                "a pipeline of files or of a stream needs a checkpoint, where Spark notes what it read"
            )

    def run(self, spark: SparkSession, progress: Callable[[Step], None] | None = None) -> list[Step]:
        """Take in everything that is new, then maintain the table; returns the steps.

        `progress` is called with each step when it is done; by default they are logged. Raises what Spark or the table
        raises; what was committed until then stays, and the next run goes on from there.
        """
        steps = _Steps(self, str(uuid.uuid4()), progress)
        if isinstance(self.source, Query):
            self._ask(spark, self.source, steps)
        else:
            self._follow(spark, self.source, steps)
        table = self._existing(spark)
        if table is None:
            return steps.done  # nothing has come yet
        if self.compact is not None:
            with steps.step("compact", table) as done:
                metrics = table.compact(**self.compact)
                done(fragments_removed=metrics.fragments_removed, fragments_added=metrics.fragments_added)
        if self.keep_days is not None:
            with steps.step("vacuum", table) as done:
                stats = table.vacuum(self.keep_days)
                done(versions_removed=stats.old_versions, bytes_removed=stats.bytes_removed)
        return steps.done

    def _ask(self, spark: SparkSession, source: Query, steps: _Steps) -> None:
        table = self._existing(spark)
        since = None
        if table is not None:
            since = table.to_df([source.cursor]).agg(F.max(F.col(quoted(source.cursor)))).collect()[0][0]
        self._take(source.read(spark, since), steps, None, None)

    def _follow(self, spark: SparkSession, source: Files | Stream, steps: _Steps) -> None:
        checkpoint = str(self.checkpoint)

        def take(batch: DataFrame, number: int) -> None:
            self._take(batch, steps, number, (f"pipeline {self.name} {name_of_stream(checkpoint)}", number))

        writer = source(spark).writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()

    def _take(self, frame: DataFrame, steps: _Steps, number: int | None, txn: tuple[str, int] | None) -> None:
        frame = frame if self.clean is None else self.clean(frame)
        cursor = self.source.cursor if isinstance(self.source, Query) else None
        frame = frame.persist()  # it is counted, and then read again by each attempt to merge
        try:
            table = self._existing(frame.sparkSession)
            if table is None:
                write_table(
                    frame.limit(0),
                    self.table,
                    "ignore",
                    vector_columns=self.vector_columns,
                    storage_options=self.storage_options,
                )
                table = self._opened(frame.sparkSession)
            with steps.step("upsert", table, number) as done:
                rows = frame.count()
                if rows:
                    keys = [self.key] if isinstance(self.key, str) else list(self.key)
                    result = upsert(table, frame, keys, newest_by=self.newest_by or cursor, txn=txn)
                    done(rows_inserted=result["num_inserted_rows"], rows_updated=result["num_updated_rows"])
                done(rows_read=rows)
        finally:
            frame.unpersist()

    def _opened(self, spark: SparkSession) -> SparkTable:
        return SparkTable.for_path(spark, self.table, storage_options=self.storage_options)

    def _existing(self, spark: SparkSession) -> SparkTable | None:
        try:
            return self._opened(spark)
        except DatasetNotFoundError:
            return None


class _Steps:
    """The steps of one run so far."""

    def __init__(self, pipeline: Pipeline, run: str, progress: Callable[[Step], None] | None) -> None:
        self._pipeline, self._run = pipeline, run
        self._progress = progress or _log
        self.done: list[Step] = []

    @contextmanager
    def step(self, name: str, table: SparkTable, batch: int | None = None) -> Iterator[Callable[..., None]]:
        step = Step(self._run, self._pipeline.name, name, batch)
        start = time.perf_counter()
        found: dict[str, Any] = {}

        def note(**counts: int) -> None:
            found.update(counts)

        yield note
        done = replace(step, **found, seconds=time.perf_counter() - start, version=table.dataset.version)
        self.done.append(done)
        self._progress(done)
        if self._pipeline.metrics is not None:
            self._measured(done, self._pipeline.metrics, dict(self._pipeline.storage_options or {}) or None)

    @staticmethod
    def _measured(done: Step, uri: str, storage_options: dict[str, str] | None) -> None:
        """Add a row to the table of metrics, which is made with the first one."""
        row = pa.Table.from_pylist([asdict(done)], METRICS_SCHEMA)
        try:
            metrics = dataset(uri, storage_options=storage_options)
        except DatasetNotFoundError:
            try:
                write_dataset(row, uri, storage_options=storage_options)
                return
            except AlreadyExistsError:  # another pipeline was first
                metrics = dataset(uri, storage_options=storage_options)
        metrics.insert(row)


def _log(step: Step) -> None:
    logger.info("%s", step)


_RANK = "_lancetable_rank"
