"""Fsst: strings that are compressed separately and stored as Binary; see kernels/fsst.py for the codes.

    ['https://x', null]   symbols 0 'https://'   Binary: bytes 00 ff 'x', ends 3, 3 + A

Source: protos/encodings_v2_0.proto, Fsst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.column_interfaces import Decoded
from lancetable.file.encodings_v2_0.base import ArrayEncoding, BufferList, ParsedMessage
from lancetable.file.encodings_v2_0.binary import Binary, check_strings, checked_offset_dtype
from lancetable.file.encodings_v2_0.flat import Flat
from lancetable.file.encodings_v2_0.nullable import Nullable
from lancetable.file.footer import Page
from lancetable.file.io_scheduler import ReadPlan, Slots
from lancetable.file.kernels import fsst, varbin

_MAX_EXPANSION: Final = 8  # maximum decompressed bytes per code


@dataclass(frozen=True, slots=True)
class Fsst(ParsedMessage):
    """Compressed strings: the codes in `binary`, and the symbol table."""

    oneof_case: ClassVar[str] = "fsst"

    binary: ArrayEncoding
    symbol_table: bytes

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, max_gap: int) -> ReadPlan[Decoded]:
        dtype = checked_offset_dtype(page, data_type)
        code_type = pa.binary() if dtype.itemsize == 4 else pa.large_binary()
        decoded = yield from self.binary.read(page, code_type, length, slots, max_gap)
        if decoded.array is not None:
            # All values are null, so the page has no codes.
            return Decoded(decoded.length, array=pa.nulls(decoded.length, data_type))
        offsets = _array(decoded.buffers[0], dtype)[: decoded.length + 1]
        codes = _array(decoded.buffers[1], np.dtype(np.uint8))
        page.check_memory(_MAX_EXPANSION * (int(offsets[-1]) - int(offsets[0])))
        content, offsets = fsst.decompress(codes, offsets, _parse_table(self.symbol_table))
        decoded = Decoded(decoded.length, (pa.py_buffer(offsets), pa.py_buffer(content)), decoded.validity)
        check_strings(decoded, data_type)
        return decoded


@lru_cache(maxsize=64)
def _parse_table(symbol_table: bytes) -> fsst.SymbolTable:
    return fsst.SymbolTable.parse(symbol_table)


def _array(buffer: pa.Buffer | None, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.empty(0, dtype) if buffer is None else np.frombuffer(buffer, dtype)


def encode_fsst(arrays: Sequence[pa.Array], buffers: BufferList) -> Fsst:
    """Compress string or binary arrays of one type with a symbol table trained on them."""
    array = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    offsets = varbin.offsets_of(array)
    data = _array(array.buffers()[2], np.dtype(np.uint8))
    codes, code_offsets, table = fsst.compress(data, offsets)
    valid = np.asarray(array.is_valid()) if array.null_count else None
    ends, adjustment = varbin.offsets_to_ends(code_offsets, valid)
    indices = Nullable(Flat(64, buffers.add([ends])))
    return Fsst(Binary(indices, Flat(8, buffers.add([codes])), adjustment), table.to_bytes())
