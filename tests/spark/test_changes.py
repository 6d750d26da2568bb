"""`SparkTable.changes`: by row id and by key, against what was done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import ColumnNotFoundError, InvalidInputError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

pytestmark = pytest.mark.spark


def found(frame: Any) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["v"], row["_change_type"], row["_commit_version"]) for row in frame.collect())


@pytest.mark.parametrize("stable", [True, False])
def test_inserts_updates_and_deletes_between_two_versions(spark: Any, tmp_path: Path, stable: bool) -> None:
    from lancetable.spark import SparkTable, write_table

    path = str(tmp_path / "t.lance")
    rows = spark.range(0, 100, 1, 4).selectExpr("id", "0.0D AS v", "map('a', id) AS m")
    write_table(rows, path, enable_stable_row_ids=stable)
    t = SparkTable.for_path(spark, path)
    t.delete("id = 7")  # version 2
    t.update({"v": "1"}, where="id = 8")  # 3
    t.compact()  # 4, 5
    t.insert(rows.where("id < 2").selectExpr("id + 200 AS id", "v", "m"))  # 6
    lance.dataset(path).delete("id = 50")  # 7
    expected = [
        (7, 0.0, "delete", None),
        (8, 0.0, "update_preimage", 3),
        (8, 1.0, "update_postimage", 3),
        (50, 0.0, "delete", None),
        (200, 0.0, "insert", 6),
        (201, 0.0, "insert", 6),
    ]
    if not stable:
        with pytest.raises(InvalidInputError, match="enable_stable_row_ids"):
            t.changes(1)
        expected = [(*row[:3], None) for row in expected]
    key = None if stable else "id"
    whole = t.changes(1, key=key)
    assert whole.columns == ["id", "v", "m", "_change_type", "_commit_version"]
    assert found(whole) == sorted(expected)
    assert found(t.changes(3, 5, key=key)) == []  # a compaction changes no rows
    backwards = {(row[0], row[2]) for row in found(t.changes(7, 6, key=key))}
    assert backwards == {(50, "insert")}
    with pytest.raises(ColumnNotFoundError):
        t.changes(1, key="k")


def test_a_key_that_occurs_twice_is_an_error(spark: Any, tmp_path: Path) -> None:
    from lancetable.spark import SparkTable

    path = str(tmp_path / "t.lance")
    lancetable.write_dataset(pa.table({"id": [1, 2]}), path)
    lancetable.write_dataset(pa.table({"id": [3, 3]}), path, mode="append")
    with pytest.raises(Exception, match="more than once"):
        SparkTable.for_path(spark, path).changes(1, key="id").collect()


def test_changes_over_a_new_column_have_its_values(spark: Any, tmp_path: Path) -> None:
    from lancetable.spark import SparkTable

    path = str(tmp_path / "t.lance")
    lancetable.write_dataset(pa.table({"id": [1, 2]}), path)
    t = SparkTable.for_path(spark, path)
    t.add_columns({"w": "id * 5"})
    t.insert(spark.createDataFrame([(3, 15)], "id bigint, w bigint"))
    rows = sorted((row["id"], row["w"], row["_change_type"]) for row in t.changes(1, key="id").collect() if row["w"])
    assert rows == [(1, 5, "update_postimage"), (2, 10, "update_postimage"), (3, 15, "insert")]
