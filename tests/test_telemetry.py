"""Spans, metrics and fields of log records."""

from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable as lance
from lancetable import telemetry
from lancetable.store.memory import MemoryStore

pytest.importorskip("opentelemetry.sdk")
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/how-to/observability.md"
SECRET = "hunter2-secret"


@pytest.fixture(scope="module")
def collected() -> Iterator[tuple[InMemorySpanExporter, InMemoryMetricReader]]:
    """Configure a tracer and a meter, which a process can do only once, so other tests may have configured a tracer."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        trace.set_tracer_provider(TracerProvider())
    tracers = trace.get_tracer_provider()
    assert isinstance(tracers, TracerProvider)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    metrics.set_meter_provider(MeterProvider([reader]))
    yield exporter, reader
    exporter.shutdown()  # it then keeps no spans of other tests


@pytest.fixture
def spans(collected: tuple[InMemorySpanExporter, InMemoryMetricReader]) -> InMemorySpanExporter:
    collected[0].clear()
    return collected[0]


@pytest.fixture
def table(tmp_path: Path) -> str:
    uri = str(tmp_path / "flights.lance")
    lance.write_dataset(pa.table({"id": range(100), "text": ["a"] * 100}), uri)
    return uri


def named(spans: InMemorySpanExporter, operation: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if attributes(span).get("db.operation.name") == operation]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_each_operation_is_a_span_with_the_names_of_the_semantic_conventions(
    spans: InMemorySpanExporter, table: str, tmp_path: Path
) -> None:
    spans.clear()
    ds = lance.dataset(table)
    ds.to_table(filter="id > 89")
    ds.take([5, 6, 7])
    lance.write_dataset(pa.table({"id": [1], "text": ["b"]}), ds, mode="append")
    found = [span.name for span in spans.get_finished_spans()]
    assert found == [f"{name} flights.lance" for name in ("open", "plan", "scan", "take", "write", "commit")]
    for span in spans.get_finished_spans():
        assert attributes(span)["db.system.name"] == "lance"
        assert attributes(span)["db.namespace"] == str(tmp_path)
        assert attributes(span)["db.collection.name"] == "flights.lance"
    (scan,), (take,), (write,) = named(spans, "scan"), named(spans, "take"), named(spans, "write")
    assert attributes(scan)["db.response.returned_rows"] == 10
    assert attributes(take)["db.response.returned_rows"] == 3
    assert attributes(write)["lancetable.rows"] == 1 and attributes(write)["lancetable.bytes_written"] > 0


def test_a_scan_counts_its_requests_and_bytes(spans: InMemorySpanExporter) -> None:
    lance.write_dataset(pa.table({"id": range(10_000)}), "memory://telemetry/scan")
    list(lance.dataset("memory://telemetry/scan").to_batches(filter="id > 10"))
    (scan,) = named(spans, "scan")
    assert attributes(scan)["lancetable.requests"] >= 1
    assert attributes(scan)["lancetable.bytes_read"] > 1000
    assert attributes(scan)["db.response.returned_rows"] == 9989


def test_an_interrupted_scan_ends_its_span_without_an_error(spans: InMemorySpanExporter, table: str) -> None:
    batches = lance.dataset(table).to_batches(batch_size=10)
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # a generator
    (scan,) = named(spans, "scan")
    assert scan.status.is_unset and attributes(scan)["db.response.returned_rows"] == 10


def test_a_streamed_scan_is_not_the_parent_of_its_callers_spans(spans: InMemorySpanExporter, table: str) -> None:
    for _ in lance.dataset(table).to_batches():
        assert not trace.get_current_span().get_span_context().is_valid
    assert named(spans, "scan")


def test_a_commit_reports_attempts_and_the_conflicts_that_it_resolved(spans: InMemorySpanExporter, table: str) -> None:
    first, second = lance.dataset(table), lance.dataset(table)
    first.delete("id = 1")
    spans.clear()
    second.delete("id = 2")
    (commit,) = named(spans, "commit")
    assert attributes(commit)["lancetable.operation"] == "Delete"
    assert attributes(commit)["lancetable.outcome"] == "committed"
    assert attributes(commit)["lancetable.attempts"] >= 1
    assert (attributes(commit)["lancetable.read_version"], attributes(commit)["lancetable.version"]) == (1, 3)
    conflict = next(event for event in commit.events if event.name == "lancetable.conflict")
    assert dict(conflict.attributes or {}) == {
        "lancetable.version": 2,
        "lancetable.severity": "rebasable",
        "lancetable.other_operation": "Delete",
    }


def test_the_creation_of_a_table_is_a_commit(
    collected: tuple[InMemorySpanExporter, InMemoryMetricReader], spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    before = points(collected[1])
    lance.write_dataset(pa.table({"id": [1]}), tmp_path / "new.lance")
    (commit,) = named(spans, "commit")
    found = {name: value for name, value in attributes(commit).items() if name.startswith("lancetable.")}
    assert found == {
        "lancetable.operation": "Overwrite",
        "lancetable.outcome": "committed",
        "lancetable.attempts": 1,
        "lancetable.read_version": 0,
        "lancetable.version": 1,
    }
    key = "lancetable.commits", "Overwrite", "committed"
    assert points(collected[1])[key] - before.get(key, 0) == 1


def test_a_failed_operation_has_the_status_and_type_of_its_error(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    with pytest.raises(lance.DatasetNotFoundError) as raised:
        lance.dataset(tmp_path / "missing")
    (failed,) = named(spans, "open")
    assert not failed.status.is_ok and failed.status.description == str(raised.value)
    assert attributes(failed)["error.type"] == "lancetable.errors.DatasetNotFoundError"


def test_messages_of_other_errors_are_not_exported(spans: InMemorySpanExporter) -> None:
    with pytest.raises(OSError), telemetry.start("open", MemoryStore("t"), "t"):
        raise OSError(f"https://bucket/?X-Amz-Signature={SECRET}")
    (failed,) = named(spans, "open")
    assert attributes(failed)["error.type"] == "builtins.OSError"
    assert SECRET not in failed.to_json()


def test_filters_and_values_in_messages_are_not_exported(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    ds = lance.write_dataset(pa.table({"id": [1], "text": [SECRET]}), tmp_path / "t")
    spans.clear()
    for condition in (f"id = '{SECRET}'", f"missing = '{SECRET}'", f"id == = '{SECRET}'", "CAST(text AS int) = 1"):
        with pytest.raises(lance.InvalidInputError, match=SECRET) as raised:
            ds.to_table(filter=condition)
        failed = spans.get_finished_spans()[-1]
        assert attributes(failed)["error.type"] == f"lancetable.errors.{type(raised.value).__name__}"
        assert not failed.status.is_ok and SECRET not in failed.to_json()


def test_spans_of_one_operation_are_children_of_the_callers_span(spans: InMemorySpanExporter, table: str) -> None:
    with trace.get_tracer("test").start_as_current_span("job") as job:
        lance.dataset(table)
    (opened,) = named(spans, "open")
    assert opened.parent is not None and opened.parent.span_id == job.get_span_context().span_id


def test_metrics_count_commits_by_outcome_and_bytes(
    collected: tuple[InMemorySpanExporter, InMemoryMetricReader], table: str
) -> None:
    reader = collected[1]
    before = points(reader)
    first, second = lance.dataset(table), lance.dataset(table)
    first.update({"text": "'x'"}, where="id = 1")
    with pytest.raises(lance.CommitConflictError):
        second.update({"text": "'y'"}, where="id = 1", conflict_retries=0)
    lance.dataset(table).to_table()
    after = points(reader)
    added = {key: after[key] - before.get(key, 0) for key in after}
    assert added["lancetable.commits", "Update", "committed"] == 1
    assert added["lancetable.commits", "Update", "conflict"] == 1
    assert added["lancetable.commit.attempts", "Update", None] == 2
    assert added["lancetable.io.read.requests", None, None] > 0
    assert added["lancetable.io.write.size", None, None] > 0


def points(reader: InMemoryMetricReader) -> dict[tuple[str, Any, Any], int]:
    data = reader.get_metrics_data()
    return {
        (metric.name, point.attributes.get("lancetable.operation"), point.attributes.get("lancetable.outcome")): (
            point.value
        )
        for resource in (data.resource_metrics if data is not None else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_secrets_of_storage_options_and_addresses_are_neither_in_spans_nor_in_logs(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    options = {
        "aws_access_key_id": SECRET,
        "aws_secret_access_key": SECRET,
        "aws_session_token": SECRET,
        "endpoint": "http://127.0.0.1:9",
        "allow_http": "true",
        "client_max_retries": "0",
        "connect_timeout": "1s",
    }
    caplog.set_level(logging.DEBUG)
    for uri in ("s3://bucket/flights.lance", f"s3://user:{SECRET}@bucket/t", f"sftp://user:{SECRET}@host/t"):
        with pytest.raises(lance.LanceError) as raised:
            lance.dataset(uri, storage_options=options)
        assert SECRET not in str(raised.value)
    assert named(spans, "open"), "the first address is opened, and fails"
    for span in spans.get_finished_spans():
        assert SECRET not in span.to_json()
    for record in caplog.records:
        assert SECRET not in str(vars(record)) and SECRET not in record.getMessage()


CHECK_UNUSED = """
import sys, lancetable, pyarrow
lancetable.write_dataset(pyarrow.table({"id": [1]}), "memory://t").take([0])
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""


def test_opentelemetry_is_not_imported_unless_the_process_imports_it() -> None:
    subprocess.run([sys.executable, "-c", CHECK_UNUSED], check=True, timeout=120)


CHECK_UNCONFIGURED = """
import opentelemetry.metrics, opentelemetry.trace, lancetable, pyarrow
from lancetable import telemetry
from lancetable.store.memory import MemoryStore
assert telemetry.start("open", MemoryStore("t"), "t") is telemetry.NO_SPAN
lancetable.write_dataset(pyarrow.table({"id": [1]}), "memory://t").take([0])
"""


def test_without_a_tracer_no_span_is_created() -> None:
    subprocess.run([sys.executable, "-c", CHECK_UNCONFIGURED], check=True, timeout=120)


# --- log records -----------------------------------------------------------------------------------------------------


LEVELS = {"log", "debug", "info", "warning", "error", "exception", "critical"}


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((ROOT / "lancetable").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            logger, method = node.func.value, node.func.attr
            if isinstance(logger, ast.Name) and logger.id == "logger" and method in LEVELS:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_every_log_record_has_fields() -> None:
    calls = list(log_calls())
    assert len(calls) > 40
    assert [place for place, call in calls if "extra" not in [keyword.arg for keyword in call.keywords]] == []


def test_every_event_of_a_log_record_is_documented() -> None:
    events = set()
    for path in (ROOT / "lancetable").rglob("*.py"):
        events |= set(re.findall(r'telemetry\.fields\(\s*"([a-z._]+)"', path.read_text()))
    documented = set(re.findall(r"^\| `([a-z._]+)` \| (?:debug|info|warning)", PAGE.read_text(), re.MULTILINE))
    assert documented == events


def test_a_record_of_a_commit_has_its_fields(table: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lancetable")
    lance.dataset(table).delete("id < 5")
    record = next(record for record in caplog.records if telemetry.fields_of(record).get("event") == "commit.published")
    assert telemetry.fields_of(record) == {
        "event": "commit.published",
        "uri": table,
        "version": 2,
        "operation": "Delete",
        "fragments_changed": 1,
        "rows_deleted": 5,
    }
