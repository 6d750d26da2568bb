"""Distributions: contents of wheels, and what type checkers of users see."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import lancetable
from lancetable import debug
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


def symbol_tables(module: bytes) -> int:
    """Return the number of symbol tables of an ELF file of 64 bits, without those that the loader needs."""
    assert module[:5] == b"\x7fELF\x02"
    (start,) = struct.unpack_from("<Q", module, 0x28)
    size, count = struct.unpack_from("<HH", module, 0x3A)
    types = [struct.unpack_from("<I", module, start + number * size + 4)[0] for number in range(count)]
    return types.count(2)  # SHT_SYMTAB


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="modules are ELF files on Linux")
def test_a_wheel_is_small_and_has_compiled_modules_without_symbols_or_sources(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "lancetable", source / "lancetable", ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__")
    )
    build = "from setuptools import build_meta; build_meta.build_wheel('..')"
    environment = {name: value for name, value in os.environ.items() if name != "LANCETABLE_CFLAGS"}
    subprocess.run(
        [sys.executable, "-c", build], cwd=source, env=environment, check=True, capture_output=True, timeout=900
    )
    (wheel,) = tmp_path.glob("*.whl")
    check_wheel(wheel)


def check_wheel(wheel: Path) -> None:
    assert wheel.stat().st_size < 2 * 1024 * 1024
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        modules = [name for name in names if name.endswith(".so")]
        assert len(modules) == len(list((ROOT / "lancetable/file/kernels").glob("*.pyx"))) + 1, "and Cython's own code"
        assert [name for name in modules if symbol_tables(content.read(name))] == []
        assert [name for name in names if name.endswith((".c", ".pyx", ".pxi"))] == []
        metadata = content.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert {name.split("/")[0] for name in names} == {"lancetable", wheel.name.split("-cp")[0] + ".dist-info"}
    assert "\nLicense-Expression: Apache-2.0\n" in metadata and "\nProvides-Extra: otel\n" in metadata


def test_the_core_requires_only_what_reads_and_writes_tables() -> None:
    required = re.findall(r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)[0]
    assert re.findall(r'"([a-z]+)', required) == ["protobuf", "pyarrow", "numpy", "fsspec", "pyroaring", "sqlglot"]


def test_show_versions_reports_each_extra_of_users() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    (section,) = re.findall(r"^\[project\.optional-dependencies\]\n(.*?)\n\n", project, re.M | re.S)
    extras = {
        name: tuple(re.findall(r'"([a-z0-9-]+)', packages))
        for name, packages in re.findall(r"^([a-z0-9-]+) = \[(.*?)\]$", section, re.M | re.S)
    }
    for name in ("dev", "docs", "spark-local"):
        del extras[name]
    assert extras == debug.EXTRAS


def test_a_tested_version_of_python_is_a_classifier_and_has_a_job() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    for version in re.findall(r"Programming Language :: Python :: (3\.\d+)", project):
        assert f'"{version}"' in workflow
        assert f"cp{version.replace('.', '')}-*" in project
