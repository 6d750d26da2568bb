"""Mutable, JSON-serializable fragment metadata of the public API.

The library works with the frozen classes of `lancetable.format.fragment`. Users of pylance build these classes, pickle
them, send them to other processes and pass them to `LanceOperation`.
"""

from __future__ import annotations

import json
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from lancetable import scope
from lancetable.errors import CorruptFileError, InvalidInputError
from lancetable.format import fragment as frozen
from lancetable.ops.write.add_files import adopt_data_file
from lancetable.rowids.row_id_sequence import RowIdSequence as Sequence

if TYPE_CHECKING:
    from typing_extensions import Self

    from lancetable.dataset import LanceDataset
    from lancetable.operation import LanceOperation

__all__ = ["DataFile", "DeletionFile", "FragmentMetadata", "RowDatasetVersionMeta", "RowIdMeta", "RowIdSequence"]

T = TypeVar("T")
U64 = 2**64


class _Path(str):
    """String that can also be called, because `path` was a method in older releases of pylance."""

    __slots__ = ()

    def __call__(self) -> str:
        warnings.warn("DataFile.path() is deprecated, use DataFile.path instead", DeprecationWarning, stacklevel=2)
        return str(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


@dataclass(init=False, repr=False)
class DataFile:
    """One data file of a fragment.

    Attributes
    ----------
    path : str
        Path relative to the data directory of its base.
    fields : list of int
        Field ids stored in the file; `column_indices[i]` is the file's column of `fields[i]`.
    file_major_version, file_minor_version : int
        The version pair as the manifest stores it: (2, 0) for 2.0, (0, 2) for 0.1.
    file_size_bytes : int or None
        None if unknown.
    base_id : int or None
        Id of the base path that contains the file; None for the table's own root.
    """

    _path: str
    fields: list[int]
    column_indices: list[int]
    file_major_version: int = 0
    file_minor_version: int = 0
    file_size_bytes: int | None = None
    base_id: int | None = None

    def __init__(
        self,
        path: str,
        fields: list[int],
        column_indices: list[int] | None = None,
        file_major_version: int = 0,
        file_minor_version: int = 0,
        file_size_bytes: int | None = None,
        base_id: int | None = None,
    ) -> None:
        self._path = path
        self.fields = list(fields)
        self.column_indices = list(column_indices or ())
        self.file_major_version = file_major_version
        self.file_minor_version = file_minor_version
        self.file_size_bytes = file_size_bytes
        self.base_id = base_id

    def __repr__(self) -> str:
        base = "" if self.base_id is None else f", base_id={self.base_id}"
        return (
            f"DataFile(path={self._path!r}, fields={self.fields}, column_indices={self.column_indices}, "
            f"file_major_version={self.file_major_version}, file_minor_version={self.file_minor_version}, "
            f"file_size_bytes={self.file_size_bytes}{base})"
        )

    @staticmethod
    def create(dataset: LanceDataset, path: str, *, base_id: int | None = None) -> DataFile:
        """Describe a finished file below the data directory, for example for `LanceOperation.DataReplacement`.

        Columns of the file are matched to those of the dataset by name.

        Raises
        ------
        NotFoundError, CorruptFileError
            If the file does not exist or is damaged.
        SchemaMismatchError
            If the dataset lacks a column of the file.
        """
        return DataFile.from_format(adopt_data_file(dataset.table_version, path, base_id=base_id)[0])

    @property
    def path(self) -> str:
        """Path relative to the data directory."""
        return _Path(self._path)

    def field_ids(self) -> list[int]:
        """Return the ids of the fields stored in this file."""
        return self.fields

    def to_format(self) -> frozen.DataFile:
        """Return the frozen form. Raises InvalidInputError for an invalid path or list."""
        return parse_stored(frozen.DataFile.from_json, self.asdict())

    @classmethod
    def from_format(cls, file: frozen.DataFile) -> DataFile:
        """Return the public form of a frozen data file."""
        return cls(
            file.path,
            list(file.fields),
            list(file.column_indices),
            file.major,
            file.minor,
            file.size_bytes,
            file.base_id,
        )

    def asdict(self) -> dict[str, Any]:
        """Return a JSON-serializable dict with the keys in pylance's order."""
        values = dict(vars(self))
        path = values.pop("_path")
        return {**values, "path": path}


@dataclass(repr=False)
class DeletionFile:
    """The location and type of the file with the deleted row offsets of a fragment.

    `file_type` is "array" (an Arrow file of offsets) or "bitmap" (a roaring bitmap). `id` is a random 64-bit number
    that makes the file name unique. `read_version` is the version that the deletion was computed on.
    """

    read_version: int
    id: int
    file_type: str
    num_deleted_rows: int | None = None
    base_id: int | None = None

    def __repr__(self) -> str:
        return f"DeletionFile(type={self.file_type!r}, num_deleted_rows={self.num_deleted_rows})"

    def path(self, fragment_id: int, base_uri: str | None = None) -> str:
        """Return the path of the file for fragment `fragment_id`, relative to the table root or below `base_uri`."""
        relative = f"_deletions/{self.to_format().name(fragment_id)}"
        return relative if base_uri is None else f"{base_uri.rstrip('/')}/{relative}"

    def asdict(self) -> dict[str, Any]:
        """Return a JSON-serializable dict with the keys in pylance's order."""
        return asdict(self)

    def json(self) -> str:
        """Return `asdict` as a JSON string."""
        return json.dumps(self.asdict(), separators=(",", ":"))

    @staticmethod
    def from_json(json: str) -> DeletionFile:  # the argument name is pylance's
        """Parse the output of `json`. Raises InvalidInputError for invalid JSON, TypeError unless it is a string."""
        return DeletionFile.from_format(parse_stored(frozen.DeletionFile.from_json, parse_object(json)))

    def to_format(self) -> frozen.DeletionFile:
        """Return the frozen form. Raises InvalidInputError for an invalid type or number."""
        return parse_stored(frozen.DeletionFile.from_json, self.asdict())

    @classmethod
    def from_format(cls, file: frozen.DeletionFile) -> DeletionFile:
        """Return the public form of a frozen deletion file."""
        return cls(file.read_version, file.id, file.kind.label, file.num_deleted_rows, file.base_id)


@dataclass(frozen=True, repr=False)
class InlineBytes:
    """A serialized sequence that is stored with its fragment without being parsed; `KEY` is its name in JSON."""

    KEY = ""
    data: bytes | frozen.SequenceLocation

    def __repr__(self) -> str:
        size = f"{len(self.data)} bytes" if isinstance(self.data, bytes) else self.data.value
        return f"{type(self).__name__}({size})"

    def asdict(self) -> dict[str, Any]:
        """Return a JSON-serializable dict with the bytes as a list of numbers."""
        if not isinstance(self.data, bytes):
            return {self.data.value: None}
        return {self.KEY: list(self.data)}

    def json(self) -> str:
        """Return `asdict` as a JSON string."""
        return json.dumps(self.asdict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, json: str) -> Self:  # the argument name is pylance's
        """Parse the output of `json`. Raises InvalidInputError for invalid JSON, TypeError unless it is a string."""
        return cls.parse(parse_object(json))

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        """Parse the output of `asdict`.

        Raises
        ------
        InvalidInputError
            If `value` has another form.
        """
        if not isinstance(value, Mapping) or value.keys() != {cls.KEY}:
            found = sorted(value) if isinstance(value, Mapping) else value
            raise InvalidInputError(f"{cls.__name__}: expected an object with the key {cls.KEY!r}, found {found!r}")
        try:
            return cls(bytes(value[cls.KEY]))
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"{cls.__name__}: {cls.KEY!r} is not a list of bytes") from error


class RowIdMeta(InlineBytes):
    """The serialized stable row ids of a fragment; `RowIdSequence.from_inline_metadata` parses them."""

    KEY = "Inline"

    @staticmethod
    def from_dict(dict: Mapping[str, Any]) -> RowIdMeta:  # the argument name is pylance's
        """Parse the output of `asdict`. Raises InvalidInputError for another form."""
        return RowIdMeta.parse(dict)


class RowDatasetVersionMeta(InlineBytes):
    """The serialized versions in which the rows of a fragment were created or last updated."""

    KEY = "inline"


class RowIdSequence:
    """The stable row ids of one fragment, in row order."""

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence

    @staticmethod
    def from_inline_metadata(metadata: RowIdMeta) -> RowIdSequence:
        """Parse the row ids of `FragmentMetadata.row_id_meta`.

        Raises
        ------
        TypeError
            If `metadata` is not an inline RowIdMeta.
        CorruptFileError
            If the bytes are invalid.
        """
        if not isinstance(metadata, RowIdMeta) or not isinstance(metadata.data, bytes):
            raise TypeError(f"metadata must be an inline RowIdMeta, got {type(metadata).__name__}")
        return RowIdSequence(Sequence.from_bytes(metadata.data))

    def to_inline_metadata(self) -> RowIdMeta:
        """Serialize the row ids."""
        return RowIdMeta(self._sequence.to_bytes())

    def to_pyarrow(self) -> pa.UInt64Array:
        """Return the ids as an Arrow array, shape (rows,)."""
        return pa.array(self._sequence.values(), pa.uint64())

    def __len__(self) -> int:
        return self._sequence.num_rows

    def __iter__(self) -> Iterator[int]:
        values: list[int] = self._sequence.values().tolist()
        return iter(values)

    def __repr__(self) -> str:
        return f"RowIdSequence({len(self)} row ids)"


@dataclass
class FragmentMetadata:
    """A fragment as listed in a manifest: its files, its rows, and its deletions.

    Attributes
    ----------
    id : int
        Fragment id; 0 in uncommitted fragments, which get their id from the commit.
    files : list of DataFile
        Its data files, each with some of the columns.
    physical_rows : int or None
        Rows in the files, including deleted ones; None if an old release did not record it.
    deletion_file : DeletionFile or None
        The file with the deleted rows.
    row_id_meta, created_at_version_meta, last_updated_at_version_meta
        Only in tables with stable row ids.
    overlays : list
        Data overlays.
    """

    id: int
    files: list[DataFile]
    physical_rows: int | None
    deletion_file: DeletionFile | None = None
    row_id_meta: RowIdMeta | None = None
    created_at_version_meta: RowDatasetVersionMeta | None = None
    last_updated_at_version_meta: RowDatasetVersionMeta | None = None
    overlays: list[LanceOperation.DataOverlayFile] = field(default_factory=list)

    @property
    def num_deletions(self) -> int | None:
        """Number of deleted rows; None if the manifest does not record it."""
        return 0 if self.deletion_file is None else self.deletion_file.num_deleted_rows

    @property
    def num_rows(self) -> int | None:
        """Number of live rows; None if `physical_rows` or `num_deletions` is None."""
        if self.physical_rows is None or self.num_deletions is None:
            return None
        return self.physical_rows - self.num_deletions

    def data_files(self) -> list[DataFile]:
        """Return the data files, each with some of the columns."""
        return self.files

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serializable dict; `from_json(json.dumps(f.to_json())) == f`."""
        return {
            "id": self.id,
            "files": [file.asdict() for file in self.files],
            "overlays": [overlay.asdict() for overlay in self.overlays],
            "physical_rows": self.physical_rows,
            **{name: None if (part := getattr(self, name)) is None else part.asdict() for name in _PARSERS_OF_PARTS},
        }

    @staticmethod
    def from_json(json_data: str) -> FragmentMetadata:
        """Parse the JSON string of `to_json`; `id`, `files` and `physical_rows` are required.

        Raises
        ------
        InvalidInputError
            If the JSON does not describe a fragment.
        TypeError
            If `json_data` is not a string.
        UnsupportedFeatureError
            If the fragment has data overlays.
        """
        value = parse_object(json_data)
        missing = [key for key in ("id", "files", "physical_rows") if key not in value]
        if missing:
            raise InvalidInputError(f"fragment JSON lacks the keys {', '.join(missing)}")
        if not isinstance(value["files"], list):
            raise InvalidInputError(f"the files of fragment JSON must be a list, got {type(value['files']).__name__}")
        if value.get("overlays"):
            scope.raise_unsupported("data overlays", planned=True, name="FragmentMetadata.from_json")
        files = [DataFile.from_format(parse_stored(frozen.DataFile.from_json, file)) for file in value["files"]]
        optional: dict[str, Any] = {
            name: None if value.get(name) is None else parse(value[name]) for name, parse in _PARSERS_OF_PARTS.items()
        }
        return FragmentMetadata(value["id"], files, value["physical_rows"], **optional)

    def to_format(self) -> frozen.Fragment:
        """Return the frozen form.

        Raises
        ------
        InvalidInputError
            If a path or number is invalid.
        UnsupportedFeatureError
            If the fragment has data overlays.
        """
        if not _is_u64(self.id) or not (self.physical_rows is None or _is_u64(self.physical_rows)):
            raise InvalidInputError(f"invalid fragment id {self.id!r} or number of rows {self.physical_rows!r}")
        if self.overlays:
            scope.raise_unsupported("data overlays", planned=True)
        sequences = (self.row_id_meta, self.created_at_version_meta, self.last_updated_at_version_meta)
        return frozen.Fragment(
            self.id,
            tuple(file.to_format() for file in self.files),
            self.physical_rows,
            None if self.deletion_file is None else self.deletion_file.to_format(),
            *[None if sequence is None else sequence.data for sequence in sequences],  # type: ignore[arg-type]
        )

    @classmethod
    def from_format(cls, fragment: frozen.Fragment) -> FragmentMetadata:
        """Return the public form of a frozen fragment.

        Raises
        ------
        UnsupportedFeatureError
            If the fragment has data overlays.
        """
        if fragment.overlays:
            scope.raise_unsupported("data overlays", planned=True)
        return cls(
            fragment.id,
            [DataFile.from_format(file) for file in fragment.files],
            fragment.physical_rows,
            None if fragment.deletion_file is None else DeletionFile.from_format(fragment.deletion_file),
            None if fragment.row_ids is None else RowIdMeta(fragment.row_ids),
            None if fragment.created_at is None else RowDatasetVersionMeta(fragment.created_at),
            None if fragment.last_updated_at is None else RowDatasetVersionMeta(fragment.last_updated_at),
        )


def _is_u64(number: Any) -> bool:
    try:
        return 0 <= operator.index(number) < U64
    except TypeError:
        return False


def _deletion_file(value: Any) -> DeletionFile:
    if not isinstance(value, dict) or not {"read_version", "id", "file_type"} <= value.keys():
        raise InvalidInputError(f"the deletion file of fragment JSON lacks read_version, id or file_type: {value!r}")
    names = ("read_version", "id", "file_type", "num_deleted_rows", "base_id")
    return DeletionFile(**{name: value[name] for name in names if name in value})


# Parsers of the optional parts of a fragment, in the order of its JSON form.
_PARSERS_OF_PARTS: dict[str, Callable[[Any], Any]] = {
    "deletion_file": _deletion_file,
    "row_id_meta": RowIdMeta.parse,
    "created_at_version_meta": RowDatasetVersionMeta.parse,
    "last_updated_at_version_meta": RowDatasetVersionMeta.parse,
}


def parse_object(text: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises
    ------
    TypeError
        If `text` is not a string.
    InvalidInputError
        If it is not the JSON of an object.
    """
    if not isinstance(text, (str, bytes)):
        raise TypeError(f"expected a JSON string, got {type(text).__name__}")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"invalid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInputError(f"expected a JSON object, found {type(value).__name__}")
    return value


def parse_stored(parse: Callable[[Any], T], value: Any) -> T:
    """Parse an argument of the caller with a parser of `lancetable.format`, which is meant for the content of files.

    Raises
    ------
    InvalidInputError
        If the parser raises CorruptFileError.
    """
    try:
        return parse(value)
    except CorruptFileError as error:
        raise InvalidInputError(str(error)) from error
