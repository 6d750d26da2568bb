"""LIKE patterns as prefixes and regular expressions."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(r"\\(?P<escaped>.)|(?P<wildcard>[%_])|(?P<plain>.)", re.DOTALL)
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~]")


@dataclass(frozen=True, slots=True)
class LikePattern:
    """A pattern as a sequence of literal characters and wildcards: % for any string, _ for any character."""

    tokens: tuple[tuple[str, bool], ...]
    """Each character, and whether it is a wildcard."""

    @classmethod
    def parse(cls, text: str) -> LikePattern:
        """Parse a pattern. A backslash makes the next character literal; at the end, it is literal itself."""
        tokens = ((match[0][-1], match["wildcard"] is not None) for match in _TOKEN.finditer(text))
        return cls(tuple(tokens))

    @property
    def prefix(self) -> str:
        """The literal characters before the first wildcard."""
        first = next((at for at, (_, is_wildcard) in enumerate(self.tokens) if is_wildcard), len(self.tokens))
        return "".join(character for character, _ in self.tokens[:first])

    @property
    def is_constant(self) -> bool:
        """True if the pattern has no wildcard, so that it matches `prefix` only."""
        return not any(is_wildcard for _, is_wildcard in self.tokens)

    @property
    def is_prefix(self) -> bool:
        """True if the pattern matches all strings that start with `prefix`."""
        rest = self.tokens[len(self.prefix) :]
        return bool(rest) and all(token == ("%", True) for token in rest)

    def regex(self) -> str:
        """Return a regular expression in Rust's syntax that matches the same strings, without anchors."""
        return "".join(
            {"%": ".*", "_": "."}[character] if is_wildcard else _SPECIAL.sub(r"\\\g<0>", character)
            for character, is_wildcard in self.tokens
        )
