"""FixedSizeBinary: strings or binaries of equal length, stored without offsets. It occurs only in old files.

    ['ab', 'cd', null]   byte_width 2   bytes 'abcd??', in a Nullable

Source: protos/encodings_v2_0.proto, FixedSizeBinary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from lancetable.file.column_interfaces import Decoded
from lancetable.file.encodings_v2_0.base import ArrayEncoding, ParsedMessage
from lancetable.file.encodings_v2_0.binary import check_strings, checked_offset_dtype, unwrap
from lancetable.file.encodings_v2_0.flat import Flat
from lancetable.file.footer import Page
from lancetable.file.io_scheduler import ReadPlan, Slots, count_slots


@dataclass(frozen=True, slots=True)
class FixedSizeBinary(ParsedMessage):
    """Strings or binaries of `byte_width` bytes each."""

    oneof_case: ClassVar[str] = "fixed_size_binary"

    bytes: ArrayEncoding
    byte_width: int

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, max_gap: int) -> ReadPlan[Decoded]:
        dtype = checked_offset_dtype(page, data_type)
        content = unwrap(self.bytes)
        if not isinstance(content, Flat):
            raise page.unsupported(f"bytes in encoding {content.oneof_case}")
        count = count_slots(slots)
        if self.byte_width == 0 or count * self.byte_width > np.iinfo(dtype).max:
            raise page.corrupt(f"wrong value length for {data_type}", found=self.byte_width)
        page.check_memory(count * dtype.itemsize)
        # Writers store different widths in the inner encoding, so use the width of the outer one.
        inner = Flat(8 * self.byte_width, content.buffer, content.compression)
        data = yield from inner.fetch(page, length, slots, max_gap)
        offsets = np.arange(count + 1, dtype=dtype) * dtype.type(self.byte_width)
        decoded = Decoded(count, (pa.py_buffer(offsets), pa.py_buffer(data)))
        check_strings(decoded, data_type)
        return decoded
