"""Lance tables in Python: versioned columnar tables on any store, byte-compatible with the Lance format.

    import lancetable as lance

    ds = lance.write_dataset(table, "/data/flights.lance")
    ds.to_table(columns=["carrier"], filter="dep_delay > 60")
    lance.dataset("/data/flights.lance", version=1)

Names, arguments and exceptions are those of pylance. Unsupported features raise `UnsupportedFeatureError`, a
`NotImplementedError`.

Modules are imported on first use. `LanceDataset` needs `pyarrow.dataset`, whose import alone takes as long as that of
pylance.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lancetable import errors, log, scope
from lancetable.errors import *  # noqa: F403  # the whole error tree is public
from lancetable.lazy import lazy_names

if TYPE_CHECKING:
    from lancetable import blob as blob
    from lancetable import commit as commit
    from lancetable import debug as debug
    from lancetable import file as file
    from lancetable import fragment as fragment
    from lancetable import hf as hf
    from lancetable import indices as indices
    from lancetable import optimize as optimize
    from lancetable import progress as progress
    from lancetable import sampler as sampler
    from lancetable import schema as schema
    from lancetable import types as types
    from lancetable import udf as udf
    from lancetable.blob import Blob as Blob
    from lancetable.blob import BlobArray as BlobArray
    from lancetable.blob import BlobColumn as BlobColumn
    from lancetable.blob import BlobDescriptor as BlobDescriptor
    from lancetable.blob import BlobDescriptorArrayBuilder as BlobDescriptorArrayBuilder
    from lancetable.blob import BlobFile as BlobFile
    from lancetable.blob import DedicatedBlobWriter as DedicatedBlobWriter
    from lancetable.blob import PackedBlobWriter as PackedBlobWriter
    from lancetable.blob import blob_array as blob_array
    from lancetable.blob import blob_field as blob_field
    from lancetable.cleanup import CleanupCandidateFile as CleanupCandidateFile
    from lancetable.cleanup import CleanupExplanation as CleanupExplanation
    from lancetable.cleanup import CleanupReferencedBranch as CleanupReferencedBranch
    from lancetable.cleanup import CleanupStats as CleanupStats
    from lancetable.dataset import LanceDataset as LanceDataset
    from lancetable.dataset import dataset as dataset
    from lancetable.dataset import write_dataset as write_dataset
    from lancetable.debug import show_versions as show_versions
    from lancetable.fragment import LanceFragment as LanceFragment
    from lancetable.fragment_metadata import FragmentMetadata as FragmentMetadata
    from lancetable.index_metadata import Index as Index
    from lancetable.index_metadata import IndexFile as IndexFile
    from lancetable.log import set_logger as set_logger
    from lancetable.merge_insert import MergeInsertBuilder as MergeInsertBuilder
    from lancetable.operation import LanceOperation as LanceOperation
    from lancetable.operation import Transaction as Transaction
    from lancetable.ops.maintain.stats import DataStatistics as DataStatistics
    from lancetable.ops.maintain.stats import FieldStatistics as FieldStatistics
    from lancetable.progress import IndexProgress as IndexProgress
    from lancetable.scanner import LanceScanner as LanceScanner
    from lancetable.scanner import ScanStatistics as ScanStatistics
    from lancetable.schema import json_to_schema as json_to_schema
    from lancetable.schema import schema_to_json as schema_to_json
    from lancetable.session import Session as Session
    from lancetable.store.io_stats import bytes_read_counter as bytes_read_counter
    from lancetable.store.io_stats import iops_counter as iops_counter
    from lancetable.table_checks import fsck as fsck
    from lancetable.types import DatasetBasePath as DatasetBasePath
    from lancetable.udf import BatchUDF as BatchUDF
    from lancetable.udf import batch_udf as batch_udf

__version__ = "0.1.0"

_MODULES = [
    "blob",
    "commit",
    "debug",
    "file",
    "fragment",
    "hf",
    "indices",
    "optimize",
    "progress",
    "sampler",
    "schema",
    "types",
    "udf",
    "util",
    "vector",
]
_HOMES = {
    "lancetable.blob": (
        "Blob BlobArray BlobColumn BlobDescriptor BlobDescriptorArrayBuilder "
        "BlobFile DedicatedBlobWriter PackedBlobWriter blob_array blob_field"
    ),
    "lancetable.table_checks": "fsck",
    "lancetable.cleanup": "CleanupCandidateFile CleanupExplanation CleanupReferencedBranch CleanupStats",
    "lancetable.dataset": "LanceDataset dataset write_dataset",
    "lancetable.debug": "show_versions",
    "lancetable.fragment": "LanceFragment",
    "lancetable.fragment_metadata": "FragmentMetadata",
    "lancetable.index_metadata": "Index IndexFile",
    "lancetable.log": "set_logger",
    "lancetable.merge_insert": "MergeInsertBuilder",
    "lancetable.operation": "LanceOperation Transaction",
    "lancetable.ops.maintain.stats": "DataStatistics FieldStatistics",
    "lancetable.progress": "IndexProgress",
    "lancetable.scanner": "LanceScanner ScanStatistics",
    "lancetable.schema": "json_to_schema schema_to_json",
    "lancetable.session": "Session",
    "lancetable.store.io_stats": "bytes_read_counter iops_counter",
    "lancetable.types": "DatasetBasePath",
    "lancetable.udf": "BatchUDF batch_udf",
}
__all__ = ["__version__", "log", *_MODULES, *" ".join(_HOMES.values()).split(), *errors.__all__]

_load = lazy_names(__name__, _HOMES)
_MISSING = scope.missing_names(scope.MODULE)
_MISSING_MODULES = scope.missing_names(scope.MODULES)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute. The import system sets the module `dataset`, for which its function is set instead."""
        super().__setattr__(name, value.dataset if name == "dataset" and isinstance(value, ModuleType) else value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a public name, or return a stub that raises an error for a name that only pylance supports.

    Raises
    ------
    AttributeError
        If the name is unknown to pylance too, or if it is a module that is out of scope.
    """
    if name in _MODULES:
        return import_module(f"lancetable.{name}")
    if name in _MISSING_MODULES:
        raise AttributeError(str(scope.missing_module(f"lancetable.{name}")))
    if name in _MISSING:
        return scope.stub(f"lancetable.{name}", _MISSING[name])
    return _load(name)
