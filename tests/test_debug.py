"""Dumps, logging, samples and the scope table."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import lancetable as lance
from lancetable import debug, scope
from lancetable.sampler import maybe_sample, reservoir_sampling

TABLE = pa.table({"id": pa.array(range(100)), "s": [f"v{i}" for i in range(100)]})


@pytest.fixture
def ds(tmp_path: Path) -> lance.LanceDataset:
    made = lance.write_dataset(TABLE, tmp_path / "t", max_rows_per_file=40)
    made.delete("id = 3")
    return made


def test_dumps_show_what_is_there(ds: lance.LanceDataset) -> None:
    assert 'logical_type: "int64"' in debug.format_schema(ds)
    manifest = debug.format_manifest(ds)
    assert manifest.startswith("Manifest {") and "version: 2," in manifest and "kind: ARROW_ARRAY" in manifest
    fragment = debug.format_fragment(ds.get_fragment(0).metadata, ds)
    assert "physical_rows: 40," in fragment and 'name: "s"' in fragment
    newest, first = debug.list_transactions(ds)
    assert 'predicate: "id = 3"' in newest and "Overwrite {" in first
    assert len(debug.list_transactions(ds, max_transactions=1)) == 1


def test_show_versions_prints_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    text = lance.show_versions()
    assert capsys.readouterr().out.strip() == text
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


def test_reservoir_sampling_is_fair() -> None:
    assert sorted(reservoir_sampling(range(3), 5)) == [0, 1, 2]
    assert reservoir_sampling(range(3), 0) == []
    counts = Counter(value for _ in range(2000) for value in reservoir_sampling(iter("abcd"), 2))
    assert sum(counts.values()) == 4000 and min(counts.values()) > 800


def test_scope_rejects_only_what_is_given() -> None:
    scope.reject("x", planned=True, a=None, b=False, c=[], d={}, e=())
    for value in (True, 0, "", [1]):
        with pytest.raises(NotImplementedError, match="argument a"):
            scope.reject("x", planned=True, a=value)


def test_show_versions_tells_which_kernels_run_and_which_extras_are_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debug.kernels, "NATIVE", True)
    assert "kernels      compiled\n" in lance.show_versions()
    monkeypatch.setattr(debug.kernels, "NATIVE", False)
    monkeypatch.setenv("LANCETABLE_KERNELS", "0")
    assert "NumPy (LANCETABLE_KERNELS=0)" in lance.show_versions()
    monkeypatch.delenv("LANCETABLE_KERNELS")
    monkeypatch.setitem(debug.EXTRAS, "odd", ("numpy", "no-such-package"))
    text = lance.show_versions()
    assert "NumPy (not built" in text and "extra odd      missing no-such-package" in text
