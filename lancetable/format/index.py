"""Metadata of secondary indices. Commits preserve index entries; this library does not read index contents."""

from __future__ import annotations

import uuid as uuid_module
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from lancetable.errors import CorruptFileError
from lancetable.proto import table_pb2

__all__ = ["IndexFile", "IndexMetadata", "IndexSection", "index_messages", "uuid_text"]


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One file of an index segment, relative to the segment's directory."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class IndexMetadata:
    """One index segment. Source: protos/table.proto, IndexMetadata.

    `fragment_bitmap` is a portable roaring bitmap of the ids of the indexed fragments; None if absent. `raw` is the
    message as it was read; `to_proto` starts from it, so that fields unknown to this library are preserved.
    """

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

    @property
    def type_name(self) -> str:
        """Message name of the index details, such as `BTreeIndexDetails`; empty if unknown."""
        return self.type_url.rpartition("/")[2].rpartition(".")[2]

    @property
    def is_system(self) -> bool:
        """True if the table itself uses this entry, for example the map of compacted rows."""
        return self.name.startswith("__lance_")

    @classmethod
    def from_proto(cls, message: table_pb2.IndexMetadata) -> IndexMetadata:
        """Convert from protobuf. Raises CorruptFileError if the uuid does not have 16 bytes."""
        return cls(
            parse_uuid(message.uuid),
            message.name,
            tuple(message.fields),
            message.dataset_version,
            message.fragment_bitmap or None,
            message.index_version if message.HasField("index_version") else None,
            message.created_at if message.HasField("created_at") else None,
            message.base_id if message.HasField("base_id") else None,
            tuple(IndexFile(file.path, file.size_bytes) for file in message.files),
            tuple(message.covering_fields),
            message.index_details.type_url,
            message.SerializeToString(),
        )

    def to_proto(self) -> table_pb2.IndexMetadata:
        """Convert to protobuf."""
        message = table_pb2.IndexMetadata.FromString(self.raw)
        for name in ("fields", "files", "covering_fields", "fragment_bitmap", "index_version", "created_at", "base_id"):
            message.ClearField(name)
        message.MergeFrom(
            table_pb2.IndexMetadata(
                uuid=table_pb2.UUID(uuid=self.uuid.bytes),
                fields=self.fields,
                fragment_bitmap=self.fragment_bitmap or b"",
                index_version=self.index_version,
                created_at=self.created_at_ms,
                base_id=self.base_id,
                files=[table_pb2.IndexFile(path=file.path, size_bytes=file.size_bytes) for file in self.files],
                covering_fields=self.covering_fields,
            )
        )
        message.name = self.name
        message.dataset_version = self.dataset_version
        if self.type_url:
            message.index_details.type_url = self.type_url
        return message


@dataclass(frozen=True, slots=True)
class IndexSection:
    """All index segments of one version."""

    indices: tuple[IndexMetadata, ...] = ()

    @classmethod
    def from_proto(cls, message: table_pb2.IndexSection) -> IndexSection:
        """Convert from protobuf. Raises CorruptFileError if a uuid does not have 16 bytes."""
        return cls(tuple(IndexMetadata.from_proto(index) for index in message.indices))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, path: str | None = None) -> IndexSection:
        """Parse an index section. Raises CorruptFileError, with `path`, if the bytes are malformed."""
        return cls(tuple(map(IndexMetadata.from_proto, index_messages(data, path))))

    def to_proto(self) -> table_pb2.IndexSection:
        """Convert to protobuf."""
        return table_pb2.IndexSection(indices=[index.to_proto() for index in self.indices])

    def to_bytes(self) -> bytes:
        """Serialize the section."""
        return self.to_proto().SerializeToString()


def index_messages(section: bytes | memoryview | None, path: str | None = None) -> list[table_pb2.IndexMetadata]:
    """Return the index messages of a section unchanged; an empty list if `section` is None.

    Raises CorruptFileError, with `path`, if the bytes are malformed.
    """
    if section is None:
        return []
    try:
        return list(table_pb2.IndexSection.FromString(bytes(section)).indices)
    except DecodeError as error:
        raise CorruptFileError(f"malformed index section: {path or 'unknown path'}", path=path) from error


def parse_uuid(message: table_pb2.UUID) -> uuid_module.UUID:
    """Convert a uuid from protobuf. Raises CorruptFileError unless it has 16 bytes."""
    if len(message.uuid) != 16:
        raise CorruptFileError(
            f"expected a uuid of 16 bytes, got {len(message.uuid)}", expected=16, found=len(message.uuid)
        )
    return uuid_module.UUID(bytes=message.uuid)


def uuid_text(data: bytes) -> str:
    """Return the directory name of an index.

    The result has only hex digits and hyphens, whatever the length of `data`.
    """
    digits = data.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
