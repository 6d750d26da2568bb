"""Fragments of a table: totals, a map of bins over all of them, and entries for the first ones. Reads no files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lancetable.format.fragment import CREATED_AT_FIELD, LAST_UPDATED_AT_FIELD, ROW_ID_FIELD, Fragment
from lancetable.report.findings import Findings
from lancetable.report.model import ColumnSet, DataFileEntry, FragmentBin, FragmentEntry, Fragments, Limits

if TYPE_CHECKING:
    from lancetable.format.schema import Schema
    from lancetable.proto import table_pb2
    from lancetable.report.indexes import Coverage
    from lancetable.table.version import TableVersion

Int64 = npt.NDArray[np.int64]

_MAX_COLUMN_SETS = 40
_MAX_FILE_BYTES = 1 << 46  # so that sums do not overflow
_HIDDEN = {ROW_ID_FIELD: "_rowid", CREATED_AT_FIELD: "_row_created_at", LAST_UPDATED_AT_FIELD: "_row_last_updated_at"}


@dataclass(frozen=True, slots=True, eq=False)
class FragmentCounts:
    """Counts and sizes of all fragments, in the order of the manifest, each of shape (fragments,).

    Where `is_known` is False, the manifest does not record the rows or deleted rows. `sizes` is 0 if unknown or
    impossible.
    `file_sets` has a pair (position of the fragment, number of the column set) for each data file.
    """

    ids: npt.NDArray[np.uint64]
    physical: Int64
    deleted: Int64
    is_known: npt.NDArray[np.bool_]
    sizes: Int64
    edges: Int64  # of the bins, of shape (bins + 1,)
    file_sets: npt.NDArray[np.int64]  # of shape (data files, 2)
    column_sets: tuple[ColumnSet, ...]

    @property
    def num_rows(self) -> int | None:
        """Number of live rows; None if unknown."""
        return int((self.physical - self.deleted).sum()) if self.is_known.all() else None

    @property
    def num_deleted_rows(self) -> int | None:
        """Number of deleted rows; None if unknown."""
        return int(self.deleted.sum()) if self.is_known.all() else None

    def sum_by_bin(self, values: Int64) -> list[int]:
        """Return the sums of one value for each fragment by bin."""
        return [int(total) for total in np.add.reduceat(values, self.edges[:-1])] if len(values) else []


def count_fragments(version: TableVersion, limits: Limits) -> FragmentCounts:
    """Collect the counts from the messages of the manifest. Raises CorruptFileError for invalid ids and counts."""
    fragments = version.manifest.fragments
    physical, deleted = fragments.physical_rows(), fragments.num_deleted_rows()
    is_known = (physical > 0) & (deleted >= 0) & (deleted <= physical)
    numbers: dict[tuple[int, ...], int] = {}
    totals: list[list[int]] = []  # number of files and their size for each column set
    file_sets: list[tuple[int, int]] = []
    sizes = np.zeros(len(fragments), np.int64)
    for position, message in enumerate(fragments.messages()):
        for file in message.files:
            number = numbers.setdefault(_stored_fields(file), min(len(numbers), _MAX_COLUMN_SETS))
            if number == len(totals):
                totals.append([0, 0])
            totals[number][0] += 1
            size_bytes = file.file_size_bytes if file.file_size_bytes <= _MAX_FILE_BYTES else 0
            totals[number][1] += size_bytes
            sizes[position] += size_bytes
            file_sets.append((position, number))
    keys = list(numbers)[:_MAX_COLUMN_SETS] + [()] * (len(totals) > _MAX_COLUMN_SETS)
    sets = (_column_set(version.schema, number, keys[number], *totals[number]) for number in range(len(totals)))
    num_bins = min(len(fragments), limits.bins)
    return FragmentCounts(
        fragments.ids(),
        np.where(is_known, physical, 0),
        np.where(is_known, deleted, 0),
        is_known,
        sizes,
        np.linspace(0, len(fragments), num_bins + 1).astype(np.int64),
        np.array(file_sets, np.int64).reshape(-1, 2),
        tuple(sets),
    )


def _stored_fields(file: table_pb2.DataFile) -> tuple[int, ...]:
    """Return the ids of the fields that have a column in a data file. Files of 0.1 have no column indices."""
    if not file.column_indices:
        return tuple(file.fields)
    return tuple([field for field, column in zip(file.fields, file.column_indices) if column >= 0])


def _column_set(schema: Schema, number: int, field_ids: tuple[int, ...], num_files: int, size_bytes: int) -> ColumnSet:
    names = [name for name in (column_name(schema, field_id) for field_id in field_ids) if name is not None]
    return ColumnSet(number, tuple(names), len(field_ids) - len(names), num_files, size_bytes)


def column_name(schema: Schema, field_id: int) -> str | None:
    """Return the path of a field, the name of a hidden column, or None if the table does not use the field."""
    return schema.path_of(field_id) if field_id in schema.by_id else _HIDDEN.get(field_id)


def describe_fragments(
    version: TableVersion,
    counts: FragmentCounts,
    coverage: Sequence[Coverage],
    limits: Limits,
    findings: Findings,
) -> Fragments:
    """Return the map of all fragments and the entries of the first ones."""
    total = len(counts.ids)
    if total > limits.fragments:
        findings.notes.append(f"The first {limits.fragments:,} of {total:,} fragments are listed; the map has all.")
    if len(counts.column_sets) > _MAX_COLUMN_SETS:
        findings.notes.append(
            f"Data files store more than {_MAX_COLUMN_SETS} different sets of columns; the last entry has the rest."
        )
    sets_by_key = {key: int(number) for key, number in zip(_files(version, limits), counts.file_sets[:, 1])}
    entries = []
    for position in range(min(total, limits.fragments)):
        fragment = findings.attempt(
            "fragment", version.location.path, partial(version.manifest.fragments.__getitem__, position)
        )
        if fragment is not None:
            not_indexed_by = tuple(name for name, mask in coverage if not mask[position])
            entries.append(_entry(fragment, position, sets_by_key, not_indexed_by))
    return Fragments(total, tuple(entries), tuple(_bins(counts)), counts.column_sets)


def _files(version: TableVersion, limits: Limits) -> Iterator[tuple[int, int]]:
    """Yield (position of the fragment, position of the file) for each data file of the listed fragments."""
    for position, message in enumerate(version.manifest.fragments.messages()):
        if position == limits.fragments:
            return
        for number in range(len(message.files)):
            yield position, number


def _entry(
    fragment: Fragment, position: int, sets: dict[tuple[int, int], int], not_indexed_by: tuple[str, ...]
) -> FragmentEntry:
    files = tuple(
        DataFileEntry(file.path, _format(file.major, file.minor), file.size_bytes, sets[position, number])
        for number, file in enumerate(fragment.files)
    )
    sizes = [file.size_bytes for file in files]
    size_bytes = None if None in sizes else sum(size or 0 for size in sizes)
    return FragmentEntry(fragment.id, fragment.num_rows, fragment.num_deletions, size_bytes, files, not_indexed_by)


def _format(major: int, minor: int) -> str:
    """Return the format of a data file, which old manifests record as 0.0 to 0.3."""
    if major:
        return f"{major}.{minor}"
    return "2.0" if minor == 3 else "0.1"


def _bins(counts: FragmentCounts) -> Iterator[FragmentBin]:
    num_bins = len(counts.edges) - 1
    by_set = np.zeros((num_bins, len(counts.column_sets)), np.int64)
    if num_bins and len(counts.file_sets):
        bin_of = np.searchsorted(counts.edges, counts.file_sets[:, 0], side="right") - 1
        np.add.at(by_set, (bin_of, counts.file_sets[:, 1]), 1)
    rows = counts.sum_by_bin(counts.physical - counts.deleted)
    deleted, sizes = counts.sum_by_bin(counts.deleted), counts.sum_by_bin(counts.sizes)
    for number in range(num_bins):
        first, last = int(counts.edges[number]), int(counts.edges[number + 1]) - 1
        ids = int(counts.ids[first]), int(counts.ids[last])
        yield FragmentBin(
            first, last, *ids, rows[number], deleted[number], sizes[number], tuple(by_set[number].tolist())
        )
