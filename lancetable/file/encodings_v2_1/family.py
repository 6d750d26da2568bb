"""File versions 2.1 and 2.2 as reader.py and writer.py see them."""

from __future__ import annotations

from typing import Final

from lancetable.file.column import BlobSink, ColumnWriter, Family, WriteOptions
from lancetable.file.encodings_v2_1.fields import open_field
from lancetable.format.schema import Schema

__all__ = ["FAMILY"]


def _open_writers(schema: Schema, options: WriteOptions, blobs: BlobSink) -> list[ColumnWriter]:
    from lancetable.errors import UnsupportedFeatureError

    raise UnsupportedFeatureError("files of version 2.1 and 2.2 cannot be written yet", feature="writing 2.1 files")


FAMILY: Final = Family(open_field=open_field, writers=_open_writers)
