"""Deletion vectors of many fragments: the shared part of `delete`, `update` and `merge_insert`.

Every fragment with newly deleted rows gets one new deletion file. A fragment without remaining rows is removed and gets
no deletion file. Nothing is committed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import wait
from typing import NamedTuple

from lancetable.file import thread_pool
from lancetable.format.fragment import Fragment
from lancetable.store.base import discard, undone_on_error
from lancetable.table import deletion_vectors
from lancetable.table.deletion_vectors import DeletionVector
from lancetable.table.row_counts import physical_rows
from lancetable.table.version import TableVersion


class WrittenDeletions(NamedTuple):
    """Fragments with new deletion files, and ids of the fragments without live rows; both ascending."""

    updated: tuple[Fragment, ...]
    removed: tuple[int, ...]


def write_deletions(version: TableVersion, rows: Mapping[int, DeletionVector]) -> WrittenDeletions:
    """Write deletion files that contain the deleted rows of each fragment and the live `rows`, given by fragment id.

    After an error, the files written so far are removed.
    """
    updated: dict[int, Fragment] = {}
    removed: list[int] = []

    def write(fragment_id: int) -> None:
        fragment = version.manifest.fragments.by_id(fragment_id)
        assert fragment is not None, "the rows were found in this version"
        remaining = deletion_vectors.delete_rows(version, fragment, rows[fragment_id], physical_rows(version, fragment))
        if remaining is None:
            removed.append(fragment_id)
        elif remaining is not fragment:
            updated[fragment_id] = remaining

    changed = [fragment_id for fragment_id, vector in rows.items() if vector]
    with undone_on_error(lambda: discard_deletions(version, updated.values())):
        # On a local disk, threads would contend for one directory.
        if version.store.capabilities.local or not thread_pool.can_share():
            for fragment_id in changed:
                write(fragment_id)
        else:
            futures = [thread_pool.executor().submit(write, fragment_id) for fragment_id in changed]
            wait(futures)  # no thread may write a file after the others are discarded
            for future in futures:
                future.result()
    return WrittenDeletions(tuple(updated[fragment_id] for fragment_id in sorted(updated)), tuple(sorted(removed)))


def discard_deletions(version: TableVersion, fragments: Iterable[Fragment]) -> None:
    """Remove the deletion files of fragments that were never committed; log failures."""
    paths = [
        version.deletion_file_path(fragment.id, fragment.deletion_file)
        for fragment in fragments
        if fragment.deletion_file is not None
    ]
    discard(version.store, paths, "deletion files")
