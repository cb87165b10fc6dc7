"""The rounds of a tenant: what its datasets were when each ended, and so can have been in between."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres

NOW = "SELECT clock_timestamp()"


class Held(NamedTuple):
    """A dataset at one moment."""

    dataset_id: UUID
    version: int


@dataclass
class Rounds:
    """Those of one tenant, from 1 on; nothing is done to it when one ends."""

    tenant: Tenant
    ends: list[tuple[datetime, dict[str, Held]]] = field(default_factory=list)
    """By Postgres' clock, with the datasets by slug; the first is where round 1 begins."""
    aims: dict[int, set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    """By round, slug and version that a dataset may have moved to, or begun with."""

    @property
    def number(self) -> int:
        """Of the round that goes on."""
        return len(self.ends)

    def end(self) -> None:
        """Look at the datasets: the round has ended."""
        datasets = registry.list_datasets(self.tenant)
        with postgres.transaction("pulse_pipeline") as connection:
            ((now,),) = connection.execute(NOW).fetchall()
        self.ends.append((now, {d.slug: Held(d.dataset_id, d.schema_version) for d in datasets}))

    def expect(self, slug: str, version: int) -> None:
        """A dataset is about to move to a version, or to begin with it."""
        self.aims[self.number].add((slug, version))

    def holds(self, number: int, at: datetime) -> bool:
        """Whether a moment is in the round of a number."""
        return self.ends[number - 1][0] <= at <= self.ends[number][0]

    def versions(self, slug: str, at: datetime) -> tuple[frozenset[int], bool]:
        """The versions that a dataset may have followed, and whether it may have been absent, in the round
        that a moment is in."""
        found: set[int] = set()
        absent = False
        for number in range(1, len(self.ends)):
            if not self.holds(number, at):
                continue
            first, last = self.ends[number - 1][1].get(slug), self.ends[number][1].get(slug)
            aims = {version for name, version in self.aims[number] if name == slug}
            if first and last and first.dataset_id == last.dataset_id:
                found |= {first.version, last.version}
                found |= {version for version in aims if first.version <= version <= last.version}
            else:
                found |= aims | {held.version for held in (first, last) if held}
                absent = True
        return frozenset(found), absent
