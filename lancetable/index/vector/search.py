"""Search of the segments of a vector index: from queries to the rows of the nearest codes.

    query ─> partitions by distance ─> first probes ─> k nearest of each ─┬─> k nearest of all
                                                                          └─ too few: more partitions

The partitions of a batch of queries are searched one after the other for all of their queries, so that a partition is
in the cache of the processor. A row is returned for each of its vectors that is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.file.kernels.vector_distances import Scan
from lancetable.format.row_address import U64Array
from lancetable.index.distances import Vectors
from lancetable.index.search_statistics import note_comparisons, note_opened
from lancetable.index.segments import IndexSegment
from lancetable.index.vector.hnsw_graph import Graph
from lancetable.index.vector.open_index import OpenVectorIndex, Partition
from lancetable.index.vector.probes import ProbeOptions
from lancetable.index.vector.segment_rows import AllowedRows, rows_of_partition

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
MapFunction = Callable[[Callable[[Any], None], Sequence[Any], int], None]

# If fewer rows of a partition may be returned, all of them are compared instead of searching its graph.
_MIN_GRAPH_SHARE = 0.1
# Number of queries that are compared with a partition at once.
_SCANNED_QUERIES = 32


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of a search.

    `k` rows are wanted for each query, and `candidates` are returned, which is k or a multiple of it. `ef` is the
    number of vectors that a graph search keeps, None by default. Distances are in [lower, upper). For multivectors,
    `is_multi`, `candidates` of each graph are returned, as in pylance: the score of a row with a vector that is not
    among them is an estimate.
    """

    k: int
    candidates: int
    probes: ProbeOptions
    ef: int | None = None
    lower: float = -np.inf
    upper: float = np.inf
    is_multi: bool = False


class IndexedRows(NamedTuple):
    """Rows that were found: number of the query, distance, row id and address of each."""

    queries: npt.NDArray[np.int32]
    distances: npt.NDArray[np.float32]
    row_ids: U64Array
    addresses: U64Array


class SearchCounts:
    """Counts of a search, for descriptions."""

    def __init__(self) -> None:
        self.partitions_ranked = self.partitions_searched = self.comparisons = 0


def open_vector_index(segment: IndexSegment) -> OpenVectorIndex:
    """Return the opened segment; cached.

    Raises CorruptFileError if it is damaged, and UnsupportedFeatureError if its type cannot be searched.
    """
    files = segment.files
    cache, key = files.version.cache, ("vector index", files.version.store.key(files.directory))
    index: OpenVectorIndex | None = cache.get(key)
    note_opened(was_cached=index is not None)
    if index is None:
        index = OpenVectorIndex(files)
        cache.put(key, index, index.memory_bytes)
    return index


@dataclass(slots=True)
class _Ranked:
    """Partitions of a segment for a query, nearest first, and how many of them are probed first and at most."""

    order: Ints
    first: int
    most: int


@dataclass(slots=True)
class _Found:
    """Rows found for a query. `limit` is a distance that at least k rows do not exceed."""

    limit: float
    parts: list[tuple[npt.NDArray[np.float32], U64Array, U64Array]] = field(default_factory=list)

    def add(self, distances: npt.NDArray[np.float32], row_ids: U64Array, addresses: U64Array, candidates: int) -> None:
        self.parts.append((distances, row_ids, addresses))
        if len(distances) == candidates:
            self.limit = min(self.limit, float(np.nextafter(distances.max(), np.float32(np.inf))))

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(len(distances) for distances, _, _ in self.parts)


class IndexSearch:
    """Search of the segments of one index.

    Parameters
    ----------
    segments
        The segments.
    queries
        Query vectors (queries, dim) in the type of the column.
    options
        Options.
    allowed
        Rows that may be returned; None for all live rows of the covered fragments.
    for_each
        Function that calls another one for each partition of the first probes, possibly in parallel. It also gets the
        number of bytes of codes that are compared, as a measure of the work.
    """

    def __init__(
        self,
        segments: Sequence[IndexSegment],
        queries: Vectors,
        options: SearchOptions,
        allowed: AllowedRows | None,
        for_each: MapFunction,
    ) -> None:
        self._segments = segments
        self._indexes = [open_vector_index(segment) for segment in segments]
        self._queries = [index.as_searched(queries) for index in self._indexes]
        self._prepared = [_prepared(index, queries) for index, queries in zip(self._indexes, self._queries)]
        self._options, self._allowed, self._for_each = options, allowed, for_each
        self._found = [_Found(float(options.upper)) for _ in queries]
        self.counts = SearchCounts()

    def run(self) -> IndexedRows:
        """Return the nearest rows of each query, ordered by query, distance and row id."""
        ranked = [self._rank(index, queries) for index, queries in zip(self._indexes, self._queries)]
        for number, queries in enumerate(ranked):
            self._search_first(number, queries)
        wanted = self._options.k if self._allowed is None else min(self._options.k, self._allowed.count)
        for query, found in enumerate(self._found):
            if found.count < wanted:
                self._search_more(query, [queries[query] for queries in ranked], wanted)
        return self._result()

    def _rank(self, index: OpenVectorIndex, queries: Vectors) -> list[_Ranked]:
        distances = index.partition_distances(queries)
        self.counts.partitions_ranked += distances.size
        probes, k, ranked = self._options.probes, self._options.k, []
        for row in distances:
            most = probes.most(len(row))
            if probes.is_fixed and most < len(row) // 4:
                order = np.argpartition(row, most)[:most]
                order = order[np.argsort(row[order], kind="stable")]
            else:
                order = np.argsort(row, kind="stable")
            ranked.append(_Ranked(order, probes.first(index.metric, row[order], k), most))
        return ranked

    def _search_first(self, number: int, queries: Sequence[_Ranked]) -> None:
        if len(queries) == 1:
            work = [(int(partition), [0]) for partition in queries[0].order[: queries[0].first]]
        else:
            probed: dict[int, list[int]] = {}
            for query, ranked in enumerate(queries):
                for partition in ranked.order[: ranked.first].tolist():
                    probed.setdefault(partition, []).append(query)
            work = sorted(probed.items())

        def search(item: tuple[int, list[int]]) -> None:
            self._search_partition(number, *item)

        index = self._indexes[number]
        compared = sum(int(index.vectors.lengths[partition]) * len(each) for partition, each in work)
        self._for_each(search, work, compared * index.quantizer.code_bytes)

    def _search_more(self, query: int, segments: Sequence[_Ranked], wanted: int) -> None:
        found = self._found[query]
        for step in range(max((ranked.most - ranked.first for ranked in segments), default=0)):
            for number, ranked in enumerate(segments):
                if ranked.first + step < ranked.most:
                    self._search_partition(number, int(ranked.order[ranked.first + step]), [query])
            if found.count >= wanted:
                return

    def _search_partition(self, number: int, partition: int, queries: Sequence[int]) -> None:
        segment, index, options = self._segments[number], self._indexes[number], self._options
        if not index.vectors.lengths[partition]:
            return
        content = index.partition(partition)
        rows = rows_of_partition(segment, index, partition, content)
        positions, addresses = rows
        if self._allowed is not None:
            mask = self._allowed.contains(addresses)
            if not mask.all():
                positions = np.flatnonzero(mask) if positions is None else positions[mask]
                addresses = addresses[mask]
        if not len(addresses):
            return
        row_ids = addresses
        if segment.stores_row_ids:
            row_ids = content.row_ids if positions is None else content.row_ids[positions]
        self.counts.partitions_searched += len(queries)
        note_comparisons(len(addresses) * len(queries))
        self.counts.comparisons += len(addresses) * len(queries)
        for start in range(0, len(queries), _SCANNED_QUERIES):
            part = queries[start : start + _SCANNED_QUERIES]
            prepared = self._prepared[number]
            if prepared is None:
                prepared = index.quantizer.prepare(index.residuals(self._queries[number][part], partition))
            elif len(part) < len(prepared):
                prepared = prepared[part]
            scan = index.quantizer.scan(prepared, content.codes)
            limits = [self._found[query].limit for query in part]
            for query, (at, distances) in zip(part, _nearest(content, scan, positions, options, limits)):
                if len(at):
                    ids = row_ids[at]
                    places = ids if row_ids is addresses else addresses[at]
                    self._found[query].add(distances, ids, places, options.candidates)

    def _result(self) -> IndexedRows:
        parts = []
        is_cut = not (self._options.is_multi and any(index.has_graphs for index in self._indexes))
        for query, found in enumerate(self._found):
            if found.parts:
                distances, row_ids, addresses = (np.concatenate(column) for column in zip(*found.parts))
                order = np.lexsort((row_ids, distances))[: self._options.candidates if is_cut else None]
                numbers = np.full(len(order), query, np.int32)
                parts.append((numbers, distances[order], row_ids[order], addresses[order]))
        if len(parts) == 1:
            return IndexedRows(*parts[0])
        empty = (np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.uint64), np.empty(0, np.uint64))
        return IndexedRows(*(np.concatenate(column) for column in zip(empty, *parts)))


def _prepared(index: OpenVectorIndex, queries: Vectors) -> npt.NDArray[Any] | None:
    """Return queries in the form for scans; None if it depends on the partition, or there are many of them."""
    if index.quantizer.uses_residuals or len(queries) > _SCANNED_QUERIES:
        return None
    return index.quantizer.prepare(queries)


def _nearest(
    partition: Partition, scan: Scan, positions: Ints | None, options: SearchOptions, limits: Sequence[float]
) -> Iterable[tuple[Ints, npt.NDArray[np.float32]]]:
    """Return for each query the nearest of some rows of a partition, as indexes of `positions`, and their distances."""
    graph = partition.graph
    if graph is None or (positions is not None and len(positions) < _MIN_GRAPH_SHARE * scan.num_rows):
        return scan.nearest(options.candidates, options.lower, limits, positions)
    return (_nearest_in_graph(graph, scan, query, positions, options) for query in range(len(limits)))


def _nearest_in_graph(
    graph: Graph, scan: Scan, query: int, positions: Ints | None, options: SearchOptions
) -> tuple[Ints, npt.NDArray[np.float32]]:
    allowed = None
    if positions is not None:
        allowed = np.zeros(scan.num_rows, np.bool_)
        allowed[positions] = True
    k = options.candidates
    ef = max(k, k + k // 2 if options.ef is None else options.ef)
    found, distances = graph.search(scan, query, ef, allowed, options.lower, options.upper)
    if len(found) > k:
        order = np.argpartition(distances, k - 1)[:k]
        found, distances = found[order], distances[order]
    return (found if positions is None else np.searchsorted(positions, found)), distances
