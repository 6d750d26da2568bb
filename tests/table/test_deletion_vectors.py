"""Deletion vectors against Python sets; files against pylance, pyroaring and pyarrow; damaged files."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyroaring
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lancetable
from lancetable.errors import CorruptFileError
from lancetable.format.fragment import DeletionKind, Fragment
from lancetable.format.roaring import parse_roaring
from lancetable.table import deletion_vectors
from lancetable.table.arrow_deletion_file import build_arrow, parse_arrow
from lancetable.table.deletion_vectors import DeletionVector
from lancetable.table.version import TableVersion, open_version

OFFSETS = st.sets(st.integers(0, 300_000), max_size=60)


# --- the set ---------------------------------------------------------------------------------------------------------


@given(OFFSETS, OFFSETS)
def test_vectors_behave_like_sets(left: set[int], right: set[int]) -> None:
    a, b = DeletionVector(sorted(left)), DeletionVector(list(right))
    assert a.offsets().tolist() == sorted(left)
    assert a.union(b).offsets().tolist() == sorted(left | right)
    assert a.intersects(b) == bool(left & right)
    assert (len(a), bool(a), a == b) == (len(left), bool(left), left == right)


def test_live_offsets_exclude_deleted_rows() -> None:
    vector = DeletionVector([3, 0])
    assert vector.live_offsets(5).tolist() == [1, 2, 4]


def test_offsets_are_read_only_and_bounded() -> None:
    with pytest.raises(ValueError, match="read-only"):
        DeletionVector([1]).offsets()[0] = 2
    for wrong in (-1, 1 << 32):
        with pytest.raises(ValueError, match="between 0 and"):
            DeletionVector([wrong])


# --- the two forms ---------------------------------------------------------------------------------------------------


@given(OFFSETS, st.booleans())
def test_bitmaps_written_by_pyroaring_are_parsed(values: set[int], runs: bool) -> None:
    bitmap = pyroaring.BitMap(values)
    if runs:
        bitmap.run_optimize()
    assert parse_roaring(memoryview(bitmap.serialize()), "x", max_count=len(values)).tolist() == sorted(values)


@pytest.mark.parametrize(
    "values",
    [range(0), range(10, 70_000), range(0, 400_000, 2), range(0, 400_000, 100), [2**32 - 1], range(65_530, 65_540)],
    ids=str,
)
def test_every_kind_of_roaring_container_is_parsed(values: Any) -> None:
    for runs in (False, True):
        bitmap = pyroaring.BitMap(values)
        if runs:
            bitmap.run_optimize()
        found = parse_roaring(memoryview(bitmap.serialize()), "x", max_count=1 << 32)
        assert np.array_equal(found, np.fromiter(values, np.uint32))


def arrow_file(
    values: Any, schema: pa.Schema | None = None, compression: str | None = "zstd", batches: int = 1
) -> bytes:
    schema = schema or pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for _ in range(batches):
            columns = [pa.array(values, field.type) for field in schema]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("values", [[], [7], [9, 3, 5], list(range(5000, 0, -1))], ids=len)
def test_arrow_forms_of_every_compression_are_parsed(compression: str | None, values: list[int]) -> None:
    data = arrow_file(values, compression=compression)
    assert parse_arrow(memoryview(data), "x", max_count=len(values)).tolist() == values


def test_an_arrow_form_with_a_validity_bitmap_is_parsed() -> None:
    # pylance stores the bitmap of some vectors, with a null count of 0. pyarrow would omit it, so the count is patched.
    for number in (1, 512, 513, 5000):
        schema = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
        values = pa.array([None, *range(1, number)], pa.uint32(), mask=np.arange(number) == 0)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_batch(pa.record_batch([values], schema=schema))
        node = struct.pack("<qq", number, 1)
        data = sink.getvalue().to_pybytes()
        assert data.count(node) == 1
        data = data.replace(node, struct.pack("<qq", number, 0))
        found = parse_arrow(memoryview(data), "x", max_count=number)
        assert found[1:].tolist() == list(range(1, number))


@pytest.mark.parametrize("number", [1, 512, 513, 5000, 5001])
def test_deletion_files_of_pylance_of_every_size_are_read(tmp_path: Path, number: int) -> None:
    uri = str(tmp_path / "t.lance")
    dataset = lance.write_dataset(pa.table({"id": range(8000)}), uri)
    dataset.delete(f"id < {number}")
    assert lancetable.dataset(uri).to_table()["id"].to_pylist() == list(range(number, 8000))


def test_pyarrow_reads_the_arrow_form() -> None:
    offsets = np.array([1, 5, 9], np.uint32)
    table = pa.ipc.open_file(pa.py_buffer(build_arrow(offsets))).read_all()
    assert table.schema.equals(pa.schema([pa.field("row_id", pa.uint32(), nullable=False)]), check_metadata=True)
    assert table.column(0).to_pylist() == [1, 5, 9]


WRONG_SHAPES = {
    "nullable": pa.schema([pa.field("row_id", pa.uint32())]),
    "signed": pa.schema([pa.field("row_id", pa.int32(), nullable=False)]),
    "wide": pa.schema([pa.field("row_id", pa.uint64(), nullable=False)]),
    "float": pa.schema([pa.field("row_id", pa.float32(), nullable=False)]),
    "name": pa.schema([pa.field("rowid", pa.uint32(), nullable=False)]),
    "two columns": pa.schema([pa.field("row_id", pa.uint32(), nullable=False), pa.field("x", pa.uint32())]),
    "schema metadata": pa.schema([pa.field("row_id", pa.uint32(), nullable=False)], metadata={"a": "b"}),
    "field metadata": pa.schema([pa.field("row_id", pa.uint32(), nullable=False, metadata={"a": "b"})]),
}


@pytest.mark.parametrize("schema", WRONG_SHAPES.values(), ids=WRONG_SHAPES.keys())
def test_other_arrow_schemas_are_rejected(schema: pa.Schema) -> None:
    with pytest.raises(CorruptFileError):
        parse_arrow(memoryview(arrow_file([1, 2], schema)), "x", max_count=10)


@pytest.mark.parametrize("batches", [0, 2])
def test_a_file_with_several_batches_is_rejected(batches: int) -> None:
    with pytest.raises(CorruptFileError, match="1 record batch"):
        parse_arrow(memoryview(arrow_file([1], batches=batches)), "x", max_count=10)


def test_large_counts_are_rejected_before_allocation() -> None:
    # 65,536 full run containers in 0.9 MB have 2^32 values.
    header = struct.pack("<I", 12347 | 65535 << 16) + b"\xff" * 8192
    keys = b"".join(struct.pack("<HH", key, 65535) for key in range(65536))
    bomb = header + keys + bytes(4 * 65536) + struct.pack("<HHH", 1, 0, 65535) * 65536
    with pytest.raises(CorruptFileError, match="at most 1000"):
        parse_roaring(memoryview(bomb), "x", max_count=1000)
    with pytest.raises(CorruptFileError, match="at most 3"):
        parse_arrow(memoryview(arrow_file(range(10))), "x", max_count=3)


def test_a_zstd_bomb_is_rejected() -> None:
    data = bytearray(arrow_file([0] * 1000))
    at = data.index(struct.pack("<q", 4000), 8)
    while bytes(data[at + 8 : at + 12]) != b"\x28\xb5\x2f\xfd":  # the length before a zstd frame
        at = data.index(struct.pack("<q", 4000), at + 1)
    data[at : at + 8] = struct.pack("<q", 1 << 40)
    with pytest.raises(CorruptFileError, match="declared decompressed size"):
        parse_arrow(memoryview(bytes(data)), "x", max_count=1000)


# --- files of a table ------------------------------------------------------------------------------------------------


@pytest.fixture
def big(table_dir: Path) -> Any:
    table = pa.table({"id": pa.array(range(12_000), pa.int64())})
    return lance.write_dataset(table, str(table_dir), data_storage_version="2.0")


@pytest.mark.parametrize(("below", "kind"), [(3, DeletionKind.ARROW_ARRAY), (5001, DeletionKind.BITMAP)])
def test_deletion_files_of_pylance_are_read(big: Any, below: int, kind: DeletionKind) -> None:
    big.delete(f"id < {below}")
    version = open_version(big.uri)
    fragment = version.manifest.fragments[0]
    assert fragment.deletion_file is not None
    assert fragment.deletion_file.kind is kind
    vector = deletion_vectors.read(version, fragment)
    assert vector is not None
    assert vector.offsets().tolist() == list(range(below))
    assert deletion_vectors.read(version, fragment) is vector


def test_a_fragment_without_deletions_has_no_vector(big: Any) -> None:
    version = open_version(big.uri)
    assert deletion_vectors.read(version, version.manifest.fragments[0]) is None


@pytest.mark.parametrize(
    ("count", "force", "kind"),
    [
        (1, False, DeletionKind.ARROW_ARRAY),
        (5000, False, DeletionKind.ARROW_ARRAY),
        (5001, False, DeletionKind.BITMAP),
        (2, True, DeletionKind.BITMAP),
    ],
)
def test_written_files_have_the_expected_form_and_read_back(
    big: Any, count: int, force: bool, kind: DeletionKind
) -> None:
    version = open_version(big.uri)
    vector = DeletionVector(list(range(0, 2 * count, 2)))
    file = deletion_vectors.write(version.store, version.base, 0, 1, vector, force_bitmap=force)
    assert (file.kind, file.read_version, file.num_deleted_rows) == (kind, 1, count)
    fragment = Fragment(0, physical_rows=12_000, deletion_file=file)
    assert deletion_vectors.read(version, fragment) == vector


@pytest.mark.parametrize("stated", [1, 4])
def test_a_wrong_count_in_the_manifest_is_rejected(big: Any, stated: int) -> None:
    version = open_version(big.uri)
    file = deletion_vectors.write(version.store, version.base, 0, 1, DeletionVector([1, 2, 3]))
    wrong = Fragment(0, physical_rows=12_000, deletion_file=type(file)(file.kind, 1, file.id, stated))
    with pytest.raises(CorruptFileError):
        deletion_vectors.read(version, wrong)
    with pytest.raises(CorruptFileError, match="expected below 3, found 3"):
        deletion_vectors.read(version, Fragment(0, physical_rows=3, deletion_file=file))


def test_repeated_offsets_are_rejected(big: Any) -> None:
    version = open_version(big.uri)
    file = deletion_vectors.write(version.store, version.base, 0, 1, DeletionVector([1, 2]))
    version.store.put(version.deletion_file_path(0, file), arrow_file([1, 1]))
    with pytest.raises(CorruptFileError, match="twice"):
        deletion_vectors.read(version, Fragment(0, physical_rows=12_000, deletion_file=file))


# --- damage ----------------------------------------------------------------------------------------------------------

CHILD = """
import random, sys
from pathlib import Path
import lancetable
from lancetable.errors import CorruptFileError
from lancetable.table.arrow_deletion_file import parse_arrow
from lancetable.format.roaring import parse_roaring
good = refused = 0
for path in sorted(Path(sys.argv[1]).iterdir()):
    parse = parse_arrow if path.suffix == ".arrow" else parse_roaring
    try:
        values = parse(memoryview(path.read_bytes()), path.name, max_count=20_000)
        assert len(values) <= 20_000
        good += 1
    except CorruptFileError:
        refused += 1
print(good, refused)
"""


@pytest.mark.parametrize("kind", ["flip", "truncate", "overwrite"])
def test_damaged_files_raise_typed_errors_or_return_values(
    tmp_path: Path, damage: Callable[[bytes, Any, str], bytes], kind: str, scale: int
) -> None:
    rng = random.Random(f"deletions {kind}")
    runs = pyroaring.BitMap([*range(9000), *range(70_000, 70_100), 1 << 20])
    runs.run_optimize()
    originals = [
        ("arrow", build_arrow(np.arange(0, 3000, 7, dtype=np.uint32))),
        ("arrow", arrow_file(rng.sample(range(10_000), 50), compression=None)),
        ("bin", pyroaring.BitMap(range(0, 40_000, 3)).serialize()),
        ("bin", runs.serialize()),
    ]
    number = 500 * scale
    for index in range(number):
        suffix, data = originals[index % len(originals)]
        (tmp_path / f"{index}.{suffix}").write_bytes(damage(data, rng, kind))
    done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    good, refused = map(int, done.stdout.split())
    assert good + refused == number
    if kind == "truncate":
        assert good == 0
    else:
        assert refused > 0


@pytest.mark.parametrize("length", range(9))
def test_few_bytes_are_no_roaring_bitmap(length: int) -> None:
    with pytest.raises(CorruptFileError):
        parse_roaring(memoryview(b"\x3a\x30\0\0\x01\0\0\0\0"[:length]), "x", max_count=10)


def test_every_error_names_the_file() -> None:
    for parse in (parse_arrow, parse_roaring):
        with pytest.raises(CorruptFileError, match=r"_deletions/7-1-2") as caught:
            parse(memoryview(b"\x00" * 40), "_deletions/7-1-2", max_count=5)
        assert caught.value.path == "_deletions/7-1-2"


def test_reader_of_a_version_reports_a_damaged_file(big: Any) -> None:
    big.delete("id < 3")
    version: TableVersion = open_version(big.uri)
    fragment = version.manifest.fragments[0]
    assert fragment.deletion_file is not None
    version.store.put(version.deletion_file_path(0, fragment.deletion_file), b"ARROW1 is not enough")
    with pytest.raises(CorruptFileError):
        deletion_vectors.read(version, fragment)
