"""Estimates of the recall of vector indexes: searches of sampled rows with the index, compared with exact searches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

if TYPE_CHECKING:
    from lancetable import LanceDataset


class Recall(NamedTuple):
    """Part of the nearest rows that an index finds, and the number of queries."""

    recall: float
    num_queries: int


def estimate_recall(
    dataset: LanceDataset, column: str, num_queries: int, *, k: int, nprobes: int, refine_factor: int | None
) -> Recall:
    """Search sampled rows of a column with its vector index and exactly."""
    count = min(num_queries, dataset.count_rows())
    vectors: Any = dataset.sample(count, [column]).column(0).combine_chunks().drop_null()
    if isinstance(vectors, pa.ExtensionArray):
        vectors = vectors.storage
    metric = dataset.get_ivf_model(_index_of(dataset, column)).distance_type
    hits = found = 0
    for query in vectors:
        nearest = {"column": column, "q": query.values, "k": k}
        exact = _rows(dataset, {**nearest, "metric": metric, "use_index": False})
        hits += len(exact & _rows(dataset, {**nearest, "nprobes": nprobes, "refine_factor": refine_factor}))
        found += len(exact)
    return Recall(hits / found if found else 1.0, len(vectors))


def _index_of(dataset: LanceDataset, column: str) -> str:
    indexes = (index for index in dataset.describe_indices() if column in index.field_names)
    return next(index.name for index in indexes if index.index_type.startswith("IVF_"))


def _rows(dataset: LanceDataset, nearest: dict[str, Any]) -> set[int]:
    rows = dataset.to_table(columns=[], with_row_id=True, nearest=nearest)
    return set(rows.column("_rowid").to_pylist())
