"""Rejected rows of pipelines: which rows, with what reasons, once, and how many are allowed."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import InvalidInputError, InvalidOperationError, LanceError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.spark import pipeline as pipelines
from lancetable.spark.pipeline import Files, Pipeline, Query, Step, Stream, upsert

pytestmark = pytest.mark.spark
CSV = {"header": "true"}
SCHEMA = "id bigint, v bigint, note string"


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path / "land ing+1"
    folder.mkdir()
    return folder


def flow(tmp_path: Path, source: Any, **more: Any) -> Pipeline:
    arguments = {"checkpoint": str(tmp_path / "checkpoint"), "rejects": str(tmp_path / "rejects.lance"), **more}
    return Pipeline("orders", str(tmp_path / "t.lance"), source, "id", compact=None, keep_days=None, **arguments)


def run(spark: Any, pipeline: Pipeline) -> list[Step]:
    return pipeline.run(spark, lambda step: None)


def ids(tmp_path: Path) -> list[int]:
    return sorted(lance.dataset(str(tmp_path / "t.lance")).to_table()["id"].to_pylist())


def rejects(tmp_path: Path) -> list[tuple[Any, ...]]:
    """The file name, the row and the reason of each reject."""
    rows = lance.dataset(str(tmp_path / "rejects.lance")).to_table().to_pylist()
    found = [(row["file"] and row["file"].rsplit("/", 2)[1:], row["row"], row["reason"]) for row in rows]
    return sorted(found, key=str)


def small_table(tmp_path: Path, **types: pa.DataType) -> None:
    """A table without rows whose types are narrower than those of the source."""
    schema = pa.schema([("id", pa.int64()), *types.items()])
    lancetable.write_dataset(schema.empty_table(), tmp_path / "t.lance")


def test_csv_rows_are_rejected_with_their_file_and_reason(spark: Any, tmp_path: Path, landing: Path) -> None:
    (landing / "a.csv").write_text("id,v,note\n1,2,a\n2,many,b\n3\n,4,d\n5,6,e\n")
    (landing / "b.csv").write_text("note,id,v\ng,7,x\nh,8,9\n")
    source = Files(str(landing), "csv", SCHEMA, CSV)
    metrics = str(tmp_path / "metrics.lance")
    before = dt.datetime.now(dt.timezone.utc)
    (step,) = run(spark, flow(tmp_path, source, metrics=metrics, clean=lambda frame: frame.where("v > 0")))
    assert ids(tmp_path) == [1, 5, 8]
    assert rejects(tmp_path) == [
        (["land ing+1", "a.csv"], "2,many,b", "v is not bigint: many"),
        (["land ing+1", "a.csv"], "3", "the record does not parse"),
        (["land ing+1", "a.csv"], '{"id":null,"v":4,"note":"d"}', "id is null"),
        (["land ing+1", "b.csv"], "g,7,x", "v is not bigint: x"),
    ]
    assert (step.rows_read, step.rows_inserted, step.rows_rejected) == (7, 3, 4)
    assert (step.rows_unparsed, dict(step.unparsed)) == (3, {"v": 2}) and "4 rejected" in str(step)
    assert lance.dataset(metrics).to_table()["rows_rejected"].to_pylist() == [4]
    table = lance.dataset(str(tmp_path / "rejects.lance")).to_table()
    assert table.schema.field("time").type == pa.timestamp("us", "UTC")
    assert set(table["pipeline"].to_pylist()) == {"orders"} and set(table["batch"].to_pylist()) == {0}
    assert all(before <= time <= dt.datetime.now(dt.timezone.utc) for time in table["time"].to_pylist())


def test_rejects_and_rows_are_written_once_if_a_batch_is_repeated(
    spark: Any, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_table(tmp_path, v=pa.int8())
    (landing / "a.json").write_text('{"id": 1, "v": 2}\n{"id": 2, "v": 300}\n{"id": 3, "v": \n')
    pipeline = flow(tmp_path, Files(str(landing), "json", "id bigint, v int"))

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise OSError("killed before the merge")

    def lands_and_fails(*args: Any, **kwargs: Any) -> Any:
        upsert(*args, **kwargs)
        raise OSError("killed after the merge")

    expected = [
        (["land ing+1", "a.json"], '{"id": 3, "v": ', "the record does not parse"),
        (["land ing+1", "a.json"], '{"id":2,"v":300}', "cannot cast column v to tinyint: 300"),
    ]
    for patch, merged in ((fails, []), (lands_and_fails, [1])):
        with monkeypatch.context() as patched:
            patched.setattr(pipelines, "upsert", patch)
            with pytest.raises(LanceError, match=r"orders failed in batch 0: OSError: killed .* the merge"):
                run(spark, pipeline)
        assert rejects(tmp_path) == expected and ids(tmp_path) == merged
    (step,) = run(spark, pipeline)
    assert step.repeated and rejects(tmp_path) == expected and ids(tmp_path) == [1]


def test_a_batch_that_is_repeated_with_another_clean_replaces_its_rejects(
    spark: Any, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (landing / "a.csv").write_text("id,v,note\n1,2,a\n,3,b\n")
    source = Files(str(landing), "csv", SCHEMA, CSV)
    with monkeypatch.context() as patched:
        patched.setattr(pipelines, "upsert", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(LanceError, match="ZeroDivisionError"):
            run(spark, flow(tmp_path, source))
    assert len(rejects(tmp_path)) == 1
    (step,) = run(spark, flow(tmp_path, source, clean=lambda frame: frame.fillna(7, ["id"])))
    assert ids(tmp_path) == [1, 7] and rejects(tmp_path) == [] and step.rows_rejected == 0


def test_more_rejects_than_allowed_stop_the_run(spark: Any, tmp_path: Path, landing: Path) -> None:
    (landing / "a.csv").write_text("id,v,note\n1,2,a\n2,x,b\n,3,c\n")
    source = Files(str(landing), "csv", SCHEMA, CSV)
    message = (
        r"orders failed in batch 0: 2 of 3 rows are rejected, more than max_reject_share=0\.5, for example '2,x,b' of"
        r" .*a\.csv \(v is not bigint: x\), '\{.*' of .*a\.csv \(id is null\)\. Nothing of the batch is merged"
    )
    with pytest.raises(InvalidOperationError, match=message):
        run(spark, flow(tmp_path, source, max_reject_share=0.5))
    assert ids(tmp_path) == [] and not (tmp_path / "rejects.lance").exists()
    run(spark, flow(tmp_path, source, max_reject_share=0.7))
    assert ids(tmp_path) == [1] and len(rejects(tmp_path)) == 2


def test_rows_of_a_query_are_rejected_once_although_they_are_read_again(spark: Any, tmp_path: Path) -> None:
    small_table(tmp_path, v=pa.int8(), at=pa.int64())
    rows = [(1, 2, 10), (None, 3, 10), (2, 300, 20)]
    source = Query(lambda session, since: session.createDataFrame(rows, "id bigint, v int, at bigint"), "at")
    pipeline = flow(tmp_path, source, checkpoint=None)
    for _ in range(2):
        (step,) = run(spark, pipeline)
        assert step.rows_rejected == 2 and step.rows_read == 3
    assert ids(tmp_path) == [1]
    expected = [
        (None, '{"id":2,"v":300,"at":20}', "cannot cast column v to tinyint: 300"),
        (None, '{"id":null,"v":3,"at":10}', "id is null"),
    ]
    assert rejects(tmp_path) == expected
    rows.append((3, 400, 30))
    run(spark, pipeline)
    assert len(rejects(tmp_path)) == 3


def test_values_that_only_the_table_refuses_are_rejected(spark: Any, tmp_path: Path) -> None:
    nested = pa.struct([("n", pa.list_(pa.int32()))])
    small_table(tmp_path, emb=pa.list_(pa.float32(), 2), u=pa.uint8(), s=nested, m=pa.map_(pa.string(), pa.int16()))
    rows = [
        (1, [1.0, 2.0], 255, {"n": [1]}, {"a": 1}),
        (2, [1.0], 1, {"n": None}, None),
        (3, [1.0, 2.0], 256, None, None),
        (4, None, None, {"n": [1, 1 << 40]}, {"a": 1}),
        (5, None, None, None, {"a": 1, "b": 1 << 20}),
    ]
    columns = "id bigint, emb array<double>, u smallint, s struct<n: array<bigint>>, m map<string, bigint>"
    source = Query(lambda session, since: session.createDataFrame(rows, columns), "id")
    (step,) = run(spark, flow(tmp_path, source, checkpoint=None))
    assert ids(tmp_path) == [1] and (step.rows_read, step.rows_inserted, step.rows_rejected) == (5, 1, 4)
    reasons = {row.partition(",")[0]: reason for _, row, reason in rejects(tmp_path)}
    assert reasons.pop('{"id":2').startswith("cannot cast column 'emb' to fixed_size_list")
    assert reasons.pop('{"id":3').startswith("cannot cast column 'u' to uint8")
    assert reasons == {
        '{"id":4': "cannot cast column s.n.item to int: 1099511627776",
        '{"id":5': "cannot cast column m.value to smallint: 1048576",
    }


def test_null_keys_of_a_stream_are_rejected_unless_they_are_dropped(spark: Any, tmp_path: Path) -> None:
    source = tmp_path / "source.lance"
    lancetable.write_dataset(pa.table({"id": pa.array([1, None]), "v": [1, 2]}), source)
    followed = Stream(lambda session: session.readStream.format("lance").load(str(source)))
    (step,) = run(spark, flow(tmp_path, followed))
    assert ids(tmp_path) == [1] and rejects(tmp_path) == [(None, '{"id":null,"v":2}', "id is null")]
    lancetable.write_dataset(pa.table({"id": pa.array([2, None]), "v": [1, 2]}), source, mode="append")
    (step,) = run(spark, flow(tmp_path, followed, null_keys="drop"))
    assert (step.rows_dropped, step.rows_rejected) == (1, 0) and len(rejects(tmp_path)) == 1


def test_a_share_needs_a_table_of_rejects(tmp_path: Path) -> None:
    for more in ({"rejects": None, "max_reject_share": 0.1}, {"max_reject_share": 2.0}):
        with pytest.raises(InvalidInputError, match=r"max_reject_share must be from 0 to 1"):
            flow(tmp_path, Files(str(tmp_path / "landing")), **more)
    with pytest.raises(InvalidInputError, match=r"is below .* whose files are read as data"):
        flow(tmp_path, Files(str(tmp_path)))
