"""Freshness of datasets: how many rows each has, in which snapshot, and when events landed last."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from pulse_pipelines import registry
from pulse_pipelines.ask import record
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.query import snapshots
from pulse_resources.errors import NotFound, Terminal

AT_A_TIME = 4
"""Tables whose metadata is read concurrently."""


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

    Postgres is asked for all of them at once. The store is asked for metadata that this process has not read.

    Raises:
        Transient: the object store does not answer.
    """
    fresh = record.freshness(tenant, slugs)
    locations = registry.current_locations(tenant, slugs)
    with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="states") as pool:
        return list(pool.map(lambda slug: _state(tenant, slug, fresh.get(slug), locations.get(slug)), slugs))


def _state(tenant: Tenant, slug: str, landed: datetime | None, location: str | None) -> DatasetState:
    unreadable = DatasetState(slug, problem="its table cannot be read")
    if location is None:
        return unreadable
    try:
        newest = snapshots.newest_snapshot(tenant, slug, location)
    except (Terminal, NotFound):  # one damaged table, or one deleted just now, is not all of them
        return unreadable
    if newest is None:
        return DatasetState(slug, landed)
    return DatasetState(slug, landed, newest.snapshot_id, newest.committed_at, newest.total_rows)
