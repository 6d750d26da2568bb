"""Casts of a frame to the types of a table that do not change any value.

A value that does not fit raises an error, as in an INSERT, regardless of `spark.sql.ansi.enabled`. A number or a time
that the cast would round raises an error too, because the row would be stored with another value or match another key.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the conventional alias
from pyspark.sql import types as st

from lancetable.errors import SchemaMismatchError
from lancetable.spark.sql import quote_name
from lancetable.spark.types import spark_schema, wire_schema

_INFINITY = float("inf")


def cast_source(source: DataFrame, schema: pa.Schema) -> DataFrame:
    """Cast a source to the Spark types of a table with this schema. A source with these types is returned unchanged.

    Raises SchemaMismatchError for a nested field that the table does not have.
    """
    wanted = spark_schema(schema)
    wire_schema(wanted)
    if source.dtypes == [(field.name, field.dataType.simpleString()) for field in wanted.fields]:
        return source
    given = {field.name: field.dataType for field in source.schema.fields}
    columns = [
        _cast(F.col(quote_name(name)), given[name], wanted[name].dataType, name).alias(name) for name in wanted.names
    ]
    return source.select(*columns)


def _cast(column: Column, given: st.DataType, wanted: st.DataType, path: str) -> Column:
    """Cast a column to another type. Fields of structs are matched by name."""
    if given.simpleString() == wanted.simpleString():
        return column
    if isinstance(given, st.StructType) and isinstance(wanted, st.StructType):
        return _cast_struct(column, given, wanted, path)
    if isinstance(given, st.ArrayType) and isinstance(wanted, st.ArrayType):
        items, element = given.elementType, wanted.elementType
        return F.transform(column, lambda item: _cast(item, items, element, f"{path}.item"))
    if isinstance(given, st.MapType) and isinstance(wanted, st.MapType):
        keys, values = (given.keyType, wanted.keyType), (given.valueType, wanted.valueType)
        with_keys = F.transform_keys(column, lambda key, _: _cast(key, *keys, f"{path}.key"))
        return F.transform_values(with_keys, lambda _, value: _cast(value, *values, f"{path}.value"))
    nested = (st.ArrayType, st.MapType, st.StructType)
    if isinstance(given, nested) or isinstance(wanted, nested):
        return column.cast(wanted)  # Spark raises an error
    cast = column.try_cast(wanted)
    message = F.concat(F.lit(f"{path} cannot become {wanted.simpleString()}: "), column.cast("string"))
    return F.when(column.isNull() | _is_same(column, cast, given, wanted), cast).otherwise(F.raise_error(message))


def _cast_struct(column: Column, given: st.StructType, wanted: st.StructType, path: str) -> Column:
    unknown = [name for name in given.names if name not in wanted.names]
    if unknown:
        raise SchemaMismatchError(
            f"column {path!r} of the source has a field {unknown[0]!r} that the table does not have; it has"
            f" {', '.join(wanted.names)}: leave the field out of the source",
            column=f"{path}.{unknown[0]}",
        )
    values = [
        _cast(column.getField(field.name), given[field.name].dataType, field.dataType, f"{path}.{field.name}")
        if field.name in given.names
        else F.lit(None).cast(field.dataType)
        for field in wanted.fields
    ]
    struct = F.struct(*[value.alias(name) for value, name in zip(values, wanted.names, strict=True)])
    return F.when(column.isNotNull(), struct)


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
