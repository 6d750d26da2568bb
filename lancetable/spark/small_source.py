"""Merges of a small source: it goes to every task, which finds and writes what comes of the rows of some fragments.

    attempt   tasks of fragments ─► files, and the source rows that matched nothing there
              source rows that matched nothing anywhere ─► tasks that insert them ─► files

A join in Spark would send the keys of the whole table to its executors' other side, whatever the size of the source.
Here nothing of the table leaves the tasks, and zone maps say which rows to read at all. The source is computed once:
one that gives other rows when it is computed again would insert rows that the table has.
"""

from __future__ import annotations

import base64
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyroaring
from pyspark import TaskContext
from pyspark.errors import PySparkException

from lancetable.ops.merge_clauses import Clauses, check_source
from lancetable.ops.merge_insert import load_source, prepare_part
from lancetable.ops.merge_rows import ADDRESS, IN_SOURCE, prepare_rows
from lancetable.ops.spill import Divided
from lancetable.spark.jobs import merged
from lancetable.spark.pin import Pin
from lancetable.spark.tasks import Json, Runner, SparkRunner, not_refused, settle_worker
from lancetable.spark.types import convert_batch, wire_schema
from lancetable.table._offset_files import build_roaring

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "InsertRows",
    "MergeFragments",
    "SmallSource",
    "compares_as_spark",
    "merge_small",
    "small_source",
    "within_reach",
]

# What a source may be, and may be taken for by Spark, since the driver and every task hold it; and what a task of it
# may bring. The tasks do not know of each other: the task of partition p brings at most 1 / (p + 1) of the whole, so
# that any even spread of that much passes, and n partitions never bring more than 1 + ln n times as much.
_MOST_BYTES = 32 << 20
_MOST_BYTES_OF_TASK = 16 << 20
_INSERTED_ROWS_OF_TASK = 256 << 10

SmallSource = tuple[pa.Buffer, ...]  # Arrow streams
Reachable = tuple[pa.Buffer | str, ...]  # those, or the paths of files that hold them


def compares_as_spark(keys: Iterable[pa.DataType]) -> bool:
    """Whether keys of these types are equal for the library where they are for Spark.

    For Spark 0.0 equals -0.0, and it joins on structs, lists and what is always null.
    """
    plain = [key.value_type if pa.types.is_dictionary(key) else key for key in keys]
    others = (pa.types.is_floating, pa.types.is_nested, pa.types.is_null)
    return not any(is_other(key) for key in plain for is_other in others)


def small_source(frame: DataFrame) -> SmallSource | None:
    """The rows of a source in the types of the table, if Spark takes it for small and it is; else None."""
    bits = _bits_of_row(wire_schema(frame.schema))
    most_rows = None if bits is None else _most_rows(frame)
    if bits is not None and most_rows is not None and most_rows * bits <= 8 * min(_MOST_BYTES, _MOST_BYTES_OF_TASK):
        return _stream_of(frame.toArrow())  # however its rows are spread
    past = "_past" + "_" * max(map(len, frame.columns), default=0)  # longer than any name that there is
    source = frame if bits is None else _first_of_tasks(frame, bits, past)
    size = _estimated_bytes(source)
    if size is None or size > _MOST_BYTES:
        return None
    if bits is not None:
        return _unless_past(source.toArrow(), past)
    parts = source.mapInArrow(_packing(_MOST_BYTES_OF_TASK, _MOST_BYTES), "part binary").toArrow().column(0)
    if parts.null_count or pc.sum(pc.binary_length(parts), min_count=0).as_py() > _MOST_BYTES:
        return None
    return tuple(part.as_buffer() for part in parts)


def _bits_of_row(wire: pa.Schema) -> int | None:
    """The bits of each row; None where rows differ in length, so that only a look at them tells."""
    try:
        bits: int = sum(field.type.bit_width for field in wire)
    except ValueError:
        return None
    return max(1, bits)


def _first_of_tasks(frame: DataFrame, bits: int, past: str) -> DataFrame:
    """As many rows of each task as it may bring, and one more of those that have it, with 0 in the column `past`.

    So nothing but Spark itself runs for them: a stage of Python costs as much as the rest of a small merge.
    """
    of_task, whole = (max(0, size * 8 // bits) for size in (_MOST_BYTES_OF_TASK, _MOST_BYTES))
    most = f"least({of_task}, {whole} div (spark_partition_id() + 1))"
    in_task = f"(monotonically_increasing_id() & {(1 << 33) - 1})"  # which begins anew, below that bit, in each task
    return frame.selectExpr("*", f"cast(least({in_task} - {most}, 1) AS int) AS {past}").where(f"{past} <= 0")


def _unless_past(table: pa.Table, past: str) -> SmallSource | None:
    """The rows that `_first_of_tasks` has left as a stream, or None where some task, or all together, had too many."""
    if table.num_rows and pc.max(table[past]).as_py() >= 0:
        return None
    return _stream_of(table.drop_columns([past]))


def _stream_of(rows: pa.Table) -> SmallSource | None:
    """Rows as a stream, or None where they are too many."""
    if not rows.num_rows:
        return ()
    if rows.nbytes > _MOST_BYTES:
        return None
    sizes = pa.MockOutputStream()
    _write_stream(rows, sizes)
    stream = pa.allocate_buffer(sizes.size())  # one that grows would copy what it has again and again
    _write_stream(rows, pa.FixedSizeBufferWriter(stream))
    return (stream,)


def _write_stream(rows: pa.Table, sink: Any) -> None:
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)


def _packing(of_task: int, whole: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What makes parts of at most so many bytes of the rows of each task."""

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        context = TaskContext.get()
        yield from _packed(batches, min(of_task, whole // (1 if context is None else context.partitionId() + 1)))

    return pack


def _packed(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """The rows of a task as a stream, or null where they are more than so many bytes."""
    sink, writer, held = pa.BufferOutputStream(), None, 0
    for batch in batches:
        held += batch.nbytes
        if batch.num_rows and held <= most:
            writer = writer or pa.ipc.new_stream(sink, batch.schema)
            writer.write_batch(batch)
    if writer is not None:
        writer.close()
    if held:  # even if there is no writer, since the first batch was too much
        part = None if held > most else sink.getvalue().to_pybytes()
        yield pa.record_batch({"part": pa.array([part], pa.binary())})


# Of the whole, in the first line of the plan: lines below it are of its parts, and what a line begins with may be a
# text of the query.
_ESTIMATE = (
    r"== Optimized Logical Plan ==\n"
    r"[^\n]*Statistics\(sizeInBytes=([0-9.]+(?:E[+-]?[0-9]+)?) ([KMGTPE]i)?B\b[^\n]*(?:\n|$)"
)


def _most_rows(frame: Any) -> int | None:
    """How many rows a classic frame cannot exceed, where Spark knows from how it is made: of literal rows, of a range,
    of a limit."""
    try:
        found = frame._jdf.queryExecution().analyzed().maxRows()
        return int(found.get()) if found.isDefined() else None
    except (AttributeError, PySparkException):
        return None


def _estimated_bytes(source: Any) -> int | None:
    """What Spark expects of a frame, classic or Connect; None if it does not say."""
    try:
        if hasattr(source, "_jdf"):
            return int(str(source._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
        found = re.match(_ESTIMATE, source._explain_string(mode="cost"))
    except (AttributeError, PySparkException):
        return None
    return None if found is None else int(float(found[1]) * 1024 ** ("KMGTPE".find((found[2] or "-")[0]) + 1))


@contextmanager
def within_reach(runner: Runner, source: SmallSource) -> Iterator[Reachable]:
    """The source as tasks get it, while the block runs: where they run on this machine as files that they map.

    In the pickle of their work it would go from a file to the JVM, which packs it into blocks, to another file and to
    the memory of each task: 12 MB take 80 ms before the first task begins.
    """
    directory = runner.directory_of_tasks() if source and isinstance(runner, SparkRunner) else None
    if directory is None:
        yield source
        return
    with ExitStack() as stack:
        paths: list[str] = []
        for part in source:
            number, path = tempfile.mkstemp(suffix=".arrow", dir=directory)
            stack.callback(_remove, path)
            with open(number, "wb") as file:
                file.write(part)
            paths.append(path)
        yield tuple(paths)


def _remove(path: str) -> None:
    with suppress(OSError):  # Windows keeps what a task still maps, until Spark removes it
        os.unlink(path)


def _open(part: pa.Buffer | str) -> pa.RecordBatchStreamReader:
    return pa.ipc.open_stream(pa.memory_map(part) if isinstance(part, str) else part)


def merge_small(
    runner: Runner, pin: Pin, clauses: Clauses, incoming: pa.Schema, source: Reachable, parts: Sequence[Json]
) -> list[Json]:
    """What tasks wrote for the fragments of `parts` and for the rows that are inserted, or that they refused."""
    results = runner.run(MergeFragments(pin, clauses, incoming, source), parts)
    if not clauses.insert or len(not_refused(results)) < len(results):
        return results
    left = pyroaring.BitMap(range(sum(_open(part).read_all().num_rows for part in source)))
    for result in results:
        left &= pyroaring.BitMap.deserialize(base64.b64decode(result["unmatched"]))
    rows = np.asarray(left.to_array(), dtype=np.int64)
    tasks = [
        {"rows": _rows_text(rows[start : start + _INSERTED_ROWS_OF_TASK])}
        for start in range(0, len(rows), _INSERTED_ROWS_OF_TASK)
    ]
    return results + runner.run(InsertRows(pin, clauses, incoming, source), tasks)


@dataclass(frozen=True)
class _Merging:
    pin: Pin
    clauses: Clauses
    incoming: pa.Schema
    source: Reachable

    def batches(self) -> Iterator[pa.RecordBatch]:
        for part in self.source:
            for batch in _open(part):
                yield convert_batch(batch, self.incoming)


class MergeFragments(_Merging):
    """{"slices"} of whole fragments -> what `merged` says, and {"unmatched"}: rows of the source, as a bitmap."""

    def __call__(self, task: Json) -> Json:
        version = self.pin.open()
        stored = check_source(version.schema, self.clauses, self.incoming)
        with Divided(stored.to_storage_arrow(), self.clauses.on) as source:
            load_source(stored, self.batches(), source, None)
            fragments = {fragment for fragment, _, _ in task["slices"]}
            prepared, counts, unmatched = prepare_part(version, self.clauses, source, fragments)
        version.store.sync(version.base)
        return {**merged(prepared, counts), "unmatched": _rows_text(unmatched)}


class InsertRows(_Merging):
    """{"rows"} of the source, as a bitmap -> what `merged` says."""

    def __call__(self, task: Json) -> Json:
        version = self.pin.open()
        stored = check_source(version.schema, self.clauses, self.incoming)
        rows = np.asarray(pyroaring.BitMap.deserialize(base64.b64decode(task["rows"])).to_array(), dtype=np.int64)
        prepared, counts = prepare_rows(version, self.clauses, stored, self._inserted(rows))
        version.store.sync(version.base)
        return merged(prepared, counts)

    def _inserted(self, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[pa.RecordBatch]:
        start = 0
        for batch in self.batches():
            first, last = np.searchsorted(rows, [start, start + batch.num_rows])
            chosen = batch.take(pa.array(rows[first:last] - start))
            beside = [pa.nulls(chosen.num_rows, pa.int64()), pa.repeat(True, chosen.num_rows)]
            if chosen.num_rows:
                yield pa.RecordBatch.from_arrays(
                    [*chosen.columns, *beside], names=[*chosen.schema.names, ADDRESS, IN_SOURCE]
                )
            start += batch.num_rows


def _rows_text(rows: np.ndarray[Any, np.dtype[np.int64]]) -> str:
    return base64.b64encode(build_roaring(rows)).decode()
