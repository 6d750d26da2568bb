"""Tests that the public names of lancetable.file behave as those of pylance."""

from __future__ import annotations

from pathlib import Path

import lance.file
import numpy as np
import pyarrow as pa
import pytest

import lancetable.file
from lancetable.errors import (
    ColumnNotFoundError,
    CorruptFileError,
    InvalidInputError,
    InvalidOperationError,
    NotFoundError,
    OutOfRangeError,
    UnsupportedFeatureError,
)
from lancetable.file import LanceFileReader, LanceFileSession, LanceFileWriter

TABLE = pa.table(
    {
        "a": pa.array(range(10)),
        "st": pa.array([{"x": row, "y": f"q{row}"} for row in range(10)]),
        "l": pa.array([[1, 2]] * 10),
    }
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    target = str(tmp_path / "file.lance")
    with LanceFileWriter(target, TABLE.schema) as writer:
        writer.write_batch(TABLE)
        assert writer.add_global_buffer(b"hello") == 1
        writer.add_schema_metadata("k", "v")
    return target


def test_public_names_match_pylance() -> None:
    assert set(lance.file.__all__) <= set(lancetable.file.__all__)
    assert lancetable.file.stable_version() == lance.file.stable_version()


@pytest.mark.parametrize("columns", [None, ["a"], ["st"], ["st.x"], ["l", "a"]])
def test_reader_returns_the_projected_columns(columns: list[str] | None, path: str) -> None:
    ours = LanceFileReader(path, columns=columns).read_all().to_table()
    theirs = lance.file.LanceFileReader(path, columns=columns).read_all().to_table()
    assert ours.equals(theirs, check_metadata=True)


def test_metadata_matches_pylance(path: str) -> None:
    ours, theirs = LanceFileReader(path).metadata(), lance.file.LanceFileReader(path).metadata()
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    for name in [
        "num_rows",
        "num_data_bytes",
        "num_column_metadata_bytes",
        "num_global_buffer_bytes",
        "major_version",
        "minor_version",
    ]:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert [(each.position, each.size) for each in ours.global_buffers] == [
        (each.position, each.size) for each in theirs.global_buffers
    ]
    for mine, other in zip(ours.columns, theirs.columns, strict=True):
        assert [[(each.position, each.size) for each in page.buffers] for page in mine.pages] == [
            [(each.position, each.size) for each in page.buffers] for page in other.pages
        ]
    encodings = ours.columns[0].pages[0].encoding, theirs.columns[0].pages[0].encoding
    assert all("bits_per_value: 64" in each and "MiniBlockLayout {" in each for each in encodings)
    statistics = LanceFileReader(path).file_statistics().columns
    expected = lance.file.LanceFileReader(path).file_statistics().columns
    assert [(each.num_pages, each.size_bytes) for each in statistics] == [
        (each.num_pages, each.size_bytes) for each in expected
    ]


def test_rows_are_read_as_tables_and_batches(path: str) -> None:
    reader = LanceFileReader(path)
    assert reader.num_rows() == 10
    assert reader.read_global_buffer(1) == b"hello"
    assert reader.read_range(3, 4).to_table()["a"].to_pylist() == [3, 4, 5, 6]
    assert reader.take_rows([1, 1, 3]).to_table()["a"].to_pylist() == [1, 1, 3]
    assert reader.take_rows(pa.array([2])).to_table()["st"].to_pylist() == [{"x": 2, "y": "q2"}]
    assert reader.take_rows([]).to_table().num_rows == 0
    batches = reader.read_all(batch_size=3).to_batches()
    assert isinstance(batches, pa.RecordBatchReader)
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 1]
    assert [batch.num_rows for batch in reader.take_rows([0, 5, 7], batch_size=2).to_batches()] == [2, 1]


def test_invalid_calls_raise(path: str, tmp_path: Path) -> None:
    reader = LanceFileReader(path)
    for start, count in [(5, 100), (-1, 3), (11, 0), (0, -1)]:
        with pytest.raises(OutOfRangeError):
            reader.read_range(start, count)
    for rows in ([10], [-1, 3]):
        with pytest.raises(OutOfRangeError):
            reader.take_rows(rows)
    with pytest.raises(InvalidInputError, match="ascending"):
        reader.take_rows([3, 1])
    with pytest.raises(TypeError):
        reader.take_rows(["a"])
    with pytest.raises(InvalidInputError):
        reader.read_all(batch_size=0)
    with pytest.raises(OutOfRangeError):
        reader.read_global_buffer(2)
    with pytest.raises(ColumnNotFoundError, match="nope"):
        LanceFileReader(path, columns=["nope"])
    with pytest.raises(InvalidInputError):
        LanceFileReader(path, columns=[])
    with pytest.raises(NotFoundError):
        LanceFileReader(str(tmp_path / "nothing"))
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(CorruptFileError):
        LanceFileReader(str(tmp_path / "empty"))
    with pytest.raises(UnsupportedFeatureError):
        LanceFileReader(path, namespace_client=object())


def test_versions_are_selected_by_name(tmp_path: Path) -> None:
    target = str(tmp_path / "file.lance")
    with lance.file.LanceFileWriter(target, TABLE.schema, version="2.3") as writer:
        writer.write_batch(TABLE)
    with pytest.raises(UnsupportedFeatureError, match=rf"2\.3.*{target}"):
        LanceFileReader(target)
    for version in ("0.1", "2.3"):
        with pytest.raises(UnsupportedFeatureError, match=version):
            LanceFileWriter(str(tmp_path / "other"), TABLE.schema, version=version)
        assert not (tmp_path / "other").exists()


def test_schema_defaults_to_that_of_the_first_batch(tmp_path: Path) -> None:
    target = str(tmp_path / "file.lance")
    writer = LanceFileWriter(target)
    writer.add_schema_metadata("k", "v")
    with pytest.raises(InvalidOperationError):
        writer.add_global_buffer(b"too early")
    writer.write_batch(TABLE.to_batches()[0])
    assert writer.close() == 10
    assert writer.close() is None
    with pytest.raises(InvalidInputError, match="closed"):
        writer.write_batch(TABLE)
    assert LanceFileReader(target).read_all().to_table().schema.metadata == {b"k": b"v"}
    with pytest.raises(InvalidInputError):
        LanceFileWriter(str(tmp_path / "none")).close()
    with pytest.raises(TypeError):
        LanceFileWriter(str(tmp_path / "none"), TABLE.schema).write_batch([1])


def test_exception_leaves_no_file_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), LanceFileWriter(str(tmp_path / "file.lance"), TABLE.schema) as writer:
        writer.write_batch(TABLE)
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_batches_cross_page_boundaries(tmp_path: Path) -> None:
    target = str(tmp_path / "file.lance")
    words = pa.array([f"w{row}" for row in range(1000)])
    table = pa.table({"s": words, "d": words.dictionary_encode()})
    with LanceFileWriter(target, table.schema, data_cache_bytes=2000) as writer:
        for batch in table.to_batches(max_chunksize=70):
            writer.write_batch(batch)
    batches = list(LanceFileReader(target).read_all(batch_size=128).to_batches())
    assert [batch.num_rows for batch in batches] == [128] * 7 + [104]
    assert [value for batch in batches for value in batch["d"].to_pylist()] == words.to_pylist()


def test_session_lists_reads_and_deletes_files(tmp_path: Path) -> None:
    session = LanceFileSession(str(tmp_path / "base"))
    with session.open_writer("a/x.lance", schema=TABLE.schema) as writer:
        writer.write_batch(TABLE)
    assert session.open_reader("a/x.lance", columns=["a"]).read_all().to_table().num_rows == 10
    assert session.list() == ["a/x.lance"]
    assert session.list("a") == ["a/x.lance"]
    assert session.list("nope") == []
    assert session.list_with_delimiter() == (["a"], [])
    assert session.list_with_delimiter("a") == ([], ["a/x.lance"])
    assert session.contains("a/x.lance")
    assert not session.contains("b")
    session.download_file("a/x.lance", tmp_path / "local")
    session.upload_file(tmp_path / "local", "b/up")
    assert sorted(session.list()) == ["a/x.lance", "b/up"]
    assert session.read_range("b/up", 0, 4) == (tmp_path / "local").read_bytes()[:4]
    with pytest.raises(CorruptFileError):
        session.read_range("b/up", 0, 1 << 20)
    session.delete_file("b/up")
    with pytest.raises(NotFoundError):
        session.delete_file("b/up")
    with pytest.raises(InvalidInputError):
        session.contains("../outside")


def test_numpy_integers_of_any_type_are_accepted_as_row_numbers(path: str) -> None:
    for dtype in ("u1", "i2", "u4", "u8"):
        assert LanceFileReader(path).take_rows(np.array([2, 9], dtype)).to_table()["a"].to_pylist() == [2, 9]


def test_threads_may_share_a_writer(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    target = str(tmp_path / "shared.lance")
    batches = [pa.record_batch({"a": [number] * 500, "b": [str(number)] * 500}) for number in range(64)]
    with LanceFileWriter(target, batches[0].schema) as writer, ThreadPoolExecutor(5) as threads:
        list(threads.map(writer.write_batch, batches))
    table = LanceFileReader(target).read_all().to_table()
    assert table.num_rows == 64 * 500
    assert table["a"].cast(pa.string()).equals(table["b"].cast(pa.string()))
