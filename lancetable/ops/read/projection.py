"""Projections: the columns of a result and the stored columns to read for them.

    columns=["s", "st.x", "_rowid"]      read: s, st{x}, _rowid        outputs: s | st -> x, called "st.x" | _rowid
    columns={"twice": "2 * n"}           read: n                       outputs: twice = 2 * n

An `Output` describes the source of one result column; a `Projection` contains all outputs and the fields to read.
`assemble` builds the result from the columns read. Stored columns that are returned unchanged are not copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lancetable import expr
from lancetable.errors import ColumnNotFoundError, InvalidInputError
from lancetable.file.blobs.descriptions import described, with_bytes
from lancetable.file.column_interfaces import contains_dictionary
from lancetable.file.extension_types import user_array
from lancetable.format.field_paths import format_path, parse_path
from lancetable.format.schema import Field, Schema

ColumnLike: TypeAlias = "pa.ChunkedArray | pa.Array"
Columns: TypeAlias = "Sequence[str] | Mapping[str, str] | None"

_MAX_COPIED_BYTES = 1 << 30  # below the 2 GiB of an array with 32-bit offsets
ROW_OFFSET = "_rowoffset"
# Like `_rowaddr`, but not null for deleted rows. For internal use; callers cannot request it.
PHYSICAL_ADDRESS = "_rowaddr, deleted or not"
NOT_COMPUTED = pa.schema([])


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
    expression: expr.Expr | None = None


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns of the result, and the columns to read for them: `columns` (fields) and `virtual` (names).

    `plain` means that the outputs are exactly the fields read, followed by the virtual columns read, in their storage
    types.
    """

    schema: pa.Schema
    outputs: tuple[Output, ...]
    columns: tuple[Field, ...]
    virtual: tuple[str, ...]
    plain: bool

    def in_storage_types(self) -> Projection:
        """Return the projection whose stored columns have their storage types."""
        outputs = tuple(map(self._in_storage_type, self.outputs))
        return replace(self, schema=pa.schema([output.field for output in outputs]), outputs=outputs)

    def _in_storage_type(self, output: Output) -> Output:
        if output.column < 0:
            return output
        field = self.columns[output.column]
        for step in output.steps:
            field = field.children[step]
        return replace(output, field=pa.field(output.field.name, field.data_type))


# --- building a projection ------------------------------------------------------------------------------------------


def project(
    schema: Schema,
    columns: Columns,
    *,
    add: Sequence[str] = (),
    blobs_as_bytes: bool = False,
    whole_columns: bool = False,
    computed: pa.Schema = NOT_COMPUTED,
) -> Projection:
    """Build a projection.

    Parameters
    ----------
    schema
        Schema of the table.
    columns
        Names or dotted paths, or SQL expressions by result name. None selects all columns, and `*` expands to all.
    add
        Virtual columns to append at the end, even if `columns` contains them.
    blobs_as_bytes
        Read the bytes of blobs instead of their descriptions.
    whole_columns
        If `columns` contains names: return a nested path inside its struct, and merge repeated stored columns.
        Otherwise, a nested column has its path as the name, and names must be distinct.
    computed
        Virtual columns that the caller of `assemble` computes, such as the distances of a search. They replace stored
        columns with these names.

    Raises
    ------
    ColumnNotFoundError
        If a column does not exist.
    InvalidInputError
        If a name is repeated.
    InvalidSqlError
        If an expression is invalid.
    TypeError
        If `columns` or a name has another type.
    """
    sources: list[tuple[str, str | expr.Expr]]  # result names, each with a path or an expression
    if isinstance(columns, Mapping):
        whole_columns, types = False, evaluation_schema(schema, blobs_as_bytes, computed)
        parsed = {name: expr.parse_expression(text, types) for name, text in columns.items() if name not in add}
        sources = [(name, value.name if isinstance(value, expr.Column) else value) for name, value in parsed.items()]
    elif columns is not None and (isinstance(columns, str) or not isinstance(columns, Sequence)):
        raise TypeError(f"columns must be a list or dict[name, expression], got {type(columns)}")
    else:
        names = [name for name in _expand(schema, columns) if name not in add]
        if not whole_columns and len(set(names)) != len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise InvalidInputError(f"Duplicate column name: {repeated}")
        sources = [(name, name) for name in names]
    sources += [(name, name) for name in add]
    virtual = {*expr.VIRTUAL_COLUMNS, *add, *computed.names}
    used = (
        path for _, source in sources for path in ([source] if isinstance(source, str) else expr.columns_of(source))
    )
    paths = [path for path in dict.fromkeys(used) if path not in virtual]
    fields = read_set(schema, paths, blobs_as_bytes=blobs_as_bytes)
    indexes = {field.id: index for index, field in enumerate(fields)}
    outputs: list[Output] = []
    merged: set[int] = set()
    for name, source in sources:
        if not isinstance(source, str):
            outputs.append(Output(pa.field(name, source.data_type), expression=source))
        elif source in virtual:
            given = computed.get_field_index(source)
            field = pa.field(name, pa.uint64()) if given < 0 else computed.field(given).with_name(name)
            outputs.append(Output(field, virtual=source))
        elif not whole_columns:
            outputs.append(_stored_output(schema, fields, indexes, source, name))
        elif (index := indexes[_top_level(schema, source).id]) not in merged:
            merged.add(index)
            outputs.append(Output(fields[index].to_arrow(), column=index))
    return _projection(schema, outputs, fields, virtual)


def stored_projection(columns: tuple[Field, ...], virtual: pa.Schema) -> Projection:
    """Return the projection of top-level fields in their storage types, followed by virtual columns."""
    fields = [pa.field(field.name, field.data_type) for field in columns]
    outputs = [Output(field, column=index) for index, field in enumerate(fields)]
    outputs += [Output(field, virtual=field.name) for field in virtual]
    return Projection(pa.schema([*fields, *virtual]), tuple(outputs), columns, tuple(virtual.names), plain=True)


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


def _projection(
    schema: Schema, outputs: Sequence[Output], columns: tuple[Field, ...], virtual_names: Set[str]
) -> Projection:
    virtual: dict[str, None] = {}
    for output in outputs:
        if output.virtual is not None:
            virtual[output.virtual] = None
        elif output.expression is not None:
            virtual.update(dict.fromkeys(path for path in expr.columns_of(output.expression) if path in virtual_names))
    arrow = pa.schema([output.field for output in outputs], metadata=schema.metadata or None)
    names = [output.virtual for output in outputs if output.virtual is not None]
    plain = (
        [output.column for output in outputs] == [*range(len(columns)), *([-1] * len(names))]
        and names == list(virtual)
        and not any(output.steps or output.expression is not None for output in outputs)
        and all(output.field.type == columns[output.column].data_type for output in outputs if output.column >= 0)
    )
    return Projection(arrow, tuple(outputs), columns, tuple(virtual), plain)


def _stored_output(
    schema: Schema, columns: tuple[Field, ...], indexes: Mapping[int, int], path: str, name: str
) -> Output:
    top, named = _top_level(schema, path), field_at(schema, path)
    index = indexes[top.id]
    field = columns[index]
    steps: list[int] = []
    for step in [] if named is top else parse_path(path)[1:]:
        if field.logical_type != "struct":
            raise InvalidInputError(f"column {path!r} cannot be read: {field.name!r} is not a struct")
        at = next(at for at, child in enumerate(field.children) if child.name == step)
        steps.append(at)
        field = field.children[at]
    arrow = field.to_arrow()
    return Output(arrow if arrow.name == name else arrow.with_name(name), column=index, steps=tuple(steps))


def read_set(schema: Schema, paths: Sequence[str], *, blobs_as_bytes: bool = False) -> tuple[Field, ...]:
    """Return the top-level fields that contain `paths`, pruned to these paths.

    A field that is read as a whole is the same object as in the schema. Raises ColumnNotFoundError.
    """
    fields: Iterable[Field] = {(field := field_at(schema, path)).id: field for path in paths}.values()
    if any(field.parent_id >= 0 for field in fields):
        whole = {field.id: field for field in schema.fields}
        requested = schema.project(_widest(schema, paths)).fields
        fields = [whole[field.id] if field == whole[field.id] else field for field in requested]
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
    field = field_at(schema, path)
    while field.parent_id >= 0:
        field = schema.by_id[field.parent_id]
    return field


def field_at(schema: Schema, path: str) -> Field:
    """Return the field at a path. Raises ColumnNotFoundError if it does not exist."""
    field = schema.field(path)
    if field is None:
        raise column_not_found(schema, path)
    return field


def column_not_found(schema: Schema, path: str) -> ColumnNotFoundError:
    """Return the error for a missing column, with the most similar names."""
    return expr.not_found(path, [schema.path_of(field.id) for field in schema.walk()])


def evaluation_schema(schema: Schema, blobs_as_bytes: bool = False, computed: pa.Schema = NOT_COMPUTED) -> pa.Schema:
    """Return the schema for typing expressions: columns in the types in which `read_set` reads them, and `computed`."""
    fields = map(with_bytes if blobs_as_bytes else described, schema.fields)
    stored = [pa.field(field.name, field.data_type, field.nullable) for field in fields]
    return pa.schema([*(field for field in stored if field.name not in computed.names), *computed])


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
    # A table without columns keeps its number of rows only if it is derived from a table with columns.
    dropped = pa.schema([pa.field("", pa.null())], metadata=schema.metadata)
    return pa.Table.from_arrays([pa.nulls(num_rows)], schema=dropped).select([])


def concat_tables(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """Concatenate tables of a schema. Unlike Arrow, keep the number of rows of tables without columns."""
    if not schema.names:
        return without_columns(sum(table.num_rows for table in tables), schema)
    return pa.concat_tables(tables) if tables else schema.empty_table()


def concat_columns(parts: Sequence[ColumnLike], max_copied_bytes: int = _MAX_COPIED_BYTES) -> ColumnLike:
    """Return one column from several: an array of at most `max_copied_bytes` if possible, otherwise a chunked array.

    Dictionary arrays are not concatenated, because their dictionaries would have to be unified.
    """
    if len(parts) == 1 and isinstance(parts[0], pa.Array):
        return parts[0]
    chunks: list[pa.Array] = []
    for part in parts:
        chunks.extend(part.chunks if isinstance(part, pa.ChunkedArray) else (part,))
    if len(chunks) == 1:
        return chunks[0]
    chunked = pa.chunked_array(chunks, type=parts[0].type)
    if not chunks or contains_dictionary(chunked.type):
        return chunked
    # The size of whole buffers is faster to compute than that of the parts that are used.
    if chunked.get_total_buffer_size() > max_copied_bytes and chunked.nbytes > max_copied_bytes:
        return chunked
    return pa.concat_arrays(chunks)


def _expression_table(
    projection: Projection, columns: Sequence[ColumnLike], virtual: Mapping[str, ColumnLike], num_rows: int
) -> pa.Table:
    if not columns and not virtual:
        return without_columns(num_rows, pa.schema([]))  # constants only
    names = [field.name for field in projection.columns]
    return pa.table([*columns, *virtual.values()], names=[*names, *virtual])


def _value(expression: expr.Expr, table: pa.Table, num_rows: int) -> ColumnLike:
    value = expr.evaluator.evaluate(expression, table)
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, num_rows)
    return value


def nested_value(column: ColumnLike, steps: Iterable[int]) -> ColumnLike:
    """Return a field inside a struct column; null where the struct is null."""
    steps = list(steps)
    return pc.struct_field(column, steps) if steps else column
