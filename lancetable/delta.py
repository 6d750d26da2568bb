"""What changed between two versions of a table, as users hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.errors import InvalidInputError, InvalidOperationError
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

        Versions whose writer kept no transaction are left out. Raises VersionNotFoundError if one of the versions was
        cleaned up.
        """
        found = []
        for number in range(self._begin + 1, self._end + 1):
            table = checkout(self._version, number)
            transaction = transactions.read(table.store, table.base, table.file)
            if transaction is not None:
                found.append(Transaction.from_format(transaction))
        return found

    def get_inserted_rows(self) -> pa.RecordBatchReader:
        """Rows created in between: all columns, `_rowid` and the two versions of each row.

        Raises InvalidOperationError without stable row ids.
        """
        return diff.inserted_rows(self._with_lineage("inserted rows"), self._begin, self._end)

    def get_updated_rows(self) -> pa.RecordBatchReader:
        """Rows that were there before and were changed in between, as they are at the end, with the same columns.

        Raises InvalidOperationError without stable row ids.
        """
        return diff.updated_rows(self._with_lineage("updated rows"), self._begin, self._end)

    def get_deleted_row_ids(self) -> pa.RecordBatchReader:
        """The `_rowid` of every row that is gone. Raises InvalidOperationError without stable row ids."""
        return diff.deleted_row_ids(checkout(self._version, self._begin), self._at_end())

    def _with_lineage(self, what: str) -> TableVersion:
        """Return the last version, if it has stable row ids: without them every row counts as created in version 1."""
        version = self._at_end()
        if not version.manifest.has_stable_row_ids:
            raise InvalidOperationError(
                f"{what} require stable row ids, which {version.uri} does not have; compare versions by key with"
                " LanceDataset.diff"
            )
        return version

    def _at_end(self) -> TableVersion:
        return checkout(self._version, self._end)


def delta_of(
    version: TableVersion, compared_against: int | None, begin_version: int | None, end_version: int | None
) -> DatasetDelta:
    """The delta a call asks for.

    Raises InvalidInputError unless either form of arguments is complete, and for a first version after the last.
    """
    if begin_version is None and end_version is None:
        if compared_against is None:
            raise InvalidInputError("Must specify either compared_against or both begin_version and end_version")
        if compared_against > version.version:
            raise InvalidInputError(
                f"compared_against {compared_against} is after the version of this dataset, {version.version}; call"
                " checkout_latest or checkout_version first"
            )
        return DatasetDelta(version, compared_against, version.version)
    if begin_version is None or end_version is None:
        raise InvalidInputError("Must specify both begin_version and end_version")
    if begin_version > end_version:
        raise InvalidInputError(f"begin_version {begin_version} is after end_version {end_version}; exchange them")
    return DatasetDelta(version, begin_version, end_version)
