"""SQL functions for JSON columns. Expressions process JSON values as JSONB bytes.

    json_get(j, 'a')  json_get(j, '0')            a member or element, as JSONB
    json_get_string | int | float | bool(j, 'a')  the same, converted; strings are parsed as numbers and booleans
    json_extract(j, '$.a.b[0]')                   the matches of a path as a JSON string, a list if there are several
    json_exists(j, path)                          true if the path has matches
    json_array_length(j, path)                    the length of the first match
    json_array_contains(j, path, value)           true if an array that matches the path contains the value

    path     $ .name ."a name" ["a name"] [0] [last] [last - 1] [0 to 2] [0, 2] [*] .*        the $ is optional

The functions are computed row by row in Python.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from lancetable.expr.evaluate.operators import EvaluationError
from lancetable.expr.evaluate.sql_function import ANY_AS_STRING, Parameter, SqlFunction, by_row, cast_parameter
from lancetable.format import jsonb
from lancetable.format.jsonb import Item

_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INFINITE: Final = re.compile(r"[+-]?(inf|infinity)|nan", re.IGNORECASE)
_BOOLEANS: Final = {"true": True, "yes": True, "false": False, "no": False}
_I64: Final = 1 << 63


# Paths


_Range = tuple[int, int]  # the first and the last index; negative indexes count from the end
_Step = str | tuple[_Range, ...] | None  # a name; elements; None: all elements of an array or all values of an object

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


def _range(part: str, path: str) -> _Range:
    first, to, last = part.partition(" to ")
    return _position(first, path), _position(last if to else first, path)


def _position(text: str, path: str) -> int:
    match = _INDEX.fullmatch(text.strip())
    if match is None:
        raise EvaluationError(f"invalid index {text.strip()!r} in the JSON path {path!r}; use a number or 'last - n'")
    return -1 - int(match["back"] or 0) if match["number"] is None else int(match["number"])


def find(value: bytes, path: str) -> list[Item]:
    """Return the items of a JSONB value that match a path, in order."""
    items = [jsonb.open_value(value)]
    for kind, step in parse_path(path):
        items = [match for item in items for match in _apply_step(item, kind, step)]
    return items


def _apply_step(item: Item, kind: str, step: _Step) -> list[Item]:
    if kind == "name":
        assert isinstance(step, str)
        member = jsonb.members(item).get(step)
        return [] if member is None else [member]
    if kind == "values":
        return list(jsonb.members(item).values())
    if kind == "elements":
        return jsonb.elements(item) if jsonb.is_array(item) else [item]
    assert isinstance(step, tuple)
    elements = jsonb.elements(item)
    selected: list[Item] = []
    for first, last in step:
        start, end = (index + len(elements) if index < 0 else index for index in (first, last))
        selected += elements[max(start, 0) : max(end + 1, 0)]
    return selected


# Values


def get(value: bytes, key: str) -> Item | None:
    """Return a member of an object, or the element of an array with the index `key`; None if it does not exist."""
    item = jsonb.open_value(value)
    if jsonb.is_array(item):
        elements = jsonb.elements(item)
        return elements[int(key)] if key.isascii() and key.isdigit() and int(key) < len(elements) else None
    return jsonb.members(item).get(key)


def _scalar(value: bytes, key: str, target: str) -> Any:
    """Return the value of a member as a Python object; None if it is null or does not exist."""
    item = get(value, key)
    if item is None:
        return None
    if not jsonb.is_scalar(item):
        raise EvaluationError(f"json_get_{target}() cannot convert {jsonb.text_of(item)[:40]}, the value of {key!r}")
    return jsonb.scalar(item)


def _string(value: bytes, key: str) -> str | None:
    scalar = _scalar(value, key, "string")
    if scalar is None or isinstance(scalar, str):
        return scalar
    item = get(value, key)
    assert item is not None
    return jsonb.text_of(item)


def _number(scalar: Any, target: str, key: str) -> int | float:
    if isinstance(scalar, (int, float)):
        return scalar
    if isinstance(scalar, str) and (_NUMBER.fullmatch(scalar) or _INFINITE.fullmatch(scalar)):
        return int(scalar) if scalar.lstrip("+-").isdigit() else float(scalar)
    raise EvaluationError(f"json_get_{target}() cannot convert {scalar!r}, the value of {key!r}, to a number")


def _integer(value: bytes, key: str) -> int | None:
    scalar = _scalar(value, key, "int")
    if scalar is None:
        return None
    number = _number(scalar, "int", key)
    if isinstance(number, float) and math.isfinite(number):
        number = int(math.copysign(math.floor(abs(number) + 0.5), number))  # round half away from zero
    if isinstance(number, float) or not -_I64 <= number < _I64:
        raise EvaluationError(f"json_get_int(): {scalar!r}, the value of {key!r}, is out of the range of int64")
    return int(number)


def _float(value: bytes, key: str) -> float | None:
    scalar = _scalar(value, key, "float")
    return None if scalar is None else float(_number(scalar, "float", key))


def _boolean(value: bytes, key: str) -> bool | None:
    scalar = _scalar(value, key, "bool")
    if scalar is None or isinstance(scalar, bool):
        return scalar
    boolean = _BOOLEANS.get(scalar.lower()) if isinstance(scalar, str) else None
    if boolean is None:
        raise EvaluationError(f"json_get_bool() cannot convert {scalar!r}, the value of {key!r}, to a boolean")
    return boolean


def _get(value: bytes, key: str) -> bytes | None:
    item = get(value, key)
    return None if item is None else jsonb.close_item(item)


def _extract(value: bytes, path: str) -> str | None:
    items = [jsonb.text_of(item) for item in find(value, path)]
    return None if not items else items[0] if len(items) == 1 else f"[{','.join(items)}]"


def _array_length(value: bytes, path: str) -> int | None:
    items = find(value, path)
    return len(jsonb.elements(items[0])) if items else None


def _array_contains(value: bytes, path: str, member: str) -> bool:
    spellings = (member, f'"{member}"')
    return any(jsonb.text_of(element) in spellings for item in find(value, path) for element in jsonb.elements(item))


def _function(
    function: Callable[..., Any], result: pa.DataType, others: tuple[Parameter, ...] = (ANY_AS_STRING,)
) -> SqlFunction:
    return SqlFunction(by_row(function), (_DOCUMENT, *others), result)


_DOCUMENT: Final = cast_parameter(pa.large_binary(), "binary", description="a JSON column")
FUNCTIONS: dict[str, SqlFunction] = {
    "json_get": _function(_get, pa.large_binary()),
    "json_get_string": _function(_string, pa.string()),
    "json_get_int": _function(_integer, pa.int64()),
    "json_get_float": _function(_float, pa.float64()),
    "json_get_bool": _function(_boolean, pa.bool_()),
    "json_extract": _function(_extract, pa.string()),
    "json_exists": _function(lambda value, path: bool(find(value, path)), pa.bool_()),
    "json_array_length": _function(_array_length, pa.int64()),
    "json_array_contains": _function(_array_contains, pa.bool_(), (ANY_AS_STRING, ANY_AS_STRING)),
}
