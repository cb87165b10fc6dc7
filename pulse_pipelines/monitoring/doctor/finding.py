"""Finding: the result of one check of a service."""

import socket
from dataclasses import dataclass
from datetime import UTC, datetime

PATIENCE_S = 5.0
CLOCK_S = 10.0
"""Tolerated clock difference between a service and this machine: events, files and leases are compared."""


@dataclass(frozen=True)
class Finding:
    service: str
    check: str
    ok: bool
    found: str
    """The result as a sentence or a value; never a secret."""
    fix: str | None = None


def reached(service: str, host: str, port: int, fix: str) -> Finding:
    """Check whether an address accepts connections."""
    try:
        socket.create_connection((host, port), PATIENCE_S).close()
    except OSError as error:
        return Finding(
            service, "address", False, f"{host}:{port} does not answer: {error.strerror or error}", fix
        )
    return Finding(service, "address", True, f"{host}:{port} answers")


def clock(service: str, service_time: datetime) -> Finding:
    """Compare a service's clock with this machine's."""
    ahead = (service_time - datetime.now(UTC)).total_seconds()
    difference = f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
    fix = "Let both machines follow the same time server (NTP)"
    return Finding(service, "clock", abs(ahead) <= CLOCK_S, difference, fix)
