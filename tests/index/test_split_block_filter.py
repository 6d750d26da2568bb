"""Split block Bloom filters."""

from __future__ import annotations

import numpy as np
import pytest

from lancetable.index.split_block_filter import FilterBuilder, filter_bytes, may_contain


def filters_of(size_bytes: int, *groups: np.ndarray) -> np.ndarray:
    builder = FilterBuilder(size_bytes)
    data = []
    for hashes in groups:
        builder.add(hashes)
        data.append(builder.finish())
    return np.frombuffer(b"".join(data), "<u4").reshape(len(groups), -1, 8)


def hashes(seed: int, n: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 64, n, dtype=np.uint64)


def test_added_values_are_found_and_few_others() -> None:
    first, second, others = hashes(0, 8192), hashes(1, 8192), hashes(2, 100_000)
    filters = filters_of(filter_bytes(8192, 0.00057), first, second)
    assert may_contain(filters, first)[0].all()
    assert may_contain(filters, second)[1].all()
    assert may_contain(filters, others).mean() < 0.00057


def test_a_value_sets_one_bit_in_each_word_of_one_block() -> None:
    filters = filters_of(1024, hashes(3, 1))[0]
    counts = [[int(word).bit_count() for word in block] for block in filters]
    assert sorted(map(sum, counts)) == [0] * 31 + [8]
    assert [1] * 8 in counts


def test_an_empty_filter_contains_nothing() -> None:
    assert not may_contain(filters_of(32, hashes(0, 0)), hashes(1, 50)).any()


@pytest.mark.parametrize(
    ("num_values", "probability", "size_bytes"),
    [(8192, 0.00057, 32768), (3, 0.1, 32), (1000, 0.01, 2048), (1, 0.5, 32), (1 << 40, 0.01, 1 << 27)],
)
def test_sizes_are_those_of_pylance(num_values: int, probability: float, size_bytes: int) -> None:
    assert filter_bytes(num_values, probability) == size_bytes
