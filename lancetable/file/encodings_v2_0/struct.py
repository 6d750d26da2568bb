"""SimpleStruct: the header column of a struct, which stores only a row count.

2.0 does not store the validity of structs: a struct is never null, but its children may be. Source:
protos/encodings_v2_0.proto, SimpleStruct.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from lancetable.file.column_interfaces import Decoded
from lancetable.file.encodings_v2_0.base import ParsedMessage, refused
from lancetable.file.footer import Page
from lancetable.file.io_scheduler import ReadPlan, Slots


@dataclass(frozen=True, slots=True)
class SimpleStruct(ParsedMessage):
    """Header of a struct."""

    oneof_case: ClassVar[str] = "struct"

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, max_gap: int) -> ReadPlan[Decoded]:
        return refused(page.corrupt("struct header in a value column", str(data_type), "struct"))
