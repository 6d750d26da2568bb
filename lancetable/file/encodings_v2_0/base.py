"""What an arm of ArrayEncoding is, and how one is found from its message.

    page.encoding (bytes of a google.protobuf.Any)  ->  encoding_of(page)  ->  Nullable(Flat(32, ...), ...)

Encodings are frozen values without data; many pages share one, so each distinct message is parsed once per process.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import pyarrow as pa
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError

from lancetable.errors import CorruptFileError, LanceError, UnsupportedFeatureError
from lancetable.file.column import Decoded, Pieces
from lancetable.file.container import BufferRef, Page
from lancetable.file.custom import PageEncoding, custom_page, on_change, read_custom
from lancetable.file.fetch import ReadPlan, Slots, positions
from lancetable.proto import encodings_v2_0_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "ARMS",
    "ArrayEncoding",
    "BufferList",
    "buffer_message",
    "buffer_ref",
    "encoding_of",
    "from_message",
    "pack_any",
    "pack_page",
    "refused",
    "to_message",
    "unpack_any",
]

_ARRAY_URL: Final = "/lance.encodings.ArrayEncoding"


class ArrayEncoding(Protocol):
    """One node of a page's encoding tree. `arm` is its name in the oneof."""

    arm: ClassVar[str]

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, gap: int) -> ReadPlan[Decoded]:
        """Decode the values at `slots` of the `length` values that this node holds, as `data_type`.

        `slots` is not empty and lies within `length`. Rows nearer than `gap` bytes may be fetched as one range; a gap
        of MAPPED means that ranges cost nothing to ask for.
        Raises CorruptFileError, without a path where the page is not at hand: the caller adds it.
        """

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """From the message of this arm."""

    def to_proto(self) -> Any:
        """The message of this arm."""


ARMS: dict[str, type[ArrayEncoding]] = {}
"""Name in the oneof -> class. Filled by registry.py; others may add to it."""


def from_message(message: pb.ArrayEncoding) -> ArrayEncoding:
    """The encoding in a message. Raises CorruptFileError if it holds none, UnsupportedFeatureError for one without a
    class.
    """
    arm = message.WhichOneof("array_encoding")
    if arm is None:
        raise CorruptFileError("an encoding is missing")
    found = ARMS.get(arm)
    if found is None:
        raise UnsupportedFeatureError(f"encoding {arm!r} is not supported in 2.0 files", feature=f"encoding {arm}")
    return found.from_proto(getattr(message, arm))


def to_message(encoding: ArrayEncoding) -> pb.ArrayEncoding:
    """The message that holds this encoding."""
    return pb.ArrayEncoding(**{encoding.arm: encoding.to_proto()})


def buffer_ref(message: pb.Buffer) -> BufferRef:
    """Which buffer a message names."""
    return BufferRef(message.buffer_index, message.buffer_type)


def buffer_message(ref: BufferRef) -> pb.Buffer:
    """The message that names a buffer."""
    return pb.Buffer(buffer_index=ref.number, buffer_type=pb.Buffer.BufferType.Name(ref.kind))


def encoding_of(page: Page) -> ArrayEncoding:
    """The encoding tree of a page. Raises CorruptFileError or UnsupportedFeatureError naming the page."""
    try:
        return _parse_page(page.encoding)
    except CorruptFileError as error:
        raise page.corrupt(str(error)) from error
    except UnsupportedFeatureError as error:
        raise page.unsupported(str(error.feature)) from error


@lru_cache(maxsize=8192)
def _parse_page(data: bytes) -> ArrayEncoding:
    other = custom_page(data)
    if other is not None:
        return CustomPage(other)
    message = pb.ArrayEncoding()
    unpack_any(data, _ARRAY_URL, message)
    return from_message(message)


on_change(_parse_page.cache_clear)


class CustomPage:
    """A page that an encoding of another package reads; always as a whole."""

    arm: ClassVar[str] = "custom"
    __slots__ = ("_encoding",)

    def __init__(self, encoding: PageEncoding) -> None:
        self._encoding = encoding

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, gap: int) -> ReadPlan[Decoded]:
        array = yield from read_custom(self._encoding, page, data_type)
        rows = positions(slots)
        if isinstance(rows, range):
            array = array.slice(rows.start, len(rows))
        else:
            array = array.take(pa.array(rows))
        return Decoded(len(array), array=array)

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        raise CorruptFileError("an encoding of another package inside of a page")

    def to_proto(self) -> Any:
        raise CorruptFileError("an encoding of another package inside of a page")


def unpack_any(data: bytes, url: str, message: Any) -> None:
    """Fill `message` from a serialized Any whose type url must end like `url`."""
    wrapper = AnyMessage()
    try:
        wrapper.ParseFromString(data)
        _, slash, name = wrapper.type_url.rpartition("/")
        if not slash or f"/{name}" != url:
            raise CorruptFileError("an encoding of another kind", expected=url, found=wrapper.type_url[:100])
        message.ParseFromString(wrapper.value)
    except DecodeError as error:
        raise CorruptFileError("an encoding message does not parse") from error


def pack_any(url: str, message: Any) -> bytes:
    """A serialized Any of a message."""
    return AnyMessage(type_url=url, value=message.SerializeToString()).SerializeToString()


def pack_page(encoding: ArrayEncoding) -> bytes:
    """The bytes of Page.encoding.direct for an encoding tree."""
    return pack_any(_ARRAY_URL, to_message(encoding))


def refused(error: LanceError) -> ReadPlan[Any]:
    """A plan that raises."""
    yield from ()
    raise error


class BufferList:
    """Collects the buffers of a page while its encoding tree is built; a buffer's number is its place here."""

    __slots__ = ("buffers",)

    def __init__(self) -> None:
        self.buffers: list[Pieces] = []

    def add(self, pieces: Pieces) -> BufferRef:
        """Append one buffer, given as the pieces it consists of."""
        self.buffers.append(pieces)
        return BufferRef(len(self.buffers) - 1)
