"""What the catalog does with a tenant's own tables: races, transactions, repeats, quotas, purges."""

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.catalog import LAKE
from support.http import Api
from support.ingest import make_owner
from support.rest_catalog import OWN, SCHEMA, STATISTICS, VIEW, Lake, of_statistics, properties, snapshot

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import table_quotas
from pulse_pipelines.registry import keys, quotas
from pulse_resources import object_store
from pulse_resources.process.faults import at
from pulse_resources.store_keys.store_key import StoreKey


@pytest.fixture(scope="module")
def tenant(stack: Any) -> Tenant:
    return make_owner().tenant


@pytest.fixture(scope="module")
def lake(catalog: Api, tenant: Tenant) -> Iterator[Lake]:
    with catalog.client(keys.issue_key(tenant, "engine", LAKE).text) as client:
        assert client.post("/v1/namespaces", json={"namespace": ["own"]}).status_code == 200
        yield Lake(client)


def named(*names: str) -> list[dict[str, Any]]:
    return [{"namespace": ["own"], "name": name} for name in names]


def change(name: str, *requirements: Any, **values: str) -> dict[str, Any]:
    identifier = named(name)[0]
    return {"identifier": identifier, "requirements": list(requirements), "updates": [properties(**values)]}


def test_a_transaction_changes_all_of_its_tables_or_none(lake: Lake) -> None:
    one, other = lake.make(), lake.make()
    wrong = {"type": "assert-table-uuid", "uuid": str(uuid.uuid4())}
    body = {"table-changes": [change(one.name, one.uuid, a="1"), change(other.name, wrong, a="1")]}
    refused = lake.client.post("/v1/transactions/commit", json=body)
    assert (refused.status_code, refused.json()["error"]["type"]) == (409, "CommitFailedException")
    assert lake.load(one.name)["metadata-location"] == one.at
    body = {"table-changes": [change(one.name, one.uuid, a="2"), change(other.name, other.uuid, a="2")]}
    assert lake.client.post("/v1/transactions/commit", json=body).status_code == 204
    for table in (one, other):
        assert lake.load(table.name)["metadata"]["properties"]["a"] == "2"


def test_a_lost_race_is_judged_again_and_leaves_no_file(lake: Lake) -> None:
    table, won = lake.make(), threading.Event()

    def overtake() -> None:
        if not won.is_set():
            won.set()
            assert lake.commit(table.name, properties(theirs="1")).status_code == 200

    with at("lake.staged", overtake):
        answer = lake.commit(table.name, properties(mine="1"), requirements=[table.uuid])
    assert {"mine": "1", "theirs": "1"}.items() <= answer.json()["metadata"]["properties"].items()
    files = [file.name for file in object_store.listed(f"{table.location}/metadata")]
    assert len(files) == 3, "what was written in vain is still there"
    won.clear()
    before = lake.load(table.name)["metadata"]
    last = {"type": "assert-last-assigned-field-id", "last-assigned-field-id": before["last-column-id"]}

    def widen() -> None:
        if not won.is_set():
            won.set()
            wider = SCHEMA | {"fields": [*SCHEMA["fields"], SCHEMA["fields"][0] | {"id": 2, "name": "b"}]}
            update = {"action": "add-schema", "schema": wider | {"schema-id": 1}, "last-column-id": 2}
            assert lake.commit(table.name, update).status_code == 200

    with at("lake.staged", widen):
        refused = lake.commit(table.name, properties(mine="2"), requirements=[last])
    assert refused.status_code == 409
    assert "last assigned field id changed" in refused.json()["error"]["message"]


def test_two_creations_of_one_table_name_create_one_table(lake: Lake) -> None:
    name, other = f"t{uuid.uuid4().hex[:8]}", []

    def overtake() -> None:
        if not other:
            other.append(name)
            other.append(lake.make(name).at)

    with at("lake.staged", overtake):
        answer = lake.client.post(f"{OWN}/tables", json={"name": name, "schema": SCHEMA})
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "AlreadyExistsException")
    assert lake.load(name)["metadata-location"] == other[1]


def again(lake: Lake, method: str, path: str, body: Any, key: str) -> httpx.Response:
    return lake.client.request(method, path, json=body, headers={"Idempotency-Key": key})


def test_a_request_that_comes_again_is_carried_out_once(lake: Lake) -> None:
    name, table = f"t{uuid.uuid4().hex[:8]}", lake.make()
    view = {"name": name, "schema": SCHEMA, "view-version": VIEW}
    requests: tuple[tuple[str, str, Any], ...] = (
        ("POST", "/v1/namespaces", {"namespace": [name]}),
        ("POST", f"/v1/namespaces/{name}/properties", {"updates": {"a": "b"}, "removals": ["c"]}),
        ("POST", f"{OWN}/tables", {"name": name, "schema": SCHEMA}),
        ("POST", f"{OWN}/tables/{name}", {"requirements": [], "updates": [properties(a="b")]}),
        ("POST", "/v1/transactions/commit", {"table-changes": [change(name, a="c")]}),
        ("POST", "/v1/tables/rename", {"source": named(name)[0], "destination": named(f"{name}x")[0]}),
        ("DELETE", f"{OWN}/tables/{name}x", None),
        ("POST", f"{OWN}/views", view),
        ("DELETE", f"{OWN}/views/{name}", None),
        ("DELETE", f"/v1/namespaces/{name}", None),
    )
    for method, path, body in requests:
        key = str(uuid.uuid4())
        first = again(lake, method, path, body, key)
        assert first.status_code in (200, 204), (path, first.text)
        second = again(lake, method, path, body, key)
        assert second.status_code == first.status_code, (path, second.text)
        if first.content and "metadata-location" in first.json():
            assert second.json()["metadata-location"] == first.json()["metadata-location"]
        other = again(lake, "POST", f"{OWN}/tables/{table.name}", {"updates": [properties(a="b")]}, key)
        assert (other.status_code, other.json()["error"]["type"]) == (422, "UnprocessableEntityException")
    assert again(lake, "POST", "/v1/namespaces", {"namespace": ["x"]}, "k" * 101).status_code == 400


def test_a_refused_request_is_judged_again(lake: Lake) -> None:
    name, key = f"t{uuid.uuid4().hex[:8]}", str(uuid.uuid4())
    body = {"requirements": [], "updates": [properties(a="b")]}
    assert again(lake, "POST", f"{OWN}/tables/{name}", body, key).status_code == 404
    lake.make(name)
    assert again(lake, "POST", f"{OWN}/tables/{name}", body, key).status_code == 200


def test_invalid_changes_are_refused(lake: Lake) -> None:
    table = lake.make()
    path = f"{OWN}/tables/{table.name}"
    assert lake.commit(table.name, snapshot(f"{table.location}/metadata/none.avro")).status_code == 200
    tag = {"action": "set-snapshot-ref", "type": "branch", "snapshot-id": 1}
    upgrade = {"action": "upgrade-format-version"}
    for body in (
        {"requirements": [], "updates": None},
        {"requirements": None, "updates": []},
        {"requirements": [], "updates": [upgrade | {"format-version": -1}]},
        {"requirements": [], "updates": [upgrade | {"format-version": 1}]},
        {"requirements": [], "updates": [tag | {"ref-name": "b\0x"}]},
        {"requirements": [], "updates": [tag | {"ref-name": ""}]},
    ):
        assert lake.client.post(path, json=body).status_code == 400, body
    assert lake.load(table.name)["metadata"]["format-version"] == 2
    assert lake.commit(table.name, tag | {"ref-name": "Ünlü/branch"}).status_code == 200


def test_statistics_removed_with_their_snapshot_may_be_removed_again(lake: Lake) -> None:
    """As Iceberg's Java library expires a snapshot that has statistics."""
    table = lake.make()
    folder = f"{table.location}/metadata"
    for number in (1, 2):
        listed = snapshot(f"{folder}/{number}.avro", number)
        current = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number}
        updates = [
            listed,
            current,
            *(of_statistics(f"{folder}/{number}", kind, number) for kind in STATISTICS),
        ]
        answer = lake.commit(table.name, *updates)
        assert answer.status_code == 200, answer.text
    expired = {"action": "remove-snapshots", "snapshot-ids": [1]}
    removed = [{"action": f"remove-{kind}", "snapshot-id": 1} for kind in STATISTICS]
    for updates in ([expired, *removed, expired], removed):
        answer = lake.commit(table.name, *updates)
        assert answer.status_code == 200, answer.text
    metadata = answer.json()["metadata"]
    for part in ("snapshots", *STATISTICS):
        assert [entry["snapshot-id"] for entry in metadata[part]] == [2], part


@pytest.mark.parametrize("part", ["partition-spec", "write-order"])
def test_a_type_that_an_earlier_partition_cannot_take_is_refused(lake: Lake, part: str) -> None:
    """Iceberg's Java library could not read the table: one that is replaced keeps the ids of its columns."""
    field = {"source-id": 1, "transform": "bucket[4]"}
    partitions = {
        "partition-spec": {"spec-id": 0, "fields": [field | {"field-id": 1000, "name": "id_bucket"}]},
        "write-order": {"order-id": 1, "fields": [field | {"direction": "asc", "null-order": "nulls-first"}]},
    }
    table = lake.make(**{part: partitions[part]})
    later = lake.commit(
        table.name,
        {"action": "add-spec", "spec": {"spec-id": 1, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    )
    assert later.status_code == 200, later.text
    for type_, status in (("boolean", 400), ("string", 200)):
        fields = [{"id": 1, "name": "id", "required": False, "type": type_}]
        schema = {"type": "struct", "schema-id": 1, "fields": fields}
        answer = lake.commit(
            table.name,
            {"action": "add-schema", "schema": schema, "last-column-id": 1},
            {"action": "set-current-schema", "schema-id": -1},
        )
        assert answer.status_code == status, answer.text
        if status == 400:
            assert "id, now boolean, is in a partition spec or sort order as bucket[4]" in answer.text


BY_DAY = {"fields": [{"source-id": 1, "field-id": 1000, "transform": "bucket[4]", "name": "at_day"}]}


def columns(*names: str) -> dict[str, Any]:
    fields = [{"id": n, "name": name, "required": False, "type": "long"} for n, name in enumerate(names, 1)]
    return {"type": "struct", "schema-id": 1, "fields": fields}


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("id", "at_day"), "at_day is the name of a column and of a partition field"),
        (("id", "At_Day"), "at_day is the name of a column and of a partition field"),
        (("id", "_file"), "_file is the name of a metadata column"),
        (("id", "_PARTITION"), "_PARTITION is the name of a metadata column"),
        (("id", "b", "B"), "B is the name of another column, too"),
    ],
)
def test_a_column_with_a_name_that_is_taken_is_refused(
    lake: Lake, names: tuple[str, ...], reason: str
) -> None:
    added = {"action": "add-schema", "schema": columns(*names), "last-column-id": len(names)}
    current = {"action": "set-current-schema", "schema-id": -1}
    table = lake.make(partition_spec=BY_DAY)
    answer = lake.commit(table.name, added, current)
    assert (answer.status_code, reason in answer.text) == (400, True), answer.text
    at_once = {"name": f"{table.name}_2", "schema": columns(*names), "partition-spec": BY_DAY}
    answer = lake.client.post(f"{OWN}/tables", json=at_once)
    assert (answer.status_code, reason.split()[0] in answer.text) == (400, True), answer.text


def test_a_partition_field_with_the_name_of_a_column_is_refused(lake: Lake) -> None:
    table = lake.make(schema=columns("id", "at_day"))
    answer = lake.commit(table.name, {"action": "add-spec", "spec": BY_DAY | {"spec-id": 1}})
    assert (answer.status_code, "at_day is the name of a column" in answer.text) == (400, True), answer.text
    own = {"source-id": 1, "field-id": 1000, "transform": "identity", "name": "id"}
    answer = lake.commit(table.name, {"action": "add-spec", "spec": {"spec-id": 1, "fields": [own]}})
    assert answer.status_code == 200, answer.text


def test_a_staged_table_s_folder_is_empty_at_every_location(lake: Lake) -> None:
    """As Trino asks for one: below the location of the namespace, which it has to have."""
    below = lake.client.get(OWN).json()["properties"]["location"]
    body = {
        "name": "staged",
        "schema": SCHEMA,
        "stage-create": True,
        "location": f"{below}/staged-{uuid.uuid4()}",
    }
    location = lake.client.post(f"{OWN}/tables", json=body).json()["metadata"]["location"]
    assert location.rpartition("/")[0] == below
    assert list(object_store.listed(location)) == []
    namespace = {"namespace": ["elsewhere"], "properties": {"location": "s3://elsewhere/x"}}
    assert lake.client.post("/v1/namespaces", json=namespace).status_code == 200
    assert lake.client.get("/v1/namespaces/elsewhere").json()["properties"] == namespace["properties"]


def test_etags_follow_commits(lake: Lake) -> None:
    table = lake.make()
    path = f"{OWN}/tables/{table.name}"
    etag = lake.client.get(path).headers["etag"]
    assert lake.client.get(path, headers={"If-None-Match": etag}).status_code == 304
    changed = lake.commit(table.name, properties(a="b"))
    assert changed.headers["etag"] != etag
    answer = lake.client.get(path, headers={"If-None-Match": changed.headers["etag"]})
    assert answer.status_code == 304


def test_a_dropped_table_can_be_registered_again_and_a_purged_one_cannot(lake: Lake) -> None:
    table = lake.make()
    path = f"{OWN}/tables/{table.name}"
    body = {"name": table.name, "metadata-location": table.at}
    again_ = {"name": f"{table.name}b", "metadata-location": table.at}
    refused = lake.client.post(f"{OWN}/register", json=again_)
    assert refused.status_code == 400
    assert "another table has this folder" in refused.json()["error"]["message"]
    assert lake.client.delete(path).status_code == 204
    assert lake.client.post(f"{OWN}/register", json=body).json()["metadata-location"] == table.at
    assert lake.client.delete(path, params={"purgeRequested": "true"}).status_code == 204
    assert list(object_store.listed(table.location)) == []
    assert lake.client.post(f"{OWN}/register", json=body).status_code == 400
    assert lake.client.head(path).status_code == 404


def test_a_table_is_registered_over(lake: Lake, tenant: Tenant) -> None:
    """Back to an earlier metadata file, or to a dropped table's; never to another's or a view's."""
    table, dropped, other = lake.make(), lake.make(), lake.make()
    lake.commit(table.name, properties(a="b"))
    lake.client.delete(f"{OWN}/tables/{dropped.name}")

    def register(name: str, at: str, **more: Any) -> httpx.Response:
        body = {"name": name, "metadata-location": at, "overwrite": True} | more
        return lake.client.post(f"{OWN}/register", json=body)

    assert register(table.name, table.at, overwrite=False).status_code == 409
    assert register(table.name, table.at).json()["metadata"]["properties"].get("a") is None
    assert lake.load(table.name)["metadata-location"] == table.at
    for name, at_, status in (
        (table.name, other.at, 400),  # another table has this folder
        (table.name, f"{other.location}/metadata/none.metadata.json", 400),
        (f"n{uuid.uuid4().hex[:8]}", other.at, 400),
    ):
        assert register(name, at_).status_code == status, (name, at_)
    assert lake.load(table.name)["metadata-location"] == table.at
    quotas.set_limits(tenant, max_lake_tables=1)
    assert register(table.name, dropped.at).status_code == 200, "it is no table more"
    quotas.set_limits(tenant, max_lake_tables=-1)
    assert lake.load(table.name)["metadata"]["location"] == dropped.location
    assert list(object_store.listed(table.location)), "the files that it had stay"
    view = f"v{uuid.uuid4().hex[:8]}"
    lake.client.post(f"{OWN}/views", json={"name": view, "schema": SCHEMA, "view-version": VIEW})
    assert register(view, table.at).status_code == 409
    won = threading.Event()

    def overtake() -> None:
        if not won.is_set():
            won.set()
            assert lake.commit(table.name, properties(c="d")).status_code == 200

    with at("lake.before_swap", overtake):
        assert register(table.name, table.at).status_code == 200
    assert lake.load(table.name)["metadata-location"] == table.at


def test_a_namespace_is_dropped_when_it_is_empty(lake: Lake) -> None:
    name = f"n{uuid.uuid4().hex[:8]}"
    outer, inner = f"/v1/namespaces/{name}", f"/v1/namespaces/{name}%1Fa%2Eb"
    assert lake.client.post("/v1/namespaces", json={"namespace": [name, "a.b"]}).status_code == 404
    for namespace in ([name], [name, "a.b"]):
        body = {"namespace": namespace, "properties": {"owner": "me"}}
        assert lake.client.post("/v1/namespaces", json=body).status_code == 200
    assert [name] in lake.client.get("/v1/namespaces").json()["namespaces"]
    children = lake.client.get("/v1/namespaces", params={"parent": name}).json()
    assert children == {"namespaces": [[name, "a.b"]]}
    assert lake.client.get(inner).json()["properties"]["owner"] == "me"
    lake.client.post(f"{inner}/tables", json={"name": "t", "schema": SCHEMA})
    for path in (outer, inner):
        refused = lake.client.delete(path)
        assert (refused.status_code, refused.json()["error"]["type"]) == (409, "NamespaceNotEmptyException")
    lake.client.delete(f"{inner}/tables/t")
    for path in (inner, outer):
        assert lake.client.delete(path).status_code == 204
        assert lake.client.head(path).status_code == 404


def test_a_tenant_has_as_many_tables_and_bytes_as_it_may(lake: Lake, tenant: Tenant) -> None:
    table = lake.make()
    count = len(lake.client.get(f"{OWN}/tables").json()["identifiers"])
    try:
        quotas.set_limits(tenant, max_lake_tables=count)
        refused = lake.client.post(f"{OWN}/tables", json={"name": "more", "schema": SCHEMA})
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "ForbiddenException")
        assert f"may have {count}" in refused.json()["error"]["message"]
        quotas.set_limits(tenant, max_lake_tables=-1, max_lake_bytes=1)
        table_quotas.forget()
        refused = lake.commit(table.name, snapshot(f"{table.location}/metadata/x.avro"))
        assert refused.status_code == 403
        assert "bytes and may have 1" in refused.json()["error"]["message"]
        config = lake.load(table.name)["config"]
        store = object_store.file_system_of(
            StoreKey(config["s3.access-key-id"], config["s3.secret-access-key"], config["s3.session-token"])
        )
        with (
            pytest.raises(OSError, match=r"(?i)denied"),
            store.open_output_stream(object_store.key(f"{table.location}/data/x")) as sink,
        ):
            sink.write(b"x")
        assert lake.commit(table.name, properties(a="b")).status_code == 200, "nothing is added by it"
        assert lake.client.delete(f"{OWN}/tables/{table.name}?purgeRequested=true").status_code == 204
    finally:
        quotas.set_limits(tenant, max_lake_tables=-1, max_lake_bytes=-1)
        table_quotas.forget()
    lake.make()
