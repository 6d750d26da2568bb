"""Metadata of data files written elsewhere, and schemas of pydantic models, compared with those of pylance."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, Optional

import lance
import pyarrow as pa
import pydantic
import pytest

import lancetable
from lancetable.file import LanceFileWriter
from lancetable.fragment import DataFile
from lancetable.pydantic_models import schema_of_model, snake_case

SCHEMA = pa.schema(
    [
        pa.field("a", pa.int64()),
        pa.field("s", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())])),
        pa.field("l", pa.list_(pa.int8())),
    ]
)
ROWS = pa.table({"a": [1, 2], "s": [{"x": 1, "y": "p"}, {"x": None, "y": None}], "l": [[1], []]}, schema=SCHEMA)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_an_added_data_file_replaces_columns(tmp_path: Path, version: str) -> None:
    ds = lancetable.write_dataset(ROWS, tmp_path / "t", data_storage_version=version)
    part = pa.schema([SCHEMA.field("a")])
    with LanceFileWriter(str(tmp_path / "t/data/new.lance"), part, version=version) as writer:
        writer.write_batch(pa.table({"a": [7, 8]}, schema=part))
    file = DataFile.create(ds, "new.lance")
    theirs = lance.fragment.DataFile.create(lance.dataset(ds.uri), "new.lance")
    assert (file.fields, file.column_indices, file.file_size_bytes) == (
        theirs.fields,
        theirs.column_indices,
        theirs.file_size_bytes,
    )
    # A replacement needs a file that holds just these fields.
    ds.alter_columns({"path": "a", "data_type": pa.int32()}, {"path": "l", "nullable": True})
    ds.alter_columns({"path": "a", "data_type": pa.int64()})
    group = lancetable.LanceOperation.DataReplacementGroup(0, DataFile.create(ds, "new.lance"))
    ds = lancetable.LanceDataset.commit(ds, lancetable.LanceOperation.DataReplacement([group]), read_version=ds.version)
    assert lance.dataset(ds.uri).to_table().to_pydict() == ds.to_table().to_pydict()
    assert ds.to_table()["a"].to_pylist() == [7, 8]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_an_added_fragment_is_readable(tmp_path: Path, version: str) -> None:
    ds = lancetable.write_dataset(ROWS, tmp_path / "t", data_storage_version=version)
    metadata = ds.get_fragments()[0].metadata
    found = lancetable.LanceFragment.create_from_file(metadata.files[0].path, ds, 0)
    assert (found.files, found.physical_rows) == (metadata.files, 2)


def test_a_file_with_another_schema_is_refused(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(ROWS, tmp_path / "t")
    for name, kind in (("zz", pa.int8()), ("a", pa.string())):
        with LanceFileWriter(str(tmp_path / f"t/data/{name}.lance"), pa.schema([pa.field(name, kind)])) as writer:
            writer.write_batch(pa.table({name: pa.array([None], kind)}))
        with pytest.raises(lancetable.SchemaMismatchError, match=name):
            DataFile.create(ds, f"{name}.lance")
    with pytest.raises(lancetable.NotFoundError):
        DataFile.create(ds, "nope.lance")
    with pytest.raises(lancetable.LanceError):
        DataFile.create(ds, "../../outside.lance")


class Part(pydantic.BaseModel):
    x: int
    y: Optional[float] = None  # noqa: UP045  # the older spelling is read too


class FlightPlan(pydantic.BaseModel):
    number: int
    name: str | None
    legs: list[int]
    part: Part
    other: Part | None = None
    at: datetime.datetime
    raw: bytes
    notes: list[str | None]
    day: datetime.date
    done: bool


def test_tables_of_pydantic_models_equal_those_of_pylance(tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5)  # models hold naive times
    data = [
        FlightPlan(
            number=number,
            name=None,
            legs=[1, 2],
            part=Part(x=1),
            at=moment,
            raw=b"r",
            notes=[None],
            day=moment.date(),
            done=True,
        )
        for number in range(3)
    ]
    tables = [
        library.LanceDataset.from_pydantic_model(FlightPlan, data, tmp_path / library.__name__)
        for library in (lance, lancetable)
    ]
    assert tables[0].schema == tables[1].schema
    assert tables[0].to_table() == tables[1].to_table()
    assert snake_case("FlightPlan") == "flight_plan"


class Endless(pydantic.BaseModel):
    next: Optional[Endless]  # noqa: UP045


class Odd(pydantic.BaseModel):
    what: Any


@pytest.mark.parametrize("model", [Endless, Odd])
def test_models_with_unsupported_types_are_refused(model: Any) -> None:
    with pytest.raises(lancetable.InvalidSchemaError):
        schema_of_model(model)


def test_objects_other_than_models_are_refused() -> None:
    with pytest.raises(TypeError):
        schema_of_model(dict)
    with pytest.raises(TypeError):
        lancetable.LanceDataset.from_pydantic_model(Part, [{"x": 1}], "memory://models")
