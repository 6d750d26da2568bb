"""Compiled modules, which may be missing: whoever asks for one has a form in Python or NumPy that does the same."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

__all__ = ["load"]


def load(name: str) -> Any:
    """The compiled module of this full name; None if it was not built, or with LANCETABLE_KERNELS=0."""
    if os.environ.get("LANCETABLE_KERNELS") == "0":
        return None
    try:
        return import_module(name)
    except ImportError:
        return None
