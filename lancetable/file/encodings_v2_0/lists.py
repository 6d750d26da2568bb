"""List: end offsets of the lists of a page. The items are rows of another column.

    [[1, 2], null, [3]]   N = 3 items   A = 4   ends 2, 2 + 4, 3

Ends are relative to the page: the items of a page start after those of the previous page. For a null list, the null
adjustment A is added to the end. Source: protos/encodings_v2_0.proto, List.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.column_interfaces import Decoded
from lancetable.file.encodings_v2_0.base import ArrayEncoding, BufferList, ParsedMessage, refused
from lancetable.file.encodings_v2_0.binary import fetch_ends, fetch_spans, offsets_of_range
from lancetable.file.encodings_v2_0.flat import Flat
from lancetable.file.encodings_v2_0.nullable import Nullable
from lancetable.file.footer import Page
from lancetable.file.io_scheduler import MAPPED, ReadPlan, Slots


@dataclass(frozen=True, slots=True)
class List(ParsedMessage):
    """Ends of lists. The reader of a list field calls `read_range` and `read_rows`, and reads the items itself."""

    oneof_case: ClassVar[str] = "list"

    offsets: ArrayEncoding
    null_offset_adjustment: int
    num_items: int

    def read_range(
        self, page: Page, dtype: np.dtype[Any], rows: range
    ) -> ReadPlan[tuple[npt.NDArray[Any], pa.Buffer | None, int]]:
        """Plan reading a range of lists.

        Returns Arrow offsets from 0 on, the validity bitmap or None, and the first item, counted within the page.
        Raises CorruptFileError if the ends are invalid.
        """
        self._check(page)
        stored = yield from fetch_ends(
            self.offsets, page, page.length, range(max(rows.start - 1, 0), rows.stop), MAPPED
        )
        return offsets_of_range(stored, rows, self.null_offset_adjustment, self.num_items, dtype)

    def read_rows(
        self, page: Page, rows: npt.NDArray[np.int64], max_gap: int
    ) -> ReadPlan[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]]:
        """Plan reading single lists.

        Returns the first item and the end of each list, counted within the page, and a validity mask or None. A null
        list has equal start and end. Raises CorruptFileError if the ends are invalid.
        """
        self._check(page)
        starts, ends, valid = yield from fetch_spans(
            self.offsets, page, page.length, rows, self.null_offset_adjustment, max_gap
        )
        if int(ends[-1]) > self.num_items:
            raise page.corrupt("a list exceeds the items of its page", f"at most {self.num_items}", int(ends[-1]))
        return starts, ends, valid

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, max_gap: int) -> ReadPlan[Decoded]:
        return refused(page.corrupt("list offsets in a value column", str(data_type), "list"))

    def _check(self, page: Page) -> None:
        if self.null_offset_adjustment <= self.num_items:
            raise page.corrupt(
                "the null adjustment of a list is too small", f"more than {self.num_items}", self.null_offset_adjustment
            )


def encode_list(
    ends: Sequence[npt.NDArray[np.int64]],
    nulls: Sequence[npt.NDArray[np.uint8] | None],
    num_items: int,
    buffers: BufferList,
) -> List:
    """Encode the lists of a page.

    Parameters
    ----------
    ends
        Ends of the lists, counted in items of the page. A null list may have items.
    nulls
        For each array of ends, 1 where the list is null, or None.
    num_items
        Number of items of the page.
    buffers
        Receives the buffer of the ends.
    """
    adjustment = num_items + 1
    pieces = [
        stored if mask is None else stored + np.multiply(mask, adjustment, dtype=np.int64)
        for stored, mask in zip(ends, nulls)
    ]
    return List(Nullable(Flat(64, buffers.add(pieces))), adjustment, num_items)
