"""Every commit and cleanup is logged once, with table, version, operation and counts."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import lancetable as lance


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "lancetable")
    return caplog


def drain(logged: pytest.LogCaptureFixture, uri: str) -> list[str]:
    messages = [record.getMessage() for record in logged.records if record.levelno == logging.INFO]
    logged.clear()
    assert all(message.startswith(f"{uri}: ") for message in messages)
    return [message.removeprefix(f"{uri}: ") for message in messages]


def test_each_change_is_one_record_with_its_counts(tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    ds = lance.write_dataset({"id": range(10)}, tmp_path / "t", max_rows_per_file=5)
    ds.insert({"id": [10, 11]})
    ds.delete("id = 1 OR id >= 10")
    ds.update({"id": "id + 100"}, where="id < 4")
    ds.optimize.compact_files()
    ds.update_config({"a": "b"})
    lance.dataset(ds.uri, version=1).restore()
    assert drain(logged, ds.uri) == [
        "committed version 1: Overwrite fragments_added=2 rows_added=10",
        "committed version 2: Append fragments_added=1 rows_added=2",
        "committed version 3: Delete fragments_changed=1 fragments_removed=1 rows_deleted=3",
        "committed version 4: Update fragments_added=1 fragments_changed=1 rows_added=3 rows_deleted=3",
        "committed version 5: ReserveFragments",
        "committed version 6: Rewrite fragments_added=1 fragments_removed=3 rows_added=9",
        "committed version 7: UpdateConfig",
        "committed version 8: Restore",
    ]


def test_each_step_of_a_cleanup_is_a_record_with_the_counts_so_far(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    ds = lance.write_dataset({"id": [1]}, tmp_path / "t")
    ds.insert({"id": [2]}, mode="overwrite")
    logged.clear()
    stats = ds.cleanup_old_versions(timedelta(0))
    manifests, files = [record.getMessage() for record in logged.records]
    assert manifests.startswith(f"cleanup of {ds.uri} at version 2: CleanupStats(") and "old_versions=1" in manifests
    assert files == f"cleanup of {ds.uri} at version 2: {stats}" and "data_files_removed=1" in files


def test_commits_of_branches_and_outside_of_the_history_are_logged(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    ds = lance.write_dataset({"id": [1]}, tmp_path / "t")
    branch = ds.create_branch("b")
    branch.delete("id = 1")
    ds.insert({"id": [2]})
    assert [record.getMessage().split(": ")[1] for record in logged.records if record.levelno == logging.INFO] == [
        "committed version 1", "committed version 1", "committed version 2", "committed version 2",
    ]  # fmt: skip


def test_nothing_is_counted_or_logged_above_the_level(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "lancetable")
    lance.write_dataset(pa.table({"id": [1]}), tmp_path / "t")
    assert not caplog.records
