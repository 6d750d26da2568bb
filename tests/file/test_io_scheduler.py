"""Read plans: rounds, order of results, coalesced ranges, bits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.file.io_scheduler import (
    MAPPED,
    Blocks,
    ReadPlan,
    aligned_buffer,
    bits_between,
    cluster,
    count_slots,
    fetch_bits,
    fetch_slots,
    gap_bytes,
    gather,
    join,
    positions,
    run,
    run_each,
)
from lancetable.store.base import ByteRange
from lancetable.store.memory import MemoryStore
from lancetable.testing.stores import CountingStore

DATA = np.random.default_rng(0).integers(0, 256, 4096, dtype=np.uint8).tobytes()


def answer(plan: ReadPlan[object]) -> object:
    try:
        wanted = next(plan)
        while True:
            wanted = plan.send([memoryview(DATA)[start:end] for start, end in wanted])
    except StopIteration as stop:
        return stop.value


def reader(start: int, rounds: int) -> ReadPlan[bytes]:
    """Plan that reads a byte, then the byte at the position that it contains, and so on."""
    path = []
    for _ in range(rounds):
        (data,) = yield [ByteRange(start, start + 1)]
        start = data[0]
        path.append(start)
    return bytes(path)


def test_gather_requests_one_round_of_all_plans_together() -> None:
    store = MemoryStore()
    store.put("f", DATA)
    counting = CountingStore(store)
    starts = [(5, 3), (900, 1), (17, 0), (40, 2)]
    expected = [answer(reader(*start)) for start in starts]
    assert run(gather([reader(*start) for start in starts]), counting, "f") == expected
    assert run(gather([reader(*start) for start in starts], [True] * 4), store, "f") == expected
    assert run(gather([]), store, "f") == []
    assert run(reader(3, 0), store, "f") == b""


def heavy_reader(start: int) -> ReadPlan[int]:
    (data,) = yield [ByteRange(start, start + (2 << 20))]
    (more,) = yield [ByteRange(start, start + 1)]
    return int(np.frombuffer(data, np.uint8).sum()) + more[0]


def test_run_each_advances_plans_of_many_objects_in_rounds() -> None:
    store = MemoryStore.private()
    log: list[str] = []

    def plan(path: str, rounds: int) -> ReadPlan[bytes]:
        found = b""
        for number in range(rounds):
            (data,) = yield (ByteRange(number, number + 1),)
            log.append(f"{path}{number}")
            found += bytes(data)
        return found

    for path in "abc":
        store.put(path, path.upper().encode() * 5)
    found = run_each([plan("a", 2), plan("b", 0), plan("c", 3)], [store] * 3, ["a", "b", "c"])
    assert found == [b"AA", b"", b"CCC"]
    assert log == ["a0", "c0", "a1", "c1", "c2"]


def test_pool_steps_keep_the_order_of_plans() -> None:
    data = np.arange(16 << 20, dtype=np.uint8)
    store = MemoryStore()
    store.put("f", data.tobytes())
    starts = list(range(0, 12 << 20, (1 << 20) + 7))
    plain = run(gather([heavy_reader(start) for start in starts]), store, "f")
    assert run(gather([heavy_reader(start) for start in starts], [True] * len(starts)), store, "f") == plain


def test_error_in_a_plan_is_raised() -> None:
    def failing(start: int) -> ReadPlan[int]:
        yield [ByteRange(start, start + (2 << 20))]
        raise ValueError(f"at {start}")

    store = MemoryStore()
    store.put("f", bytes(8 << 20))
    with pytest.raises(ValueError, match="at"):
        run(gather([failing(0), failing(1 << 20), failing(2 << 20)], [True] * 3), store, "f")


ascending = st.sets(st.integers(0, 400), min_size=1, max_size=40).map(lambda rows: np.array(sorted(rows), np.int64))


@given(ascending, st.sampled_from([1, 2, 3, 4, 8, 9]), st.sampled_from([0, 5, 64, MAPPED]))
def test_fetch_slots_returns_the_selected_values(rows: np.ndarray, width: int, gap: int) -> None:
    values = np.frombuffer(DATA, np.uint8)[7 : 7 + width * 450].reshape(450, width)
    assert bytes(answer(fetch_slots(7, width, rows, gap))) == values[rows].tobytes()
    first, last = int(rows[0]), int(rows[-1]) + 1
    assert bytes(answer(fetch_slots(7, width, range(first, last), gap))) == values[first:last].tobytes()
    blocks = Blocks(np.unique(rows // 4), 4)
    assert bytes(answer(fetch_slots(7, width, blocks, gap))) == values[positions(blocks)].tobytes()
    assert count_slots(blocks) == len(positions(blocks))


@given(ascending, st.sampled_from([0, 3, MAPPED]))
def test_fetch_bits_returns_the_selected_bits(rows: np.ndarray, gap: int) -> None:
    bits = np.unpackbits(np.frombuffer(DATA, np.uint8)[11:80], bitorder="little")

    def unpacked(data: object, count: int) -> list[int]:
        return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little", count=count).tolist()

    assert unpacked(answer(fetch_bits(11, rows, gap)), len(rows)) == bits[rows].tolist()
    first, last = int(rows[0]), int(rows[-1]) + 1
    found = unpacked(answer(fetch_bits(11, range(first, last), gap)), last - first)
    assert found == bits[first:last].tolist()


@pytest.mark.parametrize("first", range(8))
@pytest.mark.parametrize("count", [1, 7, 8, 9, 31, 32, 33, 64, 200])
def test_bits_between_shifts_a_bitmap(first: int, count: int) -> None:
    data = DATA[: (first + count + 7) // 8]
    moved = np.unpackbits(np.frombuffer(bits_between(data, first, count), np.uint8), bitorder="little")
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    assert moved[:count].tolist() == bits[first : first + count].tolist()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=30), st.integers(0, 60))
def test_cluster_covers_every_piece(steps: Sequence[tuple[int, int]], gap: int) -> None:
    edges = np.cumsum(np.array(steps).reshape(-1))
    starts, ends = edges[0::2], edges[1::2]
    ranges, shift = cluster(starts, ends, gap)
    data = bytes(join([memoryview(DATA)[start:end] for start, end in ranges]))
    where = starts - shift
    for start, end, at in zip(starts, ends, np.broadcast_to(where, len(starts))):
        assert data[at : at + end - start] == DATA[start:end]
    assert all(second.start - first.end > gap for first, second in pairwise(ranges))


def test_takes_from_remote_stores_skip_gaps() -> None:
    class Remote(CountingStore):
        mapped = False

    assert gap_bytes(Remote(MemoryStore())) < MAPPED


@pytest.mark.parametrize(
    ("offset", "width", "copied"),
    [
        *[(0, 8, False), (8, 8, False), (4, 8, True), (4, 4, False), (1, 1, False), (2, 16, True), (3, 6, True)],
        *[(8, 16, True), (16, 16, False), (8, 32, True), (16, 32, False), (8, 24, False)],
    ],
)
def test_buffers_are_copied_only_if_misaligned(offset: int, width: int, copied: bool) -> None:
    base = pa.allocate_buffer(256)
    view = memoryview(base)[offset : offset + 96]
    buffer = aligned_buffer(view, width)
    assert buffer.to_pybytes() == bytes(view)
    assert (buffer.address != base.address + offset) == copied
