"""Maintenance history: one row per task, inserted before it begins and updated when it ends.

A row that is still `running` while the table's lease is free belongs to a process that died.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres
from pulse_resources.errors import Terminal, Transient

BEGIN = """
INSERT INTO upkeep_log (tenant_id, upkeep_id, dataset_id, slug, day, task, reason, run_id)
VALUES (%(tenant)s, %(id)s, %(dataset)s, %(slug)s, %(day)s, %(task)s, %(reason)s, %(run)s)
RETURNING started_at
"""
END = """
UPDATE upkeep_log SET outcome = %(outcome)s, detail = %(detail)s, before = %(before)s, after = %(after)s,
    snapshot_id = %(snapshot)s, seconds = %(seconds)s, ended_at = now()
WHERE tenant_id = %(tenant)s AND upkeep_id = %(id)s
"""
# One that Ctrl-C ended has noted when; of one that was killed it is not known.
ABANDON = """
UPDATE upkeep_log SET outcome = 'abandoned', ended_at = coalesce(ended_at, now()),
    detail = 'its process died; what it left undone is done by the next run'
WHERE tenant_id = %s AND dataset_id = %s AND outcome = 'running' AND upkeep_id <> %s
"""
# The Spark server cancels statements of a dead process after a minute.
ABANDONED = """
SELECT EXISTS (SELECT 1 FROM upkeep_log WHERE dataset_id = %s AND outcome = 'abandoned'
    AND ended_at > now() - make_interval(mins => %s) AND task = ANY(%s))
"""
READ = """
SELECT t.slug AS tenant, l.slug AS dataset, l.day, l.task, l.reason, l.outcome, l.detail, l.before, l.after,
    l.seconds, l.snapshot_id, l.run_id, l.started_at
FROM upkeep_log l JOIN pdm_tenants t USING (tenant_id)
WHERE (%(tenant)s::text IS NULL OR t.slug = %(tenant)s) AND (%(slug)s::text IS NULL OR l.slug = %(slug)s)
ORDER BY l.started_at DESC LIMIT %(limit)s
"""
REWRITE = "rewrite"
"""Task that rewrites files for a move or an erasure (see `rewrite`)."""
BY_SPARK = ("merge", "sort", "manifests", REWRITE)
"""Tasks whose statements may continue in Spark after their process died."""
PATIENCE_MINUTES = 10
"""Minutes for which a table's folder is left alone after a process died while working on it."""


class RolledBack(Terminal):
    """A commit of another writer is missing from the table's history."""


class Skipped(Transient):
    """A task was skipped in favour of another writer: not a failure, the next run decides again."""


class Overtaken(Skipped):
    """Another writer committed to what was being rewritten; its commit stands."""


@dataclass
class Done:
    """A maintenance task and its result."""

    tenant: str
    dataset: str | None
    day: date | None
    task: str
    reason: str
    outcome: str = "running"
    detail: str | None = None
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    snapshot_id: int | None = None
    run_id: str | None = None
    started_at: datetime | None = None

    def __str__(self) -> str:
        """The outcome, with tenant, dataset, day and detail."""
        about = {"tenant": self.tenant, "dataset": self.dataset, "day": self.day}
        named = ", ".join(f"{name} {value}" for name, value in about.items() if value)
        return f"{self.task} of {named}: {self.detail or self.outcome}"


@contextmanager
def recorded(tenant: Tenant, dataset_id: UUID | None, done: Done) -> Iterator[Done]:
    """Record the task in the block, which fills `before`, `after`, `detail` and `snapshot_id`."""
    entry = {"tenant": tenant.tenant_id, "id": uuid.uuid4().hex, "dataset": dataset_id}
    began = {"slug": done.dataset, "day": done.day, "task": done.task, "reason": done.reason}
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        (done.started_at,) = connection.execute(BEGIN, entry | began | {"run": done.run_id}).fetchone() or [
            None
        ]
        if dataset_id is not None:
            connection.execute(ABANDON, [tenant.tenant_id, dataset_id, entry["id"]])
    started = time.monotonic()
    try:
        yield done
        done.outcome = "done"
    except Exception as error:
        match error:
            case RolledBack():
                done.outcome = "rolled_back"
            case Skipped():
                done.outcome = "skipped"
            case _:
                done.outcome = "failed"
        done.detail = str(error)[:2000].replace("\0", "")
        raise
    finally:
        done.seconds = round(time.monotonic() - started, 3)
        ended: dict[str, object] = {
            "outcome": done.outcome,
            "detail": done.detail,
            "before": Jsonb(done.before),
            "after": Jsonb(done.after),
            "snapshot": done.snapshot_id,
            "seconds": done.seconds,
        }
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            connection.execute(END, entry | ended)


def check_none_died(tenant: Tenant, dataset: Dataset) -> None:
    """As `check_none_abandoned`, for a caller that holds the lease and has begun no task: none is running.

    Raises:
        Skipped: a statement may still be running.
    """
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        connection.execute(ABANDON, [tenant.tenant_id, dataset.dataset_id, ""])
    check_none_abandoned(tenant, dataset)


def check_none_abandoned(tenant: Tenant, dataset: Dataset) -> None:
    """Check that no Spark statement of a process that died recently is still running on the table.

    Such a statement may write files and commit while orphans are searched for.

    Raises:
        Skipped: a statement may still be running.
    """
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        values = [dataset.dataset_id, PATIENCE_MINUTES, list(BY_SPARK)]
        if connection.execute(ABANDONED, values).fetchone() == (True,):
            raise Skipped(
                "a process died at this table a moment ago, and Spark may still be at work for it",
                fix=f"Do it again {PATIENCE_MINUTES} minutes later",
                tenant=tenant.slug,
                dataset=dataset.slug,
            )


def read(tenant: str | None = None, slug: str | None = None, limit: int = 100) -> list[Done]:
    """Completed tasks, newest first: of a tenant, of a dataset, or of all."""
    with postgres.transaction("pulse_pipeline") as connection:
        values = {"tenant": tenant, "slug": slug, "limit": limit}
        return postgres.select(connection, Done, READ, values)
