"""Damaged indexes, used through the public API: files, details and entries in the manifest.

A trial may end with an error of the library or with the rows of a scan without index. It may end with other rows only
if the damage is one that a reader cannot detect, because the format has no checksums. It must not end with a crash, a
hang, another exception or memory above the limit. Trials run in a child process with a limited address space; this
file is also the program of the child process:

    test_index_damage.py TABLE CASE SEED COUNT   ->   two lines of JSON for each trial
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
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable
from integration.fuzz.containers import mutate_file
from integration.fuzz.mutate import Mutator
from lancetable.errors import LanceError
from lancetable.format.manifest_naming import ManifestLocation, ManifestNamingScheme
from lancetable.indices import IndexConfig
from lancetable.proto import index_details_pb2, index_pb2, table_pb2
from lancetable.store.memory import MemoryStore
from lancetable.table.manifest_files import pack, parse_manifest

ROOT = Path(__file__).parents[2]
TRIALS = 25
LIMIT_BYTES = 1 << 30  # address space in addition to that of the imports
TRIAL_SECONDS = 5.0  # CPU seconds, so that the load of the machine has no effect
ROWS = 400


@dataclass(frozen=True)
class Case:
    """A table with one damaged index, and the predicates that it answers."""

    column: str
    kind: Any
    predicates: list[str]
    version: str
    stable: bool = False
    is_deferred: bool = False
    options: dict[str, Any] = field(default_factory=dict)


NUMBERS = ["n = 7", "n > 30 AND n <= 44", "n IN (1, 2, 90)", "NOT (n < 55)", "n IS NULL", "n IS NOT NULL"]
STRINGS = ["s = 'text 7'", "s IS NULL", "NOT (s = 'text 7')", "s > 'text 30'"]
LABELS = ["array_has(tags, 'a')", "array_has_all(tags, ['a', 'b'])", "NOT array_has_any(tags, ['b', 'c'])"]
DOCUMENTS = ["json_get_int(j, 'x') = 7", "json_get_int(j, 'x') > 55", "json_get_int(j, 'x') IS NULL"]
CASES = {
    "btree": Case("n", "BTREE", NUMBERS, "2.0", options={"zone_size": 32}),
    "btree, strings": Case("s", "BTREE", STRINGS, "2.2", options={"zone_size": 32}),
    "btree, stable": Case("n", "BTREE", NUMBERS, "2.1", stable=True, options={"zone_size": 32}),
    "bitmap": Case("n", "BITMAP", NUMBERS, "2.1"),
    "bitmap, stable": Case("s", "BITMAP", STRINGS, "2.0", stable=True),
    "label list": Case("tags", "LABEL_LIST", LABELS, "2.2"),
    "ngram": Case("s", "NGRAM", ["contains(s, 'ext 4')", "contains(s, 'nowhere')"], "2.1"),
    "zone map": Case("n", "ZONEMAP", NUMBERS, "2.2", options={"rows_per_zone": 20}),
    "bloom filter": Case("n", "BLOOMFILTER", ["n = 7", "n IN (1, 2, 90)", "n IS NULL"], "2.0", stable=True),
    "json": Case("j", IndexConfig("json", {"target_index_type": "BTREE", "path": "x"}), DOCUMENTS, "2.2"),
    "deferred": Case("n", "BITMAP", NUMBERS, "2.1", is_deferred=True),
}
FILE_DAMAGES = ["flip", "overwrite", "truncate", "append", "lengths", "swap", "container"]
UNSIZED_DAMAGES = ["lengths", "swap", "container"]  # of files whose size the manifest does not record
ENTRY_DAMAGES = ["details", "entry"]
DAMAGES = FILE_DAMAGES + ENTRY_DAMAGES
DETECTABLE = {"truncate", "append", "lengths", "details"}


def make_table(uri: str, case: Case) -> None:
    """Write a table with deleted rows, the index of the case in two segments, and files of other indexes."""
    ids = range(ROWS)
    table = pa.table(
        {
            "n": pa.array([None if i % 9 == 4 else i * 7919 % 97 for i in ids], pa.int64()),
            "s": pa.array([None if i % 7 == 3 else f"text {i * 7919 % 61}" for i in ids]),
            "tags": pa.array([None if i % 11 == 5 else ["a", "b", "c", None][: i % 5] for i in ids]),
            "j": pa.array([json.dumps({"x": None if i % 9 == 4 else i * 7919 % 97}) for i in ids], pa.json_()),
        }
    )
    if case.version == "2.0":
        table = table.drop_columns(["j"])
    ds = lancetable.write_dataset(
        table,
        uri,
        data_storage_version=case.version,
        enable_stable_row_ids=case.stable,
        max_rows_per_file=ROWS // 4,
    )
    for kind, column in {"BTREE": "n", "BITMAP": "s", "NGRAM": "s", "ZONEMAP": "n"}.items():
        ds.create_scalar_index(column, kind, f"other {kind}")
    ds.delete("n % 10 = 3")
    ds.create_scalar_index(case.column, case.kind, "i", **case.options)
    ds.insert(table.slice(0, 50))
    ds.optimize.optimize_indices(num_indices_to_merge=0)
    for kind in ("BTREE", "BITMAP", "NGRAM", "ZONEMAP"):
        ds.drop_index(f"other {kind}")
    if case.is_deferred:
        ds.delete("n % 10 = 6")
        ds.optimize.compact_files(target_rows_per_fragment=2 * ROWS, defer_index_remap=True)


# ----------------------------------------------------------------------------------------------------------- the damage


class Damage:
    """Random damage of the index of a table. The bytes of the table are not changed.

    Parameters
    ----------
    uri
        Path of the table.
    rng
        Source of randomness.
    """

    def __init__(self, uri: Path, rng: random.Random) -> None:
        ds = lancetable.dataset(str(uri))
        self.rng = rng
        segments = [segment.uuid for index in ds.describe_indices() for segment in index.segments]
        self.files = sorted(file for uuid in segments for file in (uri / "_indices" / str(uuid)).glob("*"))
        self.others = sorted((uri / "_indices").rglob("*.*"))
        self.manifest = max((uri / "_versions").glob("*.manifest"), key=lambda path: path.stat().st_mtime_ns)
        self.version = ds.version

    def apply(self, damage: str) -> dict[Path, bytes]:
        """Return damaged files. The first one is the damaged one; the other is a manifest without sizes of files."""
        if damage in ENTRY_DAMAGES:
            return {self.manifest: self.with_other_entry(self._change_details if damage == "details" else self._change)}
        changed = dict([self._changed_file(damage)])
        if damage in UNSIZED_DAMAGES:
            changed[self.manifest] = self.with_other_entry(lambda entry: entry.ClearField("files"), every=True)
        return changed

    def _changed_file(self, damage: str) -> tuple[Path, bytes]:
        path = self.rng.choice(self.files)
        data = path.read_bytes()
        content = bytearray(data)
        at = self.rng.randrange(len(content))
        if self.rng.random() < 0.5:
            at = self.rng.randrange(max(0, len(content) - 1500), len(content))
        match damage:
            case "flip":
                content[at] ^= 1 << self.rng.randrange(8)
            case "overwrite":
                words = [self.rng.randbytes(8), b"\xff" * 8, bytes(8), struct.pack("<Q", 1 << self.rng.randrange(64))]
                content[at : at + 8] = self.rng.choice(words)[: len(content) - at]
            case "truncate":
                del content[at:]
            case "append":
                content += data[-40:] if self.rng.random() < 0.3 else self.rng.randbytes(self.rng.randint(1, 100))
            case "lengths":
                content[:] = with_exchanged_lengths(data, self.rng)
            case "swap":
                content[:] = self.rng.choice([other for other in self.others if other != path]).read_bytes()
            case "container":
                content[:] = mutate_file(data, self._mutator())
        return path, bytes(content)

    def _mutator(self) -> Mutator:
        return Mutator(self.rng.getrandbits(32), self._changed_bytes, 1 << 16)

    def _changed_bytes(self, data: bytes, max_bytes: int) -> bytes:
        changed = bytearray(data or b"\0")
        for _ in range(self.rng.choice((1, 1, 3))):
            changed[self.rng.randrange(len(changed))] = self.rng.randrange(256)
        return bytes(changed[:max_bytes])

    def _change(self, entry: Any) -> None:
        self._mutator().message(entry)

    def _change_details(self, entry: Any) -> None:
        details = entry.index_details
        if self.rng.random() < 0.1:
            details.type_url = f"/lance.table.{self.rng.choice(list(DETAILS))}"
        else:
            kind = DETAILS.get(details.type_url.rpartition(".")[2], index_details_pb2.BTreeIndexDetails)
            details.value = self._mutator().parsed(kind, details.value)

    def with_other_entry(self, change: Callable[[Any], None], *, every: bool = False) -> bytes:
        """Return the manifest in which an entry of an index, or every one, is changed."""
        store = MemoryStore.private()
        location = ManifestLocation(self.version, self.manifest.name, None, ManifestNamingScheme.V2)
        file = parse_manifest(store, location, self.manifest.read_bytes())
        section = table_pb2.IndexSection.FromString(file.index_section(store) or b"")
        for entry in section.indices if every else [self.rng.choice(section.indices)]:
            change(entry)
        transaction = file.transaction_section(store) or b""
        return pack(file.manifest.to_proto(), transaction, section.SerializeToString())


DETAILS = {
    "BTreeIndexDetails": index_details_pb2.BTreeIndexDetails,
    "ZoneMapIndexDetails": index_details_pb2.ZoneMapIndexDetails,
    "JsonIndexDetails": index_pb2.JsonIndexDetails,
    "FragmentReuseIndexDetails": table_pb2.FragmentReuseIndexDetails,
}


def with_exchanged_lengths(data: bytes, rng: random.Random) -> bytes:
    """Exchange two numbers in the tables of the columns and the global buffers of a file."""
    out = bytearray(data)
    _, columns_at, _, _, _ = struct.unpack("<QQQII", data[-40:-8])
    positions = range(columns_at, len(data) - 47, 8)
    first, second = rng.sample(positions, 2)
    out[first : first + 8], out[second : second + 8] = data[second : second + 8], data[first : first + 8]
    return bytes(out)


# ----------------------------------------------------------------------------------------------------------- the trials


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "describe": lambda ds: repr(ds.describe_indices()),
    "statistics": lambda ds: [ds.stats.index_stats(name) for name in ("i", "__lance_frag_reuse")],
    "prewarm": lambda ds: ds.prewarm_index("i"),
}
CHANGES: dict[str, Callable[[Any], Any]] = {
    "optimize": lambda ds: ds.optimize.optimize_indices(num_indices_to_merge=9),
    "compact": lambda ds: ds.optimize.compact_files(target_rows_per_fragment=10 * ROWS),
}


def answers(uri: str, case: Case, *, use_index: bool) -> list[list[int]] | str:
    """Return the rows of all predicates, or the name of the library's error; other exceptions are passed on."""
    try:
        ds = lancetable.dataset(uri)
        found = []
        for predicate in case.predicates:
            scanner = ds.scanner(columns=[], filter=predicate, with_row_id=True, use_scalar_index=use_index)
            found.append(sorted(scanner.to_table()["_rowid"].to_pylist()))
            assert ds.count_rows(predicate) == len(found[-1]) or not use_index
        return found
    except LanceError as error:
        return f"error {type(error).__name__}: {error}"


def use(table: Path, copy: Path) -> None:
    """Use the index in other ways, and change a copy of the table. Errors of the library are ignored."""
    shutil.copytree(table, copy, copy_function=os.link)
    for act in (*QUESTIONS.values(), *CHANGES.values()):
        with suppress(LanceError):
            act(lancetable.dataset(str(copy)))
    shutil.rmtree(copy)


def run_trials(table: str, name: str, seed: int, count: int) -> None:
    """Run trials; print a line before and after each, the latter with the verdict."""
    warnings.simplefilter("ignore")
    case, rng, uri = CASES[name], random.Random(f"{name} {seed}"), Path(table)
    expected = answers(table, case, use_index=False)
    whole = lancetable.dataset(table)
    assert all("ScalarIndexQuery" in whole.scanner(filter=each).explain_plan() for each in case.predicates)
    assert answers(table, case, use_index=True) == expected, "the undamaged index gives other rows"
    damage = Damage(uri, rng)
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT_BYTES, -1))
    for trial in range(count):
        kind = DAMAGES[trial % len(DAMAGES)]
        changed = damage.apply(kind)
        name_of_file = next(iter(changed)).name
        print(json.dumps([kind, name_of_file, "begun"]), flush=True)
        undamaged = {path: path.read_bytes() for path in changed}
        replace(changed)
        started, details = time.process_time(), ""
        try:
            found = answers(table, case, use_index=True)
            if trial % 2:
                use(uri, uri.with_name(f"copy {trial}"))
            verdict = "right" if found == expected else "error" if isinstance(found, str) else "wrong"
            if verdict == "wrong":
                wrong = [(p, len(f), len(e)) for p, f, e in zip(case.predicates, found, expected) if f != e]
                details = str(wrong)
            elif verdict == "error":
                details = str(found)
        except BaseException:
            verdict, details = "foreign", traceback.format_exc()
        finally:
            replace(undamaged)
        if time.process_time() - started > TRIAL_SECONDS:
            verdict = "slow"
        print(json.dumps([kind, name_of_file, verdict, details]), flush=True)


def replace(files: dict[Path, bytes]) -> None:
    """Replace files by new ones, because memory maps of the old ones may be open."""
    for path, content in files.items():
        path.unlink()
        path.write_bytes(content)


# ------------------------------------------------------------------------------------------------------------ the tests


@pytest.mark.parametrize("name", CASES)
def test_damage_raises_or_gives_the_rows_of_a_scan(tmp_path: Path, name: str, scale: int) -> None:
    make_table(str(tmp_path / "t.lance"), CASES[name])
    count = TRIALS * scale
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path / "t.lance"), name, "1", str(count)],
        capture_output=True,
        text=True,
        timeout=120 + 2 * count,
        check=False,
        env={**os.environ, "LANCETABLE_FSYNC": "0", "PYTHONPATH": str(ROOT)},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"exit {done.returncode} in {lines[-1:]}\n{done.stderr[-2000:]}"
    verdicts = [line for line in lines if line[2] != "begun"]
    assert len(verdicts) == count
    failures = [line for line in verdicts if line[2] not in ("right", "error", "wrong")]
    assert not failures, "\n".join(f"{line[:3]}\n{line[3]}" for line in failures[:3])
    for kind in DAMAGES:
        tally = Counter(line[2] for line in verdicts if line[0] == kind)
        print(name, kind, dict(tally))
        limit = 0 if kind in DETECTABLE else 1 + tally.total() * 2 // 5
        assert tally["wrong"] <= limit, [line for line in verdicts if line[0] == kind and line[2] == "wrong"]


if __name__ == "__main__":
    run_trials(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
