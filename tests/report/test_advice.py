"""Advice follows from the content of a report; its commands run as they are shown."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable as lance
from lancetable.report import TableReport
from lancetable.report.advice import advise, shell_quote
from lancetable.report.model import (
    SCHEMA_VERSION,
    BranchEntry,
    CompactionPlan,
    Fragments,
    History,
    IndexEntry,
    Limits,
    Overview,
    Problem,
    Sample,
    VersionEntry,
)
from tests.report.report_tables import HOSTILE, maintained_table

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)


def a_report(**changes: Any) -> TableReport:
    """Return the report of a table that needs no maintenance, with changes."""
    overview = Overview(
        "s3://lake/t.lance", (), 3, 3, None, NOW, "x 1", "2.2", True, "V2", 100, 0, 1, 1, 0, 1000, 1, {}, {}, {}
    )
    overview = replace(overview, **{name: changes.pop(name) for name in list(changes) if hasattr(overview, name)})
    history = History(3, tuple(version(number) for number in (1, 2, 3)))
    report = TableReport(
        SCHEMA_VERSION,
        NOW,
        "test",
        Limits(),
        overview,
        (),
        (),
        history,
        Fragments(1, (), (), ()),
        Sample(1, 1, 1, 1, 1),
        (),
        (),
        (),
        CompactionPlan(0, 0, 0, 0),
        (),
        (),
    )
    return replace(report, **changes)


def version(number: int, days: int = 1, **facts: Any) -> VersionEntry:
    return VersionEntry(number, NOW - timedelta(days=days), "Append", None, 100, 0, 1, 1, 1000, **facts)


def an_index(**changes: Any) -> IndexEntry:
    index = IndexEntry("id_idx", "BTree", ("id",), 1, 100, 0, 1, 0, (), (1,), 10, NOW, {})
    return replace(index, **changes)


def advice_of(report: TableReport) -> list[tuple[str, str | None]]:
    return [(advice.kind, advice.command) for advice in advise(report).advice]


def test_a_table_without_problems_needs_nothing() -> None:
    assert advice_of(a_report(indexes=(an_index(),))) == []


def test_small_fragments_are_compacted() -> None:
    report = advise(a_report(compaction=CompactionPlan(2, 10, 1000, 7)))
    (advice,) = report.advice
    assert (advice.kind, advice.title) == ("compact", "10 fragments can be compacted")
    assert "100 rows on average" in advice.detail and "The 7 deleted rows in them are removed." in advice.detail
    assert advice.command == "lancetable compact --run s3://lake/t.lance"


def test_no_compaction_is_advised_if_none_was_planned() -> None:
    assert advice_of(a_report(compaction=None)) == []


def test_old_versions_are_cleaned_up_unless_something_refers_to_them() -> None:
    entries = (version(1, 20, tags=("keep",)), version(2, 19), version(3, 18), version(4, 17), version(5, 15))
    history = History(5, entries)
    branches = (BranchEntry("b", None, 3, NOW), BranchEntry("c", "other", 2, NOW))
    (advice,) = advise(a_report(version=5, newest_version=5, history=history, branches=branches)).advice
    assert advice.title == "2 versions older than 14 days can be removed"
    assert advice.command == "lancetable cleanup --run s3://lake/t.lance"


def test_versions_that_were_not_read_are_not_counted() -> None:
    report = a_report(history=History(9, (version(1, 20), version(2), version(3))))
    assert advise(report).advice[0].title == "At least 1 version older than 14 days can be removed"


def test_many_recent_versions_are_removed_except_the_newest() -> None:
    def with_versions(number: int, days: int) -> TableReport:
        history = History(number, tuple(version(each, days) for each in range(1, number + 1)))
        return a_report(version=number, newest_version=number, history=history)

    expected = "lancetable cleanup --retain 100 --older-than 24h --run s3://lake/t.lance"
    assert advice_of(with_versions(200, 2)) == [("cleanup", expected)]
    assert advise(with_versions(200, 2)).advice[0].title == "100 versions older than a day can be removed"
    assert advice_of(with_versions(199, 2)) == advice_of(with_versions(500, 0)) == []


def test_rows_outside_of_indexes_are_added() -> None:
    indexes = (
        an_index(num_fragments_unindexed=2, num_rows_unindexed=50),
        an_index(name="b", num_fragments_unindexed=1, num_rows_unindexed=None),
        an_index(name="c"),
    )
    (advice,) = advise(a_report(indexes=indexes)).advice
    assert advice.title == 'Indexes "id_idx", "b" do not cover all rows' and "up to 50 rows" in advice.detail
    assert advice.command == "lancetable index optimize --run s3://lake/t.lance"


def test_segments_are_merged() -> None:
    expected = "lancetable index optimize --merge 9 --run s3://lake/t.lance"
    assert advice_of(a_report(indexes=(an_index(num_segments=9),))) == [("index", expected)]


def test_an_index_without_a_column_is_dropped() -> None:
    report = a_report(indexes=(an_index(name="-x", columns=(), num_fragments_unindexed=1),))
    assert advice_of(report) == [("index", "lancetable index drop --run -- s3://lake/t.lance -x")]


def test_tables_of_format_0_1_are_migrated() -> None:
    assert advice_of(a_report(data_format="0.1")) == [("migrate", "lancetable migrate --run s3://lake/t.lance")]


def test_problems_are_checked_first() -> None:
    report = a_report(problems=(Problem("tag", "x", "y"),), compaction=CompactionPlan(1, 2, 3, 0))
    assert [kind for kind, _ in advice_of(report)] == ["fsck", "compact"]


def test_an_older_version_gets_no_advice_on_maintenance() -> None:
    report = a_report(newest_version=4, compaction=CompactionPlan(1, 2, 3, 0))
    assert advice_of(report) == [("report", "lancetable report s3://lake/t.lance")]


@pytest.mark.parametrize("uri", [*HOSTILE, "/tmp/a b", "caf\u00e9", "\udcff.lance"])
def test_the_shell_passes_on_the_address_as_it_is(uri: str) -> None:
    name = uri.replace("\x00", "")  # no argument of a process can contain it
    script = "import os, sys; sys.stdout.buffer.write(os.fsencode(sys.argv[1]))"
    command = f"{sys.executable} -c {shell_quote(script)} {shell_quote(name)}"
    environment = {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True, env=environment)
    assert done.stdout.decode(errors="surrogateescape") == name
    assert shell_quote(name).isprintable()


def test_an_address_is_no_option() -> None:
    report = a_report(uri="-rf", compaction=CompactionPlan(1, 2, 3, 0))
    assert advice_of(report) == [("compact", "lancetable compact --run -- -rf")]


def test_after_the_commands_no_advice_remains(tmp_path: Path) -> None:
    click_testing = pytest.importorskip("click.testing")
    from lancetable.cli.commands import cli

    ds = maintained_table(tmp_path / "it's a table.lance")
    for _ in range(3):
        report = lance.dataset(ds.uri).report()
        if not report.advice:
            break
        for advice in report.advice:
            program, *arguments = shlex.split(str(advice.command))
            result = click_testing.CliRunner().invoke(cli, arguments)
            assert (program, result.exit_code) == ("lancetable", 0), result.output
    assert report.advice == ()
    assert report.overview.num_fragments == 1 and report.overview.num_deleted_rows == 0


def test_counts_of_rows_that_need_many_reads_prevent_the_plan(tmp_path: Path) -> None:
    ds = lance.write_dataset(pa.table({"a": [1]}), tmp_path / "t.lance")
    files = ds.get_fragments()[0].metadata.files
    large = [lance.FragmentMetadata(number, files, 5_000_000, None) for number in range(40)]
    ds = lance.LanceDataset.commit(ds.uri, lance.LanceOperation.Overwrite(ds.schema, large), read_version=1)
    report = ds.report()
    assert report.compaction is None
    assert "the row counts of 40 fragments have to be read from files" in "".join(report.notes)
