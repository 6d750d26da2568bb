"""Damaged and hostile data files: the result is a LanceError, the original rows, or changes in damaged values only.

In particular, the process must not crash, hang or use unbounded memory. Therefore the trials run in a child process
with a limited address space; this file is also the program of the child process:

    test_damage.py damage KIND VERSION SEED COUNT   ->   two lines of JSON for each trial
    test_damage.py bombs [NAME...]
"""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message

from lancetable.errors import LanceError
from lancetable.file.column_mapping import column_map
from lancetable.file.legacy_writer import LegacyFileWriter
from lancetable.file.reader import open_data_file, read_columns
from lancetable.file.writer import FileWriter
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.proto import encodings_v2_0_pb2 as pb
from lancetable.proto import encodings_v2_1_pb2, file2_pb2, file_pb2
from lancetable.store.memory import MemoryStore
from tests.support.synthetic_files import Column, Page, build_file

LIMIT_BYTES = 1 << 30  # address space in addition to that of the imports
TRIAL_SECONDS = 5.0  # CPU seconds, as below, so that the load of the machine has no effect
BOMB_SECONDS = 1.0
BOMB_BYTES = 64 << 20

VERSIONS = [FileVersion.LEGACY, FileVersion.V2_0, FileVersion.V2_1, FileVersion.V2_2]
KINDS = ["flip", "overwrite", "zero", "truncate", "append", "splice", "protobuf"]


# ------------------------------------------------------------------------------------------------------------ the files


def tables(version: FileVersion = FileVersion.V2_0) -> dict[str, pa.Table]:
    """Return small tables that together use every encoding of the writer of a version."""
    if version.is_legacy:
        return legacy_tables()
    found = old_tables()
    if version is not FileVersion.V2_0:
        found["levels"], found["compressed"] = new_tables(version)
    return found


def new_tables(version: FileVersion) -> tuple[pa.Table, pa.Table]:
    """Return tables for encodings of 2.1 and 2.2: nested levels, run lengths, byte streams, full zip, constants."""
    rng = np.random.default_rng(2)
    n = 400
    rows = [None if k % 7 == 0 else [] if k % 5 == 0 else [k % 3 or None] * (k % 4) for k in range(n)]
    points = [None if k % 6 == 0 else [{"x": k, "l": rows[k]}, None] for k in range(n)]
    point = pa.struct([("x", pa.int32()), ("l", pa.list_(pa.int16()))])
    levels = {
        "l": pa.array(rows, pa.list_(pa.int16())),
        "ll": pa.array([None if k % 9 == 0 else [rows[k], None, []] for k in range(n)], pa.list_(pa.list_(pa.int16()))),
        "lp": pa.array(points, pa.list_(point)),
        "ls": pa.array([row and ["x" * 300] * len(row) for row in rows], pa.large_list(pa.string())),
        "none": pa.nulls(n, pa.list_(pa.string())),
    }
    prefix = "lance-encoding:"
    columns = [
        (pa.field("r", pa.int32()), pa.array(np.repeat(np.arange(n // 50), 50).astype(np.int32))),
        (pa.field("p", pa.int64()), pa.array(np.arange(n) % 90)),
        (pa.field("k", pa.int16()), pa.array(np.full(n, 7, np.int16))),
        (
            pa.field("f", pa.float32(), metadata={prefix + "compression": "zstd"}),
            pa.array(np.repeat(rng.random(40), 10).astype(np.float32)),
        ),
        (  # long enough for FSST where compiled kernels run
            pa.field("t", pa.string()),
            pa.array([f"https://www.example.org/{k * 7919 % 1000:06}/{k:06}/" * 6 for k in range(n)]),
        ),
        (pa.field("w", pa.string()), pa.array(["y" * (250 + k % 20) if k % 11 else None for k in range(n)])),
        (
            pa.field("z", pa.binary(), metadata={prefix + "compression": "zstd"}),
            pa.array([b"z" * (k * 5) for k in range(n)]),
        ),
        (
            pa.field("v", pa.list_(pa.float32(), 70)),
            pa.FixedSizeListArray.from_arrays(pa.array(rng.random(70 * n).astype(np.float32)), 70),
        ),
    ]
    if version is FileVersion.V2_2:
        pairs = [None if k % 8 == 0 else [(f"k{i}", i) for i in range(k % 3)] for k in range(n)]
        levels["m"] = pa.array(pairs, pa.map_(pa.string(), pa.int32()))
        parts = [("a", pa.int32()), ("s", pa.string()), ("v", pa.list_(pa.int16(), 3))]
        packed = pa.struct([pa.field(name, kind, False) for name, kind in parts])
        rows_of = [{"a": k, "s": "s" * (k % 9), "v": [k, k % 3 or None, 1]} for k in range(n)]
        columns.append((pa.field("ps", packed, metadata={prefix + "packed": "true"}), pa.array(rows_of, packed)))
    return pa.table(levels), pa.table(
        [array for _, array in columns], schema=pa.schema([field for field, _ in columns])
    )


def legacy_tables() -> dict[str, pa.Table]:
    """Return tables that 0.1 can store: nulls only in strings, and no empty strings."""
    rng = np.random.default_rng(3)
    n = 400
    lists = [list(range(i % 5)) for i in range(n)]
    words = [None if i % 7 == 0 else f"wörd-{i * 7919 % 1000}" for i in range(n)]
    nested = pa.struct([("x", pa.int16()), ("l", pa.list_(pa.int64())), ("in", pa.struct([("y", pa.string())]))])
    return {
        "plain": pa.table(
            {
                "i": pa.array(range(n), pa.int64()),
                "f": pa.array(rng.random(n).astype(np.float32)),
                "b": pa.array([i % 3 == 0 for i in range(n)]),
                "n": pa.nulls(n),
                "v": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(4 * n).astype(np.float32)), 4),
                "vb": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(3 * n) < 0.5), 3),
                "u": pa.array(range(n), pa.uint16()),
            }
        ),
        "strings": pa.table(
            {
                "s": pa.array(words),
                "large": pa.array([None if word is None else word.encode() for word in words], pa.large_binary()),
                "d": pa.array([f"k{i % 9}" for i in range(n)]).dictionary_encode(),
            }
        ),
        "nested": pa.table(
            {
                "l": pa.array(lists, pa.list_(pa.int32())),
                "ls": pa.array([[f"x{x}" for x in row] for row in lists], pa.large_list(pa.string())),
                "st": pa.array([{"x": i, "l": lists[i], "in": {"y": words[i]}} for i in range(n)], nested),
                "ll": pa.array([[[x > 1 for x in row], [True]] for row in lists], pa.list_(pa.list_(pa.bool_()))),
            }
        ),
    }


def old_tables() -> dict[str, pa.Table]:
    rng = np.random.default_rng(1)
    n = 400
    mask = rng.random(n) < 0.2

    def nulled(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([None if null else value for value, null in zip(values, mask)], kind)

    words = [f"word-{i * 7919 % 1000}" for i in range(n)]
    lists = [list(range(i % 5)) for i in range(n)]
    nested = pa.struct([("x", pa.int16()), ("l", pa.list_(pa.int64())), ("in", pa.struct([("y", pa.string())]))])
    packed = pa.struct([("a", pa.int32()), ("b", pa.float64())])
    compressed = {"lance-encoding:compression": "zstd"}
    fsst = {"lance-encoding:compression": "fsst"}
    blob = {"lance-encoding:blob": "true"}
    long_words = [f"https://www.example.org/{i % 50}/{i * 7919 % 1000}/{'x' * (i % 60)}" for i in range(n)]
    return {
        "flat": pa.table(
            {
                "i": nulled(range(n), pa.int64()),
                "f": pa.array(rng.random(n).astype(np.float32)),
                "b": nulled([i % 3 == 0 for i in range(n)], pa.bool_()),
                "n": pa.nulls(n, pa.int16()),
                "v": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(4 * n).astype(np.float32)), 4),
            }
        ),
        "strings": pa.table(
            {
                "s": nulled(words, pa.string()),
                "few": pa.array([f"k{i % 9}é" for i in range(n)]),
                "large": nulled([w.encode() for w in words], pa.large_binary()),
                "d": nulled([f"k{i % 9}" for i in range(n)], pa.string()).dictionary_encode(),
            }
        ),
        "nested": pa.table(
            {
                "l": nulled(lists, pa.list_(pa.int32())),
                "ls": nulled([[str(x) for x in row] for row in lists], pa.large_list(pa.string())),
                "st": pa.array([{"x": i, "l": lists[i], "in": {"y": words[i]}} for i in range(n)], nested),
            }
        ),
        "special": pa.table(
            [
                pa.array([{"a": i, "b": i / 3} for i in range(n)], packed),
                nulled(words, pa.string()),
                pa.array(long_words),
                nulled([w.encode() * 5 for w in words], pa.large_binary()),
            ],
            schema=pa.schema(
                [
                    pa.field("p", packed, metadata={"packed": "true"}),
                    pa.field("z", pa.string(), metadata=compressed),
                    pa.field("c", pa.string(), metadata=fsst),
                    pa.field("bl", pa.large_binary(), metadata=blob),
                ]
            ),
        ),
    }


def write(table: pa.Table, version: FileVersion = FileVersion.V2_0, batch_rows: int = 150) -> bytes:
    store = MemoryStore.private()
    schema = Schema.from_arrow(table.schema)
    if version.is_legacy:
        legacy = LegacyFileWriter(store.open_writer("f"), schema, group_rows=batch_rows)
        for batch in table.to_batches():
            legacy.write(batch)
        legacy.close()
        return bytes(store.read_all("f"))
    with FileWriter(store.open_writer("f"), schema, version, data_cache_bytes=4000) as writer:
        for batch in table.to_batches(max_chunksize=batch_rows):
            writer.write(batch)
    return bytes(store.read_all("f"))


# ----------------------------------------------------------------------------------------------------------- the damage


def damaged(kind: str, data: bytes, rng: np.random.Generator) -> bytes:
    out = bytearray(data)
    size = len(out)
    at = int(rng.integers(0, size))
    # Half of the trials damage the metadata at the end of the file.
    if rng.random() < 0.5:
        at = size - 1 - int(rng.integers(0, min(size, 3000)))
    if kind == "flip":
        out[at] ^= 1 << int(rng.integers(0, 8))
    elif kind == "overwrite":
        out[at : at + 8] = rng.bytes(8)[: size - at]
    elif kind == "zero":
        out[at : at + 64] = bytes(min(64, size - at))
    elif kind == "truncate":
        del out[at:]
    elif kind == "append":
        out += data[-40:-4] if rng.random() < 0.3 else rng.bytes(int(rng.integers(1, 100)))
    elif kind == "splice":
        other = int(rng.integers(0, size))
        length = int(rng.integers(1, 300))
        out[at : at + length] = data[other : other + length][: size - at]
    elif kind == "protobuf":
        return with_other_numbers(data, rng)
    return bytes(out)


NUMBERS = [0, 1, 2, 3, 7, 8, 63, 64, 65, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63, 2**64 - 1]


def with_other_numbers(data: bytes, rng: np.random.Generator) -> bytes:
    """Change one to three numbers or oneof cases in the messages of a file and rebuild it so that it can be parsed."""
    if data[-8:-4] == struct.pack("<HH", *FileVersion.LEGACY.footer_pair):
        return with_other_legacy_numbers(data, rng)
    metadata, columns_at, buffers_at, num_buffers, num_columns = struct.unpack("<QQQII", data[-40:-8])
    columns = []
    for number in range(num_columns):
        start, size = struct.unpack_from("<QQ", data, columns_at + 16 * number)
        columns.append(file2_pb2.ColumnMetadata.FromString(data[start : start + size]))
    buffers = [struct.unpack_from("<QQ", data, buffers_at + 16 * number) for number in range(num_buffers)]
    descriptor = file_pb2.FileDescriptor.FromString(data[buffers[0][0] : sum(buffers[0])])
    for _ in range(int(rng.integers(1, 4))):
        if rng.random() < 0.05:
            descriptor.length = NUMBERS[rng.integers(0, len(NUMBERS))]
            continue
        column = columns[rng.integers(0, num_columns)]
        page = column.pages[rng.integers(0, len(column.pages))] if len(column.pages) else None
        if page is not None and rng.random() < 0.6:
            wrapper = AnyMessage.FromString(page.encoding.direct.encoding)
            new = wrapper.type_url.endswith("PageLayout")
            encoding = (encodings_v2_1_pb2.PageLayout if new else pb.ArrayEncoding).FromString(wrapper.value)
            mutate(encoding, rng)
            wrapper.value = encoding.SerializeToString()
            page.encoding.direct.encoding = wrapper.SerializeToString()
        else:
            mutate(page if page is not None and rng.random() < 0.8 else column, rng)
    out = bytearray(data[:metadata])
    out[buffers[0][0] :] = descriptor.SerializeToString()
    buffers[0] = (buffers[0][0], len(out) - buffers[0][0])
    metadata = len(out)
    places = []
    for column in columns:
        places.append((len(out), column.ByteSize()))
        out += column.SerializeToString()
    columns_at = len(out)
    out += b"".join(struct.pack("<QQ", *place) for place in places)
    buffers_at = len(out)
    out += b"".join(struct.pack("<QQ", *place) for place in buffers)
    out += struct.pack("<QQQII", metadata, columns_at, buffers_at, num_buffers, num_columns) + data[-8:]
    return bytes(out)


def with_other_legacy_numbers(data: bytes, rng: np.random.Generator) -> bytes:
    """Change one to three numbers in the metadata or the page table of a 0.1 file."""
    (position,) = struct.unpack("<q", data[-16:-8])
    (size,) = struct.unpack_from("<I", data, position)
    message = file_pb2.Metadata.FromString(data[position + 4 : position + 4 + size])
    out = bytearray(data[:position])
    table = message.page_table_position
    entries = (message.manifest_position - table) // 8
    for _ in range(int(rng.integers(1, 4))):
        if rng.random() < 0.6:
            at = table + 8 * int(rng.integers(0, entries))
            (value,) = struct.unpack_from("<q", out, at)
            struct.pack_into("<Q", out, at, number_for(abs(value), rng) % 2**64)
        else:
            mutate(message, rng)
    changed = message.SerializeToString()
    out += struct.pack("<I", len(changed)) + changed + struct.pack("<q", position) + data[-8:]
    return bytes(out)


def mutate(message: Message, rng: np.random.Generator) -> None:
    """Change one nested number, drop a field, or repeat an entry."""
    places = list(walk(message))
    if not places:
        return
    owner, field = places[rng.integers(0, len(places))]
    value = getattr(owner, field.name)
    if rng.random() < 0.15:
        owner.ClearField(field.name)
    elif field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED:
        if field.enum_type is not None:
            value[rng.integers(0, len(value))] = int(rng.integers(0, 8))
        elif field.message_type is None and len(value):
            limit = 1 << (31 if field.cpp_type == field.CPPTYPE_INT32 else 64)
            value[rng.integers(0, len(value))] = number_for(value[0], rng) % limit
        elif len(value):
            value.add().CopyFrom(value[0])
    elif field.message_type is not None:
        owner.ClearField(field.name)
    elif field.cpp_type in (field.CPPTYPE_UINT64, field.CPPTYPE_UINT32, field.CPPTYPE_INT32):
        bits = 64 if field.cpp_type == field.CPPTYPE_UINT64 else 31 if field.cpp_type == field.CPPTYPE_INT32 else 32
        setattr(owner, field.name, number_for(value, rng) % (1 << bits))
    elif field.cpp_type == field.CPPTYPE_BOOL:
        setattr(owner, field.name, not value)
    elif field.cpp_type == field.CPPTYPE_ENUM:
        setattr(owner, field.name, int(rng.integers(0, 4)))
    elif field.cpp_type == field.CPPTYPE_STRING and field.type != field.TYPE_BYTES:
        setattr(owner, field.name, str(rng.choice(["", "zstd", "lz4", "none", "gzip"])))


def number_for(value: int, rng: np.random.Generator) -> int:
    if rng.random() < 0.5:
        return max(0, value + int(rng.integers(-2, 3)))
    return NUMBERS[rng.integers(0, len(NUMBERS))]


def walk(message: Message) -> Iterator[tuple[Message, Any]]:
    for field in message.DESCRIPTOR.fields:
        repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
        value = getattr(message, field.name)
        if repeated:
            if len(value):
                yield message, field
                if field.message_type is not None:
                    for entry in value:
                        yield from walk(entry)
        elif field.message_type is not None:
            if message.HasField(field.name):
                yield message, field
                yield from walk(value)
        else:
            yield message, field


# ---------------------------------------------------------------------------------------------------------- one reading


WINDOW_ROWS = 90


def read(
    data: bytes,
    schema: Schema,
    rows: range | np.ndarray | None,
    version: FileVersion = FileVersion.V2_0,
    windows: bool = False,
) -> list[pa.Array | pa.ChunkedArray]:
    """Read as a table does, with the schema and columns of the manifest; all rows at once or in `windows`."""
    store = MemoryStore.private()
    store.put("f", data)
    meta = open_data_file(store, "f")
    columns = column_map(schema, version)
    if windows and meta.num_rows <= 100 * WINDOW_ROWS:
        parts = [
            read_columns(store, "f", meta, schema.fields, columns, stretch)
            for start in range(0, meta.num_rows, WINDOW_ROWS)
            for stretch in [range(start, min(start + WINDOW_ROWS, meta.num_rows))]
        ]
        found = [
            pa.chunked_array([chunk for array in arrays for chunk in array.chunks], type=field.data_type)
            for field, *arrays in zip(schema.fields, *parts)
        ]
    else:
        found = read_columns(store, "f", meta, schema.fields, columns, rows)
    for array in found:
        array.validate(full=True)
    return found


def outcome(
    data: bytes,
    table: pa.Table,
    rows: Sequence[int] | None,
    version: FileVersion = FileVersion.V2_0,
    windows: bool = False,
) -> str:
    """Return `same`, `changed`, `error`, or a description of the failure."""
    schema = Schema.from_arrow(table.schema)
    started = time.process_time()
    try:
        wanted = None if rows is None else np.array(rows, np.int64)
        found = read(data, schema, wanted, version, windows)
        expected = table if rows is None else table.take(rows)
        verdict = "same"
        for array, column in zip(found, expected.columns, strict=True):
            if len(array) != len(column):
                verdict = f"{len(array)} rows instead of {len(column)}"
                break
            if array.to_pylist() != column.to_pylist():
                verdict = "changed"
    except LanceError:
        verdict = "error"
    except BaseException:
        verdict = traceback.format_exc()
    if time.process_time() - started > TRIAL_SECONDS:
        return f"{verdict} after {time.process_time() - started:.1f} s"
    return verdict


# ------------------------------------------------------------------------------------------------------------ the child


def limit_memory(size_bytes: int) -> None:
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + size_bytes, used + size_bytes))


def run_damage(kind: str, version: FileVersion, seed: int, count: int) -> None:
    originals = {name: (table, write(table, version)) for name, table in tables(version).items()}
    for name, (table, data) in originals.items():
        read(data, Schema.from_arrow(table.schema), None, version)  # create threads and caches before the limit applies
        assert outcome(data, table, None, version) == "same", name
        assert outcome(data, table, None, version, windows=True) == "same", name
    limit_memory(LIMIT_BYTES)
    names = list(originals)
    for trial in range(count):
        rng = np.random.default_rng([seed, trial])
        name = names[trial % len(names)]
        table, data = originals[name]
        bad = damaged(kind, data, rng)
        rows = None if trial % 3 else sorted(rng.choice(table.num_rows, 7, replace=False).tolist())
        print(json.dumps([kind, seed, trial, name, "begun"]), flush=True)
        verdict = outcome(bad, table, rows, version, windows=trial % 3 == 1)
        pages_end = end_of_pages(data, version)
        if verdict == "changed" and bad[:pages_end] == data[:pages_end]:
            verdict = f"changed by {cause_of_change(data, bad, version)}"
        print(json.dumps([kind, seed, trial, name, verdict]), flush=True)


def cause_of_change(data: bytes, bad: bytes, version: FileVersion) -> str:
    """Return the kind of metadata damage that changed the rows of a file although its pages are unchanged.

    "symbols": only the symbol table of FSST differs, which is part of the values although a message stores it.
    "positions": only positions of the pages of a 0.1 file differ; the page table has a position and a number of rows,
    and a reader cannot distinguish a wrong position in the file from the correct one. "metadata": anything else.
    """
    if version.is_legacy:
        before, after = legacy_page_table(data), legacy_page_table(bad)
        moved = before.shape == after.shape and (before != after)[::2].any()
        return "positions" if moved else "metadata"
    return "symbols" if without_symbols(data) == without_symbols(bad) else "metadata"


def legacy_page_table(data: bytes) -> np.ndarray:
    """Return the positions and lengths in the page table of a 0.1 file, which the embedded manifest follows."""
    (position,) = struct.unpack("<q", data[-16:-8])
    (size,) = struct.unpack_from("<I", data, position)
    message = file_pb2.Metadata.FromString(data[position + 4 : position + 4 + size])
    table = data[message.page_table_position : message.manifest_position]
    return np.frombuffer(table[: len(table) // 16 * 16], "<i8")


def without_symbols(data: bytes) -> list[bytes]:
    """Return the column metadata of a file without its symbol tables."""
    _, columns_at, _, _, num_columns = struct.unpack("<QQQII", data[-40:-8])
    found = []
    for number in range(num_columns):
        start, size = struct.unpack_from("<QQ", data, columns_at + 16 * number)
        column = file2_pb2.ColumnMetadata.FromString(data[start : start + size])
        for page in column.pages:
            wrapper = AnyMessage.FromString(page.encoding.direct.encoding)
            new = wrapper.type_url.endswith("PageLayout")
            encoding = (encodings_v2_1_pb2.PageLayout if new else pb.ArrayEncoding).FromString(wrapper.value)
            for owner, field in list(walk(encoding)):
                if field.name == "symbol_table":
                    owner.ClearField(field.name)
            wrapper.value = encoding.SerializeToString()
            page.encoding.direct.encoding = wrapper.SerializeToString()
        found.append(column.SerializeToString())
    return found


def end_of_pages(data: bytes, version: FileVersion) -> int:
    """Return the position at which the bytes of values end."""
    if version.is_legacy:
        (position,) = struct.unpack("<q", data[-16:-8])
        (size,) = struct.unpack_from("<I", data, position)
        return int(file_pb2.Metadata.FromString(data[position + 4 : position + 4 + size]).page_table_position)
    return int(struct.unpack_from("<Q", data, struct.unpack("<Q", data[-24:-16])[0])[0])


def run_bombs(only: Sequence[str]) -> None:
    every = [(name, *bomb, FileVersion.V2_0) for name, bomb in bombs().items()]
    every += [(name, *bomb, FileVersion.V2_2) for name, bomb in new_bombs().items()]
    every += [(name, *bomb, FileVersion.LEGACY) for name, bomb in legacy_bombs().items()]
    for name, schema, data, version in every:
        if only and name not in only:
            continue
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.process_time()
        print(json.dumps([name, "begun", 0, 0]), flush=True)
        try:
            found = read(data, schema, None, version)
            verdict = f"read {sum(len(array) for array in found)} rows"
        except LanceError:
            verdict = "error"
        except BaseException:
            verdict = traceback.format_exc()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        print(json.dumps([name, verdict, time.process_time() - started, grown]), flush=True)


# ---------------------------------------------------------------------------------------------------------------- bombs


def bombs() -> dict[str, tuple[Schema, bytes]]:
    def schema(kind: pa.DataType) -> Schema:
        return Schema.from_arrow(pa.schema([("c", kind)]))

    def flat(bits: int, index: int = 0, scheme: str = "") -> pb.ArrayEncoding:
        message = pb.Flat(bits_per_value=bits, buffer=pb.Buffer(buffer_index=index))
        if scheme:
            message.compression.scheme = scheme
        return pb.ArrayEncoding(flat=message)

    def one(kind: pa.DataType, encoding: pb.ArrayEncoding, buffers: Sequence[bytes], rows: int) -> tuple[Schema, bytes]:
        return schema(kind), build_file(schema(kind), rows, [Column([Page(rows, encoding, buffers)])])

    def strings(ends: Sequence[int], content: bytes, scheme: str) -> tuple[Schema, bytes]:
        encoding = pb.ArrayEncoding(
            binary=pb.Binary(indices=flat(64, 0), bytes=flat(8, 1, scheme), null_adjustment=2**63)
        )
        return one(pa.large_string(), encoding, [np.array(ends, "<u8").tobytes(), content], len(ends))

    zeros = pa.Codec("zstd").compress(bytes(30_000_000), asbytes=True)
    lz4 = pa.Codec("lz4_raw").compress(bytes(1000), asbytes=True)
    all_null = pb.ArrayEncoding(nullable=pb.Nullable(all_nulls=pb.Nullable.AllNull()))
    fsl = pb.ArrayEncoding(fixed_size_list=pb.FixedSizeList(dimension=2**31 - 1, items=all_null))
    list_page = Page(
        1,
        pb.ArrayEncoding(list=pb.List(offsets=flat(64), null_offset_adjustment=2**63, num_items=2**62)),
        [np.array([2**62], "<u8").tobytes()],
    )

    def packed(arm: str, width: int, rows: int) -> tuple[Schema, bytes]:
        inner = {
            "compressed_bits_per_value": width,
            "uncompressed_bits_per_value": 64,
            "buffer": pb.Buffer(),
        }
        return one(pa.int64(), pb.ArrayEncoding(**{arm: inner}), [b""], rows)

    return {
        "zstd claims 2**40": one(pa.int32(), flat(32, 0, "zstd"), [struct.pack("<Q", 2**40) + zeros], 100),
        "zstd claims 2**38 rows": one(pa.int32(), flat(32, 0, "zstd"), [struct.pack("<Q", 2**40) + zeros], 2**38),
        "zstd zeros for few rows": one(pa.int32(), flat(32, 0, "zstd"), [struct.pack("<Q", 30_000_000) + zeros], 100),
        "zstd frame bigger than said": one(pa.int32(), flat(32, 0, "zstd"), [struct.pack("<Q", 400) + zeros], 100),
        "zstd strings, last end 2**40": strings([2**40], struct.pack("<Q", 2**40) + zeros, "zstd"),
        "zstd strings, last end 2**62": strings([2**62], struct.pack("<Q", 2**62) + zeros, "zstd"),
        "zstd strings of 1.9 GB": strings([1_900_000_000], struct.pack("<Q", 1_900_000_000) + zeros[:40], "zstd"),
        "lz4 claims 4 GiB": one(pa.int32(), flat(32, 0, "lz4"), [b"\xff\xff\xff\xff" + lz4], 100),
        "lz4 strings of 4 GiB": strings([2**32 - 1], b"\xff\xff\xff\xff" + lz4, "lz4"),
        "lz4 strings of 1.9 GB": strings([1_900_000_000], struct.pack("<I", 1_900_000_000) + lz4, "lz4"),
        "rows 2**63": one(pa.int32(), flat(32), [bytes(64)], 2**63),
        "rows 2**61": one(pa.int32(), flat(32), [bytes(64)], 2**61),
        "2**40 nulls": one(pa.int64(), all_null, [], 2**40),
        "2**61 nulls": one(pa.string(), all_null, [], 2**61),
        "2**40 null dictionaries": one(pa.dictionary(pa.int8(), pa.string()), all_null, [], 2**40),
        "lists of 2**31 items": one(pa.list_(pa.int8(), 2**31 - 1), fsl, [], 2**20),
        "lists of 2**31 items, 2**40 rows": one(pa.list_(pa.int8(), 2**31 - 1), fsl, [], 2**40),
        "a list of 2**62 nulls": (
            schema(pa.large_list(pa.int8())),
            build_file(schema(pa.large_list(pa.int8())), 1, [Column([list_page]), Column([Page(2**62, all_null)])]),
        ),
        "no bits for 2**40 rows": packed("bitpacked", 0, 2**40),
        "no bits for 2**40 rows in blocks": packed("bitpacked_for_non_neg", 0, 2**40),
        "a width that overflows": packed("bitpacked", 2**63, 2),
        "strings of 4 GiB each": one(
            pa.large_string(),
            pb.ArrayEncoding(fixed_size_binary=pb.FixedSizeBinary(bytes=flat(8), byte_width=2**32 - 1)),
            [b"abc"],
            2**30,
        ),
        "a dictionary of 2**32 items": one(
            pa.dictionary(pa.int8(), pa.int64()),
            pb.ArrayEncoding(
                dictionary=pb.Dictionary(indices=flat(8), items=all_null, num_dictionary_items=2**32 - 1)
            ),
            [b"\0"],
            1,
        ),
        "encodings 10,000 deep": deep_file(10_000),
    }  # fmt: skip


def legacy_bombs() -> dict[str, tuple[Schema, bytes]]:
    """Return 0.1 files whose batches all refer to the same bytes, or to more bytes than the file has."""
    count, size = 20_000, 100_000

    def file(kind: pa.DataType, pages: bytes, entries: Sequence[tuple[int, int]]) -> tuple[Schema, bytes]:
        schema = Schema.from_arrow(pa.schema([("c", kind)]))
        table = b"".join(struct.pack("<qq", *entry) * count for entry in entries)
        message = file_pb2.Metadata(batch_offsets=range(count + 1), page_table_position=len(pages))
        metadata = message.SerializeToString()
        position = len(pages) + len(table)
        frame = struct.pack("<I", len(metadata)) + metadata
        return schema, pages + table + frame + struct.pack("<qHH4s", position, 0, 2, b"LANC")

    values = bytes(size)
    return {
        "0.1: lists of the same items": file(
            pa.list_(pa.int8()), values + struct.pack("<ii", 0, size), [(size, 2), (0, size)]
        ),
        "0.1: the same string": file(pa.string(), values + struct.pack("<qq", 0, size), [(size, 1)]),
        "0.1: the same wide value": file(pa.binary(size), values, [(0, 1)]),
        "0.1: items beyond the page": file(
            pa.list_(pa.int8()), values + struct.pack("<ii", 0, 2**31 - 1), [(size, 2), (0, size)]
        ),
        "0.1: values of impossible width": file(pa.list_(pa.list_(pa.int64(), 2**31 - 1), 2**31 - 1), values, [(0, 1)]),
    }


def new_bombs() -> dict[str, tuple[Schema, bytes]]:
    """Return files of version 2.2, whose layouts include all of 2.1."""
    new = encodings_v2_1_pb2

    def flat(bits: int) -> Any:
        return new.CompressiveEncoding(flat=new.Flat(bits_per_value=bits))

    def zstd(values: Any) -> Any:
        scheme = new.BufferCompression(scheme=2)
        return new.CompressiveEncoding(general=new.General(compression=scheme, values=values))

    def one(kind: pa.DataType, layout: Any, buffers: Sequence[bytes], rows: int) -> tuple[Schema, bytes]:
        schema = Schema.from_arrow(pa.schema([("c", kind)]))
        page = Page(rows, layout, buffers, type_url="/lance.encodings21.PageLayout")
        return schema, build_file(schema, rows, [Column([page])], version=FileVersion.V2_2)

    def chunk(sizes: Sequence[int], *parts: bytes, levels: int = 0) -> tuple[bytes, bytes]:
        """Return the words and the data of a page with one large chunk; `sizes` are the sizes of the value buffers."""
        head = struct.pack(f"<H{len(sizes)}I", levels, *sizes)
        data = head + bytes(-len(head) % 8) + b"".join(part + bytes(-len(part) % 8) for part in parts)
        return struct.pack("<I", (len(data) // 8 - 1) << 4), data

    def mini(kind: pa.DataType, values: Any, parts: Sequence[bytes], rows: int, **more: Any) -> tuple[Schema, bytes]:
        settings = {"layers": [1], "num_buffers": len(parts), "num_items": rows, "has_large_chunk": True, **more}
        buffers = [*chunk([len(part) for part in parts], *parts)]
        if "dictionary" in more:
            buffers.append(struct.pack("<Q", 2**62) + b"abc")
        layout = new.PageLayout(mini_block_layout=new.MiniBlockLayout(value_compression=values, **settings))
        return one(kind, layout, buffers, rows)

    def zipped(kind: pa.DataType, rows: int, buffers: Sequence[bytes], **more: Any) -> tuple[Schema, bytes]:
        settings = {"layers": [1], "num_items": rows % 2**32, "num_visible_items": rows % 2**32, **more}
        return one(kind, new.PageLayout(full_zip_layout=new.FullZipLayout(**settings)), buffers, rows)

    def constant(rows: int, kind: pa.DataType, buffers: Sequence[bytes] = (), **more: Any) -> tuple[Schema, bytes]:
        layout = new.PageLayout(constant_layout=new.ConstantLayout(**{"layers": [3], **more}))
        return one(kind, layout, buffers, rows)

    zeros = pa.Codec("zstd").compress(bytes(30_000_000), asbytes=True)
    variable = new.CompressiveEncoding(variable=new.Variable(offsets=flat(32)))
    no_bits = new.CompressiveEncoding(
        out_of_line_bitpacking=new.OutOfLineBitpacking(uncompressed_bits_per_value=16, values=flat(0))
    )
    inline = new.CompressiveEncoding(inline_bitpacking=new.InlineBitpacking(uncompressed_bits_per_value=64))
    runs = new.CompressiveEncoding(rle=new.Rle(values=flat(32), run_lengths=flat(8)))
    wide = new.CompressiveEncoding(fixed_size_list=new.FixedSizeList(items_per_value=2**62, values=flat(8)))
    table = struct.pack("<Q", 0x46535354 << 32 | 1 << 24 | 1) + b"a" * 8 + b"\x08" + bytes(2312 - 17)
    fsst = new.CompressiveEncoding(fsst=new.Fsst(symbol_table=table, values=variable))
    strings = np.array([8, 2**32 - 1], "<u4").tobytes()
    nothing = new.CompressiveEncoding(constant=new.Constant())
    nested = flat(32)
    for _ in range(30):
        nested = zstd(nested)
    return {
        "21: 2**40 buffers": mini(pa.int32(), flat(32), [bytes(8)], 2, num_buffers=2**40),
        "21: 2**62 items": mini(pa.int32(), flat(32), [bytes(8)], 2**62),
        "21: 2**40 items of no bits": mini(pa.int64(), inline, [bytes(8)], 2**40),
        "21: zstd claims 2**62": mini(pa.int32(), zstd(flat(32)), [struct.pack("<Q", 2**62) + zeros], 100),
        "21: zstd claims 2**40": mini(pa.int32(), zstd(flat(32)), [struct.pack("<Q", 2**40) + zeros], 100),
        "21: zstd zeros for few values": mini(pa.int32(), zstd(flat(32)), [struct.pack("<Q", 30_000_000) + zeros], 100),
        "21: zstd frame bigger than said": mini(pa.int32(), zstd(flat(32)), [struct.pack("<Q", 400) + zeros], 100),
        "21: zstd in zstd": mini(pa.int32(), nested, [struct.pack("<Q", 400) + zeros], 100),
        "21: strings up to 2**32": mini(pa.string(), variable, [strings], 1),
        "21: fsst strings up to 2**32": mini(pa.string(), fsst, [strings], 1),
        "21: runs of nothing": mini(pa.int32(), runs, [bytes(4 * 8), bytes(8)], 100),
        "21: a list of 2**62 items": mini(pa.list_(pa.int8(), 3), wide, [bytes(8)], 2),
        "21: a dictionary of 2**62 items": mini(
            pa.string(), flat(32), [bytes(8)], 2, dictionary=zstd(variable), num_dictionary_items=2**62
        ),
        "21: a dictionary of 2**30 items of no bits": mini(
            pa.int64(), flat(32), [bytes(8)], 2, dictionary=no_bits, num_dictionary_items=2**30
        ),
        "21: 2**40 levels of no bits": constant(
            2**40, pa.list_(pa.int8()), [b"", b""], layers=[1, 4], rep_compression=no_bits, def_compression=no_bits,
            num_rep_values=2**40, num_def_values=2**40,
        ),
        "21: 2**40 nulls": constant(2**40, pa.int64()),
        "21: 2**61 nulls": constant(2**61, pa.string()),
        "21: 2**40 times the same": constant(2**40, pa.int64(), layers=[1], inline_value=bytes(8)),
        "21: 2**40 times the same text": constant(
            2**40, pa.string(), [struct.pack("<III", 2, 8, 1) + struct.pack("<II", 0, 1) + b"x"], layers=[1]
        ),
        "21: 2**40 lists of the same": constant(
            2**40, pa.list_(pa.int32()), [b"", b""], layers=[1, 2], inline_value=bytes(4)
        ),
        "21: unknown layers": mini(pa.int32(), flat(32), [bytes(8)], 2, layers=[3] * 70_000),
        "21: zipped, 2**32 entries": zipped(
            pa.binary(300), 2**32 - 1, [bytes(64)], bits_per_value=2400, value_compression=flat(2400)
        ),
        "21: zipped, values of 2**32 bits": zipped(
            pa.binary(300), 1, [bytes(64)], bits_per_value=2**32 - 8, value_compression=flat(2**32 - 8)
        ),
        "21: zipped, offsets of 16 bits": zipped(
            pa.string(), 1, [b"\xff\xff\xff\xff", b"\0\4"], bits_per_offset=16, value_compression=variable
        ),
        "21: zipped, a value of 4 GiB": zipped(
            pa.string(), 1, [b"\xff\xff\xff\xff", b"\0\4"], bits_per_offset=32, value_compression=variable
        ),
        "21: zipped, zstd of 30 MB in a value": zipped(
            pa.string(), 1, [struct.pack("<IQ", len(zeros) + 8, 2**40) + zeros, struct.pack("<II", 0, len(zeros) + 12)],
            bits_per_offset=32, value_compression=zstd(variable),
        ),
        "21: zipped, lists of nulls without bytes": zipped(
            pa.list_(pa.int8(), 2**20), 2**31, [b""], bits_per_value=0, value_compression=nothing
        ),
        "21: zipped, rows that end before they begin": zipped(
            pa.string(), 2, [b"\1\0\0\0a\1\0\0\0b", b"\0\x0a\5"], bits_per_offset=32, value_compression=variable
        ),
    }  # fmt: skip


def deep_file(depth: int) -> tuple[Schema, bytes]:
    """Build an encoding with `depth` wrappers as bytes, because protobuf cannot build messages of any depth."""
    kind = Schema.from_arrow(pa.schema([("c", pa.int32())]))
    inner = pb.ArrayEncoding(flat=pb.Flat(bits_per_value=32, buffer=pb.Buffer())).SerializeToString()
    for _ in range(depth):
        for tag in (0x0A, 0x0A, 0x12):  # NoNull.values, Nullable.no_nulls, ArrayEncoding.nullable
            inner = bytes([tag]) + varint(len(inner)) + inner
    # Build a file with a marker of the same size, then replace it by the wrappers and a field that readers skip.
    marker = pb.ArrayEncoding(constant=pb.Constant(value=b"\x55" * len(inner))).SerializeToString()
    data = build_file(kind, 4, [Column([Page(4, pb.ArrayEncoding.FromString(marker), [bytes(16)])])])
    unknown = b"\xa2\x06" + bytes([len(marker) - len(inner) - 3]) + bytes(len(marker) - len(inner) - 3)
    assert data.count(marker) == 1
    return kind, data.replace(marker, unknown + inner)


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


# ------------------------------------------------------------------------------------------------------------ the tests


def start(arguments: Sequence[str], seconds: float, kernels: str = "compiled") -> list[list[Any]]:
    """Run the child process and return the lines that it printed."""
    environment = {**os.environ, "LANCETABLE_KERNELS": kernels} if kernels == "0" else None
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        capture_output=True, text=True, timeout=seconds, check=False, env=environment,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{arguments}: exit {done.returncode} in {lines[-1:]}\n{done.stderr[-2000:]}"
    return lines


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.number)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernels", ["compiled", "0"])
def test_damage_raises_or_changes_only_damaged_values(
    kind: str, version: FileVersion, kernels: str, scale: int
) -> None:
    if kernels == "0" and kind not in ("flip", "protobuf") and scale == 1:
        pytest.skip("the NumPy forms see all kinds of damage at full counts only")
    count = (40 if kernels == "compiled" else 20) * scale
    arguments = ["damage", kind, version.number, "1" if kernels == "compiled" else "2", str(count)]
    lines = start(arguments, 60 + TRIAL_SECONDS * count / 10, kernels)
    results = [line for line in lines if line[4] != "begun"]
    assert len(results) == count
    known = ("error", "same", "changed", "changed by metadata", "changed by symbols", "changed by positions")
    wrong = [line for line in results if line[4] not in known]
    assert not wrong, "\n\n".join(f"{line[:4]}\n{line[4]}" for line in wrong[:5])
    tally = Counter(line[4] for line in results)
    assert tally["error"], tally
    # In 2.x a reader cannot detect a wrong buffer position inside the file or a null adjustment that is too small.
    # Other changes that a reader cannot detect are counted separately; see `cause_of_change`.
    assert tally["changed by metadata"] <= 3 + count // 50, tally
    if kind in ("truncate", "append"):
        assert tally["error"] == count, tally
    print(kind, dict(tally))


def test_moderately_nested_encodings_are_read() -> None:
    schema, data = deep_file(20)
    assert read(data, schema, None)[0].to_pylist() == [0, 0, 0, 0]


def test_decompression_bombs_raise() -> None:
    lines = [line for line in start(["bombs"], 120) if line[1] != "begun"]
    assert len(lines) >= 50
    bad = [line for line in lines if line[1] != "error" or line[2] > BOMB_SECONDS or line[3] > BOMB_BYTES]
    assert not bad, "\n\n".join(f"{name}: {seconds:.2f} s, {grown} bytes\n{what}" for name, what, seconds, grown in bad)


if __name__ == "__main__":
    if sys.argv[1] == "damage":
        run_damage(sys.argv[2], FileVersion.parse(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    else:
        run_bombs(sys.argv[2:])
