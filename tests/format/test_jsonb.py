"""JSON columns: the strings that pylance returns and the bytes that it stores."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError, SchemaMismatchError
from lancetable.format.jsonb import from_text, to_text

TEXTS = [
    "null", "true", "false", "0", "1", "-1", "127", "128", "255", "256", "-128", "-129", "65536", "4294967296",
    "-4294967296", "18446744073709551615", "-9223372036854775808", "99999999999999999999", "1.5", "-0.0", "1e300",
    "0.1", "1.0", "1e5", "1e15", "1e16", "0.0001", "0.00001", "0.000012345", "1e-6", "1.5e-7", "5e-324", "1e400",
    '"abc"', '""', '"é\\n\\"\\u0001\\u007f/"', "[]", "{}", '[1,"a",null]', '[[[]],{"a":[]}]',
    '{"b":1,"a":[true,{"c":2.5}],"":3,"é":4,"aa":5}', ' { "x" : 1 }', None,
]  # fmt: skip


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[Any]]:
    """Return the bytes that pylance stores and the strings that it returns for `TEXTS`."""
    lance = pytest.importorskip("lance", reason="pylance is not installed")
    lance_file = pytest.importorskip("lance.file", reason="pylance is not installed")
    path = tmp_path_factory.mktemp("json") / "t"
    table = pa.table({"j": pa.array(TEXTS, pa.json_())})
    dataset = lance.write_dataset(table, str(path), data_storage_version="2.0")
    (file,) = Path(path / "data").iterdir()
    stored = lance_file.LanceFileReader(str(file)).read_all().to_table().column("j").combine_chunks()
    return [value.as_py() for value in stored], dataset.to_table().column("j").to_pylist()


def test_stored_bytes_equal_those_of_pylance(theirs: tuple[list[Any], list[Any]]) -> None:
    assert from_text(pa.array(TEXTS), "j").to_pylist() == theirs[0]


def test_strings_equal_those_of_pylance(theirs: tuple[list[Any], list[Any]]) -> None:
    assert to_text(pa.array(theirs[0], pa.large_binary())).to_pylist() == theirs[1]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abé", max_size=3), inner, max_size=4),
)  # fmt: skip


@given(value=values)
def test_values_round_trip(value: Any) -> None:
    stored = from_text(pa.array([json.dumps(value)]), "j")
    (text,) = to_text(stored).to_pylist()
    assert same(json.loads(text), value)
    assert from_text(pa.array([text]), "j").equals(stored)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other and (one != 0 or math.copysign(1, one) == math.copysign(1, other))


@pytest.mark.parametrize("text", ["", "{", "[1,]", "nope", "NaN", '{"a":1,"a":2}', '"\\ud800"', "[" * 100_000])
def test_invalid_json_is_refused(text: str) -> None:
    with pytest.raises(SchemaMismatchError, match="'j'"):
        from_text(pa.array([text]), "j")


@given(value=values, data=st.data())
def test_damage_is_detected_or_changes_values(value: Any, data: st.DataObject) -> None:
    (stored,) = from_text(pa.array([json.dumps(value)]), "j").to_pylist()
    at = data.draw(st.integers(0, len(stored) - 1))
    damaged = stored[:at] if data.draw(st.booleans()) else stored[:at] + bytes([stored[at] ^ 0x41]) + stored[at + 1 :]
    try:
        to_text(pa.array([damaged], pa.large_binary()))
    except CorruptFileError:
        pass


def test_too_deep_nesting_raises() -> None:
    inner = b"\x80\x00\x00\x00"
    for _ in range(1000):
        inner = b"\x80\x00\x00\x01" + (0x50000000 | len(inner)).to_bytes(4, "big") + inner
    with pytest.raises(CorruptFileError, match="nested"):
        to_text(pa.array([inner], pa.large_binary()))


def test_an_object_with_a_key_that_is_not_a_string_is_corrupt() -> None:
    (stored,) = from_text(pa.array(['{"a":1}']), "j").to_pylist()
    null_key = stored[:4] + b"\x00" + stored[5:]
    with pytest.raises(CorruptFileError, match="a key is not a string"):
        to_text(pa.array([null_key], pa.large_binary()))
