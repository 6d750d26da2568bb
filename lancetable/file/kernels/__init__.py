"""Kernels: bytes to values and back, as pure functions on whole arrays.

No protobuf, no I/O, no knowledge of pages. What comes from a file is checked here where only the kernel can check it
(sizes that a compressed buffer declares, offsets that a page stores, codes without a symbol); a violation raises
CorruptFileError without a path, which the caller knows.

    general.py             zstd and raw LZ4 blocks, bounded before anything is allocated
    fsst.py                short strings through a table of up to 255 symbols
    bitpacking.py          one bit stream, or transposed blocks of 1,024 values
    varbin.py              end offsets, validity, gather, UTF-8
    rle.py                 values and run lengths
    byte_stream_split.py   byte k of every value side by side
"""

from __future__ import annotations
