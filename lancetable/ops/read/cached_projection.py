"""Projections that are cached with a schema, because building one costs more than reading a few rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lancetable.ops.read.projection import NOT_COMPUTED, Columns, Projection, project
from lancetable.table.version import TableVersion


def projection_of(
    version: TableVersion,
    columns: Columns,
    *,
    add: Sequence[str] = (),
    blobs_as_bytes: bool = False,
    whole_columns: bool = False,
    computed: pa.Schema = NOT_COMPUTED,
) -> Projection:
    """Return the projection of requested columns, with the arguments and errors of `project`.

    Expressions are not cached, because their values may depend on the current time, nor are projections with computed
    columns, which searches request.
    """

    def build() -> Projection:
        return project(
            version.schema,
            columns,
            add=add,
            blobs_as_bytes=blobs_as_bytes,
            whole_columns=whole_columns,
            computed=computed,
        )

    if len(computed):
        return build()
    if columns is not None and not isinstance(columns, (list, tuple)):
        return build()
    requested = None if columns is None else tuple(columns)
    return version.schema.derive(("projection", requested, tuple(add), blobs_as_bytes, whole_columns), build)
