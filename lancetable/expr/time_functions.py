"""Functions that make and take apart moments. The clock is read once, when a query is planned."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr import build
from lancetable.expr.ast import Expr, Literal
from lancetable.expr.casts import cast_values
from lancetable.expr.function_kernels import KERNELS, by_row
from lancetable.expr.kernels import EvaluationError, Values
from lancetable.expr.kinds import kind_of
from lancetable.expr.operands import Binder, arity, as_count, make, want

__all__ = ["CLOCK", "FUNCTIONS", "one_moment"]

CLOCK = ("now", "current_timestamp", "current_date", "today")
"""Functions whose value is another one in the next query."""

_UNITS = {"seconds": "s", "millis": "ms", "micros": "us", "nanos": "ns"}


_moment: ContextVar[datetime.datetime | None] = ContextVar("moment", default=None)


@contextmanager
def one_moment() -> Iterator[None]:
    """Within, the clock stands still: one value for all calls, rows and batches of a query."""
    token = _moment.set(datetime.datetime.now(datetime.timezone.utc))
    try:
        yield
    finally:
        _moment.reset(token)


def _utc() -> datetime.datetime:
    return _moment.get() or datetime.datetime.now(datetime.timezone.utc)


def _now(args: Sequence[Expr]) -> Expr:
    """The time of planning, UTC."""
    arity("now", args, 0)
    return Literal(pa.scalar(_utc().replace(tzinfo=None), pa.timestamp("us")).cast(pa.timestamp("ns")), typed=True)


def _current_date(args: Sequence[Expr]) -> Expr:
    arity("current_date", args, 0)
    return Literal(pa.scalar(_utc().date(), pa.date32()), typed=True)


def _to_timestamp(unit: str) -> Binder:
    name = f"to_timestamp_{unit}"

    def bind(args: Sequence[Expr]) -> Expr:
        arity(name, args, 1)
        value = want(name, args[0], "int", "string", "date", "timestamp")
        return make(name, [value], pa.timestamp(_UNITS[unit]))

    return bind


def _make_date(args: Sequence[Expr]) -> Expr:
    arity("make_date", args, 3)
    return make("make_date", [as_count("make_date", arg) for arg in args], pa.date32())


def _to_unixtime(args: Sequence[Expr]) -> Expr:
    arity("to_unixtime", args, 1)
    value = want("to_unixtime", args[0], "date", "timestamp", "string")
    return make("to_unixtime", [value], pa.int64())


def _from_unixtime(args: Sequence[Expr]) -> Expr:
    arity("from_unixtime", args, 1)
    return make("from_unixtime", [as_count("from_unixtime", args[0])], pa.timestamp("s"))


def _nvl2(args: Sequence[Expr]) -> Expr:
    arity("nvl2", args, 3)
    known = build.is_null(args[0])
    return build.case([known], [args[2]], args[1])


def _timestamps(args: list[Values], target: pa.DataType) -> Values:
    return cast_values(args[0], target)


def _dates(args: list[Values], target: pa.DataType) -> Values:
    def made(year: int, month: int, day: int) -> datetime.date:
        try:
            return datetime.date(year, month, day)
        except (ValueError, OverflowError) as error:
            raise EvaluationError(f"make_date({year}, {month}, {day}): {error}") from error

    return by_row(args, target, made)


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
