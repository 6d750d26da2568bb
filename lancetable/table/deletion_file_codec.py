"""Serialized forms of a deletion vector: Arrow and roaring. Every length is checked before it is used.

Arrow form: an Arrow IPC file with one record batch of one column `row_id: uint32 not null`.

    ARROW1, 2 zeros | schema message | batch: ffffffff, i32 length, flatbuffer, body | footer, i32 length, ARROW1

Arrow checks the structure of the file. The sizes that compressed buffers declare are checked first
(format/arrow_ipc.py), because Arrow would allocate them.

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
from lancetable.format.arrow_ipc import batch_message, decode_batch, file_of

Offsets = npt.NDArray[np.uint32]

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")

_ARROW_SCHEMA = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
_COMPRESSED_OFFSETS = 256
_PADDING_BYTES = 64  # that writers may add to the values before compression

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
    batch = pa.record_batch([pa.array(offsets, pa.uint32())], schema=_ARROW_SCHEMA)
    return file_of(batch, compressed=len(offsets) >= _COMPRESSED_OFFSETS)


def parse_arrow(data: memoryview, path: str, *, max_count: int) -> Offsets:
    """Return the values of an Arrow form in file order, neither sorted nor checked for repeats.

    Raises CorruptFileError for any other schema or structure, and before allocating more than `max_count` values.
    """
    fail = _failing(path, "Arrow")
    try:
        num_batches = pa.ipc.open_file(pa.py_buffer(data)).num_record_batches
        if num_batches != 1:
            fail(f"expected 1 record batch, got {num_batches}", 0)
        schema, message = batch_message(data)
        if not schema.equals(_ARROW_SCHEMA, check_metadata=True):
            fail(f"expected the schema {_ARROW_SCHEMA}, got {schema}", 0)
        column = decode_batch(message, schema, 4 * max_count + _PADDING_BYTES).column(0)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        if isinstance(error, CorruptFileError):
            raise
        fail(str(error), 0)
    if len(column) > max_count or column.null_count:
        fail(f"expected at most {max_count} values, got {len(column)}, {column.null_count} of them null", 0)
    values: Offsets = column.to_numpy()
    return values


# --- roaring form ----------------------------------------------------------------------------------------------------


def parse_roaring(data: memoryview, path: str, *, max_count: int) -> Offsets:
    """Return the values of a portable 32-bit roaring bitmap, ascending and distinct.

    Raises CorruptFileError for descending keys, repeated values, wrong cardinalities and trailing bytes, and before
    allocating more than `max_count` values.
    """
    fail = _failing(path, "roaring")
    size = len(data)
    if size < 8 and not (size >= 5 and _U16.unpack_from(data, 0)[0] == _COOKIE_RUNS):
        fail(f"file too short, got {size} bytes", 0)
    cookie = _U32.unpack_from(data, 0)[0]
    if cookie == _COOKIE_NO_RUNS:
        num_containers, at = _U32.unpack_from(data, 4)[0], 8
        is_run = np.zeros(min(num_containers, 1 << 16), np.bool_)
    elif cookie & 0xFFFF == _COOKIE_RUNS:
        num_containers = (cookie >> 16) + 1
        at = 4 + (num_containers + 7) // 8
        if at > size:
            fail("run flags exceed the file", 4)
        is_run = np.unpackbits(np.frombuffer(data, np.uint8, at - 4, 4), count=num_containers, bitorder="little") != 0
    else:
        fail(f"unknown cookie {cookie:#x}", 0)
    if num_containers > 1 << 16 or at + 4 * num_containers > size:
        fail(f"{num_containers} containers exceed the file", at)
    header = np.frombuffer(data, "<u2", 2 * num_containers, at).reshape(-1, 2)
    keys, cardinalities = header[:, 0].astype(np.int64), header[:, 1].astype(np.int64) + 1
    if np.any(keys[1:] <= keys[:-1]):
        fail("container keys are not ascending", at)
    total = int(cardinalities.sum())
    if total > max_count:
        fail(f"expected at most {max_count} values, got {total}", at)
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
            fail("a run container exceeds the file", at)
        num_runs = _U16.unpack_from(data, at)[0]
        end = at + 2 + 4 * num_runs
        if end > size:
            fail(f"{num_runs} runs exceed the file", at)
        runs = np.frombuffer(data, "<u2", 2 * num_runs, at + 2).reshape(-1, 2).astype(np.int64)
        starts, lengths = runs[:, 0], runs[:, 1] + 1
        ends = starts + lengths
        if int(lengths.sum()) != cardinality or np.any(starts[1:] < ends[:-1]) or (num_runs and ends[-1] > 1 << 16):
            fail("runs overlap or do not match the cardinality", at)
        first_index = np.cumsum(lengths) - lengths
        return (np.arange(cardinality) + np.repeat(starts - first_index, lengths)).astype(np.uint32), end
    if cardinality <= _MAX_ARRAY_CARDINALITY:
        end = at + 2 * cardinality
        if end > size:
            fail(f"an array of {cardinality} values exceeds the file", at)
        values = np.frombuffer(data, "<u2", cardinality, at)
        if np.any(values[1:] <= values[:-1]):
            fail("array values are not ascending", at)
        return values.astype(np.uint32), end
    end = at + _BITMAP_BYTES
    if end > size:
        fail("a bitmap exceeds the file", at)
    bits = np.unpackbits(np.frombuffer(data, np.uint8, _BITMAP_BYTES, at), bitorder="little")
    present = np.flatnonzero(bits.view(np.bool_))  # ten times as fast as on integers
    if len(present) != cardinality:
        fail(f"expected a bitmap of {cardinality} values, got {len(present)}", at)
    return present.astype(np.uint32), end
