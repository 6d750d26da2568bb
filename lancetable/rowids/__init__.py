"""Stable row ids, and the versions in which rows were created and last updated. No I/O."""

from lancetable.rowids.index import RowIdIndex
from lancetable.rowids.row_id_sequence import RowIdSequence
from lancetable.rowids.row_versions import RowVersionSequence

__all__ = ["RowIdIndex", "RowIdSequence", "RowVersionSequence"]
