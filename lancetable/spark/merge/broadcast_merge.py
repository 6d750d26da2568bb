"""Merges of a small source: every task gets the whole source and merges it into some fragments.

    tasks of fragments ─► files, and the positions of source rows without a match there
    source rows without a match in any fragment ─► tasks that insert them ─► files

A join in Spark would shuffle the keys of the whole table, regardless of the size of the source. Here, no row of the
table is shuffled, and zone maps limit the reads.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyroaring

from lancetable.format.roaring import build_roaring
from lancetable.ops.change.merge.clauses import Clauses, check_source, null_keys
from lancetable.ops.change.merge.merge_insert import load_source, prepare_part
from lancetable.ops.change.merge.prejoined_rows import ADDRESS, IN_SOURCE
from lancetable.ops.change.spill import PartitionedRows
from lancetable.spark.jobs.base import fragment_ids
from lancetable.spark.merge.broadcast_source import SourceChunk, open_chunk
from lancetable.spark.merge.job import merge_prejoined, merge_to_json
from lancetable.spark.pinned_version import PinnedVersion
from lancetable.spark.task_runner import Json, Runner, succeeded
from lancetable.spark.types import convert_batch

_INSERTED_ROWS_OF_TASK = 256 << 10


def keys_compare_as_in_spark(keys: Iterable[pa.DataType]) -> bool:
    """Return True if keys of these types are equal in the library whenever they are equal in Spark.

    Floating-point keys are excluded because 0.0 equals -0.0 in Spark, and nested and null types because only Spark can
    join them.
    """
    plain = [key.value_type if pa.types.is_dictionary(key) else key for key in keys]
    others = (pa.types.is_floating, pa.types.is_nested, pa.types.is_null)
    return not any(is_other(key) for key in plain for is_other in others)


def null_key_rows(source: tuple[SourceChunk, ...], on: Sequence[str]) -> pyroaring.BitMap:
    """Return the positions of the source rows that have a null in their key."""
    batches = (batch for chunk in source for batch in open_chunk(chunk))
    has_null = [null_keys([batch.column(name) for name in on]) for batch in batches]
    return pyroaring.BitMap(np.flatnonzero(np.concatenate(has_null))) if has_null else pyroaring.BitMap()


@dataclass(frozen=True)
class BroadcastMerge:
    """Picklable merge whose tasks get the whole source. `incoming` is the schema of the source."""

    pin: PinnedVersion
    clauses: Clauses
    incoming: pa.Schema
    source: tuple[SourceChunk, ...]

    def run(self, runner: Runner, parts: Sequence[Json], dropped: pyroaring.BitMap) -> list[Json]:
        """Merge into the fragments of `parts`, then insert source rows. Return the results of all tasks.

        If a task fails, nothing is inserted, and its result contains the error. Source rows at the positions `dropped`
        are not inserted.
        """
        results = runner.run(self.merge_fragments, parts)
        if not self.clauses.insert or len(succeeded(results)) < len(results):
            return results
        left = pyroaring.BitMap(range(sum(open_chunk(chunk).read_all().num_rows for chunk in self.source)))
        for result in results:
            left &= pyroaring.BitMap.deserialize(base64.b64decode(result["unmatched"]))
        rows = np.asarray((left - dropped).to_array(), dtype=np.int64)
        tasks = [
            {"rows": _rows_to_json(rows[start : start + _INSERTED_ROWS_OF_TASK])}
            for start in range(0, len(rows), _INSERTED_ROWS_OF_TASK)
        ]
        return results + runner.run(self.insert_rows, tasks)

    def merge_fragments(self, task: Json) -> Json:
        """Merge into some fragments: map {"slices"} to an Update and {"unmatched"}, a bitmap of source positions."""
        version = self.pin.open()
        stored = check_source(version.schema, self.clauses, self.incoming)
        with PartitionedRows(stored.to_storage_arrow(), self.clauses.on) as source:
            load_source(stored, self._batches(), source, None)
            prepared, counts, unmatched = prepare_part(version, self.clauses, source, set(fragment_ids(task)))
        version.store.sync(version.base)
        return {**merge_to_json(prepared, counts), "unmatched": _rows_to_json(unmatched)}

    def insert_rows(self, task: Json) -> Json:
        """Insert source rows: map {"rows"}, a bitmap of positions, to an Update with counts."""
        rows = np.asarray(pyroaring.BitMap.deserialize(base64.b64decode(task["rows"])).to_array(), dtype=np.int64)
        inserted = pa.Table.from_batches(self._batches(), self.incoming).take(pa.array(rows))
        inserted = inserted.append_column(ADDRESS, pa.nulls(len(rows), pa.int64()))
        inserted = inserted.append_column(IN_SOURCE, pa.repeat(True, len(rows)))
        return merge_prejoined(self.pin, self.clauses, self.incoming, inserted.to_batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for chunk in self.source:
            for batch in open_chunk(chunk):
                yield convert_batch(batch, self.incoming)


def _rows_to_json(rows: np.ndarray[Any, np.dtype[np.int64]]) -> str:
    return base64.b64encode(build_roaring(rows)).decode()
