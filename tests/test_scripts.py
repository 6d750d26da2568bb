"""Scripts report missing tools instead of failing later, and distributions contain the files they need."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOLS = ("bash", "basename", "cat", "cksum", "dirname", "env", "head", "printf", "sed", "true")


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """Return a PATH directory with the usual tools, no Java, and an `id` command that reports a regular user."""
    if not (ROOT / "scripts" / "demo").exists():
        pytest.skip("not a source checkout: scripts/demo is not there")
    for tool in TOOLS:
        found = shutil.which(tool)
        if found is not None:
            os.symlink(found, tmp_path / tool)
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    return tmp_path


def test_demo_without_java_names_the_package_to_install(bare_path: Path) -> None:
    run = subprocess.run(
        [str(bare_path / "bash"), str(ROOT / "scripts" / "demo")],
        env={"PATH": str(bare_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 1
    assert "default-jre-headless" in run.stderr
    assert "Traceback" not in run.stderr


def test_script_without_python_names_the_required_version(bare_path: Path, tmp_path: Path) -> None:
    (bare_path / "java").write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\" 2021' >&2\n")
    (bare_path / "java").chmod(0o755)
    run = subprocess.run(
        [str(bare_path / "bash"), str(ROOT / "scripts" / "demo")],
        env={"PATH": str(bare_path), "LANCETABLE_VENV": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 1
    assert "needs Python 3.10 or newer" in run.stderr


def test_distributions_hold_all_modules_and_the_sources_of_compiled_ones() -> None:
    """Only folders with an __init__.py are packages (pyproject.toml), and of other files only those in MANIFEST.in are
    kept.
    """
    manifest = ROOT / "MANIFEST.in"
    if not manifest.exists():
        pytest.skip("not a source checkout: MANIFEST.in is not there")
    kept = [line.split()[1] for line in manifest.read_text().splitlines() if line.startswith("include ")]
    package = ROOT / "lancetable"
    sources = [path.relative_to(ROOT) for pattern in ("*.pyx", "*.pxi") for path in package.rglob(pattern)]
    assert sources
    assert not [str(path) for path in sources if not any(path.match(pattern) for pattern in kept)]
    assert not [str(path) for path in package.rglob("*.py") if not (path.parent / "__init__.py").exists()]
