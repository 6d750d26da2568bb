# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twins of the kernels beside this file, under the same names; one file of `loops/` for each.

Every function here is chosen by the Python function of the same name, whose NumPy form is the reference and whose
docstring is the contract. What is different: loops are C and run without the GIL.
"""

include "loops/common.pxi"
include "loops/bitpacking.pxi"
include "loops/fsst.pxi"
include "loops/miniblock.pxi"
include "loops/pages.pxi"
include "loops/levels.pxi"
include "loops/fullzip.pxi"
include "loops/picks.pxi"
include "loops/rows.pxi"
include "loops/general.pxi"
include "loops/frames.pxi"
include "loops/interleave.pxi"
include "loops/varbin.pxi"
include "loops/statistics.pxi"
