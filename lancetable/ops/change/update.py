"""Updates by SQL expressions: matching rows are rewritten with their new values.

    scan (matching offsets by fragment) ─► read, evaluate, write ─► deletion files ─► Update ─► commit
         ▲                                                                                        │
         └─ RetryableCommitConflictError: a concurrent commit changed the same rows or fragments ◄─┘

Expressions are evaluated on the values before the update. Results are cast to the type of the column, as CAST does in
SQL. A column that is updated and not used by any expression is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import InvalidInputError, InvalidSqlError, UnsupportedFeatureError
from lancetable.expr import VIRTUAL_COLUMNS, Expr, columns_of, parse_expression
from lancetable.expr.evaluate.casts import can_cast
from lancetable.expr.evaluate.evaluator import evaluate
from lancetable.expr.typing.coercion import checked_cast
from lancetable.expr.typing.errors import AnalysisError
from lancetable.file.blobs.descriptions import with_bytes
from lancetable.format import jsonb
from lancetable.format.field_paths import parse_path
from lancetable.format.fragment import Fragment
from lancetable.format.schema import Field, Schema
from lancetable.format.version import FileVersion
from lancetable.ops.change.retry import on_newest
from lancetable.ops.change.rewritten_rows import (
    Prepared,
    Window,
    commit_prepared,
    live_rows,
    ordered,
    prepare_update,
    read_rows_at,
    windows_of,
)
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.ops.read.matching_rows import matching_rows
from lancetable.ops.read.memory_release import note_allocated
from lancetable.ops.read.projection import evaluation_schema, field_at
from lancetable.ops.read.scan_plan import Filter
from lancetable.ops.write.destination import WriteOptions
from lancetable.table.deletion_vectors import DeletionVector
from lancetable.table.fragment_writer import WriteLimits
from lancetable.table.row_counts import Offsets
from lancetable.table.version import TableVersion

_Rows = Sequence[tuple[Fragment, DeletionVector]]
"""The rows to update by fragment, in scan order. Deletion vectors take half the memory of int64 offsets."""


def update(
    version: TableVersion,
    updates: Mapping[str, str],
    where: Filter | None = None,
    *,
    file_version: FileVersion | None = None,
    conflict_retries: int = 10,
    retry_timeout_s: float = 30.0,
    tracker: Tracker = NO_PROGRESS,
) -> tuple[TableVersion, int]:
    """Set columns to SQL expressions in the rows for which `where` is true, or in all rows.

    With stable row ids, updated rows keep their ids. A predicate without matches still creates a version. If a
    concurrent commit changes the same rows, the update runs again on the newer version.

    Parameters
    ----------
    version
        The version to update.
    updates
        SQL expressions by column name.
    where
        Predicate; all rows by default.
    file_version
        Format of the new data files; the format of the table by default.
    conflict_retries, retry_timeout_s
        Limits of the retries after a conflict.
    tracker
        Progress of the update.

    Returns
    -------
    tuple[TableVersion, int]
        The new version and the number of updated rows.

    Raises
    ------
    InvalidInputError
        If `updates` is empty.
    TypeError
        If a name or an expression is not a string.
    ColumnNotFoundError
        If a column does not exist.
    InvalidSqlError
        If an expression is invalid or its value cannot be cast to the column's type.
    UnsupportedFeatureError
        If a target is inside a struct.
    SchemaMismatchError
        If a required column would become null.
    RetryableCommitConflictError
        If every attempt conflicted with a concurrent commit.
    CommitConflictError
        If a retry cannot succeed.
    CommitStateUnknownError
        If the outcome of the commit is unknown.
    """

    def attempt(base: TableVersion) -> tuple[TableVersion, int]:
        prepared, num_rows = prepare(base, updates, where, file_version=file_version, tracker=tracker)
        return commit_prepared(base, prepared), num_rows

    return on_newest(version, attempt, conflict_retries=conflict_retries, retry_timeout_s=retry_timeout_s)


def prepare(
    version: TableVersion,
    updates: Mapping[str, str],
    where: Filter | None = None,
    *,
    fragments: Sequence[int] | None = None,
    file_version: FileVersion | None = None,
    tracker: Tracker = NO_PROGRESS,
) -> tuple[Prepared, int]:
    """Write the files of an update without committing it; also return the number of updated rows.

    `fragments` restricts the update to the fragments with these ids. Raises the errors of `update`, except for those of
    the commit.
    """
    assignments = _resolve(version.schema, updates)
    tracker.begin()
    matches = live_rows(version, fragments) if where is None else matching_rows(version, where, fragments)
    rows = [(fragment, DeletionVector.of_ascending(offsets)) for fragment, offsets in matches]
    num_rows = sum(len(vector) for _, vector in rows)
    tracker.expect(total_rows=num_rows)
    prepared = prepare_update(
        version,
        _updated(version, assignments, rows),
        partial(_offsets, rows),
        lambda: {fragment.id: vector for fragment, vector in rows},
        changed_fields=[assignment.field for assignment in assignments],
        options=WriteOptions(limits=WriteLimits(keep_arrays=True), file_version=file_version, tracker=tracker),
    )
    return prepared, num_rows


# --- new values ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Assignment:
    """A column and the expression of its new value, whose type may differ from that of the column."""

    field: Field
    expression: Expr

    @property
    def data_type(self) -> pa.DataType:
        """The type of the new values."""
        return with_bytes(self.field).data_type

    def value(self, rows: pa.RecordBatch) -> pa.Array:
        """Evaluate the expression. Raises InvalidSqlError if a value cannot be converted."""
        values = evaluate(self.expression, rows)
        if values.type.equals(self.data_type):
            return values
        if self.field.is_json:
            return jsonb.from_text(values, self.field.name)
        try:
            return pc.cast(values, self.data_type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidSqlError(f"invalid value for column {self.field.name!r}: {error}") from error


def _resolve(schema: Schema, updates: Mapping[str, str]) -> list[_Assignment]:
    if not updates:
        raise InvalidInputError("No updates provided")
    types = evaluation_schema(schema, blobs_as_bytes=True)
    assignments = []
    for name, text in updates.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(
                f"updates must map column names to SQL strings, not {type(name).__name__} to {type(text).__name__}"
            )
        field = field_at(schema, name)
        if field.parent_id >= 0:
            raise UnsupportedFeatureError(
                f"update sets top-level columns only, not {name!r}; set {parse_path(name)[0]!r} as a whole",
                feature="updates of nested columns",
            )
        assignments.append(_assignment(field, parse_expression(text, types)))
    return assignments


def _assignment(field: Field, expression: Expr) -> _Assignment:
    """Return the assignment, with an implicit cast if the types differ. Raises InvalidSqlError if no cast exists."""
    target, source = with_bytes(field).data_type, expression.data_type
    is_json_text = field.is_json and source in (pa.string(), pa.large_string())
    if source != target and not is_json_text:
        if can_cast(source, target) and not pa.types.is_nested(target):
            try:
                expression = checked_cast(expression, target, implicit=True)
            except AnalysisError as error:
                raise InvalidSqlError(f"invalid value for column {field.name!r}: {error}") from error
        elif not (pa.types.is_nested(target) or pa.types.is_null(source)):
            raise InvalidSqlError(
                f"column {field.name!r} has type {target}, but the expression has type {source}: {expression}"
            )
    return _Assignment(field, expression)


def _updated(version: TableVersion, assignments: list[_Assignment], rows: _Rows) -> Iterable[pa.RecordBatch]:
    schema = version.schema
    replaced = {assignment.field.id: assignment for assignment in assignments}
    used = {parse_path(path)[0] for assignment in assignments for path in columns_of(assignment.expression)}
    fields = [field for field in schema.fields if field.id not in replaced or field.name in used]
    if any(name in VIRTUAL_COLUMNS for name in used):
        raise InvalidSqlError("an update cannot use row ids, addresses or versions as values; use stored columns only")
    names = [field.name for field in fields]

    def evaluate_window(window: Window) -> pa.RecordBatch:
        arrays = read_rows_at(version, window.fragment, fields, window.offsets)
        stored = pa.RecordBatch.from_arrays([*arrays, pa.nulls(len(window.offsets))], names=[*names, ""])
        old = dict(zip(names, arrays, strict=True))
        columns = [
            replaced[field.id].value(stored) if field.id in replaced else old[field.name] for field in schema.fields
        ]
        batch = pa.RecordBatch.from_arrays(columns, names=schema.names)
        note_allocated(batch.nbytes)
        return batch

    return ordered(evaluate_window, windows_of(version, fields, _offsets(rows)))


def _offsets(rows: _Rows) -> Iterator[tuple[Fragment, Offsets]]:
    return ((fragment, vector.offsets().astype(np.int64)) for fragment, vector in rows)
