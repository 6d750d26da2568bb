"""Encodings of pages in one line, for display."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import Message

from lancetable.file.encoding_messages import parse_encoding
from lancetable.proto import encodings_v2_0_pb2, encodings_v2_1_pb2

_NODES: Final = {
    encodings_v2_0_pb2.ArrayEncoding.DESCRIPTOR.full_name: "array_encoding",
    encodings_v2_1_pb2.PageLayout.DESCRIPTOR.full_name: "layout",
    encodings_v2_1_pb2.CompressiveEncoding.DESCRIPTOR.full_name: "compression",
}
_LEVELS: Final = frozenset({"rep_compression", "def_compression"})


def format_encoding(data: bytes, path: str) -> str:
    """Return a page's encoding in one line: `mini_block(fsst(variable(flat 32)))`. Level encodings are omitted.

    Raises CorruptFileError.
    """
    type_url, message = parse_encoding(data, path)
    if isinstance(message, bytes) or message.DESCRIPTOR.full_name not in _NODES:
        return type_url
    return format_node(message)


def format_node(message: Message) -> str:
    """Return one node of the encoding tree with its descendants."""
    oneof_case = message.WhichOneof(_NODES[message.DESCRIPTOR.full_name])
    if oneof_case is None:
        return "none"
    inner = getattr(message, oneof_case)
    children = [
        f"dictionary {format_node(node)}" if name == "dictionary" else format_node(node)
        for name, node in child_nodes(inner)
    ]
    bits = getattr(inner, "bits_per_value", None) or getattr(inner, "uncompressed_bits_per_value", None)
    scheme = getattr(getattr(inner, "compression", None), "scheme", None)
    label = oneof_case.removesuffix("_layout")
    if oneof_case == "general" and scheme is not None:
        label = str(inner.compression.DESCRIPTOR.fields_by_name["scheme"].enum_type.values_by_number[scheme].name)
        label = label.rpartition("_")[2].lower()
    elif isinstance(bits, int) and not children:
        label = f"{label} {bits}"
    return f"{label}({', '.join(children)})" if children else label


def child_nodes(message: Message) -> Iterator[tuple[str, Message]]:
    """Yield the nearest descendant nodes of a message with the names of their fields. Level encodings are omitted."""
    for field, value in message.ListFields():
        if field.message_type is None or field.name in _LEVELS:
            continue
        for child in [value] if isinstance(value, Message) else value:
            if child.DESCRIPTOR.full_name in _NODES:
                yield field.name, child
            else:
                yield from child_nodes(child)
