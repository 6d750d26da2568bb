"""Huge numbers in the metadata of a table: a result or an error of the library, within limits of memory and time.

A trial replaces one number of a manifest (row id sequences included), of a deletion file, or of a data file: of its
column metadata (encodings included), its descriptor, its offset tables, or the first and last words of its buffers. The
trials run in a child process with a limited address space. This file is also its program:

    test_limits.py KIND STORAGE COUNT   ->   about COUNT of the trials, two lines of JSON for each
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import lancetable
from lancetable.errors import CorruptFileError, LanceError
from lancetable.file.footer import build_tail
from lancetable.format.version import FileVersion
from lancetable.optimize import Compaction
from lancetable.proto import file2_pb2, file_pb2, rowids_pb2, table_pb2
from lancetable.store.base import ByteRange
from lancetable.table import deletion_vectors

LIMIT_BYTES = 3 << 29  # address space in addition to that of the imports
CALL_SECONDS = 3.0  # CPU seconds, so that the load of the machine has no effect
KILL_SECONDS = 30.0  # CPU seconds after which the system ends a call that does not return
NUMBERS = (2**28, 2**31, 2**32, 2**63 - 1, 2**64 - 1)
KINDS = [
    ("manifest", "2.1"),
    ("deletions", "2.1"),
    *((kind, storage) for kind in ("messages", "tables", "buffers") for storage in ("2.0", "2.1", "2.2")),
]

CALLS: dict[str, Callable[[lancetable.LanceDataset], Any]] = {
    "count_rows": lambda ds: ds.count_rows(),
    "to_table": lambda ds: ds.to_table(with_row_id=True).num_rows,
    "to_batches": lambda ds: sum(batch.num_rows for batch in ds.to_batches()),
    "filter": lambda ds: ds.to_table(columns=["id"], filter="id > 290").num_rows,
    "row versions": lambda ds: ds.to_table(columns=["_row_last_updated_at_version"]).num_rows,
    "take": lambda ds: ds.take([0, 5, 250]).num_rows,
    "take_row_ids": lambda ds: ds.take_row_ids([1, 250]).num_rows,
    "plan": lambda ds: Compaction.plan(ds, {}).num_tasks(),
    "versions": lambda ds: len(ds.versions()),
    "update": lambda ds: ds.update({"id": "id + 1000"}, where="id = 4"),
    "delete": lambda ds: ds.delete("id = 3"),
}


# ------------------------------------------------------------------------------------------------------------ tables


def make_table(kind: str, storage: str, uri: str) -> None:
    """Write a table with row ids in all forms and both kinds of deletion files, or one with many encodings."""
    if kind in ("manifest", "deletions"):
        rows = pa.table({"id": range(300), "text": [f"text {k}" for k in range(300)]})
        ds = lancetable.write_dataset(
            rows, uri, data_storage_version=storage, enable_stable_row_ids=True, max_rows_per_file=150
        )
        ds.update({"text": "'x'"}, where="id % 3 = 0")
        ds.optimize.compact_files()
        ds.insert(rows)
        ds.delete("id % 40 = 1")
        with patch.object(deletion_vectors, "MAX_ARROW_OFFSETS", 0):
            ds.delete("id = 155")
        ds.update({"text": "'y'"}, where="id = 77")
    else:
        lancetable.write_dataset(many_encodings(storage), uri, data_storage_version=storage)
        path = newest_manifest(Path(uri))
        data = path.read_bytes()
        message = manifest_of(data)
        message.fragments[0].files[0].file_size_bytes = 0  # unknown, because the trials change it
        path.write_bytes(with_manifest(data, message.SerializeToString()))


def many_encodings(storage: str) -> pa.Table:
    n = 300
    lists = [None if k % 7 == 0 else list(range(k % 4)) for k in range(n)]
    pair = pa.struct([("x", pa.int16()), ("l", pa.list_(pa.int8()))])
    packed = pa.struct([("a", pa.int32()), ("b", pa.float64())])
    columns: list[tuple[str, Any, pa.DataType, dict[str, str]]] = [
        ("id", range(n), pa.int64(), {}),
        ("flag", [None if k % 5 == 0 else k % 3 == 0 for k in range(n)], pa.bool_(), {}),
        ("text", [None if k % 7 == 0 else f"text {k}" for k in range(n)], pa.string(), {}),
        ("few", [f"k{k % 9}" for k in range(n)], pa.string(), {}),
        ("coded", [f"k{k % 9}" for k in range(n)], pa.dictionary(pa.int32(), pa.string()), {}),
        ("list", lists, pa.list_(pa.int32()), {}),
        ("lists", [row and [str(k) for k in row] for row in lists], pa.large_list(pa.string()), {}),
        ("struct", [{"x": k, "l": lists[k]} for k in range(n)], pair, {}),
        ("vector", [[k / 3] * 8 for k in range(n)], pa.list_(pa.float32(), 8), {}),
        ("wide", [b"w" * (300 + k % 9) for k in range(n)], pa.binary(), {}),
        ("wider", [[float(k)] * 70 for k in range(n)], pa.list_(pa.float32(), 70), {}),
        ("none", [None] * n, pa.int16(), {}),
        ("same", [7] * n, pa.int16(), {}),
        ("runs", [k // 60 for k in range(n)], pa.int32(), {}),
        ("zstd", [f"zstd {k}" * 3 for k in range(n)], pa.string(), {"lance-encoding:compression": "zstd"}),
        ("fsst", [f"example.org/{k}/" * 9 for k in range(n)], pa.string(), {"lance-encoding:compression": "fsst"}),
        ("packed", [{"a": k, "b": k / 3} for k in range(n)], packed, {"packed": "true"}),
        ("blob", [b"blob" * k for k in range(n)], pa.large_binary(), {"lance-encoding:blob": "true"}),
    ]  # fmt: skip
    if storage == "2.2":
        columns.append(("map", [[(f"k{k}", k)] for k in range(n)], pa.map_(pa.string(), pa.int32()), {}))
        columns.remove(next(column for column in columns if column[0] == "blob"))
    return pa.table(
        [pa.array(values, kind) for _, values, kind, _ in columns],
        schema=pa.schema([pa.field(name, kind, metadata=metadata) for name, _, kind, metadata in columns]),
    )


def newest_manifest(table: Path) -> Path:
    return min((table / "_versions").glob("*.manifest"))  # names count down


def manifest_of(data: bytes) -> table_pb2.Manifest:
    (position,) = struct.unpack_from("<q", data, len(data) - 16)
    return table_pb2.Manifest.FromString(data[position + 4 : -16])


def with_manifest(data: bytes, message: bytes) -> bytes:
    (position,) = struct.unpack_from("<q", data, len(data) - 16)
    return data[:position] + struct.pack("<I", len(message)) + message + data[-16:]


# ------------------------------------------------------------------------------------------------------------ trials

# Bytes fields that store a message.
NESTED: dict[str, Any] = {
    "lance.file.v2.DirectEncoding.encoding": AnyMessage,
    "lance.table.DataFragment.inline_row_ids": rowids_pb2.RowIdSequence,
    "lance.table.DataFragment.inline_created_at_versions": rowids_pb2.RowDatasetVersionSequence,
    "lance.table.DataFragment.inline_last_updated_at_versions": rowids_pb2.RowDatasetVersionSequence,
}


def planted(message: Message) -> Iterator[str]:
    """Replace each integer in turn, at any depth, and yield its place and the number while it is replaced."""
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        is_list = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
        nested = NESTED.get(field.full_name)
        if isinstance(message, AnyMessage) and field.name == "value":
            nested = GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(message.TypeName()))
        if nested is not None and message.HasField(field.name) if field.has_presence else nested is not None and value:
            inner = nested.FromString(value)
            for place in planted(inner):
                setattr(message, field.name, inner.SerializeToString())
                yield f"{field.name}.{place}"
            setattr(message, field.name, value)
        elif field.message_type is not None:
            if field.message_type.GetOptions().map_entry:
                continue
            entries = list(value) if is_list else [value] if message.HasField(field.name) else []
            for index, entry in enumerate(entries):
                for place in planted(entry):
                    yield f"{field.name}{f'[{index}]' if is_list else ''}.{place}"
        elif field.cpp_type in LIMITS:
            for number in sorted({min(number, LIMITS[field.cpp_type]) for number in NUMBERS}):
                if is_list:
                    for index in sorted({0, len(value) - 1}) if len(value) else ():
                        before = value[index]
                        value[index] = number
                        yield f"{field.name}[{index}] = {number}"
                        value[index] = before
                else:
                    was_set = message.HasField(field.name) if field.has_presence else True
                    setattr(message, field.name, number)
                    yield f"{field.name} = {number}"
                    setattr(message, field.name, value)
                    if not was_set:
                        message.ClearField(field.name)


LIMITS = {
    FieldDescriptor.CPPTYPE_INT32: 2**31 - 1,
    FieldDescriptor.CPPTYPE_INT64: 2**63 - 1,
    FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1,
    FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
    FieldDescriptor.CPPTYPE_ENUM: 2**31 - 1,
}


Trials = Iterator[tuple[str, Path, Callable[[], bytes]]]


def trials(kind: str, table: Path) -> Trials:
    """Yield the place of each number, the file, and a function that returns the bytes of the file with the number."""
    if kind == "manifest":
        yield from manifest_trials(newest_manifest(table))
    elif kind == "deletions":
        for path in sorted((table / "_deletions").iterdir()):
            yield from word_trials(path, range(0, path.stat().st_size - 7, 4))
    else:
        (path,) = (table / "data").iterdir()
        yield from data_trials(kind, path)


def manifest_trials(path: Path) -> Trials:
    data = path.read_bytes()
    message = manifest_of(data)
    for place in planted(message):
        yield place, path, lambda: with_manifest(data, message.SerializeToString())
    yield from word_trials(path, [len(data) - 16])


def word_trials(path: Path, positions: Iterable[int]) -> Trials:
    """Replace 32 and 64 bits at each position."""
    data = path.read_bytes()
    for at in positions:
        for form, size in (("<I", 4), ("<Q", 8)):
            for number in sorted({min(number, 2 ** (8 * size) - 1) for number in NUMBERS}):
                changed = data[:at] + struct.pack(form, number) + data[at + size :]
                yield f"{path.suffix}, byte {at}, {form} = {number}", path, lambda changed=changed: changed


def data_trials(kind: str, path: Path) -> Trials:
    data = path.read_bytes()
    _, columns_at, buffers_at, num_buffers, num_columns, major, minor = struct.unpack("<QQQIIHH", data[-40:-4])
    entries = [struct.unpack_from("<QQ", data, columns_at + 16 * index) for index in range(num_columns)]
    columns = [file2_pb2.ColumnMetadata.FromString(data[start : start + size]) for start, size in entries]
    buffers = [struct.unpack_from("<QQ", data, buffers_at + 16 * index) for index in range(num_buffers)]
    if kind == "tables":
        yield from word_trials(path, range(columns_at, len(data) - 8, 4))
    elif kind == "buffers":
        holders = [holder for column in columns for holder in (column, *column.pages)]
        pairs = [pair for holder in holders for pair in zip(holder.buffer_offsets, holder.buffer_sizes)]
        places = {
            at for start, size in (*pairs, *buffers[1:]) for at in (start, start + 4, start + 8, start + size - 8)
        }
        yield from word_trials(path, sorted(places))
    else:
        start, size = buffers[0]
        descriptor = file_pb2.FileDescriptor.FromString(data[start : start + size])
        version = FileVersion.from_footer(major, minor, path.name)
        ranges = [ByteRange(at, at + length) for at, length in buffers[1:]]

        def rebuilt() -> bytes:
            messages = [column.SerializeToString() for column in columns]
            return data[:start] + build_tail(start, version, descriptor.SerializeToString(), messages, ranges)

        for name, message in [
            ("descriptor", descriptor),
            *((f"column {k}", column) for k, column in enumerate(columns)),
        ]:
            for place in planted(message):
                yield f"{name}: {place}", path, rebuilt


def outcome(table: Path) -> dict[str, str]:
    """Return the result of each call: "ok", the name of an error of the library, or a description of the failure."""
    outcomes: dict[str, str] = {}
    dataset = None
    for name, call in {"open": None, **CALLS}.items():
        signal.setitimer(signal.ITIMER_PROF, KILL_SECONDS)
        started = time.process_time()
        try:
            if call is None:
                dataset = lancetable.dataset(str(table))
            else:
                call(dataset)  # type: ignore[arg-type]
            outcomes[name] = "ok"
        except LanceError as error:
            outcomes[name] = type(error).__name__
        except BaseException:
            outcomes[name] = traceback.format_exc()
        spent = time.process_time() - started
        if spent > CALL_SECONDS:
            outcomes[name] += f" after {spent:.1f} s"
        if dataset is None:
            break
    signal.setitimer(signal.ITIMER_PROF, 0)
    return outcomes


def run(kind: str, storage: str, count: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        table, copy = Path(directory, "table"), Path(directory, "copy")
        make_table(kind, storage, str(table))
        # All threads and caches exist before the limit applies.
        for _ in range(3):
            shutil.copytree(table, copy)
            assert set(outcome(copy).values()) == {"ok"}, outcome(copy)
            shutil.rmtree(copy)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT_BYTES, used + LIMIT_BYTES))
        step = max(1, sum(1 for _ in trials(kind, table)) // count)
        for place, path, data in islice(trials(kind, table), step // 2, None, step):
            shutil.copytree(table, copy)
            changed = copy / path.relative_to(table)
            changed.unlink()  # a new file, because maps of files are cached
            changed.write_bytes(data())
            print(json.dumps([place, "begun"]), flush=True)
            print(json.dumps([place, outcome(copy)]), flush=True)
            shutil.rmtree(copy)


def results_of(kind: str, storage: str, count: int) -> dict[str, Any]:
    child = subprocess.run(
        [sys.executable, __file__, kind, storage, str(count)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LANCETABLE_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    results = dict(map(json.loads, child.stdout.splitlines()))
    assert child.returncode == 0, f"exit code {child.returncode} after {list(results)[-1:]}:\n{child.stderr[-3000:]}"
    return results


def failures(results: dict[str, dict[str, str]]) -> list[str]:
    allowed = {"ok", *lancetable.errors.__all__}
    return [
        f"{place}, {call}: {result}"
        for place, outcomes in results.items()
        for call, result in outcomes.items()
        if result not in allowed
    ]


@pytest.mark.parametrize(("kind", "storage"), KINDS)
def test_a_huge_number_in_metadata_costs_neither_memory_nor_time(kind: str, storage: str) -> None:
    results = results_of(kind, storage, 20)
    assert len(results) >= 20
    assert not failures(results)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "storage"), KINDS)
def test_no_huge_number_in_metadata_costs_memory_or_time(kind: str, storage: str) -> None:
    results = results_of(kind, storage, 1000)
    assert len(results) > 300
    assert not failures(results)


def test_a_row_count_that_no_data_file_confirms_is_refused_before_memory_is_allocated(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(pa.table({"id": range(20)}), tmp_path / "t")
    ds.delete("id = 3")
    path = newest_manifest(tmp_path / "t")
    message = manifest_of(path.read_bytes())
    message.fragments[0].physical_rows = 2**31
    path.write_bytes(with_manifest(path.read_bytes(), message.SerializeToString()))
    ds = lancetable.dataset(tmp_path / "t")
    for read in (
        ds.to_table,
        lambda: ds.to_table(columns=["_rowid"]),
        lambda: ds.take([5]),
        lambda: ds.delete("id = 5"),
    ):
        tracemalloc.start()
        with pytest.raises(CorruptFileError, match="expected 2147483648, found 20"):
            read()
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
        tracemalloc.stop()


def test_a_million_fragments_without_files_and_row_counts_are_refused_at_once(tmp_path: Path) -> None:
    lancetable.write_dataset(pa.table({"id": range(20)}), tmp_path / "t")
    path = newest_manifest(tmp_path / "t")
    message = manifest_of(path.read_bytes())
    message.ClearField("fragments")
    fragment = table_pb2.Manifest(fragments=[table_pb2.DataFragment()]).SerializeToString()
    path.write_bytes(with_manifest(path.read_bytes(), message.SerializeToString() + fragment * 1_000_000))
    ds = lancetable.dataset(tmp_path / "t")
    started = time.process_time()
    for read in (ds.count_rows, ds.to_table):
        with pytest.raises(CorruptFileError, match="fragment 0 has neither data files nor a number of rows"):
            read()
    assert time.process_time() - started < CALL_SECONDS


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
