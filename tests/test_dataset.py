"""The main calls of the public API: `LanceDataset`, `dataset()` and `write_dataset()`."""

from __future__ import annotations

import copy
import math
import pickle
import time
import warnings
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest

import lancetable as lance
from lancetable import LanceDataset, LanceOperation
from lancetable.dataset import ColumnOrdering, ScannerBuilder
from lancetable.errors import IndexNotFoundError
from lancetable.fragment import write_fragments
from lancetable.progress import FileSystemFragmentWriteProgress, FragmentWriteProgress, NoopFragmentWriteProgress

TABLE = pa.table({"id": pa.array(range(10), pa.int64()), "s": [f"v{i}" for i in range(10)]})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


@pytest.fixture
def ds(uri: str) -> LanceDataset:
    """Write ten rows in fragments of 4, 4 and 2."""
    return lance.write_dataset(TABLE, uri, max_rows_per_file=4)


def ids(dataset: Any, **arguments: Any) -> list[int]:
    return dataset.to_table(columns=["id"], **arguments)["id"].to_pylist()


# ------------------------------------------------------------------------------------------------- opening and state


def test_properties_of_a_new_table(ds: LanceDataset, uri: str) -> None:
    assert (ds.uri, ds.version, ds.latest_version) == (uri, 1, 1)
    assert ds.schema == TABLE.schema == ds.lance_schema.to_pyarrow()
    assert (ds.data_storage_version, ds.max_field_id, ds.has_stable_row_ids, ds.has_index) == ("2.2", 1, False, False)
    assert (len(ds), ds.count_rows(), ds.fragment_ids()) == (10, 10, {0, 1, 2})
    assert (ds.schema_metadata, ds.metadata, ds.config(), ds.base_paths()) == ({}, {}, {}, {})
    assert ds.initial_storage_options is None and ds.latest_storage_options() is None
    assert ds.to_table() == TABLE


def test_config_and_metadata_are_sorted_by_key(tmp_path: Path) -> None:
    values = {f"key.{number:02}": str(number) for number in range(20)}
    ds = lance.write_dataset(TABLE, str(tmp_path / "t"))
    for update in (ds.update_config, ds.update_metadata, ds.update_schema_metadata):
        update(dict(reversed(values.items())))
    for found in (ds.config(), ds.metadata, ds.schema_metadata):
        assert list(found.items()) == list(values.items())


def test_versions_have_counts_as_strings_and_local_times(ds: LanceDataset) -> None:
    ds.delete("id = 1")
    first, second = ds.versions()
    assert (first["version"], second["version"]) == (1, 2)
    assert second["metadata"] == {
        "total_data_file_rows": "10",
        "total_data_files": "3",
        "total_deletion_file_rows": "1",
        "total_deletion_files": "1",
        "total_files_size": first["metadata"]["total_files_size"],
        "total_fragments": "3",
        "total_rows": "9",
    }
    assert second["timestamp"].tzinfo is None
    assert abs(datetime.now() - second["timestamp"]) < timedelta(minutes=1)
    assert ds.get_version() == second
    assert ds.version_refs() == [{"version": 1}, {"version": 2}]


def test_a_dataset_stays_at_its_version(ds: LanceDataset, uri: str) -> None:
    other = lance.dataset(uri)
    other.insert(TABLE)
    assert (ds.version, ds.latest_version, ds.count_rows()) == (1, 2, 10)
    ds.checkout_latest()
    assert (ds.version, ds.count_rows()) == (2, 20)
    ds.checkout_latest()
    assert ds.version == 2


def test_opening_by_version_tag_and_time(ds: LanceDataset, uri: str) -> None:
    first = ds.get_version()["timestamp"]
    time.sleep(0.01)
    ds.insert(TABLE)
    ds.tags.create("old", 1)
    assert lance.dataset(uri, version=1).count_rows() == 10
    assert lance.dataset(uri, version="old").version == 1
    assert lance.dataset(Path(uri)).version == 2
    assert lance.dataset(uri, asof=first).version == 1
    assert lance.dataset(uri, asof=first.isoformat(sep=" ")).version == 1
    assert lance.dataset(uri, asof=datetime.now(timezone.utc)).version == 2
    # A version wins over a time, as in pylance.
    assert lance.dataset(uri, version=2, asof=first).version == 2
    for reference, version in ((1, 1), ("old", 1), ((None, 1), 1), ((None, None), 2), (("main", 1), 1)):
        assert ds.checkout_version(reference).version == version
    assert ds.version == 2


def test_restore_makes_an_old_version_the_newest(ds: LanceDataset, uri: str) -> None:
    ds.delete("id < 5")
    old = lance.dataset(uri, version=1)
    old.restore()
    assert (old.version, old.count_rows(), lance.dataset(uri).count_rows()) == (3, 10, 10)


def test_datasets_pickle_with_their_version(ds: LanceDataset, uri: str) -> None:
    scanned = lance.dataset(uri, default_scan_options={"with_row_id": True}, storage_options={"fsync": "false"})
    data = pickle.dumps(scanned)
    ds.insert(TABLE)
    again = pickle.loads(data)
    assert (again.version, again.uri, again.count_rows()) == (1, uri, 10)
    assert again.schema == scanned.schema
    assert again.initial_storage_options == {"fsync": "false"}
    assert copy.copy(ds).version == 2


def test_sessions_share_their_cache(ds: LanceDataset, uri: str) -> None:
    session = lance.Session(metadata_cache_size_bytes=10_000_000)
    one, other = (lance.dataset(uri, session=session) for _ in range(2))
    one.to_table()
    assert one.session().is_same_as(session) and other.session().is_same_as(one.session())
    assert not ds.session().is_same_as(session)
    assert session.size_bytes() > 0 and session.index_cache_size_bytes() == 0
    assert "Session(" in repr(session)


def test_repr_shows_the_table_and_html_is_escaped(tmp_path: Path) -> None:
    ds = lance.write_dataset(pa.table({"<b>&": [1]}), tmp_path / "<script>")
    assert "rows=1" in repr(ds) and "<b>&: int64" in repr(ds)
    page = ds._repr_html_()
    assert "&lt;b&gt;&amp;" in page and "<script>" not in page and "&lt;script&gt;" in page


def test_identity_and_hash(ds: LanceDataset, uri: str) -> None:
    assert ds == ds and ds != lance.dataset(uri) and len({ds, ds}) == 1


# ----------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("condition", ["id > 6", pc.field("id") > 6])
def test_projection_and_filter(ds: LanceDataset, condition: Any) -> None:
    assert ds.to_table(columns=["s"], filter=condition).to_pydict() == {"s": ["v7", "v8", "v9"]}
    assert ds.to_table(columns={"twice": "id * 2"}, filter=condition)["twice"].to_pylist() == [14, 16, 18]
    assert ds.count_rows(condition) == ds.scanner(filter=condition).count_rows() == 3
    assert pa.Table.from_batches(ds.to_batches(["s"], condition)).num_rows == 3
    assert ds.to_pandas(columns=["id"], filter=condition)["id"].tolist() == [7, 8, 9]


def test_limit_offset_order_and_batches(ds: LanceDataset) -> None:
    assert ids(ds, limit=3, offset=2) == [2, 3, 4]
    assert ids(ds, order_by=[ColumnOrdering("id", ascending=False)], limit=2) == [9, 8]
    assert ids(ds, order_by=["s"], offset=8) == [8, 9]
    assert [b.num_rows for b in ds.to_batches(batch_size=3, strict_batch_size=True)] == [3, 3, 3, 1]
    assert ids(ds, limit=0) == [] and ids(ds, offset=99) == []
    chosen = ds.scanner(columns=["id"], fragments=[ds.get_fragment(1), ds.get_fragment(2)]).to_table()
    assert chosen["id"].to_pylist() == [4, 5, 6, 7, 8, 9]


def test_virtual_columns(ds: LanceDataset) -> None:
    ds.delete("id = 4")
    table = ds.to_table(columns=["id", "_rowoffset"], filter="id IN (3, 5)", with_row_id=True, with_row_address=True)
    assert table.to_pydict() == {
        "id": [3, 5],
        "_rowoffset": [3, 4],
        "_rowid": [3, (1 << 32) + 1],
        "_rowaddr": [3, (1 << 32) + 1],
    }
    deleted = ds.to_table(columns=["id"], filter="id IN (3, 4)", with_row_id=True, include_deleted_rows=True)
    assert deleted.to_pydict() == {"id": [3, 4], "_rowid": [3, None]}


def test_head_slice_take_and_sample(ds: LanceDataset) -> None:
    ds.delete("id = 1")
    assert ds.head(2, columns=["id"])["id"].to_pylist() == [0, 2]
    assert ds.slice(1, 3, columns=["id"])["id"].to_pylist() == [2, 3]
    assert ds.slice(8, 99)["id"].to_pylist() == [9]
    for wanted in ([8, 0, 0], np.array([8, 0, 0]), pa.array([8, 0, 0])):
        assert ds.take(wanted, columns=["id"])["id"].to_pylist() == [9, 0, 0]
    assert ds.take([], columns=["id"]).num_rows == 0
    assert ds.take([3], columns={"x": "id + 1"})["x"].to_pylist() == [5]
    assert ds.take_row_ids([1 << 32, 1, 0])["id"].to_pylist() == [4, 0]
    assert ds._take_rows([2])["id"].to_pylist() == [2]
    drawn = ds.sample(5, columns=["id"])["id"].to_pylist()
    assert len(set(drawn)) == 5 and 1 not in drawn
    assert ds.sample(9, randomize_order=False)["id"].to_pylist() == [0, 2, 3, 4, 5, 6, 7, 8, 9]


def test_default_scan_options(ds: LanceDataset, uri: str) -> None:
    opened = lance.dataset(uri, default_scan_options={"columns": ["s"], "with_row_id": True, "limit": 4})
    assert opened.schema.names == ["s", "_rowid"]
    assert opened.to_table().shape == (4, 2)
    assert opened.to_table(limit=6, columns=["id"]).shape == (6, 2)
    with pytest.raises(ValueError, match="Unknown option nope"):
        lance.dataset(uri, default_scan_options={"nope": 1}).to_table()


def test_scanner_forms(ds: LanceDataset) -> None:
    scanner = ds.scanner(columns=["id"], filter="id > 2")
    assert scanner.to_reader().read_all() == scanner.to_table()
    assert (scanner.projected_schema, scanner.dataset_schema) == (pa.schema({"id": pa.int64()}), TABLE.schema)
    assert scanner.head(2)["id"].to_pylist() == [3, 4]
    assert ds.scanner(limit=1).head(5).num_rows == 1
    assert "full_filter=id > 2" in scanner.explain_plan() and "Column: id" in scanner.explain_plan(True)
    assert "output_rows=7" in scanner.analyze_plan()
    tagged = list(scanner.scan_batches())
    assert [batch.fragment.fragment_id for batch in tagged] == [0, 1, 2]
    assert sum(batch.record_batch.num_rows for batch in tagged) == 7
    assert "filter='id > 2'" in repr(scanner)
    assert pa.table(scanner).num_rows == 7
    seen: list[Any] = []
    # A new dataset, because another one caches the content of such a small table.
    lance.dataset(ds.uri).scanner(scan_stats_callback=seen.append).to_table()
    assert len(seen) == 1 and isinstance(seen[0], lance.ScanStatistics) and seen[0].bytes_read > 0
    for refused in (
        scanner.take,
        lance.LanceScanner.from_dataset,
        lance.LanceScanner.from_fragment,
        lance.LanceScanner.from_batches,
    ):
        with pytest.raises(NotImplementedError):
            refused([1])
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(scanner)


def test_scanner_builder_chain(ds: LanceDataset) -> None:
    fragments = [ds.get_fragment(2), ds.get_fragment(0)]
    builder = ScannerBuilder(ds).columns(["id"]).filter("id <> 2").with_fragments(fragments).limit(3).offset(1)
    builder = (
        builder.batch_size(2).batch_size_bytes(1 << 20).batch_readahead(2).fragment_readahead(2).io_buffer_size(1 << 20)
    )
    builder = (
        builder.scan_in_order().strict_batch_size(True).use_stats(False).late_materialization(True).use_scalar_index()
    )
    builder = builder.prefilter(True).with_row_id().with_row_address().blob_handling("all_binary").order_by(None)
    table = builder.include_deleted_rows(False).disable_scoring_autoprojection().to_scanner().to_table()
    assert table.column_names == ["id", "_rowid", "_rowaddr"]
    assert table["id"].to_pylist() == [9, 0, 1]


def test_rows_of_every_reading_method_agree(ds: LanceDataset) -> None:
    for read in (
        ds.to_table(),
        pa.Table.from_batches(ds.to_batches()),
        pa.Table.from_pandas(ds.to_pandas(), schema=TABLE.schema),
        pa.table(ds),
        pa.RecordBatchReader.from_stream(ds).read_all(),
        ds.take(range(10)),
        pa.concat_tables(fragment.to_table() for fragment in ds.get_fragments()),
    ):
        assert read.equals(TABLE)


# --------------------------------------------------------------------------------------- the rest of Arrow's Dataset


def test_views_with_complementary_filters_contain_all_rows(ds: LanceDataset) -> None:
    view = ds.filter(pc.field("id") > 2).filter(pc.field("id") < 6)
    assert ids(view) == [3, 4, 5] and view.count_rows() == 3 == len(view)
    assert view.count_rows(pc.field("id") == 4) == 1
    assert ids(view, filter=pc.field("id") != 4) == [3, 5]
    assert ids(view, filter="id <> 4") == [3, 5]
    assert view.head(1)["id"].to_pylist() == [3] and view.slice(1, 3)["id"].to_pylist() == [4, 5]
    assert ds.count_rows() == 10
    with pytest.raises(TypeError):
        ds.filter("id > 2")


def test_sort_and_joins_equal_those_of_arrow(ds: LanceDataset) -> None:
    right = pads.dataset(pa.table({"id": [3, 3], "w": ["a", "b"]}))
    assert ds.sort_by([("id", "descending")]).to_table()["id"].to_pylist() == list(range(9, -1, -1))
    joined = ds.join(right, "id", join_type="inner").to_table()
    assert sorted(joined["w"].to_pylist()) == ["a", "b"]
    near = ds.join_asof(pads.dataset(pa.table({"id": [4], "s": ["v5"], "w": [1]})), "id", "s", -1)
    assert near.to_table().filter(pc.field("w") == 1)["id"].to_pylist() == [5]


def test_partitions_and_schema_views(ds: LanceDataset) -> None:
    assert ds.partition_expression.equals(pc.scalar(True))
    with pytest.raises(NotImplementedError):
        ds.replace_schema(ds.schema)
    with pytest.raises(NotImplementedError):
        ds._scanner_options({})
    assert ds._scan_options == {}
    assert [fragment.fragment_id for fragment in ds._get_fragments(None)] == [0, 1, 2]


# ----------------------------------------------------------------------------------------------------------- writing


def test_modes(uri: str) -> None:
    assert lance.write_dataset(TABLE, uri).version == 1
    assert lance.write_dataset(TABLE, uri, mode="append").count_rows() == 20
    overwritten = lance.write_dataset(pa.table({"q": [1.5]}), uri, mode="overwrite")
    assert (overwritten.version, overwritten.to_table().to_pydict()) == (3, {"q": [1.5]})
    assert lance.dataset(uri, version=2).count_rows() == 20
    assert lance.write_dataset(TABLE, uri, mode="OVERWRITE").version == 4


def test_append_to_nothing_creates_with_a_warning(uri: str) -> None:
    with pytest.warns(UserWarning, match="creating it"):
        assert lance.write_dataset(TABLE, uri, mode="append").version == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lance.write_dataset(TABLE, uri + "2", mode="overwrite")


def test_insert_advances_the_dataset_but_write_dataset_does_not(ds: LanceDataset) -> None:
    ds.insert([{"id": 77, "s": "x"}])
    assert (ds.version, ds.count_rows()) == (2, 11)
    ds.insert(TABLE, mode="overwrite", commit_message="again")
    assert (ds.version, ds.count_rows()) == (3, 10)
    assert ds.read_transaction(3).transaction_properties == {"__lance_commit_message": "again"}
    assert lance.write_dataset(TABLE, ds, mode="append").version == 4
    assert ds.version == 3


def test_a_table_can_be_rewritten_from_its_own_rows(ds: LanceDataset) -> None:
    ds.insert(ds.scanner(filter="id > 4"), mode="overwrite")
    assert ids(ds) == [5, 6, 7, 8, 9]
    ds.insert(ds)
    assert ids(ds) == [5, 6, 7, 8, 9] * 2


def test_append_takes_columns_in_any_order_and_fills_missing_ones(ds: LanceDataset) -> None:
    ds.insert(pa.table({"s": ["w"], "id": [10]}))
    ds.insert(pa.table({"id": [11]}))
    assert ds.to_table(filter="id >= 10").to_pydict() == {"id": [10, 11], "s": ["w", None]}


def test_files_roll_by_rows_and_bytes(uri: str) -> None:
    by_rows = lance.write_dataset(TABLE, uri, max_rows_per_file=3)
    assert [fragment.count_rows() for fragment in by_rows.get_fragments()] == [3, 3, 3, 1]
    wide = pa.table({"x": np.random.default_rng(0).random(400_000)})
    # Files end between batches, as in pylance.
    batches = wide.to_batches(max_chunksize=50_000)
    by_bytes = lance.write_dataset(
        iter(batches),
        uri,
        wide.schema,
        mode="overwrite",
        max_bytes_per_file=1_000_000,
        max_page_bytes=100_000,
        data_cache_bytes=100_000,
    )
    assert len(by_bytes.get_fragments()) == 3 and by_bytes.to_table() == wide


def test_names_of_manifests(tmp_path: Path) -> None:
    lance.write_dataset(TABLE, tmp_path / "v2")
    lance.write_dataset(TABLE, tmp_path / "v1", enable_v2_manifest_paths=False)
    assert (tmp_path / "v2" / "_versions" / f"{2**64 - 2}.manifest").exists()
    assert (tmp_path / "v1" / "_versions" / "1.manifest").exists()
    assert lance.dataset(tmp_path / "v1").count_rows() == 10


def test_progress_reports_every_file(uri: str, tmp_path: Path) -> None:
    class Seen(FragmentWriteProgress):
        def __init__(self) -> None:
            self.events: list[tuple[str, int]] = []

        def begin(self, fragment: lance.FragmentMetadata, **kwargs: Any) -> None:
            self.events.append(("begin", len(fragment.files)))

        def complete(self, fragment: lance.FragmentMetadata, **kwargs: Any) -> None:
            self.events.append(("complete", fragment.physical_rows))

    seen = Seen()
    lance.write_dataset(TABLE, uri, max_rows_per_file=6, progress=seen)
    assert [event for event, _ in seen.events] == ["begin", "complete"] * 2
    assert [rows for event, rows in seen.events if event == "complete"] == [6, 4]
    files = FileSystemFragmentWriteProgress(str(tmp_path / "progress"), {"worker": "3"})
    lance.write_dataset(TABLE, uri, mode="overwrite", progress=files)
    assert sorted(path.name for path in (tmp_path / "progress").iterdir()) == ["fragment_0.json"]
    lance.write_dataset(TABLE, uri, mode="overwrite", progress=NoopFragmentWriteProgress())
    with pytest.raises(TypeError, match="progress"):
        lance.write_dataset(TABLE, uri, mode="overwrite", progress=7)  # type: ignore[arg-type]  # the point


def test_delete_and_truncate(ds: LanceDataset) -> None:
    assert ds.delete("id % 2 = 0") == {"num_deleted_rows": 5}
    assert ds.delete(pc.field("id") == 9) == {"num_deleted_rows": 1}
    assert (ids(ds), ds.version, ds.fragment_ids()) == ([1, 3, 5, 7], 3, {0, 1})
    assert ds.delete("id > 100") == {"num_deleted_rows": 0}
    ds.truncate_table()
    assert (ds.count_rows(), ds.schema, ds.get_fragments()) == (0, TABLE.schema, [])
    assert ds.to_table() == TABLE.slice(0, 0)


# ---------------------------------------------------------------------------------------- tags, commits, transactions


def test_tags(ds: LanceDataset) -> None:
    ds.insert(TABLE)
    ds.tags.create("first", 1)
    ds.tags.create("now")
    ds.tags.create("copy", "first")
    assert {name: tag["version"] for name, tag in ds.tags.list().items()} == {"copy": 1, "first": 1, "now": 2}
    assert [name for name, _ in ds.tags.list_ordered("asc")] == ["copy", "first", "now"]
    assert [name for name, _ in ds.tags.list_ordered()] == ["now", "copy", "first"]
    ds.tags.replace_metadata("now", {"why": "test"})
    ds.tags.update("now", 1)
    tag = ds.tags.list()["now"]
    assert (tag["version"], tag["metadata"], tag["branch"]) == (1, {"why": "test"}, None)
    assert tag["created_at"].tzinfo is timezone.utc and tag["created_at"] <= tag["updated_at"]
    assert ds.tags.get_version("now") == 1
    assert "now=1" in repr(ds.tags)
    ds.tags.delete("now")
    assert "now" not in ds.tags.list()


def test_separately_written_fragments_are_committed(ds: LanceDataset, uri: str) -> None:
    fragments = write_fragments(pa.table({"id": [10], "s": ["a"]}), uri)
    assert [(f.id, f.physical_rows) for f in fragments] == [(0, 1)]
    assert lance.dataset(uri).version == 1
    committed = LanceDataset.commit(uri, LanceOperation.Append(fragments), read_version=1, commit_message="hello")
    assert (committed.version, committed.count_rows(), committed.fragment_ids()) == (2, 11, {0, 1, 2, 3})
    transaction = committed.read_transaction(2)
    assert transaction.read_version == 1
    assert transaction.transaction_properties == {"__lance_commit_message": "hello"}
    assert transaction.operation.fragments == fragments
    assert committed.get_transactions(1) == [transaction]
    assert [type(each.operation).__name__ for each in committed.get_transactions()] == ["Append", "Overwrite"]


def test_commit_creates_overwrites_restores_and_deletes(uri: str) -> None:
    fragments = write_fragments(TABLE, uri, mode="create")
    created = LanceDataset.commit(uri, LanceOperation.Overwrite(TABLE.schema, fragments))
    assert (created.version, created.to_table()) == (1, TABLE)
    again = write_fragments(TABLE.slice(3), uri, mode="overwrite")
    assert LanceDataset.commit(created, LanceOperation.Overwrite(TABLE.schema, again)).count_rows() == 7
    assert LanceDataset.commit(uri, LanceOperation.Restore(1)).count_rows() == 10
    fragment = lance.dataset(uri).get_fragments()[0]
    left = fragment.delete("id < 4")
    deleted = LanceDataset.commit(uri, LanceOperation.Delete([left], [], "id < 4"), read_version=3)
    assert ids(deleted) == [4, 5, 6, 7, 8, 9]
    dropped = LanceDataset.commit(uri, LanceOperation.Delete([], [fragment.fragment_id], "true"), read_version=4)
    assert dropped.count_rows() == 0


def test_transactions_are_committed_unchanged(ds: LanceDataset, uri: str) -> None:
    pending = [write_fragments(TABLE, uri, return_transaction=True) for _ in range(3)]
    assert LanceDataset.commit(uri, pending[0]).read_transaction(2).uuid == pending[0].uuid
    result = LanceDataset.commit_batch(uri, pending[1:])
    assert (result["dataset"].version, result["dataset"].count_rows()) == (3, 40)
    assert len(result["merged"].operation.fragments) == 2


def test_detached_versions_are_not_part_of_the_history(ds: LanceDataset, uri: str) -> None:
    operation = LanceOperation.Append(write_fragments(TABLE, uri))
    detached = LanceDataset.commit(uri, operation, read_version=1, detached=True)
    assert detached.version >= 1 << 63 and detached.count_rows() == 20
    assert lance.dataset(uri).version == 1
    assert lance.dataset(uri, version=detached.version).count_rows() == 20


def test_concurrent_deletes_of_different_rows_are_merged(ds: LanceDataset, uri: str) -> None:
    other = lance.dataset(uri)
    ds.delete("id = 0")
    other.delete("id = 1")
    assert ids(other) == list(range(2, 10))
    assert other.version == 3


# --------------------------------------------------------------------------------------------- inspecting, deleting


def test_statistics_and_validation(ds: LanceDataset) -> None:
    ds.delete("id = 1")
    assert ds.stats.dataset_stats() == {"num_deleted_rows": 1, "num_fragments": 3, "num_small_files": 3}
    assert ds.stats.dataset_stats(3)["num_small_files"] == 1
    assert {each.id: each.bytes_on_disk >= 20 for each in ds.stats.data_stats().fields} == {0: True, 1: True}
    ds.validate()
    with pytest.raises(IndexNotFoundError, match="the table has no index"):
        ds.stats.index_stats("x")


def test_all_files_lists_every_object(ds: LanceDataset, uri: str) -> None:
    (Path(uri) / "data" / "stray.tmp").write_bytes(b"12345")
    listed = ds.all_files().read_all()
    assert listed["base_uri"].unique().to_pylist() == [uri]
    sizes = dict(zip(listed["path"].to_pylist(), listed["size_bytes"].to_pylist()))
    assert sizes["data/stray.tmp"] == 5
    on_disk = {str(path.relative_to(uri)) for path in Path(uri).rglob("*") if path.is_file()}
    assert set(sizes) == on_disk


def test_drop(ds: LanceDataset, uri: str, tmp_path: Path) -> None:
    LanceDataset.drop(uri)
    assert not Path(uri).exists()
    LanceDataset.drop(uri, ignore_not_found=True)
    (tmp_path / "empty").mkdir()
    LanceDataset.drop(tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def test_memory_tables_behave_like_stored_tables() -> None:
    uri = f"memory://test/{math.floor(time.time() * 1e6)}"
    ds = lance.write_dataset(TABLE, uri, max_rows_per_file=4)
    ds.delete("id = 3")
    assert lance.dataset(uri).count_rows() == 9
    LanceDataset.drop(uri)
    with pytest.raises(ValueError, match="not found"):
        lance.dataset(uri)


def test_the_environment_sets_the_default_batch_size(ds: LanceDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCE_DEFAULT_BATCH_SIZE", "3")
    assert next(iter(ds.to_batches())).num_rows == 3
    assert next(iter(ds.to_batches(batch_size=2))).num_rows == 2
    monkeypatch.setenv("LANCE_DEFAULT_BATCH_SIZE", "many")
    with pytest.raises(ValueError, match="LANCE_DEFAULT_BATCH_SIZE"):
        ds.to_table()


def test_reads_and_writes_are_counted(ds: LanceDataset) -> None:
    read, requests = lance.bytes_read_counter(), lance.iops_counter()
    ds.io_stats_incremental()
    ds.to_table()
    scanned = ds.io_stats_incremental()
    assert scanned.read_bytes >= 80 and scanned.read_iops >= 3
    assert (scanned.write_iops, scanned.written_bytes) == (0, 0)
    ds.insert(TABLE)
    written = ds.io_stats_snapshot()
    assert written.write_iops >= 3 and written.written_bytes > 500
    assert ds.io_stats_snapshot() == written
    assert lance.bytes_read_counter() - read >= scanned.read_bytes + written.read_bytes
    assert lance.iops_counter() > requests


def test_base_paths_by_id(ds: LanceDataset) -> None:
    message = ds.table_version.manifest.to_proto()
    message.base_paths.add(id=3, path="/elsewhere", name="other", is_dataset_root=True)
    file = replace(ds.table_version.file, manifest=type(ds.table_version.manifest)(message))
    moved = LanceDataset.from_version(replace(ds.table_version, file=file))
    assert moved.base_paths() == {3: lance.DatasetBasePath("/elsewhere", "other", True, 3)}
