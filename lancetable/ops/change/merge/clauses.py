"""Clauses of a merge insert, and checks of a source and its conditions against the table. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import ColumnNotFoundError, InvalidInputError, InvalidOperationError, SchemaMismatchError
from lancetable.expr import Expr, columns_of, parse_predicate
from lancetable.expr.evaluate.evaluator import evaluate
from lancetable.format.field_paths import parse_path
from lancetable.format.schema import Field, Schema
from lancetable.ops.read.projection import column_not_found, evaluation_schema
from lancetable.ops.write.schema_enforcement import conform_schema


class Matched(Enum):
    """Action for table rows whose key is in the source."""

    KEEP = "DoNothing"
    UPDATE = "UpdateAll"
    DELETE = "Delete"
    FAIL = "Fail"


class WriteMode(Enum):
    """Write strategy for updated rows: move them to new fragments, or add column files to their fragments."""

    AUTO = "auto"
    ROWS = "rewrite_rows"
    COLUMNS = "rewrite_columns"


class RepeatedKeys(Enum):
    """Choice among several source rows with the same key. FAIL raises an error if they match a table row."""

    FAIL = "fail"
    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Clauses:
    """The clauses of a merge. `on` contains the key columns, with the names that the table uses.

    `condition` is an SQL predicate over `source.` and `target.` columns; it restricts UPDATE to matches for which it is
    true. `delete_unmatched` deletes rows whose key is not in the source; `delete_condition` restricts the deletion to
    rows for which it is true.

    `newest_by` is a column that restricts UPDATE to matches whose source value is not less than the table value, or
    whose table value is null. `skip_unchanged` does not rewrite rows whose new values equal the stored ones. With
    `insert_null_keys=False`, source rows with a null in their key, which never match, are counted instead of inserted.
    `use_index` permits looking up keys in scalar indexes of the key columns.
    """

    on: tuple[str, ...]
    matched: Matched = Matched.KEEP
    condition: str | None = None
    insert: bool = False
    delete_unmatched: bool = False
    delete_condition: str | None = None
    write_mode: WriteMode = WriteMode.AUTO
    repeated: RepeatedKeys = RepeatedKeys.FAIL
    newest_by: str | None = None
    skip_unchanged: bool = False
    insert_null_keys: bool = True
    use_index: bool = True

    @property
    def update_condition(self) -> str | None:
        """The SQL predicate that restricts UPDATE: `condition`, or the comparison that `newest_by` implies."""
        if self.newest_by is None:
            return self.condition
        name = "`" + self.newest_by.replace("`", "``") + "`"
        return f"target.{name} IS NULL OR source.{name} >= target.{name}"

    def check(self) -> None:
        """Raise InvalidInputError for clauses that cannot change any row or that cannot be combined."""
        if self.condition is not None and self.newest_by is not None:
            raise InvalidInputError(
                f"a merge takes either a condition ({self.condition!r}) or newest_by ({self.newest_by!r}), not both"
            )
        if self.matched is Matched.KEEP and not self.insert and not self.delete_unmatched:
            raise InvalidInputError(
                "The merge insert job is not configured to change the data in any way: choose an action with when_..."
            )

    def check_column_mode(self, schema: Schema, present: set[str]) -> None:
        """Raise InvalidOperationError if column files cannot express the merge.

        `present` are the columns of the source.
        """
        values = [field for field in schema.fields if field.name in present and field.name not in self.on]
        reason = None
        if self.matched is not Matched.UPDATE or self.insert or self.delete_unmatched:
            reason = "it must update matched rows and do nothing else"
        elif len(present) == len(schema.fields):
            reason = "the source covers every dataset column, so there is nothing to skip"
        elif not values:
            reason = "the source has no columns except the key"
        elif any(part.is_blob or part.is_blob_v2 for field in values for part in field.walk()):
            reason = "the source has a blob column"
        if reason is not None:
            raise InvalidOperationError(
                f"write mode rewrite_columns cannot express this merge insert: {reason}; use auto or rewrite_rows"
            )

    def explain(self) -> str:
        """Return a one-line description."""
        matched = self.matched.value + (f"({self.condition})" if self.condition else "")
        unmatched = "InsertAll" if self.insert else "DoNothing"
        by_source = "Keep"
        if self.delete_unmatched:
            by_source = "Delete" if self.delete_condition is None else f"DeleteIf({self.delete_condition})"
        return (
            f"MergeInsert: on=[{', '.join(self.on)}], when_matched={matched}, when_not_matched={unmatched}, "
            f"when_not_matched_by_source={by_source}"
        )


@dataclass(slots=True)
class Counts:
    """Numbers of inserted, updated and deleted rows, and of source rows that were skipped.

    `older`: the matched row has a greater value of `Clauses.newest_by`. `null_order`: the source value of that
    column is null and the table value is not. `unchanged`: the matched row has equal values. `null_keys`: the key
    contains a null and the row was not inserted.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0
    older: int = 0
    null_order: int = 0
    null_keys: int = 0

    def add(self, other: Counts) -> None:
        """Add the counts of another part of the same merge."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def null_keys(columns: Sequence[pa.Array | pa.ChunkedArray]) -> npt.NDArray[np.bool_]:
    """Return a mask (n,) of rows with a null in any key column; such rows never match."""
    null = np.zeros(len(columns[0]), np.bool_)
    for column in columns:
        if column.null_count:
            null |= np.asarray(column.is_null().to_numpy(zero_copy_only=False))
    return null


def key_fields(schema: Schema, names: tuple[str, ...] | list[str]) -> list[Field]:
    """Return the key columns. Names are matched exactly or, if there is no exact match, case-insensitively.

    Raises InvalidInputError if `names` is empty, ColumnNotFoundError for an unknown column.
    """
    if not names:
        raise InvalidInputError(
            "A merge insert operation requires join keys: name the columns with `on`, or give the table an unenforced"
            " primary key"
        )
    fields = []
    for name in names:
        field = schema.field(name) or schema.field_case_insensitive(name)
        if field is None or field.parent_id >= 0:
            error = column_not_found(schema, name)
            raise ColumnNotFoundError(
                f"Merge insert key column {name!r} does not exist in schema: {error}", column=name
            )
        fields.append(field)
    return fields


def check_source(schema: Schema, clauses: Clauses, incoming: pa.Schema) -> Schema:
    """Return the part of the table's `schema` that a source provides: whole top-level columns, in table order.

    Raises SchemaMismatchError for unknown columns or types, and for inserts that lack a required column;
    ColumnNotFoundError for a missing key column.
    """
    names = set(incoming.names)
    missing = [name for name in clauses.on if name not in names]
    if missing:
        raise ColumnNotFoundError(
            f"key column {missing[0]!r} is missing in the source; columns are {', '.join(incoming.names)}",
            column=missing[0],
        )
    known = tuple(field for field in schema.fields if field.name in names)
    stored = conform_schema(Schema.from_arrow(incoming), Schema(known, schema.metadata))
    partial = [field.name for field, whole in zip(stored.fields, known, strict=True) if field != whole]
    if partial:
        raise SchemaMismatchError(
            f"Append with different schema: column {partial[0]!r} is incomplete in the source; pass all of its fields"
        )
    absent = [field.name for field in schema.fields if field.name not in names and not field.nullable]
    if clauses.insert and absent:
        raise SchemaMismatchError(
            f"Append with different schema: fields did not match, missing=[{', '.join(absent)}], unexpected=[]"
        )
    return stored


class Condition:
    """A predicate over matches of a source row and a table row, such as `source.v > target.v`."""

    def __init__(self, text: str, schema: Schema, present: set[str]) -> None:
        """Parse the predicate; `present` are the columns of the source. Raises InvalidSqlError, ColumnNotFoundError."""
        types = evaluation_schema(schema, blobs_as_bytes=True)
        sides = [
            pa.field("source", pa.struct([field for field in types if field.name in present])),
            pa.field("target", pa.struct(list(types))),
        ]
        self._expression: Expr = parse_predicate(text, pa.schema(sides))
        paths = [parse_path(path) for path in columns_of(self._expression)]
        self.source_names = _used_columns(paths, "source", present)
        self.target_names = _used_columns(paths, "target", set(schema.names))

    def mask(
        self, source: Mapping[str, pa.Array], target: Mapping[str, pa.Array], num_rows: int
    ) -> npt.NDArray[np.bool_]:
        """Return a mask (num_rows,) of the matches for which the predicate is true.

        `source` and `target` contain the columns in `source_names` and `target_names`.
        """
        sides = {}
        for side, columns, names in (("source", source, self.source_names), ("target", target, self.target_names)):
            if names:
                sides[side] = pa.StructArray.from_arrays([columns[name] for name in names], names=names)
        rows = pa.RecordBatch.from_arrays([*sides.values(), pa.nulls(num_rows)], names=[*sides, ""])
        mask = pc.fill_null(evaluate(self._expression, rows), False)
        return np.asarray(mask.to_numpy(zero_copy_only=False))


def _used_columns(paths: list[list[str]], side: str, columns: set[str]) -> list[str]:
    """Return the columns of one side that the paths use; all columns if a path is the side itself."""
    return sorted(columns if [side] in paths else {path[1] for path in paths if path[0] == side})
