"""Numbers for keys: both forms of every kernel compared with Python's dict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lancetable.file import kernels
from lancetable.file.kernels import key_tables

FORMS = [None, kernels.native_keys] if kernels.native_keys is not None else [None]


@pytest.fixture(params=FORMS, ids=["numpy", "native"][: len(FORMS)])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(key_tables, "native", request.param)
    yield


def strings(values: list[bytes], dtype: Any = np.int32, before: bytes = b"xyz") -> tuple[Any, Any]:
    """Return ends and bytes of values that are preceded by other bytes, as in a slice."""
    ends = np.cumsum([len(before), *map(len, values)]).astype(dtype)
    return ends, np.frombuffer(before + b"".join(values), np.uint8)


@pytest.mark.parametrize("kind", ["near", "far", "few", "narrow", "none"])
def test_hash_tables_return_the_first_row_of_each_number(kind: str, form: None) -> None:
    rng = np.random.default_rng(3)
    if kind == "narrow":
        numbers = rng.integers(-128, 128, 300).astype(np.int8)
    else:
        spread = {"near": 500, "far": 2**62, "few": 3, "none": 9}[kind]
        numbers = rng.integers(-spread, spread, 0 if kind == "none" else 700)
        numbers = np.concatenate([numbers, numbers[::3]])
    valid = rng.random(len(numbers)) < 0.8
    table = key_tables.table_of(numbers, valid)
    first: dict[int, int] = {}
    for row in np.flatnonzero(valid).tolist():
        first.setdefault(int(numbers[row]), row)
    expected = [first[int(each)] if here else -1 for each, here in zip(numbers, valid, strict=True)]
    assert table.first_rows.tolist() == expected
    wanted = np.concatenate([numbers, rng.integers(-100, 100, 200).astype(numbers.dtype)])
    rng.shuffle(wanted)
    found = [first.get(int(each), -1) for each in wanted]
    assert table.find(wanted).tolist() == found
    hits, rows = table.matches(wanted)
    assert hits.tolist() == [place for place, row in enumerate(found) if row >= 0]
    assert rows.tolist() == [row for row in found if row >= 0]


def test_extreme_numbers_are_found(form: None) -> None:
    ends = np.array([2**63 - 1, -(2**63), 0, 2**63 - 1])
    assert key_tables.table_of(ends, None).first_rows.tolist() == [0, 1, 2, 0]
    table = key_tables.table_of(np.array([2**63 - 2, 2**63 - 1]), None)
    assert table.find(np.array([-(2**63), 2**63 - 1, 2**63 - 2, 5])).tolist() == [-1, 1, 0, -1]
    assert table.matches(np.array([-(2**63), 2**63 - 1]))[0].tolist() == [1]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_hashes_of_distinct_values_differ_and_both_forms_agree(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    values = [rng.bytes(int(size)) for size in rng.integers(0, 40, 2000)] + [b"a" * k for k in range(30)] + [b"\0", b""]
    found = []
    for native in FORMS:
        monkeypatch.setattr(key_tables, "native", native)
        found.append(key_tables.hash_values(*strings(values, dtype)))
    assert all((each == found[0]).all() for each in found)
    assert len(set(found[0].tolist())) == len(set(values))
    # The bytes before and behind a value do not matter.
    again = key_tables.hash_values(*strings(values[::-1], dtype, b""))[::-1]
    assert (again == found[0]).all()


def test_values_are_compared_byte_by_byte(form: None) -> None:
    one, other = strings([b"ab", b"", b"abc", b"x" * 100]), strings([b"x" * 100, b"abd", b"ab", b""], before=b"")
    for rows, others, equal in [
        ([0, 1, 3], [2, 3, 0], True),
        ([2], [1], False),
        ([0], [1], False),
        ([1], [0], False),
        ([], [], True),
    ]:
        found = key_tables.equal_values(*one, np.array(rows, np.int64), *other, np.array(others, np.int64))
        assert found is equal, (rows, others)


def test_native_ends_are_checked() -> None:
    if kernels.native_keys is None:
        pytest.skip("the compiled kernels are not built or switched off")
    for ends in ([0, 4], [0, 3, 2], [-1, 2], []):
        with pytest.raises(ValueError):
            key_tables.hash_values(np.array(ends, np.int32), np.frombuffer(b"abc", np.uint8))
