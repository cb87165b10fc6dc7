"""Load for the benchmarks: events of about 335 bytes, and tenants to send them."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from rich.console import Console

from pulse_api.demo.run import progress
from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import kafka

DATASET = "signups"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["country", "amount", "active"],
    "properties": {
        "country": {"type": "string", "minLength": 2, "maxLength": 2},
        "amount": {"type": "number", "minimum": 0},
        "active": {"type": "boolean"},
        "signup_at": {"type": "string", "format": "date-time"},
        "plan": {"type": "string", "enum": ["free", "team", "business"]},
        "seats": {"type": "integer"},
    },
}
COUNTRIES = ("DE", "FR", "GB", "US", "IN", "JP", "BR", "NG")
PLANS = ("free", "team", "business")


def make_tenants(count: int, datasets: int = 1) -> list[Tenant]:
    """Fresh tenants, each with the dataset `signups` and as many more like it as requested."""
    document = orjson.dumps(SCHEMA).decode()
    tenants = []
    for _ in range(count):
        tenant = registry.create_tenant(f"b{uuid.uuid4().hex[:12]}")
        schema = registry.publish_schema(tenant, DATASET, document)
        for number in range(datasets):
            registry.create_dataset(tenant, slug(number), schema.schema_uri)
        tenants.append(tenant)
    return tenants


def slug(number: int) -> str:
    """Slug of a tenant's n-th dataset."""
    return f"{DATASET}{number or ''}"


def event(number: int, day: datetime, dataset: str = DATASET) -> bytes:
    """One event of about 335 bytes; the id is random, as real ones are."""
    return orjson.dumps(
        {
            "event_id": str(uuid.uuid4()),
            "dataset": dataset,
            "timestamp": (day + timedelta(milliseconds=number % 86_400_000)).isoformat(),
            "data": {
                "country": COUNTRIES[number % 8],
                "amount": number * 0.25,
                "active": number % 3 == 0,
                "signup_at": "2026-11-01T08:30:00Z",
                "plan": PLANS[number % 3],
                "seats": number % 500,
            },
            "context": {"ip": "192.0.2.17", "agent": "pulse-bench/1.0"},
            "trace_id": uuid.uuid4().hex,
        }
    )


def send(
    console: Console,
    tenants: list[Tenant],
    total: int,
    datasets: int = 1,
    make: Callable[[int, datetime, str], bytes] = event,
) -> int:
    """Send `total` events, spread evenly over tenants and datasets; returns their mean size in bytes."""
    producer = kafka.producer()
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    size = 0
    with progress(console) as bar:
        task = bar.add_task("sending", total=total)
        for number in range(total):
            payload = make(number, day, slug(number // len(tenants) % datasets))
            size += len(payload)
            while True:
                try:
                    producer.produce(tenants[number % len(tenants)].topic, payload)
                    break
                except BufferError:
                    producer.poll(0.05)
            if number % 10_000 == 9_999:
                producer.poll(0)
                bar.update(task, completed=number + 1)
        assert producer.flush(120) == 0, "the broker did not acknowledge everything"
        bar.update(task, completed=total)
    return size // total
