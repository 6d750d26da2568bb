"""The command `lancetable report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lancetable as lance
from tests.report.report_tables import flights

click_testing = pytest.importorskip("click.testing")

from lancetable.cli.commands import cli  # noqa: E402  # after the check that click is installed


@pytest.fixture
def ds(tmp_path: Path) -> lance.LanceDataset:
    return lance.write_dataset(flights(2000), tmp_path / "t.lance", max_rows_per_file=1000)


def invoke(*arguments: str, code: int = 0) -> Any:
    result = click_testing.CliRunner().invoke(cli, ["report", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_a_file_is_written(ds: lance.LanceDataset, tmp_path: Path) -> None:
    target = tmp_path / "r.html"
    result = invoke(ds.uri, "-o", str(target))
    assert (result.stdout, result.stderr) == ("", f"lancetable: wrote {target}\n")
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(("name", "options"), [("r.json", []), ("r", ["--json"])])
def test_a_json_file_is_written(ds: lance.LanceDataset, tmp_path: Path, name: str, options: list[str]) -> None:
    invoke(ds.uri, "-o", str(tmp_path / name), *options)
    assert json.loads((tmp_path / name).read_text())["overview"]["num_rows"] == 2000


def test_json_is_printed(ds: lance.LanceDataset) -> None:
    expected, printed = json.loads(ds.report().to_json()), json.loads(invoke(ds.uri, "--json").stdout)
    assert printed | {"generated": 0} == expected | {"generated": 0}


def test_a_summary_is_printed(ds: lance.LanceDataset) -> None:
    lines = invoke(ds.uri).stdout.splitlines()
    assert "rows=2,000" in lines[0]
    assert lines[1:] == ["  compact: 2 fragments can be compacted", f"    lancetable compact --run {ds.uri}"]


def test_options_select_version_files_and_store(ds: lance.LanceDataset) -> None:
    ds.insert(flights(10))
    path = ds.get_fragments()[1].metadata.files[0].path
    options = ["-v", "1", "--versions", "1", "--files", "1", "--file", path, "--option", "fsync=false", "--untrusted"]
    report = json.loads(invoke(ds.uri, "--json", *options).stdout)
    assert (report["overview"]["version"], report["history"]["total"]) == (1, 2)
    assert [version["version"] for version in report["history"]["versions"]] == [2]
    assert [file["path"] for file in report["files"]] == [path]


def test_wrong_arguments_are_reported(ds: lance.LanceDataset, tmp_path: Path) -> None:
    assert "missing/r.html" in invoke(ds.uri, "-o", str(tmp_path / "missing/r.html"), code=1).output
    assert "which is --option here" in invoke(ds.uri, "-o", "aws_region=eu-west-1", code=2).output
    assert "x>=1" in invoke(ds.uri, "--versions", "0", code=2).output
    assert isinstance(invoke(ds.uri, "--file", "nope", code=1).exception, lance.InvalidInputError)
    assert isinstance(invoke(str(tmp_path / "nope"), code=1).exception, lance.DatasetNotFoundError)
