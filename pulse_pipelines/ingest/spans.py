"""Spans of a batch: its attempt, the stages within it, and one in the trace of each request that it settles.

The stages' spans link to the requests' traces, and the span in each of these links to the attempt's: from a
request's trace one finds the batch. With tracing off, all functions do nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from pulse_pipelines.ingest.stages import Failure, Origin, Plan, Settled
from pulse_resources import tracing

if TYPE_CHECKING:  # imported when traces are on, and only then
    from opentelemetry.context import Context
    from opentelemetry.trace import Link

SERVICE = "pulse-ingest"
NS_PER_MS = 1_000_000
Tell: TypeAlias = Callable[[Plan, Sequence[Failure]], None]


@contextmanager
def exported() -> Iterator[None]:
    """Export the spans of the block when it ends."""
    try:
        yield
    finally:
        tracing.flush(tracing.provider(SERVICE, always=True))


@contextmanager
def attempt(plan: Plan) -> Iterator[Plan]:
    """Open the attempt's span around the block; yields the plan with `traceparent`, for stages and tasks."""
    if (tracer := tracing.tracer(SERVICE)) is None:
        yield plan
        return
    events = sum(r.length for r in plan.ranges)
    span = tracer.start_span(
        "ingest batch",
        attributes={
            "pulse.batch_id": plan.batch_id,
            "pulse.attempt": plan.attempt,
            "pulse.tenants": len(plan.scopes),
            "messaging.system": "kafka",
            "messaging.batch.message_count": events,
        },
    )
    try:
        yield replace(plan, traceparent=tracing.traceparent(span))
    finally:
        span.end()


@contextmanager
def stage(name: str, plan: Plan) -> Iterator[Tell]:
    """Open a stage's span around the block.

    Yields:
        A function to call with the plan as the stage leaves it, and its failures.
    """
    tracer = None if plan.traceparent is None else tracing.tracer(SERVICE)
    if tracer is None or plan.traceparent is None:
        yield lambda _plan, _failures: None
        return
    from opentelemetry.trace import StatusCode

    with tracer.start_as_current_span(
        name,
        context=_context(plan.traceparent),
        links=_links(plan.origins),
        attributes={"pulse.batch_id": plan.batch_id, "pulse.attempt": plan.attempt},
    ) as span:

        def tell(remaining: Plan, failures: Sequence[Failure]) -> None:
            for link in _links(remaining.origins[len(plan.origins) :]):
                span.add_link(link.context)
            if failures:
                span.set_attribute("pulse.failed_tenants", len(failures))
                span.set_status(StatusCode.ERROR)

        yield tell


@contextmanager
def work(name: str, **about: str | int) -> Iterator[Callable[..., None]]:
    """Open a span with a trace of its own around work outside batches; it fails with the block.

    Yields:
        A function that adds attributes to the span, by name.
    """
    if (tracer := tracing.tracer(SERVICE)) is None:
        yield lambda **_: None
        return
    from opentelemetry.context import Context

    with tracer.start_as_current_span(name, context=Context(), attributes=_named(about)) as span:
        yield lambda **facts: span.set_attributes(_named(facts))


def _named(about: Mapping[str, str | int]) -> dict[str, str | int]:
    return {f"pulse.{name}": value for name, value in about.items()}


def settled(settled: Settled) -> None:
    """Add a span to the trace of each request whose events settled, from their append to the topic to now."""
    plan, tracer = settled.plan, tracing.tracer(SERVICE)
    if tracer is None or plan.traceparent is None:
        return
    from opentelemetry.trace import SpanKind

    tenants = {tenant.tenant_id for tenant in settled.tenants}
    batch = _link(plan.traceparent)
    for origin in plan.origins:
        if origin.tenant_id in tenants:
            tracer.start_span(
                "settle events",
                context=_context(origin.traceparent),
                kind=SpanKind.CONSUMER,
                links=[batch],
                attributes={
                    "pulse.batch_id": plan.batch_id,
                    "pulse.tenant": plan.scopes[origin.tenant_id].tenant.slug,
                },
                start_time=origin.received_ms * NS_PER_MS,
            ).end()


def _links(origins: Iterable[Origin]) -> "list[Link]":
    return [_link(origin.traceparent) for origin in origins]


def _link(traceparent: str) -> "Link":
    from opentelemetry.trace import Link, get_current_span

    return Link(get_current_span(_context(traceparent)).get_span_context())


def _context(traceparent: str) -> "Context":
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({tracing.HEADER: traceparent})
