"""Tables that pylance writes from a seed, several versions each: scans, ranges, takes and filters agree with its own.

Between them the seeds cover every field metadata key of the encodings, both forms of blobs, packed structs, maps,
dictionaries, extension types, long and short strings, pages of nothing but nulls, and nullability that changes from
page to page. LANCETABLE_TEST_SCALE multiplies the number of seeds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.format.version import FileVersion
from lancetable.testing.nested import FIXED, NUMBERS, TEXTS, comparable, random_array

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
    ],
}
FILTERS = [
    "id % 7 = 3",
    "id < 40 OR id > 900",
    "number > 0 AND id >= 100",
    "text IS NULL",
    "text LIKE 'a%' AND id < 700",
]


def fields_of(rng: np.random.Generator, version: FileVersion) -> list[pa.Field]:
    """Columns of a table beside its id; only those of format 2.2 where that is it."""

    def pick(choices: Any) -> Any:
        return choices[int(rng.integers(0, len(choices)))]

    def keyed(name: str, kind: pa.DataType, keys: dict[str, str]) -> pa.Field:
        return pa.field(name, kind, metadata={PREFIX + key: value for key, value in keys.items()} or None)

    packed = [pa.field(f"p{k}", pick([pa.int32(), pa.float64(), pa.uint8()]), False) for k in range(3)]
    point = pa.struct([pa.field("x", pick(NUMBERS)), keyed("s", pick(TEXTS), pick(KEYS["text"]))])
    fields = [
        keyed("number", pa.int64(), pick(KEYS["number"])),
        keyed("text", pa.string(), pick(KEYS["text"])),
        keyed("other", pick(NUMBERS), pick(KEYS["number"])),
        keyed("bytes", pick(TEXTS), pick(KEYS["text"])),
        pa.field("wide", pick(FIXED)),
        pa.field("vector", pa.list_(pick([pa.float32(), pa.int8(), pa.bool_()]), int(rng.integers(1, 100)))),
        pa.field("dictionary", pa.dictionary(pick([pa.int8(), pa.int32()]), pick([pa.string(), pa.int64()]))),
        pa.field("lists", pa.list_(pa.field("item", pick([*NUMBERS, *TEXTS])))),
        pa.field("nested", pa.large_list(pa.field("item", pa.list_(pick(NUMBERS))))),
        pa.field("point", point),
        pa.field("points", pa.list_(point)),
        pa.field("packed", pa.struct(packed), False, {"packed" if rng.random() < 0.5 else PREFIX + "packed": "true"}),
        pa.field("none", pa.null()),
        pa.field("uuid", pa.uuid()),
        pa.field("blob", pa.large_binary(), metadata={PREFIX + "blob": "true"}),
    ]
    if version is FileVersion.V2_2:
        value = pa.field("value", pick([pa.int32(), pa.string(), pa.list_(pa.int8())]))
        fields += [
            pa.field("map", pa.map_(pa.field("key", pa.string(), False), value)),
            lance.blob_field("blob2", inline_size_threshold=100),
            pa.field(
                "packed2",
                pa.struct([pa.field("a", pa.int16(), False), pa.field("s", pa.string(), False)]),
                metadata={PREFIX + "packed": "true"},
            ),
        ]
    return fields


def rows(rng: np.random.Generator, fields: list[pa.Field], first: int, n: int) -> pa.Table:
    arrays = []
    for field in fields:
        if field.name == "blob2":
            values = [None if k % 5 == 0 else rng.bytes(int(rng.integers(0, 300))) for k in range(n)]
            arrays.append(lance.blob_array(values))
        else:  # pylance stumbles over some slices of lists
            array = random_array(rng, field, n)
            arrays.append(array if pa.types.is_null(field.type) else array.take(pa.array(np.arange(n))))
    schema = pa.schema([pa.field("id", pa.int64()), *fields])
    return pa.Table.from_arrays([pa.array(np.arange(first, first + n)), *arrays], schema=schema)


def make(path: Path, version: FileVersion, seed: int) -> Any:
    rng = np.random.default_rng([seed, 77])
    fields = fields_of(rng, version)
    sizes = {"data_cache_bytes": int(rng.choice([1, 3000, 1 << 20])), "max_rows_per_file": int(rng.choice([300, 5000]))}
    form = {"data_storage_version": version.number}
    parts = [rows(rng, fields, start, size) for start, size in ((0, 500), (500, 1), (501, 499), (1000, 600))]
    lance.write_dataset(pa.concat_tables(parts[:3]).to_reader(max_chunksize=128), str(path), **form, **sizes)
    ds = lance.write_dataset(parts[3], str(path), mode="append", **sizes)
    ds.delete("id % 11 = 4")
    if "blob2" not in ds.schema.names:
        ds.update({"number": "number + 1", "text": "'updated'"}, where="id % 13 = 5")
    return ds


def same(found: pa.Table, expected: pa.Table, what: str) -> None:
    assert found.schema.names == expected.schema.names and found.num_rows == expected.num_rows, what
    for name in expected.schema.names:
        assert comparable(found[name]).equals(comparable(expected[name])), f"{what}: {name}"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("version", [FileVersion.V2_1, FileVersion.V2_2], ids=str)
def test_tables_read_as_pylance_reads_them(version: FileVersion, seed: int, tmp_path: Path, scale: int) -> None:
    for k in range(scale):
        check(make(tmp_path / f"{k}", version, 1000 * k + seed), np.random.default_rng(seed))


def check(theirs: Any, rng: np.random.Generator) -> None:
    for number in sorted({1, theirs.version}):
        theirs = theirs.checkout_version(number)
        ours = lancetable.dataset(theirs.uri, version=number)
        names = ours.schema.names
        n = theirs.count_rows()
        same(ours.to_table(), theirs.to_table(), f"version {number}, all")
        for name in names:
            same(ours.to_table(columns=[name]), theirs.to_table(columns=[name]), name)
        for _ in range(3):
            start, end = sorted(rng.integers(0, n + 1, 2).tolist())
            options: dict[str, Any] = {"offset": start, "limit": end - start}
            same(ours.to_table(**options), theirs.to_table(**options), f"{options}")
            wanted = np.unique(rng.integers(0, n, int(rng.choice([1, 5, 200])))).tolist()
            same(ours.take(wanted), theirs.take(wanted), f"rows {wanted}")
        # pylance fails on these where rows are filtered.
        options = {"columns": [name for name in names if name not in ("blob2", "packed2")]}
        for text in FILTERS:
            same(ours.to_table(filter=text, **options), theirs.to_table(filter=text, **options), text)
            assert ours.count_rows(text) == theirs.count_rows(text)
        blobs = [name for name in names if name.startswith("blob")]
        for name in blobs:
            wanted = np.unique(rng.integers(0, n, 20)).tolist()
            found, expected = (
                [None if blob is None else blob.readall() for blob in each.take_blobs(name, indices=wanted)]
                for each in (ours, theirs)
            )
            assert found == expected
