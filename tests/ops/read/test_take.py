"""Takes by position, row id and address, against pylance on tables it wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import ColumnNotFoundError, InvalidInputError, OutOfRangeError
from lancetable.ops.read.scan import scan_table, slice_rows
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.read.take import _reorder, sample, take_addresses, take_offsets, take_row_ids

COLUMNS: list[Any] = [
    None,
    ["k"],
    ["s", "l", "v", "dic", "u"],
    ["st.x", "k", "st.in.z"],
    ["made", "empty", "tag", "b", "f"],
    ["_rowid", "k", "_rowaddr", "_rowoffset"],
    ["_rowaddr"],
    {"a": "k + 1", "b": "st.x", "r": "_rowid"},
]


def assert_equal(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema.names == expected.schema.names
    assert found.schema.types == expected.schema.types
    assert found.num_rows == expected.num_rows
    for name in expected.schema.names:
        assert repr(found.column(name).to_pylist()) == repr(expected.column(name).to_pylist()), name


@pytest.mark.parametrize("columns", COLUMNS, ids=str)
@given(data=st.data())
def test_any_positions_equal_pylance(busy: Any, columns: Any, data: st.DataObject) -> None:
    total = busy.theirs.count_rows()
    positions = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=40))
    if data.draw(st.booleans()):
        start = data.draw(st.integers(0, total - 1))
        positions += list(range(start, min(total, start + 30)))
    assert_equal(take_offsets(busy.ours, positions, columns), busy.theirs.take(positions, columns=columns))


@pytest.mark.parametrize("columns", COLUMNS, ids=str)
def test_a_reversed_take_equals_the_reversed_scan(busy: Any, columns: Any) -> None:
    total = busy.theirs.count_rows()
    backwards = np.arange(total)[::-1]
    assert_equal(take_offsets(busy.ours, backwards, columns), busy.theirs.take(backwards.tolist(), columns=columns))


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_long_lists_are_reordered(kind: Any) -> None:
    """Long lists are copied as a whole, short ones by Arrow."""
    values = [[f"{row}-{item}" if item % 7 else None for item in range(row % 4 * 2000)] for row in range(12)]
    values[3] = None
    array = pa.array(values, kind(pa.string()))
    rows = [9, 2, 2, 0, 10, 7, 9]
    taken = _reorder(array[1:], pa.array(rows))
    assert taken.to_pylist() == [values[1 + row] for row in rows]
    taken.validate(full=True)


@given(data=st.data())
def test_row_ids_equal_pylance(busy: Any, data: st.DataObject) -> None:
    known = busy.theirs.to_table(columns=["_rowid"]).column(0).to_pylist()
    ids = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=20))
    expected = busy.theirs._take_rows(ids, columns=["k", "s", "st"])
    assert_equal(take_row_ids(busy.ours, ids, ["k", "s", "st"]), expected)
    addresses = take_row_ids(busy.ours, ids, ["_rowaddr"]).column(0)
    assert_equal(take_addresses(busy.ours, addresses, ["k", "s", "st"]), expected)


def test_the_current_time_is_that_of_the_take(busy: Any) -> None:
    first, second = (take_offsets(busy.ours, [0], {"at": "now()"})["at"][0].as_py() for _ in range(2))
    assert second > first


def test_deleted_rows_are_left_out(busy: Any) -> None:
    live = busy.theirs.to_table(columns=["_rowid", "_rowaddr"]).to_pydict()
    dead_addresses = [address for address in range(ROWS) if address not in set(live["_rowaddr"])]
    assert dead_addresses
    address = live["_rowaddr"][0]
    wanted = [dead_addresses[0], address, 77 << 32]
    assert take_addresses(busy.ours, wanted, ["_rowaddr"]).column(0).to_pylist() == [address]
    dead_ids = [each for each in range(ROWS) if each not in set(live["_rowid"])]
    wanted = [dead_ids[0], live["_rowid"][0]]
    assert take_row_ids(busy.ours, wanted, ["_rowid"]).column(0).to_pylist() == [live["_rowid"][0]]


ROWS = 100  # fewer than the first fragment has


def test_addresses_of_many_fragments_in_any_order(busy: Any) -> None:
    live = busy.theirs.to_table(columns=["_rowaddr", "k"]).to_pydict()
    key_of = dict(zip(live["_rowaddr"], live["k"], strict=True))
    rng = np.random.default_rng(5)
    fragment_ids = [fragment.fragment_id for fragment in busy.theirs.get_fragments()]
    wanted = [fragment_id << 32 | int(offset) for fragment_id in fragment_ids for offset in rng.integers(0, 9, 6)]
    wanted = rng.permutation(np.array([*wanted, 99 << 32], np.uint64))
    found = take_addresses(busy.ours, wanted, ["k"]).column(0).to_pylist()
    assert found == [key_of[address] for address in wanted.tolist() if address in key_of]
    assert 0 < len(found) < len(wanted)


def test_positions_within_one_fragment(busy: Any) -> None:
    for fragment in busy.theirs.get_fragments():
        total = fragment.count_rows()
        positions = sorted({0, total // 2, total - 1})
        expected = fragment.take(positions, columns=["k", "s"])
        assert_equal(take_offsets(busy.ours, positions, ["k", "s"], fragment=fragment.fragment_id), expected)
        with pytest.raises(OutOfRangeError):
            take_offsets(busy.ours, [total], ["k"], fragment=fragment.fragment_id)


@pytest.mark.parametrize(
    "indices", [[3, 1], np.array([3, 1], np.uint8), pa.array([3, 1]), pa.chunked_array([[3], [1]]), range(3, 1, -1)]
)
def test_positions_of_every_supported_type(busy: Any, indices: Any) -> None:
    expected = busy.theirs.take(list(indices) if isinstance(indices, range) else [3, 1], columns=["k"])
    assert_equal(take_offsets(busy.ours, indices, ["k"]), expected)


def test_take_without_positions_returns_no_rows(busy: Any) -> None:
    assert_equal(take_offsets(busy.ours, [], ["k", "st.x"]), busy.theirs.take([], columns=["k", "st.x"]))


@pytest.mark.parametrize(
    ("indices", "columns", "error"),
    [
        ([-1], None, OutOfRangeError),
        ([10**6], None, OutOfRangeError),
        ([2**70], None, OutOfRangeError),
        (np.array([2**63], np.uint64), None, OutOfRangeError),
        (["a"], None, TypeError),
        ([1.0], None, TypeError),
        ([None], None, TypeError),
        ([[1]], None, TypeError),
        ([0], ["nope"], ColumnNotFoundError),
        ([0], "k", TypeError),
    ],
)
def test_invalid_arguments_are_rejected(busy: Any, indices: Any, columns: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        take_offsets(busy.ours, indices, columns)


def test_addresses_past_the_end_of_a_fragment_are_rejected(busy: Any) -> None:
    with pytest.raises(OutOfRangeError):
        take_addresses(busy.ours, [0, 5000], ["k"])
    with pytest.raises(OutOfRangeError):
        take_addresses(busy.ours, [-1], ["k"])


def test_samples_are_distinct_rows(busy: Any) -> None:
    total = busy.theirs.count_rows()
    keys = sample(busy.ours, 50, ["k"]).column(0).to_pylist()
    assert len(set(keys)) == 50
    ordered = sample(busy.ours, 50, ["k", "_rowoffset"], randomize_order=False).column(1).to_pylist()
    assert ordered == sorted(ordered)
    assert sorted(sample(busy.ours, total, ["k"])["k"].to_pylist()) == sorted(busy.theirs.to_table()["k"].to_pylist())
    for wrong in (-1, total + 1):
        with pytest.raises(InvalidInputError):
            sample(busy.ours, wrong)


def test_slices_equal_pylance(busy: Any) -> None:
    total = busy.theirs.count_rows()
    for start, end in ((0, 5), (100, 140), (total - 3, total + 9), (5, 5)):
        assert_equal(slice_rows(busy.ours, start, end, ["k", "s"]), busy.theirs.slice(start, end).select(["k", "s"]))
    for start, end in ((5, 2), (-1, 2)):
        with pytest.raises(InvalidInputError):
            slice_rows(busy.ours, start, end)


def test_row_offsets_of_a_scan_are_positions_of_a_take(busy: Any) -> None:
    table = scan_table(busy.ours, plan_scan(busy.ours, ScanOptions(columns=["k", "_rowoffset"], filter="i is null")))
    assert_equal(take_offsets(busy.ours, table.column(1), ["k"]), table.select(["k"]))
