"""Tables of version 0.1 compared with pylance: bytes of every type, filters over many batches, and changes."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import UnsupportedFeatureError
from lancetable.proto import file_pb2, table_pb2
from tests.support.legacy import TYPES, column


def parts(path: Path) -> tuple[bytes, file_pb2.Metadata, table_pb2.Manifest]:
    """Return the bytes before the embedded manifest, the metadata, and the manifest without its writer's name."""
    data = path.read_bytes()
    (at,) = struct.unpack("<q", data[-16:-8])
    metadata = file_pb2.Metadata.FromString(data[at + 4 : -16])
    start = metadata.manifest_position
    manifest = table_pb2.Manifest.FromString(data[start + 4 : at])
    manifest.writer_version.Clear()
    return data[:start], metadata, manifest


def files(uri: Path) -> list[Path]:
    return [uri / "data" / fragment.data_files()[0].path for fragment in lance.dataset(uri).get_fragments()]


def same_rows(ours: pa.Table, theirs: pa.Table) -> bool:
    return ours.schema.equals(theirs.schema) and repr(ours.to_pylist()) == repr(theirs.to_pylist())


@pytest.mark.parametrize("kinds", [[name] for name in TYPES] + [list(TYPES)], ids=lambda kinds: kinds[0][:20])
def test_files_have_the_bytes_of_pylance(kinds: list[str], tmp_path: Path) -> None:
    rng = np.random.default_rng(len(kinds[0]))
    for rows, group, file_rows in ((1, 1024, 1000), (230, 50, 120)):
        table = pa.table({"id": range(rows), **{name: column(TYPES[name], rows, rng) for name in kinds}})
        places = {library: tmp_path / f"{library.__name__}-{rows}" for library in (lance, lancetable)}
        for library, uri in places.items():
            library.write_dataset(
                table, uri, data_storage_version="0.1", max_rows_per_group=group, max_rows_per_file=file_rows
            )
        for our, their in zip(files(places[lancetable]), files(places[lance]), strict=True):
            assert parts(our) == parts(their)
        for uri in places.values():
            assert same_rows(lancetable.dataset(uri).to_table(), lance.dataset(uri).to_table())
            taken = sorted({0, rows - 1, rows // 2})
            if "bits" not in kinds:  # pylance cannot take rows of this type
                assert same_rows(lancetable.dataset(uri).take(taken), lance.dataset(uri).take(taken))


def test_dictionaries_are_extended_by_both_libraries(tmp_path: Path) -> None:
    """Both libraries append to the dictionary values in the manifest."""
    uri = tmp_path / "t"
    items = pa.array(["red", "green"])

    def rows(*numbers: int) -> pa.Table:
        return pa.table({"d": pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int8()), items)})

    lance.write_dataset(rows(0, 1, 1), uri, data_storage_version="0.1")
    lancetable.write_dataset(rows(1, 0), uri, mode="append")
    lance.write_dataset(rows(0), uri, mode="append")
    lancetable.dataset(uri).delete("d = 'green'")
    expected = ["red", "red", "red"]
    assert lance.dataset(uri).to_table().column("d").to_pylist() == expected
    assert lancetable.dataset(uri).to_table().column("d").to_pylist() == expected
    items = pa.array(["red", "green", "blue"])
    lancetable.dataset(uri).insert(rows(2))
    assert lance.dataset(uri).to_table().column("d").to_pylist() == [*expected, "blue"]
    lance.dataset(uri).delete("d = 'blue'")
    assert lancetable.dataset(uri).to_table().column("d").to_pylist() == expected


PREDICATES = [
    "id < 40",
    "id IN (7, 300, 5000)",
    "s = 'k700'",
    "s LIKE 'k9%'",
    "f > 0.99",
    "NOT (id > 3)",
    "b AND f < 0.1",
]


@pytest.mark.parametrize("writer", [lance, lancetable], ids=lambda module: module.__name__)
def test_filters_over_many_batches_equal_pylance(writer: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    n = 6000
    order = np.sort(rng.integers(0, 1000, n))
    table = pa.table(
        {
            "id": pa.array(range(n)),
            "s": pa.array([None if i % 9 == 0 else f"k{each}" for i, each in enumerate(order.tolist())]),
            "f": pa.array(rng.random(n)),
            "b": pa.array(rng.random(n) < 0.5),
        }
    )
    writer.write_dataset(table, tmp_path / "t", data_storage_version="legacy", max_rows_per_file=4000)
    ours, theirs = lancetable.dataset(tmp_path / "t"), lance.dataset(tmp_path / "t")
    for predicate in PREDICATES:
        options: dict[str, Any] = {"filter": predicate, "with_row_id": True}
        assert ours.to_table(**options).equals(theirs.to_table(**options)), predicate
    rows = rng.choice(n, 500, replace=False).tolist()
    assert same_rows(ours.take(rows), theirs.take(rows))
    shutil.rmtree(tmp_path / "t")


CHANGES: dict[str, Any] = {
    "append": lambda ds: ds.insert(ds.to_table(limit=2)),
    "update": lambda ds: ds.update({"s": "'u'"}, where="id < 7"),
    "merge": lambda ds: (
        ds.merge_insert("id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute(ds.to_table(limit=5).set_column(0, "id", pa.array([0, 1, 2, 200, 201])))
    ),
    "compact": lambda ds: ds.optimize.compact_files(),
    "add columns": lambda ds: ds.add_columns({"twice": "id * 2", "up": "upper(s)"}),
    "drop": lambda ds: ds.drop_columns(["s", "p.a"]),
    "rename": lambda ds: ds.alter_columns({"path": "s", "name": "t"}),
    "cast": lambda ds: ds.alter_columns({"path": "id", "data_type": pa.int32()}),
    "overwrite": lambda ds: lancetable.write_dataset(ds.to_table(limit=3), ds.uri, mode="overwrite"),
    "overwrite in 2.1": lambda ds: lancetable.write_dataset(
        ds.to_table(limit=3), ds.uri, mode="overwrite", data_storage_version="2.1"
    ),
    "restore": lambda ds: ds.checkout_version(1).restore(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_legacy_tables_are_read_by_both_libraries(name: str, tmp_path: Path) -> None:
    numbers = pa.array([i % 3 for i in range(30)], pa.int8())
    table = pa.table(
        {
            "id": range(30),
            "s": [f"s{i}" for i in range(30)],
            "d": pa.DictionaryArray.from_arrays(numbers, ["x", "y", "z"]),
            "p": [{"a": i, "b": f"b{i}"} for i in range(30)],
        }
    )
    uri = tmp_path / "t"
    lancetable.write_dataset(table, uri, data_storage_version="0.1", max_rows_per_file=10, max_rows_per_group=4)
    lancetable.dataset(uri).delete("id IN (3, 4, 15)")
    CHANGES[name](lancetable.dataset(uri))
    expected = lance.dataset(uri).to_table(with_row_id=True)
    assert same_rows(lancetable.dataset(uri).to_table(with_row_id=True), expected)
    assert lancetable.dataset(uri).data_storage_version == lance.dataset(uri).data_storage_version
    lance.dataset(uri).delete("id = 1" if name != "drop" else "d = 'x'")
    assert lancetable.dataset(uri).count_rows() == lance.dataset(uri).count_rows() < expected.num_rows


def test_changes_that_produce_nulls_are_refused(tmp_path: Path) -> None:
    dataset = lancetable.write_dataset(pa.table({"id": [1, 2]}), tmp_path / "t", data_storage_version="0.1")
    for change in (lambda: dataset.update({"id": "null"}), lambda: dataset.add_columns({"x": "nullif(id, 1)"})):
        with pytest.raises(UnsupportedFeatureError, match="null"):
            change()
    dataset.add_columns({"twice": "id * 2"})
    with pytest.raises(UnsupportedFeatureError, match="'id' is missing"):
        dataset.insert(pa.table({"twice": [1]}))
    dataset.drop_columns(["twice"])
    assert lance.dataset(tmp_path / "t").to_table().to_pydict() == {"id": [1, 2]}
    assert len(list((tmp_path / "t" / "data").iterdir())) == 2
