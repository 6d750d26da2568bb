"""Operations on tables: reads, writes, row and schema changes, maintenance, tags, branches and clones.

Each operation is a module, such as `ops.delete`. It is imported on first use, because most programs use few operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.lazy import lazy_names

if TYPE_CHECKING:
    from lancetable.ops.change import delete, update
    from lancetable.ops.maintain import cleanup, compact, drop, list_files, migrate, stats, validate
    from lancetable.ops.read import blobs, diff, explain, matching_rows, nearest, scan, take
    from lancetable.ops.refs import branches, clone, restore, tags
    from lancetable.ops.schema import alter_columns, merge_columns, new_columns, settings

__getattr__ = lazy_names(
    __name__,
    {
        "lancetable.ops.change": "delete update",
        "lancetable.ops.maintain": "cleanup compact drop list_files migrate stats validate",
        "lancetable.ops.read": "blobs diff explain matching_rows nearest scan take",
        "lancetable.ops.refs": "branches clone restore tags",
        "lancetable.ops.schema": "alter_columns merge_columns new_columns settings",
    },
)
