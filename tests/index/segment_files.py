"""Segments: writers, commits, and damage trials, in which bytes of the files are changed or cut off."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import lancetable
from lancetable.errors import LanceError
from lancetable.format.paths import INDICES_DIR, join
from lancetable.format.schema import Field
from lancetable.index.index_files import SegmentWriter
from lancetable.index.kind import IndexKind
from lancetable.index.queries import IndexQuery
from lancetable.index.results import Exactness
from lancetable.index.row_sets import RowSet
from lancetable.index.segments import IndexSegment
from lancetable.index_metadata import Index
from lancetable.operation import LanceOperation
from tests.index import indexed_tables as tables


def writer_of(dataset: lancetable.LanceDataset) -> tuple[str, SegmentWriter]:
    """Return the name of a new segment, and a writer of its files."""
    name, version = str(uuid.uuid4()), dataset.table_version
    directory = join(version.base, f"{INDICES_DIR}/{name}")
    return name, SegmentWriter(version.store, directory, version.manifest.file_version)


def field_of(dataset: lancetable.LanceDataset) -> Field:
    """Return the column "v"."""
    field = dataset.table_version.schema.field("v")
    assert field is not None
    return field


def replace_index(
    dataset: lancetable.LanceDataset, kind: IndexKind, name: str, writer: SegmentWriter, details: bytes = b""
) -> lancetable.LanceDataset:
    """Commit a segment of all fragments that replaces all existing ones."""
    covered = [fragment.fragment_id for fragment in dataset.get_fragments()]
    version = kind.version_for(stable_row_ids=dataset.has_stable_row_ids)
    entry = tables.entry_of(dataset, name, version, covered, writer, (kind.type_url, details))
    existing = [Index.from_format(segment.files.metadata) for segment in tables.segments(dataset)]
    operation = LanceOperation.CreateIndex([entry], existing)
    return lancetable.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)


def build_index(dataset: lancetable.LanceDataset, kind: IndexKind) -> lancetable.LanceDataset:
    """Build and commit an index of all fragments that replaces all existing ones."""
    stores_ids = kind.stores_row_ids(kind.version_for(stable_row_ids=dataset.has_stable_row_ids))
    name, writer = writer_of(dataset)
    batches = tables.batches_of(dataset, tables.row_column_of(dataset, stores_ids))
    details = kind.build(writer, field_of(dataset), batches, {})
    return replace_index(dataset, kind, name, writer, details.SerializeToString())


DELETED = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


@dataclass(frozen=True)
class ListedMapping:
    """Mapping of rows by a list: the new row of each of some ascending rows, or DELETED; other rows do not change."""

    old: np.ndarray
    new: np.ndarray

    def apply(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the new rows, and for each whether it exists."""
        at = np.minimum(np.searchsorted(self.old, rows), len(self.old) - 1)
        known = self.old[at] == rows
        new = np.where(known, self.new[at], rows)
        return new, new != DELETED


def damage_trials(path: Path, queries: Iterable[IndexQuery], num_trials: int, seed: int = 0) -> tuple[int, int]:
    """Damage the files of the only index of a table, one byte or the end of one file in each trial.

    Every search must return a result or raise a typed error. The files are restored. Returns the number of trials with
    an error, and of those without an error but with a wrong result: the format has no checksums, so a changed row
    within a set cannot be detected.
    """
    rng = random.Random(seed)
    queries = list(queries)
    (segment,) = tables.segments(lancetable.dataset(str(path)))
    expected = _answers(segment, queries)
    files = sorted((path / "_indices" / str(segment.files.metadata.uuid)).iterdir())
    num_errors = num_wrong = 0
    for _ in range(num_trials):
        file = rng.choice(files)
        content = file.read_bytes()
        damaged = bytearray(content)
        truncated = rng.random() < 0.2
        if truncated:
            damaged = damaged[: rng.randrange(len(damaged))]
        else:
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        _replace(file, bytes(damaged))
        try:
            (segment,) = tables.segments(lancetable.dataset(str(path)))
            found = _answers(segment, queries)
        except LanceError:
            num_errors += 1
        else:
            assert not truncated or found == expected
            num_wrong += found != expected
        finally:
            _replace(file, content)
    return num_errors, num_wrong


def _answers(segment: IndexSegment, queries: Iterable[IndexQuery]) -> list[tuple[RowSet, RowSet, Exactness]]:
    results = map(segment.search, queries)
    return [(result.true, result.null, result.exactness) for result in results]


def _replace(file: Path, content: bytes) -> None:
    """Replace a file; other files keep its mapped content."""
    file.unlink()
    file.write_bytes(content)
