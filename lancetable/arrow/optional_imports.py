"""Imports of optional packages."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lancetable.errors import MissingPackageError


def load(name: str, purpose: str, remedy: str = "") -> Any:
    """Return an optional package or one of its modules.

    Raises
    ------
    MissingPackageError
        If it is not installed. The message contains `purpose`, the command that installs it, and `remedy`.
    """
    try:
        return import_module(name)
    except ImportError as error:
        missing = (error.name or name).partition(".")[0]
        package = "pillow" if missing == "PIL" else missing
        raise MissingPackageError(f"{purpose} need {package}: run pip install {package}{remedy}", name=name) from error
