"""Row counts of fragments, and prefix sums over the live rows of a version.

    fragment              0          1      2
    live rows         |---------|---------|----|      `starts` are the boundaries, in scan order
    physical offsets  0 1 x 3 4 5 ...                 deleted rows have an offset, but no position in the scan

Source: protos/table.proto, DataFragment and DeletionFile.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.footer import FileMetadata
from lancetable.format.fragment import Fragment
from lancetable.table import deletion_vectors
from lancetable.table.data_file_metadata import file_metadata
from lancetable.table.version import TableVersion

Offsets: TypeAlias = npt.NDArray[np.int64]
DeletedOffsets: TypeAlias = npt.NDArray[np.uint32]

MAX_UNVERIFIED_ROWS = 1 << 22
"""Row count of a fragment above which it is compared with a data file."""


class RowCountIndex:
    """Live row counts of the fragments of a version. Call `row_count_index` to get the cached index.

    `starts[i]` is the position in scan order of the first live row of fragment i; the last entry is the total.
    """

    __slots__ = ("fragments", "starts")

    def __init__(self, version: TableVersion) -> None:
        self.fragments = version.manifest.fragments
        physical, deleted = self.fragments.physical_rows(), self.fragments.num_deleted_rows()
        counts = physical - deleted
        for position in np.flatnonzero((physical == 0) | (deleted < 0)).tolist():
            counts[position] = num_live_rows(version, self.fragments[position])
        if (counts < 0).any():
            position = int(np.flatnonzero(counts < 0)[0])
            what = f"fragment {self.fragments[position].id} has more deleted rows than rows"
            raise CorruptFileError(
                what, f"at most {physical[position]}", int(deleted[position]), path=version.location.path
            )
        self.starts: Offsets = np.zeros(len(counts) + 1, dtype=np.int64)
        np.cumsum(counts, out=self.starts[1:])

    @property
    def num_rows(self) -> int:
        """Number of live rows of the version."""
        return int(self.starts[-1])

    def num_rows_at(self, position: int) -> int:
        """Return the number of live rows of the fragment at a position in the manifest."""
        return int(self.starts[position + 1] - self.starts[position])


def row_count_index(version: TableVersion) -> RowCountIndex:
    """Return the index of a version, cached."""
    return version.cache.get_or_derive(
        "row counts", version.manifest, lambda: RowCountIndex(version), lambda index: 1024 + index.starts.nbytes
    )


def physical_rows(version: TableVersion, fragment: Fragment) -> int:
    """Return the number of rows of a fragment, including deleted rows.

    Reads the footer of a data file if the manifest does not store the number, and to verify a large number, because
    callers allocate memory for each row. Raises CorruptFileError if the numbers differ or neither exists.
    """
    recorded = fragment.physical_rows
    if recorded and (recorded <= MAX_UNVERIFIED_ROWS or not fragment.files):
        return recorded
    if not fragment.files:
        path = version.location.path
        raise CorruptFileError(f"fragment {fragment.id} has neither data files nor a number of rows", path=path)
    metadata = file_metadata(version, fragment.files[0])
    check_file_rows(version, fragment, metadata, recorded or metadata.num_rows)
    return metadata.num_rows


def check_file_rows(version: TableVersion, fragment: Fragment, metadata: FileMetadata, expected: int) -> None:
    """Raise CorruptFileError if a data file of a fragment does not have the expected number of rows."""
    if metadata.num_rows != expected:
        what = f"wrong number of rows for fragment {fragment.id}"
        raise CorruptFileError(what, expected, metadata.num_rows, path=metadata.path)


def num_live_rows(version: TableVersion, fragment: Fragment) -> int:
    """Return the number of live rows of a fragment. Reads files only if the manifest does not store both counts."""
    total = physical_rows(version, fragment)
    deletion_file = fragment.deletion_file
    if deletion_file is None:
        return total
    if deletion_file.num_deleted_rows:
        return total - deletion_file.num_deleted_rows
    deleted = deleted_offsets(version, fragment)
    return total if deleted is None else total - len(deleted)


def deleted_offsets(version: TableVersion, fragment: Fragment) -> DeletedOffsets | None:
    """Return the deleted physical offsets of a fragment, ascending uint32, or None if no row is deleted.

    Search the array with uint32 values only: with other types, NumPy converts the whole array first.
    """
    vector = deletion_vectors.read(version, fragment)
    return vector.offsets() if vector else None


def live_offsets(version: TableVersion, fragment: Fragment) -> Offsets | None:
    """Return the physical offsets of the live rows, ascending int64, or None if every row is live."""
    vector = deletion_vectors.read(version, fragment)
    return vector.live_offsets(physical_rows(version, fragment)) if vector else None


def physical_offsets(version: TableVersion, fragment: Fragment, ordinals: Offsets) -> Offsets:
    """Return the physical offsets of the live rows with these ordinals among the live rows of the fragment."""
    deleted = deleted_offsets(version, fragment)
    if deleted is None:
        return ordinals
    # The i-th deleted row has deleted[i] - i live rows before it.
    live_before = version.cache.get_or_derive(
        "live rows before deleted",
        deleted,
        lambda: deleted.astype(np.int64) - np.arange(len(deleted)),
        lambda counts: counts.nbytes + 128,
    )
    return ordinals + np.searchsorted(live_before, ordinals, side="right")
