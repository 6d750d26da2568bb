"""Random walks through the whole API against a model in plain Python: rows, lineage, schemas, references, maintenance.

With faults, a request of every few changes fails: the result or error of the call must be correct, and the table must
be unchanged or have the intended state. LANCETABLE_TEST_SCALE multiplies the number of walks.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import lancetable
from lancetable.errors import CommitStateUnknownError, LanceError, RefNotFoundError
from lancetable.ops.maintain.fsck.check import check
from lancetable.store.memory import MemoryStore
from lancetable.testing.stores import FaultyStore
from tests.support.reference_model import BranchModel, Row, State, Values

SCALE = int(os.environ.get("LANCETABLE_TEST_SCALE", "1"))

KINDS: dict[str, pa.DataType] = {
    "s": pa.string(),
    "n": pa.int32(),
    "f": pa.float64(),
    "l": pa.list_(pa.int32()),
    "b": pa.bool_(),
    "ts": pa.timestamp("us"),
    "v": pa.list_(pa.float32(), 2),
}
_DAY = np.datetime64(0, "us")
# The values of a column, by the type in its name.
SAMPLES: dict[str, list[Any]] = {
    "s": [None, "", "a", "bb", "ünï", "x" * 30],
    "n": [None, -3, 0, 1, 3],
    "f": [None, 0.5, -1.0, 4.0],
    "l": [None, [], [1], [1, None, 3]],
    "b": [None, True, False],
    "ts": [None, *((_DAY + np.timedelta64(k, "D")).item() for k in range(3))],
    "v": [None, [0.5, 1.0], [-1.0, 0.0]],
}
COLUMNS = st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4, unique=True)
SEEDS = st.integers(0, 2**32 - 1)
# Requests that fail, and how many of them may pass before.
REQUESTS = [("*", 20), ("*", 4), ("put_if_absent", 1), ("put", 2), ("open_writer", 3), ("read_all", 3), ("find", 2)]
REQUESTS += [("list_names", 2), ("list_recursive", 3), ("delete", 2), ("sync", 1), ("read_many", 3)]
KEYS = st.sampled_from(["k", "lance.note", "ü"])

_tables = itertools.count()


def kind_of(name: str) -> str:
    """Return the kind of a column whose name is a kind and a number."""
    return name.rstrip("0123456789")


def forget(uri: str) -> None:
    """Remove all objects below an address in memory, so that later listings do not include them."""
    MemoryStore().delete_prefix(uri.removeprefix("memory://"))


class ApiMachine(RuleBasedStateMachine):
    """One table, its branches, and the handle through which it is changed."""

    faulty = False

    def __init__(self) -> None:
        super().__init__()
        self.uri = f"memory://whole-api/{os.getpid()}-{next(_tables)}"
        self.branches: dict[str | None, BranchModel] = {}
        self.tags: dict[str, tuple[str | None, int]] = {}
        self.at: str | None = None
        self.uids = itertools.count()
        self.row_ids: dict[int, int] = {}  # by the identity of a row
        self.names = itertools.count()
        self.rng = np.random.default_rng(0)
        self.faults_hit = False

    @initialize(
        columns=COLUMNS,
        rows=st.integers(0, 8),
        seed=SEEDS,
        version=st.sampled_from(["2.0", "2.1", "2.2"]),
        stable=st.booleans(),
        v2=st.booleans(),
    )
    def create(self, columns: list[str], rows: int, seed: int, version: str, stable: bool, v2: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.version, self.stable = version, stable
        fields = (pa.field("id", pa.int64()), *(pa.field(name, KINDS[name]) for name in columns))
        state = State(fields, ())
        table, values = self.rows(state, rows, seed)
        lancetable.write_dataset(
            table,
            self.uri,
            data_storage_version=version,
            enable_stable_row_ids=stable,
            enable_v2_manifest_paths=v2,
            max_rows_per_file=3,
        )
        self.branches[None] = BranchModel()
        self.branches[None].versions[1] = state.inserted(values, 1, self.uids)
        opened = lancetable.dataset(self.uri).table_version
        self.store = FaultyStore(MemoryStore())
        self.ds = lancetable.LanceDataset.from_version(replace(opened, store=self.store))

    def teardown(self) -> None:
        if not self.branches:
            return
        self.store.heal()
        try:
            main = self.dataset(None)
            # A version hint that could not be replaced may refer to a version that was cleaned up.
            expected = {"orphan", "hint"} if self.faults_hit else {"orphan"}
            problems = [each for each in check(self.uri).problems if each.kind not in expected]
            assert not problems, problems
            if not self.faults_hit:
                # Nothing failed, so no unreferenced files exist.
                plan = main.explain_cleanup_old_versions(
                    versions=[], delete_unverified=True, include_files=True, error_if_tagged_old_versions=False
                )
                assert not plan.candidate_files, plan.candidate_files
        finally:
            forget(self.uri)

    # ----------------------------------------------------------------------------------------------------- helpers

    @property
    def model(self) -> BranchModel:
        return self.branches[self.at]

    @property
    def state(self) -> State:
        return self.model.current

    def dataset(self, branch: str | None, version: int | None = None) -> lancetable.LanceDataset:
        return self.ds.checkout_version((branch, version))

    def newest(self) -> lancetable.LanceDataset:
        self.ds = self.dataset(self.at)
        return self.ds

    def held(self) -> set[int]:
        """Return the versions that branches start from, if their versions or those of descendants reference files of
        this table.
        """
        own, held = self.dataset(self.at).uri, set()
        for name, model in self.branches.items():
            stem = model
            while stem.parent is not None and stem.parent[0] != self.at:
                stem = self.branches[stem.parent[0]]
            if stem.parent is None or name == self.at:
                continue
            for version in model.versions:
                manifest = self.dataset(name, version).table_version.manifest
                files = [file for fragment in manifest.fragments for file in (*fragment.files, fragment.deletion_file)]
                bases = {file.base_id for file in files if file is not None and file.base_id is not None}
                if own in {manifest.base_paths[each].path for each in bases}:
                    held.add(stem.parent[1])
        return held

    def rows(
        self, state: State, number: int, seed: int, columns: Iterable[str] | None = None, ids: Iterable[int] = ()
    ) -> tuple[pa.Table, list[dict[str, Any]]]:
        """Return rows with the given ids, then with ids that the table lacks, as a table and as Python values."""
        rng = np.random.default_rng(seed)
        chosen = [*ids]
        free = iter(sorted(set(range(40)) - state.ids - set(chosen)))
        chosen += list(itertools.islice(free, max(0, number - len(chosen))))
        rng.shuffle(chosen)
        columns = (
            state.names if columns is None else ["id", *(each for each in state.names if each in set(columns) - {"id"})]
        )
        values: list[dict[str, Any]] = []
        for one in chosen:
            row: dict[str, Any] = {"id": int(one)}
            for name in columns:
                if name != "id":
                    row[name] = self.value(state.field(name), rng)
            values.append(row)
        fields = [state.field(name) for name in columns]
        return pa.table(
            [pa.array([row[each.name] for row in values], each.type) for each in fields], schema=pa.schema(fields)
        ), values

    def value(self, column: pa.Field, rng: np.random.Generator) -> Any:
        options = [each for each in SAMPLES[kind_of(column.name)] if column.nullable or each is not None]
        return options[int(rng.integers(0, len(options)))]

    def plant(self) -> bool:
        """Let a request fail with some probability, sometimes with all later ones; return True if one will fail."""
        if not self.faulty or self.rng.random() < 0.5:
            return False
        method, most = REQUESTS[int(self.rng.integers(0, len(REQUESTS)))]
        how: Any = "before" if self.rng.random() < 0.5 else "lost_reply"
        self.store.fail(method, int(self.rng.integers(1, most + 1)), how=how, forever=bool(self.rng.random() < 0.3))
        return True

    def change(
        self,
        act: Callable[[lancetable.LanceDataset], Any],
        after: Callable[[int], State],
        *,
        commits: int = 1,
        result: Any = None,
    ) -> None:
        """Run an action that creates at most `commits` versions; the last one must equal `after(its number)`."""
        dataset, model = self.newest(), self.model
        before = model.latest
        fault = self.plant()
        error: LanceError | None = None
        try:
            found = act(dataset)
            if result is not None:
                assert found == result
        except LanceError as caught:
            error = caught
        self.store.heal()
        now = self.newest().version
        assert before <= now <= before + commits
        if error is None:
            assert now > before or after(now) == model.current, "no new version"
            self.note(before, now, after(now))
            return
        if not fault:
            raise error
        self.faults_hit = True
        if now == before:
            return
        # A part of the change may be committed; all of it only with an error that allows this.
        if now == before + commits or self.shows(after(now)):
            assert isinstance(error, CommitStateUnknownError) or commits > 1, error
            self.note(before, now, after(now))
        else:
            assert commits > 1
            self.note(before, now, model.current if self.shows(model.current) else None)
            if model.versions[now] is None:
                model.versions[now] = self.adopted(after(now))

    def adopted(self, goal: State) -> State:
        """Return the state after a change that stopped after its schema commit: the existing rows with more columns."""
        state = self.state_before()
        fields = {each.name: each for each in state.fields}
        schema = self.ds.schema
        for each in goal.fields:
            if each.name not in fields and each.name in schema.names:
                state = state.with_column(each, lambda values: None)
        return state

    def state_before(self) -> State:
        known = [version for version in self.model.known() if version < self.model.latest]
        state = self.model.versions[known[-1]]
        assert state is not None
        return state

    def note(self, before: int, now: int, state: State | None) -> None:
        for passed in range(before + 1, now):
            self.model.versions[passed] = None
        self.model.versions[now] = state

    def shows(self, state: State) -> bool:
        """Return whether the newest version has a given state."""
        dataset = self.newest()
        if dataset.schema.names != state.names:
            return False
        found = sorted(dataset.to_table().to_pylist(), key=lambda row: row["id"])
        return found == [dict(row.values) for row in sorted(state.rows, key=lambda row: row.values["id"])]

    # ------------------------------------------------------------------------------------------------------- rows

    @rule(number=st.integers(0, 5), seed=SEEDS, columns=COLUMNS, all_columns=st.booleans(), per_file=st.integers(1, 5))
    def append(self, number: int, seed: int, columns: list[str], all_columns: bool, per_file: int) -> None:
        state = self.state
        given = [
            name for name in state.names if all_columns or kind_of(name) in columns or not state.field(name).nullable
        ]
        table, values = self.rows(state, number, seed, given)
        uids = self.new_uids(len(values))
        self.change(lambda ds: ds.insert(table, max_rows_per_file=per_file), lambda v: state.inserted(values, v, uids))

    def new_uids(self, number: int) -> list[int]:
        return list(itertools.islice(self.uids, number))

    @rule(number=st.integers(1, 4), seed=SEEDS, kind=st.sampled_from(sorted(KINDS)))
    def append_with_another_column(self, number: int, seed: int, kind: str) -> None:
        state = self.state
        new = pa.field(f"{kind}{next(self.names)}", KINDS[kind])
        table, values = self.rows(state.with_column(new, lambda row: None), number, seed)
        uids = self.new_uids(len(values))
        self.change(
            lambda ds: ds.insert(table, schema_mode="merge"),
            lambda v: state.with_column(new, lambda row: None).inserted(values, v, uids),
            commits=2,
        )

    @rule(number=st.integers(0, 6), seed=SEEDS, columns=COLUMNS, per_file=st.integers(1, 5))
    def overwrite(self, number: int, seed: int, columns: list[str], per_file: int) -> None:
        old = self.state
        fields = (pa.field("id", pa.int64()), *(pa.field(name, KINDS[name]) for name in columns))
        state = replace(old, fields=fields, rows=())
        table, values = self.rows(state, number, seed)
        uids = self.new_uids(len(values))
        self.change(
            lambda ds: lancetable.write_dataset(table, ds, mode="overwrite", max_rows_per_file=per_file),
            lambda v: state.inserted(values, v, uids),
        )

    def condition(self, seed: int) -> tuple[str, Callable[[Values], bool]]:
        """Return a predicate as SQL and as a function."""
        rng = np.random.default_rng(seed)
        bound = int(rng.integers(-1, 20))
        options: list[tuple[str, Callable[[Values], bool]]] = [
            (f"id < {bound}", lambda row: row["id"] < bound),
            (f"id = {bound}", lambda row: row["id"] == bound),
            (f"id % 3 = {bound % 3}", lambda row: row["id"] % 3 == bound % 3),
            (f"id IN ({bound}, 3, 11)", lambda row: row["id"] in (bound, 3, 11)),
            ("true", lambda row: True),
        ]
        for name in self.state.names:
            if kind_of(name) == "s":
                options.append((f"{name} IS NULL OR {name} = 'a'", lambda row, c=name: row[c] in (None, "a")))
            if kind_of(name) in ("n", "f"):
                options.append((f"{name} > 0", lambda row, c=name: row[c] is not None and row[c] > 0))
        return options[int(rng.integers(0, len(options)))]

    @rule(seed=SEEDS)
    def delete(self, seed: int) -> None:
        state = self.state
        sql, holds = self.condition(seed)
        kept = [row for row in state.rows if not holds(row.values)]
        number = len(state.rows) - len(kept)
        self.change(lambda ds: ds.delete(sql), lambda v: state.with_rows(kept), result={"num_deleted_rows": number})

    @rule(seed=SEEDS, everywhere=st.booleans(), data=st.data())
    def update(self, seed: int, everywhere: bool, data: st.DataObject) -> None:
        state = self.state
        sql, holds = ("true", lambda row: True) if everywhere else self.condition(seed)
        name = data.draw(st.sampled_from([each for each in state.names if each != "id"] or ["id"]), label="column")
        kind = kind_of(name)
        options: list[tuple[str, Callable[[Values], Any]]] = [("NULL", lambda row: None)]
        if kind == "n":
            options = [*options, (f"{name} + 1", lambda row: None if row[name] is None else row[name] + 1)]
            options = [*options, ("id", lambda row: row["id"])]
        if kind == "s":
            options += [("'new'", lambda row: "new"), (f"upper({name})", lambda row: row[name] and row[name].upper())]
        if kind == "f":
            options += [("0.25", lambda row: 0.25)]
        if kind == "id":
            options = [("id", lambda row: row["id"])]
        text, value = options[seed % len(options)]
        if text == "NULL" and not state.field(name).nullable:
            return
        number = sum(1 for row in state.rows if holds(row.values))
        self.change(
            lambda ds: ds.update({name: text}, where=None if everywhere else sql),
            lambda v: state.changed(v, lambda row: {**row, name: value(row)} if holds(row) else None),
            result={"num_rows_updated": number},
        )

    @rule(
        number=st.integers(0, 5),
        seed=SEEDS,
        columns=COLUMNS,
        all_columns=st.booleans(),
        matched=st.sampled_from(["update", "update", "condition", "delete", "keep"]),
        insert=st.booleans(),
        unmatched=st.sampled_from(["keep", "keep", "keep", "delete", "condition"]),
        spill=st.booleans(),
        data=st.data(),
    )
    def merge_insert(
        self,
        number: int,
        seed: int,
        columns: list[str],
        all_columns: bool,
        matched: str,
        insert: bool,
        unmatched: str,
        spill: bool,
        data: st.DataObject,
    ) -> None:
        state = self.state
        given = [
            name for name in state.names if all_columns or kind_of(name) in columns or not state.field(name).nullable
        ]
        known = sorted(state.ids)
        ids = data.draw(
            st.lists(st.sampled_from(known), unique=True, max_size=6) if known else st.just([]), label="ids"
        )
        table, values = self.rows(state, len(ids) + number, seed, given, ids)
        if matched == "keep" and not insert and unmatched == "keep":
            return
        bound = seed % 15
        source = {row["id"]: row for row in values}
        uids = self.new_uids(len(values))
        counts = {"num_inserted_rows": 0, "num_updated_rows": 0, "num_deleted_rows": 0}
        fate: dict[int, str] = {}
        for row in state.rows:
            one = row.values["id"]
            if one in source:
                if matched == "delete":
                    fate[row.uid] = "delete"
                elif matched == "update" or (matched == "condition" and one > bound):
                    fate[row.uid] = "update"
            elif unmatched == "delete" or (unmatched == "condition" and one > bound):
                fate[row.uid] = "delete"
        for each in fate.values():
            counts[f"num_{each}d_rows"] += 1
        new = [row for row in values if row["id"] not in state.ids] if insert else []
        counts["num_inserted_rows"] = len(new)

        def after(version: int) -> State:
            left = state.with_rows(row for row in state.rows if fate.get(row.uid) != "delete")
            done = {row.values["id"] for row in state.rows if fate.get(row.uid) == "update"}
            left = left.changed(version, lambda row: {**row, **source[row["id"]]} if row["id"] in done else None)
            return left.inserted(new, version, uids)

        def merge(dataset: lancetable.LanceDataset) -> Any:
            builder = dataset.merge_insert("id")
            if matched == "delete":
                builder = builder.when_matched_delete()
            elif matched != "keep":
                builder = builder.when_matched_update_all(f"target.id > {bound}" if matched == "condition" else None)
            if insert:
                builder = builder.when_not_matched_insert_all()
            if unmatched != "keep":
                builder = builder.when_not_matched_by_source_delete(
                    f"id > {bound}" if unmatched == "condition" else None
                )
            if spill:
                os.environ["LANCETABLE_MEMORY_BYTES"] = "1"
            try:
                return builder.execute(table)
            finally:
                os.environ.pop("LANCETABLE_MEMORY_BYTES", None)

        self.change(merge, after, result=counts)

    # ----------------------------------------------------------------------------------------------------- columns

    @rule(seed=SEEDS, how=st.sampled_from(["sql", "nulls", "reader", "function", "join"]))
    def add_column(self, seed: int, how: str) -> None:
        state = self.state
        if how == "nulls":
            kind = sorted(KINDS)[seed % len(KINDS)]
            new = pa.field(f"{kind}{next(self.names)}", KINDS[kind])
            after: Callable[[int], State] = lambda v: state.with_column(new, lambda row: None)  # noqa: E731
            self.change(lambda ds: ds.add_columns(new), after)
            return
        # An expression over a required column is a required column.
        new = pa.field(f"n{next(self.names)}", pa.int32(), how != "sql" or state.field("id").nullable)
        value: Callable[[Values], Any] = lambda row: row["id"] * 2 - 1  # noqa: E731
        if how == "join":
            matched = {one for one in state.ids if one % 3}
            value = lambda row: row["id"] * 5 if row["id"] in matched else None  # noqa: E731

        def add(dataset: lancetable.LanceDataset) -> None:
            if how == "sql":
                dataset.add_columns({new.name: "CAST(id * 2 - 1 AS INT)"})
            elif how == "reader":
                ids = dataset.to_table(columns=["id"])["id"].to_pylist()
                table = pa.table([pa.array([2 * one - 1 for one in ids], new.type)], schema=pa.schema([new]))
                dataset.add_columns(table.to_reader(max_chunksize=2))
            elif how == "function":

                @lancetable.batch_udf(output_schema=pa.schema([new]))
                def function(batch: pa.RecordBatch) -> pa.RecordBatch:
                    made = pa.array([2 * one - 1 for one in batch["id"].to_pylist()], new.type)
                    return pa.record_batch([made], schema=pa.schema([new]))

                dataset.add_columns(function, read_columns=["id"], batch_size=2)
            else:
                ids = pa.array(sorted(matched), pa.int64())
                dataset.merge(
                    pa.table({"id": ids, new.name: pa.array([5 * one for one in sorted(matched)], new.type)}), "id"
                )

        def after_values(version: int) -> State:
            made = state.with_column(new, value)
            return made.touched(version) if self.stable else made

        self.change(add, after_values)

    @precondition(lambda self: len(self.state.fields) > 2)
    @rule(data=st.data())
    def drop_column(self, data: st.DataObject) -> None:
        state = self.state
        name = data.draw(st.sampled_from([each for each in state.names if each != "id"]), label="column")
        self.change(lambda ds: ds.drop_columns([name]), lambda v: state.without([name]))

    @precondition(lambda self: len(self.state.fields) > 1)
    @rule(data=st.data())
    def rename(self, data: st.DataObject) -> None:
        state = self.state
        name = data.draw(st.sampled_from([each for each in state.names if each != "id"]), label="column")
        new = f"{kind_of(name)}{next(self.names)}"
        self.change(lambda ds: ds.alter_columns({"path": name, "name": new}), lambda v: state.renamed(name, new))

    @rule(data=st.data())
    def cast(self, data: st.DataObject) -> None:
        state = self.state
        casts = {
            pa.int32(): pa.int64(),
            pa.int64(): pa.int32(),
            pa.float64(): pa.float32(),
            pa.float32(): pa.float64(),
            pa.string(): pa.large_string(),
            pa.large_string(): pa.string(),
        }
        able = [each for each in state.fields if each.type in casts and each.name != "id"]
        if not able:
            return
        column = data.draw(st.sampled_from(able), label="column")
        target = casts[column.type]

        def after(version: int) -> State:
            made = state.with_field(column.with_type(target))
            return made.touched(version) if self.stable else made

        self.change(lambda ds: ds.alter_columns({"path": column.name, "data_type": target}), after)

    @rule(nullable=st.booleans())
    def require(self, nullable: bool) -> None:
        state = self.state
        new = state.field("id").with_nullable(nullable)
        self.change(lambda ds: ds.alter_columns({"path": "id", "nullable": nullable}), lambda v: state.with_field(new))

    # ------------------------------------------------------------------------------------------------- maintenance

    @rule(rows=st.sampled_from([2, 4, 10, 1000]), threshold=st.sampled_from([0.0, 0.1, 0.6]), tasks=st.booleans())
    def compact(self, rows: int, threshold: float, tasks: bool) -> None:
        state = self.state
        options: Any = {"target_rows_per_fragment": rows, "materialize_deletions_threshold": threshold}

        def act(dataset: lancetable.LanceDataset) -> None:
            if not tasks:
                dataset.optimize.compact_files(**options)
                return
            plan = lancetable.optimize.Compaction.plan(dataset, options)
            texts = [task.json() for task in plan.tasks]
            done = [lancetable.optimize.CompactionTask.from_json(text).execute(dataset) for text in texts]
            lancetable.optimize.Compaction.commit(dataset, done[::-1])

        self.change(act, lambda v: state, commits=2)

    @rule(keep=st.integers(1, 6), chosen=st.booleans())
    def clean_up(self, keep: int, chosen: bool) -> None:
        model = self.model
        dataset = self.newest()
        protected = self.held()
        tagged = {version for branch, version in self.tags.values() if branch == self.at}
        numbers = sorted(model.versions)
        gone = set(numbers[:-keep]) if not chosen else set(numbers[1:-1:2])
        gone -= protected | tagged | {dataset.version}
        arguments: Any = {"versions": numbers[1:-1:2]} if chosen else {"retain_versions": keep}
        planned = dataset.explain_cleanup_old_versions(error_if_tagged_old_versions=False, **arguments)
        assert planned.stats.old_versions == len(gone)
        fault = self.plant()
        try:
            stats = dataset.cleanup_old_versions(error_if_tagged_old_versions=False, **arguments)
            assert fault or stats.old_versions == len(gone)
        except LanceError:
            if not fault:
                raise
            self.faults_hit = True
        self.store.heal()
        left = {each["version"] for each in self.newest().versions()}
        assert set(numbers) - gone <= left <= set(numbers)
        if not fault:
            assert left == set(numbers) - gone
        elif left != set(numbers) - gone:
            self.faults_hit = True
        if fault:
            self.faults_hit = True  # files whose deletion failed stay
        model.versions = {version: state for version, state in model.versions.items() if version in left}

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(self.model.known()), label="version")
        state = self.model.versions[version]
        assert state is not None
        self.change(lambda ds: ds.checkout_version((self.at, version)).restore(), lambda v: state)

    @rule(key=KEYS, value=st.none() | st.sampled_from(["1", "two"]), what=st.sampled_from(["config", "metadata"]))
    def configure(self, key: str, value: str | None, what: str) -> None:
        state = self.state
        old = state.config if what == "config" else state.metadata
        new = {k: v for k, v in {**old, key: value}.items() if v is not None}
        changed = replace(state, config=new) if what == "config" else replace(state, metadata=new)
        self.change(
            lambda ds: (ds.update_config if what == "config" else ds.update_metadata)({key: value}), lambda v: changed
        )

    # -------------------------------------------------------------------------------------------------- references

    def refer(self, act: Callable[[], Any], noted: Callable[[], bool]) -> bool:
        """Change references, not versions; return True if the change was made."""
        fault = self.plant()
        try:
            act()
        except LanceError:
            if not fault:
                raise
            self.faults_hit = True
            self.store.heal()
            return noted()
        self.store.heal()
        return True

    @rule(name=st.sampled_from("abc"), data=st.data())
    def tag(self, name: str, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(self.model.known()), label="version")
        dataset = self.newest()
        tags = dataset.tags
        act = tags.update if name in self.tags else tags.create
        goal = (self.at, version)

        def noted() -> bool:
            found = self.newest().tags.list().get(name)
            return found is not None and (found["branch"], found["version"]) == goal

        if self.refer(lambda: act(name, goal), noted):
            self.tags[name] = goal

    @precondition(lambda self: self.tags)
    @rule(data=st.data())
    def delete_tag(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tags)), label="tag")
        dataset = self.newest()
        if self.refer(lambda: dataset.tags.delete(name), lambda: name not in self.newest().tags.list()):
            del self.tags[name]

    @precondition(lambda self: len(self.branches) < 4)
    @rule(name=st.sampled_from(["dev", "a/b", "x.y"]), data=st.data())
    def branch(self, name: str, data: st.DataObject) -> None:
        if name in self.branches:
            return
        version = data.draw(st.sampled_from(self.model.known()), label="version")
        dataset, parent = self.newest(), self.model
        made = self.refer(
            lambda: dataset.create_branch(name, (self.at, version)), lambda: name in self.newest().branches.list()
        )
        if not made:
            self.clear(name)
        else:
            state = parent.versions[version]
            self.branches[name] = BranchModel(
                (self.at, version), {version: state}, {version: parent.greatest_id.get(version, -1)}
            )

    def clear(self, name: str) -> None:
        """Remove the leftover files of a branch."""
        with suppress(RefNotFoundError):
            self.newest().branches.delete(name)

    @precondition(lambda self: len(self.branches) > 1)
    @rule(data=st.data())
    def switch(self, data: st.DataObject) -> None:
        self.at = data.draw(st.sampled_from(sorted(self.branches, key=str)), label="branch")
        self.newest()

    @precondition(lambda self: len(self.branches) > 1)
    @rule(data=st.data())
    def delete_branch(self, data: st.DataObject) -> None:
        names = [
            name
            for name in self.branches
            if name is not None
            and name != self.at
            and all(model.parent is None or model.parent[0] != name for model in self.branches.values())
            and all(branch != name for branch, _ in self.tags.values())
        ]
        if not names:
            return
        name = data.draw(st.sampled_from(sorted(names)), label="branch")
        dataset = self.newest()
        if self.refer(lambda: dataset.branches.delete(name), lambda: name not in self.newest().branches.list()):
            del self.branches[name]
            self.clear(name)

    @rule(deep=st.booleans(), data=st.data())
    def clone(self, deep: bool, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(self.model.known()), label="version")
        state = self.model.versions[version]
        assert state is not None
        dataset = self.newest()
        target = f"{self.uri}-clone{next(_tables)}"
        made = (dataset.deep_clone if deep else dataset.shallow_clone)(target, (self.at, version))
        self.compare(made, state, lineage=False)
        table, values = self.rows(state, 2, 1)
        made.insert(table)
        made.delete("id % 2 = 0")
        rows = [row for row in state.inserted(values, 0, self.uids).rows if row.values["id"] % 2]
        self.compare(lancetable.dataset(target), state.with_rows(rows), lineage=False)
        forget(target)

    # ---------------------------------------------------------------------------------------------------- comparing

    def compare(self, dataset: lancetable.LanceDataset, state: State, *, lineage: bool = True) -> None:
        assert dataset.schema.names == state.names
        assert dataset.schema.types == [each.type for each in state.fields]
        assert [each.nullable for each in dataset.schema] == [each.nullable for each in state.fields]
        found = sorted(dataset.to_table().to_pylist(), key=lambda row: row["id"])
        expected = sorted(state.rows, key=lambda row: row.values["id"])
        assert found == [dict(row.values) for row in expected]
        assert dataset.count_rows() == len(expected)
        if lineage:
            assert dataset.config() == dict(state.config)
            assert dataset.metadata == dict(state.metadata)
        if self.stable and lineage:
            columns = ["id", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
            table = dataset.to_table(columns=columns).sort_by("id")
            assert table[2].to_pylist() == [row.created for row in expected]
            assert table[3].to_pylist() == [row.updated for row in expected]
            self.check_row_ids(table[1].to_pylist(), expected)

    def check_row_ids(self, row_ids: list[int], rows: list[Row]) -> None:
        assert len(set(row_ids)) == len(row_ids)
        for row, row_id in zip(rows, row_ids, strict=True):
            assert self.row_ids.setdefault(row.uid, row_id) == row_id, "a row has another id than before"

    @invariant()
    def the_newest_version_is_right(self) -> None:
        if not self.branches:
            return
        dataset, model = self.newest(), self.model
        assert dataset.version == model.latest
        assert [each["version"] for each in dataset.versions()] == sorted(model.versions)
        state = model.current
        before = max(model.greatest_id.values(), default=-1)
        known = set(self.row_ids)
        self.compare(dataset, state)
        if self.stable:
            new = [self.row_ids[row.uid] for row in state.rows if row.uid not in known]
            assert all(row_id > before for row_id in new), "an id was given twice"
            model.greatest_id[model.latest] = max([before, *new])
        assert {k: (v["branch"], v["version"]) for k, v in dataset.tags.list().items()} == self.tags
        assert set(dataset.branches.list()) == {name for name in self.branches if name is not None}

    @rule(seed=SEEDS, data=st.data())
    def parts_can_be_read(self, seed: int, data: st.DataObject) -> None:
        dataset, state = self.newest(), self.state
        sql, holds = self.condition(seed)
        expected = sorted(row.values["id"] for row in state.rows if holds(row.values))
        assert sorted(dataset.to_table(columns=["id"], filter=sql)["id"].to_pylist()) == expected
        assert dataset.count_rows(sql) == len(expected)
        every = dataset.to_table(with_row_id=True).to_pylist()
        places = data.draw(st.lists(st.integers(0, len(every) - 1), max_size=5) if every else st.just([]), label="rows")
        wanted = [{k: v for k, v in every[place].items() if k != "_rowid"} for place in places]
        assert dataset.take(places).to_pylist() == wanted
        assert dataset.take_row_ids([every[place]["_rowid"] for place in places]).to_pylist() == wanted

    @rule(data=st.data())
    def old_versions_do_not_change(self, data: st.DataObject) -> None:
        branch = data.draw(st.sampled_from(sorted(self.branches, key=str)), label="branch")
        version = data.draw(st.sampled_from(sorted(self.branches[branch].versions)), label="version")
        state = self.branches[branch].versions[version]
        dataset = self.dataset(branch, version)
        if state is None:
            dataset.to_table()
        else:
            self.compare(dataset, state)

    @rule(data=st.data())
    def differences_are_told(self, data: st.DataObject) -> None:
        known = self.model.known()
        first, last = sorted(data.draw(st.tuples(st.sampled_from(known), st.sampled_from(known)), label="versions"))
        old, new = self.model.versions[first], self.model.versions[last]
        assert old is not None and new is not None
        if old.fields != new.fields:
            return
        diff = self.newest().diff(first, last, key=None if self.stable else "id")
        if self.stable:
            before = {row.uid: row.values for row in old.rows}
            after = {row.uid: row.values for row in new.rows}
        else:
            before, after = ({row.values["id"]: row.values for row in each.rows} for each in (old, new))
        ids = [
            sorted(after[one]["id"] for one in set(after) - set(before)),
            sorted(after[one]["id"] for one in set(after) & set(before) if after[one] != before[one]),
            sorted(before[one]["id"] for one in set(before) - set(after)),
        ]
        assert sorted(diff.inserted["id"].to_pylist()) == ids[0]
        assert sorted(diff.deleted["id"].to_pylist()) == ids[2]
        assert (
            sorted(row["new"]["id"] if "id" in row["new"] else row["id"] for row in diff.updated.to_pylist()) == ids[1]
        )


class FaultyMachine(ApiMachine):
    faulty = True


@pytest.mark.parametrize("machine", [ApiMachine, FaultyMachine], ids=["sound", "faults"])
def test_whole_api_agrees_with_a_model(machine: type[ApiMachine]) -> None:
    count = settings.default.max_examples if settings.default is not None else 20
    walks = min(500, max(1, count * SCALE // 4))
    run_state_machine_as_test(
        machine, settings=settings(max_examples=walks, stateful_step_count=50 if SCALE > 1 else 30, deadline=None)
    )
