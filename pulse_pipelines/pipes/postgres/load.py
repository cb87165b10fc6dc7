"""Load: the rows that a run reads, in Spark tasks that share its snapshot."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.types.string import ByteaBinaryLoader

from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes import addresses
from pulse_pipelines.pipes.postgres import reading, sessions, tables
from pulse_pipelines.pipes.publishing import Loaded, publish
from pulse_pipelines.pipes.read_plan import ReadPlan, most_tasks
from pulse_pipelines.pipes.registry import Pipe
from pulse_resources.process.faults import fail_point

FETCHED = 32
"""Rows that a task has from its source at a time: they may have 3 MiB each."""


@dataclass(frozen=True)
class LoadTask:
    """Part of a table, for one Spark task."""

    address: str = field(repr=False)
    topic: str
    dataset_id: UUID
    snapshot: str
    """Exported snapshot that all tasks share."""
    queries: tuple[str, ...]
    """Queries for keys and events."""


def schema(tenant: Tenant, definition: Definition) -> dict[str, Any]:
    """The JSON Schema of a table's entities.

    Raises:
        NotFound: the source is not configured, or has no such table.
        UserError: the table cannot be replicated.
        Transient: the source does not answer.
    """
    with sessions.snapshot(addresses.url(tenant, definition.of_postgres.source)) as source:
        return reading.checked(source, definition).schema


@contextmanager
def opened(pipe: Pipe, parallelism: int, *, full: bool) -> Iterator[ReadPlan]:
    """Hold the pipe and one moment of its source, for as long as its tasks run.

    Raises:
        Conflict: the pipe's position belongs to another log or slot.
        NotFound, UserError: the table no longer exists, or cannot be replicated.
        Transient: the source does not answer, or an earlier run still sends rows.
    """
    address = addresses.url(pipe.tenant, pipe.definition.of_postgres.source)
    with sessions.connect(address) as source:
        sessions.begin_alone(source, pipe.dataset_id)
        moment = datetime.now(UTC)
        slot_read = reading.read_changes(address, pipe)
        fail_point("pipe.looked")
        name = tables.inspect(source, pipe.definition).name
        sessions.freeze(source)
        # First of all: of a table that is truncated or rewritten after a snapshot, it would show no rows.
        source.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.SQL(name)))
        fail_point("pipe.locked")
        ((exported,),) = source.execute("SELECT pg_export_snapshot()").fetchall()
        most = most_tasks(parallelism)
        plan = reading.plan(source, pipe, slot_read, moment, most, full=full)
        shares = [tuple(plan.queries[index::most]) for index in range(most)]
        task = LoadTask(address, pipe.tenant.topic, pipe.dataset_id, exported, ())
        tasks = [replace(task, queries=share) for share in shares if share]
        yield ReadPlan(plan.is_full, plan.position, plan.as_of, load, tasks)


def load(task: LoadTask) -> Iterator[Loaded]:
    """Spark task: reads rows of the source, and publishes each as an event.

    It holds the pipe in the source until the broker has answered for all of them.

    Raises:
        Transient: the source or the broker does not answer.
    """
    with sessions.connect(task.address) as source:
        sessions.join_run(source, task.dataset_id, task.snapshot)
        # Closed before the connection is left: a query in its midst holds the connection's lock.
        with closing(_rows(source, task.queries)) as rows:
            yield publish(task.topic, rows)


def _rows(source: "psycopg.Connection[Any]", queries: Iterable[str]) -> Generator[Sequence[bytes]]:
    cursor = source.cursor()
    cursor.adapters.register_loader("text", ByteaBinaryLoader)  # raw bytes: the text need not be decoded
    for query in queries:
        rows: Any = cursor.stream(sql.SQL(query), size=FETCHED, binary=True)
        with closing(rows):
            yield from rows
