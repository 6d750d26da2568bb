"""Declarations of SQL functions: parameters, type of the result and kernel.

`typing/functions.py` casts the arguments of a call to the types of the parameters. The kernel then computes the result
from Arrow values. Some of Arrow's kernels require a constant pattern or length; if such an argument varies, the result
is computed row by row in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.arrow_types import NUMBERS, family_of
from lancetable.expr.evaluate.operators import Values, aligned, is_constant

Kernel = Callable[[list[Values], pa.DataType], Values]
"""A function from the values of the arguments and the type of the result to the result."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function.

    Arguments of the type families in `families` and nulls are accepted, or all arguments if `families` is empty.
    `cast_to` returns the type to which an argument is cast, from its type and the type of the first argument.
    """

    families: tuple[str, ...]
    cast_to: Callable[[pa.DataType, pa.DataType], pa.DataType] = lambda data_type, first: data_type
    description: str = ""

    @property
    def expected(self) -> str:
        """The accepted types, as shown in error messages."""
        return self.description or " or ".join(self.families)


def cast_parameter(
    target: pa.DataType,
    *families: str,
    keep_types: tuple[pa.DataType, ...] = (),
    keep_family: str | None = None,
    description: str = "",
) -> Parameter:
    """Return a parameter whose arguments are cast to `target`, except for some types and one type family."""

    def cast_to(data_type: pa.DataType, first: pa.DataType) -> pa.DataType:
        return data_type if data_type in keep_types or family_of(data_type) == keep_family else target

    return Parameter(families, cast_to, description)


_WIDE_FLOATS = (pa.float32(), pa.float64())
NUMBER = Parameter(NUMBERS)
FLOAT = cast_parameter(pa.float64(), *NUMBERS, keep_types=_WIDE_FLOATS)
FLOAT64 = cast_parameter(pa.float64(), *NUMBERS)
FLOAT_OR_DECIMAL = cast_parameter(pa.float64(), *NUMBERS, keep_types=_WIDE_FLOATS, keep_family="decimal")
INT64 = cast_parameter(pa.int64(), "int")
STRING = cast_parameter(pa.string(), "string", keep_family="string")
STRING32 = cast_parameter(pa.string(), "string")
ANY_AS_STRING = cast_parameter(pa.string())
LIST = Parameter(("list",))


def same_type(first: pa.DataType) -> pa.DataType:
    """Return the type of the first argument, for functions whose result has this type."""
    return first


def length_type(first: pa.DataType) -> pa.DataType:
    """Return the type of the length of a string."""
    return pa.int64() if first == pa.large_string() else pa.int32()


@dataclass(frozen=True, slots=True)
class SqlFunction:
    """A SQL function.

    `result` is the type of the result, or a function that returns it for the type of the first argument. The last
    `num_optional` arguments can be omitted; `default` replaces an omitted last argument. With `variadic`, the last
    parameter can be repeated.
    """

    kernel: Kernel
    parameters: tuple[Parameter, ...] = ()
    result: pa.DataType | Callable[[pa.DataType], pa.DataType] = same_type
    num_optional: int = 0
    default: Any = None
    variadic: bool = False


def constants_of(args: list[Values]) -> list[Any] | None:
    """Return the Python values of the arguments after the first, or None unless all are constant and not null."""
    if all(is_constant(arg) and arg.is_valid for arg in args[1:]):
        return [arg.as_py() for arg in args[1:]]
    return None


def arrow(kernel: Callable[..., Values]) -> Kernel:
    """Return a kernel that calls one of Arrow's kernels and casts its result."""

    def compute(args: list[Values], target: pa.DataType) -> Values:
        result = kernel(*args)
        return result if result.type == target else pc.cast(result, target)

    return compute


def by_row(function: Callable[..., Any]) -> Kernel:
    """Return a kernel that calls a Python function for each row; the result is null if an argument is null."""

    def compute(args: list[Values], target: pa.DataType) -> Values:
        rows = zip(*(array.to_pylist() for array in aligned(*args)))
        return pa.array([None if None in row else function(*row) for row in rows], target)

    return compute


def by_distinct_value(function: Callable[..., Any]) -> Kernel:
    """Return a kernel that calls a Python function once per distinct first argument if the others are constant."""

    def compute(args: list[Values], target: pa.DataType) -> Values:
        constants = constants_of(args)
        if constants is None or is_constant(args[0]):
            return by_row(function)(args, target)
        (array,) = aligned(args[0])
        encoded = array.dictionary_encode()
        results = [function(value, *constants) for value in encoded.dictionary.to_pylist()]
        return pa.array(results, target).take(encoded.indices)

    return compute


def with_constants(kernel: Callable[..., Values], function: Callable[..., Any]) -> Kernel:
    """Return a kernel that calls `kernel` if all arguments but the first are constant, else `function` for each row."""

    def compute(args: list[Values], target: pa.DataType) -> Values:
        constants = constants_of(args)
        return by_row(function)(args, target) if constants is None else kernel(args[0], *constants)

    return compute
