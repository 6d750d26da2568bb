"""Other engines read a dataset, and pass projection and filter to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lancetable as lance
from lancetable import LanceDataset

TABLE = pa.table(
    {"id": pa.array(range(10), pa.int64()), "s": [f"v{i}" for i in range(10)], "x": [i / 2 for i in range(10)]}
)


@pytest.fixture
def ds(tmp_path: Path) -> LanceDataset:
    return lance.write_dataset(TABLE, tmp_path / "t", max_rows_per_file=4)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, Any]]]:
    """Record (columns, filter) of every scan."""
    seen: list[tuple[Any, Any]] = []
    original = LanceDataset.scanner

    def spy(self: LanceDataset, columns: Any = None, filter: Any = None, *args: Any, **kwargs: Any) -> Any:
        seen.append((columns, filter))
        return original(self, columns, filter, *args, **kwargs)

    monkeypatch.setattr(LanceDataset, "scanner", spy)
    yield seen


def test_duckdb_pushes_projection_and_filter_down(ds: LanceDataset, scans: list[tuple[Any, Any]]) -> None:
    duckdb = pytest.importorskip("duckdb")
    assert duckdb.sql("select s from ds where id > 7 order by s").fetchall() == [("v8",), ("v9",)]
    ((columns, condition),) = scans
    assert columns == ["s"]
    assert isinstance(condition, pc.Expression) and "id > 7" in str(condition)


def test_duckdb_aggregates_and_joins(ds: LanceDataset) -> None:
    duckdb = pytest.importorskip("duckdb")
    ds.delete("id = 3")
    assert duckdb.sql("select count(*), sum(x) from ds").fetchall() == [(9, 21.0)]
    joined = duckdb.sql("select a.id from ds a join ds b on a.id = b.id + 1 where b.s = 'v8'")
    assert joined.fetchall() == [(9,)]
    assert duckdb.from_arrow(ds).filter("id < 2").fetchall() == [(0, "v0", 0.0), (1, "v1", 0.5)]


@pytest.mark.filterwarnings("ignore:.*scan_pyarrow_dataset.*:DeprecationWarning")
def test_polars_pushes_projection_and_filter_down(ds: LanceDataset, scans: list[tuple[Any, Any]]) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.scan_pyarrow_dataset(ds).filter(pl.col("id") > 7).select("s").collect()
    assert frame["s"].to_list() == ["v8", "v9"]
    columns, condition = scans[-1]
    assert set(columns) == {"id", "s"}
    assert isinstance(condition, pc.Expression) and "id > 7" in str(condition)
    assert pl.scan_pyarrow_dataset(ds).collect().shape == (10, 3)


def test_polars_and_arrow_read_the_stream(ds: LanceDataset) -> None:
    pl = pytest.importorskip("polars")
    assert pl.DataFrame(ds).shape == (10, 3)
    assert pa.table(ds) == TABLE


def test_pandas(ds: LanceDataset) -> None:
    pd = pytest.importorskip("pandas")
    frame = ds.to_pandas(columns=["id", "x"], filter="id < 2")
    pd.testing.assert_frame_equal(frame, pd.DataFrame({"id": [0, 1], "x": [0.0, 0.5]}))
    ds.insert(pd.DataFrame({"id": [10], "s": ["w"], "x": [0.0]}))
    assert ds.count_rows() == 11


def test_errors_inside_a_stream_keep_their_message(ds: LanceDataset) -> None:
    data = next(iter(Path(ds.uri, "data").iterdir()))
    data.write_bytes(b"\0" * data.stat().st_size)
    lance.dataset(ds.uri)
    with pytest.raises(Exception, match=data.name):
        pa.table(lance.dataset(ds.uri))
