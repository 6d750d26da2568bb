"""Ref files: find, list, and errors for damaged files and unsafe names."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

from lancetable.errors import CorruptFileError, InvalidRefError, RefNotFoundError
from lancetable.format.refs import TagContents
from lancetable.table import refs
from lancetable.table.version import TableVersion


def test_tags_are_written_found_listed_and_deleted(three_fragments: TableVersion) -> None:
    store, base = three_fragments.store, three_fragments.base
    assert refs.TAGS.find(store, base, "t") is None
    refs.TAGS.write(store, base, "t", TagContents(1, 100))
    assert refs.TAGS.find(store, base, "t") == refs.TAGS.read(store, base, "t") == TagContents(1, 100)
    assert refs.TAGS.list(store, base) == {"t": TagContents(1, 100)}
    refs.TAGS.delete(store, base, "t")
    refs.TAGS.delete(store, base, "t")
    with pytest.raises(RefNotFoundError, match="t does not exist"):
        refs.TAGS.read(store, base, "t")


def test_branches_of_pylance_are_read(three_fragments: TableVersion) -> None:
    ds = lance.dataset(three_fragments.uri)
    ds.create_branch("dev/a", 1)
    ds.create_branch("b", 1)
    store, base = three_fragments.store, three_fragments.base
    found = refs.BRANCHES.list(store, base)
    theirs = ds.branches.list()
    assert list(found) == ["b", "dev/a"]
    for name, branch in found.items():
        assert branch.parent_version == theirs[name]["parent_version"]
        assert branch.manifest_size_bytes == theirs[name]["manifest_size"]
        refs.BRANCHES.check_exists(store, base, name)
    with pytest.raises(RefNotFoundError):
        refs.BRANCHES.read(store, base, "c")
    for hostile in ("../b", "a//b", "main", ""):
        with pytest.raises(InvalidRefError):
            refs.BRANCHES.read(store, base, hostile)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version": 1}',
        b'{"version": "1", "manifestSize": 1}',
        b'{"version": -1, "manifestSize": 1}',
    ],
)
def test_damaged_tags_are_rejected(three_fragments: TableVersion, data: bytes) -> None:
    store, base = three_fragments.store, three_fragments.base
    store.put(f"{base}/_refs/tags/t.json", data)
    with pytest.raises(CorruptFileError, match=r"t\.json"):
        refs.TAGS.read(store, base, "t")


def test_a_huge_tag_file_is_not_read(three_fragments: TableVersion) -> None:
    path = Path(three_fragments.base) / "_refs" / "tags" / "t.json"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(CorruptFileError, match="too large"):
        refs.TAGS.read(three_fragments.store, three_fragments.base, "t")
