"""Blobs of selected rows. They are located by their descriptions, then read whole, by range, or through a handle.

    ids | addresses | indices  --find_blobs-->  LocatedBlobs: row addresses, locations  --read_blobs---->  bytes
                                                                                        --blob_handles-->  BlobHandle

Locating blobs reads only the descriptions. Blobs in one file are read by one call of the store, which coalesces
adjacent ranges. Null and empty blobs are not read.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import InvalidInputError, OutOfRangeError, UnsupportedFeatureError
from lancetable.file.blobs.reader import BlobLocations, join_locations, locate_blobs, read_located
from lancetable.format.field_paths import parse_path
from lancetable.format.schema import Field
from lancetable.ops.read.projection import field_at, nested_value
from lancetable.ops.read.take import Indices, take_addresses, take_offsets, take_row_ids
from lancetable.store.base import ByteRange, ObjectStore
from lancetable.table.fragment_reader import ROW_ADDRESS, blob_data_file
from lancetable.table.row_counts import row_count_index
from lancetable.table.version import TableVersion

Selector = Literal["ids", "addresses", "indices"]

_MAX_LENGTH: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class LocatedBlobs:
    """Locations of the blobs of selected rows, in the requested order with repeats."""

    addresses: npt.NDArray[np.uint64]
    locations: BlobLocations


@dataclass(frozen=True, slots=True)
class BlobHandle:
    """A blob that is not null: `size` bytes of an object, starting at `position`."""

    store: ObjectStore
    path: str
    position: int
    size: int

    def read(self, offset: int, length: int) -> memoryview:
        """Read `length` bytes from `offset`. Raises OutOfRangeError for a range outside the blob."""
        start, end = self._range(offset, length)
        return self.store.read(self.path, start, end) if start < end else memoryview(b"")

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read several ranges (offset, length) in one call of the store; results are in the order of the ranges.

        Raises OutOfRangeError for a range outside the blob.
        """
        byte_ranges = [self._range(offset, length) for offset, length in ranges]
        not_empty = [part for part in byte_ranges if part.start < part.end]
        chunks = iter(self.store.read_many(self.path, not_empty) if not_empty else ())
        return [next(chunks) if part.start < part.end else memoryview(b"") for part in byte_ranges]

    def _range(self, offset: int, length: int) -> ByteRange:
        check_range(offset, length, self.size)
        return ByteRange(self.position + offset, self.position + offset + length)


def check_range(offset: int, length: int, size: int) -> None:
    """Raise OutOfRangeError unless `length` bytes from `offset` are within `size`."""
    if offset < 0 or length < 0:
        raise OutOfRangeError(f"a blob range must not be negative: offset {offset}, length {length}")
    if offset + length > size:
        raise OutOfRangeError(
            f"Blob range end {offset + length} exceeds blob size {size}", expected=size, found=offset + length
        )


def _missing_rows(
    version: TableVersion, selector: Selector, values: Indices, num_live: int
) -> InvalidInputError | UnsupportedFeatureError:
    """Return the error for missing rows. As in pylance, its class differs for deleted and unknown rows."""
    counts = f"{len(values)} {selector} given, {num_live} of them have a live row"
    by_address = selector == "addresses" or not version.manifest.has_stable_row_ids
    known = set(version.manifest.fragments.ids().tolist()) if by_address else set()
    if by_address and all(int(value) >> 32 in known for value in values):
        return UnsupportedFeatureError(
            f"A take operation that includes row addresses must not target deleted rows: {counts}",
            feature="blobs of deleted rows",
        )
    return InvalidInputError(counts)


def find_blobs(version: TableVersion, column: str, selector: Selector, values: Indices) -> LocatedBlobs:
    """Locate the blobs of rows selected by row id, row address or position in scan order.

    Parameters
    ----------
    version
        The version to read.
    column
        Dotted path of a blob column.
    selector
        "ids", "addresses" or "indices".
    values
        The row ids, addresses or positions.

    Raises
    ------
    ColumnNotFoundError
        If the column does not exist.
    InvalidInputError
        If the column is not a blob column or a row does not exist.
    UnsupportedFeatureError
        If a row is deleted.
    OutOfRangeError
        If a position is past the end.
    TypeError
        If `values` are not integers.
    """
    field = blob_field_of(version, column)
    take = {"ids": take_row_ids, "addresses": take_addresses, "indices": take_offsets}[selector]
    rows = take(version, values, [column, ROW_ADDRESS])
    if rows.num_rows != len(values):
        raise _missing_rows(version, selector, values, rows.num_rows)
    top, address = rows.columns
    names = parse_path(column) if version.schema.field(column) not in version.schema.fields else [column]
    steps = []
    data_type = top.type
    for name in names[1:]:
        steps.append(data_type.get_field_index(name))
        data_type = data_type.field(steps[-1]).type
    addresses = address.to_numpy()
    return LocatedBlobs(addresses, locate_in_fragments(version, field, nested_value(top, steps), addresses))


def blob_field_of(version: TableVersion, column: str) -> Field:
    """Return the blob field at a path.

    Raises TypeError for a path that is not a string, ColumnNotFoundError, and InvalidInputError for a column that is
    not a blob or is inside a list.
    """
    if not isinstance(column, str):
        raise TypeError(f"blob_column must be a string, not {type(column).__name__}")
    schema = version.schema
    field = field_at(schema, column)
    if not field.is_blob and not field.is_blob_v2:
        raise InvalidInputError(f"the column {column!r} is not a blob column", column=column)
    parent = field.parent_id
    while parent >= 0:
        above = schema.by_id[parent]
        if not above.is_struct:
            raise InvalidInputError(
                f"blob column {column!r} is nested in {above.name!r}, which is not a struct", column=column
            )
        parent = above.parent_id
    return field


def locate_in_fragments(
    version: TableVersion,
    field: Field,
    descriptions: pa.Array | pa.ChunkedArray,
    addresses: npt.NDArray[np.uint64],
) -> BlobLocations:
    """Locate the blobs of the descriptions; `addresses` are their row addresses."""
    if isinstance(descriptions, pa.ChunkedArray):
        descriptions = pa.concat_arrays(descriptions.chunks or [pa.nulls(0, descriptions.type)])
    fragments = row_count_index(version).fragments
    parts = []
    ids = (addresses >> np.uint64(32)).astype(np.int64)
    for fragment_id in np.unique(ids).tolist():
        position = fragments.position(fragment_id)
        assert position is not None
        data_file = blob_data_file(version, fragments[position], field.id)
        rows = np.flatnonzero(ids == fragment_id)
        here = descriptions if len(rows) == len(ids) else descriptions.take(pa.array(rows))
        parts.append((rows, locate_blobs(version, data_file, here)))
    return parts[0][1] if len(parts) == 1 else join_locations(parts, len(ids))


def blob_handles(version: TableVersion, locations: BlobLocations) -> list[BlobHandle | None]:
    """Return a handle for each row, None for a null, without reading."""
    store, paths = version.store, locations.paths
    return [
        BlobHandle(store, paths[number], position, size) if valid else None
        for number, position, size, valid in zip(
            locations.files.tolist(), locations.positions.tolist(), locations.sizes.tolist(), locations.valid.tolist()
        )
    ]


def read_blobs(version: TableVersion, blobs: LocatedBlobs) -> list[tuple[int, bytes | None]]:
    """Read the blob of each row as (row address, bytes), None for a null. Rows with the same blob share its bytes."""
    locations = blobs.locations
    payloads: dict[tuple[int, int, int], bytes] = {}
    result: list[tuple[int, bytes | None]] = []
    keys = zip(locations.files.tolist(), locations.positions.tolist(), locations.sizes.tolist())
    for address, key, data in zip(blobs.addresses.tolist(), keys, read_located(version.store, locations)):
        if data is not None and key not in payloads:
            payloads[key] = bytes(data)
        result.append((address, None if data is None else payloads[key]))
    return result


def read_blob_ranges(
    version: TableVersion, column: str, requests: Sequence[tuple[int, int, int]], selector: Selector
) -> list[tuple[int, int, bytes | None]]:
    """Read a range per request (row, offset, length) as (request number, row address, bytes), None for a null blob.

    Raises the errors of `find_blobs` and `checked_requests`, and OutOfRangeError for a range outside its blob.
    """
    rows, offsets, lengths = checked_requests(requests)
    blobs = find_blobs(version, column, selector, rows)
    locations = blobs.locations
    starts, sizes = locations.positions.copy(), np.zeros(len(locations), np.int64)
    for number, (offset, length, size, valid) in enumerate(
        zip(offsets, lengths, locations.sizes.tolist(), locations.valid.tolist())
    ):
        if valid:
            check_range(offset, length, size)
            starts[number] += offset
            sizes[number] = length
    ranges = BlobLocations(locations.paths, locations.files, starts, sizes, locations.valid)
    return [
        (number, address, None if data is None else bytes(data))
        for number, (address, data) in enumerate(zip(blobs.addresses.tolist(), read_located(version.store, ranges)))
    ]


def checked_selector(selector: str) -> Selector:
    """Return `selector` if it is valid. Raises InvalidInputError otherwise."""
    if selector in get_args(Selector):
        return cast(Selector, selector)
    raise InvalidInputError(f"selector must be one of 'ids', 'addresses', or 'indices', got {selector!r}")


def checked_requests(requests: Any) -> tuple[list[int], list[int], list[int]]:
    """Return the rows, offsets and lengths of the requests after checking them.

    Raises TypeError for a request that is not a tuple of integers, InvalidInputError for a wrong length, and
    OutOfRangeError for negative numbers and ranges beyond 64 bits.
    """
    rows, offsets, lengths = [], [], []
    for number, request in enumerate(requests):
        if not isinstance(request, tuple):
            raise TypeError(f"a blob range request is a tuple (row, offset, length), not {type(request).__name__}")
        if len(request) != 3:
            raise InvalidInputError(f"expected tuple of length 3, but got tuple of length {len(request)}")
        row, offset, length = map(operator.index, request)
        if row < 0 or offset < 0 or length < 0:
            raise OutOfRangeError(f"blob range request {number} has a negative number: {request}")
        if offset + length > _MAX_LENGTH:
            raise OutOfRangeError(f"blob range request {number}: {offset} + {length} exceeds 64 bits")
        rows.append(row)
        offsets.append(offset)
        lengths.append(length)
    return rows, offsets, lengths
