"""Checks that the files of a version exist and match its manifest."""

from __future__ import annotations

from lancetable.errors import CorruptFileError
from lancetable.format.fragment import DataFile, Fragment
from lancetable.table import deletion_vectors
from lancetable.table.data_file_metadata import file_metadata
from lancetable.table.version import TableVersion


def validate(version: TableVersion) -> None:
    """Check every fragment, and that fragment ids are unique.

    Reads footers and deletion files, but no pages. Raises CorruptFileError, NotFoundError or UnsupportedFeatureError
    for the first problem.
    """
    version.manifest.fragments.ids()
    for fragment in version.manifest.fragments:
        validate_fragment(version, fragment)


def validate_fragment(version: TableVersion, fragment: Fragment) -> None:
    """Check one fragment: the sizes and row counts of its data files, and its deletion file.

    Raises the errors of `validate`.
    """
    rows = fragment.physical_rows
    for file in fragment.files:
        num_rows = validate_data_file(version, file)
        rows = num_rows if rows is None else rows
        if num_rows != rows:
            what = f"wrong number of rows for fragment {fragment.id}"
            raise CorruptFileError(what, rows, num_rows, path=version.data_file_path(file))
    if fragment.deletion_file is not None:
        validate_deletions(version, fragment, rows or 0)


def validate_data_file(version: TableVersion, file: DataFile) -> int:
    """Check the size of a data file and that its columns exist; return its number of rows.

    Raises the errors of `validate`.
    """
    path = version.data_file_path(file)
    size_bytes = version.store.size(path)
    if file.size_bytes is not None and size_bytes != file.size_bytes:
        raise CorruptFileError("wrong size in bytes", file.size_bytes, size_bytes, path=path)
    metadata = file_metadata(version, file)
    highest = max(file.column_indices, default=-1)
    if highest >= metadata.num_columns:
        what = "the manifest refers to a missing column"
        raise CorruptFileError(what, f"below {metadata.num_columns}", highest, path=path)
    return metadata.num_rows


def validate_deletions(version: TableVersion, fragment: Fragment, num_rows: int) -> None:
    """Check that a deletion file contains the recorded number of rows, and no row past the end.

    Raises the errors of `validate`.
    """
    assert fragment.deletion_file is not None
    vector = deletion_vectors.read(version, fragment)
    last = int(vector.offsets()[-1]) if vector else -1
    if last >= num_rows:
        path = version.deletion_file_path(fragment.id, fragment.deletion_file)
        raise CorruptFileError("row offset past the end of the fragment", f"below {num_rows}", last, path=path)
