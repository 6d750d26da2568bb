"""Dumps, logging, samples and the scope table."""

from __future__ import annotations

import logging
from collections import Counter
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lancetable as lance
from lancetable import debug, scope
from lancetable.errors import InvalidInputError, InvalidOperationError
from lancetable.sampler import (
    FullScanSampler,
    ShardedBatchSampler,
    ShardedFixedBatchSampler,
    ShardedFragmentSampler,
    maybe_sample,
    reservoir_sampling,
)

TABLE = pa.table({"id": pa.array(range(100)), "s": [f"v{i}" for i in range(100)]})


@pytest.fixture
def ds(tmp_path: Path) -> lance.LanceDataset:
    made = lance.write_dataset(TABLE, tmp_path / "t", max_rows_per_file=40)
    made.delete("id = 3")
    return made


def test_dumps_show_all_parts(ds: lance.LanceDataset) -> None:
    assert 'logical_type: LogicalType(\n                "int64",\n            ),' in debug.format_schema(ds)
    manifest = debug.format_manifest(ds)
    assert manifest.startswith("Manifest {") and "version: 2," in manifest and "file_type: Array" in manifest
    fragment = debug.format_fragment(ds.get_fragment(0).metadata, ds)
    assert "physical_rows: Some(\n        40,\n    )," in fragment and 'name: "s"' in fragment
    newest, first = debug.list_transactions(ds)
    assert 'predicate: "id = 3"' in newest and "Overwrite {" in first
    assert len(debug.list_transactions(ds, max_transactions=1)) == 1


def test_dumps_equal_those_of_pylance(tmp_path: Path) -> None:
    """All lines are equal, except parts of a manifest that pylance computes."""
    theirs = pytest.importorskip("lance", exc_type=ImportError)
    debug_of_theirs = pytest.importorskip("lance.debug", exc_type=ImportError)
    field = pa.field("id", pa.int64(), False, {"k": "v"})
    rows = pa.table([TABLE["id"], [{"a": 1}] * 100], schema=pa.schema([field, ("st", pa.struct([("a", pa.int8())]))]))
    made = theirs.write_dataset(rows, tmp_path / "t", max_rows_per_file=40, data_storage_version="2.1")
    made.delete("id = 3")
    made.update_config({"lance.a": "b"})
    ours = lance.dataset(made.uri)
    assert debug.format_schema(ours) == debug_of_theirs.format_schema(made)
    for number in (0, 1):
        one, other = (each.get_fragment(number).metadata for each in (ours, made))
        assert debug.format_fragment(one, ours) == debug_of_theirs.format_fragment(other, made)
    expected = Counter(debug_of_theirs.format_manifest(made).splitlines())
    assert not Counter(debug.format_manifest(ours).splitlines()) - expected


def test_show_versions_prints_installed_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert lance.show_versions() is None  # an interactive session would print a result once more
    text = capsys.readouterr().out
    assert f"pyarrow      {pa.__version__}" in text and "kernels" in text


def test_set_logger_writes_to_a_file_or_handler(tmp_path: Path) -> None:
    logger = logging.getLogger("lancetable.test")
    lance.set_logger(str(tmp_path / "out.log"), name="lancetable.test", format_string="%(levelname)s %(message)s")
    seen: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    lance.set_logger(name="lancetable.test", log_handler=Handler())
    try:
        logger.info("hello")
        assert (tmp_path / "out.log").read_text() == "INFO hello\n"
        assert [record.getMessage() for record in seen] == ["hello"]
    finally:
        for handler in list(logger.handlers):
            handler.close()
            logger.removeHandler(handler)


def test_maybe_sample(ds: lance.LanceDataset) -> None:
    batches = list(maybe_sample(ds, 20, "id", batch_size=8))
    assert [batch.num_rows for batch in batches] == [8, 8, 4]
    found = [value for batch in batches for value in batch["id"].to_pylist()]
    assert len(set(found)) == 20 and found == sorted(found) and 3 not in found
    few = [value for batch in maybe_sample(ds, 5, ["id"], filt="id < 10") for value in batch["id"].to_pylist()]
    assert len(set(few)) == 5 and set(few) <= set(range(10)) - {3}
    assert sum(batch.num_rows for batch in maybe_sample(ds.uri, 1000, ["id", "s"])) == 99


def test_a_sample_of_a_view_has_rows_of_the_view(ds: lance.LanceDataset) -> None:
    filtered = lance.dataset(ds.uri, default_scan_options={"filter": "id >= 90"})
    for table in (ds.filter(pc.field("id") >= 90), filtered):
        found = [value for batch in maybe_sample(table, 4, "id") for value in batch["id"].to_pylist()]
        assert len(set(found)) == 4 and min(found) >= 90
        assert sum(batch.num_rows for batch in maybe_sample(table, 100, "id")) == 10


def test_reservoir_sampling_is_fair() -> None:
    assert sorted(reservoir_sampling(range(3), 5)) == [0, 1, 2]
    assert reservoir_sampling(range(3), 0) == []
    counts = Counter(value for _ in range(2000) for value in reservoir_sampling(iter("abcd"), 2))
    assert sum(counts.values()) == 4000 and min(counts.values()) > 800


def test_scope_rejects_only_what_is_given() -> None:
    scope.reject("x", a=None, b=False, c=[], d={}, e=())
    for value in (True, 0, "", [1]):
        with pytest.raises(NotImplementedError, match="argument a"):
            scope.reject("x", a=value)


def test_show_versions_reports_kernels_and_extras(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:

    def shown() -> str:
        lance.show_versions()
        return capsys.readouterr().out

    monkeypatch.setattr(debug.kernels, "NATIVE", True)
    assert "kernels      compiled\n" in shown()
    monkeypatch.setattr(debug.kernels, "NATIVE", False)
    monkeypatch.setenv("LANCETABLE_KERNELS", "0")
    assert "NumPy (LANCETABLE_KERNELS=0)" in shown()
    monkeypatch.delenv("LANCETABLE_KERNELS")
    monkeypatch.setitem(debug.EXTRAS, "odd", ("numpy", "no-such-package"))
    text = shown()
    assert "NumPy (not built" in text and "extra odd         missing no-such-package" in text


@pytest.mark.parametrize("randomize", [False, True])
@pytest.mark.parametrize("kind", [ShardedFragmentSampler, ShardedBatchSampler])
@pytest.mark.parametrize("filter", [None, "id >= 10"])
def test_ranks_share_all_rows(
    ds: lance.LanceDataset, kind: type[ShardedBatchSampler], filter: str | None, randomize: bool
) -> None:
    wanted = ds.to_table(columns=["id"], filter=filter)["id"].to_pylist()
    seen: list[list[int]] = []
    for rank in range(3):
        sampler = kind(rank, 3, randomize, 7)
        sampler.set_epoch(2)
        batches = list(sampler(ds, batch_size=8, columns=["id"], filter=filter))
        assert all(batch.num_rows <= 8 for batch in batches)
        seen.append([value for batch in batches for value in batch["id"].to_pylist()])
    assert sorted(chain.from_iterable(seen)) == wanted
    if not randomize:
        assert all(each == sorted(each) for each in seen)


def test_samplers_in_order(ds: lance.LanceDataset) -> None:
    assert pa.Table.from_batches(FullScanSampler()(ds, batch_size=30)).equals(ds.to_table())
    sampler = ShardedBatchSampler(1, 2)
    with pytest.raises(InvalidOperationError):
        len(sampler)
    assert [batch["id"][0].as_py() for batch in sampler(ds, batch_size=30)] == [31, 91]
    assert len(sampler) == 2
    with pytest.raises(InvalidInputError, match="rank must be less than world_size 2"):
        ShardedFragmentSampler(2, 2)


def test_row_numbers_of_a_rank() -> None:
    stretches = [list(ShardedFixedBatchSampler(rank, 4, batch_size=100, total_num_rows=1002)) for rank in range(4)]
    assert [[(part[0], part[-1]) for part in each] for each in stretches][0::3] == [
        [(0, 99), (100, 199), (200, 250)],
        [(753, 852), (853, 952), (953, 1001)],
    ]
    assert list(chain.from_iterable(chain.from_iterable(stretches))) == list(range(1002))
    shuffled = ShardedFixedBatchSampler(0, 1, randomize=True, batch_size=10, total_num_rows=200)
    first = list(shuffled)
    shuffled.set_epoch(1)
    assert len(shuffled) == 20 and first != list(shuffled) and sorted(first) == sorted(shuffled)
    assert not list(ShardedFixedBatchSampler(3, 4, batch_size=10, total_num_rows=2))


@pytest.mark.parametrize(
    ("text", "level"),
    [(None, "INFO"), ("", "INFO"), ("debug", "DEBUG"), ("a=debug, warning,info", "WARNING"), ("trace", "DEBUG")],
)
def test_log_level_of_the_environment(monkeypatch: pytest.MonkeyPatch, text: str | None, level: str) -> None:
    if text is None:
        monkeypatch.delenv("LANCE_LOG", raising=False)
    else:
        monkeypatch.setenv("LANCE_LOG", text)
    assert lance.log.get_log_level() == level
    assert isinstance(logging.getLevelName(level), int)
