"""Batches of files, as a pipeline reads them.

A Spark stream finds the names of new files, each of them once, and the files of a batch are read as a batch:

    stream of file names ─► names of a batch ─► schema ─► records ─┬─► rows
    (Spark's checkpoint)                       by header           └─► counts of values that do not parse, by column
                                               or inferred

So the schema is compared with the headers of the files that it is used for, and all options of `spark.read` are known.
Spark assigns CSV columns by position. It is made to compare each header with the schema, at no cost; only when they
differ, each file is read by its own header.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  # as every Spark user writes it
from pyspark.sql.types import StringType, StructField, StructType

from lancetable.errors import InvalidInputError, InvalidOperationError
from lancetable.spark.verbs import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lancetable.spark.sources import Files

__all__ = ["FileBatch", "open_batch"]

_CORRUPT = "_lancetable_corrupt_record"
_WITH_CORRUPT_RECORDS = ("csv", "json", "xml")
_SHOWN_CHARACTERS, _SHOWN_FILES = 200, 3


@dataclass(frozen=True)
class FileBatch:
    """The rows of a batch of files, and the numbers of records and of values by column that do not parse."""

    rows: DataFrame
    rows_unparsed: int = 0
    unparsed: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Part:
    """Files of one header: their columns in the order of the files, and the names of those that the user wants.

    `corrupt` names the column with the text of records that do not parse, None if they are not looked for.
    """

    records: DataFrame
    wanted: list[str]
    corrupt: str | None


@contextmanager
def open_batch(
    source: Files, spark: SparkSession, names: DataFrame, inferred: dict[str, StructType]
) -> Iterator[FileBatch]:
    """Read the files of a batch, whose rows are persisted within the context if they have to be parsed.

    Parameters
    ----------
    source
        The folder and how to read it.
    spark
        The session of the batch.
    names
        A batch of `Files.stream`.
    inferred
        The schema that was inferred in this run, by format; filled by the first call. It is inferred after the run has
        listed its files, so that it covers all of them.

    Raises
    ------
    InvalidInputError
        If the schema has a column that the header of a file does not have.
    InvalidOperationError
        If more records do not parse than `Files.max_unparsed`.
    """
    paths = [row[0] for row in names.collect()]
    reader = _Reader(source, spark, inferred)
    with ExitStack() as persisted:
        try:
            batch = _counted(source, [reader.part(paths)], persisted, paths)
        except Exception:  # Spark's class for a header that differs is another one in each release and on Connect
            parts = reader.parts_by_header(paths) if source.has_header else []
            if len(parts) < 2:
                raise
            batch = _counted(source, parts, persisted, paths)
        yield batch


def _counted(source: Files, parts: list[_Part], persisted: ExitStack, paths: Sequence[str]) -> FileBatch:
    """Return the rows of all parts, once all files with values to parse are parsed."""
    total, values, frames = 0, defaultdict[str, int](int), []
    for part in parts:
        records = part.records
        if part.corrupt is not None or source.has_header:
            records.persist()
            persisted.callback(records.unpersist)
        if part.corrupt is not None:
            text = F.col(quoted(part.corrupt))
            broken = records.where(text.isNotNull())
            count = broken.count()
            total += count
            if count:
                found = _unparsed_values(source, broken, part.corrupt)
                for name in part.wanted:
                    values[name] += found.get(name, 0)
                if source.max_unparsed is not None and total > source.max_unparsed:
                    example = str(broken.select(text).limit(1).collect()[0][0])
                    raise _too_many(source, total, values, example, paths)
            if source.option("mode").upper() == "DROPMALFORMED":
                records = records.where(text.isNull())
        elif source.has_header:
            records.count()
        frames.append(records.select(*[F.col(quoted(name)) for name in part.wanted]))
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    return FileBatch(rows, total, {name: count for name, count in values.items() if count})


def _too_many(
    source: Files, total: int, values: dict[str, int], example: str, paths: Sequence[str]
) -> InvalidOperationError:
    shown = ", ".join(f"{name}: {count}" for name, count in values.items() if count) or "no single column"
    more = f" and {len(paths) - _SHOWN_FILES} more" if len(paths) > _SHOWN_FILES else ""
    return InvalidOperationError(
        f"{total} records of {', '.join(paths[:_SHOWN_FILES])}{more} do not parse (values by column: {shown}), more"
        f" than max_unparsed={source.max_unparsed}, for example {example[:_SHOWN_CHARACTERS]!r}: correct the files, the"
        " schema or the options, or raise max_unparsed to store null for such values"
    )


def _unparsed_values(source: Files, broken: DataFrame, corrupt: str) -> dict[str, int]:
    """Return by column how many values of broken records are null although the record has a text for them."""
    names = [name for name in broken.columns if name != corrupt]
    text = F.col(quoted(corrupt))
    options = {name: str(value) for name, value in source.options.items() if name.lower() not in ("mode", "header")}
    if source.kind == "csv":
        parsed = F.from_csv(text, ", ".join(f"{quoted(name)} string" for name in names), options)
    elif source.kind == "json":
        parsed = F.from_json(text, StructType([StructField(name, StringType()) for name in names]), options)
    else:
        return {}
    nulls = [F.col(quoted(name)).isNull().alias(f"null_{number}") for number, name in enumerate(names)]
    counts = [
        F.count_if(F.col(f"null_{number}") & F.col("texts").getField(name).isNotNull())
        for number, name in enumerate(names)
    ]
    row = broken.select(*nulls, parsed.alias("texts")).agg(*counts).collect()[0]
    return {name: row[number] for number, name in enumerate(names) if row[number]}


class _Reader:
    """Reads files of one source in one session."""

    def __init__(self, source: Files, spark: SparkSession, inferred: dict[str, StructType]) -> None:
        self._source, self._spark, self._inferred = source, spark, inferred
        given = source.schema
        self._given = spark.createDataFrame([], given).schema if isinstance(given, str) else given
        self._is_case_sensitive = spark.conf.get("spark.sql.caseSensitive", "false") == "true"

    def part(self, paths: Sequence[str]) -> _Part:
        """Return the records of files, by the header of the first one that is not empty."""
        source = self._source
        schema, left_out = self._schema_of(paths)
        wanted, corrupt = [name for name in schema.names if name not in left_out], None
        if source.kind in _WITH_CORRUPT_RECORDS and source.option("mode").upper() != "FAILFAST":
            corrupt = source.option("columnNameOfCorruptRecord") or _CORRUPT
            if corrupt not in schema.names:
                schema = StructType([*schema.fields, StructField(corrupt, StringType())])
        reader = self._reader(corrupt).schema(schema)
        if self._source.has_header:
            # Without pruning, so that Spark compares the whole header.
            reader = reader.option("enforceSchema", "false").option("columnPruning", "false")
        records = reader.load(list(paths))
        partitions = [name for name in records.columns if name not in schema.names]
        return _Part(records, [*wanted, *partitions], corrupt)

    def parts_by_header(self, paths: Sequence[str]) -> list[_Part]:
        """Return the records of files, in one part for each header."""
        by_header = defaultdict[tuple[str, ...], list[str]](list)
        for path in paths:
            by_header[tuple(self._header([path]))].append(path)
        return [self.part(files) for header, files in by_header.items() if header]  # a file of 0 bytes has none

    def _reader(self, corrupt: str | None) -> Any:
        """Return a reader for the files of a batch, of which partition folders become columns."""
        source = self._source
        options = {name: value for name, value in source.options.items() if name.lower() != "recursivefilelookup"}
        reader = self._spark.read.format(source.format).options(**options)
        if corrupt is not None:
            reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", corrupt)
        has_pattern = re.search(r"[*?\[{]", source.path)
        return reader if has_pattern else reader.option("basePath", source.path)

    def _header(self, paths: Sequence[str]) -> list[str]:
        schema = self._reader(None).option("inferSchema", "false").load(list(paths)).schema
        return [str(name) for name in schema.names]

    def _schema_of(self, paths: Sequence[str]) -> tuple[StructType, list[str]]:
        """Return the schema of files, and the columns of it that the user's schema leaves out."""
        source = self._source
        if self._given is not None:
            return self._by_header(self._given, paths) if self._source.has_header else (self._given, [])
        if source.kind == "csv":
            return _without_corrupt(self._reader(_CORRUPT).load(list(paths)).schema), []
        if source.format not in self._inferred:
            reader = self._spark.read.format(source.format).options(**source.folder_options).option("mergeSchema", True)
            if source.kind in _WITH_CORRUPT_RECORDS:
                reader = reader.option("columnNameOfCorruptRecord", _CORRUPT)
            self._inferred[source.format] = _without_corrupt(reader.load(source.path).schema)
        return self._inferred[source.format], []

    def _by_header(self, schema: StructType, paths: Sequence[str]) -> tuple[StructType, list[str]]:
        header, corrupt = self._header(paths), self._source.option("columnNameOfCorruptRecord")
        fields = {self._folded(each.name): each for each in schema.fields}
        columns = [fields.get(self._folded(name)) or StructField(name, StringType()) for name in header]
        others = [each for name, each in fields.items() if name not in set(map(self._folded, header))]
        for each in others:
            if each.name != corrupt and f"/{each.name}=" not in paths[0]:
                raise InvalidInputError(
                    f"column {each.name!r} of the schema is not in the header of {paths[0]} ({', '.join(header)}):"
                    " correct the header, or leave the column out of the schema"
                )
        return StructType([*columns, *others]), [name for name in header if self._folded(name) not in fields]

    def _folded(self, name: str) -> str:
        return name if self._is_case_sensitive else name.lower()


def _without_corrupt(schema: StructType) -> StructType:
    return StructType([each for each in schema.fields if each.name != _CORRUPT])
