"""Full-zip pages: entries of a control word and a value. The entries of a row are located by parsing them in order.

    fixed       [control][value]    [control]  no value: the list is null or empty
    variable    [control][length][value]    [control]  null, or no value

A control word is `repetition << bits_def | definition`. Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import native

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


def control_bytes(bits: int) -> int:
    """Return the size of a control word of this many bits."""
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
    """Locate the values in the entries of rows.

    Parameters
    ----------
    data
        The bytes of the page.
    starts, ends
        (r,) positions where the rows begin and end.
    control
        The size of a control word.
    bits_def
        The bits of the definition level in a control word.
    top
        The highest definition level of entries with a value.
    value_bytes
        The size of a value if `length_bytes` is 0.
    length_bytes
        The size of the length before each value, or 0. If there are lengths, entries above definition level 0 consist
        of a control word only.

    Returns
    -------
    tuple
        (n,) control words, (n,) positions and sizes of values (size -1 for none), and (r + 1,) the index of the first
        entry of each row.

    Raises
    ------
    CorruptFileError
        If a row is outside the page or an entry exceeds its row.
    """
    if len(starts) and (int((ends - starts).min()) < 0 or int(starts.min()) < 0 or int(ends.max()) > len(data)):
        raise CorruptFileError("row is outside its page")
    if control == 0 and not length_bytes:
        raise CorruptFileError("entries have neither a control word nor a length")
    if native is not None:
        return native.walk(data, starts, ends, control, bits_def, top, value_bytes, length_bytes)
    view = data.data
    words, positions, sizes, first = [], [], [], [0]
    for at, end in zip(starts.tolist(), ends.tolist()):
        while at < end:
            word = int.from_bytes(view[at : at + control], "little")
            at += control
            level = word & ((1 << bits_def) - 1)
            size = -1
            if length_bytes and level == 0:
                size = int.from_bytes(view[at : at + length_bytes], "little")
                at += length_bytes
            elif not length_bytes and level <= top:
                size = value_bytes
            words.append(word)
            positions.append(at)
            sizes.append(size)
            at += max(size, 0)
            if at > end:
                raise CorruptFileError("entry exceeds the end of its row", f"at most {end}", at)
        first.append(len(words))
    return (
        np.array(words, np.uint32),
        np.array(positions, np.int64),
        np.array(sizes, np.int64),
        np.array(first, np.int64),
    )
