"""Stable row ids of a version: the ids of one fragment's rows, and the way back from an id to its row.

    fragment 0   ids 0 1 2 3   row 2 deleted         index   0 -> 0:0   1 -> 0:1   3 -> 0:3
    fragment 1   ids 2 4                                     2 -> 1:0   4 -> 1:1        (2 was updated: it moved)

Without stable row ids an id is an address, and nothing here is needed. Ids and versions stand in the manifest, or,
where another library moved them out of it, in hidden columns of a data file. Source: protos/rowids.proto, DataFragment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.reader import read_columns
from lancetable.format.fragment import CREATED_AT_FIELD, LAST_UPDATED_AT_FIELD, ROW_ID_FIELD, LineagePlace
from lancetable.format.schema import Field
from lancetable.rowids import RowIdIndex, RowIdSequence, RowVersionSequence
from lancetable.rowids.versions import FIRST_VERSION
from lancetable.table import deletions
from lancetable.table.open_files import file_metadata

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


def _deleted(version: TableVersion, fragment: Fragment) -> Callable[[], npt.NDArray[np.uint32] | None] | None:
    """How to get the deleted rows of a fragment, None where it has none. The index does not outlive its manifest."""

    def read() -> npt.NDArray[np.uint32] | None:
        vector = deletions.read(version, fragment)
        return None if vector is None else vector.offsets()

    return None if fragment.deletion_file is None else read


def row_id_sequence(version: TableVersion, fragment: Fragment) -> RowIdSequence:
    """The ids of all physical rows of a fragment. Raises CorruptFileError when there are none or too few."""
    if fragment.row_ids is LineagePlace.COLUMN:
        return _sequence_of_column(version, fragment)
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
    if fragment.row_ids is LineagePlace.COLUMN:
        return sequence.values()[offsets]
    key = ("row id values", fragment.row_ids)
    values: U64Array | None = version.cache.get(key)
    if values is None:
        values = sequence.values()
        version.cache.put(key, values, values.nbytes + 128)
    return values[offsets]


def row_versions_at(
    version: TableVersion, fragment: Fragment, offsets: npt.NDArray[np.int64], *, created: bool
) -> U64Array:
    """The versions in which the rows at physical offsets were made (`created`) or last changed."""
    sequence = fragment.created_at if created else fragment.last_updated_at
    if sequence is LineagePlace.COLUMN:
        return _hidden_column(version, fragment, CREATED_AT_FIELD if created else LAST_UPDATED_AT_FIELD)[offsets]
    data = _inline(version, fragment, sequence, "row versions")
    if data is None:
        return np.full(len(offsets), FIRST_VERSION, dtype=np.uint64)
    key = ("row versions", data)
    parsed = version.cache.get(key)
    if not isinstance(parsed, RowVersionSequence):
        parsed = RowVersionSequence.from_bytes(data, fragment.physical_rows, version.location.path)
        version.cache.put(key, parsed, 120 * len(parsed.runs) + len(data) + 128)
    return parsed.at(offsets)


def _sequence_of_column(version: TableVersion, fragment: Fragment) -> RowIdSequence:
    values = _hidden_column(version, fragment, ROW_ID_FIELD)
    key = ("row ids of a column", id(values))
    found = version.cache.get(key)
    # Kept together with the values, which keeps their id from being used again.
    if found is not None and found[0] is values:
        return found[1]  # type: ignore[no-any-return]  # put here under the same kind of key
    sequence = RowIdSequence.from_values(values)
    version.cache.put(key, (values, sequence), values.nbytes + 256)
    return sequence


def _hidden_column(version: TableVersion, fragment: Fragment, field_id: int) -> U64Array:
    """(physical rows,) what a data file says in a column that is none of the table.

    Raises CorruptFileError where no file of the fragment, or a file of another length, has it.
    """
    file = next((each for each in fragment.files if field_id in each.fields), None)
    if file is None:
        raise CorruptFileError(
            f"no data file of fragment {fragment.id} has the hidden column {field_id}", path=version.location.path
        )
    path = version.data_file_path(file)
    key = ("hidden column", version.store.uri(path), field_id)
    found: U64Array | None = version.cache.get(key)
    if found is not None:
        return found
    metadata = file_metadata(version, file)
    column = {field_id: file.column_indices[file.fields.index(field_id)]}
    wanted = Field("hidden", field_id, -1, "uint64", nullable=False)
    array = read_columns(version.store, path, metadata, (wanted,), column)[0]
    if array.null_count or len(array) != fragment.physical_rows:
        raise CorruptFileError(
            f"{version.store.uri(path)}: the hidden column {field_id} has {len(array)} values,"
            f" {array.null_count} of them null, for {fragment.physical_rows} rows",
            path=path,
            expected=fragment.physical_rows,
            found=len(array),
        )
    values: U64Array = np.asarray(array.to_numpy())
    version.cache.put(key, values, values.nbytes + 128)
    return values


def _inline(
    version: TableVersion, fragment: Fragment, sequence: bytes | LineagePlace | None, what: str
) -> bytes | None:
    if isinstance(sequence, LineagePlace):
        raise UnsupportedFeatureError(
            f"{version.uri}: fragment {fragment.id} keeps its {what} outside the manifest ({sequence.value})",
            feature=f"{what} outside the manifest",
        )
    return sequence
