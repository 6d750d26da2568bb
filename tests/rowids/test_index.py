"""Index from row ids to addresses: look-ups compared with a dict, memory, and invalid sequences."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.format.row_address import address
from lancetable.proto import rowids_pb2
from lancetable.rowids import RowIdIndex, RowIdSequence, encoded_u64_array
from lancetable.rowids.segment import build


@st.composite
def tables(draw: st.DrawFn) -> list[tuple[int, list[int], list[int], list[int]]]:
    """Draw fragments as (id, row ids, deleted offsets, positions of segment boundaries); live ids are unique."""
    ids = draw(st.lists(st.integers(0, 60), max_size=40, unique=True))
    if draw(st.booleans()):
        ids.sort()
    fragments = []
    live: set[int] = set()
    for fragment_id in draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4, unique=True)):
        taken = draw(st.integers(0, len(ids)))
        mine, ids = ids[:taken], ids[taken:]
        # Rows that were updated: their ids are also listed here, as deleted rows.
        old = draw(st.lists(st.sampled_from(sorted(live)), max_size=3, unique=True)) if live else []
        deleted = draw(st.lists(st.sampled_from(range(len(mine))), unique=True)) if mine else []
        live |= {each for offset, each in enumerate(mine) if offset not in deleted}
        cuts = sorted(draw(st.lists(st.integers(0, len(mine) + len(old)), max_size=2)))
        fragments.append((fragment_id, mine + old, deleted + list(range(len(mine), len(mine) + len(old))), cuts))
    return fragments


def sequence_of(ids: list[int], cuts: list[int]) -> RowIdSequence:
    bounds = [0, *cuts, len(ids)]
    parts = [ids[start:end] for start, end in itertools.pairwise(bounds)]
    return RowIdSequence(tuple(build(np.array(part, np.uint64)) for part in parts))


def get(index: RowIdIndex, row_id: int) -> int | None:
    addresses, found = index.find(np.array([row_id], np.uint64))
    return int(addresses[0]) if found[0] else None


@given(tables())
def test_find_equals_a_dict(fragments):
    index = RowIdIndex.build(
        (fragment_id, sequence_of(ids, cuts), np.array(deleted, np.uint32) if deleted else None)
        for fragment_id, ids, deleted, cuts in fragments
    )
    expected = {
        row_id: address(fragment_id, offset)
        for fragment_id, ids, deleted, _ in fragments
        for offset, row_id in enumerate(ids)
        if offset not in deleted
    }
    wanted = np.arange(64, dtype=np.uint64)
    addresses, found = index.find(wanted)
    assert found.tolist() == [row_id in expected for row_id in range(64)]
    assert {row_id: int(addresses[row_id]) for row_id in range(64) if found[row_id]} == expected
    assert get(index, 2**64 - 1) is None
    for row_id in (0, 7, 63):
        assert get(index, row_id) == expected.get(row_id)


def test_empty_index_finds_nothing():
    index = RowIdIndex.build([])
    assert get(index, 0) is None
    addresses, found = index.find(np.array([], np.uint64))
    assert len(addresses) == len(found) == 0


def test_appended_rows_are_indexed_as_ranges():
    count = 100_000
    before = time.process_time()
    index = RowIdIndex.build(
        (each, RowIdSequence.from_range(each * 1000, each * 1000 + 1000), None) for each in range(count)
    )
    assert time.process_time() - before < 2
    assert index.nbytes == 28 * count
    assert get(index, 54_321_987) == address(54_321, 987)
    assert get(index, 1000 * count) is None


def test_huge_range_with_few_deletions_is_not_expanded():
    deleted = np.array([0, 5, 6, 2**32 - 1], np.uint32)
    index = RowIdIndex.build([(7, RowIdSequence.from_range(10, 10 + 2**32), deleted)])
    assert index.nbytes < 200
    assert [get(index, 10 + offset) for offset in (0, 5, 6, 2**32 - 1)] == [None] * 4
    assert get(index, 10 + 2**32 - 2) == address(7, 2**32 - 2)


def test_deletions_use_no_additional_memory():
    index = RowIdIndex.build([(0, RowIdSequence.from_range(0, 10_000), np.arange(0, 10_000, 2))])
    assert index.nbytes < 100 and index.find(np.arange(10_000))[1].sum() == 5000
    assert get(index, 4) is None and get(index, 5) == 5


def test_moved_rows_are_found():
    rng = np.random.default_rng(0)
    count = 4_000_000
    moved = np.sort(rng.choice(count, count // 2, replace=False)).astype(np.uint64)
    half = count // 4
    parts = [
        (0, RowIdSequence.from_range(0, count), moved),
        (1, RowIdSequence.from_values(moved[:half]), None),
        (2, RowIdSequence.from_values(rng.permutation(moved[half:])), None),
    ]
    index = RowIdIndex.build(parts)
    assert index.find(np.arange(count))[1].all()
    addresses, found = index.find(rng.choice(count, 1000))
    assert found.all() and set((addresses >> np.uint64(32)).tolist()) == {0, 1, 2}
    assert get(index, int(moved[5])) == address(1, 5)


@pytest.mark.parametrize(
    "fragments",
    [
        [(0, RowIdSequence.from_range(0, 10), None), (1, RowIdSequence.from_range(9, 12), None)],
        [(0, RowIdSequence.from_range(0, 10), None), (1, RowIdSequence.from_values(np.array([50, 5])), None)],
        [(0, RowIdSequence.from_values(np.array([9, 3, 9])), None)],
        [(0, RowIdSequence.from_range(0, 10), np.array([3])), (1, RowIdSequence.from_values(np.array([4, 90])), None)],
    ],
)
def test_two_live_rows_with_one_id_raise(fragments):
    index = RowIdIndex.build(fragments, "some/path")
    with pytest.raises(CorruptFileError, match="two live rows"):
        index.find(np.arange(100))


def test_addresses_equal_those_of_pylance(tmp_path):
    lance = pytest.importorskip("lance")
    path = str(tmp_path / "t")
    dataset = lance.write_dataset(
        pa.table({"a": range(300)}), path, enable_stable_row_ids=True, max_rows_per_file=100, data_storage_version="2.0"
    )
    dataset.delete("a % 7 = 0")
    dataset.update({"a": "a + 1000"}, where="a % 11 = 0")
    dataset.optimize.compact_files(target_rows_per_fragment=150)
    dataset.update({"a": "a + 5000"}, where="a % 13 = 0")
    table = dataset.to_table(with_row_id=True, with_row_address=True)
    parts = []
    for fragment in dataset.get_fragments():
        sequence = RowIdSequence.from_bytes(
            bytes(fragment.metadata.to_json()["row_id_meta"]["Inline"]), fragment.physical_rows
        )
        live = fragment.to_table(columns=[], with_row_address=True)["_rowaddr"].to_numpy() & 0xFFFF_FFFF
        parts.append((fragment.fragment_id, sequence, np.setdiff1d(np.arange(fragment.physical_rows), live)))
    index = RowIdIndex.build(parts)
    addresses, found = index.find(table["_rowid"].to_numpy())
    assert found.all()
    assert addresses.tolist() == table["_rowaddr"].to_pylist()
    every_id = np.unique(np.concatenate([sequence.values() for _, sequence, _ in parts]))
    assert index.find(every_id)[1].sum() == table.num_rows


@pytest.mark.parametrize("width", [2, 4, 8])
def test_ids_in_hundreds_of_arrays_are_found(width: int) -> None:
    """Other writers store one array for each batch of moved rows. Ids are looked up one by one, and many at once."""
    rng = np.random.default_rng(width)
    ids = np.cumsum(rng.integers(1, {2: 9, 4: 10**5, 8: 2**50}[width], 3000)).astype(np.uint64)
    message = rowids_pb2.RowIdSequence()
    for start in range(0, 3000, 20):
        message.segments.add().sorted_array.CopyFrom(encoded_u64_array.encode(ids[start : start + 20]))
    sequence = RowIdSequence.from_bytes(message.SerializeToString(), 3000)
    assert len(sequence.segments) == 1
    deleted = np.arange(5, 3000, 7)
    near = np.concatenate([ids[:200] + np.uint64(1), np.array([0, 2**64 - 1, int(ids[0]) - 1], np.uint64)])
    wanted = np.concatenate([ids, near])
    row_of = {int(row_id): row for row, row_id in enumerate(ids)}
    for size in (1, 3, 10**4):
        index = RowIdIndex.build([(4, sequence, deleted)])
        sequence = RowIdSequence.from_bytes(message.SerializeToString())
        for start in range(0, min(len(wanted), 300 * size), size):
            part = wanted[start : start + size]
            addresses, found = index.find(part)
            rows = [row_of.get(int(one), -1) for one in part]
            assert found.tolist() == [row >= 0 and row % 7 != 5 for row in rows]
            assert addresses[found].tolist() == [address(4, row) for row in rows if row >= 0 and row % 7 != 5]
