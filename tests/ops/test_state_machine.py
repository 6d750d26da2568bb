"""Random changes of one table by lancetable and pylance in turns; both must return what the model contains."""

from __future__ import annotations

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
from lancetable.ops.write import write
from lancetable.ops.write.write import WriteOptions
from lancetable.table.data_files import WriteLimits
from lancetable.table.manifests import history
from lancetable.table.version import TableVersion, checkout, latest, open_version
from lancetable.testing.model import ModelTable, Row

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


def table_of(columns: Sequence[str], rows: Sequence[Row]) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in rows], COLUMNS[name]) for name in columns})


def read(version: TableVersion) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = scan_table(version, plan_scan(version, ScanOptions())).to_pylist()
    return found


class TableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="lancetable-machine-")
        self.uri = str(Path(self.directory) / "t.lance")
        self.model = ModelTable()

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @initialize(ours=OURS, columns=st.sampled_from(SCHEMAS), rows=ROWS, v2=OURS)
    def create(self, ours: bool, columns: tuple[str, ...], rows: list[Row], v2: bool) -> None:
        table = table_of(columns, rows)
        if ours:
            write.create(self.uri, table.schema, iter(table.to_batches()), WriteOptions(v2_manifest_paths=v2))
        else:
            lance.write_dataset(table, self.uri, data_storage_version="2.0", enable_v2_manifest_paths=v2)
        self.model.overwrite(columns, table.to_pylist())
        # Handles that stay open through everything that follows.
        self.handle = open_version(self.uri)
        self.old_handle = self.handle

    def newest(self) -> TableVersion:
        self.handle = latest(self.handle)
        return self.handle

    @rule(ours=OURS, rows=ROWS, drop=OURS, per_file=st.integers(1, 5))
    def append(self, ours: bool, rows: list[Row], drop: bool, per_file: int) -> None:
        columns = self.model.current.columns
        given = [name for name in columns if not (drop and name == "s")]
        table = table_of(given, rows)
        if ours:
            options = WriteOptions(limits=WriteLimits(max_rows_per_file=per_file))
            self.handle = write.append(self.newest(), table.schema, iter(table.to_batches()), options)
        else:
            lance.write_dataset(table, self.uri, mode="append", max_rows_per_file=per_file)
        self.model.append(table.to_pylist())

    @rule(rows=ROWS)
    def append_through_an_old_handle(self, rows: list[Row]) -> None:
        columns = self.model.versions[self.old_handle.version].columns
        table = table_of(columns, rows)
        fits = self.model.replaced_at <= self.old_handle.version
        try:
            write.append(self.old_handle, table.schema, iter(table.to_batches()))
        except CommitConflictError:
            assert not fits
        else:
            assert fits
            self.model.append(table.to_pylist())

    @rule()
    def keep_a_handle(self) -> None:
        self.old_handle = self.newest()

    @rule(ours=OURS, columns=st.sampled_from(SCHEMAS), rows=ROWS)
    def overwrite(self, ours: bool, columns: tuple[str, ...], rows: list[Row]) -> None:
        table = table_of(columns, rows)
        if ours:
            self.handle = write.overwrite(self.newest(), table.schema, iter(table.to_batches()))
        else:
            lance.write_dataset(table, self.uri, mode="overwrite")
        self.model.overwrite(columns, table.to_pylist())

    @rule(ours=OURS, bound=st.integers(-6, 21), below=OURS)
    def delete(self, ours: bool, bound: int, below: bool) -> None:
        predicate = f"id < {bound}" if below else f"id = {bound}"
        if ours:
            self.handle, number = delete(self.newest(), predicate)
        else:
            number = lance.dataset(self.uri).delete(predicate)["num_deleted_rows"]
        assert number == self.model.delete(lambda row: row["id"] < bound if below else row["id"] == bound)

    @rule(ours=OURS, data=st.data())
    def restore(self, ours: bool, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.model.versions)), label="version")
        if ours:
            self.handle = tag_ops.restore(checkout(self.newest(), version))
        else:
            lance.dataset(self.uri, version=version).restore()
        self.model.restore(version)

    @rule(ours=OURS, name=st.sampled_from("abc"), data=st.data())
    def tag(self, ours: bool, name: str, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.model.versions)), label="version")
        known = name in self.model.tags
        if ours:
            (tag_ops.update_tag if known else tag_ops.create_tag)(self.newest(), name, version)
        else:
            tags = lance.dataset(self.uri).tags
            (tags.update if known else tags.create)(name, version)
        self.model.tags[name] = version

    @precondition(lambda self: self.model.tags)
    @rule(ours=OURS, data=st.data())
    def delete_tag(self, ours: bool, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.tags)), label="tag")
        if ours:
            tag_ops.delete_tag(self.newest(), name)
        else:
            lance.dataset(self.uri).tags.delete(name)
        del self.model.tags[name]

    @rule(data=st.data())
    def old_versions_never_change(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.model.versions)), label="version")
        expected = list(self.model.versions[version].rows)
        assert read(checkout(self.newest(), version)) == expected
        assert lance.dataset(self.uri, version=version).to_table().to_pylist() == expected
        for name, tagged in self.model.tags.items():
            assert open_version(self.uri, name).version == tagged

    @invariant()
    def all_agree(self) -> None:
        if not self.model.versions:
            return
        expected = self.model.current
        ours, theirs = self.newest(), lance.dataset(self.uri)
        assert ours.version == theirs.version == self.model.latest
        assert tuple(ours.schema.names) == tuple(theirs.schema.names) == expected.columns
        assert read(ours) == list(expected.rows)
        assert theirs.to_table().to_pylist() == list(expected.rows)
        assert ours.manifest.fragments.num_rows() == theirs.count_rows() == len(expected.rows)
        assert {name: tag.version for name, tag in tag_ops.list_tags(ours).items()} == self.model.tags
        assert {name: tag["version"] for name, tag in theirs.tags.list().items()} == self.model.tags
        assert [each.version for each in history(ours)] == sorted(self.model.versions)
        theirs.validate()


TestTable = TableMachine.TestCase
TestTable.settings = settings(stateful_step_count=25)
