"""Builder of 2.0 data files from single pages, for files that no writer creates: old encodings, rare wrappers, damage.

build_file(schema, 3, [Column([Page(3, FLAT32, [values])])])  ->  bytes of a file
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.any_pb2 import Any as AnyMessage

from lancetable.file.footer import build_tail
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.proto import encodings_v2_0_pb2 as pb
from lancetable.proto import file2_pb2, file_pb2
from lancetable.store.range_coalescing import ByteRange

ARRAY_URL: Final = "/lance.encodings.ArrayEncoding"
COLUMN_URL: Final = "/lance.encodings.ColumnEncoding"
VALUES: Final = pb.ColumnEncoding(values={})


@dataclass(frozen=True)
class Page:
    """One page.

    With `indirect`, the encoding message is stored in the file's first region instead of the column metadata. A pair of
    a position and a size is written as the reference to it, without checks.
    """

    length: int
    encoding: pb.ArrayEncoding
    buffers: Sequence[bytes] = ()
    indirect: bool | tuple[int, int] = False
    type_url: str = ARRAY_URL


@dataclass(frozen=True)
class Column:
    """One column: its pages, its own encoding, and buffers that its pages share."""

    pages: Sequence[Page]
    encoding: pb.ColumnEncoding = field(default_factory=lambda: VALUES)
    buffers: Sequence[bytes] = ()
    indirect: bool = False


def build_file(
    schema: Schema,
    num_rows: int,
    columns: Sequence[Column],
    *,
    alignment: int = 64,
    first_position: int = 0,
    global_buffers: Sequence[bytes] = (),
    version: FileVersion = FileVersion.V2_0,
) -> bytes:
    """Return the bytes of a file.

    Parameters
    ----------
    schema
        Schema in the file's descriptor.
    num_rows
        Number of rows in the descriptor.
    columns
        Columns with their pages.
    alignment
        Alignment of buffers in bytes, counted from `first_position`.
    first_position
        Position of the first buffer.
    global_buffers
        Contents of the global buffers after the schema.
    version
        Version in the footer.
    """
    out = bytearray(first_position)

    def put(data: bytes) -> tuple[int, int]:
        out.extend(b"\x48" * (-(len(out) - first_position) % alignment))
        position = len(out)
        out.extend(data)
        return position, len(data)

    def put_buffers(owner: file2_pb2.ColumnMetadata | file2_pb2.ColumnMetadata.Page, buffers: Sequence[bytes]) -> None:
        for position, size in map(put, buffers):
            owner.buffer_offsets.append(position)
            owner.buffer_sizes.append(size)

    def put_encoding(
        message: file2_pb2.Encoding,
        url: str,
        encoding: pb.ArrayEncoding | pb.ColumnEncoding,
        indirect: bool | tuple[int, int],
    ) -> None:
        data = AnyMessage(type_url=url, value=encoding.SerializeToString()).SerializeToString()
        if indirect:
            position, size = indirect if isinstance(indirect, tuple) else put(data)
            message.indirect.buffer_location, message.indirect.buffer_length = position, size
        else:
            message.direct.encoding = data

    metadata = []
    for column in columns:
        message = file2_pb2.ColumnMetadata()
        put_encoding(message.encoding, COLUMN_URL, column.encoding, column.indirect)
        put_buffers(message, column.buffers)
        for page in column.pages:
            entry = message.pages.add(length=page.length)
            put_buffers(entry, page.buffers)
            put_encoding(entry.encoding, page.type_url, page.encoding, page.indirect)
        metadata.append(message.SerializeToString())
    placed = [put(buffer) for buffer in global_buffers]
    out.extend(b"\x48" * (-len(out) % 64))
    descriptor = file_pb2.FileDescriptor(length=num_rows)
    descriptor.schema.fields.extend(schema.to_protos())
    descriptor.schema.metadata.update(schema.metadata)
    ranges = [ByteRange(position, position + size) for position, size in placed]
    out.extend(build_tail(len(out), version, descriptor.SerializeToString(), metadata, ranges))
    return bytes(out)
