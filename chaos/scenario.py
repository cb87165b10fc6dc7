"""Scenario: a fault under load, and what was sent meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from chaos.oracle import Finding
from chaos.sent import Sent
from chaos.stack import Kind, Stack

ReportProgress = Callable[[float], None]
"""Called with the amount of harm done so far."""


@dataclass(frozen=True)
class Outcome:
    """Result of a scenario, before the oracle's check."""

    sent: Sequence[Sent]
    """Messages, all of which must be accounted for by now."""
    harm: str
    """Amount of harm done."""
    findings: Sequence[Finding] = ()
    """Violations found by the scenario itself."""
    recovered_s: float | None = None
    """Seconds from the end of the harm until everything acknowledged by then was settled."""
    places: Mapping[str, int] = field(default_factory=dict)
    """Number of times by kind of harm."""
    events: int = 0
    """Events beside `sent`, checked by the scenario itself."""


@dataclass(frozen=True)
class Scenario:
    """One kind of harm."""

    name: str
    run: Callable[[Stack, int, float, ReportProgress], Outcome]
    """Called with the stack, the seed, the amount of harm, and a progress callback."""
    amount: float = 1
    unit: str = ""
    """Unit of the amount; empty: the harm is done once."""
    on: Kind = Kind.PLAIN
