"""Gather of rows from many pages in one step instead of page by page.

    page      0     0     3     7          base[page] + row * width  ->  position in the file  ->  one gather
    row     120   908  5012  9001

This applies to plain pages: uncompressed numbers and bits, with or without nulls, fixed-size lists of numbers, and
strings. The pages are in a memory-mapped file or in small files in memory (file_groups.py): unused bytes of a range
cost nothing, so one range from the first to the last position covers all rows. Other pages and pages that look corrupt
are read page by page, which also raises the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.column_interfaces import Decoded, fixed_width_array
from lancetable.file.encodings_v2_0.base import ArrayEncoding, parse_page
from lancetable.file.encodings_v2_0.binary import Binary, check_strings, select_spans, spans_of, unwrap
from lancetable.file.encodings_v2_0.fixed_size_list import FixedSizeList
from lancetable.file.encodings_v2_0.flat import Flat, value_bytes, value_width
from lancetable.file.encodings_v2_0.nullable import Nullable
from lancetable.file.footer import Page, SinglePage
from lancetable.file.io_scheduler import ReadPlan
from lancetable.file.kernels import varbin
from lancetable.store.base import ByteRange

_UNKNOWN: Final = -1
_NOT_PLAIN: Final = -2
_NO_NULLS: Final = -1
_MAX_WORD: Final = 64  # common writers align buffers to 64 bytes
_MAX_ADJUSTMENT: Final = (1 << 63) - 1


class Pages(Protocol):
    """Pages of one column, in order. `starts` are the first row of each page and the number of rows."""

    @property
    def starts(self) -> npt.NDArray[np.int64]: ...

    def page(self, number: int) -> Page | SinglePage: ...


class Scattered:
    """Reader of rows of one leaf column from many pages.

    Positions of page p are determined on first use: `_starts[p]` of the values, or of the ends if these are strings,
    `_validity[p]` of the validity bitmap. `shifts` are added to the positions in each page; 0 by default. `part`
    selects the part of an encoding that is read; by default all of it.
    """

    __slots__ = (
        *("_adjustment", "_bits", "_data", "_dtype", "_pages", "_part", "_shifts", "_size", "_starts", "_type"),
        *("_validity", "_width", "_word", "useful"),
    )

    def __init__(
        self,
        pages: Pages,
        data_type: pa.DataType,
        shifts: Sequence[int] | None = None,
        part: Callable[[Any], ArrayEncoding] = lambda encoding: encoding,
    ) -> None:
        self._pages = pages
        self._part = part
        self._type = data_type
        self._dtype = varbin.offset_dtype(data_type)
        self._bits = value_width(data_type) == 1
        self._width = 8 if self._dtype is not None else value_bytes(data_type)
        # Pages of a column mostly have one encoding: after the first page that is not plain, no others are checked.
        self.useful = self._width > 0 or self._bits
        word = min(self._width & -self._width, _MAX_WORD) or 1
        self._word: Any = np.dtype(f"<u{word}") if word <= 8 else np.dtype((np.void, word))
        num_pages = len(pages.starts) - 1
        self._shifts = [0] * num_pages if shifts is None else shifts
        self._starts = np.full(num_pages, _UNKNOWN, np.int64)
        self._validity = np.full(num_pages, _NO_NULLS, np.int64)
        if self._dtype is not None:
            self._data = np.zeros(num_pages, np.int64)
            self._size = np.zeros(num_pages, np.int64)
            self._adjustment = np.zeros(num_pages, np.uint64)

    def read(self, rows: npt.NDArray[np.int64]) -> ReadPlan[pa.Array | None]:
        """Plan reading `rows`. Returns None if they are in one page or must be read page by page."""
        if not self.useful:
            return None
        page_of = self._pages.starts.searchsorted(rows, "right") - 1
        if page_of[0] == page_of[-1]:
            return None
        starts = self._starts[page_of]
        if int(starts.min()) < 0:
            self.useful = all(self.locate(number) for number in np.unique(page_of).tolist())
            if not self.useful:
                return None
            starts = self._starts[page_of]
        within = rows - self._pages.starts[page_of]
        if self._dtype is not None:
            return (yield from self._read_strings(rows, page_of, starts + within * 8))
        valid = yield from self._read_valid(self._validity[page_of], within)
        values = yield from (self._read_packed if self._bits else self._read_words)(starts, within)
        if valid is None:
            return fixed_width_array(self._type, len(rows), values)
        return Decoded(len(rows), (values,), varbin.pack_validity(valid)).to_array(self._type)

    def _read_words(self, starts: npt.NDArray[np.int64], within: npt.NDArray[np.int64]) -> ReadPlan[pa.Buffer]:
        positions = starts + within * self._width
        first, last = int(positions.min()), int(positions.max())
        (data,) = yield (ByteRange(first, last + self._width),)
        words: npt.NDArray[Any] = np.frombuffer(data, self._word)
        indices = (positions - first) // self._word.itemsize
        per_value = self._width // self._word.itemsize
        if per_value > 1:
            indices = (indices[:, None] + np.arange(per_value)).reshape(-1)
        return pa.py_buffer(words.take(indices))

    def _read_packed(self, starts: npt.NDArray[np.int64], within: npt.NDArray[np.int64]) -> ReadPlan[pa.Buffer]:
        return varbin.pack_validity((yield from _read_bits(starts, within)))

    def _read_valid(
        self, starts: npt.NDArray[np.int64], within: npt.NDArray[np.int64]
    ) -> ReadPlan[npt.NDArray[np.bool_] | None]:
        has_nulls = starts != _NO_NULLS
        if not has_nulls.any():
            return None
        valid = np.ones(len(starts), np.bool_)
        valid[has_nulls] = yield from _read_bits(starts[has_nulls], within[has_nulls])
        return valid

    def _read_strings(
        self, rows: npt.NDArray[np.int64], page_of: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
    ) -> ReadPlan[pa.Array | None]:
        # The word before the end of a page's first row does not belong to the page; `spans_of` replaces it by 0.
        first, last = max(int(positions.min()) - 8, 0), int(positions.max())
        (raw,) = yield (ByteRange(first, last + 8),)
        stored: npt.NDArray[np.uint64] = np.frombuffer(raw, "<u8")
        is_first = rows == self._pages.starts[page_of]
        before, ends, valid = spans_of(stored, (positions - first) >> 3, is_first, self._adjustment[page_of])
        if (before > ends).any() or (ends > self._size[page_of]).any():
            return None
        data_starts = self._data[page_of]
        starts, stops = data_starts + before.view(np.int64), data_starts + ends.view(np.int64)
        if valid is not None:
            stops = np.where(valid, stops, starts)
        dtype = self._dtype
        assert dtype is not None
        if (stops[:-1] > starts[1:]).any() or (dtype.itemsize == 4 and int((stops - starts).sum()) > varbin.MAX_INT32):
            return None
        base = int(starts[0])
        (data,) = yield (ByteRange(base, int(stops[-1])),)
        buffers = select_spans(starts - base, stops - base, data, dtype)
        decoded = Decoded(len(rows), buffers, None if valid is None else varbin.pack_validity(valid))
        try:
            check_strings(decoded, self._type)
        except CorruptFileError:
            return None
        return decoded.to_array(self._type)

    def locate(self, number: int) -> bool:
        """Determine the position of the values of a page. Returns False if the page is not plain."""
        if self._starts[number] == _UNKNOWN:
            try:
                start = self._locate(self._pages.page(number), number)
                self._starts[number] = start if start < 0 else start + self._shifts[number]
            except (CorruptFileError, UnsupportedFeatureError):
                self._starts[number] = _NOT_PLAIN
        return bool(self._starts[number] >= 0)

    def _locate(self, page: Page | SinglePage, number: int) -> int:
        encoding = unwrap(self._part(parse_page(page.encoding)))
        if self._dtype is not None:
            return self._locate_strings(page, encoding, number)
        if isinstance(encoding, Nullable) and encoding.validity and encoding.values and value_width(self._type):
            validity = unwrap(encoding.validity)
            if not isinstance(validity, Flat) or not validity.is_plain(1):
                return _NOT_PLAIN
            start = page.buffer(validity.buffer, (page.length + 7) // 8).start
            self._validity[number] = start + self._shifts[number]
            encoding = unwrap(encoding.values)
        kind, size = self._type, 1
        while isinstance(encoding, FixedSizeList) and pa.types.is_fixed_size_list(kind):
            if encoding.dimension != kind.list_size:
                return _NOT_PLAIN
            size *= encoding.dimension
            encoding, kind = unwrap(encoding.items), kind.value_type
        bits = value_width(kind)
        if not isinstance(encoding, Flat) or not encoding.is_plain(bits) or not bits:
            return _NOT_PLAIN
        start = page.buffer(encoding.buffer, (page.length * size * bits + 7) // 8).start
        return start if self._bits or start % self._word.itemsize == 0 else _NOT_PLAIN

    def _locate_strings(self, page: Page | SinglePage, encoding: Any, number: int) -> int:
        if not isinstance(encoding, Binary) or not 0 < encoding.null_adjustment <= _MAX_ADJUSTMENT:
            return _NOT_PLAIN
        ends, content = unwrap(encoding.indices), unwrap(encoding.bytes)
        if not (isinstance(ends, Flat) and ends.is_plain(64) and isinstance(content, Flat) and content.is_plain(8)):
            return _NOT_PLAIN
        start = page.buffer(ends.buffer, 8 * page.length).start
        location = page.buffer(content.buffer)
        self._data[number] = location.start + self._shifts[number]
        self._size[number] = location.end - location.start
        self._adjustment[number] = encoding.null_adjustment
        return start if start % 8 == 0 else _NOT_PLAIN


def _read_bits(starts: npt.NDArray[np.int64], within: npt.NDArray[np.int64]) -> ReadPlan[npt.NDArray[np.bool_]]:
    """Plan reading bit `within` of the bitmap at each of `starts`."""
    positions = starts + (within >> 3)
    first, last = int(positions.min()), int(positions.max())
    (data,) = yield (ByteRange(first, last + 1),)
    octets = np.frombuffer(data, np.uint8).take(positions - first)
    return (octets >> (within & 7).astype(np.uint8) & 1).view(np.bool_)
