"""Builds of IVF_PQ indexes in steps, models in files, and the partitions of an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.dataset import VectorIndexReader as TheirReader
from lance.indices import IndicesBuilder as TheirBuilder
from lance.indices import IvfModel as TheirIvfModel
from lance.indices import PqModel as TheirPqModel

import lancetable
from integration.servers.moto_locked import Moto
from lancetable.dataset import VectorIndexReader
from lancetable.errors import CorruptFileError, InvalidInputError, UnsupportedFeatureError
from lancetable.file import LanceFileReader
from lancetable.indices import IndicesBuilder, IvfModel, PqModel
from lancetable.util import KMeans, validate_vector_index
from tests.index.vector.built_tables import DIM, all_found, clustered, table_of

ROWS = 900


def make(path: Path, **options: Any) -> lancetable.LanceDataset:
    """Write a table of three fragments with deleted, null and invalid vectors."""
    vectors = clustered(ROWS, 1)
    vectors[5, 3] = np.nan
    dataset = lancetable.write_dataset(table_of(vectors), str(path / "t"), max_rows_per_file=300, **options)
    dataset.delete("id % 10 = 3")
    return dataset


def models(builder: Any, metric: str = "l2", num_bits: int = 8) -> tuple[Any, Any]:
    ivf = builder.train_ivf(5, distance_type=metric, sample_rate=16)
    return ivf, builder.train_pq(ivf, 4, sample_rate=2, num_bits=num_bits)


def test_files_of_steps_are_stored_with_the_options_of_the_table(s3: Moto) -> None:
    uri = f"s3://lab/{uuid4()}"
    table = table_of(clustered(ROWS, 1))
    dataset = lancetable.write_dataset(table, f"{uri}/t.lance", storage_options=s3.options)
    builder = IndicesBuilder(dataset, "v")
    ivf, pq = models(builder)
    builder.transform_vectors(ivf, pq, f"{uri}/codes/0")
    names = builder.shuffle_transformed_vectors(["0"], f"{uri}/codes", ivf)
    builder.load_shuffled_vectors(names, f"{uri}/codes", ivf, pq)
    assert dataset.stats.index_stats("v_idx")["num_indexed_rows"] == ROWS


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("num_bits", [4, 8])
def test_an_index_is_built_from_files_of_tasks(tmp_path: Path, metric: str, stable: bool, num_bits: int) -> None:
    dataset = make(tmp_path, enable_stable_row_ids=stable)
    builder = IndicesBuilder(dataset, "v")
    ivf, pq = models(builder, metric, num_bits)
    for number, fragment in enumerate(dataset.get_fragments()):
        builder.transform_vectors(ivf, pq, f"{tmp_path}/part{number}", fragments=[fragment])
    names = builder.shuffle_transformed_vectors(["part0", "part1"], str(tmp_path), ivf, "first")
    names += builder.shuffle_transformed_vectors(["part2"], str(tmp_path), ivf, "second")
    assert names == ["first_0.lance", "second_0.lance"]
    builder.load_shuffled_vectors(names, str(tmp_path), ivf, pq)
    statistics = lancetable.dataset(dataset.uri).stats.index_stats("v_idx")
    assert (statistics["index_type"], statistics["num_unindexed_rows"]) == ("IVF_PQ", 0)
    assert sum(part["size"] for part in statistics["indices"][0]["partitions"]) == dataset.count_rows() - 1
    live = [row for row in range(ROWS) if row % 10 != 3]
    if metric == "l2":
        assert all_found(dataset.uri, live)
    dataset.drop_index("v_idx")
    dataset.create_index(
        "v", "IVF_PQ", metric=metric, ivf_centroids=ivf.centroids, pq_codebook=pq.codebook, num_sub_vectors=4,
        num_bits=num_bits,
    )  # fmt: skip
    assert (
        lancetable.dataset(dataset.uri).stats.index_stats("v_idx")["indices"][0]["partitions"]
        == (statistics["indices"][0]["partitions"])
    )


def test_transformed_vectors_are_those_of_pylance(tmp_path: Path) -> None:
    # Only L2: pylance panics for cosine, and its codes for dot differ from those of its own create_index.
    dataset = make(tmp_path)
    ivf, pq = models(IndicesBuilder(dataset, "v"))
    found = []
    for builder in (IndicesBuilder(dataset, "v"), TheirBuilder(lance.dataset(dataset.uri), "v")):
        path = f"{tmp_path}/{type(builder).__module__}"
        builder.transform_vectors(ivf, pq, path)
        found.append(LanceFileReader(path).read_all().to_table().sort_by("_rowid").to_pydict())
    assert found[0] == found[1]


def test_an_index_covers_only_the_fragments_of_its_files(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    builder = IndicesBuilder(dataset, "v")
    ivf, pq = models(builder)
    builder.transform_vectors(ivf, pq, f"{tmp_path}/part", fragments=dataset.get_fragments()[1:])
    names = builder.shuffle_transformed_vectors(["part"], str(tmp_path), ivf)
    dataset.insert(table_of(clustered(40, 7), ROWS))
    builder.load_shuffled_vectors(names, str(tmp_path), ivf, pq, "name")
    (index,) = lance.dataset(dataset.uri).describe_indices()
    assert index.name == "name"
    assert set(index.segments[0].fragment_ids) == {1, 2}
    assert all_found(dataset.uri, [row for row in range(ROWS + 40) if row >= ROWS or row % 10 != 3])


def test_files_with_the_same_fragment_are_refused(tmp_path: Path) -> None:
    builder = IndicesBuilder(make(tmp_path), "v")
    ivf, pq = models(builder)
    for name in ("one", "two"):
        builder.transform_vectors(ivf, pq, f"{tmp_path}/{name}")
    with pytest.raises(InvalidInputError, match="rows of fragment 0, as another file does"):
        builder.shuffle_transformed_vectors(["one", "two"], str(tmp_path), ivf)
    with pytest.raises(InvalidInputError, match="at least one file"):
        builder.load_shuffled_vectors([], str(tmp_path), ivf, pq)


def test_other_files_and_models_are_refused(tmp_path: Path) -> None:
    builder = IndicesBuilder(make(tmp_path), "v")
    ivf, pq = models(builder)
    builder.transform_vectors(ivf, pq, f"{tmp_path}/one")
    ivf.save(f"{tmp_path}/model")
    with pytest.raises(CorruptFileError, match="not a file of transform_vectors"):
        builder.load_shuffled_vectors(["model"], str(tmp_path), ivf, pq)
    few = IvfModel(ivf.centroids.slice(0, 2), "l2")
    with pytest.raises(CorruptFileError, match="a partition of transformed vectors that the IVF model does not have"):
        builder.shuffle_transformed_vectors(["one"], str(tmp_path), few)
    other = builder.train_pq(ivf, 8, sample_rate=2)
    with pytest.raises(InvalidInputError, match="those of the PQ model"):
        builder.load_shuffled_vectors(["one"], str(tmp_path), ivf, other)
    assert not lancetable.dataset(builder.dataset.uri).describe_indices()
    with pytest.raises(CorruptFileError, match="so it is no model"):
        PqModel.load(f"{tmp_path}/model")


@pytest.mark.parametrize("num_bits", [4, 8])
def test_models_are_stored_as_by_pylance(tmp_path: Path, num_bits: int) -> None:
    ivf, pq = models(IndicesBuilder(make(tmp_path), "v"), "cosine", num_bits)
    for mine, theirs, values in ((ivf, TheirIvfModel, "centroids"), (pq, TheirPqModel, "codebook")):
        mine.save(f"{tmp_path}/a")
        loaded = theirs.load(f"{tmp_path}/a")
        loaded.save(f"{tmp_path}/b")
        again = type(mine).load(f"{tmp_path}/b")
        for each in (loaded, again):
            assert getattr(each, values).equals(getattr(mine, values))
    assert (again.num_subvectors, again.num_bits, again.dimension) == (4, num_bits, DIM)


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_pylance_builds_with_trained_models(tmp_path: Path, metric: str) -> None:
    dataset = make(tmp_path)
    trained = IndicesBuilder(dataset, "v").prepare_global_ivf_pq(4, 4, distance_type=metric, sample_rate=2)
    lance.dataset(dataset.uri).create_index(
        "v", "IVF_PQ", metric=metric, num_partitions=4, num_sub_vectors=4, **trained
    )
    vectors = lance.dataset(dataset.uri).to_table()["v"].combine_chunks().flatten().to_numpy().reshape(-1, DIM)
    ids = {number: row for row, number in enumerate(dataset.to_table()["id"].to_pylist())}
    assert len(ids) == len(vectors)
    found = lance.dataset(dataset.uri).to_table(
        columns=["id", "_distance"],
        nearest={"column": "v", "q": vectors[0], "k": 3, "nprobes": 4, "refine_factor": 20},
    )
    assert metric == "dot" or found["id"][0].as_py() == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"num_partitions": 1000}, ValueError),
        ({"num_partitions": 2, "sample_rate": 1}, ValueError),
        ({"num_partitions": 2, "distance_type": "foo"}, ValueError),
        ({"num_partitions": "2"}, TypeError),
        ({"num_partitions": 2, "fragment_ids": [9]}, ValueError),
        ({"num_partitions": 2, "accelerator": "cuda"}, NotImplementedError),
    ],
)
def test_invalid_arguments_of_the_training_are_refused(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception]
) -> None:
    dataset = make(tmp_path)
    with pytest.raises(error):
        IndicesBuilder(dataset, "v").train_ivf(**{"sample_rate": 16, **arguments})
    if "accelerator" not in arguments:
        with pytest.raises(error):
            TheirBuilder(lance.dataset(dataset.uri), "v").train_ivf(**{"sample_rate": 16, **arguments})


@pytest.mark.parametrize(("column", "error"), [("none", KeyError), ("id", TypeError)])
def test_columns_without_vectors_are_refused(tmp_path: Path, column: str, error: type[Exception]) -> None:
    dataset = make(tmp_path)
    with pytest.raises(error):
        IndicesBuilder(dataset, column)
    with pytest.raises(error):
        TheirBuilder(lance.dataset(dataset.uri), column)


def test_unsupported_steps_raise_errors(tmp_path: Path) -> None:
    builder = IndicesBuilder(make(tmp_path), "v")
    ivf, pq = models(builder)
    with pytest.raises(UnsupportedFeatureError):
        builder.assign_ivf_partitions(ivf, "cuda")
    with pytest.raises(UnsupportedFeatureError):
        builder.transform_vectors(ivf, pq, f"{tmp_path}/x", partition_ds_uri="y")
    with pytest.raises(InvalidInputError, match="non-empty"):
        builder.transform_vectors(ivf, pq, f"{tmp_path}/x", fragments=[])


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_SQ", "IVF_PQ", "IVF_HNSW_SQ"])
def test_partitions_are_read_as_by_pylance(tmp_path: Path, kind: str) -> None:
    dataset = make(tmp_path)
    dataset.create_index("v", kind, num_partitions=3, **({"num_sub_vectors": 4} if "PQ" in kind else {}))
    dataset.insert(table_of(clustered(40, 7), ROWS))
    dataset.optimize.optimize_indices()
    readers = VectorIndexReader(dataset, "v_idx"), TheirReader(lance.dataset(dataset.uri), "v_idx")
    assert readers[0].num_partitions() == readers[1].num_partitions() == 3
    for number in range(3):
        for with_vector in (False, True):
            found, expected = (reader.read_partition(number, with_vector=with_vector) for reader in readers)
            assert found.schema == expected.schema.remove_metadata()
            if "PQ" not in kind:  # pylance does not restore the order of the codes
                assert found.to_pylist() == expected.to_pylist()
            assert found["_rowid"].to_pylist() == expected["_rowid"].to_pylist()
    for reader in readers:
        for number in (-1, 3):
            with pytest.raises(IndexError, match="out of range"):
                reader.read_partition(number)
    dataset.create_scalar_index("id", "BTREE")
    with pytest.raises(ValueError, match="not vector index"):
        VectorIndexReader(dataset, "id_idx")
    with pytest.raises(KeyError, match='Index "none" not found'):
        VectorIndexReader(dataset, "none")


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_clusters_of_vectors(metric: str) -> None:
    data = clustered(500, 1)
    kmeans = KMeans(8, metric)
    assert kmeans.centroids is None
    kmeans.fit(data)
    storage = table_of(data)["v"].combine_chunks()
    assert kmeans.predict(data).equals(kmeans.predict(storage))
    again = KMeans(8, metric, centroids=kmeans.centroids.storage)
    assert again.predict(data).equals(kmeans.predict(data))
    products = data @ kmeans.centroids.to_numpy_ndarray().T
    assert metric != "dot" or np.array_equal(products.argmax(axis=1), kmeans.predict(data))
    if metric != "l2":
        return  # pylance panics for cosine, and does not always choose the greatest product
    theirs = lance.util.KMeans(8, metric, centroids=kmeans.centroids.storage)
    assert np.mean(np.array(theirs.predict(data)) == np.array(kmeans.predict(data))) > 0.99


@pytest.mark.parametrize("data", [[1.0], np.zeros(3, np.float32), np.zeros((3, 2)), pa.array([1.0])])
def test_other_data_have_no_clusters(data: Any) -> None:
    with pytest.raises(InvalidInputError):
        KMeans(2).fit(data)


def test_a_search_of_own_vectors_validates_an_index(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    dataset.create_index("v", "IVF_FLAT", num_partitions=3)
    validate_vector_index(dataset, "v", sample_size=50)
    validate_vector_index(dataset, "v", sample_size=50, refine_factor=1)
    dataset.delete("id >= 0")
    dataset.insert(table_of(clustered(50, 9)))
    with pytest.raises(InvalidInputError, match="failed sanity check"):
        validate_vector_index(_Stale(dataset), "v")  # type: ignore[arg-type]  # has the methods that are used


class _Stale:
    """A dataset whose rows are others than those that searches find."""

    def __init__(self, dataset: lancetable.LanceDataset) -> None:
        self.dataset = dataset

    def to_table(self, **options: Any) -> pa.Table:
        return self.dataset.to_table(**options) if options else table_of(clustered(50, 10))
