"""Broadcast of the small source of a merge to all tasks.

    tasks of the source ─► Arrow files, or Arrow streams that the driver collects ─► every task of the merge

Files are used in a session on one machine, where the tasks of the merge memory-map them. The source is computed only
once, because a source that returns other rows the second time would insert rows that are already in the table. Above a
size limit, tasks no longer store the rows, but only measure the source; Spark then joins it with the table.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame

from lancetable.spark.task_runner import init_worker
from lancetable.spark.types import wire_schema

# Limit of a source that the driver and every task hold in memory. The tasks that compute the source do not communicate,
# so the task of partition p may write 1 / (p + 1) of the limit. An evenly distributed source within the limit is
# accepted, and n partitions write at most 1 + ln n times the limit.
_MAX_STREAM_BYTES = 32 << 20
# Limits of a source in files. Each task of the merge builds a table and an index of the source, so the tasks that run
# concurrently have a common limit too.
_MAX_FILE_BYTES = 256 << 20
_MAX_BYTES_OF_TASKS = 1 << 30
_INDEX_BYTES_OF_ROW = 48

SourceChunk: TypeAlias = "pa.Buffer | str"  # an Arrow stream, or the path of a file that contains one


@dataclass(frozen=True)
class BroadcastSource:
    """The rows of a source. `close` removes their files, which share one directory."""

    chunks: tuple[SourceChunk, ...]
    directory: str | None = None

    def close(self) -> None:
        """Remove the files."""
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)  # Spark finally removes files that a task still maps


def open_chunk(chunk: SourceChunk) -> pa.RecordBatchStreamReader:
    """Return a reader of the batches of a chunk."""
    return pa.ipc.open_stream(pa.memory_map(chunk) if isinstance(chunk, str) else chunk)


def broadcast_source(frame: DataFrame, directory: str | None, cores: int | None = None) -> BroadcastSource | None:
    """Compute a source and return its rows if it is small, None otherwise.

    Parameters
    ----------
    frame
        The source in the types of the table.
    directory
        A directory that the tasks of the session can access at the same path, None if there is none. Without files, the
        source is part of the pickled function of the tasks, which Spark copies several times: 12 MB delay the first
        task by 80 ms.
    cores
        The number of concurrent tasks, which limits the size.
    """
    limit, own = _MAX_STREAM_BYTES, None
    if directory is not None:
        limit = min(_MAX_FILE_BYTES, max(limit, _MAX_BYTES_OF_TASKS // (cores or 1)))
        own = tempfile.mkdtemp(prefix="merge-", dir=directory)
    source = None
    try:
        rows = _rows_to_limit(frame, limit, 0 if own is None else _INDEX_BYTES_OF_ROW)
        write = partial(write_chunk, directory=own, limit=limit)
        written = rows.mapInArrow(write, "chunk binary, bytes bigint").toArrow()
        chunks = written["chunk"]
        if not chunks.null_count and pc.sum(written["bytes"], min_count=0).as_py() <= limit:
            streams = (chunk.as_buffer() for chunk in chunks)
            source = BroadcastSource(tuple(streams if own is None else map(os.fsdecode, chunks.to_pylist())), own)
    finally:
        if source is None and own is not None:
            shutil.rmtree(own, ignore_errors=True)
    return source


def _rows_to_limit(frame: DataFrame, limit: int, row_bytes: int) -> DataFrame:
    """Drop most rows beyond the limit of each task, so that Spark does not send them to Python.

    At least one row more than the limit allows remains, so that the source still counts as too large.
    """
    types = wire_schema(frame.schema).types
    fixed = (kind.bit_width for kind in types if pa.types.is_primitive(kind) or pa.types.is_decimal(kind))
    bits = 8 * row_bytes + sum(fixed)
    if not bits:
        return frame
    number_in_task = f"(monotonically_increasing_id() & {(1 << 33) - 1})"  # the upper bits are those of the partition
    return frame.where(f"{number_in_task} <= {8 * limit // bits} div (spark_partition_id() + 1)")


def write_chunk(batches: Iterator[pa.RecordBatch], directory: str | None, limit: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task as an Arrow stream, or as the path of a file in `directory`, and their bytes.

    Yields null instead of a chunk that exceeds the task's share of the limit. Yields nothing if there are no rows.
    """
    init_worker()
    context = TaskContext.get()
    limit //= 1 if context is None else context.partitionId() + 1
    path = None if directory is None else os.path.join(directory, f"{uuid.uuid4()}.arrow")
    size, stream, writer = 0, pa.BufferOutputStream(), None
    try:
        for batch in batches:  # all of them, because Spark does not reuse a worker that leaves some
            size += batch.nbytes + (0 if path is None else _INDEX_BYTES_OF_ROW * batch.num_rows)
            if batch.num_rows and size <= limit:
                writer = writer or pa.ipc.new_stream(path or stream, batch.schema)
                writer.write_batch(batch)
    finally:
        if writer is not None:
            writer.close()
    if size > limit or writer is not None:  # without a writer if the first batch exceeds the limit
        chunk = None if size > limit else stream.getvalue().to_pybytes() if path is None else os.fsencode(path)
        yield pa.record_batch({"chunk": pa.array([chunk], pa.binary()), "bytes": [size]})
