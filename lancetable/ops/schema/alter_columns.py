"""Schema evolution: altered and dropped columns.

    drop, rename, nullability     writes the schema only                              ─► Project
    change of type                writes the schema and a data file for each fragment ─► Merge

Unchanged columns are neither read nor written, and old versions do not change. A concurrent commit that changes
fragments or columns makes the commit fail (`RetryableCommitConflictError`), because the new values would not match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.commit.commit_loop import commit_transaction
from lancetable.commit.publish import discarding_on_failure
from lancetable.errors import (
    AlreadyExistsError,
    ColumnNotFoundError,
    InvalidInputError,
    InvalidOperationError,
    SchemaMismatchError,
    UnsupportedFeatureError,
)
from lancetable.expr.arrow_types import is_list
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.format.index import parse_indices
from lancetable.format.schema import Field, Schema
from lancetable.format.transaction import Transaction
from lancetable.format.version import FileVersion
from lancetable.ops.read.scan import scan_table
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.schema.column_files import Values, add_column_files, discard_column_files, fragment_batches
from lancetable.ops.schema.new_columns import commit_merge
from lancetable.ops.write.float_overflow import check_finite
from lancetable.table.version import TableVersion

_WITH_STRUCT_COLUMNS = (FileVersion.LEGACY, FileVersion.V2_0)
_CONVERTIBLE: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_temporal,
    pa.types.is_boolean,
    lambda data_type: data_type in (pa.string(), pa.large_string()),
    lambda data_type: data_type in (pa.binary(), pa.large_binary()),
    pa.types.is_decimal,
)


@dataclass(frozen=True, slots=True)
class Alteration:
    """Changes to the column at `path`. An attribute that is None is not changed."""

    path: str
    name: str | None = None
    nullable: bool | None = None
    data_type: pa.DataType | None = None


# --- altered columns ------------------------------------------------------------------------------------------------


def alter(version: TableVersion, alterations: Iterable[Alteration]) -> TableVersion:
    """Rename columns, change their nullability, or change their type, in one new version.

    A type can change within its kind: integers, floats, times, strings, bytes, decimals, and lists of these. Integers
    can also become doubles. Converted values are written to new files; older versions keep the old files. Raises
    ColumnNotFoundError, InvalidOperationError for a conversion to another kind or of an indexed column,
    SchemaMismatchError for nulls in a column that becomes required and for values that do not fit the new type,
    AlreadyExistsError and InvalidSchemaError for a duplicate name.
    """
    version.check_writable()
    schema, casts = version.schema, dict[int, int]()
    next_id, narrowed = version.manifest.max_field_id + 1, False
    for alteration in alterations:
        old = version.schema.field(alteration.path)
        if old is None:
            raise ColumnNotFoundError(
                f'Column "{alteration.path}" does not exist in the dataset', column=alteration.path
            )
        new = schema.by_id[casts.get(old.id, old.id)]
        if alteration.nullable is not None and alteration.nullable != old.nullable:
            if not alteration.nullable:
                _check_null_free(version, old, alteration.path)
                narrowed = True
            new = replace(new, nullable=alteration.nullable)
        if alteration.name is not None:
            new = replace(new, name=alteration.name)
        if alteration.data_type is None:
            schema = schema.replace_field(new)
            continue
        if not _is_conversion(old.data_type, alteration.data_type):
            raise InvalidOperationError(
                f'Cannot cast column "{alteration.path}" from {old.data_type} to {alteration.data_type}'
            )
        _check_no_index(version, old, alteration.path)
        converted = _retyped(new, alteration.data_type, next_id)
        next_id = max(nested.id for nested in converted.walk()) + 1
        schema = schema.replace_field(converted, new.id)
        casts[old.id] = converted.id
    # Rebuild the schema so that names, keys and types are checked.
    schema = Schema.from_protos(schema.to_protos(), schema.metadata)
    _check_names(schema)
    if not casts:
        return _commit_project(version, schema, preserves_nullability=not narrowed)
    written = _fields_to_write(version, schema, set(casts.values()))
    fragments = add_column_files(version, written, _converted(version, written, casts))
    with discarding_on_failure(lambda: discard_column_files(version, fragments)):
        return commit_merge(version, fragments, schema, preserves_nullability=not narrowed)


def _check_no_index(version: TableVersion, field: Field, path: str) -> None:
    """Raise InvalidOperationError if an index covers the field, because it would be dropped silently."""
    ids = {nested.id for nested in field.walk()}
    indices = parse_indices(version.file.index_section(version.store), version.location.path)
    names = sorted({index.name for index in indices if ids.intersection(index.fields)})
    if names:
        raise InvalidOperationError(
            f"Cannot cast column {path!r} to a new type: it has {len(names)} index(es) attached: {names}. Remove them"
            " first (drop_index of the library that made them, or a commit of LanceOperation.CreateIndex([], removed)),"
            " and recreate them after the cast"
        )


def _check_names(schema: Schema) -> None:
    Schema.from_arrow(pa.schema([pa.field(name, pa.null()) for name in schema.names]))
    for field in schema.walk():
        names = [child.name for child in field.children]
        for name in names:
            if names.count(name) > 1:
                raise AlreadyExistsError(f"column {field.name!r} already has a field {name!r}", column=name)


def _check_null_free(version: TableVersion, field: Field, path: str) -> None:
    top = field
    while top.parent_id >= 0:
        top = version.schema.by_id[top.parent_id]
        if not top.is_struct:
            raise UnsupportedFeatureError(
                f'column "{path}" is nested in a list: checking it for nulls is not supported',
                feature="required fields in lists",
                column=path,
            )
    plan = plan_scan(version, ScanOptions(columns=[], filter=f"{path} IS NULL", limit=1, with_row_address=True))
    if scan_table(version, plan).num_rows:
        raise SchemaMismatchError(f'Column "{path}" contains NULL values and cannot be made non-nullable', column=path)


def represents(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Return True if `wide` can represent every value of `narrow`.

    This is the case for wider integers, for wider floats, for integers in floats with enough bits, for strings and
    bytes in the form with large offsets, for wider decimals of the same scale, for dates in timestamps without a zone
    that are coarser than nanoseconds, and for the null type.
    """
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
    if types.is_timestamp(wide) and types.is_date(narrow):
        return wide.tz is None and wide.unit != "ns"
    return (wide, narrow) in ((pa.large_string(), pa.string()), (pa.large_binary(), pa.binary()))


def _is_conversion(old: pa.DataType, new: pa.DataType) -> bool:
    """Return True if both types are of one kind or lists of items of one kind, or if the new type is wider.

    All integer types can become double. A value that a double cannot represent raises an error later, in the cast.
    """
    if represents(new, old) or (pa.types.is_integer(old) and new == pa.float64()):
        return True
    for is_kind in _CONVERTIBLE:
        if is_kind(old):
            return is_kind(new)
    return is_list(old) and is_list(new) and _is_conversion(old.value_type, new.value_type)


def _retyped(field: Field, new_type: pa.DataType, first_id: int) -> Field:
    """Return the field with another type, and new ids for itself and its descendants."""
    arrow = pa.schema([pa.field(field.name.replace(".", "_"), new_type, field.nullable)])
    retyped = Schema.from_arrow(arrow, first_id=first_id).fields[0]
    storage = {name: getattr(retyped, name) for name in ("id", "logical_type", "children", "encoding", "dictionary")}
    return replace(field, **storage)


def _fields_to_write(version: TableVersion, schema: Schema, new_ids: set[int]) -> Schema:
    """Return the fields for the new files: the converted fields with their enclosing structs, or whole columns.

    Whole columns are written for data files before 2.1, which store structs as columns, and if a converted field is
    inside a list, map or packed struct, whose parts must be in one file.
    """
    ids: list[int] = []
    for top in schema.fields:
        inside = [field.id for field in top.walk() if field.id in new_ids]
        if inside and (
            version.manifest.file_version in _WITH_STRUCT_COLUMNS
            or any(not _only_structs(top, field_id) for field_id in inside)
        ):
            inside = [top.id]
        ids += inside
    return schema.project_ids(ids)


def _only_structs(top: Field, field_id: int) -> bool:
    """Return whether all fields that enclose a field are structs whose children are separate columns."""
    if top.id == field_id:
        return True
    below = [child for child in top.children if any(field.id == field_id for field in child.walk())]
    return top.is_struct and not top.is_packed and all(_only_structs(child, field_id) for child in below)


def _converted(version: TableVersion, written: Schema, casts: Mapping[int, int]) -> Values:
    """Return a function that reads the old values of the columns of `written` and converts them."""
    old_ids = {new: old for old, new in casts.items()}

    def before(field: Field) -> Field:
        old = version.schema.by_id[old_ids.get(field.id, field.id)]
        return old if field.id in old_ids else replace(old, children=tuple(map(before, field.children)))

    pairs = [(before(field), field) for field in written.fields]
    target = written.to_storage_arrow()

    def values(fragment: Fragment) -> Iterator[pa.RecordBatch]:
        for batch in fragment_batches(version, fragment, [old for old, _ in pairs], keep_deleted=False):
            arrays = [
                _convert(array, old, new, new.name, old_ids)
                for array, (old, new) in zip(batch.columns, pairs, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=target)

    return values


def _convert(array: pa.Array, old: Field, new: Field, path: str, old_ids: Mapping[int, int]) -> pa.Array:
    """Convert `array` from the field `old` to `new`: cast fields in `old_ids` and rebuild the fields around them."""
    data_type = new.data_type
    if new.id in old_ids:
        try:
            converted = pc.cast(array, data_type)
            check_finite(array, converted)
            return converted
        except pa.ArrowException as error:
            raise SchemaMismatchError(
                f"column {path!r} cannot be converted to {data_type}: {error}; the table is unchanged", column=path
            ) from error
    if not new.children:
        return array
    if pa.types.is_map(data_type):
        raise UnsupportedFeatureError(
            f"column {path!r}: the type of keys and values of a map cannot be changed",
            feature="changing the types in a map",
            column=path,
        )

    def child(index: int, values: pa.Array) -> pa.Array:
        field = new.children[index]
        return _convert(values, old.children[index], field, f"{path}.{field.name}", old_ids)

    mask = array.is_null() if array.null_count else None
    if new.is_struct:
        parts = [child(index, array.field(index)) for index in range(len(new.children))]
        return pa.StructArray.from_arrays(parts, fields=list(data_type), mask=mask)
    if pa.types.is_fixed_size_list(data_type):
        size = data_type.list_size
        items = child(0, array.values.slice(array.offset * size, len(array) * size))
        return pa.FixedSizeListArray.from_arrays(items, type=data_type, mask=mask)
    list_class = pa.LargeListArray if pa.types.is_large_list(data_type) else pa.ListArray
    return list_class.from_arrays(array.offsets, child(0, array.values), type=data_type, mask=mask)


# --- dropped columns ------------------------------------------------------------------------------------------------


def drop(version: TableVersion, paths: Sequence[str]) -> TableVersion:
    """Remove columns, or fields of struct columns, from the schema.

    Their bytes are removed when fragments are compacted and old versions cleaned up. Raises ColumnNotFoundError,
    InvalidInputError if no column would remain.
    """
    version.check_writable()
    ids: set[int] = set()
    for path in paths:
        field = version.schema.field(path)
        if field is None:
            raise ColumnNotFoundError(f"Column {path} does not exist in the dataset", column=path)
        ids.add(field.id)
    schema = version.schema.without(ids)
    if not schema.fields:
        raise InvalidInputError("Cannot drop all columns from a dataset")
    return _commit_project(version, schema)


def _commit_project(version: TableVersion, schema: Schema, *, preserves_nullability: bool = True) -> TableVersion:
    operation = tx.Project(schema.with_metadata({}), preserves_nullability=preserves_nullability)
    return commit_transaction(version, Transaction.create(version.version, operation))
