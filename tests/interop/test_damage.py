"""Damaged files of a table, read through the public API.

A trial may end with an error of the library, the correct results or, if page payloads are damaged, other values. It
must not end with a crash, a hang, another exception, memory above the limit, or rows of a truncated file. Trials run in
a child process with a limited address space; this file is also the program of the child process:

    test_damage.py TABLE KIND SEED COUNT   ->   two lines of JSON for each of COUNT trials of each damage
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError

import lancetable
from lancetable.errors import LanceError
from lancetable.proto import table_pb2

LIMIT_BYTES = 1 << 30  # address space in addition to that of the imports
TRIAL_SECONDS = 5.0  # CPU seconds, so that the load of the machine has no effect
TRIAL_WALL_SECONDS = 30.0  # wall-clock time, for a trial that waits forever
TRIALS = 2

FILES = {
    "manifest": "_versions/*.manifest",
    "transaction": "_transactions/*.txn",
    "data": "data/*.lance",
    "deletion array": "_deletions/*.arrow",
    "deletion bitmap": "_deletions/*.bin",
    "tag": "_refs/tags/*.json",
}
DAMAGES = ["flip", "truncate", "overwrite"]
QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "schema": lambda ds: (str(ds.schema), len(repr(ds)) > 0, len(ds._repr_html_()) > 0),
    "rows": lambda ds: ds.to_table(with_row_id=True).to_pylist(),
    "count": lambda ds: (ds.count_rows(), len(ds)),
    "filtered": lambda ds: ds.to_table(columns=["s"], filter="id % 5 = 1 AND s IS NOT NULL").to_pylist(),
    "filtered count": lambda ds: ds.count_rows("id > 100"),
    "take": lambda ds: ds.take([0, 7, 150, 90]).to_pylist(),
    "take by id": lambda ds: ds._take_rows([0, 9, 250, (1 << 32) + 5]).to_pylist(),
    "ordered": lambda ds: ds.to_table(columns=["id"], order_by=["id"], limit=5).to_pylist(),
    "deleted": lambda ds: ds.to_table(columns=["id"], with_row_id=True, include_deleted_rows=True).num_rows,
    "versions": lambda ds: [(each["version"], each["metadata"]) for each in ds.versions()],
    "transactions": lambda ds: [repr(each) for each in ds.get_transactions()],
    "fragments": lambda ds: [(each.metadata.to_json(), each.count_rows()) for each in ds.get_fragments()],
    "one fragment": lambda ds: ds.get_fragments()[0].to_table(filter="id < 50").to_pylist(),
    "stats": lambda ds: ds.stats.dataset_stats(),
    "field stats": lambda ds: [(each.id, each.bytes_on_disk) for each in ds.stats.data_stats().fields],
    "tags": lambda ds: ds.tags.list(),
    "tagged": lambda ds: ds.checkout_version("t").count_rows(),
    "before": lambda ds: ds.checkout_version(1).to_table().to_pylist(),
    "validate": lambda ds: ds.validate(),
    "files": lambda ds: ds.all_files().read_all().num_rows,
    "delete": lambda ds: ds.delete("id = 33"),
    "append": lambda ds: ds.insert(pa.table({"id": pa.array([1000], pa.int64())})),
    "restore": lambda ds: ds.checkout_version(2).restore(),
}

ROWS = {"rows", "count", "filtered", "take", "take by id", "tagged", "before", "one fragment"}


def make_table(uri: str, writer: str) -> None:
    """Write a table with two fragments, both forms of deletion files, three older versions and a tag."""
    # The child process must not import pylance.
    name, storage = writer.split()
    module = import_module({"ours": "lancetable", "theirs": "lance"}[name])
    n = 6000
    table = pa.table(
        {
            "id": pa.array(range(n), pa.int64()),
            "s": pa.array([None if i % 7 == 0 else f"text {i}" for i in range(n)]),
            "l": pa.array([list(range(i % 4)) for i in range(n)], pa.list_(pa.int32())),
            "p": pa.array([{"x": i, "y": f"y{i % 3}"} for i in range(n)]),
            "d": pa.array(["red", "green", "blue"] * (n // 3)).dictionary_encode(),
        }
    )
    module.write_dataset(table.slice(0, 300), uri, data_storage_version=storage)
    dataset = module.write_dataset(table.slice(300), uri, mode="append")
    dataset.delete("id IN (3, 4, 77, 200)")
    dataset.delete("id >= 300 AND id < 5900")
    dataset.tags.create("t", 2)
    shutil.rmtree(Path(uri, "_indices"), ignore_errors=True)


def damaged(damage: str, data: bytes, rng: random.Random) -> bytes:
    """Return damaged data; in half of the cases, the damage is in the last 2,000 bytes, the footer and the metadata."""
    out = bytearray(data)
    at = rng.randrange(max(0, len(out) - 2000), len(out)) if rng.random() < 0.5 else rng.randrange(len(out))
    if damage == "flip":
        out[at] ^= 1 << rng.randrange(8)
    elif damage == "truncate":
        del out[at:]
    else:
        value = rng.choice([rng.randbytes(8), b"\xff" * 8, bytes(8), struct.pack("<Q", 1 << rng.randrange(64))])
        out[at : at + 8] = value[: len(out) - at]
    return bytes(out)


def ask(uri: str) -> dict[str, Any]:
    """Return the result of every question, or the name of the library's error; other exceptions are passed on."""
    answers: dict[str, Any] = {}
    try:
        dataset = lancetable.dataset(uri)
    except LanceError as error:
        return {"open": f"error {type(error).__name__}"}
    for name, question in QUESTIONS.items():
        answers[name] = answer(question, dataset)
    return answers


def answer(question: Callable[[Any], Any], dataset: Any) -> Any:
    try:
        return question(dataset)
    except LanceError as error:
        return f"error {type(error).__name__}"


def what_rows_it_tells(manifest: bytes) -> bytes | None:
    """Return the parts of a manifest that determine rows: fields, fragments and, in 0.1, dictionaries.

    They have no checksum and no copy: damage can turn a name, a field id, a row count or a dictionary value into
    another valid one, which a reader cannot detect. (This applies to 4 % of all single bits of these tables in 2.0, and
    to 6 % in 0.1, because of the dictionary values.) Damage of other parts must not change rows. Returns None if the
    manifest cannot be parsed.
    """
    try:
        start = struct.unpack("<Q", manifest[-16:-8])[0]
        (size,) = struct.unpack("<I", manifest[start : start + 4])
        message = table_pb2.Manifest.FromString(manifest[start + 4 : start + 4 + size])
    except (struct.error, DecodeError):
        return None
    kept = table_pb2.Manifest(fields=message.fields, fragments=message.fragments)
    kept.reader_feature_flags = message.reader_feature_flags
    kept.data_format.CopyFrom(message.data_format)
    dictionaries = b""
    if any(each.HasField("dictionary") for each in message.fields):
        dictionaries = manifest[: message.transaction_section or start]
    return kept.SerializeToString(deterministic=True) + dictionaries


def run_trials(table: str, kind: str, seed: int, count: int) -> None:
    warnings.simplefilter("ignore")
    rng = random.Random(f"{kind} {seed}")
    place = Path(tempfile.mkdtemp(prefix="lancetable-damage-"))
    # The questions that write are the last ones, so the results of reads do not depend on them.
    shutil.copytree(table, place / "whole")
    expected = ask(str(place / "whole"))
    paths = sorted(Path(table).glob(FILES[kind]))
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT_BYTES, -1))
    for trial in range(count * len(DAMAGES)):
        damage = DAMAGES[trial % len(DAMAGES)]
        path = rng.choice(paths)
        bad = damaged(damage, path.read_bytes(), rng)
        name = f"{path.relative_to(table)}"
        print(json.dumps([damage, name, "begun"]), flush=True)
        uri = place / str(trial)
        shutil.copytree(table, uri, copy_function=os.link)
        told = kind != "manifest" or what_rows_it_tells(path.read_bytes()) != what_rows_it_tells(bad)
        # A new file, because memory maps of the old one may be open.
        (uri / name).unlink()
        (uri / name).write_bytes(bad)
        started, began = time.process_time(), time.monotonic()
        try:
            found = ask(str(uri))
            differing = [key for key in found if found[key] != expected.get(key)]
            errors = [key for key in differing if isinstance(found[key], str) and found[key].startswith("error ")]
            verdict = "same" if not differing else "error" if differing == errors else "changed"
            details = [key for key in differing if key not in errors]
        except BaseException:
            verdict, details = "foreign", [traceback.format_exc()]
        computed, passed = time.process_time() - started, time.monotonic() - began
        if computed > TRIAL_SECONDS or passed > TRIAL_WALL_SECONDS:
            verdict, details = "slow", [f"{computed:.1f} s of CPU, {passed:.1f} s by the clock"]
        if verdict == "changed" and not told and ROWS & set(details):
            verdict, details = "made up", [str(details)]
        if verdict == "foreign":
            shutil.copytree(uri, f"{place}-{trial}")
            details.append(f"{place}-{trial}/{name}")
        shutil.rmtree(uri)
        print(json.dumps([damage, name, verdict, details]), flush=True)
    shutil.rmtree(place)


# The other files of a table do not depend on the version of its data files.
WRITERS = ["ours 2.0", "theirs 2.0", "ours 0.1", "ours 2.1", "theirs 2.1", "ours 2.2", "theirs 2.2"]
CELLS = [(writer, kind) for writer in WRITERS for kind in FILES if kind == "data" or writer in WRITERS[:3]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a dict of the tables written so far; the key "" is their directory."""
    return {"": tmp_path_factory.mktemp("damage")}


@pytest.mark.parametrize(("writer", "kind"), CELLS)
def test_damage_raises_or_changes_only_damaged_values(
    made: dict[str, Path], writer: str, kind: str, scale: int
) -> None:
    table = made[""] / writer.replace(" ", "-")
    if writer not in made:
        make_table(str(table), writer)
        made[writer] = table
        for name, pattern in FILES.items():
            assert list(table.glob(pattern)), f"the table has no {name}"
    count = TRIALS * scale
    done = subprocess.run(
        [sys.executable, __file__, str(table), kind, "1", str(count)],
        capture_output=True,
        text=True,
        timeout=60 + 6 * count,
        check=False,
        env={**os.environ, "LANCETABLE_FSYNC": "0"},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"exit {done.returncode} in {lines[-1:]}\n{done.stderr[-2000:]}"
    verdicts = [line for line in lines if line[2] != "begun"]
    assert len(verdicts) == count * len(DAMAGES)
    for damage in DAMAGES:
        print(kind, damage, dict(Counter(line[2] for line in verdicts if line[0] == damage)))
    wrong = [line for line in verdicts if line[2] not in ("same", "error", "changed")]
    assert not wrong, "\n".join(f"{line[:3]}\n{line[3][0]}\n{line[3][1:]}" for line in wrong[:3])
    assert not [line for line in verdicts if line[0] == "truncate" and line[2] == "changed"]


if __name__ == "__main__":
    run_trials(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
