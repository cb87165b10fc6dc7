"""What a scenario is: harm under load, and what was sent meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from chaos.oracle import Finding
from chaos.sent import Sent
from chaos.stack import Kind, Stack

Told = Callable[[float], None]
"""Called with how much of the harm is done."""


@dataclass(frozen=True)
class Outcome:
    """What came of a scenario; the oracle looks at the rest."""

    sent: Sequence[Sent]
    """By now all of it must be accounted for."""
    harm: str
    """How much was done."""
    findings: Sequence[Finding] = ()
    """What the scenario itself found wrong."""
    recovered_s: float | None = None
    """From the end of the harm until all that had been acknowledged by then was settled."""
    places: Mapping[str, int] = field(default_factory=dict)
    """How often what was done where."""
    events: int = 0
    """That were sent beside `sent`, and judged by the scenario itself."""


@dataclass(frozen=True)
class Scenario:
    """One kind of harm."""

    name: str
    run: Callable[[Stack, int, float, Told], Outcome]
    """With the stack, the seed of events and harm, how much harm, and whom to tell of its progress."""
    amount: float = 1
    unit: str = ""
    """Of the amount; harm without one is done once, whole."""
    on: Kind = Kind.PLAIN
