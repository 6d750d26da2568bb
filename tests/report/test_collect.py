"""The content of a report matches the table, is bounded, and describes damage instead of failing."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import lancetable as lance
from lancetable.report import TableReport
from lancetable.report.collect import collect
from lancetable.report.model import SCHEMA_VERSION, Limits
from tests.report.report_tables import flights, maintained_table, many_fragments

if TYPE_CHECKING:
    from integration.servers.moto_locked import Moto


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> lance.LanceDataset:
    return maintained_table(tmp_path_factory.mktemp("report") / "t.lance")


@pytest.fixture(scope="module")
def report(ds: lance.LanceDataset) -> TableReport:
    return ds.report()


def test_overview_has_the_counts_of_the_table(ds: lance.LanceDataset, report: TableReport) -> None:
    overview = report.overview
    assert (overview.version, overview.newest_version, overview.branch) == (6, 6, None)
    assert (overview.num_rows, overview.num_deleted_rows) == (ds.count_rows(), 1000)
    assert (overview.num_fragments, overview.num_data_files, overview.num_columns) == (6, 12, 6)
    assert overview.data_bytes == sum(path.stat().st_size for path in Path(ds.uri, "data").iterdir())
    assert (report.problems, report.notes) == ((), ())


def test_history_has_one_entry_for_each_version(report: TableReport) -> None:
    versions = report.history.versions
    assert [(each.version, each.operation, each.num_rows) for each in versions] == [
        (1, "Overwrite", 20_000),
        (2, "Append", 20_300),
        (3, "Delete", 19_300),
        (4, "CreateIndex", 19_300),
        (5, "Append", 21_300),
        (6, "Merge", 21_300),
    ]
    assert versions[0].message == "first load" and versions[1].tags == ("loaded",)
    assert [tag.name for tag in report.tags] == ["loaded"]
    assert [(branch.name, branch.parent_version) for branch in report.branches] == [("trial", 2)]


def test_fragments_have_rows_files_and_column_sets(ds: lance.LanceDataset, report: TableReport) -> None:
    fragments = report.fragments
    assert [each.id for each in fragments.entries] == [fragment.fragment_id for fragment in ds.get_fragments()]
    assert [each.num_rows for each in fragments.entries] == [4000, 5000, 5000, 5000, 300, 2000]
    assert [each.num_deleted_rows for each in fragments.entries] == [1000, 0, 0, 0, 0, 0]
    assert [each.columns for each in fragments.column_sets] == [
        ("id", "carrier", "delay", "place.lat", "place.tags.item", "embedding"),
        ("late",),
    ]
    assert [each.num_files for each in fragments.column_sets] == [6, 6]
    assert all([file.column_set for file in each.files] == [0, 1] for each in fragments.entries)
    assert sum(each.size_bytes or 0 for each in fragments.entries) == report.overview.data_bytes
    assert [each.not_indexed_by for each in fragments.entries] == [()] * 5 + [("id_idx",)]


def test_bins_add_up_to_the_table(tmp_path: Path) -> None:
    ds = many_fragments(tmp_path / "t.lance", 1000)
    report = collect(ds.table_version, limits=Limits(bins=7, fragments=10))
    bins = report.fragments.bins
    assert [(bins[0].first, bins[-1].last), len(bins), len(report.fragments.entries)] == [(0, 999), 7, 10]
    assert [each.first for each in bins[1:]] == [each.last + 1 for each in bins[:-1]]
    assert sum(each.num_rows for each in bins) == report.overview.num_rows == ds.count_rows()
    assert sum(each.size_bytes for each in bins) == report.overview.data_bytes
    assert sum(each.files_by_column_set[0] for each in bins) == 1000
    assert "The first 10 of 1,000 fragments are listed; the map has all." in report.notes


def test_columns_have_encodings_compression_and_statistics(report: TableReport) -> None:
    columns = {column.path: column for column in report.columns}
    assert list(columns) == ["id", "carrier", "delay", "place.lat", "place.tags.item", "embedding", "late"]
    # The small file has no zone maps, and its values were not read.
    key = columns["id"].statistics
    assert key is not None and (key.lower, key.upper, key.num_nulls, key.num_rows) == ("0", "31999", 0, 22_000)
    delay = columns["delay"].statistics
    assert delay is not None and delay.num_nulls == len([*range(0, 20_000, 7), *range(30_002, 32_000, 7)])
    carrier = columns["carrier"].statistics
    assert carrier is not None and (carrier.lower, carrier.upper) == ("AA", "UA")
    assert all(column.num_files == 6 and column.num_pages >= 6 and column.encodings for column in report.columns)
    assert columns["id"].ratio is not None and 0 < columns["id"].ratio < 0.5
    assert columns["embedding"].ratio == pytest.approx(1, abs=0.1)


def test_ratio_is_that_of_inspect_compression(tmp_path: Path) -> None:
    from lancetable.cli.compression_report import describe_compression

    ds = lance.write_dataset(flights(3000), tmp_path / "t.lance")
    (path,) = Path(ds.uri, "data").iterdir()
    expected = {row["path"]: row["ratio"] for row in describe_compression(str(path))}
    for column in ds.report().columns:
        assert column.ratio == expected[column.path]


def test_pages_have_their_place_in_the_file(ds: lance.LanceDataset, report: TableReport) -> None:
    for file in report.files:
        size_bytes = Path(ds.uri, "data", file.path).stat().st_size
        assert file.size_bytes == size_bytes and 0 < file.metadata_start < size_bytes
        for column in file.columns:
            assert sum(page.num_rows for page in column.pages) == file.num_rows
            assert sum(page.size_bytes for page in column.pages) == column.size_bytes
            assert all(0 <= page.start <= page.end <= file.metadata_start for page in column.pages)


def test_a_chosen_file_is_first(ds: lance.LanceDataset, report: TableReport) -> None:
    path = report.fragments.entries[3].files[1].path
    chosen = ds.report(file=path, max_files=2).files
    assert (chosen[0].path, chosen[0].fragment_id, len(chosen)) == (path, 3, 2)
    with pytest.raises(lance.InvalidInputError, match=r"has no data file 'nope\.lance'"):
        ds.report(file="nope.lance")


def test_indexes_have_their_coverage(ds: lance.LanceDataset, report: TableReport) -> None:
    (index,) = report.indexes
    (described,) = ds.describe_indices()
    assert (index.name, index.type, index.columns) == ("id_idx", "BTree", ("id",))
    assert index.num_rows == described.num_rows_indexed == 19_300
    assert index.num_rows_unindexed == described.num_rows_unindexed == 2000
    assert index.size_bytes == described.total_size_bytes
    assert (index.num_fragments, index.num_fragments_unindexed) == (5, 1)
    last = ds.get_fragments()[-1].fragment_id
    assert index.uncovered == ((last, last),) and index.covered_by_bin == (1, 1, 1, 1, 1, 0)


def test_an_older_version_is_described_as_it_was(ds: lance.LanceDataset) -> None:
    report = ds.checkout_version(1).report()
    assert (report.overview.version, report.overview.newest_version) == (1, 6)
    assert (report.overview.num_rows, report.fragments.total, report.indexes) == (20_000, 4, ())
    assert len(report.history.versions) == 6


def test_a_branch_is_described(ds: lance.LanceDataset) -> None:
    report = ds.checkout_version(("trial", None)).report()
    assert report.overview.branch == "trial" and report.overview.num_rows == 20_300
    assert [branch.name for branch in report.branches] == ["trial"]


def test_a_detached_version_is_not_the_newest(tmp_path: Path) -> None:
    ds = lance.write_dataset(pa.table({"a": range(5)}), tmp_path / "t.lance")
    append = lance.LanceOperation.Append(lance.fragment.write_fragments(pa.table({"a": [5]}), ds))
    detached = lance.LanceDataset.commit(ds, append, read_version=1, detached=True)
    report = detached.report()
    assert (report.overview.version, report.overview.newest_version) == (detached.version, 1)
    assert [advice.kind for advice in report.advice] == ["report"]


def test_an_empty_table_has_a_report(tmp_path: Path) -> None:
    ds = lance.write_dataset(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "t.lance")
    ds.delete("true")
    report = ds.report()
    assert (report.overview.num_rows, report.fragments.bins, report.files, report.advice) == (0, (), (), ())
    assert [(column.path, column.num_files, column.statistics) for column in report.columns] == [("a", 0, None)]
    assert "The table has no fragments." in report.to_html()


@pytest.mark.parametrize("version", ["0.1", "2.0", "2.1", "2.2"])
def test_every_format_has_a_report(tmp_path: Path, version: str) -> None:
    table = pa.table({"id": range(3000), "name": ["a", "b", "c"] * 1000})
    report = lance.write_dataset(table, tmp_path / "t.lance", data_storage_version=version).report()
    assert (report.problems, report.overview.data_format) == ((), version)
    (file,) = report.files
    assert (file.format, file.num_rows) == (version, 3000)
    assert (file.num_batches is not None) == (version == "0.1")
    statistics = report.columns[0].statistics
    assert statistics is not None and (statistics.lower, statistics.upper) == ("0", "2999")
    assert [column.num_files for column in report.columns] == [1, 1]
    assert report.to_html()


GOLDEN = sorted(path.parent for path in Path(__file__).parents[1].glob("golden/tables/*/_versions"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_tables_of_pylance_have_a_report(path: Path) -> None:
    ds = lance.dataset(path)
    report = ds.report()
    assert (report.problems, report.overview.num_rows) == ((), ds.count_rows())
    assert report.to_html() and report.to_json()


def test_special_types_have_statistics_or_none(tmp_path: Path) -> None:
    table = pa.table(
        {
            "time": pa.array([0, 10**18 + 1], pa.timestamp("ns")),
            "far": pa.array([-(2**62), 2**62], pa.timestamp("s", "UTC")),
            "bytes": pa.array([b"\xff\x00", None]),
            "nan": [float("nan"), None],
            "nulls": pa.nulls(2, pa.int32()),
            "decimal": pa.array([1, None], pa.decimal128(5, 2)),
            "long": ["x" * 500, "y"],
            "list": [[1], []],
        }
    )
    report = lance.write_dataset(table, tmp_path / "t.lance").report()
    assert report.problems == ()
    bounds = {
        column.path: (column.statistics.lower, column.statistics.upper)
        for column in report.columns
        if column.statistics is not None
    }
    assert bounds["bytes"] == ("ff00", "ff00") and bounds["decimal"] == ("1.00", "1.00")
    assert bounds["nan"] == bounds["nulls"] == (None, None)
    assert str(bounds["time"][1]).startswith("2001-09-09 01:46:40")
    assert len(bounds["long"][0] or "") <= 80
    assert report.to_html() and report.to_json()


@pytest.mark.parametrize(
    ("kind", "numbers", "bounds"),
    [
        (pa.duration("s"), [-(2**62), 2**62], ("-4611686018427387904 s", "4611686018427387904 s")),
        (pa.duration("ns"), [1, 1500], ("1 ns", "1500 ns")),
        (pa.timestamp("us", "Nowhere/Unknown"), [0, 7], ("0 us", "7 us")),
    ],
    ids=str,
)
def test_values_that_have_no_python_object_have_bounds(
    tmp_path: Path, kind: pa.DataType, numbers: list[int], bounds: tuple[str, str]
) -> None:
    report = lance.write_dataset(pa.table({"a": pa.array(numbers, kind)}), tmp_path / "t.lance").report()
    (statistics,) = [column.statistics for column in report.columns]
    assert statistics is not None and (statistics.lower, statistics.upper) == bounds
    assert report.problems == () and bounds[0] in report.to_html()


def test_a_table_on_s3_is_read_with_its_options(s3: Moto) -> None:
    lance.write_dataset(flights(4000), "s3://lab/report.lance", storage_options=s3.options, max_rows_per_file=1000)
    report = lance.dataset("s3://lab/report.lance", storage_options=s3.options).report()
    assert (report.overview.num_rows, report.sample.num_files, report.problems) == (4000, 4, ())
    assert report.overview.storage_options == tuple(sorted(s3.options))
    document = report.to_html()
    assert "Add the storage options of the table to the commands" in document
    secret = s3.options["aws_secret_access_key"]
    assert f'"{secret}"' not in report.to_json() and f">{secret}<" not in document


def test_paths_outside_of_an_untrusted_table_are_refused(ds: lance.LanceDataset, tmp_path: Path) -> None:
    clone = ds.shallow_clone(tmp_path / "clone.lance", ds.version)
    assert clone.report().problems == ()
    report = lance.dataset(clone.uri, untrusted=True).report()
    assert {problem.kind for problem in report.problems} == {"refused"}
    assert (report.overview.num_rows, report.sample.num_files) == (21_300, 0)


# -------------------------------------------------------------------------------------------------------------- limits


def test_history_is_limited_to_the_newest_versions(ds: lance.LanceDataset) -> None:
    report = ds.report(max_versions=2)
    assert [each.version for each in report.history.versions] == [5, 6]
    assert report.history.total == 6
    assert "The history has the newest 2 of 6 versions." in report.notes
    few_bytes = collect(ds.table_version, limits=Limits(manifest_bytes=1))
    assert [each.version for each in few_bytes.history.versions] == [6]


def test_few_files_of_a_large_table_are_read(tmp_path: Path) -> None:
    ds = many_fragments(tmp_path / "t.lance", 5000)
    ds.io_stats_incremental()
    report = ds.report(max_files=5)
    assert (report.sample.total_files, report.sample.num_files) == (5000, 5)
    assert "from 5 of 5,000 data files." in "".join(report.notes)
    # Manifests, transactions and refs, then footer and values of five files.
    assert ds.io_stats_snapshot().read_iops < 60


def test_values_are_read_within_a_limit(tmp_path: Path) -> None:
    table = pa.table({"wide": [bytes(100_000)] * 50 + [bytes(range(256)) * 390] * 50})
    report = collect(
        lance.write_dataset(table, tmp_path / "t.lance").table_version, limits=Limits(value_bytes=1, value_rows=7)
    )
    assert (report.sample.num_with_values, report.sample.num_value_rows) == (1, 1)


def test_many_indexes_are_cut(tmp_path: Path) -> None:
    ds = lance.write_dataset(pa.table({"a": [1]}), tmp_path / "t.lance")
    for name in ("x", "y", "z"):
        ds.create_scalar_index("a", "ZONEMAP", name=name)
    report = collect(ds.table_version, limits=Limits(indexes=2))
    assert [index.name for index in report.indexes] == ["x", "y"]
    assert report.notes == ("The first 2 of 3 indexes are listed.",)


def test_few_wide_files_are_read(tmp_path: Path) -> None:
    table = pa.table({f"c{number}": [1, 2, 3] for number in range(10)})
    ds = lance.write_dataset(table, tmp_path / "t.lance", max_rows_per_file=1)
    assert collect(ds.table_version, limits=Limits(columns=29)).sample.num_files == 2
    assert collect(ds.table_version, limits=Limits(columns=5)).sample.num_files == 1


def test_wide_files_and_many_pages_are_cut(tmp_path: Path) -> None:
    table = pa.table({f"c{number}": [1, 2] for number in range(150)})
    ds = lance.write_dataset(table, tmp_path / "t.lance")
    (file,) = ds.report().files
    assert (file.num_columns, len(file.columns)) == (150, 100)
    assert "The first 100 of 150 columns are shown." in ds.report().to_html()


@pytest.mark.parametrize("name", ["max_versions", "max_files"])
def test_limits_must_be_positive(ds: lance.LanceDataset, name: str) -> None:
    with pytest.raises(lance.InvalidInputError, match=name):
        ds.report(**{name: 0})  # type: ignore[arg-type]  # mypy does not know which argument it is


def test_progress_counts_versions_and_files(ds: lance.LanceDataset) -> None:
    seen: list[lance.progress.Progress] = []
    ds.report(progress=seen.append)
    assert (seen[-1].what, seen[-1].done, seen[-1].num_files, seen[-1].total_files) == ("report", True, 18, 18)

    def cancel(now: object) -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        ds.report(progress=cancel)


# -------------------------------------------------------------------------------------------------------------- damage


def damaged(tmp_path: Path) -> lance.LanceDataset:
    ds = lance.write_dataset(flights(4000), tmp_path / "t.lance", max_rows_per_file=1000)
    ds.insert(flights(1000, 4000))
    ds.tags.create("good")
    return ds


def kinds(report: TableReport) -> set[str]:
    assert report.advice[0].kind == "fsck" and "Problems" in report.to_html()
    return {problem.kind for problem in report.problems}


def test_a_damaged_data_file_is_a_problem(tmp_path: Path) -> None:
    ds = damaged(tmp_path)
    first, second, *_ = sorted(Path(ds.uri, "data").iterdir())
    first.write_bytes(first.read_bytes()[:-100])
    second.unlink()
    report = lance.dataset(ds.uri).report()
    assert kinds(report) == {"data file"} and len(report.problems) == 2
    assert (report.sample.num_files, report.sample.total_files) == (3, 5)


def test_damaged_pages_are_a_problem(tmp_path: Path) -> None:
    ds = damaged(tmp_path)
    for path in Path(ds.uri, "data").iterdir():
        content = bytearray(path.read_bytes())
        content[: len(content) // 2] = b"\xff" * (len(content) // 2)
        path.write_bytes(content)
    report = lance.dataset(ds.uri).report()
    assert kinds(report) == {"values"}
    assert report.sample.num_files == 5


def test_a_damaged_manifest_of_an_older_version_is_a_problem(tmp_path: Path) -> None:
    ds = damaged(tmp_path)
    _, oldest = sorted(Path(ds.uri, "_versions").glob("*.manifest"))
    oldest.write_bytes(b"no manifest")
    report = lance.dataset(ds.uri).report()
    assert kinds(report) == {"manifest"}
    assert [bool(each.problem) for each in report.history.versions] == [True, False]
    assert "unreadable" in report.to_html()


def test_a_damaged_tag_is_a_problem(tmp_path: Path) -> None:
    ds = damaged(tmp_path)
    ds.tags.create("bad")
    Path(ds.uri, "_refs/tags/bad.json").write_text("{")
    report = ds.report()
    assert kinds(report) == {"tag"} and [tag.name for tag in report.tags] == ["good"]


def test_many_problems_are_counted(tmp_path: Path) -> None:
    ds = damaged(tmp_path)
    for number in range(120):
        Path(ds.uri, f"_refs/tags/t{number}.json").write_text("{")
    report = ds.report()
    assert len(report.problems) == 100 and "20 more problems are not listed." in report.notes


# ------------------------------------------------------------------------------------------------------------ JSON form


def shape_of(kind: Any) -> Any:
    """Return the JSON form of a type: a dict for a dataclass, a list for a tuple, otherwise a name."""
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind, vars(lance.report.model))
        return {field.name: shape_of(hints[field.name]) for field in fields(kind)}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return [shape_of(arguments[0])]
    if origin is dict:
        return "object"
    if origin in (typing.Union, types.UnionType):
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        shape = shape_of(inner)
        return shape if isinstance(shape, (dict, list)) else f"{shape} or null"
    return kind.__name__


def test_keys_of_the_json_form_are_stable() -> None:
    """A key may be added. If one is removed or changes its meaning, SCHEMA_VERSION changes too."""
    golden = json.loads((Path(__file__).parent / "report_schema.json").read_text())
    assert {"version": SCHEMA_VERSION, "report": shape_of(TableReport)} == golden


def test_json_has_the_content_of_the_report(report: TableReport) -> None:
    value = json.loads(report.to_json())
    assert value["history"]["versions"][0]["operation"] == "Overwrite"
    assert value["generated"] == report.generated.isoformat()
    assert value["fragments"]["entries"][0]["files"][1]["column_set"] == 1
    assert value.keys() == {field.name for field in fields(TableReport)}
    report.to_json().encode("ascii")


def test_saved_files_have_the_format_of_their_name(report: TableReport, tmp_path: Path) -> None:
    report.save(tmp_path / "r.json")
    report.save(str(tmp_path / "r.html"))
    assert (tmp_path / "r.json").read_text() == report.to_json()
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == report.to_html()


def test_repr_has_the_figures_and_the_advice(report: TableReport) -> None:
    text = repr(replace(report, advice=report.advice[:1]))
    assert text.startswith(f"TableReport({report.overview.uri!r}, version=6, rows=21,300, fragments=6, problems=0, ")
    assert text.splitlines()[1:] == [
        f"  compact: {report.advice[0].title}",
        f"    lancetable compact --run {report.overview.uri}",
    ]


def test_a_report_is_immutable(report: TableReport) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.schema_version = 2  # type: ignore[misc]  # what is tested
