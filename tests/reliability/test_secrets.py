"""Secrets are not disclosed.

Recognizable keys are passed in every way that a user can pass them, and searched for in logs, errors with their causes,
warnings, representations and stored objects.
"""

from __future__ import annotations

import logging
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import lancetable
from integration.servers.moto_locked import Moto
from lancetable.ops.maintain.commit_probe import probe

ROWS = pa.table({"id": pa.array(range(4), pa.int64())})
NOBODY = "http://127.0.0.1:9"
QUICK = {"client_max_retries": "0", "client_retry_timeout": "1s", "timeout": "2s", "allow_http": "true"}
KEYS = [f"PLANTED{number}SECRET" for number in range(8)]
LONG = "UExBTlRFRFNFQ1JFVA=="  # in base64, for keys that require it
S3 = {"aws_access_key_id": KEYS[0], "aws_secret_access_key": KEYS[1], "aws_session_token": KEYS[2]}

# Address and options of an endpoint that does not reply.
PLACES: dict[str, tuple[str, dict[str, str]]] = {
    "s3, obstore": ("s3://b/t", {**S3, "endpoint": NOBODY, "client": "obstore"}),
    "s3, fsspec": ("s3://b/t", {"key": KEYS[0], "secret": KEYS[1], "endpoint_url": NOBODY, "client": "fsspec"}),
    "s3, customer key": ("s3://b/t", {**S3, "endpoint": NOBODY, "sse_customer_key_base64": LONG}),
    "s3, an unknown option": ("s3://b/t", {**S3, "endpoint": NOBODY, "my_secret_thing": KEYS[3]}),
    "s3+ddb": ("s3+ddb://b/t?ddbTableName=d", {**S3, "endpoint": NOBODY, "dynamodb_endpoint": NOBODY}),
    "s3, keys in the address": (f"s3://{KEYS[0]}:{KEYS[1]}@b/t", {"endpoint": NOBODY}),
    "azure": ("az://c/t", {"account_name": "a", "account_key": LONG, "endpoint": f"{NOBODY}/a"}),
    "azure, signature": (
        "az://c/t",
        {"account_name": "a", "sas_key": f"sv=1&sig={KEYS[4]}", "endpoint": f"{NOBODY}/a"},
    ),
    "google": ("gs://b/t", {"bearer_token": KEYS[5], "base_url": NOBODY}),
    "google, account": ("gs://b/t", {"service_account_key": f'{{"private_key": "{KEYS[6]}"}}', "base_url": NOBODY}),
    "any other": (f"ftp://user:{KEYS[7]}@127.0.0.1:9/t", {"password": KEYS[7]}),
    "keys in the options of a local table": ("/nowhere/t", {**S3, "token": KEYS[3]}),
}
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": KEYS[0],
    "AWS_SECRET_ACCESS_KEY": KEYS[1],
    "AWS_SESSION_TOKEN": KEYS[2],
    "AZURE_STORAGE_ACCOUNT_KEY": LONG,
    "GOOGLE_SERVICE_ACCOUNT_KEY": f'{{"private_key": "{KEYS[6]}"}}',
}
CALLS: list[Callable[[str, dict[str, str]], Any]] = [
    lambda uri, options: lancetable.dataset(uri, storage_options=options),
    lambda uri, options: lancetable.write_dataset(ROWS, uri, storage_options=options),
    lambda uri, options: lancetable.write_dataset(ROWS, uri, mode="append", storage_options=options),
    lambda uri, options: lancetable.fragment.write_fragments(ROWS, uri, storage_options=options),
    lambda uri, options: lancetable.LanceDataset.drop(uri, storage_options=options),
    lambda uri, options: probe(uri, options),
]


class Heard:
    """Collected output that could contain a secret."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, *things: Any) -> None:
        for thing in things:
            self.told += [str(thing), repr(thing)]

    def call(self, act: Callable[[], Any]) -> Any:
        try:
            result = act()
        except Exception as error:
            at: BaseException | None = error
            while at is not None:
                self.note(at, at.args, vars(at), *getattr(at, "__notes__", ()))
                at = at.__cause__ or at.__context__
            self.told += traceback.format_exception(error)
            return None
        self.note(result)
        return result

    def check(self) -> None:
        found = [text[:300] for text in self.told if any(key in text for key in (*KEYS, LONG))]
        assert not found, found[:3]


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> Iterator[Heard]:
    caplog.set_level(logging.DEBUG, logger="lancetable")
    heard = Heard()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield heard
    heard.note(*(warning.message for warning in caught))
    for record in caplog.records:
        if record.name.startswith("lancetable"):
            heard.note(record.getMessage(), record.args)
    heard.check()


@pytest.mark.parametrize("given", ["options", "environment"])
@pytest.mark.parametrize(
    "place",  # s3fs retries a missing endpoint for 15 seconds
    [pytest.param(place, marks=pytest.mark.slow if "fsspec" in place else []) for place in PLACES],
)
def test_failing_requests_disclose_no_secrets(
    place: str, given: str, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, options = PLACES[place]
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    if given == "environment":
        secret = (*KEYS, LONG)
        options = {key: value for key, value in options.items() if not any(each in value for each in secret)}
    for call in CALLS:
        heard.call(lambda call=call: call(uri, {**options, **QUICK}))  # type: ignore[misc]  # mypy cannot infer such a default
    assert heard.told


@pytest.mark.parametrize("external", [False, True], ids=["s3", "s3+ddb"])
def test_successful_requests_disclose_no_secrets(s3: Moto, external: bool, heard: Heard) -> None:
    options = {**s3.options, **S3, "dynamodb_endpoint": s3.endpoint}
    name = uuid4().hex
    uri = f"s3+ddb://lab/{name}?ddbTableName=lab" if external else f"s3://lab/{name}"
    table = heard.call(lambda: lancetable.write_dataset(ROWS, uri, storage_options=options))
    for act in (
        lambda: table.insert(ROWS),
        lambda: table.delete("id = 1"),
        lambda: table.tags.create("t", 1),
        lambda: table.delete("nothing = 1"),
        lambda: table.checkout_version(99),
        lambda: lancetable.LanceDataset.commit(uri, lancetable.LanceOperation.Restore(77), storage_options=options),
        lambda: table.scanner(filter="id > 1").explain_plan(),
        lambda: table.get_fragments(),
        lambda: table.get_transactions(),
    ):
        heard.call(act)
    version = table.table_version
    assert table.version == 3
    heard.note(table, version, version.store, version.handler, version.location, pickle.loads(pickle.dumps(table)))
    for meta in version.store.list_recursive(version.base):
        heard.note(meta.name, bytes(version.store.read_all(f"{version.base}/{meta.name}")))
    if external:
        rows = s3.client("dynamodb").scan(TableName="lab")["Items"]
        heard.note(rows)


def test_local_table_stores_none_of_its_options(tmp_path: Path, heard: Heard) -> None:
    uri = str(tmp_path / "t")
    table = heard.call(lambda: lancetable.write_dataset(ROWS, uri, storage_options={**S3, "token": KEYS[3]}))
    heard.note(table, *(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()))
