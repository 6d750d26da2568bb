"""One version of a table: its schema, its fragments, and what was decided about the whole.

A manifest may list 100,000 fragments, most of which a request never looks at. So this class reads the parsed message
where it is asked to: a fragment becomes a value, and is checked, when it is touched, and a commit copies the messages
of untouched fragments as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from lancetable.errors import CorruptFileError
from lancetable.format.fragment import MAX_ROWS, Fragment
from lancetable.format.schema import Field, Schema
from lancetable.format.version import STABLE_VERSION, FileVersion
from lancetable.proto import table_pb2

__all__ = ["BasePath", "DataStorageFormat", "FragmentList", "Manifest", "WriterVersion"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_STABLE_ROW_IDS: Final = 2
_V2_FORMAT: Final = 4
# Above this, values made of fragments are not kept: a walk over all of them must not fill the memory.
_KEPT_FRAGMENTS: Final = 8192


@dataclass(frozen=True, slots=True)
class BasePath:
    """Another place in which files of the table may lie. Source: protos/table.proto, BasePath.

    With `is_dataset_root` the files lie below `data`, `_deletions` and `_indices` of `path`, else directly in it.
    """

    id: int
    path: str
    is_dataset_root: bool = False
    name: str | None = None

    @classmethod
    def from_proto(cls, message: table_pb2.BasePath) -> BasePath:
        return cls(
            message.id, message.path, message.is_dataset_root, message.name if message.HasField("name") else None
        )

    def to_proto(self) -> table_pb2.BasePath:
        return table_pb2.BasePath(id=self.id, path=self.path, is_dataset_root=self.is_dataset_root, name=self.name)


@dataclass(frozen=True, slots=True)
class WriterVersion:
    """The program that made a version."""

    library: str
    version: str
    prerelease: str | None = None
    build_metadata: str | None = None

    @classmethod
    def from_proto(cls, message: table_pb2.Manifest.WriterVersion) -> WriterVersion:
        return cls(
            message.library,
            message.version,
            message.prerelease if message.HasField("prerelease") else None,
            message.build_metadata if message.HasField("build_metadata") else None,
        )

    def to_proto(self) -> table_pb2.Manifest.WriterVersion:
        return table_pb2.Manifest.WriterVersion(
            library=self.library,
            version=self.version,
            prerelease=self.prerelease,
            build_metadata=self.build_metadata,
        )


@dataclass(frozen=True, slots=True)
class DataStorageFormat:
    """The format of new data files."""

    version: str
    file_format: str = "lance"

    @classmethod
    def from_proto(cls, message: table_pb2.Manifest.DataStorageFormat) -> DataStorageFormat:
        return cls(message.version, message.file_format)

    def to_proto(self) -> table_pb2.Manifest.DataStorageFormat:
        return table_pb2.Manifest.DataStorageFormat(file_format=self.file_format, version=self.version)


class FragmentList(Sequence[Fragment]):
    """The fragments of a manifest, made when touched. Positions follow the manifest, sorted by id as a rule."""

    __slots__ = ("_counted", "_ids", "_kept", "_messages", "_order", "_row_counts")

    def __init__(self, messages: Sequence[table_pb2.DataFragment], *, counted: bool = True) -> None:
        """`counted`: whether numbers of rows can be believed; if not, the files have to be asked."""
        self._messages = messages
        self._counted = counted
        self._kept: dict[int, Fragment] = {}
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
        """Raises CorruptFileError if the fragment touched breaks the format."""
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self._messages)))]
        kept = self._kept.get(index)
        if kept is None:
            kept = Fragment.from_proto(self._messages[index])
            if not self._counted:
                kept = _uncounted(kept)
            if len(self._messages) <= _KEPT_FRAGMENTS:
                self._kept[index] = kept
        return kept

    def __iter__(self) -> Iterator[Fragment]:
        return (self[index] for index in range(len(self._messages)))

    def __repr__(self) -> str:
        return f"FragmentList({len(self)} fragments)"

    def message(self, index: int) -> table_pb2.DataFragment:
        """The message itself, not to be changed: for splicing into the next manifest."""
        return self._messages[index]

    def messages(self) -> Sequence[table_pb2.DataFragment]:
        """All messages, not to be changed."""
        return self._messages

    def ids(self) -> npt.NDArray[np.uint64]:
        """(n,) fragment ids in list order, read-only. Raises CorruptFileError if two are equal."""
        ids = self._ids
        if ids is None:
            ids = np.fromiter((message.id for message in self._messages), np.uint64, len(self._messages))
            ids.flags.writeable = False
            if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
                self._order = np.argsort(ids, kind="stable")
                in_order = ids[self._order]
                twice = in_order[1:][in_order[1:] == in_order[:-1]]
                if len(twice):
                    raise CorruptFileError(f"fragment id {twice[0]} occurs twice", found=int(twice[0]))
            self._ids = ids
        return ids

    def position(self, fragment_id: int) -> int | None:
        """Where the fragment with this id stands in the list; None if it is not there."""
        ids = self.ids()
        found = int(np.searchsorted(ids, np.uint64(fragment_id), sorter=self._order))
        if found == len(ids):
            return None
        index = found if self._order is None else int(self._order[found])
        return index if int(ids[index]) == fragment_id else None

    def positions(self, fragment_ids: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        """(n,) ids -> (n,) positions in the list, -1 for ids that are not there."""
        ids = self.ids()
        wanted = np.asarray(fragment_ids, dtype=np.uint64)
        if not len(ids):
            return np.full(len(wanted), -1, np.intp)
        found = np.minimum(np.searchsorted(ids, wanted, sorter=self._order), len(ids) - 1)
        if self._order is not None:
            found = self._order[found]
        return np.where(ids[found] == wanted, found, -1)

    def by_id(self, fragment_id: int) -> Fragment | None:
        """The fragment with this id."""
        position = self.position(fragment_id)
        return None if position is None else self[position]

    def physical_rows(self) -> npt.NDArray[np.int64]:
        """(n,) rows including deleted ones, in list order, read-only; 0 where the writer left the count out."""
        return self._rows()[0]

    def num_deleted_rows(self) -> npt.NDArray[np.int64]:
        """(n,) deleted rows in list order, read-only; -1 where the deletion file has to be read to know."""
        return self._rows()[1]

    def _rows(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Both counts, from one walk: with a million fragments it takes half a second."""
        if self._row_counts is None:
            physical, deleted, counted = [], [], self._counted
            marked = []
            for at, message in enumerate(self._messages):
                physical.append(message.physical_rows)
                if message.HasField("deletion_file"):
                    marked.append(at)
                    deleted.append(message.deletion_file.num_deleted_rows * counted or -1)
            rows, marks = _row_counts(physical if counted else [0] * len(physical)), np.zeros(len(physical), np.int64)
            marks[marked] = _row_counts(deleted)
            rows.flags.writeable = marks.flags.writeable = False
            self._row_counts = rows, marks
        return self._row_counts

    def num_rows(self) -> int | None:
        """Live rows of all fragments; None if a file has to be read to know."""
        rows, deleted = self.physical_rows(), self.num_deleted_rows()
        if (rows == 0).any() or (deleted < 0).any():
            return None
        return int(rows.sum() - deleted.sum())


def _uncounted(fragment: Fragment) -> Fragment:
    """The fragment without what its record says of its rows."""
    deletion_file = fragment.deletion_file
    if deletion_file is not None:
        deletion_file = replace(deletion_file, num_deleted_rows=None)
    rows = None if fragment.files else fragment.physical_rows
    return replace(fragment, physical_rows=rows, deletion_file=deletion_file)


def _row_counts(counts: list[int]) -> npt.NDArray[np.int64]:
    if max(counts, default=0) > MAX_ROWS:
        raise CorruptFileError(
            f"a fragment claims {max(counts)} rows; a row offset has 32 bits", expected=MAX_ROWS, found=max(counts)
        )
    return np.array(counts, np.int64)


class Manifest:
    """One version of a table, over the message it was read from. Source: protos/table.proto, Manifest.

    `message` belongs to this object and must not be changed; a commit works on a copy.
    """

    __slots__ = ("_fragments", "_schema", "message", "path")

    def __init__(self, message: table_pb2.Manifest, path: str | None = None) -> None:
        self.message = message
        self.path = path  # where it was read, for errors
        self._schema: Schema | None = None
        self._fragments: FragmentList | None = None

    @classmethod
    def from_proto(cls, message: table_pb2.Manifest, path: str | None = None) -> Manifest:
        return cls(message, path)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, path: str | None = None) -> Manifest:
        """Raises CorruptFileError, naming `path`, if the bytes are no Manifest message."""
        message = table_pb2.Manifest()
        try:
            message.ParseFromString(data)  # type: ignore[arg-type]  # the stub misses memoryview
        except DecodeError as error:
            raise CorruptFileError(f"malformed manifest: {path or 'no path'}", path=path) from error
        return cls(message, path)

    def to_proto(self) -> table_pb2.Manifest:
        """A copy, free to be changed."""
        message = table_pb2.Manifest()
        message.CopyFrom(self.message)
        return message

    def __reduce__(self) -> tuple[Any, ...]:
        return Manifest.from_bytes, (self.message.SerializeToString(), self.path)

    def __repr__(self) -> str:
        return f"Manifest(version={self.version}, {len(self.fragments)} fragments)"

    @property
    def schema(self) -> Schema:
        """Built at first use. Raises UnsupportedFeatureError or CorruptFileError as `Schema.from_protos` does, and the
        latter if two fields of one parent share a name, which no table has and no query could tell apart."""
        schema = self._schema
        if schema is None:
            schema = Schema.from_protos(self.message.fields, self.message.schema_metadata, self.path)
            self._check_names(schema.fields, "the table")
            self._schema = schema
        return schema

    def _check_names(self, siblings: Sequence[Field], parent: str) -> None:
        if len({each.name for each in siblings}) < len(siblings):
            name = Counter(each.name for each in siblings).most_common(1)[0][0]
            raise CorruptFileError(f"{parent} has two fields named {name!r}", path=self.path, found=name)
        for each in siblings:
            if each.children:
                self._check_names(each.children, f"field {each.name!r}")

    @property
    def fragments(self) -> FragmentList:
        fragments = self._fragments
        if fragments is None:
            # Writers that left no version behind counted wrong at times.
            counted = self.message.HasField("writer_version")
            fragments = self._fragments = FragmentList(self.message.fragments, counted=counted)
        return fragments

    @property
    def version(self) -> int:
        return self.message.version

    @property
    def timestamp_ns(self) -> int:
        """Commit time in nanoseconds since 1970; 0 if absent."""
        timestamp = self.message.timestamp
        return timestamp.seconds * 1_000_000_000 + timestamp.nanos

    @property
    def timestamp(self) -> datetime:
        """Commit time, aware, in UTC, cut to microseconds. Raises CorruptFileError beyond the years 1 to 9999."""
        try:
            return _EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)
        except OverflowError:
            raise CorruptFileError(
                f"commit time {self.message.timestamp.seconds} s is no date", path=self.path, found=self.timestamp_ns
            ) from None

    @property
    def timestamp_local(self) -> datetime:
        """Commit time, naive, in the local time zone, as `versions()` shows it."""
        return self.timestamp.astimezone().replace(tzinfo=None)

    @property
    def reader_flags(self) -> int:
        return self.message.reader_feature_flags

    @property
    def writer_flags(self) -> int:
        return self.message.writer_feature_flags

    @property
    def has_stable_row_ids(self) -> bool:
        return bool(self.message.reader_feature_flags & _STABLE_ROW_IDS)

    @property
    def max_fragment_id(self) -> int | None:
        """Highest fragment id ever used or reserved; None if there never was one."""
        return self.message.max_fragment_id if self.message.HasField("max_fragment_id") else None

    @property
    def transaction_file(self) -> str | None:
        """Name of the transaction file below `_transactions`."""
        return self.message.transaction_file or None

    @property
    def transaction_section(self) -> int | None:
        """Position of the inline transaction in the manifest file, at whichever field number it was written."""
        if self.message.HasField("transaction_section"):
            return self.message.transaction_section
        if self.message.HasField("transaction_section_deprecated"):
            return self.message.transaction_section_deprecated
        return None

    @property
    def index_section(self) -> int | None:
        """Position of the index section in the manifest file; None without indices."""
        return self.message.index_section if self.message.HasField("index_section") else None

    @property
    def next_row_id(self) -> int:
        """The next stable row id to be given out."""
        return self.message.next_row_id

    @property
    def data_format(self) -> str | None:
        """Version number of the data file format as it is written; None if left out."""
        return self.message.data_format.version if self.message.HasField("data_format") else None

    @property
    def file_version(self) -> FileVersion:
        """Format of new data files; that of the first data file where an old manifest says nothing, or says 0.1.

        Raises UnsupportedFeatureError for a newer version, CorruptFileError for one nobody wrote.
        """
        if self.message.HasField("data_format"):
            stated = FileVersion.from_number(self.message.data_format.version, self.path)
            if not stated.is_legacy:
                return stated
            # Release 0.16 wrote 0.1 here while it wrote newer files.
        for fragment in self.message.fragments:
            for file in fragment.files:
                return FileVersion.from_manifest_pair(file.file_major_version, file.file_minor_version, self.path)
        if self.message.HasField("data_format"):
            return FileVersion.LEGACY
        return STABLE_VERSION if self.writer_flags & _V2_FORMAT else FileVersion.LEGACY

    @property
    def config(self) -> Mapping[str, str]:
        return dict(self.message.config)

    @property
    def table_metadata(self) -> Mapping[str, str]:
        return dict(self.message.table_metadata)

    @property
    def schema_metadata(self) -> Mapping[str, bytes]:
        return dict(self.message.schema_metadata)

    @property
    def base_paths(self) -> Mapping[int, BasePath]:
        """Other places of files, by id; 0 is an id like any other."""
        return {base.id: BasePath.from_proto(base) for base in self.message.base_paths}

    @property
    def branch(self) -> str | None:
        """Name of the branch; None on main."""
        return self.message.branch if self.message.HasField("branch") else None

    @property
    def tag(self) -> str:
        """A text carried over from the transaction; unrelated to the tags that name versions."""
        return self.message.tag

    @property
    def writer_version(self) -> WriterVersion | None:
        if not self.message.HasField("writer_version"):
            return None
        return WriterVersion.from_proto(self.message.writer_version)

    @property
    def max_field_id(self) -> int:
        """Highest field id in the schema and in all data files; -1 without any. Walks all fragments."""
        highest = self.schema.max_id
        for fragment in self.message.fragments:
            for file in fragment.files:
                highest = max(highest, max(file.fields, default=-1))
        if self.message.HasField("max_allocated_field_id"):
            highest = max(highest, self.message.max_allocated_field_id)
        return highest
