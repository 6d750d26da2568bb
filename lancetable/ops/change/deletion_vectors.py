"""Deletion vectors of many fragments: the shared part of `delete`, `update` and `merge_insert`.

Every fragment that loses rows gets one new deletion file; a fragment that loses all rows is removed and needs none.
Nothing is committed here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from typing import TYPE_CHECKING, NamedTuple

from lancetable.errors import LanceError
from lancetable.file import pool
from lancetable.table import deletions
from lancetable.table.deletions import DeletionVector
from lancetable.table.row_count_index import physical_rows

if TYPE_CHECKING:
    from lancetable.format.fragment import Fragment
    from lancetable.table.version import TableVersion

__all__ = ["WrittenDeletions", "discard_deletions", "write_deletions"]

logger = logging.getLogger(__name__)

_FILES_PER_TASK = 16


class WrittenDeletions(NamedTuple):
    """Fragments with new deletion files, and ids of the fragments without live rows; both ascending."""

    updated: tuple[Fragment, ...]
    removed: tuple[int, ...]


def write_deletions(version: TableVersion, rows: Mapping[int, DeletionVector]) -> WrittenDeletions:
    """Write deletion files that add the live `rows`, given by fragment id, to the rows that are deleted already.

    If anything fails, the files written so far are removed.
    """
    updated: dict[int, Fragment] = {}
    removed: list[int] = []

    def write(fragment_id: int) -> None:
        fragment = version.manifest.fragments.by_id(fragment_id)
        assert fragment is not None, "the rows were found in this version"
        remaining = deletions.delete_rows(version, fragment, rows[fragment_id], physical_rows(version, fragment))
        if remaining is None:
            removed.append(fragment_id)
        elif remaining is not fragment:
            updated[fragment_id] = remaining

    try:
        _for_each(
            write, [number for number, vector in rows.items() if vector], parallel=not version.store.capabilities.local
        )
    except BaseException:
        discard_deletions(version, updated.values())
        raise
    return WrittenDeletions(tuple(updated[fragment_id] for fragment_id in sorted(updated)), tuple(sorted(removed)))


def discard_deletions(version: TableVersion, fragments: Iterable[Fragment]) -> None:
    """Remove the deletion files of fragments that were never committed; log failures."""
    paths = [
        version.deletion_file_path(fragment.id, fragment.deletion_file)
        for fragment in fragments
        if fragment.deletion_file is not None
    ]
    try:
        version.store.delete(paths)
    except (LanceError, OSError) as error:
        logger.warning("could not remove %d deletion files that were never committed: %s", len(paths), error)


def _for_each(function: Callable[[int], None], items: Sequence[int], *, parallel: bool) -> None:
    """Call `function` with each item, several at a time, because most of the time is spent waiting for the store.

    A local disk gains nothing: threads only contend for one directory. All calls have finished when this returns or
    raises.
    """
    if not parallel or len(items) <= _FILES_PER_TASK or pool.size() == 1 or pool.in_worker():
        for item in items:
            function(item)
        return

    def run(start: int) -> None:
        for item in items[start : start + _FILES_PER_TASK]:
            function(item)

    futures = [pool.pool().submit(run, start) for start in range(0, len(items), _FILES_PER_TASK)]
    wait(futures)
    for future in futures:
        future.result()
