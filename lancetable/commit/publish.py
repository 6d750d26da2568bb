"""A serialized manifest, and its publication as a version of a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lancetable.commit.build_manifest import build_manifest
from lancetable.commit.index_coverage import current_index_section
from lancetable.commit.legacy_dictionaries import dictionary_prefix
from lancetable.commit.legacy_manifests import repair
from lancetable.commit.manifest_draft import ManifestParts
from lancetable.errors import CommitStateUnknownError, LanceError, VersionNotFoundError
from lancetable.format import feature_flags
from lancetable.format import transaction as tx
from lancetable.format.manifest_naming import ManifestLocation, ManifestNamingScheme, manifest_path
from lancetable.format.transaction import Transaction
from lancetable.store.base import PutOutcome
from lancetable.table import manifest_files, transactions
from lancetable.table.manifest_files import ManifestFile, read_manifest
from lancetable.table.version import Table, TableVersion, open_location

if TYPE_CHECKING:
    from lancetable.format.version import FileVersion
    from lancetable.proto import table_pb2
    from lancetable.store.base import OnExisting


@dataclass(frozen=True, slots=True)
class SerializedManifest:
    """A serialized manifest, and the location where it may be published as a version of a table."""

    table: Table
    transaction: Transaction
    location: ManifestLocation
    message: table_pb2.Manifest
    packed: bytes

    @classmethod
    def of(
        cls, table: Table, transaction: Transaction, data: bytes, parts: ManifestParts, naming: ManifestNamingScheme
    ) -> SerializedManifest:
        """Serialize a manifest with its transaction, whose bytes are `data`."""
        packed = manifest_files.pack(parts.message, data, parts.index_section, parts.dictionary_prefix)
        version = parts.message.version
        location = ManifestLocation(version, manifest_path(table.base, version, naming), None, naming)
        return cls(table, transaction, location, parts.message, packed)

    @property
    def file(self) -> ManifestFile:
        """The parsed manifest file. The message must not be modified afterwards."""
        return manifest_files.packed_file(self.location, self.message, self.packed)

    def publish(self, *, is_last_attempt: bool, on_existing: OnExisting | None = None) -> bool:
        """Publish the manifest. Return False if the version belongs to another writer.

        A client that repeats a request internally may report its own manifest as that of another writer. The next
        attempt of a commit detects this; the last attempt reads the manifest. Raises CommitStateUnknownError if the
        outcome is unknown.
        """
        table, location = self.table, self.location
        outcome = table.handler.commit(
            table.store, table.base, location.version, location.naming, self.packed, on_existing=on_existing
        )
        if outcome is PutOutcome.UNKNOWN or (is_last_attempt and outcome is PutOutcome.LOST):
            outcome = self._outcome_by_transaction()
        if outcome is PutOutcome.UNKNOWN:
            raise unknown_state_error(table.uri, self.transaction, location.version)
        return outcome is PutOutcome.WON

    def _outcome_by_transaction(self) -> PutOutcome:
        """Compare the transaction of the published manifest with that of this one.

        Returns WON if it is the same, LOST if it is another one, UNKNOWN if the manifest cannot be read or synced.
        """
        store, base = self.table.store, self.table.base
        try:
            committed = transactions.read(store, base, read_manifest(store, self.location))
            if committed is None or committed.uuid != self.transaction.uuid:
                return PutOutcome.LOST
            # The outcome may be unknown because the manifest is visible but not yet durable.
            store.sync(base)
        except (LanceError, OSError):
            return PutOutcome.UNKNOWN
        return PutOutcome.WON


def source_version(newest: TableVersion, transaction: Transaction) -> TableVersion | None:
    """Return the version whose rows the next version keeps: the newest, the restored one, or None for an Overwrite.

    Raises VersionNotFoundError if the version to restore does not exist.
    """
    operation = transaction.operation
    if isinstance(operation, tx.Overwrite):
        return None
    if not isinstance(operation, tx.Restore):
        return newest
    location = newest.handler.locate(newest.store, newest.base, operation.version)
    if location is None:
        raise VersionNotFoundError(
            f"{newest.uri} has no version {operation.version} to restore; choose one that was not cleaned up",
            version=operation.version,
        )
    source = open_location(newest, location)
    feature_flags.check_writable(source.manifest.writer_flags, location.path, reader_flags=source.manifest.reader_flags)
    return source


def build_next(
    newest: TableVersion,
    transaction: Transaction,
    version: int,
    source: TableVersion | None,
    file_version: FileVersion | None = None,
) -> ManifestParts:
    """Build the manifest of `version`, which follows `newest`. `source` is the result of `source_version`."""
    restored = None
    if source is not None and isinstance(transaction.operation, tx.Restore):
        restored = ManifestParts(source.manifest.message, source.file.index_section(source.store))
    built = build_manifest(
        newest.manifest.message,
        current_index_section(newest),
        transaction,
        version=version,
        timestamp_ns=time.time_ns(),
        restored=restored,
        file_version=file_version,
    )
    built = repair(built, source or newest)
    return replace(built, dictionary_prefix=dictionary_prefix(newest.store, newest.base, built.message, source))


@contextmanager
def discarding_on_failure(discard: Callable[[], None]) -> Iterator[None]:
    """Call `discard`, which removes the files of a commit, if the commit in the `with` block definitely failed.

    Files are not removed if the outcome of the commit is unknown, because the commit may still become visible, or after
    other exceptions such as an interrupt, because the commit may already be published.
    """
    try:
        yield
    except CommitStateUnknownError:
        raise
    except LanceError:
        discard()
        raise


def unknown_state_error(uri: str, transaction: Transaction, version: int) -> CommitStateUnknownError:
    return CommitStateUnknownError(
        f"{uri}: unknown whether version {version} was committed, because the store returned no clear reply. Look for"
        f" transaction {transaction.uuid} in the newest versions before committing again, and delete no files",
        version=version,
        transaction_uuid=transaction.uuid,
    )
