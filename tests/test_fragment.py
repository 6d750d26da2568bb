"""Fragments: reads of one, deletes in one, and writes that are separate from the commit."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lancetable as lance
from lancetable import LanceDataset, LanceFragment, LanceOperation
from lancetable.errors import InvalidInputError, OutOfRangeError
from lancetable.fragment import write_fragments

TABLE = pa.table({"id": pa.array(range(10), pa.int64()), "s": [f"v{i}" for i in range(10)]})


@pytest.fixture
def ds(tmp_path: Path) -> LanceDataset:
    """Write ten rows in fragments of 4, 4 and 2, and delete row 5."""
    made = lance.write_dataset(TABLE, tmp_path / "t.lance", max_rows_per_file=4)
    made.delete("id = 5")
    return made


@pytest.fixture
def fragment(ds: LanceDataset) -> LanceFragment:
    found = ds.get_fragment(1)
    assert found is not None
    return found


def test_properties_of_a_fragment(ds: LanceDataset, fragment: LanceFragment) -> None:
    assert (fragment.fragment_id, fragment.physical_rows, fragment.num_deletions) == (1, 4, 1)
    assert fragment.schema == fragment.physical_schema == TABLE.schema
    assert fragment.partition_expression.equals(pc.scalar(True))
    assert fragment.data_files() == fragment.metadata.files
    assert fragment.metadata.num_rows == 3
    path = fragment.deletion_file()
    assert path is not None and (Path(ds.uri) / path).exists()
    assert f"LanceFragment(id=1, data_files=['{fragment.data_files()[0].path}'], deletion_file='{path}')" == repr(
        fragment
    )
    assert ds.get_fragment(0).deletion_file() is None
    assert ds.get_fragment(9) is None
    fragment.validate()


def test_reading_forms_agree(fragment: LanceFragment) -> None:
    expected = pa.concat_tables([TABLE.slice(4, 1), TABLE.slice(6, 2)])
    for table in (
        fragment.to_table(),
        pa.Table.from_batches(fragment.to_batches(batch_size=2)),
        fragment.scanner().to_table(),
        pa.Table.from_pandas(fragment.to_pandas(), schema=TABLE.schema),
        fragment.head(10),
        fragment.take([0, 1, 2]),
        pa.table(fragment),
    ):
        assert table.equals(expected)


def test_scans_of_one_fragment(fragment: LanceFragment) -> None:
    assert fragment.to_table(["id"], "id > 4", limit=1, offset=1)["id"].to_pylist() == [7]
    assert fragment.to_table(with_row_id=True)["_rowid"].to_pylist() == [(1 << 32) + offset for offset in (0, 2, 3)]
    assert fragment.count_rows() == 3
    assert fragment.count_rows("id > 6") == fragment.count_rows(pc.field("id") > 6) == 1
    assert fragment.head(2)["id"].to_pylist() == [4, 6]
    assert fragment.take([2, 0], columns=["id"])["id"].to_pylist() == [7, 4]
    assert fragment.scanner(columns=["id"], order_by=["s"], batch_size=1).to_reader().read_all().num_rows == 3
    session = fragment.open_session(["id"], with_row_address=True)
    assert session.take([1]).to_pydict() == {"id": [6], "_rowaddr": [(1 << 32) + 2]}
    assert fragment.open_session({"x": "id + 1"}, with_row_address=True).take([0])["x"].to_pylist() == [5]
    assert fragment.open_session(with_row_address=True).take([0]).column_names == ["id", "s", "_rowaddr"]
    with pytest.raises(OutOfRangeError):
        fragment.take([3])


def test_a_fragment_stays_at_its_version(ds: LanceDataset, fragment: LanceFragment) -> None:
    ds.delete("id = 6")
    assert fragment.count_rows() == 3
    assert fragment.to_table()["id"].to_pylist() == [4, 6, 7]
    again = pickle.loads(pickle.dumps(fragment))
    assert again.to_table() == fragment.to_table()
    assert ds.get_fragment(1).count_rows() == 2


def test_filter_of_a_view_applies_to_its_fragments(ds: LanceDataset) -> None:
    view = ds.filter(pc.field("id") > 6)
    assert [fragment.to_table()["id"].to_pylist() for fragment in view.get_fragments()] == [[], [7], [8, 9]]


@pytest.mark.parametrize(
    ("delete", "left"),
    [
        (lambda f: f.delete("id = 6"), [4, 7]),
        (lambda f: f.delete(pc.field("id") >= 6), [4]),
        (lambda f: f.delete("id > 100"), [4, 6, 7]),
        (lambda f: f.delete_rows([3, 0]), [6]),
        (lambda f: f.delete_rows(iter([1])), [4, 6, 7]),
        (lambda f: f.delete_rows([]), [4, 6, 7]),
    ],
)
def test_uncommitted_delete_returns_a_fragment(
    ds: LanceDataset, fragment: LanceFragment, delete: Any, left: list[int]
) -> None:
    metadata = delete(fragment)
    assert metadata.id == 1 and metadata.num_rows == len(left)
    assert ds.latest_version == 2
    committed = LanceDataset.commit(ds, LanceOperation.Delete([metadata], [], "by hand"), read_version=2)
    assert committed.get_fragment(1).to_table()["id"].to_pylist() == left


def test_deleting_all_rows_returns_none(fragment: LanceFragment) -> None:
    assert fragment.delete("id < 100") is None
    assert fragment.delete_rows([0, 1, 2, 3]) is None
    with pytest.raises(ValueError, match="out of range"):
        fragment.delete_rows([4])
    with pytest.raises(TypeError):
        fragment.delete(True)  # type: ignore[arg-type]  # the point


def test_fragments_are_written_for_a_new_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "new")
    fragments = write_fragments(TABLE, uri, max_rows_per_file=6)
    assert [(each.id, each.physical_rows) for each in fragments] == [(0, 6), (0, 4)]
    transaction = write_fragments(TABLE, uri, return_transaction=True)
    assert isinstance(transaction.operation, LanceOperation.Overwrite) and transaction.read_version == 0
    ds = LanceDataset.commit(uri, LanceOperation.Overwrite(TABLE.schema, fragments))
    assert ds.to_table() == TABLE


def test_fragments_are_written_for_an_existing_table(ds: LanceDataset) -> None:
    narrow = write_fragments(pa.table({"s": ["only"]}), ds)
    assert narrow[0].files[0].fields == [1]
    committed = LanceDataset.commit(ds, LanceOperation.Append(narrow), read_version=2)
    assert committed.take([9]).to_pydict() == {"id": [None], "s": ["only"]}
    assert committed.get_fragment(3).physical_schema == pa.schema({"s": pa.string()})
    assert write_fragments(TABLE.slice(0, 0), ds) == []
    transaction = write_fragments(TABLE, ds, return_transaction=True, mode="overwrite")
    assert isinstance(transaction.operation, LanceOperation.Overwrite) and transaction.read_version == 2


def test_create_writes_one_fragment(ds: LanceDataset, tmp_path: Path) -> None:
    made = LanceFragment.create(ds.uri, TABLE, fragment_id=5)
    assert (made.id, made.physical_rows) == (5, 10)
    with pytest.raises(OSError, match="0 fragments"):
        LanceFragment.create(ds.uri, TABLE.slice(0, 0))
    assert LanceFragment.create(str(tmp_path / "x"), TABLE).id == 0


def test_missing_fragment_is_rejected(ds: LanceDataset) -> None:
    for number in (9, None):
        with pytest.raises(InvalidInputError):
            LanceFragment(ds, number)
    assert LanceFragment(ds, 2).count_rows() == 2


def test_path_of_a_data_file_is_a_callable_string(fragment: LanceFragment) -> None:
    path = fragment.data_files()[0].path
    with pytest.warns(DeprecationWarning, match="use DataFile.path"):
        assert path() == path
    assert type(pickle.loads(pickle.dumps(path))) is str
