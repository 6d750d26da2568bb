"""Commits of prepared transactions, and removal of the files of failed commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lancetable.commit.commit_loop import commit_transaction
from lancetable.commit.create_table import create_table
from lancetable.errors import AlreadyExistsError, DatasetNotFoundError, VersionNotFoundError
from lancetable.format.manifest_naming import ManifestNamingScheme
from lancetable.format.transaction import Overwrite, Restore, Transaction
from lancetable.format.version import STABLE_VERSION, FileVersion
from lancetable.handlers.choose_handler import choose_handler
from lancetable.store.confined import confine
from lancetable.store.open import open_store, with_untrusted
from lancetable.table.version import Table, TableVersion, checkout, latest


def commit(
    target: TableVersion | str,
    transaction: Transaction,
    *,
    storage_options: Mapping[str, str] | None = None,
    commit_lock: Any = None,
    max_retries: int = 20,
    timeout_s: float = 1800.0,
    detached: bool = False,
    v2_manifest_paths: bool = True,
    stable_row_ids: bool = False,
    file_version: FileVersion | None = None,
) -> TableVersion:
    """Commit a transaction to a table, or create a table at a URI where none exists.

    An Overwrite or Restore with read version 0 is based on the newest version.

    Parameters
    ----------
    target
        Any version of the table, or the URI of a new table.
    transaction
        The transaction to commit.
    storage_options, commit_lock
        Storage options and commit lock, for a new table.
    max_retries, timeout_s
        Limits of the retries after a conflict.
    detached
        Commit a detached version, which is not part of the version history.
    v2_manifest_paths, stable_row_ids
        Naming scheme of the manifests and kind of row ids of a new table.
    file_version
        Data format of the table after an Overwrite. By default, a table keeps its format, and a new table gets the
        format of its files.

    Raises
    ------
    DatasetNotFoundError
        If `target` is a URI and the operation is not an Overwrite.
    AlreadyExistsError
        If a table already exists at the URI.
    VersionNotFoundError
        If the read version does not exist.
    CommitConflictError, RetryableCommitConflictError, CommitStateUnknownError
        If the commit failed or its outcome is unknown.
    """
    operation = transaction.operation
    if isinstance(target, str):
        if not isinstance(operation, Overwrite):
            raise DatasetNotFoundError(f"Dataset at path {target} was not found", path=target)
        table = Table.of_uri(target, storage_options, commit_lock)
        if table.exists():
            # This check is required: creating version 1 would succeed if the first versions were cleaned up.
            raise AlreadyExistsError(f"Dataset already exists: {target}", path=target)
        return create_table(
            table,
            replace(transaction, read_version=0),
            file_version=file_version or file_version_of(operation) or STABLE_VERSION,
            naming=ManifestNamingScheme.V2 if v2_manifest_paths else ManifestNamingScheme.V1,
            stable_row_ids=stable_row_ids,
        )
    if transaction.read_version == 0 and isinstance(operation, (Overwrite, Restore)):
        target = latest(target)
        transaction = replace(transaction, read_version=target.version)
    elif transaction.read_version != target.version:
        if transaction.read_version == 0:
            raise VersionNotFoundError(f"{target.uri} has no version 0", path=target.uri, version=0)
        target = checkout(target, transaction.read_version)
    return commit_transaction(
        target,
        transaction,
        max_retries=max_retries,
        timeout_s=timeout_s,
        detached=detached,
        file_version=file_version if isinstance(operation, Overwrite) else None,
    )


def with_storage_options(
    version: TableVersion, storage_options: Mapping[str, str] | None = None, commit_lock: Any = None
) -> TableVersion:
    """Return the version with other storage options or another commit lock, if they are given.

    An untrusted table remains untrusted.
    """
    roots = version.store.capabilities.roots
    options = version.storage_options if storage_options is None else with_untrusted(storage_options, bool(roots))
    same_store = options == version.storage_options
    if same_store and commit_lock is None:
        return version
    store = version.store if same_store else open_store(version.uri, options)[0]
    if roots and not same_store:
        store = confine(store, roots[0])  # the root of the table, also for a branch
    handler = choose_handler(store, version.uri, commit_lock, options)
    return replace(version, store=store, handler=handler, storage_options=options)


def file_version_of(operation: Overwrite) -> FileVersion | None:
    """Return the data format of an Overwrite; None if it has no files."""
    return next((file.file_version for fragment in operation.fragments for file in fragment.files), None)
