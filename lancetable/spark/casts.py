"""Casts of a frame to the types of a table that do not change any value.

A value that does not fit raises an error, as in an INSERT, regardless of `spark.sql.ansi.enabled`. A number or a time
that the cast would round raises an error too, because the row would be stored with another value or match another key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the conventional alias
from pyspark.sql import types as st

from lancetable.spark.sql import quote_name
from lancetable.spark.types import spark_schema, table_schema, value_cure, wire_schema

_INFINITY = float("inf")


def cast_source(source: DataFrame, schema: pa.Schema, widen_call: str, keep: Sequence[str] = ()) -> DataFrame:
    """Cast a source to the Spark types of a table with this schema. A source with these types is returned unchanged.

    `schema` must have all columns and fields of the source; see `plan_changes`. Columns in `keep` are appended without
    a cast. `widen_call` is the call that widens a column of the table, for error messages.
    """
    wanted = spark_schema(schema)
    wire_schema(wanted)
    if source.dtypes == [(field.name, field.dataType.simpleString()) for field in wanted.fields]:
        return source
    given = {field.name: field.dataType for field in source.schema.fields}
    sent = table_schema(source.schema)
    columns = [
        _Cast(value_cure(field, sent.field(field.name), widen_call))
        .cast(F.col(quote_name(field.name)), given[field.name], wanted[field.name].dataType, field.name)
        .alias(field.name)
        for field in schema
    ]
    return source.select(*columns, *keep)


def cast_problems(source: DataFrame, schema: pa.Schema) -> list[Column]:
    """Return, for each column of `schema`, an expression for the reason why a value cannot be cast; null if it can."""
    given = {field.name: field.dataType for field in source.schema.fields}
    return [
        _problem(F.col(quote_name(field.name)), given[field.name], field.dataType, field.name)
        for field in spark_schema(schema).fields
    ]


@dataclass(frozen=True)
class _Cast:
    """Cast of one column. `cure` is the call to suggest for a value that does not fit."""

    cure: str

    def cast(self, column: Column, given: st.DataType, wanted: st.DataType, path: str) -> Column:
        """Cast a column to another type. Fields of structs are matched by name."""
        if given.simpleString() == wanted.simpleString():
            return column
        if isinstance(given, st.StructType) and isinstance(wanted, st.StructType):
            return self._cast_struct(column, given, wanted, path)
        if isinstance(given, st.ArrayType) and isinstance(wanted, st.ArrayType):
            items, element = given.elementType, wanted.elementType
            return F.transform(column, lambda item: self.cast(item, items, element, f"{path}.item"))
        if isinstance(given, st.MapType) and isinstance(wanted, st.MapType):
            keys, values = (given.keyType, wanted.keyType), (given.valueType, wanted.valueType)
            with_keys = F.transform_keys(column, lambda key, _: self.cast(key, *keys, f"{path}.key"))
            return F.transform_values(with_keys, lambda _, value: self.cast(value, *values, f"{path}.value"))
        nested = (st.ArrayType, st.MapType, st.StructType)
        if isinstance(given, nested) or isinstance(wanted, nested):
            return column.cast(wanted)  # Spark raises an error
        problem = _problem(column, given, wanted, path)
        failure = F.raise_error(F.concat(problem, F.lit(f"; {self.cure}")))
        return F.when(problem.isNull(), column.try_cast(wanted)).otherwise(failure)

    def _cast_struct(self, column: Column, given: st.StructType, wanted: st.StructType, path: str) -> Column:
        values = [
            self.cast(column.getField(field.name), given[field.name].dataType, field.dataType, f"{path}.{field.name}")
            if field.name in given.names
            else F.lit(None).cast(field.dataType)
            for field in wanted.fields
        ]
        struct = F.struct(*[value.alias(name) for value, name in zip(values, wanted.names, strict=True)])
        return F.when(column.isNotNull(), struct)


def _problem(column: Column, given: st.DataType, wanted: st.DataType, path: str) -> Column:
    """Return an expression for the reason why a value cannot be cast; null if it can.

    For a nested value, it is the first reason.
    """
    if given.simpleString() == wanted.simpleString():
        return F.lit(None).cast("string")
    if isinstance(given, st.StructType) and isinstance(wanted, st.StructType):
        of_fields = [
            _problem(column.getField(field.name), field.dataType, wanted[field.name].dataType, f"{path}.{field.name}")
            for field in given.fields
            if field.name in wanted.names
        ]
        return F.coalesce(*of_fields, F.lit(None).cast("string"))
    if isinstance(given, st.ArrayType) and isinstance(wanted, st.ArrayType):
        items, element = given.elementType, wanted.elementType
        problems = F.transform(column, lambda item: _problem(item, items, element, f"{path}.item"))
    elif isinstance(given, st.MapType) and isinstance(wanted, st.MapType):
        keys, values = (given.keyType, wanted.keyType), (given.valueType, wanted.valueType)
        of_keys = F.transform(F.map_keys(column), lambda key: _problem(key, *keys, f"{path}.key"))
        of_values = F.transform(F.map_values(column), lambda value: _problem(value, *values, f"{path}.value"))
        problems = F.concat(of_keys, of_values)
    else:
        message = F.concat(F.lit(f"cannot cast column {path} to {wanted.simpleString()}: "), column.cast("string"))
        fits = column.isNull() | _is_same(column, column.try_cast(wanted), given, wanted)
        return F.when(fits, None).otherwise(message)
    return F.get(F.filter(problems, lambda problem: problem.isNotNull()), F.lit(0))


def _is_same(column: Column, cast: Column, given: st.DataType, wanted: st.DataType) -> Column:
    """Return a condition that is true for non-null values that the cast does not change."""
    if isinstance(given, st.NumericType) and isinstance(wanted, (st.IntegralType, st.DecimalType)):
        return cast.isNotNull() & (cast == column)
    if isinstance(given, (st.IntegralType, st.DecimalType)) and isinstance(wanted, (st.FloatType, st.DoubleType)):
        return cast.isNotNull() & (cast.try_cast(given) == column)
    if isinstance(given, st.DoubleType) and isinstance(wanted, st.FloatType):
        return F.isnan(column) | (F.abs(column) == _INFINITY) | (F.abs(cast) < _INFINITY)
    if isinstance(given, (st.TimestampType, st.TimestampNTZType)) and isinstance(wanted, st.DateType):
        return cast.isNotNull() & (cast.cast(given) == column)
    return cast.isNotNull()
