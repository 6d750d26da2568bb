"""Conversion of tabular input to one stream of batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pytest

from lancetable.errors import InvalidInputError, SchemaMismatchError
from lancetable.tabular_input import read_input

TABLE = pa.table({"a": pa.array([1, 2, 3], pa.int64()), "s": ["x", None, "z"]})
ROWS = TABLE.to_pylist()


@dataclass
class Capsule:
    """Object that has an Arrow C stream and nothing else."""

    table: pa.Table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


class Model:
    """The part of a pydantic model that read_input uses."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def model_dump(self) -> dict[str, Any]:
        return self._values


def frames() -> list[Any]:
    pd = pytest.importorskip("pandas")
    pl = pytest.importorskip("polars")
    return [pd.DataFrame({"a": [1, 2, 3], "s": ["x", None, "z"]}), pl.from_arrow(TABLE), pl.from_arrow(TABLE).lazy()]


@pytest.mark.parametrize(
    "make",
    [
        lambda: TABLE,
        lambda: TABLE.to_batches()[0],
        lambda: TABLE.to_reader(),
        lambda: pads.dataset(TABLE),
        lambda: pads.dataset(TABLE).scanner(),
        lambda: Capsule(TABLE),
        lambda: TABLE.to_pydict(),
        lambda: ROWS,
        lambda: [Model(**row) for row in ROWS],
        lambda: frames()[0],
        lambda: frames()[1],
        lambda: frames()[2],
    ],
)
def test_every_kind_of_input_has_the_same_rows(make: Any) -> None:
    source = read_input(make())
    assert pa.Table.from_batches(list(source.batches), source.schema).to_pylist() == ROWS


def test_polars_strings_are_not_imported_as_views() -> None:
    assert read_input(frames()[1]).schema.field("s").type == pa.large_string()


def test_iterables_need_a_schema() -> None:
    with pytest.raises(InvalidInputError, match="schema"):
        read_input(iter(TABLE.to_batches()))
    with pytest.raises(InvalidInputError, match="schema"):
        read_input([])
    source = read_input(iter(TABLE.to_batches()), TABLE.schema)
    assert sum(batch.num_rows for batch in source.batches) == 3


@pytest.mark.parametrize("data", [3, 3.5, None, object()])
def test_data_that_is_not_tabular_raises_type_error(data: Any) -> None:
    with pytest.raises(TypeError, match="tabular"):
        read_input(data)


def test_batches_of_another_schema_are_cast_by_name() -> None:
    wanted = pa.schema({"s": pa.large_string(), "a": pa.int32()})
    for data in (TABLE, TABLE.to_reader(), iter(TABLE.to_batches()), [TABLE]):
        source = read_input(data, wanted)
        assert source.schema == wanted
        assert [batch.schema for batch in source.batches] == [wanted]


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema({"a": pa.int64()}),
        pa.schema({"a": pa.int64(), "s": pa.string(), "t": pa.int8()}),
        pa.schema({"a": pa.int64(), "s": pa.int64()}),
        pa.schema([pa.field("a", pa.int64()), pa.field("s", pa.string(), nullable=False)]),
    ],
)
def test_data_that_does_not_fit_the_given_schema_is_rejected(schema: pa.Schema) -> None:
    with pytest.raises(SchemaMismatchError):
        list(read_input(TABLE, schema).batches)
    with pytest.raises(SchemaMismatchError):
        list(read_input(iter(TABLE.to_batches()), schema).batches)


def test_iterable_of_other_objects_raises_type_error() -> None:
    with pytest.raises(TypeError, match="RecordBatch"):
        list(read_input([1, 2], TABLE.schema).batches)


def test_exception_of_the_input_iterator_is_raised_unchanged() -> None:
    class Mine(Exception):
        pass

    def batches() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        raise Mine("stop")

    for data in (batches(), pa.RecordBatchReader.from_batches(TABLE.schema, batches())):
        with pytest.raises(Mine, match="stop"):
            list(read_input(data, TABLE.schema).batches)


def test_input_is_read_lazily() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        raise AssertionError("read too early")
        yield

    read_input(batches(), TABLE.schema)


def test_metadata_must_be_strings() -> None:
    with pytest.raises(InvalidInputError, match="utf8"):
        read_input(TABLE.replace_schema_metadata({"k": b"\xff"}))
    with pytest.raises(InvalidInputError, match="column 'a'"):
        read_input(pa.table([[1]], pa.schema([pa.field("a", pa.int64(), metadata={"k": b"\xff"})])))
