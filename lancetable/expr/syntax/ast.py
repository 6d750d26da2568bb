"""Nodes of expressions: frozen, typed and printable as SQL.

The modules of `expr/typing` create the nodes and apply the typing rules: both operands of a comparison have types of
the same family, and each literal has the type in which it is compared. `evaluate/operators.py` defines the results for
nulls, NaN and zeros.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

BOOLEAN = pa.bool_()

# A column whose name is one of these keywords must be quoted.
_RESERVED_WORDS = """
and or not is null true false in between like ilike escape distinct from as array case when then else end select union
interval current_timestamp
"""
RESERVED = frozenset(_RESERVED_WORDS.split())
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def quote_name(name: str) -> str:
    """Return a name as SQL, in backticks if it would not parse as the same name without them."""
    return name if _PLAIN_NAME.match(name) and name.lower() not in RESERVED else f"`{name}`"


class Expr:
    """A typed expression. `data_type` is the Arrow type of its value; `str()` returns SQL."""

    __slots__: tuple[str, ...] = ()

    if TYPE_CHECKING:  # at run time, the property would become the default of the field `data_type` of subclasses

        @property
        def data_type(self) -> pa.DataType: ...

    @property
    def children(self) -> tuple[Expr, ...]:
        """The operands: the expressions among the fields, in the order of the fields."""
        operands: list[Expr] = []
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, Expr):
                operands.append(value)
            elif isinstance(value, tuple):
                operands.extend(item for item in value if isinstance(item, Expr))
        return tuple(operands)

    def walk(self) -> Iterator[Expr]:
        """Iterate over this node and its descendants, parents first."""
        pending: list[Expr] = [self]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(reversed(node.children))


class Predicate(Expr):
    """An expression with a boolean value."""

    __slots__ = ()

    @property
    def data_type(self) -> pa.DataType:
        return BOOLEAN


@dataclass(frozen=True, slots=True)
class Column(Expr):
    """A stored column, a field of a struct column (`path` of more than one name), or a virtual column."""

    path: tuple[str, ...]
    data_type: pa.DataType
    virtual: bool = False

    @property
    def name(self) -> str:
        """The dotted path of the column. A name that contains a dot is quoted with backticks."""
        return ".".join(f"`{part}`" if "." in part else part for part in self.path)

    def __str__(self) -> str:
        return ".".join(quote_name(part) for part in self.path)


@dataclass(frozen=True, slots=True)
class Literal(Expr):
    """A constant. If `typed`, the SQL string specified its type (a cast or `date '...'`), which coercion preserves."""

    value: pa.Scalar[Any]
    typed: bool = False

    @property
    def data_type(self) -> pa.DataType:
        return self.value.type

    def __str__(self) -> str:
        return format_literal(self.value)


@dataclass(frozen=True, slots=True)
class Compare(Predicate):
    """A comparison: `op` is one of = != < <= > >=.

    The types of the operands are equal, except for precision, unit or offset width.
    """

    op: str
    left: Expr
    right: Expr

    def __str__(self) -> str:
        return f"{_operand(self.left)} {self.op} {_operand(self.right)}"


@dataclass(frozen=True, slots=True)
class And(Predicate):
    """The conjunction of two or more operands in three-valued logic. None of the operands is an And."""

    args: tuple[Expr, ...]

    def __str__(self) -> str:
        return " AND ".join(f"({arg})" if isinstance(arg, Or) else str(arg) for arg in self.args)


@dataclass(frozen=True, slots=True)
class Or(Predicate):
    """The disjunction of two or more operands in three-valued logic. None of the operands is an Or."""

    args: tuple[Expr, ...]

    def __str__(self) -> str:
        return " OR ".join(str(arg) for arg in self.args)


@dataclass(frozen=True, slots=True)
class Not(Predicate):
    """The negation of `arg`; null for null."""

    arg: Expr

    def __str__(self) -> str:
        return f"NOT ({self.arg})"


@dataclass(frozen=True, slots=True)
class ConstantIfNotNull(Predicate):
    """The constant `value` where `arg` is not null, and null elsewhere.

    It replaces a comparison whose result is the same for all values, such as `int8_column < 300`.
    """

    arg: Expr
    value: bool

    def __str__(self) -> str:
        arg = _operand(self.arg)
        return f"({arg} IS NOT NULL OR NULL)" if self.value else f"({arg} IS NULL AND NULL)"


@dataclass(frozen=True, slots=True)
class IsNull(Predicate):
    """True where `arg` is null, else false; never null."""

    arg: Expr

    def __str__(self) -> str:
        return f"{_operand(self.arg)} IS NULL"


@dataclass(frozen=True, slots=True)
class IsTrueOrFalse(Predicate):
    """`arg IS TRUE` or `arg IS FALSE`; false for null."""

    arg: Expr
    value: bool

    def __str__(self) -> str:
        return f"{_operand(self.arg)} IS {'TRUE' if self.value else 'FALSE'}"


@dataclass(frozen=True, slots=True)
class IsDistinct(Predicate):
    """Inequality that treats two nulls as equal and is never null. The operands have types as in `Compare`."""

    left: Expr
    right: Expr

    def __str__(self) -> str:
        return f"{_operand(self.left)} IS DISTINCT FROM {_operand(self.right)}"


@dataclass(frozen=True, slots=True)
class InList(Predicate):
    """Membership in a set of constants.

    `values` contains no nulls and has the type of `arg`. The result is null where `arg` is null. If `has_null`, it is
    also null where `arg` is not in `values`.
    """

    arg: Expr
    values: pa.Array[Any] = field(hash=False)
    has_null: bool = False

    def __str__(self) -> str:
        literals = [format_literal(value) for value in self.values]
        if self.has_null:
            literals.append("NULL")
        return f"{_operand(self.arg)} IN ({', '.join(literals)})"


@dataclass(frozen=True, slots=True)
class Like(Predicate):
    """A pattern match: `%` matches any string, `_` one character; a backslash escapes. Both operands are strings."""

    arg: Expr
    pattern: Expr
    ignore_case: bool = False

    def __str__(self) -> str:
        return f"{_operand(self.arg)} {'ILIKE' if self.ignore_case else 'LIKE'} {_operand(self.pattern)}"


@dataclass(frozen=True, slots=True)
class Arithmetic(Expr):
    """An arithmetic operation: `op` is one of + - * / % << >>. `typing/arithmetic.py` chooses the types."""

    op: str
    left: Expr
    right: Expr
    data_type: pa.DataType

    def __str__(self) -> str:
        return f"{_operand(self.left)} {self.op} {_operand(self.right)}"


@dataclass(frozen=True, slots=True)
class Negate(Expr):
    """Unary minus; integers wrap around."""

    arg: Expr

    @property
    def data_type(self) -> pa.DataType:
        return self.arg.data_type

    def __str__(self) -> str:
        return f"- {_operand(self.arg)}"


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """A conversion to `data_type`. `implicit` casts are added by the typing rules and are not printed."""

    arg: Expr
    data_type: pa.DataType
    null_on_failure: bool = False
    implicit: bool = False

    def __str__(self) -> str:
        if self.implicit:
            return str(self.arg)
        word = "TRY_CAST" if self.null_on_failure else "CAST"
        name = SQL_TYPE_NAMES.get(self.data_type)
        if name is None and pa.types.is_decimal128(self.data_type):
            name = f"decimal({self.data_type.precision}, {self.data_type.scale})"
        if name is not None:
            return f"{word}({self.arg} AS {name})"
        return f"arrow_cast({self.arg}, '{self.data_type}')"


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A call of a SQL function. The arguments already have the types that the function expects."""

    function: str
    args: tuple[Expr, ...]
    data_type: pa.DataType

    def __str__(self) -> str:
        if self.function == "||":
            return " || ".join(_operand(arg) for arg in self.args)
        return f"{self.function}({', '.join(str(arg) for arg in self.args)})"


@dataclass(frozen=True, slots=True)
class Case(Expr):
    """The value of the first branch with a true condition, else `default`. All values have the type `data_type`.

    Each branch is evaluated on all rows. A value that makes a branch fail therefore raises an error, even if the
    condition of the branch excludes its row.
    """

    conditions: tuple[Expr, ...]
    values: tuple[Expr, ...]
    default: Expr
    data_type: pa.DataType

    def __str__(self) -> str:
        branches = " ".join(f"WHEN {when} THEN {then}" for when, then in zip(self.conditions, self.values, strict=True))
        return f"CASE {branches} ELSE {self.default} END"


@dataclass(frozen=True, slots=True)
class FieldAccess(Expr):
    """A field of a computed struct; null where the struct is null. Fields of stored columns are `Column` paths."""

    arg: Expr
    name: str
    data_type: pa.DataType

    def __str__(self) -> str:
        return f"{_operand(self.arg)}['{self.name}']"


@dataclass(frozen=True, slots=True)
class IndexAccess(Expr):
    """An element of a list; null if out of bounds. Indexes start at 1; negative indexes count from the end."""

    arg: Expr
    index: Expr
    data_type: pa.DataType

    def __str__(self) -> str:
        return f"{_operand(self.arg)}[{self.index}]"


@dataclass(frozen=True, slots=True)
class OpaqueArrow(Expr):
    """A pyarrow Expression without an equivalent node, evaluated by Arrow over `columns` with Arrow's semantics."""

    expression: pc.Expression = field(hash=False, compare=False)
    columns: tuple[Column, ...]
    data_type: pa.DataType
    text: str

    def __str__(self) -> str:
        return self.text


SQL_TYPE_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.uint8(): "tinyint unsigned",
    pa.uint16(): "smallint unsigned",
    pa.uint32(): "int unsigned",
    pa.uint64(): "bigint unsigned",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("s"): "timestamp(0)",
    pa.timestamp("ms"): "timestamp(3)",
    pa.timestamp("us"): "timestamp(6)",
    pa.timestamp("ns"): "timestamp(9)",
}

_ATOMS = (Column, Literal, Call, Case, FieldAccess, IndexAccess, ConstantIfNotNull)


def _operand(expr: Expr) -> str:
    """Return an operand as SQL, in parentheses unless it has the highest precedence."""
    if isinstance(expr, Cast):
        return _operand(expr.arg) if expr.implicit else str(expr)
    if isinstance(expr, Call) and expr.function == "||":
        return f"({expr})"
    return str(expr) if isinstance(expr, _ATOMS) else f"({expr})"


def format_literal(value: pa.Scalar[Any]) -> str:
    """Return a constant as SQL."""
    if not value.is_valid:
        return "NULL"
    kind = value.type
    if pa.types.is_boolean(kind):
        return "true" if value.as_py() else "false"
    if pa.types.is_integer(kind):
        return str(value.as_py())
    if pa.types.is_floating(kind):
        number = float(value.as_py())
        return repr(number) if abs(number) < float("inf") else f"CAST('{number}' AS double)"
    if pa.types.is_decimal(kind):
        plain = format(decimal.Decimal(value.as_py()), "f")
        return f"CAST('{plain}' AS decimal({kind.precision}, {kind.scale}))"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        quoted = str(value.as_py()).replace("'", "''")
        return f"'{quoted}'"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return f"x'{value.as_py().hex()}'"
    if pa.types.is_date(kind):
        return f"date '{value.as_py().isoformat()}'"
    if pa.types.is_timestamp(kind):
        naive = value.cast(pa.timestamp(kind.unit))
        digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.unit]
        text = str(pc.strftime(naive, "%Y-%m-%d %H:%M:%S").as_py())
        return f"timestamp({digits}) '{text}{'Z' if kind.tz else ''}'"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return "[" + ", ".join(format_literal(item) for item in value.values) + "]" if len(value) else "[]"
    return f"arrow_cast('{value}', '{kind}')"
