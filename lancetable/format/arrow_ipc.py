"""Writer and reader of Arrow IPC files with a single record batch. The files that are read may be untrusted.

    ARROW1, zeros | schema message | record batch message | ... | footer

The file is read as a stream, so that the positions in the footer, which are untrusted, are not used. Arrow verifies the
flatbuffers of the messages, but allocates the sizes that compressed buffers declare. These sizes are therefore checked
first.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

_MAGIC: Final = b"ARROW1"
_MESSAGE_START: Final = b"\xff\xff\xff\xff"
_MAX_PADDING: Final = 64  # after the magic; it differs between writers


def file_of(batch: pa.RecordBatch, *, compressed: bool) -> bytes:
    """Return the bytes of a file with this batch. Its buffers are compressed with zstd if `compressed` is true."""
    sink = pa.BufferOutputStream()
    # Synchronizing threads would take longer than the work.
    options = pa.ipc.IpcWriteOptions(compression="zstd" if compressed else None, use_threads=False)
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def batch_message(data: memoryview) -> tuple[pa.Schema, pa.Message]:
    """Return the schema, and the message of the first record batch, which is not decoded.

    Raises ValueError or pa.ArrowException if the file is invalid.
    """
    head = bytes(data[: _MAX_PADDING + len(_MESSAGE_START)])
    start = head.find(_MESSAGE_START)
    if not head.startswith(_MAGIC) or start < 0:
        raise ValueError("not an Arrow IPC file")
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(data[start:]))
    schema = pa.ipc.read_schema(_next_message(reader, "schema"))
    return schema, _next_message(reader, "record batch")


def decode_batch(message: pa.Message, schema: pa.Schema, limit: int) -> pa.RecordBatch:
    """Decode a record batch whose buffers declare at most `limit` decompressed bytes in total.

    Raises ValueError, struct.error, pa.ArrowException or OSError if the batch is larger or invalid.
    """
    _check_declared_bytes(message, limit)
    batch = pa.ipc.read_record_batch(message, schema)
    # Validate buffer sizes only, because the widest bounds of some temporal types fail a full validation.
    batch.validate()
    return batch


def _next_message(reader: pa.ipc.MessageReader, kind: str) -> pa.Message:
    """Read the next message and check its kind, because pyarrow interprets any message as the expected kind."""
    try:
        message = reader.read_next_message()
    except StopIteration:
        raise ValueError(f"the {kind} message is missing") from None
    if message.type != kind:
        raise ValueError(f"expected a {kind} message, got {message.type}")
    return message


def _check_declared_bytes(message: pa.Message, limit: int) -> None:
    """Raise ValueError if the declared decompressed size exceeds `limit`.

    pyarrow has already verified the flatbuffer of the message.
    """
    metadata, body = memoryview(message.metadata), memoryview(message.body)
    (root,) = struct.unpack_from("<I", metadata, 0)
    batch = _flatbuffer_reference(metadata, root, 2)
    if batch is None or _flatbuffer_slot(metadata, batch, 3) is None:
        return
    buffers = _flatbuffer_reference(metadata, batch, 2)
    if buffers is None:
        return
    (count,) = struct.unpack_from("<I", metadata, buffers)
    declared = 0
    for offset, length in struct.iter_unpack("<qq", metadata[buffers + 4 : buffers + 4 + 16 * count]):
        if length >= 8:
            declared += max(0, struct.unpack_from("<q", body, offset)[0])
    if declared > limit:
        raise ValueError(f"the declared decompressed size of {declared} bytes exceeds the limit of {limit} bytes")


def _flatbuffer_slot(data: memoryview, table: int, slot: int) -> int | None:
    """Return the position of a field of a table, or None if the field is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, vtable)
    if 4 + 2 * slot >= size:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * slot)
    return table + offset if offset else None


def _flatbuffer_reference(data: memoryview, table: int, slot: int) -> int | None:
    """Return the position of the table or vector that a field refers to, or None if the field is absent."""
    position = _flatbuffer_slot(data, table, slot)
    return None if position is None else position + int(struct.unpack_from("<I", data, position)[0])
