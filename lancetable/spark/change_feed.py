"""Rows that differ between two versions. Rows are matched by row id or by key.

older rows ─┐ by row id   one row: insert or delete
newer rows ─┘ or key      two rows: update, if their last update or their values differ
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the conventional alias
from pyspark.sql.window import Window

from lancetable.errors import ColumnNotFoundError
from lancetable.ops.read.diff import LINEAGE
from lancetable.spark.sql import quote_name

_IS_NEW, _KIND, _VERSION = "_lancetable_is_new", "_change_type", "_commit_version"


def changed_rows(older: DataFrame, newer: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the changes from the older to the newer rows, matched by keys or, without keys, by row id.

    Raises
    ------
    ColumnNotFoundError
        If one of the versions lacks a key column.
    """
    for name in keys:
        if name not in older.columns or name not in newer.columns:
            raise ColumnNotFoundError(f"key column {name!r} is not in both versions", column=name)
    row_id, created_at, updated_at = LINEAGE
    columns = [_column(name) for name in newer.columns if keys or name not in LINEAGE]
    rows = newer.withColumn(_IS_NEW, F.lit(True))
    rows = rows.unionByName(older.withColumn(_IS_NEW, F.lit(False)), allowMissingColumns=True)
    on, is_new = [_column(name) for name in keys or [row_id]], _column(_IS_NEW)
    pair, one_side = Window.partitionBy(*on), Window.partitionBy(*on, is_new)
    value = F.to_json(F.struct(*columns)) if keys else _column(updated_at)  # as JSON, because Spark cannot compare maps
    is_single = F.count(F.lit(1)).over(pair) == 1
    kind = (
        F.when(
            F.count(F.lit(1)).over(one_side) > 1,
            F.raise_error(F.concat(F.lit("the key occurs more than once in a version: "), F.to_json(F.struct(*on)))),
        )
        .when(is_single, F.when(is_new, "insert").otherwise("delete"))
        .when(
            F.min(value).over(pair) != F.max(value).over(pair),
            F.when(is_new, "update_postimage").otherwise("update_preimage"),
        )
    )
    version = F.lit(None) if keys else F.when(~is_single, F.max(value).over(pair)).when(is_new, _column(created_at))
    changes = rows.select(*columns, kind.alias(_KIND), version.cast("bigint").alias(_VERSION))
    return changes.where(_column(_KIND).isNotNull())


def _column(name: str) -> Column:
    return F.col(quote_name(name))
