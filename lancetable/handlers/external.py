"""Commits that an external manifest store decides: for object stores that create nothing exclusively.

    1  put      {final}-{uuid}                 the manifest, staged under a name that no reader takes for a version
    2  put_new  (table, version) -> staged     at most one writer succeeds: this decides the version
    3  put      {final}                        the same bytes; from here on every reader sees the version
    4  put_final (table, version) -> final     so that nobody finishes it again; then the staged object goes

A writer that dies after step 2 leaves a decided version without its object. Whoever meets the row next, reader or
writer, finishes steps 3 and 4 from the staged object; nobody commits behind a version whose object is missing, since
only the newest row is looked at. Step 3 creates exclusively where the store can: an object that
lies there already, of a writer that goes round the external store, is the version. Steps 4 and the removal may fail;
the next one who comes by repeats them.

Source: the DynamoDB protocol of the reference implementation, whose rows these are (handlers/dynamodb.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from lancetable.errors import CorruptFileError, LanceError, NotFoundError, StoreError
from lancetable.format.paths import (
    DETACHED_BIT,
    VERSIONS_DIR,
    ManifestNaming,
    is_detached,
    join,
    manifest_path,
    parse_manifest_name,
)
from lancetable.handlers.base import ManifestLocation, VersionFinder, outcome_by_content
from lancetable.store.base import ObjectStore, OnExisting, PutOutcome

__all__ = ["ExternalHandler", "ExternalManifestStore", "ManifestRow"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 4
_SMALL_BYTES = 256 * 1024  # of a manifest: a larger one is not read where it may be in vain


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """What the external store says about one version."""

    version: int
    path: str  # of the staged or of the final object, inside the object store
    size_bytes: int | None = None


class ExternalManifestStore(Protocol):
    """Rows by (table, version). Every read sees every write that was acknowledged before it began.

    Reads raise StoreError where the store cannot be reached.
    """

    def key(self, store: ObjectStore, base: str) -> str:
        """How the rows of a table are named."""

    def latest(self, table: str) -> ManifestRow | None:
        """The row with the greatest version below 2^63, None for a table without rows."""

    def get(self, table: str, version: int) -> ManifestRow | None:
        """One row."""

    def put_new(self, table: str, row: ManifestRow) -> PutOutcome:
        """Add a row where there is none. LOST: another row is there. UNKNOWN: it may have been added."""

    def put_final(self, table: str, row: ManifestRow) -> None:
        """Replace a row that is there. Raises StoreError."""

    def delete_table(self, table: str) -> None:
        """Remove all rows of a table."""

    def delete(self, table: str, row: ManifestRow) -> None:
        """Remove the row of a version unless it names another path by now. Raises StoreError."""


class ExternalHandler(VersionFinder):
    """Finds versions and commits through an external manifest store."""

    __slots__ = ("_owed", "_sleep", "external")

    def __init__(self, external: ExternalManifestStore, sleep: Callable[[float], None] = time.sleep) -> None:
        self.external = external
        self._sleep = sleep
        self._owed: set[str] = set()  # manifests of decided versions for which step 3 or 4 failed

    def __reduce__(self) -> tuple[type, tuple[ExternalManifestStore]]:
        return ExternalHandler, (self.external,)

    def __repr__(self) -> str:
        return f"ExternalHandler({self.external!r})"

    # ---- finding ----------------------------------------------------------------------------------------------

    def latest(self, store: ObjectStore, base: str) -> ManifestLocation | None:
        """See CommitHandler. A table that the external store does not know is looked up in the object store."""
        row = self.external.latest(self.external.key(store, base))
        return super().latest(store, base) if row is None else self._finished(store, base, row)

    def locate(
        self, store: ObjectStore, base: str, version: int, naming: ManifestNaming | None = None
    ) -> ManifestLocation | None:
        """See CommitHandler. A version that only the object store knows is entered into the external one."""
        if not 1 <= version < DETACHED_BIT:
            return super().locate(store, base, version, naming)
        table = self.external.key(store, base)
        row = self._row(store, base, version)
        if row is not None:
            location = self._finished(store, base, row)
            return location if naming in (None, location.naming) and self._is_there(store, location) else None
        found = super().locate(store, base, version, naming)
        if found is not None:
            try:
                self.external.put_new(table, ManifestRow(version, found.path, found.size_bytes))
            except LanceError as error:
                logger.debug("%s: the row of version %d could not be added: %s", base, version, error)
        return found

    def candidates(
        self, store: ObjectStore, base: str, version: int, naming: ManifestNaming | None = None
    ) -> list[ManifestLocation]:
        """See CommitHandler."""
        if 1 <= version < DETACHED_BIT:
            row = self._row(store, base, version)
            if row is not None:
                return [self._finished(store, base, row)]
        found = self.locate(store, base, version)
        return [] if found is None else [found]

    def history(self, store: ObjectStore, base: str, after: int = 0) -> list[ManifestLocation]:
        """See CommitHandler. Once the newest version is finished, the object store has them all."""
        row = self.external.latest(self.external.key(store, base))
        if row is not None and row.version > after:
            self._finished(store, base, row)
        return self._fill_gaps(store, base, super().history(store, base, after), after)

    def newer(self, store: ObjectStore, base: str, than: ManifestLocation) -> list[ManifestLocation]:
        """See CommitHandler: one request where there is nothing new."""
        row = None if is_detached(than.version) else self.external.latest(self.external.key(store, base))
        if row is not None and row.version == than.version:
            self._in_place(store, base, row)
            return []
        if row is not None and row.version > than.version:
            newest = self._in_place(store, base, row)
            if row.version == than.version + 1:
                return [newest]
        # Rows outlive what a cleanup removes, so the versions in between are listed where they lie.
        return super().history(store, base, than.version)

    def forget(self, store: ObjectStore, base: str) -> None:
        """See CommitHandler."""
        self.external.delete_table(self.external.key(store, base))

    def row(self, store: ObjectStore, base: str, version: int) -> ManifestRow | None:
        """Return the row of a version as it is, without finishing it."""
        return self.external.get(self.external.key(store, base), version)

    def release(self, store: ObjectStore, base: str, row: ManifestRow) -> None:
        """Remove a row, so that its version can be committed again. A row that changed meanwhile stays."""
        self.external.delete(self.external.key(store, base), row)

    def names(self, store: ObjectStore, base: str, path: str) -> bool:
        """Whether a staged manifest is that of a decided version, not what a writer left behind that lost."""
        name, suffix, _ = path.rpartition("/")[2].partition(".manifest")
        version = parse_manifest_name(name + suffix)
        row = None if version is None else self.external.get(self.external.key(store, base), version[0])
        return row is not None and row.path == path

    def _look_up(self, store: ObjectStore, base: str, version: int, naming: ManifestNaming) -> ManifestLocation | None:
        """Other libraries may have committed behind a version that is decided and not in place."""
        found = super()._look_up(store, base, version, naming)
        if found is None:
            row = self._row(store, base, version)
            if row is not None and row.path != self._final_path(base, row)[0]:
                return self._finish(store, base, row)
        return found

    def _row(self, store: ObjectStore, base: str, version: int) -> ManifestRow | None:
        """The row of a version; None as well where it was cleaned up before its row was finished: neither object is
        there, and it is not the newest."""
        table = self.external.key(store, base)
        row = self.external.get(table, version)
        if row is None:
            return None
        final, _ = self._final_path(base, row)
        if row.path == final or store.find(row.path) is not None or store.find(final) is not None:
            return row
        newest = self.external.latest(table)
        return None if newest is not None and newest.version > version else row

    def _is_there(self, store: ObjectStore, location: ManifestLocation) -> bool:
        """Rows outlive what a cleanup removes."""
        return store.find(location.path) is not None

    # ---- committing -------------------------------------------------------------------------------------------

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
        final = manifest_path(base, version, naming)
        store.sync(base)
        if is_detached(version):  # a random number: nobody competes for it, and no row may look like the newest version
            return self._put_decided(store, base, final, data)
        table = self.external.key(store, base)
        self._settle(store, base, version - 1)
        staged = ManifestRow(version, f"{final}-{uuid4()}", len(data))
        store.put(staged.path, data)
        try:
            outcome, rival = self._decide(table, staged)
        except LanceError:
            _remove_quietly(store, staged.path)
            raise
        if outcome is PutOutcome.UNKNOWN:
            outcome = outcome_by_content(
                store, base, final, data
            )  # somebody may have finished it: the bytes tell whose it is
        if outcome is PutOutcome.LOST:
            _remove_quietly(store, staged.path)
            existing = None if rival is None or on_existing is None else self._met(store, base, rival)
            if existing is not None and on_existing is not None:
                on_existing(existing)
        if outcome is not PutOutcome.WON:
            return outcome
        try:
            outcome = self._put_decided(store, base, final, data)
            if outcome is PutOutcome.UNKNOWN:
                return outcome
            size = len(data) if outcome is PutOutcome.WON else store.find(final)
        except LanceError as error:
            # Decided all the same: whoever meets the row finishes it from the staged object.
            logger.warning("%s: version %d is decided, its manifest not yet in place: %s", base, version, error)
            self._owed.add(final)
            return outcome
        self._note_final(store, table, staged.path, ManifestRow(version, final, size))
        return outcome

    def _settle(self, store: ObjectStore, base: str, version: int) -> None:
        """Put a version in place before the next one, where this process could not when it was decided."""
        if not self._owed:
            return
        for naming in ManifestNaming:
            final = manifest_path(base, version, naming)
            if final in self._owed:
                row = self.external.get(self.external.key(store, base), version)
                if row is not None:
                    self._in_place(store, base, row)
                if row is None or row.path == final:
                    self._owed.discard(final)

    def _decide(self, table: str, staged: ManifestRow) -> tuple[PutOutcome, ManifestRow | None]:
        """Step 2, until its outcome is known or cannot be learned; and the row in the way, where that was read."""
        doubtful = False
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._sleep(0.05 * 4**attempt)
            try:
                outcome = self.external.put_new(table, staged)
            except LanceError:
                if doubtful:
                    return PutOutcome.UNKNOWN, None
                raise
            if outcome is PutOutcome.WON:
                return outcome, None
            doubtful = doubtful or outcome is PutOutcome.UNKNOWN
            try:
                row = self.external.get(table, staged.version)
            except LanceError:
                continue
            if row is not None:
                if row.path == staged.path:
                    return PutOutcome.WON, None  # only the answer was lost
                # A finished row tells no more who made it.
                finished = doubtful and staged.path.startswith(f"{row.path}-")
                return (PutOutcome.UNKNOWN, None) if finished else (PutOutcome.LOST, row)
        return PutOutcome.UNKNOWN, None

    def _met(self, store: ObjectStore, base: str, rival: ManifestRow) -> bytes | memoryview | None:
        """The manifest of the row that was in the way, which is in place then: who lost goes on from it at once.

        None where it is large, or cannot be read: the next attempt looks by itself.
        """
        if rival.size_bytes is None or rival.size_bytes > _SMALL_BYTES:
            return None
        try:
            final, _ = self._final_path(base, rival)
            try:
                data, size = store.read_tail(final, None, _SMALL_BYTES)
            except NotFoundError:
                self._finish(store, base, rival)
                data, size = store.read_tail(final, None, _SMALL_BYTES)
        except LanceError as error:
            logger.debug("%s: version %d cannot be read: %s", base, rival.version, error)
            return None
        return data if len(data) == size else None  # the row may say less than there is

    def _put_decided(self, store: ObjectStore, base: str, final: str, data: bytes) -> PutOutcome:
        """Step 3. WON: it is there, whoever put it. LOST: an object with other bytes is there, and stays."""
        if store.capabilities.conditional_create == "native":
            outcome = store.put_if_absent(final, data)
            return outcome if outcome is PutOutcome.WON else outcome_by_content(store, base, final, data)
        store.put(final, data)
        return PutOutcome.WON

    def _note_final(self, store: ObjectStore, table: str, staged_path: str, row: ManifestRow) -> None:
        """Step 4. The object store has the version; a row that is behind costs the next reader a few requests."""
        try:
            self.external.put_final(table, row)
        except LanceError as error:
            logger.warning("%s: the row of version %d still names the staged manifest: %s", table, row.version, error)
            self._owed.add(row.path)
            return
        self._owed.discard(row.path)
        _remove_quietly(store, staged_path)

    def _finished(self, store: ObjectStore, base: str, row: ManifestRow) -> ManifestLocation:
        """The place of a version, after steps 3 and 4 where its writer did not come to them."""
        final, naming = self._final_path(base, row)
        if row.path == final:
            return ManifestLocation(row.version, final, row.size_bytes, naming)
        return self._finish(store, base, row)

    def _in_place(self, store: ObjectStore, base: str, row: ManifestRow) -> ManifestLocation:
        """The same for a row of a moment ago, whose writer is at it: a second copy would be in its way."""
        final, naming = self._final_path(base, row)
        if row.path == final:
            return ManifestLocation(row.version, final, row.size_bytes, naming)
        size = store.find(final)
        if size is None:
            return self._finish(store, base, row)
        self._note_final(store, self.external.key(store, base), row.path, ManifestRow(row.version, final, size))
        return ManifestLocation(row.version, final, size, naming)

    def _finish(self, store: ObjectStore, base: str, row: ManifestRow) -> ManifestLocation:
        final, naming = self._final_path(base, row)
        try:
            data = bytes(store.read_all(row.path, row.size_bytes))
        except NotFoundError:
            size = store.find(final)  # another one may have finished it a moment ago
            if size is None:
                raise StoreError(
                    f"{store.uri(final)}: version {row.version} is decided, but neither its manifest nor the staged "
                    f"object {row.path} is there. Was the bucket copied without its rows, or are rows of a table with "
                    "the same path in another bucket?",
                    path=final,
                ) from None
        else:
            outcome = self._put_decided(store, base, final, data)
            if outcome is PutOutcome.UNKNOWN:
                raise StoreError(f"{store.uri(final)}: a decided version could not be put in place", path=final)
            size = len(data) if outcome is PutOutcome.WON else store.size(final)
        self._note_final(store, self.external.key(store, base), row.path, ManifestRow(row.version, final, size))
        return ManifestLocation(row.version, final, size, naming)

    def _final_path(self, base: str, row: ManifestRow) -> tuple[str, ManifestNaming]:
        """Where the manifest of a row belongs. Raises CorruptFileError for a path that no writer would have noted."""
        directory = join(base, VERSIONS_DIR) + "/"
        name, separator, suffix = row.path[len(directory) :].partition(".manifest")
        parsed = parse_manifest_name(name + separator)
        fits = row.path.startswith(directory) and "/" not in row.path[len(directory) :]
        if not fits or parsed is None or parsed[0] != row.version or suffix[:1] not in ("", "-") or suffix == "-":
            raise CorruptFileError(
                f"the external manifest store names {row.path[:200]!a} for version {row.version}",
                path=directory,
                expected=manifest_path(base, row.version, ManifestNaming.V2),
                found=row.path[:200],
            )
        return directory + name + separator, parsed[1]


def _remove_quietly(store: ObjectStore, path: str) -> None:
    try:
        store.delete([path])
    except LanceError as error:
        logger.debug("the staged manifest %s stays: %s", path, error)
