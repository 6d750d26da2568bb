"""All operations through a Connect session, which starts its own server: connect.py DIRECTORY."""

import os
import sys
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession

import lancetable
from lancetable.errors import LanceError
from lancetable.spark import SparkTable, register, write_table
from lancetable.spark.pipeline import Pipeline, Stream

base = sys.argv[1]
path = f"{base}/t.lance"
os.environ["SPARK_TESTING"] = "1"  # the server of the session listens on a free port
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
write_table(spark.range(0, 1000, 1, 4).selectExpr("id", "float(id) AS v"), path)
t = SparkTable.for_path(spark, path, run_on="cluster")
updates = spark.range(900, 1100).selectExpr("id", "float(-1) AS v")
print(t.merge(updates, "id").when_matched_update_all().when_not_matched_insert_all().execute())
assert t.delete("id < 100") == 100
assert t.update({"v": "0"}, where="id < 200") == 100
t.add_columns(lambda batch: pa.record_batch({"n": batch.column("id")}), schema="n bigint", input_columns=["id"])
t.compact(target_rows_per_fragment=10_000)
assert t.to_df(["id"], "v = -1").count() == 200 == t.count_rows("v = -1")
told = t.to_df(["n"], target_rows_per_task=300)  # of a column that Spark knows to be without nulls
assert "Union" in told._explain_string() and told.schema["n"].nullable
assert told.count() == 1000 and told.where("n IS NULL").count() == 0
assert spark.read.format("lance").option("version", 1).load(path).count() == 1000
assert t.history().count() >= 6 and t.fragments().count() == 1
seen = lancetable.dataset(path).to_table()
assert sorted(seen["id"].to_pylist()) == sorted(seen["n"].to_pylist()) == list(range(100, 1100))

# An index and a search.
t.create_index("id", "BTREE", "by_id")
write_table(spark.range(1100, 1200).selectExpr("id", "float(id) AS v", "id AS n"), path, "append")
t.optimize_indices()
assert [row[:6] for row in t.indices().collect()] == [("by_id", "BTree", ["id"], 1, 1100, 1100)]
assert "@by_id(BTree)" in lancetable.dataset(path).scanner(filter="id = 1150").explain_plan()
assert t.to_df(["n"], "id = 1150").collect()[0]["n"] == 1150
assert t.delete("id >= 1100") == 100
points = f"{base}/points.lance"
vectors = spark.range(0, 500, 1, 4).selectExpr("id", "array(float(id), float(1)) AS v")
write_table(vectors, points, vector_columns={"v": 2})
p = SparkTable.for_path(spark, points, run_on="cluster")
found = p.nearest([250.0, 1.0], "v", 2, columns=["id"], filter="id != 250", target_rows_per_task=100)
assert [row[:] for row in found.collect()] == [(249, 1.0), (251, 1.0)], found.collect()
queries = spark.createDataFrame([("a", [3.0, 1.0]), ("b", [499.0, 1.0])], "query_id string, vector array<float>")
found = p.nearest(queries, "v", 2, columns=["id"], target_rows_per_task=100).collect()
assert [row[:] for row in found] == [("a", 3, 0.0), ("a", 2, 1.0), ("b", 499, 0.0), ("b", 498, 1.0)], found
p.create_index("v", "IVF_HNSW_SQ", num_partitions=2, target_rows_per_task=125)
p.insert(spark.range(500, 520).selectExpr("id", "array(float(id), float(1)) AS v"))
assert [row[:6] for row in p.indices().collect()] == [("v_idx", "IVF_HNSW_SQ", ["v"], 1, 500, 520)]
search = {"columns": ["id"], "nprobes": 2, "refine_factor": 50}
found = p.nearest([[250.0, 1.0], [510.0, 1.0]], "v", 1, **search).collect()
assert [row[:] for row in found] == [(0, 250, 0.0), (1, 510, 0.0)], found
assert max(row["id"] for row in p.nearest([510.0, 1.0], "v", 3, fast_search=True, **search).collect()) < 500
p.optimize_indices(retrain=True, target_rows_per_task=125)
assert [row[4:6] for row in p.indices().collect()] == [(520, 520)]
found = p.nearest(queries, "v", 1, **search).collect()
assert [row[:] for row in found] == [("a", 3, 0.0), ("b", 499, 0.0)], found
t.drop_index("by_id")

wider = spark.range(1).selectExpr("id", "double(0.5) AS v", "'x' AS note")
t.merge(wider, "id").with_schema_evolution().when_not_matched_insert_all().execute()
seen = lancetable.dataset(path).to_table(filter="note = 'x' OR id = 200")
assert seen.to_pydict() == {"id": [200, 0], "v": [200.0, 0.5], "n": [200, None], "note": [None, "x"]}, seen

# Upserts from a stream: the function of foreachBatch runs in a process of the server.
source = f"{base}/source.lance"
follow = Pipeline(
    "follow",
    f"{base}/copy.lance",
    Stream(lambda session: session.readStream.format("lance").load(source)),
    "id",
    checkpoint=f"{base}/checkpoint",
    metrics=f"{base}/metrics.lance",
    rejects=f"{base}/rejects.lance",
    schema="add",
)
for number in range(3):
    columns = ["nullif(id, -1) AS id", f"{number} AS n"] + ["'x' AS note"] * (number == 2)
    rows = spark.range(number * 5, number * 5 + 10).selectExpr(*columns)
    write_table(rows, source, "append", merge_schema=True)
    follow.run(spark)
seen = lancetable.dataset(f"{base}/copy.lance").to_table()
assert dict(zip(seen["id"].to_pylist(), seen["n"].to_pylist())) == {i: min(i // 5, 2) for i in range(20)}, seen
assert seen.num_rows == 20
noted = lancetable.dataset(f"{base}/metrics.lance").to_table()
assert noted["rows_inserted"].to_pylist()[::3] == [10, 5, 5], noted["rows_inserted"]
assert noted["schema_changes"].to_pylist()[::3] == ["[]", "[]", '["added note string"]'], noted["schema_changes"]

# Null keys are rejected, and the error of a batch is found in what the server reports.
write_table(spark.range(1).selectExpr("bigint(NULL) AS id", "7 AS n"), source, "append")
try:
    replace(follow, clean=lambda frame: 1 / 0).run(spark)
except LanceError as error:
    assert str(error) == "follow failed in batch 3: ZeroDivisionError: division by zero", error
else:
    raise AssertionError("the run succeeded")
follow.run(spark)
(rejected,) = lancetable.dataset(f"{base}/rejects.lance").to_table(columns=["row", "reason"]).to_pylist()
assert rejected == {"row": '{"id":null,"n":7,"note":null}', "reason": "id is null"}, rejected
assert lancetable.dataset(f"{base}/copy.lance").count_rows() == 20
spark.stop()
print("all done")
