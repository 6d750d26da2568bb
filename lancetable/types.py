"""Types in the signatures of the public API, and the dictionaries that it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Union

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.dataset as pads
    from fsspec import AbstractFileSystem

    from lancetable.dataset import LanceDataset

ReaderLike = Union[
    "pd.DataFrame",
    pa.Table,
    pa.RecordBatch,
    "pads.Dataset",
    "pads.Scanner",
    pa.RecordBatchReader,
    Iterable[pa.RecordBatch],
    Iterable[dict[str, Any]],
    Any,
]
"""Any tabular object; see `lancetable.tabular_input.read_input`."""

Uri = Union[str, "os.PathLike[str]", "tuple[AbstractFileSystem, str]"]
"""A local path, a URI with a scheme, or a pair of an fsspec file system and a path in it."""

Columns: TypeAlias = "list[str] | dict[str, str]"
"""Column names (dotted paths for nested fields), or a mapping from output names to SQL expressions."""

Filter: TypeAlias = "str | pc.Expression"
"""A predicate, as SQL or as a pyarrow expression."""

Reference: TypeAlias = "int | str | tuple[str | None, int | None]"
"""A version number, a tag name, or (branch, version), where None means main or the newest version."""

CommitLock = Callable[[int], AbstractContextManager[None]]
"""Called with the version to be written; the manifest is written inside the returned context."""

WriteMode = Literal["create", "append", "overwrite"]


@dataclass(frozen=True)
class DatasetBasePath:
    """A base path, where files of a table may be stored besides the table's root.

    With `is_dataset_root` the files are below `data` and `_deletions` of `path`, otherwise directly in `path`. `id` is
    the number by which data files refer to the base; the table assigns it.
    """

    path: str
    name: str | None = None
    is_dataset_root: bool = False
    id: int | None = None


class Version(TypedDict):
    """One version of a table; the values of `metadata` are decimal strings."""

    version: int
    timestamp: datetime
    metadata: dict[str, str]


class VersionRef(TypedDict):
    """The number of a version whose manifest was not read."""

    version: int


class Tag(TypedDict):
    """A tagged version. Times are in UTC; `manifest_size` is in bytes."""

    branch: str | None
    version: int
    created_at: datetime | None
    updated_at: datetime | None
    manifest_size: int
    metadata: dict[str, str]


class DeleteResult(TypedDict):
    """The result of `delete`."""

    num_deleted_rows: int


class UpdateResult(TypedDict):
    """The result of `update`."""

    num_rows_updated: int


class ExecuteResult(TypedDict):
    """The result of a merge insert."""

    num_inserted_rows: int
    num_updated_rows: int
    num_deleted_rows: int


class DatasetStats(TypedDict):
    """Counts over all fragments of a version."""

    num_deleted_rows: int
    num_fragments: int
    num_small_files: int


class BulkCommitResult(TypedDict):
    """The result of `commit_batch`: the new version and the committed transaction."""

    dataset: LanceDataset
    merged: Any


class Branch(TypedDict):
    """A branch: its parent version and its creation time (seconds since 1970)."""

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
    """Settings of automatic cleanup: every `interval` commits, remove versions older than `older_than_seconds`."""

    interval: int
    older_than_seconds: int
