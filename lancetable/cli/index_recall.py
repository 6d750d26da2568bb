"""Estimate of the recall of a vector index: the nearest rows of sampled rows, by the index and exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

if TYPE_CHECKING:
    import numpy.typing as npt

    from lancetable import LanceDataset
    from lancetable.index_metadata import IndexDescription

    Distances = npt.NDArray[np.float32]


class Recall(NamedTuple):
    """Part of the nearest rows that an index finds, and the number of sampled rows; None without a sampled vector."""

    recall: float | None
    num_queries: int


def estimate_recall(
    dataset: LanceDataset,
    index: IndexDescription,
    metric: str,
    num_queries: int,
    *,
    k: int,
    nprobes: int,
    refine_factor: int | None,
) -> Recall:
    """Search the k nearest rows of sampled rows, with a vector index and exactly, among the rows that it covers.

    A sampled row itself does not count. A row that is as near as the k-th nearest one counts as found, because equal
    vectors may replace each other.
    """
    column = index.field_names[0]
    sample = dataset.sample(min(num_queries, dataset.count_rows()), [column, "_rowid"])
    sample = sample.filter(sample.column(0).is_valid()).combine_chunks()
    vectors, row_ids = map(_storage, sample.columns)
    if not len(vectors):
        return Recall(None, 0)
    covered = {number for segment in index.segments for number in segment.fragment_ids}
    fragments = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id in covered]
    scan: dict[str, Any] = {"columns": ["_distance"], "with_row_id": True, "prefilter": True, "fragments": fragments}

    def others(nearest: dict[str, Any], **options: Any) -> list[Distances]:
        """Return the distances of the nearest rows of each sampled row, without those of the row itself."""
        found = _nearest(
            dataset, {"column": column, "k": k + 1, "metric": metric, **nearest}, vectors, {**scan, **options}
        )
        return [distances[ids != row][:k] for (ids, distances), row in zip(found, row_ids.to_numpy())]

    hits = total = 0
    # With a factor of 1, distances are exact, but the rows are those of a search without refining.
    indexed = others(
        {"nprobes": nprobes, "refine_factor": refine_factor or 1},
        index_segments=[segment.uuid for segment in index.segments],
    )
    for found, exact in zip(indexed, others({"use_index": False})):
        hits += int((found <= exact.max(initial=-np.inf)).sum())
        total += len(exact)
    return Recall(hits / total if total else None, len(vectors))


def _nearest(
    dataset: LanceDataset, nearest: dict[str, Any], vectors: pa.Array, scan: dict[str, Any]
) -> list[tuple[npt.NDArray[np.uint64], Distances]]:
    """Return the ids and distances of the rows that are found for each vector."""
    if pat.is_list(vectors.type):  # several vectors are one query for multivectors
        tables = [dataset.scanner(nearest={**nearest, "q": query.values}, **scan).to_table() for query in vectors]
        return [(table.column("_rowid").to_numpy(), table.column("_distance").to_numpy()) for table in tables]
    table = dataset.scanner(nearest={**nearest, "q": vectors}, **scan).to_table()
    ends = table.column("query_index").to_numpy().searchsorted(np.arange(1, len(vectors)))
    return list(zip(*(np.split(table.column(name).to_numpy(), ends) for name in ("_rowid", "_distance"))))


def _storage(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array.storage if isinstance(array, pa.ExtensionArray) else array
