"""Objects of a dataset form no reference cycles: they, and the memory maps that they use, are freed with the dataset.

Cycles are freed by the garbage collector, whose passes were a tenth of the time of opening a table and reading a row.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable

READS: dict[str, Callable[[lancetable.LanceDataset], object]] = {
    "take": lambda dataset: dataset.take([3, 70]),
    "take of one column": lambda dataset: dataset.take([3, 70], columns=["tags"]),
    "scan": lambda dataset: dataset.to_table(),
    "filter": lambda dataset: dataset.to_table(filter="id > 5"),
    "count": lambda dataset: dataset.count_rows("name = '7'"),
}


def mixed_table() -> pa.Table:
    numbers = pa.array(np.arange(100))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(101, dtype=np.int32) * 2), pa.array(np.arange(200) % 9))
    structs = pa.StructArray.from_arrays([numbers, numbers.cast(pa.float64())], ["a", "b"])
    return pa.table({"id": numbers, "name": numbers.cast(pa.string()), "tags": lists, "pair": structs})


def cyclic_objects(job: Callable[[], object]) -> list[str]:
    """Return the types of the objects of lancetable that the garbage collector finds after a job."""
    job()  # imports modules and fills caches
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        job()
        gc.collect()
        types: list[type[Any]] = [type(each) for each in gc.garbage]
    finally:
        gc.garbage.clear()
        gc.set_debug(0)
        gc.enable()
    return sorted({kind.__name__ for kind in types if kind.__module__.startswith("lancetable")})


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_a_dataset_that_was_read_has_no_reference_cycles(
    tmp_path: Path, version: str, read: Callable[[lancetable.LanceDataset], object]
) -> None:
    uri = str(tmp_path / "t")
    lancetable.write_dataset(mixed_table(), uri, data_storage_version=version)
    assert cyclic_objects(lambda: read(lancetable.dataset(uri))) == []


def test_cycles_are_found(tmp_path: Path) -> None:
    def make_cycle() -> None:
        session = lancetable.Session()
        session.__dict__["self"] = session

    assert cyclic_objects(make_cycle) == ["Session", "TableCache"]
