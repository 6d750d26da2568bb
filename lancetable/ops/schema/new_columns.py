"""New columns: computed by expressions or functions, read from a stream, or null.

    source of values ─► NewColumns ─► add_columns            a data file for each fragment, one Merge
                                   ├► add_to_fragment        a data file for one fragment, nothing committed
                                   └► resumable_fragment     the same; the run after an interruption reuses the file

For columns that are null in every row, only the schema is written. A concurrent commit that changes fragments or
columns makes the commit fail (`RetryableCommitConflictError`), because the new values would not match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from lancetable.commit.commit_loop import commit_transaction
from lancetable.commit.publish import discarding_on_failure
from lancetable.errors import (
    AlreadyExistsError,
    ColumnNotFoundError,
    InvalidInputError,
    InvalidOperationError,
    InvalidSqlError,
    SchemaMismatchError,
    UnsupportedFeatureError,
)
from lancetable.expr import VIRTUAL_COLUMNS, columns_of, parse_expression
from lancetable.expr.analyze.nullability import may_be_null
from lancetable.expr.syntax.ast import Literal
from lancetable.file.writer import FileWriter
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.format.paths import data_path
from lancetable.format.schema import Schema
from lancetable.format.transaction import Transaction
from lancetable.format.version import FileVersion
from lancetable.ops.maintain.migrate import content_file_name, find_reusable_file
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.ops.read.projection import evaluation_schema
from lancetable.ops.read.scan import execute_scan
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.schema.column_files import (
    Values,
    add_column_file,
    add_column_files,
    discard_column_files,
    to_physical_rows,
)
from lancetable.ops.write.schema_enforcement import conform_batches
from lancetable.table.row_counts import live_offsets, num_live_rows, physical_rows
from lancetable.table.version import TableVersion

Function = Callable[[pa.RecordBatch], pa.RecordBatch]


class ColumnCheckpoint(Protocol):
    """Storage for computed results of a function, so that a failed run can resume."""

    def begin_fragment(self, fragment: Fragment) -> None:
        """Discard results that were computed for this fragment with other files or other deleted rows."""

    def load_batch(self, fragment_id: int, batch_index: int) -> pa.RecordBatch | None:
        """Return the result for one batch, or None if it is not stored."""

    def save_batch(self, fragment_id: int, batch_index: int, batch: pa.RecordBatch) -> None:
        """Store the result for one batch."""

    def load_fragment(self, fragment_id: int) -> Fragment | None:
        """Return a fragment whose data file is written, or None if it is not stored."""

    def save_fragment(self, fragment: Fragment) -> None:
        """Store a fragment whose data file is written, and discard the results of its batches."""


@dataclass(frozen=True, slots=True)
class NewColumns:
    """Columns to add: their schema, and a function that returns their values for the live rows of a fragment.

    `check_exhausted` is called after the values of the last fragment, and raises an error if the source has more. With
    a `checkpoint`, data files are not removed after an error, so that the next run reuses them.
    """

    schema: pa.Schema
    values: Values
    check_exhausted: Callable[[], None] = lambda: None
    checkpoint: ColumnCheckpoint | None = None
    all_null: bool = False  # the columns are null in every row


# --- sources of values ------------------------------------------------------------------------------------------------


def from_expressions(
    version: TableVersion, expressions: Mapping[str, str], batch_size: int | None = None
) -> NewColumns:
    """Return columns computed by SQL expressions, given by the name of the new column.

    Raises InvalidSqlError, ColumnNotFoundError.
    """

    def values(fragment: Fragment) -> Iterator[pa.RecordBatch]:
        options = ScanOptions(columns=dict(expressions), fragments=[fragment.id], batch_size=batch_size)
        yield from execute_scan(version, plan_scan(version, options))

    schema = expression_schema(version, expressions)
    return NewColumns(schema, values, all_null=all(map(_is_null_constant, expressions.values())))


def from_function(
    version: TableVersion,
    function: Function,
    schema: pa.Schema,
    *,
    columns: Sequence[str] | None = None,
    batch_size: int | None = None,
    checkpoint: ColumnCheckpoint | None = None,
) -> NewColumns:
    """Return columns that a function computes from batches of the table.

    Parameters
    ----------
    version
        The version to extend.
    function
        Maps a batch of `columns` to a batch of `schema` with the same number of rows. The iteration over the values
        raises SchemaMismatchError for another schema and InvalidInputError for another number of rows.
    schema
        Schema of the new columns.
    columns
        Input columns, possibly with virtual columns such as `_rowid`; all stored columns by default.
    batch_size
        Rows per batch.
    checkpoint
        Storage for intermediate results.
    """

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
                result = _checked(function(batch), schema, batch.num_rows)
                if checkpoint is not None:
                    checkpoint.save_batch(fragment.id, number, result)
            yield result

    return NewColumns(schema, values, checkpoint=checkpoint)


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


def from_reader(version: TableVersion, reader: pa.RecordBatchReader) -> NewColumns:
    """Return the columns of `reader`, whose rows are the live rows of the fragments, in scan order.

    The iteration over the values raises InvalidOperationError for too few or too many rows.
    """
    left: list[pa.RecordBatch] = []

    def values(fragment: Fragment) -> Iterator[pa.RecordBatch]:
        num_rows = num_live_rows(version, fragment)
        while num_rows:
            batch = left.pop() if left else next(reader, None)
            if batch is None:
                raise InvalidOperationError("Stream ended before producing values for all rows in dataset")
            if batch.num_rows > num_rows:
                left.append(batch.slice(num_rows))
                batch = batch.slice(0, num_rows)
            num_rows -= batch.num_rows
            yield batch

    def expect_end() -> None:
        if left or any(batch.num_rows for batch in reader):
            raise InvalidOperationError("Stream produced more values than expected for dataset")

    return NewColumns(reader.schema, values, expect_end)


def expression_schema(version: TableVersion, expressions: Mapping[str, str]) -> pa.Schema:
    """Return the schema of the columns that SQL expressions produce. Raises InvalidSqlError, ColumnNotFoundError."""
    arrow = evaluation_schema(version.schema)
    fields = []
    for name, sql in expressions.items():
        expr = parse_expression(sql, arrow)
        for path in columns_of(expr):
            if path in VIRTUAL_COLUMNS:
                raise ColumnNotFoundError(
                    f"No field named {path}: new columns can be computed from stored columns only"
                )
        fields.append(pa.field(name, expr.data_type, may_be_null(expr, arrow)))
    return pa.schema(fields)


def _is_null_constant(sql: str) -> bool:
    """Return whether an expression is a null constant, such as `CAST(NULL AS INT)`."""
    try:
        expr = parse_expression(sql, pa.schema([]))
    except (InvalidSqlError, ColumnNotFoundError):
        return False
    return isinstance(expr, Literal) and not expr.value.is_valid


# --- additions --------------------------------------------------------------------------------------------------------


def add_nulls(version: TableVersion, new: pa.Schema) -> TableVersion:
    """Add columns, and fields of structs and of list items, that are null in every existing row.

    Only the schema is written. Raises InvalidOperationError for non-nullable columns, AlreadyExistsError for existing
    columns, and UnsupportedFeatureError for 0.1 tables and, as in pylance, for added fields in formats before 2.2.
    """
    schema, _ = _extended(version, new, nested=version.manifest.file_version is FileVersion.V2_2)
    known = version.schema.by_id
    added = [field for field in schema.walk() if field.id not in known and field.parent_id in (-1, *known)]
    if new.names and not added:
        raise AlreadyExistsError(f"Column {new.names[0]} already exists in the dataset", column=new.names[0])
    required = [field.name for field in added if not field.nullable]
    if required:
        raise InvalidOperationError(f"All-null columns must be nullable, but field {required[0]!r} is not.")
    if version.manifest.file_version.is_legacy:
        raise UnsupportedFeatureError(
            "Cannot add all-null columns to legacy dataset version.", feature="null columns in tables of version 0.1"
        )
    return commit_merge(version, tuple(version.manifest.fragments), schema)


def add_columns(version: TableVersion, new: NewColumns, tracker: Tracker = NO_PROGRESS) -> TableVersion:
    """Add columns in one new version. Raises AlreadyExistsError and the errors of the source of values."""
    if new.all_null and not version.manifest.file_version.is_legacy:
        return add_nulls(version, new.schema)
    schema, added = _extended(version, new.schema)
    total_rows = sum(num_live_rows(version, fragment) for fragment in version.manifest.fragments)
    tracker.begin(total_rows=total_rows, total_files=len(version.manifest.fragments))
    if new.checkpoint is None:
        fragments = add_column_files(version, added, new.values, tracker=tracker)
    else:
        fragments = _add_resumable(version, added, new.values, new.checkpoint, tracker)
    with discarding_on_failure(lambda: None if new.checkpoint else discard_column_files(version, fragments)):
        new.check_exhausted()
        return commit_merge(version, fragments, schema, preserves_nullability=_all_nullable(added))


def _add_resumable(
    version: TableVersion, added: Schema, values: Values, checkpoint: ColumnCheckpoint, tracker: Tracker
) -> tuple[Fragment, ...]:
    """Write a data file for every fragment whose file was not written by an earlier run."""
    fragments = []
    for fragment in version.manifest.fragments:
        checkpoint.begin_fragment(fragment)
        written = checkpoint.load_fragment(fragment.id)
        # A cleanup may have removed the file, because no version references it yet.
        if written is None or version.store.find(version.data_file_path(written.files[-1])) is None:
            written = add_column_file(version, fragment, added, values(fragment), tracker=tracker)
            checkpoint.save_fragment(written)
        else:
            tracker.add(num_live_rows(version, fragment))
            tracker.wrote(written)
        fragments.append(written)
    return tuple(fragments)


def add_to_fragment(version: TableVersion, fragment: Fragment, new: NewColumns) -> tuple[Fragment, Schema]:
    """Return one fragment with new columns, and the schema for a Merge of such fragments; nothing is committed.

    The data file is durable. Raises the errors of `add_columns`.
    """
    schema, added = _extended(version, new.schema)
    written = add_column_file(version, fragment, added, _all_values(new, fragment))
    version.store.sync(version.base)
    return written, schema


def _all_values(new: NewColumns, fragment: Fragment) -> Iterator[pa.RecordBatch]:
    yield from new.values(fragment)
    new.check_exhausted()


def resumable_fragment(version: TableVersion, fragment: Fragment, new: NewColumns, job: str) -> tuple[Fragment, bool]:
    """Return one fragment with new columns, and True if an earlier run of `job` has written them.

    The file name is derived from the job and from the files of the fragment, including its deletion file, so that a run
    after an interruption finds the file. Nothing is committed; see `commit_fragments`.
    """
    added, target = _extended(version, new.schema)[1], version.manifest.file_version
    if target.is_legacy or any(part.is_blob or part.is_blob_v2 for part in added.walk()):
        return add_to_fragment(version, fragment, new)[0], False
    deleted = "" if fragment.deletion_file is None else repr(fragment.deletion_file)
    name = content_file_name(fragment, added, target, job, deleted)
    file = find_reusable_file(version, fragment, added, name, target)
    is_reused = file is not None
    if file is None:
        live, num_rows = live_offsets(version, fragment), physical_rows(version, fragment)
        writer = FileWriter(version.store.open_writer(data_path(version.base, name)), added, target, keep_arrays=True)
        try:
            rows = 0
            for batch in conform_batches(to_physical_rows(new.values(fragment), live, num_rows, fragment.id), added):
                writer.write(batch)
                rows += batch.num_rows
            if rows != num_rows:
                raise InvalidInputError(f"fragment {fragment.id} needs values for {num_rows} rows, got {rows}")
            # A concurrent attempt of the same task may have finished first, and a version may already reference its
            # file.
            file = find_reusable_file(version, fragment, added, name, target)
            if file is None:
                file = writer.close().data_file(name, target)
        finally:
            writer.abort()
        version.store.sync(version.base)
    return replace(fragment, files=(*fragment.files, file)), is_reused


def commit_fragments(
    version: TableVersion, fragments: Sequence[Fragment], new: pa.Schema, uuid: str | None = None
) -> TableVersion:
    """Commit all fragments of `version`, to which the columns `new` were added. Their files are kept on a conflict.

    `uuid` is the uuid of the transaction, for commits that may be repeated.
    """
    schema, added = _extended(version, new)
    return commit_merge(version, tuple(fragments), schema, preserves_nullability=_all_nullable(added), uuid=uuid)


def _extended(version: TableVersion, new: pa.Schema, *, nested: bool = False) -> tuple[Schema, Schema]:
    """Return the schema of the table with new columns, and the schema of the new top-level columns only.

    The ids of new fields are higher than the ids of all current and former fields of the table. With `nested`, fields
    may also be added to existing columns.
    """
    version.check_writable()
    for field in new:
        name = field.name
        existing = version.schema.field_case_insensitive(name) if "." not in name else None
        if existing is not None and existing.name == name:
            if nested and existing.children:
                continue
            if "struct" in existing.logical_type and pa.types.is_nested(field.type):
                raise UnsupportedFeatureError(
                    f"Column {name} is a struct col, add sub column is not supported in Lance file version "
                    f"{version.manifest.file_version}",
                    feature="adding fields to a struct column",
                    column=name,
                )
            raise AlreadyExistsError(f"Column {name} already exists in the dataset", column=name)
    schema = version.schema
    if len(new):
        schema = schema.merge(new, first_id=version.manifest.max_field_id + 1)
    return schema, Schema(tuple(field for field in schema.fields if field.id not in version.schema.by_id))


def _all_nullable(added: Schema) -> bool:
    """Return whether concurrently appended rows, which lack these columns, remain valid."""
    return all(field.nullable for field in added.fields)


def commit_merge(
    version: TableVersion,
    fragments: tuple[Fragment, ...],
    schema: Schema,
    *,
    preserves_nullability: bool = True,
    uuid: str | None = None,
) -> TableVersion:
    """Commit fragments with another schema.

    With `preserves_nullability`, all rows that are valid in the old schema are valid in the new one.
    """
    operation = tx.Merge(fragments, schema, preserves_nullability=preserves_nullability)
    transaction = Transaction.create(version.version, operation)
    return commit_transaction(version, transaction if uuid is None else replace(transaction, uuid=uuid))
