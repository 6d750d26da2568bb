"""JSON functions return the same values and errors as those of pylance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import InvalidSqlError

theirs = pytest.importorskip("lance", exc_type=ImportError)

DOCUMENTS = [
    '{"a":1,"b":{"c":[1,2,"x"],"d":null},"s":"txt","t":true,"f":1.5,"n":null,"num":"42","a.b":7,"l":[{"k":1},{"k":[2,3]}]}',
    "[1,2,3]",
    '"text"',
    "null",
    None,
    '{"a":"1","t":"Yes","f":2,"s":5,"b":[],"l":[1,1.5,true,null,"x","\\"q\\"",{"k":1},[5]]}',
    '{"a":-2.5,"t":false,"s":true,"f":"1e3","é":{"x y":[7]}}',
    "{}",
    '{"a":18446744073709551615,"s":"é\\n\\"q\\"","f":1e20,"num":"abc"}',
]
PATHS = """
$.a|$.b|$.b.c|$.b.c[0]|$.b.c[*]|b.c[1]|$.b.c[0 to 1]|$.b.c[last]|$.b.c[last - 1]|$.b.c[2,0]|$.b.c[1 to last]|$.l[*].k
$.l[*]|$.n|$.s|$|$[1]|[0]|$.zz|$."a.b"|$["a"]|$.é."x y"[0]|$.b.*|$.l[9]|$.a[*]|$.b.c[2 to 1]|$.b.c[1 to 9]|$ .a|$:a|a:b
$.|bad[|$..k|$['a']|$.k-x|$o|$.b..c|$.[0]|lax $.a
"""
KEYS = ["a", "b", "s", "t", "f", "n", "num", "0", "a.b", "$", "zz", "l"]
VALUES = ["1", "'1'", "1.5", "'x'", "'q'", "'{\"k\":1}'", "true", "'[5]'", "''", "null"]


def expressions() -> list[str]:
    texts = []
    for path in PATHS.replace("\n", "|").strip("|").split("|"):
        quoted = path.replace("'", "''")
        texts += [f"{name}(j, '{quoted}')" for name in ("json_extract", "json_exists", "json_array_length")]
    for key in KEYS:
        texts += [f"json_get{kind}(j, '{key}')" for kind in ("", "_string", "_int", "_float", "_bool")]
    texts += [
        f"json_array_contains(j, '{path}', {value})" for path in ("$.b.c", "$.l", "$", "l[*].k") for value in VALUES
    ]
    texts += [
        "json_get(json_get(j, 'b'), 'c')",
        "json_get(j, 1)",
        "json_get(j, null)",
        "json_get_int(json_get(j, 'l'), '0')",
    ]
    texts += ["json_get(k, 'a')", "json_extract('{}', '$')", "json_extract(j)", "json_exists(j, '$.a', 1)"]
    return texts


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[Any]]:
    """Write one table per document, because one failing value makes the whole read fail."""
    made, ours = [], []
    root: Path = tmp_path_factory.mktemp("json")
    for number, text in enumerate(DOCUMENTS):
        rows = pa.table({"k": [0], "j": pa.array([text], pa.json_())})
        made.append(theirs.write_dataset(rows, root / str(number), data_storage_version="2.1"))
        ours.append(lancetable.dataset(root / str(number)))
    return made, ours


def answer(ds: Any, text: str) -> Any:
    try:
        return ds.to_table(columns={"r": text})["r"].to_pylist()[0]
    except (ValueError, OSError):
        return "refused"


@pytest.mark.parametrize("text", expressions())
def test_functions_return_the_same_values_as_pylance(tables: tuple[list[Any], list[Any]], text: str) -> None:
    expected = [answer(dataset, text) for dataset in tables[0]]
    actual = [answer(dataset, text) for dataset in tables[1]]
    if "refused" in actual and all(value == "refused" or value is None for value in actual + expected):
        return  # pylance reports an invalid path only if it evaluates a value
    assert actual == expected


def test_json_functions_in_filters(tmp_path: Path) -> None:
    rows = pa.table({"k": range(4), "j": pa.array(['{"a":1}', '{"a":"5"}', "{}", None], pa.json_())})
    ds = lancetable.write_dataset(rows, tmp_path / "t")
    for text, expected in {
        "json_get_int(j, 'a') > 1": [1],
        "json_get(j, 'a') IS NOT NULL": [0, 1],
        "json_extract(j, '$.a') = '\"5\"'": [1],
        "NOT json_exists(j, '$.a')": [2],
    }.items():
        assert ds.to_table(columns=["k"], filter=text)["k"].to_pylist() == expected, text
    with pytest.raises(InvalidSqlError, match="invalid JSON path"):
        ds.to_table(filter="json_exists(j, '$..a')")
