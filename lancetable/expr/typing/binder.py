"""Binder, which converts SQL strings to typed expressions.

The binder resolves the names in a sqlglot syntax tree and applies the typing rules. It accepts a closed list of sqlglot
node classes. SQL that sqlglot parses but this list does not contain raises an error that shows its position.
Expressions are cached by string and schema.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import pyarrow as pa

from lancetable.errors import ColumnNotFoundError, InvalidSqlError
from lancetable.expr.syntax.ast import BOOLEAN, SQL_TYPE_NAMES, Call, Expr, Literal
from lancetable.expr.syntax.sql_errors import excerpt, sql_error, with_caret
from lancetable.expr.typing import comparisons, functions, logic, name_resolution, nested
from lancetable.expr.typing.arithmetic import arithmetic, concatenation, negate
from lancetable.expr.typing.coercion import checked_cast, unwrap
from lancetable.expr.typing.constant_folding import FALSE, NULL, TRUE, number_literal, string_literal
from lancetable.expr.typing.errors import AnalysisError

MAX_DEPTH = 150
"""Maximum depth of the syntax tree. A chain of AND or OR counts as one level, regardless of its length."""


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
    if not isinstance(text, str):
        raise TypeError(f"expected a SQL expression as a str, got {type(text).__name__}")
    lowered = text.lower()
    if any(word in lowered for word in functions.TIME_FUNCTIONS):
        with functions.fixed_current_time():
            return _parse.__wrapped__(text, schema, predicate)  # not cached: the value depends on the current time
    return _parse(text, schema, predicate)


@functools.lru_cache(maxsize=256)
def _parse(text: str, schema: pa.Schema, predicate: bool) -> Expr:
    from lancetable.expr.syntax.parser import parse_sql  # deferred, because importing sqlglot is slow

    try:
        tree, tokens = parse_sql(text)
        expr = _Binder(text, tokens, schema, tree).bind(tree)
    except RecursionError:
        raise InvalidSqlError(
            f"recursion limit reached while parsing {excerpt(text, 0)[0]}; simplify the expression, or parse it in a"
            " less deeply nested call or in a thread of its own"
        ) from None
    return _as_predicate(expr, text) if predicate and expr.data_type != BOOLEAN else expr


def _as_predicate(expr: Expr, text: str) -> Expr:
    """Return the expression as a boolean; raise InvalidSqlError if it has another type."""
    unwrapped = unwrap(expr)
    if unwrapped.data_type == BOOLEAN:
        return unwrapped
    if isinstance(unwrapped, Call) and unwrapped.function == "regexp_match":
        return logic.as_boolean(unwrapped, "a filter")
    shown = excerpt(text, 0)[0]
    raise InvalidSqlError(f"Invalid user input: the filter {shown} does not return a boolean but {expr.data_type}")


class _Binder:
    """A converter from the sqlglot tree of one string to an expression over one schema.

    The method `visit_<key>` converts the nodes of the sqlglot class with this key.
    """

    def __init__(self, text: str, tokens: list[Any], schema: pa.Schema, tree: Any) -> None:
        self.text = text
        self.tokens = tokens
        self.schema = schema
        self.depth = 0
        self.root = tree
        while self.root.key == "paren":
            self.root = self.root.this

    def bind(self, node: Any) -> Expr:
        """Convert a node. Raises InvalidSqlError or ColumnNotFoundError with the position."""
        visit = getattr(self, f"visit_{node.key}", None)
        if visit is None:
            raise self._error(node, f"{_described(node)} is not supported in expressions")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            reason = f"nested too deeply: more than {MAX_DEPTH} operators contain each other; split the expression"
            raise self._error(node, reason)
        try:
            expr: Expr = visit(node)
        except AnalysisError as error:
            raise self._error(node, str(error)) from None
        finally:
            self.depth -= 1
        return expr

    def _error(self, node: Any, reason: str) -> InvalidSqlError:
        return sql_error(self.text, self._position(node), reason)

    def _position(self, node: Any) -> int | None:
        """Return the index of the leftmost name or literal of a node, or of the function name of a call."""
        if node.key == "anonymous":
            for token in self.tokens:
                if token.text == node.this:
                    return int(token.start)
        starts = [int(descendant.meta["start"]) for descendant in node.walk() if "start" in descendant.meta]
        return min(starts, default=None)

    def _operands(self, node: Any) -> tuple[Expr, Expr]:
        return self.bind(node.this), self.bind(node.expression)

    def visit_column(self, node: Any) -> Expr:
        parts = node.parts
        if any(part.key != "identifier" for part in parts):
            raise AnalysisError("* is not a value; use a column name")
        try:
            return name_resolution.resolve([(part.this, bool(part.args.get("quoted"))) for part in parts], self.schema)
        except ColumnNotFoundError as error:
            if len(parts) == 1 and not parts[0].args.get("quoted") and parts[0].this.lower() == "current_date":
                return functions.call("current_date", [])
            offset = self._position(node)
            message = f"Invalid user input: {with_caret(self.text, offset, str(error))}"
            raise ColumnNotFoundError(message, **{**error.__dict__, "offset": offset}) from None

    # Literals

    def visit_literal(self, node: Any) -> Expr:
        return string_literal(node.this) if node.args.get("is_string") else number_literal(node.this)

    def visit_hexstring(self, node: Any) -> Expr:
        digits = node.this
        if len(digits) % 2 or not re.fullmatch("[0-9a-fA-F]*", digits):
            raise AnalysisError(f"invalid binary literal x'{digits}'; use an even number of hexadecimal digits")
        return Literal(pa.scalar(bytes.fromhex(digits), pa.binary()))

    def visit_boolean(self, node: Any) -> Expr:
        return TRUE if node.this else FALSE

    def visit_null(self, node: Any) -> Expr:
        return NULL

    def visit_array(self, node: Any) -> Expr:
        return nested.array([self.bind(item) for item in node.expressions])

    # Logic

    def visit_paren(self, node: Any) -> Expr:
        return self.bind(node.this)

    def visit_and(self, node: Any) -> Expr:
        return logic.conjunction(self._chain(node))

    def visit_or(self, node: Any) -> Expr:
        return logic.disjunction(self._chain(node))

    def _chain(self, node: Any) -> list[Expr]:
        """Convert the operands of a left-deep chain of AND or OR, without recursion because there can be thousands."""
        key, trees = node.key, []
        while node.key == key:
            trees.append(node.expression)
            node = node.this
        trees.append(node)
        return [self.bind(tree) for tree in reversed(trees)]

    def visit_not(self, node: Any) -> Expr:
        return logic.negation(self.bind(node.this))

    def visit_is(self, node: Any) -> Expr:
        if node.expression.key == "null":
            return logic.is_null(self.bind(node.this))
        if node.expression.key == "boolean":
            return logic.is_true(self.bind(node.this), bool(node.expression.this))
        raise AnalysisError("IS must be followed by NULL, TRUE, FALSE or DISTINCT FROM")

    def visit_case(self, node: Any) -> Expr:
        subject = None if node.this is None else self.bind(node.this)
        conditions, values = [], []
        for branch in node.args["ifs"]:
            condition = self.bind(branch.this)
            conditions.append(condition if subject is None else comparisons.compare("=", subject, condition))
            values.append(self.bind(branch.args["true"]))
        default = node.args.get("default")
        return logic.case(conditions, values, None if default is None else self.bind(default))

    # Comparisons

    def _comparison(self, node: Any) -> Expr:
        return comparisons.compare(_COMPARISONS[node.key], *self._operands(node))

    visit_eq = visit_neq = visit_lt = visit_lte = visit_gt = visit_gte = _comparison

    def visit_nullsafeneq(self, node: Any) -> Expr:
        return comparisons.is_distinct(*self._operands(node))

    def visit_nullsafeeq(self, node: Any) -> Expr:
        return logic.negation(self.visit_nullsafeneq(node))

    def visit_in(self, node: Any) -> Expr:
        extra = [key for key, value in node.args.items() if value and key not in ("this", "expressions")]
        if extra or not node.expressions:
            raise AnalysisError("IN must be followed by a list of values in parentheses")
        # Convert literals directly, without the method lookup of `bind`: lists of ten thousand values are common.
        items = [self.visit_literal(item) if item.key == "literal" else self.bind(item) for item in node.expressions]
        return comparisons.in_list(self.bind(node.this), items)

    def visit_between(self, node: Any) -> Expr:
        if node.args.get("symmetric"):
            raise AnalysisError("BETWEEN SYMMETRIC is not supported; use BETWEEN least(a, b) AND greatest(a, b)")
        return comparisons.between(self.bind(node.this), self.bind(node.args["low"]), self.bind(node.args["high"]))

    def visit_like(self, node: Any) -> Expr:
        match = comparisons.like(*self._operands(node), ignore_case=node.key == "ilike")
        return logic.negation(match) if node.args.get("negate") else match

    visit_ilike = visit_like

    def visit_escape(self, node: Any) -> Expr:
        if node.this.key not in ("like", "ilike") or node.expression.this != "\\":
            raise AnalysisError("ESCAPE is supported only after LIKE or ILIKE, and only with a backslash")
        return self.visit_like(node.this)

    # Arithmetic

    def _arithmetic(self, node: Any) -> Expr:
        left, right = self.bind(node.this), self.bind(node.expression)
        return arithmetic(_ARITHMETIC[node.key], left, right, narrow=node is self.root)

    visit_add = visit_sub = visit_mul = visit_div = visit_mod = _arithmetic
    visit_bitwiseleftshift = visit_bitwiserightshift = _arithmetic

    def visit_neg(self, node: Any) -> Expr:
        operand = node.this
        if operand.key == "literal" and not operand.args.get("is_string"):
            return number_literal(f"-{operand.this}")  # keeps the smallest int64 an int64
        return negate(self.bind(operand))

    def visit_dpipe(self, node: Any) -> Expr:
        return concatenation(*self._operands(node))

    # Casts, fields, elements and functions

    def visit_cast(self, node: Any) -> Expr:
        if node.args.get("format") or node.args.get("default") or node.args.get("action"):
            raise AnalysisError("CAST supports only the form CAST(value AS type)")
        target = _type_of(node.args["to"])
        return checked_cast(self.bind(node.this), target, null_on_failure=node.key == "trycast")

    visit_trycast = visit_cast  # TRY_CAST and SAFE_CAST

    def visit_dot(self, node: Any) -> Expr:
        if node.expression.key != "identifier":
            raise AnalysisError(f"expected a field name after '.', got {_described(node.expression)}")
        return nested.field_access(self.bind(node.this), node.expression.this)

    def visit_bracket(self, node: Any) -> Expr:
        if len(node.expressions) != 1:
            raise AnalysisError("[] must contain one index or one field name")
        (index,) = node.expressions
        if index.key == "literal" and index.args.get("is_string"):
            return nested.field_access(self.bind(node.this), index.this)
        return nested.index_access(self.bind(node.this), self.bind(index))

    def visit_extract(self, node: Any) -> Expr:
        return functions.call("date_part", [string_literal(node.this.name), self.bind(node.expression)])

    def visit_currenttimestamp(self, node: Any) -> Expr:
        if node.this is not None:
            raise AnalysisError("current_timestamp takes no arguments")
        return functions.call("now", [])

    def visit_anonymous(self, node: Any) -> Expr:
        if not isinstance(node.this, str):
            raise AnalysisError(f"{_described(node)} is not a function")
        # Do not convert the arguments of an unknown function, so that the error reports its name.
        args = node.expressions if functions.is_function(node.this) else []
        return functions.call(node.this, [self.bind(arg) for arg in args])


def _described(node: Any) -> str:
    """Return the name of a syntax node in words, such as `bitwise and` or `interval`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).lower()


def _type_of(node: Any) -> pa.DataType:
    """Return the Arrow type for a SQL type name. Raises AnalysisError if it is not supported."""
    name = node.this.name if hasattr(node.this, "name") else str(node.this)
    parameters = [param.this.this for param in node.expressions]
    if name == "DECIMAL" and len(parameters) == 2 and all(param.isdigit() for param in parameters):
        precision, scale = int(parameters[0]), int(parameters[1])
        if 1 <= precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
        raise AnalysisError(f"decimal({precision}, {scale}) is out of range; use at most 38 digits")
    if name in ("TIMESTAMP", "DATETIME") and len(parameters) <= 1:
        unit = _TIMESTAMP_UNITS.get(parameters[0] if parameters else "6")
        if unit is not None:
            return pa.timestamp(unit)
    data_type = _CAST_TYPES.get(name)
    if data_type is None or (parameters and name != "FLOAT"):
        raise AnalysisError(f"cannot cast to {node.sql()}; supported types are {_TYPE_LIST}")
    return data_type


def _sqlglot_name(sql_name: str) -> str:
    """Return the name that sqlglot trees use for a SQL type."""
    name, _, unsigned = sql_name.upper().partition(" ")
    return "TEXT" if name == "STRING" else f"U{name}" if unsigned else name


_COMPARISONS = {"eq": "=", "neq": "!=", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_ARITHMETIC = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "mod": "%",
    "bitwiseleftshift": "<<",
    "bitwiserightshift": ">>",
}
_TIMESTAMP_UNITS = {"0": "s", "3": "ms", "6": "us", "9": "ns"}
_CAST_TYPES = {_sqlglot_name(name): data_type for data_type, name in SQL_TYPE_NAMES.items()}
_TYPE_LIST = (
    "boolean, tinyint, smallint, int, bigint (integers can be unsigned), float, double, decimal(p, s), string, "
    "binary, date, timestamp(0 | 3 | 6 | 9); arrow_cast(x, 'Type') supports the others"
)
