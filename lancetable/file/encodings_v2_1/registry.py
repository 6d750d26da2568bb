"""Registry of the classes for the oneof cases of PageLayout and CompressiveEncoding (protos/encodings_v2_1.proto).

The case `dictionary` of CompressiveEncoding has no class, so reading it raises UnsupportedFeatureError. Known writers
do not use it: the dictionary of a page is part of its mini-block layout.
"""

from __future__ import annotations

from lancetable.file.encodings_v2_1.base import COMPRESSIVE, LAYOUTS, layout_of
from lancetable.file.encodings_v2_1.compressive.bitpacking import InlineBitpacking, OutOfLineBitpacking
from lancetable.file.encodings_v2_1.compressive.byte_stream_split import ByteStreamSplit
from lancetable.file.encodings_v2_1.compressive.constant import Constant
from lancetable.file.encodings_v2_1.compressive.fixed_size_list import FixedSizeList
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.encodings_v2_1.compressive.fsst import Fsst
from lancetable.file.encodings_v2_1.compressive.general_compression import General
from lancetable.file.encodings_v2_1.compressive.packed_struct import PackedStruct, VariablePackedStruct
from lancetable.file.encodings_v2_1.compressive.rle import Rle
from lancetable.file.encodings_v2_1.compressive.variable import Variable
from lancetable.file.encodings_v2_1.layouts.blob import Blob
from lancetable.file.encodings_v2_1.layouts.constant import ConstantPage
from lancetable.file.encodings_v2_1.layouts.fullzip import FullZip
from lancetable.file.encodings_v2_1.layouts.miniblock import MiniBlock

__all__ = ["COMPRESSIVE", "LAYOUTS", "layout_of"]

COMPRESSIVE.update(
    (case.oneof_case, case)
    for case in (
        Flat,
        Variable,
        Constant,
        OutOfLineBitpacking,
        InlineBitpacking,
        Fsst,
        Rle,
        ByteStreamSplit,
        General,
        FixedSizeList,
        PackedStruct,
        VariablePackedStruct,
    )
)

LAYOUTS.update((case.oneof_case, case) for case in (MiniBlock, ConstantPage, FullZip, Blob))
