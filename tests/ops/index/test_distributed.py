"""Indexes that are built in parts: segments of tasks, merged and committed by either library."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.dataset import Index as TheirIndex

import lancetable
from lancetable.errors import (
    IndexExistsError,
    InvalidInputError,
    InvalidOperationError,
    UnsupportedFeatureError,
    UnsupportedTypeError,
)
from lancetable.operation import LanceOperation

KINDS = {"BTREE": "id", "BITMAP": "s", "LABEL_LIST": "tags", "NGRAM": "s", "ZONEMAP": "id", "BLOOMFILTER": "id"}


def rows(start: int, end: int) -> pa.Table:
    ids = range(start, end)
    return pa.table(
        {
            "id": ids,
            "s": [None if i % 7 == 0 else f"value {i % 5}" for i in ids],
            "tags": [["x", "y", "z"][: i % 4] for i in ids],
        }
    )


def write(path: Path, *, stable: bool = False) -> lancetable.LanceDataset:
    return lancetable.write_dataset(rows(0, 120), str(path), max_rows_per_file=30, enable_stable_row_ids=stable)


def coverage(uri: str) -> dict[str, list[list[int]]]:
    indexes = lance.dataset(uri).describe_indices()
    return {index.name: [sorted(segment.fragment_ids) for segment in index.segments] for index in indexes}


def check(uri: str) -> None:
    for predicate in (
        "id = 7",
        "id > 80",
        "s = 'value 1'",
        "s IS NULL",
        "contains(s, 'lue 2')",
        "array_has(tags, 'y')",
    ):
        found = [
            sorted(ds.scanner(columns=["id"], filter=predicate, use_scalar_index=use).to_table()["id"].to_pylist())
            for ds in (lance.dataset(uri), lancetable.dataset(uri))
            for use in (False, True)
        ]
        assert found == found[:1] * 4, (predicate, found, coverage(uri))


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
@pytest.mark.parametrize("kind", KINDS)
def test_segments_of_tasks_are_merged_and_committed(tmp_path: Path, kind: str, stable: bool) -> None:
    ds = write(tmp_path / "t.lance", stable=stable)
    column = KINDS[kind]
    parts = [ds.create_index_uncommitted(column, kind, "i", fragment_ids=group) for group in ([0, 1], [2], [3])]
    parts = pickle.loads(pickle.dumps(parts))
    assert [part.fragment_ids for part in parts] == [{0, 1}, {2}, {3}] and ds.latest_version == 1
    merged = ds.merge_existing_index_segments(parts[:2])
    assert (merged.name, merged.fragment_ids, merged.dataset_version) == ("i", {0, 1, 2}, 1)
    assert ds.commit_existing_index_segments("i", column, [merged, parts[2]]) is ds
    assert coverage(ds.uri) == {"i": [[0, 1, 2], [3]]}
    check(ds.uri)
    assert ds.commit_existing_index_segments("i", column, parts).version == 3
    assert coverage(ds.uri) == {"i": [[0, 1], [2], [3]]}
    check(ds.uri)


@pytest.mark.parametrize("kind", KINDS)
def test_segments_of_both_libraries_are_merged_by_either(tmp_path: Path, kind: str) -> None:
    for merging in (lance, lancetable):
        uri = write(tmp_path / merging.__name__).uri
        column = KINDS[kind]
        ours = lancetable.dataset(uri).create_index_uncommitted(column, kind, "i", fragment_ids=[0, 1])
        theirs = lance.dataset(uri).create_index_uncommitted(column, kind, "i", fragment_ids=[2, 3])
        convert = _to_theirs if merging is lance else _to_ours
        ds = merging.dataset(uri)
        ds.commit_existing_index_segments(
            "i", column, [ds.merge_existing_index_segments([*map(convert, (ours, theirs))])]
        )
        assert coverage(uri) == {"i": [[0, 1, 2, 3]]}
        check(uri)


def _to_ours(index: Any) -> lancetable.Index:
    files = [lancetable.IndexFile(file.path, file.size_bytes) for file in index.files]
    return lancetable.Index(**{**vars(index), "files": files, "fragment_ids": set(index.fragment_ids)})


def _to_theirs(index: Any) -> Any:
    files = [lance.IndexFile(file.path, file.size_bytes) for file in index.files]
    return TheirIndex(**{**vars(index), "files": files, "fragment_ids": set(index.fragment_ids)})


def test_a_segment_can_be_committed_with_an_operation(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    part = ds.create_index_uncommitted("id", "BTREE", "i", fragment_ids=[0, 1, 2, 3])
    ds = lancetable.LanceDataset.commit(ds.uri, LanceOperation.CreateIndex([part], []), read_version=ds.version)
    assert coverage(ds.uri) == {"i": [[0, 1, 2, 3]]}
    check(ds.uri)


def test_parts_may_be_empty(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    parts = [
        ds.create_index_uncommitted("id", "BTREE", "i", fragment_ids=[]),
        ds.create_index_uncommitted("id", "BTREE", "i", fragment_ids=[0], train=False),
    ]
    assert [part.fragment_ids for part in parts] == [set(), set()]
    ds.commit_existing_index_segments("i", "id", parts[:1])
    check(ds.uri)


# --- refusals, as by pylance


def refused(ds: Any, call: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call(ds, _to_ours)
    with pytest.raises((ValueError, RuntimeError)):
        call(lance.dataset(ds.uri), _to_theirs)


def test_segments_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    low, middle = (ds.create_index_uncommitted("id", "BTREE", "i", fragment_ids=ids) for ids in ([0, 1], [1, 2]))
    zones = ds.create_index_uncommitted("id", "ZONEMAP", "i", fragment_ids=[2])
    other = ds.create_index_uncommitted("s", "BTREE", "i", fragment_ids=[3])
    for pair, message in (((low, middle), "overlapping"), ((low, zones), "detail types"), ((low, other), "columns")):
        refused(ds, lambda each, form, pair=pair: each.merge_existing_index_segments([*map(form, pair)]), message)
        refused(
            ds,
            lambda each, form, pair=pair: each.commit_existing_index_segments("i", "id", [*map(form, pair)]),
            message,
        )
    refused(ds, lambda each, form: each.merge_existing_index_segments([]), "at least one")
    refused(ds, lambda each, form: each.commit_existing_index_segments("i", "id", []), "at least one")
    refused(ds, lambda each, form: each.commit_existing_index_segments("i", "s", [form(low)]), "was built for fields")
    assert ds.latest_version == 1


def test_an_existing_segment_is_not_replaced_in_part(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")

    def part(fragments: list[int], kind: str = "BTREE") -> lancetable.Index:
        return ds.create_index_uncommitted("id", kind, "i", fragment_ids=fragments, replace=True)

    ds.commit_existing_index_segments("i", "id", [part([0, 1, 2])])
    new, zones = part([2, 3]), part([0, 1], "ZONEMAP")
    refused(ds, lambda each, form: each.commit_existing_index_segments("i", "id", [form(new)]), "orphan")
    refused(ds, lambda each, form: each.commit_existing_index_segments("i", "id", [form(zones)]), "cannot change|type")
    ds.commit_existing_index_segments("i", "id", [part([3])])
    assert coverage(ds.uri) == {"i": [[0, 1, 2], [3]]}
    ds.commit_existing_index_segments("i", "id", [part([0, 1, 2, 3], "ZONEMAP")])
    assert coverage(ds.uri) == {"i": [[0, 1, 2, 3]]}
    check(ds.uri)


def test_arguments_of_uncommitted_builds_are_checked(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    with pytest.raises(InvalidInputError, match="requires fragment_ids"):
        ds.create_index_uncommitted("id", "BTREE", "i")
    with pytest.raises(InvalidInputError, match="No fragment with id 77"):
        ds.create_index_uncommitted("id", "BTREE", "i", fragment_ids=[77])
    with pytest.raises(InvalidInputError, match="index_uuid is not accepted"):
        ds.create_index_uncommitted("id", "BTREE", "i", fragment_ids=[0], index_uuid="x")
    with pytest.raises(InvalidInputError, match="num_partitions is an argument of vector indexes"):
        ds.create_index_uncommitted("id", "BTREE", "i", fragment_ids=[0], num_partitions=3)
    with pytest.raises(UnsupportedTypeError, match="must be FixedSizeListArray"):
        ds.create_index_uncommitted("id", "IVF_FLAT", "i", fragment_ids=[0])
    ds.create_scalar_index("id", "BTREE", "i")
    with pytest.raises(IndexExistsError, match="already exists"):
        ds.create_index_uncommitted("id", "BTREE", "i", fragment_ids=[0])
    with pytest.raises(InvalidInputError, match="merge_existing_index_segments"):
        ds.merge_index_metadata("x", "BTREE")
    with pytest.raises(UnsupportedFeatureError, match="merge_existing_index_segments"):
        ds.merge_index_metadata("x", "BITMAP")
    with pytest.raises(TypeError, match="Index objects"):
        ds.merge_existing_index_segments(["x"])  # type: ignore[list-item]


# --- changes between build and commit


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
def test_fragments_whose_column_was_rewritten_after_the_build_are_not_covered(tmp_path: Path, stable: bool) -> None:
    ds = write(tmp_path / "t.lance", stable=stable)
    parts = [ds.create_index_uncommitted("s", "BITMAP", "i", fragment_ids=group) for group in ([0, 1], [2, 3])]
    changed = pa.table({"id": [1, 2, 40], "s": ["new"] * 3})
    other = lancetable.dataset(ds.uri)
    other.merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(changed)
    other.update({"s": "'moved'"}, where="id = 100")
    ds.checkout_latest()
    ds.commit_existing_index_segments("i", "s", parts)
    assert coverage(ds.uri) == {"i": [[], [2, 3]]}
    assert ds.count_rows("s = 'new'") == 3 and ds.count_rows("s = 'moved'") == 1
    check(ds.uri)
    ds.optimize.optimize_indices()
    check(ds.uri)


def test_rows_that_moved_after_the_build_are_found_by_their_new_values_only(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance", stable=True)
    early = ds.create_index_uncommitted("s", "BITMAP", "i", fragment_ids=[0, 1, 2, 3])
    ds.update({"s": "'new'"}, where="id < 5")
    new = max(fragment.fragment_id for fragment in ds.get_fragments())
    late = ds.create_index_uncommitted("s", "BITMAP", "i", fragment_ids=[new])
    ds.commit_existing_index_segments("i", "s", [early, late])
    assert sorted(coverage(ds.uri)["i"]) == [[0, 1, 2, 3], [new]]
    check(ds.uri)


def test_a_segment_of_a_removed_version_is_refused(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    part = ds.create_index_uncommitted("id", "BTREE", "i", fragment_ids=[0])
    ds.delete("id = 3")
    ds.cleanup_old_versions(retain_versions=1)
    with pytest.raises(InvalidOperationError, match="was built on version 1, which was removed"):
        ds.commit_existing_index_segments("i", "id", [part])


def test_two_commits_of_parts_of_one_index_are_both_kept(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    late = lancetable.dataset(ds.uri)
    parts = [ds.create_index_uncommitted("id", "BTREE", "i", fragment_ids=group) for group in ([0, 1], [2, 3])]
    ds.commit_existing_index_segments("i", "id", parts[:1])
    late.commit_existing_index_segments("i", "id", parts[1:])
    assert coverage(ds.uri) == {"i": [[0, 1], [2, 3]]}
    check(ds.uri)
