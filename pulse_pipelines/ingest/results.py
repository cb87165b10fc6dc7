"""The small values that the stages hand to each other. No payload bytes are in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING
from uuid import UUID

from pulse_pipelines.domain.batch import OffsetRange
from pulse_pipelines.domain.scope import Scope
from pulse_pipelines.tables.written_files import CandidateFile, RawPart

if TYPE_CHECKING:  # the command line imports this module, and none that takes long
    from pulse_pipelines.tables.claims import Fresh
    from pulse_pipelines.tables.heads import Append

SHARED_ATTEMPTS = 2
"""Attempts in which all tenants of a batch share a Spark job."""


@dataclass(frozen=True)
class Origin:
    """A request that events of a batch came with, in its own trace."""

    tenant_id: UUID
    traceparent: str
    """Its span, as W3C Trace Context has it."""
    received_ms: int
    """Append time of the first of these events that was read."""


@dataclass(frozen=True)
class Plan:
    """One attempt at a batch: the ranges that are not settled yet."""

    batch_id: str
    attempt: int
    ranges: tuple[OffsetRange, ...]
    scopes: Mapping[UUID, Scope]
    bulk: bool
    """Whether batches that are not go before it (see `ingest.priority`)."""
    traceparent: str | None = None
    """The attempt's span; None: traces are off."""
    origins: tuple[Origin, ...] = ()
    """Where its events came from, some of them, once they are drained."""

    @property
    def together(self) -> bool:
        """Whether its tenants share a Spark job; else each has its own, so that one which kills the executor
        stays behind alone."""
        return self.attempt <= SHARED_ATTEMPTS

    @property
    def isolates(self) -> bool:
        """Whether events that end their process are looked for: once the other tenants' have settled."""
        alone = len({r.tenant_id for r in self.ranges}) == 1
        return not self.together and (alone or self.attempt > SHARED_ATTEMPTS + 1)

    @property
    def dead_letters_table(self) -> str:
        return f"dead_letters_{self.batch_id}_{self.attempt}"


NEVER_MS = 2**63 - 1
"""Later than every append time."""


@dataclass
class PartitionCount:
    """What one task drained of one partition; `absent` are offsets that hold no message."""

    drained: int = 0
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
    """What one task made of its ranges of one tenant's topic."""

    tenant_id: UUID
    part: int
    """Marks the rows that this task attempt put into the staging tables."""
    partitions: Mapping[int, PartitionCount]
    candidates: tuple[CandidateFile, ...]
    raw: tuple[RawPart, ...]
    ids: Mapping[UUID, bytes]
    """By dataset: the packed ids (see `digests.ArrivedIds`) of its accepted events, in received order."""
    copies: Mapping[UUID, Sequence[int]] = field(default_factory=dict)
    """By dataset: positions (see `parquet_files.position`) of copies that the task left out of its files."""
    origins: tuple[Origin, ...] = ()
    states: Mapping[UUID, bytes] = field(default_factory=dict)
    """By dataset of entities: the packed states (see `tables.heads`) of what is in `ids`, in its order."""


@dataclass(frozen=True)
class Failure:
    """A tenant whose part of the batch could not go on; the others do."""

    tenant_id: UUID
    step: str
    error: str
    by_event: bool = False
    """One of its events may be at fault: a process died, or something went wrong that no outage explains."""


@dataclass(frozen=True)
class Drained:
    plan: Plan
    topics: tuple[TopicDrained, ...]
    failures: tuple[Failure, ...] = ()


Positions = Mapping[int, list[int]]
"""Sorted offsets by partition."""


@dataclass(frozen=True)
class Gated:
    plan: Plan
    topics: tuple[TopicDrained, ...]
    duplicates: Mapping[UUID, Positions]
    """By dataset: positions of events whose id another event owns, and of unchanged entities."""
    fresh: "Mapping[UUID, Fresh]"
    """By dataset: the ids of the other events, which its rows are to have."""
    failures: tuple[Failure, ...] = ()
    """Of the stages so far, as everywhere below."""
    over_quota: Mapping[UUID, Positions] = field(default_factory=dict)
    """By dataset: positions of events that have no place in their month ..."""
    full: Mapping[UUID, str] = field(default_factory=dict)
    """... and by tenant, why."""
    added: "Mapping[UUID, Append]" = field(default_factory=dict)
    """By dataset of entities: the versions that land."""


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
    """What the snapshot adds: restaging after a lost swap needs nothing else."""
    days: tuple[DayLanding, ...]


@dataclass(frozen=True)
class LandingFailed:
    """A dataset that cannot take the rows at all: they become dead letters."""

    tenant_id: UUID
    dataset_id: UUID
    error: str


@dataclass(frozen=True)
class Landed:
    plan: Plan
    topics: tuple[TopicDrained, ...]
    duplicates: Mapping[UUID, Positions]
    fresh: "Mapping[UUID, Fresh]"
    tables: tuple[StagedTable, ...]
    refused: tuple[LandingFailed, ...] = ()
    failures: tuple[Failure, ...] = ()
    over_quota: Mapping[UUID, Positions] = field(default_factory=dict)
    full: Mapping[UUID, str] = field(default_factory=dict)
    added: "Mapping[UUID, Append]" = field(default_factory=dict)


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
