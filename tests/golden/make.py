"""Write the golden set: small tables by pylance, with their contents as pylance itself reads them.

Run by scripts/make_golden. Layout, for the reader in tests/test_golden.py:

    index.json               the entries: id, path, storage_version, features, facts
    tables/<id>/             a Lance table
    facts/<id>.json          versions (rows, contents, row ids), tags, takes, filters
    expected/<hash>.arrow    Arrow IPC files, shared by content
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

HERE = Path(__file__).parent
ROWS = 61
FILTERS = ("k < 20", "k % 7 = 3", "k IN (3, 40, -1)", "k >= 10 AND k <= 30 OR k = 55", "NOT k > 12")


def nulls(n: int) -> np.ndarray[Any, Any]:
    return np.arange(n) % 5 == 2


def type_columns() -> dict[str, Callable[[int], dict[str, pa.Array]]]:
    """Return families of columns, each with and without nulls if the format supports nulls for it."""

    def both(name: str, values: Callable[[int], list[Any]], type_: pa.DataType) -> Callable[[int], dict[str, pa.Array]]:
        def build(n: int) -> dict[str, pa.Array]:
            data = values(n)
            holes = [None if hole else value for value, hole in zip(data, nulls(n), strict=True)]
            return {
                f"{name}_v": pa.array(data, type_),
                f"{name}_n": pa.array(holes, type_),
                f"{name}_a": pa.array([None] * n, type_),
            }

        return build

    day = dt.date(2020, 1, 31)
    moment = dt.datetime(2021, 3, 14, 1, 59, 26)
    words = ["", "a", "bb", "Grüße", "\u4f60\u597d", "x" * 40]
    families: dict[str, Callable[[int], dict[str, pa.Array]]] = {
        "bool": both("bool", lambda n: [i % 3 == 0 for i in range(n)], pa.bool_()),
        "half": both("half", lambda n: [np.float16(i) / 2 for i in range(n)], pa.float16()),
        "double": both(
            "double", lambda n: [[0.5, -0.0, float("nan"), float("inf")][i % 4] for i in range(n)], pa.float64()
        ),
        "decimal128": both("dec", lambda n: [decimal.Decimal(i - 30) / 100 for i in range(n)], pa.decimal128(10, 2)),
        "decimal256": both("dec", lambda n: [decimal.Decimal(i - 30) / 100 for i in range(n)], pa.decimal256(60, 2)),
        "date32": both("date", lambda n: [day + dt.timedelta(days=i) for i in range(n)], pa.date32()),
        "date64": both("date", lambda n: [day + dt.timedelta(days=i) for i in range(n)], pa.date64()),
        "time32": both("time", lambda n: [dt.time(i % 24, i % 60) for i in range(n)], pa.time32("ms")),
        "time64": both("time", lambda n: [dt.time(i % 24, i % 60) for i in range(n)], pa.time64("ns")),
        "timestamp": both("ts", lambda n: [moment + dt.timedelta(hours=i) for i in range(n)], pa.timestamp("us")),
        "timestamp_tz": both(
            "ts", lambda n: [moment + dt.timedelta(hours=i) for i in range(n)], pa.timestamp("ms", "America/New_York")
        ),
        "duration": both("dur", lambda n: [dt.timedelta(seconds=i) for i in range(n)], pa.duration("s")),
        "string": both("s", lambda n: [words[i % 6] for i in range(n)], pa.string()),
        "large_string": both("s", lambda n: [words[i % 6] for i in range(n)], pa.large_string()),
        "binary": both("b", lambda n: [words[i % 6].encode() for i in range(n)], pa.binary()),
        "large_binary": both("b", lambda n: [words[i % 6].encode() for i in range(n)], pa.large_binary()),
        "fixed_binary": both("f", lambda n: [bytes([i % 256] * 5) for i in range(n)], pa.binary(5)),
        "vector": both("v", lambda n: [[i / 2, i / 4, -i] for i in range(n)], pa.list_(pa.float32(), 3)),
        "matrix": both(
            "m", lambda n: [[[i, i + 1], [i + 2, None]] for i in range(n)], pa.list_(pa.list_(pa.int32(), 2), 2)
        ),
        "list": both(
            "l", lambda n: [[None if j == 2 else i + j for j in range(i % 4)] for i in range(n)], pa.list_(pa.int16())
        ),
        "large_list": both(
            "l", lambda n: [[words[j] for j in range(i % 4)] for i in range(n)], pa.large_list(pa.string())
        ),
        "list_list": both(
            "l", lambda n: [[[j] * (j % 3) for j in range(i % 4)] for i in range(n)], pa.list_(pa.list_(pa.int32()))
        ),
        "dictionary": both("d", lambda n: [words[i % 4] for i in range(n)], pa.dictionary(pa.int8(), pa.string())),
        "null": lambda n: {"nothing": pa.nulls(n)},
        "uuid": lambda n: {"id": pa.array([bytes([i] * 16) for i in range(n)], pa.uuid())},
    }
    for width in (8, 16, 32, 64):
        signed = pa.type_for_alias(f"int{width}")
        unsigned = pa.type_for_alias(f"uint{width}")
        families[f"int{width}"] = both("i", lambda n: [i - 30 for i in range(n)], signed)
        families[f"uint{width}"] = both("u", lambda n: [i * 3 % 200 for i in range(n)], unsigned)

    def structs(n: int) -> dict[str, pa.Array]:
        leaf = [{"x": None if i % 5 == 2 else i, "y": {"z": words[i % 6], "w": [i] * (i % 3)}} for i in range(n)]
        type_ = pa.struct(
            [
                ("x", pa.int32()),
                ("y", pa.struct([("z", pa.string()), ("w", pa.list_(pa.int8()))])),
            ]
        )
        return {
            "st": pa.array(leaf, type_),
            "lst": pa.array([[{"p": j, "q": words[j]} for j in range(i % 4)] for i in range(n)]),
        }

    def packed(n: int) -> dict[str, pa.Array]:
        return {
            "packed": pa.array(
                [{"a": i, "b": i / 2, "c": i % 7} for i in range(n)],
                pa.struct([("a", pa.int64()), ("b", pa.float32()), ("c", pa.uint8())]),
            )
        }

    families["struct"] = structs
    families["packed"] = packed
    return families


def keyed(columns: dict[str, pa.Array], start: int = 0) -> pa.Table:
    n = len(next(iter(columns.values())))
    table = pa.table({"k": pa.array(range(start, start + n), pa.int64()), **columns})
    if "packed" in table.column_names:
        field = table.schema.field("packed").with_metadata({"packed": "true"})
        table = table.cast(table.schema.set(table.schema.get_field_index("packed"), field))
    return table


def simple(start: int, n: int) -> pa.Table:
    return pa.table(
        {
            "k": pa.array(range(start, start + n), pa.int64()),
            "s": pa.array([None if i % 9 == 4 else f"row {i}" for i in range(start, start + n)]),
            "x": pa.array([i / 2 for i in range(start, start + n)]),
        }
    )


def histories() -> dict[str, tuple[list[str], Callable[[str, str], None]]]:
    """Return tables with several versions: a description of the changes and a function that performs them."""

    def append(uri: str, version: str) -> None:
        for i in range(3):
            lance.write_dataset(simple(20 * i, 20), uri, mode="append" if i else "create", data_storage_version=version)

    def appended_subset(uri: str, version: str) -> None:
        lance.write_dataset(simple(0, 20), uri, data_storage_version=version)
        lance.write_dataset(simple(20, 10).select(["s", "k"]), uri, mode="append")

    def overwrite(uri: str, version: str) -> None:
        lance.write_dataset(simple(0, 20), uri, data_storage_version=version)
        lance.write_dataset(pa.table({"k": [1, 2, 3], "new": ["a", "b", None]}), uri, mode="overwrite")

    def delete(uri: str, version: str) -> None:
        ds = lance.write_dataset(simple(0, 60), uri, max_rows_per_file=20, data_storage_version=version)
        ds.delete("k % 10 = 3")
        ds.delete("k >= 20 AND k < 40")
        ds.delete("k = 55")

    def delete_stable(uri: str, version: str) -> None:
        ds = lance.write_dataset(
            simple(0, 60), uri, max_rows_per_file=20, data_storage_version=version, enable_stable_row_ids=True
        )
        ds.delete("k % 10 = 3")
        ds.update({"s": "'changed'"}, where="k < 5")

    def bitmap(uri: str, version: str) -> None:
        ds = lance.write_dataset(
            pa.table({"k": pa.array(range(12_000), pa.int64())}), uri, data_storage_version=version
        )
        ds.delete("k % 2 = 1")

    def columns(uri: str, version: str) -> None:
        ds = lance.write_dataset(simple(0, 40), uri, max_rows_per_file=20, data_storage_version=version)
        ds.add_columns({"y": "x * 2", "t": "concat(s, '!')"})
        ds.drop_columns(["x"])
        ds.alter_columns({"path": "s", "name": "label"})
        ds.delete("k = 7")

    def evolve_empty(uri: str, version: str) -> None:
        ds = lance.write_dataset(simple(0, 10), uri, data_storage_version=version)
        ds.add_columns(pa.field("later", pa.list_(pa.int32())))

    def update(uri: str, version: str) -> None:
        ds = lance.write_dataset(simple(0, 40), uri, max_rows_per_file=20, data_storage_version=version)
        ds.update({"s": "'u'"}, where="k % 4 = 0")
        ds.merge_insert("k").when_matched_update_all().when_not_matched_insert_all().execute(simple(35, 10))

    def compacted(uri: str, version: str) -> None:
        ds = lance.write_dataset(simple(0, 60), uri, max_rows_per_file=10, data_storage_version=version)
        ds.delete("k < 15")
        ds.optimize.compact_files()

    def restored(uri: str, version: str) -> None:
        ds = lance.write_dataset(simple(0, 20), uri, data_storage_version=version)
        ds.delete("k < 10")
        ds.checkout_version(1).restore()

    def tagged(uri: str, version: str) -> None:
        ds = lance.write_dataset(simple(0, 20), uri, data_storage_version=version)
        lance.write_dataset(simple(20, 5), uri, mode="append")
        ds = lance.dataset(uri)
        ds.tags.create("first", 1)
        ds.tags.create("v1.0-final", 2)

    def named_v1(uri: str, version: str) -> None:
        for i in range(3):
            lance.write_dataset(
                simple(20 * i, 20),
                uri,
                mode="append" if i else "create",
                data_storage_version=version,
                enable_v2_manifest_paths=False,
            )

    def configured(uri: str, version: str) -> None:
        ds = lance.write_dataset(simple(0, 20), uri, data_storage_version=version)
        ds.update_config({"lance.auto_cleanup.interval": "1000"})
        ds.update_metadata({"owner": "someone"})
        ds.update_schema_metadata({"about": "rows"})

    def emptied(uri: str, version: str) -> None:
        ds = lance.write_dataset(simple(0, 20), uri, data_storage_version=version)
        ds.delete("true")

    def no_rows(uri: str, version: str) -> None:
        lance.write_dataset(simple(0, 0), uri, schema=simple(0, 0).schema, data_storage_version=version)

    def indexed(uri: str, version: str) -> None:
        ds = lance.write_dataset(simple(0, 40), uri, data_storage_version=version)
        ds.create_scalar_index("k", "BTREE")
        lance.write_dataset(simple(40, 5), uri, mode="append")

    return {
        "append": (["append"], append),
        "append-subset": (["append", "missing column"], appended_subset),
        "overwrite": (["overwrite"], overwrite),
        "delete": (["delete"], delete),
        "delete-stable": (["delete", "update", "stable row ids"], delete_stable),
        "delete-bitmap": (["delete", "bitmap"], bitmap),
        "columns": (["add columns", "drop columns", "rename", "delete"], columns),
        "null-column": (["add columns"], evolve_empty),
        "update": (["update", "merge_insert"], update),
        "compacted": (["compaction"], compacted),
        "restored": (["restore"], restored),
        "tagged": (["tags"], tagged),
        "v1-names": (["V1 manifest naming"], named_v1),
        "configured": (["config", "metadata"], configured),
        "emptied": (["delete", "all rows"], emptied),
        "no-rows": (["no rows"], no_rows),
        "indexed": (["index"], indexed),
    }


class Golden:
    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("tables", "facts", "expected"):
            shutil.rmtree(root / name, ignore_errors=True)
            (root / name).mkdir(parents=True)
        self.entries: list[dict[str, Any]] = []

    def expected(self, table: pa.Table) -> str:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        data = sink.getvalue().to_pybytes()
        name = f"expected/{hashlib.sha256(data).hexdigest()[:20]}.arrow"
        (self.root / name).write_bytes(data)
        return name

    def record(self, name: str, features: list[str], storage_version: str) -> None:
        uri = str(self.root / "tables" / name)
        latest = lance.dataset(uri)
        meta = ["_rowid", "_rowaddr"]
        if latest.has_stable_row_ids:
            meta += ["_row_created_at_version", "_row_last_updated_at_version"]
        versions = []
        for ref in latest.versions():
            ds = lance.dataset(uri, version=ref["version"])
            versions.append(
                {
                    "version": ref["version"],
                    "rows": ds.count_rows(),
                    "expected": self.expected(ds.to_table()),
                    "rowmeta": self.expected(ds.to_table(columns=meta)),
                    "schema": str(ds.schema),
                }
            )
        rows = latest.count_rows()
        picks = [[0], [rows - 1], [rows // 2, 0, rows // 3, 0]] if rows else []
        facts = {
            "id": name,
            "latest": latest.version,
            "stable_row_ids": latest.has_stable_row_ids,
            "versions": versions,
            "tags": {tag: body["version"] for tag, body in latest.tags.list().items()},
            "config": latest.config(),
            "takes": [{"indices": p, "expected": self.expected(latest.take(p))} for p in picks],
            "filters": [
                {"filter": text, "keys": latest.to_table(columns=["k"], filter=text)["k"].to_pylist()}
                for text in FILTERS
                if rows < 1000
            ],
        }
        (self.root / "facts" / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
        self.entries.append(
            {
                "id": name,
                "path": f"tables/{name}",
                "storage_version": storage_version,
                "features": features,
                "facts": f"facts/{name}.json",
            }
        )


def main() -> int:
    golden = Golden(HERE)
    for family, build in type_columns().items():
        for rows in (0, 1, ROWS) if family in ("string", "int32", "list", "struct") else (ROWS,):
            name = f"type-{family}-{rows}-2.0"
            lance.write_dataset(keyed(build(rows)), str(HERE / "tables" / name), data_storage_version="2.0")
            golden.record(name, ["types", family], "2.0")
    for history, (features, make) in histories().items():
        name = f"{history}-2.0"
        make(str(HERE / "tables" / name), "2.0")
        golden.record(name, features, "2.0")
    for version in ("0.1", "2.1", "2.2"):
        name = f"append-{version}"
        histories()["append"][1](str(HERE / "tables" / name), version)
        golden.record(name, ["append"], version)
    index = {"writer": f"pylance {lance.__version__}", "entries": golden.entries}
    (HERE / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    size = sum(path.stat().st_size for path in HERE.rglob("*") if path.is_file())
    print(f"{len(golden.entries)} tables by {index['writer']}, {size / 1e6:.1f} MB in {HERE.name}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
