"""SQL text to a typed expression.

sqlglot splits and nests the text by a small dialect of ours; a visitor that knows a closed list of its node classes
turns the result into our nodes and refuses everything else, so that whatever else sqlglot may understand is an error
here, with a caret under the place. Expressions are cached by text and schema: the same filter is parsed once.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pyarrow as pa

from lancetable.errors import ColumnNotFoundError, InvalidSqlError
from lancetable.expr import build, functions, names
from lancetable.expr.ast import BOOLEAN, RESERVED, Call, Expr, Literal
from lancetable.expr.build import Refused
from lancetable.expr.time_functions import CLOCK, one_moment

MAX_NESTING = 50
"""Open brackets and prefix operators at one place of the text."""

MAX_DEPTH = 150
"""Operators below each other, other than in a chain of AND or OR, which may be of any length."""

_QUICK_CACHE_SIZE = 512
_quick_cache: dict[tuple[str, int, bool], tuple[pa.Schema, Expr]] = {}


def parse_predicate(text: str, schema: pa.Schema) -> Expr:
    """A filter: an expression that answers a boolean for each row of a table of this schema.

    Raises InvalidSqlError (with a caret under the place) for text that does not parse, does not type-check or is no
    boolean; ColumnNotFoundError with the nearest names; TypeError if `text` is no str.
    """
    return _parse_quickly(text, schema, True)


def parse_expression(text: str, schema: pa.Schema) -> Expr:
    """An expression of any type over the columns of a table. Raises as `parse_predicate` does."""
    return _parse_quickly(text, schema, False)


def _parse_quickly(text: str, schema: pa.Schema, predicate: bool) -> Expr:
    """Parse, remembering the answer by the identity of the schema: hashing a wide schema costs more than a take."""
    if not isinstance(text, str):
        raise TypeError(f"an expression is SQL text, not {type(text).__name__}")
    key = (text, id(schema), predicate)
    hit = _quick_cache.get(key)
    if hit is not None and hit[0] is schema:
        return hit[1]
    lowered = text.lower()
    if any(word in lowered for word in CLOCK):
        with one_moment():
            return _parse.__wrapped__(text, schema, predicate)  # its value is the time of this call
    expr = _parse(text, schema, predicate)
    if len(_quick_cache) >= _QUICK_CACHE_SIZE:
        _quick_cache.clear()
    _quick_cache[key] = (schema, expr)  # holds the schema, so that its id stays its own
    return expr


@functools.lru_cache(maxsize=256)
def _parse(text: str, schema: pa.Schema, predicate: bool) -> Expr:
    tokens = _tokenize(text)
    try:
        expr = _read(text, tokens, schema)
    except RecursionError:
        # sqlglot takes about twenty frames for each bracket, and the caller's own have used some of the room.
        with _deeper_stack():
            expr = _read(text, tokens, schema)
    return _as_predicate(expr, text) if predicate and expr.data_type != BOOLEAN else expr


_stack_lock = threading.Lock()


@contextlib.contextmanager
def _deeper_stack() -> Iterator[None]:
    """Room for MAX_NESTING brackets, however deep the caller is. The limit is one for all threads: one at a time."""
    with _stack_lock:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + MAX_NESTING * 60)
        try:
            yield
        finally:
            sys.setrecursionlimit(limit)


def _read(text: str, tokens: list[Any], schema: pa.Schema) -> Expr:
    return _Visitor(text, tokens, schema).visit(_tree(text, tokens))


def _as_predicate(expr: Expr, text: str) -> Expr:
    opened = build.plain(expr)
    if opened.data_type == BOOLEAN:
        return opened
    if isinstance(opened, Call) and opened.function == "regexp_match":
        return build.boolean(opened, "a filter")
    shown = _window(text, 0)[0]
    raise InvalidSqlError(f"Invalid user input: the filter {shown} does not return a boolean but {expr.data_type}")


# Text to tree


_KEYWORDS = """
AND OR NOT IS NULL TRUE FALSE IN BETWEEN LIKE ILIKE ESCAPE DISTINCT FROM AS ARRAY CURRENT_TIMESTAMP
CASE WHEN THEN ELSE END
BOOLEAN TINYINT SMALLINT INT INTEGER BIGINT FLOAT DOUBLE DECIMAL BINARY DATE TIMESTAMP DATETIME
"""


@functools.cache
def _dialect() -> Any:
    """The sqlglot dialect: backticks quote names, both quotes delimit text, the backslash is plain, no functions."""
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


def _tokenize(text: str) -> list[Any]:
    from sqlglot.errors import TokenError

    try:
        tokens = list(_dialect().tokenize(text))
    except TokenError as error:
        found = re.search(r"(\d+):(\d+)", str(error.__cause__ or error))
        at = _offset(text, int(found[1]), int(found[2]) + 1) if found else None  # the column before the quote
        raise _sql_error(text, at, "the text does not end: a quote or comment stays open") from None
    if not tokens:
        raise InvalidSqlError("an expression is wanted, the text is empty")
    _check_nesting(text, tokens)
    return tokens


def _check_nesting(text: str, tokens: list[Any]) -> None:
    """Refuse what would exhaust the stack of a recursive parser, before it starts."""
    from sqlglot import TokenType

    opening = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE)
    closing = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END)
    prefix = (TokenType.NOT, TokenType.DASH)
    levels: list[int] = []
    depth = run = 0
    for token in tokens:
        kind = token.token_type
        if kind in prefix and token.text != "!":  # sqlglot takes `!` for NOT
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
                raise _sql_error(text, token.start, "'!' is not an operator, write NOT")
            elif kind == TokenType.SEMICOLON:
                raise _sql_error(text, token.start, "one expression is wanted, not several statements")
        if depth + run > MAX_NESTING:
            raise _sql_error(text, token.start, f"nested more than {MAX_NESTING} deep")


def _tree(text: str, tokens: list[Any]) -> Any:
    from sqlglot import exp
    from sqlglot.errors import ParseError

    try:
        trees = _dialect().parser().parse_into(exp.Condition, tokens, text)
    except ParseError as error:
        if not error.errors:
            raise InvalidSqlError(f"this is no expression: {_window(text, 0)[0]}") from None
        first = error.errors[0]
        highlight = first.get("highlight") or ""
        line, column = first.get("line"), first.get("col")
        at = None if line is None or column is None else _offset(text, line, column) - max(len(highlight) - 1, 0)
        ended = at is not None and not text[at + len(highlight) :].strip()
        reason = str(first.get("description") or "syntax error").rstrip(".")
        if ended and (highlight.lower() in RESERVED or not re.search(r"\w|[)\]'\"]", highlight)):
            reason = "the text is cut off"
        elif "Unexpected token" in reason or reason.startswith("Required keyword"):
            reason = f"{highlight!r} is not expected here" if highlight else "this is no expression"
        raise _sql_error(text, at, reason) from None
    if len(trees) != 1 or trees[0] is None:
        raise InvalidSqlError(f"one expression is wanted: {_window(text, 0)[0]}")
    return trees[0]


# Errors


def _offset(text: str, line: int, column: int) -> int:
    """Index in `text` of a 1-based line and column."""
    starts = [0, *(match.end() for match in re.finditer(r"\n", text))]
    return min(starts[min(line, len(starts)) - 1] + column - 1, max(len(text) - 1, 0))


def _window(text: str, at: int) -> tuple[str, int]:
    """The line around index `at`, cut to about 120 characters, and where `at` lies in it."""
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
    """A refusal with its place in the text, on its way out of the visitor."""

    def __init__(self, reason: str, at: int | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at


class _Visitor:
    """Turns the sqlglot tree of one text into an expression over one schema."""

    def __init__(self, text: str, tokens: list[Any], schema: pa.Schema) -> None:
        self.text = text
        self.tokens = tokens
        self.schema = schema
        self.depth = 0
        self.root: Any = None

    def visit(self, tree: Any) -> Expr:
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
            raise _Located(f"{_described(node)} is not part of this SQL", self._place(node))
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Located(f"more than {MAX_DEPTH} operators below each other", self._place(node))
        try:
            return handler(self, node)
        except Refused as error:
            raise _Located(str(error), self._place(node)) from None
        finally:
            self.depth -= 1

    def _place(self, node: Any) -> int | None:
        """Where the leftmost name or literal below a node stands; for calls, the function's name."""
        if type(node).__name__ == "Anonymous":
            for token in self.tokens:
                if token.text == node.this:
                    return int(token.start)
        starts = [int(below.meta["start"]) for below in node.walk() if "start" in below.meta]
        return min(starts, default=None)

    # One method per node class of sqlglot, found through _HANDLERS.

    def column(self, node: Any) -> Expr:
        parts = node.parts
        if any(type(part).__name__ != "Identifier" for part in parts):
            raise Refused("* is no expression")
        try:
            return names.resolve([(part.this, bool(part.args.get("quoted"))) for part in parts], self.schema)
        except ColumnNotFoundError as error:
            if len(parts) == 1 and not parts[0].args.get("quoted") and parts[0].this.lower() == "current_date":
                return functions.call("current_date", [])
            place = f"Invalid user input: {_with_caret(self.text, self._place(node), str(error))}"
            raise ColumnNotFoundError(place, **{**error.__dict__, "offset": self._place(node)}) from None

    def literal(self, node: Any) -> Expr:
        return build.text(node.this) if node.args.get("is_string") else build.number(node.this)

    def hex_string(self, node: Any) -> Expr:
        digits = node.this
        if len(digits) % 2 or not re.fullmatch("[0-9a-fA-F]*", digits):
            raise Refused(f"x'{digits}' is no sequence of bytes in hexadecimal digits")
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
        """The operands of a left-deep chain of one operator, without recursion: there may be thousands."""
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
            return build.number(f"-{inner.this}")  # so that the smallest int64 is one
        return build.negate(self._expr(inner))

    def is_test(self, node: Any) -> Expr:
        what = type(node.expression).__name__
        if what == "Null":
            return build.is_null(self._expr(node.this))
        if what == "Boolean":
            return build.is_truth(self._expr(node.this), bool(node.expression.this))
        raise Refused("IS takes NULL, TRUE, FALSE or DISTINCT FROM")

    def same(self, node: Any) -> Expr:
        return build.negation(build.is_distinct(self._expr(node.this), self._expr(node.expression)))

    def distinct(self, node: Any) -> Expr:
        return build.is_distinct(self._expr(node.this), self._expr(node.expression))

    def in_list(self, node: Any) -> Expr:
        extra = [key for key, value in node.args.items() if value and key not in ("this", "expressions")]
        if extra or not node.expressions:
            raise Refused("IN takes a list of values in parentheses")
        # Constants are read in one pass: lists of ten thousand values are common.
        items = [
            self.literal(item) if type(item).__name__ == "Literal" else self._expr(item) for item in node.expressions
        ]
        return build.in_list(self._expr(node.this), items)

    def between(self, node: Any) -> Expr:
        if node.args.get("symmetric"):
            raise Refused("BETWEEN SYMMETRIC is not part of this SQL")
        return build.between(self._expr(node.this), self._expr(node.args["low"]), self._expr(node.args["high"]))

    def like(self, node: Any) -> Expr:
        made = build.like(
            self._expr(node.this), self._expr(node.expression), ignore_case=type(node).__name__ == "ILike"
        )
        return build.negation(made) if node.args.get("negate") else made

    def escape(self, node: Any) -> Expr:
        if type(node.this).__name__ not in ("Like", "ILike") or node.expression.this != "\\":
            raise Refused("ESCAPE takes the backslash only, behind LIKE")
        return self.like(node.this)

    def cast(self, node: Any) -> Expr:
        if node.args.get("format") or node.args.get("default") or node.args.get("action"):
            raise Refused("CAST takes a value and a type only")
        target = self._type(node.args["to"])
        # `safe` is set by TRY_CAST and SAFE_CAST alike.
        return build.checked_cast(self._expr(node.this), target, null_on_failure=type(node).__name__ == "TryCast")

    def _type(self, node: Any) -> pa.DataType:
        name = node.this.name if hasattr(node.this, "name") else str(node.this)
        parameters = [param.this.this for param in node.expressions]
        if name == "DECIMAL" and len(parameters) == 2 and all(param.isdigit() for param in parameters):
            precision, scale = int(parameters[0]), int(parameters[1])
            if 1 <= precision <= 38 and scale <= precision:
                return pa.decimal128(precision, scale)
            raise Refused(f"decimal({precision}, {scale}) is out of range: 38 digits at most")
        if name in ("TIMESTAMP", "DATETIME") and len(parameters) <= 1:
            unit = _TIMESTAMP_UNITS.get(parameters[0] if parameters else "6")
            if unit is not None:
                return pa.timestamp(unit)
        known = _CAST_TYPES.get(name)
        if known is None or (parameters and name != "FLOAT"):
            raise Refused(f"cannot cast to {node.sql()}; types are {_TYPE_LIST}")
        return known

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
            raise Refused(f"{_described(node.expression)} is no field name")
        return build.field_access(self._expr(node.this), node.expression.this)

    def bracket(self, node: Any) -> Expr:
        if len(node.expressions) != 1:
            raise Refused("[] takes one index or one field name")
        (index,) = node.expressions
        if type(index).__name__ == "Literal" and index.args.get("is_string"):
            return build.field_access(self._expr(node.this), index.this)
        return build.index_access(self._expr(node.this), self._expr(index))

    def case(self, node: Any) -> Expr:
        subject = None if node.this is None else self._expr(node.this)
        conditions, values = [], []
        for arm in node.args["ifs"]:
            condition = self._expr(arm.this)
            conditions.append(condition if subject is None else build.compare("=", subject, condition))
            values.append(self._expr(arm.args["true"]))
        default = node.args.get("default")
        return build.case(conditions, values, None if default is None else self._expr(default))

    def extract(self, node: Any) -> Expr:
        return functions.call("date_part", [build.text(node.this.name), self._expr(node.expression)])

    def current_timestamp(self, node: Any) -> Expr:
        if node.this is not None:
            raise Refused("current_timestamp takes no operand")
        return functions.call("now", [])

    def call(self, node: Any) -> Expr:
        if not isinstance(node.this, str):
            raise Refused(f"{_described(node)} is no function")
        if node.this.lower() not in functions.FUNCTIONS:
            return functions.call(node.this, [])
        return functions.call(node.this, [self._expr(arg) for arg in node.expressions])


def _described(node: Any) -> str:
    """A construct by the name its class has in sqlglot, in words: `bitwise and`, `interval`."""
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
    "boolean, tinyint, smallint, int, bigint (each integer also unsigned), float, double, decimal(p, s), string, "
    "binary, date, timestamp(0 | 3 | 6 | 9); arrow_cast(x, 'Type') reaches the others"
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
    "NullSafeEQ": _Visitor.same,
    "NullSafeNEQ": _Visitor.distinct,
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
