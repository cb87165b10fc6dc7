"""What a source's log and a snapshot of its rows say of each other; what publishing does to a table."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Thread
from time import sleep
from typing import Any

import psycopg
import pytest
from support.entities import as_model, pages
from support.faults import AtPoint
from support.forked import forked
from support.ingest import Owner
from support.lake import spark
from support.pipes import bring, settle

from chaos.sources import SOURCE, capturing, copied
from chaos.waiting import PATIENCE_S, wait
from pulse_pipelines import pipes
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import syncs
from pulse_pipelines.pipes.postgres import slot_creation
from pulse_pipelines.pipes.postgres.pgoutput import LogChanges, Transaction
from pulse_pipelines.pipes.postgres.places import Place, SlotRead
from pulse_pipelines.pipes.run import run
from pulse_pipelines.pipes.watch import watch_one
from pulse_resources.errors import Conflict, Transient, UserError

PIPE = {"pipe": "planes", "source": SOURCE, "table": "planes", "dataset": "planes", "mode": "changes"}
TABLE = "CREATE TABLE planes (tail text PRIMARY KEY, seats int)"


@pytest.fixture
def source(owner: Owner) -> "Iterator[psycopg.Connection[Any]]":
    with capturing(owner.tenant) as connection:
        yield connection


def begin(owner: Owner, source: Any, table: str = TABLE) -> None:
    source.execute(table)
    source.execute("INSERT INTO planes SELECT 'N' || n, n FROM generate_series(1, 5) n")
    pipes.create(owner.tenant, definition(PIPE))
    syncs.allow(owner.tenant, "planes", 1)
    bring(owner)


def same(owner: Owner, source: Any) -> bool:
    latest = {key: row for key, row in dict(as_model(pages(owner, slug="planes"))).items() if row is not None}
    rows = source.execute("SELECT tail, to_json(planes) FROM planes").fetchall()
    return latest == {key: {k: v for k, v in row.items() if v is not None} for key, row in rows}


@contextmanager
def committing(source: Any, statement: str) -> Iterator[None]:
    """While the block runs, the log has a transaction that nobody sees: its commit waits for a standby."""
    source.execute("SET synchronous_commit = local")
    source.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    source.execute("SELECT pg_reload_conf()")

    def commit() -> None:
        with psycopg.connect(source.info.dsn, autocommit=True, application_name="unseen") as other:
            other.execute(statement)

    thread = Thread(target=commit)
    thread.start()
    # Commits of others, as of the API, may wait too.
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'unseen'"
    )
    wait(lambda: bool(source.execute(waits).fetchone() == (1,)), "no commit waits")
    try:
        yield
    finally:
        source.execute("ALTER SYSTEM RESET synchronous_standby_names")
        source.execute("SELECT pg_reload_conf()")
        thread.join(PATIENCE_S)


def test_a_pipe_sends_changes_that_the_snapshot_does_not_show_later(owner: Owner, source: Any) -> None:
    begin(owner, source)
    source.execute("UPDATE planes SET seats = 0 WHERE tail = 'N1'")
    unseen = "UPDATE planes SET seats = -2 WHERE tail = 'N2'; DELETE FROM planes WHERE tail = 'N3'"
    with committing(source, f"BEGIN; {unseen}; INSERT INTO planes VALUES ('N6', 6); COMMIT"):
        source.execute("UPDATE planes SET seats = 4000 WHERE tail = 'N4'")
        bring(owner)
        assert same(owner, source), "what follows it in the log is brought at once"
        position = pipes.find(owner.tenant, "planes").position
        bring(owner)
        assert pipes.find(owner.tenant, "planes").position.split()[2] == position.split()[2]
        watch_one(pipes.find(owner.tenant, "planes"))
        assert not same_with(owner, "N6")
    bring(owner)
    assert same_with(owner, "N6")
    assert same(owner, source)
    assert pipes.find(owner.tenant, "planes").position.split()[2] != position.split()[2]


def same_with(owner: Owner, key: str) -> bool:
    return dict(as_model(pages(owner, slug="planes"))).get(key) is not None


def test_the_first_run_sees_rows_that_commit_after_its_slot_was_made(
    owner: Owner, source: Any, at: AtPoint
) -> None:
    source.execute(TABLE)
    pipes.create(owner.tenant, definition(PIPE))
    with psycopg.connect(source.info.dsn) as other:

        def write() -> None:
            other.execute("INSERT INTO planes VALUES ('N1', 1)")
            Thread(target=lambda: (sleep(2), other.commit())).start()

        at("pipe.slot_made", write)
        bring(owner)
    assert same(owner, source)


def test_a_slot_that_waits_for_a_transaction_of_another_table_says_so(
    owner: Owner, source: Any, at: AtPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would for a transaction that someone prepared and forgot. One of the table may begin later."""
    source.execute(f"{TABLE}; CREATE TABLE others (a int)")
    pipes.create(owner.tenant, definition(PIPE))
    monkeypatch.setattr(slot_creation, "WRITERS_S", 1)
    with psycopg.connect(source.info.dsn) as other:
        other.execute("INSERT INTO others VALUES (1)")
        with pytest.raises(Transient, match="a transaction of the server does not end"):
            run(spark(), owner.tenant, "planes", 2)
        assert source.execute("SELECT FROM pg_replication_slots").fetchall() == []
        assert source.execute("SELECT FROM pg_publication").fetchall() == []
        other.rollback()
        at("pipe.slot_made", lambda: other.execute("INSERT INTO planes VALUES ('N1', 1)"))
        with pytest.raises(Transient, match="a transaction that writes the table does not end"):
            run(spark(), owner.tenant, "planes", 2)
        assert source.execute("SELECT FROM pg_replication_slots").fetchall() == []
    monkeypatch.undo()
    assert bring(owner).is_full


def test_a_position_is_before_the_first_transaction_that_a_snapshot_does_not_show() -> None:
    beyond = 2**32 + 5
    numbers = [2**32 - 2, 2**32 - 1, 3, 2]  # modulo 2^32: two are of the round before
    changes = LogChanges(
        transactions=[Transaction(n % 2**32, 16 * at, at) for at, n in enumerate(numbers, 1)]
    )
    read = SlotRead(changes, Place("s", "t", "0/FF", "p", "f", "m"), datetime.now(UTC), "0/1")

    def lsn(snapshot: str) -> str:
        return read.within(snapshot).place.lsn

    assert lsn(f"{beyond}:{beyond}:") == "0/FF"
    assert lsn(f"{2**32 + 3}:{beyond}:{2**32 + 3}") == "0/20"
    assert lsn(f"{2**32 + 2}:{beyond}:{2**32 + 2},{2**32 + 4}") == "0/30"
    assert lsn(f"{2**32 + 3}:{2**32 + 3}:") == "0/20", "an id beyond all that were seen to end"
    assert lsn(f"{2**32 - 2}:{beyond}:{2**32 - 2}") == "0/1"
    assert read.within(f"{2**32 + 3}:{2**32 + 3}:").as_of == changes.transactions[2].committed_at


def test_a_source_restored_from_a_copy_stops_the_pipe_though_its_log_has_grown(
    owner: Owner, source: Any
) -> None:
    begin(owner, source)
    with copied(owner.tenant, source) as start:
        source.execute("INSERT INTO planes VALUES ('N6', 6); DELETE FROM planes WHERE tail = 'N1'")
        bring(owner)
        with start() as other:
            other.execute("CREATE TABLE much AS SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
            other.execute("INSERT INTO planes VALUES ('N7', 7)")
            with pytest.raises(Conflict, match="restored from a copy"):
                watch_one(pipes.find(owner.tenant, "planes"))
            with pytest.raises(Conflict, match="restored from a copy"):
                run(spark(), owner.tenant, "planes", 2)
            pipes.reset(owner.tenant, "planes")
            bring(owner)
            assert same(owner, other)


def test_a_run_that_dies_leaves_the_mark_of_the_position(owner: Owner, source: Any, at: AtPoint) -> None:
    begin(owner, source)
    source.execute("DELETE FROM planes WHERE tail = 'N1'")

    def die() -> None:
        raise ConnectionError("the process ends here")

    for point in ("pipe.looked", "pipe.begun"):
        at(point, die)
        with pytest.raises(ConnectionError):
            run(spark(), owner.tenant, "planes", 2)
    bring(owner)
    assert same(owner, source)


def run_alone(tenant: Tenant) -> None:
    """A run in a process of its own."""
    run(spark(), tenant, "planes", 2)


def test_a_run_that_is_killed_with_rows_sent_is_made_good_by_the_next(owner: Owner, source: Any) -> None:
    """Of the rows of its own snapshot, and of changes: rows that are written between it and the next, too."""
    source.execute(TABLE)
    source.execute("INSERT INTO planes SELECT 'N' || n, n FROM generate_series(1, 5) n")
    pipes.create(owner.tenant, definition(PIPE))
    syncs.allow(owner.tenant, "planes", 1)
    for change in ("UPDATE planes SET seats = 0 WHERE tail = 'N1'", "DELETE FROM planes WHERE tail = 'N2'"):
        forked(run_alone, owner.tenant, PULSE_FAIL_POINT="pipe.loaded").killed()
        source.execute(change)
        settle(owner)
        bring(owner)
        assert same(owner, source)
        source.execute("DELETE FROM planes WHERE tail = 'N3'; INSERT INTO planes VALUES ('N3', -1)")


def test_a_deferrable_key_is_refused_and_the_table_can_be_changed(owner: Owner, source: Any) -> None:
    source.execute("CREATE TABLE planes (tail text PRIMARY KEY DEFERRABLE, seats int)")
    with pytest.raises(UserError, match="deferrable"):
        pipes.create(owner.tenant, definition(PIPE))
    source.execute("ALTER TABLE planes REPLICA IDENTITY FULL")
    pipes.create(owner.tenant, definition(PIPE))
    source.execute("ALTER TABLE planes REPLICA IDENTITY DEFAULT")
    with pytest.raises(UserError, match="deferrable"):
        run(spark(), owner.tenant, "planes", 2)
    source.execute("INSERT INTO planes VALUES ('N1', 1); UPDATE planes SET seats = 2")
    source.execute("ALTER TABLE planes REPLICA IDENTITY FULL")
    bring(owner)
    source.execute("UPDATE planes SET tail = 'N2'")
    bring(owner)
    assert same(owner, source)


LOSSES = {
    "DROP CONSTRAINT planes_pkey": "ADD PRIMARY KEY (tail)",
    "DROP CONSTRAINT planes_pkey, ADD PRIMARY KEY (tail) DEFERRABLE": "REPLICA IDENTITY FULL",
    "REPLICA IDENTITY NOTHING": "REPLICA IDENTITY DEFAULT",
}


@pytest.mark.parametrize(
    "loss", [pytest.param(loss, marks=[pytest.mark.slow] * ("," in loss)) for loss in LOSSES]
)
@pytest.mark.sample(1)
def test_a_table_that_loses_its_identity_is_not_published_any_more(
    owner: Owner, source: Any, loss: str
) -> None:
    begin(owner, source)
    source.execute(f"ALTER TABLE planes {loss}")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        source.execute("UPDATE planes SET seats = 0")
    with pytest.raises(Conflict, match="lost its replica identity"):
        watch_one(pipes.find(owner.tenant, "planes"))
    source.execute("UPDATE planes SET seats = 0")
    with pytest.raises(UserError):
        run(spark(), owner.tenant, "planes", 2)
    source.execute(f"ALTER TABLE planes {LOSSES[loss]}")
    pipes.reset(owner.tenant, "planes")
    bring(owner)
    assert same(owner, source)


@pytest.mark.parametrize("back", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_another_identity_set_later_brings_all_rows(owner: Owner, source: Any, back: bool) -> None:
    begin(owner, source)
    source.execute("ALTER TABLE planes ADD number int GENERATED ALWAYS AS IDENTITY UNIQUE")
    bring(owner)
    source.execute("ALTER TABLE planes REPLICA IDENTITY USING INDEX planes_number_key")
    source.execute("UPDATE planes SET tail = 'moved' WHERE tail = 'N1'; DELETE FROM planes WHERE tail = 'N2'")
    assert bring(owner).is_full
    assert same(owner, source)
    if back:
        source.execute("UPDATE planes SET tail = 'again' WHERE tail = 'moved'")
        source.execute("ALTER TABLE planes REPLICA IDENTITY DEFAULT")
        source.execute("UPDATE planes SET seats = 0 WHERE tail = 'N3'")
        bring(owner)
        assert same(owner, source)
        assert not bring(owner).is_full


@pytest.mark.parametrize(
    "column", ["int GENERATED ALWAYS AS (seats * 2) STORED", "int GENERATED ALWAYS AS (seats * 2)"]
)
@pytest.mark.sample(1)
def test_columns_that_are_computed_do_not_keep_the_application_from_changing_rows(
    owner: Owner, source: Any, column: str
) -> None:
    """With the identity FULL Postgres may refuse to update a published table with such a column."""
    source.execute(f"CREATE TABLE planes (tail text PRIMARY KEY, seats int, twice {column})")
    source.execute("ALTER TABLE planes REPLICA IDENTITY FULL; INSERT INTO planes VALUES ('N1', 1)")
    pipes.create(owner.tenant, definition(PIPE))
    if "STORED" in column:
        bring(owner)
        source.execute("UPDATE planes SET seats = 2")
        assert not bring(owner).is_full
        assert same(owner, source)
    else:
        with pytest.raises(UserError, match="could no longer be changed"):
            bring(owner)
        source.execute("UPDATE planes SET seats = 2")
        assert source.execute("SELECT * FROM pg_replication_slots").fetchall() == []


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
        "ALTER TYPE pair RENAME ATTRIBUTE mood TO feeling; ALTER TYPE pair ADD ATTRIBUTE more int",
    ],
)
@pytest.mark.sample(1)
def test_a_type_change_without_a_log_message_makes_the_next_run_read_all(
    owner: Owner, source: Any, change: str
) -> None:
    source.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN feeling AS mood")
    source.execute("CREATE TYPE pair AS (mood feeling, more_or_less int)")
    source.execute("CREATE TABLE planes (tail text PRIMARY KEY, seats int, feelings feeling[], pair pair)")
    source.execute("INSERT INTO planes VALUES ('N1', 1, '{ok}', '(ok,1)')")
    pipes.create(owner.tenant, definition(PIPE))
    bring(owner)
    source.execute(change)
    assert bring(owner).is_full
    (row,) = dict(as_model(pages(owner, slug="planes"))).values()
    expected = source.execute("SELECT feelings::text[], pair::text FROM planes").fetchone()
    assert (row["feelings"], row["pair"]) == expected
    assert not bring(owner).is_full


def test_an_unlogged_table_is_refused(owner: Owner, source: Any) -> None:
    source.execute("CREATE UNLOGGED TABLE planes (tail text PRIMARY KEY, seats int)")
    with pytest.raises(UserError, match="unlogged"):
        pipes.create(owner.tenant, definition(PIPE))
