"""Zone maps: comparison with a value-by-value reference, and validation of untrusted content."""

from __future__ import annotations

import datetime
import math
import struct
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance.file import LanceFileReader as PylanceReader

from lancetable.file import zone_maps
from lancetable.file.footer import STATISTICS_KEY
from lancetable.file.reader import open_data_file
from lancetable.file.writer import FileWriter
from lancetable.file.zone_map_builder import is_bytes, is_text
from lancetable.file.zone_maps import FileStatistics, StatisticsBuilder, StatisticsWarning, parse_statistics
from lancetable.format.schema import Schema
from lancetable.store.memory import MemoryStore

ZONE = 1024


def build(table: pa.Table, sizes: Iterator[int] | None = None, zone_rows: int = ZONE) -> tuple[bytes, Schema]:
    schema = Schema.from_arrow(table.schema)
    builder = StatisticsBuilder(schema, zone_rows)
    if sizes is None:
        sizes = iter(lambda: table.num_rows, -1)
    position = 0
    while position < table.num_rows:
        size = min(next(sizes), table.num_rows - position)
        for batch in table.slice(position, size).combine_chunks().to_batches():
            builder.add(batch)
        position += size
    assert builder.num_rows == table.num_rows
    return builder.finish(), schema


def read(data: bytes, schema: Schema, num_rows: int) -> FileStatistics:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parsed = parse_statistics(data, schema, num_rows)
    assert parsed is not None
    return parsed


def zones_of(table: pa.Table, sizes: Iterator[int] | None = None) -> FileStatistics:
    data, schema = build(table, sizes)
    return read(data, schema, table.num_rows)


INT_TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
TEMPORAL_TYPES = [
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time64("us"),
    pa.timestamp("us"),
    pa.timestamp("ns", "UTC"),
    pa.duration("s"),
]


def widest(kind: pa.DataType) -> tuple[Any, Any]:
    if pa.types.is_floating(kind):
        return -math.inf, math.inf
    if pa.types.is_boolean(kind):
        return False, True
    if pa.types.is_decimal(kind):
        most = Decimal((0, (9,) * kind.precision, -kind.scale))
        return most.copy_negate(), most
    if pa.types.is_integer(kind):
        info = np.iinfo(kind.to_pandas_dtype())
        return int(info.min), int(info.max)
    return None, None


def random_values(kind: pa.DataType, count: int, null_rate: float, seed: int) -> pa.Array:
    rng = np.random.default_rng(seed)
    mask = rng.random(count) < null_rate
    if pa.types.is_boolean(kind):
        return pa.array(rng.random(count) < rng.choice([0.0, 0.001, 0.5, 1.0]), kind, mask=mask)
    if pa.types.is_floating(kind):
        values = rng.standard_normal(count).astype(kind.to_pandas_dtype())
        values[rng.random(count) < rng.choice([0.0, 0.01])] = np.nan
        values[rng.random(count) < 0.01] = -0.0
        return pa.array(values, kind, mask=mask, from_pandas=False)
    if pa.types.is_decimal(kind):
        return pa.array(
            [None if m else Decimal(int(x)) / 4 for x, m in zip(rng.integers(-999, 999, count), mask)], kind
        )
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([None if m else rng.bytes(kind.byte_width) for m in mask], kind)
    if is_text(kind) or is_bytes(kind):
        lengths = rng.integers(0, 12, count)
        texts = ["".join(rng.choice(["a", "b", "é", "漢", "z"], n)) for n in lengths]
        return pa.array([None if m else text for text, m in zip(texts, mask)], pa.string()).cast(kind)
    if pa.types.is_integer(kind):
        info = np.iinfo(kind.to_pandas_dtype())
        values = rng.integers(info.min, info.max, count, dtype=kind.to_pandas_dtype(), endpoint=True)
        return pa.array(values, kind, mask=mask)
    width = np.dtype(f"i{kind.bit_width // 8}")
    limit = 80000 if pa.types.is_time32(kind) else 10**6
    values = rng.integers(0, limit, count).astype(width) * (86_400_000 if kind == pa.date64() else 1)
    return pa.array(values, pa.int32() if width.itemsize == 4 else pa.int64(), mask=mask).view(kind)


ORDERED_TYPES = [
    *INT_TYPES,
    *TEMPORAL_TYPES,
    pa.bool_(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(10, 2),
    pa.decimal256(60, 2),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.large_binary(),
    pa.binary(5),
]


@pytest.mark.parametrize("kind", ORDERED_TYPES, ids=str)
@pytest.mark.parametrize("null_rate", [0.0, 0.3, 0.9995])
def test_bounds_are_the_extremes_of_their_zone(kind: pa.DataType, null_rate: float) -> None:
    count = 3 * ZONE + 100
    array = random_values(kind, count, null_rate, seed=len(str(kind)))
    sizes = iter([1, 700, 5, 2000, 300, *[50] * 1000])
    stats = zones_of(pa.table({"c": array}), sizes)
    assert stats.zone_rows.tolist() == [ZONE, ZONE, ZONE, 100]
    column = stats.columns[0]
    assert column.min is not None and column.max is not None
    assert column.min.type == kind and column.max.type == kind
    for zone in range(4):
        values = [v for v in array.slice(zone * ZONE, ZONE).to_pylist() if v is not None]
        assert column.null_count[zone] == len(array.slice(zone * ZONE, ZONE)) - len(values)
        numbers = [v for v in values if v == v]
        if pa.types.is_floating(kind):
            assert column.nan_count is not None and column.nan_count[zone] == len(values) - len(numbers)
        else:
            assert column.nan_count is None
        if numbers:
            assert (column.min[zone].as_py(), column.max[zone].as_py()) == (min(numbers), max(numbers))
        elif kind in TEMPORAL_TYPES:
            assert (column.min[zone].value, column.max[zone].value) == widest(
                pa.int32() if kind.bit_width == 32 else pa.int64()
            )
        else:
            assert (column.min[zone].as_py(), column.max[zone].as_py()) == widest(kind)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=12), st.integers(0, 2))
def test_statistics_are_independent_of_batch_boundaries(sizes: list[int], which: int) -> None:
    table = pa.table({"a": random_values([pa.int32(), pa.float64(), pa.string()][which], sum(sizes), 0.2, 5)})
    assert build(table, iter(sizes))[0] == build(table)[0]


def test_decimals_of_negative_scale_have_no_bounds() -> None:
    """Arrow cannot compare such decimals; a comparison would make the reader discard all statistics of the file."""
    values = pa.array([Decimal(-300), None, Decimal(500)] * 1000, pa.decimal128(5, -2))
    data, schema = build(pa.table({"c": values, "k": pa.array(range(3000))}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stats = read(data, schema, 3000)
    assert stats.columns[0].min is None and stats.columns[0].max is None
    assert sum(stats.columns[0].null_count) == 1000
    assert stats.columns[1].min is not None


def test_slices_with_a_bit_offset() -> None:
    array = random_values(pa.int16(), 5000, 0.5, 1)
    flags = random_values(pa.bool_(), 5000, 0.5, 2)
    table = pa.table({"a": array.slice(13, 4000), "b": flags.slice(13, 4000)})
    copied = pa.table({name: pa.array(table[name].to_pylist(), table.schema.field(name).type) for name in "ab"})
    assert build(table, iter([1500] * 9))[0] == build(copied)[0]


def test_default_zone_size() -> None:
    data, schema = build(pa.table({"a": pa.array(range(20000))}), zone_rows=zone_maps.DEFAULT_ZONE_ROWS)
    stats = read(data, schema, 20000)
    assert stats.zone_rows.tolist() == [8192, 8192, 3616]
    with pytest.raises(ValueError, match="1024"):
        StatisticsBuilder(schema, 1000)


def test_bounds_of_zero_include_both_signs() -> None:
    stats = zones_of(pa.table({"a": [0.0, -0.0], "b": [-1.0, -0.0], "c": [0.0, 5.0]}))
    assert [math.copysign(1, stats.columns[i].min[0].as_py()) for i in (0, 2)] == [-1, -1]
    assert [math.copysign(1, stats.columns[i].max[0].as_py()) for i in (0, 1)] == [1, 1]


def test_values_under_a_null_are_ignored() -> None:
    values = np.array([5, -(2**31), 7, 2**31 - 1], np.int32)
    floats = np.array([5.0, -math.inf, 7.0, math.nan])
    valid = pa.py_buffer(b"\x05")
    table = pa.table(
        {
            "i": pa.Array.from_buffers(pa.int32(), 4, [valid, pa.py_buffer(values)]),
            "f": pa.Array.from_buffers(pa.float64(), 4, [valid, pa.py_buffer(floats)]),
        }
    )
    stats = zones_of(table)
    for field_id in (0, 1):
        column = stats.columns[field_id]
        assert (column.min.to_pylist(), column.max.to_pylist(), column.null_count.tolist()) == ([5], [7], [2])
    assert stats.columns[1].nan_count.tolist() == [0]


NO_BOUNDS = {
    "list": pa.array([[1], None, []], pa.list_(pa.int8())),
    "fsl": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
    "null": pa.nulls(3),
    "dict": pa.array(["a", None, "b"]).dictionary_encode(),
    "dict with a null inside": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array(["a", None])),
    "uuid": pa.array([b"0" * 16, None, b"1" * 16], pa.binary(16)).cast(pa.uuid()),
}


@pytest.mark.parametrize("name", NO_BOUNDS)
def test_types_without_an_order_have_a_null_count_only(name: str) -> None:
    array = NO_BOUNDS[name]
    table = pa.table({"c": array})
    column = zones_of(table, iter([1, 1, 1])).columns[0]
    assert column.null_count.tolist() == [3 if name == "null" else 1]
    assert column.min is None and column.max is None and column.nan_count is None


def test_blobs_and_json_have_a_null_count_only() -> None:
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    table = pa.table([pa.array([b"x", None], pa.large_binary())], schema=pa.schema([blob]))
    assert zones_of(table).columns[0].min is None


def test_structs_have_entries_for_their_leaves() -> None:
    inner = pa.struct([("x", pa.int32()), ("l", pa.list_(pa.int8())), ("in", pa.struct([("y", pa.string())]))])
    rows = [{"x": 1, "l": [1], "in": {"y": "b"}}, None, {"x": 5, "l": None, "in": None}]
    table = pa.table({"a": [1, 2, 3], "s": pa.array(rows, inner)})
    stats = zones_of(table, iter([2, 1]))
    # ids: a 0, s 1, x 2, l 3, item 4, in 5, y 6
    assert sorted(stats.columns) == [0, 1, 2, 3, 6]
    assert {i: stats.columns[i].null_count.tolist() for i in (1, 2, 3, 6)} == {1: [1], 2: [1], 3: [2], 6: [2]}
    assert (stats.columns[2].min.to_pylist(), stats.columns[2].max.to_pylist()) == ([1], [5])
    assert (stats.columns[6].min.to_pylist(), stats.columns[1].min) == (["b"], None)


TRUNCATIONS: list[tuple[pa.DataType, Any, Any, Any]] = [
    (pa.string(), "a" * 64, "a" * 64, "a" * 64),
    (pa.string(), "a" * 65, "a" * 64, "a" * 63 + "b"),
    (pa.large_string(), "é" * 40, "é" * 32, "é" * 31 + "ê"),
    (pa.string(), "a" + "é" * 40, "a" + "é" * 31, "a" + "é" * 30 + "ê"),  # 63 bytes: no character is split
    (pa.string(), "x" * 63 + "\x7f" + "y", "x" * 63 + "\x7f", "x" * 62 + "y"),  # U+0080 would need 65 bytes
    (pa.string(), "\ud7ff" * 30, "\ud7ff" * 21, "\ud7ff" * 20 + "\ue000"),  # surrogates are skipped
    (pa.string(), "a" + "\U0010ffff" * 20, "a" + "\U0010ffff" * 15, "b"),
    (pa.string(), "\U0010ffff" * 20, "\U0010ffff" * 16, None),
    (pa.binary(), b"\x01" * 70, b"\x01" * 64, b"\x01" * 63 + b"\x02"),
    (pa.large_binary(), b"\x01" + b"\xff" * 70, b"\x01" + b"\xff" * 63, b"\x02"),
    (pa.binary(), b"\xff" * 70, b"\xff" * 64, None),
    (pa.binary(70), b"\x01" * 70, None, None),
]


@pytest.mark.parametrize(("kind", "value", "low", "high"), TRUNCATIONS, ids=lambda value: str(value)[:12])
def test_long_bounds_are_truncated(kind: pa.DataType, value: Any, low: Any, high: Any) -> None:
    column = zones_of(pa.table({"c": pa.array([value], kind)})).columns[0]
    assert column.min.to_pylist() == [low] and column.max.to_pylist() == [high]
    if low is not None:
        assert low <= value
    if high is not None:
        assert high >= value and len(high if isinstance(high, bytes) else high.encode()) <= 64


@given(st.lists(st.text(max_size=80), min_size=1, max_size=5))
def test_truncated_bounds_are_valid(values: list[str]) -> None:
    column = zones_of(pa.table({"c": pa.array(values)})).columns[0]
    low, high = column.min[0].as_py(), column.max[0].as_py()
    assert all(low.encode() <= value.encode() for value in values)
    assert high is None or all(value.encode() <= high.encode() for value in values)


def test_layout_of_the_buffer() -> None:
    data, _ = build(pa.table({"a": [1, 2], "b": [1.5, math.nan], "c": ["x", None], "d": [[1], [2]]}))
    table = pa.ipc.open_file(data).read_all()
    assert table.schema.metadata == {b"version": b"1"}
    int64 = pa.int64()
    assert table.schema.remove_metadata() == pa.schema(
        [
            ("num_rows", int64),
            ("0", pa.struct([("null_count", int64), ("min_value", int64), ("max_value", int64)])),
            (
                "1",
                pa.struct(
                    [
                        ("null_count", int64),
                        ("min_value", pa.float64()),
                        ("max_value", pa.float64()),
                        ("nan_count", int64),
                    ]
                ),
            ),
            ("2", pa.struct([("null_count", int64), ("min_value", pa.string()), ("max_value", pa.string())])),
            ("3", pa.struct([("null_count", int64)])),
        ]
    )
    assert table.to_pylist() == [
        {
            "num_rows": 2,
            "0": {"null_count": 0, "min_value": 1, "max_value": 2},
            "1": {"null_count": 0, "min_value": 1.5, "max_value": 1.5, "nan_count": 1},
            "2": {"null_count": 1, "min_value": "x", "max_value": "x"},
            "3": {"null_count": 0},
        }
    ]
    assert b"ZSTD" in data or len(data) < 4000


def test_statistics_of_zero_rows() -> None:
    data, schema = build(pa.table({"a": pa.array([], pa.int32()), "b": pa.array([], pa.string())}))
    stats = read(data, schema, 0)
    assert stats.num_zones == 0 and stats.fold().num_zones == 0


# ------------------------------------------------------------------------------------------------------------- folding


@pytest.mark.parametrize("kind", ORDERED_TYPES, ids=str)
def test_fold_returns_the_bounds_of_the_file(kind: pa.DataType) -> None:
    array = random_values(kind, 3 * ZONE, 0.3, 11)
    array = pa.concat_arrays([array, pa.nulls(ZONE, kind)])  # a zone without values must not widen the bounds
    folded = zones_of(pa.table({"c": array})).fold()
    assert folded.zone_rows.tolist() == [4 * ZONE]
    column = folded.columns[0]
    values = [v for v in array.to_pylist() if v is not None]
    numbers = [v for v in values if v == v]
    assert column.null_count.tolist() == [4 * ZONE - len(values)]
    assert column.min.to_pylist() == [min(numbers)] and column.max.to_pylist() == [max(numbers)]
    assert column.min.type == kind


def test_fold_of_nulls_and_of_unknown_bounds() -> None:
    table = pa.table(
        {
            "n": pa.nulls(2 * ZONE, pa.int8()),
            "s": pa.array(["a"] * ZONE + ["\U0010ffff" * 20] * ZONE),
            "l": pa.nulls(2 * ZONE, pa.list_(pa.int8())),
        }
    )
    folded = zones_of(table).fold()
    assert (folded.columns[0].min.to_pylist(), folded.columns[0].max.to_pylist()) == ([-128], [127])
    assert (folded.columns[1].min.to_pylist(), folded.columns[1].max.to_pylist()) == (["a"], [None])
    assert folded.columns[2].min is None and folded.columns[2].null_count.tolist() == [2 * ZONE]


# --------------------------------------------------------------------------------------------------- untrusted content

SCHEMA = Schema.from_arrow(pa.schema([("i", pa.int32()), ("f", pa.float64()), ("s", pa.string())]))


def honest() -> dict[str, Any]:
    int32 = pa.int32()
    return {
        "num_rows": pa.array([10, 5]),
        "0": {
            "null_count": pa.array([0, 1]),
            "min_value": pa.array([1, 2], int32),
            "max_value": pa.array([3, 4], int32),
        },
        "1": {
            "null_count": pa.array([0, 0]),
            "min_value": pa.array([1.0, 2.0]),
            "max_value": pa.array([3.0, 4.0]),
            "nan_count": pa.array([0, 2]),
        },
        "2": {
            "null_count": pa.array([0, 5]),
            "min_value": pa.array(["a", None]),
            "max_value": pa.array([None, None], pa.string()),
        },
    }


def to_ipc(
    columns: dict[str, Any], metadata: dict[str, str] | None = None, batches: int = 1, compression: str | None = "zstd"
) -> bytes:
    arrays = [
        pa.StructArray.from_arrays(list(value.values()), list(value)) if isinstance(value, dict) else value
        for value in columns.values()
    ]
    schema = pa.schema(
        [(name, array.type) for name, array in zip(columns, arrays)],
        metadata={"version": "1"} if metadata is None else metadata,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for _ in range(batches):
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def changed(name: str, child: str | None, value: Any) -> dict[str, Any]:
    columns = honest()
    if child is None:
        columns[name] = value
    else:
        columns[name][child] = value
    return columns


def without(name: str, child: str | None = None) -> dict[str, Any]:
    columns = honest()
    del (columns if child is None else columns[name])[child or name]
    return columns


def test_valid_statistics_are_read() -> None:
    stats = read(to_ipc(honest()), SCHEMA, 15)
    assert sorted(stats.columns) == [0, 1, 2]
    assert read(to_ipc(honest(), compression=None), SCHEMA, 15).columns[0].max.to_pylist() == [3, 4]


LIES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "not Arrow": lambda: b"LANC" * 100,
    "cut": lambda: to_ipc(honest())[:300],
    "magic only": lambda: b"ARROW1\0\0",
    "rows do not sum": lambda: to_ipc(changed("num_rows", None, pa.array([10, 6]))),
    "rows wrap around": lambda: to_ipc(changed("num_rows", None, pa.array([2**63 - 1, 2**63 - 1]))),
    "a zone without rows": lambda: to_ipc(changed("num_rows", None, pa.array([15, 0]))),
    "a negative zone": lambda: to_ipc(changed("num_rows", None, pa.array([20, -5]))),
    "rows are null": lambda: to_ipc(changed("num_rows", None, pa.array([15, None]))),
    "rows are int32": lambda: to_ipc(changed("num_rows", None, pa.array([10, 5], pa.int32()))),
    "no rows": lambda: to_ipc(without("num_rows")),
    "negative nulls": lambda: to_ipc(changed("0", "null_count", pa.array([-1, 0]))),
    "too many nulls": lambda: to_ipc(changed("0", "null_count", pa.array([0, 6]))),
    "null counts are null": lambda: to_ipc(changed("0", "null_count", pa.array([0, None]))),
    "null counts are floats": lambda: to_ipc(changed("0", "null_count", pa.array([0.0, 1.0]))),
    "no null count": lambda: to_ipc(without("0", "null_count")),
    "too many NaN": lambda: to_ipc(changed("1", "nan_count", pa.array([0, 6]))),
    "another type": lambda: to_ipc(changed("0", "min_value", pa.array([1, 2], pa.int64()))),
    "a null bound": lambda: to_ipc(changed("0", "min_value", pa.array([1, None], pa.int32()))),
    "crossed": lambda: to_ipc(changed("0", "min_value", pa.array([1, 9], pa.int32()))),
    "crossed strings": lambda: to_ipc(changed("2", "max_value", pa.array(["Z", None]))),
    "a bound is NaN": lambda: to_ipc(changed("1", "max_value", pa.array([3.0, math.nan]))),
    "not a struct": lambda: to_ipc(changed("0", None, pa.array([1, 2]))),
    "a null struct": lambda: to_ipc(
        changed("0", None, pa.array([None, {"null_count": 0, "min_value": 1, "max_value": 2}]))
    ),
    "a field twice": lambda: to_ipc({**honest(), "00": honest()["0"]}),
    "no batch": lambda: to_ipc(honest(), batches=0),
    "invalid UTF-8": lambda: to_ipc(
        changed("2", "min_value", pa.array([b"\xff", None], pa.binary()).view(pa.string())), compression=None
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_malformed_statistics_are_ignored(name: str) -> None:
    with pytest.warns(StatisticsWarning):
        assert parse_statistics(LIES[name](), SCHEMA, 15) is None


def test_unknown_content_is_skipped() -> None:
    columns = {**honest(), "99": honest()["0"], "remark": pa.array(["x", "y"])}
    columns["0"]["histogram"] = pa.array([1, 2])
    assert sorted(read(to_ipc(columns), SCHEMA, 15).columns) == [0, 1, 2]
    assert read(to_ipc(without("1", "nan_count")), SCHEMA, 15).columns[1].max is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse_statistics(to_ipc(honest(), {"version": "2"}), SCHEMA, 15) is None


def test_decompression_bomb_is_rejected() -> None:
    zeros = pa.array(np.zeros(4_000_000, np.int64))
    data = to_ipc({"num_rows": zeros, "0": {"null_count": zeros, "min_value": zeros.cast(pa.int32())}})
    assert len(data) < 64 << 10
    before = pa.total_allocated_bytes()
    with pytest.warns(StatisticsWarning, match="declared"):
        assert parse_statistics(data, SCHEMA, 15) is None
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_impossible_declared_size_is_rejected() -> None:
    plain = to_ipc(honest())
    frame = plain.index(b"\x28\xb5\x2f\xfd") - 8
    data = plain[:frame] + struct.pack("<q", 1 << 40) + plain[frame + 8 :]
    with pytest.warns(StatisticsWarning):
        assert parse_statistics(data, SCHEMA, 15) is None


@pytest.mark.parametrize("kind", [0, 2, 3, 4, 5, 99])
def test_a_message_of_another_kind_in_place_of_the_schema_is_ignored(kind: int) -> None:
    data = bytearray(to_ipc(honest()))
    start = 16  # of the flatbuffer, after the magic and the prefix of the message
    table = start + struct.unpack_from("<I", data, start)[0]
    vtable = table - struct.unpack_from("<i", data, table)[0]
    position = table + struct.unpack_from("<H", data, vtable + 6)[0]
    assert data[position] == 1
    data[position] = kind
    with pytest.warns(StatisticsWarning):
        assert parse_statistics(data, SCHEMA, 15) is None


def test_random_damage_never_raises(scale: int) -> None:
    data = bytearray(to_ipc(honest()))
    rng = np.random.default_rng(17)
    outcomes = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StatisticsWarning)
        for _ in range(300 * scale):
            damaged = data.copy()
            for position in rng.integers(0, len(data), rng.integers(1, 4)).tolist():
                damaged[position] = int(rng.integers(0, 256))
            outcomes.add(parse_statistics(damaged, SCHEMA, 15) is None)
    assert outcomes == {True, False}


def test_dates_read_back() -> None:
    days = [datetime.date(2024, 1, 2), None, datetime.date(2020, 5, 6)]
    column = zones_of(pa.table({"d": pa.array(days)})).columns[0]
    assert (column.min.to_pylist(), column.max.to_pylist()) == ([days[2]], [days[0]])


# ------------------------------------------------------------------------------------------------------------ in a file


def test_statistics_in_a_data_file(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array(range(20_000)), "s": pa.array([f"k{i:06}" for i in range(20_000)])})
    store = MemoryStore.private()
    schema = Schema.from_arrow(table.schema)
    with FileWriter(store.open_writer("f"), schema, zone_rows=4096) as writer:
        for batch in table.to_batches(max_chunksize=3000):
            writer.write(batch)
    data = bytes(store.read_all("f"))
    meta = open_data_file(store, "f")
    assert meta.schema_metadata[STATISTICS_KEY] == b"1" and meta.statistics_index == 1
    where = meta.global_buffers[1]
    assert where.start % 64 == 0
    stats = read(data[where.start : where.end], meta.schema, 20_000)
    assert stats.zone_rows.tolist() == [4096] * 4 + [3616]
    assert stats.columns[0].min.to_pylist() == [0, 4096, 8192, 12288, 16384]
    assert stats.columns[1].max[-1].as_py() == "k019999"
    path = tmp_path / "f.lance"
    path.write_bytes(data)
    assert PylanceReader(str(path)).read_all().to_table().equals(table)


def test_small_files_have_no_statistics_and_they_can_be_disabled() -> None:
    for rows, wanted in ((100, True), (20_000, False)):
        store = MemoryStore.private()
        table = pa.table({"a": pa.array(range(rows))})
        with FileWriter(store.open_writer("f"), Schema.from_arrow(table.schema), statistics=wanted) as writer:
            writer.write(table.to_batches()[0])
        meta = open_data_file(store, "f")
        assert meta.statistics_index is None and len(meta.global_buffers) == 1
