"""Entries of secondary indexes in the public API, as used by `LanceOperation.CreateIndex`, and their descriptions."""

from __future__ import annotations

import dataclasses
import json
import uuid as uuid_module
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pyroaring
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from lancetable.commit.index_coverage import current_index_section
from lancetable.errors import CorruptFileError, InvalidInputError
from lancetable.format import index as format_index
from lancetable.format.roaring import parse_bitmap
from lancetable.proto import index_pb2, table_pb2
from lancetable.table.row_counts import num_live_rows
from lancetable.table.version import TableVersion

__all__ = ["Index", "IndexDescription", "IndexFile"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MAX_FRAGMENTS = 1 << 24
_SETTINGS: dict[str, Any] = {
    "Vector": index_pb2.VectorIndexDetails,
    "Inverted": table_pb2.InvertedIndexDetails,
    "Json": index_pb2.JsonIndexDetails,
}
# Settings of inverted indexes that are not always stored.
_INVERTED_DEFAULTS = {"lance_tokenizer": None, "custom_stop_words": None, "block_size": 128}
_COMPLETE: dict[str, Any] = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}


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

    @property
    def dataset_version_at_last_update(self) -> int:
        """The version of the table that the segment was built from."""
        return self.dataset_version

    @property
    def size_bytes(self) -> int | None:
        """The size of all files, or None if they are not listed."""
        return None if self.files is None else sum(file.size_bytes for file in self.files)

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
        """Return the public form of a frozen index entry. Raises CorruptFileError for a damaged bitmap or time."""
        covered: set[int] = set()
        if index.fragment_bitmap is not None:
            covered = {*parse_bitmap(index.fragment_bitmap, f"index {index.name}", max_count=_MAX_FRAGMENTS)}
        details = index.details
        return cls(
            str(index.uuid),
            index.name,
            list(index.fields),
            index.dataset_version,
            covered,
            index.index_version or 0,
            None if index.created_at_ms is None else _time_of(index.created_at_ms, index.name),
            index.base_id,
            [IndexFile(file.path, file.size_bytes) for file in index.files] or None,
            (index.type_url, details.value) if index.type_url else None,
            list(index.covering_fields),
        )


def _time_of(created_at_ms: int, name: str) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=created_at_ms)
    except OverflowError as error:
        raise CorruptFileError(f"index {name!r} was created {created_at_ms} ms after 1970", "a valid time") from error


@dataclass(frozen=True)
class IndexDescription:
    """One index with its segments, as recorded in the manifest.

    `num_rows_indexed` counts the live rows of the covered fragments, and `num_rows_unindexed` those of the others,
    which are read without the index. `details` are the settings of a vector, inverted or JSON index; they are empty for
    other types, and for vector indexes whose release did not store them in the manifest. `field_names` lacks fields
    that do not exist any more: other libraries can commit an index on a column that was dropped at the same time. Such
    an index is not used, and the next commit by this library removes it.
    """

    name: str
    type_url: str
    index_type: str
    num_rows_indexed: int
    fields: list[int]
    field_names: list[str]
    segments: list[Index]
    details: dict[str, Any]
    total_size_bytes: int | None
    num_rows_unindexed: int


def describe_indices(version: TableVersion) -> list[IndexDescription]:
    """Return the indexes of a version, sorted by name.

    Raises
    ------
    CorruptFileError
        If an entry is damaged.
    """
    path, schema = version.location.path, version.schema
    entries = list(map(Index.from_format, format_index.parse_indices(current_index_section(version), path)))
    num_rows = {fragment.id: num_live_rows(version, fragment) for fragment in version.manifest.fragments}
    described = []
    for name in sorted({entry.name for entry in entries}):
        segments = [entry for entry in entries if entry.name == name]
        fields, (type_url, settings) = segments[0].fields, segments[0].index_details or ("", b"")
        index_type, details = describe_settings(type_url, settings, name)
        ids = {number for segment in segments for number in segment.fragment_ids}
        rows = sum(num_rows[number] for number in ids & num_rows.keys())
        unindexed = sum(num_rows.values()) - rows
        total = sum(segment.size_bytes or 0 for segment in segments) or None
        paths = [schema.path_of(field_id) for field_id in fields if field_id in schema.by_id]
        described.append(
            IndexDescription(name, type_url, index_type, rows, fields, paths, segments, details, total, unindexed)
        )
    return described


def describe_settings(type_url: str, settings: bytes, name: str) -> tuple[str, dict[str, Any]]:
    """Return the type of an index, and its settings in the form of pylance.

    Raises
    ------
    CorruptFileError
        If the settings are malformed.
    """
    kind = type_url.rpartition(".")[2].removesuffix("IndexDetails") or "Unknown"
    if kind not in _SETTINGS or not settings:
        return kind, {}
    try:
        message = _SETTINGS[kind].FromString(settings)
        if kind == "Json":
            return kind, {"path": message.path, "target_details": {}}
        values = MessageToDict(message, **_COMPLETE)
        if kind == "Inverted":
            values |= {"language": json.loads(message.language), **MessageToDict(message.code_config, **_COMPLETE)}
            return kind, {**_INVERTED_DEFAULTS, **{name: values[name] for name in values if name != "code_config"}}
    except (DecodeError, ValueError) as error:
        raise CorruptFileError(f"index {name!r}: malformed settings; drop the index and create it again") from error
    values["target_partition_size"] = int(values["target_partition_size"])
    for quantizer in values.keys() & {"pq", "sq", "rq"}:
        values["compression"] = {"type": quantizer, **values.pop(quantizer)}
    graph, storage = "HNSW_" if "hnsw" in values else "", values.get("compression", {"type": "flat"})["type"].upper()
    return f"IVF_{graph}{storage}", {setting: value for setting, value in values.items() if value}


def parse_uuid(text: Any) -> uuid_module.UUID:
    """Parse a uuid.

    Raises
    ------
    TypeError
        If `text` is neither a string nor a uuid.
    InvalidInputError
        If it is malformed.
    """
    if not isinstance(text, str | uuid_module.UUID):
        raise TypeError(f"a uuid must be a str or uuid.UUID, got {type(text).__name__}")
    try:
        return uuid_module.UUID(str(text))
    except ValueError as error:
        raise InvalidInputError(f"invalid uuid {text!r}") from error


def parse_segments(index_segments: Any) -> tuple[uuid_module.UUID, ...] | None:
    """Parse the uuids of segments of an index; None for None.

    Raises
    ------
    TypeError
        If `index_segments` is a single uuid or contains other objects.
    InvalidInputError
        If a uuid is malformed.
    """
    if isinstance(index_segments, (str, bytes, uuid_module.UUID)):
        raise TypeError(f"index_segments must be an iterable of str or uuid.UUID, not a single {type(index_segments)}.")
    return None if index_segments is None else tuple(map(parse_uuid, index_segments))
