"""Partial failures of DeleteObjects: S3 replies with status 200 and lists the failed objects in the body."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lancetable.errors import StoreError
from lancetable.store.clouds.fsspec_client import make_file_system
from lancetable.store.clouds.options import CloudOptions
from lancetable.store.open import open_store

NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
LOCKED = "<Code>AccessDenied</Code><Message>the object is locked</Message>"


class Bucket(BaseHTTPRequestHandler):
    """Minimal S3 server for deletes. Objects with "locked" in their name cannot be deleted."""

    protocol_version = "HTTP/1.1"
    keys: set[str] = set()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        """Reply to DeleteObjects."""
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        wanted = re.findall("<Key>(.*?)</Key>", body)
        kept = [key for key in wanted if "locked" in key]
        self.keys.difference_update({*wanted}.difference(kept))
        errors = "".join(f"<Error><Key>{key}</Key>{LOCKED}</Error>" for key in kept)
        gone = "" if "<Quiet>" in body else "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in wanted)
        self.answer(200, f"<DeleteResult {NAMESPACE}>{errors or gone}</DeleteResult>")

    def do_DELETE(self) -> None:
        """Reply to DeleteObject."""
        key = self.path.partition("?")[0].removeprefix("/bucket/")
        if "locked" in key:
            self.answer(403, f"<Error>{LOCKED}</Error>")
        else:
            self.keys.discard(key)
            self.answer(204, "")

    def do_HEAD(self) -> None:
        """Reply to HeadObject: no object has the name of the directory."""
        self.answer(404, "")

    def do_GET(self) -> None:
        """Reply to ListObjectsV2."""
        found = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>e</ETag>"
            f"<Size>1</Size></Contents>"
            for key in sorted(self.keys)
        )
        self.answer(200, f"<ListBucketResult {NAMESPACE}><IsTruncated>false</IsTruncated>{found}</ListBucketResult>")

    def answer(self, status: int, body: str) -> None:
        """Send a reply."""
        data = f'<?xml version="1.0"?>{body}'.encode() if body else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/xml")
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Bucket) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(params=["obstore", "s3fs"])
def store(request: pytest.FixtureRequest, endpoint: str) -> Any:
    pytest.importorskip(request.param)
    options = {"key": "k", "secret": "s", "region": "us-east-1", "endpoint": endpoint, "allow_http": "true"}
    if request.param == "obstore":
        return open_store("s3://bucket/t", options)[0]
    return open_store((make_file_system(CloudOptions.parse("s3", options)), "bucket/t"))[0]


def test_error_has_the_name_of_an_object_that_was_not_deleted(store: Any) -> None:
    Bucket.keys = {"t/a", "t/locked", "t/z"}
    with pytest.raises(StoreError, match="t/locked"):
        store.delete(["t/a", "t/locked", "t/z"])
    assert "t/locked" in Bucket.keys and "t/a" not in Bucket.keys
    store.delete(["t/a", "t/z", "t/missing"])
    assert Bucket.keys == {"t/locked"}


def test_partial_delete_of_a_prefix_is_an_error(store: Any) -> None:
    Bucket.keys = {"t/a", "t/locked", "t/z"}
    with pytest.raises(StoreError, match="t/locked"):
        store.delete_prefix("t")
    Bucket.keys = {"t/a", "t/z"}
    store.delete_prefix("t")
    assert Bucket.keys == set()
