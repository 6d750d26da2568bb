"""Building and extending indexes: tasks write segments and merge them, and one commit adds the merged segments.

    fragments of a task ─► part ─┐
    fragments of a task ─► part ─┼─ task ─► segment ─► commit
    fragments of a task ─► part ─┘

A task that merges gets a limited number of parts, so many parts are merged in several rounds. The files of the parts
are removed after the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from lancetable.format.index import IndexMetadata
from lancetable.index.kind import IndexKind, kind_named
from lancetable.index.segments import segment_of
from lancetable.index.vector.vector_kind import KIND
from lancetable.ops.index.column_values import num_values
from lancetable.ops.index.distributed import build_uncommitted, merge_uncommitted
from lancetable.ops.index.optimize import (
    Extension,
    plan_extensions,
    replaced_entries,
    shared_model,
    write_extension,
    write_part,
)
from lancetable.ops.index.segment_builder import IndexTarget, commit_segments, discard_segments, merge_segments
from lancetable.ops.index.targets import segments_named, target_of
from lancetable.ops.index.trained_options import options_with_model, options_without_graphs, train_model
from lancetable.ops.read.splits import plan_splits
from lancetable.spark.jobs.base import TableJob, from_string, rows_per_task, to_string
from lancetable.spark.options import DEFAULT_TASK_BYTES
from lancetable.spark.task_runner import Json, Runner, succeeded
from lancetable.table.version import TableVersion

_MOST_PARTS = 32  # of a merge, which keeps a block of each in memory


@dataclass(frozen=True)
class IndexJob(TableJob):
    """Base of jobs that write segments of indexes.

    A plan contains {"segments"}, the number of segments to commit. The task of a part maps {"segment", "fragments"},
    and the task of a merge {"segment", "parts", "is_last"}, to {"segment", "entry", "merged"}: the number of the
    segment, the entry that was written, and the uuids of the parts that it replaces.

    `task_rows` is the target number of rows of a part. By default, there is about one task for each of the `cores`.
    """

    task_rows: int | None
    cores: int | None

    def run(self, runner: Runner, plan: Json) -> Iterator[Json]:
        """Write the parts, then merge those of each segment."""
        results = runner.run(self.work(plan), plan["tasks"])
        yield from results
        parts: dict[int, list[str]] = {number: [] for number in range(plan["segments"])}
        while len(succeeded(results)) == len(results):
            for result in results:
                parts[result["segment"]].append(result["entry"])
            tasks = [task for number, entries in parts.items() for task in self._merges(number, entries)]
            if not tasks:
                return
            results = runner.run(partial(self.merge, {**plan, "tasks": []}), tasks)
            yield from results
            # Segments are complete after their last merge. Failures, which have no segment, end the loop.
            complete = {task["segment"] for task in tasks if task["is_last"]}
            parts = {task["segment"]: [] for task in tasks if not task["is_last"]}
            results = [result for result in results if result.get("segment") not in complete]

    def _merges(self, segment: int, parts: Sequence[str]) -> Iterator[Json]:
        """Yield the next merges of a segment; none if its only part is the segment."""
        count = max(1, -(-len(parts) // _MOST_PARTS))
        if count == 1 and not self.merges_last(len(parts)):
            return
        bounds = [number * len(parts) // count for number in range(count + 1)]
        for start, end in pairwise(bounds):
            yield {"segment": segment, "parts": list(parts[start:end]), "is_last": count == 1}

    def merges_last(self, num_parts: int) -> bool:
        """Return whether the last parts of a segment must be merged. By default, if there are several."""
        return num_parts > 1

    def execute(self, plan: Json, task: Json) -> Json:
        """Write a part."""
        entry = self.write_part(self.open_planned_version(plan), plan, task["segment"], task["fragments"])
        return {"segment": task["segment"], "entry": to_string(entry), "merged": []}

    def merge(self, plan: Json, task: Json) -> Json:
        """Merge parts."""
        version, parts = self.open_planned_version(plan), [from_string(IndexMetadata, part) for part in task["parts"]]
        entry = self.merge_parts(version, task["segment"], parts, is_last=task["is_last"])
        return {"segment": task["segment"], "entry": to_string(entry), "merged": [str(part.uuid) for part in parts]}

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        """Commit the segments, remove the files of merged parts, and return the names of the indexes with counts."""
        base = self.open_planned_version(plan)
        written = _entries(results)
        merged = {part for result in results for part in result["merged"]}
        added = [entry for entry in written if str(entry.uuid) not in merged]
        own = [] if keep_files else written
        version = commit_segments(base, added, self.removed(base), own=own, transaction_uuid=uuid)
        discard_segments(base, [entry for entry in written if str(entry.uuid) in merged])
        names = sorted({entry.name for entry in added})
        return {"indexes": names, "segments": len(added), "rows": plan["rows"], "version": version.version}

    def discard(self, plan: Json, results: list[Json]) -> Json:
        """Remove the files of segments."""
        discard_segments(self.open_planned_version(plan), _entries(results))
        return {}

    def write_part(self, version: TableVersion, plan: Json, segment: int, fragment_ids: Sequence[int]) -> IndexMetadata:
        """Write a part of a segment for some fragments."""
        raise NotImplementedError

    def merge_parts(
        self, version: TableVersion, segment: int, parts: Sequence[IndexMetadata], *, is_last: bool
    ) -> IndexMetadata:
        """Merge parts of a segment, all remaining ones if `is_last` is True."""
        raise NotImplementedError

    def removed(self, version: TableVersion) -> list[IndexMetadata]:
        """Return the entries that the new segments replace."""
        raise NotImplementedError

    def groups(self, version: TableVersion, field_id: int, fragment_ids: Sequence[int]) -> list[list[int]]:
        """Return the fragments of each part, given those of the segment."""
        tasks = plan_splits(
            version,
            columns=[version.schema.path_of(field_id)],
            task_rows=self.task_rows or rows_per_task(version, self.cores),
            task_bytes=DEFAULT_TASK_BYTES,
            whole_fragments=True,
            fragments=frozenset(fragment_ids),
        )
        return [[split.fragment_id for split in task] for task in tasks]


@dataclass(frozen=True)
class CreateIndexJob(IndexJob):
    """Job that builds an index. The segments cover consecutive fragments. Without `train`, the index is empty.

    The plan contains "parts", the number of parts of each segment. That of a vector index also contains its "model",
    which is trained on a sample of all rows.
    """

    column: str
    kind: str
    parameters: Mapping[str, Any]
    name: str | None
    replace: bool
    train: bool
    num_segments: int
    verb = "create_index"

    def plan_tasks(self, version: TableVersion) -> Json:
        """Return the fragments of each part. Raises the errors of `target_of`."""
        target = self._target(version)
        field_id, model = target.field.id, None
        fragment_ids = [fragment.id for fragment in version.manifest.fragments] if self.train else []
        if target.kind.needs_training and fragment_ids:
            model = train_model(version, target, fragment_ids)
            fragment_ids = fragment_ids if model is not None else []
        groups = self.groups(version, field_id, fragment_ids) or [[]]
        count = min(self.num_segments, len(groups))
        tasks = [{"segment": number * count // len(groups), "fragments": group} for number, group in enumerate(groups)]
        parts = [sum(task["segment"] == number for task in tasks) for number in range(count)]
        rows = num_values(version, fragment_ids)
        return {"tasks": tasks, "segments": count, "rows": rows, "parts": parts, "model": model}

    def write_part(self, version: TableVersion, plan: Json, segment: int, fragment_ids: Sequence[int]) -> IndexMetadata:
        """Build a part. See IndexJob."""
        options = self.parameters
        if plan["model"] is not None:
            options = options_with_model(options, plan["model"])
            options = options if plan["parts"][segment] == 1 else options_without_graphs(options)
        return build_uncommitted(
            version,
            self.column,
            self._kind,
            fragment_ids,
            name=self.name,
            replace_existing=self.replace,
            options=options,
        )

    def merge_parts(
        self, version: TableVersion, segment: int, parts: Sequence[IndexMetadata], *, is_last: bool
    ) -> IndexMetadata:
        """Merge parts; the last merge builds graphs. See IndexJob."""
        target = self._target(version)
        if is_last and target.kind.needs_training:
            return merge_segments(version, target, [segment_of(version, part) for part in parts])
        return merge_uncommitted(version, parts)

    def removed(self, version: TableVersion) -> list[IndexMetadata]:
        """Return the entries of an index with the same name."""
        return [segment.files.metadata for segment in segments_named(version, self._target(version).name)]

    @property
    def _kind(self) -> IndexKind:
        return KIND if self.kind == KIND.name else kind_named(self.kind)

    def _target(self, version: TableVersion) -> IndexTarget:
        return target_of(version, self.column, self._kind, self.name, self.parameters, replace=self.replace)


@dataclass(frozen=True)
class OptimizeIndicesJob(IndexJob):
    """Job that extends indexes to the fragments that they do not cover.

    If the new fragments of an index fit in one task, the task that merges the segments also reads them. Otherwise, the
    plan contains "models", which all parts of a segment of a vector index share.
    """

    names: tuple[str, ...] | None
    num_to_merge: int | None
    retrain: bool
    verb = "optimize_indices"

    def plan_tasks(self, version: TableVersion) -> Json:
        """Return the fragments of each part, or an empty result if all indexes are complete."""
        extensions = self._extensions(version)
        if not extensions:
            return {"result": {}}
        tasks: list[Json] = []
        models: list[Json | None] = []
        for number, extension in enumerate(extensions):
            groups = self.groups(version, extension.target.field.id, extension.read_fragments)
            models.append(shared_model(version, extension) if len(groups) > 1 else None)
            if models[-1] is not None:
                tasks += [{"segment": number, "fragments": group} for group in groups]
        rows = sum(num_values(version, extension.read_fragments) for extension in extensions)
        return {"tasks": tasks, "segments": len(extensions), "rows": rows, "models": models}

    def merges_last(self, num_parts: int) -> bool:
        """Return True: the last merge also reads the segments that are extended."""
        return True

    def write_part(self, version: TableVersion, plan: Json, segment: int, fragment_ids: Sequence[int]) -> IndexMetadata:
        """Build a part. See IndexJob."""
        return write_part(version, self._extensions(version)[segment], fragment_ids, plan["models"][segment])

    def merge_parts(
        self, version: TableVersion, segment: int, parts: Sequence[IndexMetadata], *, is_last: bool
    ) -> IndexMetadata:
        """Merge parts and, at last, the segments that are extended. See IndexJob."""
        if not is_last:
            return merge_uncommitted(version, parts)
        opened = [segment_of(version, part) for part in parts]
        return write_extension(version, self._extensions(version)[segment], opened)

    def removed(self, version: TableVersion) -> list[IndexMetadata]:
        """Return the entries of the segments that are extended, and of a fragment reuse index that is not needed."""
        return replaced_entries(version, self._extensions(version))

    def _extensions(self, version: TableVersion) -> list[Extension]:
        return plan_extensions(version, self.names, num_to_merge=self.num_to_merge, retrain=self.retrain)


def _entries(results: Sequence[Json]) -> list[IndexMetadata]:
    return [from_string(IndexMetadata, result["entry"]) for result in results]
