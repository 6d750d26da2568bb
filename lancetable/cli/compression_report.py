"""Compression of each column of a data file: bytes as Arrow arrays, bytes in the file, and the encodings.

The size of a page is the size of its buffers, without padding. Payloads of blobs are stored outside their column and
are counted neither as Arrow bytes nor as file bytes. From 2.1 on, structs and lists have no column: their offsets and
validity are counted with the first leaf below them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from google.protobuf.message import Message

from lancetable.cli.inspect import size_of
from lancetable.file.blobs.descriptions import described
from lancetable.file.column_mapping import is_single_column, number_columns
from lancetable.file.encoding_messages import parse_encoding
from lancetable.file.footer import FileMetadata
from lancetable.file.reader import open_data_file, read_columns
from lancetable.format.schema import Field
from lancetable.proto import encodings_v2_0_pb2, encodings_v2_1_pb2
from lancetable.store.base import ObjectStore
from lancetable.store.open import open_store

COLUMNS: Final = ("column", "path", "type", "rows", "pages", "arrow_bytes", "file_bytes", "ratio", "encodings")
_NODES: Final = {
    encodings_v2_0_pb2.ArrayEncoding.DESCRIPTOR.full_name: "array_encoding",
    encodings_v2_1_pb2.PageLayout.DESCRIPTOR.full_name: "layout",
    encodings_v2_1_pb2.CompressiveEncoding.DESCRIPTOR.full_name: "compression",
}
_LEVELS: Final = frozenset({"rep_compression", "def_compression"})
_WINDOW_ROWS: Final = 64 * 1024


def describe_compression(uri: str, storage_options: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Return one entry for each column of a data file and one for their total. Reads the whole file in windows of rows.

    `ratio` is file bytes divided by Arrow bytes, or None if there are none. `encodings` maps each encoding to its
    number of pages. Raises NotFoundError, CorruptFileError, UnsupportedFeatureError, InvalidInputError.
    """
    store, file_path = open_store(uri, storage_options, is_file=True)
    metadata = open_data_file(store, file_path, size=size_of(store, file_path, uri))
    ids, columns = number_columns(metadata.schema, metadata.version)
    column_of_field = dict(zip(ids, columns))
    sizes = arrow_sizes(store, file_path, metadata, column_of_field)
    rows: list[dict[str, Any]] = []
    for field_id, number in column_of_field.items():
        column = metadata.column(number)
        encodings = Counter(format_encoding(column.page(page).encoding, file_path) for page in range(len(column)))
        rows.append(
            {
                "column": number,
                "path": metadata.schema.path_of(field_id),
                "type": metadata.schema.by_id[field_id].logical_type,
                "rows": column.num_rows,
                "pages": len(column),
                "arrow_bytes": sizes[field_id],
                "file_bytes": column.size_bytes,
                "encodings": dict(encodings),
            }
        )
    sums = {name: sum(row[name] for row in rows) for name in ("pages", "arrow_bytes", "file_bytes")}
    rows.append({"column": None, "path": "(all)", "type": "", "rows": metadata.num_rows, **sums, "encodings": {}})
    for row in rows:
        row["ratio"] = round(row["file_bytes"] / row["arrow_bytes"], 4) if row["arrow_bytes"] else None
    return [{name: row[name] for name in COLUMNS} for row in rows]


# ------------------------------------------------------------------------------------------------------- Arrow's bytes


def arrow_sizes(
    store: ObjectStore, path: str, metadata: FileMetadata, column_of_field: Mapping[int, int]
) -> Counter[int]:
    """Return the Arrow bytes of each field by field id."""
    sizes: Counter[int] = Counter()
    fields = [described(field) for field in metadata.schema.fields]
    for start in range(0, metadata.num_rows, _WINDOW_ROWS):
        rows = range(start, min(start + _WINDOW_ROWS, metadata.num_rows))
        for field, array in zip(fields, read_columns(store, path, metadata, fields, column_of_field, rows)):
            for chunk in array.chunks:
                add_sizes(field, chunk, column_of_field, sizes)
    return sizes


def add_sizes(field: Field, array: pa.Array, column_of_field: Mapping[int, int], sizes: Counter[int]) -> None:
    """Add the bytes of an array to the fields that have a column."""
    if is_single_column(field) or not has_columns(field.children, column_of_field):
        sizes[field.id] += array.nbytes
        return
    children = list(children_of(field, array))
    own = max(array.nbytes - sum(child.nbytes for _, child in children), 0)
    holder = field
    while holder.id not in column_of_field:
        holder = holder.children[0]
    sizes[holder.id] += own
    for child, values in children:
        add_sizes(child, values, column_of_field, sizes)


def has_columns(fields: Sequence[Field], column_of_field: Mapping[int, int]) -> bool:
    """Return True if any of these fields or their descendants has a column."""
    return any(descendant.id in column_of_field for field in fields for descendant in field.walk())


def children_of(field: Field, array: pa.Array) -> Iterator[tuple[Field, pa.Array]]:
    """Yield the child fields of a struct, list or map with their values."""
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
