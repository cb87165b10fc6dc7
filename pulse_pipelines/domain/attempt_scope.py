"""Scopes: a tenant and its datasets, by which an attempt processes the tenant's events."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant


@dataclass(frozen=True)
class Scope:
    """A tenant and its datasets, as they were when the attempt began."""

    tenant: Tenant
    datasets: tuple[Dataset, ...]
    topic_id: str | None = None
    """The broker's id of the topic that the ranges are offsets of."""
    bases: Mapping[int, int] = field(default_factory=dict)
    """What is added to the broker's offsets, by partition (see `ingest.data_loss`)."""
    event_bytes: int = 0
    """Mean size of the tenant's latest events; 0: unknown."""
    elsewhere: frozenset[str] = frozenset()
    """Slugs of the tenant's datasets of entities, where these are not among `datasets`: events for them are
    refused, and told so."""
