"""Commits to stores that create an object only if it does not exist. This is the default."""

from __future__ import annotations

from lancetable.format.paths import ManifestNaming, manifest_path
from lancetable.handlers.base import VersionFinder, outcome_by_content, write_hint
from lancetable.store.base import ObjectStore, OnExisting, PutOutcome

__all__ = ["ConditionalPutHandler"]


class ConditionalPutHandler(VersionFinder):
    """Handler that commits by `put_if_absent`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ConditionalPutHandler()"

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
        path = manifest_path(base, version, naming)
        store.sync(base)  # a manifest must never be durable before the files it refers to
        outcome = store.put_if_absent(path, data, on_existing=on_existing)
        if outcome is PutOutcome.UNKNOWN:
            outcome = outcome_by_content(store, base, path, data)
        if outcome is PutOutcome.WON:
            write_hint(store, base, version)
        return outcome
