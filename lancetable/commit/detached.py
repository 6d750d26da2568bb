"""Commits of detached versions, which are outside the history of a table."""

from __future__ import annotations

import secrets
from dataclasses import replace

from lancetable.commit.backoff import Backoff
from lancetable.commit.commit_log import log_commit
from lancetable.commit.publish import SerializedManifest, build_next, discarding_on_failure, source_version
from lancetable.errors import InvalidOperationError, RetryableCommitConflictError, VersionNotFoundError
from lancetable.format.manifest_naming import DETACHED_BIT
from lancetable.format.paths import transaction_path
from lancetable.format.transaction import Transaction
from lancetable.store.base import discard
from lancetable.table import transactions
from lancetable.table.version import TableVersion


def commit_detached(base: TableVersion, transaction: Transaction, backoff: Backoff) -> TableVersion:
    """Publish a transaction on top of `base` as a detached version with a random number."""
    if transaction.read_version != base.version:
        raise InvalidOperationError(
            f"{base.uri}: a detached commit needs its read version {transaction.read_version} as base, got version"
            f" {base.version}; open version {transaction.read_version}"
        )
    source, data = source_version(base, transaction), transaction.to_bytes()
    written: list[str] = []
    with discarding_on_failure(lambda: discard(base.store, written, "transaction files")):
        while True:
            parts = build_next(base, transaction, secrets.randbits(63) | DETACHED_BIT, source)
            if not written:
                name = transactions.write(base.store, base.base, transaction, data)
                written.append(transaction_path(base.base, name))
            serialized = SerializedManifest.of(base, transaction, data, parts, base.location.naming)
            if serialized.publish(is_last_attempt=True):
                written.append(serialized.location.path)
                _check_still_there(base)
                log_commit(base.uri, serialized.location.version, transaction.operation)
                return replace(base, file=serialized.file, newest_at=None)
            if not backoff.next_attempt():
                raise RetryableCommitConflictError(
                    f"{base.uri}: found no unused number for a detached version in {backoff.attempts} attempts; run"
                    " the operation again"
                )


def _check_still_there(base: TableVersion) -> None:
    """Raise VersionNotFoundError if `base` was cleaned up.

    A cleanup that removed `base` before the detached version was visible also removes the files of both.
    """
    if base.handler.locate(base.store, base.base, base.version, base.location.naming) is None:
        raise VersionNotFoundError(
            f"{base.uri}: version {base.version} was cleaned up while a detached version was committed on top of it;"
            " open another version and run the operation again",
            version=base.version,
        )
