"""Resolution of addresses to stores and paths, options, and invalid addresses."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lancetable.errors import InvalidInputError, UnsupportedFeatureError
from lancetable.store.fsspec_store import FsspecStore
from lancetable.store.local import LocalStore
from lancetable.store.open import open_store

LOCAL = [
    ("/data/t", "/data/t"),
    ("/data/t/", "/data/t"),
    ("/data/../data/./t", "/data/t"),
    ("file:///data/t", "/data/t"),
    ("FILE:///data/t", "/data/t"),
    ("file:/data/t", "/data/t"),
    ("file://localhost/data/t", "/data/t"),
    ("file:///data/a%20b%25", "/data/a b%"),
    ("/data/a%20b", "/data/a%20b"),
    ("/data/x?y#z", "/data/x?y#z"),
    ("/data/with:colon", "/data/with:colon"),
    ("/data/a://b", "/data/a:/b"),
]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX paths")
@pytest.mark.parametrize(("uri", "path"), LOCAL)
def test_local_addresses_are_resolved(uri: str, path: str) -> None:
    store, resolved = open_store(uri)
    assert isinstance(store, LocalStore)
    assert resolved == path


def test_relative_paths_home_and_path_objects_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert open_store("t.lance")[1] == f"{os.getcwd()}/t.lance"
    assert open_store("./a/../t")[1] == f"{os.getcwd()}/t"
    assert open_store("~/t")[1] == f"{tmp_path}/home/t"
    assert open_store(tmp_path / "t")[1] == f"{tmp_path}/t"


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "a\0b",
        "file:///a%00b",
        "file://host/share",
        "file:///a?b=c",
        "file:///a#b",
        "nothing://x/y",
        "s4://bucket/key",
        "s3://key:secret@bucket/t",
        "memory://user@t",
        "s3://bucket/t?x=1",
        "s3://bucket/t#x",
        "s3://bucket/a/../../c",
        "memory://a/./b",
        "simplecache::s3://b/k",
        "s3:/bucket/t",
    ],
)
def test_invalid_addresses_are_rejected(uri: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_store(uri)
    assert "secret" not in str(caught.value)


def test_error_for_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"s4://.*s3://.*sftp"):
        open_store("s4://bucket/key")


def test_s3_address_with_a_dynamodb_table() -> None:
    pytest.importorskip("obstore")
    store, path = open_store("s3+ddb://bucket/some/t.lance?ddbTableName=x")
    assert (store.scheme, path, store.uri(path)) == ("s3", "some/t.lance", "s3://bucket/some/t.lance")
    for query in ("", "?", "?ddbTableName=", "?ddbTableName=a&ddbTableName=b", "?other=x", "?ddbTableName=a&x=1"):
        with pytest.raises(InvalidInputError, match="ddbTableName"):
            open_store(f"s3+ddb://bucket/t{query}")
    with pytest.raises(InvalidInputError):
        open_store("gs+ddb://bucket/t?ddbTableName=x")


@pytest.mark.parametrize(("uri", "extra"), [("s3://b/t", "s3"), ("gs://b/t", "gcs"), ("az://b/t", "azure")])
def test_error_for_a_missing_package_has_the_extra(uri: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancetable.store.clouds.cloud.find_spec", lambda name: None)
    with pytest.raises(UnsupportedFeatureError, match=rf"lancetable\[{extra}\]"):
        open_store(uri)


def test_other_schemes_use_fsspec_without_connecting() -> None:
    store, path = open_store("ftp://host.invalid:21/data/t", {"username": "me", "fsync": "false"})
    assert isinstance(store, FsspecStore)
    assert path == "/data/t"
    assert store.scheme == "ftp"
    assert store._options["host"] == "host.invalid"
    assert store._options["username"] == "me"
    assert "fsync" not in store._options


@pytest.mark.parametrize(
    ("value", "durable"), [("true", True), ("1", True), ("False", False), ("0", False), (False, False), ("off", False)]
)
def test_fsync_option_sets_durability(value: object, durable: bool) -> None:
    store, _ = open_store("/t", {"fsync": value})  # type: ignore[dict-item]  # booleans are accepted too
    assert store.capabilities.durable is durable


def test_environment_variable_sets_durability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCETABLE_FSYNC", "0")
    assert not open_store("/t")[0].capabilities.durable
    assert open_store("/t", {"fsync": "true"})[0].capabilities.durable
    monkeypatch.delenv("LANCETABLE_FSYNC")
    assert open_store("/t")[0].capabilities.durable


def test_invalid_boolean_option_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match="mmap"):
        open_store("/t", {"mmap": "perhaps"})


def test_address_of_a_wrong_type_raises_type_error() -> None:
    with pytest.raises(TypeError):
        open_store(7)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(TypeError):
        open_store(b"/t")  # type: ignore[arg-type]  # wrong on purpose
