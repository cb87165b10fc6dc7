"""Postgres: one pool per role and process, tenant sessions, roles and migrations.

Row-level security reads the setting `app.tenant`; it is set per transaction, so a pooled connection can never
carry one tenant's identity into another tenant's work.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import class_row
from psycopg_pool import ConnectionPool

from pulse_resources.errors import Transient, UserError
from pulse_resources.home import no_installation
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Connection as Connection, Lock
from pulse_resources.postgres.watched_connection import WatchedConnection
from pulse_resources.process.faults import fail_point
from pulse_resources.resettable import Resettable
from pulse_resources.settings import Settings, load_settings
from pulse_resources.settings.service_settings import Role

CONNECT_S = 10
LOCK_S = 3
"""Seconds that a migration waits for a table, and then leaves it to others, before it tries again."""
LOCK_TRIES = 40
R = TypeVar("R")
TASKS: Role = "pulse_pipeline"
"""Role of Spark's tasks; the only one whose password they get."""
MIGRATIONS = Path(__file__).parent / "migrations"
BASELINE, LAST_REPLACED = "0055.baseline", "0054.registry-versions"
"""The migration that makes the data model at once, and the last of those that it replaced."""


@Resettable
def pool(role: Role) -> "ConnectionPool[Connection]":
    """Connection pool of this process for `role`; connections are checked before use.

    Pools of HTTP services use watched connections, since callers wait. A run waits for a paused server.

    Raises:
        UserError: the settings have no address of Postgres.
    """
    if "postgres" not in load_settings().model_fields_set:
        raise no_installation()
    return ConnectionPool(
        load_settings().postgres.url(role),
        min_size=0,
        max_size=8,
        open=True,
        timeout=10,
        name=f"pulse-{role}",
        check=ConnectionPool.check_connection,
        connection_class=WatchedConnection if role == "pulse_api" else Connection,
        kwargs={"application_name": "pulse", "connect_timeout": CONNECT_S},
    )


def close_pools() -> None:
    """Close every pool of this process (at exit, and between tests that change settings).

    A thread that needs a pool meanwhile makes another, which stays open.
    """
    for dropped in pool.cache_clear():
        dropped.close()


@contextmanager
def transaction(role: Role) -> Iterator[Connection]:
    """Transaction as `role` with no tenant set: tenant data is invisible."""
    with pool(role).connection() as connection, connection.transaction():
        yield connection


@contextmanager
def tenant_transaction(role: Role, tenant_id: UUID, *, one_snapshot: bool = False) -> Iterator[Connection]:
    """Transaction as `role` in the RLS session of a tenant.

    With `one_snapshot`, all its reads see the same snapshot.
    """
    with transaction(role) as connection:
        if one_snapshot:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        set_tenant(connection, tenant_id)
        yield connection


def select(
    connection: Connection, kind: type[R], query: str, values: Any = None, *, binary: bool = False
) -> list[R]:
    """The rows of a query as values of a dataclass whose fields have the names of the query's columns.

    Args:
        binary: transfer the values in Postgres' binary format, which is faster for large ones.
    """
    with connection.cursor(row_factory=class_row(kind), binary=binary) as cursor:
        return cursor.execute(query, values).fetchall()


def set_tenant(connection: Connection, tenant_id: UUID) -> None:
    """Enter the tenant's RLS session until the current transaction ends."""
    connection.execute("SELECT set_config('app.tenant', %s, true)", [str(tenant_id)])


def bootstrap(settings: Settings) -> None:
    """Create roles and databases as superuser, and reset passwords; idempotent."""
    with psycopg.connect(settings.postgres.superuser_url(), autocommit=True) as connection:
        for role in get_args(Role):
            exists = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role])
            verb = sql.SQL("ALTER" if exists.fetchone() else "CREATE")
            secret = settings.postgres.role_passwords.get(role)
            connection.execute(
                sql.SQL("{} ROLE {} LOGIN NOSUPERUSER NOBYPASSRLS PASSWORD {}").format(
                    verb,
                    sql.Identifier(role),
                    sql.Literal(secret.get_secret_value() if secret else None),
                )
            )
        for database in (settings.postgres.database, settings.postgres.dagster_database):
            rows = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database])
            if not rows.fetchone():
                connection.execute(
                    sql.SQL("CREATE DATABASE {} OWNER pulse_owner").format(sql.Identifier(database))
                )
            connection.execute(
                sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(database))
            )
        connection.execute(
            sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(
                sql.Identifier(settings.postgres.database),
                sql.SQL(", ").join(sql.Identifier(role) for role in get_args(Role) if role != "pulse_owner"),
            )
        )
        connection.execute("ALTER ROLE pulse_catalog SET search_path = iceberg_catalog")


def migrate(settings: Settings) -> None:
    """Apply missing migrations as the owner; idempotent, and safe to run concurrently and beside services.

    Raises:
        Transient: a table was in use whenever it was tried. What was applied before stays.
        UserError: the database is older than what the baseline replaced.
    """
    from yoyo import get_backend, read_migrations  # imported here: only set-up needs it

    logging.getLogger("yoyo").setLevel(logging.WARNING)
    backend = get_backend(settings.postgres.url("pulse_owner", "psycopg"))
    try:
        # This lock ends with the process; yoyo's own remains when its process is killed.
        with psycopg.connect(settings.postgres.url("pulse_owner")) as session:
            locks.wait(session, Lock.MIGRATIONS, settings.postgres.database)
            with session.transaction(force_rollback=True):  # it gives up the lock on the table, not the other
                applied = _applied(session)
            migrations = read_migrations(str(MIGRATIONS))
            _adopt(backend, migrations, applied)
            for migration in backend.to_apply(migrations):
                _apply(backend, migration)
    finally:
        backend.connection.close()


def _adopt(backend: Any, migrations: Any, applied: set[str]) -> None:
    """Record the baseline in a database that has all that it replaced."""
    if not applied or BASELINE in applied:
        return
    if LAST_REPLACED not in applied:
        raise UserError(
            f"the database is of an earlier release: its last migration is {max(applied)}",
            fix=f"Call `pulse up` of a release that has the migration {LAST_REPLACED} first",
        )
    with backend.transaction():
        for migration in migrations:
            if migration.id == BASELINE:
                backend.mark_one(migration)


def _apply(backend: Any, migration: Any) -> None:
    """Apply a migration, and record that, in one transaction: a fault between the two would be final.

    Whoever uses a table that it waits for, the next ones queue behind it: so it leaves them turns.
    """
    for _ in range(LOCK_TRIES):
        try:
            with backend.transaction():
                backend.execute(f"SET LOCAL lock_timeout = '{LOCK_S}s'")
                migration.process_steps(backend, "apply")
                fail_point("migration.applied")
                backend.mark_one(migration)
        except psycopg.errors.LockNotAvailable:
            time.sleep(LOCK_S)
        else:
            return
    raise Transient(
        "a migration waits for a table that others use",
        fix="pg_locks shows who holds it; `pulse up` tries again",
        migration=migration.id,
    )


def missing_migrations(connection: psycopg.Connection) -> list[str]:
    """Migrations that the database lacks, in order; writes nothing, not even yoyo's tables."""
    applied = _applied(connection)
    names = sorted(path.stem for path in MIGRATIONS.iterdir() if path.suffix in (".sql", ".py"))
    return [name for name in names if name not in applied]


def _applied(connection: psycopg.Connection) -> set[str]:
    row = connection.execute("SELECT to_regclass('_yoyo_migration')").fetchone()
    if not row or row[0] is None:
        return set()
    return {name for (name,) in connection.execute("SELECT migration_id FROM _yoyo_migration")}
