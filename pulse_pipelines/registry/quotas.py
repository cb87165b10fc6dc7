"""Quotas and rates: what a tenant may have per month, exactly, however many ask at once."""

from dataclasses import dataclass
from datetime import date

from pulse_pipelines.domain import quota
from pulse_pipelines.domain.quota import EVENTS, Limits
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres
from pulse_resources.errors import QuotaExceeded
from pulse_resources.settings import load_settings

LIMITS = """
SELECT coalesce(q.max_datasets, 0), coalesce(q.max_records_per_month, 0),
    coalesce(r.requests_per_second, 0), coalesce(r.events_per_second, 0)
FROM (SELECT app_tenant() AS tenant_id) t
LEFT JOIN quotas q ON q.tenant_id = t.tenant_id AND q.kind = %s
LEFT JOIN rates r ON r.tenant_id = t.tenant_id
"""
SET_QUOTA = """
INSERT INTO quotas (tenant_id, kind, max_datasets, max_records_per_month) VALUES (%s, %s, %s, %s)
ON CONFLICT (tenant_id, kind) DO UPDATE
SET max_datasets = EXCLUDED.max_datasets, max_records_per_month = EXCLUDED.max_records_per_month
"""
SET_RATES = """
INSERT INTO rates (tenant_id, requests_per_second, events_per_second) VALUES (%s, %s, %s)
ON CONFLICT (tenant_id) DO UPDATE SET requests_per_second = EXCLUDED.requests_per_second,
    events_per_second = EXCLUDED.events_per_second
"""
COUNT_DATASETS = "SELECT count(*) FROM pdm_datasets"
THIS_MONTH = "date_trunc('month', now() AT TIME ZONE 'UTC')::date"
# A month without a quota has no count at the door: it begins with what has landed.
OPEN_INTAKE = f"""
INSERT INTO intake (tenant_id, kind, month, records)
SELECT %(tenant)s, %(kind)s, {THIS_MONTH}, coalesce(
    (SELECT records FROM usage WHERE kind = %(kind)s AND month = {THIS_MONTH}), 0)
ON CONFLICT DO NOTHING
"""  # noqa: S608 - from a constant
LOCK_INTAKE = f"""
SELECT records FROM intake WHERE kind = %(kind)s AND month = {THIS_MONTH} FOR UPDATE
"""  # noqa: S608
ADD_INTAKE = f"""
UPDATE intake SET records = greatest(records + %(count)s, 0)
WHERE kind = %(kind)s AND month = {THIS_MONTH}
"""  # noqa: S608
ACCEPTED = f"""
SELECT coalesce((SELECT records FROM intake WHERE kind = %(kind)s AND month = {THIS_MONTH}),
    (SELECT records FROM usage WHERE kind = %(kind)s AND month = {THIS_MONTH}), 0)
"""  # noqa: S608
MONTHS = """
SELECT month, i.records, coalesce(u.records, 0), coalesce(u.bytes, 0),
    coalesce(u.records, 0) - lag(coalesce(u.records, 0), 1, 0::bigint) OVER (ORDER BY month)
FROM (SELECT month, records FROM intake WHERE kind = %(kind)s) i
FULL JOIN (SELECT month, records, bytes FROM usage WHERE kind = %(kind)s) u USING (month)
ORDER BY month DESC LIMIT %(months)s
"""


def find_limits(tenant: Tenant) -> Limits:
    """The limits in force: the tenant's own, or the defaults of this installation."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return load_limits(connection)


def find_own_limits(tenant: Tenant) -> Limits:
    """What was set for the tenant itself; 0 where nothing was."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return _own_limits(connection)


def load_limits(connection: postgres.Connection) -> Limits:
    """The limits in force for the tenant whose session this is."""
    return _own_limits(connection).over(Limits(**load_settings().limits.model_dump()))


def _own_limits(connection: postgres.Connection) -> Limits:
    (row,) = connection.execute(LIMITS, [EVENTS]).fetchall()
    return Limits(*row)


def set_limits(tenant: Tenant, limits: Limits) -> Limits:
    """Set the tenant's limits, for operators; returns those in force now."""
    with postgres.tenant_transaction("pulse_owner", tenant.tenant_id) as connection:
        values = [tenant.tenant_id, EVENTS, limits.max_datasets, limits.max_records_per_month]
        connection.execute(SET_QUOTA, values)
        rates = [tenant.tenant_id, limits.requests_per_second, limits.events_per_second]
        connection.execute(SET_RATES, rates)
        return load_limits(connection)


def admit_dataset(connection: postgres.Connection, tenant: Tenant) -> None:
    """Let one more dataset be created in this transaction; creators of a tenant take turns.

    Raises:
        QuotaExceeded: the tenant has as many as it may have.
    """
    limit = load_limits(connection).max_datasets
    if not quota.limited(limit):
        return
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 2))", [str(tenant.tenant_id)])
    (count,) = connection.execute(COUNT_DATASETS).fetchone() or (0,)
    if count >= limit:
        raise QuotaExceeded(
            f"the tenant has {count} datasets and may have {limit}",
            fix="Delete one, or ask the operator for more",
            tenant=tenant.slug,
        )


def admit_records(tenant: Tenant, asked: list[int], maximum: int) -> list[bool]:
    """Reserve records of this month for several requests at once: which of them fit, in order.

    Exact however many processes ask: a row lock orders them. What is reserved and then not published is
    given back with `give_back`; a crash in between only makes the tenant's month a little shorter.
    """
    values = {"tenant": tenant.tenant_id, "kind": EVENTS}
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        connection.execute("SET LOCAL synchronous_commit = off")  # see above: losing a count is no harm
        row = connection.execute(LOCK_INTAKE, values).fetchone()
        if row is None:
            connection.execute(OPEN_INTAKE, values)
            row = connection.execute(LOCK_INTAKE, values).fetchone()
        verdicts = quota.admit(row[0] if row else 0, asked, maximum)
        count = sum(number for number, fits in zip(asked, verdicts, strict=True) if fits)
        if count:
            connection.execute(ADD_INTAKE, values | {"count": count})
    return verdicts


def give_back(tenant: Tenant, records: int) -> None:
    """Undo a reservation of records that were not accepted after all."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        connection.execute(ADD_INTAKE, {"kind": EVENTS, "count": -records})


@dataclass(frozen=True)
class MonthUsage:
    month: date
    accepted: int | None
    """Records accepted at the door; None where no quota made it count."""
    landed: int
    bytes: int
    landed_delta: int
    """Rows more, or fewer, than in the tenant's month before it."""


@dataclass(frozen=True)
class Usage:
    limits: Limits
    datasets: int
    accepted_this_month: int
    """Records that count against the quota of this month."""
    months: tuple[MonthUsage, ...]
    """The latest first."""


def find_usage(tenant: Tenant, months: int = 12) -> Usage:
    """What the tenant has and used, per month."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id, one_snapshot=True) as connection:
        (count,) = connection.execute(COUNT_DATASETS).fetchone() or (0,)
        (accepted,) = connection.execute(ACCEPTED, {"kind": EVENTS}).fetchone() or (0,)
        found = connection.execute(MONTHS, {"kind": EVENTS, "months": months}).fetchall()
        return Usage(load_limits(connection), count, accepted, tuple(MonthUsage(*row) for row in found))
