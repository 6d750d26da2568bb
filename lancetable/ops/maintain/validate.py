"""Checks that the files of a version exist and match its manifest."""

from __future__ import annotations

from lancetable.errors import CorruptFileError
from lancetable.format.fragment import DataFile, Fragment
from lancetable.table import deletions
from lancetable.table.open_files import file_metadata
from lancetable.table.version import TableVersion

__all__ = ["validate", "validate_fragment"]


def validate(version: TableVersion) -> None:
    """Check every fragment, and that fragment ids are unique.

    Reads footers and deletion files, but no pages. Raises CorruptFileError, NotFoundError or UnsupportedFeatureError
    for the first problem.
    """
    version.manifest.fragments.ids()
    for fragment in version.manifest.fragments:
        validate_fragment(version, fragment)


def validate_fragment(version: TableVersion, fragment: Fragment) -> None:
    """Check one fragment like `validate`: sizes and row counts of its data files, and its deletion file.

    Raises the errors of `validate`.
    """
    rows = fragment.physical_rows
    for file in fragment.files:
        found = validate_data_file(version, file)
        if rows is None:
            rows = found
        if found != rows:
            raise CorruptFileError(
                f"fragment {fragment.id}: {file.path} has {found} rows, expected {rows}",
                path=version.data_file_path(file),
                expected=rows,
                found=found,
            )
    if fragment.deletion_file is not None:
        validate_deletions(version, fragment, rows or 0)


def validate_data_file(version: TableVersion, file: DataFile) -> int:
    """Check the size of a data file and that its columns exist; return its number of rows.

    Raises the errors of `validate`.
    """
    path = version.data_file_path(file)
    size_bytes = version.store.size(path)
    if file.size_bytes is not None and size_bytes != file.size_bytes:
        raise CorruptFileError(
            f"{path}: {size_bytes} bytes, the manifest has {file.size_bytes}",
            path=path,
            expected=file.size_bytes,
            found=size_bytes,
        )
    metadata = file_metadata(version, file)
    highest = max(file.column_indices, default=-1)
    if highest >= metadata.num_columns:
        raise CorruptFileError(
            f"{path}: the manifest names column {highest} of {metadata.num_columns}",
            path=path,
            expected=metadata.num_columns,
            found=highest,
        )
    return metadata.num_rows


def validate_deletions(version: TableVersion, fragment: Fragment, num_rows: int) -> None:
    """Check that a deletion file has the recorded number of rows, none of them past the end.

    Raises the errors of `validate`.
    """
    file = fragment.deletion_file
    assert file is not None
    path = version.deletion_file_path(fragment.id, file)
    vector = deletions.read(version, fragment)
    offsets = deletions.EMPTY.offsets() if vector is None else vector.offsets()
    stated = file.num_deleted_rows
    if stated is not None and len(offsets) != stated:
        raise CorruptFileError(
            f"{path}: {len(offsets)} deleted rows, the manifest has {stated}",
            path=path,
            expected=stated,
            found=len(offsets),
        )
    if len(offsets) and int(offsets[-1]) >= num_rows:
        raise CorruptFileError(
            f"{path}: row {int(offsets[-1])} of {num_rows} is deleted",
            path=path,
            expected=num_rows,
            found=int(offsets[-1]),
        )
