"""Search of the segments of a vector index: from queries to the rows of the nearest codes.

    query ─> partitions by distance ─> first probes ─> k nearest of each ─┬─> k nearest of all
                                                                          └─ too few: more partitions

The partitions of a batch of queries are searched one after the other for all of their queries, so that a partition is
in the cache of the processor. A row is returned for each of its vectors that is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.file.kernels.vector_distances import Scan, distances_of_scans, least, least_of_scans
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
MapFunction = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]

# If fewer rows of a partition may be returned, all of them are compared instead of searching its graph.
_MIN_GRAPH_SHARE = 0.1
# If more rows of a partition may be returned, the distances of all of them are computed at once.
_MIN_SELECTED_SHARE = 0.3
# Number of queries that are compared with a partition at once.
_SCANNED_QUERIES = 32


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of a search.

    `k` rows are wanted for each query, and `candidates` are returned, which is k or a multiple of it. `ef` is the
    number of vectors that a graph search keeps, None by default. Distances are in [lower, upper).
    """

    k: int
    candidates: int
    probes: ProbeOptions
    ef: int | None = None
    lower: float = -np.inf
    upper: float = np.inf


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
    """A query in a segment: its partitions, nearest first, and how many of them are probed first and at most."""

    query: Vectors
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
    map_parts
        Function that maps another one over the partitions of the first probes, possibly in parallel.
    """

    def __init__(
        self,
        segments: Sequence[IndexSegment],
        queries: Vectors,
        options: SearchOptions,
        allowed: AllowedRows | None,
        map_parts: MapFunction = map,
    ) -> None:
        self._segments = segments
        self._indexes = [open_vector_index(segment) for segment in segments]
        self._queries, self._options, self._allowed, self._map = queries, options, allowed, map_parts
        self._found = [_Found(float(options.upper)) for _ in queries]
        self.counts = SearchCounts()

    def run(self) -> IndexedRows:
        """Return the nearest rows of each query, ordered by query, distance and row id."""
        ranked = [self._rank(index) for index in self._indexes]
        for number, queries in enumerate(ranked):
            self._search_first(number, queries)
        wanted = self._options.k if self._allowed is None else min(self._options.k, self._allowed.count)
        for query, found in enumerate(self._found):
            if found.count < wanted:
                self._search_more(query, [queries[query] for queries in ranked], wanted)
        return self._result()

    def _rank(self, index: OpenVectorIndex) -> list[_Ranked]:
        queries = index.as_searched(self._queries)
        distances = index.partition_distances(queries)
        self.counts.partitions_ranked += distances.size
        probes, k, ranked = self._options.probes, self._options.k, []
        for query, row in zip(queries, distances):
            most = probes.most(len(row))
            if probes.is_fixed and most < len(row) // 4:
                order = np.argpartition(row, most)[:most]
                order = order[np.argsort(row[order], kind="stable")]
            else:
                order = np.argsort(row, kind="stable")
            ranked.append(_Ranked(query, order, probes.first(index.metric, row[order], k), most))
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
            self._search_partition(number, item[0], [(query, queries[query].query) for query in item[1]])

        for _ in self._map(search, work):
            pass

    def _search_more(self, query: int, segments: Sequence[_Ranked], wanted: int) -> None:
        found = self._found[query]
        for step in range(max((ranked.most - ranked.first for ranked in segments), default=0)):
            for number, ranked in enumerate(segments):
                if ranked.first + step < ranked.most:
                    self._search_partition(number, int(ranked.order[ranked.first + step]), [(query, ranked.query)])
            if found.count >= wanted:
                return

    def _search_partition(self, number: int, partition: int, queries: Sequence[tuple[int, Vectors]]) -> None:
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
            scans = []
            for _, vector in part:
                prepared = index.quantizer.prepare(index.residual(vector, partition))
                scans.append(index.quantizer.scan(prepared, content.codes))
            limits = [self._found[query].limit for query, _ in part]
            for (query, _), (at, distances) in zip(part, _nearest(content, scans, positions, options, limits)):
                if len(at):
                    self._found[query].add(distances, row_ids[at], addresses[at], options.candidates)

    def _result(self) -> IndexedRows:
        parts = []
        for query, found in enumerate(self._found):
            if found.parts:
                distances, row_ids, addresses = (np.concatenate(column) for column in zip(*found.parts))
                order = np.lexsort((row_ids, distances))[: self._options.candidates]
                numbers = np.full(len(order), query, np.int32)
                parts.append((numbers, distances[order], row_ids[order], addresses[order]))
        if len(parts) == 1:
            return IndexedRows(*parts[0])
        empty = (np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.uint64), np.empty(0, np.uint64))
        return IndexedRows(*(np.concatenate(column) for column in zip(empty, *parts)))


def _nearest(
    partition: Partition,
    scans: Sequence[Scan],
    positions: Ints | None,
    options: SearchOptions,
    limits: Sequence[float],
) -> Iterator[tuple[Ints, npt.NDArray[np.float32]]]:
    """Yield for each query the nearest of some rows of a partition, as indexes of `positions`, and their distances."""
    graph, num_rows = partition.graph, scans[0].num_rows
    if graph is not None and (positions is None or len(positions) >= _MIN_GRAPH_SHARE * num_rows):
        for scan in scans:
            yield _nearest_in_graph(graph, scan, positions, options)
        return
    if positions is None:
        yield from least_of_scans(scans, options.candidates, options.lower, limits)
        return
    if len(positions) >= _MIN_SELECTED_SHARE * num_rows:
        computed = [distances[positions] for distances in distances_of_scans(scans)]
    else:
        computed = [scan.distances(positions) for scan in scans]
    for distances, limit in zip(computed, limits):
        yield least(distances, options.candidates, options.lower, limit)


def _nearest_in_graph(
    graph: Graph, scan: Scan, positions: Ints | None, options: SearchOptions
) -> tuple[Ints, npt.NDArray[np.float32]]:
    allowed = None
    if positions is not None:
        allowed = np.zeros(scan.num_rows, np.bool_)
        allowed[positions] = True
    k = options.candidates
    ef = max(k, k + k // 2 if options.ef is None else options.ef)
    found, distances = graph.search(scan, ef, allowed, options.lower, options.upper)
    if len(found) > k:
        order = np.argpartition(distances, k - 1)[:k]
        found, distances = found[order], distances[order]
    return (found if positions is None else np.searchsorted(positions, found)), distances
