"""Traces: OpenTelemetry spans, exported over OTLP/HTTP if the standard variables name an endpoint.

When off, nothing of the SDK is imported. When on, a thread exports spans from a bounded queue: an unreachable
collector costs only spans, and is logged once a minute in one line.
"""

import logging
import os
import re
import threading
import time
from functools import cache
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:  # imported only when traces are on
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
HEADER = "traceparent"
"""W3C Trace Context, in HTTP and message headers."""
FLUSH_S = 1.0
"""How long the end of a run, or of the API, waits for its last spans to be exported."""
LOG_INTERVAL_S = 60.0
_QUERY = re.compile(r"\?\S*")
_log = logging.getLogger("pulse.tracing")


def on() -> bool:
    """Whether traces are exported, according to OpenTelemetry's standard variables."""
    named = any(os.environ.get(name, "").strip() for name in ENDPOINTS)
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return named and not disabled and os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() != "none"


@cache
def provider(service: str, *, always: bool = False) -> "TracerProvider | None":
    """Span provider of a service in this process; None if traces are off or misconfigured.

    Args:
        service: its name in spans, unless OTEL_SERVICE_NAME is set.
        always: sample everything; otherwise OTEL_TRACES_SAMPLER decides.
    """
    if not on():
        return None
    try:
        return _provider(service, always)
    except Exception as error:  # tracing must never make an event fail
        _log.warning("traces are off, they cannot be set up: %s: %s", type(error).__name__, _cut(str(error)))
        return None


def tracer(service: str) -> "Tracer | None":
    """Tracer of a service, which samples all spans; None if traces are off."""
    traces = provider(service, always=True)
    return None if traces is None else traces.get_tracer("pulse")


def traceparent(span: "Span") -> str:
    """The span's `traceparent` header."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def flush(of: "TracerProvider | None", seconds: float = FLUSH_S) -> None:
    """Export a provider's remaining spans within `seconds`; spans not exported by then are lost."""
    if of is not None:
        exporting = threading.Thread(target=of.force_flush, name="traces", daemon=True)
        exporting.start()  # its own time-out has no effect: it waits for the exporter
        exporting.join(seconds)


def _provider(service: str, always: bool) -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    sdk = logging.getLogger("opentelemetry")
    sdk.handlers, sdk.propagate = [_Rarely()], False
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service}
    tracer_provider = TracerProvider(
        sampler=ALWAYS_ON if always else None,
        resource=Resource.create(named),
        shutdown_on_exit=False,  # it would wait for an exporter that waits for its collector
    )
    tracer_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return tracer_provider


class _Rarely(logging.Handler):
    """Logs the SDK's complaints in one line a minute, without stack traces."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next = 0.0

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if (now := time.monotonic()) >= self._next:
            self._next = now + LOG_INTERVAL_S
            _log.warning(
                "traces are lost: is there a collector at %s? %s",
                " or ".join(name for name in ENDPOINTS if os.environ.get(name)),
                _cut(record.getMessage()),
            )


def _cut(text: str) -> str:
    """A library's message without a URL's query, which may hold a token."""
    return _QUERY.sub("", text)[:300]
