"""Fragment reuse index: rows of indexes after compactions of pylance that did not update the indexes."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

import lancetable
from lancetable.errors import CorruptFileError
from lancetable.index.fragment_reuse import FragmentReuse, read_fragment_reuse
from lancetable.index.queries import Contains, IsIn, IsNull, Range
from lancetable.index.row_mapping import MovedGroup, OldFragment, RowMapping
from lancetable.index.row_sets import RowSet
from lancetable.index.segments import SegmentFiles, fragment_reuse, index_segments
from lancetable.proto import table_pb2
from tests.index import indexed_tables as tables

lance = pytest.importorskip("lance")

Address = tuple[int, int]
"""Fragment id and offset of a row."""
NUM_ROWS = 10
"""Number of physical rows of each old fragment."""


def group(changed: Iterable[Address], old: Iterable[int], new: dict[int, int]) -> MovedGroup:
    """Return a group: the changed rows, the old fragments, and the new ones with their numbers of rows."""
    rows = RowSet.of(addresses(changed))
    all_rows = RowSet.of_fragments(dict.fromkeys(old, NUM_ROWS))
    fragments = [
        OldFragment(fragment_id, NUM_ROWS, rows.extent(fragment_id)[0], (all_rows - rows).offsets(fragment_id))
        for fragment_id in sorted(old)
    ]
    return MovedGroup(fragments, [*new.items()])


def reuse_index(*versions: tuple[MovedGroup, ...]) -> FragmentReuse:
    """Return a fragment reuse index with the groups of each version."""
    moves = [
        (BitMap([fragment.id for fragment in moved.old]), BitMap([fragment_id for fragment_id, _ in moved.new]))
        for groups in versions
        for moved in groups
    ]
    return FragmentReuse(tuple(map(RowMapping, versions)), tuple(moves), newest_version=9)


def addresses(rows: Iterable[Address]) -> np.ndarray:
    return np.array([fragment_id << 32 | offset for fragment_id, offset in rows], np.uint64)


EXAMPLE = reuse_index(
    (group([(0, 0), (0, 1), (1, 1)], [0, 1], {5: 2, 6: 1}), group([(2, 3)], [2], {7: 1})),
    (group([(5, 1), (6, 0), (9, 4)], [5, 6, 9], {11: 3}),),
)


def test_rows_are_mapped_through_all_versions() -> None:
    rows = addresses([(0, 0), (0, 1), (1, 0), (1, 1), (2, 3), (3, 8), (5, 1), (9, 4), (9, 5), (11, 0)])
    current, exists = EXAMPLE.apply(rows)
    assert exists.tolist() == [False, True, False, True, True, True, True, True, False, True]
    expected = addresses([(11, 0), (11, 1), (7, 0), (3, 8), (11, 0), (11, 2), (11, 0)])
    assert current[exists].tolist() == expected.tolist()
    assert EXAMPLE.current(RowSet.of(rows)) == RowSet.of(expected)


def test_offsets_past_the_end_of_a_fragment_are_unchanged() -> None:
    rows = addresses([(0, NUM_ROWS - 1), (0, NUM_ROWS), (2, NUM_ROWS + 3)])
    for reuse in (EXAMPLE, reuse_index((group([], [0], {}),))):
        current, exists = reuse.apply(rows)
        assert exists.tolist() == [False, True, True]
        assert current[1:].tolist() == rows[1:].tolist()


@pytest.mark.parametrize(
    ("built_for", "covered"),
    [
        ({0, 1, 2}, {7}),  # fragment 9 is not indexed
        ({0, 1, 2, 9}, {11, 7}),
        ({0, 2}, {7}),  # fragment 1 is not indexed
        ({3, 4}, {3, 4}),
        ({5, 6, 9, 3}, {11, 3}),  # the entry was updated by a later commit
        ({11}, {11}),
        (set(), set()),
    ],
)
def test_new_fragments_are_covered_if_all_old_ones_are(built_for: set[int], covered: set[int]) -> None:
    assert set(EXAMPLE.coverage(BitMap(built_for))) == covered


@given(st.data())
def test_mapped_rows_are_those_of_a_model(data: st.DataObject) -> None:
    """Compact random fragments several times, and compare with a table of (address, value)."""
    live = {(fragment, offset): (fragment, offset) for fragment in range(4) for offset in range(6)}
    original, versions, next_id = dict(live), [], 4
    for _ in range(data.draw(st.integers(1, 3))):
        fragments = sorted({fragment for fragment, _ in live})
        chosen = data.draw(st.sets(st.sampled_from(fragments), min_size=1)) if fragments else set()
        deleted = data.draw(st.sets(st.sampled_from(sorted(live)), max_size=8)) if live else set()
        moved = sorted(address for address in live if address[0] in chosen and address not in deleted)
        num_rows = data.draw(st.integers(1, 9))
        sizes = [len(moved[start : start + num_rows]) for start in range(0, len(moved), num_rows)]
        new = {next_id + number: size for number, size in enumerate(sizes)}
        targets = [(fragment, offset) for fragment, size in new.items() for offset in range(size)]
        next_id += len(new)
        versions.append((group(moved, chosen, new),))
        rest = {address: value for address, value in live.items() if address[0] not in chosen}
        live = rest | {target: live[address] for target, address in zip(targets, moved, strict=True)}
    reuse = reuse_index(*versions)
    current, exists = reuse.apply(addresses(original))
    found = {
        (int(row) >> 32, int(row) & 0xFFFF_FFFF): value
        for row, value, alive in zip(current, original.values(), exists, strict=True)
        if alive
    }
    assert {address: value for address, value in found.items() if address in live} == live
    assert found == live


# ---------------------------------------------------------------------------------------------------- tables of pylance


def rows_of(start: int, count: int) -> pa.Table:
    return pa.table(
        {
            "id": range(start, start + count),
            "v": [None if row % 13 == 0 else row % 7 for row in range(start, start + count)],
            "s": [f"word{row % 5} {row}" for row in range(start, start + count)],
        }
    )


def assert_answers(path: Path) -> None:
    """Compare the searches of all segments with the live rows of the fragments that pylance regards as covered."""
    dataset = lancetable.dataset(str(path))
    table = dataset.to_table(with_row_address=True)
    rows = table["_rowaddr"].to_pylist()
    values = {"v": table["v"].to_pylist(), "id": table["id"].to_pylist(), "s": table["s"].to_pylist()}
    for segment in index_segments(dataset.table_version):
        if segment.name.startswith("__"):
            continue
        covered = {row for row in rows if row >> 32 in segment.fragments}
        column = segment.name
        if column == "s":
            found = set(segment.search(Contains("s", "word3")).true) & covered
            assert found == {row for row, text in zip(rows, values["s"], strict=True) if "word3" in text} & covered
            continue
        for query in (IsIn(column, pa.array([3, 150])), Range(column, pa.scalar(2), pa.scalar(40)), IsNull(column)):
            true, null = tables.answer(query, rows, values[column])
            result = segment.search(query)
            assert (set(result.true) & covered, set(result.null) & covered) == (true & covered, null & covered), query


@pytest.mark.parametrize("seed", range(4))
def test_tables_with_deferred_updates_are_searched(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    dataset = lance.write_dataset(rows_of(0, 100), str(tmp_path), max_rows_per_file=10)
    for column, kind in (("v", "BITMAP"), ("id", "BTREE"), ("s", "NGRAM")):
        dataset.create_scalar_index(column, kind, name=column)
    num_rows, was_mapped = 100, False
    for step in range(8):
        dataset = lance.dataset(str(tmp_path))
        action = "compact" if step == 1 else rng.choice(["delete", "compact", "insert", "optimize"])
        if action == "delete":
            dataset.delete(f"id % 11 = {rng.randrange(11)}")
        elif action == "compact":
            target = rng.choice([20, 35, 60, 1000])
            dataset.optimize.compact_files(target_rows_per_fragment=target, defer_index_remap=True)
        elif action == "insert":
            dataset.insert(rows_of(num_rows, 15))
            num_rows += 15
        else:
            dataset.optimize.optimize_indices()
        assert_answers(tmp_path)
        was_mapped |= fragment_reuse(lancetable.dataset(str(tmp_path)).table_version) is not None
    assert was_mapped


def test_covered_fragments_are_those_that_pylance_does_not_scan(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows_of(0, 60), str(tmp_path), max_rows_per_file=10)
    dataset.create_scalar_index("v", "BITMAP", name="v")
    dataset.optimize.compact_files(target_rows_per_fragment=30, defer_index_remap=True)
    dataset = lance.dataset(str(tmp_path))
    dataset.insert(rows_of(60, 10))
    ours = lancetable.dataset(str(tmp_path))
    (segment,) = (segment for segment in index_segments(ours.table_version) if segment.name == "v")
    statistics = lance.dataset(str(tmp_path)).stats.index_stats("v")
    assert len(segment.fragments) == statistics["num_indexed_fragments"] == 2
    assert_answers(tmp_path)


def test_large_descriptions_are_read_from_a_file(tmp_path: Path) -> None:
    """Every second row is deleted, so that the changed rows are large bitsets."""
    num_rows = 3_000_000
    table = pa.table({"id": range(num_rows), "v": pa.array(np.arange(num_rows) % 7)})
    dataset = lance.write_dataset(table, str(tmp_path), max_rows_per_file=num_rows // 2)
    dataset.create_scalar_index("v", "BITMAP", name="v")
    dataset.delete("id % 2 = 1")
    dataset.optimize.compact_files(defer_index_remap=True)
    ours = lancetable.dataset(str(tmp_path))
    entries = {segment.name: segment for segment in index_segments(ours.table_version)}
    details = table_pb2.FragmentReuseIndexDetails.FromString(entries["__lance_frag_reuse"].files.details)
    assert details.WhichOneof("content") == "external"
    rows = ours.to_table(columns=["v"], with_row_address=True)
    expected = rows["_rowaddr"].to_numpy()[rows["v"].to_numpy() == 3]
    assert entries["v"].search(IsIn("v", pa.array([3]))).true == RowSet.of(expected)


def test_tables_with_stable_row_ids_have_no_reuse_index(tmp_path: Path) -> None:
    """pylance refuses to create it."""
    dataset = lance.write_dataset(rows_of(0, 40), str(tmp_path), max_rows_per_file=10, enable_stable_row_ids=True)
    dataset.create_scalar_index("v", "BITMAP", name="v")
    with pytest.raises(OSError, match="defer_index_remap"):
        dataset.optimize.compact_files(defer_index_remap=True)
    assert fragment_reuse(lancetable.dataset(str(tmp_path)).table_version) is None


# --------------------------------------------------------------------------------------------------------------- damage


def reuse_of(path: Path) -> SegmentFiles:
    version = lancetable.dataset(str(path)).table_version
    (files,) = (s.files for s in index_segments(version) if s.name == "__lance_frag_reuse")
    return files


def read_changed(files: SegmentFiles, details: bytes) -> FragmentReuse:
    """Read the entry with other details."""
    entry = table_pb2.IndexMetadata.FromString(files.metadata.raw)
    entry.index_details.value = details
    return read_fragment_reuse(files.version, replace(files.metadata, raw=entry.SerializeToString()))


def test_damaged_descriptions_are_reported(tmp_path: Path, scale: int) -> None:
    dataset = lance.write_dataset(rows_of(0, 60), str(tmp_path), max_rows_per_file=10)
    dataset.create_scalar_index("v", "BITMAP", name="v")
    dataset.optimize.compact_files(target_rows_per_fragment=30, defer_index_remap=True)
    files = reuse_of(tmp_path)
    rng = random.Random(0)
    for _ in range(100 * scale):
        damaged = bytearray(files.details)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        with suppress(CorruptFileError):  # or the damage changes a value that cannot be checked
            read_changed(files, bytes(damaged)).apply(np.arange(100, dtype=np.uint64))
    with pytest.raises(CorruptFileError):
        read_changed(files, files.details[:-1])


@pytest.mark.parametrize(
    ("old_rows", "new_rows", "old_fragment"),
    [(10, 2, 0), (10, 4, 0), (2, 3, 0), (10, 3, 1)],
    ids=["too few new rows", "too many new rows", "a row beyond the end", "a row of another fragment"],
)
def test_impossible_groups_are_reported(tmp_path: Path, old_rows: int, new_rows: int, old_fragment: int) -> None:
    dataset = lance.write_dataset(rows_of(0, 60), str(tmp_path), max_rows_per_file=10)
    dataset.create_scalar_index("v", "BITMAP", name="v")
    dataset.optimize.compact_files(target_rows_per_fragment=30, defer_index_remap=True)
    details = table_pb2.FragmentReuseIndexDetails()
    message = details.inline.versions.add().groups.add()
    message.changed_row_addrs = RowSet.of(np.array([0, 1, 2])).to_roaring_treemap()
    message.old_fragments.add(id=old_fragment, physical_rows=old_rows)
    message.new_fragments.add(id=9, physical_rows=new_rows)
    with pytest.raises(CorruptFileError, match="fragment reuse index"):
        read_changed(reuse_of(tmp_path), details.SerializeToString())


@pytest.mark.parametrize(("fragment_id", "num_rows"), [(1 << 32, 3), (1 << 63, 3), (7, 1 << 32)])
def test_numbers_outside_of_their_range_are_reported(tmp_path: Path, fragment_id: int, num_rows: int) -> None:
    dataset = lance.write_dataset(rows_of(0, 60), str(tmp_path), max_rows_per_file=10)
    dataset.create_scalar_index("v", "BITMAP", name="v")
    dataset.optimize.compact_files(target_rows_per_fragment=30, defer_index_remap=True)
    details = table_pb2.FragmentReuseIndexDetails()
    details.inline.versions.add().groups.add().old_fragments.add(id=fragment_id, physical_rows=num_rows)
    with pytest.raises(CorruptFileError, match="invalid id or number of rows"):
        read_changed(reuse_of(tmp_path), details.SerializeToString())


def test_rows_past_the_end_of_a_moved_fragment_are_not_expanded(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows_of(0, 60), str(tmp_path), max_rows_per_file=10)
    dataset.create_scalar_index("v", "BITMAP", name="v")
    dataset.optimize.compact_files(target_rows_per_fragment=30, defer_index_remap=True)
    reuse = fragment_reuse(lancetable.dataset(str(tmp_path)).table_version)
    assert reuse is not None
    all_offsets = RowSet.of_ranges(np.array([1, 99]), np.array([0, 5]), np.array([1 << 32, 7]))
    assert reuse.current(all_offsets) == reuse.current(RowSet.of_fragments({1: 10})) | RowSet.of_ranges(
        np.array([99]), np.array([5]), np.array([7])
    )
