"""`write_table`: a frame written with each of Spark's four modes, of which the data source gets only two."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from lancetable.commit.idempotency import is_done
from lancetable.errors import AlreadyExistsError, DatasetNotFoundError, InvalidInputError, LanceError
from lancetable.spark.batch_writer import log_skipped
from lancetable.spark.options import STORAGE_PREFIX, VECTOR_PREFIX
from lancetable.table.version import open_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Mode", "write_table"]

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
    storage_options: Mapping[str, str] | None = None,
    txn: tuple[str, int] | None = None,
) -> None:
    """Write a frame as a table, through Spark's own write of the data source.

    `mode` is Spark's: "errorifexists" and "ignore" make a table where none is, "append" makes or extends one,
    "overwrite" replaces rows and schema, older versions stay. `vector_columns`, dimensions by column name, are stored
    as vectors. `txn`, an application and the number of its change, makes a repeated write do nothing; so does a number
    below that of the last change, with a warning. Every thread may call this.

    One data file is written for each partition of the frame: `repartition` it where that makes too many. Raises
    AlreadyExistsError; SchemaMismatchError for rows that do not fit, through Spark.
    """
    if mode not in ("errorifexists", "error", "ignore", "append", "overwrite"):
        raise InvalidInputError(f"mode is errorifexists, ignore, append or overwrite, not {mode!r}")
    from lancetable.spark import register

    register(df.sparkSession)
    creates = mode in ("errorifexists", "error", "ignore")
    if creates and _exists(path, storage_options):
        if mode == "ignore":
            logger.info("%s: there is a table, so mode 'ignore' writes nothing", path)
            return
        raise AlreadyExistsError(f"Dataset already exists: {path}; choose mode='append' or 'overwrite'", path=path)
    if txn is not None and not creates:
        _log_if_skipped(path, storage_options, txn)
    writer = df.write.format("lance").mode("overwrite" if mode == "overwrite" else "append")
    options: dict[str, object] = {f"{VECTOR_PREFIX}{name}": size for name, size in (vector_columns or {}).items()}
    options.update({f"{STORAGE_PREFIX}{key}": value for key, value in (storage_options or {}).items()})
    if max_rows_per_file is not None:
        options["max_rows_per_file"] = max_rows_per_file
    if data_storage_version is not None:
        options["data_storage_version"] = data_storage_version
    if txn is not None:
        options["txnAppId"], options["txnVersion"] = txn
    if creates:
        options["create"] = "true"
    for name, value in options.items():
        writer = writer.option(name, str(value))
    try:
        writer.save(str(path))
    except Exception as error:
        # Spark passes the message of an error of a data source, not its type.
        if not creates or "AlreadyExistsError" not in str(error):
            raise
        if mode != "ignore":
            raise AlreadyExistsError(f"Dataset already exists: {path}", path=path) from error


def _log_if_skipped(path: str, storage_options: Mapping[str, str] | None, txn: tuple[str, int]) -> None:
    """Log a skipped change in this process too, because Spark keeps the log of the writer to itself."""
    try:
        config = open_version(path, storage_options=storage_options).manifest.config
    except LanceError as error:  # a client of Connect may not reach the table
        logger.debug("%s: %s", path, error)
        return
    if is_done(config, txn):
        log_skipped(config, txn, path)


def _exists(path: str, storage_options: Mapping[str, str] | None) -> bool:
    try:
        open_version(path, storage_options=storage_options)
    except DatasetNotFoundError:
        return False
    return True
