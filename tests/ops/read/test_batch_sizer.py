"""Batch sizes of streamed scans."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.file import pool
from lancetable.format.fragment import DataFile, Fragment
from lancetable.ops.read import batch_sizer as pace
from lancetable.ops.read import scan
from lancetable.ops.read.batch_sizer import Pace
from lancetable.table.row_sizes import least_bytes

FRAGMENT = Fragment(0, (DataFile("x.lance", (0,), (0,), 2, 0, 100),), 10_000_000)
BYTES = pace._STREAM_BYTES


def test_windows_begin_small_and_follow_what_was_measured() -> None:
    made = Pace(lambda fragment: 1.0, 1024, None)
    assert made.window_rows(FRAGMENT) == 8192
    made.note(8192, 8192 * 1000)
    assert made.window_rows(FRAGMENT) == BYTES // 1000 // 1024 * 1024
    made.note_late(10, 10 * 1000)
    assert made.window_rows(FRAGMENT) == BYTES // 2000 // 1024 * 1024
    for _ in range(50):
        made.note(1000, 8000)
        made.note_late(1000, 8000)
    assert made.window_rows(FRAGMENT) > 0.9 * BYTES / 16


def test_a_window_is_at_least_a_batch() -> None:
    made = Pace(lambda fragment: 1e6, 5000, None)
    assert made.window_rows(FRAGMENT) == 5000
    assert made.ahead() == pool.size() + 1
    made.note(5000, 5000 * 10**6)
    assert made.window_rows(FRAGMENT) == 5000
    assert made.ahead() == 1


def test_a_window_is_part_of_a_large_batch_that_is_joined_anyway() -> None:
    made = Pace(lambda fragment: 1.0, 100_000, None, joined=True)
    assert made.window_rows(FRAGMENT) == 8192
    made.note(8192, 8192 * 1000)
    assert made.window_rows(FRAGMENT) == BYTES // 1000
    assert made.ahead() == pool.size() + 1
    made.note(1, 2 * BYTES)
    assert made.window_rows(FRAGMENT) == 1
    small = Pace(lambda fragment: 1.0, 1024, None, joined=True)
    small.note(1000, 1000 * 1000)
    assert small.window_rows(FRAGMENT) == BYTES // 1000 // 1024 * 1024


def test_a_window_keeps_to_the_bytes_of_a_batch() -> None:
    """Where batches are as large as bytes allow, no window is read that is cut into many of them."""
    made = Pace(lambda fragment: 6144.0, 131_072, None, batch_bytes=16 << 20)
    assert made.window_rows(FRAGMENT) == (16 << 20) // 6144
    small = Fragment(0, (DataFile("x.lance", (0,), (0,), 2, 0, 100),), 100_000)
    assert made.window_rows(small) == (16 << 20) // 6144
    made.note(1000, 1000 * 12_288)
    assert made.window_rows(FRAGMENT) == (16 << 20) // 12_288
    assert made.ahead() == 1


def test_small_windows_are_read_together_by_what_they_are_expected_to_match() -> None:
    made = Pace(lambda fragment: 1.0, 8192, None, joined=True)
    made.note_late(100, 100 * 50_000)
    assert made.shared_rows() == BYTES // 50_000
    made.note(10_000, 10_000 * 8)
    assert made.shared_rows() == int(BYTES / (8 + 2 * 100 / 10_000 * 50_000))
    assert made.affordable_rows() == int(BYTES / 50_008)


def test_a_limit_keeps_windows_small() -> None:
    made = Pace(lambda fragment: 1.0, 1000, 64_000)
    made.note(1000, 1000)
    assert made.window_rows(FRAGMENT) == 64_000


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
    assert least_bytes(kind) == size


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_a_column_that_grows_in_memory_is_read_in_smaller_windows(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Forty long texts, repeated: a few bytes a row in the file, a kilobyte in memory."""
    rows = 120_000
    paragraphs = pa.array([f"{number} " * 500 for number in range(40)])
    texts = paragraphs.take(pa.array(np.arange(rows) % 40))
    uri = str(tmp_path_factory.mktemp("pace") / "t.lance")
    made = lancetable.write_dataset(pa.table({"id": np.arange(rows), "s": texts}), uri, data_storage_version=version)
    seen: list[int] = []
    read_window = scan._Run.read_window

    def spy(run: scan._Run, window: scan._Window) -> pa.Table:
        table = read_window(run, window)
        seen.append(table.nbytes)
        return table

    monkeypatch.setattr(scan._Run, "read_window", spy)
    assert sum(batch.num_rows for batch in made.to_batches(columns=["s"], batch_size=1000)) == rows
    assert max(seen) < 4 * BYTES
    seen.clear()
    matched = scan._Run._matched

    def spy_late(run: scan._Run, match: scan._Match) -> pa.Table:
        table = matched(run, match)
        seen.append(table.nbytes)
        return table

    monkeypatch.setattr(scan._Run, "_matched", spy_late)
    filtered = made.to_batches(columns=["s"], filter="id % 2 = 0", batch_size=1000)
    assert sum(batch.num_rows for batch in filtered) == rows // 2
    assert max(seen) < 4 * BYTES


def test_rows_that_match_here_and_there_do_not_pile_up_as_tables(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_MAX_PENDING", 3)
    uri = str(tmp_path_factory.mktemp("pending") / "t.lance")
    data = pa.table({"id": np.arange(4000), "s": [str(number) for number in range(4000)]})
    made = lancetable.write_dataset(data, uri, max_rows_per_file=100, data_storage_version="2.0")
    batches = list(made.to_batches(filter="id % 100 = 7", batch_size=25))
    assert [batch.num_rows for batch in batches] == [25, 15]
    assert pa.Table.from_batches(batches)["id"].to_pylist() == list(range(7, 4000, 100))
