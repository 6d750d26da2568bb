"""Constant: defined in the messages of 2.0, but not supported by any reader of 2.0 pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from lancetable.file.column import Decoded
from lancetable.file.container import Page
from lancetable.file.encodings_v2_0.base import ParsedMessage, refused
from lancetable.file.fetch import ReadPlan, Slots

__all__ = ["Constant"]


@dataclass(frozen=True, slots=True)
class Constant(ParsedMessage):
    """Constant encoding; reading it raises UnsupportedFeatureError."""

    oneof_case: ClassVar[str] = "constant"

    value: bytes

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, gap: int) -> ReadPlan[Decoded]:
        return refused(page.unsupported("encoding 'constant' in a 2.0 file"))
