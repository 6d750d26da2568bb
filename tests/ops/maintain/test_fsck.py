"""Checks report every kind of damage; repairs lose no readable version."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lancetable
from lancetable.cli.commands import cli
from lancetable.errors import CorruptFileError


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t"
    ds = lancetable.write_dataset(
        pa.table({"a": range(10)}), path, max_rows_per_file=5, enable_stable_row_ids=True, data_storage_version="2.1"
    )
    ds.delete("a = 3")
    ds.insert(pa.table({"a": [11]}))
    ds.tags.create("first", 1)
    ds.create_branch("b")
    return path


def newest(path: Path, pattern: str) -> Path:
    return max(path.glob(pattern), key=lambda each: each.stat().st_mtime_ns)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def old_stranger(path: Path) -> None:
    stray = path / "data" / "00110101.lance"
    stray.write_bytes(b"x")
    os.utime(stray, (time.time() - 8 * 86400,) * 2)


DAMAGE: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a data file cut short": ("data file", lambda path: cut(newest(path, "data/*.lance"))),
    "a data file gone": ("data file", lambda path: newest(path, "data/*.lance").unlink()),
    "a deletion file gone": ("deletion file", lambda path: newest(path, "_deletions/*").unlink()),
    "a deletion file cut short": ("deletion file", lambda path: cut(newest(path, "_deletions/*"))),
    "a manifest cut short": ("manifest", lambda path: cut(sorted(path.glob("_versions/*.manifest"))[1])),
    "a tag on nothing": ("tag", lambda path: sorted(path.glob("_versions/*.manifest"))[-1].unlink()),
    "a branch without manifests": ("branch", lambda path: newest(path, "tree/b/_versions/*.manifest").unlink()),
    "a stranger of old": ("orphan", old_stranger),
    "a hint from nowhere": (
        "hint",
        lambda path: (path / "_versions/latest_version_hint.json").write_text('{"version":9}'),
    ),
    "a hint that is none": ("hint", lambda path: (path / "_versions/latest_version_hint.json").write_text("{]")),
}


def test_intact_table_is_clean(table: Path) -> None:
    report = lancetable.fsck(str(table))
    assert report.is_clean
    assert (report.versions, report.newest, report.newest_whole) == (4, 3, 3)  # one version is that of the branch
    assert report.files == 4


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_reported(table: Path, damage: str) -> None:
    kind, harm = DAMAGE[damage]
    harm(table)
    assert kind in {problem.kind for problem in lancetable.fsck(str(table)).problems}


def test_repeated_row_ids_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lancetable.ops.maintain.fsck import check as module
    from lancetable.rowids import RowIdSequence

    ds = lancetable.write_dataset(
        pa.table({"a": range(4)}), tmp_path / "t", max_rows_per_file=2, enable_stable_row_ids=True
    )
    monkeypatch.setattr(module, "row_id_sequence", lambda version, fragment: RowIdSequence.from_range(0, 2))
    problems = lancetable.fsck(ds.uri).problems
    assert [problem.kind for problem in problems] == ["ids"]
    assert "2 row ids occur twice" in problems[0].detail


def test_repair_restores_the_newest_intact_version(table: Path) -> None:
    expected = lancetable.dataset(table, version=2).to_table()
    newest(table, "data/*.lance").unlink()
    assert not lancetable.fsck(str(table)).is_clean
    report = lancetable.fsck(str(table), repair=True)
    assert any("restores version 2" in each for each in report.repaired)
    ds = lancetable.dataset(table)
    assert (ds.version, ds.to_table()) == (4, expected)
    assert lance.dataset(table).to_table() == expected
    assert [each["version"] for each in ds.versions()] == [1, 2, 3, 4]


@pytest.mark.parametrize("damage", ["a stranger of old", "a hint from nowhere", "a hint that is none"])
def test_repaired_table_is_clean(table: Path, damage: str) -> None:
    DAMAGE[damage][1](table)
    assert lancetable.fsck(str(table), repair=True).repaired
    assert lancetable.fsck(str(table)).is_clean


def test_nothing_is_removed_while_a_version_cannot_be_read(table: Path) -> None:
    old_stranger(table)
    cut(sorted(table.glob("_versions/*.manifest"))[1])
    before = sorted(each.name for each in (table / "data").iterdir())
    report = lancetable.fsck(str(table), repair=True)
    assert [each for each in report.repaired if "moved to" not in each] == []
    assert sorted(each.name for each in (table / "data").iterdir()) == before


def test_report_after_a_repair_lists_remaining_and_former_problems(table: Path) -> None:
    newest(table, "data/*.lance").unlink()
    old_stranger(table)
    report = lancetable.fsck(str(table), repair=True)
    assert {problem.kind for problem in report.found} == {"data file", "orphan"}
    found = [(problem.kind, problem.version, problem.branch) for problem in report.problems]
    assert found == [("data file", 3, None), ("data file", 3, "b")]
    assert len(report.repaired) == 2 and not report.is_clean
    assert (report.newest, report.newest_whole) == (4, 4)


def test_harmless_contradictions_do_not_restore_an_older_version(table: Path) -> None:
    newest(table, "_transactions/*.txn").write_bytes(b"\xff")
    report = lancetable.fsck(str(table), repair=True)
    assert {problem.kind for problem in report.problems} == {"transaction"} and not report.repaired
    assert lancetable.dataset(table).version == 3


def test_temporarily_missing_file_does_not_restore_an_older_version(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lancetable.store.local import LocalStore

    real, path = LocalStore.size, str(newest(table, "data/*.lance"))
    calls: list[str] = []

    def once(self: LocalStore, where: str) -> int:
        calls.extend([where] * (where == path))
        if where == path and len(calls) == 1:
            raise CorruptFileError(f"{where}: a short answer", path=where)
        return real(self, where)

    monkeypatch.setattr(LocalStore, "size", once)
    report = lancetable.fsck(str(table), repair=True)
    assert {problem.kind for problem in report.found} == {"data file"}
    assert report.is_clean and not report.repaired


EXITS: dict[str, tuple[int, int, Callable[[Path], Any]]] = {
    "whole": (0, 0, lambda path: None),
    "no table": (1, 1, lambda path: __import__("shutil").rmtree(path)),
    "an orphan": (2, 0, old_stranger),
    "a hint from nowhere": (2, 0, DAMAGE["a hint from nowhere"][1]),
    "a damaged newest manifest": (2, 0, lambda path: cut(sorted(path.glob("_versions/*.manifest"))[0])),
    "a data file gone": (2, 2, DAMAGE["a data file gone"][1]),
    "no whole manifest": (2, 2, lambda path: [cut(each) for each in path.glob("_versions/*.manifest")]),
}


@pytest.mark.parametrize("case", EXITS)
def test_exit_codes(table: Path, case: str) -> None:
    checked, repaired, harm = EXITS[case]
    harm(table)
    for arguments, code in (([], checked), (["--deep"], checked), (["--repair"], repaired)):
        plain = CliRunner().invoke(cli, ["fsck", str(table), *arguments])
        assert plain.exit_code == code, plain.output
        if code != 1:
            assert "Not checked:" in plain.output


@pytest.mark.parametrize("case", EXITS)
def test_json_agrees_with_the_exit_code(table: Path, case: str) -> None:
    _, repaired, harm = EXITS[case]
    harm(table)
    shown = CliRunner().invoke(cli, ["fsck", str(table), "--repair", "--deep", "--json"])
    assert shown.exit_code == repaired
    if repaired != 1:
        report = json.loads(shown.output)
        assert report["clean"] is (repaired == 0) is (not report["problems"])
        old = {"uri", "versions", "files", "problems", "newest", "newest_whole", "repaired", "clean"}
        assert report.keys() == old | {"deep", "not_checked", "found", "failed"}


def test_the_help_of_the_command_documents_the_exit_codes() -> None:
    text = " ".join(CliRunner().invoke(cli, ["fsck", "--help"]).output.split())
    assert "Exit codes: 0 if fsck found no problems or repaired all of them; 1 if the table does not exist" in text
    assert "2 if problems remain" in text


def test_commands_only_change_the_table_with_run(table: Path) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(cli, [*arguments, "--json"])

    assert json.loads(run("fsck", str(table)).stdout)["clean"] is True
    assert json.loads(run("compact", str(table)).stdout)[0]["fragments"] == [0, 1, 2]
    assert lancetable.dataset(table).version == 3
    assert json.loads(run("compact", str(table), "--run").stdout)["fragments_removed"] == 3
    shown = json.loads(run("cleanup", str(table), "--older-than", "0s").stdout)
    assert {each["kind"] for each in shown} >= {"manifest", "transaction"}
    assert lancetable.dataset(table).version_refs()[0]["version"] == 1
    assert json.loads(run("cleanup", str(table), "--older-than", "0s", "--run").stdout)["old_versions"] == 2
    newest(table, "data/*.lance").unlink()
    broken = run("fsck", str(table))
    assert broken.exit_code == 2
    assert json.loads(broken.output)["problems"]
    assert CliRunner().invoke(cli, ["fsck", str(table)]).exit_code == 2
