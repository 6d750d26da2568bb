"""Writing of new index segments: their files, and their entries in the manifest."""

from __future__ import annotations

import logging
import time
import uuid as uuid_module
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyroaring

from lancetable import telemetry
from lancetable.commit.commit_loop import commit_transaction
from lancetable.commit.publish import discarding_on_failure
from lancetable.errors import UnsupportedFeatureError
from lancetable.format import transaction as tx
from lancetable.format.index import IndexMetadata, uuid_text
from lancetable.format.paths import INDICES_DIR, join
from lancetable.format.transaction import Transaction
from lancetable.format.version import FileVersion
from lancetable.index.index_files import SegmentWriter
from lancetable.ops.index.column_values import ColumnValues
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.store.base import discard, undone_on_error
from lancetable.table.row_id_lookup import row_id_index

if TYPE_CHECKING:
    from lancetable.format.row_address import U64Array
    from lancetable.format.schema import Field
    from lancetable.index.kind import IndexKind, RowFilter
    from lancetable.index.row_mapping import AddressMapping
    from lancetable.index.segments import IndexSegment
    from lancetable.table.version import TableVersion


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IndexTarget:
    """An index to build: name, column, kind, and parameters of the kind."""

    name: str
    field: Field
    kind: IndexKind
    options: Mapping[str, Any]


def build_segment(
    version: TableVersion,
    target: IndexTarget,
    fragment_ids: Sequence[int],
    *,
    uuid: uuid_module.UUID | None = None,
    tracker: Tracker = NO_PROGRESS,
) -> IndexMetadata:
    """Write a segment with the live rows of fragments; it is not committed. The files are durable on return.

    Raises the errors of `IndexKind.build`. All files are removed after an error.
    """
    kind, field, options = target.kind, target.field, target.options

    def build(writer: SegmentWriter) -> bytes:
        values = _values(version, target, fragment_ids, tracker)
        return kind.build(writer, field, values, options).SerializeToString()

    return write_files(version, target, fragment_ids, version.version, build, uuid)


def merge_segments(
    version: TableVersion,
    target: IndexTarget,
    sources: Sequence[IndexSegment],
    fragment_ids: Sequence[int] = (),
    *,
    tracker: Tracker = NO_PROGRESS,
) -> IndexMetadata:
    """Write one segment with the entries of several others, and the live rows of more fragments.

    Entries of rows that a source does not cover any more are left out. The parameters of a source are kept.
    If the entries cannot be merged, the segment is built from the data.
    """
    if can_merge(version, target, sources):
        try:
            return _merge(version, target, sources, fragment_ids, tracker)
        except UnsupportedFeatureError as error:
            logger.warning(
                "%s: index %r is built from the data: %s",
                version.uri,
                target.name,
                error,
                extra=telemetry.fields("index.rebuilt", version.uri, version=version.version, index=target.name),
            )
    model, fragments = model_of(sources), fragments_to_read(sources, fragment_ids)
    return rebuild_segment(
        version, target, model, fragments, retrain=not _has_one_type(target, sources), tracker=tracker
    )


def _merge(
    version: TableVersion,
    target: IndexTarget,
    sources: Sequence[IndexSegment],
    fragment_ids: Sequence[int],
    tracker: Tracker,
) -> IndexMetadata:
    kind, field = target.kind, target.field
    covered = {fragment_id for source in sources for fragment_id in source.fragments}
    # A newer number would hide that addresses of the old segments were moved by a deferred compaction.
    versions = [source.files.metadata.dataset_version for source in sources if source.fragments]

    def merge(writer: SegmentWriter) -> bytes:
        opened = [(source.open(), row_filter(version, source)) for source in sources]
        values = _values(version, target, fragment_ids, tracker)
        return kind.merge(writer, field, opened, values, target.options).SerializeToString()

    return write_files(version, target, covered | {*fragment_ids}, min(versions, default=version.version), merge)


def can_merge(version: TableVersion, target: IndexTarget, sources: Sequence[IndexSegment]) -> bool:
    """Return whether a segment can be written from the entries of others rather than from the data.

    Old versions of a kind store row ids where new ones store addresses, and a deferred compaction leaves old addresses.
    Segments whose fragments do not exist any more have no entries to merge. If the column does not determine the type
    of the values, all segments must have the same type.
    """
    form = stores_row_ids(version, target.kind)
    if not any(source.fragments for source in sources) or not all(
        source.stores_row_ids == form
        and not source.has_old_addresses
        and source.open().is_mergeable
        and sources[0].open().can_merge(source.open())
        for source in sources
    ):
        return False
    return _has_one_type(target, sources)


def _has_one_type(target: IndexTarget, segments: Sequence[IndexSegment]) -> bool:
    """Return whether the column or all segments determine the type of the indexed values."""
    is_known = target.kind.value_type(target.field.data_type) is not None
    return is_known or len({segment.open().value_type for segment in segments}) == 1


def model_of(segments: Sequence[IndexSegment]) -> IndexSegment:
    """Return the segment whose parameters a new one gets: the last one with a determined type of values, if any."""
    return next((segment for segment in reversed(segments) if segment.open().is_mergeable), segments[-1])


def fragments_to_read(sources: Sequence[IndexSegment], fragment_ids: Sequence[int]) -> list[int]:
    """Return the fragments of segments, and more fragments, in ascending order."""
    return sorted({*fragment_ids, *(number for source in sources for number in source.fragments)})


def rebuild_segment(
    version: TableVersion,
    target: IndexTarget,
    model: IndexSegment,
    fragment_ids: Sequence[int],
    *,
    retrain: bool = False,
    tracker: Tracker = NO_PROGRESS,
) -> IndexMetadata:
    """Write a segment with the live rows of fragments and the parameters of an existing segment.

    Without `retrain`, trained models and the type of indexed documents are those of that segment.
    """
    opened = model.open()
    options = {**(opened.training_parameters if retrain else opened.parameters_with_type), **target.options}
    return build_segment(version, replace(target, options=options), fragment_ids, tracker=tracker)


def remap_segment(
    version: TableVersion, target: IndexTarget, source: IndexSegment, mapping: AddressMapping, tracker: Tracker
) -> IndexMetadata:
    """Write a segment with current addresses; it is built from the data if its kind or its form cannot be mapped."""
    is_mapped = False
    entry = source.files.metadata

    def remap(writer: SegmentWriter) -> bytes:
        nonlocal is_mapped
        is_mapped = target.kind.remap(writer, source.open(), mapping)
        return source.files.details

    with suppress(UnsupportedFeatureError):  # of a form that cannot be mapped, such as a set of whole fragments
        written = write_files(version, target, source.fragments, version.version, remap)
    if not is_mapped:
        fragments = sorted(source.fragments)
        return rebuild_segment(version, target, source, fragments, tracker=tracker)
    return replace(written, index_version=entry.index_version)


def row_filter(version: TableVersion, segment: IndexSegment) -> RowFilter:
    """Return the filter of the rows that a segment may name: live rows of the fragments that it covers."""
    covered = np.array(sorted(segment.fragments), np.uint64)

    def in_coverage(addresses: U64Array) -> npt.NDArray[np.bool_]:
        return np.isin(addresses >> np.uint64(32), covered)

    if not segment.stores_row_ids:
        return in_coverage

    def is_covered(ids: U64Array) -> npt.NDArray[np.bool_]:
        # An updated row keeps its id, but its address is in a fragment that this segment does not cover.
        addresses, found = row_id_index(version).find(ids)
        return found & in_coverage(addresses)

    return is_covered


def _values(version: TableVersion, target: IndexTarget, fragment_ids: Sequence[int], tracker: Tracker) -> ColumnValues:
    row_ids = stores_row_ids(version, target.kind)
    return ColumnValues(version, target.field, fragment_ids, row_ids=row_ids, tracker=tracker)


def stores_row_ids(version: TableVersion, kind: IndexKind) -> bool:
    """Return whether new segments of a kind name rows by stable row id rather than by address."""
    stable = version.manifest.has_stable_row_ids
    return stable and kind.stores_row_ids(kind.version_for(stable_row_ids=True))


@contextmanager
def discarding_incomplete(version: TableVersion) -> Iterator[list[IndexMetadata]]:
    """Yield a list for new segments, whose files are removed if the block raises an error."""
    written: list[IndexMetadata] = []
    with undone_on_error(lambda: discard_segments(version, written)):
        yield written


def write_files(
    version: TableVersion,
    target: IndexTarget,
    fragment_ids: Iterable[int],
    dataset_version: int,
    write: Callable[[SegmentWriter], bytes],
    uuid: uuid_module.UUID | None = None,
) -> IndexMetadata:
    """Write a segment by `write`, which returns the serialized details, and return its entry."""
    uuid = uuid or uuid_module.uuid4()
    with new_segment(version, uuid) as writer:
        details = write(writer)
    if not writer.files:
        fragment_ids = ()  # a kind that needs training has written settings only
    return IndexMetadata(
        uuid,
        target.name,
        (target.field.id,),
        dataset_version,
        pyroaring.BitMap(fragment_ids).serialize(),
        target.kind.version_for(stable_row_ids=version.manifest.has_stable_row_ids),
        time.time_ns() // 1_000_000,
        files=tuple(writer.files),
    ).with_details(target.kind.type_url, details)


@contextmanager
def new_segment(version: TableVersion, uuid: uuid_module.UUID) -> Iterator[SegmentWriter]:
    """Yield the writer of a segment's files, which are durable after the block, or removed after an error."""
    file_version = version.manifest.file_version
    if file_version.is_legacy:
        file_version = FileVersion.V2_0
    writer = SegmentWriter(version.store, segment_directory(version, uuid), file_version)
    with undone_on_error(writer.discard):
        yield writer
        version.store.sync(version.base)


def segment_directory(version: TableVersion, uuid: uuid_module.UUID) -> str:
    """Return the directory of a new segment in the store."""
    return join(version.base, f"{INDICES_DIR}/{uuid_text(uuid.bytes)}")


def commit_segments(
    version: TableVersion,
    added: Sequence[IndexMetadata],
    removed: Sequence[IndexMetadata],
    *,
    own: Sequence[IndexMetadata] | None = None,
    transaction_uuid: str | None = None,
) -> TableVersion:
    """Commit new segments and remove others.

    If the commit definitely failed, the files of the segments `own` are removed; all new segments by default. The uuid
    of the transaction is random by default.
    """
    operation = tx.CreateIndex(tuple(added), tuple(removed))
    with discarding_on_failure(lambda: discard_segments(version, added if own is None else own)):
        transaction = Transaction.create(version.version, operation)
        if transaction_uuid is not None:
            transaction = replace(transaction, uuid=transaction_uuid)
        return commit_transaction(version, transaction)


def discard_segments(version: TableVersion, segments: Iterable[IndexMetadata]) -> None:
    """Remove the files of segments that are not committed."""
    paths = [
        join(segment_directory(version, segment.uuid), file.path) for segment in segments for file in segment.files
    ]
    discard(version.store, paths, "files of an index")
