"""The values that stages of ingestion pass to each other; they are small, and hold no payloads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING
from uuid import UUID

from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.batch import OffsetRange
from pulse_pipelines.tables.ledger import Landing
from pulse_pipelines.tables.written_files import CandidateFile, RawPart

if TYPE_CHECKING:  # the command line imports this module: slow imports would delay its start
    from pulse_pipelines.claims.claim_runs import Fresh
    from pulse_pipelines.entities.heads import Append

SHARED_ATTEMPTS = 2
"""Attempts in which all tenants of a batch share a Spark job."""


@dataclass(frozen=True)
class Origin:
    """The trace of a request that sent events of a batch."""

    tenant_id: UUID
    traceparent: str
    """The request's span, in the form of W3C Trace Context."""
    received_ms: int
    """Append time of the first of these events that was read."""


NAMED = 10
"""Tenants that an error of a batch names."""
PATIENCE = 5
"""A later attempt may take as many times longer, up to this: the machine may be too busy for the first."""
NEXT_STEP = "Another attempt follows by itself; a batch whose attempts are used up is in `pulse status`"


@dataclass(frozen=True)
class Plan:
    """One attempt at a batch: its unsettled ranges, and the datasets of their tenants."""

    batch_id: str
    attempt: int
    ranges: tuple[OffsetRange, ...]
    scopes: Mapping[UUID, Scope]
    bulk: bool
    """Whether small batches take precedence over it (see `ingest.priority`)."""
    traceparent: str | None = None
    """The attempt's span; None: traces are off."""
    origins: tuple[Origin, ...] = ()
    """The requests that sent its events (a sample, once they are drained)."""

    @property
    def patience(self) -> int:
        """How many times longer than a first attempt it waits for services."""
        return min(self.attempt, PATIENCE)

    @property
    def together(self) -> bool:
        """Whether its tenants share a Spark job; else each has its own, so that one tenant whose events kill
        the executor does not hold up the others."""
        return self.attempt <= SHARED_ATTEMPTS

    @property
    def isolates(self) -> bool:
        """Whether to search for events that kill their process: only after the other tenants have settled."""
        alone = len({r.tenant_id for r in self.ranges}) == 1
        return not self.together and (alone or self.attempt > SHARED_ATTEMPTS + 1)

    @property
    def dead_letters_table(self) -> str:
        return f"dead_letters_{self.batch_id}_{self.attempt}"

    @property
    def about(self) -> dict[str, object]:
        """What it is, for errors: the batch, the attempt, and the first tenants."""
        slugs = sorted(scope.tenant.slug for scope in self.scopes.values())
        named = " ".join(slugs[:NAMED]) + (f" and {len(slugs) - NAMED} more" if len(slugs) > NAMED else "")
        return {"batch": self.batch_id, "attempt": self.attempt, "tenants": named}


NEVER_MS = 2**63 - 1
"""Later than every append time."""


@dataclass
class PartitionCount:
    """Counts of what one task drained from one partition; `absent` are offsets that hold no message."""

    drained: int = 0
    bytes: int = 0
    """Sum of the payloads."""
    oldest_ms: int = NEVER_MS
    """The earliest append time among the drained."""
    dead_letters: int = 0
    counted: list[int] = field(default_factory=list)
    """Offsets of messages with the header `quota.COUNTED`."""
    absent: list[tuple[int, int]] = field(default_factory=list)
    accepted: dict[UUID, int] = field(default_factory=dict)
    """Rows in candidate files, by dataset."""


@dataclass(frozen=True)
class TopicDrained:
    """The result of one task for one tenant's topic: counts, files and ids."""

    tenant_id: UUID
    part: int
    """Mark of the rows that this task attempt wrote to the staging tables."""
    partitions: Mapping[int, PartitionCount]
    candidates: tuple[CandidateFile, ...]
    raw: tuple[RawPart, ...]
    ids: Mapping[UUID, bytes]
    """By dataset: the packed ids (see `digests.ArrivedIds`) of its accepted events, in received order."""
    copies: Mapping[UUID, Sequence[int]] = field(default_factory=dict)
    """By dataset: positions (see `parquet_files.position`) of duplicates left out of the task's files."""
    origins: tuple[Origin, ...] = ()
    states: Mapping[UUID, bytes] = field(default_factory=dict)
    """By dataset of entities: the packed states (see `entities.heads`) of the entities in `ids`, in order."""


@dataclass(frozen=True)
class Failure:
    """The failure of one tenant's part of a batch at a stage; the other parts continue."""

    tenant_id: UUID
    step: str
    error: str
    by_event: bool = False
    """Whether one of its events may be at fault: a process died, or the error is not an outage."""


@dataclass(frozen=True)
class Drained:
    plan: Plan
    topics: tuple[TopicDrained, ...]
    failures: tuple[Failure, ...] = ()


Positions = Mapping[int, list[int]]
"""Sorted offsets by partition."""


@dataclass(frozen=True)
class Verdicts:
    """What the gate decided about the accepted events of a batch, or of one tenant of it."""

    duplicates: dict[UUID, Positions] = field(default_factory=dict)
    """By dataset: positions of duplicates (their id belongs to another event), and of unchanged entities."""
    fresh: "dict[UUID, Fresh]" = field(default_factory=dict)
    """By dataset: the ids of the events that land, which settle claims for their rows."""
    over_quota: dict[UUID, Positions] = field(default_factory=dict)
    """By dataset: positions of events beyond the monthly quota."""
    quota_reasons: dict[UUID, str] = field(default_factory=dict)
    """By tenant: the reason given for events beyond the quota."""
    appends: "dict[UUID, Append]" = field(default_factory=dict)
    """By dataset of entities: the versions that land."""

    def include(self, verdicts: "Verdicts") -> None:
        """Add the verdicts about another tenant."""
        self.duplicates.update(verdicts.duplicates)
        self.fresh.update(verdicts.fresh)
        self.over_quota.update(verdicts.over_quota)
        self.quota_reasons.update(verdicts.quota_reasons)
        self.appends.update(verdicts.appends)

    def duplicates_of(self, dataset_id: UUID, partition: int) -> list[int]:
        """Offsets of a dataset's duplicates in a partition."""
        return self.duplicates.get(dataset_id, {}).get(partition, [])

    def over_quota_of(self, dataset_id: UUID, partition: int) -> list[int]:
        """Offsets of a dataset's events beyond the quota in a partition."""
        return self.over_quota.get(dataset_id, {}).get(partition, [])


@dataclass(frozen=True)
class Gated:
    plan: Plan
    topics: tuple[TopicDrained, ...]
    verdicts: Verdicts
    failures: tuple[Failure, ...] = ()
    """Failures of all stages so far, here and in the classes below."""


@dataclass(frozen=True)
class DayLanding:
    day: date
    rows: int
    duplicates: int
    bytes: int
    files: int


@dataclass(frozen=True)
class StagedTable:
    """The next metadata of one table, written but not yet pointed at."""

    tenant_id: UUID
    dataset_id: UUID
    slug: str
    table: tuple[str, str]
    old_location: str
    new_location: str
    snapshot_id: int | None
    files: tuple[CandidateFile, ...]
    """Files that the snapshot adds: all that restaging after a lost swap needs."""
    days: tuple[DayLanding, ...]

    def landings(self, batch: str) -> Iterator[Landing]:
        """The ledger's landings of a batch in this table, one per day."""
        for day in self.days:
            yield Landing(
                batch_id=batch,
                tenant_id=self.tenant_id,
                dataset_id=self.dataset_id,
                slug=self.slug,
                day=day.day,
                rows=day.rows,
                duplicates=day.duplicates,
                bytes=day.bytes,
                files=day.files,
                snapshot_id=self.snapshot_id,
                metadata_location=self.new_location,
            )


@dataclass(frozen=True)
class LandingFailed:
    """A dataset whose table cannot take the batch's rows: they become dead letters."""

    tenant_id: UUID
    dataset_id: UUID
    error: str


@dataclass(frozen=True)
class Landed:
    plan: Plan
    topics: tuple[TopicDrained, ...]
    verdicts: Verdicts
    tables: tuple[StagedTable, ...]
    refused: tuple[LandingFailed, ...] = ()
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True)
class TenantSettled:
    tenant_id: UUID
    drained: int
    landed: int
    duplicates: int
    dead_letters: int


@dataclass(frozen=True)
class Settled:
    plan: Plan
    tenants: tuple[TenantSettled, ...]
    tables: tuple[StagedTable, ...]
    failures: tuple[Failure, ...] = ()
