"""A person is erased from tables of the tenant's own that ask for it, and from no others."""

import json
import subprocess
import sys
import uuid
from contextlib import redirect_stdout
from decimal import Decimal
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, LongType, NestedField, StringType
from support import objects
from support.catalog import Guest
from support.engines import duck
from support.faults import AtPoint, often
from support.forged import SNAPSHOT, Forger, put
from support.here import ingest_here as ingest
from support.http import Api
from support.ingest import event
from support.rest_catalog import OWN, Lake
from typer.testing import CliRunner

from chaos.harm import hostile
from pulse_api import cli
from pulse_pipelines import registry
from pulse_pipelines.erasure import everywhere, record
from pulse_pipelines.erasure.own import process as own_process, tables as own_tables
from pulse_pipelines.erasure.own.subject import SearchedValue, names_of, paths_of
from pulse_pipelines.erasure.own.table import OwnErasure
from pulse_pipelines.erasure.subject import subject
from pulse_pipelines.lake import catalog as names, metadata
from pulse_resources import iceberg, object_store

ADA = "ada-lovelace@example.org"
ASKS = {"pulse.erasure": "true"}
MAIL = pa.schema([("id", pa.int64()), ("email", pa.string())])


in_this_process = pytest.mark.usefixtures("no_processes")


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process of a table would do is done in this one: to start one takes longer than its work."""

    def run_in_process(command: list[str], **options: Any) -> "subprocess.CompletedProcess[bytes]":
        assert command == [sys.executable, "-m", own_process.__name__]
        with monkeypatch.context() as patched, redirect_stdout(StringIO()) as printed:
            patched.setattr(own_process, "limit_memory", lambda _: None)
            patched.setattr(sys, "stdin", TextIOWrapper(BytesIO(options["input"])))
            own_process.main()
        return subprocess.CompletedProcess(command, 0, printed.getvalue().encode())

    monkeypatch.setattr(subprocess, "run", run_in_process)


def mails(first: int, *mail: str) -> pa.Table:
    return pa.table({"id": range(first, first + len(mail)), "email": mail}, MAIL)


def make(own_engine: RestCatalog, **properties: str) -> Table:
    """Ada in a file with another, in one of her own, and in one that an engine deleted her from."""
    table = own_engine.create_table(f"own.t{uuid.uuid4().hex[:8]}", MAIL, properties=ASKS | properties)
    table.append(mails(0, "b@x", ADA))
    table.append(mails(2, ADA))
    table.append(mails(3, "c@x", ADA))
    table.delete("id = 4")
    table.append(mails(5, "d@x"))
    return table


def ids(own_engine: RestCatalog, table: Table) -> list[int]:
    return sorted(own_engine.load_table(table.name()[-2:]).scan().to_arrow()["id"].to_pylist())


def run(guest: Guest, *arguments: str, where: str = f"data.email={ADA}") -> tuple[int, Any]:
    metadata.forget()
    command_line = ["erase", guest.tenant.slug, "--where", where, *arguments, "--json"]
    result = CliRunner().invoke(cli.app, command_line)
    try:
        return result.exit_code, json.loads(result.stdout)
    except ValueError:
        return result.exit_code, result.output


def where_is(table: Table, value: str = ADA) -> list[str]:
    """Files in the table's folder that have the value, or its beginning as a bound."""
    paths = []
    for entry in object_store.listed(table.location()):
        with object_store.file_system().open_input_file(object_store.key(entry.path)) as source:
            content = source.read()
        if entry.name.endswith(".parquet"):
            content = str(pq.read_table(pa.BufferReader(content)).to_pylist()).encode()
        elif entry.name.endswith("avro"):
            with AvroFile[Record](iceberg.file_io().new_input(entry.path)) as records:
                content = repr(list(records)).encode() + content
        if value[:16].encode() in content:
            paths.append(entry.path)
    return paths


@in_this_process
def test_rows_are_erased_with_history_only_from_tables_that_request_it(
    catalog: Api, own_engine: RestCatalog, writer: Guest
) -> None:
    asking, silent = make(own_engine), make(own_engine, **{"pulse.erasure": "false"})
    without = own_engine.create_table("own.without", pa.schema([("id", pa.int64())]), properties=ASKS)
    without.append(pa.table({"id": [1]}))
    before = {
        own.name(): own_engine.load_table(own.name()[-2:]).metadata_location for own in (silent, without)
    }
    shown = f"own.{asking.name()[-1]}"
    code, answer = run(writer, "--dry-run")
    assert (code, answer["own_tables"], answer["left_out"]) == (0, {shown: 2}, [])
    assert ids(own_engine, asking) == [0, 1, 2, 3, 5]
    code, done = run(writer, "--yes")
    assert (code, done["left_out"]) == (0, []), done
    (receipt,) = done["datasets"]
    (erased,) = receipt["own_tables"]
    assert {**erased, "objects_deleted": 0} == {
        "table": shown,
        "rows": 2,
        "files": 2,
        "snapshots_dropped": 5,
        "objects_deleted": 0,
    }
    assert erased["objects_deleted"] > 10
    assert receipt["removed"]["own_rows"] == 2
    assert receipt["verified"]["looked_at"]["files of own tables"] == 3
    assert ADA not in json.dumps(receipt)
    assert where_is(asking) == []
    assert where_is(silent)
    named = [item["where"] for item in receipt["remains"] if "own table" in item["where"]]
    assert [silent.name()[-1] in name for name in named] == [True]
    for own in (silent, without):
        assert own_engine.load_table(own.name()[-2:]).metadata_location == before[own.name()]
    assert ids(own_engine, asking) == [0, 3, 5]
    now = own_engine.load_table(asking.name()[-2:])
    assert len(now.metadata.snapshots) == 1
    with duck(catalog, writer) as connection:
        rows = connection.execute(f"SELECT id FROM {writer.tenant.slug}.{shown} ORDER BY id").fetchall()
    assert [number for (number,) in rows] == [0, 3, 5]
    now.append(mails(9, ADA))
    verified = run(writer, "--verify", receipt["erasure_id"])
    assert (verified[0], verified[1]["clean"]) == (0, True), "what came later is not covered"


@in_this_process
def test_the_progress_of_an_erasure_names_each_own_table(own_engine: RestCatalog, writer: Guest) -> None:
    tables = {f"own.{make(own_engine).name()[-1]}" for _ in range(2)}
    metadata.forget()
    steps: list[str] = []
    everywhere.erase(writer.tenant, everywhere.find(writer.tenant, f"data.email={ADA}"), steps.append)
    named = [step.removeprefix("orders: own_tables, ") for step in steps if "own_tables, " in step]
    assert tables <= set(named), steps


@in_this_process
def test_a_value_in_the_name_of_a_folder_goes_with_its_files(own_engine: RestCatalog, writer: Guest) -> None:
    spec = PartitionSpec(PartitionField(2, 1_000, IdentityTransform(), "email"))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "email", StringType()))
    name = f"own.t{uuid.uuid4().hex[:8]}"
    table = own_engine.create_table(name, schema, partition_spec=spec, properties=ASKS)
    table.append(mails(0, "b@x", ADA))
    ada = ADA.partition("@")[0]
    assert [path for path in objects.names(table.location()) if ada in path]
    code, done = run(writer, "--yes")
    assert (code, done["left_out"]) == (0, []), done
    assert ids(own_engine, table) == [0]
    assert [path for path in objects.names(table.location()) if ada in path] == []


@in_this_process
def test_an_erasure_of_one_dataset_names_the_table(own_engine: RestCatalog, writer: Guest) -> None:
    table = make(own_engine)
    code, receipt = run(writer, "--dataset", "orders", "--yes")
    (named,) = (item for item in receipt["remains"] if "own table" in item["where"])
    assert (code, "without --dataset" in named["why"], receipt["own_tables"]) == (0, True, [])
    assert len(ids(own_engine, table)) == 5


@in_this_process
def test_a_dropped_table_is_named_by_its_folder(own_engine: RestCatalog, writer: Guest) -> None:
    table, purged = make(own_engine), make(own_engine)
    own_engine.drop_table(table.name()[-2:])
    own_engine.purge_table(purged.name()[-2:])
    dropped = own_tables.folders_without_table(writer.tenant)
    assert (table.location() in dropped, purged.location() in dropped) == (True, False)
    code, done = run(writer, "--yes")
    (named,) = (item for item in done["datasets"][0]["remains"] if "to no table now" in item["where"])
    assert (code, named["where"].split()[0]) == (0, str(len(dropped)))
    own_engine.register_table(table.name()[-2:], table.metadata_location)
    run(writer, "--yes")
    assert where_is(table) == []
    assert table.location() not in own_tables.folders_without_table(writer.tenant)


@in_this_process
def test_a_table_that_cannot_be_searched_is_named_with_the_reason(
    own_engine: RestCatalog, writer: Guest, own_lake: Lake
) -> None:
    tables = {
        "delete files": make(own_engine),
        "branches or tags": make(own_engine),
        "format version 1": make(own_engine, **{"format-version": "1"}),
        "of type date": make(own_engine),
    }
    table = own_engine.load_table(tables["delete files"].name()[-2:])
    forger, live = Forger(table), table.current_snapshot()
    assert live
    forged = forger.manifest(f"{table.location()}/data/x.parquet", deletes=True)
    listing = forger.manifest_list(*live.manifests(table.io), forged)
    assert own_lake.commit(table.name()[-1], *forger.updates(listing)).status_code == 200
    table = own_engine.load_table(tables["branches or tags"].name()[-2:])
    table.manage_snapshots().create_tag(table.metadata.snapshots[0].snapshot_id, "kept").commit()
    with tables["of type date"].update_schema() as change:
        change.delete_column("email")
        change.add_column("email", DateType())
    tables_by_name = {table.name: table for table in names.tenant_tables(writer.tenant)}
    for expected, table in tables.items():
        own = tables_by_name[table.name()[-1]]
        person = subject(registry.find_dataset(writer.tenant, "orders"), f"data.email={ADA}")
        reason = OwnErasure(writer.tenant, own, SearchedValue(paths_of(person), ADA)).count().reason
        assert expected in str(reason)
        if expected != "delete files":
            own_engine.drop_table(table.name()[-2:])
    table = tables["delete files"]
    before = own_engine.load_table(table.name()[-2:]).metadata_location
    code, done = run(writer, "--yes")
    (omission,) = done["left_out"]
    assert (code, table.name()[-1] in omission["what"], "delete files" in omission["what"]) == (1, True, True)
    named = [item["why"] for item in done["datasets"][0]["remains"] if table.name()[-1] in item["where"]]
    assert named == ["it was not erased from: it has delete files"]
    assert own_engine.load_table(table.name()[-2:]).metadata_location == before


@in_this_process
def test_removed_delete_files_do_not_hinder_an_erasure(
    own_engine: RestCatalog, writer: Guest, own_lake: Lake
) -> None:
    """An engine that compacts delete files leaves a manifest that names them."""
    table = make(own_engine)
    table = own_engine.load_table(table.name()[-2:])
    forger, live = Forger(table), table.current_snapshot()
    assert live
    manifest = forger.manifest(f"{table.location()}/data/{ADA}.parquet", deletes=True, removed=True)
    listing = forger.manifest_list(*live.manifests(table.io), manifest)
    assert own_lake.commit(table.name()[-1], *forger.updates(listing)).status_code == 200
    assert where_is(table)
    code, done = run(writer, "--yes")
    assert (code, done["left_out"]) == (0, []), done
    assert (ids(own_engine, table), where_is(table)) == ([0, 3, 5], [])


@pytest.mark.parametrize("point", often(["planned", "staged", "after_commit", "removed"], "after_commit"))
def test_a_killed_erasure_is_resumed(
    own_engine: RestCatalog, writer: Guest, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    table = make(own_engine)
    with monkeypatch.context() as dying:
        dying.setenv("PULSE_FAIL_POINT", f"own.erase.{point}")
        code, output = run(writer, "--yes")
    assert (code, "ended with -9" in output, ADA in output) == (1, True, False), output
    assert ids(own_engine, table) == ([0, 1, 2, 3, 5] if point in ("planned", "staged") else [0, 3, 5])
    code, done = run(writer, "--yes")
    assert code == 0, done
    assert ids(own_engine, table) == [0, 3, 5]
    assert where_is(table) == []


def test_an_erasure_that_takes_too_long_is_an_error_with_a_fix(
    own_engine: RestCatalog, writer: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(own_engine)
    with monkeypatch.context() as patched:
        patched.setattr(own_tables, "SECONDS", 0.01)
        code, output = run(writer, "--yes")
    assert code == 1
    assert "took more than" in output
    assert "set the table's property pulse.erasure to false" in output.replace("\n", " ")
    assert len(ids(own_engine, table)) == 5


def test_an_erasure_covers_only_commits_of_engines_before_its_own(
    own_engine: RestCatalog, writer: Guest, at: AtPoint
) -> None:
    table = make(own_engine)
    person = subject(registry.find_dataset(writer.tenant, "orders"), f"data.email={ADA}")
    erasure = record.begin(writer.tenant, person)
    (own,) = names.tenant_tables(writer.tenant)
    searched = SearchedValue(paths_of(person), ADA)

    def write(number: int) -> None:
        own_engine.load_table(table.name()[-2:]).append(mails(number, ADA, "e@x"))

    at("own.erase.staged", lambda: write(10))
    at("upkeep.before_delete", lambda: write(20))
    outcome = OwnErasure(writer.tenant, own, searched).erase(erasure.erasure_id)
    assert (outcome.rows, outcome.reason) == (3, None)
    assert ids(own_engine, table) == [0, 3, 5, 11, 20, 21]
    again = OwnErasure(writer.tenant, own, searched)
    assert again.search_again(outcome.uuid, outcome.sequence).rows == 0
    assert again.search_again(outcome.uuid, outcome.sequence + 1).rows == 1, "it would be found"
    record.finish(writer.tenant, erasure.erasure_id, [], {})


@in_this_process
def test_names_with_control_characters_are_recorded(
    own_engine: RestCatalog, writer: Guest, own_lake: Lake
) -> None:
    """No engine's commit brings one in, but metadata that is registered may have it."""
    table = make(own_engine)
    forger = Forger(table)
    refs = {name: {"snapshot-id": SNAPSHOT, "type": "branch"} for name in ("main", "b\0x")}
    body = {"name": table.name()[-1], "metadata-location": forger.metadata(forger.manifest_list(), refs=refs)}
    assert own_lake.client.post(f"{OWN}/register", json=body | {"overwrite": True}).status_code == 200
    code, answer = run(writer, "--yes")
    assert code == 1
    (omission,) = answer["left_out"]
    assert "branches or tags" in omission["what"]
    assert "b\N{REPLACEMENT CHARACTER}x" in omission["what"]


@pytest.mark.slow
@in_this_process
def test_a_column_is_searched_by_its_earlier_names(own_engine: RestCatalog, writer: Guest) -> None:
    """Files have the name of when they were written, another than is looked for."""
    table = make(own_engine)
    with table.update_schema() as change:
        change.rename_column("email", "contact")
        change.add_column("mail", StringType())
    columns = pa.schema([("id", pa.int64()), ("contact", pa.string()), ("mail", pa.string())])
    own_engine.load_table(table.name()[-2:]).append(
        pa.table({"id": [7], "contact": ["x"], "mail": [ADA]}, columns)
    )
    for name in ("contact", "mail"):
        with own_engine.load_table(table.name()[-2:]).update_schema() as change:
            change.rename_column(name, f"{name}_address")
    for where, rows in (("data.email", 2), ("data.mail_address", 1)):
        code, done = run(writer, "--yes", where=f"{where}={ADA}")
        assert (code, done["datasets"][0]["removed"]["own_rows"]) == (0, rows)
    assert ids(own_engine, table) == [0, 3, 5]
    assert where_is(table) == []


@pytest.mark.slow
@in_this_process
def test_copies_of_a_dataset_are_erased(own_engine: RestCatalog, catalog: Api, writer: Guest) -> None:
    """A copy by DuckDB: `context` and `_extra` are JSON text in it, and the id is `id`."""
    owner = writer.owner
    document = json.loads(event("copied"))
    owner.send(
        json.dumps(document | {"context": {"ip": "192.0.2.7"}}).encode(),
        json.dumps(document | {"event_id": "extra", "data": document["data"] | {"nick": [ADA]}}).encode(),
        event("other"),
    )
    ingest(owner)
    with duck(catalog, writer) as connection:
        slug = writer.tenant.slug
        connection.execute(f"CREATE TABLE {slug}.own.copy AS SELECT * FROM {slug}.events.orders")
    table = own_engine.load_table("own.copy")
    with table.transaction() as transaction:
        transaction.set_properties(ASKS)
    for where in ("context.ip=192.0.2.7", f"data.nick={ADA}", "event_id=other"):
        code, done = run(writer, "--yes", where=where)
        assert (code, done["datasets"][0]["removed"]["own_rows"]) == (0, 1), (where, done)
    assert ids(own_engine, table) == []


ROWS: dict[str, tuple[Any, pa.DataType, str, bool]] = {
    # The column `c`, its type, what is looked for, and whether the row is the person's.
    "text": (ADA, pa.string(), f"c={ADA}", True),
    "other text": (f"{ADA}x", pa.string(), f"c={ADA}", False),
    "large text": (ADA, pa.large_string(), f"c={ADA}", True),
    "null": (None, pa.string(), f"c={ADA}", False),
    "integer": (7, pa.int32(), "c=7", True),
    "integer, not text": (7, pa.int32(), "c=07", False),
    "large integer": (2**62 + 1, pa.int64(), f"c={2**62 + 1}", True),
    "double": (0.1, pa.float64(), "c=0.1", True),
    "single": (0.1, pa.float32(), "c=0.1", True),
    "decimal": (Decimal("7.10"), pa.decimal128(9, 2), "c=7.1", True),
    "boolean": (True, pa.bool_(), "c=1", False),
    "text of a number": ("7", pa.string(), "c=7", True),
    "member": ({"mail": ADA}, pa.struct([("mail", pa.string())]), f"c.mail={ADA}", True),
    "member of null": (None, pa.struct([("mail", pa.string())]), f"c.mail={ADA}", False),
    "name with a dot": ({"a.b": ADA}, pa.struct([("a.b", pa.string())]), f"c.a.b={ADA}", True),
    "list": (["x", ADA], pa.list_(pa.string()), f"c={ADA}", True),
    "list of structs": (
        [None, {"mail": ADA}],
        pa.list_(pa.struct([("mail", pa.string())])),
        f"c.mail={ADA}",
        True,
    ),
    "map": ([("k", "x"), ("mail", ADA)], pa.map_(pa.string(), pa.string()), f"c.mail={ADA}", True),
    "map, other key": ([("k", ADA)], pa.map_(pa.string(), pa.string()), f"c.mail={ADA}", False),
    "JSON text": (json.dumps({"a": [{"b": ADA}]}), pa.string(), f"c.a.b={ADA}", True),
    "JSON text, escaped": ('{"a": "\\u0061da-lovelace@example.org"}', pa.string(), f"c.a={ADA}", True),
    "JSON text of the value": (json.dumps(ADA), pa.string(), f"c={ADA}", True),
    "no JSON": ('{"a": ', pa.string(), f"c.a={ADA}", False),
    "JSON text in a member": (
        {"raw": json.dumps({"mail": ADA})},
        pa.struct([("raw", pa.string())]),
        f"c.raw.mail={ADA}",
        True,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_value_matches_in_columns_of_every_kind(name: str) -> None:
    value, kind, where, expected = ROWS[name]
    path, _, text = where.partition("=")
    rows = pa.record_batch({"c": pa.array([value, None], kind), "other": pa.array([ADA, ADA])})
    searched = SearchedValue((tuple(path.split(".")),), text)
    assert searched.mask(rows, {}).to_pylist() == [expected, False]
    assert searched.columns_to_read(rows.schema, {}) == ["c"]


def test_names_are_known_by_field_ids(own_engine: RestCatalog) -> None:
    table = make(own_engine)
    with table.update_schema() as change:
        change.rename_column("email", "contact")
    known = names_of(own_engine.load_table(table.name()[-2:]).metadata)
    assert known[2] == {"email", "contact"}


@pytest.mark.slow  # the limits are tried in tests/lake/test_lake_upkeep.py and test_lake_parsing.py
def test_a_table_beyond_the_limits_is_in_no_other_table_s_way(
    own_engine: RestCatalog, writer: Guest, own_lake: Lake
) -> None:
    """A footer that would become gigabytes ends the process of its table; the person goes from the rest."""
    tables = sorted((make(own_engine) for _ in range(3)), key=lambda table: table.name())
    before, beyond, after = (own_engine.load_table(table.name()[-2:]) for table in tables)
    path, live = f"{beyond.location()}/data/footer.parquet", beyond.current_snapshot()
    assert live
    put(path, hostile.parquet())
    forger = Forger(beyond)
    listed = forger.manifest_list(*live.manifests(beyond.io), forger.manifest(path, rows=0))
    assert own_lake.commit(beyond.name()[-1], *forger.updates(listed)).status_code == 200
    code, output = run(writer, "--yes")
    assert (code, f"own table own.{beyond.name()[-1]}: its process ended" in output.replace("\n", " ")) == (
        1,
        True,
    )
    assert [ids(own_engine, table) for table in (before, after)] == [[0, 3, 5]] * 2
    own_engine.drop_table(beyond.name()[-2:])
    code, done = run(writer, "--yes")
    assert (code, {own_table["rows"] for own_table in done["datasets"][0]["own_tables"]}) == (0, {2}), done
