"""Advisory locks of Postgres: all kinds, taken for a transaction or for a session of its own.

A session's lock ends with its process, however that ends. Correctness depends on none of them: they save work
and errors that a constraint or a lost compare-and-swap would cause.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from uuid import UUID

import psycopg
from psycopg.rows import TupleRow

from pulse_resources.settings import load_settings

Connection = psycopg.Connection[TupleRow]
_KEY = "hashtextextended(%s, 0)"


class Lock(StrEnum):
    """Kinds of locks; the key is the kind and the id of what is locked."""

    MIGRATIONS = "migrations"
    """The database, while it is migrated."""
    BATCH = "batch"
    """A batch, for the attempt that works on it."""
    REWRITE = "rewrite"
    """A dataset (for its raw zone: a tenant), to replace files."""
    MOVE = "move"
    """A dataset: shared to write files without REWRITE, exclusive to search for orphans."""
    MOVE_ATTEMPT = "move-attempt"
    """A move to another schema, for the attempt that works on it."""
    SUMMARIES = "summaries"
    """A dataset, to change its served summaries."""
    KEYS = "keys"
    """A tenant, to issue or revoke API keys."""
    SCHEMA = "schema"
    """A tenant and a schema's name, to publish its next version."""
    SYNC = "sync"
    """A dataset of entities, to send the deletions of a full sync."""
    PIPE = "pipe"
    """A dataset of entities, to run its pipe."""
    PIPE_ROWS = "pipe-rows"
    """A dataset of entities: shared to send a pipe's rows to it, exclusive to begin after all that do."""
    LONG_PIPE = "long-pipe"
    """All tenants: the one run of a pipe that continues beyond its turn while others wait."""
    DATASETS = "datasets"
    """A tenant, to create a dataset, a state or a pipe within a limit."""
    LAKE = "lake"
    """A tenant, to create a table of its own."""
    STORE_MARK = "store-mark"
    """The store mark, to renew it."""
    MANIFEST = "manifest"
    """A tenant's slug, to compare it with a manifest and carry out what differs."""


def wait(connection: Connection, kind: Lock, of: UUID | str) -> None:
    """Take a lock until the transaction ends; waits until it is free."""
    connection.execute(f"SELECT pg_advisory_xact_lock({_KEY})", [_name(kind, of)])


def take(connection: Connection, kind: Lock, of: UUID | str) -> bool:
    """Take a lock until the transaction ends; False when it is held elsewhere."""
    return _try_lock(connection, f"SELECT pg_try_advisory_xact_lock({_KEY})", kind, of)


@contextmanager
def session(
    kind: Lock, of: UUID | str, *, shared: bool = False, wait_seconds: float = 0.0
) -> Iterator[Connection | None]:
    """Connection of its own that holds the lock while the block runs; None if the lock was not obtained.

    Args:
        wait_seconds: how long to wait for it; `math.inf`: until it is free.
    """
    url, how = load_settings().postgres.url("pulse_pipeline"), "_shared" if shared else ""
    with psycopg.connect(url, autocommit=True, application_name=f"pulse-{_name(kind, of)}") as connection:
        acquired = _try_lock(connection, f"SELECT pg_try_advisory_lock{how}({_KEY})", kind, of)
        if not acquired and wait_seconds > 0:
            most = 0 if math.isinf(wait_seconds) else wait_seconds * 1000
            connection.execute("SELECT set_config('lock_timeout', %s, false)", [f"{most:.0f}ms"])
            try:
                connection.execute(f"SELECT pg_advisory_lock{how}({_KEY})", [_name(kind, of)])
                acquired = True
            except psycopg.errors.LockNotAvailable:
                pass
        try:
            yield connection if acquired else None
        finally:
            # A server ends a session some time after its client has closed the connection.
            with suppress(psycopg.OperationalError):  # then the lock is lost, too
                if acquired:
                    connection.execute(f"SELECT pg_advisory_unlock{how}({_KEY})", [_name(kind, of)])


def _try_lock(connection: Connection, query: str, kind: Lock, of: UUID | str) -> bool:
    return connection.execute(query, [_name(kind, of)]).fetchone() == (True,)


def _name(kind: Lock, of: UUID | str) -> str:
    return f"{kind}/{of}"
