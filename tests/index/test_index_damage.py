"""Damaged index files: searches return rows or raise a typed error, in bounded time and memory.

The format has no checksums, so a changed value or row within a page can remain undetected.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lancetable.errors import LanceError
from lancetable.index.segments import index_segments
from lancetable.table.metadata_cache import TableCache
from lancetable.table.version import TableVersion, open_version
from lancetable.testing.stores import WrappingStore
from tests.index import indexed_tables as tables

lance = pytest.importorskip("lance")

TRIALS = 500
FILES = {
    "BTREE": ("page_lookup.lance", "page_data.lance"),
    "ZONEMAP": ("zonemap.lance",),
    "BLOOMFILTER": ("bloomfilter.lance",),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "BTREE": {"zone_size": 16},
    "ZONEMAP": {"rows_per_zone": 10},
    "BLOOMFILTER": {"number_of_items": 10, "probability": 0.01},
}


class ReplacingStore(WrappingStore):
    """Store in which one object has other bytes."""

    mapped = False

    def __init__(self, inner: Any, name: str, data: bytes) -> None:
        super().__init__(inner)
        self._name, self._data = name, memoryview(data)

    def _call(self, method: str, path: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:
        if not path.endswith(self._name):
            return act()
        if method == "size":
            return len(self._data)
        if method == "read_many":
            return [self._data[start:end] for start, end in arguments[0]]
        return self._data[slice(*arguments)] if method == "read" else self._data


def damaged(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    at = rng.randrange(len(changed))
    match rng.randrange(4):
        case 0:
            changed[at] ^= 1 << rng.randrange(8)
        case 1:
            del changed[at:]
        case 2:
            changed[at : at + 8] = rng.randbytes(8)
        case _:  # metadata and footer are at the end
            changed[-1 - rng.randrange(min(len(changed), 400))] = rng.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("kind", FILES)
def test_damage_never_raises_an_untyped_error(tmp_path: Path, kind: str, version: str) -> None:
    values = tables.values_of_type(pa.string() if version == "2.1" else pa.int64(), 200)
    dataset = tables.write_table(tmp_path, values, version=version)
    dataset = tables.commit(dataset, tables.build(dataset, kind, options=OPTIONS[kind]))
    queries = tables.queries_of(values, ranges=kind != "BLOOMFILTER")[::3]
    opened = open_version(str(tmp_path), cache=TableCache())
    (segment,) = index_segments(opened)
    expected = [sorted(segment.search(query).true) for query in queries]
    rng = random.Random(kind + version)
    outcomes = {"error": 0, "right": 0, "other rows": 0}
    for _ in range(TRIALS // 3):
        name = rng.choice(FILES[kind])
        file = segment.files.open(name)
        data = bytes(opened.store.read_all(file.path, file.metadata.size_bytes))
        found = answers(opened, name, damaged(data, rng), queries)
        outcomes["error" if found is None else "right" if found == expected else "other rows"] += 1
    assert outcomes["error"] > TRIALS // 12
    assert outcomes["other rows"] < TRIALS // 12


def answers(opened: TableVersion, name: str, data: bytes, queries: list[Any]) -> list[list[int]] | None:
    """Return the rows of all queries on a damaged file, None after a typed error."""
    version = dataclasses.replace(opened, store=ReplacingStore(opened.store, name, data), cache=TableCache())
    (segment,) = index_segments(version)
    try:
        results = [segment.search(query) for query in queries]
        assert all(len(result.null) >= 0 for result in results)
        return [sorted(result.true) for result in results]
    except LanceError:
        return None
