"""A filter with few matches reads few bytes of late columns of every type."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lancetable.format.version import FileVersion
from lancetable.ops.read.scan import scan_table
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.write import write
from lancetable.ops.write.write import WriteOptions
from lancetable.table.data_file_metadata import file_metadata
from lancetable.table.version import open_version
from lancetable.testing.stores import CountingStore

ROWS = 1_000_000
CHOSEN = 10
CHUNK_BYTES = CHUNK_ROWS = 16 << 10  # the maximum size of a mini-block chunk of 2.1
NAMES = (
    *("int64", "int8", "nullable", "bool", "nullable_bool"),
    *("words", "strings", "list", "struct", "vector"),
)


def late_columns() -> dict[str, pa.Array]:
    rng = np.random.default_rng(7)
    numbers = pa.array(rng.integers(0, 2**62, ROWS))
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, ROWS))]).astype(np.int32)
    items = rng.integers(0, 100, offsets[-1], dtype=np.int32)
    return {
        "int64": numbers,
        "int8": pa.array(rng.integers(0, 100, ROWS, dtype=np.int8)),
        "nullable": pa.array(rng.integers(0, 1000, ROWS), mask=rng.random(ROWS) < 0.2),
        "bool": pa.array(rng.random(ROWS) < 0.5),
        "nullable_bool": pa.array(rng.random(ROWS) < 0.5, mask=rng.random(ROWS) < 0.2),
        "words": pa.array([f"word-{number:02d}" for number in range(40)]).take(pa.array(rng.integers(0, 40, ROWS))),
        "strings": numbers.cast(pa.string()),
        "list": pa.ListArray.from_arrays(pa.array(offsets), pa.array(items)),
        "struct": pa.StructArray.from_arrays([numbers, numbers.cast(pa.string())], names=["x", "s"]),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(ROWS * 4, dtype=np.float32)), 4),
    }


@pytest.fixture(scope="module", params=[FileVersion.V2_0, FileVersion.V2_1], ids=str)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    path = tmp_path_factory.mktemp("late") / "t.lance"
    chosen = np.zeros(ROWS, np.int8)
    chosen[np.random.default_rng(3).choice(ROWS, CHOSEN, replace=False)] = 1
    columns = late_columns()
    data = pa.table({"key": chosen, **{name: columns[name] for name in NAMES}})
    write.create(path, data.schema, data.to_batches(), WriteOptions(file_version=request.param))
    return path, data


@pytest.mark.parametrize("name", NAMES)
def test_few_rows_read_few_bytes_of_a_late_column(table: tuple[Path, pa.Table], name: str) -> None:
    path, data = table
    version = open_version(path)
    options = ScanOptions(columns=[name], filter="key = 1")
    (fragment,) = version.manifest.fragments
    (data_file,) = fragment.files
    metadata = file_metadata(version, data_file)
    counting = CountingStore(version.store)
    version = replace(version, store=counting)
    # Footer, statistics and key are read before counting starts.
    scan_table(version, plan_scan(version, ScanOptions(columns=[], filter="key = 1")))
    counting.reset()
    scan_table(version, plan_scan(version, ScanOptions(columns=[], filter="key = 1")))
    only_key = counting.bytes_read
    counting.reset()
    found = scan_table(version, plan_scan(version, options))
    late = counting.bytes_read - only_key
    field = version.schema.field(name)
    assert field is not None
    columns = dict(zip(data_file.fields, data_file.column_indices))
    sizes = [metadata.column_size_bytes(columns[part.id]) for part in field.walk() if part.id in columns]
    assert found.column(0).to_pylist() == data.filter(pc.equal(data["key"], 1)).column(name).to_pylist()
    most = sum(sizes) * 0.05
    if data_file.file_version is FileVersion.V2_1:
        most = sum(1.25 * CHOSEN * min(CHUNK_BYTES, CHUNK_ROWS * size / ROWS) + 8192 for size in sizes)
    assert late < most, f"{late} of {sum(sizes)} bytes"
