"""Targets: footer, metadata and pages of data files, which are read as a whole, in windows and at a few rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from integration.fuzz.containers import cross_files, mutate_file, mutate_legacy
from integration.fuzz.seeds import data_files
from integration.fuzz.target import Target
from lancetable.errors import LanceError
from lancetable.file.column_mapping import column_map
from lancetable.file.encodings_v0_1.statistics import read_zones
from lancetable.file.extension_types import user_array
from lancetable.file.footer import FileMetadata, ReadLimits
from lancetable.file.io_scheduler import run
from lancetable.file.legacy_footer import LegacyMetadata
from lancetable.file.reader import open_data_file, read_columns
from lancetable.format.schema import Field, Schema
from lancetable.format.version import FileVersion
from lancetable.store.base import ObjectStore
from lancetable.store.memory import MemoryStore

LIMITS = ReadLimits(page_bytes=64 << 20)
MAX_ROWS = 5_000
MAX_FIELDS = 20
# A reader returns stored numbers outside of the range of their Arrow type unchanged; a full validation rejects them.
_STORED_VALUES = re.compile("whole number of days|within the acceptable range|does not fit in precision")


def opened(data: bytes) -> tuple[ObjectStore, FileMetadata]:
    """Return the metadata of a file."""
    store = MemoryStore.private()
    store.put("f", data)
    return store, open_data_file(store, "f", limits=LIMITS)


def open_file(data: bytes) -> None:
    """Parse everything that describes a file."""
    _, meta = opened(data)
    with suppress(LanceError):
        column_map(meta.schema, meta.version)
        meta.schema.to_arrow()
    for index in range(min(meta.num_columns, MAX_FIELDS)):
        with suppress(LanceError):
            list(meta.column(index).every_page())


def read_file(data: bytes) -> None:
    """Read each column as a whole, in windows and at a few rows."""
    store, meta = opened(data)
    columns = column_map(meta.schema, meta.version)
    rows = range(max(0, meta.num_rows - MAX_ROWS), meta.num_rows)
    few = np.unique(np.linspace(rows.start, rows.stop - 1, 7).astype(np.int64)) if rows else None
    for field in meta.schema.fields[:MAX_FIELDS]:
        fields, step = [field], len(rows) // 3 or 1
        reads = [partial(read_columns, rows=rows), partial(read_columns, rows=few if rows else rows)]
        reads += [partial(read_columns, rows=rows[start : start + step]) for start in range(0, len(rows), step)]
        for read in reads:
            with suppress(LanceError):
                _check(field, *read(store, "f", meta, fields, columns))


def read_legacy_statistics(data: bytes) -> None:
    """Read the zone maps of a 0.1 file."""
    store, meta = opened(data)
    if isinstance(meta, LegacyMetadata):
        statistics = run(read_zones(meta, meta.schema), store, "f")
        if statistics is not None:
            statistics.fold()


def _check(field: Field, array: Any) -> None:
    """Raise AssertionError for an array of another type, and ArrowInvalid for an invalid one."""
    assert array.type == field.data_type, f"{array.type} instead of {field.data_type}"
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        if not _STORED_VALUES.search(str(error)):
            raise
    user_array(array, Schema((field,)).to_arrow().field(0).type)


def _of_every_version() -> Iterator[bytes]:
    for version in FileVersion:
        if not version.is_legacy:
            yield from data_files(version)


def _target(name: str, version: FileVersion, function: Callable[[bytes], None]) -> Target:
    if version.is_legacy:
        return Target(name, function, partial(data_files, version), mutate_legacy)
    return Target(name, function, partial(data_files, version), mutate_file, cross_files)


TARGETS = [
    Target("footer-2.x", open_file, _of_every_version),
    Target("footer-0.1", open_file, partial(data_files, FileVersion.LEGACY)),
    Target("metadata-2.x", open_file, _of_every_version, mutate_file, cross_files),
    _target("metadata-0.1", FileVersion.LEGACY, open_file),
    *(_target(f"pages-{version.number}", version, read_file) for version in FileVersion),
    _target("statistics-0.1", FileVersion.LEGACY, read_legacy_statistics),
]
