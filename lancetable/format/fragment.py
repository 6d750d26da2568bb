"""Fragments, data files and deletion files, as a manifest records them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.format.paths import check_relative, deletion_name
from lancetable.format.protobuf_conversion import ProtoMessage, register
from lancetable.format.version import FileVersion
from lancetable.proto import table_pb2

# Special field ids, which do not belong to columns of the table.
TOMBSTONE: Final = -2  # a column of the file that is no longer used
ROW_ID_FIELD: Final = -3
CREATED_AT_FIELD: Final = -4
LAST_UPDATED_AT_FIELD: Final = -5

MAX_FRAGMENT_ID: Final = 2**32 - 1
MAX_ROWS: Final = 2**32  # a row offset has 32 bits


class DeletionKind(Enum):
    """Encoding of the row offsets in a deletion file."""

    ARROW_ARRAY = 0
    BITMAP = 1

    @property
    def suffix(self) -> str:
        """File name extension, without a dot."""
        return "arrow" if self is DeletionKind.ARROW_ARRAY else "bin"

    @property
    def label(self) -> str:
        """Name of the kind in the JSON form."""
        return "array" if self is DeletionKind.ARROW_ARRAY else "bitmap"


def _parse_kind(number: int) -> DeletionKind:
    if number not in (0, 1):
        raise CorruptFileError("unknown kind of deletion file", "0 or 1", number)
    return DeletionKind.BITMAP if number else DeletionKind.ARROW_ARRAY


register(table_pb2.DeletionFile.DeletionFileType.DESCRIPTOR, _parse_kind, lambda kind: kind.value)


class SequenceLocation(Enum):
    """Location of a fragment's row ids or row versions when they are not inline in the manifest."""

    EXTERNAL = "external"  # a file of its own; no current writer makes these
    COLUMN = "column"  # a hidden column of one of the data files


@dataclass(frozen=True, slots=True)
class DataFile(ProtoMessage):
    """One data file and the columns that it stores for its fragment. Source: protos/table.proto, DataFile.

    `path` is relative to the data directory. `fields[i]` is stored in the file's column `column_indices[i]`; 0.1 files
    have no column indices. `size_bytes` is None if unknown.
    """

    message_class: ClassVar = table_pb2.DataFile
    renamed: ClassVar = {
        "major": "file_major_version",
        "minor": "file_minor_version",
        "size_bytes": "file_size_bytes",
    }
    path: str
    fields: tuple[int, ...]
    column_indices: tuple[int, ...] = ()
    major: int = 2
    minor: int = 0
    size_bytes: int | None = None
    base_id: int | None = None

    @property
    def file_version(self) -> FileVersion:
        """Version of the data file format.

        Raises UnsupportedFeatureError for a newer version and CorruptFileError for a pair that was never a version.
        """
        return FileVersion.from_manifest_pair(self.major, self.minor, self.path)

    @property
    def is_legacy(self) -> bool:
        """True for a 0.1 file, which has no column indices."""
        return self.major == 0 and self.minor < 3

    @classmethod
    def from_proto(cls, message: table_pb2.DataFile) -> DataFile:
        """Convert from protobuf.

        Raises CorruptFileError if the path is unsafe, the numbers of fields and column indices differ, or a field id or
        column index is out of range.
        """
        path = check_relative(message.path)
        fields = tuple(message.fields)
        column_indices = tuple(message.column_indices)
        major, minor = message.file_major_version, message.file_minor_version
        if len(column_indices) != len(fields) and (column_indices or major >= 2):
            raise CorruptFileError("wrong number of column indices", len(fields), len(column_indices), path=path)
        if fields and min(fields) < LAST_UPDATED_AT_FIELD:
            raise CorruptFileError(f"unknown field id {min(fields)}", path=path)
        if column_indices and min(column_indices) < -1:
            raise CorruptFileError("negative column index", found=min(column_indices), path=path)
        return cls(
            path,
            fields,
            column_indices,
            major,
            minor,
            message.file_size_bytes or None,
            message.base_id if message.HasField("base_id") else None,
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DataFile:
        """Parse a dict with pylance's keys. Raises CorruptFileError for missing keys or values of the wrong type."""
        _json_str(value, "path")
        return cls.from_proto(_json_message(table_pb2.DataFile, value))


@dataclass(frozen=True, slots=True)
class DeletionFile(ProtoMessage):
    """Reference to the file that stores a fragment's deletion vector. Source: protos/table.proto, DeletionFile."""

    message_class: ClassVar = table_pb2.DeletionFile
    renamed: ClassVar = {"kind": "file_type"}
    kind: DeletionKind  # also determines the suffix of the name
    read_version: int  # version that the delete was computed from
    id: int  # random, to make the name unique
    num_deleted_rows: int | None = None  # None: unknown until the file is read
    base_id: int | None = None

    def name(self, fragment_id: int) -> str:
        """Return the file name below `_deletions`."""
        return deletion_name(fragment_id, self.read_version, self.id, self.kind.suffix)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DeletionFile:
        """Parse a dict with pylance's keys. Raises CorruptFileError for missing keys or values of the wrong type."""
        label = _json_str(value, "file_type")
        kinds = {kind.label: kind.value for kind in DeletionKind}
        if label not in kinds:
            raise CorruptFileError("unknown kind of deletion file", list(kinds), label[:20])
        return cls.from_proto(_json_message(table_pb2.DeletionFile, {**value, "file_type": kinds[label]}))


@dataclass(frozen=True, slots=True)
class Fragment(ProtoMessage):
    """A horizontal slice of the table: data files that store columns of the same rows. Source: protos/table.proto.

    `physical_rows` includes deleted rows; it is None if the writer did not record it. `row_ids`, `created_at` and
    `last_updated_at` are serialized sequences (see `lancetable.rowids`), a SequenceLocation if the sequence is stored
    elsewhere, or None if the fragment has none. `overlays` are serialized DataOverlayFile messages, preserved as they
    are.
    """

    message_class: ClassVar = table_pb2.DataFragment
    id: int
    files: tuple[DataFile, ...] = ()
    physical_rows: int | None = None
    deletion_file: DeletionFile | None = None
    row_ids: bytes | SequenceLocation | None = None
    created_at: bytes | SequenceLocation | None = None
    last_updated_at: bytes | SequenceLocation | None = None
    overlays: tuple[bytes, ...] = ()
    clustering_id: int = 0

    @property
    def num_deletions(self) -> int | None:
        """Number of deleted rows; None if it is known only after the deletion file is read."""
        return 0 if self.deletion_file is None else self.deletion_file.num_deleted_rows

    @property
    def num_rows(self) -> int | None:
        """Number of live rows; None if it is known only after a file is read."""
        if self.physical_rows is None:
            return None
        deletions = self.num_deletions
        return None if deletions is None else self.physical_rows - deletions

    @classmethod
    def from_proto(cls, message: table_pb2.DataFragment) -> Fragment:
        """Convert from protobuf. Raises CorruptFileError for ids, counts and paths that are out of range or unsafe."""
        # Explicit, because a table may have 100,000 fragments, and the conversion by names takes longer.
        fragment_id, physical_rows = message.id, message.physical_rows
        deletion_file = DeletionFile.from_proto(message.deletion_file) if message.HasField("deletion_file") else None
        _check_counts(fragment_id, physical_rows, deletion_file)
        return cls(
            fragment_id,
            tuple([DataFile.from_proto(file) for file in message.files]),
            physical_rows or None,
            deletion_file,
            _lineage(message, "row_id_sequence"),
            _lineage(message, "created_at_version_sequence"),
            _lineage(message, "last_updated_at_version_sequence"),
            tuple([overlay.SerializeToString() for overlay in message.overlays]) if message.overlays else (),
            message.clustering_id,
        )

    def to_proto(self) -> table_pb2.DataFragment:
        """Convert to protobuf.

        Raises UnsupportedFeatureError if a sequence is stored in a file of its own, which this library never writes.
        """
        message: table_pb2.DataFragment = ProtoMessage.to_proto(self)
        _set_lineage(message, "row_ids", self.row_ids)
        _set_lineage(message, "created_at_versions", self.created_at)
        _set_lineage(message, "last_updated_at_versions", self.last_updated_at)
        return message


def _check_counts(fragment_id: int, physical_rows: int, deletion_file: DeletionFile | None) -> None:
    """Raise CorruptFileError if an id or a count is out of range. `physical_rows` is 0 if unknown."""
    if fragment_id > MAX_FRAGMENT_ID:
        raise CorruptFileError("a fragment id does not fit 32 bits", f"at most {MAX_FRAGMENT_ID}", fragment_id)
    if physical_rows > MAX_ROWS:
        what = f"fragment {fragment_id} has too many rows for row offsets of 32 bits"
        raise CorruptFileError(what, f"at most {MAX_ROWS}", physical_rows)
    if deletion_file is not None and physical_rows and (deletion_file.num_deleted_rows or 0) > physical_rows:
        what = f"fragment {fragment_id} has more deleted rows than rows"
        raise CorruptFileError(what, f"at most {physical_rows}", deletion_file.num_deleted_rows)


def _lineage(message: table_pb2.DataFragment, oneof: Any) -> bytes | SequenceLocation | None:
    oneof_case = message.WhichOneof(oneof)
    if oneof_case is None:
        return None
    if oneof_case.startswith("inline"):
        inline: bytes = getattr(message, oneof_case)
        return inline
    return SequenceLocation.COLUMN if oneof_case.startswith("column") else SequenceLocation.EXTERNAL


def _set_lineage(message: table_pb2.DataFragment, name: str, value: bytes | SequenceLocation | None) -> None:
    if value is None:
        return
    if isinstance(value, bytes):
        setattr(message, f"inline_{name}", value)
    elif value is SequenceLocation.COLUMN:
        getattr(message, f"column_{name}").SetInParent()
    else:
        raise UnsupportedFeatureError(
            f"fragment {message.id}: cannot write row ids or row versions that are stored in a separate file",
            feature="external row id sequences",
        )


def _json_message(message_class: Any, value: Mapping[str, Any]) -> Any:
    """Return a message with the values of a dict whose keys are names of fields; other keys are ignored."""
    try:
        return message_class(**{name: value.get(name) for name in message_class.DESCRIPTOR.fields_by_name})
    except (TypeError, ValueError) as error:
        raise CorruptFileError(f"malformed {message_class.DESCRIPTOR.name} JSON: {error}") from error


def _json_str(value: Any, key: str) -> str:
    string = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(string, str):
        raise CorruptFileError(f"{key} in the JSON is not a string", found=type(string).__name__)
    return string
