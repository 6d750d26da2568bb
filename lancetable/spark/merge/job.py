"""The plan and the commit of a merge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import ClassVar

import pyarrow as pa

from lancetable.errors import SchemaMismatchError, UnsupportedFeatureError
from lancetable.ops.change.batch_history import follows
from lancetable.ops.change.merge.clauses import Clauses, Condition, Counts, check_source, key_fields
from lancetable.ops.change.merge.prejoined_rows import ADDRESS, IN_SOURCE
from lancetable.ops.change.rewritten_rows import Prepared
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.read.splits import plan_splits
from lancetable.spark.jobs.base import RowsJob, rows_per_task, schema_to_string, tasks_of_slices, update_to_json
from lancetable.spark.options import DEFAULT_TASK_BYTES, DEFAULT_TASK_ROWS
from lancetable.spark.runner import Json
from lancetable.spark.sql import quote_name
from lancetable.table.version import TableVersion

KEY, DELETE = "_key_", "_delete"


@dataclass(frozen=True)
class MergeJob(RowsJob):
    """Job that merges a source, planned for both strategies.

    In the plan, `tasks` scan the keys for a join in Spark, and `parts` are groups of whole fragments for tasks that get
    the whole source.
    """

    clauses: Clauses
    source: Sequence[str]
    cores: int | None
    consecutive: bool = False

    repeated: ClassVar[Json] = {"counts": asdict(Counts()), "repeated": True}

    def is_repeat(self, version: TableVersion) -> bool:
        """Return True if a version contains the change. Otherwise, a consecutive change must follow the last one."""
        if self.txn is None or not self.consecutive:
            return super().is_repeat(version)
        remedy = "consecutive=False for this change (of a pipeline: continue_from_checkpoint=True)"
        return not follows(version, *self.txn, remedy=remedy)

    def plan_tasks(self, version: TableVersion) -> Json:
        """Return the plan of both strategies.

        Raises
        ------
        SchemaMismatchError, ColumnNotFoundError, InvalidSqlError
            If the source, a key or a condition does not fit the table.
        UnsupportedFeatureError
            If a column of the source has a name that the merge reserves.
        """
        on = tuple(field.name for field in key_fields(version.schema, self.clauses.on))
        incoming = incoming_schema(version, self.source)
        check_source(version.schema, replace(self.clauses, on=on), incoming)
        for name in (ADDRESS, IN_SOURCE):
            if name in incoming.names:
                raise UnsupportedFeatureError(f"a merge by Spark has a column {name!r} of its own", feature="merge")
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


def incoming_schema(version: TableVersion, names: Sequence[str]) -> pa.Schema:
    """Return the table's fields for the columns of a source, in the table's order.

    Raises
    ------
    SchemaMismatchError
        If the table lacks a column of the source.
    """
    table = version.schema.to_arrow()
    unknown = [name for name in names if name not in table.names]
    if unknown:
        raise SchemaMismatchError(
            f"the source has a column {unknown[0]!r} that {version.uri} does not have; it has {', '.join(table.names)}",
            column=unknown[0],
        )
    return pa.schema([field for field in table if field.name in names])


def merge_to_json(prepared: Prepared, counts: Counts) -> Json:
    """Return the result of a task of a merge: an uncommitted Update and its counts, as JSON."""
    return {**update_to_json(prepared.operation), "counts": asdict(counts)}


def counts_from_results(results: Iterable[Json]) -> Counts:
    """Return the sum of the counts of all tasks of a merge."""
    total = Counts()
    for result in results:
        total.add(Counts(**result["counts"]))
    return total
