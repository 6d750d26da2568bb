"""Cloud stores beside the suite: options, secrets, forks, lost answers, requests, and pylance at the same table."""

from __future__ import annotations

import logging
import os
import pickle
import sys
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import lancetable
from integration.servers.moto_locked import Moto
from lancetable.errors import InvalidInputError, LanceError, StoreError, UnsupportedFeatureError
from lancetable.handlers import probe, unsafe
from lancetable.store.base import PutOutcome
from lancetable.store.cloud import CloudStore
from lancetable.store.cloud_options import CloudOptions
from lancetable.store.conditional import Reply, create_exclusively, take_met
from lancetable.store.fsspec_cloud import CloudFsspecStore, reply_to
from lancetable.store.open import open_store

pytest.importorskip("obstore")
CLIENTS = ["obstore", "fsspec"]
VERSIONS = "_versions/18446744073709551614.manifest"


def _rows(first: int, count: int = 10) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


def _options(s3: Moto, client: str) -> dict[str, str]:
    return {**s3.options, "client": client}


# ---- what an answer means


@pytest.mark.parametrize(
    ("replies", "there", "outcome", "sent"),
    [
        ([Reply.CREATED], [], PutOutcome.WON, 1),
        ([Reply.TAKEN], [b"theirs"], PutOutcome.LOST, 1),
        ([Reply.TAKEN], [b"ours"], PutOutcome.WON, 1),
        ([Reply.TAKEN, Reply.CREATED], [None], PutOutcome.WON, 2),  # 409: a rival that gave up
        ([Reply.TAKEN, Reply.TAKEN], [None, b"theirs"], PutOutcome.LOST, 2),
        ([Reply.DOUBTFUL], [b"ours"], PutOutcome.WON, 1),
        ([Reply.DOUBTFUL], [b"theirs"], PutOutcome.LOST, 1),
        ([Reply.DOUBTFUL, Reply.CREATED], [None], PutOutcome.WON, 2),
        ([Reply.DOUBTFUL], [StoreError("x"), b"ours"], PutOutcome.WON, 1),
        ([Reply.DOUBTFUL], [StoreError("x")] * 3, PutOutcome.UNKNOWN, 1),
        ([Reply.DOUBTFUL, StoreError("403")], [None], PutOutcome.UNKNOWN, 2),
        ([Reply.DOUBTFUL] * 6, [None] * 6, PutOutcome.UNKNOWN, 6),
    ],
)
def test_what_a_conditional_create_comes_to(
    replies: list[Any], there: list[Any], outcome: PutOutcome, sent: int
) -> None:
    requests = 0

    def answer(waiting: list[Any]) -> Any:
        found = waiting.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def send() -> Reply:
        nonlocal requests
        requests += 1
        reply: Reply = answer(replies)
        return reply

    assert create_exclusively(send, lambda: answer(there), b"ours", sleep=lambda seconds: None) is outcome
    assert requests == sent


def test_what_a_lost_create_met_is_handed_on_once() -> None:
    def create(there: bytes | None) -> PutOutcome:
        return create_exclusively(lambda: Reply.TAKEN, lambda: there, b"ours", sleep=lambda seconds: None)

    assert (create(b"theirs"), take_met(), take_met()) == (PutOutcome.LOST, b"theirs", None)
    assert (create(b"theirs"), create(b"ours"), take_met()) == (PutOutcome.LOST, PutOutcome.WON, None)


def test_a_refused_create_is_an_error() -> None:
    def send() -> Reply:
        raise StoreError("403")

    with pytest.raises(StoreError):
        create_exclusively(send, lambda: None, b"ours")


def _client_error(code: str, status: int) -> Any:
    error: Any = RuntimeError(code)
    error.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return error


@pytest.mark.parametrize(
    ("cause", "reply"),
    [
        (_client_error("PreconditionFailed", 412), Reply.TAKEN),
        (_client_error("ConditionalRequestConflict", 409), Reply.TAKEN),
        (_client_error("SlowDown", 503), Reply.DOUBTFUL),
        (_client_error("InternalError", 500), Reply.DOUBTFUL),
        (_client_error("AccessDenied", 403), None),
        (_client_error("NoSuchBucket", 404), None),
        (TimeoutError(), Reply.DOUBTFUL),
        (FileExistsError(), Reply.TAKEN),
        (PermissionError(), None),
    ],
)
def test_errors_of_fsspec(cause: Exception, reply: Reply | None) -> None:
    assert reply_to(cause) is reply
    if not isinstance(cause, PermissionError):
        try:
            raise OSError(22, "Invalid argument") from cause  # how s3fs tells what Ceph said
        except OSError as error:
            assert reply_to(error) is reply


# ---- faults on the way

_FAULTS = [("stored_then_dropped", 1), ("stored_then_500", 1), ("409", 1), ("409", 3), ("503", 2), ("500", 1)]
_FAULTS += [("dropped", 1), ("stored_then_500", 2)]


@pytest.mark.parametrize(
    ("client", "how", "times"),
    [
        *(("obstore", how, times) for how, times in _FAULTS),
        *(pytest.param("fsspec", how, times, marks=pytest.mark.slow) for how, times in _FAULTS[3:]),
        *(("fsspec", how, times) for how, times in _FAULTS[:3]),
    ],
)
def test_an_append_whose_answer_is_lost_or_wrong(s3: Moto, client: str, how: str, times: int) -> None:
    """One version more, each row once, whatever happens to the one request that matters."""
    uri = f"s3://lab/{uuid4()}"
    dataset = lancetable.write_dataset(_rows(0), uri, storage_options=_options(s3, client))
    s3.plan({"match": r"PUT .*_versions/\d+\.manifest\?", "times": times, "how": how})
    try:
        dataset.insert(_rows(10))
    finally:
        s3.reset()
    found = lancetable.dataset(uri, storage_options=_options(s3, client))
    assert found.version == dataset.version == 2
    assert sorted(found.to_table()["id"].to_pylist()) == list(range(20))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_commit_that_is_not_allowed(s3: Moto, client: str) -> None:
    uri = f"s3://lab/{uuid4()}"
    dataset = lancetable.write_dataset(_rows(0), uri, storage_options=_options(s3, client))
    s3.plan({"match": r"PUT .*_versions/\d+\.manifest\?", "times": 9, "how": "403"})
    try:
        with pytest.raises(StoreError):
            dataset.insert(_rows(10))
    finally:
        s3.reset()
    assert lancetable.dataset(uri, storage_options=_options(s3, client)).version == 1


# ---- servers that lie


@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_that_overwrites_is_found_out(liar: Moto, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_proven", {})
    options, uri = _options(liar, client), f"s3://lab/{uuid4()}"
    with pytest.raises(UnsupportedFeatureError, match=r"overwrites.*commit_lock.*s3\+ddb.*unsafe_single_writer"):
        lancetable.write_dataset(_rows(0), uri, storage_options=options)
    store, base = open_store(uri, options)
    assert [meta.name for meta in store.list_recursive(base) if "_versions" in meta.name] == []
    result = probe.race(store, base, keys=3, threads=4)
    assert not result.is_safe
    monkeypatch.setattr(unsafe, "_warned", False)
    with pytest.warns(UserWarning, match="second writer"):
        lancetable.write_dataset(_rows(0), uri, storage_options={**options, "unsafe_single_writer": "true"})
    assert lancetable.dataset(uri, storage_options=options).count_rows() == 10


def test_an_honest_server_is_asked_once(s3: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_proven", {})
    uri = f"s3://lab/{uuid4()}"
    store, base = open_store(uri, s3.options)
    s3.reset()
    probe.prove(store, base)
    assert len(s3.log()) == 4
    probe.prove(store, f"{base}/other")
    assert len(s3.log()) == 4
    assert list(store.list_recursive(base)) == []
    assert probe.race(store, base, keys=3, threads=6).is_safe
    assert list(store.list_recursive(base)) == []


@pytest.mark.parametrize(
    ("uri", "options", "unproven"),
    [
        ("s3://b/t", {}, False),
        ("s3://b/t", {"aws_endpoint": "https://s3.eu-west-1.amazonaws.com"}, False),
        ("s3://b/t", {"endpoint_url": "https://minio.example"}, True),
        ("s3://b/t", {"aws_endpoint": "https://amazonaws.com.evil.example"}, True),
        ("gs://b/t", {}, False),
        ("gs://b/t", {"google_base_url": "http://127.0.0.1:1"}, True),
        ("az://c/t", {"account_name": "a"}, False),
        ("az://c/t", {"azure_storage_use_emulator": "true"}, True),
        ("abfss://c@a.dfs.core.windows.net/t", {}, False),
    ],
)
def test_which_servers_are_believed(
    uri: str, options: dict[str, str], unproven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    assert open_store(uri, options)[0].capabilities.unproven is unproven


# ---- options


def test_both_families_of_names_mean_the_same() -> None:
    theirs = CloudOptions.parse(
        "s3", {"key": "k", "secret": "s", "token": "t", "client_kwargs": {"region_name": "r", "endpoint_url": "e"}}
    )
    ours = CloudOptions.parse(
        "s3",
        {"AWS_ACCESS_KEY_ID": "k", "aws_secret_access_key": "s", "aws_session_token": "t", "region": "r"}
        | {"aws_endpoint_url": "e", "fsync": "0", "client": "obstore", "expires_at_millis": "1"},
    )
    assert theirs == ours
    assert not ours.for_fsspec_only
    assert ours.for_fsspec()["client_kwargs"] == {"region_name": "r"}
    azure = CloudOptions.parse("azure", {"azure_storage_account_name": "a", "access_key": "k", "sas_token": "s"})
    assert azure.config == {"account_name": "a", "account_key": "k", "sas_key": "s"}
    assert CloudOptions.parse("gcs", {"token": "anon"}).config == {"skip_signature": "true"}


def test_options_that_only_fsspec_knows_choose_it(s3: Moto) -> None:
    options: Any = {**s3.options, "config_kwargs": {"max_pool_connections": 3}}  # as fsspec has it, no text
    store, base = open_store(f"s3://lab/{uuid4()}", options)
    assert isinstance(store, CloudStore)
    assert isinstance(store.backend, CloudFsspecStore)
    store.put(f"{base}/x", b"1")
    assert store.read_all(f"{base}/x") == b"1"
    with pytest.raises(InvalidInputError, match="config_kwargs"):
        open_store("s3://b/t", {**options, "client": "obstore"})[0].find("x")


def test_options_that_cannot_be_understood() -> None:
    with pytest.raises(InvalidInputError, match="twice"):
        open_store("s3://b/t", {"region": "a", "aws_region": "b"})
    with pytest.raises(InvalidInputError, match="client"):
        open_store("s3://b/t", {"client": "curl"})
    with pytest.raises(InvalidInputError, match="bucket"):
        open_store("s3:///t")
    with pytest.raises(InvalidInputError, match="duration"):
        CloudOptions.parse("s3", {"timeout": "soon"}).seconds("timeout", 1)


def test_a_half_of_the_credentials_is_not_completed_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "othersecret")
    monkeypatch.setenv("AWS_REGION", "mars")
    passed = CloudOptions.parse("s3", {"key": "k"}).with_environment()
    assert passed.config == {"access_key_id": "k", "region": "mars"}
    found = CloudOptions.parse("s3", {}).with_environment()
    assert found.config["secret_access_key"] == "othersecret"
    assert b"othersecret" not in pickle.dumps(CloudOptions.parse("s3", {}))


# ---- secrets


@pytest.mark.parametrize("client", CLIENTS)
def test_no_secret_is_told(s3: Moto, client: str, caplog: pytest.LogCaptureFixture) -> None:
    planted = {"aws_access_key_id": "PLANTEDKEYID", "aws_secret_access_key": "PLANTEDSECRET", "token": "PLANTEDTOKEN"}
    options = {**s3.options, **planted, "client": client, "client_max_retries": "1"}
    told = []
    caplog.set_level(logging.DEBUG, logger="lancetable")
    store, base = open_store(f"s3://no-such-bucket/{uuid4()}", options)
    told += [repr(store), str(store), store.uri(base), repr(store.capabilities)]
    for call in (
        lambda: store.put(f"{base}/x", b"1"),
        lambda: store.put_if_absent(f"{base}/x", b"1"),
        lambda: store.list_names(base),
        lambda: store.read_all(f"{base}/x"),
        lambda: lancetable.dataset(f"s3://no-such-bucket/{base}", storage_options=options),
    ):
        try:
            told.append(repr(call()))
        except LanceError as error:  # noqa: PERF203  # each call must fail on its own
            at: BaseException | None = error
            while at is not None:
                told += [str(at), repr(at), repr(vars(at))]
                at = at.__cause__
    dataset = lancetable.write_dataset(_rows(0), f"s3://lab/{uuid4()}", storage_options=options)
    told += [repr(dataset), str(dataset), repr(dataset._table), repr(dataset._table.handler)]
    told += [record.getMessage() for record in caplog.records if record.name.startswith("lancetable")]
    assert not [text for text in told if "PLANTED" in text]


# ---- processes


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pylance warns of every fork
@pytest.mark.parametrize("client", [None, *CLIENTS])
def test_a_forked_child_reads_and_commits(s3: Moto, client: str | None) -> None:
    """obstore hangs in a child of a process that used it; the child must get another client, and go on."""
    uri = f"s3://lab/{uuid4()}"
    options = s3.options if client is None else _options(s3, client)
    dataset = lancetable.write_dataset(_rows(0), uri, storage_options=options)
    assert dataset.to_table().num_rows == 10
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            good = dataset.to_table().num_rows == 10
            dataset.insert(_rows(10))
            os._exit(0 if good and dataset.version == 2 else 1)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert lancetable.dataset(uri, storage_options=options).count_rows() == 20
    dataset.insert(_rows(20))
    assert dataset.version == 3


@pytest.mark.parametrize("client", CLIENTS)
def test_a_pickled_dataset(s3: Moto, client: str) -> None:
    uri = f"s3://lab/{uuid4()}"
    dataset = lancetable.write_dataset(_rows(0), uri, storage_options=_options(s3, client))
    twin = pickle.loads(pickle.dumps(dataset))
    assert twin.to_table() == dataset.to_table()
    twin.insert(_rows(10))
    assert twin.version == 2


def test_a_file_system_object_commits_where_it_can_create_exclusively(s3: Moto) -> None:
    s3fs = pytest.importorskip("s3fs")
    file_system = s3fs.S3FileSystem(key="lab", secret="labsecret", endpoint_url=s3.endpoint)
    key = str(uuid4())
    store, base = open_store((file_system, f"lab/{key}"))
    assert (base, store.uri(base), store.capabilities.unproven) == (key, f"s3://lab/{key}", True)
    file_system.ls("lab")  # a listing that the object may remember
    assert store.put_if_absent(f"{base}/{VERSIONS}", b"1") is PutOutcome.WON
    assert store.put_if_absent(f"{base}/{VERSIONS}", b"2") is PutOutcome.LOST
    assert [meta.name for meta in store.list_names(f"{base}/_versions", limit=3)] == [VERSIONS[10:]]
