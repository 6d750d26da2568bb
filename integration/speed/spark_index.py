"""An index that Spark tasks build: 4 parts are merged into one segment by one commit.

    python integration/speed/spark_index.py [--kind BTREE] [--rows 20000000] [--kill]
    python integration/speed/spark_index.py --kind IVF_PQ [--rows 1000000] [--dim 128] [--kill]

Prints the seconds of the build and of a build by one process without Spark. For BTREE also those of a point lookup by
`SparkTable.to_df` without and with the index, and for a vector index the recall of both builds in pylance, the share of
the 10 nearest rows that are found, and the seconds of `SparkTable.nearest` without and with the index.

The exit code is 1 if the index is not one segment over all fragments in one new version, if other files of it remain,
if pylance does not use it or finds other rows, or if the recall is more than 0.01 below that of one process. `--kill`
also kills a worker that has written a part.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("LANCE_LOG", "error")

import lance
import numpy as np
import pyarrow as pa

import lancetable

sys.path.insert(0, str(Path(__file__).parent))
from spark import session
from vector_builds import column, vectors

PARTS = 4
FRAGMENTS_OF_PART = 4
QUERIES = 200
MOST_LOSS_OF_RECALL = 0.01


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Build:
    """An index on a column with its parameters. `kind` is the name of the kind in the job."""

    column: str
    index_type: str
    parameters: dict[str, Any]

    def in_tasks(self, table: Any, rows: int) -> None:
        table.create_index(self.column, self.index_type, target_rows_per_task=rows, **self.parameters)

    def by_one_process(self, path: Path) -> None:
        dataset = lancetable.dataset(path)
        if self.index_type == "BTREE":
            dataset.create_scalar_index(self.column, "BTREE")
        else:
            dataset.create_index(self.column, self.index_type, **self.parameters)

    def killing_job(self, table: Any, rows: int, marker: Path) -> Any:
        """Return the job of `create_index`, of which the worker of one task is killed once."""
        from lancetable.spark.jobs.build_index import CreateIndexJob
        from lancetable.vector_index_arguments import vector_options

        @dataclass(frozen=True)
        class Killing(CreateIndexJob):
            def write_part(self, version: Any, plan: Any, segment: int, fragment_ids: Any) -> Any:
                entry = super().write_part(version, plan, segment, fragment_ids)
                if 0 in fragment_ids and not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return entry

        kind, options = "BTREE", self.parameters
        if self.index_type != "BTREE":
            kind, options = "VECTOR", vector_options(self.index_type, self.parameters)
        return Killing(table.options, None, rows, None, self.column, kind, options, None, True, True, 1)


class Lookups:
    """Point lookups of shuffled ids with a BTREE index."""

    build = Build("id", "BTREE", {})

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.filter = f"id = {rows // 3}"

    def parts(self) -> Iterator[pa.Table]:
        """Yield the rows of each fragment."""
        each = self.rows // (PARTS * FRAGMENTS_OF_PART)
        ids = np.random.default_rng(1).permutation(self.rows)
        for start in range(0, self.rows, each):
            yield pa.table({"id": ids[start : start + each], "x": np.arange(start, start + each)})

    def query(self, table: Any, *, use_index: bool) -> float:
        return min(timed(lambda: table.to_df(columns=["x"], filter=self.filter).collect()) for _ in range(3))

    def found(self, table: Any) -> Any:
        return [row["x"] for row in table.to_df(columns=["x"], filter=self.filter).collect()]

    def problems(self, path: Path, single: Path, found: Any) -> Iterator[str]:
        """Yield the differences between reads with the index and scans."""
        dataset = lance.dataset(str(path))
        if "@id_idx(BTree)" not in dataset.scanner(filter=self.filter).explain_plan():
            yield "pylance does not use the index"
        half = self.rows // 2
        for predicate in (self.filter, f"id >= {half} AND id < {half + 1000}", "id < 0"):
            mine, scanned = (
                dataset.scanner(filter=predicate, use_scalar_index=use).to_table() for use in (True, False)
            )
            if mine.sort_by("id") != scanned.sort_by("id"):
                yield f"pylance finds {mine.num_rows} rows where {predicate}, but {scanned.num_rows} exist"
        expected = lancetable.dataset(single).to_table(columns=["x"], filter=self.filter)["x"].to_pylist()
        if found != expected:
            yield f"Spark finds {found} instead of {expected}"


class Nearest:
    """Searches of clustered vectors with a vector index."""

    def __init__(self, rows: int, dim: int, kind: str) -> None:
        self.rows, self.dim = rows, dim
        parameters = {"num_sub_vectors": dim // 8} if "PQ" in kind else {}
        self.build = Build("v", kind, {**parameters, "seed": 1})
        self.queries = vectors(QUERIES, dim, 10_000)

    def parts(self) -> Iterator[pa.Table]:
        """Yield the rows of each fragment."""
        each = self.rows // (PARTS * FRAGMENTS_OF_PART)
        for number in range(PARTS * FRAGMENTS_OF_PART):
            yield column(vectors(each, self.dim, number + 1))

    def query(self, table: Any, *, use_index: bool) -> float:
        options = {"nprobes": 20, "refine_factor": 10, "use_index": use_index, "columns": ["_rowid"]}
        return timed(lambda: table.nearest(self.queries, "v", **options).collect())

    def found(self, table: Any) -> Any:
        rows = table.nearest(self.queries, "v", columns=["_rowid"], nprobes=20, refine_factor=10).collect()
        return _by_query((row["query_index"], row["_rowid"]) for row in rows)

    def problems(self, path: Path, single: Path, found: Any) -> Iterator[str]:
        """Yield differences between the recall of both builds."""
        nearest = {"column": "v", "k": 10}
        exact = lancetable.dataset(path).to_table(
            columns=["_rowid"], nearest={**nearest, "q": self.queries, "use_index": False}
        )
        wanted = _by_query(zip(exact["query_index"].to_pylist(), exact["_rowid"].to_pylist()))
        print(f"{'recall@10 in Spark':<24} {_share(found, wanted):>8.4f}")
        for options in ({"nprobes": 20, "refine_factor": 10}, {"nprobes": 20}, {"nprobes": 1, "refine_factor": 10}):
            recalls = []
            for each in (path, single):
                dataset = lance.dataset(str(each))
                if "ANNSubIndex" not in dataset.scanner(nearest={**nearest, "q": self.queries[0]}).explain_plan():
                    yield f"pylance does not use the index of {each}"
                rows = [
                    set(
                        dataset.to_table(columns=["_rowid"], nearest={**nearest, "q": query, **options})[
                            "_rowid"
                        ].to_pylist()
                    )
                    for query in self.queries
                ]
                recalls.append(_share(rows, wanted))
            print(f"recall@10 {options}: {recalls[0]:.4f} in tasks, {recalls[1]:.4f} by one process")
            if recalls[0] < recalls[1] - MOST_LOSS_OF_RECALL:
                yield f"the recall is {recalls[0]:.4f}, and that of one process {recalls[1]:.4f}"
        if _share(found, wanted) < recalls[1] - MOST_LOSS_OF_RECALL:
            yield "the recall in Spark is lower"


def _by_query(rows: Iterable[tuple[int, int]]) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in range(QUERIES)]
    for query, row in rows:
        found[query].add(row)
    return found


def _share(found: list[set[int]], wanted: list[set[int]]) -> float:
    return sum(len(one & other) for one, other in zip(found, wanted)) / sum(map(len, wanted))


def problems(path: Path, version: int) -> list[str]:
    """Return what is wrong with the files of the index."""
    ds = lance.dataset(str(path))
    segments = [segment for index in ds.describe_indices() for segment in index.segments]
    files = [file for file in (path / "_indices").rglob("*") if file.is_file()]
    found = [] if ds.version == version + 1 else [f"version {ds.version} follows version {version}"]
    if [sorted(segment.fragment_ids) for segment in segments] != [list(range(PARTS * FRAGMENTS_OF_PART))]:
        found.append(f"{len(segments)} segments")
    if len(files) != 2:
        found.append(f"{len(files)} files of indexes")
    return found + [problem.detail for problem in lancetable.fsck(path, deep=True).problems]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="BTREE", help="BTREE, or a vector index such as IVF_PQ")
    parser.add_argument("--rows", type=int, help="default: 20,000,000, or 1,000,000 vectors")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--kill", action="store_true", help="kill a worker during the build")
    given = parser.parse_args()
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(Path(__file__).parents[2])}

    from lancetable.spark import SparkTable

    fragments = PARTS * FRAGMENTS_OF_PART
    is_vector = given.kind != "BTREE"
    rows = (given.rows or (1_000_000 if is_vector else 20_000_000)) // fragments * fragments
    case = Nearest(rows, given.dim, given.kind) if is_vector else Lookups(rows)
    base = Path(tempfile.mkdtemp(prefix="lancetable-index-"))
    try:
        path, single = base / "t.lance", base / "single.lance"
        for number, part in enumerate(case.parts()):
            lancetable.write_dataset(part, path, mode="append" if number else "create", max_rows_per_file=len(part))
        shutil.copytree(path, single, copy_function=os.link)
        spark = session(given.master)
        table = SparkTable.for_path(spark, str(path))
        spark.range(4).mapInArrow(lambda batches: batches, "id bigint").count()  # workers and their imports
        version, task_rows = table.dataset.version, rows // PARTS
        scan = case.query(table, use_index=False)
        if given.kill:
            job = case.build.killing_job(table, task_rows, base / "killed")
            build = timed(lambda: table._change(job))
            table.vacuum(older_than_days=0, delete_unverified=True)
        else:
            build = timed(lambda: case.build.in_tasks(table, task_rows))
        indexed, rows_of_spark = case.query(table, use_index=True), case.found(table)
        spark.stop()
        alone = timed(lambda: case.build.by_one_process(single))
        print(f"{rows:,} rows, {PARTS} parts, {given.kind}, {given.master}")
        print(f"{'build in tasks':<24} {build:>8.2f} s")
        print(f"{'build by one process':<24} {alone:>8.2f} s")
        print(f"{'query, scan':<24} {scan:>8.2f} s")
        print(f"{'query, index':<24} {indexed:>8.2f} s")
        found = [*problems(path, version), *case.problems(path, single, rows_of_spark)]
    finally:
        shutil.rmtree(base)
    for problem in found:
        print(f"wrong: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
