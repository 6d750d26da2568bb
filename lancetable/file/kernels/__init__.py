"""Kernels: conversion between bytes and values, as pure functions on whole arrays.

Kernels use neither protobuf nor I/O nor pages, except that loops/small_pages.pxi writes the messages of pages. They
validate the parts of a file that only they parse: declared sizes of compressed buffers, stored offsets, codes without a
symbol. A violation raises CorruptFileError without a path, which the caller adds.

    compression.py         zstd and raw LZ4 blocks, bounded before memory is allocated
    fsst.py                short strings, compressed with a table of up to 255 symbols
    bitpacking.py          one bit stream, or transposed blocks of 1,024 values
    varbin.py              end offsets, validity, gather, UTF-8
    rle.py                 values and run lengths
    levels.py              repetition and definition levels
    miniblock.py           chunks of mini-block pages
    fullzip.py             entries of full-zip pages
    interleave.py          interleaving of runs of bytes from several streams
    gather.py              random access to values in the chunks of a page, and to rows of lists
    zone_bounds.py         minimum and maximum of ranges of numbers
    distinct.py            distinct values and the index of each
    key_tables.py          hash tables from keys to rows
    xxh64.py               XXH64 hashes of numbers and byte strings
    _native.pyx            compiled forms of most of these modules; the loops are in loops/
    _native_keys.pyx       key lookup
    vector_distances.py    distances to the vectors and codes of vector indexes
    _native_search.pyx     search for a substring in many strings
    _native_vector_build.pyx  nearest centroids, and building of graphs of vectors
    _native_vectors.pyx    distances of vector_distances.py, and searches of graphs
    _native_write.pyx      loops that only writers need

Each function has a form in NumPy or Arrow, and many have an equivalent compiled form. The compiled modules are
optional; LANCETABLE_KERNELS=0 in the environment disables them.
"""

from __future__ import annotations

from typing import Any, Final

from lancetable.compiled import load

native: Final[Any] = load(f"{__name__}._native")
"""The compiled kernels, or None if they are not built or are disabled."""

native_keys: Final[Any] = load(f"{__name__}._native_keys")
"""The compiled key lookup, or None."""

native_search: Final[Any] = load(f"{__name__}._native_search")
"""The compiled substring search, or None."""

native_vector_build: Final[Any] = load(f"{__name__}._native_vector_build")
"""The compiled loops of builds of vector indexes, or None."""

native_vectors: Final[Any] = load(f"{__name__}._native_vectors")
"""The compiled distances of vectors, or None."""

native_write: Final[Any] = load(f"{__name__}._native_write")
"""The compiled kernels that only writers need, or None."""

NATIVE: Final[bool] = native is not None
"""True if the compiled kernels are used."""
