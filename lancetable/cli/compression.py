"""What became of each column of a data file: bytes as Arrow arrays, bytes in the file, and the encodings between them.

Pages count with their buffers, without padding; payloads of blobs lie beside their column and are left out on both
sides. From 2.1 on structs and lists have no column: their offsets and validity count with the first leaf below them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message

from lancetable.cli.inspect import size_of
from lancetable.errors import CorruptFileError
from lancetable.file.columns import is_single_column, number_columns
from lancetable.file.container import ColumnPages, FileMetadata
from lancetable.file.reader import open_data_file, read_columns
from lancetable.format.blobs import described
from lancetable.format.schema import Field
from lancetable.proto import encodings_v2_0_pb2, encodings_v2_1_pb2
from lancetable.store.base import ObjectStore
from lancetable.store.open import open_store

__all__ = ["COLUMNS", "PAGE_MESSAGES", "describe_compression", "encoding_text"]

COLUMNS: Final = ("column", "path", "type", "rows", "pages", "arrow_bytes", "file_bytes", "ratio", "encodings")
PAGE_MESSAGES: Final[Mapping[str, type[Message]]] = {
    "lance.encodings.ArrayEncoding": encodings_v2_0_pb2.ArrayEncoding,
    "lance.encodings21.PageLayout": encodings_v2_1_pb2.PageLayout,
}
_NODES: Final = {
    encodings_v2_0_pb2.ArrayEncoding.DESCRIPTOR.full_name: "array_encoding",
    encodings_v2_1_pb2.PageLayout.DESCRIPTOR.full_name: "layout",
    encodings_v2_1_pb2.CompressiveEncoding.DESCRIPTOR.full_name: "compression",
}
_LEVELS: Final = frozenset({"rep_compression", "def_compression"})
_WINDOW_ROWS: Final = 64 * 1024


def describe_compression(uri: str, storage_options: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """One entry for each column of a data file, and one for all; reads the whole file, a window at a time.

    `ratio` is file bytes by Arrow bytes, None without any; `encodings` maps each encoding to its number of pages.
    Raises NotFoundError, CorruptFileError, UnsupportedFeatureError.
    """
    store, path = open_store(uri, storage_options)
    metadata = open_data_file(store, path, size=size_of(store, path, uri))
    ids, columns = number_columns(metadata.schema, metadata.version)
    places = dict(zip(ids, columns))
    sizes = arrow_sizes(store, path, metadata, places)
    rows = []
    for field_id, number in places.items():
        field = metadata.schema.by_id[field_id]
        column = metadata.column(number)
        used = encodings_of(column)
        rows.append(
            row_of(number, metadata.schema.path_of(field_id), field.logical_type, column, sizes[field_id], used)
        )
    total_arrow, total_file = sum(row["arrow_bytes"] for row in rows), sum(row["file_bytes"] for row in rows)
    rows.append(
        {
            "column": None,
            "path": "(all)",
            "type": "",
            "rows": metadata.num_rows,
            "pages": sum(row["pages"] for row in rows),
            "arrow_bytes": total_arrow,
            "file_bytes": total_file,
            "ratio": ratio(total_file, total_arrow),
            "encodings": {},
        }
    )
    return rows


def row_of(
    number: int, path: str, kind: str, column: ColumnPages, arrow_bytes: int, used: Mapping[str, int]
) -> dict[str, Any]:
    """The entry of one column."""
    return {
        "column": number,
        "path": path,
        "type": kind,
        "rows": column.num_rows,
        "pages": len(column),
        "arrow_bytes": arrow_bytes,
        "file_bytes": column.size_bytes,
        "ratio": ratio(column.size_bytes, arrow_bytes),
        "encodings": dict(used),
    }


def ratio(file_bytes: int, arrow_bytes: int) -> float | None:
    """What is left of the Arrow bytes."""
    return round(file_bytes / arrow_bytes, 4) if arrow_bytes else None


# ------------------------------------------------------------------------------------------------------- Arrow's bytes


def arrow_sizes(store: ObjectStore, path: str, metadata: FileMetadata, places: Mapping[int, int]) -> Counter[int]:
    """Field id -> bytes of its arrays."""
    sizes: Counter[int] = Counter()
    fields = [described(field) for field in metadata.schema.fields]
    for start in range(0, metadata.num_rows, _WINDOW_ROWS):
        rows = range(start, min(start + _WINDOW_ROWS, metadata.num_rows))
        for field, array in zip(fields, read_columns(store, path, metadata, fields, places, rows)):
            for chunk in array.chunks:
                add_sizes(field, chunk, places, sizes)
    return sizes


def add_sizes(field: Field, array: pa.Array, places: Mapping[int, int], sizes: Counter[int]) -> None:
    """Add the bytes of an array to the fields that have a column."""
    if is_single_column(field) or not has_columns(field.children, places):
        sizes[field.id] += array.nbytes
        return
    children = list(children_of(field, array))
    own = max(array.nbytes - sum(child.nbytes for _, child in children), 0)
    holder = field
    while holder.id not in places:
        holder = holder.children[0]
    sizes[holder.id] += own
    for child, values in children:
        add_sizes(child, values, places, sizes)


def has_columns(fields: Sequence[Field], places: Mapping[int, int]) -> bool:
    """Whether any of these fields, or one below, has a column."""
    return any(each.id in places for field in fields for each in field.walk())


def children_of(field: Field, array: pa.Array) -> Iterator[tuple[Field, pa.Array]]:
    """The fields below a struct, list or map with their values."""
    if field.is_struct:
        for number, child in enumerate(field.children):
            yield child, array.field(number)
    elif field.logical_type == "map":
        entries = field.children[0]
        names = [child.name for child in entries.children]
        yield entries, pa.StructArray.from_arrays([array.keys, array.items], names)
    else:
        yield field.children[0], array.flatten()


# ----------------------------------------------------------------------------------------------------------- encodings


def encodings_of(column: ColumnPages) -> Counter[str]:
    """Encoding -> number of pages."""
    return Counter(encoding_text(column.page(number).encoding, column.file.path) for number in range(len(column)))


def encoding_text(data: bytes, path: str) -> str:
    """A page's encoding in one line: `mini_block(fsst(variable(flat 32)))`. Levels are left out."""
    try:
        message = any_pb2.Any.FromString(data)
        kind = PAGE_MESSAGES.get(message.type_url.rpartition("/")[2])
        return message.type_url if kind is None else node_text(kind.FromString(message.value))
    except DecodeError as error:
        raise CorruptFileError(f"{path}: an encoding does not parse", path=path) from error


def node_text(message: Message) -> str:
    """One node of the tree with what lies below it."""
    arm = message.WhichOneof(_NODES[message.DESCRIPTOR.full_name])
    if arm is None:
        return "none"
    inner = getattr(message, arm)
    below = [
        f"dictionary {node_text(node)}" if name == "dictionary" else node_text(node)
        for name, node in nodes_below(inner)
    ]
    bits = getattr(inner, "bits_per_value", None) or getattr(inner, "uncompressed_bits_per_value", None)
    scheme = getattr(getattr(inner, "compression", None), "scheme", None)
    label = arm.removesuffix("_layout")
    if arm == "general" and scheme is not None:
        label = str(inner.compression.DESCRIPTOR.fields_by_name["scheme"].enum_type.values_by_number[scheme].name)
        label = label.rpartition("_")[2].lower()
    elif isinstance(bits, int) and not below:
        label = f"{label} {bits}"
    return f"{label}({', '.join(below)})" if below else label


def nodes_below(message: Message) -> Iterator[tuple[str, Message]]:
    """The nodes of the tree next below a message that is none itself, by the name of their field; no levels."""
    for field, value in message.ListFields():
        if field.message_type is None or field.name in _LEVELS:
            continue
        for each in [value] if isinstance(value, Message) else value:
            if each.DESCRIPTOR.full_name in _NODES:
                yield field.name, each
            else:
                yield from nodes_below(each)
