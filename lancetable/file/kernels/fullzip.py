"""Full-zip pages: entries of a control word and a value, one after the other, found by walking from entry to entry.

    fixed       [control][value]    [control]  no value: the list is null or empty
    variable    [control][length][value]    [control]  null, or no value

A control word is `repetition << bits_def | definition`. Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import native

__all__ = ["control_bytes", "join_values", "walk"]

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_WORDS: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
# Fewer rows than this walk faster one by one.
_FEW_ROWS: Final = 24


def control_bytes(bits: int) -> int:
    """Bytes of a control word of this many bits."""
    return 0 if bits == 0 else 1 if bits <= 8 else 2 if bits <= 16 else 4


def walk(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    control: int,
    bits_def: int,
    top: int,
    value_bytes: int,
    length_bytes: int,
) -> tuple[npt.NDArray[Any], Ints, Ints, Ints]:
    """Walk through the entries of rows that begin and end at (r,) positions.

    `control` is the size of a control word; entries with a definition level above `top` have no value. Values have
    `value_bytes` each or, if `length_bytes` is not 0, a length in front where the definition level is 0, and nothing
    else where it is not.
    -> (n,) control words, (n,) positions and sizes of values (size -1 where there is none), and (r + 1,) the number of
    the first entry of each row. Raises CorruptFileError if an entry passes the end of its row.
    """
    if len(starts) and (int((ends - starts).min()) < 0 or int(starts.min()) < 0 or int(ends.max()) > len(data)):
        raise CorruptFileError("rows that lie outside of their page")
    if control == 0 and not length_bytes:
        raise CorruptFileError("entries without a control word cannot be walked")
    if native is not None:
        found: tuple[npt.NDArray[Any], Ints, Ints, Ints] = native.walk(
            data, starts, ends, control, bits_def, top, value_bytes, length_bytes
        )
        return found
    walked = (
        [
            _walk_row(data, start, end, control, (1 << bits_def) - 1, top, value_bytes, length_bytes)
            for start, end in zip(starts.tolist(), ends.tolist())
        ]
        if len(starts) <= _FEW_ROWS
        else None
    )
    if walked is not None:
        first = np.cumsum([0, *(len(words) for words, _, _ in walked)])
        words = np.array([word for row, _, _ in walked for word in row], np.uint32)
        positions = np.array([at for _, row, _ in walked for at in row], np.int64)
        sizes = np.array([size for _, _, row in walked for size in row], np.int64)
        return words, positions, sizes, first.astype(np.int64)
    return _walk_together(data, starts, ends, control, (1 << bits_def) - 1, top, value_bytes, length_bytes)


def _walk_row(
    data: Bytes, at: int, end: int, control: int, mask: int, top: int, value_bytes: int, length_bytes: int
) -> tuple[list[int], list[int], list[int]]:
    view = data.data
    words, positions, sizes = [], [], []
    while at < end:
        word = int.from_bytes(view[at : at + control], "little")
        at += control
        level = word & mask
        size = -1
        if length_bytes:
            if level == 0:
                size = int.from_bytes(view[at : at + length_bytes], "little")
                at += length_bytes
        elif level <= top:
            size = value_bytes
        words.append(word)
        positions.append(at)
        sizes.append(size)
        at += max(size, 0)
        if at > end:
            raise CorruptFileError("an entry passes the end of its row", expected=f"at most {end}", found=at)
    return words, positions, sizes


def _walk_together(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    control: int,
    mask: int,
    top: int,
    value_bytes: int,
    length_bytes: int,
) -> tuple[npt.NDArray[Any], Ints, Ints, Ints]:
    """One entry of every row at a time; the rows that are left when few are go one by one."""
    # Reading a word may touch bytes behind the last entry, which are then found to be too many.
    padded = np.concatenate((data, np.zeros(16, np.uint8)))
    rows = np.arange(len(starts))
    at = starts.copy()
    steps: list[tuple[Ints, npt.NDArray[Any], Ints, Ints]] = []
    alive = at < ends
    while True:
        if not alive.all():
            rows, at = rows[alive], at[alive]
        if len(rows) <= _FEW_ROWS:
            break
        words = _read_words(padded, at, control).astype(np.uint32)
        at = at + control
        levels = words & np.uint32(mask)
        if length_bytes:
            lengths = _read_words(padded, at, length_bytes).astype(np.int64)
            sizes = np.where(levels == 0, lengths, -1)
            at = at + np.where(levels == 0, length_bytes, 0)
            if int(sizes.min()) < -1 or int(sizes.max()) > len(data):
                raise CorruptFileError("a value longer than its page", expected=f"at most {len(data)}")
        else:
            sizes = np.where(levels <= top, value_bytes, -1)
        steps.append((rows, words, at, sizes))
        at = at + np.maximum(sizes, 0)
        if (at > ends[rows]).any():
            raise CorruptFileError("an entry passes the end of its row")
        alive = at < ends[rows]
    for row, position in zip(rows.tolist(), at.tolist()):
        found, positions, lengths_of_row = _walk_row(
            data, position, int(ends[row]), control, mask, top, value_bytes, length_bytes
        )
        steps.append(
            (
                np.full(len(found), row, np.int64),
                np.array(found, np.uint32),
                np.array(positions, np.int64),
                np.array(lengths_of_row, np.int64),
            )
        )
    every_row = np.concatenate([step[0] for step in steps]) if steps else np.empty(0, np.int64)
    first = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(np.bincount(every_row, minlength=len(starts)), out=first[1:])
    positions_of_all = np.concatenate([step[2] for step in steps]) if steps else np.empty(0, np.int64)
    # Entries without a value take up a control word, so that no two have the same position.
    order = np.lexsort((positions_of_all, every_row))
    words_of_all = np.concatenate([step[1] for step in steps]) if steps else np.empty(0, np.uint32)
    sizes_of_all = np.concatenate([step[3] for step in steps]) if steps else np.empty(0, np.int64)
    return words_of_all[order], positions_of_all[order], sizes_of_all[order], first


def _read_words(padded: Bytes, at: Ints, width: int) -> npt.NDArray[Any]:
    """Little-endian words of `width` bytes at any positions."""
    if width == 0:
        return np.zeros(len(at), np.uint8)
    at = np.minimum(at, len(padded) - 8)
    words: npt.NDArray[Any] = np.ndarray((len(padded) - width + 1,), _WORDS[width], padded, 0, (1,))
    return words[at]


def join_values(data: Bytes, positions: Ints, sizes: Ints) -> tuple[npt.NDArray[np.int64], Bytes]:
    """Values at ascending positions that do not overlap -> (n + 1,) offsets from zero on, and their bytes.

    Positions and sizes must have been checked against the data.
    """
    offsets = np.zeros(len(positions) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if native is not None:
        return offsets, native.join_pieces(data, positions, sizes)
    total = int(offsets[-1])
    if len(positions) == 0:
        return offsets, data[:0]
    if len(positions) == 1 or total > 64 * len(positions):
        view = data.data
        pieces = [view[a : a + n] for a, n in zip(positions.tolist(), sizes.tolist())]
        return offsets, np.frombuffer(b"".join(pieces), np.uint8)
    source = np.repeat(positions - offsets[:-1], sizes)
    source += np.arange(total)
    return offsets, data[source]
