# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled forms of the kernels in this folder. The loops are in the files of `loops/`.

A compiled form is documented in the Python function that calls it, whose NumPy form is the reference. Loops compile to
C and run without the GIL.
"""

include "loops/common.pxi"
include "loops/bitpacking.pxi"
include "loops/fsst.pxi"
include "loops/miniblock.pxi"
include "loops/pages.pxi"
include "loops/distinct.pxi"
include "loops/small_pages.pxi"
include "loops/messages.pxi"
include "loops/levels.pxi"
include "loops/fullzip.pxi"
include "loops/gather.pxi"
include "loops/rows.pxi"
include "loops/compression.pxi"
include "loops/interleave.pxi"
include "loops/varbin.pxi"
