"""Registry of the classes for the oneof cases of ArrayEncoding (protos/encodings_v2_0.proto)."""

from __future__ import annotations

from lancetable.file.encodings_v2_0.base import ENCODINGS, encoding_of, from_message, to_message
from lancetable.file.encodings_v2_0.binary import Binary
from lancetable.file.encodings_v2_0.bitpacked import Bitpacked, BitpackedForNonNeg
from lancetable.file.encodings_v2_0.dictionary import Dictionary
from lancetable.file.encodings_v2_0.fixed_size_binary import FixedSizeBinary
from lancetable.file.encodings_v2_0.fixed_size_list import FixedSizeList
from lancetable.file.encodings_v2_0.flat import Flat
from lancetable.file.encodings_v2_0.fsst import Fsst
from lancetable.file.encodings_v2_0.lists import List
from lancetable.file.encodings_v2_0.nullable import Nullable
from lancetable.file.encodings_v2_0.packed_struct import PackedStruct
from lancetable.file.encodings_v2_0.struct import SimpleStruct

__all__ = ["ENCODINGS", "encoding_of", "from_message", "to_message"]

ENCODINGS.update(
    {
        encoding.oneof_case: encoding
        for encoding in (
            Flat,
            Nullable,
            FixedSizeList,
            List,
            SimpleStruct,
            Binary,
            Dictionary,
            Fsst,
            PackedStruct,
            Bitpacked,
            FixedSizeBinary,
            BitpackedForNonNeg,
        )
    }
)
