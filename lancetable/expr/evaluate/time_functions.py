"""Functions that create and convert dates and timestamps. `now()` is evaluated once, when a query is planned."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.evaluate.casts import cast_values
from lancetable.expr.evaluate.function_kernels import KERNELS, by_row
from lancetable.expr.evaluate.operators import EvaluationError, Values
from lancetable.expr.syntax.ast import Expr, Literal
from lancetable.expr.typing import build
from lancetable.expr.typing.signatures import Binder, as_int64, build_call, check_arity, expect_kind
from lancetable.expr.typing.type_families import kind_of

__all__ = ["CLOCK", "FUNCTIONS", "fixed_clock"]

CLOCK = ("now", "current_timestamp", "current_date", "today")
"""Functions that depend on the current time. Expressions that use them are not cached."""

_UNITS = {"seconds": "s", "millis": "ms", "micros": "us", "nanos": "ns"}


_clock_value: ContextVar[datetime.datetime | None] = ContextVar("clock_value", default=None)


@contextmanager
def fixed_clock() -> Iterator[None]:
    """Fix the current time in a `with` block, so that all calls, rows and batches of a query use one value."""
    token = _clock_value.set(datetime.datetime.now(datetime.timezone.utc))
    try:
        yield
    finally:
        _clock_value.reset(token)


def _utc_now() -> datetime.datetime:
    return _clock_value.get() or datetime.datetime.now(datetime.timezone.utc)


def _now(args: Sequence[Expr]) -> Expr:
    """Return the time of planning in UTC."""
    check_arity("now", args, 0)
    return Literal(pa.scalar(_utc_now().replace(tzinfo=None), pa.timestamp("us")).cast(pa.timestamp("ns")), typed=True)


def _current_date(args: Sequence[Expr]) -> Expr:
    check_arity("current_date", args, 0)
    return Literal(pa.scalar(_utc_now().date(), pa.date32()), typed=True)


def _to_timestamp(unit: str) -> Binder:
    name = f"to_timestamp_{unit}"

    def bind(args: Sequence[Expr]) -> Expr:
        check_arity(name, args, 1)
        value = expect_kind(name, args[0], "int", "string", "date", "timestamp")
        return build_call(name, [value], pa.timestamp(_UNITS[unit]))

    return bind


def _make_date(args: Sequence[Expr]) -> Expr:
    check_arity("make_date", args, 3)
    return build_call("make_date", [as_int64("make_date", arg) for arg in args], pa.date32())


def _to_unixtime(args: Sequence[Expr]) -> Expr:
    check_arity("to_unixtime", args, 1)
    value = expect_kind("to_unixtime", args[0], "date", "timestamp", "string")
    return build_call("to_unixtime", [value], pa.int64())


def _from_unixtime(args: Sequence[Expr]) -> Expr:
    check_arity("from_unixtime", args, 1)
    return build_call("from_unixtime", [as_int64("from_unixtime", args[0])], pa.timestamp("s"))


def _nvl2(args: Sequence[Expr]) -> Expr:
    check_arity("nvl2", args, 3)
    return build.case([build.is_null(args[0])], [args[2]], args[1])


def _timestamps(args: list[Values], target: pa.DataType) -> Values:
    return cast_values(args[0], target)


def _dates(args: list[Values], target: pa.DataType) -> Values:
    def make_date(year: int, month: int, day: int) -> datetime.date:
        try:
            return datetime.date(year, month, day)
        except (ValueError, OverflowError) as error:
            raise EvaluationError(f"make_date({year}, {month}, {day}) is not a valid date: {error}") from error

    return by_row(args, target, make_date)


def _seconds(args: list[Values], target: pa.DataType) -> Values:
    values = args[0]
    if kind_of(values.type) == "string":
        values = cast_values(values, pa.timestamp("ns"))
    if kind_of(values.type) == "date":
        values = cast_values(values, pa.timestamp("ms"))
    return pc.cast(
        pc.floor_temporal(pc.cast(values, pa.timestamp("ns"), safe=False), unit="second"), pa.timestamp("s"), safe=False
    ).cast(target)


KERNELS.update({f"to_timestamp_{unit}": _timestamps for unit in _UNITS})
KERNELS.update({"make_date": _dates, "to_unixtime": _seconds, "from_unixtime": _timestamps})
FUNCTIONS: dict[str, Binder] = {
    "now": _now,
    "current_date": _current_date,
    "today": _current_date,
    **{f"to_timestamp_{unit}": _to_timestamp(unit) for unit in _UNITS},
    "make_date": _make_date,
    "to_unixtime": _to_unixtime,
    "from_unixtime": _from_unixtime,
    "nvl2": _nvl2,
}
