"""Branches: sequences of versions that start as a shallow clone of a table version, stored below `tree` of its root.

    _refs/branches/{name}.json     the ref, which records the version that the branch starts from
    tree/{name}/...                the manifests and files of the branch, with the layout of a table

The directory of a branch is created before the ref, and the ref is deleted before the directory. After a crash the
remaining files therefore are not a branch. They prevent the creation of a branch with the same name until
`delete_branch` removes them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import replace

from lancetable.commit.clone_manifest import commit_clone
from lancetable.errors import (
    AlreadyExistsError,
    CommitStateUnknownError,
    InvalidOperationError,
    LanceError,
    StoreError,
    VersionNotFoundError,
)
from lancetable.format import transaction as tx
from lancetable.format.paths import BRANCH_CONTENTS, branch_root, join
from lancetable.format.refs import BranchContents, check_branch_name
from lancetable.ops.maintain.drop import is_occupied
from lancetable.ops.refs.clone import root_uri_of
from lancetable.table import refs
from lancetable.table.version import Reference, TableVersion, checkout, on_branch


def create_branch(version: TableVersion, name: str, reference: Reference | None = None) -> TableVersion:
    """Create a branch that starts at `reference`, by default at `version`, and return its first version.

    Raises AlreadyExistsError if the name is in use or files of a removed branch exist, InvalidRefError for an invalid
    name, VersionNotFoundError and RefNotFoundError if the reference does not exist or is deleted during the call, and
    CommitStateUnknownError if that cannot be determined.
    """
    check_branch_name(name)
    store, main = version.store, version.main_base
    source = version if reference is None else checkout(version, reference)
    taken = AlreadyExistsError(f"Ref conflict error: branch {name} already exists", path=version.uri)
    if refs.BRANCHES.find(store, main, name) is not None:
        raise taken
    lineage = () if source.branch is None else refs.BRANCHES.read(store, main, source.branch).lineage
    operation = tx.Clone(True, source.version, root_uri_of(source), ref_name=source.branch, branch_name=name)
    branch = on_branch(version, name)
    try:
        first = commit_clone(source, operation, branch)
    except AlreadyExistsError as error:
        if refs.BRANCHES.find(store, main, name) is not None:
            raise taken from error
        raise AlreadyExistsError(
            f"{branch.uri} contains leftover files of a branch whose creation or deletion was interrupted: "
            f"delete branch {name} and try again",
            path=branch.uri,
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
    if not refs.BRANCHES.create(store, main, name, contents):
        raise taken
    # The branch is now visible to other writers. A cleanup or delete that started earlier may have removed its source.
    try:
        source_removed = _source_removed(version, source)
    except StoreError as error:
        raise CommitStateUnknownError(
            f"{version.uri}: branch {name} was created, but checking whether its source still exists failed:"
            f" {error}. Read from the branch; if files are missing, delete and recreate it",
            version=first.version,
        ) from error
    if source_removed is not None:
        delete_branch(version, name)
        raise VersionNotFoundError(
            f"{version.uri}: {source_removed} while branch {name} was being created from it", version=source.version
        )
    return first


def _source_removed(version: TableVersion, source: TableVersion) -> str | None:
    """Return a description of the removal of the source of a new branch; None if the source still exists."""
    store, main = version.store, version.main_base
    if source.branch is not None and refs.BRANCHES.find(store, main, source.branch) is None:
        return f"branch {source.branch} was deleted"
    if version.handler.locate(store, source.base, source.version, source.location.naming) is None:
        return f"version {source.version} was cleaned up"
    return None


def list_branches(version: TableVersion) -> dict[str, BranchContents]:
    """Return all branches of the table by name, excluding main."""
    return refs.BRANCHES.list(version.store, version.main_base)


def replace_branch_metadata(version: TableVersion, name: str, metadata: Mapping[str, str]) -> None:
    """Replace the metadata of a branch. Raises RefNotFoundError."""
    old = refs.BRANCHES.read(version.store, version.main_base, name)
    refs.BRANCHES.write(version.store, version.main_base, name, replace(old, metadata=dict(metadata)))


def delete_branch(version: TableVersion, name: str) -> None:
    """Remove a branch with all its versions and files, or the files of an incomplete branch.

    Other branches below the same directory are kept. Raises RefNotFoundError, and InvalidOperationError if other
    branches start from it, because they reference its files.
    """
    store, main = version.store, version.main_base
    root = branch_root(main, check_branch_name(name))
    contents = refs.BRANCHES.find(store, main, name)
    # Ignore the files of nested branches.
    if contents is None and not any(is_occupied(store, join(root, folder)) for folder in BRANCH_CONTENTS):
        raise refs.BRANCHES.not_found(name)
    _check_no_children(version, name)
    if contents is not None:
        refs.BRANCHES.delete(store, main, name)
        try:
            _check_no_children(version, name)
        except LanceError:
            # A child branch, which references the files, was created before the ref was deleted.
            refs.BRANCHES.create(store, main, name, contents)
            raise
    for folder in BRANCH_CONTENTS:
        store.delete_prefix(join(root, folder))
    if not is_occupied(store, root):
        store.delete_prefix(root)


def _check_no_children(version: TableVersion, name: str) -> None:
    children = [
        (child, contents.parent_version)
        for child, contents in list_branches(version).items()
        if contents.parent_branch == name
    ]
    if children:
        raise InvalidOperationError(
            f"Ref conflict error: Branch {name} is referenced by {children} versions, can not delete; "
            "delete these branches first"
        )
