"""New addresses of rows that a compaction has moved."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import InvalidOperationError
from lancetable.index.row_mapping import MovedGroup, OldFragment, RowMapping


def old(fragment_id: int, num_rows: int, *deleted: int) -> OldFragment:
    return OldFragment(fragment_id, num_rows, num_rows - len(deleted), np.array(deleted, np.uint32))


def address(fragment_id: int, offset: int) -> int:
    return fragment_id << 32 | offset


def apply(mapping: RowMapping, *rows: int) -> list[int | None]:
    new, exists = mapping.apply(np.array(rows, np.uint64))
    return [row if live else None for row, live in zip(new.tolist(), exists.tolist())]


def test_live_rows_keep_their_order_across_fragments() -> None:
    mapping = RowMapping([MovedGroup([old(3, 4, 2), old(4, 2)], [(9, 3), (10, 2)])])
    rows = [address(4, 1), address(3, 0), address(3, 3), address(4, 0), address(3, 1)]
    assert apply(mapping, *rows) == [address(10, 1), address(9, 0), address(9, 2), address(10, 0), address(9, 1)]
    assert mapping.num_rows == {3: 4, 4: 2}


def test_deleted_rows_do_not_exist() -> None:
    mapping = RowMapping([MovedGroup([old(3, 4, 2)], [(9, 3)])])
    assert apply(mapping, address(3, 2)) == [None]


def test_offsets_past_the_end_of_a_fragment_are_unchanged() -> None:
    mapping = RowMapping([MovedGroup([old(3, 4, 2)], [(9, 3)])])
    assert apply(mapping, address(3, 4), address(3, 2**32 - 1)) == [address(3, 4), address(3, 2**32 - 1)]


def test_rows_of_other_fragments_are_unchanged() -> None:
    mapping = RowMapping([MovedGroup([old(3, 1)], [(9, 1)])])
    assert apply(mapping, address(2, 7), address(4, 0), address(2**32 - 1, 5)) == [
        address(2, 7),
        address(4, 0),
        address(2**32 - 1, 5),
    ]
    assert apply(RowMapping([]), address(2, 7)) == [address(2, 7)]


def test_no_row_remains_of_a_group_without_new_fragments() -> None:
    mapping = RowMapping([MovedGroup([old(3, 2, 0, 1)], [])])
    assert apply(mapping, address(3, 0), address(4, 0)) == [None, address(4, 0)]


def test_groups_that_lose_or_invent_rows_are_refused() -> None:
    with pytest.raises(InvalidOperationError, match="differ by 1 live rows"):
        RowMapping([MovedGroup([old(3, 2)], [(9, 1)])])
    with pytest.raises(InvalidOperationError, match="several groups"):
        RowMapping([MovedGroup([old(3, 1)], [(9, 1)]), MovedGroup([old(3, 1)], [(10, 1)])])


@st.composite
def compactions(draw: st.DrawFn) -> tuple[RowMapping, dict[int, int | None]]:
    """Return a mapping, and the expected new address of each row of its old fragments."""
    ids = iter(draw(st.permutations(range(12))))
    next_id, expected, groups = 100, {}, []
    for size in draw(st.lists(st.integers(1, 3), max_size=4)):
        fragments, live = [], []
        for _ in range(size):
            mask = draw(st.lists(st.booleans(), max_size=8))
            fragment_id = next(ids)
            fragments.append(old(fragment_id, len(mask), *(row for row, deleted in enumerate(mask) if deleted)))
            expected.update({address(fragment_id, row): None for row in range(len(mask))})
            live += [address(fragment_id, row) for row, deleted in enumerate(mask) if not deleted]
        new, start = [], 0
        while start < len(live):
            count = draw(st.integers(1, len(live) - start))
            expected.update({live[start + row]: address(next_id, row) for row in range(count)})
            new.append((next_id, count))
            next_id, start = next_id + 1, start + count
        groups.append(MovedGroup(fragments, new))
    return RowMapping(groups), expected


@given(compactions(), st.randoms())
def test_mapping_equals_a_dict_of_rows(compaction: tuple[RowMapping, dict[int, int | None]], random: Random) -> None:
    mapping, expected = compaction
    rows = [address(fragment_id, offset) for fragment_id in range(13) for offset in range(9)]
    random.shuffle(rows)
    wanted = [expected.get(row, row) for row in rows]
    assert apply(mapping, *rows) == wanted
