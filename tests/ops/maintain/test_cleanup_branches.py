"""Cleanup with branches: a version is kept while a branch references its files, and removed afterwards."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import lance
import pyarrow as pa
import pytest

import lancetable
from lancetable.commit.cleanup import branch_references

ALL_OLD: dict[str, Any] = {
    "retain_versions": 2,
    "error_if_tagged_old_versions": False,
    "delete_unverified": True,
}


def rows(first: int, last: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, last), pa.int64())})


def numbers(ds: Any) -> list[int]:
    return [each["version"] for each in ds.versions()]


class Forest:
    """Table of one library with the branch `side`, which was created from version 2."""

    def __init__(self, library: Any, uri: Path, second: Callable[[Forest], object]) -> None:
        self.library, self.uri = library, str(uri)
        library.write_dataset(rows(0, 5), self.uri)
        second(self)
        self.main.create_branch("side", 2)

    @property
    def main(self) -> Any:
        return self.library.dataset(self.uri)

    @property
    def side(self) -> Any:
        return self.main.checkout_version(("side", None))

    def write(self, table: pa.Table, mode: str = "append", branch: str | None = None) -> None:
        self.library.write_dataset(table, self.uri if branch is None else f"{self.uri}/tree/{branch}", mode=mode)

    def clean(self, ds: Any) -> list[Any]:
        """Return the removed files and the explanation of the cleanup."""
        told = ds.explain_cleanup_old_versions(**ALL_OLD)
        stats = ds.cleanup_old_versions(**ALL_OLD)
        branches = [(each.name, each.referenced_version, each.cleanup_candidate) for each in told.referenced_branches]
        return [told.stats.old_versions, stats.old_versions, stats.data_files_removed, branches, numbers(ds)]


def appended(forest: Forest) -> None:
    forest.write(rows(5, 10))


def emptied(forest: Forest) -> None:
    forest.write(rows(0, 0), "overwrite")


def all_deleted(forest: Forest) -> None:
    forest.main.delete("true")


def one_deleted(forest: Forest) -> None:
    forest.main.delete("id = 1")


def named_as_its_own_root(forest: Forest) -> None:
    forest.main.add_bases([forest.library.DatasetBasePath(forest.uri, name="own", is_dataset_root=True)])


def named_as_its_own_base(forest: Forest) -> None:
    forest.main.add_bases([forest.library.DatasetBasePath(forest.uri, name="own")])


def nothing(_: Forest) -> None: ...


def inserted(forest: Forest) -> None:
    forest.side.insert(rows(100, 103))


def overwritten(forest: Forest) -> None:
    for mode in ("overwrite", "append", "append"):
        forest.write(rows(7, 8), mode, "side")


def overwritten_and_cleaned(forest: Forest) -> None:
    overwritten(forest)
    forest.clean(forest.side)


def compacted_and_cleaned(forest: Forest) -> None:
    forest.side.optimize.compact_files()
    forest.side.insert(rows(50, 51))
    forest.side.insert(rows(51, 52))
    forest.clean(forest.side)


def branched_then_cleaned(forest: Forest) -> None:
    forest.side.create_branch("sub", 2)
    overwritten_and_cleaned(forest)


def branched_late_then_cleaned(forest: Forest) -> None:
    overwritten(forest)
    forest.side.create_branch("sub", 3)
    forest.clean(forest.side)


@pytest.mark.parametrize(
    "second", [appended, emptied, all_deleted, one_deleted, named_as_its_own_root, named_as_its_own_base]
)
@pytest.mark.parametrize(
    "then",
    [
        nothing,
        inserted,
        overwritten,
        overwritten_and_cleaned,
        compacted_and_cleaned,
        branched_then_cleaned,
        branched_late_then_cleaned,
    ],
)
def test_cleanup_keeps_the_same_versions_as_pylance(
    tmp_path: Path, second: Callable[[Forest], object], then: Callable[[Forest], object]
) -> None:
    said = []
    for library in (lancetable, lance):
        forest = Forest(library, tmp_path / library.__name__, second)
        then(forest)
        before = {name: forest.main.checkout_version((name, None)).to_table() for name in forest.main.branches.list()}
        for number in range(4):
            forest.write(rows(20 + number, 21 + number))
        said.append([forest.clean(forest.main), forest.clean(forest.side), forest.clean(forest.main)])
        for name, table in before.items():
            branch = forest.main.checkout_version((name, None))
            for version in numbers(branch):
                branch.checkout_version(version).to_table()
            assert branch.to_table() == table
    assert said[0] == said[1]


def test_moved_table_keeps_files_that_branches_reference(tmp_path: Path) -> None:
    """The base paths of the branch contain the old location. The branch is readable after the table is moved back."""
    forest = Forest(lancetable, tmp_path / "t", appended)
    before = forest.side.to_table()
    shutil.move(forest.uri, tmp_path / "moved")
    moved = lancetable.dataset(tmp_path / "moved")
    for number in range(3):
        moved.insert(rows(number, number + 1))
    moved.cleanup_old_versions(**ALL_OLD)
    assert numbers(moved) == [2, 4, 5]
    shutil.move(tmp_path / "moved", forest.uri)
    assert forest.side.to_table() == before


@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_a_branch_that_cannot_be_read_keeps_its_version(tmp_path: Path, harm: str) -> None:
    forest = Forest(lancetable, tmp_path / "t", appended)
    for manifest in (tmp_path / "t" / "tree" / "side" / "_versions").iterdir():
        if harm == "gone":
            manifest.unlink()
        else:
            manifest.write_bytes(b"x" * 50)
    forest.write(rows(0, 1))
    forest.write(rows(1, 2))
    told = forest.main.explain_cleanup_old_versions(**ALL_OLD)
    assert ["branch side" in each and "cannot be read" in each for each in told.warnings] == [True]
    forest.main.cleanup_old_versions(**ALL_OLD)
    assert numbers(forest.main) == [2, 3, 4]


def test_files_of_a_branch_are_kept_after_removal_of_its_version(tmp_path: Path) -> None:
    """Another writer may have removed the version; then only the branch references the files."""
    forest = Forest(lancetable, tmp_path / "t", appended)
    before = forest.side.to_table()
    forest.write(rows(0, 1), "overwrite")
    second = next(each for each in (tmp_path / "t" / "_versions").iterdir() if each.name.endswith("613.manifest"))
    second.unlink()
    forest.write(rows(1, 2))
    forest.main.cleanup_old_versions(**{**ALL_OLD, "retain_versions": 1})
    assert numbers(forest.main) == [4]
    assert forest.side.to_table() == before


def test_files_of_an_unreadable_branch_are_kept(tmp_path: Path) -> None:
    """The version was removed, so its files are unreferenced and unknown to the cleanup."""
    forest = Forest(lancetable, tmp_path / "t", appended)
    before = forest.side.to_table()
    forest.write(rows(0, 1), "overwrite")
    next(each for each in (tmp_path / "t" / "_versions").iterdir() if each.name.endswith("613.manifest")).unlink()
    forest.write(rows(1, 2))
    (manifest,) = (tmp_path / "t" / "tree" / "side" / "_versions").glob("*.manifest")
    good = manifest.read_bytes()
    manifest.write_bytes(good[:-1])
    told = forest.main.explain_cleanup_old_versions(**ALL_OLD)
    assert any("branch side" in each and "no other files" in each for each in told.warnings)
    stats = forest.main.cleanup_old_versions(**{**ALL_OLD, "retain_versions": 1})
    assert (stats.old_versions, stats.data_files_removed) == (2, 0)
    manifest.write_bytes(good)
    assert forest.side.to_table() == before
    stats = forest.main.cleanup_old_versions(**ALL_OLD)
    assert forest.side.to_table() == before


def test_each_ref_and_each_version_of_a_branch_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes branches whose parent version is missing, all of whose versions are checked by every cleanup."""
    forest = Forest(lancetable, tmp_path / "t", emptied)
    for number in range(10):
        forest.write(rows(number, number + 1), "overwrite", "side")
    for number in range(5):
        forest.main.create_branch(f"more{number}", 2)
        forest.write(rows(number, number + 1), "overwrite")
    ds, opened, listed = forest.main, [], []
    real_open, real_list = branch_references.open_location, branch_references.refs.RefFiles.list
    monkeypatch.setattr(branch_references, "open_location", lambda *each: (opened.append(each), real_open(*each))[1])
    monkeypatch.setattr(
        branch_references.refs.RefFiles, "list", lambda *each: (listed.append(each[0].kind), real_list(*each))[1]
    )
    ds.cleanup_old_versions(**ALL_OLD)
    assert len([each for _, each in opened if "/tree/side/" in each.path]) == 11
    assert listed.count("branch") <= 6
    opened.clear()
    ds.cleanup_old_versions(**ALL_OLD)
    assert not [each for _, each in opened if "/tree/side/" in each.path]


@pytest.mark.parametrize("has_lineage", [True, False])
def test_branch_whose_parent_ref_was_deleted_keeps_its_files(tmp_path: Path, has_lineage: bool) -> None:
    """A deletion of the parent may have been interrupted after it removed the ref."""
    forest = Forest(lancetable, tmp_path / "t", appended)
    forest.side.create_branch("sub")
    refs = tmp_path / "t" / "_refs" / "branches"
    (refs / "side.json").unlink()
    if not has_lineage:
        contents = json.loads((refs / "sub.json").read_text())
        contents["identifier"]["version_mapping"] = []
        (refs / "sub.json").write_text(json.dumps(contents))
    for number in range(3):
        forest.write(rows(number, number + 1), "overwrite")
    assert lance.dataset(forest.uri).count_rows() == 1
    forest.main.cleanup_old_versions(**ALL_OLD)
    assert forest.main.checkout_version(("sub", None)).to_table() == rows(0, 10)


def test_branch_with_a_reused_name_is_read_again(tmp_path: Path) -> None:
    """References of branch versions are cached; a recreated branch may have manifests with the same names and sizes."""
    place = fsspec.filesystem("dir", path=str(tmp_path), fs=fsspec.filesystem("file")), "t"
    options = {"unsafe_single_writer": "true"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lancetable.write_dataset(rows(0, 4), place, storage_options=options, max_rows_per_file=1)
        session = lancetable.Session()

        def main() -> Any:
            return lancetable.dataset(place, storage_options=options, session=session)

        def branch(predicate: str) -> None:
            made = main().create_branch("b", ("keep", None))
            made.delete(predicate)
            made.cleanup_old_versions(**{**ALL_OLD, "retain_versions": 1})

        main().create_branch("keep")
        branch("id = 1")
        lancetable.write_dataset(rows(9, 10), main(), mode="overwrite", storage_options=options)
        (first,) = (tmp_path / "t" / "_versions").glob("*614.manifest")
        first.unlink()
        main().cleanup_old_versions(**ALL_OLD)
        main().branches.delete("b")
        branch("id = 2")
        kept = main().checkout_version(("keep", None))
        kept = lancetable.write_dataset(rows(7, 8), kept, mode="overwrite", storage_options=options)
        kept.cleanup_old_versions(**{**ALL_OLD, "retain_versions": 1})
        main().cleanup_old_versions(**ALL_OLD)
        fresh = lancetable.dataset(place, storage_options=options).checkout_version(("b", None))
        assert fresh.to_table()["id"].to_pylist() == [0, 1, 3]
