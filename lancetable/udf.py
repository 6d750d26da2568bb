"""Functions that compute new columns from batches of a table, for `LanceDataset.add_columns`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from lancetable.ops.schema.new_columns import NewColumns, from_expressions, from_function, from_reader
from lancetable.table.version import TableVersion
from lancetable.tabular_input import check_no_more, read_input
from lancetable.udf_checkpoint import BatchUDFCheckpoint

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
