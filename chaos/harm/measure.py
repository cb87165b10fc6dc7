"""The neighbour without an attack, and beside it; what the attacker gets, and what Pulse takes meanwhile."""

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

from pydantic import BaseModel, Field

from chaos.harm import attack, memory
from chaos.harm.attack import Attack, Target
from chaos.harm.neighbour import RATES, Neighbour, failures, p99_ms

LIMIT = 1.5
"""How much longer, at p99, the neighbour may wait beside an attack ..."""
FLOORS_MS = {"collect": 50.0, "preview": 150.0, "readyz": 50.0}
"""... though always this long: p99 that an honest collect is promised, and three times p95 of a preview."""
SETTLED_FLOOR_S = 60.0
"""The same for the longest from received to settled: twice the time that events are gathered for a batch."""

LONGEST_S = 120.0
"""That an attacker may take to come to his end when the attack is over."""


class Span(BaseModel):
    """The neighbour in some time."""

    began: float
    """Unix time."""
    ended: float
    requests: int
    p99_ms: Mapping[str, float]
    """By kind of request."""
    failures: Mapping[str, int]
    """What he should not have got."""
    settled_s: float = 0.0
    """The longest from received to settled; known later."""


class Result(BaseModel):
    """One attack."""

    name: str
    key: str
    seen: Mapping[str, int]
    """What the attacker got."""
    wrong: Sequence[str]
    """What he should not have got."""
    quiet: Span
    beside: Span
    usual_ms: Mapping[str, float] = Field(default_factory=dict)
    """Medians of the p99 in quiet of all attacks of the run; known later."""
    peaks_mib: Mapping[str, float]
    """By part of Pulse."""
    landing: Sequence[str] = ()
    """What became of events of the neighbour that are not one row each; known later."""

    def quiet_ms(self, kind: str) -> float:
        """p99 in quiet: right before the attack, or as usual where that is longer.

        In one window of some seconds it happens to be short: of the machine's noise, too.
        """
        return max(self.quiet.p99_ms[kind], self.usual_ms.get(kind, 0.0))

    def ratio(self, kind: str) -> float:
        return self.beside.p99_ms[kind] / self.quiet_ms(kind)

    def findings(self, floors_ms: Mapping[str, float] = FLOORS_MS) -> list[str]:
        """All that is not as it must be."""
        found = [*self.wrong, *self.landing]
        for when, span in (("quiet", self.quiet), ("beside it", self.beside)):
            found += [f"the neighbour got {n:,} × {what}, {when}" for what, n in span.failures.items()]
        for kind, floor in floors_ms.items():
            if self.beside.p99_ms[kind] > max(floor, LIMIT * self.quiet_ms(kind)):
                figures = f"{self.quiet_ms(kind):.0f} ms, {self.beside.p99_ms[kind]:.0f} ms beside it"
                found.append(f"p99 of {kind}: {figures}")
        if self.beside.settled_s > max(SETTLED_FLOOR_S, LIMIT * self.quiet.settled_s):
            found.append(f"settled {self.quiet.settled_s:.0f} s, {self.beside.settled_s:.0f} s beside it")
        for part, peak in self.peaks_mib.items():
            if peak > memory.BOUNDS_MIB[part]:
                found.append(f"{part} reached {peak:,.0f} MiB; its bound is {memory.BOUNDS_MIB[part]:,} MiB")
        return found


@contextmanager
def attacker() -> Iterator[Executor]:
    """A process for attacks, while the block runs."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=attack.aside) as pool:
        yield pool


def watch(neighbour: Neighbour, seconds: float) -> Span:
    """How the neighbour is answered in the next seconds."""
    began = time.time()
    records = neighbour.window(seconds)
    return Span(
        began=began,
        ended=began + seconds,
        requests=len(records),
        p99_ms={kind: p99_ms(records, kind) for kind in RATES},
        failures=Counter(failures(records)),
    )


def measure(
    chosen: Attack, target: Target, neighbour: Neighbour, attacker: Executor, seconds: float, quiet_s: float
) -> Result:
    """Watch the neighbour in quiet, and then beside an attack."""
    attacker.submit(callable, chosen.act).result()  # by now all is imported
    quiet = watch(neighbour, quiet_s)
    with memory.watched() as peaks:
        attacking = attacker.submit(attack.carry_out, chosen.act, target, seconds)
        beside = watch(neighbour, seconds)
        seen = attacking.result(LONGEST_S)
    return Result(
        name=chosen.name,
        key=chosen.key,
        seen=seen,
        wrong=chosen.wrong(seen),
        quiet=quiet,
        beside=beside,
        peaks_mib=peaks,
    )
