"""Small data files: the golden ones, and one for each type and encoding that this library writes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lancetable.errors import LanceError
from lancetable.file.legacy_writer import LegacyFileWriter
from lancetable.file.writer import FileWriter
from lancetable.format import jsonb
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.store.memory import MemoryStore

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "tables"
MAX_SEED_BYTES = 24_000
ROWS = 60

_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_OTHERS = [pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us")]
_OTHERS += [pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.duration("ms")]
_BYTES = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]


def data_files(version: FileVersion) -> Iterator[bytes]:
    """Yield the golden files of a version and a file of this library for each type and encoding."""
    for path in sorted(GOLDEN.glob("*/data/*.lance")):
        data = path.read_bytes()
        if len(data) <= MAX_SEED_BYTES and struct.unpack("<HH", data[-8:-4]) == version.footer_pair:
            yield data
    for table in tables():
        try:
            data = write(table, version)
        except LanceError:  # a type that this version does not have
            continue
        if len(data) <= MAX_SEED_BYTES:
            yield data


def write(table: pa.Table, version: FileVersion) -> bytes:
    """Return a file with several batches or pages."""
    store, schema = MemoryStore.private(), Schema.from_arrow(table.schema)
    if version.is_legacy:
        legacy = LegacyFileWriter(store.open_writer("f"), schema, group_rows=25)
        for batch in table.to_batches():
            legacy.write(batch)
        legacy.close()
    else:
        with FileWriter(store.open_writer("f"), schema, version, data_cache_bytes=4000) as writer:
            for batch in table.to_batches(max_chunksize=max(25, table.num_rows // 2)):
                writer.write(batch)
    return bytes(store.read_all("f"))


def tables() -> Iterator[pa.Table]:
    """Yield small tables of one column each."""
    yield from _plain_types()
    yield from _nested_types()
    yield from _encodings()


def _plain_types() -> Iterator[pa.Table]:
    for kind in [*_INTEGERS, *_OTHERS]:
        step = 86_400_000 if kind == pa.date64() else 1
        values = (np.arange(ROWS) * step).astype(f"i{kind.bit_width // 8}")
        yield _one(pa.Array.from_buffers(kind, ROWS, [None, pa.py_buffer(values)]), nullable=False)
    for kind in _INTEGERS:
        yield _one(_nulled(range(ROWS), kind))
    flags = [number % 3 == 0 for number in range(ROWS)]
    yield _one(pa.array(flags), nullable=False)
    yield _one(_nulled(flags, pa.bool_()))
    yield _one(_nulled(range(ROWS), pa.decimal128(10, 2)))
    yield _one(_nulled(range(ROWS), pa.decimal256(50, 2)))
    yield _one(pa.nulls(ROWS))
    yield _one(pa.nulls(ROWS, pa.string()))
    for kind in _BYTES:
        yield _one(_nulled([word.encode() for word in _words()], pa.binary()).cast(kind))
        yield _one(pa.array([word.encode() or b"x" for word in _words()]).cast(kind), nullable=False)
    yield _one(_nulled([b"12345"] * ROWS, pa.binary(5)))
    yield _one(_nulled([f"k{number % 4}" for number in range(ROWS)], pa.string()).dictionary_encode())
    json = jsonb.from_text(_nulled(['{"a": [1, "b"], "c": -2.5}', "[null, true]"] * (ROWS // 2), pa.string()), "c")
    yield _one(json, name=b"ARROW:extension:name", value=b"lance.json")


def _nested_types() -> Iterator[pa.Table]:
    lists = [list(range(number % 5)) for number in range(ROWS)]
    yield _one(_nulled(lists, pa.list_(pa.int32())))
    yield _one(pa.array([[*row, None] for row in lists], pa.list_(pa.int64())))
    yield _one(_nulled([[str(item) * item for item in row] for row in lists], pa.large_list(pa.string())))
    yield _one(_nulled([[row, None, []] for row in lists], pa.list_(pa.list_(pa.int16()))))
    yield _one(_nulled(lists * 20, pa.list_(pa.int16())))
    point = pa.struct([("x", pa.int16()), ("s", pa.string())])
    points = [{"x": number, "s": None if number % 3 else "v"} for number in range(ROWS)]
    yield _one(_nulled(points, point))
    yield _one(_nulled([[value, None] for value in points], pa.list_(point)))
    outer = pa.struct([("a", point), ("l", pa.list_(pa.int8()))])
    yield _one(_nulled([{"a": value, "l": row} for value, row in zip(points, lists)], outer))
    yield _one(_nulled([[number, number + 1, None] for number in range(ROWS)], pa.list_(pa.int16(), 3)))
    yield _one(pa.array([[float(number)] * 4 for number in range(ROWS)], pa.list_(pa.float32(), 4)), nullable=False)
    yield _one(pa.array([[number % 2 == 0] * 3 for number in range(ROWS)], pa.list_(pa.bool_(), 3)), nullable=False)
    yield _one(pa.array([[float(number)] * 80 for number in range(12)], pa.list_(pa.float32(), 80)))
    yield _one(_nulled([[(f"k{item}", item) for item in row] for row in lists], pa.map_(pa.string(), pa.int32())))


def _encodings() -> Iterator[pa.Table]:
    """Yield tables with encodings that the metadata of a field requests, and those chosen because of the values."""
    numbers = pa.struct([pa.field("a", pa.int32(), False), pa.field("b", pa.float64(), False)])
    yield _packed([{"a": number, "b": number / 3} for number in range(ROWS)], numbers)
    mixed = pa.struct([pa.field("a", pa.int32(), False), pa.field("s", pa.string(), False)])
    yield _packed([{"a": number, "s": "s" * (number % 9)} for number in range(ROWS)], mixed)
    for scheme in (b"zstd", b"lz4"):
        name = b"lance-encoding:compression"
        yield _one(_nulled([word * 9 for word in _words()], pa.string()), name=name, value=scheme)
        yield _one(pa.array(np.arange(300) % 40), name=name, value=scheme)
        yield _one(pa.array(np.repeat(np.arange(30.0), 10).astype(np.float32)), name=name, value=scheme)
        yield _one(pa.array(["y" * (250 + number) for number in range(20)]), name=name, value=scheme)
    links = pa.array([f"https://www.example.org/{number % 7}/{'x' * (number % 3)}" for number in range(1500)])
    yield _one(links, name=b"lance-encoding:compression", value=b"fsst")
    words = [word.encode() * 5 for word in _words()]
    yield _one(_nulled(words, pa.large_binary()), name=b"lance-encoding:blob", value=b"true")
    shuffled = np.arange(1500) * 7919 % 60
    yield _one(pa.array(shuffled.astype(np.int32)))
    yield _one(pa.array(shuffled.astype(np.uint16)), nullable=False)
    yield _one(pa.array(np.repeat(np.arange(20), 40).astype(np.int32)))
    yield _one(pa.array(np.full(90, 7, np.int16)))
    yield _one(pa.array([f"k{number % 4}" for number in range(600)]))
    yield _one(pa.array([("Monday", "Tuesday")[number % 2] * 3 for number in range(600)]), nullable=False)
    yield _one(pa.array(["y" * (250 + number % 20) if number % 5 else None for number in range(20)]))
    yield _one(pa.array([["x" * 300] * (number % 3) for number in range(10)], pa.large_list(pa.string())))


def _one(array: pa.Array, *, nullable: bool = True, name: bytes | None = None, value: bytes = b"") -> pa.Table:
    metadata = None if name is None else {name: value}
    return pa.table([array], schema=pa.schema([pa.field("c", array.type, nullable, metadata)]))


def _packed(rows: list[dict[str, Any]], kind: pa.DataType) -> pa.Table:
    metadata = {"packed": "true", "lance-encoding:packed": "true"}
    return pa.table([pa.array(rows, kind)], schema=pa.schema([pa.field("c", kind, metadata=metadata)]))


def _nulled(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    return pa.array([None if number % 7 == 3 else value for number, value in enumerate(values)], kind)


def _words() -> list[str]:
    return [f"wörd-{number * 7919 % 1000}"[: number % 11] for number in range(ROWS)]
