"""Reader of data files of all versions.

    open_data_file   footer, descriptor, tables      ->  FileMetadata (immutable; callers cache it)
    read_files       fields and rows of some files   ->  chunks of each field of each file
    read_columns     fields and rows of one file     ->  one array for each field

Decoders are read plans (io_scheduler.py); this module runs them and does the I/O. Arrays have the storage type of the
field, `Field.data_type`. Callers that return them to users wrap extension types (`Field.to_arrow()`,
extension_types.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from lancetable.errors import OutOfRangeError, SchemaMismatchError, UnsupportedFeatureError
from lancetable.file import thread_pool
from lancetable.file.column_interfaces import (
    ColumnReader,
    Family,
    FieldTaker,
    GroupReader,
    Writers,
    contains_dictionary,
)
from lancetable.file.footer import (
    ALIGNMENT,
    PADDING,
    FileMetadata,
    FileTail,
    IndirectEncodings,
    ReaderCache,
    descriptor_range,
    parse_footer,
    parse_metadata,
)
from lancetable.file.io_scheduler import (
    MAPPED,
    PARALLEL_BYTES,
    InMemory,
    RangeSource,
    ReadPlan,
    Rows,
    as_range,
    gap_bytes,
    gather,
    run_each,
)
from lancetable.file.legacy_footer import metadata_range, parse_legacy
from lancetable.file.limits import ReadLimits, limits_of
from lancetable.format.schema import Field
from lancetable.format.version import FileVersion
from lancetable.store.base import ObjectStore


@cache
def _family_v0_1() -> Family:
    from lancetable.file.encodings_v0_1 import field_readers

    return Family(field_readers.open_field)


@cache
def _family_v2_0() -> Family:
    from lancetable.file.encodings_v2_0 import column_groups, column_writers, field_readers, file_groups

    writers = Writers(column_writers.column_encodings, column_writers.open_writer)
    return Family(
        field_readers.open_field,
        lambda: writers,
        field_readers.has_no_nulls,
        column_groups.group_fields,
        read_files=file_groups.read_files,
    )


@cache
def _family_v2_1(version: FileVersion) -> Family:
    from lancetable.file.encodings_v2_1 import column_groups, column_takes, field_readers, file_groups

    @cache
    def writers() -> Writers:
        from lancetable.file.encodings_v2_1 import column_writers, small_columns

        return Writers(
            partial(column_writers.column_encodings, version),
            partial(column_writers.open_writer, version),
            partial(small_columns.open_encoder, version),
        )

    return Family(
        field_readers.open_field,
        writers,
        field_readers.has_no_nulls,
        column_groups.group_fields,
        column_takes.FieldTaker,
        file_groups.read_files,
    )


FAMILIES: Final[dict[FileVersion, Callable[[], Family]]] = {
    FileVersion.LEGACY: _family_v0_1,
    FileVersion.V2_0: _family_v2_0,
} | {version: partial(_family_v2_1, version) for version in (FileVersion.V2_1, FileVersion.V2_2)}
"""Encodings of each supported file version. They are imported on first use, because most tables use one version."""

TAIL_BYTES: Final = 64 * 1024
"""Size of the first read of a file. It covers the metadata of most files; its transfer takes less than a round trip.

A file up to this size is read as a whole, and its bytes are cached until rows are read for the first time.
"""

MAX_CACHED_FILE_BYTES: Final = 16 * 1024
"""Maximum size of a file whose bytes stay cached with its metadata."""

_MIN_FILES: Final = 3  # small files that are read together

_FEW_ROWS: Final = 48  # up to this many rows, splitting them costs more than it saves
_MAX_TAKEN_ROWS: Final = 1024  # single rows, up to which the steps cost more than the values

MAX_SELECTIONS: Final = 256
"""Maximum number of selections of fields per file whose readers are cached; the cache is cleared when it is full."""

Arrays: TypeAlias = "pa.Array | pa.ChunkedArray"


def open_data_file(
    store: ObjectStore, path: str, *, size: int | None = None, limits: ReadLimits | None = None
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
        Limits for reading the file; those of the store by default.

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
    limits = limits or limits_of(store)
    content = store.read_all(path, size) if size <= TAIL_BYTES else None
    tail = FileTail(path, size, store.read(path, size - TAIL_BYTES, size) if content is None else content)
    footer = parse_footer(tail)
    family_of(footer.version, path)
    if footer.version.is_legacy:
        while (location := metadata_range(footer, tail)).start < tail.start:
            tail = _extend_tail(store, tail, location.start, limits)
        return parse_legacy(tail, footer, limits, content)
    if footer.column_metadata_position < tail.start:
        tail = _extend_tail(store, tail, footer.column_metadata_position, limits)
    start, end = descriptor_range(footer, tail)
    limits.check("metadata_bytes", end - start, path, "bytes of the schema")
    descriptor = store.read(path, start, end) if start < tail.start else tail.between(start, end)
    return parse_metadata(tail, descriptor, footer, limits, content)


def _extend_tail(store: ObjectStore, tail: FileTail, start: int, limits: ReadLimits) -> FileTail:
    """Extend `tail` back to position `start`. Raises LimitError if it is too long."""
    limits.check("metadata_bytes", tail.size_bytes - start, tail.path, "bytes of metadata")
    if store.capabilities.local:
        return tail._replace(data=store.read(tail.path, start, tail.size_bytes))
    return tail._replace(data=memoryview(b"".join((store.read(tail.path, start, tail.start), tail.data))))


def family_of(version: FileVersion, path: str) -> Family:
    """Return the encodings of a version. Raises UnsupportedFeatureError if the version is not supported."""
    family = FAMILIES.get(version)
    if family is None:
        raise UnsupportedFeatureError(
            f"{path}: data files of version {version.number} are not supported yet",
            feature=f"data file version {version.number}",
            path=path,
        )
    return family()


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
        An array of type `Field.data_type` for each field. For a range, the arrays are chunked, with a chunk for each
        page, and refer to the bytes of the file where the encoding allows. For row numbers, they are chunked only if
        the type contains a dictionary and several pages are read. Nulls in a non-nullable field do not raise an error;
        see `refuse_nulls`.

    Raises
    ------
    OutOfRangeError
        If a row is not in the file.
    CorruptFileError
        If the file is invalid.
    UnsupportedFeatureError
        If an encoding is not supported.
    """
    (chunks,) = read_files(store, [FileRows(path, meta, fields, columns, rows)])
    is_range = rows is None or isinstance(rows, range)
    return [_assemble(arrays, field.data_type, is_range) for arrays, field in zip(chunks, fields)]


class FileRows(NamedTuple):
    """Selection of rows of some fields of one file. The members are the parameters of `read_columns`."""

    path: str
    meta: FileMetadata
    fields: Sequence[Field]
    columns: Mapping[int, int]
    rows: Rows | None = None


def read_files(store: ObjectStore, selections: Sequence[FileRows]) -> list[list[list[pa.Array]]]:
    """Read rows of one or several files.

    If there is one selection and it is a range, the threads of the pool share it. Otherwise the calling thread decodes
    all rows: it decodes the pages of small files together where possible, and reads the others in common rounds
    (`run_each`), so their results are in memory at the same time.

    Returns
    -------
    list
        For each selection, the chunks of each field, in order. Errors are those of `read_columns`.
    """
    rows = [_check_rows(selection.meta, selection.rows) for selection in selections]
    together = _read_together(store, selections, rows) if len(selections) >= _MIN_FILES else {}
    plans: list[ReadPlan[list[list[pa.Array]]]] = []
    sources: list[RangeSource] = []
    planned: list[int] = []
    for number, (path, meta, fields, columns, _) in enumerate(selections):
        known = together.get(number)
        if known is None:
            source, max_gap = _source(store, meta) if len(rows[number]) else (store, 0)
        else:
            arrays, source, max_gap = *known, MAPPED
            fields = [field for field, array in zip(fields, arrays) if array is None]
            if not fields:
                continue
        readers = _readers(store, path, meta, fields, columns)
        # A smaller file has no two columns that are worth a thread.
        parallel = len(selections) == 1 and meta.size_bytes >= 2 * PARALLEL_BYTES and thread_pool.can_share()
        plans.append(_read_fields(readers, rows[number], max_gap, parallel=parallel))
        sources.append(source)
        planned.append(number)
    found = dict(zip(planned, run_each(plans, sources, [selections[number].path for number in planned])))
    for number, (arrays, _) in together.items():
        others = iter(found.get(number, ()))
        found[number] = [next(others) if array is None else [array] for array in arrays]
    return [found[number] for number in range(len(selections))]


def _read_together(
    store: ObjectStore, selections: Sequence[FileRows], rows: Sequence[Rows]
) -> dict[int, tuple[list[pa.Array | None], RangeSource]]:
    """Read small files that have the same fields in the same columns, each with at most one request.

    Returns for the number of each such file the array of each field, or None if it was not read, and the bytes of the
    file.
    """
    groups: dict[tuple[int, int, FileVersion], list[int]] = {}  # by the identities of fields and columns
    for number, (_, meta, fields, columns, _) in enumerate(selections):
        if meta.size_bytes <= TAIL_BYTES and len(rows[number]):
            groups.setdefault((id(fields), id(columns), meta.version), []).append(number)
    found: dict[int, tuple[list[pa.Array | None], RangeSource]] = {}
    for (_, _, version), numbers in groups.items():
        files = [selections[number] for number in numbers]
        read = family_of(version, files[0].path).read_files
        if read is None or len(files) < _MIN_FILES:
            continue
        contents = [_content(store, file.meta) for file in files]
        parts = [part for content in contents for part in (content, PADDING[: -len(content) % ALIGNMENT])]
        starts = list(itertools.accumulate(map(len, parts), initial=0))[::2]  # aligned, as buffers in a file
        data, metas = InMemory(memoryview(b"".join(parts))), [file.meta for file in files]
        arrays = read(metas, data, starts, files[0].fields, files[0].columns, [rows[number] for number in numbers])
        for number, known, content in zip(numbers, arrays, contents):
            found[number] = known, InMemory(content)
    return found


def _content(store: ObjectStore, meta: FileMetadata) -> memoryview:
    """Return the bytes of a small file."""
    content = meta.content
    if content is None:
        return store.read_all(meta.path, meta.size_bytes)
    if len(content) > MAX_CACHED_FILE_BYTES:
        meta.content = None
    return memoryview(content)


class _Readers(NamedTuple):
    """Readers of some fields: groups of fields that are read together, and the other fields with their positions.

    `taker` reads a few rows of the other fields, if these are several and the version has such a reader.
    """

    num_fields: int
    groups: Sequence[GroupReader]
    positions: Sequence[int]
    others: Sequence[ColumnReader]
    taker: FieldTaker | None


def _read_fields(readers: _Readers, rows: Rows, max_gap: int, *, parallel: bool) -> ReadPlan[list[list[pa.Array]]]:
    """Plan reading the chunks of each field; `parallel` splits a range at the cuts of each reader."""
    if len(rows) == 0:
        return [[] for _ in range(readers.num_fields)]
    rows = as_range(rows) if isinstance(rows, np.ndarray) else rows
    groups, others = readers.groups, readers.others
    parts: list[list[Rows]] = [[rows]] * len(others)
    decodes: list[bool] | None = None
    parallel = parallel and len(rows) > _FEW_ROWS and (len(groups) > 0 or any(reader.decodes for reader in others))
    if parallel and isinstance(rows, range):
        parts = [[*reader.cuts(rows)] if reader.decodes else [rows] for reader in others]
        decodes = [True] * len(groups) + [reader.decodes for reader, cuts in zip(others, parts) for _ in cuts]
    plans: list[ReadPlan[Any]] = [group.read(rows, max_gap) for group in groups]
    taker = readers.taker
    if taker is not None and len(rows) <= (_FEW_ROWS if isinstance(rows, range) else _MAX_TAKEN_ROWS):
        *read, taken = yield from gather([*plans, taker.read(rows, max_gap)])
        results = iter([*read, *taken])
    else:
        plans += [reader.read(part, max_gap) for reader, cuts in zip(others, parts) for part in cuts]
        results = iter((yield from gather(plans, decodes)))
    found: list[list[pa.Array]] = [[]] * readers.num_fields
    for group in groups:
        for position, arrays in zip(group.positions, next(results)):
            found[position] = arrays
    for position, cuts in zip(readers.positions, parts):
        found[position] = next(results) if len(cuts) == 1 else [*itertools.chain(*itertools.islice(results, len(cuts)))]
    return found


def pages_without_nulls(meta: FileMetadata, field: Field, columns: Mapping[int, int], max_pages: int) -> int | None:
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
    max_pages
        Maximum number of pages to inspect.

    Returns
    -------
    int or None
        None if a page may contain nulls or the field has more than `max_pages` pages.

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
    if pages.num_rows != meta.num_rows or pages.num_pages > max_pages or not family.has_no_nulls(pages):
        return None
    return pages.num_pages


def _readers(
    store: ObjectStore, path: str, meta: FileMetadata, fields: Sequence[Field], columns: Mapping[int, int]
) -> _Readers:
    """Return readers of the fields; fetch encodings that are stored outside of the column metadata."""
    while True:
        try:
            return _open_readers(meta, fields, columns)
        except IndirectEncodings as error:  # noqa: PERF203 - the loop is the retry
            meta.add_indirect(error.ranges, store.read_many(path, error.ranges))


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


def _source(store: ObjectStore, meta: FileMetadata) -> tuple[RangeSource, int]:
    """Return the source of page bytes (the cached bytes or the store) and the gap up to which ranges are coalesced."""
    if meta.content is None:
        return store, gap_bytes(store)
    return InMemory(_content(store, meta)), MAPPED


def _check_rows(meta: FileMetadata, rows: Rows | None) -> Rows:
    if rows is None:
        return range(meta.num_rows)
    if len(rows) and not (rows[0] >= 0 and rows[-1] < meta.num_rows):
        raise OutOfRangeError(
            f"{meta.path}: rows {rows[0]} to {rows[-1]} out of range; the file has {meta.num_rows} rows", path=meta.path
        )
    return rows


def _open_readers(meta: FileMetadata, fields: Sequence[Field], columns: Mapping[int, int]) -> _Readers:
    # Readers are cached with the metadata because building them costs a small take more than reading does. The key are
    # the identities of the fields; they stay unique because the cache keeps references to the fields.
    cache = meta.readers
    if (
        cache is None
        or (cache.columns is not columns and cache.columns != columns)
        or len(cache.readers) > MAX_SELECTIONS
    ):
        cache = meta.readers = ReaderCache(columns, {})
    key = tuple(map(id, fields))
    entry = cache.readers.get(key)
    if entry is None:
        family = family_of(meta.version, meta.path)
        groups = () if family.group_fields is None else family.group_fields(meta, fields, columns)
        grouped = {position for group in groups for position in group.positions}
        positions = [position for position in range(len(fields)) if position not in grouped]
        others = [_open_reader(family, meta, fields[position], columns) for position in positions]
        taker = family.take_fields(others) if family.take_fields is not None and len(others) > 1 else None
        entry = cache.readers[key] = (fields, _Readers(len(fields), groups, positions, others, taker))
    readers: _Readers = entry[1]
    return readers


def _open_reader(family: Family, meta: FileMetadata, field: Field, columns: Mapping[int, int]) -> ColumnReader:
    reader = family.open_field(meta, field, columns)
    if reader.num_rows != meta.num_rows:
        raise meta.corrupt(f"field {field.name!r} has the wrong number of rows", meta.num_rows, reader.num_rows)
    return reader


def _assemble(arrays: Sequence[pa.Array], data_type: pa.DataType, is_range: bool) -> Arrays:
    if not is_range:
        if len(arrays) == 1:
            return arrays[0]
        if not arrays:
            return pa.nulls(0, data_type)
        if not contains_dictionary(data_type):
            return pa.concat_arrays(arrays)
    return pa.chunked_array(arrays, type=data_type)
