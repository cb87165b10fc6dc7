"""Migrations on the real Postgres: again, side by side, and after a migrator that was killed."""

import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from support.faults import AtPoint
from yoyo import get_backend, read_migrations

from chaos.waiting import PATIENCE_S, wait
from pulse_resources import postgres
from pulse_resources.errors import Transient, UserError
from pulse_resources.local import postgres as local_postgres
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.settings import Settings

APPLIED = "SELECT migration_hash, applied_at_utc FROM _yoyo_migration ORDER BY 1"


EARLIER = Path(__file__).parent / "earlier_migrations"
"""Those that the baseline replaced: what databases of earlier releases have."""
NEWEST = max(path.stem for path in postgres.MIGRATIONS.glob("*.sql"))
NEXT = "9999.next"


def owner(stack: Settings) -> psycopg.Connection:
    return psycopg.connect(stack.postgres.url("pulse_owner"), autocommit=True)


def test_migrations_apply_once_however_many_start(stack: Settings) -> None:
    with owner(stack) as session, futures.ThreadPoolExecutor(4) as threads:
        before = session.execute(APPLIED).fetchall()
        list(threads.map(postgres.migrate, [stack] * 4, timeout=PATIENCE_S))
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
            waits.result(timeout=PATIENCE_S)
        finally:
            session.execute("DELETE FROM yoyo_lock")
            killed.close()


@pytest.fixture
def another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one migration more, which changes a table."""
    folder = shutil.copytree(postgres.MIGRATIONS, tmp_path / "migrations")
    (folder / f"{NEXT}.sql").write_text("ALTER TABLE entity_logs ADD COLUMN more text")
    monkeypatch.setattr(postgres, "MIGRATIONS", folder)


@pytest.mark.usefixtures("another")
def test_a_migrator_that_dies_between_a_migration_and_its_record_is_followed_by_another(
    stack: Settings, at: AtPoint
) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    with database(stack, NEWEST) as old:
        at("migration.applied", die)
        with pytest.raises(KeyboardInterrupt):
            postgres.migrate(old)
        assert missing(old) == [NEXT]
        postgres.migrate(old)
        assert missing(old) == []


def missing(settings: Settings) -> list[str]:
    with owner(settings) as session:
        return postgres.missing_migrations(session)


@pytest.mark.usefixtures("another")
def test_a_waiting_migration_lets_readers_of_its_tables_pass(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LOCK_S", 1)
    monkeypatch.setattr(postgres, "LOCK_TRIES", 1_000)
    waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'entity_logs'::regclass"
    with database(stack, NEWEST) as old, owner(old) as reader, owner(old) as other:
        with futures.ThreadPoolExecutor(1) as threads:
            with reader.transaction():
                reader.execute("SELECT FROM entity_logs")
                migrating = threads.submit(postgres.migrate, old)
                wait(lambda: bool(other.execute(waiting).fetchall()), "the migration does not wait")
                other.execute("SET statement_timeout = '300s'")
                other.execute("SELECT FROM entity_logs")  # it is behind the migration in the queue
                assert not migrating.done()
            migrating.result(timeout=PATIENCE_S)
        assert missing(old) == []


@pytest.mark.usefixtures("another")
def test_a_migration_that_never_locks_its_table_is_an_error(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LOCK_S", 1)
    monkeypatch.setattr(postgres, "LOCK_TRIES", 1)
    with database(stack, NEWEST) as old, owner(old) as reader, reader.transaction():
        reader.execute("SELECT FROM entity_logs")
        with pytest.raises(Transient, match=rf"waits for a table.*migration={NEXT}"):
            postgres.migrate(old)


DATA = """
INSERT INTO pdm_tenants (tenant_id, slug, name) VALUES (%(tenant)s, 'acme', 'acme');
INSERT INTO pdm_schemas (tenant_id, schema_uri, name, version, document)
VALUES (%(tenant)s, 'pulse://acme/orders/1', 'orders', 1, '{}');
INSERT INTO pdm_datasets (dataset_id, tenant_id, slug, name, schema_uri, table_schema)
VALUES (%(dataset)s, %(tenant)s, 'orders', 'orders', 'pulse://acme/orders/1', '{}');
INSERT INTO ingest_positions (tenant_id, partition, planned_offset, settled_offset)
VALUES (%(tenant)s, 0, 7, 7);
INSERT INTO processed_event_ids (run, newest, tenant_id, dataset_id, ids, ends, digests)
VALUES (1, 1, %(tenant)s, %(dataset)s, 1, '{}', decode(repeat('00', 16), 'hex'))
"""
TABLES = ("pdm_tenants", "pdm_schemas", "pdm_datasets", "ingest_positions", "processed_event_ids")


def test_a_database_of_an_earlier_release_keeps_its_data_and_is_like_a_new_one(stack: Settings) -> None:
    values = {"tenant": uuid.uuid4(), "dataset": uuid.uuid4()}
    with database(stack, postgres.LAST_REPLACED, EARLIER) as old:
        url = old.postgres.superuser_url(old.postgres.database)
        with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
            connection.execute(DATA, values)
            before = [connection.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES]
            postgres.migrate(old)
            assert missing(old) == []
            assert all(before)
            for table, rows in zip(TABLES, before, strict=True):
                now = connection.execute(f"SELECT * FROM {table}").fetchall()  # new columns are the last ones
                assert [row[: len(rows[0])] for row in now] == rows
        assert model(old) == model(stack)


def test_a_database_of_a_release_before_that_is_refused(stack: Settings) -> None:
    with database(stack, "0018.last-cause", EARLIER) as old:
        with pytest.raises(UserError, match=r"its last migration is 0018\.last-cause"):
            postgres.migrate(old)
        assert postgres.BASELINE in missing(old)


def model(settings: Settings) -> list[str]:
    """What `pg_dump` says of the tables of Pulse's database; names of constraints do not count."""
    program, url = (
        local_postgres._wheel() / "bin" / "pg_dump",
        settings.postgres.superuser_url(settings.postgres.database),
    )
    dump = subprocess.run(
        [program, "--schema-only", "--exclude-table=*yoyo*", "--exclude-table=staging.*", url],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = re.sub(r" CONSTRAINT \w+_not_null\d*", "", dump.stdout).splitlines()
    return sorted(line for line in lines if not re.match(r"--|\\(un)?restrict ", line))


@contextmanager
def database(stack: Settings, last: str, folder: Path = postgres.MIGRATIONS) -> Iterator[Settings]:
    """A database of its own, with the migrations of a folder up to one of them."""
    name = "pulse_of_old"
    own = stack.model_copy(
        update={"postgres": stack.postgres.model_copy(update={"database": name})}, deep=True
    )
    with psycopg.connect(stack.postgres.superuser_url(), autocommit=True) as connection:
        postgres.bootstrap(own)
        try:
            apply(own, last, folder)
            yield own
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def apply(settings: Settings, last: str, folder: Path) -> None:
    backend = get_backend(settings.postgres.url("pulse_owner", "psycopg"))
    try:
        migrations = read_migrations(str(folder)).filter(lambda migration: migration.id <= last)
        backend.apply_migrations(backend.to_apply(migrations))
    finally:
        backend.connection.close()
