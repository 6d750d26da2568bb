"""Feature flags: two 64-bit words that declare the features that readers and writers of a table must support.

A reader refuses a table if the reader word has a bit that it does not support; a writer checks the writer word in the
same way. Each commit computes both words from the contents of the new version; only sticky bits are copied from the
previous version.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.proto import table_pb2

DELETIONS: Final = 1 << 0
STABLE_ROW_IDS: Final = 1 << 1
V2_FORMAT: Final = 1 << 2  # no longer written
TABLE_CONFIG: Final = 1 << 3
BASE_PATHS: Final = 1 << 4
NO_TRANSACTION_FILE: Final = 1 << 5
DATA_OVERLAYS: Final = 1 << 6
COVERING_INDICES: Final = 1 << 7
MIXED_FILE_VERSIONS: Final = 1 << 8
TRACKED_REUSE_INDEX: Final = 1 << 9
TAGGED_REUSE_INDEX: Final = 1 << 10
SPILLED_LINEAGE: Final = 1 << 11
FRAGMENT_TREE: Final = 1 << 12
MANAGED_BLOBS: Final = 1 << 14
NO_FIELD_ID_REUSE: Final = 1 << 15
ZONE_WRITE_SEEDS: Final = 1 << 16

MANAGED_BLOBS_KEY: Final = "lance.blob.managed"
"""Schema metadata key; "true" if blobs may be objects that the table manages itself."""

# Indices are preserved but never used to find rows, so flags that concern only indices do not stop a reader.
_BASIC: Final = DELETIONS | STABLE_ROW_IDS | V2_FORMAT | TABLE_CONFIG | BASE_PATHS | NO_TRANSACTION_FILE
READER_KNOWN: Final = _BASIC | COVERING_INDICES | MIXED_FILE_VERSIONS | SPILLED_LINEAGE | MANAGED_BLOBS
# Row ids in hidden columns can be read, but not written: a commit would have to move ids and versions out of them.
WRITER_KNOWN: Final = READER_KNOWN & ~SPILLED_LINEAGE

STICKY: Final = MIXED_FILE_VERSIONS | MANAGED_BLOBS
PAIRED: Final = MIXED_FILE_VERSIONS | TAGGED_REUSE_INDEX | MANAGED_BLOBS | ZONE_WRITE_SEEDS

_MEANINGS: Final = {
    DELETIONS: "deletion files",
    STABLE_ROW_IDS: "stable row ids",
    V2_FORMAT: "v2 data files",
    TABLE_CONFIG: "table config",
    BASE_PATHS: "base paths",
    NO_TRANSACTION_FILE: "no transaction files",
    DATA_OVERLAYS: "data overlay files",
    COVERING_INDICES: "covering indices",
    MIXED_FILE_VERSIONS: "mixed data file versions",
    TRACKED_REUSE_INDEX: "a fragment reuse index beside stable row ids",
    TAGGED_REUSE_INDEX: "a tagged fragment reuse index",
    SPILLED_LINEAGE: "row ids in hidden columns",
    FRAGMENT_TREE: "a fragment tree",
    MANAGED_BLOBS: "managed blobs",
    NO_FIELD_ID_REUSE: "field ids that are never reused",
    ZONE_WRITE_SEEDS: "zone write seeds",
}
_REMEDIES: Final = {
    DATA_OVERLAYS: "rewrite the overlaid fragments with the library that made them",
    TRACKED_REUSE_INDEX: "drop that index",
    TAGGED_REUSE_INDEX: "remap the indices and drop it",
    SPILLED_LINEAGE: "turn lance.row_lineage.spill off and compact with the library that made them",
}


def describe(flags: int) -> list[str]:
    """Return one phrase for each set bit, lowest bit first."""
    positions = [position for position in range(flags.bit_length()) if flags >> position & 1]
    return [
        f"bit {position}" + (f" ({_MEANINGS[1 << position]})" if 1 << position in _MEANINGS else "")
        for position in positions
    ]


def check_readable(reader_flags: int, where: str, *, writer_flags: int | None = None) -> None:
    """Check that this library can read a table.

    Parameters
    ----------
    reader_flags
        The reader word of the manifest.
    where
        Name of the table or path of the manifest, for error messages.
    writer_flags
        The writer word, if the two words are to be compared.

    Raises
    ------
    UnsupportedFeatureError
        If the reader word has a bit that is not supported.
    CorruptFileError
        If `writer_flags` is given and the two words contradict each other.
    """
    if reader_flags & ~READER_KNOWN:
        raise _refusal("read", reader_flags & ~READER_KNOWN, where)
    if writer_flags is not None and (reader_flags | writer_flags) & (PAIRED | NO_FIELD_ID_REUSE):
        _check_pairs(reader_flags, writer_flags, where)


def check_writable(writer_flags: int, where: str, *, reader_flags: int | None = None) -> None:
    """Check that this library can write to a table. Parameters and errors as in `check_readable`."""
    if writer_flags & ~WRITER_KNOWN:
        raise _refusal("write", writer_flags & ~WRITER_KNOWN, where)
    if reader_flags is not None:
        check_readable(reader_flags, where, writer_flags=writer_flags)


def compute(
    manifest: table_pb2.Manifest,
    *,
    stable_row_ids: bool = False,
    has_deletions: bool | None = None,
    indices: Iterable[table_pb2.IndexMetadata] = (),
    previous: tuple[int, int] = (0, 0),
) -> tuple[int, int]:
    """Return (reader word, writer word) for a manifest that is about to be written.

    Parameters
    ----------
    manifest
        The manifest, complete except for its feature words.
    stable_row_ids
        True if rows keep their ids when they are moved.
    has_deletions
        True if a fragment has a deletion file; None to search all fragments.
    indices
        The index entries of the version.
    previous
        Both words of the previous version, from which the sticky bits are copied.
    """
    if has_deletions is None:
        has_deletions = any(fragment.HasField("deletion_file") for fragment in manifest.fragments)
    features = {
        DELETIONS: has_deletions,
        STABLE_ROW_IDS: stable_row_ids,
        BASE_PATHS: len(manifest.base_paths) > 0,
        COVERING_INDICES: any(index.covering_fields for index in indices),
        MANAGED_BLOBS: manifest.schema_metadata.get(MANAGED_BLOBS_KEY) == b"true",
    }
    writer_features = {TABLE_CONFIG: len(manifest.config) > 0, NO_TRANSACTION_FILE: not manifest.transaction_file}
    reader = sum(flag for flag, is_used in features.items() if is_used)
    writer = reader + sum(flag for flag, is_used in writer_features.items() if is_used)
    return reader | previous[0] & STICKY, writer | previous[1] & STICKY


def _check_pairs(reader_flags: int, writer_flags: int, where: str) -> None:
    one_sided = (reader_flags ^ writer_flags) & PAIRED
    if one_sided:
        what = f"{describe(one_sided)[0]} is set in only one of the two feature words"
        raise CorruptFileError(what, "both or none", (reader_flags, writer_flags), path=where)
    if reader_flags & NO_FIELD_ID_REUSE:
        what = f"{describe(NO_FIELD_ID_REUSE)[0]} is set in the reader word; it is valid only in the writer word"
        raise CorruptFileError(what, found=reader_flags, path=where)


def _refusal(verb: str, unknown: int, where: str) -> UnsupportedFeatureError:
    lowest = unknown & -unknown
    remedy = _REMEDIES.get(lowest, "use a newer release of lancetable")
    return UnsupportedFeatureError(
        f"cannot {verb} {where}: it uses {', '.join(describe(unknown))}; {remedy}",
        feature=_MEANINGS.get(lowest, "unknown feature"),
        flags=unknown,
        path=where,
    )
