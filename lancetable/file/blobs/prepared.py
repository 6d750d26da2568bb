"""Writers of blob files outside of a table, and the prepared columns that describe these blobs in a data file.

    writer = session.open_packed_blob_writer("data/abc.lance", 3)     data/abc/11000000000000000000000000000000.blob
    writer.write_blob(b"hello")                                       hello
    writer.write_blob(b"xy")                                          helloxy
    writer.finish()                                                   Packed 3, 0, 5    Packed 3, 5, 2

    a prepared column    kind  data    uri   blob_id  blob_size  position      struct of extension lance.blob.v2
                            1  null    null        3          5         0      packed: several blobs share a file
                            2  null    null        4          6      null      dedicated: one blob per file
                            0  b'abc'  null     null       null      null      inline: written to the data file

A blob file is stored in a directory named after the data file. Its name is the blob id in binary, lowest bit first.
A `LanceFileWriter` of version 2.2 converts a prepared column to the descriptions that tables read
(`describe_prepared`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import (
    CorruptFileError,
    InvalidInputError,
    InvalidOperationError,
    OutOfRangeError,
    UnsupportedFeatureError,
)
from lancetable.file.blobs.descriptions import PREPARED, BlobKind, blob_file_path, build_descriptions
from lancetable.file.encodings_v2_0.blob import describe_blobs
from lancetable.format.logical_types import EXTENSION_NAME_KEY
from lancetable.format.paths import check_relative
from lancetable.format.schema import BLOB_V2_NAME

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from lancetable.file.column_interfaces import BlobSink
    from lancetable.store.base import ObjectStore

_MAX_ID: Final = (1 << 32) - 1
_MAX_SIZE: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class BlobDescriptor:
    """Location of a blob, as returned by the `finish` method of its writer."""

    kind: BlobKind | None  # None for a null
    blob_id: int = 0
    position: int = 0
    size: int = 0

    def __repr__(self) -> str:
        if self.kind is None:
            return "Null"
        if self.kind is BlobKind.DEDICATED:
            return f"Dedicated {{ blob_id: {self.blob_id}, size: {self.size} }}"
        return f"Packed {{ blob_id: {self.blob_id}, offset: {self.position}, size: {self.size} }}"


class _BlobFile:
    """Base of the writers of blob files. The file appears at its path when it is finished."""

    def __init__(self, store: ObjectStore, data_file: str, blob_id: int) -> None:
        if not data_file.endswith(".lance"):
            raise InvalidInputError(f"expected a data file path that ends with '.lance', got {data_file!r}")
        self._blob_id = _checked_id(blob_id)
        self._path = blob_file_path(data_file, self._blob_id)
        self._store = store
        self._sink = store.open_writer(self._path)
        self._finished = False

    @property
    def blob_id(self) -> int:
        """Id of the blob file, by which blob descriptions refer to it."""
        return self._blob_id

    @property
    def path(self) -> str:
        """Path of the blob file in its store."""
        return self._path.lstrip("/")

    def _append(self, data: Any) -> int:
        self._check_open()
        view = memoryview(data).cast("B")
        self._sink.write(view)
        return len(view)

    def _close(self) -> None:
        self._check_open()
        self._finished = True
        self._sink.close()
        self._store.sync()

    def _check_open(self) -> None:
        if self._finished:
            raise InvalidOperationError(f"{type(self).__name__} is already finished")


class PackedBlobWriter(_BlobFile):
    """Writer of a file that several blobs share; see `LanceFileSession.open_packed_blob_writer`."""

    def __init__(self, store: ObjectStore, data_file: str, blob_id: int) -> None:
        super().__init__(store, data_file, blob_id)
        self._sizes: list[npt.NDArray[np.int64]] = []  # -1 for a null
        self._field: pa.Field | None = None

    @property
    def field(self) -> pa.Field:
        """Field of the column returned by `finish_array`. Raises InvalidOperationError before that call."""
        if self._field is None:
            raise InvalidOperationError("the field is not available yet; call finish_array first")
        return self._field

    def write_blob(self, data: Buffer) -> None:
        """Append a blob. Raises InvalidOperationError if the file is finished."""
        self._sizes.append(np.array([self._append(data)]))

    def write_blobs(self, payloads: pa.Array | pa.ChunkedArray) -> None:
        """Append the values of a binary array, keeping nulls.

        Raises InvalidInputError if the array is not binary, and InvalidOperationError if the file is finished.
        """
        self._check_open()
        if not isinstance(payloads, (pa.Array, pa.ChunkedArray)):
            raise TypeError(f"payloads must be a binary array, got {type(payloads).__name__}")
        if not _is_binary(payloads.type):
            raise InvalidInputError(f"payloads must be binary, got {payloads.type}")
        for chunk in payloads.chunks if isinstance(payloads, pa.ChunkedArray) else [payloads]:
            values = chunk.cast(pa.large_binary())
            sizes = pc.binary_length(values).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            values = values.drop_null()
            if len(values):
                ends = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
                data = values.buffers()[2]
                if data is not None and ends[-1] > ends[0]:
                    self._append(data[int(ends[0]) : int(ends[-1])])
            self._sizes.append(sizes)

    def finish(self) -> list[BlobDescriptor]:
        """Finish the file and return the descriptors of its blobs, in order.

        Raises InvalidOperationError if the file is already finished.
        """
        self._close()
        positions, sizes = self._positions_and_sizes()
        return [
            BlobDescriptor(None) if size < 0 else BlobDescriptor(BlobKind.PACKED, self._blob_id, position, size)
            for position, size in zip(positions.tolist(), sizes.tolist())
        ]

    def finish_array(self, field_name: str) -> pa.StructArray:
        """Finish the file and return a prepared column of its blobs, in order; `field` is the field of the column.

        Raises InvalidOperationError if the file is already finished.
        """
        self._close()
        positions, sizes = self._positions_and_sizes()
        builder = BlobDescriptorArrayBuilder(field_name)
        builder._add(np.where(sizes < 0, -1, BlobKind.PACKED), self._blob_id, positions, np.maximum(sizes, 0))
        self._field = builder.field
        return builder.finish()

    def _positions_and_sizes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        sizes = np.concatenate(self._sizes) if self._sizes else np.zeros(0, np.int64)
        lengths = np.maximum(sizes, 0)
        return np.cumsum(lengths) - lengths, sizes


class DedicatedBlobWriter(_BlobFile):
    """Writer of a file for one blob; see `LanceFileSession.open_dedicated_blob_writer`."""

    def __init__(self, store: ObjectStore, data_file: str, blob_id: int) -> None:
        super().__init__(store, data_file, blob_id)
        self._size = 0

    def write(self, data: Buffer) -> None:
        """Append bytes to the blob. Raises InvalidOperationError if the file is finished."""
        self._size += self._append(data)

    def finish(self) -> BlobDescriptor:
        """Finish the file and return the descriptor of its blob.

        Raises InvalidOperationError if the file is already finished.
        """
        self._close()
        return BlobDescriptor(BlobKind.DEDICATED, self._blob_id, 0, self._size)


class BlobDescriptorArrayBuilder:
    """Builder of a prepared column from descriptors, bytes and nulls.

    After `finish`, all methods raise InvalidOperationError.
    """

    def __init__(self, column: str) -> None:
        self._column = column
        self._parts: list[pa.StructArray] = []
        self._finished = False

    @property
    def field(self) -> pa.Field:
        """Field of the column."""
        return pa.field(self._column, PREPARED, True, {EXTENSION_NAME_KEY: BLOB_V2_NAME})

    def extend_packed(self, blob_id: int, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """Append a row for each blob of a shared file.

        Raises InvalidInputError if the lists differ in length or a number is out of range.
        """
        if len(offsets) != len(sizes):
            raise InvalidInputError(f"offsets and sizes differ in length: {len(offsets)} and {len(sizes)}")
        self._add(np.full(len(sizes), BlobKind.PACKED), _checked_id(blob_id), _sizes(offsets), _sizes(sizes))

    def append_dedicated(self, blob_id: int, size: int) -> None:
        """Append a row for a blob in a dedicated file. Raises InvalidInputError if a number is out of range."""
        self.append(BlobDescriptor(BlobKind.DEDICATED, _checked_id(blob_id), 0, size))

    def append_managed(self, uri: str, offset: int, size: int, *, base_id: int | None = None) -> None:
        """Append a row for a byte range of an existing object, which is neither written nor checked.

        Tables with such rows need the schema metadata `lance.blob.managed` = `true`.

        Parameters
        ----------
        uri
            Path of the object, relative to the table or to a base path.
        offset, size
            Byte range of the blob in the object.
        base_id
            Id of the base path of the table. None for the table itself.

        Raises
        ------
        InvalidInputError
            If `uri` is not a plain relative path.
        OutOfRangeError
            If a number is out of range.
        """
        if not isinstance(uri, str):
            raise TypeError(f"uri must be a string, got {type(uri).__name__}")
        try:
            check_relative(uri)
        except CorruptFileError as error:
            raise InvalidInputError(f"invalid uri of a managed blob: {error}") from error
        kind = BlobKind.MANAGED if base_id is None else BlobKind.MANAGED_BASE
        row = {
            "kind": int(kind),
            "uri": uri,
            "blob_id": None if base_id is None else _number("base_id", base_id, _MAX_ID),
            "blob_size": _number("size", size, _MAX_SIZE),
            "position": _number("offset", offset, _MAX_SIZE),
        }
        self._append_row(row)

    def append(self, value: BlobDescriptor) -> None:
        """Append a row for a blob descriptor."""
        self.extend([value])

    def extend(self, values: Iterable[BlobDescriptor]) -> None:
        """Append a row for each blob descriptor."""
        descriptors = list(values)
        for value in descriptors:
            if not isinstance(value, BlobDescriptor):
                raise TypeError(f"{type(value).__name__!r} object is not a BlobDescriptor")
        self._add(
            np.array([-1 if value.kind is None else value.kind for value in descriptors], np.int64),
            np.array([value.blob_id for value in descriptors], np.uint32),
            _sizes([value.position for value in descriptors]),
            _sizes([value.size for value in descriptors]),
        )

    def append_inline(self, data: Buffer) -> None:
        """Append a row whose bytes are stored in the data file."""
        self._append_row({"kind": int(BlobKind.INLINE), "data": bytes(memoryview(data))})

    def append_null(self) -> None:
        """Append a null row."""
        self._append_row(None)

    def finish(self) -> pa.StructArray:
        """Return the column."""
        self._check_open()
        self._finished = True
        return pa.concat_arrays(self._parts) if self._parts else pa.array([], PREPARED)

    def _append_row(self, row: dict[str, Any] | None) -> None:
        self._check_open()
        self._parts.append(pa.array([row], PREPARED))

    def _add(self, kinds: npt.NDArray[Any], blob_ids: Any, positions: Any, sizes: Any) -> None:
        """Append rows; a kind of -1 is a null. The other arguments are one number for all rows or one for each."""
        self._check_open()
        null = kinds < 0
        count = len(kinds)
        columns = [
            pa.array(np.where(null, 0, kinds).astype(np.uint8), mask=null),
            pa.nulls(count, pa.large_binary()),
            pa.nulls(count, pa.string()),
            pa.array(np.broadcast_to(np.asarray(blob_ids, np.uint32), count), mask=null),
            pa.array(np.asarray(sizes).astype(np.uint64), mask=null),
            pa.array(np.asarray(positions).astype(np.uint64), mask=null | (kinds == BlobKind.DEDICATED)),
        ]
        mask = pa.array(null) if null.any() else None
        self._parts.append(pa.StructArray.from_arrays(columns, fields=list(PREPARED), mask=mask))

    def _check_open(self) -> None:
        if self._finished:
            raise InvalidOperationError("BlobDescriptorArrayBuilder is already finished")


# --- prepared columns in a data file ----------------------------------------------------------------------------------


def is_prepared(field: pa.Field) -> bool:
    """Return True if the field is that of a prepared column."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        return bool(kind.extension_name == BLOB_V2_NAME.decode() and kind.storage_type.equals(PREPARED))
    return bool((field.metadata or {}).get(EXTENSION_NAME_KEY.encode()) == BLOB_V2_NAME and kind.equals(PREPARED))


def plain_field(field: pa.Field) -> pa.Field:
    """Replace the extension type of prepared columns, at any depth, by its storage type and the name in the metadata.

    A field without prepared columns is returned unchanged.
    """
    if is_prepared(field):
        metadata = {**(field.metadata or {}), EXTENSION_NAME_KEY.encode(): BLOB_V2_NAME}
        return pa.field(field.name, PREPARED, field.nullable, metadata)
    return with_fields(field, plain_field)


def with_fields(field: pa.Field, make: Callable[[pa.Field], pa.Field]) -> pa.Field:
    """Apply `make` to the direct children of a struct or list field; return the same field if none changes."""
    kind = field.type
    children = _children(kind)
    replaced = list(map(make, children))
    if all(new.equals(old, check_metadata=True) for new, old in zip(replaced, children)):
        return field
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct(replaced))
    return field.with_type(pa.list_(replaced[0]) if pa.types.is_list(kind) else pa.large_list(replaced[0]))


def contains_prepared(field: pa.Field) -> bool:
    """Return True if the field is that of a prepared column or contains one in structs and lists."""
    return is_prepared(field) or any(map(contains_prepared, _children(field.type)))


def _children(kind: pa.DataType) -> list[pa.Field]:
    """Return the child fields of a struct or list type, and an empty list for other types."""
    is_nested = pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return [kind.field(number) for number in range(kind.num_fields)] if is_nested else []


def describe_prepared(array: pa.Array, sink: BlobSink) -> pa.StructArray:
    """Convert a prepared column to the blob descriptions that a data file stores; write inline bytes to `sink`.

    Raises UnsupportedFeatureError for external blobs, and InvalidInputError for rows that lack a required value or have
    an unknown kind.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    null = array.is_null().to_numpy(zero_copy_only=False)
    kind, position, size, blob_id = (
        array.field(name).fill_null(0).to_numpy(zero_copy_only=False)
        for name in ("kind", "position", "blob_size", "blob_id")
    )
    inline, packed, dedicated, external, managed, managed_base = (~null & (kind == value) for value in BlobKind)
    if external.any():
        raise UnsupportedFeatureError(
            f"external blobs (kind {int(BlobKind.EXTERNAL)}) cannot be written; pass their bytes as inline blobs",
            feature="external blobs",
        )
    if (~null & (kind > BlobKind.MANAGED_BASE)).any():
        raise InvalidInputError(f"unknown kind {int(kind[~null].max())} in a prepared blob column")
    has_uri = managed | managed_base
    has_size = packed | dedicated | has_uri
    has_position = packed | has_uri
    has_blob_id = packed | dedicated | managed_base
    data = array.field("data")
    for name, rows in (
        ("kind", ~null),
        ("data", inline),
        ("uri", has_uri),
        ("blob_id", has_blob_id),
        ("blob_size", has_size),
        ("position", has_position),
    ):
        missing = rows & array.field(name).is_null().to_numpy(zero_copy_only=False)
        if missing.any():
            raise InvalidInputError(f"row {int(missing.argmax())} of a prepared blob column lacks {name!r}")
    position, size = np.where(has_position, position, 0), np.where(has_size, size, 0)
    blob_id = np.where(has_blob_id, blob_id, 0)
    if inline.any():
        written = describe_blobs(data.filter(pa.array(inline)), sink)
        position[inline], size[inline] = np.asarray(written.field(0)), np.asarray(written.field(1))
    uris = pc.if_else(pa.array(has_uri), array.field("uri"), "") if has_uri.any() else None
    return build_descriptions(np.where(null, 0, kind), position, size, blob_id, ~null, uris)


def _checked_id(blob_id: int) -> int:
    if isinstance(blob_id, bool) or not isinstance(blob_id, int):
        raise TypeError(f"blob id must be an int, got {type(blob_id).__name__}")
    if not 0 < blob_id <= _MAX_ID:
        raise InvalidInputError(f"blob id must be between 1 and {_MAX_ID}, got {blob_id}")
    return blob_id


def _number(name: str, value: int, maximum: int) -> int:
    number = operator.index(value)
    if not 0 <= number <= maximum:
        raise OutOfRangeError(f"{name} must be between 0 and {maximum}, got {number}")
    return number


def _sizes(values: Sequence[int]) -> npt.NDArray[np.uint64]:
    for value in values:
        if not 0 <= value <= _MAX_SIZE:
            raise InvalidInputError(f"sizes and offsets must be between 0 and {_MAX_SIZE}, got {value}")
    return np.array(values, np.uint64)


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    checks = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return any(check(kind) for check in checks)
