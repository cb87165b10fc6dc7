"""Values of Postgres come through a pipe as documented, and by a sink back into a table as they were."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.ingest import Owner, make_owner
from support.pipes import bring

from chaos.sources import SOURCE, capturing, database
from fidelity import readings, record
from fidelity.known import SOURCE as PLACE, Cell
from fidelity.zoo import Value
from fidelity.zoo_postgres import COLUMNS, SETUP
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.entities import syncs
from pulse_pipelines.pipes.sinks.run import deliver
from pulse_resources.settings import Settings

Source = psycopg.Connection[Any]
VALUES = {
    f"{column}#{number}": Value(kind.name, value or "empty", column, value)
    for column, kind in COLUMNS.items()
    for number, value in enumerate((*kind.values, *kind.beyond))
}
"""The rows, by key: each has a value in one column."""
PIPE = {"pipe": "zoo", "source": SOURCE, "table": "zoo", "dataset": "zoo"}
BACK = {"pipe": "back", "from": "zoo", "to": SOURCE, "table": "public.copied"}


def fill(source: Source) -> None:
    """Make the table of all values, and an empty one like it."""
    columns = ", ".join(f"{column} {kind.name}" for column, kind in COLUMNS.items())
    source.execute("SET TimeZone = 'UTC'; SET IntervalStyle = 'iso_8601'; SET lc_monetary = 'C'")
    for statement in SETUP:
        source.execute(statement)
    source.execute(f"CREATE TABLE zoo (id text PRIMARY KEY, turn integer DEFAULT 1, {columns})")
    source.execute(f"CREATE TABLE copied (id text PRIMARY KEY, {columns})")
    for key, value in VALUES.items():
        insert = f"INSERT INTO zoo (id, {value.member}) VALUES (%s, %s::text::{value.kind})"
        source.execute(insert, [key, value.text])


@pytest.fixture
def owner(stack: Settings) -> Owner:
    return make_owner()


@pytest.fixture
def source(owner: Owner) -> Iterator[Source]:
    with database(owner.tenant) as connection:
        fill(connection)
        yield connection


def measured(owner: Owner, source: Source, door: str, turn: int) -> set[str]:
    """Compare what landed in a turn with what the docs say of each type; the keys of what is not the same."""
    dataset = registry.find_dataset(owner.tenant, "zoo")
    rows = [row for row in owner.rows("zoo") if row["turn"] == turn]
    received = {row["id"]: readings.data(row, dataset.columns) for row in rows}
    letters = {json.loads(bytes(letter["payload"]))["event_id"]: letter for letter in owner.dead_letters()}
    assert received.keys() | letters.keys() == VALUES.keys(), "a row is missing"
    cells, entries = {}, dict[str, Any]()
    for column, kind in COLUMNS.items():
        become = kind.becomes.replace("(v", f"({column}") if kind.becomes != "v" else column
        expected = dict(source.execute(f"SELECT id, ({become})::text FROM zoo").fetchall())
        for key in received.keys() & {key for key, value in VALUES.items() if value.member == column}:
            sent, got = {column: readings.parsed(expected[key])}, received[key]
            shown = {column: got[column]} if column in got else {}
            cells[key] = Cell(VALUES[key], PLACE, door, "duckdb", sent, shown)
    changed = record.explained(cells)
    for key, value in VALUES.items():
        entry = entries.setdefault(value.kind, {"exact": 0})
        if key in letters:
            letter = letters[key]
            words = f"{letter['reason']} at {letter['pointer']}: {letter['detail']}"
            entry.setdefault("refused", {})[value.name] = record.refusal(words)
        elif key in changed:
            entry.setdefault("changed", {}).update(changed[key])
        else:
            entry["exact"] += 1
    record.hold("postgres", door, entries)
    return set(changed)


def test_rows_of_a_table_come_as_documented_and_back_as_they_were(owner: Owner, source: Source) -> None:
    pipes.create(owner.tenant, definition(PIPE | {"mode": "incremental", "cursor": "turn"}))
    assert bring(owner, "zoo").is_full
    changed = measured(owner, source, "full", 1)
    source.execute("UPDATE zoo SET turn = 2")
    assert not bring(owner, "zoo").is_full
    assert measured(owner, source, "incremental", 2) == changed
    pipes.create(owner.tenant, definition(BACK))
    deliver(owner.tenant, "back")
    assert pipes.find(owner.tenant, "back").error is None, "a value that came was refused on its way back"
    ((copied,),) = source.execute("SELECT count(*) FROM copied").fetchall()
    differ = set()
    for column, kind in COLUMNS.items():
        text = "::jsonb::text" if kind.name == "json" else "::text"
        query = (
            f"SELECT id FROM zoo JOIN copied USING (id)"
            f" WHERE zoo.{column}{text} IS DISTINCT FROM copied.{column}{text}"
        )
        differ |= {key for (key,) in source.execute(query).fetchall()}
    assert differ <= changed, "it came exactly, and did not come back so"
    record.hold("out", "sink_postgres", {"values": copied, "differs": {}})


@pytest.mark.slow
def test_changed_rows_of_a_table_come_as_documented(owner: Owner) -> None:
    with capturing(owner.tenant) as source:
        fill(source)
        pipes.create(owner.tenant, definition(PIPE | {"mode": "changes"}))
        syncs.allow(owner.tenant, "zoo", 1)
        bring(owner, "zoo")
        source.execute("UPDATE zoo SET turn = 2")
        assert not bring(owner, "zoo").is_full
        measured(owner, source, "changes", 2)
