"""Page of the options of the Spark data source."""

from __future__ import annotations

import runpy
from dataclasses import Field
from pathlib import Path
from typing import Any

import lancetable
from scripts.reference_pages.markdown import table

# The package `lancetable.spark` needs PySpark, this module does not.
_OPTIONS = runpy.run_path(str(Path(lancetable.__file__).parent / "spark/options.py"))["OPTIONS"]

_INTRODUCTION = """# Spark options

Generated from the data source `lance`. Names are case-insensitive; `versionAsOf` is another name of `version`. An
unknown option is an error.

"""
_MORE = [
    ["`storage.<key>`", "-", "storage option `<key>` of the table; see [Storage options](storage-options.md)"],
    ["`vector.<column>`", "-", "write: dimension of a vector column, a list of numbers that all have this length"],
]


def page() -> str:
    """Return the page."""
    rows = [[f"`{each.metadata['name']}`", _default(each), each.metadata["meaning"]] for each in _OPTIONS.values()]
    return _INTRODUCTION + table(["option", "default", "meaning"], [*rows, *_MORE])


def _default(option: Field[Any]) -> str:
    return "-" if option.default in (None, "") else f"`{str(option.default).lower()}`"
