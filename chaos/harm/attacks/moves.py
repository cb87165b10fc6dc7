"""Moves of datasets to newer schemas, each of which needs a run."""

import itertools

import orjson

from chaos.harm import wire
from chaos.harm.attack import Attack, Attacker, may
from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import kafka

DATASETS = 50
AT_ONCE = 4
FLUSH_S = 60.0


def _schema(kind: str) -> str:
    return orjson.dumps({"type": "object", "properties": {"n": {"type": kind}}}).decode()


def _slug(number: int) -> str:
    return f"moving_{number}"


def _land(tenant: Tenant) -> None:
    """Create datasets with a row each: to make its integer a number, a run has to write the file again."""
    published = registry.publish_schema(tenant, "moving", _schema("integer"))
    registry.publish_schema(tenant, "moving", _schema("number"))
    publisher = kafka.producer()
    for number in range(DATASETS):
        registry.create_dataset(tenant, _slug(number), published.schema_uri)
        event = {"event_id": "1", "dataset": _slug(number), "timestamp": "2026-11-19T10:00:00Z"}
        publisher.produce(tenant.topic, orjson.dumps(event | {"data": {"n": number}}))
    kafka.flush(publisher, FLUSH_S)


async def _moved(attacker: Attacker) -> None:
    """Request moves of all datasets in a loop; then delete these, so that the next attack begins alone."""
    tenant, key = registry.find_tenant(attacker.target.tenant), attacker.key("manage")
    body = {"schema_uri": f"pulse://{tenant.slug}/moving/2"}
    moves = [
        wire.request("POST", f"/v1/datasets/{_slug(number)}/schema", key, body) for number in range(DATASETS)
    ]
    await attacker.flood(itertools.cycle(moves), AT_ONCE)
    for number in range(DATASETS):
        registry.delete_dataset(tenant, _slug(number))


ATTACKS = (
    Attack(
        f"moves of {DATASETS} datasets, requested in a loop",
        "manage",
        _moved,
        may(200, 202, 409, 429, 503),
        _land,
    ),
)
