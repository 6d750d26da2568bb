"""Lance tables in Python: versioned columnar tables on any store, byte-compatible with the Lance format.

    import lancetable as lance

    ds = lance.write_dataset(table, "/data/flights.lance")
    ds.to_table(columns=["carrier"], filter="dep_delay > 60")
    lance.dataset("/data/flights.lance", version=1)

Names, arguments and exceptions are those of pylance. Unsupported features raise `UnsupportedFeatureError`, a
`NotImplementedError`.
"""

from __future__ import annotations

from typing import Any

from lancetable import (
    blob,
    commit,
    debug,
    errors,
    file,
    fragment,
    log,
    optimize,
    progress,
    sampler,
    schema,
    scope,
    types,
    udf,
)
from lancetable.blob import (
    Blob,
    BlobArray,
    BlobColumn,
    BlobDescriptor,
    BlobDescriptorArrayBuilder,
    BlobFile,
    DedicatedBlobWriter,
    PackedBlobWriter,
    blob_array,
    blob_field,
)
from lancetable.checks import fsck
from lancetable.cleanup import CleanupCandidateFile, CleanupExplanation, CleanupReferencedBranch, CleanupStats
from lancetable.dataset import LanceDataset, dataset, write_dataset
from lancetable.debug import show_versions
from lancetable.errors import *  # noqa: F403  # the whole error tree is public
from lancetable.fragment import LanceFragment
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.index_metadata import Index, IndexFile
from lancetable.log import set_logger
from lancetable.merge_insert import MergeInsertBuilder
from lancetable.operation import LanceOperation, Transaction
from lancetable.ops.maintain.stats import DataStatistics, FieldStatistics
from lancetable.scanner import LanceScanner, ScanStatistics
from lancetable.schema import json_to_schema, schema_to_json
from lancetable.session import Session
from lancetable.store.io_stats import bytes_read_counter, iops_counter
from lancetable.types import DatasetBasePath
from lancetable.udf import BatchUDF, batch_udf

__version__ = "0.1.0"

__all__ = [
    "BatchUDF",
    "Blob",
    "BlobArray",
    "BlobColumn",
    "BlobDescriptor",
    "BlobDescriptorArrayBuilder",
    "BlobFile",
    "CleanupCandidateFile",
    "CleanupExplanation",
    "CleanupReferencedBranch",
    "CleanupStats",
    "DataStatistics",
    "DatasetBasePath",
    "DedicatedBlobWriter",
    "FieldStatistics",
    "FragmentMetadata",
    "Index",
    "IndexFile",
    "LanceDataset",
    "LanceFragment",
    "LanceOperation",
    "LanceScanner",
    "MergeInsertBuilder",
    "PackedBlobWriter",
    "ScanStatistics",
    "Session",
    "Transaction",
    "__version__",
    "batch_udf",
    "blob",
    "blob_array",
    "blob_field",
    "bytes_read_counter",
    "commit",
    "dataset",
    "debug",
    "file",
    "fragment",
    "fsck",
    "iops_counter",
    "json_to_schema",
    "log",
    "optimize",
    "progress",
    "sampler",
    "schema",
    "schema_to_json",
    "set_logger",
    "show_versions",
    "types",
    "udf",
    "write_dataset",
    *errors.__all__,
]

_MISSING = scope.missing_names(scope.MODULE)
_MISSING_MODULES = scope.missing_names(scope.MODULES)


def __getattr__(name: str) -> Any:
    """Return a raising stub for names that only pylance supports.

    Raises
    ------
    AttributeError
        If pylance has no such name either, or for a module that is out of scope.
    """
    if name in _MISSING_MODULES:
        raise AttributeError(str(scope.missing_module(f"lancetable.{name}")))
    if name in _MISSING:
        return scope.stub(f"lancetable.{name}", _MISSING[name])
    raise AttributeError(f"module 'lancetable' has no attribute {name!r}")
