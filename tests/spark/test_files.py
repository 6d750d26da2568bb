"""Files as a source of a pipeline: which of them are read, how columns are found, and values that do not parse."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lancetable
from lancetable.errors import InvalidInputError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.spark.pipeline import Files, Pipeline, Step

pytestmark = pytest.mark.spark
CSV = {"header": "true"}


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder


def flow(tmp_path: Path, files: Files, **more: Any) -> Pipeline:
    checkpoint = str(tmp_path / "checkpoint")
    return Pipeline("p", str(tmp_path / "t.lance"), files, "id", checkpoint, compact=None, keep_days=None, **more)


def run(spark: Any, pipeline: Pipeline) -> list[Step]:
    return pipeline.run(spark, lambda step: None)


def rows(tmp_path: Path) -> list[dict[str, Any]]:
    return sorted(lance.dataset(str(tmp_path / "t.lance")).to_table().to_pylist(), key=lambda row: str(row["id"]))


def test_files_in_subfolders_are_read_by_default(spark: Any, tmp_path: Path, landing: Path) -> None:
    (landing / "a.csv").write_text("id\n1\n")
    (landing / "2026" / "11").mkdir(parents=True)
    (landing / "2026" / "11" / "b.csv").write_text("id\n2\n")
    files = Files(str(landing), "csv", "id bigint", CSV)
    run(spark, flow(tmp_path, files))
    assert rows(tmp_path) == [{"id": 1}, {"id": 2}]
    (tmp_path / "other").mkdir()
    run(spark, flow(tmp_path / "other", Files(str(landing), "csv", "id bigint", CSV, recursive=False)))
    assert rows(tmp_path / "other") == [{"id": 1}]


def test_partition_folders_become_columns(spark: Any, tmp_path: Path, landing: Path) -> None:
    for day in (1, 2):
        (landing / f"day={day}").mkdir()
        (landing / f"day={day}" / "a.csv").write_text(f"id\n{day}\n")
    run(spark, flow(tmp_path, Files(str(landing), "csv", "id bigint, day int", CSV)))
    assert rows(tmp_path) == [{"id": 1, "day": 1}, {"id": 2, "day": 2}]


def test_a_file_much_older_than_the_others_is_read(spark: Any, tmp_path: Path, landing: Path) -> None:
    pipeline = flow(tmp_path, Files(str(landing), "csv", "id bigint", CSV))
    (landing / "a.csv").write_text("id\n1\n")
    run(spark, pipeline)
    (landing / "old.csv").write_text("id\n2\n")
    os.utime(landing / "old.csv", (1_000_000_000, 1_000_000_000))
    run(spark, pipeline)
    assert rows(tmp_path) == [{"id": 1}, {"id": 2}]


def test_columns_of_csv_files_are_found_by_name(spark: Any, tmp_path: Path, landing: Path) -> None:
    pipeline = flow(tmp_path, Files(str(landing), "csv", "id bigint, v double, ts int", CSV))
    (landing / "a.csv").write_text("ts,ID,note,v\n1,7,x,3000\n")
    steps = run(spark, pipeline)
    assert rows(tmp_path) == [{"id": 7, "v": 3000.0, "ts": 1}] and steps[0].rows_unparsed == 0


def test_a_column_that_the_header_lacks_is_refused(spark: Any, tmp_path: Path, landing: Path) -> None:
    (landing / "a.csv").write_text("id,valeu\n1,2\n")
    with pytest.raises(Exception, match=r"column 'v' of the schema is not in the header of .*a\.csv \(id, valeu\)"):
        run(spark, flow(tmp_path, Files(str(landing), "csv", "id bigint, v double", CSV)))
    assert not (tmp_path / "t.lance").exists()


def test_each_file_of_a_batch_is_read_by_its_own_header(spark: Any, tmp_path: Path, landing: Path) -> None:
    (landing / "a.csv").write_text("id,v\n1,10\n2,x\n")
    (landing / "b.csv").write_text("note,v,id\nhello,30,3\n,y,4\n")
    (landing / "c.csv").write_text("v,id\n50,5\n")
    (landing / "empty.csv").write_text("")
    for folder, schema in (("one", "id bigint, v bigint"), ("two", None)):
        (tmp_path / folder).mkdir()
        (step,) = run(spark, flow(tmp_path / folder, Files(str(landing), "csv", schema, CSV)))
        assert step.rows_read == 5 and (step.rows_unparsed, dict(step.unparsed)) == (
            (2, {"v": 2}) if schema else (0, {})
        )
    numbers = [{"id": 1, "v": 10}, {"id": 2, "v": None}, {"id": 3, "v": 30}, {"id": 4, "v": None}, {"id": 5, "v": 50}]
    assert rows(tmp_path / "one") == numbers
    texts = [("1", "10", None), ("2", "x", None), ("3", "30", "hello"), ("4", "y", None), ("5", "50", None)]
    assert [(row["id"], row["v"], row["note"]) for row in rows(tmp_path / "two")] == texts


@pytest.mark.parametrize("kind", ["csv", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("json", "parquet"))])
def test_a_column_that_appears_later_is_refused_until_the_table_has_it(
    spark: Any, tmp_path: Path, landing: Path, kind: str
) -> None:
    def write(name: str, row: dict[str, Any]) -> None:
        if kind == "csv":
            text = ",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n"
            (landing / f"{name}.csv").write_text(text)
        elif kind == "json":
            (landing / f"{name}.json").write_text(json.dumps(row) + "\n")
        else:
            pq.write_table(pa.Table.from_pylist([row]), landing / f"{name}.parquet")

    pipeline = flow(tmp_path, Files(str(landing), kind, options=CSV if kind == "csv" else {}))
    write("a", {"id": "1", "v": "x"})
    run(spark, pipeline)
    write("b", {"id": "2", "v": "y", "more": "new"})
    for _ in range(2):
        with pytest.raises(Exception, match=r"column 'more'"):
            run(spark, pipeline)
        assert rows(tmp_path) == [{"id": "1", "v": "x"}]
    lancetable.dataset(tmp_path / "t.lance").add_columns(pa.schema([("more", pa.string())]))
    run(spark, pipeline)
    assert rows(tmp_path) == [{"id": "1", "v": "x", "more": None}, {"id": "2", "v": "y", "more": "new"}]


def test_csv_values_that_do_not_parse_are_counted_by_column(spark: Any, tmp_path: Path, landing: Path) -> None:
    lines = ["id,price,at,note", "1,2.5,2026-01-01,a", "2,cheap,2026-01-02,b", "3,,yesterday,", "4,x,y,d", "5,1.5"]
    (landing / "a.csv").write_text("\n".join(lines) + "\n")
    schema = "id bigint, price double, at date, note string"
    step = run(spark, flow(tmp_path, Files(str(landing), "csv", schema, CSV)))[0]
    assert (step.rows_read, step.rows_unparsed, dict(step.unparsed)) == (5, 4, {"price": 2, "at": 2})
    assert "4 records do not parse (price: 2, at: 2)" in str(step)
    assert [row["price"] for row in rows(tmp_path)] == [2.5, None, None, None, 1.5]


def test_json_values_that_do_not_parse_are_counted_by_column(spark: Any, tmp_path: Path, landing: Path) -> None:
    lines = ['{"id": 1, "v": 2}', '{"id": 2, "v": "many"}', '{"id": 3, "v": 4', '{"id": 5}']
    (landing / "a.json").write_text("\n".join(lines) + "\n")
    metrics = tmp_path / "metrics.lance"
    files = Files(str(landing), "json", "id bigint, v bigint")
    step = run(spark, flow(tmp_path, files, null_keys="drop", metrics=str(metrics)))[0]
    assert (step.rows_unparsed, dict(step.unparsed), step.rows_dropped) == (2, {"v": 1}, 1)
    assert rows(tmp_path) == [{"id": 1, "v": 2}, {"id": 2, "v": None}, {"id": 5, "v": None}]
    (row,) = lance.dataset(str(metrics)).to_table().to_pylist()
    assert json.loads(row["unparsed"]) == {"v": 1} and row["rows_dropped"] == 1


def test_more_broken_values_than_allowed_refuse_the_batch(spark: Any, tmp_path: Path, landing: Path) -> None:
    (landing / "a.csv").write_text("id,v\n1,2\n2,x\n3,y\n")
    with pytest.raises(
        Exception,
        match=r"2 records of .*a\.csv do not parse \(values by column: v: 2\), more than max_unparsed=1.*'2,x'",
    ):
        run(spark, flow(tmp_path, Files(str(landing), "csv", "id bigint, v bigint", CSV, max_unparsed=1)))
    assert not (tmp_path / "t.lance").exists()
    run(spark, flow(tmp_path, Files(str(landing), "csv", "id bigint, v bigint", CSV, max_unparsed=2)))
    assert rows(tmp_path) == [{"id": 1, "v": 2}, {"id": 2, "v": None}, {"id": 3, "v": None}]


def test_records_that_are_to_be_dropped_are_counted(spark: Any, tmp_path: Path, landing: Path) -> None:
    (landing / "a.csv").write_text("id,v\n1,2\n2,x\n")
    files = Files(str(landing), "csv", "id bigint, v bigint", {**CSV, "mode": "DROPMALFORMED"})
    step = run(spark, flow(tmp_path, files))[0]
    assert (step.rows_read, step.rows_unparsed) == (1, 1) and rows(tmp_path) == [{"id": 1, "v": 2}]


def test_a_file_without_records_makes_an_empty_batch(spark: Any, tmp_path: Path, landing: Path) -> None:
    pipeline = flow(tmp_path, Files(str(landing), "csv", "id bigint, v bigint", CSV))
    (landing / "a.csv").write_text("id,v\n")
    assert [step.rows_read for step in run(spark, pipeline)] == [0]
    (landing / "b.csv").write_text("id,v\n1,2\n")
    assert [step.rows_read for step in run(spark, pipeline)] == [1]
    assert rows(tmp_path) == [{"id": 1, "v": 2}]


def test_unknown_null_key_modes_are_refused(tmp_path: Path, landing: Path) -> None:
    with pytest.raises(InvalidInputError, match="null_keys must be 'refuse', 'drop' or 'keep', got 'ignore'"):
        flow(tmp_path, Files(str(landing)), null_keys="ignore")


@pytest.mark.parametrize("kind", ["csv", pytest.param("json", marks=pytest.mark.slow)])
def test_files_beside_partition_folders_are_read_with_them(
    spark: Any, tmp_path: Path, landing: Path, kind: str
) -> None:
    for name, number in (("a", 1), ("day=1/b", 2), ("deep/day=2/c", 3), ("deep/d", 4)):
        path = landing / f"{name}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"id\n{number}\n" if kind == "csv" else f'{{"id": {number}}}\n')
    files = Files(str(landing), kind, "id bigint", CSV if kind == "csv" else {})
    (step,) = run(spark, flow(tmp_path, files))
    assert step.rows_read == 4
    assert {row["id"]: row["day"] for row in rows(tmp_path)} == {1: None, 2: 1, 3: 2, 4: None}


def test_file_names_may_have_any_characters(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "land [1] %41,x"
    folder.mkdir()
    names = [
        "a[1].json",
        "a1.json",
        "b{x,y}.json",
        "c d.json",
        "e%20f.json",
        "g*h.json",
        "h,i.json",
        "j?.json",
        "k\\l.json",
    ]
    for number, name in enumerate(names):
        (folder / name).write_text(f'{{"id": {number}}}\n')
    source = Files(str(folder).replace("[", "\\[").replace("]", "\\]"), "json", "id bigint")
    (step,) = run(spark, flow(tmp_path, source))
    assert step.rows_inserted == len(names) and rows(tmp_path) == [{"id": number} for number in range(len(names))]


def test_headers_with_empty_and_repeated_names_are_read(spark: Any, tmp_path: Path, landing: Path) -> None:
    (landing / "a.csv").write_text("id,v,\n1,10,\n")
    (landing / "b.csv").write_text("id,x,x,v\n2,a,b,20\n")
    run(spark, flow(tmp_path, Files(str(landing), "csv", "id bigint, v bigint", CSV)))
    assert rows(tmp_path) == [{"id": 1, "v": 10}, {"id": 2, "v": 20}]


@pytest.mark.parametrize("kind", ["csv", pytest.param("json", marks=pytest.mark.slow)])
def test_empty_files_do_not_stop_a_pipeline(spark: Any, tmp_path: Path, landing: Path, kind: str) -> None:
    (landing / f"a.{kind}").write_text("")
    options = CSV if kind == "csv" else {}
    with pytest.raises(Exception, match=r"no records to infer a schema from.*pass schema to Files"):
        run(spark, flow(tmp_path, Files(str(landing), kind, None, options)))
    run(spark, flow(tmp_path, Files(str(landing), kind, "id string", options)))
    for number, text in enumerate(("\n", "")):
        (landing / f"b{number}.{kind}").write_text(text)
        (step,) = run(spark, flow(tmp_path, Files(str(landing), kind, None, options)))
        assert step.rows_read == 0
    (landing / f"c.{kind}").write_text("id\n7\n" if kind == "csv" else '{"id": "7"}\n')
    run(spark, flow(tmp_path, Files(str(landing), kind, None, options)))
    assert rows(tmp_path) == [{"id": "7"}]


def test_addresses_below_the_folder_of_files_are_refused(tmp_path: Path) -> None:
    for name in ("table", "checkpoint", "metrics"):
        arguments = {"table": "t.lance", "checkpoint": str(tmp_path / "cp"), "metrics": str(tmp_path / "m")}
        arguments[name] = f"file:{tmp_path}/landing/x"
        with pytest.raises(InvalidInputError, match=r"is below .* whose files are read as data"):
            Pipeline("p", source=Files(f"{tmp_path}/landing"), key="id", **arguments)
    Pipeline("p", f"{tmp_path}/landing2", Files(f"{tmp_path}/landing"), "id", checkpoint=str(tmp_path / "cp"))


def test_the_usual_column_of_corrupt_records_is_filled(spark: Any, tmp_path: Path, landing: Path) -> None:
    (landing / "a.csv").write_text("id,v\n1,2\n2,x\n")
    schema = "id bigint, v bigint, _corrupt_record string"
    run(spark, flow(tmp_path, Files(str(landing), "csv", schema, CSV)))
    assert [row["_corrupt_record"] for row in rows(tmp_path)] == [None, "2,x"]
