"""Tags (names of versions) and branches (separate sequences of versions)."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, TypeVar

from lancetable import ops
from lancetable.errors import CorruptFileError, InvalidInputError, RefNotFoundError
from lancetable.format.refs import BranchContents, TagContents, parse_time
from lancetable.types import Branch, Reference, Tag

if TYPE_CHECKING:
    from lancetable.dataset import LanceDataset

__all__ = ["Branches", "Tags"]

T = TypeVar("T")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Tags:
    """The tags of a table. A tagged version is kept by every cleanup until the tag is deleted.

    Names consist of letters, digits, ".", "-" and "_"; others raise InvalidRefError.

    Examples
    --------
    >>> ds.tags.create("before", 1)
    >>> lancetable.dataset("flights.lance", version="before").count_rows()
    6
    >>> ds.tags
    Tags(before=1)
    """

    def __init__(self, dataset: LanceDataset) -> None:
        self._dataset = dataset

    def list(self) -> dict[str, Tag]:
        """Return all tags by name."""
        return {name: public_tag(tag) for name, tag in ops.tags.list_tags(self._dataset.table_version).items()}

    def list_ordered(self, order: str | None = None) -> builtins.list[tuple[str, Tag]]:
        """Return all tags sorted by version, "desc" (the default) or "asc", then by name.

        Raises InvalidInputError for another order.
        """
        return sort_refs(self.list(), lambda tag: tag["version"], order)

    def create(self, tag: str, reference: Reference | None = None) -> None:
        """Create a tag for a version, by default the version of this dataset.

        `reference` is a version number, the name of another tag, or (branch, version).

        Raises
        ------
        AlreadyExistsError
            If the name is in use.
        VersionNotFoundError, RefNotFoundError
            If the reference does not exist.
        InvalidRefError
            If the name is invalid.
        """
        ops.tags.create_tag(self._dataset.table_version, tag, reference)

    def update(self, tag: str, reference: Reference | None = None) -> None:
        """Move an existing tag. Raises RefNotFoundError if it does not exist, and the errors of `create`."""
        ops.tags.update_tag(self._dataset.table_version, tag, reference)

    def delete(self, tag: str) -> None:
        """Remove a tag, but not its version. Raises RefNotFoundError if the tag does not exist."""
        ops.tags.delete_tag(self._dataset.table_version, tag)

    def get_version(self, tag: str) -> int:
        """Return the version number of a tag.

        Raises
        ------
        RefNotFoundError
            If the tag does not exist.
        """
        contents = ops.tags.list_tags(self._dataset.table_version).get(tag)
        if contents is None:
            raise RefNotFoundError(f"Ref not found error: tag {tag} does not exist", ref=tag)
        return contents.version

    def replace_metadata(self, tag: str, metadata: dict[str, str]) -> None:
        """Replace the metadata of a tag. Raises RefNotFoundError if it does not exist."""
        ops.tags.replace_tag_metadata(self._dataset.table_version, tag, metadata)

    def __repr__(self) -> str:
        versions = [f"{name}={tag['version']}" for name, tag in sorted(self.list().items())]
        return f"Tags({', '.join(versions)})"


class Branches:
    """The branches of a table, excluding main. `LanceDataset.create_branch` creates one.

    Names consist of segments of letters, digits, ".", "-" and "_", separated by "/"; others raise InvalidRefError.

    Examples
    --------
    >>> experiment = ds.create_branch("experiment")
    >>> ds.branches
    Branches(experiment)
    >>> ds.checkout_version(("experiment", None)).count_rows()
    8
    """

    def __init__(self, dataset: LanceDataset) -> None:
        self._dataset = dataset

    def list(self) -> dict[str, Branch]:
        """Return all branches by name."""
        contents = ops.branches.list_branches(self._dataset.table_version)
        return {name: public_branch(branch) for name, branch in contents.items()}

    def list_ordered(self, order: str | None = None) -> builtins.list[tuple[str, Branch]]:
        """Return all branches sorted by parent version, "desc" (the default) or "asc", then by name.

        Raises InvalidInputError for another order.
        """
        return sort_refs(self.list(), lambda branch: branch["parent_version"], order)

    def replace_metadata(self, branch: str, metadata: dict[str, str]) -> None:
        """Replace the metadata of a branch. Raises RefNotFoundError if it does not exist."""
        ops.branches.replace_branch_metadata(self._dataset.table_version, branch, metadata)

    def delete(self, branch: str) -> None:
        """Remove a branch with its versions and files.

        Raises
        ------
        RefNotFoundError
            If the branch does not exist.
        InvalidOperationError
            If other branches start from it.
        """
        ops.branches.delete_branch(self._dataset.table_version, branch)

    def __repr__(self) -> str:
        return f"Branches({', '.join(sorted(self.list()))})"


def sort_refs(refs: dict[str, T], version: Callable[[T], int], order: str | None) -> list[tuple[str, T]]:
    """Return tags or branches sorted by version, then by name.

    Raises
    ------
    InvalidInputError
        If the order is unknown.
    """
    if order not in (None, "asc", "desc"):
        raise InvalidInputError(f"Invalid sort order {order!r}. Valid values are: asc, desc")
    by_name = sorted(refs.items(), key=lambda item: item[0])
    return sorted(by_name, key=lambda item: version(item[1]), reverse=order != "asc")


def public_branch(branch: BranchContents) -> Branch:
    """Return a branch in public form."""
    return Branch(
        parent_branch=branch.parent_branch,
        branch_identifier=[*branch.lineage],
        parent_version=branch.parent_version,
        create_at=branch.create_at_seconds,
        manifest_size=branch.manifest_size_bytes,
        metadata=dict(branch.metadata),
    )


def public_tag(tag: TagContents) -> Tag:
    """Return a tag in public form."""
    return Tag(
        branch=tag.branch,
        version=tag.version,
        created_at=time_of(tag.created_at),
        updated_at=time_of(tag.updated_at),
        manifest_size=tag.manifest_size_bytes,
        metadata=dict(tag.metadata),
    )


def time_of(text: str | None) -> datetime | None:
    """Parse a time in a tag file, in UTC, truncated to microseconds.

    Raises
    ------
    CorruptFileError
        If it is invalid.
    """
    if text is None:
        return None
    try:
        return EPOCH + timedelta(microseconds=parse_time(text) // 1000)
    except (ValueError, OverflowError) as error:
        raise CorruptFileError(f"invalid creation time {text[:50]!r} of a tag") from error
