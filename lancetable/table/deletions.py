"""Deletion vectors: which physical rows of one fragment are deleted, and the files they live in.

Every delete writes a complete new vector (old and new rows together), never a difference. Up to 5,000 offsets go into
an Arrow file, more into a roaring bitmap; a vector merged during a commit is always a bitmap, as other writers do it.
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
from lancetable.store.base import Durability
from lancetable.table.deletion_file_codec import Offsets, build_arrow, build_roaring, parse_arrow, parse_roaring

if TYPE_CHECKING:
    from lancetable.format.fragment import Fragment
    from lancetable.store.base import ObjectStore
    from lancetable.table.version import TableVersion

__all__ = ["MAX_ARROW_OFFSETS", "DeletionVector", "delete_rows", "read", "write"]

MAX_ARROW_OFFSETS = 5000
_MAX_FRAGMENT_ROWS = 1 << 32


class DeletionVector:
    """A set of physical row offsets, kept ascending. A value: operations return new vectors."""

    __slots__ = ("_offsets",)

    def __init__(self, offsets: npt.NDArray[Any] | list[int]) -> None:
        """`offsets` in any order, repeats allowed; each must fit 32 bits without sign."""
        array = np.asarray(offsets)
        if array.size and (array.min() < 0 or array.max() >= _MAX_FRAGMENT_ROWS):
            raise ValueError("row offsets must lie between 0 and 2^32 - 1")
        self._offsets = _frozen(np.unique(array.astype(np.uint32, copy=False)))

    @classmethod
    def of_ascending(cls, offsets: npt.NDArray[np.int64]) -> DeletionVector:
        """The vector of offsets that ascend without repeats and fit 32 bits."""
        return cls._of_sorted(offsets.astype(np.uint32))

    @classmethod
    def _of_sorted(cls, offsets: Offsets) -> DeletionVector:
        vector = cls.__new__(cls)
        vector._offsets = _frozen(offsets)
        return vector

    def offsets(self) -> Offsets:
        """All offsets, ascending, read-only."""
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
        """The offsets in either vector."""
        if not other:
            return self
        if not self:
            return other
        merged = np.concatenate([self._offsets, other._offsets])
        merged.sort(kind="stable")  # two ascending runs, which a stable sort merges in linear time
        return DeletionVector._of_sorted(merged[np.append(True, merged[1:] != merged[:-1])])

    def intersects(self, other: DeletionVector) -> bool:
        """Whether some offset is in both."""
        small, large = sorted((self, other), key=len)
        return bool(large.contains_mask(small._offsets).any())

    def contains_mask(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """For each of `rows`, in any order, whether it is deleted."""
        if not len(self._offsets):
            return np.zeros(len(rows), np.bool_)
        rows = np.asarray(rows)
        at = np.searchsorted(self._offsets, rows)
        at[at == len(self._offsets)] = 0
        return np.asarray(self._offsets[at] == rows)

    def live_mask(self, physical_rows: int) -> npt.NDArray[np.bool_]:
        """For each physical row, whether it is live."""
        live = np.ones(physical_rows, np.bool_)
        live[self._offsets] = False
        return live

    def live_offsets(self, physical_rows: int) -> npt.NDArray[np.int64]:
        """The physical offsets that are live, ascending."""
        return np.flatnonzero(self.live_mask(physical_rows))


def _frozen(offsets: Offsets) -> Offsets:
    offsets.flags.writeable = False
    return offsets


EMPTY = DeletionVector(np.empty(0, np.uint32))


def read(version: TableVersion, fragment: Fragment) -> DeletionVector | None:
    """The deletion vector of `fragment`, from the cache or its file; None when nothing is deleted.

    Raises CorruptFileError when the file breaks its form, names rows the fragment does not have, or disagrees with the
    number of deleted rows that the manifest states.
    """
    file = fragment.deletion_file
    if file is None:
        return None
    path = version.deletion_file_path(fragment.id, file)
    key = ("deletions", version.store.key(path))
    vector: DeletionVector | None = version.cache.get(key)
    if vector is None:
        vector = _load(version.store, path, file, fragment.physical_rows)
        version.cache.put(key, vector, vector.offsets().nbytes + 200)
    elif file.num_deleted_rows is not None and len(vector) != file.num_deleted_rows:
        raise _wrong_count(path, file.num_deleted_rows, len(vector))
    return vector


def _load(store: ObjectStore, path: str, file: DeletionFile, physical_rows: int | None) -> DeletionVector:
    data = store.read_all(path)
    limit = _MAX_FRAGMENT_ROWS if physical_rows is None else physical_rows
    if file.num_deleted_rows is not None:
        if file.num_deleted_rows > limit:
            raise CorruptFileError(
                f"{path}: {file.num_deleted_rows} deleted rows in a fragment of {limit}",
                path=path,
                expected=f"at most {limit}",
                found=file.num_deleted_rows,
            )
        limit = file.num_deleted_rows
    if file.kind is DeletionKind.ARROW_ARRAY:
        values = parse_arrow(data, path, max_count=limit)
        offsets = np.sort(values)
        if np.any(offsets[1:] == offsets[:-1]):
            raise CorruptFileError(f"{path}: a row offset occurs twice", path=path)
    else:
        offsets = parse_roaring(data, path, max_count=limit)
    if file.num_deleted_rows is not None and len(offsets) != file.num_deleted_rows:
        raise _wrong_count(path, file.num_deleted_rows, len(offsets))
    if physical_rows is not None and len(offsets) and offsets[-1] >= physical_rows:
        raise CorruptFileError(
            f"{path}: row offset {offsets[-1]} in a fragment of {physical_rows} rows",
            path=path,
            expected=f"below {physical_rows}",
            found=int(offsets[-1]),
        )
    return DeletionVector._of_sorted(offsets)


def _wrong_count(path: str, expected: int, found: int) -> CorruptFileError:
    return CorruptFileError(
        f"{path}: the file holds {found} deleted rows, the manifest says {expected}",
        path=path,
        expected=expected,
        found=found,
    )


def write(
    store: ObjectStore,
    base: str,
    fragment_id: int,
    read_version: int,
    vector: DeletionVector,
    *,
    force_bitmap: bool = False,
) -> DeletionFile:
    """Write `vector` under a fresh name and return the record for the fragment; durable after the store's next `sync`.

    `read_version` is the version the vector was computed from. `force_bitmap` takes the roaring form at any size.
    """
    kind = DeletionKind.BITMAP if force_bitmap or len(vector) > MAX_ARROW_OFFSETS else DeletionKind.ARROW_ARRAY
    file = DeletionFile(
        kind=kind, read_version=read_version, id=secrets.randbits(64), num_deleted_rows=len(vector), base_id=None
    )
    if kind is DeletionKind.BITMAP:
        data = build_roaring(vector.offsets())
    else:
        data = build_arrow(vector.offsets())
    path = deletion_path(base, fragment_id, read_version, file.id, kind.suffix)
    store.put(path, data, durability=Durability.AT_SYNC)
    return file


def delete_rows(
    version: TableVersion,
    fragment: Fragment,
    rows: DeletionVector,
    physical_rows: int | None,
    *,
    force_bitmap: bool = False,
) -> Fragment | None:
    """Write a deletion file for the deleted rows of `fragment` and `rows`, and return the fragment that refers to it.

    Returns the same fragment if all `rows` are deleted already, and None if none of its `physical_rows` is left; then
    no file is written. See `write` for `force_bitmap`.
    """
    deleted = read(version, fragment) or EMPTY
    merged = deleted.union(rows)
    if len(merged) == len(deleted):
        return fragment
    if physical_rows is not None and len(merged) >= physical_rows:
        return None
    file = write(version.store, version.base, fragment.id, version.version, merged, force_bitmap=force_bitmap)
    return replace(fragment, deletion_file=file)
