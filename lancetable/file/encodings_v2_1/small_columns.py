"""Columns of a small file, encoded together by one call of a compiled kernel.

    column    a  b  c  d  e            c needs a dictionary, a constant page or run lengths
    pages     a  b | c | d  e          a kernel call, a ColumnWriter, a kernel call

The fixed cost of a page, several dozen small steps, dominates in a file of many columns with a few rows. The kernel
encodes numbers and short strings without children, metadata and special encodings, which are most columns of such a
file. It makes the choices of choose_numbers.py and choose_strings.py, and leaves a column to the writers of
column_writers.py if it cannot exclude another encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa

from lancetable.file.encodings_v2_1.base import Compressive, pack_page
from lancetable.file.encodings_v2_1.block import is_number, offset_bytes, type_bits
from lancetable.file.encodings_v2_1.choose_dictionary import MIN_DICTIONARY_VALUES
from lancetable.file.encodings_v2_1.choose_layout import FULL_ZIP_BYTES, LeafRows, LeafSpec, chunk_layout
from lancetable.file.encodings_v2_1.choose_strings import MIN_DICTIONARY_BYTES, MIN_FSST_BYTES
from lancetable.file.encodings_v2_1.compressive.bitpacking import InlineBitpacking
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.encodings_v2_1.compressive.variable import Variable
from lancetable.file.encodings_v2_1.encoding_options import NO_OPTIONS
from lancetable.file.encodings_v2_1.shred import Leaf, shred
from lancetable.file.encodings_v2_1.stats import FEW_VALUES
from lancetable.file.kernels import native
from lancetable.format.schema import Field
from lancetable.format.version import FileVersion
from lancetable.proto import encodings_v2_1_pb2 as pb
from lancetable.proto import file2_pb2

_LAYERS: Final = (pb.REPDEF_ALL_VALID_ITEM,), (pb.REPDEF_NULLABLE_ITEM,)


def open_encoder(version: FileVersion, fields: Sequence[Field], arrays: Sequence[pa.Array]) -> SmallColumns | None:
    """Return an encoder of one array for each field; None if they have too many rows."""
    if native is None or not arrays or not 0 < len(arrays[0]) <= FEW_VALUES:
        return None
    return SmallColumns(version, fields, arrays)


class SmallColumns:
    """Encoder of the columns of a file that consists of one array for each field; see SmallColumnsEncoder."""

    def __init__(self, version: FileVersion, fields: Sequence[Field], arrays: Sequence[pa.Array]) -> None:
        num_rows = len(arrays[0])
        self.widths: Sequence[int] = [
            0 if field.metadata or field.children else _width_of(array.type) for field, array in zip(fields, arrays)
        ]
        self._arrays, self._num_rows = arrays, num_rows
        self._large = version is not FileVersion.V2_1
        limits, level_limits = [
            LeafRows(LeafSpec(Leaf(fields[0], (), ""), NO_OPTIONS, version), shred(array, ())).limits
            for array in (pa.array([0]), pa.array([None], pa.int64()))
        ]
        most_distinct = int(num_rows / NO_OPTIONS.dictionary_divisor)
        self._shared = native.SmallColumns(
            num_rows,
            self._large,
            limits,
            level_limits,
            MIN_FSST_BYTES,
            FULL_ZIP_BYTES,
            most_distinct + 1 if num_rows >= MIN_DICTIONARY_VALUES else 0,
            MIN_DICTIONARY_BYTES,
        )

    def encode(self, first: int, position: int, padding: bytes) -> tuple[bytes, list[bytes], bool]:
        """Encode columns from number `first` on; see SmallColumnsEncoder."""
        pages: tuple[bytes, list[bytes], bool] = native.small_pages(
            self._shared, self._arrays, self.widths, first, position, padding, self._encoding_message
        )
        return pages

    def _encoding_message(self, width: int, level_width: int, is_packed: bool) -> bytes:
        return _encoding_message(width, level_width, is_packed, self._num_rows, self._large)


@lru_cache(maxsize=256)
def _encoding_message(width: int, level_width: int, is_packed: bool, num_rows: int, large: bool) -> bytes:
    """Return a serialized ColumnMetadata.Page that only has the encoding of a page of the kernel."""
    values: Compressive = Variable(Flat(-width)) if width < 0 else Flat(width)
    if is_packed:
        values = InlineBitpacking(width)
    layout = chunk_layout(values, level_width, _LAYERS[level_width >= 0], num_rows, large, None, 0)
    encoding = file2_pb2.Encoding(direct=file2_pb2.DirectEncoding(encoding=pack_page(layout)))
    return file2_pb2.ColumnMetadata.Page(encoding=encoding).SerializeToString()


def _width_of(data_type: pa.DataType) -> int:
    """Return the bits of a number, the negative bits of the offsets of a string or binary, or 0 for other types."""
    bits = type_bits(data_type) if is_number(data_type) else -8 * offset_bytes(data_type)
    return 0 if bits is None or bits == 1 else bits
