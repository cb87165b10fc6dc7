"""Columns that are renamed, removed or added again in a source, before and after the dataset moves."""

import json
from decimal import Decimal
from typing import Any

import psycopg
from support.ingest import Owner
from support.moves import moved
from support.pipes import bring

from chaos.sources import SOURCE, database
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.entities import syncs
from pulse_pipelines.pipes.sinks.run import deliver

PIPE = {"pipe": "planes", "source": SOURCE, "table": "planes", "dataset": "planes", "mode": "incremental"}
BACK = {"pipe": "back", "from": "planes", "to": SOURCE, "table": "public.copied"}
CHANGES = """
ALTER TABLE planes RENAME price TO cost;
ALTER TABLE planes DROP old, DROP seats, ADD seats text, ADD engines bigint DEFAULT 9007199254740993;
UPDATE planes SET seats = 'many' WHERE tail = 'N1'
"""


def delivered(owner: Owner, source: "psycopg.Connection[Any]") -> list[tuple[Any, ...]]:
    deliver(owner.tenant, "back")
    return source.execute("SELECT id, seats, price, cost, engines, old FROM copied ORDER BY id").fetchall()


def test_a_renamed_column_is_a_new_column_that_a_newer_schema_can_declare(owner: Owner) -> None:
    with database(owner.tenant) as source:
        source.execute(
            "CREATE TABLE planes (tail text PRIMARY KEY, seats int, price numeric(12, 2), old text)"
        )
        source.execute("ALTER TABLE planes ADD turn int DEFAULT 1")
        source.execute("CREATE TABLE copied (LIKE planes, id text PRIMARY KEY, cost numeric, engines bigint)")
        source.execute("ALTER TABLE copied ALTER tail DROP NOT NULL")
        source.execute("INSERT INTO planes VALUES ('N1', 180, 99.50, 'x'), ('N2', 4, 0.10, 'y')")
        pipes.create(owner.tenant, definition(PIPE | {"cursor": "turn"}))
        syncs.allow(owner.tenant, "planes", 1)
        bring(owner)
        pipes.create(owner.tenant, definition(BACK))
        before = [("N1", 180, Decimal("99.50"), None, None, "x"), ("N2", 4, Decimal("0.10"), None, None, "y")]
        assert delivered(owner, source) == before
        source.execute(CHANGES)
        assert bring(owner).is_full
        *_, newest = owner.rows("planes", "id, price, old, seats, _extra")
        extra = '{"cost":"0.10","engines":9007199254740993}'
        assert newest == {"id": "N2", "price": None, "old": None, "seats": None, "_extra": extra}
        (letter,) = owner.dead_letters()
        assert (letter["reason"], letter["pointer"]) == ("schema_violation", "/data/seats")
        assert delivered(owner, source) == [before[0], ("N2", None, None, None, None, None)]
        document = json.loads(registry.find_dataset(owner.tenant, "planes").document)
        document["properties"] |= {"cost": {"type": ["string", "null"]}, "engines": {"type": "integer"}}
        moved(
            owner.tenant,
            "planes",
            registry.publish_schema(owner.tenant, "planes", json.dumps(document)).schema_uri,
        )
        now = [before[0], ("N2", None, None, Decimal("0.10"), 9007199254740993, None)]
        assert delivered(owner, source) == now, "also what earlier versions have in _extra"
        assert bring(owner, full=True).is_full
        *_, newest = owner.rows("planes", "id, cost, engines, _extra")
        assert newest == {"id": "N2", "cost": "0.10", "engines": 9007199254740993, "_extra": None}
        assert delivered(owner, source) == now
