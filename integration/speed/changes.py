"""Benchmark cases that change an existing table: change rows, add columns, compact fragments, clean up versions.

Every run gets a new copy of the prepared table, because a case changes it. The copy consists of hard links and is not
timed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

WORDS = pa.array([f"word-{i:02d}" for i in range(40)])
ROWS_PER_BATCH = 1 << 18


@dataclass(frozen=True)
class Case:
    """One change: `run` applies it with one of the libraries to the table that `fresh` has copied."""

    name: str
    fresh: Callable[[], None]
    run: Callable[[Any], Any]


def rows_of(ids: np.ndarray, seed: int) -> pa.Table:
    """Return rows with a number and a string that are keys, and six more columns."""
    rng = np.random.default_rng(seed)
    n = len(ids)
    numbers = pa.array(ids)
    return pa.table(
        {
            "id": numbers,
            "key": pa.array(np.char.add("user-", np.asarray(ids * 7919 % 10**9).astype(str))),
            "x": pa.array(rng.normal(size=n)),
            "n": pa.array(rng.integers(0, 1000, n), mask=rng.random(n) < 0.2),
            "word": WORDS.take(pa.array(rng.integers(0, len(WORDS), n))),
            "text": pa.array(rng.integers(0, 2**62, n)).cast(pa.string()),
            "flag": pa.array(rng.random(n) < 0.5),
            "at": pa.array(rng.integers(1_500_000_000_000_000, 1_800_000_000_000_000, n)).cast(pa.timestamp("us")),
        }
    )


class Tables:
    """The prepared tables below a directory, and the place where runs change copies of them."""

    def __init__(self, root: Path, version: str, rows: int) -> None:
        self.root, self.version, self.rows = root, version, rows
        self.work = str(root / "changed.lance")

    def fresh(self, name: str) -> Callable[[], None]:
        def copy() -> None:
            shutil.rmtree(self.work, ignore_errors=True)
            shutil.copytree(self.path(name), self.work, copy_function=os.link)

        return copy

    def path(self, name: str) -> Path:
        path = self.root / f"{name}.lance"
        if not path.exists():
            getattr(self, f"make_{name}")(str(path))
        return path

    def write(self, data: pa.Table, uri: str, **options: Any) -> None:
        lance.write_dataset(data, uri, data_storage_version=self.version, **options)

    def make_base(self, uri: str) -> None:
        self.write(rows_of(np.arange(self.rows), 1), uri)

    def make_stable(self, uri: str) -> None:
        self.write(rows_of(np.arange(self.rows), 1), uri, enable_stable_row_ids=True)

    def make_pieces(self, uri: str) -> None:
        self.write(rows_of(np.arange(self.rows), 1), uri, max_rows_per_file=-(-self.rows // 100))

    def make_torn(self, uri: str) -> None:
        """Write a table whose fragments have lost a fifth of their rows each."""
        self.make_pieces(uri)
        lance.dataset(uri).delete("id % 5 = 0")

    def make_versions(self, uri: str) -> None:
        """Write 201 versions, each of which has its own files."""
        table = rows_of(np.arange(1000), 1)
        for number in range(201):
            self.write(table, uri, mode="overwrite" if number else "create")

    def make_ids(self, uri: str) -> None:
        """Write a table with one column and five times as many rows as usual, with stable row ids."""
        ids = np.arange(self.rows * 5)
        self.write(pa.table({"id": ids}), uri, max_rows_per_file=self.rows // 2, enable_stable_row_ids=True)

    def make_moved_ids(self, uri: str) -> None:
        """Write the table of `make_ids`; then update and delete rows, so that ids are moved and missing."""
        self.make_ids(uri)
        for step in range(3):
            lance.dataset(uri).update({"id": "id + 1"}, where=f"id % 50 = {17 * step}")
            lance.dataset(uri).delete(f"id % 101 = {step}")


def cases(root: Path, version: str, rows: int) -> Iterator[Case]:
    """Return every case in the order of execution."""
    tables = Tables(root, version, rows)
    uri = tables.work
    base = tables.fresh("base")

    yield Case("update 10 %", base, lambda m: m.dataset(uri).update({"x": "x * 2", "n": "n + 1"}, where="id % 10 = 3"))
    yield Case("update a range", base, lambda m: m.dataset(uri).update({"word": "'new'"}, where=f"id < {rows // 10}"))
    yield Case(
        "update 10 %, stable ids",
        tables.fresh("stable"),
        lambda m: m.dataset(uri).update({"x": "x * 2", "n": "n + 1"}, where="id % 10 = 3"),
    )

    rng = np.random.default_rng(5)
    matched = rng.choice(rows, rows // 10, replace=False)
    both = rows_of(rng.permutation(np.concatenate([matched, np.arange(rows, rows + rows // 100)])), 2)
    few = rows_of(np.concatenate([matched[:500], np.arange(rows, rows + 500)]), 3)
    half_new = rows_of(rng.permutation(np.concatenate([matched[::2], np.arange(rows, rows + len(matched) // 2)])), 4)

    def upsert(module: Any, source: pa.Table, on: str) -> Any:
        return (
            module.dataset(uri).merge_insert(on).when_matched_update_all().when_not_matched_insert_all().execute(source)
        )

    yield Case("upsert 10 %, int key", base, lambda m: upsert(m, both, "id"))
    yield Case("upsert 10 %, text key", base, lambda m: upsert(m, both, "key"))
    yield Case("upsert 10 %, stable ids", tables.fresh("stable"), lambda m: upsert(m, both, "id"))
    yield Case("upsert 1,000, int key", base, lambda m: upsert(m, few, "id"))
    yield Case("upsert 1,000, text key", base, lambda m: upsert(m, few, "key"))
    yield Case(
        "insert if missing",
        base,
        lambda m: m.dataset(uri).merge_insert("id").when_not_matched_insert_all().execute(half_new),
    )

    yield Case("add columns, SQL", base, lambda m: m.dataset(uri).add_columns({"y": "x * 2", "loud": "upper(word)"}))

    def with_function(module: Any) -> None:
        @module.batch_udf(output_schema=pa.schema([pa.field("y", pa.float64())]))
        def double(batch: pa.RecordBatch) -> pa.RecordBatch:
            return pa.record_batch([pa.array(batch["x"].to_numpy() * 2)], names=["y"])

        module.dataset(uri).add_columns(double, read_columns=["x"])

    yield Case("add columns, function", base, with_function)
    added = rows_of(np.arange(rows), 6).select(["x", "text"]).rename_columns(["x2", "text2"])
    yield Case(
        "add columns, stream",
        base,
        lambda m: m.dataset(uri).add_columns(added.to_reader(max_chunksize=ROWS_PER_BATCH)),
    )

    yield Case("compact 100", tables.fresh("pieces"), lambda m: m.dataset(uri).optimize.compact_files())
    yield Case("compact 100 with deletions", tables.fresh("torn"), lambda m: m.dataset(uri).optimize.compact_files())
    yield Case(
        "clean up 200 versions",
        tables.fresh("versions"),
        lambda m: m.dataset(uri).cleanup_old_versions(older_than=timedelta(0)),
    )

    def first_take(module: Any) -> None:
        """Take a row by its id from a newly opened table, which has to build the index."""
        assert module.dataset(uri)._take_rows([rows * 4 + 2]).num_rows == 1

    yield Case(f"row id index, {rows * 5 // 10**6} M", tables.fresh("ids"), first_take)
    yield Case("the same, rows moved", tables.fresh("moved_ids"), first_take)
