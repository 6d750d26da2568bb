"""Random frames of every type that Spark can represent, read and written by Spark, and read by pylance."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lancetable
from lancetable.errors import UnsupportedFeatureError
from lancetable.testing.strategies import NULL_FRACTIONS, TYPE_CASES, TypeCase
from tests.support.nested import comparable

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.spark import types

# Types that Spark does not have, and those that are read as other ones (blobs as descriptions).
NOT_MAPPED = {"decimal128(5, -2)", "decimal256(76, 20)"}
if not hasattr(pytest.importorskip("pyspark.sql.types"), "TimeType"):  # new in PySpark 4.1
    NOT_MAPPED |= {name for name in TYPE_CASES if name.startswith(("time32", "time64"))}
NOT_SYMMETRIC = {"blob"}
COLUMNS = 24
ROWS = 300


def is_mapped(case: TypeCase) -> bool:
    try:
        types.spark_schema(pa.schema([case.field()]))
    except UnsupportedFeatureError:
        return False
    return True


def whole_microseconds(array: pa.Array) -> pa.Array:
    """Truncate nanoseconds to microseconds, because Spark refuses smaller units (`test_types.py`)."""
    if getattr(array.type, "unit", None) != "ns":
        return array
    whole = pc.multiply(pc.divide(array.view(pa.int64()), 1000), 1000)
    return whole.view(array.type)


def maps(rng: np.random.Generator, n: int) -> pa.Array:
    """Return random maps, which `TYPE_CASES` lacks because only files of 2.2 can store them."""
    rows = [
        None if rng.random() < 0.2 else [(f"k{key}", None if rng.random() < 0.3 else key * 7) for key in range(size)]
        for size in rng.integers(0, 4, n)
    ]
    return pa.array(rows, pa.map_(pa.string(), pa.int32()))


def frames(rng: np.random.Generator, drawn: Counter[str]) -> list[pa.Table]:
    """Return tables that together contain every mapped type once, in random order."""
    names = [name for name in TYPE_CASES if name not in NOT_MAPPED | NOT_SYMMETRIC]
    rng.shuffle(names)
    found = []
    for start in range(0, len(names), COLUMNS):
        fields, arrays = [pa.field("id", pa.int64())], [pa.array(np.arange(ROWS))]
        for number, name in enumerate(names[start : start + COLUMNS]):
            case = TYPE_CASES[name]
            fields.append(case.field(f"c{number}"))
            arrays.append(whole_microseconds(case(rng, ROWS, float(rng.choice(NULL_FRACTIONS[:2])))))
            drawn[name] += 1
        fields.append(pa.field("m", pa.map_(pa.string(), pa.int32())))
        arrays.append(maps(rng, ROWS))
        # pylance 14 fails if a column follows an empty struct, so empty structs are last.
        order = sorted(range(len(fields)), key=lambda place: fields[place].type == pa.struct([]))
        found.append(pa.table([arrays[place] for place in order], schema=pa.schema([fields[place] for place in order])))
    return found


def differences(seen: pa.Table, expected: pa.Table) -> list[str]:
    seen = seen.sort_by("id") if seen["id"].to_pylist() != expected["id"].to_pylist() else seen
    assert seen["id"].to_pylist() == expected["id"].to_pylist()
    return [
        f"{field.name}: {field.type}"
        for field in expected.schema
        if not comparable(seen[field.name]).equals(comparable(expected[field.name]))
    ]


def test_types_without_a_mapping_are_listed() -> None:
    assert {name for name, case in TYPE_CASES.items() if not is_mapped(case)} == NOT_MAPPED


@pytest.mark.parametrize("name", sorted(set(TYPE_CASES) - NOT_MAPPED))
def test_batches_are_converted_to_the_form_of_spark_and_back(name: str) -> None:
    case = TYPE_CASES[name]
    schema = pa.schema([case.field()])
    wire = types.wire_schema(types.spark_schema(schema))
    array = whole_microseconds(case(np.random.default_rng(3), 100, 0.3))
    for part in (array, array.slice(13, 50), array.slice(5, 0)):
        sent = types.convert_batch(pa.record_batch([part], schema=schema), wire)
        sent.validate(full=True)
        assert sent.schema == wire
        for rows in (sent, sent.slice(3, 7)):
            back = types.convert_batch(rows, schema)
            back.validate(full=True)
            expected = part if rows is sent else part.slice(3, 7)
            assert comparable(back.column(0)).equals(comparable(expected))


@pytest.mark.spark
def test_random_frames_of_every_mapped_type_round_trip(spark: Any, tmp_path: Path, scale: int) -> None:
    from lancetable.spark import SparkTable, write_table

    drawn: Counter[str] = Counter()
    for seed in range(max(1, scale // 4)):
        for number, table in enumerate(frames(np.random.default_rng(seed), drawn)):
            made, copy, new = (str(tmp_path / f"{seed}-{number}-{name}.lance") for name in ("made", "copy", "new"))
            dataset = lancetable.write_dataset(table, made, data_storage_version="2.2", max_rows_per_file=130)
            if number % 2:
                frame = SparkTable.for_path(spark, made).to_df(target_rows_per_task=70)
            else:
                frame = spark.read.format("lance").option("target_rows_per_task", "70").load(made)
            wire = types.wire_schema(frame.schema)
            sent = pa.Table.from_batches(
                [types.convert_batch(batch, wire) for batch in table.to_batches()], schema=wire
            )
            assert not differences(frame.toArrow(), sent)

            # Written to a table of the same types, and to one of the types that Spark chooses.
            lancetable.write_dataset(dataset.schema.empty_table(), copy, data_storage_version="2.2")
            write_table(frame, copy, "append")
            assert not differences(lance.dataset(copy).to_table().sort_by("id"), table)
            write_table(frame, new, data_storage_version="2.2")
            assert not differences(lance.dataset(new).to_table().sort_by("id"), sent)
            assert not differences(lancetable.dataset(new).to_table().sort_by("id"), sent)
    assert set(drawn) == set(TYPE_CASES) - NOT_MAPPED - NOT_SYMMETRIC
