"""Schema changes before rows are written: columns and fields are added, and types are widened.

    schema of the frame ─► plan_changes ─► separate commits ─► the fields of the table that the frame has
    policy  "fixed"    no changes; a column or field that the table lacks raises an error
            "add"      columns are added at the end, fields at the end of their structs
            "evolve"   types are widened too: int to long, float to double, int to double, date to timestamp_ntz

Other differences never change the table: values are cast to the types of the table, and a value that a cast would
change raises an error. Schemas are compared when a job is planned, before its tasks start. If the job fails later, the
added columns remain and are null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import pyarrow as pa

from lancetable.argument_validation import check_choice
from lancetable.errors import InvalidSchemaError, SchemaMismatchError, UnsupportedFeatureError
from lancetable.format.version import STABLE_VERSION, FileVersion
from lancetable.ops.change.retry import on_newest
from lancetable.ops.write.schema_merge import Difference, apply_changes, differences
from lancetable.ops.write.write import check_new_schema
from lancetable.spark.types import cast_call, cast_problem, spark_name, widens
from lancetable.table.version import TableVersion

SchemaPolicy: TypeAlias = Literal["fixed", "add", "evolve"]


@dataclass(frozen=True)
class Evolution:
    """Permitted changes of a table schema.

    `add_call` and `widen_call` are the calls that permit more changes, for error messages. `arrow_casts` is True if
    Arrow casts the values; types for which it would change values silently are then refused. `origins` maps columns to
    the files that contain them, for error messages.
    """

    policy: SchemaPolicy
    add_call: str = 'pass schema="add"'
    widen_call: str = 'pass schema="evolve"'
    arrow_casts: bool = False
    origins: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("schema", self.policy, SchemaPolicy)


def plan_changes(table: pa.Schema, frame: pa.Schema, evolution: Evolution, uri: str) -> list[Difference]:
    """Return the changes of a table's schema that the policy permits for a frame.

    Parameters
    ----------
    table
        The schema of the table.
    frame
        The schema that a new table would have for the frame.
    evolution
        The permitted changes.
    uri
        Address of the table, for error messages.

    Raises
    ------
    SchemaMismatchError
        If a column or field is neither in the table nor added, or if a type cannot be cast safely.
    """
    changes = []
    for difference in differences(table, frame):
        path, given, stored = difference.path, difference.field.type, difference.stored
        name = (*difference.parents, difference.field)[0].name
        similar = next((known for known in table.names if known.lower() == path.lower()), None)
        if stored is None and similar is not None:
            problem = f"{uri} has the column {similar!r}, not {name!r}"
            cure = f'rename it: .withColumnRenamed("{name}", "{similar}")'
        elif stored is None and (evolution.policy == "fixed" or difference.is_fixed):
            kind, origin = "field" if difference.parents else "column", evolution.origins.get(name, "the frame")
            problem = f"{kind} {path!r} of {origin} is not in the table {uri}"
            cure = f"it has {', '.join(table.names)}; to add it as {spark_name(given)}, {evolution.add_call}"
            if difference.is_fixed:
                cure = f'a map gets no new fields; leave the column out: .drop("{name}")'
        elif stored is None or (evolution.policy == "evolve" and widens(difference)):
            changes.append(difference)
            continue
        elif evolution.arrow_casts and (reason := cast_problem(given, stored)) is not None:
            problem = f"column {path!r} is {given} in the frame and {stored} in {uri}, and {reason}"
            cure = f"cast it: {cast_call(name, table.field(name).type)}"
        else:
            continue
        raise SchemaMismatchError(f"{problem}; {cure}", column=path)
    return changes


def fit_table(
    version: TableVersion, frame: pa.Schema, evolution: Evolution, *, inserts: bool = True
) -> tuple[TableVersion, pa.Schema, list[str]]:
    """Change the schema of a table, as far as the policy permits, so that the rows of a frame fit.

    Added columns are nullable at every level, because Spark declares most expressions as not nullable. After a
    conflict, the schemas are compared again, so that a column that another writer added is not added twice.

    Parameters
    ----------
    version
        The newest version of the table.
    frame
        The schema that a new table would have for the frame.
    evolution
        The permitted changes.
    inserts
        True if rows are inserted, for which the frame must have all required columns.

    Returns
    -------
    tuple of TableVersion, pyarrow.Schema and list of str
        The version to write to, the columns of the table that the frame has, and descriptions of the changes.

    Raises
    ------
    SchemaMismatchError, InvalidSchemaError
        If the frame does not fit, or a new column has an invalid name.
    UnsupportedFeatureError
        If the data format of the table cannot store a new column.
    RetryableCommitConflictError
        If every attempt lost against another commit.
    """
    done: list[str] = []

    def attempt(newest: TableVersion) -> TableVersion:
        table = newest.schema.to_arrow()
        required = [field for field in table if not field.nullable and field.name not in frame.names]
        if inserts and required:
            name, kind = required[0].name, spark_name(required[0].type)
            problem = f"the frame lacks the required column {name!r} of {newest.uri}; add it"
            raise SchemaMismatchError(f'{problem}: .withColumn("{name}", F.lit(...).cast("{kind}"))', column=name)
        changes = plan_changes(table, pa.schema(map(_nullable, frame)), evolution, newest.uri)
        added = [change for change in changes if change.stored is None]
        migrate = f"migrate the table: SparkTable.for_path(spark, {newest.uri!r}).migrate()"
        file_version = newest.manifest.file_version
        for change in added:
            if file_version.is_legacy or (change.parents and file_version is not STABLE_VERSION):
                problem = f"column {change.path!r} cannot be added to a table in data format {file_version}; {migrate}"
                raise UnsupportedFeatureError(problem, feature="added fields", column=change.path)
            check_storable(pa.schema([change.column]), file_version, migrate)
        for step in (added, [change for change in changes if change.stored is not None]):
            newest = apply_changes(newest, step)
            for change in step:
                kind, was = spark_name(change.field.type), change.stored and spark_name(change.stored)
                done.append(f"widened {change.path} from {was} to {kind}" if was else f"added {change.path} {kind}")
        return newest

    newest = on_newest(version, attempt, conflict_retries=20, retry_timeout_s=600.0)
    return newest, pa.schema([field for field in newest.schema.to_arrow() if field.name in frame.names]), done


def _nullable(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct(list(map(_nullable, kind)))
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_type, _nullable(kind.item_field))
    return field.with_type(kind).with_nullable(True)


def check_storable(schema: pa.Schema, file_version: FileVersion | None, cure: str) -> None:
    """Check that data files of a version, by default the stable one, can store the columns of a frame.

    Raises
    ------
    InvalidSchemaError, UnsupportedFeatureError
        If they cannot. The message ends with a remedy, which is `cure` for a feature of newer files.
    """
    try:
        check_new_schema(schema, file_version or STABLE_VERSION)
    except (InvalidSchemaError, UnsupportedFeatureError) as error:
        column = vars(error)["column"]
        if isinstance(error, InvalidSchemaError):
            cure = f'rename it: .withColumnRenamed("{column}", "{column.replace(".", "_").lstrip("_")}")'
        elif file_version in (None, STABLE_VERSION):
            cure = f'leave it out: .drop("{column.partition(".")[0]}")'
        raise type(error)(f"{error}; {cure}", **vars(error)) from error
