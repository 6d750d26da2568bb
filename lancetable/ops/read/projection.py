"""Projections: the columns of a result and the stored columns to read for them.

    columns=["s", "st.x", "_rowid"]      read: s, st{x}, _rowid        outputs: s | st -> x, called "st.x" | _rowid
    columns={"twice": "2 * n"}           read: n                       outputs: twice = 2 * n

An `Output` describes the source of one result column; a `Projection` holds all outputs and the fields to read. Both are
pure descriptions. `assemble` builds the result from the columns read, without copying stored columns that are returned
as they are.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import ColumnNotFoundError, InvalidInputError
from lancetable.expr import Expr, columns_of, evaluate, parse_expression
from lancetable.expr.syntax.ast import Column
from lancetable.file.blobs.descriptor import described, with_bytes
from lancetable.file.extension import user_array
from lancetable.format.field_paths import format_path, parse_path
from lancetable.format.schema import Field, Schema

__all__ = [
    "PHYSICAL_ADDRESS",
    "ROW_OFFSET",
    "VIRTUAL",
    "ColumnLike",
    "Output",
    "Projection",
    "assemble",
    "column_not_found",
    "evaluation_schema",
    "nested_value",
    "project_list",
    "project_mapping",
    "project_stored",
    "read_set",
    "without_columns",
]

ColumnLike: TypeAlias = "pa.ChunkedArray | pa.Array"

ROW_OFFSET = "_rowoffset"
# Like `_rowaddr`, but not null for deleted rows. Not a valid name for callers.
PHYSICAL_ADDRESS = "_rowaddr, deleted or not"
VIRTUAL = ("_rowid", "_rowaddr", ROW_OFFSET, "_row_created_at_version", "_row_last_updated_at_version")


@dataclass(frozen=True, slots=True)
class Output:
    """One column of the result.

    It is a stored column (`column` is its index among the fields read, `steps` the path into a struct), a virtual
    column (`virtual` is its name), or the value of an `expression`.
    """

    field: pa.Field
    column: int = -1
    steps: tuple[int, ...] = ()
    virtual: str | None = None
    expression: Expr | None = None


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns of the result, and what has to be read for them: `columns` (fields) and `virtual` (names).

    `plain` means that the outputs are exactly the fields read, followed by the virtual columns read, in their storage
    types.
    """

    schema: pa.Schema
    outputs: tuple[Output, ...]
    columns: tuple[Field, ...]
    virtual: tuple[str, ...]
    plain: bool


# --- building a projection ------------------------------------------------------------------------------------------


def project_list(
    schema: Schema, names: Sequence[str] | None, *, add: Sequence[str] = (), blobs_as_bytes: bool = False
) -> Projection:
    """Build a projection of columns given by name or dotted path; None selects all, `*` expands to all.

    A nested column is named after the path in the request. `add` are virtual columns that are appended, even if `names`
    contains them. Raises ColumnNotFoundError, InvalidInputError for a duplicate column, TypeError for a name that is
    not a string.
    """
    requested = _expand(schema, names)
    requested = [name for name in requested if name not in add] + list(add)
    if len(set(requested)) != len(requested):
        twice = next(name for name in requested if requested.count(name) > 1)
        raise InvalidInputError(f"Duplicate column name: {twice}")
    virtual = {*VIRTUAL, *add}
    stored = [name for name in requested if name not in virtual]
    columns = read_set(schema, stored, blobs_as_bytes=blobs_as_bytes)
    indexes = _index_by_id(columns)
    outputs = [
        _virtual_output(name, name) if name in virtual else _stored_output(schema, columns, indexes, name, name)
        for name in requested
    ]
    return _projection(schema, outputs, columns)


def project_mapping(
    schema: Schema, expressions: Mapping[str, str], *, add: Sequence[str] = (), blobs_as_bytes: bool = False
) -> Projection:
    """Build a projection of SQL expressions by result name. Raises InvalidSqlError, ColumnNotFoundError."""
    arrow = evaluation_schema(schema, blobs_as_bytes)
    parsed = {name: parse_expression(text, arrow) for name, text in expressions.items() if name not in add}
    paths: dict[str, None] = {}
    for expression in parsed.values():
        paths.update(dict.fromkeys(path for path in columns_of(expression) if path not in VIRTUAL))
    columns = read_set(schema, list(paths), blobs_as_bytes=blobs_as_bytes)
    indexes = _index_by_id(columns)
    outputs = []
    for name, expression in parsed.items():
        if isinstance(expression, Column):
            if expression.virtual:
                outputs.append(_virtual_output(name, expression.path[0]))
            else:
                outputs.append(_stored_output(schema, columns, indexes, expression.name, name))
        else:
            outputs.append(Output(pa.field(name, expression.data_type), expression=expression))
    outputs += [_virtual_output(name, name) for name in add]
    return _projection(schema, outputs, columns)


def project_stored(schema: Schema, names: Sequence[str] | None, *, blobs_as_bytes: bool = False) -> Projection:
    """Build a projection for takes: a nested path keeps its position in its struct, and repeated columns are merged.

    Repeated virtual columns are kept. Raises ColumnNotFoundError, TypeError for a name that is not a string.
    """
    requested = _expand(schema, names)
    columns = read_set(schema, [name for name in requested if name not in VIRTUAL], blobs_as_bytes=blobs_as_bytes)
    indexes = _index_by_id(columns)
    outputs: list[Output] = []
    added: set[int] = set()
    for name in requested:
        if name in VIRTUAL:
            outputs.append(_virtual_output(name, name))
            continue
        index = indexes[_top_level(schema, name).id]
        if index not in added:
            added.add(index)
            outputs.append(Output(columns[index].to_arrow(), column=index))
    return _projection(schema, outputs, columns)


def _expand(schema: Schema, names: Sequence[str] | None) -> list[str]:
    if names is None:
        return [_quoted(name) for name in schema.names]
    expanded: list[str] = []
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"column names must be strings, not {type(name).__name__}")
        expanded.extend([_quoted(column) for column in schema.names] if name == "*" else [name])
    return expanded


def _quoted(name: str) -> str:
    return format_path([name]) if "." in name or "`" in name else name


def _projection(schema: Schema, outputs: Sequence[Output], columns: tuple[Field, ...]) -> Projection:
    virtual: dict[str, None] = {}
    for output in outputs:
        if output.virtual is not None:
            virtual[output.virtual] = None
        elif output.expression is not None:
            virtual.update(dict.fromkeys(path for path in columns_of(output.expression) if path in VIRTUAL))
    arrow = pa.schema([output.field for output in outputs], metadata=schema.metadata or None)
    names = [output.virtual for output in outputs if output.virtual is not None]
    plain = (
        [output.column for output in outputs] == [*range(len(columns)), *([-1] * len(names))]
        and names == list(virtual)
        and not any(output.steps or output.expression is not None for output in outputs)
        and all(output.field.type == columns[output.column].data_type for output in outputs if output.column >= 0)
    )
    return Projection(arrow, tuple(outputs), columns, tuple(virtual), plain)


def _virtual_output(name: str, virtual: str) -> Output:
    return Output(pa.field(name, pa.uint64()), virtual=virtual)


def _stored_output(
    schema: Schema, columns: tuple[Field, ...], indexes: Mapping[int, int], path: str, name: str
) -> Output:
    top = _top_level(schema, path)
    index = indexes[top.id]
    field = columns[index]
    steps: list[int] = []
    for step in [] if schema.field(path) is top else parse_path(path)[1:]:
        if field.logical_type != "struct":
            raise InvalidInputError(f"column {path!r} cannot be read: {field.name!r} is not a struct")
        at = next(at for at, child in enumerate(field.children) if child.name == step)
        steps.append(at)
        field = field.children[at]
    return Output(field.to_arrow().with_name(name), column=index, steps=tuple(steps))


def read_set(schema: Schema, paths: Sequence[str], *, blobs_as_bytes: bool = False) -> tuple[Field, ...]:
    """Return the top-level fields that contain `paths`, pruned to them.

    A field that is needed as a whole is the schema's own object. Raises ColumnNotFoundError.
    """
    for path in paths:
        if schema.field(path) is None:
            raise column_not_found(schema, path)
    requested = schema.project(_widest(schema, paths)).fields
    whole = {field.id: field for field in schema.fields}
    fields = tuple(whole[field.id] if field == whole[field.id] else field for field in requested)
    return tuple(map(with_bytes if blobs_as_bytes else described, fields))


def _widest(schema: Schema, paths: Sequence[str]) -> list[str]:
    """Return one path per field; paths to parts of a blob or of list items are widened to the whole field."""
    widest: dict[str, None] = {}
    for path in paths:
        field = _top_level(schema, path)
        names = [field.name]
        for step in [] if schema.field(path) is field else parse_path(path)[1:]:
            if field.logical_type != "struct":
                break
            field = next(child for child in field.children if child.name == step)
            names.append(step)
        widest[format_path(names)] = None
    return list(widest)


def _top_level(schema: Schema, path: str) -> Field:
    field = schema.field(path)
    if field is None:
        raise column_not_found(schema, path)
    while field.parent_id >= 0:
        field = schema.by_id[field.parent_id]
    return field


def _index_by_id(columns: Sequence[Field]) -> dict[int, int]:
    return {column.id: index for index, column in enumerate(columns)}


def column_not_found(schema: Schema, path: str) -> ColumnNotFoundError:
    """Return the error for a missing column, with the most similar names."""
    known = [schema.path_of(field.id) for field in schema.walk()]
    close = difflib.get_close_matches(path, [*known, *VIRTUAL], n=3)
    close += [name for name in known if name.lower() == path.lower() and name not in close]
    hint = f"did you mean {', '.join(close)}?" if close else f"the table has {', '.join(schema.names)}"
    return ColumnNotFoundError(f"No field named {path!r}; {hint}", column=path)


def evaluation_schema(schema: Schema, blobs_as_bytes: bool = False) -> pa.Schema:
    """Return the schema for typing expressions: the types in which `read_set` reads columns."""
    fields = map(with_bytes if blobs_as_bytes else described, schema.fields)
    return pa.schema([pa.field(field.name, field.data_type, field.nullable) for field in fields])


# --- assembling results ---------------------------------------------------------------------------------------------


def assemble(
    projection: Projection, columns: Sequence[ColumnLike], virtual: Mapping[str, ColumnLike], num_rows: int
) -> pa.Table:
    """Build the result: `columns` are the arrays of `projection.columns`, `virtual` those of the virtual columns."""
    if projection.plain:
        arrays: list[ColumnLike] = [*columns, *[virtual[name] for name in projection.virtual]]
    else:
        table: pa.Table | None = None
        arrays = []
        for output in projection.outputs:
            if output.virtual is not None:
                arrays.append(virtual[output.virtual])
            elif output.expression is None:
                arrays.append(user_array(nested_value(columns[output.column], output.steps), output.field.type))
            else:
                table = _expression_table(projection, columns, virtual, num_rows) if table is None else table
                arrays.append(_value(output.expression, table, num_rows))
    if not arrays:
        return without_columns(num_rows, projection.schema)
    return pa.Table.from_arrays(arrays, schema=projection.schema)


def without_columns(num_rows: int, schema: pa.Schema) -> pa.Table:
    """Return a table of `num_rows` rows without columns, with the metadata of `schema`."""
    # A table without columns keeps its number of rows only if it is derived from one with columns.
    dropped = pa.schema([pa.field("", pa.null())], metadata=schema.metadata)
    return pa.Table.from_arrays([pa.nulls(num_rows)], schema=dropped).select([])


def _expression_table(
    projection: Projection, columns: Sequence[ColumnLike], virtual: Mapping[str, ColumnLike], num_rows: int
) -> pa.Table:
    if not columns and not virtual:
        return without_columns(num_rows, pa.schema([]))  # constants only
    names = [field.name for field in projection.columns]
    return pa.table([*columns, *virtual.values()], names=[*names, *virtual])


def _value(expression: Expr, table: pa.Table, num_rows: int) -> ColumnLike:
    value = evaluate(expression, table)
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, num_rows)
    return value


def nested_value(column: ColumnLike, steps: Iterable[int]) -> ColumnLike:
    """Return a field inside a struct column; null where the struct is null."""
    steps = list(steps)
    return pc.struct_field(column, steps) if steps else column
