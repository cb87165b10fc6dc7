"""Freshness of datasets: how many rows each has, in which snapshot, and when events landed last."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pulse_pipelines.ask import record
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.query import snapshots
from pulse_resources.errors import NotFound, Terminal


@dataclass(frozen=True)
class DatasetState:
    """State of a dataset's table now."""

    dataset: str
    events_landed_last: datetime | None = None
    snapshot_id: int | None = None
    """The newest snapshot; None: it has no rows yet."""
    committed_at: datetime | None = None
    rows: int = 0
    """In that snapshot; of a dataset of entities, versions."""
    problem: str | None = None
    """Why nothing else is known."""


def dataset_states(tenant: Tenant, slugs: Sequence[str]) -> list[DatasetState]:
    """The states of some of the tenant's datasets, in their order.

    Raises:
        Transient: the object store does not answer.
    """
    fresh = record.freshness(tenant, slugs)
    return [_state(tenant, slug, fresh.get(slug)) for slug in slugs]


def _state(tenant: Tenant, slug: str, landed: datetime | None) -> DatasetState:
    try:
        newest = next(iter(snapshots.snapshots(tenant, slug, 1)), None)
    except (Terminal, NotFound):  # one damaged table, or one deleted just now, is not all of them
        return DatasetState(slug, problem="its table cannot be read")
    if newest is None:
        return DatasetState(slug, landed)
    return DatasetState(slug, landed, newest.snapshot_id, newest.committed_at, newest.total_rows)
