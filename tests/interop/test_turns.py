"""pylance and lancetable change one table in turns; after every step both return equal results, including fragments.

Sequences are drawn from a seed, which a failure reports. `Story.step` makes one change with one of the libraries,
`Story.check` compares all that both report about the newest version, and `Story.check_history` compares all versions.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable

UNTOLD = "pylance cannot show its own compactions of tables with an index"
SCALE = int(os.environ.get("LANCETABLE_TEST_SCALE", "1"))
SEEDS = range(3 * SCALE)
STEPS = 10

COLUMNS: dict[str, tuple[pa.DataType, Callable[[random.Random, int], Any]]] = {
    "id": (pa.int64(), lambda rng, i: i),
    "s": (pa.string(), lambda rng, i: rng.choice([None, "", "a", "ünï", "x" * 40])),
    "f": (pa.float64(), lambda rng, i: rng.choice([None, 0.5, -1.0, 1e300])),
    "b": (pa.bool_(), lambda rng, i: rng.choice([None, True, False])),
    "l": (pa.list_(pa.int32()), lambda rng, i: rng.choice([None, [], [1], [1, None, 3]])),
    "p": (
        pa.struct([("x", pa.int32()), ("in", pa.struct([("y", pa.string())]))]),
        lambda rng, i: {"x": rng.choice([None, i]), "in": {"y": rng.choice([None, "y"])}},
    ),
    "d": (pa.dictionary(pa.int8(), pa.string()), lambda rng, i: rng.choice([None, "red", "green"])),
    "ts": (pa.timestamp("us", "UTC"), lambda rng, i: rng.choice([None, i * 10**9])),
    "v": (pa.list_(pa.float32(), 2), lambda rng, i: [i / 2, 1.0]),
    "u": (pa.binary(3), lambda rng, i: rng.choice([None, b"abc", b"\0\0\0"])),
}
PREDICATES = [
    "id % 3 = 0",
    "id > 40 AND id < 60",
    "s = 'a'",
    "s IS NULL",
    "id IN (1, 2, 3, 50)",
    "id < 0",
    "_rowid < 3",
    "_rowaddr % 2 = 0",
    "NOT (id % 5 < 4)",
    "true",
    "s LIKE 'ü%' OR id = 7",
]


class Story:
    """Table that both libraries change."""

    storage = "2.0"
    known = COLUMNS
    parts = True  # True if rows may lack columns

    def __init__(self, uri: str, seed: int, *, stable: bool = False, v1: bool = False) -> None:
        self.rng = random.Random(seed)
        self.uri = uri
        self.next_id = 0
        self.stable = stable
        self.columns = self.choose_columns()
        creator = self.library()
        options: dict[str, Any] = {"enable_stable_row_ids": True} if stable else {}
        creator.write_dataset(
            self.rows(30),
            uri,
            max_rows_per_file=11,
            data_storage_version=self.storage,
            enable_v2_manifest_paths=not v1,
            **options,
        )
        self.told = ["create"]
        # Handles that stay open; each step moves them to the newest version.
        self.ours = lancetable.dataset(uri)
        self.theirs = lance.dataset(uri)

    def library(self) -> Any:
        return self.rng.choice([lancetable, lance])

    def choose_columns(self) -> list[str]:
        return ["id", "s", *self.rng.sample(sorted(set(self.known) - {"id", "s"}), self.rng.randrange(0, 5))]

    def rows(self, number: int, columns: list[str] | None = None) -> pa.Table:
        ids = range(self.next_id, self.next_id + number)
        self.next_id += number
        columns = self.columns if columns is None else columns
        made = {}
        for name in columns:
            kind, draw = self.known[name]
            made[name] = pa.array([draw(self.rng, i) for i in ids], kind)
        return pa.table(made)

    # ------------------------------------------------------------------------------------------------------- changes

    def append(self, library: Any) -> None:
        columns = list(self.columns)
        self.rng.shuffle(columns)
        # Structs are not left out, because 2.0 has no null structs.
        if self.parts and self.rng.random() < 0.3:
            columns = [name for name in columns if name in ("id", "p", "v") or self.rng.random() < 0.5]
        table = self.rows(self.rng.choice([0, 1, 5, 12]), columns)
        library.dataset(self.uri).insert(table, max_rows_per_file=self.rng.choice([3, 100]))

    def append_through_the_open_handle(self, library: Any) -> None:
        handle = self.ours if library is lancetable else self.theirs
        handle.insert(self.rows(2))

    def overwrite(self, library: Any) -> None:
        if self.rng.random() < 0.6:
            self.columns = self.choose_columns()
        library.write_dataset(self.rows(self.rng.choice([0, 9, 25])), self.uri, mode="overwrite", max_rows_per_file=8)

    def delete(self, library: Any) -> None:
        library.dataset(self.uri).delete(self.rng.choice(PREDICATES[:-2] if self.rng.random() < 0.9 else PREDICATES))

    def delete_of_one_fragment(self, library: Any) -> None:
        dataset = library.dataset(self.uri)
        fragments = dataset.get_fragments()
        if not fragments:
            return
        fragment = self.rng.choice(fragments)
        left = fragment.delete("id % 2 = 0")
        updated, removed = ([], [fragment.fragment_id]) if left is None else ([left], [])
        operation = library.LanceOperation.Delete(updated, removed, "id % 2 = 0")
        library.LanceDataset.commit(self.uri, operation, read_version=dataset.version)

    def restore(self, library: Any) -> None:
        dataset = library.dataset(self.uri)
        version = self.rng.randrange(1, dataset.version + 1)
        old = library.dataset(self.uri, version=version)
        old.restore()
        self.columns = old.schema.names

    def tag(self, library: Any) -> None:
        dataset = library.dataset(self.uri)
        tags = dataset.tags
        version = self.rng.randrange(1, dataset.version + 1)
        known = sorted(tags.list())
        action = self.rng.choice(["create", "update", "delete"]) if known else "create"
        if action == "create":
            tags.create(f"t{len(self.told)}", version)
        elif action == "update":
            tags.update(self.rng.choice(known), version)
        else:
            tags.delete(self.rng.choice(known))

    def commit_foreign_fragments(self, library: Any) -> None:
        """Commit files that the other library wrote."""
        other = lance if library is lancetable else lancetable
        written = other.fragment.write_fragments(self.rows(4), other.dataset(self.uri))
        fragments = [library.FragmentMetadata.from_json(as_json(each)) for each in written]
        operation = library.LanceOperation.Append(fragments)
        library.LanceDataset.commit(self.uri, operation, read_version=library.dataset(self.uri).version)

    def update(self, library: Any) -> None:
        library.dataset(self.uri).update({"s": "'updated'"}, where=self.rng.choice(PREDICATES[:3]))

    def upsert(self, library: Any) -> None:
        rows = pa.concat_tables([lance.dataset(self.uri).to_table(limit=3), self.rows(2)])
        builder = library.dataset(self.uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        builder.execute(rows)

    # Changes that only pylance makes, before lancetable continues with the table.

    def compact(self, library: Any) -> None:
        lance.dataset(self.uri).optimize.compact_files(target_rows_per_fragment=self.rng.choice([10, 100]))

    def configure(self, library: Any) -> None:
        dataset = lance.dataset(self.uri)
        self.rng.choice(
            [
                lambda: dataset.update_config({"k": str(len(self.told))}),
                lambda: dataset.update_metadata({"k": str(len(self.told))}),
                lambda: dataset.update_schema_metadata({"k": str(len(self.told))}),
                lambda: dataset.update_field_metadata({"s": {"k": str(len(self.told))}}),
            ]
        )()

    def index(self, library: Any) -> None:
        if not lance.dataset(self.uri).describe_indices():
            lance.dataset(self.uri).create_scalar_index("id", "BTREE")

    def step(self, names: list[str]) -> None:
        name = self.rng.choice(names)
        library = self.library()
        self.told.append(f"{library.__name__}.{name}")
        getattr(self, name)(library)
        self.ours.checkout_latest()
        self.theirs.checkout_latest()

    # ------------------------------------------------------------------------------------------------------ comparing

    def check(self) -> None:
        """Compare all that both libraries report about the newest version and the table."""
        compare(self.ours, self.theirs, list(QUESTIONS), self.told)
        compare(lancetable.dataset(self.uri), lance.dataset(self.uri), ["rows", "fragments", "facts"], self.told)
        self.ours.validate()
        self.theirs.validate()
        for our, their in zip(self.ours.versions(), self.theirs.versions(), strict=True):
            # One library truncates to microseconds, the other rounds.
            assert abs(our["timestamp"] - their["timestamp"]) <= timedelta(microseconds=1), self.told

    def check_history(self) -> None:
        """Compare every version and every tag."""
        for reference in [*range(1, self.ours.version + 1), *self.ours.tags.list()]:
            ours, theirs = lancetable.dataset(self.uri, version=reference), lance.dataset(self.uri, version=reference)
            compare(ours, theirs, ["version", "schema", "rows", "fragments", "transaction", "get_version"], self.told)


def compare(ours: Any, theirs: Any, questions: list[str], told: Any) -> None:
    for question in questions:
        our, their = QUESTIONS[question](ours), QUESTIONS[question](theirs)
        if isinstance(our, pa.Table):
            assert our.schema.equals(their.schema, check_metadata=True), (question, told)
            # Compared as Python values, because dictionaries may be in another order.
            our, their = our.to_pylist(), their.to_pylist()
        assert our == their or their == UNTOLD, (question, told)


def as_json(fragment: Any) -> str:
    return json.dumps(fragment.to_json())


def middle(dataset: Any) -> list[int]:
    n = dataset.count_rows()
    return sorted({n // 2, 0, n - 1, n // 3}) if n else []


def transaction_of(dataset: Any) -> Any:
    try:
        transaction = dataset.read_transaction(dataset.version)
    except TypeError:
        return UNTOLD
    return transaction and (
        kind_of(transaction),
        transaction.uuid,
        transaction.read_version,
        transaction.transaction_properties,
    )


def kind_of(transaction: Any) -> str:
    """Return the name of the operation; pylance has one class for all operations that Python cannot build."""
    name = type(transaction.operation).__name__
    return "Other" if name == "BaseOperation" else name


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "version": lambda ds: (ds.version, ds.latest_version),
    "schema": lambda ds: ds.schema.to_string(show_field_metadata=True, show_schema_metadata=True),
    "fields": lambda ds: [field_of(field) for field in ds.lance_schema.fields()],
    "rows": lambda ds: ds.to_table(with_row_id=True, with_row_address=True),
    "offsets": lambda ds: ds.to_table(columns=["id", "_rowoffset"]),
    "batches": lambda ds: pa.Table.from_batches(ds.to_batches(batch_size=7), ds.schema),
    "filtered": lambda ds: ds.to_table(columns=["s", "id"], filter="id % 3 = 1 AND s IS NOT NULL"),
    "ordered": lambda ds: ds.to_table(columns=["id", "s"], order_by=["s", "id"]),
    "deleted": lambda ds: ds.to_table(with_row_id=True, include_deleted_rows=True),
    "page": lambda ds: ds.to_table(limit=5, offset=4),
    "count": lambda ds: (ds.count_rows(), ds.count_rows("id > 20"), len(ds)),
    "take": lambda ds: ds.take(middle(ds)) if middle(ds) else None,
    "take rows": lambda ds: ds._take_rows(ds.to_table(columns=["_rowid"])["_rowid"][::2].to_pylist() or [0][:0]),
    "head": lambda ds: ds.head(3),
    "fragments": lambda ds: [fragment.metadata.to_json() for fragment in ds.get_fragments()],
    "fragment facts": lambda ds: [
        (each.fragment_id, each.count_rows(), each.num_deletions, each.physical_rows, each.deletion_file())
        for each in ds.get_fragments()
    ],
    "fragment schemas": lambda ds: [each.schema for each in ds.get_fragments()],
    "data files": lambda ds: [repr(each.data_files()) for each in ds.get_fragments()],
    "facts": lambda ds: (
        ds.max_field_id,
        ds.data_storage_version,
        ds.has_index,
        ds.has_stable_row_ids,
        ds.metadata,
        ds.schema_metadata,
        ds.config(),
    ),
    "stats": lambda ds: (ds.stats.dataset_stats(), ds.stats.dataset_stats(10)),
    "field stats": lambda ds: [(each.id, each.bytes_on_disk) for each in ds.stats.data_stats().fields],
    "versions": lambda ds: [(each["version"], each["metadata"]) for each in ds.versions()],
    "version refs": lambda ds: ds.version_refs(),
    "get_version": lambda ds: (ds.get_version()["version"], ds.get_version()["metadata"]),
    "tags": lambda ds: ds.tags.list(),
    "transaction": transaction_of,
    "files": lambda ds: sorted(ds.all_files().read_all()["path"].to_pylist()),
}


def field_of(field: Any) -> Any:
    return field.name(), field.id(), field.metadata, [field_of(child) for child in field.children()]


class LegacyStory(Story):
    """Table of version 0.1 with values that it can store: nulls only in strings, no empty string, no missing column."""

    storage = "0.1"
    parts = False
    known = {
        "id": COLUMNS["id"],
        "s": (pa.string(), lambda rng, i: rng.choice([None, "a", "ünï", "x" * 90])),
        "f": (pa.float64(), lambda rng, i: rng.choice([0.5, -0.0, 1e300])),
        "b": (pa.bool_(), lambda rng, i: rng.choice([True, False])),
        "l": (pa.list_(pa.int32()), lambda rng, i: rng.choice([[], [1], [1, 2, 3]])),
        "p": (
            pa.struct([("x", pa.int32()), ("in", pa.struct([("y", pa.string())]))]),
            lambda rng, i: {"x": i, "in": {"y": rng.choice([None, "y"])}},
        ),
        "ts": (pa.timestamp("us", "UTC"), lambda rng, i: i * 10**9),
        "v": COLUMNS["v"],
        "u": (pa.binary(3), lambda rng, i: rng.choice([b"abc", b"\0\0\0"])),
    }


COMMON = [
    *["append", "append", "append_through_the_open_handle", "delete", "delete", "delete_of_one_fragment"],
    *["overwrite", "restore", "tag", "commit_foreign_fragments"],
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("v1", [False, True], ids=["v2", "v1"])
def test_random_changes_have_the_same_results(seed: int, v1: bool, tmp_path: Path) -> None:
    story = Story(str(tmp_path / "t.lance"), seed, v1=v1)
    for _ in range(STEPS):
        story.step(COMMON)
        story.check()
    story.check_history()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_changes_in_the_legacy_format_have_the_same_results(seed: int, tmp_path: Path) -> None:
    story = LegacyStory(str(tmp_path / "t.lance"), 4000 + seed)
    for _ in range(STEPS):
        story.step([*COMMON, "update", "compact"])
        story.check()
    story.check_history()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_changes_continue_on_those_of_pylance(seed: int, tmp_path: Path) -> None:
    story = Story(str(tmp_path / "t.lance"), 1000 + seed)
    for _ in range(STEPS):
        story.step([*COMMON, "update", "upsert", "compact", "configure", "index"])
        story.check()
    story.check_history()


STABLE = [
    *["append", "append", "delete", "delete", "delete_of_one_fragment", "tag"],
    *["update", "upsert", "compact", "restore", "overwrite", "configure"],
]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_changes_with_stable_row_ids_have_the_same_results(seed: int, tmp_path: Path) -> None:
    story = Story(str(tmp_path / "t.lance"), 2000 + seed, stable=True)
    for _ in range(STEPS):
        story.step(STABLE)
        story.check()
    story.check_history()


SCHEMA_CHANGES: list[tuple[str, Callable[[Any], Any]]] = [
    ("SQL columns", lambda ds: ds.add_columns({"twice": "id * 2", "loud": "upper(s)"})),
    ("empty column", lambda ds: ds.add_columns(pa.field("nothing", pa.list_(pa.string())))),
    ("rename", lambda ds: ds.alter_columns({"path": "s", "name": "text"}, {"path": "p.x", "name": "z"})),
    ("drop", lambda ds: ds.drop_columns(["loud"])),
    ("drop nested", lambda ds: ds.drop_columns(["p.z"])),
    ("cast", lambda ds: ds.alter_columns({"path": "twice", "data_type": pa.int32()})),
    ("nullable", lambda ds: ds.alter_columns({"path": "twice", "nullable": True})),
    ("join", lambda ds: ds.merge(pa.table({"id": [1, 5, 40], "joined": ["one", "five", "forty"]}), "id")),
    ("update", lambda ds: ds.update({"twice": "-1"}, where="id < 8")),
    ("compact", lambda ds: ds.optimize.compact_files(target_rows_per_fragment=50)),
    ("drop again", lambda ds: ds.drop_columns(["v"])),
]


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_tables_whose_schema_pylance_changed_can_be_read_and_changed(stable: bool, tmp_path: Path) -> None:
    """lancetable reads, deletes and appends after each change of the schema."""
    uri = str(tmp_path / "t.lance")
    rng = random.Random(5)
    columns = ["id", "s", "p", "v", "d"]

    def rows(first: int, number: int) -> pa.Table:
        ids = range(first, first + number)
        return pa.table({k: pa.array([COLUMNS[k][1](rng, i) for i in ids], COLUMNS[k][0]) for k in columns})

    lance.write_dataset(rows(0, 30), uri, max_rows_per_file=8, data_storage_version="2.0", enable_stable_row_ids=stable)
    for step, (name, change) in enumerate(SCHEMA_CHANGES):
        change(lance.dataset(uri))
        questions = [question for question in QUESTIONS if question not in ("filtered", "ordered")]
        compare(lancetable.dataset(uri), lance.dataset(uri), questions, name)
        lancetable.dataset(uri).delete(f"id = {step} OR id = {100 + 10 * step}")
        compare(lancetable.dataset(uri), lance.dataset(uri), questions, name)
        # Columns are left out where possible. Structs are not, because 2.0 has no null structs.
        new = lance.dataset(uri).to_table(columns=["p", "id"], limit=3)
        new = new.set_column(1, "id", pa.array(range(110 + 10 * step, 113 + 10 * step)))
        before = [(each.name, each.type) for each in lancetable.dataset(uri).schema]
        lancetable.dataset(uri).insert(new)
        assert [(each.name, each.type) for each in lancetable.dataset(uri).schema] == before
        compare(lancetable.dataset(uri), lance.dataset(uri), questions, name)
    for version in range(1, lancetable.dataset(uri).version + 1):
        compare(lancetable.dataset(uri, version=version), lance.dataset(uri, version=version), ["rows", "schema"], 0)
