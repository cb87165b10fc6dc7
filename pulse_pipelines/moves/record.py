"""Record of moves: requested, worked on by one attempt after the other, done or failed.

A running attempt holds a session advisory lock, like an attempt at a batch: the lock is released when its
process dies. Only the newest attempt may update the move (fencing).
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from psycopg.errors import UniqueViolation

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres
from pulse_resources.errors import Conflict, Fenced, NotFound
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock

MAX_ATTEMPTS = 8
BACKOFF_S, BACKOFF_MAX_S = 10.0, 600.0
"""Delay before the next attempt, in seconds: the first, which doubles, and the longest."""
MOST = 100
"""Most moves in a list."""

FIELDS = """m.move_id, m.dataset_id, m.slug, m.from_uri, m.schema_uri, m.state, m.attempt, m.files,
    m.files_done, m.error, m.run_id, m.asked_at, m.started_at, m.ended_at"""
PLAN = """
INSERT INTO dataset_moves (tenant_id, move_id, dataset_id, slug, from_uri, schema_uri)
VALUES (%s, %s, %s, %s, %s, %s)
"""
FIND = f"SELECT {FIELDS} FROM dataset_moves m WHERE tenant_id = %s AND move_id = %s"  # noqa: S608
OF_DATASET = f"""
SELECT {FIELDS} FROM dataset_moves m WHERE tenant_id = %s AND slug = %s ORDER BY asked_at DESC LIMIT {MOST}
"""  # noqa: S608 - from constants
OPEN = f"""
SELECT t.tenant_id, t.slug, not_before <= now(), {FIELDS}
FROM dataset_moves m JOIN pdm_tenants t USING (tenant_id)
WHERE state IN ('planned', 'running') ORDER BY asked_at
"""  # noqa: S608
OPEN_OF = f"""
SELECT {FIELDS} FROM dataset_moves m WHERE dataset_id = %s AND state IN ('planned', 'running')
"""  # noqa: S608
BEGIN = """
UPDATE dataset_moves SET state = 'running', started_at = now(), run_id = %s, files = NULL, files_done = 0
WHERE tenant_id = %s AND move_id = %s AND attempt = %s AND state = 'planned'
"""
PROGRESS = """
UPDATE dataset_moves SET files = %s, files_done = %s
WHERE tenant_id = %s AND move_id = %s AND attempt = %s AND state = 'running'
"""
DONE = """
UPDATE dataset_moves SET state = 'done', ended_at = now(), error = NULL
WHERE tenant_id = %s AND move_id = %s AND attempt = %s AND state = 'running'
"""
FAIL = """
UPDATE dataset_moves SET state = 'failed', ended_at = now(), error = %s
WHERE tenant_id = %s AND move_id = %s AND attempt = %s AND state IN ('planned', 'running')
"""
NEXT_ATTEMPT = """
UPDATE dataset_moves SET state = 'planned', attempt = attempt + 1, error = %s,
    not_before = now() + make_interval(secs => %s)
WHERE tenant_id = %s AND move_id = %s AND attempt = %s AND state IN ('planned', 'running')
"""


class MoveState(StrEnum):
    """State of a move."""

    PLANNED = "planned"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """The dataset is unchanged."""


@dataclass(frozen=True)
class Move:
    """A dataset's move to a newer schema, as recorded."""

    move_id: str
    dataset_id: UUID
    slug: str
    from_uri: str
    schema_uri: str
    state: str
    attempt: int
    files: int | None
    """Number of data files to rewrite; None: no attempt has counted them yet."""
    files_done: int
    error: str | None
    """The error of the failed move, or of the last attempt."""
    run_id: str | None
    asked_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def ended(self) -> bool:
        return self.state in (MoveState.DONE, MoveState.FAILED)


@dataclass(frozen=True)
class Open:
    """A move that has not ended, with its tenant."""

    tenant: Tenant
    ready: bool
    """Whether its back-off is over."""
    move: Move


def plan(tenant: Tenant, dataset: Dataset, schema_uri: str) -> Move:
    """Record a move for a run to carry out.

    Raises:
        Conflict: the dataset already has an open move.
    """
    move_id = uuid.uuid4().hex[:16]
    values = [tenant.tenant_id, move_id, dataset.dataset_id, dataset.slug, dataset.schema_uri, schema_uri]
    try:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            connection.execute(PLAN, values)
    except UniqueViolation:
        none_under_way(tenant, dataset)
        raise Conflict(
            "another move of the dataset was under way",
            fix="Ask again: it has just ended",
            tenant=tenant.slug,
            dataset=dataset.slug,
        ) from None
    return find(tenant, move_id)


def none_under_way(tenant: Tenant, dataset: Dataset) -> None:
    """Raise Conflict, with the move's id, if the dataset has an open move."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        moves = postgres.select(connection, Move, OPEN_OF, [dataset.dataset_id])
    if not moves:
        return
    under_way = moves[0]
    raise Conflict(
        f"the dataset is moving to {under_way.schema_uri} already",
        fix="Wait until that move has ended",
        tenant=tenant.slug,
        dataset=dataset.slug,
        move=under_way.move_id,
    )


def find(tenant: Tenant, move_id: str) -> Move:
    """Find a move of the tenant.

    Raises:
        NotFound: the tenant has no move with this id.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        moves = postgres.select(connection, Move, FIND, [tenant.tenant_id, move_id])
    if not moves:
        raise NotFound("no such move", tenant=tenant.slug, move=move_id)
    return moves[0]


def of_dataset(tenant: Tenant, slug: str) -> list[Move]:
    """List the moves of the datasets that have, or had, a slug: the latest first."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return postgres.select(connection, Move, OF_DATASET, [tenant.tenant_id, slug])


def open_moves() -> list[Open]:
    """List the moves of all tenants that have not ended, the oldest first."""
    with postgres.transaction("pulse_pipeline") as connection:
        return [Open(Tenant(row[0], row[1]), row[2], Move(*row[3:])) for row in connection.execute(OPEN)]


def is_leased(move_id: str) -> bool:
    """Whether a living process holds the move's lease."""
    with postgres.transaction("pulse_pipeline") as connection:
        return not locks.take(connection, Lock.MOVE_ATTEMPT, move_id)


@dataclass(frozen=True)
class Attempt:
    """An attempt at a move; its updates are valid until a later attempt begins."""

    tenant: Tenant
    move_id: str
    number: int

    @contextmanager
    def hold(self, run_id: str | None) -> Iterator[Move]:
        """Hold the move's lease while the block runs.

        Raises:
            NotFound: there is no such move.
            Fenced: another process holds the lease, the move has ended, or a newer attempt exists.
        """
        with locks.session(Lock.MOVE_ATTEMPT, self.move_id) as lease:
            if lease is None:
                raise self._fenced()
            self._update(BEGIN, run_id)
            yield find(self.tenant, self.move_id)

    def progress(self, written: int, total: int) -> None:
        """Record the number of files written. Raises Fenced, as `done`."""
        self._update(PROGRESS, total, written)

    def done(self, connection: postgres.Connection) -> None:
        """Mark the move as done, in the transaction that moves the dataset.

        Raises:
            Fenced: a newer attempt exists.
        """
        if connection.execute(DONE, self._key()).rowcount != 1:
            raise self._fenced()

    def fail(self, error: str) -> None:
        """End the move as failed, for an error that a retry cannot fix. Raises Fenced, as `done`."""
        self._update(FAIL, _text(error))

    def give_up(self, error: str) -> None:
        """Leave the move to the next attempt, or fail it if this was the last one.

        Raises:
            Fenced: a newer attempt exists, or the move has ended.
        """
        if self.number >= MAX_ATTEMPTS:
            self.fail(f"{error}; after {self.number} attempts it is left: ask for it again")
            return
        wait = min(BACKOFF_S * 2 ** (self.number - 1), BACKOFF_MAX_S)
        self._update(NEXT_ATTEMPT, _text(error), wait)

    def _update(self, statement: str, *values: object) -> None:
        with postgres.tenant_transaction("pulse_pipeline", self.tenant.tenant_id) as connection:
            if connection.execute(statement, [*values, *self._key()]).rowcount != 1:
                raise self._fenced()

    def _key(self) -> list[Any]:
        return [self.tenant.tenant_id, self.move_id, self.number]

    def _fenced(self) -> Fenced:
        return Fenced(
            "another attempt owns this move, or it has ended",
            tenant=self.tenant.slug,
            move=self.move_id,
            attempt=self.number,
        )


def _text(error: str) -> str:
    return error[:2000].replace("\0", "")
