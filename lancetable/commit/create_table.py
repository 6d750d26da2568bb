"""Publication of the first version of a table."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from lancetable import telemetry
from lancetable.commit.build_manifest import build_first_manifest
from lancetable.commit.commit_log import log_commit, record_outcome
from lancetable.commit.legacy_dictionaries import dictionary_prefix
from lancetable.commit.manifest_draft import ManifestParts
from lancetable.commit.publish import SerializedManifest, discarding_on_failure
from lancetable.errors import AlreadyExistsError, CommitStateUnknownError
from lancetable.format.manifest_naming import ManifestNamingScheme
from lancetable.format.paths import transaction_path
from lancetable.format.transaction import Transaction
from lancetable.store.base import discard
from lancetable.table import transactions
from lancetable.table.version import Table, TableVersion

if TYPE_CHECKING:
    from lancetable.format.version import FileVersion


def create_table(
    table: Table,
    transaction: Transaction,
    *,
    file_version: FileVersion,
    naming: ManifestNamingScheme = ManifestNamingScheme.V2,
    config: Mapping[str, str] | None = None,
    stable_row_ids: bool = False,
) -> TableVersion:
    """Create a table: commit an Overwrite with read version 0 as version 1.

    Parameters
    ----------
    table
        Location of the new table.
    transaction
        The Overwrite.
    file_version
        Data format of the table.
    naming
        Naming scheme of manifests.
    config
        Initial table config.
    stable_row_ids
        Assign stable row ids. They cannot be enabled later.

    Returns
    -------
    TableVersion
        Version 1.

    Raises
    ------
    AlreadyExistsError
        If a table exists there.
    CommitStateUnknownError
        If the outcome is unknown.
    InvalidOperationError
        If the transaction is not an Overwrite or is not valid.
    UnsupportedFeatureError
        If the store cannot commit safely.
    StoreError
        If the store fails.
    """
    built = build_first_manifest(
        transaction, file_version, timestamp_ns=time.time_ns(), config=config, stable_row_ids=stable_row_ids
    )
    prefix = dictionary_prefix(table.store, table.base, built.message, None)
    return publish_first(table, transaction, replace(built, dictionary_prefix=prefix), naming)


def publish_first(
    table: Table, transaction: Transaction, parts: ManifestParts, naming: ManifestNamingScheme = ManifestNamingScheme.V2
) -> TableVersion:
    """Publish a manifest as the first version of a table.

    Raises AlreadyExistsError if the table exists, CommitStateUnknownError if the outcome is unknown, StoreError if the
    store fails.
    """
    data = transaction.to_bytes()
    serialized = SerializedManifest.of(table, transaction, data, parts, naming)
    outcome = "error"
    with telemetry.start("commit", table.store, table.base) as span:
        try:
            name = transactions.write(table.store, table.base, transaction, data)
            with discarding_on_failure(lambda: discard(table.store, [transaction_path(table.base, name)], "files")):
                if not serialized.publish(is_last_attempt=True):
                    raise AlreadyExistsError(f"Dataset already exists: {table.uri}", path=table.uri)
            outcome = "committed"
        except CommitStateUnknownError:
            outcome = "unknown"
            raise
        finally:
            record_outcome(span, transaction.operation, outcome, attempts=1, read_version=transaction.read_version)
        span.set(version=serialized.location.version)
    log_commit(table.uri, serialized.location.version, transaction.operation)
    return table.version_of(serialized.file)
