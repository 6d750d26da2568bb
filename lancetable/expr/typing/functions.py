"""Calls of SQL functions. The arguments are checked and cast to the types of the parameters.

`evaluate/functions.py` declares the functions. `_BINDERS` contains functions with special rules.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import pyarrow as pa

from lancetable.expr.arrow_types import decimal_type, family_of, unwrapped_type
from lancetable.expr.evaluate.functions import FUNCTIONS
from lancetable.expr.evaluate.sql_function import FLOAT, FLOAT64, Parameter
from lancetable.expr.evaluate.time_functions import DATE_PARTS, TIME_PARTS, TRUNCATIONS, unit_name
from lancetable.expr.syntax.ast import Call, Expr, Literal
from lancetable.expr.typing.arrow_type_names import parse_arrow_type
from lancetable.expr.typing.coercion import checked_cast, coerce, common_supertype, implicit_cast, unwrap
from lancetable.expr.typing.comparisons import compare
from lancetable.expr.typing.constant_folding import NULL, NULL_BOOLEAN, fold_constants, number_literal
from lancetable.expr.typing.errors import AnalysisError
from lancetable.expr.typing.logic import case, is_null
from lancetable.expr.typing.nested import field_access

Binder = Callable[[str, Sequence[Expr]], Expr]
"""A function from the name and the arguments of a call to its node; raises AnalysisError if they are invalid."""

TIME_FUNCTIONS = ("now", "current_timestamp", "current_date", "today")
"""Functions that depend on the current time. Expressions that use them are not cached."""

_fixed_time: ContextVar[datetime.datetime | None] = ContextVar("fixed_time", default=None)


@contextmanager
def fixed_current_time() -> Iterator[None]:
    """Fix the current time in a `with` block, so that all calls in an expression return the same value."""
    token = _fixed_time.set(datetime.datetime.now(datetime.timezone.utc))
    try:
        yield
    finally:
        _fixed_time.reset(token)


def call(name: str, args: Sequence[Expr]) -> Expr:
    """Return the call of a function. The name is not case-sensitive.

    Raises AnalysisError if the function is unknown, with a list of all functions, or if its arguments are invalid.
    """
    if not is_function(name):
        names = sorted(known for known in {*FUNCTIONS, *_BINDERS, *ALIASES} - {"||"} if not known.startswith("_"))
        raise AnalysisError(f"unknown function {name!r}; available functions are {', '.join(names)}")
    name = ALIASES.get(name.lower(), name.lower())
    if name not in _BINDERS:
        return _call(name, _arguments(name, args))
    binder, least, most = _BINDERS[name]
    _check_arity(name, args, least, most)
    return binder(name, args)


def is_function(name: str) -> bool:
    """Return whether a function has this name. The name is not case-sensitive."""
    return any(name.lower() in names for names in (FUNCTIONS, _BINDERS, ALIASES))


def _call(name: str, args: Sequence[Expr], result: pa.DataType | None = None) -> Expr:
    declared = FUNCTIONS[name].result
    if result is None:
        result = declared(args[0].data_type) if callable(declared) else declared
    return fold_constants(Call(name, tuple(args), result))


def _check_arity(name: str, args: Sequence[Expr], low: int, high: float) -> None:
    """Raise AnalysisError unless the number of arguments is from `low` to `high`."""
    if not low <= len(args) <= high:
        expected = str(low) if low == high else f"at least {low}" if high == math.inf else f"{low} to {high}"
        plural = "" if expected in ("1", "at least 1") else "s"
        raise AnalysisError(f"{name}() takes {expected} argument{plural}, got {len(args)}")


def _arguments(name: str, args: Sequence[Expr]) -> list[Expr]:
    """Check the arguments of a function and cast them to the types of its parameters."""
    function = FUNCTIONS[name]
    parameters = list(function.parameters)
    most = math.inf if function.variadic else len(parameters)
    _check_arity(name, args, len(parameters) - function.num_optional, most)
    if function.default is not None and len(args) < len(parameters):
        args = [*args, Literal(pa.scalar(function.default))]
    parameters += parameters[-1:] * (len(args) - len(parameters))
    bound: list[Expr] = []
    for parameter, arg in zip(parameters, args):
        arg = _expect(name, parameter, arg)
        first = bound[0] if bound else arg
        bound.append(checked_cast(arg, parameter.cast_to(arg.data_type, first.data_type), implicit=True))
    return bound


def _expect(name: str, parameter: Parameter, arg: Expr) -> Expr:
    """Unwrap an argument; raise AnalysisError unless the parameter accepts its type."""
    arg = unwrap(arg)
    if parameter.families and family_of(arg.data_type) not in (*parameter.families, "null"):
        raise AnalysisError(f"{name}() expects {parameter.expected}, got {arg} of type {arg.data_type}")
    return arg


def _string_constant(name: str, arg: Expr) -> str:
    if not isinstance(arg, Literal) or arg.data_type != pa.string() or not arg.value.is_valid:
        raise AnalysisError(f"{name}() expects a string constant, got {arg}")
    return str(arg.value.as_py())


# Functions with special rules


def _utc_now() -> datetime.datetime:
    """Return the time that `fixed_current_time` fixed, or else the current time, in UTC."""
    return _fixed_time.get() or datetime.datetime.now(datetime.timezone.utc)


def _now(name: str, args: Sequence[Expr]) -> Expr:
    now = pa.scalar(_utc_now().replace(tzinfo=None), pa.timestamp("us"))
    return Literal(now.cast(pa.timestamp("ns")), typed=True)


def _of_common_type(name: str, args: Sequence[Expr]) -> Expr:
    operands = coerce(args, f"{name}()")
    if len(operands) == 1 or family_of(operands[0].data_type) == "null":
        return operands[0]
    return _call(name if name in FUNCTIONS else "coalesce", operands)  # ifnull and nvl are coalesce with two arguments


def _nanvl(name: str, args: Sequence[Expr]) -> Expr:
    parameter = FLOAT if all(arg.data_type == pa.float32() for arg in args) else FLOAT64
    values = [_expect(name, parameter, arg) for arg in args]
    return _call(name, [implicit_cast(value, parameter.cast_to(value.data_type, pa.null())) for value in values])


def _log(name: str, args: Sequence[Expr]) -> Expr:
    base, value = _arguments(name, [number_literal("10"), *args][-2:])
    return _call(name, [implicit_cast(base, value.data_type), value])


def _round(name: str, args: Sequence[Expr]) -> Expr:
    value, places = _arguments(name, args)
    if family_of(value.data_type) != "decimal":
        return _call(name, [value, places])
    # The result type depends on the number of decimal places.
    scale = min(max(_places(name, places, " of a decimal"), 0), value.data_type.scale)
    return _call(name, [value, places], decimal_type(value.data_type.precision, scale))


def _trunc(name: str, args: Sequence[Expr]) -> Expr:
    value, places = _arguments(name, args)
    _places(name, places)
    return _call(name, [value, places])


def _places(name: str, places: Expr, kind: str = "") -> int:
    if not isinstance(places, Literal) or not places.value.is_valid:
        raise AnalysisError(f"{name}(){kind} expects a constant number of decimal places")
    return int(places.value.as_py())


def _datetime_arguments(name: str, args: Sequence[Expr], units: Sequence[str], unit_word: str) -> tuple[str, Expr]:
    """Return the unit and the value of a call; strings are cast to timestamps."""
    unit = unit_name(_string_constant(name, args[0]))
    if unit not in units:
        raise AnalysisError(f"{name}() does not support {unit!r}; supported {unit_word} are {', '.join(units)}")
    value = unwrap(args[1])
    if family_of(value.data_type) in ("string", "null"):
        value = implicit_cast(value, pa.timestamp("ns"))
    return unit, _expect(name, FUNCTIONS[name].parameters[1], value)


def _date_part(name: str, args: Sequence[Expr]) -> Expr:
    unit, value = _datetime_arguments(name, args, DATE_PARTS, "parts")
    if family_of(value.data_type) == "time" and unit not in TIME_PARTS:
        raise AnalysisError(f"{name}() cannot extract {unit} from {value} of type {value.data_type}")
    result = {"epoch": pa.float64(), "nanosecond": pa.int64()}.get(unit, pa.int32())
    return _call(name, [args[0], value], result)


def _date_trunc(name: str, args: Sequence[Expr]) -> Expr:
    _, value = _datetime_arguments(name, args, TRUNCATIONS, "units")
    if family_of(value.data_type) == "date":
        value = implicit_cast(value, pa.timestamp("ns"))
    return _call(name, [args[0], value], value.data_type)


def _common_items(name: str, lists: Expr, other: Expr, item_type: pa.DataType) -> pa.DataType:
    """Return the common supertype of the elements of a list and `item_type`. `other` is shown in the error message."""
    items = unwrapped_type(lists.data_type.value_type)
    common = common_supertype(items, item_type)
    if common is None:
        raise AnalysisError(f"{name}() cannot compare the elements of {lists}, of type {items}, with {other}")
    return common


def _of_list_and_item(name: str, args: Sequence[Expr]) -> Expr:
    lists, item = _arguments(name, args)
    if family_of(lists.data_type) == "null":
        return NULL_BOOLEAN if name == "array_has" else NULL
    common = _common_items(name, lists, item, item.data_type)
    if common != unwrapped_type(lists.data_type.value_type):
        lists = implicit_cast(lists, pa.list_(common))
    return _call(name, [lists, implicit_cast(item, common)])


def _of_two_lists(name: str, args: Sequence[Expr]) -> Expr:
    left, right = _arguments(name, args)
    if "null" in (family_of(left.data_type), family_of(right.data_type)):
        raise AnalysisError(f"{name}() expects two lists, got a null")
    common = pa.list_(_common_items(name, left, right, unwrapped_type(right.data_type.value_type)))
    return _call(name, [implicit_cast(left, common), implicit_cast(right, common)])


def _arrow_cast(name: str, args: Sequence[Expr]) -> Expr:
    type_name = _string_constant(name, args[1])
    target = parse_arrow_type(type_name)
    if target is None:
        raise AnalysisError(
            f"arrow_cast() does not support the type {type_name!r}; use a name such as 'Int32' or 'Timestamp(ns, None)'"
        )
    return checked_cast(args[0], target)


def _cast_list_f16(name: str, args: Sequence[Expr]) -> Expr:
    """Return the cast of vectors of float32 to float16."""
    value = unwrap(args[0])
    data_type = value.data_type
    is_list = pa.types.is_list(data_type) or pa.types.is_fixed_size_list(data_type)
    if not is_list or data_type.value_type not in (pa.float16(), pa.float32()):
        raise AnalysisError(f"{name}() expects a list of float32 or float16, got {args[0]} of type {data_type}")
    item = data_type.value_field.with_type(pa.float16())
    size = data_type.list_size if pa.types.is_fixed_size_list(data_type) else -1
    return checked_cast(value, pa.list_(item, size))


_BINDERS: dict[str, tuple[Binder, int, float]] = {
    "now": (_now, 0, 0),
    "current_date": (lambda name, args: Literal(pa.scalar(_utc_now().date(), pa.date32()), typed=True), 0, 0),
    "pi": (lambda name, args: Literal(pa.scalar(math.pi), typed=True), 0, 0),
    "coalesce": (_of_common_type, 1, math.inf),
    "ifnull": (_of_common_type, 2, 2),
    "nvl": (_of_common_type, 2, 2),
    "greatest": (_of_common_type, 1, math.inf),
    "least": (_of_common_type, 1, math.inf),
    "nullif": (lambda name, args: case([compare("=", args[0], args[1])], [NULL], args[0]), 2, 2),
    "nvl2": (lambda name, args: case([is_null(args[0])], [args[2]], args[1]), 3, 3),
    "nanvl": (_nanvl, 2, 2),
    "log": (_log, 1, 2),
    "round": (_round, 1, 2),
    "trunc": (_trunc, 1, 2),
    "date_part": (_date_part, 2, 2),
    "date_trunc": (_date_trunc, 2, 2),
    "array_has": (_of_list_and_item, 2, 2),
    "array_position": (_of_list_and_item, 2, 2),
    "array_has_all": (_of_two_lists, 2, 2),
    "array_has_any": (_of_two_lists, 2, 2),
    "get_field": (lambda name, args: field_access(args[0], _string_constant(name, args[1])), 2, 2),
    "arrow_cast": (_arrow_cast, 2, 2),
    "_cast_list_f16": (_cast_list_f16, 1, 1),
}
"""Functions with special rules, each with the minimum and maximum number of arguments."""

ALIASES = {
    "array_contains": "array_has",
    "arrays_overlap": "array_has_any",
    "char_length": "length",
    "character_length": "length",
    "current_timestamp": "now",
    "datepart": "date_part",
    "datetrunc": "date_trunc",
    "instr": "strpos",
    "list_has": "array_has",
    "list_has_all": "array_has_all",
    "list_has_any": "array_has_any",
    "list_length": "array_length",
    "pow": "power",
    "today": "current_date",
    "trim": "btrim",
}
"""Alternative names of functions."""
