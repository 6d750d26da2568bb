"""Functions that compute new columns from batches of a table, for `LanceDataset.add_columns`."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from lancetable.errors import InvalidInputError
from lancetable.format.fragment import Fragment
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.ops.schema.new_columns import NewColumns, from_expressions, from_function, from_reader
from lancetable.table.version import TableVersion
from lancetable.tabular_input import check_no_more, read_input

__all__ = ["BatchUDF", "BatchUDFCheckpoint", "batch_udf", "computed_columns", "new_columns"]


class BatchUDF:
    """A function from a RecordBatch of a table to a RecordBatch of new columns with the same number of rows.

    Parameters
    ----------
    func
        Takes a RecordBatch, returns a RecordBatch or a pandas DataFrame.
    output_schema
        Schema of the new columns; by default it is inferred by calling the function on one row.
    checkpoint_file
        SQLite file for results, so that a failed run can resume. It is removed at the end. The next run must use a
        function of the same name and the same new columns, `read_columns`, `batch_size` and table; otherwise
        `add_columns` raises InvalidInputError. Fragments that have changed are computed again. A change of the
        function's code is not detected; remove the file if the stored results are outdated.
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
        """Call the function."""
        return self.func(batch)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the new columns for one batch; a DataFrame is converted to a batch of `output_schema`."""
        return as_batch(self.func(batch), self.output_schema)


def batch_udf(
    output_schema: pa.Schema | None = None, checkpoint_file: str | os.PathLike[str] | None = None
) -> Callable[[Callable[[pa.RecordBatch], Any]], BatchUDF]:
    """Return a decorator that wraps a function for `LanceDataset.add_columns`. See `BatchUDF` for the arguments.

    Examples
    --------
    >>> @lancetable.batch_udf()
    ... def kilometers(batch):
    ...     return pa.record_batch({"km": [miles * 1.6 for miles in batch["distance"].to_pylist()]})
    >>> ds.add_columns(kilometers, read_columns=["distance"])
    >>> ds.take([0], columns=["km"]).to_pydict()
    {'km': [2240.0]}
    """
    return partial(BatchUDF, output_schema=output_schema, checkpoint_file=checkpoint_file)


def as_batch(result: Any, schema: pa.Schema | None = None) -> pa.RecordBatch:
    """Convert the result of a column function to a RecordBatch.

    Raises
    ------
    TypeError
        If the result is neither a batch, a table nor a DataFrame.
    SchemaMismatchError
        If a DataFrame has columns that `schema` lacks.
    """
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
    """Convert the argument of `add_columns` to one of its four forms. Functions are tried on the first row of `source`.

    Raises
    ------
    TypeError
        If `transforms` is another object, or a function that fails on the first row.
    """
    if isinstance(transforms, pa.Field):
        return pa.schema([transforms])
    if isinstance(transforms, list) and transforms and all(isinstance(field, pa.Field) for field in transforms):
        return pa.schema(transforms)
    if isinstance(transforms, pa.Schema):
        return transforms
    if isinstance(transforms, BatchUDF):
        if transforms.output_schema is None:
            transforms.output_schema = _call_once(transforms.func, source, read_columns).schema
        return transforms
    if isinstance(transforms, dict) and all(isinstance(sql, str) for sql in transforms.values()):
        for name in transforms:
            if not isinstance(name, str):
                raise TypeError(f"Column names must be a string. Got {type(name)}")
        return transforms
    wanted = "transforms must be a BatchUDF, dict, map function, or ReaderLike value"
    if callable(transforms):
        try:
            return BatchUDF(transforms, _call_once(transforms, source, read_columns).schema)
        except Exception as error:
            raise TypeError(
                f"{wanted}. Received {type(transforms)}, which is callable, but raised an error when called with a "
                f"batch of data: {error}"
            ) from error
    try:
        schema, batches, _ = read_input(transforms, reader_schema)
    except TypeError as error:
        raise TypeError(f"{wanted}. Received {type(transforms)}: {error}") from error
    return pa.RecordBatchReader.from_batches(schema, batches)


def computed_columns(
    new: dict[str, str] | BatchUDF | pa.RecordBatchReader,
    table: TableVersion,
    read_columns: Sequence[str] | None,
    batch_size: int | None,
) -> NewColumns:
    """Return the columns that one of the forms of `new_columns` computes.

    Raises InvalidInputError if the checkpoint of a function contains results of another job.
    """
    if isinstance(new, dict):
        return from_expressions(table, new, batch_size)
    if not isinstance(new, BatchUDF):
        return from_reader(table, new)
    if new.cache is not None:
        new.cache.begin(job_of(new, table, read_columns, batch_size))
    return from_function(
        table, new.apply, new.output_schema, columns=read_columns, batch_size=batch_size, checkpoint=new.cache
    )


def _call_once(func: Callable[[pa.RecordBatch], Any], source: Any, columns: Sequence[str] | None) -> pa.RecordBatch:
    """Call the function on the first row, or on an empty batch if there are no rows."""
    table = source.to_table(columns=None if columns is None else list(columns), limit=1)
    batches = table.combine_chunks().to_batches()
    return as_batch(func(batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)))


def job_of(
    function: BatchUDF, table: TableVersion, read_columns: Sequence[str] | None, batch_size: int | None
) -> dict[str, Any]:
    """Return the properties that a checkpoint must match: table, function name, and shape of the results."""
    assert function.output_schema is not None, "new_columns finds the schema"
    name = getattr(function.func, "__qualname__", type(function.func).__qualname__)
    return {
        "table": table.store.key(table.base),
        "function": name.rpartition(".")[2],
        "new columns": str(function.output_schema.remove_metadata()),
        "read_columns": None if read_columns is None else list(read_columns),
        "batch_size": batch_size,
    }


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
