"""`lancetable.vector`: tables of vectors as those of pylance, and typed errors for what needs an index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

import lancetable.vector
from lancetable import scope
from lancetable.errors import InvalidInputError, UnsupportedFeatureError
from lancetable.vector import vec_to_table

ARRAY = np.arange(6).reshape(2, 3)
CALLS: list[tuple[Any, dict[str, Any]]] = [
    ({"a": [1, 2], "b": [3, 4]}, {}),
    ({1: [1, 2], 2: [3, 4]}, {"names": ["x", "y"]}),
    ({"a": [1, 2]}, {"names": "x"}),
    ({"a": [1, 2]}, {"names": ["x"]}),
    ({"a": [1, 2], "b": [3]}, {}),
    ({"a": [[1, 2], [3, 4]]}, {}),
    ({"a": 5}, {}),
    ({1: [1], "a": [2]}, {}),
    ([[1, 2], [3, 4]], {"names": "v"}),
    ([[1, 2], [3, 4]], {"names": ["v"]}),
    ([[1, 2], [3, 4]], {"names": ["v", "w"]}),
    ([[1, 2], [3, 4]], {"ndim": 2}),
    ([[1, 2], [3, 4]], {"ndim": 3}),
    ([[1, 2], [3]], {}),
    ([[1, 2], [3]], {"check_ndim": False}),
    ([[1, 2, 3], [4, 5, 6]], {"ndim": 2, "check_ndim": False}),
    ([[1, None]], {}),
    ([(1, 2)], {}),
    ([np.array([1.0, 1e40])], {}),
    ([[]], {}),
    ([["a"]], {}),
    ([None], {}),
    ([1, 2], {}),
    (ARRAY, {}),
    (ARRAY.astype(np.float16), {}),
    (np.asfortranarray(ARRAY), {"names": ["v"]}),
    (ARRAY, {"ndim": 2, "check_ndim": False}),
    (np.arange(8).reshape(2, 2, 2), {}),
    (np.arange(6), {}),
    ((1, 2), {}),
    (None, {}),
    (pa.array([[1]]), {}),
]


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize(("data", "options"), CALLS, ids=range(len(CALLS)))
def test_a_call_has_the_result_of_pylance(data: Any, options: dict[str, Any]) -> None:
    theirs = pytest.importorskip("lance.vector")
    try:
        expected = theirs.vec_to_table(data, **options)
    except Exception as error:
        builtin = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
        with pytest.raises(builtin):
            vec_to_table(data, **options)
    else:
        assert str(vec_to_table(data, **options)) == str(expected)


@given(stn.arrays(np.float64, stn.array_shapes(min_dims=2, max_dims=2), elements=st.floats(width=32, allow_nan=False)))
def test_arrays_lists_and_dicts_are_converted_to_the_tables_of_pylance(array: np.ndarray[Any, Any]) -> None:
    theirs = pytest.importorskip("lance.vector")
    for data in (array, list(array), dict(enumerate(array))):
        assert vec_to_table(data).equals(theirs.vec_to_table(data))


@pytest.mark.parametrize("data", [[], {}, np.zeros((0, 3))], ids=["list", "dict", "array"])
def test_no_vectors_are_refused(data: Any) -> None:
    with pytest.raises(InvalidInputError, match="no vectors"):
        vec_to_table(data)


def test_functions_that_need_an_index_are_out_of_scope() -> None:
    for name in scope.missing_names(scope.VECTOR):
        with pytest.raises(UnsupportedFeatureError, match=f"lancetable.vector.{name}: .*vector(s| indexes)"):
            getattr(lancetable.vector, name)()
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = lancetable.vector.no_such_name  # type: ignore[attr-defined]


def test_every_public_function_of_pylance_exists() -> None:
    theirs = pytest.importorskip("lance.vector")
    names = [name for name, value in vars(theirs).items() if getattr(value, "__module__", "") == theirs.__name__]
    assert [name for name in names if not name.startswith("_") and not hasattr(lancetable.vector, name)] == []
