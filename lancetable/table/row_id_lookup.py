"""Stable row ids of a version: the ids of one fragment's rows, and the way back from an id to its row.

    fragment 0   ids 0 1 2 3   row 2 deleted         index   0 -> 0:0   1 -> 0:1   3 -> 0:3
    fragment 1   ids 2 4                                     2 -> 1:0   4 -> 1:1        (2 was updated: it moved)

Without stable row ids an id is an address, and nothing here is needed. Source: protos/rowids.proto, DataFragment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.format.fragment import LineagePlace
from lancetable.rowids import RowIdIndex, RowIdSequence, RowVersionSequence
from lancetable.rowids.versions import FIRST_VERSION
from lancetable.table import deletions

if TYPE_CHECKING:
    from lancetable.format.fragment import Fragment
    from lancetable.table.version import TableVersion

__all__ = ["row_id_index", "row_id_sequence", "row_ids_at", "row_versions_at"]

U64Array = npt.NDArray[np.uint64]


def row_id_index(version: TableVersion) -> RowIdIndex:
    """The index of all live rows of a version with stable row ids; built once, then from the cache.

    Raises CorruptFileError when a fragment has no row ids, or two live rows have the same.
    """
    # The identity of the manifest is a sound key only while the entry keeps that manifest alive.
    key = ("row id index", id(version.manifest))
    found = version.cache.get(key)
    if found is not None and found[0] is version.manifest:
        return found[1]  # type: ignore[no-any-return]  # put here under the same kind of key
    parts = (
        (fragment.id, row_id_sequence(version, fragment), _deleted(version, fragment))
        for fragment in version.manifest.fragments
    )
    index = RowIdIndex.build(parts, version.location.path)
    version.cache.put(key, (version.manifest, index), index.nbytes + 256)
    return index


def _deleted(version: TableVersion, fragment: Fragment) -> npt.NDArray[np.uint32] | None:
    vector = deletions.read(version, fragment)
    return None if vector is None else vector.offsets()


def row_id_sequence(version: TableVersion, fragment: Fragment) -> RowIdSequence:
    """The ids of all physical rows of a fragment. Raises CorruptFileError when there are none or too few."""
    data = _inline(version, fragment, fragment.row_ids, "row ids")
    if data is None:
        raise CorruptFileError(
            f"fragment {fragment.id} has no row ids in a table with stable row ids", path=version.location.path
        )
    key = ("row ids", data)
    found = version.cache.get(key)
    if isinstance(found, RowIdSequence):
        return found
    sequence = RowIdSequence.from_bytes(data, fragment.physical_rows, version.location.path)
    version.cache.put(key, sequence, 2 * len(data) + 256)
    return sequence


def row_ids_at(version: TableVersion, fragment: Fragment, offsets: npt.NDArray[np.int64]) -> U64Array:
    """The stable row ids at physical offsets of a fragment."""
    sequence = row_id_sequence(version, fragment)
    only = sequence.as_range
    if only is not None:
        return np.asarray(offsets.astype(np.uint64) + np.uint64(only.start))
    key = ("row id values", fragment.row_ids)
    values: U64Array | None = version.cache.get(key)
    if values is None:
        values = sequence.values()
        version.cache.put(key, values, values.nbytes + 128)
    return values[offsets]


def row_versions_at(
    version: TableVersion,
    fragment: Fragment,
    sequence: bytes | LineagePlace | None,
    offsets: npt.NDArray[np.int64],
) -> U64Array:
    """The versions that a created-at or last-updated-at `sequence` of the fragment gives to physical offsets."""
    data = _inline(version, fragment, sequence, "row versions")
    if data is None:
        return np.full(len(offsets), FIRST_VERSION, dtype=np.uint64)
    parsed = RowVersionSequence.from_bytes(data, fragment.physical_rows, version.location.path)
    if not parsed.runs:
        return np.zeros(len(offsets), dtype=np.uint64)
    lengths, versions = zip(*parsed.runs)
    ends = np.cumsum(np.array(lengths, dtype=np.int64))
    return np.array(versions, dtype=np.uint64)[np.searchsorted(ends, offsets, side="right")]


def _inline(
    version: TableVersion, fragment: Fragment, sequence: bytes | LineagePlace | None, what: str
) -> bytes | None:
    if isinstance(sequence, LineagePlace):
        raise UnsupportedFeatureError(
            f"{version.uri}: fragment {fragment.id} keeps its {what} outside the manifest ({sequence.value})",
            feature=f"{what} outside the manifest",
        )
    return sequence
