"""Numbers that are given out at commit time, from the counters of the version committed on top of.

They are recomputed on every attempt, because another writer may have taken them in between. Neither fragment ids nor
row ids are used twice: their counters continue through overwrites, restores and deletes of everything.

    new fragment of an Update, 4 rows     its writer said     ids 6 0          the first two rows were moved here
                                          the commit makes    ids 6 0 8 9      8 and 9 from the counter
                                          created at          1 1 5 5          looked up for 6 and 0, else this version
                                          last updated at     5 5 5 5
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
from lancetable.rowids.versions import FIRST_VERSION

__all__ = [
    "assign_row_ids",
    "fragment_ids",
    "number_fragments",
    "reserve_fragment_ids",
    "stamp_moved",
    "stamp_new",
    "stamp_rows",
    "stamp_updated",
    "used_fragment_ids",
]

_MAX_ROW_ID = 2**64 - 1


def number_fragments(manifest: table_pb2.Manifest, fragments: Iterable[table_pb2.DataFragment]) -> None:
    """Give the next ids to those of `fragments` that have id 0, and note the highest one in `manifest`.

    `fragments` are not yet part of the manifest. Any other id was chosen by its writer and is kept.
    Raises InvalidOperationError when ids run out or a chosen one is in use.
    """
    highest = used_fragment_ids(manifest)
    chosen = {fragment.id for fragment in fragments if fragment.id}
    clash = chosen & {fragment.id for fragment in manifest.fragments} if chosen else set()
    if clash:
        raise InvalidOperationError(f"fragment ids {sorted(clash)[:10]} are in use already; new fragments have id 0")
    next_id = max(highest, max(chosen, default=-1)) + 1
    for fragment in fragments:
        if not fragment.id:
            fragment.id = next_id
            next_id += 1
    if next_id - 1 > MAX_FRAGMENT_ID:
        raise InvalidOperationError(f"the table has used up its {MAX_FRAGMENT_ID + 1} fragment ids")
    if next_id:
        manifest.max_fragment_id = next_id - 1


def reserve_fragment_ids(manifest: table_pb2.Manifest, count: int) -> None:
    """Set `count` ids aside; the reserved ones are the highest of the resulting manifest."""
    highest = max(used_fragment_ids(manifest), 0) + count
    if highest > MAX_FRAGMENT_ID:
        raise InvalidOperationError(f"{count} fragment ids cannot be reserved; ids end at {MAX_FRAGMENT_ID}")
    manifest.max_fragment_id = highest


def used_fragment_ids(manifest: table_pb2.Manifest) -> int:
    """The highest id ever used, -1 if there is none. Looks at the fragments too: some writers left the counter low."""
    counter = manifest.max_fragment_id if manifest.HasField("max_fragment_id") else -1
    return max(counter, max([fragment.id for fragment in manifest.fragments], default=-1))


def fragment_ids(manifest: table_pb2.Manifest) -> npt.NDArray[np.uint64]:
    """(n,) ids of the fragments in list order."""
    return np.array([fragment.id for fragment in manifest.fragments], np.uint64)


# --- row ids ---------------------------------------------------------------------------------------------------------


def assign_row_ids(manifest: table_pb2.Manifest, fragments: Iterable[table_pb2.DataFragment]) -> list[int]:
    """Give row ids from the counter of `manifest` to the rows of new fragments that have none yet.

    A fragment may say the ids of its first rows, which were moved there. Returns for each fragment how many rows that
    were. Raises InvalidOperationError for a fragment with more ids than rows, or of unknown size.
    """
    moved = []
    for fragment in fragments:
        num_rows = fragment.physical_rows
        known = _moved_ids(fragment)
        num_moved = 0 if known is None else known.num_rows
        if num_moved > num_rows or not num_rows:
            raise InvalidOperationError(
                f"a new fragment has {num_moved} row ids for {num_rows} rows; every row of a table with stable row ids"
                " needs exactly one"
            )
        moved.append(num_moved)
        first, fresh = manifest.next_row_id, num_rows - num_moved
        if first + fresh > _MAX_ROW_ID:
            raise InvalidOperationError(f"the table has used up its row ids: {first} are taken")
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
    arm = fragment.WhichOneof("row_id_sequence")
    if arm is None:
        return None
    if arm != "inline_row_ids":
        raise UnsupportedFeatureError(
            f"fragment {fragment.id} keeps its row ids outside the manifest ({arm})",
            feature="row ids outside the manifest",
        )
    return RowIdSequence.from_bytes(fragment.inline_row_ids, num_rows)


def stamp_new(fragments: Iterable[table_pb2.DataFragment], version: int) -> None:
    """Note `version` as that in which all rows of these fragments were made and last changed."""
    for fragment in fragments:
        stamp = RowVersionSequence.uniform(fragment.physical_rows, version).to_bytes()
        fragment.inline_created_at_versions = stamp
        fragment.inline_last_updated_at_versions = stamp


def stamp_updated(fragments: Iterable[table_pb2.DataFragment], version: int) -> None:
    """Note `version` as that in which all rows of these fragments were last changed."""
    for fragment in fragments:
        stamp = RowVersionSequence.uniform(fragment.physical_rows, version).to_bytes()
        fragment.inline_last_updated_at_versions = stamp


def stamp_rows(fragment: table_pb2.DataFragment, offsets: npt.NDArray[np.uint32], version: int) -> None:
    """Note `version` as that in which the rows at these offsets were last changed."""
    sequence = _versions(fragment, "last_updated_at_version_sequence", "inline_last_updated_at_versions")
    fragment.inline_last_updated_at_versions = sequence.with_version(offsets, version).to_bytes()


def stamp_moved(
    fragments: Sequence[table_pb2.DataFragment],
    num_moved: Sequence[int],
    sources: Sequence[table_pb2.DataFragment],
    version: int,
) -> None:
    """Note when the rows of new fragments were made and last changed: now, but the first `num_moved` of each were made
    when their row id says, which is looked up in `sources`, the fragments they come from as they were before.

    A row id that is in none of them counts as made in the first version, as other writers have it.
    """
    moved = [
        RowIdSequence.from_bytes(fragment.inline_row_ids).values()[:count] if count else np.zeros(0, np.uint64)
        for fragment, count in zip(fragments, num_moved, strict=True)
    ]
    created = _created_at(np.concatenate([np.zeros(0, np.uint64), *moved]), sources)
    start = 0
    for fragment, count in zip(fragments, num_moved, strict=True):
        made = RowVersionSequence.from_values(created[start : start + count])
        start += count
        fresh = RowVersionSequence.uniform(fragment.physical_rows - count, version)
        fragment.inline_created_at_versions = made.extend(fresh).to_bytes()
    stamp_updated(fragments, version)


def _created_at(row_ids: U64Array, sources: Iterable[table_pb2.DataFragment]) -> U64Array:
    """(n,) versions in which the rows with these ids were made.

    An id may stand in several sources, live in one of them only; all of them say the same.
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
        versions = _versions(fragment, "created_at_version_sequence", "inline_created_at_versions")
        only = sequence.as_range
        if only is not None:
            low, high = np.searchsorted(ascending, np.array([only.start, only.end], np.uint64))
            created[order[low:high]] = versions.at((ascending[low:high] - np.uint64(only.start)).astype(np.int64))
            continue
        ids = sequence.values()
        places = np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)
        rows = np.flatnonzero(ascending[places] == ids)
        created[order[places[rows]]] = versions.at(rows)
    return created


def _versions(fragment: table_pb2.DataFragment, oneof: Any, inline: Any) -> RowVersionSequence:
    arm = fragment.WhichOneof(oneof)
    if arm is None:
        return RowVersionSequence.uniform(fragment.physical_rows, FIRST_VERSION)
    if arm != inline:
        raise UnsupportedFeatureError(
            f"fragment {fragment.id} keeps its row versions outside the manifest ({arm})",
            feature="row versions outside the manifest",
        )
    return RowVersionSequence.from_bytes(getattr(fragment, inline), fragment.physical_rows)
