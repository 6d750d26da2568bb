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
from lancetable.schema import as_text

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
    "s3": ("obstore", "s3fs"),
    "gcs": ("obstore", "gcsfs"),
    "azure": ("obstore", "adlfs"),
    "dynamodb": ("boto3",),
    "spark": ("pandas",),
    "cli": ("click", "rich", "tqdm"),
    "progress": ("tqdm",),
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
        "branch": Maybe(manifest.branch),
        "writer_version": Maybe(manifest.writer_version),
        "fragments": list(manifest.fragments),
        "index_section": Maybe(manifest.index_section),
        "timestamp_nanos": manifest.timestamp_ns,
        "tag": Maybe(manifest.tag or None),
        "reader_feature_flags": manifest.reader_flags,
        "writer_feature_flags": manifest.writer_flags,
        "max_fragment_id": Maybe(manifest.max_fragment_id),
        "transaction_file": Maybe(manifest.transaction_file),
        "transaction_section": Maybe(manifest.transaction_section),
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
        "deletion_file": Maybe(frozen.deletion_file),
        "physical_rows": Maybe(frozen.physical_rows),
    }
    return render(Block("PrettyPrintableFragment", parts))


def list_transactions(dataset: LanceDataset, /, max_transactions: int = 10) -> list[str]:
    """Return the transactions of the newest versions up to the dataset's own, newest first, as indented strings."""
    table = dataset.table_version
    numbers = range(table.version, max(0, table.version - max_transactions), -1)
    stored = (transaction_of(table, number) for number in numbers)
    return [render(transaction) for transaction in stored if transaction is not None]


def show_versions() -> str:
    """Print and return the versions of lancetable, Python and related packages, the kernels in use, and the extras."""
    lines = [f"python       {sys.version.split()[0]} ({platform.system()} {platform.machine()})"]
    lines.extend(f"{name:<12} {installed_version(name)}" for name in PACKAGES)
    lines.append(f"{'kernels':<12} {kernel_report()}")
    for extra, packages in EXTRAS.items():
        absent = [name for name in packages if installed_version(name) == NOT_INSTALLED]
        lines.append(f"{'extra ' + extra:<14} {'missing ' + ', '.join(absent) if absent else 'installed'}")
    report = "\n".join(lines)
    print(report)  # noqa: T201  # this function prints on purpose
    return report


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


@dataclass(frozen=True, slots=True)
class Maybe:
    """An optional value, rendered as `Some(...)` or `None`."""

    value: Any


@dataclass(frozen=True, slots=True)
class Word:
    """A string that is rendered without quotes."""

    text: str


def render(value: Any, depth: int = 0) -> str:
    """Return any value of `lancetable.format` as an indented string, in the style of pylance's dumps."""
    if isinstance(value, Word):
        return value.text
    if isinstance(value, Maybe):
        return "None" if value.value is None else render_list("Some", "()", [value.value], depth)
    if isinstance(value, Tuple):
        return render_list(value.name, "()", [value.value], depth)
    if isinstance(value, Block):
        return render_block(f"{value.name} ", value.parts, depth)
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
        return render_block("", {render(key): inner for key, inner in value.items()}, depth)
    if isinstance(value, (Sequence, FragmentList)):
        return render_list("", "[]", value, depth)
    return str(value)


def parts_of(value: Any) -> dict[str, Any]:
    """Return the public fields of a dataclass; fields whose type allows None are wrapped in `Maybe`."""
    types = {field.name: str(field.type) for field in fields(value) if not field.name.startswith("_")}
    names = PARTS.get(type(value)) or {name: name for name in types}
    parts = {shown: (getattr(value, name), "None" in types[name]) for shown, name in names.items()}
    return {shown: Maybe(part) if optional else part for shown, (part, optional) in parts.items()}


def render_list(name: str, brackets: str, items: Any, depth: int) -> str:
    """Return `name(item, ...)` with one line per item."""
    if not len(items):
        return name + brackets
    pad = INDENT * (depth + 1)
    lines = "".join(f"{pad}{render(item, depth + 1)},\n" for item in items)
    return f"{name}{brackets[0]}\n{lines}{INDENT * depth}{brackets[1]}"


def render_block(head: str, parts: Mapping[str, Any], depth: int) -> str:
    """Return `Name { key: value, ... }` over several lines."""
    if not parts:
        return head + "{}"
    pad = INDENT * (depth + 1)
    lines = "".join(f"{pad}{key}: {render(value, depth + 1)},\n" for key, value in parts.items())
    return f"{head}{{\n{lines}{INDENT * depth}}}"


def schema_block(schema: Schema) -> Block:
    """Return a schema with pylance's names of its parts."""
    return Block("Schema", {"fields": schema.fields, "metadata": as_text(schema.metadata)})


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
            "metadata": as_text(field.metadata),
            "encoding": Maybe(None if encoding is None else Word(encoding)),
            "nullable": field.nullable,
            "children": field.children,
            "dictionary": Maybe(field.dictionary),
            "unenforced_primary_key_position": Maybe(primary_key_position),
            "unenforced_clustering_key_position": Maybe(field.clustering_key_position or None),
        },
    )


def data_file_block(file: DataFile) -> Block:
    """Return a data file with pylance's names of its parts."""
    return Block("DataFile", {**parts_of(file), "file_size_bytes": Tuple("CachedFileSize", file.size_bytes or 0)})


NAMED: Mapping[type, Callable[[Any], Block | Word]] = {
    Schema: schema_block,
    Field: field_block,
    DataFile: data_file_block,
    DeletionKind: lambda kind: Word("Array" if kind is DeletionKind.ARROW_ARRAY else "Bitmap"),
}
# The parts of a class in pylance's order and with its names, each with the name of the field.
PARTS: Mapping[type, Mapping[str, str]] = {
    DataFile: {
        **{name: name for name in ("path", "fields", "column_indices")},
        "file_major_version": "major",
        "file_minor_version": "minor",
        "file_size_bytes": "size_bytes",
        "base_id": "base_id",
    },
    DeletionFile: {
        **{name: name for name in ("read_version", "id")},
        "file_type": "kind",
        **{name: name for name in ("num_deleted_rows", "base_id")},
    },
    Fragment: {
        **{name: name for name in ("id", "files", "overlays", "deletion_file")},
        "row_id_meta": "row_ids",
        "physical_rows": "physical_rows",
        "last_updated_at_version_meta": "last_updated_at",
        "created_at_version_meta": "created_at",
    },
}
