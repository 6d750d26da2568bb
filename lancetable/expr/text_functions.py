"""Functions of texts, and regular expressions.

What Arrow has no kernel for is computed once for each distinct text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr import build
from lancetable.expr.ast import Expr
from lancetable.expr.function_kernels import KERNELS, by_row, constants_of, regex
from lancetable.expr.kernels import EvaluationError, Values, aligned
from lancetable.expr.operands import Binder, arity, as_count, as_text, make

__all__ = ["FUNCTIONS"]

_MAX_TEXT = 1 << 24


def _binder(name: str, operands: str, target: pa.DataType | None, optional: int = 0) -> Binder:
    """`operands`: t for each text, n for each integer; the last `optional` may be left out. No target: as the text."""

    def bind(args: Sequence[Expr]) -> Expr:
        arity(name, args, len(operands) - optional, len(operands))
        bound = [as_text(name, arg) if kind == "t" else as_count(name, arg) for kind, arg in zip(operands, args)]
        of_text = bound[0].data_type if operands[0] == "t" else pa.string()
        bound[1:] = [
            build.implied_cast(arg, pa.string()) if kind == "t" else arg for kind, arg in zip(operands[1:], bound[1:])
        ]
        return make(name, bound, of_text if target is None else target)

    return bind


def _concat_ws(args: Sequence[Expr]) -> Expr:
    arity("concat_ws", args, 2, 1 << 30)
    parts = [build.implied_cast(build.as_text(arg), pa.string()) for arg in args]
    return make("concat_ws", parts, pa.string())


def _text_size(name: str) -> Binder:
    def bind(args: Sequence[Expr]) -> Expr:
        arity(name, args, 1)
        value = as_text(name, args[0])
        return make(name, [value], pa.int64() if value.data_type == pa.large_string() else pa.int32())

    return bind


# --- what they compute -----------------------------------------------------------------------------------------------

Kernel = Callable[[list[Values], pa.DataType], Values]


def _distinct(function: Callable[..., Any]) -> Kernel:
    """`function` on each distinct first operand where the others are constants, else row by row."""

    def compute(args: list[Values], target: pa.DataType) -> Values:
        constants = constants_of(args)
        if constants is None or isinstance(args[0], pa.Scalar):
            return by_row(args, target, function)
        (array,) = aligned(args[0])
        encoded = array.dictionary_encode()
        answers = [function(value, *constants) for value in encoded.dictionary.to_pylist()]
        return pa.array(answers, target).take(encoded.indices)

    return compute


def _limited(text: str) -> str:
    if len(text) > _MAX_TEXT:
        raise EvaluationError(f"a text of {len(text)} characters is too long")
    return text


def _pad(text: str, length: int, fill: str, *, left: bool) -> str:
    if length <= len(text):
        return text[: max(length, 0)]
    if length > _MAX_TEXT:
        raise EvaluationError(f"a text of {length} characters is too long")
    if not fill:
        return text
    missing = length - len(text)
    padding = (fill * (missing // len(fill) + 1))[:missing]
    return padding + text if left else text + padding


def _initcap(text: str) -> str:
    out, inside = [], False
    for char in text:
        out.append(char.lower() if inside else char.upper())
        inside = char.isalnum()
    return "".join(out)


def _split_part(text: str, separator: str, place: int) -> str:
    if place == 0:
        raise EvaluationError("split_part() counts from 1, or from -1 at the end")
    parts = text.split(separator) if separator else [text]
    at = place - 1 if place > 0 else len(parts) + place
    return parts[at] if 0 <= at < len(parts) else ""


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
        for place, wanted in enumerate(other, 1):
            row.append(min(before[place] + 1, row[-1] + 1, before[place - 1] + (char != wanted)))
        before = row
    return before[-1]


def _chr(code: int) -> str:
    if not 0 <= code < 0x110000 or 0xD800 <= code < 0xE000:
        raise EvaluationError(f"no character has the number {code}")
    return chr(code)


def _find_in_set(text: str, members: str) -> int:
    parts = members.split(",")
    return parts.index(text) + 1 if text in parts else 0


def _hashed(name: str) -> Kernel:
    return _distinct(lambda text: hashlib.new(name, text.encode(), usedforsecurity=False).hexdigest())


def _joined(args: list[Values], target: pa.DataType) -> Values:
    separator, *parts = aligned(*args)
    joined = parts[0]
    for part in parts[1:]:
        both = pc.binary_join_element_wise(joined, part, separator)
        joined = pc.if_else(pc.is_null(joined), part, pc.if_else(pc.is_null(part), joined, both))
    return pc.if_else(pc.is_null(separator), pa.scalar(None, target), pc.fill_null(joined, ""))


def _count_matches(args: list[Values], target: pa.DataType) -> Values:
    constants = constants_of(args)
    if constants is None:
        raise EvaluationError("regexp_count() wants a constant pattern")
    counts = pc.count_substring_regex(args[0], regex("regexp_count", constants[0]))
    # In no text there is no match.
    return pc.cast(pc.fill_null(counts, 0), target)


def _place_of_match(args: list[Values], target: pa.DataType) -> Values:
    """Characters before the first match, and one; 0 without a match."""
    constants = constants_of(args)
    if constants is None:
        raise EvaluationError("regexp_instr() wants a constant pattern")
    (texts,) = aligned(args[0])
    encoded = texts.dictionary_encode()
    places = pc.find_substring_regex(encoded.dictionary, regex("regexp_instr", constants[0])).to_pylist()
    found = [
        0 if place < 0 else len(text.encode()[:place].decode()) + 1
        for place, text in zip(places, encoded.dictionary.to_pylist())
    ]
    return pa.array(found, target).take(encoded.indices)


def _groups_of_match(args: list[Values], target: pa.DataType) -> Values:
    """The groups of the first match, all of it where the pattern has none; null without a match."""
    constants = constants_of(args)
    if constants is None:
        raise EvaluationError("regexp_match() wants a constant pattern")
    (texts,) = aligned(args[0])
    groups = pc.extract_regex(pc.cast(texts, pa.string()), _with_named_groups(regex("regexp_match", *constants)))
    parts = [pc.struct_field(groups, at) for at in range(groups.type.num_fields)]
    count, rows = len(parts), len(texts)
    order = pa.array(np.arange(rows * count).reshape(count, rows).T.reshape(-1))
    ends = pa.array(np.arange(0, (rows + 1) * count, count, dtype=np.int32))
    return pa.ListArray.from_arrays(ends, pa.concat_arrays(parts).take(order), mask=groups.is_null())


def _with_named_groups(pattern: str) -> str:
    """Every group that is kept gets a name of ours; a pattern without groups becomes one."""
    out, at, count, in_set = [], 0, 0, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            out.append(pattern[at : at + 2])
            at += 2
            continue
        in_set = char == "[" or (in_set and char != "]")
        named = re.compile(r"\(\?P?<\w+>").match(pattern, at)
        if in_set or char != "(" or (pattern[at + 1 : at + 2] == "?" and not named):
            out.append(char)
            at += 1
            continue
        out.append(f"(?P<g{count}>")
        count += 1
        at = named.end() if named else at + 1
    return "".join(out) if count else f"(?P<g0>{pattern})"


def _replaced(args: list[Values], target: pa.DataType) -> Values:
    constants = constants_of(args)
    if constants is None:
        raise EvaluationError("regexp_replace() wants a constant pattern, replacement and flags")
    pattern, replacement, flags = (*constants, "")[:3]
    everywhere = "g" in flags
    # $1 and ${1} name groups there, \1 here.
    replacement = re.sub(r"\$\{?(\d)\}?", r"\\\1", replacement)
    return pc.replace_substring_regex(
        args[0],
        pattern=regex("regexp_replace", pattern, flags.replace("g", "")),
        replacement=replacement,
        max_replacements=None if everywhere else 1,
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
        _distinct(lambda text, count: text * max(min(count, _MAX_TEXT), 0) and _limited(text * max(count, 0))),
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
    "regexp_instr": ("tt", pa.int64(), 0, _place_of_match),
    "regexp_match": ("ttt", pa.list_(pa.string()), 1, _groups_of_match),
    "regexp_replace": ("tttt", None, 1, _replaced),
}
KERNELS.update({name: kernel for name, (_, _, _, kernel) in _KERNELS.items()})
KERNELS["concat_ws"] = _joined
KERNELS["octet_length"] = lambda args, target: pc.binary_length(args[0])
KERNELS["bit_length"] = lambda args, target: pc.multiply(pc.binary_length(args[0]), pa.scalar(8, target))
FUNCTIONS: dict[str, Binder] = {
    **{name: _binder(name, operands, target, optional) for name, (operands, target, optional, _) in _KERNELS.items()},
    "concat_ws": _concat_ws,
    "octet_length": _text_size("octet_length"),
    "bit_length": _text_size("bit_length"),
}
FUNCTIONS["instr"] = FUNCTIONS["strpos"]
