"""A finding: one property of a service that was looked at."""

import socket
from dataclasses import dataclass
from datetime import UTC, datetime

PATIENCE_S = 5.0
CLOCK_S = 10.0
"""Seconds that a service's clock may differ from this machine's: events, files and leases are compared."""


@dataclass(frozen=True)
class Finding:
    service: str
    check: str
    ok: bool
    found: str
    """As a sentence or a value; never a secret."""
    fix: str | None = None


def reached(service: str, host: str, port: int, fix: str) -> Finding:
    """Whether something answers at an address."""
    try:
        socket.create_connection((host, port), PATIENCE_S).close()
    except OSError as error:
        return Finding(service, "address", False, f"{host}:{port} does not answer: {error}", fix)
    return Finding(service, "address", True, f"{host}:{port} answers")


def clock(service: str, theirs: datetime) -> Finding:
    """Whether a service's clock is right, by this machine's."""
    ahead = (theirs - datetime.now(UTC)).total_seconds()
    found = f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
    fix = "Let both machines follow the same time server (NTP)"
    return Finding(service, "clock", abs(ahead) <= CLOCK_S, found, fix)


def first_line(error: BaseException) -> str:
    """What an error says, without what its library adds."""
    said = error.args[0].str() if hasattr(next(iter(error.args), None), "str") else str(error)  # librdkafka's
    return said.strip().partition("\n")[0] or type(error).__name__
