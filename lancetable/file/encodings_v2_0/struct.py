"""SimpleStruct: the header column of a struct; it holds a row count and nothing else.

2.0 has no validity for structs: a struct is never null, its children may be. Source: protos/encodings_v2_0.proto,
SimpleStruct.
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
    arm: ClassVar[str] = "struct"

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, gap: int) -> ReadPlan[Decoded]:
        return refused(page.corrupt(f"the header of a struct where values of {data_type} should be"))

    @classmethod
    def from_proto(cls, message: pb.SimpleStruct) -> Self:
        return cls()

    def to_proto(self) -> pb.SimpleStruct:
        return pb.SimpleStruct()
