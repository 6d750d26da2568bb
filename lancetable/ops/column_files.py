"""New columns for rows that are there already: each fragment gets one more data file.

    values of the live rows of a fragment ─► spread over its deleted rows too ─► data file ─► Fragment with that file

A data file holds a value for every physical row. A deleted row repeats the value of the live row before it, which is
valid for any type, needs no null and costs hardly a byte. Fields that the new file holds and an older file of the
fragment held too become tombstones there, so that every field has one home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from lancetable.errors import InvalidInputError, LanceError, UnsupportedFeatureError
from lancetable.file.legacy_container import LegacyMetadata
from lancetable.format.fragment import TOMBSTONE, DataFile, Fragment
from lancetable.format.schema import Schema
from lancetable.ops.tracker import Tracker
from lancetable.ops.write import conform
from lancetable.table.data_files import WriteLimits, WriteProgress, remove_quietly, write_data_files
from lancetable.table.dictionaries import dictionaries_of
from lancetable.table.open_files import file_metadata
from lancetable.table.version import TableVersion
from lancetable.table.version_rows import live_offsets, physical_rows

__all__ = ["Values", "add_column_file", "add_column_files", "discard_column_files", "spread"]

Values = Callable[[Fragment], Iterable[pa.RecordBatch]]
"""The new values of a fragment: batches whose rows are its live rows in order."""

_ONE_FILE = WriteLimits(max_rows_per_file=2**62, max_bytes_per_file=2**62)


def add_column_files(
    version: TableVersion,
    schema: Schema,
    values: Values,
    *,
    progress: WriteProgress | None = None,
    tracker: Tracker | None = None,
) -> tuple[Fragment, ...]:
    """All fragments of `version`, each with one more data file that holds the fields of `schema`, with their ids.

    Files are durable after the store's next sync. On an error, whatever it is, the files written here are removed.
    Raises InvalidInputError if a fragment gets too few or too many values.
    """
    done: list[Fragment] = []
    try:
        done.extend(
            add_column_file(version, fragment, schema, values(fragment), progress=progress, tracker=tracker)
            for fragment in version.manifest.fragments
        )
    except BaseException:
        discard_column_files(version, done)
        raise
    return tuple(done)


def add_column_file(
    version: TableVersion,
    fragment: Fragment,
    schema: Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    progress: WriteProgress | None = None,
    tracker: Tracker | None = None,
) -> Fragment:
    """One fragment with a data file of the fields of `schema` added; `batches` are the values of its live rows, which
    `tracker` counts."""
    num_rows = physical_rows(version, fragment)
    if tracker is not None:
        batches = tracker.counted(batches)
    _check_first_columns(fragment, schema)
    written = write_data_files(
        version.store,
        version.base,
        schema,
        conform(spread(batches, live_offsets(version, fragment), num_rows, fragment.id), schema),
        _ONE_FILE,
        version.manifest.file_version,
        progress,
        dictionaries_of(version),
        batches_of(version, fragment),
        completed=None if tracker is None else tracker.wrote,
    )
    if len(written) != 1 or written[0].physical_rows != num_rows:
        remove_quietly(version.store, version.base, written)
        raise _wrong_count(fragment.id, num_rows, sum(each.physical_rows or 0 for each in written))
    new = written[0].files[0]
    return replace(fragment, files=(*_without(fragment.files, set(new.fields)), new))


def discard_column_files(version: TableVersion, fragments: Iterable[Fragment]) -> None:
    """Remove the newest data file of each fragment: those that `add_column_files` wrote and nobody will commit."""
    remove_quietly(version.store, version.base, [replace(each, files=each.files[-1:]) for each in fragments])


def batches_of(version: TableVersion, fragment: Fragment) -> list[int] | None:
    """Rows of each batch of a fragment in 0.1: all its files have the same. None for other formats."""
    if not fragment.files or not fragment.files[0].is_legacy:
        return None
    metadata = file_metadata(version, fragment.files[0])
    assert isinstance(metadata, LegacyMetadata)
    return [rows for rows in np.diff(metadata.batch_offsets).tolist() if rows]


def _check_first_columns(fragment: Fragment, schema: Schema) -> None:
    """Raise UnsupportedFeatureError if a 0.1 file would lose its first column and keep others.

    Pages are counted from the first field that the record of the file lists, so that place cannot be given up.
    """
    moved = schema.ids()
    for file in fragment.files:
        left = [field for field in file.fields if field >= 0 and field not in moved]
        if file.is_legacy and file.fields[0] in moved and left:
            raise UnsupportedFeatureError(
                f"fragment {fragment.id}: the first column of a 0.1 data file cannot be replaced alone; migrate the"
                " table to a newer format first",
                feature="replacing the first column in 0.1",
            )


def _without(files: Iterable[DataFile], moved: set[int]) -> Iterator[DataFile]:
    for file in files:
        if moved.isdisjoint(file.fields):
            yield file
        else:
            yield replace(file, fields=tuple(TOMBSTONE if field in moved else field for field in file.fields))


def spread(
    batches: Iterable[pa.RecordBatch], live: np.ndarray | None, num_rows: int, fragment_id: int
) -> Iterator[pa.RecordBatch]:
    """The batches with a row for each physical row; `live` are the offsets of the live ones, None for all."""
    if live is None:
        yield from batches
        return
    num_live, done = len(live), 0
    if not num_live:
        raise InvalidInputError(f"fragment {fragment_id} has no live row that new columns could belong to")
    for batch in batches:
        if done + batch.num_rows > num_live:
            raise _wrong_count(fragment_id, num_live, done + batch.num_rows)
        if batch.num_rows:
            # The first live row also stands for the deleted ones before it, the last of a batch for those after it.
            starts = live[done : done + batch.num_rows].copy()
            if done == 0:
                starts[0] = 0
            done += batch.num_rows
            end = num_rows if done == num_live else int(live[done])
            counts = np.diff(starts, append=end)
            yield batch.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    if done != num_live:
        raise _wrong_count(fragment_id, num_live, done)


def _wrong_count(fragment_id: int, expected: int, found: int) -> LanceError:
    what = "at least " if found > expected else ""
    return InvalidInputError(f"fragment {fragment_id} needs values for {expected} rows and got {what}{found}")
