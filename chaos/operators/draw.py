"""Schedules drawn by a seed: which commands run, how often, and which of them are killed."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from chaos import batches
from chaos.operators.events import DAYS, PERSONS, SLUGS, VERSIONS
from chaos.operators.schedule import AT_A_TIME, EVERYONE, METERED, TENANTS, Blow, Round, Schedule, Step

SPREAD_S = 2.0
"""Steps start within this time of their round's start."""
KILLED, PAUSED = 0.35, 0.1
"""Shares of killed and of paused commands."""
FOCUSED = 0.75
"""Share of steps on the round's aim ..."""
ELSEWHERE = 0.2
"""... and of rounds whose aim differs from the previous one's."""
DYING = 0.3
"""Share of rounds in which an attempt is killed; the next round makes a change before the retry."""
CLAIMED = ("gate.after_lookup", "after.dedup_gate", "land.after_stage", "after.land", "settle.before_commit")
CHANGES = ("move", "move", "replay", "delete", "create", "erase", "discard", "backfill")
LOSSES, STILL, QUOTAS, AGES = 0.15, 0.1, 0.15, 0.05
"""Shares of rounds with lost events, a stopped broker, a changed quota, aged claims."""
LATER = 4
"""Maximum number of rounds until a killed command is repeated."""
IN_SPARK = ("drain.", "files.", "land.")
"""Fail points also passed in Spark's workers: a process stopped there would never be continued."""


@dataclass(frozen=True)
class Aim:
    """Subject of commands, which is the same for some rounds, so that they conflict."""

    tenant: int
    slug: str
    person: str
    day: int

    @classmethod
    def drawn(cls, draw: random.Random) -> "Aim":
        slug = draw.choices(SLUGS, (4, 3, 1))[0]
        return cls(draw.randrange(TENANTS), slug, draw.choice(PERSONS), draw.randrange(DAYS))


Drawn = Callable[[random.Random, Aim], dict[str, Any]]


@dataclass(frozen=True)
class _Kind:
    """A kind of command that can be drawn."""

    weight: float
    arguments: Drawn = lambda draw, aim: {}
    of_everyone: bool = False
    points: tuple[str, ...] = ()
    """Fail points at which it may be killed or stopped."""
    longest_s: float = 3.0
    """Approximate duration, for random moments."""


_REWRITE = ("rewrite.staged", "rewrite.before_commit", "rewrite.after_commit")
_COMMANDS = {
    "ingest": _Kind(6, of_everyone=True, points=(*batches.STEPS, *batches.PLANNING), longest_s=5),
    "replay": _Kind(
        4,
        lambda draw, aim: {
            "slug": draw.choice((None, aim.slug)),
            "version": draw.choice(tuple(VERSIONS)) if draw.random() < 0.15 else None,
            "limit": draw.choice((None, 3)),
        },
        points=("replay.before_mark",),
    ),
    "discard": _Kind(1, lambda draw, aim: {"slug": aim.slug, "limit": draw.randrange(1, 4)}, longest_s=1),
    "backfill": _Kind(
        3,
        lambda draw, aim: {
            "slug": aim.slug,
            "day": aim.day,
            "version": draw.choice((None, None, draw.choice(tuple(VERSIONS)))),
        },
        points=("backfill.rebuilt", "files.before_put", "files.after_put", *_REWRITE),
        longest_s=5,
    ),
    "move": _Kind(
        2,
        lambda draw, aim: {"slug": aim.slug, "version": draw.choice((2, 3, 3, 4, 5))},
        points=(
            "move.staged",
            "move.rewritten",
            "move.before_swap",
            "move.after_swap",
            "move.before_commit",
            "move.after_commit",
        ),
        longest_s=2,
    ),
    "delete": _Kind(0.7, lambda draw, aim: {"slug": aim.slug}, longest_s=1),
    "create": _Kind(
        1.4, lambda draw, aim: {"slug": aim.slug, "version": draw.choice((1, 1, 1, 2, 3))}, longest_s=1
    ),
    "erase": _Kind(
        1.5,
        lambda draw, aim: {"slug": aim.slug, "person": aim.person},
        points=(
            "erase.planned",
            *(f"erase.after.{step}" for step in ("rows", "dead_letters", "raw_zone", "history", "curated")),
            "erase.letters.before_commit",
            "erase.raw.before_commit",
            "erase.raw.before_delete",
            *_REWRITE,
        ),
    ),
    "upkeep": _Kind(
        2,
        lambda draw, aim: {"tasks": draw.choice((None, ["merge"], ["sort"], ["expire", "sweep"], ["raw"]))},
        of_everyone=True,
        points=("upkeep.after_spark", "upkeep.before_delete", "rewrite.staged"),
        longest_s=8,
    ),
    "curate": _Kind(
        1.5,
        of_everyone=True,
        points=("curate.staged", "curate.before_swap", "curate.before_commit", "curate.after_commit"),
        longest_s=8,
    ),
    "retain": _Kind(
        0.4, lambda draw, aim: {"data": draw.choice(("raw objects", "claims"))}, points=("upkeep.removed",)
    ),
}


_CAUSED = {
    # Commands that accompany an action of the harness.
    "accept": _Kind(0, longest_s=0.5),
    "quota": _Kind(0, lambda draw, aim: {"records": draw.choice((30, 60, 90))}, longest_s=1),
}


def drawn(seed: int, rounds: int) -> Schedule:
    """Schedule of a seed; a longer one starts with the shorter one."""
    draw = random.Random(seed)
    return Schedule(seed, tuple(_rounds(draw, rounds)))


def _rounds(draw: random.Random, count: int) -> Iterator[Round]:
    focus, dying = Aim.drawn(draw), False
    for _ in range(count):
        if draw.random() < ELSEWHERE:
            focus = Aim.drawn(draw)
        if dying:
            steps, dying = _change(draw, focus), False
        else:
            dying = draw.random() < DYING
            steps = _claimed(draw, focus) if dying else _round(draw, focus)
        yield tuple(sorted(steps, key=lambda step: step.after_s))


def _round(draw: random.Random, focus: Aim) -> Iterator[Step]:
    yield from _acts(draw, focus)
    for name in draw.choices(tuple(_COMMANDS), [kind.weight for kind in _COMMANDS.values()], k=AT_A_TIME):
        yield _command(draw, name, _aim(draw, focus))


def _claimed(draw: random.Random, focus: Aim) -> Iterator[Step]:
    """Kill an attempt after it has claimed ids, without an immediate retry ..."""
    for _ in range(3):
        yield replace(_send(draw, focus), after_s=0.0)
    yield replace(_command(draw, "ingest", focus), after_s=1.5, blow=Blow(draw.choice(CLAIMED)), later=2)


def _change(draw: random.Random, focus: Aim) -> Iterator[Step]:
    """... and make a change before the retry."""
    if draw.random() < DYING:
        yield from _lose(draw, focus)
    for name in draw.choices(CHANGES, k=3):
        yield _command(draw, name, focus)


def _aim(draw: random.Random, focus: Aim) -> Aim:
    return focus if draw.random() < FOCUSED else Aim.drawn(draw)


def _acts(draw: random.Random, focus: Aim) -> Iterator[Step]:
    """Actions of the harness, and the operator commands that they require."""
    for _ in range(draw.randrange(2, 5)):
        yield _send(draw, _aim(draw, focus))
    if draw.random() < LOSSES:
        yield from _lose(draw, _aim(draw, focus))
    if draw.random() < STILL:
        yield _send(draw, replace(focus, tenant=METERED), still_s=3.0)
    if draw.random() < QUOTAS:
        yield _command(draw, "quota", replace(focus, tenant=METERED))
    if draw.random() < AGES:
        aim = _aim(draw, focus)
        yield Step("age", aim.tenant, after_s=_moment(draw))
        yield replace(_command(draw, "retain", aim), arguments={"data": "claims"})


def _lose(draw: random.Random, aim: Aim) -> Iterator[Step]:
    how = draw.choices(("retention", "recreated", "fewer"), (4, 4, 1))[0]
    where, share = draw.choice(([0], [1], [0, 1])), draw.choice((0.3, 0.7, 1.0))
    lost = Step("lose", aim.tenant, {"how": how, "partitions": where, "share": share}, _moment(draw))
    yield lost
    yield replace(_command(draw, "accept", aim), after_s=round(lost.after_s + draw.uniform(0, 2), 2))


def _send(draw: random.Random, aim: Aim, still_s: float = 0.0) -> Step:
    arguments = {"slug": aim.slug, "count": draw.randrange(3, 25), "seed": draw.randrange(2**31)}
    if aim.tenant == METERED:
        return Step("collect", aim.tenant, arguments | {"still_s": still_s}, _moment(draw))
    return Step("send", aim.tenant, arguments, _moment(draw))


def _command(draw: random.Random, name: str, aim: Aim) -> Step:
    kind = _COMMANDS.get(name) or _CAUSED[name]
    tenant = EVERYONE if kind.of_everyone else aim.tenant
    arguments, later = kind.arguments(draw, aim), draw.randrange(1, LATER)
    return Step(name, tenant, arguments, _moment(draw), _blow(draw, kind), later)


def _moment(draw: random.Random) -> float:
    return round(draw.uniform(0, SPREAD_S), 2)


def _blow(draw: random.Random, kind: _Kind) -> Blow | None:
    fate, pause_s = draw.random(), round(draw.uniform(0.5, 4), 2)
    if fate >= KILLED + PAUSED:
        return None
    paused = pause_s if fate >= KILLED else None
    points = kind.points if paused is None else [p for p in kind.points if not p.startswith(IN_SPARK)]
    if points and draw.random() < 0.6:
        point = draw.choice(points)
        again = draw.choice((1, 1, 2, 3)) if not point.startswith("after.") else 1
        return Blow(point if again == 1 else f"{point}@{again}", pause_s=paused)
    return Blow(after_s=round(draw.uniform(0, kind.longest_s), 2), pause_s=paused)
