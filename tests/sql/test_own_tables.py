"""SQL over tables of a tenant's own, whose files its engines write: honest ones, and traps."""

import json
import math
import os
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from support.catalog import Guest, make_guests
from support.delete_files import delete_equal
from support.engines import rest
from support.forged import Forger, get, put
from support.http import Api, Caller
from support.rest_catalog import Lake
from support.sql import NOWHERE, answer_text, less, listening, processes
from typer.testing import CliRunner

from chaos.harm import hostile
from chaos.surroundings import superuser
from pulse_api import cli
from pulse_pipelines.lake import metadata, parsing
from pulse_pipelines.sql import manifests, pinned, run
from pulse_pipelines.sql.engine import View
from pulse_pipelines.sql.manifests import Verdicts
from pulse_resources import iceberg, object_store, postgres
from pulse_resources.errors import UserError
from pulse_resources.iceberg import document_weight, table_metadata
from pulse_resources.process import landlock
from pulse_resources.settings import load_settings
from pulse_resources.store_keys import vended

SECRET = 987_654_321
"""The other tenant's only row."""
MINE = 7
needs_landlock = pytest.mark.skipif(
    landlock.version() < landlock.CONNECTIONS_SINCE,
    reason="the kernel has no Landlock that knows connections",
)
pytestmark = needs_landlock


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


@dataclass(frozen=True)
class Two:
    """A tenant with a table, and another one."""

    mine: Guest
    lake: Lake
    theirs: Table

    def make(self, catalog: Api, name: str, *rows: int) -> Table:
        engine = rest(catalog, self.mine)
        engine.create_namespace_if_not_exists("own")
        table = engine.create_table(f"own.{name}", ids().schema)
        table.append(ids(*rows))
        return table


@pytest.fixture(scope="module")
def two(catalog: Api) -> Iterator[Two]:
    mine, other = make_guests()
    engine = rest(catalog, other)
    engine.create_namespace_if_not_exists("own")
    theirs = engine.create_table("own.secret", ids().schema)
    theirs.append(ids(SECRET))
    with catalog.client(mine.key.text) as client:
        yield Two(mine, Lake(client), theirs)


@pytest.fixture
def caller(two: Two, new_caller: Callable[..., Caller]) -> Caller:
    return new_caller(owner=two.mine.owner)


def ask(caller: Caller, sql: str, **more: object) -> httpx.Response:
    return caller.http.post("/v1/sql", json={"sql": sql} | more)


def test_own_tables_are_read_beside_datasets(catalog: Api, two: Two, caller: Caller) -> None:
    engine = rest(catalog, two.mine)
    table = two.make(catalog, "Counts", MINE)
    first = table.metadata.current_snapshot_id
    table.append(ids(8))
    engine.create_namespace_if_not_exists(("own", "deep"))
    engine.create_table(("own", "deep", "empty"), ids().schema)
    join = (
        'SELECT count(DISTINCT o.id) AS orders, sum(c.id) AS s, (SELECT count(*) FROM "own.deep".empty) AS e '
        "FROM orders o, own.Counts c"
    )
    answer = ask(caller, join)
    assert answer.status_code == 200, answer.text
    assert answer.json()["rows"] == [{"orders": 6, "s": 6 * 15, "e": 0}]
    read = answer.json()["snapshots"]
    assert (set(read), read["own.deep.empty"]) == ({"orders", "own.Counts", "own.deep.empty"}, None)
    assert read["own.Counts"] == str(table.metadata.current_snapshot_id)

    query = "SELECT list(id ORDER BY id) AS ids FROM own.Counts"
    assert ask(caller, query, snapshots={"own.Counts": first}).json()["rows"] == [{"ids": [MINE]}]
    assert ask(caller, query, as_of="2020-01-01T00:00:00Z").json()["rows"] == [{"ids": None}]
    assert ask(caller, query, snapshots={"own.Counts": 1}).status_code == 404
    assert ask(caller, "DESCRIBE own.Counts").json()["rows"][0]["column_name"] == "id"
    spoken = CliRunner().invoke(cli.app, ["sql", two.mine.tenant.slug, query, "--csv"])
    assert spoken.stdout.splitlines()[1] == '"[7,8]"'
    for missing in ("own.counts", "own.secret", "events.orders", "nowhere.t"):
        answer = ask(caller, f"FROM {missing}")
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:pulse:problem:not-found"), missing
    listed = caller.http.get("/v1/sql").json()["queries"]
    assert any("own.Counts" in entry["snapshots"] for entry in listed)


def test_large_metadata_is_parsed_beside_the_api(
    catalog: Api, two: Two, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = two.make(catalog, "large", MINE)
    with table.transaction() as change:
        change.set_properties({"mark": "x" * 2 * parsing.SMALL})

    def refuse(*_: object) -> None:
        raise AssertionError("it was parsed in the process that serves")

    monkeypatch.setattr(parsing, "table", refuse)
    metadata.forget()
    answer = ask(caller, "FROM own.large")
    assert (answer.status_code, answer.json().get("rows")) == (200, [{"id": MINE}]), answer.text
    missing = ask(caller, "FROM own.large", snapshots={"own.large": 1})
    assert missing.status_code == 404, "errors come from there, too"


def test_the_api_sees_own_tables_of_its_tenant_and_writes_none(catalog: Api, two: Two) -> None:
    two.make(catalog, "seen", MINE)
    count = "SELECT count(*) FROM iceberg_catalog.iceberg_tables WHERE table_namespace LIKE '%%.own'"
    with superuser() as connection:
        assert connection.execute(count).fetchone() > (1,)
    with postgres.tenant_transaction("pulse_api", two.mine.tenant.tenant_id) as connection:
        theirs = connection.execute(f"{count} AND table_name = 'secret'").fetchone()
        change = "SET table_name = 'x' WHERE table_name = 'seen'"
        changed = connection.execute(f"UPDATE iceberg_catalog.iceberg_tables {change}").rowcount
        dropped = connection.execute("DELETE FROM iceberg_catalog.iceberg_tables WHERE table_name = 'seen'")
        assert (theirs, changed, dropped.rowcount) == ((0,), 0, 0)
    with postgres.transaction("pulse_api") as connection:
        assert connection.execute(count).fetchone() == (0,)


@dataclass
class Outside:
    """A Parquet file beside the lake, on the disk and at an address."""

    file: Path
    port: int
    connections: list[socket.socket]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    file = tmp_path_factory.mktemp("outside") / "secret.parquet"
    as_iceberg = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    pq.write_table(pa.table({"id": [SECRET]}, as_iceberg), file)
    with listening() as (port, connections):
        yield Outside(file, port, connections)


@dataclass(frozen=True)
class Trap:
    """What a forged table leads to.

    Args:
        build: makes the manifest list, in whoever's folder it likes.
        honest: whether the metadata file is such that the catalog takes it: only what it names is not.
    """

    build: Callable[[Forger, Table, Outside], str]
    honest: bool = True
    reads: bool = True
    """Whether the other tenant's row comes out where nothing stops it."""


def their_file(theirs: Table) -> str:
    (task,) = theirs.scan().plan_files()
    return task.file.file_path


def their_manifest(theirs: Table) -> object:
    (manifest,) = theirs.current_snapshot().manifests(iceberg.file_io())  # type: ignore[union-attr]
    return manifest


def climbed(forger: Forger, path: str) -> str:
    """A path to a file of another's that begins in one's own folder."""
    return f"{forger.folder}/../../../../{path.partition('/iceberg/')[2]}"


def with_deletes(forger: Forger, path: str) -> str:
    (mine,) = [task.file.file_path for task in forger.table.scan().plan_files()]
    return forger.manifest_list(forger.manifest(mine, rows=1), forger.manifest(path, deletes=True))


def their_deletes(forger: Forger, theirs: Table) -> str:
    """A file of deleted positions in the other's folder, which would take away one's own row."""
    (mine,) = [task.file.file_path for task in forger.table.scan().plan_files()]
    at = f"{theirs.location()}/data/deletes.parquet"
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), metadata={"PARQUET:field_id": "2147483546"}),
            pa.field("pos", pa.int64(), metadata={"PARQUET:field_id": "2147483545"}),
        ]
    )
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"file_path": [mine], "pos": [0]}, schema), sink)
    put(at, sink.getvalue().to_pybytes())
    return with_deletes(forger, at)


TRAPS = {
    "manifest list of another": Trap(
        lambda f, t, o: str(t.current_snapshot().manifest_list),  # type: ignore[union-attr]
        honest=False,
    ),
    "manifest list, climbing": Trap(
        lambda f, t, o: climbed(f, str(t.current_snapshot().manifest_list)),  # type: ignore[union-attr]
        honest=False,
        reads=False,
    ),
    "manifest list on the disk": Trap(lambda f, t, o: f"file://{o.file}", honest=False, reads=False),
    "manifest of another": Trap(lambda f, t, o: f.manifest_list(their_manifest(t))),  # type: ignore[arg-type]
    "data file of another": Trap(lambda f, t, o: f.manifest_list(f.manifest(their_file(t)))),
    "data file, climbing": Trap(
        lambda f, t, o: f.manifest_list(f.manifest(climbed(f, their_file(t)))), reads=False
    ),
    "data file, s3a": Trap(
        lambda f, t, o: f.manifest_list(f.manifest(their_file(t).replace("s3://", "s3a://"))), reads=False
    ),
    "data file on the disk": Trap(lambda f, t, o: f.manifest_list(f.manifest(str(o.file)))),
    "data file on the disk, as a URL": Trap(lambda f, t, o: f.manifest_list(f.manifest(f"file://{o.file}"))),
    "the environment": Trap(lambda f, t, o: f.manifest_list(f.manifest("/proc/self/environ")), reads=False),
    "data file at an address": Trap(
        lambda f, t, o: f.manifest_list(f.manifest(f"http://127.0.0.1:{o.port}/x.parquet")), reads=False
    ),
    "all data files": Trap(
        lambda f, t, o: f.manifest_list(f.manifest(f"{t.location()}/data/*.parquet")), reads=False
    ),
    "deletes of another": Trap(lambda f, t, o: their_deletes(f, t), reads=False),
    "deletes on the disk": Trap(lambda f, t, o: with_deletes(f, str(o.file)), reads=False),
}
"""Some lead nowhere even where nothing stops them: that DuckDB does not follow them today is no layer."""


@pytest.fixture(scope="module")
def forged(catalog: Api, two: Two, outside: Outside) -> dict[str, tuple[str, str]]:
    """For each trap a table of the tenant's: its name, and a metadata file of it that leads into the trap.

    The catalog takes all that are honest: it reads no manifests, which is why the reader must hold.
    """
    traps = {}
    for number, (trap, how) in enumerate(TRAPS.items()):
        name = f"trap_{number}"
        table = two.make(catalog, name, MINE)
        forger = Forger(table)
        listing = how.build(forger, two.theirs, outside)
        answer = two.lake.commit(name, *forger.updates(listing))
        assert (answer.status_code == 200) is how.honest, answer.text
        at = answer.json()["metadata-location"] if how.honest else forger.metadata(listing)
        if not how.honest:  # a tenant may write over the file that the catalog points at
            with object_store.file_system().open_input_file(object_store.key(at)) as source:
                put(table.metadata_location, source.read())
        traps[trap] = (name, at)
    metadata.forget()
    return traps


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_gives_nothing(
    two: Two, caller: Caller, outside: Outside, forged: dict[str, tuple[str, str]], trap: str
) -> None:
    """By the whole of it: an error that tells the caller that it is the table's."""
    name, _ = forged[trap]
    answer = ask(caller, f"SELECT id FROM own.{name}")
    assert str(SECRET) not in answer.text
    assert (answer.status_code, f"own.{name}" in answer.text) == (422, True), answer.text
    joined = ask(caller, f"SELECT t.id FROM own.{name} t, orders")
    assert (joined.status_code, str(SECRET) in joined.text) == (422, False)
    assert not outside.connections


def place() -> tuple[dict[str, object], int]:
    address = load_settings().object_store.endpoint.removeprefix("http://")
    return NOWHERE | {"address": address}, int(address.rpartition(":")[2])


def view_of(two: Two, name: str, at: str) -> View:
    """The view of an honest table with the metadata of a forged one, as if nobody had read it before."""
    store = object_store.file_system()
    folder = table_metadata.folder(at)
    key = vended.credentials([folder], vended.Mode.READ)
    assert store.get_file_info(object_store.key(at)).is_file
    return View(
        f"own.{name}", at, None, f"{folder}/", False, key.access_key, key.secret_key, key.session_token
    )


def scan(at: str) -> str:
    return f"SELECT * FROM iceberg_scan('{at}', allow_moved_paths = false)"


@pytest.mark.parametrize(
    "off",
    [
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(("landlock",), marks=pytest.mark.slow),
        ("gate", "locks"),
        pytest.param(("gate", "locks", "landlock", "limits"), marks=pytest.mark.slow),
    ],
    ids=lambda off: "without " + " ".join(off) if off else "all layers",
)
def test_each_layer_of_the_sandbox_stops_the_traps_alone(
    two: Two, outside: Outside, forged: dict[str, tuple[str, str]], off: tuple[str, ...]
) -> None:
    """DuckDB's locks; the key and Landlock; and the key alone, for what is in the object store."""
    store, port = place()
    with processes(off, port=port) as workers:
        for trap, (name, at) in forged.items():
            if "landlock" in off and "locks" in off and ("disk" in trap or "address" in trap):
                continue
            view = view_of(two, name, at)
            sql = scan(at) if "gate" in off else f"SELECT id FROM own.{name}"
            output = answer_text(workers, sql, store=store, views=[view])
            assert str(SECRET) not in output, trap
            assert '"rows":[]' not in output, f"{trap}: the other's deletes took effect"
    assert not outside.connections


@pytest.mark.slow
def test_the_traps_work_without_the_sandbox(
    two: Two, outside: Outside, forged: dict[str, tuple[str, str]]
) -> None:
    """With the store's root key, no locks and no Landlock: else the tests above would show nothing."""
    store, port = place()
    keys = load_settings().object_store
    with processes(("gate", "locks", "landlock", "limits"), port=port) as workers:
        for trap, (name, at) in forged.items():
            view = View(
                **vars(view_of(two, name, at))
                | {
                    "access_key": keys.access_key,
                    "secret_key": keys.secret_key.get_secret_value(),
                    "session_token": "",
                }
            )
            output = answer_text(workers, scan(at), store=store, views=[view])
            if TRAPS[trap].reads:
                assert str(SECRET) in output, f"{trap}: {output}"
            if trap == "deletes of another":
                assert '"rows":[]' in output, output
    assert outside.connections
    outside.connections.clear()


def test_statistics_elsewhere_are_refused(catalog: Api, two: Two, caller: Caller) -> None:
    table = two.make(catalog, "statistics", MINE)
    entry = {
        "snapshot-id": table.metadata.current_snapshot_id,
        "statistics-path": f"{two.theirs.location()}/metadata/x.puffin",
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    with object_store.file_system().open_input_file(object_store.key(table.metadata_location)) as source:
        document = json.loads(source.read())
    assert ask(caller, "FROM own.statistics").status_code == 200
    put(table.metadata_location, json.dumps(document | {"statistics": [entry]}).encode())
    metadata.forget()
    answer = ask(caller, "FROM own.statistics")
    assert (answer.status_code, "below the folder" in answer.json()["detail"]) == (422, True), answer.text


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'{"location": 1}', os.urandom(2_000), b"[" * 100_000],
    ids=["cut", "a list", "numbers", "bytes", "deep"],
)
def test_damaged_metadata_is_the_tenants_own_matter(
    catalog: Api, two: Two, caller: Caller, content: bytes
) -> None:
    table = two.make(catalog, f"damaged_{len(content)}", MINE)
    put(table.metadata_location, content)
    metadata.forget()
    name = table.name()[-1]
    answer = ask(caller, f"FROM own.{name}")
    assert (answer.status_code, f"own.{name}" in answer.json()["detail"]) == (422, True), answer.text


def test_metadata_that_would_become_much_in_memory_is_refused(catalog: Api, two: Two, caller: Caller) -> None:
    """60 MB of empty objects would become gigabytes, in a process that all tenants share."""
    table = two.make(catalog, "heavy", MINE)
    put(table.metadata_location, b'{"snapshots": [' + b"{}," * (20 * 2**20) + b"{}]}")
    metadata.forget()
    answer = ask(caller, "SELECT count(*) FROM own.heavy")
    assert (answer.status_code, "is too large" in answer.json()["detail"]) == (422, True), answer.text
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"'own.heavy' cannot be read: .* too large"):
            pinned.tables(two.mine.tenant, ["own.heavy"], [], pinned.Travel())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * document_weight.LARGEST
    again = {"name": "again", "metadata-location": table.metadata_location}
    refused = two.lake.client.post("/v1/namespaces/own/register", json=again)
    assert (refused.status_code, "is too large" in refused.text) == (400, True), refused.text
    assert two.lake.client.get("/v1/namespaces/own/tables/heavy").status_code >= 400


def test_a_damaged_manifest_list_is_an_error_and_not_an_empty_table(
    catalog: Api, two: Two, caller: Caller
) -> None:
    """DuckDB takes what it cannot decode for the list's end, and unpacks a bomb for half a minute."""
    table = two.make(catalog, "listed", MINE)
    location = str(table.current_snapshot().manifest_list)  # type: ignore[union-attr]
    whole = get(location)
    mark = whole[-16:]
    head = whole[: whole.index(mark) + 16]
    damaged = {
        "a negative number of rows": head + b"\1" + whole[len(head) + 1 :],
        "no rows, and bytes": head + b"\0" + whole[len(head) + 1 :],
        "rows that are cut off": hostile.repeated(whole, 1)[:-17] + mark,
        "a bomb": hostile.avro(head, 80 * 2**20),
        "nothing": b"",
    }
    for damage, content in damaged.items():
        put(location, content)
        answer = ask(caller, "SELECT count(*) AS n FROM own.listed")
        assert (answer.status_code, "'own.listed' cannot be read" in answer.text) == (422, True), damage
    put(location, whole)
    assert ask(caller, "FROM own.listed").json()["rows"] == [{"id": MINE}]


def test_a_damaged_manifest_is_an_error_and_not_a_shorter_table(
    catalog: Api, two: Two, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it has been whole, the next query does not read it again before DuckDB does."""
    verdicts = Verdicts()
    monkeypatch.setattr(run, "_VERDICTS", verdicts)
    table = two.make(catalog, "manifests", MINE)
    table.append(ids(8))
    _, manifest = table.current_snapshot().manifests(table.io)  # type: ignore[union-attr]
    whole = get(manifest.manifest_path)
    mark = whole[-16:]
    head = whole[: whole.index(mark) + 16]
    query = "SELECT id FROM own.manifests ORDER BY id"
    for damaged in (head + b"\0" + whole[len(head) + 1 :], whole[:-30], hostile.avro(head, 80 * 2**20)):
        put(manifest.manifest_path, damaged)
        answer = ask(caller, query)
        named = "'own.manifests' cannot be read: its manifest" in answer.text
        assert (answer.status_code, named) == (422, True), answer.text
    assert not verdicts.of(f"{table.location()}/")
    put(manifest.manifest_path, whole)
    for _ in range(2):
        assert ask(caller, query).json()["rows"] == [{"id": MINE}, {"id": 8}]
        assert len(verdicts.of(f"{table.location()}/")) == 2


def test_deletes_that_duckdb_applies_wrongly_are_refused(catalog: Api, two: Two, caller: Caller) -> None:
    table = two.make(catalog, "equal", MINE, 8)
    before = table.metadata.current_snapshot_id
    delete_equal(table, {"id": 8})
    answer = ask(caller, "FROM own.equal")
    assert answer.status_code == 422, answer.text
    assert "'own.equal' has deletes by equality" in answer.json()["detail"]
    assert ask(caller, "FROM own.equal", snapshots={"own.equal": before}).json()["rows"] == [
        {"id": MINE},
        {"id": 8},
    ]


def test_a_number_that_no_bounds_have_is_selected(catalog: Api, two: Two, caller: Caller) -> None:
    table = rest(catalog, two.mine).create_table("own.nan", pa.schema([("x", pa.float64())]))
    table.append(pa.table({"x": [1.0, math.nan]}))
    answer = ask(caller, "SELECT x::VARCHAR AS x FROM own.nan WHERE x > 2")
    assert answer.json()["rows"] == [{"x": "nan"}]


def test_a_file_that_is_gone_is_the_tenants_own_matter(catalog: Api, two: Two, caller: Caller) -> None:
    table = two.make(catalog, "gone", MINE)
    (task,) = table.scan().plan_files()
    for path in (task.file.file_path, str(table.current_snapshot().manifest_list)):  # type: ignore[union-attr]
        object_store.file_system().delete_file(object_store.key(path))
        answer = ask(caller, "SELECT sum(id) FROM own.gone")
        assert (answer.status_code, "'own.gone' cannot be read" in answer.text) == (422, True), answer.text


def test_a_partition_that_duckdb_cannot_read_is_named(catalog: Api, two: Two, caller: Caller) -> None:
    """PyIceberg writes its name into manifests as it is, where Avro allows no such letter."""
    schema = pa.schema([("straße", pa.string()), ("two words", pa.string())])
    rows = pa.table({"straße": ["x", "y"], "two words": ["a", "b"]}, schema)
    for column, status in (("straße", 422), ("two words", 200)):
        table = rest(catalog, two.mine).create_table(f"own.by_{status}", schema)
        with table.update_spec() as spec:
            spec.add_identity(column)
        table.append(rows)
        answer = ask(caller, f"SELECT count(*) AS n FROM own.by_{status}")
        assert answer.status_code == status, answer.text
        assert ("a partition field 'straße'" in answer.text) is (status == 422)


def test_a_query_is_pinned_to_the_folder_that_the_catalog_gave(catalog: Api, two: Two) -> None:
    """Not to the one that the metadata names: also not one of the tenant's own."""
    first, second = two.make(catalog, "first", 1), two.make(catalog, "second", 2)
    with object_store.file_system().open_input_file(object_store.key(second.metadata_location)) as source:
        put(first.metadata_location, source.read())
    metadata.forget()
    with pytest.raises(UserError, match="another table"):
        pinned.tables(two.mine.tenant, ["own.first"], [], pinned.Travel())


def test_large_files_of_ones_own_stay_within_the_limits(catalog: Api, two: Two) -> None:
    """A Parquet file of few bytes and many rows: its owner's query ends at the limit, as any."""
    table = two.make(catalog, "bomb", MINE)
    sink = pa.BufferOutputStream()
    bomb = pa.table({"id": pa.array([0] * 3_000_000, pa.int64())}).cast(table.schema().as_arrow())
    pq.write_table(bomb, sink, compression="zstd")
    at = f"{table.location()}/data/bomb.parquet"
    put(at, sink.getvalue().to_pybytes())
    forger = Forger(table)
    listing = forger.manifest_list(forger.manifest(at, rows=3_000_000))
    assert two.lake.commit("bomb", *forger.updates(listing)).status_code == 200
    (pinned_table,) = pinned.tables(two.mine.tenant, ["own.bomb"], [], pinned.Travel())
    store, port = place()
    with processes(port=port) as workers:
        output = answer_text(
            workers, "FROM own.bomb", store=store, views=[pinned_table.view], limits=less(rows=1_000)
        )
        assert "1,000 rows" in output
        cross = "SELECT list(a.id) FROM own.bomb a, own.bomb b"
        output = answer_text(
            workers, cross, store=store, views=[pinned_table.view], limits=less(memory_bytes=64 * 2**20)
        )
        assert "MiB of memory" in output or "ended" in output


def test_manifests_are_fetched_together_within_the_limits(catalog: Api, two: Two, caller: Caller) -> None:
    table = two.make(catalog, "many", MINE)
    (task,) = table.scan().plan_files()
    forger, number = Forger(table), 2 * manifests.AT_ONCE + 1
    listed = forger.manifest_list(*(forger.manifest(task.file.file_path) for _ in range(number)))
    assert two.lake.commit("many", *forger.updates(listed)).status_code == 200
    answer = ask(caller, "SELECT count(*) AS n FROM own.many")
    assert (answer.status_code, answer.json()["rows"]) == (200, [{"n": number}]), answer.text


def test_a_snapshot_that_is_its_own_ancestor_has_an_end(catalog: Api, two: Two, caller: Caller) -> None:
    """Whoever looks for an earlier moment follows the parents: in the API's process, for all tenants."""
    forger = Forger(two.make(catalog, "ring", MINE))
    added, current = forger.updates(forger.manifest_list())
    added["snapshot"] |= {"parent-snapshot-id": added["snapshot"]["snapshot-id"]}
    assert two.lake.commit("ring", added, current).status_code == 200
    answer = ask(caller, "FROM own.ring", as_of="2026-01-01T00:00:00Z")
    assert (answer.status_code, "history is kept since" in answer.json()["detail"]) == (404, True), (
        answer.text
    )
    answer = ask(caller, "FROM own.ring", snapshots={"own.ring": 7})
    assert (answer.status_code, "no such snapshot" in answer.json()["detail"]) == (404, True), answer.text
