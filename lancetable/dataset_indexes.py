"""Methods of `LanceDataset` for secondary indexes."""

from __future__ import annotations

import uuid as uuid_module
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from lancetable import scope
from lancetable.argument_validation import check_flag, check_integer, check_string
from lancetable.errors import InvalidInputError, UnsupportedFeatureError
from lancetable.progress import IndexProgress, index_report, tracked

if TYPE_CHECKING:
    from typing_extensions import Self

    from lancetable.index.kind import IndexKind
    from lancetable.index_metadata import Index, IndexDescription
    from lancetable.indices import IndexConfig, IndexSegment, IvfModel
    from lancetable.table.version import TableVersion

IndexType: TypeAlias = Literal["BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "ZONEMAP", "BLOOMFILTER", "JSON"]
ProgressCallback: TypeAlias = Callable[[IndexProgress], object]

# The arguments of `create_index` and `create_index_uncommitted` that are not only for vector indexes.
COMMON_ARGUMENTS = frozenset(
    (
        *("self", "column", "index_type", "name", "replace", "train", "fragment_ids", "index_uuid"),
        *("storage_options", "progress_callback", "kwargs"),
    )
)
_VECTOR_DEFAULTS: dict[str, Any] = {"metric": "L2", "filter_nan": True, "skip_transpose": False}


class DatasetIndexes:
    """Base of `LanceDataset` with the methods for secondary indexes."""

    _table: TableVersion

    # --- catalogue

    @property
    def has_index(self) -> bool:
        """True if the table has a secondary index."""
        return len(self.describe_indices()) > 0

    def describe_indices(self) -> list[IndexDescription]:
        """Return the secondary indexes with their segments, sorted by name; see `IndexDescription`.

        Indexes of kinds or versions that this library does not know are included.
        """
        from lancetable.index_metadata import describe_indices

        return describe_indices(self._table)

    def list_indices(self) -> list[dict[str, Any]]:
        """Return one entry for each segment of each index: name, type, uuid, fields, version and fragments.

        Deprecated: use `describe_indices()`.
        """
        warnings.warn(
            "The 'list_indices' method is deprecated. Use describe_indices() instead.", DeprecationWarning, stacklevel=2
        )
        rows: list[dict[str, Any]] = []
        for index in self.describe_indices():
            facts = {"name": index.name, "type": index.index_type, "fields": index.field_names}
            for part in index.segments:
                covered = {"fragment_ids": part.fragment_ids, "base_id": part.base_id}
                rows.append({**facts, "uuid": part.uuid, "version": part.dataset_version, **covered})
        return rows

    def index_statistics(self, index_name: str) -> dict[str, Any]:
        """Return statistics of an index. Deprecated: use `stats.index_stats(index_name)`."""
        from lancetable.ops.index.statistics import index_statistics

        warnings.warn(
            "LanceDataset.index_statistics() is deprecated. Use LanceDataset.stats.index_stats() instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        check_string("index_name", index_name)
        return index_statistics(self._table, index_name)

    def prewarm_index(
        self,
        name: str,
        *,
        with_position: bool = False,
        index_segments: Iterable[str | uuid_module.UUID] | None = None,
    ) -> None:
        """Read an index into the cache of the session, so that the first queries do not wait for the store.

        Parameters
        ----------
        name
            The name of the index.
        with_position
            Only for full text indexes, which are not supported.
        index_segments
            The uuids of the segments to read; all by default.

        Raises
        ------
        IndexNotFoundError
            If the index or a segment does not exist.
        InvalidInputError
            If `with_position` is set or a uuid is malformed.
        TypeError
            If `name` is not a string, or `index_segments` is a single uuid or contains other objects.
        """
        from lancetable.index_metadata import parse_segments
        from lancetable.ops.index.statistics import prewarm_index

        check_string("name", name)
        if with_position:
            raise InvalidInputError("with_position is only supported for full text indexes; omit it")
        prewarm_index(self._table, name, parse_segments(index_segments))

    def get_ivf_model(self, index_name: str) -> IvfModel:
        """Return the partitions of a vector index: the centroids of its first segment, and the metric.

        Raises
        ------
        IndexNotFoundError
            If the index does not exist.
        InvalidInputError
            If it is not a vector index.
        UnsupportedFeatureError
            If its type is not supported.
        """
        from lancetable.indices import IvfModel
        from lancetable.ops.index.statistics import partitions_of

        return IvfModel(*partitions_of(self._table, index_name))

    def centroids(self, *, index_name: str | None = None, column: str | None = None) -> pa.FixedSizeListArray:
        """Return the centroids of a vector index, given its name or its column. Raises the errors of `get_ivf_model`.

        Raises
        ------
        InvalidInputError
            If neither is given.
        KeyError
            If the column has no vector index.
        """
        if index_name is None:
            if column is None:
                raise InvalidInputError("Must provide 'index_name' or 'column'.")
            indexes = (index for index in self.describe_indices() if column in index.field_names)
            index_name = next((index.name for index in indexes if index.index_type.startswith("IVF_")), None)
            if index_name is None:
                raise KeyError(f"No IVF index for column '{column}'")
        return self.get_ivf_model(index_name).centroids

    # --- changes

    def create_scalar_index(
        self,
        column: str,
        index_type: IndexType | IndexConfig,
        name: str | None = None,
        *,
        replace: bool = True,
        train: bool = True,
        fragment_ids: list[int] | None = None,
        index_uuid: str | None = None,
        progress_callback: ProgressCallback | None = None,
        format_version: int | str | None = None,
        document_granularity: Any = None,
        **kwargs: Any,
    ) -> None:
        """Build a scalar index on a column, and move the dataset to the new version.

        Scans, counts, deletes, updates and merges use the index for filters on the column. Rows that are added later
        are scanned until `optimize.optimize_indices` adds them to the index.

        Parameters
        ----------
        column
            Path of the column, dotted for nested fields.
        index_type
            The kind of index, or an `IndexConfig` with parameters:

            - "BTREE": sorted values, for equality, ranges, IN and IS NULL; for columns with many distinct values.
            - "BITMAP": the rows of each distinct value, for the same predicates; for columns with few distinct values.
            - "LABEL_LIST": the rows of each element, for `array_has`, `array_has_any` and `array_has_all`.
            - "NGRAM": the rows of each trigram of strings, for `contains` and `regexp_like`.
            - "ZONEMAP": minimum and maximum of each range of rows; small, for columns that are roughly sorted.
            - "BLOOMFILTER": a Bloom filter of each range of rows; for equality and IN.
            - "JSON": an index of one of these kinds of the values at a path of JSON documents, for `json_get_int` and
              similar functions; needs the parameters `path` and `target_index_type`.
        name
            Name of the index; `{column}_idx` by default, with a number if that name belongs to another index.
        replace
            Replace an index with the same name.
        train
            Index all rows. Otherwise the index is empty, and `optimize_indices` fills it.
        fragment_ids
            Not supported; use `create_index_uncommitted` for the fragments of a task.
        index_uuid
            Id of the new segment; random by default.
        progress_callback
            Function that is called with `IndexProgress` events.
        format_version, document_granularity
            Only for full text indexes, which are not supported.
        **kwargs
            Parameters of the kind; see `IndexConfig`.

        Raises
        ------
        ColumnNotFoundError
            If the column does not exist.
        UnsupportedTypeError
            If the kind of index does not support the type of the column.
        UnsupportedFeatureError
            If the kind of index is not supported.
        IndexExistsError
            If an index with this name is on another column, or exists although `replace` is False.
        InvalidInputError
            If an argument is invalid.
        RetryableCommitConflictError
            If the column was replaced since the version of this dataset, or if every attempt conflicted with a
            concurrent commit.
        CommitStateUnknownError
            If the outcome of the commit is unknown.

        Examples
        --------
        >>> ds.create_scalar_index("carrier", "BITMAP")
        >>> ds.create_scalar_index("id", "ZONEMAP", name="id_zones", rows_per_zone=1024)
        >>> [index.name for index in ds.describe_indices()]
        ['carrier_idx', 'id_zones']
        """
        from lancetable.indices import parse_request
        from lancetable.ops.index.create import create_index

        scope.reject("full text search", format_version=format_version)
        check_string("name", name, optional=True)
        check_flag("replace", replace, optional=True)
        check_flag("train", train, optional=True)
        kind, options = parse_request(index_type, kwargs)
        if fragment_ids is not None:
            raise InvalidInputError(
                f"{kind.name} distributed indexing uses create_index_uncommitted(..., index_type={kind.name!r},"
                " fragment_ids=...)"
            )
        with tracked(index_report(progress_callback), "create_index") as tracker:
            self._table = create_index(
                self._table,
                one_column(column),
                kind,
                name=name,
                replace=replace is not False,  # None is the default, as in pylance
                train=train is not False,
                uuid=uuid_or_none(index_uuid),
                options=options,
                tracker=tracker,
            )

    def drop_index(self, name: str) -> None:
        """Remove an index, and move the dataset to the new version. A cleanup removes its files.

        Raises
        ------
        IndexNotFoundError
            If the index does not exist.
        TypeError
            If `name` is not a string.
        RetryableCommitConflictError
            If every attempt conflicted with a concurrent commit.
        """
        from lancetable.ops.index.create import drop_index

        check_string("name", name)
        self._table = drop_index(self._table, name)

    def remap_row_addrs(self, addrs: pa.Array) -> pa.Array | None:
        """Return the current addresses of rows that deferred compactions have moved.

        The record of a compaction is kept until all indexes are rewritten. Addresses from before compactions that are
        not recorded are returned unchanged.

        Parameters
        ----------
        addrs
            Row addresses, uint64.

        Returns
        -------
        pyarrow.Array or None
            The addresses, with nulls for rows that do not exist any more; None if no compaction is recorded.

        Raises
        ------
        TypeError
            If `addrs` is not an array of uint64.
        """
        from lancetable.index.segments import fragment_reuse

        if not isinstance(addrs, pa.Array) or addrs.type != pa.uint64() or addrs.null_count:
            raise TypeError("addrs must be a pyarrow array of uint64 without nulls")
        reuse = fragment_reuse(self._table)
        if reuse is None:
            return None
        rows, exists = reuse.apply(addrs.to_numpy())
        return pa.array(rows, mask=~exists)

    # --- distributed builds

    def create_index_uncommitted(
        self,
        column: str | list[str],
        index_type: str | IndexConfig,
        name: str | None = None,
        metric: str = "L2",
        replace: bool = False,
        num_partitions: int | None = None,
        ivf_centroids: Any = None,
        pq_codebook: Any = None,
        num_sub_vectors: int | None = None,
        accelerator: Any = None,
        index_cache_size: int | None = None,
        shuffle_partition_batches: int | None = None,
        shuffle_partition_concurrency: int | None = None,
        ivf_centroids_file: str | None = None,
        precomputed_partition_dataset: str | None = None,
        storage_options: dict[str, str] | None = None,
        filter_nan: bool = True,
        train: bool = True,
        fragment_ids: list[int] | None = None,
        index_uuid: str | None = None,
        *,
        target_partition_size: int | None = None,
        streaming_sample_rate: int | None = None,
        streaming_coreset_rate: int | None = None,
        streaming_refine_passes: int | None = None,
        skip_transpose: bool = False,
        rabitq_model: str | None = None,
        **kwargs: Any,
    ) -> Index:
        """Build a segment of an index for some fragments, without committing it.

        Tasks of a distributed build call this method, each with its own fragments. The segments can be pickled. They
        are committed with `commit_existing_index_segments`, after `merge_existing_index_segments` if there are many.
        The files of segments that are never committed are removed by a cleanup.

        Parameters
        ----------
        column, index_type, name
            As for `create_scalar_index`.
        replace
            Allow the name of an existing index.
        train
            Index the rows of the fragments. Otherwise the segment is empty.
        fragment_ids
            The fragments to index; required.
        index_uuid
            Not supported; the id of the segment is random.
        metric, num_partitions, ivf_centroids, pq_codebook, num_sub_vectors, accelerator, index_cache_size, \
        shuffle_partition_batches, shuffle_partition_concurrency, ivf_centroids_file, precomputed_partition_dataset, \
        storage_options, filter_nan, target_partition_size, streaming_sample_rate, streaming_coreset_rate, \
        streaming_refine_passes, skip_transpose, rabitq_model
            Only for vector indexes, as for `create_index`. Segments can be merged without reading the
            vectors if they have the same centroids and codebook.
        **kwargs
            Parameters of the kind; see `IndexConfig`. `progress_callback` is a function that is called with
            `IndexProgress` events.

        Returns
        -------
        Index
            The segment.

        Raises
        ------
        InvalidInputError
            If `fragment_ids` is missing or contains an unknown fragment, or another argument is invalid.
        ColumnNotFoundError, UnsupportedTypeError, UnsupportedFeatureError, IndexExistsError
            As for `create_scalar_index`.

        Examples
        --------
        >>> ids = [fragment.fragment_id for fragment in ds.get_fragments()]
        >>> parts = [ds.create_index_uncommitted("id", "BTREE", fragment_ids=[part]) for part in ids]
        >>> ds = ds.commit_existing_index_segments("id_idx", "id", parts)
        """
        given = {
            name: value
            for name, value in locals().items()
            if name not in COMMON_ARGUMENTS and not _is_default(name, value)
        }
        from lancetable.index.vector.vector_kind import KIND
        from lancetable.index_metadata import Index
        from lancetable.indices import parse_request
        from lancetable.ops.index.distributed import build_uncommitted
        from lancetable.vector_index_arguments import is_vector_type, vector_options

        progress_callback = kwargs.pop("progress_callback", None)
        kind: IndexKind
        if isinstance(index_type, str) and is_vector_type(index_type):
            kind, options, given = KIND, vector_options(index_type, {**given, **kwargs}), {}
        else:
            kind, options = parse_request(index_type, kwargs)
        if given:
            raise InvalidInputError(f"{next(iter(given))} is an argument of vector indexes, not of {kind.name} indexes")
        check_string("name", name, optional=True)
        check_flag("replace", replace)
        check_flag("train", train)
        if fragment_ids is None:
            raise InvalidInputError("create_index_uncommitted requires fragment_ids for distributed index build")
        if index_uuid is not None:
            raise InvalidInputError(
                "index_uuid is not accepted for distributed index builds; segment ids are random and returned with the"
                " segment"
            )
        with tracked(index_report(progress_callback), "create_index_uncommitted") as tracker:
            entry = build_uncommitted(
                self._table,
                one_column(column),
                kind,
                [check_integer("fragment_ids", number) for number in fragment_ids],
                name=name,
                replace_existing=replace,
                train=train,
                options=options,
                tracker=tracker,
            )
        return Index.from_format(entry)

    def merge_index_metadata(
        self,
        index_uuid: str,
        index_type: str,
        batch_readhead: int | None = None,
        progress_callback: ProgressCallback | None = None,
    ) -> None:
        """Refuse the call: segments are merged with `merge_existing_index_segments`, as in pylance 14.

        Raises
        ------
        InvalidInputError
            For a BTREE index.
        UnsupportedFeatureError
            For other kinds of indexes.
        """
        advice = "build segments with create_index_uncommitted, optionally merge groups of them with"
        advice += " merge_existing_index_segments, and commit with commit_existing_index_segments"
        if index_type.upper() == "BTREE":
            raise InvalidInputError(f"BTREE indexes are not built by merge_index_metadata any more; {advice}")
        raise UnsupportedFeatureError(
            f"{index_type} indexes are not built by merge_index_metadata; {advice}", feature="merge_index_metadata"
        )

    def merge_existing_index_segments(self, segments: list[Index]) -> Index:
        """Merge segments of one index that are not committed, and return the merged segment, which is not committed.

        The files of the given segments remain, so that each can still be committed.

        Raises
        ------
        InvalidInputError
            If no segment is given, or if segments have different columns or kinds, or cover the same fragment.
        CorruptFileError
            If a file of a segment is damaged.
        """
        from lancetable.index_metadata import Index
        from lancetable.ops.index.distributed import merge_uncommitted

        return Index.from_format(merge_uncommitted(self._table, _entries(segments)))

    def commit_existing_index_segments(
        self, index_name: str, column: str, segments: Sequence[IndexSegment | Index]
    ) -> Self:
        """Commit segments as an index, and move the dataset to the new version.

        Segments of the index whose fragments are covered by new segments are replaced; other segments remain. Fragments
        whose column was rewritten after a segment was built are removed from its coverage.

        Returns
        -------
        LanceDataset
            This dataset.

        Raises
        ------
        InvalidInputError
            If no segment is given, if segments have different columns or kinds or cover the same fragment, or if an
            existing segment would be replaced in part.
        ColumnNotFoundError
            If the column does not exist.
        RetryableCommitConflictError
            If every attempt conflicted with a concurrent commit.
        CommitStateUnknownError
            If the outcome of the commit is unknown.
        """
        from lancetable.ops.index.distributed import commit_uncommitted

        check_string("index_name", index_name)
        self._table = commit_uncommitted(self._table, index_name, column, _entries(segments))
        return self


def _is_default(name: str, value: Any) -> bool:
    """Return whether an argument for vector indexes has its default value. Arrays have no truth value."""
    default = _VECTOR_DEFAULTS.get(name)
    return value is default or (isinstance(value, (str, bool)) and value == default)


def one_column(column: Any) -> str:
    """Return the only column.

    Raises
    ------
    TypeError
        If `column` is neither a string nor a sequence of strings.
    UnsupportedFeatureError
        If there are several columns.
    """
    columns = [column] if isinstance(column, str) else column
    if not isinstance(columns, Sequence) or not all(isinstance(name, str) for name in columns):
        raise TypeError(f"column must be a string, got {type(column).__name__}")
    if len(columns) != 1:
        raise UnsupportedFeatureError("Scalar indices currently only support a single column", feature="index columns")
    return columns[0]


def uuid_or_none(text: Any) -> uuid_module.UUID | None:
    """Return a uuid, None for None.

    Raises
    ------
    TypeError
        If `text` is not a string.
    InvalidInputError
        If it is malformed.
    """
    from lancetable.index_metadata import parse_uuid

    if text is not None and not isinstance(text, str):
        raise TypeError(f"index_uuid must be a string, got {type(text).__name__}")
    return None if text is None else parse_uuid(text)


def _entries(segments: Any) -> list[Any]:
    """Return the entries of segments.

    Raises
    ------
    TypeError
        If `segments` contains other objects.
    """
    from lancetable.index_metadata import Index

    if not isinstance(segments, Iterable) or not all(isinstance(segment, Index) for segment in segments):
        raise TypeError("segments must be a list of the Index objects that create_index_uncommitted returns")
    return [segment.to_format() for segment in segments]
