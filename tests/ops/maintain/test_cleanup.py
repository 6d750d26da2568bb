"""Cleanup removes the same files as pylance, and keeps what any version, tag or branch needs."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.commit.cleanup import auto_cleanup
from lancetable.commit.cleanup.durations import parse_duration
from lancetable.errors import CorruptFileError, StoreError
from lancetable.store.local import LocalStore

NOW = timedelta(0)


def table_of(path: Path, num_versions: int, seed: int = 0, library: Any = lancetable) -> Any:
    """Write a table and change it at random; all of its files are young."""
    rng = np.random.default_rng(seed)
    ds = library.write_dataset(pa.table({"a": range(20)}), path, data_storage_version="2.1", max_rows_per_file=6)
    while ds.version < num_versions:
        kind = rng.integers(0, 4)
        if kind == 0:
            ds.insert(pa.table({"a": rng.integers(0, 20, 3)}))
        elif kind == 1:
            ds.delete(f"a % 7 = {rng.integers(0, 7)}")
        elif kind == 2:
            ds.optimize.compact_files()
        elif rng.random() < 0.3:
            ds = library.write_dataset(pa.table({"a": range(20)}), path, mode="overwrite")
    return ds


def files(path: Path) -> set[str]:
    return {str(each.relative_to(path)) for each in path.rglob("*") if each.is_file()}


def versions(ds: Any) -> list[int]:
    return [each["version"] for each in ds.versions()]


@pytest.mark.parametrize("seed", range(4))
def test_cleanup_removes_the_same_files_as_pylance(tmp_path: Path, seed: int) -> None:
    policy: dict[str, Any] = [
        {"older_than": NOW},
        {"retain_versions": 3},
        {"versions": [2, 3, 5]},
        {"older_than": NOW, "retain_versions": 4, "error_if_tagged_old_versions": False},
    ][seed]
    ds = table_of(tmp_path / "t", 9, seed)
    ds.tags.create("kept", 6)
    os.system(f"cp -a {tmp_path / 't'} {tmp_path / 'copy'}")
    if seed in (0, 1):
        policy["error_if_tagged_old_versions"] = False
    ours = ds.cleanup_old_versions(**policy)
    theirs = lance.dataset(tmp_path / "copy").cleanup_old_versions(**policy)
    assert files(tmp_path / "t") == files(tmp_path / "copy")
    for name in vars(ours):
        assert getattr(ours, name) == getattr(theirs, name), name
    for version in versions(ds):
        assert lance.dataset(tmp_path / "t", version=version).to_table() == ds.checkout_version(version).to_table()


def test_every_kept_version_keeps_its_rows(tmp_path: Path) -> None:
    ds = table_of(tmp_path / "t", 14, seed=9)
    before = {version: ds.checkout_version(version).to_table() for version in versions(ds)}
    ds.tags.create("x", 3)
    ds.create_branch("b", 5)
    ds.cleanup_old_versions(retain_versions=3, error_if_tagged_old_versions=False)
    assert versions(ds) == [3, 5, *list(before)[-3:]]
    for version in versions(ds):
        assert ds.checkout_version(version).to_table() == before[version]
    assert ds.checkout_version(("b", None)).to_table() == before[5]
    ds.validate()


def test_cleanup_of_a_tagged_version_raises_unless_disabled(tmp_path: Path) -> None:
    ds = table_of(tmp_path / "t", 5)
    ds.tags.create("x", 2)
    there = files(tmp_path / "t")
    for call in (ds.cleanup_old_versions, ds.explain_cleanup_old_versions):
        with pytest.raises(lancetable.CleanupError, match="'x': 2"):
            call(NOW)
    assert files(tmp_path / "t") == there


def test_young_versions_are_kept_by_default(tmp_path: Path) -> None:
    ds = table_of(tmp_path / "t", 5)
    assert ds.cleanup_old_versions().old_versions == 0
    assert ds.checkout_version(3).cleanup_old_versions(NOW).old_versions == 2
    assert versions(ds)[0] == 3


def test_unreferenced_files_are_removed_after_a_week(tmp_path: Path) -> None:
    ds = table_of(tmp_path / "t", 3)
    strange = ["data/notes.txt", "other/x.lance", "_deletions/readme", "data/sub/x.lance", "_indices/mine/x.idx"]
    stray = ["data/0101.lance", "_deletions/0-1-2.arrow", "_transactions/1-00000000-0000-4000-8000-000000000000.txn"]
    for name in strange + stray:
        for prefix in ("", "old_"):
            path = tmp_path / "t" / name
            path = path.with_name(path.name.replace("0101", f"{prefix}0101")) if "0101" in name else path
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_bytes(b"x")
            if prefix:
                os.utime(path, (time.time() - 8 * 86400,) * 2)
    ds.cleanup_old_versions()
    left = files(tmp_path / "t")
    assert set(strange) <= left
    assert "data/0101.lance" in left
    assert not {"data/old_0101.lance", *stray[1:]} & left
    assert ds.explain_cleanup_old_versions(delete_unverified=True).stats.data_files_removed == 1
    ds.cleanup_old_versions(delete_unverified=True)
    assert "data/0101.lance" not in files(tmp_path / "t")
    ds.validate()


def test_explanation_equals_the_removed_files(tmp_path: Path) -> None:
    ds = table_of(tmp_path / "t", 8, seed=3)
    before = files(tmp_path / "t")
    told = ds.explain_cleanup_old_versions(NOW, include_files=True)
    assert files(tmp_path / "t") == before
    done = ds.cleanup_old_versions(NOW)
    assert told.stats == done
    assert {each.path for each in told.candidate_files} == before - files(tmp_path / "t")
    assert told.read_version == 8
    short = table_of(tmp_path / "u", 8).explain_cleanup_old_versions(NOW, include_files=True, max_files=2)
    assert (len(short.candidate_files), short.candidate_files_truncated, short.candidate_file_limit) == (2, True, 2)


def test_a_version_that_cannot_be_removed_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = table_of(tmp_path / "t", 6, seed=5)
    before = files(tmp_path / "t")
    real = LocalStore.delete

    def fail(self: LocalStore, paths: Any) -> None:
        raise StoreError("no")

    monkeypatch.setattr(LocalStore, "delete", fail)
    with pytest.raises(StoreError, match=r"^no$"):
        ds.cleanup_old_versions(NOW)
    assert files(tmp_path / "t") == before
    monkeypatch.setattr(LocalStore, "delete", real)
    assert ds.cleanup_old_versions(NOW).old_versions == 5


def test_version_committed_during_cleanup_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = table_of(tmp_path / "t", 1)
    ds.insert(pa.table({"a": [77]}))
    lancetable.write_dataset(pa.table({"a": [1]}), tmp_path / "t", mode="overwrite")
    ds.checkout_latest()
    real, calls = LocalStore.delete, []

    def race(self: LocalStore, paths: Any) -> None:
        if not calls:
            calls.append(1)
            lancetable.dataset(tmp_path / "t", version=2).restore()
        real(self, paths)

    monkeypatch.setattr(LocalStore, "delete", race)
    ds.cleanup_old_versions(NOW)
    ds.checkout_latest()
    assert 77 in ds.to_table()["a"].to_pylist()


def test_automatic_cleanup_runs_after_commits(tmp_path: Path) -> None:
    seen = []
    for library in (lancetable, lance):
        path = tmp_path / library.__name__
        ds = library.write_dataset(
            pa.table({"a": [0]}), path, auto_cleanup_options={"interval": 3, "older_than_seconds": 0}
        )
        seen.append([])
        for number in range(8):
            ds.insert(pa.table({"a": [number]}))
            seen[-1].append(versions(ds))
    assert seen[0] == seen[1]
    ds = lancetable.dataset(tmp_path / "lancetable")
    ds.optimize.disable_auto_cleanup()
    assert ds.config() == {}
    ds.optimize.enable_auto_cleanup({"interval": 2, "older_than_seconds": 60})
    assert ds.config() == {"lance.auto_cleanup.interval": "2", "lance.auto_cleanup.older_than": "60s"}
    ds.update_config({"lance.auto_cleanup.older_than": "soon", "lance.auto_cleanup.interval": "1"})
    ds.insert(pa.table({"a": [1]}))  # it is only logged


def test_tracked_files_match_pylance(tmp_path: Path) -> None:
    ds = table_of(tmp_path / "t", 7, seed=2)
    ours = ds.tracked_files().read_all()
    theirs = lance.dataset(tmp_path / "t").tracked_files().read_all()
    assert ours.schema == theirs.schema
    columns = ["version", "path", "type"]
    as_set = [{tuple(map(str, row.values())) for row in each.select(columns).to_pylist()} for each in (ours, theirs)]
    assert as_set[0] == as_set[1]
    calls: list[tuple[int, int | None]] = []
    ds.tracked_files(min_version=5, progress=lambda done, total: calls.append((done, total))).read_all()
    assert calls[-1] == (3, 3)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("14days", 14 * 86400), ("1h 30m", 5400), ("3600s", 3600), ("0s", 0), ("1ms", 0.001), ("2 weeks", 14 * 86400)],
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "1", "soon", "1 fortnight", "-1s", "1h,"])
def test_invalid_durations_raise(text: str) -> None:
    with pytest.raises(lancetable.InvalidInputError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"retain_versions": 0}, lancetable.InvalidOperationError),
        ({"delete_rate_limit": 0}, lancetable.CleanupError),
        ({"delete_concurrency": 0}, lancetable.OutOfRangeError),
    ],
)
def test_invalid_cleanup_arguments_raise(tmp_path: Path, arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        table_of(tmp_path / "t", 1).cleanup_old_versions(**arguments)


@pytest.mark.parametrize("harm", ["rate", "index section", "anything"])
def test_failing_automatic_cleanup_is_only_logged(
    tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t"
    ds = lance.write_dataset(pa.table({"a": range(100)}), path)
    ds.create_scalar_index("a", "BTREE")
    old = lancetable.dataset(path)
    lancetable.write_dataset(pa.table({"a": range(3)}), path, mode="overwrite")
    config = {"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.older_than": "30d"}
    ds = lancetable.dataset(path)
    ds.update_config(config)
    if harm == "rate":
        config["lance.auto_cleanup.delete_rate_limit"] = "0"
        ds.update_config(config)
    elif harm == "index section":
        manifest = Path(old._table.location.path)
        data, start = bytearray(manifest.read_bytes()), old._table.manifest.message.index_section
        length = int.from_bytes(data[start : start + 4], "little")
        data[start + 4 : start + 4 + length] = b"\xff" * length
        manifest.write_bytes(data)
        with pytest.raises(CorruptFileError, match="malformed IndexSection"):
            ds.cleanup_old_versions(older_than=timedelta(0))
    else:
        monkeypatch.setattr(auto_cleanup, "plan_cleanup", lambda *_, **__: 1 / 0)
    ds.insert(pa.table({"a": [7]}))
    assert "automatic cleanup" in caplog.text
    assert lancetable.dataset(path).to_table()["a"].to_pylist() == [0, 1, 2, 7]
