"""The Arrow form of a deletion vector: an Arrow IPC file with one record batch of one column `row_id: uint32 not null`.

    ARROW1, 2 zeros | schema message | batch: ffffffff, i32 length, flatbuffer, body | footer, i32 length, ARROW1

Arrow checks the structure of the file. The sizes that compressed buffers declare are checked first
(format/arrow_ipc.py), because Arrow would allocate them.
"""

from __future__ import annotations

import struct
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.format.arrow_ipc import batch_message, decode_batch, file_of

Offsets = npt.NDArray[np.uint32]

_ARROW_SCHEMA = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
_COMPRESSED_OFFSETS = 256
_PADDING_BYTES = 64  # that writers may add to the values before compression


def build_arrow(offsets: Offsets) -> bytes:
    """Return the Arrow form of `offsets`, compressed with zstd unless there are few."""
    batch = pa.record_batch([pa.array(offsets, pa.uint32())], schema=_ARROW_SCHEMA)
    return file_of(batch, compressed=len(offsets) >= _COMPRESSED_OFFSETS)


def parse_arrow(data: memoryview, path: str, *, max_count: int) -> Offsets:
    """Return the values of an Arrow form in file order, neither sorted nor checked for repeats.

    Raises CorruptFileError for any other schema or structure, and before allocating more than `max_count` values.
    """

    def fail(what: str) -> NoReturn:
        raise CorruptFileError(f"damaged Arrow deletion file: {what}", path=path)

    try:
        num_batches = pa.ipc.open_file(pa.py_buffer(data)).num_record_batches
        if num_batches != 1:
            fail(f"expected 1 record batch, got {num_batches}")
        schema, message = batch_message(data)
        if not schema.equals(_ARROW_SCHEMA, check_metadata=True):
            fail(f"expected the schema {_ARROW_SCHEMA}, got {schema}")
        # Some writers store a validity bitmap although no value is null.
        max_bytes = 4 * max_count + -(-max_count // 8) + _PADDING_BYTES
        column = decode_batch(message, schema, max_bytes).column(0)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        if isinstance(error, CorruptFileError):
            raise
        fail(str(error))
    if len(column) > max_count or column.null_count:
        fail(f"expected at most {max_count} values, got {len(column)}, {column.null_count} of them null")
    values: Offsets = column.to_numpy()
    return values
