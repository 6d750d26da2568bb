"""BTREE: the sorted values of a column with their rows, cut into pages, and the bounds of each page.

    page_data.lance     values   -  -  1  2 | 3  3  7  9 | 9              pages of 4 rows; nulls come first
                        ids      7  2  0  4 | 1  6  5  3 | 8
    page_lookup.lance   min  -  3  9     max  2  9  9     null_count  2  0  0     page_idx  0  1  2

A search reads the pages whose bounds overlap a range of the query, and only the rows of those that are within it.
Version 1 stores row addresses. Version 0 stores stable row ids if the table has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError, InvalidInputError, UnsupportedFeatureError
from lancetable.index.external_sort import ExternalSort, Run
from lancetable.index.index_files import SegmentWriter, plain_values, stored_values
from lancetable.index.key_ranges import KeyRanges, expand, key_ranges
from lancetable.index.kind import (
    ROW,
    VALUE,
    Batches,
    IndexKind,
    OpenIndex,
    RowFilter,
    Sources,
    check_ordered,
    check_same_type,
    checked_options,
)
from lancetable.index.legacy_btree import restore_bounds, restore_nulls
from lancetable.index.queries import IndexQuery, IsIn, IsNull, Range, StartsWith, format_value
from lancetable.index.results import IndexResult
from lancetable.index.row_sets import RowSet
from lancetable.index.search_statistics import note_comparisons
from lancetable.index.sort_keys import Int64, Keys, any_less, are_equal, is_ascending, is_ordered, keys_of
from lancetable.proto import index_details_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from lancetable.file.io_scheduler import Rows
    from lancetable.format.row_address import U64Array
    from lancetable.format.schema import Field
    from lancetable.index.row_mapping import AddressMapping
    from lancetable.index.segments import SegmentFiles

_DATA_FILE: Final = "page_data.lance"
_LOOKUP_FILE: Final = "page_lookup.lance"
_OLD_IDS: Final = "row_ids"  # the name of the column "ids" in files of pylance before 0.36
_PAGE_ROWS_KEY: Final = "batch_size"
_PARTITIONED_KEY: Final = "range_partitioned"
_PARTITION_PREFIX: Final = "part_"  # of names of files with pages, if there are several
_DEFAULT_PAGE_ROWS: Final = 4096
_MAX_PAGE_ROWS: Final = 1 << 31
_PAGES_PER_READ: Final = 256
_VALUE_PAGES_PER_READ: Final = 16
_ROWS_PER_BLOCK: Final = 64 * 1024


class _Page(NamedTuple):
    """Keys of the values of a page without nulls, if they were read, and the rows, first those of nulls."""

    keys: Keys | None
    rows: U64Array


class BTreeIndex(OpenIndex):
    """Open segment of a BTREE index. Only the bounds of pages are in memory; pages are read on demand and cached."""

    def __init__(self, files: SegmentFiles) -> None:
        lookup, self._data = files.open(_LOOKUP_FILE), files.open(_DATA_FILE)
        self._lookup, self._is_numbered = lookup, False
        if lookup.text(_PARTITIONED_KEY) == "true":
            raise UnsupportedFeatureError(
                f"{lookup.path}: BTREE indexes with pages in several files are not supported; create the index again",
                feature="range-partitioned BTREE indexes",
                path=lookup.path,
            )
        self._is_legacy, self._least_rows = lookup.metadata.version.is_legacy, 0
        self.page_rows = lookup.number(_PAGE_ROWS_KEY, _DEFAULT_PAGE_ROWS)
        bounds_and_counts = lookup.read_arrays(["min", "max", "null_count"])
        self.stored_type = lookup.column_type("min")  # pylance also stores dictionaries
        self._minimum, self._maximum, null_counts = map(plain_values, bounds_and_counts)
        self.data_type, self.num_pages = self._minimum.type, len(self._minimum)
        if not 0 < self.page_rows <= _MAX_PAGE_ROWS:
            raise self._corrupt("invalid page size")
        if not is_ordered(self.data_type) or self._maximum.type != self.data_type:
            raise self._corrupt("invalid types of bounds")
        if not _is_numbers(null_counts, pa.uint32()):
            raise self._corrupt("invalid null counts of pages")
        self._null_counts: Int64 = null_counts.to_numpy().astype(np.int64)
        self._num_nulls = int(self._null_counts.sum())
        if self._is_legacy and (self._num_nulls or self._minimum.null_count):
            layout = self._null_counts, self.page_rows, self._data.num_rows
            self._minimum = restore_bounds(self._minimum, *layout)
            self._maximum = restore_bounds(self._maximum, *layout)
        self._check_nulls()
        self._lows, self._highs = keys_of(self._minimum[self._known :]), keys_of(self._maximum[self._first :])
        mixed = self._known - self._first
        if (
            not is_ascending(self._highs)
            or any_less(self._highs[mixed:], self._lows)
            or any_less(self._lows[1 - mixed :], self._highs[: len(self._highs) - 1])
        ):
            raise self._corrupt("bounds of pages are not in ascending order")

    def _check_nulls(self) -> None:
        """Check that nulls come first, and find the first page with values and the first page without nulls."""
        if not (self._num_nulls or self._minimum.null_count or self._maximum.null_count):
            self._first = self._known = 0
            return
        has_minimum, has_maximum = (
            bounds.is_valid().to_numpy(zero_copy_only=False) for bounds in (self._minimum, self._maximum)
        )
        self._first = int(has_maximum.argmax()) if has_maximum.any() else self.num_pages
        self._known = self._first + int(self._first < self.num_pages and self._null_counts[self._first] > 0)
        expected = np.clip(self._num_nulls - np.arange(self.num_pages) * self.page_rows, 0, self.page_rows)
        if (
            not np.array_equal(self._null_counts, expected)
            or not has_maximum[self._first :].all()
            or not has_minimum[self._known :].all()
            or (self._null_counts[: self._first] < self.page_rows)[: self.num_pages - 1].any()
        ):
            raise self._corrupt("wrong null counts of pages")

    @property
    def value_type(self) -> pa.DataType:
        """The type of the indexed values. See OpenIndex."""
        return self.data_type

    def check_rows(self, fragment_ids: Int64, num_rows: Int64) -> None:
        """Set the least number of rows, which is compared when pages are read. See OpenIndex."""
        self._least_rows = int(num_rows.sum())

    def _corrupt(self, what: str) -> CorruptFileError:
        return CorruptFileError(f"{what} in a BTREE index", path=self._lookup.path)

    def _check_numbers(self) -> None:
        """Check that the numbers of pages ascend by 1.

        Pages whose values are read are compared with their bounds. Only pages of which rows alone are read need this.
        """
        if self._is_numbered:
            return
        numbers = plain_values(*self._lookup.read_arrays(["page_idx"]))
        if not _is_numbers(numbers, pa.uint32()) or not np.array_equal(numbers.to_numpy(), np.arange(self.num_pages)):
            raise self._corrupt("pages are not numbered consecutively")
        self._is_numbered = True

    def _checked_num_rows(self) -> int:
        """Return the number of rows of the file of pages, which is not opened before a search needs it."""
        num_rows, path = self._data.num_rows, self._data.path
        if -(-num_rows // self.page_rows) != self.num_pages:
            what, expected = "wrong number of rows in a BTREE index", f"{self.num_pages} pages of {self.page_rows}"
            raise CorruptFileError(what, expected, num_rows, path=path)
        if num_rows < self._num_nulls or (num_rows == self._num_nulls) != (self._first == self.num_pages):
            raise CorruptFileError("wrong number of nulls in a BTREE index", num_rows, self._num_nulls, path=path)
        if num_rows < self._least_rows:
            raise CorruptFileError("rows are missing in a BTREE index", self._least_rows, num_rows, path=path)
        return num_rows

    # ------------------------------------------------------------------------------------------------------ searches

    def search(self, query: IndexQuery) -> IndexResult:
        """Return the rows that a query selects. See OpenIndex."""
        if isinstance(query, IsNull):
            return IndexResult(self._nulls())
        ranges = key_ranges(query, self.data_type).with_nan()
        return IndexResult(RowSet.of_parts(chain.from_iterable(map(self._select, ranges))), self._nulls)

    def _nulls(self) -> RowSet:
        def read() -> RowSet:
            pages = range(-(-self._num_nulls // self.page_rows))
            counts = self._null_counts.tolist()
            return RowSet.of_parts(page.rows[: counts[number]] for number, page in self._pages(pages))

        if not self._num_nulls:
            return RowSet()
        return self._data.cached("btree nulls", read, lambda rows: rows.memory_bytes)

    def _select(self, ranges: KeyRanges) -> Iterator[U64Array]:
        """Yield the rows in ranges of keys."""
        if self._first == self.num_pages:
            self._checked_num_rows()
            return
        # Pages that overlap each range, and those of them that are within it.
        starts = self._first + ranges.starts_in(self._highs)
        ends = self._known + ranges.ends_in(self._lows)
        if len(starts) == len(ends) == 1:
            yield from self._select_one(ranges, int(starts[0]), int(ends[0]))
            return
        ends = np.maximum(starts, ends)
        inner_starts = np.clip(self._known + ranges.starts_in(self._lows), starts, ends)
        inner_ends = np.clip(self._first + ranges.ends_in(self._highs), inner_starts, ends)
        for _, page in self._pages(np.unique(expand(inner_starts, inner_ends)[1]).tolist()):
            yield page.rows
        numbers, owners = _by_page(expand(starts, inner_starts), expand(inner_ends, ends))
        for position, (number, page) in enumerate(self._pages(numbers, with_values=True)):
            yield _rows_within(ranges.select(owners[position]), page, int(self._null_counts[number]))

    def _select_one(self, ranges: KeyRanges, start: int, end: int) -> Iterator[U64Array]:
        """Yield the rows in a single range, which overlaps the pages from `start` to `end`. The common case."""
        inner_start = min(self._known + int(ranges.starts_in(self._lows)[0]), end)
        inner_end = max(min(self._first + int(ranges.ends_in(self._highs)[0]), end), inner_start)
        for _, page in self._pages(range(inner_start, inner_end)):
            yield page.rows
        for number, page in self._pages([*range(start, inner_start), *range(inner_end, end)], with_values=True):
            yield _rows_within(ranges, page, int(self._null_counts[number]))

    # --------------------------------------------------------------------------------------------------------- pages

    def _pages(self, numbers: Sequence[int], *, with_values: bool = False) -> Iterator[tuple[int, _Page]]:
        """Yield some pages, given in ascending order, with their numbers. Pages that are not cached are read."""
        step = _VALUE_PAGES_PER_READ if with_values else _PAGES_PER_READ
        for start in range(0, len(numbers), step):
            group = numbers[start : start + step]
            pages: dict[int, Any] = {number: self._data.find_cached(("btree page", number)) for number in group}
            missing = [n for n, page in pages.items() if page is None or (with_values and page.keys is None)]
            for number, page in self._read(missing, with_values=with_values) if missing else ():
                self._data.put_cached(("btree page", number), page, _size_bytes(page))
                pages[number] = page
            yield from pages.items()

    def _read(self, numbers: list[int], *, with_values: bool) -> Iterator[tuple[int, _Page]]:
        """Read pages together."""
        num_rows = self._checked_num_rows()
        if not with_values:
            self._check_numbers()
        firsts = np.array(numbers) * self.page_rows
        rows: Any = range(int(firsts[0]), min(int(firsts[-1]) + self.page_rows, num_rows))
        if numbers[-1] - numbers[0] >= len(numbers):  # not consecutive
            _, rows = expand(firsts, np.minimum(firsts + self.page_rows, rows.stop))
        columns = self._read_columns(["ids", "values"] if with_values else ["ids"], rows)
        for position, number in enumerate(numbers):
            parts = [column.slice(position * self.page_rows, self.page_rows) for column in columns]
            if len(numbers) > 1:  # a cached slice would keep all pages in memory
                parts = [pa.concat_arrays([part, part[:0]]) for part in parts]
            keys = self._checked_keys(number, parts[1]) if with_values else None
            yield number, _Page(keys, self._checked_ids(parts[0]))

    def _read_columns(self, names: list[str], rows: Rows) -> list[pa.Array]:
        ids = _OLD_IDS if self._data.has_column(_OLD_IDS) else "ids"
        columns = [*map(plain_values, self._data.read_arrays([ids if name == "ids" else name for name in names], rows))]
        if self._is_legacy and "values" in names:
            values = names.index("values")
            columns[values] = restore_nulls(columns[values], rows, self._num_nulls)
        return columns

    def _checked_ids(self, ids: pa.Array) -> U64Array:
        if not _is_numbers(ids, pa.uint64()):
            raise CorruptFileError("invalid rows in a BTREE index", path=self._data.path)
        rows: U64Array = ids.to_numpy()
        return rows

    def _checked_keys(self, number: int, values: pa.Array) -> Keys:
        """Return the keys of the values of a page that are not null."""
        keys = self._keys(values, int(self._null_counts[number]))
        at = number - self._first
        if len(keys) and not (
            are_equal(keys[-1:], self._highs[at : at + 1])
            and (number < self._known or are_equal(keys[:1], self._lows[number - self._known :][:1]))
        ):
            raise CorruptFileError(f"page {number} of a BTREE index does not match its bounds", path=self._data.path)
        return keys

    def _keys(self, values: pa.Array, num_nulls: int) -> Keys:
        """Return the keys of ascending values, of which the first `num_nulls` are null."""
        if values.type == self.data_type and values.null_count == num_nulls:
            valid = values[num_nulls:]
            keys = keys_of(valid)
            if not valid.null_count and is_ascending(keys):
                return keys
        raise self._not_ascending()

    def _not_ascending(self) -> CorruptFileError:
        return CorruptFileError("values are not in ascending order in a BTREE index", path=self._data.path)

    def prewarm(self) -> None:
        """Read all pages into the cache."""
        self._check_numbers()
        for _ in self._pages(range(self.num_pages), with_values=True):
            pass
        self._nulls()

    # --------------------------------------------------------------------------------------------------- maintenance

    def sorted_rows(self) -> Run:
        """Yield all values and rows in order."""
        self._check_numbers()
        num_rows = self._checked_num_rows()
        step = max(1, _ROWS_PER_BLOCK // self.page_rows) * self.page_rows
        last: Keys | None = None
        for start in range(0, num_rows, step):
            rows = range(start, min(start + step, num_rows))
            values, ids = self._read_columns(["values", "ids"], rows)
            keys = self._keys(values, min(max(self._num_nulls - start, 0), len(rows)))
            if last is not None and any_less(keys[:1], last):
                raise self._not_ascending()
            last = keys[-1:] if len(keys) else None
            yield pa.record_batch({VALUE: values, ROW: pa.array(self._checked_ids(ids))})

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The options with which the segment was built. See OpenIndex."""
        return {"zone_size": self.page_rows}

    def statistics(self) -> dict[str, Any]:
        """Return statistics of the segment. See OpenIndex."""
        bounds = (self._minimum[:1], self._maximum[-1:])
        minimum, maximum = (_text(bound[0]) if len(bound) else "NULL" for bound in bounds)
        return {"min": minimum, "max": maximum, "num_pages": self.num_pages}

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory. See OpenIndex."""
        bounds_bytes: int = self._minimum.nbytes + self._maximum.nbytes
        return 2 * bounds_bytes + self._null_counts.nbytes


def _by_page(*parts: tuple[Int64, Int64]) -> tuple[list[int], list[Int64]]:
    """Return the different pages in ascending order, and the numbers of the ranges of each."""
    owners, pages = (np.concatenate(arrays) for arrays in zip(*parts))
    order = np.argsort(pages, kind="stable")
    owners, pages = owners[order], pages[order]
    firsts = np.flatnonzero(np.diff(pages, prepend=-1))
    return pages[firsts].tolist(), np.split(owners, firsts[1:])


def _rows_within(ranges: KeyRanges, page: _Page, num_nulls: int) -> U64Array:
    assert page.keys is not None
    note_comparisons(len(page.rows))
    rows: U64Array = page.rows[num_nulls:]
    starts, ends = ranges.starts_in(page.keys), ranges.ends_in(page.keys)
    selected = slice(starts[0], ends[0]) if len(starts) == 1 else expand(starts, ends)[1]
    found: U64Array = rows[selected]
    return found


def _is_numbers(array: pa.Array, data_type: pa.DataType) -> bool:
    return bool(array.type == data_type and not array.null_count)


def _size_bytes(page: _Page) -> int:
    keys_bytes = 0 if page.keys is None else int(page.keys.nbytes)
    return int(page.rows.nbytes) + keys_bytes


def _text(value: pa.Scalar) -> str:
    """Return a bound in the form of pylance's statistics, which differs from that of plans for binaries and nulls."""
    if not value.is_valid:
        return "NULL"
    return format_value(value).upper() if isinstance(value.as_py(), bytes) else format_value(value)


class _PageWriter:
    """Writer of the files of a segment, from batches of sorted rows. The values are converted to `data_type`."""

    def __init__(self, writer: SegmentWriter, data_type: pa.DataType, page_rows: int) -> None:
        self._writer, self._data_type, self._page_rows = writer, data_type, page_rows
        self._num_rows = self._num_nulls = 0
        self._minimum: list[pa.Array] = []
        self._maximum: list[pa.Array] = []
        self._last = pa.nulls(0, data_type)

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write both files."""
        schema = pa.schema([("values", self._data_type), pa.field("ids", pa.uint64(), nullable=False)])
        with self._writer.open_file(_DATA_FILE, schema) as file:
            for batch in batches:
                if batch.num_rows:
                    values = batch.column(VALUE)
                    self._add_bounds(values)
                    values = stored_values(values, self._data_type)
                    file.write(pa.RecordBatch.from_arrays([values, batch.column(ROW)], schema=schema))
        if self._num_rows % self._page_rows:
            self._maximum.append(self._last)
        self._write_lookup()

    def _add_bounds(self, values: pa.Array) -> None:
        """Collect the first and the last value of each page."""
        start, end, rows = self._num_rows, self._num_rows + len(values), self._page_rows
        firsts = np.arange(-(-start // rows) * rows, end, rows) - start
        lasts = np.arange(-(-(start + 1) // rows) * rows - 1, end, rows) - start
        self._minimum.append(values.take(pa.array(firsts)))
        self._maximum.append(values.take(pa.array(lasts)))
        self._num_rows, self._num_nulls = end, self._num_nulls + values.null_count
        self._last = pa.concat_arrays([values[-1:], values[:0]])

    def _write_lookup(self) -> None:
        numbers = np.arange(-(-self._num_rows // self._page_rows))
        null_counts = np.clip(self._num_nulls - numbers * self._page_rows, 0, self._page_rows)
        columns = {
            "min": self._bounds(self._minimum),
            "max": self._bounds(self._maximum),
            "null_count": pa.array(null_counts.astype(np.uint32)),
            "page_idx": pa.array(numbers.astype(np.uint32)),
        }
        schema = pa.schema([pa.field(n, column.type, nullable=n in ("min", "max")) for n, column in columns.items()])
        metadata = {_PAGE_ROWS_KEY: str(self._page_rows), _PARTITIONED_KEY: "false"}
        self._writer.write_file(_LOOKUP_FILE, pa.table(columns, schema=schema), metadata)

    def _bounds(self, parts: list[pa.Array]) -> pa.Array:
        return stored_values(pa.concat_arrays(parts), self._data_type) if parts else pa.nulls(0, self._data_type)


class BTree(IndexKind):
    """Kind of BTREE indexes. See IndexKind."""

    name = "BTREE"
    plan_name = "BTree"
    type_url = "/lance.table.BTreeIndexDetails"
    max_version = 1

    def for_segment(self, files: SegmentFiles) -> BTree | None:
        """Return None for a segment whose pages are in several files, if the entry records them. See IndexKind."""
        is_partitioned = any(file.path.startswith(_PARTITION_PREFIX) for file in files.metadata.files)
        return None if is_partitioned or super().for_segment(files) is None else self

    def version_for(self, *, stable_row_ids: bool) -> int:
        """Return the version of new segments. See IndexKind."""
        return int(stable_row_ids)

    def stores_row_ids(self, index_version: int) -> bool:
        """Return whether segments store stable row ids. See IndexKind."""
        return index_version == 0

    def check_field(self, field: Field, path: str) -> None:
        """Raise UnsupportedTypeError if a column cannot be indexed. See IndexKind."""
        check_ordered(field, path, self.name)

    def answers(self, query: IndexQuery, details: bytes) -> bool:
        """Return whether an index can answer a query. See IndexKind."""
        return isinstance(query, IsIn | Range | IsNull | StartsWith)

    def open(self, files: SegmentFiles) -> BTreeIndex:
        """Open a segment. See IndexKind."""
        return BTreeIndex(files)

    def merge(
        self, writer: SegmentWriter, field: Field, sources: Sources, batches: Batches, options: Mapping[str, Any]
    ) -> Message:
        """Write a segment from others and new rows. See IndexKind."""
        runs = []
        page_rows = _DEFAULT_PAGE_ROWS
        for source, keep in reversed(sources):
            assert isinstance(source, BTreeIndex)
            check_same_type(self.name, source.data_type, field)
            runs.append(_filtered(source.sorted_rows(), keep))
            page_rows = source.page_rows
        page_rows = checked_options(self.name, options, {"zone_size": page_rows})["zone_size"]
        if not 0 < page_rows <= _MAX_PAGE_ROWS:
            raise InvalidInputError(f"option 'zone_size' must be from 1 to {_MAX_PAGE_ROWS}, got {page_rows}")
        with ExternalSort() as sort:
            for batch in batches:
                sort.add(batch)
            _PageWriter(writer, field.data_type, page_rows).write(sort.merged(runs))
        return index_details_pb2.BTreeIndexDetails()

    def remap(self, writer: SegmentWriter, source: OpenIndex, mapping: AddressMapping) -> bool:
        """Write a segment whose rows are mapped. See IndexKind."""
        assert isinstance(source, BTreeIndex)
        _PageWriter(writer, source.stored_type, source.page_rows).write(_mapped(source.sorted_rows(), mapping))
        return True


def _filtered(batches: Run, keep: RowFilter) -> Run:
    for batch in batches:
        yield batch.filter(pa.array(keep(batch.column(ROW).to_numpy())))


def _mapped(batches: Run, mapping: AddressMapping) -> Run:
    for batch in batches:
        rows, exists = mapping.apply(batch.column(ROW).to_numpy())
        yield pa.record_batch({VALUE: batch.column(VALUE), ROW: pa.array(rows)}).filter(pa.array(exists))


KIND: Final = BTree()
