"""Migrations on the real Postgres: again, side by side, and after a migrator that was killed."""

import uuid
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from datetime import date
from typing import Any

import numpy as np
import psycopg
import pytest
from support.faults import AtPoint
from yoyo import get_backend, read_migrations

from chaos.waiting import PATIENCE_S, wait
from pulse_pipelines.claims import claim_filters
from pulse_pipelines.claims.claim_runs import LARGE_IDS
from pulse_pipelines.tables.digests import Digests
from pulse_resources import postgres
from pulse_resources.errors import Transient
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.settings import Settings

APPLIED = "SELECT migration_hash, applied_at_utc FROM _yoyo_migration ORDER BY 1"


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


def test_a_migrator_that_dies_between_a_migration_and_its_record_is_followed_by_another(
    stack: Settings, at: AtPoint
) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    with before(stack, "0049") as old:
        to_apply = missing(old)
        at("migration.applied", die)
        with pytest.raises(KeyboardInterrupt):
            postgres.migrate(old)
        assert missing(old) == to_apply != []
        postgres.migrate(old)
        assert missing(old) == []


def missing(settings: Settings) -> list[str]:
    with owner(settings) as session:
        return postgres.missing_migrations(session)


def test_a_migration_leaves_turns_to_those_who_use_its_tables(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LOCK_S", 1)
    monkeypatch.setattr(postgres, "LOCK_TRIES", 1_000)
    waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'entity_logs'::regclass"
    with before(stack, "0049") as old, owner(old) as reader, owner(old) as other:
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


def test_a_migration_that_never_gets_its_table_says_so(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LOCK_S", 1)
    monkeypatch.setattr(postgres, "LOCK_TRIES", 1)
    with before(stack, "0049") as old, owner(old) as reader, reader.transaction():
        reader.execute("SELECT FROM entity_logs")
        with pytest.raises(Transient, match=r"waits for a table.*migration=0049\.sinks-behind"):
            postgres.migrate(old)


@pytest.fixture
def before_runs(stack: Settings) -> Iterator[Settings]:
    """A database of its own, as it was when a claim was a row."""
    with before(stack, "0019") as own:
        yield own


@contextmanager
def before(stack: Settings, first: str) -> Iterator[Settings]:
    """A database of its own, as it was before a migration."""
    name = "pulse_of_old"
    own = stack.model_copy(
        update={"postgres": stack.postgres.model_copy(update={"database": name})}, deep=True
    )
    with superuser(stack) as connection:
        postgres.bootstrap(own)
        try:
            apply(own, lambda migration: migration.id < first)
            yield own
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def superuser(settings: Settings) -> psycopg.Connection:
    return psycopg.connect(settings.postgres.superuser_url(), autocommit=True)


def apply(settings: Settings, wanted: Callable[[Any], bool]) -> None:
    url = settings.postgres.url("pulse_owner", "psycopg")
    backend = get_backend(url)
    try:
        backend.apply_migrations(backend.to_apply(read_migrations(str(postgres.MIGRATIONS)).filter(wanted)))
    finally:
        backend.connection.close()


OLD_DATASET = """
INSERT INTO pdm_tenants (tenant_id, slug, name) VALUES (%(tenant)s, 'acme', 'acme');
INSERT INTO pdm_schemas (tenant_id, schema_uri, name, version, document)
VALUES (%(tenant)s, 'pulse://acme/orders/1', 'orders', 1, '{}');
INSERT INTO pdm_datasets (dataset_id, tenant_id, slug, name, schema_uri, table_schema)
VALUES (%(dataset)s, %(tenant)s, 'orders', 'orders', 'pulse://acme/orders/1', '{}')
"""
OLD_CLAIMS = """
INSERT INTO processed_event_ids (tenant_id, dataset_id, partition, event_offset, event_id, claimed_on)
SELECT %(tenant)s, %(dataset)s, n %% 3, n, 'ä' || n, date '2026-01-01' + n / 100
FROM generate_series(0, 999) n
"""


def test_claims_that_were_rows_are_runs(before_runs: Settings) -> None:
    tenant_id, dataset_id, deleted = (uuid.uuid4() for _ in range(3))
    values = {"tenant": tenant_id, "dataset": dataset_id}
    url = before_runs.postgres.superuser_url(before_runs.postgres.database)
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(OLD_DATASET, values)
        connection.execute(OLD_CLAIMS, values)
        connection.execute(OLD_CLAIMS, values | {"dataset": deleted})
        postgres.migrate(before_runs)
        (seed,) = connection.execute("SELECT claim_seed FROM pdm_datasets").fetchone()
        runs = connection.execute("SELECT * FROM processed_event_ids").fetchall()
        forced = "SELECT relname FROM pg_class WHERE relforcerowsecurity AND relname = ANY(%s)"
        names = ["pdm_datasets", "processed_event_ids"]
        assert sorted(name for (name,) in connection.execute(forced, [names])) == names
    ((*_, of_dataset, run, newest, ids, ends, claimed_on, packed, made),) = runs
    assert (of_dataset, newest, ids, ends, claimed_on) == (
        dataset_id,
        run,
        1000,
        [1000, 998, 999],
        date(2026, 1, 10),
    )
    expected = Digests.of([f"ä{n}" for n in range(1000)], seed).run()
    assert (packed, made) == (expected.packed(), None)


OLD_PIPE = """
INSERT INTO entity_logs (tenant_id, dataset_id) VALUES (%(tenant)s, %(dataset)s);
INSERT INTO pipes (tenant_id, pipe, dataset_id, definition)
VALUES (%(tenant)s, 'orders', %(dataset)s, '{"pipe": "orders"}');
INSERT INTO entity_syncs (tenant_id, dataset_id, is_full, sequence_id, request_id, starts, pipe, position)
VALUES (%(tenant)s, %(dataset)s, true, 's', 'r', '{}', 'orders', '7')
"""


@pytest.mark.slow
def test_pipes_of_entities_stay_and_those_of_events_may_follow(stack: Settings) -> None:
    values = {"tenant": uuid.uuid4(), "dataset": uuid.uuid4()}
    kept = "SELECT definition, dataset_id, position FROM pipes JOIN entity_syncs USING (dataset_id)"
    with before(stack, "0052") as old:
        url = old.postgres.superuser_url(old.postgres.database)
        with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
            connection.execute(OLD_DATASET, values)
            connection.execute(OLD_PIPE, values)
            was = connection.execute(kept).fetchall()
            postgres.migrate(old)
            assert connection.execute(kept).fetchall() == was
            forced = "SELECT relname FROM pg_class WHERE relforcerowsecurity AND relname = ANY(%s) ORDER BY 1"
            names = ["entity_syncs", "pipes"]
            assert [name for (name,) in connection.execute(forced, [names])] == names
            with pytest.raises(psycopg.errors.ForeignKeyViolation):
                connection.execute("DELETE FROM pdm_datasets")
            connection.execute("DELETE FROM pipes; DELETE FROM pdm_datasets")
            assert connection.execute("SELECT count(*) FROM entity_syncs").fetchone() == (0,)


ADD_RUN = """
INSERT INTO processed_event_ids (run, newest, tenant_id, dataset_id, ids, ends, digests)
VALUES (%s, 1, %s, %s, %s, '{}', %s)
"""


@pytest.mark.slow
def test_large_runs_of_claims_get_filters(stack: Settings) -> None:
    draw, (tenant_id, dataset_id) = np.random.default_rng(1), (uuid.uuid4(), uuid.uuid4())
    columns = (draw.integers(0, 2**64 - 1, LARGE_IDS, np.uint64) for _ in range(2))
    large = Digests(*columns).run()
    with before(stack, "0028") as old:
        url = old.postgres.superuser_url(old.postgres.database)
        with psycopg.connect(url, autocommit=True) as connection:
            for number, run in enumerate((large, large[: LARGE_IDS - 1])):
                values = [number, tenant_id, dataset_id, len(run), run.packed()]
                connection.execute(ADD_RUN, values)
            postgres.migrate(old)
            query = "SELECT ids, filter FROM processed_event_ids ORDER BY run"
            found = connection.execute(query).fetchall()
            forced = "SELECT relforcerowsecurity FROM pg_class WHERE oid = 'processed_event_ids'::regclass"
            assert connection.execute(forced).fetchone() == (True,)
    assert found == [(LARGE_IDS, claim_filters.make(large)), (LARGE_IDS - 1, None)]
