"""Entries of secondary indexes in the public API, as used by `LanceOperation.CreateIndex`.

Indexes are neither built nor read here; their entries are carried over from version to version.
"""

from __future__ import annotations

import dataclasses
import uuid as uuid_module
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pyroaring

from lancetable.errors import InvalidInputError
from lancetable.format import index as format_index
from lancetable.proto import table_pb2
from lancetable.table.deletion_file_codec import parse_roaring

__all__ = ["Index", "IndexFile"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MAX_FRAGMENTS = 1 << 24


@dataclass
class IndexFile:
    """One file of an index segment; the path is relative to the segment's directory."""

    path: str
    size_bytes: int


@dataclass
class Index:
    """One segment of an index. `fragment_ids` are the covered fragments, `index_details` is (type url, bytes)."""

    uuid: str
    name: str
    fields: list[int]
    dataset_version: int
    fragment_ids: Iterable[int]
    index_version: int
    created_at: datetime | None = None
    base_id: int | None = None
    files: list[IndexFile] | None = None
    index_details: tuple[str, bytes] | None = None
    covering_fields: list[int] = dataclasses.field(default_factory=list)

    def to_format(self) -> format_index.IndexMetadata:
        """Return the frozen form.

        Raises
        ------
        InvalidInputError
            If the uuid is malformed or a fragment id is out of range.
        """
        message = table_pb2.IndexMetadata()
        if self.index_details is not None:
            message.index_details.type_url, message.index_details.value = self.index_details
        created = self.created_at and self.created_at.replace(tzinfo=self.created_at.tzinfo or timezone.utc)
        try:
            covered = pyroaring.BitMap(self.fragment_ids).serialize()
            return format_index.IndexMetadata(
                parse_uuid(self.uuid),
                self.name,
                tuple(self.fields),
                self.dataset_version,
                covered,
                self.index_version,
                None if created is None else (created - _EPOCH) // timedelta(milliseconds=1),
                self.base_id,
                tuple(format_index.IndexFile(file.path, file.size_bytes) for file in self.files or ()),
                tuple(self.covering_fields),
                message.index_details.type_url,
                message.SerializeToString(),
            )
        except OverflowError as error:
            raise InvalidInputError(f"index {self.name!r}: fragment ids must be from 0 to 2^32 - 1: {error}") from error

    @classmethod
    def from_format(cls, index: format_index.IndexMetadata) -> Index:
        """Return the public form of a frozen index entry. Raises CorruptFileError for a damaged bitmap."""
        covered: set[int] = set()
        if index.fragment_bitmap is not None:
            offsets = parse_roaring(memoryview(index.fragment_bitmap), f"index {index.name}", max_count=_MAX_FRAGMENTS)
            covered = set(offsets.tolist())
        details = table_pb2.IndexMetadata.FromString(index.raw).index_details
        created = index.created_at_ms
        return cls(
            str(index.uuid),
            index.name,
            list(index.fields),
            index.dataset_version,
            covered,
            index.index_version or 0,
            None if created is None else _EPOCH + timedelta(milliseconds=created),
            index.base_id,
            [IndexFile(file.path, file.size_bytes) for file in index.files] or None,
            (index.type_url, details.value) if index.type_url else None,
            list(index.covering_fields),
        )


def parse_uuid(text: Any) -> uuid_module.UUID:
    """Parse a uuid.

    Raises
    ------
    InvalidInputError
        If it is malformed.
    """
    try:
        return uuid_module.UUID(str(text))
    except ValueError as error:
        raise InvalidInputError(f"not a uuid: {text!r}") from error
