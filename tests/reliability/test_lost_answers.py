"""Lost, refused and wrong replies to the request that decides a commit, for every kind of operation.

Either the table has a new version with every row once, or it is unchanged and the error reports that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import lancetable
from integration.servers import azurite
from integration.servers.moto_locked import Moto
from integration.servers.proxy import Proxy, proxy
from lancetable import LanceOperation
from lancetable.errors import CommitStateUnknownError, LanceError, StoreError
from lancetable.store.base import PutOutcome
from lancetable.store.local import LocalStore

START = pa.table({"id": pa.array(range(6), pa.int64())})
MORE = pa.table({"id": pa.array([10, 11], pa.int64())})


@dataclass(frozen=True)
class Change:
    """An operation, the resulting ids, and the number of versions that it creates."""

    act: Callable[[Any], Any]
    ids: list[int]
    versions: int = 1


def config(table: Any) -> None:
    operation = LanceOperation.UpdateConfig(LanceOperation.UpdateMap({"k": "v"}))
    lancetable.LanceDataset.commit(table, operation, read_version=table.version)


CHANGES = {
    "append": Change(lambda table: table.insert(MORE), [0, 1, 2, 3, 4, 5, 10, 11]),
    "overwrite": Change(lambda table: table.insert(MORE, mode="overwrite"), [10, 11]),
    "delete": Change(lambda table: table.delete("id IN (1, 4)"), [0, 2, 3, 5]),
    "update": Change(lambda table: table.update({"id": "id + 100"}, where="id = 1"), [0, 2, 3, 4, 5, 101]),
    "merge": Change(
        lambda table: table.merge_insert("id").when_not_matched_insert_all().execute(MORE), [0, 1, 2, 3, 4, 5, 10, 11]
    ),
    "add a column": Change(lambda table: table.add_columns({"n": "id + 1"}), [0, 1, 2, 3, 4, 5]),
    "compact": Change(lambda table: table.optimize.compact_files(), [0, 1, 2, 3, 4, 5], 2),
    "restore": Change(lambda table: table.checkout_version(1).restore(), [0, 1, 2, 3, 4, 5, 7]),
    "config": Change(config, [0, 1, 2, 3, 4, 5]),
}


def make(uri: str, options: dict[str, str] | None) -> Any:
    """Create version 2 with the ids 0 to 5 in two fragments; version 1 also contains id 7."""
    rows = pa.concat_tables([START, pa.table({"id": pa.array([7], pa.int64())})])
    table = lancetable.write_dataset(
        rows, uri, max_rows_per_file=3, data_storage_version="2.0", storage_options=options
    )
    table.delete("id = 7")
    return table


def check(name: str, uri: str, options: dict[str, str] | None, error: Exception | None) -> None:
    change, found = CHANGES[name], lancetable.dataset(uri, storage_options=options)
    ids = sorted(found.to_table(columns=["id"])["id"].to_pylist())
    if error is None:
        assert (found.version, ids) == (2 + change.versions, change.ids)
    else:
        assert (found.version, ids) == (2, [0, 1, 2, 3, 4, 5]), error
    found.validate()


# ---- local files

WON, LOST, UNKNOWN = PutOutcome.WON, PutOutcome.LOST, PutOutcome.UNKNOWN
# True if the manifest is stored, the reply of the store, and the resulting error.
LOCAL_FAULTS: dict[str, tuple[bool, PutOutcome | None, type[LanceError] | None]] = {
    "refused": (False, None, StoreError),
    "request lost": (False, UNKNOWN, CommitStateUnknownError),
    "answer lost": (True, UNKNOWN, None),
    "sent twice": (True, LOST, None),
    "another was first": (False, LOST, None),
    "answer lost, then deaf": (True, UNKNOWN, None),
}


@pytest.mark.parametrize(("name", "how"), list(product(CHANGES, LOCAL_FAULTS)))
def test_commit_and_its_report_agree_on_local_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    uri = str(tmp_path / "t.lance")
    table = make(uri, None)
    stored, outcome, wanted = LOCAL_FAULTS[how]
    put, read, deaf = LocalStore.put_if_absent, LocalStore.read_all, []

    def fail_once(self: LocalStore, path: str, data: Any, **options: Any) -> PutOutcome:
        monkeypatch.setattr(LocalStore, "put_if_absent", put)
        if stored:
            assert put(self, path, data) is WON
        if how == "answer lost, then deaf":
            deaf.append(path)
        if outcome is None:
            raise StoreError("refused by the test")
        return outcome

    def read_all(self: LocalStore, path: str, size: int | None = None) -> memoryview:
        if path in deaf:
            deaf.remove(path)
            raise StoreError("no answer")
        return read(self, path, size)

    monkeypatch.setattr(LocalStore, "put_if_absent", fail_once)
    monkeypatch.setattr(LocalStore, "read_all", read_all)
    error = None
    try:
        CHANGES[name].act(table)
    except LanceError as raised:
        error = raised
    assert type(error) is (wanted or type(None)), error
    assert LocalStore.put_if_absent is put, "the fault did not occur"
    check(name, uri, None, error)


# ---- S3

FAULTS = [("dropped", 1), ("stored_then_dropped", 1), ("stored_then_500", 1), ("409", 1), ("409", 3), ("503", 2)]


@pytest.mark.parametrize(("name", "fault"), list(product(CHANGES, FAULTS)))
def test_commit_and_its_report_agree_on_s3(s3: Moto, name: str, fault: tuple[str, int]) -> None:
    how, times = fault
    uri = f"s3://lab/{uuid4()}"
    table = make(uri, s3.options)
    s3.plan({"match": r"PUT .*_versions/\d+\.manifest\?", "times": times, "how": how})
    try:
        CHANGES[name].act(table)
    finally:
        s3.reset()
    check(name, uri, s3.options, None)


# ---- Azure


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, dict[str, str]]]:
    """Run Azurite behind a proxy that injects faults."""
    if not azurite.is_installed():
        pytest.skip("Azurite is not installed (scripts/ensure_servers)")
    with azurite.azurite(tmp_path_factory.mktemp("azurite")) as server, proxy(server.port) as failing:
        server.make_container("lab")
        yield failing, replace(server, port=failing.port).options


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault"), list(product(CHANGES, FAULTS)))
def test_commit_and_its_report_agree_on_azure(
    azure: tuple[Proxy, dict[str, str]], name: str, fault: tuple[str, int]
) -> None:
    failing, options = azure
    uri = f"az://lab/{uuid4()}"
    table = make(uri, options)
    how, times = fault
    failing.plan({"match": r"PUT .*_versions/\d+\.manifest.*(?i:if-none-match)", "times": times, "how": how})
    CHANGES[name].act(table)
    assert failing.left == 0, "the fault did not occur"
    check(name, uri, options, None)
