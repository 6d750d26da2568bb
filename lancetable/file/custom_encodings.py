"""Page encodings provided by other packages.

    field metadata  lancetable:encoding = "example.org/Delta"          selects the encoding when a column is written
    page            Any(type_url = "example.org/Delta", value)         selects the encoding when a page is read

An encoding converts an array to buffers and back, including its nulls. It stores whole pages of a column of plain
values, in every file version from 2.0 on. A reader without that encoding raises UnsupportedFeatureError with the type
url instead of returning wrong values.

    @register_encoding
    class Delta:
        type_url = "example.org/Delta"

        def __init__(self, first: int) -> None: ...
        def to_bytes(self) -> bytes: ...
        @classmethod
        def from_bytes(cls, data: bytes) -> Delta: ...
        @classmethod
        def encode(cls, array: pa.Array) -> tuple[Delta, list[bytes]]: ...
        def decode(self, buffers: list[memoryview], length: int, data_type: pa.DataType) -> pa.Array: ...

`register_encoding` also registers encodings for a oneof case of the format's own messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import pyarrow as pa
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError

from lancetable.errors import (
    CorruptFileError,
    InvalidInputError,
    LanceError,
    UnsupportedFeatureError,
)
from lancetable.store.base import ByteRange

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

    from lancetable.file.footer import Page
    from lancetable.file.io_scheduler import ReadPlan
    from lancetable.format.schema import Field, Schema

ENCODING_KEY: Final = "lancetable:encoding"
"""Key of the field metadata whose value is the type url of the encoding for a column."""


class PageEncoding(Protocol):
    """Encoding of the values of one page. Files identify it by `type_url`."""

    type_url: ClassVar[str]

    @classmethod
    def encode(cls, array: pa.Array) -> tuple[Self, Sequence[Buffer]]:
        """Encode an array. Returns the encoding with its parameters, and the buffers."""

    def decode(self, buffers: Sequence[memoryview], length: int, data_type: pa.DataType) -> pa.Array:
        """Decode the `length` values of a page to `data_type`. The buffers are untrusted; validate them before use."""

    def to_bytes(self) -> bytes:
        """Serialize the parameters that decoding needs in addition to the buffers."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse the result of `to_bytes`."""


_METHODS: Final = ("encode", "decode", "to_bytes", "from_bytes")
_RESERVED_PREFIX: Final = "lance."  # messages of the format itself
PAGE_ENCODINGS: Final[dict[str, type[PageEncoding]]] = {}
"""Registered encodings by `message_name`."""

_LISTENERS: list[Callable[[], None]] = []


def on_change(invalidate: Callable[[], None]) -> None:
    """Call `invalidate` when an encoding is registered or unregistered, to clear caches of parsed encodings."""
    _LISTENERS.append(invalidate)


def clear_caches() -> None:
    """Invalidate all caches of parsed encodings."""
    for invalidate in _LISTENERS:
        invalidate()


def check_page_encoding(encoding: type[Any]) -> None:
    """Raise InvalidInputError if a class does not implement `PageEncoding` or its type url is invalid."""
    url = encoding.type_url
    missing = [name for name in _METHODS if not callable(getattr(encoding, name, None))]
    if missing or not isinstance(url, str):
        raise InvalidInputError(
            f"{encoding.__name__} is not a page encoding: it lacks {', '.join(missing or ['type_url'])}"
        )
    name = message_name(url)
    if not name or name.startswith(_RESERVED_PREFIX):
        raise InvalidInputError(
            f"invalid type url {url!r} of a page encoding; expected host/name with a name that does not start with"
            f" {_RESERVED_PREFIX!r}"
        )


def message_name(url: str) -> str:
    """Return the part of a type url that identifies the message: the part after the last slash."""
    return url.rpartition("/")[2] if "/" in url else ""


def custom_page(data: bytes) -> PageEncoding | None:
    """Parse a serialized Any. Returns None if the message is one of the format's own or `data` is not an Any.

    Raises UnsupportedFeatureError with the type url if the encoding is not registered, and CorruptFileError if it
    cannot parse its parameters.
    """
    wrapper = AnyMessage()
    try:
        wrapper.ParseFromString(data)
    except DecodeError:
        return None
    name = message_name(wrapper.type_url)
    if not name or name.startswith(_RESERVED_PREFIX):
        return None
    encoding = PAGE_ENCODINGS.get(name)
    if encoding is None:
        shown = wrapper.type_url[:100]
        raise UnsupportedFeatureError(f"encoding {shown!r} is not supported", feature=f"encoding {shown!r}")
    try:
        return encoding.from_bytes(wrapper.value)
    except LanceError:
        raise
    except (ValueError, TypeError, LookupError) as error:
        raise CorruptFileError(f"{encoding.__name__} cannot parse its parameters: {error}") from error


def read_custom(encoding: PageEncoding, page: Page, data_type: pa.DataType) -> ReadPlan[pa.Array]:
    """Plan reading all values of a page.

    Raises CorruptFileError if the encoding cannot decode the page or returns a wrong number of values or type.
    """
    buffers = yield [ByteRange(start, end) for start, end in page.buffers]
    try:
        array = encoding.decode(buffers, page.length, data_type)
    except LanceError:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, pa.ArrowException) as error:
        raise CorruptFileError(f"{type(encoding).__name__} cannot decode a page: {error}") from error
    if len(array) != page.length or not array.type.equals(data_type):
        what = f"{type(encoding).__name__} decoded a page to an array of wrong length or type"
        raise CorruptFileError(what, f"{page.length} of {data_type}", f"{len(array)} of {array.type}")
    return array


def requested_encoding(field: Field) -> type[PageEncoding] | None:
    """Return the custom encoding that the metadata of a field selects, or None. Blob columns have none.

    Raises UnsupportedFeatureError if the encoding is not registered or the field is nested.
    """
    value = field.metadata.get(ENCODING_KEY)
    if value is None or field.is_blob:
        return None
    url = value.decode("utf-8", "replace")
    encoding = PAGE_ENCODINGS.get(message_name(url))
    if encoding is None:
        raise UnsupportedFeatureError(
            f"column {field.name!r}: encoding {url!r} is not registered", feature=f"encoding {url!r}", column=field.name
        )
    if field.children:
        raise UnsupportedFeatureError(
            f"column {field.name!r}: custom encoding {url!r} cannot store nested columns such as {field.logical_type}",
            feature=f"{field.logical_type} in a custom encoding",
            column=field.name,
        )
    return encoding


def check_fields(schema: Schema) -> None:
    """Raise UnsupportedFeatureError if the metadata of a nested field selects a custom encoding."""
    for top in schema.fields:
        for field in top.walk() if top.children else ():
            if field is not top and ENCODING_KEY in field.metadata:
                raise UnsupportedFeatureError(
                    f"column {top.name!r}: nested field {field.name!r} selects a custom encoding; only top-level"
                    " columns can use one",
                    feature="nested fields in a custom encoding",
                    column=top.name,
                )


def encode_custom(encoding: type[PageEncoding], array: pa.Array) -> tuple[bytes, list[list[Any]]]:
    """Encode a page. Returns the serialized Any and the buffers."""
    encoded, buffers = encoding.encode(array)
    wrapper = AnyMessage(type_url=encoding.type_url, value=encoded.to_bytes())
    return wrapper.SerializeToString(), [[buffer] for buffer in buffers]
