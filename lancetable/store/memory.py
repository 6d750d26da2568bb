"""In-memory store, for `memory://` addresses and for tests.

The whole process shares one dictionary, so every `memory://t` is the same table until it is deleted or created again.
In pylance, each call has its own store, and a table disappears with its dataset. Creating a table twice is therefore
not an error there, and not an error here. A forked child starts with a copy of the state at the fork. Other processes
share none of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from lancetable.store.base import (
    EMPTY,
    BufferedWriter,
    ByteRange,
    Capabilities,
    Durability,
    ObjectMeta,
    ObjectStore,
    OnExisting,
    PutOutcome,
    check_range,
    check_size,
    missing,
    short_read,
)
from lancetable.store.fork_safety import lock_of
from lancetable.store.remote import first_names

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TABLE_DIRECTORIES = frozenset(("_deletions", "_indices", "_refs", "_transactions", "_versions", "data", "tree"))


class _Space:
    """Objects by path. Bytes are never changed in place, so readers need no lock."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, datetime]] = {}
        self.lock = lock_of(self)


_SHARED = _Space()
_OPENED: weakref.WeakSet[MemoryStore] = weakref.WeakSet()  # stores opened by address, see `replace_existing`


class MemoryStore(ObjectStore):
    """Store of objects in a dictionary. `MemoryStore()` is shared by all `memory://` addresses."""

    __slots__ = ("__weakref__", "_root", "_space", "capabilities")
    scheme = "memory"
    capabilities: Capabilities

    def __init__(self, root: str | None = None) -> None:
        """Open the shared store. `root` is the path of the table if the store is opened by address."""
        self._space, self._root = _SHARED, root
        if root is not None:
            _OPENED.add(self)
        self.capabilities = Capabilities(conditional_create="native", ordered_list=True, durable=False, local=True)

    @classmethod
    def private(cls) -> MemoryStore:
        """Return a new, empty store that is not shared. It cannot be pickled."""
        store = cls()
        store._space = _Space()
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        if self._space is not _SHARED:
            raise TypeError("a private memory store cannot be pickled")
        return MemoryStore, (self._root,)

    def __repr__(self) -> str:
        return "MemoryStore()" if self._space is _SHARED else "MemoryStore.private()"

    def replace_existing(self) -> None:
        """Remove the objects below the root so that a new table can be created there.

        Stores opened earlier for the same address keep the old objects, and can no longer be pickled.
        """
        root = f"{self._root}/" if self._root else ""
        detached = _Space()
        with _SHARED.lock:
            for path in [path for path in _SHARED.objects if path.startswith(root)]:
                # The root of the whole store also contains other tables.
                if root or path.partition("/")[0] in _TABLE_DIRECTORIES:
                    detached.objects[path] = _SHARED.objects.pop(path)
            for store in list(_OPENED):
                if store is not self and store._root == self._root and store._space is _SHARED:
                    store._space = detached

    def uri(self, path: str) -> str:
        """Return the path as a `memory://` address."""
        return f"memory://{path}"

    def read(self, path: str, start: int, end: int) -> memoryview:
        """Return a slice of the object. See ObjectStore."""
        return self.read_many(path, (ByteRange(start, end),))[0]

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Return slices of the object. See ObjectStore."""
        view: memoryview | None = None
        result = []
        for start, end in ranges:
            if not 0 <= start < end:
                check_range(path, start, end)
                result.append(EMPTY)
                continue
            if view is None:
                view = memoryview(self._bytes(path))
            part = view[start:end]
            if len(part) != end - start:
                raise short_read(path, start, end, len(part))
            result.append(part)
        return result

    def read_all(self, path: str, size: int | None = None) -> memoryview:
        """Return the whole object.

        Raises CorruptFileError if it does not have exactly `size` bytes. See ObjectStore.
        """
        data = self._bytes(path)
        check_size(path, size, len(data))
        return memoryview(data)

    def read_tail(self, path: str, size: int | None, length: int) -> tuple[memoryview, int]:
        """Return the end of the object and its size. See ObjectStore."""
        if size is None:
            size = self.size(path)
        return self.read(path, max(size - length, 0), size), size

    def put(self, path: str, data: Buffer, *, durability: Durability = Durability.NOW) -> None:
        """Store an object. See ObjectStore."""
        entry = _entry(data)
        with self._space.lock:
            self._space.objects[path] = entry

    def put_if_absent(self, path: str, data: Buffer, *, on_existing: OnExisting | None = None) -> PutOutcome:
        """Store an object unless the path exists. See ObjectStore."""
        entry = _entry(data)
        with self._space.lock:
            return PutOutcome.WON if self._space.objects.setdefault(path, entry) is entry else PutOutcome.LOST

    def open_writer(self, path: str) -> BufferedWriter:
        """Open a writer that buffers the object. See ObjectStore."""
        return BufferedWriter(self, path)

    def list_names(
        self, prefix: str, start_after: str | None = None, limit: int | None = None, *, detail: bool = False
    ) -> list[ObjectMeta]:
        """Return the objects directly under a prefix. See ObjectStore."""
        metas = (meta for meta in self.list_recursive(prefix) if "/" not in meta.name)
        return first_names(metas, start_after, limit)

    def list_recursive(self, prefix: str) -> Iterator[ObjectMeta]:
        """Yield every object below a prefix. See ObjectStore."""
        root = f"{prefix}/" if prefix else ""
        with self._space.lock:
            entries = sorted((path, entry) for path, entry in self._space.objects.items() if path.startswith(root))
        for path, (data, modified) in entries:
            yield ObjectMeta(path[len(root) :], len(data), modified)

    def find(self, path: str) -> int | None:
        """Return the size of the object in bytes, or None if it does not exist. See ObjectStore."""
        entry = self._space.objects.get(path)
        return None if entry is None else len(entry[0])

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects. See ObjectStore."""
        for path in paths:
            self._space.objects.pop(path, None)

    def delete_prefix(self, prefix: str) -> None:
        """Remove every object below a prefix. See ObjectStore."""
        root = f"{prefix}/" if prefix else ""
        with self._space.lock:
            for path in [path for path in self._space.objects if path.startswith(root)]:
                del self._space.objects[path]

    def _bytes(self, path: str) -> bytes:
        entry = self._space.objects.get(path)
        if entry is None:
            raise missing(path)
        return entry[0]


def _entry(data: Buffer) -> tuple[bytes, datetime]:
    return bytes(data), datetime.now(timezone.utc)
