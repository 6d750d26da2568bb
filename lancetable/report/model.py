"""The content of a report: frozen dataclasses, whose fields are also the keys of the JSON form.

Counts and sizes that a manifest does not record are None, not zero.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from lancetable.report.text import visible

SCHEMA_VERSION: Final = 1
"""Version of the JSON form. It changes if a key is removed or gets another meaning, not if one is added."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the work and of the size of a report.

    `versions` and `manifest_bytes` limit the history, `fragments` the listed fragments, and `bins` the map of all of
    them. `data_files` is the number of data files of which footers and zone maps are read; together, they have at most
    `columns` columns, unless a single file has more. The first `pages` pages of each of the first `page_maps` of them
    are listed, and `value_rows` rows of the first `value_files` of them are read, but at most about `value_bytes` of
    each file. `indexes` limits the indexes, and `ranges` the ranges of fragments that each of them does not cover.
    """

    versions: int = 1000
    manifest_bytes: int = 128 << 20
    fragments: int = 20_000
    bins: int = 160
    data_files: int = 32
    columns: int = 50_000
    page_maps: int = 8
    pages: int = 400
    value_files: int = 4
    value_rows: int = 4096
    value_bytes: int = 4 << 20
    indexes: int = 200
    ranges: int = 100


@dataclass(frozen=True, slots=True)
class Overview:
    """Properties of the table and the version. Row counts are None if the manifest does not record all of them.

    `storage_options` has the names of the options with which the table was opened, without their values.
    """

    uri: str
    storage_options: tuple[str, ...]
    version: int
    newest_version: int
    branch: str | None
    committed: datetime | None
    written_by: str | None
    data_format: str
    stable_row_ids: bool
    manifest_naming: str
    num_rows: int | None
    num_deleted_rows: int | None
    num_fragments: int
    num_data_files: int
    num_deletion_files: int
    data_bytes: int
    num_columns: int
    config: dict[str, str]
    metadata: dict[str, str]
    schema_metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class TagEntry:
    """A tag."""

    name: str
    version: int
    branch: str | None


@dataclass(frozen=True, slots=True)
class BranchEntry:
    """A branch with the version that it starts from."""

    name: str
    parent_branch: str | None
    parent_version: int
    created: datetime | None


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """A version in the history. If its manifest cannot be read, `problem` is set and the counts are None."""

    version: int
    committed: datetime | None = None
    operation: str | None = None
    message: str | None = None
    num_rows: int | None = None
    num_deleted_rows: int | None = None
    num_fragments: int | None = None
    num_data_files: int | None = None
    data_bytes: int | None = None
    tags: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class History:
    """The newest versions of the branch, oldest first. `total` counts all versions."""

    total: int
    versions: tuple[VersionEntry, ...]


@dataclass(frozen=True, slots=True)
class ColumnSet:
    """Columns that data files store together. `num_unused` counts columns of the files that the table does not use."""

    number: int
    columns: tuple[str, ...]
    num_unused: int
    num_files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DataFileEntry:
    """A data file of a fragment; `column_set` is the number of a `ColumnSet`."""

    path: str
    format: str
    size_bytes: int | None
    column_set: int


@dataclass(frozen=True, slots=True)
class FragmentEntry:
    """A fragment. `num_rows` counts live rows; `not_indexed_by` names the indexes that do not cover it."""

    id: int
    num_rows: int | None
    num_deleted_rows: int | None
    size_bytes: int | None
    files: tuple[DataFileEntry, ...]
    not_indexed_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FragmentBin:
    """Consecutive fragments, from position `first` to `last` in the manifest, as one cell of the map.

    `files_by_column_set` has the number of data files for each `ColumnSet`. Unknown counts and sizes are omitted from
    the sums.
    """

    first: int
    last: int
    first_id: int
    last_id: int
    num_rows: int
    num_deleted_rows: int
    size_bytes: int
    files_by_column_set: tuple[int, ...]

    @property
    def num_fragments(self) -> int:
        """Number of fragments."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Fragments:
    """All fragments as a map of at most `Limits.bins` bins, and the first `Limits.fragments` of them as entries."""

    total: int
    entries: tuple[FragmentEntry, ...]
    bins: tuple[FragmentBin, ...]
    column_sets: tuple[ColumnSet, ...]


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of the values of a column in `num_rows` rows, deleted ones included.

    `lower` and `upper` are bounds of the values, not necessarily values. `source` is "zone maps", "sampled rows", or
    "zone maps and sampled rows".
    """

    source: str
    num_rows: int
    num_nulls: int | None
    num_nans: int | None
    lower: str | None
    upper: str | None


@dataclass(frozen=True, slots=True)
class ColumnEntry:
    """A field of the table that has a column, in the data files of the sample.

    `file_bytes` is the stored size of its pages. `ratio` is stored bytes divided by Arrow bytes in the files of which
    values were read, None if there are none. `encodings` maps each encoding to its number of pages.
    """

    field_id: int
    path: str
    type: str
    nullable: bool
    num_files: int
    num_pages: int
    file_bytes: int
    ratio: float | None
    encodings: dict[str, int]
    statistics: ColumnStatistics | None


@dataclass(frozen=True, slots=True)
class PageEntry:
    """A page: its rows, the range of the file that contains its buffers, and their size without padding."""

    first_row: int
    num_rows: int
    start: int
    end: int
    size_bytes: int
    num_buffers: int
    encoding: str


@dataclass(frozen=True, slots=True)
class ColumnPagesEntry:
    """The first pages of a column of a data file. `num_pages` and `size_bytes` describe all of them."""

    path: str
    num_pages: int
    size_bytes: int
    pages: tuple[PageEntry, ...]


@dataclass(frozen=True, slots=True)
class FilePages:
    """Page layout of a data file. A file of format 0.1 has batches instead of pages.

    `metadata_start` is the position after the pages. `num_columns` counts all columns; `columns` are the first ones.
    """

    path: str
    fragment_id: int
    format: str
    num_rows: int
    size_bytes: int
    metadata_start: int
    num_columns: int
    num_batches: int | None
    columns: tuple[ColumnPagesEntry, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """Numbers of the data files that were read: footers, zone maps, and rows of values."""

    total_files: int
    num_files: int
    num_with_zone_maps: int
    num_with_values: int
    num_value_rows: int


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """An index with its coverage.

    `uncovered` has the first ranges of ids of fragments that are not covered, inclusive; `covered_by_bin` has the
    number of covered fragments of each `FragmentBin`. Row counts are None if the manifest does not record them.
    """

    name: str
    type: str
    columns: tuple[str, ...]
    num_segments: int
    num_rows: int | None
    num_rows_unindexed: int | None
    num_fragments: int
    num_fragments_unindexed: int
    uncovered: tuple[tuple[int, int], ...]
    covered_by_bin: tuple[int, ...]
    size_bytes: int | None
    created: datetime | None
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Totals over the tasks of a compaction with the settings of the table."""

    num_tasks: int
    num_fragments: int
    num_rows: int
    num_deleted_rows: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of the table that could not be read."""

    kind: str
    path: str
    detail: str


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommendation. `kind` names the remedy; `command` is for a POSIX shell with the quoting of Bash."""

    kind: str
    title: str
    detail: str
    command: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class TableReport:
    """The state of a table at one version: history, fragments, columns, page layouts, indexes and advice.

    `LanceDataset.report` returns it. `compaction` is None if no compaction was planned; `notes` state the reason, and
    what was cut by the limits.
    """

    schema_version: int
    generated: datetime
    generator: str
    limits: Limits
    overview: Overview
    tags: tuple[TagEntry, ...]
    branches: tuple[BranchEntry, ...]
    history: History
    fragments: Fragments
    sample: Sample
    columns: tuple[ColumnEntry, ...]
    files: tuple[FilePages, ...]
    indexes: tuple[IndexEntry, ...]
    compaction: CompactionPlan | None
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    advice: tuple[Advice, ...] = ()

    def to_html(self) -> str:
        """Return the report as one HTML document without references to other files.

        Raises
        ------
        MissingPackageError
            If jinja2 is not installed.
        """
        from lancetable.report.render import render_html

        return render_html(self)

    def to_json(self) -> str:
        """Return the report as JSON in ASCII. Times are in ISO format."""
        return json.dumps(asdict(self), indent=2, default=datetime.isoformat)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a local file: JSON if the name ends with ".json", otherwise HTML.

        Raises
        ------
        MissingPackageError
            If jinja2 is not installed and the format is HTML.
        """
        target = Path(path)
        target.write_text(self.to_json() if target.suffix == ".json" else self.to_html(), encoding="utf-8")

    def _repr_html_(self) -> str:
        """Return a frame with the document, so that its styles do not affect the notebook."""
        return (
            f'<iframe title="{escape(f"Report of {self.overview.uri}")}" sandbox="allow-scripts" width="100%" '
            f'height="800" style="border:0" srcdoc="{escape(self.to_html())}"></iframe>'
        )

    def __repr__(self) -> str:
        overview = self.overview
        rows = "unknown" if overview.num_rows is None else f"{overview.num_rows:,}"
        facts = f"version={overview.version}, rows={rows}, fragments={overview.num_fragments:,}"
        found = f"problems={len(self.problems)}, advice={len(self.advice)}"
        lines = [f"TableReport({overview.uri!r}, {facts}, {found})"]
        for advice in self.advice:
            lines.append(f"  {advice.kind}: {visible(advice.title)}")
            if advice.command is not None:
                lines.append(f"    {advice.command}")
        return "\n".join(lines)
