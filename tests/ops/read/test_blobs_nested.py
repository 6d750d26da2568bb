"""Blobs in structs and lists, prepared descriptions and managed blobs, against pylance."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable as lt
from lancetable.errors import CorruptFileError, InvalidInputError, OutOfRangeError, UnsupportedFeatureError
from lancetable.file.blobs.descriptions import PREPARED
from lancetable.format.feature_flags import MANAGED_BLOBS
from lancetable.table.version import open_version

LIBRARIES = [lance, lt]
VALUES = [b"abc", None, b"", b"y" * 50, b"z" * 500]  # inline, null, empty, in a shared file, in a file of its own
FIELD = lance.blob_field("b", inline_size_threshold=10, dedicated_size_threshold=100)
BLOBS = lance.blob_array(VALUES)
STRUCT = pa.StructArray.from_arrays(
    [pa.array(range(5)), BLOBS], fields=[pa.field("i", pa.int64()), FIELD], mask=pa.array([False] * 3 + [True, False])
)


def lists(items: pa.Array, offsets: Any, item: pa.Field | None = None, mask: pa.Array | None = None) -> pa.Array:
    kind = pa.list_(item or pa.field("item", items.type))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=kind, mask=mask)


LIST = lists(BLOBS, [0, 2, None, 2, 5], FIELD.with_name("item"))
CASES = {
    "struct": STRUCT,
    "struct of struct": pa.StructArray.from_arrays([STRUCT], names=["t"]),
    "list": LIST,
    "large list": pa.LargeListArray.from_arrays(
        pa.array([0, 2, 2, 5], pa.int64()), BLOBS, type=pa.large_list(FIELD.with_name("item"))
    ),
    "list of struct": lists(STRUCT, [0, 2, None, 2, 5]),
    "list of list": lists(LIST, [0, 2, 4]),
    "struct of list": pa.StructArray.from_arrays([LIST], names=["l"]),
    "bytes below a null list": lists(BLOBS, [0, 2, 4, 5], FIELD.with_name("item"), pa.array([False, True, False])),
    "a slice": lists(BLOBS, [0, 1, 2, 3, 5], FIELD.with_name("item")).slice(1, 3),
}


def table_of(array: pa.Array) -> pa.Table:
    return pa.table([array], schema=pa.schema([pa.field("c", array.type)]))


def blob_files(path: Path) -> list[tuple[str, int]]:
    return sorted((file.name[:4], file.stat().st_size) for file in path.glob("data/*/*.blob"))


def positions_of_empty(table: pa.Table) -> Any:
    """Return the rows without the positions of empty blobs, which depend on the writer."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            if value.get("size") == 0:
                value = {**value, "position": 0}
            return {key: cut(inner) for key, inner in value.items()}
        return [cut(each) for each in value] if isinstance(value, list) else value

    return cut(table.to_pylist())


@pytest.mark.parametrize("case", CASES)
def test_nested_blobs_equal_pylance(case: str, tmp_path: Path) -> None:
    made = table_of(CASES[case])
    for library in LIBRARIES:
        library.write_dataset(made, str(tmp_path / library.__name__), data_storage_version="2.2")
    assert blob_files(tmp_path / "lancetable") == blob_files(tmp_path / "lance")
    sizes = [sum(file.stat().st_size for file in (tmp_path / each.__name__ / "data").iterdir()) for each in LIBRARIES]
    assert sizes[0] == sizes[1]
    for writer in LIBRARIES:
        theirs, ours = (library.dataset(str(tmp_path / writer.__name__)) for library in LIBRARIES)
        assert ours.schema.equals(theirs.schema, check_metadata=True)
        for handling in ("all_binary", "blobs_descriptions", "all_descriptions"):
            expected, found = (ds.to_table(blob_handling=handling) for ds in (theirs, ours))
            assert found.equals(expected) and found.schema.equals(expected.schema, check_metadata=True)
        assert ours.take([1, 0]).equals(theirs.take([1, 0]))
    read = [positions_of_empty(lt.dataset(str(tmp_path / each.__name__)).to_table()) for each in LIBRARIES]
    assert read[0] == read[1]


@pytest.mark.parametrize("case", ["struct", "list of struct", "list of list"])
def test_nested_blobs_survive_table_operations(case: str, tmp_path: Path) -> None:
    path, made = str(tmp_path / "t"), table_of(CASES[case])
    made = made.append_column("id", pa.array(range(len(made))))
    ds = lt.write_dataset(made, path, data_storage_version="2.2")
    ds = lt.write_dataset(made, path, mode="append")
    before = ds.to_table(blob_handling="all_binary")
    ds.optimize.compact_files()
    ds = lt.dataset(path)
    assert len(ds.get_fragments()) == 1 and ds.to_table(blob_handling="all_binary").equals(before)
    ds.update({"id": "id + 10"}, where="id = 0")
    found = lance.dataset(path).to_table(blob_handling="all_binary").sort_by("id").combine_chunks()
    order = [row for row, number in enumerate(before["id"].to_pylist()) if number != 0]
    order += [row for row, number in enumerate(before["id"].to_pylist()) if number == 0]
    expected = before.take(order)["c"].to_pylist()
    assert sorted(map(str, found["c"].to_pylist())) == sorted(map(str, expected))


def test_blobs_in_other_nested_types_are_rejected(tmp_path: Path) -> None:
    fixed = pa.FixedSizeListArray.from_arrays(BLOBS.slice(0, 4), type=pa.list_(FIELD.with_name("item"), 2))
    keyed = pa.MapArray.from_arrays(pa.array([0, 2, 5], pa.int32()), pa.array(list("abcde")), BLOBS)
    for number, array in enumerate((fixed, keyed)):
        for library, error in ((lance, OSError), (lt, UnsupportedFeatureError)):
            with pytest.raises(error):
                library.write_dataset(table_of(array), str(tmp_path / str(number)), data_storage_version="2.2")
        assert not list((tmp_path / str(number)).rglob("*.lance"))


@pytest.mark.parametrize("column", ["c", "c.item", "c.item.b"])
def test_blobs_in_lists_are_not_opened_as_files(column: str, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    lance.write_dataset(table_of(CASES["list of struct"]), path, data_storage_version="2.2")
    with pytest.raises((ValueError, RuntimeError)):
        lance.dataset(path).take_blobs(column, indices=[0])
    with pytest.raises(InvalidInputError):
        lt.dataset(path).take_blobs(column, indices=[0])


def test_nested_v1_blobs_become_v2_in_tables_of_2_2(tmp_path: Path) -> None:
    first = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = pa.array([b"a", None, b""], pa.large_binary())
    for name, array in (
        ("s", pa.StructArray.from_arrays([data], fields=[first])),
        ("l", lists(data, [0, 2, 3], first.with_name("item"))),
    ):
        made = table_of(array)
        for library in LIBRARIES:
            library.write_dataset(made, str(tmp_path / f"{name}{library.__name__}"), data_storage_version="2.2")
        theirs, ours = (lance.dataset(str(tmp_path / f"{name}{each.__name__}")) for each in LIBRARIES)
        assert ours.schema.equals(theirs.schema, check_metadata=True)
        assert ours.to_table(blob_handling="all_binary").equals(theirs.to_table(blob_handling="all_binary"))
        # Later rows may be passed as bytes.
        lt.write_dataset(made, str(tmp_path / f"{name}lance"), mode="append")
        assert len(lance.dataset(str(tmp_path / f"{name}lance")).to_table(blob_handling="all_binary")) == 2 * len(made)


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize(
    "data", [[b"a", b"", b"x"], [b"a", None, b"x"], [None, None, b"x"], [b"x", b"y", b"z"]], ids=str
)
def test_v1_blobs_below_null_structs(data: list[Any], version: str, tmp_path: Path) -> None:
    first = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    values = pa.array(data, pa.large_binary())
    struct = pa.StructArray.from_arrays([values], fields=[first], mask=pa.array([False, False, True]))
    lt.write_dataset(table_of(struct), tmp_path / "t", data_storage_version=version)
    for library in LIBRARIES:
        ds = library.dataset(str(tmp_path / "t"))
        found = ds.to_table(columns=["c.b"], blob_handling="all_binary")
        assert found["c.b"].to_pylist() == [*data[:2], None]
        assert ds.to_table(blob_handling="all_binary")["c"].is_null().to_pylist() == [False, False, True]


# ------------------------------------------------------------------------------------------------ prepared columns


def inline_blobs(library: Any) -> tuple[pa.Array, pa.Field]:
    builder = library.BlobDescriptorArrayBuilder("b")
    builder.append_inline(b"abc")
    builder.append_null()
    builder.append_inline(b"")
    builder.append_inline(b"x" * 100_000)
    return builder.finish(), builder.field


PLACES: dict[str, Callable[[pa.Array, pa.Field], pa.Table]] = {
    "top": lambda array, field: pa.table([array], schema=pa.schema([field])),
    "struct": lambda array, field: table_of(pa.StructArray.from_arrays([array], fields=[field])),
    "list": lambda array, field: table_of(lists(array, [0, 2, None, 4], field.with_name("item"))),
}


@pytest.mark.parametrize("place", PLACES)
def test_prepared_columns_in_tables_match_pylance(place: str, tmp_path: Path) -> None:
    for library in LIBRARIES:
        made = PLACES[place](*inline_blobs(library))
        library.write_dataset(made, str(tmp_path / library.__name__), data_storage_version="2.2")
        library.write_dataset(made, str(tmp_path / library.__name__), mode="append")
    theirs, ours = (lance.dataset(str(tmp_path / library.__name__)) for library in LIBRARIES)
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    assert ours.to_table(blob_handling="all_binary").equals(theirs.to_table(blob_handling="all_binary"))
    # Inline storage is requested and used.
    assert not blob_files(tmp_path / "lancetable") and positions_of_empty(ours.to_table()) == positions_of_empty(
        theirs.to_table()
    )
    logical = lance.blob_array([b"q", None, b"r"])
    if place == "top":
        added = pa.table([logical], schema=pa.schema([lance.blob_field("b")]))
        assert lt.write_dataset(added, str(tmp_path / "lance"), mode="append").count_rows() == 11


@pytest.mark.parametrize("place", PLACES)
def test_prepared_columns_in_files(place: str, tmp_path: Path) -> None:
    made = PLACES[place](*inline_blobs(lt))
    found = {}
    for library in LIBRARIES:
        path = tmp_path / f"{library.__name__}.lance"
        with library.file.LanceFileWriter(str(path), made.schema, version="2.2") as writer:
            writer.write_batch(made)
        found[library] = lt.file.LanceFileReader(path)
    theirs, ours = (found[library].read_all().to_table() for library in LIBRARIES)
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    assert positions_of_empty(ours) == positions_of_empty(theirs)


def test_other_names_of_blob_files_are_rejected(tmp_path: Path) -> None:
    builder = lt.BlobDescriptorArrayBuilder("b")
    builder.extend_packed(1, [0, 3], [3, 2])
    array = builder.finish()
    for made in (make(array, builder.field) for make in (PLACES["top"], PLACES["struct"])):
        with pytest.raises(InvalidInputError, match="LanceFileWriter"):
            lt.write_dataset(made, tmp_path / "t", data_storage_version="2.2")
    with pytest.raises(UnsupportedFeatureError, match="external blobs"):
        elsewhere = pa.array([{"kind": 3, "uri": "file:///x", "blob_size": 1, "position": 0}], PREPARED)
        lt.write_dataset(PLACES["top"](elsewhere, builder.field), tmp_path / "t", data_storage_version="2.2")


# --------------------------------------------------------------------------------------------------- managed blobs

MANAGED = {"lance.blob.managed": "true"}


def managed(library: Any, metadata: dict[str, str] | None = MANAGED) -> pa.Table:
    builder = library.BlobDescriptorArrayBuilder("b")
    builder.append_managed("_blobs/x", 2, 3)
    builder.append_null()
    builder.append_managed("_blobs/x", 0, 0)
    builder.append_inline(b"abc")
    return pa.table([builder.finish()], schema=pa.schema([builder.field], metadata))


def flags_of(path: Path) -> tuple[int, int]:
    manifest = open_version(path).manifest
    return manifest.reader_flags & MANAGED_BLOBS, manifest.writer_flags & MANAGED_BLOBS


@pytest.mark.parametrize("writer", LIBRARIES)
def test_managed_blobs(writer: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    (path / "_blobs").mkdir(parents=True)
    (path / "_blobs" / "x").write_bytes(b"0123456789")
    assert managed(lt).equals(managed(lance))
    writer.write_dataset(managed(lance), str(path), data_storage_version="2.2")
    assert flags_of(path) == (MANAGED_BLOBS, MANAGED_BLOBS)
    expected = [b"234", None, b"", b"abc"]
    for library in LIBRARIES:
        ds = library.dataset(str(path))
        assert [data for _, data in ds.read_blobs("b", indices=range(4))] == expected
        assert ds.to_table(blob_handling="all_binary")["b"].to_pylist() == expected
    assert positions_of_empty(lt.dataset(path).to_table()) == positions_of_empty(lance.dataset(str(path)).to_table())
    for clone in ("shallow", "deep"):
        made = getattr(lt.dataset(path), f"{clone}_clone")(str(tmp_path / clone), 1)
        assert made.to_table(blob_handling="all_binary")["b"].to_pylist() == expected
        assert lance.dataset(str(tmp_path / clone)).to_table(blob_handling="all_binary")["b"].to_pylist() == expected
    # The schema of the table declares it, so later rows may omit it.
    writer.write_dataset(managed(lance, None), str(path), mode="append")
    ds = lt.dataset(path)
    assert ds.to_table(blob_handling="all_binary")["b"].to_pylist() == 2 * expected
    ds.delete("true")
    lt.write_dataset(pa.table({"i": [1]}), str(path), mode="overwrite")
    assert flags_of(path) == (MANAGED_BLOBS, MANAGED_BLOBS)


def test_managed_blobs_require_a_column_that_declares_them(tmp_path: Path) -> None:
    for library in LIBRARIES:
        with pytest.raises((OSError, ValueError), match=r"lance\.blob\.managed"):
            library.write_dataset(managed(library, None), str(tmp_path / "t"), data_storage_version="2.2")


def below_base(library: Any, base_id: int, metadata: dict[str, str] | None = MANAGED) -> pa.Table:
    builder = library.BlobDescriptorArrayBuilder("b")
    builder.append_managed("objects/x", 2, 3, base_id=base_id)
    builder.append_managed("_blobs/y", 0, 4)
    builder.append_null()
    return pa.table([builder.finish()], schema=pa.schema([builder.field], metadata))


@pytest.mark.parametrize("writer", LIBRARIES)
def test_managed_blobs_below_a_base_path(writer: Any, tmp_path: Path) -> None:
    path, other = tmp_path / "t", tmp_path / "other"
    for place, content in ((other / "objects" / "x", b"0123456789"), (path / "_blobs" / "y", b"abcdef")):
        place.parent.mkdir(parents=True)
        place.write_bytes(content)
    bases = [writer.DatasetBasePath(str(other), "other", is_dataset_root=False, id=3)]
    writer.write_dataset(below_base(lance, 3), str(path), data_storage_version="2.2", initial_bases=bases)
    writer.write_dataset(below_base(lance, 3, None), str(path), mode="append")
    expected = [b"234", b"abcd", None]
    for library in LIBRARIES:
        ds = library.dataset(str(path))
        assert [data for _, data in ds.read_blobs("b", indices=range(6))] == 2 * expected
        assert ds.to_table(blob_handling="all_binary")["b"].to_pylist() == 2 * expected
        with pytest.raises((OSError, ValueError), match="base"):
            library.write_dataset(below_base(library, 4), str(path), mode="append")
    descriptions = [lib.dataset(str(path)).to_table(blob_handling="all_descriptions")["b"] for lib in LIBRARIES]
    assert descriptions[0].to_pylist() == descriptions[1].to_pylist()
    lt.dataset(path).optimize.compact_files()
    for library in LIBRARIES:
        assert library.dataset(str(path)).to_table(blob_handling="all_binary")["b"].to_pylist() == 2 * expected


@pytest.mark.parametrize("cleaner", LIBRARIES)
def test_cleanup_keeps_the_objects_of_managed_blobs(cleaner: Any, tmp_path: Path) -> None:
    """Cleanup keeps all objects, even unreferenced ones."""
    path = tmp_path / "t"
    (path / "_blobs").mkdir(parents=True)
    for name in ("x", "stray"):
        (path / "_blobs" / name).write_bytes(b"0123456789")
    lt.write_dataset(managed(lt), path, data_storage_version="2.2")
    lt.write_dataset(managed(lt).slice(1, 1), path, mode="overwrite")
    removed = cleaner.dataset(str(path)).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert removed.data_files_removed == 1
    assert sorted(each.name for each in (path / "_blobs").iterdir()) == ["stray", "x"]


@pytest.mark.parametrize("uri", ["", "/abs", "a/../b", "./a", "a//b", "a/", "s3://x/y", "a\\b"])
def test_names_of_managed_blobs(uri: str, tmp_path: Path) -> None:
    for library in LIBRARIES:
        with pytest.raises(ValueError):
            library.BlobDescriptorArrayBuilder("b").append_managed(uri, 0, 1)
    # Files with such names by other writers are not supported.
    row = {"kind": 4, "uri": uri, "blob_size": 1, "position": 0}
    made = pa.table([pa.array([row], PREPARED)], schema=pa.schema([lt.BlobDescriptorArrayBuilder("b").field], MANAGED))
    ds = lt.write_dataset(made, tmp_path / "t", data_storage_version="2.2")
    with pytest.raises(CorruptFileError):
        ds.read_blobs("b", indices=[0])


def test_numbers_of_managed_blobs() -> None:
    builder = lt.BlobDescriptorArrayBuilder("b")
    for offset, size, base in ((-1, 1, None), (0, 1 << 64, None), (0, 1, 1 << 32), (0, 1, -1)):
        with pytest.raises(OutOfRangeError):
            builder.append_managed("x", offset, size, base_id=base)
    assert len(builder.finish()) == 0
