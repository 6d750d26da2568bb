"""Broadcast of the small source of a merge to all tasks.

    few rows of a fixed size               ─► collected on the driver ─► a stream in the pickle of the tasks' work
                                                                     └► on one machine a file that the tasks map
    other sources of a session on one machine ─► written to files by tasks ─► files that the tasks of the merge map
    other sources                             ─► packed into streams by tasks ─► driver ─► the pickle of the tasks' work

The source is computed once: a source that returns other rows when it is computed again would insert rows that the table
has. Spark's estimate of the size of a frame may be far off, so each task counts its bytes.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.errors import PySparkException

from lancetable.spark.runner import init_worker
from lancetable.spark.types import wire_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Part", "BroadcastSource", "open_part", "broadcast_source"]

# Limit of a source, actual and estimated by Spark, that the driver and every task hold. The tasks that compute the
# source do not know of each other: each may produce at most half of the limit, and the one of partition p at most
# 1 / (p + 1) of it. So any even distribution passes, and n partitions never produce more than 1 + ln n times as much.
_MOST_BYTES = 32 << 20
# Limits of files that the tasks map, written by the driver and by tasks. Each task builds a table and an index of the
# source, so that the tasks that run at a time have a limit too.
_MOST_COLLECTED_BYTES = 64 << 20
_MOST_MAPPED_BYTES = 256 << 20
_MOST_BYTES_OF_TASKS = 1 << 30
_INDEX_BYTES_OF_ROW = 48

Part: TypeAlias = "pa.Buffer | str"  # an Arrow stream, or the path of a file that holds one


@dataclass(frozen=True)
class BroadcastSource:
    """The rows of a source. `close` removes their files, which share one directory."""

    parts: tuple[Part, ...]
    directory: str | None = None

    def close(self) -> None:
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)  # Spark removes in the end what a task still maps


def open_part(part: Part) -> pa.RecordBatchStreamReader:
    """Return a reader of the batches of a part."""
    return pa.ipc.open_stream(pa.memory_map(part) if isinstance(part, str) else part)


def broadcast_source(frame: DataFrame, directory: str | None, cores: int | None = None) -> BroadcastSource | None:
    """Return the rows of a source if it is small, both by Spark's estimate and in fact; None otherwise.

    Parameters
    ----------
    frame
        The source in the types of the table.
    directory
        A directory that the tasks of the session find at the same path, None if there is none. A source of 12 MB in
        the pickle of their work would delay the first task by 80 ms: it is copied to the JVM, into blocks, to another
        file and to the memory of each task.
    cores
        The number of tasks that run at a time, which limits the size.
    """
    bits = _bits_of_row(wire_schema(frame.schema))
    each = max(_MOST_BYTES, _MOST_BYTES_OF_TASKS // (cores or 1))
    most = _MOST_BYTES if directory is None else min(_MOST_COLLECTED_BYTES, each)
    most_mapped = 0 if directory is None else min(_MOST_MAPPED_BYTES, each)
    most_rows = None if bits is None else _most_rows(frame)
    if bits is not None and most_rows is not None and most_rows * bits <= 8 * most:
        return _kept(frame.toArrow(), directory)  # however its rows are spread
    size = _estimated_bytes(frame)
    if size is None or size > max(most, most_mapped):
        return None
    if bits is not None and size <= most:
        past = "_past" + "_" * max(map(len, frame.columns), default=0)  # longer than any name that there is
        rows = _unless_past(_first_of_tasks(frame, bits, past, most).toArrow(), past)
        if rows is not None and rows.nbytes <= most:
            return _kept(rows, directory)
    if directory is not None:
        return _landed(frame, directory, most_mapped)
    return None if bits is not None else _packed(frame)


def _bits_of_row(wire: pa.Schema) -> int | None:
    """Return the bits of each row; None if rows differ in size."""
    try:
        bits: int = sum(field.type.bit_width for field in wire)
    except ValueError:
        return None
    return max(1, bits)


# --- few rows of one length


def _first_of_tasks(frame: DataFrame, bits: int, past: str, most: int) -> DataFrame:
    """Return the rows of each task up to its limit, and one more if there are more, with 0 in the column `past`.

    Only Spark itself runs for them: a Python stage costs as much as the rest of a small merge.
    """
    of_task, whole = (size * 8 // bits for size in (most // 2, most))
    bound = f"least({of_task}, {whole} div (spark_partition_id() + 1))"
    in_task = f"(monotonically_increasing_id() & {(1 << 33) - 1})"  # which restarts in each task, below that bit
    return frame.selectExpr("*", f"cast(least({in_task} - {bound}, 1) AS int) AS {past}").where(f"{past} <= 0")


def _unless_past(table: pa.Table, past: str) -> pa.Table | None:
    """The rows that `_first_of_tasks` has left, or None where some task had too many."""
    if table.num_rows and pc.max(table[past]).as_py() >= 0:
        return None
    return table.drop_columns([past])


def _kept(rows: pa.Table, directory: str | None) -> BroadcastSource:
    if directory is not None:
        own = tempfile.mkdtemp(prefix="merge-", dir=directory)
        source = BroadcastSource((os.path.join(own, "source.arrow"),), own)
        try:
            _write_stream(rows, source.parts[0])
        except BaseException:
            source.close()
            raise
        return source
    sizes = pa.MockOutputStream()
    _write_stream(rows, sizes)
    stream = pa.allocate_buffer(sizes.size())  # one that grows would copy what it has again and again
    _write_stream(rows, pa.FixedSizeBufferWriter(stream))
    return BroadcastSource((stream,))


def _write_stream(rows: pa.Table, sink: Any) -> None:
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)


# --- files that tasks write


def _landed(frame: DataFrame, directory: str, most: int) -> BroadcastSource | None:
    own = tempfile.mkdtemp(prefix="merge-", dir=directory)
    source = None
    try:
        found = frame.mapInArrow(_landing(own, most), "path string, bytes bigint").toArrow()
        if not found["path"].null_count and (pc.sum(found["bytes"]).as_py() or 0) <= most:
            source = BroadcastSource(tuple(found["path"].to_pylist()), own)
    finally:
        if source is None:
            shutil.rmtree(own, ignore_errors=True)
    return source


def _landing(directory: str, whole: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that writes the rows of a task to a file of a directory."""

    def land(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        init_worker()
        yield from _land(batches, directory, whole // (_partition() + 1))

    return land


def _land(batches: Iterator[pa.RecordBatch], directory: str, most: int) -> Iterator[pa.RecordBatch]:
    """Yield the path of the file with the rows of a task and their bytes; a null path if they exceed the limit."""
    path, writer, held = "", None, 0
    try:
        for batch in batches:
            held += batch.nbytes + _INDEX_BYTES_OF_ROW * batch.num_rows
            if batch.num_rows and held <= most:
                if writer is None:
                    number, path = tempfile.mkstemp(suffix=".arrow", dir=directory)
                    os.close(number)
                    writer = pa.ipc.new_stream(path, batch.schema)
                writer.write_batch(batch)
    finally:
        if writer is not None:
            writer.close()
    if held > most and path:
        with suppress(OSError):
            os.unlink(path)
    if path or held > most:  # without a file if the first batch exceeds the limit
        yield pa.record_batch({"path": pa.array([None if held > most else path], pa.string()), "bytes": [held]})


# --- streams that tasks send


def _packed(frame: DataFrame) -> BroadcastSource | None:
    parts = frame.mapInArrow(_packing(_MOST_BYTES), "part binary").toArrow().column(0)
    if parts.null_count or pc.sum(pc.binary_length(parts), min_count=0).as_py() > _MOST_BYTES:
        return None
    return BroadcastSource(tuple(part.as_buffer() for part in parts))


def _packing(whole: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that packs the rows of a task into a stream of a limited number of bytes."""

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        init_worker()
        yield from _pack(batches, min(whole // 2, whole // (_partition() + 1)))

    return pack


def _pack(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task as a stream, or null if they exceed the limit."""
    sink, writer, held = pa.BufferOutputStream(), None, 0
    for batch in batches:
        held += batch.nbytes
        if batch.num_rows and held <= most:
            writer = writer or pa.ipc.new_stream(sink, batch.schema)
            writer.write_batch(batch)
    if writer is not None:
        writer.close()
    if writer is not None or held > most:  # without a writer if the first batch exceeds the limit
        part = None if held > most else sink.getvalue().to_pybytes()
        yield pa.record_batch({"part": pa.array([part], pa.binary())})


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


# --- estimates of Spark

# The estimate of the whole plan is in its first line; other lines estimate parts of it, or begin with a string of the
# query.
_ESTIMATE = (
    r"== Optimized Logical Plan ==\n"
    r"[^\n]*Statistics\(sizeInBytes=([0-9.]+(?:E[+-]?[0-9]+)?) ([KMGTPE]i)?B\b[^\n]*(?:\n|$)"
)


def _most_rows(frame: Any) -> int | None:
    """Return the greatest number of rows of a classic frame, if Spark knows it: of literal rows, a range or a limit."""
    try:
        found = frame._jdf.queryExecution().analyzed().maxRows()
        return int(found.get()) if found.isDefined() else None
    except (AttributeError, PySparkException):
        return None


def _estimated_bytes(source: Any) -> int | None:
    """Return the size that Spark estimates for a frame, classic or Connect; None if unknown."""
    try:
        if hasattr(source, "_jdf"):
            return int(str(source._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
        found = re.match(_ESTIMATE, source._explain_string(mode="cost"))
    except (AttributeError, PySparkException):
        return None
    return None if found is None else int(float(found[1]) * 1024 ** ("KMGTPE".find((found[2] or "-")[0]) + 1))
