"""Shrink: the smallest part of a schedule that was found to go wrong still, by leaving steps out.

Processes that go on side by side are not the same twice: a part that went well is carried out a few times
before it is given up.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from chaos.operators.schedule import Schedule, Step

TRIES = 2
"""Times that a part is carried out before it is taken to go well."""

Wrong = Callable[[Schedule], bool]
"""Carries a schedule out; whether it goes wrong in the way that is looked for."""


def shrunk(
    schedule: Schedule,
    wrong: Wrong,
    seconds: float,
    told: Callable[[Schedule], None] = lambda smaller: None,
    tries: int = TRIES,
) -> Schedule:
    """The smallest schedule found within the time that goes wrong still: parts are left out, halves first.

    Args:
        schedule: that went wrong.
        wrong: what goes wrong.
        seconds: nothing is tried after this.
        told: called with each smaller one.
    """
    until = time.monotonic() + seconds

    def fails(steps: Sequence[tuple[int, Step]]) -> bool:
        return any(time.monotonic() < until and wrong(_of(schedule.seed, steps)) for _ in range(tries))

    left = [(number, step) for number, steps in enumerate(schedule.rounds) for step in steps]
    size = len(left) // 2
    while size and time.monotonic() < until:
        start = 0
        while start < len(left):
            fewer = left[:start] + left[start + size :]
            if fewer and fails(fewer):
                left = fewer
                told(_of(schedule.seed, left))
            else:
                start += size
        size //= 2
    for index, (number, step) in enumerate(left):
        calmer = [*left[:index], (number, replace(step, blow=None)), *left[index + 1 :]]
        if step.blow and fails(calmer):
            left = calmer
            told(_of(schedule.seed, left))
    return _of(schedule.seed, left)


def _of(seed: int, steps: Sequence[tuple[int, Step]]) -> Schedule:
    rounds = sorted({number for number, _ in steps})
    return Schedule(seed, tuple(tuple(s for n, s in steps if n == number) for number in rounds))
