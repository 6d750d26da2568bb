"""Merges of a small source: it goes to every task, which finds and writes what comes of the rows of some fragments.

    attempt   tasks of fragments ─► files, and the source rows that matched nothing there
              source rows that matched nothing anywhere ─► tasks that insert them ─► files

A join in Spark would send the keys of the whole table to its executors' other side, whatever the size of the source.
Here nothing of the table leaves the tasks, and zone maps say which rows to read at all. The source is computed once:
one that gives other rows when it is computed again would insert rows that the table has.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyroaring
from pyspark.errors import PySparkException

from lancetable.errors import LanceError
from lancetable.ops.merge_clauses import Clauses, Counts, check_source
from lancetable.ops.merge_insert import load_source, prepare_part
from lancetable.ops.merge_rows import ADDRESS, IN_SOURCE, prepare_rows
from lancetable.ops.moved_rows import Prepared
from lancetable.ops.spill import Divided
from lancetable.spark.jobs import discard_update, update_of, update_result
from lancetable.spark.pin import Pin
from lancetable.spark.tasks import Json, Runner, settle_worker
from lancetable.spark.types import convert_batch, wire_schema
from lancetable.spark.verbs import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["InsertRows", "MergeFragments", "SmallSource", "compares_as_spark", "merge_small", "merged", "small_source"]

# What Spark may think of a source that is tried, and what a task of it may bring: the driver and every task hold it.
_MOST_BYTES = 32 << 20
_MOST_BYTES_OF_TASK = 16 << 20
_INSERTED_ROWS_OF_TASK = 256 << 10

_PAST = "_past"

SmallSource = tuple[bytes, ...]  # Arrow streams


def compares_as_spark(keys: Iterable[pa.DataType]) -> bool:
    """Whether keys of these types are equal for the library where they are for Spark.

    For Spark 0.0 equals -0.0, and it joins on structs and lists.
    """
    plain = (key.value_type if pa.types.is_dictionary(key) else key for key in keys)
    return not any(pa.types.is_floating(key) or pa.types.is_nested(key) for key in plain)


def small_source(frame: DataFrame) -> SmallSource | None:
    """The rows of a source in the types of the table, if Spark takes it for small and it is; else None."""
    most = _rows_of_task(wire_schema(frame.schema))
    source = frame if most is None else _first_of_tasks(frame, most)
    size = _estimated_bytes(source)
    if size is None or size > _MOST_BYTES:
        return None
    if most is not None:
        return _unless_past(source.toArrow())
    parts = source.mapInArrow(_packed, "part binary").toArrow().column(0)
    return None if parts.null_count else tuple(part.as_py() for part in parts)


def _rows_of_task(wire: pa.Schema) -> int | None:
    """How many rows a task may bring; None where rows differ in length, so that only a look at them tells."""
    try:
        bits: int = sum(field.type.bit_width for field in wire)
    except ValueError:
        return None
    return _MOST_BYTES_OF_TASK * 8 // max(1, bits)


def _first_of_tasks(frame: DataFrame, rows: int) -> DataFrame:
    """As many rows of each task, and one more of those that have it, under `_past`.

    So nothing but Spark itself runs for them: a stage of Python costs as much as the rest of a small merge.
    """
    in_task = f"monotonically_increasing_id() & {(1 << 33) - 1}"  # which begins anew, below that bit, in each task
    first = frame.selectExpr("*", f"{in_task} AS {_PAST}").where(f"{_PAST} <= {rows}")
    return first.selectExpr(*map(quoted, frame.columns), f"{_PAST} = {rows} AS {_PAST}")


def _unless_past(table: pa.Table) -> SmallSource | None:
    """The rows that `_first_of_tasks` has left as a stream, or None where it has left out some."""
    if pc.any(table[_PAST]).as_py():
        return None
    if not table.num_rows:
        return ()
    rows, sink = table.drop_columns([_PAST]), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return (sink.getvalue().to_pybytes(),)


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a task as a stream, or null where they are too many."""
    settle_worker()
    sink, writer, held = pa.BufferOutputStream(), None, 0
    for batch in batches:
        held += batch.nbytes
        if batch.num_rows and held <= _MOST_BYTES_OF_TASK:
            writer = writer or pa.ipc.new_stream(sink, batch.schema)
            writer.write_batch(batch)
    if writer is not None:
        writer.close()
    if held:  # even if there is no writer, since the first batch was too much
        part = None if held > _MOST_BYTES_OF_TASK else sink.getvalue().to_pybytes()
        yield pa.record_batch({"part": pa.array([part], pa.binary())})


def _estimated_bytes(source: Any) -> int | None:
    """What Spark expects of a frame, classic or Connect; None if it does not say."""
    try:
        if hasattr(source, "_jdf"):
            return int(str(source._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
        found = re.search(r"sizeInBytes=([0-9.]+) ([KMGTPE]i)?B", source._explain_string(mode="cost"))
    except (AttributeError, PySparkException):
        return None
    return None if found is None else int(float(found[1]) * 1024 ** ("KMGTPE".find((found[2] or "-")[0]) + 1))


def merge_small(
    runner: Runner, pin: Pin, clauses: Clauses, incoming: pa.Schema, source: SmallSource, parts: Sequence[Json]
) -> list[Json]:
    """What tasks wrote for the fragments of `parts` and for the rows that are inserted. Raises what a task refused."""
    merging = MergeFragments(pin, clauses, incoming, source)
    results = runner.run(merging, parts)
    if not clauses.insert:
        return results
    left = pyroaring.BitMap(range(sum(pa.ipc.open_stream(part).read_all().num_rows for part in source)))
    for result in results:
        left &= pyroaring.BitMap.deserialize(base64.b64decode(result["unmatched"]))
    rows = np.asarray(left.to_array(), dtype=np.int64)
    tasks = [
        {"rows": _rows_text(rows[start : start + _INSERTED_ROWS_OF_TASK])}
        for start in range(0, len(rows), _INSERTED_ROWS_OF_TASK)
    ]
    try:
        return results + runner.run(InsertRows(pin, clauses, incoming, source), tasks)
    except LanceError:
        merging.discard(results)
        raise


@dataclass(frozen=True)
class _Merging:
    pin: Pin
    clauses: Clauses
    incoming: pa.Schema
    source: SmallSource

    def batches(self) -> Iterator[pa.RecordBatch]:
        for part in self.source:
            for batch in pa.ipc.open_stream(part):
                yield convert_batch(batch, self.incoming)

    def discard(self, results: Sequence[Json]) -> None:
        discard_update(self.pin, update_of(results))


class MergeFragments(_Merging):
    """{"slices"} of whole fragments -> what `merged` says, and {"unmatched"}: rows of the source, as a bitmap."""

    def __call__(self, task: Json) -> Json:
        version = self.pin.open()
        stored = check_source(version.schema, self.clauses, self.incoming)
        with Divided(stored.to_arrow(), list(self.clauses.on)) as source:
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


def merged(prepared: Prepared, counts: Counts) -> Json:
    """What a task of a merge has prepared, and the rows of it."""
    return {
        **update_result(prepared.operation),
        "inserted": counts.inserted,
        "updated_rows": counts.updated,
        "deleted": counts.deleted,
    }


def _rows_text(rows: np.ndarray[Any, np.dtype[np.int64]]) -> str:
    return base64.b64encode(pyroaring.BitMap(rows.astype(np.uint32)).serialize()).decode()
