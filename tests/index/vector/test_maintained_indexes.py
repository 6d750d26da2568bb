"""Vector indexes lose no rows by any operation on the table."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

import lancetable
from tests.index.vector.built_tables import all_found, clustered, table_of

KINDS = ["IVF_FLAT", "IVF_PQ", "IVF_HNSW_SQ"]


def make(path: Path, kind: str, stable: bool = False) -> lancetable.LanceDataset:
    dataset = lancetable.write_dataset(
        table_of(clustered(900, 1)), str(path), max_rows_per_file=300, enable_stable_row_ids=stable
    )
    options = {"num_sub_vectors": 4} if "PQ" in kind else {}
    return dataset.create_index("v", kind, num_partitions=3, **options)


def unindexed(dataset: lancetable.LanceDataset) -> int:
    return dataset.stats.index_stats("v_idx")["num_unindexed_rows"]


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_no_row_is_lost(tmp_path: Path, kind: str, stable: bool) -> None:
    uri, dataset = str(tmp_path), make(tmp_path, kind, stable)
    dataset.insert(table_of(clustered(200, 2), 900))
    assert unindexed(dataset) == 200
    dataset.optimize.optimize_indices()
    assert (unindexed(dataset), len(dataset.describe_indices()[0].segments)) == (0, 2)
    assert all_found(uri, range(1100))
    dataset.delete("id % 10 = 3")
    dataset.update({"id": "id + 10000"}, where="id < 20")
    ids = [number + 10000 * (number < 20) for number in range(1100) if number % 10 != 3]
    assert all_found(uri, ids)
    dataset.optimize.compact_files()
    assert all_found(uri, ids)
    dataset.optimize.optimize_indices()
    dataset.optimize.optimize_indices(num_indices_to_merge=9)
    assert (unindexed(dataset), len(dataset.describe_indices()[0].segments)) == (0, 1)
    assert all_found(uri, ids)
    other = lance.dataset(uri)
    other.insert(table_of(clustered(300, 3), 2000))
    other.optimize.optimize_indices()
    dataset = lancetable.dataset(uri)
    ids += range(2000, 2300)
    assert all_found(uri, ids)
    dataset.optimize.optimize_indices(retrain=True)
    assert (unindexed(dataset), len(dataset.describe_indices()[0].segments)) == (0, 1)
    assert all_found(uri, ids)


def test_new_segments_have_the_centroids_of_the_index(tmp_path: Path) -> None:
    dataset = make(tmp_path, "IVF_PQ")
    before = dataset.centroids(column="v")
    dataset.insert(table_of(clustered(200, 2), 900))
    dataset.optimize.optimize_indices()
    statistics = dataset.stats.index_stats("v_idx")["indices"]
    assert statistics[0]["centroids"] == statistics[1]["centroids"]
    dataset.optimize.optimize_indices(num_indices_to_merge=2)
    assert dataset.centroids(column="v").equals(before)


def test_segments_of_tasks_are_merged_and_committed(tmp_path: Path) -> None:
    dataset = lancetable.write_dataset(table_of(clustered(900, 1)), str(tmp_path), max_rows_per_file=300)
    dataset.create_index("v", "IVF_PQ", num_partitions=3, num_sub_vectors=4)
    model = dataset.get_ivf_model("v_idx")
    dataset.drop_index("v_idx")
    ids = [fragment.fragment_id for fragment in dataset.get_fragments()]
    values = model.centroids.flatten().to_numpy().reshape(3, -1)
    parts = [
        dataset.create_index_uncommitted(
            "v", "IVF_FLAT", ivf_centroids=centroids, num_partitions=3, fragment_ids=[part]
        )
        for part, centroids in zip(ids, (model.centroids, values, values))
    ]
    merged = dataset.merge_existing_index_segments(parts[:2])
    dataset = dataset.commit_existing_index_segments("v_idx", "v", [merged, parts[2]])
    assert len(dataset.describe_indices()[0].segments) == 2
    assert unindexed(dataset) == 0
    assert all_found(str(tmp_path), range(900))


def test_an_index_without_training_is_trained_by_optimize_indices(tmp_path: Path) -> None:
    dataset = lancetable.write_dataset(table_of(clustered(900, 1)), str(tmp_path))
    dataset.create_index("v", "IVF_SQ", train=False, target_partition_size=100)
    assert unindexed(dataset) == 900
    dataset.optimize.optimize_indices()
    assert unindexed(dataset) == 0
    assert dataset.get_ivf_model("v_idx").num_partitions == 9
    assert all_found(str(tmp_path), range(900))


@pytest.mark.parametrize("options", [{"num_partitions": 3}, {"target_partition_size": 100}])
def test_retraining_chooses_the_number_of_partitions_as_pylance(tmp_path: Path, options: dict[str, int]) -> None:
    found = []
    for library in (lance, lancetable):
        uri = str(tmp_path / library.__name__)
        library.write_dataset(table_of(clustered(900, 1)), uri).create_index("v", "IVF_FLAT", **options)
        library.dataset(uri).insert(table_of(clustered(8000, 2), 900))
        library.dataset(uri).optimize.optimize_indices(retrain=True)
        found.append(library.dataset(uri).stats.index_stats("v_idx")["indices"][0]["num_partitions"])
    assert found == [2, 2] if "num_partitions" in options else [89, 89]


def test_rewritten_vectors_are_searched_exactly(tmp_path: Path) -> None:
    dataset = make(tmp_path, "IVF_FLAT")
    dataset.merge_insert("id").when_matched_update_all().execute(table_of(clustered(50, 7)))
    assert unindexed(dataset) == 50
    assert all_found(str(tmp_path), range(900), 60)


def test_large_partitions_are_divided(tmp_path: Path) -> None:
    dataset = lancetable.write_dataset(table_of(clustered(1000, 1)), str(tmp_path))
    dataset.create_index("v", "IVF_PQ", target_partition_size=250, num_sub_vectors=4)
    dataset.insert(table_of(clustered(6000, 2), 1000))
    dataset.optimize.optimize_indices()
    dataset.insert(table_of(clustered(100, 3), 7000))
    assert max(part["size"] for part in dataset.stats.index_stats("v_idx")["indices"][1]["partitions"]) > 1000
    dataset.optimize.optimize_indices()
    (statistics,) = dataset.stats.index_stats("v_idx")["indices"]
    assert statistics["num_partitions"] > 20
    assert max(part["size"] for part in statistics["partitions"]) < 1000
    assert unindexed(dataset) == 0
    assert all_found(str(tmp_path), range(7100))
