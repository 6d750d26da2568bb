"""JSON columns: JSON strings for users, JSONB bytes in files.

    value     header u32                          then
    [a, b]    0x8000_0000 | count                 entries of a and b, payloads of a and b
    {k: v}    0x4000_0000 | count                 entries of the keys, entries of the values, keys, values
    scalar    0x2000_0000 (top level only)        one entry, one payload

    entry u32    kind << 28 | payload bytes         kind 0 null  1 string  2 number  3 false  4 true  5 container
    number       a tag, then big-endian bytes       0x00 zero  0x10 NaN  0x20 inf  0x30 -inf
                                                    0x40 signed  0x50 unsigned (1, 2, 4 or 8)  0x60 float (8)

All integers are big-endian. Keys are sorted by their UTF-8 bytes and unique. Source: files written by pylance 14.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

import pyarrow as pa

from lancetable.errors import CorruptFileError, SchemaMismatchError

Item = tuple[int, bytes]
"""(kind, payload) of a value: an element or member of a container, or a whole value."""

ARRAY: Final = 0x8000_0000
OBJECT: Final = 0x4000_0000
SCALAR: Final = 0x2000_0000
FORMS: Final = 0xE000_0000
"""Bits of a header that contain one of the forms above."""
MAX_COUNT: Final = 0x0FFF_FFFF
"""Bits of a header or an entry that contain a count or a size."""
_MAX_DEPTH: Final = 128

NULL, STRING, NUMBER, FALSE, TRUE, CONTAINER = range(6)
"""Kinds of values."""
_LITERALS: Final = {NULL: "null", FALSE: "false", TRUE: "true"}
ZERO: Final = 0x00
NOT_FINITE: Final = (0x10, 0x20, 0x30)
SIGNED: Final = 0x40
UNSIGNED: Final = 0x50
FLOAT: Final = 0x60
"""Tags of numbers. The integers and floats have payloads of `WIDTHS` bytes, the others none."""
_SPECIAL_NUMBERS: Final = {ZERO: "0", **dict.fromkeys(NOT_FINITE, "null")}
_U32: Final = struct.Struct(">I")
_DOUBLE: Final = struct.Struct(">d")
WIDTHS: Final = (1, 2, 4, 8)


def to_text(array: pa.Array) -> pa.Array:
    """Decode JSONB values (large binary) to compact JSON strings; nulls stay null. Raises CorruptFileError."""
    return _convert_distinct(array, lambda value: _Reader(value).text(), pa.string())


def from_text(array: pa.Array, name: str) -> pa.Array:
    """Encode JSON strings as JSONB values (large binary); nulls stay null.

    Raises SchemaMismatchError, with the column `name`, if a string is not valid JSON.
    """
    return _convert_distinct(array, lambda string: _encode(string, name), pa.large_binary())


def _convert_distinct(array: pa.Array, convert: Callable[[Any], Any], data_type: pa.DataType) -> pa.Array:
    """Return the converted values, each distinct value converted once; nulls stay null."""
    values = array.to_pylist()
    converted = {value: convert(value) for value in dict.fromkeys(values) if value is not None}
    return pa.array([converted.get(value) for value in values], data_type)


def close_item(item: Item) -> bytes:
    """Return an item as a whole value."""
    kind, payload = item
    return payload if kind == CONTAINER else _U32.pack(SCALAR) + _U32.pack(kind << 28 | len(payload)) + payload


def text_of(item: Item) -> str:
    """Return an item as a compact JSON string. Raises CorruptFileError."""
    return _Reader(close_item(item)).text()


def is_scalar(item: Item) -> bool:
    """Return True if the item is neither an array nor an object."""
    return item[0] != CONTAINER


def scalar(item: Item) -> str | int | float | bool | None:
    """Return a scalar item as a Python value. Raises CorruptFileError."""
    kind, payload = item
    if kind == STRING:
        return payload.decode("utf-8", "replace")
    if kind != NUMBER:
        return {NULL: None, FALSE: False, TRUE: True}.get(kind)
    literal = _Reader(payload).number()
    return int(literal) if literal.lstrip("-").isdigit() else float("nan") if literal == "null" else float(literal)


class _Reader:
    """Parser of one JSONB value. Each offset is checked before it is used."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def text(self) -> str:
        header = self.u32(0)
        if header & FORMS != SCALAR:
            return self._container(0, len(self.data), 0)
        return self._value(self.u32(4), 8, len(self.data), 0)

    def _entry_spans(self, at: int, end: int) -> tuple[list[tuple[int, int, int]], int, int]:
        """Return (entry, first byte, end) of each item of a container, the kind of the container, and its count."""
        header = self.u32(at)
        count, kind = header & MAX_COUNT, header & FORMS
        if kind not in (ARRAY, OBJECT):
            self._fail("unknown kind of container", at)
        num_entries = count if kind == ARRAY else 2 * count
        position = at + 4 + 4 * num_entries
        if position > end:
            self._fail(f"{num_entries} entries extend beyond the end of the container", at)
        spans = []
        for number in range(num_entries):
            entry = self.u32(at + 4 + 4 * number)
            size = entry & MAX_COUNT
            if kind == OBJECT and number < count and entry >> 28 != STRING:
                self._fail("a key is not a string", position)
            if position + size > end:
                self._fail("a value extends beyond the end of the container", position)
            spans.append((entry, position, position + size))
            position += size
        return spans, kind, count

    def _container(self, at: int, end: int, depth: int) -> str:
        if depth > _MAX_DEPTH:
            self._fail(f"nested deeper than {_MAX_DEPTH} levels", at)
        spans, kind, count = self._entry_spans(at, end)
        parts = [self._value(entry, start, stop, depth) for entry, start, stop in spans]
        if kind == ARRAY:
            return f"[{','.join(parts)}]"
        return "{" + ",".join(f"{key}:{value}" for key, value in zip(parts, parts[count:])) + "}"

    def _value(self, entry: int, at: int, end: int, depth: int) -> str:
        kind = entry >> 28
        literal = _LITERALS.get(kind)
        if literal is not None:
            return literal
        if kind == STRING:
            try:
                return json.dumps(self.data[at:end].decode(), ensure_ascii=False)
            except UnicodeDecodeError:
                self._fail("a string is not valid UTF-8", at)
        if kind == NUMBER:
            return self._number(at, end)
        if kind != CONTAINER:
            self._fail(f"unknown kind of value {kind}", at)
        return self._container(at, end, depth + 1)

    def number(self) -> str:
        """Return a payload that is a number as a JSON string."""
        return self._number(0, len(self.data))

    def _number(self, at: int, end: int) -> str:
        payload = self.data[at + 1 : end]
        tag = self.data[at] if at < end else -1
        if not payload and tag in _SPECIAL_NUMBERS:
            return _SPECIAL_NUMBERS[tag]
        if tag in (SIGNED, UNSIGNED) and len(payload) in WIDTHS:
            return str(int.from_bytes(payload, "big", signed=tag == SIGNED))
        if tag != FLOAT or len(payload) != 8:
            self._fail("unknown kind of number", at)
        return _format_float(_DOUBLE.unpack(payload)[0])

    def u32(self, at: int) -> int:
        if at + 4 > len(self.data):
            self._fail("unexpected end", at)
        return int(_U32.unpack_from(self.data, at)[0])

    def _fail(self, reason: str, at: int) -> NoReturn:
        raise CorruptFileError(f"malformed JSONB value: {reason} (at byte {at})", offset=at)


def _format_float(value: float) -> str:
    """Return the shortest string that parses to `value`, with an exponent from 1e-6 down and from 1e16 up."""
    if not math.isfinite(value):
        return "null"
    string = repr(value)
    mantissa, minus, exponent = string.partition("e-")
    if not minus:
        return string
    if int(exponent) == 5:
        digits = mantissa.lstrip("-").replace(".", "")
        return ("-" if value < 0 else "") + "0.0000" + digits
    return f"{mantissa}e-{int(exponent)}"


def _encode(string: str, name: str) -> bytes:
    try:
        value = json.loads(string, object_pairs_hook=_unique_members, parse_constant=_reject_constant)
        return close_item(_payload(value))
    except (ValueError, RecursionError) as error:
        raise SchemaMismatchError(f"column {name!r}: invalid JSON: {error}", column=name) from None


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has a duplicate key")
    return members


def _reject_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _payload(value: Any) -> Item:
    """Return (kind, payload) of a value, as an entry of a container stores it."""
    if value is None:
        return NULL, b""
    if isinstance(value, bool):
        return (TRUE if value else FALSE), b""
    if isinstance(value, str):
        return STRING, _check_size(value.encode())
    if isinstance(value, (int, float)):
        return NUMBER, _encode_number(value)
    if isinstance(value, list):
        return CONTAINER, _encode_container(ARRAY | len(value), [_payload(item) for item in value])
    items = sorted((key.encode(), item) for key, item in value.items())
    parts = [(STRING, _check_size(key)) for key, _ in items] + [_payload(item) for _, item in items]
    return CONTAINER, _encode_container(OBJECT | len(items), parts)


def _encode_container(header: int, parts: list[tuple[int, bytes]]) -> bytes:
    entries = [_U32.pack(kind << 28 | len(payload)) for kind, payload in parts]
    return _check_size(b"".join([_U32.pack(header), *entries, *[payload for _, payload in parts]]))


def _check_size(payload: bytes) -> bytes:
    if len(payload) > MAX_COUNT:
        raise ValueError(f"a value has {len(payload)} bytes; the limit is {MAX_COUNT}")
    return payload


def _encode_number(value: int | float) -> bytes:
    if value == 0 and isinstance(value, int):
        return b"\x00"
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        signed = value < 0
        for size in WIDTHS:
            if value.bit_length() + signed <= 8 * size or value == -(1 << (8 * size - 1)):
                return (b"\x40" if signed else b"\x50") + value.to_bytes(size, "big", signed=signed)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if math.isinf(number):
        return b"\x20" if number > 0 else b"\x30"
    return b"\x60" + _DOUBLE.pack(number)
