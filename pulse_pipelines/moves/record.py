"""The record of a move: asked for, taken up by one attempt after the other, done or failed.

While an attempt runs it holds a session advisory lock, as an attempt at a batch does: when its process dies
the lock is gone. Only the newest attempt may say anything of the move.
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
from pulse_resources import locks, postgres
from pulse_resources.errors import Conflict, Fenced, NotFound
from pulse_resources.locks import Lock

MAX_ATTEMPTS = 8
BACKOFF_S, BACKOFF_MAX_S = 10.0, 600.0
"""Waits before another attempt: the first, which doubles, and the longest."""
MOST = 100
"""Moves of one list."""

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


class State(StrEnum):
    """Where a move is."""

    PLANNED = "planned"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """Nothing was changed."""


@dataclass(frozen=True)
class Move:
    """A move of a dataset to a newer schema, as Postgres remembers it."""

    move_id: str
    dataset_id: UUID
    slug: str
    from_uri: str
    schema_uri: str
    state: str
    attempt: int
    files: int | None
    """To be written again; None: no attempt has looked yet."""
    files_done: int
    error: str | None
    """Why it failed, or why the attempt before did."""
    run_id: str | None
    asked_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def ended(self) -> bool:
        return self.state in (State.DONE, State.FAILED)


@dataclass(frozen=True)
class Open:
    """A move that has not ended, and whose it is."""

    tenant: Tenant
    ready: bool
    """Its back-off is over."""
    move: Move


def plan(tenant: Tenant, dataset: Dataset, schema_uri: str) -> Move:
    """Record a move that a run is to carry out.

    Raises:
        Conflict: another one of the dataset is under way.
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
    """Raises Conflict: a move of the dataset is under way, which it names."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        row = connection.execute(OPEN_OF, [dataset.dataset_id]).fetchone()
    if row is None:
        return
    under_way = Move(*row)
    raise Conflict(
        f"the dataset is moving to {under_way.schema_uri} already",
        fix="Wait until that move has ended",
        tenant=tenant.slug,
        dataset=dataset.slug,
        move=under_way.move_id,
    )


def find(tenant: Tenant, move_id: str) -> Move:
    """A move of the tenant.

    Raises:
        NotFound: it has none with this id.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        row = connection.execute(FIND, [tenant.tenant_id, move_id]).fetchone()
    if row is None:
        raise NotFound("no such move", tenant=tenant.slug, move=move_id)
    return Move(*row)


def of_dataset(tenant: Tenant, slug: str) -> list[Move]:
    """Moves of the datasets that had, or have, a slug: the latest first."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return [Move(*row) for row in connection.execute(OF_DATASET, [tenant.tenant_id, slug])]


def open_moves() -> list[Open]:
    """Moves of all tenants that have not ended, the oldest first."""
    with postgres.transaction("pulse_pipeline") as connection:
        return [Open(Tenant(row[0], row[1]), row[2], Move(*row[3:])) for row in connection.execute(OPEN)]


def lease_held(move_id: str) -> bool:
    """Whether a living process works on the move."""
    with postgres.transaction("pulse_pipeline") as connection:
        return not locks.take(connection, Lock.MOVE_ATTEMPT, move_id)


@dataclass(frozen=True)
class Attempt:
    """One try at a move; what it says counts while no later one was begun."""

    tenant: Tenant
    move_id: str
    number: int

    @contextmanager
    def own(self, run_id: str | None) -> Iterator[Move]:
        """Be the one that works on the move while the block runs.

        Raises:
            NotFound: there is no such move.
            Fenced: another process works on it, it has ended, or a newer attempt exists.
        """
        with locks.session(Lock.MOVE_ATTEMPT, self.move_id) as lease:
            if lease is None:
                raise self._fenced()
            self._say(BEGIN, run_id)
            yield find(self.tenant, self.move_id)

    def progress(self, written: int, wanted: int) -> None:
        """Say how many files are written. Raises Fenced, as `done`."""
        self._say(PROGRESS, wanted, written)

    def done(self, connection: postgres.Connection) -> None:
        """Say that the dataset has moved, in the transaction that moves it.

        Raises:
            Fenced: a newer attempt exists.
        """
        if connection.execute(DONE, self._key()).rowcount != 1:
            raise self._fenced()

    def fail(self, error: str) -> None:
        """End the move: trying again is no help. Raises Fenced, as `done`."""
        self._say(FAIL, _text(error))

    def give_up(self, error: str) -> None:
        """Leave the move to another attempt, or end it when this was the last one.

        Raises:
            Fenced: a newer attempt exists, or it has ended.
        """
        if self.number >= MAX_ATTEMPTS:
            self.fail(f"{error}; after {self.number} attempts it is left: ask for it again")
            return
        wait = min(BACKOFF_S * 2 ** (self.number - 1), BACKOFF_MAX_S)
        self._say(NEXT_ATTEMPT, _text(error), wait)

    def _say(self, statement: str, *values: object) -> None:
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
