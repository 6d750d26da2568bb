"""`SparkTable.merge`: the builder, and the choice between its two strategies.

A small source is sent to every task (`broadcast_source.py`, `broadcast_merge.py`). Spark joins any other source with
the keys of the table (`join_merge.py`). In both cases, tasks write files, and one commit makes them visible.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import and_, or_
from typing import TYPE_CHECKING, TypedDict

import pyarrow as pa
import pyroaring
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the conventional alias

from lancetable.argument_validation import check_choice
from lancetable.errors import InvalidOperationError
from lancetable.ops.change.merge.clauses import Clauses, Counts, Matched
from lancetable.ops.change.merge.prejoined_rows import ADDRESS, IN_SOURCE
from lancetable.spark.casts import cast_source
from lancetable.spark.coordinator import run_job
from lancetable.spark.jobs.base import pin_of_plan, read_slices, schema_from_string
from lancetable.spark.merge.broadcast_merge import BroadcastMerge, keys_compare_as_in_spark, null_key_rows
from lancetable.spark.merge.broadcast_source import BroadcastSource, broadcast_source
from lancetable.spark.merge.job import DELETE, KEY, MergeJob, counts_from_results
from lancetable.spark.merge.join_merge import JoinedMerge, KeyScan
from lancetable.spark.merge.null_keys import NullKeys, null_keys_problem
from lancetable.spark.pinned_version import PinnedVersion
from lancetable.spark.schema_evolution import Evolution
from lancetable.spark.sql import check_sql_text
from lancetable.spark.task_runner import Json, SparkRunner, permanent_failure, succeeded
from lancetable.spark.types import spark_schema, table_schema

if TYPE_CHECKING:
    from lancetable.spark.table import SparkTable

_SOURCE, _PARTITION = "_source_", "_partition"


class _Changes(TypedDict):
    num_inserted_rows: int
    num_updated_rows: int
    num_deleted_rows: int


class MergeResult(_Changes, total=False):
    """Counts of the rows that a merge changed, and of the source rows that its clauses skipped.

    `num_unchanged_rows` is present with `skip_unchanged`, `num_older_rows` and `num_rows_without_order` with
    `newest_by`, and `num_null_key_rows` with `null_keys="drop"`. `repeated` is present with `txn`; it is true if the
    change was already committed, so that nothing was done.
    """

    num_unchanged_rows: int
    num_older_rows: int
    num_rows_without_order: int
    num_null_key_rows: int
    repeated: bool


@dataclass
class _SourceState:
    """The source of one call of `execute`, which all of its attempts share.

    `is_measured` is True once the size is known. `null_keys` are the positions of the rows of a small source that have
    a null in their key, unless such rows are inserted.
    """

    broadcast: BroadcastSource | None = None
    is_measured: bool = False
    null_keys: pyroaring.BitMap = field(default_factory=pyroaring.BitMap)


class SparkMergeBuilder:
    """Builder of a merge. Each `when_...` method is also available under its name in Delta's builder.

    Examples
    --------
    >>> t.merge(updates, "id").when_matched_update_all().when_not_matched_insert_all().execute()  # doctest: +SKIP
    """

    def __init__(
        self, table: SparkTable, source: DataFrame, on: tuple[str, ...], *, null_keys: NullKeys = "refuse"
    ) -> None:
        check_choice("null_keys", null_keys, NullKeys)
        self._table, self._source, self._null_keys = table, source, null_keys
        self._runner, self._cores = table.runner, table.cores()
        self._clauses = Clauses(on, insert_null_keys=null_keys == "keep")
        call = "call .with_schema_evolution()"
        self._evolution = Evolution("fixed", call, call)

    def when_matched_update_all(
        self, condition: str | None = None, *, newest_by: str | None = None, skip_unchanged: bool = False
    ) -> SparkMergeBuilder:
        """Update matched rows with all columns of the source.

        Parameters
        ----------
        condition
            SQL over `source.` and `target.` columns. Rows for which it is not true are not changed.
        newest_by
            A column of source and table, instead of a condition. A row is updated if the source value is greater than
            or equal to the stored value, or if the stored value is null. The result counts the source rows that are
            older, and those whose value is null.
        skip_unchanged
            Do not rewrite rows whose new values equal the stored ones, but count them.

        Returns
        -------
        SparkMergeBuilder
            This builder.

        Examples
        --------
        >>> t.merge(updates, "id").when_matched_update_all("source.v > target.v").execute()  # doctest: +SKIP
        """
        return self._with(
            matched=Matched.UPDATE, condition=condition, newest_by=newest_by, skip_unchanged=skip_unchanged
        )

    def when_matched_delete(self) -> SparkMergeBuilder:
        """Delete matched rows of the table.

        Returns
        -------
        SparkMergeBuilder
            This builder.
        """
        return self._with(matched=Matched.DELETE, condition=None, newest_by=None, skip_unchanged=False)

    def when_not_matched_insert_all(self) -> SparkMergeBuilder:
        """Insert source rows without a match, with nulls for missing columns.

        Returns
        -------
        SparkMergeBuilder
            This builder.
        """
        return self._with(insert=True)

    def when_not_matched_by_source_delete(self, condition: str | None = None) -> SparkMergeBuilder:
        """Delete rows of the table without a match in the source.

        Parameters
        ----------
        condition
            SQL over the columns of the table. Only rows for which it is true are deleted; all by default.

        Returns
        -------
        SparkMergeBuilder
            This builder.
        """
        return self._with(delete_unmatched=True, delete_condition=condition)

    def with_schema_evolution(self) -> SparkMergeBuilder:
        """Add columns and fields of the source that the table lacks, and widen types of the table.

        int becomes long or double, float becomes double, and date becomes timestamp_ntz. The schema changes are
        committed before the rows are merged.

        Returns
        -------
        SparkMergeBuilder
            This builder.

        Examples
        --------
        >>> t.merge(updates, "id").with_schema_evolution().when_matched_update_all().execute()  # doctest: +SKIP
        """
        self._evolution = replace(self._evolution, policy="evolve")
        return self

    withSchemaEvolution = with_schema_evolution  # noqa: N815  # Delta's name
    whenMatchedUpdateAll = when_matched_update_all  # noqa: N815  # Delta's name
    whenMatchedDelete = when_matched_delete  # noqa: N815  # Delta's name
    whenNotMatchedInsertAll = when_not_matched_insert_all  # noqa: N815  # Delta's name
    whenNotMatchedBySourceDelete = when_not_matched_by_source_delete  # noqa: N815  # Delta's name

    def execute(
        self, *, txn: tuple[str, int] | None = None, consecutive: bool = False, conflict_retries: int = 10
    ) -> MergeResult:
        """Merge and commit.

        A source of up to 32 MB that is spread evenly over its partitions is sent to every task, and computed once for
        all attempts. In a session on one machine, the limit is 256 MB, or 1 GB divided by the number of cores if that
        is less, and each row counts for 48 additional bytes. Spark joins any other source, which is several times
        slower. Such a source is computed once to find its size, and again for each attempt; persist it if this takes
        long.

        All rows of a small source are cast to the table's types, but of any other source only the rows that are
        written. In a small source, a null in a required column and a key out of the range of its type are therefore
        errors even if the row has no match and is not inserted. Keys in nanoseconds, which no Spark type supports, can
        be merged only from a small source. A value that does not fit its column is an error regardless of
        `spark.sql.ansi.enabled`. A key that a cast would change, such as 1.5 for an integer column, is an error too.

        Parameters
        ----------
        txn
            Name of an application and number of its change. A change that is already committed is not repeated. In
            `foreachBatch`, pass `txn=("name", batch_id)`.
        consecutive
            The application numbers its changes from 0 without gaps. A change that neither follows nor repeats the last
            recorded one raises InvalidOperationError.
        conflict_retries
            Maximum number of retries on the newest version after another commit changed the same rows.

        Returns
        -------
        MergeResult
            Counts of rows.

        Raises
        ------
        InvalidInputError
            If no action is selected.
        SchemaMismatchError, ColumnNotFoundError, InvalidSqlError
            If the source, a key or a condition does not fit the table.
        InvalidOperationError
            If two source rows match the same row, if a key is null and `null_keys` is "refuse", or if a consecutive
            change does not follow the last one.
        RetryableCommitConflictError
            If every attempt lost against another commit.

        Examples
        --------
        >>> t.merge(updates, "id").when_not_matched_insert_all().execute(txn=("daily", 7))  # doctest: +SKIP
        """
        self._clauses.check()
        given = table_schema(self._source.schema)
        job = MergeJob(self._table.options, txn, self._clauses, given, self._evolution, self._cores, consecutive)
        source = _SourceState()
        try:
            run = partial(self._write, source)
            done = run_job(job, self._table.coordinator, run, conflict_retries=conflict_retries)
        finally:
            if source.broadcast is not None:
                source.broadcast.close()
        counts = Counts(**done["counts"])
        result = MergeResult(
            num_inserted_rows=counts.inserted, num_updated_rows=counts.updated, num_deleted_rows=counts.deleted
        )
        if self._clauses.skip_unchanged:
            result["num_unchanged_rows"] = counts.unchanged
        if self._clauses.newest_by is not None:
            result["num_older_rows"] = counts.older
            result["num_rows_without_order"] = counts.null_order
        if self._null_keys == "drop":
            result["num_null_key_rows"] = counts.null_keys + len(source.null_keys)
        if txn is not None:
            result["repeated"] = done["repeated"]
        return result

    def _with(self, **changes: object) -> SparkMergeBuilder:
        check_sql_text(**{name: value for name, value in changes.items() if "condition" in name})
        self._clauses = replace(self._clauses, **changes)  # type: ignore[arg-type]  # names and types are those above
        return self

    def _cast(self, incoming: pa.Schema) -> DataFrame:
        return cast_source(self._source, incoming, self._evolution.widen_call)

    def _write(self, source: _SourceState, plan: Json) -> list[Json]:
        clauses, incoming = replace(self._clauses, on=tuple(plan["on"])), schema_from_string(plan["incoming"])
        pin = pin_of_plan(self._table.options, plan)
        if not source.is_measured and keys_compare_as_in_spark([incoming.field(name).type for name in clauses.on]):
            directory = self._runner.directory_of_tasks() if isinstance(self._runner, SparkRunner) else None
            source.broadcast = broadcast_source(self._cast(incoming), directory, self._cores)
            source.is_measured = True
            if source.broadcast is not None and not clauses.insert_null_keys:
                source.null_keys = null_key_rows(source.broadcast.chunks, clauses.on)
        refuses_null_keys = self._null_keys == "refuse"
        if source.broadcast is not None:
            if source.null_keys and refuses_null_keys:
                return [
                    permanent_failure(InvalidOperationError(null_keys_problem(str(len(source.null_keys)), clauses.on)))
                ]
            merge = BroadcastMerge(pin, clauses, incoming, source.broadcast.chunks)
            return merge.run(self._runner, plan["parts"], source.null_keys)
        rows = self._joined(plan, pin, clauses, incoming)
        written = rows.mapInArrow(JoinedMerge(pin, clauses, incoming).write, "result string").collect()
        results = [json.loads(row["result"]) for row in written]
        null_keys = counts_from_results(succeeded(results)).null_keys
        if null_keys and refuses_null_keys:
            results.append(permanent_failure(InvalidOperationError(null_keys_problem(str(null_keys), clauses.on))))
        return results

    def _joined(self, plan: Json, pin: PinnedVersion, clauses: Clauses, incoming: pa.Schema) -> DataFrame:
        schema = spark_schema(schema_from_string(plan["keys"]))
        keys = self._table.scan(plan["tasks"], partial(read_slices, KeyScan(pin, plan["columns"])), schema)
        # Rename the columns of the source, which may have any name.
        names = {name: f"{_SOURCE}{number}" for number, name in enumerate(incoming.names)}
        source = self._cast(incoming).toDF(*names.values()).withColumn(IN_SOURCE, F.lit(True))
        matches = reduce(and_, (F.col(f"{KEY}{n}") == F.col(names[name]) for n, name in enumerate(clauses.on)))
        null_key = reduce(or_, (F.col(names[name]).isNull() for name in clauses.on))
        # The tasks count rows with null keys, so these rows are kept even if unmatched rows are not inserted.
        counts_null_keys = not clauses.insert_null_keys
        joins = (("inner", "right_outer"), ("left_outer", "full_outer"))
        how = joins[clauses.delete_unmatched][clauses.insert or counts_null_keys]
        rows = keys.join(source, matches, how).withColumn(IN_SOURCE, F.coalesce(F.col(IN_SOURCE), F.lit(False)))
        if counts_null_keys and not clauses.insert:
            rows = rows.where(F.col(ADDRESS).isNotNull() | null_key)
        if clauses.delete_unmatched:
            rows = rows.where(F.col(IN_SOURCE) | F.coalesce(F.col(DELETE), F.lit(False)))
        if clauses.matched is Matched.KEEP:
            rows = rows.where(F.col(ADDRESS).isNull() | ~F.col(IN_SOURCE))
        hashed = F.pmod(F.xxhash64(*[names[name] for name in clauses.on]), F.lit(1 << 20))
        partition = F.when(F.col(ADDRESS).isNull(), -1 - hashed).otherwise(F.shiftrightunsigned(F.col(ADDRESS), 32))
        return (
            rows.select(*names.values(), ADDRESS, IN_SOURCE, partition.alias(_PARTITION))
            .repartition(F.col(_PARTITION))
            .sortWithinPartitions(F.col(ADDRESS).asc_nulls_last())
            .drop(_PARTITION)
        )
