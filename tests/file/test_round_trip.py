"""Round trips of every type within lancetable and in both directions with pylance; whole, by range, by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from lance.file import LanceFileReader as OracleReader
from lance.file import LanceFileWriter as OracleWriter

from lancetable.file import LanceFileReader, LanceFileWriter
from lancetable.testing.strategies import TYPE_CASES

STORED = list(TYPE_CASES)
# pylance returns these types in another form; its files are compared by value below.
UNEQUAL_IN_THE_ORACLE = {"unknown extension", "json"}


def plain(column: pa.ChunkedArray | pa.Array) -> list[object]:
    """Convert values for comparison: NaN equals NaN, 0.0 differs from -0.0, dictionaries are decoded."""
    return [_comparable(value) for value in column.to_pylist()]


def _comparable(value: object) -> object:
    if isinstance(value, float):
        return np.float64(value).tobytes() if value == value else "NaN"
    if isinstance(value, np.generic):
        return _comparable(float(value))
    if isinstance(value, (list, np.ndarray)):
        return [_comparable(item) for item in value]
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    return value


def selections(rng: np.random.Generator, n: int) -> list[npt.NDArray[np.int64]]:
    """Return ascending row numbers: one, neighbours, some, all."""
    if n == 0:
        return [np.empty(0, np.int64)]
    some = np.flatnonzero(rng.random(n) < 0.3)
    return [np.array([n - 1]), np.arange(n // 3, n // 2 + 1), some, np.arange(n)]


def write_ours(path: Path, table: pa.Table, **settings: object) -> None:
    with LanceFileWriter(str(path), table.schema, version="2.0", **settings) as writer:
        writer.write_batch(table)


def write_theirs(path: Path, table: pa.Table, **settings: object) -> None:
    with OracleWriter(str(path), table.schema, version="2.0", **settings) as writer:
        writer.write_batch(table)


def check_reads(path: Path, expected: pa.Array, rng: np.random.Generator) -> None:
    reader = LanceFileReader(str(path))
    values = plain(expected)
    whole = reader.read_all().to_table()
    whole.validate(full=True)
    assert whole.column(0).type == expected.type
    assert plain(whole.column(0)) == values
    n = len(expected)
    for start, end in [(0, 0), (0, n), (n // 3, n - n // 4), (max(n - 5, 0), n), (n // 2, min(n // 2 + 1, n))]:
        part = reader.read_range(start, end - start).to_table()
        part.validate(full=True)
        assert plain(part.column(0)) == values[start:end], (start, end)
    for rows in selections(rng, n):
        taken = reader.take_rows(rows).to_table()
        taken.validate(full=True)
        assert plain(taken.column(0)) == [values[row] for row in rows], rows


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize(("n", "null_fraction"), [(0, 0.0), (1, 1.0), (77, 0.0), (300, 0.3), (150, 1.0)])
def test_written_files_are_read_by_both_implementations(
    name: str, n: int, null_fraction: float, tmp_path: Path
) -> None:
    rng = np.random.default_rng(n)
    table = TYPE_CASES[name].table(rng, n, null_fraction)
    path = tmp_path / "ours.lance"
    write_ours(path, table)
    check_reads(path, pa.chunked_array(table.column(0)).combine_chunks(), rng)
    if name in UNEQUAL_IN_THE_ORACLE:
        return
    oracle = OracleReader(str(path))
    values = plain(table.column(0))
    assert plain(oracle.read_all(batch_size=100).to_table().column(0)) == values
    if n > 10:
        assert plain(oracle.read_range(7, n - 9).to_table().column(0)) == values[7 : n - 2]
        rows = [0, 3, 4, n - 1]
        assert plain(oracle.take_rows(rows).to_table().column(0)) == [values[row] for row in rows]


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize(("n", "null_fraction"), [(1, 0.0), (300, 0.3)])
def test_files_of_pylance_are_read(name: str, n: int, null_fraction: float, tmp_path: Path) -> None:
    rng = np.random.default_rng(n)
    table = TYPE_CASES[name].table(rng, n, null_fraction)
    path = tmp_path / "theirs.lance"
    write_theirs(path, table)
    check_reads(path, pa.chunked_array(table.column(0)).combine_chunks(), rng)


@pytest.mark.parametrize("name", STORED)
def test_many_pages_round_trip(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    parts = [
        TYPE_CASES[name](rng, n, fraction) for n, fraction in [(200, 0.3), (1, 0.0), (350, 0.0), (120, 1.0), (90, 0.3)]
    ]
    field = TYPE_CASES[name].field()
    path = tmp_path / "ours.lance"
    with LanceFileWriter(str(path), pa.schema([field]), version="2.0", data_cache_bytes=600) as writer:
        for part in parts:
            writer.write_batch(pa.record_batch([part], schema=pa.schema([field])))
    expected = pa.chunked_array(parts)
    values = plain(expected)
    reader = LanceFileReader(str(path))
    assert plain(reader.read_all().to_table().column(0)) == values
    if name not in UNEQUAL_IN_THE_ORACLE:
        assert plain(OracleReader(str(path)).read_all().to_table().column(0)) == values
    for start, end in [(0, 761), (199, 202), (150, 600), (551, 671), (760, 761)]:
        assert plain(reader.read_range(start, end - start).to_table().column(0)) == values[start:end]
    rows = np.array([0, 199, 200, 201, 300, 551, 670, 671, 760])
    assert plain(reader.take_rows(rows).to_table().column(0)) == [values[row] for row in rows]
    batches = list(reader.read_all(batch_size=64).to_batches())
    assert [value for batch in batches for value in plain(batch.column(0))] == values


@pytest.mark.parametrize("name", STORED)
def test_slices_are_written_without_hidden_values(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    whole = TYPE_CASES[name](rng, 250, 0.3)
    field = TYPE_CASES[name].field()
    path = tmp_path / "ours.lance"
    with LanceFileWriter(str(path), pa.schema([field]), version="2.0") as writer:
        for start, count in [(3, 120), (130, 1), (201, 49)]:
            writer.write_batch(pa.record_batch([whole.slice(start, count)], schema=pa.schema([field])))
    expected = plain(whole)[3:123] + plain(whole)[130:131] + plain(whole)[201:250]
    assert plain(LanceFileReader(str(path)).read_all().to_table().column(0)) == expected


# pylance writes map entries of extension metadata in any order, empty pages for lists without items, and no
# message for the dictionary of the field.
OTHER_BYTES = (
    "dictionary",
    "list<dictionary>",
    "large_list<dictionary>",
    "list always",
    "unknown",
    "json",
    "uuid",
    "bool8",
    "fixed_shape",
)
SAME_BYTES = [name for name in STORED if not name.startswith(OTHER_BYTES)]


@pytest.mark.parametrize("name", SAME_BYTES)
def test_one_batch_has_the_bytes_of_pylance(name: str, tmp_path: Path) -> None:
    table = TYPE_CASES[name].table(np.random.default_rng(1), 90, 0.3)
    write_ours(tmp_path / "ours.lance", table)
    write_theirs(tmp_path / "theirs.lance", table)
    assert (tmp_path / "ours.lance").read_bytes() == (tmp_path / "theirs.lance").read_bytes()
