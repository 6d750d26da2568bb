from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lancetable.format.schema import Schema
from lancetable.testing.strategies import NULL_FRACTIONS, TYPE_CASES

# Leaf types in the type table of the format. Each must occur in some case, at any depth.
LEAVES = {
    *(
        [
            "null",
            "bool",
            "halffloat",
            "float",
            "double",
            "string",
            "large_string",
            "binary",
            "large_binary",
            "json",
            "date32:day",
            "date64:ms",
        ]
    ),
    *(f"{sign}int{width}" for sign in ("", "u") for width in (8, 16, 32, 64)),
    *(["time32:s", "time32:ms", "time64:us", "time64:ns", "duration:s", "duration:ms", "duration:us", "duration:ns"]),
    *(f"timestamp:{unit}:{zone}" for unit in ("s", "ms", "us", "ns") for zone in ("-", "UTC", "+05:30")),
    *(["list", "list.struct", "large_list", "large_list.struct", "struct"]),
}


def test_every_type_of_the_format_has_a_case():
    logical_types = {
        field.logical_type
        for case in TYPE_CASES.values()
        for field in Schema.from_arrow(pa.schema([case.field()])).walk()
    }
    assert logical_types >= LEAVES
    heads = {logical_type.partition(":")[0] for logical_type in logical_types}
    assert heads >= {"fixed_size_list", "fixed_size_binary", "decimal", "dict"}
    fields = [Schema.from_arrow(pa.schema([case.field()])).fields[0] for case in TYPE_CASES.values()]
    assert any(field.is_packed for field in fields) and any(field.is_blob for field in fields)
    assert {"arrow.uuid", "lance.json", "arrow.bool8"} <= {field.extension_name for field in fields}


@pytest.mark.parametrize("name", sorted(TYPE_CASES))
@pytest.mark.parametrize("null_fraction", NULL_FRACTIONS)
def test_cases_build_valid_arrays(name, null_fraction):
    case = TYPE_CASES[name]
    for size in (0, 1, 100):
        array = case(np.random.default_rng(size), size, null_fraction)
        array.validate(full=True)
        assert len(array) == size
        assert case.table(np.random.default_rng(size), size, null_fraction).schema.field(0).equals(case.field())


def test_null_fraction_determines_the_nulls():
    rng = np.random.default_rng(3)
    for case in TYPE_CASES.values():
        if pa.types.is_struct(case.data_type) or pa.types.is_null(case.data_type) or not case.allows_nulls:
            continue
        assert case(rng, 200, 0.0).null_count == 0, case.name
        assert 0 < case(rng, 200, 0.3).null_count < 200, case.name
        assert case(rng, 200, 1.0).null_count == 200, case.name


def test_edge_values_occur():
    rng = np.random.default_rng(4)
    doubles = TYPE_CASES["double"](rng, 500).to_numpy()
    assert np.isnan(doubles).any() and np.isinf(doubles).any() and (np.signbit(doubles) & (doubles == 0)).any()
    lists = TYPE_CASES["list<int32>"](rng, 500, 0.3)
    assert 0 in lists.value_lengths().to_pylist()
    assert lists.values.null_count > 0
    assert "" in TYPE_CASES["string"](rng, 500).to_pylist()
    assert TYPE_CASES["int64"](rng, 500).to_numpy().min() == -(2**63)
