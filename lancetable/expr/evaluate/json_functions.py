"""SQL functions for JSON columns. Expressions process JSON values as JSONB bytes.

    json_get(j, 'a')  json_get(j, '0')            a member or element, as JSONB
    json_get_string | int | float | bool(j, 'a')  the same, converted; strings are parsed as numbers and booleans
    json_extract(j, '$.a.b[0]')                   the matches of a path as a JSON string, a list if there are several
    json_exists(j, path)                          true if the path has matches
    json_array_length(j, path)                    the length of the first match
    json_array_contains(j, path, value)           true if an array that matches the path contains the value

    path     $ .name ."a name" ["a name"] [0] [last] [last - 1] [0 to 2] [0, 2] [*] .*        the $ is optional

The rows of each distinct path are computed together (`json_items.py`). Values that a function converts, because they do
not have the type of its result, are converted one by one.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.expr.evaluate import json_items
from lancetable.expr.evaluate.json_items import (
    Items,
    Range,
    at_rows,
    elements,
    members_or_elements,
    open_documents,
    values_of_type,
)
from lancetable.expr.evaluate.operators import EvaluationError, Values, aligned
from lancetable.expr.evaluate.sql_function import ANY_AS_STRING, Parameter, SqlFunction, cast_parameter, constants_of
from lancetable.format import jsonb
from lancetable.format.jsonb import Item

_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INFINITE: Final = re.compile(r"[+-]?(inf|infinity)|nan", re.IGNORECASE)
_BOOLEANS: Final = {"true": True, "yes": True, "false": False, "no": False}
_I64: Final = 1 << 63


# Paths


_Step = str | tuple[Range, ...] | None  # a name; elements; None: all elements of an array or all values of an object

_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<all>[.:]\*|\[\s*\*\s*\])
    | [.:](?P<name>\w+)
    | [.:](?P<quoted>"(?:[^"\\]|\\.)*")
    | \[\s*(?P<key>"(?:[^"\\]|\\.)*")\s*\]
    | \[(?P<items>[^\]"*]+)\]
    )""",
    re.VERBOSE,
)
_INDEX: Final = re.compile(r"(?:(?P<number>[0-9]+)|(?P<last>last)(?:\s*-\s*(?P<back>[0-9]+))?)")


@functools.lru_cache(maxsize=256)
def parse_path(text: str) -> tuple[tuple[str, _Step], ...]:
    """Parse a JSON path to steps, each as (kind, argument). Raises EvaluationError if the path is invalid."""
    rest = text.strip()
    if rest.startswith("$"):
        rest = rest[1:]
    elif rest and rest[0] not in ".:[":
        rest = "." + rest
    steps: list[tuple[str, _Step]] = []
    at = 0
    while at < len(rest):
        token = _TOKEN.match(rest, at)
        if token is None:
            raise EvaluationError(f"invalid JSON path {text!r}: unexpected {rest[at:]!r}")
        if token["all"] is not None:
            steps.append(("elements" if "[" in token["all"] else "values", None))
        elif token["items"] is not None:
            steps.append(("items", tuple(_range(part, text) for part in token["items"].split(","))))
        else:
            quoted = token["quoted"] or token["key"]
            steps.append(("name", token["name"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted[1:-1])))
        at = token.end()
    return tuple(steps)


def _range(part: str, path: str) -> Range:
    first, to, last = part.partition(" to ")
    return _position(first, path), _position(last if to else first, path)


def _position(text: str, path: str) -> int:
    match = _INDEX.fullmatch(text.strip())
    if match is None:
        raise EvaluationError(f"invalid index {text.strip()!r} in the JSON path {path!r}; use a number or 'last - n'")
    return -1 - int(match["back"] or 0) if match["number"] is None else int(match["number"])


def find(items: Items, path: str) -> Items:
    """Return the items inside of others that match a path, in order."""
    for kind, step in parse_path(path):
        items = _apply_step(items, kind, step)
    return items


def _apply_step(items: Items, kind: str, step: _Step) -> Items:
    if kind == "name":
        assert isinstance(step, str)
        return json_items.members(items, step)
    if kind == "values":
        return json_items.all_members(items)
    if kind == "elements":
        return json_items.elements_or_items(items)
    assert isinstance(step, tuple)
    return json_items.elements_in(items, step)


# Values


def _scalar(item: Item, key: str, target: str) -> Any:
    """Return an item as a Python value."""
    if not jsonb.is_scalar(item):
        raise EvaluationError(f"json_get_{target}() cannot convert {jsonb.text_of(item)[:40]}, the value of {key!r}")
    return jsonb.scalar(item)


def _string(item: Item, key: str) -> str | None:
    scalar = _scalar(item, key, "string")
    return scalar if scalar is None or isinstance(scalar, str) else jsonb.text_of(item)


def _number(scalar: Any, target: str, key: str) -> int | float:
    if isinstance(scalar, (int, float)):
        return scalar
    if isinstance(scalar, str) and (_NUMBER.fullmatch(scalar) or _INFINITE.fullmatch(scalar)):
        return int(scalar) if scalar.lstrip("+-").isdigit() else float(scalar)
    raise EvaluationError(f"json_get_{target}() cannot convert {scalar!r}, the value of {key!r}, to a number")


def _integer(item: Item, key: str) -> int | None:
    scalar = _scalar(item, key, "int")
    if scalar is None:
        return None
    number = _number(scalar, "int", key)
    if isinstance(number, float) and math.isfinite(number):
        number = int(math.copysign(math.floor(abs(number) + 0.5), number))  # round half away from zero
    if isinstance(number, float) or not -_I64 <= number < _I64:
        raise EvaluationError(f"json_get_int(): {scalar!r}, the value of {key!r}, is out of the range of int64")
    return int(number)


def _float(item: Item, key: str) -> float | None:
    scalar = _scalar(item, key, "float")
    return None if scalar is None else float(_number(scalar, "float", key))


def _boolean(item: Item, key: str) -> bool | None:
    scalar = _scalar(item, key, "bool")
    if scalar is None or isinstance(scalar, bool):
        return scalar
    boolean = _BOOLEANS.get(scalar.lower()) if isinstance(scalar, str) else None
    if boolean is None:
        raise EvaluationError(f"json_get_bool() cannot convert {scalar!r}, the value of {key!r}, to a boolean")
    return boolean


# Functions


_Function = Callable[..., pa.Array]
"""A function from an array of documents and constants to an array of results; nulls are null documents."""


def _get(documents: pa.Array, key: str) -> pa.Array:
    items = members_or_elements(open_documents(documents), key)
    return at_rows(pa.array(map(jsonb.close_item, items), pa.large_binary()), items.rows, len(documents))


def _get_as(data_type: pa.DataType, convert: Callable[[Item, str], Any]) -> _Function:
    """Return the function that returns members of a type, and those of other types converted."""

    def get_as(documents: pa.Array, key: str) -> pa.Array:
        items = members_or_elements(open_documents(documents), key)
        found, values = values_of_type(items, data_type)
        others = np.setdiff1d(np.arange(len(items)), found)
        converted = pa.array([convert(items[number], key) for number in others], data_type)
        rows = items.rows[np.append(found, others)]
        return at_rows(pa.concat_arrays([values, converted]), rows, len(documents))

    return get_as


def _extract(documents: pa.Array, path: str) -> pa.Array:
    items = find(open_documents(documents), path)
    texts: dict[int, list[str]] = {}
    for row, item in zip(items.rows.tolist(), items):
        texts.setdefault(row, []).append(jsonb.text_of(item))
    joined = [parts[0] if len(parts) == 1 else f"[{','.join(parts)}]" for parts in texts.values()]
    return at_rows(pa.array(joined, pa.string()), np.array(list(texts), np.int64), len(documents))


def _exists(documents: pa.Array, path: str) -> pa.Array:
    return _is_among(documents, find(open_documents(documents), path).rows)


def _array_length(documents: pa.Array, path: str) -> pa.Array:
    items = find(open_documents(documents), path)
    rows, firsts = np.unique(items.rows, return_index=True)
    lengths = np.bincount(elements(items.select(firsts)).rows, minlength=len(documents))
    return at_rows(pa.array(lengths[rows], pa.int64()), rows, len(documents))


def _array_contains(documents: pa.Array, path: str, member: str) -> pa.Array:
    items = elements(find(open_documents(documents), path))
    spellings = (member, f'"{member}"')
    found = [row for row, item in zip(items.rows.tolist(), items) if jsonb.text_of(item) in spellings]
    return _is_among(documents, np.array(found, np.int64))


def _is_among(documents: pa.Array, rows: npt.NDArray[np.int64]) -> pa.Array:
    """Return whether each document is that of one of some rows."""
    found = np.zeros(len(documents), np.bool_)
    found[rows] = True
    return pa.array(found, mask=np.asarray(documents.is_null()))


def _function(
    function: _Function, result: pa.DataType, others: tuple[Parameter, ...] = (ANY_AS_STRING,)
) -> SqlFunction:
    def kernel(args: list[Values], target: pa.DataType) -> Values:
        documents, *arguments = aligned(*args)
        constants = constants_of(args)
        if constants is not None:
            return function(documents, *constants)
        groups: dict[tuple[str, ...], list[int]] = {}
        for row, values in enumerate(zip(*(argument.to_pylist() for argument in arguments))):
            if None not in values:
                groups.setdefault(values, []).append(row)
        results = [function(documents.take(pa.array(rows)), *values) for values, rows in groups.items()]
        rows = np.array([row for group in groups.values() for row in group], np.int64)
        return at_rows(pa.concat_arrays([pa.array([], target), *results]), rows, len(documents))

    return SqlFunction(kernel, (_DOCUMENT, *others), result)


_DOCUMENT: Final = cast_parameter(pa.large_binary(), "binary", description="a JSON column")
FUNCTIONS: dict[str, SqlFunction] = {
    "json_get": _function(_get, pa.large_binary()),
    "json_get_string": _function(_get_as(pa.string(), _string), pa.string()),
    "json_get_int": _function(_get_as(pa.int64(), _integer), pa.int64()),
    "json_get_float": _function(_get_as(pa.float64(), _float), pa.float64()),
    "json_get_bool": _function(_get_as(pa.bool_(), _boolean), pa.bool_()),
    "json_extract": _function(_extract, pa.string()),
    "json_exists": _function(_exists, pa.bool_()),
    "json_array_length": _function(_array_length, pa.int64()),
    "json_array_contains": _function(_array_contains, pa.bool_(), (ANY_AS_STRING, ANY_AS_STRING)),
}
