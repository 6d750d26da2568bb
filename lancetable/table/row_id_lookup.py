"""Stable row ids and row versions of a fragment's rows, and the index from row ids to rows.

    fragment 0   ids 0 1 2 3   row 2 deleted         index   0 -> 0:0   1 -> 0:1   3 -> 0:3
    fragment 1   ids 2 4                                     2 -> 1:0   4 -> 1:1        (row 2 was updated, so it moved)

Without stable row ids, an id is an address and needs no lookup. Ids and versions are stored in the manifest or, if
another library moved them, in hidden columns of a data file. Source: protos/rowids.proto, DataFragment.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.reader import read_columns
from lancetable.format.fragment import CREATED_AT_FIELD, LAST_UPDATED_AT_FIELD, ROW_ID_FIELD, SequenceLocation
from lancetable.format.schema import Field
from lancetable.rowids import RowIdIndex, RowIdSequence, RowVersionSequence
from lancetable.rowids.row_versions import FIRST_VERSION
from lancetable.table.data_file_metadata import file_metadata
from lancetable.table.row_counts import deleted_offsets, physical_rows

if TYPE_CHECKING:
    from lancetable.format.fragment import Fragment
    from lancetable.table.version import TableVersion

U64Array = npt.NDArray[np.uint64]


def row_id_index(version: TableVersion) -> RowIdIndex:
    """Return the index of all live rows of a version with stable row ids, cached.

    Raises CorruptFileError if a fragment has no row ids, or if two live rows have the same id.
    """
    parts = (
        (
            fragment.id,
            row_id_sequence(version, fragment),
            partial(deleted_offsets, version, fragment) if fragment.deletion_file is not None else None,
        )
        for fragment in version.manifest.fragments
    )
    return version.cache.get_or_derive(
        "row id index",
        version.manifest,
        lambda: RowIdIndex.build(parts, version.location.path),
        lambda index: index.nbytes + 256,
    )


def row_id_sequence(version: TableVersion, fragment: Fragment) -> RowIdSequence:
    """Return the ids of all physical rows of a fragment. Raises CorruptFileError if ids are missing."""
    if fragment.row_ids is SequenceLocation.COLUMN:
        values = _hidden_column(version, fragment, ROW_ID_FIELD)
        return version.cache.get_or_derive(
            "row ids of a column", values, lambda: RowIdSequence.from_values(values), lambda _: values.nbytes + 256
        )
    data = _inline_bytes(version, fragment, fragment.row_ids, "row ids")
    if data is None:
        what = f"fragment {fragment.id} has no row ids in a table with stable row ids"
        raise CorruptFileError(what, path=version.location.path)
    num_rows = fragment.physical_rows or physical_rows(version, fragment)
    return version.cache.get_or_compute(
        ("row ids", data),
        lambda: RowIdSequence.from_bytes(data, num_rows, version.location.path),
        lambda _: 2 * len(data) + 256,
    )


def row_ids_at(version: TableVersion, fragment: Fragment, offsets: npt.NDArray[np.int64]) -> U64Array:
    """Return the stable row ids at physical offsets of a fragment."""
    sequence = row_id_sequence(version, fragment)
    if sequence.as_range is not None:
        return np.asarray(offsets.astype(np.uint64) + np.uint64(sequence.as_range.start))
    values = version.cache.get_or_derive("row id values", sequence, sequence.values, lambda ids: ids.nbytes + 128)
    return values[offsets]


def row_versions_at(
    version: TableVersion, fragment: Fragment, offsets: npt.NDArray[np.int64], *, created: bool
) -> U64Array:
    """Return the versions in which rows at physical offsets were created, or last updated if `created` is False."""
    versions = fragment.created_at if created else fragment.last_updated_at
    if versions is SequenceLocation.COLUMN:
        return _hidden_column(version, fragment, CREATED_AT_FIELD if created else LAST_UPDATED_AT_FIELD)[offsets]
    data = _inline_bytes(version, fragment, versions, "row versions")
    if data is None:
        return np.full(len(offsets), FIRST_VERSION, dtype=np.uint64)
    num_rows = fragment.physical_rows or physical_rows(version, fragment)
    sequence = version.cache.get_or_compute(
        ("row versions", data),
        lambda: RowVersionSequence.from_bytes(data, num_rows, version.location.path),
        lambda sequence: 120 * len(sequence.runs) + len(data) + 128,
    )
    return sequence.at(offsets)


def _hidden_column(version: TableVersion, fragment: Fragment, field_id: int) -> U64Array:
    """Return a column of a data file that is not a column of the table, one value for each physical row.

    Raises CorruptFileError if no file of the fragment has the column, or if its length is wrong.
    """
    file = next((file for file in fragment.files if field_id in file.fields), None)
    if file is None:
        what = f"no data file of fragment {fragment.id} has the hidden column {field_id}"
        raise CorruptFileError(what, path=version.location.path)
    path = version.data_file_path(file)

    def read() -> U64Array:
        metadata = file_metadata(version, file)
        column = {field_id: file.column_indices[file.fields.index(field_id)]}
        field = Field("hidden", field_id, -1, "uint64", nullable=False)
        array = read_columns(version.store, path, metadata, (field,), column)[0]
        if array.null_count or len(array) != fragment.physical_rows:
            what = f"wrong number of values in the hidden column {field_id}, of which {array.null_count} are null"
            raise CorruptFileError(what, fragment.physical_rows, len(array), path=path)
        return np.asarray(array.to_numpy())

    key = ("hidden column", version.store.uri(path), field_id)
    return version.cache.get_or_compute(key, read, lambda values: values.nbytes + 128)


def _inline_bytes(
    version: TableVersion, fragment: Fragment, sequence: bytes | SequenceLocation | None, content: str
) -> bytes | None:
    """Return the bytes of a sequence in the manifest. Raises UnsupportedFeatureError if it is stored elsewhere."""
    if isinstance(sequence, SequenceLocation):
        raise UnsupportedFeatureError(
            f"{version.uri}: fragment {fragment.id} stores its {content} outside the manifest ({sequence.value})",
            feature=f"{content} outside the manifest",
        )
    return sequence
