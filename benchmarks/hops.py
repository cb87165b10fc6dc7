"""Transforms: a few changes among many entities, computed by what they lead to, and whole."""

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from pyspark.sql.connect.session import SparkSession

from benchmarks.steps import run_batch
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.entities import event
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import sync_deletions
from pulse_pipelines.pipes.run import run
from pulse_resources import kafka

PIPE = "fleet"
AIRLINES = 1_000
QUERY = """
SELECT p.id, p.name, p.seats * 2 AS seats, a.name AS airline, a.seats AS planes
FROM planes p JOIN airlines a ON p.airline = a.id WHERE p.seats > 0
"""
SCHEMA = {"name": "string", "airline": "string", "seats": "integer", "model": "string", "note": "string"}


@dataclass(frozen=True)
class Computed:
    """A run of a transform."""

    label: str
    how: str
    rows: int
    seconds: float
    """Until its rows were on the topic ..."""
    settled: float
    """... and until they had settled."""


def build(entities: int) -> Tenant:
    """A tenant with many planes, of some airlines, and a transform that joins them."""
    tenant = registry.create_tenant(f"b{uuid.uuid4().hex[:12]}")
    schema = {"type": "object", "properties": {name: {"type": kind} for name, kind in SCHEMA.items()}}
    for slug in ("planes", "airlines"):
        uri = registry.publish_schema(tenant, slug, json.dumps(schema)).schema_uri
        registry.create_dataset(tenant, slug, uri, kind=DatasetKind.ENTITIES)
    _send(tenant, "airlines", range(AIRLINES), 0)
    _send(tenant, "planes", range(entities), 0)
    pipes.create(tenant, definition({"pipe": PIPE, "transform": QUERY, "dataset": "fleet"}))
    return tenant


def measure(session: SparkSession, tenant: Tenant, entities: int, changes: int) -> Iterator[Computed]:
    """The first run; then changes of planes, and of airlines that lead to as many, by both ways in turn.

    Raises:
        AssertionError: a run computed something else than it should have.
    """
    yield _run(session, tenant, "all, for the first time", full=True)
    apart, airlines = entities // changes, max(1, changes * AIRLINES // entities)
    for full in (False, True):
        _send(tenant, "planes", range(1, entities, apart), 1 + full)
        yield _run(session, tenant, f"{changes:,} planes changed", full=full)
        _send(tenant, "airlines", range(airlines), 1 + full)
        yield _run(session, tenant, f"{airlines:,} airlines changed", full=full)


def _run(session: SparkSession, tenant: Tenant, label: str, *, full: bool) -> Computed:
    began = time.monotonic()
    sent = run(session, tenant, PIPE, 2, full=full)
    seconds = time.monotonic() - began
    run_batch([tenant])
    sync_deletions.send_of(tenant)
    assert sent.is_full == full, pipes.find(tenant, PIPE).computes
    how = "whole" if full else "what changes lead to"
    return Computed(label, how, sent.rows, seconds, time.monotonic() - began)


def _send(tenant: Tenant, slug: str, numbers: range, version: int) -> None:
    producer = kafka.producer()
    for number in numbers:
        key = f"{slug}-{number}"
        data: dict[str, Any] = {
            "_id": key,
            "name": f"{key} of version {version}",
            "airline": f"airlines-{number % AIRLINES}",
            "seats": number % 400 + 1,
            "model": f"model {number % 90}",
            "note": f"{number * 7919 % 1_000_003:060d}",
        }
        producer.produce(tenant.topic, orjson.dumps(event(data, slug, "2026-11-25T10:00:00Z")), key)
        producer.poll(0)
    assert producer.flush(120) == 0, "the broker did not acknowledge everything"
    run_batch([tenant])
