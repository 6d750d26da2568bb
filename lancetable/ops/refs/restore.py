"""Restore of an old version as the newest one."""

from __future__ import annotations

import logging

from lancetable import telemetry
from lancetable.commit.commit_loop import commit_transaction
from lancetable.errors import CorruptFileError
from lancetable.format import transaction as tx
from lancetable.format.transaction import Transaction
from lancetable.table.version import TableVersion, latest, latest_readable

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
            logger.warning(
                "restoring version %d above a damaged manifest: %s",
                version.version,
                error,
                extra=telemetry.fields("restore.above_damage", newest.uri, version=version.version),
            )
            transaction = Transaction.create(damaged.version, restored)
            return commit_transaction(newest, transaction, damaged_version=damaged.version)
    return commit_transaction(newest, Transaction.create(newest.version, restored))
