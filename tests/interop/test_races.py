"""Processes of both libraries write to one local table concurrently; no change is lost or applied twice.

The writers are processes of `race_writer.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable

PROCESSES = 2  # of each library
APPENDS = 4
DELETES = 4
WRITER = Path(__file__).with_name("race_writer.py")
LIBRARIES = {"ours": lancetable, "theirs": lance}


def race(uri: str, actions: list[tuple[str, str, int]]) -> list[list[Any]]:
    """Return the acknowledged changes of each writer. `actions` are (library, action, count)."""
    environment = {**os.environ, "LANCETABLE_FSYNC": "0"}
    writers = [
        subprocess.Popen(
            [sys.executable, str(WRITER), LIBRARIES[library].__name__, action, uri, str(number), str(count)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number, (library, action, count) in enumerate(actions)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == '"ready"\n', writer.communicate()[1]
    Path(f"{uri}.go").touch()
    promised = []
    for writer, action in zip(writers, actions, strict=True):
        out, err = writer.communicate(timeout=180)
        assert writer.returncode == 0, (action, err[-3000:])
        promised.append([item for line in out.splitlines() for item in json.loads(line)])
    return promised


def make(uri: str, library: str) -> None:
    table = pa.table({"id": pa.array(range(3000), pa.int64()), "by": ["start"] * 3000})
    LIBRARIES[library].write_dataset(table, uri, max_rows_per_file=1000, data_storage_version="2.0")


def check(uri: str, expected: set[int], commits: int) -> None:
    """Check that both libraries read exactly these ids, and that each commit made one version."""
    for module in LIBRARIES.values():
        dataset: Any = module.dataset(uri)
        ids = dataset.to_table(columns=["id"])["id"].to_pylist()
        assert len(ids) == len(set(ids)), "doubled"
        assert set(ids) == expected, "lost"
        assert dataset.count_rows() == len(expected)
        assert dataset.version == 1 + commits
        assert [each["version"] for each in dataset.versions()] == list(range(1, 2 + commits))
        dataset.validate()
    ours, theirs = lancetable.dataset(uri), lance.dataset(uri)
    assert ours.to_table(with_row_id=True) == theirs.to_table(with_row_id=True)
    # Every version adds or removes exactly the rows of its transaction.
    totals = [int(each["metadata"]["total_rows"]) for each in ours.versions()]
    assert all(abs(after - before) in (3, 10) for before, after in pairwise(totals)), totals
    fragments = [fragment.fragment_id for fragment in ours.get_fragments()]
    assert len(fragments) == len(set(fragments))


def test_concurrent_appends_are_all_committed(tmp_path: Path, scale: int) -> None:
    uri = str(tmp_path / "t.lance")
    make(uri, "theirs")
    promised = race(uri, [(library, "append", APPENDS * scale) for library in LIBRARIES for _ in range(PROCESSES)])
    check(uri, {*range(3000), *(row for rows in promised for row in rows)}, 2 * PROCESSES * APPENDS * scale)


def test_deletes_of_the_same_fragments_are_merged(tmp_path: Path, scale: int) -> None:
    uri = str(tmp_path / "t.lance")
    make(uri, "ours")
    promised = race(uri, [(library, "delete", DELETES * scale) for library in LIBRARIES for _ in range(PROCESSES)])
    gone = {row for rows in promised for row in rows}
    assert len(gone) == 3 * 2 * PROCESSES * DELETES * scale
    check(uri, set(range(3000)) - gone, 2 * PROCESSES * DELETES * scale)


def test_concurrent_appends_and_deletes_are_all_committed(tmp_path: Path, scale: int) -> None:
    uri = str(tmp_path / "t.lance")
    make(uri, "ours")
    actions = [(library, action, 4 * scale) for library in LIBRARIES for action in ("append", "delete")]
    promised = race(uri, actions)
    ids = set(range(3000))
    for (_, action, _), rows in zip(actions, promised, strict=True):
        ids = ids | set(rows) if action == "append" else ids - set(rows)
    check(uri, ids, 4 * 4 * scale)


def test_concurrently_created_tags_all_exist(tmp_path: Path, scale: int) -> None:
    uri = str(tmp_path / "t.lance")
    make(uri, "theirs")
    promised = race(uri, [(library, "tag", 10 * scale) for library in LIBRARIES])
    expected = {tag for tags in promised for tag in tags}
    assert set(lancetable.dataset(uri).tags.list()) == set(lance.dataset(uri).tags.list()) == expected


@pytest.mark.parametrize("first", list(LIBRARIES))
def test_second_delete_on_the_same_version_keeps_the_first(first: str, tmp_path: Path) -> None:
    """The second delete is prepared before the first one is committed; the deletions of both are applied."""
    uri = str(tmp_path / "t.lance")
    make(uri, "ours")
    one: Any = LIBRARIES[first]
    (other,) = (module for name, module in LIBRARIES.items() if name != first)
    ahead, behind = one.dataset(uri), other.dataset(uri)
    assert ahead.delete("id IN (1, 2, 1500)") == {"num_deleted_rows": 3}
    assert behind.delete("id IN (2, 3, 2500)") == {"num_deleted_rows": 2 if behind.version == 3 else 3}
    check_ids = set(range(3000)) - {1, 2, 3, 1500, 2500}
    for module in LIBRARIES.values():
        assert set(module.dataset(uri).to_table()["id"].to_pylist()) == check_ids
    # The rows overlap, so the second delete was run again on the version of the first.
    assert lance.dataset(uri).version == lancetable.dataset(uri).version == 3
