"""Types that 0.1 files can store, and random values of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lancetable.testing.strategies import random_values

_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_FRACTIONS = [pa.float16(), pa.float32(), pa.float64(), pa.decimal128(10, 2), pa.decimal256(40, 3)]
_TIMES = [pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.timestamp("us", "UTC"), pa.duration("ms")]
_BYTES = [pa.binary(3), pa.binary(), pa.large_binary(), pa.string(), pa.large_string()]
TYPES: dict[str, pa.DataType] = {
    **{str(kind): kind for kind in (*_INTEGERS, *_FRACTIONS, *_TIMES, *_BYTES, pa.bool_(), pa.null())},
    "list": pa.list_(pa.int16()),
    "list of strings": pa.large_list(pa.string()),
    "list of lists": pa.list_(pa.list_(pa.float32())),
    "list of nulls": pa.list_(pa.null()),
    "bits": pa.list_(pa.bool_(), 3),
    "vector": pa.list_(pa.float32(), 4),
    "matrix": pa.list_(pa.list_(pa.int8(), 2), 2),
    "list of vectors": pa.list_(pa.list_(pa.float32(), 4)),
    "list of bits": pa.list_(pa.bool_()),
    "struct": pa.struct([("a", pa.int64()), ("b", pa.string())]),
    "list of structs": pa.list_(pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])),
    "deep": pa.struct([("p", pa.struct([("q", pa.bool_()), ("n", pa.null())])), ("l", pa.list_(pa.int8()))]),
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
    "dictionary in a struct": pa.struct([("d", pa.dictionary(pa.int32(), pa.int64()))]),
}


def column(kind: pa.DataType, n: int, rng: np.random.Generator) -> pa.Array:
    """Return `n` random values. Strings and bytes include nulls and lengths above 64."""
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return pa.array([_random_string(rng) for _ in range(n)], kind)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return pa.array([None if rng.random() < 0.2 else _random_bytes(rng) for _ in range(n)], kind)
    if types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(column(kind.value_type, n * kind.list_size, rng), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        large = types.is_large_list(kind)
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, n))]).astype("i8" if large else "i4")
        maker = pa.LargeListArray if large else pa.ListArray
        return maker.from_arrays(pa.array(offsets), column(kind.value_type, int(offsets[-1]), rng))
    if types.is_struct(kind):
        return pa.StructArray.from_arrays([column(field.type, n, rng) for field in kind], fields=list(kind))
    if types.is_dictionary(kind):
        indices = pa.array(rng.integers(0, 9, n), kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, pa.array(range(9)).cast(kind.value_type))
    return random_values(rng, kind, n)


def _random_string(rng: np.random.Generator) -> str | None:
    return None if rng.random() < 0.2 else "é" * int(rng.integers(0, 50)) + chr(int(rng.integers(65, 90)))


def _random_bytes(rng: np.random.Generator) -> bytes:
    return b"\xff" * int(rng.integers(0, 80)) + rng.bytes(int(rng.integers(1, 70)))
