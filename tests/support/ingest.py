"""Tenants, events, and one batch at a time through the real job."""

import json
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from chaos import batches
from chaos.waiting import PATIENCE_S
from pulse_pipelines import registry
from pulse_pipelines.domain.batch import plan as choose_ranges
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import plan as planning, steps
from pulse_pipelines.query import duckdb_pool
from pulse_resources import kafka, postgres, spark
from pulse_resources.settings import Settings
from support.forked import Forked, forked

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["country"],
    "properties": {
        "country": {"type": "string"},
        "amount": {"type": "number"},
        "count": {"type": "integer"},
        "active": {"type": "boolean"},
        "signup_at": {"type": "string", "format": "date-time"},
        "address": {"type": "object", "properties": {"zip": {"type": "string"}}},
    },
}


@dataclass(frozen=True)
class Owner:
    """A tenant with the dataset `orders`, and short ways to use them."""

    tenant: Tenant

    def send(self, *payloads: bytes) -> None:
        """Publish payloads to the tenant's topic, all into partition 0, in order."""
        producer = kafka.shared_producer()
        for payload in payloads:
            producer.produce(self.tenant.topic, payload, partition=0)
        assert producer.flush(PATIENCE_S) == 0

    def rows(self, slug: str = "orders", columns: str = "*") -> list[dict[str, Any]]:
        """Rows of the current table by position."""
        location = registry.current_table(self.tenant, slug).metadata_location
        with duckdb_pool.connect() as connection:
            query = f"SELECT {columns} FROM {duckdb_pool.SCAN} ORDER BY _kafka_partition, _offset"
            return connection.execute(query, [location]).to_arrow_table().to_pylist()

    def dead_letters(self) -> list[dict[str, Any]]:
        """Dead letters by position."""
        names = ("event_offset", "reason", "pointer", "detail", "payload", "dataset", "published_at")
        query = f"SELECT {', '.join(names)} FROM dead_letters ORDER BY partition, event_offset"
        with postgres.tenant_transaction("pulse_api", self.tenant.tenant_id) as connection:
            return [dict(zip(names, row, strict=True)) for row in connection.execute(query)]

    def claims(self) -> int:
        """How many ids are claimed."""
        with postgres.tenant_transaction("pulse_pipeline", self.tenant.tenant_id) as connection:
            return connection.execute("SELECT coalesce(sum(ids), 0) FROM processed_event_ids").fetchone()[0]


def event(event_id: str, *, dataset: str = "orders", **data: Any) -> bytes:
    """A valid event for `orders` unless the arguments say otherwise."""
    return json.dumps(
        {
            "event_id": event_id,
            "dataset": dataset,
            "timestamp": "2026-11-19T10:00:00Z",
            "data": {"country": "DE"} | data,
        }
    ).encode()


def make_owner() -> Owner:
    """Make a fresh tenant that owns the dataset `orders`."""
    tenant = registry.create_tenant(f"t{uuid.uuid4().hex[:10]}")
    uri = registry.publish_schema(tenant, "orders", json.dumps(SCHEMA)).schema_uri
    registry.create_dataset(tenant, "orders", uri)
    return Owner(tenant)


@pytest.fixture
def new_owner(stack: Settings) -> Callable[[], Owner]:
    return make_owner


@pytest.fixture
def owner(stack: Settings) -> Owner:
    return make_owner()


def plan_batch(owners: Iterable[Owner]) -> str:
    """Plan everything that waits in these tenants' topics, as the sensor would."""
    status = planning.ingest_status({owner.tenant.tenant_id for owner in owners})
    name = planning.plan_batch(choose_ranges(status.backlogs, 1_000_000), status)
    assert name is not None
    return name


def run_batch(batch: str, attempt: int = 1, *, raise_on_error: bool = True) -> bool:
    """Run one attempt in this process, by the functions that Dagster's job calls; whether it succeeded.

    Dagster itself would take half of the processor time. `chaos.inside.attempt` runs the job.
    """
    try:
        steps.run(spark.shared(), batch, attempt)
    except Exception:
        if raise_on_error:
            raise
        return False
    return True


def ingest(*owners: Owner) -> str:
    """Plan and run everything that waits; returns the batch."""
    batch = plan_batch(owners)
    run_batch(batch)
    return batch


def next_attempt(batch: str) -> int:
    """The number of the attempt that follows one that gave up."""
    open_batch = batches.current(batch)
    assert open_batch is not None, "it has settled"
    return open_batch.attempt


def start_attempt(batch: str, attempt: int = 1, **env: str) -> Forked:
    """Start one attempt in a process of its own, to be killed or stopped."""
    return forked(run_batch, batch, attempt, **env)
