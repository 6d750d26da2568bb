"""String functions and regular expressions.

Functions for which Arrow has no kernel are computed in Python, once for each distinct string.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.evaluate.function_kernels import KERNELS, by_row, constants_of, regex
from lancetable.expr.evaluate.operators import EvaluationError, Values, aligned
from lancetable.expr.syntax.ast import Expr
from lancetable.expr.typing import build
from lancetable.expr.typing.signatures import Binder, as_int64, as_string, build_call, check_arity

__all__ = ["FUNCTIONS"]

_MAX_LENGTH = 1 << 24  # characters


def _binder(name: str, operands: str, target: pa.DataType | None, optional: int = 0) -> Binder:
    """Return the binder of a function.

    Parameters
    ----------
    name
        The name of the function.
    operands
        One letter per argument: `t` for a string, `n` for an integer.
    target
        The type of the result; None for the type of the first argument if it is a string, else string.
    optional
        How many of the last arguments can be omitted.
    """

    def bind(args: Sequence[Expr]) -> Expr:
        check_arity(name, args, len(operands) - optional, len(operands))
        bound = [as_string(name, arg) if kind == "t" else as_int64(name, arg) for kind, arg in zip(operands, args)]
        string_type = bound[0].data_type if operands[0] == "t" else pa.string()
        bound[1:] = [
            build.implicit_cast(arg, pa.string()) if kind == "t" else arg for kind, arg in zip(operands[1:], bound[1:])
        ]
        return build_call(name, bound, string_type if target is None else target)

    return bind


def _concat_ws(args: Sequence[Expr]) -> Expr:
    check_arity("concat_ws", args, 2, 1 << 30)
    parts = [build.implicit_cast(build.as_string(arg), pa.string()) for arg in args]
    return build_call("concat_ws", parts, pa.string())


def _string_size(name: str) -> Binder:
    def bind(args: Sequence[Expr]) -> Expr:
        check_arity(name, args, 1)
        value = as_string(name, args[0])
        return build_call(name, [value], pa.int64() if value.data_type == pa.large_string() else pa.int32())

    return bind


# --- kernels ---------------------------------------------------------------------------------------------------------

Kernel = Callable[[list[Values], pa.DataType], Values]


def _distinct(function: Callable[..., Any]) -> Kernel:
    """Return a kernel that calls `function` once per distinct first argument if the others are constant."""

    def compute(args: list[Values], target: pa.DataType) -> Values:
        constants = constants_of(args)
        if constants is None or isinstance(args[0], pa.Scalar):
            return by_row(args, target, function)
        (array,) = aligned(args[0])
        encoded = array.dictionary_encode()
        results = [function(value, *constants) for value in encoded.dictionary.to_pylist()]
        return pa.array(results, target).take(encoded.indices)

    return compute


def _limited(text: str) -> str:
    if len(text) > _MAX_LENGTH:
        raise EvaluationError(f"a string of {len(text)} characters exceeds the limit of {_MAX_LENGTH}")
    return text


def _pad(text: str, length: int, fill: str, *, left: bool) -> str:
    if length <= len(text):
        return text[: max(length, 0)]
    if length > _MAX_LENGTH:
        raise EvaluationError(f"a string of {length} characters exceeds the limit of {_MAX_LENGTH}")
    if not fill:
        return text
    missing = length - len(text)
    padding = (fill * (missing // len(fill) + 1))[:missing]
    return padding + text if left else text + padding


def _initcap(text: str) -> str:
    result, in_word = [], False
    for char in text:
        result.append(char.lower() if in_word else char.upper())
        in_word = char.isalnum()
    return "".join(result)


def _split_part(text: str, separator: str, position: int) -> str:
    if position == 0:
        raise EvaluationError("split_part() expects a position other than 0; use 1 for the first part, -1 for the last")
    parts = text.split(separator) if separator else [text]
    index = position - 1 if position > 0 else len(parts) + position
    return parts[index] if 0 <= index < len(parts) else ""


def _substring_index(text: str, separator: str, count: int) -> str:
    if not separator or count == 0:
        return ""
    parts = text.split(separator)
    return separator.join(parts[:count] if count > 0 else parts[count:])


def _translate(text: str, old: str, new: str) -> str:
    table: dict[int, str | None] = {}
    for at, char in enumerate(old):
        table.setdefault(ord(char), new[at] if at < len(new) else None)
    return text.translate(table)


def _levenshtein(one: str, other: str) -> int:
    before = list(range(len(other) + 1))
    for at, char in enumerate(one, 1):
        row = [at]
        for column, other_char in enumerate(other, 1):
            row.append(min(before[column] + 1, row[-1] + 1, before[column - 1] + (char != other_char)))
        before = row
    return before[-1]


def _chr(code: int) -> str:
    if not 0 <= code < 0x110000 or 0xD800 <= code < 0xE000:
        raise EvaluationError(f"chr({code}) is not a Unicode character")
    return chr(code)


def _find_in_set(text: str, members: str) -> int:
    parts = members.split(",")
    return parts.index(text) + 1 if text in parts else 0


def _hashed(name: str) -> Kernel:
    return _distinct(lambda text: hashlib.new(name, text.encode(), usedforsecurity=False).hexdigest())


def _concat_with_separator(args: list[Values], target: pa.DataType) -> Values:
    separator, *parts = aligned(*args)
    joined = parts[0]
    for part in parts[1:]:
        both = pc.binary_join_element_wise(joined, part, separator)
        joined = pc.if_else(pc.is_null(joined), part, pc.if_else(pc.is_null(part), joined, both))
    return pc.if_else(pc.is_null(separator), pa.scalar(None, target), pc.fill_null(joined, ""))


def _count_matches(args: list[Values], target: pa.DataType) -> Values:
    constants = constants_of(args)
    if constants is None:
        raise EvaluationError("regexp_count() expects a constant pattern")
    counts = pc.count_substring_regex(args[0], regex("regexp_count", constants[0]))
    # As in pylance, the count for a null string is 0.
    return pc.cast(pc.fill_null(counts, 0), target)


def _position_of_match(args: list[Values], target: pa.DataType) -> Values:
    """Return the position of the first match, in characters from 1; 0 if there is none."""
    constants = constants_of(args)
    if constants is None:
        raise EvaluationError("regexp_instr() expects a constant pattern")
    (strings,) = aligned(args[0])
    encoded = strings.dictionary_encode()
    byte_offsets = pc.find_substring_regex(encoded.dictionary, regex("regexp_instr", constants[0])).to_pylist()
    positions = [
        0 if offset < 0 else len(string.encode()[:offset].decode()) + 1
        for offset, string in zip(byte_offsets, encoded.dictionary.to_pylist())
    ]
    return pa.array(positions, target).take(encoded.indices)


def _groups_of_match(args: list[Values], target: pa.DataType) -> Values:
    """Return the groups of the first match, or all of it if the pattern has no groups; null if there is no match."""
    constants = constants_of(args)
    if constants is None:
        raise EvaluationError("regexp_match() expects a constant pattern and flags")
    (strings,) = aligned(args[0])
    groups = pc.extract_regex(pc.cast(strings, pa.string()), _with_named_groups(regex("regexp_match", *constants)))
    parts = [pc.struct_field(groups, at) for at in range(groups.type.num_fields)]
    count, rows = len(parts), len(strings)
    order = pa.array(np.arange(rows * count).reshape(count, rows).T.reshape(-1))
    ends = pa.array(np.arange(0, (rows + 1) * count, count, dtype=np.int32))
    return pa.ListArray.from_arrays(ends, pa.concat_arrays(parts).take(order), mask=groups.is_null())


def _with_named_groups(pattern: str) -> str:
    """Name all capturing groups g0, g1, ...; enclose a pattern without groups in one."""
    result, at, count, in_set = [], 0, 0, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            result.append(pattern[at : at + 2])
            at += 2
            continue
        in_set = char == "[" or (in_set and char != "]")
        named = re.compile(r"\(\?P?<\w+>").match(pattern, at)
        if in_set or char != "(" or (pattern[at + 1 : at + 2] == "?" and not named):
            result.append(char)
            at += 1
            continue
        result.append(f"(?P<g{count}>")
        count += 1
        at = named.end() if named else at + 1
    return "".join(result) if count else f"(?P<g0>{pattern})"


def _replaced(args: list[Values], target: pa.DataType) -> Values:
    constants = constants_of(args)
    if constants is None:
        raise EvaluationError("regexp_replace() expects a constant pattern, replacement and flags")
    pattern, replacement, flags = (*constants, "")[:3]
    replace_all = "g" in flags
    # Rust's regex crate refers to groups as $1 and ${1}, RE2 as \1.
    replacement = re.sub(r"\$\{?(\d)\}?", r"\\\1", replacement)
    return pc.replace_substring_regex(
        args[0],
        pattern=regex("regexp_replace", pattern, flags.replace("g", "")),
        replacement=replacement,
        max_replacements=None if replace_all else 1,
    )


_KERNELS: dict[str, tuple[str, pa.DataType | None, int, Kernel]] = {
    "ascii": ("t", pa.int32(), 0, _distinct(lambda text: ord(text[0]) if text else 0)),
    "ltrim": ("t", None, 0, lambda args, target: pc.utf8_ltrim(args[0], " ")),
    "rtrim": ("t", None, 0, lambda args, target: pc.utf8_rtrim(args[0], " ")),
    "reverse": ("t", None, 0, lambda args, target: pc.utf8_reverse(args[0])),
    "initcap": ("t", None, 0, _distinct(_initcap)),
    "lpad": ("tnt", None, 1, _distinct(lambda text, length, fill=" ": _pad(text, length, fill, left=True))),
    "rpad": ("tnt", None, 1, _distinct(lambda text, length, fill=" ": _pad(text, length, fill, left=False))),
    "repeat": (
        "tn",
        None,
        0,
        _distinct(lambda text, count: text * max(min(count, _MAX_LENGTH), 0) and _limited(text * max(count, 0))),
    ),
    "strpos": ("tt", pa.int32(), 0, _distinct(lambda text, part: text.find(part) + 1)),
    "find_in_set": ("tt", pa.int32(), 0, _distinct(_find_in_set)),
    "split_part": ("ttn", None, 0, _distinct(_split_part)),
    "substring_index": ("ttn", None, 0, _distinct(_substring_index)),
    "translate": ("ttt", None, 0, _distinct(_translate)),
    "levenshtein": ("tt", pa.int32(), 0, _distinct(_levenshtein)),
    "chr": ("n", None, 0, _distinct(_chr)),
    "to_hex": ("n", None, 0, _distinct(lambda number: f"{number & (1 << 64) - 1:x}")),
    "md5": ("t", pa.string(), 0, _hashed("md5")),
    "regexp_count": ("tt", pa.int64(), 0, _count_matches),
    "regexp_instr": ("tt", pa.int64(), 0, _position_of_match),
    "regexp_match": ("ttt", pa.list_(pa.string()), 1, _groups_of_match),
    "regexp_replace": ("tttt", None, 1, _replaced),
}
KERNELS.update({name: kernel for name, (_, _, _, kernel) in _KERNELS.items()})
KERNELS["concat_ws"] = _concat_with_separator
KERNELS["octet_length"] = lambda args, target: pc.binary_length(args[0])
KERNELS["bit_length"] = lambda args, target: pc.multiply(pc.binary_length(args[0]), pa.scalar(8, target))
FUNCTIONS: dict[str, Binder] = {
    **{name: _binder(name, operands, target, optional) for name, (operands, target, optional, _) in _KERNELS.items()},
    "concat_ws": _concat_ws,
    "octet_length": _string_size("octet_length"),
    "bit_length": _string_size("bit_length"),
}
FUNCTIONS["instr"] = FUNCTIONS["strpos"]
