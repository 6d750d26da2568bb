"""Nested arrays to levels: worked examples with every kind of layer, slices and garbage under nulls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lancetable.file.encodings_v2_1.shred import Shredded, leaves_of, shred
from lancetable.format.schema import Schema

INTS = pa.list_(pa.int32())
DEEP = pa.list_(pa.struct([("x", pa.list_(pa.int32())), ("y", pa.int64())]))
DEEP_ROWS: list[Any] = [
    [{"x": [1, None], "y": 1}, None, {"x": [], "y": 2}, {"x": None, "y": None}],
    None,
    [],
    [{"x": [3], "y": 4}],
]


def shredded(array: pa.Array, plain_lists: bool = True) -> list[Shredded]:
    (field,) = Schema.from_arrow(pa.schema([pa.field("c", array.type)])).fields
    return [shred(array, leaf.steps, plain_lists=plain_lists) for leaf in leaves_of(field)]


def levels(levels: Any) -> list[int] | None:
    return None if levels is None else [int(level) for level in levels]


EXAMPLES = [
    # array, leaf, layers, repetition, definition, values
    (pa.array([1, None, 3]), 0, (3,), None, [0, 1, 0], [1, None, 3]),
    (pa.array([1, 2]), 0, (1,), None, None, [1, 2]),
    (pa.array([[1, 2], None, [], [3]], INTS), 0, (1, 6), [1, 0, 1, 1, 1], [0, 0, 1, 2, 0], [1, 2, 3]),
    (pa.array([[1], [2, 3]], INTS), 0, (1, 2), [1, 1, 0], None, [1, 2, 3]),
    (pa.array([[], [2]], INTS), 0, (1, 5), [1, 1], [1, 0], [2]),
    (pa.array(DEEP_ROWS, DEEP), 0, (3, 6, 3, 6), [2, 0, 1, 1, 1, 2, 2, 2], [0, 1, 4, 3, 2, 5, 6, 0], [1, None, 3]),
    (pa.array(DEEP_ROWS, DEEP), 1, (3, 3, 6), [1, 0, 0, 0, 1, 1, 1], [0, 2, 0, 1, 3, 4, 0], [1, None, 2, None, 4]),
    (
        pa.array([None, [{"a": 1}, {"a": None}], [None, {"a": 3}]], pa.list_(pa.struct([("a", pa.int32())]), 2)),
        0,
        (3, 3, 3),
        None,
        [3, 3, 0, 1, 2, 0],
        None,
    ),
    (
        pa.array([[("a", 1)], None, [], [("b", None), ("c", 3)]], pa.map_(pa.string(), pa.int32())),
        1,
        (3, 1, 6),
        [1, 1, 1, 1, 0],
        [0, 2, 3, 1, 0],
        [1, None, 3],
    ),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example[0].type)[:40])
def test_examples_have_the_expected_levels(example: tuple[Any, ...]) -> None:
    array, leaf, layers, repetition, definition, values = example
    found = shredded(array)[leaf]
    assert tuple(found.layers) == layers
    assert levels(found.repetition) == repetition
    assert levels(found.definition) == definition
    if values is not None:
        shown = [None if level else value for level, value in zip(_visible(found), found.values.to_pylist())]
        assert shown == values


def _visible(found: Shredded) -> list[int]:
    definition = found.visible_definition
    return [0] * len(found.values) if definition is None else definition.tolist()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example[0].type)[:40])
def test_slices_have_the_levels_of_their_rows(example: tuple[Any, ...]) -> None:
    array, leaf, *_ = example
    padded = pa.concat_arrays([array, array, array]).slice(len(array), len(array))
    found, wanted = shredded(padded)[leaf], shredded(array)[leaf]
    assert found.layers == wanted.layers
    assert levels(found.repetition) == levels(wanted.repetition)
    assert levels(found.definition) == levels(wanted.definition)
    assert len(found.values) == len(wanted.values)


def test_values_under_null_lists_are_dropped() -> None:
    valid = pa.py_buffer(np.packbits([True, False, True], bitorder="little"))
    offsets = pa.py_buffer(np.array([0, 1, 3, 4], np.int32))
    array = pa.Array.from_buffers(INTS, 3, [valid, offsets], children=[pa.array([1, 98, 99, 4], pa.int32())])
    (found,) = shredded(array)
    assert found.values.to_pylist() == [1, 4]
    assert levels(found.definition) == [0, 1, 0]


def test_lists_under_null_structs_are_hidden() -> None:
    lists = pa.array([[1], [98, 99], [4]], INTS)
    array = pa.StructArray.from_arrays([lists], ["l"], mask=pa.array([False, True, False]))
    (found,) = shredded(array)
    assert found.values.to_pylist() == [1, 4]
    assert found.layers[1] in (4, 6)  # the hidden list reads as null, so the layer must have a null
    assert levels(found.repetition) == [1, 1, 1]
    assert [level == 0 for level in levels(found.definition) or []] == [True, False, True]


def test_values_under_null_structs_may_be_null() -> None:
    """pylance treats them as null only then."""
    for mask, layers in (([False, True], (3, 3)), ([False, False], (1, 1))):
        array = pa.StructArray.from_arrays([pa.array([1, 2])], ["i"], mask=pa.array(mask))
        (found,) = shredded(array)
        assert found.layers == layers
        assert levels(found.definition) == ([0, 2] if any(mask) else None)


def test_old_readers_get_lists_that_may_be_null() -> None:
    nulls_inside = pa.array([[None, 1], [2]], INTS)
    nested = pa.array([[[1]], [[2], [3]]], pa.list_(INTS))
    assert shredded(nulls_inside)[0].layers == (3, 2)
    assert shredded(nulls_inside, plain_lists=False)[0].layers == (3, 4)
    assert shredded(nested)[0].definition is None
    assert shredded(nested, plain_lists=False)[0].layers == (1, 4, 4)
    assert levels(shredded(nested, plain_lists=False)[0].definition) == [0, 0, 0]


def test_only_nullable_structs_get_a_nullable_layer() -> None:
    """A nullable struct gets the layer even without nulls, because pylance requires it in all pages or in none."""
    kind = pa.struct([("l", pa.list_(pa.string()))])
    array = pa.array([{"l": ["a"]}, {"l": None}], kind)
    for nullable, layer in ((True, 3), (False, 1)):
        (field,) = Schema.from_arrow(pa.schema([pa.field("c", kind, nullable)])).fields
        (leaf,) = leaves_of(field)
        assert shred(array, leaf.steps).layers == (1, 4, layer)


def test_slices_of_nested_fixed_size_lists_under_null_lists_are_exact() -> None:
    """Arrow's take and filter return wrong items for such slices."""
    rows = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(pa.array(range(240)), 2), 3)
    structs = pa.StructArray.from_arrays([rows], ["f"])
    ends = pa.py_buffer(np.array([0, 10, 13, 15, 20, 40], np.int32))
    array = pa.Array.from_buffers(pa.list_(structs.type), 5, [pa.py_buffer(b"\x1b"), ends], children=[structs])
    (found,) = shredded(array.slice(1))
    items = [item["f"] for item in structs.to_pylist()]
    # The null list has an entry of its own.
    assert found.values.to_pylist() == [*items[10:13], *items[15:40]]
