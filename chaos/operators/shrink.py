"""Shrinking: the smallest part of a failing schedule that still fails, found by leaving steps out.

Concurrent processes are not deterministic: a part that passed is repeated a few times before it is rejected.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from chaos.operators.schedule import Schedule, Step

TRIES = 2
"""Runs of a part before it counts as passing."""

FailureCheck = Callable[[Schedule], bool]
"""Runs a schedule; returns whether it fails in the same way."""


def shrunk(
    schedule: Schedule,
    wrong: FailureCheck,
    seconds: float,
    report: Callable[[Schedule], None] = lambda smaller: None,
    tries: int = TRIES,
) -> Schedule:
    """Smallest failing schedule found in time; parts are left out, halves first.

    Args:
        schedule: a failing schedule.
        wrong: tells whether it still fails.
        seconds: no run begins after this.
        report: called with each smaller one.
    """
    until = time.monotonic() + seconds

    def fails(steps: Sequence[tuple[int, Step]]) -> bool:
        return any(time.monotonic() < until and wrong(_of(schedule.seed, steps)) for _ in range(tries))

    remaining = [(number, step) for number, steps in enumerate(schedule.rounds) for step in steps]
    size = len(remaining) // 2
    while size and time.monotonic() < until:
        start = 0
        while start < len(remaining):
            fewer = remaining[:start] + remaining[start + size :]
            if fewer and fails(fewer):
                remaining = fewer
                report(_of(schedule.seed, remaining))
            else:
                start += size
        size //= 2
    for index, (number, step) in enumerate(remaining):
        calmer = [*remaining[:index], (number, replace(step, blow=None)), *remaining[index + 1 :]]
        if step.blow and fails(calmer):
            remaining = calmer
            report(_of(schedule.seed, remaining))
    return _of(schedule.seed, remaining)


def _of(seed: int, steps: Sequence[tuple[int, Step]]) -> Schedule:
    rounds = sorted({number for number, _ in steps})
    return Schedule(seed, tuple(tuple(s for n, s in steps if n == number) for number in rounds))
