"""Planning of nearest-neighbour searches: a scan of the rows to search, and a scan of the rows that are found.

ScanOptions(nearest, prefilter, filter, columns ...)  --plan_nearest-->  NearestPlan
    indexed   the segments of a vector index that are searched, and a scan of the rows that they may return
    search    a scan of the vectors of other rows that pass the prefilter, which scalar indexes may answer
    result    a scan of the rows that were found: filter, order, limit and columns, among them `_distance`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from lancetable.errors import InvalidInputError
from lancetable.format.field_paths import format_path
from lancetable.index.distances import Metric
from lancetable.index.vector_segments import VectorIndex, vector_index
from lancetable.ops.read.cached_projection import projection_of
from lancetable.ops.read.nearest.query import NearestQuery, VectorColumn, vector_column
from lancetable.ops.read.scan_plan import ScanOptions, ScanPlan, plan_scan

if TYPE_CHECKING:
    from lancetable.index.segments import IndexSegment
    from lancetable.ops.read.projection import Projection
    from lancetable.table.version import TableVersion

DISTANCE, QUERY_INDEX = "_distance", "query_index"
COMPUTED = pa.schema([pa.field(QUERY_INDEX, pa.int32(), nullable=False), pa.field(DISTANCE, pa.float32())])
"""Columns that a search adds: the number of the query, if there are several, and the distance."""

_DEFAULT_K = 10
# Multiple of k of the candidates of each vector of a query for multivectors.
_MULTIVECTOR_FACTOR = 10


@dataclass(frozen=True, slots=True)
class IndexedPart:
    """The part of a search that uses an index.

    Attributes
    ----------
    segments
        The segments that are searched.
    allowed
        A scan of the addresses of the rows that may be returned; None for all live rows of the covered fragments.
    candidates
        Number of rows that the index returns for each query vector: k, or a multiple of it.
    vectors
        Projection of the vectors of these rows, if their true distances are computed: to refine them, or to unite them
        with the rows of fragments that the index does not cover. Otherwise None.
    """

    segments: tuple[IndexSegment, ...]
    allowed: ScanPlan | None
    candidates: int
    vectors: Projection | None


@dataclass(frozen=True, slots=True)
class NearestPlan:
    """A search that is ready to run.

    `search` reads the vectors, row ids and addresses of the rows that are searched without an index, and `result` is
    the scan of the rows that are found. `index` is the vector index of the column, if the search may use it, and
    `indexed` describes its use; None if no segment can be searched. `is_empty` means that a fast search has no index.
    """

    query: NearestQuery
    column: VectorColumn
    metric: Metric
    k: int
    search: ScanPlan
    result: ScanPlan
    index: VectorIndex | None = None
    indexed: IndexedPart | None = None
    is_empty: bool = False

    @property
    def output_schema(self) -> pa.Schema:
        """The schema of the result."""
        return self.result.output_schema


def plan_nearest(version: TableVersion, options: ScanOptions) -> NearestPlan:
    """Check the options of a scan with `nearest`, and return the plan.

    Raises the errors of `plan_scan`, InvalidInputError for options that cannot be combined, and TypeError if the column
    does not contain vectors.
    """
    query = options.nearest
    assert query is not None
    column = vector_column(version.schema, query.column)
    _check(version, options, query, column)
    ids = _fragment_ids(version, options)
    index = _index(version, options, query, column, ids)
    metric = query.metric or (column.default_metric if index is None else index.metric)
    column.check_metric(metric)
    k = query.k or max(1, _DEFAULT_K if options.limit is None else options.limit)
    searched = ScanOptions(
        columns=[query.column],
        filter=options.filter if options.prefilter else query.among,
        fragments=_searched_fragments(options, index, ids),
        row_ranges=options.row_ranges,
        with_row_id=True,
        with_row_address=True,
        late_materialization=options.late_materialization,
        use_stats=options.use_stats,
        use_scalar_index=options.use_scalar_index,
        scan_stats_callback=options.scan_stats_callback,
    )
    found = replace(
        options,
        columns=_columns(version, options, query),
        filter=None if options.prefilter else options.filter,
        fragments=None,
        row_ranges=None,
        late_materialization=None,
        use_scalar_index=False,  # The filter is evaluated on the rows that are found.
        fast_search=None,
        index_segments=None,
        scan_stats_callback=None,
    )
    only_indexed = bool(options.fast_search and options.prefilter)
    computed = COMPUTED if query.is_batch else COMPUTED.remove(0)
    return NearestPlan(
        query=query,
        column=column,
        metric=metric,
        k=k,
        search=plan_scan(version, searched),
        result=plan_scan(version, found, computed),
        index=index,
        indexed=_indexed_part(version, searched, column, query, index, ids, k, only_indexed=only_indexed),
        is_empty=bool(options.fast_search) and index is None,
    )


def _searched_fragments(options: ScanOptions, index: VectorIndex | None, ids: Sequence[int]) -> Sequence[int] | None:
    """Return the fragments that are searched without an index; None for all."""
    if options.fast_search:
        ids = [] if index is None else [fragment_id for fragment_id in ids if fragment_id in index.covered]
    elif index is None or not index.segments:
        return options.fragments
    if index is None:
        return ids
    if options.index_segments is not None and options.fragments is None:
        ids = [fragment_id for fragment_id in ids if fragment_id in index.covered]
    indexed = index.fragments
    return [fragment_id for fragment_id in ids if fragment_id not in indexed]


def _indexed_part(
    version: TableVersion,
    searched: ScanOptions,
    column: VectorColumn,
    query: NearestQuery,
    index: VectorIndex | None,
    ids: Sequence[int],
    k: int,
    *,
    only_indexed: bool,
) -> IndexedPart | None:
    """Return the use of an index, None if it has no segment to search. `searched` is the scan of the other rows.

    With `only_indexed`, rows that the scalar indexes of the filter do not cover are left out too.
    """
    wanted = set(ids)
    segments = () if index is None else tuple(each for each in index.segments if each.fragments & wanted)
    if not segments:
        return None
    covered = frozenset[int]().union(*(segment.fragments for segment in segments))
    allowed = None
    if searched.filter is not None or searched.row_ranges or not covered <= wanted:
        restricted = [fragment_id for fragment_id in ids if fragment_id in covered]
        options = replace(searched, columns=[], fragments=restricted, with_row_id=False, scan_stats_callback=None)
        allowed = plan_scan(version, replace(options, fast_search=only_indexed))
    reranks = query.refine_factor is not None or searched.fragments is None or len(searched.fragments) > 0
    factor = _MULTIVECTOR_FACTOR if column.is_multi else query.refine_factor or 1
    vectors = projection_of(version, [query.column]) if reranks else None
    return IndexedPart(segments, allowed, k * factor, vectors)


def _check(version: TableVersion, options: ScanOptions, query: NearestQuery, column: VectorColumn) -> None:
    if options.fragments is not None and not options.prefilter:
        raise InvalidInputError(
            "This operation is not supported for fragment scan: pass prefilter=True to search only these fragments"
        )
    if options.include_deleted_rows and options.with_row_id:
        raise InvalidInputError("Cannot include deleted rows in a nearest neighbor search")
    if query.vectors.shape[1] != column.dim or query.vectors.dtype != column.dtype:
        raise InvalidInputError(
            f"column {column.path!r} of version {version.version} contains vectors of {column.dim} {column.dtype}, "
            f"but the query was created for {query.vectors.shape[1]} {query.vectors.dtype}"
        )


def _fragment_ids(version: TableVersion, options: ScanOptions) -> Sequence[int]:
    if options.fragments is not None:
        return options.fragments
    return [fragment.id for fragment in version.manifest.fragments]


def _index(
    version: TableVersion,
    options: ScanOptions,
    query: NearestQuery,
    column: VectorColumn,
    fragment_ids: Sequence[int],
) -> VectorIndex | None:
    """Return the vector index of the column, if it covers a searched fragment and has the requested metric."""
    if not query.use_index or version.manifest.index_section is None:
        return None
    index = vector_index(version, column.field.id, set(fragment_ids), options.index_segments)
    return index if index is None or query.metric in (None, index.metric) else None


def _columns(version: TableVersion, options: ScanOptions, query: NearestQuery) -> Sequence[str] | Mapping[str, str]:
    """Return the columns of the result: the number of the query first, and the distance after the requested columns."""
    columns = options.columns
    if columns is None:
        columns = [format_path([name]) for name in version.schema.names]
    first = [QUERY_INDEX] if query.is_batch else []
    last = [] if options.disable_scoring_autoprojection or DISTANCE in columns else [DISTANCE]
    if isinstance(columns, Mapping):
        return {**dict.fromkeys(first, QUERY_INDEX), **columns, **dict.fromkeys(last, DISTANCE)}
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        return columns  # refused when the result is planned
    return [*first, *(name for name in columns if name not in first), *last]
