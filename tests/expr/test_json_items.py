"""Items of JSONB values are those of the parsed documents."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.expr.evaluate import json_items
from lancetable.expr.evaluate.json_functions import find
from lancetable.expr.evaluate.json_items import Items, open_documents
from lancetable.format import jsonb

KEYS = st.sampled_from(["a", "b", "", "é", "ab"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 127, 128, -128, -129, 40000, -40000, 2**40, -(2**40), 2**63 - 1, 2**63, -(2**63)])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aé", max_size=3)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=12
)
STEPS: dict[str, Any] = {
    '["a"]': lambda value: [value["a"]] if isinstance(value, dict) and "a" in value else [],
    '[""]': lambda value: [value[""]] if isinstance(value, dict) and "" in value else [],
    ".é": lambda value: [value["é"]] if isinstance(value, dict) and "é" in value else [],
    ".*": lambda value: [value[key] for key in sorted(value, key=str.encode)] if isinstance(value, dict) else [],
    "[*]": lambda value: value if isinstance(value, list) else [value],
    "[1]": lambda value: value[1:2] if isinstance(value, list) else [],
    "[last - 1, 0]": lambda value: (value[-2:-1] if len(value) > 1 else []) + value[:1] if type(value) is list else [],
    "[0 to last]": lambda value: value if isinstance(value, list) else [],
}


def stored(values: list[Any]) -> pa.Array:
    texts = [None if value is None else json.dumps(value) for value in values]
    return jsonb.from_text(pa.array(texts, pa.string()), "j")


def rows_of(items: Items) -> list[tuple[int, Any]]:
    return [(row, json.loads(jsonb.text_of(item))) for row, item in zip(items.rows.tolist(), items)]


def same(found: list[tuple[int, Any]], expected: list[tuple[int, Any]]) -> bool:
    return json.dumps(found, sort_keys=True) == json.dumps(expected, sort_keys=True)


@given(
    values=st.lists(VALUES, max_size=6),
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=3),
    skip=st.integers(0, 2),
)
def test_paths_select_the_items_of_the_documents(values: list[Any], steps: list[str], skip: int) -> None:
    documents = stored([None, *values])[min(skip, len(values)) :]
    expected = [
        (row, value) for row, value in enumerate([None, *values][min(skip, len(values)) :]) if value is not None
    ]
    for step in steps:
        expected = [(row, found) for row, value in expected for found in STEPS[step](value)]
    assert same(rows_of(find(open_documents(documents), "$" + "".join(steps))), expected)


@given(values=st.lists(VALUES, max_size=6), key=st.sampled_from(["a", "", "é", "0", "1", "²", "9" * 30]))
def test_a_key_selects_a_member_or_an_element(values: list[Any], key: str) -> None:
    expected = []
    for row, value in enumerate(values):
        if isinstance(value, dict):
            expected += [(row, value[key])] if key in value else []
        elif isinstance(value, list) and key in ("0", "1"):
            expected += [(row, found) for found in value[int(key) : int(key) + 1]]
    assert same(rows_of(json_items.members_or_elements(open_documents(stored(values)), key)), expected)


@given(values=st.lists(SCALARS, max_size=20))
def test_values_have_the_types_of_scalars(values: list[Any]) -> None:
    items = find(open_documents(stored([values])), "$[*]")
    expected: dict[pa.DataType, list[tuple[int, Any]]] = {
        pa.bool_(): [(at, value) for at, value in enumerate(values) if type(value) is bool],
        pa.string(): [(at, value) for at, value in enumerate(values) if type(value) is str],
        pa.int64(): [(at, value) for at, value in enumerate(values) if type(value) is int and value < 2**63],
        pa.float64(): [(at, float(value)) for at, value in enumerate(values) if type(value) in (int, float)],
    }
    for data_type, pairs in expected.items():
        numbers, found = json_items.values_of_type(items, data_type)
        assert found.type == data_type
        assert list(zip(numbers.tolist(), found.to_pylist())) == pairs


@pytest.mark.parametrize("tag", jsonb.NOT_FINITE)
def test_numbers_that_are_not_finite_are_nan(tag: int) -> None:
    documents = pa.array([b"\x20\x00\x00\x00\x20\x00\x00\x01" + bytes([tag])], pa.large_binary())
    items = open_documents(documents)
    assert np.isnan(json_items.values_of_type(items, pa.float64())[1].to_numpy())
    assert not len(json_items.values_of_type(items, pa.int64())[0])


def test_the_last_value_of_a_repeated_key_is_found_and_invalid_utf8_is_replaced() -> None:
    (document,) = stored([{"a": "x", "b": "yé"}]).to_pylist()
    repeated = document.replace(b"ab", b"aa").replace("é".encode(), b"\xff\xff")
    items = find(open_documents(pa.array([repeated], pa.large_binary())), "a")
    assert json_items.values_of_type(items, pa.string())[1].to_pylist() == ["y\ufffd\ufffd"]


@given(value=VALUES, data=st.data())
def test_damage_is_detected_or_changes_items(value: Any, data: st.DataObject) -> None:
    (document,) = stored([[value]]).to_pylist()
    at = data.draw(st.integers(0, len(document) - 1))
    flipped = document[:at] + bytes([document[at] ^ data.draw(st.integers(1, 255))]) + document[at + 1 :]
    damaged = pa.array([document[:at] if data.draw(st.booleans()) else flipped, document], pa.large_binary())
    try:
        items = open_documents(damaged)
        for _ in range(4):
            for data_type in (pa.bool_(), pa.string(), pa.float64()):
                json_items.values_of_type(items, data_type)
            items = json_items.elements_or_items(items.select(~json_items.is_array(items)))
            items = json_items.all_members(items) if data.draw(st.booleans()) else json_items.elements(items)
    except CorruptFileError as error:
        assert "malformed JSONB value" in str(error)
