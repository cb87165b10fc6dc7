"""Requested runs: the sync, or the delivery to a sink, in which one ends."""

from pulse_pipelines.domain.syncs import State
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes.registry import Pipe, find
from pulse_pipelines.pipes.sinks import deliveries
from pulse_pipelines.pipes.sinks.deliveries import Delivery
from pulse_pipelines.registry import syncs
from pulse_pipelines.registry.syncs import Sync
from pulse_resources.errors import Terminal

UNDER_WAY = (State.OPEN, State.SENT, State.DELETING)


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
    return next((each.delivery_id for each in deliveries.of_pipe(pipe.tenant, pipe.name, 1)), None)


def delivered(tenant: Tenant, name: str, *, after: int | None) -> Delivery | None:
    """The requested run of a pipe with a sink, once it has ended; as `ended`.

    Args:
        after: the latest run when it was requested.

    Raises:
        Terminal: the run failed.
    """
    for last in deliveries.of_pipe(tenant, name, 1):
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
