"""Mutation of bytes, numbers and protobuf messages, so that damage reaches the code behind the checks of headers."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import DecodeError, Message

NUMBERS = [0, 1, 2, 3, 7, 8, 9, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 1023, 1024, 1025, 4096]
NUMBERS += [2**k + d for k in (15, 16, 24, 31, 32, 33, 40, 48, 62, 63, 64) for d in (-1, 0, 1)]
NAMES = ["", "zstd", "lz4", "none", "fsst", "int32", "string", "list", "struct", "json", "blob", "a/../b"]
NAMES += ["dict:string:int8:false", "fixed_size_list:float:4", "fixed_size_binary:3", "decimal:128:10:2"]
NAMES += ["timestamp:us:UTC"]
_FLOATS = [0.0, -1.0, 1e300, float("nan"), float("inf")]
_WORDS = (("<H", 16), ("<I", 32), ("<Q", 64))


class Mutator:
    """Source of random decisions for one mutation.

    Parameters
    ----------
    seed
        Seed of all decisions.
    change
        Changes bytes with the strategies of the fuzzer; its second argument is the maximum size of the result.
    max_bytes
        Maximum size of the result of `bytes`.
    """

    def __init__(self, seed: int, change: Callable[[bytes, int], bytes], max_bytes: int) -> None:
        self.random = random.Random(seed)
        self._change = change
        self._max_bytes = max_bytes

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.random.random() < probability

    def bytes(self, data: bytes, max_bytes: int | None = None) -> bytes:
        """Return changed bytes."""
        return self._change(data, max(max_bytes or self._max_bytes, len(data), 8))

    def number(self, value: int, limit: int) -> int:
        """Return another number from 0 to `limit - 1`."""
        choice = self.random.random()
        if choice < 0.4:
            value += self.random.randint(-3, 3)
        elif choice < 0.5:
            value = self.random.getrandbits(self.random.randint(1, 64))
        elif choice < 0.6:
            value ^= 1 << self.random.randrange(limit.bit_length() - 1)
        else:
            value = self.random.choice(NUMBERS)
        return value % limit

    def buffer(self, data: bytes) -> bytes:
        """Change any bytes, or one number of 2, 4 or 8 bytes, as offsets and headers are."""
        if self.chance(0.5) or len(data) < 8:
            return self.bytes(data)
        code, bits = self.random.choice(_WORDS)
        near = self.random.choice((64, len(data)))
        at = self.random.randrange(0, min(near, len(data) - bits // 8 + 1), self.random.choice((1, bits // 8)))
        out = bytearray(data)
        struct.pack_into(code, out, at, self.number(struct.unpack_from(code, out, at)[0], 1 << bits))
        return bytes(out)

    def parsed(self, kind: type[Message], data: bytes) -> bytes:
        """Return a serialized message with changed fields; now and then, or if it does not parse, any changed bytes."""
        try:
            message = kind.FromString(data)
        except DecodeError:
            return self.bytes(data)
        if self.chance(0.1):
            return self.bytes(data)
        self.message(message)
        return message.SerializeToString()

    def message(self, message: Message) -> None:
        """Change one to three nested fields in place."""
        for _ in range(self.random.randint(1, 3)):
            owner = self.random.choice(list(_nested(message)))
            present = [field for field, _ in owner.ListFields()] if self.chance(0.75) else []
            fields = [field for field in present or owner.DESCRIPTOR.fields if not _is_map(field)]
            if fields:
                self._change_field(owner, self.random.choice(fields))

    def _change_field(self, owner: Message, field: Any) -> None:
        if field.is_repeated:
            self._change_repeated(getattr(owner, field.name), field)
        elif self.chance(0.1):
            owner.ClearField(field.name)
        elif field.message_type is not None:
            getattr(owner, field.name).SetInParent()
        else:
            setattr(owner, field.name, self._scalar(field, getattr(owner, field.name)))

    def _change_repeated(self, values: Any, field: Any) -> None:
        choice, is_message = self.random.random(), field.message_type is not None
        if choice < 0.2 and len(values):
            del values[self.random.randrange(len(values))]
        elif choice < 0.5 or not len(values):
            if not is_message:
                values.append(self._scalar(field, values[0] if len(values) else None))
            elif len(values):
                values.add().CopyFrom(self.random.choice(values))
            else:
                values.add()
        elif is_message:
            first, second = self.random.choice(values), self.random.choice(values)
            if first is not second:
                first.CopyFrom(second)
        else:
            at = self.random.randrange(len(values))
            values[at] = self._scalar(field, values[at])

    def _scalar(self, field: Any, value: Any) -> Any:
        kind = field.cpp_type
        if field.type == field.TYPE_BYTES:
            return self.buffer(value or b"")
        if kind == field.CPPTYPE_STRING:
            return self.random.choice([*NAMES, "x" * self.random.randrange(300), str(self.random.choice(NUMBERS))])
        if kind == field.CPPTYPE_BOOL:
            return not value
        if kind == field.CPPTYPE_ENUM:
            return self.random.choice([*(entry.number for entry in field.enum_type.values), 99])
        if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
            return self.random.choice(_FLOATS)
        bits = 32 if kind in (field.CPPTYPE_UINT32, field.CPPTYPE_INT32) else 64
        number = self.number((value or 0) % (1 << bits), 1 << bits)
        signed = kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
        return number - (1 << bits) if signed and number >> (bits - 1) else number


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _nested(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None and not _is_map(field):
            for entry in value if field.is_repeated else [value]:
                yield from _nested(entry)
