# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled forms of the kernels in this folder, with one file of `loops/` for each module.

The Python function that calls a compiled form documents it, and its NumPy form is the reference. Loops are C and run
without the GIL.
"""

include "loops/common.pxi"
include "loops/bitpacking.pxi"
include "loops/fsst.pxi"
include "loops/miniblock.pxi"
include "loops/pages.pxi"
include "loops/levels.pxi"
include "loops/fullzip.pxi"
include "loops/gather.pxi"
include "loops/rows.pxi"
include "loops/general.pxi"
include "loops/interleave.pxi"
include "loops/varbin.pxi"
