"""Encoding family of file version 0.1. Files are written by file/legacy_writer.py."""

from __future__ import annotations

from typing import Final

from lancetable.file.column import Family
from lancetable.file.encodings_v0_1.fields import open_field

__all__ = ["FAMILY"]

FAMILY: Final = Family(open_field=open_field, writers=None, has_no_nulls=None)
