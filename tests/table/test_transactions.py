"""Transactions of a version: inline, in a file, missing, damaged."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lancetable.errors import CorruptFileError
from lancetable.format import transaction as tx
from lancetable.format.manifest import Manifest
from lancetable.format.transaction import Transaction
from lancetable.table import transactions
from lancetable.table.version import TableVersion, open_version


def without_inline(version: TableVersion) -> TableVersion:
    message = version.manifest.to_proto()
    message.ClearField("transaction_section")
    return replace(version, file=replace(version.file, manifest=Manifest(message)))


def read(version: TableVersion) -> Transaction | None:
    return transactions.read(version.store, version.base, version.file)


def test_inline_transaction_equals_the_file(three_fragments: TableVersion, table_dir: Path) -> None:
    lance.dataset(str(table_dir)).delete("id = 3")
    version = open_version(str(table_dir))
    transaction = read(version)
    assert transaction is not None
    assert isinstance(transaction.operation, tx.Delete)
    assert (transaction.read_version, transaction.operation.predicate) == (1, "id = 3")
    assert read(without_inline(version)) == transaction
    assert lance.dataset(str(table_dir)).read_transaction(2).uuid == transaction.uuid


def test_an_inline_transaction_is_read_without_the_file(three_fragments: TableVersion, table_dir: Path) -> None:
    for path in (table_dir / "_transactions").iterdir():
        path.unlink()
    assert read(three_fragments) is not None
    assert read(without_inline(three_fragments)) is None


def test_a_manifest_without_a_transaction_returns_none(three_fragments: TableVersion) -> None:
    message = without_inline(three_fragments).manifest.to_proto()
    message.transaction_file = ""
    bare = replace(three_fragments, file=replace(three_fragments.file, manifest=Manifest(message)))
    assert read(bare) is None


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a\0b"])
def test_unsafe_file_names_are_rejected(three_fragments: TableVersion, name: str) -> None:
    message = without_inline(three_fragments).manifest.to_proto()
    message.transaction_file = name
    hostile = replace(three_fragments, file=replace(three_fragments.file, manifest=Manifest(message)))
    with pytest.raises(CorruptFileError, match="unsafe path"):
        read(hostile)


def test_write(three_fragments: TableVersion) -> None:
    transaction = Transaction.create(7, tx.Restore(3), properties={"a": "b"})
    name = transactions.write(three_fragments.store, three_fragments.base, transaction, transaction.to_bytes())
    assert name == f"7-{transaction.uuid}.txn"
    stored = (Path(three_fragments.base) / "_transactions" / name).read_bytes()
    assert Transaction.from_bytes(stored) == transaction


def test_read_since_returns_none_for_unreadable_transactions(three_fragments: TableVersion, table_dir: Path) -> None:
    ds = lance.dataset(str(table_dir))
    ds.delete("id = 1")
    ds.delete("id = 2")
    second = open_version(str(table_dir), 2)
    data = bytearray(Path(second.location.path).read_bytes())
    data[4:20] = b"\xff" * 16
    Path(second.location.path).write_bytes(data)
    locations = three_fragments.handler.history(three_fragments.store, three_fragments.base)
    found = transactions.read_since(three_fragments.store, three_fragments.base, locations)
    assert [file.manifest.version for file, _ in found] == [1, 2, 3]
    assert [transaction is None for _, transaction in found] == [False, True, False]


CHILD = """
import sys
from pathlib import Path
from lancetable.errors import LanceError
from lancetable.format.transaction import Transaction
good = refused = 0
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        Transaction.from_bytes(path.read_bytes(), path.name)
        good += 1
    except LanceError:
        refused += 1
print(good, refused)
"""


@pytest.mark.parametrize("kind", ["flip", "truncate", "overwrite"])
def test_damaged_transactions_raise_typed_errors_or_parse(
    tmp_path: Path, table_dir: Path, damage: Callable[[bytes, Any, str], bytes], kind: str, scale: int
) -> None:
    table = pa.table({"id": range(50), "st": [{"a": 1, "b": [1.5]}] * 50})
    ds = lance.write_dataset(table, str(table_dir), max_rows_per_file=10, data_storage_version="2.0")
    ds.delete("id % 7 = 0")
    ds.update({"id": "id + 1"}, where="id < 5")
    ds.optimize.compact_files()
    ds.add_columns({"twice": "id * 2"})
    ds.update_config({"a": "b"})
    originals = [path.read_bytes() for path in sorted((table_dir / "_transactions").iterdir())]
    rng = random.Random(f"transaction {kind}")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    number = 500 * scale
    for index in range(number):
        (damaged / f"{index}.txn").write_bytes(damage(originals[index % len(originals)], rng, kind))
    done = subprocess.run([sys.executable, "-c", CHILD, str(damaged)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    good, refused = map(int, done.stdout.split())
    assert good + refused == number
    assert refused > 0
