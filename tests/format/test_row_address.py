"""Row addresses: a fragment id and a row offset in one number."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lancetable.format import row_address

U32 = st.integers(0, 2**32 - 1)


@given(st.lists(st.tuples(U32, U32)))
def test_addresses_are_joined_and_split(pairs):
    fragments = np.array([pair[0] for pair in pairs], np.uint64)
    offsets = np.array([pair[1] for pair in pairs], np.uint64)
    addresses = row_address.join(fragments, offsets)
    assert addresses.dtype == np.uint64
    assert addresses.tolist() == [row_address.address(*pair) for pair in pairs]
    again = row_address.split(addresses)
    assert (again[0] == fragments).all() and (again[1] == offsets).all()


def test_one_fragment_id_is_joined_with_all_offsets():
    assert row_address.join(3, np.array([0, 7], np.int64)).tolist() == [3 << 32, (3 << 32) + 7]
    assert row_address.first(3) == 3 << 32
