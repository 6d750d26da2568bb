"""Split block Bloom filters, as in Parquet.

    hash      upper 32 bits: the block          lower 32 bits x 8 constants: one bit in each word of the block
    filter    | word 0 | word 1 | ... | word 7 |  blocks of eight words of 32 bits

Source: the file BloomFilter.md of the Parquet format.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from lancetable.file.kernels.xxh64 import Hashes

BLOCK_BYTES: Final = 32
_WORDS: Final = 8
_HALF: Final = np.uint64(32)
_SALT: Final = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)
_MAX_LOG_BYTES: Final = 27
_MAX_INSERTIONS: Final = 750  # in one block; more are practically impossible in filters of a useful size


@cache
def filter_bytes(num_values: int, probability: float) -> int:
    """Return the smallest size whose rate of false positives is at most `probability`: a power of two from 32 on.

    The size is limited to 128 MiB.
    """
    log_bytes = BLOCK_BYTES.bit_length() - 1
    while log_bytes < _MAX_LOG_BYTES and _false_positives(num_values, 1 << log_bytes) > probability:
        log_bytes += 1
    return 1 << log_bytes


def _false_positives(num_values: int, size_bytes: int) -> float:
    """Return the rate of false positives. The number of values in a block has a Poisson distribution."""
    mean = num_values * BLOCK_BYTES / size_bytes
    if mean > 512:
        return 1.0
    total = 0.0
    for count in range(_MAX_INSERTIONS - 1, 0, -1):  # small terms first
        collision = _WORDS * math.log(1 - (1 - 1 / 32) ** count)
        total += math.exp(count * math.log(mean) - mean - math.lgamma(count + 1) + collision)
    return min(total, 1.0)


class FilterBuilder:
    """Filter under construction, with one byte for each bit."""

    def __init__(self, size_bytes: int) -> None:
        self._num_blocks = size_bytes // BLOCK_BYTES
        self._bits = np.zeros(size_bytes * 8, np.bool_)

    def add(self, hashes: Hashes) -> None:
        """Add values."""
        blocks = _blocks(hashes, self._num_blocks) * (BLOCK_BYTES * 8)
        for word in range(_WORDS):  # faster than one array of all words
            self._bits[blocks + (_bits_of_word(hashes, word) + 32 * word)] = True

    def finish(self) -> bytes:
        """Return the filter and clear the builder."""
        data = np.packbits(self._bits, bitorder="little").tobytes()
        self._bits[:] = False
        return data


def may_contain(filters: npt.NDArray[np.uint32], hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Return whether each of (z, blocks, 8) filters may contain each of (n,) values, as (z, n)."""
    words = filters[:, _blocks(hashes, filters.shape[1])]
    bits = np.stack([_bits_of_word(hashes, word) for word in range(_WORDS)], axis=1)
    found: npt.NDArray[np.bool_] = np.all((words >> bits.astype(np.uint32)) & np.uint32(1), axis=2)
    return found


def _blocks(hashes: Hashes, num_blocks: int) -> npt.NDArray[np.int64]:
    blocks: npt.NDArray[np.int64] = (((hashes >> _HALF) * np.uint64(num_blocks)) >> _HALF).astype(np.int64)
    return blocks


def _bits_of_word(hashes: Hashes, word: int) -> npt.NDArray[np.int64]:
    """Return the number of the bit of each value in one word of its block."""
    bits: npt.NDArray[np.int64] = ((hashes.astype(np.uint32) * _SALT[word]) >> np.uint32(27)).astype(np.int64)
    return bits
