"""Loader of compiled modules, which are optional: each has an equivalent in Python or NumPy."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any


def load(name: str) -> Any:
    """Return a compiled module by its full name; None if it was not built or LANCETABLE_KERNELS is 0."""
    if os.environ.get("LANCETABLE_KERNELS") == "0":
        return None
    try:
        return import_module(name)
    except ImportError:
        return None
