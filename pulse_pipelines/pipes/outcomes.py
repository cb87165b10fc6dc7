"""Outcomes of runs: the sync or delivery in which a requested run ends, and the counts of the last day."""

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import syncs
from pulse_pipelines.entities.syncs import Sync
from pulse_pipelines.pipes.registry import Pipe, find
from pulse_pipelines.pipes.sinks import deliveries
from pulse_pipelines.pipes.sinks.deliveries import Delivery
from pulse_resources import postgres
from pulse_resources.errors import Terminal

UNDER_WAY = (SyncState.OPEN, SyncState.SENT, SyncState.DELETING)
LAST_DAY = """
SELECT tenant_id, pipe, sum(created)::bigint, sum(changed)::bigint, sum(unchanged)::bigint,
    sum(deleted)::bigint, sum(refused)::bigint
FROM entity_syncs WHERE pipe IS NOT NULL AND begun_at > now() - interval '24 hours' GROUP BY 1, 2
UNION ALL
SELECT tenant_id, pipe, 0, sum(upserted)::bigint, 0, sum(deleted)::bigint, sum(refused)::bigint
FROM pipe_deliveries WHERE begun_at > now() - interval '24 hours' GROUP BY 1, 2
"""


def last_sync(pipe: Pipe) -> int | None:
    """Number of the latest sync of a pipe's dataset, whoever sent it; None if there is none."""
    last = _last(pipe)
    return last.sync_id if last else None


def ended(tenant: Tenant, name: str, *, after: int | None) -> Sync | None:
    """The sync of a requested run, once it has ended or is held; None while the run is awaited or under way.

    Args:
        after: the latest sync when the run was requested.

    Raises:
        Terminal: the run failed.
    """
    pipe = find(tenant, name)
    if pipe.asked_at is not None:  # it has not begun, or gave way to others and continues
        return None
    if pipe.error:
        raise Terminal(f"the run failed: {pipe.error}", tenant=tenant.slug, pipe=name)
    last = _last(pipe)
    return last if last and last.sync_id != after and last.state not in UNDER_WAY else None


def last_delivery(pipe: Pipe) -> int | None:
    """Number of the latest run of a pipe with a sink; None if there is none."""
    return next(
        (delivery.delivery_id for delivery in deliveries.list_deliveries(pipe.tenant, pipe.name, 1)), None
    )


def delivered(tenant: Tenant, name: str, *, after: int | None) -> Delivery | None:
    """The requested run of a pipe with a sink, once it has ended; as `ended`.

    Args:
        after: the latest run when it was requested.

    Raises:
        Terminal: the run failed.
    """
    for last in deliveries.list_deliveries(tenant, name, 1):
        if last.delivery_id == after or last.ended_at is None:
            return None
        if last.state == "failed":
            if find(tenant, name).asked_at is not None:  # it gave way to others, and continues
                return None
            raise Terminal(f"the run failed: {last.reason}", tenant=tenant.slug, pipe=name)
        return last
    return None


def _last(pipe: Pipe) -> Sync | None:
    return next(iter(syncs.list_syncs(pipe.tenant, pipe.dataset, 1)), None)


class LastDay(NamedTuple):
    """Entities of the runs of the last 24 hours, by outcome; those written to a sink count as changed."""

    created: int = 0
    changed: int = 0
    unchanged: int = 0
    deleted: int = 0
    refused: int = 0


def last_day(tenant: Tenant | None = None) -> Mapping[tuple[UUID, str], LastDay]:
    """Count the entities of the runs of the last 24 hours, by tenant and pipe; a pipe without runs is absent.

    Args:
        tenant: None: all.
    """
    if tenant is None:
        with postgres.transaction("pulse_pipeline") as connection:
            rows = connection.execute(LAST_DAY).fetchall()
    else:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            rows = connection.execute(LAST_DAY).fetchall()
    return {(tenant_id, name): LastDay(*counts) for tenant_id, name, *counts in rows}
