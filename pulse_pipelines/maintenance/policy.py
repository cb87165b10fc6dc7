"""Maintenance policy: which tasks each table needs, decided from the ledger alone, for all tenants at once.

No table is opened. The ledger says what landed; `upkeep_days` and `upkeep_tables` say what the last upkeep
left. The difference is what has accumulated since.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from uuid import UUID

from pulse_pipelines.domain.requests import Task
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import failed_work
from pulse_pipelines.registry.failed_work import Standing, Work
from pulse_resources import postgres
from pulse_resources.iceberg.manifest_list import MERGED_FROM
from pulse_resources.settings import UpkeepSettings, load_settings

JOB, COMPACT = "upkeep", "compact"
"""Key of failures: the job, and the compaction of a day, be it a merge or a sort."""
MB = 1024 * 1024
FILES_PER_TARGET = 3
"""Files that a compacted day may have per full-sized file."""

# Days with landings since a moment, with the totals of everything ever landed in them.
DAYS = """
SELECT t.tenant_id, t.slug AS tenant, d.dataset_id, d.slug, l.day, sum(l.files)::bigint AS landed_files,
    sum(l.bytes)::bigint AS landed_bytes, min(l.landed_at) AS first_at, max(l.landed_at) AS last_at, s.level,
    s.landed_files AS files_then, s.landed_bytes AS bytes_then, s.files AS compacted_files,
    s.bytes AS compacted_bytes, s.compacted_at, now() AS now
FROM landings l JOIN pdm_datasets d USING (tenant_id, dataset_id) JOIN pdm_tenants t USING (tenant_id)
LEFT JOIN upkeep_days s ON s.dataset_id = l.dataset_id AND s.day = l.day
WHERE (%(tenant)s::text IS NULL OR t.slug = %(tenant)s) AND (%(slug)s::text IS NULL OR d.slug = %(slug)s)
  AND (%(hours)s::float8 IS NULL OR (l.dataset_id, l.day) IN (
    SELECT dataset_id, day FROM landings WHERE landed_at > now() - make_interval(secs => 3600 * %(hours)s)))
GROUP BY t.tenant_id, d.dataset_id, l.day, s.dataset_id, s.day
"""
# Tables, with the commits in the ledger since upkeep last recorded each.
TABLES = """
SELECT t.tenant_id, t.slug AS tenant, d.dataset_id, d.slug, coalesce(c.commits, 0) AS commits, c.first_at,
    c.last_at, s.seen_at AS recorded_at, s.snapshots, s.oldest_at, s.manifests, s.swept_at AS cleaned_at,
    now() AS now
FROM pdm_datasets d JOIN pdm_tenants t USING (tenant_id)
LEFT JOIN upkeep_tables s USING (dataset_id)
LEFT JOIN (
    SELECT l.dataset_id, min(l.landed_at) AS first_at, max(l.landed_at) AS last_at,
        count(DISTINCT l.snapshot_id) FILTER (WHERE l.landed_at > coalesce(u.seen_at, '-infinity')) AS commits
    FROM landings l LEFT JOIN upkeep_tables u USING (dataset_id)
    WHERE %(hours)s::float8 IS NULL OR l.landed_at > now() - make_interval(secs => 3600 * %(hours)s)
    GROUP BY l.dataset_id
) c USING (dataset_id)
WHERE (%(tenant)s::text IS NULL OR t.slug = %(tenant)s) AND (%(slug)s::text IS NULL OR d.slug = %(slug)s)
"""
# Windows of states that are not completely built.
WINDOWS = """
SELECT t.tenant_id, t.slug, d.dataset_id, d.slug FROM event_windows w JOIN pdm_datasets d USING (dataset_id)
JOIN pdm_tenants t ON t.tenant_id = d.tenant_id
WHERE NOT w.built AND (%(tenant)s::text IS NULL OR t.slug = %(tenant)s)
  AND (%(slug)s::text IS NULL OR d.slug = %(slug)s)
"""
# Tenants, with the latest batch that settled for each since a moment.
TENANTS = """
SELECT t.tenant_id, t.slug AS tenant, u.swept_at AS cleaned_at, u.retained_at, b.last_at,
    u.own_at AS tidied_at, now() AS now,
    %(hours)s::float8 IS NULL AND (u.own_at IS NOT NULL OR n.namespace IS NOT NULL) AS has_tables
FROM pdm_tenants t LEFT JOIN upkeep_tenants u USING (tenant_id)
LEFT JOIN (
    SELECT r.tenant_id, max(b.settled_at) AS last_at
    FROM ingest_batches b JOIN ingest_ranges r USING (batch_id)
    WHERE b.state = 'settled'
      AND (%(hours)s::float8 IS NULL OR b.settled_at > now() - make_interval(secs => 3600 * %(hours)s))
    GROUP BY r.tenant_id
) b USING (tenant_id)
LEFT JOIN (
    SELECT DISTINCT split_part(namespace, '.', 1) AS namespace
    FROM iceberg_catalog.iceberg_namespace_properties
    WHERE catalog_name = 'pulse' AND property_key = 'exists' AND namespace LIKE '%%.%%'
) n ON n.namespace = 'pulse_' || replace(t.tenant_id::text, '-', '')
WHERE (%(tenant)s::text IS NULL OR t.slug = %(tenant)s) AND %(slug)s::text IS NULL
"""


@dataclass(frozen=True)
class Need:
    """A task that a table, or a tenant, needs, and why."""

    tenant: Tenant
    dataset_id: UUID | None
    slug: str | None
    task: Task
    reason: str
    weight: int
    """Amount that has accumulated, or seconds since it was done last: larger ones go first."""
    day: date | None = None
    since: datetime | None = None
    """When it was done last."""
    failures: int = 0
    """Consecutive failures: tasks without any go first."""
    held: bool = False
    """Waits for its next retry."""

    @property
    def work(self) -> Work:
        """Key of its failures; merge and sort of a day share one, which ends when the day is compacted."""
        task = COMPACT if self.day is not None else self.task.value
        return Work(JOB, self.tenant, task, self.dataset_id, self.slug, self.day)


@dataclass(frozen=True)
class DayState:
    """A day of a dataset, from the ledger and its last compaction; files and bytes are estimates."""

    tenant_id: UUID
    tenant: str
    dataset_id: UUID
    slug: str
    day: date
    landed_files: int
    landed_bytes: int
    first_at: datetime
    last_at: datetime
    level: int | None
    files_then: int | None
    """Files landed when it was last compacted; the bytes likewise. Then it had `compacted_files`."""
    bytes_then: int | None
    compacted_files: int | None
    compacted_bytes: int | None
    compacted_at: datetime | None
    now: datetime

    @property
    def waiting(self) -> int:
        """Files landed since the last compaction."""
        return self.landed_files - (self.files_then or 0)

    @property
    def files(self) -> int:
        return (self.compacted_files or 0) + self.waiting

    @property
    def bytes(self) -> int:
        return (self.compacted_bytes or 0) + self.landed_bytes - (self.bytes_then or 0)


@dataclass(frozen=True)
class TableState:
    """A table, from the ledger and its last recorded state; times are Postgres'."""

    tenant_id: UUID
    tenant: str
    dataset_id: UUID
    slug: str
    commits: int
    """Commits since the last recorded state."""
    first_at: datetime | None
    last_at: datetime | None
    recorded_at: datetime | None
    snapshots: int | None
    oldest_at: datetime | None
    manifests: int | None
    cleaned_at: datetime | None
    """When orphans were last removed from its folder; a tenant's: from its raw zone."""
    now: datetime


@dataclass(frozen=True)
class TenantState:
    """A tenant's raw zone, claims and own tables, from the ledger and the last recorded state."""

    tenant_id: UUID
    tenant: str
    cleaned_at: datetime | None
    retained_at: datetime | None
    last_at: datetime | None
    """When the latest batch settled."""
    tidied_at: datetime | None
    has_tables: bool
    """Whether it has, or had, tables of its own, and not only what landed lately is considered."""
    now: datetime


def needs(
    tenant: str | None = None, slug: str | None = None, *, recent: bool = False, patient: bool = False
) -> list[Need]:
    """Tasks that all tables (of a tenant, of a dataset) need, the most urgent first and failed ones last.

    Args:
        recent: consider only landings within a multiple of the quiet time, as frequent callers do.
        patient: leave out failed tasks whose next retry is not yet due.
    """
    settings = load_settings().upkeep
    hours = 2 * settings.quiet_hours if recent else None
    values = {"tenant": tenant, "slug": slug, "hours": hours}
    with postgres.transaction("pulse_pipeline") as connection:
        days = postgres.select(connection, DayState, DAYS, values)
        tables = postgres.select(connection, TableState, TABLES, values)
        tenants = postgres.select(connection, TenantState, TENANTS, values)
        unbuilt = connection.execute(WINDOWS, values).fetchall()
    due = [need for day in days if (need := of_day(day, settings))]
    due += [need for table in tables for need in of_table(table, settings)]
    due += [need for tenant in tenants for need in of_tenant(tenant, settings)]
    for tenant_id, owner, dataset_id, named in unbuilt:
        due.append(Need(Tenant(tenant_id, owner), dataset_id, named, Task.WINDOWS, "not built to the end", 0))
    failed = {failure.work: failure for failure in failed_work.standing(JOB)}
    due = [_after(failed.get(need.work), need) for need in due]
    order = list(Task)
    due.sort(key=lambda need: (need.failures, order.index(need.task), -need.weight))
    return [need for need in due if not (patient and need.held)]


def _after(failed: Standing | None, need: Need) -> Need:
    return replace(need, failures=failed.count, held=failed.backing_off) if failed else need


def allowed_files(size: int, settings: UpkeepSettings) -> int:
    """Maximum number of files for a compacted day of this size in bytes."""
    target = settings.target_mb * MB
    return FILES_PER_TARGET * max(1, -(-size // target))


def of_day(day: DayState, settings: UpkeepSettings) -> Need | None:
    """Task that a day needs: none, a merge of its small files, or, once it is quiet, a sort of all files."""

    def need(task: Task, reason: str) -> Need:
        tenant = Tenant(day.tenant_id, day.tenant)
        return Need(tenant, day.dataset_id, day.slug, task, reason, day.files, day.day)

    quiet = day.now - day.last_at >= timedelta(hours=settings.quiet_hours)
    allowed = allowed_files(day.bytes, settings)
    if quiet and day.waiting and (day.files > allowed if day.level == 2 else worth_sorting(day, settings)):
        hours = (day.now - day.last_at) / timedelta(hours=1)
        return need(Task.SORT, f"{day.files} files, {day.bytes:,} bytes, quiet for {hours:.0f} h")
    if quiet and day.level == 1 and worth_sorting(day, settings):
        return need(Task.SORT, f"merged, but not sorted: {day.files} files, {day.bytes:,} bytes")
    since = day.compacted_at or day.first_at
    waited = day.now - since >= timedelta(minutes=settings.merge_minutes)
    if day.waiting >= settings.merge_files * (1 if waited else settings.merge_hurry):
        return need(Task.MERGE, f"{day.waiting} files landed since {since:%Y-%m-%d %H:%M}")
    return None


def worth_sorting(day: DayState, settings: UpkeepSettings) -> bool:
    """Whether a quiet day gains from sorting: several files, or one large file."""
    return day.files > 1 or day.bytes >= settings.sort_single_mb * MB


def of_table(table: TableState, settings: UpkeepSettings) -> Iterator[Need]:
    """Tasks that a table needs apart from those of its days."""

    def need(task: Task, reason: str, weight: int) -> Need:
        return Need(Tenant(table.tenant_id, table.tenant), table.dataset_id, table.slug, task, reason, weight)

    snapshots = (table.snapshots or 0) + table.commits
    manifests = (table.manifests or 0) + min(table.commits, MERGED_FROM + table.commits // MERGED_FROM)
    if manifests > settings.manifests:
        yield need(Task.MANIFESTS, f"{manifests} manifests", manifests)
    oldest = table.oldest_at or table.first_at
    history = timedelta(hours=settings.history_hours)
    if snapshots > settings.history_snapshots + settings.expire_batch:
        yield need(Task.EXPIRE, f"{snapshots} snapshots", snapshots)
    elif snapshots > settings.history_minimum and oldest and table.now - oldest > history * 1.25:
        yield need(Task.EXPIRE, f"{snapshots} snapshots, the oldest until {oldest:%Y-%m-%d %H:%M}", snapshots)
    changed = max((at for at in (table.last_at, table.recorded_at) if at), default=None)
    cleaned_at, pause = table.cleaned_at, timedelta(hours=settings.sweep_hours)
    if changed and (cleaned_at is None or (changed > cleaned_at and table.now - cleaned_at >= pause)):
        since = f"{cleaned_at:%Y-%m-%d %H:%M}" if cleaned_at else "it was made"
        yield need(Task.ORPHANS, f"not searched for orphans since {since}", table.commits)


def of_tenant(tenant: TenantState, settings: UpkeepSettings) -> Iterator[Need]:
    """Tasks that a tenant's raw zone, claims and own tables need."""
    owner, pause = Tenant(tenant.tenant_id, tenant.tenant), timedelta(hours=settings.sweep_hours)

    def need(task: Task, reason: str, done_at: datetime | None) -> Need:
        weight = int((tenant.now - done_at).total_seconds()) if done_at else sys.maxsize
        return Need(owner, None, None, task, reason, weight)

    cleaned_at, retained_at, tidied_at = tenant.cleaned_at, tenant.retained_at, tenant.tidied_at
    if tenant.last_at and (
        cleaned_at is None or (tenant.last_at > cleaned_at and tenant.now - cleaned_at >= pause)
    ):
        since = f"{cleaned_at:%Y-%m-%d %H:%M}" if cleaned_at else "it was made"
        yield replace(need(Task.RAW, f"not searched for orphans since {since}", cleaned_at), since=cleaned_at)
    limits = {"raw objects": settings.raw_days, "claims": settings.claim_days}
    limited = [f"{kind} for {days} days" for kind, days in limits.items() if days >= 0]
    if limited and (retained_at is None or tenant.now - retained_at >= pause):
        yield need(Task.RETENTION, f"keeps {' and '.join(limited)}", retained_at)
    if tenant.has_tables and (tidied_at is None or tenant.now - tidied_at >= pause):
        since = f"{tidied_at:%Y-%m-%d %H:%M}" if tidied_at else "the first one was made"
        yield need(Task.TENANT_TABLES, f"own tables not looked after since {since}", tidied_at)


def by_table(needs: Iterable[Need]) -> list[list[Need]]:
    """Group needs by table, or by tenant, in the order of the first of each."""
    tables: dict[tuple[UUID, UUID | None], list[Need]] = {}
    for need in needs:
        tables.setdefault((need.tenant.tenant_id, need.dataset_id), []).append(need)
    return list(tables.values())
