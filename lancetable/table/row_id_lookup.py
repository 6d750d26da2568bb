"""Stable row ids of a version: the sequence of one fragment, and the way back from an id to its row.

    fragment 0   ids 0 1 2 3   row 2 deleted         index   0 -> 0:0   1 -> 0:1   3 -> 0:3
    fragment 1   ids 2 4                                     2 -> 1:0   4 -> 1:1        (2 was updated: it moved)

Without stable row ids an id is an address, and nothing here is needed. Source: protos/rowids.proto, DataFragment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

__all__ = ["row_id_index", "row_ids", "row_versions"]
