"""Conformance of data to a table: comparison of schemas, and conversion of batches to the columns of files.

    incoming schema ─► conform_schema ─► the fields of the table that the data provides, with their ids
    batches         ─► conform_batches ─► columns in the order of these fields, as storage types, required ones checked

Data is validated here, before it is written. Later steps do not validate it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import SchemaMismatchError
from lancetable.file.blobs.descriptions import contains_blobs
from lancetable.file.column_interfaces import contains_null
from lancetable.file.extension_types import storage_array
from lancetable.format.schema import Field, Schema
from lancetable.ops.write.blob_columns import convert_blobs, schema_with_prepared


def conform_schema(incoming: Schema, table: Schema) -> Schema:
    """Return the part of the table schema that `incoming` provides, with the order and ids of the table.

    Raises SchemaMismatchError for unknown columns, other types, and a missing required column.
    """
    present: list[int] = []
    mismatch = _schema_mismatch(incoming.fields, table.fields, "", present)
    if mismatch is None and not present and table.fields:
        mismatch = f"fields did not match, missing=[{', '.join(table.names)}], unexpected=[]"
    if mismatch is not None:
        raise SchemaMismatchError(f"Append with different schema: {mismatch}")
    return table.project_ids(present)


def _schema_mismatch(
    incoming: tuple[Field, ...], table: tuple[Field, ...], prefix: str, present: list[int]
) -> str | None:
    """Return a description of the mismatch, or None; add the ids of the provided fields to `present`."""
    provided = {field.name: field for field in incoming}
    known = {field.name for field in table}
    unexpected = [prefix + name for name in provided if name not in known]
    missing = [prefix + field.name for field in table if field.name not in provided and not field.nullable]
    if unexpected or missing:
        return f"fields did not match, missing=[{', '.join(missing)}], unexpected=[{', '.join(unexpected)}]"
    for expected in table:
        field = provided.get(expected.name)
        if field is None:
            continue
        path = prefix + expected.name
        if expected.is_blob_v2 and field.is_blob_v2:
            # The children for a range of an external object are optional.
            present.append(expected.id)
            continue
        # pylance keeps the logical type without ".struct" for lists that previously contained blob v1 values.
        if field.logical_type.removesuffix(".struct") != expected.logical_type.removesuffix(".struct"):
            return f"`{path}` should have type {expected.logical_type} but type was {field.logical_type}"
        present_below = present
        if not expected.is_struct or expected.is_packed or not expected.children:
            present.append(expected.id)
            present_below = []
        mismatch = _schema_mismatch(field.children, expected.children, f"{path}.", present_below)
        if mismatch is not None:
            return f"`{path}` had mismatched children: {mismatch}"
    return None


def conform_batches(batches: Iterable[pa.RecordBatch], schema: Schema) -> Iterator[pa.RecordBatch]:
    """Yield each batch with the columns of `schema` in order, as storage types, after checking required columns.

    Raises SchemaMismatchError for nulls in a required column and for a missing or duplicate column.
    """
    has_blobs = any(map(contains_blobs, schema.fields))
    table, target = schema, schema.to_storage_arrow()
    required = [(index, field) for index, field in enumerate(schema.fields) if _contains_required(field)]
    for batch in batches:
        if has_blobs:
            schema = schema_with_prepared(table, batch.schema)
            target = schema.to_storage_arrow()
        if not required and batch.schema.equals(target, check_metadata=True):
            yield batch
            continue
        if batch.schema.names == schema.names and all(
            field.type.equals(expected.type) for field, expected in zip(batch.schema, target, strict=True)
        ):
            columns = batch.columns
        else:
            columns = [
                storage_array(convert_blobs(_column(batch, field.name), field), field.data_type, field.name)
                for field in schema.fields
            ]
        for index, field in required:
            for path, _ in null_violations(columns[index], field, field.name):
                raise SchemaMismatchError(
                    f"The field `{path}` contained null values even though the field is marked non-null in the schema;"
                    f" to allow them, call alter_columns({{'path': {path!r}, 'nullable': True}})"
                )
        yield pa.RecordBatch.from_arrays(columns, schema=target)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    count = batch.schema.names.count(name)
    if count != 1:
        raise SchemaMismatchError(f"expected 1 column {name!r} in a batch, got {count}")
    return batch.column(name)


def _contains_required(field: Field) -> bool:
    return not field.nullable or any(map(_contains_required, field.children))


def null_violations(array: pa.Array, field: Field, path: str) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Yield the path of each non-nullable field that contains nulls, and a mask (n,) of the rows with these nulls.

    Children of a null parent are ignored.
    """
    if not field.nullable and contains_null(array):
        values = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        yield path, np.asarray(values.is_null())
    if not any(map(_contains_required, field.children)):
        return
    if field.is_struct:
        valid = np.asarray(array.is_valid())
        for index, child in enumerate(field.children):
            for child_path, nulls in null_violations(array.field(index), child, f"{path}.{child.name}"):
                if (nulls & valid).any():
                    yield child_path, nulls & valid
    elif field.is_list:
        parents = np.repeat(np.arange(len(array)), np.asarray(array.value_lengths().fill_null(0)))
        child = field.children[0]
        for child_path, nulls in null_violations(array.flatten(), child, f"{path}.{child.name}"):
            yield child_path, np.isin(np.arange(len(array)), parents[nulls])
