"""BITMAP indexes: for each distinct value of a column, the set of its rows.

    bitmap_page_lookup.lance

    keys      null          0             1              null first, then ascending; NaN is a key
    bitmaps   {2, 9}        {0, 1, 5}     {3, 4, 6}      each a RowAddrTreeMap

The metadata `lance:index_stats` contains the number of bitmaps. A search reads only the keys and bitmaps that it needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError, UnsupportedTypeError
from lancetable.index.key_ranges import key_ranges
from lancetable.index.kind import Batches, IndexKind, OpenIndex, Sources, checked_options
from lancetable.index.posting_files import OpenPostings, PostingFile, kept_postings, write_postings
from lancetable.index.postings import PostingSort
from lancetable.index.queries import IndexQuery, IsIn, IsNull, Range
from lancetable.index.results import IndexResult
from lancetable.index.roaring_containers import ROW_ADDR_TREE_MAP
from lancetable.index.row_sets import RowSet
from lancetable.index.search_statistics import note_comparisons
from lancetable.index.sort_keys import is_ordered
from lancetable.proto import index_details_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from lancetable.format.schema import Field
    from lancetable.index.external_sort import Run
    from lancetable.index.index_files import IndexFileReader, SegmentWriter
    from lancetable.index.row_mapping import AddressMapping
    from lancetable.index.segments import SegmentFiles

FILE_NAME: Final = "bitmap_page_lookup.lance"
KEYS: Final = ("keys", "bitmaps")
_STATISTICS: Final = "lance:index_stats"


class BitmapFile(PostingFile):
    """The file of a BITMAP or LABEL_LIST index."""

    def __init__(self, reader: IndexFileReader) -> None:
        super().__init__(reader, KEYS, ROW_ADDR_TREE_MAP)

    @classmethod
    def open(cls, files: SegmentFiles) -> BitmapFile:
        """Open the file of a segment.

        Raises UnsupportedFeatureError for a file of format 0.1, in which a null key equals 0 or an empty string, unless
        this holds for the values of the table, too.
        """
        reader = files.open(FILE_NAME)
        if reader.metadata.version.is_legacy and not files.version.manifest.file_version.is_legacy:
            raise UnsupportedFeatureError(
                f"{reader.path}: the index does not distinguish null from 0 and empty strings; create it again",
                feature="BITMAP and LABEL_LIST indexes in files of version 0.1",
                path=reader.path,
            )
        return cls(reader)

    @property
    def statistics(self) -> dict[str, Any]:
        """The statistics that the file contains."""
        text = self.reader.text(_STATISTICS)
        return {"num_bitmaps": self.reader.num_rows} if text is None else _parse_statistics(text, self.reader.path)

    def selected(self, query: IsIn | Range) -> RowSet:
        """Return the rows of the keys that a query selects."""
        selected = self.keys.rows(self.keys.selected(key_ranges(query, self.keys.data_type)))
        note_comparisons(len(selected))
        return self.union(selected)


def _parse_statistics(text: str, path: str) -> dict[str, Any]:
    try:
        statistics = json.loads(text)
    except ValueError as error:
        raise CorruptFileError(f"metadata entry {_STATISTICS!r} of an index file is not JSON", path=path) from error
    if not isinstance(statistics, dict):
        raise CorruptFileError(f"metadata entry {_STATISTICS!r} of an index file", "an object", text, path=path)
    return statistics


def write_bitmaps(
    writer: SegmentWriter, data_type: pa.DataType, postings: Run, null_lists: RowSet | None = None
) -> None:
    """Write the file of a BITMAP or LABEL_LIST index. `null_lists` are the rows of null lists."""
    schema = pa.schema([pa.field(KEYS[0], data_type), pa.field(KEYS[1], pa.binary())])
    with writer.open_file(FILE_NAME, schema) as file:
        if null_lists is not None:
            file.metadata["lance:label_list_nulls"] = str(file.add_buffer(null_lists.to_row_addr_tree_map()))
        num_bitmaps = write_postings(file, schema, postings, ROW_ADDR_TREE_MAP)
        file.metadata[_STATISTICS] = json.dumps({"num_bitmaps": num_bitmaps}, separators=(",", ":"))


class OpenBitmapFile(OpenPostings):
    """Base of open segments of BITMAP and LABEL_LIST indexes."""

    file: BitmapFile

    @property
    def value_type(self) -> pa.DataType:
        """The type of the indexed values. See OpenIndex."""
        return self.file.keys.data_type

    def statistics(self) -> dict[str, Any]:
        """Return statistics of the segment. See OpenIndex."""
        return self.file.statistics


class OpenBitmap(OpenBitmapFile):
    """An open BITMAP segment."""

    def search(self, query: IndexQuery) -> IndexResult:
        """Return the rows that a query selects. See OpenIndex."""
        if isinstance(query, IsNull):
            return IndexResult(self.file.null_rows())
        assert isinstance(query, (IsIn, Range))
        return IndexResult(self.file.selected(query), self.file.null_rows)


class Bitmap(IndexKind):
    """BITMAP."""

    name = "BITMAP"
    plan_name = "Bitmap"
    type_url = "/lance.table.BitmapIndexDetails"
    max_version = 0

    def check_field(self, field: Field, path: str) -> None:
        """Raise UnsupportedTypeError if the type cannot be indexed."""
        if not is_ordered(field.data_type):
            raise UnsupportedTypeError(
                f"column {path!r} has the type {field.data_type}, which a BITMAP index does not support; "
                "use numbers, booleans, strings, binaries, decimals, dates or times",
                feature=f"BITMAP indexes of {field.data_type}",
            )

    def answers(self, query: IndexQuery, details: bytes) -> bool:
        """Return whether an index can answer a query."""
        return isinstance(query, (IsIn, Range, IsNull))

    def open(self, files: SegmentFiles) -> OpenBitmap:
        """Open a segment."""
        return OpenBitmap(BitmapFile.open(files))

    def merge(
        self, writer: SegmentWriter, field: Field, sources: Sources, batches: Batches, options: Mapping[str, Any]
    ) -> Message:
        """Write one segment with the entries of several others and of new rows, and return its details."""
        checked_options(self.name, options, {})
        with PostingSort() as sort:
            for batch in batches:
                sort.add(batch)
            write_bitmaps(writer, field.data_type, sort.merged(kept_postings(sources)))
        return index_details_pb2.BitmapIndexDetails()

    def remap(self, writer: SegmentWriter, source: OpenIndex, mapping: AddressMapping) -> bool:
        """Write a segment whose rows are mapped."""
        assert isinstance(source, OpenBitmap)
        write_bitmaps(writer, source.file.keys.stored_type, source.file.postings(mapping.apply))
        return True


KIND = Bitmap()
