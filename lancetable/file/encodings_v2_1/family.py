"""Entry points of file versions 2.1 and 2.2 for reader.py and writer.py."""

from __future__ import annotations

from functools import partial
from typing import Final

from lancetable.file.column import Family
from lancetable.file.encodings_v2_1.fields import has_no_nulls, open_cursor, open_field
from lancetable.file.encodings_v2_1.writers import open_writers
from lancetable.format.version import FileVersion

__all__ = ["FAMILY_2_1", "FAMILY_2_2"]

FAMILY_2_1: Final = Family(open_field, partial(open_writers, FileVersion.V2_1), has_no_nulls, open_cursor)
FAMILY_2_2: Final = Family(open_field, partial(open_writers, FileVersion.V2_2), has_no_nulls, open_cursor)
