"""Conversion of Arrow types to Spark types and back, compared with PySpark's own conversion."""

from __future__ import annotations

import datetime as dt
import decimal
import inspect
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.errors import InvalidInputError, SchemaMismatchError, UnsupportedFeatureError
from lancetable.spark import types

CASES: list[tuple[pa.DataType, Any, str]] = [
    (pa.bool_(), True, "boolean"),
    (pa.int8(), -3, "tinyint"),
    (pa.int16(), -3, "smallint"),
    (pa.int32(), -3, "int"),
    (pa.int64(), -3, "bigint"),
    (pa.uint8(), 250, "smallint"),
    (pa.uint16(), 65000, "int"),
    (pa.uint32(), 2**32 - 1, "bigint"),
    (pa.uint64(), 2**64 - 1, "decimal(20,0)"),
    (pa.float16(), 1.5, "float"),
    (pa.float32(), 1.5, "float"),
    (pa.float64(), 1.5, "double"),
    (pa.string(), "ä", "string"),
    (pa.large_string(), "ä", "string"),
    (pa.binary(), b"\0", "binary"),
    (pa.large_binary(), b"\0", "binary"),
    (pa.binary(2), b"ab", "binary"),
    (pa.decimal128(10, 2), decimal.Decimal("1.25"), "decimal(10,2)"),
    (pa.decimal256(30, 2), decimal.Decimal("1.25"), "decimal(30,2)"),
    (pa.date32(), dt.date(2020, 1, 2), "date"),
    (pa.date64(), dt.date(2020, 1, 2), "date"),
    (pa.timestamp("s"), dt.datetime(2020, 1, 2), "timestamp_ntz"),
    (pa.timestamp("ns", "America/New_York"), dt.datetime(2020, 1, 2, tzinfo=dt.timezone.utc), "timestamp"),
    (pa.duration("ms"), dt.timedelta(seconds=3), "interval day to second"),
    (pa.null(), None, "void"),
    (pa.list_(pa.int32()), [1, None], "array<int>"),
    (pa.large_list(pa.large_string()), ["a"], "array<string>"),
    (pa.list_(pa.float32(), 2), [0.5, 1.5], "array<float>"),
    (
        pa.struct([("x", pa.uint8()), ("y", pa.list_(pa.int8()))]),
        {"x": 1, "y": [2]},
        "struct<x:smallint,y:array<tinyint>>",
    ),
    (pa.map_(pa.string(), pa.int32()), [("a", 1)], "map<string,int>"),
    (pa.dictionary(pa.int8(), pa.string()), "a", "string"),
]


@pytest.mark.parametrize(
    ("arrow", "value", "spark"), CASES, ids=lambda case: str(case) if isinstance(case, pa.DataType) else ""
)
def test_mapped_types_are_converted_in_both_directions(arrow: pa.DataType, value: Any, spark: str) -> None:
    schema = pa.schema([pa.field("c", arrow)])
    spark_schema = types.spark_schema(schema)
    assert spark_schema["c"].dataType.simpleString() == spark
    wire = types.wire_schema(spark_schema)

    from pyspark.sql.pandas.types import to_arrow_schema

    utc = (
        {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {"timestamp_utc": True}
    )
    assert wire.equals(to_arrow_schema(spark_schema, **utc))  # PySpark 4.0 has the second argument
    values = pa.array([value, None], arrow if not pa.types.is_dictionary(arrow) else arrow.value_type)
    batch = pa.record_batch([values.cast(arrow)], schema=schema)
    sent = types.convert_batch(batch, wire)
    sent.validate(full=True)
    assert sent.schema == wire
    assert types.convert_batch(sent, schema).column(0).to_pylist() == batch.column(0).to_pylist()


@pytest.mark.parametrize(
    "arrow", [pa.month_day_nano_interval(), pa.decimal128(5, -2), pa.decimal256(60, 2), pa.list_(pa.decimal256(60, 2))]
)
def test_types_that_spark_cannot_represent_are_refused_with_the_column(arrow: pa.DataType) -> None:
    with pytest.raises(UnsupportedFeatureError, match="'c"):
        types.spark_schema(pa.schema([pa.field("c", arrow)]))


def test_a_cast_that_would_lose_digits_is_refused() -> None:
    batch = pa.record_batch([pa.array([1], pa.timestamp("ns"))], names=["t"])
    with pytest.raises(SchemaMismatchError, match="'t'"):
        types.convert_batch(batch, pa.schema([("t", pa.timestamp("us"))]))


def test_vector_columns_are_found_regardless_of_case() -> None:
    from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

    schema = StructType([StructField("MyVec", ArrayType(FloatType()))])
    assert types.table_schema(schema, {"myvec": 3}).field("MyVec").type == pa.list_(pa.float32(), 3)


def test_vector_columns_of_new_tables_have_a_fixed_size() -> None:
    from pyspark.sql.types import ArrayType, FloatType, LongType, StructField, StructType

    schema = StructType([StructField("id", LongType()), StructField("emb", ArrayType(FloatType()))])
    assert types.table_schema(schema, {"emb": 4}).field("emb").type == pa.list_(pa.float32(), 4)
    assert types.table_schema(schema).field("emb").type == pa.list_(pa.float32())
    with pytest.raises(InvalidInputError, match="id"):
        types.table_schema(schema, {"id": 4})
    with pytest.raises(InvalidInputError, match="nope"):
        types.table_schema(schema, {"nope": 4})
