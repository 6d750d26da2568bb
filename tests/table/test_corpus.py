"""Tables of the corpus: all versions and tags open with the expected rows, fragments and deletions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lancetable.table import deletion_vectors, transactions
from lancetable.table.manifest_files import history
from lancetable.table.version import TableVersion, checkout, open_version


def tables(corpus: Path) -> list[dict[str, Any]]:
    entries = json.loads((corpus / "index.json").read_text())
    if isinstance(entries, dict):
        entries = entries.get("entries") or entries.get("tables") or []
    return [entry for entry in entries if entry.get("kind") == "table"]


def check(version: TableVersion, facts: dict[str, Any]) -> None:
    manifest = version.manifest
    where = (version.uri, facts["version"])
    assert version.version == facts["version"], where
    assert version.schema.names is not None
    assert manifest.fragments.num_rows() == facts["rows"], where
    assert len(manifest.fragments) == len(facts["fragments"]), where
    for fragment, expected in zip(manifest.fragments, facts["fragments"], strict=True):
        assert fragment.id == expected["id"], where
        assert fragment.physical_rows == expected["physical_rows"], where
        vector = deletion_vectors.read(version, fragment)
        assert (0 if vector is None else len(vector)) == (fragment.num_deletions or 0), where
        for file in fragment.files:
            path = Path(version.data_file_path(file))
            assert path.stat().st_size == file.size_bytes, where
    transaction = transactions.read(version.store, version.base, version.file)
    assert transaction is not None, where
    assert type(transaction.operation).__name__ != "UnknownOperation", where


def test_every_version_of_every_table_opens(corpus: Path) -> None:
    checked = 0
    for entry in tables(corpus):
        facts = json.loads((corpus / entry["facts"]).read_text())
        uri = str(corpus / entry["path"])
        newest = open_version(uri)
        assert newest.version == facts["latest"]
        assert newest.location.naming.name == facts["manifest_naming"]
        assert newest.manifest.has_stable_row_ids == facts["stable_row_ids"]
        assert newest.manifest.config == facts["config"]
        assert newest.manifest.table_metadata == facts["table_metadata"]
        assert [each.version for each in history(newest)] == [each["version"] for each in facts["versions"]]
        for each in facts["versions"]:
            check(checkout(newest, each["version"]), each)
            checked += 1
        for tag, told in facts["tags"].items():
            assert checkout(newest, tag).version == (told["version"] if isinstance(told, dict) else told)
    assert checked > 250
