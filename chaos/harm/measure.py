"""Measurement of an attack: the neighbour without and beside it, the attacker's results, and memory."""

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
"""Maximum ratio of the neighbour's p99 beside an attack ..."""
FLOORS_MS = {"collect": 50.0, "preview": 150.0, "readyz": 50.0}
"""... with these minimum bounds: the p99 promised for collect, and three times a preview's p95."""
SETTLED_FLOOR_S = 60.0
"""Minimum bound of the longest time from received to settled: twice the flush time."""

LONGEST_S = 120.0
"""Time limit for the attacker to finish when the attack is over."""


class Span(BaseModel):
    """Measurements of the neighbour over a period."""

    began: float
    """Unix time."""
    ended: float
    requests: int
    p99_ms: Mapping[str, float]
    """By kind of request."""
    failures: Mapping[str, int]
    """Unacceptable responses and their number."""
    settled_s: float = 0.0
    """Longest time from received to settled; filled in later."""


class Result(BaseModel):
    """Result of one attack."""

    name: str
    key: str
    answers: Mapping[str, int]
    """Responses that the attacker got."""
    wrong: Sequence[str]
    """Unacceptable ones among them."""
    quiet: Span
    beside: Span
    usual_ms: Mapping[str, float] = Field(default_factory=dict)
    """Medians of the idle p99 before all attacks of the run; filled in later."""
    peaks_mib: Mapping[str, float]
    """Peak memory by part of Pulse."""
    landing: Sequence[str] = ()
    """Accepted events of the neighbour that are not exactly one row each; filled in later."""

    def quiet_ms(self, kind: str) -> float:
        """p99 without attack: right before it, or the run's median if that is longer.

        A single window of some seconds may happen to be short, also through the machine's noise.
        """
        return max(self.quiet.p99_ms[kind], self.usual_ms.get(kind, 0.0))

    def ratio(self, kind: str) -> float:
        return self.beside.p99_ms[kind] / self.quiet_ms(kind)

    def findings(self, floors_ms: Mapping[str, float] = FLOORS_MS) -> list[str]:
        """All violated bounds."""
        findings = [*self.wrong, *self.landing]
        for when, span in (("quiet", self.quiet), ("beside it", self.beside)):
            findings += [
                f"the neighbour got {n:,} × {failure}, {when}" for failure, n in span.failures.items()
            ]
        for kind, floor in floors_ms.items():
            if self.beside.p99_ms[kind] > max(floor, LIMIT * self.quiet_ms(kind)):
                figures = f"{self.quiet_ms(kind):.0f} ms, {self.beside.p99_ms[kind]:.0f} ms beside it"
                findings.append(f"p99 of {kind}: {figures}")
        if self.beside.settled_s > max(SETTLED_FLOOR_S, LIMIT * self.quiet.settled_s):
            findings.append(f"settled {self.quiet.settled_s:.0f} s, {self.beside.settled_s:.0f} s beside it")
        for part, peak in self.peaks_mib.items():
            bound = memory.BOUNDS_MIB[part]
            if peak > bound:
                findings.append(f"{part} reached {peak:,.0f} MiB; its bound is {bound:,} MiB")
        return findings


@contextmanager
def attacker() -> Iterator[Executor]:
    """Process for attacks while the block runs."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=attack.lower_priority) as pool:
        yield pool


def watch(neighbour: Neighbour, seconds: float) -> Span:
    """Measure the neighbour for some seconds."""
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
    """Measure the neighbour without and then beside an attack."""
    attacker.submit(callable, chosen.act).result()  # loads all imports before the attack
    quiet = watch(neighbour, quiet_s)
    with memory.watched() as peaks:
        attacking = attacker.submit(attack.carry_out, chosen.act, target, seconds)
        beside = watch(neighbour, seconds)
        answers = attacking.result(LONGEST_S)
    return Result(
        name=chosen.name,
        key=chosen.key,
        answers=answers,
        wrong=chosen.wrong(answers),
        quiet=quiet,
        beside=beside,
        peaks_mib=peaks,
    )
