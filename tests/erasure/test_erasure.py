"""A person is erased from every store, nobody else is, and whoever doubts it can look again."""

import gzip
import io
import json
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.typedef import Record
from support.backfill import rebuilt
from support.docs import blocks
from support.faults import AtPoint
from support.forked import forked
from support.here import ingest_here as ingest
from support.ingest import Owner, make_owner
from support.maintenance import rewritten
from support.moves import moved
from support.rest_catalog import SCHEMA
from support.topics import delete_topic
from typer.testing import CliRunner

from chaos.surroundings import pulse, superuser
from pulse_api import cli
from pulse_pipelines import registry
from pulse_pipelines.curated import table as curated_table
from pulse_pipelines.curated.rollup import Rollup
from pulse_pipelines.domain.schemas.columns import Kind
from pulse_pipelines.domain.windows import Windows
from pulse_pipelines.erasure import run as erasure
from pulse_pipelines.erasure.subject import Subject, subject
from pulse_pipelines.ingest import settle
from pulse_pipelines.lake import namespaces, table_commits
from pulse_pipelines.lake.requests import Once
from pulse_pipelines.lake.table_commits import Name
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.moves import evolve
from pulse_pipelines.query import snapshots
from pulse_pipelines.query.preview import preview
from pulse_pipelines.states import declared_states, state_build
from pulse_pipelines.tables import leases, live_table, raw_zone
from pulse_resources import iceberg, object_store, postgres
from pulse_resources.errors import NotFound, Terminal, Transient, UserError

pytestmark = pytest.mark.usefixtures("stack")

ADA = "ada-lovelace@example.org"
BOB = "bob@example.org"


def of(event_id: str, person: str, day: str = "2026-11-19", **more: Any) -> bytes:
    """A valid event of a person."""
    document = {
        "event_id": event_id,
        "dataset": "orders",
        "timestamp": f"{day}T10:00:00Z",
        "data": {"country": person} | more.pop("data", {}),
    }
    return json.dumps(document | more).encode()


def events(person: str, tag: str) -> list[bytes]:
    """Events of a person in all the ways that they can be stored."""
    escaped = of(f"{tag}-escaped", person).replace(person[0].encode(), f"\\u{ord(person[0]):04x}".encode())
    return [
        of(f"{tag}-1", person),
        of(f"{tag}-2", person, "2026-11-18"),
        of(f"{tag}-1", person, data={"count": 2}),  # a copy
        escaped,
        of(f"{tag}-bad", person, data={"count": "many"}),  # does not follow the schema
        json.dumps({"dataset": "orders", "data": {"country": person}}).encode(),  # no event at all
    ]


def run(*arguments: str) -> tuple[int, Any]:
    result = CliRunner().invoke(cli.app, ["erase", *arguments, "--json"])
    try:
        return result.exit_code, json.loads(result.stdout)
    except ValueError:
        return result.exit_code, result.output


def erase(owner: Owner, where: str) -> Any:
    code, receipt = run(owner.tenant.slug, "--dataset", "orders", "--where", where, "--yes")
    assert code == 0, receipt
    return receipt


def verify(owner: Owner, receipt: Any, where: str) -> tuple[int, Any]:
    return run(owner.tenant.slug, "--where", where, "--verify", receipt["erasure_id"])


OF_TENANTS = """
SELECT format('%I.%I', table_schema, table_name) FROM information_schema.columns
WHERE column_name = 'tenant_id' AND table_schema IN ('public', 'staging') ORDER BY 1
"""


def stored(owner: Owner, *, data: bool = True) -> dict[str, bytes]:
    """Everything that any store has of a tenant, by where it is, as it would be read."""
    contents: dict[str, bytes] = {}
    mine = [owner.tenant.tenant_id]
    for folder in (f"iceberg/{owner.tenant.namespace}", f"raw/{owner.tenant.tenant_id.hex}"):
        for entry in object_store.listed(f"s3://pulse/{folder}/"):
            content = raw_zone.content(entry.path)
            if entry.name.endswith(".gz"):
                content = gzip.decompress(content)
                content += b"".join(json.dumps(json.loads(line)).encode() for line in content.splitlines())
            elif entry.name.endswith(".parquet"):
                table = pq.read_table(pa.BufferReader(content))
                content += json.dumps(table.to_pylist(), default=str).encode()
            elif entry.name.endswith(".avro"):
                with AvroFile[Record](iceberg.file_io().new_input(entry.path)) as records:
                    content += re.sub(" at 0x[0-9a-f]+", "", repr(list(records))).encode()
            contents[entry.path] = content
    with superuser() as connection:
        for (table,) in connection.execute(OF_TENANTS).fetchall():
            rows = connection.execute(f"SELECT t::text FROM {table} t WHERE tenant_id = %s ORDER BY 1", mine)
            contents[table] = "".join(text for (text,) in rows).encode()
    return contents


def where_is(owner: Owner, value: str) -> list[str]:
    """Where the stores have a value; bounds in manifests are its first 16 characters."""
    return [place for place, content in stored(owner).items() if value[:16].encode() in content]


def balanced(owner: Owner) -> None:
    report = reconcile_tenant(owner.tenant)
    assert report.balanced, report.problems
    with superuser() as connection:
        query = "SELECT coalesce(sum(rows), 0) FROM landings WHERE tenant_id = %s"
        assert connection.execute(query, [owner.tenant.tenant_id]).fetchone() == (len(owner.rows()),)


@dataclass(frozen=True)
class Erased:
    owner: Owner
    other: Owner
    before: dict[str, bytes]
    """What the other tenant's stores had."""
    snapshots: list[int]
    receipt: Any


PEOPLE = Rollup("people", "Who was there.", ("country",), "", lambda parts: "")


def compute_people(owner: Owner) -> None:
    """Commit a rollup that names people, as the curated zone does."""
    dataset = registry.find_dataset(owner.tenant, "orders")
    people = {date(2026, 11, day): pa.table({"country": [ADA, BOB]}) for day in (17, 18, 19)}
    following = curated_table.stage(owner.tenant, dataset, PEOPLE, people)
    assert following.next
    name, old, new = following.next.table, following.next.old, following.next.new
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
        assert iceberg.swap(connection, name, old, new) if old else iceberg.begin(connection, name, new)


@pytest.fixture(scope="module")
def erased() -> Erased:
    """Ada is erased from one of two tenants that have the same events, of two batches each."""
    owner, other = make_owner(), make_owner()
    for party in (owner, other):
        declared_states.declare(party.tenant, "orders", "country", windows=Windows(session_gap_s=600))
        state_build.build(party.tenant, "orders")
    for tag in ("x", "y"):
        for party in (owner, other):
            party.send(*events(ADA, tag), *events(BOB, f"bob-{tag}"), f"no json {ADA}".encode())
        ingest(owner, other)
    with superuser() as connection:
        connection.execute(
            "INSERT INTO summaries (tenant_id, dataset_id, rollup, day, definition, landed_at, grain, rows,"
            " computed_at) SELECT tenant_id, dataset_id, 'types', '2026-11-19', '', now(), '{}', %s, now()"
            " FROM pdm_datasets WHERE tenant_id = ANY(%s)",
            [json.dumps([{"country": ADA}]), [owner.tenant.tenant_id, other.tenant.tenant_id]],
        )
    for party in (owner, other):
        for _ in range(2):
            compute_people(party)
    history = [s.snapshot_id for s in snapshots.snapshots(owner.tenant, "orders")]
    assert len(where_is(owner, ADA)) > 8, "the test would show nothing"
    before = stored(other)
    return Erased(owner, other, before, history, erase(owner, f"country={ADA}"))


def test_an_erasure_removes_one_person_and_keeps_all_others(erased: Erased) -> None:
    undecodable = ["public.dead_letters"]  # which nobody can tell whose they are: the receipt names them
    places = where_is(erased.owner, ADA)
    rollup = "orders__people"  # it has a day from which nothing was erased
    places = [place for place in places if rollup not in place and "_unresolved" not in place]
    assert [place for place in places if place not in undecodable] == []
    ids = [row["id"] for row in erased.owner.rows()]
    assert sorted(ids) == sorted(f"bob-{tag}-{name}" for tag in "xy" for name in ("1", "2", "escaped"))
    letters = erased.owner.dead_letters()
    emptied = [letter for letter in letters if letter["payload"] == b""]
    assert {letter["detail"] for letter in emptied} == {"erased"}
    assert (len(letters), len(emptied)) == (10, 4)
    assert sum(BOB.encode() in bytes(letter["payload"]) for letter in letters) == 4


def test_another_tenant_with_the_same_value_is_as_it_was(erased: Erased) -> None:
    assert stored(erased.other) == erased.before
    assert len([row for row in erased.other.rows() if row["country"] == ADA]) == 6


def test_the_receipt_lists_removed_and_remaining_rows(erased: Erased) -> None:
    receipt = erased.receipt
    assert ADA not in json.dumps(receipt)
    assert receipt["removed"] == {
        "rows": 6,
        "dead_letters": 4,
        "raw_events": 12,
        "summaries": 1,
        "states": 1,
        "snapshots": 2,
        "own_rows": 0,
    }
    assert receipt["table"]["days"] == {"2026-11-18": 2, "2026-11-19": 4}
    assert receipt["covers"]["partition 0"] == "offsets below 26"
    assert receipt["dead_letters"]["unreadable_ids"] == ["0-12", "0-25"]
    rewritten = receipt["raw_zone"]["objects"]
    assert sum(entry["events"] for entry in rewritten) == 12
    with superuser() as connection:
        query = "SELECT path FROM raw_objects WHERE tenant_id = %s AND removed_at IS NULL"
        live = {path for (path,) in connection.execute(query, [erased.owner.tenant.tenant_id])}
    assert {entry["instead"] for entry in rewritten if entry["instead"]} <= live
    assert not {entry["removed"] for entry in rewritten} & live
    for entry in rewritten:
        with pytest.raises(FileNotFoundError):
            raw_zone.content(entry["removed"])
    *topics, claims = receipt["remains"]
    assert [place["where"] for place in topics] == [
        f"Kafka topic {erased.owner.tenant.topic}{suffix}" for suffix in ("", ".dlq")
    ]
    assert all(place["until"] > receipt["finished_at"] for place in topics)
    assert claims["where"].startswith("claims of the dataset")
    assert receipt["verified"]["rounds"] == 1
    counts = receipt["verified"]["looked_at"]
    assert {"dead letters", "raw objects", "data files"} <= {name for name, n in counts.items() if n}


def test_rollups_of_the_days_are_gone_and_those_of_other_days_stay(erased: Erased) -> None:
    name = erased.owner.tenant.curated_table("orders", "people")
    with postgres.tenant_transaction("pulse_pipeline", erased.owner.tenant.tenant_id) as connection:
        table = iceberg.load_table(name, iceberg.current_location(connection, name))
    (path,) = live_table.live_files(table)
    assert "/day=2026-11-17/" in path
    assert erased.receipt["curated"] == [
        {
            "table": "orders__people",
            "files_removed": 2,
            "objects_deleted": erased.receipt["curated"][0]["objects_deleted"],
        }
    ]
    assert len(table.metadata.snapshots) == 1
    parquet = [file.path for file in object_store.listed(table.location()) if file.name.endswith(".parquet")]
    assert parquet == [path]


def test_snapshots_before_an_erasure_are_not_readable(erased: Erased) -> None:
    (remaining,) = snapshots.snapshots(erased.owner.tenant, "orders")
    assert remaining.snapshot_id not in erased.snapshots
    for snapshot in erased.snapshots:
        with pytest.raises(NotFound):
            preview(erased.owner.tenant, "orders", 10, snapshot_id=snapshot)


def test_the_ledger_balances_and_the_offsets_are_accounted_for(erased: Erased) -> None:
    balanced(erased.owner)
    balanced(erased.other)


def test_a_redelivery_does_not_bring_the_event_back(erased: Erased) -> None:
    erased.owner.send(of("x-1", ADA))
    ingest(erased.owner)
    assert "x-1" not in {row["id"] for row in erased.owner.rows()}
    again = erase(erased.owner, f"country={ADA}")  # what it left in the raw zone, another erasure covers
    assert (again["removed"]["rows"], again["removed"]["raw_events"]) == (0, 1)
    assert again["erasure_id"] != erased.receipt["erasure_id"]
    balanced(erased.owner)


def test_verify_reports_a_complete_erasure_as_clean(erased: Erased) -> None:
    code, report = verify(erased.owner, erased.receipt, f"country={ADA}")
    assert (code, report["clean"], report["leftovers"]) == (0, True, [])
    assert report["looked_at"]["data files"] >= 2
    assert report["looked_at"]["raw objects"] >= 4


def test_verify_refuses_a_value_other_than_the_erased_one(erased: Erased) -> None:
    for where in (f"country={BOB}", f"event_id={ADA}"):
        assert verify(erased.owner, erased.receipt, where)[0] == 2
    assert run(erased.owner.tenant.slug, "--where", f"country={ADA}", "--verify", "none")[0] == 2
    other = verify(erased.other, erased.receipt, f"country={ADA}")
    assert other[0] == 2, "another tenant's erasure does not exist"


@pytest.fixture
def planted(erased: Erased) -> Iterator[str]:
    """Objects that a test puts beside the tenant's, removed at the end."""
    before = set(stored(erased.owner))
    yield f"s3://pulse/raw/{erased.owner.tenant.tenant_id.hex}"
    added_paths = set(stored(erased.owner)) - before
    for path in added_paths:
        object_store.file_system().delete_file(object_store.key(path))


def test_verify_notices_a_raw_object_that_was_left(erased: Erased, planted: str) -> None:
    line = b'{"partition":0,"offset":0,"received_ms":1,"event":' + of("x-1", ADA) + b"}\n"
    for folder in ("orders", "_unresolved"):
        path = f"{planted}/{folder}/dt=2026-11-19/old-1.jsonl.gz"
        object_store.put(path, gzip.compress(line))
        code, report = verify(erased.owner, erased.receipt, f"country={ADA}")
        assert (code, report["leftovers"]) == (1, [f"1 events in {path}"])
        object_store.file_system().delete_file(object_store.key(path))


def plant_row(path: str, country: str) -> None:
    """Write a data file that no table has."""
    sink = io.BytesIO()
    row = {"country": country, "_kafka_partition": 0, "_offset": 0}
    pq.write_table(pa.Table.from_pylist([row]), sink)
    object_store.put(path, sink.getvalue())


def test_verify_notices_a_data_file_that_nothing_reaches(erased: Erased, planted: str) -> None:
    table = live_table.current(erased.owner.tenant, registry.find_dataset(erased.owner.tenant, "orders"))
    for country, covered in ((ADA, True), (BOB, False)):
        path = f"{table.location()}/data/timestamp_day=2026-11-19/old-{country[:3]}.parquet"
        plant_row(path, country)
        code, report = verify(erased.owner, erased.receipt, f"country={ADA}")
        assert (code, report["leftovers"]) == ((1, [f"1 events in {path}"]) if covered else (0, []))
        object_store.file_system().delete_file(object_store.key(path))


def test_verify_notices_a_dead_letter_and_a_summary_that_were_left(erased: Erased) -> None:
    tenant_id = erased.owner.tenant.tenant_id
    letter = (
        "UPDATE dead_letters SET payload = %s WHERE tenant_id = %s AND (partition, event_offset) = (0, 4)"
    )
    summary = (
        "INSERT INTO summaries (tenant_id, dataset_id, rollup, day, definition, landed_at, grain, rows,"
        " computed_at) SELECT tenant_id, dataset_id, 'daily', '2026-11-18', '', %s::timestamptz, '{}', '[]',"
        " now() FROM pdm_datasets WHERE tenant_id = %s"
    )
    with superuser() as connection:
        connection.execute(letter, [of("x-bad", ADA), tenant_id])
        connection.execute(summary, ["2026-01-01T00:00:00Z", tenant_id])
        code, report = verify(erased.owner, erased.receipt, f"country={ADA}")
        connection.execute(letter, [b"", tenant_id])
        connection.execute("DELETE FROM summaries WHERE tenant_id = %s", [tenant_id])
        connection.execute(summary, ["2100-01-01T00:00:00Z", tenant_id])  # computed since
    assert (code, report["leftovers"]) == (1, ["dead letter 0-4", "summary daily of 2026-11-18"])
    assert verify(erased.owner, erased.receipt, f"country={ADA}")[0] == 0


# what matches ------------------------------------------------------------------------------------


def test_a_dry_run_changes_nothing_and_counts_the_same(owner: Owner) -> None:
    owner.send(*events(ADA, "a"), *events(BOB, "b"))
    ingest(owner)
    before = stored(owner)
    code, survey = run(owner.tenant.slug, "--dataset", "orders", "--where", f"country={ADA}", "--dry-run")
    assert stored(owner) == before
    assert (code, survey) == (
        0,
        {"rows": 3, "files": 2, "dead_letters": 2, "raw_events": 6, "raw_objects": survey["raw_objects"]},
    )
    without_consent = run(owner.tenant.slug, "--dataset", "orders", "--where", f"country={ADA}")
    assert without_consent[0] == 2
    assert stored(owner) == before
    removed = erase(owner, f"country={ADA}")["removed"]
    assert {name: removed[name] for name in ("rows", "dead_letters", "raw_events")} == {
        name: survey[name] for name in ("rows", "dead_letters", "raw_events")
    }
    balanced(owner)


def test_fields_of_every_kind(owner: Owner) -> None:
    owner.send(
        *(of(f"int{n}", "x", data={"count": value}) for n, value in enumerate((7, 70, 7.0))),
        *(of(f"num{n}", "x", data={"amount": value}) for n, value in enumerate((0.5, 5e-1, 5))),
        of("traced", "x", trace_id="t-1"),
        of("deep", "x", context={"user": {"id": "u1", "other": 1}}),
        of("shallow", "x", context={"user": "u1"}),
        of("extra", "x", data={"nick": "x"}),
        of("kept", "x"),
    )
    ingest(owner)

    def remaining_ids(where: str) -> set[str]:
        before = {row["id"] for row in owner.rows()}
        count = erase(owner, where)["removed"]["rows"]
        removed_ids = before - {row["id"] for row in owner.rows()}
        assert count == len(removed_ids)
        return removed_ids

    assert remaining_ids("count=7") == {"int0", "int2"}
    assert remaining_ids("context.user.id=u1") == {"deep"}
    for where, count in (("amount=0.5", 2), ("trace_id=t-1", 1), ("event_id=num2", 1), ("data.country=y", 0)):
        assert erasure.preview(owner.tenant, "orders", where).rows == count, where
    balanced(owner)
    assert remaining_ids("amount=0.5") == {"num0", "num1"}
    assert remaining_ids("data.country=x") == {"int1", "num2", "traced", "shallow", "extra", "kept"}
    assert owner.rows() == []
    balanced(owner)


@pytest.fixture(scope="module")
def anyone() -> Owner:
    """A tenant without events."""
    return make_owner()


def orders(owner: Owner, where: str) -> Subject:
    return subject(registry.find_dataset(owner.tenant, "orders"), where)


def test_a_property_declared_later_is_erased_from_earlier_events(owner: Owner) -> None:
    owner.send(of("before", "x", data={"nick": ADA}), of("other", "x", data={"nick": "b", "more": [ADA]}))
    ingest(owner)
    move_on(owner)
    owner.send(of("after", "x", data={"nick": ADA}))
    ingest(owner)
    assert erase(owner, f"nick={ADA}")["removed"]["rows"] == 2
    assert {row["id"] for row in owner.rows()} == {"other"}
    balanced(owner)


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("country", "not <field>=<value>"),
        ("country=", "not <field>=<value>"),
        ("nothing=1", "declares no property 'nothing'"),
        ("active=true", "is a boolean"),
        ("signup_at=2026-11-19", "is a timestamptz"),
        ("address=x", "is a struct"),
        ("count=many", "is an integer"),
        ("count=7.0", "is an integer"),
        ("amount=0,5", "is a number"),
        ("context.=x", "is not a path"),
        ("data..x=x", "is not a path"),
    ],
)
def test_a_value_that_cannot_be_searched_is_an_error(anyone: Owner, where: str, reason: str) -> None:
    code, output = run(anyone.tenant.slug, "--dataset", "orders", "--where", where, "--yes")
    assert code == 2
    assert reason in output


def test_an_unknown_dataset_or_none_is_an_error(anyone: Owner) -> None:
    assert run(anyone.tenant.slug, "--dataset", "absent", "--where", "a=b", "--yes")[0] == 2
    code, output = run(anyone.tenant.slug, "--where", "a=b", "--yes")
    assert code == 2
    assert "no dataset of the tenant declares a property 'a'" in output
    assert "Write data.a to erase" in output
    with pytest.raises(UserError):
        orders(anyone, "absent=1")


def test_values_of_received_events_are_compared_without_conversion(anyone: Owner) -> None:
    def matches(where: str, value: object) -> bool:
        return orders(anyone, where).is_of({"dataset": "orders", "data": {"country": value, "count": value}})

    assert matches("country=7", "7")
    assert matches("country=7", 7), "a dead letter may have a number where a string belongs"
    assert matches("count=7", "7"), "and a string where a number belongs"
    assert not matches("country=7", "07")
    assert not matches("country=7_0", 70)
    assert not matches("count=1", True)
    assert matches("country=x", ["x"]), "or a list where one value belongs"
    flat = {"dataset": "orders", "context": {"user.email": "x"}}
    assert orders(anyone, "context.user.email=x").is_of(flat), "a dot may stand within a name"
    assert matches("count=9007199254740993", 9007199254740993)
    assert not matches("count=9007199254740993", 9007199254740992)
    assert not orders(anyone, "country=x").is_of({"dataset": "other", "data": {"country": "x"}})
    assert not orders(anyone, "country=x").is_of(["orders"])
    assert orders(anyone, "amount=1e400").kind is Kind.DOUBLE


def test_text_that_cannot_contain_the_value_is_not_decoded(anyone: Owner) -> None:
    assert not orders(anyone, "country=ada").may_be_in(b'{"a":"bob"}')
    assert orders(anyone, "country=ada").may_be_in(b'{"a":"\\u0061da"}')
    assert orders(anyone, "country=ada").may_be_in(b'{"a":"ada"}')
    assert orders(anyone, "count=10").may_be_in(b'{"a":1e1}')


# within other values, undeclared, and in all datasets ----------------------------------------------

NESTED = {
    "type": "object",
    "properties": {
        "customer": {
            "type": "object",
            "properties": {"email": {"type": "string"}, "age": {"type": "number"}},
        },
        "people": {"type": "array", "items": {"type": "object", "properties": {"email": {"type": "string"}}}},
        "tags": {"type": "array", "items": {"type": "string"}},
        "any": {"type": ["object", "string"]},
        "work.email": {"type": "string"},
        "home.email": {"type": "string"},
        "firm": {"type": "object", "properties": {"contact.email": {"type": "string"}}},
    },
}


def sale(event_id: str, slug: str = "sales", **data: Any) -> bytes:
    document = {"event_id": event_id, "dataset": slug, "timestamp": "2026-11-19T10:00:00Z", "data": data}
    return json.dumps(document).encode()


def add_dataset(owner: Owner, slug: str = "sales") -> None:
    uri = registry.publish_schema(owner.tenant, slug, json.dumps(NESTED)).schema_uri
    registry.create_dataset(owner.tenant, slug, uri)


WITHIN = {
    # Event: its data, and the field by which it is found.
    "struct": ({"customer": {"email": ADA}}, "customer.email"),
    "number": ({"customer": {"age": 41}}, "customer.age"),
    "list of structs": ({"people": [{"email": BOB}, {"email": ADA}]}, "people.email"),
    "list": ({"tags": ["x", ADA]}, "tags"),
    "json": ({"any": {"email": ADA}}, "any.email"),
    "json itself": ({"any": ADA}, "any"),
    "undeclared": ({"nick": ADA}, "data.nick"),
    "undeclared within": ({"nick": {"names": [ADA]}}, "data.nick.names"),
    "undeclared member": ({"customer": {"nick": ADA}}, "customer.nick"),
    "undeclared name with a dot": ({"flat.name": ADA}, "data.flat.name"),
    "undeclared, nested and flat": ({"deep": {"flat.name": ADA}}, "data.deep.flat.name"),
    "declared name with a dot": ({"work.email": ADA}, "data.work.email"),
    "declared with a dot, sent nested": ({"home": {"email": ADA}}, "data.home.email"),
    "member with a dot": ({"firm": {"contact.email": ADA}}, "firm.contact.email"),
}


@pytest.fixture(scope="module")
def sales() -> Owner:
    owner = make_owner()
    add_dataset(owner)
    other_sales = [
        sale(f"bob {name}", **json.loads(json.dumps(data).replace(ADA, BOB).replace("41", "42")))
        for name, (data, _) in WITHIN.items()
    ]
    owner.send(*(sale(name, **data) for name, (data, _) in WITHIN.items()), *other_sales)
    ingest(owner)
    return owner


@pytest.mark.parametrize("name", WITHIN)
def test_nested_and_undeclared_values_match(sales: Owner, name: str) -> None:
    data, field = WITHIN[name]
    value = "41" if name == "number" else ADA
    preview = erasure.preview(sales.tenant, "sales", f"{field}={value}")
    assert (preview.rows, preview.raw_events) == (1, 1)
    searched = subject(registry.find_dataset(sales.tenant, "sales"), f"{field}={value}")
    assert searched.is_of({"dataset": "sales", "data": data})


def test_the_documented_commands_erase_a_person_from_all_datasets(owner: Owner) -> None:
    add_dataset(owner)
    page = blocks("erasure.md")[0].replace("acme", owner.tenant.slug).splitlines()
    commands = [line.split()[2:] for line in page]
    ada = commands[0][2].removeprefix("customer.email=")
    for person, tag in ((ada, "a"), (BOB, "b")):
        customer = {"email": person}
        owner.send(
            of(f"{tag}1", "x", data={"customer": customer}),
            sale(f"{tag}2", customer=customer),
            sale(f"{tag}3", "nowhere", customer=customer),
            json.dumps({"data": {"customer": customer}}).encode(),
        )
    ingest(owner)
    code, answer = run(*commands[0])
    rows = {name: previewed["rows"] for name, previewed in answer["datasets"].items()}
    assert (code, rows, answer["left_out"]) == (0, {"orders": 1, "sales": 1}, [])
    assert where_is(owner, ada)
    code, done = run(*commands[1])
    assert (code, done["left_out"]) == (0, [])
    removed = {receipt["dataset"]: receipt["removed"] for receipt in done["datasets"]}
    assert {name: counts["rows"] for name, counts in removed.items()} == {"orders": 1, "sales": 1}
    assert sum(counts["dead_letters"] for counts in removed.values()) == 2, "those of no dataset, too"
    assert where_is(owner, ada) == []
    assert len(where_is(owner, BOB)) > 4
    for receipt in done["datasets"]:
        assert verify(owner, receipt, f"data.{commands[0][2]}")[1]["clean"]
    report = reconcile_tenant(owner.tenant)
    assert report.balanced, report.problems
    code, survey = run(*commands[2][:-1], "--dry-run")
    assert (code, survey["rows"]) == (0, 0)


def test_an_erasure_from_all_datasets_names_the_files_that_it_leaves_out(owner: Owner) -> None:
    slug = owner.tenant.slug
    add_dataset(owner, "gone")
    registry.delete_dataset(owner.tenant, "gone")
    code, answer = run(slug, "--where", f"country={ADA}", "--yes")
    (omission,) = answer["left_out"]
    assert (code, omission["what"]) == (1, "files of deleted datasets: gone")
    printed = CliRunner().invoke(cli.app, ["erase", slug, "--where", f"country={ADA}", "--dry-run"])
    assert "not covered: files of deleted datasets: gone" in printed.stderr


# beside others ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_events_that_are_not_settled_are_for_the_next_erasure(owner: Owner) -> None:
    owner.send(*events(ADA, "a"))
    ingest(owner)
    owner.send(of("late", ADA))
    receipt = erase(owner, f"country={ADA}")
    assert receipt["covers"]["partition 0"] == "offsets below 6"
    ingest(owner)
    assert [row["id"] for row in owner.rows()] == ["late"]
    assert verify(owner, receipt, f"country={ADA}")[0] == 0, "it says what it covers"
    assert erase(owner, f"country={ADA}")["removed"]["rows"] == 1
    assert owner.rows() == []
    balanced(owner)


def test_an_erasure_begins_again_after_a_concurrent_commit(owner: Owner, at: AtPoint) -> None:
    """A batch lands between the staging and the commit: the erasure begins again, the batch stays."""
    pairs = zip(events(ADA, "a"), events(BOB, "b"), strict=True)
    owner.send(*(event for pair in pairs for event in pair))  # each file has both
    ingest(owner)
    owner.send(of("meanwhile", BOB))
    landed: list[str] = []

    at("rewrite.staged", lambda: landed.append(ingest(owner)))
    receipt = erase(owner, f"country={ADA}")
    assert landed
    assert receipt["removed"]["rows"] == 3
    assert rewritten(owner) == [3], "what was written for the first try serves the second"
    assert "meanwhile" in {row["id"] for row in owner.rows()}
    balanced(owner)


def test_an_erasure_does_not_touch_a_table_under_rewrite(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulse_pipelines.erasure.run.PATIENCE_S", 0.1)
    dataset = registry.find_dataset(owner.tenant, "orders")
    with leases.rewriting(dataset.dataset_id), pytest.raises(Transient):
        erasure.erase(owner.tenant, "orders", "country=x")
    erasure.erase(owner.tenant, "orders", "country=x")  # of an empty table


def send_letter(owner: Owner, *payloads: bytes) -> None:
    """Bob has a row, and Ada a dead letter that a backfill will land; then the dataset moves on."""
    owner.send(*payloads, of("b", BOB), of("c", ADA, schema_version=2, data={"nick": "x"}))
    ingest(owner)
    assert [letter["reason"] for letter in owner.dead_letters()] == ["unknown_schema_version"]
    move_on(owner)


def move_on(owner: Owner) -> None:
    """The dataset declares another property."""
    schema = json.loads(registry.find_dataset(owner.tenant, "orders").document)
    schema["properties"]["nick"] = {"type": "string"}
    uri = registry.publish_schema(owner.tenant, "orders", json.dumps(schema)).schema_uri
    evolve.move_dataset(owner.tenant, "orders", uri)


def land_letter(owner: Owner) -> None:
    """Ada has a row, and another that was a dead letter."""
    send_letter(owner, of("a", ADA))
    assert rebuilt(owner).dead_letters_landed == 1


def letters_of(owner: Owner) -> list[tuple[Any, ...]]:
    """What is said of the tenant's dead letters, by position."""
    query = "SELECT resolution, payload, event_id, detail FROM dead_letters WHERE tenant_id = %s ORDER BY 1"
    with superuser() as connection:
        return connection.execute(query, [owner.tenant.tenant_id]).fetchall()


def test_a_landed_dead_letter_is_a_dead_letter_again(owner: Owner) -> None:
    """A backfill made a row of it: the ledger's counts go back, and another backfill finds nothing."""
    land_letter(owner)
    assert [row["id"] for row in owner.rows()] == ["a", "b", "c"]
    balanced(owner)
    with superuser() as connection:  # as if the run had died before it was published
        mine = [owner.tenant.tenant_id]
        connection.execute("UPDATE dead_letters SET published_at = NULL WHERE tenant_id = %s", mine)
    assert erase(owner, f"country={ADA}")["removed"]["rows"] == 2
    balanced(owner)
    assert letters_of(owner) == [("erased", b"", None, "erased")]
    assert owner.dead_letters()[0]["published_at"] is not None, "there is nothing to publish any more"
    rebuilt(owner)
    assert [row["id"] for row in owner.rows()] == ["b"]
    balanced(owner)


def test_the_receipt_names_each_table_that_the_tenant_s_engines_made(owner: Owner) -> None:
    """They were not searched: whoever reads the receipt knows where to look."""
    namespaces.create(owner.tenant, ("own",), {}, Once())
    for name in ("people", "visits"):
        table_commits.create(owner.tenant, Name(("own",), name), {"schema": SCHEMA}, Once())
    places = [place for place in erase(owner, f"country={ADA}")["remains"] if "own table" in place["where"]]
    assert [place["where"].split()[4].rstrip(":") for place in places] == ["own.people", "own.visits"]
    assert all(place["until"] is None and "not searched" in place["why"] for place in places)


def test_a_letter_that_landed_in_a_deleted_dataset_is_emptied(owner: Owner) -> None:
    """Its row is in files that no command changes, and stays counted; what the letter says goes."""
    land_letter(owner)
    registry.delete_dataset(owner.tenant, "orders")
    registry.create_dataset(owner.tenant, "orders", f"pulse://{owner.tenant.slug}/orders/2")
    before = reconcile_tenant(owner.tenant)
    receipt = erase(owner, f"country={ADA}")
    assert receipt["removed"]["dead_letters"] == 1
    assert letters_of(owner) == [("landed", b"", None, "erased")]
    places = where_is(owner, ADA)
    deleted = next(place for place in receipt["remains"] if "deleted" in place["where"])
    folder = deleted["why"].split("at ")[1].split("/metadata/")[0]
    assert places
    assert all(place.startswith(folder) for place in places), places
    assert reconcile_tenant(owner.tenant) == before
    assert before.balanced
    assert verify(owner, receipt, f"country={ADA}")[0] == 0
    assert erase(owner, f"country={ADA}")["removed"]["dead_letters"] == 0


def test_the_roll_back_of_a_table_is_not_made_final(owner: Owner) -> None:
    """Rows of the ledger are missing: history is what brings them back, so it is not forgotten."""
    owner.send(*events(ADA, "a"))
    ingest(owner)
    with superuser() as connection:
        query = "UPDATE landings SET rows = rows + 1 WHERE tenant_id = %s AND day = '2026-11-19'"
        connection.execute(query, [owner.tenant.tenant_id])
    with pytest.raises(Terminal, match="rolled back"):
        erasure.erase(owner.tenant, "orders", f"country={ADA}")


# killed anywhere ---------------------------------------------------------------------------------

POINTS = (
    "erase.planned",
    "rewrite.before_commit",
    "rewrite.after_commit",
    "erase.letters.before_commit",
    "erase.raw.before_commit",
    "erase.raw.before_delete",
    "upkeep.before_delete",
)

OFTEN = ("rewrite.before_commit", "erase.raw.before_delete", "upkeep.before_delete")
"""The rest is slow: of each kind of store, one."""


@pytest.fixture(scope="module")
def crowd() -> Owner:
    """A tenant with a person for each point to die at."""
    owner = make_owner()
    for number in range(len(POINTS)):
        owner.send(*events(f"person-{number}-of-many@example.org", f"p{number}"))
    ingest(owner)
    return owner


@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=[pytest.mark.slow] * (p not in OFTEN)) for p in POINTS]
)
@pytest.mark.sample(1)
def test_an_erasure_that_was_killed_is_completed_by_the_same_command(crowd: Owner, point: str) -> None:
    person = f"person-{POINTS.index(point)}-of-many@example.org"
    other_ids = {row["id"] for row in crowd.rows() if row["country"] != person}
    command = (crowd.tenant.slug, "--dataset", "orders", "--where", f"country={person}", "--yes")
    dying = pulse("erase", *command, environment={"PULSE_FAIL_POINT": point}, check=False)
    assert dying.returncode == -signal.SIGKILL, dying.stdout + dying.stderr
    with postgres.tenant_transaction("pulse_pipeline", crowd.tenant.tenant_id) as connection:
        query = "SELECT erasure_id FROM erasures WHERE finished_at IS NULL"
        ((erasure_id,),) = connection.execute(query).fetchall()
    receipt = erase(crowd, f"country={person}")
    assert receipt["erasure_id"] == erasure_id
    removed = {name: receipt["removed"][name] for name in ("rows", "dead_letters", "raw_events")}
    assert removed == {"rows": 3, "dead_letters": 2, "raw_events": 6}
    assert where_is(crowd, person) == []
    assert {row["id"] for row in crowd.rows()} == other_ids
    balanced(crowd)
    assert verify(crowd, receipt, f"country={person}")[0] == 0


@pytest.mark.slow
def test_an_erasure_waits_for_spark_jobs_of_a_killed_erasure(owner: Owner) -> None:
    owner.send(of("a", ADA), of("b", BOB), of("c", ADA), of("d", BOB))  # each file has both
    ingest(owner)
    forked(erase, owner, f"country={ADA}", PULSE_FAIL_POINT="rewrite.file").killed()
    code, output = run(owner.tenant.slug, "--dataset", "orders", "--where", f"country={ADA}", "--yes")
    assert (code, "Spark may still be at work" in output) == (1, True)
    with superuser() as connection:
        over = "UPDATE upkeep_log SET ended_at = ended_at - interval '1 hour' WHERE tenant_id = %s"
        connection.execute(over, [owner.tenant.tenant_id])
    receipt = erase(owner, f"country={ADA}")
    assert (receipt["removed"]["rows"], where_is(owner, ADA)) == (2, [])
    assert [row["id"] for row in owner.rows()] == ["b", "d"]
    balanced(owner)


def begin(owner: Owner, where: str, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin an erasure that ends at a point, as if it had died there."""

    class Died(BaseException): ...

    def die_at_point(name: str) -> None:
        if name == point:
            raise Died

    with monkeypatch.context() as dying:
        dying.setattr(erasure, "fail_point", die_at_point)
        with pytest.raises(Died):
            erasure.erase(owner.tenant, "orders", where)


@pytest.mark.slow
def test_a_letter_landed_during_a_dead_erasure_is_erased(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_letter(owner, of("a", ADA))
    begin(owner, f"country={ADA}", "erase.after.rows", monkeypatch)
    assert rebuilt(owner).dead_letters_landed == 1
    assert [row["id"] for row in owner.rows()] == ["b", "c"]
    receipt = erase(owner, f"country={ADA}")
    assert (receipt["removed"]["rows"], receipt["table"]["days"]) == (2, {"2026-11-19": 2})
    assert letters_of(owner) == [("erased", b"", None, "erased")]
    assert [row["id"] for row in owner.rows()] == ["b"]
    assert where_is(owner, ADA) == []
    balanced(owner)
    rebuilt(owner)
    balanced(owner)


def test_a_backfill_amid_a_killed_erasure_restores_no_erased_rows(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the counts agree: as many raw events are gone by retention as rows are erased."""
    owner.send(of("a", ADA))
    ingest(owner)
    owner.send(of("b", BOB))
    batch = ingest(owner)
    begin(owner, f"country={ADA}", "erase.after.rows", monkeypatch)
    with superuser() as connection:
        connection.execute("UPDATE raw_objects SET removed_at = now() WHERE batch_id = %s", [batch])
    with pytest.raises(Terminal, match="gives 0 rows, and 1 landed"):
        rebuilt(owner)
    assert [row["id"] for row in owner.rows()] == ["b"]
    erase(owner, f"country={ADA}")
    balanced(owner)


def test_an_erasure_that_cannot_become_clean_names_the_remaining_files(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program restores a file as often as it is removed."""
    owner.send(of("a", ADA), of("b", BOB))
    ingest(owner)
    location = live_table.current(owner.tenant, registry.find_dataset(owner.tenant, "orders")).location()
    path = f"{location}/data/timestamp_day=2026-11-19/again.parquet"
    planted: list[str] = []

    def plant(point: str) -> None:
        if point == "erase.after.curated":
            plant_row(path, ADA)
            planted.append(path)

    with monkeypatch.context() as planting:
        planting.setattr(erasure, "fail_point", plant)
        code, output = run(owner.tenant.slug, "--dataset", "orders", "--where", f"country={ADA}", "--yes")
    assert (code, len(planted)) == (1, 5)
    assert f"still there after 5 rounds: 1 events in {path}" in output
    assert ADA not in output
    receipt = erase(owner, f"country={ADA}")
    assert receipt["erasure_id"] in output, "it continues the same erasure"
    assert receipt["removed"]["rows"] == 1
    assert where_is(owner, ADA) == []
    balanced(owner)


def test_an_erasure_clears_staging_tables_of_earlier_attempts(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, at: AtPoint
) -> None:
    """Of an attempt that continues for another tenant, and of one that died when its batch had settled."""
    other = make_owner()
    first, second = sorted((owner, other), key=lambda party: party.tenant.tenant_id)
    for party in (first, second):
        party.send(*events(ADA, "a"), of("b", BOB))
    settling: list[str] = []

    def erase_the_first() -> None:
        settling.append("")
        if len(settling) == 2:
            assert staged(first)
            assert erase(first, f"country={ADA}")["removed"]["rows"] == 3
            assert staged(first) == []
            assert len(staged(second)) == 2, "which has not settled"

    at("settle.before_commit", erase_the_first, always=True)
    monkeypatch.setattr(settle, "CONNECTIONS", 1)  # one tenant after the other
    batch = ingest(first, second)
    balanced(first)
    balanced(second)
    with superuser() as connection:
        connection.execute(f"CREATE TABLE staging.dead_letters_{batch}_1 AS SELECT * FROM dead_letters")
        connection.execute(f"ALTER TABLE staging.dead_letters_{batch}_1 OWNER TO pulse_pipeline")
    assert staged(second)
    first.send(of("next", BOB))
    ingest(first)
    assert staged(second) == [], "any batch that follows drops them"


def staged(owner: Owner) -> list[bytes]:
    """Payloads of the tenant in staging tables."""
    with superuser() as connection:
        tables = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
            " WHERE schemaname = 'staging' AND starts_with(tablename, 'dead_letters_')"
        ).fetchall()
        query = "SELECT payload FROM {} WHERE tenant_id = %s"
        return [
            payload
            for (table,) in tables
            for (payload,) in connection.execute(query.format(table), [owner.tenant.tenant_id])
        ]


DIED = """
INSERT INTO upkeep_log (tenant_id, upkeep_id, dataset_id, slug, task, reason)
SELECT tenant_id, 'died', dataset_id, slug, 'merge', '' FROM pdm_datasets WHERE tenant_id = %s
"""
LONG_AGO = "UPDATE upkeep_log SET ended_at = ended_at - interval '1 hour' WHERE upkeep_id = 'died'"


def test_an_erasure_waits_for_spark_jobs_of_a_killed_compaction(owner: Owner) -> None:
    """Its files may appear, and be committed, behind the look for files that nothing reaches."""
    owner.send(of("a", ADA))
    ingest(owner)
    with superuser() as connection:
        connection.execute(DIED, [owner.tenant.tenant_id])
        with pytest.raises(Transient, match="Spark may still be at work"):
            erasure.erase(owner.tenant, "orders", f"country={ADA}")
        assert [row["id"] for row in owner.rows()] == ["a"], "it begins only where it can end"
        connection.execute(LONG_AGO)
    assert erase(owner, f"country={ADA}")["removed"]["rows"] == 1


def test_a_move_under_way_is_waited_for(owner: Owner, at: AtPoint) -> None:
    """It writes files again that the erasure is about to replace."""
    owner.send(of("a", ADA, data={"count": 1}), of("b", BOB, data={"count": 2}))
    ingest(owner)
    schema = json.loads(registry.find_dataset(owner.tenant, "orders").document)
    schema["properties"]["count"] = {"type": "number"}
    uri = registry.publish_schema(owner.tenant, "orders", json.dumps(schema)).schema_uri
    refused: list[str] = []

    def erase_meanwhile() -> None:
        with pytest.raises(Transient, match="being moved to another schema") as caught:
            erasure.erase(owner.tenant, "orders", f"country={ADA}")
        refused.append(str(caught.value))

    at("move.rewritten", erase_meanwhile)
    moved(owner.tenant, "orders", uri)
    assert refused
    assert [row["id"] for row in owner.rows()] == ["b"]
    assert erase(owner, f"country={ADA}")["removed"]["rows"] == 1
    assert where_is(owner, ADA) == []
    balanced(owner)


def test_an_erasure_succeeds_although_the_topic_is_lost(owner: Owner) -> None:
    """Nothing remains in it; whether its loss is accepted is another question."""
    owner.send(of("a", ADA))
    ingest(owner)
    delete_topic(owner)
    receipt = erase(owner, f"country={ADA}")
    assert receipt["removed"]["rows"] == 1
    lost, letters = receipt["remains"][:2]
    assert (lost["where"], lost["why"]) == (
        f"Kafka topic {owner.tenant.topic}",
        "the broker has no such topic now",
    )
    assert lost["until"] <= receipt["finished_at"] < letters["until"]
