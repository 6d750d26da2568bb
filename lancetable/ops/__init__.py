"""The operations, one module each, imported on first use: `ops.delete`, `ops.scan`. A program uses few of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.lazy import lazy_names

if TYPE_CHECKING:
    from lancetable.ops.change import delete as delete
    from lancetable.ops.change import update as update
    from lancetable.ops.maintain import cleanup as cleanup
    from lancetable.ops.maintain import compact as compact
    from lancetable.ops.maintain import drop as drop
    from lancetable.ops.maintain import list_files as list_files
    from lancetable.ops.maintain import migrate as migrate
    from lancetable.ops.maintain import stats as stats
    from lancetable.ops.maintain import validate as validate
    from lancetable.ops.read import blobs as blobs
    from lancetable.ops.read import diff as diff
    from lancetable.ops.read import explain as explain
    from lancetable.ops.read import matching_rows as matching_rows
    from lancetable.ops.read import scan as scan
    from lancetable.ops.read import take as take
    from lancetable.ops.refs import branches as branches
    from lancetable.ops.refs import clone as clone
    from lancetable.ops.refs import tags as tags
    from lancetable.ops.schema import evolution as evolution
    from lancetable.ops.schema import joined_columns as joined_columns
    from lancetable.ops.schema import new_columns as new_columns
    from lancetable.ops.schema import settings as settings

__getattr__ = lazy_names(
    __name__,
    {
        "lancetable.ops.change": "delete update",
        "lancetable.ops.maintain": "cleanup compact drop list_files migrate stats validate",
        "lancetable.ops.read": "blobs diff explain matching_rows scan take",
        "lancetable.ops.refs": "branches clone tags",
        "lancetable.ops.schema": "evolution joined_columns new_columns settings",
    },
)
