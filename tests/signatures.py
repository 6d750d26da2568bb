"""Describe the call signatures of a module in the shape of `pylance` as plain JSON.

`python tests/signatures.py > tests/golden/pylance_signatures.json` records the installed pylance; with the golden file,
`test_public_names.py` compares without an installed pylance. It contains only names, order, kinds and defaults.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable
from typing import Any

FUNCTIONS = {
    "": [
        "dataset",
        "write_dataset",
        "schema_to_json",
        "json_to_schema",
        "set_logger",
        "bytes_read_counter",
        "iops_counter",
    ],
    "fragment": ["write_fragments"],
    "debug": ["format_schema", "format_manifest", "format_fragment", "list_transactions"],
    "sampler": ["maybe_sample", "reservoir_sampling"],
    "arrow": ["cast"],
    "vector": ["vec_to_table"],
    "util": ["validate_vector_index"],
}
CLASSES = {
    "": ["LanceDataset", "LanceFragment", "LanceScanner", "FragmentMetadata", "Transaction", "LanceOperation"],
    "dataset": ["ScannerBuilder", "ColumnOrdering", "Tags", "LanceStats", "Branches", "VectorIndexReader"],
    "fragment": ["DataFile", "DeletionFile", "RowIdMeta", "RowDatasetVersionMeta", "RowIdSequence", "FragmentSession"],
    "indices": ["IndicesBuilder", "IvfModel", "PqModel"],
    "util": ["KMeans"],
    "schema": ["LanceSchema"],
    "commit": ["CommitConflictError"],
    "file": ["LanceFileReader", "LanceFileWriter", "LanceFileSession", "ReaderResults", "LanceFileMetadata"],
    "progress": ["FragmentWriteProgress", "NoopFragmentWriteProgress", "FileSystemFragmentWriteProgress"],
}
DUNDERS = ("__init__", "__len__", "__iter__")


def describe(function: Callable[..., Any]) -> list[list[str]] | None:
    """Return `[name, kind, default]` for each parameter, or None if the signature is unknown (compiled code)."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [describe_parameter(parameter) for parameter in parameters]


def describe_parameter(parameter: inspect.Parameter) -> list[str]:
    """Return name, kind and default; the names of `self` and `**kwargs` are normalized."""
    default = "" if parameter.default is parameter.empty else repr(parameter.default)
    if parameter.kind is parameter.VAR_KEYWORD:
        return ["**", parameter.kind.name, ""]
    return [parameter.name, "SELF" if parameter.name == "self" else parameter.kind.name, default]


def describe_class(cls: type) -> dict[str, Any]:
    """Return each public member of a class and its bases in the same package: a signature, "property" or a nested
    class."""
    members: dict[str, Any] = {}
    for name in sorted(dir(cls)):
        if name.startswith("_") and name not in DUNDERS:
            continue
        owner = next(base for base in cls.__mro__ if name in base.__dict__)
        if owner is object or owner in (OSError, Exception, BaseException):
            continue
        static = inspect.getattr_static(cls, name)
        if isinstance(static, type):
            members[name] = describe_class(static)
        elif (
            isinstance(static, (property, int, str, type(None)))
            or inspect.isgetsetdescriptor(static)
            or inspect.isdatadescriptor(static)
        ):
            members[name] = "property"
        else:
            members[name] = describe(getattr(cls, name))
    return members


def describe_package(package: str) -> dict[str, Any]:
    """Return the functions and classes above as `package` defines them, without missing ones."""
    result: dict[str, Any] = {}
    for table, tell in ((FUNCTIONS, describe), (CLASSES, describe_class)):
        for module, names in table.items():
            try:
                found = importlib.import_module(f"{package}.{module}" if module else package)
            except ModuleNotFoundError:
                continue
            for name in names:
                if hasattr(found, name):
                    result[f"{module}.{name}".lstrip(".")] = tell(getattr(found, name))
    return result


if __name__ == "__main__":
    json.dump(describe_package("lance"), sys.stdout, indent=1, sort_keys=True)
