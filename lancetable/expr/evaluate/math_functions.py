"""Mathematical functions: rounding, roots, logarithms, trigonometry and integer functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.arrow_types import array_of_numbers, family_of, numbers_of
from lancetable.expr.evaluate.casts import cast_values
from lancetable.expr.evaluate.operators import EvaluationError, Values, aligned, compare, is_constant, whole
from lancetable.expr.evaluate.sql_function import (
    FLOAT,
    FLOAT64,
    FLOAT_OR_DECIMAL,
    INT64,
    NUMBER,
    Kernel,
    SqlFunction,
    arrow,
    by_row,
    cast_parameter,
)


def _absolute(args: list[Values], target: pa.DataType) -> Values:
    (value,) = args
    if target == pa.float16():
        return pc.cast(pc.abs(pc.cast(value, pa.float32())), target)
    return pc.abs_checked(value) if family_of(target) == "int" else pc.abs(value)


def rounded(args: list[Values], target: pa.DataType) -> Values:
    """Round numbers to a constant number of decimal places, halves away from zero."""
    value, places = args
    if not is_constant(places):
        raise EvaluationError("round() expects a constant number of decimal places")
    if not places.is_valid:
        return pc.if_else(pc.is_valid(value), pa.scalar(None, target), pa.scalar(None, target))
    if family_of(target) == "decimal":
        # Widen first, because the kernel has no room for the digit that rounding can add: 99.9 -> 100.
        value = pc.cast(value, pa.decimal256(76, value.type.scale))
    elif places.as_py() == 0 and not is_constant(value):
        return _rounded_to_whole(whole(value))
    return cast_values(pc.round(value, ndigits=places.as_py(), round_mode="half_towards_infinity"), target)


def _rounded_to_whole(values: pa.Array[Any]) -> pa.Array[Any]:
    """Round floats to integers, halves away from zero; several times as fast as Arrow's kernel."""
    numbers = numbers_of(values)
    with np.errstate(invalid="ignore"):  # infinity - infinity is invalid; infinities remain unchanged
        result = np.trunc(numbers)
        result += np.copysign(np.abs(numbers - result) >= 0.5, numbers)
    return array_of_numbers(result, values)


def _numpy(function: Callable[..., np.ndarray[tuple[int, ...], np.dtype[np.float64]]]) -> Kernel:
    """Return a kernel that applies a ufunc to the valid rows."""

    def compute(args: list[Values], target: pa.DataType) -> Values:
        arrays = aligned(*args)
        missing = np.zeros(len(arrays[0]), np.bool_)
        for array in arrays:
            missing |= array.is_null().to_numpy(zero_copy_only=False)
        values = [array.fill_null(pa.scalar(1, array.type)).to_numpy(zero_copy_only=False) for array in arrays]
        with np.errstate(all="ignore"):
            return pa.array(function(*values), target, mask=missing, from_pandas=False)

    return compute


def _truncated(args: list[Values], target: pa.DataType) -> Values:
    value, places = args
    zero = pa.scalar(0.0, target)
    # -0.0 becomes 0.0.
    return pc.if_else(pc.equal(value, zero), zero, pc.round(value, ndigits=places.as_py(), round_mode="towards_zero"))


def _nan_value(args: list[Values], target: pa.DataType) -> Values:
    value, other = aligned(*args)
    return pc.if_else(pc.is_nan(value), other, value)


def _is_nan(value: Values) -> Values:
    return pc.is_nan(pc.cast(value, pa.float32()) if value.type == pa.float16() else value)


def _factorial(number: int) -> int:
    if number < 0 or number > 20:
        raise EvaluationError(f"factorial({number}) is undefined or exceeds 64 bits; use an argument from 0 to 20")
    return math.factorial(number)


_FLOAT_OR_INT = cast_parameter(pa.float64(), "float", "int", keep_family="float")
_OF_ONE_FLOAT: dict[str, Kernel] = {
    **{
        name: arrow(getattr(pc, name))
        for name in ("sqrt", "exp", "ln", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan")
    },
    **{name: _numpy(getattr(np, name)) for name in ("cbrt", "sinh", "cosh", "tanh", "radians")},
    "cot": _numpy(lambda values: 1 / np.tan(values)),
    "asinh": _numpy(np.arcsinh),
    "acosh": _numpy(np.arccosh),
    "atanh": _numpy(np.arctanh),
    "degrees": _numpy(lambda values: values * values.dtype.type(180 / math.pi)),
    "signum": _numpy(lambda values: np.where(np.isnan(values), values, np.sign(values) + 0.0)),
}
FUNCTIONS: dict[str, SqlFunction] = {
    **{name: SqlFunction(kernel, (FLOAT,)) for name, kernel in _OF_ONE_FLOAT.items()},
    "abs": SqlFunction(_absolute, (NUMBER,)),
    "ceil": SqlFunction(arrow(pc.ceil), (FLOAT_OR_DECIMAL,)),
    "floor": SqlFunction(arrow(pc.floor), (FLOAT_OR_DECIMAL,)),
    "round": SqlFunction(rounded, (FLOAT_OR_DECIMAL, INT64), num_optional=1, default=0),
    "trunc": SqlFunction(_truncated, (FLOAT, INT64), num_optional=1, default=0),
    "isnan": SqlFunction(arrow(_is_nan), (_FLOAT_OR_INT,), pa.bool_()),
    "iszero": SqlFunction(arrow(lambda value: compare("=", value, pa.scalar(0.0, value.type))), (FLOAT,), pa.bool_()),
    "nanvl": SqlFunction(_nan_value, (FLOAT, FLOAT)),
    "power": SqlFunction(arrow(pc.power), (FLOAT64, FLOAT64)),
    "atan2": SqlFunction(_numpy(np.arctan2), (FLOAT64, FLOAT64)),
    "log": SqlFunction(arrow(lambda base, value: pc.divide(pc.ln(value), pc.ln(base))), (NUMBER, FLOAT)),
    "gcd": SqlFunction(by_row(math.gcd), (INT64, INT64)),
    "lcm": SqlFunction(by_row(math.lcm), (INT64, INT64)),
    "factorial": SqlFunction(by_row(_factorial), (INT64,)),
}
