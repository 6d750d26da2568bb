"""Commits by a plain write, safe for a single writer only. Concurrent writers can overwrite commits."""

from __future__ import annotations

import warnings

from lancetable.errors import StoreError
from lancetable.format.paths import ManifestNaming, manifest_path
from lancetable.handlers.base import VersionFinder, outcome_by_content, write_hint
from lancetable.store.base import ObjectStore, OnExisting, PutOutcome

__all__ = ["UnsafeHandler"]

_warned = False


class UnsafeHandler(VersionFinder):
    """Handler that checks whether the version exists and then writes it. Warns once per process."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UnsafeHandler()"

    def commit(
        self,
        store: ObjectStore,
        base: str,
        version: int,
        naming: ManifestNaming,
        data: bytes,
        *,
        on_existing: OnExisting | None = None,
    ) -> PutOutcome:
        """See CommitHandler."""
        global _warned
        if not _warned:
            _warned = True
            warnings.warn(
                f"{store.scheme}:// cannot create an object only if it does not exist, so a second writer to this "
                "table can silently overwrite commits (unsafe_single_writer=true is set)",
                UserWarning,
                stacklevel=2,
            )
        path = manifest_path(base, version, naming)
        store.sync(base)
        if store.find(path) is not None:
            return PutOutcome.LOST
        try:
            store.put(path, data)
            outcome = PutOutcome.WON
        except StoreError:
            outcome = outcome_by_content(store, base, path, data)
        if outcome is PutOutcome.WON:
            write_hint(store, base, version)
        return outcome
