"""Mutation of data files that keeps positions and sizes correct, so that damage passes the checks of containers."""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message

from integration.fuzz.mutate import Mutator
from lancetable.proto import encodings_v2_0_pb2, encodings_v2_1_pb2, file2_pb2, file_pb2, table_pb2

_MAX_COLUMNS = 100
_MESSAGES: dict[str, type[Message]] = {
    "ArrayEncoding": encodings_v2_0_pb2.ArrayEncoding,
    "ColumnEncoding": encodings_v2_0_pb2.ColumnEncoding,
    "PageLayout": encodings_v2_1_pb2.PageLayout,
}
_PARSE_ERRORS = (ValueError, IndexError, OverflowError, struct.error, DecodeError)


# ------------------------------------------------------------------------------------------------------------ files 2.x


class File2:
    """The parts of a 2.x file. Raises one of `_PARSE_ERRORS` for a damaged container."""

    def __init__(self, data: bytes) -> None:
        _, columns_at, buffers_at, num_buffers, num_columns = struct.unpack("<QQQII", data[-40:-8])
        if num_columns > _MAX_COLUMNS or num_buffers > _MAX_COLUMNS:
            raise ValueError("too many columns or global buffers")
        self.version = data[-8:-4]
        self.global_buffers = [data[at : at + size] for at, size in _entries(data, buffers_at, num_buffers)]
        self.descriptor = file_pb2.FileDescriptor.FromString(self.global_buffers[0])
        # For each column its message, and the buffers of the column and of each page.
        self.columns: list[tuple[file2_pb2.ColumnMetadata, list[list[bytes]]]] = []
        for at, size in _entries(data, columns_at, num_columns):
            message = file2_pb2.ColumnMetadata.FromString(data[at : at + size])
            self.columns.append((message, [_buffers(data, owner) for owner in (message, *message.pages)]))

    def build(self) -> bytes:
        """Return the file with correct positions and sizes."""
        out = bytearray()

        def append(content: bytes, alignment: int = 1) -> tuple[int, int]:
            out.extend(bytes(-len(out) % alignment) + content)
            return len(out) - len(content), len(content)

        for message, owners in self.columns:
            for owner, buffers in zip((message, *message.pages), owners):
                places = [append(buffer, 8) for buffer in buffers]
                owner.buffer_offsets[:], owner.buffer_sizes[:] = [at for at, _ in places], [size for _, size in places]
        buffers = [self.descriptor.SerializeToString(), *self.global_buffers[1:]]
        buffer_table = b"".join(struct.pack("<QQ", *append(buffer)) for buffer in buffers)
        metadata = len(out)
        column_table = b"".join(struct.pack("<QQ", *append(message.SerializeToString())) for message, _ in self.columns)
        columns_at, _ = append(column_table)
        buffers_at, _ = append(buffer_table)
        counts = len(buffers), len(self.columns)
        return bytes(out) + struct.pack("<QQQII", metadata, columns_at, buffers_at, *counts) + self.version + b"LANC"


def _entries(data: bytes, at: int, count: int) -> list[tuple[int, int]]:
    return [struct.unpack_from("<QQ", data, at + 16 * number) for number in range(count)]


def _buffers(data: bytes, owner: Any) -> list[bytes]:
    return [data[at : at + size] for at, size in zip(owner.buffer_offsets, owner.buffer_sizes, strict=True)]


def mutate_file(data: bytes, mutator: Mutator) -> bytes:
    """Change buffers, encodings or the schema of a 2.x file; sometimes, or if it is damaged, any of its bytes."""
    try:
        parts = File2(data)
    except _PARSE_ERRORS:
        return mutator.bytes(data)
    if not parts.columns or mutator.chance(0.05):
        return mutator.bytes(data)
    for _ in range(mutator.random.choice((1, 1, 2, 4))):
        _change_part(parts, mutator)
    changed = parts.build()
    return mutator.bytes(changed) if mutator.chance(0.05) else changed


def _change_part(parts: File2, mutator: Mutator) -> None:
    message, owners = mutator.random.choice(parts.columns)
    number = mutator.random.randrange(len(owners))
    owner: Any = (message, *message.pages)[number]
    buffers = owners[number]
    choice = mutator.random.random()
    if choice < 0.4 and buffers:
        at = mutator.random.randrange(len(buffers))
        buffers[at] = mutator.buffer(buffers[at])
    elif choice < 0.75:
        _change_encoding(owner.encoding, mutator)
    elif choice < 0.8 and number:
        owner.length = mutator.number(owner.length, 1 << 64)
    elif choice < 0.84 and number:
        message.pages.add().CopyFrom(owner)
        owners.append(list(buffers))
    elif choice < 0.88:
        parts.descriptor.length = mutator.number(parts.descriptor.length, 1 << 64)
    elif choice < 0.95:
        mutator.message(parts.descriptor.schema)
    else:
        mutator.random.shuffle(buffers)


def _change_encoding(encoding: Any, mutator: Mutator) -> None:
    try:
        wrapper = AnyMessage.FromString(encoding.direct.encoding)
    except DecodeError:
        return
    kind = _MESSAGES.get(wrapper.type_url.rpartition(".")[2])
    if kind is None:
        mutator.message(wrapper)
    else:
        wrapper.value = mutator.parsed(kind, wrapper.value)
    encoding.direct.encoding = wrapper.SerializeToString()


def cross_files(first: bytes, second: bytes, mutator: Mutator) -> bytes:
    """Replace a page of the first file by one of the second."""
    try:
        parts, others = File2(first), File2(second)
    except _PARSE_ERRORS:
        return first
    targets = [column for column in parts.columns if column[0].pages]
    sources = [column for column in others.columns if column[0].pages]
    if not targets or not sources:
        return first
    (message, owners), (other, other_owners) = mutator.random.choice(targets), mutator.random.choice(sources)
    page, source = mutator.random.randrange(len(message.pages)), mutator.random.randrange(len(other.pages))
    rows = message.pages[page].length
    message.pages[page].CopyFrom(other.pages[source])
    owners[page + 1] = list(other_owners[source + 1])
    if mutator.chance(0.7):
        message.pages[page].length = rows
    return parts.build()


# ------------------------------------------------------------------------------------------------------------ files 0.1


def mutate_legacy(data: bytes, mutator: Mutator) -> bytes:
    """Change the pages, the metadata or the schema of a 0.1 file; sometimes, or if it is damaged, any of its bytes."""
    try:
        (position,) = struct.unpack("<q", data[-16:-8])
        metadata, _ = _framed(file_pb2.Metadata, data, position)
        manifest, end = _framed(table_pb2.Manifest, data, metadata.manifest_position)
    except _PARSE_ERRORS:
        return mutator.bytes(data)
    pages, between = data[: metadata.manifest_position], data[end:position]
    choice = mutator.random.random()
    if choice < 0.1 or not pages:
        return mutator.bytes(data)
    metadata.manifest_position = len(pages)
    if choice < 0.6:
        changed = mutator.buffer(pages)
        pages = changed if len(changed) == len(pages) else _overwritten(pages, mutator)
    elif choice < 0.8:
        mutator.message(metadata)
    else:
        mutator.message(manifest)
    head = pages + _frame(manifest) + between
    return head + _frame(metadata) + struct.pack("<q", len(head)) + data[-8:]


def _overwritten(data: bytes, mutator: Mutator) -> bytes:
    """Change one of the numbers of 4 or 8 bytes, such as an entry of the page table, at any position."""
    size = mutator.random.choice((4, 8))
    at = mutator.random.randrange(max(1, len(data) - size))
    changed = mutator.number(int.from_bytes(data[at : at + size], "little"), 1 << 8 * size)
    return (data[:at] + changed.to_bytes(size, "little") + data[at + size :])[: len(data)]


def _framed(kind: Any, data: bytes, position: int) -> tuple[Any, int]:
    (size,) = struct.unpack_from("<I", data, position)
    end = position + 4 + size
    return kind.FromString(data[position + 4 : end]), end


def _frame(message: Message) -> bytes:
    body = message.SerializeToString()
    return struct.pack("<I", len(body)) + body
