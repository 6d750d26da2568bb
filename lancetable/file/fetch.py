"""Rounds of byte ranges: a decoder asks, the reader fetches.

    decoder (ReadPlan)                      run
    yield [offsets of the rows]      ->     store.read_many
    yield [bytes between them]       ->     store.read_many
    return array

A decoder is a generator. It yields the ranges that it needs next, absolute in the file, and is sent one buffer for
each. `gather` advances many decoders together, so that a round of all of them is one call of the store. Tests drive a
decoder with slices of plain bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file import pool
from lancetable.store.base import ByteRange, ObjectStore

__all__ = [
    "MAPPED",
    "REMOTE_GAP_BYTES",
    "Blocks",
    "RangeSource",
    "ReadPlan",
    "Rows",
    "Slots",
    "aligned_buffer",
    "bits_between",
    "cluster",
    "count_slots",
    "fetch_bits",
    "fetch_slots",
    "gap_bytes",
    "gap_within",
    "gather",
    "join",
    "positions",
    "run",
    "run_all",
    "run_each",
]

T = TypeVar("T")
ReadPlan = Generator[Sequence[ByteRange], Sequence[memoryview], T]

MAPPED: Final = sys.maxsize
"""The gap of a store whose ranges are slices of a memory map: a range costs nothing until its bytes are touched."""

REMOTE_GAP_BYTES: Final = 16 * 1024
"""Rows nearer than this are asked for as one range; the store merges further."""

_SHARE_BETWEEN: Final = 64

PARALLEL_BYTES: Final = 1 << 20
"""Below this a thread costs more than it saves."""


class Blocks(NamedTuple):
    """Rows of `size` values each: the values `rows[i] * size` up to `(rows[i] + 1) * size`."""

    rows: npt.NDArray[np.int64]
    size: int


Rows: TypeAlias = "range | npt.NDArray[np.int64]"
"""A range of step 1, or ascending row numbers without repeats; never empty where an encoding sees it."""

Slots: TypeAlias = "range | npt.NDArray[np.int64] | Blocks"
"""Which values of an encoded array are wanted; blocks come from fixed-size lists."""


def count_slots(slots: Slots) -> int:
    """How many values these are."""
    return len(slots.rows) * slots.size if isinstance(slots, Blocks) else len(slots)


def positions(slots: Slots) -> Rows:
    """The same values without blocks."""
    if isinstance(slots, Blocks):
        return (slots.rows[:, None] * slots.size + np.arange(slots.size)).reshape(-1)
    return slots


# ------------------------------------------------------------------------------------------------------- driving


def gather(plans: Sequence[ReadPlan[T]], heavy: Sequence[bool] | None = None) -> ReadPlan[list[T]]:
    """Advance several plans together; their ranges of a round are asked for at once. Results in the same order.

    With `heavy`, which says what plans do more than hand out slices, those that got many bytes decode on the pool.
    """
    if len(plans) == 1:
        return [(yield from plans[0])]
    results: list[Any] = [None] * len(plans)
    waiting = list(range(len(plans)))
    steps = [_start(plan) for plan in plans]
    while True:
        still: list[int] = []
        ranges: list[ByteRange] = []
        ends: list[int] = []
        for index, (done, value) in zip(waiting, steps):
            if done:
                results[index] = value
            else:
                still.append(index)
                ranges.extend(value)
                ends.append(len(ranges))
        waiting = still
        if not waiting:
            return results
        buffers = yield ranges
        if len(waiting) == 1:
            steps = [_step(plans[waiting[0]], buffers)]
            continue
        replies = [buffers[start:end] for start, end in zip([0, *ends], ends)]
        large = [] if heavy is None or pool.in_worker() else _large(replies, [heavy[index] for index in waiting])
        if len(large) < 2:
            steps = [_step(plans[index], reply) for index, reply in zip(waiting, replies)]
        else:
            steps = _steps_on_pool([plans[index] for index in waiting], replies, large)


class RangeSource(Protocol):
    """The one method of an `ObjectStore` that plans are answered with."""

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]: ...


def run(plan: ReadPlan[T], store: RangeSource, path: str) -> T:
    """Answer a plan from one object until it returns."""
    done, value = _start(plan)
    while not done:
        done, value = _step(plan, store.read_many(path, value))
    return value  # type: ignore[no-any-return]  # what a finished generator returned


def run_all(plans: Sequence[ReadPlan[T]], heavy: Sequence[bool], store: RangeSource, path: str) -> list[T]:
    """Answer several plans from one object, in rounds; see `gather`."""
    parallel = sum(heavy) > 1 and not pool.in_worker() and pool.size() > 1
    return run(gather(plans, heavy if parallel else None), store, path)


def run_each(plans: Sequence[ReadPlan[T]], sources: Sequence[RangeSource], paths: Sequence[str]) -> list[T]:
    """Answer plans over as many objects, round by round: each step of all of them before the next step of any.

    A step that is taken a hundred times in a row finds its code and its tables in the processor's cache; plans answered
    one after the other take half as long again.
    """
    steps = [_start(plan) for plan in plans]
    waiting = [number for number, (done, _) in enumerate(steps) if not done]
    while waiting:
        replies = [sources[number].read_many(paths[number], steps[number][1]) for number in waiting]
        for number, reply in zip(waiting, replies):
            steps[number] = _step(plans[number], reply)
        waiting = [number for number in waiting if not steps[number][0]]
    return [value for _, value in steps]


def _start(plan: ReadPlan[Any]) -> tuple[bool, Any]:
    try:
        return False, next(plan)
    except StopIteration as stop:
        return True, stop.value


def _step(plan: ReadPlan[Any], buffers: Sequence[memoryview]) -> tuple[bool, Any]:
    try:
        return False, plan.send(buffers)
    except StopIteration as stop:
        return True, stop.value


def _large(replies: Sequence[Sequence[memoryview]], heavy: Sequence[bool]) -> list[int]:
    return [number for number, reply in enumerate(replies) if heavy[number] and sum(map(len, reply)) >= PARALLEL_BYTES]


def _steps_on_pool(
    plans: Sequence[ReadPlan[Any]], replies: Sequence[Sequence[memoryview]], large: Sequence[int]
) -> list[tuple[bool, Any]]:
    executor = pool.pool()
    # The last one is left to this thread, which would otherwise only wait.
    futures = {number: executor.submit(_step, plans[number], replies[number]) for number in large[:-1]}
    own = {number: _step(plans[number], replies[number]) for number in range(len(plans)) if number not in futures}
    return [futures[number].result() if number in futures else own[number] for number in range(len(plans))]


def gap_bytes(store: ObjectStore) -> int:
    """How far apart rows may lie to be fetched as one range from this store."""
    return MAPPED if getattr(store, "mapped", store.capabilities.local) else REMOTE_GAP_BYTES


def gap_within(gap: int, size_bytes: int, count: int) -> int:
    """The gap for `count` pieces of so many bytes: what is fetched between them is at most a small share of all."""
    return gap if gap == MAPPED else min(gap, size_bytes // (_SHARE_BETWEEN * count))


# ---------------------------------------------------------------------------------------------- ranges of values


def cluster(
    starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], gap: int
) -> tuple[list[ByteRange], npt.NDArray[np.int64] | int]:
    """Ascending pieces of a file -> ranges that cover them, and what to subtract from a position to find it in the
    ranges joined together: one number, or one for each piece.
    """
    if gap == MAPPED or len(starts) == 1:
        first = int(starts[0])
        return [ByteRange(first, int(ends[-1]))], first
    cuts = np.flatnonzero(starts[1:] - ends[:-1] > gap) + 1
    range_starts = starts[np.concatenate(([0], cuts))]
    range_ends = ends[np.concatenate((cuts - 1, [len(ends) - 1]))]
    sizes = range_ends - range_starts
    joined = np.cumsum(sizes) - sizes
    shift = np.repeat(range_starts - joined, np.diff(np.concatenate(([0], cuts, [len(starts)]))))
    return [ByteRange(start, end) for start, end in zip(range_starts.tolist(), range_ends.tolist(), strict=True)], shift


def join(buffers: Sequence[memoryview]) -> memoryview:
    """The ranges of `cluster` side by side; one alone is not copied."""
    return buffers[0] if len(buffers) == 1 else memoryview(b"".join(buffers))


_WORDS: Final = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}


def fetch_slots(start: int, width: int, slots: Slots, gap: int) -> ReadPlan[Any]:
    """Values of `width` bytes that lie side by side from `start` on -> a buffer of the wanted ones, side by side."""
    if isinstance(slots, range):
        (data,) = yield (ByteRange(start + slots.start * width, start + slots.stop * width),)
        return data
    if isinstance(slots, Blocks):
        width *= slots.size
        slots = slots.rows
    if gap == MAPPED or len(slots) == 1:
        first, last = int(slots[0]), int(slots[-1])
        (data,) = yield (ByteRange(start + first * width, start + (last + 1) * width),)
        if last - first + 1 == len(slots):
            return data
        return _select(data, width, slots - first if first else slots)
    starts = slots * width + start
    ranges, shift = cluster(starts, starts + width, gap)
    buffers = yield ranges
    data = join(buffers)
    if len(data) == len(slots) * width:
        return data
    return _select(data, width, (starts - shift) // width)


def _select(data: memoryview, width: int, slots: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    word: Any = _WORDS.get(width) or np.dtype((np.void, width))
    values: npt.NDArray[Any] = np.frombuffer(data, word)
    return values.take(slots)


def fetch_bits(start: int, slots: Slots, gap: int) -> ReadPlan[Any]:
    """Bits that lie side by side from byte `start` on -> a buffer whose first bits are the wanted ones."""
    if isinstance(slots, range):
        (data,) = yield (ByteRange(start + slots.start // 8, start + (slots.stop + 7) // 8),)
        return bits_between(data, slots.start % 8, len(slots))
    rows = slots if isinstance(slots, np.ndarray) else np.asarray(positions(slots))
    at = rows >> 3
    wanted: Slots
    if gap == MAPPED:
        wanted = range(int(at[0]), int(at[-1]) + 1)
        at -= wanted.start
    else:
        wanted, at = np.unique(at, return_inverse=True)
    data = yield from fetch_slots(start, 1, wanted, gap)
    octets = np.frombuffer(data, np.uint8)
    bits = (octets[at] >> (rows & 7).astype(np.uint8)) & np.uint8(1)
    return np.packbits(bits, bitorder="little")


def bits_between(data: Any, first: int, count: int) -> Any:
    """A bitmap that starts `first` bits (0 to 7) into `data`; without a copy where that is 0."""
    if first == 0:
        return data
    if count <= 32:
        bits = (int.from_bytes(data[: (first + count + 7) // 8], "little") >> first) & ((1 << count) - 1)
        return bits.to_bytes((count + 7) // 8, "little")
    octets = np.frombuffer(data, np.uint8)
    moved = octets >> np.uint8(first)
    moved[:-1] |= octets[1:] << np.uint8(8 - first)
    return moved[: (count + 7) // 8]


def aligned_buffer(data: Any, width: int) -> pa.Buffer:
    """An Arrow buffer over these bytes, copied only if values of `width` bytes would lie askew.

    Decimals of 16 and 32 bytes lie at multiples of 16: Arrow for Rust takes no others.
    """
    buffer = pa.py_buffer(data)
    if buffer.address % (16 if width in (16, 32) else 8 if width % 8 == 0 else width & -width):
        # The payload of a bytes object lies at a multiple of 16.
        return pa.py_buffer(bytes(data))
    return buffer
