"""Reading a data file: its metadata once, then any rows of any fields.

    open_data_file   footer, descriptor, tables      ->  FileMetadata (immutable; callers keep it)
    read_columns     fields, rows                    ->  one array for each field

The decoders are plans (fetch.py); this module and writer.py do the I/O of the folder. Arrays come in the storage type
of the field, `Field.data_type`; whoever shows them to users wraps extension types by `Field.to_arrow()`.
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
"""Version -> its encodings. A version that is not here is refused by name."""

TAIL_BYTES: Final = 64 * 1024
"""Enough for the metadata of most files, and no more than a round trip costs anyway."""

KEPT_BYTES: Final = 16 * 1024
"""A file up to this size is read whole when it is opened, and its bytes stay with its metadata; those of one up to
TAIL_BYTES stay until rows are read for the first time."""

MAX_READERS: Final = 4096

Arrays: TypeAlias = "pa.Array | pa.ChunkedArray"


def open_data_file(
    store: ObjectStore, path: str, *, size: int | None = None, limits: Limits = DEFAULT_LIMITS
) -> FileMetadata:
    """Read everything about a file but its data, in one request or two. `size` saves asking for it.

    Raises CorruptFileError if the bytes break the format, UnsupportedFeatureError for a version that is not built.
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
        tail = _join(store, path, footer.column_metadata_position, start, tail)
        start = footer.column_metadata_position
    where = descriptor_range(footer, tail, size, path)
    if where.start < start:
        descriptor = store.read(path, where.start, where.end)
    else:
        descriptor = tail[where.start - start : where.end - start]
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
    while (where := metadata_range(footer, tail, size, path)).start < start:
        tail = _join(store, path, where.start, start, tail)
        start = where.start
    return parse_legacy(tail, size, footer, path, limits, content)


def _join(store: ObjectStore, path: str, first: int, start: int, tail: memoryview) -> memoryview:
    if store.capabilities.local:
        return store.read(path, first, start + len(tail))
    return memoryview(b"".join((store.read(path, first, start), tail)))


def family_of(version: FileVersion, path: str) -> Family:
    """The encodings of a version. Raises UnsupportedFeatureError naming version and file if they are not built."""
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
    """Read fields of a file, each in its `data_type`.

    `fields` are top-level fields, possibly with fewer children than the file has; `columns` maps field ids to columns
    of the file. `rows` is a range of step 1, ascending row numbers without repeats (int64), or None for all.
    Ranges give chunked arrays, a chunk for each page, over the bytes of the file where the encoding allows; row numbers
    give arrays, chunked only where the dictionaries of pages differ.
    Raises OutOfRangeError for rows that the file does not have, CorruptFileError if the bytes break the format. Nulls
    in a field that has none are returned: see `refuse_nulls`.
    """
    rows = _checked_rows(meta, rows)
    if isinstance(rows, range):
        chunks = read_chunks(store, path, meta, fields, columns, rows)
        return [pa.chunked_array(arrays, type=field.data_type) for arrays, field in zip(chunks, fields)]
    readers = _readers(store, path, meta, fields, columns)
    if len(rows) == 0:
        return [_assemble([], field.data_type, rows) for field in fields]
    source, gap = _source(store, meta)
    wanted = _as_range(rows)
    parts = run(gather([reader.read(wanted, gap) for reader in readers]), source, path)
    return [_assemble(arrays, field.data_type, rows) for arrays, field in zip(parts, fields)]


def read_chunks(
    store: ObjectStore,
    path: str,
    meta: FileMetadata,
    fields: Sequence[Field],
    columns: Mapping[int, int],
    rows: range | None = None,
) -> list[list[pa.Array]]:
    """`read_columns` of a range: the chunks of each field, for callers that join those of many files."""
    rows = range(meta.num_rows) if rows is None else rows
    _checked_rows(meta, rows)
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
    found = run_all(plans, heavy, source, path)
    if len(found) == len(fields):
        return found
    each = iter(found)
    return [[array for _ in range(count) for array in next(each)] for count in counts]


class Cursors:
    """`read_columns` for stretches of rows of a file that follow each other, as the windows of a scan do: of small ones
    the plans take longer than decoding. Every stretch is decoded by the thread that asks for it.

    Keeps what belongs to the files that were read last. Threads may share it.
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
        cursors = None
        if isinstance(rows, range) and len(rows):
            _checked_rows(meta, rows)
            cursors = self._cursors(store, path, meta, fields, columns)
        if cursors is None:
            return read_columns(store, path, meta, fields, columns, rows)
        assert isinstance(rows, range)
        found = [cursor(rows) for cursor in cursors]
        return [pa.chunked_array(arrays, type=field.data_type) for arrays, field in zip(found, fields)]

    def _cursors(
        self, store: ObjectStore, path: str, meta: FileMetadata, fields: Sequence[Field], columns: Mapping[int, int]
    ) -> list[Cursor] | None:
        """None where plans cost little, or their bytes have to be fetched."""
        known = self._files.get(path)
        if known is not None and known[0] is fields:
            return known[1]
        with self._lock:
            open_cursor = family_of(meta.version, path).open_cursor
            made: list[Cursor] | None = None
            if open_cursor is not None and (meta.content is not None or gap_bytes(store) == MAPPED):
                source, _ = _source(store, meta)
                answer = partial(run, store=source, path=path)
                readers = _readers(store, path, meta, fields, columns)
                made = [open_cursor(reader, answer) or _Plans(reader, answer) for reader in readers]
            if len(self._files) > 2 * pool.size():
                del self._files[next(iter(self._files))]
            self._files[path] = fields, made
            return made


class _Plans:
    """A cursor of a reader that has none."""

    def __init__(self, reader: ColumnReader, answer: RunPlan) -> None:
        self._reader = reader
        self._answer = answer

    def __call__(self, rows: range) -> list[pa.Array]:
        return self._answer(self._reader.read(rows, MAPPED))


class FileRows(NamedTuple):
    """Rows of fields of one file, the arguments of `read_chunks`."""

    path: str
    meta: FileMetadata
    fields: Sequence[Field]
    columns: Mapping[int, int]
    rows: range


def read_chunks_of_files(store: ObjectStore, files: Sequence[FileRows]) -> list[list[list[pa.Array]]]:
    """`read_chunks` of many small files, step by step for all of them together (fetch.py: run_each).

    What all of them hold is in memory together, and nothing is decoded on the pool.
    """
    opened = []
    for path, meta, fields, columns, rows in files:
        _checked_rows(meta, rows)
        opened.append(_readers(store, path, meta, fields, columns) if len(rows) else [])
    plans: list[ReadPlan[list[list[pa.Array]]]] = []
    sources: list[RangeSource] = []
    paths: list[str] = []
    for (path, meta, _, _, rows), readers in zip(files, opened):
        if readers:
            source, gap = _source(store, meta)
            plans.append(gather([reader.read(rows, gap) for reader in readers]))
            sources.append(source)
            paths.append(path)
    each = iter(run_each(plans, sources, paths))
    return [next(each) if readers else [[] for _ in file.fields] for file, readers in zip(files, opened)]


def pages_without_nulls(meta: FileMetadata, field: Field, columns: Mapping[int, int], most: int) -> int | None:
    """How many pages a top-level field without children has, if the file says of all that nothing in them is null; None
    where it does not say, and of more than `most` pages. What it says is not checked against the values. Raises as
    `open_data_file`."""
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
    """Raise SchemaMismatchError for nulls in what was read of a field that has none.

    The encodings of a file may hold nulls where a schema has none: that of the table, which came later, or its own. Who
    reads them by that schema would take them for values. Deleted rows may have them; so this is for callers, who know
    which rows those are.
    """
    if not field.nullable and any(array.null_count for array in arrays):
        raise SchemaMismatchError(
            f"{path}: column {field.name!r} has nulls, and the schema says that it has none; make it nullable to"
            " read them, as alter_columns does",
            column=field.name,
        )


class _Content(NamedTuple):
    """The bytes of a small file that was read as a whole."""

    data: memoryview

    def read_many(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        data = self.data
        for start, end in ranges:
            if not 0 <= start <= end <= len(data):
                raise short_read(path, start, end, max(len(data) - start, 0))
        return [data[start:end] for start, end in ranges]


def _source(store: ObjectStore, meta: FileMetadata) -> tuple[RangeSource, int]:
    """Where the bytes of the pages come from, and how far apart rows may lie to be fetched as one range."""
    content = meta.content
    if content is None:
        return store, gap_bytes(store)
    if len(content) > KEPT_BYTES:
        meta.content = None
    return _Content(content), MAPPED


def _checked_rows(meta: FileMetadata, rows: Rows | None) -> Rows:
    if rows is None:
        return range(meta.num_rows)
    if len(rows) and not (rows[0] >= 0 and rows[-1] < meta.num_rows):
        raise OutOfRangeError(f"{meta.path}: rows {rows[0]} to {rows[-1]} of {meta.num_rows}", path=meta.path)
    return rows


def _as_range(rows: Rows) -> Rows:
    """Neighbouring row numbers as a range, which is cheaper to read."""
    if isinstance(rows, range):
        return rows
    first, last = int(rows[0]), int(rows[-1])
    return range(first, last + 1) if last - first + 1 == len(rows) else rows


def _plan_readers(
    meta: FileMetadata, fields: Sequence[Field], columns: Mapping[int, int]
) -> ReadPlan[list[ColumnReader]]:
    """The readers of fields; costs a round where encodings lie apart from the metadata, which no usual writer does."""
    while True:
        try:
            return _open_readers(meta, fields, columns)
        except IndirectEncodings as error:  # noqa: PERF203 - the loop is the retry
            meta.keep_indirect(error.ranges, (yield error.ranges))


def _open_readers(meta: FileMetadata, fields: Sequence[Field], columns: Mapping[int, int]) -> list[ColumnReader]:
    # Readers are kept with the metadata: building them would cost a small take more than reading does. Fields are told
    # apart by identity, which the kept reference makes safe.
    cache = meta.readers
    if (cache.columns is not columns and cache.columns != columns) or len(cache.readers) > MAX_READERS:
        cache = meta.readers = ReaderCache(columns, {})
    found = []
    for field in fields:
        entry = cache.readers.get(id(field))
        if entry is None:
            entry = cache.readers[id(field)] = (field, _open_reader(meta, field, columns))
        found.append(entry[1])
    return found


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
    if _holds_dictionary(data_type):
        return pa.chunked_array(arrays, type=data_type)
    return pa.concat_arrays(arrays)


def _holds_dictionary(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type):
        return True
    return any(_holds_dictionary(data_type.field(number).type) for number in range(data_type.num_fields))
