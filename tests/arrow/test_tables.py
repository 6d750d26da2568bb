"""Columns of extension types in tables: written and read by both libraries, with their imports in any order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable
import lancetable.arrow as arrow
from lancetable.format.arrow_extensions import restore_extension

TABLE = """
import sys, numpy as np, pyarrow as pa

def table(arrow):
    numbers = arrow.bfloat16_array([1.1, None, 3.4, 5.0])
    dense = arrow.bfloat16_array([float(number) for number in range(12)])
    vectors = pa.FixedSizeListArray.from_arrays(dense, 3)
    uris = arrow.ImageURIArray.from_uris(["a", "b", "c", "d"])
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 2, 2)
    return pa.table({
        "number": numbers,
        "vector": vectors,
        "tensor": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(dense.type, [3]), vectors),
        "list": pa.ListArray.from_arrays([0, 1, 2, 3, 4], dense[:4]),
        "uri": uris,
        "encoded": arrow.ImageArray.from_array(pa.array([b"a", None, b"c", b"d"])),
        "pixels": arrow.ImageArray.from_array(pa.FixedShapeTensorArray.from_numpy_ndarray(pixels)),
        "struct": pa.StructArray.from_arrays([numbers, uris], ["x", "y"]),
    })
"""
namespace: dict[str, object] = {}
exec(TABLE, namespace)
ORDERS = {
    "lancetable": "import lancetable as writer, lancetable.arrow as arrow; reader = writer",
    "lancetable, lance writes": "import lancetable.arrow as arrow, lancetable as reader, lance.arrow, lance as writer",
    "lance writes, lancetable": "import lance.arrow, lance as writer, lancetable.arrow as arrow, lancetable as reader",
    "lancetable, lance reads": "import lancetable.arrow as arrow, lancetable as writer, lance.arrow, lance as reader",
    "lance reads, lancetable": "import lance.arrow, lance as reader, lancetable.arrow as arrow, lancetable as writer",
}
CHECK = """
expected = table(arrow)
for version in ("2.0", "2.1", "2.2"):
    writer.write_dataset(expected, f"{sys.argv[1]}/{version}", data_storage_version=version)
    found = reader.dataset(f"{sys.argv[1]}/{version}").to_table()
    assert found.schema.equals(expected.schema), (found.schema, expected.schema)
    assert found.equals(expected)
    assert {type(found[name].chunk(0)) for name in found.column_names} == {
        type(expected[name].chunk(0)) for name in found.column_names
    }
    assert all(isinstance(found[name].type, pa.BaseExtensionType) for name in ("number", "tensor", "uri"))
    # casts work for the types of either library
    assert arrow.cast(found["number"], "float32").to_pylist()[0] == 1.1015625
    vectors = arrow.cast(found["vector"].combine_chunks(), pa.list_(pa.float32(), 3))
    assert vectors.to_pylist()[1] == [3.0, 4.0, 5.0]
"""


@pytest.mark.parametrize("order", ORDERS)
def test_columns_are_read_as_the_same_arrays_in_any_order_of_imports(tmp_path: Path, order: str) -> None:
    if "lance " in order:  # pylance
        pytest.importorskip("lance")
    script = TABLE + ORDERS[order] + CHECK
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(tmp_path)], check=True)


def test_the_library_of_arrays_is_chosen_by_the_registered_name() -> None:
    pytest.importorskip("lance")
    code = "import {}; print(type(lancetable.arrow.bfloat16_array([1])).__module__)"
    for modules, module in [
        ("lancetable.arrow", "lancetable.arrow.bfloat16"),
        ("lancetable.arrow, lance.arrow", "lance."),
    ]:
        command = [sys.executable, "-W", "ignore", "-c", code.format(modules)]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith(module)


def test_without_the_import_columns_are_read_as_their_storage(tmp_path: Path) -> None:
    lancetable.write_dataset(pa.table({"x": arrow.bfloat16_array([1, 2])}), tmp_path / "t")
    code = f"import lancetable; print(lancetable.dataset({str(tmp_path / 't')!r}).schema.field('x').type)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "fixed_size_binary[2]"


def test_schemas_as_json_keep_the_types() -> None:
    schema = namespace["table"](arrow).schema  # type: ignore[operator]
    assert lancetable.json_to_schema(lancetable.schema_to_json(schema)).equals(schema)


def test_every_change_of_rows_keeps_the_arrays(tmp_path: Path) -> None:
    rows = namespace["table"](arrow).add_column(0, "id", pa.array([1, 2, 3, 4]))  # type: ignore[operator]
    ds = lancetable.write_dataset(rows, tmp_path / "t")
    ds.insert(rows.set_column(0, "id", pa.array([5, 6, 7, 8])))
    ds.delete("id = 6")
    ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
        pa.concat_tables([rows.slice(0, 1), rows.slice(1, 1).set_column(0, "id", pa.array([9]))])
    )
    ds.update({"uri": "'e'"}, where="id = 3")
    ds.optimize.compact_files()
    found = ds.to_table().sort_by("id")
    assert found.schema.equals(rows.schema) and found["id"].to_pylist() == [1, 2, 3, 4, 5, 7, 8, 9]
    expected = rows.take([0, 1, 2, 3, 0, 2, 3, 1])
    assert found.drop_columns(["id", "uri"]).equals(expected.drop_columns(["id", "uri"]))
    assert found["uri"].to_pylist() == ["a", "b", "e", "d", "a", "c", "d", "b"]
    assert ds.to_table(columns=["uri"], filter="uri = 'e'")["uri"].type == rows["uri"].type
    assert ds.take([0], columns=["number"])["number"].type == rows["number"].type
    assert ds.to_table(columns=["struct.x"]).schema.field("struct.x").type == rows["number"].type


@pytest.mark.parametrize(
    ("name", "storage", "metadata"),
    [
        ("lance.bfloat16", pa.binary(3), ""),
        ("lance.arrow.image_uri", pa.binary(), ""),
        ("lance.arrow.encoded_image", pa.int8(), ""),
        ("lance.arrow.fixed_shape_image_tensor", pa.list_(pa.uint8(), 4), "{"),
        ("lance.arrow.fixed_shape_image_tensor", pa.list_(pa.uint8(), 4), "[" * 100_000),
        ("lance.arrow.fixed_shape_image_tensor", pa.list_(pa.uint8(), 4), "{}"),
        ("lance.arrow.fixed_shape_image_tensor", pa.list_(pa.uint8(), 4), '{"shape": [5]}'),
        ("lance.arrow.fixed_shape_image_tensor", pa.list_(pa.uint8(), 4), '{"shape": [-2, -2]}'),
        ("lance.arrow.fixed_shape_image_tensor", pa.list_(pa.uint8(), 4), '{"shape": ["a", 4]}'),
        ("lance.arrow.fixed_shape_image_tensor", pa.list_(pa.uint8(), 4), '{"shape": 4}'),
        ("lance.arrow.fixed_shape_image_tensor", pa.uint8(), '{"shape": [4]}'),
    ],
)
def test_a_field_that_does_not_fit_its_extension_type_is_read_as_its_storage(
    theirs: Any, name: str, storage: pa.DataType, metadata: str
) -> None:
    field = pa.field("x", storage, metadata={"ARROW:extension:name": name, "ARROW:extension:metadata": metadata})
    assert restore_extension(field).equals(field, check_metadata=True)


def test_a_registered_type_that_ignores_the_storage_is_not_used(tmp_path: Path) -> None:
    pytest.importorskip("lance.arrow")  # its type of bfloat16 numbers accepts any storage
    metadata = {"ARROW:extension:name": "lance.bfloat16", "ARROW:extension:metadata": ""}
    rows = pa.table(
        {"x": pa.array([b"abc"], pa.binary(3))}, schema=pa.schema([pa.field("x", pa.binary(3), True, metadata)])
    )
    assert lancetable.write_dataset(rows, tmp_path / "t").to_table()["x"].to_pylist() == [b"abc"]
