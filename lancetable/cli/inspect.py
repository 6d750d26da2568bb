"""Contents of manifests, transactions and data files as nested dicts and lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np
from google.protobuf import json_format

from lancetable.dataset import LanceDataset
from lancetable.errors import NotFoundError
from lancetable.file.column_mapping import number_columns
from lancetable.file.encoding_messages import parse_encoding
from lancetable.file.footer import ColumnPages, FileMetadata
from lancetable.file.legacy_footer import LegacyMetadata
from lancetable.file.reader import open_data_file
from lancetable.format.fragment import Fragment
from lancetable.format.paths import DATA_DIR, join
from lancetable.format.schema import Schema
from lancetable.schema import string_metadata
from lancetable.store.base import ObjectStore
from lancetable.store.open import open_store
from lancetable.table import transactions

MANIFEST_FIELDS = (
    *("data_format", "reader_flags", "writer_flags", "max_fragment_id", "max_field_id", "next_row_id"),
    *("transaction_file", "transaction_section", "index_section"),
)


def describe_manifest(dataset: LanceDataset) -> dict[str, Any]:
    """Return all fields of a manifest, including fragments with their files."""
    table = dataset.table_version
    manifest = table.manifest
    return {
        "path": table.location.path,
        "size_bytes": table.location.size_bytes,
        "naming": table.location.naming.name,
        **{name: getattr(manifest, name) for name in ("version", "branch", "timestamp")},
        "writer": to_plain(manifest.writer_version),
        **{name: getattr(manifest, name) for name in MANIFEST_FIELDS},
        "config": dict(manifest.config),
        "table_metadata": dict(manifest.table_metadata),
        "base_paths": [to_plain(base) for base in manifest.base_paths.values()],
        "schema": describe_schema(manifest.schema),
        "fragments": [describe_fragment(fragment) for fragment in manifest.fragments],
    }


def describe_fragment(fragment: Fragment) -> dict[str, Any]:
    """Return a fragment with its files. Serialized sequences are represented by their size."""
    files = [
        {
            "path": file.path,
            "version": f"{file.major}.{file.minor}",
            "size_bytes": file.size_bytes,
            "fields": list(file.fields),
            "column_indices": list(file.column_indices),
        }
        for file in fragment.files
    ]
    return {
        "id": fragment.id,
        "physical_rows": fragment.physical_rows,
        "deletion_file": to_plain(fragment.deletion_file),
        "row_ids": to_plain(fragment.row_ids),
        "files": files,
    }


def describe_schema(schema: Schema) -> list[dict[str, Any]]:
    """Return one entry per field, parents before children."""
    return [
        {
            "id": field.id,
            "path": schema.path_of(field.id),
            "type": field.logical_type,
            "nullable": field.nullable,
            "metadata": string_metadata(field.metadata),
        }
        for field in schema.walk()
        if field.id >= 0
    ]


def describe_changes(older: LanceDataset, newer: LanceDataset) -> dict[str, Any]:
    """Return the differences between two versions: numbers of rows, ids of fragments, and columns with their types."""
    manifests = [dataset.table_version.manifest for dataset in (older, newer)]
    before, after = ({fragment.id: fragment for fragment in manifest.fragments} for manifest in manifests)
    old_columns, new_columns = (column_labels(manifest.schema) for manifest in manifests)
    return {
        "older": older.version,
        "newer": newer.version,
        "rows_before": older.count_rows(),
        "rows_after": newer.count_rows(),
        "fragments_added": [number for number in after if number not in before],
        "fragments_removed": [number for number in before if number not in after],
        "fragments_changed": [number for number in after if before.get(number, after[number]) != after[number]],
        "columns_added": [column for column in new_columns if column not in old_columns],
        "columns_removed": [column for column in old_columns if column not in new_columns],
    }


def column_labels(schema: Schema) -> list[str]:
    """Return path, type and nullability of each field."""
    return [f"{row['path']} {row['type']}{'' if row['nullable'] else ' not null'}" for row in describe_schema(schema)]


def describe_transaction(dataset: LanceDataset) -> dict[str, Any] | None:
    """Return the transaction of the version, or None if its writer stored none."""
    table = dataset.table_version
    transaction = transactions.read(table.store, table.base, table.file)
    if transaction is None:
        return None
    operation = transaction.operation
    return {
        "file": table.manifest.transaction_file,
        "read_version": transaction.read_version,
        "uuid": transaction.uuid,
        "properties": dict(transaction.properties),
        "operation": {"kind": type(operation).__name__, **to_plain(operation)},
    }


def describe_file(uri: str, storage_options: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return footer, schema, buffers and pages of a data file, with the encoding tree of each page.

    Raises NotFoundError, CorruptFileError, UnsupportedFeatureError, InvalidInputError.
    """
    store, path = open_store(uri, storage_options, is_file=True)
    size_bytes = size_of(store, path, uri)
    metadata = open_data_file(store, path, size=size_bytes)
    paths = {
        column: metadata.schema.path_of(field_id)
        for field_id, column in zip(*number_columns(metadata.schema, metadata.version))
    }
    batches = {"batch_rows": np.diff(metadata.batch_offsets).tolist()} if isinstance(metadata, LegacyMetadata) else {}
    return {
        "path": uri,
        "size_bytes": size_bytes,
        "version": metadata.version.number,
        "num_rows": metadata.num_rows,
        "num_columns": metadata.num_columns,
        "schema": describe_schema(metadata.schema),
        "schema_metadata": string_metadata(metadata.schema_metadata),
        "global_buffers": [span(start, end) for start, end in metadata.global_buffers],
        "columns": [
            {"path": paths.get(index), **describe_column(metadata, index)} for index in range(metadata.num_columns)
        ],
        **batches,
    }


def size_of(store: ObjectStore, path: str, uri: str) -> int:
    """Return the size of a data file in bytes.

    Raises NotFoundError. If the path is a table, the message contains the path of one of its data files.
    """
    size_bytes = store.find(path)
    if size_bytes is not None:
        return size_bytes
    for meta in store.list_names(join(path, DATA_DIR)):
        if meta.name.endswith(".lance"):
            raise NotFoundError(f"{uri} is a table; pass one of its data files: {DATA_DIR}/{meta.name}", path=path)
    raise NotFoundError(f"not found: {uri}", path=path)


def describe_column(metadata: FileMetadata, index: int) -> dict[str, Any]:
    """Return one column of a file with its pages."""
    column = metadata.column(index)
    return {
        "index": index,
        "num_rows": column.num_rows,
        "size_bytes": column.size_bytes,
        "encoding": encoding_tree(column.encoding, metadata.path),
        "buffers": [span(start, end) for start, end in column.buffers],
        "pages": [describe_page(column, number, metadata.path) for number in range(len(column))],
    }


def describe_page(column: ColumnPages, number: int, path: str) -> dict[str, Any]:
    """Return rows, buffers and encoding of one page."""
    page = column.page(number)
    return {
        "rows": page.length,
        "first_row": int(column.starts[number]),
        "buffers": [span(start, end) for start, end in page.buffers],
        "encoding": encoding_tree(page.encoding, path),
    }


def span(start: int, end: int) -> dict[str, int]:
    """Return a byte range of the file."""
    return {"offset": start, "size_bytes": end - start}


def encoding_tree(data: bytes, path: str) -> Any:
    """Return a serialized encoding as nested dicts, or its type and size if the type is unknown.

    Raises CorruptFileError.
    """
    if not data:
        return None
    type_url, message = parse_encoding(data, path)
    if isinstance(message, bytes):
        return {"type": type_url.rpartition("/")[2], "size_bytes": len(message)}
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def to_plain(value: Any) -> Any:
    """Convert a value to dicts, lists and scalars. Bytes are replaced with their size."""
    if isinstance(value, Fragment):
        return describe_fragment(value)
    if isinstance(value, Schema):
        return describe_schema(value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if not field.name.startswith("_")]
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, Mapping):
        return {str(key): to_plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_plain(inner) for inner in value]
    return value
