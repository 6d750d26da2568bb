"""The kind of an index whose entry has no details, inferred from the names of its files.

Releases of pylance before 0.19.3 did not store details, and distributed builds of other programs commit entries
without them. Such indexes are BTREE, BITMAP or LABEL_LIST; others are not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from lancetable.errors import UnsupportedTypeError
from lancetable.index.kind import kind_named

if TYPE_CHECKING:
    from lancetable.index.kind import IndexKind
    from lancetable.index.segments import SegmentFiles

_BTREE_FILES = frozenset({"page_data.lance", "page_lookup.lance"})
_BITMAP_FILE = "bitmap_page_lookup.lance"


def infer_kind(files: SegmentFiles) -> IndexKind | None:
    """Return the kind of a segment without details, or None if it cannot be inferred or does not suit the column.

    Lists the directory of the segment if its entry does not record the files.
    """
    field_ids, schema = files.metadata.fields, files.version.schema
    field = schema.by_id.get(field_ids[0]) if len(field_ids) == 1 else None
    if field is None or pa.types.is_fixed_size_list(field.data_type):
        return None
    names = _names(files)
    if names >= _BTREE_FILES:
        kind = kind_named("BTREE")
    elif _BITMAP_FILE in names:
        kind = kind_named("LABEL_LIST" if field.is_list else "BITMAP")
    else:
        return None
    try:
        kind.check_field(field, schema.path_of(field.id))
    except UnsupportedTypeError:
        return None
    return kind


def _names(files: SegmentFiles) -> frozenset[str]:
    if files.metadata.files:
        return frozenset(file.path for file in files.metadata.files)
    version = files.version
    return version.cache.get_or_compute(
        ("names of index files", version.store.key(files.directory)),
        lambda: frozenset(entry.name for entry in version.store.list_names(files.directory)),
        lambda names: 128 * len(names) + 256,
    )
