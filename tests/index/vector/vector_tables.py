"""Tables of clustered vectors whose index pylance has built, and comparisons of searches of both libraries."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lancetable

ROWS, DIM, PARTITIONS = 1100, 16, 4


@dataclass(frozen=True)
class Case:
    """A kind of index on a type of vectors."""

    kind: str
    metric: str = "l2"
    dtype: str = "float32"
    stable: bool = False
    options: dict[str, int] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        bits = "".join(f"_{name}{value}" for name, value in self.options.items())
        return f"{self.kind}{bits}-{self.metric}-{self.dtype}" + ("-stable" if self.stable else "")

    @property
    def is_exact(self) -> bool:
        """True if the algorithm determines the result."""
        return "HNSW" not in self.kind and self.options.get("num_bits") != 4


def _pq(kind: str, *arguments: Any, **options: int) -> Case:
    return Case(kind, *arguments, options={"num_sub_vectors": 4, **options})


FLOAT_CASES = [
    case
    for metric in ("l2", "cosine", "dot")
    for case in (
        Case("IVF_FLAT", metric),
        Case("IVF_SQ", metric),
        _pq("IVF_PQ", metric),
        _pq("IVF_PQ", metric, num_bits=4),
        Case("IVF_HNSW_FLAT", metric),
        Case("IVF_HNSW_SQ", metric),
        _pq("IVF_HNSW_PQ", metric),
    )
]
OTHER_CASES = [
    case
    for dtype in ("float16", "float64")
    for case in (
        Case("IVF_FLAT", "l2", dtype),
        Case("IVF_FLAT", "cosine", dtype),
        Case("IVF_SQ", "l2", dtype),
        _pq("IVF_PQ", "l2", dtype),
        _pq("IVF_PQ", "dot", dtype),
        Case("IVF_HNSW_SQ", "l2", dtype),
    )
]
STABLE_CASES = [
    Case("IVF_FLAT", "l2", "float32", True),
    _pq("IVF_PQ", "cosine", "float32", True),
    Case("IVF_SQ", "dot", "float32", True),
    Case("IVF_HNSW_SQ", "l2", "float32", True),
]
BINARY_CASES = [Case("IVF_FLAT", "hamming", "uint8"), Case("IVF_HNSW_FLAT", "hamming", "uint8")]
CASES = [*FLOAT_CASES, *OTHER_CASES, *STABLE_CASES, *BINARY_CASES]


def vectors(rows: int, dtype: str, seed: int = 0, dim: int = DIM) -> npt.NDArray[Any]:
    """Return clustered vectors; random bytes for uint8."""
    rng = np.random.default_rng(seed)
    if dtype == "uint8":
        return rng.integers(0, 256, (rows, dim)).astype(np.uint8)
    centers = np.random.default_rng(99).normal(size=(12, dim))
    return (centers[rng.integers(12, size=rows)] + 0.4 * rng.normal(size=(rows, dim))).astype(dtype)


def table_of(values: npt.NDArray[Any], start: int = 0) -> pa.Table:
    """Return a table with ids and vectors."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    ids = np.arange(start, start + len(values))
    return pa.table({"id": ids, "part": ids % 5, "v": column})


@cache
def _built(directory: Path, case: Case, fragments: int) -> str:
    uri = str(directory / f"{case.name}-{fragments}")
    dataset = lance.write_dataset(
        table_of(vectors(ROWS, case.dtype)),
        uri,
        enable_stable_row_ids=case.stable,
        max_rows_per_file=-(-ROWS // fragments),
    )
    dataset.create_index("v", case.kind, metric=case.metric, num_partitions=PARTITIONS, **case.options)
    return uri


def built(directory: Path, case: Case, fragments: int = 2) -> str:
    """Return the URI of a table with an index that pylance has built; shared, so tests do not change it."""
    return _built(directory, case, fragments)


def queries(case: Case, count: int, seed: int = 7) -> npt.NDArray[Any]:
    """Return queries near the vectors of the table."""
    return vectors(count, case.dtype, seed)


def search(uri: str, **options: Any) -> tuple[pa.Table, pa.Table]:
    """Return the result of a search in pylance and in this library."""
    options.setdefault("columns", ["id", "_distance"])
    return (
        lance.dataset(uri).to_table(with_row_id=True, **options),
        lancetable.dataset(uri).to_table(with_row_id=True, **options),
    )


def assert_same(expected: pa.Table, found: pa.Table) -> None:
    """Compare distances within 1e-4, and the rows except those of equal distances."""
    assert found.schema.names == expected.schema.names
    assert found.num_rows == expected.num_rows
    one, other = (each["_distance"].to_numpy().astype(np.float64) for each in (expected, found))
    np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    keys = [name for name in found.schema.names if name in ("query_index", "id")]
    rows = [{tuple(row[key] for key in keys) for row in each.to_pylist()} for each in (expected, found)]
    ties = len(one) - len(np.unique(np.round(one, 5)))
    # The k-th of some rows of equal distance depends on the order of the search.
    assert len(rows[0] ^ rows[1]) <= 2 * (ties + 2 * len(np.unique(_groups(expected))))


def _groups(found: pa.Table) -> npt.NDArray[Any]:
    return found["query_index"].to_numpy() if "query_index" in found.schema.names else np.zeros(found.num_rows)


def recall(expected: pa.Table, found: pa.Table) -> float:
    """Return the share of the expected rows that were found, or instead of which nearer ones were found."""
    wanted = set(expected["id"].to_pylist())
    farthest = max(expected["_distance"].to_pylist(), default=0)
    pairs = zip(found["id"].to_pylist(), found["_distance"].to_pylist())
    good = sum(row in wanted or distance < farthest for row, distance in pairs)
    return min(good, len(wanted)) / max(1, len(wanted))
