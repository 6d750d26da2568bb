"""Byte ranges: merging of the requested ranges into requests, and splitting of the replies.

    ranges      [a)   [b)            [c ........................ )
    requests    [a ... b)            [c .......)[..........)[....)     near ones merged, large ones split

Pure functions. The stores send the requests and check the length of each reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

REMOTE_GAP_BYTES = 64 * 1024  # reading a smaller gap costs less than a second round trip
LOCAL_GAP_BYTES = 4 * 1024
SPLIT_BYTES = 8 * 1024 * 1024


class ByteRange(NamedTuple):
    """Bytes from `start` up to, but not including, `end`."""

    start: int
    end: int


def coalesce_ranges(
    ranges: Sequence[ByteRange], gap: int = REMOTE_GAP_BYTES, split: int = SPLIT_BYTES
) -> list[ByteRange]:
    """Return the requests that cover all ranges: ascending, disjoint, not empty, at most `split` bytes each.

    Ranges that overlap, touch, or are less than `gap` bytes apart share a request. The number of requests grows with
    the number of bytes, so callers must check ranges from a damaged file against its size first.
    """
    nonempty = sorted(r for r in ranges if r[0] < r[1])
    if not nonempty:
        return []
    runs: list[tuple[int, int]] = []
    start, end = nonempty[0]
    for next_start, next_end in nonempty[1:]:
        if next_start <= end or next_start - end < gap:
            end = max(end, next_end)
        else:
            runs.append((start, end))
            start, end = next_start, next_end
    runs.append((start, end))
    return [ByteRange(low, min(low + split, stop)) for begin, stop in runs for low in range(begin, stop, split)]


def split_reply(
    ranges: Sequence[ByteRange], requests: Sequence[ByteRange], replies: Sequence[memoryview]
) -> list[memoryview]:
    """Split the replies to `coalesce_ranges(ranges)` into one buffer for each range, in the caller's order.

    Parameters
    ----------
    ranges
        The ranges of the caller, in any order.
    requests
        The result of `coalesce_ranges` for these ranges.
    replies
        One buffer for each request, of exactly its length. The store checks the lengths first.

    Returns
    -------
    list of memoryview
        A slice of a reply for each range, or a copy if the range spans several replies.
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
            request_offset = requests[last][0]
            parts.append(replies[last][max(start - request_offset, 0) : end - request_offset])
            last += 1
        result[index] = memoryview(b"".join(parts))
    return result
