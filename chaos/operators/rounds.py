"""Rounds of a tenant: its datasets at the end of each, and thus their possible states in between."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres

NOW = "SELECT clock_timestamp()"


class DatasetState(NamedTuple):
    """A dataset at one moment."""

    dataset_id: UUID
    version: int


@dataclass
class Rounds:
    """Rounds of one tenant, from 1 on; no command is active when one ends."""

    tenant: Tenant
    ends: list[tuple[datetime, dict[str, DatasetState]]] = field(default_factory=list)
    """End by Postgres' clock, with the datasets by slug; the first entry starts round 1."""
    aims: dict[int, set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    """By round: slug and version that a dataset may have moved to, or been created with."""

    @property
    def number(self) -> int:
        """Number of the current round."""
        return len(self.ends)

    def end(self) -> None:
        """End the round: record the datasets."""
        datasets = registry.list_datasets(self.tenant)
        with postgres.transaction("pulse_pipeline") as connection:
            ((now,),) = connection.execute(NOW).fetchall()
        self.ends.append((now, {d.slug: DatasetState(d.dataset_id, d.schema_version) for d in datasets}))

    def expect(self, slug: str, version: int) -> None:
        """Announce that a dataset may move to a version, or be created with it."""
        self.aims[self.number].add((slug, version))

    def holds(self, number: int, at: datetime) -> bool:
        """Whether a moment lies in a round."""
        return self.ends[number - 1][0] <= at <= self.ends[number][0]

    def versions(self, slug: str, at: datetime) -> tuple[frozenset[int], bool]:
        """Versions that a dataset may have followed, and whether it may have been absent, in the round of a
        moment."""
        possible: set[int] = set()
        absent = False
        for number in range(1, len(self.ends)):
            if not self.holds(number, at):
                continue
            first, last = self.ends[number - 1][1].get(slug), self.ends[number][1].get(slug)
            aims = {version for name, version in self.aims[number] if name == slug}
            if first and last and first.dataset_id == last.dataset_id:
                possible |= {first.version, last.version}
                possible |= {version for version in aims if first.version <= version <= last.version}
            else:
                possible |= aims | {dataset.version for dataset in (first, last) if dataset}
                absent = True
        return frozenset(possible), absent
