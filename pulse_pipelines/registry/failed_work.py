"""Failed work: tasks of a run over many tenants that failed for one of them, recorded until they succeed.

Such a run continues with the other tenants. A failure is recorded with its tenant and dataset: an alert names
it (see `monitoring.issues`), and later runs back off, each time for twice as long, and do it after work that
has not failed. An outage of a service that all work needs (see `outages`) ends the run instead.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

import psycopg

from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres

NOTE = """
INSERT INTO failures AS f (tenant_id, job, task, dataset_id, slug, day, error, retry_at)
VALUES (%(tenant)s, %(job)s, %(task)s, %(dataset)s, %(slug)s, %(day)s, %(error)s,
    now() + make_interval(secs => %(first)s))
ON CONFLICT (tenant_id, job, task, dataset_id, day) DO UPDATE SET error = EXCLUDED.error,
    count = f.count + 1, last_at = now(),
    retry_at = now() + make_interval(secs => least(%(first)s * 2 ^ least(f.count, 30), %(most)s))
"""
FORGET = """
DELETE FROM failures WHERE tenant_id = %(tenant)s AND job = %(job)s AND task = %(task)s
    AND dataset_id IS NOT DISTINCT FROM %(dataset)s AND day IS NOT DISTINCT FROM %(day)s
"""
# Including failures of the whole dataset (without a day): it can be read again.
FORGET_DAYS = """
DELETE FROM failures WHERE dataset_id = %s AND job = %s AND (day IS NULL OR day = ANY(%s))
"""
# Not tried again for so long: the work no longer exists.
FORGET_OLD = "DELETE FROM failures WHERE tenant_id = %s AND last_at < now() - interval '30 days'"
STANDING = """
SELECT f.job, f.tenant_id, t.slug, f.task, f.dataset_id, f.slug, f.day, f.error, f.count, f.first_at,
    f.last_at, f.retry_at, f.retry_at > now()
FROM failures f JOIN pdm_tenants t USING (tenant_id)
WHERE %(job)s::text IS NULL OR f.job = %(job)s ORDER BY t.slug, f.slug, f.day
"""
LONGEST = 2_000
"""Maximum characters of a stored error."""


@dataclass(frozen=True)
class Work:
    """A task of a shared run for one tenant: the key of its failure."""

    job: str
    tenant: Tenant
    task: str
    dataset_id: UUID | None = None
    slug: str | None = None
    day: date | None = None

    def __str__(self) -> str:
        about = {"tenant": self.tenant.slug, "dataset": self.slug, "day": self.day}
        return f"{self.task} of " + ", ".join(f"{name} {value}" for name, value in about.items() if value)


@dataclass(frozen=True)
class Failed:
    """Work that failed just now."""

    work: Work
    error: str

    @classmethod
    def by(cls, work: Work, error: Exception) -> "Failed":
        return cls(work, f"{type(error).__name__}: {error}")

    def __str__(self) -> str:
        return f"{self.work}: {self.error}"


@dataclass(frozen=True)
class Standing:
    """Work whose last try failed."""

    work: Work
    error: str
    count: int
    """Number of consecutive failures."""
    first_at: datetime
    last_at: datetime
    retry_at: datetime
    backing_off: bool
    """Whether its back-off has not ended."""


def note(failed: Iterable[Failed], *, first_s: float, most_s: float) -> None:
    """Record failures.

    Args:
        first_s: back-off in seconds after a first failure, doubled after each further one.
        most_s: maximum back-off in seconds.

    Raises:
        psycopg.OperationalError: Postgres does not answer.
    """
    of_tenant: dict[Tenant, dict[Work, Failed]] = defaultdict(dict)
    for failure in failed:
        of_tenant[failure.work.tenant].setdefault(failure.work, failure)  # two failures in one run count once
    for tenant, failures in of_tenant.items():
        for failure in failures.values():
            values = _values(failure.work) | {"slug": failure.work.slug, "error": _storable(failure.error)}
            with (
                contextlib.suppress(psycopg.errors.ForeignKeyViolation),  # the dataset was deleted meanwhile
                postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection,
            ):
                connection.execute(NOTE, values | {"first": first_s, "most": most_s})
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            connection.execute(FORGET_OLD, [tenant.tenant_id])


def forget(work: Work) -> None:
    """Delete the failure of work that has succeeded."""
    with postgres.tenant_transaction("pulse_pipeline", work.tenant.tenant_id) as connection:
        connection.execute(FORGET, _values(work))


def forget_days(connection: postgres.Connection, job: str, dataset_id: UUID, days: Iterable[date]) -> None:
    """As `forget`, for days of a dataset, in the caller's transaction in the tenant's session."""
    connection.execute(FORGET_DAYS, [dataset_id, job, list(days)])


def standing(job: str | None = None) -> list[Standing]:
    """Current failures of all tenants, of one job or of all."""
    with postgres.transaction("pulse_pipeline") as connection:
        rows = connection.execute(STANDING, {"job": job}).fetchall()
    return [
        Standing(Work(name, Tenant(tenant_id, tenant), task, dataset_id, slug, day), *columns)
        for name, tenant_id, tenant, task, dataset_id, slug, day, *columns in rows
    ]


def _values(work: Work) -> dict[str, object]:
    return {
        "tenant": work.tenant.tenant_id,
        "job": work.job,
        "task": work.task,
        "dataset": work.dataset_id,
        "day": work.day,
    }


def _storable(text: str) -> str:
    """An error as text that Postgres accepts, whatever data it quotes."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:LONGEST]
