"""Scan planning: conversion of scan options to a frozen plan, without I/O.

    ScanOptions(columns, filter, limit ...)  --plan_scan-->  ScanPlan
        index             searches of indexes that select rows, and the part of the filter that they do not answer
        filter columns    read first, for the row ranges that statistics do not exclude
        late columns      read for the matching rows only
        outputs           nested fields, expressions, virtual columns, in the caller's order

Zone statistics are stored in the data files. Zones are therefore pruned when the plan runs or when
`ops/read/explain.py` explains it. Planning reads the entries of indexes in the manifest, but no file of an index.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lancetable import expr
from lancetable.errors import InvalidInputError, OutOfRangeError
from lancetable.format.schema import Field, Schema
from lancetable.ops.read.cached_projection import projection_of
from lancetable.ops.read.order_by import ColumnOrdering
from lancetable.ops.read.projection import (
    NOT_COMPUTED,
    PHYSICAL_ADDRESS,
    Projection,
    evaluation_schema,
    project,
    read_set,
)
from lancetable.table.version import TableVersion

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from lancetable.index.planning import IndexPlan
    from lancetable.ops.read.nearest.query import NearestQuery

Filter: TypeAlias = "str | pc.Expression | expr.Expr"

DEFAULT_BATCH_ROWS = 8192
_MAX_BATCH_ROWS = 2**32 - 1
_MAX_ROWS = 2**63 - 1
_BLOB_HANDLING = {None: False, "blobs_descriptions": False, "all_descriptions": False, "all_binary": True}


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Options of a scan, with the names and meanings of `LanceDataset.scanner`.

    `fragments` are fragment ids in the order to scan them (None: all). `row_ranges` maps fragment ids to ranges of
    physical rows, ascending and disjoint; it cannot be combined with limit, offset or order. The tuning options
    `batch_readahead`, `fragment_readahead`, `io_buffer_size` and `scan_in_order` are accepted and ignored. A scan with
    `nearest` is a search, planned by `ops/read/nearest`, which alone uses `prefilter`,
    `disable_scoring_autoprojection` and `index_segments`.
    """

    columns: Sequence[str] | Mapping[str, str] | None = None
    filter: Filter | None = None
    limit: int | None = None
    offset: int | None = None
    batch_size: int | None = None
    batch_size_bytes: int | None = None
    strict_batch_size: bool | None = None
    order_by: Sequence[str | ColumnOrdering] | None = None
    fragments: Sequence[int] | None = None
    row_ranges: Mapping[int, Sequence[range]] | None = None
    with_row_id: bool | None = None
    with_row_address: bool | None = None
    include_deleted_rows: bool | None = None
    late_materialization: bool | Sequence[str] | None = None
    use_stats: bool | None = None
    use_scalar_index: bool | None = None
    scan_in_order: bool | None = None
    blob_handling: str | None = None
    batch_readahead: int | None = None
    fragment_readahead: int | None = None
    io_buffer_size: int | None = None
    scan_stats_callback: Callable[[Any], None] | None = None
    nearest: NearestQuery | None = None
    prefilter: bool | None = None
    fast_search: bool | None = None
    disable_scoring_autoprojection: bool | None = None
    index_segments: Collection[UUID] | None = None


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """A scan that is ready to run.

    `fragments` and the keys of `row_ranges` are positions in the manifest. `shared[i]` is the index in `filter_columns`
    of the i-th field of `projection.columns` if it is read together with the filter columns, or None if it is a late
    column. `keys` projects the columns of `order` and the row addresses; None without an order.

    `index` describes how indexes answer the filter; None if they are not used. `refined` is then the plan for the rows
    that an exact search selects: its filter is the part that no index answers. With `only_indexed`, fragments that the
    indexes do not cover are left out.
    """

    projection: Projection
    fragments: tuple[int, ...]
    row_ranges: Mapping[int, Sequence[range]] | None = None
    predicate: expr.Expr | None = None
    filter_columns: tuple[Field, ...] = ()
    filter_virtual: tuple[str, ...] = ()
    use_stats: bool = False
    shared: tuple[int | None, ...] = ()
    order: tuple[ColumnOrdering, ...] = ()
    keys: Projection | None = None
    limit: int | None = None
    offset: int = 0
    batch_rows: int = DEFAULT_BATCH_ROWS
    batch_size_bytes: int | None = None
    strict_batch_size: bool = False
    include_deleted: bool = False
    stats_callback: Callable[[Any], None] | None = None
    index: IndexPlan | None = None
    refined: ScanPlan | None = None
    only_indexed: bool = False

    @property
    def output_schema(self) -> pa.Schema:
        """The schema of the result."""
        return self.projection.schema

    @property
    def late_columns(self) -> tuple[Field, ...]:
        """The fields that are read after filtering, for the matching rows."""
        if self.predicate is None:
            return ()
        return tuple(field for field, shared in zip(self.projection.columns, self.shared) if shared is None)

    def for_keys(self) -> ScanPlan:
        """Return the plan that reads the `order` columns and row addresses, in scan order and without limit."""
        assert self.keys is not None
        shared = tuple(_index_of(field, self.filter_columns) for field in self.keys.columns)
        refined = None if self.refined is None else self.refined.for_keys()
        return replace(
            self,
            projection=self.keys,
            shared=shared,
            order=(),
            keys=None,
            limit=None,
            offset=0,
            stats_callback=None,
            refined=refined,
        )


def plan_scan(version: TableVersion, options: ScanOptions, computed: pa.Schema = NOT_COMPUTED) -> ScanPlan:
    """Check the options and return the plan.

    `computed` are virtual columns that the caller computes for the rows of the plan, which it then reads by address.

    Raises InvalidInputError and OutOfRangeError for invalid option values, ColumnNotFoundError, InvalidSqlError, and
    TypeError for arguments of a wrong type.
    """
    schema = version.schema
    projection = _project(version, options, computed)
    order = tuple(map(_ordering, options.order_by or ()))
    include_deleted = bool(options.include_deleted_rows)
    if include_deleted and "_rowid" not in projection.virtual:
        raise InvalidInputError("include_deleted_rows is set but with_row_id is false")
    as_bytes = _BLOB_HANDLING[options.blob_handling]
    predicate = None
    if options.filter is not None:
        predicate = resolve_filter(schema, options.filter, blobs_as_bytes=as_bytes, computed=computed)
    positions = _fragment_positions(version, options.fragments)
    row_ranges = _fragment_ranges(version, options)
    if predicate is not None and isinstance(predicate, expr.Literal):
        # A constant predicate requires no read: it is true for all rows or for no row.
        positions = positions if predicate.value.as_py() else ()
        predicate = None
    plan = ScanPlan(
        projection=projection,
        fragments=positions,
        row_ranges=row_ranges,
        order=order,
        keys=_keys(schema, order, computed),
        limit=_row_count("limit", options.limit),
        offset=_row_count("offset", options.offset) or 0,
        batch_rows=_batch_rows(options.batch_size),
        batch_size_bytes=_batch_bytes(options.batch_size_bytes),
        strict_batch_size=bool(options.strict_batch_size),
        include_deleted=include_deleted,
        stats_callback=options.scan_stats_callback,
    )
    if predicate is None:
        return plan
    index = _plan_indexes(version, predicate, options)
    refined = None
    if index is not None:
        refined = plan if index.refine is None else _with_filter(version, plan, index.refine, options, computed)
    return _with_filter(version, plan, predicate, options, computed, index, refined)


def _with_filter(
    version: TableVersion,
    plan: ScanPlan,
    predicate: expr.Expr,
    options: ScanOptions,
    computed: pa.Schema,
    index: IndexPlan | None = None,
    refined: ScanPlan | None = None,
) -> ScanPlan:
    """Return a plan with a filter. Early-materialized columns are read together with the filter columns."""
    columns, virtual = _filter_columns(version, predicate, _BLOB_HANDLING[options.blob_handling], computed)
    columns = _with_early(columns, _early(plan.projection.columns, options.late_materialization))
    return replace(
        plan,
        predicate=predicate,
        filter_columns=columns,
        filter_virtual=virtual,
        use_stats=options.use_stats is not False,
        shared=tuple(_index_of(field, columns) for field in plan.projection.columns),
        index=index,
        refined=refined,
        only_indexed=index is not None and bool(options.fast_search),
    )


def _plan_indexes(version: TableVersion, predicate: expr.Expr, options: ScanOptions) -> IndexPlan | None:
    """Return how indexes answer the filter. Indexes do not contain deleted rows."""
    if version.manifest.index_section is None or options.use_scalar_index is False or options.include_deleted_rows:
        return None
    from lancetable.index.planning import plan_indexes  # imported here, because most tables have no indexes

    return plan_indexes(version, predicate)


def _project(version: TableVersion, options: ScanOptions, computed: pa.Schema) -> Projection:
    if options.blob_handling not in _BLOB_HANDLING:
        known = ", ".join(sorted(name for name in _BLOB_HANDLING if name is not None))
        raise InvalidInputError(f"Invalid blob_handling: {options.blob_handling}. Expected one of: {known}")
    as_bytes = _BLOB_HANDLING[options.blob_handling]
    virtual = (("_rowid", options.with_row_id), ("_rowaddr", options.with_row_address))
    add = tuple(name for name, is_selected in virtual if is_selected)
    return projection_of(version, options.columns, add=add, blobs_as_bytes=as_bytes, computed=computed)


def _ordering(key: str | ColumnOrdering) -> ColumnOrdering:
    if isinstance(key, str):
        return ColumnOrdering(key)
    name = getattr(key, "column_name", None)
    if not isinstance(name, str):
        raise TypeError(f"order_by expects column names or ColumnOrdering, got {type(key).__name__}")
    return ColumnOrdering(name, bool(key.ascending), bool(key.nulls_first))


def _keys(schema: Schema, order: Sequence[ColumnOrdering], computed: pa.Schema) -> Projection | None:
    if not order:
        return None
    names = [ordering.column_name for ordering in order]
    return project(schema, list(dict.fromkeys(names)), add=[PHYSICAL_ADDRESS], computed=computed)


def _early(columns: Sequence[Field], late: bool | Sequence[str] | None) -> list[Field]:
    """Return the columns that `late_materialization` selects to be read together with the filter columns.

    By default, all columns are late. Late materialization has no extra cost, because the number of matches determines
    whether a column is read as a range or gathered by row.
    """
    if late is None or late is True:
        return []
    if late is False:
        return list(columns)
    if isinstance(late, str) or not isinstance(late, Sequence):
        raise TypeError(f"late_materialization must be a bool or a list of columns, got {type(late)}")
    return [field for field in columns if field.name not in late]


# --- filter ----------------------------------------------------------------------------------------------------------


def resolve_filter(
    schema: Schema, predicate: Filter, *, blobs_as_bytes: bool = False, computed: pa.Schema = NOT_COMPUTED
) -> expr.Expr:
    """Return the predicate as an expression over the columns of the table and `computed`.

    Raises InvalidSqlError, ColumnNotFoundError, and TypeError for an object of another type.
    """
    if isinstance(predicate, str):
        return expr.parse_predicate(predicate, evaluation_schema(schema, blobs_as_bytes, computed))
    if isinstance(predicate, pc.Expression):
        return expr.from_arrow_expression(predicate, evaluation_schema(schema, blobs_as_bytes, computed))
    if isinstance(predicate, expr.Expr):
        return predicate
    raise TypeError(f"a filter must be an SQL string or a pyarrow expression, not {type(predicate).__name__}")


def _filter_columns(
    version: TableVersion, predicate: expr.Expr, as_bytes: bool, computed: pa.Schema
) -> tuple[tuple[Field, ...], tuple[str, ...]]:
    names = expr.columns_of(predicate)
    virtual = tuple(name for name in names if name in expr.VIRTUAL_COLUMNS or name in computed.names)
    stored = tuple(name for name in names if name not in virtual)
    columns = version.schema.derive(
        ("filter columns", as_bytes, stored), lambda: read_set(version.schema, stored, blobs_as_bytes=as_bytes)
    )
    return columns, virtual


def _with_early(filter_columns: Sequence[Field], early: Sequence[Field]) -> tuple[Field, ...]:
    """Return the filter columns and the early columns.

    If the filter reads a part of a struct, an early column that contains this part replaces it. An early column that
    does not contain it becomes a late column.
    """
    columns = {field.id: field for field in filter_columns}
    for field in early:
        read = columns.get(field.id)
        if read is None or {part.id for part in read.walk()} <= {part.id for part in field.walk()}:
            columns[field.id] = field
    return tuple(columns.values())


def _index_of(field: Field, fields: Sequence[Field]) -> int | None:
    return next((index for index, other in enumerate(fields) if other is field), None)


# --- numbers ---------------------------------------------------------------------------------------------------------


def _fragment_positions(version: TableVersion, ids: Sequence[int] | None) -> tuple[int, ...]:
    fragments = version.manifest.fragments
    if ids is None:
        return tuple(range(len(fragments)))
    positions: list[int] = []
    for fragment_id in ids:
        position = fragments.position(_integer("fragments", fragment_id))
        if position is None:
            raise InvalidInputError(f"version {version.version} has no fragment {fragment_id}")
        positions.append(position)
    return tuple(positions)


def _fragment_ranges(version: TableVersion, options: ScanOptions) -> dict[int, Sequence[range]] | None:
    if not options.row_ranges:
        return None
    if options.limit is not None or options.offset or options.order_by:
        raise InvalidInputError("row_ranges cannot be combined with limit, offset or order_by")
    positions = _fragment_positions(version, list(options.row_ranges))
    return dict(zip(positions, options.row_ranges.values(), strict=True))


def _row_count(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    count = _integer(name, value)
    if count < 0:
        raise InvalidInputError(f"{name.capitalize()} must be non-negative")
    if count > _MAX_ROWS:
        raise OutOfRangeError(f"{name} {count} exceeds the range of int64")
    return count


def _batch_rows(value: int | None) -> int:
    if value is None:
        return DEFAULT_BATCH_ROWS
    rows = _integer("batch_size", value)
    if rows < 0:
        raise OutOfRangeError(f"batch_size must not be negative, got {rows}")
    if not 1 <= rows <= _MAX_BATCH_ROWS:
        raise InvalidInputError(f"batch_size must be between 1 and {_MAX_BATCH_ROWS}, got {rows}")
    return rows


def _batch_bytes(value: int | None) -> int | None:
    if value is None:
        return None
    size_bytes = _integer("batch_size_bytes", value)
    if size_bytes <= 0:
        raise InvalidInputError(f"batch_size_bytes must be positive, got {size_bytes}")
    return size_bytes


def _integer(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}") from None
