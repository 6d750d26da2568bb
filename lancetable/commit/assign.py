"""Numbers that are given out at commit time, from the counters of the version committed on top of.

They are recomputed on every attempt, because another writer may have taken them in between. Fragment ids are never
used twice: the counter continues through overwrites, restores and deletes of everything.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from lancetable.errors import InvalidOperationError
from lancetable.format.fragment import MAX_FRAGMENT_ID
from lancetable.proto import table_pb2

__all__ = ["fragment_ids", "number_fragments", "reserve_fragment_ids", "used_fragment_ids"]


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
