"""Damaged newest manifest: error, restore and quarantine, on every store and with both libraries."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lancetable
from integration.servers.moto_locked import Moto
from lancetable.cli.commands import cli
from lancetable.errors import CorruptFileError, StoreError
from lancetable.format.manifest_naming import ManifestNamingScheme, manifest_path
from lancetable.handlers.choose_handler import choose_handler
from lancetable.handlers.external_manifest import ExternalHandler, ManifestRow
from lancetable.ops.maintain.fsck import repair as repair_module
from lancetable.ops.maintain.fsck.quarantine import quarantine
from lancetable.store.base import ObjectStore
from lancetable.store.local import LocalStore
from lancetable.store.open import open_store
from lancetable.table.manifest_files import FOOTER_BYTES


def swap_version(data: bytes) -> bytes:
    """Return the manifest with the version 77."""
    from lancetable.proto import table_pb2

    position = int.from_bytes(data[-FOOTER_BYTES:-8], "little")
    message = table_pb2.Manifest.FromString(data[position + 4 : -FOOTER_BYTES])
    message.version = 77
    body = message.SerializeToString()
    return data[:position] + len(body).to_bytes(4, "little") + body + data[-FOOTER_BYTES:]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "zero bytes": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "garbage": lambda data: bytes(range(256)) * 3,
    "a garbled message": lambda data: data[:-60] + b"\xff" * 44 + data[-16:],
    "a wrong version": swap_version,
}


@dataclass
class Table:
    """A table with versions 1, 2, 3 of one row each."""

    uri: str
    options: dict[str, str] | None = None
    pylance: bool = True
    naming: ManifestNamingScheme = ManifestNamingScheme.V2
    branch: str | None = None
    store: ObjectStore = field(init=False)
    base: str = field(init=False)

    def __post_init__(self) -> None:
        self.store, self.base = open_store(self.uri, self.options)

    def write(self) -> Table:
        names = self.naming is ManifestNamingScheme.V2
        for number in range(1, 4):
            mode = "append" if number > 1 else "create"
            lancetable.write_dataset(
                rows(number), self.uri, mode=mode, storage_options=self.options, enable_v2_manifest_paths=names
            )
        return self

    def path(self, version: int) -> str:
        return manifest_path(self.base, version, self.naming)

    def damage(self, *versions: int, how: str = "truncated") -> dict[int, bytes]:
        found = {}
        for version in versions:
            data = bytes(self.store.read_all(self.path(version)))
            found[version] = DAMAGE[how](data)
            self.store.put(self.path(version), found[version])
        return found

    def open(self, version: int | None = None) -> lancetable.LanceDataset:
        return lancetable.dataset(self.uri, version=version, storage_options=self.options)

    def ids(self, library: Any = lancetable) -> list[int]:
        ds = library.dataset(self.uri, storage_options=self.options)
        return sorted(int(value) for value in ds.to_table()["id"].to_pylist())

    def fsck(self, **named: Any) -> lancetable.table_checks.Report:
        return lancetable.fsck(self.uri, storage_options=self.options, **named)

    def append(self, number: int, library: Any = lancetable) -> None:
        library.write_dataset(rows(number), self.uri, mode="append", storage_options=self.options)

    def goes_on(self, expected: list[int]) -> None:
        """Check that both libraries read the rows, and append."""
        libraries = [lancetable, lance] if self.pylance else [lancetable]
        for library in libraries:
            assert self.ids(library) == expected
        for number, library in enumerate(libraries, 10):
            self.append(number, library)
            expected = [*expected, number]
            for reader in libraries:
                assert self.ids(reader) == expected

    def quarantine(self) -> dict[str, bytes]:
        names = [meta.name for meta in self.store.list_names(f"{self.base}/_quarantine")]
        return {name: bytes(self.store.read_all(f"{self.base}/_quarantine/{name}")) for name in names}


def rows(number: int) -> pa.Table:
    return pa.table({"id": pa.array([number], pa.int64())})


PLACES = ["disk", "disk, V1 names", "memory", "sqlite", "s3", "s3+ddb"]


@pytest.fixture(params=PLACES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return place(request, request.param, tmp_path)


def place(request: pytest.FixtureRequest, where: str, tmp_path: Path) -> Table:
    if where == "memory":
        return Table(f"memory://{uuid4()}/t", pylance=False).write()
    if where.startswith("s3"):
        s3: Moto = request.getfixturevalue("s3")
        name = f"{uuid4()}.lance"
        if where == "s3":
            return Table(f"s3://lab/{name}", s3.options).write()
        options = {**s3.options, "dynamodb_endpoint": s3.endpoint}
        return Table(f"s3+ddb://lab/{name}?ddbTableName=lab", options).write()
    if where == "sqlite":
        options = {"manifest_store": f"sqlite:///{tmp_path}/rows.db"}
        return Table(str(tmp_path / "t"), options, pylance=False).write()
    naming = ManifestNamingScheme.V1 if "V1" in where else ManifestNamingScheme.V2
    return Table(str(tmp_path / "t"), naming=naming).write()


@pytest.fixture
def local(tmp_path: Path) -> Table:
    return Table(str(tmp_path / "t")).write()


# --- the error --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", DAMAGE)
def test_error_contains_the_newest_intact_version_and_both_remedies(local: Table, how: str) -> None:
    local.damage(2, 3, how=how)
    with pytest.raises(CorruptFileError) as raised:
        local.open()
    text = str(raised.value)
    assert re.match(re.escape(local.path(3)) + ": damaged manifest: .*The newest version that can be read is 1: ", text)
    assert f'run "lancetable fsck --repair {local.uri}" to move the damaged manifest aside' in text
    assert text.endswith("or restore it with dataset(uri, version=1).restore()")
    assert (raised.value.path, raised.value.__dict__["newest_readable"]) == (local.path(3), 1)


def test_the_error_of_an_empty_manifest(local: Table) -> None:
    local.damage(3, how="zero bytes")
    with pytest.raises(
        CorruptFileError,
        match=r"damaged manifest: file too short \(expected at least \d+ bytes, found 0\)\. The newest",
    ):
        local.open()


def test_search_for_an_intact_version_is_bounded(local: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from lancetable.table import version as module

    for number in range(4, 40):
        local.append(number)
    local.damage(*range(2, 40))
    tried = 0
    real = module.read_manifest

    def counted(*arguments: Any) -> Any:
        nonlocal tried
        tried += 1
        return real(*arguments)

    monkeypatch.setattr(module, "read_manifest", counted)
    with pytest.raises(CorruptFileError, match="to list the versions that can be read"):
        local.open()
    assert tried < 40


def test_a_failing_search_does_not_hide_the_damage(local: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    local.damage(3)

    def fail(*arguments: Any, **named: Any) -> Any:
        raise StoreError("no route to host")

    monkeypatch.setattr(type(local.open(1).table_version.handler), "candidates", fail)
    with pytest.raises(CorruptFileError, match=r"damaged manifest: .*'LANC'") as raised:
        local.open()
    assert "no route" not in str(raised.value)


@pytest.mark.parametrize("change", ["insert", "delete", "checkout_latest"])
def test_old_handles_raise_the_same_error_and_write_nothing(table: Table, change: str) -> None:
    held = table.open(2)
    table.damage(3)
    acts = {
        "insert": lambda: held.insert(rows(9)),
        "delete": lambda: held.delete("id = 1"),
        "checkout_latest": held.checkout_latest,
    }
    with pytest.raises(CorruptFileError, match=r"The newest version that can be read is 2: run"):
        acts[change]()
    assert table.store.find(table.path(4)) is None


# --- restore ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", DAMAGE)
def test_restore_commits_above_a_damaged_manifest(local: Table, how: str) -> None:
    damaged = local.damage(3, how=how)
    ds = local.open(1)
    ds.restore()
    assert ds.version == 4
    assert bytes(local.store.read_all(local.path(3))) == damaged[3]
    local.goes_on([1])


def test_a_restore_above_damage_works_on_every_store(table: Table) -> None:
    table.damage(3)
    table.open(2).restore()
    assert table.open().version == 4
    table.goes_on([1, 2])


def test_restore_skips_several_damaged_manifests(local: Table) -> None:
    local.damage(2, 3)
    local.open(1).restore()
    assert local.open().version == 4
    local.goes_on([1])


def test_restore_follows_a_concurrent_restore(local: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    local.damage(3)
    first, second = local.open(1), local.open(2)
    real = LocalStore.put_if_absent

    def late(self: LocalStore, path: str, data: Any, **options: Any) -> Any:
        monkeypatch.setattr(LocalStore, "put_if_absent", real)
        second.restore()
        return real(self, path, data, **options)

    monkeypatch.setattr(LocalStore, "put_if_absent", late)
    first.restore()
    assert (second.version, first.version) == (4, 5)
    assert local.ids() == [1]


def test_restore_does_not_skip_a_version_of_a_newer_release(local: Table) -> None:
    data = bytearray(local.store.read_all(local.path(3)))
    data[-8:-6] = (9).to_bytes(2, "little")
    local.store.put(local.path(3), bytes(data))
    with pytest.raises(lancetable.errors.UnsupportedFeatureError):
        local.open(2).restore()
    assert local.store.find(local.path(4)) is None


# --- repair -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", DAMAGE)
def test_repair_quarantines_a_damaged_manifest(local: Table, how: str) -> None:
    damaged = local.damage(3, how=how)
    report = local.fsck(repair=True)
    assert report.is_clean and [problem.kind for problem in report.found if problem.kind == "manifest"]
    assert any("version 3 moved to" in each for each in report.repaired)
    (name,) = local.quarantine()
    assert re.fullmatch(r"18446744073709551612\.manifest-\d{8}T\d{6}\.\d{6}Z", name)
    assert local.quarantine()[name] == damaged[3]
    assert local.open().version == 2
    local.goes_on([1, 2])


def test_repair_works_on_every_store(table: Table) -> None:
    table.damage(3)
    assert table.fsck(repair=True).is_clean
    assert table.open().version == 2
    table.goes_on([1, 2])
    assert len(table.quarantine()) == 1


def test_repair_moves_several_damaged_manifests(table: Table) -> None:
    table.damage(2, 3, how="zero bytes")
    assert table.fsck(repair=True).is_clean
    assert len(table.quarantine()) == 2
    table.goes_on([1])


def test_repair_of_a_damaged_manifest_in_the_middle(local: Table) -> None:
    local.damage(2)
    with pytest.raises(CorruptFileError):
        local.open().versions()
    report = local.fsck(repair=True)
    assert report.is_clean and len(local.quarantine()) == 1
    assert [each["version"] for each in local.open().versions()] == [1, 3]
    local.open().cleanup_old_versions(older_than=timedelta(0), retain_versions=1)
    local.goes_on([1, 2, 3])


def test_repair_of_a_branch_from_the_table_and_by_its_own_address(tmp_path: Path) -> None:
    for where in ("table", "branch"):
        main = Table(str(tmp_path / where)).write()
        branch = main.open().create_branch("dev")
        branch.insert(rows(4))
        of_branch = Table(branch.uri)
        of_branch.damage(branch.version)
        with pytest.raises(CorruptFileError, match=f'fsck --repair {branch.uri}"'):
            of_branch.open()
        report = (main if where == "table" else of_branch).fsck(repair=True)
        assert report.is_clean and len(of_branch.quarantine()) == 1 and not main.quarantine()
        of_branch.goes_on([1, 2, 3])
        assert main.ids() == main.ids(lance) == [1, 2, 3]
        main.open().branches.delete("dev")
        assert not (Path(main.uri) / "tree" / "dev").exists()


def test_damaged_manifest_with_a_hint_is_repaired(local: Table) -> None:
    hint = Path(local.uri) / "_versions" / "latest_version_hint.json"
    hint.write_text('{"version":3}')
    local.damage(3)
    assert local.fsck(repair=True).is_clean
    assert hint.read_text() == '{"version":2}'
    local.goes_on([1, 2])


@pytest.mark.parametrize("content", [b"", b"\0" * 13, b'{"version":', b'{"version":99}', b"\xff" * 200])
def test_damaged_hint_is_harmless(local: Table, content: bytes) -> None:
    (Path(local.uri) / "_versions" / "latest_version_hint.json").write_bytes(content)
    assert local.ids() == [1, 2, 3]
    assert not local.fsck().is_clean
    assert local.fsck(repair=True).is_clean
    local.goes_on([1, 2, 3])


def test_nothing_is_moved_if_no_version_can_be_read(local: Table) -> None:
    local.damage(1, 2, 3)
    before = {path.name: path.read_bytes() for path in (Path(local.uri) / "_versions").iterdir()}
    report = local.fsck(repair=True)
    assert not report.is_clean and not report.repaired and not local.quarantine()
    assert any("no version can be read, so nothing is repaired" in each.detail for each in report.not_checked)
    assert {path.name: path.read_bytes() for path in (Path(local.uri) / "_versions").iterdir()} == before


def test_a_check_without_repair_moves_nothing(local: Table) -> None:
    damaged = local.damage(3)
    assert not local.fsck(deep=True).is_clean
    assert bytes(local.store.read_all(local.path(3))) == damaged[3] and not local.quarantine()


def test_a_manifest_of_a_newer_release_is_not_moved(local: Table) -> None:
    data = bytearray(local.store.read_all(local.path(3)))
    data[-8:-6] = (9).to_bytes(2, "little")
    local.store.put(local.path(3), bytes(data))
    report = local.fsck(repair=True)
    assert [each.kind for each in report.not_checked if "version 3" in each.detail] == ["unsupported"]
    assert bytes(local.store.read_all(local.path(3))) == bytes(data) and not local.quarantine()


def test_a_manifest_that_the_store_fails_to_return_is_not_moved(local: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    real, path = LocalStore.read_all, local.path(3)

    def failing(self: LocalStore, where: str, size: int | None = None) -> Any:
        if where == path:
            raise StoreError(f"{where}: timed out", path=where)
        return real(self, where, size)

    monkeypatch.setattr(LocalStore, "read_all", failing)
    report = local.fsck(repair=True)
    assert {problem.kind for problem in report.problems} == {"access"} and not report.repaired
    monkeypatch.undo()
    assert local.ids() == [1, 2, 3] and not local.quarantine()


def test_truncated_read_that_does_not_repeat_is_not_damage(local: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first read of the check is short; what repair reads itself is whole."""
    real, path, calls = LocalStore.read_all, local.path(3), []

    def short_once(self: LocalStore, where: str, size: int | None = None) -> Any:
        data = real(self, where, size)
        if where == path:
            calls.append(where)
        return data[:50] if where == path and len(calls) in (1, 3) else data

    monkeypatch.setattr(LocalStore, "read_all", short_once)
    report = local.fsck(repair=True)
    assert report.found and not report.repaired and len(calls) > 3
    assert local.ids() == [1, 2, 3] and not local.quarantine()


def test_manifest_that_changes_before_its_removal_is_kept(local: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bytes(local.store.read_all(local.path(3)))
    local.damage(3)
    real = LocalStore.put

    def mended(self: LocalStore, path: str, data: Any, **named: Any) -> None:
        real(self, path, data, **named)
        if "_quarantine" in path:
            real(self, local.path(3), whole)

    monkeypatch.setattr(LocalStore, "put", mended)
    assert not local.fsck(repair=True).repaired
    assert local.ids() == [1, 2, 3]


def test_original_is_kept_if_the_copy_differs(local: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = local.damage(3)
    real = LocalStore.put

    def spoiled(self: LocalStore, path: str, data: Any, **named: Any) -> None:
        real(self, path, data[:-1] if "_quarantine" in path else data, **named)

    monkeypatch.setattr(LocalStore, "put", spoiled)
    report = local.fsck(repair=True)
    assert not report.is_clean and any("copy differs" in each for each in report.failed)
    assert bytes(local.store.read_all(local.path(3))) == damaged[3]


def test_intact_manifest_is_never_moved(table: Table) -> None:
    handler = choose_handler(table.store, table.uri, storage_options=table.options)
    location = handler.locate(table.store, table.base, 3)
    assert location is not None
    assert quarantine(table.store, table.base, handler, location) is None
    assert table.ids() == [1, 2, 3]


def test_intact_staged_manifest_replaces_a_damaged_one(tmp_path: Path) -> None:
    table = Table(str(tmp_path / "t"), {"manifest_store": f"sqlite:///{tmp_path}/rows.db"}, pylance=False).write()
    handler = choose_handler(table.store, table.uri, storage_options=table.options)
    assert isinstance(handler, ExternalHandler)
    staged = f"{table.path(3)}-{uuid4()}"
    table.store.put(staged, bytes(table.store.read_all(table.path(3))))
    table.damage(3)
    handler.external.put_final(handler.external.key(table.store, table.base), ManifestRow(3, staged))
    location = handler.locate(table.store, table.base, 2)
    assert location is not None
    moved = quarantine(
        table.store, table.base, handler, type(location)(3, table.path(3), None, ManifestNamingScheme.V2)
    )
    assert moved is not None
    assert table.ids() == [1, 2, 3]
    table.append(4)
    assert table.ids() == [1, 2, 3, 4]


def test_row_without_a_manifest_is_reported(tmp_path: Path) -> None:
    table = Table(str(tmp_path / "t"), {"manifest_store": f"sqlite:///{tmp_path}/rows.db"}, pylance=False).write()
    table.store.delete([table.path(3)])
    report = table.fsck(repair=True)
    assert [(problem.kind, problem.version) for problem in report.problems] == [("manifest", 3)]
    assert "row for version 3" in report.problems[0].detail and not report.repaired


@pytest.mark.parametrize("where", ["disk", "sqlite"])
def test_damaged_detached_manifest_is_quarantined(request: pytest.FixtureRequest, tmp_path: Path, where: str) -> None:
    table = place(request, where, tmp_path)
    operation = lancetable.LanceOperation.UpdateConfig(lancetable.LanceOperation.UpdateMap({"k": "v"}))
    detached = lancetable.LanceDataset.commit(table.open(), operation, read_version=3, detached=True)
    path = f"{table.base}/_versions/d{detached.version}.manifest"
    table.store.put(path, b"")
    assert [problem.version for problem in table.fsck().problems] == [detached.version]
    assert table.fsck(repair=True).is_clean
    assert table.store.find(path) is None and len(table.quarantine()) == 1
    table.goes_on([1, 2, 3])


# --- quarantined manifests --------------------------------------------------------------------------------------------


def test_files_of_quarantined_manifests_are_kept_unless_requested(local: Table) -> None:
    data = {path: path.read_bytes() for path in (Path(local.uri) / "data").iterdir()}
    local.damage(3)
    local.fsck(repair=True)
    old = time.time() - 30 * 86400
    for path in data:
        os.utime(path, (old, old))
    report = local.fsck(repair=True)
    assert report.is_clean and any(each.kind == "quarantine" for each in report.not_checked)
    local.open().cleanup_old_versions(older_than=timedelta(0))
    assert all(path.exists() for path in data)
    local.open().cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert len(list((Path(local.uri) / "data").iterdir())) == 2
    assert local.ids() == [1, 2]


def test_pylance_cleans_up_a_table_with_a_quarantine(local: Table) -> None:
    local.damage(3)
    local.fsck(repair=True)
    before = local.quarantine()
    lance.dataset(local.uri).cleanup_old_versions(timedelta(0))
    assert local.quarantine() == before
    local.goes_on([1, 2])


def test_drop_removes_the_quarantine(local: Table) -> None:
    local.damage(3)
    local.fsck(repair=True)
    lancetable.LanceDataset.drop(local.uri)
    assert not Path(local.uri).exists()


def test_fsck_command_repairs_and_exits_with_0(local: Table) -> None:
    local.damage(3)
    assert CliRunner().invoke(cli, ["fsck", local.uri]).exit_code == 2
    done = CliRunner().invoke(cli, ["fsck", local.uri, "--repair"])
    assert done.exit_code == 0 and "_quarantine" in done.output
    assert CliRunner().invoke(cli, ["fsck", local.uri, "--deep"]).exit_code == 0


def test_an_error_of_one_step_of_a_repair_is_reported(local: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    local.damage(3)

    def refuse(*arguments: Any) -> Any:
        raise StoreError("read-only file system")

    monkeypatch.setattr(repair_module, "quarantine", refuse)
    report = local.fsck(repair=True)
    assert not report.is_clean and report.failed == ["version 3: read-only file system"]
    assert CliRunner().invoke(cli, ["fsck", local.uri, "--repair"]).exit_code == 2
