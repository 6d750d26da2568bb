"""Faults of PySpark releases that are worked around, and the releases in which they are fixed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

datasource = pytest.importorskip("pyspark.sql.datasource", reason="PySpark is not installed")


class Ones(datasource.DataSource):  # type: ignore[misc, name-defined]  # imported above, if it is there
    """Twenty rows, of which seven have k = 1; the reader reports that it applies filters on k."""

    @classmethod
    def name(cls) -> str:
        return "ones"

    def schema(self) -> str:
        return "k bigint"

    def reader(self, schema: Any) -> Any:
        class Reader(datasource.DataSourceReader):  # type: ignore[misc, name-defined]  # PySpark may be absent
            wanted: int | None = None

            def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
                for each in filters:
                    if type(each).__name__ == "EqualTo":
                        self.wanted = each.value
                    else:
                        yield each

            def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
                rows = [n % 3 for n in range(20)]
                yield pa.record_batch({"k": pa.array([n for n in rows if self.wanted in (None, n)], pa.int64())})

        return Reader()


@pytest.mark.spark
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a filter that a Python data source has taken stays with the relation (PySpark 4.1 to 4.3). When this test "
    "passes, the release is free of it: LanceReader may then offer pushFilters for this release and newer ones",
)
def test_a_pushed_filter_does_not_leak_into_other_scans(spark: Any) -> None:
    if not hasattr(datasource.DataSourceReader, "pushFilters"):
        pytest.skip("this PySpark has no pushFilters; it came with 4.1")
    spark.dataSource.register(Ones)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("ones").load()
        if frame.filter("k = 1").count() != 7:
            pytest.fail("the filter was not taken, so that nothing is known of a leak")
        assert frame.count() == 20
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_the_reader_leaves_filters_to_spark() -> None:
    from lancetable.spark.reader import LanceReader

    assert "pushFilters" not in vars(LanceReader)


def test_offsets_are_returned_with_and_without_the_arguments_of_newer_releases() -> None:
    from lancetable.spark.stream_source import LanceStreamReader

    inspect.signature(LanceStreamReader.latestOffset).bind(None)
    inspect.signature(LanceStreamReader.latestOffset).bind(None, {"version": 1}, None)
