"""Protocols of compressive encodings and page layouts, and their conversion from and to messages.

    page.encoding (bytes of a google.protobuf.Any)  ->  layout_of(page)  ->  MiniBlock(value=InlineBitpacking(32), ...)

Encodings and layouts are immutable values without data. Many pages share one, so each distinct message is parsed once
per process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.container import Page
from lancetable.file.custom import PageEncoding, custom_page, on_change, read_custom
from lancetable.file.encodings_v2_0.base import pack_any, unpack_any
from lancetable.file.encodings_v2_1.block import Block, FixedWidth
from lancetable.file.encodings_v2_1.compound import Ready
from lancetable.file.fetch import ReadPlan, Rows
from lancetable.file.kernels.levels import LEVEL, Levels
from lancetable.file.kernels.picks import Pieces
from lancetable.format.version import FileVersion
from lancetable.proto import encodings_v2_1_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "COMPRESSIVE",
    "LAYOUTS",
    "Chunks",
    "Column",
    "Compressive",
    "Decoded",
    "Layout",
    "compressive_from_message",
    "compressive_to_message",
    "decode_levels",
    "layout_from_message",
    "layout_of",
    "misplaced",
    "pack_page",
    "pick_decoded",
    "pick_values",
    "whole",
]

_ALL_VALID_ITEM: Final = 1  # a custom encoding stores nulls itself
_LAYOUT_URL: Final = "/lance.encodings21.PageLayout"
_LAYOUT_PREFIX_2_3: Final = "/lance.encodings23."

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Chunks(NamedTuple):
    """One buffer of each of k chunks: (k,) checked positions and sizes in `data`."""

    data: Bytes
    starts: Ints
    sizes: Ints


def whole(data: Any) -> Chunks:
    """Return a buffer as a single chunk."""
    octets = np.frombuffer(data, np.uint8)
    return Chunks(octets, np.zeros(1, np.int64), np.array([len(octets)], np.int64))


class Column(NamedTuple):
    """Context in which a layout is read: the type of the values, and the version and the size of the file."""

    data_type: pa.DataType
    version: FileVersion
    file_bytes: int


class Decoded(NamedTuple):
    """Some rows of a page: the values of visible entries, and the levels of all entries, None without levels."""

    values: Block
    repetition: Levels | None
    definition: Levels | None
    layers: tuple[int, ...]  # inner to outer
    num_rows: int


class Compressive(Protocol):
    """A node in a tree of compressive encodings. `arm` is its name in the oneof.

    An encoding supports one or more of the three forms (chunks, blocks, values); the methods of the others raise
    CorruptFileError. Errors have no path; the caller adds it. `limit` is the maximum number of bytes to decode at once.
    """

    arm: ClassVar[str]

    @property
    def num_buffers(self) -> int:
        """The number of buffers of a mini-block chunk."""

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> Block:
        """Decode all mini-block chunks into one block; chunk i has `counts[i]` values."""

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> Block:
        """Decode the block form, which is one buffer, as used for levels and dictionaries."""

    def decode_values(self, values: Block, limit: int) -> Block:
        """Decode full-zip values, each compressed separately, from their stored bytes."""

    # An encoding may also define `pick_chunks(self, buffers: Sequence[Pieces], limit: int) -> Block`, which decodes one
    # value of each piece without decoding the others. See `pick_values`.

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Convert the message of this arm."""

    def to_proto(self) -> Any:
        """Return the message of this arm."""


class Layout(Protocol):
    """The arrangement of a page in its buffers. `arm` is its name in the oneof."""

    arm: ClassVar[str]

    def read(self, page: Page, column: Column, rows: Rows, gap: int) -> ReadPlan[Decoded]:
        """Decode some rows of a page; `rows` is not empty and within the page."""

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Convert the message of this arm."""

    def to_proto(self) -> Any:
        """Return the message of this arm."""


COMPRESSIVE: dict[str, type[Compressive]] = {}
"""Compressive encodings by name in the oneof. Filled by registry.py; other packages may add entries."""

LAYOUTS: dict[str, type[Layout]] = {}
"""Page layouts by name in the oneof. Filled by registry.py; other packages may add entries."""


def compressive_from_message(message: pb.CompressiveEncoding) -> Compressive:
    """Convert a message to its encoding.

    Raises CorruptFileError if the message is empty, UnsupportedFeatureError for an unknown encoding.
    """
    arm = message.WhichOneof("compression")
    if arm is None:
        raise CorruptFileError("message without an encoding")
    found = COMPRESSIVE.get(arm)
    if found is None:
        raise UnsupportedFeatureError(f"encoding {arm!r} is not supported", feature=f"encoding {arm}")
    return found.from_proto(getattr(message, arm))


def compressive_to_message(encoding: Compressive) -> pb.CompressiveEncoding:
    """Return the message of an encoding."""
    return pb.CompressiveEncoding(**{encoding.arm: encoding.to_proto()})


def layout_from_message(message: pb.PageLayout) -> Layout:
    """Convert a message to its layout. Raises the errors of `compressive_from_message`."""
    arm = message.WhichOneof("layout")
    if arm is None:
        raise CorruptFileError("message without a page layout")
    found = LAYOUTS.get(arm)
    if found is None:
        raise UnsupportedFeatureError(f"page layout {arm!r} is not supported", feature=f"page layout {arm}")
    return found.from_proto(getattr(message, arm))


def layout_of(page: Page) -> Layout:
    """Return the layout of a page. Raises CorruptFileError or UnsupportedFeatureError, with the name of the page."""
    try:
        return _parse_page(page.encoding)
    except CorruptFileError as error:
        raise page.corrupt(str(error)) from error
    except UnsupportedFeatureError as error:
        raise page.unsupported(str(error.feature)) from error


@lru_cache(maxsize=4096)
def _parse_page(data: bytes) -> Layout:
    other = custom_page(data)
    if other is not None:
        return CustomLayout(other)
    message = pb.PageLayout()
    try:
        unpack_any(data, _LAYOUT_URL, message)
    except CorruptFileError as error:
        if str(error.found).startswith(_LAYOUT_PREFIX_2_3):
            raise UnsupportedFeatureError("a page of version 2.3", feature="data file version 2.3") from error
        raise
    return layout_from_message(message)


on_change(_parse_page.cache_clear)


class CustomLayout:
    """A page with a custom encoding of another package, which decodes it as a whole."""

    arm: ClassVar[str] = "custom"
    __slots__ = ("_encoding",)

    def __init__(self, encoding: PageEncoding) -> None:
        self._encoding = encoding

    def read(self, page: Page, column: Column, rows: Rows, gap: int) -> ReadPlan[Decoded]:
        array = yield from read_custom(self._encoding, page, column.data_type)
        values = Ready(array)
        selected = values.slice(rows.start, rows.stop) if isinstance(rows, range) else values.take(rows)
        return Decoded(selected, None, None, (_ALL_VALID_ITEM,), len(rows))

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        raise CorruptFileError("custom encoding nested in a page layout")

    def to_proto(self) -> Any:
        raise CorruptFileError("custom encoding nested in a page layout")


def pack_page(layout: Layout) -> bytes:
    """Return the bytes of Page.encoding.direct for a layout."""
    return pack_any(_LAYOUT_URL, pb.PageLayout(**{layout.arm: layout.to_proto()}))


def misplaced(encoding: Compressive, place: str) -> CorruptFileError:
    """Return an error to raise for an encoding in a context that it does not support."""
    return CorruptFileError(f"encoding {encoding.arm!r} cannot hold {place}")


def decode_levels(encoding: Compressive, chunks: Chunks, counts: Ints, limit: int) -> Levels:
    """Decode the levels of all chunks into one array. Raises CorruptFileError unless they have 16 bits."""
    block = encoding.decode_blocks(chunks, counts, limit)
    if not isinstance(block, FixedWidth) or block.bits != 16:
        raise CorruptFileError("levels have the wrong width", expected="16 bits")
    return np.frombuffer(block.data, LEVEL, block.length)


def pick_values(encoding: Compressive, buffers: Sequence[Pieces], limit: int) -> Block:
    """Decode one value of each mini-block chunk.

    Piece i of every buffer is the i-th selected chunk; chunks ascend and may repeat. Uses the method `pick_chunks` of
    the encoding if there is one, else decodes each chunk once.
    """
    pick: Callable[[Sequence[Pieces], int], Block] | None = getattr(encoding, "pick_chunks", None)
    return pick_decoded(encoding, buffers, limit) if pick is None else pick(buffers, limit)


def pick_decoded(encoding: Compressive, buffers: Sequence[Pieces], limit: int) -> Block:
    """Implement `pick_values` for encodings without access to single values: decode each chunk once."""
    buffers[0].check()
    which, piece = buffers[0].once()
    counts = buffers[0].counts[which]
    chunks = [Chunks(pieces.data, pieces.starts[which], pieces.sizes[which]) for pieces in buffers]
    decoded = encoding.decode_chunks(chunks, counts, limit)
    return decoded.take((np.cumsum(counts) - counts)[piece] + buffers[0].places)
