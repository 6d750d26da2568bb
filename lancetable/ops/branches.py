"""Branches: lines of versions that start as a shallow clone of one of the table's versions, below `tree` of its root.

    _refs/branches/{name}.json     that there is such a branch, and where it sprang from
    tree/{name}/...                its manifests and files, as those of a table

A branch is made directory first and ref last, and removed ref first: what a crash leaves behind is no branch. Such
remains are in the way of another branch with the name, until `delete_branch` removes them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import replace

from lancetable.commit.clone import commit_clone
from lancetable.errors import (
    AlreadyExistsError,
    CommitStateUnknownError,
    InvalidOperationError,
    LanceError,
    RefNotFoundError,
    StoreError,
    VersionNotFoundError,
)
from lancetable.format import transaction as tx
from lancetable.format.paths import BRANCH_CONTENTS, branch_root, join
from lancetable.format.refs import BranchContents, check_branch_name
from lancetable.ops.clone import address_of
from lancetable.store.base import ObjectStore
from lancetable.table import refs
from lancetable.table.version import Reference, TableVersion, checkout, uri_of_branch

__all__ = ["create_branch", "delete_branch", "list_branches", "replace_branch_metadata"]


def create_branch(version: TableVersion, name: str, reference: Reference | None = None) -> TableVersion:
    """A branch that starts at `reference` (None: at `version`); returns its first version.

    Raises AlreadyExistsError for a name in use, InvalidRefError for one that no branch may have, VersionNotFoundError
    and RefNotFoundError for the reference.
    """
    check_branch_name(name)
    store, main = version.store, version.main_base
    source = version if reference is None else checkout(version, reference)
    taken = AlreadyExistsError(f"Ref conflict error: branch {name} already exists", path=version.uri)
    if refs.find_branch(store, main, name) is not None:
        raise taken
    lineage = () if source.branch is None else refs.read_branch(store, main, source.branch).lineage
    operation = tx.Clone(True, source.version, address_of(source), ref_name=source.branch, branch_name=name)
    uri = uri_of_branch(version, name)
    try:
        first = commit_clone(source, operation, store, branch_root(main, name), uri, version.handler)
    except AlreadyExistsError as error:
        if refs.find_branch(store, main, name) is not None:
            raise taken from error
        raise AlreadyExistsError(
            f"{uri} holds the remains of a branch that was not made, or not deleted, to its end: delete branch {name} "
            "and try again",
            path=uri,
        ) from error
    size = source.location.size_bytes
    assert size is not None, "a manifest that was read has a size"
    contents = BranchContents(
        source.version,
        int(time.time()),
        size,
        source.branch,
        (*lineage, (source.version, secrets.token_hex(16))),
    )
    if not refs.create_branch(store, main, name, contents):
        raise taken
    # From here on others see the branch. Who did not may have taken what it springs from, and the files.
    try:
        gone = _gone(version, source)
    except StoreError as error:
        raise CommitStateUnknownError(
            f"{version.uri}: branch {name} was made, but it cannot be seen whether what it springs from is still there:"
            f" {error}. Read from the branch; if files are missing, delete it and make it again",
            version=first.version,
        ) from error
    if gone is not None:
        delete_branch(version, name)
        raise VersionNotFoundError(
            f"{version.uri}: {gone} while branch {name} was made from it", version=source.version
        )
    return first


def _gone(version: TableVersion, source: TableVersion) -> str | None:
    """What has become of the version that a branch was made from, None if it is there."""
    store, main = version.store, version.main_base
    if source.branch is not None and refs.find_branch(store, main, source.branch) is None:
        return f"branch {source.branch} was deleted"
    if version.handler.locate(store, source.base, source.version, source.location.naming) is None:
        return f"version {source.version} was cleaned up"
    return None


def list_branches(version: TableVersion) -> dict[str, BranchContents]:
    """All branches of the table by name, main excluded."""
    return refs.list_branches(version.store, version.main_base)


def replace_branch_metadata(version: TableVersion, name: str, metadata: Mapping[str, str]) -> None:
    """Give a branch other key/values. Raises RefNotFoundError."""
    old = _read(version, name)
    refs.write_branch(version.store, version.main_base, name, replace(old, metadata=dict(metadata)))


def delete_branch(version: TableVersion, name: str) -> None:
    """Remove a branch with all its versions and files, or what is left of one; other branches below the same directory
    stay.

    Raises RefNotFoundError, and InvalidOperationError while other branches spring from it and need its files.
    """
    store, main = version.store, version.main_base
    root = branch_root(main, check_branch_name(name))
    found = refs.find_branch(store, main, name)
    if found is None and not _has_files(store, root):
        raise _missing(name)
    _check_no_children(version, name)
    if found is not None:
        refs.delete_branch(store, main, name)
        try:
            _check_no_children(version, name)
        except LanceError:
            # Made meanwhile, from a branch that was still there to be seen: it needs the files.
            refs.create_branch(store, main, name, found)
            raise
    for folder in BRANCH_CONTENTS:
        store.delete_prefix(join(root, folder))
    if next(iter(store.list_recursive(root)), None) is None:
        store.delete_prefix(root)


def _check_no_children(version: TableVersion, name: str) -> None:
    children = [
        (child, each.parent_version) for child, each in list_branches(version).items() if each.parent_branch == name
    ]
    if children:
        raise InvalidOperationError(
            f"Ref conflict error: Branch {name} is referenced by {children} versions, can not delete; "
            "delete these branches first"
        )


def _read(version: TableVersion, name: str) -> BranchContents:
    found = refs.find_branch(version.store, version.main_base, check_branch_name(name))
    if found is None:
        raise _missing(name)
    return found


def _missing(name: str) -> RefNotFoundError:
    return RefNotFoundError(f"Ref not found error: branch {name} does not exist", ref=name)


def _has_files(store: ObjectStore, root: str) -> bool:
    """Whether anything of a branch lies below its directory; branches below that are others."""
    folders = (store.list_recursive(join(root, folder)) for folder in BRANCH_CONTENTS)
    return any(next(iter(found), None) is not None for found in folders)
