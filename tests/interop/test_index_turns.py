"""pylance and lancetable change one table with indexes in turns; after every step, answers with indexes are right.

Every predicate is answered by both libraries, with and without indexes, and all four results are the same rows.
Sequences are drawn from a seed, which a failure reports together with the steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import lance
import pyarrow as pa
import pytest
from lance.optimize import Compaction as TheirCompaction

import lancetable
from lancetable.errors import LanceError
from lancetable.optimize import Compaction

Dataset = Any  # of either library, whose methods have the same names

STORIES = 1
SLOW_STORIES = 50
STEPS = 40

INDEXES = [
    ("id", "BTREE"),
    ("s", "BITMAP"),
    ("s", "NGRAM"),
    ("s", "BTREE"),
    ("f", "BTREE"),
    ("tags", "LABEL_LIST"),
    ("st.x", "BTREE"),
    ("st.x", "BITMAP"),
    ("id", "ZONEMAP"),
    ("f", "ZONEMAP"),
    ("s", "ZONEMAP"),
    ("id", "BLOOMFILTER"),
    ("s", "BLOOMFILTER"),
    ("j", "JSON"),
]
PREDICATES = [
    "id = 7",
    "id > 40 AND id <= 60",
    "id BETWEEN 20 AND 90 AND o < 50",
    "id IN (1, 2, 3, 50, 70)",
    "NOT (id < 50)",
    "s = 'abcd'",
    "s IS NULL",
    "NOT (s = 'abcd')",
    "s IS NOT NULL AND id < 30",
    "contains(s, 'bcd')",
    "s LIKE '%xxx%' AND id > 10",
    "s IN ('', 'zz bcd') OR id >= 100",
    "f = 0.5",
    "f > 0.5",
    "f IS NULL",
    "NOT (f <= 0.5)",
    "f IN (0.0, 2.5) AND s != 'abcd'",
    "array_has(tags, 'a')",
    "array_has_any(tags, ['b', 'c'])",
    "array_has_all(tags, ['a', 'b'])",
    "NOT array_has(tags, 'a') AND id < 80",
    "st.x = 3",
    "st.x > 3 OR s = 'zz bcd'",
    "st.x IS NULL",
    "json_get_int(j, 'a') = 2",
    "json_get_int(j, 'a') > 1",
    "json_get_int(j, 'a') IS NULL",
]


def rows(rng: random.Random, ids: Iterable[int]) -> pa.Table:
    """Return random rows with these ids."""
    ids = list(ids)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "s": pa.array([rng.choice([None, "", "abcd", "zz bcd", "x" * 30]) for _ in ids], pa.string()),
            "f": pa.array([rng.choice([None, 0.5, -0.0, 0.0, 2.5, float("nan")]) for _ in ids], pa.float64()),
            "tags": pa.array(
                [rng.choice([None, [], ["a"], ["a", "b"], ["c", None]]) for _ in ids], pa.list_(pa.string())
            ),
            "j": pa.array([rng.choice([None, "{}", '{"a": 1}', '{"a": 2, "b": [1]}']) for _ in ids], pa.json_()),
            "o": pa.array([rng.randrange(100) for _ in ids], pa.int32()),
            "st": pa.array(
                [rng.choice([{"x": None}, {"x": rng.randrange(6)}]) for _ in ids], pa.struct({"x": pa.int32()})
            ),
        }
    )


class Story:
    """Table that both libraries change. `log` contains the steps."""

    indexes: ClassVar[Sequence[tuple[str, str]]] = INDEXES
    """Columns, and kinds of indexes on them."""

    def __init__(self, uri: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.uri, self.log, self.next_id = uri, [f"seed {seed}"], 100
        version, stable = self.rng.choice(["2.0", "2.1", "2.2"]), self.rng.random() < 0.5
        self.stable = stable
        lancetable.write_dataset(
            self.rows(range(100)),
            uri,
            max_rows_per_file=30,
            data_storage_version=version,
            enable_stable_row_ids=stable,
        )
        self.log.append(f"format {version}, stable row ids {stable}")
        for column, kind in self.rng.sample(self.indexes, 4):
            self.create(self.rng.choice([lancetable, lance]).dataset(uri), column, kind)

    @property
    def changes(self) -> Sequence[Callable[[Any, Dataset], None]]:
        """The changes that a step chooses from."""
        return CHANGES

    def rows(self, ids: Iterable[int]) -> pa.Table:
        """Return random rows with these ids."""
        return rows(self.rng, ids)

    def step(self) -> None:
        """Make one random change with one of the libraries."""
        library = self.rng.choice([lancetable, lance])
        change = self.rng.choice(self.changes)
        self.log.append(f"{library.__name__}: {change.__name__}")
        change(self, library.dataset(self.uri))

    def note(self, text: str) -> None:
        self.log[-1] += f" {text}"

    def create(self, ds: Dataset, column: str, kind: str) -> None:
        self.log.append(f"{type(ds).__module__}: {kind} of {column}")
        if _has(ds, column):
            self.build(ds, column, kind, replace=True)

    def build(self, ds: Dataset, column: str, kind: str, **options: Any) -> None:
        """Build an index by a library."""
        ds.create_scalar_index(column, _config(ds, kind), **options)

    def build_part(self, ds: Dataset, column: str, kind: str, name: str, fragment_ids: list[int]) -> Any:
        """Build a segment for some fragments by a library."""
        return ds.create_index_uncommitted(column, kind, name, fragment_ids=fragment_ids)

    def can_compact(self, ds: Dataset) -> bool:
        """Return whether a compaction keeps the rows of all indexes.

        pylance does not apply the record of deferred compactions to BTREE indexes before it maps their rows.
        """
        indexes = ds.describe_indices()
        has_record = any(not index.field_names for index in indexes)
        has_btree = any(index.index_type == "BTree" for index in indexes)
        return not (isinstance(ds, lance.LanceDataset) and has_record and has_btree)

    def is_extended_by_pylance(self, index: Any) -> bool:
        """Return False for indexes of nested columns ("No column with name x") and of JSON paths."""
        return index.field_names[0] not in ("st.x", "j")

    # --- checks

    def check(self) -> None:
        """Compare the answers of both libraries with and without indexes."""
        ours, theirs = lancetable.dataset(self.uri), lance.dataset(self.uri)
        assert _coverage(ours) == _coverage(theirs), self.log
        for predicate in PREDICATES:
            if not all(_has(ours, column) for column in ("s", "f", "st.x") if column in predicate):
                continue
            expected = _row_ids(theirs, predicate, use_index=False)
            for ds, use_index in ((ours, False), (theirs, True), (ours, True)):
                found = _row_ids(ds, predicate, use_index=use_index)
                if use_index and ds is theirs:
                    found |= _missed_by_pylance(theirs, predicate, expected - found)
                who = f"{type(ds).__module__}, use_scalar_index={use_index}"
                assert found == expected, (predicate, who, sorted(found ^ expected), self.log, _coverage(ours))
            if _uses_index(theirs, predicate):
                assert _uses_index(ours, predicate), (predicate, self.log, _coverage(ours))


def _row_ids(ds: Dataset, predicate: str, *, use_index: bool) -> set[int]:
    scanner = ds.scanner(columns=[], filter=predicate, with_row_id=True, use_scalar_index=use_index)
    return set(scanner.to_table()["_rowid"].to_pylist())


def _missed_by_pylance(ds: Dataset, predicate: str, missing: set[int]) -> set[int]:
    """Return the missing rows with NaN, if a ZONEMAP is used: searches of pylance skip zones that contain only NaN."""
    if not missing or "(ZoneMap)" not in ds.scanner(columns=["id"], filter=predicate).explain_plan():
        return set()
    return missing & _row_ids(ds, "isnan(f)", use_index=False)


def _uses_index(ds: Dataset, predicate: str) -> bool:
    return "ScalarIndexQuery" in ds.scanner(columns=["id"], filter=predicate).explain_plan()


def _coverage(ds: Dataset) -> list[Any]:
    return [
        (index.name, index.index_type, [(segment.uuid, sorted(segment.fragment_ids)) for segment in index.segments])
        for index in _indexes(ds)
    ]


def _indexes(ds: Dataset) -> list[Any]:
    """Return the indexes without the record of deferred compactions."""
    return [index for index in ds.describe_indices() if index.field_names]


def _config(ds: Dataset, kind: str) -> Any:
    """Return the kind of an index as an argument of a library."""
    library = lancetable if isinstance(ds, lancetable.LanceDataset) else lance
    if kind != "JSON":
        return kind
    return library.indices.IndexConfig("json", {"target_index_type": "bitmap", "path": "a"})


def _has(ds: Dataset, column: str) -> bool:
    return ds.lance_schema.field(column) is not None


# --- changes


def append(story: Story, ds: Dataset) -> None:
    count = story.rng.choice([1, 10, 40])
    ds.insert(_present(ds, story.rows(range(story.next_id, story.next_id + count))))
    story.next_id += count


def delete(story: Story, ds: Dataset) -> None:
    ds.delete(story.rng.choice(["id % 11 = 3", "id < 20", "o < 10", f"id > {story.next_id - 20}"]))


def update_other_column(story: Story, ds: Dataset) -> None:
    ds.update({"o": "o + 1"}, where=story.rng.choice(["id % 7 = 1", "id < 35", "o > 50"]))


def update_indexed_column(story: Story, ds: Dataset) -> None:
    column, value = story.rng.choice([("s", "'abcd'"), ("f", "2.5"), ("id", "id + 1000"), ("s", "NULL")])
    if _has(ds, column):
        ds.update({column: value}, where=story.rng.choice(["id % 9 = 2", "id < 30", "o > 70"]))


def upsert(story: Story, ds: Dataset) -> None:
    ids = sorted(story.rng.sample(range(story.next_id + 5), 8))
    story.next_id += 5
    source = _present(ds, story.rows(ids))
    present = ds.to_table(columns=["id"])["id"].to_pylist()
    source = source.filter(pa.array([present.count(number) <= 1 for number in source["id"].to_pylist()]))
    if source.num_rows:
        ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)


def delete_unmatched(story: Story, ds: Dataset) -> None:
    """Merge rows, and delete the rows of a range that are not among them."""
    start = story.rng.randrange(story.next_id)
    present = ds.to_table(columns=["id"])["id"].to_pylist()
    ids = [number for number in range(start, start + 10, 2) if present.count(number) <= 1]
    if ids:
        merge = ds.merge_insert("id").when_matched_update_all()
        merge = merge.when_not_matched_by_source_delete(f"id >= {start} AND id < {start + 10}")
        merge.execute(_present(ds, story.rows(ids)))


def update_some_columns(story: Story, ds: Dataset) -> None:
    present = ds.to_table(columns=["id"])["id"].to_pylist()
    unique = [number for number in set(present) if present.count(number) == 1]
    if len(unique) < 5 or not _has(ds, "s"):
        return
    ids = sorted(story.rng.sample(sorted(unique), story.rng.choice([3, len(unique)])))
    ds.merge_insert("id").when_matched_update_all().execute(story.rows(ids).select(["id", "s"]))


def compact(story: Story, ds: Dataset) -> None:
    if story.can_compact(ds):
        ds.optimize.compact_files(target_rows_per_fragment=story.rng.choice([50, 100, 1000]))


def compact_deferred(story: Story, ds: Dataset) -> None:
    """Compact without rewriting the indexes, which tables with stable row ids cannot."""
    if not story.stable:
        target = story.rng.choice([50, 100, 1000])
        ds.optimize.compact_files(target_rows_per_fragment=target, defer_index_remap=True)


def compact_in_steps(story: Story, ds: Dataset) -> None:
    """Plan, execute and commit, with a change of the other library before the commit."""
    ours = isinstance(ds, lancetable.LanceDataset)
    if not story.can_compact(ds):
        return
    steps: Any = Compaction if ours else TheirCompaction
    options = {"target_rows_per_fragment": 60}
    results = [task.execute(ds) for task in steps.plan(ds, options).tasks]
    other = (lance if ours else lancetable).dataset(story.uri)
    between = story.rng.choice([append, delete, optimize, create_index])
    story.note(f"with {between.__name__}")
    between(story, other)
    try:
        steps.commit(ds, story.rng.sample(results, len(results)))
    except (OSError, LanceError) as error:
        story.note("in conflict")
        assert "onflict" in str(error) or "preempted" in str(error), story.log


def optimize(story: Story, ds: Dataset) -> None:
    options = story.rng.choice(
        [
            dict[str, Any](),
            {"num_indices_to_merge": 0},
            {"num_indices_to_merge": 2},
            {"num_indices_to_merge": 99},
            {"retrain": True},
        ]
    )
    if story.stable and isinstance(ds, lance.LanceDataset):
        # pylance leaves entries of moved rows in segments that it does not merge, and then finds them.
        options = {"num_indices_to_merge": 99}
    story.note(str(options))
    if isinstance(ds, lance.LanceDataset):
        options["index_names"] = [index.name for index in _indexes(ds) if story.is_extended_by_pylance(index)]
    ds.optimize.optimize_indices(**options)


def create_index(story: Story, ds: Dataset) -> None:
    column, kind = story.rng.choice(story.indexes)
    story.note(f"{kind} of {column}")
    if _has(ds, column):
        story.build(ds, column, kind, train=story.rng.random() < 0.8)


def create_in_parts(story: Story, ds: Dataset) -> None:
    """Build segments for groups of fragments, merge some, and commit them."""
    column, kind = story.rng.choice(story.indexes)
    fragments = [fragment.fragment_id for fragment in ds.get_fragments()]
    if not fragments or not _has(ds, column) or kind == "JSON":
        return
    size = story.rng.randrange(1, len(fragments) + 1)
    groups = [fragments[start : start + size] for start in range(0, len(fragments), size)]
    story.note(f"{kind} of {column} for {groups}")
    name = f"parts of {column} {kind}"
    if name in {index.name for index in ds.describe_indices()}:
        ds.drop_index(name)
    parts = [story.build_part(ds, column, kind, name, group) for group in groups]
    if len(parts) > 2:
        parts = [ds.merge_existing_index_segments(parts[:2]), *parts[2:]]
    ds.commit_existing_index_segments(name, column, parts)


def drop_index(story: Story, ds: Dataset) -> None:
    names = [index.name for index in _indexes(ds)]
    if len(names) > 2:
        ds.drop_index(story.rng.choice(names))


def replace_column(story: Story, ds: Dataset) -> None:
    """Drop a column with its indexes, or add it again."""
    if _has(ds, "f"):
        ds.drop_columns(["f"])
    else:
        ds.add_columns({"f": "CAST(o AS DOUBLE) / 4"})


def rename_column(story: Story, ds: Dataset) -> None:
    old, new = ("s", "renamed") if _has(ds, "s") else ("renamed", "s")
    ds.alter_columns({"path": old, "name": new})


def cast_column(story: Story, ds: Dataset) -> None:
    if not _has(ds, "f"):
        return
    field = ds.lance_schema.field("f").id()
    for index in ds.describe_indices():
        if field in index.fields:
            ds.drop_index(index.name)
    target = pa.float32() if ds.schema.field("f").type == pa.float64() else pa.float64()
    ds.alter_columns({"path": "f", "data_type": target})


def clean_up(story: Story, ds: Dataset) -> None:
    """Remove all versions but the newest one, and the files of indexes that it does not have."""
    ds.cleanup_old_versions(timedelta(0))


def restore(story: Story, ds: Dataset) -> None:
    versions = [version["version"] for version in ds.versions()][-6:]
    library = lancetable if isinstance(ds, lancetable.LanceDataset) else lance
    library.dataset(story.uri, version=story.rng.choice(versions)).restore()


def overwrite(story: Story, ds: Dataset) -> None:
    library = lancetable if isinstance(ds, lancetable.LanceDataset) else lance
    ids = range(story.next_id, story.next_id + 60)
    library.write_dataset(story.rows(ids), story.uri, mode="overwrite", max_rows_per_file=25)
    story.next_id += 60
    for column, kind in story.rng.sample(story.indexes, 3):
        story.create(library.dataset(story.uri), column, kind)


def _present(ds: Dataset, table: pa.Table) -> pa.Table:
    """Return the table with the columns and types that the dataset has."""
    names = {"renamed": "s"}
    columns = {name: table[names.get(name, name)].cast(ds.schema.field(name).type) for name in ds.schema.names}
    return pa.table(columns)


CHANGES: list[Callable[[Story, Dataset], None]] = [
    *(append, append, delete, update_other_column, update_other_column, update_indexed_column, upsert),
    *(update_some_columns, delete_unmatched, compact, compact, compact_deferred, compact_deferred, compact_in_steps),
    *(optimize, optimize, optimize, create_index, create_in_parts, create_in_parts, drop_index, replace_column),
    *(rename_column, cast_column, restore, clean_up, overwrite),
]


def run(path: Path, seed: int, kind: type[Story] = Story) -> None:
    """Play a story."""
    story = kind(str(path / "t.lance"), seed)
    story.check()
    for _ in range(STEPS):
        try:
            story.step()
        except Exception as error:
            raise AssertionError(f"{error!r} in {story.log}") from error
        story.check()


@pytest.mark.parametrize("seed", range(STORIES))
def test_answers_with_indexes_are_right_after_every_change_by_either_library(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1000 + SLOW_STORIES))
def test_two_thousand_changes_by_either_library(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed)
