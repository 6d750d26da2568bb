"""String functions. Functions without an Arrow kernel are computed in Python, once for each distinct string."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.evaluate.operators import EvaluationError, Values, aligned, concat, contains
from lancetable.expr.evaluate.sql_function import (
    ANY_AS_STRING,
    INT64,
    STRING,
    STRING32,
    Kernel,
    Parameter,
    SqlFunction,
    arrow,
    by_distinct_value,
    by_row,
    constants_of,
    length_type,
    with_constants,
)

_MAX_LENGTH = 1 << 24  # characters
_STRING_OF_FIRST_TYPE = Parameter(("string",), lambda data_type, first: first)


def _concat_skipping_nulls(args: list[Values], target: pa.DataType) -> Values:
    empty = pa.scalar("", target)
    # Add an empty string, because the kernel returns null for a row that contains only nulls.
    return pc.binary_join_element_wise(*args, empty, empty, null_handling="skip")


def _concat_with_separator(args: list[Values], target: pa.DataType) -> Values:
    separator, *parts = aligned(*args)
    joined = parts[0]
    for part in parts[1:]:
        joined_with_part = pc.binary_join_element_wise(joined, part, separator)
        joined = pc.if_else(pc.is_null(joined), part, pc.if_else(pc.is_null(part), joined, joined_with_part))
    return pc.if_else(pc.is_null(separator), pa.scalar(None, target), pc.fill_null(joined, ""))


def _replace(args: list[Values], target: pa.DataType) -> Values:
    constants = constants_of(args)
    if constants and constants[0]:
        return pc.replace_substring(args[0], pattern=constants[0], replacement=constants[1])
    return by_row(str.replace)(args, target)


def _right(values: Values, count: int) -> Values:
    return pc.utf8_slice_codeunits(values, -count, None) if count else pc.utf8_slice_codeunits(values, 0, 0)


def _substr(args: list[Values], target: pa.DataType) -> Values:
    constants = constants_of(args)
    if constants is None:
        return by_row(lambda text, *extent: text[slice(*_slice_of(*extent))])(args, target)
    return pc.utf8_slice_codeunits(args[0], *_slice_of(*constants))


def _slice_of(start: int, length: int | None = None) -> tuple[int, int | None]:
    """Return the slice for the arguments of substr(): a position from 1 and a number of characters."""
    if length is not None and length < 0:
        raise EvaluationError("substr() expects a length of at least 0")
    return max(start - 1, 0), None if length is None else max(start - 1 + length, 0)


def _check_length(num_characters: int) -> None:
    if num_characters > _MAX_LENGTH:
        raise EvaluationError(f"a string of {num_characters} characters exceeds the limit of {_MAX_LENGTH}")


def _repeat(text: str, count: int) -> str:
    _check_length(len(text) * max(count, 0))
    return text * max(min(count, _MAX_LENGTH), 0)


def _padding(text: str, length: int, fill: str) -> str:
    """Return the characters that pad `text` to `length`."""
    _check_length(length)
    missing = length - len(text)
    return (fill * (missing // len(fill) + 1))[:missing] if fill else ""


def _lpad(text: str, length: int, fill: str = " ") -> str:
    return text[: max(length, 0)] if length <= len(text) else _padding(text, length, fill) + text


def _rpad(text: str, length: int, fill: str = " ") -> str:
    return text[: max(length, 0)] if length <= len(text) else text + _padding(text, length, fill)


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


def _levenshtein(left: str, right: str) -> int:
    before = list(range(len(right) + 1))
    for at, char in enumerate(left, 1):
        row = [at]
        for column, other_char in enumerate(right, 1):
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


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _string_test(kernel: Kernel) -> SqlFunction:
    return SqlFunction(kernel, (STRING, _STRING_OF_FIRST_TYPE), pa.bool_())


FUNCTIONS: dict[str, SqlFunction] = {
    "||": SqlFunction(lambda args, target: concat(args)),
    "concat": SqlFunction(_concat_skipping_nulls, (ANY_AS_STRING,), pa.string(), variadic=True),
    "concat_ws": SqlFunction(_concat_with_separator, (ANY_AS_STRING, ANY_AS_STRING), pa.string(), variadic=True),
    "lower": SqlFunction(arrow(pc.utf8_lower), (STRING,)),
    "upper": SqlFunction(arrow(pc.utf8_upper), (STRING,)),
    "length": SqlFunction(arrow(pc.utf8_length), (STRING,), length_type),
    "octet_length": SqlFunction(arrow(pc.binary_length), (STRING,), length_type),
    "bit_length": SqlFunction(
        lambda args, target: pc.multiply(pc.binary_length(args[0]), pa.scalar(8, target)), (STRING,), length_type
    ),
    "starts_with": _string_test(with_constants(pc.starts_with, str.startswith)),
    "ends_with": _string_test(with_constants(pc.ends_with, str.endswith)),
    "contains": _string_test(with_constants(contains, str.__contains__)),
    "replace": SqlFunction(_replace, (STRING, STRING, STRING)),
    "left": SqlFunction(
        with_constants(lambda text, count: pc.utf8_slice_codeunits(text, 0, count), lambda text, count: text[:count]),
        (STRING, INT64),
    ),
    "right": SqlFunction(with_constants(_right, lambda text, count: text[-count:] if count else ""), (STRING, INT64)),
    "btrim": SqlFunction(
        with_constants(lambda text, characters=" ": pc.utf8_trim(text, characters), str.strip),
        (STRING, STRING),
        num_optional=1,
    ),
    "ltrim": SqlFunction(arrow(lambda text: pc.utf8_ltrim(text, " ")), (STRING,)),
    "rtrim": SqlFunction(arrow(lambda text: pc.utf8_rtrim(text, " ")), (STRING,)),
    "substr": SqlFunction(_substr, (STRING, INT64, INT64), num_optional=1),
    "reverse": SqlFunction(arrow(pc.utf8_reverse), (STRING,)),
    "ascii": SqlFunction(by_distinct_value(lambda text: ord(text[0]) if text else 0), (STRING,), pa.int32()),
    "initcap": SqlFunction(by_distinct_value(_initcap), (STRING,)),
    "lpad": SqlFunction(by_distinct_value(_lpad), (STRING, INT64, STRING32), num_optional=1),
    "rpad": SqlFunction(by_distinct_value(_rpad), (STRING, INT64, STRING32), num_optional=1),
    "repeat": SqlFunction(by_distinct_value(_repeat), (STRING, INT64)),
    "strpos": SqlFunction(by_distinct_value(lambda text, part: text.find(part) + 1), (STRING, STRING32), pa.int32()),
    "find_in_set": SqlFunction(by_distinct_value(_find_in_set), (STRING, STRING32), pa.int32()),
    "split_part": SqlFunction(by_distinct_value(_split_part), (STRING, STRING32, INT64)),
    "substring_index": SqlFunction(by_distinct_value(_substring_index), (STRING, STRING32, INT64)),
    "translate": SqlFunction(by_distinct_value(_translate), (STRING, STRING32, STRING32)),
    "levenshtein": SqlFunction(by_distinct_value(_levenshtein), (STRING, STRING32), pa.int32()),
    "chr": SqlFunction(by_distinct_value(_chr), (INT64,), pa.string()),
    "to_hex": SqlFunction(by_distinct_value(lambda number: f"{number & (1 << 64) - 1:x}"), (INT64,), pa.string()),
    "md5": SqlFunction(by_distinct_value(_md5), (STRING,), pa.string()),
}
