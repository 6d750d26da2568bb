"""Base paths, which are directories of data files registered in the manifest, and targets of new data files.

    base path /x, is_dataset_root      /x/data/<file>
    base path /x, otherwise            /x/<file>

New files are distributed among several targets in turn. Deletion files and manifests are always below the root of the
table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lancetable.errors import CorruptFileError, InvalidOperationError, UnsupportedFeatureError
from lancetable.format.manifest import BasePath
from lancetable.format.paths import DATA_DIR, join
from lancetable.store.confined import check_inside

if TYPE_CHECKING:
    from lancetable.store.base import ObjectStore


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Directory for new data files. `base_id` is None for the directory of the table."""

    directory: str
    base_id: int | None = None


def table_target(base: str) -> WriteTarget:
    """Return the data directory of the table at `base`."""
    return WriteTarget(join(base, DATA_DIR))


def with_ids(bases: Iterable[BasePath]) -> tuple[BasePath, ...]:
    """Return the bases of a new table with ids. A base without an id (0) gets the next free id, from 1 on."""
    result: list[BasePath] = []
    for base in bases:
        base_id = base.id or max((other.id for other in result), default=0) + 1
        result.append(BasePath(base_id, base.path, base.is_dataset_root, base.name))
    return tuple(result)


def all_targets(
    store: ObjectStore, base: str, bases: Mapping[int, BasePath], *, include_table: bool = True
) -> tuple[WriteTarget, ...]:
    """Return the targets of the table and of `bases`, by id.

    If `include_table` is False, the table is a target only without bases.

    Raises UnsupportedFeatureError for a base in another store.
    """
    targets = tuple(base_target(store, bases[base_id]) for base_id in sorted(bases))
    return (table_target(base), *targets) if include_table or not targets else targets


def resolve_targets(
    store: ObjectStore, base: str, uri: str, bases: Mapping[int, BasePath], references: Sequence[str]
) -> tuple[WriteTarget, ...]:
    """Return the targets of references, which are names or paths of bases, or the address of the table.

    Returns the target of the table if `references` is empty. Raises InvalidOperationError for an unknown reference,
    and UnsupportedFeatureError for a base in another store.
    """
    targets = []
    for reference in references:
        matching = [known for known in bases.values() if reference in (known.name, known.path)]
        if matching:
            targets.append(base_target(store, matching[0]))
        elif reference.rstrip("/") in (uri.rstrip("/"), store.uri(base).rstrip("/"), base):
            targets.append(table_target(base))
        else:
            names = ", ".join(repr(known.name or known.path) for known in bases.values()) or "none"
            raise InvalidOperationError(
                f"Base reference {reference!r} not found in available bases; registered for this table: {names}"
            )
    return tuple(targets) or (table_target(base),)


def base_target(store: ObjectStore, base: BasePath) -> WriteTarget:
    """Return the directory of a base path. Raises UnsupportedFeatureError for a base in another store."""
    root = path_in_store(store, base.path, f"base path {base.id}")
    return WriteTarget(join(root, DATA_DIR) if base.is_dataset_root else root, base.id)


def path_in_store(store: ObjectStore, address: str, place: str) -> str:
    """Return the path of a base inside `store`. `place` describes the base, for error messages.

    Raises UnsupportedFeatureError for a base in another store, whose credentials and guarantees are unknown,
    CorruptFileError for an unsafe path, and UntrustedPathError for a path outside of an untrusted table.
    """
    root = store.uri("")
    root = root if root.endswith("/") else f"{root}/"
    scheme, separator, path = address.partition("://")
    if not separator:
        path, known = address, store.capabilities.local
    elif store.scheme == "file" and scheme in ("file", "file-object-store", "file+uring"):
        known = True
    else:
        path, known = address[len(root) :], address.startswith(root)
    if not known:
        raise UnsupportedFeatureError(
            f"{place}: {address[:100]!a} is in another store than the table; read it with a library that supports this",
            feature="base paths in other stores",
        )
    if ".." in path.split("/") or "\0" in path:
        raise CorruptFileError(f"{place}: unsafe path", "a plain path", ascii(address[:100]))
    check_inside(store.capabilities.roots, path.rstrip("/"), place)
    return path.rstrip("/")
