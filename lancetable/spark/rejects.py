"""Rejected rows of a pipeline: a table of rows that cannot be merged, each with its file and the reason.

    records that do not parse ──────────────────────────────┐
    rows of `clean` ─► null keys, casts ─► casts of Arrow ──┴─► rejects, with the number of the batch
                                              └─► other rows, merged afterwards

Executors write the rejects before the batch is merged. If the merge does not succeed, the batch is repeated, and its
rejects are replaced, because `clean`, the schema or the table may have changed. A batch that was merged is not read
again. Batches of a query have no number, so only rejects that the table does not contain yet are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial, reduce

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the conventional alias
from pyspark.sql.types import StringType, StructField, StructType

from lancetable.commit.idempotency import is_done
from lancetable.errors import DatasetNotFoundError, InvalidOperationError, LanceError
from lancetable.spark.casts import cast_problems, cast_source
from lancetable.spark.file_batches import FileBatch
from lancetable.spark.pipeline_sources import FILE
from lancetable.spark.schema_evolution import Evolution
from lancetable.spark.sql import quote_name
from lancetable.spark.table import SparkTable
from lancetable.spark.task_runner import init_worker
from lancetable.spark.types import convert_batch, spark_schema, wire_schema
from lancetable.spark.write_table import write_table

_REASON = "_lancetable_reason"
_SHOWN_ROWS, _SHOWN_CHARACTERS = 3, 200
_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


@dataclass(frozen=True)
class Rejects:
    """Rejects of one batch, and the table to which they are written. `txn` is None for a query."""

    uri: str
    pipeline: str
    txn: tuple[str, int] | None
    max_share: float | None
    storage_options: Mapping[str, str] | None

    @contextmanager
    def removed(
        self, batch: FileBatch, rows: DataFrame, schema: pa.Schema, required: Sequence[str], *, persist: bool
    ) -> Iterator[tuple[DataFrame, int]]:
        """Write the rejects of a batch; yield the other rows with the types of the table, and the number of rejects.

        Parameters
        ----------
        batch
            The batch, which contains the unparsable records.
        rows
            The other rows, as returned by `clean`, with the column `FILE` if the files are known.
        schema
            The fields of the table that the rows have.
        required
            Columns in which nulls are rejected, in addition to non-nullable columns of the table.
        persist
            Persist the rows while the context is open.

        Raises
        ------
        InvalidOperationError
            If the share of rejects exceeds `max_share`. In this case, nothing is written.
        """
        names = [name for name in rows.columns if name != FILE]
        if FILE not in rows.columns:
            rows = rows.withColumn(FILE, F.lit(None).cast("string"))
        nulls = [
            F.when(F.col(quote_name(name)).isNull(), f"{name} is null")
            for name in names
            if name in required or not schema.field(name).nullable
        ]
        reason = F.concat_ws("; ", *nulls, *cast_problems(rows, schema))
        checked = rows.withColumn(_REASON, F.nullif(reason, F.lit("")))
        with ExitStack() as stack:
            if persist:
                stack.callback(checked.persist().unpersist)
            total, count = checked.agg(F.count(F.lit(1)), F.count(_REASON)).collect()[0]
            rejected = [*batch.rejected, _rejected(checked, names)]
            good = checked.where(F.col(_REASON).isNull())
            good = cast_source(good, schema, Evolution("fixed").widen_call, keep=[FILE])
            if wire_schema(spark_schema(schema)) != schema:  # tasks cast again, for example arrays to vectors
                with_reason = StructType([*good.schema.fields, StructField(_REASON, StringType())])
                checked = good.mapInArrow(partial(_with_reasons, schema=schema), with_reason)
                stack.callback(checked.persist().unpersist)
                count += checked.agg(F.count(_REASON)).collect()[0][0]
                rejected.append(_rejected(checked, names))
                good = checked.where(F.col(_REASON).isNull())
            rejects, count = reduce(DataFrame.union, rejected), count + batch.rows_unparsed
            self._check_share(rejects, count, total + batch.rows_unparsed)
            self._write(rejects, count)
            yield good.select([quote_name(name) for name in schema.names]), count

    def _check_share(self, rejects: DataFrame, count: int, total: int) -> None:
        if self.max_share is None or count <= self.max_share * total:
            return
        shown = [
            f"{str(row['row'])[:_SHOWN_CHARACTERS]!r} of {row['file'] or 'the source'} ({row['reason']})"
            for row in rejects.limit(_SHOWN_ROWS).collect()
        ]
        raise InvalidOperationError(
            f"{count} of {total} rows are rejected, more than max_reject_share={self.max_share}, for example"
            f" {', '.join(shown)}. Nothing of the batch is merged or written to {self.uri}: correct the rows, the"
            " schema or clean, or raise max_reject_share"
        )

    def _write(self, rejects: DataFrame, count: int) -> None:
        """Write the rejects of the batch. They replace those of an attempt whose merge did not succeed."""
        app, number = self.txn or (None, None)
        columns = {"pipeline": self.pipeline, "stream": app, "batch": number, "time": datetime.now(timezone.utc)}
        types = {"pipeline": "string", "stream": "string", "batch": "bigint", "time": "timestamp"}
        values = [F.lit(value).cast(types[name]).alias(name) for name, value in columns.items()]
        rejects, txn = rejects.select(*values, "file", "row", "reason"), self.txn
        try:
            table = SparkTable.for_path(rejects.sparkSession, self.uri, storage_options=self.storage_options)
        except DatasetNotFoundError:
            pass  # it will be created
        else:
            if self.txn is None:
                rejects = rejects.join(table.to_df(["pipeline", "row"]), ["pipeline", "row"], "left_anti")
                rejects = rejects.select(*columns, "file", "row", "reason")
                count = count and rejects.count()
            elif is_done(table.dataset.config(), self.txn):
                quoted = str(app).replace("'", "''")
                table.delete(f"stream = '{quoted}' AND batch = {number}")
                txn = None
        if count:
            write_table(rejects, self.uri, "append", storage_options=self.storage_options, txn=txn)


def _rejected(checked: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the rows with a reason as columns `file`, `row` and `reason`."""
    row = F.to_json(F.struct(*[F.col(quote_name(name)) for name in names]), _JSON)
    return checked.where(F.col(_REASON).isNotNull()).select(
        F.col(FILE).alias("file"), row.alias("row"), F.col(_REASON).alias("reason")
    )


def _with_reasons(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    init_worker()
    for batch in batches:
        yield batch.append_column(_REASON, pa.array(_reasons(batch, schema), pa.string()))


def _reasons(batch: pa.RecordBatch, schema: pa.Schema) -> list[str | None]:
    """Return, for each row, the reason why Arrow cannot cast it to the types of the table, or None if it can."""
    try:
        convert_batch(batch, schema)
    except LanceError as error:
        if batch.num_rows == 1:
            return [str(error)]
        middle = batch.num_rows // 2
        return _reasons(batch.slice(0, middle), schema) + _reasons(batch.slice(middle), schema)
    return [None] * batch.num_rows
