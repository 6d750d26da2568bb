"""Indexes whose entries have no details: their kinds are inferred from the files."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.dataset import Index

import lancetable

KINDS = {"i": "BTREE", "b": "BITMAP", "l": "LABEL_LIST", "z": "ZONEMAP", "s": "NGRAM"}
QUERIES = {"i": "i = 5", "b": "b = 1", "l": "array_has(l, 'y')", "z": "z < 7", "s": "contains(s, 'abc')"}
INFERRED = ("i", "b", "l")


def rows() -> pa.Table:
    ids = range(100)
    return pa.table(
        {
            "i": ids,
            "b": [i % 3 for i in ids],
            "l": [["x", "y", "z"][: i % 4] for i in ids],
            "z": ids,
            "s": [f"{i}abc"[i % 3 :] for i in ids],
        }
    )


def write_without_details(path: Path, *, stable: bool) -> lancetable.LanceDataset:
    """Return a table whose indexes were committed without details and names of files."""
    dataset = lance.write_dataset(rows(), path, max_rows_per_file=30, enable_stable_row_ids=stable)
    for column, kind in KINDS.items():
        dataset.create_scalar_index(column, kind)
    entries = []
    for index in lancetable.dataset(str(path)).describe_indices():
        (part,) = index.segments
        facts = (part.uuid, index.name, index.fields, dataset.version, set(part.fragment_ids), part.index_version)
        entries.append(Index(*facts))
    for entry in entries:
        dataset.drop_index(entry.name)
    lance.LanceDataset.commit(path, lance.LanceOperation.CreateIndex(entries, []), read_version=dataset.version)
    return lancetable.dataset(str(path))


def check(dataset: lancetable.LanceDataset) -> None:
    for column, query in QUERIES.items():
        plan = dataset.scanner(filter=query).explain_plan()
        assert ("ScalarIndexQuery" in plan) == (column in INFERRED), plan
        assert dataset.to_table(filter=query) == dataset.to_table(filter=query, use_scalar_index=False)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
def test_indexes_without_details_are_used_extended_and_rewritten(tmp_path: Path, stable: bool) -> None:
    dataset = write_without_details(tmp_path / "t", stable=stable)
    assert {index.index_type for index in dataset.describe_indices()} == {"Unknown"}
    assert dataset.stats.index_stats("l_idx")["index_type"] == "LabelList"
    check(dataset)
    dataset.delete("i < 10")
    dataset.optimize.compact_files()
    if stable:  # the commit of a compaction does not know that BITMAP and LABEL_LIST name rows by id
        dataset.optimize.optimize_indices()
    check(dataset)
    dataset.insert(rows())
    dataset.optimize.optimize_indices()
    check(dataset)
    described = {index.name: (index.index_type, index.num_rows_indexed) for index in dataset.describe_indices()}
    assert described["i_idx"] == ("BTree", 190) and described["b_idx"] == ("Bitmap", 190)
    theirs = lance.dataset(dataset.uri)
    for query in QUERIES.values():
        assert theirs.to_table(filter=query) == dataset.to_table(filter=query)


def test_statistics_and_plans_equal_those_of_pylance(tmp_path: Path) -> None:
    dataset = write_without_details(tmp_path / "t", stable=False)
    theirs = lance.dataset(dataset.uri)
    for column in ("i", "b"):
        assert dataset.stats.index_stats(f"{column}_idx") == theirs.stats.index_stats(f"{column}_idx")
        for scanner in (dataset.scanner(filter=QUERIES[column]), theirs.scanner(filter=QUERIES[column])):
            assert f"@{column}_idx({'BTree' if column == 'i' else 'Bitmap'})" in scanner.explain_plan()
