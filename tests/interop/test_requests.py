"""Requests and bytes of each operation on S3 and DynamoDB, which do not depend on the number of versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancetable
from integration.servers.moto_locked import Moto
from lancetable.commit import commit_loop
from lancetable.format.manifest_naming import ManifestNamingScheme, manifest_path
from lancetable.table import manifest_files, transactions

V1, V2 = ManifestNamingScheme.V1, ManifestNamingScheme.V2
CLIENTS = ["obstore"]


@pytest.fixture(autouse=True)
def _however_slow_this_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the periods after which a commit lists versions again, so that slow machines send no more requests."""
    monkeypatch.setattr(commit_loop, "_FRESH_SECONDS", 600.0)
    monkeypatch.setattr(commit_loop, "is_in_grace_period", lambda *_: True)


def _rows(first: int, count: int = 10) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


class Table:
    """Table with a long history that counts requests to the server."""

    def __init__(
        self, s3: Moto, client: str, versions: int = 1, naming: ManifestNamingScheme = V2, external: bool = False
    ):
        name = f"{uuid4()}.lance"
        self.s3, self.versions = s3, versions
        self.uri = f"s3+ddb://lab/{name}?ddbTableName=lab" if external else f"s3://lab/{name}"
        self.options = {**s3.options, "client": client, **({"dynamodb_endpoint": s3.endpoint} if external else {})}
        made = self.write(_rows(0, 1000), mode="create", max_rows_per_file=100, enable_v2_manifest_paths=naming is V2)
        self._add_versions(made.table_version, naming)
        if external and versions > 1:
            self._add_row(name, naming)

    def _add_versions(self, first: Any, naming: ManifestNamingScheme) -> None:
        """Store versions of equal contents without a commit for each."""
        made = transactions.read(first.store, first.base, first.file)
        assert made is not None
        message, data = first.manifest.message, made.to_bytes()
        objects = {}
        for version in range(2, self.versions + 1):
            message.version = version
            objects[manifest_path(first.base, version, naming)] = manifest_files.pack(message, data, None)
        if objects:
            self.s3.store("lab", objects)

    def _add_row(self, name: str, naming: ManifestNamingScheme) -> None:
        row = {
            "base_uri": {"S": name},
            "version": {"N": str(self.versions)},
            "path": {"S": manifest_path(name, self.versions, naming)},
            "committer": {"S": "lancedb"},
        }
        size = self.s3.client("s3").head_object(Bucket="lab", Key=row["path"]["S"])["ContentLength"]
        self.s3.client("dynamodb").put_item(TableName="lab", Item={**row, "size": {"N": str(size)}})

    def open(self, version: int | None = None) -> Any:
        return lancetable.dataset(self.uri, version=version, storage_options=self.options)

    def write(self, rows: pa.Table, mode: str = "append", **options: Any) -> Any:
        return lancetable.write_dataset(rows, self.uri, mode=mode, storage_options=self.options, **options)

    def count(self, act: Callable[[], Any]) -> tuple[int, int]:
        """Return the number of requests of a call and the bytes that it received."""
        self.s3.reset()
        act()
        log = self.s3.log()
        return len(log), sum(row[5] for row in log)


slow = pytest.mark.slow
TEN_THOUSAND = pytest.param(10_000, marks=slow)
HISTORIES = [
    (1, "obstore"),
    (100, "obstore"),
    (1000, "obstore"),
    pytest.param(10_000, "obstore", marks=slow),
]


@pytest.mark.parametrize(("versions", "client"), HISTORIES)
def test_requests_do_not_grow_with_the_history(s3: Moto, client: str, versions: int) -> None:
    table = Table(s3, client, versions)
    dataset = table.open()
    assert dataset.version == versions
    requests, down = table.count(table.open)
    page = 400 * min(versions, 1000)  # names of one page of a listing
    assert (requests, down <= 6_000 + page) == (2, True)
    requests, down = table.count(dataset.checkout_latest)
    assert (requests, down <= 2_000) == (1, True)
    assert table.count(lambda: table.open(1))[0] == 1
    assert table.count(lambda: dataset.checkout_version(1))[0] <= 1
    assert table.count(dataset.count_rows) == (0, 0)
    requests, down = table.count(lambda: dataset.insert(_rows(2000)))
    assert (requests <= 4, down <= 2_000) == (True, True)
    requests, down = table.count(lambda: table.write(_rows(3000)))
    assert (requests, down <= 10_000 + page) == (5, True)
    assert dataset.checkout_version((None, None)).count_rows() == 1020
    if versions == 100:
        # Each version is read once, except for the newest, which is already in memory.
        assert table.count(table.open().versions)[0] <= versions + 4
    stale = table.open()
    table.write(_rows(4000))
    requests, down = table.count(lambda: stale.insert(_rows(5000)))
    # The first attempt loses, the existing version is read, and the second attempt needs no listing.
    assert (requests, down <= 8_000) == (5, True)


def test_late_publication_is_checked_by_one_listing(s3: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append to an open table stays within its budget of requests."""
    table = Table(s3, "obstore", 100)
    dataset = table.open()
    monkeypatch.setattr(commit_loop, "is_in_grace_period", lambda *_: False)
    requests, down = table.count(lambda: dataset.insert(_rows(2000)))
    assert (requests, down <= 2_000) == (4, True)


@pytest.mark.parametrize(("versions", "client"), [(5, "obstore"), *HISTORIES[2:]])
def test_v1_names_are_listed_once(s3: Moto, client: str, versions: int) -> None:
    """V1 names are sorted as strings, so all of them are listed to find the newest; a page has 1,000 names."""
    table = Table(s3, client, versions, V1)
    pages = -(-versions // 1000)
    dataset = table.open()
    assert dataset.version == versions
    # The naming scheme of a table is unknown until the first names are listed, which are all names of a new table.
    look = 1 if versions < 8 else 1 + pages
    assert table.count(table.open)[0] == look + 1
    assert table.count(dataset.checkout_latest)[0] == pages
    assert table.count(lambda: table.open(1))[0] <= 2
    assert table.count(lambda: dataset.checkout_version(1))[0] <= 1
    assert table.count(lambda: dataset.insert(_rows(2000)))[0] == 3
    pages, look = -(-(versions + 1) // 1000), 1 if versions + 1 < 8 else 1 + -(-(versions + 1) // 1000)
    assert table.count(lambda: table.write(_rows(3000)))[0] == look + 4


@pytest.mark.parametrize("naming", [V2, V1])
@pytest.mark.parametrize("versions", [1, 1000, TEN_THOUSAND])
def test_requests_over_dynamodb_do_not_grow_with_the_history(
    s3: Moto, versions: int, naming: ManifestNamingScheme
) -> None:
    table = Table(s3, "obstore", versions, naming, external=True)
    dataset = table.open()
    assert dataset.version == versions
    requests, down = table.count(table.open)
    assert (requests, down <= 6_000) == (2, True)
    assert table.count(dataset.checkout_latest)[0] == 1
    assert table.count(lambda: table.open(1))[0] <= 3
    requests, down = table.count(lambda: dataset.insert(_rows(2000)))
    assert (requests, down <= 2_000) == (7, True)
    requests, down = table.count(lambda: table.write(_rows(3000)))
    assert (requests, down <= 10_000) == (9, True)


@pytest.mark.parametrize("client", CLIENTS)
def test_reads_request_only_the_files_that_they_need(s3: Moto, client: str) -> None:
    """The table has ten small fragments: a scan reads each file once, a take the files of its rows."""
    table = Table(s3, client)
    dataset = table.open()
    assert table.count(lambda: dataset.to_table(columns=["id"]))[0] == 10
    assert table.count(lambda: dataset.to_table(columns=["id"]))[0] == 0
    for budget, act in (
        (10, lambda dataset: dataset.take(range(0, 1000, 100))),
        (1, lambda dataset: dataset.take([5, 6, 7])),
        (13, lambda dataset: dataset.to_table(filter="id = 777")),
        (18, lambda dataset: dataset.delete("id in (5, 105, 205)")),
    ):
        dataset = table.open()
        requests, down = table.count(lambda: act(dataset))  # noqa: B023  # called at once
        assert (requests <= budget, down <= 30_000) == (True, True)


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "ZONEMAP", "LABEL_LIST", "NGRAM"])
def test_a_cold_search_of_an_index_sends_at_most_as_many_requests_as_pylance(s3: Moto, kind: str) -> None:
    rows = 200_000
    keys = [number * 7919 % rows for number in range(rows)]
    column = {
        "LABEL_LIST": pa.array([[key % 500, key % 7] for key in keys]),
        "NGRAM": pa.array([f"word{key % 1000}" for key in keys]),
        "BITMAP": pa.array([key % 1000 for key in keys]),
    }.get(kind, pa.array(keys))
    predicate = {"LABEL_LIST": "array_has(v, 77)", "NGRAM": "contains(v, 'ord77')"}.get(kind, "v = 77")
    uri = f"s3://lab/{uuid4()}.lance"
    table = pa.table({"v": column, "x": pa.array(range(rows))})
    lance.write_dataset(table, uri, max_rows_per_file=50_000, storage_options=s3.options)
    lance.dataset(uri, storage_options=s3.options).create_scalar_index("v", kind)
    found, requests, received = [], [], []
    for library, options in ((lancetable, {**s3.options, "client": "obstore"}), (lance, s3.options)):
        s3.reset()
        ds = library.dataset(uri, storage_options=options)
        found.append(sorted(ds.to_table(columns=["x"], filter=predicate)["x"].to_pylist()))
        log = s3.log()
        requests.append(len(log))
        received.append(sum(row[5] for row in log))
    assert found[0] == found[1]
    assert requests[0] <= requests[1], received


@pytest.mark.parametrize("kind", ["IVF_PQ", "IVF_FLAT", "IVF_HNSW_SQ"])
@pytest.mark.parametrize("options", [{"nprobes": 1}, {"nprobes": 4}, {"nprobes": 4, "refine_factor": 5}], ids=str)
def test_a_cold_search_of_a_vector_index_sends_at_most_as_many_requests_as_pylance(
    s3: Moto, kind: str, options: dict[str, int]
) -> None:
    random = np.random.default_rng(0)
    values = random.standard_normal((20_000, 32), np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 32)
    uri = f"s3://lab/{uuid4()}.lance"
    table = pa.table({"id": np.arange(len(values)), "v": column})
    dataset = lance.write_dataset(table, uri, max_rows_per_file=5000, storage_options=s3.options)
    built = {"num_sub_vectors": 8} if kind == "IVF_PQ" else {}
    dataset.create_index("v", kind, metric="l2", num_partitions=16, **built)
    nearest = {"column": "v", "q": values[77], "k": 10, **options}
    found, requests, received = [], [], []
    for library, storage in ((lancetable, {**s3.options, "client": "obstore"}), (lance, s3.options)):
        s3.reset()
        ds = library.dataset(uri, storage_options=storage)
        found.append(ds.to_table(columns=["id", "_distance"], nearest=nearest)["id"].to_pylist())
        log = s3.log()
        requests.append(len(log))
        received.append(sum(row[5] for row in log))
    assert found[0] == found[1]
    assert requests[0] <= requests[1], received
