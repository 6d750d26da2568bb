"""NGRAM indexes: files of both libraries, merges, and mapped rows."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.index.ngram import KIND
from lancetable.index.queries import Contains, IndexQuery, IsNull, MatchesRegex
from lancetable.index.results import Exactness
from lancetable.index.trigrams import trigrams_of
from tests.index import indexed_tables as tables
from tests.index.segment_files import (
    DELETED,
    ListedMapping,
    build_index,
    field_of,
    replace_index,
    writer_of,
)

lance = pytest.importorskip("lance")

FORMS = list(itertools.product([False, True], ["2.0", "2.1", "2.2"]))
WORDS = ["hello", "world", "Héllo", "straße", "abc123", "a-b-c", "日本語", "xyz", "ﬃ", "½x", "", "a", "HELLO"]
QUERIES: list[IndexQuery] = [
    *[Contains("v", text) for text in ("hello", "llo wor", "Héll", "raße", "123", "zzz", "ello x", "本語xyz")],
    *[
        MatchesRegex("v", pattern)
        for pattern in ("h.llo", "hel+o", "(hello|world) xyz", "^abc", ".*world.*", "zzz|hello")
    ],
]


def texts_of(n: int, data_type: pa.DataType, seed: int = 0) -> pa.Array:
    """Return strings of up to four words; some are null."""
    rng = np.random.default_rng(seed)
    texts: list[str | None] = [" ".join(rng.choice(WORDS, rng.integers(0, 5))) for _ in range(n)]
    return pa.array([None if rng.random() < 0.15 else text for text in texts], data_type)


def selects(query: IndexQuery, text: str | None) -> bool:
    if text is None:
        return False
    if isinstance(query, Contains):
        return query.text in text
    assert isinstance(query, MatchesRegex)
    return re.search(query.pattern, text) is not None


def assert_answers(dataset: lancetable.LanceDataset, queries: Iterable[IndexQuery]) -> None:
    """Check that the selected rows contain all matches, and no row without the trigrams of a string."""
    table = dataset.to_table(columns=["v"], with_row_address=True)
    rows, texts = table["_rowaddr"].to_pylist(), table["v"].to_pylist()
    for query in queries:
        assert KIND.answers(query, b"")
        for segment in tables.segments(dataset):
            result = segment.search(query)
            assert result.exactness is Exactness.AT_MOST
            found = set(result.true)
            for row, text in zip(rows, texts, strict=True):
                if row >> 32 in segment.fragments:
                    assert row in found or not selects(query, text), (query, text)
                    if isinstance(query, Contains) and row in found:
                        assert trigrams_of(query.text) <= trigrams_of(text)


def assert_pylance_answers(dataset: lancetable.LanceDataset, queries: Iterable[IndexQuery]) -> None:
    theirs = lance.dataset(dataset.uri)
    for query in queries:
        sql = f"contains(v, '{query.text}')" if isinstance(query, Contains) else f"regexp_match(v, '{query.pattern}')"
        found = theirs.to_table(columns=["id"], filter=sql)["id"].to_pylist()
        scanned = theirs.scanner(columns=["id"], filter=sql, use_scalar_index=False).to_table()["id"].to_pylist()
        assert sorted(found) == sorted(scanned), sql
        assert "(NGram)" in theirs.scanner(filter=sql).explain_plan(), sql


def postings_of(dataset: lancetable.LanceDataset) -> Any:
    (segment,) = tables.segments(dataset)
    return segment.files.open("ngram_postings.lance").read(["tokens", "posting_list"])


@pytest.mark.parametrize("data_type", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize(("stable", "version"), FORMS)
def test_files_of_both_libraries_are_equal(tmp_path: Path, data_type: pa.DataType, stable: bool, version: str) -> None:
    texts = texts_of(80, data_type)
    tables.write_table(tmp_path, texts, version=version, stable=stable, fragments=3).delete("id % 11 = 3")
    tables.create_by_pylance(tmp_path, "ngram")
    dataset = lancetable.dataset(str(tmp_path))
    assert_answers(dataset, QUERIES)
    theirs = postings_of(dataset)
    dataset = build_index(dataset, KIND)
    assert postings_of(dataset).equals(theirs)
    assert_answers(dataset, QUERIES)
    # pylance casts large strings before it matches patterns, so that it does not use the index.
    is_large = pa.types.is_large_string(data_type)
    assert_pylance_answers(dataset, [query for query in QUERIES if isinstance(query, Contains) or not is_large])


@pytest.mark.parametrize("texts", [pa.array([], pa.string()), pa.nulls(5, pa.string()), pa.array(["", "ab", None])])
def test_tables_without_trigrams_can_be_indexed(tmp_path: Path, texts: pa.Array) -> None:
    dataset = build_index(tables.write_table(tmp_path, texts), KIND)
    assert_answers(dataset, QUERIES)
    (segment,) = tables.segments(dataset)
    assert not segment.search(Contains("v", "abc")).true
    if len(texts):
        assert_pylance_answers(dataset, QUERIES[:3])


@pytest.mark.parametrize(
    "query",
    [
        *[Contains("v", text) for text in ("", "ab", "éé", "ÆÆ", "a-b", "   ", "日本語")],
        *[MatchesRegex("v", pattern) for pattern in ("", "ab", "a.b", "(?i)hello", "abc|d")],
        IsNull("v"),
    ],
    ids=str,
)
def test_queries_without_trigrams_are_not_answered(query: IndexQuery) -> None:
    assert not KIND.answers(query, b"")


def test_answers_are_not_exact() -> None:
    assert not KIND.is_exact(QUERIES[0], b"")


@pytest.mark.parametrize("stable", [False, True])
def test_merged_segments_contain_the_trigrams_of_all(tmp_path: Path, stable: bool) -> None:
    texts = texts_of(80, pa.string())
    dataset = tables.write_table(tmp_path, texts, stable=stable, fragments=4)
    whole = postings_of(build_index(dataset, KIND))
    dataset = tables.write_table(tmp_path / "b", texts, stable=stable, fragments=4)
    dataset = tables.commit(dataset, *(tables.build(dataset, "NGRAM", [fragment]) for fragment in (0, 1)))
    assert_answers(dataset, QUERIES)
    sources = [(segment.open(), lambda rows: np.ones(len(rows), np.bool_)) for segment in tables.segments(dataset)]
    new = tables.batches_of(dataset, tables.row_column_of(dataset, True), [2, 3])
    name, writer = writer_of(dataset)
    KIND.merge(writer, field_of(dataset), sources, new, {})
    dataset = replace_index(dataset, KIND, name, writer)
    assert postings_of(dataset).equals(whole)
    assert_pylance_answers(dataset, QUERIES)


def test_pylance_merges_written_segments(tmp_path: Path) -> None:
    build_index(tables.write_table(tmp_path, texts_of(50, pa.string()), fragments=2), KIND)
    theirs = lance.dataset(str(tmp_path))
    theirs.insert(pa.table({"id": range(50, 80), "v": texts_of(30, pa.string(), 1)}))
    theirs.optimize.optimize_indices()
    dataset = lancetable.dataset(str(tmp_path))
    (segment,) = tables.segments(dataset)
    assert segment.fragments == {0, 1, 2}
    assert_answers(dataset, QUERIES)
    assert_pylance_answers(dataset, QUERIES)


def test_rows_are_mapped_after_a_compaction(tmp_path: Path) -> None:
    dataset = build_index(tables.write_table(tmp_path, texts_of(60, pa.string()), fragments=1), KIND)
    (segment,) = tables.segments(dataset)
    mapping = ListedMapping(np.arange(60, dtype=np.uint64), np.arange(60, dtype=np.uint64)[::-1].copy())
    mapping.new[::7] = DELETED
    name, writer = writer_of(dataset)
    assert KIND.remap(writer, segment.open(), mapping)
    (mapped,) = tables.segments(replace_index(dataset, KIND, name, writer))
    for query in QUERIES:
        assert set(mapped.search(query).true) == {59 - row for row in segment.search(query).true if row % 7}


def test_other_types_are_refused(tmp_path: Path) -> None:
    field = field_of(tables.write_table(tmp_path, pa.array([b"abc"])))
    with pytest.raises(UnsupportedFeatureError, match="NGRAM"):
        KIND.check_field(field, "v")


def test_prewarming_reads_all_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (segment,) = tables.segments(build_index(tables.write_table(tmp_path, pa.array(["hello", None])), KIND))
    segment.open().prewarm()
    monkeypatch.setattr("lancetable.index.index_files.read_columns", None)
    assert set(segment.search(Contains("v", "ello")).true) == {0}
    assert segment.open().statistics() == {"num_ngrams": 4}


@pytest.mark.parametrize(
    "tokens", [pa.array(["a"]), pa.array([1]), pa.array([{"x": 1}])], ids=lambda each: str(each.type)
)
def test_tokens_of_another_type_are_reported(tmp_path: Path, tokens: pa.Array) -> None:
    dataset = tables.write_table(tmp_path, pa.array(["abc"]))
    name, writer = writer_of(dataset)
    writer.write_file("ngram_postings.lance", pa.table({"tokens": tokens, "posting_list": pa.array([b""])}))
    dataset = replace_index(dataset, KIND, name, writer)
    (segment,) = tables.segments(dataset)
    with pytest.raises(CorruptFileError, match="tokens"):
        segment.search(Contains("v", "abc"))
    with pytest.raises(CorruptFileError, match="tokens"):
        dataset.prewarm_index(segment.name)
    dataset.insert(pa.table({"id": [1], "v": ["def"]}))
    with pytest.raises(CorruptFileError, match="tokens"):
        dataset.optimize.optimize_indices(num_indices_to_merge=1)
