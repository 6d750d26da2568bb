"""Tables that pylance writes for the tests of reading: several fragments and files, deletions, changed schemas."""

from __future__ import annotations

import datetime
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import lance
import numpy as np
import pyarrow as pa
import pytest

from lancetable.table.version import TableVersion, open_version

ROWS_PER_FILE = 130
NUM_ROWS = 600


def rows(start: int, count: int, seed: int) -> pa.Table:
    """Return columns of most kinds; `k` is unique and ascending."""
    rng = np.random.default_rng(seed)
    some = rng.random(count) < 0.15

    def holes(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind, mask=some, from_pandas=False)

    floats = rng.normal(size=count)
    floats[rng.random(count) < 0.1] = np.nan
    texts = np.array([f"text {i % 7} é {'x' * (i % 11)}" for i in range(start, start + count)], dtype=object)
    day = datetime.date(2020, 1, 1).toordinal()
    return pa.table(
        {
            "k": pa.array(np.arange(start, start + count), pa.int64()),
            "i": holes(rng.integers(-5, 5, count), pa.int32()),
            "f": holes(floats, pa.float64()),
            "b": holes(rng.random(count) < 0.5, pa.bool_()),
            "s": holes(texts, pa.string()),
            "low": pa.array(rng.choice(["red", "green", "blue"], count)),
            "d": pa.array([datetime.date.fromordinal(day + int(i)) for i in rng.integers(0, 50, count)]),
            "l": pa.array([None if i % 9 == 4 else list(range(i % 4)) for i in range(count)], pa.list_(pa.int16())),
            "st": pa.StructArray.from_arrays(
                [
                    holes(rng.integers(0, 9, count), pa.int32()),
                    pa.array([f"n{i % 5}" for i in range(count)]),
                    pa.StructArray.from_arrays([pa.array(rng.random(count))], ["z"]),
                ],
                ["x", "y", "in"],
            ),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(count * 4, dtype=np.float32)), 4),
            "u": pa.array([uuid.UUID(int=int(i)).bytes for i in rng.integers(0, 99, count)], pa.uuid()),
            "dic": pa.array(rng.choice(["p", "q", "r"], count)).dictionary_encode(),
            "old": pa.array(np.arange(count), pa.int16()),
        }
    )


def write_busy(path: Path, *, stable: bool) -> lance.LanceDataset:
    """Write a table with a history: append, deletes, columns added (SQL, a function, empty) and dropped, updates."""
    uri = str(path)
    common: dict[str, Any] = {"data_storage_version": "2.0", "max_rows_per_file": ROWS_PER_FILE}
    half = NUM_ROWS // 2
    dataset = lance.write_dataset(rows(0, half, 1), uri, enable_stable_row_ids=stable, **common)
    dataset.delete("k % 7 = 3 or (k >= 20 and k < 60)")
    dataset.add_columns({"twice": "k * 2", "tag": "concat('t', s)"})
    dataset.drop_columns(["old"])

    @lance.batch_udf()
    def made(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"made": pa.array([str(k.as_py())[-1] for k in batch["k"]])})

    dataset.add_columns(made, read_columns=["k"])
    more = rows(half, NUM_ROWS - half, 2).drop_columns(["old"])
    dataset = lance.write_dataset(more, uri, mode="append", **common)
    dataset.update({"i": "i + 100"}, where="k % 13 = 5")
    dataset.delete("k > 580 or k = 0")
    dataset.add_columns(pa.schema([pa.field("empty", pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]))]))
    return lance.dataset(uri)


class Pair(NamedTuple):
    """A table opened by both libraries."""

    ours: TableVersion
    theirs: lance.LanceDataset


@pytest.fixture(scope="session", params=["plain", "stable"])
def busy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = tmp_path_factory.mktemp("busy") / str(request.param)
    theirs = write_busy(path, stable=request.param == "stable")
    return Pair(open_version(str(path)), theirs)
