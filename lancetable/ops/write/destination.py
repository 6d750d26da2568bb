"""Destinations of new data files: the directories of a table and its base paths, and the data format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import pyarrow as pa

from lancetable import telemetry
from lancetable.errors import InvalidOperationError, UnsupportedFeatureError
from lancetable.file.reader import FAMILIES
from lancetable.format.fragment import Fragment
from lancetable.format.manifest import BasePath
from lancetable.format.schema import Schema
from lancetable.format.version import STABLE_VERSION, FileVersion
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.ops.write.schema_enforcement import conform_batches
from lancetable.table.base_paths import WriteTarget, all_targets, resolve_targets, with_ids
from lancetable.table.fragment_writer import FragmentWriter, WriteLimits, WriteProgress, remove_below
from lancetable.table.legacy_dictionaries import dictionaries_of
from lancetable.table.version import Table, TableVersion

_TINY_ROWS: Final = 1024  # batches with fewer rows and bytes are coalesced, up to _MAX_COALESCED batches
_TINY_BYTES: Final = 16 << 10
_MAX_COALESCED: Final = 256

WriteMode = Literal["create", "append", "overwrite"]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of writes.

    If `file_version` is None, a table keeps its format, and a new table gets the default format.
    """

    limits: WriteLimits = field(default_factory=WriteLimits)
    file_version: FileVersion | None = None
    progress: WriteProgress | None = None
    properties: Mapping[str, str] = field(default_factory=dict)  # properties of the transaction
    v2_manifest_paths: bool = True
    stable_row_ids: bool = False  # only for a new table
    initial_bases: tuple[BasePath, ...] = ()  # registered with a new table
    target_bases: tuple[str, ...] = ()  # names or paths of bases for new files, used in turn; empty: only the table
    target_all_bases: bool = False  # new files are distributed over all bases in turn
    include_primary: bool = True  # with `target_all_bases`: use the table too
    tracker: Tracker = NO_PROGRESS  # counts the rows and files written


DEFAULT_OPTIONS: Final = WriteOptions()


@dataclass(frozen=True, slots=True)
class Destination:
    """A table to which data files are written, and the target directories, which are used in turn."""

    table: Table
    file_version: FileVersion
    targets: tuple[WriteTarget, ...]
    bases: Mapping[int, BasePath]  # base paths of the table, which managed blobs may reference
    dictionaries: Mapping[int, pa.Array] | None = None  # values of the dictionary fields of a 0.1 table, by field id

    @classmethod
    def of_table(cls, version: TableVersion, options: WriteOptions, mode: WriteMode = "append") -> Destination:
        """Return the destination of files for an existing table.

        Raises InvalidOperationError for bases that the table does not list, and for `initial_bases`.
        """
        if options.initial_bases:
            raise InvalidOperationError(
                f"Cannot register new bases in {mode.capitalize()} mode: initial_bases is only valid for a new "
                "table; use add_bases"
            )
        manifest = version.manifest
        return cls(
            version,
            options.file_version or manifest.file_version,
            _resolve(version, manifest.base_paths, options),
            manifest.base_paths,
            dictionaries_of(version) if mode == "append" else None,
        )

    @classmethod
    def of_new_table(cls, table: Table, options: WriteOptions) -> Destination:
        """Return the destination of files for a table that does not exist yet.

        Raises InvalidOperationError for a target that is not one of `initial_bases`.
        """
        bases = {path.id: path for path in with_ids(options.initial_bases)}
        targets = _resolve(table, bases, options)
        return cls(table, options.file_version or STABLE_VERSION, targets, bases)

    def write(self, schema: Schema, batches: Iterable[pa.RecordBatch], options: WriteOptions) -> list[Fragment]:
        """Write data files of `schema` for the batches and return their fragments, which have id 0.

        Raises SchemaMismatchError for nulls in a required column, UnsupportedFeatureError for a format without a
        writer.
        """
        if self.file_version not in FAMILIES:
            raise UnsupportedFeatureError(
                f"writing data files of version {self.file_version} is not supported yet: {self.table.uri}",
                feature=f"writing data files of version {self.file_version}",
            )
        limits, tracker = replace(options.limits, base_ids=frozenset(self.bases)), options.tracker
        if limits.keep_arrays and limits.max_bytes_per_file > _MAX_COALESCED * _TINY_BYTES:
            batches = _coalesced(batches)
        writer = FragmentWriter(
            self.table.store,
            self.targets,
            schema,
            limits,
            self.file_version,
            options.progress,
            self.dictionaries,
            completed=tracker.wrote,
        )
        with telemetry.start("write", self.table.store, self.table.base) as span:
            fragments = writer.write_all(conform_batches(tracker.counted(batches), schema))
            if span.is_recording:
                sizes = [file.size_bytes or 0 for fragment in fragments for file in fragment.files]
                num_rows = sum([fragment.physical_rows or 0 for fragment in fragments])
                span.set(fragments=len(fragments), rows=num_rows, bytes_written=sum(sizes))
        return fragments

    def sync_bases(self) -> None:
        """Sync files outside of the directory of the table; the commit syncs only the files inside it."""
        for place in self.targets:
            if place.base_id is not None:
                self.table.store.sync(place.directory)

    def discard(self, fragments: Iterable[Fragment]) -> None:
        """Remove the data files of fragments that will not be committed; log failures."""
        remove_below(self.table.store, self.targets, fragments)


def _resolve(table: Table, bases: Mapping[int, BasePath], options: WriteOptions) -> tuple[WriteTarget, ...]:
    if not options.target_all_bases:
        return resolve_targets(table.store, table.base, table.uri, bases, options.target_bases)
    if options.target_bases:
        raise InvalidOperationError("Cannot specify target_all_bases together with target_bases")
    return all_targets(table.store, table.base, bases, include_table=options.include_primary)


def _coalesced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Coalesce tiny batches, because a batch costs as much as several thousand values. Their memory must not change."""
    tiny: list[pa.RecordBatch] = []
    for batch in batches:
        # `nbytes` takes long for many columns.
        is_tiny = batch.num_rows < _TINY_ROWS and batch.num_rows * batch.num_columns < _TINY_BYTES
        is_tiny = is_tiny and batch.nbytes < _TINY_BYTES
        if tiny and (not is_tiny or len(tiny) == _MAX_COALESCED or batch.schema != tiny[0].schema):
            yield from _concatenated(tiny)
            tiny = []
        if is_tiny:
            tiny.append(batch)
        else:
            yield batch
    yield from _concatenated(tiny)


def _concatenated(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2 or not batches[0].num_columns:
        return batches
    try:
        columns = [pa.concat_arrays(arrays) for arrays in zip(*[batch.columns for batch in batches], strict=True)]
    except pa.ArrowException:  # dictionaries that cannot be unified
        return batches
    return [pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)]
