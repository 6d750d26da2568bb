"""Graphs of the partitions of an HNSW index: the neighbours of each vector, in several levels.

    level 1       3 ───── 8             few vectors: a greedy search from the entry point finds a start for level 0
    level 0   0 ─ 3 ─ 5 ─ 8 ─ 9         all vectors: a search that keeps the `ef` nearest ones

`index.idx` has one row for each vector and level, level by level in each partition: `__vector_id`, which is the
position of the vector in the partition, and `__neighbors`. The entry of the partition in `lance:hnsw` is a JSON text
with the entry point and the first row of each level; it is empty if the partition has no vectors.
"""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import native_vectors as native
from lancetable.file.kernels.vector_distances import Scan

if TYPE_CHECKING:
    from lancetable.index.index_files import IndexFileReader

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

METADATA_KEY = "lance:hnsw"
VECTOR_ID, NEIGHBORS = "__vector_id", "__neighbors"
_MAX_LEVELS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Vectors of one level, ascending, and their neighbours: those of vector i are `neighbors[starts[i]:starts[i+1]]`.

    `vectors` is None for level 0, which has all vectors.
    """

    vectors: npt.NDArray[np.uint32] | None
    starts: Ints
    neighbors: npt.NDArray[np.uint32]

    def neighbors_of(self, vector: int) -> npt.NDArray[np.uint32]:
        """Return the neighbours of a vector; none if it is not in this level."""
        at = vector
        if self.vectors is not None:
            at = int(self.vectors.searchsorted(vector))
            if at == len(self.vectors) or self.vectors[at] != vector:
                return self.neighbors[:0]
        return self.neighbors[self.starts[at] : self.starts[at + 1]]

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory."""
        return self.starts.nbytes + self.neighbors.nbytes + (0 if self.vectors is None else self.vectors.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Levels of a graph, the lowest first, and the vector at which a search starts."""

    levels: tuple[Level, ...]
    entry: int

    def search(
        self, scan: Scan, query: int, ef: int, allowed: npt.NDArray[np.bool_] | None, lower: float, upper: float
    ) -> tuple[Ints, Floats]:
        """Return up to `ef` vectors near one of the queries, in any order, and their distances in [lower, upper).

        `allowed` marks the vectors that may be returned; all by default.
        """
        start = self.entry
        for level in reversed(self.levels[1:]):
            start = _nearest(level, scan, query, start)
        lowest = self.levels[0]
        if native is None:
            return _nearby(lowest, scan, query, start, ef, allowed, lower, upper)
        mask = None if allowed is None else allowed.view(np.uint8)
        return native.search_graph(  # type: ignore[no-any-return]  # compiled
            *scan.native_arguments(query), lowest.starts, lowest.neighbors, start, mask, lower, upper, ef
        )

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory."""
        return 256 + sum(level.memory_bytes for level in self.levels)


def _nearest(level: Level, scan: Scan, query: int, start: int) -> int:
    """Return the vector to which steps to the nearest neighbour lead."""
    current, distance = start, float(scan.distances(query, np.array([start]))[0])
    while True:
        neighbors = level.neighbors_of(current).astype(np.int64)
        if not len(neighbors):
            return current
        distances = scan.distances(query, neighbors)
        best = int(distances.argmin())
        if not distances[best] < distance:
            return current
        current, distance = int(neighbors[best]), float(distances[best])


def _nearby(
    level: Level,
    scan: Scan,
    query: int,
    start: int,
    ef: int,
    allowed: npt.NDArray[np.bool_] | None,
    lower: float,
    upper: float,
) -> tuple[Ints, Floats]:
    visited = np.zeros(scan.num_rows, np.bool_)
    visited[start] = True
    todo = [(float(scan.distances(query, np.array([start]))[0]), start)]
    best: list[tuple[float, int]] = []  # negated, so that the farthest one is first

    def note(distance: float, vector: int) -> None:
        if (allowed is None or allowed[vector]) and lower <= distance < upper:
            heapq.heappush(best, (-distance, -vector))
            if len(best) > ef:
                heapq.heappop(best)

    note(*todo[0])
    while todo:
        distance, vector = heapq.heappop(todo)
        if len(best) == ef and distance > -best[0][0]:
            break
        neighbors = level.neighbors_of(vector).astype(np.int64)
        neighbors = np.unique(neighbors[~visited[neighbors]])
        visited[neighbors] = True
        for near, other in zip(scan.distances(query, neighbors).tolist(), neighbors.tolist()):
            if len(best) < ef or near <= -best[0][0]:
                note(near, other)
                heapq.heappush(todo, (near, other))
    positions = np.array([-vector for _, vector in best], np.int64)
    return positions, np.array([-distance for distance, _ in best], np.float32)


# --- reading ---------------------------------------------------------------------------------------------------------


def parse_texts(file: IndexFileReader, num_partitions: int) -> tuple[str, ...]:
    """Return the JSON text of each partition. Raises CorruptFileError if there is another number of them."""
    try:
        texts = json.loads(file.text(METADATA_KEY) or "")
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"malformed entry {METADATA_KEY!r} of a vector index", path=file.path) from error
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise CorruptFileError(f"malformed entry {METADATA_KEY!r} of a vector index", path=file.path)
    if len(texts) != num_partitions:
        raise CorruptFileError("wrong number of graphs of a vector index", num_partitions, len(texts), path=file.path)
    return tuple(texts)


def read_graph(file: IndexFileReader, rows: range, text: str, num_vectors: int) -> Graph | None:
    """Read the graph of a partition with `num_vectors` vectors; None if it is empty.

    Raises CorruptFileError if the graph is damaged.
    """
    if not num_vectors and not rows:
        return None
    entry, bounds = _parse_text(text, len(rows), file.path)
    ids, lists = file.read_arrays([VECTOR_ID, NEIGHBORS], rows)
    if ids.type != pa.uint32() or not pa.types.is_list(lists.type) or lists.type.value_type != pa.uint32():
        raise CorruptFileError("wrong types of the columns of a graph", found=(ids.type, lists.type), path=file.path)
    if ids.null_count or lists.null_count or lists.flatten().null_count:
        raise CorruptFileError("a graph contains nulls", path=file.path)
    vectors, ends = ids.to_numpy(), lists.offsets.to_numpy().astype(np.int64)
    neighbors = lists.flatten().to_numpy()
    if entry >= num_vectors or (len(neighbors) and int(neighbors.max()) >= num_vectors):
        raise CorruptFileError(
            "a graph contains a vector that does not exist", f"less than {num_vectors}", path=file.path
        )
    levels = []
    ends = ends - ends[0]
    for number, (start, end) in enumerate(pairwise(bounds)):
        here, starts = vectors[start:end], ends[start : end + 1]
        edges = neighbors[starts[0] : starts[-1]]
        starts = starts - starts[0]
        if len(here) > 1 and (here[1:] <= here[:-1]).any():
            here, starts, edges = _sorted(here, starts, edges, file.path)
        if number == 0:
            if len(here) != num_vectors or (len(here) and int(here[-1]) != num_vectors - 1):
                what = "the lowest level of a graph does not have all vectors"
                raise CorruptFileError(what, num_vectors, len(here), path=file.path)
            levels.append(Level(None, np.ascontiguousarray(starts), np.ascontiguousarray(edges)))
        elif len(here):
            levels.append(Level(here, np.ascontiguousarray(starts), np.ascontiguousarray(edges)))
    return Graph(tuple(levels), entry)


def _sorted(
    vectors: npt.NDArray[np.uint32], starts: Ints, neighbors: npt.NDArray[np.uint32], path: str
) -> tuple[npt.NDArray[np.uint32], Ints, npt.NDArray[np.uint32]]:
    """Return a level in ascending order of its vectors. Raises CorruptFileError if one is repeated."""
    order = np.argsort(vectors, kind="stable")
    vectors = vectors[order]
    if (vectors[1:] == vectors[:-1]).any():
        raise CorruptFileError("a graph contains a vector twice", path=path)
    parts = [neighbors[starts[row] : starts[row + 1]] for row in order.tolist()]
    sizes = np.diff(starts)[order]
    return vectors, np.concatenate([[0], np.cumsum(sizes)]), np.concatenate(parts)


def _parse_text(text: str, num_rows: int, path: str) -> tuple[int, list[int]]:
    """Return the entry point and the bounds of the levels. Raises CorruptFileError if they are damaged."""
    try:
        settings: Any = json.loads(text)
        entry, bounds = settings["entry_point"], settings["level_offsets"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFileError("malformed settings of a graph", found=text[:100], path=path) from error
    numbers = [entry, *bounds] if isinstance(bounds, list) else [None]
    if not all(type(number) is int and number >= 0 for number in numbers) or not 2 <= len(bounds) <= _MAX_LEVELS:
        raise CorruptFileError("malformed settings of a graph", found=text[:100], path=path)
    if bounds[0] != 0 or bounds[-1] != num_rows or sorted(bounds) != bounds:
        raise CorruptFileError("wrong levels of a graph", f"0 to {num_rows}", bounds, path=path)
    return entry, bounds
