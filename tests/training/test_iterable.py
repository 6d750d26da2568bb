"""`LanceDataset` in one process: rows, order, options, state, pickling."""

from __future__ import annotations

import json
import pickle
import threading
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lancetable
from lancetable.errors import InvalidInputError, OutOfRangeError, VersionNotFoundError
from lancetable.sampler import FullScanSampler, ShardedBatchSampler, ShardedFragmentSampler

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'lancetable[torch]'")

from lancetable.torch.data import LanceDataset, SafeLanceDataset, get_safe_loader  # noqa: E402  # after the check

SIZES = (7, 1, 30, 12, 3, 40)
DELETED = {0, 7, 8, 9, 40, 41, 92}
IDS = [number for number in range(sum(SIZES)) if number not in DELETED]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of 93 rows in uneven fragments, of which 7 are deleted, one fragment as a whole."""
    path = tmp_path_factory.mktemp("table") / "t.lance"
    ids = pa.table({"id": range(sum(SIZES)), "x": pa.array([number / 2 for number in range(sum(SIZES))], pa.float32())})
    start = 0
    for size in SIZES:
        lancetable.write_dataset(ids.slice(start, size), path, mode="append" if start else "create")
        start += size
    lancetable.dataset(path).delete(f"id in ({', '.join(map(str, DELETED))})")
    return path


read = partial(LanceDataset, columns=["id"])


def rows(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def flat(batches: Any) -> list[int]:
    return [row for batch in rows(batches) for row in batch]


options = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 20),
        "shard_granularity": st.sampled_from([None, "fragment", "batch"]),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 3),
        "buffer_rows": st.none() | st.integers(1, 60),
        "batch_readahead": st.sampled_from([0, 16]),
        "filter": st.sampled_from([None, "id % 3 = 0", "id > 200", "x < 20.0", pc.field("id") < 30]),
    }
)


@given(options, st.integers(1, 4))
def test_ranks_read_every_row_once(path: Path, options: dict[str, Any], world_size: int) -> None:
    datasets = [read(path, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    for epoch in range(2):
        found: list[int] = []
        for dataset in datasets:
            dataset.set_epoch(epoch)
            batches = rows(dataset)
            assert len(batches) == len(dataset)
            assert all(len(batch) == options["batch_size"] for batch in batches[:-1])
            found += [row for batch in batches for row in batch]
        expected = lancetable.dataset(path).to_table(columns=["id"], filter=options["filter"])["id"].to_pylist()
        assert Counter(found) == Counter(expected)


@given(options, st.data())
def test_a_pass_resumes_at_any_batch(path: Path, options: dict[str, Any], data: st.DataObject) -> None:
    whole = rows(read(path, **options))
    done = data.draw(st.integers(0, len(whole)))
    dataset = read(path, **options)
    batches = iter(dataset)
    assert rows(next(batches) for _ in range(done)) == whole[:done]
    state = json.loads(json.dumps(dataset.state_dict()))
    resumed = read(path, **options)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert rows(resumed) == whole[done:]
    assert rows(resumed) == whole, "the next pass is a whole one"


def test_rows_are_in_table_order_by_default(path: Path) -> None:
    assert rows(read(path, 10)) == [IDS[start : start + 10] for start in range(0, len(IDS), 10)]


def test_a_seed_and_an_epoch_determine_the_order(path: Path) -> None:
    dataset = read(path, 10, shuffle=True, seed=3)
    first = rows(dataset)
    assert sorted(row for batch in first for row in batch) == IDS and first != rows(read(path, 10))
    assert rows(dataset) == first == rows(read(path, 10, shuffle=True, seed=3))
    dataset.set_epoch(1)
    assert dataset.epoch == 1 and rows(dataset) not in (first, rows(read(path, 10, shuffle=True, seed=4)))


def test_drop_last_gives_all_ranks_the_same_number_of_full_batches(path: Path) -> None:
    for granularity in ("fragment", "batch"):
        ranks = [
            rows(read(path, 10, rank=rank, world_size=3, shard_granularity=granularity, drop_last=True))
            for rank in range(3)
        ]
        assert len({len(batches) for batches in ranks}) == 1
        assert {len(batch) for batches in ranks for batch in batches} <= {10}
    assert len(ranks[0]) == 2  # of 86 rows


def test_samples_are_the_same_in_every_rank_and_pass(path: Path) -> None:
    sampled = flat(read(path, 10, samples=20, seed=1))
    assert len(sampled) == 20 and sampled == sorted(set(sampled)) and set(sampled) <= set(IDS)
    assert sampled != flat(read(path, 10, samples=20, seed=2))
    ranks = [read(path, 3, samples=20, seed=1, rank=rank, world_size=2) for rank in range(2)]
    assert sorted(flat(ranks[0]) + flat(ranks[1])) == sampled
    few = flat(read(path, 10, samples=5, filter="id > 80"))
    assert len(few) == 5 and min(few) > 80
    assert flat(read(path, 10, samples=1000)) == IDS


def test_columns_and_row_ids(path: Path) -> None:
    (batch,) = LanceDataset(path, 1000, with_row_id=True)
    expected = lancetable.dataset(path).to_table(with_row_id=True)
    assert {name: tensor.tolist() for name, tensor in batch.items()} == expected.to_pydict()
    (doubled,) = LanceDataset(path, 1000, columns={"double": "id * 2"}, with_row_id=True, filter="id < 5")
    assert doubled["double"].tolist() == [2, 4, 6, 8] and doubled["_rowid"].tolist() == [1, 2, 3, 4]
    assert LanceDataset(path, 10, columns={"double": "id * 2"}).schema.names == ["double"]


def test_a_function_of_batches_replaces_the_conversion(path: Path) -> None:
    def names(batch: pa.RecordBatch, *, hf_converter: Any, use_blob_api: bool) -> list[str]:
        return [f"{number}!" for number in batch["id"].to_pylist()]

    assert list(read(path, 3, filter="id < 6", to_tensor_fn=names)) == [["1!", "2!", "3!"], ["4!", "5!"]]


@pytest.mark.parametrize(
    "sampler",
    [
        FullScanSampler(),
        ShardedFragmentSampler(1, 2),
        ShardedBatchSampler(0, 2),
        ShardedBatchSampler(1, 2, randomize=True, seed=1),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_a_sampler_determines_the_batches(path: Path, sampler: Any) -> None:
    dataset = read(path, 5, sampler=sampler)
    expected = [batch["id"].to_pylist() for batch in sampler(lancetable.dataset(path), batch_size=5, columns=["id"])]
    assert rows(dataset) == expected
    with pytest.raises(TypeError, match="unknown"):
        len(dataset)
    resumed = read(path, 5, sampler=sampler)
    batches = iter(dataset)
    next(batches), next(batches)
    resumed.load_state_dict(dataset.state_dict())
    assert rows(resumed) == expected[2:]


def test_the_version_is_pinned(path: Path, tmp_path: Path) -> None:
    ds = lancetable.write_dataset(pa.table({"id": range(10)}), tmp_path / "t")
    dataset = read(ds, 4)
    ds.insert(pa.table({"id": range(10, 20)}))
    assert dataset.version == 1 and flat(dataset) == flat(pickle.loads(pickle.dumps(dataset))) == list(range(10))
    latest = read(tmp_path / "t", 4)
    assert flat(latest) == list(range(20))
    batches = iter(dataset)
    next(batches)
    latest.load_state_dict(dataset.state_dict())
    assert latest.version == 1 and rows(latest) == [[4, 5, 6, 7], [8, 9]]
    assert flat(read(tmp_path / "t", 4, dataset_options={"version": 1})) == list(range(10))


def test_a_state_of_a_removed_version_is_refused(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(pa.table({"id": range(10)}), tmp_path / "t")
    state = read(ds, 4).state_dict()
    ds.insert(pa.table({"id": [10]}))
    ds.cleanup_old_versions(timedelta(0))
    with pytest.raises(VersionNotFoundError):
        read(tmp_path / "t", 4).load_state_dict(state)


@pytest.mark.parametrize(
    "other",
    [
        {"batch_size": 5},
        {"seed": 1},
        {"shuffle": False},
        {"shard_granularity": "batch"},
        {"drop_last": True},
        {"filter": "id > 3"},
        {"buffer_rows": 20},
        {"rank": 0, "world_size": 2},
    ],
    ids=str,
)
def test_a_state_of_other_arguments_is_refused(path: Path, other: dict[str, Any]) -> None:
    given = {"batch_size": 10, "shuffle": True, "buffer_rows": 40}
    state = read(path, **given).state_dict()
    with pytest.raises(InvalidInputError, match="the state was saved with"):
        read(path, **{**given, **other}).load_state_dict(state)


def test_a_state_of_another_filter_with_as_many_rows_is_refused(path: Path) -> None:
    state = read(path, 4, filter="id < 20 AND id >= 10").state_dict()
    same_size = read(path, 4, filter="id < 30 AND id >= 20")
    assert state["num_rows"] == same_size.state_dict()["num_rows"]
    with pytest.raises(InvalidInputError, match="the state was saved with filters="):
        same_size.load_state_dict(state)


def test_a_state_of_another_branch_is_refused(tmp_path: Path) -> None:
    main = lancetable.write_dataset(pa.table({"id": range(10)}), tmp_path / "t")
    branch = main.create_branch("trial")
    branch.insert(pa.table({"id": range(100, 110)}))
    main.insert(pa.table({"id": range(200, 210)}))
    with pytest.raises(InvalidInputError, match="the state was saved with branch='trial', this is None"):
        read(main, 4).load_state_dict(read(branch, 4).state_dict())


def test_a_refused_state_changes_nothing(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(pa.table({"id": range(10)}), tmp_path / "t")
    state = read(ds, 4, buffer_rows=8).state_dict()
    ds.insert(pa.table({"id": range(10, 20)}))
    dataset = read(ds, 5)
    before = dataset.state_dict()
    with pytest.raises(InvalidInputError, match="the state was saved with"):
        dataset.load_state_dict(state)
    assert dataset.state_dict() == before and flat(dataset) == list(range(20))


@pytest.mark.parametrize("options", [{"filter": "id < 20"}, {"limit": 5}, {"limit": 5, "offset": 3}], ids=str)
@pytest.mark.parametrize("shard_granularity", ["fragment", "batch"])
def test_rows_are_those_of_the_default_scan_options(
    path: Path, options: dict[str, Any], shard_granularity: Any
) -> None:
    ds = lancetable.dataset(path, default_scan_options=options)
    assert flat(read(ds, 4, shard_granularity=shard_granularity)) == ds.to_table()["id"].to_pylist()
    assert flat(read(ds, 4, filter="id > 2")) == ds.to_table(filter="id > 2")["id"].to_pylist()


def test_the_state_of_one_rank_is_valid_for_the_others(path: Path) -> None:
    arguments = {"batch_size": 4, "world_size": 2, "shard_granularity": "batch", "shuffle": True}
    first, second = (read(path, rank=rank, **arguments) for rank in range(2))
    whole, batches = rows(second), iter(first)
    next(batches)
    second.load_state_dict(first.state_dict())
    assert rows(second) == whole[1:]


def test_another_epoch_starts_at_its_first_batch(path: Path) -> None:
    dataset = read(path, 10)
    batches = iter(dataset)
    next(batches)
    resumed = read(path, 10)
    resumed.load_state_dict(dataset.state_dict())
    resumed.set_epoch(1)
    assert resumed.state_dict()["num_batches"] == 0 and flat(resumed) == IDS


def test_rows_are_cached_in_local_files(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "cache"
    dataset = read(path, 10, cache=str(directory))
    expected = rows(dataset)
    monkeypatch.setattr(dataset.dataset, "take", None)
    assert rows(dataset) == expected
    assert len(list(directory.glob("*/*"))) == 9
    del dataset
    assert list(directory.iterdir()) == []
    assert flat(read(path, 10, cache=True)) == IDS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"rank": 0}, "rank and world_size must be given together"),
        ({"rank": 2, "world_size": 2}, "rank must be less than world_size"),
        ({"shard_granularity": "row"}, "shard_granularity must be"),
        ({"cache": True, "shuffle": True}, "cache cannot be combined with shuffle"),
        ({"sampler": FullScanSampler(), "shuffle": True, "samples": 3}, "cannot be combined with samples, shuffle"),
        ({"columns": ["nope"]}, "nope"),
        ({"filter": "nope > 1"}, "nope"),
        ({"buffer_rows": 0}, "buffer_rows must be at least 1"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_invalid_arguments_are_refused(path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        LanceDataset(path, **{"batch_size": 10, **arguments})


def test_an_empty_table_has_no_batches(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "t")
    for granularity in ("fragment", "batch"):
        assert list(LanceDataset(ds, 10, shard_granularity=granularity, shuffle=True)) == []


def test_an_abandoned_pass_ends_its_thread(path: Path) -> None:
    before = set(threading.enumerate())
    batches = iter(read(path, 1, buffer_rows=1))
    next(batches)
    (thread,) = (
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("lancetable-readahead") and thread not in before
    )
    batches.close()
    assert not thread.is_alive()


def test_rows_are_read_by_number(path: Path) -> None:
    dataset = SafeLanceDataset(path)
    assert len(dataset) == len(IDS) and [row["id"] for row in dataset] == IDS
    assert dataset[-1] == {"id": 91, "x": 45.5}
    assert [row["id"] for row in dataset.__getitems__([5, 0, 5])] == [6, 1, 6]
    with pytest.raises(IndexError, match="row 86 is out of range"):
        dataset[86]
    loaded = next(iter(get_safe_loader(pickle.loads(pickle.dumps(dataset)), batch_size=3, num_workers=0)))
    assert loaded["id"].tolist() == [1, 2, 3]
    loader = get_safe_loader(dataset, num_workers=1)
    assert loader.batch_size == 32 and loader.persistent_workers
    assert loader.multiprocessing_context.get_start_method() == "spawn"


def test_rows_by_number_are_those_of_the_default_scan_options(path: Path) -> None:
    options = {"default_scan_options": {"filter": "id >= 15"}}
    rows_by_number = SafeLanceDataset(path, dataset_options=options)
    expected = lancetable.dataset(path, **options).to_table().to_pylist()
    assert len(rows_by_number) == len(expected) and rows_by_number.__getitems__(range(len(expected))) == expected
    assert rows_by_number[-1] == expected[-1] and rows_by_number.__getitems__([]) == []
    with pytest.raises(OutOfRangeError):
        rows_by_number[len(expected)]
