"""Tags and branches of a table: reading and writing the small JSON files below `_refs` of the main root."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.errors import CorruptFileError, InvalidRefError, NotFoundError, RefNotFoundError
from lancetable.format.paths import BRANCHES_DIR, TAGS_DIR, branch_path, join, tag_path
from lancetable.format.refs import BranchContents, TagContents, check_branch_name, check_tag_name
from lancetable.store.base import PutOutcome

if TYPE_CHECKING:
    from lancetable.store.base import ObjectStore

__all__ = [
    "check_branch_exists",
    "create_branch",
    "create_tag",
    "delete_branch",
    "delete_tag",
    "find_branch",
    "find_tag",
    "list_branches",
    "list_tags",
    "read_branch",
    "read_tag",
    "write_branch",
    "write_tag",
]

_SUFFIX = ".json"
_MAX_REF_FILE_BYTES = 1024 * 1024


def find_tag(store: ObjectStore, main_base: str, name: str) -> TagContents | None:
    """A tag, None if there is none of this name. Raises InvalidRefError, CorruptFileError."""
    path = tag_path(main_base, check_tag_name(name))
    size = store.find(path)
    return None if size is None else TagContents.from_json(_read_ref(store, path, size), path)


def read_tag(store: ObjectStore, main_base: str, name: str) -> TagContents:
    """As `find_tag`, but a missing tag raises RefNotFoundError."""
    tag = find_tag(store, main_base, name)
    if tag is None:
        raise RefNotFoundError(f"Ref not found: tag {name} does not exist", ref=name)
    return tag


def write_tag(store: ObjectStore, main_base: str, name: str, tag: TagContents) -> None:
    """Write or replace a tag. Not transactional: of two writers at once the later one stays."""
    store.put(tag_path(main_base, check_tag_name(name)), tag.to_json())


def create_tag(store: ObjectStore, main_base: str, name: str, tag: TagContents) -> bool:
    """Write a tag unless there is one of this name; whether it was written. Of two writers at once one wins, where the
    store creates exclusively."""
    return _create(store, tag_path(main_base, check_tag_name(name)), tag.to_json())


def _create(store: ObjectStore, path: str, data: bytes) -> bool:
    if store.capabilities.conditional_create != "native":
        if store.find(path) is not None:
            return False
        store.put(path, data)
        return True
    outcome = store.put_if_absent(path, data)
    if outcome is PutOutcome.UNKNOWN:
        return bytes(store.read_all(path)) == data
    return outcome is PutOutcome.WON


def delete_tag(store: ObjectStore, main_base: str, name: str) -> None:
    """Remove a tag; a missing one is no error here."""
    store.delete([tag_path(main_base, check_tag_name(name))])


def list_tags(store: ObjectStore, main_base: str) -> dict[str, TagContents]:
    """All tags by name, sorted. Tags deleted meanwhile and files that are no tags are left out."""
    tags = {}
    for name in _names(store, join(main_base, TAGS_DIR)):
        try:
            tag = find_tag(store, main_base, name)
        except (InvalidRefError, NotFoundError):
            continue
        if tag is not None:
            tags[name] = tag
    return tags


def find_branch(store: ObjectStore, main_base: str, name: str) -> BranchContents | None:
    """A branch, None if there is none of this name. Raises InvalidRefError, CorruptFileError."""
    path = branch_path(main_base, check_branch_name(name))
    size = store.find(path)
    return None if size is None else BranchContents.from_json(_read_ref(store, path, size), path)


def read_branch(store: ObjectStore, main_base: str, name: str) -> BranchContents:
    """As `find_branch`, but a missing branch raises RefNotFoundError."""
    branch = find_branch(store, main_base, name)
    if branch is None:
        raise RefNotFoundError(f"Ref not found: branch {name} does not exist", ref=name)
    return branch


def create_branch(store: ObjectStore, main_base: str, name: str, branch: BranchContents) -> bool:
    """Write a branch unless there is one of this name; whether it was written. See `create_tag`."""
    return _create(store, branch_path(main_base, check_branch_name(name)), branch.to_json())


def write_branch(store: ObjectStore, main_base: str, name: str, branch: BranchContents) -> None:
    """Replace a branch. Not transactional: of two writers at once the later one stays."""
    store.put(branch_path(main_base, check_branch_name(name)), branch.to_json())


def delete_branch(store: ObjectStore, main_base: str, name: str) -> None:
    """Remove a branch's ref; a missing one is no error here."""
    store.delete([branch_path(main_base, check_branch_name(name))])


def check_branch_exists(store: ObjectStore, main_base: str, name: str) -> None:
    """Raises RefNotFoundError unless there is a branch of this name, InvalidRefError if there cannot be one."""
    if store.find(branch_path(main_base, check_branch_name(name))) is None:
        raise RefNotFoundError(f"Ref not found: branch {name} does not exist", ref=name)


def list_branches(store: ObjectStore, main_base: str) -> dict[str, BranchContents]:
    """All branches by name, sorted. Branches deleted meanwhile and files that are no branches are left out."""
    branches = {}
    for name in _names(store, join(main_base, BRANCHES_DIR)):
        branch = name.replace("%2F", "/")
        try:
            branches[branch] = read_branch(store, main_base, branch)
        except (InvalidRefError, NotFoundError):
            continue
    return branches


def _names(store: ObjectStore, prefix: str) -> list[str]:
    return sorted(meta.name[: -len(_SUFFIX)] for meta in store.list_names(prefix) if meta.name.endswith(_SUFFIX))


def _read_ref(store: ObjectStore, path: str, size: int) -> bytes:
    if size > _MAX_REF_FILE_BYTES:
        raise CorruptFileError(
            f"{path}: {size} bytes are too many for a ref", path=path, expected=_MAX_REF_FILE_BYTES, found=size
        )
    # Refs are replaced in place: the size looked up may already be another one's.
    return bytes(store.read_all(path))
