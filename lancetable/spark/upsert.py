"""Upserts of frames: the newest row of each key is merged, and the counts cover every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from operator import or_
from typing import Any, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the conventional alias
from pyspark.sql import types as st
from pyspark.sql.window import Window
from pyspark.storagelevel import StorageLevel

from lancetable.argument_validation import check_choice
from lancetable.errors import ColumnNotFoundError, InvalidOperationError
from lancetable.spark.casts import cast_source
from lancetable.spark.merge import MergeResult
from lancetable.spark.merge.null_keys import NullKeys, null_keys_problem
from lancetable.spark.schema_evolution import Evolution, SchemaPolicy
from lancetable.spark.sql import quote_name
from lancetable.spark.table import SparkTable

_RANK = "_lancetable_rank"
_ORDERED = (
    *(st.BinaryType, st.BooleanType, st.DateType, st.NumericType),
    *(st.StringType, st.TimestampNTZType, st.TimestampType),
)


class UpsertResult(MergeResult, total=False):
    """Counts of an upsert. All except `num_source_rows` and `num_deleted_rows` add up to `num_source_rows`.

    `num_superseded_rows` counts rows that were replaced by another row of the frame with the same key. The other counts
    are those of `MergeResult`. For a change that is already committed, `repeated` is true, and all counts except
    `num_source_rows` are 0. `schema_changes` describes the changes of the table schema.
    """

    num_source_rows: int
    num_superseded_rows: int
    schema_changes: list[str]


def upsert(
    table: SparkTable,
    frame: DataFrame,
    key: Sequence[str],
    *,
    newest_by: str | None = None,
    null_keys: NullKeys = "refuse",
    txn: tuple[str, int] | None = None,
    consecutive: bool = False,
    persist: bool = True,
    schema: SchemaPolicy = "fixed",
) -> UpsertResult:
    """Merge a frame by key: matched rows are updated, the others are inserted.

    Parameters
    ----------
    table
        The table to merge into.
    frame
        Rows with columns of the table. They are cast to its types; a value that the cast would change is an error.
    key
        The columns that identify a row.
    newest_by
        A column that determines the newest row of a key, among those of the frame and the stored row: the row with the
        greatest value. A null is older than any value. If rows of the frame have equal values, the one with the
        greatest values in the other columns, compared in order, is merged. It replaces a stored row with an equal
        value. Without `newest_by`, each key must be unique in the frame.
    null_keys
        Treatment of rows with a null in a key column. Such a row has no match, so each repeated upsert would insert it
        again. "refuse" raises an error, "drop" drops and counts the rows, and "keep" inserts them every time.
    txn
        Name of an application and number of its change. A change that is already committed is not repeated. In
        `foreachBatch`, pass a name of the stream and the number of the batch.
    consecutive
        The application numbers its changes from 0 without gaps, like Spark. A change that neither follows nor repeats
        the last recorded one raises InvalidOperationError, because the table or the checkpoint was replaced.
    persist
        Persist the frame during the call, because it is counted, and then read by each attempt to merge. Pass False if
        the frame is cheap to compute and has the same rows each time.
    schema
        Permitted changes of the table schema. "fixed" raises an error for columns and fields that the table lacks,
        "add" adds them, and "evolve" also widens types of the table: int to long, float to double, int to double, date
        to timestamp_ntz. Additions and wider types are committed separately, before the rows.

    Returns
    -------
    UpsertResult
        Counts, which cover every row of the frame. Rows that equal the stored row are not written.

    Raises
    ------
    ColumnNotFoundError
        If the frame lacks a key column or `newest_by`.
    InvalidInputError
        If `null_keys` or `schema` is unknown.
    InvalidOperationError
        If a key is null and `null_keys` is "refuse", if a key occurs twice without `newest_by`, or if a consecutive
        change does not follow the last one.
    SchemaMismatchError
        If the table lacks a column or a nested field of the frame, unless `schema` adds it.

    Examples
    --------
    >>> def merge(batch, number):  # doctest: +SKIP
    ...     table = SparkTable.for_path(batch.sparkSession, uri)
    ...     upsert(table, batch, ["id"], txn=("my stream", number), consecutive=True)
    >>> query = stream.writeStream.foreachBatch(merge).option("checkpointLocation", cp).start()  # doctest: +SKIP
    """
    keys = [key] if isinstance(key, str) else list(key)
    for name in [*keys, *([] if newest_by is None else [newest_by])]:
        if name not in frame.columns:
            raise ColumnNotFoundError(
                f"the source has no column {name!r}; it has {', '.join(frame.columns)}", column=name
            )
    check_choice("null_keys", null_keys, NullKeys)
    evolution = Evolution(schema)
    fields, changes = table.fit_to(frame.schema, evolution)
    frame = cast_source(frame, fields, evolution.widen_call)
    with ExitStack() as stack:
        if persist and frame.storageLevel == StorageLevel.NONE:
            stack.callback(frame.persist().unpersist)
        has_null_key = reduce(or_, (F.col(quote_name(name)).isNull() for name in keys), F.lit(False))
        total, without_key = frame.agg(F.count(F.lit(1)), F.count_if(has_null_key)).collect()[0]
        if without_key and null_keys == "refuse":
            raise InvalidOperationError(null_keys_problem(f"{without_key} of {total}", keys))
        dropped = without_key if null_keys == "drop" else 0
        if total == dropped and txn is None:
            return _result({}, total, dropped, changes)
        rows = frame.where(~has_null_key) if dropped else frame
        rows = _unique(rows, keys, has_null_key) if newest_by is None else _newest(rows, keys, newest_by, has_null_key)
        merge = table.merge(rows, keys, null_keys="keep")
        merge = merge.when_matched_update_all(newest_by=newest_by, skip_unchanged=True).when_not_matched_insert_all()
        merged = merge.execute(txn=txn, consecutive=consecutive)
        return _result({**merged}, total, dropped, changes)


def _result(merged: Mapping[str, Any], total: int, dropped: int, schema_changes: list[str]) -> UpsertResult:
    counts = {name: merged.get(name, 0) for name in _OUTCOMES}
    repeated = bool(merged.get("repeated", False))
    superseded = total - dropped - sum(counts.values())
    numbers = {
        **counts,
        "num_source_rows": total,
        "num_deleted_rows": 0,
        "num_null_key_rows": 0 if repeated else dropped,
        "num_superseded_rows": 0 if repeated else superseded,
        "repeated": repeated,
        "schema_changes": schema_changes,
    }
    return cast("UpsertResult", numbers)


_OUTCOMES = (
    "num_inserted_rows",
    "num_updated_rows",
    "num_unchanged_rows",
    "num_older_rows",
    "num_rows_without_order",
)


def _unique(frame: DataFrame, keys: list[str], has_null_key: Column) -> DataFrame:
    columns = [F.col(quote_name(name)) for name in keys]
    for row in frame.where(~has_null_key).groupBy(*columns).count().where("count > 1").limit(1).collect():
        twice = ", ".join(f"{name} = {row[number]}" for number, name in enumerate(keys))
        raise InvalidOperationError(
            f"{row['count']} source rows have the key {twice}: remove duplicates, or pass newest_by, the column that"
            " determines the newest row"
        )
    return frame


def _newest(frame: DataFrame, keys: list[str], newest_by: str, has_null_key: Column) -> DataFrame:
    """Return the newest row of each key, and all rows with a null key, because null keys are not equal."""
    others = [
        field.name
        for field in frame.schema.fields
        if field.name not in (*keys, newest_by) and isinstance(field.dataType, _ORDERED)
    ]
    order = [F.col(quote_name(name)).desc_nulls_last() for name in [newest_by, *others]]
    window = Window.partitionBy(*[F.col(quote_name(name)) for name in keys]).orderBy(*order)
    ranked = frame.withColumn(_RANK, F.row_number().over(window))
    return ranked.where((F.col(_RANK) == 1) | has_null_key).drop(_RANK)
