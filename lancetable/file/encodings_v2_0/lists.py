"""List: the ends of the lists of a page; the items are rows of another column.

    [[1, 2], null, [3]]   N = 3 items   A = 4   ends 2, 2 + 4, 3

Ends begin at 0 in every page: the items of a page start where those of the page before it stop. A null carries the
adjustment A on top of its end. Source: protos/encodings_v2_0.proto, List.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.column import Decoded
from lancetable.file.container import Page
from lancetable.file.encodings_v2_0.base import ArrayEncoding, BufferList, from_message, refused, to_message
from lancetable.file.encodings_v2_0.binary import fetch_ends, fetch_spans
from lancetable.file.encodings_v2_0.flat import Flat
from lancetable.file.encodings_v2_0.nullable import Nullable
from lancetable.file.fetch import MAPPED, ReadPlan, Slots
from lancetable.file.kernels import varbin
from lancetable.proto import encodings_v2_0_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["List", "encode_list"]


@dataclass(frozen=True, slots=True)
class List:
    """`read_range` and `read_rows` serve the reader of list fields, which knows the column of the items."""

    arm: ClassVar[str] = "list"

    offsets: ArrayEncoding
    null_adjustment: int
    num_items: int

    def read_range(
        self, page: Page, dtype: np.dtype[Any], rows: range
    ) -> ReadPlan[tuple[npt.NDArray[Any], pa.Buffer | None, int]]:
        """Offsets from 0 on, validity, and the item of the page at which the first list begins."""
        self._check(page)
        stored = yield from fetch_ends(
            self.offsets, page, page.length, range(max(rows.start - 1, 0), rows.stop), MAPPED
        )
        base = 0
        if rows.start:
            base = int(stored[0])
            base -= self.null_adjustment if base >= self.null_adjustment else 0
            stored = stored[1:]
        offsets, valid = varbin.offsets_from_ends(stored, self.null_adjustment, self.num_items, dtype, base)
        return offsets, None if valid is None else varbin.pack_validity(valid), base

    def read_rows(
        self, page: Page, rows: npt.NDArray[np.int64], gap: int
    ) -> ReadPlan[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]]:
        """First item and end of each list, in items of the page, and validity; a null list has no extent."""
        self._check(page)
        starts, ends, valid = yield from fetch_spans(self.offsets, page, page.length, rows, self.null_adjustment, gap)
        if int(ends[-1]) > self.num_items:
            raise page.corrupt("a list ends beyond the items of its page", f"at most {self.num_items}", int(ends[-1]))
        return starts, ends, valid

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, gap: int) -> ReadPlan[Decoded]:
        return refused(page.corrupt(f"the offsets of lists where values of {data_type} should be"))

    def _check(self, page: Page) -> None:
        if self.null_adjustment <= self.num_items:
            raise page.corrupt(
                "null adjustment of a list too small", f"more than {self.num_items}", self.null_adjustment
            )

    @classmethod
    def from_proto(cls, message: pb.List) -> Self:
        return cls(from_message(message.offsets), message.null_offset_adjustment, message.num_items)

    def to_proto(self) -> pb.List:
        return pb.List(
            offsets=to_message(self.offsets),
            null_offset_adjustment=self.null_adjustment,
            num_items=self.num_items,
        )


def encode_list(
    ends: Sequence[npt.NDArray[np.int64]],
    nulls: Sequence[npt.NDArray[np.uint8] | None],
    num_items: int,
    buffers: BufferList,
) -> List:
    """The lists of a page from where they end, counted in its items; spans under nulls stay."""
    adjustment = num_items + 1
    pieces = [
        stored if mask is None else stored + np.multiply(mask, adjustment, dtype=np.int64)
        for stored, mask in zip(ends, nulls)
    ]
    return List(Nullable(Flat(64, buffers.add(pieces))), adjustment, num_items)
