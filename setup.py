"""The one thing pyproject.toml cannot say: compiled modules that may be missing.

Where there is no C compiler or no Cython, the installation succeeds without them and the NumPy forms of the kernels
run; `lancetable.show_versions()` says which. The compiler, but not the linker, gets the flags in the environment
variable LANCETABLE_CFLAGS.
"""

from __future__ import annotations

import os
import shlex

from setuptools import setup
from setuptools.extension import Extension

KERNELS = "lancetable.file.kernels"
MODULES = [
    f"{KERNELS}.{name}"
    for name in (
        "_native",
        "_native_keys",
        "_native_search",
        "_native_vector_build",
        "_native_vectors",
        "_native_write",
    )
]


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    flags = [] if os.name == "nt" else ["-O3", "-g0", "-fno-strict-aliasing"]
    flags += shlex.split(os.environ.get("LANCETABLE_CFLAGS", ""))
    modules: list[Extension] = cythonize(
        [Extension(name, [name.replace(".", "/") + ".pyx"], extra_compile_args=flags) for name in MODULES]
    )
    for module in modules:
        module.optional = True  # cythonize() makes extensions anew and leaves this behind
    return modules


setup(ext_modules=extensions(), options={"build_ext": {"parallel": os.cpu_count()}})
