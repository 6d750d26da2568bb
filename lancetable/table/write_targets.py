"""Where new data files go: below the table itself, or below base paths registered in its manifest.

    base path /x, is_dataset_root      /x/data/<file>
    base path /x, otherwise            /x/<file>

Several places take files in turn. Deletion files and manifests always lie with the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lancetable.errors import InvalidOperationError
from lancetable.format.manifest import BasePath
from lancetable.format.paths import DATA_DIR, join
from lancetable.table.version import path_in_store

if TYPE_CHECKING:
    from lancetable.store.base import ObjectStore
    from lancetable.table.version import TableVersion

__all__ = ["Place", "all_places", "numbered", "own_place", "places_named", "registered_places"]


@dataclass(frozen=True, slots=True)
class Place:
    """A directory that takes data files; `base_id` is None for that of the table itself."""

    directory: str
    base_id: int | None = None


def own_place(base: str) -> Place:
    """The data directory of the table at `base`."""
    return Place(join(base, DATA_DIR))


def numbered(bases: Iterable[BasePath]) -> tuple[BasePath, ...]:
    """The bases of a new table, each with an id: those without one (0) get the next free one, from 1 on."""
    result: list[BasePath] = []
    for base in bases:
        number = base.id or max((each.id for each in result), default=0) + 1
        result.append(BasePath(number, base.path, base.is_dataset_root, base.name))
    return tuple(result)


def all_places(
    store: ObjectStore, base: str, bases: Mapping[int, BasePath], *, include_own: bool = True
) -> tuple[Place, ...]:
    """The table and all `bases`, in the order of their ids. Without `include_own` the table counts only if it has none.

    Raises UnsupportedFeatureError for a base in another store.
    """
    found = tuple(_place(store, bases[number]) for number in sorted(bases))
    return (own_place(base), *found) if include_own or not found else found


def places_named(
    store: ObjectStore, base: str, uri: str, bases: Mapping[int, BasePath], targets: Sequence[str]
) -> tuple[Place, ...]:
    """The places that `targets` name: by the name or the path of a base, or by the address of the table.

    The table alone for none. Raises InvalidOperationError for a name that nothing has, UnsupportedFeatureError for a
    base in another store.
    """
    own = own_place(base)
    found = []
    for target in targets:
        named = [each for each in bases.values() if target in (each.name, each.path)]
        if named:
            found.append(_place(store, named[0]))
        elif target.rstrip("/") in (uri.rstrip("/"), store.uri(base).rstrip("/"), base):
            found.append(own)
        else:
            known = ", ".join(repr(each.name or each.path) for each in bases.values()) or "none"
            raise InvalidOperationError(
                f"Base reference {target!r} not found in available bases; registered for this table: {known}"
            )
    return tuple(found) or (own,)


def registered_places(version: TableVersion, base_ids: Iterable[int | None]) -> tuple[Place, ...]:
    """The places of some base paths that `version` lists."""
    bases = version.manifest.base_paths
    return tuple(_place(version.store, bases[each]) for each in set(base_ids) if each is not None and each in bases)


def _place(store: ObjectStore, base: BasePath) -> Place:
    root = path_in_store(store, base.path)
    return Place(join(root, DATA_DIR) if base.is_dataset_root else root, base.id)
