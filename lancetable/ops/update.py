"""Changing rows by SQL expressions: the rows that match are written anew, as they are after the change.

    scan (matching offsets by fragment) ─► read, evaluate, write ─► mark as deleted ─► Update ─► commit
         ▲                                                                                   │
         └────── RetryableCommitConflictError: somebody touched the same rows or fragments ◄─┘

Expressions see the rows as they were; their values are cast to the type of the column as SQL's CAST does it. A column
that is replaced, and that no expression uses, is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import InvalidInputError, InvalidSqlError, UnsupportedFeatureError
from lancetable.expr import Expr, columns_of, data_type, evaluate, parse_expression
from lancetable.expr.build import Refused, checked_cast
from lancetable.expr.casts import can_cast
from lancetable.format import jsonb
from lancetable.format.blobs import with_bytes
from lancetable.format.field_paths import parse_path
from lancetable.format.fragment import Fragment
from lancetable.format.schema import Field, Schema
from lancetable.format.version import FileVersion
from lancetable.ops.columns import VIRTUAL, column_not_found, evaluation_schema
from lancetable.ops.moved_rows import (
    Prepared,
    Window,
    commit_prepared,
    live_rows,
    prepare_update,
    read_windows,
    windows_of,
)
from lancetable.ops.retry import on_newest
from lancetable.ops.scan import matching_rows
from lancetable.ops.tracker import Tracker
from lancetable.ops.write import WriteOptions
from lancetable.table.data_files import WriteLimits
from lancetable.table.deletions import DeletionVector
from lancetable.table.version import TableVersion
from lancetable.table.version_rows import Offsets

if TYPE_CHECKING:
    from lancetable.ops.scan_plan import Filter

__all__ = ["prepare", "update"]


def update(
    version: TableVersion,
    updates: Mapping[str, str],
    where: Filter | None = None,
    *,
    file_version: FileVersion | None = None,
    conflict_retries: int = 10,
    retry_timeout_s: float = 30.0,
    tracker: Tracker | None = None,
) -> tuple[TableVersion, int]:
    """Set columns to the values of SQL expressions in the rows for which `where` is true, or in all; returns the new
    version and how many rows that were.

    With stable row ids the rows keep theirs. A predicate that matches nothing still makes a version. When another
    commit touches the same rows, everything runs again on the newer version.

    Raises InvalidInputError without updates, ColumnNotFoundError, InvalidSqlError, UnsupportedFeatureError for a target
    inside a struct, SchemaMismatchError for a null in a required column; RetryableCommitConflictError when every
    attempt lost, CommitConflictError, CommitStateUnknownError.
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
    tracker: Tracker | None = None,
) -> tuple[Prepared, int]:
    """Write the files of an update of all fragments, or of those with these ids, without committing it; also returns
    how many rows change. Raises as `update`.
    """
    assignments = _resolve(version.schema, updates)
    if tracker is not None:
        tracker.begin()
    rows = _Rows(version, where, fragments)
    if tracker is not None:
        tracker.expect(total_rows=rows.num_rows)
    prepared = prepare_update(
        version,
        _changed(version, assignments, rows),
        rows.moved,
        lambda: rows.vectors,
        changed_fields=[part.id for each in assignments for part in each.field.walk()],
        file_version=file_version,
        options=WriteOptions(limits=WriteLimits(keep_arrays=True), tracker=tracker),
    )
    return prepared, rows.num_rows


# --- which rows ------------------------------------------------------------------------------------------------------


class _Rows:
    """The rows to change by fragment, in scan order."""

    def __init__(self, version: TableVersion, where: Filter | None, fragments: Sequence[int] | None) -> None:
        self.vectors: dict[int, DeletionVector] = {}
        self._fragments: dict[int, Fragment] = {}
        for fragment, offsets in _rows_where(version, where, fragments):
            self._fragments[fragment.id] = fragment
            self.vectors[fragment.id] = DeletionVector.of_ascending(offsets)

    @property
    def num_rows(self) -> int:
        return sum(map(len, self.vectors.values()))

    def moved(self) -> Iterator[tuple[Fragment, Offsets]]:
        for fragment_id, vector in self.vectors.items():
            yield self._fragments[fragment_id], vector.offsets().astype(np.int64)


def _rows_where(
    version: TableVersion, where: Filter | None, fragments: Sequence[int] | None
) -> Iterator[tuple[Fragment, Offsets]]:
    if where is not None:
        return matching_rows(version, where, fragments)
    wanted = None if fragments is None else set(fragments)
    return live_rows(version, [each for each in version.manifest.fragments if wanted is None or each.id in wanted])


# --- what becomes of them --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Assignment:
    """A column and the expression it is set to, of the type `data_type`, which is not always the column's."""

    field: Field
    expression: Expr
    data_type: pa.DataType

    def value(self, rows: pa.RecordBatch) -> pa.Array:
        values = evaluate(self.expression, rows)
        if values.type.equals(self.data_type):
            return values
        if self.field.is_json:
            return jsonb.from_text(values, self.field.name)
        try:
            return pc.cast(values, self.data_type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidSqlError(f"the value for column {self.field.name!r}: {error}") from error


def _resolve(schema: Schema, updates: Mapping[str, str]) -> list[_Assignment]:
    if not updates:
        raise InvalidInputError("No updates provided")
    types = evaluation_schema(schema, blobs_as_bytes=True)
    found = []
    for name, text in updates.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(f"updates map column names to SQL text, not {type(name).__name__} to {type(text).__name__}")
        field = schema.field(name)
        if field is None:
            raise column_not_found(schema, name)
        if field.parent_id >= 0:
            raise UnsupportedFeatureError(
                f"update sets top-level columns only, not {name!r}; set {parse_path(name)[0]!r} as a whole",
                feature="updates of nested columns",
            )
        found.append(_assignment(field, parse_expression(text, types)))
    return found


def _assignment(field: Field, expression: Expr) -> _Assignment:
    target, source = with_bytes(field).data_type, data_type(expression)
    if source == target or (field.is_json and (pa.types.is_string(source) or pa.types.is_large_string(source))):
        return _Assignment(field, expression, target)
    if can_cast(source, target) and not pa.types.is_nested(target):
        try:
            return _Assignment(field, checked_cast(expression, target, implied=True), target)
        except Refused as error:
            raise InvalidSqlError(f"the value for column {field.name!r}: {error}") from error
    if not (pa.types.is_nested(target) or pa.types.is_null(source)):
        raise InvalidSqlError(f"column {field.name!r} holds {target}, the expression gives {source}: {expression}")
    return _Assignment(field, expression, target)


def _changed(version: TableVersion, assignments: list[_Assignment], rows: _Rows) -> Iterable[pa.RecordBatch]:
    schema = version.schema
    replaced = {each.field.id: each for each in assignments}
    used = {_top_name(path) for each in assignments for path in columns_of(each.expression)}
    fields = [field for field in schema.fields if field.id not in replaced or field.name in used]
    if any(name in VIRTUAL for name in used):
        raise InvalidSqlError("an update cannot use row ids, addresses or versions as values")
    names = [field.name for field in fields]

    def change(window: Window, arrays: list[pa.Array]) -> pa.RecordBatch:
        read = pa.RecordBatch.from_arrays([*arrays, pa.nulls(len(window.offsets))], names=[*names, ""])
        known = dict(zip(names, arrays, strict=True))
        columns = [
            replaced[field.id].value(read) if field.id in replaced else known[field.name] for field in schema.fields
        ]
        return pa.RecordBatch.from_arrays(columns, names=schema.names)

    return read_windows(version, fields, windows_of(version, fields, rows.moved()), change)


def _top_name(path: str) -> str:
    return parse_path(path)[0]
