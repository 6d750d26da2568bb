"""Parser of encoding messages for display. It also accepts encodings that this library cannot decode."""

from __future__ import annotations

from typing import Final

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message

from lancetable.format.protobuf_conversion import parse_message
from lancetable.proto.encodings_v2_0_pb2 import ArrayEncoding, ColumnEncoding
from lancetable.proto.encodings_v2_1_pb2 import PageLayout

_KINDS: Final = {kind.DESCRIPTOR.full_name: kind for kind in (ArrayEncoding, ColumnEncoding, PageLayout)}


def parse_encoding(data: bytes, path: str | None = None) -> tuple[str, Message | bytes]:
    """Return the type URL of a serialized encoding, and its message or, for an unknown type, its bytes.

    Raises CorruptFileError if the bytes are not a valid message.
    """
    wrapper = parse_message(AnyMessage, data, path)
    kind = _KINDS.get(wrapper.type_url.rpartition("/")[2])
    return wrapper.type_url, wrapper.value if kind is None else parse_message(kind, wrapper.value, path)
