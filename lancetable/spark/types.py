"""Conversion between Spark types and Arrow types.

PySpark's own helpers change between releases and support only half of the Arrow types, so the mapping is defined here.
There are three schemas: that of the *table* in Lance, the *Spark* schema that users see, and the *wire* schema, the
exact Arrow schema that Spark requires of batches.

| Arrow | Spark |
| --- | --- |
| bool, int8 .. int64, float32, float64, string, binary, date32, decimal128 | their namesakes |
| uint8, uint16, uint32, uint64 | short, int, long, decimal(20,0) |
| float16 | float |
| large and view strings and binaries, fixed-size binary | string, binary |
| date64 | date |
| timestamp without / with a zone | timestamp_ntz / timestamp, in microseconds |
| duration | day-time interval, in microseconds |
| list, large list, fixed-size list | array |
| struct, map, null | struct, map, void |
| dictionary, extension | as their values, as their storage |
| time32, time64 | time (PySpark 4.1 and later) |

Other types have no Spark type and raise an error with the name of the column.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import types as st

from lancetable.errors import InvalidInputError, SchemaMismatchError, UnsupportedFeatureError
from lancetable.ops.schema.alter_columns import represents
from lancetable.ops.write.float_overflow import check_finite
from lancetable.ops.write.schema_merge import Difference, differences, plain_type

MAX_DECIMAL_PRECISION = 38

_TIME_TYPE: type[st.DataType] | None = getattr(st, "TimeType", None)
_PLAIN: tuple[tuple[pa.DataType, type[st.DataType]], ...] = (
    (pa.null(), st.NullType),
    (pa.bool_(), st.BooleanType),
    (pa.int8(), st.ByteType),
    (pa.int16(), st.ShortType),
    (pa.int32(), st.IntegerType),
    (pa.int64(), st.LongType),
    (pa.float32(), st.FloatType),
    (pa.float64(), st.DoubleType),
    (pa.string(), st.StringType),
    (pa.binary(), st.BinaryType),
    (pa.date32(), st.DateType),
    (pa.timestamp("us", "UTC"), st.TimestampType),
    (pa.timestamp("us"), st.TimestampNTZType),
    (pa.duration("us"), st.DayTimeIntervalType),
    *(() if _TIME_TYPE is None else ((pa.time64("ns"), _TIME_TYPE),)),
)
_WIDENED: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
_TO_SPARK: dict[pa.DataType, type[st.DataType]] = dict(_PLAIN)
_TO_WIRE = {spark: arrow for arrow, spark in _PLAIN}
_OF_ANY_UNIT = (
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_duration, pa.duration("us")),
    (pa.types.is_time, pa.time64("ns")),
    (lambda arrow: pa.types.is_timestamp(arrow) and arrow.tz is None, pa.timestamp("us")),
    (pa.types.is_timestamp, pa.timestamp("us", "UTC")),
)


def spark_schema(schema: pa.Schema) -> st.StructType:
    """Return the Spark schema of a table with this Arrow schema.

    Raises
    ------
    UnsupportedFeatureError
        If Spark cannot represent a column. The message contains the name of the first one.
    """
    return _spark_struct(schema, "")


def wire_schema(schema: st.StructType) -> pa.Schema:
    """Return the exact Arrow schema of batches that Spark accepts and sends for `schema`.

    Raises
    ------
    UnsupportedFeatureError
        If a column has no Arrow type. The message contains the name of the first one.
    """
    return pa.schema(_wire_fields(schema, "", "element"))


def table_schema(schema: st.StructType, vector_dimensions: dict[str, int] | None = None) -> pa.Schema:
    """Return the Arrow schema of a new table for a frame of this Spark schema.

    Parameters
    ----------
    schema
        The schema of the frame.
    vector_dimensions
        The sizes of fixed-size lists by the names of top-level array columns. Case is ignored, because Spark passes the
        keys of options in lower case.

    Raises
    ------
    InvalidInputError
        If a vector column does not exist, or is not an array.
    UnsupportedFeatureError
        If a column has no Arrow type. The message contains the name of the first one.
    """
    vectors = {name.lower(): dimension for name, dimension in (vector_dimensions or {}).items()}
    fields = _wire_fields(schema, "", "item")
    for number, field in enumerate(fields):
        dimension = vectors.pop(field.name.lower(), None)
        if dimension is not None:
            if not pa.types.is_list(field.type):
                raise InvalidInputError(
                    f"vector column {field.name!r} must be an array, got {schema[number].dataType.simpleString()}"
                )
            fields[number] = field.with_type(pa.list_(field.type.value_field, dimension))
    if vectors:
        raise InvalidInputError(f"no vector column {', '.join(vectors)}; available columns: {', '.join(schema.names)}")
    return pa.schema(fields)


def convert_batch(batch: pa.RecordBatch, schema: pa.Schema, widen_call: str | None = None) -> pa.RecordBatch:
    """Return `batch` with the columns of `schema`, in its order and in exactly its types.

    Parameters
    ----------
    batch, schema
        The batch, and the columns.
    widen_call
        Call that widens a column of the table, for the error message about a value that does not fit.

    Raises
    ------
    SchemaMismatchError
        If a cast would change a value. The error contains the name of the column.
    """
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        try:
            columns.append(
                pa.nulls(batch.num_rows, field.type) if index < 0 else _converted(batch.column(index), field.type)
            )
        except pa.ArrowException as error:
            message = f"cannot cast column {field.name!r} to {field.type}: {error}"
            if widen_call is not None:
                message += f"; {value_cure(field, batch.schema.field(index), widen_call)}"
            raise SchemaMismatchError(message, column=field.name) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast_problem(given: pa.DataType, stored: pa.DataType) -> str | None:
    """Return the reason why Arrow's cast from one type to another would change values silently, or None.

    Values that do not fit are detected later, by the cast.
    """
    given, stored = plain_type(given), plain_type(stored)
    if _loses_zone(given, stored) or _loses_zone(stored, given):
        return "the conversion depends on the time zone of the session"
    is_float, is_exact = pa.types.is_floating(given), pa.types.is_integer(given) or pa.types.is_decimal(given)
    if (is_float and pa.types.is_decimal(stored)) or ((is_float or is_exact) and pa.types.is_boolean(stored)):
        return "the conversion would change values"
    return None


def spark_name(arrow: pa.DataType) -> str:
    """Return the name of the Spark type of a column, for error messages."""
    return _spark_type(arrow, "value").simpleString()


def widens(difference: Difference) -> bool:
    """Return True if the type of the frame is wider than that of the table.

    It must also differ from the type in which Spark reads the column.
    """
    stored, given = difference.stored, difference.field.type
    if stored is None or difference.is_fixed:
        return False
    is_wider = represents(given, stored) or (pa.types.is_integer(stored) and given == pa.float64())
    return bool(is_wider) and given != _wire_type(_spark_type(stored, "value"), "value", "item")


def value_cure(stored: pa.Field, given: pa.Field, widen_call: str) -> str:
    """Return the remedy for a value of a frame that does not fit its column, for error messages."""
    if any(map(widens, differences([stored], [given]))):
        return f"to widen the column, {widen_call}"
    if pa.types.is_fixed_size_list(stored.type):
        return f'keep the vectors of its size: .where("size({stored.name}) = {stored.type.list_size}")'
    return f"to store null instead, cast it: {cast_call(stored.name, stored.type, 'try_cast')}"


def cast_call(column: str, stored: pa.DataType, cast: str = "cast") -> str:
    """Return the call that casts a column of a frame to the type of the table."""
    return f'.withColumn("{column}", F.col("{column}").{cast}("{spark_name(stored)}"))'


def _loses_zone(one: pa.DataType, other: pa.DataType) -> bool:
    """Return True if one type is a timestamp with a zone, and the other a date or a timestamp without a zone."""
    if not pa.types.is_timestamp(one) or one.tz is None:
        return False
    return bool(pa.types.is_date(other) or (pa.types.is_timestamp(other) and other.tz is None))


def _spark_struct(fields: Iterable[pa.Field], prefix: str) -> st.StructType:
    return st.StructType(
        [st.StructField(field.name, _spark_type(field.type, prefix + field.name), field.nullable) for field in fields]
    )


def _spark_type(arrow: pa.DataType, column: str) -> st.DataType:
    given, arrow = arrow, plain_type(arrow)
    arrow = _WIDENED.get(arrow) or next((wire for is_kind, wire in _OF_ANY_UNIT if is_kind(arrow)), arrow)
    if arrow in _TO_SPARK:
        return _TO_SPARK[arrow]()
    if pa.types.is_decimal(arrow) and arrow.precision <= MAX_DECIMAL_PRECISION and 0 <= arrow.scale <= arrow.precision:
        return st.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        items = arrow.value_field
        return st.ArrayType(_spark_type(items.type, f"{column}.{items.name}"), items.nullable)
    if pa.types.is_map(arrow):
        return st.MapType(
            _spark_type(arrow.key_type, f"{column}.key"),
            _spark_type(arrow.item_type, f"{column}.value"),
            arrow.item_field.nullable,
        )
    if pa.types.is_struct(arrow):
        return _spark_struct(arrow, f"{column}.")
    raise UnsupportedFeatureError(
        f"column {column!r} has the Arrow type {given}, which Spark cannot represent; "
        "leave it out with the option columns='...'",
        feature=str(given),
    )


def _wire_fields(schema: st.StructType, prefix: str, item_name: str) -> list[pa.Field]:
    return [
        pa.field(field.name, _wire_type(field.dataType, prefix + field.name, item_name), field.nullable)
        for field in schema.fields
    ]


def _wire_type(spark: st.DataType, column: str, item_name: str) -> pa.DataType:
    plain = _TO_WIRE.get(type(spark))
    if plain is not None:
        return plain
    if isinstance(spark, st.DecimalType):
        return pa.decimal128(spark.precision, spark.scale)
    if isinstance(spark, st.ArrayType):
        item = _wire_type(spark.elementType, f"{column}.{item_name}", item_name)
        return pa.list_(pa.field(item_name, item, spark.containsNull))
    if isinstance(spark, st.MapType):
        value = pa.field("value", _wire_type(spark.valueType, f"{column}.value", item_name), spark.valueContainsNull)
        return pa.map_(_wire_type(spark.keyType, f"{column}.key", item_name), value)
    if isinstance(spark, st.StructType):
        return pa.struct(_wire_fields(spark, f"{column}.", item_name))
    raise UnsupportedFeatureError(
        f"column {column!r} has the Spark type {spark.simpleString()}, which has no Arrow type here; cast it:"
        f' .withColumn("{column}", F.col("{column}").cast("string"))',
        feature=spark.simpleString(),
    )


def _converted(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return Arrow's cast of values, extended to dictionaries and extension types at any depth."""
    source = values.type
    if source.equals(target):
        return values
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, _converted(values, target.storage_type))
    if isinstance(source, pa.BaseExtensionType):
        return _converted(values.storage, target)
    if pa.types.is_dictionary(target):
        plain = values.dictionary_decode() if pa.types.is_dictionary(source) else values
        encoded = _converted(plain, target.value_type).dictionary_encode()
        indices = encoded.indices.cast(target.index_type)
        return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=target.ordered)
    if pa.types.is_dictionary(source):
        return _converted(values.dictionary_decode(), target)
    if pa.types.is_nested(source) and pa.types.is_nested(target) and (_is_special(source) or _is_special(target)):
        values = _with_children(values, target)
    cast = values.cast(target)
    check_finite(values, cast)
    return cast


def _is_special(arrow: pa.DataType) -> bool:
    """Return True if a type is, or contains, one that Arrow does not cast."""
    if isinstance(arrow, pa.BaseExtensionType) or pa.types.is_dictionary(arrow):
        return True
    return any(_is_special(arrow.field(number).type) for number in range(arrow.num_fields))


def _with_children(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return the same lists, maps or structs with children of the target's types."""
    source = values.type
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        types = {field.name: field.type for field in target}
        children = [_converted(values.field(n), types.get(field.name, field.type)) for n, field in enumerate(source)]
        fields = [field.with_type(child.type) for field, child in zip(source, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=values.is_null())
    if pa.types.is_map(source) and pa.types.is_map(target):
        keys, items = _converted(values.keys, target.key_type), _converted(values.items, target.item_type)
        entries = pa.StructArray.from_arrays(
            [keys, items], fields=[source.key_field.with_type(keys.type), source.item_field.with_type(items.type)]
        )
        kind, child = pa.map_(entries.type[0], entries.type[1]), entries
    elif pa.types.is_struct(source) or pa.types.is_map(source) or pa.types.is_struct(target) or pa.types.is_map(target):
        return values
    else:
        child = _converted(values.values, target.value_type)
        item = source.value_field.with_type(child.type)
        if pa.types.is_fixed_size_list(source):
            kind = pa.list_(item, source.list_size)
        else:
            kind = pa.large_list(item) if pa.types.is_large_list(source) else pa.list_(item)
    buffers = values.buffers()[: 1 if pa.types.is_fixed_size_list(source) else 2]
    return pa.Array.from_buffers(kind, len(values), buffers, -1, values.offset, [child])
