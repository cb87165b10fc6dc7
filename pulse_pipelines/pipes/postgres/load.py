"""Load: the rows that a run reads, in Spark tasks that share its snapshot."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from pulse_pipelines.pipes import addresses
from pulse_pipelines.pipes.postgres import reading, tables
from pulse_pipelines.pipes.publishing import Loaded, publish
from pulse_pipelines.pipes.registry import Pipe
from pulse_pipelines.pipes.wanted import Wanted
from pulse_resources.faults import fail_point


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


@contextmanager
def opened(pipe: Pipe, parallelism: int, *, full: bool) -> Iterator[Wanted]:
    """Hold the pipe and one moment of its source, for as long as its tasks run.

    Raises:
        Conflict: the pipe's position belongs to another log or slot.
        NotFound, UserError: the table no longer exists, or cannot be replicated.
        Transient: the source does not answer, or an earlier run still sends rows.
    """
    address = addresses.url(pipe.tenant, pipe.definition.of_postgres.source)
    with tables.connect(address) as source:
        tables.begin_alone(source, pipe.dataset_id)
        moment = datetime.now(UTC)
        change = reading.changes_of(address, pipe)
        fail_point("pipe.looked")
        tables.freeze(source)
        ((exported,),) = source.execute("SELECT pg_export_snapshot()").fetchall()
        plan = reading.plan(source, pipe, change, moment, full=full)
        shares = [tuple(plan.queries[index::parallelism]) for index in range(parallelism)]
        task = LoadTask(address, pipe.tenant.topic, pipe.dataset_id, exported, ())
        tasks = [replace(task, queries=share) for share in shares if share]
        yield Wanted(plan.is_full, plan.position, plan.as_of, load, tasks)


def load(task: LoadTask) -> Iterator[Loaded]:
    """Spark task: copies rows from the source, and publishes each as an event.

    It holds the pipe in the source until the broker has answered for all of them.

    Raises:
        Transient: the source or the broker does not answer.
    """
    with tables.connect(task.address) as source:
        tables.join_run(source, task.dataset_id, task.snapshot)
        yield publish(task.topic, (row for query in task.queries for row in _copied(source, query)))


def _copied(source: "psycopg.Connection[Any]", query: str) -> Iterator[Sequence[bytes]]:
    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(sql.SQL(query))
    with source.cursor().copy(statement) as copy:
        copy.set_types(["bytea", "bytea"])  # raw bytes: the text need not be decoded
        yield from copy.rows()
