"""Migration keeps rows, ids, deletions and older versions; interrupted runs continue."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import CorruptFileError, InvalidInputError, RetryableCommitConflictError
from lancetable.format.version import FileVersion
from lancetable.ops.maintain import migrate
from lancetable.ops.maintain.migrate import rename_manifests
from lancetable.table.version import open_version
from tests.support.legacy import TYPES, column


def old_table(uri: Path, library: Any = lancetable, **options: Any) -> pa.Table:
    """Write three fragments in 0.1 with deleted rows and an added column; return the rows with row ids."""
    rng = np.random.default_rng(1)
    kinds = {name: TYPES[name] for name in ("string", "double", "list of structs", "vector", "dictionary", "deep")}
    table = pa.table({"id": range(300), **{name: column(kind, 300, rng) for name, kind in kinds.items()}})
    dataset = library.write_dataset(table, uri, data_storage_version="0.1", max_rows_per_file=100, **options)
    dataset.delete("id % 7 = 3")
    lance.dataset(uri).add_columns({"twice": "id * 2"})
    return lancetable.dataset(uri).to_table(with_row_id=True)


def shows(dataset: Any, expected: pa.Table) -> None:
    assert repr(dataset.to_table(with_row_id=True).to_pylist()) == repr(expected.to_pylist())


@pytest.mark.parametrize("target", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("writer", [lance, lancetable], ids=lambda module: module.__name__)
def test_migration_keeps_rows_ids_and_history(writer: Any, target: str, tmp_path: Path) -> None:
    uri = tmp_path / "t"
    expected = old_table(uri, writer)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    dataset = lancetable.dataset(uri)
    before = dataset.version
    done = dataset.optimize.migrate(target)
    assert (done.fragments_changed, done.files_written, done.files_reused) == (3, 3, 0) and done.bytes_written > 0
    assert dataset.version == before + 1 and dataset.data_storage_version == target
    for library in (lancetable, lance):
        shows(library.dataset(uri), expected)
        shows(library.dataset(uri, version=before), expected)
    assert "ScalarIndexQuery" in lance.dataset(uri).scanner(filter="id = 100").explain_plan()
    assert lance.dataset(uri).to_table(filter="id = 100").num_rows == 1
    lance.write_dataset(lance.dataset(uri).to_table(limit=3), uri, mode="append")
    assert lancetable.dataset(uri).count_rows() == expected.num_rows + 3
    assert dataset.optimize.migrate(target).fragments_changed == 0
    lancetable.dataset(uri).validate()


def test_migration_between_newer_formats(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    lancetable.write_dataset(pa.table({"a": range(10)}), uri, data_storage_version="2.0", max_rows_per_file=4)
    dataset = lancetable.dataset(uri)
    with pytest.raises(InvalidInputError, match="newer"):
        lancetable.write_dataset(pa.table({"a": [1]}), tmp_path / "u", data_storage_version="2.2").optimize.migrate(
            "2.1"
        )
    with pytest.raises(InvalidInputError, match=r"must be 2\.0 or newer"):
        dataset.optimize.migrate("legacy")
    assert dataset.optimize.migrate("2.1").files_written == 3
    assert lance.dataset(uri).to_table().column("a").to_pylist() == list(range(10))


def test_default_target_is_the_format_of_new_tables(tmp_path: Path) -> None:
    blobs = pa.table([lancetable.blob_array([b"x"])], pa.schema([lancetable.blob_field("b")]))
    dataset = lancetable.write_dataset(blobs, tmp_path / "new")
    assert dataset.optimize.migrate().fragments_changed == 0
    dataset = lancetable.write_dataset(pa.table({"a": [1]}), tmp_path / "old", data_storage_version="0.1")
    assert dataset.optimize.migrate().fragments_changed == 1
    assert dataset.data_storage_version == lance.dataset(tmp_path / "old").data_storage_version == "2.2"


def test_interrupted_migration_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = tmp_path / "t"
    expected = old_table(uri)
    write, written, stop = migrate._write, [], 2

    def dies(*given: Any) -> Any:
        if len(written) == stop:
            raise KeyboardInterrupt
        written.append(write(*given))
        return written[-1]

    monkeypatch.setattr(migrate, "_write", dies)
    with pytest.raises(KeyboardInterrupt):
        lancetable.dataset(uri).optimize.migrate("2.1")
    shows(lance.dataset(uri), expected)
    monkeypatch.undo()
    # One of them is damaged: it is written again.
    path = uri / "data" / written[0].path
    path.write_bytes(path.read_bytes()[:-10])
    # Another one is so old that a cleanup may remove it.
    os.utime(uri / "data" / written[1].path, (1, 1))
    done = lancetable.dataset(uri).optimize.migrate("2.1")
    assert (done.fragments_changed, done.files_written, done.files_reused) == (3, 3, 0)
    shows(lance.dataset(uri), expected)


def test_files_of_an_earlier_run_are_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = tmp_path / "t"
    expected = old_table(uri)

    def dies(*given: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(migrate, "commit_transaction", dies)
    with pytest.raises(KeyboardInterrupt):
        lancetable.dataset(uri).optimize.migrate("2.1")
    monkeypatch.undo()
    done = lancetable.dataset(uri).optimize.migrate("2.1")
    assert (done.files_written, done.files_reused, done.bytes_written) == (0, 3, 0)
    shows(lance.dataset(uri), expected)


def test_concurrent_changes_are_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = tmp_path / "t"
    old_table(uri)
    version = open_version(str(uri))
    commit, changes = (
        migrate.commit_transaction,
        [
            lambda: lance.dataset(uri).delete("id < 10"),
            lambda: lancetable.dataset(uri).insert(lancetable.dataset(uri).to_table(limit=2)),
        ],
    )

    def slow(*given: Any, **options: Any) -> Any:
        if changes:
            changes.pop()()
        return commit(*given, **options)

    monkeypatch.setattr(migrate, "commit_transaction", slow)
    done = migrate.migrate(version, FileVersion.V2_1)
    # The second change deletes the fragment that the first one added.
    assert (done.fragments, done.files_written, done.files_reused) == (3, 4, 6)
    found = lance.dataset(uri).to_table(columns=["id"]).column("id").to_pylist()
    assert found == lancetable.dataset(uri).to_table(columns=["id"]).column("id").to_pylist()
    assert found == [number for number in range(11, 300) if number % 7 != 3]


def test_append_prepared_before_a_migration_does_not_mix_formats(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    lancetable.write_dataset(pa.table({"a": [1]}), uri, data_storage_version="0.1")
    fragments = lancetable.fragment.write_fragments(pa.table({"a": [2]}), uri)
    lancetable.dataset(uri).optimize.migrate()
    with pytest.raises(RetryableCommitConflictError):
        lancetable.LanceDataset.commit(uri, lancetable.LanceOperation.Append(fragments), read_version=1)
    assert lance.dataset(uri).to_table().to_pydict() == {"a": [1]}


def test_table_cannot_mix_formats(tmp_path: Path) -> None:
    dataset = lancetable.write_dataset(
        pa.table({"a": range(4)}), tmp_path / "t", data_storage_version="0.1", max_rows_per_file=2
    )
    for number in (4, 5):
        dataset.insert(pa.table({"a": [number]}))
    with pytest.raises(RetryableCommitConflictError, match="mixed"):
        dataset.optimize.compact_files(data_storage_version="2.1", target_rows_per_fragment=2)
    assert lance.dataset(tmp_path / "t").to_table().to_pydict() == {"a": [0, 1, 2, 3, 4, 5]}


def test_manifests_are_renamed(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    expected = old_table(uri, lance, enable_v2_manifest_paths=False)
    assert (uri / "_versions" / "1.manifest").exists()
    dataset = lancetable.dataset(uri)
    dataset.migrate_manifest_paths_v2()
    names = sorted(path.name for path in (uri / "_versions").glob("*.manifest"))
    assert names == [f"{2**64 - 1 - version}.manifest" for version in (3, 2, 1)]
    for library in (lancetable, lance):
        shows(library.dataset(uri), expected)
        assert library.dataset(uri, version=1).count_rows() == 300
    dataset.delete("id < 100")
    assert lance.dataset(uri).version == 4
    assert rename_manifests(str(uri)) == 0


def test_interrupted_renaming_continues_and_checks_existing_manifests(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    lance.write_dataset(pa.table({"a": [1]}), uri, enable_v2_manifest_paths=False)
    data = (uri / "_versions" / "1.manifest").read_bytes()
    new = uri / "_versions" / f"{2**64 - 2}.manifest"
    new.write_bytes(data)
    assert rename_manifests(str(uri)) == 1
    assert lance.dataset(uri).count_rows() == 1
    (uri / "_versions" / "1.manifest").write_bytes(data + b"x")
    with pytest.raises(CorruptFileError, match="a different manifest"):
        rename_manifests(str(uri))
