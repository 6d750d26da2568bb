"""Tables on S3, with and without DynamoDB, through Spark: executors use the storage options to read and write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lance
import pytest

import lancetable

if TYPE_CHECKING:
    from integration.servers.moto_locked import Moto

pytest.importorskip("boto3", reason="boto3 is not installed: pip install 'lancetable[dynamodb]'")

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("external", [False, True], ids=["s3", "s3+ddb"])
def test_executors_read_and_change_a_table_in_a_bucket(spark: Any, s3: Moto, external: bool) -> None:
    from lancetable.spark import SparkTable, write_table

    uri, options = "s3://lab/spark.lance", s3.options
    if external:
        uri, options = "s3+ddb://lab/spark-ddb.lance?ddbTableName=lab", {**options, "dynamodb_endpoint": s3.endpoint}
    frame = spark.range(0, 1000, 1, 4).selectExpr("id", "id % 10 AS v")
    write_table(frame, uri, storage_options=options)
    reader = spark.read.format("lance").options(**{f"storage.{name}": value for name, value in options.items()})
    assert reader.option("filter", "v = 3").option("columns", "id").load(uri).count() == 100

    t = SparkTable.for_path(spark, uri, storage_options=options)
    assert t.delete("id < 100") == 100
    source = spark.range(900, 1100).selectExpr("id", "-1L AS v")
    result = t.merge(source, "id").when_matched_update_all().when_not_matched_insert_all().execute(txn=("job", 1))
    assert (result["num_updated_rows"], result["num_inserted_rows"]) == (100, 100)
    assert t.update({"v": "v + 1"}, where="id = 500") == 1
    assert t.compact(target_rows_per_fragment=10_000).fragments_added == 1
    assert t.to_df(["id"], "v = -1").count() == 200
    t.vacuum(older_than_days=0, delete_unverified=True)
    theirs = lance.dataset(uri, storage_options=options)
    assert sorted(theirs.to_table()["id"].to_pylist()) == list(range(100, 1100))
    ours = lancetable.dataset(uri, storage_options=options)
    ours.validate()
    assert ours.version == theirs.version
    # The options contain secrets, which must not appear in a plan that Spark prints.
    assert "labsecret" not in reader.load(uri)._jdf.queryExecution().toString()
