"""Building of graphs (HNSW): the vectors of a partition are linked to near ones, in several levels.

A vector is on level l or above with probability 1 / m^l. It is added by searching its neighbours from the entry point
downwards. Of up to `ef_construction` candidates, those are linked that are nearer to the vector than to the neighbours
linked before, then the nearest others. Vectors with too many links keep a selection made in the same way.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file import thread_pool
from lancetable.file.kernels import native_vector_build as native
from lancetable.file.kernels.varbin import offsets_of_sizes

VECTOR_ID, NEIGHBORS, DISTANCE = "__vector_id", "__neighbors", "_distance"
SCHEMA: Final = pa.schema(
    [
        pa.field(VECTOR_ID, pa.uint32()),
        pa.field(NEIGHBORS, pa.list_(pa.uint32())),
        pa.field(DISTANCE, pa.list_(pa.float32())),
    ]
)
_PREFETCH_DISTANCE: Final = 2  # an option of pylance for searches
_BATCH_SHARE: Final = 32  # least number of vectors of a graph for each one of the next batch
_MAX_BATCH: Final = 512
_MIN_SHARED: Final = 32  # least number of vectors of a batch that is divided among threads
_LINK: Final = np.dtype([("distance", np.float32), ("node", np.uint32)])

Links = npt.NDArray[Any]
Counts = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class GraphSettings:
    """Parameters of graphs: greatest number of levels, links of a vector, and candidates for links."""

    max_level: int = 7
    m: int = 20
    ef_construction: int = 150


class PartitionGraph(NamedTuple):
    """Graph of a partition: rows for `index.idx`, and its entry in `lance:hnsw`."""

    rows: pa.RecordBatch
    text: str


def build_graph(vectors: npt.NDArray[np.float32], settings: GraphSettings, *, seed: int, dot: bool) -> PartitionGraph:
    """Build the graph of some vectors (n, dim); distances are squared, or 1 - product with `dot`.

    The graph of no vectors is empty, and so is its text.
    """
    if not len(vectors):
        return PartitionGraph(_empty(), "")
    random = np.random.default_rng(seed)
    levels = np.minimum(random.geometric(1 - 1 / max(2, settings.m), len(vectors)) - 1, settings.max_level - 1)
    levels = levels.astype(np.uint8)
    entry = int(levels.argmax())
    upper = offsets_of_sizes(levels.astype(np.int64))
    arguments = (levels, upper[:-1].copy(), int(upper[-1]), entry, settings.m, settings.ef_construction, dot)
    if native is not None:
        links, counts = _build_compiled(np.ascontiguousarray(vectors, np.float32), *arguments)
    else:
        links, counts = _build(vectors, *arguments)
    parts = [_rows(np.arange(len(vectors)), links[0], counts[0])]
    bounds = [0, len(vectors)]
    for level in range(1, settings.max_level):
        nodes = np.flatnonzero(levels >= level)
        at = upper[nodes] + level - 1
        parts.append(_rows(nodes, links[1][at], counts[1][at]))
        bounds.append(bounds[-1] + len(nodes))
    text = {
        "entry_point": entry,
        "params": {
            "max_level": settings.max_level,
            "m": settings.m,
            "ef_construction": settings.ef_construction,
            "prefetch_distance": _PREFETCH_DISTANCE,
        },
        "level_offsets": bounds,
    }
    return PartitionGraph(pa.concat_batches(parts), json.dumps(text, separators=(",", ":")))


def _empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], SCHEMA)


def _rows(nodes: npt.NDArray[np.int64], links: Links, counts: Counts) -> pa.RecordBatch:
    present = np.arange(links.shape[1]) < counts[:, None]
    found, offsets = links[present], pa.array(offsets_of_sizes(counts.astype(np.int64)), pa.int32())
    neighbors, distances = (np.ascontiguousarray(found[name]) for name in ("node", "distance"))
    lists = [pa.ListArray.from_arrays(offsets, pa.array(values)) for values in (neighbors, distances)]
    return pa.record_batch([pa.array(nodes.astype(np.uint32)), *lists], schema=SCHEMA)


def _build_compiled(
    vectors: npt.NDArray[np.float32], *arguments: Any
) -> tuple[tuple[Links, Links], tuple[Counts, Counts]]:
    """Build a graph on the thread pool, unless the caller is one of its threads. See GraphBuild.

    Vectors are added in batches that are small compared to the graph, because those of a batch are not linked to each
    other.
    """
    build = native.GraphBuild(vectors, *arguments)
    first = 0
    while first < len(vectors):
        last = min(len(vectors), first + max(1, min(first // _BATCH_SHARE, _MAX_BATCH)))
        parts = thread_pool.size() if last - first >= _MIN_SHARED and thread_pool.can_share() else 1
        for step in (build.find_links, build.link_back):
            if parts == 1:
                step(first, last, 0, 1)
                continue
            for _ in thread_pool.in_order(partial(_run_part, step, first, last, parts), range(parts)):
                pass  # wait for all parts, which return nothing
        first = last
    return build.links, build.counts


def _run_part(step: Callable[..., None], first: int, last: int, parts: int, part: int) -> None:
    step(first, last, part, parts)


# --- the form in NumPy -----------------------------------------------------------------------------------------------


def _build(
    vectors: npt.NDArray[np.float32], levels: Any, upper: Any, num_upper: int, entry: int, m: int, ef: int, dot: bool
) -> tuple[tuple[Links, Links], tuple[Counts, Counts]]:
    """Build a graph. See build_graph in _native_vector_build.pyx."""
    links = np.zeros((len(vectors), 2 * m), _LINK), np.zeros((num_upper + 1, m), _LINK)
    counts = np.zeros(len(vectors), np.uint32), np.zeros(num_upper + 1, np.uint32)

    def distances(node: int, others: Any) -> list[float]:
        values = vectors[others]
        if dot:
            return (1 - values @ vectors[node]).tolist()  # type: ignore[no-any-return]  # untyped
        return ((values - vectors[node]) ** 2).sum(axis=1).tolist()  # type: ignore[no-any-return]  # untyped

    def row(node: int, level: int) -> int:
        return int(upper[node]) + level - 1 if level else node

    def neighbors(node: int, level: int) -> list[tuple[float, int]]:
        at, upper_level = row(node, level), int(level > 0)
        return links[upper_level][at][: counts[upper_level][at]].tolist()  # type: ignore[no-any-return]  # untyped

    def search(node: int, start: list[tuple[float, int]], size: int, level: int) -> list[tuple[float, int]]:
        visited = {node, *(other for _, other in start)}
        todo, near = list(start), [(-distance, other) for distance, other in start]
        heapq.heapify(todo)
        heapq.heapify(near)
        while todo:
            distance, current = heapq.heappop(todo)
            if len(near) >= size and distance > -near[0][0]:
                break
            new = [other for _, other in neighbors(current, level) if other not in visited]
            visited.update(new)
            for found, other in zip(distances(node, new) if new else (), new):
                if len(near) < size or found < -near[0][0]:
                    heapq.heappush(todo, (found, other))
                    heapq.heappush(near, (-found, other))
                    if len(near) > size:
                        heapq.heappop(near)
        return sorted((-distance, other) for distance, other in near)

    def choose(candidates: list[tuple[float, int]], limit: int) -> list[tuple[float, int]]:
        chosen: list[tuple[float, int]] = []
        rejected = []
        for distance, other in candidates:
            if len(chosen) == limit:
                break
            if not chosen or min(distances(other, [each for _, each in chosen])) >= distance:
                chosen.append((distance, other))
            else:
                rejected.append((distance, other))
        return [*chosen, *rejected][:limit]

    def store(node: int, level: int, chosen: list[tuple[float, int]]) -> None:
        at, upper_level = row(node, level), int(level > 0)
        links[upper_level][at][: len(chosen)] = np.array(chosen, _LINK)
        counts[upper_level][at] = len(chosen)

    for node in range(len(vectors)):
        if node == entry:
            continue
        near = [(distances(node, [entry])[0], entry)]
        for level in range(int(levels[entry]), int(levels[node]), -1):
            near = search(node, near, 1, level)
        for level in range(int(levels[node]), -1, -1):
            near = search(node, near, ef, level)
            chosen = choose(near, m)
            store(node, level, chosen)
            for distance, other in chosen:
                linked = [*neighbors(other, level), (distance, node)]
                limit = m if level else 2 * m
                store(other, level, linked if len(linked) <= limit else choose(sorted(linked), limit))
    return links, counts
