"""Trigrams that a string must contain to match a regular expression of Rust's regex crate.

    hello              hel & ell & llo
    ab(cde|fgh)        (abc & bcd & cde) | (abf & bfg & fgh)
    colou?r            col & olo
    x.y|z              no condition

A pattern is analyzed as a sequence of literal strings and gaps. Groups and alternatives multiply the literal strings
that are possible so far; everything else, such as a class of characters or a repetition, is a gap. The analysis may
drop conditions, but never adds one. A pattern that it cannot parse has no condition.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lancetable.index.trigrams import trigrams_of

Alternatives = frozenset[frozenset[int]]
"""Sets of tokens: a matching string contains all tokens of at least one set. Conditions are a conjunction of these."""

Condition = frozenset[Alternatives]

_MAX_LITERALS: Final = 16  # possible literal strings that are tracked
_MAX_DEPTH: Final = 50
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_CLASSES: Final = frozenset("dDsSwWpP")
_EMPTY_MATCHES: Final = frozenset("AzbB")
_CODE_POINTS: Final = {"x": 2, "u": 4, "U": 8}  # with their numbers of digits
_HEXADECIMAL: Final = frozenset(string.hexdigits)


@functools.lru_cache(maxsize=1024)
def trigrams_of_regex(pattern: str) -> Condition:
    """Return the condition of a pattern; an empty one if it does not restrict the strings, or cannot be analyzed."""
    try:
        return _Parser(pattern).parse().finished()
    except _UnknownSyntaxError:
        return frozenset()


class _UnknownSyntaxError(Exception):
    """A pattern that is invalid or uses syntax that is not analyzed."""


@dataclass(frozen=True, slots=True)
class _Match:
    """Strings that a part of a pattern matches.

    `literals` are all of them, or None if they are not known. `required` is a condition that all of them satisfy.
    """

    literals: frozenset[str] | None
    required: Condition = frozenset()

    def finished(self) -> Condition:
        """Return the condition, including that of the literals."""
        if self.literals is None:
            return self.required
        alternatives = frozenset(trigrams_of(literal) for literal in self.literals)
        return self.required if frozenset() in alternatives else self.required | {alternatives}


_GAP: Final = _Match(None)
_EMPTY: Final = _Match(frozenset({""}))


def _sequence(parts: Iterable[_Match]) -> _Match:
    """Return the match of some parts, one after the other."""
    required: Condition = frozenset()
    literals, is_whole = _EMPTY.literals, True
    for part in parts:
        product = None
        if literals is not None and part.literals is not None:
            product = frozenset(first + second for first in literals for second in part.literals)
            if len(product) > _MAX_LITERALS:
                product = None
        required |= part.required
        if product is None:
            # The literal strings end here, and others may begin.
            is_whole = False
            required |= _Match(literals).finished()
            literals = part.literals if part.literals is not None else _EMPTY.literals
        else:
            literals = product
    if is_whole:
        return _Match(literals, required)
    return _Match(None, required | _Match(literals).finished())


def _any_of(options: list[_Match]) -> _Match:
    """Return the match of one of several alternatives."""
    if len(options) == 1:
        return options[0]
    literals = [option.literals for option in options]
    if not any(option.required or option.literals is None for option in options):
        every = frozenset().union(*(found for found in literals if found is not None))
        if len(every) <= _MAX_LITERALS:
            return _GAP if all(len(literal) == 1 for literal in every) else _Match(every)
    conditions = [option.finished() for option in options]
    if not all(conditions):
        return _GAP
    # One conjunct of each alternative is enough; the one with the fewest sets excludes most strings.
    chosen = [min(condition, key=len) for condition in conditions]
    return _Match(None, frozenset({frozenset().union(*chosen)}))


class _Parser:
    """Recursive-descent parser of a pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at, self._depth = pattern, 0, 0
        self._ignores_case = False

    def parse(self) -> _Match:
        match = self._alternatives()
        if self._at != len(self._pattern):
            raise _UnknownSyntaxError
        return match

    def _alternatives(self) -> _Match:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _UnknownSyntaxError
        options = [self._concatenation()]
        while self._accept("|"):
            options.append(self._concatenation())
        self._depth -= 1
        return _any_of(options)

    def _concatenation(self) -> _Match:
        parts: list[_Match] = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            parts += self._repeated(self._atom())
        return _sequence(parts)

    def _repeated(self, atom: _Match) -> list[_Match]:
        """Parse the repetition operators after an atom."""
        parts = [atom]
        while (operator := self._pattern[self._at : self._at + 1]) in ("*", "+", "?", "{") and operator:
            self._at += 1
            at_least, at_most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(operator) or self._bounds()
            self._accept("?")  # a lazy repetition matches the same strings
            if at_most == 0:
                parts = [_EMPTY]
            elif at_least == 0:
                parts = [_GAP]
            elif (at_least, at_most) != (1, 1):
                parts = [*parts, _GAP, *parts]  # the first and the last repetition, which may be the same
        return parts

    def _bounds(self) -> tuple[int, int | None]:
        text, _, rest = self._pattern[self._at :].partition("}")
        low, comma, high = (part.strip() for part in text.partition(","))
        if not all(part.isascii() and part.isdecimal() for part in (low, high) if part) or not (low or high):
            raise _UnknownSyntaxError
        self._at = len(self._pattern) - len(rest)
        at_least = int(low or 0)
        return at_least, (int(high) if high else None) if comma else at_least

    def _atom(self) -> _Match:
        character = self._pattern[self._at]
        self._at += 1
        if character == "(":
            return self._group()
        if character == "[":
            return self._class()
        if character == "\\":
            return self._escape()
        if character == ".":
            return _GAP
        if character in "^$":
            return _EMPTY
        if character in "*+?{":
            raise _UnknownSyntaxError
        return self._literal(character)

    def _literal(self, character: str) -> _Match:
        has_case = character.lower() != character.upper()
        return _GAP if self._ignores_case and has_case else _Match(frozenset({character}))

    def _group(self) -> _Match:
        outer = self._ignores_case
        if self._accept("?"):
            named = self._accept("P<") or self._accept("<")
            flags, end, _ = self._pattern[self._at :].partition(">" if named else ")")
            if named:
                if not end:
                    raise _UnknownSyntaxError
                self._at += len(flags) + 1
            else:
                flags = flags.partition(":")[0]
                self._at += len(flags)
                self._set_flags(flags)
                if self._accept(")"):
                    return _EMPTY  # the flags apply to the rest of the enclosing group
                if not self._accept(":"):
                    raise _UnknownSyntaxError
        match = self._alternatives()
        if not self._accept(")"):
            raise _UnknownSyntaxError
        self._ignores_case = outer
        return match

    def _set_flags(self, flags: str) -> None:
        added, _, removed = flags.partition("-")
        if not set(added + removed) <= set("imsUuR"):  # x changes how the pattern is parsed
            raise _UnknownSyntaxError
        self._ignores_case = ("i" in added or self._ignores_case) and "i" not in removed

    def _class(self) -> _Match:
        """Parse a class in brackets. Only one of a single character is a literal."""
        start = self._at
        self._accept("^")
        while self._accept("-"):
            pass
        self._accept("]")  # a literal if it is the first character
        depth = 1
        while depth:
            character = self._pattern[self._at : self._at + 1]
            if not character:
                raise _UnknownSyntaxError
            self._at += 2 if character == "\\" else 1
            depth += {"[": 1, "]": -1}.get(character, 0)
        content = self._pattern[start : self._at - 1]
        return self._literal(content) if len(content) == 1 and content not in "^\\" else _GAP

    def _escape(self) -> _Match:
        character = self._pattern[self._at : self._at + 1]
        self._at += 1
        if character and character in _CLASSES:
            if character in "pP":
                if self._accept("{"):
                    self._at += len(self._pattern[self._at :].partition("}")[0]) + 1
                else:
                    self._at += 1
            return _GAP
        if character and character in _EMPTY_MATCHES:
            return self._boundary() if character == "b" else _EMPTY
        if character in _CODE_POINTS:
            return self._literal(self._code_point(_CODE_POINTS[character]))
        if character in _ESCAPED:
            return self._literal(_ESCAPED[character])
        if not character or character.isalnum() or not character.isascii():
            raise _UnknownSyntaxError
        return self._literal(character)

    def _boundary(self) -> _Match:
        if self._accept("{"):  # \b{start} and others
            self._at += len(self._pattern[self._at :].partition("}")[0]) + 1
        return _EMPTY

    def _code_point(self, num_digits: int) -> str:
        if self._accept("{"):
            digits, end, _ = self._pattern[self._at :].partition("}")
            self._at += len(digits) + len(end)
        else:
            digits = self._pattern[self._at : self._at + num_digits]
            self._at += num_digits
        point = int(digits, 16) if digits and set(digits) <= _HEXADECIMAL else -1
        if not 0 <= point <= 0x10FFFF or 0xD800 <= point < 0xE000:
            raise _UnknownSyntaxError
        return chr(point)

    def _accept(self, text: str) -> bool:
        """Skip `text` if it is next. Return whether it was."""
        if self._pattern.startswith(text, self._at):
            self._at += len(text)
            return True
        return False
