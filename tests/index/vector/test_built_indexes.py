"""Indexes that lancetable builds are searched by pylance."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.index.segments import index_segments
from lancetable.indices import IndexFileVersion
from lancetable.ops.index import column_values
from tests.index.vector.built_tables import DIM, clustered, recall, table_of

KINDS = ["IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ"]


def build(library: Any, uri: str, kind: str, metric: str, **options: Any) -> None:
    if "PQ" in kind:
        options.setdefault("num_sub_vectors", 8)
    if library is lancetable:
        options.setdefault("seed", 1)
    options.setdefault("num_partitions", 4)
    library.dataset(uri).create_index("v", kind, metric=metric, **options)


def compare(path: Path, kind: str, metric: str, dtype: str = "float32", options: Any = None, **write: Any) -> None:
    """Check that pylance finds as many of the nearest rows with our index as with its own."""
    vectors, queries = clustered(1500, 1, dtype), clustered(20, 2, dtype)
    recalls = {}
    for library in (lance, lancetable):
        uri = str(path / library.__name__)
        lance.write_dataset(table_of(vectors), uri, max_rows_per_file=700, **write)
        build(library, uri, kind, metric, **(options or {}))
        refine = {"refine_factor": 5} if "PQ" in kind else {}
        nprobes = 4 if metric == "hamming" else 3  # partitions of bits differ much between builds
        recalls[library] = recall(uri, vectors, queries, metric, nprobes=nprobes, **refine)
    # Few rows and queries: the partitions of two builds differ by chance.
    assert recalls[lancetable] >= recalls[lance] - 0.04


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
@pytest.mark.parametrize("kind", KINDS)
def test_pylance_finds_the_nearest_rows(tmp_path: Path, kind: str, metric: str) -> None:
    compare(tmp_path, kind, metric)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_pylance_searches_other_float_types(tmp_path: Path, kind: str, dtype: str) -> None:
    compare(tmp_path, kind, "l2", dtype)


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_HNSW_FLAT"])
def test_pylance_searches_bits(tmp_path: Path, kind: str) -> None:
    compare(tmp_path, kind, "hamming", "uint8")


@pytest.mark.parametrize("kind", ["IVF_PQ", "IVF_HNSW_PQ"])
def test_pylance_searches_codes_of_4_bits(tmp_path: Path, kind: str) -> None:
    compare(tmp_path, kind, "l2", options={"num_bits": 4})


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ", "IVF_HNSW_SQ"])
def test_pylance_searches_every_storage_version(tmp_path: Path, kind: str, version: str, stable: bool) -> None:
    compare(tmp_path, kind, "l2", data_storage_version=version, enable_stable_row_ids=stable)


def codes_of(uri: str) -> dict[int, tuple[int, bytes]]:
    """Return partition and code of each row of an index."""
    (segment,) = index_segments(lancetable.dataset(uri).table_version)
    content, found = segment.open().content, {}  # type: ignore[attr-defined]  # of an open vector index
    for number in range(content.num_partitions):
        part = content.read_partition(number)
        codes = content.quantizer.of_prepared(part.codes)
        found.update({row: (number, code.tobytes()) for row, code in zip(part.row_ids.tolist(), codes)})
    return found


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
@pytest.mark.parametrize("num_bits", [4, 8])
def test_codes_for_given_centroids_and_codebook_equal_those_of_pylance(
    tmp_path: Path, metric: str, num_bits: int
) -> None:
    vectors, random = clustered(1000, 1), np.random.default_rng(3)
    centroids = vectors[:5] / (np.linalg.norm(vectors[:5], axis=1, keepdims=True) if metric == "cosine" else 1)
    codebook = random.standard_normal((4, 1 << num_bits, DIM // 4)).astype(np.float32)
    found = []
    for library in (lance, lancetable):
        uri = str(tmp_path / library.__name__)
        lance.write_dataset(table_of(vectors), uri)
        library.dataset(uri).create_index(
            "v",
            "IVF_PQ",
            metric=metric,
            ivf_centroids=centroids,
            pq_codebook=codebook,
            num_sub_vectors=4,
            num_partitions=5,
            num_bits=num_bits,
        )
        found.append(codes_of(uri))
    assert found[0] == found[1]


def test_builds_with_a_seed_are_repeatable(tmp_path: Path) -> None:
    lance.write_dataset(table_of(clustered(1000, 1)), str(tmp_path))
    found = []
    for seed in (1, 1, 2):
        build(lancetable, str(tmp_path), "IVF_PQ", "l2", seed=seed, replace=True)
        found.append(codes_of(str(tmp_path)))
    assert found[0] == found[1] != found[2]


def test_null_vectors_and_nan_are_left_out(tmp_path: Path) -> None:
    vectors = clustered(600, 1)
    vectors[5, 3], vectors[6, 0] = np.nan, np.inf
    table = table_of(vectors)
    values = [None if number % 3 == 1 else value for number, value in enumerate(table["v"].to_pylist())]
    values[2] = None
    lance.write_dataset(table.set_column(1, "v", [values_as(table, values)]), str(tmp_path))
    build(lancetable, str(tmp_path), "IVF_FLAT", "l2")
    rows = set(codes_of(str(tmp_path)))
    assert rows == {row for row in range(600) if row % 3 != 1 and row not in (2, 5, 6)}


def values_as(table: Any, values: list[Any]) -> Any:
    return pa.array(values, table.schema.field("v").type)


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ", "IVF_HNSW_SQ"])
@pytest.mark.parametrize("form", ["nested", "tensor"])
def test_vectors_in_structs_and_tensors_are_indexed(tmp_path: Path, kind: str, form: str) -> None:
    vectors, random = clustered(600, 1), np.random.default_rng(1)
    array = table_of(vectors)["v"].combine_chunks()
    table, column = pa.table({"id": range(600), "d": pa.StructArray.from_arrays([array], ["v"])}), "d.v"
    if form == "tensor":
        tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [DIM]), array)
        table, column = pa.table({"id": range(600), "t": tensors}), "t"
    dataset = lancetable.write_dataset(table, str(tmp_path), max_rows_per_file=250)
    options = {"num_sub_vectors": 4} if "PQ" in kind else {}
    dataset.create_index(column, kind, num_partitions=3, **options)
    dataset.insert(table.slice(0, 50))
    dataset.optimize.optimize_indices()
    dataset.optimize.compact_files()
    dataset.optimize.optimize_indices(num_indices_to_merge=9)
    for library in (lancetable, lance):
        for row in random.integers(0, 600, 5).tolist():
            nearest = {"column": column, "q": vectors[row], "k": 2, "nprobes": 3, "refine_factor": 9}
            found = library.dataset(str(tmp_path)).to_table(columns=["id", "_distance"], nearest=nearest)
            assert row in found["id"].to_pylist()


def test_a_codebook_may_be_a_tensor(tmp_path: Path) -> None:
    lance.write_dataset(table_of(clustered(300, 1)), str(tmp_path))
    codebook, found = np.random.default_rng(3).standard_normal((4, 256, DIM // 4)).astype(np.float32), []
    for each in (codebook, pa.FixedShapeTensorArray.from_numpy_ndarray(codebook)):
        options = {"ivf_centroids": clustered(2, 4), "pq_codebook": each, "index_file_version": IndexFileVersion.V3}
        build(lancetable, str(tmp_path), "IVF_PQ", "l2", num_sub_vectors=4, num_partitions=2, replace=True, **options)
        found.append(codes_of(str(tmp_path)))
    assert found[0] == found[1]


@pytest.mark.parametrize("metric", ["l2", "dot"])
def test_indexes_of_multivectors_are_for_cosine(tmp_path: Path, metric: str) -> None:
    inner = table_of(clustered(300, 1))["v"].combine_chunks()
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, 301, 2).astype(np.int32)), inner)
    lancetable.write_dataset(pa.table({"id": range(150), "v": lists}), str(tmp_path))
    for library in (lance, lancetable):
        with pytest.raises((RuntimeError, ValueError), match="multivector type supports only cosine distance"):
            build(library, str(tmp_path), "IVF_FLAT", metric, replace=True)
        build(library, str(tmp_path), "IVF_FLAT", "cosine", replace=True)


def test_codes_are_gathered_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lance.write_dataset(table_of(clustered(3000, 1)), str(tmp_path))
    build(lancetable, str(tmp_path), "IVF_SQ", "l2")
    expected = codes_of(str(tmp_path))
    monkeypatch.setenv("LANCETABLE_INDEX_MEMORY_BYTES", "20000")
    build(lancetable, str(tmp_path), "IVF_SQ", "l2", replace=True)
    assert codes_of(str(tmp_path)) == expected


def test_too_few_vectors_give_an_index_without_files(tmp_path: Path) -> None:
    lance.write_dataset(table_of(clustered(100, 1)), str(tmp_path))
    build(lancetable, str(tmp_path), "IVF_PQ", "l2")
    dataset = lancetable.dataset(str(tmp_path))
    assert dataset.stats.index_stats("v_idx")["num_unindexed_rows"] == 100
    assert lance.dataset(str(tmp_path)).describe_indices()[0].num_rows_indexed == 0
    dataset.insert(table_of(clustered(400, 2), 100))
    dataset.optimize.optimize_indices()
    assert dataset.stats.index_stats("v_idx")["num_unindexed_rows"] == 0
    assert recall(
        str(tmp_path), np.concatenate([clustered(100, 1), clustered(400, 2)]), clustered(5, 3), "l2", nprobes=9
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"index_type": "IVF_FOO"}, NotImplementedError),
        ({"index_type": "IVF_PQ"}, ValueError),
        ({"index_type": "IVF_PQ", "num_sub_vectors": 5}, ValueError),
        ({"index_type": "IVF_PQ", "num_sub_vectors": 4, "num_bits": 5}, ValueError),
        ({"index_type": "IVF_FLAT", "metric": "foo"}, ValueError),
        ({"index_type": "IVF_FLAT", "metric": "hamming"}, ValueError),
        ({"index_type": "IVF_FLAT", "num_partitions": 0}, ValueError),
        ({"index_type": "IVF_FLAT", "accelerator": "cuda"}, NotImplementedError),
        ({"index_type": "IVF_FLAT", "column": "id"}, TypeError),
        ({"index_type": "IVF_FLAT", "column": "none"}, KeyError),
        ({"index_type": "IVF_FLAT", "unknown": 1}, ValueError),
    ],
)
def test_invalid_arguments_are_refused(tmp_path: Path, arguments: dict[str, Any], error: type[Exception]) -> None:
    dataset = lancetable.write_dataset(table_of(clustered(50, 1)), str(tmp_path))
    with pytest.raises(error):
        dataset.create_index(**{"column": "v", **arguments})


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_build_does_not_keep_the_mapped_files_of_the_table_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_values, "_RESIDENT_BYTES", 1 << 20)
    monkeypatch.setattr(column_values, "_BATCH_BYTES", 1 << 18)
    vectors = np.random.default_rng(0).standard_normal((40_000, 64), np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 64)
    dataset = lancetable.write_dataset(pa.table({"v": column}), tmp_path / "t")
    dataset.create_index("v", "IVF_PQ", num_partitions=2, num_sub_vectors=8, sample_rate=4)
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    name = dataset.get_fragments()[0].data_files()[0].path
    next(line for line in lines if line.endswith(name))
    resident = next(int(line.split()[1]) for line in lines if line.startswith("Rss:")) * 1024
    assert resident < vectors.nbytes / 2
