"""Columns added, altered and dropped, config and metadata, compared with pylance; each library reads both tables."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable
from lancetable.ops.schema.alter_columns import Alteration
from lancetable.udf import BatchUDFCheckpoint

ROWS = 7
TABLE = pa.table(
    {
        "a": pa.array(range(ROWS), pa.int64()),
        "z": [f"t{k}" for k in range(ROWS)],
        "s": pa.array([{"u": k, "v": {"w": float(k)}} for k in range(ROWS)]),
        "l": pa.array([[k, k + 1] for k in range(ROWS)]),
        "q": pa.array(range(ROWS), pa.int32()),
    },
    schema=pa.schema(
        [
            pa.field("a", pa.int64()),
            pa.field("z", pa.string()),
            pa.field(
                "s", pa.struct([pa.field("u", pa.int64()), pa.field("v", pa.struct([pa.field("w", pa.float64())]))])
            ),
            pa.field("l", pa.list_(pa.int64())),
            pa.field("q", pa.int32(), nullable=False),
        ]
    ),
)

Step = Callable[[Any], Any]
EXPRESSIONS = {
    "e1": "a * 2 + q",
    "e2": "upper(z)",
    "e3": "7",
    "e4": "q + 1",
    "e5": "s.u > 2 AND q < 6",
    "e6": "cast(a as string) || 'x'",
    "e7": "a is null",
    "e8": "coalesce(a, 1)",
    "e9": "q IN (1, 2)",
}
STEPS: dict[str, Step] = {
    "rows deleted": lambda ds: ds.delete("a IN (0, 3, 6)"),
    "expressions": lambda ds: ds.add_columns(EXPRESSIONS),
    "null columns": lambda ds: ds.add_columns(
        [pa.field("n", pa.int32()), pa.field("m", pa.struct([pa.field("x", pa.string())]), metadata={"k": "v"})]
    ),
    "a function": lambda ds: ds.add_columns(
        lambda batch: pa.record_batch({"f": batch["a"], "id": batch["_rowaddr"]}), read_columns=["a", "_rowaddr"]
    ),
    "rows": lambda ds: ds.add_columns(
        pa.table({"r": pa.array(range(ds.count_rows()), pa.int16())}).to_reader(max_chunksize=3)
    ),
    "a name": lambda ds: ds.alter_columns({"path": "e2", "name": "renamed"}),
    "a name in a struct": lambda ds: ds.alter_columns({"path": "s.v.w", "name": "ww"}),
    "a type": lambda ds: ds.alter_columns({"path": "a", "data_type": pa.int32()}),
    "types and names": lambda ds: ds.alter_columns(
        {"path": "a", "data_type": pa.int16(), "name": "aa"}, {"path": "z", "data_type": pa.large_string()}
    ),
    "a list": lambda ds: ds.alter_columns({"path": "l", "data_type": pa.large_list(pa.int8())}),
    "required": lambda ds: ds.alter_columns({"path": "z", "nullable": False}),
    "nullable": lambda ds: ds.alter_columns({"path": "q", "nullable": True}),
    "columns dropped": lambda ds: ds.drop_columns(["e1", "e3"]),
    "a field dropped": lambda ds: ds.drop_columns(["s.u"]),
    "a dropped name again": lambda ds: ds.add_columns({"e1": "q - 1"}),
    "nulls by SQL": lambda ds: ds.add_columns({"n1": "CAST(NULL AS INT)"}),
    "config": lambda ds: (ds.update_config({"a": "1", "b": "2"}), ds.update_config({"a": None, "c": "3"}), ds.config())[
        -1
    ],
    "config keys deleted": lambda ds: (ds.delete_config_keys(["b", "nothing"]), ds.config())[-1],
    "table metadata": lambda ds: (ds.update_metadata({"t": "1"}), ds.update_metadata({"u": "2"}, replace=True))[-1],
    "schema metadata": lambda ds: (ds.update_schema_metadata({"x": "1"}), ds.update_schema_metadata({"y": "é"}))[-1],
    "field metadata": lambda ds: ds.update_field_metadata({"q": {"k": "v"}, "s.v": {"deep": "yes"}}),
}


def ids(fields: Any) -> list[Any]:
    return [(each.name(), each.id(), ids(each.children())) for each in fields]


def seen(ds: Any) -> dict[str, Any]:
    operation = ds.read_transaction(ds.version).operation
    return {
        "version": ds.version,
        "operation": type(operation).__name__,
        "preserves": getattr(operation, "preserves_nullability", None),
        "schema": ds.schema.remove_metadata(),
        "metadata": {each.name: each.metadata for each in ds.schema},
        "ids": ids(ds.lance_schema.fields()),
        "rows": ds.to_table(with_row_address=True).to_pydict(),
        "fields": [[file.fields for file in each.metadata.files] for each in ds.get_fragments()],
        "config": ds.config(),
        "table metadata": ds.metadata,
        "schema metadata": ds.schema_metadata,
    }


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_each_evolution_step_equals_that_of_pylance(tmp_path: Path, version: str) -> None:
    theirs = lance.write_dataset(TABLE, tmp_path / "theirs", max_rows_per_file=3, data_storage_version=version)
    ours = lancetable.write_dataset(TABLE, tmp_path / "ours", max_rows_per_file=3, data_storage_version=version)
    for name, step in STEPS.items():
        if version == "2.0" and name == "a field dropped":
            continue  # pylance cannot read its own result
        assert step(ours) == step(theirs), name
        assert seen(ours) == seen(theirs), name
        assert seen(lance.dataset(tmp_path / "ours")) == seen(theirs), name
        assert seen(lancetable.dataset(tmp_path / "theirs")) == seen(theirs), name


def required(name: str, data_type: pa.DataType) -> pa.Field:
    return pa.field(name, data_type, nullable=False)


NESTED = {
    "struct": pa.struct([required("x", pa.int32()), pa.field("y", pa.string())]),
    "struct of a struct": pa.struct([required("x", pa.struct([required("y", pa.int32())]))]),
    "struct of a list": pa.struct([required("x", pa.list_(required("item", pa.int32())))]),
    "list": pa.list_(required("item", pa.int32())),
    "large list of structs": pa.large_list(required("item", pa.struct([required("x", pa.string())]))),
    "map": pa.map_(pa.string(), pa.int32()),
}
VALUES: dict[str, Any] = {
    "struct": {"x": 1, "y": "z"},
    "struct of a struct": {"x": {"y": 1}},
    "struct of a list": {"x": [1, 2]},
    "list": [1, 2],
    "large list of structs": [{"x": "z"}],
    "map": [("k", 1)],
}


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_null_columns_with_required_children_equal_those_of_pylance(tmp_path: Path, version: str, name: str) -> None:
    field, table = pa.field("n", NESTED[name]), pa.table({"a": range(4)})
    more = pa.table(
        [pa.array([4]), pa.array([VALUES[name]], field.type)], pa.schema([pa.field("a", pa.int64()), field])
    )
    stored = version != "2.0" or "struct" not in name.split()[:1]  # 2.0 has no null structs
    stored &= name != "map" or version == "2.2"
    for library in (lance, lancetable):
        uri = tmp_path / library.__name__
        dataset = library.write_dataset(table, uri, max_rows_per_file=2, data_storage_version=version)
        dataset.add_columns(field)
        for reader in (lance, lancetable):
            found = reader.dataset(uri)
            assert found.schema.field("n") == field
            assert found.to_table()["n"].to_pylist() == [None] * 4
            assert found.take([1, 3], columns=["n"])["n"].to_pylist() == [None] * 2
            assert found.count_rows("n IS NULL") == 4
        if stored:
            for writer in (lance, lancetable):
                writer.dataset(uri).insert(more)
            lancetable.dataset(uri).optimize.compact_files()
            for reader in (lance, lancetable):
                assert reader.dataset(uri).to_table()["n"].to_pylist() == [None] * 4 + [VALUES[name]] * 2
            lancetable.dataset(uri).validate()


def test_null_columns_must_be_nullable_themselves_as_in_pylance(tmp_path: Path) -> None:
    for library in (lance, lancetable):
        dataset = library.write_dataset(pa.table({"a": [1]}), tmp_path / library.__name__)
        with pytest.raises(OSError, match="'n' is not"):
            dataset.add_columns(required("n", pa.struct([pa.field("x", pa.int32())])))


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("path", ["s.u", "s.v.w", "l", "l.item"])
def test_the_type_of_a_nested_field_can_change(tmp_path: Path, version: str, path: str) -> None:
    ds = lancetable.write_dataset(TABLE, tmp_path / "t", max_rows_per_file=3, data_storage_version=version)
    ds.delete("a = 4")
    kind = {"s.v.w": pa.float32(), "l": pa.large_list(pa.int8())}.get(path, pa.int8())
    ds.alter_columns({"path": path, "data_type": kind})
    expected = TABLE.filter(pa.compute.field("a") != 4).to_pydict()
    assert ds.to_table().to_pydict() == expected
    assert ds.take([1, 4], columns=["s", "l"]).to_pydict() == {
        key: [expected[key][1], expected[key][4]] for key in "sl"
    }
    assert lance.dataset(tmp_path / "t").to_table().to_pydict() == expected
    assert lance.dataset(tmp_path / "t").schema == ds.schema
    ds.validate()


def test_old_versions_stay_readable_after_evolution(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(TABLE, tmp_path / "t", max_rows_per_file=3)
    ds.alter_columns({"path": "a", "data_type": pa.int8(), "name": "b"})
    ds.drop_columns(["z"])
    assert ds.checkout_version(1).to_table() == TABLE


WRONG: dict[str, tuple[type[Exception], Step]] = {
    "a name that is taken": (lancetable.AlreadyExistsError, lambda ds: ds.add_columns({"z": "a"})),
    "an unknown column": (lancetable.ColumnNotFoundError, lambda ds: ds.add_columns({"y": "nope + 1"})),
    "no SQL": (lancetable.InvalidSqlError, lambda ds: ds.add_columns({"y": "a +"})),
    "a division by zero": (lancetable.InvalidSqlError, lambda ds: ds.add_columns({"y": "q / (q - q)"})),
    "row ids in SQL": (lancetable.ColumnNotFoundError, lambda ds: ds.add_columns({"y": "_rowid"})),
    "a dot": (lancetable.InvalidSchemaError, lambda ds: ds.add_columns({"x.y": "1"})),
    "required nulls": (
        lancetable.InvalidOperationError,
        lambda ds: ds.add_columns(pa.field("k", pa.int8(), nullable=False)),
    ),
    "too few rows": (lancetable.InvalidOperationError, lambda ds: ds.add_columns(pa.table({"r": [1]}).to_reader())),
    "too many rows": (
        lancetable.InvalidOperationError,
        lambda ds: ds.add_columns(pa.table({"r": [1] * 9}).to_reader()),
    ),
    "no transform": (TypeError, lambda ds: ds.add_columns(5)),
    "a function that fails": (TypeError, lambda ds: ds.add_columns(lambda batch: 1 / 0)),
    "a function that loses rows": (
        lancetable.InvalidInputError,
        lambda ds: ds.add_columns(lambda batch: pa.record_batch({"y": batch["a"].slice(0, 1)})),
    ),
    "an unknown column dropped": (lancetable.ColumnNotFoundError, lambda ds: ds.drop_columns(["a", "nope"])),
    "all columns dropped": (lancetable.InvalidInputError, lambda ds: ds.drop_columns(ds.schema.names)),
    "an unknown column altered": (
        lancetable.ColumnNotFoundError,
        lambda ds: ds.alter_columns({"path": "x", "name": "y"}),
    ),
    "a name twice": (lancetable.InvalidSchemaError, lambda ds: ds.alter_columns({"path": "a", "name": "z"})),
    "another kind": (
        lancetable.InvalidOperationError,
        lambda ds: ds.alter_columns({"path": "z", "data_type": pa.int8()}),
    ),
    "values that do not fit": (
        lancetable.SchemaMismatchError,
        lambda ds: (ds.add_columns({"big": "a + 1000"}), ds.alter_columns({"path": "big", "data_type": pa.int8()})),
    ),
    "nulls required": (
        lancetable.SchemaMismatchError,
        lambda ds: (ds.add_columns(pa.field("n", pa.int8())), ds.alter_columns({"path": "n", "nullable": False})),
    ),
    "no path": (lancetable.InvalidInputError, lambda ds: ds.alter_columns({"name": "y"})),
    "no change": (lancetable.InvalidInputError, lambda ds: ds.alter_columns({"path": "a"})),
    "an unknown change": (lancetable.InvalidInputError, lambda ds: ds.alter_columns({"path": "a", "type": 1})),
    "metadata of no field": (lancetable.ColumnNotFoundError, lambda ds: ds.update_field_metadata({"nope": {"a": "b"}})),
    "config of numbers": (TypeError, lambda ds: ds.update_config({"a": 1})),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused_changes_leave_table_and_files_unchanged(tmp_path: Path, case: str) -> None:
    error, step = WRONG[case]
    ds = lancetable.write_dataset(TABLE, tmp_path / "t", max_rows_per_file=3)
    with pytest.raises(error):
        step(ds)
    assert ds.to_table(columns=TABLE.schema.names) == TABLE
    named = {file.path for each in ds.get_fragments() for file in each.metadata.files}
    assert {each.name for each in (tmp_path / "t" / "data").iterdir()} == named


def test_a_checkpointed_function_resumes_after_a_failure(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(TABLE, tmp_path / "t", max_rows_per_file=3)
    calls: list[list[int]] = []

    @lancetable.batch_udf(pa.schema([pa.field("d", pa.int64())]), checkpoint_file=tmp_path / "checkpoint")
    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch["a"].to_pylist())
        if len(calls) == 4:
            raise RuntimeError("out of luck")
        return pa.record_batch({"d": pa.compute.multiply(batch["a"], 2)})

    with pytest.raises(RuntimeError):
        ds.add_columns(doubled, read_columns=["a"], batch_size=2)
    assert calls == [[0, 1], [2], [3, 4], [5]]
    assert ds.version == 1
    ds.add_columns(doubled, read_columns=["a"], batch_size=2)
    assert calls[4:] == [[5], [6]]
    assert ds.to_table(columns=["d"])["d"].to_pylist() == [2 * k for k in range(ROWS)]
    assert not (tmp_path / "checkpoint").exists()


def test_a_damaged_checkpoint_is_reported_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(b"this is not SQLite, whatever its name says" * 100)
    with pytest.raises(lancetable.InvalidInputError, match="remove the file"):
        BatchUDFCheckpoint(tmp_path / "checkpoint")


def test_columns_of_single_fragments_are_committed_together(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(TABLE, tmp_path / "t", max_rows_per_file=3)
    made = [each.merge_columns({"d": "a * 2"}) for each in ds.get_fragments()]
    operation = lancetable.LanceOperation.Merge([each for each, _ in made], made[0][1])
    ds = lancetable.LanceDataset.commit(ds, operation, read_version=ds.version)
    assert ds.to_table(columns=["d"])["d"].to_pylist() == [2 * k for k in range(ROWS)]


def test_add_columns_fails_after_a_concurrent_append_and_leaves_no_files(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(TABLE, tmp_path / "t")
    lancetable.write_dataset(TABLE, tmp_path / "t", mode="append")
    files = set((tmp_path / "t" / "data").iterdir())
    with pytest.raises(lancetable.RetryableCommitConflictError):
        ds.add_columns({"d": "a * 2"})
    assert set((tmp_path / "t" / "data").iterdir()) == files


def test_null_constants_write_no_data_files(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(TABLE, tmp_path / "t")
    files = [each.data_files() for each in ds.get_fragments()]
    ds.add_columns({"n": "NULL + 1", "v": "arrow_cast(NULL, 'FixedSizeList(4, Float32)')"})
    assert [each.data_files() for each in ds.get_fragments()] == files
    assert ds.schema.field("v").type == pa.list_(pa.float32(), 4) and ds.to_table()["v"].null_count == ROWS


def test_a_checkpoint_for_a_single_fragment_is_refused(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(TABLE, tmp_path / "t")
    made = lancetable.batch_udf(checkpoint_file=tmp_path / "c")(lambda batch: batch)
    with pytest.raises(lancetable.InvalidInputError, match="A checkpoint file cannot be used"):
        ds.get_fragments()[0].merge_columns(made, columns=["a"])


def test_attributes_of_an_alteration_default_to_none() -> None:
    assert Alteration("a", name="b") == Alteration(path="a", name="b", nullable=None, data_type=None)


@pytest.mark.parametrize("library", [lancetable, lance])
def test_casting_an_indexed_column_is_refused(tmp_path: Path, library: Any) -> None:
    """A cast would drop the index silently; a new name keeps it."""
    rows = [{"a": one, "b": "x"} for one in range(9)]
    lance.write_dataset(pa.table({"k": range(9), "t": rows}), tmp_path / "t")
    for column in ("k", "t.a"):
        lance.dataset(tmp_path / "t").create_scalar_index(column, "BTREE")
    ds = library.dataset(tmp_path / "t")
    before = ds.version
    for path, names in (("k", "k_idx"), ("t.a", "t.a_idx")):
        with pytest.raises(OSError, match=rf"Cannot cast column.*{names}"):
            ds.alter_columns({"path": path, "data_type": pa.int32()})
    assert library.dataset(tmp_path / "t").version == before
    ds.alter_columns({"path": "t.b", "data_type": pa.large_string()})
    ds.alter_columns({"path": "k", "name": "key"})
    found = {each.name: each.field_names for each in lance.dataset(tmp_path / "t").describe_indices()}
    assert found == {"k_idx": ["key"], "t.a_idx": ["t.a"]}
    assert lance.dataset(tmp_path / "t").to_table(filter="key = 4").num_rows == 1


STRUCTS = {"s": [{"x": 1}, None], "l": [[{"x": 1}, {"x": 2}], []], "k": [[1], None]}


def outcome(library: Any, path: Path, new: pa.Schema, version: str) -> Any:
    lance.write_dataset(pa.table(STRUCTS), path, data_storage_version=version)
    ds = library.dataset(path)
    try:
        ds.add_columns(new)
    except OSError:
        return "refused"
    except lancetable.AlreadyExistsError:
        return "refused"
    return ds.schema, ds.to_table().to_pylist(), lance.dataset(path).to_table().to_pylist()


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize(
    "new",
    [
        pa.field("s", pa.struct([("y", pa.string())])),
        pa.field("s", pa.struct([("z", pa.struct([("q", pa.int64())]))])),
        pa.field("l", pa.list_(pa.struct([("y", pa.string())]))),
        pa.field("s", pa.struct([("x", pa.int64())])),
        pa.field("l", pa.list_(pa.int64())),
        pa.field("k", pa.list_(pa.int64())),
        pa.field("s", pa.int64()),
    ],
)
def test_null_fields_are_added_to_structs_and_to_items_of_lists_as_in_pylance(
    tmp_path: Path, new: pa.Field, version: str
) -> None:
    ours, theirs = (outcome(each, tmp_path / each.__name__, pa.schema([new]), version) for each in (lancetable, lance))
    assert ours == theirs


def test_integers_become_doubles_and_dates_timestamps(tmp_path: Path) -> None:
    columns = {"i": pa.array([1, 2**53]), "d": pa.array([1, None], pa.date32()), "big": [1, 2**53 + 1]}
    ds = lancetable.write_dataset(pa.table(columns), tmp_path / "t")
    ds.alter_columns({"path": "i", "data_type": pa.float64()}, {"path": "d", "data_type": pa.timestamp("us")})
    assert lance.dataset(ds.uri).to_table(columns=["i", "d"]).to_pylist() == [
        {"i": 1.0, "d": datetime(1970, 1, 2)},
        {"i": 2.0**53, "d": None},
    ]
    with pytest.raises(lancetable.SchemaMismatchError, match="'big' cannot be converted to double"):
        ds.alter_columns({"path": "big", "data_type": pa.float64()})
