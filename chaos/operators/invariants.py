"""Verdict on a tenant's evidence: everything that no order of the commands explains.

A message's fate may depend on its dataset's existence and schema version at its validation: whatever held
within the round in which it settled is accepted, and nothing else.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain, combinations
from typing import Any

import orjson

from chaos.operators.events import Event
from chaos.operators.evidence import EVER, Copy, Evidence, Letter, Life
from chaos.operators.world import Progress, World
from chaos.oracle import Finding, some
from chaos.sent import Position
from pulse_pipelines.domain.reasons import Reason

Violations = Iterator[tuple[str, list[Any]]]

OF_HOSTILE = (Reason.INVALID_TIMESTAMP, Reason.TIMESTAMP_OUT_OF_RANGE, Reason.INVALID_ENVELOPE)
"""Reasons that are accepted for a hostile event, whatever its data."""


def find_violations(world: World, evidence: Evidence) -> list[Finding]:
    """Find all violated invariants of a tenant whose messages are all settled."""
    case = _Case(world, evidence)
    violations = chain(
        *(case.by_position(), case.by_row(), case.by_letter()),
        *(case.by_copy(), case.by_claim(), case.by_quota()),
    )
    return [Finding(kind, world.tenant.slug, some(wrong)) for kind, wrong in violations if wrong]


class _Case:
    """A tenant's evidence, compared with the harness's knowledge."""

    def __init__(self, world: World, evidence: Evidence) -> None:
        self.world, self.evidence = world, evidence
        self.events = world.positions()
        self.lost_replays = world.lost_replays()

    @cached_property
    def rows(self) -> Counter[Position]:
        """Number of rows of each message."""
        lives = self.evidence.lives
        return Counter({p: len(rows) for life in lives for p, rows in life.rows.items()})

    @cached_property
    def alike(self) -> dict[tuple[str, str | None], list[Position]]:
        """Positions of messages by dataset and event id."""
        positions = defaultdict(list)
        for position, event in self.events.items():
            positions[event.slug, event.event_id].append(position)
        return positions

    @cached_property
    def erased(self) -> set[Position]:
        letters = self.evidence.letters.items()
        return {*self.evidence.erased, *(p for p, letter in letters if letter.resolution == "erased")}

    def settled(self, position: Position) -> bool:
        return position[1] < self.evidence.settled.get(position[0], 0)

    def by_position(self) -> Violations:
        """Check that each message is exactly one of row, copy, dead letter and erased."""
        yield "acknowledged, and not in the topic", self.world.unlocated()
        letters = self.evidence.letters.items()
        landed = {p for p, letter in letters if letter.resolution == "landed"}
        became = Counter(self.rows)
        became.update(self.evidence.copies.keys())
        became.update(p for p, _ in letters if p not in landed)
        became.update(self.evidence.erased)
        became.update(self.evidence.absent)
        settled_events = {p: event for p, event in self.events.items() if self.settled(p)}
        yield "lost", [(p, event.event_id) for p, event in settled_events.items() if not became[p]]
        yield "double", [p for p, count in became.items() if count > 1]
        expected = {*settled_events, *self.evidence.absent, *self.world.unseen()}
        yield "from nowhere", [p for p in became if p not in expected]
        yield "never settled", [p for p in self.events if p not in settled_events]
        everywhere = ((p, at) for p, end in self.evidence.settled.items() for at in range(end))
        yield "settled, and no message", [p for p in everywhere if p not in expected]
        yield "a dead letter that landed, and has no row", [p for p in landed if not self.rows[p]]
        yield "skipped, and not lost", sorted(self.evidence.absent - self.world.removed())

    def by_quota(self) -> Violations:
        """Check that rows do not exceed the month's quota."""
        rows = self.rows.total() + len(self.evidence.erased)
        most = max(self.world.quotas, default=rows)
        yield "more rows than the quota", [f"{rows} rows, the quota was {most} at most"] * (rows > most)

    def by_row(self) -> Violations:
        """Check that an id has one row per dataset, with its event's content, valid by some version."""
        for life in self.evidence.lives:
            name = f"{life.slug}{', deleted' if life.deleted else ''}"
            yield f"{name}: double ids", [(i, where) for i, where in life.ids.items() if not self._may(where)]
            differing, refused = [], []
            for position, rows in life.rows.items():
                if (event := self.events.get(position)) is None:
                    continue
                for row in rows:
                    if (life.slug, row["id"]) != (event.slug, event.event_id) or not _says(row, event):
                        differing.append((position, row["id"]))
                    elif row["schema_version"] not in event.versions:
                        refused.append((position, row["id"], row["schema_version"]))
            yield f"{name}: rows that differ from their event", differing
            yield f"{name}: rows that their schema version refuses", refused

    def _may(self, where: list[Position]) -> bool:
        """Whether one id may have several rows: each claim was forgotten before the next event was sent."""
        return all(
            any(self._between(a, forgot, b) or self._between(b, forgot, a) for forgot in self.world.forgets)
            for a, b in combinations(where, 2)
        )

    def _between(self, a: Position, forgot: Progress, b: Position) -> bool:
        letter = self.evidence.letters.get(b)  # a letter landed by a later backfill counts as later
        landed = letter is not None and letter.resolved_at is not None and letter.resolved_at >= forgot.at
        return self._before(a, forgot.planned) and (landed or not self._before(b, forgot.settled))

    @staticmethod
    def _before(position: Position, ends: Mapping[int, int]) -> bool:
        return position[1] < ends.get(position[0], 0)

    def by_letter(self) -> Violations:
        """Check that a dead letter has its event's bytes, a reason, and, if replayed, a successor."""
        differing, wrong, unfollowed, letters = [], [], [], self.evidence.letters.items()
        for position, letter in letters:
            if (event := self.events.get(position)) is None or letter.resolution == "erased":
                continue
            if letter.payload != event.payload:
                differing.append(position)
            if not self._may_be(letter, event):
                wrong.append((position, event.event_id, letter.reason))
            if letter.resolution == "replayed" and not self._followed(letter, event):
                unfollowed.append((position, event.event_id))
        unpublished = [p for p, letter in letters if letter.resolution != "erased"]
        unpublished = [p for p in unpublished if p not in self.evidence.published]
        yield "a dead letter that is not on its topic", unpublished
        yield "a dead letter with other bytes than its event", differing
        yield "a dead letter for no reason", wrong
        yield "a replayed dead letter of which nothing came", unfollowed

    def _may_be(self, letter: Letter, event: Event) -> bool:
        """Whether an event may have become this dead letter when it settled."""
        versions, absent = self.world.rounds.versions(event.slug, letter.settled_at)
        if letter.reason == Reason.UNDECODABLE:
            return event.event_id is None
        if letter.reason == Reason.UNKNOWN_DATASET:
            return absent or not versions
        if letter.reason == Reason.LANDING_FAILED:
            return absent
        if letter.reason == Reason.SCHEMA_VIOLATION:
            return any(not event.valid(version) for version in versions)
        if letter.reason == Reason.UNKNOWN_SCHEMA_VERSION:
            return event.named is not None and {event.named} != versions
        if letter.reason == Reason.UNREPRESENTABLE:  # depends on the columns, which follow another version
            return event.named is not None
        return event.hostile and letter.reason in OF_HOSTILE

    def _followed(self, letter: Letter, event: Event) -> bool:
        """Whether a replay has a result: a row, another dead letter, or an accepted loss."""
        assert letter.resolved_at
        if self._has_row(event, self.evidence.alive(event.slug, letter.resolved_at, EVER)):
            return True
        alike = self.alike[event.slug, event.event_id]
        letters = (self.evidence.letters[p] for p in alike if p in self.evidence.letters)
        unresolved = any(letter.resolution in (None, "discarded") for letter in letters)
        lost = (event.slug, event.event_id) in self.lost_replays
        lost = lost or self.world.lost_unseen(letter.resolved_at)
        return unresolved or lost

    def by_copy(self) -> Violations:
        """Check that a copy was dropped in favour of a row."""
        copies = self.evidence.copies.items()
        of_events = ((p, copy, self.events[p]) for p, copy in copies if p in self.events)
        yield (
            "a copy of nothing",
            [(p, event.event_id) for p, copy, event in of_events if not self._copied(copy, event)],
        )

    def _copied(self, copy: Copy, event: Event) -> bool:
        if self._has_row(event, self.evidence.alive(event.slug, copy.planned_at, copy.settled_at)):
            return True
        for other in self.alike[event.slug, event.event_id]:
            letter = self.evidence.letters.get(other)
            # Its original failed to land because of its table, or has the same content: it can be replayed.
            if letter and (
                letter.reason == Reason.LANDING_FAILED or self.events[other].payload == event.payload
            ):
                return True
        return False

    def _has_row(self, event: Event, lives: list[Life]) -> bool:
        """Whether a row of one of these datasets has the event's id, or had it until an erasure."""
        erased = (p in self.erased for p in self.alike[event.slug, event.event_id])
        return any(event.event_id in life.ids for life in lives) or any(erased)

    def by_claim(self) -> Violations:
        """Check that exactly the rows' ids are claimed: otherwise events land twice, or never."""
        for life in self.evidence.lives:
            if life.deleted:
                continue
            claims = self.evidence.claims[life.dataset_id]
            rows = {claims.digest(event_id): (event_id, where) for event_id, where in life.ids.items()}
            missing = [row for digest, row in rows.items() if digest not in claims.digests]
            yield (
                f"{life.slug}: rows without a claim",
                [row for row in missing if not self._forgotten(row[1])],
            )
            events = (self.events[p] for p in self.erased if p in self.events)
            erased = {claims.digest(event.event_id) for event in events if event.event_id}
            yield f"{life.slug}: claims without a row", sorted(claims.digests - rows.keys() - erased)

    def _forgotten(self, where: list[Position]) -> bool:
        """Whether the claims of all rows of an id may have been forgotten."""
        return all(any(self._before(p, forgot.planned) for forgot in self.world.forgets) for p in where)


def _says(row: dict[str, Any], event: Event) -> bool:
    extra = orjson.loads(row["_extra"] or "{}")
    return all(row.get(name) == value or extra.get(name) == value for name, value in event.fields.items())
