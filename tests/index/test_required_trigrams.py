"""Trigrams that regular expressions require, compared with the matches of Python and the plans of pylance."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.index.required_trigrams import Condition, trigrams_of_regex
from lancetable.index.trigrams import trigrams_of

lance = pytest.importorskip("lance")


def condition(*conjuncts: list[str]) -> Condition:
    """Return the condition that a string contains one string of each list."""
    return frozenset(frozenset(map(trigrams_of, choices)) for choices in conjuncts)


CASES = [
    ("hello", condition(["hello"])),
    ("Crème", condition(["creme"])),
    ("ab(cde|fgh)", condition(["abcde", "abfgh"])),
    ("(ab|cd)(ef|gh)", condition(["abef", "abgh", "cdef", "cdgh"])),
    ("colou?r", condition(["colo"])),
    ("abc.*def", condition(["abc"], ["def"])),
    ("ab+cd", condition(["bcd"])),
    ("(abc){2,}", condition(["abc"])),
    ("x(abc)+y", condition(["xabc"], ["abcy"])),
    ("a(?:bc|[0-9])d", condition()),
    ("^(abc|def)$", condition(["abc", "def"])),
    (r"\babc\b", condition(["abc"])),
    (r"\x61\u{62}\u0063", condition(["abc"])),
    ("[a]bc", condition(["abc"])),
    ("abc(?i)def", condition(["abc"])),
    ("(?i:abc)def", condition(["def"])),
    ("(?i)12(?-i)ab", condition(["12ab"])),
    ("(?P<name>abc)|(?<other>def)", condition(["abc", "def"])),
    ("abc|", condition()),
    ("abc|xy", condition()),
    ("(?i)abc", condition()),
    ("(?x) a b c", condition()),
    ("[^a]bc", condition()),
    ("(abc)?", condition()),
    ("a-b-c", condition()),
    ("abc(", condition()),
    ("*abc", condition()),
    (r"\Qabc\E", condition()),
    (r"\x{110000}abc", condition()),
    ("(" * 100 + "abc" + ")" * 100, condition()),
]


@pytest.mark.parametrize(("pattern", "expected"), CASES)
def test_conditions(pattern: str, expected: Condition) -> None:
    assert trigrams_of_regex(pattern) == expected


def test_plans_of_pylance_use_the_same_patterns(tmp_path: Path) -> None:
    """Patterns with insignificant spaces are the only ones that pylance can use, and this library does not."""
    dataset = lance.write_dataset(pa.table({"s": ["abc"]}), str(tmp_path))
    dataset.create_scalar_index("s", "NGRAM")
    different = []
    for pattern, _ in CASES:
        if is_valid(pattern):
            plan = dataset.scanner(filter=f"regexp_match(s, '{pattern}')").explain_plan()
            if ("ScalarIndexQuery" in plan) != bool(trigrams_of_regex(pattern)):
                different.append(pattern)
    assert different == ["(?x) a b c"]


def is_valid(pattern: str) -> bool:
    return pattern not in ("abc(", "*abc", r"\Qabc\E", r"\x{110000}abc", "(" * 100 + "abc" + ")" * 100)


ATOMS = st.one_of(
    st.sampled_from("abcé1"),
    st.sampled_from(
        ["ab", "abc", "bca", ".", r"\d", r"\w", "[ab]", "[^a]", "[b]", "^", "$", r"\b", r"\.", "(?i:ab)", ""]
    ),
)
PATTERNS = st.recursive(
    ATOMS,
    lambda parts: st.one_of(
        st.lists(parts, min_size=1, max_size=4).map("".join),
        st.lists(parts, min_size=1, max_size=3).map(lambda options: f"({'|'.join(options)})"),
        st.tuples(parts, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0}", "+?"])).map(
            lambda drawn: f"(?:{drawn[0]}){drawn[1]}"
        ),
    ),
    max_leaves=8,
)


@given(PATTERNS, st.lists(st.text("abcABCé1. ", max_size=12), max_size=30))
def test_matching_strings_satisfy_the_condition(pattern: str, strings: list[str]) -> None:
    found = trigrams_of_regex(pattern)
    for text in strings:
        if re.search(pattern, text, re.DOTALL):
            tokens = trigrams_of(text)
            assert all(any(choice <= tokens for choice in choices) for choices in found), (pattern, text)


@given(st.text("abc(|)[]{}*+?.\\^$1,-:<>P=!i&", max_size=12))
def test_any_text_is_analyzed_or_has_no_condition(pattern: str) -> None:
    trigrams_of_regex(pattern)
