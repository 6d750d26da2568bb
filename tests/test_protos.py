"""The generated modules are the output of scripts/gen_protos for protos/."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_generated_modules_are_up_to_date(tmp_path: Path) -> None:
    if not (ROOT / "scripts" / "gen_protos").exists():
        pytest.skip("not a source checkout: scripts/gen_protos is not there")
    subprocess.run([str(ROOT / "scripts" / "gen_protos"), str(tmp_path)], check=True, capture_output=True, timeout=600)
    made = {path.name: path.read_text() for path in (tmp_path / "lancetable" / "proto").iterdir()}
    kept = {p.name: p.read_text() for p in (ROOT / "lancetable" / "proto").iterdir() if "_pb2" in p.name}
    assert made.keys() == kept.keys()
    for name, text in made.items():
        assert kept[name] == text, f"{name} differs: run scripts/gen_protos"
