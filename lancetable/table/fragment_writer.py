"""Writer of the data files of new fragments: one file for each fragment, up to a number of rows or bytes.

Batches are streamed; memory holds only the rows of incomplete pages. A complete file is closed on the pool while the
next one is written. If an error occurs, all files of the call are removed, because nothing references them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from lancetable import telemetry
from lancetable.errors import InvalidInputError, LanceError, UnsupportedFeatureError
from lancetable.file import thread_pool
from lancetable.file.blobs.descriptions import blob_directory, stored_schema
from lancetable.file.blobs.writer import BlobColumnsWriter, check_blob_nesting
from lancetable.file.legacy_writer import DEFAULT_GROUP_ROWS, LegacyFileWriter
from lancetable.file.writer import FileWriter, WrittenFile
from lancetable.format.fragment import Fragment
from lancetable.format.paths import check_relative, join, new_data_file_name
from lancetable.format.version import FileVersion
from lancetable.store.base import undone_on_error
from lancetable.table.base_paths import WriteTarget, table_target

if TYPE_CHECKING:
    from lancetable.format.schema import Schema
    from lancetable.store.base import ObjectStore, ObjectWriter

_BLOB_FILE_VERSIONS = frozenset({FileVersion.V2_2})
_MIN_POOL_BYTES = 1 << 20  # fewer bytes are written faster by the calling thread

logger = logging.getLogger(__name__)

WriteProgress = Callable[[str, Fragment], None]  # ("begin" or "complete", the fragment; without files at "begin")


@dataclass(frozen=True, slots=True)
class WriteLimits:
    """Limits at which a new file is started, and sizes within a file.

    `data_cache_bytes` is the amount of data that all columns buffer before they write pages; None means 8 MiB for each
    column. `keep_arrays` avoids a copy; the caller must then not modify the memory of the batches. `num_full_files` is
    the number of files with `max_rows_per_file` rows; later files have one row less. None means all files.
    """

    max_rows_per_file: int = 1024 * 1024
    num_full_files: int | None = None
    max_bytes_per_file: int = 90 * 1024 * 1024 * 1024
    data_cache_bytes: int | None = None
    max_page_bytes: int | None = None
    statistics: bool = True
    keep_arrays: bool = False
    blob_pack_bytes: int | None = None  # maximum size of a file shared by blobs; None means 1 GiB
    base_ids: frozenset[int] = frozenset()  # base paths of the table that may contain managed blobs
    max_rows_per_group: int = DEFAULT_GROUP_ROWS  # size of a batch in a 0.1 file

    def __post_init__(self) -> None:
        counts = ("max_rows_per_file", "max_rows_per_group", "max_bytes_per_file")
        for name in (*counts, "data_cache_bytes", "max_page_bytes", "blob_pack_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInputError(f"{name} must be at least 1, not {value}")


class _OpenFile(NamedTuple):
    """File that is being written."""

    name: str
    target: WriteTarget
    sink: ObjectWriter
    writer: FileWriter | LegacyFileWriter
    max_rows: int
    blobs: BlobColumnsWriter | None


@dataclass
class FragmentWriter:
    """Writer of a series of data files, each of which becomes a fragment with id 0.

    Parameters
    ----------
    store
        Object store of the table.
    targets
        Targets among which the files are distributed in turn.
    schema
        Schema of the table; batches have its columns in its order.
    limits
        Sizes of files and pages.
    version
        Version of the data files.
    progress
        Called when a file is started and when it is complete. With a callback, files are written one after the other.
    dictionaries
        Values of the dictionary fields of a 0.1 table, by field id.
    batch_rows
        Number of rows of each batch of a single 0.1 file.
    completed
        Called with each complete fragment, in order.
    """

    store: ObjectStore
    targets: Sequence[WriteTarget]
    schema: Schema
    limits: WriteLimits
    version: FileVersion
    progress: WriteProgress | None = None
    dictionaries: Mapping[int, pa.Array] | None = None
    batch_rows: Sequence[int] | None = None
    completed: Callable[[Fragment], None] | None = None

    def __post_init__(self) -> None:
        self.fragments: list[Fragment] = []
        # Files whose rows are complete, with the pending results of closing them.
        self.finishing: deque[tuple[_OpenFile, Future[WrittenFile]]] = deque()
        self.file: _OpenFile | None = None
        self.merged_dictionaries = dict(self.dictionaries or {})
        self.stored_schema = stored_schema(self.schema)
        if self.stored_schema is not self.schema and self.version not in _BLOB_FILE_VERSIONS:
            raise UnsupportedFeatureError(
                f"Blob v2 requires file version >= 2.2, not {self.version}", feature=f"blob files in {self.version}"
            )
        check_blob_nesting(self.schema)

    def write_all(self, batches: Iterable[pa.RecordBatch]) -> list[Fragment]:
        """Write all files and return their fragments. The files are durable after the store's next `sync`.

        Empty batches are skipped. An exception of the iterator or a callback is raised unchanged after all files of the
        call have been removed.
        """
        with undone_on_error(self.abandon):
            for batch in batches:
                self.write(batch)
            self.finish()
        return self.fragments

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows, in as many files as the limits require."""
        start, num_rows = 0, batch.num_rows
        while start < num_rows:
            file = self.file = self.file or self._open_file()
            writer = file.writer
            room = file.max_rows - writer.num_rows
            part = batch if num_rows <= room and not start else batch.slice(start, room)
            start += len(part)
            is_full = len(part) == room
            can_use_pool = is_full and self._can_finish_on_pool()
            if can_use_pool and self.limits.keep_arrays and part.nbytes >= _MIN_POOL_BYTES:
                self._finish_on_pool(part)
                continue
            writer.write(part if file.blobs is None else file.blobs.describe(part))
            if can_use_pool and isinstance(writer, FileWriter) and writer.waiting_bytes >= _MIN_POOL_BYTES:
                self._finish_on_pool(None)
            elif is_full or writer.estimated_bytes >= self.limits.max_bytes_per_file:
                self.finish()

    def _open_file(self) -> _OpenFile:
        limits, number = self.limits, len(self.fragments) + len(self.finishing)
        is_full = limits.num_full_files is None or number < limits.num_full_files
        max_rows = max(1, limits.max_rows_per_file - (not is_full))
        name, target = new_data_file_name(), self.targets[number % len(self.targets)]
        path = join(target.directory, name)
        if self.version.is_legacy:
            group_rows = min(limits.max_rows_per_group, max_rows)
            max_rows = -(-max_rows // group_rows) * group_rows  # A 0.1 file ends with a complete group.
        sink = self.store.open_writer(path)
        with undone_on_error(sink.abort):
            writer = self._open_writer(sink)
        blobs = None
        if self.stored_schema is not self.schema:
            assert isinstance(writer, FileWriter)
            write_blob, pack_bytes = writer.write_blob, limits.blob_pack_bytes
            blobs = BlobColumnsWriter(self.store, path, self.schema, write_blob, pack_bytes, base_ids=limits.base_ids)
        self.file = _OpenFile(name, target, sink, writer, max_rows, blobs)
        if self.progress is not None:
            self.progress("begin", Fragment(id=len(self.fragments)))
        return self.file

    def _open_writer(self, sink: ObjectWriter) -> FileWriter | LegacyFileWriter:
        limits = self.limits
        if self.version.is_legacy:
            return LegacyFileWriter(
                sink,
                self.stored_schema,
                group_rows=self.batch_rows or min(limits.max_rows_per_group, limits.max_rows_per_file),
                statistics=limits.statistics,
                keep_arrays=limits.keep_arrays,
                dictionaries=self.merged_dictionaries,
            )
        return FileWriter(
            sink,
            self.stored_schema,
            self.version,
            data_cache_bytes=limits.data_cache_bytes,
            max_page_bytes=limits.max_page_bytes,
            statistics=limits.statistics,
            keep_arrays=limits.keep_arrays,
        )

    def _can_finish_on_pool(self) -> bool:
        """Return True if the pool may finish the open file."""
        # Progress must be reported in order, and the blob files of a file must be closed first.
        assert self.file is not None
        if self.progress is not None or self.file.blobs is not None or not self.store.capabilities.local:
            return False
        return isinstance(self.file.writer, FileWriter) and thread_pool.can_share()

    def _finish_on_pool(self, part: pa.RecordBatch | None) -> None:
        """Write the last rows of the open file, if any, and close it; both on the pool."""
        if len(self.finishing) >= thread_pool.size() - 1:
            self._complete_first()
        assert self.file is not None
        self.finishing.append((self.file, thread_pool.executor().submit(_close, self.file.writer, part)))
        self.file = None

    def _complete_first(self) -> None:
        """Wait until the first of the finishing files is closed, and report it."""
        file, written = self.finishing[0]
        self._add_fragment(file, written.result())
        self.finishing.popleft()
        if self.progress is not None:
            self.progress("complete", self.fragments[-1])
        if self.completed is not None:
            self.completed(self.fragments[-1])

    def finish(self) -> None:
        """Close the open file and wait for all others."""
        file = self.file
        if file is not None:
            if file.blobs is not None:
                file.blobs.finish()
            closed: Future[WrittenFile] = Future()
            closed.set_result(file.writer.close())
            self.finishing.append((file, closed))
            self.file = None
        while self.finishing:
            self._complete_first()

    def _add_fragment(self, file: _OpenFile, written: WrittenFile) -> None:
        data_file = written.data_file(file.name, self.version, file.target.base_id)
        self.fragments.append(Fragment(id=0, files=(data_file,), physical_rows=written.num_rows))

    def abandon(self) -> None:
        """Remove all files of the series. Errors are only logged, because the caller raises the original error."""
        for file, written in self.finishing:
            # A task that has started cannot be cancelled, and must not continue to write after this call.
            if written.cancel() or written.exception() is not None:
                file.sink.abort()
            else:
                self._add_fragment(file, written.result())
        self.finishing.clear()
        if self.file is not None:
            try:
                self.file.sink.abort()
                if self.file.blobs is not None:
                    self.file.blobs.abandon()
            except (LanceError, OSError) as error:
                logger.warning(
                    "could not remove an unfinished data file: %s",
                    error,
                    extra=telemetry.fields("store.files_not_removed", files=1),
                )
        remove_below(self.store, self.targets, self.fragments)


def _close(writer: FileWriter | LegacyFileWriter, part: pa.RecordBatch | None) -> WrittenFile:
    if part is not None:
        writer.write(part)
    return writer.close()


def remove_quietly(store: ObjectStore, base: str, fragments: Iterable[Fragment]) -> None:
    """Delete the data files of uncommitted fragments. An error is only logged; a later cleanup removes the files."""
    remove_below(store, (table_target(base),), fragments)


def remove_below(store: ObjectStore, targets: Sequence[WriteTarget], fragments: Iterable[Fragment]) -> None:
    """Delete the data files of uncommitted fragments below `targets` as `remove_quietly` does; keep all others."""
    directories = {target.base_id: target.directory for target in targets}
    files = [file for fragment in fragments for file in fragment.files if file.base_id in directories]
    paths = [join(directories[file.base_id], check_relative(file.path)) for file in files]
    try:
        store.delete(paths)
        for file, path in zip(files, paths):
            if file.file_version in _BLOB_FILE_VERSIONS:
                store.delete_prefix(blob_directory(path))
    except (LanceError, OSError) as error:
        logger.warning(
            "could not remove %d data files that are not committed: %s",
            len(paths),
            error,
            extra=telemetry.fields("store.files_not_removed", files=len(paths)),
        )
