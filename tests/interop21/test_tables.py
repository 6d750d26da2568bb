"""Random tables of several versions, written by pylance: scans, ranges, takes and filters equal those of pylance.

The seeds together cover every field metadata key of the encodings, both forms of blobs, packed structs, maps,
dictionaries, extension types, lists of four levels, long and short strings, pages with nulls only, nullability that
changes from page to page, chunks up to the maximum, one page or hundreds, one fragment or dozens. Tables of 2.0 and 0.1
have the types that these versions can store. LANCETABLE_TEST_SCALE multiplies the number of seeds, and makes some
tables six times as long.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.format.version import FileVersion
from tests.support import legacy
from tests.support.nested import FIXED, NUMBERS, TEXTS, comparable, random_array

PREFIX = "lance-encoding:"
KEYS: dict[str, list[dict[str, str]]] = {
    "number": [
        {},
        {"compression": "zstd", "compression-level": "1"},
        {"compression": "lz4", "bss": "on"},
        {"compression": "zstd", "bss": "off"},
        {"compression": "zstd", "bss": "auto", "rle-threshold": "0.9"},
        {"rle-threshold": "0.1"},
        {"compression": "none"},
        {"structural-encoding": "fullzip"},
        {"compression": "fsst"},
    ],
    "text": [
        {},
        {"compression": "zstd"},
        {"compression": "lz4"},
        {"compression": "fsst"},
        {"compression": "none", "structural-encoding": "fullzip"},
        {"dict-divisor": "10", "dict-size-ratio": "0.99"},
        {"dict-divisor": "2", "dict-values-compression": "zstd", "dict-values-compression-level": "3"},
        {"minichunk-size": "1024", "structural-encoding": "miniblock"},
        {"minichunk-size": "30000"},
        {"dict-values-compression": "none", "compression": "zstd", "compression-level": "5"},
    ],
}
VERSIONS = [FileVersion.LEGACY, FileVersion.V2_0, FileVersion.V2_1, FileVersion.V2_2]
FILTERS = [
    "id % 7 = 3",
    "id < 40 OR id > 900",
    "number > 0 AND id >= 100",
    "text IS NULL",
    "text LIKE 'a%' AND id < 700",
]


# Structs above and between lists that are null in some pages only: pylance writes them, but cannot read them.
HARD = ("deep", "spine")


class Draw:
    """Random choices of a seed."""

    def __init__(self, rng: np.random.Generator, version: FileVersion) -> None:
        self._rng = rng
        self._plain = version is FileVersion.V2_0

    def one(self, choices: Any) -> Any:
        return choices[int(self._rng.integers(0, len(choices)))]

    def keyed(self, name: str, kind: pa.DataType, family: str) -> pa.Field:
        keys = self.one(KEYS[family])
        if self._plain and keys.get("compression") == "fsst":
            keys = {}  # pylance panics for numbers and large strings
        return pa.field(name, kind, metadata={PREFIX + key: value for key, value in keys.items()} or None)


def fields_of(rng: np.random.Generator, version: FileVersion) -> list[pa.Field]:
    """Return the columns of a table in addition to its id; those of format 2.2 only for 2.2."""
    if version.is_legacy:
        return [pa.field("number", pa.int64()), pa.field("text", pa.string()), *legacy_fields(rng)]
    draw = Draw(rng, version)
    null_structs = version is not FileVersion.V2_0
    packed = [pa.field(f"p{k}", draw.one([pa.int32(), pa.float64(), pa.uint8()]), False) for k in range(3)]
    point = pa.struct([pa.field("x", draw.one(NUMBERS)), draw.keyed("s", draw.one(TEXTS), "text")])
    fields = [
        draw.keyed("number", pa.int64(), "number"),
        draw.keyed("text", pa.string(), "text"),
        draw.keyed("other", draw.one(NUMBERS), "number"),
        draw.keyed("bytes", draw.one(TEXTS), "text"),
        pa.field("wide", draw.one(FIXED)),
        pa.field("vector", pa.list_(draw.one([pa.float32(), pa.int8(), pa.bool_()]), int(rng.integers(1, 100)))),
        pa.field("dictionary", pa.dictionary(draw.one([pa.int16(), pa.int32()]), draw.one([pa.string(), pa.int64()]))),
        pa.field("lists", pa.list_(pa.field("item", draw.one([*NUMBERS, *TEXTS])))),
        pa.field("nested", pa.large_list(pa.field("item", pa.list_(draw.one(NUMBERS))))),
        pa.field("four deep", pa.list_(pa.list_(pa.list_(pa.large_list(draw.one([*NUMBERS, *TEXTS])))))),
        pa.field("point", point, null_structs),
        pa.field("points", pa.list_(pa.field("item", point, null_structs))),
        pa.field("packed", pa.struct(packed), False, {"packed" if rng.random() < 0.5 else PREFIX + "packed": "true"}),
        pa.field("none", pa.null()),
        pa.field("uuid", pa.uuid()),
        pa.field("blob", pa.large_binary(), metadata={PREFIX + "blob": "true"}),
    ]
    if null_structs and rng.random() < 0.5:
        inner = pa.struct([pa.field("l", pa.list_(pa.field("item", draw.one([*NUMBERS, *TEXTS]))))])
        fields.append(pa.field("deep", pa.list_(inner)))
        fields.append(pa.field("spine", pa.struct([pa.field("s", inner), pa.field("x", pa.int8())])))
    if version is FileVersion.V2_2:
        value = pa.field("value", draw.one([pa.int32(), pa.string(), pa.list_(pa.int8())]))
        fields += [
            pa.field("map", pa.map_(pa.field("key", pa.string(), False), value)),
            lance.blob_field("blob2", inline_size_threshold=100),
            pa.field(
                "packed2",
                pa.struct([pa.field("a", pa.int16(), False), pa.field("s", pa.string(), False)]),
                metadata={PREFIX + "packed": "true"},
            ),
            pa.field("large chunks", pa.string(), metadata={PREFIX + "minichunk-size": "1000000"}),
        ]
    return fields


def legacy_fields(rng: np.random.Generator) -> list[pa.Field]:
    """Return half of the types of 0.1 of which pylance can take rows."""
    names = [name for name in legacy.TYPES if name != "bits"]
    return [pa.field(name, legacy.TYPES[name]) for name in rng.choice(names, len(names) // 2, replace=False).tolist()]


def rows(rng: np.random.Generator, fields: list[pa.Field], first: int, n: int, version: FileVersion) -> pa.Table:
    arrays = []
    for field in fields:
        if field.name == "blob2":
            values = [None if k % 5 == 0 else rng.bytes(int(rng.integers(0, 300))) for k in range(n)]
            arrays.append(lance.blob_array(values))
        elif version.is_legacy:
            arrays.append(legacy.column(field.type, n, rng))
        else:
            arrays.append(compact(random_array(rng, field, n)))
    schema = pa.schema([pa.field("id", pa.int64()), *fields])
    return pa.Table.from_arrays([pa.array(np.arange(first, first + n)), *arrays], schema=schema)


def batches_of(table: pa.Table, size: int) -> list[pa.RecordBatch]:
    """Return batches of `size` rows in arrays without unused items, because pylance fails for some slices of lists."""
    every = [table.slice(start, size).combine_chunks().to_batches()[0] for start in range(0, len(table), size)]
    return [pa.record_batch([compact(column) for column in batch.columns], schema=batch.schema) for batch in every]


def compact(array: pa.Array) -> pa.Array:
    return array if pa.types.is_null(array.type) else array.take(pa.array(np.arange(len(array))))


def make(path: Path, version: FileVersion, seed: int) -> tuple[Any, pa.Table]:
    """Write a table; return pylance's dataset, and the written ids with the columns of `HARD`."""
    rng = np.random.default_rng([seed, 77])
    fields = fields_of(rng, version)
    times = 6 if seed >= 1000 and rng.random() < 0.3 else 1
    sizes = {"max_rows_per_file": int(rng.choice([60, 300, 5000])) * times}
    if version.is_legacy:
        sizes["max_rows_per_group"] = int(rng.choice([33, 1024]))
    else:
        sizes["data_cache_bytes"] = int(rng.choice([1, 3000, 1 << 20]))
    form = {"data_storage_version": version.number, "enable_stable_row_ids": bool(rng.random() < 0.3)}
    cuts = [0, 500 * times, 500 * times + 1, 1000 * times, 1600 * times]
    parts = [rows(rng, fields, start, end - start, version) for start, end in itertools.pairwise(cuts)]
    batches = [batch for part in parts[:3] for batch in batches_of(part, 128 * times)]
    lance.write_dataset(pa.RecordBatchReader.from_batches(parts[0].schema, batches), str(path), **form, **sizes)
    ds = lance.write_dataset(parts[3], str(path), mode="append", **sizes)
    ds.delete("id % 11 = 4")
    hard = [name for name in HARD if name in ds.schema.names]
    if not hard and "blob2" not in ds.schema.names:
        ds.update({"number": "number + 1", "text": "'updated'"}, where="id % 13 = 5")
    return ds, pa.concat_tables(parts).select(["id", *hard])


def same(found: pa.Table, expected: pa.Table, what: str) -> None:
    assert found.schema.names == expected.schema.names and found.num_rows == expected.num_rows, what
    for name in expected.schema.names:
        assert comparable(found[name]).equals(comparable(expected[name])), f"{what}: {name}"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_tables_are_read_as_by_pylance(version: FileVersion, seed: int, tmp_path: Path, scale: int) -> None:
    for k in range(scale):
        theirs, written = make(tmp_path / f"{k}", version, 1000 * k + seed)
        rng = np.random.default_rng(seed)
        check(theirs, rng, [name for name in theirs.schema.names if name not in HARD])
        check_hard(lancetable.dataset(theirs.uri), rng, written)


def check(theirs: Any, rng: np.random.Generator, names: list[str]) -> None:
    for number in sorted({1, theirs.version}):
        theirs = theirs.checkout_version(number)
        ours = lancetable.dataset(theirs.uri, version=number)
        n = theirs.count_rows()
        same(ours.to_table(columns=names), theirs.to_table(columns=names), f"version {number}, all")
        for name in names:
            same(ours.to_table(columns=[name]), theirs.to_table(columns=[name]), name)
        for _ in range(3):
            start, end = sorted(rng.integers(0, n + 1, 2).tolist())
            options: dict[str, Any] = {"columns": names, "offset": start, "limit": end - start}
            same(ours.to_table(**options), theirs.to_table(**options), f"{options}")
            wanted = np.unique(rng.integers(0, n, int(rng.choice([1, 5, 200])))).tolist()
            same(ours.take(wanted, columns=names), theirs.take(wanted, columns=names), f"rows {wanted}")
        # With a filter, pylance fails for these columns, and for some dictionaries next to blobs.
        plain = [name for name in names if name not in ("blob", "blob2", "packed2")]
        for text in FILTERS:
            for options in ({"columns": plain}, {"columns": ["blob", "id"] if "blob" in names else ["id"]}):
                same(ours.to_table(filter=text, **options), theirs.to_table(filter=text, **options), text)
            assert ours.count_rows(text) == theirs.count_rows(text)
        for name in [name for name in names if name.startswith("blob")]:
            wanted = np.unique(rng.integers(0, n, 20)).tolist()
            found, expected = (
                [None if blob is None else blob.readall() for blob in each.take_blobs(name, indices=wanted)]
                for each in (ours, theirs)
            )
            assert found == expected


def check_hard(ours: Any, rng: np.random.Generator, written: pa.Table) -> None:
    """Compare columns that pylance cannot read with the written values; the id of a row is its position."""
    names = written.schema.names
    wanted = np.unique(rng.integers(0, ours.count_rows(), 100)).tolist()
    for found in (ours.to_table(columns=names), ours.take(wanted, columns=names), ours.to_table(names, FILTERS[0])):
        same(found, written.take(found["id"]), f"{found.num_rows} rows")
