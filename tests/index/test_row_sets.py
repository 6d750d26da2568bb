"""Sets of rows: algebra against Python sets, and their serialized forms."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.index import row_sets
from lancetable.index.results import Exactness, IndexResult
from lancetable.index.row_sets import RowSet

ADDRESSES = st.sets(
    st.builds(lambda fragment, offset: fragment << 32 | offset, st.integers(0, 3), st.integers(0, 70_000)), max_size=40
)


def row_set(addresses: set[int]) -> RowSet:
    return RowSet.of(np.array(list(addresses), np.uint64))


@given(ADDRESSES, ADDRESSES)
def test_algebra_equals_that_of_sets(left: set[int], right: set[int]) -> None:
    first, second = row_set(left), row_set(right)
    assert set(first & second) == left & right
    assert set(first | second) == left | right
    assert set(first - second) == left - right
    assert len(first) == len(left)
    assert first.addresses().tolist() == sorted(left)
    assert (first == second) == (left == right)


@given(ADDRESSES)
def test_serialized_forms_are_read_back(addresses: set[int]) -> None:
    rows = row_set(addresses)
    assert RowSet.from_row_addr_tree_map(memoryview(rows.to_row_addr_tree_map()), "x") == rows
    assert RowSet.from_roaring_treemap(memoryview(rows.to_roaring_treemap()), "x") == rows


@given(ADDRESSES, st.data())
def test_damaged_forms_raise_or_give_another_set(addresses: set[int], data: st.DataObject) -> None:
    content = bytearray(row_set(addresses).to_row_addr_tree_map())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        RowSet.from_row_addr_tree_map(memoryview(bytes(content)), "x")
    except CorruptFileError as error:
        assert error.path == "x"  # either outcome is allowed


def test_a_set_without_the_bytes_of_a_bitmap_is_reported() -> None:
    with pytest.raises(CorruptFileError, match="damaged roaring bitmap"):
        RowSet.from_roaring_treemap(memoryview(b"\x01\0\0\0\0\0\0\0\x05\0\0\0"), "x")


def test_a_truncated_roaring_treemap_is_damage() -> None:
    content = RowSet.of(np.array([1, 2, 1 << 40])).to_roaring_treemap()
    for size in range(len(content)):
        with pytest.raises(CorruptFileError):
            RowSet.from_roaring_treemap(memoryview(content)[:size], "x")


def test_numbers_below_an_end_are_selected() -> None:
    rows = RowSet.of_fragments({0: 1 << 32, 1: 10, 2: 3})
    assert rows.below(7) == RowSet.of_fragments({0: 7})
    assert rows.below((1 << 32) + 4) == RowSet.of_fragments({0: 1 << 32, 1: 4})
    assert rows.below(1 << 63) == rows


def test_a_size_of_zero_selects_the_whole_fragment() -> None:
    rows = RowSet.from_row_addr_tree_map(memoryview(b"\x01\0\0\0\x05\0\0\0\0\0\0\0"), "x")
    assert rows & RowSet.of_fragments({5: 10, 6: 10}) == RowSet.of_fragments({5: 10})
    assert rows.whole_fragments == [5]
    assert rows.last == 5 << 32
    assert (rows | RowSet.of_fragments({6: 3})).bounded({5: 10}.__getitem__) == RowSet.of_fragments({5: 10, 6: 3})
    others = rows - row_set({5 << 32, (5 << 32) + 7, (5 << 32) + 50})
    assert others.last == 5 << 32
    assert set(others.bounded(lambda _: 9)) == {(5 << 32) + offset for offset in (1, 2, 3, 4, 5, 6, 8)}


@given(ADDRESSES)
def test_batches_contain_all_rows(addresses: set[int]) -> None:
    rows = row_set(addresses)
    with patch.object(row_sets, "_MAX_WAITING_ROWS", 3):
        batches = [batch.tolist() for batch in rows.batches()]
    assert [row for batch in batches for row in batch] == sorted(addresses)
    assert all(batch and len(batch) <= 5 for batch in batches)


@pytest.mark.parametrize("left", list(Exactness))
@pytest.mark.parametrize("right", list(Exactness))
@given(data=st.data())
def test_results_bound_the_rows_of_the_predicate(left: Exactness, right: Exactness, data: st.DataObject) -> None:
    """Draw the value of two predicates for each row and inexact results for them, and check AND, OR and NOT."""
    num_rows = 12
    covered = RowSet.of_fragments({0: num_rows})

    def draw(exactness: Exactness) -> tuple[list[bool | None], IndexResult]:
        values = data.draw(st.lists(st.sampled_from([True, False, None]), min_size=num_rows, max_size=num_rows))
        null = set() if exactness is not Exactness.EXACT else {row for row in range(num_rows) if values[row] is None}
        true = {row for row in range(num_rows) if values[row]}
        others = {row for row in range(num_rows) if data.draw(st.booleans())}
        if exactness is Exactness.AT_MOST:
            true |= others
        if exactness is Exactness.AT_LEAST:
            true &= others
        return values, IndexResult(row_set(true), row_set(null - true), exactness)

    def check(expected: list[bool | None], result: IndexResult) -> None:
        true = {row for row in range(num_rows) if expected[row]}
        if result.exactness is Exactness.EXACT:
            assert set(result.true) == true
            assert set(result.null) == {row for row in range(num_rows) if expected[row] is None}
        elif result.exactness is Exactness.AT_MOST:
            assert set(result.true) >= true
        else:
            assert set(result.true) <= true
        assert not result.true & result.null

    (first, first_result), (second, second_result) = draw(left), draw(right)
    pairs = list(zip(first, second, strict=True))
    conjunction = [False if False in pair else None if None in pair else True for pair in pairs]
    disjunction = [True if True in pair else None if None in pair else False for pair in pairs]
    check(conjunction, first_result & second_result)
    check(disjunction, first_result | second_result)
    if left is Exactness.EXACT:
        check([None if value is None else not value for value in first], first_result.negated(covered))
