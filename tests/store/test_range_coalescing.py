"""Coalescing of byte ranges into requests, and splitting of the replies."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lancetable.store.range_coalescing import ByteRange, coalesce_ranges, split_reply

DATA = bytes(i * 7 % 251 for i in range(400))

RANGES = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 400)).map(lambda pair: ByteRange(min(pair), max(pair))), max_size=12
)


@given(RANGES, st.integers(0, 60), st.integers(1, 90))
def test_split_replies_equal_the_requested_ranges(ranges: list[ByteRange], gap: int, split: int) -> None:
    requests = coalesce_ranges(ranges, gap, split)
    replies = [memoryview(DATA)[start:end] for start, end in requests]
    assert split_reply(ranges, requests, replies) == [DATA[start:end] for start, end in ranges]


@given(RANGES, st.integers(0, 60), st.integers(1, 90))
def test_requests_are_ascending_disjoint_and_bounded_with_small_gaps(
    ranges: list[ByteRange], gap: int, split: int
) -> None:
    requests = coalesce_ranges(ranges, gap, split)
    assert all(0 < end - start <= split for start, end in requests)
    assert all(one.end <= two.start for one, two in pairwise(requests))
    requested = {i for start, end in ranges for i in range(start, end)}
    sent = {i for start, end in requests for i in range(start, end)}
    assert requested <= sent
    runs = "".join("x" if i in requested else ("." if i in sent else " ") for i in range(401)).split()
    assert all(len(hole) < max(gap, 1) for run in runs for hole in run.split("x") if hole)


def test_near_ranges_share_a_request_and_large_ones_are_split() -> None:
    near = [ByteRange(0, 10), ByteRange(70_000, 70_010), ByteRange(200_000, 200_001)]
    assert coalesce_ranges(near) == near
    assert coalesce_ranges([ByteRange(0, 10), ByteRange(60_000, 60_010)]) == [ByteRange(0, 60_010)]
    mib = 1 << 20
    assert [end - start for start, end in coalesce_ranges([ByteRange(5, 5 + 20 * mib)])] == [8 * mib, 8 * mib, 4 * mib]
    assert coalesce_ranges([ByteRange(7, 7)]) == []


def test_range_inside_one_reply_is_not_copied() -> None:
    reply = memoryview(DATA)
    (part,) = split_reply([ByteRange(10, 20)], [ByteRange(0, 400)], [reply])
    assert part.obj is reply.obj
