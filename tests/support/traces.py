"""A collector of traces: what is exported over OTLP/HTTP, decoded."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider

from pulse_resources import tracing


def providers() -> tuple[TracerProvider, ...]:
    """Those of Pulse's services, in this process."""
    return tracing.provider("pulse-api"), tracing.provider("pulse-ingest", always=True)


@dataclass(frozen=True)
class Exported:
    """A span, its ids in hexadecimal."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[tuple[str, str], ...]
    """Trace and span of each."""
    attributes: dict[str, Any]
    failed: bool


@dataclass
class Collector:
    """Listens on a port of its own."""

    spans: list[Exported] = field(default_factory=list)
    port: int = 0

    def named(self, name: str, **attributes: Any) -> list[Exported]:
        """Every span of this name with these attributes, whose dots are underscores here."""
        expected = {key.replace("_", ".", 1): value for key, value in attributes.items()}
        for provider in providers():
            tracing.flush(provider, 30)
        named = (span for span in self.spans if span.name == name)
        return [span for span in named if expected.items() <= span.attributes.items()]

    def receive(self, body: bytes) -> None:
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            of = {a.key: a.value.string_value for a in of_resource.resource.attributes}
            for scope in of_resource.scope_spans:
                self.spans += [_exported(of["service.name"], span) for span in scope.spans]


def _exported(service: str, span: Any) -> Exported:
    return Exported(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        {a.key: getattr(a.value, str(a.value.WhichOneof("value"))) for a in span.attributes},
        span.status.code == span.status.STATUS_CODE_ERROR,
    )


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Traces are on, and this one has them."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            collector.receive(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        tracing.provider.cache_clear()
        yield collector
        for provider in providers():
            provider.shutdown()
        tracing.provider.cache_clear()
        server.shutdown()
