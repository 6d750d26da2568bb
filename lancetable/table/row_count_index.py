"""Where the live rows of a version lie: prefix sums over its fragments, deleted offsets, and what is kept with them.

    fragment              0          1      2
    live rows         |---------|---------|----|      `starts` are the borders, in scan order
    physical offsets  0 1 x 3 4 5 ...                 what is deleted still counts; ordinals pass over it

Source: protos/table.proto, DataFragment and DeletionFile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.blobs.descriptor import described
from lancetable.format.fragment import Fragment
from lancetable.format.manifest import FragmentList, Manifest
from lancetable.format.schema import BLOB_KEY, Field
from lancetable.table import deletions
from lancetable.table.open_files import file_metadata
from lancetable.table.version import TableVersion

if TYPE_CHECKING:
    from lancetable.table.file_layouts import FragmentFiles, Layout, Places

__all__ = [
    "MAX_KEPT_LAYOUTS",
    "Deleted",
    "Offsets",
    "VersionRows",
    "deleted_offsets",
    "live_offsets",
    "num_live_rows",
    "physical_offsets",
    "physical_rows",
    "rows_of",
]

Offsets: TypeAlias = npt.NDArray[np.int64]
Deleted: TypeAlias = npt.NDArray[np.uint32]

MAX_KEPT_LAYOUTS: Final = 64


class VersionRows:
    """Where the live rows of a version lie, and the layouts worked out so far. Made by `rows_of`.

    `starts[i]` is the position in scan order of the first live row of the i-th fragment; one more entry ends the last.
    """

    __slots__ = (
        "_blob_fields",
        "_described",
        "files",
        "fragments",
        "holds_blob_files",
        "layouts",
        "manifest",
        "places",
        "scratch",
        "starts",
    )

    def __init__(self, version: TableVersion) -> None:
        self.manifest: Manifest = version.manifest
        self.fragments: FragmentList = version.manifest.fragments
        physical, deleted = self.fragments.physical_rows(), self.fragments.num_deleted_rows()
        counts = physical - deleted
        for at in np.flatnonzero((physical == 0) | (deleted < 0)).tolist():
            counts[at] = num_live_rows(version, self.fragments[at])
        if (counts < 0).any():
            at = int(np.flatnonzero(counts < 0)[0])
            raise CorruptFileError(
                f"{physical[at]} rows and {deleted[at]} deleted ones in fragment {self.fragments[at].id}",
                path=version.location.path,
                expected=int(physical[at]),
                found=int(deleted[at]),
            )
        self.starts: Offsets = np.zeros(len(counts) + 1, dtype=np.int64)
        np.cumsum(counts, out=self.starts[1:])
        self.files: dict[int, FragmentFiles] = {}
        self.layouts: dict[tuple[int, ...], Layout] = {}
        # What many fragments have in common: which file holds which field, by the fields of their files.
        self.places: dict[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], Places] = {}
        # Resolved projections of takes, by what the caller asked for; owned by ops/read/take.py.
        self.scratch: dict[Any, Any] = {}
        # Blobs of the second form, which may lie in files of their own.
        self._blob_fields = frozenset(field.id for field in self.manifest.schema.walk() if field.is_blob_v2)
        self._described: dict[int, tuple[Field, Field]] = {}
        self.holds_blob_files = bool(self._blob_fields)

    def described(self, field: Field) -> Field:
        """What to read for a field: descriptions where it has the bytes of blobs; else the field itself."""
        found = self._described.get(id(field))
        if found is None or found[0] is not field:
            if len(self._described) >= MAX_KEPT_LAYOUTS:
                self._described.clear()
            found = self._described[id(field)] = (field, self._describe(field))
        return found[1]

    def _describe(self, field: Field) -> Field:
        if field.id in self._blob_fields:
            return field if BLOB_KEY in field.metadata else described(self.manifest.schema.by_id[field.id])
        children = tuple([self._describe(child) for child in field.children])
        same = all(one is other for one, other in zip(children, field.children))
        return field if same else replace(field, children=children)

    @property
    def num_rows(self) -> int:
        """Live rows of the version."""
        return int(self.starts[-1])


def rows_of(version: TableVersion) -> VersionRows:
    """The `VersionRows` of a version, from its cache or new."""
    # A manifest is immutable and the entry keeps it alive, so its identity is a sound key, and a cheap one.
    manifest = version.manifest
    key = ("rows", id(manifest))
    found = version.cache.get(key)
    if isinstance(found, VersionRows) and found.manifest is manifest:
        return found
    made = VersionRows(version)
    version.cache.put(key, made, 4096 + 512 * len(made.fragments))
    return made


def physical_rows(version: TableVersion, fragment: Fragment) -> int:
    """Rows of a fragment, deleted ones included; from a file's footer where the manifest does not say."""
    if fragment.physical_rows:
        return fragment.physical_rows
    if not fragment.files:
        return 0
    return file_metadata(version, fragment.files[0]).num_rows


def num_live_rows(version: TableVersion, fragment: Fragment) -> int:
    """Rows of a fragment without the deleted ones; metadata only where the manifest gives both counts."""
    total = physical_rows(version, fragment)
    deletion_file = fragment.deletion_file
    if deletion_file is None:
        return total
    deleted = deletion_file.num_deleted_rows
    if not deleted:
        found = deleted_offsets(version, fragment)
        deleted = 0 if found is None else len(found)
    return total - deleted


def deleted_offsets(version: TableVersion, fragment: Fragment) -> Deleted | None:
    """The deleted physical offsets of a fragment, ascending uint32; None where there are none.

    Search it with uint32: numpy would otherwise widen a copy of it first.
    """
    if fragment.deletion_file is None:
        return None
    vector = deletions.read(version, fragment)
    if vector is None or len(vector) == 0:
        return None
    return vector.offsets()


def live_offsets(version: TableVersion, fragment: Fragment) -> Offsets | None:
    """The physical offsets of the live rows, ascending int64; None when every row is live."""
    deleted = deleted_offsets(version, fragment)
    if deleted is None:
        return None
    live = np.ones(physical_rows(version, fragment), dtype=np.bool_)
    live[deleted] = False
    return np.flatnonzero(live)


def physical_offsets(version: TableVersion, fragment: Fragment, ordinals: Offsets) -> Offsets:
    """Physical offsets of the n-th live rows, for `ordinals` within the fragment's number of live rows."""
    deleted = deleted_offsets(version, fragment)
    if deleted is None:
        return ordinals
    live_before = _live_before(version, fragment, deleted)
    return ordinals + np.searchsorted(live_before, ordinals, side="right")


def _live_before(version: TableVersion, fragment: Fragment, deleted: Deleted) -> Offsets:
    """How many live rows lie before each deleted one: the i-th has `deleted[i] - i`."""
    key = ("live before", id(deleted))
    found = version.cache.get(key)
    # Kept together with the vector, which keeps its id from being used again.
    if found is not None and found[0] is deleted:
        return found[1]  # type: ignore[no-any-return]  # put here under the same kind of key
    made = deleted.astype(np.int64) - np.arange(len(deleted))
    version.cache.put(key, (deleted, made), made.nbytes + 128)
    return made
