"""Accounts of a tenant's events in Postgres, read in one snapshot."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from pulse_pipelines.domain.quota import EVENTS
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring import raw_duplicates
from pulse_pipelines.monitoring.claimed_rows import Claims, copy_claims
from pulse_pipelines.monitoring.raw_duplicates import DuplicatePlan
from pulse_resources import postgres

POSITIONS = """
SELECT partition, settled_offset, claims_from FROM ingest_positions
WHERE tenant_id = %(tenant)s ORDER BY partition
"""
RANGES = """
SELECT partition, start_offset AS start, end_offset AS "end", drained, landed, duplicates, dead_letters,
    duplicate_offsets AS copies, absent_offsets AS absent
FROM ingest_ranges WHERE tenant_id = %(tenant)s AND settled_at IS NOT NULL ORDER BY partition, start_offset
"""
# Dead letters that a backfill landed count as rows.
DEAD_LETTERS = """
SELECT partition, array_agg(event_offset) FROM dead_letters
WHERE tenant_id = %(tenant)s AND resolution IS DISTINCT FROM 'landed' GROUP BY 1
"""
ERASED = "SELECT partition, offsets FROM erased_offsets WHERE tenant_id = %(tenant)s"
# Tables of rollups, <slug>__<rollup>, hold no events.
TABLES = """
SELECT t.table_name, t.metadata_location, coalesce(d.kind, 'events'), d.dataset_id, d.claim_seed, (
    SELECT coalesce(-sum(l.rows), 0)::bigint FROM landings l
    JOIN erasures e ON e.tenant_id = l.tenant_id AND e.erasure_id = l.batch_id
    WHERE l.tenant_id = %(tenant)s AND l.dataset_id = d.dataset_id)
FROM iceberg_catalog.iceberg_tables t
LEFT JOIN pdm_datasets d ON d.tenant_id = %(tenant)s AND d.slug = t.table_name
WHERE t.table_namespace = %(namespace)s AND (strpos(t.table_name, '__') = 0 OR d.dataset_id IS NOT NULL)
ORDER BY t.table_name
"""
# The files of a deleted dataset still hold the events that landed in it.
DELETED = """
SELECT slug, metadata_location, kind FROM deleted_datasets
WHERE tenant_id = %(tenant)s AND metadata_location IS NOT NULL ORDER BY slug, deleted_at
"""
REFUSED = """
SELECT DISTINCT event_id FROM dead_letters
WHERE tenant_id = %s AND dataset = %s AND event_id = ANY(%s)
    AND reason IN ('landing_failed', 'over_quota')
"""

Offsets = npt.NDArray[np.int64]


class Table(NamedTuple):
    """A table with events of the tenant."""

    slug: str
    location: str
    """Location of the table's metadata."""
    deleted: bool
    claims: Claims | None
    """None: the dataset is deleted, so its claims are unused; or it is an entity dataset, which has none."""
    of_entities: bool = False
    """Whether an event id may have several rows."""

    @property
    def name(self) -> str:
        return f"dataset {self.slug}{', deleted' if self.deleted else ''}"


class SettledRange(NamedTuple):
    """A settled range of a partition, and its counts."""

    partition: int
    start: int
    end: int
    drained: int
    landed: int
    duplicates: int
    dead_letters: int
    copies: "Multirange[int]"
    absent: "Multirange[int]"


@dataclass
class Accounts:
    """Accounts of one tenant; offsets are by partition."""

    settled: Mapping[int, int]
    """First unsettled offset."""
    claims_from: Mapping[int, int]
    """Claims of earlier offsets may have been retired by retention."""
    ranges: Sequence[SettledRange]
    tables: Sequence[Table]
    """Tables of deleted datasets come last."""
    duplicates: DuplicatePlan
    dead_letters: dict[int, list[Offsets]] = field(default_factory=lambda: defaultdict(list))
    erased_rows: dict[int, list[Offsets]] = field(default_factory=lambda: defaultdict(list))
    """Offsets of erased events that had been rows."""

    @property
    def retired(self) -> bool:
        """Whether retention may have removed claims."""
        return any(self.claims_from.values())

    @property
    def forgotten(self) -> bool:
        """Whether ids may exist without row and claim: an erasure removed the row, retention the claim.

        Or the dataset was deleted, and its claims are no longer read.
        """
        if self.erased_rows and any(table.deleted for table in self.tables):
            return True
        return any(
            bool(np.any(offsets < self.claims_from.get(partition, 0)))
            for partition, parts in self.erased_rows.items()
            for offsets in parts
        )


def read(tenant: Tenant, folder: Path, *, raw: bool) -> Accounts:
    """Read a tenant's accounts in its RLS session.

    Args:
        folder: folder for copies of the claims.
        raw: see `reconcile.reconcile_tenant`.
    """
    values = {"tenant": tenant.tenant_id, "namespace": tenant.namespace}
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
        positions = connection.execute(POSITIONS, values).fetchall()
        tables = []
        for slug, location, kind, dataset_id, seed, erased in connection.execute(TABLES, values).fetchall():
            claims = None
            if dataset_id is not None and kind == EVENTS:
                path = folder / f"{dataset_id}.parquet"
                wrong = copy_claims(connection, dataset_id, path)
                claims = Claims(path, seed, erased, wrong)
            tables.append(Table(slug, location, False, claims, kind != EVENTS))
        deleted = connection.execute(DELETED, values)
        accounts = Accounts(
            settled={partition: settled for partition, settled, _ in positions},
            claims_from={partition: first for partition, _, first in positions},
            ranges=postgres.select(connection, SettledRange, RANGES, values),
            tables=[
                *tables,
                *(Table(slug, place, True, None, kind != EVENTS) for slug, place, kind in deleted),
            ],
            duplicates=raw_duplicates.find_duplicates(connection, tenant, everything=raw),
        )
        for partition, offsets in connection.execute(DEAD_LETTERS, values):
            accounts.dead_letters[partition].append(np.array(offsets, np.int64))
        for partition, offsets in connection.execute(ERASED, values):
            accounts.erased_rows[partition].extend(expanded(offsets))
    return accounts


def locations(tenant: Tenant) -> list[str]:
    """Current metadata locations of the tenant's tables, in the order of `Accounts.tables`."""
    values = {"tenant": tenant.tenant_id, "namespace": tenant.namespace}
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
        tables = [location for _, location, *_ in connection.execute(TABLES, values).fetchall()]
        return tables + [location for _, location, _ in connection.execute(DELETED, values).fetchall()]


def refused(tenant: Tenant, slug: str, event_ids: Sequence[str]) -> set[str]:
    """Ids of valid dead letters that could not land; each of them stands for its copies."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        rows = connection.execute(REFUSED, [tenant.tenant_id, slug, list(event_ids)])
        return {event_id for (event_id,) in rows}


def expanded(spans: "Iterable[Range[int]]") -> Iterable[Offsets]:
    """Expand ranges into their offsets."""
    return (np.arange(span.lower or 0, span.upper or 0, dtype=np.int64) for span in spans)


def length(spans: "Iterable[Range[int]]") -> int:
    """Number of offsets in ranges."""
    return sum((span.upper or 0) - (span.lower or 0) for span in spans)
