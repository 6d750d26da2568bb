"""SQL functions: one binder each, which checks the arguments and creates the node.

The implementations are in `function_kernels.py` and in the modules `*_functions.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lancetable.expr.evaluate import json_functions, list_functions, math_functions, string_functions, time_functions
from lancetable.expr.evaluate.function_kernels import DATE_PARTS, TRUNCATIONS, arrow_type, unit_name
from lancetable.expr.syntax.ast import BOOLEAN, Expr, Literal
from lancetable.expr.typing import build, type_families
from lancetable.expr.typing.build import Refused, unwrap
from lancetable.expr.typing.signatures import (
    Binder,
    as_datetime,
    as_int64,
    as_string,
    build_call,
    check_arity,
    expect_kind,
    string_constant,
)
from lancetable.expr.typing.type_families import kind_of


def call(name: str, args: Sequence[Expr]) -> Expr:
    """Return the call of a function. The name is not case-sensitive; Refused lists all functions if it is unknown."""
    binder = FUNCTIONS.get(name.lower())
    if binder is None:
        raise Refused(f"unknown function {name!r}; available functions are {', '.join(sorted(FUNCTIONS))}")
    return binder(args)


def _of_common_type(name: str, low: int = 1, high: int = 1 << 30, kernel: str | None = None) -> Binder:
    def bind(args: Sequence[Expr]) -> Expr:
        check_arity(name, args, low, high)
        operands = build.coerce_all(args, f"{name}()")
        if len(operands) == 1 or kind_of(operands[0].data_type) == "null":
            return operands[0]
        return build_call(kernel or name, operands, operands[0].data_type)

    return bind


def _nullif(args: Sequence[Expr]) -> Expr:
    check_arity("nullif", args, 2)
    return build.case([build.compare("=", args[0], args[1])], [Literal(pa.scalar(None, pa.null()))], args[0])


def _abs(args: Sequence[Expr]) -> Expr:
    check_arity("abs", args, 1)
    value = expect_kind("abs", args[0], "int", "float", "decimal")
    return build_call("abs", [value], value.data_type)


def _round(args: Sequence[Expr]) -> Expr:
    check_arity("round", args, 1, 2)
    value = expect_kind("round", args[0], "int", "float", "decimal")
    if kind_of(value.data_type) == "decimal":
        return _round_decimal(value, args)
    if value.data_type not in (pa.float32(), pa.float64()):
        value = build.implicit_cast(value, pa.float64())
    places = as_int64("round", args[1]) if len(args) == 2 else Literal(pa.scalar(0, pa.int64()))
    return build_call("round", [value, places], value.data_type)


def _round_decimal(value: Expr, args: Sequence[Expr]) -> Expr:
    """Round a decimal. The type of the result depends on the number of places, which must be a constant."""
    places = as_int64("round", args[1]) if len(args) == 2 else Literal(pa.scalar(0, pa.int64()))
    if not isinstance(places, Literal) or not places.value.is_valid:
        raise Refused("round() of a decimal expects a constant number of decimal places")
    scale = min(max(places.value.as_py(), 0), value.data_type.scale)
    return build_call("round", [value, places], type_families.decimal_type(value.data_type.precision, scale))


def _to_whole_number(name: str) -> Binder:
    def bind(args: Sequence[Expr]) -> Expr:
        check_arity(name, args, 1)
        value = expect_kind(name, args[0], "int", "float", "decimal")
        if kind_of(value.data_type) != "decimal" and value.data_type not in (pa.float32(), pa.float64()):
            value = build.implicit_cast(value, pa.float64())
        return build_call(name, [value], value.data_type)

    return bind


def _isnan(args: Sequence[Expr]) -> Expr:
    check_arity("isnan", args, 1)
    value = expect_kind("isnan", args[0], "float", "int")
    if kind_of(value.data_type) != "float":
        value = build.implicit_cast(value, pa.float64())
    return build_call("isnan", [value], BOOLEAN)


def _string_to_string(name: str) -> Binder:
    def bind(args: Sequence[Expr]) -> Expr:
        check_arity(name, args, 1)
        value = as_string(name, args[0])
        return build_call(name, [value], value.data_type)

    return bind


def _length(args: Sequence[Expr]) -> Expr:
    check_arity("length", args, 1)
    value = as_string("length", args[0])
    return build_call("length", [value], pa.int64() if value.data_type == pa.large_string() else pa.int32())


def _concat(args: Sequence[Expr]) -> Expr:
    check_arity("concat", args, 1, 1 << 30)
    parts = [build.implicit_cast(build.as_string(arg), pa.string()) for arg in args]
    return build_call("concat", parts, pa.string())


def _string_test(name: str) -> Binder:
    def bind(args: Sequence[Expr]) -> Expr:
        check_arity(name, args, 2)
        value = as_string(name, args[0])
        return build_call(name, [value, build.implicit_cast(as_string(name, args[1]), value.data_type)], BOOLEAN)

    return bind


def _replace(args: Sequence[Expr]) -> Expr:
    check_arity("replace", args, 3)
    value, old, new = (as_string("replace", arg) for arg in args)
    return build_call("replace", [value, old, new], value.data_type)


def _side(name: str) -> Binder:
    def bind(args: Sequence[Expr]) -> Expr:
        check_arity(name, args, 2)
        value = as_string(name, args[0])
        return build_call(name, [value, as_int64(name, args[1])], value.data_type)

    return bind


def _btrim(args: Sequence[Expr]) -> Expr:
    check_arity("btrim", args, 1, 2)
    operands = [as_string("btrim", arg) for arg in args]
    return build_call("btrim", operands, operands[0].data_type)


def _substr(args: Sequence[Expr]) -> Expr:
    check_arity("substr", args, 2, 3)
    value = as_string("substr", args[0])
    return build_call("substr", [value, *(as_int64("substr", arg) for arg in args[1:])], value.data_type)


def _regexp_like(args: Sequence[Expr]) -> Expr:
    check_arity("regexp_like", args, 2, 3)
    return build_call("regexp_like", [as_string("regexp_like", arg) for arg in args], BOOLEAN)


def _date_part(args: Sequence[Expr]) -> Expr:
    check_arity("date_part", args, 2)
    unit = unit_name(string_constant("date_part", args[0]))
    if unit not in DATE_PARTS:
        raise Refused(f"date_part() does not support {unit!r}; supported parts are {', '.join(DATE_PARTS)}")
    value = as_datetime("date_part", args[1], "date", "timestamp", "time")
    target = {"epoch": pa.float64(), "nanosecond": pa.int64()}.get(unit, pa.int32())
    if kind_of(value.data_type) == "time" and unit not in DATE_PARTS[-7:]:
        raise Refused(f"date_part() cannot extract {unit} from {value} of type {value.data_type}")
    return build_call("date_part", [args[0], value], target)


def _date_trunc(args: Sequence[Expr]) -> Expr:
    check_arity("date_trunc", args, 2)
    unit = unit_name(string_constant("date_trunc", args[0]))
    if unit not in TRUNCATIONS:
        raise Refused(f"date_trunc() does not support {unit!r}; supported units are {', '.join(TRUNCATIONS)}")
    value = as_datetime("date_trunc", args[1], "date", "timestamp")
    if kind_of(value.data_type) == "date":
        value = build.implicit_cast(value, pa.timestamp("ns"))
    return build_call("date_trunc", [args[0], value], value.data_type)


def _to_timestamp(args: Sequence[Expr]) -> Expr:
    check_arity("to_timestamp", args, 1)
    value = expect_kind("to_timestamp", args[0], "int", "float", "string", "date", "timestamp")
    return build_call("to_timestamp", [value], pa.timestamp("ns"))


def _to_date(args: Sequence[Expr]) -> Expr:
    check_arity("to_date", args, 1)
    return build_call("to_date", [expect_kind("to_date", args[0], "int", "string", "date", "timestamp")], pa.date32())


def _array_has(args: Sequence[Expr]) -> Expr:
    check_arity("array_has", args, 2)
    lists = expect_kind("array_has", args[0], "list")
    if kind_of(lists.data_type) == "null":
        return build.NULL_BOOLEAN
    items = type_families.unwrapped_type(lists.data_type.value_type)
    item = args[1]
    common = build.common_supertype(items, unwrap(item).data_type)
    if common is None:
        raise Refused(f"array_has() cannot compare the elements of {lists}, of type {items}, with {item}")
    if common != items:
        lists = build.implicit_cast(lists, pa.list_(common))
    return build_call("array_has", [lists, build.implicit_cast(unwrap(item), common)], BOOLEAN)


def _array_length(args: Sequence[Expr]) -> Expr:
    check_arity("array_length", args, 1)
    return build_call("array_length", [expect_kind("array_length", args[0], "list")], pa.uint64())


def _get_field(args: Sequence[Expr]) -> Expr:
    check_arity("get_field", args, 2)
    return build.field_access(args[0], string_constant("get_field", args[1]))


def _arrow_cast(args: Sequence[Expr]) -> Expr:
    check_arity("arrow_cast", args, 2)
    name = string_constant("arrow_cast", args[1])
    target = arrow_type(name)
    if target is None:
        raise Refused(
            f"arrow_cast() does not support the type {name!r}; use a name such as 'Int32' or 'Timestamp(ns, None)'"
        )
    return build.checked_cast(args[0], target)


FUNCTIONS: dict[str, Binder] = {
    "coalesce": _of_common_type("coalesce"),
    "ifnull": _of_common_type("ifnull", 2, 2, kernel="coalesce"),
    "nvl": _of_common_type("nvl", 2, 2, kernel="coalesce"),
    "nullif": _nullif,
    "greatest": _of_common_type("greatest"),
    "least": _of_common_type("least"),
    "abs": _abs,
    "round": _round,
    "ceil": _to_whole_number("ceil"),
    "floor": _to_whole_number("floor"),
    "isnan": _isnan,
    "lower": _string_to_string("lower"),
    "upper": _string_to_string("upper"),
    "length": _length,
    "concat": _concat,
    "starts_with": _string_test("starts_with"),
    "ends_with": _string_test("ends_with"),
    "contains": _string_test("contains"),
    "replace": _replace,
    "left": _side("left"),
    "right": _side("right"),
    "btrim": _btrim,
    "trim": _btrim,
    "substr": _substr,
    "regexp_like": _regexp_like,
    "date_part": _date_part,
    "date_trunc": _date_trunc,
    "to_timestamp": _to_timestamp,
    "to_date": _to_date,
    "array_has": _array_has,
    "array_length": _array_length,
    "get_field": _get_field,
    "arrow_cast": _arrow_cast,
    **math_functions.FUNCTIONS,
    **string_functions.FUNCTIONS,
    **time_functions.FUNCTIONS,
    **list_functions.FUNCTIONS,
    **json_functions.FUNCTIONS,
}
FUNCTIONS.update(
    {
        other: FUNCTIONS[name]
        for name, others in {
            "length": ("char_length", "character_length"),
            "date_part": ("datepart",),
            "date_trunc": ("datetrunc",),
            "now": ("current_timestamp",),
            "array_has": ("array_contains", "list_has"),
            "array_length": ("list_length",),
        }.items()
        for other in others
    }
)
