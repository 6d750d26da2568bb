"""Extension of indexes to fragments that they do not cover, and merging of their segments.

    segments           A covers 0..3    B covers 4    fragment 5 is not covered

    default            A                B' covers 4, 5           the newest segment is extended
    num_to_merge=0     A                B    C covers 5          a new segment
    num_to_merge=2     A' covers 0..5
    retrain            A' covers 0..5, built from the data

Segments of vector indexes are not extended by default: new rows get a segment of their own, with the same partitions.
If a partition is too large, the index is built from the data with divided partitions (ops/index/repartition.py).

Other segments are merged or rewritten as well if they contain old entries of rows in fragment 5
(ops/index/stale_segments.py), or addresses before a deferred compaction (ops/index/deferred_remap.py).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from lancetable import telemetry
from lancetable.errors import UnsupportedFeatureError
from lancetable.format.index import IndexMetadata, parse_indices
from lancetable.index.segments import IndexSegment, fragment_reuse, index_segments
from lancetable.ops.change.retry import on_newest
from lancetable.ops.index.column_values import num_values
from lancetable.ops.index.repartition import changed_centroids, has_large_partitions
from lancetable.ops.index.segment_builder import (
    IndexTarget,
    can_merge,
    commit_segments,
    discarding_incomplete,
    fragments_to_read,
    merge_segments,
    model_of,
    rebuild_segment,
    remap_segment,
)
from lancetable.ops.index.stale_segments import stale_segments
from lancetable.ops.index.targets import existing_target
from lancetable.ops.index.trained_options import (
    model_of_centroids,
    options_with_model,
    options_without_graphs,
    train_model,
)
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.table.fragment_reuse_entry import reuse_entry_of

if TYPE_CHECKING:
    from lancetable.table.version import TableVersion

logger = logging.getLogger(__name__)


class Extension(NamedTuple):
    """A new segment of an index: segments that it replaces, and fragments whose values are read.

    `model` is the segment whose parameters apply. With `rebuilds`, the values of all fragments are read. Only with
    `retrains`, kinds that are trained are trained on them, and they determine the type of indexed documents. With
    `repartitions`, large partitions are divided.
    """

    target: IndexTarget
    model: IndexSegment
    sources: tuple[IndexSegment, ...]
    fragments: tuple[int, ...]
    rebuilds: bool = False
    retrains: bool = False
    repartitions: bool = False

    @property
    def read_fragments(self) -> list[int]:
        """The fragments whose values are read."""
        return fragments_to_read(self.sources, self.fragments) if self.rebuilds else list(self.fragments)


def optimize_indices(
    version: TableVersion,
    names: Collection[str] | None = None,
    *,
    num_to_merge: int | None = None,
    retrain: bool = False,
    tracker: Tracker = NO_PROGRESS,
) -> TableVersion:
    """Extend indexes to all fragments, in one commit. Without work to do, no version is created.

    Indexes of kinds, or on columns of types, that this library does not support are left unchanged, with a warning.

    Parameters
    ----------
    version
        The version to work on.
    names
        Names of the indexes; all by default. Other names are ignored.
    num_to_merge
        Number of segments, newest first, that are merged with the new entries. 0 writes a new segment. By default,
        the newest segment is extended if fragments are not covered.
    retrain
        Build one segment from the data, for all fragments.
    tracker
        Progress.

    Raises
    ------
    UnsupportedFeatureError
        If `names` contains an index of a kind, or on a column of a type, that is not supported.
    CorruptFileError
        If a segment is damaged.
    RetryableCommitConflictError
        If every attempt conflicted with a concurrent commit.
    CommitStateUnknownError
        If the outcome of the commit is unknown.
    """

    def attempt(base: TableVersion) -> TableVersion:
        plan = plan_extensions(base, names, num_to_merge=num_to_merge, retrain=retrain)
        if not plan:
            return base
        tracker.begin(total_rows=sum(num_values(base, each.read_fragments) for each in plan))
        with discarding_incomplete(base) as added:
            for each in plan:
                added.append(write_extension(base, each, tracker=tracker))  # complete ones are removed after an error
        return commit_segments(base, added, replaced_entries(base, plan))

    return on_newest(version, attempt)


def plan_extensions(
    version: TableVersion, names: Collection[str] | None, *, num_to_merge: int | None, retrain: bool
) -> list[Extension]:
    """Return the segments to write. Raises UnsupportedFeatureError if `names` contains one that cannot be."""
    groups: dict[str, list[IndexSegment]] = {}
    for segment in index_segments(version):
        fields = segment.files.metadata.fields
        if fields and version.schema.by_id.keys() >= {*fields} and (names is None or segment.name in names):
            groups.setdefault(segment.name, []).append(segment)
    plan: list[Extension] = []
    for name, segments in groups.items():
        try:
            target = existing_target(version, segments)
            extensions = [*_plan_extensions(version, target, segments, num_to_merge, retrain=retrain)]
        except UnsupportedFeatureError as error:
            if names is not None:
                raise
            logger.warning(
                "%s: index %r is not extended: %s",
                version.uri,
                name,
                error,
                extra=telemetry.fields("index.not_extended", version.uri, version=version.version, index=name),
            )
            continue
        plan += extensions
    return plan


def _plan_extensions(
    version: TableVersion,
    target: IndexTarget,
    segments: Sequence[IndexSegment],
    num_to_merge: int | None,
    *,
    retrain: bool,
) -> Iterator[Extension]:
    """Yield the segments to write for an index; none if nothing needs to be done."""
    kind, covered = target.kind, {number for segment in segments for number in segment.fragments}
    missing = tuple(fragment.id for fragment in version.manifest.fragments if fragment.id not in covered)
    if retrain:
        yield Extension(target, model_of(segments), tuple(segments), missing, rebuilds=True, retrains=True)
        return
    count = (0 if kind.needs_training else 1) if num_to_merge is None else min(num_to_merge, len(segments))
    if kind.needs_training and missing and not any(segment.open().is_mergeable for segment in segments):
        yield Extension(target, model_of(segments), tuple(segments), missing, rebuilds=True, retrains=True)
        return
    if kind.needs_training and missing and num_to_merge is None and has_large_partitions(segments):
        yield Extension(target, model_of(segments), tuple(segments), missing, rebuilds=True, repartitions=True)
        return
    if not missing and count < 2:
        count = 0
    merged = segments[len(segments) - count :]
    stale = [segment for segment in stale_segments(version, segments, missing) if segment not in merged]
    if count:
        merged, stale = [segment for segment in segments if segment in merged or segment in stale], []
    if merged or missing:
        others = [segment for segment in segments if segment.fragments and segment not in merged]
        rebuilds, retrains = not can_merge(version, target, merged), not others and not kind.needs_training
        yield Extension(target, model_of(others or segments), tuple(merged), missing, rebuilds, retrains)
    for segment in segments:
        is_stale, is_old = segment in stale, segment.has_old_addresses
        if segment not in merged and (is_stale or is_old):
            yield Extension(target, segment, (segment,), (), rebuilds=is_stale and is_old)


def write_extension(
    version: TableVersion,
    extension: Extension,
    parts: Sequence[IndexSegment] = (),
    *,
    tracker: Tracker = NO_PROGRESS,
) -> IndexMetadata:
    """Write the segment of an extension, without committing it.

    `parts` are segments that `write_part` has built for `extension.read_fragments`, which are then not read.
    """
    target, sources, model = extension.target, extension.sources, extension.model
    if extension.repartitions and not parts:
        centroids = changed_centroids(version, target.field, sources)
        options = {**target.options, "centroids": centroids, "num_partitions": len(centroids)}
        target = replace(target, options=options)
    if parts:
        if target.kind.needs_training:
            target = replace(target, options={**model.open().parameters, **target.options})  # with its graphs
        return merge_segments(version, target, [*(() if extension.rebuilds else sources), *parts], tracker=tracker)
    reuse = fragment_reuse(version)
    if extension.rebuilds or not sources:
        fragments, retrain = extension.read_fragments, extension.retrains
        return rebuild_segment(version, target, model, fragments, retrain=retrain, tracker=tracker)
    if reuse is not None and len(sources) == 1 and not extension.fragments and sources[0].has_old_addresses:
        return remap_segment(version, target, sources[0], reuse, tracker)
    return merge_segments(version, target, sources, extension.fragments, tracker=tracker)


def shared_model(version: TableVersion, extension: Extension) -> dict[str, Any] | None:
    """Return the model that all parts of an extension must have as JSON; empty for that of `extension.model`.

    Returns None if there are too few values to train it: then parts cannot be written.
    """
    target, model = extension.target, extension.model.open()
    if not target.kind.needs_training:
        return {}
    if extension.retrains:
        target = replace(target, options={**model.training_parameters, **target.options})
        return train_model(version, target, extension.read_fragments)
    if extension.repartitions:
        return model_of_centroids(changed_centroids(version, target.field, extension.sources))
    return {}


def write_part(
    version: TableVersion, extension: Extension, fragment_ids: Sequence[int], model: Mapping[str, Any]
) -> IndexMetadata:
    """Write a segment with the values of some fragments of an extension, without committing it.

    `model` is that of `shared_model`. Graphs are not built, because the merge of the parts builds them.
    """
    target, opened = extension.target, extension.model.open()
    if target.kind.needs_training:
        options = {**(opened.training_parameters if extension.retrains else opened.parameters), **target.options}
        options = options_with_model(options, model) if model else options
        target = replace(target, options=options_without_graphs(options))
    return rebuild_segment(version, target, extension.model, fragment_ids, retrain=extension.retrains)


def replaced_entries(version: TableVersion, plan: Sequence[Extension]) -> list[IndexMetadata]:
    """Return the entries that the commit of some extensions removes."""
    replaced = [source.files.metadata for each in plan for source in each.sources]
    return [*replaced, *_needless_reuse_index(version, replaced)]


def _needless_reuse_index(version: TableVersion, replaced: Sequence[IndexMetadata]) -> list[IndexMetadata]:
    """Return the entry of the fragment reuse index if no segment needs it after some are replaced."""
    entries = parse_indices(version.file.index_section(version.store), version.location.path)
    reuse, record = fragment_reuse(version), reuse_entry_of(version, entries)
    if reuse is None or record is None:
        return []
    kept = [entry for entry in entries if entry.fields and entry not in replaced]
    return [] if any(entry.dataset_version <= reuse.newest_version for entry in kept) else [record]
