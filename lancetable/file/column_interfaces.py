"""Interfaces of an encoding family: readers and writers for the columns of a field.

    reader.py   FAMILIES[version].open_field(file, field, columns)  ->  ColumnReader
    writer.py   FAMILIES[version].writers()                         ->  ColumnWriter for each top-level field

`Decoded` is the result of a nested encoding of 2.0: the parts of an Arrow array. An enclosing encoding can add a
validity bitmap or use it as list items without taking an array apart again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from lancetable.file.footer import ColumnPages, FileMetadata
from lancetable.file.io_scheduler import InMemory, ReadPlan, Rows
from lancetable.format.schema import Field, Schema

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")


class Decoded(NamedTuple):
    """`length` decoded values, as an array (`array`) or as the parts of one (the other members).

    All buffers start at the first value. `buffers` are the pa.Buffer objects after the validity bitmap, in Arrow's
    order. `children` are the items of a fixed-size list. If `dictionary` is set, `buffers` are the indices into it.
    """

    length: int
    buffers: Sequence[Any] = ()
    validity: pa.Buffer | None = None
    children: Sequence[pa.Array] | None = None
    dictionary: pa.Array | None = None
    array: pa.Array | None = None

    def to_array(self, data_type: pa.DataType) -> pa.Array:
        """Return an Arrow array of `data_type`, which is a dictionary type if `dictionary` is set."""
        if self.array is not None:
            return self.array
        if self.dictionary is not None:
            indices = pa.Array.from_buffers(data_type.index_type, self.length, [self.validity, *self.buffers])
            return pa.DictionaryArray.from_arrays(indices, self.dictionary, ordered=data_type.ordered, safe=False)
        return pa.Array.from_buffers(
            data_type,
            self.length,
            [self.validity, *self.buffers],
            -1 if self.validity is not None else 0,
            children=self.children,
        )


def fixed_width_array(data_type: pa.DataType, length: int, values: pa.Buffer) -> pa.Array:
    """Return an array without nulls over contiguous values; `data_type` may be a fixed-size list of such values."""
    if not pa.types.is_fixed_size_list(data_type):
        return pa.Array.from_buffers(data_type, length, [None, values], 0)
    items = fixed_width_array(data_type.value_type, length * data_type.list_size, values)
    return pa.Array.from_buffers(data_type, length, [None], 0, children=[items])


def contains_dictionary(data_type: pa.DataType) -> bool:
    """Return True if a type is or contains a dictionary. Arrow cannot concatenate some arrays of these types."""
    if pa.types.is_dictionary(data_type):
        return True
    return any(contains_dictionary(data_type.field(number).type) for number in range(data_type.num_fields))


def contains_null(array: pa.Array) -> bool:
    """Return True if any value is null, including an index that refers to a null in its dictionary."""
    if array.null_count:
        return True
    if not pa.types.is_dictionary(array.type) or not array.dictionary.null_count:
        return False
    return bool(array.dictionary_decode().null_count)


def array_bytes(array: pa.Array) -> int:
    """Return `array.nbytes`, which is slow, in a faster way for numbers without nulls."""
    data_type = array.type
    if array.null_count or not pa.types.is_primitive(data_type):
        return int(array.nbytes)
    return (len(array) * int(data_type.bit_width) + 7) // 8


class ColumnReader(Protocol):
    """Reader of one field and its descendants."""

    @property
    def num_rows(self) -> int:
        """Number of rows in the file."""

    @property
    def decodes(self) -> bool:
        """True if reading does more than slice the file, so that a separate thread pays off."""

    def cuts(self, rows: range) -> list[range]:
        """Split `rows` at page boundaries into parts that can be read independently at no extra cost."""

    def read(self, rows: Rows, max_gap: int) -> ReadPlan[list[pa.Array]]:
        """Plan reading `rows`, which must not be empty or exceed `num_rows`; returns one or more arrays, in order.

        `max_gap` is the coalescing distance in bytes: closer ranges are read as one.
        """


class GroupReader(Protocol):
    """Reader of several fields at once."""

    @property
    def positions(self) -> Sequence[int]:
        """Positions of the fields among the requested ones."""

    def read(self, rows: Rows, max_gap: int) -> ReadPlan[list[list[pa.Array]]]:
        """Plan reading `rows` of each field; see `ColumnReader.read`."""


class FieldTaker(Protocol):
    """Reader of a few rows of several fields, which reads columns in common steps where it can."""

    def read(self, rows: Rows, max_gap: int) -> ReadPlan[list[list[pa.Array]]]:
        """Plan reading rows; returns the arrays of each field. See ColumnReader."""


BufferPieces: TypeAlias = "Iterable[Any]"
"""One buffer of a page, as bytes-like objects. Each is written before the next is requested from the iterable."""


class EncodedPage(NamedTuple):
    """Page ready to be written. `buffers` has the order in which `encoding` numbers them.

    `encoding` is a serialized google.protobuf.Any. `priority` is the first row of the page in the file (from 2.1 on).
    """

    column: int
    length: int
    buffers: Sequence[BufferPieces]
    encoding: bytes
    priority: int = 0


@dataclass(frozen=True, slots=True)
class PageOptions:
    """Sizes of the pages that column writers build.

    Attributes
    ----------
    cache_bytes
        Maximum size of the arrays that one column queues for its next page.
    max_page_bytes
        Size above which a single array is split into several pages.
    """

    cache_bytes: int = 8 << 20
    max_page_bytes: int = 32 << 20


class BlobSink(Protocol):
    """Function that a blob writer calls to store a payload between the pages of a file."""

    def __call__(self, data: Buffer) -> int:
        """Write the bytes at an aligned position and return that position in the file."""


class ColumnWriter(Protocol):
    """Writer of one top-level field. Arrays are queued until a page is full."""

    @property
    def concurrent(self) -> bool:
        """True if pages may be encoded in parallel with other fields because encoding does not write to the file."""

    def write(self, array: pa.Array) -> Iterable[EncodedPage]:
        """Queue the next rows and return the pages that are full."""

    def finish(self) -> Iterable[EncodedPage]:
        """Return pages with all queued rows."""

    @property
    def queued_bytes(self) -> int:
        """Size of the queued arrays."""


class SmallColumnsEncoder(Protocol):
    """Encoder of the columns of a file that consists of one small array for each top-level field.

    `widths` has a number other than 0 for each column that it may encode.
    """

    widths: Sequence[int]

    def encode(self, first: int, position: int, padding: bytes) -> tuple[bytes, Sequence[bytes], bool]:
        """Encode columns from number `first` on as pages, the first of which is at `position` of the file.

        Each buffer is followed by a part of `padding`, whose length is the alignment of buffers. Returns the bytes of
        the pages, their serialized ColumnMetadata.pages, and True if the next column must be written by a ColumnWriter.
        """


class Writers(NamedTuple):
    """Writers of columns of one file version.

    `column_encodings(schema)` returns the serialized `Any` of ColumnMetadata.encoding of each column of each top-level
    field, and raises UnsupportedFeatureError for fields that the version cannot store. `open_writer(field, column,
    options, blobs)` returns a writer of a top-level field whose first column has the number `column`.
    `small_columns(fields, arrays)` returns an encoder of these arrays, or None if they have too many rows; it is None
    if the version has no such encoder.
    """

    column_encodings: Callable[[Schema], list[Sequence[bytes]]]
    open_writer: Callable[[Field, int, PageOptions, BlobSink], ColumnWriter]
    small_columns: Callable[[Sequence[Field], Sequence[pa.Array]], SmallColumnsEncoder | None] | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """Encodings of one or more file versions.

    Attributes
    ----------
    open_field
        `open_field(file, field, columns)` returns a reader of `field`; `columns` maps field ids to columns of the file.
    group_fields
        `group_fields(file, fields, columns)` returns readers of those fields that are read together. None if all fields
        are read one by one.
    take_fields
        `take_fields(readers)` returns a reader of a few rows of several fields. None if each reader reads its rows.
    read_files
        `read_files(files, data, starts, fields, columns, rows)` reads rows of several small files of one version, whose
        bytes start at `starts` in `data`. It returns the array of each field of each file, or None for a field that
        must be read by its reader. None if all fields are read by their readers.
    writers
        `writers()` returns the writers of columns. None for 0.1, whose pages are not grouped by column;
        file/legacy_writer.py writes those files.
    has_no_nulls
        `has_no_nulls(pages)` returns True if the encodings of a column that is a top-level field guarantee that no
        page contains nulls, and False if they do not or the answer is unknown. None for 0.1.
    """

    open_field: Callable[[FileMetadata, Field, Mapping[int, int]], ColumnReader]
    writers: Callable[[], Writers] | None = None
    has_no_nulls: Callable[[ColumnPages], bool] | None = None
    group_fields: Callable[[FileMetadata, Sequence[Field], Mapping[int, int]], Sequence[GroupReader]] | None = None
    take_fields: Callable[[Sequence[Any]], FieldTaker] | None = None
    read_files: (
        Callable[
            [Sequence[FileMetadata], InMemory, Sequence[int], Sequence[Field], Mapping[int, int], Sequence[Rows]],
            list[list[pa.Array | None]],
        ]
        | None
    ) = None
