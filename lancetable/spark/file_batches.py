"""Batch reads of the new files of a pipeline.

A Spark stream lists the names of new files, each of them once. A batch read then reads the files of each batch:

    stream of file names ─► names of a batch ─► schema ─► records ─┬─► rows
    (Spark's checkpoint)                       by header           └─► counts of values that do not parse, by column
                                               or inferred

This way, the schema is compared with the headers of the files that it is used for, and all options of `spark.read` are
available. Spark assigns CSV columns by position. An option makes Spark compare each header with the schema at no extra
cost. Only if a header differs, each file is read by its own header.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the conventional alias
from pyspark.sql.types import StringType, StructField, StructType

from lancetable.errors import InvalidInputError, InvalidOperationError, LanceError
from lancetable.spark.checkpoint import literal_path
from lancetable.spark.pipeline_sources import FILE, Files
from lancetable.spark.sql import quote_name

_CORRUPT, _STRINGS = "_lancetable_corrupt_record", "_lancetable_strings"
_WITH_CORRUPT_RECORDS = ("csv", "json", "xml")
_SHOWN_CHARACTERS, _SHOWN_FILES = 200, 3


@dataclass(frozen=True)
class FileBatch:
    """Rows of a batch of files, with the number of unparsable records and, by column, of unparsable values.

    `rows` is None if all files are empty and no schema is given. The rows are persisted if `is_persisted` is True.
    `rejected` are frames of the rejected records, with the columns `file`, `row` and `reason`. `paths` are the files of
    the batch. `origins` maps columns to a file that contains them, for error messages; it is empty for several files
    without headers.
    """

    rows: DataFrame | None
    rows_unparsed: int = 0
    unparsed: dict[str, int] = field(default_factory=dict)
    is_persisted: bool = False
    files_read: int = 0
    bytes_read: int = 0
    rejected: Sequence[DataFrame] = ()
    paths: Sequence[str] = ()
    origins: Mapping[str, str] = field(default_factory=dict)


@dataclass
class InferredSchema:
    """The schema of all files in a folder; None until a run has inferred it."""

    schema: StructType | None = None


@dataclass(frozen=True)
class _Group:
    """Files with the same names of partition folders, `keys`, below the same folder, `base`."""

    base: str
    keys: tuple[str, ...]
    paths: list[str]


@dataclass(frozen=True)
class _FileRecords:
    """Records of files that are read with one schema, and the names of the columns of the result, `wanted`.

    `path` is one of the files. `corrupt` is the name of the column with unparsable records, None if they are not
    collected. If `is_parsed` is True, all files must be parsed before their rows are used.
    """

    path: str
    records: DataFrame
    wanted: list[str]
    corrupt: str | None
    is_parsed: bool


@contextmanager
def open_batch(
    source: Files, spark: SparkSession, names: DataFrame, inferred: InferredSchema, *, rejects: bool
) -> Iterator[FileBatch]:
    """Read the files of a batch. Rows that must be parsed are persisted while the context is open.

    Parameters
    ----------
    source
        The folder, and the options for reading it.
    spark
        The session of the batch.
    names
        A batch of `Files.stream`.
    inferred
        The schema of the folder, filled by the first call. It is inferred after the run has listed its files, so that
        it covers all of them.
    rejects
        Leave out unparsable records, and add the column `FILE`.

    Raises
    ------
    InvalidInputError
        If the header of a file lacks a column of the schema.
    InvalidOperationError
        If more than `Files.max_unparsed` records cannot be parsed.
    LanceError
        If the files cannot be read for another reason.
    """
    sizes = {row["path"]: row["length"] for row in names.collect() if row["length"]}
    paths = sorted(sizes)
    groups = _by_partition_folders(paths, source.path)
    reader = _Reader(source, spark, inferred, rejects)
    with ExitStack() as stack:
        try:
            parts = [part for group in groups for part in reader.parts(group, compares_headers=source.has_header)]
            batch = _parse(source, parts, stack, paths, rejects) if parts else reader.empty()
        except LanceError:
            raise
        except Exception:  # Spark's error class for a header mismatch depends on the release and on Connect
            if not source.has_header:
                raise
            parts = [part for group in groups for part in reader.parts_by_header(group)]
            batch = _parse(source, parts, stack, paths, rejects) if parts else reader.empty()
        yield replace(batch, files_read=len(paths), bytes_read=sum(sizes.values()))


def _by_partition_folders(paths: Sequence[str], folder: str) -> list[_Group]:
    """Group files by partition folders, because Spark drops files without such folders if it reads both together."""
    groups = defaultdict[tuple[str, tuple[str, ...]], list[str]](list)
    # The folder may be a pattern, so only its depth is used. The depth of a relative folder is unknown.
    depth = 0
    if re.match(r"/|[a-z0-9+.-]+:", folder):
        names = re.sub(r"^[a-z0-9+.-]+:(//[^/]*)?", "", folder).split("/")
        depth = len([name for name in names if name not in ("", ".")])
    for path in paths:
        scheme = re.match(r"[a-z0-9+.-]+:(//[^/]*)?", path)
        root = scheme[0] if scheme else ""
        folders = [name for name in path[len(root) :].split("/")[:-1] if name]
        first = next((n for n in range(depth, len(folders)) if "=" in folders[n]), len(folders))
        keys = tuple(name.partition("=")[0] for name in folders[first:] if "=" in name)
        base = f"{root}/{'/'.join(folders[:first])}" if keys else ""
        groups[base, keys].append(path)
    return [_Group(base, keys, files) for (base, keys), files in groups.items()]


def _parse(source: Files, parts: list[_FileRecords], stack: ExitStack, paths: list[str], rejects: bool) -> FileBatch:
    """Parse the files of all parts, count and reject unparsable records, and return the rows."""
    total, values, frames, rejected = 0, Counter[str](), [], []
    for part in parts:
        records = part.records
        if part.is_parsed:
            stack.callback(records.persist().unpersist)
        if part.corrupt is not None:
            text = F.col(quote_name(part.corrupt))
            broken = records.where(text.isNotNull())
            count = broken.count()
            total += count
            if count:
                broken, problems = _unparsed_values(source, broken, part)
                if problems:
                    row = broken.agg(*[F.count(problem) for problem in problems.values()]).collect()[0]
                    values += Counter({name: number for name, number in zip(problems, row, strict=True) if number})
                _check_unparsed(source, total, values, broken.select(text), paths)
                if rejects:
                    of_values = F.nullif(F.concat_ws("; ", *problems.values()), F.lit(""))
                    reason = F.coalesce(of_values, F.lit("the record does not parse"))
                    rejected.append(broken.select(F.col(FILE).alias("file"), text.alias("row"), reason.alias("reason")))
            if rejects or source.option("mode").upper() == "DROPMALFORMED":
                records = records.where(text.isNull())
        elif part.is_parsed:
            records.count()
        frames.append(records.select(*[F.col(quote_name(name)) for name in part.wanted]))
    rows = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)
    by_header = source.has_header or len(paths) == 1
    origins = {name: part.path for part in reversed(parts) for name in part.wanted} if by_header else {}
    is_persisted = all(part.is_parsed for part in parts)
    return FileBatch(rows, total, dict(values), is_persisted, rejected=rejected, paths=paths, origins=origins)


def _check_unparsed(source: Files, total: int, values: Counter[str], records: DataFrame, paths: Sequence[str]) -> None:
    """Check that the number of unparsable records is within the limit of the source.

    Raises
    ------
    InvalidOperationError
        If it exceeds the limit.
    """
    if source.max_unparsed is None or total <= source.max_unparsed:
        return
    example = str(records.limit(1).collect()[0][0])[:_SHOWN_CHARACTERS]
    shown = ", ".join(f"{name}: {count}" for name, count in values.items()) or "no single column"
    more = f" and {len(paths) - _SHOWN_FILES} more" if len(paths) > _SHOWN_FILES else ""
    raise InvalidOperationError(
        f"{total} records of {', '.join(paths[:_SHOWN_FILES])}{more} do not parse (values by column: {shown}), more"
        f" than max_unparsed={source.max_unparsed}, for example {example!r}: correct the files, the schema or the"
        " options, or raise max_unparsed to store null for such values"
    )


def _unparsed_values(source: Files, broken: DataFrame, part: _FileRecords) -> tuple[DataFrame, dict[str, Column]]:
    """Return the broken records, and by column an expression that describes an unparsable value.

    A value is unparsable if it is null although the record has a string for it; for any other value, the expression is
    null. The expressions refer to the returned frame.
    """
    types = {name: kind for name, kind in broken.dtypes if name not in (part.corrupt, FILE)}
    text = F.col(quote_name(str(part.corrupt)))
    options = {name: str(value) for name, value in source.options.items() if name.lower() not in ("mode", "header")}
    if source.kind == "csv":
        parsed = F.from_csv(text, ", ".join(f"{quote_name(name)} string" for name in types), options)
    elif source.kind == "json":
        parsed = F.from_json(text, StructType([StructField(name, StringType()) for name in types]), options)
    else:
        return broken, {}
    problems = {}
    for name in [name for name in part.wanted if name in types]:
        value = F.col(_STRINGS).getField(name)
        message = F.concat(F.lit(f"{name} is not {types[name]}: "), value)
        problems[name] = F.when(F.col(quote_name(name)).isNull(), message)
    return broken.withColumn(_STRINGS, parsed), problems


class _Reader:
    """Reader of the files of one source in one session."""

    def __init__(self, source: Files, spark: SparkSession, inferred: InferredSchema, rejects: bool) -> None:
        self._source, self._spark, self._inferred, self._rejects = source, spark, inferred, rejects
        given = source.schema
        self._given = spark.createDataFrame([], given).schema if isinstance(given, str) else given
        self._is_case_sensitive = spark.conf.get("spark.sql.caseSensitive", "false") == "true"

    def empty(self) -> FileBatch:
        """Return the batch of files without records."""
        return FileBatch(None if self._given is None else self._spark.createDataFrame([], self._given))

    def parts_by_header(self, group: _Group) -> list[_FileRecords]:
        """Return the records of files, in one part for each header."""
        by_header = defaultdict[tuple[str, ...], list[str]](list)
        for path in group.paths:
            by_header[tuple(self._header(replace(group, paths=[path])))].append(path)
        groups = [replace(group, paths=paths) for paths in by_header.values()]
        return [part for group in groups for part in self.parts(group, compares_headers=False)]

    def parts(self, group: _Group, *, compares_headers: bool) -> list[_FileRecords]:
        """Return the records of files, read by the header of the first file.

        With `compares_headers`, Spark raises an error if the header of another file differs.
        """
        source = self._source
        schema, left_out = self._schema_of(group)
        if not schema.fields:
            return []  # blank files
        names = schema.names if self._given is None else self._given.names
        wanted, corrupt = [name for name in names if name not in left_out], None
        if source.kind in _WITH_CORRUPT_RECORDS and source.option("mode").upper() != "FAILFAST":
            corrupt = self._corrupt_column(schema)
            if corrupt not in schema.names:
                schema = StructType([*schema.fields, StructField(corrupt, StringType())])
        reader = self._reader(group, corrupt).schema(schema)
        if compares_headers:
            # Without column pruning, Spark compares the whole header.
            reader = reader.option("enforceSchema", "false").option("columnPruning", "false")
        records = reader.load([literal_path(path) for path in group.paths])
        partitions = [name for name in records.columns if name not in schema.names]
        wanted += partitions
        if self._rejects:
            url = records.metadataColumn("_metadata").getField("file_path")
            records = records.withColumn(FILE, F.url_decode(F.replace(url, F.lit("+"), F.lit("%2B"))))
            wanted.append(FILE)
        is_parsed = corrupt is not None or source.has_header
        return [_FileRecords(group.paths[0], records, wanted, corrupt, is_parsed)]

    def _reader(self, group: _Group, corrupt: str | None) -> Any:
        """Return a Spark reader for files that turns partition folders into columns."""
        source = self._source
        options = {name: value for name, value in source.options.items() if name.lower() != "recursivefilelookup"}
        reader = self._spark.read.format(source.format).options(**options)
        if corrupt is not None:
            reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", corrupt)
        return reader.option("basePath", group.base) if group.base else reader

    def _load_schema(self, reader: Any, paths: Sequence[str]) -> StructType:
        """Return the schema of files. It has no fields if there is no record to infer it from.

        Raises
        ------
        AnalysisException
            If Spark cannot read the files.
        """
        try:
            schema = reader.load([literal_path(path) for path in paths]).schema
        except AnalysisException as error:
            if error.getCondition() != "UNABLE_TO_INFER_SCHEMA":
                raise
            return StructType([])
        return StructType([field for field in schema.fields if field.name != _CORRUPT])

    def _header(self, group: _Group) -> list[str]:
        schema = self._load_schema(self._reader(group, None).option("inferSchema", "false"), group.paths)
        return [str(name) for name in schema.names if name not in group.keys]

    def _corrupt_column(self, schema: StructType) -> str:
        """Return the name of the column of unparsable records: the user's if the schema has it, else our own."""
        name = self._source.option("columnNameOfCorruptRecord") or str(
            self._spark.conf.get("spark.sql.columnNameOfCorruptRecord", "_corrupt_record")
        )
        return name if name in schema.names else _CORRUPT

    def _schema_of(self, group: _Group) -> tuple[StructType, list[str]]:
        """Return the schema of files, and the names of its columns that the user's schema lacks."""
        source = self._source
        if self._given is not None:
            return self._by_header(self._given, group) if source.has_header else (self._given, [])
        if source.kind == "csv":
            return self._load_schema(self._reader(group, _CORRUPT), group.paths), []
        if self._inferred.schema is None:
            reader = self._spark.read.format(source.format).options(**source.folder_options).option("mergeSchema", True)
            if source.kind in _WITH_CORRUPT_RECORDS:
                reader = reader.option("columnNameOfCorruptRecord", _CORRUPT)
            schema = reader.load(source.path).schema
            self._inferred.schema = StructType([field for field in schema.fields if field.name != _CORRUPT])
        return self._inferred.schema, []

    def _by_header(self, schema: StructType, group: _Group) -> tuple[StructType, list[str]]:
        header = self._header(group)
        if not header:
            return StructType([]), []
        fields = {self._fold_case(column.name): column for column in schema.fields}
        columns = [fields.get(self._fold_case(name)) or StructField(name, StringType()) for name in header]
        others = [column for name, column in fields.items() if name not in set(map(self._fold_case, header))]
        corrupt = self._corrupt_column(schema)
        for column in others:
            if column.name != corrupt and column.name not in group.keys:
                raise InvalidInputError(
                    f"column {column.name!r} of the schema is not in the header of {group.paths[0]}"
                    f" ({', '.join(header)}): correct the header, or leave the column out of the schema"
                )
        return StructType([*columns, *others]), [name for name in header if self._fold_case(name) not in fields]

    def _fold_case(self, name: str) -> str:
        return name if self._is_case_sensitive else name.lower()
