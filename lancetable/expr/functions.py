"""The functions SQL text may call: one binder each, which checks the operands and makes the node.

What they compute stands in `function_kernels.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lancetable.expr import (
    build,
    json_functions,
    kinds,
    list_functions,
    math_functions,
    text_functions,
    time_functions,
)
from lancetable.expr.ast import BOOLEAN, Expr, Literal
from lancetable.expr.build import Refused, plain
from lancetable.expr.function_kernels import DATE_PARTS, TRUNCATIONS, arrow_type, unit_name
from lancetable.expr.kinds import kind_of
from lancetable.expr.operands import Binder, arity, as_count, as_text, constant_text, make, moment, want


def call(name: str, args: Sequence[Expr]) -> Expr:
    """The call of a function by its name, in any case. Raises Refused, saying what exists, for an unknown name."""
    binder = FUNCTIONS.get(name.lower())
    if binder is None:
        raise Refused(f"no function {name!r}; there are {', '.join(sorted(FUNCTIONS))}")
    return binder(args)


def _unified(name: str, low: int = 1, high: int = 1 << 30, kernel: str | None = None) -> Binder:
    def bind(args: Sequence[Expr]) -> Expr:
        arity(name, args, low, high)
        operands = build.unify(args, f"{name}()")
        if len(operands) == 1 or kind_of(operands[0].data_type) == "null":
            return operands[0]
        return make(kernel or name, operands, operands[0].data_type)

    return bind


def _nullif(args: Sequence[Expr]) -> Expr:
    arity("nullif", args, 2)
    return build.case([build.compare("=", args[0], args[1])], [Literal(pa.scalar(None, pa.null()))], args[0])


def _abs(args: Sequence[Expr]) -> Expr:
    arity("abs", args, 1)
    value = want("abs", args[0], "int", "float", "decimal")
    return make("abs", [value], value.data_type)


def _round(args: Sequence[Expr]) -> Expr:
    arity("round", args, 1, 2)
    value = want("round", args[0], "int", "float", "decimal")
    if kind_of(value.data_type) == "decimal":
        return _round_decimal(value, args)
    if value.data_type not in (pa.float32(), pa.float64()):
        value = build.implied_cast(value, pa.float64())
    places = as_count("round", args[1]) if len(args) == 2 else Literal(pa.scalar(0, pa.int64()))
    return make("round", [value, places], value.data_type)


def _round_decimal(value: Expr, args: Sequence[Expr]) -> Expr:
    """The result has as many digits behind the point as asked for; they must be a constant."""
    places = as_count("round", args[1]) if len(args) == 2 else Literal(pa.scalar(0, pa.int64()))
    if not isinstance(places, Literal) or not places.value.is_valid:
        raise Refused("round() of a decimal wants a constant number of places")
    scale = min(max(places.value.as_py(), 0), value.data_type.scale)
    return make("round", [value, places], kinds.decimal_type(value.data_type.precision, scale))


def _whole(name: str) -> Binder:
    def bind(args: Sequence[Expr]) -> Expr:
        arity(name, args, 1)
        value = want(name, args[0], "int", "float", "decimal")
        if kind_of(value.data_type) != "decimal" and value.data_type not in (pa.float32(), pa.float64()):
            value = build.implied_cast(value, pa.float64())
        return make(name, [value], value.data_type)

    return bind


def _isnan(args: Sequence[Expr]) -> Expr:
    arity("isnan", args, 1)
    value = want("isnan", args[0], "float", "int")
    if kind_of(value.data_type) != "float":
        value = build.implied_cast(value, pa.float64())
    return make("isnan", [value], BOOLEAN)


def _text_to_text(name: str) -> Binder:
    def bind(args: Sequence[Expr]) -> Expr:
        arity(name, args, 1)
        value = as_text(name, args[0])
        return make(name, [value], value.data_type)

    return bind


def _length(args: Sequence[Expr]) -> Expr:
    arity("length", args, 1)
    value = as_text("length", args[0])
    return make("length", [value], pa.int64() if value.data_type == pa.large_string() else pa.int32())


def _concat(args: Sequence[Expr]) -> Expr:
    arity("concat", args, 1, 1 << 30)
    parts = [build.implied_cast(build.as_text(arg), pa.string()) for arg in args]
    return make("concat", parts, pa.string())


def _text_test(name: str) -> Binder:
    def bind(args: Sequence[Expr]) -> Expr:
        arity(name, args, 2)
        value = as_text(name, args[0])
        return make(name, [value, build.implied_cast(as_text(name, args[1]), value.data_type)], BOOLEAN)

    return bind


def _replace(args: Sequence[Expr]) -> Expr:
    arity("replace", args, 3)
    value, old, new = (as_text("replace", arg) for arg in args)
    return make("replace", [value, old, new], value.data_type)


def _side(name: str) -> Binder:
    def bind(args: Sequence[Expr]) -> Expr:
        arity(name, args, 2)
        value = as_text(name, args[0])
        return make(name, [value, as_count(name, args[1])], value.data_type)

    return bind


def _btrim(args: Sequence[Expr]) -> Expr:
    arity("btrim", args, 1, 2)
    operands = [as_text("btrim", arg) for arg in args]
    return make("btrim", operands, operands[0].data_type)


def _substr(args: Sequence[Expr]) -> Expr:
    arity("substr", args, 2, 3)
    value = as_text("substr", args[0])
    return make("substr", [value, *(as_count("substr", arg) for arg in args[1:])], value.data_type)


def _regexp_like(args: Sequence[Expr]) -> Expr:
    arity("regexp_like", args, 2, 3)
    return make("regexp_like", [as_text("regexp_like", arg) for arg in args], BOOLEAN)


def _date_part(args: Sequence[Expr]) -> Expr:
    arity("date_part", args, 2)
    unit = unit_name(constant_text("date_part", args[0]))
    if unit not in DATE_PARTS:
        raise Refused(f"date_part() does not know {unit!r}; there are {', '.join(DATE_PARTS)}")
    value = moment("date_part", args[1], "date", "timestamp", "time")
    target = {"epoch": pa.float64(), "nanosecond": pa.int64()}.get(unit, pa.int32())
    if kind_of(value.data_type) == "time" and unit not in DATE_PARTS[-7:]:
        raise Refused(f"date_part() finds no {unit} in {value}, which is {value.data_type}")
    return make("date_part", [args[0], value], target)


def _date_trunc(args: Sequence[Expr]) -> Expr:
    arity("date_trunc", args, 2)
    unit = unit_name(constant_text("date_trunc", args[0]))
    if unit not in TRUNCATIONS:
        raise Refused(f"date_trunc() does not know {unit!r}; there are {', '.join(TRUNCATIONS)}")
    value = moment("date_trunc", args[1], "date", "timestamp")
    if kind_of(value.data_type) == "date":
        value = build.implied_cast(value, pa.timestamp("ns"))
    return make("date_trunc", [args[0], value], value.data_type)


def _to_timestamp(args: Sequence[Expr]) -> Expr:
    arity("to_timestamp", args, 1)
    value = want("to_timestamp", args[0], "int", "float", "string", "date", "timestamp")
    return make("to_timestamp", [value], pa.timestamp("ns"))


def _to_date(args: Sequence[Expr]) -> Expr:
    arity("to_date", args, 1)
    return make("to_date", [want("to_date", args[0], "int", "string", "date", "timestamp")], pa.date32())


def _array_has(args: Sequence[Expr]) -> Expr:
    arity("array_has", args, 2)
    lists = want("array_has", args[0], "list")
    if kind_of(lists.data_type) == "null":
        return build.NULL_BOOLEAN
    items = kinds.plain_type(lists.data_type.value_type)
    wanted = args[1]
    common = build.common_type(items, plain(wanted).data_type)
    if common is None:
        raise Refused(f"{lists} holds {items}, which does not compare with {wanted}")
    if common != items:
        lists = build.implied_cast(lists, pa.list_(common))
    return make("array_has", [lists, build.implied_cast(plain(wanted), common)], BOOLEAN)


def _array_length(args: Sequence[Expr]) -> Expr:
    arity("array_length", args, 1)
    return make("array_length", [want("array_length", args[0], "list")], pa.uint64())


def _get_field(args: Sequence[Expr]) -> Expr:
    arity("get_field", args, 2)
    return build.field_access(args[0], constant_text("get_field", args[1]))


def _arrow_cast(args: Sequence[Expr]) -> Expr:
    arity("arrow_cast", args, 2)
    name = constant_text("arrow_cast", args[1])
    target = arrow_type(name)
    if target is None:
        raise Refused(f"arrow_cast() does not know the type {name!r}")
    return build.checked_cast(args[0], target)


FUNCTIONS: dict[str, Binder] = {
    "coalesce": _unified("coalesce"),
    "ifnull": _unified("ifnull", 2, 2, kernel="coalesce"),
    "nvl": _unified("nvl", 2, 2, kernel="coalesce"),
    "nullif": _nullif,
    "greatest": _unified("greatest"),
    "least": _unified("least"),
    "abs": _abs,
    "round": _round,
    "ceil": _whole("ceil"),
    "floor": _whole("floor"),
    "isnan": _isnan,
    "lower": _text_to_text("lower"),
    "upper": _text_to_text("upper"),
    "length": _length,
    "concat": _concat,
    "starts_with": _text_test("starts_with"),
    "ends_with": _text_test("ends_with"),
    "contains": _text_test("contains"),
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
    **text_functions.FUNCTIONS,
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
