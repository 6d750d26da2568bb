"""What a family of encodings provides: how the columns of a field are read and written.

    reader.py   FAMILIES[version].open_field(file, field, columns)  ->  ColumnReader
    writer.py   FAMILIES[version].writers(schema)                   ->  ColumnWriter for each top-level field

`Decoded` is what the arms of 2.0 hand to each other: the parts of an Arrow array before it is one, so that a layer
around them can add validity or become the item of a list without taking an array apart again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from lancetable.file.container import ColumnPages, FileMetadata
from lancetable.file.fetch import ReadPlan, Rows
from lancetable.format.schema import Field, Schema

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "BlobSink",
    "ColumnReader",
    "ColumnWriter",
    "Cursor",
    "Decoded",
    "EncodedPage",
    "Family",
    "Pieces",
    "RunPlan",
    "WriteOptions",
    "holds_null",
]

T = TypeVar("T")


class Decoded(NamedTuple):
    """`length` values. Either `array` is set, or the parts of one: all buffers begin at the first value.

    `buffers` (pa.Buffer) are those after the validity bitmap, in Arrow's order; `children` those of a fixed-size list;
    `dictionary` makes `buffers` the indices of a dictionary array.
    """

    length: int
    buffers: Sequence[Any] = ()
    validity: pa.Buffer | None = None
    children: Sequence[pa.Array] | None = None
    dictionary: pa.Array | None = None
    array: pa.Array | None = None

    def to_array(self, data_type: pa.DataType) -> pa.Array:
        """The Arrow array. `data_type` is that of the values, the dictionary type for a dictionary."""
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


def holds_null(array: pa.Array) -> bool:
    """Whether a value is null, be it that its dictionary has one."""
    if array.null_count:
        return True
    if not pa.types.is_dictionary(array.type) or not array.dictionary.null_count:
        return False
    return bool(array.dictionary_decode().null_count)


class RunPlan(Protocol):
    """Answers plans from one file whose bytes lie at hand: mapped, or in memory."""

    def __call__(self, plan: ReadPlan[T]) -> T: ...


class Cursor(Protocol):
    """Reads stretches of rows of one field that follow each other, `rows` as in `ColumnReader.read`: what a page says
    of itself is looked at once."""

    def __call__(self, rows: range) -> list[pa.Array]: ...


class ColumnReader(Protocol):
    """Reads one field, with all below it, from the columns that hold it."""

    @property
    def num_rows(self) -> int: ...

    @property
    def heavy(self) -> bool:
        """Whether reading does more than hand out slices of the file, so that a thread of its own is worth it."""

    def cuts(self, rows: range) -> list[range]:
        """`rows` in parts that can be read apart from each other at no extra cost: at page boundaries."""

    def read(self, rows: Rows, gap: int) -> ReadPlan[list[pa.Array]]:
        """The wanted rows, in order, as one array or several. `rows` is not empty and lies within `num_rows`."""


Pieces: TypeAlias = "Iterable[Any]"
"""One buffer of a page as bytes-like objects to be written one after the other, each before the next is asked for."""


@dataclass(frozen=True, slots=True)
class EncodedPage:
    """A page ready to be written: `buffers` in the order in which `encoding` numbers them.

    `encoding` is a serialized google.protobuf.Any; `priority` the first row of the page in the file (2.1 on).
    """

    column: int
    length: int
    buffers: Sequence[Pieces]
    encoding: bytes
    priority: int = 0


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """`cache_bytes`: what may wait for a page in one column; `max_page_bytes`: where a single array is cut;
    `keep_arrays`: the caller's memory will not change, so what waits need not be copied.
    """

    cache_bytes: int = 8 << 20
    max_page_bytes: int = 32 << 20
    keep_arrays: bool = False


class BlobSink(Protocol):
    """Where a blob writer puts payloads: they lie between the pages."""

    def __call__(self, data: Buffer) -> int:
        """Write the bytes aligned; their position in the file."""


class ColumnWriter(Protocol):
    """Writes one top-level field into its columns. Arrays are queued until a page is full."""

    @property
    def concurrent(self) -> bool:
        """Whether pages may be encoded beside those of other fields: nothing is written meanwhile."""

    def write(self, array: pa.Array) -> Iterable[EncodedPage]:
        """Take the next rows; the pages that became full."""

    def finish(self) -> Iterable[EncodedPage]:
        """The pages of what is still queued."""

    @property
    def queued_bytes(self) -> int:
        """Size of the arrays that wait for their page."""

    @property
    def column_encodings(self) -> Sequence[bytes]:
        """For each column of the field, the serialized `Any` of ColumnMetadata.encoding."""


@dataclass(frozen=True, slots=True)
class Family:
    """The encodings of one or more file versions.

    `open_field(file, field, columns)`: a reader of `field`, whose ids `columns` maps to columns of the file.
    `writers(schema, options, blobs)`: a writer for each top-level field of the schema; None for 0.1, whose files are
    not made of columns and have a writer of their own (encodings_v0_1/writer.py).
    `has_no_nulls(pages)`: whether a column that is a top-level field of its own says of all pages that nothing in them
    is null; also False where it does not say. None for 0.1.
    `open_cursor(reader, run)`: for many stretches of rows of one of these readers; None where planning each of them
    costs little, and for families in which it always does.
    """

    open_field: Callable[[FileMetadata, Field, Mapping[int, int]], ColumnReader]
    writers: Callable[[Schema, WriteOptions, BlobSink], list[ColumnWriter]] | None
    has_no_nulls: Callable[[ColumnPages], bool] | None
    open_cursor: Callable[[ColumnReader, RunPlan], Cursor | None] | None = None
