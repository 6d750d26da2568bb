"""Trigrams: folding of characters, and tokens of strings."""

from __future__ import annotations

import random
import sys
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.index.roaring_containers import ROARING_TREEMAP, parse
from lancetable.index.trigrams import trigrams, trigrams_of

lance = pytest.importorskip("lance")

CHARACTERS = [chr(point) for point in range(sys.maxunicode + 1) if not 0xD800 <= point < 0xE000]


def tokens_of_pylance(path: Path, strings: list[str]) -> list[frozenset[int]]:
    """Return the tokens of strings in an index that pylance builds."""
    from lance.file import LanceFileReader

    lance.write_dataset(pa.table({"s": strings}), str(path), data_storage_version="2.1")
    lance.dataset(str(path)).create_scalar_index("s", "NGRAM")
    (file,) = path.glob("_indices/*/ngram_postings.lance")
    table = LanceFileReader(str(file)).read_all().to_table().combine_chunks()
    tokens = table["tokens"].to_pylist()
    keys, rows = parse(table["posting_list"].chunk(0), ROARING_TREEMAP, "x").rows()
    found: list[set[int]] = [set() for _ in strings]
    for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
        found[row].add(tokens[key])
    return [frozenset(part) for part in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", set()),
        ("ab", set()),
        ("abc", {(11, 12, 13)}),
        ("ABCD", {(11, 12, 13), (12, 13, 14)}),
        ("a-bcd", {(12, 13, 14)}),
        ("109", {(2, 1, 10)}),
        ("Crème", {(13, 28, 15), (28, 15, 23), (15, 23, 15)}),
        ("straße", {(29, 30, 28), (30, 28, 11), (28, 11, 29), (11, 29, 29), (29, 29, 15)}),
        ("日本語", set()),
        ("e\u0301ab", set()),  # a combining character separates
    ],
)
def test_tokens_are_numbers_of_three_characters(text: str, expected: set[tuple[int, int, int]]) -> None:
    assert trigrams_of(text) == {a * 37 * 37 + b * 37 + c for a, b, c in expected}


@pytest.mark.slow
def test_every_character_is_folded_as_by_pylance(tmp_path: Path) -> None:
    strings = [f"01{character}23" for character in CHARACTERS]
    theirs = tokens_of_pylance(tmp_path, strings)
    assert [text for text, tokens in zip(strings, theirs, strict=True) if trigrams_of(text) != tokens] == []


def test_strings_have_the_trigrams_of_pylance(tmp_path: Path) -> None:
    rng = random.Random(0)
    letters = [character for character in CHARACTERS[:0x3000] if unicodedata.category(character)[0] in "LNS"]
    alphabet = [*letters, *CHARACTERS[0x10000:0x20000:7], *"abcXYZ019 -." * 200]
    strings = ["".join(rng.choices(alphabet, k=rng.randint(0, 9))) for _ in range(3000)]
    assert [trigrams_of(text) for text in strings] == tokens_of_pylance(tmp_path, strings)


TEXT = st.text(st.one_of(st.sampled_from("abcdXYZ019-éß½日"), st.characters(exclude_categories=["Cs"])), max_size=8)


@given(st.lists(TEXT, max_size=8), st.integers(0, 3))
def test_arrays_have_the_trigrams_of_each_string(strings: list[str], start: int) -> None:
    for data_type in (pa.string(), pa.large_string()):
        tokens, numbers = trigrams(pa.array(strings, data_type)[start:])
        assert (numbers[1:] >= numbers[:-1]).all()
        found = [frozenset(tokens[numbers == number].tolist()) for number in range(len(strings[start:]))]
        assert found == [trigrams_of(text) for text in strings[start:]]


@given(TEXT, TEXT, TEXT)
def test_trigrams_of_a_part_are_those_of_the_whole(before: str, part: str, after: str) -> None:
    assert trigrams_of(part) <= trigrams_of(before + part + after)


def test_invalid_utf8_is_reported() -> None:
    strings = pa.array([b"abc\xff"], pa.binary()).view(pa.string())
    with pytest.raises(CorruptFileError, match="UTF-8"):
        trigrams(strings)
