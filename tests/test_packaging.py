"""Type checkers of users: an editable installation, and the return types of reads."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import lancetable
from lancetable.scanner import LanceScanner

ROOT = Path(__file__).parents[1]


def test_an_editable_installation_is_a_path_that_type_checkers_follow(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("lancetable/file", "tests", "integration"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("lancetable/__init__.py", "lancetable/py.typed", "lancetable/file/__init__.py"):
        (tmp_path / name).touch()
    (tmp_path / "wheels").mkdir()
    build = "from setuptools import build_meta; build_meta.build_editable('wheels')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        (name,) = [name for name in content.namelist() if ".dist-info/" not in name]
        assert name.endswith(".pth") and content.read(name).decode().split() == [str(tmp_path)]


READS = [
    (owner, name)
    for owner in (lancetable.LanceDataset, lancetable.LanceFragment, LanceScanner)
    for name in ("to_table", "take", "head")
    if (owner, name) != (LanceScanner, "take")  # not supported
]


@pytest.mark.parametrize(("owner", "name"), READS)
def test_reads_return_tables_for_type_checkers(owner: type, name: str) -> None:
    assert inspect.signature(getattr(owner, name)).return_annotation == "pa.Table"
