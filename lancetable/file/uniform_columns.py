"""Columns of one page each, with the same encoding and type, so that they can be read together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.footer import FileMetadata, SinglePage
from lancetable.format.schema import Field

_MAX_ROWS: Final = 32 * 1024  # in a file; columns of more rows are large enough to be read one by one
_MAX_PAGE_BYTES: Final = 256 * 1024
_MAX_GROUP_BYTES: Final = 4 << 20  # of stored and of decoded values; the arrays of a group share their memory
_MIN_COLUMNS: Final = 3


class Member(NamedTuple):
    """A column of a group: position among the requested fields, field, and page."""

    position: int
    field: Field
    page: SinglePage


class Group(NamedTuple):
    """Columns in the order of their pages in the file.

    `bounds` (columns, 2 x buffers) are the start and end of each buffer of a page. They ascend and are in the file.
    """

    encoding: bytes
    column_encoding: bytes
    members: Sequence[Member]
    bounds: npt.NDArray[np.int64]


def uniform_columns(
    file: FileMetadata,
    fields: Sequence[Field],
    columns: Mapping[int, int],
    num_buffers: int,
    value_bits: Callable[[pa.DataType], int | None],
) -> Iterator[Group]:
    """Yield groups of fields whose pages have `num_buffers` buffers; the other fields are in none of them.

    `value_bits` returns the size of a decoded value of a type, None if it varies.
    """
    if len(fields) < _MIN_COLUMNS or not 0 < file.num_rows <= _MAX_ROWS:
        return
    counts = Counter([field.logical_type for field in fields])
    found: dict[tuple[bytes, bytes, str], list[Member]] = {}
    for position, field in enumerate(fields):
        logical_type = field.logical_type
        page = None if counts[logical_type] < _MIN_COLUMNS else file.only_page(field, columns)
        if page is not None and len(page.buffers) == 2 * num_buffers and page.buffers[-1] <= _MAX_PAGE_BYTES:
            key = (page.encoding, page.column_encoding, logical_type)
            found.setdefault(key, []).append(Member(position, field, page))
    for members in found.values():
        if len(members) >= _MIN_COLUMNS:
            bits = value_bits(members[0].field.data_type) or 0
            yield from _groups(file, members, bits * file.num_rows // 8)


def _groups(file: FileMetadata, members: Sequence[Member], decoded_bytes: int) -> Iterator[Group]:
    members = sorted(members, key=lambda member: member.page.buffers[0])
    page_bytes = max(1, decoded_bytes, *[member.page.buffers[-1] for member in members])
    size = max(_MIN_COLUMNS, _MAX_GROUP_BYTES // page_bytes)
    for start in range(0, len(members), size):
        part = members[start : start + size]
        bounds = bounds_of_pages([member.page for member in part], [file.size_bytes])
        if len(part) >= _MIN_COLUMNS and bounds is not None:
            yield Group(part[0].page.encoding, part[0].page.column_encoding, part, bounds)


def bounds_of_pages(
    pages: Sequence[SinglePage], file_bytes: Sequence[int], shifts: Sequence[int] = (0,)
) -> npt.NDArray[np.int64] | None:
    """Return (pages, 2 x buffers) positions: the start and end of each buffer of each page.

    `file_bytes` are the sizes of their files, and `shifts` are added to the positions in them. None if a page
    exceeds its file or the numbers do not ascend.
    """
    starts, sizes = np.hsplit(np.array([page.buffers for page in pages], np.uint64), 2)
    bounds = np.stack((starts, starts + sizes), axis=2).reshape(len(pages), -1)
    if (bounds[:, 1:] < bounds[:, :-1]).any() or (bounds[:, -1] > np.array(file_bytes, np.uint64)).any():
        return None
    shifted = bounds.astype(np.int64) + np.array(shifts)[:, None]
    return shifted if (shifted[1:, 0] >= shifted[:-1, -1]).all() else None
