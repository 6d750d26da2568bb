"""SQL queries over one dataset, run by DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lancetable.errors import InvalidInputError, InvalidSqlError, UnsupportedFeatureError

if TYPE_CHECKING:
    import pyarrow as pa

    from lancetable.dataset import LanceDataset


@dataclass(frozen=True)
class SqlQueryBuilder:
    """A query, and the options for scanning the dataset in it. `build` returns an executable query.

    Examples
    --------
    >>> query = ds.sql("SELECT max(distance) AS farthest FROM flights").table_name("flights").build()
    >>> query.to_batch_records()[0].to_pydict()
    {'farthest': [2586]}
    """

    dataset: LanceDataset
    sql: str
    name: str = "dataset"
    row_id: bool = False
    row_addr: bool = False
    rows: int | None = None
    blobs: str | None = None

    def table_name(self, table_name: str) -> SqlQueryBuilder:
        """Set the name of the dataset in the query; "dataset" by default.

        Raises
        ------
        InvalidInputError
            If the name is empty.
        """
        if not table_name:
            raise InvalidInputError("table_name must not be empty")
        return replace(self, name=table_name)

    def with_row_id(self, with_row_id: bool = True) -> SqlQueryBuilder:
        """Add the column `_rowid` to the dataset in the query."""
        return replace(self, row_id=with_row_id)

    def with_row_addr(self, with_row_addr: bool = True) -> SqlQueryBuilder:
        """Add the column `_rowaddr` to the dataset in the query."""
        return replace(self, row_addr=with_row_addr)

    def batch_size(self, batch_size: int) -> SqlQueryBuilder:
        """Set the number of rows per batch of the result.

        Raises
        ------
        InvalidInputError
            If the number is below 1.
        """
        if batch_size < 1:
            raise InvalidInputError(f"batch_size must be at least 1, got {batch_size}")
        return replace(self, rows=batch_size)

    def batch_size_bytes(self, batch_size_bytes: int) -> SqlQueryBuilder:
        """Do nothing; accepted for compatibility, because batches of the result are limited by rows."""
        return self

    def blob_handling(self, blob_handling: str) -> SqlQueryBuilder:
        """Set the form of blob columns: "all_binary", "blobs_descriptions" or "all_descriptions"."""
        return replace(self, blobs=blob_handling)

    def build(self) -> SqlQuery:
        """Return the executable query."""
        return SqlQuery(self)


class SqlQuery:
    """A query that can be run any number of times."""

    def __init__(self, builder: SqlQueryBuilder) -> None:
        self._builder = builder

    def __repr__(self) -> str:
        return f"SqlQuery({self._builder.sql!r})"

    def to_batch_records(self) -> list[pa.RecordBatch]:
        """Run the query and return its result. Raises InvalidSqlError, UnsupportedFeatureError without DuckDB."""
        return list(self.to_stream_reader())

    def to_stream_reader(self) -> pa.RecordBatchReader:
        """Run the query and stream its result.

        Raises
        ------
        InvalidSqlError
            If the query is invalid or fails.
        UnsupportedFeatureError
            If DuckDB is missing.
        """
        with self._relation() as relation:
            fetch = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader  # renamed in DuckDB 1.5
            return fetch(self._builder.rows or 8192)

    def explain_plan(self) -> str:
        """Return DuckDB's plan of the query.

        Raises
        ------
        InvalidSqlError
            If the query is invalid or fails.
        UnsupportedFeatureError
            If DuckDB is missing.
        """
        with self._relation() as relation:
            return str(relation.explain())

    @contextmanager
    def _relation(self) -> Iterator[Any]:
        """Yield the relation of the query, and raise errors of DuckDB as InvalidSqlError.

        Raises
        ------
        InvalidSqlError
            If the query is invalid or fails.
        UnsupportedFeatureError
            If DuckDB is missing.
        """
        try:
            import duckdb
        except ImportError as error:
            raise UnsupportedFeatureError(
                "SQL queries require DuckDB: run pip install 'lancetable[sql]'", feature="SQL queries without DuckDB"
            ) from error
        query = self._builder
        source: Any = query.dataset
        # The dataset itself supports projection and filter pushdown; the extra columns require a scan.
        if query.row_id or query.row_addr or query.blobs:
            source = query.dataset.scanner(
                with_row_id=query.row_id or None, with_row_address=query.row_addr or None, blob_handling=query.blobs
            ).to_reader()
        try:
            connection = duckdb.connect()
            connection.register(query.name, source)
            relation = connection.sql(query.sql)
            if relation is None:
                raise InvalidSqlError("only queries can be run on a dataset")
            yield relation
        except duckdb.Error as error:
            raise InvalidSqlError(str(error)) from error
