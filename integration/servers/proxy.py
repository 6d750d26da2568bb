"""Proxy that drops requests and replies, for servers without fault injection.

The planned faults are those of moto_locked.py: dropped, stored_then_dropped, stored_then_500, 409, 412, 500, 503, 403.
Requests are forwarded unchanged, including the host name, because signatures may cover it.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Proxy", "proxy"]

_STATUS = {"409": 409, "412": 412, "503": 503, "500": 500, "403": 403, "stored_then_500": 500}
_OWN = frozenset(("transfer-encoding", "connection", "keep-alive", "content-length"))  # of each connection


@dataclass
class Proxy:
    """A running proxy."""

    port: int
    _faults: list[dict[str, Any]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def plan(self, *faults: dict[str, Any]) -> None:
        """Fail requests that match: {"match": "PUT .*_versions", "times": 1, "how": "dropped"}."""
        with self._lock:
            self._faults = [dict(each) for each in faults]

    @property
    def left(self) -> int:
        """Return the number of planned faults that did not occur."""
        return sum(int(fault["times"]) for fault in self._faults)

    def due(self, request: str) -> str | None:
        """Return the fault of a request."""
        with self._lock:
            for fault in self._faults:
                if fault["times"] > 0 and re.search(fault["match"], request):
                    fault["times"] -= 1
                    return str(fault["how"])
        return None


@contextlib.contextmanager
def proxy(target: int) -> Iterator[Proxy]:
    """Forward requests to a port of the loopback until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self._body()
            how = running.due(f"{self.command} {self.path} {' '.join(self.headers.keys())}")
            if how == "dropped":
                self._drop()
                return
            status, reason, headers, answer = 0, "planned", [("x-ms-error-code", "Planned")], b""
            if how is None or how.startswith("stored_then"):
                connection = http.client.HTTPConnection("127.0.0.1", target, timeout=60)
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                reply = connection.getresponse()
                answer = reply.read()
                if how is None:
                    status, reason, headers = reply.status, reply.reason, reply.getheaders()
                    if self.command == "HEAD":
                        headers.append(("Content-Length", reply.getheader("Content-Length") or "0"))
                connection.close()
            if how == "stored_then_dropped":
                self._drop()
                return
            if how is not None:
                status, answer = _STATUS[how], b""
            self.send_response_only(status, reason)
            for name, value in headers:
                if name.lower() not in _OWN or (self.command == "HEAD" and name == "Content-Length"):
                    self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815  # names of http.server

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            del self.headers["Transfer-Encoding"]
            return b"".join(parts)

        def _drop(self) -> None:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Do not log requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    running = Proxy(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
