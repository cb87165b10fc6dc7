"""Quotas, rates and usage: the limits of a tenant, and its records per month."""

from dataclasses import dataclass
from datetime import date, datetime

from pulse_pipelines.domain.quota import ENTITIES, EVENTS, LAKE, Limits, limited
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import intake
from pulse_pipelines.registry.intake import DIRECT, ROWS
from pulse_resources import postgres
from pulse_resources.errors import QuotaExceeded
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.settings import load_settings

LIMITS = """
SELECT coalesce(q.max_datasets, 0) AS max_datasets,
    coalesce(q.max_records_per_month, 0) AS max_records_per_month,
    coalesce(r.requests_per_second, 0) AS requests_per_second,
    coalesce(r.events_per_second, 0) AS events_per_second,
    coalesce(e.max_datasets, 0) AS max_entity_datasets, coalesce(l.max_datasets, 0) AS max_lake_tables,
    coalesce(l.max_bytes, 0) AS max_lake_bytes
FROM (SELECT app_tenant() AS tenant_id) t
LEFT JOIN quotas q ON q.tenant_id = t.tenant_id AND q.kind = %s
LEFT JOIN quotas e ON e.tenant_id = t.tenant_id AND e.kind = %s
LEFT JOIN quotas l ON l.tenant_id = t.tenant_id AND l.kind = %s
LEFT JOIN rates r ON r.tenant_id = t.tenant_id
"""
# A value that is not given (NULL) stays as it is.
SET_QUOTA = """
INSERT INTO quotas AS q (tenant_id, kind, max_datasets, max_records_per_month)
VALUES (%(tenant)s, %(kind)s, coalesce(%(max_datasets)s::bigint, 0),
    coalesce(%(max_records_per_month)s::bigint, 0))
ON CONFLICT (tenant_id, kind) DO UPDATE
SET max_datasets = coalesce(%(max_datasets)s::bigint, q.max_datasets),
    max_records_per_month = coalesce(%(max_records_per_month)s::bigint, q.max_records_per_month)
"""
SET_LAKE = """
INSERT INTO quotas AS q (tenant_id, kind, max_datasets, max_bytes)
VALUES (%(tenant)s, %(kind)s, coalesce(%(tables)s::bigint, 0), coalesce(%(bytes)s::bigint, 0))
ON CONFLICT (tenant_id, kind) DO UPDATE
SET max_datasets = coalesce(%(tables)s::bigint, q.max_datasets),
    max_bytes = coalesce(%(bytes)s::bigint, q.max_bytes)
"""
SET_RATES = """
INSERT INTO rates AS r (tenant_id, requests_per_second, events_per_second)
VALUES (%(tenant)s, coalesce(%(requests_per_second)s::float8, 0), coalesce(%(events_per_second)s::float8, 0))
ON CONFLICT (tenant_id) DO UPDATE
SET requests_per_second = coalesce(%(requests_per_second)s::float8, r.requests_per_second),
    events_per_second = coalesce(%(events_per_second)s::float8, r.events_per_second)
"""
COUNT_DATASETS = "SELECT count(*) FROM pdm_datasets WHERE kind = %s AND tenant_id = app_tenant()"
RECORDS_PER_MONTH = "SELECT max_records_per_month FROM quotas WHERE kind = %s AND tenant_id = app_tenant()"
_OF = {name: part.format(month="intake.month") for name, part in (("direct", DIRECT), ("rows", ROWS))}
MONTHS = f"""
SELECT month, i.places AS accepted, coalesce(u.records, 0) AS landed, coalesce(u.bytes, 0) AS bytes,
    coalesce(u.records, 0) - lag(coalesce(u.records, 0), 1, 0::bigint) OVER (ORDER BY month) AS landed_delta
FROM (SELECT month, greatest(records + {_OF["direct"]}, {_OF["rows"]}) AS places
    FROM intake WHERE kind = %(kind)s AND tenant_id = app_tenant()) i
FULL JOIN (SELECT month, records, bytes FROM usage
    WHERE kind = %(kind)s AND tenant_id = app_tenant()) u USING (month)
ORDER BY month DESC LIMIT %(months)s
"""  # noqa: S608 - from a constant
OPEN_OVER_QUOTA = """
SELECT count(*), min(settled_at) FROM dead_letters
WHERE resolution IS NULL AND reason = 'over_quota' AND tenant_id = app_tenant()
"""


def find_limits(tenant: Tenant) -> Limits:
    """The limits in force: the tenant's own, or the defaults of this installation."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return load_limits(connection)


def find_tenant_limits(tenant: Tenant) -> Limits:
    """The limits set for the tenant itself; 0 where none is set."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return _tenant_limits(connection)


def load_limits(connection: postgres.Connection) -> Limits:
    """The limits in force for the session's tenant."""
    return _tenant_limits(connection).over(Limits(**load_settings().limits.model_dump()))


def records_per_month(connection: postgres.Connection) -> int:
    """The quota of records in force for the session's tenant: the only limit that the pipeline needs."""
    row = connection.execute(RECORDS_PER_MONTH, [EVENTS]).fetchone()
    return (row[0] if row else 0) or load_settings().limits.max_records_per_month


def _tenant_limits(connection: postgres.Connection) -> Limits:
    (limits,) = postgres.select(connection, Limits, LIMITS, [EVENTS, ENTITIES, LAKE])
    return limits


def set_limits(
    tenant: Tenant,
    *,
    max_datasets: int | None = None,
    max_records_per_month: int | None = None,
    requests_per_second: float | None = None,
    events_per_second: float | None = None,
    max_entity_datasets: int | None = None,
    max_lake_tables: int | None = None,
    max_lake_bytes: int | None = None,
) -> Limits:
    """Set limits of the tenant, for operators; None leaves a limit unchanged. Returns the limits in force."""
    values = {
        "tenant": tenant.tenant_id,
        "kind": EVENTS,
        "max_datasets": max_datasets,
        "max_records_per_month": max_records_per_month,
        "requests_per_second": requests_per_second,
        "events_per_second": events_per_second,
    }
    with postgres.tenant_transaction("pulse_owner", tenant.tenant_id) as connection:
        connection.execute(SET_QUOTA, values)
        if max_entity_datasets is not None:
            of_entities = {"kind": ENTITIES, "max_datasets": max_entity_datasets}
            connection.execute(SET_QUOTA, values | of_entities | {"max_records_per_month": None})
        if max_lake_tables is not None or max_lake_bytes is not None:
            lake_limits = {"tenant": tenant.tenant_id, "tables": max_lake_tables, "bytes": max_lake_bytes}
            connection.execute(SET_LAKE, lake_limits | {"kind": LAKE})
        connection.execute(SET_RATES, values)
        return load_limits(connection)


def admit_dataset(connection: postgres.Connection, tenant: Tenant, kind: str) -> None:
    """Check the quota for one more dataset in this transaction; a lock serializes a tenant's creations.

    Args:
        kind: of the dataset; each kind has its own quota.

    Raises:
        QuotaExceeded: the quota is used up.
    """
    limits = load_limits(connection)
    name = "max_entity_datasets" if kind == ENTITIES else "max_datasets"
    limit: int = getattr(limits, name)
    if not limited(limit):
        return
    locks.wait(connection, Lock.DATASETS, tenant.tenant_id)
    (count,) = connection.execute(COUNT_DATASETS, [kind]).fetchone() or (0,)
    if count >= limit:
        raise QuotaExceeded(
            f"the tenant has {count} datasets of {kind} and may have {limit}",
            fix="Delete one, or ask the operator to raise the limit: "
            f"pulse tenant limits {tenant.slug} --{name.replace('_', '-')} NUMBER",
            tenant=tenant.slug,
        )


@dataclass(frozen=True)
class MonthUsage:
    month: date
    accepted: int | None
    """Records with a place in the month: accepted by the API (or possibly accepted), and those that came
    directly and landed; None if no quota was in force to count them."""
    landed: int
    bytes: int
    landed_delta: int
    """Change of `landed` from the tenant's previous month."""


@dataclass(frozen=True)
class Usage:
    limits: Limits
    datasets: int
    accepted_this_month: int
    """Records that count against the quota of this month."""
    over_quota: int
    """Open dead letters of events over the monthly quota."""
    over_quota_since: datetime | None
    """When the first of these settled."""
    months: tuple[MonthUsage, ...]
    """The latest first."""


def find_usage(tenant: Tenant, months: int = 12) -> Usage:
    """Read the tenant's limits and its usage per month."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id, one_snapshot=True) as connection:
        (count,) = connection.execute(COUNT_DATASETS, [EVENTS]).fetchone() or (0,)
        ((over, since),) = connection.execute(OPEN_OVER_QUOTA).fetchall()
        values = {"kind": EVENTS, "months": months, "batch": None}
        return Usage(
            limits=load_limits(connection),
            datasets=count,
            accepted_this_month=intake.places_used(connection),
            over_quota=over,
            over_quota_since=since,
            months=tuple(postgres.select(connection, MonthUsage, MONTHS, values)),
        )
