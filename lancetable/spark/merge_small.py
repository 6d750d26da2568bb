"""The tasks of a merge whose source is within reach of all of them: each finds and writes what comes of the rows of
some fragments.

    attempt   tasks of fragments ─► files, and the source rows that matched nothing there
              source rows that matched nothing anywhere ─► tasks that insert them ─► files

A join in Spark would send the keys of the whole table to its executors' other side, whatever the size of the source.
Here nothing of the table leaves the tasks, and zone maps say which rows to read at all.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyroaring

from lancetable.ops.merge_clauses import Clauses, check_source, null_keys
from lancetable.ops.merge_insert import load_source, prepare_part
from lancetable.ops.merge_rows import ADDRESS, IN_SOURCE, prepare_rows
from lancetable.ops.spill import Divided
from lancetable.spark.jobs import merged
from lancetable.spark.pin import Pin
from lancetable.spark.small_source import Part, open_part
from lancetable.spark.tasks import Json, Runner, not_refused
from lancetable.spark.types import convert_batch
from lancetable.table._offset_files import build_roaring

__all__ = ["InsertRows", "MergeFragments", "compares_as_spark", "merge_small", "null_key_rows"]

_INSERTED_ROWS_OF_TASK = 256 << 10


def compares_as_spark(keys: Iterable[pa.DataType]) -> bool:
    """Whether keys of these types are equal for the library where they are for Spark.

    For Spark 0.0 equals -0.0, and it joins on structs, lists and what is always null.
    """
    plain = [key.value_type if pa.types.is_dictionary(key) else key for key in keys]
    others = (pa.types.is_floating, pa.types.is_nested, pa.types.is_null)
    return not any(is_other(key) for key in plain for is_other in others)


def null_key_rows(source: tuple[Part, ...], on: Sequence[str]) -> pyroaring.BitMap:
    """Return the positions of the source rows that have a null in their key."""
    start, found = 0, pyroaring.BitMap()
    for part in source:
        for batch in open_part(part):
            null = null_keys([batch.column(name) for name in on])
            found |= pyroaring.BitMap(np.flatnonzero(null) + start)
            start += batch.num_rows
    return found


def merge_small(
    runner: Runner,
    pin: Pin,
    clauses: Clauses,
    incoming: pa.Schema,
    source: tuple[Part, ...],
    parts: Sequence[Json],
    dropped: pyroaring.BitMap | None = None,
) -> list[Json]:
    """Return what tasks wrote for the fragments of `parts` and for inserted rows, or that they were refused.

    Source rows at the positions `dropped` are not inserted.
    """
    results = runner.run(MergeFragments(pin, clauses, incoming, source), parts)
    if not clauses.insert or len(not_refused(results)) < len(results):
        return results
    left = pyroaring.BitMap(range(sum(open_part(part).read_all().num_rows for part in source)))
    for result in results:
        left &= pyroaring.BitMap.deserialize(base64.b64decode(result["unmatched"]))
    rows = np.asarray((left - dropped if dropped else left).to_array(), dtype=np.int64)
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
    source: tuple[Part, ...]

    def batches(self) -> Iterator[pa.RecordBatch]:
        for part in self.source:
            for batch in open_part(part):
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
