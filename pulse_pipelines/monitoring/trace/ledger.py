"""Ledger records of a position in a tenant's topic, and of a commit to a day; in the tenant's session."""

from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring.trace.fate import Rebuild
from pulse_resources import postgres

POSITIONS = """
SELECT partition, settled_offset AS settled, base_offset AS base FROM ingest_positions
WHERE tenant_id = %s ORDER BY partition
"""
# An offset belongs to the last range that begins at or before it.
RANGE = """
SELECT batch_id, settled_at, duplicate_offsets @> %(offset)s::int8, absent_offsets @> %(offset)s::int8
FROM (
    SELECT * FROM ingest_ranges
    WHERE tenant_id = %(tenant)s AND partition = %(partition)s AND start_offset <= %(offset)s
    ORDER BY start_offset DESC LIMIT 1) last
WHERE end_offset > %(offset)s
"""
ERASED_BY = """
SELECT erasure_id FROM erased_offsets
WHERE tenant_id = %(tenant)s AND partition = %(partition)s AND offsets @> %(offset)s::int8
"""
SLUGS = "SELECT DISTINCT slug FROM landings WHERE tenant_id = %s AND batch_id = %s AND rows > 0 ORDER BY slug"
RAW = """
SELECT path, start, bytes FROM raw_objects
WHERE tenant_id = %s AND batch_id = %s AND removed_at IS NULL ORDER BY path, start
"""
LANDING = """
SELECT snapshot_id, landed_at FROM landings
WHERE tenant_id = %(tenant)s AND batch_id = %(batch)s AND dataset_id = %(dataset)s AND day = %(day)s
"""
REBUILDS = """
SELECT backfill_id, settled_at FROM backfills
WHERE tenant_id = %(tenant)s AND dataset_id = %(dataset)s AND day = %(day)s
    AND (%(since)s::timestamptz IS NULL OR settled_at > %(since)s) ORDER BY settled_at
"""
ERASURES = "SELECT EXISTS (SELECT FROM erasures WHERE tenant_id = %s AND dataset_id = %s)"
CLAIMS_RETIRED = "SELECT coalesce(max(claims_from), 0) FROM ingest_positions WHERE tenant_id = %s"


@dataclass(frozen=True)
class Position:
    """Settled position of a partition."""

    partition: int
    settled: int
    base: int
    """Added to the broker's offsets."""


@dataclass(frozen=True)
class Place:
    """Ledger record of a planned offset."""

    erasure_id: str | None
    batch_id: str
    settled_at: datetime | None
    duplicate: bool | None
    absent: bool | None


def positions(tenant: Tenant) -> dict[int, Position]:
    """Settled positions by partition."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        positions = postgres.select(connection, Position, POSITIONS, [tenant.tenant_id])
    return {position.partition: position for position in positions}


def place(tenant: Tenant, partition: int, offset: int) -> Place | None:
    """Ledger record of an offset; None: no batch has it."""
    values = {"tenant": tenant.tenant_id, "partition": partition, "offset": offset}
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        row = connection.execute(RANGE, values).fetchone()
        erased = connection.execute(ERASED_BY, values).fetchone()
    return None if row is None else Place(erased[0] if erased else None, *row)


def slugs(tenant: Tenant, batch: str) -> list[str]:
    """Datasets in which a batch landed rows."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return [slug for (slug,) in connection.execute(SLUGS, [tenant.tenant_id, batch])]


def raw_parts(tenant: Tenant, batch: str) -> list[tuple[str, int, int]]:
    """Path, start and bytes of each raw-zone part of a batch."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return connection.execute(RAW, [tenant.tenant_id, batch]).fetchall()


def landing(
    tenant: Tenant, batch: str, dataset_id: UUID, day: date
) -> tuple[int | None, datetime | None, tuple[Rebuild, ...]]:
    """Snapshot and time of a row's landing, and the backfills that replaced its day since."""
    values = {"tenant": tenant.tenant_id, "batch": batch, "dataset": dataset_id, "day": day}
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        snapshot_id, landed_at = connection.execute(LANDING, values).fetchone() or (None, None)
        since = postgres.select(connection, Rebuild, REBUILDS, values | {"since": landed_at})
    return snapshot_id, landed_at, tuple(since)


def erased_from(tenant: Tenant, dataset_id: UUID) -> bool:
    """Whether an erasure ran on a dataset."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        return connection.execute(ERASURES, [tenant.tenant_id, dataset_id]).fetchone() == (True,)


def claims_from(tenant: Tenant) -> int:
    """Offset before which claims may have been retired."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        ((end,),) = connection.execute(CLAIMS_RETIRED, [tenant.tenant_id]).fetchall()
        return int(end)
