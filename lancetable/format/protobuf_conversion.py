"""Conversion between frozen dataclasses and protobuf messages, field by field.

A subclass of `ProtoMessage` sets its message class; fields are matched by name. The descriptor of a field determines
the conversion:

    repeated       tuple                               map       dict
    enum, message  the class that is registered for it; serialized bytes if there is none
    absent         None if the default of the field is None; a field without presence is absent if its value is empty
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from lancetable.errors import CorruptFileError

if TYPE_CHECKING:
    from typing_extensions import Self

M = TypeVar("M", bound=Message)

# Full name of a message or enum -> (function from the protobuf value, function to it).
_CONVERSIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {}


def register(descriptor: Any, from_proto: Callable[[Any], Any], to_proto: Callable[[Any], Any]) -> None:
    """Register the conversion of a message or enum type for fields of this type in other messages."""
    _CONVERSIONS[descriptor.full_name] = from_proto, to_proto


def parse_message(kind: type[M], data: bytes | memoryview, path: str | None = None, offset: int | None = None) -> M:
    """Parse a serialized message. Raises CorruptFileError, with path and offset, if the bytes are invalid."""
    try:
        return kind.FromString(bytes(data))
    except DecodeError as error:
        raise CorruptFileError(f"malformed {kind.__name__} message", path=path, offset=offset) from error


class ProtoMessage:
    """Base of frozen dataclasses that are stored as a protobuf message."""

    __slots__ = ()
    message_class: ClassVar[Any] = None
    renamed: ClassVar[Mapping[str, str]] = {}  # name of a field -> its name in the message, if the two differ

    def __init_subclass__(cls) -> None:
        if cls.message_class is not None:
            register(cls.message_class.DESCRIPTOR, cls.from_proto, cls.to_proto)

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Convert from protobuf. Raises CorruptFileError if a value violates the format."""
        return cls(**field_values(cls, message))

    def to_proto(self) -> Any:
        """Convert to protobuf."""
        values = {}
        message_type: Any = type(self)
        for name, proto_name, _, to_proto in stored_fields(message_type):
            value = getattr(self, name)
            if value is not None:
                values[proto_name] = to_proto(value)
        return self.message_class(**values)


def field_values(cls: Any, message: Any) -> dict[str, Any]:
    """Return the converted values of a message by the names of the fields of `cls`."""
    return {name: from_proto(message) for name, _, from_proto, _ in stored_fields(cls)}


@cache
def stored_fields(cls: Any) -> list[tuple[str, str, Callable[[Any], Any], Callable[[Any], Any]]]:
    """Return (name, name in the message, function of the message, function of the value) for each stored field."""
    descriptors = cls.message_class.DESCRIPTOR.fields_by_name
    stored = []
    for field in fields(cls):
        name = cls.renamed.get(field.name, field.name)
        if name in descriptors:
            stored.append((field.name, name, *_conversion(descriptors[name], field.default is None)))
    return stored


def _conversion(descriptor: Any, is_optional: bool) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the functions that read a field from a message and convert a value back."""
    name = descriptor.name
    if descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry:
        read, write = _value_conversion(descriptor.message_type.fields_by_name["value"])
        return (
            lambda message: {key: read(value) for key, value in getattr(message, name).items()},
            lambda values: {key: write(value) for key, value in values.items()},
        )
    read, write = _value_conversion(descriptor)
    if descriptor.default_value == []:  # a repeated field
        if read is _unchanged:
            return lambda message: tuple(getattr(message, name)), _unchanged
        return (
            lambda message: tuple([read(value) for value in getattr(message, name)]),
            lambda values: [write(value) for value in values],
        )
    if not is_optional:
        return attrgetter(name) if read is _unchanged else lambda message: read(getattr(message, name)), write
    if descriptor.has_presence:
        return lambda message: read(getattr(message, name)) if message.HasField(name) else None, write
    return lambda message: read(getattr(message, name)) or None, write


def _value_conversion(descriptor: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    value_type = descriptor.message_type or descriptor.enum_type
    if value_type is None:
        return _unchanged, _unchanged
    conversion = _CONVERSIONS.get(value_type.full_name)
    if conversion is not None or descriptor.message_type is None:
        return conversion or (_unchanged, _unchanged)
    message_class = GetMessageClass(value_type)
    return message_class.SerializeToString, message_class.FromString


def _unchanged(value: Any) -> Any:
    return value
