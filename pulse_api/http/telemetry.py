"""A span of each collect request, made by FastAPI where traces are on; its events carry it to the topic."""

from typing import TYPE_CHECKING, TypeAlias

from starlette.requests import Request
from starlette.types import Scope

from pulse_resources import tracing

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

SERVICE = "pulse-api"
Carried: TypeAlias = dict[str, str | bytes | None]
"""Headers of a message."""


def on() -> bool:
    """Whether requests have spans."""
    return tracing.provider(SERVICE) is not None


def config(path: str) -> "TelemetryConfig | None":
    """What FastAPI is told: requests for this path have a span each, in the trace that their caller names."""
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
    """Export the last spans."""
    tracing.flush(tracing.provider(SERVICE))


def carried(request: Request, route: str) -> Carried | None:
    """What the messages of a request carry; None where it is not sampled."""
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
