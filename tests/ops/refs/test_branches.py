"""Branches and clones that one library creates and the other one continues."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable

LIBRARIES = [(lancetable, lance), (lance, lancetable)]
IDS = ["ours first", "theirs first"]


def rows(ds: Any) -> list[int]:
    return sorted(ds.to_table()["a"].to_pylist())


def base_table(library: Any, path: Path) -> Any:
    ds = library.write_dataset(pa.table({"a": [1, 2, 3]}), path, data_storage_version="2.1")
    ds.insert(pa.table({"a": [4]}))
    ds.delete("a = 2")
    ds.tags.create("two", 2)
    return ds


@pytest.mark.parametrize(("first", "second"), LIBRARIES, ids=IDS)
def test_branches_are_shared_with_pylance(tmp_path: Path, first: Any, second: Any) -> None:
    main = base_table(first, tmp_path / "t")
    branch = main.create_branch("dev/x")
    branch.insert(pa.table({"a": [5]}))
    there = second.dataset(tmp_path / "t").checkout_version(("dev/x", None))
    assert rows(there) == [1, 3, 4, 5]
    there.delete("a IN (1, 5)")
    there.insert(pa.table({"a": [6]}))
    there.tags.create("tagged")
    branch.checkout_latest()
    assert rows(branch) == [3, 4, 6]
    assert (branch.version, [each["version"] for each in branch.versions()]) == (6, [3, 4, 5, 6])
    nested = branch.create_branch("nested", ("dev/x", 4))
    assert rows(nested) == rows(second.dataset(nested.uri)) == [1, 3, 4, 5]
    assert rows(first.dataset(tmp_path / "t", version="tagged")) == [3, 4, 6]
    assert rows(main.checkout_version((None, None))) == [1, 3, 4]
    main.checkout_latest()
    assert main.version == 3
    theirs = second.dataset(tmp_path / "t").branches.list()
    assert theirs == first.dataset(tmp_path / "t").branches.list()
    assert [len(theirs[name]["branch_identifier"]) for name in ("dev/x", "nested")] == [1, 2]


@pytest.mark.parametrize(("first", "second"), LIBRARIES, ids=IDS)
def test_clones_are_independent_tables(tmp_path: Path, first: Any, second: Any) -> None:
    source = base_table(first, tmp_path / "t")
    shallow = source.shallow_clone(tmp_path / "s", "two")
    shallow.delete("a = 1")
    again = second.dataset(tmp_path / "s").shallow_clone(tmp_path / "s2", shallow.version)
    deep = second.dataset(tmp_path / "s2").deep_clone(tmp_path / "d", again.version)
    assert rows(shallow) == rows(again) == rows(deep) == [2, 3, 4]
    assert (source.version, shallow.version, deep.version) == (3, 3, 3)
    assert rows(source) == [1, 3, 4]
    for library in (first, second):
        for name in ("s", "s2", "d"):
            assert rows(library.dataset(tmp_path / name)) == [2, 3, 4]
    shutil.rmtree(tmp_path / "t")
    shutil.rmtree(tmp_path / "s")
    assert rows(first.dataset(tmp_path / "d")) == rows(second.dataset(tmp_path / "d")) == [2, 3, 4]


def test_blob_files_are_cloned(tmp_path: Path) -> None:
    values = [b"x" * 10, b"y" * 200_000, None]
    schema = pa.schema([lancetable.blob_field("b")])
    table = pa.table({"b": lancetable.blob_array(values)}, schema=schema)
    ds = lancetable.write_dataset(table, tmp_path / "t", data_storage_version="2.2")
    ds.deep_clone(tmp_path / "d", 1)
    shutil.rmtree(tmp_path / "t")
    for library in (lancetable, lance):
        read = library.dataset(tmp_path / "d").read_blobs("b", indices=[0, 1, 2])
        assert [each[-1] for each in read] == values


def test_branch_with_children_cannot_be_deleted(tmp_path: Path) -> None:
    ds = base_table(lancetable, tmp_path / "t")
    parent = ds.create_branch("a/b")
    child = parent.create_branch("a")
    with pytest.raises(lancetable.InvalidOperationError, match="delete these branches first"):
        ds.branches.delete("a/b")
    assert rows(child) == [1, 3, 4]
    ds.branches.delete("a")
    assert rows(ds.checkout_version(("a/b", None))) == [1, 3, 4]
    ds.branches.delete("a/b")
    assert ds.branches.list() == {}
    assert not (tmp_path / "t" / "tree" / "a").exists() or not list((tmp_path / "t" / "tree" / "a").rglob("*.*"))
    with pytest.raises(lancetable.RefNotFoundError):
        ds.checkout_version(("a/b", None))


@pytest.mark.parametrize("name", ["main", "", "a//b", "/a", "a/", "..", "a/../b", "a b", "a.lock", "x\\y"])
def test_invalid_name_raises_before_anything_is_written(tmp_path: Path, name: str) -> None:
    ds = base_table(lancetable, tmp_path / "t")
    with pytest.raises(lancetable.InvalidRefError):
        ds.create_branch(name)
    assert not (tmp_path / "t" / "tree").exists()


def test_existing_names_raise(tmp_path: Path) -> None:
    ds = base_table(lancetable, tmp_path / "t")
    ds.create_branch("x")
    ds.shallow_clone(tmp_path / "s", 1)
    with pytest.raises(lancetable.AlreadyExistsError):
        ds.create_branch("x")
    with pytest.raises(lancetable.AlreadyExistsError):
        ds.shallow_clone(tmp_path / "s", 1)
    with pytest.raises(lancetable.AlreadyExistsError):
        ds.deep_clone(tmp_path / "s", 1)
    with pytest.raises(lancetable.VersionNotFoundError):
        ds.create_branch("y", 9)
    with pytest.raises(lancetable.RefNotFoundError):
        ds.shallow_clone(tmp_path / "z", "nope")


def test_deep_clone_to_another_store(tmp_path: Path) -> None:
    ds = base_table(lancetable, tmp_path / "t")
    assert rows(ds.deep_clone("memory://clone", 3)) == [1, 3, 4]
    with pytest.raises(lancetable.UnsupportedFeatureError, match="deep clone"):
        ds.shallow_clone("memory://shallow", 3)


def test_clones_and_branches_in_memory() -> None:
    ds = lancetable.write_dataset(pa.table({"a": [1, 2, 3]}), "memory://branches/t")
    assert rows(ds.shallow_clone("memory://branches/clone", 1)) == [1, 2, 3]
    assert rows(ds.create_branch("x")) == [1, 2, 3]


def test_branch_metadata_is_replaced(tmp_path: Path) -> None:
    ds = base_table(lancetable, tmp_path / "t")
    ds.create_branch("x")
    ds.branches.replace_metadata("x", {"why": "a trial"})
    assert lance.dataset(tmp_path / "t").branches.list()["x"]["metadata"] == {"why": "a trial"}
    assert [name for name, _ in ds.branches.list_ordered("asc")] == ["x"]
    with pytest.raises(lancetable.InvalidInputError):
        ds.branches.list_ordered("up")


def test_leftover_files_of_a_branch_can_be_deleted(tmp_path: Path) -> None:
    ds = base_table(lancetable, tmp_path / "t")
    ds.create_branch("x")
    (tmp_path / "t/_refs/branches/x.json").unlink()
    with pytest.raises(lancetable.AlreadyExistsError, match="leftover files of a branch"):
        ds.create_branch("x")
    ds.branches.delete("x")
    assert rows(ds.create_branch("x")) == rows(ds)
    ds.branches.delete("x")
    with pytest.raises(lancetable.RefNotFoundError):
        ds.branches.delete("x")
