"""Entries of secondary indexes in the index section of a manifest."""

from __future__ import annotations

import uuid as uuid_module
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyroaring import BitMap

from lancetable.errors import CorruptFileError
from lancetable.format.protobuf_conversion import ProtoMessage, field_values, parse_message, register, stored_fields
from lancetable.format.roaring import parse_bitmap
from lancetable.proto import table_pb2

if TYPE_CHECKING:
    from typing_extensions import Self


_MAX_COVERED: Final = 1 << 24  # fragments of one index; a manifest with more would exceed its own size limit


def parse_uuid(message: table_pb2.UUID) -> uuid_module.UUID:
    """Convert a uuid from protobuf. Raises CorruptFileError unless it has 16 bytes."""
    if len(message.uuid) != 16:
        raise CorruptFileError("wrong number of bytes in a uuid", 16, len(message.uuid))
    return uuid_module.UUID(bytes=message.uuid)


register(table_pb2.UUID.DESCRIPTOR, parse_uuid, lambda uuid: table_pb2.UUID(uuid=uuid.bytes))


@dataclass(frozen=True, slots=True)
class IndexFile(ProtoMessage):
    """One file of an index segment, relative to the segment's directory."""

    message_class: ClassVar = table_pb2.IndexFile
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class IndexMetadata(ProtoMessage):
    """One index segment. Source: protos/table.proto, IndexMetadata.

    `fragment_bitmap` is a portable roaring bitmap of the ids of the indexed fragments; None if absent. `raw` is the
    message as it was read; `to_proto` starts from it, so that fields unknown to this library are preserved.
    """

    message_class: ClassVar = table_pb2.IndexMetadata
    renamed: ClassVar = {"created_at_ms": "created_at"}
    uuid: uuid_module.UUID
    name: str
    fields: tuple[int, ...] = ()
    dataset_version: int = 0
    fragment_bitmap: bytes | None = None
    index_version: int | None = None
    created_at_ms: int | None = None
    base_id: int | None = None
    files: tuple[IndexFile, ...] = ()
    covering_fields: tuple[int, ...] = ()
    type_url: str = ""
    raw: bytes = field(default=b"", repr=False)

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Convert from protobuf. Raises CorruptFileError if the uuid does not have 16 bytes."""
        raw = message.SerializeToString()
        return cls(type_url=message.index_details.type_url, raw=raw, **field_values(cls, message))

    @property
    def kind_name(self) -> str:
        """The kind of the index, such as "BTree"; an empty string if it is not recorded."""
        return kind_name(self.type_url)

    @property
    def details(self) -> Any:
        """The details of the index as an Any message, whose value depends on the kind."""
        return table_pb2.IndexMetadata.FromString(self.raw).index_details

    def with_details(self, type_url: str, value: bytes) -> Self:
        """Return the entry with other details."""
        message = table_pb2.IndexMetadata.FromString(self.raw)
        message.index_details.type_url, message.index_details.value = type_url, value
        return replace(self, type_url=type_url, raw=message.SerializeToString())

    def to_proto(self) -> Any:
        """Convert to protobuf."""
        message = table_pb2.IndexMetadata.FromString(self.raw)
        for _, name, _, _ in stored_fields(IndexMetadata):
            message.ClearField(name)
        message.MergeFrom(ProtoMessage.to_proto(self))
        if self.type_url:
            message.index_details.type_url = self.type_url
        return message


def parse_indices(section: bytes | memoryview | None, path: str | None = None) -> tuple[IndexMetadata, ...]:
    """Parse the index section of a version. None means that the version has no indices.

    Raises CorruptFileError, with `path`, if the bytes are malformed or a uuid does not have 16 bytes.
    """
    return tuple(map(IndexMetadata.from_proto, index_messages(section, path)))


def index_messages(section: bytes | memoryview | None, path: str | None = None) -> list[table_pb2.IndexMetadata]:
    """Return the index messages of a section unchanged; an empty list if `section` is None.

    Raises CorruptFileError, with `path`, if the bytes are malformed.
    """
    if section is None:
        return []
    return list(parse_message(table_pb2.IndexSection, section, path).indices)


def covered_fragments(bitmap: bytes | None, name: str) -> BitMap | None:
    """Return the ids of the fragments that an index covers, None if the index does not record them.

    Raises CorruptFileError if the bitmap is damaged.
    """
    return parse_bitmap(bitmap, f"index {name}", max_count=_MAX_COVERED) if bitmap else None


def kind_name(type_url: str) -> str:
    """Return the kind of an index by the type of its details, such as "BTree"; an empty string if it is not recorded.

    Releases differ in the package of the type: lance.table or lance.index.pb.
    """
    return type_url.rpartition(".")[2].removesuffix("IndexDetails")


def uuid_text(data: bytes) -> str:
    """Return the directory name of an index.

    The result has only hex digits and hyphens, whatever the length of `data`.
    """
    digits = data.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
