"""Prometheus counters and histograms of this process."""

from collections.abc import Iterable

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("pulse_http_requests", "Requests answered.", ["method", "route", "status"])
SECONDS = Histogram(
    "pulse_http_request_seconds",
    "Time to answer.",
    ["route"],
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
ACCEPTED = Counter("pulse_collect_events_accepted", "Events accepted to land.", ["tenant"])
REJECTED = Counter(
    "pulse_collect_events_rejected", "Events refused or dead-lettered at the door.", ["tenant", "reason"]
)
IN_FLIGHT = Gauge("pulse_collect_events_in_flight", "Events that the broker has not acknowledged yet.")

CONNECTIONS = Gauge("pulse_http_connections", "Connections that are open.")
CONNECTIONS_REFUSED = Counter(
    "pulse_http_connections_refused", "Connections ended for a limit of theirs.", ["reason"]
)


def answered(method: str, route: str, status: int, seconds: float) -> None:
    """Count one request."""
    REQUESTS.labels(method, route, str(status)).inc()
    SECONDS.labels(route).observe(seconds)


def collected(tenant: str, accepted: int, reasons: Iterable[str]) -> None:
    """Count the verdicts of one request."""
    ACCEPTED.labels(tenant).inc(accepted)
    for reason in reasons:
        REJECTED.labels(tenant, reason).inc()
