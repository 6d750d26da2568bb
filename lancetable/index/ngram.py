"""NGRAM indexes of strings: for each trigram, the set of the rows whose string contains it.

    ngram_postings.lance

    tokens          0            16161       ...      a trigram as a number; 0 for null strings
    posting_list    {1, 6}       {7}                  each a RoaringTreemap

A search for a string or a regular expression returns the rows that contain all trigrams that a match must contain;
these rows have to be checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedTypeError
from lancetable.file.kernels.varbin import is_string
from lancetable.index.kind import ROW, VALUE, Batches, IndexKind, OpenIndex, Sources, checked_options
from lancetable.index.posting_files import OpenPostings, PostingFile, kept_postings, write_postings
from lancetable.index.postings import PostingSort
from lancetable.index.queries import Contains, IndexQuery, MatchesRegex
from lancetable.index.required_trigrams import Condition, trigrams_of_regex
from lancetable.index.results import Exactness, IndexResult
from lancetable.index.roaring_containers import ROARING_TREEMAP
from lancetable.index.row_sets import RowSet
from lancetable.index.search_statistics import note_comparisons
from lancetable.index.trigrams import trigrams, trigrams_of
from lancetable.proto import index_details_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from lancetable.format.row_address import U64Array
    from lancetable.format.schema import Field
    from lancetable.index.external_sort import Run
    from lancetable.index.index_files import IndexFileReader, SegmentWriter
    from lancetable.index.row_mapping import AddressMapping
    from lancetable.index.segments import SegmentFiles
    from lancetable.index.sort_keys import Int64

_FILE_NAME: Final = "ngram_postings.lance"
_NAMES: Final = ("tokens", "posting_list")
_SCHEMA: Final = pa.schema(
    [
        pa.field(_NAMES[0], pa.uint32()),
        pa.field(_NAMES[1], pa.binary(), nullable=False, metadata={"lance-encoding:compression": "none"}),
    ]
)
_NULL_TOKEN: Final = 0
_MIN_CHARACTERS: Final = 3
_CHUNK_BYTES: Final = 1 << 20  # size of the strings whose trigrams are computed at once


class _Tokens:
    """The sorted tokens of a file, and the row of each."""

    def __init__(self, reader: IndexFileReader) -> None:
        stored = reader.read(_NAMES[:1]).column(0).combine_chunks()
        if stored.null_count:
            raise CorruptFileError("tokens of an index are null", path=reader.path)
        tokens = stored.to_numpy()
        self.rows: Int64 = np.argsort(tokens, kind="stable")
        self.tokens = tokens[self.rows]

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory."""
        return int(self.tokens.nbytes + self.rows.nbytes) + 256

    def find(self, tokens: Iterable[int]) -> list[int | None]:
        """Return the row of each token, None if the file does not contain it."""
        wanted = np.fromiter(tokens, np.uint32)
        at = np.searchsorted(self.tokens, wanted)
        return [
            int(self.rows[place]) if place < len(self.tokens) and self.tokens[place] == token else None
            for place, token in zip(at.tolist(), wanted.tolist())
        ]


class OpenNGram(OpenPostings):
    """An open NGRAM segment."""

    @property
    def _tokens(self) -> _Tokens:
        reader = self.file.reader
        return reader.cached(
            "tokens", lambda: _Tokens(reader), lambda read: read.tokens.nbytes + read.rows.nbytes + 256
        )

    def search(self, query: IndexQuery) -> IndexResult:
        """Return rows that contain the required trigrams of a query."""
        condition = _condition(query)
        assert condition
        tokens = sorted({token for choices in condition for choice in choices for token in choice})
        note_comparisons(len(tokens))
        rows = dict(zip(tokens, self._tokens.find(tokens)))
        # Without the trigrams that no string contains, most searches need not read any set.
        possible = [[choice for choice in choices if None not in map(rows.get, choice)] for choices in condition]
        if not all(possible):
            return IndexResult(RowSet(), exactness=Exactness.AT_MOST)
        used = {rows[token] for choices in possible for choice in choices for token in choice}
        file_rows = np.array(sorted(row for row in used if row is not None), np.int64)
        sets = dict(zip(file_rows.tolist(), self.file.row_sets(file_rows)))
        found = [
            RowSet.union(_intersection(sets[rows[token] or 0] for token in choice) for choice in choices)
            for choices in possible
        ]
        return IndexResult(_intersection(found), exactness=Exactness.AT_MOST)

    def statistics(self) -> dict[str, Any]:
        """Return statistics of the segment."""
        return {"num_ngrams": self.file.reader.num_rows}

    def prewarm(self) -> None:
        """Read all pages into the cache."""
        self._tokens  # noqa: B018  # is cached
        super().prewarm()


def _condition(query: IndexQuery) -> Condition:
    """Return the trigrams that strings must contain; an empty condition if the index cannot answer the query."""
    if isinstance(query, MatchesRegex):
        return trigrams_of_regex(query.pattern)
    if not isinstance(query, Contains) or len(query.text) < _MIN_CHARACTERS:
        return frozenset()
    tokens = trigrams_of(query.text)
    return frozenset({frozenset({tokens})}) if tokens else frozenset()


def _intersection(sets: Iterable[RowSet]) -> RowSet:
    smallest, *others = sorted(sets, key=len)
    for rows in others:
        smallest &= rows
    return smallest


class NGram(IndexKind):
    """NGRAM."""

    name = "NGRAM"
    plan_name = "NGram"
    type_url = "/lance.table.NGramIndexDetails"
    max_version = 0

    def check_field(self, field: Field, path: str) -> None:
        """Raise UnsupportedTypeError if the type cannot be indexed."""
        if not is_string(field.data_type):
            raise UnsupportedTypeError(
                f"column {path!r} has the type {field.data_type}, which an NGRAM index does not support; use strings",
                feature=f"NGRAM indexes of {field.data_type}",
            )

    def answers(self, query: IndexQuery, details: bytes) -> bool:
        """Return whether an index can answer a query: it must contain trigrams of letters and digits."""
        return bool(_condition(query))

    def is_exact(self, query: IndexQuery, details: bytes) -> bool:
        """Return False: the rows have to be checked."""
        return False

    def open(self, files: SegmentFiles) -> OpenNGram:
        """Open a segment. Raises CorruptFileError if its tokens are not numbers."""
        file = PostingFile(files.open(_FILE_NAME), _NAMES, ROARING_TREEMAP)
        if file.keys.stored_type != pa.uint32():
            what = "the tokens of an index have another type"
            raise CorruptFileError(what, pa.uint32(), file.keys.stored_type, path=file.reader.path)
        return OpenNGram(file)

    def merge(
        self, writer: SegmentWriter, field: Field, sources: Sources, batches: Batches, options: Mapping[str, Any]
    ) -> Message:
        """Write one segment with the entries of several others and of new rows, and return its details."""
        checked_options(self.name, options, {})
        with PostingSort() as sort:
            for batch in batches:
                for part in _token_batches(batch):
                    sort.add(part)
            _write(writer, sort.merged(kept_postings(sources)))
        return index_details_pb2.NGramIndexDetails()

    def remap(self, writer: SegmentWriter, source: OpenIndex, mapping: AddressMapping) -> bool:
        """Write a segment whose rows are mapped."""
        assert isinstance(source, OpenNGram)
        _write(writer, source.file.postings(mapping.apply))
        return True


def _write(writer: SegmentWriter, postings: Run) -> None:
    with writer.open_file(_FILE_NAME, _SCHEMA) as file:
        write_postings(file, _SCHEMA, postings, ROARING_TREEMAP)


def _token_batches(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the tokens of the strings of a batch with their rows, and the null token for null strings."""
    strings, rows = batch.column(VALUE), batch.column(ROW).to_numpy()
    if strings.null_count:
        valid = strings.is_valid()
        is_valid = valid.to_numpy(zero_copy_only=False)
        yield _tokens_of(np.full(strings.null_count, _NULL_TOKEN, np.uint32), rows[~is_valid])
        strings, rows = strings.filter(valid), rows[is_valid]
    num_chunks = strings.nbytes // _CHUNK_BYTES + 1
    bounds = np.linspace(0, len(strings), num_chunks + 1).astype(np.int64).tolist()
    for start, end in pairwise(bounds):
        tokens, numbers = trigrams(strings[start:end])
        yield _tokens_of(tokens, rows[start:end][numbers])


def _tokens_of(tokens: npt.NDArray[np.uint32], rows: U64Array) -> pa.RecordBatch:
    return pa.record_batch({VALUE: tokens, ROW: rows})


KIND = NGram()
