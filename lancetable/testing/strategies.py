"""Test data: arrays of every type that can be stored, and hypothesis strategies for schemas, fragments and operations.

`TYPE_CASES` contains each type once. A case generates arrays from a NumPy random generator, so it can be used without
hypothesis:

    array = TYPE_CASES["list<int32>"](np.random.default_rng(0), 100, 0.3)
"""

from __future__ import annotations

import json
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

Builder: TypeAlias = Callable[[np.random.Generator, int, float], pa.Array]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

NULL_FRACTIONS: Final = (0.0, 0.3, 1.0)


@dataclass(frozen=True, slots=True)
class TypeCase:
    """One type: the field of a column and a generator of its values.

    A call returns (n,) values of which about `null_fraction` are null. Without `allows_nulls`, there are no nulls. A
    struct has the nulls in its children, because 2.0 files cannot store null structs.
    """

    name: str
    data_type: pa.DataType
    build: Builder | None = field(default=None, repr=False)  # for values other than those of `random_values`
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    allows_nulls: bool = True

    def __call__(self, rng: np.random.Generator, n: int, null_fraction: float = 0.0) -> pa.Array:
        """Return (n,) values of which about `null_fraction` are null."""
        null_fraction = null_fraction if self.allows_nulls else 0.0
        if self.build is None:
            array = random_values(rng, self.data_type, n, null_fraction)
        else:
            array = self.build(rng, n, null_fraction)
        assert len(array) == n and array.type == self.data_type, (self.name, array.type)
        return array

    def field(self, name: str = "c") -> pa.Field:
        """Return a field of this type with the required metadata."""
        return pa.field(name, self.data_type, nullable=True, metadata=dict(self.metadata) or None)

    def table(self, rng: np.random.Generator, n: int, null_fraction: float = 0.0, name: str = "c") -> pa.Table:
        """Return a table with one column of this type."""
        return pa.table([self(rng, n, null_fraction)], schema=pa.schema([self.field(name)]))


# ----------------------------------------------------------------------------------------------------------- values

_MS_PER_DAY: Final = 86_400_000
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_WORDS: Final = ("", "a", "lance", "grüße", "日本語", "🦀", "x" * 40, "a\0b", "row ", "'quoted'")
_JSON_VALUES: Final[Sequence[Any]] = ({"a": 1, "b": [1, 2]}, [], {}, "text", 1.5, True, None, {"a": {"b": "c"}})


def random_values(rng: np.random.Generator, data_type: pa.DataType, n: int, null_fraction: float = 0.0) -> pa.Array:
    """Return random values of a type, among them extreme values such as NaN, the largest integer and empty strings.

    Parameters
    ----------
    rng
        The random generator.
    data_type
        The type of the values.
    n
        The number of values.
    null_fraction
        Fraction of nulls at every nesting level; structs have the nulls in their children.

    Returns
    -------
    pyarrow.Array
        (n,) values.
    """
    types = pa.types
    if types.is_null(data_type):
        return pa.nulls(n)
    if data_type == pa.json_():
        strings = [json.dumps(_JSON_VALUES[i], separators=(",", ":")) for i in rng.integers(0, len(_JSON_VALUES), n)]
        array = pa.array(strings, pa.utf8(), mask=_mask(rng, n, null_fraction))
        return pa.ExtensionArray.from_storage(data_type, array)
    if data_type == pa.bool8():
        return pa.ExtensionArray.from_storage(data_type, _integers(rng, pa.int8(), (0, 1), n, null_fraction))
    if isinstance(data_type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(data_type, random_values(rng, data_type.storage_type, n, null_fraction))
    if types.is_struct(data_type):
        if not data_type.num_fields:
            return pa.Array.from_buffers(data_type, n, [None])
        children = [_items(rng, child, n, null_fraction) for child in data_type]
        return pa.StructArray.from_arrays(children, fields=list(data_type))
    if types.is_fixed_size_list(data_type):
        items = _items(rng, data_type.value_field, n * data_type.list_size, null_fraction)
        mask = _mask(rng, n, null_fraction)
        return pa.FixedSizeListArray.from_arrays(items, type=data_type, mask=pa.array(mask) if mask.any() else None)
    if types.is_list(data_type) or types.is_large_list(data_type):
        return _lists(rng, data_type, n, null_fraction)
    if types.is_dictionary(data_type):
        return _dictionary(rng, data_type, n, null_fraction)
    return _leaf_values(rng, data_type, n, null_fraction)


def _leaf_values(rng: np.random.Generator, data_type: pa.DataType, n: int, null_fraction: float) -> pa.Array:
    """Return random values of a type without children."""
    types = pa.types
    if types.is_boolean(data_type):
        return pa.array(rng.random(n) < 0.5, mask=_mask(rng, n, null_fraction))
    if types.is_string(data_type) or types.is_large_string(data_type):
        return _strings(rng, data_type, n, null_fraction)
    if types.is_binary(data_type) or types.is_large_binary(data_type):
        return _binaries(rng, data_type, n, null_fraction)
    if types.is_floating(data_type):
        values = rng.standard_normal(n).astype(f"f{data_type.bit_width // 8}")
        info = np.finfo(values.dtype)
        special = [np.nan, np.inf, -np.inf, 0.0, -0.0, float(info.max), float(info.smallest_subnormal)]
        _sprinkle(rng, values, np.array(special, values.dtype))
    elif types.is_decimal(data_type):
        values = _decimal_words(rng, data_type, n)
    elif types.is_fixed_size_binary(data_type):
        values = np.frombuffer(rng.bytes(n * data_type.byte_width), np.uint8)
    elif types.is_date64(data_type):
        values = rng.integers(-40_000, 40_000, n) * _MS_PER_DAY
    else:
        return _integers(rng, data_type, _integer_bounds(data_type), n, null_fraction)
    return _fixed(data_type, values, _mask(rng, n, null_fraction))


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


def _integer_bounds(data_type: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer or temporal type."""
    if pa.types.is_date(data_type):
        return -40_000, 40_000
    if pa.types.is_time(data_type):
        return 0, 86_400 * _PER_SECOND[data_type.unit] - 1
    if pa.types.is_temporal(data_type):  # timestamps and durations
        return -4_000_000_000 * _PER_SECOND[data_type.unit], 4_000_000_000 * _PER_SECOND[data_type.unit]
    info = np.iinfo(data_type.to_pandas_dtype())
    return int(info.min), int(info.max)


def _integers(
    rng: np.random.Generator, data_type: pa.DataType, bounds: tuple[int, int], n: int, null_fraction: float
) -> pa.Array:
    low, high = bounds
    dtype = np.dtype(f"{'u' if pa.types.is_unsigned_integer(data_type) else 'i'}{data_type.bit_width // 8}")
    values = rng.integers(low, high, n, dtype=dtype, endpoint=True)
    _sprinkle(rng, values, np.array([low, 0, high], dtype))
    return _fixed(data_type, values, _mask(rng, n, null_fraction))


def _decimal_words(rng: np.random.Generator, data_type: pa.DataType, n: int) -> npt.NDArray[np.int64]:
    """Return the (n, w) 64-bit words of n decimals."""
    width = data_type.byte_width
    limit = 10 ** min(data_type.precision, 18) - 1
    words = np.zeros((n, width // 8), np.int64)
    words[:, 0] = rng.integers(-limit, limit, n, endpoint=True)
    words[:, 1:] = words[:, :1] >> 63
    largest = 10**data_type.precision - 1
    extremes = b"".join(value.to_bytes(width, "little", signed=True) for value in (largest, -largest))
    _sprinkle(rng, words, np.frombuffer(extremes, np.int64).reshape(2, -1))
    return words


def _strings(rng: np.random.Generator, data_type: pa.DataType, n: int, null_fraction: float) -> pa.Array:
    heads = rng.choice(_WORDS, n)
    tails = rng.integers(0, 1 << 40, n)
    kept = rng.random(n) < 0.3
    values = [str(head) if keep else f"{head}{tail:x}" for head, tail, keep in zip(heads, tails, kept, strict=True)]
    return pa.array(values, data_type, mask=_mask(rng, n, null_fraction))


def _few_strings(rng: np.random.Generator, n: int, null_fraction: float) -> pa.Array:
    values = np.asarray(["", "alpha", "beta", "γάμμα"], object)[rng.integers(0, 4, n)]
    return pa.array(values, pa.utf8(), mask=_mask(rng, n, null_fraction))


def _binaries(
    rng: np.random.Generator, data_type: pa.DataType, n: int, null_fraction: float, mean_size: int = 8
) -> pa.Array:
    values = [rng.bytes(size) for size in rng.integers(0, 2 * mean_size, n, endpoint=True)]
    return pa.array(values, data_type, mask=_mask(rng, n, null_fraction))


def _items(rng: np.random.Generator, child: pa.Field, n: int, null_fraction: float) -> pa.Array:
    return random_values(rng, child.type, n, null_fraction if child.nullable else 0.0)


def _lists(
    rng: np.random.Generator, data_type: pa.DataType, n: int, null_fraction: float, max_length: int = 4
) -> pa.Array:
    mask = _mask(rng, n, null_fraction)
    lengths = rng.integers(0, max_length, n, endpoint=True)
    lengths[mask] = 0
    items = _items(rng, data_type.value_field, int(lengths.sum()), null_fraction)
    is_large = pa.types.is_large_list(data_type)
    ends = pa.array(np.append(0, np.cumsum(lengths)), pa.int64() if is_large else pa.int32())
    list_class = pa.LargeListArray if is_large else pa.ListArray
    return list_class.from_arrays(ends, items, type=data_type, mask=pa.array(mask) if mask.any() else None)


def _dictionary(rng: np.random.Generator, data_type: pa.DataType, n: int, null_fraction: float) -> pa.Array:
    count = 2 if pa.types.is_boolean(data_type.value_type) else 20
    if pa.types.is_floating(data_type.value_type):  # without NaN, which is not equal to itself
        unique = pa.array(np.arange(count) - 5, data_type.value_type)
    else:
        unique = random_values(rng, data_type.value_type, 20 * count).unique().slice(0, count)
    indices = pa.array(rng.integers(0, len(unique), n), data_type.index_type, mask=_mask(rng, n, null_fraction))
    return pa.DictionaryArray.from_arrays(indices, unique)


# ------------------------------------------------------------------------------------------------------------ cases


def _simple_types() -> dict[str, pa.DataType]:
    """Return the types without children and parameters, and temporal, decimal and binary types, by name."""
    types = [pa.bool_(), pa.null(), pa.float16(), pa.float32(), pa.float64(), pa.utf8(), pa.large_utf8()]
    types += [pa.type_for_alias(f"{sign}int{width}") for width in (8, 16, 32, 64) for sign in ("", "u")]
    types += [pa.decimal128(9, 2), pa.decimal128(38, 10), pa.decimal128(5, -2), pa.decimal256(76, 20)]
    types += [*(pa.binary(size) for size in (1, 3, 7, 16)), pa.binary(), pa.large_binary()]
    types += [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
    zones = (None, "UTC", "America/New_York", "+05:30")
    types += [pa.timestamp(unit, zone) for unit in _PER_SECOND for zone in zones]
    types += [pa.duration(unit) for unit in _PER_SECOND]
    return {"date32": pa.date32(), "date64": pa.date64(), **{str(data_type): data_type for data_type in types}}


def _nested_types() -> dict[str, pa.DataType]:
    point = pa.struct([("x", pa.float64()), ("y", pa.int32()), ("label", pa.utf8())])
    line = pa.struct([("start", point), ("weights", pa.list_(pa.float32())), ("code", pa.binary(3))])
    vector_items = [
        (pa.int32(), 3),
        (pa.float32(), 8),
        (pa.float16(), 4),
        (pa.bool_(), 3),
        (pa.uint8(), 1),
        (pa.binary(3), 2),
        (pa.timestamp("us"), 2),
        (pa.decimal128(9, 2), 2),
    ]
    list_items = {
        "int32": pa.int32(),
        "string": pa.utf8(),
        "bool": pa.bool_(),
        "struct": point,
        "list<int32>": pa.list_(pa.int32()),
        "fixed_size_list<float>[8]": pa.list_(pa.float32(), 8),
        "large_binary": pa.large_binary(),
        "dictionary": pa.dictionary(pa.int8(), pa.utf8()),
    }
    return {
        **{f"fixed_size_list<{item}>[{size}]": pa.list_(item, size) for item, size in vector_items},
        "fixed_size_list<fixed_size_list<int32>[2]>[3]": pa.list_(pa.list_(pa.int32(), 2), 3),
        **{f"list<{name}>": pa.list_(item) for name, item in list_items.items()},
        **{f"large_list<{name}>": pa.large_list(item) for name, item in list_items.items()},
        "list<element not null>": pa.list_(pa.field("element", pa.int32(), nullable=False)),
        "struct": point,
        "struct nested": line,
        "struct empty": pa.struct([]),
    }


def _dictionary_types() -> dict[str, pa.DataType]:
    values = {
        pa.int32(): pa.utf8(),
        pa.uint16(): pa.large_utf8(),
        pa.int8(): pa.binary(),
        pa.int64(): pa.large_binary(),
        pa.uint8(): pa.int64(),
        pa.uint64(): pa.float64(),
        pa.int16(): pa.bool_(),
    }
    return {f"dictionary<{index}, {value}>": pa.dictionary(index, value) for index, value in values.items()}


def _special_cases() -> list[TypeCase]:
    """Return the cases with metadata or with values other than those of `random_values`."""
    packed = pa.struct([("a", pa.int64()), ("b", pa.float32()), ("c", pa.uint8()), ("v", pa.list_(pa.float32(), 8))])
    unknown = {"ARROW:extension:name": "example.celsius", "ARROW:extension:metadata": '{"scale":1}'}
    bytes_, lists = pa.large_binary(), pa.list_(pa.int32())
    return [
        TypeCase("int64 small", pa.int64(), lambda rng, *rest: _integers(rng, pa.int64(), (0, 100), *rest)),
        TypeCase("string few", pa.utf8(), _few_strings),
        TypeCase("list always empty", lists, lambda rng, n, nulls: _lists(rng, lists, n, nulls, max_length=0)),
        TypeCase("struct packed", packed, None, {"packed": "true"}, allows_nulls=False),
        TypeCase("unknown extension", pa.int32(), None, unknown),
        TypeCase(
            "blob", bytes_, lambda rng, n, nulls: _binaries(rng, bytes_, n, nulls, 100), {"lance-encoding:blob": "true"}
        ),
        TypeCase("binary zstd", pa.binary(), None, {"lance-encoding:compression": "zstd"}),
    ]


_TYPES: Final[Mapping[str, pa.DataType]] = {
    **_simple_types(),
    **_nested_types(),
    **_dictionary_types(),
    "uuid": pa.uuid(),
    "bool8": pa.bool8(),
    "json": pa.json_(),
    "fixed_shape_tensor": pa.fixed_shape_tensor(pa.float32(), [2, 2]),
}
TYPE_CASES: Final[Mapping[str, TypeCase]] = {
    **{name: TypeCase(name, data_type) for name, data_type in _TYPES.items()},
    **{case.name: case for case in _special_cases()},
}


# ------------------------------------------------------------------------------------------- strategies: Arrow data


@st.composite
def schemas(draw: st.DrawFn, max_columns: int = 5) -> pa.Schema:
    """Draw Arrow schemas of one to `max_columns` columns, some not nullable, some with metadata."""
    fields = []
    for index in range(draw(st.integers(1, max_columns))):
        case = TYPE_CASES[draw(st.sampled_from(sorted(TYPE_CASES)))]
        metadata = {**case.metadata, **draw(st.dictionaries(_NAMES, st.text(max_size=5), max_size=1))}
        fields.append(case.field(f"c{index}").with_nullable(draw(st.booleans())).with_metadata(metadata or None))
    return pa.schema(fields, metadata=draw(st.dictionaries(_NAMES, st.text(max_size=5), max_size=2)) or None)


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


def deletion_files() -> st.SearchStrategy[DeletionFile]:
    """Return a strategy for deletion files of at most 10 rows, some with an unknown count."""
    return st.builds(
        DeletionFile,
        kind=st.sampled_from(DeletionKind),
        read_version=_U64,
        id=_U64,
        num_deleted_rows=_optional(st.integers(1, 10)),
        base_id=_optional(st.sampled_from([0, 1])),
    )


@st.composite
def fragments(draw: st.DrawFn) -> Fragment:
    """Draw fragments. Their row id sequences are arbitrary bytes, which code under test must not interpret."""
    physical_rows = draw(st.integers(10, 2**32))
    return Fragment(
        draw(_U32),
        tuple(draw(st.lists(data_files(), max_size=3))),
        physical_rows,
        draw(_optional(deletion_files())),
        *(draw(_optional(st.binary(max_size=8))) for _ in range(3)),
    )


def operations(kind: str | None = None) -> st.SearchStrategy[tx.Operation]:
    """Return a strategy for operations of any kind, or of the kind with this name in the protobuf oneof."""
    return st.one_of(*_OPERATIONS.values()) if kind is None else _OPERATIONS[kind]


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
