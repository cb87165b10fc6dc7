"""Failed work: what a run over many tenants could not do for one of them, remembered until it is done.

Such a run does what it can for each and goes on. What failed is noted with whom it is about: an alert names
it (see `monitoring.issues`), and later runs leave it alone for a while, each time for twice as long, and take
it after what has not failed. What everybody needs and nobody gets (see `outages`) ends a run instead.
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
# Of all of the dataset, too: it can be read.
FORGET_DAYS = """
DELETE FROM failures WHERE dataset_id = %s AND job = %s AND (day IS NULL OR day = ANY(%s))
"""
# Nobody tried it again: there is no such work any more.
FORGET_OLD = "DELETE FROM failures WHERE tenant_id = %s AND last_at < now() - interval '30 days'"
STANDING = """
SELECT f.job, f.tenant_id, t.slug, f.task, f.dataset_id, f.slug, f.day, f.error, f.count, f.first_at,
    f.last_at, f.retry_at, f.retry_at > now()
FROM failures f JOIN pdm_tenants t USING (tenant_id)
WHERE %(job)s::text IS NULL OR f.job = %(job)s ORDER BY t.slug, f.slug, f.day
"""
LONGEST = 2_000
"""Characters of an error."""


@dataclass(frozen=True)
class Work:
    """What a shared run has to do for one tenant; by all of this its failure is known."""

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
    """Work that failed when it was tried last."""

    work: Work
    error: str
    count: int
    """How often, in a row."""
    first_at: datetime
    last_at: datetime
    retry_at: datetime
    held: bool
    """It is not yet time to try it again."""


def note(failed: Iterable[Failed], *, first_s: float, most_s: float) -> None:
    """Remember failures.

    Args:
        first_s: seconds until what failed for the first time is tried again; then twice as long each time ...
        most_s: ... up to this.

    Raises:
        psycopg.OperationalError: Postgres does not answer.
    """
    of_tenant: dict[Tenant, dict[Work, Failed]] = defaultdict(dict)
    for each in failed:
        of_tenant[each.work.tenant].setdefault(each.work, each)  # what failed twice in a run counts once
    for tenant, mine in of_tenant.items():
        for each in mine.values():
            values = _values(each.work) | {"slug": each.work.slug, "error": _storable(each.error)}
            with (
                contextlib.suppress(psycopg.errors.ForeignKeyViolation),  # the dataset was deleted meanwhile
                postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection,
            ):
                connection.execute(NOTE, values | {"first": first_s, "most": most_s})
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            connection.execute(FORGET_OLD, [tenant.tenant_id])


def forget(work: Work) -> None:
    """Its work was done: nothing of it failed any more."""
    with postgres.tenant_transaction("pulse_pipeline", work.tenant.tenant_id) as connection:
        connection.execute(FORGET, _values(work))


def forget_days(connection: postgres.Connection, job: str, dataset_id: UUID, days: Iterable[date]) -> None:
    """As `forget`, of days of a dataset, in the caller's transaction, which is the tenant's session."""
    connection.execute(FORGET_DAYS, [dataset_id, job, list(days)])


def standing(job: str | None = None) -> list[Standing]:
    """What failed last, of all tenants: of a job, or of all."""
    with postgres.transaction("pulse_pipeline") as connection:
        rows = connection.execute(STANDING, {"job": job}).fetchall()
    return [
        Standing(Work(name, Tenant(tenant_id, tenant), task, dataset_id, slug, day), *rest)
        for name, tenant_id, tenant, task, dataset_id, slug, day, *rest in rows
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
    """What Postgres takes of an error, whatever data it quotes."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:LONGEST]
