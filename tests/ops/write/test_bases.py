"""Data files below other base paths: directory of each file, refused targets, removal of files after failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable as lance
from lancetable import DatasetBasePath
from lancetable.errors import InvalidInputError, InvalidOperationError, UnsupportedFeatureError
from lancetable.fragment import write_fragments

TABLE = pa.table({"id": pa.array(range(600))})


def bases(root: Path) -> list[DatasetBasePath]:
    return [
        DatasetBasePath(str(root / "flat"), name="flat"),
        DatasetBasePath(str(root / "tree"), name="tree", is_dataset_root=True),
    ]


def base_ids(ds: lance.LanceDataset) -> list[int | None]:
    return [file.base_id for fragment in ds.get_fragments() for file in fragment.data_files()]


def files_below(path: Path) -> int:
    return sum(1 for each in path.rglob("*.lance") if each.is_file())


@pytest.fixture
def ds(tmp_path: Path) -> lance.LanceDataset:
    return lance.write_dataset(
        TABLE, tmp_path / "t", initial_bases=bases(tmp_path), target_bases=["flat", "tree"], max_rows_per_file=100
    )


def test_files_are_distributed_over_the_targets_in_turn(ds: lance.LanceDataset, tmp_path: Path) -> None:
    assert base_ids(ds) == [1, 2, 1, 2, 1, 2]
    assert len(list((tmp_path / "flat").glob("*.lance"))) == 3
    assert len(list((tmp_path / "tree" / "data").glob("*.lance"))) == 3
    assert not (tmp_path / "t" / "data").exists()
    assert {base.id: base.name for base in ds.base_paths().values()} == {1: "flat", 2: "tree"}
    assert lance.dataset(tmp_path / "t").to_table().equals(TABLE)


def test_pylance_reads_and_appends_to_a_table_with_bases(ds: lance.LanceDataset) -> None:
    theirs = pytest.importorskip("lance", exc_type=ImportError)
    assert theirs.dataset(ds.uri).to_table() == TABLE
    theirs.write_dataset(TABLE.slice(0, 1), ds.uri, mode="append", target_bases=["tree"])
    ds.checkout_latest()
    assert base_ids(ds)[-1] == 2 and ds.count_rows() == 601


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"target_all_bases": True}, [None, 1, 2]),
        ({"target_bases": []}, [None, None, None]),
        ({"target_bases": ["{root}/flat"]}, [1, 1, 1]),
        ({"target_bases": ["tree", "{root}/t"]}, [2, None, 2]),
    ],
)
def test_targets_of_an_append(
    ds: lance.LanceDataset, tmp_path: Path, options: dict[str, Any], expected: list[int | None]
) -> None:
    if "target_bases" in options:
        options = {"target_bases": [each.format(root=tmp_path) for each in options["target_bases"]]}
    grown = lance.write_dataset(TABLE, ds, mode="append", max_rows_per_file=200, **options)
    assert base_ids(grown)[6:] == expected
    assert grown.count_rows() == 1200


def test_an_overwrite_keeps_the_bases(ds: lance.LanceDataset) -> None:
    again = lance.write_dataset(TABLE, ds, mode="overwrite")
    assert base_ids(again) == [None] and len(again.base_paths()) == 2
    assert base_ids(lance.write_dataset(TABLE, again, mode="overwrite", target_bases=["flat"])) == [1]


def test_given_base_ids_are_kept(tmp_path: Path) -> None:
    given = [DatasetBasePath(str(tmp_path / "a"), id=7), DatasetBasePath(str(tmp_path / "b"))]
    ds = lance.write_dataset(TABLE, tmp_path / "t", initial_bases=given, target_bases=[str(tmp_path / "b")])
    assert set(ds.base_paths()) == {7, 8} and base_ids(ds) == [8]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_new_bases_of_an_existing_table_are_refused(ds: lance.LanceDataset, tmp_path: Path, mode: str) -> None:
    more = [DatasetBasePath(str(tmp_path / "more"), name="more")]
    with pytest.raises(InvalidOperationError, match=f"Cannot register new bases in {mode.capitalize()} mode"):
        lance.write_dataset(TABLE, ds, mode=mode, initial_bases=more, target_bases=["more"])


def test_unknown_targets_are_refused(ds: lance.LanceDataset, tmp_path: Path) -> None:
    with pytest.raises(InvalidOperationError, match="'nowhere' not found"):
        lance.write_dataset(TABLE, ds, mode="append", target_bases=["nowhere"])
    with pytest.raises(InvalidOperationError, match="target_all_bases together with target_bases"):
        lance.write_dataset(TABLE, ds, mode="append", target_bases=["flat"], target_all_bases=True)
    with pytest.raises(InvalidInputError, match="list of names"):
        lance.write_dataset(TABLE, ds, mode="append", target_bases="flat")  # type: ignore[arg-type]  # the point
    elsewhere = [DatasetBasePath("s3://bucket/x", name="far")]
    with pytest.raises(UnsupportedFeatureError, match="another store"):
        lance.write_dataset(TABLE, tmp_path / "u", initial_bases=elsewhere, target_bases=["far"])
    assert not list((tmp_path / "u").glob("*")) and ds.latest_version == 1


def test_a_failed_write_leaves_no_files(ds: lance.LanceDataset, tmp_path: Path) -> None:
    def broken() -> Any:
        yield TABLE.slice(0, 100).to_batches()[0]
        yield TABLE.slice(100, 100).to_batches()[0]
        raise ZeroDivisionError

    options: dict[str, Any] = {"target_bases": ["flat", "tree"], "max_rows_per_file": 100}
    with pytest.raises(ZeroDivisionError):
        lance.write_dataset(broken(), ds, schema=TABLE.schema, mode="append", **options)
    assert (files_below(tmp_path / "flat"), files_below(tmp_path / "tree")) == (3, 3)


def test_a_failed_commit_leaves_no_files(tmp_path: Path, ds: lance.LanceDataset) -> None:
    class Refused(Exception):
        pass

    def lock(version: int) -> Any:
        raise lance.CommitConflictError("not now", retryable=False)

    locked = lance.dataset(ds.uri, commit_lock=lock)
    with pytest.raises(lance.LanceError):
        lance.write_dataset(TABLE, locked, mode="append", target_bases=["flat"])
    assert files_below(tmp_path / "flat") == 3


def test_uncommitted_fragments_are_written_to_the_targets(ds: lance.LanceDataset, tmp_path: Path) -> None:
    made = write_fragments(TABLE, ds, target_bases=["tree"])
    assert [file.base_id for each in made for file in each.files] == [2]
    transaction = write_fragments(
        TABLE,
        tmp_path / "new",
        mode="create",
        initial_bases=bases(tmp_path),
        target_bases=["flat"],
        return_transaction=True,
    )
    new = lance.LanceDataset.commit(tmp_path / "new", transaction)
    assert base_ids(new) == [1] and new.to_table().equals(TABLE)


def test_merge_insert_writes_new_rows_to_the_targets(ds: lance.LanceDataset, tmp_path: Path) -> None:
    source = pa.table({"id": [5, 1000]})
    merge = ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.target_bases(["tree"]).execute(source)
    assert base_ids(ds)[-1] == 2 and ds.count_rows() == 601
    ds.merge_insert("id").when_not_matched_insert_all().target_all_bases().execute(pa.table({"id": [2000]}))
    assert base_ids(ds)[-1] is None
    with pytest.raises(InvalidOperationError, match="not found"):
        ds.merge_insert("id").when_not_matched_insert_all().target_bases(["x"]).execute(source)
