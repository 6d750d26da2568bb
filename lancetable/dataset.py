"""`LanceDataset`, a table at one version, and the functions `dataset()` and `write_dataset()`.

A dataset holds one `TableVersion` value and replaces it after its own commits; it has no other state. `lancetable.ops`
implements all operations. Modules that are not needed to open and read a table are imported by the methods that use
them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

import lancetable
from lancetable import ops, scope, telemetry
from lancetable.argument_validation import (
    COMMIT_MESSAGE_KEY,
    DEFAULT_BLOB_BUFFER_SIZE,
    DEFAULT_MAX_BYTES_PER_FILE,
    check_changes,
    check_count,
    check_filter,
    check_mapping,
    check_mode,
    check_positive,
    check_string,
    check_timeout,
    parse_alteration,
    parse_asof,
    parse_reference,
    transaction_properties_of,
    uri_string,
    version_number,
    version_to_write,
    warn_of_cache_size,
)
from lancetable.dataset_vector_indexes import DatasetVectorIndexes
from lancetable.errors import InvalidInputError, InvalidOperationError, VersionNotFoundError
from lancetable.lazy import lazy_names, lazy_property
from lancetable.progress import tracked
from lancetable.refs import Branches, Tags
from lancetable.scanner import ColumnOrdering, LanceScanner, ScannerBuilder, scan_arguments
from lancetable.schema import LanceSchema, string_metadata
from lancetable.session import Session
from lancetable.store import io_stats
from lancetable.store.open import with_untrusted
from lancetable.table import manifest_files
from lancetable.table.metadata_cache import TableCache
from lancetable.table.version import TableVersion, checkout, latest, open_location, open_version
from lancetable.types import (
    AlterColumn,
    AutoCleanupConfig,
    BulkCommitResult,
    Columns,
    CommitLock,
    DatasetBasePath,
    DatasetStats,
    DeleteResult,
    ExecuteResult,
    Filter,
    ReaderLike,
    Reference,
    Tag,
    UpdateResult,
    Uri,
    Version,
    VersionRef,
)

if TYPE_CHECKING:
    import pandas as pd

    from lancetable.blob import BlobFile
    from lancetable.cleanup import CleanupExplanation, CleanupStats
    from lancetable.delta import DatasetDelta
    from lancetable.file import LanceFileSession
    from lancetable.fragment import LanceFragment
    from lancetable.fragment_metadata import DataFile, FragmentMetadata
    from lancetable.index_metadata import Index, IndexFile
    from lancetable.merge_insert import MergeInsertBuilder
    from lancetable.operation import LanceOperation, Transaction
    from lancetable.ops.read.diff import Diff
    from lancetable.optimize import DatasetOptimizer
    from lancetable.progress import FragmentWriteProgress, ProgressLike
    from lancetable.report import TableReport
    from lancetable.sql import SqlQueryBuilder
    from lancetable.udf import BatchUDF
    from lancetable.vector_models import VectorIndexReader
    from lancetable.writes import write_fragments

__all__ = [
    "LANCE_COMMIT_MESSAGE_KEY",
    "AlterColumn",
    "AutoCleanupConfig",
    "BulkCommitResult",
    "ColumnOrdering",
    "DatasetOptimizer",
    "DataFile",
    "DatasetStats",
    "DeleteResult",
    "ExecuteResult",
    "FragmentMetadata",
    "Index",
    "IndexFile",
    "LanceDataset",
    "LanceFragment",
    "LanceOperation",
    "LanceScanner",
    "LanceSchema",
    "LanceStats",
    "MergeInsertBuilder",
    "ScannerBuilder",
    "Tag",
    "Tags",
    "Transaction",
    "UpdateResult",
    "VectorIndexReader",
    "Version",
    "VersionRef",
    "dataset",
    "write_dataset",
    "write_fragments",
]

__getattr__ = lazy_names(
    __name__,
    {
        "lancetable.fragment": "LanceFragment",
        "lancetable.fragment_metadata": "DataFile FragmentMetadata",
        "lancetable.index_metadata": "Index IndexFile",
        "lancetable.merge_insert": "MergeInsertBuilder",
        "lancetable.operation": "LanceOperation Transaction",
        "lancetable.optimize": "DatasetOptimizer",
        "lancetable.vector_models": "VectorIndexReader",
        "lancetable.writes": "write_fragments",
    },
)

LANCE_COMMIT_MESSAGE_KEY = COMMIT_MESSAGE_KEY
COMMIT_TIMEOUT = timedelta(seconds=1800)
# Arguments of `pyarrow.dataset.Dataset.count_rows` that do not change the count.
PYARROW_COUNT_OPTIONS = frozenset(
    {
        "batch_size",
        "batch_readahead",
        "fragment_readahead",
        "fragment_scan_options",
        "use_threads",
        "cache_metadata",
        "memory_pool",
    }
)


def dataset(
    uri: Uri | None = None,
    version: int | str | None = None,
    asof: datetime | str | None = None,
    block_size: int | None = None,
    commit_lock: CommitLock | None = None,
    index_cache_size: int | None = None,
    storage_options: dict[str, str] | None = None,
    default_scan_options: dict[str, Any] | None = None,
    metadata_cache_size_bytes: int | None = None,
    index_cache_size_bytes: int | None = None,
    read_params: dict[str, Any] | None = None,
    session: Session | None = None,
    namespace_client: Any = None,
    table_id: list[str] | None = None,
    base_store_params: dict[str, dict[str, str]] | None = None,
    *,
    untrusted: bool = False,
) -> LanceDataset:
    """Open a table at its newest version, at a version or tag, or as of a time.

    Parameters
    ----------
    uri
        A local path, or a URI such as `s3://bucket/table`.
    version
        A version number or the name of a tag.
    asof
        Open the newest version committed at or before this time, in local time if it has no time zone. Ignored if
        `version` is given.
    commit_lock
        Lock around the manifest write of commits, for stores that cannot create an object exclusively.
    storage_options
        Options of the store, such as credentials and endpoint.
    default_scan_options
        Default arguments of `scanner`.
    metadata_cache_size_bytes
        Size limit of the cache of parsed metadata; 256 MiB by default.
    session
        Share the cache of other datasets.
    block_size, index_cache_size, index_cache_size_bytes, read_params
        Accepted for compatibility, without effect. `index_cache_size` is deprecated, as in pylance.
    namespace_client, table_id, base_store_params
        Not supported; raise UnsupportedFeatureError if given.
    untrusted
        Open a table from a source that you do not trust. Paths outside of `uri` raise UntrustedPathError: base paths,
        as in shallow clones and in a branch that is opened by its own address, and symbolic links on a local disk.
        Strict limits apply; see docs/how-to/untrusted-tables.md. The setting is stored as the storage option
        `untrusted`, so it applies to all versions, branches, fragments and pickled copies.

    Returns
    -------
    LanceDataset
        The table at the requested version.

    Raises
    ------
    DatasetNotFoundError, VersionNotFoundError, RefNotFoundError
        If the table, version or tag does not exist. All are subclasses of ValueError and FileNotFoundError.
    CorruptFileError, UnsupportedFeatureError, StoreError
        If the manifest cannot be read, needs a newer reader, or the storage failed.
    UntrustedPathError, LimitError
        If the table is untrusted, and a path or a size is not allowed.
    InvalidInputError
        If `uri` is missing or `asof` is not a valid time.

    Examples
    --------
    >>> lancetable.dataset("flights.lance").version
    2
    >>> lancetable.dataset("flights.lance", version=1).count_rows()
    6
    """
    scope.reject("catalog lookup", namespace_client=namespace_client, table_id=table_id)
    if uri is None:
        raise InvalidInputError("missing argument: uri")
    warn_of_cache_size(index_cache_size)
    return LanceDataset(
        uri,
        version,
        commit_lock=commit_lock,
        storage_options=storage_options,
        default_scan_options=default_scan_options,
        metadata_cache_size_bytes=metadata_cache_size_bytes,
        session=session,
        base_store_params=base_store_params,
        asof=None if asof is None or version is not None else parse_asof(asof),
        untrusted=untrusted,
    )


@scope.fill_gaps(scope.DATASET)
class LanceDataset(DatasetVectorIndexes, pads.Dataset):  # type: ignore[misc]  # pyarrow comes without types
    """A table at one version.

    Created by `dataset()` or `write_dataset()`. It is a `pyarrow.dataset.Dataset`, so DuckDB, polars and other engines
    scan it with projection and filter pushdown, and it supports the Arrow C stream interface.

    A dataset stays at its version when other writers commit; `checkout_latest` moves it to the newest version. Its own
    changes (`insert`, `delete`, `restore`) move it to the version they create. It is pickled with its manifest, so that
    a worker process sees the same version without reading it again.

    Examples
    --------
    >>> ds = lancetable.dataset("flights.lance")
    >>> ds.to_table(columns=["carrier"], filter="dep_delay > 60").to_pydict()
    {'carrier': ['DL', 'B6']}
    """

    def __init__(
        self,
        uri: Uri,
        version: int | str | None = None,
        block_size: int | None = None,
        index_cache_size: int | None = None,
        metadata_cache_size: int | None = None,
        commit_lock: CommitLock | None = None,
        storage_options: dict[str, str] | None = None,
        serialized_manifest: bytes | None = None,
        default_scan_options: dict[str, Any] | None = None,
        metadata_cache_size_bytes: int | None = None,
        index_cache_size_bytes: int | None = None,
        read_params: dict[str, Any] | None = None,
        session: Session | None = None,
        namespace_client: Any = None,
        table_id: list[str] | None = None,
        namespace_client_managed_versioning: bool = False,
        base_store_params: dict[str, dict[str, str]] | None = None,
        *,
        asof: datetime | None = None,
        untrusted: bool = False,
    ) -> None:
        scope.reject("catalog lookup", namespace_client=namespace_client, table_id=table_id)
        scope.reject("several stores for one table", base_store_params=base_store_params)
        scope.reject("manifests handed over as bytes", serialized_manifest=serialized_manifest)
        warn_of_cache_size(index_cache_size)
        if session is not None:
            cache = session.cache
        elif metadata_cache_size_bytes is not None:
            cache = TableCache(check_count("metadata_cache_size_bytes", metadata_cache_size_bytes))
        else:
            cache = None
        opened = open_version(
            uri_string(uri),
            None if version is None else parse_reference(version),
            asof=asof,
            storage_options=with_untrusted(storage_options, untrusted),
            commit_lock=commit_lock,
            cache=cache,
        )
        self._table = replace(opened, store=io_stats.counted(opened.store))
        self._default_scan_options = dict(default_scan_options or {})
        self._view_filter: pc.Expression | None = None

    @classmethod
    def from_version(
        cls,
        table: TableVersion,
        default_scan_options: dict[str, Any] | None = None,
        view_filter: pc.Expression | None = None,
    ) -> LanceDataset:
        """Return a dataset for an open table version; see `filter` for `view_filter`."""
        dataset = cls.__new__(cls)
        dataset._table = replace(table, store=io_stats.counted(table.store))
        dataset._default_scan_options = dict(default_scan_options or {})
        dataset._view_filter = view_filter
        return dataset

    # ------------------------------------------------------------------------------------------- Python's protocols

    def __reduce__(self) -> tuple[Any, ...]:
        return LanceDataset.from_version, (self._table, self._default_scan_options, self._view_filter)

    def __len__(self) -> int:
        return self.count_rows()

    def __repr__(self) -> str:
        manifest = self._table.manifest
        rows = manifest.fragments.num_rows()
        num_rows = "unknown" if rows is None else f"{rows:,}"
        head = (
            f"LanceDataset({self.uri!r}, version={self.version}, rows={num_rows}, fragments={len(manifest.fragments)})"
        )
        return "\n".join([head, *(f"  {field.name}: {field.type}" for field in manifest.schema.to_arrow())])

    def _repr_html_(self) -> str:
        from lancetable.html import dataset_html

        return dataset_html(self)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return all rows as an Arrow C stream."""
        return self.scanner().to_reader().__arrow_c_stream__(requested_schema)

    # ------------------------------------------------------------------------------------------- state and versions

    @property
    def table_version(self) -> TableVersion:
        """The immutable table version of this dataset, the input of `lancetable.ops`."""
        return self._table

    @property
    def default_scan_options(self) -> dict[str, Any]:
        """Default arguments of `scanner`."""
        return self._default_scan_options

    @property
    def view_filter(self) -> pc.Expression | None:
        """The filter of a view created by `filter`, or None."""
        return self._view_filter

    @property
    def uri(self) -> str:
        """The address of the table, as given by the caller."""
        return self._table.uri

    @property
    def version(self) -> int:
        """The version number of this dataset."""
        return self._table.version

    @property
    def latest_version(self) -> int:
        """The newest version number in storage, read at each access."""
        return latest(self._table).version

    @property
    def schema(self) -> pa.Schema:
        """The schema of a scan without arguments."""
        if self._default_scan_options:
            return self.scanner().projected_schema
        return self._table.schema.to_arrow()

    @property
    def lance_schema(self) -> LanceSchema:
        """The schema with the field ids of the format."""
        return LanceSchema(self._table.schema)

    @property
    def max_field_id(self) -> int:
        """The highest field id in the schema or any data file; -1 without fields."""
        return self._table.manifest.max_field_id

    @property
    def data_storage_version(self) -> str:
        """The format version of the table, such as "2.2", as its manifest records it.

        Release 0.16 of Lance recorded "0.1" for tables with newer files. New files of such a table use the format of
        its existing files, and the next commit records that format.
        """
        manifest = self._table.manifest
        return manifest.data_format or manifest.file_version.number

    @property
    def has_stable_row_ids(self) -> bool:
        """True if rows keep their `_rowid` when they are rewritten."""
        return self._table.manifest.has_stable_row_ids

    @property
    def schema_metadata(self) -> dict[str, str]:
        """The metadata of the schema."""
        return string_metadata(self._table.manifest.schema_metadata)

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the table."""
        return dict(self._table.manifest.table_metadata)

    def config(self) -> dict[str, str]:
        """Return the config of the table."""
        return dict(self._table.manifest.config)

    def base_paths(self) -> dict[int, DatasetBasePath]:
        """Return the base paths where files of this table may be stored, by id."""
        from lancetable.operation import from_format

        bases: dict[int, DatasetBasePath] = from_format(self._table.manifest.base_paths)
        return bases

    @property
    def initial_storage_options(self) -> dict[str, str] | None:
        """The storage options as given by the caller."""
        options = self._table.storage_options
        return None if options is None else dict(options)

    def latest_storage_options(self) -> dict[str, str] | None:
        """Return the storage options in use, which equal the initial ones."""
        return self.initial_storage_options

    def session(self) -> Session:
        """Return the session whose cache this dataset uses."""
        return Session.of(self._table.cache)

    def versions(self) -> list[Version]:
        """Return all existing versions, oldest first.

        Reads every manifest once; `version_refs` is cheaper.

        Returns
        -------
        list of dict
            `{"version", "timestamp", "metadata"}` of each version. The timestamp is naive, in local time; the metadata
            are counts of rows, files and bytes as decimal strings.
        """
        return [public_version(summary) for summary in manifest_files.history(self._table)]

    def version_refs(self) -> list[VersionRef]:
        """Return the numbers of all versions, oldest first, from one listing."""
        locations = self._table.handler.history(self._table.store, self._table.base)
        return [VersionRef(version=location.version) for location in locations]

    def get_version(self) -> Version:
        """Return the entry of `versions` for the version of this dataset, without I/O."""
        return public_version(manifest_files.summarize(self._table.manifest))

    def checkout_version(self, version: Reference) -> LanceDataset:
        """Return a dataset at another version of this table. This dataset does not change; caches are shared.

        Parameters
        ----------
        version
            A version number, the name of a tag, or `(branch, number)`, where None means main and the newest version.

        Raises
        ------
        VersionNotFoundError, RefNotFoundError
            If the version, tag or branch does not exist.
        InvalidInputError
            If `version` has another type.

        Examples
        --------
        >>> ds.checkout_version(1).count_rows()
        6
        >>> ds.tags.create("first", 1)
        >>> ds.checkout_version("first").version
        1
        """
        return LanceDataset.from_version(self._at(version), self._default_scan_options, self._view_filter)

    def _at(self, reference: Reference) -> TableVersion:
        return checkout(self._table, parse_reference(reference, branches=True))

    def checkout_latest(self) -> None:
        """Move this dataset to the newest version of its branch."""
        self._table = latest(self._table)

    def restore(self) -> None:
        """Commit the version of this dataset as the newest one.

        Raises
        ------
        CommitConflictError
            If a concurrent commit prevents it.

        Examples
        --------
        >>> old = ds.checkout_version(1)
        >>> old.restore()
        >>> old.version, old.count_rows()
        (3, 6)
        """
        self._table = ops.restore.restore(self._table)

    @property
    def tags(self) -> Tags:
        """The tags of the table."""
        return Tags(self)

    # ----------------------------------------------------------------------------------------------------- reading

    def scanner(
        self,
        columns: Columns | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int | None = None,
        nearest: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        batch_size_bytes: int | None = None,
        batch_readahead: int | None = None,
        fragment_readahead: int | None = None,
        scan_in_order: bool | None = None,
        fragments: Iterable[LanceFragment] | None = None,
        index_segments: Iterable[Any] | None = None,
        full_text_query: Any = None,
        *,
        prefilter: bool | None = None,
        with_row_id: bool | None = None,
        with_row_address: bool | None = None,
        use_stats: bool | None = None,
        fast_search: bool | None = None,
        io_buffer_size: int | None = None,
        late_materialization: bool | list[str] | None = None,
        blob_handling: str | None = None,
        use_scalar_index: bool | None = None,
        include_deleted_rows: bool | None = None,
        scan_stats_callback: Callable[[Any], None] | None = None,
        strict_batch_size: bool | None = None,
        order_by: list[ColumnOrdering | str] | None = None,
        disable_scoring_autoprojection: bool | None = None,
        row_addr_allowlist: bytes | None = None,
        row_addr_blocklist: bytes | None = None,
        progress: ProgressLike = None,
    ) -> LanceScanner:
        """Return a scanner. Nothing is read until one of its methods is called.

        Parameters
        ----------
        columns
            Column names, dotted for nested fields, or `{output name: SQL expression}`. `_rowid`, `_rowaddr`,
            `_rowoffset`, `_row_created_at_version` and `_row_last_updated_at_version` are also available. All columns
            by default.
        filter
            Predicate, as SQL or as an expression. It is checked when the scan is planned.
        limit, offset
            Maximum number of rows to yield, and number of rows to skip first. Both apply after filter and order.
        batch_size
            Maximum number of rows per batch. With a filter, batches of wide rows end at about 4 MiB; see
            `strict_batch_size`.
        batch_size_bytes
            Approximate size of a batch in bytes.
        fragments
            Scan only these fragments.
        with_row_id, with_row_address
            Add `_rowid` or `_rowaddr`, both uint64.
        use_stats
            False disables pruning by the statistics in data files. The result is the same.
        use_scalar_index
            False disables scalar indexes. By default, the filter uses those that can answer it or parts of it; rows of
            fragments that they do not cover are scanned. The result is the same.
        fast_search
            True leaves out fragments that the indexes of the filter do not cover. Without an index for the filter, all
            fragments are scanned. With `nearest`, search only the fragments that the vector index of the column covers.
        io_buffer_size
            Accepted for compatibility, without effect.
        late_materialization
            Columns to read only for rows that match the filter: True for all columns that the filter does not use
            (default), False for none, or a list of columns.
        blob_handling
            "blobs_descriptions" (default), "all_descriptions" or "all_binary".
        include_deleted_rows
            Also yield deleted rows, with a null `_rowid`; requires `with_row_id`.
        scan_stats_callback
            Called with a `ScanStatistics` at the end of the scan.
        strict_batch_size
            All batches except the last one have exactly `batch_size` rows.
        order_by
            Sort keys, the most significant one first.
        batch_readahead, fragment_readahead, scan_in_order
            Tuning options, accepted for compatibility.
        progress
            Callback for the progress of each read, or True for a progress bar; see `lancetable.progress`. Not in
            pylance.
        nearest
            Find the rows with the nearest vectors: a dict with the arguments of `ScannerBuilder.nearest`, such as
            `{"column": "embedding", "q": vector, "k": 10}`. The result is ordered by distance and has the column
            `_distance`. The search is exact, also for columns with a vector index.
        prefilter
            Apply the filter before the search, so that it finds `k` matching rows, instead of to the rows that it
            finds (default). A search of `fragments` requires it.
        disable_scoring_autoprojection
            Return `_distance` only if `columns` contains it.
        full_text_query, index_segments, row_addr_allowlist, row_addr_blocklist
            Index search, which is not supported; raise UnsupportedFeatureError if given.

        Returns
        -------
        LanceScanner
            The scan.

        Raises
        ------
        InvalidInputError, OutOfRangeError, TypeError
            If a number is negative or exceeds 2^63, an argument has a wrong type, or `nearest` does not fit its column.
            Other names, SQL and types of columns are checked by the read methods of the scanner.
        UnsupportedFeatureError
            If an argument of index search is given.

        Examples
        --------
        >>> scanner = ds.scanner(columns=["id"], filter="carrier = 'UA'", with_row_id=True)
        >>> scanner.count_rows()
        3
        >>> scanner.to_table().column_names
        ['id', '_rowid']
        """
        builder = ScannerBuilder(self).row_addr_prefilter(row_addr_allowlist, row_addr_blocklist)
        return builder.apply_defaults(scan_arguments(locals())).to_scanner()

    def to_table(
        self,
        columns: Columns | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int | None = None,
        nearest: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        batch_size_bytes: int | None = None,
        batch_readahead: int | None = None,
        fragment_readahead: int | None = None,
        scan_in_order: bool | None = None,
        *,
        prefilter: bool | None = None,
        with_row_id: bool | None = None,
        with_row_address: bool | None = None,
        use_stats: bool | None = None,
        fast_search: bool | None = None,
        full_text_query: Any = None,
        io_buffer_size: int | None = None,
        late_materialization: bool | list[str] | None = None,
        blob_handling: str | None = None,
        use_scalar_index: bool | None = None,
        include_deleted_rows: bool | None = None,
        order_by: list[ColumnOrdering | str] | None = None,
        disable_scoring_autoprojection: bool | None = None,
        progress: ProgressLike = None,
    ) -> pa.Table:
        """Read rows into an Arrow table. The arguments are those of `scanner`.

        Raises
        ------
        InvalidSqlError, ColumnNotFoundError, InvalidInputError
            If the scan cannot be planned.
        CorruptFileError, NotFoundError, StoreError
            If a file cannot be read.

        Examples
        --------
        >>> ds.to_table(columns={"km": "distance * 1.609"}, filter="carrier = 'DL'").to_pydict()
        {'km': [1226.058]}
        """
        return self.scanner(**scan_arguments(locals())).to_table()

    def to_batches(
        self,
        columns: Columns | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int | None = None,
        nearest: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        batch_size_bytes: int | None = None,
        batch_readahead: int | None = None,
        fragment_readahead: int | None = None,
        scan_in_order: bool | None = None,
        *,
        prefilter: bool | None = None,
        with_row_id: bool | None = None,
        with_row_address: bool | None = None,
        use_stats: bool | None = None,
        full_text_query: Any = None,
        io_buffer_size: int | None = None,
        late_materialization: bool | list[str] | None = None,
        blob_handling: str | None = None,
        use_scalar_index: bool | None = None,
        strict_batch_size: bool | None = None,
        order_by: list[ColumnOrdering | str] | None = None,
        disable_scoring_autoprojection: bool | None = None,
        **kwargs: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Stream rows as record batches with bounded memory.

        All arguments are those of `scanner`. Raises the errors of `to_table`.

        Examples
        --------
        >>> [batch.num_rows for batch in ds.to_batches(columns=["id"], batch_size=3, strict_batch_size=True)]
        [3, 3, 2]
        """
        return self.scanner(**scan_arguments(locals()), **kwargs).to_batches()

    def to_pandas(
        self,
        columns: Columns | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int | None = None,
        nearest: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        batch_readahead: int | None = None,
        fragment_readahead: int | None = None,
        scan_in_order: bool | None = None,
        *,
        prefilter: bool | None = None,
        with_row_id: bool | None = None,
        with_row_address: bool | None = None,
        use_stats: bool | None = None,
        fast_search: bool | None = None,
        full_text_query: Any = None,
        io_buffer_size: int | None = None,
        late_materialization: bool | list[str] | None = None,
        blob_mode: str = "lazy",
        use_scalar_index: bool | None = None,
        include_deleted_rows: bool | None = None,
        order_by: list[ColumnOrdering | str] | None = None,
        disable_scoring_autoprojection: bool | None = None,
        progress: ProgressLike = None,
        **kwargs: Any,
    ) -> pd.DataFrame:
        """Read rows into a pandas DataFrame.

        The arguments are those of `scanner`. `blob_mode` selects the form of blob columns (see
        `LanceScanner.to_pandas`), and `kwargs` are passed to `pyarrow.Table.to_pandas`. Raises the errors of
        `to_table`.
        """
        return self.scanner(**scan_arguments(locals())).to_pandas(blob_mode=blob_mode, **kwargs)

    def count_rows(self, filter: Filter | None = None, **kwargs: Any) -> int:
        """Count the live rows, or those that match `filter`.

        Without a filter, the count usually needs only the manifest.

        Parameters
        ----------
        filter
            Predicate, as SQL or as an expression.
        **kwargs
            Arguments of `scanner`, such as `fragments`; those of `pyarrow.dataset.Dataset.count_rows` have no effect.

        Raises
        ------
        InvalidSqlError, ColumnNotFoundError
            If the filter is invalid.
        TypeError
            If the filter has another type, or an argument is unknown.

        Examples
        --------
        >>> ds.count_rows()
        8
        >>> ds.count_rows("dep_delay IS NULL")
        2
        """
        check_filter("filter", filter)
        scanned = {name: value for name, value in kwargs.items() if name not in PYARROW_COUNT_OPTIONS}
        options = self._default_scan_options
        changed = options.keys() & {"filter", "include_deleted_rows", "fast_search", "use_scalar_index"}
        if scanned or changed or self._view_filter is not None:
            return self.scanner(**{"columns": [], "filter": filter, "with_row_id": True, **scanned}).count_rows()
        return ops.matching_rows.count_rows(self._table, filter)

    def head(self, num_rows: int, **kwargs: Any) -> pa.Table:
        """Return the first rows of a scan; `kwargs` are arguments of `scanner`. Raises the errors of `to_table`."""
        kwargs["limit"] = num_rows
        return self.scanner(**kwargs).to_table()

    def slice(self, start: int, end: int, columns: Columns | None = None) -> pa.Table:
        """Return rows from position `start` up to, but excluding, `end`; fewer if the table ends earlier.

        Raises
        ------
        InvalidInputError
            If `start` is negative or `end` is before it.
        ColumnNotFoundError, InvalidSqlError
            If a column or an expression is invalid.
        """
        if self._default_scan_options or self._view_filter is not None:
            return self.scanner(columns, offset=start, limit=check_count("end", end - start)).to_table()
        return ops.scan.slice_rows(self._table, start, end, columns)

    def take(self, indices: Sequence[int] | pa.Array, columns: Columns | None = None) -> pa.Table:
        """Read rows by position.

        Parameters
        ----------
        indices
            Row positions in scan order, counting live rows from 0; repeats are allowed, and the order is kept.
        columns
            Column names, dotted for nested fields, or `{name: SQL expression}`. All columns by default.

        Returns
        -------
        pyarrow.Table
            One row per position.

        Raises
        ------
        OutOfRangeError
            If a position is negative or past the end.
        ColumnNotFoundError, InvalidSqlError
            If a column or an expression is invalid.
        TypeError
            If `indices` are not integers.

        Examples
        --------
        >>> ds.take([3, 0, 3], columns=["carrier"]).to_pydict()
        {'carrier': ['DL', 'UA', 'DL']}
        """
        return self._traced_take(ops.take.take_offsets, indices, columns)

    def take_row_ids(self, row_ids: Sequence[int] | pa.Array, columns: Columns | None = None) -> pa.Table:
        """Read rows by `_rowid`, in the given order.

        Ids of deleted rows and unknown stable ids are left out, so the result may have fewer rows than `row_ids`; add
        the column `_rowid` to identify them. Without stable row ids, an id is the row's address.

        Raises
        ------
        OutOfRangeError
            If an id is negative or, without stable row ids, is not in a fragment of this version.
        ColumnNotFoundError, InvalidSqlError
            If a column or an expression is invalid.
        TypeError
            If `row_ids` are not integers.
        """
        return self._traced_take(ops.take.take_row_ids, row_ids, columns)

    @lazy_property
    def _is_traced(self) -> bool:
        return telemetry.is_traced()

    def _traced_take(self, take: Callable[..., pa.Table], rows: Any, columns: Columns | None) -> pa.Table:
        table = self._table
        if not self._is_traced:  # even a span that is not recorded would cost a noticeable part of a small take
            return take(table, rows, columns)
        with telemetry.start("take", table.store, table.base) as span:
            result = take(table, rows, columns)
            span.set(version=table.version, returned_rows=result.num_rows)
        return result

    def _take_rows(
        self,
        row_ids: Sequence[int] | pa.Array,
        columns: Columns | None = None,
        *,
        ignore_deletions: bool = False,
        **kargs: Any,
    ) -> pa.Table:
        """Read rows like `take_row_ids`, under pylance's private name."""
        scope.reject("taking deleted rows", ignore_deletions=ignore_deletions)
        return self.take_row_ids(row_ids, columns)

    # ---------------------------------------------------------------------------------------------------- blobs

    def take_blobs(
        self,
        blob_column: str,
        ids: Sequence[int] | pa.Array | None = None,
        addresses: Sequence[int] | pa.Array | None = None,
        indices: Sequence[int] | pa.Array | None = None,
        *,
        buffer_size: int = DEFAULT_BLOB_BUFFER_SIZE,
    ) -> list[BlobFile | None]:
        """Open the blobs of selected rows as files, in the given order; None for a null.

        Only the descriptions of the blobs are read here. Each file fetches its bytes when it is read. To read whole
        blobs, `read_blobs` needs fewer requests.

        Parameters
        ----------
        blob_column
            Dotted path of a blob column.
        ids, addresses, indices
            Rows by `_rowid`, by `_rowaddr`, or by position in scan order. Pass exactly one of them.
        buffer_size
            Bytes that a file reads at a time.

        Raises
        ------
        ColumnNotFoundError
            If the column does not exist.
        InvalidInputError
            If the column has no blobs, a row does not exist, or not exactly one selection is given.
        UnsupportedFeatureError
            If a row is deleted.
        OutOfRangeError
            If a position is past the end.
        TypeError
            If an argument has a wrong type.

        Examples
        --------
        >>> videos = lancetable.dataset("videos.lance")
        >>> with videos.take_blobs("video", indices=[1])[0] as file:
        ...     file.seek(-5, 2), file.read()
        (7, b'video')
        """
        lancetable.blob.check_buffer_size(buffer_size)
        selector, rows = parse_row_selection(ids, addresses, indices)
        blobs = ops.blobs.find_blobs(self._table, blob_column, selector, rows)
        return [
            None if handle is None else lancetable.BlobFile(handle, buffer_size)
            for handle in ops.blobs.blob_handles(self._table, blobs.locations)
        ]

    def read_blobs(
        self,
        blob_column: str,
        ids: Sequence[int] | pa.Array | None = None,
        addresses: Sequence[int] | pa.Array | None = None,
        indices: Sequence[int] | pa.Array | None = None,
        *,
        io_buffer_size: int | None = None,
        preserve_order: bool | None = None,
    ) -> list[tuple[int, bytes | None]]:
        """Read the blobs of selected rows as (row address, bytes), with None for a null.

        All blobs of one file are read together. Rows are in the given order regardless of `preserve_order`;
        `io_buffer_size` is accepted for compatibility. Other arguments and errors are those of `take_blobs`.

        Examples
        --------
        >>> lancetable.dataset("videos.lance").read_blobs("video", indices=[0])
        [(0, b'first video')]
        """
        if io_buffer_size is not None:
            check_positive("io_buffer_size", io_buffer_size)
        selector, rows = parse_row_selection(ids, addresses, indices)
        return ops.blobs.read_blobs(self._table, ops.blobs.find_blobs(self._table, blob_column, selector, rows))

    def read_blob_ranges(
        self,
        blob_column: str,
        requests: Sequence[tuple[int, int, int]],
        *,
        selector: str,
        io_buffer_size: int | None = None,
        preserve_order: bool | None = None,
    ) -> list[tuple[int, int, bytes | None]]:
        """Read byte ranges of blobs, each given as (row, offset, length).

        Parameters
        ----------
        blob_column
            Dotted path of a blob column.
        requests
            Tuples (row, offset, length).
        selector
            Meaning of the rows: "ids", "addresses" or "indices".
        io_buffer_size, preserve_order
            Accepted for compatibility.

        Returns
        -------
        list of tuple
            (number of the request, row address, bytes); None instead of bytes for a null blob.

        Raises
        ------
        OutOfRangeError
            If a range is outside of its blob.
        InvalidInputError, ColumnNotFoundError, UnsupportedFeatureError, TypeError
            As in `take_blobs`.
        """
        if io_buffer_size is not None:
            check_positive("io_buffer_size", io_buffer_size)
        return ops.blobs.read_blob_ranges(self._table, blob_column, requests, ops.blobs.checked_selector(selector))

    def sample(
        self, num_rows: int, columns: Columns | None = None, randomize_order: bool = True, **kwargs: Any
    ) -> pa.Table:
        """Return `num_rows` distinct rows drawn at random, in table order if `randomize_order` is False.

        Raises
        ------
        InvalidInputError
            If the table has fewer rows.
        InvalidOperationError
            If the dataset is a view created by `filter`.
        ColumnNotFoundError
            If a column does not exist.
        TypeError
            If an argument is unknown.

        Examples
        --------
        >>> ds.sample(5, columns=["id"]).num_rows
        5
        """
        if kwargs:
            raise TypeError(f"sample() got an unexpected argument {next(iter(kwargs))!r}; filter a scan instead")
        self._refuse_view("sample", "use lancetable.sampler.maybe_sample with filt=")
        number = check_count("num_rows", num_rows)
        return ops.take.sample(self._table, number, columns, randomize_order=randomize_order)

    # ------------------------------------------------------------------ other methods of pyarrow.dataset.Dataset

    def filter(self, expression: pc.Expression) -> LanceDataset:
        """Return a view of this version whose scans yield only matching rows.

        Filters of repeated calls are combined. The filter applies to scans (`scanner`, `to_table`, `head`, `count_rows`
        …), not to positions (`take`). `sample`, `delete`, `update` and `truncate_table` of a view raise
        InvalidOperationError.

        Raises
        ------
        TypeError
            If `expression` is not a pyarrow expression.
        """
        if not isinstance(expression, pc.Expression):
            raise TypeError(f"expression must be a pyarrow expression, got {type(expression).__name__}")
        view = expression if self._view_filter is None else self._view_filter & expression
        return LanceDataset.from_version(self._table, self._default_scan_options, view)

    def _refuse_view(self, method: str, instead: str) -> None:
        """Check that this is not a view created by `filter`, because `method` would not apply its filter.

        Raises
        ------
        InvalidOperationError
            If it is a view.
        """
        if self._view_filter is not None:
            raise InvalidOperationError(
                f"{method}() does not apply the filter of a view, so it would affect all rows of the table; {instead}"
            )

    def sort_by(self, sorting: str | list[tuple[str, str]], **kwargs: Any) -> pads.InMemoryDataset:
        """Return all rows in memory, sorted by a column or a list of (column, "ascending" or "descending")."""
        return pads.InMemoryDataset(self.to_table().sort_by(sorting, **kwargs))

    def join(
        self,
        right_dataset: pads.Dataset,
        keys: str | list[str],
        right_keys: str | list[str] | None = None,
        join_type: str = "left outer",
        left_suffix: str | None = None,
        right_suffix: str | None = None,
        coalesce_keys: bool = True,
        use_threads: bool = True,
    ) -> pads.InMemoryDataset:
        """Join all rows with those of another dataset in memory; arguments as in `pyarrow.Table.join`."""
        joined = self.to_table().join(
            right_dataset.to_table(), keys, right_keys, join_type, left_suffix, right_suffix, coalesce_keys, use_threads
        )
        return pads.InMemoryDataset(joined)

    def join_asof(
        self,
        right_dataset: pads.Dataset,
        on: str,
        by: str | list[str],
        tolerance: int,
        right_on: str | list[str] | None = None,
        right_by: str | list[str] | None = None,
    ) -> pads.InMemoryDataset:
        """Join each row with the nearest one of another dataset in memory; see `pyarrow.Table.join_asof`."""
        joined = self.to_table().join_asof(right_dataset.to_table(), on, by, tolerance, right_on, right_by)
        return pads.InMemoryDataset(joined)

    @property
    def partition_expression(self) -> pc.Expression:
        """Always true, because a Lance table has no partitions."""
        return pc.scalar(True)

    def get_fragments(self, filter: pc.Expression | None = None) -> list[LanceFragment]:
        """Return all fragments. Raises UnsupportedFeatureError for a filter, because fragments are not partitioned."""
        scope.reject("choosing fragments by a filter", filter=filter)
        return [lancetable.LanceFragment(self, None, fragment=fragment) for fragment in self._table.manifest.fragments]

    def _get_fragments(self, filter: pc.Expression | None) -> list[LanceFragment]:
        return self.get_fragments(filter)

    @property
    def _scan_options(self) -> dict[str, Any]:
        return {}

    def get_fragment(self, fragment_id: int) -> LanceFragment | None:
        """Return the fragment with this id, or None."""
        number = check_count("fragment_id", fragment_id)
        fragment = self._table.manifest.fragments.by_id(number)
        return None if fragment is None else lancetable.LanceFragment(self, None, fragment=fragment)

    def fragment_ids(self) -> set[int]:
        """Return the ids of all fragments, without creating fragment objects."""
        return set(self._table.manifest.fragments.ids().tolist())

    # ---------------------------------------------------------------------------------------------------- changes

    @staticmethod
    def from_pydantic_model(
        model_class: Any, data: list[Any], uri: Uri | None = None, mode: str = "create", **kwargs: Any
    ) -> LanceDataset:
        """Write instances of a pydantic model to a table with the columns and types of its fields.

        Parameters
        ----------
        model_class
            The model class.
        data
            Instances of the model.
        uri
            Address of the table; the class name in snake_case by default.
        mode, **kwargs
            Arguments of `write_dataset`.

        Raises
        ------
        InvalidSchemaError
            If a field has a type that no column supports.
        TypeError
            If `model_class` is not a model, or `data` contains other objects.
        """
        from lancetable.pydantic_models import schema_of_model, snake_case
        from lancetable.tabular_input import table_of_rows

        schema = schema_of_model(model_class)
        for instance in data:
            if not isinstance(instance, model_class):
                raise TypeError(f"expected {model_class.__name__}, got {type(instance).__name__}")
        table = table_of_rows([instance.model_dump(mode="python") for instance in data], schema)
        return write_dataset(table, snake_case(model_class.__name__) if uri is None else uri, mode=mode, **kwargs)

    def insert(self, data: ReaderLike, *, mode: str = "append", **kwargs: Any) -> None:
        """Write rows and move this dataset to the new version; `kwargs` and errors are those of `write_dataset`.

        Examples
        --------
        >>> ds.insert([{"id": 9, "carrier": "DL", "dest": "JFK", "distance": 760}])
        >>> ds.version, ds.count_rows()
        (3, 9)
        """
        self._table = write_dataset(data, self, mode=mode, **kwargs)._table

    def delete(
        self,
        predicate: Filter,
        *,
        conflict_retries: int = 10,
        retry_timeout: timedelta = timedelta(seconds=30),
    ) -> DeleteResult:
        """Delete the rows that match a predicate, and move this dataset to the new version.

        Deleted rows are only recorded in deletion files. If a concurrent commit changes the same rows, the delete runs
        again on the newer version.

        Parameters
        ----------
        predicate
            The rows to delete, as SQL or as a pyarrow expression.
        conflict_retries, retry_timeout
            Maximum number and total duration of retries.

        Returns
        -------
        dict
            `{"num_deleted_rows": n}`.

        Raises
        ------
        InvalidSqlError, ColumnNotFoundError, TypeError
            If the predicate is invalid.
        InvalidOperationError
            If the dataset is a view created by `filter`.
        RetryableCommitConflictError
            If every attempt lost against a concurrent commit.
        CommitConflictError
            If a retry cannot succeed.
        CommitStateUnknownError
            If the outcome of the commit is unknown.

        Examples
        --------
        >>> ds.delete("dep_delay IS NULL")
        {'num_deleted_rows': 2}
        """
        check_filter("predicate", predicate, required=True)
        self._refuse_view("delete", "call it on the dataset, with the filter in the predicate")
        self._table, num_rows = ops.delete.delete(
            self._table,
            predicate,
            conflict_retries=check_count("conflict_retries", conflict_retries),
            retry_timeout_s=retry_timeout.total_seconds(),
        )
        return DeleteResult(num_deleted_rows=num_rows)

    def update(
        self,
        updates: dict[str, str],
        where: Filter | None = None,
        conflict_retries: int = 10,
        retry_timeout: timedelta = timedelta(seconds=30),
        data_storage_version: str | None = None,
        *,
        progress: ProgressLike = None,
    ) -> UpdateResult:
        """Set columns to the values of SQL expressions, and move this dataset to the new version.

        Updated rows are written to new fragments and marked as deleted in their old ones. With stable row ids they keep
        their ids.

        Parameters
        ----------
        updates
            SQL expression for each top-level column to set, over the old values of the same row. Values are cast to the
            column's type like `CAST`: an integer loses the fraction, a decimal is rounded, a timestamp is truncated to
            its unit, and a number too large for a narrower float becomes infinite. An integer or decimal out of range
            raises.
        where
            The rows to update; all by default.
        conflict_retries, retry_timeout
            Maximum number and total duration of retries. If a concurrent commit changes the same rows, the update runs
            again on the newer version.
        data_storage_version
            Format of the new data files; the format of the table by default.
        progress
            Progress callback, or True for a progress bar; see `lancetable.progress`. Not in pylance.

        Returns
        -------
        dict
            `{"num_rows_updated": n}`.

        Raises
        ------
        InvalidInputError
            If `updates` is empty.
        ColumnNotFoundError
            If a column does not exist.
        InvalidSqlError
            If an expression is invalid or a value does not fit the column.
        UnsupportedFeatureError
            If a column is inside a struct.
        SchemaMismatchError
            If a required column would become null.
        InvalidOperationError
            If the dataset is a view created by `filter`.
        TypeError
            If an argument has a wrong type.
        RetryableCommitConflictError
            If every attempt lost against a concurrent commit.
        CommitConflictError, CommitStateUnknownError
            If a retry cannot succeed, or the outcome of the commit is unknown.

        Examples
        --------
        >>> ds.update({"dep_delay": "0"}, where="dep_delay IS NULL")
        {'num_rows_updated': 2}
        """
        if not isinstance(updates, Mapping):
            raise TypeError(f"updates must be a dict, got {type(updates).__name__}")
        check_filter("where", where)
        self._refuse_view("update", "call it on the dataset, with the filter in `where`")
        with tracked(progress, "update") as tracker:
            self._table, num_rows = ops.update.update(
                self._table,
                updates,
                where,
                file_version=version_to_write(data_storage_version, None),
                conflict_retries=check_count("conflict_retries", conflict_retries),
                retry_timeout_s=retry_timeout.total_seconds(),
                tracker=tracker,
            )
        return UpdateResult(num_rows_updated=num_rows)

    def merge_insert(self, on: str | Iterable[str] | None = None) -> MergeInsertBuilder:
        """Return a builder that merges a source into this table by key, for upserts, insert-if-absent and the like.

        Select the actions with the `when_...` methods of the builder, then call its `execute`.

        Parameters
        ----------
        on
            The key columns; the unenforced primary key of the table by default.

        Raises
        ------
        InvalidInputError
            If there is neither `on` nor a primary key.
        ColumnNotFoundError
            If a key column does not exist.

        Examples
        --------
        >>> rows = pa.table({"id": [8, 9], "carrier": ["DL", "DL"]})
        >>> builder = ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        >>> builder.execute(rows)
        {'num_inserted_rows': 1, 'num_updated_rows': 1, 'num_deleted_rows': 0}
        """
        return lancetable.MergeInsertBuilder(self, on)

    def merge(
        self,
        data_obj: ReaderLike,
        left_on: str,
        right_on: str | None = None,
        schema: pa.Schema | None = None,
        *,
        progress: ProgressLike = None,
    ) -> None:
        """Add the columns of another table by key, and move this dataset to the new version.

        Each row gets the values of the row of `data_obj` with the same key, or nulls if there is none. If several rows
        of `data_obj` have the same key, the last one is used.

        Parameters
        ----------
        data_obj
            The other table, any tabular object. It is kept in memory.
        left_on
            Key column of this table; `_rowid` and `_rowaddr` are allowed.
        right_on
            Key column of `data_obj`; `left_on` by default.
        schema
            Schema of `data_obj`.
        progress
            Progress callback, or True for a progress bar; see `lancetable.progress`. Not in pylance.

        Raises
        ------
        ColumnNotFoundError
            If a key column does not exist.
        AlreadyExistsError
            If the table has one of the new columns.
        SchemaMismatchError
            If the keys have different types.
        CommitConflictError, CommitStateUnknownError
            If the commit failed or its outcome is unknown.

        Examples
        --------
        >>> airlines = lancetable.dataset("airlines.lance")
        >>> ds.merge(airlines, "carrier", "code")
        >>> ds.take([0], columns=["carrier", "airline"]).to_pylist()
        [{'carrier': 'UA', 'airline': 'United'}]
        """
        from lancetable.tabular_input import read_table

        right = read_table(data_obj, schema)
        right_on = left_on if right_on is None else right_on
        with tracked(progress, "merge") as tracker:
            self._table = ops.merge_columns.merge(self._table, right, left_on, right_on, tracker)

    def move_to(self, table: TableVersion) -> None:
        """Replace the version of this dataset with another version of the same table."""
        self._table = table

    def truncate_table(self) -> None:
        """Delete all rows and keep the schema. Raises the errors of `delete`."""
        self.delete("true")

    @property
    def optimize(self) -> DatasetOptimizer:
        """Compaction, migration and settings of automatic cleanup; see `DatasetOptimizer`."""
        return lancetable.optimize.DatasetOptimizer(self)

    def migrate_manifest_paths_v2(self) -> None:
        """Rename all manifests to the V2 naming scheme, which makes the newest version faster to find.

        No other process may write to the table during the call, and readers may fail to open it. After an interruption,
        call it again.

        Raises
        ------
        UnsupportedFeatureError
            If the table has an external manifest store.
        CorruptFileError
            If a version has two different manifests.
        """
        table = self._table
        ops.migrate.rename_manifests_at(table)
        location = table.handler.locate(table.store, table.base, table.version)
        self._table = latest(table) if location is None else open_location(table, location)

    def cleanup_old_versions(
        self,
        older_than: timedelta | None = None,
        retain_versions: int | None = None,
        *,
        delete_unverified: bool = False,
        error_if_tagged_old_versions: bool = True,
        delete_rate_limit: int | None = None,
        versions: list[int] | None = None,
        delete_concurrency: int | None = None,
        progress: ProgressLike = None,
    ) -> CleanupStats:
        """Remove old versions, and the files that no other version references.

        This dataset's version and newer ones, tagged versions, and versions that branches start from are always kept.
        The table has no record of its shallow clones, so tag the versions that they use. `explain_cleanup_old_versions`
        is a dry run.

        Parameters
        ----------
        older_than
            Remove versions older than this; 14 days if no other condition is given.
        retain_versions
            Keep this number of newest versions. If several conditions are given, all must hold.
        delete_unverified
            Also remove unreferenced files younger than seven days. They may belong to a commit in progress, so use this
            only while nothing writes to the table.
        error_if_tagged_old_versions
            Raise an error if a tagged version matches, instead of keeping it silently.
        delete_rate_limit
            Maximum number of files to delete per second.
        versions
            Remove only these versions.
        delete_concurrency
            Accepted for compatibility; deletions are sent to the store in groups.
        progress
            Progress callback, or True for a progress bar; see `lancetable.progress`. Not in pylance.

        Returns
        -------
        CleanupStats
            Counts of removed versions, files and bytes.

        Raises
        ------
        CleanupError
            If a version to remove is tagged, or the rate limit is less than 1.
        OutOfRangeError
            If `delete_concurrency` is less than 1.
        StoreError
            If none of the files could be removed.

        Examples
        --------
        >>> from datetime import timedelta
        >>> ds.cleanup_old_versions(older_than=timedelta(0)).old_versions
        1
        >>> [version["version"] for version in ds.versions()]
        [2]
        """
        policy = ops.cleanup.policy_of(
            older_than,
            retain_versions,
            versions,
            delete_unverified=delete_unverified,
            error_if_tagged=error_if_tagged_old_versions,
        )
        with tracked(progress, "cleanup") as tracker:
            return ops.cleanup.cleanup(
                self._table,
                policy,
                deletes_per_second=delete_rate_limit,
                concurrency=delete_concurrency,
                tracker=tracker,
            )

    def explain_cleanup_old_versions(
        self,
        older_than: timedelta | None = None,
        retain_versions: int | None = None,
        *,
        delete_unverified: bool = False,
        error_if_tagged_old_versions: bool = True,
        delete_rate_limit: int | None = None,
        versions: list[int] | None = None,
        include_files: bool = False,
        max_files: int = 1000,
    ) -> CleanupExplanation:
        """Return the versions and files that `cleanup_old_versions` would remove with these arguments.

        Nothing is changed. With `include_files`, at most `max_files` files are listed.

        Raises
        ------
        CleanupError
            If a version to remove is tagged.
        """
        from lancetable.cleanup import explanation_of
        from lancetable.commit.cleanup.cleanup_plan import plan_cleanup

        policy = ops.cleanup.policy_of(
            older_than,
            retain_versions,
            versions,
            delete_unverified=delete_unverified,
            error_if_tagged=error_if_tagged_old_versions,
        )
        plan = plan_cleanup(self._table, policy)
        return explanation_of(plan, include_files=include_files, max_files=check_count("max_files", max_files))

    def tracked_files(
        self, *, min_version: int | None = None, progress: Callable[[int, int | None], None] | None = None
    ) -> pa.RecordBatchReader:
        """Return every file that a version references, newest version first.

        The columns are `version`, `base_uri`, `path` and `type`. `min_version` excludes older versions; `progress(done,
        total)` counts versions. `all_files` lists the existing objects instead.
        """
        return ops.list_files.tracked_files(self._table, min_version=min_version, progress=progress)

    def delta(
        self,
        compared_against: int | None = None,
        *,
        begin_version: int | None = None,
        end_version: int | None = None,
    ) -> DatasetDelta:
        """Return the changes from `begin_version` (exclusive) to `end_version` (inclusive), by row lineage.

        `compared_against` replaces both: it is the first version, and the last version is that of this dataset.

        Raises
        ------
        InvalidInputError
            If the arguments are incomplete.

        Examples
        --------
        >>> ds.delta(compared_against=1).get_inserted_rows().read_all()["id"].to_pylist()
        [7, 8]
        """
        from lancetable.delta import delta_of

        return delta_of(self._table, compared_against, begin_version, end_version)

    def diff(self, older: Reference, newer: Reference | None = None, *, key: str | list[str] | None = None) -> Diff:
        """Compare two versions; return the inserted, updated (old and new values) and deleted rows as Arrow tables.

        Fragments that both versions share are not read. Not in pylance.

        Parameters
        ----------
        older
            A version number, tag or (branch, version).
        newer
            The other version; this one by default.
        key
            Columns that identify a row; stable row ids by default.

        Raises
        ------
        InvalidInputError
            If a key is needed or not unique.
        ColumnNotFoundError
            If a key column does not exist.
        VersionNotFoundError, RefNotFoundError
            If a version does not exist.

        Examples
        --------
        >>> ds.diff(1).inserted["id"].to_pylist()
        [7, 8]
        """
        keys = [key] if isinstance(key, str) else key
        return ops.diff.diff(self._at(older), self._table if newer is None else self._at(newer), keys)

    def sql(self, sql: str) -> SqlQueryBuilder:
        """Return a query over this dataset, run by DuckDB. The SQL refers to the dataset as `dataset`.

        Examples
        --------
        >>> query = ds.sql("SELECT carrier, count(*) AS n FROM dataset GROUP BY ALL ORDER BY ALL LIMIT 2").build()
        >>> pa.Table.from_batches(query.to_batch_records()).to_pydict()
        {'carrier': ['AA', 'B6'], 'n': [2, 2]}
        """
        from lancetable.sql import SqlQueryBuilder

        return SqlQueryBuilder(self, sql)

    # ---------------------------------------------------------------------------------------- branches and clones

    @property
    def branches(self) -> Branches:
        """The branches of this table; see `Branches`."""
        return Branches(self)

    def create_branch(
        self, branch: str, reference: Reference | None = None, storage_options: dict[str, str] | None = None
    ) -> LanceDataset:
        """Create a branch and return a dataset at its first version. No data is copied.

        Commits through the returned dataset belong to the branch, whose files are below `tree/<branch>/`; this table
        does not see them.

        Parameters
        ----------
        branch
            Name of the branch.
        reference
            Start of the branch: a version number, a tag or (branch, version); this dataset's version by default.
        storage_options
            Accepted for compatibility; the options of this dataset are used.

        Raises
        ------
        AlreadyExistsError
            If the name is in use.
        InvalidRefError
            If the name is invalid.
        RefNotFoundError, VersionNotFoundError
            If the reference does not exist.

        Examples
        --------
        >>> experiment = ds.create_branch("experiment")
        >>> experiment.delete("carrier = 'UA'")
        {'num_deleted_rows': 3}
        >>> experiment.count_rows(), ds.count_rows()
        (5, 8)
        """
        start: Reference | None = (None, None) if reference == "main" else reference
        start = None if start is None else parse_reference(start, branches=True)
        return LanceDataset.from_version(
            ops.branches.create_branch(self._table, branch, start), self._default_scan_options
        )

    def shallow_clone(
        self,
        target_path: Uri,
        reference: Reference,
        storage_options: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> LanceDataset:
        """Create a table at `target_path` that starts as `reference` of this one and references its files.

        The clone needs those files, so tag the version before cleaning up this table.

        Parameters
        ----------
        target_path
            Address of the clone, in the same store.
        reference
            A version number, tag or (branch, version).
        storage_options
            Options of the store; those of this dataset by default.
        **kwargs
            Arguments of `dataset`.

        Raises
        ------
        AlreadyExistsError
            If a table exists at the address.
        RefNotFoundError, VersionNotFoundError
            If the reference does not exist.
        UnsupportedFeatureError
            If the target is in another store.

        Examples
        --------
        >>> clone = ds.shallow_clone("clone.lance", 1)
        >>> clone.count_rows()
        6
        """
        return self._cloned(ops.clone.shallow_clone, target_path, reference, storage_options, kwargs)

    def deep_clone(
        self,
        target_path: Uri,
        reference: Reference,
        storage_options: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> LanceDataset:
        """Create a table at `target_path` with copies of all files of `reference`. The target may be in another store.

        Arguments are those of `shallow_clone`.

        Raises
        ------
        AlreadyExistsError
            If a table exists at the address.
        RefNotFoundError, VersionNotFoundError
            If the reference does not exist.
        StoreError
            If the storage failed.
        """
        return self._cloned(ops.clone.deep_clone, target_path, reference, storage_options, kwargs)

    def _cloned(
        self,
        copy: Callable[..., Any],
        target_path: Uri,
        reference: Reference,
        storage_options: dict[str, str] | None,
        kwargs: dict[str, Any],
    ) -> LanceDataset:
        options = self.initial_storage_options if storage_options is None else dict(storage_options)
        copy(self._at(reference), uri_string(target_path), storage_options=options)
        return dataset(target_path, storage_options=options, **kwargs)

    # ------------------------------------------------------------------------------------------ schema and settings

    def add_columns(
        self,
        transforms: dict[str, str] | BatchUDF | Callable[[pa.RecordBatch], Any] | ReaderLike | pa.Field | pa.Schema,
        read_columns: list[str] | None = None,
        reader_schema: pa.Schema | None = None,
        batch_size: int | None = None,
        *,
        progress: ProgressLike = None,
    ) -> None:
        """Add columns, and move this dataset to the new version. Existing columns are not rewritten.

        Parameters
        ----------
        transforms
            One of: SQL expressions by the names of the new columns; a function from a RecordBatch to a RecordBatch of
            new columns; rows of the new columns in scan order; or fields to add as null columns, which writes only the
            schema.
        read_columns
            Input columns of a function, including `_rowid` and `_rowaddr` if wanted; all columns by default.
        reader_schema
            The schema of `transforms` if it is an iterable of batches.
        batch_size
            Number of rows passed to a function at a time.
        progress
            Progress callback, or True for a progress bar; see `lancetable.progress`. Not in pylance.

        Raises
        ------
        AlreadyExistsError
            If a column exists.
        InvalidSqlError, ColumnNotFoundError
            If an expression is invalid.
        InvalidInputError
            If there are too few or too many rows.
        TypeError
            If `transforms` has another type, or is a plain function that fails on the first row.
        CommitConflictError
            If the table changed during the call; try again.

        Examples
        --------
        >>> ds.add_columns({"speed": "distance / air_time"})
        >>> ds.add_columns(pa.field("note", pa.string()))
        >>> ds.schema.names[-2:]
        ['speed', 'note']
        """
        new = lancetable.udf.new_columns(transforms, self, read_columns, reader_schema)
        with tracked(progress, "add_columns") as tracker:
            if isinstance(new, pa.Schema):
                self._table = ops.new_columns.add_nulls(self._table, new)
                return
            computed = lancetable.udf.computed_columns(new, self._table, read_columns, batch_size)
            self._table = ops.new_columns.add_columns(self._table, computed, tracker)
            if isinstance(new, lancetable.udf.BatchUDF) and new.cache is not None:
                new.cache.cleanup()

    def alter_columns(self, *alterations: AlterColumn) -> None:
        """Rename columns, make them nullable or required, or change their type, in one new version.

        Only a type change writes data, and only of that column. A type can change within its kind: integers, floats,
        times, strings, bytes, decimals, and lists of these. A timestamp that becomes a date loses its time of day, and
        a float that becomes a narrower one is rounded.

        Parameters
        ----------
        *alterations
            `path` (dotted for fields of structs) and any of `name`, `nullable` and `data_type`.

        Raises
        ------
        ColumnNotFoundError
            If a column does not exist.
        InvalidInputError
            If a dict has wrong keys.
        InvalidOperationError
            If the kind of a type would change, or the column has an index.
        SchemaMismatchError
            If a column to make required contains nulls, or values do not fit the new type.
        CommitConflictError
            If the table changed during the call.

        Examples
        --------
        >>> ds.alter_columns({"path": "dest", "name": "destination"}, {"path": "distance", "data_type": pa.int32()})
        >>> ds.schema.field("destination").type, ds.schema.field("distance").type
        (DataType(string), DataType(int32))
        """
        self._table = ops.alter_columns.alter(self._table, [parse_alteration(alteration) for alteration in alterations])

    def drop_columns(self, columns: Sequence[str]) -> None:
        """Remove columns, or fields of struct columns ("a.b"), from the schema.

        Their bytes are removed when fragments are compacted and old versions cleaned up.

        Raises
        ------
        ColumnNotFoundError
            If a column does not exist.
        InvalidInputError
            If no column would be left.
        TypeError
            If `columns` is a single string.
        CommitConflictError
            If the table changed during the call.

        Examples
        --------
        >>> ds.drop_columns(["dep_delay"])
        >>> "dep_delay" in ds.schema.names
        False
        """
        if isinstance(columns, str):
            raise TypeError("columns must be a list of names, not a string")
        self._table = ops.alter_columns.drop(self._table, list(columns))

    def update_config(self, values: dict[str, str | None], *, replace: bool = False) -> dict[str, str]:
        """Change the config of the table and return it. None deletes a key; `replace` clears the config first."""
        self._table = ops.settings.update_config(self._table, check_changes(values), replace=replace)
        return self.config()

    def delete_config_keys(self, keys: list[str]) -> None:
        """Delete keys of the config; missing keys are ignored."""
        self.update_config(dict.fromkeys(keys))

    def update_metadata(self, values: dict[str, str | None], *, replace: bool = False) -> dict[str, str]:
        """Change the metadata of the table and return it. None deletes a key; `replace` clears the metadata first."""
        self._table = ops.settings.update_table_metadata(self._table, check_changes(values), replace=replace)
        return self.metadata

    def update_schema_metadata(self, values: dict[str, str | None], *, replace: bool = False) -> dict[str, str]:
        """Change the metadata of the schema and return it. None deletes a key; `replace` clears the metadata first."""
        self._table = ops.settings.update_schema_metadata(self._table, check_changes(values), replace=replace)
        return self.schema_metadata

    def update_field_metadata(self, field_updates: dict[str, dict[str, str | None]], *, replace: bool = False) -> None:
        """Change the metadata of fields, given by path ("a.b"). Raises ColumnNotFoundError for an unknown path."""
        changes = {path: check_changes(values) for path, values in check_mapping(field_updates).items()}
        self._table = ops.settings.update_field_metadata(self._table, changes, replace=replace)

    def replace_schema_metadata(self, new_metadata: dict[str, str]) -> None:
        """Replace the metadata of the schema. Deprecated: use `update_schema_metadata(new_metadata, replace=True)`."""
        warnings.warn(
            "replace_schema_metadata is deprecated. Use update_schema_metadata(metadata, replace=True) instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        self.update_schema_metadata(dict(new_metadata), replace=True)

    def replace_field_metadata(self, field_name: str, new_metadata: dict[str, str]) -> None:
        """Replace the metadata of a field. Deprecated: use `update_field_metadata({name: metadata}, replace=True)`."""
        warnings.warn(
            "replace_field_metadata is deprecated. "
            "Use update_field_metadata with field paths and replace=True instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        self.update_field_metadata({field_name: dict(new_metadata)}, replace=True)

    # ----------------------------------------------------------------------------------- commits and transactions

    @staticmethod
    def commit(
        base_uri: Uri | LanceDataset,
        operation: LanceOperation.BaseOperation | Transaction,
        read_version: int | None = None,
        commit_lock: CommitLock | None = None,
        storage_options: dict[str, str] | None = None,
        enable_v2_manifest_paths: bool | None = None,
        detached: bool | None = False,
        max_retries: int = 20,
        *,
        commit_message: str | None = None,
        enable_stable_row_ids: bool | None = None,
        namespace_client: Any = None,
        table_id: list[str] | None = None,
        namespace_client_managed_versioning: bool = False,
        base_store_params: dict[str, dict[str, str]] | None = None,
        commit_timeout: timedelta | None = COMMIT_TIMEOUT,
    ) -> LanceDataset:
        """Commit a change whose files are already written, for example by other processes.

        Parameters
        ----------
        base_uri
            The table. An Overwrite creates it if it does not exist.
        operation
            The change. A Transaction provides its own read version, uuid and properties.
        read_version
            The version that the change is based on; required for all operations except Overwrite and Restore.
        commit_lock, storage_options
            As in `dataset`.
        enable_v2_manifest_paths
            As in `write_dataset`, for a table that an Overwrite creates.
        detached
            Create a version outside of the lineage, which can be opened only by its number.
        max_retries
            Maximum number of retries after concurrent commits.
        commit_message
            Stored with the transaction.
        enable_stable_row_ids
            For a table that an Overwrite creates; see `write_dataset`.
        commit_timeout
            Total duration of all attempts; None for no limit.
        namespace_client, table_id, base_store_params
            Not supported; raise UnsupportedFeatureError if given.
        namespace_client_managed_versioning
            Accepted for compatibility, without effect.

        Returns
        -------
        LanceDataset
            The table at the new version.

        Raises
        ------
        InvalidInputError
            If the read version is missing.
        TypeError
            If `operation` has another type.
        DatasetNotFoundError, VersionNotFoundError
            If the table or the read version does not exist.
        CommitConflictError, RetryableCommitConflictError
            If a concurrent commit conflicts.
        CommitStateUnknownError
            If the outcome of the commit is unknown.

        Examples
        --------
        >>> from lancetable import LanceDataset, LanceOperation
        >>> from lancetable.fragment import write_fragments
        >>> fragments = write_fragments(ds.to_table(limit=2), "flights.lance")
        >>> LanceDataset.commit("flights.lance", LanceOperation.Append(fragments), read_version=2).count_rows()
        10
        """
        from lancetable import writes
        from lancetable.ops import commit as commits

        scope.reject("catalog lookup", namespace_client=namespace_client, table_id=table_id)
        scope.reject("several stores for one table", base_store_params=base_store_params)
        if commit_lock is not None and not callable(commit_lock):
            raise TypeError(f"commit_lock must be a function, got {type(commit_lock).__name__}")
        if isinstance(operation, lancetable.Transaction):
            if commit_message is not None:
                raise InvalidInputError(
                    "commit_message is not supported when calling commit with a Transaction. Set the message on the"
                    f" transaction properties instead, under {LANCE_COMMIT_MESSAGE_KEY!r}"
                )
            transaction = operation
        elif isinstance(operation, lancetable.LanceOperation.BaseOperation):
            if read_version is None and not isinstance(
                operation, (lancetable.LanceOperation.Overwrite, lancetable.LanceOperation.Restore)
            ):
                raise InvalidInputError("read_version is required for all operations except Overwrite and Restore")
            transaction = lancetable.Transaction(read_version or 0, operation)
        else:
            raise TypeError(
                f"operation must be a LanceOperation.BaseOperation or Transaction, got {type(operation).__name__}"
            )
        properties = transaction_properties_of(transaction.transaction_properties, commit_message)
        committed = commits.commit(
            writes.open_target(base_uri, storage_options, commit_lock),
            transaction.to_format(properties),
            storage_options=storage_options,
            commit_lock=commit_lock,
            max_retries=check_count("max_retries", max_retries),
            timeout_s=check_timeout("commit_timeout", commit_timeout),
            detached=bool(detached),
            v2_manifest_paths=enable_v2_manifest_paths is not False,
            stable_row_ids=bool(enable_stable_row_ids),
        )
        return LanceDataset.from_version(committed)

    @staticmethod
    def commit_batch(
        dest: Uri | LanceDataset,
        transactions: Sequence[Transaction],
        commit_lock: CommitLock | None = None,
        storage_options: dict[str, str] | None = None,
        enable_v2_manifest_paths: bool | None = None,
        detached: bool | None = False,
        max_retries: int = 20,
        base_store_params: dict[str, dict[str, str]] | None = None,
        commit_timeout: timedelta | None = COMMIT_TIMEOUT,
    ) -> BulkCommitResult:
        """Commit several appends as one.

        The merged transaction has its own uuid, and none of the properties (including commit messages) of the others.

        Parameters
        ----------
        dest
            The table.
        transactions
            Transactions with an Append each.
        commit_lock, storage_options, enable_v2_manifest_paths, detached, max_retries, base_store_params, commit_timeout
            As in `commit`.

        Returns
        -------
        dict
            `{"dataset", "merged"}`: the table at the new version, and the merged transaction.

        Raises
        ------
        InvalidOperationError
            If `transactions` is empty.
        UnsupportedFeatureError
            If an operation is not an Append.
        CommitConflictError, CommitStateUnknownError
            As in `commit`.
        TypeError
            If an element is not a Transaction.
        """
        if not transactions:
            raise InvalidOperationError("No transactions to commit")
        fragments: list[FragmentMetadata] = []
        for transaction in transactions:
            if not isinstance(transaction, lancetable.Transaction):
                raise TypeError(f"transactions must be of type Transaction, got {type(transaction).__name__}")
            if not isinstance(transaction.operation, lancetable.LanceOperation.Append):
                scope.raise_unsupported(f"a batch with {type(transaction.operation).__name__}", name="commit_batch")
            fragments.extend(transaction.operation.fragments)
        merged = lancetable.Transaction(
            min(transaction.read_version for transaction in transactions), lancetable.LanceOperation.Append(fragments)
        )
        committed = LanceDataset.commit(
            dest,
            merged,
            None,
            commit_lock,
            storage_options,
            enable_v2_manifest_paths,
            detached,
            max_retries,
            base_store_params=base_store_params,
            commit_timeout=commit_timeout,
        )
        return BulkCommitResult(dataset=committed, merged=merged)

    def read_transaction(self, version: int) -> Transaction | None:
        """Return the transaction of a version, None if its writer stored none. Raises VersionNotFoundError."""
        from lancetable.delta import transaction_of

        transaction = transaction_of(self._table, version_number(version))
        return None if transaction is None else lancetable.Transaction.from_format(transaction)

    def get_transactions(self, recent_transactions: int = 10) -> list[Transaction | None]:
        """Return the transactions of the newest versions up to this one, newest first; None for a missing transaction.

        Returns at least one entry, as pylance does.

        Raises
        ------
        TypeError, OutOfRangeError
            If `recent_transactions` is not a count.
        """
        count = max(check_count("recent_transactions", recent_transactions), 1)
        collected: list[Transaction | None] = []
        with suppress(VersionNotFoundError):
            for number in range(self.version, max(0, self.version - count), -1):
                collected.append(self.read_transaction(number))  # noqa: PERF401  # an error ends the list
        return collected

    def add_bases(
        self, new_bases: Sequence[DatasetBasePath], transaction_properties: dict[str, str] | None = None
    ) -> LanceDataset:
        """Register base paths for files of this table, and move this dataset to the new version.

        A base without an id gets the next free one. Returns this dataset.

        Raises
        ------
        InvalidOperationError
            If a name, path or id is in use.
        CommitConflictError
            If a concurrent commit took it.
        """
        from lancetable.format import transaction as tx
        from lancetable.operation import to_bases
        from lancetable.ops import commit as commits

        operation = tx.UpdateBases(to_bases(new_bases))
        transaction = tx.Transaction.create(self.version, operation, properties=transaction_properties or {})
        self._table = commits.commit(self._table, transaction)
        return self

    @staticmethod
    def drop(
        base_uri: Uri, storage_options: dict[str, str] | None = None, ignore_not_found: bool | None = None
    ) -> None:
        """Delete a table with all its files.

        Raises
        ------
        DatasetNotFoundError
            If the path does not exist, unless `ignore_not_found` is set.
        InvalidInputError
            If the path contains files but no readable manifest. Nothing is deleted.
        """
        ops.drop.drop(uri_string(base_uri), storage_options, ignore_not_found=bool(ignore_not_found))

    # ------------------------------------------------------------------------------------------------- inspection

    @property
    def stats(self) -> LanceStats:
        """Sizes and counts of this version."""
        return LanceStats(self)

    def validate(self) -> None:
        """Check that every file of this version exists and matches the manifest.

        Raises
        ------
        CorruptFileError, NotFoundError, UnsupportedFeatureError
            For the first problem.
        """
        ops.validate.validate(self._table)

    def report(
        self,
        *,
        max_versions: int = 1000,
        max_files: int = 32,
        file: str | None = None,
        progress: ProgressLike = None,
    ) -> TableReport:
        """Return a report on this version and the history of the table, for notebooks, files and programs.

        Reads the manifests of the newest versions, and the footers and some rows of a sample of data files. A part that
        cannot be read becomes a problem of the report. Needs jinja2 (`lancetable[report]`) for HTML.

        Parameters
        ----------
        max_versions
            Number of newest versions in the history, at least 1.
        max_files
            Number of data files in the sample, at least 1.
        file
            Path of a data file whose pages are shown first, relative to the data directory.
        progress
            Progress callback, or True for a progress bar; see `lancetable.progress`.

        Returns
        -------
        TableReport
            The report, with `to_html`, `to_json` and `save`. A notebook displays it.

        Raises
        ------
        InvalidInputError
            If the version has no data file `file`, or a number is less than 1.
        StoreError
            If the versions cannot be listed.

        Examples
        --------
        >>> ds.report().save("report.html")
        """
        from lancetable.report.collect import collect
        from lancetable.report.model import Limits

        limits = Limits(
            versions=check_positive("max_versions", max_versions), data_files=check_positive("max_files", max_files)
        )
        check_string("file", file, optional=True)
        with tracked(progress, "report") as tracker:
            return collect(self._table, limits=limits, file=file, tracker=tracker)

    def all_files(self) -> pa.RecordBatchReader:
        """Return a reader over every object below the table's root, whether or not a version references it.

        The columns are base_uri (dictionary of string), path (string, relative to base_uri), size_bytes (int64) and
        last_modified (timestamp[us, UTC]).
        """
        return ops.list_files.all_files(self._table)

    def new_file_session(self) -> LanceFileSession:
        """Return a `LanceFileSession` on the root of this table, with its storage options."""
        return lancetable.file.LanceFileSession(self.uri, self.initial_storage_options)

    def io_stats_snapshot(self) -> io_stats.IOStats:
        """Return the requests and bytes since this dataset was opened or `io_stats_incremental` was called.

        Datasets created from this one by `checkout_version` share the counts. Opening is not counted.
        """
        return replace(io_stats.stats_of(self._table.store))

    def io_stats_incremental(self) -> io_stats.IOStats:
        """Return the counts like `io_stats_snapshot`, and reset them to 0."""
        snapshot = self.io_stats_snapshot()
        io_stats.stats_of(self._table.store).clear()
        return snapshot


class LanceStats:
    """Sizes and counts of one version."""

    def __init__(self, dataset: LanceDataset) -> None:
        self._dataset = dataset

    def dataset_stats(self, max_rows_per_group: int = 1024) -> DatasetStats:
        """Return the number of deleted rows, fragments, and fragments with fewer rows than `max_rows_per_group`."""
        counts = ops.stats.dataset_stats(self._dataset.table_version, max_rows_per_group)
        return cast("DatasetStats", asdict(counts))

    def data_stats(self) -> ops.stats.DataStatistics:
        """Return the bytes on disk of each field; reads the footer of every data file."""
        return ops.stats.data_stats(self._dataset.table_version)

    def index_stats(self, index_name: str) -> dict[str, Any]:
        """Return statistics of an index.

        The entries of `segments` depend on the kind of the index. Indexed rows are the live rows of the fragments that
        the segments cover.

        Raises
        ------
        IndexNotFoundError
            If the index does not exist.
        UnsupportedFeatureError
            If this library does not know the kind of the index.
        CorruptFileError
            If a file of the index is damaged.
        TypeError
            If `index_name` is not a string.
        """
        from lancetable.ops.index.statistics import index_statistics

        check_string("index_name", index_name)
        return index_statistics(self._dataset.table_version, index_name)


def write_dataset(
    data_obj: ReaderLike,
    uri: Uri | LanceDataset | None = None,
    schema: pa.Schema | None = None,
    mode: str = "create",
    *,
    max_rows_per_file: int = 1024 * 1024,
    max_rows_per_group: int = 1024,
    max_bytes_per_file: int = DEFAULT_MAX_BYTES_PER_FILE,
    data_cache_bytes: int | None = None,
    max_page_bytes: int | None = None,
    commit_lock: CommitLock | None = None,
    progress: FragmentWriteProgress | ProgressLike = None,
    storage_options: dict[str, str] | None = None,
    data_storage_version: str | None = None,
    use_legacy_format: bool | None = None,
    enable_v2_manifest_paths: bool = True,
    enable_stable_row_ids: bool = False,
    auto_cleanup_options: AutoCleanupConfig | None = None,
    commit_message: str | None = None,
    transaction_properties: dict[str, str] | None = None,
    initial_bases: list[DatasetBasePath] | None = None,
    target_bases: list[str] | None = None,
    target_all_bases: bool | None = None,
    base_store_params: dict[str, dict[str, str]] | None = None,
    external_blob_mode: str = "reference",
    allow_external_blob_outside_bases: bool = False,
    blob_pack_file_size_threshold: int | None = None,
    namespace_client: Any = None,
    table_id: list[str] | None = None,
    session: Session | None = None,
    schema_mode: Literal["merge"] | None = None,
) -> LanceDataset:
    """Write rows to a table and return it at the new version.

    Parameters
    ----------
    data_obj
        Any tabular object: pandas and polars frames, Arrow tables, batches, readers, datasets, scanners, a dict of
        columns, a list of dicts, an iterable of record batches (with `schema`), an object with an Arrow C stream.
        Streams are read once, batch by batch.
    uri
        The table. For a dataset, the change is based on its version; `storage_options` and `commit_lock` override those
        of the dataset.
    schema
        Schema to cast the data to.
    mode
        "create" raises AlreadyExistsError if the table exists, except in `memory://`, where it replaces the table.
        "append" adds rows; columns may be in any order, and nullable columns may be missing. If the table does not
        exist, it is created with a warning. "overwrite" creates a version with only these rows and this schema; older
        versions stay readable.
    max_rows_per_file, max_bytes_per_file
        Size limits of a data file.
    max_rows_per_group
        Rows of a batch in 0.1 files; no effect in other formats.
    data_cache_bytes
        Bytes to buffer per column before a page is written; default 8 MiB.
    max_page_bytes
        Larger pages are split; default 32 MiB.
    commit_lock, storage_options
        As in `dataset`.
    use_legacy_format
        Deprecated; use `data_storage_version`.
    progress
        Object that is notified of each data file; or (not in pylance) a progress callback, or True for a progress bar:
        see `lancetable.progress`.
    data_storage_version
        Format of the new files: "0.1", "2.0", "2.1", "2.2", "legacy" (0.1) or "stable" (2.2). By default, append and
        overwrite keep that of the table, and a new table uses "stable".
    enable_v2_manifest_paths
        Name the manifests of a new table so that the newest one is listed first.
    commit_message, transaction_properties
        Stored with the transaction.
    session
        Share the cache of other datasets.
    schema_mode
        With mode "append": extend the schema of the table to fit the data. Columns that the table lacks are added, with
        nulls in existing rows; integers, floats, decimals and strings get the wider of two types. The schema changes in
        separate commits before the rows are appended. Not in pylance.
    enable_stable_row_ids
        Give every row of a new table an id that it keeps when it is rewritten, and record the versions in which it was
        created and last updated. An existing table without stable row ids cannot get them: this has no effect, and a
        warning is logged.
    auto_cleanup_options
        For a new table; see `DatasetOptimizer.enable_auto_cleanup`. No effect on an existing table: a warning is logged
        if its settings differ.
    initial_bases
        Base paths in the same store where files of a new table may be stored; see `LanceDataset.add_bases`.
    target_bases
        Names or paths of registered bases, or the address of the table, that receive new data files in turn; the table
        alone by default.
    target_all_bases
        Distribute new data files over the table and all of its bases.
    base_store_params, namespace_client, table_id
        Not supported; raise UnsupportedFeatureError if given.
    blob_pack_file_size_threshold
        Maximum size of a file with several blobs, unless their field sets it; 1 GiB by default. See `blob_field`.
    external_blob_mode, allow_external_blob_outside_bases
        Options of external blobs, which are rejected with UnsupportedFeatureError.

    Returns
    -------
    LanceDataset
        The table at the new version.

    Raises
    ------
    AlreadyExistsError
        With mode "create", if the table exists.
    SchemaMismatchError
        If the data does not fit the schema: another column or type, a missing required column, or nulls in one.
    InvalidSchemaError, UnsupportedFeatureError
        If a name, type or format is not supported.
    InvalidInputError
        If an argument is invalid.
    TypeError
        If an argument has a wrong type or the data is not tabular. Exceptions of the caller's own iterator are not
        wrapped.
    CommitConflictError, CommitStateUnknownError, StoreError
        If the commit failed or its outcome is unknown.

    Examples
    --------
    >>> ds = lancetable.write_dataset(pa.table({"id": [1, 2]}), "new.lance")
    >>> lancetable.write_dataset([{"id": 3}], ds, mode="append").count_rows()
    3
    >>> lancetable.write_dataset({"name": ["a"]}, "new.lance", mode="overwrite").version
    3
    """
    from lancetable import writes
    from lancetable.tabular_input import read_input

    if uri is None:
        raise InvalidInputError("missing argument: uri")
    mode = check_mode(mode)
    if schema_mode not in (None, "merge") or (schema_mode is not None and mode != "append"):
        raise InvalidInputError('schema_mode can only be "merge", with mode "append"')
    options = replace(
        writes.write_options(locals(), keep_arrays=isinstance(data_obj, pa.Table)),
        properties=transaction_properties_of(transaction_properties, commit_message),
        v2_manifest_paths=enable_v2_manifest_paths,
        stable_row_ids=enable_stable_row_ids,
    )
    config = None if auto_cleanup_options is None else lancetable.optimize.config_of(auto_cleanup_options)
    source = read_input(data_obj, schema)
    creation: dict[str, Any] = {
        "storage_options": storage_options,
        "commit_lock": commit_lock,
        "cache": None if session is None else session.cache,
    }
    with writes.tracked_write(options, progress, source) as options:
        if mode != "create":
            target = writes.open_target(uri, **creation)
        elif isinstance(uri, LanceDataset):
            target = uri.uri
            creation["storage_options"] = storage_options or uri.initial_storage_options
        else:
            target = uri_string(uri)
            creation["replace_existing"] = True
        table = writes.write_table(target, source, options, mode, schema_mode, config, **creation)
    return LanceDataset.from_version(table)


def parse_row_selection(ids: Any, addresses: Any, indices: Any) -> tuple[ops.blobs.Selector, Any]:
    """Return the given selection of rows.

    Raises
    ------
    InvalidInputError
        If there is not exactly one.
    """
    selections: list[tuple[ops.blobs.Selector, Any]] = [("ids", ids), ("addresses", addresses), ("indices", indices)]
    given = [(selector, rows) for selector, rows in selections if rows is not None]
    if len(given) != 1:
        raise InvalidInputError("Exactly one of ids, indices, or addresses must be specified")
    return given[0]


def public_version(summary: manifest_files.VersionSummary) -> Version:
    """Return a version in the form of `LanceDataset.versions`."""
    values = asdict(summary)
    return Version(
        version=summary.version,
        timestamp=summary.timestamp.astimezone().replace(tzinfo=None),
        metadata={name: str(values[name]) for name in sorted(values) if name.startswith("total_")},
    )
