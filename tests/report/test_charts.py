"""Charts show every version, fragment, index and page within their width."""

from __future__ import annotations

from pathlib import Path

import pytest

import lancetable as lance
from lancetable.report import TableReport
from lancetable.report.charts import (
    Chart,
    fragments_chart,
    indexes_chart,
    pages_chart,
    versions_chart,
)
from lancetable.report.model import History, VersionEntry
from tests.report.report_tables import maintained_table


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> TableReport:
    return maintained_table(tmp_path_factory.mktemp("charts") / "t.lance").report()


def lanes(chart: Chart | None) -> dict[str, tuple[str, int]]:
    """Return the note and the number of marks of each lane, after a check that the marks are within the chart."""
    assert chart is not None
    for lane in chart.lanes:
        for mark in lane.marks:
            assert mark.x >= 0 and mark.x + mark.width <= chart.width + 0.01
            assert mark.y >= 0 and mark.height > 0 and mark.y + mark.height <= lane.height + 0.01
    return {lane.label: (lane.note, len(lane.marks)) for lane in chart.lanes}


def test_versions_have_rows_and_operations(report: TableReport) -> None:
    found = lanes(versions_chart(report.history))
    assert found["Rows"] == ("at most 21,300", 6) and found["Append"] == ("2 versions", 2)
    assert found["Delete"] == ("1 version", 1) and found["Tags"] == ("1 tag", 1)


def test_many_versions_share_bars() -> None:
    entries = tuple(VersionEntry(number, None, f"Op{number % 40}", num_rows=number) for number in range(1, 1001))
    chart = versions_chart(History(5000, entries))
    found = lanes(chart)
    assert chart is not None and chart.label == "Versions from old to new, about 6 in each bar"
    assert (found["Rows"], len(found)) == (("at most 1,000", 160), 3 + 30)
    assert "Versions 994 to 1000" in chart.lanes[0].marks[-1].title


def test_unreadable_versions_have_a_lane() -> None:
    found = lanes(versions_chart(History(2, (VersionEntry(1, problem="damaged"), VersionEntry(2, num_rows=0)))))
    assert found["Unreadable"] == ("1 version", 1) and found["Unknown operation"] == ("1 version", 1)
    assert found["Rows"] == ("none", 0)


def test_fragments_have_rows_deletions_and_files(report: TableReport) -> None:
    assert lanes(fragments_chart(report.fragments)) == {
        "Rows": ("at most 5,000", 6),
        "Deleted rows": ("at most 1,000", 1),
        "Size": (lanes(fragments_chart(report.fragments))["Size"][0], 6),
        "Columns A": ("1 file", 6),
        "Columns B": ("1 file", 6),
    }


def test_indexes_have_their_coverage(report: TableReport) -> None:
    assert lanes(indexes_chart(report)) == {"id_idx": ("83 % of the fragments", 5)}


def test_pages_are_where_they_are_in_the_file(report: TableReport) -> None:
    for file in report.files:
        found = lanes(pages_chart(file))
        assert list(found) == [*(column.path for column in file.columns), "Metadata"]
        for column in file.columns:
            assert found[column.path][1] == sum(page.end > page.start for page in column.pages)
        assert found["Metadata"][1] == 1


def test_empty_tables_have_no_charts(tmp_path: Path) -> None:
    ds = lance.write_dataset({"a": [1]}, tmp_path / "t.lance")
    ds.delete("true")
    report = ds.report()
    assert fragments_chart(report.fragments) is None and indexes_chart(report) is None
