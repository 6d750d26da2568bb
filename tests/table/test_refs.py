"""Ref files: found, listed, refused when damaged or hostile."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

from lancetable.errors import CorruptFileError, InvalidRefError, RefNotFoundError
from lancetable.format.refs import TagContents
from lancetable.table import refs
from lancetable.table.version import TableVersion


def test_write_find_list_delete(three_fragments: TableVersion) -> None:
    store, base = three_fragments.store, three_fragments.base
    assert refs.find_tag(store, base, "t") is None
    refs.write_tag(store, base, "t", TagContents(1, 100))
    assert refs.find_tag(store, base, "t") == refs.read_tag(store, base, "t") == TagContents(1, 100)
    assert refs.list_tags(store, base) == {"t": TagContents(1, 100)}
    refs.delete_tag(store, base, "t")
    refs.delete_tag(store, base, "t")
    with pytest.raises(RefNotFoundError, match="t does not exist"):
        refs.read_tag(store, base, "t")


def test_branches_of_pylance(three_fragments: TableVersion) -> None:
    ds = lance.dataset(three_fragments.uri)
    ds.create_branch("dev/a", 1)
    ds.create_branch("b", 1)
    store, base = three_fragments.store, three_fragments.base
    found = refs.list_branches(store, base)
    theirs = ds.branches.list()
    assert list(found) == ["b", "dev/a"]
    for name, branch in found.items():
        assert branch.parent_version == theirs[name]["parent_version"]
        assert branch.manifest_size_bytes == theirs[name]["manifest_size"]
        refs.check_branch_exists(store, base, name)
    with pytest.raises(RefNotFoundError):
        refs.read_branch(store, base, "c")
    for hostile in ("../b", "a//b", "main", ""):
        with pytest.raises(InvalidRefError):
            refs.read_branch(store, base, hostile)


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
def test_damaged_tags(three_fragments: TableVersion, data: bytes) -> None:
    store, base = three_fragments.store, three_fragments.base
    store.put(f"{base}/_refs/tags/t.json", data)
    with pytest.raises(CorruptFileError, match=r"t\.json"):
        refs.read_tag(store, base, "t")


def test_a_giant_tag_is_not_read(three_fragments: TableVersion) -> None:
    path = Path(three_fragments.base) / "_refs" / "tags" / "t.json"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(CorruptFileError, match="too many"):
        refs.read_tag(three_fragments.store, three_fragments.base, "t")
