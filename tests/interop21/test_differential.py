"""Files of versions 2.1 and 2.2 with random nested columns, written and read by lancetable and by pylance.

An example is a file of one to three columns. Each library writes it in several batches, with pages of any size, and
reads both files as a whole, by ranges and by rows. Values are compared bit by bit, except that all NaN are equal.
pylance runs in its own process. If it misreads the file of lancetable or crashes, it writes and reads the same rows
itself, each column alone, with its own page boundaries and with those of lancetable. If it fails there too, it does not
support this kind of data, which is counted and must be rare; otherwise the file of lancetable is wrong. The same
applies to files of pylance that lancetable refuses as corrupt.

LANCETABLE_TEST_SCALE multiplies the number of examples; the nightly profile of hypothesis runs at least 5,000.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.file import LanceFileReader, LanceFileWriter
from lancetable.file.reader import open_data_file
from lancetable.format.version import FileVersion
from lancetable.store.local import LocalStore
from tests.support.nested import column_fields, comparable, random_array, row_choices, stands_alone

EXAMPLES = 120 * int(os.environ.get("LANCETABLE_TEST_SCALE", "1"))
if os.environ.get("HYPOTHESIS_PROFILE") == "nightly":
    EXAMPLES = max(EXAMPLES, 5000)

SIZES = [0, 1, 2, 3, 10, 100, 100, 1000, 1024, 1025, 3000, 10_000]
CACHES = [None, None, 1, 2000, 20_000]
PAGES = [None, None, 64, 5000, 50_000]


def batches_of(table: pa.Table, cuts: Sequence[float]) -> list[pa.RecordBatch]:
    """Return the table in batches, including batches without rows."""
    ends = [0, *sorted(int(cut * table.num_rows) for cut in cuts), table.num_rows]
    found = []
    for start, end in itertools.pairwise(ends):
        part = table.slice(start, end - start)
        arrays = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in part.columns]
        found.append(pa.record_batch(arrays, schema=table.schema))
    return found


def compact(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the rows in arrays without unused items, because pylance fails for some slices of lists."""
    return [
        pa.record_batch([compact_array(column) for column in batch.columns], schema=batch.schema) for batch in batches
    ]


def compact_array(array: pa.Array) -> pa.Array:
    # For some nested fixed-size lists, Arrow's take returns wrong items or crashes.
    if fixed_twice(array.type):
        return array
    try:
        return array.take(pa.array(np.arange(len(array))))
    except pa.ArrowNotImplementedError:
        return array


def fixed_twice(kind: pa.DataType, inside: bool = False) -> bool:
    """Return True if a fixed-size list contains another one, at any depth."""
    if isinstance(kind, pa.BaseExtensionType) or not pa.types.is_nested(kind):
        return False
    fixed = pa.types.is_fixed_size_list(kind)
    if fixed and inside:
        return True
    return any(fixed_twice(kind.field(k).type, inside or fixed) for k in range(kind.num_fields))


def queries_of(rng: np.random.Generator, n: int) -> list[Any]:
    """Return queries for all rows, for ranges, and for ascending row numbers."""
    ranges = [sorted(rng.integers(0, n + 1, 2).tolist()) for _ in range(3)]
    takes = [{"rows": rows.tolist()} for rows in row_choices(rng, n)]
    return [None, *([start, end - start] for start, end in ranges), *takes]


def wanted(table: pa.Table, query: Any) -> pa.Table:
    if query is None:
        return table
    return table.take(pa.array(query["rows"], pa.int64())) if isinstance(query, dict) else table.slice(*query)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 0:
        return pa.nulls(0, column.type)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def pages_of(path: Path, table: pa.Table) -> list[pa.RecordBatch]:
    """Return the table in batches that end where a page of any column ends."""
    file = open_data_file(LocalStore(), str(path))
    ends = sorted({0, *(start for number in range(file.num_columns) for start in file.column(number).start_list)})
    if ends[-1] != table.num_rows:  # pages count the items of fixed-size lists
        ends = [0, table.num_rows]
    parts = [table.slice(start, end - start).combine_chunks() for start, end in itertools.pairwise(ends)]
    return compact([part.to_batches()[0] for part in parts])


def is_empty(query: Any) -> bool:
    return query is not None and not (query["rows"] if isinstance(query, dict) else query[1])


def difference(found: pa.Table, expected: list[pa.Array], query: Any) -> str | None:
    """Return a description of the first difference, or None."""
    for number, array in enumerate(expected):
        column = found.column(number)
        if len(column) != len(array):
            return f"{len(column)} rows instead of {len(array)} for {str(query)[:200]}"
        got = comparable(column)
        if not got.equals(array):
            where = next((k for k in range(len(array)) if not got[k].equals(array[k])), 0)
            return (
                f"column {number} of type {column.type} differs for {str(query)[:200]}, first in row {where}: "
                f"{str(got[where])[:500]} instead of {str(array[where])[:500]}"
            )
    return None


def read_ours(path: Path, queries: Sequence[Any]) -> list[pa.Table]:
    reader = LanceFileReader(str(path))
    found = []
    for query in queries:
        if query is None:
            results = reader.read_all(batch_size=10_000)
        elif isinstance(query, dict):
            results = reader.take_rows(query["rows"])
        else:
            results = reader.read_range(*query)
        found.append(results.to_table())
    return found


class Sides:
    """A release of pylance and this library, and counts of the outcomes."""

    def __init__(self, peer: Any, directory: Path, version: FileVersion) -> None:
        self.peer, self.directory, self.version = peer, directory, version
        self.seen: Counter[str] = Counter()
        self.misread: list[str] = []

    def peer_finds(self, path: Path, queries: Sequence[Any], expected: Sequence[list[pa.Array]]) -> str | None:
        """Return the errors in the values that the peer reads; empty selections are not requested."""
        chosen = [k for k, query in enumerate(queries) if not is_empty(query)]
        try:
            tables = self.peer.read(path, [queries[k] for k in chosen])
        except Exception as error:
            if type(error).__name__ != "PeerError":
                raise
            return str(error)
        for table, k in zip(tables, chosen, strict=True):
            wrong = difference(table, expected[k], queries[k])
            if wrong is not None:
                return wrong
        return None

    def example(
        self, fields: list[pa.Field], n: int, seed: int, cuts: Sequence[float], sizes: dict[str, int | None]
    ) -> None:
        rng = np.random.default_rng(seed)
        alone = [field for field in fields if stands_alone(field)][:1]
        if alone:  # alone, and in one page
            fields, sizes, cuts = alone, {}, ()
        schema = pa.schema([field.with_name(f"c{k}") for k, field in enumerate(fields)])
        table = pa.Table.from_arrays([random_array(rng, field, n) for field in fields], schema=schema)
        plain = pa.table([comparable(column) for column in table.columns], names=schema.names)
        batches = batches_of(table, cuts)
        queries = queries_of(rng, n)
        expected = [[one_array(column) for column in wanted(plain, query).columns] for query in queries]
        options = {"version": self.version.number, **{key: size for key, size in sizes.items() if size is not None}}
        note(f"{n} rows, {options}, batches of {[batch.num_rows for batch in batches]}\n{schema}")

        def check_ours(path: Path, who: str) -> None:
            for found, query, arrays in zip(read_ours(path, queries), queries, expected, strict=True):
                found.validate(full=True)
                assert found.schema.equals(schema, check_metadata=True), (found.schema, schema)
                wrong = difference(found, arrays, query)
                assert wrong is None, f"{who} to ours: {wrong}"

        ours, theirs = self.directory / "ours.lance", self.directory / "theirs.lance"
        with LanceFileWriter(str(ours), schema, **options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        check_ours(ours, "ours")
        self.seen["ours"] += 1

        refusal = self.peer_writes(theirs, compact(batches), options)
        wrong = self.peer_finds(ours, queries, expected) if n else None
        if wrong is not None:
            note(f"the peer misreads: {wrong}")
            columns = [(table.select([k]), [[arrays[k]] for arrays in expected]) for k in range(len(fields))]
            proofs = [self.proof(column, queries, rows, options, cuts) for column, rows in columns]
            own = next((proof for proof in proofs if proof), None) or refusal
            own = own or self.peer_finds(theirs, queries, expected)
            if own is None:  # with the page boundaries of lancetable, all columns together
                again, how = self.directory / "again.lance", {**options, "data_cache_bytes": 1}
                own = self.peer_writes(again, pages_of(ours, table), how) or self.peer_finds(again, queries, expected)
            assert own is not None, f"lancetable to pylance {self.peer.release}, only together: {wrong}"
            note(f"its own file: {own}")
            self.seen["misread"] += 1
            self.misread.append(f"{[str(field.type) for field in fields]}: {wrong}; its own: {own}"[:400])
        if refusal is not None:
            note(f"the peer does not write this: {refusal}")
            self.seen["refused"] += 1
            return
        try:
            check_ours(theirs, f"pylance {self.peer.release}")
        except CorruptFileError as error:
            # pylance writes dictionaries that are too large for their indices, and cannot read them either.
            own = self.peer_finds(theirs, queries, expected)
            assert own is not None, f"pylance {self.peer.release} to ours: {error}"
            note(f"unreadable: {error}; its own reader: {own}")
            self.seen["unreadable"] += 1
            return
        self.seen["theirs"] += 1

    def proof(
        self,
        table: pa.Table,
        queries: Sequence[Any],
        expected: Sequence[list[pa.Array]],
        options: dict[str, Any],
        cuts: Sequence[float],
    ) -> str | None:
        """Return the peer's errors in its own file of a column if it misreads that of lancetable; None if it does not.

        Raises AssertionError if the peer misreads only the file of lancetable, with its own pages and with those of
        lancetable.
        """
        ours, theirs = self.directory / "our column.lance", self.directory / "their column.lance"
        batches = batches_of(table, cuts)
        with LanceFileWriter(str(ours), table.schema, **options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        wrong = self.peer_finds(ours, queries, expected)
        if wrong is None:
            return None
        for pages, how in ((compact(batches), options), (pages_of(ours, table), {**options, "data_cache_bytes": 1})):
            own = self.peer_writes(theirs, pages, how) or self.peer_finds(theirs, queries, expected)
            if own is not None:
                return own
        raise AssertionError(f"lancetable to pylance {self.peer.release}: {wrong}")

    def peer_writes(self, path: Path, batches: Sequence[pa.RecordBatch], options: dict[str, Any]) -> str | None:
        """Return the reason why the peer does not write a file."""
        try:
            self.peer.write(path, batches, **options)
        except Exception as error:
            if type(error).__name__ != "PeerError":
                raise
            return str(error)
        return None

    def run(self, examples: int) -> None:
        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
        @given(
            fields=st.lists(column_fields("c", self.version, self.peer.release), min_size=1, max_size=3),
            n=st.sampled_from(SIZES),
            seed=st.integers(0, 2**32),
            cuts=st.lists(st.floats(0, 1), max_size=3),
            sizes=st.fixed_dictionaries(
                {"data_cache_bytes": st.sampled_from(CACHES), "max_page_bytes": st.sampled_from(PAGES)}
            ),
        )
        def run(fields: list[pa.Field], n: int, seed: int, cuts: list[float], sizes: dict[str, int | None]) -> None:
            self.example(fields, n, seed, cuts, sizes)

        run()
        print(self.peer.release, self.version.number, dict(self.seen))
        # Most examples must be compared in both directions.
        assert self.seen["refused"] < self.seen["ours"] * 0.4, self.seen
        for failed in ("misread", "unreadable"):
            assert self.seen[failed] <= 3 + self.seen["ours"] * 0.02, (self.seen, self.misread)


@pytest.mark.parametrize("version", [FileVersion.V2_1, FileVersion.V2_2], ids=str)
def test_files_of_both_libraries_are_read_equal_by_both(version: FileVersion, pylance_14: Any, tmp_path: Path) -> None:
    Sides(pylance_14, tmp_path, version).run(EXAMPLES)


def test_files_are_read_equal_by_pylance_039(pylance_039: Any, tmp_path: Path) -> None:
    Sides(pylance_039, tmp_path, FileVersion.V2_1).run(EXAMPLES)
