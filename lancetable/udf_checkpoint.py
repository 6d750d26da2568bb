"""Checkpoint of a `BatchUDF`: a SQLite file with its results, so that a failed run can resume."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from lancetable.errors import InvalidInputError
from lancetable.format.fragment import Fragment
from lancetable.fragment_metadata import FragmentMetadata


class BatchUDFCheckpoint:
    """SQLite file with results of a `BatchUDF`: batches of the current fragment, and finished fragments.

    The file belongs to one `add_columns` of one table, which `begin` checks. It is read as data only, never as code.
    """

    class BatchInfo(NamedTuple):
        """The identity of a batch in a run."""

        fragment_id: int
        batch_index: int

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with self._connection() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS batches (fragment_id INT, batch_index INT, result BLOB, "
                "PRIMARY KEY (fragment_id, batch_index))"
            )
            connection.execute("CREATE TABLE IF NOT EXISTS fragments (fragment_id INT PRIMARY KEY, data TEXT)")
            # Not in checkpoints of pylance: the job and the state of the fragments that the results belong to.
            connection.execute("CREATE TABLE IF NOT EXISTS job (description TEXT)")
            connection.execute("CREATE TABLE IF NOT EXISTS states (fragment_id INT PRIMARY KEY, state TEXT)")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        # A connection must not be shared by threads, so each call opens its own.
        try:
            with closing(sqlite3.connect(self.path)) as connection, connection:
                yield connection
        except sqlite3.DatabaseError as error:
            raise self._unusable(f": {error}") from error

    def _unusable(self, problem: str) -> InvalidInputError:
        return InvalidInputError(f"checkpoint file {self.path}{problem}; remove the file to compute everything again")

    def _first(self, query: str, *values: int) -> Any:
        """Return the first value that a query finds, or None."""
        with self._connection() as connection:
            row = connection.execute(query, values).fetchone()
        return None if row is None else row[0]

    def cleanup(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)

    def get_batch(self, info: BatchInfo) -> pa.RecordBatch | None:
        """Return the stored result for a batch, or None."""
        return self.load_batch(*info)

    def insert_batch(self, info: BatchInfo, batch: pa.RecordBatch) -> None:
        """Store the result for a batch."""
        self.save_batch(*info, batch)

    def get_fragment(self, fragment_id: int) -> str | None:
        """Return a finished fragment as JSON, or None."""
        fragment = self._first("SELECT data FROM fragments WHERE fragment_id = ?", fragment_id)
        return None if fragment is None else str(fragment)

    def insert_fragment(self, fragment_id: int, fragment: str) -> None:
        """Store a finished fragment, given as JSON, and discard its batches."""
        with self._connection() as connection:
            connection.execute("INSERT OR REPLACE INTO fragments VALUES (?, ?)", (fragment_id, fragment))
            connection.execute("DELETE FROM batches WHERE fragment_id = ?", (fragment_id,))

    def begin(self, job: Mapping[str, Any]) -> None:
        """Record the job of the results.

        Raises
        ------
        InvalidInputError
            If the file contains results of another job.
        """
        description = self._first("SELECT description FROM job")
        if description is None:
            if self._first("SELECT EXISTS (SELECT 1 FROM batches) OR EXISTS (SELECT 1 FROM fragments)"):
                raise self._unusable(" does not record the job of its results")
            with self._connection() as connection:
                connection.execute("INSERT INTO job VALUES (?)", (json.dumps(job),))
            return
        before = json.loads(description)
        changed = sorted(name for name in {*before, *job} if before.get(name) != job.get(name))
        if changed:
            changes = ", ".join(f"{name} was {before.get(name)!r} and is {job.get(name)!r}" for name in changed)
            raise InvalidInputError(
                f"checkpoint file {self.path} contains results of another job: {changes}; pass another checkpoint_file,"
                " or remove the file to compute everything again"
            )

    # --- the interface ops.schema.new_columns.ColumnCheckpoint

    def begin_fragment(self, fragment: Fragment) -> None:
        """Discard the results for a fragment that had other files or other deleted rows when they were computed."""
        state = json.dumps(FragmentMetadata.from_format(fragment).to_json())
        if self._first("SELECT state FROM states WHERE fragment_id = ?", fragment.id) == state:
            return
        with self._connection() as connection:
            connection.execute("DELETE FROM batches WHERE fragment_id = ?", (fragment.id,))
            connection.execute("DELETE FROM fragments WHERE fragment_id = ?", (fragment.id,))
            connection.execute("INSERT OR REPLACE INTO states VALUES (?, ?)", (fragment.id, state))

    def load_batch(self, fragment_id: int, batch_index: int) -> pa.RecordBatch | None:
        """Return the stored result for a batch, or None.

        Raises
        ------
        InvalidInputError
            If the result is damaged.
        """
        query = "SELECT result FROM batches WHERE fragment_id = ? AND batch_index = ?"
        result = self._first(query, fragment_id, batch_index)
        if result is None:
            return None
        try:
            with pa.ipc.open_stream(result) as stream:
                return stream.read_next_batch()
        except (pa.ArrowException, StopIteration, TypeError) as error:
            raise self._unusable(f": batch {batch_index} of fragment {fragment_id} is damaged: {error}") from error

    def save_batch(self, fragment_id: int, batch_index: int, batch: pa.RecordBatch) -> None:
        """Store the result for a batch."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        with self._connection() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO batches VALUES (?, ?, ?)",
                (fragment_id, batch_index, sink.getvalue().to_pybytes()),
            )

    def load_fragment(self, fragment_id: int) -> Fragment | None:
        """Return a finished fragment, or None."""
        text = self.get_fragment(fragment_id)
        return None if text is None else FragmentMetadata.from_json(text).to_format()

    def save_fragment(self, fragment: Fragment) -> None:
        """Store a finished fragment, and discard its batches."""
        self.insert_fragment(fragment.id, json.dumps(FragmentMetadata.from_format(fragment).to_json()))
