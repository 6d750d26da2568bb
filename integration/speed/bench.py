"""Benchmark of lancetable and pylance: both do the same job alternately in one process, and ratios are compared.

Every page of a result is touched within the timed part, so that memory-mapped results include page faults.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import changes
import lance
import numpy as np
import pyarrow as pa

import lancetable

# Compared quantity: wall-clock time. CPU time, of all threads, can also be compared on a busy machine.
clock = time.perf_counter
TAKES = (1, 10, 100, 1_000, 10_000)
WORDS = [f"word-{i:02d}" for i in range(40)]


def column(name: str, n: int, seed: int = 7) -> pa.Array:
    """Return a column of `n` random values with a shape that is typical of tables."""
    rng = np.random.default_rng(seed)
    if name == "int":
        return pa.array(rng.integers(-(2**40), 2**40, n))
    if name == "float":
        return pa.array(rng.normal(size=n))
    if name == "nullable":
        return pa.array(rng.integers(0, 1000, n), mask=rng.random(n) < 0.2)
    if name == "bool":
        return pa.array(rng.random(n) < 0.5)
    if name == "timestamp":
        return pa.array(rng.integers(1_500_000_000_000_000, 1_800_000_000_000_000, n)).cast(pa.timestamp("us"))
    if name == "string_low":
        return pa.array(WORDS).take(pa.array(rng.integers(0, len(WORDS), n)))
    if name == "string_high":
        return pa.array(rng.integers(0, 2**62, n)).cast(pa.string())
    if name == "list":
        lengths = rng.integers(0, 8, n)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(rng.integers(0, 100, offsets[-1], dtype=np.int32)))
    if name == "struct":
        return pa.StructArray.from_arrays(
            [pa.array(rng.normal(size=n)), pa.array(rng.integers(0, 2**31, n)).cast(pa.string())], names=["x", "s"]
        )
    if name == "int_low":
        return pa.array(rng.integers(0, 16, n))
    if name == "int_sorted":
        return pa.array(np.cumsum(rng.integers(0, 5, n)))
    if name == "runs":
        return pa.array(np.repeat(rng.integers(0, 2**40, n // 50 + 1), 50)[:n])
    if name == "text_long":
        words = np.array(WORDS)
        return pa.array([" ".join(words[rng.integers(0, len(words), 120)]) for _ in range(n // 100)])
    if name == "list_string":
        lengths = rng.integers(0, 6, n // 2)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(
            pa.array(offsets), pa.array(rng.integers(0, 2**40, offsets[-1])).cast(pa.string())
        )
    if name == "list_struct":
        lengths = rng.integers(0, 6, n // 2)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        count = int(offsets[-1])
        items = pa.StructArray.from_arrays(
            [pa.array(rng.normal(size=count)), pa.array(rng.integers(0, 1000, count))], names=["x", "k"]
        )
        return pa.ListArray.from_arrays(pa.array(offsets), items)
    if name == "struct_null":
        return pa.StructArray.from_arrays(
            [pa.array(rng.normal(size=n)), pa.array(rng.integers(0, 1000, n), mask=rng.random(n) < 0.1)],
            names=["x", "k"],
            mask=pa.array(rng.random(n) < 0.1),
        )
    if name == "float_zstd":
        return pa.array(rng.integers(0, 10**6, n) / 100)
    if name == "vector":
        return pa.FixedSizeListArray.from_arrays(pa.array(rng.random(n * 256, dtype=np.float32)), 256)
    raise ValueError(name)


COLUMNS = ("int", "float", "nullable", "bool", "timestamp", "string_low", "string_high", "list", "struct", "vector")
# Shapes whose encodings exist from version 2.1 on.
NEW_COLUMNS = (
    "int_low", "int_sorted", "runs", "text_long", "list_string", "list_struct", "struct_null", "float_zstd",
)  # fmt: skip


def table_of(name: str, n: int) -> pa.Table:
    """Return a table of one column, with the metadata that belongs to its name."""
    values = column(name, n)
    metadata = {"lance-encoding:compression": "zstd"} if name == "float_zstd" else None
    return pa.table([values], schema=pa.schema([pa.field(name, values.type, metadata=metadata)]))


def touch(data: Any) -> int:
    """Read one byte of every page of every buffer."""
    total = 0
    columns = data.columns if hasattr(data, "columns") else [data]
    for values in columns:
        for chunk in getattr(values, "chunks", [values]):
            for buffer in chunk.buffers():
                if buffer is not None and buffer.size:
                    total += int(np.frombuffer(buffer, np.uint8)[::4096].sum(dtype=np.int64))
    return total


def paired(
    ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int, fresh: Callable[[], None] = lambda: None
) -> tuple[float, float]:
    """Return the best seconds of each side in `repeats` alternating runs after a warm-up; `fresh` precedes each run."""
    for side in (ours, theirs):
        fresh()
        side()
    best = [float("inf"), float("inf")]
    gc.collect()
    gc.disable()
    try:
        for turn in range(repeats):
            for side in (0, 1) if turn % 2 else (1, 0):
                fresh()
                start = clock()
                (ours, theirs)[side]()
                best[side] = min(best[side], clock() - start)
    finally:
        gc.enable()
    return best[0], best[1]


def bench_change(root: Path, version: str, rows: int, only: str, report: Report, repeats: int) -> None:
    for case in changes.cases(root, version, rows):
        if only in case.name:
            ours, theirs = (lambda c=case, m=module: c.run(m) for module in (lancetable, lance))
            report.add("change", case.name, *paired(ours, theirs, repeats, case.fresh))
    shutil.rmtree(root / "changed.lance", ignore_errors=True)


class Report:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, group: str, case: str, ours: float, theirs: float) -> None:
        ratio = theirs / ours
        self.rows.append({"group": group, "case": case, "ours_s": ours, "pylance_s": theirs, "ratio": ratio})
        print(f"  {group:<10} {case:<24} {ours * 1e3:>11.3f} ms {theirs * 1e3:>11.3f} ms   {ratio:>7.2f}x", flush=True)

    def summary(self) -> dict[str, dict[str, float]]:
        result = {}
        for group in dict.fromkeys(row["group"] for row in self.rows):
            ratios = [row["ratio"] for row in self.rows if row["group"] == group]
            result[group] = {"geomean": statistics.geometric_mean(ratios), "worst": min(ratios)}
        return result


def bench_scan(root: Path, columns: list[str], report: Report, repeats: int) -> None:
    for name in columns:
        uri = str(root / f"{name}.lance")
        report.add(
            "scan",
            name,
            *paired(
                lambda uri=uri: touch(lancetable.dataset(uri).to_table()),
                lambda uri=uri: touch(lance.dataset(uri).to_table()),
                repeats,
            ),
        )


def bench_take(root: Path, columns: list[str], report: Report, repeats: int) -> None:
    for name in columns:
        uri = str(root / f"{name}.lance")
        ours, theirs = lancetable.dataset(uri), lance.dataset(uri)
        rows = ours.count_rows()
        for count in TAKES:
            indices = np.random.default_rng(count).integers(0, rows, count).tolist()
            assert ours.take(indices).num_rows == theirs.take(indices).num_rows == count
            report.add(
                "take",
                f"{name} x {count}",
                *paired(
                    lambda d=ours, i=indices: touch(d.take(i)),
                    lambda d=theirs, i=indices: touch(d.take(i)),
                    repeats * (5 if count < 1000 else 2),
                ),
            )


def bench_filter(root: Path, version: str, rows: int, report: Report, repeats: int) -> None:
    uri = str(root / "mixed.lance")
    if not os.path.exists(uri):
        names = [c for c in COLUMNS if c != "vector"]
        table = pa.table({"id": pa.array(np.arange(rows)), **{c: column(c, rows) for c in names}})
        lance.write_dataset(table, uri, data_storage_version=version)
    ours, theirs = lancetable.dataset(uri), lance.dataset(uri)
    cases: dict[str, dict[str, Any]] = {
        "half of two columns": {"columns": ["id", "float"], "filter": "float > 0"},
        "1 percent, late text": {"columns": ["id", "string_high"], "filter": "nullable < 12"},
        "10 rows, all columns": {"filter": "int > 1099500000000"},
        "id range": {"columns": ["id", "string_high", "list"], "filter": "id >= 1000000 AND id < 1001000"},
        "text equality": {"columns": ["id"], "filter": "string_low = 'word-07'"},
        "and, or, in": {
            "columns": ["id", "float"],
            "filter": "(nullable IN (3, 5, 7) OR float < -1) AND bool AND string_low LIKE 'word-1%'",
        },
        "is null": {"columns": ["id"], "filter": "nullable IS NULL"},
    }
    for case, arguments in cases.items():
        assert ours.to_table(**arguments).num_rows == theirs.to_table(**arguments).num_rows, case
        report.add(
            "filter",
            case,
            *paired(
                lambda a=arguments: touch(ours.to_table(**a)), lambda a=arguments: touch(theirs.to_table(**a)), repeats
            ),
        )


def bench_write(root: Path, columns: list[str], version: str, rows: int, report: Report, repeats: int) -> None:
    for name in columns:
        table = table_of(name, rows if name != "vector" else rows // 4)

        def write(module: Any, table: pa.Table = table) -> None:
            uri = str(root / "written.lance")
            shutil.rmtree(uri, ignore_errors=True)
            module.write_dataset(table, uri, data_storage_version=version)

        for group, sync in (("write", "0"), ("write+sync", "1")):
            os.environ["LANCETABLE_FSYNC"] = sync
            report.add(group, name, *paired(lambda: write(lancetable), lambda: write(lance), max(2, repeats // 2)))
    os.environ["LANCETABLE_FSYNC"] = "0"
    shutil.rmtree(root / "written.lance", ignore_errors=True)


def bench_open(root: Path, report: Report, repeats: int) -> None:
    small = [str(root / "small" / f"{i}.lance") for i in range(200)]
    if not os.path.exists(small[-1]):
        shutil.rmtree(root / "small", ignore_errors=True)
        table = pa.table({"id": pa.array(np.arange(100)), "s": pa.array([str(i) for i in range(100)])})
        for uri in small:
            lance.write_dataset(table, uri, data_storage_version="2.0")
    wide = str(root / "fragments.lance")
    if not os.path.exists(wide):
        table = pa.table({"id": pa.array(np.arange(10_000)), "x": pa.array(np.arange(10_000) * 0.5)})
        lance.write_dataset(table, wide, data_storage_version="2.0", max_rows_per_file=10)

    def open_all(module: Any) -> None:
        for uri in small:
            assert module.dataset(uri).version == 1

    report.add("open", "200 small tables", *paired(lambda: open_all(lancetable), lambda: open_all(lance), repeats))
    report.add(
        "open",
        "1,000 fragments",
        *paired(lambda: lancetable.dataset(wide).count_rows(), lambda: lance.dataset(wide).count_rows(), repeats * 5),
    )
    report.add(
        "open",
        "1,000 fragments, scan",
        *paired(
            lambda: touch(lancetable.dataset(wide).to_table()), lambda: touch(lance.dataset(wide).to_table()), repeats
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--version", default="2.0", choices=["0.1", "2.0", "2.1", "2.2"], help="data file version")
    parser.add_argument("--columns", help="names, separated by commas; all that suit the version by default")
    parser.add_argument("--only", default="scan,take,filter,write,open,change")
    parser.add_argument("--cases", default="", help="only changes whose name contains this")
    parser.add_argument("--cpu", action="store_true", help="compare CPU time instead of wall-clock time")
    parser.add_argument("--dir", help="keep the generated tables here and use them again")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    known = COLUMNS if options.version in ("0.1", "2.0") else COLUMNS + NEW_COLUMNS
    if options.version == "0.1":  # without nulls, so that statistics are sufficient
        known = tuple(name for name in known if name != "nullable")
        options.only = ",".join(group for group in options.only.split(",") if group != "filter")
    columns, groups = options.columns.split(",") if options.columns else list(known), options.only.split(",")
    os.environ["LANCETABLE_FSYNC"] = "0"
    if options.cpu:
        global clock
        clock = time.process_time

    root = Path(options.dir or tempfile.mkdtemp(prefix="lancetable-bench-"))
    root.mkdir(parents=True, exist_ok=True)
    print(f"{options.rows:,} rows, version {options.version}, best of {options.repeats}", end="; ")
    print(f"lancetable, pylance {lance.__version__}, ratio", flush=True)
    try:
        report = Report()
        if {"scan", "take"} & set(groups):
            for name in columns:
                uri = root / f"{name}.lance"
                if not uri.exists():
                    lance.write_dataset(table_of(name, options.rows), str(uri), data_storage_version=options.version)
        if "scan" in groups:
            bench_scan(root, columns, report, options.repeats)
        if "take" in groups:
            bench_take(root, columns, report, options.repeats)
        if "filter" in groups:
            bench_filter(root, options.version, options.rows, report, options.repeats)
        if "write" in groups:
            bench_write(root, columns, options.version, options.rows, report, options.repeats)
        if "open" in groups:
            bench_open(root, report, options.repeats)
        if "change" in groups and options.version != "0.1":
            bench_change(root, options.version, options.rows, options.cases, report, max(2, options.repeats // 2))
    finally:
        if not options.dir:
            shutil.rmtree(root, ignore_errors=True)
    print("\n  group         geomean     worst")
    for group, figures in report.summary().items():
        print(f"  {group:<12} {figures['geomean']:>7.2f}x  {figures['worst']:>7.2f}x")
    if options.json:
        Path(options.json).write_text(json.dumps({"rows": report.rows, "summary": report.summary()}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
