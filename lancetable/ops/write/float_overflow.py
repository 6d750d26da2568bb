"""Float conversions that Arrow does not check."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lancetable.expr.arrow_types import is_list

__all__ = ["check_finite"]


def check_finite(before: pa.Array | pa.ChunkedArray, after: pa.Array | pa.ChunkedArray) -> None:
    """Raise pyarrow.ArrowInvalid if a finite float became infinite in a conversion to a narrower type.

    Arrow checks integers, decimals and times for values that do not fit, but not floats.
    """
    if not (_may_overflow(before.type, after.type)):
        return
    if isinstance(before, pa.ChunkedArray):
        for old, new in zip(before.chunks, after.chunks, strict=True):
            check_finite(old, new)
    elif pa.types.is_struct(before.type):
        for old, new in zip(before.flatten(), after.flatten(), strict=True):
            check_finite(old, new)
    elif not pa.types.is_floating(before.type):
        check_finite(before.flatten(), after.flatten())
    else:
        lost = pc.and_(pc.is_finite(before), pc.is_inf(after))
        if pc.any(lost).as_py():
            value = before.filter(lost)[0].as_py()
            raise pa.ArrowInvalid(f"Float value {value} not in range of {after.type}")


def _may_overflow(before: pa.DataType, after: pa.DataType) -> bool:
    if pa.types.is_floating(before) and pa.types.is_floating(after):
        return bool(before.bit_width > after.bit_width)
    both_structs = pa.types.is_struct(before) and pa.types.is_struct(after)
    if not both_structs and not (is_list(before) and is_list(after)):
        return False
    pairs = [(before.field(at), after.field(at)) for at in range(min(before.num_fields, after.num_fields))]
    if before.num_fields != after.num_fields or (both_structs and any(old.name != new.name for old, new in pairs)):
        return False
    return any(_may_overflow(old.type, new.type) for old, new in pairs)
