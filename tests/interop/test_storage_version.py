"""`data_storage_version` of new tables, and of tables whose files have several formats, compared with pylance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import lance.file
import pyarrow as pa
import pytest

import lancetable
import lancetable.file
from lancetable.errors import RetryableCommitConflictError, UnsupportedFeatureError

ROWS = pa.table({"a": range(4)})
MIXED = 256  # the feature flag of tables with files of several formats


def appended(library: Any, uri: Path, version: str) -> None:
    library.write_dataset(ROWS, uri, mode="append", data_storage_version=version)


def overwritten(library: Any, uri: Path, version: str) -> None:
    library.write_dataset(ROWS, uri, mode="overwrite", data_storage_version=version)


def append_committed(library: Any, uri: Path, version: str) -> None:
    fragments = library.fragment.write_fragments(ROWS, uri, data_storage_version=version)
    library.LanceDataset.commit(uri, library.LanceOperation.Append(fragments), read_version=1)


def overwrite_committed(library: Any, uri: Path, version: str) -> None:
    fragments = library.fragment.write_fragments(ROWS, uri, mode="overwrite", data_storage_version=version)
    library.LanceDataset.commit(uri, library.LanceOperation.Overwrite(ROWS.schema, fragments))


def transaction_committed(library: Any, uri: Path, version: str) -> None:
    transaction = library.fragment.write_fragments(
        ROWS, uri, mode="overwrite", data_storage_version=version, return_transaction=True
    )
    library.LanceDataset.commit(uri, transaction)


def mixed_overwrite_committed(library: Any, uri: Path, version: str) -> None:
    fragments = [
        *library.fragment.write_fragments(ROWS, uri, data_storage_version=version),
        *library.fragment.write_fragments(ROWS, uri),
    ]
    library.LanceDataset.commit(uri, library.LanceOperation.Overwrite(ROWS.schema, fragments))


def empty_overwrite_committed(library: Any, uri: Path, version: str) -> None:
    append_committed(library, uri, version)
    library.LanceDataset.commit(uri, library.LanceOperation.Overwrite(ROWS.schema, []))


def emptied(library: Any, uri: Path, version: str) -> None:
    append_committed(library, uri, version)
    library.dataset(uri).delete("true")


def compacted(library: Any, uri: Path, version: str) -> None:
    append_committed(library, uri, version)
    library.dataset(uri).optimize.compact_files()


def seen(uri: Path) -> tuple[Any, ...]:
    """Return the formats of a table and of its files, and whether it declares several, as both libraries see them."""
    versions = {library.dataset(uri).data_storage_version for library in (lance, lancetable)}
    manifest = lancetable.dataset(uri).table_version.manifest
    files = [(file.major, file.minor) for fragment in manifest.fragments for file in fragment.files]
    return versions, files, bool(manifest.message.reader_feature_flags & MIXED)


CHANGES: list[Callable[[Any, Path, str], None]] = [
    appended, overwritten, append_committed, overwrite_committed, transaction_committed, mixed_overwrite_committed,
    empty_overwrite_committed, emptied, compacted,
]  # fmt: skip
PAIRS = [("2.0", "2.2"), ("2.2", "2.0"), ("2.1", "2.2"), ("2.2", "2.1")]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize(("table", "files"), PAIRS)
def test_changes_with_files_of_another_format(table: str, files: str, change: Any, tmp_path: Path) -> None:
    found = []
    for library in (lance, lancetable):
        uri = tmp_path / library.__name__
        library.write_dataset(ROWS, uri, data_storage_version=table)
        change(library, uri, files)
        before = seen(uri)
        library.write_dataset(ROWS, uri, mode="append")  # in the format of the table
        found.append((before, seen(uri)))
    assert found[0] == found[1]
    assert len(found[0][0][0]) == 1


@pytest.mark.parametrize("change", [overwritten, overwrite_committed, transaction_committed])
def test_overwriting_a_legacy_table_with_newer_files_changes_its_format(change: Any, tmp_path: Path) -> None:
    for library in (lance, lancetable):
        uri = tmp_path / library.__name__
        library.write_dataset(ROWS, uri, data_storage_version="0.1")
        change(library, uri, "2.1")
        assert seen(uri) == ({"2.1"}, [(2, 1)], False)


def test_overwriting_a_newer_table_with_legacy_files_raises(tmp_path: Path) -> None:
    for library, error in ((lance, OSError), (lancetable, RetryableCommitConflictError)):
        uri = tmp_path / library.__name__
        library.write_dataset(ROWS, uri, data_storage_version="2.1")
        with pytest.raises(error, match="mixed"):
            overwrite_committed(library, uri, "0.1")
        assert seen(uri) == ({"2.1"}, [(2, 1)], False)


@pytest.mark.parametrize("version", ["0.1", "2.0", "2.1", "2.2"])
def test_a_table_created_by_a_commit_has_the_format_of_its_files(version: str, tmp_path: Path) -> None:
    for library in (lance, lancetable):
        uri = tmp_path / library.__name__
        fragments = library.fragment.write_fragments(ROWS, uri, data_storage_version=version)
        library.LanceDataset.commit(uri, library.LanceOperation.Overwrite(ROWS.schema, fragments))
        assert seen(uri)[0] == {version}


NAMES = [None, "0.1", "legacy", "Legacy", "2.0", "0.3", "2.1", "2.2", "stable", "Stable"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_formats_have_the_meaning_of_pylance(name: str | None, tmp_path: Path) -> None:
    found = []
    for library in (lance, lancetable):
        uri, old, path = (tmp_path / f"{library.__name__}{kind}" for kind in ("new", "old", "file"))
        table = library.write_dataset(ROWS, uri, data_storage_version=name)
        (fragment,) = library.fragment.write_fragments(ROWS, tmp_path / "fragments", data_storage_version=name)
        created = library.LanceFragment.create(tmp_path / "created", ROWS, data_storage_version=name)
        files = [(each.files[0].file_major_version, each.files[0].file_minor_version) for each in (fragment, created)]
        library.write_dataset(ROWS, old, data_storage_version="2.0")
        if table.data_storage_version != "0.1":
            with library.file.LanceFileWriter(str(path), ROWS.schema, version=name) as writer:
                writer.write_batch(ROWS)
            files.append(tuple(path.read_bytes()[-8:-4]))
            overwritten(library, old, name)
        found.append((table.data_storage_version, files, library.dataset(old).data_storage_version))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["", "2", "2.4", "latest"])
def test_unknown_names_of_formats_raise(name: str, tmp_path: Path) -> None:
    for library in (lance, lancetable):
        with pytest.raises(ValueError, match="Unknown Lance storage version"):
            library.write_dataset(ROWS, tmp_path / "t", data_storage_version=name)


@pytest.mark.parametrize("name", ["next", "2.3"])
def test_unreleased_formats_are_refused_although_pylance_writes_them(name: str, tmp_path: Path) -> None:
    theirs = lance.write_dataset(ROWS, tmp_path / "theirs", data_storage_version=name)
    assert theirs.data_storage_version == "2.3"
    for refused in (
        lambda: lancetable.write_dataset(ROWS, tmp_path / "ours", data_storage_version=name),
        lambda: lancetable.dataset(tmp_path / "theirs").to_table(),
    ):
        with pytest.raises(UnsupportedFeatureError, match=r"2\.3"):
            refused()


def test_a_table_created_from_nothing_is_stable(tmp_path: Path) -> None:
    for library in (lance, lancetable):
        uri = tmp_path / library.__name__
        library.LanceDataset.commit(uri, library.LanceOperation.Overwrite(ROWS.schema, []))
        assert seen(uri) == ({"2.2"}, [], False)
        assert library.file.stable_version() == "2.2"
