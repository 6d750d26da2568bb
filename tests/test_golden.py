"""Tables written by pylance, kept in tests/golden, read equal: contents, row ids, takes, filters, tags, versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable

GOLDEN = Path(__file__).parent / "golden"
ENTRIES = json.loads((GOLDEN / "index.json").read_text())["entries"]


def expected(name: str) -> pa.Table:
    with pa.OSFile(str(GOLDEN / name)) as source:
        return pa.ipc.open_file(source).read_all()


def assert_same(found: pa.Table, wanted: pa.Table) -> None:
    assert found.schema.names == wanted.schema.names
    assert found.schema.types == wanted.schema.types
    assert found.num_rows == wanted.num_rows
    for name in wanted.schema.names:
        # repr treats NaN as equal to itself and distinguishes 0.0 from -0.0
        assert repr(found[name].to_pylist()) == repr(wanted[name].to_pylist()), name


def facts_of(entry: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads((GOLDEN / entry["facts"]).read_text()))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])
def test_files_of_pylance_are_read(entry: dict[str, Any]) -> None:
    uri, facts = GOLDEN / entry["path"], facts_of(entry)
    latest = lancetable.dataset(uri)
    assert latest.version == facts["latest"]
    assert latest.has_stable_row_ids == facts["stable_row_ids"]
    assert {name: tag["version"] for name, tag in latest.tags.list().items()} == facts["tags"]
    assert latest.config() == facts["config"]
    assert [ref["version"] for ref in latest.versions()] == [version["version"] for version in facts["versions"]]
    for version in facts["versions"]:
        dataset = lancetable.dataset(uri, version=version["version"])
        assert str(dataset.schema) == version["schema"]
        assert dataset.count_rows() == version["rows"]
        assert_same(dataset.to_table(), expected(version["expected"]))
        meta = expected(version["rowmeta"])
        assert_same(dataset.to_table(columns=meta.schema.names), meta)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])
def test_takes_and_filters_equal_those_of_pylance(entry: dict[str, Any]) -> None:
    dataset, facts = lancetable.dataset(GOLDEN / entry["path"]), facts_of(entry)
    for take in facts["takes"]:
        assert_same(dataset.take(take["indices"]), expected(take["expected"]))
    for case in facts["filters"]:
        found = dataset.to_table(columns=["k"], filter=case["filter"])
        assert found["k"].to_pylist() == case["keys"], case["filter"]
        assert dataset.count_rows(case["filter"]) == len(case["keys"])
