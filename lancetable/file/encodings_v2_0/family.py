"""Encoding family of file version 2.0."""

from __future__ import annotations

from typing import Final

from lancetable.file.column import Family
from lancetable.file.encodings_v2_0.fields import has_no_nulls, open_field
from lancetable.file.encodings_v2_0.writers import open_writers

__all__ = ["FAMILY"]

FAMILY: Final = Family(open_field=open_field, writers=open_writers, has_no_nulls=has_no_nulls)
