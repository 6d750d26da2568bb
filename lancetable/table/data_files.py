"""Writing the data files of new fragments: one file per fragment, a new one when rows or bytes reach their limit.

Batches stream through; what is in memory at a time is what the file writer queues for its next page. A file that has
all its rows is finished on the pool while the next one begins. When anything fails, the files written so far are
removed: nobody knows their names yet.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lancetable.errors import InvalidInputError, LanceError, UnsupportedFeatureError
from lancetable.file import pool
from lancetable.file.blobs.descriptor import blob_directory, stored_schema
from lancetable.file.blobs.writer import BlobColumnsWriter, check_blob_nesting
from lancetable.file.legacy_writer import DEFAULT_GROUP_ROWS, LegacyFileWriter
from lancetable.file.writer import FileWriter, WrittenFile
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.paths import check_relative, join, new_data_file_name
from lancetable.format.version import FileVersion
from lancetable.table.write_targets import Place, own_place

if TYPE_CHECKING:
    from lancetable.format.schema import Schema
    from lancetable.store.base import ObjectStore, ObjectWriter

__all__ = ["WriteLimits", "WriteProgress", "remove_from", "remove_quietly", "write_data_files"]

_BLOB_FILE_VERSIONS = frozenset({FileVersion.V2_2})
_MIN_BYTES_BESIDE = 1 << 20

logger = logging.getLogger(__name__)

WriteProgress = Callable[[str, Fragment], None]  # ("begin" or "complete", the fragment as far as it is known)


@dataclass(frozen=True, slots=True)
class WriteLimits:
    """When a new file begins, and how the file writer divides one.

    `data_cache_bytes` is what all columns together collect before pages are written, None for 8 MiB each.
    `keep_arrays` saves a copy where the memory of the batches does not change after they were handed over.
    `num_full_files`: how many files hold `max_rows_per_file` rows, and those after them one less; None for all.
    """

    max_rows_per_file: int = 1024 * 1024
    num_full_files: int | None = None
    max_bytes_per_file: int = 90 * 1024 * 1024 * 1024
    data_cache_bytes: int | None = None
    max_page_bytes: int | None = None
    statistics: bool = True
    keep_arrays: bool = False
    blob_pack_bytes: int | None = None  # largest file that blobs share; None for 1 GiB
    base_ids: frozenset[int] = frozenset()  # of the table's base paths, below which managed blobs may lie
    max_rows_per_group: int = DEFAULT_GROUP_ROWS  # batches of 0.1 files

    def __post_init__(self) -> None:
        counts = ("max_rows_per_file", "max_rows_per_group", "max_bytes_per_file")
        for name in (*counts, "data_cache_bytes", "max_page_bytes", "blob_pack_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInputError(f"{name} must be at least 1, not {value}")


def write_data_files(
    store: ObjectStore,
    base: str,
    schema: Schema,
    batches: Iterable[pa.RecordBatch],
    limits: WriteLimits,
    file_version: FileVersion,
    progress: WriteProgress | None = None,
    dictionaries: Mapping[int, pa.Array] | None = None,
    batch_rows: Sequence[int] | None = None,
    places: Sequence[Place] = (),
    completed: Callable[[Fragment], None] | None = None,
) -> list[Fragment]:
    """Write `batches`, whose columns are those of `schema` in its order, below `base`; fragments get id 0.

    `places` take the files in turn, where they are given, in place of the data directory below `base`.

    Files are durable after the store's next `sync`. Empty batches write nothing. An error of the caller's iterator
    passes through unchanged, after the files written so far were removed. `dictionaries`: the values that a 0.1 table
    has for its dictionary fields, by field id; `batch_rows`: the rows of each batch of a single 0.1 file. `progress` is
    told when each file begins and ends, one after the other, so that none is finished while the next one begins;
    `completed` only when one is complete, in order. What they raise counts as an error of the iterator.
    """
    places = places or (own_place(base),)
    run = _Run(store, places, schema, limits, file_version, progress, dictionaries, batch_rows, completed)
    try:
        for batch in batches:
            run.write(batch)
        run.finish_file()
    except BaseException:
        run.abandon()
        raise
    return run.fragments


@dataclass(frozen=True, slots=True)
class _Finishing:
    """A file that has all its rows and is being finished on the pool."""

    name: str
    place: Place
    sink: ObjectWriter
    written: Future[WrittenFile]


class _Run:
    """The state of one call: the open file, if any, files being finished, and the fragments that are done."""

    def __init__(
        self,
        store: ObjectStore,
        places: Sequence[Place],
        schema: Schema,
        limits: WriteLimits,
        file_version: FileVersion,
        progress: WriteProgress | None,
        dictionaries: Mapping[int, pa.Array] | None,
        batch_rows: Sequence[int] | None,
        completed: Callable[[Fragment], None] | None,
    ) -> None:
        self.fragments: list[Fragment] = []
        self._finishing: deque[_Finishing] = deque()
        self._store, self._places, self._schema = store, places, schema
        self._limits, self._version, self._progress = limits, file_version, progress
        self._completed = completed
        self._name, self._place = "", places[0]
        self._sink: ObjectWriter | None = None
        self._writer: FileWriter | LegacyFileWriter | None = None
        self._dictionaries = dict(dictionaries or {})
        self._max_rows = 0
        if file_version.is_legacy:
            self._group_rows: int | Sequence[int] = batch_rows or min(
                limits.max_rows_per_group, limits.max_rows_per_file
            )
        self._blobs: BlobColumnsWriter | None = None
        self._stored = stored_schema(schema)
        if self._stored is not schema and file_version not in _BLOB_FILE_VERSIONS:
            raise UnsupportedFeatureError(
                f"Blob v2 requires file version >= 2.2, not {file_version}", feature=f"blob files in {file_version}"
            )
        check_blob_nesting(schema)

    def write(self, batch: pa.RecordBatch) -> None:
        start, num_rows = 0, batch.num_rows
        while start < num_rows:
            writer = self._writer or self._begin_file()
            room = self._max_rows - writer.num_rows
            part = batch.slice(start, room)
            start += len(part)
            beside = self._finishes_beside(writer) if len(part) == room else None
            if beside is not None and self._limits.keep_arrays and part.nbytes >= _MIN_BYTES_BESIDE:
                self._finish_beside(beside, part)
                continue
            writer.write(part if self._blobs is None else self._blobs.describe(part))
            if beside is not None and beside.waiting_bytes >= _MIN_BYTES_BESIDE:
                self._finish_beside(beside, None)
            elif len(part) == room or writer.tell() >= self._limits.max_bytes_per_file:
                self.finish_file()

    def _rows_of_next_file(self) -> int:
        limits, index = self._limits, len(self.fragments) + len(self._finishing)
        is_full = limits.num_full_files is None or index < limits.num_full_files
        rows = max(1, limits.max_rows_per_file - (not is_full))
        if not self._version.is_legacy:
            return rows
        group_rows = min(limits.max_rows_per_group, rows)
        return -(-rows // group_rows) * group_rows  # files of 0.1 end with a whole group

    def _begin_file(self) -> FileWriter | LegacyFileWriter:
        self._max_rows = self._rows_of_next_file()
        self._name = new_data_file_name()
        self._place = self._places[(len(self.fragments) + len(self._finishing)) % len(self._places)]
        path = join(self._place.directory, self._name)
        self._sink = self._store.open_writer(path)
        self._writer = self._open_writer(self._sink)
        if self._stored is not self._schema:
            assert isinstance(self._writer, FileWriter)
            sink, limits = self._writer.write_blob, self._limits
            self._blobs = BlobColumnsWriter(
                self._store, path, self._schema, sink, limits.blob_pack_bytes, base_ids=limits.base_ids
            )
        if self._progress is not None:
            self._progress("begin", Fragment(id=len(self.fragments)))
        return self._writer

    def _open_writer(self, sink: ObjectWriter) -> FileWriter | LegacyFileWriter:
        limits = self._limits
        if self._version.is_legacy:
            return LegacyFileWriter(
                sink,
                self._stored,
                group_rows=self._group_rows,
                statistics=limits.statistics,
                keep_arrays=limits.keep_arrays,
                dictionaries=self._dictionaries,
            )
        return FileWriter(
            sink,
            self._stored,
            self._version,
            data_cache_bytes=limits.data_cache_bytes,
            max_page_bytes=limits.max_page_bytes,
            statistics=limits.statistics,
            keep_arrays=limits.keep_arrays,
        )

    def _finishes_beside(self, writer: FileWriter | LegacyFileWriter) -> FileWriter | None:
        """The writer of the open file if the pool may finish it."""
        # Progress is told in order; the parts of blobs go to files of their own.
        if self._progress is not None or self._blobs is not None or not self._store.capabilities.local:
            return None
        return writer if isinstance(writer, FileWriter) and pool.size() > 1 and not pool.in_worker() else None

    def _finish_beside(self, writer: FileWriter, part: pa.RecordBatch | None) -> None:
        """Let the pool write the last rows of the open file, if given, and close it."""
        if len(self._finishing) >= pool.size() - 1:
            self._settle_first()
        assert self._sink is not None
        written = pool.pool().submit(_finished, writer, part)
        self._finishing.append(_Finishing(self._name, self._place, self._sink, written))
        self._writer = self._sink = None

    def _settle_first(self) -> None:
        """Wait for the file that has been finishing longest."""
        self._add(self._finishing[0], self._finishing[0].written.result())
        self._finishing.popleft()
        if self._progress is not None:
            self._progress("complete", self.fragments[-1])
        if self._completed is not None:
            self._completed(self.fragments[-1])

    def finish_file(self) -> None:
        """Close the open file, if there is one, and wait for all others."""
        if self._writer is not None and self._sink is not None:
            if self._blobs is not None:
                self._blobs.finish()
            done: Future[WrittenFile] = Future()
            done.set_result(self._writer.close())
            self._finishing.append(_Finishing(self._name, self._place, self._sink, done))
            self._writer = self._sink = self._blobs = None
        while self._finishing:
            self._settle_first()

    def _add(self, done: _Finishing, written: WrittenFile) -> None:
        major, minor = self._version.manifest_pair
        file = DataFile(
            path=done.name,
            fields=written.fields,
            column_indices=written.column_indices,
            major=major,
            minor=minor,
            size_bytes=written.size_bytes,
            base_id=done.place.base_id,
        )
        self.fragments.append(Fragment(id=0, files=(file,), physical_rows=written.num_rows))

    def abandon(self) -> None:
        for file in self._finishing:
            # What has begun cannot be stopped; it must not go on writing after this call.
            if file.written.cancel() or file.written.exception() is not None:
                file.sink.abort()
            else:
                self._add(file, file.written.result())
        self._finishing.clear()
        if self._sink is not None:
            try:
                self._sink.abort()
                if self._blobs is not None:
                    self._blobs.abandon()
            except (LanceError, OSError) as error:
                # The error that made us give up is the one to show.
                logger.warning("could not remove an unfinished data file: %s", error)
        remove_from(self._store, self._places, self.fragments)


def _finished(writer: FileWriter, part: pa.RecordBatch | None) -> WrittenFile:
    if part is not None:
        writer.write(part)
    return writer.close()


def remove_quietly(store: ObjectStore, base: str, fragments: Iterable[Fragment]) -> None:
    """Delete the data files of fragments that were never committed; a failure is logged, cleanup finds them later."""
    remove_from(store, (own_place(base),), fragments)


def remove_from(store: ObjectStore, places: Sequence[Place], fragments: Iterable[Fragment]) -> None:
    """As `remove_quietly`, for files that lie in `places`; files elsewhere stay."""
    directories = {place.base_id: place.directory for place in places}
    files = [file for fragment in fragments for file in fragment.files if file.base_id in directories]
    paths = [join(directories[file.base_id], check_relative(file.path)) for file in files]
    try:
        store.delete(paths)
        for file, path in zip(files, paths):
            if file.file_version in _BLOB_FILE_VERSIONS:
                store.delete_prefix(blob_directory(path))
    except (LanceError, OSError) as error:
        logger.warning("could not remove %d data files that were never committed: %s", len(paths), error)
