"""Blobs: values of any size that are opened like files, and the Arrow type for writing them.

    blob_field("video")                      the field of a blob column; needs format 2.2 or newer
    blob_array([b"...", None, Blob(b"")])    its values
    ds.take_blobs("video", indices=[3])      [BlobFile]: read, seek, read_range; bytes are fetched on demand
    ds.read_blobs("video", indices=[3])      [(row address, bytes)]

In tables of older formats a blob column is large_binary with the field metadata `lance-encoding:blob` = `true`; it is
read in the same way.
"""

from __future__ import annotations

import io
import operator
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa

from lancetable.argument_validation import DEFAULT_BLOB_BUFFER_SIZE, check_integer
from lancetable.errors import InvalidInputError, OutOfRangeError
from lancetable.file.blobs.descriptions import PREPARED
from lancetable.file.blobs.prepared import (
    BlobDescriptor,
    BlobDescriptorArrayBuilder,
    DedicatedBlobWriter,
    PackedBlobWriter,
)
from lancetable.format.arrow_extensions import Extension
from lancetable.format.schema import BLOB_V2_NAME

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from lancetable.ops.read.blobs import BlobHandle

__all__ = [
    "DEFAULT_BLOB_BUFFER_SIZE",
    "Blob",
    "BlobArray",
    "BlobColumn",
    "BlobDescriptor",
    "BlobDescriptorArrayBuilder",
    "BlobFile",
    "BlobType",
    "DedicatedBlobWriter",
    "PackedBlobWriter",
    "blob_array",
    "blob_field",
]


_STORAGE: Final = pa.struct(
    {"data": pa.large_binary(), "uri": pa.string(), "position": pa.uint64(), "size": pa.uint64()}
)
_THRESHOLDS: Final = "lance-encoding:blob-{}-threshold"


# ------------------------------------------------------------------------------------------------------------ reading


class BlobFile(io.BufferedIOBase):
    """One blob as a seekable binary file, created by `LanceDataset.take_blobs`.

    Bytes are fetched on demand, `buffer_size` at a time, so that many small sequential reads need few requests; 0
    disables the read-ahead. `read_range` and `read_ranges` fetch exactly their bytes and do not change the position.

    Examples
    --------
    >>> videos = lancetable.dataset("videos.lance")
    >>> with videos.take_blobs("video", indices=[0])[0] as file:
    ...     file.size(), file.read(5), file.read_range(6, 5)
    (11, b'first', b'video')
    """

    def __init__(self, inner: BlobHandle, buffer_size: int = DEFAULT_BLOB_BUFFER_SIZE) -> None:
        self.inner = inner
        self._buffer_size = check_buffer_size(buffer_size)
        self._position = 0
        self._kept = memoryview(b"")
        self._kept_start = 0

    def __repr__(self) -> str:
        return f"<BlobFile size={self.inner.size}>"

    def size(self) -> int:
        """Return the size of the blob in bytes."""
        return self.inner.size

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        self._check_open("tell")
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, which may be past the end, and return it.

        Raises
        ------
        InvalidInputError
            If the position is negative or `whence` is invalid.
        """
        self._check_open("seek")
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise InvalidInputError(f"Invalid whence: {whence}")
        origin = (0, self._position, self.inner.size)[whence]
        target = origin + operator.index(offset)
        if target < 0:
            raise InvalidInputError(f"negative seek value {target}")
        self._position = target
        return target

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to `size` bytes from the position, or all of the rest if `size` is negative or None."""
        self._check_open("read")
        left = max(self.inner.size - self._position, 0)
        length = left if size is None else operator.index(size)
        length = left if length < 0 else min(length, left)
        data = bytes(self._next(length))
        self._position += length
        return data

    def read1(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes from the position. A negative size means `io.DEFAULT_BUFFER_SIZE`."""
        return self.read(io.DEFAULT_BUFFER_SIZE if size < 0 else size)

    def readall(self) -> bytes:
        """Return the rest of the blob."""
        return self.read()

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill `buffer` from the position and return the number of bytes written to it."""
        self._check_open("readinto")
        target = memoryview(buffer).cast("B")
        length = min(len(target), max(self.inner.size - self._position, 0))
        target[:length] = self._next(length)
        self._position += length
        return length

    def read_range(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset`. Raises OutOfRangeError for a range outside the blob."""
        self._check_open("read_range")
        return bytes(self.inner.read(operator.index(offset), operator.index(length)))

    def read_ranges(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of several ranges (offset, length) in few requests.

        Raises
        ------
        InvalidInputError
            If an element is not a pair.
        OutOfRangeError
            If a range is outside the blob.
        """
        self._check_open("read_ranges")
        ranges = list(ranges)
        for span in ranges:
            if len(span) != 2:
                raise InvalidInputError(f"expected tuple of length 2, but got tuple of length {len(span)}")
        wanted = [(operator.index(offset), operator.index(length)) for offset, length in ranges]
        return [bytes(data) for data in self.inner.read_many(wanted)]

    def close(self) -> None:
        """Release the read-ahead buffer. Later reads raise ValueError."""
        self._kept = memoryview(b"")
        super().close()

    def _check_open(self, method: str) -> None:
        if self.closed:
            raise ValueError(f"{method} of closed file")

    def _next(self, length: int) -> memoryview:
        """Return `length` bytes at the position, which must be inside the blob."""
        start = self._position - self._kept_start
        head = self._kept[start : start + length] if start >= 0 else memoryview(b"")
        missing = length - len(head)
        if missing == 0:
            return head
        offset = self._position + len(head)
        if missing >= self._buffer_size:
            rest = self.inner.read(offset, missing)
        else:
            self._kept_start = offset
            self._kept = self.inner.read(offset, min(self._buffer_size, self.inner.size - offset))
            rest = self._kept[:missing]
        return memoryview(b"".join((head, rest))) if head else rest


def check_buffer_size(buffer_size: int) -> int:
    """Return a valid buffer size.

    Raises
    ------
    TypeError
        If it is not an int.
    InvalidInputError
        If it is negative.
    """
    if check_integer("buffer_size", buffer_size) < 0:
        raise InvalidInputError("buffer_size must be non-negative")
    return buffer_size


class BlobColumn:
    """Iterable view of a binary column as files in memory. A null becomes an empty file.

    The column must be binary or large_binary, as in a scan with `blob_handling="all_binary"`. Raises InvalidInputError
    for other types.
    """

    def __init__(self, blob_column: pa.Array | pa.ChunkedArray) -> None:
        if not isinstance(blob_column, (pa.Array, pa.ChunkedArray)):
            raise InvalidInputError(f"Expected a pyarrow.Array or pyarrow.ChunkedArray, got {type(blob_column)}")
        if not pa.types.is_binary(blob_column.type) and not pa.types.is_large_binary(blob_column.type):
            raise InvalidInputError(f"Expected a binary array, got {blob_column.type}")
        self.blob_column = blob_column

    def __iter__(self) -> Iterator[IO[bytes]]:
        for value in self.blob_column:
            yield io.BytesIO(value.as_buffer() if value.is_valid else b"")


# ------------------------------------------------------------------------------------------------------------ writing


@dataclass(frozen=True)
class Blob:
    """One value of a blob column: bytes, or an external object (`uri`), optionally limited by `position` and `size`.

    A null is None, not a Blob. Raises InvalidInputError for neither or both of data and uri, OutOfRangeError for a
    negative position or size.
    """

    data: bytes | None = None
    uri: str | None = None
    position: int | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        if self.data is not None and self.uri is not None:
            raise InvalidInputError("Blob cannot have both data and uri")
        if self.uri is None and (self.position, self.size) != (None, None):
            raise InvalidInputError("External packed blob must have a uri")
        if (self.position is None) != (self.size is None):
            raise InvalidInputError("External blob must set both position and size, or neither")
        if self.data is None and self.uri is None:
            raise InvalidInputError("Blob must set `data` or `uri`; use None for a null blob")
        if self.uri == "":
            raise InvalidInputError("Blob uri cannot be empty")
        for number in (self.position, self.size):
            if number is not None and number < 0:
                raise OutOfRangeError(f"position and size of a blob must not be negative, got {number}")

    @staticmethod
    def from_bytes(data: Buffer) -> Blob:
        """Return a blob of these bytes. Raises TypeError unless `data` is bytes-like."""
        return Blob(data=bytes(memoryview(data)))

    @staticmethod
    def from_uri(uri: str, position: int | None = None, size: int | None = None) -> Blob:
        """Return an external blob: the whole object, or `size` bytes of it from `position`."""
        return Blob(uri=uri, position=position, size=size)

    @staticmethod
    def empty() -> Blob:
        """Return an empty blob, which is not null."""
        return Blob(data=b"")


class BlobArray(pa.ExtensionArray):  # type: ignore[misc]  # pyarrow comes without types
    """Values of a blob column, created by `blob_array`."""

    @classmethod
    def from_pylist(cls, values: Iterable[Any]) -> BlobArray:
        """Return the values as a blob array; see `blob_array`."""
        return blob_array(values)


class BlobType(Extension):
    """The Arrow type of a blob column.

    It is the extension `lance.blob.v2` over struct<data, uri[, position, size]>, or over the struct that
    `BlobDescriptorArrayBuilder` builds.
    """

    name, array = BLOB_V2_NAME.decode(), BlobArray

    def __init__(self, storage_type: pa.DataType = _STORAGE) -> None:
        children = [storage_type.field(number) for number in range(storage_type.num_fields)]
        shape = [(field.name, field.type) for field in children]
        known = [(field.name, field.type) for field in _STORAGE]
        prepared = [(field.name, field.type) for field in PREPARED]
        if not pa.types.is_struct(storage_type) or shape not in (known, known[:2], prepared):
            raise TypeError(f"a blob is stored as {_STORAGE} or its first two fields, not as {storage_type}")
        super().__init__(storage_type)


with suppress(pa.ArrowKeyError):  # if another library has registered the name, its type is used
    pa.register_extension_type(BlobType())


def blob_field(
    name: str,
    *,
    nullable: bool = True,
    inline_size_threshold: int | None = None,
    dedicated_size_threshold: int | None = None,
    pack_file_size_threshold: int | None = None,
) -> pa.Field:
    """Return the field of a blob column, which needs tables of format 2.2 or newer.

    The thresholds are stored in the field's metadata.

    Parameters
    ----------
    name
        Name of the column.
    nullable
        Whether the column may contain nulls.
    inline_size_threshold
        Blobs of up to this size in bytes are stored in the data file; 64 KiB by default.
    dedicated_size_threshold
        Blobs above this size get their own file; 4 MiB by default. Other blobs share files.
    pack_file_size_threshold
        Maximum size of a shared file; 1 GiB by default.

    Raises
    ------
    TypeError
        If a threshold is not an int.
    InvalidInputError
        If a threshold is too small.

    Examples
    --------
    >>> schema = pa.schema([lancetable.blob_field("video")])
    >>> table = pa.table([lancetable.blob_array([b"bytes", None])], schema=schema)
    >>> lancetable.write_dataset(table, "blobs.lance").count_rows()
    2
    """
    given = {
        "inline-size": ("inline_size_threshold", inline_size_threshold, 0),
        "dedicated-size": ("dedicated_size_threshold", dedicated_size_threshold, 1),
        "pack-file-size": ("pack_file_size_threshold", pack_file_size_threshold, 1),
    }
    metadata = {}
    for key, (argument, value, least) in given.items():
        if value is None:
            continue
        if check_integer(argument, value) < least:
            raise InvalidInputError(f"{argument} must be {'positive' if least else 'non-negative'}")
        metadata[_THRESHOLDS.format(key)] = str(value)
    return pa.field(name, BlobType().known(), nullable, metadata or None)


def blob_array(values: Iterable[Any]) -> BlobArray:
    """Return the values of a blob column, each bytes, a `Blob`, a string (a URI) or None.

    Raises
    ------
    TypeError
        If a value has another type.
    InvalidInputError
        If a URI is empty.
    """
    rows: list[dict[str, Any] | None] = []
    for value in values:
        if value is None:
            rows.append(None)
            continue
        if isinstance(value, str):
            value = Blob.from_uri(value)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            value = Blob.from_bytes(value)
        elif not all(hasattr(value, name) for name in ("data", "uri", "position", "size")):
            raise TypeError(f"BlobArray values must be bytes-like, str (URI), Blob, or None; got {type(value)}")
        rows.append({"data": value.data, "uri": value.uri, "position": value.position, "size": value.size})
    storage = pa.array(rows, _STORAGE)
    return BlobType().wrap(storage)  # type: ignore[no-any-return]
