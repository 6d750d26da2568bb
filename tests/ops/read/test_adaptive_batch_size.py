"""Batch sizes of streamed scans."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.file import thread_pool
from lancetable.format.fragment import DataFile, Fragment
from lancetable.ops.read import adaptive_batch_size, scan
from lancetable.ops.read.adaptive_batch_size import RangeSizer
from lancetable.ops.read.row_ranges import RowRange
from lancetable.ops.read.scan_execution import ScanRun
from lancetable.table.row_sizes import min_bytes

FRAGMENT = Fragment(0, (DataFile("x.lance", (0,), (0,), 2, 0, 100),), 10_000_000)
BYTES = adaptive_batch_size._STREAM_BYTES


def test_ranges_start_small_and_follow_the_measured_sizes() -> None:
    sizer = RangeSizer(lambda fragment: 1.0, 1024, None)
    assert sizer.range_rows(FRAGMENT) == 8192
    sizer.note_read(8192, 8192 * 1000)
    assert sizer.range_rows(FRAGMENT) == BYTES // 1000 // 1024 * 1024
    sizer.note_late(10, 10 * 1000)
    assert sizer.range_rows(FRAGMENT) == BYTES // 2000 // 1024 * 1024
    for _ in range(50):
        sizer.note_read(1000, 8000)
        sizer.note_late(1000, 8000)
    assert sizer.range_rows(FRAGMENT) > 0.9 * BYTES / 16


def test_a_range_has_at_least_one_batch() -> None:
    sizer = RangeSizer(lambda fragment: 1e6, 5000, None)
    assert sizer.range_rows(FRAGMENT) == 5000
    assert sizer.max_pending() == thread_pool.size() + 1
    sizer.note_read(5000, 5000 * 10**6)
    assert sizer.range_rows(FRAGMENT) == 5000
    assert sizer.max_pending() == 1


def test_a_range_is_a_part_of_a_large_combined_batch() -> None:
    sizer = RangeSizer(lambda fragment: 1.0, 100_000, None, combined=True)
    assert sizer.range_rows(FRAGMENT) == 8192
    sizer.note_read(8192, 8192 * 1000)
    assert sizer.range_rows(FRAGMENT) == BYTES // 1000
    assert sizer.max_pending() == thread_pool.size() + 1
    sizer.note_read(1, 2 * BYTES)
    assert sizer.range_rows(FRAGMENT) == 1
    small = RangeSizer(lambda fragment: 1.0, 1024, None, combined=True)
    small.note_read(1000, 1000 * 1000)
    assert small.range_rows(FRAGMENT) == BYTES // 1000 // 1024 * 1024


def test_a_range_is_limited_by_the_bytes_of_a_batch() -> None:
    """A range is not cut into many batches if the batches are limited by bytes."""
    sizer = RangeSizer(lambda fragment: 6144.0, 131_072, None, batch_bytes=16 << 20)
    assert sizer.range_rows(FRAGMENT) == (16 << 20) // 6144
    small = Fragment(0, (DataFile("x.lance", (0,), (0,), 2, 0, 100),), 100_000)
    assert sizer.range_rows(small) == (16 << 20) // 6144
    sizer.note_read(1000, 1000 * 12_288)
    assert sizer.range_rows(FRAGMENT) == (16 << 20) // 12_288
    assert sizer.max_pending() == 1


def test_the_size_of_a_group_follows_the_share_of_matches() -> None:
    sizer = RangeSizer(lambda fragment: 1.0, 8192, None, combined=True)
    sizer.note_late(100, 100 * 50_000)
    assert sizer.group_rows() == BYTES // 50_000
    sizer.note_read(10_000, 10_000 * 8)
    assert sizer.group_rows() == int(BYTES / (8 + 2 * 100 / 10_000 * 50_000))
    assert sizer.range_rows(FRAGMENT) == int(BYTES / 50_008)


def test_the_maximum_of_a_range_applies() -> None:
    sizer = RangeSizer(lambda fragment: 1.0, 1000, 64_000)
    sizer.note_read(1000, 1000)
    assert sizer.range_rows(FRAGMENT) == 64_000


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (pa.bool_(), 1 / 8),
        (pa.int64(), 8),
        (pa.list_(pa.float32(), 256), 1024),
        (pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int8()))]), 9),
        (pa.decimal128(5, 2), 16),
        (pa.string(), 12),
    ],
)
def test_least_bytes(kind: pa.DataType, size: float) -> None:
    assert min_bytes(kind) == size


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_a_column_that_expands_in_memory_is_read_in_smaller_ranges(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """The column has 40 distinct long strings: a few bytes per row in the file, a kilobyte in memory."""
    rows = 120_000
    paragraphs = pa.array([f"{number} " * 500 for number in range(40)])
    texts = paragraphs.take(pa.array(np.arange(rows) % 40))
    uri = str(tmp_path_factory.mktemp("sizes") / "t.lance")
    dataset = lancetable.write_dataset(pa.table({"id": np.arange(rows), "s": texts}), uri, data_storage_version=version)
    sizes: list[int] = []
    read = ScanRun.read

    def read_and_measure(run: ScanRun, group: list[RowRange]) -> pa.Table | None:
        table = read(run, group)
        sizes.append(0 if table is None else table.nbytes)
        return table

    monkeypatch.setattr(ScanRun, "read", read_and_measure)
    assert sum(batch.num_rows for batch in dataset.to_batches(columns=["s"], batch_size=1000)) == rows
    assert 0 < max(sizes) < 4 * BYTES
    sizes.clear()
    filtered = dataset.to_batches(columns=["s"], filter="id % 2 = 0", batch_size=1000)
    assert sum(batch.num_rows for batch in filtered) == rows // 2
    assert 0 < max(sizes) < 4 * BYTES


def test_sparse_matches_are_combined_into_full_batches(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_MAX_PENDING", 3)
    uri = str(tmp_path_factory.mktemp("pending") / "t.lance")
    data = pa.table({"id": np.arange(4000), "s": [str(number) for number in range(4000)]})
    dataset = lancetable.write_dataset(data, uri, max_rows_per_file=100, data_storage_version="2.0")
    batches = list(dataset.to_batches(filter="id % 100 = 7", batch_size=25))
    assert [batch.num_rows for batch in batches] == [25, 15]
    assert pa.Table.from_batches(batches)["id"].to_pylist() == list(range(7, 4000, 100))
