"""Overflow check of float conversions, which Arrow does not perform."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.arrow_types import is_list


def check_finite(before: pa.Array | pa.ChunkedArray, after: pa.Array | pa.ChunkedArray) -> None:
    """Raise pyarrow.ArrowInvalid if a finite float became infinite in a conversion to a narrower type.

    Arrow checks conversions of integers, decimals and times for overflow, but not conversions of floats.
    """
    old, new = before.type, after.type
    if isinstance(before, pa.ChunkedArray):
        for old_chunk, new_chunk in zip(before.chunks, after.chunks, strict=True):
            check_finite(old_chunk, new_chunk)
    elif pa.types.is_floating(old) and pa.types.is_floating(new) and old.bit_width > new.bit_width:
        overflowed = pc.and_(pc.is_finite(before), pc.is_inf(after))
        if pc.any(overflowed).as_py():
            value = before.filter(overflowed)[0].as_py()
            raise pa.ArrowInvalid(f"Float value {value} not in range of {new}")
    elif pa.types.is_struct(old) and pa.types.is_struct(new):
        if [part.name for part in old] == [part.name for part in new]:
            for old_part, new_part in zip(before.flatten(), after.flatten(), strict=True):
                check_finite(old_part, new_part)
    elif is_list(old) and is_list(new):
        check_finite(before.flatten(), after.flatten())
