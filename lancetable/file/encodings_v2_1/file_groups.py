"""Groups of small files that are read together: pages of one layout and type are decoded as if they were one page.

    file      0          1          2           joined bytes          whole array      slices
    pages     [a] [b]    [a] [b]    [a] [b] ──► chunks of a, or b ──► a a a or b b b   a, a, a or b, b, b

The fixed cost of a page is paid once for all files. Pages of other forms are read file by file (column_groups.py,
field_readers.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.encodings_v2_1.column_groups import ColumnGroup, plain_layout
from lancetable.file.footer import FileMetadata
from lancetable.file.io_scheduler import MAPPED, InMemory, Rows, run
from lancetable.file.uniform_columns import Member, bounds_of_pages
from lancetable.format.schema import Field


def read_files(
    files: Sequence[FileMetadata],
    data: InMemory,
    starts: Sequence[int],
    fields: Sequence[Field],
    columns: Mapping[int, int],
    rows: Sequence[Rows],
) -> list[list[pa.Array | None]]:
    """Read rows of several files. See `column_interfaces.Family`."""
    members: dict[tuple[bytes, str, int], list[tuple[int, Member]]] = {}
    for number, file in enumerate(files):
        for position, field in enumerate(fields):
            page = file.only_page(field, columns)
            if page is not None and len(page.buffers) == 4:
                key = page.encoding, field.logical_type, page.length
                members.setdefault(key, []).append((number, Member(position, field, page)))
    found: list[list[pa.Array | None]] = [[None] * len(fields) for _ in files]
    for (encoding, _, _), pages in members.items():
        pages.sort(key=lambda page: (page[0], page[1].page.buffers[0]))
        numbers, group = [number for number, _ in pages], [member for _, member in pages]
        file = files[numbers[0]]
        layout = plain_layout(encoding, file)
        sizes, shifts = zip(*[(files[number].size_bytes, starts[number]) for number in numbers])
        bounds = bounds_of_pages([member.page for member in group], sizes, shifts)
        if layout is None or bounds is None:
            continue
        reader = ColumnGroup(file, layout, group, bounds, columns)
        try:
            arrays = run(reader.read_each([rows[number] for number in numbers], MAPPED), data, file.path)
        except (CorruptFileError, UnsupportedFeatureError, pa.ArrowInvalid):
            continue  # reading the files one by one tells which one is damaged
        for number, member, array in zip(numbers, group, arrays):
            found[number][member.position] = array
    return found
