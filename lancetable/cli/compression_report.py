"""Compression of each column of a data file: bytes as Arrow arrays, bytes in the file, and the encodings.

The size of a page is the size of its buffers, without padding. Payloads of blobs are stored outside their column and
are counted neither as Arrow bytes nor as file bytes. From 2.1 on, structs and lists have no column: their offsets and
validity are counted with the first leaf below them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from lancetable.cli.inspect import size_of
from lancetable.file.arrow_sizes import add_sizes
from lancetable.file.blobs.descriptions import described
from lancetable.file.column_mapping import number_columns
from lancetable.file.encoding_labels import format_encoding
from lancetable.file.footer import FileMetadata
from lancetable.file.reader import open_data_file, read_columns
from lancetable.store.base import ObjectStore
from lancetable.store.open import open_store

COLUMNS: Final = ("column", "path", "type", "rows", "pages", "arrow_bytes", "file_bytes", "ratio", "encodings")
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
