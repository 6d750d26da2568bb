"""What an arm of CompressiveEncoding and a page layout are, and how they are found from their messages.

    page.encoding (bytes of a google.protobuf.Any)  ->  layout_of(page)  ->  MiniBlock(value=InlineBitpacking(32), ...)

Both are frozen values without data; many pages share one, so each distinct message is parsed once per process.
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

_ALL_VALID_ITEM: Final = 1  # nulls are the business of the encoding
_LAYOUT_URL: Final = "/lance.encodings21.PageLayout"
_LAYOUT_PREFIX_2_3: Final = "/lance.encodings23."

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Chunks(NamedTuple):
    """One buffer of every chunk: (k,) positions and sizes of checked pieces of `data`."""

    data: Bytes
    starts: Ints
    sizes: Ints


def whole(data: Any) -> Chunks:
    """A buffer as the only chunk."""
    octets = np.frombuffer(data, np.uint8)
    return Chunks(octets, np.zeros(1, np.int64), np.array([len(octets)], np.int64))


class Column(NamedTuple):
    """What a layout must know about the column it reads: the type of the values, and of the file version and size."""

    data_type: pa.DataType
    version: FileVersion
    file_bytes: int


class Decoded(NamedTuple):
    """Some rows of a page: the values of visible entries, and the levels of all entries, None where there are none."""

    values: Block
    repetition: Levels | None
    definition: Levels | None
    layers: tuple[int, ...]  # inner to outer
    num_rows: int


class Compressive(Protocol):
    """One node of a tree of compressive encodings. `arm` is its name in the oneof.

    An arm can stand in up to three places; in the others its method raises CorruptFileError. Errors come without a
    path: the caller knows it. `limit` is the most bytes that may be decoded at once.
    """

    arm: ClassVar[str]

    @property
    def num_buffers(self) -> int:
        """Buffers of a mini-block chunk."""

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> Block:
        """The values of all mini-block chunks side by side; `counts[i]` of them are in chunk i."""

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> Block:
        """The same for the block form, which is one buffer: levels and dictionaries."""

    def decode_values(self, values: Block, limit: int) -> Block:
        """Full-zip values, each compressed alone: bytes as they lie in the page -> what they stand for."""

    # An arm may also have `pick_chunks(self, buffers: Sequence[Pieces], limit: int) -> Block`: one value of each piece
    # of its chunks, without decoding the others. See `pick_values`.

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """From the message of this arm."""

    def to_proto(self) -> Any:
        """The message of this arm."""


class Layout(Protocol):
    """How a page lies in its buffers. `arm` is its name in the oneof."""

    arm: ClassVar[str]

    def read(self, page: Page, column: Column, rows: Rows, gap: int) -> ReadPlan[Decoded]:
        """Decode some rows of a page; `rows` is not empty and lies within the page."""

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """From the message of this arm."""

    def to_proto(self) -> Any:
        """The message of this arm."""


COMPRESSIVE: dict[str, type[Compressive]] = {}
"""Name in the oneof -> class. Filled by registry.py; others may add to it."""

LAYOUTS: dict[str, type[Layout]] = {}
"""Name in the oneof -> class. Filled by registry.py; others may add to it."""


def compressive_from_message(message: pb.CompressiveEncoding) -> Compressive:
    """The encoding in a message. Raises CorruptFileError if it holds none, UnsupportedFeatureError for one without a
    class.
    """
    arm = message.WhichOneof("compression")
    if arm is None:
        raise CorruptFileError("an encoding is missing")
    found = COMPRESSIVE.get(arm)
    if found is None:
        raise UnsupportedFeatureError(f"encoding {arm!r} is not supported", feature=f"encoding {arm}")
    return found.from_proto(getattr(message, arm))


def compressive_to_message(encoding: Compressive) -> pb.CompressiveEncoding:
    """The message that holds this encoding."""
    return pb.CompressiveEncoding(**{encoding.arm: encoding.to_proto()})


def layout_from_message(message: pb.PageLayout) -> Layout:
    """The layout in a message; raises as `compressive_from_message`."""
    arm = message.WhichOneof("layout")
    if arm is None:
        raise CorruptFileError("a page layout is missing")
    found = LAYOUTS.get(arm)
    if found is None:
        raise UnsupportedFeatureError(f"page layout {arm!r} is not supported", feature=f"page layout {arm}")
    return found.from_proto(getattr(message, arm))


def layout_of(page: Page) -> Layout:
    """The layout of a page. Raises CorruptFileError or UnsupportedFeatureError naming the page."""
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
    """A page that an encoding of another package reads; always as a whole."""

    arm: ClassVar[str] = "custom"
    __slots__ = ("_encoding",)

    def __init__(self, encoding: PageEncoding) -> None:
        self._encoding = encoding

    def read(self, page: Page, column: Column, rows: Rows, gap: int) -> ReadPlan[Decoded]:
        array = yield from read_custom(self._encoding, page, column.data_type)
        values = Ready(array)
        found = values.slice(rows.start, rows.stop) if isinstance(rows, range) else values.take(rows)
        return Decoded(found, None, None, (_ALL_VALID_ITEM,), len(rows))

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        raise CorruptFileError("an encoding of another package inside of a page")

    def to_proto(self) -> Any:
        raise CorruptFileError("an encoding of another package inside of a page")


def pack_page(layout: Layout) -> bytes:
    """The bytes of Page.encoding.direct for a layout."""
    return pack_any(_LAYOUT_URL, pb.PageLayout(**{layout.arm: layout.to_proto()}))


def misplaced(encoding: Compressive, place: str) -> CorruptFileError:
    """The error for an arm where it cannot stand, to be raised."""
    return CorruptFileError(f"encoding {encoding.arm!r} cannot hold {place}")


def decode_levels(encoding: Compressive, chunks: Chunks, counts: Ints, limit: int) -> Levels:
    """Levels of all chunks side by side."""
    block = encoding.decode_blocks(chunks, counts, limit)
    if not isinstance(block, FixedWidth) or block.bits != 16:
        raise CorruptFileError("levels of a wrong width", expected=16)
    return np.frombuffer(block.data, LEVEL, block.length)


def pick_values(encoding: Compressive, buffers: Sequence[Pieces], limit: int) -> Block:
    """One value of each mini-block chunk, which a piece in every buffer names; chunks ascend and may be repeated."""
    pick: Callable[[Sequence[Pieces], int], Block] | None = getattr(encoding, "pick_chunks", None)
    return pick_decoded(encoding, buffers, limit) if pick is None else pick(buffers, limit)


def pick_decoded(encoding: Compressive, buffers: Sequence[Pieces], limit: int) -> Block:
    """`pick_values` for encodings that cannot find a single value: each chunk is decoded once."""
    buffers[0].check()
    which, piece = buffers[0].once()
    counts = buffers[0].counts[which]
    chunks = [Chunks(each.data, each.starts[which], each.sizes[which]) for each in buffers]
    decoded = encoding.decode_chunks(chunks, counts, limit)
    return decoded.take((np.cumsum(counts) - counts)[piece] + buffers[0].places)
