"""A dataset of entities, written to a table of another database on the same server: first, and again."""

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime

import orjson
from rich.console import Console

from benchmarks import load
from benchmarks.steps import run_batch
from chaos.sources import SOURCE, database
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain import entities
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes.sinks.deliveries import Run
from pulse_pipelines.pipes.sinks.run import deliver
from pulse_pipelines.query import versions

WARM = 1_000
"""Entities that are written, and whose table is then created again, before anything is measured."""


def measure(console: Console, count: int) -> Iterator[tuple[str, float]]:
    """What was done with entities of 7 properties, and their number per second.

    Raises:
        AssertionError: the table does not have every entity.
    """
    tenant = registry.create_tenant(f"b{uuid.uuid4().hex[:12]}")
    schema = registry.publish_schema(tenant, load.DATASET, orjson.dumps(load.SCHEMA).decode())
    registry.create_dataset(tenant, load.DATASET, schema.schema_uri, kind=DatasetKind.ENTITIES)
    pipe_definition = {"pipe": "out", "from": load.DATASET, "to": SOURCE, "table": "copied", "create": True}
    with database(tenant) as sink:
        load.send(console, [tenant], WARM, make=_entity)
        run_batch([tenant])
        pipes.create(tenant, definition(pipe_definition))
        deliver(tenant, "out")
        load.send(console, [tenant], count, make=_entity)
        run_batch([tenant])
        sink.execute("TRUNCATE copied")
        with console.status("reading alone"):
            yield "read from the log, page by page", _rate(count, lambda: _read(tenant))
        for label in ("written first, into an empty table", "written again, after `reset`"):
            with console.status(label):
                yield label, _rate(count, lambda: _bring(tenant, count))
            assert sink.execute("SELECT count(*) FROM copied").fetchall() == [(count,)]
            pipes.reset(tenant, "out")


def _rate(count: int, work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return count / (time.monotonic() - began)


def _bring(tenant: Tenant, count: int) -> Run:
    run = deliver(tenant, "out")
    assert run.is_full
    assert run.counts.upserted == count, run.counts
    return run


def _read(tenant: Tenant) -> None:
    since = None
    while (read := versions.after(tenant, load.DATASET, since, 10_000)).versions:
        since = f"{read.generation}-{read.last}"


def _entity(number: int, day: datetime, dataset: str) -> bytes:
    definition = {
        "_id": str(number),
        "country": load.COUNTRIES[number % 8],
        "amount": number * 0.25,
        "active": number % 3 == 0,
        "signup_at": "2026-11-01T08:30:00Z",
        "plan": load.PLANS[number % 3],
        "seats": number % 500,
    }
    return orjson.dumps(entities.event(definition, dataset, day.isoformat()))
