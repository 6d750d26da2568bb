"""Groups of small files that are read together: the pages of a column are read as if they were in one file.

Pages that are not plain (gather_pages.py) are read file by file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.encodings_v2_0.base import ArrayEncoding, parse_page
from lancetable.file.encodings_v2_0.dictionary import Dictionary
from lancetable.file.encodings_v2_0.field_readers import column_kind
from lancetable.file.encodings_v2_0.gather_pages import Scattered
from lancetable.file.footer import FileMetadata, SinglePage
from lancetable.file.io_scheduler import InMemory, Rows, run
from lancetable.file.kernels.varbin import offset_dtype, offsets_of_sizes, taken_bytes
from lancetable.format.schema import Field


class _Column:
    """Pages of one column of several files. See `gather_pages.Pages`."""

    def __init__(self, pages: Sequence[SinglePage]) -> None:
        self._pages = pages
        self.starts = offsets_of_sizes(np.array([page.length for page in pages], np.int64))

    def page(self, number: int) -> SinglePage:
        return self._pages[number]


def read_files(
    files: Sequence[FileMetadata],
    data: InMemory,
    starts: Sequence[int],
    fields: Sequence[Field],
    columns: Mapping[int, int],
    rows: Sequence[Rows],
) -> list[list[pa.Array | None]]:
    """Read rows of several files. See `column_interfaces.Family`."""
    found: list[list[pa.Array | None]] = [[None] * len(fields) for _ in files]
    selected = [np.arange(part.start, part.stop) if isinstance(part, range) else part for part in rows]
    for position, field in enumerate(fields):
        every = {number: file.only_page(field, columns) for number, file in enumerate(files)}
        pages = {number: page for number, page in every.items() if page and _is_valid(page, files[number])}
        arrays = _gather(pages, data, starts, selected, field.data_type)
        others = {number: page for number, page in pages.items() if number not in arrays}
        if others and offset_dtype(field.data_type) is not None:
            arrays |= _gather_indexed(others, data, starts, selected, field.data_type, files[0].limits.page_bytes)
        for number, array in arrays.items():
            found[number][position] = array
    return found


def _gather(
    pages: Mapping[int, SinglePage],
    data: InMemory,
    starts: Sequence[int],
    rows: Sequence[npt.NDArray[np.int64]] | Mapping[int, npt.NDArray[np.int64]],
    data_type: pa.DataType,
    part: Callable[[Any], ArrayEncoding] = lambda encoding: encoding,
) -> dict[int, pa.Array]:
    """Return the rows of each page that is plain, by the number of its file; `part` selects a part of its encoding."""
    column = _Column(list(pages.values()))
    scattered = Scattered(column, data_type, [starts[number] for number in pages], part)
    located = {number: index for index, number in enumerate(pages) if scattered.useful and scattered.locate(index)}
    if len(located) < 2:
        return {}
    counts = np.array([len(rows[number]) for number in located])
    selected = np.concatenate([rows[number] for number in located])
    selected += np.repeat(column.starts[list(located.values())], counts)
    try:
        array = run(scattered.read(selected), data, "")
    except CorruptFileError:
        array = None  # reading the files one by one tells which one is damaged
    if array is None:
        return {}
    return dict(zip(located, map(array.slice, (counts.cumsum() - counts).tolist(), counts.tolist())))


def _gather_indexed(
    pages: Mapping[int, SinglePage],
    data: InMemory,
    starts: Sequence[int],
    rows: Sequence[npt.NDArray[np.int64]],
    data_type: pa.DataType,
    max_bytes: int,
) -> dict[int, pa.Array]:
    """Return the rows of each page of strings with a plain dictionary, whose index 0 is null."""
    indexed, sized = {}, {}
    for number, page in pages.items():
        try:
            encoding = parse_page(page.encoding)
        except (CorruptFileError, UnsupportedFeatureError):
            continue
        if isinstance(encoding, Dictionary) and encoding.num_dictionary_items < page.length:
            indexed[number], sized[number] = page, page._replace(length=encoding.num_dictionary_items)
    every_item = {number: np.arange(page.length) for number, page in sized.items()}
    indices = _gather(indexed, data, starts, rows, pa.uint8(), lambda encoding: encoding.indices)
    items = _gather(sized, data, starts, every_item, data_type, lambda encoding: encoding.items)
    arrays, null = {}, pa.nulls(1, data_type)
    for number in indices.keys() & items.keys():
        values, numbers = pa.concat_arrays([null, items[number]]), indices[number]
        if pc.max(numbers).as_py() < len(values) and taken_bytes(values, np.asarray(numbers), max_bytes) <= max_bytes:
            arrays[number] = values.take(numbers)
    return arrays


def _is_valid(page: SinglePage, file: FileMetadata) -> bool:
    """Return False for a page of blobs, a damaged column encoding, and a page that exceeds its file."""
    count = len(page.buffers) // 2
    if any(start + size > file.size_bytes for start, size in zip(page.buffers[:count], page.buffers[count:])):
        return False
    try:
        return column_kind(page.column_encoding) == "values"
    except CorruptFileError:
        return False
