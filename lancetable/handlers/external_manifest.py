"""Commits through an external manifest store, for object stores without conditional creates.

    1  put        {final}-{uuid}                the manifest, staged under a name that readers ignore
    2  put_new    (table, version) -> staged    inserts a row; at most one writer succeeds, which decides the version
    3  put        {final}                       the same bytes; all readers see the version from now on
    4  put_final  (table, version) -> final     marks the row as complete; then the staged object is removed

If a writer fails after step 2, the version is decided but its final object is missing. The next reader or writer that
reads the row completes steps 3 and 4 from the staged object. No version is committed on top of a version whose final
object is missing, because only the newest row is read. If the store supports it, step 3 is a conditional create: an
existing object, from a writer that bypasses the external store, is the version. If step 4 or the removal of the staged
object fails, the next reader or writer repeats it.

Source: the DynamoDB protocol of the reference implementation, which uses the same rows (handlers/dynamodb.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from lancetable import telemetry
from lancetable.errors import CorruptFileError, LanceError, NotFoundError, StoreError
from lancetable.format.manifest_naming import (
    DETACHED_BIT,
    ManifestLocation,
    ManifestNamingScheme,
    is_detached,
    manifest_path,
    parse_manifest_name,
)
from lancetable.format.paths import VERSIONS_DIR, join
from lancetable.handlers.base import CommitHandler, Publication, outcome_by_content
from lancetable.store.base import ObjectStore, PutOutcome, discard

logger = logging.getLogger(__name__)

_ATTEMPTS = 4
_SMALL_BYTES = 256 * 1024  # larger manifests of other writers are not read in advance


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """Row of the external store for one version. `path` is the path of the staged or the final object."""

    version: int
    path: str
    size_bytes: int | None = None


class ExternalManifestStore(Protocol):
    """Store of rows by (table, version). A read returns every write that was acknowledged before the read started.

    Methods raise StoreError if the store cannot be reached.
    """

    def key(self, store: ObjectStore, base: str) -> str:
        """Return the key of a table."""

    def latest(self, table: str) -> ManifestRow | None:
        """Return the row with the greatest version below 2^63, or None if the table has no rows."""

    def get(self, table: str, version: int) -> ManifestRow | None:
        """Return the row of a version, or None."""

    def put_new(self, table: str, row: ManifestRow) -> PutOutcome:
        """Insert a row. Returns LOST if the version already has a row, UNKNOWN if the row may have been inserted."""

    def put_final(self, table: str, row: ManifestRow) -> None:
        """Replace an existing row. Raises StoreError if the version has no row."""

    def delete_table(self, table: str) -> None:
        """Remove all rows of a table."""

    def delete(self, table: str, row: ManifestRow) -> None:
        """Remove the row of a version unless its path has changed. Raises StoreError."""


class ExternalHandler(CommitHandler):
    """Handler that commits through an external manifest store."""

    __slots__ = ("_incomplete", "_sleep", "external")

    def __init__(self, external: ExternalManifestStore, sleep: Callable[[float], None] = time.sleep) -> None:
        self.external = external
        self._sleep = sleep
        self._incomplete: set[str] = set()  # final paths of decided versions whose step 3 or 4 failed

    def __reduce__(self) -> tuple[type, tuple[ExternalManifestStore]]:
        return ExternalHandler, (self.external,)

    def __repr__(self) -> str:
        return f"ExternalHandler({self.external!r})"

    # ---- finding ----------------------------------------------------------------------------------------------

    def latest(self, store: ObjectStore, base: str) -> ManifestLocation | None:
        """See CommitHandler. A table without rows is looked up in the object store."""
        row = self.external.latest(self.external.key(store, base))
        return super().latest(store, base) if row is None else self._resolve(store, base, row)

    def locate(
        self, store: ObjectStore, base: str, version: int, naming: ManifestNamingScheme | None = None
    ) -> ManifestLocation | None:
        """See CommitHandler. A row is inserted for a version that exists only in the object store."""
        if not 1 <= version < DETACHED_BIT:
            return super().locate(store, base, version, naming)
        table = self.external.key(store, base)
        row = self._row(store, base, version)
        if row is not None:
            location = self._resolve(store, base, row)
            # Rows outlive a cleanup, so a row alone is not sufficient.
            exists = naming in (None, location.naming) and store.find(location.path) is not None
            return location if exists else None
        stored = super().locate(store, base, version, naming)
        if stored is not None:
            try:
                self.external.put_new(table, ManifestRow(version, stored.path, stored.size_bytes))
            except LanceError as error:
                logger.debug(
                    "%s: the row of version %d could not be inserted: %s",
                    base,
                    version,
                    error,
                    extra=telemetry.fields("external.row_not_inserted", base, version=version),
                )
        return stored

    def candidates(
        self, store: ObjectStore, base: str, version: int, naming: ManifestNamingScheme | None = None
    ) -> list[ManifestLocation]:
        """See CommitHandler."""
        if 1 <= version < DETACHED_BIT:
            row = self._row(store, base, version)
            if row is not None:
                return [self._resolve(store, base, row)]
        location = self.locate(store, base, version)
        return [] if location is None else [location]

    def history(self, store: ObjectStore, base: str, after: int = 0) -> list[ManifestLocation]:
        """See CommitHandler. After the newest version is completed, all versions are in the object store."""
        row = self.external.latest(self.external.key(store, base))
        if row is not None and row.version > after:
            self._resolve(store, base, row)
        return self._fill_gaps(store, base, super().history(store, base, after), after)

    def newer(self, store: ObjectStore, base: str, than: ManifestLocation) -> list[ManifestLocation]:
        """See CommitHandler. Sends one request if there are no new versions."""
        row = None if is_detached(than.version) else self.external.latest(self.external.key(store, base))
        if row is not None and row.version == than.version:
            self._resolve(store, base, row, is_recent=True)
            return []
        if row is not None and row.version > than.version:
            newest = self._resolve(store, base, row, is_recent=True)
            if row.version == than.version + 1:
                return [newest]
        # Rows outlive a cleanup, so the versions in between are listed in the object store.
        return super().history(store, base, than.version)

    def forget(self, store: ObjectStore, base: str) -> None:
        """See CommitHandler."""
        self.external.delete_table(self.external.key(store, base))

    def row(self, store: ObjectStore, base: str, version: int) -> ManifestRow | None:
        """Return the row of a version without completing it."""
        return self.external.get(self.external.key(store, base), version)

    def delete_row(self, store: ObjectStore, base: str, row: ManifestRow) -> None:
        """Remove a row unless it has changed, so that its version can be committed again."""
        self.external.delete(self.external.key(store, base), row)

    def is_decided(self, store: ObjectStore, base: str, path: str) -> bool:
        """Return True if a staged manifest belongs to a decided version and was not left by a writer that lost."""
        name, suffix, _ = path.rpartition("/")[2].partition(".manifest")
        version = parse_manifest_name(name + suffix)
        row = None if version is None else self.external.get(self.external.key(store, base), version[0])
        return row is not None and row.path == path

    def _look_up(
        self, store: ObjectStore, base: str, version: int, naming: ManifestNamingScheme
    ) -> ManifestLocation | None:
        """Look up a version. Completes a decided version that another library has committed on top of."""
        location = super()._look_up(store, base, version, naming)
        if location is None:
            row = self._row(store, base, version)
            if row is not None and row.path != self._final_path(base, row)[0]:
                return self._resolve(store, base, row)
        return location

    def _row(self, store: ObjectStore, base: str, version: int) -> ManifestRow | None:
        """Return the row of a version, or None.

        Also returns None if the version was cleaned up before its row was completed: then neither object exists, and
        the version is not the newest.
        """
        table = self.external.key(store, base)
        row = self.external.get(table, version)
        if row is None:
            return None
        final, _ = self._final_path(base, row)
        if row.path == final or store.find(row.path) is not None or store.find(final) is not None:
            return row
        newest = self.external.latest(table)
        return None if newest is not None and newest.version > version else row

    # ---- committing -------------------------------------------------------------------------------------------

    def publish(self, publication: Publication) -> PutOutcome:
        """See CommitHandler."""
        store, base, version, data = publication.store, publication.base, publication.version, publication.data
        final = publication.path
        if is_detached(version):  # a random number without competing writers; a row would look like the newest version
            return self._put_final(store, base, final, data)
        table = self.external.key(store, base)
        self._complete_own(store, base, version - 1)
        staged = ManifestRow(version, f"{final}-{uuid4()}", len(data))
        store.put(staged.path, data)
        try:
            outcome, existing_row = self._insert_row(table, staged)
        except LanceError:
            discard(store, [staged.path], "staged manifests")
            raise
        if outcome is PutOutcome.UNKNOWN:
            outcome = outcome_by_content(store, base, final, data)  # a reader may have completed it
        if outcome is PutOutcome.LOST:
            discard(store, [staged.path], "staged manifests")
            if existing_row is not None and publication.on_existing is not None:
                existing = self._read_existing(store, base, existing_row)
                if existing is not None:
                    publication.on_existing(existing)
        if outcome is not PutOutcome.WON:
            return outcome
        try:
            outcome = self._put_final(store, base, final, data)
            if outcome is PutOutcome.UNKNOWN:
                return outcome
            size = len(data) if outcome is PutOutcome.WON else store.find(final)
        except LanceError as error:
            # The version is decided. The next reader or writer of the row completes it from the staged object.
            logger.warning(
                "%s: version %d is committed, but its final manifest could not be written yet: %s",
                base,
                version,
                error,
                extra=telemetry.fields("external.final_manifest_missing", base, version=version),
            )
            self._incomplete.add(final)
            return outcome
        self._finalize_row(store, table, staged.path, ManifestRow(version, final, size))
        return outcome

    def _complete_own(self, store: ObjectStore, base: str, version: int) -> None:
        """Complete a version that this process has decided, if its step 3 or 4 failed."""
        if not self._incomplete:
            return
        for naming in ManifestNamingScheme:
            final = manifest_path(base, version, naming)
            if final in self._incomplete:
                row = self.external.get(self.external.key(store, base), version)
                if row is not None:
                    self._resolve(store, base, row, is_recent=True)
                if row is None or row.path == final:
                    self._incomplete.discard(final)

    def _insert_row(self, table: str, staged: ManifestRow) -> tuple[PutOutcome, ManifestRow | None]:
        """Execute step 2 with retries. Returns the outcome, and the row of the winner if it was read."""
        ambiguous = False
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._sleep(0.05 * 4**attempt)
            try:
                outcome = self.external.put_new(table, staged)
            except LanceError:
                if ambiguous:
                    return PutOutcome.UNKNOWN, None
                raise
            if outcome is PutOutcome.WON:
                return outcome, None
            ambiguous = ambiguous or outcome is PutOutcome.UNKNOWN
            try:
                row = self.external.get(table, staged.version)
            except LanceError:
                continue
            if row is not None:
                if row.path == staged.path:
                    return PutOutcome.WON, None  # only the reply was lost
                # A completed row does not identify its writer.
                completed = ambiguous and staged.path.startswith(f"{row.path}-")
                return (PutOutcome.UNKNOWN, None) if completed else (PutOutcome.LOST, row)
        return PutOutcome.UNKNOWN, None

    def _read_existing(self, store: ObjectStore, base: str, row: ManifestRow) -> bytes | memoryview | None:
        """Return the final manifest of an existing row, completing the version if necessary.

        Returns None if the manifest is large or cannot be read. Then the next attempt lists versions.
        """
        if row.size_bytes is None or row.size_bytes > _SMALL_BYTES:
            return None
        try:
            final, _ = self._final_path(base, row)
            try:
                data, size = store.read_tail(final, None, _SMALL_BYTES)
            except NotFoundError:
                self._resolve(store, base, row)
                data, size = store.read_tail(final, None, _SMALL_BYTES)
        except LanceError as error:
            logger.debug(
                "%s: version %d cannot be read: %s",
                base,
                row.version,
                error,
                extra=telemetry.fields("external.version_unreadable", base, version=row.version),
            )
            return None
        return data if len(data) == size else None  # the size in the row may be too small

    def _put_final(self, store: ObjectStore, base: str, final: str, data: bytes) -> PutOutcome:
        """Execute step 3. Returns WON if the object has these bytes, LOST if it has other bytes, which are kept."""
        if store.capabilities.conditional_create == "native":
            outcome = store.put_if_absent(final, data)
            return outcome if outcome is PutOutcome.WON else outcome_by_content(store, base, final, data)
        store.put(final, data)
        return PutOutcome.WON

    def _finalize_row(self, store: ObjectStore, table: str, staged_path: str, row: ManifestRow) -> None:
        """Execute step 4. If it fails, the version is still visible, but the next reader needs more requests."""
        try:
            self.external.put_final(table, row)
        except LanceError as error:
            logger.warning(
                "%s: the row of version %d still refers to the staged manifest: %s",
                table,
                row.version,
                error,
                extra=telemetry.fields("external.row_stale", table, version=row.version),
            )
            self._incomplete.add(row.path)
            return
        self._incomplete.discard(row.path)
        discard(store, [staged_path], "staged manifests")

    def _resolve(self, store: ObjectStore, base: str, row: ManifestRow, *, is_recent: bool = False) -> ManifestLocation:
        """Return the final location of a row, after completing steps 3 and 4 if necessary.

        The writer of a recent row may still be active, so the final object is looked up before step 3.
        """
        final, naming = self._final_path(base, row)
        size = row.size_bytes
        if row.path != final:
            size = store.find(final) if is_recent else None
            if size is None:
                size = self._write_final(store, base, final, row)
            self._finalize_row(store, self.external.key(store, base), row.path, ManifestRow(row.version, final, size))
        return ManifestLocation(row.version, final, size, naming)

    def _write_final(self, store: ObjectStore, base: str, final: str, row: ManifestRow) -> int:
        """Execute step 3 for a decided version, and return the size of its manifest.

        Raises StoreError if the manifest is missing or could not be written.
        """
        try:
            data = bytes(store.read_all(row.path, row.size_bytes))
        except NotFoundError:
            size = store.find(final)  # another process may have completed it
            if size is None:
                raise StoreError(
                    f"{store.uri(final)}: version {row.version} is committed, but neither its manifest nor the staged "
                    f"object {row.path} exists. Check whether the bucket was copied without its rows, or the rows "
                    "belong to a table with the same path in another bucket",
                    path=final,
                ) from None
            return size
        outcome = self._put_final(store, base, final, data)
        if outcome is PutOutcome.UNKNOWN:
            raise StoreError(
                f"{store.uri(final)}: the manifest of version {row.version} could not be written; try again",
                path=final,
            )
        return len(data) if outcome is PutOutcome.WON else store.size(final)

    def _final_path(self, base: str, row: ManifestRow) -> tuple[str, ManifestNamingScheme]:
        """Return the final path and naming of a row's manifest. Raises CorruptFileError for an invalid row path."""
        directory = join(base, VERSIONS_DIR) + "/"
        name, separator, suffix = row.path[len(directory) :].partition(".manifest")
        parsed = parse_manifest_name(name + separator)
        fits = row.path.startswith(directory) and "/" not in row.path[len(directory) :]
        if not fits or parsed is None or parsed[0] != row.version or suffix[:1] not in ("", "-") or suffix == "-":
            what = f"invalid path in the external manifest store for version {row.version}; correct or remove the row"
            valid = manifest_path(base, row.version, ManifestNamingScheme.V2)
            raise CorruptFileError(what, valid, ascii(row.path[:200]), path=directory)
        return directory + name + separator, parsed[1]
