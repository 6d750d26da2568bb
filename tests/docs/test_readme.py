"""The README is short, and its links lead to files."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_has_at_most_150_lines() -> None:
    assert len(TEXT.splitlines()) <= 150


def test_links_of_the_readme_lead_to_files() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link]
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link.partition("#")[0]).is_file()] == []


def test_figures_of_the_readme_are_those_of_the_measurements() -> None:
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    measured = page.partition("## Scans, takes, filters, writes\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| ([a-z]+) \| [\d.]+ \| ([\d.]+) \| [\d.]+ \|$", measured, re.MULTILINE))
    shown = re.search(r"^\| pylance \| (.*) \|$", TEXT, re.MULTILINE)
    assert shown is not None
    assert shown[1].split(" | ") == [rows[name] for name in ("scan", "take", "filter", "write", "open", "change")]
