"""Row ids that stay when rows move, and the versions in which rows were made and changed. No I/O."""

from lancetable.rowids.index import RowIdIndex
from lancetable.rowids.sequence import RowIdSequence
from lancetable.rowids.versions import RowVersionSequence

__all__ = ["RowIdIndex", "RowIdSequence", "RowVersionSequence"]
