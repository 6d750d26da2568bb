"""What is inside: dumps of schemas, manifests, fragments and transactions, and the versions of what is installed."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import metadata
from typing import TYPE_CHECKING, Any

from lancetable.file import kernels
from lancetable.format.fragment import Fragment
from lancetable.format.manifest import FragmentList
from lancetable.table import transactions
from lancetable.table.version import checkout

if TYPE_CHECKING:
    from lancetable.dataset import LanceDataset
    from lancetable.fragment_metadata import FragmentMetadata

__all__ = ["format_fragment", "format_manifest", "format_schema", "list_transactions", "show_versions"]

INDENT = "    "
MANIFEST_PARTS = [
    "version",
    "branch",
    "tag",
    "timestamp",
    "writer_version",
    "reader_flags",
    "writer_flags",
    "max_fragment_id",
    "transaction_file",
    "transaction_section",
    "index_section",
    "next_row_id",
    "data_format",
    "config",
    "table_metadata",
    "base_paths",
]
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
    "cli": ("click", "rich"),
}


def format_schema(dataset: LanceDataset) -> str:
    """The schema with ids, logical types and metadata, as indented text."""
    return render(dataset.table_version.schema)


def format_manifest(dataset: LanceDataset) -> str:
    """The manifest of the version the dataset is at, as indented text."""
    manifest = dataset.table_version.manifest
    parts: dict[str, Any] = {"schema": manifest.schema, "fragments": list(manifest.fragments)}
    parts.update((name, getattr(manifest, name)) for name in MANIFEST_PARTS)
    return render_block("Manifest", parts, 0)


def format_fragment(fragment: FragmentMetadata, dataset: LanceDataset) -> str:
    """A fragment with the schema of each of its files, as indented text."""
    frozen = fragment.to_format()
    schema = dataset.table_version.schema
    files = [
        {"file": file, "schema": schema.project_ids([i for i in file.fields if i in schema.by_id])}
        for file in frozen.files
    ]
    parts = {name.name: getattr(frozen, name.name) for name in fields(Fragment)} | {"files": files}
    return render_block("Fragment", parts, 0)


def list_transactions(dataset: LanceDataset, /, max_transactions: int = 10) -> list[str]:
    """The transactions of the newest versions up to the dataset's own, newest first, as indented text."""
    table = dataset.table_version
    found = []
    for number in range(table.version, max(0, table.version - max_transactions), -1):
        at = checkout(table, number)
        transaction = transactions.read(at.store, at.base, at.file)
        if transaction is not None:
            found.append(render(transaction))
    return found


def show_versions() -> str:
    """Print, and return, the versions of lancetable, Python and the packages it works with, and which kernels run, and
    which extras are installed.
    """
    lines = [f"python       {sys.version.split()[0]} ({platform.system()} {platform.machine()})"]
    lines.extend(f"{name:<12} {installed_version(name)}" for name in PACKAGES)
    lines.append(f"{'kernels':<12} {kernel_report()}")
    for extra, packages in EXTRAS.items():
        absent = [name for name in packages if installed_version(name) == NOT_INSTALLED]
        lines.append(f"{'extra ' + extra:<14} {'missing ' + ', '.join(absent) if absent else 'installed'}")
    text = "\n".join(lines)
    print(text)  # noqa: T201  # printing is what this function is for
    return text


def installed_version(package: str) -> str:
    """The version of a distribution, or that it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def kernel_report() -> str:
    """Which kernels run, and why not the compiled ones."""
    if kernels.NATIVE:
        return "compiled"
    reason = "LANCETABLE_KERNELS=0" if os.environ.get("LANCETABLE_KERNELS") == "0" else "not built: no C compiler?"
    return f"NumPy ({reason}); slower, and files from 2.1 on get no FSST"


def render(value: Any, depth: int = 0) -> str:
    """Any value of `lancetable.format` as indented text."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: getattr(value, each.name) for each in fields(value) if not each.name.startswith("_")}
        return render_block(type(value).__name__, parts, depth)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bytes):
        return repr(value) if len(value) <= 200 else f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        return render_block("", {str(key): inner for key, inner in value.items()}, depth)
    if isinstance(value, (Sequence, FragmentList)):
        if not value:
            return "[]"
        if all(isinstance(inner, (int, float)) for inner in value):
            return str(list(value))
        pad = INDENT * (depth + 1)
        inner_lines = "".join(f"{pad}{render(inner, depth + 1)},\n" for inner in value)
        return f"[\n{inner_lines}{INDENT * depth}]"
    return str(value)


def render_block(name: str, parts: Mapping[str, Any], depth: int) -> str:
    """`Name { key: value, ... }` over several lines."""
    head = f"{name} " if name else ""
    if not parts:
        return head + "{}"
    pad = INDENT * (depth + 1)
    lines = "".join(f"{pad}{key}: {render(value, depth + 1)},\n" for key, value in parts.items())
    return f"{head}{{\n{lines}{INDENT * depth}}}"
