"""Damaged pages of versions 2.1 and 2.2: reading raises a LanceError or returns an array that is valid for Arrow.

The trials run in a child process with a limit on its address space, because a reader may also crash. This file is the
program of the child process, too:    test_read_damage.py DIRECTORY SEED COUNT
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message

from lancetable.errors import LanceError
from lancetable.file.column_mapping import column_map
from lancetable.file.footer import FileMetadata, Page
from lancetable.file.reader import open_data_file, read_columns
from lancetable.proto import encodings_v2_1_pb2 as pb
from lancetable.store.memory import MemoryStore

LIMIT_BYTES = 4 << 30
KINDS = ["flip", "overwrite", "zero", "message", "message", "length"]


def columns() -> dict[str, tuple[pa.Array, dict[str, str]]]:
    """Return columns that together use every layout and most encodings; every bit pattern of their types is valid."""
    rng = np.random.default_rng(8)
    n = 3000
    mask = rng.random(n) < 0.2
    words = [None if null else f"https://example.org/{k * 7919 % 997}" for k, null in enumerate(mask)]
    lists = [None if null else list(range(k % 5)) for k, null in enumerate(mask)]
    structs = [{"a": k, "l": [{"x": str(k)}] * (k % 3)} if k % 7 else None for k in range(500)]
    items = pa.array([None if k % 9 == 0 else k for k in range(n)], pa.int32())
    key = "lance-encoding:"
    return {
        "packed bits": (pa.array(rng.integers(0, 900, n), mask=mask), {}),
        "flat": (pa.array(rng.integers(-(2**60), 2**60, n)), {}),
        "zstd": (pa.array(np.round(rng.random(n), 1)), {key + "compression": "zstd", key + "bss": "on"}),
        "runs": (pa.array(np.repeat(rng.integers(0, 2**40, n // 50), 50)), {}),
        "strings": (pa.array(words), {key + "compression": "none", key + "dict-divisor": "100000"}),
        "symbols": (pa.array(words), {key + "compression": "fsst", key + "dict-divisor": "100000"}),
        "dictionary": (pa.array([f"label {k % 9}" for k in range(n)]), {}),
        "long": (pa.array(["x" * int(k) for k in rng.integers(0, 600, 200)]), {}),
        "vectors": (pa.FixedSizeListArray.from_arrays(items, 100), {key + "structural-encoding": "fullzip"}),
        "lists": (pa.array(lists, pa.list_(pa.int32())), {}),
        "full-zip lists": (pa.array(lists, pa.list_(pa.int32())), {key + "structural-encoding": "fullzip"}),
        "text lists": (pa.array([[f"t{k}"] * (k % 4) for k in range(n)]), {key + "structural-encoding": "fullzip"}),
        "structs": (pa.array(structs), {}),
        "nulls": (pa.array([None, []] * 300, pa.list_(pa.int32())), {}),
        "constant": (pa.array([7 if k % 3 else None for k in range(n)]), {}),
    }


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_damaged_pages_raise_lance_errors_or_return_valid_arrays(tmp_path: Path, version: str, scale: int) -> None:
    lance_file = pytest.importorskip("lance.file", reason="pylance writes the files")
    for number, (array, metadata) in enumerate(columns().values()):
        schema = pa.schema([pa.field("c", array.type, metadata=metadata)])
        with lance_file.LanceFileWriter(str(tmp_path / f"{number}.lance"), schema, version=version) as writer:
            writer.write_batch(pa.record_batch([array], schema=schema))
    command = [sys.executable, "-X", "faulthandler", __file__, str(tmp_path), "1", str(800 * scale)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300 * scale, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    assert seen["wrong"] == []
    # Most damage is detected; the rest changes values only, and the read succeeds.
    assert seen["refused"] > 400 * scale
    assert seen["read"] > 100 * scale


def trials(directory: str, seed: int, count: int) -> dict[str, Any]:
    rng = random.Random(seed)
    files = [path.read_bytes() for path in sorted(Path(directory).iterdir())]
    found: Counter[str] = Counter()
    wrong: list[str] = []
    for _ in range(count):
        kind = rng.choice(KINDS)
        data = bytearray(rng.choice(files))
        store = MemoryStore()
        store.put("f", bytes(data))
        meta = open_data_file(store, "f")
        page = meta.column(rng.randrange(meta.num_columns)).page(0)
        if kind == "message":
            page.encoding = changed(page.encoding, rng)
        elif kind == "length":
            page.length = max(1, page.length + rng.choice([-1, 1, 100, 1 << 40]))
        else:
            damage(data, page, kind, rng)
            store.put("f", bytes(data))
            meta = open_data_file(store, "f")
        size = meta.num_rows
        start = rng.randrange(size)
        choices: list[Any] = [None, range(start, rng.randint(start + 1, size)), sample(rng, size)]
        for rows in choices:
            try:
                attempt(store, meta, rows)
                found["read"] += 1
            except LanceError:  # noqa: PERF203 - trials are independent
                found["refused"] += 1
            except Exception:
                wrong.append(f"{kind}: {traceback.format_exc()[-1500:]}")
    return {"wrong": wrong[:5], **found}


def sample(rng: random.Random, size: int) -> Any:
    return np.array(sorted(rng.sample(range(size), min(size, 9))), np.int64)


def attempt(store: MemoryStore, meta: FileMetadata, rows: Any) -> None:
    mapping = column_map(meta.schema, meta.version)
    (array,) = read_columns(store, "f", meta, meta.schema.fields, mapping, rows)
    for chunk in array.chunks if isinstance(array, pa.ChunkedArray) else [array]:
        chunk.validate(full=True)
    assert len(array) == (meta.num_rows if rows is None else len(rows))


def damage(data: bytearray, page: Page, kind: str, rng: random.Random) -> None:
    filled = [buffer for buffer in page.buffers if buffer.end > buffer.start]
    if not filled:
        return
    start, end = rng.choice(filled)
    at = rng.randrange(start, min(end, start + rng.choice([8, 64, 4096])))
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
        return
    stop = min(at + rng.choice([1, 2, 4, 8]), end)
    data[at:stop] = bytes(stop - at) if kind == "zero" else rng.choice([b"\xff", rng.randbytes(1)]) * (stop - at)


def changed(encoding: bytes, rng: random.Random) -> bytes:
    """Return the layout with one of its numbers changed."""
    wrapper = AnyMessage.FromString(encoding)
    layout = pb.PageLayout.FromString(wrapper.value)
    places: list[tuple[Message, str]] = []
    collect(layout, places)
    message, name = rng.choice(places)
    old = getattr(message, name)
    if isinstance(old, bytes):
        at = rng.randrange(max(len(old), 1))
        setattr(message, name, old[:at] + rng.randbytes(1) + old[at + 1 :])
    elif isinstance(old, bool):
        setattr(message, name, not old)
    elif isinstance(old, int):
        setattr(message, name, rng.choice([0, 1, old + 1, max(old - 1, 0), 2 * old, 8, 16, 64, 1 << 20, (1 << 32) - 1]))
    else:
        old.append(rng.randrange(8)) if rng.random() < 0.5 or not old else old.pop()
    wrapper.value = layout.SerializeToString()
    return wrapper.SerializeToString()


def collect(message: Message, places: list[tuple[Message, str]]) -> None:
    for field, content in message.ListFields():
        if isinstance(content, Message):
            collect(content, places)
        elif field.message_type is None and field.name != "scheme":
            places.append((message, field.name))


if __name__ == "__main__":
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT_BYTES, used + LIMIT_BYTES))
    print(json.dumps(trials(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
