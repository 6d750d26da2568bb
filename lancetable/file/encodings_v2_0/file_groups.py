"""Groups of small files that are read together: the pages of a column are read as if they were in one file.

Pages that are not plain (gather_pages.py) are read file by file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_0.field_readers import column_kind
from lancetable.file.encodings_v2_0.gather_pages import Scattered
from lancetable.file.footer import FileMetadata, SinglePage
from lancetable.file.io_scheduler import InMemory, Rows, run
from lancetable.file.kernels.varbin import offsets_of_sizes
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
    numbers_of_rows = [np.arange(part.start, part.stop) if isinstance(part, range) else part for part in rows]
    for position, field in enumerate(fields):
        pages = {number: file.only_page(field, columns) for number, file in enumerate(files)}
        known = {number: page for number, page in pages.items() if page is not None and _has_values(page)}
        column = _Column(list(known.values()))
        scattered = Scattered(column, field.data_type, [starts[number] for number in known])
        if not scattered.useful:
            continue
        located = [(index, number) for index, number in enumerate(known) if scattered.locate(index)]
        if len(located) < 2:
            continue
        counts = np.array([len(rows[number]) for _, number in located])
        selected = np.concatenate([numbers_of_rows[number] for _, number in located])
        selected += np.repeat(column.starts[[index for index, _ in located]], counts)
        try:
            array = run(scattered.read(selected), data, files[0].path)
        except CorruptFileError:
            continue  # reading the files one by one tells which one is damaged
        if array is not None:
            for (_, number), start, count in zip(located, (counts.cumsum() - counts).tolist(), counts.tolist()):
                found[number][position] = array.slice(start, count)
    return found


def _has_values(page: SinglePage) -> bool:
    """Return False for a page of blobs and for a damaged column encoding."""
    try:
        return column_kind(page.column_encoding) == "values"
    except CorruptFileError:
        return False
