"""SQL functions for regular expressions. Patterns have the syntax of Rust's regex crate and are translated to RE2."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.evaluate.operators import EvaluationError, Values, aligned, match_patterns
from lancetable.expr.evaluate.sql_function import STRING, STRING32, Kernel, SqlFunction, constants_of, same_type

# \w and \d match Unicode characters in Rust's regex crate, which pylance uses, but only ASCII in RE2.
_CLASSES = {"d": r"\p{Nd}", "D": r"\P{Nd}", "w": r"[\p{L}\p{M}\p{N}_]", "W": r"[^\p{L}\p{M}\p{N}_]"}
_CLASSES_IN_SET = {"d": r"\p{Nd}", "D": r"\P{Nd}", "w": r"\p{L}\p{M}\p{N}_"}


def translate_regex(pattern: str) -> str:
    """Translate a pattern of Rust's regex crate to RE2: replace word and digit classes by Unicode classes.

    Word boundaries remain ASCII, and so does `\\W` inside a bracketed set.
    """
    result, in_set = [], False
    for token in re.findall(r"\\.|.", pattern, re.DOTALL):
        if len(token) == 2:
            token = (_CLASSES_IN_SET if in_set else _CLASSES).get(token[1], token)
        elif token in "[]":
            in_set = token == "["
        result.append(token)
    return "".join(result)


def _re2(name: str, pattern: str, flags: str = "") -> str:
    """Return the RE2 pattern for a pattern and its flags. Raises EvaluationError for unknown flags."""
    if not set(flags) <= set("imsU"):
        raise EvaluationError(f"{name}() does not support the flags {flags!r}; use a combination of i, m, s and U")
    return (f"(?{flags})" if flags else "") + translate_regex(pattern)


def _constants(name: str, expected: str, args: list[Values]) -> list[str]:
    constants = constants_of(args)
    if constants is None:
        raise EvaluationError(f"{name}() expects a constant {expected}")
    return constants


def _is_match(args: list[Values], target: pa.DataType) -> Values:
    constants = constants_of(args)
    if constants:
        return pc.match_substring_regex(args[0], _re2("regexp_like", *constants))
    strings, *patterns = aligned(*args)
    keys = pc.binary_join_element_wise(*(pc.cast(array, pa.string()) for array in patterns), "\0")
    return match_patterns(
        strings, keys, lambda key: pc.match_substring_regex(strings, _re2("regexp_like", *key.split("\0")))
    )


def _count_matches(args: list[Values], target: pa.DataType) -> Values:
    (pattern,) = _constants("regexp_count", "pattern", args)
    counts = pc.count_substring_regex(args[0], _re2("regexp_count", pattern))
    # As in pylance, the count for a null string is 0.
    return pc.cast(pc.fill_null(counts, 0), target)


def _position_of_match(args: list[Values], target: pa.DataType) -> Values:
    """Return the position of the first match, in characters from 1; 0 without a match."""
    (pattern,) = _constants("regexp_instr", "pattern", args)
    (strings,) = aligned(args[0])
    encoded = strings.dictionary_encode()
    byte_offsets = pc.find_substring_regex(encoded.dictionary, _re2("regexp_instr", pattern)).to_pylist()
    positions = [
        0 if offset < 0 else len(string.encode()[:offset].decode()) + 1
        for offset, string in zip(byte_offsets, encoded.dictionary.to_pylist())
    ]
    return pa.array(positions, target).take(encoded.indices)


def _groups_of_match(args: list[Values], target: pa.DataType) -> Values:
    """Return the groups of the first match, or the whole match if the pattern has no groups; null without a match."""
    pattern = _re2("regexp_match", *_constants("regexp_match", "pattern and flags", args))
    (strings,) = aligned(args[0])
    groups = pc.extract_regex(pc.cast(strings, pa.string()), _with_named_groups(pattern))
    parts = [pc.struct_field(groups, at) for at in range(groups.type.num_fields)]
    count, rows = len(parts), len(strings)
    order = pa.array(np.arange(rows * count).reshape(count, rows).T.reshape(-1))
    ends = pa.array(np.arange(0, (rows + 1) * count, count, dtype=np.int32))
    return pa.ListArray.from_arrays(ends, pa.concat_arrays(parts).take(order), mask=groups.is_null())


def _with_named_groups(pattern: str) -> str:
    """Name all capturing groups g0, g1, ...; enclose a pattern without groups in a group."""
    result, count, in_set = [], 0, False
    for token in re.findall(r"\\.?|\(\?P?<\w+>|\(\??|.", pattern, re.DOTALL):
        if not in_set and (token == "(" or token.startswith(("(?P<", "(?<"))):
            token = f"(?P<g{count}>"
            count += 1
        elif token in ("[", "]"):
            in_set = token == "["
        result.append(token)
    return "".join(result) if count else f"(?P<g0>{pattern})"


def _replaced(args: list[Values], target: pa.DataType) -> Values:
    pattern, replacement, flags = (*_constants("regexp_replace", "pattern, replacement and flags", args), "")[:3]
    return pc.replace_substring_regex(
        args[0],
        pattern=_re2("regexp_replace", pattern, flags.replace("g", "")),
        # Rust's regex crate refers to groups as $1 and ${1}, RE2 as \1.
        replacement=re.sub(r"\$\{?(\d)\}?", r"\\\1", replacement),
        max_replacements=None if "g" in flags else 1,
    )


def _of_strings(kernel: Kernel, num_parameters: int, result: Any = same_type, num_optional: int = 0) -> SqlFunction:
    return SqlFunction(kernel, (STRING, *[STRING32] * (num_parameters - 1)), result, num_optional)


FUNCTIONS: dict[str, SqlFunction] = {
    "regexp_like": SqlFunction(_is_match, (STRING, STRING, STRING), pa.bool_(), num_optional=1),
    "regexp_count": _of_strings(_count_matches, 2, pa.int64()),
    "regexp_instr": _of_strings(_position_of_match, 2, pa.int64()),
    "regexp_match": _of_strings(_groups_of_match, 3, pa.list_(pa.string()), num_optional=1),
    "regexp_replace": _of_strings(_replaced, 4, num_optional=1),
}
