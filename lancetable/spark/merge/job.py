"""The plan and the commit of a merge."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import ClassVar

import pyarrow as pa

from lancetable.errors import UnsupportedFeatureError
from lancetable.ops.change.batch_history import follows
from lancetable.ops.change.merge.clauses import Clauses, Condition, Counts, check_source, key_fields
from lancetable.ops.change.merge.prejoined_rows import ADDRESS, IN_SOURCE, prepare_prejoined
from lancetable.ops.change.rewritten_rows import Prepared
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.read.splits import plan_splits
from lancetable.spark.jobs.base import (
    RowsJob,
    pin_to_json,
    rows_per_task,
    schema_to_string,
    tasks_of_slices,
    update_to_json,
)
from lancetable.spark.options import DEFAULT_TASK_BYTES, DEFAULT_TASK_ROWS
from lancetable.spark.pinned_version import PinnedVersion
from lancetable.spark.schema_evolution import Evolution, fit_table
from lancetable.spark.sql import quote_name
from lancetable.spark.task_runner import Json
from lancetable.table.version import TableVersion

KEY, DELETE = "_key_", "_delete"


@dataclass(frozen=True)
class MergeJob(RowsJob):
    """Job that merges a source, planned for both strategies.

    In the plan, `tasks` scan the keys for a join in Spark, and `parts` are groups of whole fragments for tasks that get
    the whole source.
    """

    clauses: Clauses
    source: pa.Schema
    evolution: Evolution
    cores: int | None
    consecutive: bool = False
    verb = "merge"

    repeated: ClassVar[Json] = {"counts": asdict(Counts()), "repeated": True}

    def is_repeat(self, version: TableVersion) -> bool:
        """Return True if a version contains the change. Otherwise, a consecutive change must follow the last one."""
        if self.txn is None or not self.consecutive:
            return super().is_repeat(version)
        remedy = "consecutive=False for this change (of a pipeline: continue_from_checkpoint=True)"
        return not follows(version, *self.txn, remedy=remedy)

    def plan_tasks(self, version: TableVersion) -> Json:
        """Return the plan of both strategies. Before that, change the schema of the table if it evolves.

        Raises
        ------
        SchemaMismatchError, ColumnNotFoundError, InvalidSqlError
            If the source, a key or a condition does not fit the table.
        UnsupportedFeatureError
            If a column of the source has a name that the merge reserves.
        """
        on = tuple(field.name for field in key_fields(version.schema, self.clauses.on))
        for name in sorted({ADDRESS, IN_SOURCE}.intersection(self.source.names)):
            problem = f"the source must not contain column {name!r}, which the merge reserves; rename it"
            raise UnsupportedFeatureError(problem, feature="merge")
        version, incoming, _ = fit_table(version, self.source, self.evolution, inserts=self.clauses.insert)
        check_source(version.schema, replace(self.clauses, on=on), incoming)
        condition = self.clauses.update_condition
        if condition is not None:
            Condition(condition, version.schema, set(incoming.names))  # raises here rather than in every task
        columns = {f"{KEY}{number}": quote_name(name) for number, name in enumerate(on)}
        if self.clauses.delete_unmatched:
            columns[DELETE] = "true" if self.clauses.delete_condition is None else self.clauses.delete_condition
        keys = plan_scan(version, ScanOptions(columns=columns)).output_schema.append(pa.field(ADDRESS, pa.int64()))
        split = partial(plan_splits, version, columns=on, task_bytes=DEFAULT_TASK_BYTES)
        # Each part builds an index of the source and writes its own file, so there is only about one part per core.
        parts = split(task_rows=rows_per_task(version, self.cores), whole_fragments=True)
        return {
            "pin": pin_to_json(version),
            "on": list(on),
            "incoming": schema_to_string(incoming),
            "columns": columns,
            "keys": schema_to_string(keys),
            "tasks": tasks_of_slices(split(task_rows=DEFAULT_TASK_ROWS)),
            "parts": tasks_of_slices(parts),
        }

    def inserts_keys(self, base: TableVersion, plan: Json) -> bool:
        """Return True if rows are inserted and the keys of the merge are the primary key of the table."""
        primary = {field.name for field in base.schema.primary_key()}
        return self.clauses.insert and bool(primary) and primary == set(plan["on"])

    def result(self, results: list[Json]) -> Json:
        """Return the counts of all tasks."""
        return {"counts": asdict(counts_from_results(results)), "repeated": False}


def merge_prejoined(
    pin: PinnedVersion, clauses: Clauses, incoming: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Json:
    """Merge joined rows in a task, and return its result."""
    version = pin.open()
    prepared, counts = prepare_prejoined(version, clauses, check_source(version.schema, clauses, incoming), batches)
    version.store.sync(version.base)
    return merge_to_json(prepared, counts)


def merge_to_json(prepared: Prepared, counts: Counts) -> Json:
    """Return the result of a task of a merge: an uncommitted Update and its counts, as JSON."""
    return {**update_to_json(prepared.operation), "counts": asdict(counts)}


def counts_from_results(results: Iterable[Json]) -> Counts:
    """Return the sum of the counts of all tasks of a merge."""
    total = Counts()
    for result in results:
        total.add(Counts(**result["counts"]))
    return total
