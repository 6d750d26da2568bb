"""`write_table`, which supports all four write modes of Spark. Spark passes only two of them to a data source."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from lancetable import telemetry
from lancetable.argument_validation import check_choice
from lancetable.errors import AlreadyExistsError, DatasetNotFoundError, LanceError
from lancetable.spark.options import STORAGE_PREFIX, VECTOR_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

Mode = Literal["errorifexists", "error", "ignore", "append", "overwrite"]


def write_table(
    df: DataFrame,
    path: str,
    mode: Mode = "errorifexists",
    *,
    vector_columns: Mapping[str, int] | None = None,
    max_rows_per_file: int | None = None,
    data_storage_version: str | None = None,
    enable_stable_row_ids: bool = False,
    storage_options: Mapping[str, str] | None = None,
    txn: tuple[str, int] | None = None,
    merge_schema: bool = False,
) -> None:
    """Write a frame to a table. Can be called in any thread.

    Each partition of the frame becomes a data file. Use `repartition` for a frame with many small partitions.

    Parameters
    ----------
    df
        The frame.
    path
        Address of the table.
    mode
        As in Spark: "errorifexists" and "ignore" create a table, "append" creates or extends one, and "overwrite"
        replaces rows and schema, but older versions are kept.
    vector_columns
        Dimensions, by name, of the array columns that a new table stores as vectors.
    max_rows_per_file, data_storage_version
        Limit of a data file, and data format of a new table.
    enable_stable_row_ids
        Create a new table with stable row ids, which rows keep when they are updated or moved. `SparkTable.changes`
        needs them unless a key is passed.
    storage_options
        Options of the store.
    txn
        Name of an application and number of its change. A change that is already committed is not repeated. A number
        below that of the last change is skipped too, with a warning.
    merge_schema
        Add columns that the table lacks, and widen its types: int to long, float to double, int to double, date to
        timestamp_ntz. Only for appends. The schema changes are committed before the rows.

    Raises
    ------
    InvalidInputError
        If the mode is unknown.
    AlreadyExistsError
        If the table exists and the mode is "errorifexists".
    LanceError
        If this process cannot access the table and the mode is "errorifexists" or "ignore".
    Exception
        An error of Spark. Its message contains SchemaMismatchError if rows do not fit the table.

    Examples
    --------
    >>> write_table(spark.range(10), "s3://bucket/t.lance", "append", txn=("daily", 7))  # doctest: +SKIP
    """
    check_choice("mode", mode, Mode)
    from lancetable.commit.commit_log import log_commit
    from lancetable.delta import transaction_of
    from lancetable.spark import register
    from lancetable.spark.writer import log_if_repeated
    from lancetable.table.version import open_version

    register(df.sparkSession)
    creates = mode in ("errorifexists", "error", "ignore")
    last = 0
    try:
        existing = open_version(path, storage_options=storage_options)
    except DatasetNotFoundError:
        pass  # the table will be created
    except LanceError as error:  # a client of Connect may not reach the table
        if creates:
            raise
        logger.debug("%s: %s", path, error, extra=telemetry.fields("spark.table_not_opened", path))
    else:
        if creates and mode != "ignore":
            problem = f"Dataset already exists: {path}; choose mode='append' or 'overwrite'"
            raise AlreadyExistsError(problem, path=path)
        if creates:
            logger.info(
                "%s: the table exists, so mode 'ignore' writes nothing",
                path,
                extra=telemetry.fields("spark.write_ignored", path),
            )
            return
        last = existing.version
        log_if_repeated(existing, txn)  # Spark does not forward the log of the writer
    writer = df.write.format("lance").mode("overwrite" if mode == "overwrite" else "append")
    app, number = (None, None) if txn is None else txn
    options = {
        **{f"{VECTOR_PREFIX}{name}": size for name, size in (vector_columns or {}).items()},
        **{f"{STORAGE_PREFIX}{key}": value for key, value in (storage_options or {}).items()},
        "max_rows_per_file": max_rows_per_file,
        "data_storage_version": data_storage_version,
        "enable_stable_row_ids": "true" if enable_stable_row_ids else None,
        "txnAppId": app,
        "txnVersion": number,
        "create": "true" if creates else None,
        "mergeSchema": merge_schema or None,
    }
    given = {name: str(value) for name, value in options.items() if value is not None}
    try:
        writer.options(**given).save(str(path))
    except Exception as error:
        # Spark keeps the message of an error of a data source, but not its type.
        if not creates or "AlreadyExistsError" not in str(error):
            raise
        if mode != "ignore":
            raise AlreadyExistsError(f"Dataset already exists: {path}; choose another mode", path=path) from error
    try:
        newest = open_version(path, storage_options=storage_options)
        for number in range(last + 1, newest.version + 1):
            if (committed := transaction_of(newest, number)) is not None:
                log_commit(newest.uri, number, committed.operation)
    except LanceError as error:
        logger.debug("%s: %s", path, error, extra=telemetry.fields("spark.table_not_opened", path))
