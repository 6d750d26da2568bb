"""What changed between two versions of a table, as users hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.errors import InvalidInputError
from lancetable.operation import Transaction
from lancetable.ops import diff
from lancetable.table import transactions
from lancetable.table.version import TableVersion, checkout

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DatasetDelta"]


class DatasetDelta:
    """The changes from one version (exclusive) to another (inclusive), told by the lineage of rows.

    A table without stable row ids keeps no lineage: there, `LanceDataset.diff` with a key finds the changes.
    """

    def __init__(self, version: TableVersion, begin: int, end: int) -> None:
        self._version, self._begin, self._end = version, begin, end

    def __repr__(self) -> str:
        return f"DatasetDelta(begin_version={self._begin}, end_version={self._end})"

    def list_transactions(self) -> list[Transaction]:
        """The transactions after the first version up to the last, oldest first.

        Raises VersionNotFoundError if one of the versions was cleaned up.
        """
        found = []
        for number in range(self._begin + 1, self._end + 1):
            table = checkout(self._version, number)
            transaction = transactions.read(table.store, table.base, table.file)
            if transaction is not None:
                found.append(Transaction.from_format(transaction))
        return found

    def get_inserted_rows(self) -> pa.RecordBatchReader:
        """Rows created in between: all columns, `_rowid` and the two versions of each row."""
        return diff.inserted_rows(self._at_end(), self._begin, self._end)

    def get_updated_rows(self) -> pa.RecordBatchReader:
        """Rows that were there before and were changed in between, as they are at the end, with the same columns."""
        return diff.updated_rows(self._at_end(), self._begin, self._end)

    def get_deleted_row_ids(self) -> pa.RecordBatchReader:
        """The `_rowid` of every row that is gone. Raises InvalidOperationError without stable row ids."""
        return diff.deleted_row_ids(checkout(self._version, self._begin), self._at_end())

    def _at_end(self) -> TableVersion:
        return checkout(self._version, self._end)


def delta_of(
    version: TableVersion, compared_against: int | None, begin_version: int | None, end_version: int | None
) -> DatasetDelta:
    """The delta a call asks for. Raises InvalidInputError unless either form of arguments is complete."""
    if begin_version is None and end_version is None:
        if compared_against is None:
            raise InvalidInputError("Must specify either compared_against or both begin_version and end_version")
        return DatasetDelta(version, compared_against, version.version)
    if begin_version is None or end_version is None:
        raise InvalidInputError("Must specify both begin_version and end_version")
    return DatasetDelta(version, begin_version, end_version)
