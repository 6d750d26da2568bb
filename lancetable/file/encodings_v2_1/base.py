"""Base classes of compressive encodings and page layouts, and their conversion to and from messages.

    page.encoding (bytes of a google.protobuf.Any)  ->  layout_of(page)  ->  MiniBlock(InlineBitpacking(32), ...)

Encodings and layouts are immutable values without data. Many pages share one, so parsed messages are cached in the
process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.custom_encodings import PageEncoding, custom_page, on_change, read_custom
from lancetable.file.encodings_v2_0.base import pack_any, unpack_any
from lancetable.file.encodings_v2_1.block import Block, FixedWidth
from lancetable.file.encodings_v2_1.composite_blocks import Ready
from lancetable.file.footer import Page
from lancetable.file.io_scheduler import ReadPlan, Rows
from lancetable.file.kernels.gather import Pieces
from lancetable.file.kernels.levels import LEVEL, Levels
from lancetable.format.protobuf_conversion import ProtoMessage, register
from lancetable.format.version import FileVersion
from lancetable.proto import encodings_v2_1_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

_LAYOUT_PREFIX_2_3: Final = "/lance.encodings23."

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Chunks(NamedTuple):
    """One buffer of each of k chunks, as (k,) checked positions and sizes in `data`."""

    data: Bytes
    starts: Ints
    sizes: Ints

    def part(self, chosen: Any) -> Chunks:
        """Return the buffers of the chunks that a slice or an index array selects."""
        return Chunks(self.data, self.starts[chosen], self.sizes[chosen])


def whole(data: Any) -> Chunks:
    """Return a buffer as a single chunk."""
    octets = np.frombuffer(data, np.uint8)
    return Chunks(octets, np.zeros(1, np.int64), np.array([len(octets)], np.int64))


class ReadContext(NamedTuple):
    """Context of reading a page: the type of the values, and the version and the size of the file."""

    data_type: pa.DataType
    version: FileVersion
    file_bytes: int


class DecodedRows(NamedTuple):
    """Some rows of a page: the values of the visible entries, and the levels of all entries (None without levels)."""

    values: Block
    repetition: Levels | None
    definition: Levels | None
    layers: tuple[int, ...]  # inner to outer
    num_rows: int


_MESSAGES: Final[dict[str, Any]] = {
    "variable_packed_struct.fields": pb.VariablePackedStruct.FieldEncoding,
} | {
    field.name: getattr(pb, cast("Any", field.message_type).name)
    for message in (pb.CompressiveEncoding, pb.PageLayout)
    for field in message.DESCRIPTOR.fields
}


class ParsedMessage(ProtoMessage):
    """Base of the dataclasses for oneof cases. Their fields are those of the message of the case."""

    __slots__ = ()
    oneof_case: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.message_class = _MESSAGES.get(getattr(cls, "oneof_case", ""))
        super().__init_subclass__()

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Convert the message of this case.

        Raises CorruptFileError for parameters out of range, and UnsupportedFeatureError for unsupported ones.
        """
        if any(isinstance(value, pb.BufferCompression) for _, value in message.ListFields()):
            feature = f"compression inside encoding {cls.oneof_case}"
            raise UnsupportedFeatureError(f"{feature} is not supported", feature=feature)
        parsed = super().from_proto(message)
        parsed.check()
        return parsed

    def check(self) -> None:
        """Raise CorruptFileError if parameters are out of range or inconsistent."""


class Compressive(ParsedMessage):
    """Node in a tree of compressive encodings. `oneof_case` is its name in the oneof.

    An encoding supports one or more of the three forms (chunks, blocks, values); the methods of the others raise
    CorruptFileError. Errors have no path; the caller adds it. `limit` is the maximum number of bytes to decode at once.
    """

    __slots__ = ()

    @property
    def num_buffers(self) -> int:
        """The number of buffers of a mini-block chunk."""
        return 1

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> Block:
        """Decode all mini-block chunks into one block; chunk i has `counts[i]` values.

        By default, each chunk has the block form.
        """
        return self.decode_blocks(buffers[0], counts, limit)

    def pick_chunks(self, buffers: Sequence[Pieces], limit: int) -> Block:
        """Decode one value of each mini-block chunk.

        Piece i of every buffer is the i-th selected chunk; chunks ascend and may repeat. By default each chunk is
        decoded once; override this for access to single values.
        """
        buffers[0].check()
        first_indices, piece_numbers = buffers[0].distinct()
        counts = buffers[0].counts[first_indices]
        chunks = [Chunks(pieces.data, pieces.starts[first_indices], pieces.sizes[first_indices]) for pieces in buffers]
        values_before = np.cumsum(counts) - counts
        return self.decode_chunks(chunks, counts, limit).take(values_before[piece_numbers] + buffers[0].value_indices)

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> Block:
        """Decode the block form, a single buffer, which is used for levels and dictionaries."""
        raise misplaced(self, "levels or a dictionary")

    def decode_values(self, values: Block, limit: int) -> Block:
        """Decode full-zip values, each compressed separately, from their stored bytes."""
        raise misplaced(self, "single values")


class Wrapper(Compressive):
    """Base of encodings that convert the decoded values of another encoding, `values`."""

    __slots__ = ()
    values: Compressive

    @property
    def num_buffers(self) -> int:
        return self.values.num_buffers

    def convert(self, block: Block) -> Block:
        """Convert decoded values."""
        raise NotImplementedError

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> Block:
        return self.convert(self.values.decode_chunks(buffers, counts, limit))

    def pick_chunks(self, buffers: Sequence[Pieces], limit: int) -> Block:
        return self.convert(self.values.pick_chunks(buffers, limit))

    def decode_values(self, values: Block, limit: int) -> Block:
        return self.convert(self.values.decode_values(values, limit))


class PageLayout(ParsedMessage):
    """Arrangement of a page in its buffers. `oneof_case` is its name in the oneof."""

    __slots__ = ()

    def read(self, page: Page, context: ReadContext, rows: Rows, max_gap: int) -> ReadPlan[DecodedRows]:
        """Decode some rows of a page; `rows` is not empty and within the page."""
        raise NotImplementedError


COMPRESSIVE: dict[str, type[Compressive]] = {}
"""Compressive encodings by name in the oneof. Filled by registry.py; other packages may add entries."""

LAYOUTS: dict[str, type[PageLayout]] = {}
"""Page layouts by name in the oneof. Filled by registry.py; other packages may add entries."""

_ONEOFS: Final[dict[type[Any], tuple[str, str, dict[str, type[Any]]]]] = {
    pb.CompressiveEncoding: ("compression", "encoding", COMPRESSIVE),
    pb.PageLayout: ("layout", "page layout", LAYOUTS),
}


def from_message(message: pb.CompressiveEncoding | pb.PageLayout) -> Any:
    """Convert a message to its encoding or layout.

    Raises CorruptFileError if the message is empty, and UnsupportedFeatureError for an unknown case.
    """
    oneof, kind, known = _ONEOFS[type(message)]
    case = message.WhichOneof(oneof)
    if case is None:
        raise CorruptFileError(f"message has no {kind}")
    if case not in known:
        raise UnsupportedFeatureError(f"{kind} {case!r} is not supported", feature=f"{kind} {case}")
    return known[case].from_proto(getattr(message, case))


def to_message(value: Compressive | PageLayout) -> Any:
    """Return the message of an encoding or layout."""
    message = pb.PageLayout if isinstance(value, PageLayout) else pb.CompressiveEncoding
    return message(**{value.oneof_case: value.to_proto()})


for _oneof in _ONEOFS:
    register(_oneof.DESCRIPTOR, from_message, to_message)


@lru_cache(maxsize=256)
def pack_page(layout: PageLayout) -> bytes:
    """Return the bytes of Page.encoding.direct for a layout. Cached, because columns often share a layout."""
    return pack_any(to_message(layout))


def layout_of(page: Page) -> PageLayout:
    """Return the layout of a page. Raises CorruptFileError or UnsupportedFeatureError, with file, column and page."""
    try:
        return parse_layout(page.encoding)
    except (CorruptFileError, UnsupportedFeatureError) as error:
        page.raise_located(error)


@lru_cache(maxsize=4096)
def parse_layout(data: bytes) -> PageLayout:
    """Return the layout of serialized pages. Raises as `layout_of`, but without file, column and page."""
    custom = custom_page(data)
    if custom is not None:
        return CustomLayout(custom)
    try:
        message = unpack_any(data, pb.PageLayout)
    except CorruptFileError as error:
        if str(error.found).startswith(_LAYOUT_PREFIX_2_3):
            raise UnsupportedFeatureError("a page of version 2.3", feature="data file version 2.3") from error
        raise
    layout: PageLayout = from_message(message)
    return layout


on_change(parse_layout.cache_clear)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CustomLayout(PageLayout):
    """Layout of a page with a custom encoding, which always decodes the whole page. It has no message."""

    oneof_case: ClassVar[str] = "custom"

    encoding: PageEncoding

    def read(self, page: Page, context: ReadContext, rows: Rows, max_gap: int) -> ReadPlan[DecodedRows]:
        values = Ready((yield from read_custom(self.encoding, page, context.data_type)))
        selected = values.slice(rows.start, rows.stop) if isinstance(rows, range) else values.take(rows)
        # The encoding stores nulls itself.
        return DecodedRows(selected, None, None, (pb.REPDEF_ALL_VALID_ITEM,), len(rows))


def misplaced(encoding: Compressive, place: str) -> CorruptFileError:
    """Return the error for an encoding in a context that it does not support; the caller raises it."""
    return CorruptFileError(f"encoding {encoding.oneof_case!r} cannot store {place}")


def decode_levels(encoding: Compressive, chunks: Chunks, counts: Ints, limit: int) -> Levels:
    """Decode the levels of all chunks into one array. Raises CorruptFileError unless they have 16 bits."""
    block = encoding.decode_blocks(chunks, counts, limit)
    if not isinstance(block, FixedWidth) or block.bits != 16:
        raise CorruptFileError("levels have the wrong width", "16 bits")
    return np.frombuffer(block.data, LEVEL, block.length)
