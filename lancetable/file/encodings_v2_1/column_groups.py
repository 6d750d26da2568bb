"""Groups of small columns that are read together, as if their pages were one page.

    column    a        b        c             page of 3 x n values     whole array      slices
    page      [n] ┐    [n] ┐    [n] ┐
                  └────────┴────────┴──────►  chunks of a, b, c   ──►  a a b b c c  ──►  a a, b b, c c

The fixed cost of a page, about a hundred small steps, is paid once for a group. Its columns have one page each, of the
same layout and type. Columns of other forms are read one by one (field_readers.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.encodings_v2_1.base import Bytes, DecodedRows, Ints, ReadContext, parse_layout
from lancetable.file.encodings_v2_1.block import span_indices, type_bits
from lancetable.file.encodings_v2_1.field_readers import open_field
from lancetable.file.encodings_v2_1.layouts.chunk_table import ChunkTable, PageMetadata, parse_tables
from lancetable.file.encodings_v2_1.layouts.miniblock import MiniBlock, decode_chunks
from lancetable.file.encodings_v2_1.layouts.miniblock_take import take_rows
from lancetable.file.encodings_v2_1.repdef import ITEM, check_levels, layers_of, unravel
from lancetable.file.footer import FileMetadata
from lancetable.file.io_scheduler import ReadPlan, Rows, cluster, gather, join
from lancetable.file.kernels.miniblock import join_pieces
from lancetable.file.uniform_columns import Member, uniform_columns
from lancetable.format.schema import Field
from lancetable.format.version import FileVersion

_FEW: Final = 48  # up to this many rows of a range are selected singly


def group_fields(file: FileMetadata, fields: Sequence[Field], columns: Mapping[int, int]) -> list[ColumnGroup]:
    """Return groups of fields that can be read together; the other fields are in none of them."""
    groups = []
    for group in uniform_columns(file, fields, columns, 2, type_bits):
        layout = plain_layout(group.encoding, file)
        if layout is not None:
            groups.append(ColumnGroup(file, layout, group.members, group.bounds, columns))
    return groups


def plain_layout(encoding: bytes, file: FileMetadata) -> MiniBlock | None:
    """Parse the layout of pages that contain all rows of a column.

    None unless they consist of the chunks of one leaf without dictionary and lists.
    """
    try:
        layout = parse_layout(encoding)
        return layout if type(layout) is MiniBlock and _is_plain(layout, file) else None
    except (CorruptFileError, UnsupportedFeatureError):
        return None


def _is_plain(layout: MiniBlock, file: FileMetadata) -> bool:
    return (
        len(layout.layers) == 1
        and not layers_of(layout.layers).num_lists
        and layout.rep_compression is None
        and layout.dictionary is None
        and not layout.is_indexed
        and layout.num_items == file.num_rows
        and not (layout.has_large_chunk and file.version is FileVersion.V2_1)
    )


class ColumnGroup:
    """Reader of fields that are stored in pages of one layout and type.

    Parameters
    ----------
    file
        Metadata of the file.
    layout
        The layout of all pages.
    members
        The columns, in the order of their pages in the file.
    bounds
        (columns, 4): start and end of the chunk table, start and end of the chunks. All numbers ascend.
    columns
        Map from field ids to columns of the file.
    """

    def __init__(
        self,
        file: FileMetadata,
        layout: MiniBlock,
        members: Sequence[Member],
        bounds: Ints,
        columns: Mapping[int, int],
    ) -> None:
        self.positions = [member.position for member in members]
        self._file, self._layout, self._bounds, self._columns = file, layout, bounds, columns
        self._fields = [member.field for member in members]
        self._context = ReadContext(members[0].field.data_type, file.version, file.size_bytes)
        self._first_values = np.arange(len(members)) * file.num_rows
        self._table: ChunkTable | None = None

    def read(self, rows: Rows, max_gap: int) -> ReadPlan[list[list[pa.Array]]]:
        """Plan reading rows; returns the arrays of each field, in the order of `positions`. See ColumnReader."""
        try:
            arrays = yield from self._read(rows, max_gap)
        except (CorruptFileError, UnsupportedFeatureError, pa.ArrowInvalid):
            # Errors of a group do not tell which column is damaged.
            readers = [open_field(self._file, field, self._columns) for field in self._fields]
            return (yield from gather([reader.read(rows, max_gap) for reader in readers]))
        return [[array] for array in arrays]

    def read_each(self, rows: Sequence[Rows], max_gap: int) -> ReadPlan[list[pa.Array]]:
        """Plan reading the rows of each column, which may differ; returns one array for each."""
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        if (counts == self._file.num_rows).all():
            return (yield from self._read(range(self._file.num_rows), max_gap))
        tables = self._bounds[:, :2]
        data, shift = yield from _fetch(tables[:, 0], tables[:, 1], max_gap)
        metadata = PageMetadata(self._layout, self._parse_tables(data, tables[:, 0] - shift))
        selected = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(counts.sum()))
        selected += np.repeat(self._first_values, counts)
        decoded = yield from take_rows([metadata], [selected], max_gap, self._file.limits.page_bytes)
        return self._slices(decoded, counts.cumsum() - counts, counts)

    def _read(self, rows: Rows, max_gap: int) -> ReadPlan[list[pa.Array]]:
        count, num_rows, limit = len(rows), self._file.num_rows, self._file.limits.page_bytes
        everything = count == num_rows
        if isinstance(rows, range) and not everything and count <= _FEW:
            rows = np.arange(rows.start, rows.stop)
        chunk_bounds, table = self._bounds[:, 2:], self._table
        if table is None:
            # All bytes are fetched together if all are needed.
            pieces = self._bounds.reshape(-1, 2) if everything else self._bounds[:, :2]
            data, shift = yield from _fetch(pieces[:, 0], pieces[:, 1], max_gap)
            tables = slice(None, None, 2 if everything else 1)
            table = self._table = self._parse_tables(data, pieces[tables, 0] - _of_pieces(shift, tables))
            shift = _of_pieces(shift, slice(1, None, 2))
        elif everything:
            data, shift = yield from _fetch(chunk_bounds[:, 0], chunk_bounds[:, 1], max_gap)
        if isinstance(rows, np.ndarray) and not everything:
            metadata = PageMetadata(self._layout, table)
            selected = (self._first_values[:, None] + rows).reshape(-1)
            decoded = yield from take_rows([metadata], [selected], max_gap, limit)
            return self._slices(decoded, np.arange(len(self.positions)) * count, count)
        begins = self._first_values + rows[0]
        firsts = table.values.searchsorted(begins, "right") - 1
        ends = table.values.searchsorted(begins + count)
        chosen: Any = slice(None)
        if not everything:
            data, shift = yield from _fetch(table.starts[firsts], table.ends[ends - 1], max_gap)
            chosen = span_indices(firsts, ends - firsts)
        starts, counts = table.starts[chosen], np.diff(table.values)[chosen]
        positions = starts - (shift if isinstance(shift, int) else np.repeat(shift, ends - firsts))
        sizes = table.ends[chosen] - starts
        values, _, definition, _ = decode_chunks(self._layout, data, positions, sizes, counts, limit)
        layers = layers_of(self._layout.layers)
        check_levels(None, definition, layers, values.length, None)
        before = np.append(0, counts.cumsum())[(ends - firsts).cumsum() - (ends - firsts)]
        decoded = DecodedRows(values, None, definition, layers.kinds, values.length)
        return self._slices(decoded, before + begins - table.values[firsts], count)

    def _parse_tables(self, data: Bytes, positions: Ints) -> ChunkTable:
        starts, ends, chunk_starts, chunk_ends = self._bounds.T
        tables = join_pieces(data, positions, ends - starts)
        return parse_tables(
            tables,
            ends - starts,
            chunk_starts,
            chunk_ends - chunk_starts,
            self._file.num_rows,
            large=self._layout.has_large_chunk,
        )

    def _slices(self, decoded: DecodedRows, starts: Ints, counts: Ints | int) -> list[pa.Array]:
        """Return the slices of the decoded rows that start at `starts` and have `counts` rows."""
        bitmap, _ = unravel(decoded, (ITEM,))
        whole = decoded.values.to_array(self._context.data_type, bitmap, self._file.limits.page_bytes)
        if isinstance(counts, int):
            return [whole.slice(start, counts) for start in starts.tolist()]
        return [*map(whole.slice, starts.tolist(), counts.tolist())]


def _fetch(starts: Ints, ends: Ints, max_gap: int) -> ReadPlan[tuple[Bytes, Ints | int]]:
    """Fetch ascending pieces of the file; return a buffer that contains them, and the shift of `cluster`."""
    ranges, shift = cluster(starts, ends, max_gap)
    buffers = yield ranges
    return np.frombuffer(join(buffers), np.uint8), shift


def _of_pieces(shift: Ints | int, pieces: slice) -> Any:
    return shift if isinstance(shift, int) else shift[pieces]
