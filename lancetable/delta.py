"""Changes between two versions of a table, in the form of the public API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.errors import InvalidInputError, InvalidOperationError
from lancetable.format import transaction as tx
from lancetable.operation import Transaction
from lancetable.ops.read import diff
from lancetable.table import transactions
from lancetable.table.version import TableVersion, checkout

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DatasetDelta"]


class DatasetDelta:
    """The changes from one version (exclusive) to another (inclusive), based on row lineage.

    A table without stable row ids has no lineage; use `LanceDataset.diff` with a key instead.

    Examples
    --------
    >>> delta = ds.delta(compared_against=1)
    >>> delta.get_inserted_rows().read_all().select(["id", "carrier"]).to_pydict()
    {'id': [7, 8], 'carrier': ['AA', 'UA']}
    >>> [type(transaction.operation).__name__ for transaction in delta.list_transactions()]
    ['Append']
    """

    def __init__(self, version: TableVersion, begin: int, end: int) -> None:
        self._version, self._begin, self._end = version, begin, end

    def __repr__(self) -> str:
        return f"DatasetDelta(begin_version={self._begin}, end_version={self._end})"

    def list_transactions(self) -> list[Transaction]:
        """Return the transactions after the first version up to the last, oldest first.

        Versions without a stored transaction are left out. Raises VersionNotFoundError if a version was cleaned up.
        """
        stored = (transaction_of(self._version, number) for number in range(self._begin + 1, self._end + 1))
        return [Transaction.from_format(transaction) for transaction in stored if transaction is not None]

    def get_inserted_rows(self) -> pa.RecordBatchReader:
        """Return the created rows: all columns, `_rowid` and the two versions of each row.

        Raises InvalidOperationError without stable row ids, VersionNotFoundError.
        """
        return diff.inserted_rows(self._with_lineage("inserted rows"), self._begin, self._end)

    def get_updated_rows(self) -> pa.RecordBatchReader:
        """Return the rows that existed before and were updated, with their final values and the same columns.

        Raises InvalidOperationError without stable row ids, VersionNotFoundError.
        """
        return diff.updated_rows(self._with_lineage("updated rows"), self._begin, self._end)

    def get_deleted_row_ids(self) -> pa.RecordBatchReader:
        """Return the `_rowid` of deleted rows.

        Raises InvalidOperationError without stable row ids, VersionNotFoundError.
        """
        return diff.deleted_row_ids(checkout(self._version, self._begin), checkout(self._version, self._end))

    def _with_lineage(self, result: str) -> TableVersion:
        """Return the last version if it has stable row ids. Without them, every row counts as created in version 1.

        Raises
        ------
        InvalidOperationError
            If it has none.
        """
        version = checkout(self._version, self._end)
        if not version.manifest.has_stable_row_ids:
            raise InvalidOperationError(
                f"{result} require stable row ids, which {version.uri} does not have; compare versions by key with"
                " LanceDataset.diff"
            )
        return version


def transaction_of(version: TableVersion, number: int) -> tx.Transaction | None:
    """Return the transaction of another version of a table, None if its writer stored none."""
    table = checkout(version, number)
    return transactions.read(table.store, table.base, table.file)


def delta_of(
    version: TableVersion, compared_against: int | None, begin_version: int | None, end_version: int | None
) -> DatasetDelta:
    """Return the delta for the arguments of `LanceDataset.delta`.

    Raises
    ------
    InvalidInputError
        If neither form of the arguments is complete, or the first version is after the last.
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
        raise InvalidInputError(f"begin_version {begin_version} is after end_version {end_version}; swap them")
    return DatasetDelta(version, begin_version, end_version)
