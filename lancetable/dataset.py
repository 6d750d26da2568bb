"""`LanceDataset`: a table at one version, and `dataset()` and `write_dataset()` that open and write one.

A dataset holds one `TableVersion` value and replaces it after a commit of its own; nothing else here has state. All
work is in `lancetable.ops`.
"""

from __future__ import annotations

import html
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from lancetable import scope, udf
from lancetable.arguments import (
    COMMIT_MESSAGE_KEY,
    DEFAULT_MAX_BYTES_PER_FILE,
    check_count,
    check_mode,
    check_timeout,
    checked_changes,
    checked_mapping,
    parse_alteration,
    parse_asof,
    parse_reference,
    transaction_properties_of,
    uri_text,
    version_number,
    version_to_write,
)
from lancetable.blob import DEFAULT_BLOB_BUFFER_SIZE, BlobFile, checked_buffer_size
from lancetable.cleanup import CleanupExplanation, CleanupStats, explanation_of, stats_of
from lancetable.delta import DatasetDelta, delta_of
from lancetable.errors import (
    DatasetNotFoundError,
    InvalidInputError,
    InvalidOperationError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lancetable.file import LanceFileSession
from lancetable.format import transaction as tx
from lancetable.fragment import LanceFragment, check_external_blobs, table_of, write_fragments, write_options
from lancetable.fragment_metadata import DataFile, FragmentMetadata
from lancetable.index_metadata import Index, IndexFile
from lancetable.inputs import cast_batches, read_input, table_of_rows
from lancetable.merge_insert import MergeInsertBuilder
from lancetable.models import schema_of_model, snake_case
from lancetable.operation import LanceOperation, Transaction, to_bases
from lancetable.ops import blobs as blob_ops
from lancetable.ops import (
    branches,
    cleanup,
    clone,
    counted,
    delete,
    diff,
    drop,
    evolution,
    files,
    joined_columns,
    refs,
    sample,
    scan,
    schema_merge,
    settings,
    stats,
    take,
    update,
    validate,
    write,
)
from lancetable.ops import commit as commits
from lancetable.ops.diff import Diff
from lancetable.ops.migrate import rename_manifests_at
from lancetable.optimize import DatasetOptimizer, config_of
from lancetable.progress import of_files, tracked
from lancetable.refs import Branches, Tags
from lancetable.scanner import SETTERS, ColumnOrdering, LanceScanner, ScannerBuilder
from lancetable.schema import LanceSchema, as_text
from lancetable.session import Session
from lancetable.sql import SqlQueryBuilder
from lancetable.table import manifests, transactions
from lancetable.table.cache import TableCache
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
from lancetable.udf import BatchUDF

if TYPE_CHECKING:
    import pandas as pd

    from lancetable.inputs import Input
    from lancetable.progress import FragmentWriteProgress, ProgressLike

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
    "Version",
    "VersionRef",
    "dataset",
    "write_dataset",
    "write_fragments",
]

LANCE_COMMIT_MESSAGE_KEY = COMMIT_MESSAGE_KEY
COMMIT_TIMEOUT = timedelta(seconds=1800)
# Arguments of `pyarrow.dataset.Dataset.count_rows` that change how it counts, not what.
PYARROW_COUNT_OPTIONS = frozenset(
    (
        "batch_size", "batch_readahead", "fragment_readahead", "fragment_scan_options", "use_threads", "cache_metadata",
        "memory_pool",
    )
)  # fmt: skip

logger = logging.getLogger(__name__)


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
) -> LanceDataset:
    """Open a table: its newest version, one version or tag, or what was newest at some time.

    Parameters
    ----------
    uri : str or Path
        A local path, or a URI such as `s3://bucket/table`.
    version : int or str, optional
        A version number or the name of a tag.
    asof : datetime or str, optional
        Open the newest version committed at or before this time; without a zone it is local time. `version` wins.
    commit_lock : callable, optional
        Used around the manifest write of commits, on stores that cannot create an object exclusively.
    storage_options : dict, optional
        Settings of the store: credentials, endpoint and the like.
    default_scan_options : dict, optional
        Arguments of `scanner` that apply whenever the call does not give them.
    metadata_cache_size_bytes : int, optional
        Upper bound of the cache of parsed metadata; without it, 256 MiB.
    session : Session, optional
        Share the cache of other datasets.
    block_size, index_cache_size, index_cache_size_bytes, read_params
        Accepted for compatibility, without effect.
    namespace_client, table_id, base_store_params
        Not supported: UnsupportedFeatureError when given.

    Raises
    ------
    DatasetNotFoundError, VersionNotFoundError, RefNotFoundError
        All are ValueError and FileNotFoundError.
    CorruptFileError, UnsupportedFeatureError, StoreError
        The manifest cannot be read, needs a newer reader, or the storage failed.

    Examples
    --------
    >>> import lancetable as lance
    >>> lance.dataset("flights.lance", version=3).count_rows()  # doctest: +SKIP
    336776
    """
    scope.reject("catalog lookup", planned=False, namespace_client=namespace_client, table_id=table_id)
    if uri is None:
        raise InvalidInputError("no table: give the argument uri")
    moment = None if asof is None or version is not None else parse_asof(asof)
    return LanceDataset(
        uri,
        version,
        block_size,
        index_cache_size,
        commit_lock=commit_lock,
        storage_options=storage_options,
        default_scan_options=default_scan_options,
        metadata_cache_size_bytes=metadata_cache_size_bytes,
        index_cache_size_bytes=index_cache_size_bytes,
        read_params=read_params,
        session=session,
        base_store_params=base_store_params,
        asof=moment,
    )


@scope.fill_gaps(scope.DATASET)
class LanceDataset(pads.Dataset):  # type: ignore[misc]  # pyarrow comes without types
    """A table at one version.

    Get one from `dataset()` or `write_dataset()`. It is a `pyarrow.dataset.Dataset`, so DuckDB, polars and others scan
    it with projection and filter pushed down, and it offers the Arrow C stream.

    A dataset stays at its version whatever others commit; `checkout_latest` moves it. Its own changes (`insert`,
    `delete`, `restore`) move it to the version they made. It pickles with its manifest, so that a worker process sees
    the same version without reading it again.
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
    ) -> None:
        scope.reject("catalog lookup", planned=False, namespace_client=namespace_client, table_id=table_id)
        scope.reject("several stores for one table", planned=False, base_store_params=base_store_params)
        scope.reject("manifests handed over as bytes", planned=False, serialized_manifest=serialized_manifest)
        if session is not None:
            cache = session.cache
        elif metadata_cache_size_bytes is not None:
            cache = TableCache(check_count("metadata_cache_size_bytes", metadata_cache_size_bytes))
        else:
            cache = None
        opened = open_version(
            uri_text(uri),
            None if version is None else parse_reference(version),
            asof=asof,
            storage_options=storage_options,
            commit_lock=commit_lock,
            cache=cache,
        )
        self._table = counted.counted(opened)
        self._default_scan_options = dict(default_scan_options or {})
        self._view_filter: pc.Expression | None = None

    @classmethod
    def from_version(
        cls,
        table: TableVersion,
        default_scan_options: dict[str, Any] | None = None,
        view_filter: pc.Expression | None = None,
    ) -> LanceDataset:
        """A dataset around a table version that is open already; see `filter` for `view_filter`."""
        made = cls.__new__(cls)
        made._table = counted.counted(table)
        made._default_scan_options = dict(default_scan_options or {})
        made._view_filter = view_filter
        return made

    # ------------------------------------------------------------------------------------------- Python's protocols

    def __copy__(self) -> LanceDataset:
        return LanceDataset.from_version(self._table, self._default_scan_options, self._view_filter)

    def __reduce__(self) -> tuple[Any, ...]:
        return LanceDataset.from_version, (self._table, self._default_scan_options, self._view_filter)

    def __len__(self) -> int:
        return self.count_rows()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        manifest = self._table.manifest
        rows = manifest.fragments.num_rows()
        told = "unknown" if rows is None else f"{rows:,}"
        head = f"LanceDataset({self.uri!r}, version={self.version}, rows={told}, fragments={len(manifest.fragments)})"
        return "\n".join([head, *(f"  {field.name}: {field.type}" for field in manifest.schema.to_arrow())])

    def _repr_html_(self) -> str:
        manifest = self._table.manifest
        rows = manifest.fragments.num_rows()
        facts = [
            ("uri", self.uri),
            ("version", f"{self.version}, {manifest.timestamp:%Y-%m-%d %H:%M:%S} UTC"),
            ("rows", "unknown" if rows is None else f"{rows:,}"),
            ("fragments", f"{len(manifest.fragments):,}"),
            ("data format", self.data_storage_version),
        ]
        fields = [(field.name, f"{field.type}{'' if field.nullable else ' not null'}") for field in self.schema]
        return f"<div><b>LanceDataset</b>{html_table(facts)}{html_table(fields)}</div>"

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """All rows as an Arrow C stream, for any library that reads those."""
        return self.scanner().to_reader().__arrow_c_stream__(requested_schema)

    # ------------------------------------------------------------------------------------------- state and versions

    @property
    def table_version(self) -> TableVersion:
        """The immutable value behind this dataset, which `lancetable.ops` works on."""
        return self._table

    @property
    def default_scan_options(self) -> dict[str, Any]:
        """Arguments of `scanner` that apply when the call does not give them."""
        return self._default_scan_options

    @property
    def view_filter(self) -> pc.Expression | None:
        """What `filter` restricts this view to, None for a whole version."""
        return self._view_filter

    @property
    def uri(self) -> str:
        """Where the table is, as it was given."""
        return self._table.uri

    @property
    def version(self) -> int:
        """Number of the version this dataset is at."""
        return self._table.version

    @property
    def latest_version(self) -> int:
        """Number of the newest version in storage; looks there each time."""
        return latest(self._table).version

    @property
    def schema(self) -> pa.Schema:
        """Schema of what a scan without arguments yields."""
        if self._default_scan_options:
            return self.scanner().projected_schema
        return self._table.schema.to_arrow()

    @property
    def lance_schema(self) -> LanceSchema:
        """Schema with the field ids of the format."""
        return LanceSchema(self._table.schema)

    @property
    def max_field_id(self) -> int:
        """Highest field id in the schema or any data file; -1 without any."""
        return self._table.manifest.max_field_id

    @property
    def data_storage_version(self) -> str:
        """Format version of new data files, such as "2.1"."""
        return self._table.manifest.file_version.number

    @property
    def has_stable_row_ids(self) -> bool:
        """Whether rows keep their `_rowid` when they are rewritten."""
        return self._table.manifest.has_stable_row_ids

    @property
    def has_index(self) -> bool:
        """Whether the table has a secondary index, made by another library."""
        return stats.has_user_index(self._table)

    @property
    def schema_metadata(self) -> dict[str, str]:
        """Key/values of the schema."""
        return as_text(self._table.manifest.schema_metadata)

    @property
    def metadata(self) -> dict[str, str]:
        """Key/values of the table."""
        return dict(self._table.manifest.table_metadata)

    def config(self) -> dict[str, str]:
        """Settings kept with the table."""
        return dict(self._table.manifest.config)

    def base_paths(self) -> dict[int, DatasetBasePath]:
        """Other places in which files of this table may lie, by id."""
        return {
            base_id: DatasetBasePath(base.path, base.name, base.is_dataset_root, base_id)
            for base_id, base in self._table.manifest.base_paths.items()
        }

    @property
    def initial_storage_options(self) -> dict[str, str] | None:
        """The storage options as given."""
        options = self._table.storage_options
        return None if options is None else dict(options)

    def latest_storage_options(self) -> dict[str, str] | None:
        """The storage options in use; the same as the initial ones."""
        return self.initial_storage_options

    def session(self) -> Session:
        """The session whose cache this dataset uses."""
        return Session.of(self._table.cache)

    def versions(self) -> list[Version]:
        """All versions that are still there, oldest first.

        Each is `{"version", "timestamp", "metadata"}`: the timestamp naive and in local time, the metadata counts of
        rows, files and bytes as decimal text. Reads every manifest once; `version_refs` is cheaper.
        """
        return [public_version(summary) for summary in manifests.history(self._table)]

    def version_refs(self) -> list[VersionRef]:
        """The numbers of all versions, oldest first, from one listing."""
        locations = self._table.handler.history(self._table.store, self._table.base)
        return [VersionRef(version=location.version) for location in locations]

    def get_version(self) -> Version:
        """The entry of `versions` for the version this dataset is at; no I/O."""
        return public_version(manifests.summarize(self._table.manifest))

    def checkout_version(self, version: Reference) -> LanceDataset:
        """A dataset at another version of this table; caches are shared and this dataset stays where it is.

        `version` is a number, the name of a tag, or `(branch, number)` where None stands for main and for the newest.
        Raises VersionNotFoundError, RefNotFoundError, InvalidInputError.
        """
        return LanceDataset.from_version(
            checkout(self._table, parse_reference(version, branches=True)),
            self._default_scan_options,
            self._view_filter,
        )

    def checkout_latest(self) -> None:
        """Move this dataset to the newest version of its branch."""
        self._table = latest(self._table)

    def restore(self) -> None:
        """Commit the version this dataset is at as the newest one.

        Raises CommitConflictError if another commit does not allow it.
        """
        self._table = refs.restore(self._table)

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
        nearest: Any = None,
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
        """Describe a scan; nothing is read before one of the scanner's methods is called.

        Parameters
        ----------
        columns : list of str or dict, optional
            Names, dotted for nested fields, or `{output name: SQL expression}`. `_rowid`, `_rowaddr`, `_rowoffset`,
            `_row_created_at_version` and `_row_last_updated_at_version` may be among them. None: all columns.
        filter : str or pyarrow.compute.Expression, optional
            Which rows, as a SQL condition or an expression. Its errors come when the scan is planned.
        limit, offset : int, optional
            Rows to yield and to skip, after filter and order.
        batch_size : int, optional
            Rows per batch, at most. With a filter, batches of wide rows end at about 4 MiB; see `strict_batch_size`.
        batch_size_bytes : int, optional
            Bytes per batch, about.
        fragments : iterable of LanceFragment, optional
            Scan only these.
        with_row_id, with_row_address : bool, optional
            Add `_rowid` or `_rowaddr`, both uint64.
        use_stats : bool, optional
            False: do not skip rows by the statistics in data files. The result is the same.
        io_buffer_size : int, optional
            Bytes to read ahead, at most.
        late_materialization : bool or list of str, optional
            Read columns that the filter does not need only for matching rows: all, none, or those named. Decided by
            width when not given.
        blob_handling : str, optional
            "blobs_descriptions" (default), "all_descriptions" or "all_binary".
        include_deleted_rows : bool, optional
            Also yield deleted rows, with null `_rowid`; needs `with_row_id`.
        scan_stats_callback : callable, optional
            Called with a `ScanStatistics` at the end of the scan.
        strict_batch_size : bool, optional
            All batches but the last have exactly `batch_size` rows.
        order_by : list of str or ColumnOrdering, optional
            Sort keys, the first one most significant.
        batch_readahead, fragment_readahead, scan_in_order
            How much to work ahead, and whether rows must come in table order.
        progress : callable or True, optional
            Told how far each reading of the scanner is, or shown as a bar: see `lancetable.progress`. pylance has no
            such argument.
        nearest, full_text_query, index_segments, fast_search, row_addr_allowlist, row_addr_blocklist
            Search by index, which is outside of lancetable: UnsupportedFeatureError when given.
        prefilter, use_scalar_index, disable_scoring_autoprojection
            Accepted for compatibility, without effect.

        Raises
        ------
        InvalidInputError, OutOfRangeError, TypeError
            For numbers below zero or beyond 2^63 and for wrong types. Everything about names, SQL and types of columns
            is raised by the reading methods of the scanner.
        """
        scope.reject("vector search", planned=False, nearest=nearest)
        scope.reject("full text search", planned=False, full_text_query=full_text_query)
        builder = ScannerBuilder(self)
        builder.row_addr_prefilter(row_addr_allowlist, row_addr_blocklist)
        given = {
            "columns": columns,
            "filter": filter,
            "limit": limit,
            "offset": offset,
            "batch_size": batch_size,
            "batch_size_bytes": batch_size_bytes,
            "batch_readahead": batch_readahead,
            "fragment_readahead": fragment_readahead,
            "scan_in_order": scan_in_order,
            "fragments": fragments,
            "index_segments": index_segments,
            "with_row_id": with_row_id,
            "with_row_address": with_row_address,
            "use_stats": use_stats,
            "fast_search": fast_search,
            "io_buffer_size": io_buffer_size,
            "late_materialization": late_materialization,
            "blob_handling": blob_handling,
            "include_deleted_rows": include_deleted_rows,
            "scan_stats_callback": scan_stats_callback,
            "strict_batch_size": strict_batch_size,
            "order_by": order_by,
            "progress": progress,
        }
        for name, value in given.items():
            if value is not None:
                getattr(builder, SETTERS[name])(value)
        return builder.to_scanner()

    def to_table(
        self,
        columns: Columns | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int | None = None,
        nearest: Any = None,
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
        """Read rows into an Arrow table; the arguments are those of `scanner`.

        Raises InvalidSqlError, ColumnNotFoundError, InvalidInputError for the call; CorruptFileError, NotFoundError,
        StoreError for files that cannot be read.

        Examples
        --------
        >>> ds.to_table(columns={"km": "distance * 1.609"}, filter="carrier = 'UA'", limit=5)  # doctest: +SKIP
        """
        return self.scanner(
            columns,
            filter,
            limit,
            offset,
            nearest,
            batch_size,
            batch_size_bytes,
            batch_readahead,
            fragment_readahead,
            scan_in_order,
            full_text_query=full_text_query,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
            use_stats=use_stats,
            fast_search=fast_search,
            io_buffer_size=io_buffer_size,
            late_materialization=late_materialization,
            blob_handling=blob_handling,
            include_deleted_rows=include_deleted_rows,
            order_by=order_by,
            progress=progress,
        ).to_table()

    def to_batches(
        self,
        columns: Columns | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int | None = None,
        nearest: Any = None,
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
        """Stream rows in record batches with bounded memory; the arguments, `kwargs` too, are those of `scanner`."""
        return self.scanner(
            columns,
            filter,
            limit,
            offset,
            nearest,
            batch_size,
            batch_size_bytes,
            batch_readahead,
            fragment_readahead,
            scan_in_order,
            full_text_query=full_text_query,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
            use_stats=use_stats,
            io_buffer_size=io_buffer_size,
            late_materialization=late_materialization,
            blob_handling=blob_handling,
            strict_batch_size=strict_batch_size,
            order_by=order_by,
            **kwargs,
        ).to_batches()

    def to_pandas(
        self,
        columns: Columns | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int | None = None,
        nearest: Any = None,
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
        """Read rows into a pandas frame.

        The arguments are those of `scanner`; `blob_mode` says how blob columns come (see `LanceScanner.to_pandas`) and
        `kwargs` go to `pyarrow.Table.to_pandas`.
        """
        return self.scanner(
            columns,
            filter,
            limit,
            offset,
            nearest,
            batch_size,
            None,
            batch_readahead,
            fragment_readahead,
            scan_in_order,
            full_text_query=full_text_query,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
            use_stats=use_stats,
            fast_search=fast_search,
            io_buffer_size=io_buffer_size,
            late_materialization=late_materialization,
            include_deleted_rows=include_deleted_rows,
            order_by=order_by,
            progress=progress,
        ).to_pandas(blob_mode=blob_mode, **kwargs)

    def count_rows(self, filter: Filter | None = None, **kwargs: Any) -> int:
        """Number of rows, deleted ones left out; with `filter`, of those that match.

        Without a filter the manifest usually answers alone. `kwargs` are arguments of `scanner`, such as `fragments`;
        those of `pyarrow.dataset.Dataset.count_rows` have no effect. Raises InvalidSqlError, ColumnNotFoundError;
        TypeError for a filter that is neither text nor expression, and for an unknown argument.
        """
        if filter is not None and not isinstance(filter, (str, pc.Expression)):
            raise TypeError(f"filter must be SQL text or a pyarrow expression, got {type(filter).__name__}")
        scanned = {name: value for name, value in kwargs.items() if name not in PYARROW_COUNT_OPTIONS}
        if scanned:
            return self.scanner(**{"columns": [], "filter": filter, "with_row_id": True, **scanned}).count_rows()
        options = self._default_scan_options
        if self._view_filter is not None or "filter" in options or "include_deleted_rows" in options:
            return self.scanner(columns=[], filter=filter, with_row_id=True).count_rows()
        return scan.count_rows(self._table, filter)

    def head(self, num_rows: int, **kwargs: Any) -> pa.Table:
        """The first rows of a scan; `kwargs` are arguments of `scanner`."""
        kwargs["limit"] = num_rows
        return self.scanner(**kwargs).to_table()

    def slice(self, start: int, end: int, columns: Columns | None = None) -> pa.Table:
        """Rows `start` up to `end` (exclusive) by position; fewer when the table ends before.

        Raises InvalidInputError for a negative start or an end before it.
        """
        if self._default_scan_options or self._view_filter is not None:
            return self.scanner(columns, offset=start, limit=check_count("end", end - start)).to_table()
        return sample.slice_rows(self._table, start, end, columns)

    def take(self, indices: Sequence[int] | pa.Array, columns: Columns | None = None) -> pa.Table:
        """Rows by position in scan order, counting live rows from 0, in the order asked for; repeats are allowed.

        Raises OutOfRangeError for a position beyond the end or below 0, ColumnNotFoundError, InvalidSqlError; TypeError
        for anything but integers.
        """
        return take.take_offsets(self._table, indices, columns)

    def take_row_ids(self, row_ids: Sequence[int] | pa.Array, columns: Columns | None = None) -> pa.Table:
        """Rows by `_rowid`, in the order asked for; ids of deleted rows, and unknown stable ids, are left out.

        The result may therefore have fewer rows than `row_ids`; read the column `_rowid` too to see which ones it has.
        Without stable row ids an id is the row's address, and one in no fragment of this version raises
        OutOfRangeError. Raises ColumnNotFoundError, InvalidSqlError, OutOfRangeError for a negative id, TypeError for
        no integers.
        """
        return take.take_row_ids(self._table, row_ids, columns)

    def _take_rows(
        self,
        row_ids: Sequence[int] | pa.Array,
        columns: Columns | None = None,
        *,
        ignore_deletions: bool = False,
        **kargs: Any,
    ) -> pa.Table:
        """pylance's private form of `take_row_ids`."""
        scope.reject("taking deleted rows", planned=False, ignore_deletions=ignore_deletions)
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
        """Open the blobs of chosen rows as files, in the order asked for; None for a null.

        Rows are chosen by `_rowid`, by `_rowaddr` or by position in scan order: give exactly one of `ids`, `addresses`
        and `indices`. Only descriptions are read here; each file fetches its bytes when it is read, `buffer_size` of
        them at a time. `read_blobs` costs fewer requests for whole blobs.
        Raises ColumnNotFoundError; InvalidInputError for a column without blobs or a row that is not there;
        UnsupportedFeatureError for a deleted one; OutOfRangeError for a row beyond the end; TypeError.

        Examples
        --------
        >>> with ds.take_blobs("video", indices=[3])[0] as file:  # doctest: +SKIP
        ...     file.seek(-16, 2), file.read()
        """
        checked_buffer_size(buffer_size)
        selector, rows = selected(ids, addresses, indices)
        found = blob_ops.find_blobs(self._table, blob_column, selector, rows)
        return [
            None if handle is None else BlobFile(handle, buffer_size)
            for handle in blob_ops.handles(self._table, found.places)
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
        """The blobs of chosen rows: (row address, bytes) each, bytes None for a null.

        All of one file are asked for together. Rows come in the order asked for, whatever `preserve_order` says;
        `io_buffer_size` is accepted for compatibility. Arguments and errors are those of `take_blobs`.
        """
        check_io_buffer(io_buffer_size)
        selector, rows = selected(ids, addresses, indices)
        return blob_ops.read_blobs(self._table, blob_ops.find_blobs(self._table, blob_column, selector, rows))

    def read_blob_ranges(
        self,
        blob_column: str,
        requests: Sequence[tuple[int, int, int]],
        *,
        selector: str,
        io_buffer_size: int | None = None,
        preserve_order: bool | None = None,
    ) -> list[tuple[int, int, bytes | None]]:
        """Parts of blobs: for each request (row, offset, length) its number, the row's address and the bytes.

        `selector` says what the rows are: "ids", "addresses" or "indices". A null blob gives None for any range;
        of another one the range must lie within it. The rest is as in `read_blobs`.
        """
        check_io_buffer(io_buffer_size)
        return blob_ops.read_blob_ranges(self._table, blob_column, requests, blob_ops.checked_selector(selector))

    def sample(
        self, num_rows: int, columns: Columns | None = None, randomize_order: bool = True, **kwargs: Any
    ) -> pa.Table:
        """`num_rows` different rows chosen at random; in table order when `randomize_order` is False.

        Raises InvalidInputError when there are not as many rows, InvalidOperationError for a view made by `filter`,
        TypeError for an unknown argument.
        """
        if kwargs:
            raise TypeError(f"sample() got an unexpected argument {next(iter(kwargs))!r}; filter a scan instead")
        self._refuse_view("sample", "use lancetable.sampler.maybe_sample with filt=")
        number = check_count("num_rows", num_rows)
        return sample.sample(self._table, number, columns, randomize_order=randomize_order)

    # --------------------------------------------------------------------------- the rest of pyarrow.dataset.Dataset

    def filter(self, expression: pc.Expression) -> LanceDataset:
        """A view of this version whose scans yield only the rows that match; filters of further calls are added.

        It concerns what scans (`scanner`, `to_table`, `head`, `count_rows` …), not what counts positions (`take`).
        `sample`, `delete`, `update` and `truncate_table` of a view raise InvalidOperationError. Raises TypeError for
        anything but a pyarrow expression.
        """
        if not isinstance(expression, pc.Expression):
            raise TypeError(f"expression must be a pyarrow expression, got {type(expression).__name__}")
        view = expression if self._view_filter is None else self._view_filter & expression
        return LanceDataset.from_version(self._table, self._default_scan_options, view)

    def _refuse_view(self, method: str, instead: str) -> None:
        """Raises InvalidOperationError for a view made by `filter`, whose rows a method would not be limited to."""
        if self._view_filter is not None:
            raise InvalidOperationError(
                f"{method}() does not apply the filter of a view, so it would concern all rows of the table; {instead}"
            )

    def sort_by(self, sorting: str | list[tuple[str, str]], **kwargs: Any) -> pads.InMemoryDataset:
        """All rows in memory, sorted; `sorting` is a column or a list of (column, "ascending" or "descending")."""
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
        """Join all rows with those of another dataset, both in memory; arguments as in `pyarrow.Table.join`."""
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
        """Join each row with the nearest one of another dataset, both in memory; see `pyarrow.Table.join_asof`."""
        joined = self.to_table().join_asof(right_dataset.to_table(), on, by, tolerance, right_on, right_by)
        return pads.InMemoryDataset(joined)

    @property
    def partition_expression(self) -> pc.Expression:
        """Always true: a Lance table has no partitions."""
        return pc.scalar(True)

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Not available: the schema belongs to the table."""
        raise scope.unsupported("a view with another schema", planned=False, name="LanceDataset.replace_schema")

    def get_fragments(self, filter: pc.Expression | None = None) -> list[LanceFragment]:
        """All fragments. A filter is refused: fragments hold no partition to choose by."""
        scope.reject("choosing fragments by a filter", planned=False, filter=filter)
        return [LanceFragment(self, None, fragment=fragment) for fragment in self._table.manifest.fragments]

    def _get_fragments(self, filter: pc.Expression | None) -> list[LanceFragment]:
        return self.get_fragments(filter)

    def _scanner_options(self, options: Any) -> NoReturn:
        raise UnsupportedFeatureError("a Lance table has no pyarrow scan options", feature="pyarrow scan options")

    @property
    def _scan_options(self) -> dict[str, Any]:
        return {}

    def get_fragment(self, fragment_id: int) -> LanceFragment | None:
        """The fragment with this id, or None."""
        number = check_count("fragment_id", fragment_id)
        found = self._table.manifest.fragments.by_id(number) if number < 2**64 else None
        return None if found is None else LanceFragment(self, None, fragment=found)

    def fragment_ids(self) -> set[int]:
        """The ids of all fragments, without an object for each."""
        return set(self._table.manifest.fragments.ids().tolist())

    # ---------------------------------------------------------------------------------------------------- changing

    @staticmethod
    def from_pydantic_model(
        model_class: Any, data: list[Any], uri: Uri | None = None, mode: str = "create", **kwargs: Any
    ) -> LanceDataset:
        """Write instances of a pydantic model; columns and types are those of the model's fields.

        `uri` is the class's name in snake_case by default; `kwargs` are arguments of `write_dataset`. Raises
        InvalidSchemaError for a field whose type no column has, TypeError for what is no model.
        """
        schema = schema_of_model(model_class)
        for each in data:
            if not isinstance(each, model_class):
                raise TypeError(f"expected {model_class.__name__}, got {type(each).__name__}")
        table = table_of_rows([each.model_dump(mode="python") for each in data], schema)
        return write_dataset(table, snake_case(model_class.__name__) if uri is None else uri, mode=mode, **kwargs)

    def insert(self, data: ReaderLike, *, mode: str = "append", **kwargs: Any) -> None:
        """Write rows and move this dataset to the new version; `kwargs` are arguments of `write_dataset`."""
        self._table = write_dataset(data, self, mode=mode, **kwargs)._table

    def delete(
        self,
        predicate: Filter,
        *,
        conflict_retries: int = 10,
        retry_timeout: timedelta = timedelta(seconds=30),
    ) -> DeleteResult:
        """Delete the rows that match, and move this dataset to the new version.

        Rows are only marked in deletion files. When another commit touches the same rows meanwhile, the whole delete
        runs again on the newer version, at most `conflict_retries` times and until `retry_timeout` has passed.

        Returns `{"num_deleted_rows": n}`. Raises InvalidSqlError, ColumnNotFoundError, TypeError for the predicate;
        RetryableCommitConflictError when every attempt lost, CommitConflictError when another attempt is hopeless.

        Examples
        --------
        >>> ds.delete("dep_time IS NULL")  # doctest: +SKIP
        {'num_deleted_rows': 8255}
        """
        if not isinstance(predicate, (str, pc.Expression)):
            raise TypeError(f"predicate must be SQL text or a pyarrow expression, got {type(predicate).__name__}")
        self._refuse_view("delete", "call it on the dataset, with the filter in the predicate")
        self._table, num_rows = delete.delete(
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

        Parameters
        ----------
        updates : dict
            Top-level column -> SQL expression over the columns of the same row as it was. Values are cast to the type
            of the column as `CAST` does: an integer loses the fraction, a decimal is rounded, a timestamp is cut to its
            unit, and a number too large for a narrower float becomes infinite. An integer or decimal out of range
            raises.
        where : str or pyarrow expression, optional
            The rows to change; all of them without it.
        conflict_retries, retry_timeout
            When another commit touches the same rows meanwhile, the whole update runs again on the newer version, at
            most so many times and until the time has passed.
        data_storage_version : str, optional
            Format of the new data files; that of the table by default.
        progress : callable or True, optional
            Told how far it is, or shown as a bar: see `lancetable.progress`. pylance has no such argument.

        The changed rows are written into new fragments and marked as deleted where they were. With stable row ids they
        keep theirs. Returns `{"num_rows_updated": n}`. Raises InvalidInputError without updates, ColumnNotFoundError,
        InvalidSqlError for an expression or a value that does not fit, UnsupportedFeatureError for a column inside a
        struct, SchemaMismatchError for a null in a required column, TypeError; RetryableCommitConflictError when every
        attempt lost, CommitConflictError when another attempt is hopeless.

        Examples
        --------
        >>> ds.update({"dep_delay": "0"}, where="dep_delay IS NULL")  # doctest: +SKIP
        {'num_rows_updated': 8255}
        """
        if not isinstance(updates, Mapping):
            raise TypeError(f"updates must be a dict, got {type(updates).__name__}")
        if where is not None and not isinstance(where, (str, pc.Expression)):
            raise TypeError(f"where must be SQL text or a pyarrow expression, got {type(where).__name__}")
        self._refuse_view("update", "call it on the dataset, with the filter in `where`")
        with tracked(progress, "update") as tracker:
            self._table, num_rows = update.update(
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
        """Begin a merge of a source into this table by the key columns `on`: upserts, insert-if-absent, and the like.

        Without `on` the key is the table's unenforced primary key. Says nothing about the rows yet: choose what becomes
        of them with the `when_...` methods of the builder, then call its `execute`. Raises InvalidInputError without a
        key, ColumnNotFoundError.

        Examples
        --------
        >>> builder = ds.merge_insert("id")  # doctest: +SKIP
        >>> builder.when_matched_update_all().when_not_matched_insert_all().execute(rows)  # doctest: +SKIP
        {'num_inserted_rows': 2, 'num_updated_rows': 10, 'num_deleted_rows': 0}
        """
        return MergeInsertBuilder(self, on)

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

        Every row gets the values of the row of `data_obj` whose `right_on` (by default `left_on`) equals its `left_on`,
        nulls where there is none, those of the last where there are several. `left_on` may be `_rowid` or `_rowaddr`.
        `data_obj` is kept in memory. `progress` is told how far it is, see `lancetable.progress`; pylance has no such
        argument. Raises ColumnNotFoundError, AlreadyExistsError for a column that the table has,
        SchemaMismatchError for keys of different types, and what commits raise.

        Examples
        --------
        >>> ds.merge(airlines, "carrier", "code")  # doctest: +SKIP
        """
        right = table_of(data_obj, schema)
        right_on = left_on if right_on is None else right_on
        with tracked(progress, "merge") as tracker:
            self._table = joined_columns.merge(self._table, right, left_on, right_on, tracker)

    def move_to(self, table: TableVersion) -> None:
        """Stand for another version of this table from now on."""
        self._table = table

    def truncate_table(self) -> None:
        """Delete all rows and keep the schema."""
        self.delete("true")

    @property
    def optimize(self) -> DatasetOptimizer:
        """Compaction, and the settings of automatic cleanup; see `DatasetOptimizer`."""
        return DatasetOptimizer(self)

    def migrate_manifest_paths_v2(self) -> None:
        """Give all manifests the names of the V2 scheme, under which the newest version is found faster.

        No other process may write to the table meanwhile, and others may fail to open it. Safe to run again after an
        interruption.
        """
        table = self._table
        rename_manifests_at(table.store, table.base, table.handler)
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
        """Remove old versions, and the files that no other version needs.

        Versions from this dataset's on stay, and so do tagged ones and those a branch springs from. Shallow clones are
        not known here: tag the versions they need.

        Parameters
        ----------
        older_than : timedelta, optional
            Remove versions older than that; 14 days if no other condition is given.
        retain_versions : int, optional
            Keep so many of the newest versions. Conditions given together must all hold.
        delete_unverified : bool, default False
            Also remove files younger than seven days that no version names. They may belong to a commit that is under
            way: only when nobody is writing.
        error_if_tagged_old_versions : bool, default True
            Raise if a tagged version is old enough, rather than to keep it silently.
        delete_rate_limit : int, optional
            Files per second at most.
        versions : list of int, optional
            Remove only these.
        delete_concurrency : int, optional
            Accepted for compatibility; deletions go to the store in groups.
        progress : callable or True, optional
            Told how far it is, or shown as a bar: see `lancetable.progress`. pylance has no such argument.

        Raises CleanupError for tagged versions; `explain_cleanup_old_versions` is the dry run.
        """
        policy = cleanup.policy_of(
            older_than,
            retain_versions,
            versions,
            delete_unverified=delete_unverified,
            error_if_tagged=error_if_tagged_old_versions,
        )
        with tracked(progress, "cleanup") as tracker:
            counts = cleanup.cleanup(
                self._table,
                policy,
                deletes_per_second=delete_rate_limit,
                concurrency=delete_concurrency,
                tracker=tracker,
            )
        return stats_of(counts)

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
        """What `cleanup_old_versions` with these arguments would remove; nothing is changed.

        With `include_files` at most `max_files` files are listed. Raises CleanupError for tagged versions.
        """
        policy = cleanup.policy_of(
            older_than,
            retain_versions,
            versions,
            delete_unverified=delete_unverified,
            error_if_tagged=error_if_tagged_old_versions,
        )
        plan = cleanup.explain(self._table, policy)
        return explanation_of(plan, include_files=include_files, max_files=check_count("max_files", max_files))

    def tracked_files(
        self, *, min_version: int | None = None, progress: Callable[[int, int | None], None] | None = None
    ) -> pa.RecordBatchReader:
        """Every file that a version names: columns `version`, `base_uri`, `path`, `type`; newest versions first.

        `min_version` leaves out older ones; `progress(done, total)` counts versions. See `all_files` for what is there.
        """
        return cleanup.tracked_files(self._table, min_version=min_version, progress=progress)

    def delta(
        self,
        compared_against: int | None = None,
        *,
        begin_version: int | None = None,
        end_version: int | None = None,
    ) -> DatasetDelta:
        """The changes from `begin_version` (exclusive) to `end_version` (inclusive), by the lineage of rows.

        `compared_against` is short for that version and this one. Raises InvalidInputError for incomplete arguments.
        """
        return delta_of(self._table, compared_against, begin_version, end_version)

    def diff(self, older: Reference, newer: Reference | None = None, *, key: str | list[str] | None = None) -> Diff:
        """The rows inserted, updated (old and new values) and deleted between two versions, as Arrow tables.

        `newer` is this version by default. Rows are matched by their ids where those are stable, else by the columns
        `key`; what both versions share is not read. This library's own addition to pylance's API. Raises
        InvalidInputError for a key that is missing or not unique, ColumnNotFoundError, VersionNotFoundError.
        """
        before = checkout(self._table, parse_reference(older, branches=True))
        after = self._table if newer is None else checkout(self._table, parse_reference(newer, branches=True))
        return diff.diff(before, after, [key] if isinstance(key, str) else key)

    def sql(self, sql: str) -> SqlQueryBuilder:
        """A SQL query over this dataset, which it calls `dataset`; run by DuckDB.

        Examples
        --------
        >>> ds.sql("SELECT dest, count(*) FROM dataset GROUP BY dest").build().to_batch_records()  # doctest: +SKIP
        """
        return SqlQueryBuilder(self, sql)

    # ---------------------------------------------------------------------------------------- branches and clones

    @property
    def branches(self) -> Branches:
        """The branches of this table; see `Branches`."""
        return Branches(self)

    def create_branch(
        self, branch: str, reference: Reference | None = None, storage_options: dict[str, str] | None = None
    ) -> LanceDataset:
        """Make a branch and return a dataset at its first version; nothing is copied.

        It starts at `reference`, a version number, a tag or (branch, version), by default at this dataset's version.
        Commits through the dataset returned go to the branch, whose files lie below `tree/<branch>/`; this table does
        not see them. `storage_options` are those of this dataset. Raises AlreadyExistsError, InvalidRefError,
        RefNotFoundError, VersionNotFoundError.
        """
        start: Reference | None = (None, None) if reference == "main" else reference
        start = None if start is None else parse_reference(start, branches=True)
        return LanceDataset.from_version(branches.create_branch(self._table, branch, start), self._default_scan_options)

    def shallow_clone(
        self,
        target_path: Uri,
        reference: Reference,
        storage_options: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> LanceDataset:
        """Make a table at `target_path` that starts as `reference` of this one and refers to its files.

        The clone needs those files: tag the version here before old versions are cleaned up. `kwargs` are arguments of
        `dataset`. Raises AlreadyExistsError, RefNotFoundError, VersionNotFoundError, UnsupportedFeatureError for a
        target in another store.
        """
        source = checkout(self._table, parse_reference(reference, branches=True))
        options = source.storage_options if storage_options is None else dict(storage_options)
        clone.shallow_clone(source, uri_text(target_path), storage_options=options)
        return dataset(target_path, storage_options=None if options is None else dict(options), **kwargs)

    def deep_clone(
        self,
        target_path: Uri,
        reference: Reference,
        storage_options: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> LanceDataset:
        """Make a table at `target_path` with copies of all files of `reference`; the target may lie in another store.

        `kwargs` are arguments of `dataset`. Raises AlreadyExistsError, RefNotFoundError, VersionNotFoundError.
        """
        source = checkout(self._table, parse_reference(reference, branches=True))
        options = source.storage_options if storage_options is None else dict(storage_options)
        clone.deep_clone(source, uri_text(target_path), storage_options=options)
        return dataset(target_path, storage_options=None if options is None else dict(options), **kwargs)

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
        """Add columns, and move this dataset to the new version. Columns that are there are not rewritten.

        Parameters
        ----------
        transforms : dict, BatchUDF, callable, ReaderLike, pyarrow.Field, list of Fields or pyarrow.Schema
            SQL expressions over the columns by the names of the new ones; or a function from a RecordBatch to one of
            the new columns; or rows of the new columns in scan order; or columns that shall be null everywhere, which
            writes nothing but the schema.
        read_columns : list of str, optional
            What a function gets to see, `_rowid` and `_rowaddr` included; all columns by default.
        reader_schema : pyarrow.Schema, optional
            The schema of `transforms`, if that is an iterable of batches.
        batch_size : int, optional
            How many rows a function gets at a time.
        progress : callable or True, optional
            Told how far it is, or shown as a bar: see `lancetable.progress`. pylance has no such argument.

        Raises AlreadyExistsError for a name that is taken, InvalidSqlError, ColumnNotFoundError, InvalidInputError for
        too few or too many rows; CommitConflictError if the table changed meanwhile: try again.

        Examples
        --------
        >>> ds.add_columns({"speed": "distance / air_time"})  # doctest: +SKIP
        >>> ds.add_columns(pa.field("note", pa.string()))  # doctest: +SKIP
        """
        new = udf.new_columns(transforms, self, read_columns, reader_schema)
        with tracked(progress, "add_columns") as tracker:
            if isinstance(new, pa.Schema):
                self._table = evolution.add_nulls(self._table, new)
            elif isinstance(new, dict):
                self._table = evolution.add_expressions(self._table, new, batch_size=batch_size, tracker=tracker)
            elif isinstance(new, BatchUDF):
                if new.cache is not None:
                    new.cache.begin(udf.job_of(new, self._table, read_columns, batch_size))
                self._table = evolution.add_function(
                    self._table,
                    new.apply,
                    udf.schema_of(new),
                    columns=read_columns,
                    batch_size=batch_size,
                    checkpoint=new.cache,
                    tracker=tracker,
                )
                if new.cache is not None:
                    new.cache.cleanup()
            else:
                self._table = evolution.add_stream(self._table, new, tracker=tracker)

    def alter_columns(self, *alterations: AlterColumn) -> None:
        """Rename columns, make them nullable or required, or change their type; one new version for all of it.

        Each alteration is a dict with `path` (dotted for fields of structs) and any of `name`, `nullable`,
        `data_type`. Only another type writes data, of that column alone. Types change within their kind: integers,
        floats, times, texts, bytes, decimals, lists of these. A timestamp that becomes a date loses its time of day,
        and a float that becomes a narrower one is rounded.

        Raises ColumnNotFoundError, InvalidInputError for a wrong dict, InvalidOperationError for a change of kind,
        SchemaMismatchError for nulls in a column to be required or values that do not fit, CommitConflictError.

        Examples
        --------
        >>> ds.alter_columns({"path": "dest", "name": "destination"})  # doctest: +SKIP
        >>> ds.alter_columns({"path": "x", "data_type": pa.float32()})  # doctest: +SKIP
        """
        self._table = evolution.alter(self._table, [parse_alteration(each) for each in alterations])

    def drop_columns(self, columns: Sequence[str]) -> None:
        """Remove columns, or fields of struct columns ("a.b"), from the schema.

        Their bytes go when fragments are compacted and old versions cleaned up. Raises ColumnNotFoundError,
        InvalidInputError if no column would be left, CommitConflictError.
        """
        if isinstance(columns, str):
            raise TypeError("columns must be a list of names, not a text")
        self._table = evolution.drop(self._table, list(columns))

    def update_config(self, values: dict[str, str | None], *, replace: bool = False) -> dict[str, str]:
        """Change the table's config and return it: None deletes a key, `replace` starts from an empty one."""
        self._table = settings.update_config(self._table, checked_changes(values), replace=replace)
        return self.config()

    def delete_config_keys(self, keys: list[str]) -> None:
        """Delete keys of the config; those that are not there are ignored."""
        self.update_config(dict.fromkeys(keys))

    def update_metadata(self, values: dict[str, str | None], *, replace: bool = False) -> dict[str, str]:
        """Change the table's metadata and return it: None deletes a key, `replace` starts from an empty one."""
        self._table = settings.update_table_metadata(self._table, checked_changes(values), replace=replace)
        return self.metadata

    def update_schema_metadata(self, values: dict[str, str | None], *, replace: bool = False) -> dict[str, str]:
        """Change the schema's metadata and return it: None deletes a key, `replace` starts from an empty one."""
        self._table = settings.update_schema_metadata(self._table, checked_changes(values), replace=replace)
        return self.schema_metadata

    def update_field_metadata(self, field_updates: dict[str, dict[str, str | None]], *, replace: bool = False) -> None:
        """Change the metadata of fields, given by their paths ("a.b"). Raises ColumnNotFoundError."""
        changes = {path: checked_changes(values) for path, values in checked_mapping(field_updates).items()}
        self._table = settings.update_field_metadata(self._table, changes, replace=replace)

    def replace_schema_metadata(self, new_metadata: dict[str, str]) -> None:
        """Deprecated: `update_schema_metadata(new_metadata, replace=True)`."""
        warnings.warn(
            "replace_schema_metadata is deprecated. Use update_schema_metadata(metadata, replace=True) instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        self.update_schema_metadata(dict(new_metadata), replace=True)

    def replace_field_metadata(self, field_name: str, new_metadata: dict[str, str]) -> None:
        """Deprecated: `update_field_metadata({field_name: new_metadata}, replace=True)`."""
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
        """Commit a change whose files are written already, for instance by other machines.

        Parameters
        ----------
        base_uri : str, Path or LanceDataset
            The table. An Overwrite creates it if it is not there.
        operation : LanceOperation or Transaction
            A Transaction brings its own read version, uuid and properties.
        read_version : int, optional
            The version the change was computed from; required for all operations but Overwrite and Restore.
        detached : bool
            Make a version outside the lineage, which only its number finds.
        max_retries : int
            How often to try again when other commits come between.
        commit_message : str, optional
            Kept with the transaction.
        enable_stable_row_ids : bool, optional
            Of a table that an Overwrite creates; see `write_dataset`.
        commit_timeout : timedelta, optional
            How long to try; None for no limit.

        Returns the table at the new version. Raises InvalidInputError without read version, TypeError for another
        object, DatasetNotFoundError, VersionNotFoundError, CommitConflictError or RetryableCommitConflictError,
        CommitStateUnknownError if the storage did not say whether the commit landed.

        Examples
        --------
        >>> fragments = write_fragments(table, uri)  # doctest: +SKIP
        >>> LanceDataset.commit(uri, LanceOperation.Append(fragments), read_version=3)  # doctest: +SKIP
        """
        scope.reject("catalog lookup", planned=False, namespace_client=namespace_client, table_id=table_id)
        scope.reject("several stores for one table", planned=False, base_store_params=base_store_params)
        if commit_lock is not None and not callable(commit_lock):
            raise TypeError(f"commit_lock must be a function, got {type(commit_lock).__name__}")
        if isinstance(operation, Transaction):
            if commit_message is not None:
                raise InvalidInputError(
                    "commit_message is not supported when calling commit with a Transaction. Set the message on the"
                    f" transaction properties instead, under {COMMIT_MESSAGE_KEY!r}"
                )
            transaction = operation
        elif isinstance(operation, LanceOperation.BaseOperation):
            if read_version is None and not isinstance(operation, (LanceOperation.Overwrite, LanceOperation.Restore)):
                raise InvalidInputError("read_version is required for all operations except Overwrite and Restore")
            transaction = Transaction(read_version or 0, operation)
        else:
            raise TypeError(
                f"operation must be a LanceOperation.BaseOperation or Transaction, got {type(operation).__name__}"
            )
        properties = transaction_properties_of(transaction.transaction_properties, commit_message)
        committed = commits.commit(
            target_of(base_uri, storage_options, commit_lock),
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

        Returns `{"dataset", "merged"}`, the new version and the transaction that stands for all. It has a uuid of its
        own, and none of the properties (commit messages among them) of the others. Raises
        InvalidOperationError for an empty list, UnsupportedFeatureError for operations other than Append, and what
        `commit` raises.
        """
        if not transactions:
            raise InvalidOperationError("No transactions to commit")
        fragments: list[FragmentMetadata] = []
        for transaction in transactions:
            if not isinstance(transaction, Transaction):
                raise TypeError(f"transactions must be of type Transaction, got {type(transaction).__name__}")
            if not isinstance(transaction.operation, LanceOperation.Append):
                raise scope.unsupported(
                    f"a batch with {type(transaction.operation).__name__}", planned=False, name="commit_batch"
                )
            fragments.extend(transaction.operation.fragments)
        merged = Transaction(min(each.read_version for each in transactions), LanceOperation.Append(fragments))
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
        """What made a version; None if its writer kept no transaction. Raises VersionNotFoundError."""
        table = checkout(self._table, version_number(version))
        found = transactions.read(table.store, table.base, table.file)
        return None if found is None else Transaction.from_format(found)

    def get_transactions(self, recent_transactions: int = 10) -> list[Transaction | None]:
        """The transactions of the newest versions up to this one, newest first; None where there is none.

        At least one, as in pylance. Raises TypeError, OutOfRangeError.
        """
        wanted = check_count("recent_transactions", recent_transactions)
        found: list[Transaction | None] = []
        for number in range(self.version, 0, -1):
            if found and len(found) >= wanted:
                break
            try:
                found.append(self.read_transaction(number))
            except VersionNotFoundError:
                break
        return found

    def add_bases(
        self, new_bases: Sequence[DatasetBasePath], transaction_properties: dict[str, str] | None = None
    ) -> LanceDataset:
        """Register other places in which files of this table may lie, and move this dataset to the new version.

        A base without an id gets the next free one. Returns this dataset. Raises InvalidOperationError for a name, a
        path or an id that is taken, CommitConflictError if another commit took it in between.
        """
        operation = tx.UpdateBases(to_bases(new_bases))
        transaction = tx.Transaction.create(self.version, operation, properties=transaction_properties or {})
        self._table = commits.commit(self._table, transaction)
        return self

    @staticmethod
    def drop(
        base_uri: Uri, storage_options: dict[str, str] | None = None, ignore_not_found: bool | None = None
    ) -> None:
        """Delete a table with all its files.

        Raises DatasetNotFoundError if the path does not exist (unless `ignore_not_found`), InvalidInputError, with
        nothing deleted, if it exists and is not empty but holds no readable manifest.
        """
        drop.drop(uri_text(base_uri), storage_options, ignore_not_found=bool(ignore_not_found))

    # ------------------------------------------------------------------------------------------------- inspecting

    @property
    def stats(self) -> LanceStats:
        """Sizes and counts."""
        return LanceStats(self)

    def validate(self) -> None:
        """Check that every file of this version is there and fits the manifest.

        Raises CorruptFileError or NotFoundError for the first one that does not.
        """
        validate.validate(self._table)

    def all_files(self) -> pa.RecordBatchReader:
        """Every object that lies below the table's root, whether a version uses it or not.

        A reader of batches (base_uri: dictionary of string, path: string relative to it, size_bytes: int64,
        last_modified: timestamp[us, UTC]).
        """
        return files.all_files(self._table)

    def new_file_session(self) -> LanceFileSession:
        """A `LanceFileSession` on the root of this table, with its storage options."""
        return LanceFileSession(self.uri, self.initial_storage_options)

    def io_stats_snapshot(self) -> counted.IOStats:
        """Requests and bytes since this dataset was opened or `io_stats_incremental` was called.

        Datasets made from this one by `checkout_version` count along. Opening itself is not counted.
        """
        return replace(counted.stats_of(self._table))

    def io_stats_incremental(self) -> counted.IOStats:
        """As `io_stats_snapshot`, and start counting from 0 again."""
        snapshot = self.io_stats_snapshot()
        counted.stats_of(self._table).clear()
        return snapshot


@scope.fill_gaps(scope.STATS)
class LanceStats:
    """Sizes and counts of one version."""

    def __init__(self, dataset: LanceDataset) -> None:
        self._dataset = dataset

    def dataset_stats(self, max_rows_per_group: int = 1024) -> DatasetStats:
        """Deleted rows, fragments, and fragments with fewer rows than `max_rows_per_group`."""
        counted = stats.dataset_stats(self._dataset.table_version, max_rows_per_group)
        return DatasetStats(
            num_deleted_rows=counted.num_deleted_rows,
            num_fragments=counted.num_fragments,
            num_small_files=counted.num_small_files,
        )

    def data_stats(self) -> stats.DataStatistics:
        """Bytes on disk of each field; reads the footer of every data file."""
        return stats.data_stats(self._dataset.table_version)


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
        Anything tabular: pandas and polars frames, Arrow tables, batches, readers, datasets, scanners, a dict of
        columns, a list of dicts, an iterable of record batches (with `schema`), an object with an Arrow C stream.
        Streams are read once, batch by batch.
    uri : str, Path or LanceDataset
        The table. A dataset stands for its table; the change is made on the version it is at. `storage_options` and
        `commit_lock` given besides take the place of the dataset's own.
    schema : pyarrow.Schema, optional
        Data of another schema is cast to it; SchemaMismatchError for columns that it lacks, and for values that it
        cannot hold.
    mode : "create", "append" or "overwrite"
        "create" fails if the table exists; only in `memory://` it takes its place. "append" adds rows; columns may come
        in any order and nullable ones may be missing; a table that does not exist is created with a warning.
        "overwrite" makes a version with these rows and this schema only; older versions stay readable.
    max_rows_per_file, max_bytes_per_file : int
        When to begin another data file.
    max_rows_per_group : int
        Rows of a batch in 0.1 files; other formats have none.
    data_cache_bytes : int, optional
        Bytes to collect per column before a page is written; default 8 MiB.
    max_page_bytes : int, optional
        Larger pages are split; default 32 MiB.
    commit_lock : callable, optional
        See `dataset`.
    progress : FragmentWriteProgress, callable or True, optional
        Told of every data file; or, as pylance has it not, told how far the write is or shown as a bar: see
        `lancetable.progress`.
    data_storage_version : str, optional
        Format of the new files, such as "2.0". Without it, append and overwrite keep that of the table, and a new
        table is in 2.1.
    enable_v2_manifest_paths : bool
        Name the manifests of a new table so that the newest one is listed first.
    commit_message, transaction_properties
        Kept with the transaction.
    session : Session, optional
        Share the cache of other datasets.
    schema_mode : "merge", optional
        With mode "append": let the schema of the table follow the data. Columns that the table lacks are added, null in
        the rows that are there; integers, floats, decimals and texts get the wider of two types. The schema changes in
        commits before that of the rows. pylance has no such option.
    enable_stable_row_ids : bool
        Give every row of a new table an id that it keeps when it is rewritten, and note the versions in which it was
        made and last changed. A table has such ids from its first version on or never: for one that exists without
        them this has no effect, and a warning is logged.
    auto_cleanup_options : AutoCleanupConfig, optional
        For a new table: see `DatasetOptimizer.enable_auto_cleanup`. For one that exists and has other settings this has
        no effect, and a warning is logged.
    initial_bases : list of DatasetBasePath, optional
        Other places of the same store in which files of a new table may lie; see `LanceDataset.add_bases`.
    target_bases : list of str, optional
        Names or paths of registered bases, or the address of the table itself, that take the new data files in turn;
        the table alone by default.
    target_all_bases : bool, optional
        The table and all of its bases take the new data files in turn.
    base_store_params, namespace_client, table_id
        Not supported: UnsupportedFeatureError when given.
    blob_pack_file_size_threshold : int, optional
        Largest file that blobs share, where their field does not say; 1 GiB by default. See `blob_field`.
    external_blob_mode, allow_external_blob_outside_bases
        They concern blobs that lie elsewhere, which are refused with UnsupportedFeatureError.

    Raises
    ------
    AlreadyExistsError
        mode "create" on an existing table.
    SchemaMismatchError
        Appended data has another column or type, lacks a required column or has nulls in one.
    InvalidSchemaError, UnsupportedFeatureError
        Names or types that no table may have, or a format that is not written.
    InvalidInputError, TypeError
        A bad argument, or data that is not tabular. Exceptions of the caller's own iterator pass through.
    CommitConflictError, CommitStateUnknownError, StoreError
        The commit did not succeed, or its outcome is unknown.

    Examples
    --------
    >>> import pyarrow as pa, lancetable as lance
    >>> ds = lance.write_dataset(pa.table({"id": [1, 2]}), "/tmp/t.lance")  # doctest: +SKIP
    >>> ds.version  # doctest: +SKIP
    1
    """
    scope.reject("catalog lookup", planned=False, namespace_client=namespace_client, table_id=table_id)
    scope.reject("several stores for one table", planned=False, base_store_params=base_store_params)
    if uri is None:
        raise InvalidInputError("no table: give the argument uri")
    mode = check_mode(mode)
    if schema_mode not in (None, "merge") or (schema_mode is not None and mode != "append"):
        raise InvalidInputError('schema_mode can only be "merge", with mode "append"')
    of_each_file, of_rows = of_files(progress)
    options = write_options(
        max_rows_per_file=max_rows_per_file,
        max_rows_per_group=max_rows_per_group,
        max_bytes_per_file=max_bytes_per_file,
        data_cache_bytes=data_cache_bytes,
        max_page_bytes=max_page_bytes,
        data_storage_version=data_storage_version,
        use_legacy_format=use_legacy_format,
        progress=of_each_file,
        properties=transaction_properties_of(transaction_properties, commit_message),
        v2_manifest_paths=enable_v2_manifest_paths,
        stable_row_ids=enable_stable_row_ids,
        blob_pack_bytes=blob_pack_file_size_threshold,
        keep_arrays=isinstance(data_obj, pa.Table),
        initial_bases=initial_bases,
        target_bases=target_bases,
        target_all_bases=target_all_bases,
    )
    check_external_blobs(external_blob_mode, allow_external_blob_outside_bases)
    config = config_of(auto_cleanup_options) if auto_cleanup_options is not None else None
    source = read_input(data_obj, schema)
    cache = None if session is None else session.cache
    with tracked(of_rows, "write") as tracker:
        if tracker is not None:
            tracker.begin(total_rows=source.num_rows)
            options = replace(options, tracker=tracker)
        table = written(uri, source, options, mode, schema_mode, storage_options, commit_lock, cache, config)
    return LanceDataset.from_version(table)


def written(
    uri: Uri | LanceDataset,
    source: Input,
    options: write.WriteOptions,
    mode: str,
    schema_mode: str | None,
    storage_options: dict[str, str] | None,
    commit_lock: CommitLock | None,
    cache: TableCache | None,
    config: Mapping[str, str] | None,
) -> TableVersion:
    """The version that `write_dataset` makes; its arguments, checked."""
    if mode == "create":
        begin_anew = not isinstance(uri, LanceDataset)
        if isinstance(uri, LanceDataset):
            storage_options = storage_options or uri.initial_storage_options
            uri = uri.uri
        return write.create(
            uri_text(uri),
            source.schema,
            source.batches,
            options,
            storage_options=storage_options,
            commit_lock=commit_lock,
            cache=cache,
            config=config,
            begin_anew=begin_anew,
        )
    target = target_of(uri, storage_options, commit_lock, cache)
    if isinstance(target, str):
        if mode == "append":
            warnings.warn(f"no table at {target}: it will be created", stacklevel=3)
        return write.create(
            target,
            source.schema,
            source.batches,
            options,
            storage_options=storage_options,
            commit_lock=commit_lock,
            cache=cache,
            config=config,
        )
    warn_of_unused(target, options, config)
    if mode == "append" and schema_mode is not None:
        write.target_places(target, options, "append")  # refused before the schema changes
        target, wanted = schema_merge.merge_schema(target, source.schema)
        return write.append(target, wanted, cast_batches(source.batches, wanted), options)
    if mode == "append":
        return write.append(target, source.schema, source.batches, options)
    return write.overwrite(target, source.schema, source.batches, options)


def target_of(
    uri: Uri | LanceDataset,
    storage_options: Mapping[str, str] | None,
    commit_lock: CommitLock | None,
    cache: TableCache | None = None,
) -> TableVersion | str:
    """The table to change: the version of a dataset, the newest version at a URI, or the URI if nothing is there."""
    if isinstance(uri, LanceDataset):
        return commits.with_settings(uri.table_version, storage_options, commit_lock)
    text = uri_text(uri)
    try:
        return open_version(text, storage_options=storage_options, commit_lock=commit_lock, cache=cache)
    except DatasetNotFoundError:
        return text


def warn_of_unused(table: TableVersion, options: write.WriteOptions, config: Mapping[str, str] | None) -> None:
    """Log arguments that concern new tables only, if this table differs from them."""
    if options.stable_row_ids and not table.manifest.has_stable_row_ids:
        logger.warning("%s: enable_stable_row_ids has no effect on a table that exists without such ids", table.uri)
    differs = [key for key, value in (config or {}).items() if table.manifest.config.get(key) != value]
    if differs:
        logger.warning(
            "%s: auto_cleanup_options have no effect on a table that exists: %s stay as they are; use"
            " optimize.enable_auto_cleanup",
            table.uri,
            ", ".join(sorted(differs)),
        )


def selected(ids: Any, addresses: Any, indices: Any) -> tuple[blob_ops.Selector, Any]:
    """The one way in which rows are chosen. Raises InvalidInputError for none or several."""
    given: list[tuple[blob_ops.Selector, Any]] = [("ids", ids), ("addresses", addresses), ("indices", indices)]
    chosen = [each for each in given if each[1] is not None]
    if len(chosen) != 1:
        raise InvalidInputError("Exactly one of ids, indices, or addresses must be specified")
    return chosen[0]


def check_io_buffer(size: int | None) -> None:
    """Raises InvalidInputError unless the size is positive or not given."""
    if size is not None and check_count("io_buffer_size", size) == 0:
        raise InvalidInputError("io_buffer_size must be greater than 0")


def public_version(summary: manifests.VersionSummary) -> Version:
    """A version as `versions` shows it."""
    return Version(
        version=summary.version,
        timestamp=summary.timestamp.astimezone().replace(tzinfo=None),
        metadata={
            "total_data_file_rows": str(summary.total_data_file_rows),
            "total_data_files": str(summary.total_data_files),
            "total_deletion_file_rows": str(summary.total_deletion_file_rows),
            "total_deletion_files": str(summary.total_deletion_files),
            "total_files_size": str(summary.total_files_size),
            "total_fragments": str(summary.total_fragments),
            "total_rows": str(summary.total_rows),
        },
    )


def html_table(rows: Iterable[tuple[str, str]]) -> str:
    """A two-column HTML table; all text is escaped."""
    cells = [f"<tr><th>{html.escape(str(key))}</th><td>{html.escape(str(value))}</td></tr>" for key, value in rows]
    return f"<table>{''.join(cells)}</table>"
