"""Cleanups concurrent with commits that need the removed files: in either order, one of them detects the other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import lancetable
from lancetable import LanceOperation
from lancetable.commit import commit_loop
from lancetable.commit.cleanup import cleanup_plan, cleanup_run
from lancetable.commit.cleanup.cleanup_plan import CleanupPlan, CleanupPolicy, plan_cleanup
from lancetable.commit.cleanup.cleanup_run import run_cleanup
from lancetable.errors import (
    CommitStateUnknownError,
    InvalidOperationError,
    RefNotFoundError,
    StoreError,
    VersionNotFoundError,
)
from lancetable.ops.refs import branches
from lancetable.store.local import LocalStore
from lancetable.table import manifest_files
from lancetable.table.version import latest, open_version

OLD = CleanupPolicy(keep_newest=1)


@dataclass
class Overwritten:
    """Table whose version 2 overwrites all rows, so that a cleanup removes version 1 with its files."""

    uri: str

    def clean(self) -> None:
        version = open_version(self.uri)
        run_cleanup(version, plan_cleanup(version, OLD))

    def clean_when(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool) -> None:
        """Clean up once, around the next call of a function."""
        real: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(owner, name, real)
            if not after:
                self.clean()
            result = real(*arguments, **options)
            if after:
                self.clean()
            return result

        monkeypatch.setattr(owner, name, call)

    def ids(self, version: int | str | None = None) -> list[int]:
        ids: list[int] = lancetable.dataset(self.uri, version).to_table()["id"].to_pylist()
        return ids

    def names(self, directory: str) -> int:
        return len(list((Path(self.uri) / directory).iterdir()))


@pytest.fixture
def table(tmp_path: Path) -> Overwritten:
    uri = str(tmp_path / "t.lance")
    lancetable.write_dataset(pa.table({"id": pa.array([1, 2], pa.int64())}), uri)
    lancetable.write_dataset(pa.table({"id": pa.array([3], pa.int64())}), uri, mode="overwrite")
    return Overwritten(uri)


def test_cleanup_keeps_files_of_a_restore_in_progress(table: Overwritten, monkeypatch: pytest.MonkeyPatch) -> None:
    old = lancetable.dataset(table.uri, 1)
    table.clean_when(monkeypatch, commit_loop, "source_version", after=True)
    old.restore()
    assert table.ids() == [1, 2]
    with pytest.raises(VersionNotFoundError):
        lancetable.dataset(table.uri, 1)
    table.clean()  # files left by the first cleanup
    assert table.ids() == [1, 2]


def test_restore_after_removal_of_the_manifest_fails(table: Overwritten, monkeypatch: pytest.MonkeyPatch) -> None:
    old = lancetable.dataset(table.uri, 1)
    table.clean_when(monkeypatch, commit_loop, "source_version", after=False)
    with pytest.raises(VersionNotFoundError, match="no version 1 to restore"):
        old.restore()
    assert (table.ids(), latest(open_version(table.uri)).version) == ([3], 2)
    assert table.names("_transactions") == 2  # transactions of the versions only


def test_cleanup_keeps_files_of_a_restore_that_starts_during_manifest_removal(
    table: Overwritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleanup finds the transaction of the restore. If the restore fails, the next cleanup removes the files."""
    real = commit_loop.source_version

    def dies(*arguments: Any) -> Any:
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(commit_loop, "source_version", dies)
    with pytest.raises(KeyboardInterrupt):
        lancetable.dataset(table.uri, 1).restore()
    monkeypatch.undo()
    table.clean()
    assert table.names("data") == 2
    table.clean()
    assert table.names("data") == 2  # young, and used by no version
    version = open_version(table.uri)
    run_cleanup(version, plan_cleanup(version, CleanupPolicy(keep_newest=1, delete_unverified=True)))
    assert table.names("data") == 1


def test_cleanup_treats_unreadable_transactions_as_restores(table: Overwritten) -> None:
    name = "1-00000000-0000-4000-8000-000000000000.txn"
    path = Path(table.uri) / "_transactions" / name
    path.write_bytes(b"")
    table.clean()
    assert table.names("data") == 2
    assert path.exists()


def test_cleanup_ignores_other_uncommitted_transactions(table: Overwritten, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(manifest_files, "pack", dies)
    with pytest.raises(KeyboardInterrupt):
        lancetable.dataset(table.uri).delete("id = 3")
    monkeypatch.undo()
    assert table.names("_transactions") == 3
    table.clean()
    assert table.names("data") == 1


@pytest.mark.parametrize("seen", [True, False])
def test_detached_commit_keeps_its_base_or_fails(
    table: Overwritten, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    operation = LanceOperation.UpdateConfig(LanceOperation.UpdateMap({"a": "b"}))
    commit = lambda: lancetable.LanceDataset.commit(table.uri, operation, read_version=1, detached=True)  # noqa: E731
    if seen:  # published between the plan and the removal
        version = open_version(table.uri)
        plan = plan_cleanup(version, OLD)
        made = commit()
        run_cleanup(version, plan)
        assert made.to_table()["id"].to_pylist() == [1, 2]
        return
    table.clean_when(monkeypatch, manifest_files, "pack", after=False)
    with pytest.raises(VersionNotFoundError, match="was cleaned up while"):
        commit()
    assert table.names("_versions") == 2  # with the hint


def test_cleanup_from_a_detached_version_keeps_the_newest_version(table: Overwritten) -> None:
    detached = lancetable.LanceDataset.commit(
        table.uri,
        LanceOperation.UpdateConfig(LanceOperation.UpdateMap({"a": "b"})),
        read_version=1,
        detached=True,
    ).table_version
    plan = plan_cleanup(detached, CleanupPolicy(older_than=timedelta(0)))
    assert (plan.versions, plan.read_version) == ((1,), 2)
    lancetable.write_dataset(pa.table({"id": pa.array([4], pa.int64())}), table.uri, mode="append")
    run_cleanup(detached, plan)
    assert (table.ids(), detached.manifest.fragments[0].num_rows) == ([3, 4], 2)
    assert lancetable.dataset(table.uri, detached.version).to_table()["id"].to_pylist() == [1, 2]


def test_cleanup_keeps_the_newest_version_of_a_recreated_table(table: Overwritten) -> None:
    old = open_version(table.uri)
    shutil.rmtree(table.uri)
    lancetable.write_dataset(pa.table({"id": pa.array([5], pa.int64())}), table.uri)
    run_cleanup(old, plan_cleanup(old, CleanupPolicy(older_than=timedelta(0))))
    assert table.ids() == [5]


@pytest.mark.parametrize(("path", "is_dataset_root"), [("link", True), ("./t.lance", True), ("t.lance/data", False)])
def test_cleanup_keeps_files_used_through_an_alias_of_the_root(
    tmp_path: Path, path: str, is_dataset_root: bool
) -> None:
    uri = tmp_path / "t.lance"
    (tmp_path / "link").symlink_to(uri)
    base = lancetable.DatasetBasePath(f"{tmp_path}/{path}", "b", is_dataset_root=is_dataset_root)
    rows = pa.table({"id": pa.array([1], pa.int64())})
    lancetable.write_dataset(rows, uri, initial_bases=[base])
    for mode in ("overwrite", "append"):
        lancetable.write_dataset(rows, uri, mode=mode, target_bases=["b"])
        lancetable.write_dataset(rows, uri, mode="append")
    version = open_version(uri)
    counts = run_cleanup(version, plan_cleanup(version, CleanupPolicy(keep_newest=1, delete_unverified=True)))
    assert counts.data_files_removed == 1  # the file of the first version
    assert lancetable.dataset(uri).to_table().num_rows == 4


def test_cleanup_during_another_cleanup_removes_the_rest(table: Overwritten, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other cleanup removes a manifest that this one has listed but not read."""
    table.clean_when(monkeypatch, cleanup_plan, "branches_from", after=False)
    table.clean()
    assert (table.ids(), table.names("data")) == ([3], 1)


def test_cleanup_during_a_cleanup_of_newer_versions(table: Overwritten, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other cleanup removes versions that were committed after this one made its plan."""
    version = open_version(table.uri)
    plan = plan_cleanup(version, OLD)
    for number in (4, 5):
        lancetable.write_dataset(pa.table({"id": pa.array([number], pa.int64())}), table.uri, mode="overwrite")
    table.clean_when(monkeypatch, cleanup_run, "open_location", after=False)
    run_cleanup(version, plan)
    assert (table.ids(), table.names("data")) == ([5], 1)


def test_versions_are_listed_during_a_cleanup(table: Overwritten, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = lancetable.dataset(table.uri)
    table.clean_when(monkeypatch, manifest_files, "map_versions", after=False)
    assert [each["version"] for each in dataset.versions()] == [2]


def test_cleanup_keeps_versions_referenced_after_planning(table: Overwritten) -> None:
    lancetable.write_dataset(pa.table({"id": pa.array([4], pa.int64())}), table.uri, mode="overwrite")
    version = open_version(table.uri)
    plan = plan_cleanup(version, OLD)
    assert isinstance(plan, CleanupPlan)
    assert plan.versions == (1, 2)
    lancetable.dataset(table.uri).tags.create("late", 1)
    lancetable.dataset(table.uri, 2).create_branch("b", 2)
    counts = run_cleanup(version, plan)
    assert counts.old_versions == 0
    assert (table.ids("late"), table.ids(2)) == ([1, 2], [3])


@pytest.mark.parametrize("after", [False, True])
def test_branch_keeps_its_version_or_its_creation_fails(
    table: Overwritten, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """A cleanup does not see the branch before its ref is written. Then the branch creation fails."""
    old = lancetable.dataset(table.uri, 1)
    table.clean_when(monkeypatch, branches.refs.RefFiles, "create", after=after)
    if after:
        assert old.create_branch("b").to_table()["id"].to_pylist() == [1, 2]
        assert [each["version"] for each in lancetable.dataset(table.uri).versions()] == [1, 2]
        return
    with pytest.raises(VersionNotFoundError, match="was cleaned up while branch b"):
        old.create_branch("b")
    with pytest.raises(RefNotFoundError):
        lancetable.dataset(table.uri).checkout_version(("b", None))
    assert not (Path(table.uri) / "tree" / "b").exists()


def test_branch_with_unknown_outcome_is_not_reported_as_failed(
    table: Overwritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locate(*_: Any) -> Any:
        raise StoreError("503 Slow Down")

    old = lancetable.dataset(table.uri, 1)
    real = branches.refs.RefFiles.create

    def then_deaf(*arguments: Any) -> bool:
        monkeypatch.setattr(type(old._table.handler), "locate", locate)
        return real(*arguments)

    monkeypatch.setattr(branches.refs.RefFiles, "create", then_deaf)
    with pytest.raises(CommitStateUnknownError, match="branch b was created"):
        old.create_branch("b")
    monkeypatch.undo()
    assert lancetable.dataset(table.uri).checkout_version(("b", None)).to_table()["id"].to_pylist() == [1, 2]


def test_deletion_of_a_branch_fails_if_a_child_is_created(table: Overwritten, monkeypatch: pytest.MonkeyPatch) -> None:
    first = lancetable.dataset(table.uri, 1).create_branch("b")
    real = branches.refs.RefFiles.delete

    def branch_first(*arguments: Any) -> None:
        monkeypatch.undo()
        first.create_branch("c")
        real(*arguments)

    monkeypatch.setattr(branches.refs.RefFiles, "delete", branch_first)
    main = lancetable.dataset(table.uri)
    with pytest.raises(InvalidOperationError, match="is referenced by"):
        main.branches.delete("b")
    assert sorted(main.branches.list()) == ["b", "c"]
    for name in "bc":
        assert main.checkout_version((name, None)).to_table()["id"].to_pylist() == [1, 2]


def test_creation_of_a_branch_fails_if_its_parent_is_deleted(
    table: Overwritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = lancetable.dataset(table.uri)
    first, real = lancetable.dataset(table.uri, 1).create_branch("b"), branches.refs.RefFiles.create

    def delete_first(*arguments: Any) -> bool:
        monkeypatch.undo()
        main.branches.delete("b")
        return real(*arguments)

    monkeypatch.setattr(branches.refs.RefFiles, "create", delete_first)
    with pytest.raises(VersionNotFoundError, match="branch b was deleted while branch c was being created"):
        first.create_branch("c")
    assert not main.branches.list() and not list((Path(table.uri) / "tree").rglob("*.*"))


def test_branch_created_during_manifest_removal_keeps_its_files(
    table: Overwritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent version exists when the branch is created. The version is removed, but its files are kept."""
    old = lancetable.dataset(table.uri, 1)
    real = cleanup_run._remove

    def branch_first(*arguments: Any) -> Any:
        monkeypatch.undo()
        old.create_branch("b")
        return real(*arguments)

    version = open_version(table.uri)
    plan = plan_cleanup(version, CleanupPolicy(keep_newest=1, delete_unverified=True))
    monkeypatch.setattr(cleanup_run, "_remove", branch_first)
    run_cleanup(version, plan)
    branch = lancetable.dataset(table.uri).checkout_version(("b", None))
    assert branch.to_table()["id"].to_pylist() == [1, 2]
    table.clean()
    assert branch.checkout_version(1).to_table()["id"].to_pylist() == [1, 2]
    with pytest.raises(VersionNotFoundError):
        lancetable.dataset(table.uri, 1)


def test_cleanup_without_removable_versions_skips_extra_requests(
    table: Overwritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    real = LocalStore.list_names

    def note(self: LocalStore, prefix: str, *arguments: Any, **options: Any) -> Any:
        listed.append(prefix.rpartition("/")[2])
        return real(self, prefix, *arguments, **options)

    version = open_version(table.uri)
    plan = plan_cleanup(version, CleanupPolicy(keep_newest=9))
    monkeypatch.setattr(cleanup_plan.time, "time", lambda: 0.0)
    monkeypatch.setattr(LocalStore, "list_names", note)
    run_cleanup(version, plan)
    assert listed == ["_versions"]


@pytest.mark.parametrize("older_than", [timedelta.max, timedelta(days=1_000_000)])
def test_age_beyond_the_calendar_removes_nothing(table: Overwritten, older_than: timedelta) -> None:
    assert lancetable.dataset(table.uri).cleanup_old_versions(older_than).old_versions == 0


@pytest.mark.parametrize("older_than", ["5000years", "99999999999years"])
def test_failing_automatic_cleanup_does_not_fail_the_commit(table: Overwritten, older_than: str) -> None:
    settings = {"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.older_than": older_than}
    dataset = lancetable.dataset(table.uri)
    dataset.update_config(settings)
    dataset.insert(pa.table({"id": pa.array([5], pa.int64())}))
    assert (dataset.version, table.ids(1)) == (4, [1, 2])


def test_unused_staged_manifests_are_removed_after_a_week(tmp_path: Path) -> None:
    options = {"manifest_store": f"sqlite:///{tmp_path}/rows.db"}
    uri = str(tmp_path / "t")
    rows = pa.table({"id": pa.array([1], pa.int64())})
    dataset = lancetable.write_dataset(rows, uri, storage_options=options)
    dataset.insert(rows)
    names = [f"{2**64 - 1 - version}.manifest-{uuid4()}" for version in (2, 3)]
    staged = [tmp_path / "t" / "_versions" / name for name in names]
    for path in staged:
        path.write_bytes(b"staged")
    dataset.cleanup_old_versions(timedelta(0))
    assert all(path.exists() for path in staged), "young: a commit may be under way"
    for path in staged:
        os.utime(path, (0, 0))
    dataset.cleanup_old_versions(timedelta(0))
    assert not any(path.exists() for path in staged)
    assert lancetable.dataset(uri, storage_options=options).count_rows() == 2
    for path in staged:  # without rows, the decided manifest is unknown
        path.write_bytes(b"staged")
        os.utime(path, (0, 0))
    lancetable.dataset(uri).cleanup_old_versions(timedelta(0))
    assert all(path.exists() for path in staged)


def test_temporary_files_of_killed_writers_are_removed_after_a_week(table: Overwritten) -> None:
    folders = ("data", "_deletions", "_transactions", "_versions")
    left = [Path(table.uri) / folder / f".tmp_x.lance_{'0123456789ab' * 2}" for folder in folders]
    other = Path(table.uri) / "data" / ".tmp_of_somebody_else"
    for path in (*left, other):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"part")
    dataset = lancetable.dataset(table.uri)
    dataset.cleanup_old_versions(timedelta(days=1))
    assert all(path.exists() for path in left)
    for path in (*left, other):
        os.utime(path, (0, 0))
    dataset.cleanup_old_versions(timedelta(days=1))
    assert [path.exists() for path in (*left, other)] == [False] * 4 + [True]


def test_stale_listing_raises(table: Overwritten, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing lacks version 2, so its files would look unused."""
    dataset, real = lancetable.dataset(table.uri), LocalStore.list_names

    def old(self: LocalStore, prefix: str, *arguments: Any, **options: Any) -> Any:
        found = real(self, prefix, *arguments, **options)
        return [each for each in found if each.name != f"{2**64 - 1 - 2}.manifest"]

    monkeypatch.setattr(LocalStore, "list_names", old)
    with pytest.raises(StoreError, match="lacks version 2, which exists"):
        dataset.cleanup_old_versions(timedelta(0), delete_unverified=True)
    monkeypatch.undo()
    assert (table.ids(1), table.ids()) == ([1, 2], [3])
