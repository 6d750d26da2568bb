"""Groups of small columns of fixed-width values without nulls, whose arrays are slices of one fetched buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.column_interfaces import fixed_width_array
from lancetable.file.encodings_v2_0.base import parse_page
from lancetable.file.encodings_v2_0.binary import unwrap
from lancetable.file.encodings_v2_0.field_readers import column_kind
from lancetable.file.encodings_v2_0.flat import Flat, value_bytes
from lancetable.file.footer import BufferRef, FileMetadata
from lancetable.file.io_scheduler import ReadPlan, Rows, aligned_buffer, cluster, join
from lancetable.file.kernels.miniblock import gather_rows
from lancetable.file.uniform_columns import Group, uniform_columns
from lancetable.format.schema import Field


def group_fields(file: FileMetadata, fields: Sequence[Field], columns: Mapping[int, int]) -> list[FlatGroup]:
    """Return groups of fields that can be read together; the other fields are in none of them."""
    groups = []
    for group in uniform_columns(file, fields, columns, 1, lambda data_type: 8 * value_bytes(data_type)):
        data_type = group.members[0].field.data_type
        width, sizes = value_bytes(data_type), group.bounds[:, 1] - group.bounds[:, 0]
        try:
            encoding, kind = unwrap(parse_page(group.encoding)), column_kind(group.column_encoding)
        except (CorruptFileError, UnsupportedFeatureError):
            continue
        is_plain = isinstance(encoding, Flat) and encoding.is_plain(8 * width) and encoding.buffer == BufferRef(0)
        if kind == "values" and width and is_plain and (sizes >= file.num_rows * width).all():
            groups.append(FlatGroup(group, data_type, width))
    return groups


class FlatGroup:
    """Reader of fields that are stored as plain values of one type."""

    def __init__(self, group: Group, data_type: pa.DataType, width: int) -> None:
        self.positions = [member.position for member in group.members]
        self._starts, self._type, self._width = group.bounds[:, 0], data_type, width

    def read(self, rows: Rows, max_gap: int) -> ReadPlan[list[list[pa.Array]]]:
        """Plan reading rows; returns the arrays of each field, in the order of `positions`. See ColumnReader."""
        width, count = self._width, len(rows)
        if isinstance(rows, range):
            starts = self._starts + rows.start * width
            ranges, shift = cluster(starts, starts + count * width, max_gap)
            data = join((yield ranges))
            buffers = [data[start : start + count * width] for start in (starts - shift).tolist()]
            return [[fixed_width_array(self._type, count, aligned_buffer(buffer, width))] for buffer in buffers]
        starts = (self._starts[:, None] + rows * width).reshape(-1)
        ranges, shift = cluster(starts, starts + width, max_gap)
        values = gather_rows(np.frombuffer(join((yield ranges)), np.uint8), starts - shift, width)
        whole = fixed_width_array(self._type, len(starts), aligned_buffer(values.reshape(-1), width))
        return [[whole.slice(start, count)] for start in range(0, len(starts), count)]
