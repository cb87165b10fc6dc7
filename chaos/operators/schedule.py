"""Schedule: rounds of steps as data, which can be drawn, printed, stored, repeated and shrunk.

The steps of a round are concurrent. A step depends only on its own arguments, so that a schedule without some
of its steps is valid, too.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

TENANTS = 4
HOSTILE = 2
"""Number of the tenant that sends invalid data."""
METERED = 3
"""Number of the tenant with a quota, which sends only through the API."""
EVERYONE = -1
AT_A_TIME = 4
"""Concurrent commands of a round."""


@dataclass(frozen=True)
class Blow:
    """Fault for a process: SIGKILL, or SIGSTOP for a while, at a fail point or after some seconds."""

    point: str | None = None
    after_s: float = 0.0
    pause_s: float | None = None
    """None: SIGKILL."""


@dataclass(frozen=True)
class Step:
    """A command or an action of the harness."""

    action: str
    tenant: int
    """Number of its tenant; `EVERYONE`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    after_s: float = 0.0
    """Seconds since its round began."""
    blow: Blow | None = None
    later: int = 0
    """Rounds until it is repeated, if killed."""

    def __str__(self) -> str:
        tenant = "all" if self.tenant == EVERYONE else str(self.tenant)
        arguments = [f"{name}={value}" for name, value in self.arguments.items() if value is not None]
        text = f"{self.action}({', '.join((tenant, *arguments))})"
        text += f" after {self.after_s:.1f} s"
        if self.blow:
            text += ", killed " if self.blow.pause_s is None else f", stopped for {self.blow.pause_s:.1f} s "
            text += f"at {self.blow.point}" if self.blow.point else f"{self.blow.after_s:.1f} s later"
        return text


Round = tuple[Step, ...]


@dataclass(frozen=True)
class Schedule:
    """Steps on the tenants of one episode."""

    seed: int
    """Seed of the schedule, and of random choices when it runs."""
    rounds: tuple[Round, ...]

    @property
    def length(self) -> int:
        """Number of steps."""
        return sum(map(len, self.rounds))

    def keep(self, file: Path) -> None:
        """Write it to a file."""
        file.write_bytes(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2))

    @classmethod
    def read(cls, file: Path) -> "Schedule":
        """Read from a file."""
        document = orjson.loads(file.read_bytes())
        rounds = tuple(tuple(map(_step, steps)) for steps in document["rounds"])
        return cls(document["seed"], rounds)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}"]
        for number, steps in enumerate(self.rounds, 1):
            lines += [f"round {number}", *(f"  {step}" for step in steps)]
        return "\n".join(lines)


def _step(document: dict[str, Any]) -> Step:
    blow = document.pop("blow")
    return Step(**document, blow=Blow(**blow) if blow else None)
