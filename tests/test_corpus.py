"""Every table of the corpus matches its recorded facts: versions, contents, schema, row ids, takes, filters, tags."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lancetable.ops.read.matching_rows import count_rows
from lancetable.ops.read.scan import execute_scan, scan_table
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.read.take import take_offsets, take_row_ids
from lancetable.table.manifest_files import history
from lancetable.table.version import TableVersion, open_version

ROW_META = ("_rowid", "_rowaddr", "_row_created_at_version", "_row_last_updated_at_version")


def entries() -> list[Any]:
    root = os.environ.get("LANCETABLE_CORPUS")
    if not root:
        return [pytest.param({}, id="no-corpus", marks=pytest.mark.skip(reason="LANCETABLE_CORPUS is not set"))]
    found = json.loads((Path(root) / "index.json").read_text())["entries"]
    return [pytest.param(entry, id=entry["id"]) for entry in found if entry["kind"] == "table"]


every_table = pytest.mark.parametrize("entry", entries())


def facts_of(corpus: Path, entry: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((corpus / entry["facts"]).read_text())
    return found


def arrow(corpus: Path, path: str) -> pa.Table:
    with pa.ipc.open_file(str(corpus / path)) as file:
        return file.read_all()


def readable(corpus: Path, entry: dict[str, Any]) -> Iterator[tuple[TableVersion, dict[str, Any]]]:
    """Yield every version of the main line and of branches that can be read at the current location of the corpus."""
    facts = facts_of(corpus, entry)
    uri = str(corpus / entry["path"])
    for version in facts["versions"]:
        yield open_version(uri, version["version"]), version
    for name, branch in facts.get("branches", {}).items():
        skipped = set(branch.get("not_relocatable", []))
        for version in branch["versions"]:
            if version["version"] not in skipped:
                yield open_version(uri, (name, version["version"])), version


def scan(version: TableVersion, **options: Any) -> pa.Table:
    return scan_table(version, plan_scan(version, ScanOptions(**options)))


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    """Check that values are equal, with NaN equal to NaN and 0.0 unequal to -0.0; dictionaries may be decoded."""
    assert found.num_rows == expected.num_rows
    assert found.schema.names == expected.schema.names
    for name in expected.schema.names:
        left, right = found.column(name), expected.column(name)
        assert repr(left.to_pylist()) == repr(right.to_pylist()), name


@every_table
def test_every_version_has_its_rows_and_schema(corpus: Path, entry: dict[str, Any]) -> None:
    seen = 0
    for version, facts in readable(corpus, entry):
        expected = arrow(corpus, facts["expected"])
        found = scan(version)
        assert_same(found, expected)
        if not any(pa.types.is_dictionary(field.type) for field in found.schema):
            assert found.schema.equals(expected.schema, check_metadata=True)
        batches = list(execute_scan(version, plan_scan(version, ScanOptions(batch_size=7))))
        assert_same(pa.Table.from_batches(batches, found.schema), expected)
        assert count_rows(version) == facts["rows"]
        seen += 1
    assert seen


@every_table
def test_row_ids_addresses_and_versions(corpus: Path, entry: dict[str, Any]) -> None:
    for version, facts in readable(corpus, entry):
        expected = arrow(corpus, facts["rowmeta"])
        names = [name for name in ROW_META if name in expected.schema.names]
        found = scan(version, columns=names)
        for name in names:
            assert found.column(name).to_pylist() == expected.column(name).to_pylist(), name
        ids = expected.column("_rowid").to_pylist()[::-3]
        if ids:
            assert take_row_ids(version, ids, ["_rowid"]).column(0).to_pylist() == ids


@every_table
def test_takes_of_the_latest_version(corpus: Path, entry: dict[str, Any]) -> None:
    facts = facts_of(corpus, entry)
    version = open_version(str(corpus / entry["path"]))
    everything = arrow(corpus, facts["versions"][-1]["expected"])
    for take in facts["takes"]:
        offsets = take["indices"]
        found = take_offsets(version, offsets)
        if take["expected"] is not None:
            assert_same(found, arrow(corpus, take["expected"]))
        assert_same(found, everything.take(pa.array(offsets, pa.int64())))


@every_table
def test_filters_of_the_latest_version(corpus: Path, entry: dict[str, Any]) -> None:
    facts = facts_of(corpus, entry)
    version = open_version(str(corpus / entry["path"]))
    for predicate in facts["filters"]:
        text = predicate["filter"]
        if entry["storage_version"] == "0.1" and answered_by_statistics(text, predicate["rows"], version):
            continue
        assert count_rows(version, text) == predicate["rows"]
        if predicate.get("keys") is not None:
            found = scan(version, columns=["k"], filter=text).column("k").to_pylist()
            assert found == predicate["keys"]
            unpruned = scan(version, columns=["k"], filter=text, use_stats=False)
            assert unpruned.column("k").to_pylist() == predicate["keys"]


def answered_by_statistics(text: str, rows: int, version: TableVersion) -> bool:
    """Return whether pylance answered from the null counts of the statistics, which rows of 0.1 do not show.

    It then finds no null where strings are empty, and nulls where numbers read as zero. Without statistics it agrees
    with lancetable, whose result does not depend on statistics.
    """
    found = count_rows(version, text)
    if found == rows:
        return False
    assert "null" in text or " = 0" in text, text
    assert found == scan(version, filter=text, use_stats=False).num_rows
    return True


@every_table
def test_tags_and_history(corpus: Path, entry: dict[str, Any]) -> None:
    facts = facts_of(corpus, entry)
    uri = str(corpus / entry["path"])
    latest = open_version(uri)
    assert latest.version == facts["latest"]
    assert [summary.version for summary in history(latest)] == [each["version"] for each in facts["versions"]]
    for name, tag in facts.get("tags", {}).items():
        assert open_version(uri, name).version == tag["version"]
