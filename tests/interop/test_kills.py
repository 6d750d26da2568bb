"""Writers that are killed at random times: the table opens, acknowledged rows exist, and every version is complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import lancetable
from lancetable.format.manifest_naming import parse_manifest_name

KILLER = Path(__file__).with_name("kill_writers.py")
ROWS = 5


def test_killed_writers_leave_complete_versions(tmp_path: Path, scale: int) -> None:
    uri = str(tmp_path / "t.lance")
    first = pa.table({"id": pa.array(range(50), pa.int64())})
    lancetable.write_dataset(first, uri, max_rows_per_file=10, data_storage_version="2.0")
    kills = 50 * scale
    environment = {**os.environ, "LANCETABLE_FSYNC": "1"}
    command = [sys.executable, "-W", "ignore", str(KILLER), uri, "8", str(kills), "20", "7"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600 * scale, check=True)
    assert json.loads(done.stdout)["failed"] == 0, done.stderr[-3000:]
    check(uri)


def check(uri: str) -> None:
    lines = [line.split() for line in Path(f"{uri}.log").read_text().splitlines()]
    told = {kind: {int(number) for word, number in lines if word == kind} for kind in ("begun", "done")}
    assert len(told["done"]) >= 20
    datasets: list[Any] = [lancetable.dataset(uri), lance.dataset(uri)]
    for dataset in datasets:
        ids = dataset.to_table()["id"].to_pylist()
        assert len(ids) == len(set(ids)), "doubled rows"
        batches = {number - number % ROWS for number in ids if number >= 1_000_000}
        assert told["done"] <= batches, "acknowledged rows are lost"
        assert batches <= told["begun"]
        assert {number for number in ids if number >= 1_000_000} == {b + n for b in batches for n in range(ROWS)}
    # Every manifest that a reader can find is complete, and version numbers have no gap.
    versions = [each["version"] for each in datasets[0].versions()]
    assert versions == list(range(1, len(versions) + 1))
    names = [name for name in os.listdir(f"{uri}/_versions") if name.endswith(".manifest")]
    assert sorted(parsed[0] for parsed in map(parse_manifest_name, names) if parsed is not None) == versions
    datasets[0].validate()
    assert datasets[0].to_table(with_row_id=True) == datasets[1].to_table(with_row_id=True)
    # No version refers to the files that killed processes left, and a cleanup removes them.
    rows = datasets[0].to_table()
    datasets[0].cleanup_old_versions(timedelta(days=1), delete_unverified=True)
    assert lancetable.dataset(uri).to_table() == rows
    left = [path.name for path in Path(uri).rglob("*") if path.name.startswith(".tmp_")]
    assert left == []
    named = {row["path"] for row in datasets[0].all_files().read_all().to_pylist()}
    assert {f"data/{path.name}" for path in (Path(uri) / "data").iterdir()} <= named
