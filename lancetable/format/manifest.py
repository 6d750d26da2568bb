"""The metadata of one version of a table: schema, fragments, config, feature flags and references.

A manifest may list 100,000 fragments, most of which a request never needs. For this reason, `Manifest` keeps the parsed
protobuf message: a fragment is converted and checked on first access, and a commit copies the messages of unchanged
fragments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar, Final, overload

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.format.feature_flags import STABLE_ROW_IDS, V2_FORMAT
from lancetable.format.fragment import MAX_ROWS, Fragment
from lancetable.format.protobuf_conversion import ProtoMessage, parse_message
from lancetable.format.schema import Field, Schema
from lancetable.format.version import STABLE_VERSION, FileVersion
from lancetable.lazy import lazy_property
from lancetable.proto import file_pb2, table_pb2

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Longer lists do not cache their converted fragments, to bound the memory of a scan over all of them.
_MAX_CACHED_FRAGMENTS: Final = 32768


@dataclass(frozen=True, slots=True)
class BasePath(ProtoMessage):
    """An additional location for files of the table. Source: protos/table.proto, BasePath.

    If `is_dataset_root` is set, the files are in the directories `data`, `_deletions` and `_indices` below `path`;
    otherwise they are directly in `path`.
    """

    message_class: ClassVar = table_pb2.BasePath
    id: int
    path: str
    is_dataset_root: bool = False
    name: str | None = None


@dataclass(frozen=True, slots=True)
class WriterVersion(ProtoMessage):
    """The library that wrote a version."""

    message_class: ClassVar = table_pb2.Manifest.WriterVersion
    library: str
    version: str
    prerelease: str | None = None
    build_metadata: str | None = None


class FragmentList(Sequence[Fragment]):
    """The fragments of a manifest, converted on access. The order is that of the manifest, usually by id."""

    __slots__ = ("_cached", "_ids", "_messages", "_order", "_path", "_row_counts", "_trust_row_counts")

    def __init__(
        self, messages: Sequence[table_pb2.DataFragment], *, trust_row_counts: bool = True, path: str | None = None
    ) -> None:
        """Wrap the messages of the manifest at `path`.

        If `trust_row_counts` is False, the recorded row counts are ignored as unreliable.
        """
        self._messages, self._path = messages, path
        self._trust_row_counts = trust_row_counts
        self._cached: dict[int, Fragment] = {}
        self._ids: npt.NDArray[np.uint64] | None = None
        self._order: npt.NDArray[np.intp] | None = None
        self._row_counts: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Fragment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Fragment]: ...
    def __getitem__(self, index: int | slice) -> Fragment | list[Fragment]:
        """Return one fragment or a list of fragments. Raises CorruptFileError if a fragment violates the format."""
        if isinstance(index, slice):
            positions = range(*index.indices(len(self._messages)))
            cached = [*map(self._cached.get, positions)]
            return [fragment or self[position] for fragment, position in zip(cached, positions)]
        fragment = self._cached.get(index)
        if fragment is None:
            try:
                fragment = Fragment.from_proto(self._messages[index])
            except CorruptFileError as error:
                error.args, error.path = (f"{self._path}: {error}",), self._path
                raise
            if not self._trust_row_counts:
                fragment = _without_row_counts(fragment)
            if len(self._messages) <= _MAX_CACHED_FRAGMENTS:
                self._cached[index] = fragment
        return fragment

    def __iter__(self) -> Iterator[Fragment]:
        return (self[index] for index in range(len(self._messages)))

    def __repr__(self) -> str:
        return f"FragmentList({len(self)} fragments)"

    def messages(self) -> Sequence[table_pb2.DataFragment]:
        """Return all messages, which must not be modified."""
        return self._messages

    def ids(self) -> npt.NDArray[np.uint64]:
        """Return the (n,) fragment ids in list order, read-only. Raises CorruptFileError if an id is not unique."""
        ids = self._ids
        if ids is None:
            ids = np.fromiter((message.id for message in self._messages), np.uint64, len(self._messages))
            ids.flags.writeable = False
            if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
                self._order = np.argsort(ids, kind="stable")
                sorted_ids = ids[self._order]
                duplicates = sorted_ids[1:][sorted_ids[1:] == sorted_ids[:-1]]
                if len(duplicates):
                    raise CorruptFileError(f"fragment id {duplicates[0]} occurs twice")
            self._ids = ids
        return ids

    def position(self, fragment_id: int) -> int | None:
        """Return the list position of the fragment with this id, or None if the list does not contain it."""
        ids = self.ids()
        rank = int(ids.searchsorted(np.uint64(fragment_id), sorter=self._order))
        if rank == len(ids):
            return None
        index = rank if self._order is None else int(self._order[rank])
        return index if int(ids[index]) == fragment_id else None

    def by_id(self, fragment_id: int) -> Fragment | None:
        """Return the fragment with this id, or None if the list does not contain it."""
        position = self.position(fragment_id)
        return None if position is None else self[position]

    def physical_rows(self) -> npt.NDArray[np.int64]:
        """Return (n,) row counts, deleted rows included, in list order, read-only; 0 if the count was not recorded."""
        return self._count_rows()[0]

    def num_deleted_rows(self) -> npt.NDArray[np.int64]:
        """Return (n,) counts of deleted rows in list order, read-only; -1 if the count is only in the deletion file."""
        return self._count_rows()[1]

    def _count_rows(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return both counts, collected in one pass, because a pass over a million fragments takes half a second."""
        if self._row_counts is None:
            physical, deleted, trusted = [], [], self._trust_row_counts
            positions = []  # of fragments with a deletion file
            for position, message in enumerate(self._messages):
                physical.append(message.physical_rows)
                if message.HasField("deletion_file"):
                    positions.append(position)
                    deleted.append(message.deletion_file.num_deleted_rows * trusted or -1)
            physical_rows = _row_counts(physical if trusted else [0] * len(physical))
            deleted_rows = np.zeros(len(physical), np.int64)
            deleted_rows[positions] = _row_counts(deleted)
            physical_rows.flags.writeable = deleted_rows.flags.writeable = False
            self._row_counts = physical_rows, deleted_rows
        return self._row_counts

    def num_rows(self) -> int | None:
        """Return the number of live rows of all fragments; None if it is known only after a file is read."""
        rows, deleted = self.physical_rows(), self.num_deleted_rows()
        if (rows == 0).any() or (deleted < 0).any():
            return None
        return int(rows.sum() - deleted.sum())


def _without_row_counts(fragment: Fragment) -> Fragment:
    """Return the fragment without the recorded row counts."""
    deletion_file = fragment.deletion_file
    if deletion_file is not None:
        deletion_file = replace(deletion_file, num_deleted_rows=None)
    rows = None if fragment.files else fragment.physical_rows
    return replace(fragment, physical_rows=rows, deletion_file=deletion_file)


def _row_counts(counts: list[int]) -> npt.NDArray[np.int64]:
    """Return the counts as an array. Raises CorruptFileError if one exceeds the range of row offsets."""
    if max(counts, default=0) > MAX_ROWS:
        what = "a fragment has too many rows for row offsets of 32 bits"
        raise CorruptFileError(what, f"at most {MAX_ROWS}", max(counts))
    return np.array(counts, np.int64)


class Manifest:
    """One version of a table, backed by its protobuf message. Source: protos/table.proto, Manifest.

    `message` belongs to this object and must not be modified; a commit works on a copy.
    """

    def __init__(self, message: table_pb2.Manifest, path: str | None = None) -> None:
        self.message = message
        self.path = path  # of the manifest file, for error messages

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, path: str | None = None) -> Manifest:
        """Parse a manifest. Raises CorruptFileError, with `path`, if the bytes are not a Manifest message."""
        return cls(parse_message(table_pb2.Manifest, data, path), path)

    def to_proto(self) -> table_pb2.Manifest:
        """Return a copy of the message."""
        message = table_pb2.Manifest()
        message.CopyFrom(self.message)
        return message

    def __reduce__(self) -> tuple[Any, ...]:
        return Manifest.from_bytes, (self.message.SerializeToString(), self.path)

    def __repr__(self) -> str:
        return f"Manifest(version={self.version}, {len(self.fragments)} fragments)"

    @lazy_property
    def schema(self) -> Schema:
        """Schema of the table, built on first access.

        Raises the errors of `Schema.from_protos`, and CorruptFileError if two fields of one parent have the same name.
        """
        message = file_pb2.Schema(fields=self.message.fields, metadata=self.message.schema_metadata)
        try:
            schema = Schema.from_bytes(message.SerializeToString())
        except (CorruptFileError, UnsupportedFeatureError):
            schema = Schema.from_protos(message.fields, message.metadata, self.path)  # an error with the path
        self._check_names(schema.fields, "the table")
        return schema

    def _check_names(self, siblings: Sequence[Field], parent: str) -> None:
        if len({field.name for field in siblings}) < len(siblings):
            name = Counter(field.name for field in siblings).most_common(1)[0][0]
            raise CorruptFileError(f"{parent} has two fields named {name!r}", path=self.path)
        for field in siblings:
            if field.children:
                self._check_names(field.children, f"field {field.name!r}")

    @lazy_property
    def fragments(self) -> FragmentList:
        """The fragments, converted on access."""
        # Early writers, which did not record their version, could record wrong row counts.
        trusted = self.message.HasField("writer_version")
        return FragmentList(self.message.fragments, trust_row_counts=trusted, path=self.path)

    @property
    def version(self) -> int:
        """Version number."""
        return self.message.version

    @property
    def timestamp_ns(self) -> int:
        """Commit time in nanoseconds since 1970; 0 if absent."""
        timestamp = self.message.timestamp
        return timestamp.seconds * 1_000_000_000 + timestamp.nanos

    @property
    def timestamp(self) -> datetime:
        """Commit time as an aware datetime in UTC, truncated to microseconds.

        Raises CorruptFileError if the year is not between 1 and 9999.
        """
        try:
            return _EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)
        except OverflowError:
            seconds = self.message.timestamp.seconds
            raise CorruptFileError(f"commit time {seconds} s is not a valid date", path=self.path) from None

    @property
    def reader_flags(self) -> int:
        """Feature flags that a reader must support; see `lancetable.format.feature_flags`."""
        return self.message.reader_feature_flags

    @property
    def writer_flags(self) -> int:
        """Feature flags that a writer must support; see `lancetable.format.feature_flags`."""
        return self.message.writer_feature_flags

    @property
    def has_stable_row_ids(self) -> bool:
        """True if rows keep their ids when they are moved."""
        return bool(self.message.reader_feature_flags & STABLE_ROW_IDS)

    @property
    def max_fragment_id(self) -> int | None:
        """Highest fragment id ever used or reserved; None if no id was ever used."""
        return self.message.max_fragment_id if self.message.HasField("max_fragment_id") else None

    @property
    def transaction_file(self) -> str | None:
        """Name of the transaction file below `_transactions`."""
        return self.message.transaction_file or None

    @property
    def transaction_section(self) -> int | None:
        """Position of the inline transaction in the manifest file, from either of the two fields that may store it."""
        if self.message.HasField("transaction_section"):
            return self.message.transaction_section
        if self.message.HasField("transaction_section_deprecated"):
            return self.message.transaction_section_deprecated
        return None

    @property
    def index_section(self) -> int | None:
        """Position of the index section in the manifest file; None if the table has no indices."""
        return self.message.index_section if self.message.HasField("index_section") else None

    @property
    def next_row_id(self) -> int:
        """The next stable row id to assign."""
        return self.message.next_row_id

    @property
    def data_format(self) -> str | None:
        """Recorded version number of the data file format; None if absent."""
        return self.message.data_format.version if self.message.HasField("data_format") else None

    @property
    def file_version(self) -> FileVersion:
        """Format of new data files.

        If an old manifest records no format, or 0.1, the format of the first data file is used instead.
        Raises UnsupportedFeatureError for a newer version and CorruptFileError for an unknown one.
        """
        if self.message.HasField("data_format"):
            recorded = FileVersion.from_number(self.message.data_format.version, self.path)
            if not recorded.is_legacy:
                return recorded
            # Release 0.16 of Lance recorded 0.1 here although it wrote newer files.
        for fragment in self.message.fragments:
            for file in fragment.files:
                return FileVersion.from_manifest_pair(file.file_major_version, file.file_minor_version, self.path)
        if self.message.HasField("data_format"):
            return FileVersion.LEGACY
        return STABLE_VERSION if self.writer_flags & V2_FORMAT else FileVersion.LEGACY

    @property
    def config(self) -> Mapping[str, str]:
        """Table config, sorted by key."""
        return dict(sorted(self.message.config.items()))

    @property
    def table_metadata(self) -> Mapping[str, str]:
        """Metadata of the table, sorted by key."""
        return dict(sorted(self.message.table_metadata.items()))

    @property
    def schema_metadata(self) -> Mapping[str, bytes]:
        """Metadata of the schema, sorted by key."""
        return dict(sorted(self.message.schema_metadata.items()))

    @property
    def base_paths(self) -> Mapping[int, BasePath]:
        """Additional file locations, by id; 0 is a valid id."""
        return {base.id: BasePath.from_proto(base) for base in self.message.base_paths}

    @property
    def branch(self) -> str | None:
        """Name of the branch; None for the main branch."""
        return self.message.branch if self.message.HasField("branch") else None

    @property
    def tag(self) -> str:
        """String copied from the transaction; unrelated to the tags that name versions."""
        return self.message.tag

    @property
    def writer_version(self) -> WriterVersion | None:
        """The library that wrote this version; None if not recorded."""
        if not self.message.HasField("writer_version"):
            return None
        return WriterVersion.from_proto(self.message.writer_version)

    @property
    def max_field_id(self) -> int:
        """Highest field id in the schema and in all data files; -1 without fields.

        Iterates over all fragments.
        """
        highest = self.schema.max_id
        for fragment in self.message.fragments:
            for file in fragment.files:
                highest = max(highest, max(file.fields, default=-1))
        if self.message.HasField("max_allocated_field_id"):
            highest = max(highest, self.message.max_allocated_field_id)
        return highest
