"""Sort keys: integers or byte strings that compare as the values of an index do.

    type                                     keys
    integers, dates, times, booleans         the integers
    floating point                           integers in IEEE total order: -nan < -inf < -0.0 < 0.0 < inf < nan
    decimals                                 big-endian bytes with an inverted sign
    strings, binaries                        their bytes

Integer keys are a NumPy array, byte strings an Arrow array of a binary type. Keys of nulls are undefined.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import methodcaller
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.file.kernels.varbin import offset_dtype, offsets_of
from lancetable.file.zone_map_builder import number_dtype, values_of

Keys: TypeAlias = "npt.NDArray[Any] | pa.Array[Any]"
Int64: TypeAlias = npt.NDArray[np.int64]
Side: TypeAlias = Literal["left", "right"]

_MAX_SINGLE: Final = 16  # number of probes up to which searching one by one is faster than all at once
_AS_PY: Final = methodcaller("as_py")
_WORD: Final = 7  # bytes of a string that one step of its sort compares
_MASKS: Final = np.array([(1 << 64) - (1 << 64 - 8 * size) for size in range(_WORD + 1)], np.uint64)


def is_ordered(data_type: pa.DataType) -> bool:
    """Return True if values of a type have sort keys."""
    types = pa.types
    return bool(
        number_dtype(data_type) is not None
        or types.is_boolean(data_type)
        or types.is_decimal(data_type)
        or types.is_fixed_size_binary(data_type)
        or offset_dtype(data_type) is not None
    )


def keys_of(array: pa.Array) -> Keys:
    """Return the sort keys of the values of an ordered type."""
    kind = array.type
    if pa.types.is_boolean(kind):
        array, kind = array.cast(pa.uint8()), pa.uint8()
    dtype = number_dtype(kind)
    if dtype is not None:
        if len(array) == 0:
            return np.empty(0, f"i{dtype.itemsize}" if dtype.kind == "f" else dtype)
        values = values_of(array, dtype)
        return float_keys(values) if dtype.kind == "f" else values
    if pa.types.is_decimal(kind):
        return _decimal_keys(array)
    if pa.types.is_string(kind):
        return array.view(pa.binary())
    return array.view(pa.large_binary()) if pa.types.is_large_string(kind) else array


def _decimal_keys(array: pa.Array) -> pa.Array:
    width = array.type.bit_width // 8
    data = np.empty((0, width), np.uint8)
    if len(array):
        data = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width).reshape(-1, width)
    keys = data[:, ::-1].copy()
    keys[:, 0] ^= 0x80
    return pa.Array.from_buffers(pa.binary(width), len(array), [None, pa.py_buffer(keys)])


def float_keys(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the keys of floating point numbers."""
    bits = values.view(f"i{values.itemsize}")
    # The magnitude of negative numbers is inverted, so that a greater magnitude is a smaller integer.
    keys: npt.NDArray[Any] = bits ^ ((bits >> (8 * values.itemsize - 1)) & np.iinfo(bits.dtype).max)
    return keys


def concat(parts: list[Keys]) -> Keys:
    """Concatenate keys of one type."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else pa.concat_arrays(parts)


def take(keys: Keys, rows: Int64) -> Keys:
    """Return the keys of some rows."""
    return keys[rows] if isinstance(keys, np.ndarray) else keys.take(pa.array(rows))


def nulls_and_others(values: pa.Array) -> tuple[Int64, Int64]:
    """Return the positions of the nulls and of the other values, both ascending; two empty arrays without nulls."""
    if not values.null_count:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    return np.flatnonzero(is_null), np.flatnonzero(~is_null)


def first_of_each(keys: Keys) -> npt.NDArray[np.bool_]:
    """Return for each of some ascending keys whether it differs from the previous one."""
    if isinstance(keys, np.ndarray):
        changes = keys[1:] != keys[:-1]
    else:
        changes = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
    return np.concatenate((np.ones(min(len(keys), 1), np.bool_), changes))


def any_less(keys: Keys, others: Keys) -> bool:
    """Return True if one of the keys is less than the other key at the same position."""
    if isinstance(keys, np.ndarray):
        return bool((keys < others).any())
    return bool(len(keys)) and bool(pc.any(pc.less(keys, others)).as_py())


def are_equal(keys: Keys, others: Keys) -> bool:
    """Return True if keys and others have the same elements."""
    if isinstance(keys, np.ndarray):
        return np.array_equal(keys, others)
    return bool(keys.equals(others))


def is_ascending(keys: Keys) -> bool:
    """Return True if no key is less than the one before."""
    return not any_less(keys[1:], keys[:-1])


def positions(keys: Keys, probes: Keys, side: Side) -> Int64:
    """Return, for each probe, the number of ascending keys below it (`left`), or not above it (`right`)."""
    if isinstance(keys, np.ndarray):
        return keys.searchsorted(probes, side)
    if len(probes) <= _MAX_SINGLE:
        search = bisect_left if side == "left" else bisect_right
        return np.array([search(keys, probe.as_py(), key=_AS_PY) for probe in probes], np.int64)
    compare = pc.less if side == "left" else pc.less_equal
    low, high = np.zeros(len(probes), np.int64), np.full(len(probes), len(keys), np.int64)
    while (active := np.flatnonzero(low < high)).size:  # a binary search of all probes at once
        middle = (low[active] + high[active]) // 2
        below = compare(keys.take(pa.array(middle)), probes.take(pa.array(active))).to_numpy(zero_copy_only=False)
        low[active] = np.where(below, middle + 1, low[active])
        high[active] = np.where(below, high[active], middle)
    return low


def sort_indices(keys: Keys) -> Int64:
    """Return the row numbers of the keys in ascending order; equal keys keep their order.

    The sort is fast if the keys consist of a few ascending runs, so it also merges sorted blocks.
    """
    if len(keys) < 2:
        return np.arange(len(keys))
    return np.argsort(keys, kind="stable") if isinstance(keys, np.ndarray) else _string_order(keys)


def radix_order(numbers: npt.NDArray[Any]) -> Int64:
    """Return the stable order of integers, by a sort of 16 bits at a time."""
    if not len(numbers):
        return np.empty(0, np.int64)
    low, high = int(numbers.min()), int(numbers.max())
    digits = numbers.astype(np.int64).view(np.uint64) - np.uint64(low & 0xFFFF_FFFF_FFFF_FFFF)
    order = np.argsort(digits.astype(np.uint16), kind="stable")
    for shift in range(16, (high - low).bit_length(), 16):
        order = order[np.argsort((digits >> np.uint64(shift)).astype(np.uint16)[order], kind="stable")]
    return order


def _string_order(keys: pa.Array) -> Int64:
    """Sort byte strings by words: by the first bytes that differ, then equal ones by the next bytes, and so on."""
    starts, ends, words = _spans(keys)
    starts = starts + _common_prefix(keys)
    codes = _codes(starts, ends, words)
    order = np.argsort(codes, kind="stable")
    codes, rows = codes[order], np.arange(len(order))  # positions of `order` that may not be final
    is_first = np.zeros(len(order), np.bool_)  # of strings that are equal so far
    while len(rows):
        # Strings with equal codes form a group. If they are longer than the codes, their next bytes are compared.
        is_first[1:] |= (codes[1:] != codes[:-1]) | (codes[1:] & 0xFF < _WORD)
        is_first[:1] = True
        tied = ~(is_first & np.append(is_first[1:], True))
        rows, is_first, starts = rows[tied], is_first[tied], starts + _WORD
        members = order[rows]
        codes = _codes(starts[members], ends[members], words)
        within = np.lexsort((codes, np.cumsum(is_first)))
        order[rows], codes = members[within], codes[within]
    return order


def _spans(keys: pa.Array) -> tuple[Int64, Int64, npt.NDArray[np.uint64]]:
    """Return the start and end of each string, and the eight bytes from each position on, as one number each."""
    if pa.types.is_fixed_size_binary(keys.type):
        width, content = keys.type.byte_width, keys.buffers()[1]
        offsets = np.arange(keys.offset, keys.offset + len(keys) + 1, dtype=np.int64) * width
    else:
        offsets, content = offsets_of(keys).astype(np.int64), keys.buffers()[2]
    first, last = (int(offsets[0]), int(offsets[-1])) if len(keys) else (0, 0)
    data = b"" if content is None else memoryview(content)[first:last]
    padded = np.zeros(last - first + 8, np.uint8)  # zeros after the data allow reading past its end
    padded[: last - first] = np.frombuffer(data, np.uint8)
    words = np.ndarray((last - first + 1,), np.dtype(">u8"), padded.data, strides=(1,))
    offsets = offsets - first
    return offsets[:-1], offsets[1:], words


def _codes(starts: Int64, ends: Int64, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the next seven bytes of each string, filled with zeros, and in the last byte the number of them."""
    sizes = np.minimum(ends - starts, _WORD)
    codes: npt.NDArray[np.uint64] = words[starts].astype(np.uint64)
    codes &= _MASKS[sizes]
    codes |= sizes.astype(np.uint64)
    return codes


def _common_prefix(keys: pa.Array) -> int:
    """Return the length of the longest prefix of all strings."""
    extremes = pc.min_max(keys)
    low, high = extremes["min"].as_py() or b"", extremes["max"].as_py() or b""
    different = [a != b for a, b in zip(low, high)]
    return different.index(True) if True in different else min(len(low), len(high))
