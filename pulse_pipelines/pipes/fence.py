"""Fence: tasks of a killed run send no rows once the next run has begun, for any source.

A source that has locks holds its pipe itself (`postgres.sessions.begin_alone`). For others the tasks hold a
lock in Pulse's Postgres, each in a session of its own, and the run that they are of is named by the moment at
which it began:

- a run first enters its moment in the pipe's row, then checks whether a task holds the lock;
- a task first takes the lock, then checks whether the pipe's row still has its run's moment.

So either the next run sees the task's lock and does not begin, or the task sees that the next run has begun
and sends nothing. A task whose session is lost has no lock, and one whose pipe was deleted has nothing to
send: it checks before each piece of rows, and drops what has not left its process by then.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from uuid import UUID

import psycopg

from pulse_pipelines.pipes.registry import Pipe
from pulse_resources.errors import Fenced, Transient
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock

PIECE = 1_000
"""Rows between two checks of the lock ..."""
PIECE_S = 1.0
"""... if they take no longer than this, in seconds."""
BEGUN = "SELECT begun_at, gives_way FROM pipes WHERE tenant_id = %s AND pipe = %s"
SourceRow = TypeVar("SourceRow")


@dataclass(frozen=True)
class RunOf:
    """The run that a task is of."""

    tenant_id: UUID
    pipe: str
    dataset_id: UUID
    begun_at: datetime | None


def begin(pipe: Pipe) -> RunOf:
    """Check that no task of an earlier run still sends rows. The pipe's row already has this run's start.

    Raises:
        Transient: one does.
    """
    with locks.session(Lock.PIPE_ROWS, pipe.dataset_id) as alone:
        if alone is None:
            raise Transient(
                "rows of an earlier run of the pipe are still in flight",
                fix="It is tried again",
                tenant=pipe.tenant.slug,
                pipe=pipe.name,
            )
    return RunOf(pipe.tenant.tenant_id, pipe.name, pipe.dataset_id, pipe.begun_at)


class Hold:
    """A task's hold of its pipe: passes rows on for as long as it has it."""

    def __init__(self, session: locks.Connection, run: RunOf) -> None:
        self._session, self._run, self._gives_way = session, run, False
        self._check()

    def __call__(self, rows: Iterable[SourceRow]) -> Iterator[SourceRow]:
        """Pass rows on. Raises as `joined` does."""
        for count, row in enumerate(rows):
            if count % PIECE == 0 or time.monotonic() - self._checked_at > PIECE_S:
                self._check()
            yield row
        self._check()

    def gives_way(self) -> bool:
        """Whether the run gives up its place: its tasks end where that is safe. Raises as `joined`."""
        if time.monotonic() - self._checked_at > PIECE_S:
            self._check()
        return self._gives_way

    def _check(self) -> None:
        self._checked_at, run = time.monotonic(), self._run
        try:
            row = self._session.execute(BEGUN, [run.tenant_id, run.pipe]).fetchone()
        except psycopg.Error:
            raise Transient(
                "the connection that holds the pipe was lost: the remaining rows are not sent", pipe=run.pipe
            ) from None
        if row is None or row[0] != run.begun_at:
            raise Fenced("the pipe was deleted, or another run of it has begun", pipe=run.pipe)
        self._gives_way = row[1]


@contextmanager
def joined(run: RunOf) -> Iterator[Hold]:
    """Hold the pipe for a task of a run.

    Raises:
        Fenced: another run has begun, or the pipe was deleted; while rows are passed on, too.
        Transient: the lock was lost, while rows are passed on.
    """
    with locks.session(Lock.PIPE_ROWS, run.dataset_id, shared=True, wait_seconds=60) as session:
        if session is None:
            raise Transient("a run of the pipe is about to begin", pipe=run.pipe)
        yield Hold(session, run)
