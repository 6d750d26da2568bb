"""Data files with new columns for existing rows: each fragment gets one additional data file.

    values of the live rows of a fragment ─► expanded to its deleted rows ─► data file ─► Fragment with that file

A data file stores a value for every physical row. A deleted row repeats the value of the preceding live row, which is
valid for any type, needs no null and compresses well. Fields of the new file that an older file of the fragment also
stores become tombstones there, so that every field is in one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from lancetable.errors import InvalidInputError, LanceError, UnsupportedFeatureError
from lancetable.file.legacy_footer import LegacyMetadata
from lancetable.format.fragment import TOMBSTONE, DataFile, Fragment
from lancetable.format.schema import Field, Schema
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.ops.write.schema_enforcement import conform_batches
from lancetable.store.base import undone_on_error
from lancetable.table.base_paths import table_target
from lancetable.table.data_file_metadata import file_metadata
from lancetable.table.fragment_reader import read_selection, select
from lancetable.table.fragment_writer import FragmentWriter, WriteLimits, remove_quietly
from lancetable.table.legacy_dictionaries import dictionaries_of
from lancetable.table.row_counts import live_offsets, physical_rows
from lancetable.table.row_sizes import memory_per_row
from lancetable.table.version import TableVersion

Values = Callable[[Fragment], Iterable[pa.RecordBatch]]
"""A function from a fragment to batches of its new values, for its live rows in order."""

_WINDOW_BYTES = 32 << 20
_WINDOW_ROWS = 1 << 17
_ONE_FILE = WriteLimits(max_rows_per_file=2**62, max_bytes_per_file=2**62)


def add_column_files(
    version: TableVersion, schema: Schema, values: Values, *, tracker: Tracker = NO_PROGRESS
) -> tuple[Fragment, ...]:
    """Write a data file with the fields of `schema` for every fragment, and return the fragments with their new files.

    The fields keep their ids in `schema`. Files are durable after the next sync of the store. After an error, the files
    written here are removed. Raises InvalidInputError if a fragment gets too few or too many values, and
    UnsupportedFeatureError if the first column of a 0.1 file would be replaced and others would not.
    """
    written: list[Fragment] = []
    with undone_on_error(lambda: discard_column_files(version, written)):
        for fragment in version.manifest.fragments:
            written.append(add_column_file(version, fragment, schema, values(fragment), tracker=tracker))  # noqa: PERF401
    return tuple(written)


def add_column_file(
    version: TableVersion,
    fragment: Fragment,
    schema: Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    tracker: Tracker = NO_PROGRESS,
) -> Fragment:
    """Write a data file with the fields of `schema` for a fragment, and return the fragment with this file.

    `batches` contain the values of its live rows, which `tracker` counts. Raises the errors of `add_column_files`.
    """
    num_rows = physical_rows(version, fragment)
    _check_first_columns(fragment, schema)
    writer = FragmentWriter(
        version.store,
        (table_target(version.base),),
        schema,
        _ONE_FILE,
        version.manifest.file_version,
        dictionaries=dictionaries_of(version),
        batch_rows=batches_of(version, fragment),
        completed=tracker.wrote,
    )
    values = to_physical_rows(tracker.counted(batches), live_offsets(version, fragment), num_rows, fragment.id)
    written = writer.write_all(conform_batches(values, schema))
    if len(written) != 1 or written[0].physical_rows != num_rows:
        remove_quietly(version.store, version.base, written)
        raise _wrong_count(fragment.id, num_rows, sum(part.physical_rows or 0 for part in written))
    new = written[0].files[0]
    return replace(fragment, files=(*_without(fragment.files, set(new.fields)), new))


def fragment_batches(
    version: TableVersion, fragment: Fragment, fields: Sequence[Field], *, keep_deleted: bool
) -> Iterator[pa.RecordBatch]:
    """Yield `fields` of the rows of a fragment, with or without deleted rows, in batches of limited size."""
    num_rows = physical_rows(version, fragment)
    row_bytes = max(memory_per_row(version, fragment, fields), 1.0)
    step = max(1, min(_WINDOW_ROWS, int(_WINDOW_BYTES / row_bytes)))
    names = [field.name for field in fields]
    for start in range(0, num_rows, step):
        rows = range(start, min(start + step, num_rows))
        columns = read_selection(version, select(version, fragment, rows, keep_deleted=keep_deleted), fields)
        yield from pa.Table.from_arrays(columns, names=names).combine_chunks().to_batches()


def discard_column_files(version: TableVersion, fragments: Iterable[Fragment]) -> None:
    """Remove the last data file of each fragment, which `add_column_file` wrote and which will not be committed."""
    remove_quietly(
        version.store, version.base, [replace(fragment, files=fragment.files[-1:]) for fragment in fragments]
    )


def batches_of(version: TableVersion, fragment: Fragment) -> list[int] | None:
    """Return the row counts of the batches of a 0.1 fragment, equal in all its files; None for other formats."""
    if not fragment.files or not fragment.files[0].is_legacy:
        return None
    metadata = file_metadata(version, fragment.files[0])
    assert isinstance(metadata, LegacyMetadata)
    return [rows for rows in np.diff(metadata.batch_offsets).tolist() if rows]


def _check_first_columns(fragment: Fragment, schema: Schema) -> None:
    """Raise UnsupportedFeatureError if the first column of a 0.1 file would be replaced, but not all columns.

    Pages are numbered from the first field in the record of the file, so the first field must not change.
    """
    replaced = schema.ids()
    for file in fragment.files:
        kept = [field for field in file.fields if field >= 0 and field not in replaced]
        if file.is_legacy and file.fields[0] in replaced and kept:
            raise UnsupportedFeatureError(
                f"fragment {fragment.id}: the first column of a 0.1 data file cannot be replaced alone; migrate the"
                " table to a newer format first",
                feature="replacing the first column in 0.1",
            )


def _without(files: Iterable[DataFile], replaced: set[int]) -> Iterator[DataFile]:
    """Yield the files with tombstones for the fields that are replaced."""
    for file in files:
        if replaced.isdisjoint(file.fields):
            yield file
        else:
            yield replace(file, fields=tuple(TOMBSTONE if field in replaced else field for field in file.fields))


def to_physical_rows(
    batches: Iterable[pa.RecordBatch], live: np.ndarray | None, num_rows: int, fragment_id: int
) -> Iterator[pa.RecordBatch]:
    """Expand batches of live rows to all physical rows. `live` contains the live offsets; None if all rows are live.

    Raises InvalidInputError if the number of rows differs from the number of live rows.
    """
    if live is None:
        yield from batches
        return
    num_live, done = len(live), 0
    if not num_live:
        raise InvalidInputError(
            f"fragment {fragment_id} has only deleted rows, so it cannot get new columns; compact the table first"
        )
    for batch in batches:
        if done + batch.num_rows > num_live:
            raise _wrong_count(fragment_id, num_live, done + batch.num_rows)
        if batch.num_rows:
            # The first live row also fills the deleted rows before it; each live row fills the deleted rows after it.
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
    at_least = "at least " if found > expected else ""
    return InvalidInputError(f"fragment {fragment_id} needs values for {expected} rows, got {at_least}{found}")
