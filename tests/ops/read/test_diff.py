"""Changes between versions: lineage as in pylance, row comparison against a plain model, and SQL through DuckDB."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lancetable

VALUES = pa.struct([pa.field("x", pa.float64()), pa.field("l", pa.list_(pa.struct([pa.field("t", pa.string())])))])
SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", VALUES), pa.field("f", pa.list_(pa.int8(), 2))])

texts = st.none() | st.sampled_from(["", "a", "b"])
structs = st.fixed_dictionaries(
    {
        "x": st.none() | st.sampled_from([0.0, 1.5, float("nan")]),
        "l": st.none() | st.lists(st.none() | st.fixed_dictionaries({"t": texts}), max_size=2),
    }
)
rows = st.dictionaries(
    st.none() | st.integers(0, 8),
    st.tuples(st.none() | structs, st.none() | st.tuples(st.integers(0, 1), st.none() | st.integers(0, 1))),
    max_size=8,
)


def table(content: dict[Any, Any]) -> pa.Table:
    listed = [{"k": key, "v": value[0], "f": value[1]} for key, value in content.items()]
    return pa.Table.from_pylist(listed, schema=SCHEMA)


def plain(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


@given(rows, rows)
def test_a_diff_by_key_equals_a_model(old: dict[Any, Any], new: dict[Any, Any]) -> None:
    uri = f"memory://diff-{uuid.uuid4().hex}"
    ds = lancetable.write_dataset(table(old), uri)
    lancetable.write_dataset(table(new), uri, mode="overwrite")
    found = lancetable.dataset(uri).diff(1, key="k")
    was = {row["k"]: row for row in table(old).to_pylist()}
    now = {row["k"]: row for row in table(new).to_pylist()}
    assert plain(found.inserted) == sorted(repr(now[key]) for key in now.keys() - was.keys())
    assert plain(found.deleted) == sorted(repr(was[key]) for key in was.keys() - now.keys())
    changed = [key for key in was.keys() & now.keys() if repr(was[key]) != repr(now[key])]
    assert sorted(map(repr, found.updated["k"].to_pylist())) == sorted(map(repr, changed))
    for row in found.updated.to_pylist():
        assert repr({"k": row["k"], **row["old"]}) == repr(was[row["k"]])
        assert repr({"k": row["k"], **row["new"]}) == repr(now[row["k"]])
    lancetable.LanceDataset.drop(ds.uri)


def changed_table(path: Path, library: Any) -> Any:
    data = pa.table({"a": range(12), "b": [f"t{k}" for k in range(12)]})
    ds = library.write_dataset(data, path, enable_stable_row_ids=True, max_rows_per_file=4)
    ds.insert(pa.table({"a": [100], "b": ["new"]}))
    ds.update({"b": "'changed'"}, where="a IN (2, 5)")
    ds.delete("a IN (1, 100)")
    ds.optimize.compact_files()
    ds.insert(pa.table({"a": [101], "b": ["newer"]}))
    return ds


@pytest.mark.parametrize("library", [lancetable, lance], ids=["ours", "theirs"])
def test_a_delta_equals_pylance(tmp_path: Path, library: Any) -> None:
    last = changed_table(tmp_path / "t", library).version
    ours, theirs = (each.dataset(tmp_path / "t") for each in (lancetable, lance))
    for begin in range(1, last):
        # pylance reads rows of the newest version, lancetable those of the requested last version.
        told = [each.delta(begin_version=begin, end_version=last) for each in (ours, theirs)]
        for name in ("get_inserted_rows", "get_updated_rows", "get_deleted_row_ids"):
            found = [getattr(each, name)().read_all().sort_by("_rowid") for each in told]
            assert found[0].to_pydict() == found[1].to_pydict(), (name, begin)
        listed = [[str(one.uuid) for one in each.list_transactions()] for each in told]
        assert listed[0] == listed[1]
    middle = ours.delta(begin_version=1, end_version=2)
    assert middle.get_inserted_rows().read_all()["a"].to_pylist() == [100]


def test_a_diff_by_row_ids_does_not_read_shared_fragments(tmp_path: Path) -> None:
    ds = changed_table(tmp_path / "t", lancetable)
    found = ds.diff(1)
    assert sorted(found.inserted["a"].to_pylist()) == [101]
    assert found.deleted["a"].to_pylist() == [1]
    assert sorted(found.updated["new"].to_pylist(), key=str) == [{"a": 2, "b": "changed"}, {"a": 5, "b": "changed"}]
    assert "1 inserted, 2 updated, 1 deleted" in repr(found)
    before = lancetable.bytes_read_counter()
    assert ds.diff(ds.version).inserted.num_rows == 0
    assert ds.diff(ds.version - 1).inserted["a"].to_pylist() == [101]
    assert lancetable.bytes_read_counter() - before < 4096


def test_invalid_diffs_are_rejected(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(pa.table({"a": [1, 1, 2]}), tmp_path / "t")
    ds.insert(pa.table({"a": [3]}))
    with pytest.raises(lancetable.InvalidInputError, match="key"):
        ds.diff(1)
    with pytest.raises(lancetable.ColumnNotFoundError):
        ds.diff(1, key="nope")
    lancetable.write_dataset(pa.table({"a": [5]}), tmp_path / "t", mode="overwrite")
    ds.checkout_latest()
    with pytest.raises(lancetable.InvalidInputError, match="more than once in version 2"):
        ds.diff(2, key=["a"])
    for arguments in ({}, {"begin_version": 1}, {"end_version": 1, "compared_against": 1}):
        with pytest.raises(lancetable.InvalidInputError):
            ds.delta(**arguments)
    with pytest.raises(lancetable.InvalidOperationError, match="stable row ids"):
        ds.delta(1).get_deleted_row_ids()
    with pytest.raises(lancetable.VersionNotFoundError):
        ds.delta(begin_version=2, end_version=9).list_transactions()


def test_sql(tmp_path: Path) -> None:
    data = pa.table({"a": [1, 2, 3, 4], "b": ["x", "y", "x", "y"]})
    ds = lancetable.write_dataset(data, tmp_path / "t")
    query = ds.sql("SELECT b, sum(a) AS s FROM dataset WHERE a > 1 GROUP BY b ORDER BY b").build()
    assert pa.Table.from_batches(query.to_batch_records()).to_pydict() == {"b": ["x", "y"], "s": [3, 6]}
    named = ds.sql("SELECT _rowid, _rowaddr, a FROM t WHERE a = 3").table_name("t").with_row_id().with_row_addr()
    assert named.build().to_stream_reader().read_all().to_pydict() == {"_rowid": [2], "_rowaddr": [2], "a": [3]}
    assert "SCAN" in named.build().explain_plan().upper()
    theirs = lance.dataset(ds.uri).sql("SELECT a FROM dataset ORDER BY a DESC").build().to_batch_records()
    ours = ds.sql("SELECT a FROM dataset ORDER BY a DESC").batch_size(2).build().to_batch_records()
    assert pa.Table.from_batches(ours) == pa.Table.from_batches(theirs)
    assert "SCAN" in ds.sql("SELECT a FROM dataset").build().explain_plan().upper()
    for wrong in ("SELECT nope FROM dataset", "SELEKT", "SELECT 1 FROM missing"):
        with pytest.raises(lancetable.InvalidSqlError):
            ds.sql(wrong).build().to_batch_records()
