"""Cloud stores: conditional creates, options, secrets, forks and pickles."""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import lancetable
from integration.servers.moto_locked import Moto
from lancetable.errors import InvalidInputError, LanceError, StoreError, UnsupportedFeatureError
from lancetable.handlers import conditional_put_probe, unsafe
from lancetable.ops.maintain.commit_probe import race_objects
from lancetable.store.base import ByteRange, ObjectStore, PutOutcome
from lancetable.store.clouds.cloud import CloudStore
from lancetable.store.clouds.fsspec_client import make_file_system, reply_to
from lancetable.store.clouds.obstore_client import ObstoreStore
from lancetable.store.clouds.options import CloudOptions, capabilities_of
from lancetable.store.io_stats import IOCountingStore
from lancetable.store.open import open_store
from lancetable.store.put_if_absent import Reply, create_exclusively

pytest.importorskip("obstore")
CLIENTS = ["obstore", "fsspec"]
VERSIONS = "_versions/18446744073709551614.manifest"


def _rows(first: int, count: int = 10) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


def _table(s3: Moto, client: str | None, bucket: str = "lab") -> tuple[Any, dict[str, str]]:
    """Return a new address and its storage options: a URL for obstore, a file system object for s3fs."""
    if client != "fsspec":
        return f"s3://{bucket}/{uuid4()}", s3.options
    s3fs = pytest.importorskip("s3fs")
    options = {"key": s3.options["aws_access_key_id"], "secret": s3.options["aws_secret_access_key"]}
    return (s3fs.S3FileSystem(endpoint_url=s3.endpoint, **options), f"{bucket}/{uuid4()}"), {}


# ---- replies to conditional creates


@pytest.mark.parametrize(
    ("replies", "contents", "outcome", "sent"),
    [
        ([Reply.CREATED], [], PutOutcome.WON, 1),
        ([Reply.TAKEN], [b"theirs"], PutOutcome.LOST, 1),
        ([Reply.TAKEN], [b"ours"], PutOutcome.WON, 1),
        ([Reply.TAKEN, Reply.CREATED], [None], PutOutcome.WON, 2),  # 409: the competing request failed
        ([Reply.TAKEN, Reply.TAKEN], [None, b"theirs"], PutOutcome.LOST, 2),
        ([Reply.AMBIGUOUS], [b"ours"], PutOutcome.WON, 1),
        ([Reply.AMBIGUOUS], [b"theirs"], PutOutcome.LOST, 1),
        ([Reply.AMBIGUOUS, Reply.CREATED], [None], PutOutcome.WON, 2),
        ([Reply.AMBIGUOUS], [StoreError("x"), b"ours"], PutOutcome.WON, 1),
        ([Reply.AMBIGUOUS], [StoreError("x")] * 3, PutOutcome.UNKNOWN, 1),
        ([Reply.AMBIGUOUS, StoreError("403")], [None], PutOutcome.UNKNOWN, 2),
        ([Reply.AMBIGUOUS] * 6, [None] * 6, PutOutcome.UNKNOWN, 6),
    ],
)
def test_outcome_of_a_conditional_create(
    replies: list[Any], contents: list[Any], outcome: PutOutcome, sent: int
) -> None:
    requests = 0

    def next_of(results: list[Any]) -> Any:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def send() -> Reply:
        nonlocal requests
        requests += 1
        reply: Reply = next_of(replies)
        return reply

    assert create_exclusively(send, lambda: next_of(contents), b"ours", sleep=lambda seconds: None) is outcome
    assert requests == sent


@pytest.mark.parametrize(
    ("existing", "outcome", "reported"), [(b"other", PutOutcome.LOST, [b"other"]), (b"ours", PutOutcome.WON, [])]
)
def test_lost_create_reports_the_existing_bytes(existing: bytes, outcome: PutOutcome, reported: list[bytes]) -> None:
    calls: list[bytes | memoryview] = []
    result = create_exclusively(
        lambda: Reply.TAKEN, lambda: existing, b"ours", on_existing=calls.append, sleep=lambda seconds: None
    )
    assert (result, calls) == (outcome, reported)


def test_rejected_create_raises() -> None:
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
        (_client_error("SlowDown", 503), Reply.AMBIGUOUS),
        (_client_error("InternalError", 500), Reply.AMBIGUOUS),
        (_client_error("AccessDenied", 403), None),
        (_client_error("NoSuchBucket", 404), None),
        (TimeoutError(), Reply.AMBIGUOUS),
        (FileExistsError(), Reply.TAKEN),
        (PermissionError(), None),
    ],
)
def test_errors_of_fsspec_are_classified(cause: Exception, reply: Reply | None) -> None:
    assert reply_to(cause) is reply
    if not isinstance(cause, PermissionError):
        try:
            raise OSError(22, "Invalid argument") from cause  # how s3fs wraps errors of Ceph
        except OSError as error:
            assert reply_to(error) is reply


# ---- network faults

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
def test_append_is_exactly_once_despite_lost_or_wrong_replies(s3: Moto, client: str, how: str, times: int) -> None:
    """One new version with each row once, for any fault of the request that creates the manifest."""
    uri, options = _table(s3, client)
    dataset = lancetable.write_dataset(_rows(0), uri, storage_options=options)
    s3.plan({"match": r"PUT .*_versions/\d+\.manifest\?", "times": times, "how": how})
    try:
        dataset.insert(_rows(10))
    finally:
        s3.reset()
    newest = lancetable.dataset(uri, storage_options=options)
    assert newest.version == dataset.version == 2
    assert sorted(newest.to_table()["id"].to_pylist()) == list(range(20))


@pytest.mark.parametrize("client", CLIENTS)
def test_forbidden_commit_raises(s3: Moto, client: str) -> None:
    uri, options = _table(s3, client)
    dataset = lancetable.write_dataset(_rows(0), uri, storage_options=options)
    s3.plan({"match": r"PUT .*_versions/\d+\.manifest\?", "times": 9, "how": "403"})
    try:
        with pytest.raises(StoreError):
            dataset.insert(_rows(10))
    finally:
        s3.reset()
    assert lancetable.dataset(uri, storage_options=options).version == 1


# ---- servers that ignore the condition


@pytest.mark.parametrize("client", CLIENTS)
def test_server_that_overwrites_is_detected(liar: Moto, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional_put_probe, "_probed", {})
    uri, options = _table(liar, client)
    with pytest.raises(UnsupportedFeatureError, match=r"overwrites.*commit_lock.*s3\+ddb.*unsafe_single_writer"):
        lancetable.write_dataset(_rows(0), uri, storage_options=options)
    store, base = open_store(uri, options)
    assert [meta.name for meta in store.list_recursive(base) if "_versions" in meta.name] == []
    result = race_objects(store, base, keys=3, threads=4)
    assert not result.is_safe
    monkeypatch.setattr(unsafe, "_warned", False)
    with pytest.warns(UserWarning, match="second writer"):
        lancetable.write_dataset(_rows(0), uri, storage_options={**options, "unsafe_single_writer": "true"})
    assert lancetable.dataset(uri, storage_options=options).count_rows() == 10


def test_server_is_probed_once(s3: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional_put_probe, "_probed", {})
    uri = f"s3://lab/{uuid4()}"
    store, base = open_store(uri, s3.options)
    s3.reset()
    conditional_put_probe.require_conditional_put(store, base)
    assert len(s3.log()) == 4
    conditional_put_probe.require_conditional_put(store, f"{base}/other")
    assert len(s3.log()) == 4
    assert list(store.list_recursive(base)) == []
    assert race_objects(store, base, keys=3, threads=6).is_safe
    assert list(store.list_recursive(base)) == []


@pytest.mark.parametrize(
    ("uri", "options", "needs_probe"),
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
def test_only_known_endpoints_need_no_probe(
    uri: str, options: dict[str, str], needs_probe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    assert open_store(uri, options)[0].capabilities.needs_probe is needs_probe


# ---- options


def test_option_names_of_fsspec_and_object_store_are_equivalent() -> None:
    from_fsspec_names = CloudOptions.parse(
        "s3", {"key": "k", "secret": "s", "token": "t", "client_kwargs": {"region_name": "r", "endpoint_url": "e"}}
    )
    from_object_store_names = CloudOptions.parse(
        "s3",
        {"AWS_ACCESS_KEY_ID": "k", "aws_secret_access_key": "s", "aws_session_token": "t", "region": "r"}
        | {"aws_endpoint_url": "e", "fsync": "0", "client": "obstore", "expires_at_millis": "1"},
    )
    assert from_fsspec_names == from_object_store_names
    assert not from_object_store_names.unknown
    azure = CloudOptions.parse("azure", {"azure_storage_account_name": "a", "access_key": "k", "sas_token": "s"})
    assert azure.config == {"account_name": "a", "account_key": "k", "sas_key": "s"}
    assert CloudOptions.parse("gcs", {"token": "anon"}).config == {"skip_signature": "true"}


def test_options_that_only_fsspec_supports_are_rejected() -> None:
    for name, value in {
        "config_kwargs": {"max_pool_connections": 3},
        "connection_string": "x",
        "client": "fsspec",
    }.items():
        with pytest.raises(InvalidInputError, match=rf"{name}.* file system object"):
            open_store("s3://b/t", {name: value})  # type: ignore[dict-item]  # a mapping, as in fsspec


def test_file_system_gets_the_storage_options(s3: Moto) -> None:
    """In a forked child, the file system object is created from the options of the URL."""
    pytest.importorskip("s3fs")
    given = {"token": "t", "timeout": "5s", "aws_server_side_encryption": "AES256"}
    options = CloudOptions.parse("s3", {**s3.options, **given}).with_environment()
    made = make_file_system(options).storage_options
    assert made["client_kwargs"] == {"region_name": "us-east-1"}
    assert made["config_kwargs"] == {"connect_timeout": 5.0, "read_timeout": 5.0, "s3": {"addressing_style": "path"}}
    assert made["s3_additional_kwargs"] == {"ServerSideEncryption": "AES256"}
    assert (made["key"], made["token"], made["endpoint_url"]) == (options.config["access_key_id"], "t", s3.endpoint)
    assert "anon" not in made and "requester_pays" not in made
    with pytest.raises(InvalidInputError, match=r"proxy_url.*spawn"):
        make_file_system(CloudOptions.parse("s3", {"proxy_url": "http://x"}))


@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        ({"account_name": "a", "account_key": "a2V5"}, {"account_name": "a", "account_key": "a2V5"}),
        ({"account_name": "a", "sas_token": "s"}, {"account_name": "a", "sas_token": "s"}),
        (
            {"use_emulator": "true", "account_key": "a2V5"},
            {
                "account_name": "devstoreaccount1",
                "connection_string": "BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;AccountName=devstoreaccount1;"
                "AccountKey=a2V5",
            },
        ),
    ],
)
def test_file_system_of_azure_gets_the_storage_options(config: dict[str, str], arguments: dict[str, str]) -> None:
    pytest.importorskip("adlfs")
    made = make_file_system(CloudOptions.parse("azure", config)).storage_options
    assert {
        name: made[name] for name in made if name not in ("use_listings_cache", "assume_container_exists")
    } == arguments


def test_invalid_options_are_rejected() -> None:
    with pytest.raises(InvalidInputError, match="two different values"):
        open_store("s3://b/t", {"region": "a", "aws_region": "b"})
    with pytest.raises(InvalidInputError, match="client"):
        open_store("s3://b/t", {"client": "curl"})
    with pytest.raises(InvalidInputError, match="bucket"):
        open_store("s3:///t")
    with pytest.raises(InvalidInputError, match="duration"):
        CloudOptions.parse("s3", {"timeout": "soon"}).seconds("timeout", 1)


def test_partial_credentials_are_not_completed_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "othersecret")
    monkeypatch.setenv("AWS_REGION", "mars")
    passed = CloudOptions.parse("s3", {"key": "k"}).with_environment()
    assert passed.config == {"access_key_id": "k", "region": "mars"}
    completed = CloudOptions.parse("s3", {}).with_environment()
    assert completed.config["secret_access_key"] == "othersecret"
    assert b"othersecret" not in pickle.dumps(CloudOptions.parse("s3", {}))


# ---- messages


def test_error_without_credentials_names_the_variables_and_options(
    s3: Moto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = {"endpoint": s3.endpoint, "allow_http": "true"}
    with pytest.raises(
        StoreError, match=r"s3://lab: no credentials; set AWS_ACCESS_KEY_ID and .* or pass the storage options"
    ):
        lancetable.dataset("s3://lab/t", storage_options=options)


@pytest.mark.parametrize(
    ("address", "host", "variable"),
    [
        ("s3://b/t", "http://169.254.169.254/latest/api/token", "AWS_ACCESS_KEY_ID"),
        ("gs://b/t", "http://metadata.google.internal/computeMetadata/v1", "GOOGLE_SERVICE_ACCOUNT"),
        ("az://b/t", "http://169.254.169.254/metadata/identity/oauth2/token", "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_failed_request_for_credentials_is_reported_as_missing_credentials(
    address: str, host: str, variable: str
) -> None:
    scheme = address.partition(":")[0]
    options = {"skip_signature": "true", "account_name": "a"} if scheme == "az" else {"skip_signature": "true"}
    options = CloudOptions.parse({"s3": "s3", "gs": "gcs", "az": "azure"}[scheme], options)
    store = ObstoreStore("b", options, capabilities_of("b", needs_probe=False), f"{scheme}://b")
    message = str(store._failure(OSError(f"Error performing PUT {host} in 1s, status code: 403"), "t"))
    assert "no credentials" in message and variable in message and host not in message


@pytest.mark.parametrize("address", ["s3://lab/t", "gs://lab/t"])
def test_http_endpoint_without_allow_http_is_refused_with_the_option(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    options = {"endpoint": "http://127.0.0.1:9", "skip_signature": "true"}
    with pytest.raises(InvalidInputError, match=r"http://127.0.0.1:9 uses http.*allow_http=true"):
        lancetable.dataset(address, storage_options=options)


def test_error_for_a_missing_bucket_names_the_bucket(s3: Moto) -> None:
    address = "s3://no-such-bucket/t"
    for call in (
        lambda: lancetable.dataset(address, storage_options=s3.options),
        lambda: lancetable.write_dataset(_rows(0), address, storage_options=s3.options),
        lambda: lancetable.fragment.write_fragments(_rows(0), address, storage_options=s3.options),
        lambda: open_store(address, s3.options)[0].put_if_absent("t/x", b"1"),
    ):
        with pytest.raises(LanceError, match=r"s3://no-such-bucket.*bucket does not exist") as caught:
            call()
        assert "<" not in str(caught.value)


def test_error_of_a_server_is_reduced_to_code_and_message(s3: Moto) -> None:
    store, _ = open_store("s3://lab/t", s3.options)
    body = "<?xml?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message><Id>7</Id></Error>"
    message = str(store._backend.get()._failure(OSError(f"status code: 503: {body}"), "t"))
    assert message == "s3://lab/t: OSError: SlowDown: Reduce your request rate."


# ---- secrets


@pytest.mark.parametrize("name", ["endpoint", "proxy_url"])
def test_messages_contain_no_passwords_of_addresses(name: str) -> None:
    options = {
        "endpoint": "http://127.0.0.1:9",
        "allow_http": "true",
        "access_key_id": "k",
        "secret_access_key": "s",
        "client_max_retries": "0",
        name: "http://someone:PLANTED@127.0.0.1:9",
    }
    store, _ = open_store("s3://bucket/t", options)
    assert "PLANTED" not in repr(store) and "127.0.0.1:9" in repr(store._options)
    with pytest.raises(LanceError) as raised:
        lancetable.dataset("s3://bucket/t", storage_options=options)
    assert "PLANTED" not in str(raised.value)


@pytest.mark.parametrize("client", CLIENTS)
def test_messages_contain_no_secrets(s3: Moto, client: str, caplog: pytest.LogCaptureFixture) -> None:
    planted = {"aws_access_key_id": "PLANTEDKEYID", "aws_secret_access_key": "PLANTEDSECRET", "token": "PLANTEDTOKEN"}
    options = {**s3.options, **planted, "client_max_retries": "1"}
    absent: Any = f"s3://no-such-bucket/{uuid4()}"
    address: Any = f"s3://lab/{uuid4()}"
    if client == "fsspec":
        file_system = make_file_system(CloudOptions.parse("s3", options))
        absent, address, options = (file_system, absent[5:]), (file_system, address[5:]), {}
    messages = []
    caplog.set_level(logging.DEBUG, logger="lancetable")
    store, base = open_store(absent, options)
    messages += [repr(store), str(store), store.uri(base), repr(store.capabilities)]
    for call in (
        lambda: store.put(f"{base}/x", b"1"),
        lambda: store.put_if_absent(f"{base}/x", b"1"),
        lambda: store.list_names(base),
        lambda: store.read_all(f"{base}/x"),
        lambda: lancetable.dataset(absent, storage_options=options),
    ):
        try:
            messages.append(repr(call()))
        except LanceError as error:  # noqa: PERF203  # each call must fail on its own
            cause: BaseException | None = error
            while cause is not None:
                messages += [str(cause), repr(cause), repr(vars(cause))]
                cause = cause.__cause__
    dataset = lancetable.write_dataset(_rows(0), address, storage_options=options)
    messages += [repr(dataset), str(dataset), repr(dataset._table), repr(dataset._table.handler)]
    messages += [record.getMessage() for record in caplog.records if record.name.startswith("lancetable")]
    assert not [message for message in messages if "PLANTED" in message]


# ---- processes


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pylance warns about every fork
@pytest.mark.parametrize("client", CLIENTS)
def test_forked_child_reads_and_commits(s3: Moto, client: str | None) -> None:
    """obstore hangs in a child that was forked after its use, so the child must use another client."""
    uri, options = _table(s3, client)
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
def test_pickled_dataset_reads_and_commits(s3: Moto, client: str) -> None:
    uri, options = _table(s3, client)
    dataset = lancetable.write_dataset(_rows(0), uri, storage_options=options)
    twin = pickle.loads(pickle.dumps(dataset))
    assert twin.to_table() == dataset.to_table()
    twin.insert(_rows(10))
    assert twin.version == 2


def test_s3_file_system_object_creates_exclusively(s3: Moto) -> None:
    s3fs = pytest.importorskip("s3fs")
    file_system = s3fs.S3FileSystem(key="lab", secret="labsecret", endpoint_url=s3.endpoint)
    key = str(uuid4())
    store, base = open_store((file_system, f"lab/{key}"))
    assert (base, store.uri(base), store.capabilities.needs_probe) == (key, f"s3://lab/{key}", True)
    file_system.ls("lab")  # the object may cache this listing
    assert store.put_if_absent(f"{base}/{VERSIONS}", b"1") is PutOutcome.WON
    assert store.put_if_absent(f"{base}/{VERSIONS}", b"2") is PutOutcome.LOST
    assert [meta.name for meta in store.list_names(f"{base}/_versions", limit=3)] == [VERSIONS[10:]]


class _OwnClient:
    """Client that works only in the process that created it."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def read(self, path: str, start: int, end: int) -> memoryview:
        assert self.pid == os.getpid()
        return memoryview(bytes(end - start))

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        return [self.read(path, start, end) for start, end in ranges]


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[_OwnClient]:
    """Return the clients that were created, in the place of those of obstore."""
    created: list[_OwnClient] = []

    def create(store: CloudStore) -> _OwnClient:
        created.append(_OwnClient())
        return created[-1]

    monkeypatch.setattr(CloudStore, "_create_backend", create)
    return created


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")  # another test may have imported it
def test_counting_store_uses_a_new_client_in_a_forked_child(clients: list[_OwnClient]) -> None:
    store = IOCountingStore(open_store("s3://lab/t", {})[0])
    assert bytes(store.read("x", 0, 1)) == bytes(1)
    child = os.fork()
    if child == 0:
        try:
            store.read("x", 0, 1)
            store.read_many("x", [ByteRange(0, 2)])
            os._exit(int(len(clients) != 2))
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(clients) == 1


def test_wrapping_pickling_and_inspecting_create_no_client(clients: list[_OwnClient]) -> None:
    store = pickle.loads(pickle.dumps(IOCountingStore(open_store("s3://lab/t", {})[0])))
    assert not hasattr(store, "mapped") and callable(store.open_writer)
    store._inner.sync()
    assert store._inner.modified_ns("x") is None
    assert not clients
    with pytest.raises(AttributeError, match="no_such_method"):
        store._inner.no_such_method  # noqa: B018  # the access is what raises
    assert not clients


def test_cloud_store_has_every_method_of_a_store() -> None:
    names = [name for name in vars(ObjectStore) if not name.startswith("_")]
    for options in ({}, {"untrusted": "true"}):
        store, _ = open_store("s3://lab/t", options)
        assert [name for name in names if not hasattr(store, name)] == []
