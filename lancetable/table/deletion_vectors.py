"""Deletion vectors, the deleted physical rows of a fragment, and their files.

Every delete writes a complete new vector, which contains the rows deleted before. A file stores up to 5,000 offsets as
an Arrow array and more as a roaring bitmap. Vectors merged during a commit are always bitmaps, as in other writers.
Source: protos/table.proto, DeletionFile.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.format.fragment import DeletionFile, DeletionKind
from lancetable.format.paths import deletion_path
from lancetable.format.roaring import build_roaring, parse_roaring
from lancetable.store.base import Durability
from lancetable.table.arrow_deletion_file import Offsets, build_arrow, parse_arrow

if TYPE_CHECKING:
    from lancetable.format.fragment import Fragment
    from lancetable.store.base import ObjectStore
    from lancetable.table.version import TableVersion

MAX_ARROW_OFFSETS = 5000
_MAX_FRAGMENT_ROWS = 1 << 32


class DeletionVector:
    """Immutable set of physical row offsets in ascending order."""

    __slots__ = ("_offsets",)

    def __init__(self, offsets: npt.NDArray[Any] | list[int]) -> None:
        """Create a vector from unsigned 32-bit offsets in any order, with repeats."""
        array = np.asarray(offsets)
        if array.size and (array.min() < 0 or array.max() >= _MAX_FRAGMENT_ROWS):
            raise ValueError("row offsets must be between 0 and 2^32 - 1")
        self._offsets = _frozen(np.unique(array.astype(np.uint32, copy=False)))

    @classmethod
    def of_ascending(cls, offsets: npt.NDArray[np.int64]) -> DeletionVector:
        """Return the vector of ascending distinct 32-bit offsets."""
        return cls._of_sorted(offsets.astype(np.uint32))

    @classmethod
    def _of_sorted(cls, offsets: Offsets) -> DeletionVector:
        vector = cls.__new__(cls)
        vector._offsets = _frozen(offsets)
        return vector

    def offsets(self) -> Offsets:
        """Return all offsets, ascending, read-only."""
        return self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def __bool__(self) -> bool:
        return len(self._offsets) > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeletionVector) and np.array_equal(self._offsets, other._offsets)

    def __hash__(self) -> int:
        return hash(self._offsets.tobytes())

    def __repr__(self) -> str:
        return f"DeletionVector({len(self)} rows)"

    def union(self, other: DeletionVector) -> DeletionVector:
        """Return the offsets in either vector."""
        if not other:
            return self
        if not self:
            return other
        merged = np.concatenate([self._offsets, other._offsets])
        merged.sort(kind="stable")  # two ascending runs, which a stable sort merges in linear time
        return DeletionVector._of_sorted(merged[np.append(True, merged[1:] != merged[:-1])])

    def intersects(self, other: DeletionVector) -> bool:
        """Return True if an offset is in both vectors."""
        small, large = sorted((self._offsets, other._offsets), key=len)
        return bool((large.searchsorted(small, "right") > large.searchsorted(small)).any())

    def live_offsets(self, physical_rows: int) -> npt.NDArray[np.int64]:
        """Return the physical offsets that are live, ascending."""
        live = np.ones(physical_rows, np.bool_)
        live[self._offsets] = False
        return np.flatnonzero(live)


def _frozen(offsets: Offsets) -> Offsets:
    offsets.flags.writeable = False
    return offsets


EMPTY = DeletionVector(np.empty(0, np.uint32))


def read(version: TableVersion, fragment: Fragment) -> DeletionVector | None:
    """Return the deletion vector of `fragment` from the cache or its file, or None if it has no deletion file.

    Raises CorruptFileError if the file is damaged, contains rows that the fragment does not have, or does not have the
    number of rows that the manifest records.
    """
    file = fragment.deletion_file
    if file is None:
        return None
    path = version.deletion_file_path(fragment.id, file)
    key = ("deletions", version.store.key(path))
    vector = version.cache.get_or_compute(
        key,
        lambda: _load(version.store, path, file, fragment.physical_rows),
        lambda vector: vector.offsets().nbytes + 200,
    )
    _check_count(path, file, len(vector))
    return vector


def _load(store: ObjectStore, path: str, file: DeletionFile, physical_rows: int | None) -> DeletionVector:
    data = store.read_all(path)
    limit = _MAX_FRAGMENT_ROWS if physical_rows is None else physical_rows
    if file.num_deleted_rows is not None:
        if file.num_deleted_rows > limit:
            what = "more deleted rows than rows in the fragment"
            raise CorruptFileError(what, f"at most {limit}", file.num_deleted_rows, path=path)
        limit = file.num_deleted_rows
    if file.kind is DeletionKind.ARROW_ARRAY:
        values = parse_arrow(data, path, max_count=limit)
        offsets = np.sort(values)
        if np.any(offsets[1:] == offsets[:-1]):
            raise CorruptFileError("a row offset occurs twice", path=path)
    else:
        offsets = parse_roaring(data, path, max_count=limit)
    _check_count(path, file, len(offsets))
    if physical_rows is not None and len(offsets) and offsets[-1] >= physical_rows:
        what = "row offset past the end of the fragment"
        raise CorruptFileError(what, f"below {physical_rows}", int(offsets[-1]), path=path)
    return DeletionVector._of_sorted(offsets)


def _check_count(path: str, file: DeletionFile, count: int) -> None:
    if file.num_deleted_rows not in (None, count):
        what = "number of deleted rows differs from the manifest"
        raise CorruptFileError(what, file.num_deleted_rows, count, path=path)


def write(
    store: ObjectStore,
    base: str,
    fragment_id: int,
    read_version: int,
    vector: DeletionVector,
    *,
    force_bitmap: bool = False,
) -> DeletionFile:
    """Write `vector` to a new file and return its record. The file is durable after the store's next `sync`.

    `read_version` is the version from which the vector was computed. `force_bitmap` writes a bitmap of any size.
    """
    kind = DeletionKind.BITMAP if force_bitmap or len(vector) > MAX_ARROW_OFFSETS else DeletionKind.ARROW_ARRAY
    file = DeletionFile(
        kind=kind, read_version=read_version, id=secrets.randbits(64), num_deleted_rows=len(vector), base_id=None
    )
    build = build_roaring if kind is DeletionKind.BITMAP else build_arrow
    path = deletion_path(base, fragment_id, read_version, file.id, kind.suffix)
    store.put(path, build(vector.offsets()), durability=Durability.AT_SYNC)
    return file


def delete_rows(
    version: TableVersion,
    fragment: Fragment,
    rows: DeletionVector,
    physical_rows: int | None,
    *,
    force_bitmap: bool = False,
) -> Fragment | None:
    """Write a deletion file with the deleted rows of `fragment` and `rows`, and return the fragment that refers to it.

    Returns the same fragment if all `rows` are deleted already, and None if all `physical_rows` are deleted; in both
    cases, no file is written. See `write` for `force_bitmap`.
    """
    deleted = read(version, fragment) or EMPTY
    merged = deleted.union(rows)
    if len(merged) == len(deleted):
        return fragment
    if physical_rows is not None and len(merged) >= physical_rows:
        return None
    file = write(version.store, version.base, fragment.id, version.version, merged, force_bitmap=force_bitmap)
    return replace(fragment, deletion_file=file)
