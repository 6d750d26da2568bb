"""Assignment of fragment ids, row ids and row versions at commit time.

Ids are taken from the counters of the newest version. They are assigned again in every attempt, because another writer
may have used them. Fragment ids and row ids are never reused: the counters continue after overwrites, restores and
deletes of all rows.

    new fragment of an Update with 4 rows, committed as version 5

    row ids from the writer    6 0          the first two rows were moved from other fragments
    row ids after the commit   6 0 8 9      8 and 9 are taken from the counter
    created at                 1 1 5 5      looked up for rows 6 and 0, otherwise the new version
    last updated at            5 5 5 5
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lancetable.errors import InvalidOperationError, UnsupportedFeatureError
from lancetable.format.fragment import MAX_FRAGMENT_ID
from lancetable.format.row_address import U64Array
from lancetable.proto import table_pb2
from lancetable.rowids import RowIdSequence, RowVersionSequence
from lancetable.rowids.row_versions import FIRST_VERSION

_MAX_ROW_ID = 2**64 - 1


def number_fragments(manifest: table_pb2.Manifest, fragments: Iterable[table_pb2.DataFragment]) -> None:
    """Assign the next ids to fragments with id 0, and record the highest id in `manifest`.

    `fragments` are not yet part of the manifest. Ids other than 0 were chosen by the writer and are kept.
    Raises InvalidOperationError if no ids are left or a chosen id is in use.
    """
    highest = used_fragment_ids(manifest)
    own_ids = {fragment.id for fragment in fragments if fragment.id}
    clash = own_ids & {fragment.id for fragment in manifest.fragments} if own_ids else set()
    if clash:
        raise InvalidOperationError(
            f"fragment ids {sorted(clash)[:10]} are already in use; new fragments must have id 0"
        )
    next_id = max(highest, max(own_ids, default=-1)) + 1
    for fragment in fragments:
        if not fragment.id:
            fragment.id = next_id
            next_id += 1
    if next_id - 1 > MAX_FRAGMENT_ID:
        raise InvalidOperationError(f"no fragment ids left; the limit is {MAX_FRAGMENT_ID + 1}")
    if next_id:
        manifest.max_fragment_id = next_id - 1


def reserve_fragment_ids(manifest: table_pb2.Manifest, count: int) -> None:
    """Reserve `count` fragment ids. The reserved ids are the highest of the resulting manifest.

    Raises InvalidOperationError if not enough ids are left.
    """
    highest = max(used_fragment_ids(manifest), 0) + count
    if highest > MAX_FRAGMENT_ID:
        raise InvalidOperationError(f"cannot reserve {count} fragment ids: the highest id is {MAX_FRAGMENT_ID}")
    manifest.max_fragment_id = highest


def used_fragment_ids(manifest: table_pb2.Manifest) -> int:
    """Return the highest fragment id ever used, or -1.

    Some writers leave the counter too low, so the ids of the fragments are checked too.
    """
    counter = manifest.max_fragment_id if manifest.HasField("max_fragment_id") else -1
    return max(counter, max([fragment.id for fragment in manifest.fragments], default=-1))


def fragment_ids(manifest: table_pb2.Manifest) -> npt.NDArray[np.uint64]:
    """Return the (n,) ids of the fragments in list order."""
    return np.array([fragment.id for fragment in manifest.fragments], np.uint64)


# --- row ids ---------------------------------------------------------------------------------------------------------


def assign_row_ids(manifest: table_pb2.Manifest, fragments: Iterable[table_pb2.DataFragment]) -> list[int]:
    """Assign row ids from the counter of `manifest` to rows of new fragments that have none.

    A fragment may already contain the ids of its first rows, which were moved from other fragments. Returns the number
    of moved rows of each fragment. Raises InvalidOperationError if a fragment has more ids than rows or an unknown
    number of rows, or if no row ids are left; UnsupportedFeatureError if row ids are stored outside the manifest.
    """
    moved = []
    for fragment in fragments:
        num_rows = fragment.physical_rows
        known = _moved_ids(fragment)
        num_moved = 0 if known is None else known.num_rows
        if num_moved > num_rows or not num_rows:
            raise InvalidOperationError(
                f"a new fragment has {num_moved} row ids for {num_rows} rows; set the number of rows, and at most one"
                " row id for each"
            )
        moved.append(num_moved)
        first, fresh = manifest.next_row_id, num_rows - num_moved
        if first + fresh > _MAX_ROW_ID:
            raise InvalidOperationError(f"no row ids left for {fresh} rows: {first} of {_MAX_ROW_ID} are in use")
        if not fresh:
            continue
        manifest.next_row_id = first + fresh
        if known is None or not num_moved:
            sequence = RowIdSequence.from_range(first, first + fresh)
        else:
            ids = np.arange(first, first + fresh, dtype=np.uint64)
            sequence = RowIdSequence.from_values(np.concatenate([known.values(), ids]))
        fragment.inline_row_ids = sequence.to_bytes()
    return moved


def _moved_ids(fragment: table_pb2.DataFragment, num_rows: int | None = None) -> RowIdSequence | None:
    """Return the row ids that a fragment contains, or None. Raises UnsupportedFeatureError for external row ids."""
    data = _inline_bytes(fragment, "row_id_sequence", "row ids")
    return None if data is None else RowIdSequence.from_bytes(data, num_rows)


def _inline_bytes(fragment: table_pb2.DataFragment, oneof: Any, name: str) -> bytes | None:
    """Return a sequence that is stored in the manifest, or None. Raises UnsupportedFeatureError for external ones."""
    oneof_case = fragment.WhichOneof(oneof)
    if oneof_case is not None and not oneof_case.startswith("inline"):
        raise UnsupportedFeatureError(
            f"fragment {fragment.id} stores its {name} outside the manifest ({oneof_case})",
            feature=f"{name} outside the manifest",
        )
    return None if oneof_case is None else getattr(fragment, oneof_case)


def stamp_new(fragments: Sequence[table_pb2.DataFragment], version: int) -> None:
    """Set the created-at and last-updated versions of all rows of these fragments."""
    stamp_updated(fragments, version)
    for fragment in fragments:
        fragment.inline_created_at_versions = fragment.inline_last_updated_at_versions


def stamp_updated(fragments: Iterable[table_pb2.DataFragment], version: int) -> None:
    """Set the last-updated version of all rows of these fragments."""
    for fragment in fragments:
        stamp = RowVersionSequence.uniform(fragment.physical_rows, version).to_bytes()
        fragment.inline_last_updated_at_versions = stamp


def stamp_rows(fragment: table_pb2.DataFragment, offsets: npt.NDArray[np.uint32], version: int) -> None:
    """Set the last-updated version of the rows at these offsets."""
    sequence = _versions(fragment, "last_updated_at_version_sequence")
    fragment.inline_last_updated_at_versions = sequence.with_version(offsets, version).to_bytes()


def stamp_moved(
    fragments: Sequence[table_pb2.DataFragment],
    num_moved: Sequence[int],
    sources: Sequence[table_pb2.DataFragment],
    version: int,
) -> None:
    """Set the created-at and last-updated versions of new fragments with moved rows.

    Parameters
    ----------
    fragments
        The new fragments, with row ids.
    num_moved
        For each fragment, the number of leading rows that were moved from other fragments. They keep their created-at
        version; all other rows are created in `version`.
    sources
        Records of the other fragments before this commit. A row id in none of them counts as created in the first
        version, as in other writers.
    version
        The last-updated version of all rows.
    """
    moved = [
        RowIdSequence.from_bytes(fragment.inline_row_ids).values()[:count] if count else np.zeros(0, np.uint64)
        for fragment, count in zip(fragments, num_moved, strict=True)
    ]
    created = _created_at(np.concatenate([np.zeros(0, np.uint64), *moved]), sources)
    start = 0
    for fragment, count in zip(fragments, num_moved, strict=True):
        kept = RowVersionSequence.from_values(created[start : start + count])
        start += count
        fresh = RowVersionSequence.uniform(fragment.physical_rows - count, version)
        fragment.inline_created_at_versions = RowVersionSequence.concat((kept, fresh)).to_bytes()
    stamp_updated(fragments, version)


def _created_at(row_ids: U64Array, sources: Iterable[table_pb2.DataFragment]) -> U64Array:
    """Return the (n,) created-at versions of the rows with these ids.

    An id may occur in several sources, although its row is live in only one. All sources have the same version for it.
    """
    created = np.full(len(row_ids), FIRST_VERSION, np.uint64)
    order = np.argsort(row_ids, kind="stable")
    ascending = row_ids[order]
    for fragment in sources:
        if not len(ascending):
            break
        sequence = _moved_ids(fragment, fragment.physical_rows)
        if sequence is None:
            continue
        versions = _versions(fragment, "created_at_version_sequence")
        id_range = sequence.as_range
        if id_range is not None:
            low, high = np.searchsorted(ascending, np.array([id_range.start, id_range.end], np.uint64))
            created[order[low:high]] = versions.at((ascending[low:high] - np.uint64(id_range.start)).astype(np.int64))
            continue
        ids = sequence.values()
        positions = np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)
        rows = np.flatnonzero(ascending[positions] == ids)
        created[order[positions[rows]]] = versions.at(rows)
    return created


def _versions(fragment: table_pb2.DataFragment, oneof: Any) -> RowVersionSequence:
    data = _inline_bytes(fragment, oneof, "row versions")
    if data is None:
        return RowVersionSequence.uniform(fragment.physical_rows, FIRST_VERSION)
    return RowVersionSequence.from_bytes(data, fragment.physical_rows)
