"""Serialized forms of a deletion vector: Arrow and roaring. Every length is checked before it is used.

Arrow form: an Arrow IPC file with one record batch of one column `row_id: uint32 not null`.

    ARROW1, 2 zeros | schema message | batch: ffffffff, i32 length, flatbuffer, body | footer, i32 length, ARROW1

Arrow checks the structure of the file. The message of the record batch is parsed here, because Arrow would allocate the
size that a compressed buffer declares without comparing it with the number of values.

Roaring form: the portable serialization of a 32-bit roaring bitmap (github.com/RoaringBitmap/RoaringFormatSpec).

    cookie 12346: u32 cookie, u32 n              | n x (u16 key, u16 cardinality - 1) | n x u32 position | containers
    cookie 12347: u16 cookie, u16 n - 1, run bits | same                              | only if n >= 4   | containers
"""

from __future__ import annotations

import array
import struct
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyroaring

from lancetable.errors import CorruptFileError

Offsets = npt.NDArray[np.uint32]

_I32 = struct.Struct("<i")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")

_ARROW_MAGIC = b"ARROW1"
_ARROW_SCHEMA = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
_COMPRESSED_OFFSETS = 256
_CODECS = {0: "lz4", 1: "zstd"}

_COOKIE_NO_RUNS = 12346
_COOKIE_RUNS = 12347
_NO_POSITIONS_BELOW = 4
_MAX_ARRAY_CARDINALITY = 4096
_BITMAP_BYTES = 8192

Fail = Callable[[str, int], NoReturn]


def _failing(path: str, kind: str) -> Fail:
    def fail(what: str, offset: int) -> NoReturn:
        raise CorruptFileError(f"damaged {kind} deletion file: {what} (at byte {offset})", path=path, offset=offset)

    return fail


# --- Arrow form ------------------------------------------------------------------------------------------------------


def build_roaring(offsets: npt.NDArray[Any]) -> bytes:
    """Return the roaring form of 32-bit numbers in any order."""
    # BitMap copies a buffer in one step, but reads a NumPy array value by value.
    return bytes(pyroaring.BitMap(array.array("I", offsets.astype(np.uint32, copy=False).tobytes())).serialize())


def build_arrow(offsets: Offsets) -> bytes:
    """Return the Arrow form of `offsets`, compressed with zstd unless there are few."""
    compression = "zstd" if len(offsets) >= _COMPRESSED_OFFSETS else None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _ARROW_SCHEMA, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(pa.record_batch([pa.array(offsets, pa.uint32())], schema=_ARROW_SCHEMA))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def parse_arrow(data: memoryview, path: str, *, max_count: int) -> Offsets:
    """Return the values of an Arrow form in file order, neither sorted nor checked for repeats.

    Raises CorruptFileError for any other schema or structure, and before allocating more than `max_count` values.
    """
    fail = _failing(path, "Arrow")
    if bytes(data[:6]) != _ARROW_MAGIC:
        fail("no ARROW1 at its start", 0)
    buffer = pa.py_buffer(data)
    try:
        schema = pa.ipc.open_file(buffer).schema
    except (pa.ArrowException, OSError) as error:
        fail(str(error), 0)
    footer_bytes = _I32.unpack_from(data, len(data) - 10)[0]  # checked by Arrow
    footer_start = len(data) - 10 - footer_bytes
    if not schema.equals(_ARROW_SCHEMA, check_metadata=True):
        fail(f"expected the schema {_ARROW_SCHEMA}, found {schema}", footer_start)
    footer = _Table(data[footer_start : footer_start + footer_bytes], footer_start, fail)
    if footer.table(1).scalar(0, "<h", 0) != 0:
        fail("big-endian data", footer_start)
    if footer.vector(2, 24)[1] != 0:
        fail("dictionaries are not allowed", footer_start)
    blocks, num_blocks = footer.vector(3, 24)
    if num_blocks != 1:
        fail(f"expected 1 record batch, found {num_blocks}", blocks)
    start = _I64.unpack_from(data, blocks)[0]
    if not 8 <= start < footer_start:
        fail("the record batch is outside the file", blocks)
    try:
        message = pa.ipc.read_message(buffer[start:footer_start])
    except (pa.ArrowException, OSError, EOFError) as error:
        fail(str(error), start)
    if message.type != "record batch":
        fail("the message is not a record batch", start)
    batch = _Table(memoryview(message.metadata), start, fail).table(2)
    return _batch_values(batch, memoryview(message.body), start, max_count, fail)


def _batch_values(batch: _Table, body: memoryview, start_of_batch: int, max_count: int, fail: Fail) -> Offsets:
    count = batch.scalar(0, "<q", 0)
    if not 0 <= count <= max_count:
        fail(f"{count} values where at most {max_count} are possible", batch.position)
    nodes, num_nodes = batch.vector(1, 16)
    buffers, num_buffers = batch.vector(2, 16)
    if num_nodes != 1 or num_buffers != 2:
        fail("expected 1 node and 2 buffers", batch.position)
    node_length, null_count = struct.unpack_from("<qq", batch.view, nodes - batch.base)
    if node_length != count or null_count != 0:
        fail(f"the column has {node_length} values and {null_count} nulls, the batch {count} rows", nodes)
    start, length = struct.unpack_from("<qq", batch.view, buffers - batch.base + 16)
    if start < 0 or length < 0 or start + length > len(body):
        fail("the values are outside the batch", buffers)
    values = body[start : start + length]
    if batch.field(3):
        values = _decompressed(batch.table(3), values, 4 * count, start_of_batch, fail)
    if len(values) < 4 * count:
        fail(f"{len(values)} bytes of values for {count} rows", start_of_batch)
    return np.frombuffer(values, "<u4", count)


def _decompressed(compression: _Table, values: memoryview, expected: int, offset: int, fail: Fail) -> memoryview:
    codec = _CODECS.get(compression.scalar(0, "<b", 0))
    if codec is None or compression.scalar(1, "<b", 0) != 0:
        fail("unknown compression", compression.position)
    if len(values) == 0:
        return values
    if len(values) < 8:
        fail("a compressed buffer without its length", offset)
    length = _I64.unpack_from(values, 0)[0]
    if length == -1:
        return values[8:]
    # Writers may pad the values to a multiple of 64 bytes before compression.
    if not expected <= length <= expected + 64:
        fail(f"{length} bytes of values where {expected} are expected", offset)
    try:
        return memoryview(pa.Codec(codec).decompress(values[8:], decompressed_size=length))
    except (OSError, ValueError) as error:
        fail(f"{codec}: {error}", offset)


class _Table:
    """Table of a flatbuffer. `base` is the position of the flatbuffer in the file, `at` that of the table in it."""

    __slots__ = ("_num_slots", "_vtable", "at", "base", "fail", "position", "view")

    def __init__(self, view: memoryview, base: int, fail: Fail, at: int | None = None) -> None:
        """Find the fields of a table, by default the root table."""
        self.view, self.base, self.fail = view, base, fail
        self.at = self.unpack("<I", 0) if at is None else at
        self.position = base + self.at
        self._vtable = self.at - self.unpack("<i", self.at)
        vtable_bytes = self.unpack("<H", self._vtable)
        if vtable_bytes < 4 or self._vtable + vtable_bytes > len(view):
            fail("a metadata table does not fit", self.position)
        self._num_slots = (vtable_bytes - 4) // 2

    def unpack(self, form: str, at: int) -> int:
        """Return the number at a position in the flatbuffer."""
        if at < 0 or at + struct.calcsize(form) > len(self.view):
            self.fail("metadata points outside itself", self.base + at)
        return int(struct.unpack_from(form, self.view, at)[0])

    def field(self, slot: int) -> int:
        """Return the position of a field in the flatbuffer, 0 if it is absent."""
        offset = self.unpack("<H", self._vtable + 4 + 2 * slot) if slot < self._num_slots else 0
        return self.at + offset if offset else 0

    def scalar(self, slot: int, form: str, default: int) -> int:
        """Return the number in a field, or `default` if the field is absent."""
        at = self.field(slot)
        return self.unpack(form, at) if at else default

    def _target(self, slot: int) -> int:
        at = self.field(slot)
        if not at:
            self.fail("required metadata is missing", self.position)
        return at + self.unpack("<I", at)

    def table(self, slot: int) -> _Table:
        """Return the table that a field refers to."""
        return _Table(self.view, self.base, self.fail, self._target(slot))

    def vector(self, slot: int, item_bytes: int) -> tuple[int, int]:
        """Return the file position of the first item and the number of items, which is 0 if the field is absent."""
        if not self.field(slot):
            return self.position, 0
        at = self._target(slot)
        count = self.unpack("<I", at)
        if at + 4 + count * item_bytes > len(self.view):
            self.fail(f"a list of {count} entries does not fit", self.base + at)
        return self.base + at + 4, count


# --- roaring form ----------------------------------------------------------------------------------------------------


def parse_roaring(data: memoryview, path: str, *, max_count: int) -> Offsets:
    """Return the values of a portable 32-bit roaring bitmap, ascending and distinct.

    Raises CorruptFileError for descending keys, repeated values, wrong cardinalities and trailing bytes, and before
    allocating more than `max_count` values.
    """
    fail = _failing(path, "roaring")
    size = len(data)
    if size < 8 and not (size >= 5 and _U16.unpack_from(data, 0)[0] == _COOKIE_RUNS):
        fail(f"{size} bytes are too few", 0)
    cookie = _U32.unpack_from(data, 0)[0]
    if cookie == _COOKIE_NO_RUNS:
        num_containers, at = _U32.unpack_from(data, 4)[0], 8
        is_run = np.zeros(min(num_containers, 1 << 16), np.bool_)
    elif cookie & 0xFFFF == _COOKIE_RUNS:
        num_containers = (cookie >> 16) + 1
        at = 4 + (num_containers + 7) // 8
        if at > size:
            fail("the run markers do not fit", 4)
        is_run = np.unpackbits(np.frombuffer(data, np.uint8, at - 4, 4), count=num_containers, bitorder="little") != 0
    else:
        fail(f"unknown cookie {cookie:#x}", 0)
    if num_containers > 1 << 16 or at + 4 * num_containers > size:
        fail(f"{num_containers} containers do not fit", at)
    header = np.frombuffer(data, "<u2", 2 * num_containers, at).reshape(-1, 2)
    keys, cardinalities = header[:, 0].astype(np.int64), header[:, 1].astype(np.int64) + 1
    if np.any(keys[1:] <= keys[:-1]):
        fail("container keys are not ascending", at)
    total = int(cardinalities.sum())
    if total > max_count:
        fail(f"{total} values where at most {max_count} are possible", at)
    at += 4 * num_containers
    if cookie == _COOKIE_NO_RUNS or num_containers >= _NO_POSITIONS_BELOW:
        # Container positions follow from the cardinalities; containers are in order.
        at += 4 * num_containers
    offsets = np.empty(total, np.uint32)
    filled = 0
    for key, cardinality, run in zip(keys.tolist(), cardinalities.tolist(), is_run.tolist(), strict=True):
        values, at = _container(data, at, cardinality, run, fail)
        np.bitwise_or(values, np.uint32(key << 16), out=offsets[filled : filled + cardinality])
        filled += cardinality
    if at != size:
        fail(f"{size - at} trailing bytes", at)
    return offsets


def _container(
    data: memoryview, at: int, cardinality: int, run: bool, fail: Fail
) -> tuple[npt.NDArray[np.uint32], int]:
    """Return the low 16 bits of a container's values, ascending, and the position after the container."""
    size = len(data)
    if run:
        if at + 2 > size:
            fail("a run container does not fit", at)
        num_runs = _U16.unpack_from(data, at)[0]
        end = at + 2 + 4 * num_runs
        if end > size:
            fail(f"{num_runs} runs do not fit", at)
        runs = np.frombuffer(data, "<u2", 2 * num_runs, at + 2).reshape(-1, 2).astype(np.int64)
        starts, lengths = runs[:, 0], runs[:, 1] + 1
        ends = starts + lengths
        if int(lengths.sum()) != cardinality or np.any(starts[1:] < ends[:-1]) or (num_runs and ends[-1] > 1 << 16):
            fail("runs overlap or do not add up", at)
        first_index = np.cumsum(lengths) - lengths
        return (np.arange(cardinality) + np.repeat(starts - first_index, lengths)).astype(np.uint32), end
    if cardinality <= _MAX_ARRAY_CARDINALITY:
        end = at + 2 * cardinality
        if end > size:
            fail(f"an array of {cardinality} values does not fit", at)
        values = np.frombuffer(data, "<u2", cardinality, at)
        if np.any(values[1:] <= values[:-1]):
            fail("array values are not ascending", at)
        return values.astype(np.uint32), end
    end = at + _BITMAP_BYTES
    if end > size:
        fail("a bitmap does not fit", at)
    bits = np.unpackbits(np.frombuffer(data, np.uint8, _BITMAP_BYTES, at), bitorder="little")
    present = np.flatnonzero(bits.view(np.bool_))  # ten times as fast as on integers
    if len(present) != cardinality:
        fail(f"a bitmap of {len(present)} values where {cardinality} are expected", at)
    return present.astype(np.uint32), end
