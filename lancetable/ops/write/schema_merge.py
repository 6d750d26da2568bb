"""Schema merge: extension of the table schema to rows with another schema, before they are written.

    table   a: int32   s: struct<x>           append   a: int64   s: struct<y>   c: bool
    then    a: int64   s: struct<x, y>   c: bool       (s.x is null in new rows, s.y and c in old rows)

New columns and fields are null in existing rows; those that the data lacks are null in the new rows. Two types are
merged only if one of them can represent every value of the other: see `represents`. The schema changes in separate
commits, before the rows are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lancetable.errors import SchemaMismatchError
from lancetable.expr.arrow_types import is_list
from lancetable.format.field_paths import format_path
from lancetable.ops.schema.alter_columns import Alteration, alter, represents
from lancetable.ops.schema.new_columns import add_nulls
from lancetable.table.version import TableVersion


@dataclass(frozen=True)
class Difference:
    """Column or field that the table lacks (`stored` is None) or stores with another type.

    `parents` are the enclosing fields of the table, outermost first.
    """

    parents: tuple[pa.Field, ...]
    field: pa.Field
    stored: pa.DataType | None

    @property
    def path(self) -> str:
        """Dotted path of the field."""
        return format_path(field.name for field in (*self.parents, self.field))

    @property
    def is_fixed(self) -> bool:
        """True if the field is inside a map or a fixed-size list, whose types cannot change."""
        return any(pa.types.is_map(parent.type) or pa.types.is_fixed_size_list(parent.type) for parent in self.parents)

    @property
    def column(self) -> pa.Field:
        """Top-level column that contains only this field."""
        column = self.field.with_nullable(True)
        for parent in reversed(self.parents):
            kinds = {pa.ListType: pa.list_, pa.LargeListType: pa.large_list}
            inner = pa.struct([column]) if pa.types.is_struct(parent.type) else kinds[type(parent.type)](column)
            column = parent.with_type(inner)
        return column


def differences(
    table: Iterable[pa.Field], incoming: Iterable[pa.Field], parents: tuple[pa.Field, ...] = ()
) -> Iterator[Difference]:
    """Yield the differences of incoming fields from those of a table. Missing incoming fields are ignored."""
    known = {field.name: field for field in table}
    for field in incoming:
        stored = known.get(field.name)
        if stored is None:
            yield Difference(parents, field, None)
            continue
        old, new = plain_type(stored.type), plain_type(field.type)
        if any(is_kind(old) and is_kind(new) for is_kind in (pa.types.is_struct, pa.types.is_map, is_list)):
            children = [new.field(number) for number in range(new.num_fields)]
            if not pa.types.is_struct(new):
                children = [children[0].with_name(old.field(0).name)]
            yield from differences(map(old.field, range(old.num_fields)), children, (*parents, stored))
        elif old != new:
            yield Difference(parents, field, stored.type)


def plain_type(arrow: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary, or of the storage of an extension."""
    if isinstance(arrow, pa.BaseExtensionType):
        return plain_type(arrow.storage_type)
    return plain_type(arrow.value_type) if pa.types.is_dictionary(arrow) else arrow


def apply_changes(version: TableVersion, changes: Sequence[Difference]) -> TableVersion:
    """Add the columns and fields that the table lacks in one commit, and change the other types in a second commit.

    Raises the errors of `add_nulls` and `alter`.
    """
    added = [change.column for change in changes if change.stored is None]
    altered = [Alteration(change.path, data_type=change.field.type) for change in changes if change.stored is not None]
    if added:
        version = add_nulls(version, pa.schema(added))
    return alter(version, altered) if altered else version


def merge_schema(version: TableVersion, incoming: pa.Schema) -> tuple[TableVersion, pa.Schema]:
    """Extend the schema of the table to fit `incoming`; return the new version and the schema to cast the rows to.

    Raises SchemaMismatchError for incompatible types, before anything is committed; CommitConflictError.
    """
    changes = []
    for found in differences(version.schema.to_arrow(), incoming):
        if not found.is_fixed and (found.stored is None or represents(found.field.type, found.stored)):
            changes.append(found)
        elif found.stored is None or not represents(found.stored, found.field.type):
            raise SchemaMismatchError(
                f"Append with different schema: `{found.path}` is {found.stored or 'absent'} in the table and"
                f" {found.field.type} in the data; neither type can represent all values of the other",
                column=found.path,
            )
    version = apply_changes(version, changes)
    return version, pa.schema([field for field in version.schema.to_arrow() if field.name in incoming.names])
