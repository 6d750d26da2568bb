"""Statistics and descriptions of vector indexes as in pylance; prewarming, dropping and cleanup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pytest

import lancetable
from lancetable.errors import IndexNotFoundError
from tests.index.vector.built_tables import all_found, clustered, table_of

KINDS: dict[str, dict[str, Any]] = {
    "IVF_FLAT": {},
    "IVF_PQ": {"num_sub_vectors": 4},
    "IVF_SQ": {"metric": "cosine"},
    "IVF_HNSW_SQ": {"metric": "dot"},
    "IVF_HNSW_PQ": {"num_sub_vectors": 8, "metric": "cosine"},
}


def make(path: Path, library: Any = lancetable, kind: str = "IVF_PQ", **options: Any) -> lancetable.LanceDataset:
    dataset = library.write_dataset(table_of(clustered(900, 1)), str(path), max_rows_per_file=300)
    dataset.create_index("v", kind, num_partitions=3, **KINDS[kind], **options)
    return lancetable.dataset(path)


def assert_close(one: Any, other: Any, where: str = "") -> None:
    """Compare nested values; numbers within 1e-5."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name in one:
            assert_close(one[name], other[name], f"{where}.{name}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for number, (first, second) in enumerate(zip(one, other)):
            assert_close(first, second, f"{where}[{number}]")
    else:
        assert one == (pytest.approx(other, rel=1e-5) if isinstance(one, float) else other), where


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("library", [lance, lancetable])
@pytest.mark.parametrize("kind", KINDS)
def test_statistics_and_descriptions_are_those_of_pylance(tmp_path: Path, library: Any, kind: str) -> None:
    dataset = make(tmp_path, library, kind)
    changes = (
        lambda: None,
        lambda: dataset.insert(table_of(clustered(100, 2), 900)),
        lambda: dataset.optimize.optimize_indices(),
        lambda: dataset.delete("id % 10 = 3"),
        lambda: dataset.update({"id": "id + 10000"}, where="id < 20"),
        lambda: dataset.optimize.compact_files(),
    )
    for change in changes:
        change()
        ours, theirs = lancetable.dataset(tmp_path), lance.dataset(str(tmp_path))
        assert_close(ours.stats.index_stats("v_idx"), theirs.stats.index_stats("v_idx"))
        assert ours.index_statistics("v_idx") == ours.stats.index_stats("v_idx")
        (mine,), (other,) = ours.describe_indices(), theirs.describe_indices()
        for name in (
            "name",
            "type_url",
            "index_type",
            "num_rows_indexed",
            "field_names",
            "details",
            "total_size_bytes",
        ):
            assert getattr(mine, name) == getattr(other, name), name
        assert mine.num_rows_unindexed == ours.count_rows() - mine.num_rows_indexed
        assert mine.num_rows_unindexed == ours.stats.index_stats("v_idx")["num_unindexed_rows"]
    assert mine.num_rows_unindexed == 18, "updated rows are searched without the index"


def test_an_index_without_rows_is_described(tmp_path: Path) -> None:
    for library in (lance, lancetable):
        dataset = make(tmp_path / library.__name__, library, train=False)
        (index,) = dataset.describe_indices()
        assert (index.index_type, index.num_rows_indexed, index.num_rows_unindexed) == ("IVF_PQ", 0, 900)
        theirs = lance.dataset(dataset.uri).stats.index_stats("v_idx")
        assert_close(dataset.stats.index_stats("v_idx"), theirs)


@pytest.mark.parametrize("kind", ["IVF_PQ", "IVF_HNSW_SQ"])
def test_a_prewarmed_index_is_searched_without_reads(tmp_path: Path, kind: str) -> None:
    make(tmp_path, lancetable, kind)
    nearest = {"column": "v", "q": clustered(1, 3)[0], "k": 3, "nprobes": 3}

    def loads(dataset: lancetable.LanceDataset) -> tuple[int, int]:
        """Return the numbers of segments and partitions that a search loads."""
        counts: list[Any] = []
        dataset.scanner(columns=["_distance"], nearest=nearest, scan_stats_callback=counts.append).to_table()
        return counts[0].indices_loaded, counts[0].parts_loaded

    assert loads(lancetable.dataset(tmp_path, session=lancetable.Session())) == (1, 3)
    dataset = lancetable.dataset(tmp_path, session=lancetable.Session())
    dataset.prewarm_index("v_idx")
    assert loads(dataset) == (0, 0)
    segment = dataset.describe_indices()[0].segments[0].uuid
    dataset.prewarm_index("v_idx", index_segments=[segment])
    with pytest.raises(IndexNotFoundError):
        dataset.prewarm_index("v_idx", index_segments=["0" * 32])


def test_a_dropped_index_can_be_searched_in_the_versions_that_have_it(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    dataset.tags.create("indexed")
    dataset.drop_index("v_idx")
    assert dataset.describe_indices() == []
    with pytest.raises(IndexNotFoundError):
        dataset.drop_index("v_idx")
    make_again = dataset.create_index("v", "IVF_FLAT", num_partitions=3)
    make_again.optimize.optimize_indices(retrain=True)
    assert len(list((tmp_path / "_indices").iterdir())) == 3
    dataset.cleanup_old_versions(retain_versions=1, delete_unverified=True, error_if_tagged_old_versions=False)
    kept = {path.name for path in (tmp_path / "_indices").iterdir() if any(path.iterdir())}
    for each in (dataset, lancetable.dataset(tmp_path, "indexed")):
        (index,) = each.describe_indices()
        assert {segment.uuid for segment in index.segments} <= kept
        nearest = {"column": "v", "q": clustered(900, 1)[77], "k": 1, "nprobes": 3, "refine_factor": 20}
        assert each.to_table(columns=["id"], nearest=nearest)["id"].to_pylist() == [77]
    assert len(kept) == 2
    dataset.tags.delete("indexed")
    dataset.cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert len([path for path in (tmp_path / "_indices").iterdir() if any(path.iterdir())]) == 1
    assert all_found(str(tmp_path), range(900))
