"""Tables that a sink writes, and that differ from a plain one: what is not written there is named."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from support.entities import entity, make_entities
from support.here import ingest_here as ingest
from support.ingest import Owner, make_owner

from chaos.sources import SOURCE, database, stored_source
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.pipes.sinks.deliveries import Counts
from pulse_pipelines.pipes.sinks.run import deliver
from pulse_resources.errors import UserError
from pulse_resources.settings import Settings

PIPE: dict[str, Any] = {"pipe": "out", "from": "countries", "to": SOURCE, "table": "public.copied"}
COLUMNS = "(id text PRIMARY KEY, people bigint)"
PARTITIONED = f"""
CREATE TABLE copied {COLUMNS} PARTITION BY HASH (id);
CREATE TABLE part0 PARTITION OF copied FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE part1 PARTITION OF copied FOR VALUES WITH (MODULUS 2, REMAINDER 1)
"""
LEAVES_OUT = """
CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF coalesce(NEW.people, OLD.people) = 13 THEN RETURN NULL; END IF; RETURN coalesce(NEW, OLD); END $$;
CREATE TRIGGER leave_out BEFORE INSERT OR UPDATE OR DELETE ON copied
FOR EACH ROW EXECUTE FUNCTION leave_out()
"""


@pytest.fixture
def owner(stack: Settings) -> Owner:
    owner = make_owner()
    make_entities(owner)
    return owner


@pytest.fixture
def sink(owner: Owner) -> "Iterator[psycopg.Connection[Any]]":
    with database(owner.tenant) as connection:
        yield connection


def push(owner: Owner, **people: int | None) -> None:
    """Entities with as many people; None: deleted."""
    owner.send(
        *(
            entity(key, _deleted=True) if number is None else entity(key, people=number)
            for key, number in people.items()
        )
    )
    ingest(owner)


def rows(sink: Any) -> dict[str, int]:
    return dict(sink.execute("SELECT id, people FROM copied").fetchall())


def test_a_partition_that_is_emptied_or_replaced_is_written_again(owner: Owner, sink: Any) -> None:
    sink.execute(PARTITIONED)
    pipes.create(owner.tenant, definition(PIPE))
    expected = {key: number for number, key in enumerate("ABCDEF")}
    push(owner, **expected)
    assert deliver(owner.tenant, "out").is_full
    assert not deliver(owner.tenant, "out").is_full
    for change in (
        "TRUNCATE part0",
        "ALTER TABLE copied DETACH PARTITION part1;"
        " CREATE TABLE part2 PARTITION OF copied FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    ):
        sink.execute(change)
        assert rows(sink) != expected
        assert deliver(owner.tenant, "out").is_full
        assert rows(sink) == expected


def test_a_row_that_a_trigger_leaves_out_is_refused(owner: Owner, sink: Any) -> None:
    sink.execute(f"CREATE TABLE copied {COLUMNS}; {LEAVES_OUT}")
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, A=1, B=13, C=2)
    assert deliver(owner.tenant, "out").counts == Counts(3, 2, 0, 1)
    assert rows(sink) == {"A": 1, "C": 2}
    assert "B: a trigger or a rule leaves it out" in str(pipes.find(owner.tenant, "out").error)
    sink.execute("ALTER TABLE copied DISABLE TRIGGER leave_out")
    deliver(owner.tenant, "out")
    assert (rows(sink), pipes.find(owner.tenant, "out").error) == ({"A": 1, "B": 13, "C": 2}, None)
    sink.execute("ALTER TABLE copied ENABLE TRIGGER leave_out")
    push(owner, A=None, B=None, C=3, gone=None)
    assert deliver(owner.tenant, "out").counts == Counts(4, 1, 1, 1)
    assert rows(sink) == {"B": 13, "C": 3}
    assert "B: a trigger or a rule leaves it out" in str(pipes.find(owner.tenant, "out").error)


def test_a_row_that_a_trigger_keeps_although_a_full_copy_deletes_it_is_named(owner: Owner, sink: Any) -> None:
    sink.execute(f"CREATE TABLE copied {COLUMNS}")
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, A=1)
    deliver(owner.tenant, "out")
    sink.execute(f"INSERT INTO copied VALUES ('B', 13), ('C', 2); {LEAVES_OUT}")
    pipes.reset(owner.tenant, "out")
    run = deliver(owner.tenant, "out")
    assert (run.is_full, run.counts, rows(sink)) == (True, Counts(1, 1, 1, 1), {"A": 1, "B": 13})
    assert "B: a trigger or a rule leaves it out" in str(pipes.find(owner.tenant, "out").error)
    sink.execute("ALTER TABLE copied DISABLE TRIGGER leave_out")
    assert deliver(owner.tenant, "out").counts == Counts(deleted=1)
    assert (rows(sink), pipes.find(owner.tenant, "out").error) == ({"A": 1}, None)


def test_a_database_of_another_encoding_takes_all_that_it_has_letters_for(owner: Owner, sink: Any) -> None:
    name = f"{sink.info.dbname}_latin"
    sink.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    place = psycopg.conninfo.make_conninfo(sink.info.dsn, dbname=name, password=sink.info.password)
    try:
        with stored_source(owner.tenant, place), psycopg.connect(place, autocommit=True) as narrow:
            narrow.execute("CREATE TABLE copied (id text PRIMARY KEY, people bigint, name text)")
            pipes.create(owner.tenant, definition(PIPE))
            far = {"B": "\u6f22", "\u6f22\\": "x", "\U0001f600": "y"}
            owner.send(
                entity("\u00e9", name="\u00e9"), *(entity(key, name=name) for key, name in far.items())
            )
            ingest(owner)
            for refused in (3, 0):
                assert deliver(owner.tenant, "out").counts.refused == refused
                assert narrow.execute("SELECT id, name FROM copied").fetchall() == [("\u00e9", "\u00e9")]
                error = str(pipes.find(owner.tenant, "out").error)
                assert all(f"{key}: character with byte sequence" in error for key in far)
            owner.send(entity("B", name="z"), *(entity(key, _deleted=True) for key in far if key != "B"))
            ingest(owner)
            assert deliver(owner.tenant, "out").counts.upserted == 1
            assert pipes.find(owner.tenant, "out").error is None
    finally:
        sink.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_full_copy_leaves_the_row_of_a_refused_entity_as_it_was(owner: Owner, sink: Any) -> None:
    sink.execute("CREATE TABLE copied (id text PRIMARY KEY, people smallint)")
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, A=1, B=2)
    deliver(owner.tenant, "out")
    sink.execute(
        "INSERT INTO copied VALUES ('C', 3), ('D', 4); CREATE TABLE other (id text REFERENCES copied)"
    )
    sink.execute("INSERT INTO other VALUES ('C')")
    push(owner, B=1_000_000)
    for _ in range(2):
        pipes.reset(owner.tenant, "out")
        deliver(owner.tenant, "out")
        assert rows(sink) == {"A": 1, "B": 2, "C": 3}
        assert "B: value" in str(pipes.find(owner.tenant, "out").error)
    push(owner, B=None)
    deliver(owner.tenant, "out")
    assert rows(sink) == {"A": 1, "C": 3}


@pytest.mark.parametrize("check", ["", " DEFERRABLE INITIALLY DEFERRED"])
def test_a_row_that_others_refer_to_does_not_keep_a_full_copy_from_deleting_the_rest(
    owner: Owner, sink: Any, check: str
) -> None:
    sink.execute(f"CREATE TABLE copied {COLUMNS}")
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, A=1)
    deliver(owner.tenant, "out")
    sink.execute(
        f"INSERT INTO copied VALUES ('B', 13), ('C', 2), ('D', 3); {LEAVES_OUT};"
        f"CREATE TABLE other (id text REFERENCES copied{check}); INSERT INTO other VALUES ('C')"
    )
    pipes.reset(owner.tenant, "out")
    assert deliver(owner.tenant, "out").counts == Counts(1, 1, 1, 2)
    assert rows(sink) == {"A": 1, "B": 13, "C": 2}
    error = str(pipes.find(owner.tenant, "out").error)
    assert "B: a trigger or a rule leaves it out" in error
    assert "C: update or delete on table" in error
    sink.execute("DELETE FROM other")
    assert deliver(owner.tenant, "out").counts == Counts(deleted=1)
    assert rows(sink) == {"A": 1, "B": 13}


def test_a_row_with_a_key_of_bytes_that_is_kept_is_deleted_later(owner: Owner, sink: Any) -> None:
    sink.execute("CREATE TABLE copied (id bytea PRIMARY KEY, people bigint)")
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, **{"QQ==": 1})
    deliver(owner.tenant, "out")
    sink.execute(f"INSERT INTO copied VALUES ('B', 13); {LEAVES_OUT}")
    pipes.reset(owner.tenant, "out")
    assert deliver(owner.tenant, "out").counts == Counts(1, 1, 0, 1)
    for _ in range(2):
        assert deliver(owner.tenant, "out").counts == Counts()
        assert "Qg==: a trigger or a rule leaves it out" in str(pipes.find(owner.tenant, "out").error)
    sink.execute("ALTER TABLE copied DISABLE TRIGGER leave_out")
    assert deliver(owner.tenant, "out").counts == Counts(deleted=1)
    assert sink.execute("SELECT id FROM copied").fetchall() == [(b"A",)]


@pytest.mark.parametrize("changed", ["NULL", "ROW(lower(NEW.id))::copied"])
def test_a_key_that_a_trigger_leaves_out_or_changes_is_refused(owner: Owner, sink: Any, changed: str) -> None:
    sink.execute(
        "CREATE TABLE copied (id text PRIMARY KEY);"
        f"CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN {changed}; END $$;"
        "CREATE TRIGGER change BEFORE INSERT ON copied FOR EACH ROW WHEN (NEW.id = 'A')"
        " EXECUTE FUNCTION change()"
    )
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, A=1, B=2)
    assert deliver(owner.tenant, "out").counts == Counts(2, 1, 0, 1)
    assert sink.execute("SELECT id FROM copied").fetchall() == [("B",)]
    assert "A: a trigger or a rule leaves it out" in str(pipes.find(owner.tenant, "out").error)


def test_a_row_that_a_policy_forbids_is_refused(owner: Owner, sink: Any) -> None:
    sink.execute(
        f"CREATE TABLE copied {COLUMNS}; ALTER TABLE copied ENABLE ROW LEVEL SECURITY;"
        "CREATE POLICY few ON copied USING (true) WITH CHECK (people < 10);"
        "GRANT ALL ON copied TO pg_monitor; GRANT ALL ON SCHEMA public TO pg_monitor;"
        f"ALTER DATABASE {sink.info.dbname} SET role = pg_monitor"
    )
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, A=1, B=13, C=2)
    deliver(owner.tenant, "out")
    assert rows(sink) == {"A": 1, "C": 2}
    assert "B: new row violates row-level security policy" in str(pipes.find(owner.tenant, "out").error)


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        (f"CREATE TABLE copied {COLUMNS}; CREATE TABLE child () INHERITS (copied)", "has children"),
        (f"CREATE UNLOGGED TABLE copied {COLUMNS}", "unlogged"),
        (
            "CREATE TABLE copied (id text PRIMARY KEY, name text REFERENCES copied ON DELETE CASCADE)",
            "copied_name",
        ),
        (
            f"{PARTITIONED}; ALTER TABLE part0 ADD FOREIGN KEY (id) REFERENCES part1 ON DELETE CASCADE",
            "part0_id",
        ),
        (
            "CREATE TABLE other (id bigint PRIMARY KEY);"
            "CREATE TABLE copied (id text PRIMARY KEY, people bigint REFERENCES other ON UPDATE SET NULL)",
            "copied_people",
        ),
        (
            "CREATE TABLE copied (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)",
            "generates the column id",
        ),
    ],
)
def test_a_table_that_would_not_stay_as_it_is_written_is_refused(
    owner: Owner, sink: Any, setup: str, why: str
) -> None:
    sink.execute(setup)
    with pytest.raises(UserError, match=why):
        pipes.create(owner.tenant, definition(PIPE))


IN_WORDS = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    CASE NEW.people
    WHEN 1 THEN RAISE EXCEPTION 's3cret %', NEW.name USING ERRCODE = 'AB123';
    WHEN 2 THEN RAISE EXCEPTION 's3cret %', NEW.name USING ERRCODE = 'check_violation';
    WHEN 3 THEN RAISE EXCEPTION 's3cret %', NEW.name USING ERRCODE = 'insufficient_privilege';
    WHEN 4 THEN ASSERT false, NEW.name;
    WHEN 5 THEN DECLARE none int; BEGIN SELECT 1 INTO STRICT none WHERE false; END;
    ELSE NULL; END CASE; RETURN NEW; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON copied FOR EACH ROW EXECUTE FUNCTION refuse()
"""


def test_a_row_that_one_column_trigger_or_index_cannot_take_does_not_hold_the_rest(
    owner: Owner, sink: Any
) -> None:
    """Postgres without libxml has no value of `xml`; what is longer than a page is in no index."""
    sink.execute("CREATE TABLE copied (id text PRIMARY KEY, people bigint, name text, tags xml)")
    sink.execute(f"CREATE INDEX ON copied USING hash (people); CREATE INDEX ON copied (name); {IN_WORDS}")
    pipes.create(owner.tenant, definition(PIPE))
    long = "".join(map(str, range(20_000)))
    owner.send(
        *(entity(f"B{people}", people=people, name="s3cret") for people in range(1, 6)),
        entity("index", name=long),
        entity("xml", tags=["a & b"]),
        entity("A", people=9),
    )
    ingest(owner)
    assert deliver(owner.tenant, "out").counts == Counts(8, 1, 0, 7)
    assert rows(sink) == {"A": 9}
    reasons = dict(sink.execute("SELECT id, reason FROM pulse_set_aside").fetchall())
    assert [reasons[f"B{people}"] for people in range(1, 5)] == ["a trigger refuses it"] * 4
    assert reasons["B5"] == "query returned no rows"
    assert "index row" in reasons["index"]
    assert "XML" in reasons["xml"]
    assert "s3cret" not in str(pipes.find(owner.tenant, "out").error)


TYPES = """
CREATE DOMAIN moment AS timestamp; CREATE DOMAIN moments AS moment[];
CREATE TYPE shifts AS RANGE (subtype = timestamp, multirange_type_name = rosters);
CREATE TYPE hours AS RANGE (subtype = moment);
CREATE TYPE visit AS (place text, begins moment); CREATE DOMAIN stay AS visit;
CREATE TYPE trip AS (visits visit[], "the, first" visit)
"""
HELD = {
    "shifts": '["{}",)',
    "rosters": '{{["{}",)}}',
    "hours": '["{}",)',
    "moments": '{{"{}"}}',
    "stay": r'("a ""b"", \\(c","{}")',
    "visit[]": r'{{"(,\"{}\")"}}',
    "trip": r'("{{""(x,\\""{}\\"")""}}","(y,)")',
}
"""Values as Postgres writes them, with a place for the time."""


def test_user_types_of_a_sink_take_the_values_of_their_base_types(owner: Owner, sink: Any) -> None:
    sink.execute(TYPES)
    for number, kind in enumerate(HELD):
        sink.execute(f"CREATE TABLE copied{number} (id text PRIMARY KEY, name {kind})")
        pipes.create(
            owner.tenant, definition(PIPE | {"pipe": f"out{number}", "table": f"public.copied{number}"})
        )
        owner.send(
            entity(f"{kind} UTC", name=HELD[kind].format("2026-11-19 10:00:00")),
            entity(f"{kind} zone", name=HELD[kind].format("2026-11-19 10:00:00+02")),
        )
    ingest(owner)
    for number, kind in enumerate(HELD):
        deliver(owner.tenant, f"out{number}")
        query = f"SELECT id, name::text FROM copied{number} WHERE id LIKE %s"
        written = dict(sink.execute(query, [f"{kind} %"]).fetchall())
        without_zone = HELD[kind].format("2026-11-19 10:00:00")
        ((expected,),) = sink.execute(f"SELECT %s::{kind}::text", [without_zone]).fetchall()
        assert written == {f"{kind} UTC": expected}, kind


@pytest.mark.parametrize("unique", ["UNIQUE", "UNIQUE NOT NULL"])
def test_a_value_that_another_row_keeps_holds_only_the_entity_that_takes_it(
    owner: Owner, sink: Any, unique: str
) -> None:
    sink.execute(f"CREATE TABLE copied (id text PRIMARY KEY, people bigint {unique})")
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, A=1, B=2, C=3, D=4)
    deliver(owner.tenant, "out")
    push(owner, A=2, B=1, D=3, E=4)  # a swap, C's, and what D keeps
    assert deliver(owner.tenant, "out").counts == Counts(4, 2, 0, 2)
    assert rows(sink) == {"A": 2, "B": 1, "C": 3, "D": 4}
    assert str(pipes.find(owner.tenant, "out").error).startswith("2 entities are set aside")
    push(owner, C=None)
    deliver(owner.tenant, "out")
    assert rows(sink) == {"A": 2, "B": 1, "D": 3, "E": 4}
    assert pipes.find(owner.tenant, "out").error is None


def test_columns_of_any_name_are_written(owner: Owner, sink: Any) -> None:
    names = ["gr\u00f6\u00dfe", "na me", "per%cent", "{}", 'quo"te', "\u00e9" * 31]
    schema = json.dumps({"type": "object", "properties": {name: {"type": "string"} for name in names}})
    uri = registry.publish_schema(owner.tenant, "odd", schema).schema_uri
    registry.create_dataset(owner.tenant, "odd", uri, kind=DatasetKind.ENTITIES)
    columns = sql.SQL(", ").join(sql.SQL("{} text").format(sql.Identifier(name)) for name in names)
    sink.execute(sql.SQL('CREATE TABLE "100%" (id text PRIMARY KEY, {})').format(columns))
    pipes.create(owner.tenant, definition(PIPE | {"from": "odd", "table": '"100%"'}))
    owner.send(entity("A", slug="odd", **{name: name for name in names}), entity("B", slug="odd"))
    ingest(owner)
    for _ in range(2):
        deliver(owner.tenant, "out")
        pipes.reset(owner.tenant, "out")
    assert sink.execute('SELECT * FROM "100%" ORDER BY id').fetchall()[0] == ("A", *names)


def test_a_domain_without_nulls_keeps_no_row_from_being_deleted(owner: Owner, sink: Any) -> None:
    sink.execute("CREATE DOMAIN number AS bigint NOT NULL CHECK (VALUE > 0)")
    sink.execute("CREATE TABLE copied (people number, id text PRIMARY KEY)")
    pipes.create(owner.tenant, definition(PIPE))
    push(owner, A=1, B=2, C=3)
    deliver(owner.tenant, "out")
    push(owner, A=None, B=0, C=4)
    assert deliver(owner.tenant, "out").counts == Counts(3, 1, 1, 1)
    assert rows(sink) == {"B": 2, "C": 4}
    push(owner, B=None)
    assert deliver(owner.tenant, "out").counts == Counts(1, 0, 1, 0)
    assert rows(sink) == {"C": 4}
