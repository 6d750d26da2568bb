"""External manifest stores without a server: a SQLite file for processes of one host, a dictionary for tests."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

from lancetable.errors import CorruptFileError, StoreError
from lancetable.format.manifest_naming import DETACHED_BIT
from lancetable.handlers.external_manifest import ManifestRow
from lancetable.store.base import ObjectStore, PutOutcome

_BUSY_SECONDS = 30.0


class SqliteManifestStore:
    """External manifest store in a SQLite file.

    The file must be on a local disk, because locks of network file systems are unreliable. Each call opens its own
    connection, so that instances can be shared by threads, forked and pickled.
    """

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    def __repr__(self) -> str:
        return f"SqliteManifestStore({self.path!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return SqliteManifestStore, (self.path,)

    def key(self, store: ObjectStore, base: str) -> str:
        """Return the full address, because one file may contain tables of several buckets."""
        return store.uri(base)

    def latest(self, table: str) -> ManifestRow | None:
        """See ExternalManifestStore."""
        return self._one("WHERE base_uri = ? ORDER BY version DESC LIMIT 1", table)

    def get(self, table: str, version: int) -> ManifestRow | None:
        """See ExternalManifestStore."""
        return self._one("WHERE base_uri = ? AND version = ?", table, version)

    def put_new(self, table: str, row: ManifestRow) -> PutOutcome:
        """See ExternalManifestStore."""
        if row.version >= DETACHED_BIT:
            raise StoreError(f"{table}: detached version {row.version} cannot have a row", path=table)
        with self._connection() as connection:
            try:
                connection.execute(
                    "INSERT INTO manifests VALUES (?, ?, ?, ?)", (table, row.version, row.path, row.size_bytes)
                )
            except sqlite3.IntegrityError:
                return PutOutcome.LOST
        return PutOutcome.WON

    def put_final(self, table: str, row: ManifestRow) -> None:
        """See ExternalManifestStore."""
        with self._connection() as connection:
            done = connection.execute(
                "UPDATE manifests SET path = ?, size = ? WHERE base_uri = ? AND version = ?",
                (row.path, row.size_bytes, table, row.version),
            )
            if done.rowcount != 1:
                raise StoreError(f"{table}: version {row.version} has no row to replace", path=table)

    def delete_table(self, table: str) -> None:
        """See ExternalManifestStore."""
        with self._connection() as connection:
            connection.execute("DELETE FROM manifests WHERE base_uri = ?", (table,))

    def delete(self, table: str, row: ManifestRow) -> None:
        """See ExternalManifestStore."""
        with self._connection() as connection:
            connection.execute(
                "DELETE FROM manifests WHERE base_uri = ? AND version = ? AND path = ?", (table, row.version, row.path)
            )

    def _one(self, condition: str, *values: Any) -> ManifestRow | None:
        with self._connection() as connection:
            row = connection.execute(f"SELECT version, path, size FROM manifests {condition}", values).fetchone()
        if row is None:
            return None
        version, path, size = row
        # SQLite stores values of any type in any column, and orders strings after numbers.
        if not (isinstance(version, int) and isinstance(path, str) and (size is None or isinstance(size, int))):
            raise CorruptFileError(f"the row of version {version!r:.100} is damaged; remove it", path=self.path)
        return ManifestRow(version, path, size)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
            try:
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS manifests (base_uri TEXT, version INTEGER, path TEXT NOT NULL,"
                    " size INTEGER, PRIMARY KEY (base_uri, version)) WITHOUT ROWID"
                )
                yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}", path=self.path) from error


class MemoryManifestStore:
    """External manifest store in a dictionary of this process."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], ManifestRow] = {}
        self._lock = threading.Lock()

    def key(self, store: ObjectStore, base: str) -> str:
        """Return the path, as in DynamoDB."""
        return base

    def latest(self, table: str) -> ManifestRow | None:
        """See ExternalManifestStore."""
        with self._lock:
            rows = [row for (name, _), row in self._rows.items() if name == table and row.version < DETACHED_BIT]
        return max(rows, key=lambda row: row.version, default=None)

    def get(self, table: str, version: int) -> ManifestRow | None:
        """See ExternalManifestStore."""
        return self._rows.get((table, version))

    def put_new(self, table: str, row: ManifestRow) -> PutOutcome:
        """See ExternalManifestStore."""
        with self._lock:
            if (table, row.version) in self._rows:
                return PutOutcome.LOST
            self._rows[table, row.version] = row
            return PutOutcome.WON

    def put_final(self, table: str, row: ManifestRow) -> None:
        """See ExternalManifestStore."""
        with self._lock:
            if (table, row.version) not in self._rows:
                raise StoreError(f"{table}: version {row.version} has no row to replace", path=table)
            self._rows[table, row.version] = row

    def delete_table(self, table: str) -> None:
        """See ExternalManifestStore."""
        with self._lock:
            for key in [key for key in self._rows if key[0] == table]:
                del self._rows[key]

    def delete(self, table: str, row: ManifestRow) -> None:
        """See ExternalManifestStore."""
        with self._lock:
            current = self._rows.get((table, row.version))
            if current is not None and current.path == row.path:
                del self._rows[table, row.version]
