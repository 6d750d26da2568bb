"""Spans and metrics of OpenTelemetry, and fields of log records.

    open_version ──────── open ──┐
    plan_of ───────────── plan ──┤
    ScanRun ───────────── scan ──┤  start(operation, store, path)   with a tracer: Span
    LanceDataset.take ─── take ──┼────────────────────────────────► otherwise: NO_SPAN, which does nothing
    Destination.write ─── write ─┤
    commit_transaction ── commit ┘

The API of OpenTelemetry is used only if the process has imported it, because a process without it cannot have a tracer
or a meter. A span contains neither values of rows nor filters nor secrets, and only those messages of LanceError that
have none of them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from lancetable.errors import InvalidInputError, LanceError

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from typing_extensions import Self

Value: TypeAlias = "str | bool | int | float | list[str]"

SCOPE = "lancetable"
"""Instrumentation scope of spans and metrics, and prefix of their names."""

_STANDARD_NAMES = {"returned_rows": "db.response.returned_rows"}


class Addressable(Protocol):
    """The part of an object store that a span needs."""

    def uri(self, path: str) -> str:
        """Return the address of a path. It contains no secrets."""


class NoSpan:
    """Span that is not recorded."""

    __slots__ = ()
    is_recording = False

    def set(self, **attributes: Value) -> None:
        """Set attributes. Names get the prefix `lancetable.` unless OpenTelemetry defines them."""

    def event(self, name: str, **attributes: Value) -> None:
        """Add an event. Its name and those of its attributes get the prefix `lancetable.`."""

    def end(self, error: BaseException | None = None) -> None:
        """End the span. Only needed without a `with` block, for spans of generators."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        return


NO_SPAN = NoSpan()


class Span(NoSpan):
    """Span of OpenTelemetry. In a `with` block, it is the parent of the spans that the block starts."""

    __slots__ = ("_span", "_token", "is_recording")
    _token: Token[Context]

    def __init__(self, span: Any) -> None:
        self._span = span
        self.is_recording = span.is_recording()

    def set(self, **attributes: Value) -> None:
        """Set attributes. See NoSpan."""
        for name, value in attributes.items():
            self._span.set_attribute(_STANDARD_NAMES.get(name, f"{SCOPE}.{name}"), value)

    def event(self, name: str, **attributes: Value) -> None:
        """Add an event. See NoSpan."""
        self._span.add_event(f"{SCOPE}.{name}", {f"{SCOPE}.{key}": value for key, value in attributes.items()})

    def end(self, error: BaseException | None = None) -> None:
        """End the span, with the status of an error if there is one. An unfinished generator is no error."""
        if error is not None and not isinstance(error, GeneratorExit):
            from opentelemetry.trace import Status, StatusCode

            kind = type(error)
            self._span.set_attribute("error.type", f"{kind.__module__}.{kind.__qualname__}")
            # Messages of other errors, and those of causes, may contain credentials of the storage client. Messages on
            # invalid input quote filters and values.
            is_safe = isinstance(error, LanceError) and not isinstance(error, InvalidInputError)
            self._span.set_status(Status(StatusCode.ERROR, str(error) if is_safe else None))
        self._span.end()

    def __enter__(self) -> Self:
        from opentelemetry import context, trace

        self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        from opentelemetry import context

        context.detach(self._token)
        self.end(error)


def start(operation: str, store: Addressable, path: str) -> NoSpan:
    """Start a span of an operation on the table at `path`; `NO_SPAN` if the process has no tracer."""
    if "opentelemetry.trace" not in sys.modules:
        return NO_SPAN
    tracer, invalid_span = _tracer()
    span = tracer.start_span(operation)
    if span is invalid_span:  # no tracer is configured
        return NO_SPAN
    if span.is_recording():
        namespace, _, collection = store.uri(path).rstrip("/").rpartition("/")
        span.update_name(f"{operation} {collection}")
        span.set_attribute("db.system.name", "lance")
        span.set_attribute("db.operation.name", operation)
        span.set_attribute("db.namespace", namespace)
        span.set_attribute("db.collection.name", collection)
    return Span(span)


def is_traced() -> bool:
    """Return True if a tracer is configured."""
    if "opentelemetry.trace" not in sys.modules:
        return False
    from opentelemetry import trace

    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def count(name: str, description: str, amount: int = 1, **attributes: Value) -> None:
    """Add to the counter `lancetable.name`, if the process uses metrics of OpenTelemetry."""
    if "opentelemetry.metrics" in sys.modules:
        _counter(name, description).add(amount, {f"{SCOPE}.{key}": value for key, value in attributes.items()})


@cache
def observe(name: str, unit: str, description: str, total: Callable[[], int]) -> None:
    """Create the counter `lancetable.name`, whose value OpenTelemetry reads from `total` when it collects metrics."""
    from opentelemetry import metrics

    def observed(_options: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        yield metrics.Observation(total())

    _meter().create_observable_counter(f"{SCOPE}.{name}", [observed], unit, description)


def uses_metrics() -> bool:
    """Return True if the process has imported the metrics of OpenTelemetry."""
    return "opentelemetry.metrics" in sys.modules


# A tracer or meter that is created before a provider is set passes its calls on to a provider that is set later.


@cache
def _tracer() -> tuple[Any, Any]:
    from opentelemetry import trace

    return trace.get_tracer(SCOPE, _version()), trace.INVALID_SPAN


@cache
def _meter() -> Any:
    from opentelemetry import metrics

    return metrics.get_meter(SCOPE, _version())


@cache
def _counter(name: str, description: str) -> Any:
    return _meter().create_counter(f"{SCOPE}.{name}", "1", description)


def _version() -> str:
    version: str = sys.modules[SCOPE].__version__  # an import would make the layers cyclic
    return version


def fields(event: str, uri: object = None, **facts: object) -> dict[str, object]:
    """Return the `extra` of a log record: the name of the event, the address of the table, and facts with a value."""
    extra: dict[str, object] = {"event": event, "uri": None if uri is None else str(uri)}
    extra.update(facts)
    return {name: value for name, value in extra.items() if value is not None}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that the `extra` of a log record has added to it."""
    standard = {*vars(logging.makeLogRecord({})), "message", "asctime"}
    return {name: value for name, value in vars(record).items() if name not in standard}
