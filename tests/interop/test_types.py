"""Every type of the 2.0 format in a table: pylance reads what we write, we read what pylance writes.

The columns of one table are the same type without nulls, with some, with nothing else, and (for lists) with empty lists
only. LANCETABLE_TEST_SCALE above 1 adds tables of 100,000 rows in several pages and fragments.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lancetable
from lancetable.testing.strategies import NULL_FRACTIONS, TYPE_CASES, TypeCase

SCALE = int(os.environ.get("LANCETABLE_TEST_SCALE", "1"))
FORMAT = {"data_storage_version": "2.0"}
# rows, rows per file, bytes per page
SIZES: list[tuple[int, int, int | None]] = [(0, 100, None), (1, 100, None), (1000, 400, 900)]
if SCALE > 1:
    SIZES.append((100_000, 40_000, 20_000))
WRITERS = {"ours": lancetable, "theirs": lance}
# What pylance shows of a column of 2.0 in another form than it was given; ours is compared with what was given.
SHOWN_OTHERWISE = {
    # Text without blanks, and numbers and keys in one form only.
    "json",
}
VERBATIM = [name for name in TYPE_CASES if name not in SHOWN_OTHERWISE]

SEEN: Counter[str] = Counter()


def empty_lists(case: TypeCase, n: int) -> pa.Array | None:
    """(n,) lists without items, None for a type that is no list."""
    if not (pa.types.is_list(case.data_type) or pa.types.is_large_list(case.data_type)):
        return None
    return pa.array([[]] * n, case.data_type)


def table_of(name: str, n: int) -> pa.Table:
    """`i` counts the rows; `c0`... hold the type with each fraction of nulls, `e` empty lists only."""
    case = TYPE_CASES[name]
    rng = np.random.default_rng([n, len(name)])
    columns: dict[str, pa.Array] = {f"c{k}": case(rng, n, fraction) for k, fraction in enumerate(NULL_FRACTIONS)}
    empty = empty_lists(case, n)
    if empty is not None:
        columns["e"] = empty
    SEEN[name] += 1
    fields = [pa.field("i", pa.int64()), *(case.field(column) for column in columns)]
    return pa.table([pa.array(np.arange(n)), *columns.values()], schema=pa.schema(fields))


def bits(array: pa.Array) -> pa.Array:
    """The same values with floats as integers, so that NaN equals itself and 0.0 differs from -0.0.

    Dictionaries are replaced by their values: which of equal dictionaries a reader builds is its own business.
    """
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return bits(array.storage)
    if pa.types.is_dictionary(kind):
        return bits(array.dictionary_decode())
    if pa.types.is_floating(kind):
        # Only what shows counts: a null may hide any bytes.
        width = kind.bit_width
        known = array.is_valid()
        nan = pa.array(np.isnan(array.to_numpy(zero_copy_only=False).astype("f8"))) if len(array) else known
        whole = array.view(f"int{width}")
        return pc.if_else(known, pc.if_else(nan, pa.scalar(-1, whole.type), whole), pa.scalar(None, whole.type))
    if pa.types.is_struct(kind):
        parts = [bits(array.field(k)) for k in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, [field.name for field in kind]) if parts else array
    if pa.types.is_fixed_size_list(kind):
        items = bits(array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size))
        mask = array.is_null()
        # The items of a null list do not show.
        hidden = pa.array(np.repeat(np.asarray(mask), kind.list_size))
        return pa.ListArray.from_arrays(
            pa.array(np.arange(len(array) + 1, dtype="i4") * kind.list_size),
            pc.if_else(hidden, pa.scalar(None, items.type), items) if mask.true_count and len(items) else items,
            mask=mask,
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype("i8")
        ends = np.concatenate([[0], np.cumsum(lengths)])
        return pa.LargeListArray.from_arrays(pa.array(ends), bits(array.flatten()), mask=array.is_null())
    return array


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    """Equal schemas, metadata too, and equal values, bit by bit but for NaN."""
    found.validate(full=True)
    assert found.schema.equals(expected.schema, check_metadata=True)
    assert found.num_rows == expected.num_rows
    for name in expected.column_names:
        ours, theirs = (bits(each.column(name).combine_chunks()) for each in (found, expected))
        assert ours.equals(theirs), (name, ours, theirs)


def rows_of(n: int) -> list[int]:
    """Row numbers to take: the ends, the seams of pages and files, repeats, not in order."""
    wanted = [n - 1, 0, n // 2, n // 2, 399, 400, 401, 799, 800, 39_999, 40_000, 7]
    return [row for row in wanted if row < n] if n else []


CONDITIONS = ["i % 7 = 3", "c1 IS NULL", "c1 IS NOT NULL AND i > 10", "c2 IS NULL AND i < 5", "i < 0"]


def check_pair(ours: Any, theirs: Any, n: int, *, sql: bool = True) -> None:
    """Scan, take, filter and count give the same in both."""
    assert_same(ours.to_table(), theirs.to_table())
    assert ours.count_rows() == theirs.count_rows() == n
    assert_same(ours.to_table(columns=["c1", "i"], offset=3, limit=500), theirs.to_table(["c1", "i"], None, 500, 3))
    for condition in CONDITIONS if sql else ("i % 7 = 3", "i < 0"):
        assert_same(ours.to_table(filter=condition), theirs.to_table(filter=condition))
        assert ours.count_rows(condition) == theirs.count_rows(condition), condition
    rows = rows_of(n)
    assert_same(ours.take(rows), theirs.take(rows) if rows else theirs.schema.empty_table())
    for batch in ours.to_batches(batch_size=333):
        assert batch.schema.equals(theirs.schema, check_metadata=True)


def write(writer: str, table: pa.Table, uri: str, rows_per_file: int, page_bytes: int | None) -> None:
    """In several appends, so that pages end where batches do, too."""
    module = WRITERS[writer]
    sizes = {"max_rows_per_file": rows_per_file, "data_cache_bytes": page_bytes, "max_page_bytes": page_bytes}
    module.write_dataset(table.slice(0, table.num_rows // 2), uri, **sizes, **FORMAT)
    if table.num_rows:
        module.write_dataset(table.slice(table.num_rows // 2), uri, mode="append", **sizes)


def reference(name: str, table: pa.Table) -> pa.Table | None:
    """What must come back: the table itself; blobs are shown by their descriptions, which only the files know."""
    return None if name == "blob" else table


@pytest.mark.parametrize("writer", list(WRITERS))
@pytest.mark.parametrize(("n", "rows_per_file", "page_bytes"), SIZES)
@pytest.mark.parametrize("name", VERBATIM)
def test_types(name: str, n: int, rows_per_file: int, page_bytes: int | None, writer: str, tmp_path: Path) -> None:
    table = table_of(name, n)
    uri = str(tmp_path / "t.lance")
    write(writer, table, uri, rows_per_file, page_bytes)
    ours, theirs = lancetable.dataset(uri), lance.dataset(uri)
    expected = reference(name, table)
    if expected is not None:
        assert_same(ours.to_table(), expected)
        assert_same(theirs.to_table(), expected)
    check_pair(ours, theirs, n)


def test_every_type_was_seen() -> None:
    """Fails when a type of the generator is left out above; runs alone, it has nothing to tell."""
    if not SEEN:
        pytest.skip("test_types did not run")
    assert set(SEEN) | SHOWN_OTHERWISE == set(TYPE_CASES)
