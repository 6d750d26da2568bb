"""Stores without exclusive creates, such as SFTP: reads work, writes are refused, and each alternative works."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import _registry

import lancetable
from lancetable.errors import UnsupportedFeatureError
from lancetable.handlers import unsafe


class _Server(LocalFileSystem):
    """Files of a local directory as an SFTP server. `mode="create"` checks and then writes, as on SFTP."""

    protocol = "sftp"
    root = ""

    def __init__(self, host: str = "", **options: Any) -> None:
        super().__init__(auto_mkdir=False, **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        inner = str(path).removeprefix("sftp://host/").removeprefix(cls.root)
        return f"{cls.root}/{inner.strip('/')}"

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"host": "host"}


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(_Server, "root", str(tmp_path))
    monkeypatch.setitem(_registry, "sftp", _Server)
    return "sftp://host/t.lance"


def _rows(first: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + 10), pa.int64())})


def _ids(uri: str) -> list[int]:
    return sorted(int(value) for value in lancetable.dataset(uri).to_table()["id"].to_pylist())


def test_reads_work_and_writes_are_refused_by_default(uri: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        lancetable.write_dataset(_rows(0), uri)
    for choice in ("commit_lock", "external manifest store", "unsafe_single_writer"):
        assert choice in str(caught.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []  # no files remain
    lancetable.write_dataset(_rows(0), str(tmp_path / "t.lance"))
    before = sorted(tmp_path.rglob("*"))
    assert _ids(uri) == list(range(10))
    for change in (
        lambda: lancetable.write_dataset(_rows(10), uri, mode="append"),
        lambda: lancetable.dataset(uri).delete("id = 3"),
        lambda: lancetable.write_dataset(_rows(10), uri, mode="overwrite"),
    ):
        with pytest.raises(UnsupportedFeatureError, match="commit_lock"):
            change()
    assert _ids(uri) == list(range(10))
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == [path for path in before if path.is_file()]


def _append_in_threads(uri: str, **how: Any) -> None:
    failed = []

    def write(number: int) -> None:
        try:
            for turn in range(3):
                lancetable.write_dataset(_rows(100 * number + 10 * turn), uri, mode="append", **how)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failed == []
    want = [*range(10), *(100 * number + each for number in range(1, 4) for each in range(30))]
    assert _ids(uri) == sorted(want)


def test_concurrent_appends_with_a_shared_commit_lock(uri: str) -> None:
    lock = threading.Lock()

    @contextmanager
    def commit_lock(version: int) -> Iterator[None]:
        with lock:
            yield

    lancetable.write_dataset(_rows(0), uri, commit_lock=commit_lock)
    _append_in_threads(uri, commit_lock=commit_lock)


def test_concurrent_appends_with_an_external_manifest_store(uri: str, tmp_path: Path) -> None:
    options = {"manifest_store": f"sqlite:///{tmp_path}/versions.sqlite"}
    lancetable.write_dataset(_rows(0), uri, storage_options=options)
    _append_in_threads(uri, storage_options=options)


def test_unsafe_single_writer_warns_and_writes(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsafe, "_warned", False)
    options = {"unsafe_single_writer": "true"}
    with pytest.warns(UserWarning, match="second writer"):
        lancetable.write_dataset(_rows(0), uri, storage_options=options)
    lancetable.write_dataset(_rows(10), uri, mode="append", storage_options=options)
    assert _ids(uri) == list(range(20))
