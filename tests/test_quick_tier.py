"""The list of tests of `scripts/test --quick`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENTRIES = [line for line in (ROOT / "tests/quick.txt").read_text().splitlines() if not line.startswith("#")]
# A folder tests/torch would take the name of PyTorch.
PLACES = {"cli": "tests/test_cli.py", "torch": "tests/training"}
PACKAGES = sorted(path.parent for path in (ROOT / "lancetable").rglob("__init__.py") if path.parent.name != "proto")


def test_entries_are_sorted_and_exist() -> None:
    assert sorted(set(ENTRIES)) == ENTRIES
    assert [entry for entry in ENTRIES if not (ROOT / entry).exists()] == []


@pytest.mark.parametrize(
    "package",
    [
        path.relative_to(ROOT / "lancetable").as_posix()
        for path in PACKAGES
        if len(path.relative_to(ROOT / "lancetable").parts) == 1 or path.parent.name == "ops"
    ],
)
def test_each_package_has_quick_tests(package: str) -> None:
    place = PLACES.get(package, f"tests/{package}")
    assert any(entry == place or entry.startswith(f"{place}/") for entry in ENTRIES)


def test_the_script_passes_the_list_to_pytest() -> None:
    script = (ROOT / "scripts/test").read_text()
    assert "--quick" in script and "tests/quick.txt" in script
    subprocess.run(["bash", "-n", "scripts/test"], cwd=ROOT, check=True, timeout=60)
