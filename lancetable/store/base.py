"""The contract of an object store, and the words it uses.

A store is one authority: the local file system, the memory of this process, a bucket. Paths are full paths inside it,
separated by `/`. An object is written once and read by ranges; the exceptions are small objects that `put` replaces
as a whole.

    missing object                  NotFoundError(path=...)
    range past the end, short read  CorruptFileError(path=..., offset=..., expected=..., found=...)
    anything else that fails        StoreError(path=...), the cause chained
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from lancetable.errors import CorruptFileError, NotFoundError
from lancetable.store.ranges import ByteRange

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

__all__ = [
    "EMPTY",
    "ByteRange",
    "Capabilities",
    "Durability",
    "ObjectMeta",
    "ObjectStore",
    "ObjectWriter",
    "PutOutcome",
    "check_range",
    "missing",
    "short_read",
]

EMPTY = memoryview(b"")


class ObjectMeta(NamedTuple):
    """One listed object. Size and time are None where the store would need another request to learn them."""

    name: str  # relative to the listed prefix
    size_bytes: int | None
    last_modified: datetime | None  # UTC


class PutOutcome(Enum):
    """What became of a create-if-absent."""

    WON = "won"  # the object is there and holds our bytes
    LOST = "lost"  # the object was there before, with other bytes
    UNKNOWN = "unknown"  # the request may have landed; look before doing anything else


class Durability(Enum):
    """When a written object must survive a power loss. Stores whose writes are durable at once ignore it."""

    NOW = "now"  # before the call returns
    AT_SYNC = "at_sync"  # before the next `sync` returns
    NEVER = "never"  # may be lost; for hints


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the rest of the library may rely on."""

    conditional_create: Literal["native", "none"]  # none: put_if_absent is refused
    ordered_list: bool  # list_names with start_after and limit costs one request, not a whole listing
    durable: bool  # an acknowledged write survives a power loss
    local: bool  # a look-up costs microseconds, not a round trip
    unproven: bool = False  # native by the client's word; whether the server keeps it must be tried before a commit
    parallel: bool = False  # requests of several threads overlap, so that many small ones should


class ObjectWriter(Protocol):
    """A streamed object: all of it appears at `close`, or nothing does. Leaving a `with` by an exception aborts."""

    __slots__ = ()

    def write(self, data: Buffer) -> None:
        """Append bytes. The buffer may be reused once the call has returned."""

    def tell(self) -> int:
        """Bytes accepted so far."""

    def close(self) -> None:
        """Make the object visible. It is durable after the store's next `sync`. A second call does nothing."""

    def abort(self) -> None:
        """Remove what was written. Does nothing after `close` or `abort`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class ObjectStore(Protocol):
    """Bytes at a path. Instances are shared between threads and survive pickling and a fork."""

    @property
    def scheme(self) -> str:
        """`file`, `memory`, `s3` ..."""

    @property
    def capabilities(self) -> Capabilities: ...

    def uri(self, path: str) -> str:
        """The address of a path for messages; holds no secrets."""

    def key(self, path: str) -> str:
        """What this process remembers an object by: two servers or file systems may have the same addresses."""

    def read(self, path: str, start: int, end: int) -> memoryview:
        """Exactly `end - start` bytes, read-only. An empty range costs no request."""

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """One answer for each range, in the caller's order. Ranges close to each other share a request."""

    def read_all(self, path: str, size: int | None = None) -> memoryview:
        """The whole object; with its size known, it must have exactly that."""

    def read_tail(self, path: str, size: int | None, length: int) -> tuple[memoryview, int]:
        """The last `min(length, size)` bytes and the size of the object."""

    def put(self, path: str, data: Buffer, *, durability: Durability = Durability.NOW) -> None:
        """Write a whole object, replacing the old one. A reader sees the old bytes or the new ones, never a part.

        AT_SYNC is for objects under new names, which nothing refers to yet: until the call returns, a listing may
        show one that is not complete.
        """

    def put_if_absent(self, path: str, data: Buffer) -> PutOutcome:
        """WON, LOST or UNKNOWN; at most one caller ever wins a path. Never check-then-write."""

    def open_writer(self, path: str) -> ObjectWriter:
        """Stream one object with bounded memory."""

    def sync(self, prefix: str = "") -> None:
        """Return once every object below a prefix that this process closed or put before is durable."""

    def list_names(
        self, prefix: str, start_after: str | None = None, limit: int | None = None, *, detail: bool = False
    ) -> list[ObjectMeta]:
        """The objects directly under a prefix, fresh and in lexicographic order; [] where there are none.

        `start_after` is a name relative to the prefix; only greater names are listed, at most `limit` of them.
        Sizes and times are sure to be there with `detail` only.
        """

    def list_recursive(self, prefix: str) -> Iterator[ObjectMeta]:
        """Every object below a prefix with its size and time; names are relative to the prefix."""

    def size(self, path: str) -> int:
        """Bytes in the object, fresh. Raises NotFoundError."""

    def find(self, path: str) -> int | None:
        """Bytes in the object, or None where there is none: `size` for callers that expect it to be missing."""

    def modified_ns(self, path: str) -> int | None:
        """When an object, or the names in a directory, last changed, in ns; None where nobody keeps that time."""

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects. One that is missing is no error."""

    def delete_prefix(self, prefix: str) -> None:
        """Remove every object below a prefix, and the directories where the store has such a thing."""


def check_range(path: str, start: int, end: int) -> None:
    """Refuse a range that no object can have: it came from a damaged file, so the file is named."""
    if not 0 <= start <= end:
        raise CorruptFileError(
            f"{path}: no such byte range: {start}..{end}",
            path=path,
            offset=start,
            expected="0 <= start <= end",
            found=end,
        )


def short_read(path: str, start: int, end: int, found: int) -> CorruptFileError:
    """The error for a range of which only `found` bytes exist."""
    return CorruptFileError(
        f"{path}: {end - start} bytes wanted at offset {start}, {found} found",
        path=path,
        offset=start,
        expected=end - start,
        found=found,
    )


def missing(path: str) -> NotFoundError:
    """The error for an object that is not there."""
    return NotFoundError(f"not found: {path}", path=path)
