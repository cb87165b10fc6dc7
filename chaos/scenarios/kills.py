"""SIGKILL of a run, at every step of a batch and at random moments."""

import random
from collections import Counter
from collections.abc import Iterator

from chaos import batches, oracle
from chaos.batches import PLANNING, STEPS, Blow
from chaos.load import Load
from chaos.oracle import Finding
from chaos.scenario import Outcome, ReportProgress
from chaos.sent import Sent
from chaos.stack import Stack
from chaos.surroundings import with_settings

RANDOM = "at a random moment"
TENANTS = 3
EVENTS = 120
"""Events of each tenant per batch."""
LONGEST_S = 4.0
"""Range of random moments in seconds: slightly more than an attempt takes."""


def run(stack: Stack | None, seed: int, amount: float, report_progress: ReportProgress) -> Outcome:
    """Kill attempts and planners the given number of times, while batches continue.

    Each step is hit at least once if the number allows. The same events go to other tenants without kills,
    whose tables must hold the same.
    """
    blows = _blows(seed)
    killed: Counter[str] = Counter()
    loads = [Load(seed + number) for number in range(TENANTS)]
    sent = [Sent(batches.make_tenant()) for _ in loads]
    tenants = [owner.tenant for owner in sent]
    rounds = 0
    with with_settings(**batches.ENDLESS_ATTEMPTS):
        while killed.total() < amount or rounds < len(PLANNING):  # each round has one planner to kill
            rounds += 1
            for load, owner in zip(loads, sent, strict=True):
                owner.send(load.events(EVENTS))
            points = [PLANNING[rounds % 2]] if rounds <= len(PLANNING) or rounds % 7 == 0 else []
            batch = batches.plan(tenants, *map(Blow, points))
            killed.update(points)
            for _ in range(4):
                now = batches.current(batch.batch_id)
                if now is None or killed.total() >= amount:
                    break
                blow = next(blows)
                if batches.strike(now, blow):
                    killed[blow.point.partition("@")[0] if blow.point else RANDOM] += 1
                    report_progress(killed.total())
            batches.finish(batch)
        batches.publish_overdue()
        calm = _without_faults(seed, rounds)
    differing = [
        Finding("differs from the run without faults", a.tenant.slug, f"and {b.tenant.slug}")
        for a, b in zip(sent, calm, strict=True)
        if oracle.content(a.tenant) != oracle.content(b.tenant)
    ]
    return Outcome([*sent, *calm], f"{killed.total()} kills", differing, places=killed)


def _without_faults(seed: int, rounds: int) -> list[Sent]:
    loads = [Load(seed + number) for number in range(TENANTS)]
    calm = [Sent(batches.make_tenant()) for _ in loads]
    for load, owner in zip(loads, calm, strict=True):
        owner.send(load.events(EVENTS * rounds))
    batches.finish(batches.plan([owner.tenant for owner in calm]), remaining_attempts=1)
    return calm


def _blows(seed: int) -> Iterator[Blow]:
    """Every step once; then alternately a random moment, and a step at its first, second or third pass."""
    draw = random.Random(seed)
    yield from map(Blow, draw.sample(STEPS, len(STEPS)))
    while True:
        for point in draw.sample(STEPS, len(STEPS)):
            yield Blow(after_s=draw.uniform(0, LONGEST_S))
            yield Blow(point if point.startswith("after.") else f"{point}@{draw.choice((1, 1, 2, 3))}")
