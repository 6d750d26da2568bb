"""`ops.validate` finds mismatches, `ops.stats` counts, `ops.drop` refuses directories that are not tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import lancetable as lance
from lancetable.errors import CorruptFileError, DatasetNotFoundError, InvalidInputError, NotFoundError
from lancetable.format.fragment import Fragment
from lancetable.ops.maintain.drop import drop
from lancetable.ops.maintain.stats import data_stats, dataset_stats
from lancetable.ops.maintain.validate import validate, validate_fragment
from lancetable.table.version import TableVersion


@pytest.fixture
def version(tmp_path: Path) -> TableVersion:
    """Write two fragments of 3 and 2 rows, with one row deleted in the first."""
    table = pa.table({"id": pa.array(range(5), pa.int64()), "p": [{"x": i} for i in range(5)]})
    ds = lance.write_dataset(table, tmp_path / "t", max_rows_per_file=3)
    ds.delete("id = 1")
    return ds.table_version


def first(version: TableVersion) -> Fragment:
    return version.manifest.fragments[0]


def test_valid_table_passes(version: TableVersion) -> None:
    validate(version)


def test_wrong_file_sizes_and_row_counts_raise(version: TableVersion) -> None:
    fragment = first(version)
    (file,) = fragment.files
    with pytest.raises(CorruptFileError, match="expected 7"):
        validate_fragment(version, replace(fragment, files=(replace(file, size_bytes=7),)))
    with pytest.raises(CorruptFileError, match="expected 4, found 3"):
        validate_fragment(version, replace(fragment, physical_rows=4))
    with pytest.raises(CorruptFileError, match=r"missing column .*found 9"):
        validate_fragment(version, replace(fragment, files=(replace(file, column_indices=(0, 9, 1)),)))
    with pytest.raises(NotFoundError):
        validate_fragment(version, replace(fragment, files=(replace(file, path="none.lance"),)))


def test_wrong_deletion_files_raise(version: TableVersion) -> None:
    fragment = first(version)
    assert fragment.deletion_file is not None
    wrong = replace(fragment, deletion_file=replace(fragment.deletion_file, num_deleted_rows=2))
    with pytest.raises(CorruptFileError, match="2"):
        validate_fragment(version, wrong)
    for rows in (1, None):
        with pytest.raises(CorruptFileError, match="past the end"):
            validate_fragment(version, replace(fragment, files=(), physical_rows=rows))


def test_files_without_recorded_size_or_rows_pass(version: TableVersion) -> None:
    fragment = first(version)
    (file,) = fragment.files
    validate_fragment(version, replace(fragment, physical_rows=None, files=(replace(file, size_bytes=None),)))


def test_statistics_count_rows_fragments_and_bytes(version: TableVersion) -> None:
    counts = dataset_stats(version, max_rows_per_group=3)
    assert (counts.num_deleted_rows, counts.num_fragments, counts.num_small_files) == (1, 2, 1)
    sizes = {field.id: field.bytes_on_disk for field in data_stats(version).fields}
    # A struct has no column of its own, or in 2.0 files one without bytes.
    assert sizes[0] == sizes[2] > 0 == sizes[1]


def test_drop_removes_only_tables(version: TableVersion, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    for refused in (tmp_path / "notes", "/"):
        with pytest.raises(InvalidInputError, match="cannot drop"):
            drop(str(refused))
    assert (tmp_path / "notes" / "a.txt").read_text() == "mine"
    with pytest.raises(DatasetNotFoundError):
        drop(str(tmp_path / "none"))
    drop(version.uri)
    assert not Path(version.uri).exists()


def test_drop_refuses_a_table_whose_manifest_is_damaged(version: TableVersion) -> None:
    for manifest in (Path(version.uri) / "_versions").glob("*.manifest"):
        manifest.write_bytes(b"nothing")
    with pytest.raises(InvalidInputError, match="cannot drop"):
        drop(version.uri)
    assert Path(version.uri).exists()
