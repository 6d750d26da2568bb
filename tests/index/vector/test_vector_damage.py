"""Damaged files of vector indexes give an error of the library or rows of the table, never a crash."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import vector_tables as tables
from vector_tables import FLOAT_CASES, Case

import lancetable
from lancetable.errors import CorruptFileError, LanceError, NotFoundError
from lancetable.index.vector.open_index import OpenVectorIndex

CASES = [*FLOAT_CASES[:7], Case("IVF_FLAT", "l2", "float64", True)]
TRIALS = 12


def index_files(uri: str) -> list[Path]:
    return sorted(Path(uri).glob("_indices/*/*.idx"))


def search(uri: str, case: Case) -> set[int]:
    """Return the ids that searches with a new session find."""
    dataset = lancetable.dataset(uri, session=lancetable.Session())
    queries = tables.queries(case, 2)
    found = set()
    for options in ({"nprobes": 4}, {"nprobes": 4, "refine_factor": 2}, {"nprobes": 1}):
        for query in queries:
            nearest = {"column": "v", "q": query, "k": 8, **options}
            table = dataset.to_table(
                columns=["id"], nearest=nearest, filter="id >= 0", prefilter="refine_factor" in options
            )
            found.update(table["id"].to_pylist())
    dataset.prewarm_index("v_idx")
    return found


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return data with a changed byte, bits or range, more often near the end, where the metadata is."""
    changed = bytearray(data)
    at = rng.randrange(len(data)) if rng.random() < 0.3 else max(0, len(data) - 1 - int(rng.expovariate(1 / 400)))
    kind = rng.randrange(5)
    if kind == 0:
        changed[at] = rng.randrange(256)
    elif kind == 1:
        changed[at] ^= 1 << rng.randrange(8)
    elif kind == 2:
        changed[at : at + 8] = rng.choice([b"\xff" * 8, bytes(8), rng.randbytes(8)])
    elif kind == 3:
        del changed[at : at + rng.randrange(1, 9)]
    else:
        del changed[at:]
    return bytes(changed)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_changed_bytes_give_an_error_or_rows_of_the_table(tables_dir: Path, tmp_path: Path, case: Case) -> None:
    uri = str(tmp_path / "t")
    shutil.copytree(tables.built(tables_dir, case), uri)
    rng = random.Random(case.name)
    outcomes = []
    for path in index_files(uri):
        original = path.read_bytes()
        for _ in range(TRIALS):
            changed = tmp_path / "changed"
            changed.write_bytes(damaged(original, rng))
            os.replace(changed, path)
            try:
                found = search(uri, case)
            except LanceError:
                outcomes.append(False)
                continue
            assert found <= set(range(tables.ROWS))
            outcomes.append(True)
        changed.write_bytes(original)
        os.replace(changed, path)
    assert outcomes.count(False) > TRIALS / 4
    assert len(search(uri, case)) > 8


def test_a_missing_file_is_reported(tables_dir: Path, tmp_path: Path) -> None:
    case = FLOAT_CASES[0]
    for number, name in enumerate(("index.idx", "auxiliary.idx")):
        uri = str(tmp_path / f"t{number}")
        shutil.copytree(tables.built(tables_dir, case), uri)
        (path,) = Path(uri).glob(f"_indices/*/{name}")
        path.unlink()
        with pytest.raises((NotFoundError, CorruptFileError)):
            search(uri, case)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("lance:index", "{}"),
        ("lance:index", '{"type":"IVF_PQ","distance_type":"l3"}'),
        ("lance:index", '{"type":5,"distance_type":"l2"}'),
        ("lance:index", "[" * 5000),
        ("lance:ivf", "99"),
        ("lance:ivf", "x"),
        ("storage_metadata", "[]"),
        ("storage_metadata", json.dumps([json.dumps({"dim": 2**40})])),
        ("storage_metadata", json.dumps([json.dumps([1])])),
        ("lance:hnsw", "[]"),
        ("lance:hnsw", json.dumps(["{}"] * 4)),
        ("lance:hnsw", json.dumps([json.dumps({"entry_point": 2**40, "level_offsets": [0, 1]})] * 4)),
        ("lance:hnsw", json.dumps([json.dumps({"entry_point": 0, "level_offsets": [0, 5, 1]})] * 4)),
        ("distance_type", "dot"),
    ],
)
def test_damaged_settings_are_refused(
    tables_dir: Path, monkeypatch: pytest.MonkeyPatch, entry: str, value: str
) -> None:
    from lancetable.index.index_files import IndexFileReader

    case = Case("IVF_HNSW_SQ")
    original = IndexFileReader.text

    def text(self: Any, key: str) -> str | None:
        return value if key == entry else original(self, key)

    monkeypatch.setattr(IndexFileReader, "text", text)
    with pytest.raises(CorruptFileError):
        search(tables.built(tables_dir, case), case)


def test_a_row_that_cannot_exist_is_reported(tables_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = OpenVectorIndex.read_partition
    for case, row in ((FLOAT_CASES[0], 1 << 40), (FLOAT_CASES[0], 5000), (CASES[-1], 1 << 40)):

        def read(self: Any, number: int, row: int = row) -> Any:
            partition = original(self, number)
            row_ids = partition.row_ids.copy()
            row_ids[0] = row
            return type(partition)(row_ids, partition.codes, partition.graph)

        monkeypatch.setattr(OpenVectorIndex, "read_partition", read)
        with pytest.raises(CorruptFileError):
            search(tables.built(tables_dir, case), case)
