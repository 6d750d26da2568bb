"""Blob: large values stored outside of the pages of their column. The pages store position and size of each value.

    [b'abc', b'', null]     page: PackedStruct of two u64      position  size
                                                                     p     3     file[p : p + 3]
                                                                     0     0     empty
                                                                     1     0     null

Positions count from the start of the file. The column encoding is `blob`. The reader returns the bytes, or, if the
requested field is a struct<position, size>, the descriptions, with which a caller can open single values later. Source:
protos/encodings_v2_0.proto, Blob.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.encodings_v2_0.base import PagedReader, encoding_of
from lancetable.file.encodings_v2_0.binary import select_spans
from lancetable.file.encodings_v2_0.packed_struct import PackedStruct
from lancetable.file.footer import ColumnPages
from lancetable.file.io_scheduler import ReadPlan, Rows, cluster, join
from lancetable.file.kernels import varbin
from lancetable.format.schema import Field
from lancetable.store.base import ByteRange

if TYPE_CHECKING:
    from lancetable.file.column_interfaces import BlobSink
    from lancetable.file.footer import Page

DESCRIPTION_V1: Final = pa.struct([("position", pa.uint64()), ("size", pa.uint64())])
"""Type of the values in the pages of a blob column. Size 0 means an empty blob at position 0, otherwise a null."""

_NULL_POSITION: Final = 1
_ALIGNMENT: Final = 64
# Payloads of a smaller mean size are concatenated in memory and written together.
_SMALL_BYTES: Final = 4096


class BlobReader(PagedReader):
    """Reader of a blob column that returns bytes or descriptions."""

    def __init__(self, pages: ColumnPages, field: Field) -> None:
        super().__init__(pages, field.data_type)
        self.decodes = not field.is_struct
        expected = pa.large_binary() if self.decodes else DESCRIPTION_V1
        if self._type != expected:
            raise pages.file.corrupt(f"wrong type of field {field.name!r} for a blob column", expected, self._type)

    def _read_page(self, number: int, rows: Rows, max_gap: int) -> ReadPlan[pa.Array]:
        page = self._pages.page(number)
        encoding = encoding_of(page)
        if not isinstance(encoding, PackedStruct):
            raise page.corrupt("wrong encoding of blob descriptions", "packed_struct", encoding.oneof_case)
        decoded = yield from encoding.read(page, DESCRIPTION_V1, page.length, rows, max_gap)
        descriptions = decoded.to_array(DESCRIPTION_V1)
        if not self.decodes:
            return descriptions
        positions = np.asarray(descriptions.field(0))
        sizes = np.asarray(descriptions.field(1))
        offsets, data = yield from fetch_payloads(page, self._pages.file.size_bytes, positions, sizes, max_gap)
        valid = (sizes > 0) | (positions == 0)
        validity = None if valid.all() else varbin.pack_validity(valid)
        return pa.Array.from_buffers(self._type, len(sizes), [validity, pa.py_buffer(offsets), data])


def fetch_payloads(
    page: Page, file_bytes: int, positions: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64], max_gap: int
) -> ReadPlan[tuple[npt.NDArray[np.int64], Any]]:
    """Plan reading the payloads. Returns Arrow offsets and the concatenated bytes."""
    nonempty = sizes > 0
    starts, lengths = positions[nonempty], sizes[nonempty]
    if len(starts) == 0:
        return np.zeros(len(sizes) + 1, np.int64), pa.py_buffer(b"")
    # Check each number before the sum, which may overflow.
    if int(lengths.max()) > file_bytes or int(starts.max()) > file_bytes or int((starts + lengths).max()) > file_bytes:
        raise page.corrupt("a blob exceeds the file", f"at most {file_bytes}")
    page.check_memory(sum(lengths.tolist()))
    offsets = varbin.offsets_of_sizes(sizes.astype(np.int64))
    first, end = starts.astype(np.int64), (starts + lengths).astype(np.int64)
    if (first[1:] >= end[:-1]).all():
        ranges, shift = cluster(first, end, max_gap)
        buffers = yield ranges
        _, data = select_spans(first - shift, end - shift, join(buffers), np.dtype(np.int64))
        return offsets, data
    # The payloads are not in row order, or rows share a payload; another writer produced the file.
    buffers = yield [ByteRange(a, b) for a, b in zip(first.tolist(), end.tolist())]
    return offsets, pa.py_buffer(b"".join(buffers))


# ------------------------------------------------------------------------------------------------------------- encode


def describe_blobs(array: pa.Array, sink: BlobSink) -> pa.StructArray:
    """Write the payloads of a large binary array to `sink` and return their descriptions."""
    count = len(array)
    sizes = np.zeros(count, np.int64)
    valid = np.ones(count, np.bool_) if array.null_count == 0 else np.asarray(array.is_valid())
    if count:
        offsets = np.frombuffer(array.buffers()[1], np.int64, count + 1, array.offset * 8)
        sizes = np.where(valid, np.diff(offsets), 0)
    positions = np.where(valid, 0, _NULL_POSITION)
    nonempty = np.flatnonzero(sizes)
    if len(nonempty):
        data = array.buffers()[2]
        if sizes.sum() < _SMALL_BYTES * len(nonempty):
            positions[nonempty] = _write_together(array.take(pa.array(nonempty)), sizes[nonempty], sink)
        else:
            spans = zip(offsets[nonempty].tolist(), sizes[nonempty].tolist())
            positions[nonempty] = [sink(data.slice(start, size)) for start, size in spans]
    columns = [pa.array(positions.view(np.uint64)), pa.array(sizes.view(np.uint64))]
    return pa.StructArray.from_arrays(columns, fields=list(DESCRIPTION_V1))


def _write_together(array: pa.Array, sizes: npt.NDArray[np.int64], sink: BlobSink) -> npt.NDArray[np.int64]:
    """Write small payloads, each padded to an aligned position, with one call of `sink`. Returns their positions."""
    padded = -(-sizes // _ALIGNMENT) * _ALIGNMENT
    paddings = pa.array([b"\x48" * length for length in range(_ALIGNMENT)], pa.large_binary())
    order = np.empty(2 * len(sizes), np.int64)
    order[0::2] = np.arange(len(sizes))
    order[1::2] = len(sizes) + padded - sizes
    together = pa.concat_arrays([array, paddings]).take(pa.array(order))
    # The sink pads after the last payload.
    total = int(padded[:-1].sum() + sizes[-1])
    base = sink(together.buffers()[2].slice(0, total))
    return base + np.cumsum(padded) - padded
