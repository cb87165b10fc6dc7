"""Migrations on the real Postgres: again, side by side, and after a migrator that was killed."""

from concurrent import futures

import psycopg
import pytest

from pulse_resources import locks, postgres
from pulse_resources.locks import Lock
from pulse_resources.settings import Settings

APPLIED = "SELECT migration_hash, applied_at_utc FROM _yoyo_migration ORDER BY 1"


def owner(stack: Settings) -> psycopg.Connection:
    return psycopg.connect(stack.postgres.url("pulse_owner"), autocommit=True)


def test_migrations_apply_once_however_many_start(stack: Settings) -> None:
    with owner(stack) as session, futures.ThreadPoolExecutor(4) as threads:
        before = session.execute(APPLIED).fetchall()
        list(threads.map(postgres.migrate, [stack] * 4, timeout=60))
        assert session.execute(APPLIED).fetchall() == before != []


def test_a_killed_migrator_blocks_nobody(stack: Settings) -> None:
    """What it held ends with its session; the row in yoyo's lock table, which stays behind, is not asked."""
    killed = owner(stack)
    with owner(stack) as session, futures.ThreadPoolExecutor(1) as threads:
        session.execute("INSERT INTO yoyo_lock (locked, ctime, pid) VALUES (1, now(), 1)")
        try:
            killed.execute("BEGIN")
            locks.wait(killed, Lock.MIGRATIONS, stack.postgres.database)
            waits = threads.submit(postgres.migrate, stack)
            with pytest.raises(futures.TimeoutError):
                waits.result(timeout=1)
            session.execute("SELECT pg_terminate_backend(%s)", [killed.info.backend_pid])
            waits.result(timeout=30)
        finally:
            session.execute("DELETE FROM yoyo_lock")
            killed.close()
