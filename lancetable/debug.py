"""Diagnostic dumps of schemas, manifests, fragments and transactions, and of installed versions."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from importlib import metadata
from typing import TYPE_CHECKING, Any

from lancetable.delta import transaction_of
from lancetable.file import kernels
from lancetable.format.fragment import DataFile, DeletionFile, DeletionKind, Fragment
from lancetable.format.manifest import FragmentList
from lancetable.format.schema import Field, Schema
from lancetable.schema import string_metadata

if TYPE_CHECKING:
    from lancetable.dataset import LanceDataset
    from lancetable.fragment_metadata import FragmentMetadata

__all__ = ["format_fragment", "format_manifest", "format_schema", "list_transactions", "show_versions"]

INDENT = "    "
PACKAGES = [
    "lancetable",
    "pyarrow",
    "numpy",
    "protobuf",
    "fsspec",
    "pyroaring",
    "sqlglot",
    "pandas",
    "polars",
    "duckdb",
    "pyspark",
    "obstore",
]

NOT_INSTALLED = "not installed"
EXTRAS = {
    "s3": ("obstore", "s3fs", "aiobotocore"),
    "gcs": ("obstore", "gcsfs"),
    "azure": ("obstore", "adlfs"),
    "dynamodb": ("boto3",),
    "spark": ("pandas",),
    "sql": ("duckdb",),
    "otel": ("opentelemetry-api",),
    "cli": ("click", "rich", "tqdm", "jinja2"),
    "report": ("jinja2",),
    "progress": ("tqdm",),
    "torch": ("torch",),
    "huggingface": ("datasets",),
}


def format_schema(dataset: LanceDataset) -> str:
    """Return the schema with ids, logical types and metadata, as an indented string."""
    return render(dataset.table_version.schema)


def format_manifest(dataset: LanceDataset) -> str:
    """Return the manifest of the dataset's version as an indented string."""
    manifest = dataset.table_version.manifest
    parts = {
        "schema": manifest.schema,
        "version": manifest.version,
        "branch": maybe(manifest.branch),
        "writer_version": maybe(manifest.writer_version),
        "fragments": list(manifest.fragments),
        "index_section": maybe(manifest.index_section),
        "timestamp_nanos": manifest.timestamp_ns,
        "tag": maybe(manifest.tag or None),
        "reader_feature_flags": manifest.reader_flags,
        "writer_feature_flags": manifest.writer_flags,
        "max_fragment_id": maybe(manifest.max_fragment_id),
        "transaction_file": maybe(manifest.transaction_file),
        "transaction_section": maybe(manifest.transaction_section),
        "next_row_id": manifest.next_row_id,
        "data_storage_format": Block(
            "DataStorageFormat",
            {"file_format": "lance", "version": Word(f"V{str(manifest.data_format).replace('.', '_')}")},
        ),
        "config": manifest.config,
        "table_metadata": manifest.table_metadata,
        "base_paths": manifest.base_paths,
    }
    return render(Block("Manifest", parts))


def format_fragment(fragment: FragmentMetadata, dataset: LanceDataset) -> str:
    """Return a fragment with the schema of each of its files, as an indented string."""
    frozen = fragment.to_format()
    schema = dataset.table_version.schema
    files = [
        Block(
            "PrettyPrintableDataFile",
            {
                "path": file.path,
                "fields": file.fields,
                "column_indices": file.column_indices,
                "schema": schema.project_ids([i for i in file.fields if i in schema.by_id]),
                "major_version": file.major,
                "minor_version": file.minor,
            },
        )
        for file in frozen.files
    ]
    parts = {
        "id": frozen.id,
        "files": files,
        "deletion_file": maybe(frozen.deletion_file),
        "physical_rows": maybe(frozen.physical_rows),
    }
    return render(Block("PrettyPrintableFragment", parts))


def list_transactions(dataset: LanceDataset, /, max_transactions: int = 10) -> list[str]:
    """Return the transactions of the newest versions up to the dataset's own, newest first, as indented strings."""
    table = dataset.table_version
    numbers = range(table.version, max(0, table.version - max_transactions), -1)
    stored = (transaction_of(table, number) for number in numbers)
    return [render(transaction) for transaction in stored if transaction is not None]


def show_versions() -> None:
    """Print the versions of lancetable, Python and related packages, the kernels in use, and the extras."""
    lines = [f"python       {sys.version.split()[0]} ({platform.system()} {platform.machine()})"]
    lines.extend(f"{name:<12} {installed_version(name)}" for name in PACKAGES)
    lines.append(f"{'kernels':<12} {kernel_report()}")
    for extra, packages in EXTRAS.items():
        absent = [name for name in packages if installed_version(name) == NOT_INSTALLED]
        lines.append(f"{'extra ' + extra:<17} {'missing ' + ', '.join(absent) if absent else 'installed'}")
    print(*lines, sep="\n")  # noqa: T201  # this function prints on purpose


def installed_version(package: str) -> str:
    """Return the version of a distribution, or `NOT_INSTALLED`."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def kernel_report() -> str:
    """Return which kernels are in use, and the reason if they are not compiled."""
    if kernels.NATIVE:
        return "compiled"
    reason = "LANCETABLE_KERNELS=0" if os.environ.get("LANCETABLE_KERNELS") == "0" else "not built: no C compiler?"
    return f"NumPy ({reason}); slower, and files from 2.1 on get no FSST"


@dataclass(frozen=True, slots=True)
class Block:
    """A name with named parts, rendered as `Name { key: value }`."""

    name: str
    parts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tuple:
    """A name around one value, rendered as `Name(value)`."""

    name: str
    value: Any


class Word(str):
    """A string that is rendered without quotes."""

    __slots__ = ()


def maybe(value: Any) -> Tuple | Word:
    """Return an optional value, rendered as `Some(...)` or `None`."""
    return Word("None") if value is None else Tuple("Some", value)


def render(value: Any, depth: int = 0) -> str:
    """Return any value of `lancetable.format` as an indented string, in the style of pylance's dumps."""
    if isinstance(value, Word):
        return str(value)
    if isinstance(value, Tuple):
        return bracketed(value.name, "()", [render(value.value, depth + 1)], depth)
    if isinstance(value, Block):
        parts = [f"{name}: {render(part, depth + 1)}" for name, part in value.parts.items()]
        return bracketed(f"{value.name} ", "{}", parts, depth)
    if type(value) in NAMED:
        return render(NAMED[type(value)](value), depth)
    if is_dataclass(value) and not isinstance(value, type):
        return render(Block(type(value).__name__, parts_of(value)), depth)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bytes):
        return repr(value) if len(value) <= 200 else f"<{len(value)} bytes>"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        entries = [f"{render(key)}: {render(inner, depth + 1)}" for key, inner in value.items()]
        return bracketed("", "{}", entries, depth)
    if isinstance(value, (Sequence, FragmentList)):
        return bracketed("", "[]", [render(item, depth + 1) for item in value], depth)
    return str(value)


def parts_of(value: Any) -> dict[str, Any]:
    """Return the public fields of a dataclass; fields whose type allows None are wrapped by `maybe`."""
    types = {field.name: str(field.type) for field in fields(value) if not field.name.startswith("_")}
    parts = {
        name: maybe(getattr(value, name)) if "None" in types[name] else getattr(value, name)
        for name in PARTS.get(type(value), types)
    }
    return {NAMES.get(name, name): part for name, part in parts.items()} if type(value) in PARTS else parts


def bracketed(head: str, brackets: str, items: Sequence[str], depth: int) -> str:
    """Return `head(item, ...)` with one line per item."""
    if not items:
        return head + brackets
    pad = INDENT * (depth + 1)
    lines = "".join(f"{pad}{item},\n" for item in items)
    return f"{head}{brackets[0]}\n{lines}{INDENT * depth}{brackets[1]}"


def field_block(field: Field) -> Block:
    """Return a field with pylance's names of its parts."""
    encodings = (None, "Plain", "VarBinary", "Dictionary", "RLE")
    encoding = encodings[field.encoding] if field.encoding < len(encodings) else str(field.encoding)
    primary_key_position = field.primary_key_position or (0 if field.is_primary_key else None)
    return Block(
        "Field",
        {
            "name": field.name,
            "id": field.id,
            "parent_id": field.parent_id,
            "logical_type": Tuple("LogicalType", field.logical_type),
            "metadata": string_metadata(field.metadata),
            "encoding": maybe(None if encoding is None else Word(encoding)),
            "nullable": field.nullable,
            "children": field.children,
            "dictionary": maybe(field.dictionary),
            "unenforced_primary_key_position": maybe(primary_key_position),
            "unenforced_clustering_key_position": maybe(field.clustering_key_position or None),
        },
    )


NAMED: Mapping[type, Callable[[Any], Block | Word]] = {
    Schema: lambda schema: Block("Schema", {"fields": schema.fields, "metadata": string_metadata(schema.metadata)}),
    Field: field_block,
    DataFile: lambda file: Block(
        "DataFile", {**parts_of(file), "file_size_bytes": Tuple("CachedFileSize", file.size_bytes or 0)}
    ),
    DeletionKind: lambda kind: Word("Array" if kind is DeletionKind.ARROW_ARRAY else "Bitmap"),
}
# The fields of a class in pylance's order, and the fields with another name in pylance.
PARTS: Mapping[type, Sequence[str]] = {
    DataFile: ("path", "fields", "column_indices", "major", "minor", "size_bytes", "base_id"),
    DeletionFile: ("read_version", "id", "kind", "num_deleted_rows", "base_id"),
    Fragment: ("id", "files", "overlays", "deletion_file", "row_ids", "physical_rows", "last_updated_at", "created_at"),
}
NAMES: Mapping[str, str] = {
    "major": "file_major_version",
    "minor": "file_minor_version",
    "size_bytes": "file_size_bytes",
    "kind": "file_type",
    "row_ids": "row_id_meta",
    "last_updated_at": "last_updated_at_version_meta",
    "created_at": "created_at_version_meta",
}
