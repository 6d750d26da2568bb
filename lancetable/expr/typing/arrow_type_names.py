"""Parser of the type names that `arrow_cast` accepts, such as `Timestamp(ns, "UTC")`."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from lancetable.expr.arrow_types import int_type

_SIMPLE_TYPES: dict[str, pa.DataType] = {
    "Null": pa.null(),
    "Boolean": pa.bool_(),
    **{f"Int{bits}": int_type(bits, signed=True) for bits in (8, 16, 32, 64)},
    **{f"UInt{bits}": int_type(bits, signed=False) for bits in (8, 16, 32, 64)},
    **{f"Float{bits}": pa.type_for_alias(f"float{bits}") for bits in (16, 32, 64)},
    "Utf8": pa.string(),
    "LargeUtf8": pa.large_string(),
    "Utf8View": pa.string(),
    "Binary": pa.binary(),
    "LargeBinary": pa.large_binary(),
    "BinaryView": pa.binary(),
    "Date32": pa.date32(),
    "Date64": pa.date64(),
}
_UNITS = {"second": "s", "millisecond": "ms", "microsecond": "us", "µs": "us", "nanosecond": "ns"}


def parse_arrow_type(name: str) -> pa.DataType | None:
    """Return the type for a name such as `Timestamp(ns, "UTC")` or `Dictionary(Int32, Utf8)`; None if it is unknown."""
    head, _, inside = name.strip().partition("(")
    head = head.strip()
    if not inside:
        return _SIMPLE_TYPES.get(head)
    create = _PARAMETRIC_TYPES.get(head)
    if create is None or not inside.endswith(")"):
        return None
    try:
        return create(*(part.strip() for part in _split(inside[:-1])))
    except (KeyError, TypeError, ValueError, pa.ArrowInvalid):
        return None


def _split(text: str) -> list[str]:
    """Split at commas outside of parentheses."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def _unit(name: str) -> str:
    return _UNITS.get(name.lower(), name.lower())


def _item(name: str) -> pa.DataType:
    data_type = parse_arrow_type(name)
    if data_type is None:
        raise ValueError(f"unknown type {name!r}")
    return data_type


def _timestamp(unit: str, zone: str = "None") -> pa.DataType:
    if zone.startswith("Some(") and zone.endswith(")"):
        zone = zone[5:-1]
    return pa.timestamp(_unit(unit), None if zone == "None" else zone.strip("\"'"))


_PARAMETRIC_TYPES: dict[str, Callable[..., pa.DataType]] = {
    "Timestamp": _timestamp,
    "Duration": lambda unit: pa.duration(_unit(unit)),
    "Time32": lambda unit: pa.time32(_unit(unit)),
    "Time64": lambda unit: pa.time64(_unit(unit)),
    "Decimal128": lambda precision, scale: pa.decimal128(int(precision), int(scale)),
    "Decimal256": lambda precision, scale: pa.decimal256(int(precision), int(scale)),
    "FixedSizeBinary": lambda size: pa.binary(int(size)),
    "Dictionary": lambda index, values: pa.dictionary(_item(index), _item(values)),
    "List": lambda item: pa.list_(_item(item)),
    "LargeList": lambda item: pa.large_list(_item(item)),
    "FixedSizeList": lambda size, item: pa.list_(_item(item), int(size)),
}
