"""Functions of JSON columns, which expressions see as JSONB bytes.

    json_get(j, 'a')  json_get(j, '0')            one member or element, JSONB again
    json_get_string | int | float | bool(j, 'a')  the same as a value; texts are read as numbers and booleans
    json_extract(j, '$.a.b[0]')                   JSON text of what a path finds, a list where it finds several
    json_exists | json_array_length(j, path)      whether it finds something; elements of the first that it finds
    json_array_contains(j, path, value)           whether an array that it finds holds a value

    path     $ .name ."a name" ["a name"] [0] [last] [last - 1] [0 to 2] [0, 2] [*] .*        the $ may be missing

Values are looked at row by row: there is no kernel for them.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from lancetable.expr import build
from lancetable.expr.ast import BOOLEAN, Expr
from lancetable.expr.build import Refused, plain
from lancetable.expr.function_kernels import KERNELS, by_row
from lancetable.expr.kernels import EvaluationError, Values
from lancetable.expr.kinds import kind_of
from lancetable.expr.operands import Binder, arity, make
from lancetable.format import jsonb
from lancetable.format.jsonb import Item

__all__ = ["FUNCTIONS"]

_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INFINITE: Final = re.compile(r"[+-]?(inf|infinity)|nan", re.IGNORECASE)
_BOOLEANS: Final = {"true": True, "yes": True, "false": False, "no": False}
_I64: Final = 1 << 63


# --- paths ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Position:
    """An index that counts from the first element, or from the last one."""

    number: int
    from_last: bool

    def within(self, count: int) -> int:
        return count - 1 - self.number if self.from_last else self.number


_Range = tuple[_Position, _Position]  # both included
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
    """The steps of a path as (kind, what). Raises EvaluationError for what is none."""
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
            raise EvaluationError(f"{text!r} is no JSON path that is understood, from {rest[at:]!r} on")
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


def _position(text: str, path: str) -> _Position:
    found = _INDEX.fullmatch(text.strip())
    if found is None:
        raise EvaluationError(f"{text.strip()!r} is no index of an element, in the JSON path {path!r}")
    if found["number"] is not None:
        return _Position(int(found["number"]), from_last=False)
    return _Position(int(found["back"] or 0), from_last=True)


def find(value: bytes, path: str) -> list[Item]:
    """What a path finds in a JSONB value, in order."""
    found = [jsonb.open_value(value)]
    for kind, step in parse_path(path):
        found = [each for item in found for each in _one_step(item, kind, step)]
    return found


def _one_step(item: Item, kind: str, step: _Step) -> list[Item]:
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
    chosen: list[Item] = []
    for first, last in step:
        start, end = first.within(len(elements)), last.within(len(elements)) + 1
        chosen += elements[max(start, 0) : max(end, 0)]
    return chosen


# --- values -----------------------------------------------------------------------------------------------------------


def get(value: bytes, key: str) -> Item | None:
    """The member of an object, or the element of an array whose number `key` is."""
    item = jsonb.open_value(value)
    if jsonb.is_array(item):
        elements = jsonb.elements(item)
        return elements[int(key)] if key.isascii() and key.isdigit() and int(key) < len(elements) else None
    return jsonb.members(item).get(key)


def _scalar(value: bytes, key: str, wanted: str) -> Any:
    """The value of a member in Python; None for a null."""
    item = get(value, key)
    if item is None:
        return None
    if not jsonb.is_scalar(item):
        raise EvaluationError(f"json_get_{wanted}() finds {jsonb.text_of(item)[:40]} for {key!r}, which is no {wanted}")
    return jsonb.scalar(item)


def _string(value: bytes, key: str) -> str | None:
    found = _scalar(value, key, "string")
    if found is None or isinstance(found, str):
        return found
    item = get(value, key)
    assert item is not None
    return jsonb.text_of(item)


def _number(found: Any, wanted: str, key: str) -> int | float:
    if isinstance(found, (int, float)):
        return found
    if isinstance(found, str) and (_NUMBER.fullmatch(found) or _INFINITE.fullmatch(found)):
        return int(found) if found.lstrip("+-").isdigit() else float(found)
    raise EvaluationError(f"json_get_{wanted}() cannot read {found!r}, found for {key!r}, as a number")


def _integer(value: bytes, key: str) -> int | None:
    found = _scalar(value, key, "int")
    if found is None:
        return None
    number = _number(found, "int", key)
    if isinstance(number, float) and math.isfinite(number):
        number = int(math.copysign(math.floor(abs(number) + 0.5), number))  # halves go away from zero
    if isinstance(number, float) or not -_I64 <= number < _I64:
        raise EvaluationError(f"json_get_int(): {found!r}, found for {key!r}, does not fit into 64 bits")
    return int(number)


def _float(value: bytes, key: str) -> float | None:
    found = _scalar(value, key, "float")
    return None if found is None else float(_number(found, "float", key))


def _boolean(value: bytes, key: str) -> bool | None:
    found = _scalar(value, key, "bool")
    if found is None or isinstance(found, bool):
        return found
    known = _BOOLEANS.get(found.lower()) if isinstance(found, str) else None
    if known is None:
        raise EvaluationError(f"json_get_bool() cannot read {found!r}, found for {key!r}, as a boolean")
    return known


def _get(value: bytes, key: str) -> bytes | None:
    item = get(value, key)
    return None if item is None else jsonb.close_item(item)


def _extract(value: bytes, path: str) -> str | None:
    texts = [jsonb.text_of(item) for item in find(value, path)]
    return None if not texts else texts[0] if len(texts) == 1 else f"[{','.join(texts)}]"


def _array_length(value: bytes, path: str) -> int | None:
    found = find(value, path)
    return len(jsonb.elements(found[0])) if found else None


def _array_contains(value: bytes, path: str, wanted: str) -> bool:
    texts = (wanted, f'"{wanted}"')
    return any(jsonb.text_of(each) in texts for item in find(value, path) for each in jsonb.elements(item))


# --- how they are called ----------------------------------------------------------------------------------------------


def _bind(name: str, target: pa.DataType, num_operands: int = 2) -> Binder:
    def bound(args: Sequence[Expr]) -> Expr:
        arity(name, args, num_operands)
        document = plain(args[0])
        if kind_of(document.data_type) not in ("binary", "null"):
            raise Refused(f"{name}() takes a JSON column, {document} is {document.data_type}")
        others = [build.checked_cast(plain(each), pa.string(), implied=True) for each in args[1:]]
        return make(name, [build.implied_cast(document, pa.large_binary()), *others], target)

    return bound


def _rows(function: Callable[..., Any]) -> Callable[[list[Values], pa.DataType], Values]:
    return lambda args, target: by_row(args, target, function)


_TABLE: Final[dict[str, tuple[Callable[..., Any], pa.DataType, int]]] = {
    "json_get": (_get, pa.large_binary(), 2),
    "json_get_string": (_string, pa.string(), 2),
    "json_get_int": (_integer, pa.int64(), 2),
    "json_get_float": (_float, pa.float64(), 2),
    "json_get_bool": (_boolean, BOOLEAN, 2),
    "json_extract": (_extract, pa.string(), 2),
    "json_exists": (lambda value, path: bool(find(value, path)), BOOLEAN, 2),
    "json_array_length": (_array_length, pa.int64(), 2),
    "json_array_contains": (_array_contains, BOOLEAN, 3),
}
KERNELS.update({name: _rows(function) for name, (function, _, _) in _TABLE.items()})
FUNCTIONS: dict[str, Binder] = {name: _bind(name, target, count) for name, (_, target, count) in _TABLE.items()}
