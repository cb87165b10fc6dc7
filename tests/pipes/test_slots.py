"""Slots: what could skip a change stops the pipe, and a source keeps no more of its log than it has to."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import psycopg
import pytest
from support.entities import as_model, pages
from support.faults import AtPoint
from support.ingest import Owner
from support.lake import spark
from support.pipes import bring, exposed, settle

from chaos.sources import SOURCE, capturing, promoted, stored_source
from chaos.surroundings import superuser, with_settings
from pulse_pipelines import pipes
from pulse_pipelines.defs.pipes.sensor import pipes_watched
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.entities import syncs
from pulse_pipelines.monitoring.issues import Kind, find_issues
from pulse_pipelines.pipes import addresses
from pulse_pipelines.pipes.postgres import sessions
from pulse_pipelines.pipes.postgres.pgoutput import decoded
from pulse_pipelines.pipes.postgres.slots import Place
from pulse_pipelines.pipes.run import run
from pulse_pipelines.pipes.watch import watch, watch_one
from pulse_resources.errors import Conflict, Transient, UserError

PIPE = {"pipe": "planes", "source": SOURCE, "table": "planes", "dataset": "planes", "mode": "changes"}
ROLE = "CREATE ROLE reader LOGIN REPLICATION; GRANT CREATE ON DATABASE postgres TO reader"
"""With no more rights than docs/pipes.md says."""
TABLE = "CREATE TABLE planes (tail text PRIMARY KEY, seats int); ALTER TABLE planes OWNER TO reader"
KEPT = "max_slot_wal_keep_size = 1MB"
CONFIRMED = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name LIKE 'pulse%%'"
POSITION = "UPDATE entity_syncs SET position = %s WHERE tenant_id = %s AND position = %s"


@pytest.fixture
def source(owner: Owner) -> "Iterator[psycopg.Connection[Any]]":
    with capturing(owner.tenant, KEPT) as connection:
        connection.execute(ROLE)
        connection.execute(TABLE)
        connection.execute("INSERT INTO planes SELECT 'N' || n, n FROM generate_series(1, 9) n")
        with stored_source(owner.tenant, psycopg.conninfo.make_conninfo(connection.info.dsn, user="reader")):
            pipes.create(owner.tenant, definition(PIPE))
            syncs.allow(owner.tenant, "planes", 1)
            bring(owner)
            yield connection


def test_a_source_without_a_slot_left_is_named_and_keeps_no_publication(owner: Owner) -> None:
    with capturing(owner.tenant, "max_replication_slots = 1") as source:
        source.execute("CREATE TABLE planes (tail text PRIMARY KEY, seats int)")
        source.execute("SELECT pg_create_logical_replication_slot('taken', 'pgoutput')")
        pipes.create(owner.tenant, definition(PIPE))
        with pytest.raises(UserError, match="no replication slot left"):
            run(spark(), owner.tenant, "planes", 2)
        assert source.execute("SELECT pubname FROM pg_publication").fetchall() == []
        source.execute("SELECT pg_drop_replication_slot('taken')")
        assert bring(owner).is_full


def find_pipe(owner: Owner) -> "pipes.Pipe":
    return pipes.find(owner.tenant, "planes")


def same(owner: Owner, source: Any) -> bool:
    latest = {key: row for key, row in dict(as_model(pages(owner, slug="planes"))).items() if row is not None}
    rows = source.execute("SELECT tail, to_json(planes) FROM planes").fetchall()
    return latest == {key: {k: v for k, v in row.items() if v is not None} for key, row in rows}


def stops(owner: Owner, why: str) -> None:
    """Neither the watch nor a run goes on, the error stays, and an alert says so."""
    before = find_pipe(owner).position
    with pytest.raises(Conflict, match=why):
        watch_one(find_pipe(owner))
    assert why in str(find_pipe(owner).error)
    with pytest.raises(Conflict, match=why):
        run(spark(), owner.tenant, "planes", 2)
    assert "pulse pipe reset" in str(find_pipe(owner).error)
    assert find_pipe(owner).position == before
    (issue,) = [
        issue for issue in find_issues({}, 0)[0].issues if issue.about.get("tenant") == owner.tenant.slug
    ]
    assert issue.kind == Kind.PIPE_FAILED


def begins_anew(owner: Owner, source: Any) -> None:
    pipes.reset(owner.tenant, "planes")
    assert bring(owner).is_full
    assert same(owner, source)
    watch_one(find_pipe(owner))
    assert find_pipe(owner).error is None


def test_the_sensor_that_watches_sources_counts_the_pipes_that_cannot_continue(
    owner: Owner, source: Any
) -> None:
    def tick() -> str:
        return str(pipes_watched(dg.build_sensor_context()).skip_message)

    tick()
    assert find_pipe(owner).error is None
    source.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    assert "cannot continue" in tick()  # pipes of other tests may be among them
    assert find_pipe(owner).error is not None


@pytest.mark.slow
def test_a_quiet_table_lets_the_source_forget_its_log(owner: Owner, source: Any) -> None:
    """Without a run, a sync or a row: others write in the same database."""
    source.execute("CREATE TABLE others AS SELECT repeat('x', 1000) AS a FROM generate_series(1, 500)")
    before, (confirmed,) = find_pipe(owner), source.execute(CONFIRMED).fetchone()
    watch_one(before)
    (moved,) = source.execute(CONFIRMED).fetchone()
    after = find_pipe(owner)
    assert after.position != before.position
    assert moved == Place.parse(str(after.position)).lsn != confirmed
    assert after.lag_seconds < before.lag_seconds + 1
    assert after.wal_bytes > 500_000
    assert after.wal_status == "reserved"
    source.execute("UPDATE planes SET seats = 0 WHERE tail = 'N1'; DELETE FROM planes WHERE tail = 'N2'")
    source.execute("INSERT INTO others SELECT 'more'")
    watch_one(after)
    assert find_pipe(owner).position == after.position, "a run has to bring these"
    assert [error for pipe, error in watch([after]) if pipe.tenant == owner.tenant] == [None]
    with with_settings(ALERTS__PIPE_LOG_MB=0.001):
        kinds = [e.kind for e in find_issues({}, 0)[0].issues if e.about.get("tenant") == owner.tenant.slug]
    assert kinds == [Kind.PIPE_LOG]
    measured = exposed(owner)
    assert measured["pulse_pipe_wal_bytes", ""] == find_pipe(owner).wal_bytes
    assert measured["pulse_pipe_entities", "created"] == 9
    assert measured["pulse_pipe_failed", ""] == 0
    assert measured["pulse_pipe_lag_seconds", ""] >= 0
    assert not bring(owner).is_full
    assert same(owner, source)


def name_of(source: Any) -> str:
    ((name,),) = source.execute("SELECT slot_name FROM pg_replication_slots").fetchall()
    return str(name)


def drop(source: Any) -> None:
    source.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def make_anew(source: Any) -> None:
    name = name_of(source)
    drop(source)
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])


def read_on(source: Any) -> None:
    source.execute("INSERT INTO planes VALUES ('read', 1)")
    source.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [name_of(source)])


def publish_less(source: Any) -> None:
    source.execute(f"ALTER PUBLICATION {name_of(source)} SET (publish = 'insert')")
    source.execute("DELETE FROM planes WHERE tail = 'N3'")
    source.execute(f"ALTER PUBLICATION {name_of(source)} SET (publish = 'insert, update, delete, truncate')")


def make_the_table_anew(source: Any) -> None:
    source.execute("DROP TABLE planes")
    source.execute(TABLE)
    source.execute("INSERT INTO planes VALUES ('another', 1)")


def write_much(source: Any) -> None:
    source.execute("CREATE TABLE IF NOT EXISTS much (a text)")
    for _ in range(4):
        source.execute("INSERT INTO much SELECT repeat(md5(n::text), 40) FROM generate_series(1, 10000) n")
        source.execute("SELECT pg_switch_wal()")
    source.execute("CHECKPOINT")


BREAKING = {
    "the slot is gone": drop,
    "created again, or read by another client: changes": read_on,
    "the slot was created again": make_anew,
    "the publication was changed": publish_less,
    "or the table was created again": make_the_table_anew,
    "removed the slot's log": write_much,
}


@pytest.mark.slow
def test_a_slot_that_could_skip_a_change_stops_the_pipe(owner: Owner, source: Any) -> None:
    for why, harm in BREAKING.items():
        harm(source)
        stops(owner, why)
        begins_anew(owner, source)
    place = Place.parse(str(find_pipe(owner).position))
    for wrong, why in (
        (place._replace(system="1"), "another database system"),
        (place._replace(lsn="FFFF/0"), "ends before what has settled"),
    ):
        with superuser() as connection:
            connection.execute(POSITION, [str(wrong), owner.tenant.tenant_id, find_pipe(owner).position])
        stops(owner, why)
    begins_anew(owner, source)


def test_other_tables_that_a_person_publishes_are_passed_over(owner: Owner, source: Any) -> None:
    source.execute("CREATE TABLE others (tail int PRIMARY KEY, seats int)")
    source.execute(f"ALTER PUBLICATION {name_of(source)} ADD TABLE others")
    source.execute("INSERT INTO others VALUES (1, 1); TRUNCATE others; INSERT INTO others VALUES (2, 2)")
    source.execute("UPDATE planes SET seats = -1 WHERE tail = 'N1'")
    sent = bring(owner)
    assert (sent.is_full, sent.rows) == (False, 1)
    assert same(owner, source)


def test_a_role_that_may_not_capture_changes_is_told_what_it_lacks(owner: Owner) -> None:
    with capturing(owner.tenant) as source:
        source.execute("CREATE ROLE reader LOGIN; CREATE TABLE planes (tail text PRIMARY KEY, seats int)")
        source.execute("GRANT SELECT ON planes TO reader")
        address = psycopg.conninfo.make_conninfo(source.info.dsn, user="reader")
        with stored_source(owner.tenant, address):
            for lacking, statement in (
                ("OWNER TO ...", "ALTER TABLE planes OWNER TO reader"),
                ("GRANT CREATE ON DATABASE", "GRANT CREATE ON DATABASE postgres TO reader"),
                ("ALTER ROLE ... REPLICATION", "ALTER ROLE reader REPLICATION"),
            ):
                with pytest.raises(UserError) as refused:
                    pipes.create(owner.tenant, definition(PIPE))
                assert lacking in str(refused.value)
                source.execute(statement)
                assert source.execute("SELECT FROM pg_publication").fetchall() == []
            pipes.create(owner.tenant, definition(PIPE))
            source.execute("ALTER ROLE reader NOREPLICATION")
            with pytest.raises(UserError, match="may not capture changes"):
                run(spark(), owner.tenant, "planes", 2)
            source.execute("ALTER ROLE reader REPLICATION")
            assert bring(owner).is_full


def test_a_role_that_loses_a_right_is_told_what_it_lacks(owner: Owner, source: Any) -> None:
    source.execute("UPDATE planes SET seats = -1 WHERE tail = 'N1'")
    source.execute("ALTER ROLE reader NOREPLICATION")
    for work in (watch_one, lambda pipe: run(spark(), owner.tenant, pipe.name, 2)):
        with pytest.raises(UserError, match=r"ALTER ROLE .* REPLICATION"):
            work(find_pipe(owner))
        assert "ALTER ROLE ... REPLICATION" in str(find_pipe(owner).error)
    with pytest.raises(UserError, match=r"ALTER ROLE .* REPLICATION"):
        pipes.delete(owner.tenant, "planes")
    source.execute("ALTER ROLE reader REPLICATION")
    assert not bring(owner).is_full
    assert same(owner, source)


def test_a_role_that_loses_its_publication_is_told_who_has_to_own_it(owner: Owner, source: Any) -> None:
    ((name,),) = source.execute("SELECT pubname FROM pg_publication").fetchall()
    source.execute(f"ALTER PUBLICATION {name} OWNER TO CURRENT_USER")
    stops(owner, "the publication was changed")
    pipes.reset(owner.tenant, "planes")
    with pytest.raises(UserError, match=f"ALTER PUBLICATION {name} OWNER TO"):
        run(spark(), owner.tenant, "planes", 2)
    source.execute(f"ALTER PUBLICATION {name} OWNER TO reader")
    assert bring(owner).is_full


def test_leave_slot_deletes_a_pipe_whose_source_is_lost(owner: Owner, source: Any) -> None:
    with stored_source(owner.tenant, "host=127.0.0.1 port=9 dbname=postgres"):
        with pytest.raises(Transient, match="leave-slot"):
            pipes.delete(owner.tenant, "planes")
        addresses.file(owner.tenant, SOURCE).unlink()
        with pytest.raises(Conflict, match="leave_slot=true"):
            pipes.delete(owner.tenant, "planes")
        assert pipes.delete(owner.tenant, "planes", leave_slot=True) == "planes"
    assert pipes.list_pipes(owner.tenant) == []
    assert source.execute(CONFIRMED).fetchall(), "the source was not asked"


@pytest.mark.slow
def test_a_server_that_takes_the_place_of_the_source_stops_the_pipe(owner: Owner, source: Any) -> None:
    """Even where it has a slot of the name, as failover slots are copied."""
    with promoted(owner.tenant, source) as other:
        other.execute("DELETE FROM planes WHERE tail = 'N1'")
        stops(owner, "failed over, or was restored")
        other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name_of(source)])
        stops(owner, "failed over, or was restored")
        begins_anew(owner, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE planes ALTER seats TYPE bigint USING seats * 2",
        "ALTER TABLE planes ADD engines int DEFAULT 2",
        "ALTER TABLE planes RENAME seats TO places",
    ],
)
def test_a_table_change_without_a_log_message_makes_the_next_run_read_all(
    owner: Owner, source: Any, change: str
) -> None:
    source.execute("UPDATE planes SET seats = -1 WHERE tail = 'N1'")
    source.execute(change)
    before = find_pipe(owner).position
    watch_one(find_pipe(owner))
    assert find_pipe(owner).position == before, "it does not count as quiet"
    assert bring(owner).is_full
    assert not bring(owner).is_full
    rows = source.execute("SELECT tail, to_json(planes) FROM planes").fetchall()
    latest = {key: row for key, row in dict(as_model(pages(owner, slug="planes"))).items() if row is not None}
    assert latest == dict(rows)


@pytest.mark.slow
def test_rows_of_a_run_that_died_never_follow_those_of_the_next(
    owner: Owner, source: Any, at: AtPoint
) -> None:
    """A task of it that still sends holds the pipe in the source: Pulse's own lock ended with the run."""
    address, dataset_id = addresses.url(owner.tenant, SOURCE), find_pipe(owner).dataset_id
    with sessions.connect(address) as alive:
        sessions.begin_alone(alive, dataset_id)
        sessions.freeze(alive)
        ((exported,),) = alive.execute("SELECT pg_export_snapshot()").fetchall()
        with sessions.connect(address) as task:
            sessions.join_run(task, dataset_id, exported)
            alive.close()
            with pytest.raises(Transient, match="still in flight"):
                run(spark(), owner.tenant, "planes", 2)
    with sessions.connect(address) as late, pytest.raises(Transient, match="has ended"):
        sessions.join_run(late, dataset_id, exported)

    def refused() -> None:
        with pytest.raises(Transient, match="still in flight"):
            sessions.begin_alone(source, dataset_id)

    refusals = at("pipe.begun", refused)
    bring(owner)
    assert refusals == [None]
    sessions.begin_alone(source, dataset_id)


@pytest.mark.parametrize(
    "address",
    [
        "postgres://u:hunter2@127.0.0.1:1/db",
        "postgres://u:hun@ter2@127.0.0.1:1/hunter2",
        "host=127.0.0.1 port=1 user=hunter2 password=hunter2",
        "password='hunter2",
        "hunter2",
        "passwrd=hunter2 host=127.0.0.1",
        "host=hunter2.invalid password=x",
        "port=hunter2",
    ],
)
def test_no_error_contains_the_address_or_password_of_a_source(owner: Owner, address: str) -> None:
    with stored_source(owner.tenant, address), pytest.raises((Transient, UserError)) as raised:
        pipes.create(owner.tenant, definition(PIPE))
    error = f"{raised.value}{raised.value.__cause__}"
    assert not [secret for secret in ("hunter2", "ter2", "127.0.0.1") if secret in error], error


def test_a_change_under_a_renamed_key_column_needs_a_whole_read() -> None:
    relation = b"R" + (7).to_bytes(4) + b"public\0planes\0d" + (1).to_bytes(2) + b"\1old\0" + bytes(8)
    change = b"I" + (7).to_bytes(4) + b"N" + (1).to_bytes(2) + b"t" + (2).to_bytes(4) + b"N1"
    assert decoded([relation, change], ("old",), 7).keys == {("N1",)}
    assert decoded([relation, change], ("new",), 7).whole


@pytest.mark.parametrize(
    "point", ["pipe.looked", "pipe.begun", pytest.param("pipe.loaded", marks=pytest.mark.slow)]
)
def test_a_source_that_ends_its_sessions_fails_a_run_in_words(
    owner: Owner, source: Any, at: AtPoint, point: str
) -> None:
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pulse'"
    source.execute("UPDATE planes SET seats = 0 WHERE tail = 'N1'; DELETE FROM planes WHERE tail = 'N2'")
    at(point, lambda: source.execute(end))
    with pytest.raises(Transient, match="ended"):
        run(spark(), owner.tenant, "planes", 2)
    assert "It is tried again" in str(find_pipe(owner).error)
    settle(owner)
    bring(owner)
    assert same(owner, source)
