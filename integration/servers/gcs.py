"""Emulator of Google Cloud Storage that checks preconditions: objects in a dictionary behind one lock.

No available emulator supports both `ifGenerationMatch` and the uploads of gcsfs, so this one implements the parts of
both interfaces that the two clients need: JSON for gcsfs, XML for obstore. It does not verify the behaviour of Google.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

__all__ = ["Gcs", "gcs"]


@dataclass(slots=True)
class _Object:
    data: bytes
    generation: int
    modified: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    @property
    def etag(self) -> str:
        return hashlib.md5(self.data).hexdigest()


@dataclass(slots=True)
class _Bucket:
    objects: dict[str, _Object] = field(default_factory=dict)
    uploads: dict[str, dict[str, Any]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, key: str, data: bytes, condition: str | None) -> _Object | None:
        """Return None if the condition does not hold."""
        with self.lock:
            if condition == "0" and key in self.objects:
                return None
            stored = self.objects[key] = _Object(data, next(self.numbers))
            return stored

    def names(self, prefix: str, delimiter: str, after: str, inclusive: bool) -> Iterator[tuple[str, _Object | None]]:
        """Yield the objects in order; a directory is yielded once, without an object."""
        with self.lock:
            keys = sorted(self.objects.items())
        seen = set()
        for key, stored in keys:
            if not key.startswith(prefix) or key < after or (key == after and not inclusive):
                continue
            rest, separator, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if separator:
                directory = prefix + rest + separator
                if directory not in seen and (inclusive or directory > after):
                    seen.add(directory)
                    yield directory, None
            else:
                yield key, stored


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    buckets: dict[str, _Bucket]
    replies: list[int]

    def log_message(self, *arguments: Any) -> None:
        """Do not log requests."""

    def _answer(self, status: int, body: bytes | str = b"", headers: dict[str, str] | None = None) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.replies.append(len(data))
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _json(self, status: int, value: Any) -> None:
        self._answer(status, json.dumps(value), {"Content-Type": "application/json"})

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        for pattern, act in (
            (r"/upload/(?:resumable|storage/v1/b/([^/]+)/o)", self._upload),
            (r"/batch/storage/v1", self._batch),
            (r"/(?:download/)?storage/v1/b/([^/]+)/o/(.+)", self._json_object),
            (r"/storage/v1/b/([^/]+)/o", self._json_list),
            (r"/storage/v1/b/([^/]+)", self._json_bucket),
            (r"/([^/]+)/(.+)", self._xml_object),
            (r"/([^/]+)/?", self._xml_list),
        ):
            match = re.fullmatch(pattern, parts.path)
            if match:
                act([unquote(each or "") for each in match.groups()], query, body)
                return
        self._answer(404)

    def _chunks(self) -> bytes:
        found = []
        while True:
            size = int(self.rfile.readline().split(b";")[0], 16)
            found.append(self.rfile.read(size))
            self.rfile.readline()
            if not size:
                return b"".join(found)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815  # the names that http.server calls

    # ---- JSON

    def _facts(self, bucket: str, key: str, stored: _Object) -> dict[str, Any]:
        stamp = stored.modified.isoformat().replace("+00:00", "Z")
        return {
            "kind": "storage#object",
            "name": key,
            "bucket": bucket,
            "size": str(len(stored.data)),
            "generation": str(stored.generation),
            "updated": stamp,
            "timeCreated": stamp,
            "md5Hash": b64encode(hashlib.md5(stored.data).digest()).decode(),
        }

    def _stored(self, name: str, key: str, data: bytes, condition: str | None) -> None:
        stored = self.buckets[name].put(key, data, condition)
        if stored is None:
            self._json(412, {"error": {"code": 412, "message": "conditionNotMet"}})
        else:
            self._json(200, self._facts(name, key, stored))

    def _upload(self, names: list[str], query: dict[str, str], body: bytes) -> None:
        if not names[0]:
            self._resume(query["id"], body)
            return
        bucket, condition = self.buckets[names[0]], query.get("ifGenerationMatch")
        if query.get("uploadType") == "resumable":
            key = query.get("name") or json.loads(body)["name"]
            with bucket.lock:
                number = f"{names[0]}:{next(bucket.numbers)}"
                bucket.uploads[number] = {"key": key, "data": bytearray(), "condition": condition}
            self._answer(200, b"", {"Location": f"http://{self.headers['Host']}/upload/resumable?id={quote(number)}"})
            return
        _, head, content = body.split(b"--==0==", 2)
        key = json.loads(head.split(b"\n\n", 1)[1])["name"]
        content = content.split(b"\n\n", 1)[1]
        end = content.find(b"\n--==0==")
        self._stored(names[0], key, content[:end], condition)

    def _resume(self, number: str, body: bytes) -> None:
        name = number.partition(":")[0]
        upload = self.buckets[name].uploads.get(number)
        if upload is None:
            self._answer(404)
        elif self.command == "DELETE":
            del self.buckets[name].uploads[number]
            self._answer(499)
        else:
            upload["data"] += body
            total = self.headers.get("Content-Range", "/*").rpartition("/")[2]
            if total == "*" or len(upload["data"]) < int(total):
                self._answer(308, b"", {"Range": f"bytes=0-{len(upload['data']) - 1}"})
            else:
                self._stored(name, upload["key"], bytes(upload["data"]), upload["condition"])

    def _batch(self, names: list[str], query: dict[str, str], body: bytes) -> None:
        parts = []
        for name, key in re.findall(r"DELETE /storage/v1/b/([^/]+)/o/(\S+?)(?:\?\S*)? HTTP", body.decode()):
            gone = self.buckets[unquote(name)].objects.pop(unquote(key), None)
            parts.append(f"--batch\r\nContent-Type: application/http\r\n\r\nHTTP/1.1 {204 if gone else 404} X\r\n\r\n")
        self._answer(200, "".join(parts) + "--batch--", {"Content-Type": "multipart/mixed; boundary=batch"})

    def _json_bucket(self, names: list[str], query: dict[str, str], body: bytes) -> None:
        self._json(200 if names[0] in self.buckets else 404, {"name": names[0]})

    def _json_list(self, names: list[str], query: dict[str, str], body: bytes) -> None:
        limit = int(query.get("maxResults", 1000))
        token = query.get("pageToken")
        entries = self.buckets[names[0]].names(
            query.get("prefix", ""), query.get("delimiter", ""), token or query.get("startOffset", ""), token is None
        )
        answer: dict[str, Any] = {"kind": "storage#objects"}
        last = ""
        for number, (key, stored) in enumerate(entries):
            if number == limit:
                answer["nextPageToken"] = last
                break
            last = key
            if stored is None:
                answer.setdefault("prefixes", []).append(key)
            else:
                answer.setdefault("items", []).append(self._facts(names[0], key, stored))
        self._json(200, answer)

    def _json_object(self, names: list[str], query: dict[str, str], body: bytes) -> None:
        bucket = self.buckets[names[0]]
        stored = bucket.objects.get(names[1])
        if stored is None:
            self._json(404, {"error": {"code": 404, "message": "No such object"}})
        elif self.command == "DELETE":
            bucket.objects.pop(names[1], None)
            self._answer(204)
        elif query.get("alt") == "media":
            self._content(stored)
        else:
            self._json(200, self._facts(names[0], names[1], stored))

    # ---- XML

    def _content(self, stored: _Object) -> None:
        size = len(stored.data)
        headers = {
            "ETag": f'"{stored.etag}"',
            "Last-Modified": format_datetime(stored.modified, usegmt=True),
            "x-goog-generation": str(stored.generation),
            "Content-Type": "application/octet-stream",
        }
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match is None:
            self._answer(200, stored.data, {**headers, "Content-Length": str(size)})
            return
        start, end = int(match[1]), min(int(match[2] or size - 1), size - 1)
        if start >= size or end < start:
            self._answer(416, b"", {"Content-Range": f"bytes */{size}"})
            return
        data = stored.data[start : end + 1]
        self._answer(206, data, {**headers, "Content-Range": f"bytes {start}-{end}/{size}"})

    def _xml_object(self, names: list[str], query: dict[str, str], body: bytes) -> None:
        bucket, key = self.buckets[names[0]], names[1]
        stored = bucket.objects.get(key)
        if "uploads" in query or "uploadId" in query:
            self._parts(bucket, key, query, body)
        elif self.command == "PUT":
            made = bucket.put(key, body, self.headers.get("x-goog-if-generation-match"))
            if made is None:
                self._answer(412, "<Error><Code>PreconditionFailed</Code></Error>")
            else:
                self._answer(200, b"", {"ETag": f'"{made.etag}"', "x-goog-generation": str(made.generation)})
        elif stored is None:
            self._answer(404, "<Error><Code>NoSuchKey</Code></Error>")
        elif self.command == "DELETE":
            bucket.objects.pop(key, None)
            self._answer(204)
        else:
            self._content(stored)

    def _parts(self, bucket: _Bucket, key: str, query: dict[str, str], body: bytes) -> None:
        if "uploads" in query:
            with bucket.lock:
                number = f"x{next(bucket.numbers)}"
                bucket.uploads[number] = {}
            self._answer(
                200, f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>"
            )
            return
        number = query["uploadId"]
        if self.command == "DELETE":
            bucket.uploads.pop(number, None)
            self._answer(204)
        elif self.command == "PUT":
            bucket.uploads[number][query["partNumber"]] = body
            self._answer(200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
        else:
            parts = bucket.uploads.pop(number)
            made = bucket.put(key, b"".join(parts[each] for each in sorted(parts, key=int)), None)
            assert made is not None
            self._answer(
                200,
                f"<CompleteMultipartUploadResult><ETag>{made.etag}</ETag></CompleteMultipartUploadResult>",
                {"x-goog-generation": str(made.generation)},
            )

    def _xml_list(self, names: list[str], query: dict[str, str], body: bytes) -> None:
        if names[0] not in self.buckets:
            self._answer(404, "<Error><Code>NoSuchBucket</Code></Error>")
            return
        limit = int(query.get("max-keys", 1000))
        after = query.get("continuation-token") or query.get("start-after", "")
        entries = self.buckets[names[0]].names(query.get("prefix", ""), query.get("delimiter", ""), after, False)
        found, token, last = [], "", ""
        for number, (key, stored) in enumerate(entries):
            if number == limit:
                token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
                break
            last = key
            if stored is None:
                found.append(f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>")
            else:
                found.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{len(stored.data)}</Size><ETag>{stored.etag}</ETag>"
                    f"<LastModified>{stored.modified.isoformat().replace('+00:00', 'Z')}</LastModified></Contents>"
                )
        self._answer(200, f"<ListBucketResult>{''.join(found)}{token}</ListBucketResult>")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close the connection early."""


@dataclass(frozen=True, slots=True)
class Gcs:
    """A running server."""

    port: int
    replies: list[int]  # sizes in bytes of all replies so far

    @property
    def options(self) -> dict[str, str]:
        """Storage options with the names of pylance."""
        return {
            "google_base_url": f"http://127.0.0.1:{self.port}",
            "google_skip_signature": "true",
            "allow_http": "true",
        }


@contextlib.contextmanager
def gcs(*buckets: str) -> Iterator[Gcs]:
    """Serve these buckets from threads of this process until the block ends."""
    replies: list[int] = []
    handler = type("Handler", (_Handler,), {"buckets": {name: _Bucket() for name in buckets}, "replies": replies})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield Gcs(server.server_address[1], replies)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
