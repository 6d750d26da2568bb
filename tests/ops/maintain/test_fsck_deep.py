"""Deep checks: every page is read, values are compared with the metadata, and random damage is found."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lancetable
from lancetable.errors import DatasetNotFoundError, LanceError, StoreError
from lancetable.file.zone_maps import StatisticsWarning
from lancetable.ops.progress_tracker import Progress
from lancetable.proto import table_pb2, transaction_pb2
from lancetable.table.manifest_files import FOOTER_BYTES

VERSIONS = ["0.1", "2.0", "2.1", "2.2"]
NUM_ROWS = 20_000


def many(version: str = "2.1") -> pa.Table:
    """Return columns that every version can store, with enough rows for zone maps."""
    numbers = np.arange(NUM_ROWS)
    return pa.table(
        {
            "id": pa.array(numbers),
            "x": pa.array(np.sin(numbers)),
            "s": pa.array([f"name {n % 977} {'é' * (n % 5)}" for n in numbers.tolist()]),
            "d": pa.array(np.array(["red", "green", "blue"])[numbers % 3]).dictionary_encode(),
            "l": pa.array([list(range(n % 4)) for n in numbers.tolist()], pa.list_(pa.int32())),
            "p": pa.array([{"a": n, "b": f"b{n}"} for n in numbers.tolist()]),
        }
    )


def write(path: Path, version: str, **named: Any) -> lancetable.LanceDataset:
    return lancetable.write_dataset(many(version), path, data_storage_version=version, **named)


def data_files(path: Path) -> list[Path]:
    return sorted((path / "data").rglob("*.lance"))


def splice(path: Path, start: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[start : start + len(data)] = data
    path.write_bytes(content)


def change_manifest(path: Path, change: Callable[[table_pb2.Manifest], Any]) -> None:
    """Rewrite the newest manifest of a table with another message."""
    file = sorted((path / "_versions").glob("*.manifest"))[0]
    data = file.read_bytes()
    position = int.from_bytes(data[-FOOTER_BYTES:-8], "little")
    message = table_pb2.Manifest.FromString(data[position + 4 : -FOOTER_BYTES])
    change(message)
    body = message.SerializeToString()
    file.write_bytes(data[:position] + len(body).to_bytes(4, "little") + body + data[-FOOTER_BYTES:])


def kinds(report: lancetable.table_checks.Report) -> set[str]:
    return {problem.kind for problem in report.problems}


def details(report: lancetable.table_checks.Report) -> str:
    return "\n".join(problem.detail for problem in report.problems)


# --- pages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_intact_table_is_clean_and_limits_are_listed(tmp_path: Path, version: str) -> None:
    write(tmp_path / "t", version)
    report = lancetable.fsck(tmp_path / "t", deep=True)
    assert report.is_clean and report.deep
    noted = [each.detail for each in report.not_checked if each.kind == "values"]
    assert any(
        "no checksums" in each and "within the bounds of zone maps: columns id, p, s, x" in each for each in noted
    )
    assert any("columns d, l" in each for each in noted)


@pytest.mark.parametrize("version", VERSIONS)
def test_pages_that_cannot_be_read_are_found_only_by_a_deep_check(tmp_path: Path, version: str) -> None:
    ds = write(tmp_path / "t", version)
    (file,) = data_files(tmp_path / "t")
    for start in range(0, file.stat().st_size * 3 // 4, 10_000):
        splice(file, start, b"\xff" * 100)
    with pytest.raises(LanceError):
        lancetable.dataset(tmp_path / "t").to_table()
    shallow = lancetable.fsck(ds.uri)
    assert shallow.is_clean
    assert any("deep=True" in each.detail for each in shallow.not_checked)
    report = lancetable.fsck(ds.uri, deep=True)
    found = [problem for problem in report.problems if problem.kind == "data file"]
    assert found and all(problem.path == str(data_files(tmp_path / "t")[0]) for problem in found)
    assert any("column '" in problem.detail and ", rows " in problem.detail for problem in found)


def test_a_data_file_that_versions_share_is_read_once(tmp_path: Path) -> None:
    ds = write(tmp_path / "t", "2.1")
    for number in range(3):
        ds.delete(f"id = {number}")
    seen: list[Progress] = []
    assert lancetable.fsck(ds.uri, deep=True, progress=seen.append).is_clean
    assert seen[-1].done and seen[-1].what == "fsck"
    assert (seen[-1].num_files, seen[-1].num_rows) == (1, 6 * NUM_ROWS)


def test_batches_of_a_deep_check_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lancetable.ops.maintain.fsck import pages as check_pages

    sizes = []
    real = check_pages._read_rows

    def noting(*arguments: Any) -> Any:
        array = real(*arguments)
        sizes.append(array.nbytes)
        return array

    monkeypatch.setattr(check_pages, "_read_rows", noting)
    monkeypatch.setattr(check_pages, "BATCH_BYTES", 64 << 10)
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(4000 * 512, np.float32)), 512)
    lancetable.write_dataset(pa.table({"v": wide}), tmp_path / "t")
    assert lancetable.fsck(tmp_path / "t", deep=True).is_clean
    assert len(sizes) > 50 and max(sizes) <= 256 << 10


def test_deleted_columns_of_old_versions_are_read(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(pa.table({"a": [1, 2], "s": ["x", "y"]}), tmp_path / "t")
    ds.drop_columns(["s"])
    assert lancetable.fsck(ds.uri, deep=True).is_clean
    ds.cleanup_old_versions(older_than=__import__("datetime").timedelta(0))
    report = lancetable.fsck(ds.uri, deep=True)
    assert any(each.kind == "columns" and "no version uses" in each.detail for each in report.not_checked)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_blobs_are_read(tmp_path: Path, version: str) -> None:
    values = pa.array([b"x" * 100, None, b"", b"y" * 3000], pa.large_binary())
    if version == "2.2":
        table = pa.table({"b": lancetable.blob_array([b"x" * 100, None, b"", b"y" * 300_000])})
    else:
        field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        table = pa.table([values], schema=pa.schema([field]))
    lancetable.write_dataset(table, tmp_path / "t", data_storage_version=version)
    report = lancetable.fsck(tmp_path / "t", deep=True)
    assert report.is_clean, report.problems
    blobs = sorted((tmp_path / "t" / "data").rglob("*.blob"))
    if version == "2.2" and blobs:
        blobs[0].write_bytes(b"short")
        assert kinds(lancetable.fsck(tmp_path / "t", deep=True)) == {"data file"}


def test_file_of_a_newer_version_is_not_damage(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(pa.table({"a": [1, 2]}), tmp_path / "t", data_storage_version="2.1")
    (file,) = data_files(tmp_path / "t")
    splice(file, file.stat().st_size - 6, (3).to_bytes(2, "little"))

    report = lancetable.fsck(ds.uri, deep=True)
    assert "the manifest records version 2.1" in details(report)  # the two contradict each other

    def newer(message: table_pb2.Manifest) -> None:
        message.fragments[0].files[0].file_minor_version = 3

    change_manifest(tmp_path / "t", newer)
    for deep in (False, True):
        report = lancetable.fsck(ds.uri, deep=deep)
        assert report.is_clean, report.problems
        (noted,) = {each for each in report.not_checked if each.kind == "unsupported" and each.path == str(file)}
        assert "2.3" in noted.detail


# --- values against other facts ---------------------------------------------------------------------------------------


def test_live_nulls_in_non_nullable_columns_are_reported(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(pa.table({"a": [1, None, 3], "b": [1, 2, 3]}), tmp_path / "t")

    def forbid(message: table_pb2.Manifest) -> None:
        message.fields[0].nullable = False

    change_manifest(tmp_path / "t", forbid)
    assert lancetable.fsck(ds.uri).is_clean
    report = lancetable.fsck(ds.uri, deep=True)
    assert kinds(report) == {"nulls"} and "1 live rows are null, such as row 1" in details(report)
    lancetable.dataset(ds.uri).delete("b = 2")
    assert [problem.version for problem in lancetable.fsck(ds.uri, deep=True).problems] == [1]


def test_nested_nulls_in_non_nullable_columns_are_reported(tmp_path: Path) -> None:
    table = pa.table({"p": [{"a": 1}, {"a": None}, None], "l": [[1], [], [None]]})
    lancetable.write_dataset(table, tmp_path / "t")

    def forbid(message: table_pb2.Manifest) -> None:
        for field in message.fields:
            field.nullable = field.parent_id < 0

    change_manifest(tmp_path / "t", forbid)
    report = lancetable.fsck(tmp_path / "t", deep=True)
    assert kinds(report) == {"nulls"} and "row 1" in details(report) and "row 2" in details(report)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("column", ["id", "x", "s", "p"])
def test_zone_maps_that_exclude_values_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, column: str
) -> None:
    """The zone maps are those of other rows."""
    other = many(version)
    shifted = {
        "id": pc.add(other["id"], 5),
        "x": pc.add(other["x"], 0.5),
        "s": pc.binary_join_element_wise(other["s"], "z", ""),
        "p": pa.array([{"a": n + 3, "b": f"c{n}"} for n in range(NUM_ROWS)]),
    }
    place = other.schema.get_field_index(column)
    wrong = other.set_column(place, column, shifted[column])
    if version == "0.1":
        from lancetable.file import legacy_writer as module

        real = module.BatchStatistics.add
        batches = wrong.select([column]).combine_chunks()

        def add(self: Any, arrays: Any, starts: Any) -> Any:
            made = [*arrays]
            made[place] = batches[column].chunk(0).slice(add.done, len(arrays[0]))  # type: ignore[attr-defined]
            add.done += len(arrays[0])  # type: ignore[attr-defined]
            return real(self, made, starts)

        add.done = 0  # type: ignore[attr-defined]
        monkeypatch.setattr(module.BatchStatistics, "add", add)
    else:
        from lancetable.file import writer as writer_module

        real_add = writer_module.StatisticsBuilder.add

        def add_wrong(self: Any, batch: pa.RecordBatch) -> None:
            part = wrong.slice(self.num_rows, batch.num_rows).combine_chunks().to_batches()[0]
            real_add(self, part)

        monkeypatch.setattr(writer_module.StatisticsBuilder, "add", add_wrong)
    write(tmp_path / "t", version)
    monkeypatch.undo()
    assert lancetable.fsck(tmp_path / "t").is_clean
    report = lancetable.fsck(tmp_path / "t", deep=True)
    assert kinds(report) == {"statistics"}, report.problems
    assert "so filters may lose rows" in details(report) and "rows 0 to " in details(report)


def test_damaged_zone_maps_are_reported(tmp_path: Path) -> None:
    from lancetable.file.reader import open_data_file
    from lancetable.store.local import LocalStore

    write(tmp_path / "t", "2.1")
    (file,) = data_files(tmp_path / "t")
    meta = open_data_file(LocalStore(), str(file))
    assert meta.statistics_index is not None
    start, end = meta.global_buffers[meta.statistics_index]
    splice(file, start + (end - start) // 2, b"\x7f" * 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kinds(lancetable.fsck(tmp_path / "t", deep=True)) == {"statistics"}


# --- manifests --------------------------------------------------------------------------------------------------------


@dataclass
class Contradiction:
    """Change of a manifest, with the kind and message of the resulting problem."""

    change: Callable[[table_pb2.Manifest], Any]
    kind: str
    text: str


def first_file(message: table_pb2.Manifest) -> table_pb2.DataFile:
    return message.fragments[0].files[0]


CONTRADICTIONS = {
    "a fragment above the highest id": Contradiction(
        lambda m: setattr(m.fragments[-1], "id", 99), "fragment", "above the highest fragment id"
    ),
    "a fragment twice": Contradiction(lambda m: m.fragments.append(m.fragments[0]), "fragment", "occurs twice"),
    "an absolute path": Contradiction(
        lambda m: setattr(first_file(m), "path", "/etc/passwd"), "fragment", "unsafe path"
    ),
    "an unknown base": Contradiction(lambda m: setattr(first_file(m), "base_id", 7), "fragment", "base path 7"),
    "another file size": Contradiction(lambda m: setattr(first_file(m), "file_size_bytes", 12), "data file", "bytes"),
    "other rows": Contradiction(lambda m: setattr(m.fragments[0], "physical_rows", 8), "data file", "rows"),
    "a column that is missing": Contradiction(
        lambda m: first_file(m).column_indices.__setitem__(0, 44), "data file", "found 44"
    ),
    "a field twice": Contradiction(lambda m: setattr(m.fields[1], "id", m.fields[0].id), "schema", "has the id of"),
    "a missing parent": Contradiction(lambda m: setattr(m.fields[1], "parent_id", 55), "schema", "55"),
    "no flag for deletions": Contradiction(lambda m: setattr(m, "reader_feature_flags", 2), "flags", "deletion files"),
    "no flag for config": Contradiction(lambda m: m.config.update({"a": "b"}), "flags", "table config"),
    "a row id to come": Contradiction(
        lambda m: setattr(m, "next_row_id", 2), "ids", "the next one to be assigned is 2"
    ),
    "a time that is no date": Contradiction(
        lambda m: setattr(m.timestamp, "seconds", 1 << 60), "facts", "not a valid date"
    ),
    "a data format nobody wrote": Contradiction(
        lambda m: setattr(m.data_format, "version", "x.y"), "facts", "data format"
    ),
    "a base path twice": Contradiction(
        lambda m: m.base_paths.extend([table_pb2.BasePath(id=1, path="/a"), table_pb2.BasePath(id=1, path="/b")]),
        "facts",
        "base path 1 occurs twice",
    ),
    "a cleanup that never runs": Contradiction(
        lambda m: m.config.update({"lance.auto_cleanup.interval": "often"}), "config", "no automatic cleanup runs"
    ),
    "another transaction file": Contradiction(
        lambda m: setattr(m, "transaction_file", "1-00000000-0000-4000-8000-000000000000.txn"),
        "transaction",
        "its file is named",
    ),
    "row versions that do not fit": Contradiction(
        lambda m: setattr(m.fragments[0], "inline_created_at_versions", b"\x0a\x02"), "ids", "creation versions"
    ),
}


@pytest.fixture
def stable(tmp_path: Path) -> Path:
    table = pa.table({"a": range(10), "s": [str(n) for n in range(10)]})
    ds = lancetable.write_dataset(table, tmp_path / "t", max_rows_per_file=5, enable_stable_row_ids=True)
    ds.delete("a = 3")
    return tmp_path / "t"


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions_in_a_manifest_are_found_without_a_deep_check(stable: Path, case: str) -> None:
    change_manifest(stable, CONTRADICTIONS[case].change)
    report = lancetable.fsck(stable)
    found = [
        problem for problem in report.problems if problem.kind == CONTRADICTIONS[case].kind and problem.version == 2
    ]
    assert any(CONTRADICTIONS[case].text in problem.detail for problem in found), report.problems


def test_bytes_that_belong_to_no_section_are_damage(stable: Path) -> None:
    file = sorted((stable / "_versions").glob("*.manifest"))[0]
    data = file.read_bytes()
    position = int.from_bytes(data[-FOOTER_BYTES:-8], "little")
    moved = (position + 10).to_bytes(8, "little")
    file.write_bytes(data[:position] + b"0123456789" + data[position:-FOOTER_BYTES] + moved + data[-8:])
    assert lancetable.dataset(stable).count_rows() == 9
    report = lancetable.fsck(stable)
    assert kinds(report) == {"section"} and f"bytes {position} to {position + 10} belong to no section" in details(
        report
    )


def test_unknown_fields_are_not_damage(stable: Path) -> None:
    change_manifest(stable, lambda message: message.MergeFromString(b"\xa2\x3f\x03abc"))
    report = lancetable.fsck(stable)
    assert report.is_clean
    (noted,) = [each.detail for each in report.not_checked if each.kind == "not understood"]
    assert "field 1012 of Manifest message" in noted


def test_transaction_file_that_differs_from_the_inline_one_is_reported(stable: Path) -> None:
    file = max((stable / "_transactions").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    message = transaction_pb2.Transaction.FromString(file.read_bytes())
    message.tag = "other"
    file.write_bytes(message.SerializeToString())
    assert kinds(lancetable.fsck(stable)) == {"transaction"}
    file.write_bytes(b"\xff\xff")
    assert kinds(lancetable.fsck(stable)) == {"transaction"}
    file.unlink()
    assert lancetable.fsck(stable).is_clean


@pytest.mark.parametrize("kind", ["tags", "branches"])
def test_damaged_refs_are_reported_one_by_one(stable: Path, kind: str) -> None:
    ds = lancetable.dataset(stable)
    ds.tags.create("a", 1)
    ds.create_branch("b")
    (file,) = (stable / "_refs" / kind).iterdir()
    shutil.copy(file, file.with_name("c.json"))
    file.write_bytes(b"{")
    report = lancetable.fsck(stable)
    assert ("tag" if kind == "tags" else "branch") in kinds(report)


def test_missing_index_files_are_reported(tmp_path: Path) -> None:
    ds = lance.write_dataset(pa.table({"a": range(100)}), str(tmp_path / "t"))
    ds.create_scalar_index("a", "BTREE")
    assert any(each.kind == "index" for each in lancetable.fsck(tmp_path / "t").not_checked)
    report = lancetable.fsck(tmp_path / "t", deep=True)
    assert report.is_clean and not any(each.kind == "index" for each in report.not_checked)
    next((tmp_path / "t" / "_indices").rglob("*.lance")).unlink()
    assert kinds(lancetable.fsck(tmp_path / "t")) == {"index"}


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"])
@pytest.mark.parametrize("stable", [False, True])
def test_intact_indexes_are_clean(tmp_path: Path, kind: str, stable: bool) -> None:
    values = pa.array([None, float("nan"), -float("nan"), 0.0, -0.0, 1.5] * 20)
    table = pa.table({"a": values if kind != "BLOOMFILTER" else range(120)})
    ds = lance.write_dataset(table, str(tmp_path / "t"), max_rows_per_file=50, enable_stable_row_ids=stable)
    ds.create_scalar_index("a", kind)
    lancetable.dataset(tmp_path / "t").delete("a = 1.5")
    assert lancetable.fsck(tmp_path / "t", deep=True).problems == []


def test_rows_that_an_index_lacks_are_reported(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"a": range(100)}), str(tmp_path / "t"))
    ds = lancetable.dataset(tmp_path / "t")
    ds.delete("a < 10")
    ds.create_scalar_index("a", "BTREE")
    file = next((tmp_path / "t" / "_deletions").iterdir())
    file.write_bytes(file.read_bytes().replace(bytes([5, 0, 0, 0]), bytes([55, 0, 0, 0])))
    (problem,) = {each.detail for each in lancetable.fsck(tmp_path / "t", deep=True).problems}
    assert "1 rows of the table are missing in the index" in problem


def test_two_naming_schemes_are_reported(stable: Path) -> None:
    file = sorted((stable / "_versions").glob("*.manifest"))[0]
    shutil.copy(file, file.with_name("7.manifest"))
    assert kinds(lancetable.fsck(stable)) == {"naming"}


def test_missing_table_raises(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError):
        lancetable.fsck(tmp_path / "none", deep=True)


# --- random damage ----------------------------------------------------------------------------------------------------


def rich(path: Path, version: str) -> None:
    """Write a table with contents of many kinds: history, deletions, row ids, tags, a branch, indices, blobs."""
    numbers = np.arange(3000)
    columns: dict[str, Any] = {
        "id": pa.array(numbers),
        "x": pa.array(np.sin(numbers)),
        "s": pa.array([f"name {n % 97} {'é' * (n % 5)}" for n in numbers.tolist()]),
        "text": pa.array([f"{n * 7919} " * 9 for n in numbers.tolist()]),
        "d": pa.array(np.array(["red", "green", "blue"])[numbers % 3]).dictionary_encode(),
        "l": pa.array([[str(k) for k in range(n % 4)] for n in numbers.tolist()]),
        "v": pa.FixedSizeListArray.from_arrays(pa.array(np.ones(6000, np.float32)), 2),
        "p": pa.array([{"a": n, "b": f"b{n}"} for n in numbers.tolist()]),
        "t": pa.array(numbers, pa.timestamp("us")),
        "bin": pa.array([bytes([n % 256]) * (1 + n % 9) for n in numbers.tolist()], pa.binary()),
    }
    if version != "0.1":
        columns["f"] = pa.array([bool(n % 2) if n % 3 else None for n in numbers.tolist()])
        columns["m"] = pa.array([n if n % 3 else None for n in numbers.tolist()], pa.int32())
    if version in ("2.1", "2.2"):
        columns["deep"] = pa.array([[{"q": [n, None]}] if n % 3 else None for n in numbers.tolist()])
    table = pa.table(columns)
    table = table.cast(table.schema.set(0, pa.field("id", pa.int64(), nullable=False)))
    ds = lancetable.write_dataset(
        table, path, data_storage_version=version, max_rows_per_file=1700, enable_stable_row_ids=True
    )
    ds.delete("id % 11 = 3")
    if version != "0.1":
        ds.update({"x": "x + 1"}, where="id < 20")
        ds.tags.create("old", 1)
        branch = ds.create_branch("b")
        branch.delete("id > 2900")
        lance.dataset(str(path)).create_scalar_index("id", "BTREE")
    if version in ("2.0", "2.1"):
        blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        lancetable.write_dataset(
            pa.table([pa.array([b"z" * n for n in range(50)], pa.large_binary())], schema=pa.schema([blob])),
            path / ".." / f"blobs-{version}",
            data_storage_version=version,
        )


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("originals")
    for version in VERSIONS:
        rich(root / f"rich-{version}", version)
    return root


def harm(file: Path, rng: random.Random) -> str:
    """Damage a file in one of many ways, and return a description of the damage."""
    data = bytearray(file.read_bytes())
    if not data:
        return "nothing"
    how = rng.choice(["flip", "flip", "byte", "zeros", "ones", "noise", "cut", "append", "empty", "move", "end"])
    at, count = rng.randrange(len(data)), rng.choice([1, 4, 40, 400])
    if how == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif how == "byte":
        data[at] = rng.randrange(256)
    elif how in ("zeros", "ones"):
        data[at : at + count] = (b"\0" if how == "zeros" else b"\xff") * len(data[at : at + count])
    elif how == "noise":
        data[at : at + count] = rng.randbytes(len(data[at : at + count]))
    elif how == "cut":
        del data[at:]
    elif how == "append":
        data += rng.randbytes(count)
    elif how == "empty":
        data.clear()
    elif how == "move":
        data[at : at + count] = data[: len(data[at : at + count])]
    elif how == "end":
        tail = max(len(data) - 1 - rng.randrange(min(len(data), 600)), 0)
        data[tail] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return f"{how} at {at}, {count}"


def read_everything(uri: Path) -> list[str]:
    """Return the errors of reads of all versions of a table and its branch; other exceptions are passed on."""
    errors = []
    places = [(uri, version) for version in range(1, 5)]
    places += [(uri / "tree" / "b", version) for version in range(1, 6)]
    for where, version in places:
        try:
            ds = lancetable.dataset(where, version=version)
        except (DatasetNotFoundError, lancetable.errors.VersionNotFoundError):
            continue
        except LanceError as error:
            errors.append(f"{where}@{version}: {error}")
            continue
        try:
            whole = ds.to_table()
            if "id" in whole.column_names and "s" in whole.column_names:
                for text, mask in (
                    ("id >= 1500", pc.greater_equal(whole["id"], 1500)),
                    ("s < 'name 5'", pc.less(whole["s"], "name 5")),
                ):
                    found = ds.to_table(filter=text).num_rows
                    if found != pc.sum(mask).as_py():
                        errors.append(f"{where}@{version}: {text} loses rows")
        except LanceError as error:
            errors.append(f"{where}@{version}: {error}")
    return errors


@pytest.mark.filterwarnings("ignore::lancetable.file.zone_maps.StatisticsWarning")
@pytest.mark.parametrize("seed", range(12))
def test_random_damage_that_fails_reads_is_reported(originals: Path, tmp_path: Path, scale: int, seed: int) -> None:
    for round_number in range(4 * scale):
        check_random_damage(originals, tmp_path / str(round_number), seed * 10_000 + round_number)


def check_random_damage(originals: Path, place: Path, seed: int) -> str:
    rng = random.Random(seed)
    name = rng.choice(sorted(path.name for path in originals.iterdir()))
    uri = place / name
    shutil.copytree(originals / name, uri)
    folders = sorted(path for path in uri.iterdir() if path.is_dir())
    files = [path for path in sorted(rng.choice(folders).rglob("*")) if path.is_file()]
    victim = rng.choice(files)
    what = f"seed {seed}: {victim.relative_to(place)}: {harm(victim, rng)}"
    try:
        report = lancetable.fsck(uri, deep=True)
    except (DatasetNotFoundError, StoreError):
        return what
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StatisticsWarning)
        errors = read_everything(uri)
    unsupported = [each for each in report.not_checked if each.kind == "unsupported"]
    assert not (errors and report.is_clean and not unsupported), (what, errors)
    for problem in report.problems:
        assert "Error: " not in problem.detail.partition(":")[0], (what, problem)
    shutil.rmtree(place)
    return what
