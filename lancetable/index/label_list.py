"""LABEL_LIST indexes of lists: for each distinct element, the set of the rows whose list contains it.

    lists   [a, b]  [a]  []  null  [null]        keys  null  a       b        null lists
    rows    0       1    2   3     4                   {4}   {0, 1}  {0}      {3}

The file is that of a BITMAP index. The global buffer that the metadata `lance:label_list_nulls` refers to contains the
set of the rows whose list is null, for which a search is null, as a RowAddrTreeMap. Version 0, which pylance wrote
until 0.36, does not contain this set, so its answers are at most: the rows are checked, and NOT is not searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import CorruptFileError, UnsupportedTypeError
from lancetable.index.bitmap import BitmapFile, OpenBitmapFile, write_bitmaps
from lancetable.index.kind import ROW, VALUE, Batches, IndexKind, OpenIndex, Sources, checked_options
from lancetable.index.posting_files import kept, kept_postings
from lancetable.index.postings import PostingSort
from lancetable.index.queries import HasLabels, IndexQuery, IsIn
from lancetable.index.results import Exactness, IndexResult
from lancetable.index.roaring_containers import RowMapper, whole_fragment_error
from lancetable.index.row_sets import RowSet
from lancetable.index.sort_keys import is_ordered
from lancetable.proto import index_details_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from lancetable.format.schema import Field
    from lancetable.index.index_files import SegmentWriter
    from lancetable.index.row_mapping import AddressMapping
    from lancetable.index.segments import SegmentFiles

_NULL_LISTS: Final = "lance:label_list_nulls"


class OpenLabelList(OpenBitmapFile):
    """An open LABEL_LIST segment. `has_null_lists` is False for version 0."""

    def __init__(self, file: BitmapFile, *, has_null_lists: bool) -> None:
        super().__init__(file)
        self.has_null_lists = has_null_lists

    @property
    def null_lists(self) -> RowSet:
        """The rows whose list is null."""
        return self.file.reader.cached("null lists", self._read_null_lists, lambda rows: rows.memory_bytes + 256)

    def _read_null_lists(self) -> RowSet:
        reader = self.file.reader
        number = reader.number(_NULL_LISTS, -1)
        if number < 0:
            raise CorruptFileError(f"metadata entry {_NULL_LISTS!r} is missing", path=reader.path)
        return RowSet.from_row_addr_tree_map(reader.buffer(number), reader.path)

    def search(self, query: IndexQuery) -> IndexResult:
        """Return the rows that a query selects. See OpenIndex."""
        assert isinstance(query, HasLabels)
        labels = query.values.drop_null()
        parts = [labels[at : at + 1] for at in range(len(labels))] if query.all_of_them else [labels]
        found = [self.file.selected(IsIn(query.column, part)) for part in parts if len(part)]
        if query.values.null_count:
            found.append(self.file.null_rows())
        rows = reduce(and_ if query.all_of_them else or_, found)
        if not self.has_null_lists:
            return IndexResult(rows, exactness=Exactness.AT_MOST)
        # Indexes of files of version 2.0 may also contain labels of null lists, which these files store.
        null_lists = self.null_lists
        return IndexResult(rows - null_lists, null_lists)

    @property
    def is_mergeable(self) -> bool:
        """False for version 0: a new segment needs the rows of null lists. See OpenIndex."""
        return self.has_null_lists

    def prewarm(self) -> None:
        """Read all pages into the cache. See OpenIndex."""
        super().prewarm()
        if self.has_null_lists:
            self.null_lists  # noqa: B018  # is cached

    def null_lists_after(self, mapper: RowMapper) -> RowSet:
        """Return the mapped rows whose list is null. Raises UnsupportedFeatureError for whole fragments."""
        if self.null_lists.whole_fragments:
            raise whole_fragment_error(self.file.reader.path)
        return RowSet.of_parts(rows[exists] for rows, exists in map(mapper, self.null_lists.batches()))


@dataclass(frozen=True)
class LabelList(IndexKind):
    """LABEL_LIST. `has_null_lists` is False for existing segments of version 0; new segments have version 1."""

    has_null_lists: bool = True

    name = "LABEL_LIST"
    plan_name = "LabelList"
    type_url = "/lance.table.LabelListIndexDetails"
    max_version = 1

    def for_segment(self, files: SegmentFiles) -> LabelList | None:
        """Return the kind of a segment by its version. See IndexKind."""
        if super().for_segment(files) is None:
            return None
        return self if files.metadata.index_version else LabelList(has_null_lists=False)

    def value_type(self, data_type: pa.DataType) -> pa.DataType | None:
        """Return the type of the elements of a list, None for other types. See IndexKind."""
        is_list = pa.types.is_list(data_type) or pa.types.is_large_list(data_type)
        return _plain_type(data_type.value_type) if is_list else None

    def check_field(self, field: Field, path: str) -> None:
        """Raise UnsupportedTypeError if the type cannot be indexed."""
        data_type = field.data_type
        is_list = pa.types.is_list(data_type) or pa.types.is_large_list(data_type)
        if not is_list or not _is_label(data_type.value_type):
            raise UnsupportedTypeError(
                f"column {path!r} has the type {data_type}, which a LABEL_LIST index does not support; "
                "use lists of values that are neither lists nor structs",
                feature=f"LABEL_LIST indexes of {data_type}",
            )

    def answers(self, query: IndexQuery, details: bytes) -> bool:
        """Return whether an index can answer a query."""
        return isinstance(query, HasLabels) and len(query.values) > 0

    def is_exact(self, query: IndexQuery, details: bytes) -> bool:
        """Return whether the answer is exact, rather than at most. See IndexKind."""
        return self.has_null_lists

    def open(self, files: SegmentFiles) -> OpenLabelList:
        """Open a segment."""
        return OpenLabelList(BitmapFile.open(files), has_null_lists=self.has_null_lists)

    def merge(
        self, writer: SegmentWriter, field: Field, sources: Sources, batches: Batches, options: Mapping[str, Any]
    ) -> Message:
        """Write one segment with the entries of several others and of new rows, and return its details."""
        checked_options(self.name, options, {})
        null_lists = []
        for source, row_filter in sources:
            assert isinstance(source, OpenLabelList)
            null_lists.append(source.null_lists_after(kept(row_filter)))
        data_type = field.data_type.value_type
        with PostingSort() as sort:
            null_rows = [_add_labels(sort, batch) for batch in batches]
            null_lists.append(RowSet.of(np.concatenate([np.empty(0, np.uint64), *null_rows])))
            write_bitmaps(writer, data_type, sort.merged(kept_postings(sources)), RowSet.union(null_lists))
        return index_details_pb2.LabelListIndexDetails()

    def remap(self, writer: SegmentWriter, source: OpenIndex, mapping: AddressMapping) -> bool:
        """Write a segment whose rows are mapped."""
        assert isinstance(source, OpenLabelList)
        null_lists = source.null_lists_after(mapping.apply) if source.has_null_lists else None
        write_bitmaps(writer, source.file.keys.stored_type, source.file.postings(mapping.apply), null_lists)
        return True


def _is_label(data_type: pa.DataType) -> bool:
    return is_ordered(_plain_type(data_type)) or pa.types.is_null(data_type)


def _plain_type(data_type: pa.DataType) -> pa.DataType:
    return data_type.value_type if pa.types.is_dictionary(data_type) else data_type


def _add_labels(sort: PostingSort, batch: pa.RecordBatch) -> Any:
    """Add the elements of the lists of a batch. Returns the rows of null lists."""
    lists, rows = batch.column(VALUE), batch.column(ROW).to_numpy()
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    labels = lists.flatten()
    if pa.types.is_dictionary(labels.type):
        labels = labels.dictionary_decode()
    sort.add(pa.record_batch({VALUE: labels, ROW: np.repeat(rows, lengths)}))
    return rows[lists.is_null().to_numpy(zero_copy_only=False)]


KIND = LabelList()
