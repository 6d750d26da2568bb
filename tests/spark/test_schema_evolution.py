"""Schema changes before rows are written: what each policy permits, and the call that every error ends with."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import StructField, StructType, YearMonthIntervalType

import lancetable
from lancetable.errors import InvalidInputError, InvalidSchemaError, SchemaMismatchError, UnsupportedFeatureError
from lancetable.spark import SparkTable, write_table
from lancetable.spark.options import SourceOptions
from lancetable.spark.pipeline import METRICS_SCHEMA, Files, Pipeline
from lancetable.spark.schema_evolution import Evolution, fit_table, plan_changes
from lancetable.spark.stream_sink import LanceStreamWriter
from lancetable.spark.types import spark_schema, wire_schema
from lancetable.spark.writer import LanceWriter

INT, LONG, FLOAT, DOUBLE, TEXT = pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()
NAIVE, UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")


def structure(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


X, XY = structure(x=INT), structure(x=INT, y=TEXT)
MERGE_SCHEMA = r"""pass option\("mergeSchema", "true"\), to write_table merge_schema=True$"""


def planned(stored: pa.DataType | None, given: pa.DataType, policy: Any, **options: Any) -> list[str]:
    table = pa.schema([("id", LONG)] if stored is None else [("id", LONG), ("c", stored)])
    changes = plan_changes(table, pa.schema([("id", LONG), ("c", given)]), Evolution(policy, **options), "t.lance")
    return [each.path if each.stored is None else f"{each.path}: {each.field.type}" for each in changes]


@pytest.mark.parametrize(
    ("stored", "given", "added", "widened"),
    [
        (None, INT, ["c"], []),
        (None, XY, ["c"], []),
        (X, XY, ["c.y"], []),
        (structure(a=X), structure(a=XY, b=INT), ["c.a.y", "c.b"], []),
        (pa.list_(X), pa.list_(XY), ["c.item.y"], []),
        (pa.large_list(pa.field("el", X)), pa.list_(XY), ["c.el.y"], []),
        (INT, LONG, [], ["c: int64"]),
        (pa.int8(), pa.int16(), [], ["c: int16"]),
        (FLOAT, DOUBLE, [], ["c: double"]),
        (INT, DOUBLE, [], ["c: double"]),
        (LONG, DOUBLE, [], ["c: double"]),
        (pa.date32(), NAIVE, [], ["c: timestamp[us]"]),
        (pa.decimal128(10, 2), pa.decimal128(12, 2), [], ["c: decimal128(12, 2)"]),
        (X, structure(y=TEXT, x=LONG), ["c.y"], ["c.x: int64"]),
        (pa.list_(INT), pa.list_(LONG), [], ["c.item: int64"]),
        # Narrower types, missing fields, and types that Spark has in another form change nothing.
        (LONG, INT, [], []),
        (DOUBLE, INT, [], []),
        (NAIVE, pa.date32(), [], []),
        (XY, X, [], []),
        (INT, TEXT, [], []),
        (LONG, FLOAT, [], []),
        (pa.date32(), UTC, [], []),
        (pa.uint8(), pa.int16(), [], []),
        (pa.float16(), FLOAT, [], []),
        (pa.large_string(), TEXT, [], []),
        (pa.timestamp("ns"), NAIVE, [], []),
        (pa.dictionary(INT, TEXT), TEXT, [], []),
        # Vectors and maps keep their types.
        (pa.list_(FLOAT, 4), pa.list_(DOUBLE), [], []),
        (pa.map_(TEXT, INT), pa.map_(TEXT, LONG), [], []),
    ],
)
def test_a_policy_permits_additions_or_also_wider_types(
    stored: pa.DataType | None, given: pa.DataType, added: list[str], widened: list[str]
) -> None:
    if added:
        with pytest.raises(
            SchemaMismatchError, match=rf"'{added[0]}' of the frame is not in the table t.lance; .*schema=\"add\"$"
        ):
            planned(stored, given, "fixed")
    else:
        assert planned(stored, given, "fixed") == []
    assert planned(stored, given, "add") == added
    assert sorted(planned(stored, given, "evolve")) == sorted(added + widened)


@pytest.mark.parametrize("policy", ["fixed", "add", "evolve"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"C": INT}, r"""t.lance has the column 'c', not 'C'; rename it: .withColumnRenamed\("C", "c"\)$"""),
        ({"m": pa.map_(TEXT, XY)}, r"""a map gets no new fields; leave the column out: .drop\("m"\)$"""),
        ({"v": pa.list_(XY)}, r"""no new fields; leave the column out: .drop\("v"\)$"""),
    ],
)
def test_renames_and_fields_in_maps_are_refused(policy: Any, given: dict[str, Any], message: str) -> None:
    table = pa.schema([("c", INT), ("m", pa.map_(TEXT, X)), ("v", pa.list_(X, 2))])
    with pytest.raises(SchemaMismatchError, match=message):
        plan_changes(table, pa.schema(list(given.items())), Evolution(policy), "t.lance")


@pytest.mark.parametrize("policy", ["fixed", "add", "evolve"])
@pytest.mark.parametrize(
    ("stored", "given", "cast"),
    [
        (NAIVE, UTC, "timestamp_ntz"),
        (pa.date32(), UTC, "date"),
        (pa.bool_(), INT, "boolean"),
        (structure(d=pa.decimal128(10, 2)), structure(d=DOUBLE), r"struct<d:decimal\(10,2\)>"),
    ],
)
def test_arrow_casts_that_change_values_end_with_the_cast(policy: Any, stored: Any, given: Any, cast: str) -> None:
    with pytest.raises(SchemaMismatchError, match=rf"""cast it: .withColumn\("c", F.col\("c"\).cast\("{cast}"\)\)$"""):
        planned(stored, given, policy, arrow_casts=True)


def options(path: Path, **given: str) -> SourceOptions:
    return SourceOptions.parse({"path": str(path), **given})


def writer_of(path: Path, frame: pa.Table, overwrite: bool = False, **given: str) -> LanceWriter:
    return LanceWriter(options(path, **given), spark_schema(frame.schema), overwrite)


def append(path: Path, frame: pa.Table, **given: str) -> None:
    """Append a frame as Spark does, without Spark."""
    writer = writer_of(path, frame, **given)
    batches = frame.cast(wire_schema(spark_schema(frame.schema))).to_batches()
    writer.commit([writer.write(iter(batches))])


FIRST = pa.table({"id": pa.array([1], INT), "s": pa.array([{"x": 1}], X), "d": pa.array([1], pa.date32())})
SECOND = pa.table(
    {
        "s": pa.array([{"y": "a", "x": 2**40}], structure(y=TEXT, x=LONG)),
        "id": [0.5],
        "m": pa.array([[("k", 1)]], pa.map_(TEXT, LONG)),
        "d": pa.array([1], NAIVE),
    }
)


def test_an_append_with_merge_schema_adds_and_widens_in_commits_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(FIRST, path)
    with pytest.raises(SchemaMismatchError, match=MERGE_SCHEMA):
        writer_of(path, SECOND)
    append(path, SECOND, mergeSchema="true")
    append(path, FIRST, mergeSchema="true")
    ds = lancetable.dataset(path)
    operations = [type(ds.read_transaction(number).operation).__name__ for number in range(2, 6)]
    assert operations == ["Merge", "Merge", "Append", "Append"]
    assert ds.schema.names == ["id", "s", "d", "m"] and str(ds.schema.field("s").type) == "struct<x: int64, y: string>"
    assert ds.schema.field("id").type == DOUBLE and ds.schema.field("d").type == NAIVE
    rows = ds.to_table().to_pylist()
    assert rows == lance.dataset(str(path)).to_table().to_pylist()
    assert rows[0] == rows[2] and rows[0]["s"] == {"x": 1, "y": None} and rows[0]["m"] is None
    assert rows[1]["s"] == {"x": 2**40, "y": "a"} and rows[1]["m"] == [("k", 1)]


def test_a_job_that_dies_after_the_schema_change_is_repeated(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(FIRST, path)
    writer_of(path, SECOND, mergeSchema="true")
    assert lancetable.dataset(path).to_table()["m"].null_count == 1
    append(path, SECOND, mergeSchema="true")
    assert lancetable.dataset(path).version == 4 and lancetable.dataset(path).count_rows() == 2


@pytest.mark.usefixtures("streaming_writes")
def test_a_stream_with_merge_schema_changes_the_table_when_it_starts(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(FIRST, path)
    given = options(path, txnAppId="s", mergeSchema="true")
    writer = LanceStreamWriter(given, spark_schema(SECOND.schema), False)
    batches = SECOND.cast(wire_schema(spark_schema(SECOND.schema))).to_batches()
    writer.commit([writer.write(iter(batches))], 0)
    assert lancetable.dataset(path).to_table()["m"].to_pylist() == [None, [("k", 1)]]
    with pytest.raises(
        InvalidInputError, match="mergeSchema applies only to appends; an overwrite always replaces the schema"
    ):
        LanceStreamWriter(given, spark_schema(SECOND.schema), True)


def test_a_change_that_was_committed_before_changes_no_schema(tmp_path: Path) -> None:
    path, number = tmp_path / "t.lance", {"txnAppId": "app", "txnVersion": "1"}
    lancetable.write_dataset(FIRST, path)
    append(path, FIRST, **number)
    append(path, SECOND, mergeSchema="true", **number)
    assert lancetable.dataset(path).schema == FIRST.schema and lancetable.dataset(path).count_rows() == 2


def test_maps_need_a_newer_data_format(tmp_path: Path) -> None:
    frame = SECOND.select(["id", "m"])
    with pytest.raises(
        UnsupportedFeatureError, match=r"'m.entries.key': .*2.1 .* a map; pass data_storage_version='2.2'$"
    ):
        writer_of(tmp_path / "new.lance", frame, data_storage_version="2.1")
    path = tmp_path / "t.lance"
    lancetable.write_dataset(FIRST, path, data_storage_version="2.1")
    with pytest.raises(UnsupportedFeatureError, match=r"pass data_storage_version='2.2'$"):
        writer_of(path, frame, overwrite=True)
    migrate = r"migrate the table: SparkTable.for_path\(spark, '.*t.lance'\).migrate\(\)$"
    for column in ("m", "s"):
        with pytest.raises(UnsupportedFeatureError, match=migrate):
            writer_of(path, SECOND.select([column]), mergeSchema="true")
    assert lancetable.dataset(path).version == 1
    lancetable.dataset(path).optimize.migrate()
    append(path, SECOND, mergeSchema="true")
    assert lancetable.dataset(path).to_table()["m"].to_pylist() == [None, [("k", 1)]]


@pytest.mark.parametrize(("name", "new"), [("a.b", "a_b"), ("_rowid", "rowid")])
def test_a_name_that_a_table_cannot_have_ends_with_the_rename(tmp_path: Path, name: str, new: str) -> None:
    lancetable.write_dataset(FIRST, tmp_path / "t.lance")
    for path in (tmp_path / "t.lance", tmp_path / "new.lance"):
        with pytest.raises(InvalidSchemaError, match=rf"""rename it: .withColumnRenamed\("{name}", "{new}"\)$"""):
            writer_of(path, pa.table({name: [1]}), mergeSchema="true")


def test_added_columns_are_nullable_at_every_level(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(FIRST, path)
    required = pa.struct([pa.field("x", INT, False)])
    kinds = {"s": required, "l": pa.list_(pa.field("item", required, False)), "m": pa.map_(TEXT, required)}
    frame = pa.schema(
        [pa.field("id", INT), pa.field("new", pa.struct([pa.field(*each, False) for each in kinds.items()]))]
    )
    _, fields, changes = fit_table(lancetable.dataset(path).table_version, frame, Evolution("add"))
    optional = pa.struct([("x", INT)])
    expected = structure(s=optional, l=pa.list_(optional), m=pa.map_(TEXT, optional))
    assert fields.field("new") == pa.field("new", expected)
    assert changes == ["added new struct<s:struct<x:int>,l:array<struct<x:int>>,m:map<string,struct<x:int>>>"]
    append(path, pa.table({"new": pa.array([{"l": [None]}], structure(l=pa.list_(X)))}))


def test_a_missing_required_column_ends_with_the_call_that_adds_it(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(pa.schema([pa.field("k", LONG, False), ("v", TEXT)]).empty_table(), path)
    with pytest.raises(SchemaMismatchError, match=r"""add it: .withColumn\("k", F.lit\(...\).cast\("bigint"\)\)$"""):
        writer_of(path, pa.table({"v": ["a"]}), mergeSchema="true")


@pytest.mark.parametrize(
    ("stored", "given", "cure"),
    [
        (INT, pa.array([2**40]), "to widen the column, " + MERGE_SCHEMA),
        (INT, pa.array([0.5]), "to widen the column, " + MERGE_SCHEMA),
        (pa.list_(INT), pa.array([[2**40]]), "to widen the column, " + MERGE_SCHEMA),
        (pa.list_(FLOAT, 2), pa.array([[1.5]]), r"""keep the vectors of its size: .where\("size\(c\) = 2"\)$"""),
        (INT, pa.array(["x"]), r"""cast it: .withColumn\("c", F.col\("c"\).try_cast\("int"\)\)$"""),
    ],
)
def test_a_value_that_does_not_fit_ends_with_the_call(tmp_path: Path, stored: Any, given: pa.Array, cure: str) -> None:
    lancetable.write_dataset(pa.schema([("c", stored)]).empty_table(), tmp_path / "t.lance")
    with pytest.raises(SchemaMismatchError, match=cure):
        append(tmp_path / "t.lance", pa.table({"c": given}))


def test_writers_that_add_the_same_column_at_a_time_end_with_one_column(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    version = lancetable.write_dataset(FIRST, path).table_version
    schema, found = pa.schema([("id", LONG), ("new", TEXT)]), []

    def fit() -> None:
        found.append(fit_table(version, schema, Evolution("evolve")))

    threads = [threading.Thread(target=fit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ds = lancetable.dataset(path)
    assert ds.schema.names == ["id", "s", "d", "new"] and ds.schema.field("id").type == LONG
    changes = sorted(change for _, _, changes in found for change in changes)
    assert changes == ["added new string", "widened id from int to bigint"]
    assert len(found) == 4 and ds.version == 3


def test_a_type_without_an_arrow_form_ends_with_the_cast(tmp_path: Path) -> None:
    schema = StructType([StructField("y", YearMonthIntervalType())])
    with pytest.raises(
        UnsupportedFeatureError, match=r"""cast it: .withColumn\("y", F.col\("y"\).cast\("string"\)\)$"""
    ):
        LanceWriter(options(tmp_path / "t.lance"), schema, False)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="schema must be 'fixed', 'add' or 'evolve', got 'grow'"):
        Pipeline("p", "t", Files("f"), "id", checkpoint="c", schema="grow")  # type: ignore[arg-type]


# --- with a session ---------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_frames_are_written_with_the_option_or_the_argument(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t.lance")
    write_table(spark.range(1), path)
    wider = spark.sql("SELECT 1.5D AS id, named_struct('a', 1) AS s")
    with pytest.raises(Exception, match=r"mergeSchema.*merge_schema=True"):
        write_table(wider, path, "append")
    write_table(wider, path, "append", merge_schema=True)
    more = spark.sql("SELECT 2 AS id, named_struct('b', 2L) AS s")
    more.write.format("lance").mode("append").option("mergeSchema", "true").save(path)
    rows = lance.dataset(path).to_table().to_pylist()
    assert [row["id"] for row in rows] == [0.0, 1.5, 2.0]
    assert [row["s"] for row in rows] == [None, {"a": 1, "b": None}, {"a": None, "b": 2}]


@pytest.mark.spark
@pytest.mark.parametrize("run_on", ["client", "cluster"])
def test_a_merge_evolves_the_schema_where_it_is_asked_to(
    spark: Any, tmp_path: Path, run_on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if run_on == "client":  # and joined by Spark
        monkeypatch.setattr("lancetable.spark.merge.builder.broadcast_source", lambda *given: None)
    path = str(tmp_path / "t.lance")
    lancetable.write_dataset(
        pa.table({"id": [1, 2], "v": pa.array([1, 2], INT), "s": pa.array([{"x": 1}] * 2, X)}), path
    )
    source = spark.sql(
        "SELECT 2L AS id, 2.5D AS v, named_struct('x', 7, 'y', 'a') AS s, true AS new UNION ALL"
        " SELECT 3L, 3D, null, false"
    )
    table = SparkTable.for_path(spark, path, run_on=run_on)
    merge = table.merge(source, "id").when_matched_update_all().when_not_matched_insert_all()
    with pytest.raises(
        SchemaMismatchError, match=r"field 's.y' of the frame is not in the table .*, call .with_schema_evolution\(\)$"
    ):
        merge.execute()
    assert merge.with_schema_evolution().execute()["num_updated_rows"] == 1
    rows = sorted(lance.dataset(path).to_table().to_pylist(), key=lambda row: row["id"])
    assert [tuple(row.values()) for row in rows] == [
        (1, 1.0, {"x": 1, "y": None}, None),
        (2, 2.5, {"x": 7, "y": "a"}, True),
        (3, 3.0, None, False),
    ]


@pytest.mark.spark
def test_a_pipeline_adds_columns_and_widens_types_as_its_policy_permits(spark: Any, tmp_path: Path) -> None:
    source = tmp_path / "files"
    source.mkdir()
    metrics = str(tmp_path / "metrics.lance")

    def run(policy: Any) -> list[str]:
        pipeline = Pipeline(
            "p",
            str(tmp_path / "t.lance"),
            Files(str(source), format="csv", options={"header": "true", "inferSchema": "true"}),
            "id",
            checkpoint=str(tmp_path / "checkpoint"),
            compact=None,
            keep_days=None,
            metrics=metrics,
            schema=policy,
        )
        (step,) = pipeline.run(spark)
        assert all(change in str(step) for change in step.schema_changes)
        return list(step.schema_changes)

    (source / "1.csv").write_text("id,v\n1,1\n2,2\n")
    assert run("fixed") == []
    (source / "2.csv").write_text("id,v,new\n2,2.5,a\n")
    with pytest.raises(
        Exception, match=r"column 'new' of file:.*2.csv is not in the table .*to add it as string, pass schema=\"add\""
    ):
        run("fixed")
    with pytest.raises(
        Exception, match=r"cannot cast column v to int: 2.5; to widen the column, pass schema=\"evolve\""
    ):
        run("add")
    assert lancetable.dataset(tmp_path / "t.lance").schema.names == ["id", "v", "new"]
    assert run("evolve") == ["widened v from int to double"]
    (source / "3.csv").write_text("id,v\n3,3\n")
    assert run("evolve") == []
    rows = sorted(lance.dataset(str(tmp_path / "t.lance")).to_table().to_pylist(), key=lambda row: row["id"])
    assert [tuple(row.values()) for row in rows] == [(1, 1.0, None), (2, 2.5, "a"), (3, 3.0, None)]
    stored = lancetable.dataset(metrics).to_table()
    assert stored.schema.field("schema_changes") == METRICS_SCHEMA.field("schema_changes")
    assert [json.loads(text) for text in stored["schema_changes"].to_pylist()] == [
        [],
        ["widened v from int to double"],
        [],
    ]
