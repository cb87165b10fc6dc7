"""What holds for the whole API: problem documents, request ids, logs, CORS, quotas of datasets."""

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import date
from types import SimpleNamespace
from typing import Any

import httpx
import psycopg
import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import BaseModel, TypeAdapter, ValidationError
from support.http import Api, Caller, LogLine, sample, served
from support.ingest import Owner

from chaos.surroundings import with_settings
from chaos.waiting import PATIENCE_S
from pulse_api.http import keyring, logs, problems, routing
from pulse_api.http.app import create_app
from pulse_api.http.routes import datasets as routes_of_datasets
from pulse_api.http.routes.dead_letters import Chosen, Replayed
from pulse_pipelines.registry import intake, keys, quotas
from pulse_resources import postgres
from pulse_resources.errors import NotFound
from pulse_resources.settings import load_settings
from pulse_resources.settings.service_settings import Role


@pytest.mark.parametrize(
    "path", ["/v1/events/caf%E9", "/v1/datasets/orders/state?after=%ff", "/v1/%ED%A0%80"]
)
def test_an_address_that_is_not_utf_8_is_refused(caller: Caller, path: str) -> None:
    answer = caller.http.get(path)
    assert (answer.status_code, answer.json()["detail"]) == (400, "the address is not UTF-8")
    assert answer.headers["x-request-id"] == answer.json()["request_id"]
    assert caller.http.get("/v1/events/caf%C3%A9").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("PATCH", "/v1/datasets/orders", 405),
        ("GET", "/v1/collect", 405),
        ("GET", "/v1/datasets/NOT-A-SLUG", 422),
        ("GET", "/v1/datasets/absent", 404),
    ],
)
def test_every_error_is_a_problem_document(caller: Caller, method: str, path: str, status: int) -> None:
    answer = caller.http.request(method, path, headers={"X-Request-Id": "from-the-caller"})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == status
    assert document["type"].startswith("urn:pulse:problem:")
    assert document["request_id"] == answer.headers["x-request-id"] == "from-the-caller"
    if status == 405:
        assert "PATCH" not in answer.headers["allow"]
        assert answer.headers["allow"] == ("POST" if path == "/v1/collect" else "DELETE, GET")


def test_the_address_in_a_browser_leads_to_the_console() -> None:
    answer = TestClient(create_app()).get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/console")


LINES = b'{"event_id": "1"}\n{"event_id": "2"}\n'
PROBLEMS: dict[str, tuple[str, str, dict[str, Any], int, str]] = {
    "lines as one value": ("POST", "/v1/collect", {"content": LINES}, 400, "application/x-ndjson"),
    "a parameter that is almost one": ("GET", "/v1/datasets/orders/preview?limt=5", {}, 422, "mean limit?"),
    "a parameter of collect": ("POST", "/v1/collect?wait=1", {"json": []}, 422, "of this path: none"),
    "a parameter of nobody": ("GET", "/v1/usage?colour=5", {}, 422, "of this path: "),
    "a body that is no object": ("POST", "/v1/schemas", {"json": [1]}, 422, "openapi.json"),
    "a member that is unknown": ("POST", "/v1/datasets", {"json": {"slugg": "a"}}, 422, "openapi.json"),
    "a query with a wrong column": (
        "POST",
        "/v1/sql",
        {"json": {"sql": "SELECT nothing FROM orders"}},
        422,
        "DESCRIBE",
    ),
    "events that are all wrong": ("POST", "/v1/collect", {"json": [{"event_id": "a"}]}, 422, "`verdicts`"),
    "a schema that is not published": (
        "POST",
        "/v1/datasets",
        {"json": {"slug": "x", "schema_uri": "pulse://nobody/none/9"}},
        404,
        "Publish this version",
    ),
    "no such dataset": ("GET", "/v1/datasets/absent", {}, 404, "GET /v1/datasets"),
}
CLASSES = re.compile(
    r"FromSchema|FromFields|Input should|instance of|extra_forbidden|Value error|pulse [a-z]"
)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_fix_of_a_problem_uses_terms_of_http(caller: Caller, name: str) -> None:
    method, path, more, status, fix = PROBLEMS[name]
    headers = {"Content-Type": "application/json"} if "content" in more else {}
    answer = caller.http.request(method, path, headers=headers, **more)
    assert answer.status_code == status, answer.text
    assert fix in answer.json()["fix"]
    assert not CLASSES.search(answer.text), answer.text


NAME = "body.name: string should match pattern '^[a-z][a-z0-9_]{0,62}$'"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"name": "A B", "schema": {"type": "object"}}, [NAME]),
        ({"name": "A B", "fields": {"country": "string"}}, [NAME]),
        ({"name": "a", "schema": {}, "fields": {}}, ["body.fields: is unknown"]),
        ({"name": "a"}, ["body.schema: is missing"]),
    ],
    ids=["schema", "fields", "both", "neither"],
)
def test_a_schema_fault_is_listed_once(caller: Caller, body: Any, expected: list[str]) -> None:
    answer = caller.http.post("/v1/schemas", json=body)
    assert answer.status_code == 422
    assert [f"{error['at']}: {error['problem']}" for error in answer.json()["errors"]] == expected


@pytest.mark.parametrize("path", ["", "/check"])
def test_a_schema_whose_number_would_be_rounded_is_refused_as_it_was_sent(caller: Caller, path: str) -> None:
    schema = b'{"type": "object", "properties": {"b": {"maximum": 0.10000000000000000001}}}'
    body = b'{"name": "a", "schema": %s}' % schema
    headers = {"content-type": "application/json"}
    answer = caller.http.post(f"/v1/schemas{path}", content=body, headers=headers)
    assert answer.status_code == 422
    assert "0.10000000000000000001 at #/properties/b/maximum would be compared as 0.1" in answer.text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"name":\n NaN}', "unexpected character, expected a JSON value: line 2 column 2 (char 10)"),
        (b'{"a": 1e400}', "the number is beyond the largest double, 1.8e308: line 1 column 7 (char 6)"),
        (
            b'{"a": "\\ud800"}',
            "the text has half of a surrogate pair, which is not a character: line 1 column 8 (char 7)",
        ),
        (b"{", "unexpected end of data: line 1 column 2 (char 1)"),
        (b'{"a": "\xc3\xa9\xe9"}', "it is not UTF-8: the byte 0xe9: line 1 column 9 (char 8)"),
    ],
)
def test_a_body_that_is_not_json_is_refused_with_the_decoder_s_error(body: bytes, expected: str) -> None:
    app = FastAPI()
    problems.install(app)

    class Named(BaseModel):
        name: str

    async def publish(request: Request, named: Named) -> None: ...

    router = APIRouter(route_class=_Exactly)
    router.add_api_route("/", publish, methods=["POST"])
    app.include_router(router)
    answer = TestClient(app).post("/", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(f"the body is not JSON: {expected}")
    assert "NaN" in answer.json()["fix"]


class _Exactly(APIRoute):
    """A route that decodes as those of the API do, without a key."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def exactly(request: Request) -> Response:
            request.state.request_id = "id"
            return await handler(routing._ExactRequest(request.scope, request.receive))

        return exactly


@pytest.mark.parametrize("forms", [Replayed, Chosen], ids=["replay", "discard"])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "body: must be a JSON object with either ids or filter, which say which dead letters"),
        ({"ids": ["0-1"], "filter": {}}, "body: must be a JSON object with either ids or filter"),
        ([], "body: must be a JSON object with either ids or filter"),
        (7, "body: must be a JSON object with either ids or filter"),
        ({"filter": {"reason": "nope"}}, "body.filter.reason: should be 'undecodable', "),
        ({"filter": {}, "limit": 0}, "body.limit: should be greater than or equal to 1"),
        ({"ids": []}, "body.ids: list should have at least 1 item"),
    ],
)
def test_a_wrong_choice_of_dead_letters_is_explained_by_the_sender_s_fields(
    forms: Any, body: Any, expected: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(forms).validate_python(body)
    errors = [entry | {"loc": ("body", *entry["loc"])} for entry in refused.value.errors()]
    detail = problems.of(RequestValidationError(errors)).detail
    assert detail.startswith(expected)
    assert "By" not in detail


def test_the_fix_of_a_problem_contains_no_shell_command() -> None:
    command = problems.of(NotFound("no such schema", fix="Publish it with: pulse schema publish"))
    assert b"GET /openapi.json" in problems.document(command, "id")
    problem = problems.of(NotFound("no such dataset", fix="Did you mean orders?"))
    assert b"Did you mean orders?" in problems.document(problem, "id")


def test_a_key_of_the_wrong_kind_is_refused(api: Api, caller: Caller) -> None:
    with api.client(keys.issue_operator_key("mistaken").text) as client:
        answer = client.get("/v1/datasets")
    assert (answer.status_code, answer.json()["detail"]) == (
        401,
        "the key is an operator's, and this path takes a tenant's",
    )
    assert "POST /v1/tenants/{tenant}/keys" in answer.json()["fix"]
    answer = caller.http.get("/v1/tenants")
    assert (answer.status_code, answer.json()["detail"]) == (
        401,
        "the key is a tenant's, and this path takes an operator's",
    )


def test_an_unexpected_error_has_a_request_id(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, log_line: LogLine
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(quotas, "find_usage", broken)
    answer = caller.http.get("/v1/usage", headers={"X-Request-Id": "mine"})
    assert answer.status_code == 500
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "mine"
    assert answer.headers["connection"] == "close", "as the server does after it"
    assert "secret" not in answer.text
    assert log_line("RuntimeError: secret")["request_id"] == "mine"


def test_a_line_of_log_outside_of_requests_has_no_request_id(log_line: LogLine) -> None:
    logging.getLogger("pulse.test").warning("nobody asked")
    assert "request_id" not in log_line("nobody asked")


@pytest.mark.parametrize("request_id", ["a b", "x" * 65, "né", ""])
def test_a_request_id_that_could_harm_a_log_is_replaced(api: Api, request_id: str) -> None:
    with api.client() as client:
        answer = client.get("/healthz", headers={"X-Request-Id": request_id.encode()})
    assert answer.headers["x-request-id"] != request_id
    assert len(answer.headers["x-request-id"]) == 16


def test_a_request_is_one_line_of_log_without_payload_or_key(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, object]] = []
    monkeypatch.setattr(logs, "access", lines.append)
    answer = caller.collect([sample("visible"), sample("other", country="SECRET")])
    assert answer.status_code == 202
    caller.http.get("/v1/datasets/orders")
    first, second = lines
    text = json.dumps(lines)
    assert (first["status"], first["route"], first["tenant"]) == (
        202,
        "/v1/collect",
        caller.owner.tenant.slug,
    )
    assert (second["route"], second["key"]) == ("/v1/datasets/{slug}", caller.key.stored.key_id)
    assert first["request_id"] == answer.headers["x-request-id"]
    for secret in ("SECRET", "visible", caller.key.text, caller.key.text[-20:]):
        assert secret not in text


def test_other_origins_may_call_only_if_a_setting_permits_them(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = {
        "Origin": "https://shop.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    answer = caller.http.options("/v1/collect", headers=asks)
    assert "access-control-allow-origin" not in answer.headers
    monkeypatch.setenv("PULSE_API__CORS_ORIGINS", '["https://shop.example"]')
    load_settings.cache_clear()
    try:
        with served() as open_api, open_api.client(caller.key.text) as client:
            allowed = client.options("/v1/collect", headers=asks)
            assert allowed.headers["access-control-allow-origin"] == "https://shop.example"
            other = client.options("/v1/collect", headers=asks | {"Origin": "https://evil.example"})
            assert "access-control-allow-origin" not in other.headers
            sent = client.post("/v1/collect", json=sample(), headers={"Origin": "https://shop.example"})
            assert sent.headers["access-control-allow-origin"] == "https://shop.example"
    finally:
        monkeypatch.undo()
        load_settings.cache_clear()


def test_pages_of_a_tenant_send_events_with_its_keys_alone(new_caller: Callable[..., Caller]) -> None:
    mine, neighbour = new_caller(), new_caller()
    pages = {"Origin": "https://shop.example"}
    preflight = pages | {"Access-Control-Request-Method": "POST"}
    allowed = {mine.owner.tenant.slug: ["https://shop.example"]}
    with (
        with_settings(API__CORS_ORIGINS_OF=json.dumps(allowed)),
        served() as open_api,
        open_api.client(mine.key.text) as client,
        open_api.client(neighbour.key.text) as other,
    ):
        assert client.options("/v1/collect", headers=preflight).status_code == 200
        assert client.options("/v1/datasets", headers=preflight).status_code == 405
        sent = client.post("/v1/collect", json=sample(), headers=pages)
        assert (sent.status_code, sent.headers["access-control-allow-origin"]) == (202, pages["Origin"])
        refused = other.post("/v1/collect", json=sample(), headers=pages)
        assert refused.status_code == 403
        assert "PULSE_API__CORS_ORIGINS_OF" in refused.json()["fix"]
        assert other.post("/v1/collect", json=sample()).status_code == 202, "a program"


def test_a_list_of_datasets_is_written_outside_the_event_loop(owner: Owner) -> None:
    """FastAPI writes a model in the event loop, and the columns of thousands of datasets at once."""
    answer = routes_of_datasets.list_datasets(SimpleNamespace(tenant=owner.tenant))  # type: ignore[arg-type]
    assert isinstance(answer, Response)
    listed = routes_of_datasets.DatasetList.model_validate_json(bytes(answer.body))
    assert [dataset.slug for dataset in listed.datasets] == ["orders"]


def test_the_quota_of_datasets_is_exact_under_concurrency(
    new_caller: Callable[..., Caller], operator: httpx.Client
) -> None:
    caller = new_caller()
    tenant = caller.owner.tenant.slug
    place = f"/v1/tenants/{tenant}/limits"
    assert operator.put(place, json={"eventsPerSecond": 7_000}).json()["eventsPerSecond"] == 7_000
    answer = operator.put(place, json={"maxDatasets": 4}).json()
    assert (answer["maxDatasets"], answer["eventsPerSecond"]) == (4, 7_000), "what is not given stays"
    assert operator.put(place, json={"maxRecordsPerMonth": 9}).json()["maxDatasetsPerMonth"] == 9
    assert operator.put(place, json={"maxDatasetsPerMonth": -1}).json()["maxRecordsPerMonth"] == -1
    both = operator.put(place, json={"maxDatasetsPerMonth": 1, "maxRecordsPerMonth": 2})
    assert both.status_code == 422
    statuses: list[int] = []

    def create(number: int) -> None:
        body = {"slug": f"d{number}", "schema_uri": f"pulse://{tenant}/orders/1"}
        statuses.append(caller.http.post("/v1/datasets", json=body).status_code)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [201] * 3 + [429] * 7, "with `orders` it has four"
    usage = caller.http.get("/v1/usage").json()
    assert (usage["datasets"], usage["remaining_datasets"]) == (4, 0)
    dataset = next(
        d["slug"] for d in caller.http.get("/v1/datasets").json()["datasets"] if d["slug"] != "orders"
    )
    deleted = caller.http.delete(f"/v1/datasets/{dataset}").json()
    assert deleted["files"] == "kept"
    assert deleted["metadata_location"].startswith("s3://")
    create(99)
    assert statuses[-1] == 201, "there is room again"


def test_zero_is_the_default_of_the_installation(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    assert quotas.set_limits(owner.tenant, max_datasets=0).max_datasets == 1_000
    monkeypatch.setenv("PULSE_LIMITS__MAX_DATASETS", "7")
    load_settings.cache_clear()
    try:
        assert quotas.find_limits(owner.tenant).max_datasets == 7
        assert quotas.set_limits(owner.tenant, max_datasets=-1).max_datasets == -1
    finally:
        monkeypatch.undo()
        load_settings.cache_clear()


def test_usage_lists_months(caller: Caller) -> None:
    assert caller.http.get("/v1/usage").json()["months"] == []
    quotas.set_limits(caller.owner.tenant, max_records_per_month=50)
    requests = [[b"%d" % n for n in range(count)] for count in (30, 30, 20)]
    first, none, last = intake.reserve(caller.owner.tenant, requests, 50)
    assert (len(first), none, len(last)) == (30, None, 20)
    intake.release(caller.owner.tenant, first[:5], sent=0)
    (month,) = caller.http.get("/v1/usage").json()["months"]
    assert (month["accepted"], month["landed"], month["landed_delta"]) == (45, 0, 0)


def test_a_month_is_compared_with_the_one_before_whether_or_not_that_is_listed(owner: Owner) -> None:
    values = [(owner.tenant.tenant_id, date(2026, month, 1), rows) for month, rows in ((9, 50), (10, 80))]
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
        insert = "INSERT INTO usage (tenant_id, month, records, bytes) VALUES (%s, %s, %s, 1)"
        connection.cursor().executemany(insert, values)
    assert [month.landed_delta for month in quotas.find_usage(owner.tenant).months] == [30, 50]
    assert [month.landed_delta for month in quotas.find_usage(owner.tenant, months=1).months] == [30]


def test_the_last_use_of_a_key_is_noted_once_postgres_answers_again(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Any] = []
    touch = keys.touch_keys

    def unsteady(used: Any, role: Role = "pulse_api") -> None:
        if used:
            tries.append(used)
            if len(tries) < 4:
                raise psycopg.OperationalError("the connection is lost")
        touch(used, role)

    monkeypatch.setattr(keyring, "TOUCH_EVERY_S", 0.05)
    monkeypatch.setattr(keys, "touch_keys", unsteady)
    with served() as unlucky, unlucky.client(caller.key.text) as client:
        assert client.get("/v1/usage").status_code == 200
        deadline = time.monotonic() + PATIENCE_S
        while (key := keys.list_keys(caller.owner.tenant)[0]).last_used_at is None:
            assert time.monotonic() < deadline, "it is not tried again"
            time.sleep(0.02)
    assert len(tries) >= 4
    keys.touch_keys({caller.owner.tenant.tenant_id: {key.key_id: key.created_at}})
    assert keys.list_keys(caller.owner.tenant)[0].last_used_at == key.last_used_at, (
        "an earlier use, told late"
    )
