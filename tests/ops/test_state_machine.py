"""Random changes of one table by lancetable and pylance in turns; both must return what the model contains."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lancetable.errors import CommitConflictError
from lancetable.ops.change.delete import delete
from lancetable.ops.read.scan import scan_table
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.refs import tags as tag_ops
from lancetable.ops.refs.restore import restore as restore_version
from lancetable.ops.write import write
from lancetable.ops.write.write import WriteOptions
from lancetable.table.fragment_writer import WriteLimits
from lancetable.table.manifest_files import history
from lancetable.table.version import TableVersion, checkout, latest, open_version
from tests.support.reference_model import BranchModel, State, Values

COLUMNS = {"id": pa.int64(), "s": pa.string(), "v": pa.int32(), "l": pa.list_(pa.float32())}
SCHEMAS = (("id", "s"), ("id", "v", "s"), ("v", "id", "l"))
VALUES = {
    "id": st.integers(-5, 20),
    "s": st.none() | st.sampled_from(["", "a", "bb", "ünï"]),
    "v": st.none() | st.integers(-3, 3),
    "l": st.none() | st.lists(st.none() | st.sampled_from([0.5, -1.0]), max_size=3),
}
ROWS = st.lists(st.fixed_dictionaries(VALUES), max_size=8)
OURS = st.booleans()


def table_of(columns: Sequence[str], rows: Sequence[Values]) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in rows], COLUMNS[name]) for name in columns})


def read(version: TableVersion) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = scan_table(version, plan_scan(version, ScanOptions())).to_pylist()
    return found


def rows_of(state: State | None) -> list[Values]:
    assert state is not None
    return [row.values for row in state.rows]


class TableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="lancetable-machine-")
        self.uri = str(Path(self.directory) / "t.lance")
        self.model = BranchModel()
        self.uids = itertools.count()
        self.tags: dict[str, int] = {}
        # The newest version that replaced all contents. Operations that were prepared before it conflict with it.
        self.replaced_at = 0

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    def add(self, state: State | None, *, replaces: bool = False) -> None:
        version = self.model.latest + 1
        self.model.versions[version] = state
        if replaces:
            self.replaced_at = version

    def with_rows(self, state: State, table: pa.Table) -> State:
        return state.inserted(table.to_pylist(), self.model.latest + 1, self.uids)

    @initialize(ours=OURS, columns=st.sampled_from(SCHEMAS), rows=ROWS, v2=OURS)
    def create(self, ours: bool, columns: tuple[str, ...], rows: list[Values], v2: bool) -> None:
        table = table_of(columns, rows)
        if ours:
            write.create(self.uri, table.schema, iter(table.to_batches()), WriteOptions(v2_manifest_paths=v2))
        else:
            lance.write_dataset(table, self.uri, data_storage_version="2.0", enable_v2_manifest_paths=v2)
        self.add(self.with_rows(State(tuple(table.schema), ()), table), replaces=True)
        # Handles that stay open through everything that follows.
        self.handle = open_version(self.uri)
        self.old_handle = self.handle

    def newest(self) -> TableVersion:
        self.handle = latest(self.handle)
        return self.handle

    @rule(ours=OURS, rows=ROWS, drop=OURS, per_file=st.integers(1, 5))
    def append(self, ours: bool, rows: list[Values], drop: bool, per_file: int) -> None:
        columns = self.model.current.names
        given = [name for name in columns if not (drop and name == "s")]
        table = table_of(given, rows)
        if ours:
            options = WriteOptions(limits=WriteLimits(max_rows_per_file=per_file))
            self.handle = write.append(self.newest(), table.schema, iter(table.to_batches()), options)
        else:
            lance.write_dataset(table, self.uri, mode="append", max_rows_per_file=per_file)
        self.add(self.with_rows(self.model.current, table))

    @rule(rows=ROWS)
    def append_through_an_old_handle(self, rows: list[Values]) -> None:
        state = self.model.versions[self.old_handle.version]
        assert state is not None
        table = table_of(state.names, rows)
        fits = self.replaced_at <= self.old_handle.version
        try:
            write.append(self.old_handle, table.schema, iter(table.to_batches()))
        except CommitConflictError:
            assert not fits
        else:
            assert fits
            self.add(self.with_rows(self.model.current, table))

    @rule()
    def keep_a_handle(self) -> None:
        self.old_handle = self.newest()

    @rule(ours=OURS, columns=st.sampled_from(SCHEMAS), rows=ROWS)
    def overwrite(self, ours: bool, columns: tuple[str, ...], rows: list[Values]) -> None:
        table = table_of(columns, rows)
        if ours:
            self.handle = write.overwrite(self.newest(), table.schema, iter(table.to_batches()))
        else:
            lance.write_dataset(table, self.uri, mode="overwrite")
        self.add(self.with_rows(State(tuple(table.schema), ()), table), replaces=True)

    @rule(ours=OURS, bound=st.integers(-6, 21), below=OURS)
    def delete(self, ours: bool, bound: int, below: bool) -> None:
        predicate = f"id < {bound}" if below else f"id = {bound}"
        if ours:
            self.handle, number = delete(self.newest(), predicate)
        else:
            number = lance.dataset(self.uri).delete(predicate)["num_deleted_rows"]
        current = self.model.current
        kept = [row for row in current.rows if not (row.values["id"] < bound if below else row.values["id"] == bound)]
        assert number == len(current.rows) - len(kept)
        self.add(current.with_rows(kept))

    @rule(ours=OURS, data=st.data())
    def restore(self, ours: bool, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.model.versions)), label="version")
        if ours:
            self.handle = restore_version(checkout(self.newest(), version))
        else:
            lance.dataset(self.uri, version=version).restore()
        self.add(self.model.versions[version], replaces=True)

    @rule(ours=OURS, name=st.sampled_from("abc"), data=st.data())
    def tag(self, ours: bool, name: str, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.model.versions)), label="version")
        known = name in self.tags
        if ours:
            (tag_ops.update_tag if known else tag_ops.create_tag)(self.newest(), name, version)
        else:
            tags = lance.dataset(self.uri).tags
            (tags.update if known else tags.create)(name, version)
        self.tags[name] = version

    @precondition(lambda self: self.tags)
    @rule(ours=OURS, data=st.data())
    def delete_tag(self, ours: bool, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tags)), label="tag")
        if ours:
            tag_ops.delete_tag(self.newest(), name)
        else:
            lance.dataset(self.uri).tags.delete(name)
        del self.tags[name]

    @rule(data=st.data())
    def old_versions_never_change(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.model.versions)), label="version")
        expected = rows_of(self.model.versions[version])
        assert read(checkout(self.newest(), version)) == expected
        assert lance.dataset(self.uri, version=version).to_table().to_pylist() == expected
        for name, tagged in self.tags.items():
            assert open_version(self.uri, name).version == tagged

    @invariant()
    def all_agree(self) -> None:
        if not self.model.versions:
            return
        expected = self.model.current
        ours, theirs = self.newest(), lance.dataset(self.uri)
        assert ours.version == theirs.version == self.model.latest
        assert ours.schema.names == theirs.schema.names == expected.names
        assert read(ours) == rows_of(expected)
        assert theirs.to_table().to_pylist() == rows_of(expected)
        assert ours.manifest.fragments.num_rows() == theirs.count_rows() == len(expected.rows)
        assert {name: tag.version for name, tag in tag_ops.list_tags(ours).items()} == self.tags
        assert {name: tag["version"] for name, tag in theirs.tags.list().items()} == self.tags
        assert [each.version for each in history(ours)] == sorted(self.model.versions)
        theirs.validate()


TestTable = TableMachine.TestCase
TestTable.settings = settings(stateful_step_count=25)
