"""Confinement of a table that is opened with `untrusted=True`: every path must be below the root that was opened.

    root /data/t        /data/t/data/a.lance             allowed
                        /data/u, /data/t/../u            UntrustedPathError
                        /data/t/data/b.lance -> /etc/x   UntrustedPathError, as for every symbolic link below the root

Links are refused without being followed, so nothing outside of the root is opened, listed or looked up. No library
creates links in a table. The check precedes each request. It does not protect against a process that replaces files of
the table at the same time, nor against hard links, which cannot be distinguished from other files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from lancetable.errors import LimitError, UntrustedPathError
from lancetable.store.forwarding import ForwardingStore

if TYPE_CHECKING:
    from lancetable.store.base import ObjectStore

MAX_OBJECT_BYTES: Final = 64 << 20
"""Limit `object_bytes`: maximum size of an object that is read as a whole, such as a ref or a deletion file."""

REMEDY: Final = "open it without untrusted if you trust its source"


def confine(store: ObjectStore, root: str) -> ObjectStore:
    """Return a store for the objects of `store` that are below the path `root`."""
    inner = store._inner if isinstance(store, ConfinedStore) else store
    names = (root or "/", os.path.realpath(root or "/")) if inner.scheme == "file" else (root,)
    return cast("ObjectStore", ConfinedStore(inner, names))


def check_inside(roots: Sequence[str], path: str, source: str) -> str:
    """Return the part of a path below one of `roots`; without roots, the path.

    Raises UntrustedPathError if it is below none of them. `source` names the origin of the path in the error.
    """
    for root in roots:
        prefix = root if root.endswith("/") or not root else f"{root}/"
        inner = path[len(prefix) :]
        if (path == root or path.startswith(prefix)) and ".." not in inner.replace("\\", "/").split("/"):
            return inner
    if roots:
        text = f"{source}: {path[:200]!a} is outside of {roots[0]!r}, which was opened with untrusted=True; {REMEDY}"
        raise UntrustedPathError(text, path=path, place=source)
    return path


class ConfinedStore(ForwardingStore):
    """Store that refuses paths outside of `roots`, and whole objects above `MAX_OBJECT_BYTES`.

    The roots are names of the same directory: the path that the caller passed, and last the path without symbolic
    links.
    """

    def __init__(self, inner: ObjectStore, roots: tuple[str, ...]) -> None:
        self._inner, self._roots = inner, roots
        self.scheme, self.uri = inner.scheme, inner.uri
        self.capabilities = replace(inner.capabilities, roots=roots)
        self.mapped: bool = getattr(inner, "mapped", inner.capabilities.local)

    def __reduce__(self) -> tuple[Any, ...]:
        return ConfinedStore, (self._inner, self._roots)

    def key(self, path: str) -> str:
        """Return a key other than that of the inner store, because cached metadata depend on the limits."""
        return f"untrusted {self._inner.key(path)}"

    def release_pages(self, path: str) -> None:
        """Remove the mapped pages of a file from memory. See ObjectStore."""
        self._inner.release_pages(path)

    def read_all(self, path: str, size: int | None = None) -> memoryview:
        """Return the whole object. Raises LimitError if it is too large. See ObjectStore."""
        num_bytes = self._request("size", path) if size is None else size
        if num_bytes > MAX_OBJECT_BYTES:
            problem = f"too many bytes: above the limit object_bytes; {REMEDY}"
            raise LimitError(problem, f"at most {MAX_OBJECT_BYTES}", num_bytes, path=path, limit="object_bytes")
        return cast("memoryview", self._request("read_all", path, size))

    def sync(self, prefix: str = "") -> None:
        """Wait until objects are durable. See ObjectStore."""
        self._inner.sync(prefix)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects. See ObjectStore."""
        self._inner.delete([self._checked(path) for path in paths])

    def _request(self, method: str, path: str, *arguments: Any, **named: Any) -> Any:
        self._checked(path)
        if self.scheme == "file" and method in ("list_names", "list_recursive"):
            self._check_entries(path, recursive=method == "list_recursive")
        return getattr(self._inner, method)(path, *arguments, **named)

    def _checked(self, path: str) -> str:
        """Return the path. Raises UntrustedPathError if it is outside of the roots or passes a symbolic link."""
        inner = check_inside(self._roots, path, "a request")
        ancestor = path[: len(path) - len(inner)].rstrip("/")
        for name in inner.split("/") if self.scheme == "file" else ():
            ancestor = f"{ancestor}/{name}"
            if os.path.islink(ancestor):
                text = f"{ancestor}: a table opened with untrusted=True must not contain symbolic links; {REMEDY}"
                raise UntrustedPathError(text, path=path, place=ancestor)
        return path

    def _check_entries(self, directory: str, *, recursive: bool) -> None:
        """Raise UntrustedPathError for a link in a directory, whose target a listing would look up."""
        try:
            with os.scandir(directory) as scan:
                entries = list(scan)
        except (OSError, ValueError):
            return  # the listing reports it
        for entry in entries:
            if entry.is_symlink():
                self._checked(f"{directory}/{entry.name}")
            elif recursive and entry.is_dir(follow_symlinks=False):
                self._check_entries(f"{directory}/{entry.name}", recursive=recursive)
