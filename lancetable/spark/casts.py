"""Casts of a frame to the types of a table, in which no value changes.

A value that does not fit is an error, as in an INSERT, whatever `spark.sql.ansi.enabled` makes of casts. So is a number
or a time that the cast would round, since the row would then be stored with another value, or match another key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812  # as every Spark user writes it
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NumericType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from lancetable.errors import SchemaMismatchError
from lancetable.spark.sql import quote_name
from lancetable.spark.types import spark_schema, wire_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["cast_source"]

_INFINITY = float("inf")


def cast_source(source: DataFrame, schema: pa.Schema) -> DataFrame:
    """Return the columns of `schema` in the types in which Spark reads the table; the source itself if it has them.

    Raises SchemaMismatchError for a nested field that the table does not have.
    """
    wanted = spark_schema(schema)
    wire_schema(wanted)
    if _types_of(source.schema) == _types_of(wanted):
        return source
    columns = [
        _cast(F.col(quote_name(each.name)), source.schema[each.name].dataType, each.dataType, each.name).alias(
            each.name
        )
        for each in wanted.fields
    ]
    return source.select(*columns)


def _types_of(schema: StructType) -> list[tuple[str, str]]:
    return [(each.name, each.dataType.simpleString()) for each in schema.fields]


def _cast(column: Column, given: DataType, wanted: DataType, path: str) -> Column:
    """Return a column in another type; of nested types the fields are found by name."""
    if given.simpleString() == wanted.simpleString():
        return column
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        return _cast_struct(column, given, wanted, path)
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        items, element = given.elementType, wanted.elementType
        return F.transform(column, lambda item: _cast(item, items, element, f"{path}.item"))
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        keys, values = (given.keyType, wanted.keyType), (given.valueType, wanted.valueType)
        with_keys = F.transform_keys(column, lambda key, _: _cast(key, *keys, f"{path}.key"))
        return F.transform_values(with_keys, lambda _, value: _cast(value, *values, f"{path}.value"))
    nested = (ArrayType, MapType, StructType)
    if isinstance(given, nested) or isinstance(wanted, nested):
        return column.cast(wanted)  # Spark refuses it
    cast = column.try_cast(wanted)
    message = F.concat(F.lit(f"{path} cannot become {wanted.simpleString()}: "), column.cast("string"))
    return F.when(column.isNull() | _is_same(column, cast, given, wanted), cast).otherwise(F.raise_error(message))


def _cast_struct(column: Column, given: StructType, wanted: StructType, path: str) -> Column:
    unknown = [name for name in given.names if name not in wanted.names]
    if unknown:
        raise SchemaMismatchError(
            f"column {path!r} of the source has a field {unknown[0]!r} that the table does not have; it has"
            f" {', '.join(wanted.names)}: leave the field out of the source",
            column=f"{path}.{unknown[0]}",
        )
    fields = [
        _cast(column.getField(each.name), given[each.name].dataType, each.dataType, f"{path}.{each.name}")
        if each.name in given.names
        else F.lit(None).cast(each.dataType)
        for each in wanted.fields
    ]
    struct = F.struct(*[field.alias(each.name) for field, each in zip(fields, wanted.fields, strict=True)])
    return F.when(column.isNotNull(), struct)


def _is_same(column: Column, cast: Column, given: DataType, wanted: DataType) -> Column:
    """Return whether a value that is not null is the same after a cast."""
    if isinstance(given, NumericType) and isinstance(wanted, (IntegralType, DecimalType)):
        return cast.isNotNull() & (cast == column)
    if isinstance(given, (IntegralType, DecimalType)) and isinstance(wanted, (FloatType, DoubleType)):
        return cast.isNotNull() & (cast.try_cast(given) == column)
    if isinstance(given, DoubleType) and isinstance(wanted, FloatType):
        return F.isnan(column) | (F.abs(column) == _INFINITY) | (F.abs(cast) < _INFINITY)
    if isinstance(given, (TimestampType, TimestampNTZType)) and isinstance(wanted, DateType):
        return cast.isNotNull() & (cast.cast(given) == column)
    return cast.isNotNull()
