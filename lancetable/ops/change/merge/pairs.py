"""Pairs of a table row and a source row with the same key, found for one part of the source at a time.

A source with one part is indexed, and the table's keys are streamed through the index; only zones that may contain a
source key are read. For a source with many parts, keys and addresses of the table are partitioned in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import InvalidOperationError
from lancetable.expr import Expr
from lancetable.expr.syntax.ast import And, Column, Compare, InList, Literal
from lancetable.format.fragment import Fragment
from lancetable.format.schema import Field
from lancetable.ops.change.key_join import KeyIndex, Rows, example, whole
from lancetable.ops.change.merge.clauses import Clauses, Matched, Repeated, key_fields
from lancetable.ops.change.rewritten_rows import ordered
from lancetable.ops.change.spill import Divided
from lancetable.ops.read.projection import ColumnLike
from lancetable.ops.read.prune import prunable_columns, prune_fragment
from lancetable.table.fragments import read_selection, select
from lancetable.table.row_count_index import Offsets, physical_rows
from lancetable.table.version import TableVersion

__all__ = ["PairFinder", "Pairs", "SourcePart", "join_pairs", "pruning_predicate"]

Mask = npt.NDArray[np.bool_]

_ADDRESS = "_rowaddr"
_WINDOW_ROWS = 512 * 1024
_MAX_LISTED_KEYS = 1024


class Pairs(NamedTuple):
    """Rows of a fragment, by ascending physical offset, each with its source row."""

    fragment: Fragment
    offsets: Offsets
    rows: Rows


class SourcePart:
    """A part of the source, indexed by key.

    `found` marks source rows whose key a table row has; only the first row of a key is marked. `ambiguous` is set if
    several
    rows share a key and the clauses do not choose among them; then offsets of pairs repeat.
    """

    def __init__(self, table: pa.Table, clauses: Clauses) -> None:
        self.table = table
        self._on, self._repeated = clauses.on, clauses.repeated
        self._keys = [table.column(name) for name in clauses.on]
        self.index = KeyIndex(self._keys)
        self.found: Mask = np.zeros(table.num_rows, np.bool_)
        repeats = self.index.has_repeats
        self.ambiguous = repeats and self._repeated is Repeated.REFUSE
        self._chosen: Rows | None = None  # by the first row of a key, the row that is used
        if repeats and self._repeated is Repeated.LAST:
            first = self.index.representative
            rows = np.flatnonzero(first >= 0)
            self._chosen = np.arange(table.num_rows)
            self._chosen[first[rows]] = rows

    def chosen(self, first: Rows) -> Rows:
        """Return the rows to use for keys given by their first row."""
        return first if self._chosen is None else self._chosen[first]

    def every(self, offsets: Offsets, first: Rows) -> tuple[Offsets, Rows]:
        """Return all pairs of rows with these keys if several source rows share a key."""
        order = np.argsort(self.index.representative, kind="stable")
        ascending = self.index.representative[order]
        starts = np.searchsorted(ascending, first, side="left")
        counts = np.searchsorted(ascending, first, side="right") - starts
        ends = np.cumsum(counts)
        within = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
        return np.repeat(offsets, counts), order[np.repeat(starts, counts) + within]

    def unmatched(self) -> Rows:
        """Return the unmatched rows, once all pairs were found.

        These are rows with a null key and rows whose key was not found; of repeated rows, those that are used.
        """
        if self.index.is_unique:
            return np.flatnonzero(~self.found)
        first = self.index.representative
        known = np.flatnonzero(first >= 0)
        alone = np.ones(len(first), np.bool_)
        alone[known] = ~self.found[first[known]]
        if self._repeated is not Repeated.REFUSE:
            alone[known] &= self.chosen(first[known]) == known
        return np.flatnonzero(alone)

    def refuse_repeats(self, pairs: Pairs) -> None:
        """Raise InvalidOperationError if a table row is in two of the pairs."""
        if not self.ambiguous or len(pairs.offsets) < 2:
            return
        twice = np.flatnonzero(pairs.offsets[1:] == pairs.offsets[:-1])
        if len(twice):
            raise InvalidOperationError(
                "Ambiguous merge inserts are prohibited: multiple source rows match the same target row on"
                f" ({self.key_of(int(pairs.rows[twice[0]]))}). Make sure that each target row is matched by at most one"
                " source row, or choose one with when_source_repeated"
            )

    def key_of(self, row: int) -> str:
        """Return the key of a row, for messages."""
        return example(self._on, self._keys, row)


class PairFinder:
    """Finder of the pairs of a source with a version, or with the fragments of these ids.

    `stack` closes the files that the finder keeps on disk.
    """

    def __init__(
        self,
        version: TableVersion,
        clauses: Clauses,
        source: Divided,
        stack: ExitStack,
        fragments: frozenset[int] | None = None,
    ) -> None:
        self._version, self._clauses, self._fragments = version, clauses, fragments
        self._on = key_fields(version.schema, clauses.on)
        self._targets: Divided | None = None
        if source.num_parts > 1:
            names = [field.name for field in self._on]
            fields = [*(pa.field(field.name, field.data_type) for field in self._on), (_ADDRESS, pa.uint64())]
            self._targets = stack.enter_context(Divided(pa.schema(fields), names))
            self._targets.divide()
            self._targets.fill(self._key_batches(), None)

    def pairs(self, number: int, part: SourcePart) -> Iterator[Pairs]:
        """Yield the pairs of a part of the source, by fragment, and mark its matched rows in `part.found`.

        Raises InvalidOperationError for a match if the clauses forbid any, and for source rows with one key that match
        a row,
        unless a condition may choose among them.
        """
        clauses = self._clauses
        for pairs in self._in_table(part) if self._targets is None else self._in_part(number, part):
            part.found[pairs.rows] = True
            if clauses.matched is Matched.FAIL and len(pairs.rows):
                key = part.key_of(int(pairs.rows[0]))
                raise InvalidOperationError(f"Merge insert failed: found matching row with key values: {key}")
            rows = Pairs(pairs.fragment, pairs.offsets, part.chosen(pairs.rows))
            if part.ambiguous and clauses.matched in (Matched.UPDATE, Matched.DELETE):
                rows = Pairs(pairs.fragment, *part.every(pairs.offsets, pairs.rows))
                if clauses.condition is None:
                    part.refuse_repeats(rows)
            if len(rows.offsets):
                yield rows

    def _in_table(self, part: SourcePart) -> Iterator[Pairs]:
        """Yield the table rows whose key is in the part, each with the first row of the key."""
        if not part.table.num_rows:
            return

        def match_window(window: tuple[Fragment, range]) -> Pairs:
            fragment, rows = window
            keys, offsets = self._read_keys(fragment, rows)
            hits, found = part.index.matches(keys)
            return Pairs(fragment, hits + rows.start if offsets is None else offsets[hits], found)

        predicate = pruning_predicate(self._on, [part.table.column(field.name) for field in self._on])
        waiting: list[Pairs] = []
        for pairs in ordered(match_window, self._windows(predicate)):
            if waiting and waiting[0].fragment.id != pairs.fragment.id:
                yield join_pairs(waiting)
                waiting = []
            waiting.append(pairs)
        if waiting:
            yield join_pairs(waiting)

    def _in_part(self, number: int, part: SourcePart) -> Iterator[Pairs]:
        """Like `_in_table`, for keys of the table that are partitioned like the source."""
        assert self._targets is not None
        addresses: list[npt.NDArray[np.uint64]] = []
        rows: list[Rows] = []
        for batch in self._targets.batches(number):
            hits, found = part.index.matches([batch.column(field.name) for field in self._on])
            addresses.append(batch.column(_ADDRESS).to_numpy()[hits])
            rows.append(found)
        if not addresses:
            return
        every = np.concatenate(addresses)
        order = np.argsort(every)
        every, first = every[order], np.concatenate(rows)[order]
        ids = (every >> np.uint64(32)).astype(np.int64)
        offsets = (every & np.uint64(0xFFFF_FFFF)).astype(np.int64)
        for fragment_id in np.unique(ids).tolist():
            start, end = np.searchsorted(ids, [fragment_id, fragment_id + 1])
            fragment = self._version.manifest.fragments.by_id(fragment_id)
            assert fragment is not None, "the keys were read from this version"
            yield Pairs(fragment, offsets[start:end], first[start:end])

    def _key_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the keys and addresses of all rows of the table."""
        names = [*(field.name for field in self._on), _ADDRESS]

        def read(window: tuple[Fragment, range]) -> pa.RecordBatch:
            fragment, rows = window
            keys, offsets = self._read_keys(fragment, rows)
            arrays = [whole(key) for key in keys]
            row_offsets = np.arange(rows.start, rows.stop) if offsets is None else offsets
            addresses = row_offsets.astype(np.uint64) + np.uint64(fragment.id << 32)
            return pa.RecordBatch.from_arrays([*arrays, pa.array(addresses)], names=names)

        return ordered(read, self._windows(None))

    def _windows(self, predicate: Expr | None) -> Iterator[tuple[Fragment, range]]:
        version = self._version
        columns = {} if predicate is None else prunable_columns(version.schema, predicate)
        for fragment in version.manifest.fragments:
            if self._fragments is not None and fragment.id not in self._fragments:
                continue
            total = physical_rows(version, fragment)
            ranges = [range(total)] if predicate is None else prune_fragment(version, fragment, predicate, columns)
            for kept in ranges:
                for start in range(kept.start, kept.stop, _WINDOW_ROWS):
                    yield fragment, range(start, min(kept.stop, start + _WINDOW_ROWS))

    def _read_keys(self, fragment: Fragment, rows: range) -> tuple[list[ColumnLike], Offsets | None]:
        """Return the keys of the live rows of a window and their offsets; None as offsets if all rows are live."""
        selection = select(self._version, fragment, rows)
        keys = read_selection(self._version, selection, self._on)
        return keys, None if selection.num_rows == len(rows) else selection.offsets()


def join_pairs(parts: Sequence[Pairs]) -> Pairs:
    """Concatenate pairs of one fragment, in row order."""
    if len(parts) == 1:
        return parts[0]
    offsets, rows = (np.concatenate([part[index] for part in parts]) for index in (1, 2))
    return Pairs(parts[0].fragment, offsets, rows)


def pruning_predicate(fields: Iterable[Field], keys: Iterable[pa.ChunkedArray]) -> Expr | None:
    """Return a predicate for zone pruning that all rows with a key among `keys` satisfy; None if there is none."""
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
        if len(key) <= _MAX_LISTED_KEYS:
            terms.append(InList(column, whole(key.drop_null())))
        elif not pa.types.is_floating(field.data_type):
            # A range would exclude NaN, which can be a key.
            terms += [Compare(">=", column, Literal(low)), Compare("<=", column, Literal(high))]
    if not terms:
        return None
    return terms[0] if len(terms) == 1 else And(tuple(terms))
