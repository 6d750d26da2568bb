"""FSST: strings compressed one by one with a symbol table; see kernels/fsst.py.

    message   symbol_table   2,312 bytes: header of 8 with the number of symbols, symbols of 8, their lengths of 1
              values         encoding of the codes: variable values, which are offsets and bytes
    codes     one byte each: the index of a symbol of 1 to 8 bytes; 255: an escape, the next byte is a literal

    "http://a", "http://b"   with the symbol 0 = "http://"   ->   offsets 0 3 6, bytes 00 ff 61 | 00 ff 62

A page has one table. Codes never span values, so each value can be decompressed alone. Values stay compressed
(`Coded`) until an Arrow array is built. If the table is marked as unused, the values are stored uncompressed.

Source: protos/encodings_v2_1.proto, Fsst.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from lancetable.file import thread_pool
from lancetable.file.encodings_v2_1.base import Chunks, Compressive, Ints, Wrapper, misplaced
from lancetable.file.encodings_v2_1.block import Block, Coded, VariableWidth
from lancetable.file.encodings_v2_1.compressive.variable import variable_of
from lancetable.file.kernels import fsst
from lancetable.lazy import lazy_property


@dataclass(frozen=True)
class Fsst(Wrapper):
    """Strings compressed with a symbol table; `values` is the encoding of the codes."""

    oneof_case: ClassVar[str] = "fsst"

    symbol_table: bytes
    values: Compressive

    @lazy_property
    def table(self) -> fsst.SymbolTable:
        return fsst.SymbolTable.parse(self.symbol_table)

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> Block:
        return self.convert(self.values.decode_blocks(chunks, counts, limit))

    def convert(self, block: Block) -> Block:
        """Combine codes with the symbol table. They are decompressed when an array is built."""
        if not isinstance(block, VariableWidth):
            raise misplaced(self, "values of a fixed width")
        return Coded(block, self.table) if self.table.encoded else block


# ------------------------------------------------------------------------------------------------------------- encode


# A larger sample hardly improves the table, and training costs as much as compressing several hundred times the sample.
_TRAINING_BYTES: Final = 64 << 10
_MIN_TRAINING_BYTES: Final = 16 << 10
_TRAINING_SHARE: Final = 64
_PART_BYTES: Final = 2 << 20


def compress_strings(block: VariableWidth) -> tuple[VariableWidth, Fsst] | None:
    """Compress strings. Returns the codes and their encoding, or None if the result would not be smaller.

    The codes have offsets of the same width.
    """
    data = np.frombuffer(block.data, np.uint8)
    content = int(block.offsets[-1]) - int(block.offsets[0])
    if content < fsst.MIN_INPUT_BYTES:
        return None
    sample = min(max(content // _TRAINING_SHARE, _MIN_TRAINING_BYTES), _TRAINING_BYTES)
    table = fsst.train(data, block.offsets, sample)
    parts = [block.offsets]
    if thread_pool.can_share():
        parts = [block.offsets[first : end + 1] for first, end in itertools.pairwise(_parts(block.offsets, content))]
    run_all = thread_pool.executor().map if len(parts) > 1 else map
    pieces = run_all(lambda part: fsst.compress(data, part, table), parts)
    codes, offsets, base = [], [np.zeros(1, np.int64)], 0
    for compressed, ends, _ in pieces:
        codes.append(compressed[: int(ends[-1])])
        offsets.append(ends[1:] + base)
        base += int(ends[-1])
    if base + fsst.TABLE_BYTES >= content or base > np.iinfo(block.offsets.dtype).max:
        return None
    packed = VariableWidth(np.concatenate(offsets).astype(block.offsets.dtype), np.concatenate(codes))
    return packed, Fsst(table.to_bytes(), variable_of(packed))


def _parts(offsets: npt.NDArray[Any], content: int) -> list[int]:
    """Return the first rows of parts of about equal size, and the number of rows."""
    count = min(max(content // _PART_BYTES, 1), 4 * thread_pool.size())
    targets = int(offsets[0]) + content * np.arange(1, count) // count
    inside = np.searchsorted(offsets, targets).tolist()
    return sorted({0, *inside, len(offsets) - 1})
