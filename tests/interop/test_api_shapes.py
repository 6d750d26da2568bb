"""The same call on both libraries: results of the same shape, or errors that the same `except` clause catches.

The shape of a result consists of its type, keys and the types of its items, of schema and rows for Arrow data, and of
plain values as they are. Each call uses its own copy of a table written by pylance.
"""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lancetable

TABLE = pa.table(
    {
        "id": pa.array(range(20), pa.int64()),
        "s": pa.array([None if i % 5 == 0 else f"v{i}" for i in range(20)]),
        "p": pa.array([{"x": i / 4, "y": f"y{i}"} for i in range(20)]),
        "l": pa.array([list(range(i % 3)) for i in range(20)], pa.list_(pa.int32())),
        "a b": pa.array(range(20), pa.int8()),
    }
)
MORE = TABLE.slice(0, 3)

Call = Callable[[Any, Any, Path], Any]


def reader_of(table: pa.Table) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches())


# `lib` is the module, `ds` the table at version 3 (created, appended to, deleted from), `tmp` an empty directory.
CALLS: dict[str, Call] = {
    # opening
    "dataset": lambda lib, ds, tmp: lib.dataset(ds.uri),
    "dataset of a Path": lambda lib, ds, tmp: lib.dataset(Path(ds.uri)).version,
    "dataset of file://": lambda lib, ds, tmp: lib.dataset(f"file://{ds.uri}").version,
    "dataset with a slash": lambda lib, ds, tmp: lib.dataset(f"{ds.uri}/").version,
    "dataset version": lambda lib, ds, tmp: lib.dataset(ds.uri, version=1).version,
    "dataset tag": lambda lib, ds, tmp: lib.dataset(ds.uri, version="t").version,
    "dataset version numpy": lambda lib, ds, tmp: lib.dataset(ds.uri, version=np.int64(1)).version,
    "dataset version 0": lambda lib, ds, tmp: lib.dataset(ds.uri, version=0),
    "dataset version 9": lambda lib, ds, tmp: lib.dataset(ds.uri, version=9),
    "dataset version huge": lambda lib, ds, tmp: lib.dataset(ds.uri, version=2**64),
    "dataset version main": lambda lib, ds, tmp: lib.dataset(ds.uri, version="main"),
    "dataset version text number": lambda lib, ds, tmp: lib.dataset(ds.uri, version="1"),
    "dataset version bool": lambda lib, ds, tmp: lib.dataset(ds.uri, version=True).version,
    "dataset asof now": lambda lib, ds, tmp: lib.dataset(ds.uri, asof=datetime.now() + timedelta(days=1)).version,
    "dataset asof text": lambda lib, ds, tmp: lib.dataset(ds.uri, asof="2999-01-01").version,
    "dataset asof early": lambda lib, ds, tmp: lib.dataset(ds.uri, asof="2001-01-01"),
    "dataset missing": lambda lib, ds, tmp: lib.dataset(tmp / "no"),
    "dataset of a file": lambda lib, ds, tmp: lib.dataset(write_text(tmp / "f")),
    "dataset scan options": lambda lib, ds, tmp: lib.dataset(ds.uri, default_scan_options={"with_row_id": True}).schema,
    "dataset session": lambda lib, ds, tmp: (
        lib.dataset(ds.uri, session=ds.session()).session().is_same_as(ds.session())
    ),
    "dataset unknown keyword": lambda lib, ds, tmp: lib.dataset(ds.uri, nope=1),
    "checkout": lambda lib, ds, tmp: ds.checkout_version(1),
    "checkout tag": lambda lib, ds, tmp: ds.checkout_version("t").version,
    "checkout tuple": lambda lib, ds, tmp: ds.checkout_version((None, 2)).version,
    "checkout main": lambda lib, ds, tmp: ds.checkout_version(("main", 2)).version,
    "checkout newest": lambda lib, ds, tmp: ds.checkout_version((None, None)).version,
    "checkout missing": lambda lib, ds, tmp: ds.checkout_version(77),
    "checkout unknown": lambda lib, ds, tmp: ds.checkout_version("nope"),
    "checkout negative": lambda lib, ds, tmp: ds.checkout_version(-1),
    "checkout latest": lambda lib, ds, tmp: ds.checkout_latest(),
    "pickle": lambda lib, ds, tmp: pickle.loads(pickle.dumps(ds)).to_table(),
    "copy": lambda lib, ds, tmp: copy.copy(ds).version,
    # state
    "uri": lambda lib, ds, tmp: ds.uri,
    "version": lambda lib, ds, tmp: (ds.version, ds.latest_version),
    "versions": lambda lib, ds, tmp: ds.versions(),
    "version_refs": lambda lib, ds, tmp: ds.version_refs(),
    "get_version": lambda lib, ds, tmp: ds.get_version(),
    "schema": lambda lib, ds, tmp: ds.schema,
    "lance_schema": lambda lib, ds, tmp: ds.lance_schema,
    "lance fields": lambda lib, ds, tmp: [(f.name(), f.id(), f.to_arrow()) for f in ds.lance_schema.fields()],
    "lance field": lambda lib, ds, tmp: ds.lance_schema.field("p.x").name(),
    "lance field missing": lambda lib, ds, tmp: ds.lance_schema.field("nope"),
    "facts": lambda lib, ds, tmp: (ds.max_field_id, ds.data_storage_version, ds.has_index, ds.has_stable_row_ids),
    "metadata": lambda lib, ds, tmp: (ds.metadata, ds.schema_metadata, ds.config(), ds.base_paths()),
    "storage options": lambda lib, ds, tmp: (ds.initial_storage_options, ds.latest_storage_options()),
    "len": lambda lib, ds, tmp: len(ds),
    "transaction": lambda lib, ds, tmp: ds.read_transaction(1),
    "transaction of nothing": lambda lib, ds, tmp: ds.read_transaction(99),
    "transactions": lambda lib, ds, tmp: [type(each.operation).__name__ for each in ds.get_transactions(2)],
    "stats": lambda lib, ds, tmp: ds.stats.dataset_stats(),
    "data stats": lambda lib, ds, tmp: [(f.id, f.bytes_on_disk) for f in ds.stats.data_stats().fields],
    "fragment ids": lambda lib, ds, tmp: list(ds.fragment_ids()),
    "validate": lambda lib, ds, tmp: ds.validate(),
    "all_files": lambda lib, ds, tmp: ds.all_files().schema,
    "io": lambda lib, ds, tmp: type(ds.io_stats_snapshot()).__name__,
    "partition": lambda lib, ds, tmp: ds.partition_expression,
    "join": lambda lib, ds, tmp: ds.join(ds, "id"),
    # tags
    "tag list": lambda lib, ds, tmp: ds.tags.list(),
    "tag ordered": lambda lib, ds, tmp: ds.tags.list_ordered(),
    "tag ordered badly": lambda lib, ds, tmp: ds.tags.list_ordered("nope"),
    "tag version": lambda lib, ds, tmp: ds.tags.get_version("t"),
    "tag create": lambda lib, ds, tmp: ds.tags.create("u", 1),
    "tag create here": lambda lib, ds, tmp: (ds.tags.create("u"), ds.tags.get_version("u")),
    "tag create of tag": lambda lib, ds, tmp: (ds.tags.create("u", "t"), ds.tags.get_version("u")),
    "tag create twice": lambda lib, ds, tmp: ds.tags.create("t", 1),
    "tag create badly": lambda lib, ds, tmp: ds.tags.create("a b", 1),
    "tag create empty": lambda lib, ds, tmp: ds.tags.create("", 1),
    "tag create nowhere": lambda lib, ds, tmp: ds.tags.create("u", 99),
    "tag create dots": lambda lib, ds, tmp: ds.tags.create("a..b", 1),
    "tag create lock": lambda lib, ds, tmp: ds.tags.create("a.lock", 1),
    "tag create slash": lambda lib, ds, tmp: ds.tags.create("a/b", 1),
    "tag update": lambda lib, ds, tmp: ds.tags.update("t", 2),
    "tag update missing": lambda lib, ds, tmp: ds.tags.update("nope", 2),
    "tag delete": lambda lib, ds, tmp: ds.tags.delete("t"),
    "tag delete missing": lambda lib, ds, tmp: ds.tags.delete("nope"),
    "tag get missing": lambda lib, ds, tmp: ds.tags.get_version("nope"),
    "tag metadata": lambda lib, ds, tmp: (ds.tags.replace_metadata("t", {"k": "v"}), ds.tags.list()["t"]["metadata"]),
    # reading
    "to_table": lambda lib, ds, tmp: ds.to_table(),
    "to_table positional": lambda lib, ds, tmp: ds.to_table(["id"], "id > 3", 5, 2),
    "to_table columns none": lambda lib, ds, tmp: ds.to_table(columns=[]),
    "to_table columns none, ids": lambda lib, ds, tmp: ds.to_table(columns=[], with_row_id=True),
    "to_table dict": lambda lib, ds, tmp: ds.to_table(columns={"x": "id + 1", "y": "p.x"}),
    "to_table dict empty": lambda lib, ds, tmp: ds.to_table(columns={}, with_row_id=True),
    "to_table tuple": lambda lib, ds, tmp: ds.to_table(columns=("id", "s")),
    "to_table pairs": lambda lib, ds, tmp: ds.to_table(columns=[("x", "id + 1")]),
    "to_table star": lambda lib, ds, tmp: ds.to_table(columns=["*"]),
    "to_table text": lambda lib, ds, tmp: ds.to_table(columns="id"),
    "to_table quoted": lambda lib, ds, tmp: ds.to_table(columns=["`a b`"]),
    "to_table blank": lambda lib, ds, tmp: ds.to_table(columns=["a b"]),
    "to_table case": lambda lib, ds, tmp: ds.to_table(columns=["ID"]),
    "to_table nested": lambda lib, ds, tmp: ds.to_table(columns=["p.y", "p.x", "id"]),
    "to_table parent and child": lambda lib, ds, tmp: ds.to_table(columns=["p", "p.x"]),
    "to_table virtual": lambda lib, ds, tmp: ds.to_table(columns=["_rowid", "id", "_rowaddr", "_rowoffset"]),
    "to_table virtual twice": lambda lib, ds, tmp: ds.to_table(columns=["_rowid", "id"], with_row_id=True),
    "to_table virtual versions": lambda lib, ds, tmp: ds.to_table(columns=["id", "_row_created_at_version"]),
    "to_table unknown": lambda lib, ds, tmp: ds.to_table(columns=["nope"]),
    "to_table unknown nested": lambda lib, ds, tmp: ds.to_table(columns=["p.nope"]),
    "to_table twice": lambda lib, ds, tmp: ds.to_table(columns=["id", "id"]),
    "to_table ids": lambda lib, ds, tmp: ds.to_table(with_row_id=True, with_row_address=True).schema,
    "to_table filter": lambda lib, ds, tmp: ds.to_table(filter="id > 3 AND s IS NOT NULL"),
    "to_table filter empty": lambda lib, ds, tmp: ds.to_table(filter=""),
    "to_table filter expression": lambda lib, ds, tmp: ds.to_table(filter=pc.field("id") > 3),
    "to_table filter false": lambda lib, ds, tmp: ds.to_table(filter="id < 0"),
    "to_table filter unknown": lambda lib, ds, tmp: ds.to_table(filter="nope = 1"),
    "to_table filter syntax": lambda lib, ds, tmp: ds.to_table(filter="id >"),
    "to_table filter no boolean": lambda lib, ds, tmp: ds.to_table(filter="id"),
    "to_table filter types": lambda lib, ds, tmp: ds.to_table(filter="id = 'x'"),
    "to_table filter division": lambda lib, ds, tmp: ds.to_table(filter="id / 0 = 1"),
    "to_table limit": lambda lib, ds, tmp: ds.to_table(limit=3).num_rows,
    "to_table limit 0": lambda lib, ds, tmp: ds.to_table(limit=0),
    "to_table limit -1": lambda lib, ds, tmp: ds.to_table(limit=-1),
    "to_table limit float": lambda lib, ds, tmp: ds.to_table(limit=1.5),
    "to_table limit text": lambda lib, ds, tmp: ds.to_table(limit="3"),
    "to_table limit huge": lambda lib, ds, tmp: ds.to_table(limit=2**63),
    "to_table limit numpy": lambda lib, ds, tmp: ds.to_table(limit=np.int64(3)).num_rows,
    "to_table offset": lambda lib, ds, tmp: ds.to_table(offset=15),
    "to_table offset beyond": lambda lib, ds, tmp: ds.to_table(offset=100),
    "to_table offset -1": lambda lib, ds, tmp: ds.to_table(offset=-1),
    "to_table batch_size 0": lambda lib, ds, tmp: ds.to_table(batch_size=0),
    "to_table batch_size -1": lambda lib, ds, tmp: ds.to_table(batch_size=-1),
    "to_table order": lambda lib, ds, tmp: ds.to_table(order_by=["s", "id"]),
    "to_table order object": lambda lib, ds, tmp: ds.to_table(
        order_by=[import_module(f"{lib.__name__}.dataset").ColumnOrdering("id", ascending=False)]
    ),
    "to_table order unknown": lambda lib, ds, tmp: ds.to_table(order_by=["nope"]),
    "to_table order limit": lambda lib, ds, tmp: ds.to_table(order_by=["id"], limit=4, offset=1),
    "to_table deleted": lambda lib, ds, tmp: ds.to_table(with_row_id=True, include_deleted_rows=True),
    "to_table deleted without ids": lambda lib, ds, tmp: ds.to_table(include_deleted_rows=True),
    "to_table unknown keyword": lambda lib, ds, tmp: ds.to_table(nope=1),
    "to_batches": lambda lib, ds, tmp: list(ds.to_batches(batch_size=1000)),
    "to_batches type": lambda lib, ds, tmp: hasattr(ds.to_batches(), "__next__"),
    "to_batches strict": lambda lib, ds, tmp: [b.num_rows for b in ds.to_batches(batch_size=7, strict_batch_size=True)],
    "to_batches empty": lambda lib, ds, tmp: list(ds.to_batches(filter="id < 0")),
    "to_pandas": lambda lib, ds, tmp: ds.to_pandas(),
    "to_pandas args": lambda lib, ds, tmp: ds.to_pandas(columns=["id"], filter="id > 3", split_blocks=True),
    "head": lambda lib, ds, tmp: ds.head(3),
    "head 0": lambda lib, ds, tmp: ds.head(0),
    "head many": lambda lib, ds, tmp: ds.head(100).num_rows,
    "head negative": lambda lib, ds, tmp: ds.head(-1),
    "head columns": lambda lib, ds, tmp: ds.head(2, columns=["id"]),
    "count": lambda lib, ds, tmp: ds.count_rows(),
    "count filter": lambda lib, ds, tmp: ds.count_rows("id > 3"),
    "count expression": lambda lib, ds, tmp: ds.count_rows(pc.field("id") > 3),
    "count keyword": lambda lib, ds, tmp: ds.count_rows(filter="id > 3"),
    "count bad": lambda lib, ds, tmp: ds.count_rows("nope = 1"),
    "count number": lambda lib, ds, tmp: ds.count_rows(5),
    "slice": lambda lib, ds, tmp: ds.slice(2, 5),
    "slice beyond": lambda lib, ds, tmp: ds.slice(15, 100).num_rows,
    "slice empty": lambda lib, ds, tmp: ds.slice(5, 5),
    "slice backwards": lambda lib, ds, tmp: ds.slice(5, 2),
    "slice negative": lambda lib, ds, tmp: ds.slice(-3, 2),
    "take": lambda lib, ds, tmp: ds.take([5, 1, 1]),
    "take array": lambda lib, ds, tmp: ds.take(pa.array([1, 2])),
    "take numpy": lambda lib, ds, tmp: ds.take(np.array([1, 2])),
    "take numpy unsigned": lambda lib, ds, tmp: ds.take(np.array([1, 2], np.uint64)),
    "take chunked": lambda lib, ds, tmp: ds.take(pa.chunked_array([[1], [2]])),
    "take series": lambda lib, ds, tmp: ds.take(pd.Series([1, 2])),
    "take range": lambda lib, ds, tmp: ds.take(range(3)),
    "take tuple": lambda lib, ds, tmp: ds.take((1, 2)),
    "take set": lambda lib, ds, tmp: ds.take({1, 2}),
    "take empty": lambda lib, ds, tmp: ds.take([]),
    "take number": lambda lib, ds, tmp: ds.take(3),
    "take text": lambda lib, ds, tmp: ds.take(["1"]),
    "take float": lambda lib, ds, tmp: ds.take([1.5]),
    "take null": lambda lib, ds, tmp: ds.take([None]),
    "take beyond": lambda lib, ds, tmp: ds.take([100]),
    "take negative": lambda lib, ds, tmp: ds.take([-1]),
    "take columns": lambda lib, ds, tmp: ds.take([1], columns=["p.x", "id"]),
    "take dict": lambda lib, ds, tmp: ds.take([1], columns={"z": "id + 1"}),
    "take no columns": lambda lib, ds, tmp: ds.take([1, 2], columns=[]),
    "take virtual": lambda lib, ds, tmp: ds.take([1, 2], columns=["_rowid", "s", "_rowaddr"]),
    "take rows": lambda lib, ds, tmp: ds._take_rows([1, 2, 9]),
    "take rows empty": lambda lib, ds, tmp: ds._take_rows([]),
    "take rows unknown": lambda lib, ds, tmp: ds._take_rows([10**6]),
    "sample": lambda lib, ds, tmp: ds.sample(4).schema,
    "sample all": lambda lib, ds, tmp: ds.sample(ds.count_rows()).num_rows,
    "sample many": lambda lib, ds, tmp: ds.sample(1000),
    "sample ordered": lambda lib, ds, tmp: ds.sample(4, columns=["id"], randomize_order=False).schema,
    "filter": lambda lib, ds, tmp: ds.filter(pc.field("id") > 3).to_table(),
    "c stream": lambda lib, ds, tmp: pa.table(ds),
    # scanner
    "scanner": lambda lib, ds, tmp: ds.scanner(columns=["id"]).to_table(),
    "scanner lazy": lambda lib, ds, tmp: type(ds.scanner(filter="nope = 1")).__name__,
    "scanner reader": lambda lib, ds, tmp: ds.scanner().to_reader().read_all(),
    "scanner batches": lambda lib, ds, tmp: list(ds.scanner(batch_size=1000).to_batches()),
    "scanner count": lambda lib, ds, tmp: ds.scanner(filter="id > 3").count_rows(),
    "scanner count limit": lambda lib, ds, tmp: ds.scanner(limit=3).count_rows(),
    "scanner head": lambda lib, ds, tmp: ds.scanner().head(2),
    "scanner schemas": lambda lib, ds, tmp: (ds.scanner(["p.x"]).projected_schema, ds.scanner(["id"]).dataset_schema),
    "scanner plan": lambda lib, ds, tmp: type(ds.scanner(filter="id > 3").explain_plan()),
    "scanner analysis": lambda lib, ds, tmp: type(ds.scanner(filter="id > 3").analyze_plan()),
    "scanner fragments": lambda lib, ds, tmp: ds.scanner(fragments=[ds.get_fragment(1)]).to_table(),
    "scanner no fragments": lambda lib, ds, tmp: ds.scanner(fragments=[]).to_table(),
    "scanner fragments, numbers": lambda lib, ds, tmp: ds.scanner(fragments=[0]).to_table(),
    "scanner take": lambda lib, ds, tmp: ds.scanner().take([1]),
    "scanner pandas": lambda lib, ds, tmp: ds.scanner(["id"]).to_pandas(),
    "scanner nothing": lambda lib, ds, tmp: ds.scanner(columns=[]).to_table(),
    # fragments
    "fragments": lambda lib, ds, tmp: ds.get_fragments(),
    "fragment": lambda lib, ds, tmp: ds.get_fragment(0),
    "fragment missing": lambda lib, ds, tmp: ds.get_fragment(9),
    "fragment negative": lambda lib, ds, tmp: ds.get_fragment(-1),
    "fragment facts": lambda lib, ds, tmp: [
        (f.fragment_id, f.num_deletions, f.physical_rows, f.count_rows()) for f in ds.get_fragments()
    ],
    "fragment metadata": lambda lib, ds, tmp: ds.get_fragment(0).metadata.to_json(),
    "fragment metadata pickled": lambda lib, ds, tmp: pickle.loads(pickle.dumps(ds.get_fragment(0).metadata)).to_json(),
    "fragment metadata json": lambda lib, ds, tmp: (
        lib.FragmentMetadata.from_json(json.dumps(ds.get_fragment(0).metadata.to_json())) == ds.get_fragment(0).metadata
    ),
    "fragment metadata repr": lambda lib, ds, tmp: repr(ds.get_fragment(0).metadata),
    "fragment rows": lambda lib, ds, tmp: (
        ds.get_fragment(0).metadata.num_rows,
        ds.get_fragment(0).metadata.num_deletions,
    ),
    "fragment table": lambda lib, ds, tmp: ds.get_fragment(0).to_table(
        columns=["id"], filter="id > 3", with_row_id=True
    ),
    "fragment batches": lambda lib, ds, tmp: list(ds.get_fragment(0).to_batches(columns=["id"])),
    "fragment pandas": lambda lib, ds, tmp: ds.get_fragment(0).to_pandas(columns=["id"]),
    "fragment count": lambda lib, ds, tmp: ds.get_fragment(0).count_rows("id > 3"),
    "fragment count bad": lambda lib, ds, tmp: ds.get_fragment(0).count_rows("nope = 1"),
    "fragment head": lambda lib, ds, tmp: ds.get_fragment(0).head(2),
    "fragment take": lambda lib, ds, tmp: ds.get_fragment(0).take([0, 2]),
    "fragment take columns": lambda lib, ds, tmp: ds.get_fragment(0).take([0, 2], columns=["id"]),
    "fragment take beyond": lambda lib, ds, tmp: ds.get_fragment(0).take([100]),
    "fragment take empty": lambda lib, ds, tmp: ds.get_fragment(0).take([]),
    "fragment schema": lambda lib, ds, tmp: ds.get_fragment(0).schema,
    "fragment files": lambda lib, ds, tmp: [
        (str(f.path), f.field_ids(), f.file_major_version) for f in ds.get_fragment(0).data_files()
    ],
    "fragment deletion file": lambda lib, ds, tmp: [f.deletion_file() for f in ds.get_fragments()],
    "fragment deletion": lambda lib, ds, tmp: ds.get_fragment(0).metadata.deletion_file.asdict(),
    "fragment validate": lambda lib, ds, tmp: ds.get_fragment(0).validate(),
    "fragment delete": lambda lib, ds, tmp: ds.get_fragment(1).delete("id = 8").num_deletions,
    "fragment delete all": lambda lib, ds, tmp: ds.get_fragment(1).delete("true"),
    "fragment delete none": lambda lib, ds, tmp: ds.get_fragment(1).delete("id = 999").deletion_file,
    "fragment delete bad": lambda lib, ds, tmp: ds.get_fragment(1).delete("nope = 1"),
    "fragment delete_rows": lambda lib, ds, tmp: ds.get_fragment(1).delete_rows([0, 2]).num_deletions,
    "fragment delete_rows beyond": lambda lib, ds, tmp: ds.get_fragment(1).delete_rows([1000]),
    "fragment session": lambda lib, ds, tmp: ds.get_fragment(0).open_session(["id"]).take([0, 1]),
    # writing
    "write": lambda lib, ds, tmp: lib.write_dataset(TABLE, tmp / "n"),
    "write dict": lambda lib, ds, tmp: lib.write_dataset({"a": [1, 2]}, tmp / "n").to_table(),
    "write rows": lambda lib, ds, tmp: lib.write_dataset([{"a": 1}], tmp / "n").to_table(),
    "write batch": lambda lib, ds, tmp: lib.write_dataset(TABLE.to_batches()[0], tmp / "n").count_rows(),
    "write batches": lambda lib, ds, tmp: lib.write_dataset(TABLE.to_batches(), tmp / "n", TABLE.schema).count_rows(),
    "write batches without schema": lambda lib, ds, tmp: lib.write_dataset(TABLE.to_batches(), tmp / "n").count_rows(),
    "write iterator": lambda lib, ds, tmp: lib.write_dataset(iter(TABLE.to_batches()), tmp / "n", TABLE.schema).version,
    "write reader": lambda lib, ds, tmp: lib.write_dataset(reader_of(TABLE), tmp / "n").count_rows(),
    "write pandas": lambda lib, ds, tmp: lib.write_dataset(TABLE.select(["id", "s"]).to_pandas(), tmp / "n").schema,
    "write dataset": lambda lib, ds, tmp: lib.write_dataset(ds, tmp / "n").count_rows(),
    "write scanner": lambda lib, ds, tmp: lib.write_dataset(ds.scanner(["id"]), tmp / "n").to_table(),
    "write number": lambda lib, ds, tmp: lib.write_dataset(3, tmp / "n"),
    "write none": lambda lib, ds, tmp: lib.write_dataset(None, tmp / "n"),
    "write empty": lambda lib, ds, tmp: lib.write_dataset(TABLE.slice(0, 0), tmp / "n").count_rows(),
    "write no columns": lambda lib, ds, tmp: lib.write_dataset(pa.table({}), tmp / "n"),
    "write cast": lambda lib, ds, tmp: (
        lib.write_dataset(
            pa.table({"a": pa.array([1], pa.int32())}), tmp / "n", schema=pa.schema([("a", pa.int64())])
        ).schema
    ),
    "write twice": lambda lib, ds, tmp: lib.write_dataset(MORE, ds.uri),
    "write mode": lambda lib, ds, tmp: lib.write_dataset(MORE, ds.uri, mode="nope"),
    "append": lambda lib, ds, tmp: lib.write_dataset(MORE, ds.uri, mode="append").count_rows(),
    "append to ds": lambda lib, ds, tmp: lib.write_dataset(MORE, ds, mode="append").version,
    "append subset": lambda lib, ds, tmp: lib.write_dataset(MORE.select(["s", "id"]), ds.uri, mode="append").to_table(
        ["id", "s", "a b"]
    ),
    "append extra": lambda lib, ds, tmp: ds.insert(MORE.append_column("z", [[1, 2, 3]])),
    "append type": lambda lib, ds, tmp: ds.insert(pa.table({"id": pa.array([1], pa.int32())})),
    "append empty": lambda lib, ds, tmp: (ds.insert(MORE.slice(0, 0)), ds.version),
    "append no columns": lambda lib, ds, tmp: ds.insert(pa.table({})),
    "append other case": lambda lib, ds, tmp: ds.insert(pa.table({"ID": [1]})),
    "append reserved": lambda lib, ds, tmp: ds.insert(pa.table({"_rowid": [1]})),
    "overwrite": lambda lib, ds, tmp: lib.write_dataset({"q": [1]}, ds.uri, mode="overwrite").to_table(),
    "overwrite missing": lambda lib, ds, tmp: lib.write_dataset({"q": [1]}, tmp / "n", mode="overwrite").version,
    "insert": lambda lib, ds, tmp: ds.insert(MORE),
    "insert moves": lambda lib, ds, tmp: (ds.insert(MORE), ds.version, ds.count_rows()),
    "delete": lambda lib, ds, tmp: ds.delete("id = 8"),
    "delete nothing": lambda lib, ds, tmp: (ds.delete("id = 999"), ds.version),
    "delete all": lambda lib, ds, tmp: (ds.delete("true"), ds.count_rows(), len(ds.get_fragments())),
    "delete expression": lambda lib, ds, tmp: ds.delete(pc.field("id") > 8),
    "delete bad": lambda lib, ds, tmp: ds.delete("nope = 1"),
    "delete none": lambda lib, ds, tmp: ds.delete(None),
    "delete bool": lambda lib, ds, tmp: ds.delete(True),
    "delete no boolean": lambda lib, ds, tmp: ds.delete("id"),
    "delete retries": lambda lib, ds, tmp: ds.delete("id = 8", conflict_retries=0),
    "delete retries -1": lambda lib, ds, tmp: ds.delete("id = 8", conflict_retries=-1),
    "truncate": lambda lib, ds, tmp: (ds.truncate_table(), ds.count_rows(), ds.version),
    "restore": lambda lib, ds, tmp: ds.checkout_version(1).restore(),
    "restore newest": lambda lib, ds, tmp: (ds.restore(), ds.version),
    "names with dots": lambda lib, ds, tmp: lib.write_dataset({"a.b": [1]}, tmp / "n"),
    "names reserved": lambda lib, ds, tmp: lib.write_dataset({"_rowid": [1]}, tmp / "n"),
    "names empty": lambda lib, ds, tmp: lib.write_dataset(pa.table([[1]], [""]), tmp / "n").schema,
    "names twice": lambda lib, ds, tmp: lib.write_dataset(pa.table([[1], [2]], ["a", "a"]), tmp / "n"),
    "names by case": lambda lib, ds, tmp: lib.write_dataset({"a": [1], "A": [2]}, tmp / "n").to_table(),
    "storage version": lambda lib, ds, tmp: lib.write_dataset(MORE, tmp / "n", data_storage_version="9.9"),
    "rows per file 0": lambda lib, ds, tmp: lib.write_dataset(MORE, tmp / "n", max_rows_per_file=0),
    "properties": lambda lib, ds, tmp: (
        lib.write_dataset(MORE, tmp / "n", commit_message="m", transaction_properties={"k": "v"})
        .read_transaction(1)
        .transaction_properties
    ),
    "write_fragments": lambda lib, ds, tmp: [f.num_rows for f in lib.fragment.write_fragments(MORE, ds)],
    "write_fragments transaction": lambda lib, ds, tmp: lib.fragment.write_fragments(MORE, ds, return_transaction=True),
    "fragment create": lambda lib, ds, tmp: lib.LanceFragment.create(ds.uri, MORE).num_rows,
    "commit": lambda lib, ds, tmp: lib.LanceDataset.commit(
        ds, lib.LanceOperation.Append(lib.fragment.write_fragments(MORE, ds)), read_version=3
    ).count_rows(),
    "commit transaction": lambda lib, ds, tmp: (
        lib.LanceDataset.commit(ds, lib.fragment.write_fragments(MORE, ds, return_transaction=True)).version
    ),
    "commit no version": lambda lib, ds, tmp: lib.LanceDataset.commit(ds.uri, lib.LanceOperation.Append([])),
    "commit bad version": lambda lib, ds, tmp: lib.LanceDataset.commit(ds.uri, lib.LanceOperation.Append([]), 99),
    "commit nothing": lambda lib, ds, tmp: lib.LanceDataset.commit(ds.uri, lib.LanceOperation.Append([]), 3).version,
    "commit no operation": lambda lib, ds, tmp: lib.LanceDataset.commit(ds.uri, "append", 3),
    "commit missing": lambda lib, ds, tmp: lib.LanceDataset.commit(tmp / "n", lib.LanceOperation.Append([]), 1),
    "commit overwrite": lambda lib, ds, tmp: lib.LanceDataset.commit(
        ds.uri, lib.LanceOperation.Overwrite(ds.schema, lib.fragment.write_fragments(MORE, ds)), 3
    ).to_table(),
    "commit creates": lambda lib, ds, tmp: lib.LanceDataset.commit(
        tmp / "n", lib.LanceOperation.Overwrite(MORE.schema, lib.fragment.write_fragments(MORE, tmp / "n"))
    ).to_table(),
    "commit restore": lambda lib, ds, tmp: lib.LanceDataset.commit(ds.uri, lib.LanceOperation.Restore(1), 3).version,
    "commit batch": lambda lib, ds, tmp: sorted(
        lib.LanceDataset.commit_batch(ds, [lib.fragment.write_fragments(MORE, ds, return_transaction=True)] * 1)
    ),
    "commit batch empty": lambda lib, ds, tmp: lib.LanceDataset.commit_batch(ds, []),
    "drop": lambda lib, ds, tmp: (lib.LanceDataset.drop(ds.uri), Path(ds.uri).exists()),
    "drop missing": lambda lib, ds, tmp: lib.LanceDataset.drop(tmp / "n"),
    "drop missing, ignored": lambda lib, ds, tmp: lib.LanceDataset.drop(tmp / "n", ignore_not_found=True),
    "drop no table": lambda lib, ds, tmp: lib.LanceDataset.drop(write_text(tmp / "d" / "f").parent),
    "schema json": lambda lib, ds, tmp: lib.schema_to_json(TABLE.schema),
    "schema json back": lambda lib, ds, tmp: lib.json_to_schema(lib.schema_to_json(TABLE.schema)),
}

# Intended differences: the call and the reason. Their results are not compared.
DIFFERENT = {
    "dataset version numpy": "NumPy integers are accepted",
    "dataset version bool": "booleans are refused",
    "dataset asof text": "dates are parsed without pandas",
    "partition": "the inherited property returns a value",
    "join": "works, but not for struct columns",
    "to_table tuple": "any sequence of names is accepted",
    "take no columns": "the requested number of rows without columns is returned",
    "filter": "the view can be read",
    "c stream": "supported",
    "scanner count limit": "supported",
    "write cast": "tables are cast to the given schema, not only streams",
    "append no columns": "rows without columns are refused",
}


def write_text(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("no table")
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shapes") / "t.lance"
    lance.write_dataset(TABLE.slice(0, 12), path, max_rows_per_file=6, data_storage_version="2.0")
    lance.write_dataset(TABLE.slice(12), path, mode="append")
    lance.dataset(path).delete("id IN (1, 4, 13)")
    lance.dataset(path).tags.create("t", 2)
    return path


def shape(value: Any, roots: Mapping[str, str]) -> Any:
    """Return the type, keys, schema and plain values of a result."""
    if isinstance(value, (pa.Table, pa.RecordBatch)):
        return type(value).__name__, value.schema, value.to_pylist()
    if isinstance(value, pd.DataFrame):
        return "DataFrame", value.dtypes.to_dict(), len(value)
    if isinstance(value, str):
        for root, name in roots.items():
            value = value.replace(root, name)
        return value
    if value is None or isinstance(value, (bool, int, float, bytes, type, pa.Schema, pa.DataType, pa.Field)):
        return value
    if isinstance(value, Mapping):
        return {key: shape(each, roots) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [shape(each, roots) for each in value]
    return type(value).__name__


def run(lib: Any, call: Call, original: Path, place: Path) -> tuple[Any, BaseException | None]:
    place.mkdir()
    shutil.copytree(original, place / "t.lance")
    (place / "empty").mkdir()
    try:
        result = call(lib, lib.dataset(str(place / "t.lance")), place / "empty")
        return shape(result, {str(place): "PLACE", str(place)[1:]: "PLACE"}), None
    except BaseException as error:
        return None, error


BUILT_IN = (ValueError, OSError, OverflowError, TypeError, NotImplementedError, IndexError, KeyError)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(CALLS))
def test_results_have_the_same_shape_or_errors_are_caught_alike(name: str, original: Path, tmp_path: Path) -> None:
    ours, our_error = run(lancetable, CALLS[name], original, tmp_path / "ours")
    theirs, their_error = run(lance, CALLS[name], original, tmp_path / "theirs")
    if name in DIFFERENT:
        assert repr((ours, our_error)) != repr((theirs, their_error)), f"{name} is the same now"
        return
    if their_error is None:
        assert our_error is None, f"pylance answers {theirs!r}" if our_error is None else repr(our_error)
        assert ours == theirs
    else:
        assert our_error is not None, f"pylance raises {their_error!r}, we answer {ours!r}"
        caught = [kind for kind in BUILT_IN if isinstance(their_error, kind)]
        assert isinstance(our_error, tuple(caught) or Exception), (their_error, our_error)
        assert isinstance(our_error, (lancetable.errors.LanceError, TypeError, NotImplementedError)), our_error
