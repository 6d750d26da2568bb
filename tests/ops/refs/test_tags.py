"""Tags and restore; lancetable and pylance read each other's tags."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lancetable.errors import AlreadyExistsError, InvalidRefError, RefNotFoundError, VersionNotFoundError
from lancetable.ops.change.delete import delete
from lancetable.ops.refs import tags as tag_ops
from lancetable.ops.refs.restore import restore
from lancetable.store.fsspec_store import FsspecStore
from lancetable.table import refs as table_refs
from lancetable.table.version import TableVersion, checkout, latest, open_version


@pytest.fixture
def version(tmp_path: Path) -> TableVersion:
    """Write three versions with ten, eight and six rows; return version 3."""
    uri = str(tmp_path / "t.lance")
    ds = lance.write_dataset(pa.table({"id": range(10)}), uri, data_storage_version="2.0")
    ds.delete("id < 2")
    ds.delete("id < 4")
    return open_version(uri)


def pylance_tags(version: TableVersion) -> Any:
    return lance.dataset(version.uri).tags


def test_tags_are_created_listed_and_read(version: TableVersion) -> None:
    tag_ops.create_tag(version, "newest")
    tag_ops.create_tag(version, "first-1_a.b", 1)
    tag_ops.create_tag(version, "same", "first-1_a.b")
    tag_ops.create_tag(version, "main", ("main", 2))
    assert {name: tag.version for name, tag in tag_ops.list_tags(version).items()} == {
        "first-1_a.b": 1,
        "main": 2,
        "newest": 3,
        "same": 1,
    }
    theirs = pylance_tags(version).list()
    for name, tag in tag_ops.list_tags(version).items():
        assert theirs[name]["version"] == tag.version
        assert theirs[name]["manifest_size"] == tag.manifest_size_bytes
        assert theirs[name]["branch"] is None
    assert lance.dataset(version.uri, version="first-1_a.b").count_rows() == 10
    assert checkout(version, "main").version == 2


def test_tag_file_equals_that_of_pylance(version: TableVersion) -> None:
    tag_ops.create_tag(version, "ours", 2)
    pylance_tags(version).create("theirs", 2)
    ours, theirs = (
        json.loads((Path(version.base) / "_refs" / "tags" / f"{name}.json").read_text()) for name in ("ours", "theirs")
    )
    assert list(ours) == list(theirs)
    for key in ("branch", "version", "manifestSize", "metadata"):
        assert ours[key] == theirs[key]


def test_tags_of_pylance_are_read(version: TableVersion) -> None:
    pylance_tags(version).create("theirs", 1)
    assert table_refs.TAGS.read(version.store, version.main_base, "theirs").version == 1
    assert open_version(version.uri, "theirs").version == 1
    tag_ops.update_tag(version, "theirs", 2)
    assert pylance_tags(version).get_version("theirs") == 2


def test_update_keeps_the_creation_time(version: TableVersion) -> None:
    tag_ops.create_tag(version, "t", 1)
    before = table_refs.TAGS.read(version.store, version.main_base, "t")
    tag_ops.replace_tag_metadata(version, "t", {"k": "v"})
    tag_ops.update_tag(version, "t")
    after = table_refs.TAGS.read(version.store, version.main_base, "t")
    assert (after.version, after.created_at, after.metadata) == (3, before.created_at, {"k": "v"})
    assert after.updated_at is not None
    assert before.updated_at is not None
    assert after.updated_at > before.updated_at


def test_deleted_tag_is_missing(version: TableVersion) -> None:
    tag_ops.create_tag(version, "t")
    tag_ops.delete_tag(version, "t")
    assert tag_ops.list_tags(version) == {}
    assert pylance_tags(version).list() == {}


@pytest.mark.parametrize("exclusive", [True, False])
def test_concurrent_creation_of_a_tag_raises_for_one_writer(
    version: TableVersion, monkeypatch: pytest.MonkeyPatch, exclusive: bool
) -> None:
    if not exclusive:
        version = replace(version, store=FsspecStore("file", {}))
    tag_ops.create_tag(version, "t", 1)
    # The other writer checked the name before the first one wrote the tag.
    monkeypatch.setattr(table_refs.RefFiles, "find", lambda *arguments: None)
    with pytest.raises(AlreadyExistsError):
        tag_ops.create_tag(version, "t", 2)
    monkeypatch.undo()
    assert table_refs.TAGS.read(version.store, version.main_base, "t").version == 1


def test_tag_errors_match_pylance(version: TableVersion) -> None:
    tag_ops.create_tag(version, "t", 1)
    with pytest.raises(AlreadyExistsError):
        tag_ops.create_tag(version, "t", 2)
    assert table_refs.TAGS.read(version.store, version.main_base, "t").version == 1
    for change in (tag_ops.delete_tag, tag_ops.update_tag):
        with pytest.raises(RefNotFoundError):
            change(version, "missing")
    with pytest.raises(RefNotFoundError):
        table_refs.TAGS.read(version.store, version.main_base, "missing")
    with pytest.raises(RefNotFoundError):
        tag_ops.create_tag(version, "u", "missing")
    with pytest.raises(VersionNotFoundError):
        tag_ops.create_tag(version, "u", 99)
    for wrong in ("", "a/b", "..", ".a", "a.", "a.lock", "a b", "../../x", "a\0"):
        with pytest.raises(InvalidRefError):
            tag_ops.create_tag(version, wrong)
        with pytest.raises(OSError, match=r"Ref is invalid|Ref"):
            pylance_tags(version).create(wrong, 1)
    assert list(tag_ops.list_tags(version)) == ["t"]


def test_stray_files_are_not_listed_as_tags(version: TableVersion) -> None:
    tag_ops.create_tag(version, "t")
    directory = Path(version.base) / "_refs" / "tags"
    (directory / "note.txt").write_text("x")
    (directory / "a b.json").write_text("{}")
    assert list(tag_ops.list_tags(version)) == ["t"]


def test_restore(version: TableVersion) -> None:
    restored = restore(checkout(version, 1))
    assert restored.version == 4
    ds = lance.dataset(version.uri)
    assert (ds.version, ds.count_rows()) == (4, 10)
    assert restored.manifest.fragments.num_rows() == 10
    after, number = delete(restored, "id = 9")
    assert (after.version, number) == (5, 1)
    assert restore(checkout(after, 2)).manifest.fragments.num_rows() == 8
    assert lance.dataset(version.uri, version=5).count_rows() == 9


def test_restore_of_the_newest_version_is_a_commit(version: TableVersion) -> None:
    assert restore(version).version == 4
    assert latest(version).manifest.fragments.num_rows() == 6


def test_restore_brings_back_the_schema(version: TableVersion) -> None:
    ds = lance.dataset(version.uri)
    ds.add_columns({"twice": "id * 2"})
    ds.update_config({"a": "b"})
    restored = restore(checkout(latest(version), 3))
    assert restored.schema.names == ["id"]
    assert restored.manifest.config == {}
    assert lance.dataset(version.uri).schema.names == ["id"]


def test_tags_of_branches_are_stored_at_the_main_root(version: TableVersion) -> None:
    branch = lance.dataset(version.uri).create_branch("dev", 2)
    on_branch = checkout(version, ("dev", None))
    tag_ops.create_tag(on_branch, "b")
    assert table_refs.TAGS.read(version.store, version.main_base, "b").branch == "dev"
    assert checkout(version, "b").branch == "dev"
    assert branch.tags.get_version("b") == 2
