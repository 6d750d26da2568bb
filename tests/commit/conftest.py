"""Fixtures: operations of every kind on a small table, and the conflict matrix of the format specification."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyroaring
import pytest

from lancetable.format import transaction as tx
from lancetable.format.fragment import TOMBSTONE, Fragment
from lancetable.format.index import IndexMetadata
from lancetable.format.manifest import BasePath
from lancetable.format.schema import Field, Schema
from lancetable.ops.write import write
from lancetable.table import deletion_vectors
from lancetable.table.base_paths import table_target
from lancetable.table.deletion_vectors import DeletionVector
from lancetable.table.fragment_writer import FragmentWriter, WriteLimits
from lancetable.table.version import TableVersion, open_version

# Rows: pending operation with read version 1. Columns: operation committed as version 2. Both change fragment 0, and
# the changed rows are unknown. F is retryable because of the common fragment; in different fragments the pair is ok.
MATRIX = """
            Append Overwrite Delete UpdateRows UpdateCols Merge Project ProjPres Restore Config SchemaConf DataRepl Rewrite CreateIndex Reserve UpdateBases
Append      ok     X         ok     ok         ok         R     R       ok       X       ok     ok         ok       ok      ok          ok      ok
Overwrite   ok     R         ok     ok         ok         ok    ok      ok       ok      ok     ok         ok       ok      ok          ok      ok
Delete      ok     X         F      F          F          R     ok      ok       X       ok     ok         F        F       ok          ok      ok
UpdateRows  ok     X         F      F          F          R     R       ok       X       ok     ok         F        F       ok          ok      ok
UpdateCols  ok     X         F      F          F          R     R       ok       X       ok     ok         F        F       ok          ok      ok
Merge       R      X         R      R          R          R     X       X        X       ok     R          R        R       ok          ok      ok
Project     R      X         ok     R          R          R     R       R        X       ok     ok         R        ok      ok          ok      ok
ProjPres    ok     X         ok     ok         ok         R     R       R        X       ok     ok         ok       ok      ok          ok      ok
Restore     ok     ok        ok     ok         ok         ok    ok      ok       ok      ok     X          ok       ok      ok          ok      ok
Config      ok     ok        ok     ok         ok         ok    ok      ok       ok      X      ok         ok       ok      ok          ok      ok
SchemaConf  ok     X         ok     ok         ok         R     ok      ok       X       ok     X          ok       ok      ok          ok      ok
DataRepl    ok     X         ok     F          F          R     R       ok       X       ok     ok         F        F       R           ok      ok
Rewrite     ok     X         F      F          F          R     ok      ok       X       ok     ok         F        F       F           ok      ok
CreateIndex ok     X         ok     ok         ok         ok    ok      ok       X       ok     ok         R        F       R           ok      ok
Reserve     ok     X         ok     ok         ok         ok    ok      ok       X       ok     ok         ok       ok      ok          ok      ok
UpdateBases ok     ok        ok     ok         ok         ok    ok      ok       ok      ok     ok         ok       ok      ok          ok      X
"""  # noqa: E501  # a table is read as a table


def parse_matrix() -> dict[tuple[str, str], str]:
    header, *rows = (line.split() for line in MATRIX.strip().splitlines())
    return {(name, column): cell for name, *cells in rows for column, cell in zip(header, cells, strict=True)}


CELLS = parse_matrix()
NAMES = list(dict.fromkeys(name for name, _ in CELLS))


@dataclass
class Maker:
    """Factory of operations on version 1 of a table. Operations on fragments change one fragment."""

    version: TableVersion

    def make(self, name: str, fragment_id: int = 0, row: int = 0) -> tx.Operation:
        operation: tx.Operation = getattr(self, f"make_{name.lower()}")(fragment_id, row)
        return operation

    def fragment(self, fragment_id: int) -> Fragment:
        found = self.version.manifest.fragments.by_id(fragment_id)
        assert found is not None
        return found

    def files(self, schema: Schema, table: pa.Table) -> Fragment:
        version = self.version
        (fragment,) = FragmentWriter(
            version.store, (table_target(version.base),), schema, WriteLimits(), version.manifest.file_version
        ).write_all(iter(table.to_batches()))
        return fragment

    def rows(self, first: int, count: int) -> pa.Table:
        ids = range(first, first + count)
        return pa.table({"id": pa.array(ids, pa.int64()), "s": [f"s{i}" for i in ids]})

    def with_deleted(self, fragment_id: int, row: int) -> Fragment:
        version = self.version
        file = deletion_vectors.write(version.store, version.base, fragment_id, version.version, DeletionVector([row]))
        return replace(self.fragment(fragment_id), deletion_file=file)

    def make_append(self, _: int, row: int) -> tx.Operation:
        return tx.Append((self.files(self.version.schema, self.rows(100 + row, 2)),))

    def make_overwrite(self, _: int, row: int) -> tx.Operation:
        schema = Schema.from_arrow(self.rows(0, 1).schema)
        return tx.Overwrite((self.files(schema, self.rows(200, 3)),), schema)

    def make_delete(self, fragment_id: int, row: int) -> tx.Operation:
        return tx.Delete((self.with_deleted(fragment_id, row),), (), f"id = {4 * fragment_id + row}")

    def make_updaterows(self, fragment_id: int, row: int) -> tx.Operation:
        new = self.files(self.version.schema, self.rows(4 * fragment_id + row, 1))
        return tx.Update(updated_fragments=(self.with_deleted(fragment_id, row),), new_fragments=(new,))

    def make_updatecols(self, fragment_id: int, _: int) -> tx.Operation:
        old = self.fragment(fragment_id)
        only = self.version.schema.project(["s"])
        new = self.files(only, pa.table({"s": ["new"] * 4}))
        kept = replace(old.files[0], fields=(0, TOMBSTONE))
        updated = replace(old, files=(kept, *new.files))
        return tx.Update(updated_fragments=(updated,), fields_modified=(1,), mode=tx.UpdateMode.REWRITE_COLUMNS)

    def make_merge(self, _: int, __: int) -> tx.Operation:
        schema = Schema((*self.version.schema.fields, Field("n", 2, -1, "int64")))
        return tx.Merge(tuple(self.version.manifest.fragments), schema)

    def renamed(self) -> Schema:
        first, second = self.version.schema.fields
        return Schema((first, replace(second, name="t")))

    def make_project(self, _: int, __: int) -> tx.Operation:
        return tx.Project(self.renamed())

    def make_projpres(self, _: int, __: int) -> tx.Operation:
        return tx.Project(self.renamed(), preserves_nullability=True)

    def make_restore(self, _: int, __: int) -> tx.Operation:
        return tx.Restore(1)

    def make_config(self, _: int, __: int) -> tx.Operation:
        return tx.UpdateConfig(config=tx.UpdateMap({"k": "v"}))

    def make_schemaconf(self, _: int, __: int) -> tx.Operation:
        return tx.UpdateConfig(schema_metadata=tx.UpdateMap({"k": "v"}))

    def make_datarepl(self, fragment_id: int, _: int) -> tx.Operation:
        new = self.files(self.version.schema, self.rows(300, 4))
        return tx.DataReplacement((tx.DataReplacementGroup(fragment_id, new.files[0]),))

    def make_rewrite(self, fragment_id: int, row: int) -> tx.Operation:
        new = replace(self.files(self.version.schema, self.rows(4 * fragment_id, 4)), id=50 + row)
        return tx.Rewrite((tx.RewriteGroup((self.fragment(fragment_id),), (new,)),))

    def make_createindex(self, fragment_id: int, _: int) -> tx.Operation:
        index = IndexMetadata(
            uuid.uuid4(),
            "s_idx",
            (1,),
            1,
            pyroaring.BitMap([fragment_id]).serialize(),
            0,
            type_url="/lance.table.BTreeIndexDetails",
        )
        return tx.CreateIndex((index,))

    def make_reserve(self, _: int, __: int) -> tx.Operation:
        return tx.ReserveFragments(3)

    def make_updatebases(self, _: int, __: int) -> tx.Operation:
        return tx.UpdateBases((BasePath(0, "/some/where", True),))


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return version 1 of a table with rows id 0..11 in fragments 0, 1 and 2."""
    path = tmp_path_factory.mktemp("template") / "t.lance"
    table = pa.table({"id": pa.array(range(12), pa.int64()), "s": [f"s{i}" for i in range(12)]})
    options = write.WriteOptions(limits=WriteLimits(max_rows_per_file=4))
    write.create(path, table.schema, iter(table.to_batches()), options)
    return path


@pytest.fixture
def fresh(template: Path, tmp_path: Path) -> Callable[[], TableVersion]:
    """Return a function that copies the template and opens version 1."""
    numbers = iter(range(10_000))

    def copy() -> TableVersion:
        target = tmp_path / f"{next(numbers)}.lance"
        shutil.copytree(template, target)
        return open_version(target)

    return copy


@pytest.fixture
def base(fresh: Callable[[], TableVersion]) -> TableVersion:
    return fresh()


@pytest.fixture
def cells() -> dict[tuple[str, str], str]:
    """Return the matrix: (pending, committed) -> ok, R, X or F."""
    return dict(CELLS)


@pytest.fixture
def maker(base: TableVersion) -> Maker:
    return Maker(base)


@pytest.fixture
def maker_of() -> Callable[[TableVersion], Maker]:
    return Maker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests with all kinds of pending and committed operations."""
    for name in ("ours", "theirs"):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, NAMES)
