"""Random columns of nested types for files of version 2.1 and 2.2, for round-trip tests.

A column is drawn as a `pyarrow.Field`, so that hypothesis can shrink a failing type. Its values are generated from a
seed, so that 10,000 rows cost only a few NumPy calls:

    field = column_fields("c", FileVersion.V2_2).example()
    array = random_array(np.random.default_rng(7), field, 10_000)
    comparable(read).equals(comparable(array))

Each nesting level has its own fraction of nulls, empty lists and hidden garbage: none, few, many or all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from lancetable.format.version import FileVersion

PREFIX: Final = "lance-encoding:"
MAX_DEPTH: Final = 4
MAX_ITEMS: Final = 40_000

BoolArray = npt.NDArray[np.bool_]

NUMBERS: Final[list[pa.DataType]] = [
    pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64(),
    pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"),
    pa.timestamp("us"), pa.timestamp("ns", "America/New_York"), pa.duration("ms"),
]  # fmt: skip
WIDE: Final[list[pa.DataType]] = [
    pa.decimal128(9, 2), pa.decimal128(38, 10), pa.decimal256(76, 20), pa.binary(1), pa.binary(3), pa.binary(16),
    pa.binary(255), pa.binary(256), pa.binary(700),
]  # fmt: skip
TEXTS: Final[list[pa.DataType]] = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
FIXED: Final = [*NUMBERS, *WIDE]

# ------------------------------------------------------------------------------------------------------------- types


@st.composite
def column_fields(draw: st.DrawFn, name: str, version: FileVersion, peer: str = "14") -> pa.Field:
    """Draw top-level fields that this file version can store and this release of pylance can read."""
    return _Types(draw, version, peer).field(name, MAX_DEPTH, frozenset())


_NUMBER_KEYS: Final = {
    "compression": ["zstd", "lz4", "none"],
    "compression-level": ["1", "9"],
    "bss": ["on", "off", "auto"],
    "rle-threshold": ["0.1", "0.9"],
    "structural-encoding": ["miniblock", "fullzip"],
}
_STRING_KEYS: Final = {
    "compression": ["zstd", "lz4", "fsst", "none"],
    "structural-encoding": ["miniblock", "fullzip"],
    "dict-divisor": ["2", "10", "1"],
    "dict-size-ratio": ["0.5", "0.99"],
    "dict-values-compression": ["none", "zstd", "lz4"],
    "minichunk-size": ["64", "1024", "16384"],
}
_WIDE_KEYS: Final = {"compression": ["zstd", "lz4"], "structural-encoding": ["miniblock", "fullzip"]}
_LEAVES: Final = {"number": (NUMBERS, _NUMBER_KEYS), "wide": (WIDE, _WIDE_KEYS), "text": (TEXTS, _STRING_KEYS)}
_INDICES: Final = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64()]


class _Types:
    """Generator of types, level by level. `above` is the set of the kinds of enclosing levels."""

    def __init__(self, draw: st.DrawFn, version: FileVersion, peer: str) -> None:
        self._draw = draw
        self._large = version is FileVersion.V2_2
        self._old = peer == "0.39"

    def _one(self, choices: Sequence[Any]) -> Any:
        return self._draw(st.sampled_from(list(choices)))

    def _nullable(self) -> bool:
        return bool(self._one([True, True, True, False]))

    def _keys(self, keys: Mapping[str, list[str]], above: frozenset[str]) -> dict[str, str] | None:
        if self._old and "list" in above:
            # Old releases crash on full-zip values in lists below a nullable struct.
            keys = {key: values for key, values in keys.items() if key != "structural-encoding"}
        names = self._one([(), (), *((key,) for key in keys), tuple(keys), (next(iter(keys)), self._one(list(keys)))])
        return {PREFIX + key: self._one(keys[key]) for key in names} or None

    def field(self, name: str, depth: int, above: frozenset[str]) -> pa.Field:
        kinds = ["leaf", "leaf"]
        if depth > 0:
            kinds += ["struct", "list", "list"]
            if not (self._old and "list" in above):
                kinds.append("packed")
            if self._large:
                kinds.append("map")
                if not above:
                    kinds.append("fixed struct")
        kind = self._one(kinds)
        if kind == "struct":
            children = self._children(depth, above | {"struct"})
            # Empty structs are not nullable, so they cannot be in a nullable struct. pylance loses their siblings.
            strict = any(_has_empty_struct(child.type) for child in children)
            children = [child for child in children if _has_empty_struct(child.type)][:1] if strict else children
            return pa.field(name, pa.struct(children), not strict and self._nullable())
        if kind == "list":
            item = self.field("item", depth - 1, above | {"list"})
            return pa.field(name, self._one([pa.list_, pa.large_list])(item), self._nullable())
        if kind == "packed":
            # pylance crashes when only rows with empty lists of such structs are taken.
            types = [*FIXED, *TEXTS, pa.list_(pa.int16(), 3)] if self._large and "list" not in above else FIXED
            parts = [pa.field(f"p{k}", self._one(types), False) for k in range(self._one([1, 2, 4]))]
            return pa.field(name, pa.struct(parts), self._nullable(), {PREFIX + "packed": "true"})
        if kind == "map":
            key = pa.field("key", self._one([pa.string(), pa.int32(), pa.binary(16), pa.timestamp("us")]), False)
            value = self.field("value", depth - 1, above | {"list"})
            return pa.field(name, pa.map_(key, value), self._nullable())
        if kind == "fixed struct":
            types = [pa.int8(), pa.int32(), pa.float64(), pa.string(), pa.bool_(), pa.binary(300)]
            parts = [pa.field(f"f{k}", self._one(types)) for k in range(self._one([1, 3]))]
            item = pa.field("item", pa.struct(parts), self._nullable())
            return pa.field(name, pa.list_(item, self._one([1, 2, 3])), self._nullable())
        return self._leaf(name, above)

    def _children(self, depth: int, above: frozenset[str]) -> list[pa.Field]:
        return [self.field(f"f{k}", depth - 1, above) for k in range(self._one([1, 2, 3]))]

    def _leaf(self, name: str, above: frozenset[str]) -> pa.Field:
        kinds = ["bool", "number", "number", "number", "wide", "text", "text", "text", "dictionary", "vector", "null"]
        if "list" not in above:
            kinds += ["uuid", "empty"]
        if self._old and above:
            kinds.remove("null")  # old releases miscount the nulls in lists, and reject null fields in structs
        kind = self._one(kinds)
        if kind == "null":
            return pa.field(name, pa.null())
        if kind == "empty":
            return pa.field(name, pa.struct([]), nullable=False)
        nullable = self._nullable()
        if kind in _LEAVES:
            types, keys = _LEAVES[kind]
            return pa.field(name, self._one(types), nullable, self._keys(keys, above))
        if kind in ("bool", "uuid"):
            return pa.field(name, pa.bool_() if kind == "bool" else pa.uuid(), nullable)
        if kind == "dictionary":
            items = self._one([*TEXTS, pa.int64(), pa.float64(), pa.uint8()])
            return pa.field(name, pa.dictionary(self._one(_INDICES), items), nullable)
        item = self._one([pa.bool_(), *NUMBERS, pa.decimal128(9, 2), pa.binary(3)])
        size = self._one([1, 2, 3, 8, 31, 64, 257])
        if item in NUMBERS and self._one([False, False, True]):
            item = pa.list_(item, self._one([1, 2, 5]))
        return pa.field(name, pa.list_(item, size), nullable, self._keys(_WIDE_KEYS, above))


def stands_alone(field: pa.Field) -> bool:
    """Return True if pylance cannot read a column together with others: empty structs, fixed-size lists of structs."""
    kind = field.type
    return _has_empty_struct(kind) or (pa.types.is_fixed_size_list(kind) and pa.types.is_struct(kind.value_type))


def _has_empty_struct(kind: pa.DataType) -> bool:
    if not pa.types.is_nested(kind):
        return False
    if pa.types.is_struct(kind) and kind.num_fields == 0:
        return True
    return any(_has_empty_struct(kind.field(k).type) for k in range(kind.num_fields))


# ------------------------------------------------------------------------------------------------------------ values


def random_array(rng: np.random.Generator, field: pa.Field, n: int) -> pa.Array:
    """Return `n` random values of a field. One array in three is a slice of a longer one."""
    spare = int(rng.integers(0, 9)) if rng.random() < 0.33 else 0
    array = _values(rng, field, n + spare, bool(field.nullable))
    assert array.type == field.type and len(array) == n + spare, (array.type, field.type)
    start = int(rng.integers(0, spare + 1))
    return array.slice(start, n)


def _mask(rng: np.random.Generator, n: int, nullable: bool) -> BoolArray | None:
    if not nullable:
        return None
    share = rng.choice([0.0, 0.0, 0.02, 0.3, 0.97, 1.0])
    if share == 0:
        return None
    if rng.random() < 0.3:  # one run of nulls
        mask = np.zeros(n, bool)
        start = int(rng.integers(0, n + 1))
        mask[start : start + int(share * n)] = True
        return mask
    scattered: BoolArray = rng.random(n) < share
    return scattered


def _values(rng: np.random.Generator, field: pa.Field, n: int, nullable: bool) -> pa.Array:
    kind = field.type
    mask = _mask(rng, n, nullable)
    if isinstance(kind, pa.BaseExtensionType):
        storage = pa.field("s", kind.storage_type)
        return pa.ExtensionArray.from_storage(kind, _values(rng, storage, n, nullable))
    if pa.types.is_null(kind):
        return pa.nulls(n)
    if pa.types.is_struct(kind):
        if kind.num_fields == 0:
            return pa.Array.from_buffers(kind, n, [None])
        children = [_values(rng, child, n, bool(child.nullable)) for child in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=None if mask is None else pa.array(mask))
    if pa.types.is_fixed_size_list(kind):
        items = _values(rng, kind.value_field, n * kind.list_size, bool(kind.value_field.nullable))
        return pa.Array.from_buffers(kind, n, [_bitmap(mask)], children=[items])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _lists(rng, kind, n, mask)
    if pa.types.is_dictionary(kind):
        return _dictionary(rng, kind, n, mask, nullable)
    if kind in TEXTS:
        return _strings(rng, kind, n, mask)
    return _fixed(rng, kind, n, mask)


def _bitmap(mask: BoolArray | None) -> pa.Buffer | None:
    return None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))


def _lists(rng: np.random.Generator, kind: pa.DataType, n: int, mask: BoolArray | None) -> pa.Array:
    mean = min(float(rng.choice([0.0, 0.5, 2.0, 2.0, 5.0])), MAX_ITEMS / max(n, 1))
    lengths = rng.poisson(mean, n)
    if rng.random() < 0.2 and n:
        lengths[int(rng.integers(0, n))] = rng.integers(0, min(5000, MAX_ITEMS))
    if rng.random() < 0.3:
        lengths = np.maximum(lengths, 1) if n * 2 < MAX_ITEMS else lengths
    if mask is not None and (rng.random() < 0.5 or pa.types.is_map(kind)):
        lengths[mask] = 0
    first = int(rng.integers(0, 3))  # items before the first list
    ends = np.concatenate([[0], np.cumsum(lengths)]) + first
    total = int(ends[-1]) + int(rng.integers(0, 3))
    dtype = "i8" if pa.types.is_large_list(kind) else "i4"
    if pa.types.is_map(kind):
        entries = pa.field("entries", pa.struct([kind.key_field, kind.item_field]), False)
        child = _values(rng, entries, total, False)
    else:
        child = _values(rng, kind.value_field, total, bool(kind.value_field.nullable))
    return pa.Array.from_buffers(kind, n, [_bitmap(mask), pa.py_buffer(ends.astype(dtype))], children=[child])


def _dictionary(
    rng: np.random.Generator, kind: pa.DataType, n: int, mask: BoolArray | None, nullable: bool
) -> pa.Array:
    size = int(rng.choice([1, 2, 40, 100]))
    items = _values(rng, pa.field("v", kind.value_type), size, bool(nullable and rng.random() < 0.2))
    indices = rng.integers(0, size, n).astype(np.dtype(kind.index_type.to_pandas_dtype()))
    return pa.DictionaryArray.from_arrays(pa.array(indices, mask=mask), items)


_WORDS: Final = {
    "few": ["", "a", "bc", "Zürich", "日本語", "x" * 40],
    "one": ["constant"],
    "é": ["é" * 7, "ß", "𝄞𝄞"],
}


def _strings(rng: np.random.Generator, kind: pa.DataType, n: int, mask: BoolArray | None) -> pa.Array:
    style = rng.choice(["any", "few", "one", "empty", "url", "long", "edge", "wide", "é"])
    if style in _WORDS:
        words = _WORDS[style]
        return pa.array(words).take(pa.array(rng.integers(0, len(words), n), mask=mask)).cast(kind)
    if style == "url":
        urls = [f"https://www.example.org/item/{k}?q={k * 7919 % 1000}" for k in rng.integers(0, 5000, n)]
        return pa.array(urls, mask=mask).cast(kind)
    if style == "empty":
        lengths = np.zeros(n, np.int64)
    elif style == "long":
        lengths = rng.integers(0, max(1, min(900, 2_000_000 // max(n, 1))), n)
    elif style == "edge":
        lengths = rng.integers(253, 258, n) if n < 4000 else rng.integers(0, 3, n)
    elif style == "wide":
        lengths = rng.integers(0, 9, n)
        if n:
            lengths[rng.integers(0, n, 2)] = rng.integers(30_000, 40_000, 2)
    else:
        lengths = rng.integers(0, 12, n)
    if mask is not None and rng.random() < 0.5:
        lengths[mask] = 0
    ends = np.concatenate([[0], np.cumsum(lengths)])
    wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    letters = rng.integers(97, 97 + int(rng.choice([3, 26])), int(ends[-1]), dtype=np.uint8)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        letters = rng.integers(0, 256, int(ends[-1]), dtype=np.uint8)
    buffers = [_bitmap(mask), pa.py_buffer(ends.astype("i8" if wide else "i4")), pa.py_buffer(letters)]
    return pa.Array.from_buffers(kind, n, buffers)


def _fixed(rng: np.random.Generator, kind: pa.DataType, n: int, mask: BoolArray | None) -> pa.Array:
    if pa.types.is_boolean(kind):
        values = rng.random(n) < rng.choice([0.0, 0.5, 0.99, 1.0])
        return pa.array(values, mask=mask)
    width = kind.bit_width // 8
    if pa.types.is_decimal(kind):
        words = np.zeros((n, width // 8), "i8")
        words[:, 0] = rng.integers(-999_999_999, 1_000_000_000, n) // int(rng.choice([1, 10**6, 10**9]))
        words[:, 1:] = (words[:, :1] < 0) * -1
        data = words.view(np.uint8).reshape(-1)
    elif width not in (1, 2, 4, 8) or pa.types.is_fixed_size_binary(kind):
        few = rng.integers(0, 256, (int(rng.choice([1, 3, 1000])), width), dtype=np.uint8)
        data = few[rng.integers(0, len(few), n)].reshape(-1)
    elif pa.types.is_date64(kind) or pa.types.is_time(kind):
        day = 86_400_000 if pa.types.is_date64(kind) else 1
        numbers = _numbers(rng, n, 2)
        data = (numbers.astype("i8") * day).astype(f"i{width}").view(np.uint8)
    else:
        data = _numbers(rng, n, width).view(np.uint8)
    return pa.Array.from_buffers(kind, n, [_bitmap(mask), pa.py_buffer(np.ascontiguousarray(data))])


def _numbers(rng: np.random.Generator, n: int, width: int) -> npt.NDArray[Any]:
    """Return (n,) unsigned integers of `width` bytes with one of several distributions of real columns."""
    dtype = np.dtype(f"u{width}")
    top = (1 << 8 * width) - 1
    style = rng.choice(["any", "small", "sorted", "constant", "runs", "few", "outlier", "zero"])
    if style == "any":
        return rng.integers(0, top, n, dtype=dtype, endpoint=True)
    if style == "small":
        return rng.integers(0, int(rng.choice([2, 100])), n).astype(dtype)
    if style == "sorted":
        return np.cumsum(rng.integers(0, 4, n)).astype(dtype)
    if style == "constant":
        return np.full(n, rng.integers(0, top, dtype=dtype), dtype)
    if style == "runs":
        values = rng.integers(0, top, n, dtype=dtype, endpoint=True)
        lengths = rng.integers(1, int(rng.choice([4, 300, 3000])), n)
        count = int(np.searchsorted(np.cumsum(lengths), n)) + 1
        return np.repeat(values[:count], lengths[:count])[:n]
    if style == "few":
        return rng.integers(0, top, 5, dtype=dtype, endpoint=True)[rng.integers(0, 5, n)]
    values = np.zeros(n, dtype)
    if style == "outlier" and n:
        values[rng.integers(0, n)] = top
    return values


def row_choices(rng: np.random.Generator, n: int) -> list[npt.NDArray[np.int64]]:
    """Return four selections of ascending row numbers: one row, a few rows, consecutive rows, many rows."""
    if n == 0:
        return [np.empty(0, np.int64)]
    few = np.unique(rng.integers(0, n, 5))
    start = int(rng.integers(0, n))
    many = np.flatnonzero(rng.random(n) < 0.3)
    return [few[:1], few, np.arange(start, min(start + 3, n)), many]


# -------------------------------------------------------------------------------------------------------- comparison


def comparable(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the same values as one array whose `equals` is exact.

    Floats become their bits, dictionaries their values, and values below a null are removed.
    """
    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks == 0:
            return comparable(pa.nulls(0, array.type))
        return pa.concat_arrays([comparable(chunk) for chunk in array.chunks])
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return comparable(array.storage)
    if pa.types.is_dictionary(kind):
        return comparable(array.dictionary_decode())
    if pa.types.is_floating(kind):
        bits = array.view(f"int{kind.bit_width}")
        if kind.bit_width == 16:
            numbers = np.asarray(bits.fill_null(0)).view(np.float16)
            nan = pa.array(np.isnan(numbers))
        else:
            nan = pc.fill_null(pc.is_nan(array), False)
        bits = pc.if_else(nan, pa.scalar(-1, bits.type), bits)
        return pc.if_else(array.is_valid(), bits, pa.scalar(None, bits.type))
    if pa.types.is_struct(kind):
        if kind.num_fields == 0:
            return array.is_valid()
        parts = [comparable(part) for part in array.flatten()]
        return pa.StructArray.from_arrays(
            [*parts, array.is_valid()], [*(f"{k}" for k in range(kind.num_fields)), "valid"]
        )
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays([array.keys, array.items], fields=[kind.key_field, kind.item_field])
        buffers = array.buffers()[:2]
        return comparable(
            pa.Array.from_buffers(
                pa.list_(pa.field("entries", entries.type)), len(array), buffers, -1, array.offset, [entries]
            )
        )
    if pa.types.is_fixed_size_list(kind):
        lengths = np.where(np.asarray(array.is_null()), 0, kind.list_size)
        return _as_lists(array, lengths, comparable(array.flatten()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = np.asarray(pc.list_value_length(array).fill_null(0)).astype("i8")
        return _as_lists(array, lengths, comparable(array.flatten()))
    return array


def _as_lists(array: pa.Array, lengths: npt.NDArray[Any], items: pa.Array) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeListArray.from_arrays(pa.array(ends.astype("i8")), items, mask=array.is_null())
