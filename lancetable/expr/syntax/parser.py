"""Parser of SQL strings, which returns sqlglot syntax trees.

sqlglot tokenizes and parses the string with a small dialect defined here. `typing/binder.py` then converts the syntax
tree to a typed expression.

`MAX_NESTING` limits the nesting. sqlglot is a recursive-descent parser that uses about twenty stack frames for each
level of brackets, so fifty levels exceed Python's default recursion limit. The parser therefore splits deeply nested
input into shallow parts (`_parse_in_parts`). It does not change the recursion limit, which is global to the process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sqlglot import Dialect, Token, TokenType, exp, parser, tokens
from sqlglot.errors import ParseError, TokenError

from lancetable.errors import InvalidSqlError
from lancetable.expr.syntax.ast import RESERVED
from lancetable.expr.syntax.sql_errors import excerpt, offset_of, sql_error

MAX_NESTING = 50
"""Maximum number of brackets, CASE expressions and prefix operators (NOT, unary minus) that are open at one position.

pylance accepts 46 levels of parentheses, and 47 of calls and of NOT.
"""

_LEVELS_PER_PARSE = 8
"""Levels of brackets in one call of sqlglot's parser; they need about 200 stack frames."""


def parse_sql(text: str) -> tuple[Any, list[Any]]:
    """Parse an expression; return its sqlglot tree and its tokens.

    Raises InvalidSqlError with the position of the error if `text` cannot be parsed or is nested too deeply.
    """
    sql_tokens, num_levels = _tokenize(text)
    parse = _parse_tokens if num_levels <= _LEVELS_PER_PARSE else _parse_in_parts
    return parse(text, sql_tokens), sql_tokens


_WORDS = """
AND OR NOT IS NULL TRUE FALSE IN BETWEEN LIKE ILIKE ESCAPE DISTINCT FROM AS ARRAY CURRENT_TIMESTAMP
CASE WHEN THEN ELSE END
BOOLEAN TINYINT SMALLINT INT INTEGER BIGINT FLOAT DOUBLE DECIMAL BINARY DATE TIMESTAMP DATETIME
"""
_KEYWORDS = frozenset(_WORDS.split())
_CASTS_AND_EXTRACT = ("CAST", "TRY_CAST", "SAFE_CAST", "EXTRACT")
# CASE ... END counts as a pair of brackets.
_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END)
_SEPARATORS = (TokenType.COMMA, TokenType.ALIAS, TokenType.FROM, TokenType.WHEN, TokenType.THEN, TokenType.ELSE)


class _Lance(Dialect):
    """The SQL dialect.

    Backticks quote names; single and double quotes delimit strings; a backslash in a string has no special meaning;
    sqlglot's own functions are disabled, except for CAST, TRY_CAST, SAFE_CAST and EXTRACT.
    """

    class Tokenizer(tokens.Tokenizer):
        QUOTES = ["'", '"']
        STRING_ESCAPES = ["'", '"']
        IDENTIFIERS = ["`"]
        HEX_STRINGS = [("x'", "'"), ("X'", "'"), ("0x", "")]
        KEYWORDS = {
            **{
                word: token
                for word, token in tokens.Tokenizer.KEYWORDS.items()
                if word != "<=>" and (word in _KEYWORDS or not word[0].isalpha())
            },
            "STRING": tokens.Tokenizer.KEYWORDS["TEXT"],
        }

    class Parser(parser.Parser):
        IS_PREDICATE_PRECEDENCE = parser.IsPredicatePrecedence.EQUALITY
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS = {
            name: parse for name, parse in parser.Parser.FUNCTION_PARSERS.items() if name in _CASTS_AND_EXTRACT
        }
        NO_PAREN_FUNCTION_PARSERS = {"CASE": parser.Parser.NO_PAREN_FUNCTION_PARSERS["CASE"]}


_DIALECT = _Lance()


def _tokenize(text: str) -> tuple[list[Any], int]:
    """Return the tokens and the largest number of open brackets and prefix operators.

    Raises InvalidSqlError if a quote or comment is not closed, if `text` is empty, contains several statements or the
    operator `!`, or is nested more than MAX_NESTING deep.
    """

    try:
        sql_tokens = list(_DIALECT.tokenize(text))
    except TokenError as error:
        position = re.search(r"(\d+):(\d+)", str(error.__cause__ or error))
        # The reported column precedes the quote.
        at = offset_of(text, int(position[1]), int(position[2]) + 1) if position else None
        raise sql_error(text, at, "unterminated string, quoted name or comment; add the closing delimiter") from None
    if not sql_tokens:
        raise InvalidSqlError("the SQL expression is empty; pass an expression such as 'id > 1'")
    return sql_tokens, _check_nesting(text, sql_tokens)


def _check_nesting(text: str, sql_tokens: list[Any]) -> int:
    """Return the nesting depth of the tokens; raise InvalidSqlError beyond MAX_NESTING, before any recursion."""

    prefix = (TokenType.NOT, TokenType.DASH)
    levels: list[int] = []
    depth = run = deepest = 0
    for token in sql_tokens:
        kind = token.token_type
        if kind in prefix and token.text != "!":  # sqlglot reads `!` as NOT
            run += 1
        elif kind in _OPENING:
            levels.append(run + 1)
            depth += run + 1
            run = 0
        else:
            run = 0
            if kind in _CLOSING and levels:
                depth -= levels.pop()
            elif kind == TokenType.NOT:
                raise sql_error(text, token.start, "'!' is not an operator; use NOT")
            elif kind == TokenType.SEMICOLON:
                raise sql_error(text, token.start, "expected one expression, got several statements; remove the ';'")
        deepest = max(deepest, depth + run)
        if deepest > MAX_NESTING:
            reason = (
                f"nested too deeply: more than {MAX_NESTING} brackets, CASE expressions and prefix operators are open "
                f"here; remove redundant ones, or store a part of the expression as a column"
            )
            raise sql_error(text, token.start, reason)
    return deepest


def _parse_in_parts(text: str, sql_tokens: list[Any]) -> Any:
    """Parse deeply nested tokens from the inside out, with a bounded stack depth; return one syntax tree.

    Commas and the keywords of CASE and CAST divide the content of brackets into items. An item that contains
    `_LEVELS_PER_PARSE` levels of brackets is parsed separately and replaced with a placeholder name. At the end, the
    placeholders are replaced with the trees.

        ((( a ) + b) * f(c, d))  ->  x1 = (( a ) + b)    x2 = ( x1 * f(c, d))
    """

    prefix = "_part"
    while prefix in text.lower():
        prefix += "_"
    parts: dict[str, Any] = {}

    def end_item(group: _Group) -> None:
        if group.item_levels >= _LEVELS_PER_PARSE:
            item = group.tokens[group.item_start :]
            name = f"{prefix}{len(parts)}"
            parts[name] = _parse_tokens(text, item, parts)
            first = item[0]
            group.tokens[group.item_start :] = [
                Token(TokenType.IDENTIFIER, name, line=first.line, col=first.col, start=first.start, end=first.end)
            ]
            group.item_levels = 0
        group.levels = max(group.levels, group.item_levels)

    outer: list[_Group] = []
    group = _Group()
    previous = None
    for token in sql_tokens:
        kind = token.token_type
        if kind in _OPENING:
            outer.append(group)
            group = _Group([token], item_start=1)
        elif kind in _CLOSING and outer:
            end_item(group)
            group.tokens.append(token)
            closed, group = group, outer.pop()
            group.tokens.extend(closed.tokens)
            group.item_levels = max(group.item_levels, closed.levels + 1)
        elif kind in _SEPARATORS and previous != TokenType.DISTINCT:  # IS DISTINCT FROM does not end an item
            end_item(group)
            group.tokens.append(token)
            group.item_start, group.item_levels = len(group.tokens), 0
        else:
            group.tokens.append(token)
        previous = kind
    # If a bracket is not closed, several groups are left; the parser reports the error.
    rest = [token for unfinished in (*outer, group) for token in unfinished.tokens]
    return _parse_tokens(text, rest, parts)


@dataclass(slots=True)
class _Group:
    """The tokens of one pair of brackets, up to the current token; the current item starts at `item_start`."""

    tokens: list[Any] = field(default_factory=list)
    item_start: int = 0
    item_levels: int = 0
    levels: int = 0


def _parse_tokens(text: str, sql_tokens: list[Any], parts: dict[str, Any] | None = None) -> Any:
    """Parse tokens to one sqlglot tree; replace the placeholder columns in `parts` with their trees.

    Raises InvalidSqlError with the position of the syntax error.
    """

    try:
        trees = _DIALECT.parser().parse_into(exp.Condition, sql_tokens, text)
    except ParseError as error:
        if not error.errors:
            raise InvalidSqlError(f"not a SQL expression: {excerpt(text, 0)[0]}") from None
        first = error.errors[0]
        highlight = first.get("highlight") or ""
        line, column = first.get("line"), first.get("col")
        at = None if line is None or column is None else offset_of(text, line, column) - max(len(highlight) - 1, 0)
        ended = at is not None and not text[at + len(highlight) :].strip()
        reason = str(first.get("description") or "syntax error").rstrip(".")
        if ended and (highlight.lower() in RESERVED or not re.search(r"\w|[)\]'\"]", highlight)):
            reason = "the expression is incomplete; an operand is missing at the end"
        elif "Unexpected token" in reason or reason.startswith("Required keyword"):
            reason = f"unexpected {highlight!r}" if highlight else "not a SQL expression"
        raise sql_error(text, at, reason) from None
    if len(trees) != 1 or trees[0] is None:
        raise InvalidSqlError(f"expected one expression: {excerpt(text, 0)[0]}")
    tree = trees[0]
    if parts:
        for column in list(tree.find_all(exp.Column)):
            if column.name in parts:
                column.replace(parts.pop(column.name))
    return tree
