"""Change capture: what the log of a real Postgres says, from the first snapshot on, without a gap."""

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.entities import as_model, pages
from support.faults import AtPoint
from support.ingest import Owner
from support.lake import spark
from support.pipes import bring, settle

from chaos.sources import SOURCE, capturing, stored_source
from pulse_pipelines import pipes
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.entities import syncs
from pulse_pipelines.pipes import addresses
from pulse_pipelines.pipes.postgres import reading, slots
from pulse_pipelines.pipes.run import run
from pulse_resources.errors import Conflict

PIPE = {"pipe": "planes", "source": SOURCE, "table": "planes", "dataset": "planes", "mode": "changes"}
TABLE = "CREATE TABLE planes (fleet int, tail text, seats int, notes text, PRIMARY KEY (fleet, tail))"
SLOTS = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name LIKE 'pulse%'"


@pytest.fixture
def source(owner: Owner) -> "Iterator[psycopg.Connection[Any]]":
    with capturing(owner.tenant) as connection:
        connection.execute(TABLE)
        yield connection


def latest(owner: Owner) -> dict[str, tuple[Any, ...]]:
    contents = dict(as_model(pages(owner, slug="planes")))
    return {
        key: (content["fleet"], content["tail"], content.get("seats"), content.get("notes"))
        for key, content in contents.items()
        if content is not None
    }


def same(owner: Owner, source: Any) -> bool:
    rows = source.execute("SELECT fleet, tail, seats, notes FROM planes").fetchall()
    return sorted(latest(owner).values()) == sorted(rows)


@pytest.mark.slow
def test_a_pipe_sends_changes_from_the_snapshot_on(owner: Owner, source: Any, at: AtPoint) -> None:
    large = "".join(str(n * n) for n in range(5_000))  # it is stored out of line
    source.execute("INSERT INTO planes SELECT 1, 'N' || n, n, %s FROM generate_series(1, 20) n", [large])
    pipes.create(owner.tenant, definition(PIPE))
    at("pipe.begun", lambda: source.execute("INSERT INTO planes VALUES (2, 'while it ran', 1, 'x')"))
    assert bring(owner).is_full
    assert len(latest(owner)) == 20
    source.execute("UPDATE planes SET seats = -1 WHERE tail = 'N1'")  # the log leaves the large value out
    source.execute("DELETE FROM planes WHERE tail = 'N2'; UPDATE planes SET tail = 'moved' WHERE tail = 'N3'")
    source.execute("CREATE TABLE others (a int); INSERT INTO others VALUES (1)")
    assert not bring(owner).is_full
    assert same(owner, source)
    sync = syncs.list_syncs(owner.tenant, "planes")[0]
    assert (sync.created, sync.changed, sync.deleted) == (2, 1, 2)
    before = len(pages(owner, slug="planes"))
    bring(owner)  # nothing, and the slot is read on
    (confirmed,) = source.execute(SLOTS).fetchone()
    bring(owner)
    assert source.execute(SLOTS).fetchone() >= (confirmed,)
    source.execute("TRUNCATE planes; INSERT INTO planes VALUES (1, 'N1', 0, NULL)")
    syncs.allow(owner.tenant, "planes", 1)
    assert bring(owner).is_full
    assert same(owner, source)
    assert len(pages(owner, slug="planes")) == before + 20
    pipes.delete(owner.tenant, "planes")
    assert source.execute(SLOTS).fetchall() == []


@pytest.mark.slow
def test_a_run_that_dies_is_repeated_and_nothing_is_skipped(owner: Owner, source: Any, at: AtPoint) -> None:
    draw = random.Random(7)  # noqa: S311 - a choice that can be repeated
    pipes.create(owner.tenant, definition(PIPE))
    bring(owner)

    def die() -> None:
        raise ConnectionError("the process ends here")

    for point in ("pipe.begun", "pipe.loaded", "pipe.sent", None):
        for _ in range(30):
            values = (draw.randrange(2), f"N{draw.randrange(12)}", draw.randrange(3))
            source.execute(
                draw.choice(
                    (
                        "INSERT INTO planes VALUES (%s, %s, %s) ON CONFLICT (fleet, tail) DO NOTHING",
                        "UPDATE planes SET seats = seats + 1 WHERE fleet = %s AND tail = %s AND %s >= 0",
                        "DELETE FROM planes WHERE fleet = %s AND tail = %s AND %s >= 0",
                    )
                ),
                values,
            )
        if point is not None:
            at(point, die)
            with pytest.raises(ConnectionError):
                run(spark(), owner.tenant, "planes", 2)
        settle(owner)
        bring(owner)
        assert same(owner, source), point


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
@pytest.mark.sample(1)
def test_texts_are_those_of_the_source_in_whatever_encoding_it_has_them(
    owner: Owner, source: Any, encoding: str
) -> None:
    source.execute(f"CREATE DATABASE other ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    address = psycopg.conninfo.make_conninfo(source.info.dsn, dbname="other")
    with stored_source(owner.tenant, address), psycopg.connect(address, autocommit=True) as other:
        other.execute(TABLE)
        other.execute("SET client_encoding = 'UTF8'")
        other.execute("INSERT INTO planes VALUES (1, 'Zoë', 1, 'Müßiggang'), (2, 'Ørsted', 2, 'é')")
        pipes.create(owner.tenant, definition(PIPE))
        bring(owner)
        expected = [(1, "Zoë", 1, "Müßiggang"), (2, "Ørsted", 2, "é")]
        assert sorted(latest(owner).values()) == expected
        other.execute("UPDATE planes SET tail = 'Zoé' WHERE fleet = 1; DELETE FROM planes WHERE fleet = 2")
        bring(owner)
        assert list(latest(owner).values()) == [(1, "Zoé", 1, "Müßiggang")]
        if encoding == "SQL_ASCII":
            other.execute("INSERT INTO planes SELECT 3, convert_from('\\xfc', 'SQL_ASCII'), 3, 'no text'")
            other.execute("INSERT INTO planes VALUES (4, 'fine', 4, 'text')")
            with pytest.raises(Exception, match="invalid byte sequence"):
                bring(owner)
            other.execute("DELETE FROM planes WHERE fleet = 3")
            pipes.reset(owner.tenant, "planes")  # the log still has it
            bring(owner)
            assert sorted(key[0] for key in latest(owner).values()) == [1, 4]


@pytest.mark.slow
def test_a_slot_that_is_not_the_one_is_loud(owner: Owner, source: Any) -> None:
    source.execute("INSERT INTO planes VALUES (1, 'N1', 1, NULL)")
    pipes.create(owner.tenant, definition(PIPE))
    bring(owner)
    (name,) = source.execute("SELECT slot_name FROM pg_replication_slots").fetchone()
    source.execute("DELETE FROM planes")
    source.execute("SELECT pg_drop_replication_slot(%s)", [name])
    with pytest.raises(Conflict, match="the slot is gone"):
        run(spark(), owner.tenant, "planes", 2)
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    with pytest.raises(Conflict, match="created again, or read by another client"):
        run(spark(), owner.tenant, "planes", 2)
    assert "pulse pipe reset" in str(pipes.find(owner.tenant, "planes").error)
    pipes.reset(owner.tenant, "planes")
    syncs.allow(owner.tenant, "planes", 1)
    source.execute("INSERT INTO planes VALUES (1, 'N2', 1, NULL)")
    bring(owner)
    assert same(owner, source)
    assert syncs.list_syncs(owner.tenant, "planes")[0].state == SyncState.DONE


@pytest.mark.slow
def test_a_run_takes_hundreds_of_thousands_of_changes(owner: Owner, source: Any) -> None:
    """Each in a transaction of its own, so that the log could be left after any of them."""
    pipe, address = pipes.create(owner.tenant, definition(PIPE)), addresses.url(owner.tenant, SOURCE)
    table = reading.captured(address, pipe)
    place = slots.begin(address, owner.tenant, pipe.definition, table)
    insert = "INSERT INTO planes VALUES (n % 2, 'N' || n)"
    source.execute(f"DO $$ BEGIN FOR n IN 1..50000 LOOP {insert}; COMMIT; END LOOP; END $$")
    changes = slots.read_changes(address, owner.tenant, pipe.definition, table, place).changes
    assert (len(changes.keys), changes.whole, changes.messages > 150_000) == (50_000, False, True)
