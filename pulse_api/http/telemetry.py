"""OpenTelemetry spans of collect requests, made where traces are on; Kafka headers carry their context."""

from typing import TYPE_CHECKING, TypeAlias

from starlette.requests import Request
from starlette.types import Scope

from pulse_resources import tracing

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

SERVICE = "pulse-api"
Carried: TypeAlias = dict[str, str | bytes | None]
"""Kafka message headers."""


def on() -> bool:
    """Whether requests have spans."""
    return tracing.provider(SERVICE) is not None


def config(path: str) -> "TelemetryConfig | None":
    """FastAPI's telemetry configuration: a span per request to this path, in its caller's trace if named."""
    if (provider := tracing.provider(SERVICE)) is None:
        return None

    def exclude(scope: Scope) -> bool:
        return bool(scope["path"] != path or scope.get("method") != "POST")

    return {
        "tracer_provider": provider,
        "exclude": exclude,
        "metrics": False,
        "logs": False,
        "operation_spans": False,
    }


def flush() -> None:
    """Export pending spans."""
    tracing.flush(tracing.provider(SERVICE))


def carried(request: Request, route: str) -> Carried | None:
    """Trace headers for the messages of a request; None where it is not sampled."""
    from opentelemetry import trace

    span = trace.get_current_span()
    if not span.is_recording():
        return None
    state = request.scope["state"]
    span.update_name(f"POST {route}")
    span.set_attributes(
        {
            "http.route": route,
            "pulse.tenant": state.get("tenant") or "",
            "pulse.request_id": state["request_id"],
        }
    )
    return {tracing.HEADER: tracing.traceparent(span)}
