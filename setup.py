"""The one thing pyproject.toml cannot say: a compiled module that may be missing.

Where there is no C compiler or no Cython, the installation succeeds without it and the NumPy forms of the kernels run;
`lancetable.show_versions()` says which.
"""

from __future__ import annotations

import os

from setuptools import setup
from setuptools.extension import Extension

PYX = "lancetable/file/kernels/_native.pyx"


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    flags = [] if os.name == "nt" else ["-O3", "-fno-strict-aliasing"]
    kernels = Extension("lancetable.file.kernels._native", [PYX], extra_compile_args=flags)
    modules: list[Extension] = cythonize([kernels])
    for module in modules:
        module.optional = True  # cythonize() makes extensions anew and leaves this behind
    return modules


setup(ext_modules=extensions())
