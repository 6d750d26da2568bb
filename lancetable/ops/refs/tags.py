"""Tags.

A tag is a small file below the root of the main branch. It is replaced as a whole and is not part of any version.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from lancetable.errors import AlreadyExistsError
from lancetable.format.refs import TagContents, format_time
from lancetable.table import refs
from lancetable.table.version import Reference, TableVersion, checkout


def list_tags(version: TableVersion) -> dict[str, TagContents]:
    """Return all tags of the table by name."""
    return refs.TAGS.list(version.store, version.main_base)


def create_tag(version: TableVersion, name: str, reference: Reference | None = None) -> None:
    """Create a tag for the version of `reference`, by default for `version`.

    Raises AlreadyExistsError if the name is in use, InvalidRefError for an invalid name, VersionNotFoundError and
    RefNotFoundError for the reference.
    """
    taken = AlreadyExistsError(f"Ref conflict error: tag {name} already exists", path=version.uri)
    if refs.TAGS.find(version.store, version.main_base, name) is not None:
        raise taken
    now = format_time(time.time_ns())
    tag = replace(_contents(version, reference), created_at=now, updated_at=now)
    if not refs.TAGS.create(version.store, version.main_base, name, tag):
        raise taken


def update_tag(version: TableVersion, name: str, reference: Reference | None = None) -> None:
    """Move a tag to another version. Raises RefNotFoundError for an unknown tag, and the errors of `create_tag`."""
    old = refs.TAGS.read(version.store, version.main_base, name)
    moved = replace(
        _contents(version, reference),
        created_at=old.created_at,
        updated_at=format_time(time.time_ns()),
        metadata=old.metadata,
    )
    refs.TAGS.write(version.store, version.main_base, name, moved)


def replace_tag_metadata(version: TableVersion, name: str, metadata: Mapping[str, str]) -> None:
    """Replace the metadata of a tag. Raises RefNotFoundError."""
    old = refs.TAGS.read(version.store, version.main_base, name)
    changed = replace(old, metadata=dict(metadata), updated_at=format_time(time.time_ns()))
    refs.TAGS.write(version.store, version.main_base, name, changed)


def delete_tag(version: TableVersion, name: str) -> None:
    """Remove a tag, but not its version. Raises RefNotFoundError."""
    refs.TAGS.check_exists(version.store, version.main_base, name)
    refs.TAGS.delete(version.store, version.main_base, name)


def _contents(version: TableVersion, reference: Reference | None) -> TagContents:
    target = version if reference is None else checkout(version, reference)
    size = target.location.size_bytes
    assert size is not None, "a manifest that was read has a size"
    return TagContents(target.version, size, branch=target.branch)
