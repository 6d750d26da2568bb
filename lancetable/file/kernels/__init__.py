"""Kernels: bytes to values and back, as pure functions on whole arrays.

No protobuf, no I/O, no knowledge of pages. What comes from a file is checked here where only the kernel can check it
(sizes that a compressed buffer declares, offsets that a page stores, codes without a symbol); a violation raises
CorruptFileError without a path, which the caller knows.

    general.py             zstd and raw LZ4 blocks, bounded before anything is allocated
    frames.py              many zstd frames through one decompressor
    fsst.py                short strings through a table of up to 255 symbols
    bitpacking.py          one bit stream, or transposed blocks of 1,024 values
    varbin.py              end offsets, validity, gather, UTF-8
    rle.py                 values and run lengths
    byte_stream_split.py   byte k of every value side by side
    picks.py               single values out of the chunks of a page, rows of lists
    zones.py               bounds of stretches of numbers
    distinct.py            different values and where each occurs
    keys.py                which row of a column has a key
    _native.pyx            the same loops in C, where they were built; each file of loops/ is the twin of one here
    _native_keys.pyx       the search for keys
    _native_search.pyx     the search for a text in many strings
    _native_write.pyx      and those that only writers need

Each function has a NumPy form; many have a compiled one that does the same. The compiled module is optional, and
LANCETABLE_KERNELS=0 in the environment leaves it aside.
"""

from __future__ import annotations

from typing import Any, Final

from lancetable.compiled import load

__all__ = ["NATIVE", "native", "native_keys", "native_search", "native_write"]


native: Final[Any] = load(f"{__name__}._native")
"""The compiled kernels, None if they are not there or not wanted."""

native_keys: Final[Any] = load(f"{__name__}._native_keys")
"""The search for keys; also None or there."""

native_search: Final[Any] = load(f"{__name__}._native_search")
"""The search for a text in strings; also None or there."""

native_write: Final[Any] = load(f"{__name__}._native_write")
"""Those that only writers need; also None or there."""

NATIVE: Final[bool] = native is not None
"""Whether compiled kernels run."""
