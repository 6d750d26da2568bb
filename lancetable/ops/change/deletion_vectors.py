"""Deletion vectors merged and written: the shared part of `delete`, `update` and `merge_insert`.

Every fragment that loses rows gets one new deletion file; a fragment that loses all rows is removed and needs none.
Nothing is committed here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from lancetable.errors import LanceError
from lancetable.file import pool
from lancetable.table import deletions
from lancetable.table.deletions import DeletionVector
from lancetable.table.row_count_index import physical_rows

if TYPE_CHECKING:
    from lancetable.format.fragment import Fragment
    from lancetable.table.version import TableVersion

__all__ = ["Marked", "mark_deleted", "remove_marks"]

logger = logging.getLogger(__name__)

_FILES_PER_TASK = 16


class Marked(NamedTuple):
    """Fragments with new deletion files, and ids of the fragments without live rows; both ascending."""

    updated: tuple[Fragment, ...]
    removed: tuple[int, ...]


def mark_deleted(version: TableVersion, rows: Mapping[int, DeletionVector]) -> Marked:
    """Write deletion files that add the live `rows`, given by fragment id, to the rows that are deleted already.

    If anything fails, the files written so far are removed.
    """
    removed: list[int] = []
    updated: list[Fragment] = []
    kept: list[int] = []
    for fragment_id, vector in rows.items():
        if vector:
            fragment = _fragment(version, fragment_id)
            lost_all = len(vector) == physical_rows(version, fragment) - len(_deleted(version, fragment))
            (removed if lost_all else kept).append(fragment_id)

    def mark(fragment_id: int) -> None:
        fragment = _fragment(version, fragment_id)
        merged = _deleted(version, fragment).union(rows[fragment_id])
        file = deletions.write(version.store, version.base, fragment_id, version.version, merged)
        updated.append(replace(fragment, deletion_file=file))

    try:
        if version.store.capabilities.local:
            # Threads only contend for one directory on a local disk.
            for fragment_id in kept:
                mark(fragment_id)
        else:
            _for_each(mark, kept)
    except BaseException:
        remove_marks(version, updated)
        raise
    return Marked(tuple(sorted(updated, key=attrgetter("id"))), tuple(sorted(removed)))


def remove_marks(version: TableVersion, fragments: Iterable[Fragment]) -> None:
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


def _fragment(version: TableVersion, fragment_id: int) -> Fragment:
    fragment = version.manifest.fragments.by_id(fragment_id)
    assert fragment is not None, "the rows were found in this version"
    return fragment


def _deleted(version: TableVersion, fragment: Fragment) -> DeletionVector:
    return deletions.read(version, fragment) or deletions.EMPTY


def _for_each(function: Callable[[int], None], items: Sequence[int]) -> None:
    """Call `function` with each item, several at a time, because most of the time is spent waiting for the store.

    All calls have finished when this returns or raises.
    """
    if len(items) <= _FILES_PER_TASK or pool.size() == 1 or pool.in_worker():
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
