"""Tables on S3, with and without DynamoDB, used by both libraries."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest

import lancetable
from integration.commits.race import append_in_processes, check_rows
from integration.servers.moto_locked import Moto
from lancetable.format.manifest_naming import ManifestNamingScheme, manifest_path
from lancetable.store.open import open_store

CLIENTS = ["obstore"]


def _rows(first: int, count: int = 10) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


def _place(s3: Moto, external: bool) -> tuple[str, dict[str, str]]:
    name = f"{uuid4()}.lance"
    if external:
        return f"s3+ddb://lab/{name}?ddbTableName=lab", {**s3.options, "dynamodb_endpoint": s3.endpoint}
    return f"s3://lab/{name}", s3.options


def _ids(library: Any, uri: str, options: dict[str, str], version: int | None = None) -> list[int]:
    ids = library.dataset(uri, version=version, storage_options=options).to_table()["id"].to_pylist()
    return sorted(int(value) for value in ids)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("external", [False, True], ids=["s3", "s3+ddb"])
def test_each_library_reads_and_continues_tables_of_the_other(s3: Moto, external: bool, client: str) -> None:
    uri, options = _place(s3, external)
    ours = {**options, "client": client}
    lancetable.write_dataset(_rows(0), uri, storage_options=ours)
    lance.write_dataset(_rows(10), uri, mode="append", storage_options=options)
    held = lancetable.dataset(uri, storage_options=ours)
    theirs = lance.dataset(uri, storage_options=options)
    held.insert(_rows(20))
    theirs.delete("id = 3")
    held.delete("id = 4")
    lancetable.write_dataset(_rows(30), uri, mode="append", storage_options=ours)
    want = [value for value in range(40) if value not in (3, 4)]
    for library, said in ((lancetable, ours), (lance, options)):
        assert _ids(library, uri, said) == want
        assert _ids(library, uri, said, version=3) == list(range(30))
        assert library.dataset(uri, storage_options=said).version == 6
    if external:
        plain = uri.replace("+ddb", "").partition("?")[0]
        assert _ids(lance, plain, options) == _ids(lancetable, plain, ours) == want


def test_dynamodb_items_equal_those_of_pylance(s3: Moto) -> None:
    """The same steps write the same attributes with the same values."""
    items = []
    for library in (lancetable, lance):
        uri, options = _place(s3, True)
        library.write_dataset(_rows(0), uri, storage_options=options)
        library.write_dataset(_rows(10), uri, mode="append", storage_options=options)
        key = uri.partition("lab/")[2].partition("?")[0]
        found = s3.client("dynamodb").query(
            TableName="lab",
            KeyConditionExpression="base_uri = :base",
            ExpressionAttributeValues={":base": {"S": key}},
        )["Items"]
        store, base = open_store(uri, options)
        for item in found:
            version = int(item["version"]["N"])
            assert item.pop("size") == {"N": str(store.size(manifest_path(base, version, ManifestNamingScheme.V2)))}
            item.pop("e_tag", None)  # older releases
            item["path"] = {"S": item["path"]["S"].replace(key, "")}
            assert item.pop("base_uri") == {"S": key}
        names = [meta.name for meta in store.list_names(f"{base}/_versions")]
        assert all(name.endswith(".manifest") for name in names)
        items.append(sorted(found, key=lambda item: int(item["version"]["N"])))
    assert items[0] == items[1]


@pytest.mark.parametrize("finisher", ["lancetable", "pylance"])
def test_unfinished_version_is_finished_by_the_other_library(s3: Moto, finisher: str) -> None:
    """The state after step 2 of a commit is created directly; the other library copies the manifest to its final
    path."""
    uri, options = _place(s3, True)
    library = lancetable if finisher == "lancetable" else lance
    lancetable.write_dataset(_rows(0), uri, storage_options=options)
    lance.write_dataset(_rows(10), uri, mode="append", storage_options=options)
    store, base = open_store(uri, options)
    final = manifest_path(base, 2, ManifestNamingScheme.V2)
    data = bytes(store.read_all(final))
    staged = f"{final}-{uuid4()}"
    store.put(staged, data)
    store.delete([final])
    item = {"base_uri": {"S": base}, "version": {"N": "2"}, "path": {"S": staged}, "committer": {"S": "lancedb"}}
    s3.client("dynamodb").put_item(TableName="lab", Item={**item, "size": {"N": str(len(data))}})
    assert _ids(library, uri, options) == list(range(20))
    assert store.read_all(final) == data
    row = s3.client("dynamodb").get_item(
        TableName="lab", Key={"base_uri": item["base_uri"], "version": item["version"]}, ConsistentRead=True
    )["Item"]
    assert row["path"] == {"S": final}
    assert store.find(staged) is None


@pytest.mark.parametrize("external", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["s3", "s3+ddb"])
def test_concurrent_writers_of_both_libraries_lose_no_rows(s3: Moto, external: bool, scale: int) -> None:
    """No row is lost or duplicated, and both libraries read the same; 4 + 4 writers with 25 appends each at full
    scale."""
    uri, options = _place(s3, external)
    lancetable.write_dataset(_rows(-1, 1), uri, storage_options=options)
    libraries = ["ours", "pylance"] * (1 if scale == 1 else 4)
    appends = 3 if scale == 1 else 25
    result = append_in_processes(uri, options, libraries, appends)
    assert check_rows(uri, options, libraries, appends, len(result["errors"])) == []
    if scale == 1:
        assert result["errors"] == []


def test_clone_is_opened_with_the_options_of_its_source(s3: Moto) -> None:
    uri, options = _place(s3, False)
    table = lancetable.write_dataset(_rows(0), uri, storage_options=options)
    for name, clone in (("shallow", table.shallow_clone), ("deep", table.deep_clone)):
        assert clone(f"s3://lab/{name}-{uuid4()}.lance", 1).count_rows() == 10
