"""Constant: defined in the messages of 2.0, but not supported by any reader of 2.0 pages."""

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

__all__ = ["Constant"]


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant encoding; reading it raises UnsupportedFeatureError."""

    arm: ClassVar[str] = "constant"

    value: bytes

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, gap: int) -> ReadPlan[Decoded]:
        return refused(page.unsupported("encoding 'constant' in a 2.0 file"))

    @classmethod
    def from_proto(cls, message: pb.Constant) -> Self:
        return cls(message.value)

    def to_proto(self) -> pb.Constant:
        return pb.Constant(value=self.value)
