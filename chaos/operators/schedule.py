"""A schedule: rounds of steps. It is data: drawn, printed, kept in a file, carried out again, cut down.

The steps of a round go on side by side. What one does depends on its own arguments alone, so that a schedule
without some of its steps is one, too.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

TENANTS = 4
HOSTILE = 2
"""The tenant that sends what no one should."""
METERED = 3
"""The tenant that has a quota, and sends through the door alone."""
EVERYONE = -1
AT_A_TIME = 4
"""Commands of a round."""


@dataclass(frozen=True)
class Blow:
    """What is done to a process: SIGKILL, or SIGSTOP for a while, at a fail point or after some seconds."""

    point: str | None = None
    after_s: float = 0.0
    pause_s: float | None = None
    """None: it is killed."""


@dataclass(frozen=True)
class Step:
    """A command or an act of the harness."""

    what: str
    tenant: int
    """Its number; `EVERYONE`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    after_s: float = 0.0
    """Since its round began."""
    blow: Blow | None = None
    later: int = 0
    """Rounds until it is repeated, if it was killed."""

    def __str__(self) -> str:
        told = ", ".join(f"{name}={value}" for name, value in self.arguments.items() if value is not None)
        text = f"{self.what}({'all' if self.tenant == EVERYONE else self.tenant}{told and f', {told}'})"
        text += f" after {self.after_s:.1f} s"
        if self.blow:
            text += ", killed " if self.blow.pause_s is None else f", stopped for {self.blow.pause_s:.1f} s "
            text += f"at {self.blow.point}" if self.blow.point else f"{self.blow.after_s:.1f} s later"
        return text


Round = tuple[Step, ...]


@dataclass(frozen=True)
class Schedule:
    """What is done to the tenants of one episode."""

    seed: int
    """That drew it, and what is drawn when it is carried out."""
    rounds: tuple[Round, ...]

    @property
    def length(self) -> int:
        """Its steps."""
        return sum(map(len, self.rounds))

    def keep(self, file: Path) -> None:
        """Write it to a file."""
        file.write_bytes(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2))

    @classmethod
    def kept(cls, file: Path) -> "Schedule":
        """Of a file."""
        found = orjson.loads(file.read_bytes())
        rounds = tuple(tuple(map(_step, steps)) for steps in found["rounds"])
        return cls(found["seed"], rounds)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}"]
        for number, steps in enumerate(self.rounds, 1):
            lines += [f"round {number}", *(f"  {step}" for step in steps)]
        return "\n".join(lines)


def _step(found: dict[str, Any]) -> Step:
    blow = found.pop("blow")
    return Step(**found, blow=Blow(**blow) if blow else None)
