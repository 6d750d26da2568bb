"""Tags, and restores of old versions.

A tag is a small file below the root of the main branch. It is replaced as a whole and is not part of any version.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from lancetable.commit.loop import commit_transaction
from lancetable.errors import AlreadyExistsError, CorruptFileError
from lancetable.format import transaction as tx
from lancetable.format.refs import TagContents, format_time
from lancetable.format.transaction import Transaction
from lancetable.table import refs
from lancetable.table.version import Reference, TableVersion, checkout, latest, latest_readable

logger = logging.getLogger(__name__)


def restore(version: TableVersion) -> TableVersion:
    """Commit the contents of `version` as a new version; newer versions remain in the history.

    If the newest manifest is damaged, the new version gets the next higher number. Raises CommitConflictError if a
    concurrent commit prevents the restore, CorruptFileError if no manifest can be read.
    """
    restored = tx.Restore(version.version)
    try:
        newest = latest(version)
    except CorruptFileError as error:
        newest, damaged = latest_readable(version)
        if damaged is not None:
            logger.warning("restoring version %d above a damaged manifest: %s", version.version, error)
            transaction = Transaction.create(damaged.version, restored)
            return commit_transaction(newest, transaction, damaged_version=damaged.version)
    return commit_transaction(newest, Transaction.create(newest.version, restored))


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
