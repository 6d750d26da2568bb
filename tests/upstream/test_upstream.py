"""pylance's own Python tests, run with lancetable, as far as they are within the scope that `scope.toml` defines.

    LANCETABLE_UPSTREAM=/path/to/lance python -m pytest -m "" tests/upstream

The variable is the path of a checkout of github:lancedb/lance, or of a git repository with it; without the variable
the run is skipped. This repository contains none of pylance's tests.

    python tests/upstream/test_upstream.py [lancetable | pylance]

This command prints every test that did not pass, and those that are excluded although they pass. With "pylance" the
same tests run with the installed pylance, which shows whether a reason in `scope.toml` is true.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="the list is TOML, which Python reads from 3.11 on")

HERE = Path(__file__).resolve().parent
TESTS = "python/python/tests"
NEEDED = (TESTS, "python/pyproject.toml", "test_data")
MIN_PASSED = 0.98  # of the tests that are not left out
MAX_LEFT_OUT = 0.15  # of all tests in scope


@dataclass(frozen=True, slots=True)
class Scope:
    """The test files of pylance within scope, and the excluded files and tests with the reasons.

    A test is given as `file::test`, without parameters for all of its cases. `outside` lists files, patterns of file
    names
    and tests of features that lancetable does not have; `left_out` lists tests within scope that are excluded.
    """

    files: tuple[str, ...]
    outside: Mapping[str, str]
    left_out: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Scope:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return cls(
            tuple(content["in_scope"]["files"]),
            {name: each["reason"] for each in content["outside"] for name in (*each["files"], *each.get("tests", ()))},
            {name: each["reason"] for each in content["left_out"] for name in each["tests"]},
        )

    def is_outside(self, test: str) -> bool:
        return _names(self.outside, test)

    def is_left_out(self, test: str) -> bool:
        return _names(self.left_out, test)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one test, "passed", "failed" or "skipped", with the reason."""

    outcome: str
    reason: str

    @property
    def line(self) -> str:
        errors = [line for line in self.reason.splitlines() if line.startswith("E ")]
        return " | ".join(errors[:2])[:200] or self.reason[-200:]


def checkout(source: Path, target: Path) -> Path:
    """Copy the files that the tests need from a working tree or a git repository; return the directory of the tests."""
    if (source / TESTS).is_dir():
        for name in NEEDED:
            origin, copy = source / name, target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(origin, copy) if origin.is_dir() else shutil.copy(origin, copy)
    else:
        archive = target / "tests.tar"
        command = ["git", "-C", str(source), "archive", "-o", str(archive), "HEAD", *NEEDED]
        subprocess.run(command, check=True)
        shutil.unpack_archive(archive, target, filter="data")
    return target / TESTS


def run(tests: Path, files: Iterable[str], library: str) -> dict[str, Outcome]:
    """Run test files in a separate process, and return the outcome of every test by `file::test`."""
    report = tests / "report.jsonl"
    paths = [str(HERE), *([str(HERE / "path")] if library == "lancetable" else [])]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "LANCETABLE_UPSTREAM_REPORT": str(report)}
    quiet = ["-q", "--tb=short", "--continue-on-collection-errors", "-p", "plugin", "-p", "no:cacheprovider"]
    # DuckDB and pylance 14 warn of deprecated names that pylance's tests use.
    deprecated = ("fetch_arrow_table", "The 'list_indices' method", "LanceDataset.index_statistics()")
    ignored = [option for name in deprecated for option in ("-W", f"ignore:{name}:DeprecationWarning")]
    command = [sys.executable, "-m", "pytest", *quiet, *ignored, *files]
    subprocess.run(command, cwd=tests, env=environment, check=False, stdout=subprocess.DEVNULL)
    found = {}
    for line in report.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        found[entry["test"].rpartition("tests/")[2]] = Outcome(entry["outcome"], entry["reason"])
    return found


def _names(listed: Iterable[str], test: str) -> bool:
    return test in listed or test.partition("[")[0] in listed


@dataclass(frozen=True, slots=True)
class Verdict:
    """The tests of files in scope: outside, left out, passed, failed. A skipped test counts as failed."""

    outside: list[str]
    left_out: list[str]
    passed: list[str]
    failed: list[str]

    @classmethod
    def of(cls, scope: Scope, outcomes: Mapping[str, Outcome]) -> Verdict:
        outside = [test for test in outcomes if scope.is_outside(test)]
        left_out = [test for test in outcomes if scope.is_left_out(test)]
        counted = [test for test in outcomes if test not in {*outside, *left_out}]
        passed = [test for test in counted if outcomes[test].outcome == "passed"]
        return cls(outside, left_out, passed, [test for test in counted if test not in passed])

    @property
    def in_scope(self) -> int:
        return len(self.left_out) + len(self.passed) + len(self.failed)

    def __str__(self) -> str:
        return (
            f"{self.in_scope} tests in scope ({len(self.outside)} more of the same files are not), "
            f"{len(self.left_out)} left out, {len(self.passed)} of {len(self.passed) + len(self.failed)} passed"
        )


def upstream() -> Path:
    source = os.environ.get("LANCETABLE_UPSTREAM")
    if not source:
        pytest.skip("LANCETABLE_UPSTREAM does not name a checkout of github:lancedb/lance")
    return Path(source)


def test_every_reason_is_given_once() -> None:
    scope = Scope.read(HERE / "scope.toml")
    assert not set(scope.files) & set(scope.outside)
    assert all(reason.strip() for reason in (*scope.outside.values(), *scope.left_out.values()))
    assert {test.partition("::")[0] for test in (*scope.left_out, *scope.outside) if "::" in test} <= set(scope.files)
    assert not set(scope.left_out) & set(scope.outside)
    assert len(scope.files) == len(set(scope.files))


@pytest.mark.slow
def test_pylances_tests_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scope = Scope.read(HERE / "scope.toml")
    tests = checkout(upstream(), tmp_path)
    there = {str(path.relative_to(tests)) for path in tests.rglob("test_*.py")}
    unlisted = [name for name in there - set(scope.files) if not any(fnmatch(name, each) for each in scope.outside)]
    assert not unlisted, "files of tests that scope.toml does not name"
    outcomes = run(tests, scope.files, "lancetable")
    verdict = Verdict.of(scope, outcomes)
    with capsys.disabled():
        print(f"\n{verdict}")
    names = {test.partition("[")[0] for test in outcomes} | set(outcomes)
    named = {test for test in (*scope.left_out, *scope.outside) if "::" in test}
    assert not named - names, "scope.toml names tests that are not there"
    assert {test.partition("::")[0] for test in outcomes} == set(scope.files)
    assert len(verdict.left_out) <= MAX_LEFT_OUT * verdict.in_scope
    counted = len(verdict.passed) + len(verdict.failed)
    assert len(verdict.passed) >= MIN_PASSED * counted, [f"{test}: {outcomes[test].line}" for test in verdict.failed]


def main(arguments: list[str]) -> int:
    library = arguments[0] if arguments else "lancetable"
    source = os.environ.get("LANCETABLE_UPSTREAM")
    if not source or library not in ("lancetable", "pylance"):
        print(__doc__)
        return 2
    scope = Scope.read(HERE / "scope.toml")
    with tempfile.TemporaryDirectory() as directory:
        outcomes = run(checkout(Path(source), Path(directory)), scope.files, library)
    verdict = Verdict.of(scope, outcomes)
    for test in verdict.failed:
        print(f"{outcomes[test].outcome}: {test}: {outcomes[test].line}")
    for test in (*verdict.left_out, *verdict.outside):
        if outcomes[test].outcome == "passed":
            print(f"passes, and is not counted: {test}")
    print(verdict)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
