"""Trino with nothing but a tenant's key reads what other engines read, and nobody else's."""

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestamptzType,
)
from support.catalog import LAKE, READ, ROWS, Guest
from support.engines import rest
from support.forged import put
from support.here import ingest_here as ingest
from support.http import Api
from support.ingest import make_owner
from support.maintenance import objects
from support.trino import Trino, TrinoError

from pulse_pipelines import registry
from pulse_pipelines.registry import keys

pytestmark = pytest.mark.slow
SYSTEM = {"information_schema", "system"}
"""Schemas that each catalog of Trino has."""
HOSTILE = {
    "iceberg.add-files-procedure.enabled": "true",
    "iceberg.expire-snapshots.min-retention": "0s",
    "iceberg.remove-orphan-files.min-retention": "0s",
}
"""What a tenant may set in a Trino of its own."""
REFUSED = r"Forbidden: |Access ?Denied"


@pytest.fixture(scope="module")
def readers(catalog: Api, guests: tuple[Guest, Guest], trino: Trino) -> tuple[Trino, Trino]:
    mine, theirs = (trino.connect(catalog, guest) for guest in guests)
    return mine, theirs


@pytest.fixture
def reader(readers: tuple[Trino, Trino]) -> Trino:
    return readers[0]


def test_rows_are_those_of_the_tenant(readers: tuple[Trino, Trino]) -> None:
    for owner_name, reader in zip(("mine", "theirs"), readers, strict=True):
        rows = reader.rows("SELECT id FROM events.orders ORDER BY id")
        assert rows == [(row.format(owner_name),) for row in ROWS]
    (count,) = readers[0].rows("SELECT count(*) FROM events.orders WHERE country = 'DE' AND id > 'mine-2'")
    assert count == (3,)


def test_trino_reads_earlier_snapshots(catalog: Api, guest: Guest, reader: Trino) -> None:
    known = rest(catalog, guest).load_table("events.orders").metadata.snapshots
    query = 'SELECT snapshot_id, committed_at FROM events."orders$snapshots" ORDER BY committed_at'
    snapshots = reader.rows(query)
    assert {number for number, _ in snapshots} == {snapshot.snapshot_id for snapshot in known}
    earlier = [(row.format("mine"),) for row in ROWS[:3]]
    for at in (
        f"VERSION AS OF {snapshots[0][0]}",
        f"TIMESTAMP AS OF TIMESTAMP '{snapshots[0][1]:%F %T.%f} UTC'",
    ):
        assert reader.rows(f"SELECT id FROM events.orders FOR {at} ORDER BY id") == earlier


def test_trino_finds_no_tables_of_other_tenants(guests: tuple[Guest, Guest], reader: Trino) -> None:
    foreign = guests[1].tenant.namespace
    for name in (
        "events.secrets",
        f'"{foreign}".orders',
        f'"{foreign}".secrets',
        f'"events.{foreign}".orders',
    ):
        with pytest.raises(TrinoError, match="does not exist") as caught:
            reader.rows(f"SELECT * FROM {name}")
        assert caught.value.name in ("TABLE_NOT_FOUND", "SCHEMA_NOT_FOUND")


def test_trino_lists_the_existing_schemas_and_tables(readers: tuple[Trino, Trino]) -> None:
    reader = readers[1]
    assert {name for (name,) in reader.rows("SHOW SCHEMAS")} == {"events", *SYSTEM}
    assert reader.rows("SHOW TABLES FROM events") == [("orders",), ("secrets",)]
    listed = "SELECT table_name FROM information_schema.{} WHERE table_schema = 'events'"
    assert sorted(reader.rows(listed.format("tables"))) == [("orders",), ("secrets",)]
    assert set(reader.rows(listed.format("columns"))) == {("orders",), ("secrets",)}


COLUMNS: dict[str, Any] = {
    "label": {"type": "string"},
    "whole": {"type": "integer"},
    "ratio": {"type": "number"},
    "yes": {"type": "boolean"},
    "seen": {"type": "string", "format": "date-time"},
    "born": {"type": "string", "format": "date"},
    "anything": {},
    "place": {
        "type": "object",
        "properties": {
            "zip": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "number"}}}},
        },
    },
    "sizes": {"type": "array", "items": {"type": ["integer", "null"]}},
}
FULL: dict[str, Any] = {
    "label": "ä\u0001 'quoted' \U0001f600",
    "whole": -(2**63),
    "ratio": 1.5e300,
    "yes": False,
    "seen": "2026-11-19T23:59:59.123456+05:30",
    "born": "1582-10-04",
    "anything": {"a": [1, None]},
    "place": {"zip": 7, "tags": [{"n": 0.5}, {}]},
    "sizes": [1, None, 2**62],
}
SPELLED = {
    StringType: "varchar",
    LongType: "bigint",
    IntegerType: "integer",
    DoubleType: "double",
    FloatType: "real",
    BooleanType: "boolean",
    DateType: "date",
    TimestamptzType: "timestamp(6) with time zone",
    BinaryType: "varbinary",
}


def spelled(kind: IcebergType) -> str:
    """A type of Iceberg as Trino writes it."""
    if isinstance(kind, ListType):
        return f"array({spelled(kind.element_type)})"
    if isinstance(kind, MapType):
        return f"map({spelled(kind.key_type)}, {spelled(kind.value_type)})"
    if isinstance(kind, StructType):
        return f"row({', '.join(f'{field.name} {spelled(field.field_type)}' for field in kind.fields)})"
    return SPELLED[type(kind)]


def test_columns_of_every_type_are_equal(catalog: Api, trino: Trino) -> None:
    owner = make_owner()
    schema = json.dumps({"type": "object", "properties": COLUMNS})
    uri = registry.publish_schema(owner.tenant, "kinds", schema).schema_uri
    registry.create_dataset(owner.tenant, "kinds", uri)
    for number, data in enumerate((FULL, {}, FULL | {"more": "x"})):
        sent = {
            "event_id": f"k-{number}",
            "dataset": "kinds",
            "timestamp": "2026-11-19T10:00:00Z",
            "data": data,
        }
        owner.send(json.dumps(sent | {"context": {"a": 1}, "trace_id": "0" * 31 + "1"}).encode())
    ingest(owner)
    guest = Guest(owner, keys.issue_key(owner.tenant, "engine", READ))
    table, reader = rest(catalog, guest).load_table("events.kinds"), trino.connect(catalog, guest)
    described = [(row["Column"], row["Type"]) for row in reader.dicts("DESCRIBE events.kinds")]
    assert described == [(field.name, spelled(field.field_type)) for field in table.schema().fields]
    rows = reader.dicts("SELECT * FROM events.kinds ORDER BY id")
    for row, expected in zip(rows, table.scan().to_arrow().sort_by("id").to_pylist(), strict=True):
        assert row == expected
    assert (rows[0]["born"], rows[0]["whole"]) == (date(1582, 10, 4), -(2**63))
    assert rows[0]["seen"] == datetime(2026, 11, 19, 18, 29, 59, 123456, UTC)
    assert reader.rows(
        "SELECT id FROM events.kinds WHERE born = DATE '1582-10-04' AND whole < 0 ORDER BY id"
    ) == [
        ("k-0",),
        ("k-2",),
    ]


CHANGES = (
    "INSERT INTO events.orders SELECT * FROM events.orders LIMIT 1",
    "DELETE FROM events.orders",
    "DELETE FROM events.orders WHERE id = 'mine-1-0'",
    "UPDATE events.orders SET country = 'FR'",
    "MERGE INTO events.orders t USING (VALUES 'mine-1-0') s(id) ON t.id = s.id WHEN MATCHED THEN DELETE",
    "TRUNCATE TABLE events.orders",
    "ALTER TABLE events.orders ADD COLUMN x bigint",
    "ALTER TABLE events.orders DROP COLUMN country",
    "ALTER TABLE events.orders SET PROPERTIES format_version = 2, partitioning = ARRAY['country']",
    "ALTER TABLE events.orders RENAME TO events.other",
    "ALTER TABLE events.orders EXECUTE optimize",
    "ALTER TABLE events.orders EXECUTE expire_snapshots(retention_threshold => '0s')",
    "ALTER TABLE events.orders EXECUTE remove_orphan_files(retention_threshold => '0s')",
    "ANALYZE events.orders",
    "COMMENT ON TABLE events.orders IS 'mine'",
    "CREATE OR REPLACE TABLE events.orders AS SELECT 1 AS id",
    "DROP TABLE events.orders",
    "DROP SCHEMA events CASCADE",
    "CREATE TABLE events.made (id bigint)",
    "CREATE TABLE events.made AS SELECT 1 AS id",
    "CREATE VIEW events.made AS SELECT 1 AS id",
    'CREATE SCHEMA "events.inner"',
)


def test_trino_cannot_change_tables_of_events(catalog: Api, guest: Guest, trino: Trino) -> None:
    """Though the key may write tables of the tenant's own, and Trino is set to spare nothing."""
    hostile = trino.connect(catalog, guest, "hostile", HOSTILE)
    before = rest(catalog, guest).load_table("events.orders")
    folder = before.location()
    put(f"{folder}/data/in-flight.parquet", b"x")
    files = objects(folder)
    for change in CHANGES:
        with pytest.raises(TrinoError, match=f"{REFUSED}|cannot have this name"):
            hostile.rows(change)
    assert rest(catalog, guest).load_table("events.orders").metadata_location == before.metadata_location
    assert objects(folder) == files
    assert hostile.rows("SHOW TABLES FROM events") == [("orders",)]


def test_trino_cannot_query_with_a_revoked_key(catalog: Api, guest: Guest, trino: Trino) -> None:
    key = keys.issue_key(guest.tenant, "short", READ)
    reader = trino.connect(catalog, Guest(guest.owner, key), "revoked")
    assert reader.rows("SELECT count(*) FROM events.orders") == [(6,)]
    keys.revoke_key(guest.tenant, key.stored.key_id)
    for query in ("SELECT count(*) FROM events.orders", "SHOW SCHEMAS", "SHOW TABLES FROM events"):
        with pytest.raises(TrinoError, match="Not authorized"):
            reader.rows(query)


def test_trino_opens_files_only_with_vended_credentials(catalog: Api, guest: Guest, trino: Trino) -> None:
    vended = "iceberg.rest-catalog.vended-credentials-enabled"
    reader = trino.connect(catalog, guest, "bare", {vended: "false"})
    with pytest.raises(TrinoError, match="Unable to load credentials"):
        reader.rows("SELECT count(*) FROM events.orders")


def test_a_read_only_key_cannot_write(catalog: Api, writer: Guest, trino: Trino) -> None:
    owner = trino.connect(catalog, Guest(writer.owner, keys.issue_key(writer.tenant, "w", LAKE)), "owner")
    owner.rows("CREATE SCHEMA shared")
    owner.rows("CREATE TABLE shared.t AS SELECT 1 AS id")
    key = keys.issue_key(writer.tenant, "reader", READ)
    reader = trino.connect(catalog, Guest(writer.owner, key), "reader", HOSTILE)
    for change in (
        "CREATE SCHEMA mine",
        "CREATE TABLE shared.mine (id bigint)",
        "CREATE VIEW shared.mine AS SELECT 1 AS id",
        "INSERT INTO shared.t VALUES 2",
        "DELETE FROM shared.t",
        "UPDATE shared.t SET id = 2",
        "ALTER TABLE shared.t RENAME TO shared.u",
        "DROP TABLE shared.t",
        "DROP SCHEMA shared CASCADE",
    ):
        with pytest.raises(TrinoError, match=f"lacks the scope lake:write|{REFUSED}"):
            reader.rows(change)
    assert reader.rows("SELECT id FROM shared.t") == [(1,)]
    owner.rows("DROP SCHEMA shared CASCADE")


def test_trino_opens_no_files_of_other_tenants(
    catalog: Api, writers: tuple[Guest, Guest], trino: Trino
) -> None:
    """Whatever location a statement names."""
    other = trino.connect(catalog, writers[1])
    other.rows("CREATE SCHEMA own")
    other.rows("CREATE TABLE own.theirs AS SELECT 7 AS id")
    theirs = rest(catalog, writers[1]).load_table("own.theirs").location()
    before = objects(theirs)
    hostile = trino.connect(catalog, writers[0], "mine", HOSTILE)
    hostile.rows(f"CREATE SCHEMA trap WITH (location = '{theirs}')")
    hostile.rows("CREATE TABLE trap.t (id integer)")
    hostile.rows(f"CREATE TABLE trap.there (id integer) WITH (location = '{theirs}')")
    for name in ("t", "there"):
        hostile.rows(f"INSERT INTO trap.{name} VALUES 1")
        assert hostile.rows(f"SELECT id FROM trap.{name}") == [(1,)]
        location = rest(catalog, writers[0]).load_table(f"trap.{name}").location()
        assert location.startswith(f"s3://pulse/iceberg/{writers[0].tenant.namespace}/_own/")
    with pytest.raises(TrinoError, match="below the folder that the catalog gave"):
        hostile.rows(
            "CREATE TABLE trap.data (id integer)"
            f" WITH (object_store_layout_enabled = true, data_location = '{theirs}')"
        )
    for folder in ("data", "metadata", ""):
        with pytest.raises(TrinoError, match="Access Denied"):
            hostile.rows(f"ALTER TABLE trap.t EXECUTE add_files('{theirs}/{folder}', 'PARQUET')")
    registering = {
        "iceberg.register-table-procedure.enabled": "true",
        "iceberg.rest-catalog.vended-credentials-enabled": "false",  # Trino has one or the other
    }
    bare = trino.connect(catalog, writers[0], "registering", registering)
    with pytest.raises(TrinoError, match="Unable to load credentials"):
        bare.rows(f"CALL system.register_table('trap', 'entered', '{theirs}')")
    assert {name for (name,) in hostile.rows("SHOW TABLES FROM trap")} == {"t", "there"}
    hostile.rows("DROP SCHEMA trap CASCADE")
    assert objects(theirs) == before
    assert other.rows("SELECT id FROM own.theirs") == [(7,)]
