"""JSON columns: text for users, JSONB bytes in files.

    value     header u32                          then
    [a, b]    0x8000_0000 | count                 entries of a and b, payloads of a and b
    {k: v}    0x4000_0000 | count                 entries of the keys, entries of the values, keys, values
    scalar    0x2000_0000 (top level only)        one entry, one payload

    entry u32    kind << 28 | bytes of the payload      kind 0 null  1 text  2 number  3 false  4 true  5 container
    number       a tag, then big-endian bytes           0x00 zero  0x10 NaN  0x20 inf  0x30 -inf
                                                        0x40 signed  0x50 unsigned (1, 2, 4 or 8)  0x60 float (8)

All integers are big-endian. Keys are in the order of their UTF-8 bytes and occur once. Seen in files of pylance 14.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, Final, NoReturn

import pyarrow as pa

from lancetable.errors import CorruptFileError, SchemaMismatchError

__all__ = [
    "Item",
    "close_item",
    "elements",
    "from_text",
    "is_array",
    "is_scalar",
    "members",
    "open_value",
    "scalar",
    "text_of",
    "to_text",
]

Item = tuple[int, bytes]
"""(kind, payload) of a value inside of a container, or of a whole value."""

_ARRAY: Final = 0x8000_0000
_OBJECT: Final = 0x4000_0000
_SCALAR: Final = 0x2000_0000
_KINDS: Final = 0xE000_0000
_COUNT: Final = 0x0FFF_FFFF
_MAX_DEPTH: Final = 128

_NULL, _TEXT, _NUMBER, _FALSE, _TRUE, _CONTAINER = range(6)
_LITERALS: Final = {_NULL: "null", _FALSE: "false", _TRUE: "true"}
_SPECIAL_NUMBERS: Final = {0x00: "0", 0x10: "null", 0x20: "null", 0x30: "null"}
_U32: Final = struct.Struct(">I")
_DOUBLE: Final = struct.Struct(">d")
_INTEGER_BYTES: Final = (1, 2, 4, 8)


def to_text(array: pa.Array) -> pa.Array:
    """JSONB values (large binary) as JSON text, compact; nulls stay null. Raises CorruptFileError."""
    known: dict[bytes | None, str | None] = {None: None}
    texts = []
    for value in array.to_pylist():
        text = known.get(value)
        if text is None and value is not None:
            text = known[value] = _Reader(value).text()
        texts.append(text)
    return pa.array(texts, pa.string())


def from_text(array: pa.Array, name: str) -> pa.Array:
    """JSON text as JSONB values (large binary). Raises SchemaMismatchError, naming the column, for what is no JSON."""
    known: dict[str | None, bytes | None] = {None: None}
    values = []
    for text in array.to_pylist():
        value = known.get(text)
        if value is None and text is not None:
            value = known[text] = _encoded(text, name)
        values.append(value)
    return pa.array(values, pa.large_binary())


def open_value(value: bytes) -> Item:
    """A whole value as an item. Raises CorruptFileError, as all functions below."""
    reader = _Reader(value)
    if reader.u32(0) & _KINDS != _SCALAR:
        return _CONTAINER, value
    return reader.u32(4) >> 28, value[8:]


def close_item(item: Item) -> bytes:
    """An item as a whole value, which `open_value` opens."""
    kind, payload = item
    return payload if kind == _CONTAINER else _U32.pack(_SCALAR) + _U32.pack(kind << 28 | len(payload)) + payload


def is_array(item: Item) -> bool:
    """Whether it has elements."""
    return item[0] == _CONTAINER and _Reader(item[1]).u32(0) & _KINDS == _ARRAY


def elements(item: Item) -> list[Item]:
    """The elements of an array; none of anything else."""
    return _Reader(item[1]).entries()[0] if is_array(item) else []


def members(item: Item) -> dict[str, Item]:
    """The values of an object by key; none of anything else."""
    if item[0] != _CONTAINER or is_array(item):
        return {}
    entries, count = _Reader(item[1]).entries()
    return {payload.decode("utf-8", "replace"): value for (_, payload), value in zip(entries, entries[count:])}


def text_of(item: Item) -> str:
    """JSON text of an item, compact."""
    return _Reader(close_item(item)).text()


def is_scalar(item: Item) -> bool:
    """Whether it is neither an array nor an object."""
    return item[0] != _CONTAINER


def scalar(item: Item) -> str | int | float | bool | None:
    """A value that is no container, in Python."""
    kind, payload = item
    if kind == _TEXT:
        return payload.decode("utf-8", "replace")
    if kind != _NUMBER:
        return {_NULL: None, _FALSE: False, _TRUE: True}.get(kind)
    text = _Reader(payload).number()
    return int(text) if text.lstrip("-").isdigit() else float("nan") if text == "null" else float(text)


class _Reader:
    """One JSONB value; every offset is checked before it is followed."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def text(self) -> str:
        header = self.u32(0)
        if header & _KINDS != _SCALAR:
            return self._container(0, len(self.data), 0)
        return self._value(self.u32(4), 8, len(self.data), 0)

    def entries(self) -> tuple[list[Item], int]:
        """The items of a container, keys of an object before its values, and how many elements or keys there are."""
        places, _, count = self._places(0, len(self.data))
        return [(entry >> 28, self.data[start:end]) for entry, start, end in places], count

    def _places(self, at: int, end: int) -> tuple[list[tuple[int, int, int]], int, int]:
        """(entry, first byte, end) of each item of a container, which kind it is, and its count."""
        header = self.u32(at)
        count, kind = header & _COUNT, header & _KINDS
        if kind not in (_ARRAY, _OBJECT):
            self._fail("unknown container", at)
        num_entries = count if kind == _ARRAY else 2 * count
        position = at + 4 + 4 * num_entries
        if position > end:
            self._fail(f"{num_entries} entries do not fit", at)
        places = []
        for number in range(num_entries):
            entry = self.u32(at + 4 + 4 * number)
            size = entry & _COUNT
            if position + size > end:
                self._fail("a value does not fit", position)
            places.append((entry, position, position + size))
            position += size
        return places, kind, count

    def _container(self, at: int, end: int, depth: int) -> str:
        if depth > _MAX_DEPTH:
            self._fail("nested too deeply", at)
        places, kind, count = self._places(at, end)
        parts = [self._value(entry, start, stop, depth) for entry, start, stop in places]
        if kind == _ARRAY:
            return f"[{','.join(parts)}]"
        return "{" + ",".join(f"{key}:{value}" for key, value in zip(parts, parts[count:])) + "}"

    def _value(self, entry: int, at: int, end: int, depth: int) -> str:
        kind = entry >> 28
        literal = _LITERALS.get(kind)
        if literal is not None:
            return literal
        if kind == _TEXT:
            try:
                return json.dumps(self.data[at:end].decode(), ensure_ascii=False)
            except UnicodeDecodeError:
                self._fail("text that is no UTF-8", at)
        if kind == _NUMBER:
            return self._number(at, end)
        if kind != _CONTAINER:
            self._fail(f"unknown kind of value {kind}", at)
        return self._container(at, end, depth + 1)

    def number(self) -> str:
        """The text of a payload that is a number."""
        return self._number(0, len(self.data))

    def _number(self, at: int, end: int) -> str:
        payload = self.data[at + 1 : end]
        tag = self.data[at] if at < end else -1
        if not payload and tag in _SPECIAL_NUMBERS:
            return _SPECIAL_NUMBERS[tag]
        if tag in (0x40, 0x50) and len(payload) in _INTEGER_BYTES:
            return str(int.from_bytes(payload, "big", signed=tag == 0x40))
        if tag != 0x60 or len(payload) != 8:
            self._fail("unknown kind of number", at)
        return _float_text(_DOUBLE.unpack(payload)[0])

    def u32(self, at: int) -> int:
        if at + 4 > len(self.data):
            self._fail("cut short", at)
        return int(_U32.unpack_from(self.data, at)[0])

    def _fail(self, what: str, at: int) -> NoReturn:
        raise CorruptFileError(f"malformed JSONB value: {what} (at byte {at})", offset=at)


def _float_text(value: float) -> str:
    """The shortest text that reads back, with an exponent from 1e-6 down and from 1e16 up."""
    if not math.isfinite(value):
        return "null"
    text = repr(value)
    mantissa, minus, exponent = text.partition("e-")
    if not minus:
        return text
    if int(exponent) == 5:
        digits = mantissa.lstrip("-").replace(".", "")
        return ("-" if value < 0 else "") + "0.0000" + digits
    return f"{mantissa}e-{int(exponent)}"


def _encoded(text: str, name: str) -> bytes:
    try:
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_refuse_constant)
        kind, payload = _payload(value)
    except (ValueError, RecursionError) as error:
        raise SchemaMismatchError(f"column {name!r}: not JSON: {error}", column=name) from None
    if kind == _CONTAINER:
        return payload
    return _U32.pack(_SCALAR) + _U32.pack(kind << 28 | len(payload)) + payload


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an attribute occurs twice")
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _payload(value: Any) -> tuple[int, bytes]:
    """(kind, payload) of a value as an entry of a container has them."""
    if value is None:
        return _NULL, b""
    if isinstance(value, bool):
        return (_TRUE if value else _FALSE), b""
    if isinstance(value, str):
        return _TEXT, _sized(value.encode())
    if isinstance(value, (int, float)):
        return _NUMBER, _number(value)
    if isinstance(value, list):
        return _CONTAINER, _joined(_ARRAY | len(value), [_payload(item) for item in value])
    items = sorted((key.encode(), item) for key, item in value.items())
    parts = [(_TEXT, _sized(key)) for key, _ in items] + [_payload(item) for _, item in items]
    return _CONTAINER, _joined(_OBJECT | len(items), parts)


def _joined(header: int, parts: list[tuple[int, bytes]]) -> bytes:
    entries = [_U32.pack(kind << 28 | len(payload)) for kind, payload in parts]
    return _sized(b"".join([_U32.pack(header), *entries, *[payload for _, payload in parts]]))


def _sized(payload: bytes) -> bytes:
    if len(payload) > _COUNT:
        raise ValueError(f"a value of {len(payload)} bytes is too large")
    return payload


def _number(value: int | float) -> bytes:
    if value == 0 and isinstance(value, int):
        return b"\x00"
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        signed = value < 0
        for size in _INTEGER_BYTES:
            if value.bit_length() + signed <= 8 * size or value == -(1 << (8 * size - 1)):
                return (b"\x40" if signed else b"\x50") + value.to_bytes(size, "big", signed=signed)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if math.isinf(number):
        return b"\x20" if number > 0 else b"\x30"
    return b"\x60" + _DOUBLE.pack(number)
