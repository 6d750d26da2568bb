"""Listing, describing, reading and dropping indexes, compared with pylance."""

from __future__ import annotations

import pickle
import shutil
import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyroaring
import pytest

import lancetable
from lancetable.errors import (
    IndexExistsError,
    IndexNotFoundError,
    InvalidInputError,
    RetryableCommitConflictError,
    UnsupportedFeatureError,
    UnsupportedTypeError,
)
from lancetable.file import LanceFileWriter
from lancetable.format import transaction as tx
from lancetable.format.index import IndexMetadata
from lancetable.format.transaction import Transaction
from lancetable.fragment_metadata import DataFile
from lancetable.index.kind import kind_named
from lancetable.index_metadata import Index
from lancetable.indices import IndexConfig
from lancetable.ops import commit
from lancetable.ops.index.distributed import build_uncommitted
from lancetable.ops.index.segment_builder import commit_segments

KINDS = {
    "BTREE": "id",
    "BITMAP": "s",
    "LABEL_LIST": "tags",
    "NGRAM": "s",
    "ZONEMAP": "id",
    "BLOOMFILTER": "s",
}


def rows(start: int, end: int) -> pa.Table:
    ids = range(start, end)
    return pa.table(
        {
            "id": ids,
            "s": [None if i % 7 == 0 else f"value {i % 5}" for i in ids],
            "tags": [["x", "y", "z"][: i % 4] for i in ids],
            "st": [{"a.b": i, "c": {"d": float(i)}} for i in ids],
        }
    )


def write(path: Path, *, stable: bool = False) -> lancetable.LanceDataset:
    return lancetable.write_dataset(rows(0, 100), str(path), max_rows_per_file=30, enable_stable_row_ids=stable)


def uuids(ds: lancetable.LanceDataset) -> set[str]:
    return {segment.uuid for index in ds.describe_indices() for segment in index.segments}


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
def test_descriptions_and_statistics_equal_those_of_pylance(tmp_path: Path, stable: bool) -> None:
    ds = write(tmp_path / "t.lance", stable=stable)
    for kind, column in KINDS.items():
        ds.create_scalar_index(column, kind, kind.lower())
    ds.create_scalar_index("st.c.d", "BTREE")
    ds.create_scalar_index("st.`a.b`", "BTREE", train=False)
    ds.insert(rows(100, 130))
    ds.optimize.optimize_indices(index_names=["bitmap", "btree"], num_indices_to_merge=0)
    ds.delete("id < 35")
    theirs = lance.dataset(ds.uri)
    assert theirs.has_index and ds.has_index
    for ours, other in zip(ds.describe_indices(), theirs.describe_indices(), strict=True):
        for name in ("name", "type_url", "index_type", "num_rows_indexed", "fields", "field_names", "details"):
            assert getattr(ours, name) == getattr(other, name)
        assert ours.total_size_bytes == other.total_size_bytes
        assert ds.stats.index_stats(ours.name) == theirs.stats.index_stats(ours.name)
        assert [segment.uuid for segment in ours.segments] == [segment.uuid for segment in other.segments]
        for mine, segment in zip(ours.segments, other.segments, strict=True):
            assert set(mine.fragment_ids) == set(segment.fragment_ids)
            for name in ("dataset_version_at_last_update", "index_version", "size_bytes", "created_at"):
                assert getattr(mine, name) == getattr(segment, name)


def test_untrained_segments_have_no_statistics_like_those_of_pylance(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    ds.create_scalar_index("id", "BTREE", train=False)
    types = []
    for _ in range(2):
        found = ds.stats.index_stats("id_idx")
        assert found == lance.dataset(ds.uri).stats.index_stats("id_idx")
        types.append((found["index_type"], len(found["segments"])))
        ds.optimize.optimize_indices(num_indices_to_merge=0)
    assert types == [("N/A", 1), ("BTree", 2)]


def test_deprecated_methods_warn_like_pylance_and_return_the_same(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    ds.create_scalar_index("id", "BTREE")
    ds.create_scalar_index("s", "BITMAP", "a")
    listed, statistics = [], []
    for dataset in (ds, lance.dataset(ds.uri)):
        with pytest.warns(DeprecationWarning, match="The 'list_indices' method is deprecated"):
            entries = dataset.list_indices()
        listed.append([{**entry, "fragment_ids": set(entry["fragment_ids"])} for entry in entries])
        with pytest.warns(DeprecationWarning, match=r"LanceDataset\.index_statistics\(\) is deprecated"):
            statistics.append(dataset.index_statistics("a"))
        with pytest.warns(DeprecationWarning, match="'index_cache_size' parameter is deprecated"):
            (lancetable if dataset is ds else lance).dataset(ds.uri, index_cache_size=256)
    assert listed[0] == listed[1]
    assert statistics[0] == statistics[1] == ds.stats.index_stats("a")


def test_replace_and_train_of_none_are_the_defaults(tmp_path: Path) -> None:
    uri = write(tmp_path / "t.lance").uri
    for library in (lancetable, lance):
        ds = library.dataset(uri)
        for _ in range(2):
            ds.create_scalar_index("id", "BTREE", replace=None, train=None)
        assert ds.stats.index_stats("id_idx")["num_indexed_rows"] == 100


def test_default_names_number_indexes_of_several_kinds(tmp_path: Path) -> None:
    names = []
    for library in (lancetable, lance):
        ds = library.dataset(write(tmp_path / library.__name__).uri)
        ds.create_scalar_index("st.`a.b`", "BTREE")
        for kind in ("BTREE", "ZONEMAP", "BLOOMFILTER", "ZONEMAP"):
            ds.create_scalar_index("ID", kind)
        ds.create_scalar_index("s", "BITMAP", "tags_idx")
        ds.create_scalar_index("tags", "LABEL_LIST")
        names.append([(index.name, index.index_type, index.field_names) for index in ds.describe_indices()])
    assert names[0] == names[1]
    assert ("id_idx_3", "BloomFilter", ["id"]) in names[0]


def test_an_index_replaces_one_with_the_same_name(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    ds.create_scalar_index("id", "BTREE", "i")
    first = ds.describe_indices()[0].segments[0].uuid
    ds.create_scalar_index("id", "ZONEMAP", "i")
    (index,) = ds.describe_indices()
    assert (index.index_type, len(index.segments)) == ("ZoneMap", 1) and index.segments[0].uuid != first


ERRORS: dict[str, tuple[type[Exception], tuple[type[Exception], ...], Any]] = {
    "unknown column": (
        lancetable.ColumnNotFoundError,
        (KeyError,),
        lambda ds: ds.create_scalar_index("nope", "BTREE"),
    ),
    "unknown kind": (UnsupportedFeatureError, (NotImplementedError,), lambda ds: ds.create_scalar_index("id", "HASH")),
    "full text": (UnsupportedFeatureError, (NotImplementedError,), lambda ds: ds.create_scalar_index("s", "FTS")),
    "several columns": (
        UnsupportedFeatureError,
        (NotImplementedError,),
        lambda ds: ds.create_scalar_index(["id", "s"], "BTREE"),
    ),
    "name of another column": (
        IndexExistsError,
        (RuntimeError,),
        lambda ds: ds.create_scalar_index("s", "BTREE", "id_idx"),
    ),
    "existing name": (
        IndexExistsError,
        (RuntimeError,),
        lambda ds: ds.create_scalar_index("id", "BTREE", replace=False),
    ),
    "btree of a list": (UnsupportedTypeError, (TypeError,), lambda ds: ds.create_scalar_index("tags", "BTREE")),
    "bitmap of a struct": (UnsupportedTypeError, (TypeError,), lambda ds: ds.create_scalar_index("st", "BITMAP")),
    "label list of numbers": (
        UnsupportedTypeError,
        (TypeError,),
        lambda ds: ds.create_scalar_index("id", "LABEL_LIST"),
    ),
    "ngram of numbers": (UnsupportedTypeError, (TypeError,), lambda ds: ds.create_scalar_index("id", "NGRAM")),
    "bloom filter of a list": (
        UnsupportedTypeError,
        (ValueError,),
        lambda ds: ds.create_scalar_index("tags", "BLOOMFILTER"),
    ),
    "some fragments": (
        InvalidInputError,
        (ValueError,),
        lambda ds: ds.create_scalar_index("id", "BTREE", fragment_ids=[0]),
    ),
    "malformed uuid": (
        InvalidInputError,
        (ValueError,),
        lambda ds: ds.create_scalar_index("id", "BTREE", index_uuid="x"),
    ),
    "uuid of another type": (TypeError, (TypeError,), lambda ds: ds.create_scalar_index("id", "BTREE", index_uuid=3)),
    "statistics of nothing": (IndexNotFoundError, (KeyError,), lambda ds: ds.stats.index_stats("nope")),
    "drop of nothing": (IndexNotFoundError, (RuntimeError,), lambda ds: ds.drop_index("nope")),
    "prewarming of nothing": (IndexNotFoundError, (RuntimeError,), lambda ds: ds.prewarm_index("nope")),
    "prewarming of an unknown segment": (
        IndexNotFoundError,
        (RuntimeError,),
        lambda ds: ds.prewarm_index("id_idx", index_segments=[str(uuid.uuid4())]),
    ),
    "prewarming of one uuid": (TypeError, (TypeError,), lambda ds: ds.prewarm_index("id_idx", index_segments="x")),
    "prewarming of positions": (
        InvalidInputError,
        (ValueError,),
        lambda ds: ds.prewarm_index("id_idx", with_position=True),
    ),
    "negative number of segments": (
        lancetable.OutOfRangeError,
        (OverflowError,),
        lambda ds: ds.optimize.optimize_indices(num_indices_to_merge=-1),
    ),
    "names as a string": (
        InvalidInputError,
        (ValueError,),
        lambda ds: ds.optimize.optimize_indices(index_names="id_idx"),
    ),
    "retrain without a value": (TypeError, (TypeError,), lambda ds: ds.optimize.optimize_indices(retrain=None)),
    "drop without a name": (TypeError, (TypeError,), lambda ds: ds.drop_index(None)),
    "prewarming of bytes": (TypeError, (TypeError,), lambda ds: ds.prewarm_index(b"id_idx")),
    "statistics of a number": (TypeError, (TypeError,), lambda ds: ds.stats.index_stats(1)),
    "number as a name": (TypeError, (TypeError,), lambda ds: ds.create_scalar_index("s", "BTREE", 1)),
    "replace as a number": (TypeError, (TypeError,), lambda ds: ds.create_scalar_index("s", "BTREE", replace=1)),
    "train as a number": (TypeError, (TypeError,), lambda ds: ds.create_scalar_index("s", "BTREE", train=1)),
    "fragments as a string": (
        TypeError,
        (TypeError,),
        lambda ds: ds.create_index_uncommitted("s", "BTREE", fragment_ids="0"),
    ),
    "segments without a name": (TypeError, (TypeError,), lambda ds: ds.commit_existing_index_segments(None, "id", [])),
}


@pytest.mark.parametrize(("ours", "theirs", "call"), ERRORS.values(), ids=ERRORS)
def test_errors_are_caught_by_the_same_clauses(
    tmp_path: Path, ours: type[Exception], theirs: tuple[type[Exception], ...], call: Any
) -> None:
    ds = write(tmp_path / "t.lance")
    ds.create_scalar_index("id", "BTREE")
    with pytest.raises(ours) as raised:
        call(ds)
    assert type(raised.value) is ours and issubclass(ours, theirs)
    assert ds.latest_version == ds.version == 2
    assert pickle.loads(pickle.dumps(raised.value)).args == raised.value.args
    if "full text" not in str(raised.value):
        with pytest.raises(theirs):
            call(lance.dataset(ds.uri))


def test_unknown_parameters_are_refused(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    with pytest.raises(InvalidInputError, match="no option 'pages'"):
        ds.create_scalar_index("id", "BTREE", pages=3)
    with pytest.raises(InvalidInputError, match="given twice"):
        ds.create_scalar_index("id", IndexConfig("zonemap", {"rows_per_zone": 8}), rows_per_zone=9)
    with pytest.raises(TypeError, match="index_type must be str or IndexConfig"):
        ds.create_scalar_index("id", 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected argument 'bogus'"):
        ds.optimize.optimize_indices(bogus=1)
    assert not (tmp_path / "t.lance" / "_indices").exists()


def test_prewarmed_index_is_in_the_cache(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    for kind, column in KINDS.items():
        ds.create_scalar_index(column, kind, kind.lower())
    ds = lancetable.dataset(ds.uri)
    for index in ds.describe_indices():
        before = ds.session().size_bytes()
        ds.prewarm_index(index.name, index_segments=[segment.uuid for segment in index.segments])
        assert ds.session().size_bytes() > before


# --- entries that this library does not know


def entry(url: str, *, version: int = 0, fragments: tuple[int, ...] = (0, 1, 2, 3)) -> Index:
    return Index(str(uuid.uuid4()), "strange", [0], 1, fragments, version, None, None, None, (url, b""))


@pytest.mark.parametrize(
    "known", [entry("/lance.table.GraphIndexDetails"), entry("/lance.table.BTreeIndexDetails", version=99)]
)
def test_unknown_indexes_are_kept_named_and_not_used(
    tmp_path: Path, known: Index, caplog: pytest.LogCaptureFixture
) -> None:
    ds = write(tmp_path / "t.lance")
    version = commit.commit(ds.table_version, Transaction.create(1, tx.CreateIndex((known.to_format(),))))
    ds.move_to(version)
    (index,) = ds.describe_indices()
    assert (index.name, index.type_url, index.num_rows_indexed) == ("strange", known.index_details[0], 100)  # type: ignore[index]
    assert ds.count_rows("id = 7") == 1
    assert "ScalarIndexQuery" not in ds.scanner(filter="id = 7").explain_plan()
    with pytest.raises(UnsupportedFeatureError, match="index 'strange'"):
        ds.stats.index_stats("strange")
    with pytest.raises(UnsupportedFeatureError, match="index 'strange'"):
        ds.optimize.optimize_indices(index_names=["strange"])
    ds.insert(rows(100, 110))
    ds.create_scalar_index("id", "BTREE")
    ds.optimize.optimize_indices()
    assert "index 'strange' is not extended" in caplog.text and "is not supported" in caplog.text
    ds.delete("id = 7")
    ds.optimize.compact_files()
    assert [each.name for each in ds.describe_indices()] == ["id_idx", "strange"]
    ds.drop_index("strange")
    assert [each.name for each in ds.describe_indices()] == ["id_idx"]


def test_damaged_coverage_is_an_error_that_names_the_index(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    damaged = IndexMetadata(uuid.uuid4(), "i", (0,), 1, b"\x00" * 9, type_url="/lance.table.BTreeIndexDetails")
    ds.move_to(commit.commit(ds.table_version, Transaction.create(1, tx.CreateIndex((damaged,)))))
    with pytest.raises(lancetable.CorruptFileError, match="i"):
        ds.describe_indices()


# --- cleanup


def test_cleanup_keeps_indexes_of_retained_versions_and_removes_others(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    folder = tmp_path / "t.lance" / "_indices"
    ds.create_scalar_index("id", "BTREE")
    ds.tags.create("kept")
    kept = uuids(ds)
    ds.create_scalar_index("id", "BTREE")
    replaced = uuids(ds)
    ds.create_scalar_index("id", "BTREE")
    newest = uuids(ds)
    orphan = ds.create_index_uncommitted("s", "BITMAP", fragment_ids=[0])
    assert {path.name for path in folder.iterdir()} == kept | replaced | newest | {orphan.uuid}
    ds.cleanup_old_versions(retain_versions=1, delete_unverified=True, error_if_tagged_old_versions=False)
    remaining = {path.name for path in folder.iterdir() if any(path.iterdir())}
    assert remaining == kept | newest
    for version in ("kept", None):
        assert lancetable.dataset(ds.uri, version=version).count_rows("id = 7") == 1


def test_a_shallow_clone_reads_and_extends_the_indexes_of_its_source(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    ds.create_scalar_index("id", "BTREE")
    ds.create_scalar_index("s", "BITMAP")
    clone = ds.shallow_clone(tmp_path / "clone.lance", ds.version)
    assert "ScalarIndexQuery" in clone.scanner(filter="id = 7").explain_plan()
    assert clone.count_rows("id = 7") == 1
    clone.insert(rows(100, 110))
    clone.optimize.optimize_indices()
    clone.optimize.compact_files()
    assert clone.count_rows("id IN (7, 105)") == 2
    assert lance.dataset(str(tmp_path / "clone.lance")).count_rows("id IN (7, 105)") == 2
    shutil.rmtree(tmp_path / "clone.lance")
    assert ds.count_rows("id = 7") == 1


def test_indexes_may_name_fragments_above_the_manifest(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    far = Index(str(uuid.uuid4()), "far", [0], 1, [2**32 - 1], 0, index_details=("/lance.table.BTreeIndexDetails", b""))
    ds.move_to(commit.commit(ds.table_version, Transaction.create(1, tx.CreateIndex((far.to_format(),)))))
    (index,) = ds.describe_indices()
    assert (index.num_rows_indexed, index.segments[0].fragment_ids) == (0, {2**32 - 1})
    assert pyroaring.BitMap(index.segments[0].fragment_ids).max() == 2**32 - 1


def test_an_index_of_a_column_that_was_replaced_since_the_version_of_the_dataset_is_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table({"a": range(100)}), uri)
    lance.dataset(uri).add_columns({"b": "a + 1"})
    handles = {library: [library.dataset(uri) for _ in range(2)] for library in (lancetable, lance)}
    ds, values = lancetable.dataset(uri), pa.table({"b": range(100, 200)})
    with LanceFileWriter(str(tmp_path / "t/data/new.lance"), values.schema) as writer:
        writer.write_batch(values)
    group = lancetable.LanceOperation.DataReplacementGroup(0, DataFile.create(ds, "new.lance"))
    lancetable.LanceDataset.commit(uri, lancetable.LanceOperation.DataReplacement([group]), read_version=ds.version)
    for library, (first, second) in handles.items():
        first.create_scalar_index("a", "BTREE", library.__name__)
        with pytest.raises(OSError, match="Retryable commit conflict for version 3") as raised:
            second.create_scalar_index("b", "BTREE")
        assert raised.value.retryable
        library.dataset(uri).create_scalar_index("b", "BTREE", "newest")


@pytest.mark.parametrize("column", ["x", "y"])
def test_an_index_of_a_column_that_a_concurrent_merge_replaced_is_built_again(tmp_path: Path, column: str) -> None:
    ds = lancetable.write_dataset(pa.table({"x": [10, 20], "y": [1, 2]}), str(tmp_path / "t"))
    other = lancetable.write_dataset(pa.table({"x": [11, 21]}), str(tmp_path / "o"))
    (file,) = other.get_fragments()[0].metadata.files
    shutil.copy(tmp_path / "o" / "data" / file.path, tmp_path / "t" / "data" / file.path)
    fragment = ds.get_fragments()[0].metadata
    fragment.files[0].fields = [-2, 1]
    fragment.files.append(file)
    built = build_uncommitted(ds.table_version, column, kind_named("BTREE"), [0])
    lancetable.LanceDataset.commit(ds.uri, lancetable.LanceOperation.Merge([fragment], ds.lance_schema), ds.version)
    if column == "x":
        with pytest.raises(RetryableCommitConflictError, match="'x_idx' covers were replaced"):
            commit_segments(ds.table_version, [built], [])
    else:
        commit_segments(ds.table_version, [built], [])
    newest = lancetable.dataset(ds.uri)
    assert newest.to_table(filter="x = 11").to_pydict() == {"x": [11], "y": [1]}
    assert newest.to_table(filter="y = 2").to_pydict() == {"x": [21], "y": [2]}
