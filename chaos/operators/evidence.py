"""Evidence of a tenant, read from the outside: tables, objects, and Postgres."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.types.multirange import Multirange
from pyiceberg.table import Table
from xxhash import xxh3_128_digest

from chaos import oracle
from chaos.oracle import Lake
from chaos.sent import Position
from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import iceberg, postgres

SETTLED = "SELECT partition, settled_offset FROM ingest_positions WHERE tenant_id = %s"
RANGES = """
SELECT r.partition, r.duplicate_offsets, r.absent_offsets, b.planned_at, r.settled_at
FROM ingest_ranges r JOIN ingest_batches b USING (batch_id)
WHERE r.tenant_id = %s AND r.settled_at IS NOT NULL
"""
LETTERS = """
SELECT partition, event_offset, dataset, event_id, reason, payload, resolution, settled_at, resolved_at
FROM dead_letters WHERE tenant_id = %s
"""
ERASED = "SELECT partition, offsets FROM erased_offsets WHERE tenant_id = %s"
DELETED = """
SELECT dataset_id, slug, metadata_location, deleted_at FROM deleted_datasets
WHERE tenant_id = %s ORDER BY deleted_at
"""
CLAIMS = """
SELECT d.dataset_id, d.claim_seed, c.digests FROM pdm_datasets d
LEFT JOIN processed_event_ids c USING (dataset_id) WHERE d.tenant_id = %s
"""
EVER = datetime.max.replace(tzinfo=UTC)


class Letter(NamedTuple):
    """A dead letter."""

    slug: str | None
    event_id: str | None
    reason: str
    payload: bytes
    resolution: str | None
    settled_at: datetime
    resolved_at: datetime | None


class Copy(NamedTuple):
    """An offset that the ledger counts as a duplicate, and when it settled."""

    planned_at: datetime
    settled_at: datetime


@dataclass
class Claims:
    """Event ids claimed for a dataset's rows."""

    seed: int
    digests: set[bytes] = field(default_factory=set)

    def digest(self, event_id: str) -> bytes:
        return xxh3_128_digest(event_id.encode(), self.seed % 2**64)


@dataclass
class Life:
    """A dataset from creation to deletion; a slug may have had several."""

    dataset_id: UUID
    slug: str
    since: datetime
    until: datetime
    """`EVER`: it exists."""
    table: Table | None
    rows: dict[Position, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def deleted(self) -> bool:
        return self.until != EVER

    @cached_property
    def ids(self) -> dict[str, list[Position]]:
        """Positions of rows by event id."""
        positions: dict[str, list[Position]] = defaultdict(list)
        for position, rows in self.rows.items():
            for row in rows:
                positions[row["id"]].append(position)
        return positions


@dataclass
class Evidence:
    """All evidence of one tenant."""

    settled: Mapping[int, int]
    copies: dict[Position, Copy] = field(default_factory=dict)
    absent: set[Position] = field(default_factory=set)
    letters: dict[Position, Letter] = field(default_factory=dict)
    erased: list[Position] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    published: set[Position] = field(default_factory=set)
    """Dead letters on their topic."""
    claims: dict[UUID, Claims] = field(default_factory=dict)
    """Claims by existing dataset."""

    @classmethod
    def of(cls, tenant: Tenant) -> "Evidence":
        """Read a tenant's evidence. Raises OSError, PulseError: a table cannot be read."""
        arguments = [tenant.tenant_id]
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
            evidence = cls(dict(connection.execute(SETTLED, arguments).fetchall()))
            for partition, copies, absent, planned_at, settled_at in connection.execute(RANGES, arguments):
                evidence.copies |= dict.fromkeys(
                    _positions_in(partition, copies), Copy(planned_at, settled_at)
                )
                evidence.absent |= set(_positions_in(partition, absent))
            for partition, offset, *columns in connection.execute(LETTERS, arguments):
                letter = Letter(*columns)
                evidence.letters[partition, offset] = letter._replace(payload=bytes(letter.payload))
            for partition, offsets in connection.execute(ERASED, arguments):
                evidence.erased += _positions_in(partition, offsets)
            for dataset_id, seed, run in connection.execute(CLAIMS, arguments):
                evidence.claims.setdefault(dataset_id, Claims(seed)).digests.update(_digests(run or b""))
            deleted = connection.execute(DELETED, arguments).fetchall()
        evidence.published = {position for position, _ in oracle.published(tenant)}
        evidence.lives = list(_lives(tenant, deleted))
        return evidence

    @property
    def lake(self) -> Lake:
        """Existing tables."""
        return Lake({life.slug: life.table for life in self.lives if life.table and not life.deleted})

    def alive(self, slug: str, begin: datetime, end: datetime) -> list[Life]:
        """Datasets of a slug that existed at some moment in this period."""
        lives = (life for life in self.lives if life.slug == slug)
        return [life for life in lives if life.until >= begin and life.since <= end]


def _digests(run: bytes) -> Iterator[bytes]:
    """Split a run: the first halves of all digests, then the second ones, as little-endian numbers."""
    words = [run[at : at + 8][::-1] for at in range(0, len(run), 8)]
    half = len(words) // 2
    return (head + tail for head, tail in zip(words[:half], words[half:], strict=True))


def _positions_in(partition: int, spans: "Multirange[int]") -> Iterator[Position]:
    for span in spans:
        yield from ((partition, offset) for offset in range(span.lower or 0, span.upper or 0))


def _lives(tenant: Tenant, deleted: list[tuple[Any, ...]]) -> Iterator[Life]:
    last: dict[str, datetime] = defaultdict(lambda: datetime.min.replace(tzinfo=UTC))
    for dataset_id, slug, location, at in deleted:
        table = iceberg.load_table((tenant.namespace, slug), location) if location else None
        yield _read(Life(dataset_id, slug, last[slug], at, table))
        last[slug] = at
    for dataset in registry.list_datasets(tenant):
        location = registry.current_table(tenant, dataset.slug).metadata_location
        table = iceberg.load_table((tenant.namespace, dataset.slug), location)
        yield _read(Life(dataset.dataset_id, dataset.slug, last[dataset.slug], EVER, table))


def _read(life: Life) -> Life:
    for row in life.table.scan().to_arrow().to_pylist() if life.table else ():
        life.rows[row["_kafka_partition"], row["_offset"]].append(row)
    return life
