"""Nothing that a tenant's engine names leads the catalog, or its keys, to files of others."""

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from support.catalog import READ, Guest
from support.http import Api
from support.rest_catalog import CREATION, OWN, SCHEMA, VIEW, Lake, Made, of_statistics, properties, snapshot

from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.lake import metadata
from pulse_pipelines.registry import keys
from pulse_resources import object_store
from pulse_resources.store_keys.store_key import StoreKey
from pulse_resources.store_keys.vended import Mode

TRICKS: dict[str, Callable[[str, str], str]] = {
    # A path of one's own and one of another tenant, and what is named instead of the former.
    "foreign": lambda mine, theirs: theirs,
    "foreign below": lambda mine, theirs: f"{theirs}/metadata/x.avro",
    "up": lambda mine, theirs: f"{mine}/../../../{theirs.partition('/iceberg/')[2]}",
    "up, encoded": lambda mine, theirs: f"{mine}/%2e%2e/%2e%2e/{theirs.partition('/iceberg/')[2]}",
    "up, encoded twice": lambda mine, theirs: f"{mine}/%252e%252e/x",
    "up, half encoded": lambda mine, theirs: f"{mine}/.%2E/x",
    "slash, encoded": lambda mine, theirs: f"{mine}/..%2f..%2fx",
    "backslashes": lambda mine, theirs: f"{mine}\\..\\..\\x",
    "a dot": lambda mine, theirs: f"{mine}/./x",
    "empty part": lambda mine, theirs: f"{mine}//x",
    "prefix of a name": lambda mine, theirs: f"{mine}x/y",
    "parent": lambda mine, theirs: mine.rpartition("/")[0],
    "bucket": lambda mine, theirs: "s3://pulse",
    "other bucket": lambda mine, theirs: mine.replace("s3://pulse/", "s3://pulse.evil/"),
    "user": lambda mine, theirs: mine.replace("s3://", "s3://x@"),
    "other scheme": lambda mine, theirs: mine.replace("s3://", "s3a://"),
    "file": lambda mine, theirs: "file:///etc/passwd",
    "http": lambda mine, theirs: "http://169.254.169.254/latest",
    "relative": lambda mine, theirs: "metadata/x.avro",
    "NUL": lambda mine, theirs: f"{mine}/x\0",
    "wildcard": lambda mine, theirs: f"{mine}/*",
    "question": lambda mine, theirs: f"{mine}/x?versionId=1",
    "new line": lambda mine, theirs: f"{mine}/x\n",
    "empty": lambda mine, theirs: "",
    "long": lambda mine, theirs: f"{mine}/{'x' * 2_000}",
}


@pytest.fixture(scope="module")
def lakes(catalog: Api, writers: tuple[Guest, Guest]) -> Iterator[tuple[Lake, Lake]]:
    clients = [catalog.client(guest.key.text) for guest in writers]
    for client in clients:
        client.post("/v1/namespaces", json={"namespace": ["own"]})
    yield Lake(clients[0]), Lake(clients[1])
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def mine(lakes: tuple[Lake, Lake]) -> Made:
    return lakes[0].make()


@pytest.fixture(scope="module")
def theirs(lakes: tuple[Lake, Lake]) -> Made:
    return lakes[1].make("theirs")


@pytest.fixture(params=["key", "token"], scope="module")
def lake(request: pytest.FixtureRequest, catalog: Api, writers: tuple[Guest, Guest]) -> Iterator[Lake]:
    """By a key, and by a token made of it."""
    text = writers[0].key.text
    if request.param == "token":
        form = {"grant_type": "client_credentials", "client_secret": text}
        with catalog.client() as client:
            text = client.post("/v1/oauth/tokens", data=form).json()["access_token"]
    with catalog.client(Authorization=f"Bearer {text}") as client:
        yield Lake(client)


Ask = Callable[[Lake, Made, str], httpx.Response]


def register(lake: Lake, at: str, kind: str = "register") -> httpx.Response:
    return lake.client.post(f"{OWN}/{kind}", json={"name": "trap", "metadata-location": at})


def create(lake: Lake, stage: bool, **values: str) -> httpx.Response:
    body = {"name": "trap", "schema": SCHEMA, "stage-create": stage, "properties": values}
    return lake.client.post(f"{OWN}/tables", json=body)


def transaction(lake: Lake, table: Made, path: str) -> httpx.Response:
    change = {
        "identifier": {"namespace": ["own"], "name": table.name},
        "requirements": [],
        "updates": [snapshot(path)],
    }
    return lake.client.post("/v1/transactions/commit", json={"table-changes": [change]})


def created_by_commit(lake: Lake, path: str) -> httpx.Response:
    return lake.commit("trap", *CREATION, snapshot(path), requirements=[{"type": "assert-create"}])


ASKS: dict[str, Ask] = {
    "register": lambda lake, table, path: register(lake, path),
    "register metadata": lambda lake, table, path: register(lake, f"{path}/metadata/0.metadata.json"),
    "register a view": lambda lake, table, path: register(lake, path, "register-view"),
    "create, write.data.path": lambda lake, table, path: create(lake, False, **{"write.data.path": path}),
    "create, write.metadata.path": lambda lake, table, path: create(
        lake, False, **{"write.metadata.path": path}
    ),
    "stage, write.data.path": lambda lake, table, path: create(lake, True, **{"write.data.path": path}),
    "commit, write.data.path": lambda lake, table, path: lake.commit(
        table.name, properties(**{"write.data.path": path})
    ),
    "commit, write.metadata.path": lambda lake, table, path: lake.commit(
        table.name, properties(**{"write.metadata.path": path})
    ),
    "commit, write.object-storage.path": lambda lake, table, path: lake.commit(
        table.name, properties(**{"write.object-storage.path": path})
    ),
    "commit, a manifest list": lambda lake, table, path: lake.commit(table.name, snapshot(path)),
    "commit, statistics": lambda lake, table, path: lake.commit(table.name, of_statistics(path)),
    "commit, partition statistics": lambda lake, table, path: lake.commit(
        table.name, of_statistics(path, "partition-statistics")
    ),
    "transaction, a manifest list": transaction,
    "create by a commit": lambda lake, table, path: created_by_commit(lake, path),
}


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.sample(25)  # each of them
def test_no_path_leads_out_of_a_table_s_folder(lake: Lake, mine: Made, theirs: Made, trick: str) -> None:
    """Every request that names a path, asked with every trick: refused in the same words."""
    path = TRICKS[trick](mine.location, theirs.location)
    before = lake.load(mine.name)["metadata-location"]
    for name, ask in ASKS.items():
        answer = ask(lake, mine, path)
        assert answer.status_code == 400, f"{name}: {answer.text}"
        assert answer.json()["error"]["type"] == "BadRequestException", name
        message = answer.json()["error"]["message"]
        assert "below the folder" in message or (not path and "must be a text" in message), name
    assert lake.load(mine.name)["metadata-location"] == before
    assert lake.client.head(f"{OWN}/tables/trap").status_code == 404


@pytest.mark.parametrize("trick", TRICKS)
def test_a_requested_location_is_ignored(
    lakes: tuple[Lake, Lake], mine: Made, theirs: Made, trick: str
) -> None:
    """A requested `location` is no error, as engines send one as a matter of course: the catalog chooses."""
    lake = lakes[0]
    path = TRICKS[trick](mine.location, theirs.location)
    moved = lake.commit(mine.name, {"action": "set-location", "location": path})
    assert moved.json()["metadata"]["location"] == mine.location
    table = lake.make(location=path)
    folder = mine.location.rpartition("/")[0]
    assert table.location.startswith(f"{folder}/")
    assert table.location != mine.location
    for kind in ("data", "metadata"):  # writers that believe they are elsewhere write there all the same
        assert table.answer["metadata"]["properties"][f"write.{kind}.path"] == f"{table.location}/{kind}"
    view = f"v{uuid.uuid4().hex[:8]}"
    body = {"name": view, "schema": SCHEMA, "view-version": VIEW, "location": path}
    answer = lake.client.post(f"{OWN}/views", json=body).json()
    assert answer["metadata"]["location"].startswith(f"{folder}/")
    assert answer["metadata-location"].startswith(f"{answer['metadata']['location']}/metadata/")


WRONG: dict[str, Callable[[dict[str, Any], str, str], None]] = {
    # What a tenant may have written into a metadata file in a folder of its own.
    "location": lambda d, mine, theirs: d.update(location=theirs),
    "a dataset's location": lambda d, mine, theirs: d.update(
        location=f"{mine.partition('/_own/')[0]}/orders/x"
    ),
    "location of all": lambda d, mine, theirs: d.update(location=mine.rpartition("/")[0]),
    "manifest list": lambda d, mine, theirs: d.update(
        snapshots=[snapshot(f"{theirs}/metadata/x.avro")["snapshot"]]
    ),
    "manifests": lambda d, mine, theirs: d.update(
        snapshots=[snapshot(f"{mine}/x")["snapshot"] | {"manifests": [f"{theirs}/metadata/x.avro"]}]
    ),
    "statistics": lambda d, mine, theirs: d.update(statistics=[of_statistics(theirs)["statistics"]]),
    "log": lambda d, mine, theirs: d.update({"metadata-log": [{"metadata-file": theirs, "timestamp-ms": 1}]}),
    "property": lambda d, mine, theirs: d.update(properties={"write.data.path": theirs}),
    "no location": lambda d, mine, theirs: d.pop("location"),
    "no schema": lambda d, mine, theirs: d.pop("schemas"),
    "a list": lambda d, mine, theirs: d.update({"partition-specs": 1}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_metadata_that_names_files_of_others_is_not_registered(
    lakes: tuple[Lake, Lake], writers: tuple[Guest, Guest], theirs: Made, wrong: str
) -> None:
    lake = lakes[0]
    table = lake.make()
    document = dict(table.answer["metadata"])
    WRONG[wrong](document, table.location, theirs.location)
    at = f"{table.location}/metadata/forged.metadata.json"
    store = metadata.file_system(writers[0].tenant, Mode.WRITE)
    with store.open_output_stream(object_store.key(at), compression=None) as sink:
        sink.write(json.dumps(document).encode())
    lake.client.delete(f"{OWN}/tables/{table.name}")
    answer = register(lake, at)
    assert answer.status_code == 400, answer.text
    assert lake.client.head(f"{OWN}/tables/trap").status_code == 404


def test_a_forged_current_metadata_file_opens_nothing_of_others(
    lakes: tuple[Lake, Lake], writers: tuple[Guest, Guest], theirs: Made
) -> None:
    """A tenant can write over a file of its own that the catalog points at: no key comes of it."""
    lake = lakes[0]
    table = lake.make()
    events = lake.client.get("/v1/namespaces/events/tables/orders").json()["metadata"]["location"]
    store = metadata.file_system(writers[0].tenant, Mode.WRITE)
    for location, expected in ((theirs.location, 500), (events, 200), ("s3://pulse/iceberg", 500)):
        document = table.answer["metadata"] | {"location": location}
        with store.open_output_stream(object_store.key(table.at), compression=None) as sink:
            sink.write(json.dumps(document).encode())
        metadata.forget()
        answer = lake.client.get(f"{OWN}/tables/{table.name}")
        assert answer.status_code == expected, answer.text
        assert lake.commit(table.name, properties(a="b")).status_code in (400, 500)
        if expected == 200:  # the tenant's own dataset: what it may read, and no more
            config = answer.json()["config"]
            reader = object_store.file_system_of(
                StoreKey(
                    config["s3.access-key-id"], config["s3.secret-access-key"], config["s3.session-token"]
                )
            )
            with (
                pytest.raises(OSError, match=r"(?i)denied"),
                reader.open_output_stream(object_store.key(f"{events}/x")) as sink,
            ):
                sink.write(b"x")
    metadata.forget()


def test_a_key_to_a_table_opens_that_table_alone(lakes: tuple[Lake, Lake], theirs: Made) -> None:
    lake = lakes[0]
    table, other = lake.make(), lake.make()
    config = lake.load(table.name)["config"]
    store = object_store.file_system_of(
        StoreKey(config["s3.access-key-id"], config["s3.secret-access-key"], config["s3.session-token"])
    )
    with store.open_output_stream(object_store.key(f"{table.location}/data/x")) as sink:
        sink.write(b"x")
    for elsewhere in (
        other.location,
        theirs.location,
        table.location.rpartition("/")[0],
        f"{table.location}x",
    ):
        with pytest.raises(OSError, match=r"(?i)denied"):
            store.open_input_stream(object_store.key(f"{elsewhere}/metadata/x"))
        with (
            pytest.raises(OSError, match=r"(?i)denied"),
            store.open_output_stream(object_store.key(f"{elsewhere}/data/x")) as sink,
        ):
            sink.write(b"x")


def test_a_write_only_key_cannot_read(catalog: Api, writer: Guest, mine: Made, lake: Lake) -> None:
    """Neither by a write that changes nothing, nor by one that is sent again."""
    view = f"v{uuid.uuid4().hex[:8]}"
    view_answer = lake.client.post(
        f"{OWN}/views", json={"name": view, "schema": SCHEMA, "view-version": VIEW}
    )
    assert view_answer.status_code == 200
    before = lake.load(mine.name)["metadata-location"]
    nothing: dict[str, Any] = {"updates": [], "requirements": []}
    again = {"name": mine.name, "metadata-location": before, "overwrite": True}
    new = {"name": f"t{uuid.uuid4().hex[:8]}", "schema": SCHEMA}
    namespace = f"n{uuid.uuid4().hex[:8]}"
    with catalog.client(keys.issue_key(writer.tenant, "sender", [KeyScope.LAKE_WRITE]).text) as client:
        for path, body in (
            (f"{OWN}/tables/{mine.name}", nothing),
            (f"{OWN}/register", again),
            (f"{OWN}/tables", new),
            (f"{OWN}/tables", new | {"stage-create": True}),
            (f"{OWN}/views/{view}", nothing),
            (
                f"{OWN}/register-view",
                {"name": view, "metadata-location": view_answer.json()["metadata-location"]},
            ),
        ):
            answer = client.post(path, json=body)
            assert (answer.status_code, "lacks the scope lake:read" in answer.text) == (403, True), path
            assert "s3." not in answer.text, path
        once = {"headers": {"Idempotency-Key": str(uuid.uuid4())}, "json": {"namespace": [namespace]}}
        assert client.post("/v1/namespaces", **once).status_code == 200
        secret = {"removals": [], "updates": {"a": "secret"}}
        lake.client.post(f"/v1/namespaces/{namespace}/properties", json=secret)
        assert "secret" not in client.post("/v1/namespaces", **once).text
        change = {"identifier": {"namespace": ["own"], "name": mine.name}} | nothing
        changed = client.post("/v1/transactions/commit", json={"table-changes": [change]})
        assert (changed.status_code, changed.content) == (204, b"")


def test_a_read_only_key_gets_read_only_credentials(catalog: Api, writer: Guest, mine: Made) -> None:
    with catalog.client(keys.issue_key(writer.tenant, "reader", READ).text) as client:
        config = client.get(f"{OWN}/tables/{mine.name}").json()["config"]
    store = object_store.file_system_of(
        StoreKey(config["s3.access-key-id"], config["s3.secret-access-key"], config["s3.session-token"])
    )
    with store.open_input_stream(object_store.key(mine.at)) as source:
        assert source.read()
    with (
        pytest.raises(OSError, match=r"(?i)denied"),
        store.open_output_stream(object_store.key(f"{mine.location}/data/x")) as sink,
    ):
        sink.write(b"x")


def test_a_table_of_others_is_like_one_that_is_not_there(
    lake: Lake, theirs: Made, writers: tuple[Guest, Guest]
) -> None:
    """By its name, its stored name, and with every request that writes."""
    stored = f"{writers[1].tenant.namespace}.own"
    for namespace in (
        ["own"],
        [stored],
        [writers[1].tenant.namespace, "own"],
        ["events", "own"],
        ["events.own"],
    ):
        path = "/v1/namespaces/" + "%1F".join(namespace)
        source = {"namespace": namespace, "name": "theirs"}
        change = {"identifier": source, "requirements": [], "updates": [properties(a="b")]}
        rename = {"source": source, "destination": {"namespace": ["own"], "name": "taken"}}
        answers = (
            lake.client.post(f"{path}/tables/theirs", json={"requirements": [], "updates": []}),
            lake.client.delete(f"{path}/tables/theirs", params={"purgeRequested": "true"}),
            lake.client.delete(f"{path}/views/theirs"),
            lake.client.post(f"{path}/views/theirs", json={"requirements": [], "updates": []}),
            lake.client.post("/v1/tables/rename", json=rename),
            lake.client.post("/v1/views/rename", json=rename),
            lake.client.post("/v1/transactions/commit", json={"table-changes": [change]}),
            *(
                (
                    lake.client.delete(path),
                    lake.client.post(f"{path}/properties", json={"updates": {"a": "b"}}),
                    lake.client.post(f"{path}/tables", json={"name": "x", "schema": SCHEMA}),
                    lake.client.get(f"{path}/views"),
                )
                if namespace != ["own"]
                else ()
            ),
        )
        for answer in answers:
            assert answer.status_code == 404, (namespace, answer.request.url, answer.text)
            assert answer.json()["error"]["type"].startswith("NoSuch")
    assert theirs.location


@pytest.mark.parametrize("slug", ["events", "orders"])
def test_events_are_written_by_pulse_alone(lake: Lake, slug: str, mine: Made) -> None:
    path, one = "/v1/namespaces/events", {"namespace": ["events"], "name": slug}
    own = {"namespace": ["own"], "name": mine.name}
    change = {"identifier": one, "requirements": [], "updates": [properties(a="b")]}
    requests: tuple[tuple[str, str, Any], ...] = (
        ("DELETE", path, None),
        ("POST", f"{path}/properties", {"updates": {"a": "b"}}),
        ("POST", f"{path}/tables", {"name": slug, "schema": SCHEMA}),
        ("POST", f"{path}/tables", {"name": slug, "schema": SCHEMA, "stage-create": True}),
        ("POST", f"{path}/tables/{slug}", {"requirements": [], "updates": []}),
        ("DELETE", f"{path}/tables/{slug}?purgeRequested=true", None),
        ("POST", f"{path}/register", {"name": slug, "metadata-location": mine.at}),
        ("POST", f"{path}/views", {"name": slug, "schema": SCHEMA, "view-version": VIEW}),
        ("DELETE", f"{path}/views/{slug}", None),
        ("POST", "/v1/tables/rename", {"source": one, "destination": own}),
        ("POST", "/v1/tables/rename", {"source": own, "destination": one}),
        ("POST", "/v1/transactions/commit", {"table-changes": [change]}),
    )
    for method, where, body in requests:
        answer = lake.client.request(method, where, json=body)
        assert answer.status_code == 403, (where, answer.text)
        assert answer.json()["error"]["type"] == "ForbiddenException"
        assert lake.client.get(path).status_code == 200  # whoever is only ever refused has to wait
    for namespace in (["events", "x"], [""], ["."], [".."], ["a\x1fb"], ["a" * 300], ["\0"]):
        answer = lake.client.post("/v1/namespaces", json={"namespace": namespace})
        assert answer.status_code == 400, namespace
    assert lake.client.post("/v1/namespaces", json={"namespace": ["events"]}).status_code == 409
