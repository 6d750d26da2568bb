"""`fsck(deep=True)` of vector indexes: intact ones of both libraries are clean, and wrong rows are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.index.vector import vector_kind
from lancetable.index.vector.partition_buffers import PartitionBuffers
from tests.index.vector.built_tables import clustered, table_of

KINDS = ["IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_SQ"]
OPTIONS: dict[str, Any] = {"num_partitions": 3}


def with_gaps(rows: int) -> pa.Table:
    """Return a table whose first vectors have no place in an index: null, NaN, infinity, and zero for cosine."""
    vectors = clustered(rows, 1)
    vectors[1], vectors[2], vectors[3] = np.nan, np.inf, 0
    values = pa.array(vectors.reshape(-1))
    mask = pa.array([number == 0 for number in range(rows)])
    array = pa.FixedSizeListArray.from_arrays(values, type=pa.list_(pa.float32(), vectors.shape[1]), mask=mask)
    return pa.table({"id": range(rows), "v": array})


def details(path: Path) -> list[str]:
    report = lancetable.fsck(path, deep=True)
    assert not any(each.kind == "index" for each in report.not_checked)
    return sorted({each.detail.partition(": ")[2] or each.detail for each in report.problems})


@pytest.mark.parametrize("library", [lance, lancetable])
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_intact_indexes_are_clean(tmp_path: Path, library: Any, kind: str, stable: bool, metric: str) -> None:
    options = {**OPTIONS, **({"num_sub_vectors": 4} if "PQ" in kind else {})}
    library.write_dataset(with_gaps(600), str(tmp_path), max_rows_per_file=200, enable_stable_row_ids=stable)
    library.dataset(str(tmp_path)).create_index("v", kind, metric=metric, **options)
    assert details(tmp_path) == []
    dataset = lancetable.dataset(tmp_path)
    dataset.delete("id % 10 = 7")
    dataset.update({"id": "id + 1000"}, where="id < 50")
    dataset.optimize.compact_files(target_rows_per_fragment=400)
    dataset.insert(table_of(clustered(100, 2), 600))
    dataset.optimize.optimize_indices()
    assert details(tmp_path) == []
    library.dataset(str(tmp_path)).optimize.optimize_indices(num_indices_to_merge=9)
    assert details(tmp_path) == []


def test_a_multivector_index_may_contain_a_row_several_times(tmp_path: Path) -> None:
    vectors = clustered(600, 1)
    kind = pa.list_(pa.list_(pa.float32(), vectors.shape[1]))
    rows = [[] if number % 9 == 0 else vectors[2 * number : 2 * number + 2].tolist() for number in range(300)]
    dataset = lancetable.write_dataset(pa.table({"id": range(300), "v": pa.array(rows, kind)}), tmp_path)
    dataset.create_index("v", "IVF_FLAT", metric="cosine", num_partitions=2)
    assert details(tmp_path) == []


def test_indexes_without_rows_are_clean(tmp_path: Path) -> None:
    dataset = lancetable.write_dataset(table_of(clustered(100, 1)), tmp_path)
    dataset.create_index("v", "IVF_FLAT", train=False, num_partitions=2)
    assert details(tmp_path) == []


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rows: rows[5:], "5 rows of the table are missing in the index"),
        (lambda rows: np.where(rows == rows[0], rows[1], rows), "1 rows of the index occur twice"),
        (lambda rows: np.append(rows[1:], 1 << 50), "contains a row that does not exist"),
    ],
    ids=["missing", "twice", "unknown"],
)
def test_wrong_rows_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, problem: str, stable: bool
) -> None:
    """The build itself writes wrong rows: the files are valid, and only the table shows the damage."""
    table = table_of(clustered(300, 1))
    dataset = lancetable.write_dataset(table, tmp_path, max_rows_per_file=100, enable_stable_row_ids=stable)

    class Changed(PartitionBuffers):
        def add(self, partitions: Any, rows: Any, codes: Any) -> None:
            rows = rows if self.lengths.any() else change(rows)
            super().add(partitions[: len(rows)], rows, codes[: len(rows)])

    monkeypatch.setattr(vector_kind, "PartitionBuffers", Changed)
    dataset.create_index("v", "IVF_FLAT", **OPTIONS)
    monkeypatch.undo()
    (found,) = details(tmp_path)
    assert problem in found


@pytest.mark.parametrize("name", ["index.idx", "auxiliary.idx"])
def test_damaged_files_are_reported(tmp_path: Path, name: str) -> None:
    dataset = lancetable.write_dataset(table_of(clustered(600, 1)), tmp_path)
    dataset.create_index("v", "IVF_HNSW_SQ", **OPTIONS)
    (file,) = (tmp_path / "_indices").rglob(name)
    data = file.read_bytes()
    file.write_bytes(data[:64] + b"\xff" * (len(data) - 400) + data[len(data) - 336 :])
    assert any(each.kind == "index" for each in lancetable.fsck(tmp_path, deep=True).problems)
    file.write_bytes(data)
    assert details(tmp_path) == []
