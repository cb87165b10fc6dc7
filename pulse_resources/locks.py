"""Advisory locks of Postgres: all their kinds, taken for a transaction, or for a session of its own.

A session's lock ends with its process, however that ends. None of them is what keeps data right: they
spare work, and errors, to those who would otherwise meet in a constraint or a lost compare-and-swap.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from uuid import UUID

import psycopg
from psycopg.rows import TupleRow

from pulse_resources.settings import load_settings

Connection = psycopg.Connection[TupleRow]
_KEY = "hashtextextended(%s, 0)"


class Lock(StrEnum):
    """What is locked, and of whom: the value and that name are the key."""

    MIGRATIONS = "migrations"
    """Of the database."""
    BATCH = "batch"
    """Of a batch, by the attempt that works on it."""
    REWRITE = "rewrite"
    """Of a dataset (of its raw zone: of a tenant), by whoever replaces files."""
    MOVE = "move"
    """Of a dataset: shared by those who write files without REWRITE, exclusive to who looks for orphans."""
    MOVE_ATTEMPT = "move-attempt"
    """Of a move to another schema, by the attempt that works on it."""
    SUMMARIES = "summaries"
    """Of a dataset, by whoever changes what is served of it."""
    KEYS = "keys"
    """Of a tenant, by whoever issues or revokes API keys."""
    SCHEMA = "schema"
    """Of a tenant and a schema's name, by whoever publishes its next version."""
    SYNC = "sync"
    """Of a dataset of entities, by whoever sends what a full sync deletes."""
    PIPE = "pipe"
    """Of a dataset of entities, by the run of its pipe."""
    DATASETS = "datasets"
    """Of a tenant, by whoever creates a dataset within a quota."""


def wait(connection: Connection, kind: Lock, of: UUID | str) -> None:
    """Take a lock until the transaction ends; waits for whoever has it."""
    connection.execute(f"SELECT pg_advisory_xact_lock({_KEY})", [_name(kind, of)])


def take(connection: Connection, kind: Lock, of: UUID | str) -> bool:
    """Take a lock until the transaction ends; False when somebody else has it."""
    return _tried(connection, f"SELECT pg_try_advisory_xact_lock({_KEY})", kind, of)


@contextmanager
def session(
    kind: Lock, of: UUID | str, *, shared: bool = False, wait_seconds: float = 0.0
) -> Iterator[Connection | None]:
    """A connection of its own that has the lock while the block runs; None when it was not to be had.

    Args:
        wait_seconds: for whoever has it; `math.inf`: until it is free.
    """
    url, how = load_settings().postgres.url("pulse_pipeline"), "_shared" if shared else ""
    with psycopg.connect(url, autocommit=True, application_name=f"pulse-{_name(kind, of)}") as connection:
        held = _tried(connection, f"SELECT pg_try_advisory_lock{how}({_KEY})", kind, of)
        if not held and wait_seconds > 0:
            most = 0 if math.isinf(wait_seconds) else wait_seconds * 1000
            connection.execute("SELECT set_config('lock_timeout', %s, false)", [f"{most:.0f}ms"])
            try:
                connection.execute(f"SELECT pg_advisory_lock{how}({_KEY})", [_name(kind, of)])
                held = True
            except psycopg.errors.LockNotAvailable:
                pass
        yield connection if held else None


def _tried(connection: Connection, query: str, kind: Lock, of: UUID | str) -> bool:
    return connection.execute(query, [_name(kind, of)]).fetchone() == (True,)


def _name(kind: Lock, of: UUID | str) -> str:
    return f"{kind}/{of}"
