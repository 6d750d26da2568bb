"""Containers of roaring bitmaps in columns: their serialized forms, unions, and damaged bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.format.roaring import BITSET_BYTES
from lancetable.index import roaring_containers
from lancetable.index.roaring_containers import ROARING_TREEMAP, ROW_ADDR_TREE_MAP, Containers, Form, parse
from lancetable.index.row_sets import RowSet
from lancetable.index.sort_keys import radix_order

ROWS = st.builds(lambda fragment, offset: fragment << 32 | offset, st.integers(0, 2), st.integers(0, 140_000))
RANGES = st.tuples(ROWS, st.integers(4000, 9000), st.integers(1, 3)).map(
    lambda drawn: set(range(drawn[0], drawn[0] + drawn[1] * drawn[2], drawn[2]))
)
SETS = st.lists(st.one_of(st.sets(ROWS, max_size=12), RANGES), max_size=4)
FORMS = pytest.mark.parametrize("form", [ROW_ADDR_TREE_MAP, ROARING_TREEMAP], ids=["RowAddrTreeMap", "RoaringTreemap"])


def containers_of(sets: list[set[int]]) -> Containers:
    keys = [number for number, rows in enumerate(sets) for _ in rows]
    return Containers.of(np.array(keys, np.int64), np.array([row for rows in sets for row in rows], np.uint64))


def sets_of(containers: Containers, count: int) -> list[set[int]]:
    sets: list[set[int]] = [set() for _ in range(count)]
    keys, rows = containers.rows()
    for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
        assert row not in sets[key]
        sets[key].add(row)
    return sets


def row_set(data: bytes, form: Form) -> set[int]:
    parse_one = RowSet.from_row_addr_tree_map if form is ROW_ADDR_TREE_MAP else RowSet.from_roaring_treemap
    return set(parse_one(memoryview(data), "x"))


@FORMS
@given(sets=SETS)
def test_serialized_containers_are_those_of_row_sets(form: Form, sets: list[set[int]]) -> None:
    bitmaps = containers_of(sets).serialized(len(sets), form)
    assert [row_set(data, form) for data in bitmaps.to_pylist()] == sets
    assert sets_of(parse(bitmaps, form, "x"), len(sets)) == sets


@FORMS
@given(sets=SETS)
def test_serialized_row_sets_are_parsed(form: Form, sets: list[set[int]]) -> None:
    """Row sets are serialized with run containers."""
    serialize = RowSet.to_row_addr_tree_map if form is ROW_ADDR_TREE_MAP else RowSet.to_roaring_treemap
    bitmaps = pa.array([serialize(RowSet.of(np.array([*rows], np.uint64))) for rows in sets], pa.binary())
    assert sets_of(parse(bitmaps, form, "x"), len(sets)) == sets
    if len(sets):
        assert sets_of(parse(bitmaps[1:], form, "x"), len(sets) - 1) == sets[1:]


@given(parts=st.lists(SETS, max_size=4))
def test_concatenated_containers_contain_all_rows(parts: list[list[set[int]]]) -> None:
    count = max(map(len, parts), default=0)
    expected: list[set[int]] = [set() for _ in range(count)]
    for sets in parts:
        for number, rows in enumerate(sets):
            expected[number] |= rows
    joined = Containers.concat([containers_of(sets) for sets in parts])
    assert sets_of(joined, count) == expected
    bitmaps = joined.serialized(count, ROW_ADDR_TREE_MAP).to_pylist()
    assert [row_set(data, ROW_ADDR_TREE_MAP) for data in bitmaps] == expected


@given(st.lists(st.tuples(st.integers(0, 3), ROWS), max_size=30))
def test_unordered_and_repeated_rows_are_accepted(pairs: list[tuple[int, int]]) -> None:
    keys, rows = np.array([key for key, _ in pairs], np.int64), np.array([row for _, row in pairs], np.uint64)
    expected = [{row for key, row in pairs if key == number} for number in range(4)]
    assert sets_of(Containers.of(keys, rows), 4) == expected


@pytest.mark.parametrize(
    "numbers",
    [
        np.array([3, -5, 2**62, -(2**62), 0, 3], np.int64),
        np.array([2**64 - 1, 0, 2**63, 5], np.uint64),
        np.array([200, 3, 200, 0], np.uint8),
        np.array([], np.int32),
        np.arange(300_000, dtype=np.int64)[::-1] * 12_345,
    ],
)
def test_the_radix_sort_is_stable(numbers: np.ndarray) -> None:
    assert radix_order(numbers).tolist() == np.argsort(numbers, kind="stable").tolist()


@FORMS
@given(sets=SETS.filter(len), data=st.data())
def test_damaged_bitmaps_raise_or_are_sets(form: Form, sets: list[set[int]], data: st.DataObject) -> None:
    bitmaps = containers_of(sets).serialized(len(sets), form).to_pylist()
    content = bytearray(bitmaps[0])
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, min(len(content) - 1, 200)))] ^= data.draw(st.integers(1, 255))
    damaged = pa.array([bytes(content), *bitmaps[1:]], pa.binary())
    try:
        found = sets_of(parse(damaged, form, "x"), len(sets))
    except CorruptFileError as error:
        assert error.path == "x"
    else:
        # The other parser accepts it, too, and reads the same rows.
        assert found == [row_set(bytes(content), form), *sets[1:]]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\1\0\0\0",
        b"\2\0\0\0" + 2 * (b"\0\0\0\0\x12\0\0\0" + BitMap([1]).serialize()),  # a fragment occurs twice
        b"\1\0\0\0\0\0\0\0\x13\0\0\0" + BitMap([1]).serialize() + b"\0",
    ],
)
def test_impossible_bitmaps_are_refused(content: bytes) -> None:
    with pytest.raises(CorruptFileError):
        parse(pa.array([content], pa.binary()), ROW_ADDR_TREE_MAP, "x")


def test_whole_fragments_are_not_expanded() -> None:
    with pytest.raises(UnsupportedFeatureError, match="whole fragments"):
        parse(pa.array([b"\1\0\0\0\0\0\0\0\0\0\0\0"], pa.binary()), ROW_ADDR_TREE_MAP, "x")


def test_large_runs_are_not_expanded() -> None:
    large = RowSet.of_fragments({3: 1 << 30}).to_row_addr_tree_map()
    assert len(large) < 1 << 18
    with pytest.raises(UnsupportedFeatureError, match="too large"):
        parse(pa.array([large], pa.binary()), ROW_ADDR_TREE_MAP, "x")
    limit, small = roaring_containers._MAX_RUN_BYTES, RowSet.of_fragments({3: 3 << 20})
    assert limit > 3 * BITSET_BYTES * 48
    parsed = parse(pa.array(3 * [small.to_row_addr_tree_map()], pa.binary()), ROW_ADDR_TREE_MAP, "x")
    assert RowSet.of(parsed.rows()[1]) == small
    assert parsed.num_rows == 9 << 20


def test_null_bitmaps_are_refused() -> None:
    with pytest.raises(CorruptFileError, match="null"):
        parse(pa.array([None], pa.binary()), ROW_ADDR_TREE_MAP, "x")
