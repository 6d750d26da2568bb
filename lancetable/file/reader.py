"""Reader of data files of all versions.

    open_data_file   footer, descriptor, tables      ->  FileMetadata (immutable; callers cache it)
    read_columns     fields, rows                    ->  one array for each field

Decoders are read plans (fetch.py); this module runs them and does the I/O. Arrays have the storage type of the field,
`Field.data_type`. Callers that return them to users wrap extension types (`Field.to_arrow()`, extension.py).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from lancetable.errors import OutOfRangeError, SchemaMismatchError, UnsupportedFeatureError
from lancetable.file import pool
from lancetable.file.column import ColumnReader, Cursor, Family, RunPlan
from lancetable.file.container import (
    DEFAULT_LIMITS,
    FileMetadata,
    Footer,
    IndirectEncodings,
    Limits,
    ReaderCache,
    descriptor_range,
    parse_footer,
    parse_metadata,
)
from lancetable.file.encodings_v0_1.family import FAMILY as FAMILY_0_1
from lancetable.file.encodings_v2_0.family import FAMILY as FAMILY_2_0
from lancetable.file.encodings_v2_1.family import FAMILY_2_1, FAMILY_2_2
from lancetable.file.fetch import MAPPED, RangeSource, ReadPlan, Rows, gap_bytes, gather, run, run_all, run_each
from lancetable.file.legacy_container import LegacyMetadata, metadata_range, parse_legacy
from lancetable.format.schema import Field
from lancetable.format.version import FileVersion
from lancetable.store.base import ByteRange, ObjectStore, short_read

__all__ = [
    "FAMILIES",
    "Cursors",
    "FileMetadata",
    "FileRows",
    "family_of",
    "open_data_file",
    "pages_without_nulls",
    "read_chunks",
    "read_chunks_of_files",
    "read_columns",
    "refuse_nulls",
]

FAMILIES: Final[dict[FileVersion, Family]] = {
    FileVersion.LEGACY: FAMILY_0_1,
    FileVersion.V2_0: FAMILY_2_0,
    FileVersion.V2_1: FAMILY_2_1,
    FileVersion.V2_2: FAMILY_2_2,
}
"""Encodings of each supported file version."""

TAIL_BYTES: Final = 64 * 1024
"""Size of the first read of a file. It covers the metadata of most files and takes no longer than a round trip.

A file up to this size is read as a whole; its bytes are cached until rows are read for the first time.
"""

KEPT_BYTES: Final = 16 * 1024
"""Maximum size of a file whose bytes stay cached with its metadata."""

MAX_READERS: Final = 4096
"""Maximum number of cached column readers per file; the cache is cleared when it exceeds this."""

Arrays: TypeAlias = "pa.Array | pa.ChunkedArray"


def open_data_file(
    store: ObjectStore, path: str, *, size: int | None = None, limits: Limits = DEFAULT_LIMITS
) -> FileMetadata:
    """Read the metadata of a data file, usually in one or two requests.

    Parameters
    ----------
    store
        Object store of the file.
    path
        Path of the file in the store.
    size
        Size of the file in bytes. None requests it from the store.
    limits
        Limits for reading the file.

    Raises
    ------
    NotFoundError
        If the file does not exist.
    CorruptFileError
        If the file is not a valid data file.
    UnsupportedFeatureError
        If the version is not supported.
    """
    if size is None:
        size = store.size(path)
    start = max(size - TAIL_BYTES, 0)
    content = store.read_all(path, size) if size <= TAIL_BYTES else None
    tail = store.read(path, start, size) if content is None else content
    footer = parse_footer(tail, size, path)
    family_of(footer.version, path)
    if footer.version.is_legacy:
        return _open_legacy(store, path, size, footer, tail, limits, content)
    if footer.column_metadata_position < start:
        tail = _extend_tail(store, path, footer.column_metadata_position, start, tail)
        start = footer.column_metadata_position
    location = descriptor_range(footer, tail, size, path)
    if location.start < start:
        descriptor = store.read(path, location.start, location.end)
    else:
        descriptor = tail[location.start - start : location.end - start]
    return parse_metadata(tail, descriptor, size, footer, path, limits, content)


def _open_legacy(
    store: ObjectStore,
    path: str,
    size: int,
    footer: Footer,
    tail: memoryview,
    limits: Limits,
    content: memoryview | None,
) -> LegacyMetadata:
    start = size - len(tail)
    while (location := metadata_range(footer, tail, size, path)).start < start:
        tail = _extend_tail(store, path, location.start, start, tail)
        start = location.start
    return parse_legacy(tail, size, footer, path, limits, content)


def _extend_tail(store: ObjectStore, path: str, first: int, start: int, tail: memoryview) -> memoryview:
    """Extend `tail`, which begins at `start`, back to position `first`."""
    if store.capabilities.local:
        return store.read(path, first, start + len(tail))
    return memoryview(b"".join((store.read(path, first, start), tail)))


def family_of(version: FileVersion, path: str) -> Family:
    """Return the encodings of a version. Raises UnsupportedFeatureError if the version is not supported."""
    family = FAMILIES.get(version)
    if family is None:
        raise UnsupportedFeatureError(
            f"{path}: data files of version {version.number} are not supported yet",
            feature=f"data file version {version.number}",
            path=path,
        )
    return family


def read_columns(
    store: ObjectStore,
    path: str,
    meta: FileMetadata,
    fields: Sequence[Field],
    columns: Mapping[int, int],
    rows: Rows | None = None,
) -> list[Arrays]:
    """Read fields of a file.

    Parameters
    ----------
    store, path
        Object store and path of the file.
    meta
        Metadata of the file, from `open_data_file`.
    fields
        Top-level fields, possibly with fewer children than in the file.
    columns
        Map from field ids to columns of the file.
    rows
        A range of step 1, an int64 array of ascending row numbers without duplicates, or None for all rows.

    Returns
    -------
    list
        An array of type `Field.data_type` for each field. A range returns chunked arrays with a chunk for each page,
        without copying the bytes of the file where the encoding allows. Row numbers return arrays, which are chunked
        only if the type contains a dictionary and several pages are read. Nulls in a non-nullable field do not raise
        an error; see `refuse_nulls`.

    Raises
    ------
    OutOfRangeError
        If the file does not have the rows.
    CorruptFileError
        If the file is invalid.
    UnsupportedFeatureError
        If an encoding is not supported.
    """
    rows = _check_rows(meta, rows)
    if isinstance(rows, range):
        chunks = read_chunks(store, path, meta, fields, columns, rows)
        return [pa.chunked_array(arrays, type=field.data_type) for arrays, field in zip(chunks, fields)]
    readers = _readers(store, path, meta, fields, columns)
    if len(rows) == 0:
        return [_assemble([], field.data_type, rows) for field in fields]
    source, gap = _source(store, meta)
    selection = _as_range(rows)
    parts = run(gather([reader.read(selection, gap) for reader in readers]), source, path)
    return [_assemble(arrays, field.data_type, rows) for arrays, field in zip(parts, fields)]


def read_chunks(
    store: ObjectStore,
    path: str,
    meta: FileMetadata,
    fields: Sequence[Field],
    columns: Mapping[int, int],
    rows: range | None = None,
) -> list[list[pa.Array]]:
    """Read a range of rows and return the chunks of each field, for callers that concatenate several files.

    Parameters and errors are those of `read_columns`.
    """
    rows = range(meta.num_rows) if rows is None else rows
    _check_rows(meta, rows)
    readers = _readers(store, path, meta, fields, columns)
    if len(rows) == 0:
        return [[] for _ in fields]
    source, gap = _source(store, meta)
    plans: list[ReadPlan[list[pa.Array]]] = []
    heavy: list[bool] = []
    counts: list[int] = []
    for reader in readers:
        parts = reader.cuts(rows) if reader.heavy else (rows,)
        counts.append(len(parts))
        for part in parts:
            plans.append(reader.read(part, gap))
            heavy.append(reader.heavy)
    results = run_all(plans, heavy, source, path)
    if len(results) == len(fields):
        return results
    parts_in_order = iter(results)
    return [[array for _ in range(count) for array in next(parts_in_order)] for count in counts]


class Cursors:
    """Variant of `read_columns` for consecutive row ranges of a file, as read by a scan.

    Planning a small range takes longer than decoding it. Cursors parse the metadata of each page only once; they exist
    for the files read most recently. The calling thread decodes the range. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, tuple[Sequence[Field], list[Cursor] | None]] = {}

    def read_columns(
        self,
        store: ObjectStore,
        path: str,
        meta: FileMetadata,
        fields: Sequence[Field],
        columns: Mapping[int, int],
        rows: Rows | None = None,
    ) -> list[Arrays]:
        """Read fields of a file. Parameters, result and errors are those of the function `read_columns`."""
        cursors = None
        if isinstance(rows, range) and len(rows):
            _check_rows(meta, rows)
            cursors = self._cursors(store, path, meta, fields, columns)
        if cursors is None:
            return read_columns(store, path, meta, fields, columns, rows)
        assert isinstance(rows, range)
        chunks = [cursor(rows) for cursor in cursors]
        return [pa.chunked_array(arrays, type=field.data_type) for arrays, field in zip(chunks, fields)]

    def _cursors(
        self, store: ObjectStore, path: str, meta: FileMetadata, fields: Sequence[Field], columns: Mapping[int, int]
    ) -> list[Cursor] | None:
        """Return a cursor for each field, or None if planning is cheap or the bytes must be fetched from the store."""
        cached = self._files.get(path)
        if cached is not None and cached[0] is fields:
            return cached[1]
        with self._lock:
            open_cursor = family_of(meta.version, path).open_cursor
            cursors: list[Cursor] | None = None
            if open_cursor is not None and (meta.content is not None or gap_bytes(store) == MAPPED):
                source, _ = _source(store, meta)
                run_plan = partial(run, store=source, path=path)
                readers = _readers(store, path, meta, fields, columns)
                cursors = [open_cursor(reader, run_plan) or _PlanCursor(reader, run_plan) for reader in readers]
            if len(self._files) > 2 * pool.size():
                del self._files[next(iter(self._files))]
            self._files[path] = fields, cursors
            return cursors


class _PlanCursor:
    """Cursor for a reader without one: plans every range separately."""

    def __init__(self, reader: ColumnReader, run_plan: RunPlan) -> None:
        self._reader = reader
        self._run_plan = run_plan

    def __call__(self, rows: range) -> list[pa.Array]:
        return self._run_plan(self._reader.read(rows, MAPPED))


class FileRows(NamedTuple):
    """Row range of some fields of one file: the arguments of `read_chunks`."""

    path: str
    meta: FileMetadata
    fields: Sequence[Field]
    columns: Mapping[int, int]
    rows: range


def read_chunks_of_files(store: ObjectStore, files: Sequence[FileRows]) -> list[list[list[pa.Array]]]:
    """Read chunks of many small files as `read_chunks` does, advancing all files in common rounds (fetch.run_each).

    All results are in memory at the same time. The calling thread decodes them.
    """
    readers_of_files = []
    for path, meta, fields, columns, rows in files:
        _check_rows(meta, rows)
        readers_of_files.append(_readers(store, path, meta, fields, columns) if len(rows) else [])
    plans: list[ReadPlan[list[list[pa.Array]]]] = []
    sources: list[RangeSource] = []
    paths: list[str] = []
    for (path, meta, _, _, rows), readers in zip(files, readers_of_files):
        if readers:
            source, gap = _source(store, meta)
            plans.append(gather([reader.read(rows, gap) for reader in readers]))
            sources.append(source)
            paths.append(path)
    results = iter(run_each(plans, sources, paths))
    return [next(results) if readers else [[] for _ in file.fields] for file, readers in zip(files, readers_of_files)]


def pages_without_nulls(meta: FileMetadata, field: Field, columns: Mapping[int, int], most: int) -> int | None:
    """Return the number of pages of a field if its encodings guarantee that the field has no nulls.

    The values are not read.

    Parameters
    ----------
    meta
        Metadata of the file.
    field
        A top-level field without children.
    columns
        Map from field ids to columns of the file.
    most
        Maximum number of pages to inspect.

    Returns
    -------
    int or None
        None if a page may contain nulls or the field has more than `most` pages.

    Raises
    ------
    CorruptFileError
        If the metadata of the column is invalid.
    UnsupportedFeatureError
        If the version is not supported.
    """
    index, family = columns.get(field.id), family_of(meta.version, meta.path)
    if index is None or family.has_no_nulls is None:
        return None
    pages = meta.column(index)
    if pages.num_rows != meta.num_rows or pages.num_pages > most or not family.has_no_nulls(pages):
        return None
    return pages.num_pages


def _readers(
    store: ObjectStore, path: str, meta: FileMetadata, fields: Sequence[Field], columns: Mapping[int, int]
) -> list[ColumnReader]:
    try:
        return _open_readers(meta, fields, columns)
    except IndirectEncodings:
        return run(_plan_readers(meta, fields, columns), store, path)


def refuse_nulls(field: Field, arrays: Sequence[Arrays], path: str) -> None:
    """Raise SchemaMismatchError if arrays of a non-nullable field contain nulls.

    A file can store nulls in a field that the schema of the table, or even of the file, declares non-nullable. Readers
    that rely on the schema would treat the nulls as values. Deleted rows may contain nulls, so the caller, which has
    the deletion vector, applies this check after filtering.
    """
    if not field.nullable and any(array.null_count for array in arrays):
        raise SchemaMismatchError(
            f"{path}: column {field.name!r} is declared non-nullable but contains nulls; make it nullable with"
            " alter_columns to read them",
            column=field.name,
        )


class _Content(NamedTuple):
    """Range source over the cached bytes of a small file."""

    data: memoryview

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        data = self.data
        for start, end in ranges:
            if not 0 <= start <= end <= len(data):
                raise short_read(path, start, end, max(len(data) - start, 0))
        return [data[start:end] for start, end in ranges]


def _source(store: ObjectStore, meta: FileMetadata) -> tuple[RangeSource, int]:
    """Return the source of page bytes (the cached bytes or the store) and its gap for coalescing ranges."""
    content = meta.content
    if content is None:
        return store, gap_bytes(store)
    if len(content) > KEPT_BYTES:
        meta.content = None
    return _Content(content), MAPPED


def _check_rows(meta: FileMetadata, rows: Rows | None) -> Rows:
    if rows is None:
        return range(meta.num_rows)
    if len(rows) and not (rows[0] >= 0 and rows[-1] < meta.num_rows):
        raise OutOfRangeError(
            f"{meta.path}: rows {rows[0]} to {rows[-1]} out of range; the file has {meta.num_rows} rows", path=meta.path
        )
    return rows


def _as_range(rows: Rows) -> Rows:
    """Convert consecutive row numbers to a range, which is cheaper to read."""
    if isinstance(rows, range):
        return rows
    first, last = int(rows[0]), int(rows[-1])
    return range(first, last + 1) if last - first + 1 == len(rows) else rows


def _plan_readers(
    meta: FileMetadata, fields: Sequence[Field], columns: Mapping[int, int]
) -> ReadPlan[list[ColumnReader]]:
    """Open readers; fetch encodings stored outside of the column metadata, which common writers do not produce."""
    while True:
        try:
            return _open_readers(meta, fields, columns)
        except IndirectEncodings as error:  # noqa: PERF203 - the loop is the retry
            meta.keep_indirect(error.ranges, (yield error.ranges))


def _open_readers(meta: FileMetadata, fields: Sequence[Field], columns: Mapping[int, int]) -> list[ColumnReader]:
    # Readers are cached with the metadata because building them costs a small take more than reading does. The key is
    # the identity of the field; it stays unique because the cache keeps a reference to the field.
    cache = meta.readers
    if (cache.columns is not columns and cache.columns != columns) or len(cache.readers) > MAX_READERS:
        cache = meta.readers = ReaderCache(columns, {})
    readers = []
    for field in fields:
        entry = cache.readers.get(id(field))
        if entry is None:
            entry = cache.readers[id(field)] = (field, _open_reader(meta, field, columns))
        readers.append(entry[1])
    return readers


def _open_reader(meta: FileMetadata, field: Field, columns: Mapping[int, int]) -> ColumnReader:
    reader = family_of(meta.version, meta.path).open_field(meta, field, columns)
    if reader.num_rows != meta.num_rows:
        raise meta.corrupt(f"field {field.name!r} has the wrong number of rows", meta.num_rows, reader.num_rows)
    return reader


def _assemble(arrays: Sequence[pa.Array], data_type: pa.DataType, rows: Rows) -> Arrays:
    if isinstance(rows, range):
        return pa.chunked_array(arrays, type=data_type)
    if len(arrays) == 1:
        return arrays[0]
    if not arrays:
        return pa.nulls(0, data_type)
    if _contains_dictionary(data_type):
        return pa.chunked_array(arrays, type=data_type)
    return pa.concat_arrays(arrays)


def _contains_dictionary(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type):
        return True
    return any(_contains_dictionary(data_type.field(number).type) for number in range(data_type.num_fields))
