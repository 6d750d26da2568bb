"""Tables opened with `untrusted=True`: nothing outside of the table is used, and reads are limited.

tests/interop/test_escapes.py tests 65 hostile paths in each place of a table.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import CorruptFileError, LanceError, LimitError, UnsupportedFeatureError, UntrustedPathError
from lancetable.file import LanceFileReader, LanceFileSession
from lancetable.file.footer import build_tail
from lancetable.file.limits import UNTRUSTED_LIMITS, ReadLimits
from lancetable.file.reader import open_data_file
from lancetable.file.writer import FileWriter
from lancetable.format.schema import Schema
from lancetable.format.version import FileVersion
from lancetable.proto import encodings_v2_1_pb2, file2_pb2, file_pb2, table_pb2
from lancetable.store.confined import MAX_OBJECT_BYTES, confine
from lancetable.store.local import LocalStore
from lancetable.store.open import open_store
from lancetable.table.manifest_files import pack, read_manifest
from lancetable.table.version import open_version
from lancetable.testing.conformance import StoreSuite
from tests.support.synthetic_files import Column, Page, build_file

if TYPE_CHECKING:
    from integration.servers.moto_locked import Moto

REMEDY = "without untrusted"
FORMATS = ["legacy", "2.0", "2.1", "2.2"]
Change = Callable[[table_pb2.Manifest], object]


def rows(first: int, count: int = 10) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "s": [f"text {number % 7}" for number in ids]})


def make(uri: str, options: dict[str, str] | None = None, data_format: str = "2.1") -> lancetable.LanceDataset:
    """Return a table with two fragments, a deletion file, a tag and a branch."""
    ds = lancetable.write_dataset(rows(0), uri, data_storage_version=data_format, storage_options=options)
    ds.insert(rows(10))
    ds.delete("id = 3")
    ds.tags.create("whole", 3)
    ds.create_branch("twig").insert(rows(20))
    return ds


@pytest.fixture
def table(tmp_path: Path) -> lancetable.LanceDataset:
    return make(str(tmp_path / "t.lance"))


def untrusted(ds: lancetable.LanceDataset, **arguments: Any) -> lancetable.LanceDataset:
    return lancetable.dataset(ds.uri, untrusted=True, **arguments)


def rewrite(uri: str, change: Change, options: dict[str, str] | None = None, head: bytes = b"") -> str:
    """Replace the newest manifest by a changed one, and return its path."""
    version = open_version(uri, storage_options=options)
    message = table_pb2.Manifest()
    message.CopyFrom(read_manifest(version.store, version.location).manifest.message)
    change(message)
    message.ClearField("transaction_section")
    message.ClearField("transaction_section_deprecated")
    path, body = version.location.path, message.SerializeToString()
    version.store.delete([path])  # a local file is mapped
    # `pack` would add an inline transaction.
    footer = struct.pack("<qHH4s", len(head), 0, 2, b"LANC")
    version.store.put(path, head + struct.pack("<I", len(body)) + body + footer)
    return path


def with_base(path: str) -> Change:
    def change(message: table_pb2.Manifest) -> None:
        message.base_paths.add(id=1, path=path, is_dataset_root=True)
        for fragment in message.fragments:
            fragment.files[0].base_id = 1

    return change


def every_answer(ds: lancetable.LanceDataset) -> dict[str, Any]:
    """Return the answers of all kinds of reads."""
    fragment = ds.get_fragments()[0]
    return {
        "scan": ds.to_table(with_row_id=True),
        "filter": ds.to_table(filter="id > 4 AND s = 'text 1'", columns=["id"]),
        "batches": [batch.num_rows for batch in ds.to_batches(batch_size=3)],
        "take": ds.take([0, 5, 17]),
        "head": ds.head(4),
        "count": ds.count_rows("id < 12"),
        "schema": ds.schema,
        "versions": [entry["version"] for entry in ds.versions()],
        "latest": ds.latest_version,
        "tags": ds.tags.list(),
        "branches": sorted(ds.branches.list()),
        "tag": ds.checkout_version("whole").to_table(),
        "version 1": ds.checkout_version(1).to_table(),
        "branch": ds.checkout_version(("twig", None)).to_table(),
        "transaction": repr(ds.read_transaction(2)),
        "fragment": fragment.to_table(),
        "fragment take": fragment.take([1, 2]),
        "stats": ds.stats.dataset_stats(),
        "files": sorted(ds.all_files().read_all()["path"].to_pylist()),
        "config": ds.config(),
        "validate": ds.validate(),
        "cleanup plan": ds.explain_cleanup_old_versions(older_than=None, retain_versions=100).candidate_files,
    }


@pytest.mark.parametrize("data_format", FORMATS)
def test_complete_table_is_read_as_if_it_were_trusted(tmp_path: Path, data_format: str) -> None:
    ds = make(str(tmp_path / "t.lance"), None, data_format)
    assert every_answer(untrusted(ds)) == every_answer(lancetable.dataset(ds.uri))
    for file in (tmp_path / "t.lance" / "data").iterdir():
        assert LanceFileReader(str(file), untrusted=True).read_all().to_table().num_rows == 10
    assert lancetable.fsck(ds.uri, deep=True, untrusted=True).is_clean
    written = untrusted(ds).insert(rows(100))
    assert written is None
    assert untrusted(ds).count_rows() == 29


def test_blobs_and_row_ids_of_an_untrusted_table(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
    data = pa.table({"id": [1, 2, 3], "b": [b"one", b"two" * 100_000, None]}, schema=schema)
    ds = lancetable.write_dataset(data, tmp_path / "b.lance", enable_stable_row_ids=True)
    opened = untrusted(ds)
    assert [blob.readall() for blob in opened.take_blobs("b", indices=[0, 1])] == [b"one", b"two" * 100_000]
    assert opened.to_table(with_row_id=True)["_rowid"].to_pylist() == [0, 1, 2]


# ------------------------------------------------------------------------------------------------- paths in manifests


@pytest.mark.parametrize("form", ["{outside}", "file://{outside}", "{root}2", "relative/path", "{parent}"])
def test_a_base_path_elsewhere_on_the_disk_is_refused(table: lancetable.LanceDataset, form: str) -> None:
    root = table.uri
    parent = str(Path(root).parent)
    for name in ("outside", "t.lance2"):
        shutil.copytree(f"{root}/data", f"{parent}/{name}/data")
    shutil.copytree(f"{root}/data", f"{parent}/data")
    path = form.format(outside=f"{parent}/outside", root=root, parent=parent)
    manifest = rewrite(root, with_base(path))
    if form != "relative/path":
        assert lancetable.dataset(root).count_rows("id >= 0") == 19
    with pytest.raises(UntrustedPathError, match="base path 1") as caught:
        untrusted(table).to_table()
    message = str(caught.value)
    assert path.removeprefix("file://") in message and manifest in message and REMEDY in message
    assert caught.value.path == path.removeprefix("file://") and manifest in str(caught.value.place)
    with pytest.raises(UntrustedPathError):
        untrusted(table).take([0])
    with pytest.raises(UntrustedPathError):
        untrusted(table).insert(rows(50))
        untrusted(table).delete("id = 5")


@pytest.mark.parametrize("path", ["s3://lab/t", "http://127.0.0.1:9/t", "memory://t", "/t/../etc", "/t\0"])
def test_an_address_that_no_table_may_name_is_refused_with_its_place(table: lancetable.LanceDataset, path: str) -> None:
    manifest = rewrite(table.uri, with_base(path))
    with pytest.raises((UnsupportedFeatureError, CorruptFileError), match="base path 1") as caught:
        untrusted(table).to_table()
    assert manifest in str(caught.value)


def test_a_base_path_below_the_root_is_used(table: lancetable.LanceDataset, tmp_path: Path) -> None:
    shutil.copytree(f"{table.uri}/data", f"{table.uri}/more/data")
    rewrite(table.uri, with_base(f"{table.uri}/more"))
    shutil.rmtree(f"{table.uri}/data")
    assert untrusted(table).count_rows("id >= 0") == 19
    (tmp_path / "link").symlink_to(table.uri)
    assert lancetable.dataset(tmp_path / "link", untrusted=True).count_rows("id >= 0") == 19


def test_errors_name_the_file_that_has_an_unsafe_path(table: lancetable.LanceDataset) -> None:
    def change(message: table_pb2.Manifest) -> None:
        message.fragments[0].files[0].path = "../../secret"
        message.transaction_file = "../secret"

    manifest = rewrite(table.uri, change)
    for read in (lambda ds: ds.to_table(), lambda ds: ds.read_transaction(ds.version)):
        with pytest.raises(CorruptFileError, match="unsafe path") as caught:
            read(untrusted(table))
        assert str(caught.value).startswith(manifest)


def test_a_shallow_clone_is_refused_and_a_deep_clone_is_read(table: lancetable.LanceDataset, tmp_path: Path) -> None:
    shallow, deep = str(tmp_path / "shallow"), str(tmp_path / "deep")
    table.shallow_clone(shallow, 3)
    with pytest.raises(UntrustedPathError, match="base path"):
        lancetable.dataset(shallow, untrusted=True).to_table()
    copied = untrusted(table).deep_clone(deep, 3)
    assert copied.count_rows("id >= 0") == 19
    with pytest.raises(UntrustedPathError, match="base path"):
        untrusted(table).shallow_clone(str(tmp_path / "again"), 3).to_table()


def test_a_branch_is_read_through_its_table_only(table: lancetable.LanceDataset) -> None:
    branch = untrusted(table).checkout_version(("twig", None))
    assert branch.count_rows("id >= 0") == 29
    assert sorted(branch.tags.list()) == ["whole"]
    alone = lancetable.dataset(f"{table.uri}/tree/twig", untrusted=True)
    with pytest.raises(UntrustedPathError, match="base path"):
        alone.to_table()
    with pytest.raises(UntrustedPathError, match="parent of branch 'twig'") as caught:
        alone.tags.list()
    assert REMEDY in str(caught.value)
    problems = lancetable.fsck(alone.uri, untrusted=True).problems
    assert problems and {problem.kind for problem in problems} == {"refused"}


def test_a_manifest_cannot_move_the_root_by_the_name_of_a_branch(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(rows(0), tmp_path / "tree" / "x")
    rewrite(ds.uri, lambda message: setattr(message, "branch", "x"))
    (tmp_path / "_refs" / "tags").mkdir(parents=True)
    with pytest.raises(UntrustedPathError, match="parent of branch 'x'"):
        untrusted(ds).tags.list()


# -------------------------------------------------------------------------------------------------------------- links


def outside_of(ds: lancetable.LanceDataset, name: str, target: str = "{outside}") -> None:
    """Move a file or directory of a table outside of it, and leave a symbolic link."""
    inside = Path(ds.uri) / name
    outside = Path(ds.uri).parent / "outside" / inside.name
    outside.parent.mkdir(exist_ok=True)
    shutil.move(str(inside), outside)
    inside.symlink_to(target.format(outside=outside, relative=os.path.relpath(outside, inside.parent)))


LINKED: dict[str, Callable[[lancetable.LanceDataset], Any]] = {
    "data": lambda ds: ds.to_table(),
    "_deletions": lambda ds: ds.to_table(),
    "_versions": lambda ds: None,
    "_versions/latest_version_hint.json": lambda ds: None,
    "_transactions": lambda ds: ds.read_transaction(1),
    "_refs": lambda ds: ds.tags.list(),
    "_refs/tags": lambda ds: ds.checkout_version("whole"),
    "_refs/tags/whole.json": lambda ds: ds.checkout_version("whole"),
    "_refs/branches": lambda ds: ds.branches.list(),
    "tree": lambda ds: ds.checkout_version(("twig", None)),
    "tree/twig": lambda ds: ds.checkout_version(("twig", None)),
    "tree/twig/data": lambda ds: ds.checkout_version(("twig", None)).to_table(),
}


@pytest.mark.parametrize("target", ["{outside}", "{relative}"])
@pytest.mark.parametrize("name", LINKED)
def test_a_link_out_of_the_table_is_refused(table: lancetable.LanceDataset, name: str, target: str) -> None:
    if name == "_transactions":
        rewrite(table.uri, lambda message: None)  # no inline transaction
        LINKED["_transactions"] = lambda ds: ds.read_transaction(ds.version)
    outside_of(table, name, target)
    LINKED[name](lancetable.dataset(table.uri))  # a trusted table may have links
    with pytest.raises(UntrustedPathError) as caught:
        LINKED[name](untrusted(table))
    assert str(caught.value).startswith(f"{table.uri}/{name}: ") and REMEDY in str(caught.value)
    assert caught.value.place == f"{table.uri}/{name}"


@pytest.mark.parametrize("kind", ["data", "_deletions", "_versions"])
def test_a_single_file_that_is_a_link_is_refused(table: lancetable.LanceDataset, kind: str) -> None:
    (name, *_) = sorted(path.name for path in (Path(table.uri) / kind).iterdir() if path.suffix != ".json")
    outside_of(table, f"{kind}/{name}")
    with pytest.raises(UntrustedPathError, match="symbolic links"):
        untrusted(table).to_table()
    with pytest.raises(UntrustedPathError, match="symbolic links"):
        untrusted(table).all_files().read_all()
    assert "refused" in {problem.kind for problem in lancetable.fsck(table.uri, untrusted=True).problems}
    if kind == "data":
        path = f"{table.uri}/data/{name}"
        assert LanceFileReader(path).num_rows() == 10
        with pytest.raises(UntrustedPathError, match="symbolic links"):
            LanceFileReader(path, untrusted=True)
        with pytest.raises(UntrustedPathError, match="symbolic links"):
            LanceFileSession(table.uri, {"untrusted": "true"}).open_reader(f"data/{name}")


@pytest.mark.parametrize(
    "target", ["..", "/etc", "//etc/hostname", "loop", "missing", "data", "{root}/data", "data/../.."]
)
def test_every_link_is_refused_without_following_it(
    table: lancetable.LanceDataset, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Path(table.uri) / "loop"
    link.symlink_to(target.format(root=table.uri))
    store, base = open_store(table.uri, {"untrusted": "true"})
    looked_up: list[str] = []
    for name in ("stat", "open", "scandir"):
        original = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda path, *rest, original=original, **named: (looked_up.append(str(path)), original(path))[1]
        )
    for call in (store.find, store.list_names, store.read_all, lambda path: store.read_all(f"{path}/x/y")):
        with pytest.raises(UntrustedPathError, match=r"loop: .* must not contain symbolic links"):
            call(f"{base}/loop")
    assert not looked_up


def test_writes_and_deletions_stay_in_the_table(table: lancetable.LanceDataset, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    kept = tmp_path / "outside" / "kept"
    kept.write_bytes(b"kept")
    (Path(table.uri) / "link").symlink_to(tmp_path / "outside")
    store, base = open_store(table.uri, {"untrusted": "true"})
    for path in (f"{base}/link/kept", f"{base}/../outside/kept", str(kept), f"{base}2/x"):
        for call in (
            lambda path: store.put(path, b"x"),
            lambda path: store.put_if_absent(path, b"x"),
            store.open_writer,
            lambda path: store.delete([path]),
            store.delete_prefix,
            store.modified_ns,
            lambda path: store.read_tail(path, None, 4),
            lambda path: store.read(path, 0, 1),
            lambda path: store.read_many(path, [(0, 1)]),  # type: ignore[list-item]
            lambda path: next(store.list_recursive(path), None),
        ):
            with pytest.raises(UntrustedPathError):
                call(path)
    assert kept.read_bytes() == b"kept" and sorted(os.listdir(tmp_path)) == ["outside", "t.lance"]


class TestConfinedLocal(StoreSuite):
    """A confined store fulfils the contract of stores."""

    @pytest.fixture
    def store_and_path(self, tmp_path: Path) -> Any:
        return confine(LocalStore(), str(tmp_path)), str(tmp_path)


# ------------------------------------------------------------------------------------------- the setting is passed on


def in_child(function: Callable[[], Any]) -> Any:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function)


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")  # another test may have imported it
def test_the_setting_is_part_of_every_handle_and_copy(table: lancetable.LanceDataset, tmp_path: Path) -> None:
    opened = untrusted(table)
    outside_of(table, "data")
    handles: list[Any] = [
        opened,
        pickle.loads(pickle.dumps(opened)),
        opened.checkout_version(1),
        opened.checkout_version("whole"),
        opened.checkout_version(("twig", None)),
        pickle.loads(pickle.dumps(opened.checkout_version(("twig", None)))),
        opened.get_fragments()[0],
        pickle.loads(pickle.dumps(opened.get_fragments()[0])),
        opened.scanner(),
        opened.filter(pa.compute.field("id") > 2),
        lancetable.dataset(table.uri, storage_options={"untrusted": "true"}),
        lancetable.dataset(table.uri, untrusted=True, session=lancetable.Session()),
        lancetable.LanceDataset(table.uri, untrusted=True),
        lancetable.dataset(table.uri, storage_options=opened.initial_storage_options),
    ]
    opened.checkout_latest()
    for handle in [*handles, opened]:
        with pytest.raises(UntrustedPathError):
            handle.to_table()
    with ThreadPoolExecutor(2) as pool, pytest.raises(UntrustedPathError):
        pool.submit(opened.to_table).result()
    with pytest.raises(UntrustedPathError):
        in_child(opened.to_table)
    with pytest.raises(UntrustedPathError):
        opened.new_file_session().open_reader(os.path.join("data", os.listdir(f"{table.uri}/data")[0]))
    assert lancetable.dataset(table.uri).count_rows("id >= 0") == 19


def test_other_options_of_a_commit_do_not_end_the_confinement(table: lancetable.LanceDataset) -> None:
    for opened in (untrusted(table), untrusted(table).checkout_version(("twig", None))):
        operation = lancetable.LanceOperation.UpdateConfig(lancetable.LanceOperation.UpdateMap({"a": "b"}))
        written = lancetable.LanceDataset.commit(opened, operation, opened.version, storage_options={"fsync": "false"})
        store = written.table_version.store
        assert store.capabilities.roots[0] == table.uri
        assert written.count_rows("id >= 0") == (29 if written.table_version.branch else 19)


def test_a_session_keeps_metadata_of_trusted_and_untrusted_readers_apart(table: lancetable.LanceDataset) -> None:
    session = lancetable.Session()
    assert lancetable.dataset(table.uri, session=session).count_rows("id >= 0") == 19
    outside_of(table, "data")
    with pytest.raises(UntrustedPathError):
        lancetable.dataset(table.uri, session=session, untrusted=True).count_rows("id >= 0")


def test_a_file_system_object_is_confined(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    uri = f"/{uuid4()}/t"
    lancetable.write_dataset(rows(0), (memory, uri))
    assert lancetable.dataset((memory, uri), untrusted=True).count_rows("id >= 0") == 10
    store, base = open_store((memory, uri), {"untrusted": "true"})
    for path in (f"{base}/../x", base[:-1], f"{base}2"):
        with pytest.raises(UntrustedPathError):
            store.find(path)


def test_spark_workers_open_the_pinned_version_confined(table: lancetable.LanceDataset) -> None:
    pytest.importorskip("pyspark")
    from lancetable.spark.options import SourceOptions
    from lancetable.spark.pinned_version import PinnedVersion, pin_of

    options = SourceOptions.parse({"path": table.uri, "storage.untrusted": "true"})
    branch = SourceOptions.parse({"path": table.uri, "storage.untrusted": "true", "branch": "twig"})
    for pin, count in ((pin_of(options), 19), (pin_of(branch), 29)):
        copied: PinnedVersion = pickle.loads(pickle.dumps(pin))
        version = copied.open()
        assert version.store.capabilities.roots[0] == table.uri
        assert lancetable.LanceDataset.from_version(version).count_rows("id >= 0") == count


# ----------------------------------------------------------------------------------------------------------------- S3


def test_no_request_leaves_the_prefix_of_a_table_on_s3(s3: Moto) -> None:
    name = f"{uuid4()}/t"
    uri = f"s3://lab/{name}"
    ds = make(uri, s3.options)
    s3.reset()
    answers = every_answer(lancetable.dataset(uri, storage_options=s3.options, untrusted=True))
    assert answers["count"] == every_answer(ds)["count"]
    parent = uri.rpartition("/")[0]
    for path in (f"{parent}/u", f"{uri}2", "s3://other/t", f"{uri}/../u", "/etc", "http://127.0.0.1:9/t", "memory://t"):
        with_new_base = rewrite(uri, with_base(path), s3.options)
        s3.reset()
        with pytest.raises(
            (UntrustedPathError, UnsupportedFeatureError, CorruptFileError), match="base path 1"
        ) as caught:
            lancetable.dataset(uri, storage_options=s3.options, untrusted=True).to_table()
        assert with_new_base in str(caught.value)
        if path in (f"{parent}/u", f"{uri}2"):
            assert caught.type is UntrustedPathError and REMEDY in str(caught.value)
        outside = [
            entry for entry in s3.log() if f"lab/{name}/" not in entry[1] and f"prefix={name}" not in unquoted(entry)
        ]
        assert not outside
        rewrite(uri, lambda message: message.ClearField("base_paths"), s3.options)
    alone = lancetable.dataset(f"{uri}/tree/twig", storage_options=s3.options, untrusted=True)
    with pytest.raises(UntrustedPathError, match="base path"):
        alone.to_table()


def unquoted(entry: list[Any]) -> str:
    return str(entry[2]).replace("%2F", "/")


# ------------------------------------------------------------------------------------------------------------- limits


def refused(limit: str, read: Callable[[], object]) -> None:
    with pytest.raises(LimitError) as caught:
        read()
    assert caught.value.limit == limit and limit in str(caught.value) and REMEDY in str(caught.value)
    assert isinstance(caught.value, CorruptFileError) and caught.value.path


def add_fragments(message: table_pb2.Manifest) -> None:
    for number in range(UNTRUSTED_LIMITS.metadata_entries):
        message.fragments.add(id=number + 10)


def add_fields(message: Any) -> None:
    for number in range(UNTRUSTED_LIMITS.metadata_entries):
        message.fields.add(name=str(number), id=number + 10, parent_id=-1, logical_type="int8")


MANIFESTS: dict[str, tuple[str, Change, int]] = {
    "fragments": ("metadata_entries", add_fragments, 0),
    "fields": ("metadata_entries", add_fields, 0),
    "bytes": ("metadata_bytes", lambda message: None, UNTRUSTED_LIMITS.metadata_bytes),
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_limits_of_a_manifest(table: lancetable.LanceDataset, kind: str) -> None:
    limit, change, padding = MANIFESTS[kind]
    rewrite(table.uri, change, head=bytes(padding))
    assert lancetable.dataset(table.uri).version == 3
    refused(limit, lambda: untrusted(table))
    report = lancetable.fsck(table.uri, repair=True, untrusted=True)
    assert {problem.kind for problem in report.problems} == {"refused"} and not report.repaired
    assert lancetable.dataset(table.uri).version == 3


def sparse(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


@pytest.mark.parametrize("directory", ["_deletions", "_transactions", "_versions"])
def test_limit_of_an_object_that_is_read_whole(table: lancetable.LanceDataset, directory: str) -> None:
    if directory == "_transactions":
        rewrite(table.uri, lambda message: None)
    for path in (Path(table.uri) / directory).iterdir():
        if path.suffix != ".json":
            sparse(path, 40 << 30)  # a file with holes
    if directory == "_deletions":
        refused("object_bytes", lambda: untrusted(table).to_table())
    elif directory == "_transactions":
        refused("object_bytes", lambda: untrusted(table).read_transaction(3))
    else:
        with pytest.raises(CorruptFileError):
            untrusted(table)
    report = lancetable.fsck(table.uri, untrusted=True)
    assert "refused" in {problem.kind for problem in report.problems}
    assert MAX_OBJECT_BYTES == 64 << 20


def data_file(path: Path, columns: list[bytes], descriptor: bytes, *, padding: tuple[int, int] = (0, 0)) -> str:
    """Write a 2.1 file: padding before the descriptor, and behind it as part of the column metadata."""
    before, within = padding
    tail = build_tail(before, FileVersion.V2_1, descriptor + bytes(within), columns, [])
    path.write_bytes(bytes(before) + tail)
    return str(path)


INTS = Schema.from_arrow(pa.schema([("c", pa.int64())]))


def descriptor_of(schema: Schema, num_rows: int) -> file_pb2.FileDescriptor:
    message = file_pb2.FileDescriptor(length=num_rows)
    message.schema.fields.extend(schema.to_protos())
    return message


def test_limits_of_the_metadata_of_a_file(tmp_path: Path) -> None:
    pages = file2_pb2.ColumnMetadata()
    for _ in range(UNTRUSTED_LIMITS.metadata_entries + 1):
        pages.pages.add(length=1)
    small = descriptor_of(INTS, UNTRUSTED_LIMITS.metadata_entries + 1).SerializeToString()
    many = data_file(tmp_path / "pages.lance", [pages.SerializeToString()], small)
    refused("metadata_entries", lambda: LanceFileReader(many, untrusted=True).read_all().to_table())
    with pytest.raises(LanceError) as caught:
        LanceFileReader(many).read_all().to_table()
    assert not isinstance(caught.value, LimitError)

    column = bytes(UNTRUSTED_LIMITS.metadata_bytes + 1)
    long = data_file(tmp_path / "long.lance", [column], small)
    refused("metadata_bytes", lambda: LanceFileReader(long, untrusted=True))
    assert LanceFileReader(long).num_rows() == UNTRUSTED_LIMITS.metadata_entries + 1

    wide = descriptor_of(INTS, 1)
    wide.schema.metadata["x"] = bytes(UNTRUSTED_LIMITS.metadata_bytes)
    described = data_file(tmp_path / "wide.lance", [b""], wide.SerializeToString())
    refused("metadata_bytes", lambda: LanceFileReader(described, untrusted=True))

    fields = descriptor_of(INTS, 1)
    add_fields(fields.schema)
    named = data_file(tmp_path / "fields.lance", [b""], fields.SerializeToString())
    refused("metadata_entries", lambda: LanceFileReader(named, untrusted=True))


def nulls(path: Path, data_type: pa.DataType, num_rows: int) -> str:
    """Write a file of one page that stores the number of its rows, which are null, and no values."""
    schema = Schema.from_arrow(pa.schema([pa.field("c", data_type)]))
    layout = encodings_v2_1_pb2.PageLayout(constant_layout=encodings_v2_1_pb2.ConstantLayout(layers=[3]))
    page = Page(num_rows, layout, [], type_url="/lance.encodings21.PageLayout")  # type: ignore[arg-type]
    path.write_bytes(build_file(schema, num_rows, [Column([page])], version=FileVersion.V2_1))
    return str(path)


def test_limit_of_the_decoded_bytes_of_a_page(tmp_path: Path) -> None:
    megabyte = pa.binary(1 << 20)
    reader = LanceFileReader(nulls(tmp_path / "f.lance", megabyte, 600), untrusted=True)
    refused("page_bytes", lambda: reader.read_all().to_table())
    assert reader.read_range(0, 10).to_table()["c"].null_count == 10


def test_limit_of_the_rows_of_a_file(tmp_path: Path) -> None:
    most = UNTRUSTED_LIMITS.file_rows
    allowed, above = (nulls(tmp_path / str(count), pa.int64(), count) for count in (most, most + 1))
    assert LanceFileReader(above).num_rows() == most + 1
    refused("file_rows", lambda: LanceFileReader(above, untrusted=True))
    assert LanceFileReader(allowed, untrusted=True).read_range(5, 5).to_table().num_rows == 5


def test_errors_name_the_limits_of_trusted_tables(tmp_path: Path) -> None:
    reader = LanceFileReader(nulls(tmp_path / "f.lance", pa.int64(), 1 << 50))
    with pytest.raises(CorruptFileError, match="page_bytes") as caught:
        reader.read_all().to_table()
    assert REMEDY not in str(caught.value) and not isinstance(caught.value, LimitError)


def test_zone_maps_above_the_limit_are_not_read(tmp_path: Path) -> None:
    path = str(tmp_path / "f.lance")
    with FileWriter(LocalStore().open_writer(path), INTS, zone_rows=4096) as writer:
        writer.write(pa.record_batch({"c": pa.array(range(1 << 16))}))
    meta = open_data_file(LocalStore(), path)
    assert meta.statistics_index == 1
    meta.limits = ReadLimits(metadata_bytes=10)
    assert meta.statistics_index is None


# ------------------------------------------------------------------------------------------------------- command line


def command(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "lancetable.cli.main", *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_commands_refuse_untrusted_tables(table: lancetable.LanceDataset) -> None:
    pytest.importorskip("click")
    pytest.importorskip("rich")
    for name in ("head", "info", "versions", "schema", "fsck", "compact", "cleanup"):
        code, shown = command(name, table.uri, "--untrusted")
        assert code == 0, shown
    data = next((Path(table.uri) / "data").iterdir())
    assert command("inspect", str(data), "--untrusted")[0] == 0
    outside_of(table, "data")
    outside_of(table, "_refs")
    assert command("head", table.uri)[0] == 0
    for name in ("head", "info"):
        code, shown = command(name, table.uri, "--untrusted")
        assert code == 1 and "must not contain symbolic links" in shown, shown
    code, shown = command("fsck", table.uri, "--untrusted", "--json")
    assert code == 2 and '"refused"' in shown


# -------------------------------------------------------------------------------------------------- index records


@pytest.mark.parametrize("trusted", [True, False])
def test_fsck_looks_up_no_index_file_outside_of_the_table(
    table: lancetable.LanceDataset, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = open_version(table.uri)
    message = table_pb2.Manifest()
    message.CopyFrom(version.manifest.message)
    message.ClearField("transaction_section")
    index = table_pb2.IndexMetadata(name="i", fields=[0])
    index.uuid.uuid = bytes(16)
    index.files.add(path="../../../outside", size_bytes=3)
    section = table_pb2.IndexSection(indices=[index]).SerializeToString()
    Path(version.location.path).unlink()
    Path(version.location.path).write_bytes(pack(message, b"", section))
    found: list[str] = []
    original = LocalStore.find
    monkeypatch.setattr(LocalStore, "find", lambda self, path: (found.append(path), original(self, path))[1])
    report = lancetable.fsck(table.uri, untrusted=not trusted)
    assert "unsafe path" in " ".join(problem.detail for problem in report.problems)
    assert not [path for path in found if "outside" in path]
