"""Types that appear in the signatures of the public API, and the dictionaries that it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Union

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

if TYPE_CHECKING:
    import pandas as pd
    from fsspec import AbstractFileSystem

    from lancetable.dataset import LanceDataset

__all__ = [
    "Branch",
    "AlterColumn",
    "AutoCleanupConfig",
    "BulkCommitResult",
    "Columns",
    "CommitLock",
    "DatasetBasePath",
    "DatasetStats",
    "DeleteResult",
    "ExecuteResult",
    "UpdateResult",
    "Filter",
    "Reference",
    "ReaderLike",
    "Tag",
    "Uri",
    "Version",
    "VersionRef",
    "WriteMode",
]

ReaderLike = Union[
    "pd.DataFrame",
    pa.Table,
    pa.RecordBatch,
    pads.Dataset,
    pads.Scanner,
    pa.RecordBatchReader,
    Iterable[pa.RecordBatch],
    Iterable[dict[str, Any]],
    Any,
]
"""Anything tabular: see `lancetable.inputs.read_input`."""

Uri = Union[str, "os.PathLike[str]", "tuple[AbstractFileSystem, str]"]
"""A local path, a URI with a scheme, or an fsspec file system and a path in it."""

Columns: TypeAlias = "list[str] | dict[str, str]"
"""Column names (dotted paths for nested fields), or output name -> SQL expression."""

Filter: TypeAlias = "str | pc.Expression"
"""A SQL condition, or a pyarrow expression."""

Reference: TypeAlias = "int | str | tuple[str | None, int | None]"
"""A version number, a tag name, or (branch, version) where None is main or the latest."""

CommitLock = Callable[[int], AbstractContextManager[None]]
"""Called with the version to be written; the manifest is written inside the context it returns."""

WriteMode = Literal["create", "append", "overwrite"]


@dataclass(frozen=True)
class DatasetBasePath:
    """Another place in which files of a table may lie.

    With `is_dataset_root` they lie below `data` and `_deletions` of `path`, else directly in it. `id` is how data files
    refer to it; the table gives it.
    """

    path: str
    name: str | None = None
    is_dataset_root: bool = False
    id: int | None = None


class Version(TypedDict):
    """One version of a table; the values of `metadata` are decimal texts."""

    version: int
    timestamp: datetime
    metadata: dict[str, str]


class VersionRef(TypedDict):
    """The number of a version, without its manifest having been read."""

    version: int


class Tag(TypedDict):
    """A named version. Times are in UTC; `manifest_size` is in bytes."""

    branch: str | None
    version: int
    created_at: datetime | None
    updated_at: datetime | None
    manifest_size: int
    metadata: dict[str, str]


class DeleteResult(TypedDict):
    """What `delete` did."""

    num_deleted_rows: int


class UpdateResult(TypedDict):
    """What `update` did."""

    num_rows_updated: int


class ExecuteResult(TypedDict):
    """What a merge insert did."""

    num_inserted_rows: int
    num_updated_rows: int
    num_deleted_rows: int


class DatasetStats(TypedDict):
    """Counts over all fragments of a version."""

    num_deleted_rows: int
    num_fragments: int
    num_small_files: int


class BulkCommitResult(TypedDict):
    """What `commit_batch` did: the new version and the one transaction that was committed."""

    dataset: LanceDataset
    merged: Any


class Branch(TypedDict):
    """A branch: where it springs from, and when it was made (seconds since 1970)."""

    parent_branch: str | None
    branch_identifier: list[tuple[int, str]]
    parent_version: int
    create_at: int
    manifest_size: int
    metadata: dict[str, str]


class AlterColumn(TypedDict, total=False):
    """One change of a column; `path` is required."""

    path: str
    name: str | None
    nullable: bool | None
    data_type: pa.DataType | None


class AutoCleanupConfig(TypedDict):
    """Clean up every `interval` commits what is older than `older_than_seconds`."""

    interval: int
    older_than_seconds: int
