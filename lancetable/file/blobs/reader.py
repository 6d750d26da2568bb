"""Location and reading of blobs.

    column of descriptions  --locate_blobs-->  BlobLocations: file, position, size of each row  --read_located-->  bytes

Ranges of one file are requested together, so that the store can coalesce them. Null and empty blobs are not read.
Descriptions are not trusted: the name of a blob file is derived from a number, an external blob must be below a base
path of the table, and a range must be within its file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.blobs.descriptions import BlobKind, blob_file_path, replace_blobs
from lancetable.file.limits import limits_of
from lancetable.format.paths import check_relative, join
from lancetable.format.schema import Field
from lancetable.store.base import ByteRange

if TYPE_CHECKING:
    from lancetable.store.base import ObjectStore
    from lancetable.table.version import TableVersion

Ints = npt.NDArray[np.int64]

_MAX_POSITION: Final = 1 << 62  # sums of two still fit into 63 bits


@dataclass(frozen=True, slots=True)
class BlobDataFile:
    """The data file whose column describes blobs. `root` is the root of the table that wrote it."""

    path: str
    size_bytes: int
    root: str = ""


@dataclass(frozen=True, slots=True)
class BlobLocations:
    """Locations of the blobs of some rows.

    The blob of row i consists of the bytes `positions[i]` to `positions[i] + sizes[i]` of `paths[files[i]]`. If
    `valid[i]` is False, row i is null, and its numbers have no meaning.
    """

    paths: tuple[str, ...]
    files: Ints
    positions: Ints
    sizes: Ints
    valid: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.files)


def locate_blobs(version: TableVersion, data_file: BlobDataFile | None, descriptions: pa.Array) -> BlobLocations:
    """Locate the described blobs. If `data_file` is None, no file contains the column, and all rows are null.

    Raises CorruptFileError for an invalid description, and UnsupportedFeatureError for an external blob outside of the
    base paths of the table and for an unknown kind.
    """
    count = len(descriptions)
    files = np.zeros(count, np.int64)
    if data_file is None:
        return BlobLocations((), files, files, files, np.zeros(count, np.bool_))
    valid = _validity(descriptions)
    position, size = (_numbers(descriptions, name, valid, data_file) for name in ("position", "size"))
    if descriptions.type.num_fields == 2:
        # Some writers describe a null by a position without a size instead of a null.
        valid &= (size > 0) | (position == 0)
        _check_inline(data_file, position, size, valid & (size > 0))
        return BlobLocations((data_file.path,), files, position, size, valid)
    kind = _numbers(descriptions, "kind", valid, data_file)
    if valid.any() and int(kind[valid].max()) > max(BlobKind):
        unknown = int(kind[valid].max())
        raise UnsupportedFeatureError(
            f"{data_file.path}: blobs of kind {unknown} are not supported",
            feature=f"blob kind {unknown}",
            path=data_file.path,
        )
    blob_id = _numbers(descriptions, "blob_id", valid, data_file)
    is_filled = valid & (size > 0)
    _check_inline(data_file, position, size, is_filled & (kind == BlobKind.INLINE))
    paths = [data_file.path]
    in_blob_file = np.flatnonzero(valid & ((kind == BlobKind.PACKED) | (kind == BlobKind.DEDICATED)))
    if len(in_blob_file):
        ids, indices = np.unique(blob_id[in_blob_file], return_inverse=True)
        if ids[0] == 0:
            raise CorruptFileError("invalid id of a blob file", "at least 1", 0, path=data_file.path)
        paths += [blob_file_path(data_file.path, int(number)) for number in ids.tolist()]
        files[in_blob_file] = 1 + indices
    # Without a size, an external blob is the whole object.
    external = valid & (kind == BlobKind.EXTERNAL)
    with_uri = np.flatnonzero(external | (is_filled & (kind >= BlobKind.MANAGED)))
    if len(with_uri):
        uris = descriptions.field("blob_uri").take(pa.array(with_uri)).to_pylist()
        known: dict[tuple[int, int, str], int] = {}
        for row, *key in zip(with_uri.tolist(), kind[with_uri].tolist(), blob_id[with_uri].tolist(), uris):
            number = known.setdefault((key[0], key[1], key[2]), len(paths))
            if number == len(paths):
                paths.append(_object_path(version, data_file, *key))
            files[row] = number
        for row in np.flatnonzero(external & (size == 0)).tolist():
            size[row] = version.store.size(paths[files[row]])
    return BlobLocations(tuple(paths), files, position, size, valid)


def _object_path(version: TableVersion, data_file: BlobDataFile, kind: int, base_id: int, uri: str) -> str:
    """Return the path of the object of a managed or external blob."""
    if kind == BlobKind.MANAGED:
        return join(data_file.root, check_relative(uri, data_file.path))
    if kind == BlobKind.MANAGED_BASE or base_id:
        return version.base_file_path(base_id, uri, data_file.path)
    for base in version.manifest.base_paths.values():
        root = base.path.rstrip("/") + "/"
        for prefix in (root, f"file://{root}"):
            if uri.startswith(prefix):
                return version.base_file_path(base.id, uri[len(prefix) :], data_file.path)
    raise UnsupportedFeatureError(
        f"{data_file.path}: the external blob {uri[:200]!r} is not below a base path of the table; add its directory "
        "as a base path",
        feature="external blobs",
        path=data_file.path,
    )


def _validity(array: pa.Array) -> npt.NDArray[np.bool_]:
    if array.null_count == 0:
        return np.ones(len(array), np.bool_)
    return np.array(array.is_valid().to_numpy(zero_copy_only=False))


def _numbers(descriptions: pa.Array, name: str, valid: npt.NDArray[np.bool_], data_file: BlobDataFile) -> Ints:
    child = descriptions.field(name)
    if child.null_count:
        child = child.fill_null(0)
    numbers = np.asarray(child)
    if len(numbers) and int(numbers.max()) > _MAX_POSITION:
        # The values below a null struct have no meaning.
        numbers = np.where(valid, numbers, 0)
        if int(numbers.max()) > _MAX_POSITION:
            what, found = f"invalid {name} of a blob", int(numbers.max())
            raise CorruptFileError(what, f"at most {_MAX_POSITION}", found, path=data_file.path)
    return numbers.astype(np.int64)


def _check_inline(data_file: BlobDataFile, positions: Ints, sizes: Ints, rows: npt.NDArray[np.bool_]) -> None:
    if not rows.any():
        return
    end = int((positions[rows] + sizes[rows]).max())
    if end > data_file.size_bytes:
        what = "a blob exceeds the file"
        raise CorruptFileError(what, f"at most {data_file.size_bytes}", end, path=data_file.path)


def join_locations(parts: Sequence[tuple[Ints, BlobLocations]], count: int) -> BlobLocations:
    """Combine the locations of `count` rows from parts, each given with the indices of its rows."""
    files, positions, sizes = (np.zeros(count, np.int64) for _ in range(3))
    valid = np.zeros(count, np.bool_)
    paths: list[str] = []
    for rows, part in parts:
        files[rows] = part.files + len(paths)
        positions[rows], sizes[rows], valid[rows] = part.positions, part.sizes, part.valid
        paths += part.paths
    return BlobLocations(tuple(paths), files, positions, sizes, valid)


def read_located(store: ObjectStore, locations: BlobLocations) -> list[memoryview | None]:
    """Return the bytes of each row, None for a null. The store is called once for each file."""
    blobs: list[memoryview | None] = [memoryview(b"") if valid else None for valid in locations.valid.tolist()]
    rows = np.flatnonzero(locations.valid & (locations.sizes > 0))
    rows = rows[np.argsort(locations.files[rows], kind="stable")]
    for rows_of_file in np.split(rows, np.flatnonzero(np.diff(locations.files[rows])) + 1) if len(rows) else ():
        starts = locations.positions[rows_of_file]
        ends = starts + locations.sizes[rows_of_file]
        ranges = [ByteRange(start, end) for start, end in zip(starts.tolist(), ends.tolist())]
        path = locations.paths[int(locations.files[rows_of_file[0]])]
        for row, data in zip(rows_of_file.tolist(), store.read_many(path, ranges)):
            blobs[row] = data
    return blobs


# --- columns of bytes -------------------------------------------------------------------------------------------------


def blob_bytes(
    version: TableVersion, data_files: Callable[[int], BlobDataFile | None], column: Field, array: Any
) -> Any:
    """Replace descriptions at any depth of structs and lists by bytes.

    Parameters
    ----------
    version
        The version to read.
    data_files
        Function from a field id to the data file that describes the blobs of the field.
    column
        The field of the result, in which blobs are large binaries.
    array
        The values that were read, with descriptions in place of version 2 blobs.
    """
    if isinstance(array, pa.ChunkedArray):
        chunks = [blob_bytes(version, data_files, column, chunk) for chunk in array.chunks]
        return pa.chunked_array(chunks, type=column.data_type)

    def payloads(field: Field, descriptions: pa.Array) -> pa.Array:
        if field.logical_type != "large_binary":
            raise UnsupportedFeatureError(
                f"column {field.name!r}: the bytes of blobs inside {field.logical_type!r} cannot be read; "
                "read their descriptions",
                feature="blobs in fixed-size lists and maps",
                column=field.name,
            )
        return _payloads(version.store, locate_blobs(version, data_files(field.id), descriptions))

    return replace_blobs(array, column, column.data_type, payloads)


def _payloads(store: ObjectStore, locations: BlobLocations) -> pa.Array:
    is_filled = locations.valid & (locations.sizes > 0)
    _check_shared(store, locations, is_filled)
    buffers = [data for data in read_located(store, locations) if data is not None and len(data)]
    offsets = np.zeros(len(locations) + 1, np.int64)
    np.cumsum(np.where(is_filled, locations.sizes, 0), out=offsets[1:])
    validity = None if locations.valid.all() else pa.py_buffer(np.packbits(locations.valid, bitorder="little"))
    data = pa.py_buffer(buffers[0] if len(buffers) == 1 else b"".join(buffers))
    return pa.Array.from_buffers(pa.large_binary(), len(locations), [validity, pa.py_buffer(offsets), data])


def _check_shared(store: ObjectStore, locations: BlobLocations, is_filled: npt.NDArray[np.bool_]) -> None:
    """Raise CorruptFileError if rows share too many bytes, with which a small file could exhaust the memory."""
    total, limits = sum(locations.sizes[is_filled].tolist()), limits_of(store)
    if total <= limits.page_bytes:
        return
    keys = np.stack([locations.files[is_filled], locations.positions[is_filled]], axis=1)
    _, first = np.unique(keys, axis=0, return_index=True)
    shared = total - sum(locations.sizes[is_filled][first].tolist())
    limits.check("page_bytes", shared, locations.paths[0], "bytes that blobs share")
