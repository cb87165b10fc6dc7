"""The REST catalog as any HTTP client sees it: who may ask, what there is, what an error looks like."""

import base64
import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import psycopg
import pytest
from support.catalog import LAKE, READ, Guest
from support.here import ingest_here as ingest
from support.http import Api, LogLine
from support.ingest import event, make_owner

from chaos.waiting import wait
from pulse_api.lake import app, routing
from pulse_pipelines.domain import token
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.lake import catalog as pulse_catalog, metadata
from pulse_pipelines.registry import keys
from pulse_resources import postgres
from pulse_resources.errors import Terminal
from pulse_resources.settings import Settings
from pulse_resources.store_keys import vended

CONFIG = "/v1/config"
NAMESPACE = "/v1/namespaces/events"
TABLES = f"{NAMESPACE}/tables"
ORDERS = f"{TABLES}/orders"
VIEWS = f"{NAMESPACE}/views"
ENDPOINTS = (
    ("GET", CONFIG),
    ("GET", "/v1/namespaces"),
    ("GET", NAMESPACE),
    ("HEAD", NAMESPACE),
    ("GET", TABLES),
    ("GET", ORDERS),
    ("HEAD", ORDERS),
    ("GET", f"{ORDERS}/credentials"),
    ("POST", f"{ORDERS}/metrics"),
)
WRITES = (
    ("POST", "/v1/namespaces"),
    ("DELETE", NAMESPACE),
    ("POST", f"{NAMESPACE}/properties"),
    ("POST", f"{NAMESPACE}/register"),
    ("POST", f"{NAMESPACE}/register-view"),
    ("POST", TABLES),
    ("POST", ORDERS),
    ("DELETE", ORDERS),
    ("POST", "/v1/tables/rename"),
    ("POST", "/v1/transactions/commit"),
    ("POST", VIEWS),
    ("POST", f"{VIEWS}/orders"),
    ("DELETE", f"{VIEWS}/orders"),
    ("POST", "/v1/views/rename"),
)
READ_BACK = (
    ("POST", TABLES),
    ("POST", ORDERS),
    ("POST", f"{NAMESPACE}/register"),
    ("POST", VIEWS),
    ("POST", f"{VIEWS}/orders"),
    ("POST", f"{NAMESPACE}/register-view"),
)
"""Writes whose answers have metadata, most of them credentials too."""
OF_VIEWS = (("GET", VIEWS), ("GET", f"{VIEWS}/orders"), ("HEAD", f"{VIEWS}/orders"))
ALL = (*ENDPOINTS, *OF_VIEWS, *WRITES)
IDS = [f"{method} {path}" for method, path in ALL]


def encoded(name: str) -> str:
    """A name as a part of a path, its dots too: clients would follow them."""
    return quote(name, safe="").replace(".", "%2E")


def ask(client: httpx.Client, method: str, path: str) -> httpx.Response:
    return client.request(method, path, json={} if method == "POST" else None)


def template(path: str) -> str:
    kind = "{view}" if "/views/" in path else "{table}"
    return path.replace("events", "{namespace}").replace("orders", kind)


def test_every_endpoint_is_asked_here() -> None:
    paths = {
        (method, route.path)  # type: ignore[attr-defined]
        for route in app.create_app().routes
        for method in route.methods  # type: ignore[attr-defined]
    }
    known = {(method, template(path)) for method, path in ALL}
    assert paths == known | {("POST", "/v1/oauth/tokens"), ("GET", "/healthz"), ("GET", "/readyz")}


# who may ask ---------------------------------------------------------------------------------


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture(scope="module")
def of_nobody(guests: tuple[Guest, Guest], stack: Settings) -> list[tuple[str, str | None]]:
    """Headers that open nothing, each with what it tries."""
    return list(headers_of_nobody(guests, stack))


def headers_of_nobody(guests: tuple[Guest, Guest], stack: Settings) -> Iterator[tuple[str, str | None]]:
    mine, theirs = guests
    tenant, good = mine.tenant, mine.key.text
    assert stack.lake.token_secret
    secret = stack.lake.token_secret.get_secret_value()
    soon, past = (datetime.now(UTC) + timedelta(seconds=s) for s in (3600, -1))
    mine_id = mine.key.stored.key_id
    real = token.issue(secret, tenant.tenant_id, mine_id, soon)
    yield "none", None
    yield "empty", ""
    yield "garbage", "Bearer garbage"
    yield "another scheme", f"Digest {good}"
    yield "not base64", "Basic %%%"
    yield "not text", "Basic " + base64.b64encode(b"\xff\xfe:").decode()
    yield "another secret", f"Bearer {good[:-4]}{'AAAA' if not good.endswith('AAAA') else 'BBBB'}"
    yield "another tenant's name", f"Bearer {good.replace(tenant.tenant_id.hex, theirs.tenant.tenant_id.hex)}"
    yield "nobody's name", f"Bearer {good.replace(tenant.tenant_id.hex, uuid.uuid4().hex)}"
    yield "an operator's key", f"Bearer {keys.issue_operator_key('lake').text}"
    for kind, expiry in (("revoked", soon), ("expired", past)):
        issued = keys.issue_key(tenant, kind, LAKE, expiry)
        if kind == "revoked":
            keys.revoke_key(tenant, issued.stored.key_id)
        yield kind, f"Bearer {issued.text}"
        yield f"{kind}, as Basic", basic("", issued.text)
        of_it = token.issue(secret, tenant.tenant_id, issued.stored.key_id, soon)
        yield f"token of a {kind} key", f"Bearer {of_it}"
    ended = token.issue(secret, tenant.tenant_id, mine_id, past)
    yield "token that has ended", f"Bearer {ended}"
    yield (
        "token that lasts longer",
        "Bearer " + real.replace(real.split("_")[3], str(int(soon.timestamp()) + 9)),
    )
    of_theirs = real.replace(tenant.tenant_id.hex, theirs.tenant.tenant_id.hex)
    yield "token of another tenant", f"Bearer {of_theirs}"
    yield "token of another key of theirs", "Bearer " + of_theirs.replace(mine_id, theirs.key.stored.key_id)
    yield "token signed by another", "Bearer " + token.issue("x" * 32, tenant.tenant_id, mine_id, soon)


@pytest.mark.parametrize(("method", "path"), ALL, ids=IDS)
def test_a_client_without_a_valid_key_learns_nothing(
    catalog: Api, of_nobody: list[tuple[str, str | None]], method: str, path: str
) -> None:
    answers = set()
    for name, header in of_nobody:
        with catalog.client() as client:
            headers = {} if header is None else {"Authorization": header}
            answer = client.request(method, path, headers=headers, json={} if method == "POST" else None)
        assert answer.status_code == 401, name
        answers.add(answer.content)
    assert len(answers) == 1, "an answer tells keys apart"


@pytest.fixture(scope="module")
def of_scope(guests: tuple[Guest, Guest]) -> dict[KeyScope, str]:
    """A key of each scope alone."""
    return {scope: keys.issue_key(guests[0].tenant, "one", [scope]).text for scope in KeyScope}


@pytest.mark.parametrize("scope", KeyScope)
@pytest.mark.parametrize(("method", "path"), ALL, ids=IDS)
def test_a_key_needs_the_scope(
    catalog: Api, of_scope: dict[KeyScope, str], method: str, path: str, scope: KeyScope
) -> None:
    with catalog.client(of_scope[scope]) as client:
        answer = ask(client, method, path)
    writes = (method, path) in WRITES
    if scope is (KeyScope.LAKE_WRITE if writes else KeyScope.LAKE_READ) and (method, path) not in READ_BACK:
        assert "lacks the scope" not in answer.text
        assert writes or answer.status_code in ((404,) if f"{VIEWS}/" in path else (200, 204)), answer.text
    else:
        assert answer.status_code == 403
        if method != "HEAD":
            assert answer.json()["error"]["type"] == "ForbiddenException"
            assert "lacks the scope" in answer.text


FORMS: dict[str, Callable[[str], tuple[dict[str, str], dict[str, str]]]] = {
    "form": lambda key: ({"client_id": "me", "client_secret": key, "scope": "catalog"}, {}),
    "form, secret alone": lambda key: ({"client_secret": key}, {}),
    "Basic": lambda key: ({"scope": "PRINCIPAL_ROLE:ALL"}, {"Authorization": basic("me", key)}),
    "Basic, user alone": lambda key: ({}, {"Authorization": basic(key, "")}),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_token_is_as_good_as_its_key_and_ends_with_it(catalog: Api, guest: Guest, form: str) -> None:
    issued = keys.issue_key(guest.tenant, "for tokens", READ)
    fields, headers = FORMS[form](issued.text)
    with catalog.client() as client:
        body = fields | {"grant_type": "client_credentials"}
        answer = client.post("/v1/oauth/tokens", data=body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "no-store"
        token = answer.json()
        assert token["token_type"] == "bearer"
        assert token.get("scope") == fields.get("scope")
        assert 0 < token["expires_in"] <= 3600
        assert issued.text not in answer.text
        bearer = {"Authorization": f"Bearer {token['access_token']}"}
        assert client.get(ORDERS, headers=bearer).status_code == 200
        exchanged = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": token["access_token"],
            "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
        }
        again = client.post("/v1/oauth/tokens", data=exchanged, headers=bearer).json()["access_token"]
        keys.revoke_key(guest.tenant, issued.stored.key_id)
        for candidate in (token["access_token"], again):
            header = {"Authorization": f"Bearer {candidate}"}
            # Postgres announces it: what is kept would be kept for half a minute.
            wait(lambda h=header: client.get(ORDERS, headers=h).status_code == 401, "it outlived its key", 5)
        assert client.post("/v1/oauth/tokens", data=exchanged).status_code == 401
        assert client.post("/v1/oauth/tokens", data=body, headers=headers).status_code == 401


def test_a_token_that_has_ended_is_renewed_by_the_key(catalog: Api, guest: Guest, stack: Settings) -> None:
    assert stack.lake.token_secret
    ended = token.issue(
        stack.lake.token_secret.get_secret_value(),
        guest.tenant.tenant_id,
        guest.key.stored.key_id,
        datetime.now(UTC) - timedelta(seconds=1),
    )
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "subject_token": ended}
    with catalog.client() as client:
        assert client.post("/v1/oauth/tokens", data=form).status_code == 401
        renewed = client.post(
            "/v1/oauth/tokens", data=form, headers={"Authorization": basic("", guest.key.text)}
        )
        assert renewed.status_code == 200


def test_a_token_does_not_outlive_an_expiry(catalog: Api, guest: Guest) -> None:
    ends = datetime.now(UTC) + timedelta(seconds=90)
    issued = keys.issue_key(guest.tenant, "short", READ, ends)
    form = {"grant_type": "client_credentials", "client_secret": issued.text}
    with catalog.client() as client:
        assert client.post("/v1/oauth/tokens", data=form).json()["expires_in"] <= 90


@pytest.mark.parametrize(
    ("form", "error", "status"),
    [
        ({"grant_type": "client_credentials"}, "invalid_client", 401),
        ({"grant_type": "client_credentials", "client_secret": "wrong"}, "invalid_client", 401),
        ({"grant_type": "password"}, "unsupported_grant_type", 400),
        ({}, "unsupported_grant_type", 400),
        ({f"field{number}": "x" for number in range(30)}, "invalid_request", 400),
    ],
)
def test_a_wrong_token_request_has_the_error_of_the_specification(
    catalog: Api, form: dict[str, str], error: str, status: int
) -> None:
    with catalog.client() as client:
        answer = client.post("/v1/oauth/tokens", data=form)
    assert (answer.status_code, answer.json()["error"]) == (status, error)


def test_a_body_of_a_stranger_is_not_read(catalog: Api) -> None:
    with catalog.client() as client:
        large = b"x" * (routing.MAX_BYTES + 1)
        assert client.post(f"{ORDERS}/metrics", content=large).status_code == 401
        assert client.post("/v1/oauth/tokens", content=large).status_code == 413


# what there is -------------------------------------------------------------------------------


def test_the_catalog_lists_its_endpoints(engine: httpx.Client, guest: Guest) -> None:
    document = engine.get(CONFIG, params={"warehouse": guest.tenant.slug}).json()
    assert document["defaults"] == document["overrides"] == {}
    assert document["idempotency-key-lifetime"] == "PT1H"
    assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}" in document["endpoints"]
    offered = {endpoint.replace("/{prefix}", "") for endpoint in document["endpoints"]}
    assert offered == {f"{m} {template(p)}" for m, p in ALL if p != CONFIG}


def test_a_warehouse_of_another_tenant_is_answered_like_an_absent_one(
    engine: httpx.Client, guests: tuple[Guest, Guest]
) -> None:
    answers = []
    for name in (guests[1].tenant.slug, "nobody"):
        answer = engine.get(CONFIG, params={"warehouse": name})
        assert answer.status_code == 404
        answers.append(answer.text.replace(name, ""))
    assert answers[0] == answers[1]


def test_a_tenant_sees_its_datasets_by_their_slugs(engine: httpx.Client) -> None:
    assert engine.get("/v1/namespaces").json() == {"namespaces": [["events"]]}
    assert engine.get("/v1/namespaces", params={"parent": "events"}).json() == {"namespaces": []}
    assert engine.get(NAMESPACE).json()["namespace"] == ["events"]
    assert engine.head(NAMESPACE).status_code == 204
    named = [{"namespace": ["events"], "name": "orders"}]
    assert engine.get(TABLES).json() == {"identifiers": named, "next-page-token": None}


def test_names_come_in_pages_on_request(catalog: Api, guests: tuple[Guest, Guest]) -> None:
    with catalog.client(guests[1].key.text) as client:
        names, page = [], ""
        while page is not None:
            answer = client.get(TABLES, params={"pageToken": page, "pageSize": 1}).json()
            names += [identifier["name"] for identifier in answer["identifiers"]]
            page = answer["next-page-token"]
        assert names == ["orders", "secrets"]
        for wrong in ({"pageSize": "0"}, {"pageSize": "x"}, {"pageToken": "%%%"}):
            assert client.get(TABLES, params=wrong).status_code == 400


def test_a_table_comes_with_a_key_to_its_own_files(
    engine: httpx.Client, guests: tuple[Guest, Guest], stack: Settings
) -> None:
    loaded = engine.get(ORDERS).json()
    location = loaded["metadata"]["location"]
    assert loaded["metadata-location"].startswith(f"{location}/metadata/")
    assert len(loaded["metadata"]["snapshots"]) == 2
    (key,) = loaded["storage-credentials"]
    assert key["prefix"] == f"{location}/"
    assert key["config"] == loaded["config"]
    config = loaded["config"]
    assert config["s3.endpoint"] == stack.object_store.endpoint
    assert config["client.refresh-credentials-endpoint"] == "v1/namespaces/events/tables/orders/credentials"
    ends = datetime.fromtimestamp(int(config["s3.session-token-expires-at-ms"]) / 1000, UTC)
    assert timedelta(minutes=5) < ends - datetime.now(UTC) <= timedelta(minutes=15, seconds=5)
    assert engine.get(f"{ORDERS}/credentials").json() == {"storage-credentials": [key]}


def test_a_table_is_sent_again_only_when_something_changed(catalog: Api) -> None:
    owner = make_owner()
    owner.send(event("a"))
    ingest(owner)
    with catalog.client(keys.issue_key(owner.tenant, "etag", READ).text) as client:
        first = client.get(ORDERS)
        etag = first.headers["etag"]
        same = client.get(ORDERS, headers={"If-None-Match": f'"x", {etag}'})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", etag)
        assert (
            client.get(ORDERS, params={"snapshots": "refs"}, headers={"If-None-Match": etag}).status_code
            == 200
        )
        owner.send(event("b"))
        ingest(owner)
        changed = client.get(ORDERS, headers={"If-None-Match": etag})
        assert changed.status_code == 200
        vended.forget()
        keyed = client.get(ORDERS, headers={"If-None-Match": changed.headers["etag"]})
        assert keyed.status_code == 200, "the key that was sent will end"


def test_snapshots_may_be_left_out(engine: httpx.Client) -> None:
    document = engine.get(ORDERS, params={"snapshots": "refs"}).json()["metadata"]
    assert [s["snapshot-id"] for s in document["snapshots"]] == [document["current-snapshot-id"]]
    assert engine.get(ORDERS, params={"snapshots": "some"}).status_code == 400


# what there is not ---------------------------------------------------------------------------

NAMES = (
    "secrets",
    "absent",
    "",
    ".",
    "..",
    "../orders",
    "..%2forders",
    "orders/../orders",
    "orders\x00",
    "ORDERS",
    "orders'--",
    "%",
    "o" * 300,
)


KINDS: dict[str, Callable[[str, str], str]] = {
    "key": lambda key, token: f"Bearer {key}",
    "token": lambda key, token: f"Bearer {token}",
    "Basic": lambda key, token: basic("me", key),
}
"""Headers by which one comes in."""


@pytest.fixture(scope="module")
def way_in(catalog: Api, guests: tuple[Guest, Guest]) -> Callable[[str], dict[str, str]]:
    """The guest's header of a kind."""
    key = guests[0].key.text
    form = {"grant_type": "client_credentials", "client_secret": key}
    with catalog.client() as client:
        token = client.post("/v1/oauth/tokens", data=form).json()["access_token"]
    return lambda kind: {"Authorization": KINDS[kind](key, token)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("method", "path"), [e for e in ENDPOINTS if "orders" in e[1]])
@pytest.mark.sample(39)  # each pair of kind and name once
def test_a_table_of_another_tenant_is_answered_like_an_absent_one(
    catalog: Api,
    guests: tuple[Guest, Guest],
    way_in: Callable[[str], dict[str, str]],
    method: str,
    path: str,
    name: str,
    kind: str,
) -> None:
    """For each form of its name and each kind of client; `metrics` reads no table at all."""
    theirs = guests[1].tenant.namespace
    engine = catalog.client(**way_in(kind))
    assert engine.get(ORDERS).status_code == 200
    for namespace in ("events", theirs, f"events\x1f{theirs}", "..", f"events/../{theirs}"):
        for table in {name, name if namespace == "events" else "orders"}:
            target = path.replace("events", encoded(namespace)).replace("orders", encoded(table))
            answer = ask(engine, method, target)
            if method == "POST" and answer.status_code == 204:
                continue
            assert answer.status_code == 404, target
            if method != "HEAD" and name and answer.json()["error"]["type"] != "NotFoundException":
                shown = namespace.replace("\x1f", ".")
                message = f"Table does not exist: {shown}.{table}"[: 300 + len("Table does not exist: ")]
                assert answer.json() == {
                    "error": {"message": message, "type": "NoSuchTableException", "code": 404}
                }
    engine.close()


@pytest.mark.parametrize("name", ["absent", "..", "pulse", "a\x1fb", "events\x1fa", "EVENTS", "'"])
def test_a_namespace_of_another_tenant_is_answered_like_an_absent_one(
    engine: httpx.Client, guests: tuple[Guest, Guest], name: str
) -> None:
    for namespace in (name, guests[1].tenant.namespace, guests[0].tenant.namespace):
        path = f"/v1/namespaces/{encoded(namespace)}"
        for answer in (
            engine.get(path),
            engine.get(f"{path}/tables"),
            engine.get("/v1/namespaces", params={"parent": namespace}),
        ):
            assert answer.status_code == 404, namespace
            assert answer.json()["error"]["type"] == "NoSuchNamespaceException"
        assert engine.head(path).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("GET", "/v1/nothing", "NotFoundException"),
        ("GET", "/", "NotFoundException"),
        ("PUT", ORDERS, "UnsupportedOperationException"),
        ("DELETE", ORDERS, "ForbiddenException"),
        ("POST", ORDERS, "ForbiddenException"),
        ("GET", "/v1/namespaces/%ff", "BadRequestException"),
    ],
)
def test_every_error_is_the_specification_s(engine: httpx.Client, method: str, path: str, kind: str) -> None:
    answer = ask(engine, method, path)
    assert answer.json()["error"] == {"type": kind, "code": answer.status_code} | {
        "message": answer.json()["error"]["message"]
    }
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("error", "connection"), [(RuntimeError("a secret"), "close"), (Terminal("damaged"), None)]
)
def test_an_error_of_the_catalog_itself_has_the_request_s_id(
    engine: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    log_line: LogLine,
    error: Exception,
    connection: str | None,
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(pulse_catalog, "namespaces", broken)
    answer = engine.get("/v1/namespaces", headers={"X-Request-Id": "mine"})
    assert answer.status_code == answer.json()["error"]["code"] == 500
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert answer.headers.get("connection") == connection, "the server closes it after what nobody foresaw"
    assert "secret" not in answer.text
    assert log_line(f"{type(error).__name__}: {error}")["request_id"] == "mine"


def test_a_wrong_row_of_the_catalog_leads_to_no_foreign_file(
    catalog: Api, guests: tuple[Guest, Guest]
) -> None:
    """Whatever the row says, what is read is the tenant's own, by a key that opens nothing else."""
    mine, theirs = guests
    with catalog.client(theirs.key.text) as client:
        foreign = client.get(ORDERS).json()["metadata-location"]
    for trick in (
        foreign,
        foreign.replace(theirs.tenant.namespace, f"{mine.tenant.namespace}/../{theirs.tenant.namespace}"),
    ):
        with pytest.raises(Terminal, match="not among its tenant's files"):
            metadata.read(mine.tenant, trick)
    store = metadata.file_system(mine.tenant, vended.Mode.WRITE)
    with pytest.raises(OSError, match=r"(?i)access.?denied"):
        store.open_input_file(foreign.removeprefix("s3://"))


def test_the_role_writes_nothing_of_pulse_s(guest: Guest) -> None:
    for statement in (
        "UPDATE api_keys SET revoked_at = NULL",
        "SELECT 1 FROM pdm_datasets",
        "SELECT 1 FROM operator_keys",
        "INSERT INTO iceberg_catalog.iceberg_tables VALUES ('pulse', %(namespace)s, 'x', 's3://x')",
        "INSERT INTO iceberg_catalog.iceberg_namespace_properties VALUES ('pulse', %(namespace)s, 'x', 'y')",
    ):
        with (
            pytest.raises(psycopg.errors.InsufficientPrivilege),
            postgres.tenant_transaction("pulse_lake", guest.tenant.tenant_id) as connection,
        ):
            connection.execute(statement, {"namespace": guest.tenant.namespace})
    for statement in (
        "DELETE FROM iceberg_catalog.iceberg_tables WHERE table_namespace = %s",
        "UPDATE iceberg_catalog.iceberg_tables SET metadata_location = 's3://x' WHERE table_namespace = %s",
    ):
        with postgres.tenant_transaction("pulse_lake", guest.tenant.tenant_id) as connection:
            assert connection.execute(statement, [guest.tenant.namespace]).rowcount == 0


def test_nothing_is_logged_that_opens_anything(engine: httpx.Client, guest: Guest, capfdbinary: Any) -> None:
    config, logged = engine.get(ORDERS).json()["config"], ""

    def written() -> bool:
        """The line comes after the answer."""
        nonlocal logged
        logged += capfdbinary.readouterr().out.decode()
        return "\n" in logged

    wait(written, "nothing was logged")
    lines = [json.loads(line) for line in logged.splitlines() if line.startswith("{")]
    assert {line["route"] for line in lines} == {"/v1/namespaces/{namespace}/tables/{table}"}
    for secret in (guest.key.text, config["s3.secret-access-key"], config["s3.session-token"]):
        assert secret not in logged


def test_the_service_reports_its_health_and_readiness(catalog: Api) -> None:
    with catalog.client() as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").json() == {"status": "ready"}
