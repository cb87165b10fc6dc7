"""Sinks that are tables of Postgres: they are the latest state of the dataset, whatever dies on the way."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
import yaml
from hypothesis import HealthCheck, given, settings, strategies as st
from support.entities import as_model, declare, entity, make_entities, pages
from support.faults import often
from support.forked import forked
from support.here import ingest_here as ingest
from support.ingest import Owner, make_owner
from support.pipes import exposed

from chaos.sources import SOURCE, database
from chaos.surroundings import superuser
from pulse_pipelines import pipes, registry
from pulse_pipelines.definitions import defs
from pulse_pipelines.defs.pipes.sensor import pipes_due
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.json_values import exact
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure.run import erase
from pulse_pipelines.monitoring.issues import Kind, find_issues
from pulse_pipelines.pipes.run import run
from pulse_pipelines.pipes.sinks import reading
from pulse_pipelines.pipes.sinks.run import deliver
from pulse_pipelines.pipes.sinks.texts import key_text, text
from pulse_pipelines.pipes.watch import watch_one
from pulse_resources.errors import Conflict, NotFound, PulseError, Terminal, Transient, UserError
from pulse_resources.settings import Settings

TABLE = (
    "CREATE TABLE copied (id text PRIMARY KEY, name text, people bigint, area float8, tags text[], note text)"
)
PIPE: dict[str, Any] = {"pipe": "out", "from": "countries", "to": SOURCE, "table": "public.copied"}
POINTS = ("sink.held", "sink.written", "sink.before_commit", "sink.after_commit")
SWEEPS = ("sink.before_swept", "sink.after_swept")


@pytest.fixture
def owner(stack: Settings) -> Owner:
    owner = make_owner()
    make_entities(owner)
    return owner


@pytest.fixture
def sink(owner: Owner) -> "Iterator[psycopg.Connection[Any]]":
    with database(owner.tenant) as connection:
        connection.execute(TABLE)
        yield connection


def push(owner: Owner, *entities: tuple[str, dict[str, Any]]) -> None:
    owner.send(*(entity(key, **properties) for key, properties in entities))
    ingest(owner)


def rows(sink: Any, columns: str = "name, people") -> dict[str, tuple[Any, ...]]:
    copied = sink.execute(f"SELECT id, {columns} FROM copied").fetchall()
    return {key: tuple(values) for key, *values in copied}


def position(sink: Any) -> int:
    ((updated,),) = sink.execute("SELECT updated FROM pulse_positions").fetchall()
    return int(updated)


def test_new_changed_and_deleted_entities_reach_the_table(owner: Owner, sink: Any) -> None:
    pipe = pipes.create(owner.tenant, definition(PIPE))
    assert (pipe.position, pipe.behind, pipe.document["direction"]) == (None, 0, "out")
    push(
        owner,
        ("DE", {"name": 'G"\\\n\t', "people": 83, "area": 1.5, "tags": ["a", 'b,"c\\'], "z": 1}),
        ("FR", {}),
    )
    push(owner, ("NL", {"name": "x"}), ("NL", {"_deleted": True}))
    assert pipes.find(owner.tenant, "out").behind == exposed(owner)["pulse_pipe_behind", ""] == 4
    run = deliver(owner.tenant, "out")
    assert (run.is_full, run.counts.versions, run.counts.upserted, run.counts.deleted) == (True, 4, 2, 0)
    assert rows(sink, "name, people, area, tags, note") == {
        "DE": ('G"\\\n\t', 83, 1.5, ["a", 'b,"c\\'], None),
        "FR": (None, None, None, None, None),
    }
    sink.execute("UPDATE copied SET note = 'mine'")
    push(owner, ("DE", {"name": "Germany"}), ("FR", {"_deleted": True}), ("IT", {"people": 59}))
    run = deliver(owner.tenant, "out")
    assert (run.is_full, run.counts.upserted, run.counts.deleted) == (False, 2, 1)
    assert rows(sink, "name, people, note") == {"DE": ("Germany", None, "mine"), "IT": (None, 59, None)}
    pipe = pipes.find(owner.tenant, "out")
    generation = registry.current_log(owner.tenant, "countries").generation
    assert (pipe.behind, pipe.position, pipe.error) == (0, f"{generation}-{position(sink)}", None)
    assert exposed(owner)["pulse_pipe_behind", ""] == 0
    assert pipe.lag_seconds is not None
    assert [
        (delivery.state, delivery.is_full) for delivery in pipes.list_deliveries(owner.tenant, "out", 9)
    ] == [
        ("done", False),
        ("done", True),
    ]
    counts = pipes.last_day(owner.tenant)[owner.tenant.tenant_id, "out"]
    assert (counts.changed, counts.deleted, counts.refused) == (4, 1, 0)


def in_small_batches(tenant: Tenant, name: str) -> None:
    """A run in batches of two versions, in a process of its own."""
    reading.FIRST, reading.BYTES = 2, 1
    deliver(tenant, name)


@pytest.mark.parametrize("point", often(POINTS, "sink.written", "sink.after_commit"))
@pytest.mark.sample(1)
def test_a_run_continues_after_a_killed_run(owner: Owner, sink: Any, point: str) -> None:
    """The kill is at the second of several batches, with the only version of C2."""
    pipes.create(owner.tenant, definition(PIPE))
    push(
        owner,
        *((f"C{n}", {"people": n}) for n in range(3)),
        ("C0", {"_deleted": True}),
        ("C1", {"people": 9}),
    )
    suffix = "" if point == "sink.held" else "@2"
    forked(in_small_batches, owner.tenant, "out", PULSE_FAIL_POINT=point + suffix).killed()
    assert [delivery.state for delivery in pipes.list_deliveries(owner.tenant, "out", 9)] == ["running"]
    deliver(owner.tenant, "out")
    assert rows(sink, "people") == {"C1": (9,), "C2": (2,)}
    assert position(sink) == 5
    assert [delivery.state for delivery in pipes.list_deliveries(owner.tenant, "out", 9)] == [
        "done",
        "failed",
    ]


@pytest.mark.parametrize("point", often([*POINTS[1:], *SWEEPS], "sink.before_commit", "sink.after_swept"))
@pytest.mark.sample(1)
def test_a_reset_pipe_replaces_the_table_wherever_its_run_is_killed(
    owner: Owner, sink: Any, point: str
) -> None:
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, *((f"C{n}", {"people": n}) for n in range(4)), ("C0", {"_deleted": True}))
    deliver(owner.tenant, "out")
    sink.execute("INSERT INTO copied VALUES ('C0'), ('stray'); UPDATE copied SET people = -1 WHERE id = 'C2'")
    pipes.reset(owner.tenant, "out")
    assert pipes.find(owner.tenant, "out").position is None
    forked(in_small_batches, owner.tenant, "out", PULSE_FAIL_POINT=point).killed()
    deliver(owner.tenant, "out")
    assert rows(sink, "people") == {"C1": (1,), "C2": (2,), "C3": (3,)}
    assert sink.execute("SELECT count(*) FROM pulse_brought").fetchall() == [(0,)]
    assert not deliver(owner.tenant, "out").is_full


@pytest.mark.slow
def test_an_erasure_or_an_altered_table_makes_the_next_delivery_full(owner: Owner, sink: Any) -> None:
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, ("A", {"people": 1}), ("B", {"people": 2}))
    deliver(owner.tenant, "out")
    erase(owner.tenant, "countries", "event_id=A")
    assert deliver(owner.tenant, "out").is_full
    assert rows(sink, "people") == {"B": (2,)}
    sink.execute("TRUNCATE copied")
    assert deliver(owner.tenant, "out").is_full
    sink.execute("ALTER TABLE copied DROP area, ADD area numeric")
    push(owner, ("C", {"area": 0.5}))
    assert deliver(owner.tenant, "out").is_full
    assert set(rows(sink, "area")) == {"B", "C"}
    sink.execute("DROP TABLE copied")
    with pytest.raises(NotFound, match="no such table"):
        deliver(owner.tenant, "out")
    assert "no such table" in str(pipes.find(owner.tenant, "out").error)


def test_an_older_run_writes_nothing_after_a_newer_one(owner: Owner, sink: Any) -> None:
    """Stopped with its batch written: the next is refused while its session lives; it leaves nothing."""
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, ("A", {"people": 1}))
    old = forked(deliver, owner.tenant, "out", PULSE_FAIL_POINT="stop:sink.before_commit")
    old.stopped()
    with pytest.raises(Conflict, match="another run"):
        deliver(owner.tenant, "out")
    with superuser() as connection:  # Pulse loses the run, the sink does not
        name = f"pulse-pipe/{owner.tenant.tenant_id}/out"
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
        assert connection.execute(ended, [name[:63]]).fetchall() == [(True,)]
    push(owner, ("A", {"people": 2}))
    with pytest.raises(Transient, match="still in flight"):
        deliver(owner.tenant, "out")
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> %s"
    sink.execute(ended, [sink.info.dbname, sink.info.backend_pid])
    deliver(owner.tenant, "out")
    assert old.goes_on() != 0
    assert rows(sink, "people") == {"A": (2,)}


def test_a_table_is_created_and_takes_the_values_as_they_are(owner: Owner, sink: Any) -> None:
    members = PIPE | {"table": "made", "create": True}
    pipes.create(owner.tenant, definition(members))
    push(owner, ("A", {"name": "x", "people": 1, "area": 0.1, "tags": ["a"]}))
    deliver(owner.tenant, "out")
    assert sink.execute("SELECT * FROM made").fetchall() == [("A", "x", 1, 0.1, ["a"])]


@pytest.mark.slow
def test_a_pipe_copies_a_subset_as_it_is(owner: Owner, sink: Any) -> None:
    members = PIPE | {"subset": "name=blue"}
    with pytest.raises(Conflict, match="no index"):
        pipes.create(owner.tenant, definition(members))
    declare(owner, "name")
    pipes.create(owner.tenant, definition(members))
    push(owner, ("A", {"name": "blue"}), ("B", {"name": "red"}), ("C", {"name": "blue"}))
    deliver(owner.tenant, "out")
    assert set(rows(sink)) == {"A", "C"}
    push(owner, ("A", {"name": "red"}), ("B", {"name": "blue"}))
    deliver(owner.tenant, "out")
    assert set(rows(sink)) == {"B", "C"}
    assert pipes.find(owner.tenant, "out").behind == 0


DAGSTER = Path(__file__).parents[2] / "dagster_home" / "dagster.yaml"
TRIGGER = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.name = 'stopped' THEN RAISE EXCEPTION 'the name is %', NEW.name; END IF; RETURN NEW; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON copied FOR EACH ROW EXECUTE FUNCTION refuse()
"""


def test_an_entity_that_the_table_does_not_take_is_set_aside_and_named(owner: Owner, sink: Any) -> None:
    sink.execute("ALTER TABLE copied ALTER people TYPE smallint")
    sink.execute("ALTER TABLE copied ADD CHECK (name <> 'secret'), ADD code int UNIQUE")
    pipes.create(owner.tenant, definition(PIPE))
    good = [(f"C{n}", {"people": n}) for n in range(5)]
    push(owner, *good, ("bad", {"people": 1_000_000}), ("fine", {}))
    assert deliver(owner.tenant, "out").counts.refused == 1
    assert set(rows(sink)) == {*(key for key, _ in good), "fine"}
    assert position(sink) == 7
    error = str(pipes.find(owner.tenant, "out").error)
    assert "1 entity is set aside" in error
    assert "bad: value ... is out of range for type smallint (column people)" in error
    (delivery,) = pipes.list_deliveries(owner.tenant, "out", 9)
    assert (delivery.state, delivery.refused, delivery.reason) == ("done", 1, error)
    assert deliver(owner.tenant, "out").counts.refused == 0, "it was counted before"
    push(owner, ("bad", {"people": 1}), ("evil", {"name": "secret"}))
    deliver(owner.tenant, "out")
    error = str(pipes.find(owner.tenant, "out").error)
    assert "evil: new row for relation ... violates check constraint" in error
    assert "secret" not in error
    sink.execute(TRIGGER)
    push(owner, ("evil", {"name": "stopped"}))
    deliver(owner.tenant, "out")
    error = str(pipes.find(owner.tenant, "out").error)
    assert error.endswith("evil: a trigger refuses it")
    sink.execute("DROP TRIGGER refuse ON copied")
    deliver(owner.tenant, "out")
    assert pipes.find(owner.tenant, "out").error is None
    assert len(rows(sink)) == 8
    assert rows(sink)["evil"] == ("stopped", None)


@pytest.mark.slow
def test_a_value_that_no_column_can_hold_sets_its_entity_aside(owner: Owner, sink: Any) -> None:
    sink.execute("ALTER TABLE copied ALTER name TYPE bytea USING NULL")
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, ("A", {"name": "*"}), ("B", {"name": "AP8Q"}))
    deliver(owner.tenant, "out")
    assert rows(sink, "name") == {"B": (b"\0\xff\x10",)}
    assert "A: bytes are written as base64 (column name)" in str(pipes.find(owner.tenant, "out").error)
    push(owner, ("A", {"_deleted": True}))
    assert deliver(owner.tenant, "out").counts.refused == 0
    assert (set(rows(sink)), pipes.find(owner.tenant, "out").error) == ({"B"}, None)


UNIQUE = {
    "a value": "ADD UNIQUE (people)",
    "one that is never null": "ALTER people SET NOT NULL, ADD UNIQUE (people)",
    "one that can be deferred": "ADD UNIQUE (people) DEFERRABLE",
    "two columns": "ADD UNIQUE NULLS NOT DISTINCT (people, area)",
    "a range": "ADD EXCLUDE USING gist (int8range(people, people, '[]') WITH &&)",
}


@pytest.mark.parametrize("constraint", UNIQUE.values(), ids=UNIQUE)
@pytest.mark.sample(1)
def test_entities_that_take_each_other_s_values_are_written(owner: Owner, sink: Any, constraint: str) -> None:
    sink.execute(f"ALTER TABLE copied {constraint}, ADD number int GENERATED ALWAYS AS IDENTITY")
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, *((key, {"people": number}) for number, key in enumerate("ABCDE")))
    deliver(owner.tenant, "out")
    sink.execute("UPDATE copied SET note = id")
    numbers = rows(sink, "number")
    changed = {"F": 0, "B": 2, "C": 1, "D": 7, "E": 3, "G": 4}  # A's, a swap, a chain
    push(owner, *((key, {"people": people}) for key, people in changed.items()), ("A", {"_deleted": True}))
    deliver(owner.tenant, "out")
    assert pipes.find(owner.tenant, "out").error is None
    assert rows(sink, "people") == {key: (people,) for key, people in changed.items()}
    assert rows(sink, "note") == {key: (key if key in "BCDE" else None,) for key in changed}
    assert rows(sink, "number").items() >= {(key, numbers[key]) for key in "BCDE"}


def test_rows_that_conflict_across_batches_are_written_in_the_end(
    owner: Owner, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.execute("ALTER TABLE copied ADD UNIQUE (people)")
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, ("A", {"people": 1}), ("B", {"people": 2}))
    deliver(owner.tenant, "out")
    push(owner, ("C", {"people": 1}), *((f"N{number}", {}) for number in range(4)), ("A", {"_deleted": True}))
    with monkeypatch.context() as patched:
        patched.setattr(reading, "FIRST", 2)
        patched.setattr(reading, "BYTES", 1)
        deliver(owner.tenant, "out")
    assert pipes.find(owner.tenant, "out").error is None
    assert rows(sink, "people")["C"] == (1,)
    assert pipes.list_deliveries(owner.tenant, "out", 9)[0].refused == 0
    sink.execute("ALTER TABLE copied ADD CHECK (people < 10)")
    push(owner, ("B", {"people": 1}), ("C", {"people": 11}), ("D", {"people": 5}))
    deliver(owner.tenant, "out")
    copied = rows(sink, "people")
    assert (copied["B"], copied["C"], copied["D"]) == ((2,), (1,), (5,)), "as they were"
    assert "2 entities are set aside" in str(pipes.find(owner.tenant, "out").error)
    push(owner, ("C", {"people": 9}))
    deliver(owner.tenant, "out")
    assert rows(sink, "people").items() >= {("B", (1,)), ("C", (9,))}
    assert pipes.find(owner.tenant, "out").error is None


def test_an_id_that_its_column_writes_otherwise_and_a_deletion_that_is_refused(
    owner: Owner, sink: Any
) -> None:
    """In whichever batch: it would be the row of another entity, and its deletion would be that one's."""
    sink.execute(
        "ALTER TABLE copied ALTER id TYPE int USING id::int; CREATE TABLE other (id int REFERENCES copied)"
    )
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, ("1", {"people": 1}), ("01", {"people": 2}), ("2", {"people": 3}), ("3", {}), ("x", {}))
    deliver(owner.tenant, "out")
    push(owner, ("02", {"people": 4}))
    deliver(owner.tenant, "out")
    assert rows(sink, "people") == {1: (1,), 2: (3,), 3: (None,)}
    error = str(pipes.find(owner.tenant, "out").error)
    assert "01: the column writes this id otherwise" in error
    assert "02: the column writes this id otherwise" in error
    sink.execute("INSERT INTO other VALUES (2)")
    push(owner, *((key, {"_deleted": True}) for key in ("01", "02", "2", "3", "x")))
    deliver(owner.tenant, "out")
    assert rows(sink, "people") == {1: (1,), 2: (3,)}
    assert "2: update or delete on table" in str(pipes.find(owner.tenant, "out").error)
    sink.execute("DELETE FROM other")
    deliver(owner.tenant, "out")
    assert (rows(sink, "people"), pipes.find(owner.tenant, "out").error) == ({1: (1,)}, None)


def test_two_entities_of_one_key_are_refused(owner: Owner, sink: Any) -> None:
    sink.execute("ALTER TABLE copied ALTER id TYPE numeric USING id::numeric")
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, ("1", {"people": 1}), ("1.0", {"people": 2}), ("2", {"people": 3}))
    deliver(owner.tenant, "out")
    assert rows(sink, "people") == {2: (3,)}
    assert "another entity has the same key" in str(pipes.find(owner.tenant, "out").error)


@pytest.mark.parametrize("columns", ["people", "none"])
def test_a_key_that_another_entity_has_waits_until_it_is_free(owner: Owner, sink: Any, columns: str) -> None:
    """Neither a later version nor a deletion of one entity touches the row of the other."""
    sink.execute("ALTER TABLE copied ALTER id TYPE numeric USING id::numeric")
    if columns == "none":
        sink.execute("DROP TABLE copied; CREATE TABLE copied (id numeric PRIMARY KEY)")
    pipes.create(owner.tenant, definition(PIPE))

    def ids(*sent: tuple[str, dict[str, Any]]) -> list[str]:
        push(owner, *sent)
        deliver(owner.tenant, "out")
        return [text for (text,) in sink.execute("SELECT id::text FROM copied ORDER BY 1").fetchall()]

    assert ids(("1", {"people": 1})) == ["1"]
    assert ids(("1.0", {"people": 2}), ("2", {"people": 3})) == ["1", "2"]
    assert "1.0: another entity has the same key" in str(pipes.find(owner.tenant, "out").error)
    if columns == "people":
        assert rows(sink, "people") == {1: (1,), 2: (3,)}
    assert ids(("1.0", {"_deleted": True})) == ["1", "2"]
    assert pipes.find(owner.tenant, "out").error is None
    assert ids(("1.0", {"people": 4})) == ["1", "2"]
    assert ids(("1", {"_deleted": True})) == ["1.0", "2"]
    assert pipes.find(owner.tenant, "out").error is None
    pipes.reset(owner.tenant, "out")
    assert ids(("2", {"people": 5})) == ["1.0", "2"]
    if columns == "people":
        assert rows(sink, "people") == {1: (4,), 2: (5,)}


@pytest.mark.parametrize(
    ("key", "kind"), [("01", "int4"), ("+1", "int8"), (" 1", "int2"), ("-0", "int8"), ("a ", "bpchar")]
)
def test_an_id_that_is_another_text_in_its_column_is_an_error(key: str, kind: str) -> None:
    with pytest.raises(ValueError, match="writes this id otherwise"):
        key_text(key, kind)


@pytest.mark.parametrize(
    ("key", "kind"),
    [("1", "int4"), ("-10", "int8"), ("0", "int8"), ("01", "text"), ("a", "bpchar"), ("A", "uuid")],
)
def test_an_id_is_written_as_it_is(key: str, kind: str) -> None:
    assert key_text(key, kind) == key


LONG = "a" * 64


def test_names_that_postgres_has_no_column_for_are_refused(owner: Owner, sink: Any) -> None:
    for name in (LONG, "ctid", "XMIN"):
        slug = f"of_{name[:5].lower()}"
        schema = json.dumps({"type": "object", "properties": {name: {"type": "string"}}})
        uri = registry.publish_schema(owner.tenant, slug, schema).schema_uri
        registry.create_dataset(owner.tenant, slug, uri, kind=DatasetKind.ENTITIES)
        members = PIPE | {"from": slug, "table": "made", "create": True}
        with pytest.raises(UserError, match=f"no table of Postgres has a column {name}"):
            pipes.create(owner.tenant, definition(members))
    members = PIPE | {"from": "of_aaaaa"}
    pipes.create(owner.tenant, definition(members))
    pipes.delete(owner.tenant, "out")
    sink.execute(f"ALTER TABLE copied ADD {LONG} text")
    with pytest.raises(UserError, match="Postgres has cut the name"):
        pipes.create(owner.tenant, definition(members))


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (None, "jsonb", None),
        ("text", "jsonb", '"text"'),
        ({"\\u0000": ["\\\\u0000"]}, "jsonb", '{"\\\\u0000":["\\\\\\\\u0000"]}'),
        ({"a": [1]}, "text", '{"a":[1]}'),
        ([1, None, "NULL", [True]], "array", '{"1",NULL,"NULL",{"true"}}'),
        (1e300, "float8", "1e+300"),
        (True, "text", "true"),
        ("AP8Q", "bytea", "\\x00ff10"),
        ("AP8Q", "text", "AP8Q"),
        (3.0, "int4", "3"),
        (3.5, "int4", "3.5"),
        (exact("9007199254740993.0"), "int8", "9007199254740993"),
        ([3.0, None], "array int8", '{"3",NULL}'),
        ("now", "text", "now"),
        (["now"], "array text", '{"now"}'),
        ("2026-11-19T10:00:00.5+00:00", "timestamp", "2026-11-19T10:00:00.5+00:00"),
        ("0044-03-15 12:00:00 BC", "timestamp", "0044-03-15 12:00:00 BC"),
        ("2026-11-19T10:00:00+02:00", "timestamptz", "2026-11-19T10:00:00+02:00"),
        ("2026-11-19T00:00:00Z", "date", "2026-11-19T00:00:00Z"),
        ("0044-03-15 BC", "date", "0044-03-15 BC"),
        ("infinity", "date", "infinity"),
        ("24:00:00", "time", "24:00:00"),
        ("10:00 PM", "time", "10:00 PM"),
        ("\\377", "char", "\\377"),
        ("\u00e9" * 31, "name", "\u00e9" * 31),
        (["AP8Q", "\\x00ff"], "array bytea", '{"\\\\x00ff10","\\\\x00ff"}'),
        (["(1,1),(0,0)", None], "array box", '{"(1,1),(0,0)";NULL}'),
        (7, "char", "7"),
        ("20261119T0000Z", "date", "20261119T0000Z"),
        ("20261119T220000Z", "timestamp", "20261119T220000Z"),
        ("19 Nov 2026 10:00", "timestamp", "19 Nov 2026 10:00"),
        ("20261119T220000+02", "timestamptz", "20261119T220000+02"),
        ("[2026-01-01,2026-02-01)", "daterange", "[2026-01-01,2026-02-01)"),
        ('["2026-01-01 10:00:00",infinity]', "tsrange", '["2026-01-01 10:00:00",infinity]'),
        ("{[2026-01-01T10:00Z,)}", "tsmultirange", "{[2026-01-01T10:00Z,)}"),
        ("(,)", "daterange", "(,)"),
        ("empty", "tsrange", "empty"),
        ("P1Y2M3DT4H", "interval", "P1Y2M3DT4H"),
        ("P1Y2M0D", "interval year to month", "P1Y2M0D"),
        ("-P1Y2M3D", "interval day", "-P1Y2M3D"),
        ("PT1H30M1.5S", "interval day to second(3)", "PT1H30M1.5S"),
        ("1 day 4 hours", "interval second", "1 day 4 hours"),
        ("P1.0MT1.5H", "interval", "P1.0MT1.5H"),
        ("1.5 hours 2.5 mins 1.5 secs", "interval", "1.5 hours 2.5 mins 1.5 secs"),
        ("1 day 00:00:01.5", "interval", "1 day 00:00:01.5"),
        ("2 years 1.500 milliseconds", "interval", "2 years 1.500 milliseconds"),
        ("10:60", "text", "10:60"),
        ("20160360", "date", "20160360"),
        ("235960", "text", "235960"),
        ("[2:4]={P3D,NULL,P1D}", "array interval day", "[2:4]={P3D,NULL,P1D}"),
        ('{"2026-11-19 10:00:00",infinity}', "array timestamp", '{"2026-11-19 10:00:00",infinity}'),
        ([[1], [2]], "array int4", '{{"1"},{"2"}}'),
        ("0", "oid", "0"),
        ("-$1.50", "money", "-$1.50"),
        ([1.5], "vector", "[1.5]"),
    ],
)
def test_values_are_written_by_their_column(value: Any, kind: str, expected: str | None) -> None:
    assert text(value, kind) == expected


@pytest.mark.parametrize(
    ("value", "kind"),
    [("a\0", "text"), ("a\0", "jsonb"), ({"\\\0": 1}, "jsonb"), (["\0"], "array"), ("*", "bytea")],
)
def test_a_value_that_no_column_can_hold_is_an_error(value: Any, kind: str) -> None:
    with pytest.raises(ValueError, match=r"NUL|base64"):
        text(value, kind)


@pytest.mark.parametrize(
    ("value", "kind", "why"),
    [
        ("Tomorrow", "date", "a word such as now"),
        ("now", "timestamptz", "a word such as now"),
        ("[now,)", "tstzrange", "a word such as now"),
        (["today"], "array timestamp", "a word such as now"),
        ("2026-11-19T10:00:00+02:00", "timestamp", "no zone"),
        ("2026-11-19 10:00 Europe/Berlin", "timestamp", "no zone"),
        ("10:00:00-05", "time", "no zone"),
        (["10:00:00-05"], "array time", "no zone"),
        ("2026-11-19T22:00:00Z", "date", "no time of day"),
        ("2026-11-19T00:00:00+02:00", "date", "no zone"),
        ("\u00e9" * 32, "name", "63 bytes"),
        ("ab", "char", "1 bytes"),
        (65, "char", "1 bytes"),
        (True, "char", "1 bytes"),
        ([65], "array char", "1 bytes"),
        ({"a": "x" * 60}, "name", "63 bytes"),
        (5, "bytea", "base64"),
        ({"a": 1}, "bytea", "base64"),
        (["*"], "array bytea", "base64"),
        (-1, "oid", "no number below zero"),
        (["-1"], "array xid", "no number below zero"),
        ("20261119T220000Z", "date", "no time of day"),
        ("2026-11-19T2200", "date", "no time of day"),
        ("2026-11-19+05", "date", "no zone"),
        ("20261119T220000+05", "timestamp", "no zone"),
        ("2026-11-19 EST", "timestamp", "no zone"),
        ("T220000+05", "time", "no zone"),
        ("220000+05", "time", "no zone"),
        ("2026-11-19 10:00", "time", "no date"),
        ("2026-11-19 10:00+02", "timetz", "no date"),
        ("[2026-01-01 10:00+05,2026-02-01)", "tsrange", "no zone"),
        ('["2026-01-01 10:00:00","2026-02-01 10:00:00+05")', "tsrange", "no zone"),
        ("{[2026-01-01,2026-02-01), [2026-03-01 10:00+05,)}", "tsmultirange", "no zone"),
        ("[2026-01-01T22:00:00Z,)", "daterange", "no time of day"),
        (["[2026-01-01T22:00:00Z,)"], "array daterange", "no time of day"),
        ("P1Y2M3D", "interval year to month", "only a part"),
        ("P1Y2M", "interval year", "only a part"),
        ("P3DT4H", "interval day", "only a part"),
        ("PT1H30M", "interval hour", "only a part"),
        ("PT1H30M1S", "interval day to minute", "only a part"),
        ("1 day 4 hours", "interval day", "ISO 8601"),
        (["P3DT4H"], "array interval day", "only a part"),
        (-1, "xid8", "no number below zero"),
        ([["a"], []], "array text", "no empty array within"),
        ("{2026-11-19T10:00:00+02:00}", "array timestamp", "no zone"),
        ('{"2026-11-19",NULL,"2026-11-20T22:00:00Z"}', "array date", "no time of day"),
        ('{"[2026-01-01,2026-02-01 10:00+05)"}', "array tsrange", "no zone"),
        ("[0:1]={P3D,P3DT4H}", "array interval day", "only a part"),
        ('{{"' + "x" * 64 + '"}}', "array name", "63 bytes"),
        ("{now}", "array time", "a word such as now"),
        ("010", "oid", "octal"),
        ("23:59:60", "time", "60 seconds"),
        ("T235960.5Z", "timetz", "60 seconds"),
        (["10:00:60"], "array time", "60 seconds"),
        ("2016-12-31T23:59:60Z", "timestamptz", "60 seconds"),
        ("31 Dec 2016 23:59:60", "timestamp", "60 seconds"),
        ("[2016-12-31 23:59:60,)", "tsrange", "60 seconds"),
        ("P1.5M", "interval", "whole days"),
        ("P0001-02-03.5", "interval", "whole days"),
        ("P0.5DT1H", "interval year to month", "whole days"),
        (["1.5 months"], "array interval", "whole days"),
        ("1 day -.25 weeks", "interval", "whole days"),
        ("@ 1.1 years ago", "interval", "whole days"),
        (["+010"], "array xid8", "octal"),
        ("\\001", "char", "1 bytes"),
        ("", "money", "digits"),
        ("{(),$1.00}", "array money", "digits"),
        (["2026-11-19 10:00"], "timetz", "list"),
        ([[1], [2, 3]], "date", "list"),
        ([1.5], "interval day", "list"),
        ([1, 2], "int4range", "list"),
        ({}, "money", "list"),
    ],
)
def test_a_value_that_postgres_would_change_is_an_error(value: Any, kind: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        text(value, kind)


def test_an_invalid_sink_is_refused(owner: Owner, sink: Any) -> None:
    sink.execute(
        "CREATE TABLE keyless (id text); CREATE VIEW v AS SELECT 'a' AS id; CREATE TABLE full_ (id int)"
    )
    sink.execute("CREATE TABLE pair (id text, b text, UNIQUE (id, b))")
    for members, why in (
        ({"table": "keyless"}, "no column id with a unique index"),
        ({"table": "pair"}, "no column id with a unique index"),
        ({"table": "v"}, "not a table"),
        ({"table": "nowhere"}, "no such table"),
        ({"table": 'x"; DROP TABLE copied; --', "create": True}, "a created table has a name"),
        ({"table": "nowhere.x", "create": True}, "does not create the table"),
        ({"from": "orders"}, "a dataset of events"),
        ({"from": "others"}, "no such dataset"),
        ({"to": "elsewhere"}, "has no address"),
        ({"to": "postgres://u:p@h/db"}, "a source is a name"),
        ({"subset": "name"}, "="),
        ({"create": "yes"}, "create must be"),
        ({"mode": "full"}, "a pipe has no mode"),
    ):
        with pytest.raises((UserError, NotFound), match=why):
            pipes.create(owner.tenant, definition(PIPE | members))
    assert pipes.list_pipes(owner.tenant) == []
    sink.execute("INSERT INTO copied VALUES ('theirs')")
    pipes.create(owner.tenant, definition(PIPE))
    with pytest.raises(UserError, match="this pipe has not written"):
        deliver(owner.tenant, "out")
    assert set(rows(sink)) == {"theirs"}
    sink.execute("TRUNCATE copied")
    deliver(owner.tenant, "out")
    pipes.create(owner.tenant, definition(PIPE | {"pipe": "second"}))
    with pytest.raises(UserError, match="another pipe, out, writes this table"):
        deliver(owner.tenant, "second")
    with pytest.raises(Conflict, match="copies it to a sink"):
        registry.delete_dataset(owner.tenant, "countries")
    pipes.delete(owner.tenant, "out")
    pipes.delete(owner.tenant, "second")
    registry.delete_dataset(owner.tenant, "countries")


def test_another_tenant_s_datasets_and_addresses_are_out_of_reach(owner: Owner, sink: Any) -> None:
    other = make_owner()
    for members in ({}, {"from": "orders"}):
        with pytest.raises(PulseError):
            pipes.create(other.tenant, definition(PIPE | members))
    make_entities(other)
    with pytest.raises(NotFound, match="has no address"):
        pipes.create(other.tenant, definition(PIPE))
    with database(other.tenant) as theirs:
        theirs.execute(TABLE)
        for tenant_owner in (owner, other):
            pipes.create(tenant_owner.tenant, definition(PIPE))
            push(tenant_owner, (tenant_owner.tenant.slug, {"people": 1}))
        pipes.reset(other.tenant, "out")
        for tenant_owner in (owner, other):
            deliver(tenant_owner.tenant, "out")
            deliver(tenant_owner.tenant, "out")
        assert set(rows(theirs)) == {other.tenant.slug}
        assert set(rows(sink)) == {owner.tenant.slug}
        assert len(pipes.list_deliveries(owner.tenant, "out", 9)) == 2


def test_the_sensor_launches_a_delivery_as_an_asset_of_the_tenant(owner: Owner, sink: Any) -> None:
    pipes.create(owner.tenant, definition(PIPE | {"pipe": "out_by_sensor"}))
    push(owner, ("A", {"people": 1}))
    pipes.ask(owner.tenant, "out_by_sensor")
    assert pipes.delivered(owner.tenant, "out_by_sensor", after=None) is None
    loaded, slug = defs(), owner.tenant.slug
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("tenants-of-pipes", [slug])
        result = pipes_due(dg.build_sensor_context(instance=instance, definitions=loaded))
        assert isinstance(result, dg.SensorResult)
        (launched,) = [request for request in result.run_requests or () if request.partition_key == slug]
        limits = yaml.safe_load(DAGSTER.read_text())["concurrency"]["runs"]["tag_concurrency_limits"]
        limited = {"pulse/pipes": "out", "pulse/pipes-of": f"{slug}/out"}
        assert launched.tags.items() >= limited.items()
        assert limited.keys() <= {limit["key"] for limit in limits}, "slow sinks keep nobody waiting"
        job = loaded.resolve_job_def("pipes")
        done = job.execute_in_process(
            instance=instance, partition_key=slug, asset_selection=launched.asset_selection
        )
        (materialized,) = done.asset_materializations_for_node("run_pipes")
    assert materialized.metadata["upserted"].value == 1
    assert owner.tenant not in [pipe.tenant for pipe in pipes.due()]
    ended = pipes.delivered(owner.tenant, "out_by_sensor", after=None)
    assert ended is not None
    assert (ended.upserted, rows(sink, "people")) == (1, {"A": (1,)})


def test_a_run_that_fails_is_an_issue_and_the_next_one_ends_it(owner: Owner, sink: Any) -> None:
    pipes.create(owner.tenant, definition(PIPE))
    sink.execute("DROP TABLE copied")
    with pytest.raises(NotFound):
        deliver(owner.tenant, "out")
    (issue,) = [
        issue for issue in find_issues({}, 0)[0].issues if issue.about.get("tenant") == owner.tenant.slug
    ]
    assert (issue.kind, issue.about["pipe"]) == (Kind.PIPE_FAILED, "out")
    with pytest.raises(Terminal, match="the run failed"):
        pipes.delivered(owner.tenant, "out", after=None)
    sink.execute(TABLE)
    deliver(owner.tenant, "out")
    assert pipes.find(owner.tenant, "out").error is None
    with pytest.raises(UserError, match="has a sink"):
        run(None, owner.tenant, "out", 1)
    watch_one(pipes.find(owner.tenant, "out"))


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("ABCD"), st.one_of(st.none(), st.integers(0, 2))),
        st.sampled_from(["run", "reset", *POINTS, *SWEEPS]),
    ),
    max_size=14,
)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CHANGES)
def test_the_table_is_the_latest_state_after_any_changes_resets_and_kills(
    owner: Owner, sink: Any, happened: list[tuple[str, int | None] | str]
) -> None:
    name = f"out{random.getrandbits(40)}"
    sink.execute("DROP TABLE IF EXISTS copied, pulse_positions, pulse_brought")
    sink.execute(TABLE)
    pipes.create(owner.tenant, definition(PIPE | {"pipe": name}))
    waiting: list[tuple[str, dict[str, Any]]] = [("A", {"people": random.getrandbits(40)})]
    for step in [*happened, "run"]:
        if isinstance(step, tuple):
            key, people = step
            waiting.append((key, {"_deleted": True} if people is None else {"people": people}))
            continue
        if waiting:
            push(owner, *waiting)
            waiting = []
        if step == "reset":
            pipes.reset(owner.tenant, name)
        elif step == "run":
            deliver(owner.tenant, name)
        else:
            forked(in_small_batches, owner.tenant, name, PULSE_FAIL_POINT=step).ended()
    latest = dict(as_model(pages(owner)))
    expected = {key: (content.get("people"),) for key, content in latest.items() if content is not None}
    assert rows(sink, "people") == expected
    pipes.delete(owner.tenant, name)
