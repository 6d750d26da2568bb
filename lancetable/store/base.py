"""The contract of an object store.

A store is one authority: the local file system, the memory of this process, a bucket. Paths are full paths inside it,
separated by `/`. An object is written once and read by ranges; the exceptions are small objects that `put` replaces
as a whole.

    missing object                  NotFoundError(path=...)
    range past the end, short read  CorruptFileError(path=..., offset=..., expected=..., found=...)
    any other failure               StoreError(path=...) with the redacted text of its cause
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from lancetable import telemetry
from lancetable.errors import CorruptFileError, LanceError, NotFoundError
from lancetable.store.range_coalescing import ByteRange as ByteRange

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

logger = logging.getLogger(__name__)

EMPTY = memoryview(b"")


class ObjectMeta(NamedTuple):
    """One listed object. Size and time are None if the store would need another request to get them."""

    name: str  # relative to the listed prefix
    size_bytes: int | None
    last_modified: datetime | None  # UTC


class PutOutcome(Enum):
    """Result of a create-if-absent."""

    WON = "won"  # the object exists and holds the bytes of this call
    LOST = "lost"  # the object already existed, with other bytes
    UNKNOWN = "unknown"  # the request may have succeeded; read the object before doing anything else


OnExisting = Callable[[bytes | memoryview], None]  # receives the object that made a create lose


class Durability(Enum):
    """Time by which a written object must survive a power loss. Ignored by stores with immediately durable writes."""

    NOW = "now"  # before the call returns
    AT_SYNC = "at_sync"  # before the next `sync` returns
    NEVER = "never"  # may be lost; for hints


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Properties of a store that its callers may rely on."""

    conditional_create: Literal["native", "none"]  # none: put_if_absent raises UnsupportedFeatureError
    ordered_list: bool  # list_names with start_after and limit costs one request, not a whole listing
    durable: bool  # an acknowledged write survives a power loss
    local: bool  # a look-up costs microseconds, not a round trip
    needs_probe: bool = False  # the client sends the condition, but the server must be probed for it before a commit
    parallel: bool = False  # requests of several threads overlap, so callers should send small ones in parallel
    roots: tuple[str, ...] = ()  # if set, the table is untrusted: other paths are refused and limits are strict


class ClosedOrAborted(Protocol):
    """Context manager that calls `close` at the end of a `with` block, or `abort` after an exception."""

    __slots__ = ()

    def close(self) -> object:
        """Finish the work."""

    def abort(self) -> None:
        """Discard the work."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class ObjectWriter(ClosedOrAborted, Protocol):
    """Writer of a streamed object.

    `close` publishes the whole object; an exception in a `with` block aborts the write.
    """

    __slots__ = ()

    def write(self, data: Buffer) -> None:
        """Append bytes. The caller may reuse the buffer after the call."""

    def tell(self) -> int:
        """Return the number of bytes accepted so far."""

    def close(self) -> None:
        """Make the object visible. It is durable after the store's next `sync`. A second call does nothing."""

    def abort(self) -> None:
        """Remove the written bytes. Does nothing after `close` or `abort`."""


class ObjectStore(Protocol):
    """Storage of bytes by path. Instances are shared between threads and survive pickling and a fork.

    Stores that inherit from this class get the usual `key`, `size`, `modified_ns` and `sync`.
    """

    __slots__ = ()

    @property
    def scheme(self) -> str:
        """Scheme of the store's addresses: `file`, `memory`, `s3` ..."""

    @property
    def capabilities(self) -> Capabilities:
        """Properties of the store that callers adapt to."""

    def uri(self, path: str) -> str:
        """Return the address of a path for use in messages. It contains no secrets."""

    def key(self, path: str) -> str:
        """Return a cache key of an object.

        It includes the server or file system, because addresses may repeat across them. By default, it is the address.
        """
        return self.uri(path)

    def read(self, path: str, start: int, end: int) -> memoryview:
        """Return exactly `end - start` bytes, read-only. An empty range costs no request.

        Parameters
        ----------
        path
            Path of the object.
        start, end
            First byte, and the byte after the last one.

        Raises
        ------
        NotFoundError
            If the object does not exist.
        CorruptFileError
            If the range is invalid or exceeds the object.
        StoreError
            If the store fails.
        """

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Read several ranges of one object. Ranges close to each other share a request.

        Returns
        -------
        list of memoryview
            One buffer for each range, in the caller's order.

        Raises
        ------
        NotFoundError, CorruptFileError, StoreError
            As `read`.
        """

    def read_all(self, path: str, size: int | None = None) -> memoryview:
        """Return the whole object.

        Parameters
        ----------
        path
            Path of the object.
        size
            Exact size of the object, or None if it is unknown.

        Raises
        ------
        NotFoundError, CorruptFileError, StoreError
            As `read`. CorruptFileError also if the object is shorter than `size`.
        """

    def read_tail(self, path: str, size: int | None, length: int) -> tuple[memoryview, int]:
        """Read the end of an object.

        Parameters
        ----------
        path
            Path of the object.
        size
            Size of the object, or None if it is unknown.
        length
            Number of bytes to read.

        Returns
        -------
        tuple of memoryview and int
            The last `min(length, size)` bytes, and the size of the object.

        Raises
        ------
        NotFoundError, CorruptFileError, StoreError
            As `read`.
        """

    def put(self, path: str, data: Buffer, *, durability: Durability = Durability.NOW) -> None:
        """Write a whole object, replacing any old one. A reader sees either the old bytes or the new ones.

        Parameters
        ----------
        path
            Path of the object.
        data
            Bytes of the object.
        durability
            AT_SYNC is for objects under new names that nothing refers to yet: until the call returns, a listing may
            show an incomplete object.

        Raises
        ------
        StoreError
            If the store fails.
        """

    def put_if_absent(self, path: str, data: Buffer, *, on_existing: OnExisting | None = None) -> PutOutcome:
        """Create an object unless the path exists. At most one caller ever wins a path.

        Implementations never check and then write.

        Parameters
        ----------
        path
            Path of the object.
        data
            Bytes of the object.
        on_existing
            Called with the bytes of the existing object if the outcome is LOST and the store had to read the object to
            find out. The caller then need not read it again.

        Returns
        -------
        PutOutcome
            WON, LOST or UNKNOWN.

        Raises
        ------
        UnsupportedFeatureError
            If `capabilities.conditional_create` is "none".
        StoreError
            If the store fails and nothing was stored.
        """

    def open_writer(self, path: str) -> ObjectWriter:
        """Open a writer that streams one object with bounded memory."""

    def sync(self, prefix: str = "") -> None:
        """Wait until every object below a prefix that this process has closed or put is durable.

        By default, this does nothing: writes are durable when they return, or never.
        """
        return

    def release_pages(self, path: str) -> None:
        """Remove the pages of a memory-mapped file from the memory of this process; its data stay valid.

        By default, this does nothing.
        """
        return

    def list_names(
        self, prefix: str, start_after: str | None = None, limit: int | None = None, *, detail: bool = False
    ) -> list[ObjectMeta]:
        """List the objects directly under a prefix. Never cached.

        Parameters
        ----------
        prefix
            Path without a slash at the end.
        start_after
            Name relative to the prefix. Only greater names are listed.
        limit
            Maximum number of objects. All by default.
        detail
            Guarantee sizes and times. Otherwise they may be None.

        Returns
        -------
        list of ObjectMeta
            Objects in lexicographic order; [] if there are none.

        Raises
        ------
        StoreError
            If the store fails.
        """

    def list_recursive(self, prefix: str) -> Iterator[ObjectMeta]:
        """Yield every object below a prefix with its size and time. Raises StoreError.

        Names are relative to the prefix.
        """

    def size(self, path: str) -> int:
        """Return the size of the object in bytes. Never cached.

        Raises
        ------
        NotFoundError
            If the object does not exist.
        """
        size = self.find(path)
        if size is None:
            raise NotFoundError(f"not found: {path}", path=path)
        return size

    def find(self, path: str) -> int | None:
        """Return the size of the object in bytes, or None if it does not exist. Never cached. Raises StoreError."""

    def modified_ns(self, path: str) -> int | None:
        """Return the time of the last change of an object, or of the entries of a directory; None if unknown."""
        return None

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects. Missing objects are ignored. Raises StoreError if one cannot be deleted."""

    def delete_prefix(self, prefix: str) -> None:
        """Delete every object below a prefix, and its directories if the store has directories. Raises StoreError."""


class BufferedWriter(ObjectWriter):
    """Writer that buffers an object and puts it at `close`. Subclasses may upload a large object in parts."""

    __slots__ = ("_buffer", "_is_open", "_path", "_position", "_store")

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store = store
        self._path = path
        self._position = 0
        self._buffer = bytearray()
        self._is_open = True

    def write(self, data: Buffer) -> None:
        """Append bytes; see `ObjectWriter`.

        Raises
        ------
        ValueError
            If the writer is closed.
        StoreError
            If an upload failed.
        """
        if not self._is_open:
            raise ValueError(f"{self._path}: the writer is closed")
        view = memoryview(data).cast("B")
        self._buffer += view
        self._position += len(view)
        self._upload_parts()

    def tell(self) -> int:
        """Return the number of bytes accepted so far. See ObjectWriter."""
        return self._position

    def close(self) -> None:
        """Put the object, or complete its upload in parts. Raises StoreError. See ObjectWriter."""
        if self._is_open:
            self._is_open = False
            self._publish()
            self._buffer = bytearray()

    def abort(self) -> None:
        """Discard the buffer and the uploaded parts. See ObjectWriter."""
        if self._is_open:
            self._is_open = False
            self._buffer = bytearray()
            self._discard_parts()

    def _upload_parts(self) -> None:
        """Upload the complete parts in the buffer. Called after each write."""

    def _publish(self) -> None:
        """Make the object visible."""
        self._store.put(self._path, self._buffer)

    def _discard_parts(self) -> None:
        """Remove the uploaded parts."""


def discard(store: ObjectStore, paths: Sequence[str], kind: str) -> None:
    """Delete files that will not be committed. An error is logged; a cleanup finds the files later."""
    try:
        store.delete(paths)
    except (LanceError, OSError) as error:
        logger.warning(
            "could not remove %d %s that are not committed: %s",
            len(paths),
            kind,
            error,
            extra=telemetry.fields("store.files_not_removed", files=len(paths)),
        )


@contextmanager
def undone_on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo`, which removes unfinished results, if the `with` block raises any exception."""
    try:
        yield
    except BaseException:
        undo()
        raise


def check_range(path: str, start: int, end: int) -> None:
    """Check that a range is valid. Invalid ranges result from damaged files.

    Raises
    ------
    CorruptFileError
        If it is invalid. The error contains the path.
    """
    if not 0 <= start <= end:
        raise CorruptFileError("invalid byte range", "0 <= start <= end", f"{start}..{end}", path=path, offset=start)


def short_read(path: str, start: int, end: int, found: int) -> CorruptFileError:
    """Return the error for a range of which only `found` bytes exist."""
    return CorruptFileError(f"wrong number of bytes at offset {start}", end - start, found, path=path, offset=start)


def check_size(path: str, expected: int | None, found: int) -> None:
    """Check the size of an object, unless the expected size is None.

    Raises
    ------
    CorruptFileError
        If the object has another size.
    """
    if expected is not None and expected != found:
        raise CorruptFileError("wrong size of an object", expected, found, path=path, offset=0)


def missing(path: str) -> NotFoundError:
    """Return the error for an object that does not exist."""
    return NotFoundError(f"not found: {path}", path=path)
