"""Probe: conforms an event of Pulse's own, to see whether any event can be conformed at all.

If all events of a tenant fail, it tells whether the events or the installation are at fault.
"""

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.dataset import Dataset, OnInvalid
from pulse_pipelines.domain.event import EARLIEST
from pulse_pipelines.domain.event_limits import EventLimits
from pulse_pipelines.domain.schemas.columns import columns
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.conform import TopicConformer
from pulse_pipelines.tables.iceberg_schema import table_schema
from pulse_pipelines.tables.raw_zone import Message

NAME = "probe"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}}}
EVENT = {"event_id": NAME, "dataset": NAME, "timestamp": "2026-11-19T10:00:00Z", "data": {"name": NAME}}


@dataclass(frozen=True)
class Probe:
    """Input of the probe's Spark task."""

    limits: EventLimits


@dataclass(frozen=True)
class Conforms:
    """Result of the probe's Spark task: its process survived."""

    rows: int


def probe_task(task: Probe) -> Iterator[Conforms]:
    """Conform the probe event in a Spark task; yields nothing if that kills the process."""
    tenant = Tenant(uuid.UUID(int=0), NAME)
    dataset = Dataset(
        dataset_id=tenant.tenant_id,
        tenant_id=tenant.tenant_id,
        slug=NAME,
        name=NAME,
        schema_uri=f"pulse://{NAME}/{NAME}/1",
        document=json.dumps(SCHEMA),
        table_schema=table_schema(columns(SCHEMA)).model_dump_json(),
        on_invalid=OnInvalid.REFUSE,
        created_at=EARLIEST,
        claim_seed=0,
    )
    message = Message(0, 0, round(time.time() * 1000), json.dumps(EVENT).encode())
    conformed = TopicConformer(Scope(tenant, (dataset,)), NAME, task.limits).chunk([message])
    yield Conforms(sum(len(table) for table in conformed.tables.values()))
