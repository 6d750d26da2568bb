"""Schema evolution: columns added, altered and dropped.

    drop, rename, nullability     the schema only                                  ─► Project
    null columns                  the schema only                                  ─► Merge
    new values, other types       the schema, and a data file for each fragment    ─► Merge

Columns that do not change are neither read nor written, and old versions stay as they are. A concurrent commit that
changes fragments or columns makes the commit fail (`RetryableCommitConflictError`), because the new values would not
match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.commit.loop import commit_transaction
from lancetable.errors import (
    AlreadyExistsError,
    ColumnNotFoundError,
    CommitStateUnknownError,
    InvalidInputError,
    InvalidOperationError,
    InvalidSqlError,
    LanceError,
    SchemaMismatchError,
    UnsupportedFeatureError,
)
from lancetable.expr import columns_of, data_type, parse_expression
from lancetable.expr.analyze.nullability import may_be_null
from lancetable.expr.syntax.ast import Literal
from lancetable.expr.syntax.column_names import VIRTUAL_COLUMNS
from lancetable.file.writer import FileWriter
from lancetable.format import flags
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.format.index import IndexSection
from lancetable.format.paths import data_path
from lancetable.format.schema import Field, Schema
from lancetable.format.transaction import Transaction
from lancetable.format.version import FileVersion
from lancetable.ops.maintain.migrate import data_file, name_of, written_before
from lancetable.ops.read.projection import evaluation_schema
from lancetable.ops.read.scan import execute_scan, scan_table
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.schema.column_files import Values, add_column_file, add_column_files, discard_column_files, spread
from lancetable.ops.tracker import Tracker
from lancetable.ops.write.float_overflow import check_finite
from lancetable.ops.write.write import conform
from lancetable.table.fragments import read_selection, select
from lancetable.table.row_count_index import live_offsets, num_live_rows, physical_rows
from lancetable.table.row_sizes import memory_per_row
from lancetable.table.version import TableVersion

__all__ = [
    "Alteration",
    "Checkpoint",
    "add_expressions",
    "add_function",
    "add_nulls",
    "add_stream",
    "alter",
    "applied_values",
    "commit_fragments",
    "computed_values",
    "drop",
    "expression_schema",
    "fragment_with_expressions",
    "fragment_with_function",
    "fragment_with_stream",
    "resumable_fragment",
]

_BYTES_AT_ONCE = 64 << 20  # per batch of a converted column
_NO_COLUMNS = pa.schema([])
_WITH_STRUCT_COLUMNS = (FileVersion.LEGACY, FileVersion.V2_0)

Function = Callable[[pa.RecordBatch], pa.RecordBatch]


class Checkpoint(Protocol):
    """Storage for computed results of a function, so that a failed run can resume."""

    def begin_fragment(self, fragment: Fragment) -> None:
        """Discard results that were computed for this fragment with other files or other deleted rows."""

    def load_batch(self, fragment_id: int, batch_index: int) -> pa.RecordBatch | None:
        """Return the result for one batch, None if it was not computed yet."""

    def save_batch(self, fragment_id: int, batch_index: int, batch: pa.RecordBatch) -> None:
        """Store the result for one batch."""

    def load_fragment(self, fragment_id: int) -> Fragment | None:
        """Return a fragment whose data file is written, None if it is not."""

    def save_fragment(self, fragment: Fragment) -> None:
        """Store a fragment whose data file is written, and discard the results of its batches."""


@dataclass(frozen=True, slots=True)
class Alteration:
    """Changes to the column at `path`; attributes that are None stay unchanged."""

    path: str
    name: str | None = None
    nullable: bool | None = None
    data_type: pa.DataType | None = None


# --- new columns ------------------------------------------------------------------------------------------------------


def add_nulls(version: TableVersion, new: pa.Schema) -> TableVersion:
    """Add columns that are null in every existing row; only the schema is written.

    Raises InvalidOperationError for non-nullable columns, AlreadyExistsError, UnsupportedFeatureError for 0.1 tables.
    """
    schema = _extended(version, new)
    required = [field.name for field in _added(version, schema).walk() if not field.nullable]
    if required:
        raise InvalidOperationError(f"All-null columns must be nullable, but field {required[0]!r} is not.")
    if version.manifest.file_version.is_legacy:
        raise UnsupportedFeatureError(
            "Cannot add all-null columns to legacy dataset version.", feature="null columns in tables of version 0.1"
        )
    return _commit_merge(version, tuple(version.manifest.fragments), schema)


def add_expressions(
    version: TableVersion,
    expressions: Mapping[str, str],
    *,
    batch_size: int | None = None,
    tracker: Tracker | None = None,
) -> TableVersion:
    """Add columns computed by SQL expressions, given by the name of the new column.

    If all expressions are null constants, such as `CAST(NULL AS INT)`, only the schema is written. Raises
    InvalidSqlError,
    ColumnNotFoundError, AlreadyExistsError.
    """
    new = expression_schema(version, expressions)
    if not version.manifest.file_version.is_legacy and all(map(is_null_constant, expressions.values())):
        return add_nulls(version, new)
    schema = _extended(version, new)
    return _add(version, schema, computed_values(version, expressions, batch_size), tracker=tracker)


def add_function(
    version: TableVersion,
    function: Function,
    new: pa.Schema,
    *,
    columns: Sequence[str] | None = None,
    batch_size: int | None = None,
    checkpoint: Checkpoint | None = None,
    tracker: Tracker | None = None,
) -> TableVersion:
    """Add the columns `new`, which `function` computes from batches of `columns`.

    Parameters
    ----------
    version
        The version to extend.
    function
        Maps a batch of `columns` to a batch of `new` with the same number of rows.
    new
        Schema of the new columns.
    columns
        Input columns, including `_rowid` if wanted; all by default.
    batch_size
        Rows per batch.
    checkpoint
        Storage for intermediate results; with it, data files are kept after an error so that the next run reuses them.
    tracker
        Progress of the operation.

    Raises
    ------
    AlreadyExistsError
        If a new column exists.
    SchemaMismatchError
        If the function returns another schema.
    InvalidInputError
        If the function returns another number of rows.
    """
    schema = _extended(version, new)
    if checkpoint is None:
        return _add(version, schema, applied_values(version, function, new, columns, batch_size), tracker=tracker)
    added = _added(version, schema)
    _begin(version, tracker)
    # Written files are kept on an error; the checkpoint refers to them.
    fragments = []
    for fragment in version.manifest.fragments:
        checkpoint.begin_fragment(fragment)
        done = checkpoint.load_fragment(fragment.id)
        if done is not None and version.store.find(version.data_file_path(done.files[-1])) is None:
            done = None  # a cleanup removed the file, because no version references it yet
        if done is None:
            values = applied_values(version, function, new, columns, batch_size, checkpoint)
            done = add_column_file(version, fragment, added, values(fragment), tracker=tracker)
            checkpoint.save_fragment(done)
        elif tracker is not None:
            tracker.add(num_live_rows(version, fragment))
            tracker.wrote(done)
        fragments.append(done)
    return _commit_merge(version, tuple(fragments), schema, preserves_nullability=_all_nullable(added))


def add_stream(version: TableVersion, reader: pa.RecordBatchReader, *, tracker: Tracker | None = None) -> TableVersion:
    """Add the columns of `reader`, whose rows are those of the table in scan order.

    Raises AlreadyExistsError, InvalidOperationError for too few or too many rows.
    """
    schema = _extended(version, reader.schema)
    stream = _Stream(reader)

    def values(fragment: Fragment) -> Iterator[pa.RecordBatch]:
        yield from stream.take(num_live_rows(version, fragment))

    return _add(version, schema, values, finish=stream.expect_end, tracker=tracker)


def add_values(version: TableVersion, new: pa.Schema, values: Values, tracker: Tracker | None = None) -> TableVersion:
    """Add the columns `new`; `values` returns their values for each fragment. Raises AlreadyExistsError."""
    return _add(version, _extended(version, new), values, tracker=tracker)


def fragment_with_values(
    version: TableVersion, fragment: Fragment, new: pa.Schema, values: Values
) -> tuple[Fragment, Schema]:
    """Return one fragment with the columns `new`, and the schema of a Merge of such fragments; nothing is committed."""
    return _one(version, fragment, _extended(version, new), values)


def fragment_with_expressions(
    version: TableVersion, fragment: Fragment, expressions: Mapping[str, str], *, batch_size: int | None = None
) -> tuple[Fragment, Schema]:
    """Return one fragment with computed columns, and the schema of a Merge of such fragments; nothing is committed."""
    schema = _extended(version, expression_schema(version, expressions))
    return _one(version, fragment, schema, computed_values(version, expressions, batch_size))


def fragment_with_function(
    version: TableVersion,
    fragment: Fragment,
    function: Function,
    new: pa.Schema,
    *,
    columns: Sequence[str] | None = None,
    batch_size: int | None = None,
) -> tuple[Fragment, Schema]:
    """Return one fragment with the columns of `function`, and the schema of a Merge; nothing is committed."""
    return _one(version, fragment, _extended(version, new), applied_values(version, function, new, columns, batch_size))


def fragment_with_stream(
    version: TableVersion, fragment: Fragment, reader: pa.RecordBatchReader
) -> tuple[Fragment, Schema]:
    """Return one fragment with the columns of `reader`, and the schema of a Merge; nothing is committed.

    The rows of `reader` are the live rows of the fragment.
    """
    stream = _Stream(reader)

    def values(each: Fragment) -> Iterator[pa.RecordBatch]:
        yield from stream.take(num_live_rows(version, each))
        stream.expect_end()

    return _one(version, fragment, _extended(version, reader.schema), values)


def resumable_fragment(
    version: TableVersion, fragment: Fragment, new: pa.Schema, values: Values, job: str
) -> tuple[Fragment, bool]:
    """Return one fragment with the columns `new`, and whether an earlier run of `job` had written them.

    The file name is derived from the job and from the files of the fragment, including its deletion file, so that an
    interrupted run finds the files it wrote. Nothing is committed; see `commit_fragments`.
    """
    added, target = _added(version, _extended(version, new)), version.manifest.file_version
    if target.is_legacy or any(part.is_blob or part.is_blob_v2 for part in added.walk()):
        return _one(version, fragment, _extended(version, new), values)[0], False
    deleted = "" if fragment.deletion_file is None else repr(fragment.deletion_file)
    name = name_of(fragment, added, target, job, deleted)
    file = written_before(version, fragment, added, name, target)
    reused = file is not None
    if file is None:
        live, num_rows = live_offsets(version, fragment), physical_rows(version, fragment)
        writer = FileWriter(version.store.open_writer(data_path(version.base, name)), added, target, keep_arrays=True)
        try:
            rows = 0
            for batch in conform(spread(values(fragment), live, num_rows, fragment.id), added):
                writer.write(batch)
                rows += batch.num_rows
            if rows != num_rows:
                raise InvalidInputError(f"fragment {fragment.id} needs values for {num_rows} rows, got {rows}")
            # A concurrent attempt of the same task may have finished first, and a version may already reference its
            # file.
            file = written_before(version, fragment, added, name, target)
            if file is None:
                written = writer.close()
                file = data_file(name, written.fields, written.column_indices, target, written.size_bytes)
        finally:
            writer.abort()
        version.store.sync(version.base)
    return replace(fragment, files=(*fragment.files, file)), reused


def commit_fragments(
    version: TableVersion, fragments: Sequence[Fragment], new: pa.Schema, uuid: str | None = None
) -> TableVersion:
    """Commit all fragments of `version` after they got the columns `new`; their files are kept on a conflict.

    `uuid` is the uuid of the transaction, for commits that may be attempted again.
    """
    schema = _extended(version, new)
    preserves = _all_nullable(_added(version, schema))
    return _commit_merge(version, tuple(fragments), schema, preserves_nullability=preserves, uuid=uuid)


def expression_schema(version: TableVersion, expressions: Mapping[str, str]) -> pa.Schema:
    """Return the columns that SQL expressions produce. Raises InvalidSqlError, ColumnNotFoundError."""
    arrow = evaluation_schema(version.schema)
    fields = []
    for name, sql in expressions.items():
        expr = parse_expression(sql, arrow)
        for path in columns_of(expr):
            if path in VIRTUAL_COLUMNS:
                raise ColumnNotFoundError(
                    f"No field named {path}: new columns can be computed from stored columns only"
                )
        fields.append(pa.field(name, data_type(expr), may_be_null(expr, arrow)))
    return pa.schema(fields)


def is_null_constant(sql: str) -> bool:
    """Return whether an expression is null for every row."""
    try:
        expr = parse_expression(sql, _NO_COLUMNS)
    except (InvalidSqlError, ColumnNotFoundError):
        return False
    return isinstance(expr, Literal) and not expr.value.is_valid


def computed_values(version: TableVersion, expressions: Mapping[str, str], batch_size: int | None) -> Values:
    """Return a function that computes expressions for a fragment."""

    def values(fragment: Fragment) -> Iterator[pa.RecordBatch]:
        options = ScanOptions(columns=dict(expressions), fragments=[fragment.id], batch_size=batch_size)
        yield from execute_scan(version, plan_scan(version, options))

    return values


def applied_values(
    version: TableVersion,
    function: Function,
    new: pa.Schema,
    columns: Sequence[str] | None,
    batch_size: int | None,
    checkpoint: Checkpoint | None = None,
) -> Values:
    """Return a function that applies `function` to the batches of a fragment; see `add_function`."""

    def values(fragment: Fragment) -> Iterator[pa.RecordBatch]:
        options = ScanOptions(
            columns=None if columns is None else list(columns),
            fragments=[fragment.id],
            batch_size=batch_size,
            strict_batch_size=checkpoint is not None,
        )
        for number, batch in enumerate(execute_scan(version, plan_scan(version, options))):
            result = None if checkpoint is None else checkpoint.load_batch(fragment.id, number)
            if result is None:
                result = _checked(function(batch), new, batch.num_rows)
                if checkpoint is not None:
                    checkpoint.save_batch(fragment.id, number, result)
            yield result

    return values


def _checked(result: pa.RecordBatch, expected: pa.Schema, num_rows: int) -> pa.RecordBatch:
    if not isinstance(result, pa.RecordBatch):
        raise SchemaMismatchError(f"a column function must return a RecordBatch, got {type(result).__name__}")
    if result.num_rows != num_rows:
        raise InvalidInputError(f"a column function returned {result.num_rows} rows for {num_rows}")
    if not result.schema.equals(expected):
        raise SchemaMismatchError(
            f"Output schema of function does not match the expected schema.\n"
            f"Expected:\n{expected}\nGot:\n{result.schema}"
        )
    return result


class _Stream:
    """A reader that returns a given number of rows at a time."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader
        self._left: pa.RecordBatch | None = None

    def take(self, num_rows: int) -> Iterator[pa.RecordBatch]:
        while num_rows:
            batch = self._left if self._left is not None else next(self._reader, None)
            self._left = None
            if batch is None:
                raise InvalidOperationError("Stream ended before producing values for all rows in dataset")
            if batch.num_rows > num_rows:
                self._left = batch.slice(num_rows)
                batch = batch.slice(0, num_rows)
            num_rows -= batch.num_rows
            yield batch

    def expect_end(self) -> None:
        batch = self._left if self._left is not None else next((each for each in self._reader if each.num_rows), None)
        if batch is not None:
            raise InvalidOperationError("Stream produced more values than expected for dataset")


def _begin(version: TableVersion, tracker: Tracker | None) -> None:
    if tracker is not None:
        total_rows = sum(num_live_rows(version, each) for each in version.manifest.fragments)
        tracker.begin(total_rows=total_rows, total_files=len(version.manifest.fragments))


def _add(
    version: TableVersion,
    schema: Schema,
    values: Values,
    finish: Callable[[], None] = lambda: None,
    tracker: Tracker | None = None,
) -> TableVersion:
    added = _added(version, schema)
    _begin(version, tracker)
    fragments = add_column_files(version, added, values, tracker=tracker)
    try:
        finish()
        return _commit_merge(version, fragments, schema, preserves_nullability=_all_nullable(added))
    except CommitStateUnknownError:
        raise
    except LanceError:
        discard_column_files(version, fragments)
        raise


def _one(version: TableVersion, fragment: Fragment, schema: Schema, values: Values) -> tuple[Fragment, Schema]:
    new = add_column_file(version, fragment, _added(version, schema), values(fragment))
    version.store.sync(version.base)
    return new, schema


def _extended(version: TableVersion, new: pa.Schema) -> Schema:
    """Return the table's schema with new top-level columns, numbered after every field the table ever had."""
    manifest = version.manifest
    flags.check_writable(manifest.writer_flags, version.uri, reader_flags=manifest.reader_flags)
    for name in new.names:
        existing = version.schema.field_case_insensitive(name) if "." not in name else None
        if existing is not None and existing.name == name:
            if existing.is_struct and pa.types.is_struct(new.field(name).type):
                raise UnsupportedFeatureError(
                    f"Column {name} is a struct col, add sub column is not supported in Lance file version "
                    f"{manifest.file_version}",
                    feature="adding fields to a struct column",
                    column=name,
                )
            raise AlreadyExistsError(f"Column {name} already exists in the dataset", column=name)
    if not len(new):
        return version.schema
    return version.schema.merge(new, first_id=manifest.max_field_id + 1)


def _all_nullable(added: Schema) -> bool:
    """Return whether concurrently appended rows, which lack these columns, stay valid."""
    return all(each.nullable for each in added.fields)


def _added(version: TableVersion, schema: Schema) -> Schema:
    return Schema(tuple(each for each in schema.fields if each.id not in version.schema.by_id))


# --- altered columns ------------------------------------------------------------------------------------------------


def alter(version: TableVersion, alterations: Iterable[Alteration]) -> TableVersion:
    """Rename columns, change whether they are nullable, or change their type, in one new version.

    A type can change within its kind: integers, floats, times, strings, bytes, decimals, and lists of these. Converted
    values are written to new files; older versions keep the old files. Raises ColumnNotFoundError,
    InvalidOperationError
    for a conversion to another kind or of an indexed column, SchemaMismatchError for nulls in a column that becomes
    required and for values that do not fit the new type, AlreadyExistsError and InvalidSchemaError for a duplicate
    name.
    """
    manifest = version.manifest
    flags.check_writable(manifest.writer_flags, version.uri, reader_flags=manifest.reader_flags)
    schema, casts = version.schema, dict[int, int]()
    next_id, narrowed = manifest.max_field_id + 1, False
    for alteration in alterations:
        old = _find(version.schema, alteration.path)
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
        schema = _exchanged(schema, new.id, converted)
        casts[old.id] = converted.id
    # Rebuild the schema so that names, keys and types are checked.
    schema = Schema.from_protos(schema.to_protos(), schema.metadata)
    _check_names(schema)
    if not casts:
        return _commit_project(version, schema, preserves_nullability=not narrowed)
    written = _fields_to_write(version, schema, set(casts.values()))
    fragments = add_column_files(version, written, _converted(version, written, casts))
    try:
        return _commit_merge(version, fragments, schema, preserves_nullability=not narrowed)
    except CommitStateUnknownError:
        raise
    except LanceError:
        discard_column_files(version, fragments)
        raise


def _find(schema: Schema, path: str) -> Field:
    found = schema.field(path)
    if found is None:
        raise ColumnNotFoundError(f'Column "{path}" does not exist in the dataset', column=path)
    return found


def _check_no_index(version: TableVersion, field: Field, path: str) -> None:
    """Raise InvalidOperationError if an index covers the field. The index would be dropped silently."""
    section = version.file.index_section(version.store)
    if section is None:
        return
    ids = {nested.id for nested in field.walk()}
    indices = IndexSection.from_bytes(section, version.location.path).indices
    names = sorted({each.name for each in indices if ids.intersection(each.fields)})
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


def _is_conversion(old: pa.DataType, new: pa.DataType) -> bool:
    kinds: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_temporal,
        pa.types.is_boolean,
        _is_string,
        _is_bytes,
        pa.types.is_decimal,
    )
    for kind in kinds:
        if kind(old):
            return kind(new)
    if _is_listlike(old):
        return _is_listlike(new) and _is_conversion(old.value_type, new.value_type)
    return False


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_listlike(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _retyped(field: Field, new_type: pa.DataType, first_id: int) -> Field:
    """Return the field with another type and new ids throughout."""
    arrow = pa.schema([pa.field(field.name.replace(".", "_"), new_type, field.nullable)])
    made = Schema.from_arrow(arrow, first_id=first_id).fields[0]
    return replace(
        made,
        name=field.name,
        parent_id=field.parent_id,
        metadata=field.metadata,
        is_primary_key=field.is_primary_key,
        primary_key_position=field.primary_key_position,
        is_clustering_key=field.is_clustering_key,
        clustering_key_position=field.clustering_key_position,
    )


def _exchanged(schema: Schema, old_id: int, new: Field) -> Schema:
    def walk(fields: tuple[Field, ...]) -> tuple[Field, ...]:
        return tuple(
            new if each.id == old_id else replace(each, children=walk(each.children)) if each.children else each
            for each in fields
        )

    return Schema(walk(schema.fields), schema.metadata)


def _fields_to_write(version: TableVersion, schema: Schema, new_ids: set[int]) -> Schema:
    """Return the fields for the new files: the converted fields with their enclosing structs, or whole columns.

    Whole columns are written for data files of 2.0, which store structs as columns, and for items of lists, which must
    stay together.
    """
    wanted: list[int] = []
    for top in schema.fields:
        inside = [each.id for each in top.walk() if each.id in new_ids]
        if inside and (
            version.manifest.file_version in _WITH_STRUCT_COLUMNS
            or any(not _only_structs(top, each) for each in inside)
        ):
            inside = [top.id]
        wanted += inside
    return schema.project_ids(wanted)


def _only_structs(top: Field, field_id: int) -> bool:
    if top.id == field_id:
        return True
    below = [child for child in top.children if any(each.id == field_id for each in child.walk())]
    return top.is_struct and not top.is_packed and all(_only_structs(child, field_id) for child in below)


def _converted(version: TableVersion, written: Schema, casts: Mapping[int, int]) -> Values:
    """Return a function that reads the old form of the columns of `written` and converts them."""
    old_ids = {new: old for old, new in casts.items()}

    def before(field: Field) -> Field:
        old = version.schema.by_id[old_ids.get(field.id, field.id)]
        return old if field.id in old_ids else replace(old, children=tuple(map(before, field.children)))

    pairs = [(before(field), field) for field in written.fields]
    target = written.to_storage_arrow()

    def values(fragment: Fragment) -> Iterator[pa.RecordBatch]:
        columns = [old for old, _ in pairs]
        step = max(1024, int(_BYTES_AT_ONCE / max(memory_per_row(version, fragment, columns), 1)))
        num_rows = physical_rows(version, fragment)
        for start in range(0, num_rows, step):
            selection = select(version, fragment, range(start, min(start + step, num_rows)))
            table = pa.table(read_selection(version, selection, columns), names=[field.name for field in columns])
            for batch in table.combine_chunks().to_batches():
                arrays = [
                    _convert(array, old, new, new.name, old_ids)
                    for array, (old, new) in zip(batch.columns, pairs, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=target)

    return values


def _convert(array: pa.Array, old: Field, new: Field, path: str, old_ids: Mapping[int, int]) -> pa.Array:
    """Convert `array` from the field `old` to `new`: cast fields in `old_ids` and rebuild the fields around them."""
    if new.id in old_ids:
        try:
            made = pc.cast(array, new.data_type)
            check_finite(array, made)
            return made
        except pa.ArrowException as error:
            raise SchemaMismatchError(
                f"column {path!r} cannot be converted to {new.data_type}: {error}; the table is unchanged", column=path
            ) from error
    if not new.children:
        return array
    mask = array.is_null() if array.null_count else None
    below = list(zip(old.children, new.children, strict=True))
    if new.is_struct:
        parts = [
            _convert(array.field(place), *pair, f"{path}.{pair[1].name}", old_ids) for place, pair in enumerate(below)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(new.data_type), mask=mask)
    kind = new.data_type
    if pa.types.is_fixed_size_list(kind):
        items = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        items = _convert(items, *below[0], f"{path}.{below[0][1].name}", old_ids)
        return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=mask)
    if pa.types.is_map(kind):
        raise UnsupportedFeatureError(
            f"column {path!r}: the type of keys and values of a map cannot be changed",
            feature="changing the types in a map",
            column=path,
        )
    items = _convert(array.values, *below[0], f"{path}.{below[0][1].name}", old_ids)
    make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return make.from_arrays(array.offsets, items, type=kind, mask=mask)


# --- dropped columns ------------------------------------------------------------------------------------------------


def drop(version: TableVersion, paths: Sequence[str]) -> TableVersion:
    """Remove columns, or fields of struct columns, from the schema.

    Their bytes are removed when fragments are compacted and old versions cleaned up. Raises ColumnNotFoundError,
    InvalidInputError if no column would be left.
    """
    manifest = version.manifest
    flags.check_writable(manifest.writer_flags, version.uri, reader_flags=manifest.reader_flags)
    ids: set[int] = set()
    for path in paths:
        found = version.schema.field(path)
        if found is None:
            raise ColumnNotFoundError(f"Column {path} does not exist in the dataset", column=path)
        ids.add(found.id)
    schema = version.schema.without(ids)
    if not schema.fields:
        raise InvalidInputError("Cannot drop all columns from a dataset")
    return _commit_project(version, schema)


# --- commits ----------------------------------------------------------------------------------------------------------


def _commit_project(version: TableVersion, schema: Schema, *, preserves_nullability: bool = True) -> TableVersion:
    operation = tx.Project(schema.with_metadata({}), preserves_nullability=preserves_nullability)
    return commit_transaction(version, Transaction.create(version.version, operation))


def _commit_merge(
    version: TableVersion,
    fragments: tuple[Fragment, ...],
    schema: Schema,
    *,
    preserves_nullability: bool = True,
    uuid: str | None = None,
) -> TableVersion:
    operation = tx.Merge(fragments, schema, preserves_nullability=preserves_nullability)
    transaction = Transaction.create(version.version, operation)
    return commit_transaction(version, transaction if uuid is None else replace(transaction, uuid=uuid))
