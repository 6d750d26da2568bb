"""Columns whose type differs from the stored type: extension types at any depth, JSON, blobs."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lancetable.errors import ColumnNotFoundError
from lancetable.ops.read.matching_rows import count_rows
from lancetable.ops.read.scan import scan_table
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.read.take import take_offsets
from lancetable.table.version import TableVersion, open_version

NUM_ROWS = 20


def scan(version: TableVersion, **options: Any) -> pa.Table:
    return scan_table(version, plan_scan(version, ScanOptions(**options)))


def assert_equal(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema.equals(expected.schema, check_metadata=True)
    assert repr(found.to_pylist()) == repr(expected.to_pylist())


@pytest.fixture(scope="module")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> tuple[TableVersion, lance.LanceDataset]:
    path = str(tmp_path_factory.mktemp("columns") / "extensions")
    ids = pa.array([uuid.UUID(int=i).bytes for i in range(NUM_ROWS)], pa.uuid())
    texts = pa.array([None if i % 5 == 1 else f'{{"i": {i}, "a": [true, 1.5]}}' for i in range(NUM_ROWS)], pa.json_())
    tensors = np.arange(6 * NUM_ROWS, dtype=np.float32).reshape(NUM_ROWS, 2, 3)
    table = pa.table(
        {
            "k": np.arange(NUM_ROWS),
            "u": ids,
            "j": texts,
            "st": pa.StructArray.from_arrays([ids, texts, pa.array(range(NUM_ROWS))], ["u", "j", "x"]),
            "l": pa.ListArray.from_arrays(pa.array([0, *[2] * (NUM_ROWS - 1), NUM_ROWS], pa.int32()), ids),
            "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(tensors),
            "b8": pa.array([1, None] * (NUM_ROWS // 2), pa.int8()).cast(pa.bool8()),
        }
    )
    dataset = lance.write_dataset(table, path, data_storage_version="2.0", max_rows_per_file=8)
    return open_version(path), dataset


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"filter": "k > 9"},
        {"columns": ["st.u", "l", "j"], "limit": 3, "offset": 6},
        {"columns": {"q": "st.u", "z": "j", "k": "k"}},
        {"columns": ["tensor", "b8", "st"], "filter": "k in (3, 17)"},
        {"columns": ["k"], "filter": "u = x'00000000000000000000000000000003'"},
        {"columns": ["k"], "filter": "j is null"},
    ],
)
def test_extension_types_equal_pylance(
    extensions: tuple[TableVersion, lance.LanceDataset], options: dict[str, Any]
) -> None:
    version, dataset = extensions
    assert_equal(scan(version, **options), dataset.to_table(**options))


@pytest.mark.parametrize("columns", [None, ["st.u", "j"], ["tensor", "l"]])
def test_takes_return_extension_types(
    extensions: tuple[TableVersion, lance.LanceDataset], columns: list[str] | None
) -> None:
    version, dataset = extensions
    assert_equal(take_offsets(version, [17, 3, 3], columns), dataset.take([17, 3, 3], columns=columns))


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[TableVersion, lance.LanceDataset]:
    path = Path(tmp_path_factory.mktemp("columns") / "blobs")
    kind = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("k", pa.int64()), kind])
    values = [None if i % 4 == 1 else bytes([i]) * (i * 40) for i in range(NUM_ROWS)]
    table = pa.table({"k": range(NUM_ROWS), "blob": pa.array(values, pa.large_binary())}, schema=schema)
    dataset = lance.write_dataset(table, str(path), data_storage_version="2.0", max_rows_per_file=8)
    return open_version(str(path)), dataset


@pytest.mark.parametrize("handling", [None, "all_binary", "blobs_descriptions", "all_descriptions"])
@pytest.mark.parametrize("options", [{}, {"filter": "k > 5"}, {"columns": ["blob"], "limit": 5}])
def test_blobs_are_read_as_descriptions_or_bytes(
    blobs: tuple[TableVersion, lance.LanceDataset], handling: str | None, options: dict[str, Any]
) -> None:
    version, dataset = blobs
    expected = dataset.to_table(blob_handling=handling, **options)
    assert_equal(scan(version, blob_handling=handling, **options), expected)


def test_blobs_in_takes_filters_and_expressions(blobs: tuple[TableVersion, lance.LanceDataset]) -> None:
    version, dataset = blobs
    assert_equal(take_offsets(version, [9, 0, 1]), dataset.take([9, 0, 1]))
    assert_equal(scan(version, columns={"q": "blob"}), dataset.to_table(columns={"q": "blob"}))
    for predicate in ("blob is null", "blob is not null"):
        assert count_rows(version, predicate) == dataset.count_rows(predicate)
    with pytest.raises(ColumnNotFoundError):
        scan(version, columns=["blob.size"])
