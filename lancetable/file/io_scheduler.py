"""Read plans: decoders request byte ranges in rounds, and a driver fetches them.

    decoder (ReadPlan)                      run
    yield [offsets of the rows]      ->     store.read_many
    yield [bytes between them]       ->     store.read_many
    return array

A decoder is a generator. It yields the ranges that it needs next, as absolute positions in the file, and receives one
buffer for each. `gather` advances many decoders together, so that one round of all decoders is one call of the store.
Decoders do no I/O; tests drive them with slices of bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file import thread_pool
from lancetable.file.kernels.bitpacking import WORDS
from lancetable.store.base import ByteRange, ObjectStore, short_read

T = TypeVar("T")
ReadPlan = Generator[Sequence[ByteRange], Sequence[memoryview], T]

MAPPED: Final = sys.maxsize
"""Coalescing distance for a store whose ranges are slices of a memory map: unused bytes of a range cost nothing."""

REMOTE_GAP_BYTES: Final = 16 * 1024
"""Coalescing distance for other stores: ranges closer than this become one. The store may coalesce further."""

_MAX_GAP_FRACTION: Final = 64  # coalescing reads at most 1/64 more bytes than needed

PARALLEL_BYTES: Final = 1 << 20
"""Minimum size of a reply that is decoded on the pool; below it, a thread costs more than it saves."""


class Blocks(NamedTuple):
    """Rows of `size` values each. Row i selects the values `rows[i] * size` to `(rows[i] + 1) * size`, exclusive."""

    rows: npt.NDArray[np.int64]
    size: int


Rows: TypeAlias = "range | npt.NDArray[np.int64]"
"""Selected rows: a range of step 1, or ascending row numbers without duplicates. Encodings get nonempty selections."""

Slots: TypeAlias = "range | npt.NDArray[np.int64] | Blocks"
"""Selected values of an encoded array. Fixed-size lists select blocks."""


def count_slots(slots: Slots) -> int:
    """Return the number of selected values."""
    return len(slots.rows) * slots.size if isinstance(slots, Blocks) else len(slots)


def positions(slots: Slots) -> Rows:
    """Expand blocks to the positions of single values; return other selections unchanged."""
    if isinstance(slots, Blocks):
        return (slots.rows[:, None] * slots.size + np.arange(slots.size)).reshape(-1)
    return slots


def as_range(rows: Rows) -> Rows:
    """Convert consecutive row numbers to a range, which is cheaper to read. `rows` must not be empty."""
    if isinstance(rows, range):
        return rows
    first, last = int(rows[0]), int(rows[-1])
    return range(first, last + 1) if last - first + 1 == len(rows) else rows


# ------------------------------------------------------------------------------------------------------- driving


def gather(plans: Sequence[ReadPlan[T]], decodes: Sequence[bool] | None = None) -> ReadPlan[list[T]]:
    """Combine several plans into one that requests the ranges of all of them in each round.

    Parameters
    ----------
    plans
        The plans to combine.
    decodes
        For each plan, True if it does more than slice its buffers. In a round where at least two such plans receive
        `PARALLEL_BYTES` or more, these advance on the thread pool.

    Returns
    -------
    list
        The results, in the order of `plans`.
    """
    if len(plans) == 1:
        return [(yield from plans[0])]
    results: list[Any] = [None] * len(plans)
    waiting = list(range(len(plans)))
    steps = [_step(plan, None) for plan in plans]
    while True:
        unfinished: list[int] = []
        ranges: list[ByteRange] = []
        ends: list[int] = []
        for index, (done, value) in zip(waiting, steps):
            if done:
                results[index] = value
            else:
                unfinished.append(index)
                ranges.extend(value)
                ends.append(len(ranges))
        waiting = unfinished
        if not waiting:
            return results
        buffers = yield ranges
        if len(waiting) == 1:
            steps = [_step(plans[waiting[0]], buffers)]
            continue
        replies = [buffers[start:end] for start, end in zip([0, *ends], ends)]
        if decodes is None:
            steps = [_step(plans[index], reply) for index, reply in zip(waiting, replies)]
        else:
            steps = _advance([plans[index] for index in waiting], replies, [decodes[index] for index in waiting])


class RangeSource(Protocol):
    """Source of byte ranges: the one method of `ObjectStore` that running a plan needs."""

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Return the bytes of each range of the object at `path`."""


class InMemory(NamedTuple):
    """Range source over bytes in memory."""

    data: memoryview

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        data = self.data
        for start, end in ranges:
            if not 0 <= start <= end <= len(data):
                raise short_read(path, start, end, max(len(data) - start, 0))
        return [data[start:end] for start, end in ranges]


def run(plan: ReadPlan[T], store: RangeSource, path: str) -> T:
    """Run a plan on one object and return its result. Errors of the plan and the store are propagated."""
    done, value = _step(plan, None)
    while not done:
        done, value = _step(plan, store.read_many(path, value))
    return value  # type: ignore[no-any-return]  # the return value of the generator


def run_each(plans: Sequence[ReadPlan[T]], sources: Sequence[RangeSource], paths: Sequence[str]) -> list[T]:
    """Run plan i on object i, in rounds: each round advances every unfinished plan by one step.

    Similar steps in a row keep their code and tables in the CPU cache. Running the plans one after the other takes 1.5
    times as long.
    """
    steps = [_step(plan, None) for plan in plans]
    waiting = [number for number, (done, _) in enumerate(steps) if not done]
    while waiting:
        replies = [sources[number].read_many(paths[number], steps[number][1]) for number in waiting]
        for number, reply in zip(waiting, replies):
            steps[number] = _step(plans[number], reply)
        waiting = [number for number in waiting if not steps[number][0]]
    return [value for _, value in steps]


def _step(plan: ReadPlan[Any], buffers: Any) -> tuple[bool, Any]:
    try:
        return False, plan.send(buffers)
    except StopIteration as stop:
        return True, stop.value


def _advance(
    plans: Sequence[ReadPlan[Any]], replies: Sequence[Sequence[memoryview]], decodes: Sequence[bool]
) -> list[tuple[bool, Any]]:
    """Run the next step of each plan; plans that decode large replies share the pool."""
    large = [index for index, reply in enumerate(replies) if decodes[index] and sum(map(len, reply)) >= PARALLEL_BYTES]
    if len(large) < 2 or not thread_pool.can_share():
        return [_step(plan, reply) for plan, reply in zip(plans, replies)]
    executor = thread_pool.executor()
    # This thread runs the last large step, instead of only waiting for the pool.
    futures = {number: executor.submit(_step, plans[number], replies[number]) for number in large[:-1]}
    local = {number: _step(plans[number], replies[number]) for number in range(len(plans)) if number not in futures}
    return [futures[number].result() if number in futures else local[number] for number in range(len(plans))]


def gap_bytes(store: ObjectStore) -> int:
    """Return the `max_gap` for a store: the distance up to which ranges are coalesced."""
    return MAPPED if getattr(store, "mapped", store.capabilities.local) else REMOTE_GAP_BYTES


def gap_within(max_gap: int, size_bytes: int, count: int) -> int:
    """Reduce `max_gap` so that the bytes between `count` ranges of `size_bytes` in total add at most 1/64 to a read."""
    return max_gap if max_gap == MAPPED else min(max_gap, size_bytes // (_MAX_GAP_FRACTION * count))


# ---------------------------------------------------------------------------------------------- ranges of values


def cluster(
    starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], max_gap: int
) -> tuple[list[ByteRange], npt.NDArray[np.int64] | int]:
    """Coalesce ascending pieces of a file into ranges.

    Parameters
    ----------
    starts, ends
        The pieces, as positions in the file.
    max_gap
        Distance up to which neighbouring pieces are coalesced.

    Returns
    -------
    ranges
        The ranges that cover the pieces.
    shift
        Subtract it from a position in the file to get the position in the concatenated ranges. One number for all
        pieces, or an array with one for each.
    """
    if max_gap == MAPPED or len(starts) == 1:
        first = int(starts[0])
        return [ByteRange(first, int(ends[-1]))], first
    cuts = np.flatnonzero(starts[1:] - ends[:-1] > max_gap) + 1
    range_starts = starts[np.concatenate(([0], cuts))]
    range_ends = ends[np.concatenate((cuts - 1, [len(ends) - 1]))]
    sizes = range_ends - range_starts
    joined = np.cumsum(sizes) - sizes
    shift = np.repeat(range_starts - joined, np.diff(np.concatenate(([0], cuts, [len(starts)]))))
    return [ByteRange(start, end) for start, end in zip(range_starts.tolist(), range_ends.tolist(), strict=True)], shift


def join(buffers: Sequence[memoryview]) -> memoryview:
    """Concatenate buffers; a single buffer is returned without a copy."""
    return buffers[0] if len(buffers) == 1 else memoryview(b"".join(buffers))


def fetch_slots(start: int, width: int, slots: Slots, max_gap: int) -> ReadPlan[Any]:
    """Read the selected values of a contiguous array of `width`-byte values into one contiguous buffer.

    Parameters
    ----------
    start
        Position of the array in the file.
    width
        Size of a value in bytes.
    slots
        The selected values.
    max_gap
        Distance up to which neighbouring values are read as one range.
    """
    if isinstance(slots, range):
        (data,) = yield (ByteRange(start + slots.start * width, start + slots.stop * width),)
        return data
    if isinstance(slots, Blocks):
        width *= slots.size
        slots = slots.rows
    if max_gap == MAPPED or len(slots) == 1:
        first, last = int(slots[0]), int(slots[-1])
        (data,) = yield (ByteRange(start + first * width, start + (last + 1) * width),)
        if last - first + 1 == len(slots):
            return data
        return _select(data, width, slots - first if first else slots)
    starts = slots * width + start
    ranges, shift = cluster(starts, starts + width, max_gap)
    buffers = yield ranges
    data = join(buffers)
    if len(data) == len(slots) * width:
        return data
    return _select(data, width, (starts - shift) // width)


def _select(data: memoryview, width: int, slots: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    word: Any = WORDS.get(width) or np.dtype((np.void, width))
    values: npt.NDArray[Any] = np.frombuffer(data, word)
    return values.take(slots)


def fetch_bits(start: int, slots: Slots, max_gap: int) -> ReadPlan[Any]:
    """Read the selected bits of a bitmap that starts at byte `start` of the file into a new bitmap.

    Parameters are as in `fetch_slots`. The result may have unused bits after the selected ones.
    """
    if isinstance(slots, range):
        (data,) = yield (ByteRange(start + slots.start // 8, start + (slots.stop + 7) // 8),)
        return bits_between(data, slots.start % 8, len(slots))
    rows = slots if isinstance(slots, np.ndarray) else np.asarray(positions(slots))
    byte_index = rows >> 3
    selected_bytes: Slots
    if max_gap == MAPPED:
        selected_bytes = range(int(byte_index[0]), int(byte_index[-1]) + 1)
        byte_index -= selected_bytes.start
    else:
        selected_bytes, byte_index = np.unique(byte_index, return_inverse=True)
    data = yield from fetch_slots(start, 1, selected_bytes, max_gap)
    octets = np.frombuffer(data, np.uint8)
    bits = (octets[byte_index] >> (rows & 7).astype(np.uint8)) & np.uint8(1)
    return np.packbits(bits, bitorder="little")


def bits_between(data: Any, first: int, count: int) -> Any:
    """Return a bitmap of `count` bits that starts at bit `first` (0 to 7) of `data`; no copy if `first` is 0."""
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
    """Return an Arrow buffer over these bytes; copy them only if values of `width` bytes would be misaligned.

    Decimals of 16 and 32 bytes are aligned to 16 bytes because Arrow for Rust rejects others.
    """
    buffer = pa.py_buffer(data)
    if buffer.address % (16 if width in (16, 32) else 8 if width % 8 == 0 else width & -width):
        # The payload of a bytes object is aligned to 16 bytes.
        return pa.py_buffer(bytes(data))
    return buffer
