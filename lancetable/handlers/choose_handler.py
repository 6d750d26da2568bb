"""Choice of the commit handler for a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lancetable.errors import InvalidInputError, UnsupportedFeatureError
from lancetable.handlers.base import CommitHandler, Publication
from lancetable.handlers.commit_lock import CommitLock, LockedHandler
from lancetable.handlers.conditional_put import ConditionalPutHandler
from lancetable.handlers.conditional_put_probe import ProbingHandler
from lancetable.handlers.external_manifest import ExternalHandler, ExternalManifestStore
from lancetable.handlers.unsafe import UnsafeHandler
from lancetable.store.base import ObjectStore, PutOutcome
from lancetable.store.open import external_table, option

_CONDITIONAL_PUT = ConditionalPutHandler()
_PROBING = ProbingHandler()


def choose_handler(
    store: ObjectStore,
    uri: str,
    commit_lock: CommitLock | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> CommitHandler:
    """Return the commit handler for a store.

    The order of precedence is commit lock, external manifest store, conditional creates. If none of them is available,
    the handler is read-only, unless the storage option `unsafe_single_writer` is true.

    Parameters
    ----------
    store, uri
        The object store and the address of the table.
    commit_lock
        Lock that all writers share.
    storage_options
        Options of the store: `manifest_store`, `probe`, `unsafe_single_writer`.

    Raises
    ------
    InvalidInputError
        If `manifest_store` or another option is invalid.
    """
    if commit_lock is not None:
        return LockedHandler(commit_lock)
    external = _external_store(uri, storage_options)
    if external is not None:
        return ExternalHandler(external)
    if store.capabilities.conditional_create == "native":
        if store.capabilities.needs_probe and option(storage_options, "probe", True):
            opted_in = option(storage_options, "unsafe_single_writer", False)
            return ProbingHandler(UnsafeHandler()) if opted_in else _PROBING
        return _CONDITIONAL_PUT
    if option(storage_options, "unsafe_single_writer", False):
        return UnsafeHandler()
    return ReadOnlyHandler(uri)


def _external_store(uri: str, storage_options: Mapping[str, Any] | None) -> ExternalManifestStore | None:
    """Return the external manifest store of an address `s3+ddb://` or of the option `manifest_store`, else None."""
    table_name = external_table(uri)
    named = (storage_options or {}).get("manifest_store")
    if table_name is not None:
        from lancetable.handlers.dynamodb import DynamoManifestStore

        return DynamoManifestStore(table_name, storage_options)
    if named is None:
        return None
    scheme, separator, path = str(named).partition(":///")
    if scheme != "sqlite" or not separator or not path:
        raise InvalidInputError(
            f"storage option manifest_store: unsupported address {str(named)!r}; pass sqlite:///path/to/a/local/file"
        )
    from lancetable.handlers.sqlite import SqliteManifestStore

    return SqliteManifestStore(path if path.startswith("/") else f"/{path}")


@dataclass(frozen=True)
class ReadOnlyHandler(CommitHandler):
    """Handler for stores without a safe way to commit. It finds versions and raises on commit."""

    uri: str

    def publish(self, publication: Publication) -> PutOutcome:
        """Raise UnsupportedFeatureError, because two writers could both publish this version."""
        raise UnsupportedFeatureError(
            f"{self.uri}: this store cannot create an object only if it does not exist, so two writers could commit "
            "the same version and one would lose its rows. Choose one: pass commit_lock, a lock that all writers "
            "share; keep the table in a store with conditional create or behind an external manifest store; or, if "
            "there is never more than one writer, set the storage option unsafe_single_writer=true",
            feature="conditional create",
        )
