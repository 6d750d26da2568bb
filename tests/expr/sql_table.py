"""The table of the SQL tests: five rows and one column per type."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pyarrow as pa

_D = decimal.Decimal
_UTC = datetime.timezone.utc


def _moment(year: int, month: int, day: int, *parts: int) -> datetime.datetime:
    hour, minute, second, microsecond = [*parts, 0, 0, 0, 0][:4]
    return datetime.datetime(year, month, day, hour, minute, second, microsecond)


DATA = pa.table(
    {
        "id": pa.array([1, 2, 3, 4, None], pa.int64()),
        "k": pa.array([0, 1, 2, 3, 4], pa.int64()),
        "i8": pa.array([1, 127, -128, None, 0], pa.int8()),
        "i16": pa.array([1, -300, 300, None, 7], pa.int16()),
        "i32": pa.array([5, -7, 2**31 - 1, -(2**31), None], pa.int32()),
        "u8": pa.array([0, 255, 7, None, 1], pa.uint8()),
        "u32": pa.array([0, 2**32 - 1, 7, None, 1], pa.uint32()),
        "u64": pa.array([0, 2**64 - 1, 7, None, 1], pa.uint64()),
        "f16": pa.array([np.float16(0.5), np.float16(-1), None, np.float16(2), np.float16(0)], pa.float16()),
        "f32": pa.array([0.1, float("nan"), -0.0, None, 1e30], pa.float32()),
        "f": pa.array([0.1, float("nan"), -0.0, None, 2.5], pa.float64()),
        "g": pa.array([float("inf"), 1.0, 0.0, float("nan"), -5.5], pa.float64()),
        "dec": pa.array([_D("1.25"), _D("-3.50"), None, _D("99999999.99"), _D("0.00")], pa.decimal128(10, 2)),
        "s": pa.array(["a", "abc", None, "it's 50%_x", "É\nz"], pa.string()),
        "s2": pa.array(["A", "b%", "12", "", "1.5"], pa.string()),
        "num": pa.array(["1", "2", "-3", None, "5"], pa.string()),
        "ls": pa.array(["a", "x", None, "b", ""], pa.large_string()),
        "dict": pa.array(["a", "b", None, "a", "c"], pa.string()).dictionary_encode(),
        "b": pa.array([True, False, None, True, False], pa.bool_()),
        "b2": pa.array([True, True, False, None, None], pa.bool_()),
        "d32": pa.array([0, 18262, -1, None, 18321], pa.date32()),
        "d64": pa.array([0, 18262 * 86400000, -86400000, None, 18321 * 86400000], pa.date64()),
        "ts": pa.array(
            [
                _moment(1970, 1, 1),
                _moment(2020, 1, 1, 12, 30, 15, 123456),
                None,
                _moment(2020, 2, 29),
                _moment(1960, 5, 5),
            ],
            pa.timestamp("us"),
        ),
        "tss": pa.array([0, 1577881815, None, -1, 100], pa.timestamp("s")),
        "tsn": pa.array([0, 1577881815123456789, None, -1, 100], pa.timestamp("ns")),
        "tz": pa.array([0, 1577881815123456, None, -1, 100], pa.timestamp("us", "UTC")),
        "ny": pa.array([0, 1577881815123456, None, -1, 100], pa.timestamp("us", "America/New_York")),
        "tm32": pa.array([0, 3600, None, 86399, 1], pa.time32("s")),
        "tm64": pa.array([0, 3600000001, None, 86399999999, 1], pa.time64("us")),
        "dur": pa.array([0, 5, None, -5, 86400], pa.duration("s")),
        "bin": pa.array([b"", b"a\x00", None, b"\xff", b"abc"], pa.binary()),
        "fsb": pa.array([b"ab", b"\x00\xff", None, b"zz", b"aa"], pa.binary(2)),
        "st": pa.array(
            [{"x": 1, "y": "p"}, {"x": None, "y": "q"}, None, {"x": 4, "y": None}, {"x": 5, "y": "p"}],
            pa.struct([("x", pa.int64()), ("y", pa.string())]),
        ),
        "l": pa.array([[1, 2], [], None, [3, None], [5]], pa.list_(pa.int64())),
        "lst": pa.array([["a"], ["b", "c"], None, [], [None]], pa.list_(pa.string())),
        "fsl": pa.array([[1.0, 2.0], [3.0, 4.0], None, [0.0, -1.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
        "a b": pa.array([1, 2, 3, 4, 5], pa.int64()),
        "Foo": pa.array([1, 1, 2, 2, 3], pa.int64()),
        "foo": pa.array([3, 2, 1, 0, -1], pa.int64()),
        "order": pa.array([1, 2, 3, 4, 5], pa.int64()),
    }
)
