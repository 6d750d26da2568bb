"""Matches of table rows with source rows that have the same key, for one part of the source at a time.

A source with one part is indexed, and the keys of the table are streamed through the index; only zones that may contain
a source key are read or, for a small source, only rows that a scalar index of a key column selects. For a source with
many parts, the keys and addresses of the table are partitioned in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import InvalidInputError, InvalidOperationError
from lancetable.expr import Expr
from lancetable.expr.syntax.ast import And, Column, Compare, InList, Literal
from lancetable.format.fragment import Fragment
from lancetable.format.row_address import split
from lancetable.format.schema import Field
from lancetable.ops.change.hash_join import KeyIndex, Rows, example, whole
from lancetable.ops.change.merge.clauses import Clauses, Matched, RepeatedKeys, key_fields
from lancetable.ops.change.merge.row_changes import MatchedRows
from lancetable.ops.change.rewritten_rows import ordered
from lancetable.ops.change.spill import PartitionedRows
from lancetable.ops.read.matching_rows import candidate_rows
from lancetable.ops.read.projection import ColumnLike
from lancetable.ops.read.take import runs
from lancetable.table.fragment_reader import ROW_ADDRESS, read_selection, select
from lancetable.table.row_counts import Offsets, row_count_index
from lancetable.table.version import TableVersion

_WINDOW_ROWS = 512 * 1024
_MAX_LISTED_KEYS = 1024
# With an index, so many rows of the table for each key: reading fewer keys of the table costs less than the search.
_ROWS_PER_LISTED_KEY = 1000


class _Window(NamedTuple):
    """Rows of a fragment whose keys are read together."""

    fragment: Fragment
    rows: range | Offsets


class SourcePart:
    """A part of the source, indexed by key.

    `matched` marks the source rows that match a table row; of several rows with the same key, only the first is marked.
    `is_ambiguous` is set if several rows have the same key and the clauses do not choose among them. A table row can
    then have several matches.
    """

    def __init__(self, table: pa.Table, clauses: Clauses) -> None:
        self.table = table
        self._on, self._repeated = clauses.on, clauses.repeated
        self._keys = [table.column(name) for name in clauses.on]
        self.index = KeyIndex(self._keys)
        self.matched: npt.NDArray[np.bool_] = np.zeros(table.num_rows, np.bool_)
        repeats = self.index.has_repeats
        self.is_ambiguous = repeats and self._repeated is RepeatedKeys.FAIL
        self._chosen = self.index.last if repeats and self._repeated is RepeatedKeys.LAST else None

    def chosen(self, first: Rows) -> Rows:
        """Return the chosen row of each key; `first` contains the first row of each key."""
        return first if self._chosen is None else self._chosen[first]

    def repeated(self, matches: MatchedRows) -> MatchedRows:
        """Return a match for each source row with the key; `matches` contain only the first row of each key."""
        order = np.argsort(self.index.representative, kind="stable")
        ascending = self.index.representative[order]
        starts = np.searchsorted(ascending, matches.source_rows, side="left")
        counts = np.searchsorted(ascending, matches.source_rows, side="right") - starts
        ends = np.cumsum(counts)
        within = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
        source_rows = order[np.repeat(starts, counts) + within]
        return MatchedRows(matches.fragment, np.repeat(matches.offsets, counts), source_rows)

    def unmatched(self) -> Rows:
        """Return the unmatched rows, after all matches were found.

        These are the rows with a null key and the rows whose key was not matched. If the clauses choose among rows with
        the same key, only the chosen row is returned.
        """
        if self.index.is_unique:
            return np.flatnonzero(~self.matched)
        first = self.index.representative
        with_key = np.flatnonzero(first >= 0)
        unmatched = np.ones(len(first), np.bool_)
        unmatched[with_key] = ~self.matched[first[with_key]]
        if self._repeated is not RepeatedKeys.FAIL:
            unmatched[with_key] &= self.chosen(first[with_key]) == with_key
        return np.flatnonzero(unmatched)

    def check_unique(self, matches: MatchedRows) -> None:
        """Raise InvalidOperationError if a table row occurs twice."""
        if not self.is_ambiguous:
            return
        repeated = np.flatnonzero(matches.offsets[1:] == matches.offsets[:-1])
        if len(repeated):
            raise InvalidOperationError(
                "Ambiguous merge inserts are prohibited: multiple source rows match the same target row on"
                f" ({self.key_of(int(matches.source_rows[repeated[0]]))}). Make sure that each target row is matched by"
                " at most one source row, or choose one with when_source_repeated"
            )

    def key_of(self, row: int) -> str:
        """Return the key of a row, for messages."""
        return example(self._on, self._keys, row)


class KeyMatcher:
    """Matcher of a source with all rows of a version, or with the rows of the given fragments.

    `stack` removes the temporary files of the matcher.
    """

    def __init__(
        self,
        version: TableVersion,
        clauses: Clauses,
        source: PartitionedRows,
        stack: ExitStack,
        fragments: frozenset[int] | None = None,
    ) -> None:
        self.version, self.clauses, self.source, self.fragments = version, clauses, source, fragments
        self._on = key_fields(version.schema, clauses.on)
        self._table_keys: PartitionedRows | None = None
        if source.num_parts > 1:
            names = [field.name for field in self._on]
            fields = [*(pa.field(field.name, field.data_type) for field in self._on), (ROW_ADDRESS, pa.uint64())]
            self._table_keys = stack.enter_context(PartitionedRows(pa.schema(fields), names))
            self._table_keys.spill()
            self._table_keys.fill(self._key_batches(), None)

    def matches(self, number: int, part: SourcePart) -> Iterator[MatchedRows]:
        """Yield the matches of a part of the source, by fragment, and mark its matched rows in `part.matched`.

        Raises InvalidOperationError for any match if the clauses forbid matches, and for several source rows that match
        the same row, unless a condition may choose among them.
        """
        clauses = self.clauses
        for matches in self._in_table(part) if self._table_keys is None else self._in_part(number, part):
            if not len(matches.offsets):
                continue
            part.matched[matches.source_rows] = True
            if clauses.matched is Matched.FAIL:
                key = part.key_of(int(matches.source_rows[0]))
                raise InvalidOperationError(f"Merge insert failed: found matching row with key values: {key}")
            if part.is_ambiguous and clauses.matched in (Matched.UPDATE, Matched.DELETE):
                matches = part.repeated(matches)
                if clauses.condition is None:
                    part.check_unique(matches)
                yield matches
            else:
                yield matches._replace(source_rows=part.chosen(matches.source_rows))

    def _in_table(self, part: SourcePart) -> Iterator[MatchedRows]:
        """Yield the table rows whose key is in the part, each with the first source row that has the key."""
        if not part.table.num_rows:
            return

        def match_window(window: _Window) -> MatchedRows:
            keys, offsets = self._read_keys(*window)
            hits, source_rows = part.index.matches(keys)
            return MatchedRows(window.fragment, offsets(hits), source_rows)

        keys = [part.table.column(field.name) for field in self._on]
        predicate = pruning_predicate(self._on, keys, self._max_listed_keys())
        windows = ordered(match_window, self._windows(predicate))
        for _, group in groupby(windows, lambda matches: matches.fragment.id):
            parts = list(group)
            offsets = np.concatenate([matches.offsets for matches in parts])
            yield MatchedRows(parts[0].fragment, offsets, np.concatenate([matches.source_rows for matches in parts]))

    def _in_part(self, number: int, part: SourcePart) -> Iterator[MatchedRows]:
        """Yield the same matches as `_in_table`, from table keys that are partitioned like the source."""
        assert self._table_keys is not None
        addresses, source_rows = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
        for batch in self._table_keys.batches(number):
            hits, rows = part.index.matches([batch.column(field.name) for field in self._on])
            addresses.append(batch.column(ROW_ADDRESS).to_numpy()[hits])
            source_rows.append(rows)
        matched = np.concatenate(addresses)
        order = np.argsort(matched)
        yield from matches_by_fragment(self.version, matched[order], np.concatenate(source_rows)[order])

    def _key_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the keys and addresses of all rows of the table."""
        names = [*(field.name for field in self._on), ROW_ADDRESS]

        def read(window: _Window) -> pa.RecordBatch:
            keys, offsets = self._read_keys(*window)
            row_offsets = offsets(np.arange(len(keys[0])))
            addresses = row_offsets.astype(np.uint64) + np.uint64(window.fragment.id << 32)
            return pa.RecordBatch.from_arrays([*map(whole, keys), pa.array(addresses)], names=names)

        return ordered(read, self._windows(None))

    def _windows(self, predicate: Expr | None) -> Iterator[_Window]:
        """Yield the rows to compare with the source, in table order: all, or those that may satisfy `predicate`."""
        version, fragments = self.version, self.fragments
        for fragment, rows in candidate_rows(
            version,
            predicate,
            None if fragments is None else [id for id in version.manifest.fragments.ids().tolist() if id in fragments],
            use_index=self._uses_index,
        ):
            for kept in rows if isinstance(rows, list) else [rows]:
                for start in range(0, len(kept), _WINDOW_ROWS):
                    yield _Window(fragment, kept[start : start + _WINDOW_ROWS])

    @property
    def _uses_index(self) -> bool:
        """True if keys may be looked up in indexes. A part of the fragments is scanned, as many tasks would search."""
        return self.clauses.use_index and self.fragments is None

    def _max_listed_keys(self) -> int:
        """Return the number of keys up to which each of them is looked up, rather than the range of all."""
        if not self._uses_index or self.version.manifest.index_section is None:
            return _MAX_LISTED_KEYS
        return max(_MAX_LISTED_KEYS, row_count_index(self.version).num_rows // _ROWS_PER_LISTED_KEY)

    def _read_keys(
        self, fragment: Fragment, rows: range | Offsets
    ) -> tuple[list[ColumnLike], Callable[[Offsets], Offsets]]:
        """Return the keys of the live rows of a window, and a function from their numbers to their offsets."""
        selection = select(self.version, fragment, rows)
        keys = read_selection(self.version, selection, self._on)
        if isinstance(rows, range) and selection.num_rows == len(rows):
            return keys, lambda numbers: numbers + rows.start
        offsets = selection.offsets()
        return keys, lambda numbers: offsets[numbers]


def matches_by_fragment(
    version: TableVersion, addresses: npt.NDArray[np.uint64], source_rows: Rows
) -> Iterator[MatchedRows]:
    """Split matches, in address order, by fragment. Raises InvalidInputError for a fragment not in `version`."""
    ids, offsets = split(addresses)
    for fragment_id, start, end in runs(ids):
        fragment = version.manifest.fragments.by_id(fragment_id)
        if fragment is None:
            raise InvalidInputError(f"version {version.version} has no fragment {fragment_id}")
        yield MatchedRows(fragment, offsets[start:end].astype(np.int64), source_rows[start:end])


def pruning_predicate(fields: Iterable[Field], keys: Sequence[pa.ChunkedArray], max_listed: int) -> Expr | None:
    """Return a predicate that every row with one of `keys` satisfies; None if no key column has bounds.

    It contains the keys if there are at most `max_listed` of them, else their range.
    """
    terms: list[Expr] = []
    for field, key in zip(fields, keys, strict=True):
        try:
            limits = pc.min_max(key)
            low, high = limits["min"], limits["max"]
        except (pa.ArrowNotImplementedError, KeyError):
            continue
        if not low.is_valid:
            continue
        column = Column((field.name,), field.data_type)
        if len(key) <= max_listed:
            terms.append(InList(column, whole(key.drop_null())))
        elif not pa.types.is_floating(field.data_type):
            # For floats, a range would exclude NaN, which can be a key.
            terms += [Compare(">=", column, Literal(low)), Compare("<=", column, Literal(high))]
    if not terms:
        return None
    return terms[0] if len(terms) == 1 else And(tuple(terms))


def key_indexes(version: TableVersion, clauses: Clauses) -> dict[str, bool]:
    """Return the names of the indexes in which a merge can look up keys, with whether they find exactly these keys."""
    if not clauses.use_index or version.manifest.index_section is None:
        return {}
    from lancetable.index.named_indexes import indexes_by_field  # imported here, because most tables have no indexes
    from lancetable.index.queries import IsIn

    indexes = indexes_by_field(version)
    queries = {
        field.id: IsIn(field.name, pa.array([], field.data_type)) for field in key_fields(version.schema, clauses.on)
    }
    return {
        index.name: index.is_exact(query)
        for field_id, query in queries.items()
        for index in indexes.get(field_id, ())
        if index.answers(query)
    }
