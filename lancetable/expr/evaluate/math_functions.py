"""Mathematical functions: roots, logarithms, trigonometry and integer functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.evaluate.function_kernels import KERNELS, by_row
from lancetable.expr.evaluate.operators import EvaluationError, Values, aligned, compare
from lancetable.expr.syntax.ast import BOOLEAN, Expr, Literal
from lancetable.expr.typing import build
from lancetable.expr.typing.build import Refused
from lancetable.expr.typing.signatures import Binder, as_int64, build_call, check_arity, expect_kind

__all__ = ["FUNCTIONS"]

_WIDE = (pa.float32(), pa.float64())


def _as_float(name: str, arg: Expr, *, double: bool = False) -> Expr:
    """Cast a number to float64, except for float32 unless `double`."""
    value = expect_kind(name, arg, "int", "float", "decimal")
    if value.data_type in _WIDE and not (double and value.data_type == pa.float32()):
        return value
    return build.implicit_cast(value, pa.float64())


def _of_one(name: str) -> Binder:
    def bind(args: Sequence[Expr]) -> Expr:
        check_arity(name, args, 1)
        value = _as_float(name, args[0])
        return build_call(name, [value], value.data_type)

    return bind


def _of_two(name: str) -> Binder:
    def bind(args: Sequence[Expr]) -> Expr:
        check_arity(name, args, 2)
        values = [_as_float(name, arg, double=True) for arg in args]
        return build_call(name, values, pa.float64())

    return bind


def _log(args: Sequence[Expr]) -> Expr:
    check_arity("log", args, 1, 2)
    if len(args) == 1:
        value = _as_float("log", args[0])
        return build_call("log", [Literal(pa.scalar(10.0, value.data_type)), value], value.data_type)
    value = _as_float("log", args[1])
    base = build.implicit_cast(expect_kind("log", args[0], "int", "float", "decimal"), value.data_type)
    return build_call("log", [base, value], value.data_type)


def _pi(args: Sequence[Expr]) -> Expr:
    check_arity("pi", args, 0)
    return Literal(pa.scalar(math.pi), typed=True)


def _trunc(args: Sequence[Expr]) -> Expr:
    check_arity("trunc", args, 1, 2)
    value = _as_float("trunc", args[0])
    places = as_int64("trunc", args[1]) if len(args) == 2 else Literal(pa.scalar(0, pa.int64()))
    if not isinstance(places, Literal) or not places.value.is_valid:
        raise Refused("trunc() expects a constant number of decimal places")
    return build_call("trunc", [value, places], value.data_type)


def _nanvl(args: Sequence[Expr]) -> Expr:
    check_arity("nanvl", args, 2)
    single = all(arg.data_type == pa.float32() for arg in args)
    values = [_as_float("nanvl", arg, double=not single) for arg in args]
    return build_call("nanvl", values, values[0].data_type)


def _is_zero(args: Sequence[Expr]) -> Expr:
    check_arity("iszero", args, 1)
    return build_call("iszero", [_as_float("iszero", args[0])], BOOLEAN)


def _of_integers(name: str, count: int) -> Binder:
    def bind(args: Sequence[Expr]) -> Expr:
        check_arity(name, args, count)
        return build_call(name, [as_int64(name, arg) for arg in args], pa.int64())

    return bind


# --- kernels ---------------------------------------------------------------------------------------------------------


def _arrow(function: Callable[[Values], Values]) -> Callable[[list[Values], pa.DataType], Values]:
    return lambda args, target: function(args[0])


def _numpy(
    function: Callable[..., np.ndarray[tuple[int, ...], np.dtype[np.float64]]],
) -> Callable[[list[Values], pa.DataType], Values]:
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


def _factorial(number: int) -> int:
    if number < 0 or number > 20:
        raise EvaluationError(f"factorial({number}) is undefined or exceeds 64 bits; use an argument from 0 to 20")
    return math.factorial(number)


def _by_row(function: Callable[..., int]) -> Callable[[list[Values], pa.DataType], Values]:
    return lambda args, target: by_row(args, target, function)


_ONE: dict[str, Callable[[list[Values], pa.DataType], Values]] = {
    "sqrt": _arrow(pc.sqrt),
    "cbrt": _numpy(np.cbrt),
    "exp": _arrow(pc.exp),
    "ln": _arrow(pc.ln),
    "log2": _arrow(pc.log2),
    "log10": _arrow(pc.log10),
    "sin": _arrow(pc.sin),
    "cos": _arrow(pc.cos),
    "tan": _arrow(pc.tan),
    "cot": _numpy(lambda values: 1 / np.tan(values)),
    "asin": _arrow(pc.asin),
    "acos": _arrow(pc.acos),
    "atan": _arrow(pc.atan),
    "sinh": _numpy(np.sinh),
    "cosh": _numpy(np.cosh),
    "tanh": _numpy(np.tanh),
    "asinh": _numpy(np.arcsinh),
    "acosh": _numpy(np.arccosh),
    "atanh": _numpy(np.arctanh),
    "degrees": _numpy(lambda values: values * values.dtype.type(180 / math.pi)),
    "radians": _numpy(np.radians),
    "signum": _numpy(lambda values: np.where(np.isnan(values), values, np.sign(values) + 0.0)),
}
KERNELS.update(_ONE)
KERNELS.update(
    {
        "power": lambda args, target: pc.power(*args),
        "atan2": _numpy(np.arctan2),
        "log": lambda args, target: pc.divide(pc.ln(args[1]), pc.ln(args[0])),
        "trunc": _truncated,
        "nanvl": _nan_value,
        "iszero": lambda args, target: compare("=", args[0], pa.scalar(0.0, args[0].type)),
        "gcd": _by_row(math.gcd),
        "lcm": _by_row(math.lcm),
        "factorial": _by_row(_factorial),
    }
)
FUNCTIONS: dict[str, Binder] = {
    **{name: _of_one(name) for name in _ONE},
    "power": _of_two("power"),
    "pow": _of_two("power"),
    "atan2": _of_two("atan2"),
    "log": _log,
    "pi": _pi,
    "trunc": _trunc,
    "nanvl": _nanvl,
    "iszero": _is_zero,
    "gcd": _of_integers("gcd", 2),
    "lcm": _of_integers("lcm", 2),
    "factorial": _of_integers("factorial", 1),
}
