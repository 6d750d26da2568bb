"""moto's S3 and DynamoDB behind one lock, with a log of requests and planned faults.

moto checks conditions and stores in two steps; the lock makes both one, so that a race has one winner. `lying=True`
drops the condition of conditional PUTs, as some real servers do.

    GET  /_lab/log       the requests since the last reset: [method, path, query, status, bytes up, bytes down]
    POST /_lab/reset     forget the log and the faults
    POST /_lab/faults    [{"match": "PUT .*_versions", "times": 1, "how": "stored_then_dropped"}]
         how: dropped, stored_then_dropped, stored_then_500, 409, 412, 503, 500, 403, stalled
    POST /_lab/weather   {"503": 0.05, "dropped": 0.01, "stalled": 0.01}: the share of all requests that fails so,
                         drawn from a fixed seed; a stall takes five seconds and blocks no other request
    POST /_lab/objects   {"bucket": "lab", "objects": {key: bytes in base64}}: stored without a request for each
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import logging
import random
import re
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.servers.process import free_port, running, wait_for_http

__all__ = ["Moto", "moto"]

_BODIES = {
    "409": ("409 Conflict", "ConditionalRequestConflict"),
    "412": ("412 Precondition Failed", "PreconditionFailed"),
    "503": ("503 Slow Down", "SlowDown"),
    "500": ("500 Internal Server Error", "InternalError"),
    "403": ("403 Forbidden", "AccessDenied"),
}


@dataclass(frozen=True, slots=True)
class Moto:
    """A running server."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """Storage options by pylance's names."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_access_key_id": "lab",
            "aws_secret_access_key": "labsecret",
            "aws_region": "us-east-1",
            "allow_http": "true",
        }

    def log(self) -> list[list[Any]]:
        """Return the requests since the last reset."""
        found: list[list[Any]] = self._call("log", None)
        return found

    def reset(self) -> None:
        """Forget the requests and the faults."""
        self._call("reset", [])

    def plan(self, *faults: dict[str, Any]) -> None:
        """Fail requests that match; see the module."""
        self._call("faults", list(faults))

    def weather(self, shares: Mapping[str, float]) -> None:
        """Fail these shares of all requests; none of them with an empty mapping."""
        self._call("weather", dict(shares))

    def store(self, bucket: str, objects: Mapping[str, bytes]) -> None:
        """Store thousands of objects with one request."""
        told = {key: base64.b64encode(data).decode() for key, data in objects.items()}
        self._call("objects", {"bucket": bucket, "objects": told})

    def make_bucket(self, name: str) -> None:
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")).close()

    def client(self, service: str) -> Any:
        """Return a boto3 client."""
        import boto3

        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            aws_access_key_id="lab",
            aws_secret_access_key="labsecret",
            region_name="us-east-1",
        )

    def make_table(self, name: str) -> None:
        """Create a DynamoDB table for commits."""
        self.client("dynamodb").create_table(
            TableName=name,
            KeySchema=[
                {"AttributeName": "base_uri", "KeyType": "HASH"},
                {"AttributeName": "version", "KeyType": "RANGE"},
            ],
            AttributeDefinitions=[
                {"AttributeName": "base_uri", "AttributeType": "S"},
                {"AttributeName": "version", "AttributeType": "N"},
            ],
            BillingMode="PAY_PER_REQUEST",
        )

    def _call(self, name: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(f"{self.endpoint}/_lab/{name}", data=data, timeout=30) as reply:
            return json.loads(reply.read())


@contextlib.contextmanager
def moto(directory: Path, *, lying: bool = False) -> Iterator[Moto]:
    """Run the server until the block ends."""
    port = free_port()
    log = directory / f"moto-{port}.log"
    command = [sys.executable, "-m", "integration.servers.moto_locked", "--port", str(port)]
    with running([*command, "--lying"] if lying else command, log) as process:
        wait_for_http(port, process, log)
        yield Moto(port)


_STALL_SECONDS = 5.0


class _Lab:
    def __init__(self, app: Callable[..., Iterable[bytes]], lying: bool) -> None:
        self._app = app
        self._lying = lying
        self._lock = threading.Lock()
        self._log: list[list[Any]] = []
        self._faults: list[dict[str, Any]] = []
        self._weather: dict[str, float] = {}
        self._rng = random.Random(0)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/_lab/"):
            return self._control(path[6:], environ, start_response)
        if self._lying:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        how = self._drawn()
        if how == "stalled":
            time.sleep(_STALL_SECONDS)
            how = None
        with self._lock:
            return self._serve(path, environ, start_response, how)

    def _drawn(self) -> str | None:
        with self._lock:
            drawn = self._rng.random() if self._weather else 1.0
        for how, share in self._weather.items():
            drawn -= share
            if drawn < 0:
                return how
        return None

    def _serve(
        self, path: str, environ: dict[str, Any], start_response: Callable[..., Any], how: str | None
    ) -> list[bytes]:
        method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        row = [method, path, target or query, 0, int(environ.get("CONTENT_LENGTH") or 0), 0]
        self._log.append(row)
        how = how or self._due(f"{method} {path}?{query} {target}")
        if how == "stalled":
            time.sleep(3)
        if how in _BODIES:
            row[3] = int(how)
            return _failed(environ, start_response, how)
        if how == "dropped":
            raise _dropped(environ)
        started: list[Any] = []

        def note(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            started.append(status)
            return (lambda data: None) if how else start_response(status, headers, *rest)

        body = list(self._app(environ, note))
        row[3], row[5] = int(started[-1].split()[0]), sum(map(len, body))
        if how == "stored_then_dropped":
            raise _dropped(environ)
        if how == "stored_then_500":
            return _failed(environ, start_response, "500", unread=False)
        if how:
            start_response(started[-1], [])
        return body

    def _due(self, request: str) -> str | None:
        for fault in self._faults:
            if fault["times"] > 0 and re.search(fault["match"], request):
                fault["times"] -= 1
                return str(fault["how"])
        return None

    def _control(self, name: str, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        answer: Any = "ok"
        if name == "log":
            answer = self._log
        elif name == "reset":
            self._log, self._faults = [], []
        elif name == "faults":
            size = int(environ.get("CONTENT_LENGTH") or 0)
            self._faults = json.loads(environ["wsgi.input"].read(size))
        elif name == "weather":
            size = int(environ.get("CONTENT_LENGTH") or 0)
            self._weather, self._rng = json.loads(environ["wsgi.input"].read(size)), random.Random(0)
        elif name == "objects":
            size = int(environ.get("CONTENT_LENGTH") or 0)
            _store(**json.loads(environ["wsgi.input"].read(size)))
        data = json.dumps(answer).encode()
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(data)))])
        return [data]


def _store(bucket: str, objects: dict[str, str]) -> None:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    for key, data in objects.items():
        backend.put_object(bucket, key, base64.b64decode(data), disable_notification=True)


def _dropped(environ: dict[str, Any]) -> Exception:
    """Close the connection without a reply."""
    with contextlib.suppress(OSError):
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    return ConnectionAbortedError("planned")


def _failed(environ: dict[str, Any], start_response: Callable[..., Any], how: str, unread: bool = True) -> list[bytes]:
    status, code = _BODIES[how]
    if unread:
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    if environ.get("HTTP_X_AMZ_TARGET"):
        data = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "planned"}).encode()
    else:
        data = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>planned</Message></Error>".encode()
    start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(data)))])
    return [data]


def _main() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--lying", action="store_true")
    arguments = parser.parse_args()

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept alive, as by real servers

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    lab = _Lab(DomainDispatcherApplication(create_backend_app), arguments.lying)
    make_server("127.0.0.1", arguments.port, lab, threaded=True, request_handler=Handler).serve_forever()


if __name__ == "__main__":
    _main()
