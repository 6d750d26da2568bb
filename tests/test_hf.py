"""Data sets of Hugging Face: written with their features and row order, read back, and converted to tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable import hf
from lancetable.errors import InvalidInputError, InvalidOperationError, SchemaMismatchError

datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install 'lancetable[huggingface]'")


@pytest.fixture(scope="module")
def rows() -> Any:
    image = pytest.importorskip("PIL.Image")
    features = datasets.Features(
        {
            "id": datasets.Value("int64"),
            "text": datasets.Value("string"),
            "image": datasets.Image(),
            "vector": datasets.Sequence(datasets.Value("float32"), length=2),
            "label": datasets.ClassLabel(names=["no", "yes"]),
        }
    )
    columns = {
        "id": list(range(6)),
        "text": list("abcdef"),
        "image": [*(image.new("RGB", (2, 3), color=number) for number in range(5)), None],
        "vector": np.arange(12, dtype=np.float32).reshape(6, 2).tolist(),
        "label": [0, 1] * 3,
    }
    return datasets.Dataset.from_dict(columns, features=features)


def test_a_data_set_is_written_with_its_features(rows: Any, tmp_path: Path) -> None:
    ds = lancetable.write_dataset(rows, tmp_path / "t")
    assert ds.schema.equals(rows.features.arrow_schema, check_metadata=True)
    assert ds.to_table(columns=["id", "text"]).to_pydict() == rows.select_columns(["id", "text"]).to_dict()
    ds.insert(rows)
    assert ds.count_rows() == 12


def test_selected_rows_are_written_in_their_order(rows: Any, tmp_path: Path) -> None:
    chosen = rows.select([4, 0, 2])
    assert lancetable.write_dataset(chosen, tmp_path / "t").to_table()["id"].to_pylist() == [4, 0, 2]
    shuffled = rows.shuffle(seed=1)
    ds = lancetable.write_dataset(shuffled, tmp_path / "t", mode="overwrite")
    assert ds.to_table()["id"].to_pylist() == shuffled["id"][:] != list(range(6))


def test_a_streamed_data_set_is_written(rows: Any, tmp_path: Path) -> None:
    stream = rows.to_iterable_dataset().filter(lambda row: row["id"] != 3)
    ds = lancetable.write_dataset(stream, tmp_path / "t")
    assert ds.to_table()["id"].to_pylist() == [0, 1, 2, 4, 5]
    without_features = datasets.IterableDataset.from_generator(lambda: iter([{"id": 1}])).map(lambda row: row)
    assert without_features.features is None
    with pytest.raises(InvalidInputError, match="pass the argument schema"):
        lancetable.write_dataset(without_features, tmp_path / "u")
    ds = lancetable.write_dataset(without_features, tmp_path / "u", schema=pa.schema([("id", pa.int8())]))
    assert ds.to_table().to_pydict() == {"id": [1]}


def test_splits_are_refused(rows: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"DatasetDict has several splits \(train, test\)"):
        lancetable.write_dataset(datasets.DatasetDict(train=rows, test=rows), tmp_path / "t")


def test_a_data_set_that_does_not_fit_the_schema_is_refused(rows: Any, tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatchError):
        lancetable.write_dataset(rows, tmp_path / "t", schema=pa.schema([("id", pa.int64())]))


def test_a_table_is_read_as_a_data_set(rows: Any, tmp_path: Path) -> None:
    lancetable.write_dataset(rows, tmp_path / "t", max_rows_per_file=2)
    found = hf.to_dataset(tmp_path / "t")
    assert found.features == rows.features and found[:] == rows[:]
    part = hf.to_dataset(tmp_path / "t", columns=["label"], filter="id > 2")
    assert part.features == {"label": rows.features["label"]} and part["label"][:] == [1, 0, 1]


def test_a_table_is_streamed_as_a_data_set(rows: Any, tmp_path: Path) -> None:
    ds = lancetable.write_dataset(rows, tmp_path / "t", max_rows_per_file=2)
    found = hf.to_iterable_dataset(ds)
    assert found.features == rows.features and found.num_shards == 3
    ds.delete("id = 1")
    assert list(found) == list(rows), "the version is pinned"
    part = hf.to_iterable_dataset(ds, columns=["id"], filter="id < 4")
    assert [row["id"] for row in part] == [0, 2, 3]
    split = pytest.importorskip("datasets.distributed").split_dataset_by_node
    both = [[row["id"] for row in split(found, rank, 2)] for rank in range(2)]
    assert sorted(both[0] + both[1]) == list(range(6))


def test_images_are_decoded_for_training(rows: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'lancetable[torch]'")
    from lancetable.torch.data import LanceDataset

    lancetable.write_dataset(rows, tmp_path / "t")
    first, second = LanceDataset(tmp_path / "t", 3, columns=["id", "image", "vector", "label"])
    assert [image.size for image in first["image"]] == [(2, 3)] * 3 and second["image"][2] is None
    assert np.asarray(first["image"][1]).tolist() == np.asarray(rows[1]["image"]).tolist()
    assert second["vector"].tolist() == [[6, 7], [8, 9], [10, 11]] and second["label"].tolist() == [1, 0, 1]


def test_tables_without_images_need_no_converter(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(datasets.Dataset.from_dict({"id": [1]}), tmp_path / "t")
    assert hf.converter_of(ds.schema) is None and hf.converter_of(pa.schema([("id", pa.int64())])) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"info": [1]}', '{"info": {"features": [1]}}', "[" * 9000])
def test_malformed_descriptions_of_data_sets_name_the_metadata(text: str) -> None:
    schema = pa.schema([("id", pa.int64())], metadata={"huggingface": text})
    with pytest.raises(InvalidOperationError, match="schema metadata 'huggingface'"):
        hf.converter_of(schema)


def test_a_stream_with_a_default_limit_is_refused(rows: Any, tmp_path: Path) -> None:
    uri = lancetable.write_dataset(rows, tmp_path / "t", max_rows_per_file=2).uri
    limited = lancetable.dataset(uri, default_scan_options={"limit": 3})
    assert len(hf.to_dataset(limited)) == 3
    with pytest.raises(InvalidOperationError, match="default scan options limit; use to_dataset"):
        hf.to_iterable_dataset(limited)
    filtered = lancetable.dataset(uri, default_scan_options={"filter": "id > 2"})
    assert [row["id"] for row in hf.to_iterable_dataset(filtered, columns=["id"])] == [3, 4, 5]
