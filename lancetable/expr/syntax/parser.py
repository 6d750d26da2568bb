"""SQL strings to typed expressions.

sqlglot tokenizes and parses the string with a small dialect defined here. A visitor then converts the syntax tree to
the nodes of `ast.py`. The visitor accepts a closed list of sqlglot's node classes and rejects all others, so that SQL
which only sqlglot understands is an error with a caret under the position. Parsed expressions are cached by string and
schema.

Nesting is limited, see `MAX_NESTING` and `MAX_DEPTH`. sqlglot parses by recursive descent and uses about twenty stack
frames for each level of brackets, so that fifty levels exceed Python's default recursion limit. The parser therefore
splits deeply nested input into shallow parts (`_parse_in_parts`); it does not change the recursion limit, which is
global to the process.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from lancetable.errors import ColumnNotFoundError, InvalidSqlError
from lancetable.expr.evaluate.time_functions import CLOCK, fixed_clock
from lancetable.expr.syntax import column_names
from lancetable.expr.syntax.ast import BOOLEAN, RESERVED, Call, Expr, Literal
from lancetable.expr.typing import build, functions
from lancetable.expr.typing.build import Refused

MAX_NESTING = 50
"""Largest number of brackets, CASE expressions and prefix operators (NOT, unary minus) that are open at one position.

pylance accepts 46 levels of parentheses, and 47 of calls and of NOT.
"""

MAX_DEPTH = 150
"""Largest depth of the syntax tree. A chain of AND or OR counts as one level, however many operands it has."""

_LEVELS_PER_PARSE = 8
"""Levels of brackets that one call of sqlglot's parser handles, about 200 stack frames."""

_QUICK_CACHE_SIZE = 512
_quick_cache: dict[tuple[str, int, bool], tuple[pa.Schema, Expr]] = {}


def parse_predicate(text: str, schema: pa.Schema) -> Expr:
    """Parse a filter: an expression with a boolean value for each row.

    Parameters
    ----------
    text
        The SQL expression.
    schema
        The schema of the table. Virtual columns such as `_rowid` can be used in addition to its fields.

    Returns
    -------
    Expr
        The typed expression, of type bool.

    Raises
    ------
    InvalidSqlError
        If `text` cannot be parsed, has a type error, is nested too deeply (see `MAX_NESTING` and `MAX_DEPTH`) or is
        not a boolean expression. The message shows the position with a caret.
    ColumnNotFoundError
        If a column does not exist. The message suggests similar names.
    TypeError
        If `text` is not a str.
    """
    return _parse_cached(text, schema, True)


def parse_expression(text: str, schema: pa.Schema) -> Expr:
    """Parse an expression of any type over the columns of a table.

    Raises InvalidSqlError, ColumnNotFoundError and TypeError as `parse_predicate` does, except that any type is
    accepted.
    """
    return _parse_cached(text, schema, False)


def _parse_cached(text: str, schema: pa.Schema, predicate: bool) -> Expr:
    """Parse with a cache keyed by the identity of the schema, because hashing a wide schema costs more than a take."""
    if not isinstance(text, str):
        raise TypeError(f"expected a SQL expression as a str, got {type(text).__name__}")
    key = (text, id(schema), predicate)
    hit = _quick_cache.get(key)
    if hit is not None and hit[0] is schema:
        return hit[1]
    lowered = text.lower()
    if any(word in lowered for word in CLOCK):
        with fixed_clock():
            return _parse.__wrapped__(text, schema, predicate)  # not cached: the value depends on the current time
    expr = _parse(text, schema, predicate)
    if len(_quick_cache) >= _QUICK_CACHE_SIZE:
        _quick_cache.clear()
    _quick_cache[key] = (schema, expr)  # the reference keeps the schema alive, so that its id is not reused
    return expr


@functools.lru_cache(maxsize=256)
def _parse(text: str, schema: pa.Schema, predicate: bool) -> Expr:
    try:
        tokens, num_levels = _tokenize(text)
        if num_levels <= _LEVELS_PER_PARSE:
            tree = _parse_tokens(text, tokens)
        else:
            tree = _parse_in_parts(text, tokens)
        expr = _Visitor(text, tokens, schema).visit(tree)
    except RecursionError:
        raise InvalidSqlError(
            f"the call stack has too little space left to parse {_window(text, 0)[0]}; simplify the expression, or "
            f"parse it in a less deeply nested call or in a thread of its own"
        ) from None
    return _as_predicate(expr, text) if predicate and expr.data_type != BOOLEAN else expr


def _as_predicate(expr: Expr, text: str) -> Expr:
    """Return the expression as a boolean; raise InvalidSqlError if it has another type."""
    unwrapped = build.unwrap(expr)
    if unwrapped.data_type == BOOLEAN:
        return unwrapped
    if isinstance(unwrapped, Call) and unwrapped.function == "regexp_match":
        return build.as_boolean(unwrapped, "a filter")
    shown = _window(text, 0)[0]
    raise InvalidSqlError(f"Invalid user input: the filter {shown} does not return a boolean but {expr.data_type}")


# String to syntax tree


_KEYWORDS = """
AND OR NOT IS NULL TRUE FALSE IN BETWEEN LIKE ILIKE ESCAPE DISTINCT FROM AS ARRAY CURRENT_TIMESTAMP
CASE WHEN THEN ELSE END
BOOLEAN TINYINT SMALLINT INT INTEGER BIGINT FLOAT DOUBLE DECIMAL BINARY DATE TIMESTAMP DATETIME
"""


@functools.cache
def _dialect() -> Any:
    """Return the sqlglot dialect.

    Backticks quote names; single and double quotes delimit strings; a backslash in a string has no special meaning;
    sqlglot's own functions are disabled, except for CAST, TRY_CAST, SAFE_CAST and EXTRACT.
    """
    from sqlglot import Dialect, parser, tokens

    words = set(_KEYWORDS.split())

    class Lance(Dialect):
        class Tokenizer(tokens.Tokenizer):
            QUOTES = ["'", '"']
            STRING_ESCAPES = ["'", '"']
            IDENTIFIERS = ["`"]
            HEX_STRINGS = [("x'", "'"), ("X'", "'"), ("0x", "")]
            KEYWORDS = {
                **{
                    word: token
                    for word, token in tokens.Tokenizer.KEYWORDS.items()
                    if word != "<=>" and (word in words or not word[0].isalpha())
                },
                "STRING": tokens.Tokenizer.KEYWORDS["TEXT"],
            }

        class Parser(parser.Parser):
            IS_PREDICATE_PRECEDENCE = parser.IsPredicatePrecedence.EQUALITY
            FUNCTIONS: ClassVar[dict[str, Any]] = {}
            FUNCTION_PARSERS = {
                name: parse
                for name, parse in parser.Parser.FUNCTION_PARSERS.items()
                if name in ("CAST", "TRY_CAST", "SAFE_CAST", "EXTRACT")
            }
            NO_PAREN_FUNCTION_PARSERS = {"CASE": parser.Parser.NO_PAREN_FUNCTION_PARSERS["CASE"]}

    return Lance()


def _tokenize(text: str) -> tuple[list[Any], int]:
    """Return the tokens and the largest number of open brackets and prefix operators.

    Raises InvalidSqlError if a quote or comment is not closed, if `text` is empty, has several statements or the
    operator `!`, or is nested more than MAX_NESTING deep.
    """
    from sqlglot.errors import TokenError

    try:
        tokens = list(_dialect().tokenize(text))
    except TokenError as error:
        position = re.search(r"(\d+):(\d+)", str(error.__cause__ or error))
        # The reported column is the one before the quote.
        at = _offset(text, int(position[1]), int(position[2]) + 1) if position else None
        raise _sql_error(text, at, "unterminated string, quoted name or comment; add the closing delimiter") from None
    if not tokens:
        raise InvalidSqlError("the SQL expression is empty; pass an expression such as 'id > 1'")
    return tokens, _check_nesting(text, tokens)


@functools.cache
def _bracket_tokens() -> tuple[frozenset[Any], frozenset[Any]]:
    """Return the types of opening and of closing tokens. CASE ... END counts as a pair of brackets."""
    from sqlglot import TokenType

    return (
        frozenset((TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE)),
        frozenset((TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END)),
    )


def _check_nesting(text: str, tokens: list[Any]) -> int:
    """Return the nesting depth of the tokens; raise InvalidSqlError beyond MAX_NESTING, before any recursion."""
    from sqlglot import TokenType

    opening, closing = _bracket_tokens()
    prefix = (TokenType.NOT, TokenType.DASH)
    levels: list[int] = []
    depth = run = deepest = 0
    for token in tokens:
        kind = token.token_type
        if kind in prefix and token.text != "!":  # sqlglot reads `!` as NOT
            run += 1
        elif kind in opening:
            levels.append(run + 1)
            depth += run + 1
            run = 0
        else:
            run = 0
            if kind in closing and levels:
                depth -= levels.pop()
            elif kind == TokenType.NOT:
                raise _sql_error(text, token.start, "'!' is not an operator; use NOT")
            elif kind == TokenType.SEMICOLON:
                raise _sql_error(text, token.start, "expected one expression, got several statements; remove the ';'")
        deepest = max(deepest, depth + run)
        if deepest > MAX_NESTING:
            reason = (
                f"nested too deeply: more than {MAX_NESTING} brackets, CASE expressions and prefix operators are open "
                f"here; remove redundant ones, or store a part of the expression as a column"
            )
            raise _sql_error(text, token.start, reason)
    return deepest


def _parse_in_parts(text: str, tokens: list[Any]) -> Any:
    """Parse deeply nested tokens from the inside out, with a bounded stack depth; return one syntax tree.

    Commas and the keywords of CASE and CAST divide the content of brackets into items. An item that contains
    `_LEVELS_PER_PARSE` levels of brackets is parsed on its own and replaced by a placeholder name. The placeholders are
    replaced by the trees at the end.

        ((( a ) + b) * f(c, d))  ->  x1 = (( a ) + b)    x2 = ( x1 * f(c, d))
    """
    from sqlglot import Token, TokenType

    opening, closing = _bracket_tokens()
    separators = (
        TokenType.COMMA,
        TokenType.ALIAS,
        TokenType.FROM,
        TokenType.WHEN,
        TokenType.THEN,
        TokenType.ELSE,
    )
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
    for token in tokens:
        kind = token.token_type
        if kind in opening:
            outer.append(group)
            group = _Group([token], item_start=1)
        elif kind in closing and outer:
            end_item(group)
            group.tokens.append(token)
            closed, group = group, outer.pop()
            group.tokens.extend(closed.tokens)
            group.item_levels = max(group.item_levels, closed.levels + 1)
        elif kind in separators and previous != TokenType.DISTINCT:  # IS DISTINCT FROM does not end an item
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


def _parse_tokens(text: str, tokens: list[Any], parts: dict[str, Any] | None = None) -> Any:
    """Parse tokens to one sqlglot tree; replace columns named in `parts` by the trees stored there.

    Raises InvalidSqlError with the position of the syntax error.
    """
    from sqlglot import exp
    from sqlglot.errors import ParseError

    try:
        trees = _dialect().parser().parse_into(exp.Condition, tokens, text)
    except ParseError as error:
        if not error.errors:
            raise InvalidSqlError(f"not a SQL expression: {_window(text, 0)[0]}") from None
        first = error.errors[0]
        highlight = first.get("highlight") or ""
        line, column = first.get("line"), first.get("col")
        at = None if line is None or column is None else _offset(text, line, column) - max(len(highlight) - 1, 0)
        ended = at is not None and not text[at + len(highlight) :].strip()
        reason = str(first.get("description") or "syntax error").rstrip(".")
        if ended and (highlight.lower() in RESERVED or not re.search(r"\w|[)\]'\"]", highlight)):
            reason = "the expression is incomplete; an operand is missing at the end"
        elif "Unexpected token" in reason or reason.startswith("Required keyword"):
            reason = f"unexpected {highlight!r}" if highlight else "not a SQL expression"
        raise _sql_error(text, at, reason) from None
    if len(trees) != 1 or trees[0] is None:
        raise InvalidSqlError(f"expected one expression: {_window(text, 0)[0]}")
    tree = trees[0]
    if parts:
        for column in list(tree.find_all(exp.Column)):
            if column.name in parts:
                column.replace(parts.pop(column.name))
    return tree


# Errors


def _offset(text: str, line: int, column: int) -> int:
    """Return the index in `text` of a 1-based line and column."""
    starts = [0, *(match.end() for match in re.finditer(r"\n", text))]
    return min(starts[min(line, len(starts)) - 1] + column - 1, max(len(text) - 1, 0))


def _window(text: str, at: int) -> tuple[str, int]:
    """Return the line that contains index `at`, cut to about 120 characters, and the column of `at` in it."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line, column = text[start : end if end >= 0 else len(text)], at - start
    if len(line) <= 120:
        return line, column
    cut = max(0, column - 60)
    head, tail = ("..." if cut else ""), ("..." if cut + 120 < len(line) else "")
    return f"{head}{line[cut : cut + 120]}{tail}", column - cut + len(head)


def _with_caret(text: str, at: int | None, reason: str) -> str:
    if at is None:
        return f"{reason}\n  {_window(text, 0)[0]}"
    line, column = _window(text, at)
    return f"{reason}\n  {line}\n  {' ' * column}^"


def _sql_error(text: str, at: int | None, reason: str) -> InvalidSqlError:
    return InvalidSqlError(f"Invalid user input: {_with_caret(text, at, reason)}", offset=at)


# Tree to expression


class _Located(Exception):
    """A rejected expression with its position in the string; the visitor converts it to InvalidSqlError."""

    def __init__(self, reason: str, at: int | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at


class _Visitor:
    """A converter from the sqlglot tree of one string to an expression over one schema."""

    def __init__(self, text: str, tokens: list[Any], schema: pa.Schema) -> None:
        self.text = text
        self.tokens = tokens
        self.schema = schema
        self.depth = 0
        self.root: Any = None

    def visit(self, tree: Any) -> Expr:
        """Convert a whole tree. Raises InvalidSqlError or ColumnNotFoundError with the position."""
        self.root = tree
        while type(self.root).__name__ == "Paren":
            self.root = self.root.this
        try:
            return self._expr(tree)
        except _Located as error:
            raise _sql_error(self.text, error.at, error.reason) from None

    def _expr(self, node: Any) -> Expr:
        handler = _HANDLERS.get(type(node).__name__)
        if handler is None:
            raise _Located(f"{_described(node)} is not supported in expressions", self._position(node))
        self.depth += 1
        if self.depth > MAX_DEPTH:
            reason = f"nested too deeply: more than {MAX_DEPTH} operators contain each other; split the expression"
            raise _Located(reason, self._position(node))
        try:
            return handler(self, node)
        except Refused as error:
            raise _Located(str(error), self._position(node)) from None
        finally:
            self.depth -= 1

    def _position(self, node: Any) -> int | None:
        """Return the index of the leftmost name or literal of a node, or of the function name of a call."""
        if type(node).__name__ == "Anonymous":
            for token in self.tokens:
                if token.text == node.this:
                    return int(token.start)
        starts = [int(descendant.meta["start"]) for descendant in node.walk() if "start" in descendant.meta]
        return min(starts, default=None)

    # One method per node class of sqlglot; _HANDLERS maps the class name to the method.

    def column(self, node: Any) -> Expr:
        parts = node.parts
        if any(type(part).__name__ != "Identifier" for part in parts):
            raise Refused("* is not a value; use a column name")
        try:
            return column_names.resolve([(part.this, bool(part.args.get("quoted"))) for part in parts], self.schema)
        except ColumnNotFoundError as error:
            if len(parts) == 1 and not parts[0].args.get("quoted") and parts[0].this.lower() == "current_date":
                return functions.call("current_date", [])
            offset = self._position(node)
            message = f"Invalid user input: {_with_caret(self.text, offset, str(error))}"
            raise ColumnNotFoundError(message, **{**error.__dict__, "offset": offset}) from None

    def literal(self, node: Any) -> Expr:
        return build.string_literal(node.this) if node.args.get("is_string") else build.number_literal(node.this)

    def hex_string(self, node: Any) -> Expr:
        digits = node.this
        if len(digits) % 2 or not re.fullmatch("[0-9a-fA-F]*", digits):
            raise Refused(f"invalid binary literal x'{digits}'; use an even number of hexadecimal digits")
        return Literal(pa.scalar(bytes.fromhex(digits), pa.binary()))

    def boolean(self, node: Any) -> Expr:
        return build.TRUE if node.this else build.FALSE

    def null(self, node: Any) -> Expr:
        return Literal(pa.scalar(None, pa.null()))

    def array(self, node: Any) -> Expr:
        return build.array([self._expr(item) for item in node.expressions])

    def paren(self, node: Any) -> Expr:
        return self._expr(node.this)

    def conjunction(self, node: Any) -> Expr:
        return build.conjunction(self._chain(node))

    def disjunction(self, node: Any) -> Expr:
        return build.disjunction(self._chain(node))

    def _chain(self, node: Any) -> list[Expr]:
        """Convert the operands of a left-deep chain of AND or OR, without recursion: there can be thousands."""
        kind, trees = type(node), []
        while type(node) is kind:
            trees.append(node.expression)
            node = node.this
        trees.append(node)
        return [self._expr(tree) for tree in reversed(trees)]

    def negation(self, node: Any) -> Expr:
        return build.negation(self._expr(node.this))

    def minus(self, node: Any) -> Expr:
        inner = node.this
        if type(inner).__name__ == "Literal" and not inner.args.get("is_string"):
            return build.number_literal(f"-{inner.this}")  # keeps the smallest int64 an int64
        return build.negate(self._expr(inner))

    def is_test(self, node: Any) -> Expr:
        test = type(node.expression).__name__
        if test == "Null":
            return build.is_null(self._expr(node.this))
        if test == "Boolean":
            return build.is_truth(self._expr(node.this), bool(node.expression.this))
        raise Refused("IS must be followed by NULL, TRUE, FALSE or DISTINCT FROM")

    def is_not_distinct(self, node: Any) -> Expr:
        return build.negation(build.is_distinct(self._expr(node.this), self._expr(node.expression)))

    def is_distinct(self, node: Any) -> Expr:
        return build.is_distinct(self._expr(node.this), self._expr(node.expression))

    def in_list(self, node: Any) -> Expr:
        extra = [key for key, value in node.args.items() if value and key not in ("this", "expressions")]
        if extra or not node.expressions:
            raise Refused("IN must be followed by a list of values in parentheses")
        # Literals skip the handler lookup, because lists of ten thousand values are common.
        items = [
            self.literal(item) if type(item).__name__ == "Literal" else self._expr(item) for item in node.expressions
        ]
        return build.in_list(self._expr(node.this), items)

    def between(self, node: Any) -> Expr:
        if node.args.get("symmetric"):
            raise Refused("BETWEEN SYMMETRIC is not supported; use BETWEEN least(a, b) AND greatest(a, b)")
        return build.between(self._expr(node.this), self._expr(node.args["low"]), self._expr(node.args["high"]))

    def like(self, node: Any) -> Expr:
        ignore_case = type(node).__name__ == "ILike"
        match = build.like(self._expr(node.this), self._expr(node.expression), ignore_case=ignore_case)
        return build.negation(match) if node.args.get("negate") else match

    def escape(self, node: Any) -> Expr:
        if type(node.this).__name__ not in ("Like", "ILike") or node.expression.this != "\\":
            raise Refused("ESCAPE is supported only after LIKE or ILIKE, and only with a backslash")
        return self.like(node.this)

    def cast(self, node: Any) -> Expr:
        if node.args.get("format") or node.args.get("default") or node.args.get("action"):
            raise Refused("CAST supports only the form CAST(value AS type)")
        target = self._type(node.args["to"])
        # TRY_CAST and SAFE_CAST both parse to TryCast.
        return build.checked_cast(self._expr(node.this), target, null_on_failure=type(node).__name__ == "TryCast")

    def _type(self, node: Any) -> pa.DataType:
        name = node.this.name if hasattr(node.this, "name") else str(node.this)
        parameters = [param.this.this for param in node.expressions]
        if name == "DECIMAL" and len(parameters) == 2 and all(param.isdigit() for param in parameters):
            precision, scale = int(parameters[0]), int(parameters[1])
            if 1 <= precision <= 38 and scale <= precision:
                return pa.decimal128(precision, scale)
            raise Refused(f"decimal({precision}, {scale}) is out of range; use at most 38 digits")
        if name in ("TIMESTAMP", "DATETIME") and len(parameters) <= 1:
            unit = _TIMESTAMP_UNITS.get(parameters[0] if parameters else "6")
            if unit is not None:
                return pa.timestamp(unit)
        data_type = _CAST_TYPES.get(name)
        if data_type is None or (parameters and name != "FLOAT"):
            raise Refused(f"cannot cast to {node.sql()}; supported types are {_TYPE_LIST}")
        return data_type

    def arithmetic(self, node: Any) -> Expr:
        operator = _ARITHMETIC[type(node).__name__]
        operands = self._expr(node.this), self._expr(node.expression)
        return build.arithmetic(operator, *operands, narrow=node is self.root)

    def comparison(self, node: Any) -> Expr:
        return build.compare(_COMPARISONS[type(node).__name__], self._expr(node.this), self._expr(node.expression))

    def concatenation(self, node: Any) -> Expr:
        return build.concatenation(self._expr(node.this), self._expr(node.expression))

    def dot(self, node: Any) -> Expr:
        if type(node.expression).__name__ != "Identifier":
            raise Refused(f"expected a field name after '.', got {_described(node.expression)}")
        return build.field_access(self._expr(node.this), node.expression.this)

    def bracket(self, node: Any) -> Expr:
        if len(node.expressions) != 1:
            raise Refused("[] must contain one index or one field name")
        (index,) = node.expressions
        if type(index).__name__ == "Literal" and index.args.get("is_string"):
            return build.field_access(self._expr(node.this), index.this)
        return build.index_access(self._expr(node.this), self._expr(index))

    def case(self, node: Any) -> Expr:
        subject = None if node.this is None else self._expr(node.this)
        conditions, values = [], []
        for branch in node.args["ifs"]:
            condition = self._expr(branch.this)
            conditions.append(condition if subject is None else build.compare("=", subject, condition))
            values.append(self._expr(branch.args["true"]))
        default = node.args.get("default")
        return build.case(conditions, values, None if default is None else self._expr(default))

    def extract(self, node: Any) -> Expr:
        return functions.call("date_part", [build.string_literal(node.this.name), self._expr(node.expression)])

    def current_timestamp(self, node: Any) -> Expr:
        if node.this is not None:
            raise Refused("current_timestamp takes no arguments")
        return functions.call("now", [])

    def call(self, node: Any) -> Expr:
        if not isinstance(node.this, str):
            raise Refused(f"{_described(node)} is not a function")
        if node.this.lower() not in functions.FUNCTIONS:
            return functions.call(node.this, [])
        return functions.call(node.this, [self._expr(arg) for arg in node.expressions])


def _described(node: Any) -> str:
    """Return the name of a syntax node in words, such as `bitwise and` or `interval`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).lower()


_COMPARISONS = {"EQ": "=", "NEQ": "!=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_ARITHMETIC = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "Div": "/",
    "Mod": "%",
    "BitwiseLeftShift": "<<",
    "BitwiseRightShift": ">>",
}
_TIMESTAMP_UNITS = {"0": "s", "3": "ms", "6": "us", "9": "ns"}
_CAST_TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINT": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
}
_TYPE_LIST = (
    "boolean, tinyint, smallint, int, bigint (integers can be unsigned), float, double, decimal(p, s), string, "
    "binary, date, timestamp(0 | 3 | 6 | 9); arrow_cast(x, 'Type') supports the others"
)

_HANDLERS: dict[str, Callable[[_Visitor, Any], Expr]] = {
    "Column": _Visitor.column,
    "Literal": _Visitor.literal,
    "HexString": _Visitor.hex_string,
    "Boolean": _Visitor.boolean,
    "Null": _Visitor.null,
    "Array": _Visitor.array,
    "Paren": _Visitor.paren,
    "And": _Visitor.conjunction,
    "Or": _Visitor.disjunction,
    "Not": _Visitor.negation,
    "Neg": _Visitor.minus,
    "Is": _Visitor.is_test,
    "NullSafeEQ": _Visitor.is_not_distinct,
    "NullSafeNEQ": _Visitor.is_distinct,
    "In": _Visitor.in_list,
    "Between": _Visitor.between,
    "Like": _Visitor.like,
    "ILike": _Visitor.like,
    "Escape": _Visitor.escape,
    "Cast": _Visitor.cast,
    "TryCast": _Visitor.cast,
    **dict.fromkeys(_ARITHMETIC, _Visitor.arithmetic),
    **dict.fromkeys(_COMPARISONS, _Visitor.comparison),
    "DPipe": _Visitor.concatenation,
    "Dot": _Visitor.dot,
    "Bracket": _Visitor.bracket,
    "Case": _Visitor.case,
    "Extract": _Visitor.extract,
    "CurrentTimestamp": _Visitor.current_timestamp,
    "Anonymous": _Visitor.call,
}
