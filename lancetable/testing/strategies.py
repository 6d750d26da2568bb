"""Test data: arrays of every type that can be stored, and hypothesis strategies for schemas, fragments and operations.

`TYPE_CASES` contains each type once. A case generates arrays with a NumPy generator, also for tests without hypothesis.
`DRAWN` counts the cases that the strategies drew, so that a test can check that each one was drawn:

    array = TYPE_CASES["list<int32>"](np.random.default_rng(0), 100, 0.3)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import strategies as st

from lancetable.format import transaction as tx
from lancetable.format.fragment import DataFile, DeletionFile, DeletionKind, Fragment
from lancetable.format.manifest import BasePath
from lancetable.format.paths import new_data_file_name
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion

__all__ = [
    "DRAWN",
    "NULL_FRACTIONS",
    "TYPE_CASES",
    "TypeCase",
    "arrays",
    "batches",
    "columns",
    "data_files",
    "deletion_files",
    "fragments",
    "operations",
    "row_slices",
    "schemas",
    "sorted_offsets",
    "tables",
    "transactions",
]

Builder: TypeAlias = Callable[[np.random.Generator, int, float], pa.Array]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

NULL_FRACTIONS: Final = (0.0, 0.3, 1.0)

DRAWN: Counter[str] = Counter()


@dataclass(frozen=True, slots=True)
class TypeCase:
    """One type: the field of a column and a generator of its values.

    A call returns (n,) values of which about `null_fraction` are null. Without `allows_nulls`, there are no nulls. A
    struct has the nulls in its children, because 2.0 files cannot store null structs.
    """

    name: str
    data_type: pa.DataType
    build: Builder = field(repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    allows_nulls: bool = True
    first_version: FileVersion = FileVersion.V2_0

    def __call__(self, rng: np.random.Generator, n: int, null_fraction: float = 0.0) -> pa.Array:
        array = self.build(rng, n, null_fraction if self.allows_nulls else 0.0)
        assert len(array) == n and array.type == self.data_type, (self.name, array.type)
        return array

    def field(self, name: str = "c") -> pa.Field:
        """Return a field of this type with the required metadata."""
        return pa.field(name, self.data_type, nullable=True, metadata=dict(self.metadata) or None)

    def table(self, rng: np.random.Generator, n: int, null_fraction: float = 0.0, name: str = "c") -> pa.Table:
        """Return a table with one column of this type."""
        return pa.table([self(rng, n, null_fraction)], schema=pa.schema([self.field(name)]))


# --------------------------------------------------------------------------------------------------------- builders


def _mask(rng: np.random.Generator, n: int, null_fraction: float) -> BoolArray:
    """Return an (n,) mask that is true for nulls."""
    if null_fraction <= 0:
        return np.zeros(n, bool)
    return np.ones(n, bool) if null_fraction >= 1 else rng.random(n) < null_fraction


def _validity(mask: BoolArray) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(~mask, bitorder="little").tobytes()) if mask.any() else None


def _fixed(data_type: pa.DataType, values: npt.NDArray[Any], mask: BoolArray) -> pa.Array:
    """Return an array whose data buffer is the bytes of the (n, ...) values."""
    return pa.Array.from_buffers(data_type, len(mask), [_validity(mask), pa.py_buffer(values.tobytes())])


def _sprinkle(rng: np.random.Generator, values: npt.NDArray[Any], extremes: npt.NDArray[Any]) -> None:
    """Replace about one value in eight by an extreme one."""
    chosen = rng.random(len(values)) < 0.125
    values[chosen] = rng.choice(extremes, int(chosen.sum()))


def _integers(data_type: pa.DataType, dtype: str, low: int | None = None, high: int | None = None) -> Builder:
    info = np.iinfo(dtype)
    smallest, largest = info.min if low is None else low, info.max if high is None else high

    def build(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
        values = rng.integers(smallest, largest, n, dtype=dtype, endpoint=True)
        _sprinkle(rng, values, np.array([smallest, 0, largest], dtype))
        return _fixed(data_type, values, _mask(rng, n, null_fraction))

    return build


def _floats(data_type: pa.DataType, dtype: str) -> Builder:
    def build(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
        values = rng.standard_normal(n).astype(dtype)
        info = np.finfo(np.dtype(dtype))
        special = [np.nan, np.inf, -np.inf, 0.0, -0.0, float(info.max), float(info.smallest_subnormal)]
        _sprinkle(rng, values, np.array(special, dtype))
        return _fixed(data_type, values, _mask(rng, n, null_fraction))

    return build


def _booleans(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
    return pa.array(rng.random(n) < 0.5, mask=_mask(rng, n, null_fraction))


def _decimals(data_type: pa.DataType) -> Builder:
    def build(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
        width = data_type.byte_width
        limit = 10 ** min(data_type.precision, 18) - 1
        words = np.zeros((n, width // 8), np.int64)
        words[:, 0] = rng.integers(-limit, limit, n, endpoint=True)
        words[:, 1:] = words[:, :1] >> 63
        largest = 10**data_type.precision - 1
        extremes = b"".join(value.to_bytes(width, "little", signed=True) for value in (largest, -largest))
        _sprinkle(rng, words, np.frombuffer(extremes, np.int64).reshape(2, -1))
        return _fixed(data_type, words, _mask(rng, n, null_fraction))

    return build


def _fixed_bytes(data_type: pa.DataType) -> Builder:
    def build(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
        values = np.frombuffer(rng.bytes(n * data_type.byte_width), np.uint8)
        return _fixed(data_type, values, _mask(rng, n, null_fraction))

    return build


_WORDS: Final = ("", "a", "lance", "grüße", "日本語", "🦀", "x" * 40, "a\0b", "row ", "'quoted'")


def _strings(data_type: pa.DataType) -> Builder:
    def build(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
        heads = rng.choice(_WORDS, n)
        tails = rng.integers(0, 1 << 40, n)
        kept = rng.random(n) < 0.3
        values = [str(head) if keep else f"{head}{tail:x}" for head, tail, keep in zip(heads, tails, kept, strict=True)]
        return pa.array(values, data_type, mask=_mask(rng, n, null_fraction))

    return build


def _few_strings(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
    values = np.asarray(["", "alpha", "beta", "γάμμα"], object)[rng.integers(0, 4, n)]
    return pa.array(values, pa.utf8(), mask=_mask(rng, n, null_fraction))


def _binaries(data_type: pa.DataType, mean_size: int = 8) -> Builder:
    offset_type = "<i8" if pa.types.is_large_binary(data_type) else "<i4"

    def build(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
        mask = _mask(rng, n, null_fraction)
        sizes = rng.integers(0, 2 * mean_size, n, endpoint=True)
        sizes[mask] = 0
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(offset_type)
        data = rng.bytes(int(ends[-1]))
        return pa.Array.from_buffers(data_type, n, [_validity(mask), pa.py_buffer(ends.tobytes()), pa.py_buffer(data)])

    return build


def _json_strings(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
    kinds = [{"a": 1, "b": [1, 2]}, [], {}, "text", 1.5, True, None, {"a": {"b": "c"}}]
    strings = [json.dumps(kinds[kind], separators=(",", ":")) for kind in rng.integers(0, len(kinds), n)]
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(strings, pa.utf8(), mask=_mask(rng, n, null_fraction)))


def _extension(data_type: pa.BaseExtensionType, storage: Builder) -> Builder:
    def build(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
        return pa.ExtensionArray.from_storage(data_type, storage(rng, n, null_fraction))

    return build


def _fixed_size_lists(item: Builder, size: int) -> Builder:
    def build(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
        items = item(rng, n * size, null_fraction)
        mask = _mask(rng, n, null_fraction)
        return pa.FixedSizeListArray.from_arrays(items, size, mask=pa.array(mask) if mask.any() else None)

    return build


def _lists(data_type: pa.DataType, item: Builder, max_length: int = 4) -> Builder:
    large = pa.types.is_large_list(data_type)
    kind = pa.LargeListArray if large else pa.ListArray

    def build(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
        mask = _mask(rng, n, null_fraction)
        lengths = rng.integers(0, max_length, n, endpoint=True)
        lengths[mask] = 0
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype("<i8" if large else "<i4")
        items = item(rng, int(ends[-1]), null_fraction)
        return kind.from_arrays(pa.array(ends), items, type=data_type, mask=pa.array(mask) if mask.any() else None)

    return build


def _structs(data_type: pa.DataType, children: Sequence[Builder]) -> Builder:
    def build(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
        arrays = [child(rng, n, null_fraction) for child in children]
        return pa.StructArray.from_arrays(arrays, fields=list(data_type))

    return build


def _empty_structs(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
    return pa.Array.from_buffers(pa.struct([]), n, [None])


def _dictionaries(data_type: pa.DataType, values: Builder, num_values: int) -> Builder:
    def build(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
        indices = pa.array(rng.integers(0, num_values, n), data_type.index_type, mask=_mask(rng, n, null_fraction))
        unique = values(rng, 4 * num_values, 0.0).unique()
        while len(unique) < num_values:
            unique = pa.concat_arrays([unique, values(rng, 4 * num_values, 0.0)]).unique()
            if pa.types.is_boolean(unique.type):
                break
        return pa.DictionaryArray.from_arrays(indices, unique.slice(0, num_values))

    return build


def _nulls(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
    return pa.nulls(n)


# ------------------------------------------------------------------------------------------------------------ cases

_MS_PER_DAY: Final = 86_400_000
_INT32: Final = _integers(pa.int32(), "int32")
_FLOAT32: Final = _floats(pa.float32(), "float32")
_UTF8: Final = _strings(pa.utf8())


def _whole_days(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
    days = rng.integers(-40_000, 40_000, n) * _MS_PER_DAY
    return _fixed(pa.date64(), days, _mask(rng, n, null_fraction))


def _simple_cases() -> list[TypeCase]:
    cases = [TypeCase("bool", pa.bool_(), _booleans), TypeCase("null", pa.null(), _nulls)]
    for width in (8, 16, 32, 64):
        for dtype in (f"int{width}", f"uint{width}"):
            integer = pa.type_for_alias(dtype)
            cases.append(TypeCase(dtype, integer, _integers(integer, dtype)))
    cases.append(TypeCase("int64 small", pa.int64(), _integers(pa.int64(), "int64", 0, 100)))
    for name, dtype in (("halffloat", "float16"), ("float", "float32"), ("double", "float64")):
        cases.append(TypeCase(name, pa.type_for_alias(dtype), _floats(pa.type_for_alias(dtype), dtype)))
    decimals = (pa.decimal128(9, 2), pa.decimal128(38, 10), pa.decimal128(5, -2), pa.decimal256(76, 20))
    cases.extend(TypeCase(str(decimal), decimal, _decimals(decimal)) for decimal in decimals)
    cases.extend(TypeCase(f"fixed_size_binary[{n}]", pa.binary(n), _fixed_bytes(pa.binary(n))) for n in (1, 3, 7, 16))
    cases.extend(TypeCase(str(string), string, _strings(string)) for string in (pa.utf8(), pa.large_utf8()))
    cases.append(TypeCase("string few", pa.utf8(), _few_strings))
    cases.extend(TypeCase(str(binary), binary, _binaries(binary)) for binary in (pa.binary(), pa.large_binary()))
    return cases


def _temporal_cases() -> list[TypeCase]:
    cases = [
        TypeCase("date32", pa.date32(), _integers(pa.date32(), "int32", -40_000, 40_000)),
        TypeCase("date64", pa.date64(), _whole_days),
        TypeCase("time32[s]", pa.time32("s"), _integers(pa.time32("s"), "int32", 0, 86_399)),
        TypeCase("time32[ms]", pa.time32("ms"), _integers(pa.time32("ms"), "int32", 0, 86_399_999)),
        TypeCase("time64[us]", pa.time64("us"), _integers(pa.time64("us"), "int64", 0, 86_399_999_999)),
        TypeCase("time64[ns]", pa.time64("ns"), _integers(pa.time64("ns"), "int64", 0, 86_399_999_999_999)),
    ]
    for unit, per_second in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        bound = 4_000_000_000 * per_second
        for zone in (None, "UTC", "America/New_York", "+05:30"):
            data_type = pa.timestamp(unit, zone)
            cases.append(TypeCase(str(data_type), data_type, _integers(data_type, "int64", -bound, bound)))
        duration = pa.duration(unit)
        cases.append(TypeCase(str(duration), duration, _integers(duration, "int64", -bound, bound)))
    return cases


def _nested_cases() -> list[TypeCase]:
    point = pa.struct([("x", pa.float64()), ("y", pa.int32()), ("label", pa.utf8())])
    points = _structs(point, [_floats(pa.float64(), "float64"), _INT32, _UTF8])
    line = pa.struct([("start", point), ("weights", pa.list_(pa.float32())), ("code", pa.binary(3))])
    lines = _structs(line, [points, _lists(pa.list_(pa.float32()), _FLOAT32), _fixed_bytes(pa.binary(3))])
    fixed_items: list[tuple[str, pa.DataType, Builder, int]] = [
        ("int32", pa.int32(), _INT32, 3),
        ("float", pa.float32(), _FLOAT32, 8),
        ("halffloat", pa.float16(), _floats(pa.float16(), "float16"), 4),
        ("bool", pa.bool_(), _booleans, 3),
        ("uint8", pa.uint8(), _integers(pa.uint8(), "uint8"), 1),
        ("fixed_size_binary[3]", pa.binary(3), _fixed_bytes(pa.binary(3)), 2),
        ("timestamp[us]", pa.timestamp("us"), _integers(pa.timestamp("us"), "int64", 0, 2**50), 2),
        ("decimal128(9, 2)", pa.decimal128(9, 2), _decimals(pa.decimal128(9, 2)), 2),
        ("fixed_size_list<int32>[2]", pa.list_(pa.int32(), 2), _fixed_size_lists(_INT32, 2), 3),
    ]
    cases = [
        TypeCase(f"fixed_size_list<{name}>[{size}]", pa.list_(item, size), _fixed_size_lists(build, size))
        for name, item, build, size in fixed_items
    ]
    vectors = pa.list_(pa.float32(), 8)
    labels = pa.dictionary(pa.int8(), pa.utf8())
    list_items: list[tuple[str, pa.DataType, Builder]] = [
        ("int32", pa.int32(), _INT32),
        ("string", pa.utf8(), _UTF8),
        ("bool", pa.bool_(), _booleans),
        ("struct", point, points),
        ("list<int32>", pa.list_(pa.int32()), _lists(pa.list_(pa.int32()), _INT32)),
        ("fixed_size_list<float>[8]", vectors, _fixed_size_lists(_FLOAT32, 8)),
        ("large_binary", pa.large_binary(), _binaries(pa.large_binary())),
        ("dictionary", labels, _dictionaries(labels, _UTF8, 5)),
    ]
    for name, item, build in list_items:
        cases.append(TypeCase(f"list<{name}>", pa.list_(item), _lists(pa.list_(item), build)))
        cases.append(TypeCase(f"large_list<{name}>", pa.large_list(item), _lists(pa.large_list(item), build)))
    renamed = pa.list_(pa.field("element", pa.int32(), nullable=False))

    def full(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
        return _INT32(rng, n, 0.0)

    cases.append(TypeCase("list<element not null>", renamed, _lists(renamed, full)))
    cases.append(TypeCase("list always empty", pa.list_(pa.int32()), _lists(pa.list_(pa.int32()), _INT32, 0)))
    cases.append(TypeCase("struct", point, points))
    cases.append(TypeCase("struct nested", line, lines))
    cases.append(TypeCase("struct empty", pa.struct([]), _empty_structs))
    packed = pa.struct([("a", pa.int64()), ("b", pa.float32()), ("c", pa.uint8()), ("v", pa.list_(pa.float32(), 8))])
    packed_children = [
        _integers(pa.int64(), "int64"),
        _FLOAT32,
        _integers(pa.uint8(), "uint8"),
        _fixed_size_lists(_FLOAT32, 8),
    ]
    cases.append(
        TypeCase("struct packed", packed, _structs(packed, packed_children), {"packed": "true"}, allows_nulls=False)
    )
    return cases


def _dictionary_cases() -> list[TypeCase]:
    values: list[tuple[pa.DataType, Builder, int]] = [
        (pa.utf8(), _UTF8, 20),
        (pa.large_utf8(), _strings(pa.large_utf8()), 20),
        (pa.binary(), _binaries(pa.binary()), 20),
        (pa.large_binary(), _binaries(pa.large_binary()), 20),
        (pa.int64(), _integers(pa.int64(), "int64"), 20),
        (pa.float64(), _integers_as_floats, 20),
        (pa.bool_(), _booleans, 2),
    ]
    indices = [pa.int32(), pa.uint16(), pa.int8(), pa.int64(), pa.uint8(), pa.uint64(), pa.int16()]
    cases = []
    for index_type, (value_type, build, count) in zip(indices, values, strict=True):
        data_type = pa.dictionary(index_type, value_type)
        name = f"dictionary<{index_type}, {value_type}>"
        cases.append(TypeCase(name, data_type, _dictionaries(data_type, build, count)))
    return cases


def _integers_as_floats(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
    return pa.array(rng.integers(-1000, 1000, n).astype("float64"), mask=_mask(rng, n, null_fraction))


def _special_cases() -> list[TypeCase]:
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 2])
    tensors = _extension(tensor, _fixed_size_lists(_FLOAT32, 4))
    unknown = {"ARROW:extension:name": "example.celsius", "ARROW:extension:metadata": '{"scale":1}'}
    return [
        TypeCase("uuid", pa.uuid(), _extension(pa.uuid(), _fixed_bytes(pa.binary(16)))),
        TypeCase("bool8", pa.bool8(), _extension(pa.bool8(), _integers(pa.int8(), "int8", 0, 1))),
        TypeCase("json", pa.json_(), _json_strings),
        TypeCase("fixed_shape_tensor", tensor, tensors),
        TypeCase("unknown extension", pa.int32(), _INT32, unknown),
        TypeCase("blob", pa.large_binary(), _binaries(pa.large_binary(), 100), {"lance-encoding:blob": "true"}),
        TypeCase("binary zstd", pa.binary(), _binaries(pa.binary()), {"lance-encoding:compression": "zstd"}),
    ]


TYPE_CASES: Final[Mapping[str, TypeCase]] = {
    case.name: case
    for case in [*_simple_cases(), *_temporal_cases(), *_nested_cases(), *_dictionary_cases(), *_special_cases()]
}


# ------------------------------------------------------------------------------------------- strategies: Arrow data

_SIZES: Final = st.one_of(st.sampled_from([0, 1, 2, 7, 8, 9, 64, 100]), st.integers(0, 300))


def _type_names(names: Sequence[str] | None) -> st.SearchStrategy[str]:
    return st.sampled_from(sorted(TYPE_CASES) if names is None else list(names))


@st.composite
def columns(
    draw: st.DrawFn,
    names: Sequence[str] | None = None,
    sizes: st.SearchStrategy[int] = _SIZES,
    column_name: str = "c",
) -> tuple[pa.Field, pa.Array]:
    """Draw a field and an array of it. `names` are keys of TYPE_CASES, all by default."""
    case = TYPE_CASES[draw(_type_names(names))]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    DRAWN[case.name] += 1
    return case.field(column_name), case(rng, draw(sizes), draw(st.sampled_from(NULL_FRACTIONS)))


def arrays(names: Sequence[str] | None = None, sizes: st.SearchStrategy[int] = _SIZES) -> st.SearchStrategy[pa.Array]:
    """Return a strategy for arrays of the named cases, all by default."""
    return columns(names, sizes).map(lambda column: column[1])


@st.composite
def tables(
    draw: st.DrawFn,
    names: Sequence[str] | None = None,
    sizes: st.SearchStrategy[int] = _SIZES,
    max_columns: int = 4,
) -> pa.Table:
    """Draw tables with the columns c0, c1 ... of one up to `max_columns`."""
    size = st.just(draw(sizes))
    count = draw(st.integers(1, max_columns))
    drawn = [draw(columns(names, size, f"c{index}")) for index in range(count)]
    return pa.table([array for _, array in drawn], schema=pa.schema([field for field, _ in drawn]))


def batches(
    names: Sequence[str] | None = None, sizes: st.SearchStrategy[int] = _SIZES, max_columns: int = 4
) -> st.SearchStrategy[pa.RecordBatch]:
    """Return a strategy like `tables` for record batches."""
    return tables(names, sizes, max_columns).map(
        lambda table: pa.RecordBatch.from_arrays(
            [column.combine_chunks() for column in table.columns], schema=table.schema
        )
    )


@st.composite
def schemas(draw: st.DrawFn, names: Sequence[str] | None = None, max_columns: int = 5) -> pa.Schema:
    """Draw Arrow schemas of one to `max_columns` columns, some not nullable, some with metadata."""
    fields = []
    for index in range(draw(st.integers(1, max_columns))):
        case = TYPE_CASES[draw(_type_names(names))]
        DRAWN[case.name] += 1
        metadata = {**case.metadata, **draw(st.dictionaries(_NAMES, st.text(max_size=5), max_size=1))}
        fields.append(case.field(f"c{index}").with_nullable(draw(st.booleans())).with_metadata(metadata or None))
    return pa.schema(fields, metadata=draw(st.dictionaries(_NAMES, st.text(max_size=5), max_size=2)) or None)


@st.composite
def row_slices(draw: st.DrawFn, num_rows: int) -> range:
    """Draw a contiguous, possibly empty range of `num_rows` rows."""
    start = draw(st.integers(0, num_rows))
    return range(start, draw(st.integers(start, num_rows)))


@st.composite
def sorted_offsets(draw: st.DrawFn, num_rows: int) -> npt.NDArray[np.int64]:
    """Draw distinct ascending row offsets below `num_rows`, possibly none."""
    if not num_rows:
        return np.zeros(0, np.int64)
    return np.array(sorted(draw(st.sets(st.integers(0, num_rows - 1)))), np.int64)


# ---------------------------------------------------------------------------------------- strategies: format values

_NAMES: Final = st.text("abcdefgh_", min_size=1, max_size=6)
_U64: Final = st.one_of(st.integers(0, 10), st.integers(0, 2**64 - 1))
_U32: Final = st.one_of(st.integers(0, 10), st.integers(0, 2**32 - 1))
_STRING_MAPS: Final = st.dictionaries(_NAMES, st.text(max_size=8), max_size=3)


def _optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def data_files(draw: st.DrawFn) -> DataFile:
    """Draw data files of format 2.0, some with base paths, tombstones and unknown sizes."""
    ids = draw(st.lists(st.integers(-5, 50).filter(lambda field_id: field_id != -1), min_size=1, max_size=6))
    size_bytes = draw(_optional(st.integers(1, 2**62)))
    base_id = draw(_optional(st.sampled_from([0, 1, 7])))
    return DataFile(new_data_file_name(), tuple(ids), tuple(range(len(ids))), 2, 0, size_bytes, base_id)


def deletion_files(max_rows: int = 10) -> st.SearchStrategy[DeletionFile]:
    """Return a strategy for deletion files of at most `max_rows` rows, some with an unknown count."""
    return st.builds(
        DeletionFile,
        kind=st.sampled_from(DeletionKind),
        read_version=_U64,
        id=_U64,
        num_deleted_rows=_optional(st.integers(1, max_rows)),
        base_id=_optional(st.sampled_from([0, 1])),
    )


@st.composite
def fragments(draw: st.DrawFn, ids: st.SearchStrategy[int] = _U32) -> Fragment:
    """Draw fragments. Their row id sequences are arbitrary bytes, which code under test must not interpret."""
    physical_rows = draw(st.integers(10, 2**32))
    return Fragment(
        draw(ids),
        tuple(draw(st.lists(data_files(), max_size=3))),
        physical_rows,
        draw(_optional(deletion_files())),
        *(draw(_optional(st.binary(max_size=8))) for _ in range(3)),
    )


@st.composite
def operations(draw: st.DrawFn, kind: str | None = None) -> tx.Operation:
    """Draw an operation of any kind, or of the kind with this name in the protobuf oneof."""
    chosen = draw(st.sampled_from(sorted(tx.OPERATIONS))) if kind is None else kind
    operation: tx.Operation = draw(_OPERATIONS[chosen])
    return operation


def transactions() -> st.SearchStrategy[tx.Transaction]:
    """Return a strategy for transactions of every known operation."""
    return st.builds(
        tx.Transaction,
        read_version=_U64,
        uuid=st.uuids().map(str),
        operation=operations(),
        tag=st.sampled_from(["", "tag"]),
        properties=_STRING_MAPS,
    )


def _schema_values(*, metadata: bool = True) -> st.SearchStrategy[Schema]:
    values = schemas(max_columns=3).map(lambda arrow: Schema.from_arrow(arrow, check=False))
    return values if metadata else values.map(lambda schema: schema.with_metadata({}))


_FRAGMENTS: Final = st.lists(fragments(), max_size=3).map(tuple)
_IDS: Final = st.lists(_U64, max_size=3).map(tuple)
_FIELD_IDS: Final = st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)
_BASES: Final = st.lists(st.builds(BasePath, _U32, st.just("/base"), st.booleans(), _optional(_NAMES)), max_size=2).map(
    tuple
)
_UPDATE_MAPS: Final = st.builds(
    tx.UpdateMap, st.dictionaries(_NAMES, _optional(st.text(max_size=8)), max_size=3), st.booleans()
)
_GROUPS: Final = st.lists(st.builds(tx.RewriteGroup, _FRAGMENTS, _FRAGMENTS), max_size=2).map(tuple)
_REWRITTEN: Final = st.lists(
    st.builds(tx.RewrittenIndex, st.uuids(), st.uuids(), st.none(), st.integers(0, 9)), max_size=2
).map(tuple)

_OPERATIONS: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "append": st.builds(tx.Append, _FRAGMENTS),
    "delete": st.builds(tx.Delete, _FRAGMENTS, _IDS, st.text(max_size=10)),
    "overwrite": st.builds(tx.Overwrite, _FRAGMENTS, _schema_values(), _STRING_MAPS, _BASES),
    "create_index": st.just(tx.CreateIndex()),
    "rewrite": st.builds(tx.Rewrite, _GROUPS, _REWRITTEN),
    "merge": st.builds(tx.Merge, _FRAGMENTS, _schema_values(), st.booleans()),
    "project": st.builds(tx.Project, _schema_values(metadata=False), st.booleans()),
    "restore": st.builds(tx.Restore, _U64),
    "reserve_fragments": st.builds(tx.ReserveFragments, _U32),
    "update": st.builds(
        tx.Update,
        removed_fragment_ids=_IDS,
        updated_fragments=_FRAGMENTS,
        new_fragments=_FRAGMENTS,
        fields_modified=_FIELD_IDS,
        fields_for_preserving_frag_bitmap=_FIELD_IDS,
        mode=st.sampled_from(tx.UpdateMode),
        inserted_rows=_optional(st.just(b"")),
        updated_offsets=st.dictionaries(_U64, st.lists(_U32, max_size=3).map(tuple), max_size=2),
        updated_offset_bitmaps=st.dictionaries(_U64, st.binary(max_size=4), max_size=2),
    ),
    "update_config": st.builds(
        tx.UpdateConfig,
        _optional(_UPDATE_MAPS),
        _optional(_UPDATE_MAPS),
        _optional(_UPDATE_MAPS),
        st.dictionaries(st.integers(0, 100), _UPDATE_MAPS, max_size=2),
    ),
    "data_replacement": st.builds(
        tx.DataReplacement, st.lists(st.builds(tx.DataReplacementGroup, _U64, data_files()), max_size=2).map(tuple)
    ),
    "update_mem_wal_state": st.just(tx.UpdateMemWalState()),
    "clone": st.builds(tx.Clone, st.booleans(), _U64, st.just("/source"), _optional(_NAMES), _optional(_NAMES)),
    "update_bases": st.builds(tx.UpdateBases, _BASES),
    "data_overlay": st.builds(
        tx.DataOverlay, st.lists(st.builds(tx.OverlayGroup, _U64, st.just((b"",))), max_size=2).map(tuple)
    ),
}
