"""Where blobs lie, and their bytes.

    column of descriptions  --locate-->  Places: file, position, size of each row  --read-->  one buffer for each row

Ranges of one file are asked for together, so that the store merges them; for null and empty blobs nothing is read.
What a description says is not trusted: a blob file is named by a number, an external blob must lie below a base path
of the table, and a range must lie in its file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.blobs.descriptor import BlobKind, blob_file_path, replace_blobs
from lancetable.file.container import DEFAULT_LIMITS
from lancetable.format.paths import check_relative, join
from lancetable.format.schema import Field
from lancetable.store.base import ByteRange

if TYPE_CHECKING:
    from lancetable.store.base import ObjectStore
    from lancetable.table.version import TableVersion

__all__ = ["DataFilePlace", "Places", "blob_bytes", "join_places", "locate_blobs", "read_places"]

Ints = npt.NDArray[np.int64]

_MAX_POSITION: Final = 1 << 62  # sums of two still fit into 63 bits


@dataclass(frozen=True, slots=True)
class DataFilePlace:
    """The data file whose column describes blobs."""

    path: str
    size_bytes: int
    root: str = ""  # of the table that wrote it


@dataclass(frozen=True, slots=True)
class Places:
    """Where the blobs of some rows lie: bytes `positions[i]` on, `sizes[i]` of them, of `paths[files[i]]`.

    Row i is null where `valid[i]` is false; its other numbers then mean nothing.
    """

    paths: tuple[str, ...]
    files: Ints
    positions: Ints
    sizes: Ints
    valid: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.files)


def locate_blobs(version: TableVersion, data_file: DataFilePlace | None, descriptions: pa.Array) -> Places:
    """Where the described blobs lie. `data_file` is None where no file holds the column: then all are null.

    Raises CorruptFileError for a description that cannot be, UnsupportedFeatureError for an external blob outside of
    the table's base paths.
    """
    count = len(descriptions)
    if data_file is None:
        zeros = np.zeros(count, np.int64)
        return Places((), zeros, zeros, zeros, np.zeros(count, np.bool_))
    valid = _validity(descriptions)
    position, size = (_numbers(descriptions, name, valid, data_file) for name in ("position", "size"))
    if descriptions.type.num_fields == 2:
        # Some writers describe a null by a position without a size instead of a null.
        valid &= (size > 0) | (position == 0)
        inline = valid & (size > 0)
        _check_inline(data_file, position, size, inline)
        return Places((data_file.path,), np.zeros(count, np.int64), position, size, valid)
    kind = _numbers(descriptions, "kind", valid, data_file)
    blob_id = _numbers(descriptions, "blob_id", valid, data_file)
    inline = valid & (kind == BlobKind.INLINE)
    _check_inline(data_file, position, size, inline & (size > 0))
    files = np.zeros(count, np.int64)
    paths = [data_file.path]
    apart = np.flatnonzero(valid & ((kind == BlobKind.PACKED) | (kind == BlobKind.DEDICATED)))
    if len(apart):
        ids, numbers = np.unique(blob_id[apart], return_inverse=True)
        if ids[0] == 0:
            raise _corrupt(data_file, "a blob file without a number", "an id from 1 on", 0)
        paths += [blob_file_path(data_file.path, int(each)) for each in ids.tolist()]
        files[apart] = 1 + numbers
    external = np.flatnonzero(valid & (kind == BlobKind.EXTERNAL))
    if len(external):
        _locate_external(version, data_file, descriptions, external, blob_id, paths, files, size)
    managed = np.flatnonzero(valid & ((kind == BlobKind.MANAGED) | (kind == BlobKind.MANAGED_BASE)) & (size > 0))
    if len(managed):
        bases = np.where(kind[managed] == BlobKind.MANAGED, -1, blob_id[managed])
        uris = descriptions.field("blob_uri").take(pa.array(managed)).to_pylist()
        known: dict[tuple[int, str], int] = {}
        for row, base_id, uri in zip(managed.tolist(), bases.tolist(), uris):
            number = known.get((base_id, uri))
            if number is None:
                number = known[base_id, uri] = len(paths)
                own = base_id < 0
                paths.append(join(data_file.root, check_relative(uri)) if own else version.base_file_path(base_id, uri))
            files[row] = number
    if valid.any() and int(kind[valid].max()) > BlobKind.MANAGED_BASE:
        found = int(kind[valid].max())
        raise UnsupportedFeatureError(
            f"{data_file.path}: blobs of kind {found} are not supported",
            feature=f"blob kind {found}",
            path=data_file.path,
        )
    return Places(tuple(paths), files, position, size, valid)


def _locate_external(
    version: TableVersion,
    data_file: DataFilePlace,
    descriptions: pa.Array,
    rows: Ints,
    blob_id: Ints,
    paths: list[str],
    files: Ints,
    sizes: Ints,
) -> None:
    uris = descriptions.field("blob_uri").take(pa.array(rows)).to_pylist()
    known: dict[tuple[int, str], int] = {}
    for row, base_id, uri in zip(rows.tolist(), blob_id[rows].tolist(), uris):
        number = known.get((base_id, uri))
        if number is None:
            number = known[base_id, uri] = len(paths)
            paths.append(_external_path(version, data_file, base_id, uri))
        files[row] = number
        if sizes[row] == 0:
            # No range: the whole object.
            sizes[row] = version.store.size(paths[number])


def _external_path(version: TableVersion, data_file: DataFilePlace, base_id: int, uri: str) -> str:
    if base_id:
        return version.base_file_path(base_id, uri)
    for base in version.manifest.base_paths.values():
        root = base.path.rstrip("/") + "/"
        for prefix in (root, f"file://{root}"):
            if uri.startswith(prefix):
                return version.base_file_path(base.id, check_relative(uri[len(prefix) :]))
    raise UnsupportedFeatureError(
        f"{data_file.path}: the external blob {uri[:200]!r} lies below no base path of the table",
        feature="external blobs",
        path=data_file.path,
    )


def _validity(array: pa.Array) -> npt.NDArray[np.bool_]:
    if array.null_count == 0:
        return np.ones(len(array), np.bool_)
    return np.array(array.is_valid().to_numpy(zero_copy_only=False))


def _numbers(descriptions: pa.Array, name: str, valid: npt.NDArray[np.bool_], data_file: DataFilePlace) -> Ints:
    child = descriptions.field(name)
    if child.null_count:
        child = child.fill_null(0)
    numbers = np.asarray(child)
    if len(numbers) and int(numbers.max()) > _MAX_POSITION:
        # What a null struct holds does not matter.
        numbers = np.where(valid, numbers, 0)
        if int(numbers.max()) > _MAX_POSITION:
            raise _corrupt(data_file, f"a blob of impossible {name}", f"at most {_MAX_POSITION}", int(numbers.max()))
    return numbers.astype(np.int64)


def _check_inline(data_file: DataFilePlace, positions: Ints, sizes: Ints, rows: npt.NDArray[np.bool_]) -> None:
    if not rows.any():
        return
    end = int((positions[rows] + sizes[rows]).max())
    if end > data_file.size_bytes:
        raise _corrupt(data_file, "a blob ends beyond the file", f"at most {data_file.size_bytes}", end)


def _corrupt(data_file: DataFilePlace, what: str, expected: object, found: object) -> CorruptFileError:
    return CorruptFileError(
        f"{data_file.path}: {what} (expected {expected}, found {found})",
        path=data_file.path,
        expected=expected,
        found=found,
    )


def join_places(parts: Sequence[tuple[Ints, Places]], count: int) -> Places:
    """The places of `count` rows, from parts that each say which rows they are."""
    files, positions, sizes = (np.zeros(count, np.int64) for _ in range(3))
    valid = np.zeros(count, np.bool_)
    paths: list[str] = []
    for rows, part in parts:
        files[rows] = part.files + len(paths)
        positions[rows], sizes[rows], valid[rows] = part.positions, part.sizes, part.valid
        paths += part.paths
    return Places(tuple(paths), files, positions, sizes, valid)


def read_places(store: ObjectStore, places: Places) -> list[memoryview | None]:
    """The bytes of each row, None for a null; one call of the store for each file, whatever order the rows are in."""
    found: list[memoryview | None] = [memoryview(b"") if valid else None for valid in places.valid.tolist()]
    filled = np.flatnonzero(places.valid & (places.sizes > 0))
    for rows in _by_file(places.files, filled):
        starts, ends = places.positions[rows], places.positions[rows] + places.sizes[rows]
        ranges = [ByteRange(start, end) for start, end in zip(starts.tolist(), ends.tolist())]
        for row, data in zip(rows.tolist(), store.read_many(places.paths[int(places.files[rows[0]])], ranges)):
            found[row] = data
    return found


def _by_file(files: Ints, rows: Ints) -> Iterable[Ints]:
    """`rows` in groups of the same file, each in the order of positions given."""
    if not len(rows):
        return []
    order = rows[np.argsort(files[rows], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(files[order])) + 1)


# -------------------------------------------------------------------------------------------------- columns of bytes


def blob_bytes(version: TableVersion, data_files: Any, wanted: Field, array: Any) -> Any:
    """Descriptions at any depth of structs and lists as bytes: an array of `wanted`, in which blobs are large binaries.

    `array` holds what was read, descriptions in place of blobs of the second form; `data_files(field id)` gives the
    `DataFilePlace` of a field, or None.
    """
    if isinstance(array, pa.ChunkedArray):
        chunks = [blob_bytes(version, data_files, wanted, chunk) for chunk in array.chunks]
        return pa.chunked_array(chunks, type=wanted.data_type)

    def payloads(field: Field, descriptions: pa.Array) -> pa.Array:
        if field.logical_type != "large_binary":
            raise UnsupportedFeatureError(
                f"column {field.name!r}: the bytes of blobs inside of {field.logical_type!r} cannot be read; "
                "read their descriptions",
                feature="blobs in fixed-size lists and maps",
                column=field.name,
            )
        return _payloads(version, locate_blobs(version, data_files(field.id), descriptions))

    return replace_blobs(array, wanted, wanted.data_type, payloads)


def _payloads(version: TableVersion, places: Places) -> pa.Array:
    filled = places.valid & (places.sizes > 0)
    sizes = np.where(filled, places.sizes, 0)
    _check_shared(places, filled)
    buffers = [data for data in read_places(version.store, places) if data is not None and len(data)]
    offsets = np.zeros(len(places) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    validity = None
    if not places.valid.all():
        validity = pa.py_buffer(np.packbits(places.valid, bitorder="little"))
    data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
    return pa.Array.from_buffers(pa.large_binary(), len(places), [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def _check_shared(places: Places, filled: npt.NDArray[np.bool_]) -> None:
    """Refuse many rows that share bytes: a small file could then stand for any amount of memory."""
    total = sum(places.sizes[filled].tolist())
    if total <= DEFAULT_LIMITS.page_bytes:
        return
    keys = np.stack([places.files[filled], places.positions[filled]], axis=1)
    _, first = np.unique(keys, axis=0, return_index=True)
    if total - sum(places.sizes[filled][first].tolist()) > DEFAULT_LIMITS.page_bytes:
        raise CorruptFileError(
            f"{places.paths[0]}: blobs that share bytes need {total} bytes of memory",
            path=places.paths[0],
            expected=f"at most {DEFAULT_LIMITS.page_bytes}",
            found=total,
        )
