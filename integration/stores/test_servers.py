"""Tests against servers that take long to install and to start, correct and incorrect ones: run by scripts/nightly.

Each class is skipped, with the reason, where its server is not installed (scripts/ensure_servers).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import lancetable
from integration.commits.race import append_in_processes, check_rows
from integration.servers import azurite as azurite_server
from integration.servers import ceph as ceph_server
from integration.servers import npm, rclone
from integration.servers.azurite import Azurite
from integration.servers.moto_locked import Moto, moto
from lancetable.errors import UnsupportedFeatureError
from lancetable.handlers import conditional_put_probe
from lancetable.handlers.base import CommitHandler
from lancetable.handlers.dynamodb import DynamoManifestStore
from lancetable.handlers.external_manifest import ExternalHandler
from lancetable.ops.maintain.commit_probe import probe as run_probe
from lancetable.store.base import Capabilities
from lancetable.store.clouds.fsspec_client import make_file_system
from lancetable.store.clouds.options import CloudOptions
from lancetable.store.memory import MemoryStore
from lancetable.store.open import open_store
from lancetable.testing.conformance import HandlerSuite, StoreAndPath, StoreSuite

CLIENTS = ["obstore", "fsspec"]

# aiohttp emits this warning for every upload of adlfs beyond a megabyte.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="servers") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def azurite(directory: Path) -> Iterator[Azurite]:
    if not azurite_server.is_installed():
        pytest.skip("Azurite is not installed")
    with azurite_server.azurite(directory) as server:
        server.make_container("lab")
        yield server


@pytest.fixture(scope="module")
def ceph() -> Iterator[dict[str, str]]:
    if not ceph_server.is_installed():
        pytest.skip("Ceph is not installed")
    with ceph_server.ceph() as options:
        import boto3

        boto3.client(
            "s3",
            endpoint_url=options["aws_endpoint"],
            aws_access_key_id=options["aws_access_key_id"],
            aws_secret_access_key=options["aws_secret_access_key"],
            region_name="us-east-1",
        ).create_bucket(Bucket="lab")
        yield options


@pytest.fixture(scope="module", params=["s3rver", "rclone"])
def liar(request: pytest.FixtureRequest, directory: Path) -> Iterator[dict[str, str]]:
    installed = npm.is_installed("s3rver") if request.param == "s3rver" else rclone.is_installed()
    if not installed:
        pytest.skip(f"{request.param} is not installed")
    with (npm.s3rver if request.param == "s3rver" else rclone.rclone)(directory) as options:
        yield options


@pytest.fixture(scope="module")
def dynamo(directory: Path) -> Iterator[Moto]:
    if not npm.is_installed("dynalite"):
        pytest.skip("dynalite is not installed")
    with npm.dynalite(directory) as server:
        server.make_table("lab")
        yield server


def _address(scheme: str, options: dict[str, str], client: str) -> tuple[Any, dict[str, str]]:
    """Return a new address and its storage options: a URL for obstore, else a file system object."""
    if client == "obstore":
        return f"{scheme}://lab/{uuid4()}", options
    file_system = make_file_system(CloudOptions.parse("s3" if scheme == "s3" else "azure", options))
    return (file_system, f"lab/{uuid4()}"), {}


@pytest.mark.parametrize("client", CLIENTS)
class TestAzurite(StoreSuite):
    many_names = 40
    race_keys = 10

    @pytest.fixture
    def store_and_path(self, azurite: Azurite, client: str) -> StoreAndPath:
        return open_store(*_address("az", azurite.options, client))


@pytest.mark.parametrize("client", CLIENTS)
class TestCeph(StoreSuite):
    many_names = 1003
    race_keys = 10

    @pytest.fixture
    def store_and_path(self, ceph: dict[str, str], client: str) -> StoreAndPath:
        return open_store(*_address("s3", ceph, client))


class TestDynalite(HandlerSuite):
    decides_by_objects = False
    far_behind = 20

    @pytest.fixture
    def store_and_path(self) -> StoreAndPath:
        store = MemoryStore.private()
        store.capabilities = Capabilities(conditional_create="none", ordered_list=True, durable=True, local=False)
        return store, f"t{uuid4().hex}"

    @pytest.fixture
    def handler(self, dynamo: Moto) -> CommitHandler:
        return ExternalHandler(DynamoManifestStore("lab", {**dynamo.options, "dynamodb_endpoint": dynamo.endpoint}))


@pytest.mark.parametrize("client", CLIENTS)
def test_server_that_ignores_the_condition_is_refused(
    liar: dict[str, str], client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditional_put_probe, "_probed", {})
    uri, options = _address("s3", liar, client)
    table = pa.table({"id": [1, 2, 3]})
    with pytest.raises(UnsupportedFeatureError, match="overwrites"):
        lancetable.write_dataset(table, uri, storage_options=options)
    assert not run_probe(uri, options, keys=3, threads=8).safe


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("server", ["azurite", "ceph"])
def test_correct_server_has_one_winner_for_each_key(server: str, client: str, request: pytest.FixtureRequest) -> None:
    running: Any = request.getfixturevalue(server)
    options = running.options if server == "azurite" else running
    scheme = "az" if server == "azurite" else "s3"
    report = run_probe(*_address(scheme, options, client), keys=20, threads=16)
    assert report.safe
    assert report.race is not None
    assert report.race.winners == (1,) * 20


@pytest.mark.parametrize("libraries", [["ours"] * 8, ["ours", "pylance"] * 4], ids=["ours", "mixed"])
def test_eight_writers_on_ceph_lose_no_rows(ceph: dict[str, str], libraries: list[str]) -> None:
    uri = f"s3://lab/{uuid4()}"
    lancetable.write_dataset(pa.table({"id": pa.array([-1], pa.int64())}), uri, storage_options=ceph)
    result = append_in_processes(uri, ceph, libraries, 25)
    print(result)
    assert check_rows(uri, ceph, libraries, 25, len(result["errors"])) == []
    if "pylance" not in libraries:
        assert result["errors"] == []


def test_eight_writers_with_dynalite_lose_no_rows(dynamo: Moto, directory: Path) -> None:
    with moto(directory) as s3:
        s3.make_bucket("lab")
        options = {**s3.options, "dynamodb_endpoint": dynamo.endpoint}
        uri = f"s3+ddb://lab/{uuid4()}?ddbTableName=lab"
        lancetable.write_dataset(pa.table({"id": pa.array([-1], pa.int64())}), uri, storage_options=options)
        libraries = ["ours", "pylance"] * 4
        result = append_in_processes(uri, options, libraries, 10)
        print(result)
        assert check_rows(uri, options, libraries, 10, len(result["errors"])) == []
