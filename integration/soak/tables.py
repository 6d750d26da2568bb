"""The operations of a writer, by lancetable, by pylance and by Spark jobs."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import pyarrow as pa

from integration.soak.log import KEYS_OF_LANE, MAIN, Contents

__all__ = ["LIBRARIES", "OLD", "SCHEMA", "Library", "Spark", "contents_of", "open_rows", "payload", "rows_of"]

LIBRARIES = {"ours": "lancetable", "pylance": "lance"}
SCHEMA = pa.schema(
    [("key", pa.int64()), ("lane", pa.int64()), ("number", pa.int64()), ("revision", pa.int64()), ("text", pa.string())]
)
ROWS_OF_FRAGMENT = 2000
OLD = timedelta(seconds=60)  # age of versions that cleanups remove; longer than nearly all operations take
CACHE_BYTES = 2**20  # small, so that growth of a process is growth of something else


def payload(lane: int, revision: int) -> str:
    """Return the string in all rows that an operation wrote."""
    return f"{lane}:{revision}:" + "x" * (revision * 37 % 200)


def rows_of(lane: int, op: int, numbers: Iterable[int]) -> pa.Table:
    """Return the rows that an operation writes."""
    rows = [(lane * KEYS_OF_LANE + number, lane, number, op, payload(lane, op)) for number in numbers]
    return pa.table(list(map(list, zip(*rows))), schema=SCHEMA)


def contents_of(rows: pa.Table) -> dict[int, Contents]:
    """Return the contents of each lane. Raises ValueError for a row that is there twice or is torn."""
    found: dict[int, Contents] = {}
    for key, lane, number, revision, text in zip(*(rows[name].to_pylist() for name in SCHEMA.names)):
        contents = found.setdefault(lane, {})
        if number in contents:
            raise ValueError(f"row {number} of lane {lane} is there twice, revisions {contents[number]} and {revision}")
        if key != lane * KEYS_OF_LANE + number or text != payload(lane, revision):
            raise ValueError(f"row {number} of lane {lane} mixes values of several rows: {key}, {revision}, {text!r}")
        contents[number] = revision
    return found


def open_rows(module: Any, uri: str, options: Mapping[str, str], place: str = MAIN) -> Any:
    """Return a dataset of main, of "tag NAME" or of the newest version of "branch NAME"."""
    kind, _, name = place.partition(" ")
    version = name if kind == "tag" else None
    dataset = module.dataset(uri, version, storage_options=dict(options), metadata_cache_size_bytes=CACHE_BYTES)
    return dataset.checkout_version((name, None)) if kind == "branch" else dataset


class Library:
    """Operations of one of the two libraries. Half of them use a dataset that stays open."""

    def __init__(self, library: str, uri: str, options: Mapping[str, str]) -> None:
        self.module: Any = importlib.import_module(LIBRARIES[library])
        self.uri, self.options = uri, dict(options)
        self._kept = self.open()
        self._operations = 0

    def open(self, place: str = MAIN) -> Any:
        return open_rows(self.module, self.uri, self.options, place)

    def newest(self) -> Any:
        self._operations += 1
        if self._operations % 2:
            return self.open()
        self._kept.checkout_latest()
        return self._kept

    def rows(self, place: str, where: str) -> pa.Table:
        dataset = self.newest() if place == MAIN else self.open(place)
        return dataset.to_table(filter=where)

    def append(self, rows: pa.Table, place: str = MAIN) -> None:
        (self.newest() if place == MAIN else self.open(place)).insert(rows)

    def update(self, values: dict[str, str], where: str, place: str = MAIN) -> None:
        (self.newest() if place == MAIN else self.open(place)).update(values, where=where)

    def merge(self, rows: pa.Table) -> None:
        builder = self.newest().merge_insert("key").when_matched_update_all().when_not_matched_insert_all()
        builder.execute(rows)

    def delete(self, where: str) -> None:
        self.newest().delete(where)

    def compact(self) -> None:
        self.newest().optimize.compact_files(target_rows_per_fragment=ROWS_OF_FRAGMENT)

    def clean_up(self) -> None:
        self.newest().cleanup_old_versions(OLD, error_if_tagged_old_versions=False)

    def create_tag(self, name: str) -> None:
        dataset = self.newest()
        dataset.tags.create(name, dataset.version)

    def delete_tag(self, name: str) -> None:
        self.newest().tags.delete(name)

    def create_branch(self, name: str) -> None:
        dataset = self.newest()
        dataset.create_branch(name, dataset.version)

    def delete_branch(self, name: str) -> None:
        self.newest().branches.delete(name)


class Spark(Library):
    """Operations of this library as jobs of a local Spark session; tags and branches as in `Library`."""

    def __init__(self, library: str, uri: str, options: Mapping[str, str]) -> None:
        super().__init__(library, uri, options)
        from pyspark.sql import SparkSession

        from lancetable.spark import SparkTable, write_table

        # The whole heap is in memory from the start, so that growth of the process is growth of something else.
        java = "-Xms512m -XX:+AlwaysPreTouch -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        self._session = (
            SparkSession.builder.master("local[1,4]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "512m")
            .config("spark.driver.extraJavaOptions", java)
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.log.level", "OFF")
            .getOrCreate()
        )
        self._table = SparkTable(self._session, uri, storage_options=self.options)
        self._write_table = write_table

    def _frame(self, rows: pa.Table) -> Any:
        columns = "key bigint, lane bigint, number bigint, revision bigint, text string"
        return self._session.createDataFrame(list(zip(*(column.to_pylist() for column in rows.columns))), columns)

    def rows(self, place: str, where: str) -> pa.Table:
        if place != MAIN:
            return super().rows(place, where)
        found = self._table.to_df(SCHEMA.names, where).collect()
        return pa.Table.from_pylist([row.asDict() for row in found], schema=SCHEMA)

    def append(self, rows: pa.Table, place: str = MAIN) -> None:
        if place != MAIN:
            return super().append(rows, place)
        return self._write_table(self._frame(rows), self.uri, "append", storage_options=self.options)

    def update(self, values: dict[str, str], where: str, place: str = MAIN) -> None:
        if place != MAIN:
            return super().update(values, where, place)
        self._table.update(values, where=where)
        return None

    def merge(self, rows: pa.Table) -> None:
        builder = self._table.merge(self._frame(rows), "key").when_matched_update_all().when_not_matched_insert_all()
        builder.execute()

    def delete(self, where: str) -> None:
        self._table.delete(where)

    def compact(self) -> None:
        self._table.compact(target_rows_per_fragment=ROWS_OF_FRAGMENT)

    def clean_up(self) -> None:
        self._table.vacuum(older_than_days=OLD / timedelta(days=1))
