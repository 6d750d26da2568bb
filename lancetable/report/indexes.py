"""Indexes of a table with the fragments and rows that they cover, from the manifest only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.commit.index_coverage import current_index_section
from lancetable.format.index import parse_indices
from lancetable.index_metadata import Index, describe_settings
from lancetable.report.findings import Findings
from lancetable.report.model import IndexEntry, Limits

if TYPE_CHECKING:
    from lancetable.report.fragments import FragmentCounts
    from lancetable.table.version import TableVersion


class Coverage(NamedTuple):
    """The name of an index, and a mask of the fragments that it covers, in the order of the manifest."""

    name: str
    mask: npt.NDArray[np.bool_]


def read_indexes(version: TableVersion, limits: Limits, findings: Findings) -> dict[str, list[Index]]:
    """Return the segments of the first indexes by name. Entries for the system, which have no columns, are left out."""
    path = version.location.path
    section = findings.attempt("index", path, lambda: current_index_section(version))
    parsed = findings.attempt("index", path, lambda: parse_indices(section, path)) or ()
    segments: dict[str, list[Index]] = {}
    for entry in parsed:
        index = findings.attempt("index", path, partial(Index.from_format, entry))
        if index is not None and index.fields:
            segments.setdefault(index.name, []).append(index)
    if len(segments) > limits.indexes:
        findings.notes.append(f"The first {limits.indexes:,} of {len(segments):,} indexes are listed.")
    return dict(sorted(segments.items())[: limits.indexes])


def coverage_of(segments: dict[str, list[Index]], counts: FragmentCounts) -> list[Coverage]:
    """Return the coverage of each index."""
    masks = []
    for name, parts in segments.items():
        covered = np.array(sorted({number for part in parts for number in part.fragment_ids}), np.uint64)
        masks.append(Coverage(name, np.isin(counts.ids, covered)))
    return masks


def index_entries(
    version: TableVersion,
    segments: dict[str, list[Index]],
    coverage: Sequence[Coverage],
    counts: FragmentCounts,
    limits: Limits,
    findings: Findings,
) -> Iterator[IndexEntry]:
    """Yield the entry of each index."""
    schema = version.schema
    live = counts.physical - counts.deleted
    for (name, mask), parts in zip(coverage, segments.values(), strict=True):
        type_url, data = parts[0].index_details or ("", b"")
        described = findings.attempt("index", version.location.path, partial(describe_settings, type_url, data, name))
        kind, settings = described or ("Unknown", {})
        sizes = [part.size_bytes for part in parts]
        created = [part.created_at for part in parts if part.created_at is not None]
        yield IndexEntry(
            name,
            kind,
            tuple(schema.path_of(field_id) for field_id in parts[0].fields if field_id in schema.by_id),
            len(parts),
            int(live[mask].sum()) if counts.is_known[mask].all() else None,
            int(live[~mask].sum()) if counts.is_known[~mask].all() else None,
            int(mask.sum()),
            int((~mask).sum()),
            _ranges(counts.ids, ~mask, limits.ranges),
            tuple(counts.sum_by_bin(mask.astype(np.int64))),
            None if None in sizes else sum(size or 0 for size in sizes),
            max(created, default=None),
            settings,
        )


def _ranges(ids: npt.NDArray[np.uint64], mask: npt.NDArray[np.bool_], limit: int) -> tuple[tuple[int, int], ...]:
    """Return the first `limit` ranges of consecutive positions of the mask, as pairs of first and last id."""
    edges = np.diff(np.concatenate(([0], mask.astype(np.int8), [0])))
    starts, ends = np.flatnonzero(edges == 1)[:limit], np.flatnonzero(edges == -1)[:limit] - 1
    return tuple(zip(ids[starts].tolist(), ids[ends].tolist(), strict=True))
