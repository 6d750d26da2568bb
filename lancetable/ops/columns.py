"""What the caller wants to see, and what has to be read for it.

    columns=["s", "st.x", "_rowid"]      read: s, st{x}, _rowid        outputs: s | st -> x, called "st.x" | _rowid
    columns={"twice": "2 * n"}           read: n                       outputs: twice = 2 * n

An `Output` is one column of the result, described by where its values come from; `Projection` is all of them together
with the fields to read. Both are pure descriptions. `assemble` turns what was read into the result, without copying
where a stored column is handed on as it is.
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
from lancetable.expr.ast import Column
from lancetable.file.extension import user_array
from lancetable.format.blobs import described, with_bytes
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
# As `_rowaddr`, but deleted rows have one too. Not a name that a caller can ask for.
PHYSICAL_ADDRESS = "_rowaddr, deleted or not"
VIRTUAL = ("_rowid", "_rowaddr", ROW_OFFSET, "_row_created_at_version", "_row_last_updated_at_version")


@dataclass(frozen=True, slots=True)
class Output:
    """One column of the result: a stored column (`column` is its place among the fields read, `steps` lead into a
    struct), a virtual column (`virtual` is its name), or the value of an `expression`."""

    field: pa.Field
    column: int = -1
    steps: tuple[int, ...] = ()
    virtual: str | None = None
    expression: Expr | None = None


@dataclass(frozen=True, slots=True)
class Projection:
    """The result's columns, and what has to be read for them: `columns` (fields) and `virtual` (names).

    `plain` says that the outputs are exactly the fields read followed by the virtual columns read, all of them in the
    type they are stored in.
    """

    schema: pa.Schema
    outputs: tuple[Output, ...]
    columns: tuple[Field, ...]
    virtual: tuple[str, ...]
    plain: bool


# --- making a projection ---------------------------------------------------------------------------------------------


def project_list(
    schema: Schema, names: Sequence[str] | None, *, add: Sequence[str] = (), blobs_as_bytes: bool = False
) -> Projection:
    """A projection of columns by name or dotted path; None means all, `*` stands for all of them.

    A nested column is called by the text it was asked for with. `add` are virtual columns that come last, wherever
    else they were named. Raises ColumnNotFoundError, and InvalidInputError for a column asked for twice.
    """
    wanted = _expand(schema, names)
    wanted = [name for name in wanted if name not in add] + list(add)
    if len(set(wanted)) != len(wanted):
        twice = next(name for name in wanted if wanted.count(name) > 1)
        raise InvalidInputError(f"Duplicate column name: {twice}")
    virtual = {*VIRTUAL, *add}
    stored = [name for name in wanted if name not in virtual]
    columns = read_set(schema, stored, blobs_as_bytes=blobs_as_bytes)
    places = _places(columns)
    outputs = [
        _virtual_output(name, name) if name in virtual else _stored_output(schema, columns, places, name, name)
        for name in wanted
    ]
    return _projection(schema, outputs, columns)


def project_mapping(
    schema: Schema, expressions: Mapping[str, str], *, add: Sequence[str] = (), blobs_as_bytes: bool = False
) -> Projection:
    """A projection of SQL expressions by the names their values get. Raises InvalidSqlError, ColumnNotFoundError."""
    arrow = evaluation_schema(schema, blobs_as_bytes)
    parsed = {name: parse_expression(text, arrow) for name, text in expressions.items() if name not in add}
    paths: dict[str, None] = {}
    for expression in parsed.values():
        paths.update(dict.fromkeys(path for path in columns_of(expression) if path not in VIRTUAL))
    columns = read_set(schema, list(paths), blobs_as_bytes=blobs_as_bytes)
    places = _places(columns)
    outputs = []
    for name, expression in parsed.items():
        if isinstance(expression, Column):
            if expression.virtual:
                outputs.append(_virtual_output(name, expression.path[0]))
            else:
                outputs.append(_stored_output(schema, columns, places, expression.name, name))
        else:
            outputs.append(Output(pa.field(name, expression.data_type), expression=expression))
    outputs += [_virtual_output(name, name) for name in add]
    return _projection(schema, outputs, columns)


def project_stored(schema: Schema, names: Sequence[str] | None, *, blobs_as_bytes: bool = False) -> Projection:
    """A projection for takes: a nested path keeps its place inside its struct, a column named twice comes once. Virtual
    columns come as often as they are named."""
    wanted = _expand(schema, names)
    columns = read_set(schema, [name for name in wanted if name not in VIRTUAL], blobs_as_bytes=blobs_as_bytes)
    places = _places(columns)
    outputs: list[Output] = []
    placed: set[int] = set()
    for name in wanted:
        if name in VIRTUAL:
            outputs.append(_virtual_output(name, name))
            continue
        place = places[_top_level(schema, name).id]
        if place not in placed:
            placed.add(place)
            outputs.append(Output(columns[place].to_arrow(), column=place))
    return _projection(schema, outputs, columns)


def _expand(schema: Schema, names: Sequence[str] | None) -> list[str]:
    if names is None:
        return [_quoted(name) for name in schema.names]
    expanded: list[str] = []
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"columns are named by text, not {type(name).__name__}")
        expanded.extend([_quoted(each) for each in schema.names] if name == "*" else [name])
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
    schema: Schema, columns: tuple[Field, ...], places: Mapping[int, int], path: str, name: str
) -> Output:
    top = _top_level(schema, path)
    place = places[top.id]
    field = columns[place]
    steps: list[int] = []
    for step in [] if schema.field(path) is top else parse_path(path)[1:]:
        if field.logical_type != "struct":
            raise InvalidInputError(f"column {path!r} leads into {field.name!r}, which is no struct")
        at = next(at for at, child in enumerate(field.children) if child.name == step)
        steps.append(at)
        field = field.children[at]
    return Output(field.to_arrow().with_name(name), column=place, steps=tuple(steps))


def read_set(schema: Schema, paths: Sequence[str], *, blobs_as_bytes: bool = False) -> tuple[Field, ...]:
    """The top-level fields that hold `paths`, cut down to them; the schema's own object where all of it is wanted."""
    for path in paths:
        if schema.field(path) is None:
            raise column_not_found(schema, path)
    wanted = schema.project(_widest(schema, paths)).fields
    whole = {field.id: field for field in schema.fields}
    fields = tuple(whole[field.id] if field == whole[field.id] else field for field in wanted)
    return tuple(map(with_bytes if blobs_as_bytes else described, fields))


def _widest(schema: Schema, paths: Sequence[str]) -> list[str]:
    """One path for each field: a blob's own parts, or parts of a list's items, are read with the whole of it."""
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


def _places(columns: Sequence[Field]) -> dict[int, int]:
    return {column.id: place for place, column in enumerate(columns)}


def column_not_found(schema: Schema, path: str) -> ColumnNotFoundError:
    """The error for a column that is not there, with the names closest to it."""
    known = [schema.path_of(field.id) for field in schema.walk()]
    close = difflib.get_close_matches(path, [*known, *VIRTUAL], n=3)
    close += [name for name in known if name.lower() == path.lower() and name not in close]
    hint = f"did you mean {', '.join(close)}?" if close else f"the table has {', '.join(schema.names)}"
    return ColumnNotFoundError(f"No field named {path!r}; {hint}", column=path)


def evaluation_schema(schema: Schema, blobs_as_bytes: bool = False) -> pa.Schema:
    """The schema that expressions are typed against: the types that columns are read in, see `read_set`."""
    fields = map(with_bytes if blobs_as_bytes else described, schema.fields)
    return pa.schema([pa.field(field.name, field.data_type, field.nullable) for field in fields])


# --- using it --------------------------------------------------------------------------------------------------------


def assemble(
    projection: Projection, columns: Sequence[ColumnLike], virtual: Mapping[str, ColumnLike], num_rows: int
) -> pa.Table:
    """The result: `columns` are the arrays of `projection.columns`, `virtual` those of the virtual columns."""
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
    """A table of so many rows and no columns, with the metadata of `schema`."""
    # The only table without columns that knows its number of rows is one that lost them.
    lost = pa.schema([pa.field("", pa.null())], metadata=schema.metadata)
    return pa.Table.from_arrays([pa.nulls(num_rows)], schema=lost).select([])


def _expression_table(
    projection: Projection, columns: Sequence[ColumnLike], virtual: Mapping[str, ColumnLike], num_rows: int
) -> pa.Table:
    if not columns and not virtual:
        return without_columns(num_rows, pa.schema([]))  # constants alone
    names = [field.name for field in projection.columns]
    return pa.table([*columns, *virtual.values()], names=[*names, *virtual])


def _value(expression: Expr, table: pa.Table, num_rows: int) -> ColumnLike:
    value = evaluate(expression, table)
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, num_rows)
    return value


def nested_value(column: ColumnLike, steps: Iterable[int]) -> ColumnLike:
    """A field inside a struct column; a null struct makes it null."""
    steps = list(steps)
    return pc.struct_field(column, steps) if steps else column
