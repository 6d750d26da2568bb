"""Manifest files: sections, footer, history; damage in a child process."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.format.manifest_naming import ManifestLocation, ManifestNamingScheme
from lancetable.proto import table_pb2
from lancetable.store.base import ObjectStore
from lancetable.store.memory import MemoryStore
from lancetable.table.manifest_files import ManifestFile, history, pack, packed_file, read_manifest
from lancetable.table.metadata_cache import TableCache
from lancetable.table.version import TableVersion, open_version
from lancetable.testing.stores import CountingStore

LOCATION = ManifestLocation(7, "t/_versions/7.manifest", None, ManifestNamingScheme.V1)


def stored(data: bytes) -> ObjectStore:
    store = MemoryStore()
    store.put(LOCATION.path, data)
    return store


def read(data: bytes, **changes: Any) -> ManifestFile:
    return read_manifest(stored(data), replace(LOCATION, **changes))


def manifest(version: int = 7, fragments: int = 0) -> table_pb2.Manifest:
    message = table_pb2.Manifest(version=version)
    for number in range(fragments):
        message.fragments.add(id=number, physical_rows=10)
    return message


@pytest.mark.parametrize(
    "index_section", [None, b"", b"\x0a\x00", b"x" * 100_000], ids=["none", "empty", "small", "big"]
)
@pytest.mark.parametrize("fragments", [0, 20_000])
def test_packed_sections_are_read_unchanged(index_section: bytes | None, fragments: int) -> None:
    message = manifest(fragments=fragments)
    data = pack(message, b"transaction", index_section)
    for file in (read(data), read(data, size_bytes=len(data)), packed_file(LOCATION, message, data)):
        store = stored(data)
        assert len(file.manifest.fragments) == fragments
        assert file.index_section(store) == index_section
        assert file.transaction_section(store) == b"transaction"
        assert file.location.size_bytes == len(data)


def test_packed_files_have_the_layout_of_the_format() -> None:
    data = pack(manifest(), b"TX", b"IDX")
    assert data[:4] == struct.pack("<I", 3)
    assert data[4:7] == b"IDX"
    assert data[7:13] == struct.pack("<I", 2) + b"TX"
    position, major, minor, magic = struct.unpack("<qHH4s", data[-16:])
    assert (position, major, minor, magic) == (13, 0, 2, b"LANC")
    assert struct.unpack("<I", data[13:17])[0] == len(data) - 16 - 17
    message = table_pb2.Manifest.FromString(data[17:-16])
    assert (message.index_section, message.transaction_section) == (0, 7)
    assert not message.HasField("transaction_section_deprecated")


def test_a_section_offset_of_zero_is_written() -> None:
    message = table_pb2.Manifest.FromString(pack(manifest(), b"TX", None)[10:-16])
    assert message.HasField("transaction_section")
    assert not message.HasField("index_section")


def test_the_deprecated_transaction_offset_is_read() -> None:
    message = manifest()
    message.transaction_section_deprecated = 0
    body = message.SerializeToString()
    data = struct.pack("<I", 2) + b"TX" + struct.pack("<I", len(body)) + body + struct.pack("<qHH4s", 6, 0, 2, b"LANC")
    file = read(data)
    assert file.transaction_section(stored(data)) == b"TX"


def test_small_manifests_take_one_read_and_large_ones_two() -> None:
    for fragments, requests in ((3, 1), (20_000, 2)):
        data = pack(manifest(fragments=fragments), b"TX", None)
        store = CountingStore(stored(data))
        read_manifest(store, replace(LOCATION, size_bytes=len(data)))
        assert store.total_requests == requests
        assert store.bytes_read <= max(len(data), 64 * 1024)


GOOD = pack(manifest(fragments=2), b"TX", b"IDX")


def footer(position: int, major: int = 0, minor: int = 2, magic: bytes = b"LANC") -> bytes:
    return struct.pack("<qHH4s", position, major, minor, magic)


BROKEN = {
    "empty": b"",
    "short": GOOD[-19:],
    "magic": GOOD[:-4] + b"LANX",
    "negative position": GOOD[:-16] + footer(-1),
    "huge position": GOOD[:-16] + footer(2**62),
    "position in the footer": GOOD[:-16] + footer(len(GOOD) - 16),
    "position off by one": GOOD[:-16] + footer(14),
    "length": GOOD[:13] + struct.pack("<I", 2**32 - 1) + GOOD[17:],
    "message": GOOD[:17] + b"\xff" * (len(GOOD) - 33) + GOOD[-16:],
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_errors_of_damaged_files_name_the_file(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match=r"7\.manifest") as caught:
        read(data)
    assert caught.value.path == LOCATION.path


def test_other_container_versions_are_rejected() -> None:
    with pytest.raises(UnsupportedFeatureError, match="65535"):
        read(GOOD[:-16] + footer(13, 65535, 65535))


def test_a_version_that_differs_from_the_file_name_is_rejected() -> None:
    with pytest.raises(CorruptFileError, match="found 8"):
        read(pack(manifest(version=8), b"TX", None))


@pytest.mark.parametrize("offset", [40, 2**40, 2**63])
def test_section_offsets_are_checked_on_use(offset: int) -> None:
    message = manifest()
    data = pack(message, b"TX", None)
    message.index_section = message.transaction_section = offset
    body = message.SerializeToString()
    data = data[:6] + struct.pack("<I", len(body)) + body + footer(6)
    file = read(data)
    for section in (file.index_section, file.transaction_section):
        with pytest.raises(CorruptFileError, match="section"):
            section(stored(data))


def test_a_manifest_with_a_huge_length_is_not_read() -> None:
    class Giant(CountingStore):
        def read_tail(self, path: str, size: int | None, length: int) -> tuple[memoryview, int]:
            return memoryview(bytes(length - 16) + footer(0)), 2**40

    store = Giant(MemoryStore())
    with pytest.raises(CorruptFileError, match=r"limit metadata_bytes \(expected at most 536870912"):
        read_manifest(store, LOCATION)
    assert store.total_requests == 0


# --- comparison with pylance -----------------------------------------------------------------------------------------


def test_history_agrees_with_pylance(three_fragments: TableVersion, table_dir: Path) -> None:
    ds = lance.dataset(str(table_dir))
    ds.delete("id in (1, 5)")
    ds.delete("id >= 8")
    ds = lance.write_dataset(pa.table({"id": pa.array([9], pa.int64())}), str(table_dir), mode="append")
    ds.add_columns({"twice": "id * 2"})
    version = open_version(str(table_dir))
    ours = history(version)
    theirs = lance.dataset(str(table_dir)).versions()
    assert [each.version for each in ours] == [each["version"] for each in theirs]
    for summary, expected in zip(ours, theirs, strict=True):
        apart = summary.timestamp.astimezone().replace(tzinfo=None) - expected["timestamp"]
        assert abs(apart) <= timedelta(microseconds=1)  # pylance rounds through a float
        for name, value in expected["metadata"].items():
            assert getattr(summary, name) == int(value), name


def test_a_rewritten_table_has_its_own_history(tmp_path: Path) -> None:
    """Two tables with the same version names share a cache, but not their histories."""
    cache, uri = TableCache(), str(tmp_path / "t")
    seen = []
    for value in (1, 2):
        shutil.rmtree(uri, ignore_errors=True)
        lance.write_dataset(pa.table({"id": [value]}), uri)
        lance.write_dataset(pa.table({"id": [value]}), uri, mode="append")
        version = open_version(uri, cache=cache)
        found = history(version)
        assert found[0].timestamp == open_version(uri, 1).manifest.timestamp
        seen.append(found)
    assert seen[0][0] != seen[1][0]


def test_history_reads_each_manifest_once(three_fragments: TableVersion, table_dir: Path) -> None:
    lance.dataset(str(table_dir)).delete("id = 1")
    version = open_version(str(table_dir))
    store = CountingStore(version.store)
    version = replace(version, store=store)
    first = history(version)
    assert store.requests["read_tail"] == 1
    store.reset()
    assert history(version) == first
    assert store.requests["read_tail"] == 0


# --- damage ----------------------------------------------------------------------------------------------------------

CHILD = """
import sys
from pathlib import Path
from lancetable.errors import LanceError
from lancetable.format.manifest_naming import ManifestNamingScheme
from lancetable.format.manifest_naming import ManifestLocation
from lancetable.store.local import LocalStore
from lancetable.table import transactions
from lancetable.table.manifest_files import read_manifest, summarize
store = LocalStore()
version = int(sys.argv[2])
good = refused = 0
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        file = read_manifest(store, ManifestLocation(version, str(path), None, ManifestNamingScheme.V2))
        summarize(file.manifest)
        file.manifest.schema.to_arrow()
        for fragment in file.manifest.fragments:
            fragment.num_rows
        file.index_section(store)
        transactions.read(store, str(path.parent), file)
        good += 1
    except LanceError:
        refused += 1
print(good, refused)
"""


@pytest.mark.parametrize("kind", ["flip", "truncate", "overwrite"])
def test_damaged_manifests_raise_typed_errors_or_parse(
    tmp_path: Path, table_dir: Path, damage: Callable[[bytes, Any, str], bytes], kind: str, scale: int
) -> None:
    table = pa.table({"id": range(100), "name": ["x"] * 100, "st": [{"a": 1, "b": [1.5]}] * 100})
    ds = lance.write_dataset(table, str(table_dir), max_rows_per_file=10, data_storage_version="2.0")
    ds.create_scalar_index("id", "BTREE")
    ds.update_config({"some": "config"})
    ds.delete("id % 7 = 0")
    newest = sorted((table_dir / "_versions").glob("*.manifest"))[0]
    original, rng = newest.read_bytes(), random.Random(f"manifest {kind}")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    number = 500 * scale
    for index in range(number):
        (damaged / f"{index}.manifest").write_bytes(damage(original, rng, kind))
    command = [sys.executable, "-c", CHILD, str(damaged), str(ds.version)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    good, refused = map(int, done.stdout.split())
    assert good + refused == number
    if kind == "truncate":
        assert good == 0
    else:
        assert refused > 0
