"""Nearest-neighbour search in Spark: equal to a local search, whatever the tasks and the form of the queries."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import ColumnNotFoundError, InvalidInputError, VersionNotFoundError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.spark import SparkTable
from lancetable.spark.nearest import VectorSearch, collect_queries, plan_search
from tests.index.vector.built_tables import clustered, table_of

pytestmark = pytest.mark.spark
DIM = 6


def vectors(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 4, (count, DIM)).astype(np.float32)  # many equal distances


def rows(count: int) -> pa.Table:
    values = pa.FixedSizeListArray.from_arrays(vectors(count).reshape(-1), DIM)
    return pa.table({"id": pa.array(range(count), pa.int64()), "s": [f"row {i}" for i in range(count)], "v": values})


@pytest.fixture(scope="module")
def table(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> SparkTable:
    path = tmp_path_factory.mktemp("nearest") / "t.lance"
    ds = lancetable.write_dataset(rows(400), path, max_rows_per_file=50, enable_stable_row_ids=True)
    ds.delete("id % 10 = 3")
    ds.update({"s": "'moved'"}, where="id IN (1, 77)")
    return SparkTable.for_path(spark, str(path))


def local(t: SparkTable, q: Any, **arguments: Any) -> list[dict[str, Any]]:
    scan = {name: arguments.pop(name) for name in ("columns", "filter") if name in arguments}
    nearest = {"column": "v", "q": q, "k": 10, **arguments}
    found: list[dict[str, Any]] = t.dataset.to_table(nearest=nearest, prefilter=True, **scan).to_pylist()
    return found


def listed(frame: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def test_one_query_has_the_rows_of_a_local_search(table: SparkTable) -> None:
    query = vectors(1, seed=5)[0]
    for arguments in (
        {},
        {"k": 3, "metric": "cosine"},
        {"k": 25, "filter": "id > 100 AND s != 'moved'", "columns": ["s", "id"]},
        {"distance_range": (3.0, 6.0)},
        {"k": 1000},
    ):
        found = listed(table.nearest(query, "v", target_rows_per_task=90, **arguments))
        assert found == local(table, query, **arguments), arguments
    theirs = lance.dataset(table.options.uri).to_table(nearest={"column": "v", "q": query, "k": 10}, columns=["id"])
    assert [row["_distance"] for row in listed(table.nearest(query.tolist(), "v"))] == theirs["_distance"].to_pylist()


def test_each_query_of_a_list_has_its_nearest_rows(table: SparkTable) -> None:
    queries = vectors(7, seed=6)
    found = table.nearest(queries, "v", 4, columns=["id"], target_rows_per_task=90)
    assert found.columns == ["query_index", "id", "_distance"]
    assert listed(found) == local(table, queries, k=4, columns=["id"])
    assert listed(table.nearest([queries[0].tolist()], "v", 4, columns=["id"])) == local(
        table, queries[:1], k=4, columns=["id"]
    )


def test_queries_of_a_frame_keep_their_ids(spark: Any, table: SparkTable) -> None:
    queries = vectors(5, seed=7)
    frame = spark.createDataFrame(
        [(f"q{i}", queries[i].tolist(), i) for i in range(5)], "query_id string, v array<float>, n int"
    )
    found = table.nearest(frame.withColumnRenamed("v", "vector"), "v", 3, columns=["s"], target_rows_per_task=90)
    assert found.schema.simpleString() == "struct<query_id:string,s:string,_distance:float>"
    wanted = [{"query_id": f"q{row.pop('query_index')}", **row} for row in local(table, queries, k=3, columns=["s"])]
    assert listed(found) == wanted
    assert found.where("query_id = 'q2'").count() == 3
    none = table.nearest(frame.where("n > 10").selectExpr("query_id", "v AS vector"), "v", columns=["id"])
    assert none.columns == ["query_id", "id", "_distance"] and none.count() == 0
    with pytest.raises(InvalidInputError, match="'vector' is missing"):
        table.nearest(frame, "v")
    with pytest.raises(InvalidInputError, match="does not match"):
        table.nearest(frame.selectExpr("query_id", "array(1.0, 2.0) AS vector"), "v")


def test_a_search_reads_one_version(spark: Any, tmp_path: Path) -> None:
    lancetable.write_dataset(rows(40), tmp_path / "t.lance")
    t = SparkTable.for_path(spark, str(tmp_path / "t.lance"))
    query = rows(40)["v"][7].as_py()
    frame = t.nearest(query, "v", 1, columns=["id"])
    t.delete("id = 7")
    assert [row["id"] for row in listed(frame)] == [7] == [r["id"] for r in listed(t.nearest(query, "v", 1, version=1))]
    assert [row["id"] for row in listed(t.nearest(query, "v", 1))] != [7]
    assert t.nearest(query, "v", filter="id < 0").count() == 0
    lancetable.write_dataset(rows(0), tmp_path / "empty.lance")
    empty = SparkTable.for_path(spark, str(tmp_path / "empty.lance"))
    for queries in (query, [query]):
        assert empty.nearest(queries, "v").collect() == []
    with pytest.raises(VersionNotFoundError):
        t.nearest(query, "v", version=9)
    with pytest.raises(ColumnNotFoundError):
        t.nearest(query, "w")


def test_vectors_of_other_types_are_searched(spark: Any, tmp_path: Path) -> None:
    bits = np.random.default_rng(1).integers(0, 256, (30, 4), dtype=np.uint8)
    many = pa.array(
        [[[float(i), 1.0], [2.0, float(-i)]][: 1 + i % 2] for i in range(30)], pa.list_(pa.list_(pa.float64(), 2))
    )
    table = pa.table({"id": range(30), "v": pa.FixedSizeListArray.from_arrays(bits.reshape(-1), 4), "m": many})
    lancetable.write_dataset(table, tmp_path / "t.lance", max_rows_per_file=10)
    t = SparkTable.for_path(spark, str(tmp_path / "t.lance"))
    for column, query in (("v", bits[5].tolist()), ("m", [[1.0, 2.0], [3.0, 1.0]])):
        wanted = t.dataset.to_table(nearest={"column": column, "q": query, "k": 5}, columns=["id"]).to_pylist()
        assert listed(t.nearest(query, column, 5, columns=["id"], target_rows_per_task=10)) == wanted
    frame = spark.createDataFrame([(1, [1.0, 2.0])], "query_id int, vector array<double>")
    with pytest.raises(InvalidInputError, match="one query at a time"):
        t.nearest(frame, "m")


def test_too_many_queries_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="in parts"):
        collect_queries(np.zeros((1 << 16, 200)))
    assert collect_queries([1, 2, 3])[1] is None


def test_all_tasks_use_the_metric_of_the_index(spark: Any, tmp_path: Path) -> None:
    """The index covers the fragments of some tasks only."""
    path = str(tmp_path / "t.lance")
    lancetable.write_dataset(rows(300), path, max_rows_per_file=300)
    lance.dataset(path).create_index("v", "IVF_FLAT", metric="cosine", num_partitions=1)
    lancetable.write_dataset(rows(300), path, mode="append")
    t = SparkTable.for_path(spark, path)
    query = vectors(1, seed=9)[0]
    found = listed(t.nearest(query, "v", 20, columns=["id"], target_rows_per_task=300))
    assert found == local(t, query, k=20, columns=["id"]) == local(t, query, k=20, columns=["id"], metric="cosine")


def test_a_search_is_pickled_with_the_work_of_its_tasks() -> None:
    search = VectorSearch(vectors(1)[0], None, "v", 3, None, None, "l2", None)
    assert pickle.loads(pickle.dumps(search)).metric == "l2"


def indexed(path: Path, kind: str, *, stable: bool = False, **options: Any) -> str:
    """Return a table with an index of 1,600 rows in 4 fragments, 400 deleted rows and 200 rows without an index."""
    values = clustered(1600, 1)
    ds = lancetable.write_dataset(table_of(values), path, max_rows_per_file=400, enable_stable_row_ids=stable)
    ds.create_index("v", kind, num_partitions=8, **options)
    ds.delete("id % 4 = 1")
    lancetable.write_dataset(table_of(clustered(200, 2), 2000), path, mode="append", enable_stable_row_ids=stable)
    return str(path)


@pytest.mark.parametrize(("kind", "stable"), [("IVF_PQ", True), ("IVF_SQ", False), ("IVF_HNSW_SQ", False)])
def test_a_search_uses_the_index_and_the_rows_that_it_does_not_cover(
    spark: Any, tmp_path: Path, kind: str, stable: bool
) -> None:
    path = indexed(tmp_path / "t.lance", kind, stable=stable, **({"num_sub_vectors": 4} if kind == "IVF_PQ" else {}))
    t = SparkTable.for_path(spark, path)
    queries = clustered(150, 3)
    exact = local(t, queries, use_index=False, columns=["id"])
    for arguments in (
        {"nprobes": 1},
        {"nprobes": 3, "refine_factor": 4, "columns": ["id"]},
        {"minimum_nprobes": 1, "maximum_nprobes": 2, "filter": "id % 10 = 3"},
        {"distance_range": (20.0, 30.0), "nprobes": 8},
    ):
        found = listed(t.nearest(queries, "v", target_rows_per_task=90, **arguments))
        assert found == local(t, queries, **arguments), arguments
        assert arguments.get("nprobes") != 1 or [row["id"] for row in found] != [row["id"] for row in exact]
    (one,) = {t.nearest(queries[0], "v", ef=30, nprobes=2).count()}
    assert one == 10
    assert listed(t.nearest(queries, "v", columns=["id"], use_index=False)) == exact
    fast = listed(t.nearest(queries[:9], "v", 50, columns=["id"], fast_search=True))
    assert fast and max(row["id"] for row in fast) < 2000
    assert max(row["id"] for row in exact) >= 2000


def test_an_index_is_searched_in_tasks_of_queries_and_other_rows_in_tasks_of_slices(tmp_path: Path) -> None:
    path = indexed(tmp_path / "t.lance", "IVF_FLAT")
    ds = lancetable.dataset(path)

    def tasks(queries: Any, **options: Any) -> list[Any]:
        search = VectorSearch(queries, None, "v", 3, None, None, None, None, **options)
        return [task.get("queries") or task["slices"] for task in plan_search(ds, search, 100, 2)["tasks"]]

    tail = [[[4, 0, 100]], [[4, 100, 200]]]
    assert tasks(clustered(300, 3)) == [[0, 150], [150, 300], *tail]
    assert tasks(clustered(100, 3)) == [[0, 64], [64, 100], *tail]
    assert tasks(clustered(1, 3)[0]) == [[0, 1], *tail]
    assert tasks(clustered(1, 3), fast_search=True) == [[0, 1]]
    assert len(tasks(clustered(1, 3), tuning={"use_index": False})) == 18
    ds.drop_index("v_idx")
    assert tasks(clustered(1, 3), fast_search=True) == []


def test_multivectors_are_searched_in_the_index(spark: Any, tmp_path: Path) -> None:
    array = table_of(clustered(1600, 1))["v"].combine_chunks()
    many = pa.ListArray.from_arrays(pa.array(range(0, 1601, 2), pa.int32()), array)
    ds = lancetable.write_dataset(pa.table({"id": range(800), "v": many}), tmp_path / "t.lance", max_rows_per_file=400)
    ds.create_index("v", "IVF_FLAT", metric="cosine", num_partitions=4)
    t = SparkTable.for_path(spark, str(tmp_path / "t.lance"))
    query = clustered(3, 4)
    found = listed(t.nearest(query, "v", 5, columns=["id"], nprobes=2))
    assert found == local(t, query, k=5, columns=["id"], nprobes=2) and len(found) == 5


def test_options_of_an_index_are_checked(spark: Any, tmp_path: Path) -> None:
    t = SparkTable.for_path(spark, indexed(tmp_path / "t.lance", "IVF_FLAT"))
    for error, options in (
        (InvalidInputError, {"nprobes": 0}),
        (InvalidInputError, {"minimum_nprobes": 3, "maximum_nprobes": 2}),
        (InvalidInputError, {"refine_factor": 0}),
        (TypeError, {"use_index": "no"}),
        (TypeError, {"fast_search": 1}),
    ):
        with pytest.raises(error):
            t.nearest(clustered(1, 3)[0], "v", **options)
