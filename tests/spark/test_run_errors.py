"""Errors of pipelines: one of the library's, in one line that names pipeline, batch, cause and file."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import InvalidInputError, LanceError, SchemaMismatchError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F  # noqa: N812  # the conventional alias

from lancetable.spark import SparkTable, __main__
from lancetable.spark.failures import cause_of
from lancetable.spark.pipeline import Files, Pipeline, Query

pytestmark = pytest.mark.spark


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder


def flow(tmp_path: Path, **more: Any) -> Pipeline:
    source = Files(f"{tmp_path}/landing", "csv", options={"header": "true"})
    checkpoint = str(tmp_path / "checkpoint")
    return Pipeline("orders", str(tmp_path / "t.lance"), source, "id", checkpoint, compact=None, keep_days=None, **more)


def failure(spark: Any, pipeline: Pipeline) -> LanceError:
    with pytest.raises(LanceError) as caught:
        pipeline.run(spark, lambda step: None)
    return caught.value


def test_an_unknown_column_is_named_with_its_file(spark: Any, tmp_path: Path, landing: Path) -> None:
    lancetable.write_dataset(pa.table({"id": ["1"]}), tmp_path / "t.lance")
    (landing / "a.csv").write_text("id\n1\n")
    (landing / "b.csv").write_text("id,note\n2,x\n")
    error = failure(spark, flow(tmp_path))
    assert str(error) == (
        f"orders failed in batch 0: column 'note' of file:{landing}/b.csv is not in the table {tmp_path}/t.lance;"
        ' it has id; to add it as string, pass schema="add"'
    )
    assert type(error) is SchemaMismatchError and error.column == "note"
    assert isinstance(error.__cause__, SchemaMismatchError) and "JVM" not in "".join(traceback.format_exception(error))


def test_errors_of_clean_and_of_spark_are_the_cause(spark: Any, tmp_path: Path, landing: Path) -> None:
    def boom(frame: Any) -> Any:
        raise KeyError("v")

    (landing / "a.csv").write_text("id\n1\n")
    file = f" (file:{landing}/a.csv)"
    error = failure(spark, flow(tmp_path, clean=boom))
    assert str(error) == f"orders failed in batch 0: KeyError: 'v'{file}" and isinstance(error.__cause__, KeyError)
    error = failure(spark, flow(tmp_path, clean=lambda frame: frame.select("nope")))
    assert str(error).startswith("orders failed in batch 0: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column")
    assert str(error).endswith(file) and "\n" not in str(error) and isinstance(error.__cause__, AnalysisException)
    error = failure(spark, flow(tmp_path, clean=lambda frame: frame.mapInArrow(lambda batches: 1 / 0, frame.schema)))
    assert str(error) == f"orders failed in batch 0: ZeroDivisionError: division by zero{file}"
    lancetable.write_dataset(pa.table({"id": pa.array([], pa.int8())}), tmp_path / "t.lance", mode="overwrite")
    error = failure(spark, flow(tmp_path, clean=lambda frame: frame.selectExpr("300 AS id")))
    cause = '[USER_RAISED_EXCEPTION] cannot cast column id to tinyint: 300; to widen the column, pass schema="evolve"'
    assert str(error) == f"orders failed in batch 0: {cause}{file}"


def test_errors_outside_of_batches_name_the_step_or_the_run(spark: Any, tmp_path: Path, landing: Path) -> None:
    def read(session: Any, since: Any) -> Any:
        return session.createDataFrame([(1, 2)], "id int, n int")

    query = Pipeline("orders", str(tmp_path / "t.lance"), Query(read, "n"), "id", compact={"nope": 1})
    assert str(failure(spark, query)).startswith("orders failed in compact: unknown option 'nope' of compact")
    error = failure(spark, Pipeline("s", str(tmp_path / "s.lance"), Files("x://y"), "id", str(tmp_path / "c")))
    assert str(error) == 's failed: org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "x"'


def test_the_text_of_an_error_in_another_process_contains_the_cause() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: Found"
        " error\nTraceback (most recent call last):\n  File 'a.py', line 1, in f\n    1 / 0\nZeroDivisionError: x\n\n"
        "The above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
        "  File 'b.py', line 2\nlancetable.errors.LanceError: orders failed in batch 3: ZeroDivisionError: x\n\n\tat"
        " org.apache.spark.Java\nSQLSTATE: 39000"
    )
    assert cause_of(PySparkException(text)) == "orders failed in batch 3: ZeroDivisionError: x"
    text = "[STREAM_FAILED] Query [id = 1] terminated with exception: Offsets are lost SQLSTATE: XXKST\n\tat java"
    assert cause_of(PySparkException(text)) == "Offsets are lost"


def test_metrics_that_cannot_be_written_are_a_warning(
    spark: Any, tmp_path: Path, landing: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (landing / "a.csv").write_text("id\n1\n")
    metrics = tmp_path / "metrics.lance"
    metrics.write_text("a file, not a folder")
    with caplog.at_level(logging.WARNING, "lancetable"):
        flow(tmp_path, metrics=str(metrics)).run(spark, lambda step: None)
    assert lancetable.dataset(tmp_path / "t.lance").count_rows() == 1
    assert f"orders: step not written to the metrics table {metrics}: " in caplog.text


PIPELINE = """\
from lancetable.spark.pipeline import Files, Pipeline

orders = Pipeline(
    "orders", {table!r}, Files({landing!r}, "csv", options={{"header": "true"}}), "id", checkpoint={checkpoint!r}
)
"""


def test_the_command_prints_the_cause_as_the_last_line(
    spark: Any,
    tmp_path: Path,
    landing: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, paths = tmp_path / "p.py", {name: f"{tmp_path}/{name}" for name in ("table", "landing", "checkpoint")}
    file.write_text(PIPELINE.format(**paths))
    (landing / "a.csv").write_text("key\n1\n")
    monkeypatch.setattr(type(spark), "stop", lambda session: None)  # the session of the other tests
    level = "spark.log.level=ERROR"
    for verbose in ([], ["--verbose"]):
        assert __main__.main(["run", f"{file}:orders", "--conf", level, *verbose]) == 1
        lines = capsys.readouterr().err.splitlines()
        assert (
            lines[-1] == f"orders failed in batch 0: the source has no column 'id'; it has key (file:{landing}/a.csv)"
        )
        assert any(line.startswith("Traceback") for line in lines) == bool(verbose)
    for text, words in (
        ("x = 1\norders = nope\n", "line 2: NameError: name 'nope' is not defined"),
        ("x = 1\ny = (\n", "line 2: SyntaxError: '(' was never closed"),
        ("def f():\n    raise OSError(3)\nf()\n", "line 3: OSError: 3"),
    ):
        file.write_text(text)
        assert __main__.main(["run", f"{file}:orders"]) == 1
        assert capsys.readouterr().err.startswith(f"{file}, {words}")
    assert __main__.main(["run", f"{tmp_path}/none.py:orders"]) == 1
    assert capsys.readouterr().err.startswith(f"{tmp_path}/none.py: FileNotFoundError")


def test_columns_of_spark_are_refused_where_sql_text_is_expected(spark: Any, tmp_path: Path) -> None:
    lancetable.write_dataset(pa.table({"id": [1]}), tmp_path / "t.lance")
    table = SparkTable.for_path(spark, str(tmp_path / "t.lance"))
    condition: Any = F.col("id") > 1
    merge = table.merge(spark.range(1), "id")
    for call, name in (
        (lambda: table.delete(condition), "predicate"),
        (lambda: table.update({"id": F.col("id") + 1}), r"set\['id'\]"),
        (lambda: table.update({"id": "id + 1"}, where=condition), "where"),
        (lambda: merge.when_matched_update_all(condition), "condition"),
        (lambda: merge.when_not_matched_by_source_delete(condition), "delete_condition"),
    ):
        with pytest.raises(InvalidInputError, match=rf"{name} must be SQL text .*got Column Column<"):
            call()
