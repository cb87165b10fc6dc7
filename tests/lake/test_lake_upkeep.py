"""Upkeep of a tenant's own tables: only where it is asked for, and never a file that somebody may commit."""

import re
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table
from support.catalog import Guest
from support.engines import rest
from support.faults import AtPoint
from support.forged import Forger, get, put
from support.http import Api
from support.maintenance import do, done, objects
from support.rest_catalog import CREATION, OWN, SCHEMA, Lake

from chaos.harm import hostile
from chaos.surroundings import with_settings
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.lake import catalog as names, lifecycle, metadata, paths, purges
from pulse_pipelines.maintenance import policy
from pulse_pipelines.maintenance.own_tables import Keeper, UpkeepReport
from pulse_resources import object_store
from pulse_resources.iceberg import document_weight

ASKS = {"pulse.upkeep": "true", "history.expire.max-snapshot-age-ms": "0"}


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


@pytest.fixture
def no_age() -> Iterator[None]:
    """Orphans are removed whatever their age: nobody else writes."""
    with with_settings(UPKEEP__OWN_ORPHAN_HOURS=0):
        yield


def make(own_engine: RestCatalog, **properties: str) -> Table:
    """A table with four snapshots, of which the last deleted the first's row."""
    table = own_engine.create_table(f"own.t{uuid.uuid4().hex[:8]}", ids().schema, properties=properties)
    for number in range(3):
        table.append(ids(number))
    table.delete("id = 0")
    return table


def plain(own_engine: RestCatalog) -> Table:
    """A table without snapshots."""
    return own_engine.create_table(f"own.t{uuid.uuid4().hex[:8]}", ids().schema)


def rows(own_engine: RestCatalog, table: Table) -> list[int]:
    content: list[int] = own_engine.load_table(table.name()[-2:]).scan().to_arrow()["id"].to_pylist()
    return sorted(content)


def keep(writer: Guest) -> UpkeepReport:
    metadata.forget()
    return Keeper(writer.tenant).keep()


def test_upkeep_runs_only_for_tables_that_request_it(
    own_engine: RestCatalog, writer: Guest, no_age: None
) -> None:
    """By the job, in a process of its own: one table has one snapshot and its files, the other keeps all."""
    asking = make(own_engine, **ASKS | {"history.expire.min-snapshots-to-keep": "1"})
    silent = make(own_engine)
    before = {table.location(): objects(table.location()) for table in (asking, silent)}
    assert Task.TENANT_TABLES in {need.task for need in policy.needs(writer.tenant.slug)}
    (upkeep,) = done(writer.owner, Task.TENANT_TABLES)
    assert upkeep.after["asked"] == 1
    assert upkeep.after["snapshots"] == len(asking.metadata.snapshots) - 1
    assert objects(silent.location()) == before[silent.location()]
    remaining = objects(asking.location())
    assert len(before[asking.location()] - remaining) >= upkeep.after["objects"] > 0
    now = own_engine.load_table(asking.name()[-2:])
    assert len(now.metadata.snapshots) == 1
    assert rows(own_engine, asking) == [1, 2]
    now.append(ids(9))
    assert rows(own_engine, asking) == [1, 2, 9]
    assert Task.TENANT_TABLES not in {need.task for need in policy.needs(writer.tenant.slug)}
    assert Task.TENANT_TABLES not in {need.task for need in policy.needs(writer.tenant.slug, recent=True)}
    own_engine.drop_table(asking.name()[-2:])


def test_upkeep_keeps_young_uncommitted_files(own_engine: RestCatalog, writer: Guest) -> None:
    table = make(own_engine, **ASKS)
    uncommitted = f"{table.location()}/data/in-flight.parquet"
    put(uncommitted, b"x")
    before = objects(table.location())
    keep(writer)
    assert before <= objects(table.location())
    with with_settings(UPKEEP__OWN_ORPHAN_HOURS=0):
        keep(writer)
    assert uncommitted not in objects(table.location())
    assert rows(own_engine, table) == [1, 2]
    own_engine.drop_table(table.name()[-2:])


def test_a_commit_in_between_is_kept(
    own_engine: RestCatalog, writer: Guest, no_age: None, at: AtPoint
) -> None:
    """One while the expiry is staged, one while orphans are searched: both win, and lose no file."""
    table = make(own_engine, **ASKS | {"history.expire.min-snapshots-to-keep": "2"})
    late = [
        at(point, lambda n=n: own_engine.load_table(table.name()[-2:]).append(ids(n)))
        for n, point in enumerate(("own.expire.staged", "upkeep.fence.staged", "upkeep.before_delete"), 10)
    ]
    upkeep = keep(writer)
    assert (all(late), upkeep.skipped) == (True, [])
    assert rows(own_engine, table) == [1, 2, 10, 11, 12]
    assert len(own_engine.load_table(table.name()[-2:]).metadata.snapshots) >= 3
    own_engine.drop_table(table.name()[-2:])


def test_a_file_named_with_another_scheme_is_not_an_orphan(
    own_engine: RestCatalog, writer: Guest, own_lake: Lake, no_age: None
) -> None:
    """Hadoop's engines write s3a://; a name that cannot be compared leaves the table as it is."""
    for way, stays in (
        (lambda p: p.replace("s3://", "s3a://"), True),
        (lambda p: p.replace("/data/", "//data/"), False),
    ):
        table = own_engine.create_table(f"own.t{uuid.uuid4().hex[:8]}", ids().schema, properties=ASKS)
        sink = pa.BufferOutputStream()
        pq.write_table(ids(5), sink)
        path = f"{table.location()}/data/named.parquet"
        put(path, sink.getvalue().to_pybytes())
        forger = Forger(table)
        listing = forger.manifest_list(forger.manifest(way(path)))
        assert own_lake.commit(table.name()[-1], *forger.updates(listing)).status_code == 200
        orphan = f"{table.location()}/data/orphan.parquet"
        put(orphan, b"x")
        upkeep = keep(writer)
        remaining = objects(table.location())
        assert path in remaining
        assert (orphan in remaining) is not stays
        assert any(table.name()[-1] in reason for reason in upkeep.skipped) is not stays, upkeep
        own_engine.drop_table(table.name()[-2:])


def test_a_table_that_leads_elsewhere_is_reported(
    own_engine: RestCatalog, writers: tuple[Guest, Guest], catalog: Api, own_lake: Lake, no_age: None
) -> None:
    """The isolation check: of every own table, whether or not it asks for upkeep; for the operator."""
    other = rest(catalog, writers[1])
    other.create_namespace_if_not_exists("own")
    theirs = other.create_table("own.theirs", ids().schema)
    theirs.append(ids(1))
    (task,) = theirs.scan().plan_files()
    (manifest,) = theirs.current_snapshot().manifests(theirs.io)  # type: ignore[union-attr]
    for leads in (lambda f: f.manifest(task.file.file_path), lambda f: manifest):
        table = plain(own_engine)
        forger = Forger(table)
        updates = forger.updates(forger.manifest_list(leads(forger)))
        assert own_lake.commit(table.name()[-1], *updates).status_code == 200
        assert [table.name()[-1] in path for path in keep(writers[0]).outside] == [True]
        if leads(forger) is not manifest:
            own_engine.drop_table(table.name()[-2:])
    (reported,) = do(writers[0].owner, Task.TENANT_TABLES)
    assert (reported.outcome, table.name()[-1] in str(reported.detail)) == ("failed", True)
    assert task.file.file_path in objects(theirs.location())
    own_engine.drop_table(table.name()[-2:])
    assert keep(writers[0]).outside == []
    other.drop_table("own.theirs")


@pytest.mark.parametrize(
    "path",
    [
        "{folder}/data/../../../elsewhere/data/x.parquet",
        "/etc/passwd",
        "file:///etc/passwd",
        "http://127.0.0.1:8182/",
    ],
)
def test_a_path_that_leads_elsewhere_is_reported_beside_one_that_is_merely_odd(
    own_engine: RestCatalog, writer: Guest, own_lake: Lake, path: str
) -> None:
    table = plain(own_engine)
    forger = Forger(table)
    named = [path.format(folder=table.location()), f"{table.location()}/data//x.parquet"]
    updates = forger.updates(forger.manifest_list(forger.manifest(*named)))
    assert own_lake.commit(table.name()[-1], *updates).status_code == 200
    upkeep = keep(writer)
    assert [table.name()[-1] in place and named[0] in place for place in upkeep.outside] == [True], upkeep


def test_a_bomb_is_named_and_hides_nothing(own_engine: RestCatalog, writer: Guest, own_lake: Lake) -> None:
    """Files that would take all memory: the tables beside theirs are looked after, and reported."""
    foreign, bomb, heavy, long, _ = (plain(own_engine) for _ in range(5))
    forger = Forger(foreign)
    updates = forger.updates(forger.manifest_list(forger.manifest("s3://elsewhere/x.parquet")))
    assert own_lake.commit(foreign.name()[-1], *updates).status_code == 200
    forger = Forger(bomb)
    updates = forger.updates(forger.bomb(2 * 1024**3))
    assert own_lake.commit(bomb.name()[-1], *updates).status_code == 200
    forger = Forger(long)
    listed = forger.manifest_list(forger.manifest(f"{long.location()}/data/x.parquet"), codec="deflate")
    put(listed, hostile.repeated(get(listed), 220_000))
    assert own_lake.commit(long.name()[-1], *forger.updates(listed)).status_code == 200
    put(heavy.metadata_location, b'{"snapshots": [' + b"{}," * (20 * 2**20) + b"{}]}")
    metadata.forget()
    (upkeep,) = do(writer.owner, Task.TENANT_TABLES)
    assert (upkeep.outcome, foreign.name()[-1] in str(upkeep.detail)) == ("failed", True)
    own_engine.drop_table(foreign.name()[-2:])
    (upkeep,) = do(writer.owner, Task.TENANT_TABLES)
    assert (upkeep.outcome, upkeep.after["tables"]) == ("done", 4)
    for table, why in (
        (bomb, "a block of deflate becomes more than"),
        (long, "has more than 200,000 entries"),
        (heavy, "the table's metadata file is too large"),
    ):
        assert re.search(f"{table.name()[-1]}: [^;]*{why}", str(upkeep.detail)), upkeep


def test_a_table_too_large_for_the_catalog_can_still_expire_snapshots(
    own_engine: RestCatalog, own_lake: Lake, writer: Guest, no_age: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep parses in a process of its own, whose memory is limited."""
    table = make(own_engine, **ASKS | {"history.expire.min-snapshots-to-keep": "1"})
    size = len(get(own_engine.load_table(table.name()[-2:]).metadata_location))
    with monkeypatch.context() as small:
        small.setattr(document_weight, "LARGEST", int(size / 1.5))
        metadata.forget()
        assert own_lake.client.get(f"{OWN}/tables/{table.name()[-1]}").status_code >= 400
        upkeep = keep(writer)
    assert (upkeep.skipped, upkeep.numbers["snapshots"]) == ([], len(table.metadata.snapshots) - 1)
    assert rows(own_engine, table) == [1, 2]
    own_engine.drop_table(table.name()[-2:])


def test_damaged_files_leave_their_table_and_no_other(
    own_engine: RestCatalog, writer: Guest, no_age: None
) -> None:
    damaged, sound = make(own_engine, **ASKS), make(own_engine, **ASKS)
    put(str(damaged.current_snapshot().manifest_list), b"Obj\x01 no Avro")  # type: ignore[union-attr]
    orphans = [f"{table.location()}/data/orphan.parquet" for table in (damaged, sound)]
    for uri in orphans:
        put(uri, b"x")
    upkeep = keep(writer)
    assert [damaged.name()[-1] in reason for reason in upkeep.skipped] == [True]
    assert [uri in objects(uri.rpartition("/data/")[0]) for uri in orphans] == [True, False]
    for table in (damaged, sound):
        own_engine.drop_table(table.name()[-2:])


def test_a_purge_that_died_is_finished(
    own_engine: RestCatalog, writer: Guest, own_lake: Lake, at: AtPoint
) -> None:
    """The table is dropped, its files are there; nothing enters the folder again, and upkeep removes them."""
    table = make(own_engine)

    def die() -> None:
        raise OSError("the object store is gone")

    at("lake.purge", die)
    name = table.name()[-1]
    assert own_lake.client.delete(f"{OWN}/tables/{name}?purgeRequested=true").status_code >= 500
    assert objects(table.location())
    body: dict[str, Any] = {"name": name, "metadata-location": table.metadata_location}
    refused = own_lake.client.post(f"{OWN}/register", json=body)
    assert (refused.status_code, "were removed" in refused.text) == (400, True), refused.text
    assert keep(writer).numbers["folders"] == 1
    assert not objects(table.location())
    assert keep(writer).numbers["folders"] == 0


def test_a_drop_waits_for_some_files_and_upkeep_removes_the_others(
    own_engine: RestCatalog, writer: Guest, own_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of all tenants take turns: none removes a hundred thousand files meanwhile."""
    table = make(own_engine)
    for number in range(10):
        put(f"{table.location()}/data/{number}.metadata.json", b"{}")
    before, name = objects(table.location()), table.name()[-1]
    with monkeypatch.context() as small:
        small.setattr(object_store, "DELETES", 3)
        small.setattr(lifecycle, "PURGE_S", 0.0)
        assert own_lake.client.delete(f"{OWN}/tables/{name}?purgeRequested=true").status_code == 204
        remaining = objects(table.location())
        assert before > remaining
        assert len(before - remaining) <= 3
        assert not names.find(writer.tenant, ("own",), name)
        assert purges.finish(writer.tenant, 0.0) == 0
        assert remaining > objects(table.location()), "each time a little"
    assert keep(writer).numbers["folders"] == 1
    assert not objects(table.location())


def test_folders_of_unfinished_tables_are_removed_and_dropped_tables_stay(
    own_engine: RestCatalog, writer: Guest, own_lake: Lake
) -> None:
    dropped = make(own_engine)
    own_engine.drop_table(dropped.name()[-2:])
    staged = own_lake.client.post(
        f"{OWN}/tables", json={"name": "staged", "schema": SCHEMA, "stage-create": True}
    )
    location = staged.json()["metadata"]["location"]
    put(f"{location}/data/x.parquet", b"x")
    died = paths.new_location(writer.tenant)
    put(f"{died}/metadata/00000-{uuid.uuid4()}.metadata.json", b"{}")
    unchanged = own_lake.make()
    assert keep(writer).numbers["folders"] == 0, "they are young"
    with with_settings(UPKEEP__OWN_ORPHAN_HOURS=0):
        assert keep(writer).numbers["folders"] == 2
    assert not objects(location)
    assert not objects(died)
    assert objects(dropped.location())
    assert objects(unchanged.location)
    late = {"action": "set-location", "location": location}
    answer = own_lake.commit("staged", late, *CREATION, requirements=[{"type": "assert-create"}])
    assert (answer.status_code, "were removed" in answer.text) == (400, True), answer.text
    body = {"name": "again", "metadata-location": engine_metadata(dropped)}
    assert own_lake.client.post(f"{OWN}/register", json=body).status_code == 200
    assert names.find(writer.tenant, ("own",), "again")


def engine_metadata(table: Table) -> str:
    """The last metadata file of a dropped table."""
    documents = [path for path in objects(f"{table.location()}/metadata") if path.endswith(".metadata.json")]
    return max(documents, key=lambda path: path.rpartition("/")[2])


def test_upkeep_opens_nothing_but_the_table_s_folder(
    own_engine: RestCatalog, writer: Guest, no_age: None
) -> None:
    """A forged metadata file with another location is no way to have other files removed."""
    table, victim = make(own_engine, **ASKS), make(own_engine)
    bystander = f"{victim.location()}/data/uncommitted.parquet"
    put(bystander, b"x")
    with object_store.file_system().open_input_file(object_store.key(table.metadata_location)) as source:
        content = source.read().replace(table.location().encode(), victim.location().encode())
    put(table.metadata_location, content)
    upkeep = keep(writer)
    assert any(table.name()[-1] in reason for reason in upkeep.skipped)
    assert bystander in objects(victim.location())
    own_engine.drop_table(victim.name()[-2:])
    own_engine.drop_table(table.name()[-2:])


def test_upkeep_ends_at_a_snapshot_that_is_its_own_ancestor(
    own_engine: RestCatalog, own_lake: Lake, writer: Guest
) -> None:
    """The current snapshot's parent is itself, and all history is young: upkeep would go round."""
    table = plain(own_engine)
    own_engine.load_table(table.name()[-2:]).transaction().set_properties(
        {"pulse.upkeep": "true", "history.expire.max-snapshot-age-ms": str(10**13)}
    ).commit_transaction()
    forger = Forger(table)
    added, current = forger.updates(forger.manifest_list())
    added["snapshot"] |= {"parent-snapshot-id": added["snapshot"]["snapshot-id"]}
    assert own_lake.commit(table.name()[-1], added, current).status_code == 200
    (upkeep,) = done(writer.owner, Task.TENANT_TABLES)
    assert (upkeep.after["asked"], upkeep.after["snapshots"], upkeep.detail) == (1, 0, None)
