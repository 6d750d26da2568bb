"""Byte ranges: which requests to send for the ranges a caller wants, and how to cut the replies.

    wanted    [a)   [b)            [c ........................ )
    sent      [a ... b)            [c .......)[..........)[....)     near ones merged, large ones split

Pure functions; the stores send the requests and check the length of each reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["LOCAL_GAP_BYTES", "REMOTE_GAP_BYTES", "SPLIT_BYTES", "ByteRange", "merge_ranges", "split_reply"]

REMOTE_GAP_BYTES = 64 * 1024  # skipping less than this costs more in a second round trip than in bytes
LOCAL_GAP_BYTES = 4 * 1024
SPLIT_BYTES = 8 * 1024 * 1024


class ByteRange(NamedTuple):
    """Bytes `start` up to, not including, `end`."""

    start: int
    end: int


def merge_ranges(ranges: Sequence[ByteRange], gap: int = REMOTE_GAP_BYTES, split: int = SPLIT_BYTES) -> list[ByteRange]:
    """The requests that cover all ranges: ascending, disjoint, none longer than `split`, none empty.

    Ranges that overlap, touch, or lie less than `gap` bytes apart are fetched together. The number of requests grows
    with the bytes wanted: ranges from a damaged file are checked against its size before they come here.
    """
    wanted = sorted(r for r in ranges if r[0] < r[1])
    if not wanted:
        return []
    runs: list[tuple[int, int]] = []
    start, end = wanted[0]
    for next_start, next_end in wanted[1:]:
        if next_start <= end or next_start - end < gap:
            end = max(end, next_end)
        else:
            runs.append((start, end))
            start, end = next_start, next_end
    runs.append((start, end))
    return [ByteRange(at, min(at + split, stop)) for begin, stop in runs for at in range(begin, stop, split)]


def split_reply(
    ranges: Sequence[ByteRange], requests: Sequence[ByteRange], replies: Sequence[memoryview]
) -> list[memoryview]:
    """Cut the replies to `merge_ranges(ranges)` back into one buffer for each range, in the caller's order.

    A range inside one reply is a slice of it; one that was split over several is joined by a copy. Every reply must
    have the length of its request: the store checks that first.
    """
    result: list[memoryview] = [memoryview(b"")] * len(ranges)
    order = sorted(range(len(ranges)), key=ranges.__getitem__)
    first = 0
    for index in order:
        start, end = ranges[index]
        if start >= end:
            continue
        while requests[first][1] <= start:
            first += 1
        request_start, request_end = requests[first]
        if end <= request_end:
            result[index] = replies[first][start - request_start : end - request_start]
            continue
        parts: list[memoryview] = []
        last = first
        while last < len(requests) and requests[last][0] < end:
            at = requests[last][0]
            parts.append(replies[last][max(start - at, 0) : end - at])
            last += 1
        result[index] = memoryview(b"".join(parts))
    return result
