"""Each library searches the vector indexes of the other: every kind, metric and type, plain and stable row ids.

Tables have null vectors, vectors with NaN, deleted rows, several fragments, and rows that are not indexed. Both
libraries search the same index. Where the algorithm determines the result (FLAT, SQ, PQ of 8 bits), they find the same
rows with distances within 1e-4; otherwise (HNSW, PQ of 4 bits) about the same part of the nearest rows.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import lancetable
from tests.index.vector.vector_tables import assert_same
from tests.index.vector.vector_tables import vectors as clustered

ROWS, UNINDEXED, DIM, PARTITIONS, K = 600, 30, 16, 3, 10
KINDS = ["IVF_FLAT", "IVF_SQ", "IVF_PQ", "IVF_PQ 4", "IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ", "IVF_HNSW_PQ 4"]
METRICS = ["l2", "cosine", "dot"]
FLOATS = ["float16", "float32", "float64"]
LIBRARIES = [lancetable, lance]


@dataclass(frozen=True)
class Case:
    """A kind of index with its metric, and the column that it indexes."""

    kind: str
    metric: str
    dtype: str
    is_stable: bool
    is_multi: bool = False

    def __str__(self) -> str:
        form = f"{'multi-' if self.is_multi else ''}{self.dtype}{'-stable' if self.is_stable else ''}"
        return f"{self.kind.replace(' ', '_')}-{self.metric}-{form}"

    @property
    def is_determined(self) -> bool:
        """True if the algorithm determines the result of a search."""
        return "HNSW" not in self.kind and not self.kind.endswith("4")

    def create(self, library: Any, uri: str) -> None:
        """Create the index by a library."""
        index_type, *bits = self.kind.split()
        options: dict[str, Any] = {"num_partitions": PARTITIONS, "metric": self.metric}
        if "PQ" in index_type:
            options |= {"num_sub_vectors": 8, "num_bits": int(bits[0]) if bits else 8}
        library.dataset(uri).create_index("v", index_type, name="v_idx", replace=True, **options)


def cases() -> Iterator[Case]:
    for kind, metric, dtype, stable in itertools.product(KINDS, METRICS, FLOATS, [False, True]):
        yield Case(kind, metric, dtype, stable)
    for kind, stable in itertools.product(["IVF_FLAT", "IVF_HNSW_FLAT"], [False, True]):
        yield Case(kind, "hamming", "uint8", stable)
    for kind, dtype, stable in itertools.product(KINDS, FLOATS, [False, True]):
        yield Case(kind, "cosine", dtype, stable, is_multi=True)  # the only metric for multivectors


CASES = list(cases())


def short() -> list[Case]:
    """Return a case for each kind with vectors and one with multivectors; metrics, types and row ids differ."""
    groups = itertools.groupby(
        sorted(CASES, key=lambda case: (case.kind, case.is_multi)), key=lambda case: (case.kind, case.is_multi)
    )
    return [found[zlib.crc32(str(key).encode()) % len(found)] for key, group in groups if (found := list(group))]


# ------------------------------------------------------------------------------------------------------------ the table


def column_of(case: Case, count: int, seed: int) -> pa.Array:
    """Return vectors, of which some are null or contain NaN."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 4, count) if case.is_multi else np.ones(count, np.int64)
    values = clustered(int(sizes.sum()), case.dtype, seed, DIM)
    missing = pa.array(random.random(count) < 0.03)
    if case.is_multi:
        inner = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), DIM)
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
        return pa.ListArray.from_arrays(offsets, inner, mask=missing)
    if case.dtype != "uint8":
        values[random.random(count) < 0.03, 3] = np.nan
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), DIM, mask=missing)


def table_of(case: Case, count: int, first: int, seed: int) -> pa.Table:
    ids = np.arange(first, first + count)
    return pa.table({"id": ids, "part": ids % 5, "v": column_of(case, count, seed)})


def write(uri: str, case: Case) -> None:
    options: dict[str, Any] = {"enable_stable_row_ids": case.is_stable, "max_rows_per_file": 200}
    lance.write_dataset(table_of(case, ROWS, 0, 1), uri, **options).delete("id % 11 = 3")


# ----------------------------------------------------------------------------------------------------------- the checks


def search(library: Any, uri: str, query: npt.NDArray[Any], scan: dict[str, Any], **options: Any) -> pa.Table:
    """Search by a library, with the index unless `use_index` is False."""
    nearest = {"column": "v", "q": query, "k": K, **options}
    scanner = library.dataset(uri).scanner(columns=["id", "_distance"], nearest=nearest, **scan)
    assert ("ANNIvfPartition" in scanner.explain_plan(True)) == options.get("use_index", True)
    return scanner.to_table()


def check(case: Case, uri: str, *, by_recall: bool) -> None:
    """Compare searches of both libraries in one index."""
    count = 2 if case.is_multi else 1
    queries = clustered(6 * count, case.dtype, 7, DIM).reshape(6, count, DIM)
    variants: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"nprobes": 1}, {}),
        ({"nprobes": PARTITIONS}, {}),
        ({"nprobes": PARTITIONS}, {"filter": "part != 2", "prefilter": True}),
        ({"nprobes": PARTITIONS}, {"fast_search": True}),
    ]
    if not case.is_multi:  # pylance refines the rows of each query vector
        variants.append(({"nprobes": PARTITIONS, "refine_factor": 3}, {}))
    for options, scan in variants:
        hits = dict.fromkeys(LIBRARIES, 0)
        for query in queries:
            query = query if case.is_multi else query[0]
            found = {library: search(library, uri, query, scan, **options) for library in LIBRARIES}
            if not by_recall:
                assert_same(found[lance], found[lancetable])
                continue
            indexed = {**scan, "filter": f"id < {ROWS}", "prefilter": True} if "fast_search" in scan else scan
            indexed = {name: value for name, value in indexed.items() if name != "fast_search"}
            exact = search(lancetable, uri, query, indexed, use_index=False, metric=case.metric)
            for library, table in found.items():
                assert len(set(table["id"].to_pylist())) == len(table)
                hits[library] += len(set(exact["id"].to_pylist()) & set(table["id"].to_pylist()))
        # Distances of codes of 4 bits are rounded, and graphs are searched in another order.
        assert hits[lancetable] >= hits[lance] - 5, (options, scan, hits)


def check_case(path: Path, case: Case) -> None:
    for library in LIBRARIES:
        uri = str(path / library.__name__)
        write(uri, case)
        case.create(library, uri)
        if case.is_multi:
            check(case, uri, by_recall=not case.is_determined)
        lance.dataset(uri).insert(table_of(case, UNINDEXED, ROWS, 2))
        expected, found = (each.dataset(uri).stats.index_stats("v_idx") for each in (lance, lancetable))
        for name in ("index_type", "num_indexed_rows", "num_unindexed_rows", "num_indexed_fragments"):
            assert found[name] == expected[name]
        assert found["index_type"] == case.kind.split()[0]
        # With rows that are not indexed, pylance takes fewer candidates for each vector of a query.
        check(case, uri, by_recall=not case.is_determined or case.is_multi)


@pytest.mark.parametrize("case", short(), ids=str)
def test_each_library_searches_the_vector_indexes_of_the_other(tmp_path: Path, case: Case) -> None:
    check_case(tmp_path, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_library_searches_every_vector_index_of_the_other(tmp_path: Path, case: Case) -> None:
    check_case(tmp_path, case)
