"""SimpleStruct: the header column of a struct, which stores only a row count.

2.0 does not store the validity of structs: a struct is never null, but its children may be. Source:
protos/encodings_v2_0.proto, SimpleStruct.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from lancetable.file.column import Decoded
from lancetable.file.container import Page
from lancetable.file.encodings_v2_0.base import refused
from lancetable.file.fetch import ReadPlan, Slots
from lancetable.proto import encodings_v2_0_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SimpleStruct"]


@dataclass(frozen=True, slots=True)
class SimpleStruct:
    """Header of a struct."""

    arm: ClassVar[str] = "struct"

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, gap: int) -> ReadPlan[Decoded]:
        return refused(page.corrupt("the header of a struct in a column of values", str(data_type), "struct"))

    @classmethod
    def from_proto(cls, message: pb.SimpleStruct) -> Self:
        return cls()

    def to_proto(self) -> pb.SimpleStruct:
        return pb.SimpleStruct()
