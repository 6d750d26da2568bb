"""Schema merge for appends: extension of the table schema to rows with another schema, before they are written.

    table   a: int32   b: string              append   a: int64   c: bool
    then    a: int64   b: string   c: bool             (b is null in new rows, c in old rows)

New columns are null in existing rows; columns that the data lacks are null in the new rows. Two types are merged only
if one of them can represent every value of the other: integers and floats of different widths, strings and bytes with
large offsets, decimals of one scale. The schema changes in separate commits, before the rows are appended.
"""

from __future__ import annotations

import pyarrow as pa

from lancetable.errors import SchemaMismatchError
from lancetable.ops.schema.evolution import Alteration, alter
from lancetable.ops.schema.new_columns import add_nulls
from lancetable.table.version import TableVersion


def merge_schema(version: TableVersion, incoming: pa.Schema) -> tuple[TableVersion, pa.Schema]:
    """Extend the schema of the table to fit `incoming`; return the new version and the schema to cast the rows to.

    Raises SchemaMismatchError for incompatible types, before anything is committed; CommitConflictError.
    """
    table = {field.name: field for field in version.schema.fields}
    added: list[pa.Field] = []
    alterations: list[Alteration] = []
    wanted: list[pa.Field] = []
    for field in incoming:
        known = table.get(field.name)
        if known is None:
            added.append(field.with_nullable(True))
            wanted.append(field)
            continue
        stored = known.to_arrow()
        common = stored.type if stored.type.equals(field.type) else wider_type(stored.type, field.type)
        if common is None:
            raise SchemaMismatchError(
                f"Append with different schema: `{field.name}` is {stored.type} in the table and {field.type} in the"
                " data; neither type can represent all values of the other",
                column=field.name,
            )
        if not common.equals(stored.type):
            alterations.append(Alteration(field.name, data_type=common))
        wanted.append(pa.field(field.name, common, field.nullable, field.metadata))
    if added:
        version = add_nulls(version, pa.schema(added))
    if alterations:
        version = alter(version, alterations)
    return version, pa.schema(wanted, metadata=incoming.metadata)


def wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that can represent all values of both types; None if neither can."""
    if _represents(one, other):
        return one
    return other if _represents(other, one) else None


def _represents(wide: pa.DataType, narrow: pa.DataType) -> bool:
    types = pa.types
    if types.is_null(narrow):
        return True
    if types.is_integer(wide) and types.is_integer(narrow):
        if types.is_signed_integer(wide) == types.is_signed_integer(narrow):
            return bool(wide.bit_width >= narrow.bit_width)
        return bool(types.is_signed_integer(wide) and wide.bit_width > narrow.bit_width)
    if types.is_floating(wide) and types.is_floating(narrow):
        return bool(wide.bit_width >= narrow.bit_width)
    if types.is_floating(wide) and types.is_integer(narrow):
        # A double represents integers of up to 53 bits exactly, a float those of up to 24 bits.
        return bool(narrow.bit_width < {32: 24, 64: 53}.get(wide.bit_width, 0))
    if types.is_decimal(wide) and types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision >= narrow.precision and wide.id >= narrow.id)
    return (wide, narrow) in ((pa.large_string(), pa.string()), (pa.large_binary(), pa.binary()))
