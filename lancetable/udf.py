"""Functions that make new columns from batches of a table, for `LanceDataset.add_columns`."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from lancetable.errors import InvalidInputError
from lancetable.format.fragment import Fragment
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.inputs import check_no_more, read_input
from lancetable.table.version import TableVersion

__all__ = ["BatchUDF", "BatchUDFCheckpoint", "batch_udf", "new_columns", "schema_of"]


class BatchUDF:
    """A function from a RecordBatch of a table to one of new columns, with as many rows.

    Parameters
    ----------
    func : callable
        Takes a RecordBatch, returns a RecordBatch or a pandas DataFrame.
    output_schema : pyarrow.Schema, optional
        The new columns; without it, the function is tried on one row.
    checkpoint_file : str or Path, optional
        Store results in this SQLite file, so that a run that failed can continue. Removed at the end. The next run must
        use a function of the same name, the same new columns, `read_columns`, `batch_size` and table; otherwise
        `add_columns` raises InvalidInputError. Fragments that changed since are computed again. Results of an earlier
        version of the function's code are kept: remove the file if they are wrong.
    """

    def __init__(
        self,
        func: Callable[[pa.RecordBatch], Any],
        output_schema: pa.Schema | None = None,
        checkpoint_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self.func = func
        self.output_schema = output_schema
        self.cache = None if checkpoint_file is None else BatchUDFCheckpoint(checkpoint_file)

    def __call__(self, batch: pa.RecordBatch) -> Any:
        """What the function itself returns."""
        return self.func(batch)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The new columns for one batch; a DataFrame becomes a batch of `output_schema`."""
        return as_batch(self.func(batch), self.output_schema)


def batch_udf(
    output_schema: pa.Schema | None = None, checkpoint_file: str | os.PathLike[str] | None = None
) -> Callable[[Callable[[pa.RecordBatch], Any]], BatchUDF]:
    """Decorator: make a function from batches to new columns usable in `LanceDataset.add_columns`. See `BatchUDF`.

    Examples
    --------
    >>> @lancetable.batch_udf()  # doctest: +SKIP
    ... def doubled(batch):
    ...     return pd.DataFrame({"doubled": 2 * batch["a"].to_pandas()})
    >>> ds.add_columns(doubled, read_columns=["a"])  # doctest: +SKIP
    """

    def wrap(func: Callable[[pa.RecordBatch], Any]) -> BatchUDF:
        return BatchUDF(func, output_schema, checkpoint_file)

    return wrap


def as_batch(result: Any, schema: pa.Schema | None = None) -> pa.RecordBatch:
    """A RecordBatch from what a column function returned."""
    if isinstance(result, pa.RecordBatch):
        return result
    if isinstance(result, pa.Table):
        combined = result.combine_chunks().to_batches()
        return combined[0] if combined else pa.RecordBatch.from_pylist([], schema=result.schema)
    if type(result).__module__.partition(".")[0] == "pandas":
        if schema is not None:
            check_no_more(result.columns, schema)
        return pa.RecordBatch.from_pandas(result, schema=schema, preserve_index=False).replace_schema_metadata(None)
    raise TypeError(f"a column function must return a RecordBatch or a DataFrame, got {type(result).__name__}")


def new_columns(
    transforms: Any, source: Any, read_columns: Sequence[str] | None, reader_schema: pa.Schema | None
) -> pa.Schema | dict[str, str] | BatchUDF | pa.RecordBatchReader:
    """What `add_columns` was given, as one of its four forms; `source` is the dataset or fragment to try functions on.

    Raises TypeError for anything else, and for a function that fails on the first row.
    """
    if isinstance(transforms, pa.Field):
        return pa.schema([transforms])
    if isinstance(transforms, list) and transforms and all(isinstance(each, pa.Field) for each in transforms):
        return pa.schema(transforms)
    if isinstance(transforms, pa.Schema):
        return transforms
    if isinstance(transforms, BatchUDF):
        if transforms.output_schema is None:
            transforms.output_schema = _tried(transforms.func, source, read_columns).schema
        return transforms
    if isinstance(transforms, dict) and all(isinstance(text, str) for text in transforms.values()):
        for name in transforms:
            if not isinstance(name, str):
                raise TypeError(f"Column names must be a string. Got {type(name)}")
        return transforms
    wanted = "transforms must be a BatchUDF, dict, map function, or ReaderLike value"
    if callable(transforms):
        try:
            return BatchUDF(transforms, _tried(transforms, source, read_columns).schema)
        except Exception as error:
            raise TypeError(
                f"{wanted}. Received {type(transforms)}, which is callable, but gave an error when called with a "
                f"batch of data: {error}"
            ) from error
    try:
        schema, batches, _ = read_input(transforms, reader_schema)
    except TypeError as error:
        raise TypeError(f"{wanted}. Received {type(transforms)}: {error}") from error
    return pa.RecordBatchReader.from_batches(schema, batches)


def schema_of(function: BatchUDF) -> pa.Schema:
    """The columns a function makes, which `new_columns` has found out."""
    if function.output_schema is None:
        raise InvalidInputError("output_schema must be provided when using a function that returns a RecordBatch")
    return function.output_schema


def _tried(func: Callable[[pa.RecordBatch], Any], source: Any, columns: Sequence[str] | None) -> pa.RecordBatch:
    """The result for the first row; for no rows where there are none."""
    table = source.to_table(columns=None if columns is None else list(columns), limit=1)
    batches = table.combine_chunks().to_batches()
    return as_batch(func(batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)))


def job_of(
    function: BatchUDF, table: TableVersion, read_columns: Sequence[str] | None, batch_size: int | None
) -> dict[str, Any]:
    """What a checkpoint must agree with: the table, the function by its name, and the shape of the results."""
    name = getattr(function.func, "__qualname__", type(function.func).__qualname__)
    return {
        "table": table.store.key(table.base),
        "function": name.rpartition(".")[2],
        "new columns": str(schema_of(function).remove_metadata()),
        "read_columns": None if read_columns is None else list(read_columns),
        "batch_size": batch_size,
    }


class BatchUDFCheckpoint:
    """What a `BatchUDF` has computed, in a SQLite file: batches of the fragment under way, and finished fragments.

    The file belongs to one `add_columns` of one table, which `begin` checks. It is read as data only, never as code.
    """

    class BatchInfo(NamedTuple):
        """Which batch of a run."""

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
            # Not in checkpoints of pylance: what the results were computed by, and from.
            connection.execute("CREATE TABLE IF NOT EXISTS job (description TEXT)")
            connection.execute("CREATE TABLE IF NOT EXISTS states (fragment_id INT PRIMARY KEY, state TEXT)")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        # A connection must not pass from thread to thread, so each call has its own.
        try:
            with closing(sqlite3.connect(self.path)) as connection, connection:
                yield connection
        except sqlite3.DatabaseError as error:
            raise InvalidInputError(
                f"checkpoint file {self.path}: {error}; remove the file to compute everything again"
            ) from error

    def cleanup(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)

    def get_batch(self, info: BatchInfo) -> pa.RecordBatch | None:
        """The result kept for a batch."""
        return self.load_batch(*info)

    def insert_batch(self, info: BatchInfo, batch: pa.RecordBatch) -> None:
        """Keep the result for a batch."""
        self.save_batch(*info, batch)

    def get_fragment(self, fragment_id: int) -> str | None:
        """A finished fragment as JSON."""
        with self._connection() as connection:
            row = connection.execute("SELECT data FROM fragments WHERE fragment_id = ?", (fragment_id,)).fetchone()
        return None if row is None else str(row[0])

    def insert_fragment(self, fragment_id: int, fragment: str) -> None:
        """Keep a finished fragment, given as JSON, and forget its batches."""
        with self._connection() as connection:
            connection.execute("INSERT OR REPLACE INTO fragments VALUES (?, ?)", (fragment_id, fragment))
            connection.execute("DELETE FROM batches WHERE fragment_id = ?", (fragment_id,))

    def begin(self, job: Mapping[str, Any]) -> None:
        """Record which job the results belong to. Raises InvalidInputError if the file holds those of another job."""
        with self._connection() as connection:
            row = connection.execute("SELECT description FROM job").fetchone()
            if row is None:
                has_results = connection.execute(
                    "SELECT EXISTS (SELECT 1 FROM batches) OR EXISTS (SELECT 1 FROM fragments)"
                ).fetchone()[0]
                if has_results:
                    raise InvalidInputError(
                        f"checkpoint file {self.path} does not record what its results were computed by; remove the"
                        " file to compute everything again"
                    )
                connection.execute("INSERT INTO job VALUES (?)", (json.dumps(job),))
                return
        before = json.loads(row[0])
        changed = sorted(name for name in {*before, *job} if before.get(name) != job.get(name))
        if changed:
            told = ", ".join(f"{name} was {before.get(name)!r} and is {job.get(name)!r}" for name in changed)
            raise InvalidInputError(
                f"checkpoint file {self.path} holds results of another job: {told}; pass another checkpoint_file, or"
                " remove the file to compute everything again"
            )

    # --- the same in the terms of ops.evolution.Checkpoint

    def begin_fragment(self, fragment: Fragment) -> None:
        """Forget the results for a fragment that had other files or other deleted rows when they were computed."""
        state = json.dumps(FragmentMetadata.from_format(fragment).to_json())
        with self._connection() as connection:
            row = connection.execute("SELECT state FROM states WHERE fragment_id = ?", (fragment.id,)).fetchone()
            if row is not None and row[0] == state:
                return
            connection.execute("DELETE FROM batches WHERE fragment_id = ?", (fragment.id,))
            connection.execute("DELETE FROM fragments WHERE fragment_id = ?", (fragment.id,))
            connection.execute("INSERT OR REPLACE INTO states VALUES (?, ?)", (fragment.id, state))

    def load_batch(self, fragment_id: int, batch_index: int) -> pa.RecordBatch | None:
        """The result kept for a batch."""
        with self._connection() as connection:
            row = connection.execute(
                "SELECT result FROM batches WHERE fragment_id = ? AND batch_index = ?", (fragment_id, batch_index)
            ).fetchone()
        if row is None:
            return None
        try:
            with pa.ipc.open_stream(row[0]) as stream:
                return stream.read_next_batch()
        except (pa.ArrowException, StopIteration, TypeError) as error:
            raise InvalidInputError(
                f"checkpoint file {self.path}: batch {batch_index} of fragment {fragment_id} is damaged: {error}; "
                f"remove the file to compute everything again"
            ) from error

    def save_batch(self, fragment_id: int, batch_index: int, batch: pa.RecordBatch) -> None:
        """Keep the result for a batch."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        with self._connection() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO batches VALUES (?, ?, ?)",
                (fragment_id, batch_index, sink.getvalue().to_pybytes()),
            )

    def load_fragment(self, fragment_id: int) -> Fragment | None:
        """A finished fragment."""
        text = self.get_fragment(fragment_id)
        return None if text is None else FragmentMetadata.from_json(text).to_format()

    def save_fragment(self, fragment: Fragment) -> None:
        """Keep a finished fragment, and forget its batches."""
        self.insert_fragment(fragment.id, json.dumps(FragmentMetadata.from_format(fragment).to_json()))
