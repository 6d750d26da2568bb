"""Descriptions of secondary indexes equal those of pylance for every type of index that it builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable import index_metadata
from lancetable.errors import CorruptFileError
from lancetable.format.index import IndexMetadata

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SCALAR = {
    "BTREE": "n",
    "BITMAP": "s",
    "LABEL_LIST": "l",
    "NGRAM": "s",
    "ZONEMAP": "n",
    "BLOOMFILTER": "n",
    "INVERTED": "s",
}
VECTOR: dict[str, dict[str, Any]] = {
    "IVF_FLAT": {"metric": "dot"},
    "IVF_PQ": {"metric": "cosine", "num_sub_vectors": 2},
    "IVF_SQ": {},
    "IVF_RQ": {},
    "IVF_HNSW_SQ": {"metric": "cosine"},
    "IVF_HNSW_PQ": {"num_sub_vectors": 2},
}


def rows(first: int, count: int) -> pa.Table:
    vectors = np.random.default_rng(first).random(count * 8, dtype=np.float32)
    return pa.table(
        {
            "n": pa.array(range(first, first + count), pa.int64()),
            "s": [f"word{i % 7} text" for i in range(count)],
            "l": [[f"t{i % 3}"] for i in range(count)],
            "p": [{"a.b": i} for i in range(count)],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 8),
        }
    )


def describe(index: Any) -> dict[str, Any]:
    names = ("name", "type_url", "index_type", "num_rows_indexed", "fields", "field_names", "details")
    facts = {name: getattr(index, name) for name in (*names, "total_size_bytes")}
    segments = ("uuid", "dataset_version_at_last_update", "index_version", "created_at", "size_bytes", "base_id")
    facts["segments"] = [
        {"fragments": set(segment.fragment_ids)} | {name: getattr(segment, name) for name in segments}
        for segment in index.segments
    ]
    return facts


def compare(uri: str) -> list[str]:
    theirs, ours = lance.dataset(uri), lancetable.dataset(uri)
    assert [describe(each) for each in ours.describe_indices()] == [
        describe(each) for each in theirs.describe_indices()
    ]
    assert ours.list_indices() == theirs.list_indices()
    assert ours.has_index == theirs.has_index
    return [each.index_type for each in ours.describe_indices()]


@pytest.mark.parametrize("stable", [False, True])
def test_scalar_indexes(stable: bool, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    ds = lance.write_dataset(rows(0, 300), uri, max_rows_per_file=100, enable_stable_row_ids=stable)
    for kind, column in SCALAR.items():
        ds.create_scalar_index(column, kind, name=f"of {kind}")
    ds.create_scalar_index("p.`a.b`", "BTREE")
    ds.create_scalar_index("s", "INVERTED", name="code", base_tokenizer="code", index_operators=True)
    ds.create_scalar_index("s", "INVERTED", name="french", language="French", with_position=True, block_size=256)
    lance.write_dataset(rows(300, 50), uri, mode="append").delete("n % 10 = 0")
    ds = lance.dataset(uri)
    ds.optimize.optimize_indices(index_names=["of BTREE"], num_indices_to_merge=0)
    found = compare(uri)
    assert sorted(set(found)) == ["BTree", "Bitmap", "BloomFilter", "Inverted", "LabelList", "NGram", "ZoneMap"]
    segments = [len(each.segments) for each in lancetable.dataset(uri).describe_indices()]
    assert sorted(segments) == [1] * (len(found) - 1) + [2]


def test_vector_indexes(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    ds = lance.write_dataset(rows(0, 600), uri)
    for kind, arguments in VECTOR.items():
        ds.create_index("v", kind, name=kind, num_partitions=2, **arguments)
    assert sorted(compare(uri)) == sorted(VECTOR)


def test_table_without_indexes(tmp_path: Path) -> None:
    lance.write_dataset(rows(0, 3), tmp_path / "t")
    assert compare(str(tmp_path / "t")) == []


def test_table_of_the_golden_set() -> None:
    golden = Path(__file__).parents[1] / "golden" / "tables" / "indexed-2.0"
    assert compare(str(golden)) == ["BTree"]


def test_damaged_settings_are_refused() -> None:
    for url in ("/lance.index.pb.VectorIndexDetails", "/lance.table.InvertedIndexDetails"):
        with pytest.raises(CorruptFileError, match="index 'x': malformed settings"):
            index_metadata.describe_settings(url, b"\x0a\xff", "x")
    with pytest.raises(CorruptFileError, match="malformed settings"):
        index_metadata.describe_settings("/lance.table.InvertedIndexDetails", b'\x12\x01"', "x")
    assert index_metadata.describe_settings("", b"", "x") == ("Unknown", {})
    assert index_metadata.describe_settings("/lance.index.pb.VectorIndexDetails", b"", "x") == ("Vector", {})


def test_impossible_times_are_refused() -> None:
    entry = IndexMetadata(uuid4(), "x", created_at_ms=(1 << 64) - 1)
    with pytest.raises(CorruptFileError, match="index 'x' was created"):
        index_metadata.Index.from_format(entry)


def test_an_index_on_a_dropped_column_is_described_and_removed_by_the_next_commit(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    stale = lance.write_dataset(rows(0, 3), uri)
    lancetable.dataset(uri).drop_columns(["n"])
    stale.create_scalar_index("n", "BTREE")
    ds = lancetable.dataset(uri)
    (index,) = ds.describe_indices()
    assert (index.name, index.field_names, len(index.fields)) == ("n_idx", [], 1)
    assert ds.count_rows("s = 'a'") == ds.to_table(filter="s = 'a'").num_rows
    with pytest.raises(ValueError, match="did not exist in the schema"):
        lance.dataset(uri).to_table(filter="s = 'a'")
    ds.update_config({"a": "b"})
    assert not ds.has_index
    assert lance.dataset(uri).to_table(filter="s = 'a'").num_rows == ds.count_rows("s = 'a'")
