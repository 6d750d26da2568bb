"""Transaction files and inline transactions, which record the change of each version for conflict checks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lancetable import telemetry
from lancetable.errors import CorruptFileError, NotFoundError, UnsupportedFeatureError
from lancetable.format.paths import transaction_name, transaction_path
from lancetable.format.transaction import Transaction
from lancetable.store.base import Durability
from lancetable.table.manifest_files import ManifestFile, map_versions, parse_manifest, read_manifest

if TYPE_CHECKING:
    from lancetable.format.manifest_naming import ManifestLocation
    from lancetable.store.base import ObjectStore

logger = logging.getLogger(__name__)


def write(store: ObjectStore, base: str, transaction: Transaction, data: bytes) -> str:
    """Write `data`, the serialized form of `transaction`, and return the file name for the manifest.

    The name is unique to the transaction and its read version. The file is durable after the store's next `sync`.
    """
    name = transaction_name(transaction.read_version, transaction.uuid)
    store.put(transaction_path(base, name), data, durability=Durability.AT_SYNC)
    return name


def read(store: ObjectStore, base: str, file: ManifestFile) -> Transaction | None:
    """Return the transaction of a version, inline or from its file, or None if the version has neither.

    An operation of a newer writer is returned as UnknownOperation. Raises CorruptFileError for an invalid message, and
    UnsupportedFeatureError for contents that require a newer reader.
    """
    path = file.location.path
    data: bytes | memoryview | None = file.transaction_section(store)
    if data is None:
        name = file.manifest.transaction_file
        if not name:
            return None
        path = transaction_path(base, name, path)
        try:
            data = store.read_all(path)
        except NotFoundError:
            return None
    return Transaction.from_bytes(data, path)


def read_since(
    store: ObjectStore, base: str, locations: Sequence[ManifestLocation]
) -> list[tuple[ManifestFile, Transaction | None]]:
    """Return manifest and transaction at each location, in order; None for a missing or unreadable transaction."""
    return map_versions(
        store, lambda location: _with_transaction(store, base, read_manifest(store, location)), locations
    )


def read_existing(
    store: ObjectStore, base: str, location: ManifestLocation, data: bytes | memoryview
) -> tuple[ManifestFile, Transaction | None]:
    """Return manifest and transaction of a version whose complete manifest file is `data`."""
    return _with_transaction(store, base, parse_manifest(store, location, data))


def _with_transaction(store: ObjectStore, base: str, file: ManifestFile) -> tuple[ManifestFile, Transaction | None]:
    location = file.location
    try:
        return file, read(store, base, file)
    except (CorruptFileError, UnsupportedFeatureError) as error:
        logger.warning(
            "the transaction of version %d cannot be read: %s",
            location.version,
            error,
            extra=telemetry.fields("transaction.unreadable", path=location.path, version=location.version),
        )
        return file, None
