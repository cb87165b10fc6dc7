"""Rows of a Postgres that are not like others: endless cursors, keys that equal others, rows too large."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from threading import Thread
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL
from support.entities import as_model, pages
from support.ingest import Owner
from support.pipes import bring
from support.topics import limited

from chaos.sources import SOURCE, capturing, database
from chaos.waiting import PATIENCE_S
from pulse_pipelines import pipes
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.entities import syncs
from pulse_pipelines.pipes import addresses, rows
from pulse_pipelines.pipes.postgres import load, queries, reading, sessions, tables
from pulse_resources.errors import Transient

PIPE: dict[str, Any] = {"pipe": "planes", "source": SOURCE, "table": "planes", "dataset": "planes"}
BY_CURSOR = PIPE | {"mode": "incremental", "cursor": "at"}


@pytest.fixture
def source(owner: Owner) -> "Iterator[psycopg.Connection[Any]]":
    with database(owner.tenant) as connection:
        yield connection


def latest(owner: Owner) -> dict[str, dict[str, Any]]:
    contents = dict(as_model(pages(owner, slug="planes")))
    return {key: content for key, content in contents.items() if content is not None}


def planned(pipe: "pipes.Pipe", position: str | None) -> tuple[bool, str | None, set[str]]:
    """Of a run from a position: whether it is full, the position after it, and the keys that it reads."""
    with sessions.snapshot(addresses.url(pipe.tenant, SOURCE)) as session:
        plan = reading.plan(session, replace(pipe, position=position), None, datetime.now(UTC), 2, full=False)
        keys = {key for query in plan.queries for key, _ in session.execute(query).fetchall()}
    return plan.is_full, plan.position, keys


NUMBERS = ("1.5", "2.5", ("-Infinity", "Infinity", "NaN"))
DAYS = ("2026-01-01", "2026-01-02", ("-infinity", "infinity"))


@pytest.mark.parametrize(
    ("kind", "low", "high", "endless"),
    [
        *((kind, *DAYS) for kind in ("date", "timestamp", "timestamptz(0)", "day")),
        *((kind, *NUMBERS) for kind in ("real", "float8", "numeric")),
        ("text", "a", "b", ()),
        ("int", "1", "2", ()),
    ],
)
@pytest.mark.sample(5)
def test_a_row_with_an_infinite_cursor_is_always_read(
    owner: Owner, source: Any, kind: str, low: str, high: str, endless: tuple[str, ...]
) -> None:
    source.execute("CREATE DOMAIN day AS date")
    source.execute(f"CREATE TABLE planes (tail text PRIMARY KEY, at {kind})")
    for at in (low, *endless):
        source.execute("INSERT INTO planes VALUES (%s, %s)", [at, at])
    source.execute("INSERT INTO planes VALUES ('none', NULL)")
    pipe = pipes.create(owner.tenant, definition(BY_CURSOR))
    is_full, position, keys = planned(pipe, None)
    assert (is_full, str(position)[: len(low)], keys) == (True, low, {low, *endless, "none"})
    source.execute("INSERT INTO planes VALUES (%s, %s)", [high, high])
    is_full, position, keys = planned(pipe, position)
    assert (is_full, str(position)[: len(high)], keys) == (False, high, {low, high, *endless})
    assert planned(pipe, position) == (False, position, {high, *endless})
    for before in endless:
        assert planned(pipe, before)[0], "what an earlier version took for a position hides rows"
    source.execute("DELETE FROM planes WHERE tail IN (%s, %s)", [low, high])
    assert planned(pipe, position) == (False, position, set(endless))
    assert planned(pipe, None)[1] is None


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [("text", "", "a"), ("text", "a\x1fb", "a\x1fc"), ("text", "\x1f", "\x1f\x1f"), ("pair", "(1,)", "(2,)"),
     ("pair", "(1,2)", "(,)"), ("int[]", "{1,NULL}", "{2,NULL}")],
)  # fmt: skip
@pytest.mark.sample(3)
def test_a_run_continues_after_any_cursor(owner: Owner, source: Any, kind: str, low: str, high: str) -> None:
    source.execute("CREATE TYPE pair AS (first int, second int)")
    source.execute(f"CREATE TABLE planes (tail text PRIMARY KEY, at {kind})")
    source.execute("INSERT INTO planes VALUES ('low', %s)", [low])
    pipe = pipes.create(owner.tenant, definition(BY_CURSOR))
    bring(owner)
    assert pipes.find(owner.tenant, pipe.name).position == low
    source.execute("INSERT INTO planes VALUES ('high', %s)", [high])
    assert not bring(owner).is_full
    assert pipes.find(owner.tenant, pipe.name).position == high
    sent = bring(owner)
    assert (sent.is_full, sent.rows) == (False, 1)
    assert set(latest(owner)) == {"low", "high"}


def test_a_pipe_sends_a_row_with_an_infinite_cursor_once(owner: Owner, source: Any) -> None:
    source.execute("CREATE TABLE planes (tail text PRIMARY KEY, at timestamp, seats int)")
    source.execute("INSERT INTO planes VALUES ('never', '-infinity', 1), ('always', 'infinity', 1)")
    source.execute("INSERT INTO planes VALUES ('N1', '2026-01-01', 1)")
    pipes.create(owner.tenant, definition(BY_CURSOR))
    assert bring(owner).is_full
    source.execute("INSERT INTO planes VALUES ('N2', '2026-01-02', 1)")
    source.execute("UPDATE planes SET seats = 2 WHERE tail = 'never'")
    assert not bring(owner).is_full
    assert {key: content["seats"] for key, content in latest(owner).items()} == {
        "never": 2, "always": 1, "N1": 1, "N2": 1}  # fmt: skip
    sync = syncs.list_syncs(owner.tenant, "planes")[0]
    assert (sync.created, sync.changed, sync.unchanged) == (1, 1, 2)


def changed(source: Any, kind: str, *keys: str) -> dict[str, Any]:
    """What is sent for keys of the table `planes`, as the log has them: the seats of a row, None of none."""
    parsed = definition(PIPE)
    with source.transaction():
        source.execute(sessions.SETTINGS)
        table = tables.inspect(source, parsed)
        types = [tables.type_of(source, table.parts[0], column) for column in table.key]
        assert types == [kind]
        query = queries.changed(table, types, [(key,) for key in keys], "planes", "2026-11-26T00:00:00Z")
        events = {key: json.loads(event) for key, event in source.execute(query).fetchall()}
    assert all(event["event_id"] == key for key, event in events.items())
    return {key: None if event.get("deleted") else event["data"]["seats"] for key, event in events.items()}


@pytest.mark.parametrize(
    ("declared", "kind", "before", "after"),
    [
        ("numeric", "numeric", "1.0", "1.00"),
        ("float8", "double precision", "-0", "0"),
        ("interval", "interval", "P1D", "PT24H"),
        ("scale", "numeric", "1.0", "1.00"),
    ],
)
def test_a_key_rewritten_in_another_notation_deletes_the_old_one(
    owner: Owner, source: Any, declared: str, kind: str, before: str, after: str
) -> None:
    source.execute("CREATE DOMAIN scale AS numeric")
    source.execute(f"CREATE TABLE planes (tail {declared} PRIMARY KEY, seats int)")
    source.execute("INSERT INTO planes VALUES (%s, 1)", [before])
    assert changed(source, kind, before) == {before: 1}
    source.execute("UPDATE planes SET tail = %s, seats = 2 WHERE tail = %s", [after, before])
    assert changed(source, kind, before, after) == {before: None, after: 2}


@pytest.mark.parametrize("declared", ["char(3)", "varchar(3)", "code", "numeric(4, 1)"])
def test_a_key_with_a_length_matches_its_row(owner: Owner, source: Any, declared: str) -> None:
    source.execute("CREATE DOMAIN code AS char(3) CHECK (VALUE <> 'N9')")
    source.execute(f"CREATE TABLE planes (tail {declared} PRIMARY KEY, seats int)")
    key = "12.5" if declared.startswith("numeric") else "N1"
    source.execute("INSERT INTO planes VALUES (%s, 1)", [key])
    kind = {"varchar(3)": "character varying", "numeric(4, 1)": "numeric"}.get(declared, "bpchar")
    padded = f"{key} " if kind == "bpchar" else key
    assert changed(source, kind, padded) == {key: 1}
    source.execute("DELETE FROM planes")
    assert changed(source, kind, padded) == {key: None}


@pytest.mark.slow
def test_changes_of_odd_keys_are_captured(owner: Owner) -> None:
    """As the log itself has these keys, in a database that writes intervals in another style."""
    with capturing(owner.tenant, "intervalstyle = 'sql_standard'") as source:
        source.execute(
            "CREATE TABLE planes (a numeric, b char(3), c interval, seats int, PRIMARY KEY (a, b, c))"
        )
        source.execute("INSERT INTO planes VALUES (1.0, 'x', '-1 day -2 hours', 1), (2, 'y', '1 h', 1)")
        pipes.create(owner.tenant, definition(PIPE | {"mode": "changes"}))
        syncs.allow(owner.tenant, "planes", 1)
        bring(owner)
        source.execute("UPDATE planes SET a = 1.00, seats = 2 WHERE a = 1")
        source.execute("UPDATE planes SET seats = 3 WHERE a = 2")
        assert not bring(owner).is_full
    assert {key: content["seats"] for key, content in latest(owner).items()} == {
        '["1.00", "x", "P-1DT-2H"]': 2, '["2", "y", "PT1H"]': 3}  # fmt: skip


@pytest.mark.parametrize("mode", ["full", "changes"])
@pytest.mark.sample(1)
def test_a_row_too_large_to_send_does_not_leave_its_source(owner: Owner, source: Any, mode: str) -> None:
    source.execute("CREATE TABLE planes (tail text PRIMARY KEY, note text, data bytea, said json, seats int)")
    source.execute("INSERT INTO planes VALUES ('fits', repeat('x', 3140000), NULL, NULL, 1)")
    source.execute("INSERT INTO planes VALUES ('note', repeat('x', 30000000), '', NULL, 2)")
    source.execute(
        "INSERT INTO planes VALUES ('data', repeat('x', 2000000), convert_to(repeat('x', 2000000), 'UTF8'))"
    )
    source.execute("INSERT INTO planes VALUES ('said', 'a', 'a', to_json(repeat('é', 2000000)))")
    source.execute("INSERT INTO planes VALUES ('many', repeat(E'\\x01', 1000000))")
    names = ("fits", "note", "data", "said", "many")
    with source.transaction():
        source.execute(sessions.SETTINGS)
        table = tables.inspect(source, definition(PIPE))
        at, part = "2026-11-26T00:00:00Z", table.parts[0]
        if mode == "full":
            query = queries.events(table, part, "planes", at, SQL("true"))
        else:
            query = queries.changed(table, ["text"], [*((name,) for name in names), ("gone",)], "planes", at)
        events = dict(source.execute(query).fetchall())
    fits, deletion = json.loads(events.pop("fits")), events.pop("gone", None)
    assert (len(fits["data"]["note"]), fits["data"]["seats"]) == (3_140_000, 1)
    assert deletion is None or json.loads(deletion)["deleted"]
    letters = {key: json.loads(event) for key, event in events.items()}
    assert {key: event["event_id"] for key, event in letters.items()} == {key: key for key in names[1:]}
    assert all(len(event) < 5 * rows.EXCERPT_BYTES for event in events.values())
    errors = {key: event["context"]["error"] for key, event in letters.items()}
    assert errors["note"] == "the row has 30,000,004 bytes"
    assert errors["data"] == "the row has 4,000,004 bytes"
    assert errors["said"].startswith("the row has 4,000,1")
    assert errors["many"].startswith("the row has 6,000,1")
    assert letters["many"]["context"]["table"] == '"public"."planes"'
    assert letters["many"]["data"].startswith('{"event_id" : "many"')


def test_a_row_too_large_to_send_is_a_dead_letter(owner: Owner, source: Any) -> None:
    """It holds up no other row, and its entity is not deleted."""
    source.execute("CREATE TABLE planes (tail text PRIMARY KEY, note text)")
    source.execute("INSERT INTO planes VALUES ('N1', 'a'), ('N2', 'b'), ('N3', 'c')")
    pipes.create(owner.tenant, definition(PIPE))
    bring(owner)
    source.execute("UPDATE planes SET note = repeat('x', 20000000) WHERE tail = 'N2'")
    source.execute("UPDATE planes SET note = 'd' WHERE tail = 'N3'")
    sent = bring(owner)
    assert (sent.rows, sent.bytes < 100_000) == (3, True)
    assert {key: content["note"] for key, content in latest(owner).items()} == {
        "N1": "a",
        "N2": "b",
        "N3": "d",
    }
    sync = syncs.list_syncs(owner.tenant, "planes")[0]
    assert (sync.changed, sync.unchanged, sync.refused, sync.deleted) == (1, 1, 1, 0)


def test_a_task_that_fails_in_the_midst_of_a_query_ends(owner: Owner, source: Any) -> None:
    """A query in its midst holds its connection's lock, which leaving the connection waits for."""
    source.execute("CREATE TABLE planes (tail int PRIMARY KEY, note text)")
    source.execute("INSERT INTO planes SELECT n, repeat(md5(n::text), 90) FROM generate_series(1, 40000) n")
    pipe = pipes.create(owner.tenant, definition(PIPE))
    ended: list[BaseException] = []

    def work(task: load.LoadTask) -> None:
        try:
            list(load.load(task))
        except Transient as error:
            ended.append(error)

    with limited(owner.tenant.topic, 1_000), load.opened(pipe, 1, full=False) as opened:
        (task,) = opened.tasks
        thread = Thread(target=work, args=[task], daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
    assert "did not acknowledge rows" in str(ended)


def test_a_table_has_a_query_for_each_task_unless_it_is_small(owner: Owner, source: Any) -> None:
    source.execute("CREATE TABLE planes (tail int PRIMARY KEY, note text)")
    source.execute("INSERT INTO planes SELECT n, repeat('x', 2000) FROM generate_series(1, 40000) n")
    pipe = pipes.create(owner.tenant, definition(PIPE))
    with sessions.snapshot(addresses.url(owner.tenant, SOURCE)) as session:
        for parallelism, count in ((1, 3), (4, 4), (64, 20)):
            plan = reading.plan(session, pipe, None, datetime.now(UTC), parallelism, full=True)
            assert len(plan.queries) == count
            keys = [key for query in plan.queries for key, _ in session.execute(query).fetchall()]
            assert sorted(map(int, keys)) == list(range(1, 40_001))
