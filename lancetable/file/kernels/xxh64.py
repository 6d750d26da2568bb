"""XXH64: a 64-bit hash of bytes, here with seed 0, for many values at once.

    32 bytes or more    four lanes of 64 bits, one step for each 32 bytes; then joined
    the rest            one step for each 8 bytes, then for 4 bytes, then for each byte

Source: the specification of the xxHash family, section "XXH64 algorithm description".
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Hashes: TypeAlias = npt.NDArray[np.uint64]
Int64: TypeAlias = npt.NDArray[np.int64]

_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_P5: Final = np.uint64(0x27D4EB2F165667C5)
_LANE_STARTS: Final = [(int(_P1) + int(_P2)) & (1 << 64) - 1, int(_P2), 0, -int(_P1) & (1 << 64) - 1]
_LANE_ROTATIONS: Final = (1, 7, 12, 18)
_STRIPE: Final = 32


def hash_numbers(values: npt.NDArray[Any]) -> Hashes:
    """Hash the bytes of (n,) little-endian numbers of 1, 2, 4 or 8 bytes."""
    size = values.itemsize
    bits = values.view(f"<u{size}").astype(np.uint64)
    hashes = np.full(len(values), int(_P5) + size, np.uint64)
    if size == 8:
        hashes = _add_8(hashes, bits)
    elif size == 4:
        hashes = _add_4(hashes, bits)
    else:
        for shift in range(0, 8 * size, 8):
            hashes = _add_1(hashes, (bits >> np.uint64(shift)) & np.uint64(0xFF))
    return _avalanche(hashes)


def hash_strings(offsets: npt.NDArray[Any], data: npt.NDArray[np.uint8]) -> Hashes:
    """Hash the byte strings between (n + 1,) ascending offsets in `data`."""
    starts, sizes = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    padded = np.concatenate((data, np.zeros(8, np.uint8)))  # zeros after the data allow reading past its end
    words = np.ndarray((len(data) + 1,), np.dtype("<u8"), padded.data, strides=(1,))
    hashes = np.full(len(starts), _P5, np.uint64)
    long = np.flatnonzero(sizes >= _STRIPE)
    if len(long):
        hashes[long] = _hash_stripes(starts[long], sizes[long], words)
    hashes += sizes.astype(np.uint64)
    at, left = starts + sizes // _STRIPE * _STRIPE, sizes % _STRIPE
    for add, size in ((_add_8, 8), (_add_8, 8), (_add_8, 8), (_add_4, 4), (_add_1, 1), (_add_1, 1), (_add_1, 1)):
        rows = np.flatnonzero(left >= size)
        bits = words[at[rows]] & np.uint64((1 << 8 * size) - 1)
        hashes[rows] = add(hashes[rows], bits)
        at[rows] += size
        left[rows] -= size
    return _avalanche(hashes)


def _hash_stripes(starts: Int64, sizes: Int64, words: npt.NDArray[np.uint64]) -> Hashes:
    """Hash the stripes of values that have at least one."""
    lanes = np.repeat(np.array(_LANE_STARTS, np.uint64)[:, None], len(starts), axis=1)
    for stripe in range(int(sizes.max()) // _STRIPE):
        rows = np.flatnonzero(sizes >= (stripe + 1) * _STRIPE)
        at = starts[rows] + stripe * _STRIPE
        for number, lane in enumerate(lanes):
            lane[rows] = _round(lane[rows], words[at + 8 * number])
    hashes = np.zeros(len(starts), np.uint64)
    for lane, bits in zip(lanes, _LANE_ROTATIONS):
        hashes += _rotate(lane, bits)
    for lane in lanes:
        hashes ^= _round(np.zeros_like(lane), lane)
        hashes = hashes * _P1 + _P4
    return hashes


def _add_8(hashes: Hashes, bits: Hashes) -> Hashes:
    return _rotate(hashes ^ _round(np.zeros_like(bits), bits), 27) * _P1 + _P4


def _add_4(hashes: Hashes, bits: Hashes) -> Hashes:
    return _rotate(hashes ^ (bits * _P1), 23) * _P2 + _P3


def _add_1(hashes: Hashes, bits: Hashes) -> Hashes:
    return _rotate(hashes ^ (bits * _P5), 11) * _P1


def _round(lane: Hashes, bits: Hashes) -> Hashes:
    return _rotate(lane + bits * _P2, 31) * _P1


def _rotate(values: Hashes, bits: int) -> Hashes:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _avalanche(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))
