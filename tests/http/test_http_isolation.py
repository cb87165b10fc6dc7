"""Every endpoint × two tenants × every scope × keys that are not in force.

The endpoints are taken from the OpenAPI document: one that is not in `NEEDS` fails the test until its
decision is written down.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from psycopg.types.json import Jsonb
from support.entities import entity, make_entities
from support.here import ingest_here as ingest
from support.http import Api, Caller, sample
from support.ingest import Owner, event, make_owner

from chaos.sources import SOURCE, database
from chaos.surroundings import superuser
from chaos.waiting import wait
from pulse_api.http import views
from pulse_api.http.app import create_app
from pulse_pipelines import registry
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.domain.windows import Windows
from pulse_pipelines.moves import record
from pulse_pipelines.registry import keys
from pulse_pipelines.registry.tenant_view import CHANGES
from pulse_pipelines.sql import audit
from pulse_pipelines.states import declared_states
from pulse_resources import postgres
from pulse_resources.errors import Forbidden, UserError
from pulse_resources.settings import Settings

C, R, M, *_ = KeyScope
OPERATOR, ANYONE = "operator", "anyone"
NEEDS: dict[tuple[str, str], KeyScope | str] = {
    ("POST", "/v1/collect"): C,
    ("GET", "/v1/schemas"): R,
    ("POST", "/v1/schemas"): M,
    ("POST", "/v1/schemas/check"): R,
    ("POST", "/v1/schemas/try"): R,
    ("GET", "/v1/schemas/{name}/{version}"): R,
    ("GET", "/v1/datasets"): R,
    ("POST", "/v1/datasets"): M,
    ("GET", "/v1/datasets/{slug}"): R,
    ("DELETE", "/v1/datasets/{slug}"): M,
    ("POST", "/v1/datasets/{slug}/schema"): M,
    ("GET", "/v1/datasets/{slug}/moves"): R,
    ("GET", "/v1/datasets/{slug}/moves/{move_id}"): R,
    ("GET", "/v1/datasets/{slug}/preview"): R,
    ("GET", "/v1/datasets/{slug}/snapshots"): R,
    ("GET", "/v1/datasets/{slug}/entities"): R,
    ("POST", "/v1/datasets/{slug}/entities"): C,
    ("GET", "/v1/datasets/{slug}/syncs"): R,
    ("PUT", "/v1/datasets/{slug}/syncs/limit"): M,
    ("POST", "/v1/datasets/{slug}/syncs/{sync_id}/commit"): M,
    ("POST", "/v1/datasets/{slug}/syncs/{sync_id}/rollback"): M,
    ("GET", "/v1/datasets/{slug}/indexes"): R,
    ("POST", "/v1/datasets/{slug}/indexes"): M,
    ("DELETE", "/v1/datasets/{slug}/indexes/{index_id}"): M,
    ("GET", "/v1/datasets/{slug}/state"): R,
    ("GET", "/v1/datasets/{slug}/state/{key}"): R,
    ("PUT", "/v1/datasets/{slug}/state"): M,
    ("DELETE", "/v1/datasets/{slug}/state"): M,
    ("GET", "/v1/pipes"): R,
    ("POST", "/v1/pipes"): M,
    ("GET", "/v1/pipes/{pipe}"): R,
    ("DELETE", "/v1/pipes/{pipe}"): M,
    ("POST", "/v1/pipes/{pipe}/run"): M,
    ("POST", "/v1/pipes/{pipe}/pause"): M,
    ("POST", "/v1/pipes/{pipe}/resume"): M,
    ("POST", "/v1/pipes/{pipe}/reset"): M,
    ("GET", "/v1/datasets/{slug}/summary"): R,
    ("GET", "/v1/events/{event_id}"): R,
    ("GET", "/v1/offsets/{partition}/{offset}"): R,
    ("GET", "/v1/freshness"): R,
    ("GET", "/v1/hours"): R,
    ("GET", "/v1/lake/connect"): R,
    ("GET", "/v1/dead-letters"): R,
    ("GET", "/v1/dead-letters/summary"): R,
    ("GET", "/v1/dead-letters/groups"): R,
    ("GET", "/v1/dead-letters/{letter_id}"): R,
    ("POST", "/v1/dead-letters/replay"): M,
    ("POST", "/v1/dead-letters/discard"): M,
    ("POST", "/v1/sql"): R,
    ("GET", "/v1/sql"): R,
    ("DELETE", "/v1/sql/{query_id}"): R,
    ("POST", "/v1/ask"): R,
    ("GET", "/v1/ask"): R,
    ("GET", "/v1/datasets/{slug}/meaning"): R,
    ("GET", "/v1/usage"): R,
    ("GET", "/v1/keys"): M,
    ("GET", "/v1/keys/current"): R,
    ("POST", "/v1/keys"): M,
    ("POST", "/v1/keys/{key_id}/rotate"): M,
    ("DELETE", "/v1/keys/{key_id}"): M,
    ("POST", "/v1/tenants"): OPERATOR,
    ("GET", "/v1/tenants"): OPERATOR,
    ("POST", "/v1/tenants/{tenant}/keys"): OPERATOR,
    ("GET", "/v1/tenants/{tenant}/limits"): OPERATOR,
    ("PUT", "/v1/tenants/{tenant}/limits"): OPERATOR,
    ("GET", "/healthz"): ANYONE,
    ("GET", "/readyz"): ANYONE,
    ("GET", "/metrics"): OPERATOR,
}
HELD = """
INSERT INTO entity_syncs (tenant_id, dataset_id, is_full, sequence_id, request_id, starts, state)
SELECT tenant_id, dataset_id, true, 'any', 'any', '{}', 'held' FROM entity_logs WHERE tenant_id = %s
RETURNING sync_id
"""
PIPE = """
INSERT INTO pipes (tenant_id, pipe, dataset_id, definition)
SELECT tenant_id, %s, dataset_id, %s FROM pdm_datasets WHERE tenant_id = %s AND slug = %s
"""
OF_THE_LAKE = {
    endpoint
    for endpoint in NEEDS
    if endpoint[1].startswith(("/v1/sql", "/v1/ask", "/v1/lake")) or "meaning" in endpoint[1]
}
"""Which keys for engines open, too."""
OF_ENTITIES = re.compile("/(entities|syncs|indexes)")
ENDPOINTS = sorted(NEEDS)
TENANTS = [endpoint for endpoint in ENDPOINTS if isinstance(NEEDS[endpoint], KeyScope)]


@dataclass(frozen=True)
class World:
    """Two tenants with a dataset, a dead letter and keys each; requests are made by `a`."""

    a: Owner
    b: Owner
    keys_a: dict[str, str]
    key_ids: dict[str, str]
    moves: dict[str, str]
    syncs: dict[str, tuple[int, int]]
    """Held."""

    def path(self, template: str, owner: Owner) -> str:
        """The path of a thing of this tenant."""
        of_events, of_entities = ("orders", "things") if owner is self.a else ("secrets", "secrets_kept")
        chosen = "?dataset={slug}&day=2026-11-19" if template == "/v1/schemas/try" else ""
        return (template + chosen).format(
            slug=of_entities if OF_ENTITIES.search(template) else of_events,
            name="orders" if owner is self.a else "secrets",
            version=1,
            letter_id="0-1",
            partition=0,
            offset=0,
            event_id="a" if owner is self.a else "b",
            key_id=self.key_ids[owner.tenant.slug],
            move_id=self.moves[owner.tenant.slug],
            query_id=f"of-{owner.tenant.slug}",
            pipe="planes" if owner is self.a else "secrets_pipe",
            index_id=1,
            key="DE",
            sync_id=self.syncs[owner.tenant.slug][template.endswith("commit")],
            tenant=owner.tenant.slug,
        )

    def body(self, method: str, template: str) -> dict[str, Any] | None:
        slug = f"d{uuid.uuid4().hex[:8]}"
        bodies: dict[str, dict[str, Any]] = {
            "/v1/collect": sample(),
            "/v1/schemas": {"name": "fresh", "fields": {"a": "string"}},
            "/v1/schemas/check": {"name": "fresh", "fields": {"a": "string"}},
            "/v1/schemas/try": {"name": "fresh", "fields": {"a": "string"}},
            "/v1/datasets": {"slug": slug, "schema_uri": f"pulse://{self.a.tenant.slug}/orders/1"},
            "/v1/datasets/{slug}/schema": {"schema_uri": f"pulse://{self.a.tenant.slug}/orders/1"},
            "/v1/datasets/{slug}/entities": {"_id": "a"},
            "/v1/datasets/{slug}/indexes": {"expression": "name"},
            "/v1/datasets/{slug}/state": {"latest_by": "country"},
            "/v1/datasets/{slug}/syncs/limit": {"deletes_most": 0.5},
            "/v1/datasets/{slug}/syncs/{sync_id}/commit": {},
            "/v1/datasets/{slug}/syncs/{sync_id}/rollback": {},
            "/v1/pipes": {"pipe": slug, "source": SOURCE, "table": "planes", "dataset": slug},
            "/v1/pipes/{pipe}/run": {"full": True},
            "/v1/pipes/{pipe}/pause": {},
            "/v1/pipes/{pipe}/resume": {},
            "/v1/pipes/{pipe}/reset": {},
            "/v1/dead-letters/replay": {"ids": ["0-1"], "dry_run": True},
            "/v1/dead-letters/discard": {"ids": ["0-2"]},
            "/v1/sql": {"sql": "SELECT count(*) AS n FROM orders"},
            "/v1/ask": {"question": "How many orders are there?"},
            "/v1/keys": {"name": "x", "scopes": ["manage"]},
            "/v1/keys/{key_id}/rotate": {"overlap_seconds": 60},
            "/v1/tenants": {"slug": slug},
            "/v1/tenants/{tenant}/keys": {"name": "x", "scopes": ["read"]},
            "/v1/tenants/{tenant}/limits": {},
        }
        return None if method in ("GET", "DELETE") else bodies[template]


@pytest.fixture(scope="module")
def world(stack: Settings) -> Iterator[World]:
    a, b = make_owner(), make_owner()
    uri = registry.publish_schema(b.tenant, "secrets", json.dumps({"type": "object"})).schema_uri
    registry.create_dataset(b.tenant, "secrets", uri)
    declared_states.declare(a.tenant, "orders", "country", windows=Windows(("count",), 600))
    make_entities(a, "things")
    make_entities(b, "secrets_kept")
    a.send(event("a"), b"not json", b"nor this", entity("a", slug="things"))
    b.send(event("b"), b"secret payload", b"another secret", entity("b", slug="secrets_kept"))
    ingest(a, b)
    issued = {scope.value: keys.issue_key(a.tenant, scope.value, [scope]).text for scope in KeyScope}
    spare = {owner.tenant.slug: keys.issue_key(owner.tenant, "spare", [M]).stored.key_id for owner in (a, b)}
    for owner in (a, b):
        audit.begin(owner.tenant, f"of-{owner.tenant.slug}", None, "SELECT 1")
    ended = {a.tenant.slug: ended_move(a.tenant, "orders"), b.tenant.slug: ended_move(b.tenant, "secrets")}
    syncs = {owner.tenant.slug: (hold_sync(owner.tenant), hold_sync(owner.tenant)) for owner in (a, b)}
    for owner, pipe, slug in ((a, "planes", "things"), (b, "secrets_pipe", "secrets_kept")):
        create_pipe(owner.tenant, pipe, slug)
    with database(a.tenant) as source:
        source.execute("CREATE TABLE planes (tail text PRIMARY KEY)")
        yield World(a, b, issued, spare, ended, syncs)


def create_pipe(tenant: Tenant, name: str, slug: str) -> None:
    """A pipe of a dataset that there is."""
    options = Jsonb({"pipe": name, "source": SOURCE, "table": name, "dataset": slug})
    with superuser() as connection:
        connection.execute(PIPE, [name, options, tenant.tenant_id, slug])


def hold_sync(tenant: Tenant) -> int:
    """The number of a sync that a person has to decide about."""
    with superuser() as connection:
        return int(connection.execute(HELD, [tenant.tenant_id]).fetchone()[0])


def ended_move(tenant: Tenant, slug: str) -> str:
    """The id of a move of this dataset that has failed."""
    dataset = registry.find_dataset(tenant, slug)
    move = record.plan(tenant, dataset, dataset.schema_uri)
    with superuser() as connection:
        connection.execute("UPDATE dataset_moves SET state = 'failed' WHERE move_id = %s", [move.move_id])
    return move.move_id


def send(api: Api, world: World, endpoint: tuple[str, str], key: str | None, owner: Owner) -> httpx.Response:
    method, template = endpoint
    with api.client(key) as client:
        return client.request(method, world.path(template, owner), json=world.body(method, template))


def test_every_endpoint_has_a_decision() -> None:
    paths = create_app().openapi()["paths"]
    assert {(m.upper(), path) for path, methods in paths.items() for m in methods} == NEEDS.keys()


def bad_keys(world: World) -> Iterator[tuple[str, str | None]]:
    """Keys of tenant A that are none, or no longer are."""
    tenant = world.a.tenant
    good = world.keys_a["manage"]
    yield "none", None
    yield "garbage", "garbage"
    yield "another secret", good[:-4] + ("AAAA" if not good.endswith("AAAA") else "BBBB")
    head, _, secret = good.removeprefix("pulse_").partition("_")
    yield "another tenant's name", f"pulse_{world.b.tenant.tenant_id.hex}_{secret}"
    yield "no tenant's name", f"pulse_{uuid.uuid4().hex}_{secret}"
    yield "an operator's name", f"pulse_operator_{secret}"
    yield "upper case", f"pulse_{head.upper()}_{secret}"
    revoked = keys.issue_key(tenant, "revoked", list(KeyScope))
    keys.revoke_key(tenant, revoked.stored.key_id)
    yield "revoked", revoked.text
    past = datetime.now(UTC) - timedelta(seconds=1)
    yield "expired", keys.issue_key(tenant, "expired", list(KeyScope), past).text
    rotated = keys.issue_key(tenant, "rotated", list(KeyScope))
    keys.rotate_key(tenant, rotated.stored.key_id, overlap_s=0)
    yield "rotated", rotated.text


@pytest.mark.sample(20)
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=" ".join)
def test_a_key_that_is_not_in_force_opens_nothing(api: Api, world: World, endpoint: tuple[str, str]) -> None:
    answers = {}
    for name, key in bad_keys(world):
        answer = send(api, world, endpoint, key, world.a)
        if NEEDS[endpoint] == ANYONE:
            assert answer.status_code == 200, name
            continue
        assert answer.status_code == 401, name
        assert answer.headers["www-authenticate"] == "Bearer"
        answers[name] = {k: v for k, v in answer.json().items() if k != "request_id"}
    assert len({json.dumps(document) for document in answers.values()}) <= 1, "an answer tells keys apart"


@pytest.mark.parametrize("scope", list(KeyScope))
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=" ".join)
def test_a_key_opens_only_endpoints_of_its_scope(
    api: Api, world: World, endpoint: tuple[str, str], scope: KeyScope
) -> None:
    if endpoint[0] == "DELETE" and NEEDS[endpoint] == scope:
        return  # what it would delete is needed: see the tests of each resource
    answer = send(api, world, endpoint, world.keys_a[scope.value], world.a)
    need = NEEDS[endpoint]
    if need in (scope, ANYONE) or (endpoint in OF_THE_LAKE and scope is KeyScope.LAKE_READ):
        assert answer.status_code in (200, 201, 202), answer.text
    else:
        assert answer.status_code == (401 if need == OPERATOR else 403), answer.text
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("endpoint", [e for e in TENANTS if "{" in e[1]], ids=" ".join)
def test_an_object_of_another_tenant_is_answered_like_an_absent_one(
    api: Api, world: World, endpoint: tuple[str, str]
) -> None:
    key = world.keys_a[str(NEEDS[endpoint])]
    if endpoint[1] in ("/v1/dead-letters/{letter_id}", "/v1/offsets/{partition}/{offset}"):
        pytest.skip("the same position exists in every tenant: see the next test")
    foreign = send(api, world, endpoint, key, world.b)
    method, template = endpoint
    absent_path = template.format(
        slug="absent",
        name="absent",
        version=1,
        event_id="absent",
        key_id="0" * 12,
        tenant="absent",
        move_id="absent",
        query_id="absent",
        pipe="absent",
        sync_id=1,
        index_id=1,
        key="DE",
    )
    with api.client(key) as client:
        absent = client.request(method, absent_path, json=world.body(method, template))
    assert foreign.status_code == absent.status_code == 404
    assert _shape(foreign) == _shape(absent)


def _shape(answer: httpx.Response) -> dict[str, str]:
    """A problem without what the caller itself has said."""
    document = {k: v for k, v in answer.json().items() if k != "request_id"}
    values, members = ("absent", "secrets", "000000000000"), ("event", "key", "move", "query_id", "sync")
    return {
        k: "..." if any(word in str(v) for word in values) or k in members else v for k, v in document.items()
    }


def test_nothing_of_another_tenant_is_in_any_answer(api: Api, world: World) -> None:
    foreign = (world.b.tenant.slug, str(world.b.tenant.tenant_id), world.b.tenant.tenant_id.hex, "secret")
    for endpoint in TENANTS:
        if endpoint[0] != "GET":
            continue
        answer = send(api, world, endpoint, world.keys_a[str(NEEDS[endpoint])], world.a)
        assert answer.status_code == 200, answer.text
        for word in foreign:
            assert word not in answer.text, f"{endpoint} tells of another tenant"


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "b"},
        {"headers": {"X-Tenant": "b", "X-Tenant-Id": "b", "X-Forwarded-User": "b"}},
        {"params": {"tenant": "b", "tenant_id": "b", "app.tenant": "b"}},
    ],
)
def test_nothing_but_the_key_chooses_a_tenant(api: Api, world: World, change: dict[str, Any]) -> None:
    """In the body and in parameters it is refused; in headers it is nothing."""
    name = world.b.tenant.slug
    with api.client(world.keys_a["collect"]) as client:
        if "tenant" in change:
            answer = client.post("/v1/collect", json=sample() | {"tenant": name})
            assert answer.json()["verdicts"][0]["reason"] == "wrong_tenant"
            return
    with api.client(world.keys_a["read"]) as client:
        filled = {part: dict.fromkeys(values, name) for part, values in change.items()}
        answer = client.get("/v1/datasets", **filled)
        if "params" in change:
            assert answer.status_code == 422
        else:
            assert [dataset["slug"] for dataset in answer.json()["datasets"]][-1] != "secrets"
        assert "secrets" not in answer.text


def test_a_revoked_key_is_refused_at_once(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller()
    for _ in range(3):  # it is in the cache
        assert caller.http.get("/v1/usage").status_code == 200
    assert caller.http.delete(f"/v1/keys/{caller.key.stored.key_id}").status_code == 200
    statuses = {caller.http.get("/v1/usage").status_code for _ in range(5)}
    assert statuses == {401}


def test_rotation_overlaps(new_caller: Callable[..., Caller], api: Api) -> None:
    caller = new_caller()
    answer = caller.http.post(f"/v1/keys/{caller.key.stored.key_id}/rotate", json={"overlap_seconds": 3600})
    assert answer.status_code == 201
    with api.client(answer.json()["key"]) as fresh:
        assert fresh.get("/v1/usage").status_code == 200
        assert caller.http.get("/v1/usage").status_code == 200, "the old key still works"
        listed = {key["key_id"]: key for key in fresh.get("/v1/keys").json()["keys"]}
    assert listed[caller.key.stored.key_id]["expires_at"] is not None
    assert sorted(answer.json()["scopes"]) == sorted(scope.value for scope in KeyScope)


def test_a_key_cannot_issue_keys_with_more_rights_than_its_own(
    new_caller: Callable[..., Caller], api: Api
) -> None:
    ends = datetime.now(UTC) + timedelta(days=2)
    manager = new_caller([M])
    for scopes in (["collect"], ["manage", "read"]):
        refused = manager.http.post("/v1/keys", json={"name": "x", "scopes": scopes})
        assert (refused.status_code, refused.json()["type"]) == (403, "urn:pulse:problem:forbidden")
        assert scopes[-1] in refused.json()["detail"]
    other = keys.issue_key(manager.owner.tenant, "reads", [R]).stored.key_id
    assert manager.http.post(f"/v1/keys/{other}/rotate", json={}).status_code == 403
    tenant = manager.owner.tenant
    short = keys.issue_key(tenant, "short", [M], ends)
    with api.client(short.text) as client:
        for answer in (
            client.post("/v1/keys", json={"name": "x", "scopes": ["manage"]}),
            client.post("/v1/keys", json={"name": "x", "scopes": ["manage"], "expires_in_days": 900}),
            client.post(f"/v1/keys/{manager.key.stored.key_id}/rotate", json={}),
            client.post(f"/v1/keys/{short.stored.key_id}/rotate", json={}),
        ):
            assert answer.status_code == 201, answer.text
            assert datetime.fromisoformat(answer.json()["expires_at"]) <= ends
            assert answer.json()["issued_by"] == short.stored.key_id
    sooner = keys.issue_key(tenant, "x", [M], datetime.now(UTC) + timedelta(hours=1), short.stored.key_id)
    assert sooner.stored.expires_at
    assert sooner.stored.expires_at < datetime.now(UTC) + timedelta(hours=2)


def test_revoking_a_key_revokes_the_keys_that_it_issued(new_caller: Callable[..., Caller], api: Api) -> None:
    caller = new_caller()
    bystander = keys.issue_key(caller.owner.tenant, "other", [R]).text

    def issue(by: str) -> tuple[str, str]:
        with api.client(by) as client:
            answer = client.post("/v1/keys", json={"name": "x", "scopes": ["manage", "read"]}).json()
            return answer["key"], answer["key_id"]

    def opens(text: str) -> bool:
        with api.client(text) as client:
            return client.get("/v1/usage").status_code == 200

    child, child_id = issue(caller.key.text)
    grandchild, grandchild_id = issue(child)
    rotated = caller.http.post(f"/v1/keys/{grandchild_id}/rotate", json={}).json()
    listed = {key["key_id"]: key["issued_by"] for key in caller.http.get("/v1/keys").json()["keys"]}
    root_id = caller.key.stored.key_id
    assert (listed[root_id], listed[child_id], listed[grandchild_id]) == (None, root_id, child_id)
    assert listed[rotated["key_id"]] == root_id
    with api.client(grandchild) as client:
        refused = client.delete(f"/v1/keys/{child_id}")
        assert (refused.status_code, opens(child)) == (409, True), "it would end with it"
    assert caller.http.delete(f"/v1/keys/{child_id}").json()["revoked_with_it"] == [grandchild_id]
    opened = [opens(key) for key in (child, grandchild, rotated["key"], caller.key.text)]
    assert opened == [False, False, True, True]
    assert caller.http.delete(f"/v1/keys/{root_id}").json()["revoked_with_it"] == [rotated["key_id"]]
    assert [opens(key) for key in (rotated["key"], caller.key.text, bystander)] == [False, False, True]


def test_no_key_is_issued_by_one_that_is_being_revoked(new_caller: Callable[..., Caller]) -> None:
    """However the two meet: what was issued before is taken along, and nothing is issued after."""
    tenant = new_caller().owner.tenant
    for _ in range(5):
        root = keys.issue_key(tenant, "root", [M]).stored.key_id

        def issue(root: str = root) -> bool:
            try:
                keys.issue_key(tenant, "child", [M], issuer=root)
            except Forbidden:
                return False
            return True

        with ThreadPoolExecutor(5) as pool:
            issued = [pool.submit(issue) for _ in range(4)]
            revoked = pool.submit(keys.revoke_key, tenant, root)
            count = sum(future.result() for future in issued)
        assert len(revoked.result().with_it) == count
        descendants = [key for key in keys.list_keys(tenant) if key.issued_by == root]
        assert len(descendants) == count
        assert all(key.revoked_at for key in descendants)


def test_a_wrong_secret_costs_as_many_reads_as_an_unknown_key(
    api: Api, new_caller: Callable[..., Caller]
) -> None:
    """Both are looked up once more where keys are stored: time does not tell which ids there are."""
    caller = new_caller()
    announced()
    known = caller.key.text[:-43] + "A" * 43
    unknown = f"pulse_{caller.owner.tenant.tenant_id.hex}_{'0' * 12}_{'A' * 43}"
    reads = dict[str, list[int]]()
    for wrong in (known, unknown) * 3:  # on a slow machine, what is cached may expire meanwhile
        assert caller.http.get("/v1/usage").status_code == 200  # it is in the cache
        with count_reads() as read, api.client(wrong) as client:
            assert client.get("/v1/usage").status_code == 401
        reads.setdefault(wrong, []).append(len(read))
    assert {wrong: min(counts) for wrong, counts in reads.items()} == {known: 1, unknown: 1}


def announced() -> None:
    """Wait until the server in this process has heard of all changes so far: Postgres keeps their order."""
    announcements: list[str | None] = []
    original = views.Views.forget

    def recorded(self: views.Views, tenant: str | None) -> None:
        original(self, tenant)
        announcements.append(tenant)

    last = str(uuid.uuid4())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views.Views, "forget", recorded)
        with postgres.transaction("pulse_pipeline") as connection:
            connection.execute("SELECT pg_notify(%s, %s)", [CHANGES, last])
        wait(lambda: last in announcements, "no change was announced")


@contextmanager
def count_reads() -> Iterator[list[object]]:
    """Every look at a tenant, while the block runs, in the server in this process."""
    read: list[object] = []
    original = views.load_view

    def counted(tenant_id: uuid.UUID) -> object:
        read.append(tenant_id)
        return original(tenant_id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "load_view", counted)
        yield read


@pytest.mark.parametrize("name", ["a\u202eb", "a\u2066b", "a\x9bb", "a\x1b[2Jb", "a\nb", "a\u2028b"])
def test_names_steer_nothing(name: str, caller: Caller, operator: httpx.Client) -> None:
    uri = f"pulse://{caller.owner.tenant.slug}/orders/1"
    slug = f"d{uuid.uuid4().hex[:8]}"
    for answer in (
        caller.http.post("/v1/keys", json={"name": name, "scopes": ["read"]}),
        caller.http.post("/v1/datasets", json={"slug": slug, "name": name, "schema_uri": uri}),
        caller.http.post("/v1/datasets", json={"slug": f"d{name}", "schema_uri": uri}),
        operator.post("/v1/tenants", json={"slug": slug, "name": name}),
    ):
        assert answer.status_code == 422, answer.text
    for create in (
        lambda: keys.issue_key(caller.owner.tenant, name, [R]),
        lambda: keys.issue_operator_key(name),
        lambda: registry.create_tenant(slug, name),
        lambda: registry.create_dataset(caller.owner.tenant, slug, uri, name),
    ):
        with pytest.raises(UserError, match="is not a valid name"):
            create()


def test_names_are_of_every_language(caller: Caller) -> None:
    for name in ("Köln – «Hafen» #1", "متجر", "می\u200cخواهم", "店舗", "👩\u200d🔧 build"):  # noqa: RUF001
        assert caller.http.post("/v1/keys", json={"name": name, "scopes": ["read"]}).json()["name"] == name


def test_a_key_is_shown_once_and_stored_hashed(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller()
    answer = caller.http.post("/v1/keys", json={"name": "shown", "scopes": ["read"]})
    key = answer.json()["key"]
    secret = key.rpartition("_")[2] if key.count("_") == 3 else key.split("_", 3)[3]
    assert secret not in caller.http.get("/v1/keys").text
    with postgres.tenant_transaction("pulse_api", caller.owner.tenant.tenant_id) as connection:
        rows = connection.execute("SELECT to_jsonb(k)::text FROM api_keys k").fetchall()
    assert not [row for (row,) in rows if secret in row]


def test_when_the_announcements_stop_nothing_is_served_from_the_cache(
    new_caller: Callable[..., Caller],
) -> None:
    """The connection that listens is killed again and again: a revoked key is refused all the same."""
    caller = new_caller()
    assert caller.http.get("/v1/usage").status_code == 200
    kill = """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE application_name = 'pulse-changes' AND usename = current_user
    """
    with postgres.transaction("pulse_api") as connection:
        connection.execute(kill)
    keys.revoke_key(caller.owner.tenant, caller.key.stored.key_id)
    # Postgres ends a session a moment after it was told to; what is kept would be kept for half a minute.
    wait(lambda: caller.http.get("/v1/usage").status_code == 401, "a revoked key is served", 5)
