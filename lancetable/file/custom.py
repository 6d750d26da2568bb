"""Encodings of other packages: how a page is stored that no class of this one knows.

    field metadata  lancetable:encoding = "example.org/Delta"          which encoding the writer takes for a column
    page            Any(type_url = "example.org/Delta", value)         which encoding the reader takes for a page

An encoding turns an array into buffers and back; nulls are its own business. It stands for whole pages of one column of
values, whatever the file version. A reader to whom nobody has made it known refuses the file by the name of the type
url, so a file never reads wrong.

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

Arms of the oneofs in the format's own messages have registries too: see `register_encoding`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import pyarrow as pa
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError

from lancetable.errors import (
    AlreadyExistsError,
    CorruptFileError,
    InvalidInputError,
    LanceError,
    UnsupportedFeatureError,
)
from lancetable.store.base import ByteRange

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

    from lancetable.file.container import Page
    from lancetable.file.fetch import ReadPlan
    from lancetable.format.schema import Field, Schema

__all__ = [
    "ENCODING_KEY",
    "PageEncoding",
    "check_fields",
    "custom_of",
    "custom_page",
    "encode_custom",
    "forget_page_encoding",
    "on_change",
    "read_custom",
    "register_page_encoding",
    "wanted_encoding",
]

ENCODING_KEY: Final = "lancetable:encoding"
"""Field metadata: the type url of the encoding in which a column is to be written."""


class PageEncoding(Protocol):
    """How the values of one page are stored. `type_url` names it in files."""

    type_url: ClassVar[str]

    @classmethod
    def encode(cls, array: pa.Array) -> tuple[Self, Sequence[Buffer]]:
        """The encoding of these values and the buffers that hold them."""

    def decode(self, buffers: Sequence[memoryview], length: int, data_type: pa.DataType) -> pa.Array:
        """The `length` values of a page, as `data_type`. The buffers come from a file: check them before use."""

    def to_bytes(self) -> bytes:
        """What a reader must know beside the buffers."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The opposite of `to_bytes`."""


_METHODS: Final = ("encode", "decode", "to_bytes", "from_bytes")
_OWN: Final = "lance."  # type urls of the format itself
_BY_URL: dict[str, type[PageEncoding]] = {}
_LISTENERS: list[Callable[[], None]] = []


def on_change(forget: Callable[[], None]) -> None:
    """Call `forget` whenever an encoding is registered or taken away: what was parsed before may mean another one."""
    _LISTENERS.append(forget)


def register_page_encoding(encoding: type[PageEncoding], replace: bool = False) -> None:
    """Read and write pages with this type url by `encoding`.

    Raises InvalidInputError for a class that lacks something, AlreadyExistsError for a url that is taken.
    """
    url = encoding.type_url
    missing = [
        name for name in ("encode", "decode", "to_bytes", "from_bytes") if not callable(getattr(encoding, name, None))
    ]
    if missing or not isinstance(url, str):
        raise InvalidInputError(
            f"{encoding.__name__} is no page encoding: it lacks {', '.join(missing or ['type_url'])}"
        )
    name = _name(url)
    if not name or name.startswith(_OWN):
        raise InvalidInputError(f"{url!r} is no type url for an encoding of your own: it must be of the form host/name")
    if name in _BY_URL and not replace:
        raise AlreadyExistsError(f"there is an encoding for {name!r} already: {_BY_URL[name].__name__}")
    _BY_URL[name] = encoding
    changed()


def forget_page_encoding(type_url: str) -> None:
    """Take an encoding away again. Raises InvalidInputError if there is none."""
    if _BY_URL.pop(_name(type_url), None) is None:
        raise InvalidInputError(f"no encoding is registered for {type_url!r}")
    changed()


def changed() -> None:
    """Tell those who keep parsed encodings."""
    for forget in _LISTENERS:
        forget()


def _name(url: str) -> str:
    """What counts of a type url: the part after the last slash."""
    return url.rpartition("/")[2] if "/" in url else ""


def custom_page(data: bytes) -> PageEncoding | None:
    """The encoding in a serialized Any, None if it is one of the format's own or no Any at all.

    Raises UnsupportedFeatureError naming the type url if nobody registered it.
    """
    wrapper = AnyMessage()
    try:
        wrapper.ParseFromString(data)
    except DecodeError:
        return None
    name = _name(wrapper.type_url)
    return None if not name or name.startswith(_OWN) else custom_of(wrapper.type_url, wrapper.value)


def custom_of(type_url: str, value: bytes) -> PageEncoding:
    """The encoding of a page. Raises UnsupportedFeatureError naming the type url if nobody registered it."""
    found = _BY_URL.get(_name(type_url))
    if found is None:
        shown = type_url[:100]
        raise UnsupportedFeatureError(f"encoding {shown!r} is not supported", feature=f"encoding {shown!r}")
    try:
        return found.from_bytes(value)
    except LanceError:
        raise
    except (ValueError, TypeError, LookupError) as error:
        raise CorruptFileError(f"{found.__name__} cannot read its settings: {error}") from error


def read_custom(encoding: PageEncoding, page: Page, data_type: pa.DataType) -> ReadPlan[pa.Array]:
    """All values of a page."""
    buffers = yield [ByteRange(start, end) for start, end in page.buffers]
    try:
        array = encoding.decode(buffers, page.length, data_type)
    except LanceError:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, pa.ArrowException) as error:
        raise CorruptFileError(f"{type(encoding).__name__} cannot read a page: {error}") from error
    if len(array) != page.length or not array.type.equals(data_type):
        raise CorruptFileError(
            f"{type(encoding).__name__} gave other values than a page has",
            expected=f"{page.length} of {data_type}",
            found=f"{len(array)} of {array.type}",
        )
    return array


def wanted_encoding(field: Field) -> type[PageEncoding] | None:
    """What the metadata of a field asks for. Raises UnsupportedFeatureError for an encoding that is not registered."""
    value = field.metadata.get(ENCODING_KEY)
    if value is None:
        return None
    url = value.decode("utf-8", "replace")
    found = _BY_URL.get(_name(url))
    if found is None:
        raise UnsupportedFeatureError(
            f"column {field.name!r}: encoding {url!r} is not registered", feature=f"encoding {url!r}", column=field.name
        )
    if field.children or field.is_blob:
        raise UnsupportedFeatureError(
            f"column {field.name!r}: {url!r} can hold columns of plain values, not {field.logical_type}",
            feature=f"{field.logical_type} by another encoding",
            column=field.name,
        )
    return found


def check_fields(schema: Schema) -> None:
    """Raise UnsupportedFeatureError for a field below the top level that asks for an encoding of another package."""
    for top in schema.fields:
        for field in top.walk():
            if field is not top and ENCODING_KEY in field.metadata:
                raise UnsupportedFeatureError(
                    f"column {top.name!r}: only whole columns can be written in an encoding of another package, not"
                    f" {field.name!r} inside of one",
                    feature="nested fields in another encoding",
                    column=top.name,
                )


def encode_custom(encoding: type[PageEncoding], array: pa.Array) -> tuple[bytes, list[list[Any]]]:
    """The serialized Any and the buffers of a page."""
    made, buffers = encoding.encode(array)
    wrapper = AnyMessage(type_url=encoding.type_url, value=made.to_bytes())
    return wrapper.SerializeToString(), [[buffer] for buffer in buffers]
