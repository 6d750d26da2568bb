"""Calls of the API of indexes have the same outcome in both libraries: the same indexes, or exceptions of one class."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.query import DocumentGranularity

import lancetable
from lancetable.errors import InvalidInputError, UnsupportedTypeError

Call = Callable[[Any, Any], Any]  # library and dataset

SEGMENT = str(uuid.uuid4())
NUM_ROWS = 90
NEAREST: dict[str, Any] = {"column": "vec", "q": [0.1, 0.2], "k": 3}


def rows() -> pa.Table:
    ids = range(NUM_ROWS)
    vectors = np.random.default_rng(0).random(2 * NUM_ROWS, dtype=np.float32)
    return pa.table(
        {
            "i": ids,
            "Big": ids,
            "f": [i / 2 for i in ids],
            "s": [f"s{i % 7}" for i in ids],
            "l": [["a", "b"][: i % 3] for i in ids],
            "b": [i % 2 == 0 for i in ids],
            "day": pa.array(ids, pa.date32()),
            "dec": pa.array(list(ids), pa.decimal128(10, 2)),
            "fixed": pa.array([b"%04d" % i for i in ids], pa.binary(4)),
            "label": pa.array([f"s{i % 7}" for i in ids]).dictionary_encode(),
            "half": pa.array(np.arange(NUM_ROWS, dtype=np.float16)),
            "st": [{"x": i, "a b": str(i)} for i in ids],
            "vec": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 2),
        }
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "t.lance"
    lance.write_dataset(rows(), path, max_rows_per_file=30)
    return path


def state(path: Path) -> list[tuple[Any, ...]]:
    names = ("name", "index_type", "type_url", "fields", "field_names", "num_rows_indexed")
    return [
        (
            *(getattr(index, name) for name in names),
            [(sorted(part.fragment_ids), part.index_version) for part in index.segments],
        )
        for index in lancetable.dataset(str(path)).describe_indices()
    ]


def outcome(library: Any, call: Call, path: Path) -> Any:
    dataset = library.dataset(path)
    try:
        return call(library, dataset), state(path)
    except Exception as error:
        return error


def built(column: Any, kind: Any, *args: Any, **options: Any) -> Call:
    return lambda library, ds: ds.create_scalar_index(column, kind, *args, **options)


def configured(kind: str, parameters: dict[str, Any]) -> Call:
    def call(library: Any, ds: Any) -> Any:
        ds.create_scalar_index("i", library.indices.IndexConfig(kind, parameters))
        return ds.stats.index_stats("i_idx")["segments"]

    return call


def in_turn(*calls: Call) -> Call:
    """Make several calls; the result is that of the last one."""
    return lambda library, ds: [call(library, ds) for call in calls][-1]


def on_index(call: Callable[[Any], Any]) -> Call:
    """Call a function of a dataset whose column "i" has an index."""
    return in_turn(built("i", "BTREE"), lambda library, ds: call(ds))


def optimized(**options: Any) -> Call:
    def call(library: Any, ds: Any) -> None:
        ds.create_scalar_index("i", "BTREE")
        ds.create_scalar_index("s", "BITMAP")
        ds.insert(rows())
        ds.optimize.optimize_indices(**options)

    return call


def uncommitted(column: str, kind: Any, *args: Any, **options: Any) -> Call:
    def call(library: Any, ds: Any) -> Any:
        part = ds.create_index_uncommitted(column, kind, *args, **options)
        return part.name, part.fields, part.dataset_version, sorted(part.fragment_ids), part.index_version

    return call


def parts(ds: Any, groups: Any = ([0], [1], [2]), column: str = "i", kind: str = "BTREE") -> list[Any]:
    return [ds.create_index_uncommitted(column, kind, "parts", fragment_ids=group) for group in groups]


def merged(make: Callable[[Any], Any]) -> Call:
    return lambda library, ds: sorted(ds.merge_existing_index_segments(make(ds)).fragment_ids)


def committed(name: str, column: str, make: Callable[[Any], Any]) -> Call:
    return lambda library, ds: ds.commit_existing_index_segments(name, column, make(ds)) is ds


def scanned(**options: Any) -> Call:
    return lambda library, ds: ds.scanner(columns=["i"], **options).to_table()["i"].to_pylist()


KINDS = ("BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "ZONEMAP", "BLOOMFILTER")
COLUMNS = (*rows().column_names, "big", "st.x", "st.`a b`", "absent", "st.absent", "_rowid", "l.item")
# Zone maps of these columns can be built by pylance, and the only answer that they could give is that of nulls.
ONLY_THEIRS = {("l", "ZONEMAP"), ("st", "ZONEMAP"), ("label", "ZONEMAP"), ("vec", "ZONEMAP"), ("l.item", "LABEL_LIST")}

CALLS: dict[str, Call] = {
    **{f"{kind} of {name}": built(name, kind) for name in COLUMNS for kind in KINDS if (name, kind) not in ONLY_THEIRS},
    "list of one column": built(["i"], "BTREE"),
    "two columns": built(["i", "f"], "BTREE"),
    "column of a wrong type": built(3, "BTREE"),
    "kind in lower case": built("i", "btree"),
    "unknown kind": built("i", "TREE"),
    "vector kind": built("vec", "IVF_PQ"),
    "name": built("i", "BTREE", "a"),
    "empty name": built("i", "BTREE", ""),
    "again": in_turn(built("i", "BTREE"), built("i", "BTREE")),
    "again, not replaced": in_turn(built("i", "BTREE"), built("i", "BTREE", replace=False)),
    "second kind": in_turn(built("i", "BTREE"), built("i", "BITMAP", replace=False)),
    "second kind, same name": in_turn(built("i", "BTREE", "a"), built("i", "BITMAP", "a")),
    "name of another column": in_turn(built("i", "BTREE", "a"), built("f", "BTREE", "a")),
    "default name is taken": in_turn(built("i", "BTREE", "f_idx"), built("f", "BTREE")),
    "untrained": built("i", "BTREE", train=False),
    "fragments": built("i", "BTREE", fragment_ids=[0]),
    "uuid": built("i", "BTREE", index_uuid=SEGMENT),
    "malformed uuid": built("i", "BTREE", index_uuid="x"),
    "uuid of a wrong type": built("i", "BTREE", index_uuid=5),
    "granularity": built("i", "BTREE", document_granularity=DocumentGranularity.ROW),
    "callback is not a function": built("i", "BTREE", progress_callback=5),
    "pages": configured("btree", {"zone_size": 10}),
    "zones": configured("ZONEMAP", {"rows_per_zone": 7}),
    "zones without rows": configured("zonemap", {"rows_per_zone": 0}),
    "filters": configured("bloomfilter", {"number_of_items": 100, "probability": 0.01}),
    "filters without items": configured("bloomfilter", {"number_of_items": 0}),
    "filters with a probability of 2": configured("bloomfilter", {"probability": 2.0}),
    "kind in a config": configured("labellist", {}),
    "unknown kind in a config": configured("tree", {}),
    "drop": on_index(lambda ds: ds.drop_index("i_idx")),
    "drop an absent one": on_index(lambda ds: ds.drop_index("absent")),
    "has_index": on_index(lambda ds: ds.has_index),
    "no index": lambda library, ds: ds.has_index,
    "statistics of an absent one": on_index(lambda ds: ds.stats.index_stats("absent")),
    "prewarm": on_index(lambda ds: ds.prewarm_index("i_idx")),
    "prewarm an absent one": on_index(lambda ds: ds.prewarm_index("absent")),
    "prewarm positions": on_index(lambda ds: ds.prewarm_index("i_idx", with_position=True)),
    "prewarm no segment": on_index(lambda ds: ds.prewarm_index("i_idx", index_segments=[])),
    "prewarm an absent segment": on_index(lambda ds: ds.prewarm_index("i_idx", index_segments=[SEGMENT])),
    "prewarm a malformed uuid": on_index(lambda ds: ds.prewarm_index("i_idx", index_segments=["x"])),
    "prewarm one uuid": on_index(lambda ds: ds.prewarm_index("i_idx", index_segments=SEGMENT)),
    "prewarm a number": on_index(lambda ds: ds.prewarm_index("i_idx", index_segments=[5])),
    "optimize": optimized(),
    "optimize, new segment": optimized(num_indices_to_merge=0),
    "optimize, merge many": optimized(num_indices_to_merge=10),
    "optimize, merge -1": optimized(num_indices_to_merge=-1),
    "optimize, merge a string": optimized(num_indices_to_merge="1"),
    "optimize one": optimized(index_names=["i_idx"]),
    "optimize an absent one": optimized(index_names=["absent"]),
    "optimize none": optimized(index_names=[]),
    "optimize a string": optimized(index_names="i_idx"),
    "retrain": optimized(retrain=True),
    **{f"part of {kind}": uncommitted("s", kind, fragment_ids=[1, 0]) for kind in KINDS if kind != "LABEL_LIST"},
    "part without fragments": uncommitted("i", "BTREE"),
    "part of no fragment": uncommitted("i", "BTREE", fragment_ids=[]),
    "part of an unknown fragment": uncommitted("i", "BTREE", fragment_ids=[7]),
    "part with a uuid": uncommitted("i", "BTREE", fragment_ids=[0], index_uuid=SEGMENT),
    "part with an existing name": in_turn(built("i", "BTREE"), uncommitted("i", "BTREE", fragment_ids=[0])),
    "part that replaces": in_turn(built("i", "BTREE"), uncommitted("i", "BTREE", replace=True, fragment_ids=[0])),
    "untrained part": uncommitted("i", "BTREE", fragment_ids=[0], train=False),
    "part of an unknown column": uncommitted("absent", "BTREE", fragment_ids=[0]),
    "part with a callback": uncommitted("i", "BTREE", fragment_ids=[0], progress_callback=lambda event: None),
    "merge": merged(parts),
    "merge one": merged(lambda ds: parts(ds)[:1]),
    "merge none": merged(lambda ds: []),
    "merge the same fragment": merged(lambda ds: parts(ds, ([0], [0]))),
    "merge two kinds": merged(lambda ds: parts(ds)[:1] + parts(ds, kind="ZONEMAP")[1:]),
    "merge two columns": merged(lambda ds: parts(ds)[:1] + parts(ds, column="f")[1:]),
    "commit": committed("a", "i", parts),
    "commit none": committed("a", "i", lambda ds: []),
    "commit another column": committed("a", "f", parts),
    "commit the same fragment": committed("a", "i", lambda ds: parts(ds, ([0], [0]))),
    "commit two kinds": committed("a", "i", lambda ds: parts(ds)[:1] + parts(ds, kind="ZONEMAP")[1:]),
    "commit under the name of another column": in_turn(built("f", "BTREE", "a"), committed("a", "i", parts)),
    "commit over a part of an index": in_turn(
        built("i", "BTREE"), committed("i_idx", "i", lambda ds: parts(ds, ([0],)))
    ),
    "commit over an index": in_turn(
        built("i", "BTREE"), committed("i_idx", "i", lambda ds: parts(ds, ([0, 1, 2],), kind="ZONEMAP"))
    ),
    "merge_index_metadata": lambda library, ds: ds.merge_index_metadata(SEGMENT, "BTREE"),
    "merge_index_metadata of a bitmap": lambda library, ds: ds.merge_index_metadata(SEGMENT, "BITMAP"),
    "filter": on_index(lambda ds: ds.to_table(filter="i < 5", columns=["i"])["i"].to_pylist()),
    "filter, fast search": in_turn(built("i", "BTREE", train=False), scanned(filter="i < 5", fast_search=True)),
    "callback of statistics is not a function": scanned(filter="i < 5", scan_stats_callback=5),
    "no segment of a scan": scanned(index_segments=[]),
    "no segment of a search": scanned(nearest=NEAREST, index_segments=[]),
    "prefilter": scanned(nearest=NEAREST, filter="i > 40", prefilter=True),
    "postfilter": scanned(nearest=NEAREST, filter="i > 40"),
    "nprobes": scanned(nearest={**NEAREST, "minimum_nprobes": 0}),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_has_the_same_outcome_in_both_libraries(source: Path, tmp_path: Path, call: Call) -> None:
    results = []
    for library in (lance, lancetable):
        path = tmp_path / library.__name__
        shutil.copytree(source, path)
        results.append(outcome(library, call, path))
    theirs, ours = results
    if isinstance(theirs, Exception):
        assert isinstance(ours, type(theirs)), ours
    else:
        assert ours == theirs


def test_the_name_of_the_fragment_reuse_index_is_reserved(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "t")
    ds = lancetable.dataset(tmp_path / "t")
    with pytest.raises(InvalidInputError, match="'__lance_frag_reuse' is reserved"):
        ds.create_scalar_index("i", "BTREE", "__lance_frag_reuse")
    with pytest.raises(InvalidInputError, match="'__lance_frag_reuse' is reserved"):
        ds.commit_existing_index_segments("__lance_frag_reuse", "i", parts(ds))
    assert not ds.has_index


def test_zone_maps_of_types_that_are_not_supported_are_used_and_not_extended(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "t")
    theirs = lance.dataset(tmp_path / "t")
    columns = [column for column, kind in ONLY_THEIRS if kind == "ZONEMAP"]
    for column in columns:
        theirs.create_scalar_index(column, "ZONEMAP")
    theirs.create_scalar_index("i", "BTREE")
    ds = lancetable.dataset(tmp_path / "t")
    ds.insert(rows())
    ds.optimize.optimize_indices()
    covered = {index.field_names[0]: index.num_rows_indexed for index in ds.describe_indices()}
    assert covered == {**dict.fromkeys(columns, NUM_ROWS), "i": 2 * NUM_ROWS}
    for column in columns:
        assert "ScalarIndexQuery" in ds.scanner(filter=f"{column} is null").explain_plan()
        assert ds.count_rows(f"{column} is null") == 0
        with pytest.raises(UnsupportedTypeError, match="cannot have a ZONEMAP index"):
            ds.optimize.optimize_indices(index_names=[f"{column}_idx"])


def test_a_build_of_a_part_reports_its_progress(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "t")
    events: list[lancetable.progress.IndexProgress] = []
    ds = lancetable.dataset(tmp_path / "t")
    ds.create_index_uncommitted("i", "BTREE", fragment_ids=[0, 1], progress_callback=events.append)
    assert [(event.event, event.total) for event in (events[0], events[-1])] == [("start", 60), ("complete", 60)]
