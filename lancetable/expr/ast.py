"""The nodes of an expression: frozen, typed, printable as SQL.

Nodes are made by the functions of `build.py`, which know the typing rules; by then every comparison has two operands
of one kind and every literal the type it is compared in. What a node means for nulls, NaN and zeros is stated in
`kernels.py`, which computes it.
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

# Words that read as something else than a name when they stand bare.
_RESERVED_WORDS = """
and or not is null true false in between like ilike escape distinct from as array case when then else end select union
interval current_timestamp
"""
RESERVED = frozenset(_RESERVED_WORDS.split())
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def quote_name(name: str) -> str:
    """The name as SQL text: bare where it reads back as itself, else between backticks."""
    return name if _PLAIN_NAME.match(name) and name.lower() not in RESERVED else f"`{name}`"


class Expr:
    """A typed expression. `data_type` is the Arrow type of its value; `str()` is SQL text."""

    __slots__ = ()

    if TYPE_CHECKING:  # at run time an inherited property would become the default of the field of that name

        @property
        def data_type(self) -> pa.DataType: ...

    @property
    def children(self) -> tuple[Expr, ...]:
        """The operands, in the order they are printed."""
        return ()

    def walk(self) -> Iterator[Expr]:
        """This node and all below it, parents first."""
        pending: list[Expr] = [self]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(reversed(node.children))


class Predicate(Expr):
    """An expression whose value is a boolean."""

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
        """The dotted path under which the column is read; a name that holds a dot stands in backticks."""
        return ".".join(f"`{part}`" if "." in part else part for part in self.path)

    def __str__(self) -> str:
        return ".".join(quote_name(part) for part in self.path)


@dataclass(frozen=True, slots=True)
class Literal(Expr):
    """A constant. `typed` says that the text gave it a type (a cast, `date '...'`), so it is not re-typed freely."""

    value: pa.Scalar[Any]
    typed: bool = False

    @property
    def data_type(self) -> pa.DataType:
        return self.value.type

    def __str__(self) -> str:
        return literal_text(self.value)


@dataclass(frozen=True, slots=True)
class Compare(Predicate):
    """`op` is one of = != < <= > >=; both operands have one type, except for precision, unit or offset width."""

    op: str
    left: Expr
    right: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.left, self.right)

    def __str__(self) -> str:
        return f"{_operand(self.left)} {self.op} {_operand(self.right)}"


@dataclass(frozen=True, slots=True)
class And(Predicate):
    """Kleene conjunction of two or more operands, none of them an And."""

    args: tuple[Expr, ...]

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args

    def __str__(self) -> str:
        return " AND ".join(f"({arg})" if isinstance(arg, Or) else str(arg) for arg in self.args)


@dataclass(frozen=True, slots=True)
class Or(Predicate):
    """Kleene disjunction of two or more operands, none of them an Or."""

    args: tuple[Expr, ...]

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args

    def __str__(self) -> str:
        return " OR ".join(str(arg) for arg in self.args)


@dataclass(frozen=True, slots=True)
class Not(Predicate):
    """Null stays null."""

    arg: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)

    def __str__(self) -> str:
        return f"NOT ({self.arg})"


@dataclass(frozen=True, slots=True)
class Known(Predicate):
    """`value` where `arg` is not null, else null: a comparison whose answer does not depend on the value."""

    arg: Expr
    value: bool

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)

    def __str__(self) -> str:
        arg = _operand(self.arg)
        return f"({arg} IS NOT NULL OR NULL)" if self.value else f"({arg} IS NULL AND NULL)"


@dataclass(frozen=True, slots=True)
class IsNull(Predicate):
    """Never null itself."""

    arg: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)

    def __str__(self) -> str:
        return f"{_operand(self.arg)} IS NULL"


@dataclass(frozen=True, slots=True)
class IsTruth(Predicate):
    """`arg IS TRUE` or `arg IS FALSE`; false for null."""

    arg: Expr
    value: bool

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)

    def __str__(self) -> str:
        return f"{_operand(self.arg)} IS {'TRUE' if self.value else 'FALSE'}"


@dataclass(frozen=True, slots=True)
class IsDistinct(Predicate):
    """Inequality that treats two nulls as equal and is never null. Operands as in `Compare`."""

    left: Expr
    right: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.left, self.right)

    def __str__(self) -> str:
        return f"{_operand(self.left)} IS DISTINCT FROM {_operand(self.right)}"


@dataclass(frozen=True, slots=True)
class InList(Predicate):
    """Membership in a set of constants.

    `values` holds no null and has the type of `arg`. Null where `arg` is null and, if `has_null`, where nothing is hit.
    """

    arg: Expr
    values: pa.Array[Any] = field(hash=False)
    has_null: bool = False

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)

    def __str__(self) -> str:
        texts = [literal_text(value) for value in self.values]
        if self.has_null:
            texts.append("NULL")
        return f"{_operand(self.arg)} IN ({', '.join(texts)})"


@dataclass(frozen=True, slots=True)
class Like(Predicate):
    """`%` any text, `_` one character, backslash escapes. Both operands are strings."""

    arg: Expr
    pattern: Expr
    ignore_case: bool = False

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg, self.pattern)

    def __str__(self) -> str:
        return f"{_operand(self.arg)} {'ILIKE' if self.ignore_case else 'LIKE'} {_operand(self.pattern)}"


@dataclass(frozen=True, slots=True)
class Arithmetic(Expr):
    """`op` is one of + - * / % << >>; the operands are of the types that `build.arithmetic` chose for `data_type`."""

    op: str
    left: Expr
    right: Expr
    data_type: pa.DataType

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.left, self.right)

    def __str__(self) -> str:
        return f"{_operand(self.left)} {self.op} {_operand(self.right)}"


@dataclass(frozen=True, slots=True)
class Negate(Expr):
    """Unary minus; integers wrap."""

    arg: Expr

    @property
    def data_type(self) -> pa.DataType:
        return self.arg.data_type

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)

    def __str__(self) -> str:
        return f"- {_operand(self.arg)}"


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """Conversion to `data_type`. `implied` ones were put in by the typing rules and are not printed."""

    arg: Expr
    data_type: pa.DataType
    null_on_failure: bool = False
    implied: bool = False

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)

    def __str__(self) -> str:
        if self.implied:
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
    """A function of `functions.py`, with its operands already brought to the types it wants."""

    function: str
    args: tuple[Expr, ...]
    data_type: pa.DataType

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args

    def __str__(self) -> str:
        if self.function == "||":
            return " || ".join(_operand(arg) for arg in self.args)
        return f"{self.function}({', '.join(str(arg) for arg in self.args)})"


@dataclass(frozen=True, slots=True)
class Case(Expr):
    """The value of the first branch whose condition is true, else `default`. All values have `data_type`.

    Every branch is evaluated on every row first: a branch that would fail on a row it is not meant for still fails.
    """

    conditions: tuple[Expr, ...]
    values: tuple[Expr, ...]
    default: Expr
    data_type: pa.DataType

    @property
    def children(self) -> tuple[Expr, ...]:
        return (*self.conditions, *self.values, self.default)

    def __str__(self) -> str:
        arms = " ".join(f"WHEN {when} THEN {then}" for when, then in zip(self.conditions, self.values, strict=True))
        return f"CASE {arms} ELSE {self.default} END"


@dataclass(frozen=True, slots=True)
class FieldAccess(Expr):
    """A field of a struct value that is not a plain column path; null where the struct is null."""

    arg: Expr
    name: str
    data_type: pa.DataType

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)

    def __str__(self) -> str:
        return f"{_operand(self.arg)}['{self.name}']"


@dataclass(frozen=True, slots=True)
class IndexAccess(Expr):
    """Element of a list: 1-based, negative from the end; null outside."""

    arg: Expr
    index: Expr
    data_type: pa.DataType

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg, self.index)

    def __str__(self) -> str:
        return f"{_operand(self.arg)}[{self.index}]"


@dataclass(frozen=True, slots=True)
class OpaqueArrow(Expr):
    """A pyarrow Expression that has no form of ours: evaluated by Arrow, with Arrow's semantics, over `columns`."""

    expression: pc.Expression = field(hash=False, compare=False)
    columns: tuple[Column, ...]
    data_type: pa.DataType
    text: str

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.columns

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

_ATOMS = (Column, Literal, Call, Case, FieldAccess, IndexAccess, Known)


def _operand(expr: Expr) -> str:
    if isinstance(expr, Cast):
        return _operand(expr.arg) if expr.implied else str(expr)
    if isinstance(expr, Call) and expr.function == "||":
        return f"({expr})"
    return str(expr) if isinstance(expr, _ATOMS) else f"({expr})"


def literal_text(value: pa.Scalar[Any]) -> str:
    """A constant as SQL text."""
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
        return "[" + ", ".join(literal_text(item) for item in value.values) + "]" if len(value) else "[]"
    return f"arrow_cast('{value}', '{kind}')"
