"""Conversion of tabular objects to a stream of record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from lancetable.errors import InvalidInputError, SchemaMismatchError
from lancetable.ops.write.float_overflow import check_finite

_UNITS = ("s", "ms", "us", "ns")
_DATA_SET_BATCH_ROWS = 1000  # of `datasets`, which writes its files in batches of this size


class Input(NamedTuple):
    """A schema and an iterator of matching batches."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    num_rows: int | None = None  # None for streams


def read_input(data: Any, schema: pa.Schema | None = None) -> Input:
    """Turn any tabular object into a schema and an iterator of record batches.

    Accepts pandas and polars frames, Arrow tables, batches, readers, datasets and scanners, data sets of Hugging Face,
    objects with `__arrow_c_stream__`, a dict of columns, a list of dicts or of pydantic models, and iterables of record
    batches together with `schema`. Batches that differ from a given `schema` are cast to it, by column name. A stream
    is not read before its batches are requested, and exceptions of the caller's own iterator are not wrapped.

    Raises
    ------
    InvalidInputError
        If a schema is required and missing, or metadata of the schema is not UTF-8, which other readers would reject.
    SchemaMismatchError
        If the data does not fit the schema; for streams it may be raised by the iterator.
    TypeError
        If the object is not tabular.
    """
    source = _find_source(data, schema)
    _check_metadata(source.schema)
    return source


def read_table(data: Any, schema: pa.Schema | None = None) -> pa.Table:
    """Read a tabular object into memory. Raises the errors of `read_input`."""
    source = read_input(data, schema)
    return pa.Table.from_batches(source.batches, source.schema)


def _find_source(data: Any, schema: pa.Schema | None) -> Input:
    """Convert like `read_input`, without the check of the metadata."""
    if isinstance(data, pa.Table):
        return _from_table(data, schema)
    if isinstance(data, pa.RecordBatch):
        return _from_table(pa.Table.from_batches([data]), schema)
    if isinstance(data, pa.RecordBatchReader):
        return _from_reader(data, schema)
    import pyarrow.dataset as pads  # imported here, because it imports pandas, which Spark tasks do not need

    if isinstance(data, pads.Dataset):
        return _from_reader(data.scanner().to_reader(), schema)
    if isinstance(data, pads.Scanner):
        return _from_reader(data.to_reader(), schema)
    if type(data).__module__.partition(".")[0] == "datasets":
        return _from_data_set(data, schema)
    convert = foreign_frame(data)
    if convert is not None:
        return _from_table(convert(data, schema), schema)
    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, (pa.Array, pa.ChunkedArray)):
        return _from_reader(pa.RecordBatchReader.from_stream(data), schema)
    if isinstance(data, Mapping):
        return _from_table(_table_of_columns(dict(data), schema), schema)
    if isinstance(data, (list, tuple)) and data and all(isinstance(row, Mapping) for row in data):
        return _from_table(table_of_rows(data, schema), schema)
    if isinstance(data, (list, tuple)) and data and all(hasattr(row, "model_dump") for row in data):
        return _from_table(table_of_rows([row.model_dump() for row in data], schema), schema)
    if isinstance(data, Iterable):
        if schema is None:
            raise InvalidInputError("an iterable of record batches requires the argument schema")
        return Input(schema, cast_batches(iter(data), schema))
    raise TypeError(f"cannot write a {type(data).__module__}.{type(data).__qualname__}: it is not tabular")


def table_of_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None = None) -> pa.Table:
    """Return a table of dicts: a column for every key of any row, null where a row lacks it.

    Arrow itself takes the keys of the first row and drops all others. Raises SchemaMismatchError as
    `_table_of_columns` does.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    if schema is not None:
        names += [name for name in schema.names if name not in names]
    return _table_of_columns({name: [row.get(name) for row in rows] for name in names}, schema)


def _table_of_columns(columns: Mapping[str, Any], schema: pa.Schema | None = None) -> pa.Table:
    """Return a table of a dict of columns, converting Python values to `schema` without loss.

    Raises SchemaMismatchError for a column that `schema` lacks, and for values that would be truncated: Arrow converts
    1.5 to the integer 1, and drops fractions of a second, without an error.
    """
    if schema is None:
        return pa.table(dict(columns))
    check_no_more(columns, schema)
    for field in schema:
        values = columns.get(field.name)
        if isinstance(values, (list, tuple)) and _may_truncate(field.type):
            _check_not_truncated(field, values)
    return pa.table(dict(columns), schema=schema)


def check_no_more(names: Iterable[Any], schema: pa.Schema) -> None:
    """Raise SchemaMismatchError for names that `schema` lacks."""
    extra = [name for name in names if name not in schema.names]
    if extra:
        raise SchemaMismatchError(
            f"data does not fit the schema: unexpected columns {extra}; add them to the schema or remove them"
            " from the data"
        )


def _may_truncate(data_type: pa.DataType) -> bool:
    """Return whether Arrow may truncate Python values that it converts to this type."""
    if pa.types.is_nested(data_type):
        return any(_may_truncate(data_type.field(at).type) for at in range(data_type.num_fields))
    return bool(pa.types.is_integer(data_type)) or hasattr(data_type, "unit")


def _check_not_truncated(field: pa.Field, values: Sequence[Any]) -> None:
    """Raise SchemaMismatchError for Python values that an array of this field would truncate."""
    try:
        inferred = pa.array(values)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return  # Arrow cannot infer a type, so the conversion to the type of the field decides
    if not _is_truncating(inferred.type, field.type):
        return
    try:
        inferred.cast(field.type)
    except pa.ArrowInvalid as error:
        raise SchemaMismatchError(f"column {field.name!r} does not fit the schema: {error}") from error
    except pa.ArrowNotImplementedError:
        return


def _is_truncating(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a conversion truncates values: a float to an integer, or a time unit to a coarser one."""
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        types = {field.name: field.type for field in wanted}
        return any(field.name in types and _is_truncating(field.type, types[field.name]) for field in given)
    if pa.types.is_nested(given) and pa.types.is_nested(wanted):
        return given.num_fields == 1 == wanted.num_fields and _is_truncating(given.field(0).type, wanted.field(0).type)
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_floating(given))
    if type(given) is not type(wanted) or not hasattr(given, "unit"):
        return False
    return _UNITS.index(given.unit) > _UNITS.index(wanted.unit)


def _check_metadata(schema: pa.Schema) -> None:
    """Raise InvalidInputError for metadata of the schema or a column that is not UTF-8."""
    for owner, metadata in [("the schema", schema.metadata), *((f"column {f.name!r}", f.metadata) for f in schema)]:
        for key, value in (metadata or {}).items():
            if not (_is_text(key) and _is_text(value)):
                raise InvalidInputError(
                    f"the metadata {key!r} of {owner} is not valid utf8; consider base64 for binary metadata"
                )


def _is_text(data: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _from_table(table: pa.Table, schema: pa.Schema | None) -> Input:
    """Return the input of a table in memory, cast immediately if it differs from `schema`."""
    if schema is not None and not table.schema.equals(schema, check_metadata=True):
        table = _cast_table(table, schema)
    return Input(table.schema, iter(table.to_batches()), table.num_rows)


def _from_reader(reader: pa.RecordBatchReader, schema: pa.Schema | None) -> Input:
    """Return the input of a stream, cast batch by batch if it differs from `schema`."""
    if schema is None or reader.schema.equals(schema, check_metadata=True):
        return Input(reader.schema, iter(reader))
    return Input(schema, cast_batches(iter(reader), schema))


def _from_data_set(data: Any, schema: pa.Schema | None) -> Input:
    """Return the input of a data set of Hugging Face `datasets`, with the order and selection of its rows.

    Raises InvalidInputError for a dict of splits, and for a data set without features if there is no `schema`.
    """
    if isinstance(data, Mapping):
        raise InvalidInputError(
            f"a {type(data).__name__} has several splits ({', '.join(map(str, data))}); write each of them"
        )
    if schema is None and data.features is None:
        raise InvalidInputError("the features of the data set are unknown; pass the argument schema")
    found = data.features.arrow_schema if schema is None else schema
    if hasattr(data, "__len__"):
        tables = data.with_format("arrow").iter(_DATA_SET_BATCH_ROWS)
        return Input(found, cast_batches(tables, found), len(data))
    return Input(found, cast_batches(_tables_of_stream(data, found), found))


def _tables_of_stream(data: Any, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of an iterable data set, whose rows are Python values.

    Images and sounds are not decoded, as long as no function has changed the rows: they would be encoded again.
    """
    if data.features is None:
        return (_table_of_columns(columns, schema) for columns in data.iter(_DATA_SET_BATCH_ROWS))
    batches = data.decode(False).iter(_DATA_SET_BATCH_ROWS)
    return (_table_of_columns(data.features.encode_batch(columns), schema) for columns in batches)


def foreign_frame(data: Any) -> Callable[[Any, pa.Schema | None], pa.Table] | None:
    """Return a converter of a pandas or polars frame, detected without importing either; None for other objects."""
    package, kind = type(data).__module__.partition(".")[0], type(data).__name__
    if package == "pandas" and kind == "DataFrame":
        return _table_of_pandas
    if package == "polars" and kind in ("DataFrame", "LazyFrame"):
        # The C stream of polars contains string views, which Lance files do not support; `to_arrow` returns none.
        return lambda frame, schema: frame.lazy().collect().to_arrow()
    return None


def _table_of_pandas(frame: Any, schema: pa.Schema | None) -> pa.Table:
    """Return a table of a pandas frame. Raises SchemaMismatchError for columns that differ from those of `schema`."""
    if schema is not None:
        check_no_more(frame.columns, schema)
        missing = [name for name in schema.names if name not in frame.columns and name not in frame.index.names]
        if missing:
            raise SchemaMismatchError(f"data does not fit the schema: missing columns {missing}")
    return pa.Table.from_pandas(frame, schema=schema)


def cast_batches(batches: Iterator[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield each batch cast to `schema`. Raises SchemaMismatchError, TypeError for other objects."""
    for batch in batches:
        if isinstance(batch, pa.Table):
            yield from _cast_table(batch, schema).to_batches()
        elif not isinstance(batch, pa.RecordBatch):
            raise TypeError(f"expected pyarrow.RecordBatch, got {type(batch).__module__}.{type(batch).__qualname__}")
        elif batch.schema.equals(schema):
            yield batch
        else:
            yield from _cast_table(pa.Table.from_batches([batch]), schema).to_batches()


def _cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns, order and types of `schema`, matching columns by name.

    Raises SchemaMismatchError.
    """
    names = table.schema.names
    if sorted(names) != sorted(schema.names):
        missing = [name for name in schema.names if name not in names]
        more = [name for name in names if name not in schema.names]
        raise SchemaMismatchError(f"data does not fit the schema: missing columns {missing}, unexpected columns {more}")
    try:
        selected = table.select(schema.names)
        converted = selected.cast(schema)
        for before, after in zip(selected.columns, converted.columns, strict=True):
            check_finite(before, after)
        return converted
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError, KeyError) as error:
        raise SchemaMismatchError(f"data cannot be cast to the schema: {error}") from error
