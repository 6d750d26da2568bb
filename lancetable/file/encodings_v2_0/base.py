"""Interface of the array encodings of 2.0, which are the oneof cases of ArrayEncoding, and parsing of their messages.

    page.encoding (bytes of a google.protobuf.Any)  ->  encoding_of(page)  ->  Nullable(Flat(32, ...), ...)

Encoding objects are immutable and contain no data. Many pages have the same message, so the parsed form of a message is
cached per process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message

from lancetable.errors import CorruptFileError, LanceError, UnsupportedFeatureError
from lancetable.file.column_interfaces import BufferPieces, Decoded
from lancetable.file.custom_encodings import PageEncoding, custom_page, on_change, read_custom
from lancetable.file.footer import BufferRef, ColumnPages, Page
from lancetable.file.io_scheduler import ReadPlan, Rows, Slots, gather, positions
from lancetable.file.page_rows import page_cuts, split_rows
from lancetable.format.protobuf_conversion import M, ProtoMessage, parse_message, register
from lancetable.proto import encodings_v2_0_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self


class ArrayEncoding(Protocol):
    """Node of the encoding tree of a page. `oneof_case` is the name of its oneof case."""

    oneof_case: ClassVar[str]

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, max_gap: int) -> ReadPlan[Decoded]:
        """Plan decoding selected values.

        Parameters
        ----------
        page
            Page of the node.
        data_type
            Arrow type of the values.
        length
            Number of values of the node.
        slots
            Positions of the selected values; not empty, and less than `length`.
        max_gap
            Coalescing distance in bytes: closer ranges may be fetched as one. MAPPED if unused bytes cost nothing.

        Raises
        ------
        CorruptFileError
            If the page is invalid. The error may lack the path, which the caller adds.
        UnsupportedFeatureError
            If a nested encoding is not supported.
        """

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Parse the message of this oneof case. Raises CorruptFileError if it is invalid."""

    def to_proto(self) -> Any:
        """Build the message of this oneof case."""

    def __hash__(self) -> int:
        """Return the hash of an immutable value."""


class ParsedMessage(ProtoMessage):
    """Base of the dataclasses whose name and fields are those of a message of the format."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        cls.message_class = getattr(pb, cls.__name__, None)
        super().__init_subclass__()

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Parse a message. Raises as `from_message`."""
        for field in message.DESCRIPTOR.fields:
            if field.message_type is pb.Buffer.DESCRIPTOR and not message.HasField(field.name):
                raise CorruptFileError(f"a {cls.__name__} encoding lacks its buffer")
        return super().from_proto(message)


def buffer_message(ref: BufferRef) -> pb.Buffer:
    """Build the message of a buffer reference."""
    return pb.Buffer(buffer_index=ref.number, buffer_type=pb.Buffer.BufferType.Name(ref.kind))


ENCODINGS: dict[str, type[ArrayEncoding]] = {}
"""Class of each oneof case. Filled by registry.py; `register_encoding` may add classes."""


def from_message(message: pb.ArrayEncoding) -> ArrayEncoding:
    """Parse an encoding.

    Raises CorruptFileError if the message is empty or invalid, and UnsupportedFeatureError if its case is not
    supported.
    """
    case = message.WhichOneof("array_encoding")
    if case is None:
        raise CorruptFileError("an encoding is missing")
    if case not in ENCODINGS:
        raise UnsupportedFeatureError(f"encoding {case!r} is not supported in 2.0 files", feature=f"encoding {case}")
    return ENCODINGS[case].from_proto(getattr(message, case))


@lru_cache(maxsize=256)
def to_message(encoding: ArrayEncoding) -> pb.ArrayEncoding:
    """Build the message of an encoding. Cached, because columns often share an encoding; callers copy the message."""
    return pb.ArrayEncoding(**{encoding.oneof_case: encoding.to_proto()})


register(pb.Buffer.DESCRIPTOR, lambda message: BufferRef(message.buffer_index, message.buffer_type), buffer_message)
register(pb.ArrayEncoding.DESCRIPTOR, from_message, to_message)


def encoding_of(page: Page) -> ArrayEncoding:
    """Return the encoding tree of a page.

    Raises CorruptFileError or UnsupportedFeatureError, with file, column and page, if the message is invalid or not
    supported.
    """
    try:
        return parse_page(page.encoding)
    except (CorruptFileError, UnsupportedFeatureError) as error:
        page.raise_located(error)


@lru_cache(maxsize=8192)
def parse_page(data: bytes) -> ArrayEncoding:
    """Return the encoding tree of a page from its message, cached. Errors are not located."""
    custom = custom_page(data)
    if custom is not None:
        return CustomPage(custom)
    return from_message(unpack_any(data, pb.ArrayEncoding))


on_change(parse_page.cache_clear)


@dataclass(frozen=True, slots=True)
class CustomPage(ParsedMessage):
    """Encoding tree of a page with a custom encoding, which always decodes the whole page. It has no message."""

    oneof_case: ClassVar[str] = "custom"

    encoding: PageEncoding

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, max_gap: int) -> ReadPlan[Decoded]:
        array = yield from read_custom(self.encoding, page, data_type)
        rows = positions(slots)
        array = array.slice(rows.start, len(rows)) if isinstance(rows, range) else array.take(pa.array(rows))
        return Decoded(len(array), array=array)


def unpack_any(data: bytes, kind: type[M]) -> M:
    """Parse the content of a serialized Any. Raises CorruptFileError if it has another type or is invalid."""
    wrapper = parse_message(AnyMessage, data)
    _, slash, name = wrapper.type_url.rpartition("/")
    if not slash or name != kind.DESCRIPTOR.full_name:
        raise CorruptFileError("wrong kind of encoding message", kind.DESCRIPTOR.full_name, wrapper.type_url[:100])
    return parse_message(kind, wrapper.value)


def pack_any(message: Message) -> bytes:
    """Serialize a message as an Any."""
    type_url = f"/{message.DESCRIPTOR.full_name}"
    return AnyMessage(type_url=type_url, value=message.SerializeToString()).SerializeToString()


@lru_cache(maxsize=256)
def pack_page(encoding: ArrayEncoding) -> bytes:
    """Serialize an encoding tree for Page.encoding.direct. Cached as `to_message`."""
    return pack_any(to_message(encoding))


def refused(error: LanceError) -> ReadPlan[Any]:
    """Return a plan that raises `error` when it is started."""
    yield from ()
    raise error


class PagedReader:
    """Base of the readers of one column that read each page by itself; see `ColumnReader`."""

    decodes: bool = True

    def __init__(self, pages: ColumnPages, data_type: pa.DataType) -> None:
        self._pages = pages
        self._type = data_type
        self.num_rows = pages.num_rows

    def cuts(self, rows: range) -> list[range]:
        return page_cuts(self._pages.start_list, rows)

    def read(self, rows: Rows, max_gap: int) -> ReadPlan[list[pa.Array]]:
        parts = split_rows(self._pages, rows)
        return (yield from gather([self._read_page(number, within, max_gap) for number, within in parts]))

    def _read_page(self, number: int, rows: Rows, max_gap: int) -> ReadPlan[pa.Array]:
        """Plan reading rows of one page."""
        raise NotImplementedError


class BufferList:
    """Collector of the buffers of a page while its encoding tree is built, numbered in the order of `add`."""

    __slots__ = ("buffers",)

    def __init__(self) -> None:
        self.buffers: list[BufferPieces] = []

    def add(self, pieces: BufferPieces) -> BufferRef:
        """Append a buffer that consists of `pieces` and return its reference."""
        self.buffers.append(pieces)
        return BufferRef(len(self.buffers) - 1)
