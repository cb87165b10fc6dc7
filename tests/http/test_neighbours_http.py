"""One tenant asks for more than it gets: its neighbours, and who watches, do not notice."""

import asyncio
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from support.entities import SLUG, make_entities
from support.files import Answer, web
from support.http import Api, Caller, sample, served

from chaos.sources import SOURCE, stored_source
from chaos.surroundings import TLS, superuser, with_settings
from chaos.waiting import PATIENCE_S, wait
from pulse_api.http import openapi, views
from pulse_api.http.routes import summary
from pulse_api.http.workers import Workers
from pulse_api.lake.app import create_app
from pulse_pipelines import dead_letters as letters
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.registry import keys, quotas
from pulse_pipelines.registry.tenant_view import TenantView, load_view
from pulse_resources.settings import Settings, load_settings

AT_ONCE = 60
PREVIEW = "/v1/datasets/orders/preview"
SUMMARY = "/v1/datasets/orders/summary"
LETTERS = "/v1/dead-letters/groups"
EVERYTHING = (PREVIEW, SUMMARY, LETTERS, "/v1/datasets", "/v1/usage")


def test_repeated_requests_are_refused_with_a_time_to_retry(new_caller: Callable[..., Caller]) -> None:
    """Rates of previews, and of all but collecting, that nobody has to set."""
    greedy, neighbour = new_caller(), new_caller()
    limits = {  # so slow that no machine takes long enough for one more
        "API__PREVIEWS_PER_SECOND": 0.001,
        "API__OTHER_REQUESTS_PER_SECOND": 0.002,
        "API__BURST_SECONDS": 3000,
    }
    with with_settings(**limits), served() as api, api.client(greedy.key.text) as http:
        previews = [http.get(path) for path in (PREVIEW, "/v1/datasets/orders/snapshots") * 2]
        assert [answer.status_code for answer in previews] == [200, 200, 200, 429]
        answers = [http.get("/v1/usage") for _ in range(6)]
        body = {"slug": "x" * 2_000_000, "schema_uri": "none"}  # for which there is no time, either
        answers.append(http.post("/v1/datasets", json=body))
        assert [answer.status_code for answer in answers] == [200] * 6 + [429]
        for answer, seconds, unit in (
            (previews[-1], 1_000, "0.001 previews"),
            (answers[-1], 500, "0.002 requests other than previews, queries, questions and collecting"),
        ):
            problem = answer.json()
            assert problem["type"] == "urn:pulse:problem:rate-exceeded"
            assert problem["detail"] == f"the tenant may send {unit} per second"
            assert "Retry-After" in problem["fix"]
            assert 1 <= int(answer.headers["retry-after"]) <= seconds
        assert http.post("/v1/collect", json=sample()).status_code == 202
        with api.client(neighbour.key.text) as other:
            assert [other.get(path).status_code for path in (PREVIEW, "/v1/usage")] == [200, 200]


def test_a_source_that_does_not_answer_keeps_no_other_tenant_from_changing(
    new_caller: Callable[..., Caller],
) -> None:
    slow, neighbour, answering = [new_caller() for _ in range(2)], new_caller(), threading.Event()
    requests = threading.Semaphore(0)

    def wait(*_: object) -> Answer:
        requests.release()
        answering.wait()
        return 404, {}, b""

    options = {"pipe": "copies", "source": SOURCE, "feed": "/feed", "dataset": "copies"}
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        address = stack.enter_context(web(wait))
        for caller in slow:
            stack.enter_context(stored_source(caller.owner.tenant, address))
        waiting = [threads.submit(caller.http.post, "/v1/pipes", json=options) for caller in slow]
        try:
            assert all(requests.acquire(timeout=PATIENCE_S) for _ in slow), (
                "as many as there are places for changes"
            )
            body = {"name": "next", "fields": {"n": "integer"}}
            assert neighbour.http.post("/v1/schemas", json=body).status_code == 201
            assert not any(future.done() for future in waiting)
        finally:
            answering.set()
        assert [future.result().status_code for future in waiting] == [404, 404]


def test_parts_of_a_sync_that_wait_for_its_batch_delay_only_their_own_tenant(
    new_caller: Callable[..., Caller],
) -> None:
    """A batch that settles locks its tenant's syncs: parts of these took all threads that look up keys."""
    greedy, neighbour = new_caller(), new_caller()
    for caller in (greedy, neighbour):
        make_entities(caller.owner)
    part = f"/v1/datasets/{SLUG}/entities?sequence_id=one"
    first, second = f"{part}&request_id=1&is_first=true", f"{part}&request_id=2&previous_request_id=1"
    with ExitStack() as stack, ThreadPoolExecutor(20) as threads:
        stack.enter_context(with_settings(API__WAIT_SECONDS=PATIENCE_S))
        api = stack.enter_context(served())
        waiting, other = (stack.enter_context(api.client(c.key.text)) for c in (greedy, neighbour))
        assert waiting.post(first).status_code == 202
        with superuser() as batch, batch.transaction():
            tenant_id = greedy.owner.tenant.tenant_id
            batch.execute("SELECT FROM entity_syncs WHERE tenant_id = %s FOR UPDATE", [tenant_id])
            parts = [threads.submit(waiting.post, second) for _ in range(20)]
            wait(lambda: waiting_for_locks() > 0, "no part waits for the batch")
            assert [other.post(path).status_code for path in (first, second)] == [202, 202]
            new_key = keys.issue_key(neighbour.owner.tenant, "new", [KeyScope.COLLECT])
            with api.client(new_key.text) as unknown:
                assert unknown.post("/v1/collect", json=sample()).status_code == 202
            assert not any(part.done() for part in parts)
        assert {part.result().status_code for part in parts} <= {202, 409}


def waiting_for_locks() -> int:
    with superuser() as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        ((count,),) = connection.execute(query, ["%entity_syncs%"]).fetchall()
    return int(count)


def test_repeated_changes_are_refused_with_a_time_to_retry(new_caller: Callable[..., Caller]) -> None:
    """A loop of creating and deleting kept Postgres and the object store busy: p99 times four."""
    greedy, neighbour = new_caller(), new_caller()
    with with_settings(API__CHANGES_PER_SECOND=1.5), served() as api:
        with api.client(greedy.key.text) as http:
            # At once: in turn each may take as long as the next one is allowed.
            with ThreadPoolExecutor(24) as threads:
                answers = list(threads.map(lambda _: http.delete("/v1/datasets/none"), range(24)))
            answers.sort(key=lambda answer: answer.status_code)
            assert {answer.status_code for answer in answers} == {404, 429}
            assert [answer.status_code for answer in answers[:3]] == [404] * 3
            assert answers[-1].json()["detail"] == "the tenant may send 1.5 changes per second"
            assert http.get("/v1/datasets").status_code == 200
        with api.client(neighbour.key.text) as other:
            assert other.delete("/v1/datasets/none").status_code == 404


def test_repeated_invalid_requests_to_the_catalog_are_refused_with_a_time_to_retry(
    new_caller: Callable[..., Caller],
) -> None:
    """Each takes as long as a valid one: 200 per second kept a processor busy."""
    greedy, neighbour = new_caller(), new_caller()
    limits = {"LAKE__INVALID_PER_SECOND": 0.001, "API__BURST_SECONDS": 3000}
    with with_settings(**limits), served(create_app()) as catalog:
        with catalog.client(greedy.key.text) as http:
            assert [http.get("/v1/namespaces/none").status_code for _ in range(9)] == [404] * 9
            wrong = [http.post("/v1/namespaces", json={"namespace": 1}) for _ in range(4)]
            assert [answer.status_code for answer in wrong] == [400, 400, 400, 429]
            assert "0.001 invalid requests per second" in wrong[-1].json()["error"]["message"]
            assert 1 <= int(wrong[-1].headers["retry-after"]) <= 1_000
            assert http.get("/v1/namespaces").status_code == 429
        with catalog.client(neighbour.key.text) as other:
            assert other.get("/v1/namespaces").status_code == 200


@pytest.mark.parametrize("path", [PREVIEW, SUMMARY, LETTERS])
def test_sixty_requests_at_once_delay_only_their_own_tenant(
    api: Api,
    new_caller: Callable[..., Caller],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    greedy, neighbour = new_caller(), new_caller()
    go_on = threading.Event()
    previewing, summarising, grouping = Workers.run, summary.read_summary, letters.groups

    async def endless_preview(self: Workers, work: Callable[..., Any], *args: Any) -> Any:
        if greedy.owner.tenant in args:
            await asyncio.to_thread(go_on.wait, 60)
        return await previewing(self, work, *args)

    def endless_summary(tenant: Any, *args: Any, **kwargs: Any) -> Any:
        if tenant == greedy.owner.tenant:
            go_on.wait(PATIENCE_S)
        return summarising(tenant, *args, **kwargs)

    def endless_groups(tenant: Any, *args: Any, **kwargs: Any) -> Any:
        if tenant == greedy.owner.tenant:
            go_on.wait(PATIENCE_S)
        return grouping(tenant, *args, **kwargs)

    monkeypatch.setattr(Workers, "run", endless_preview)
    monkeypatch.setattr(summary, "read_summary", endless_summary)
    monkeypatch.setattr(letters, "groups", endless_groups)
    refused, statuses = threading.Semaphore(0), Counter[int]()

    def ask(_: int) -> None:
        answer = greedy.http.get(path)
        statuses[answer.status_code] += 1
        if answer.status_code == 429:
            assert (answer.json()["type"], answer.headers["retry-after"]) == ("urn:pulse:problem:busy", "1")
            refused.release()

    settings = load_settings().api
    running = settings.parallelism if path == SUMMARY else settings.preview_parallelism
    admitted = running // 2 + settings.max_waiting
    with ThreadPoolExecutor(AT_ONCE) as threads:
        try:
            answers = threads.map(ask, range(AT_ONCE))
            for _ in range(AT_ONCE - admitted):
                assert refused.acquire(timeout=PATIENCE_S), "it is said at once"
            assert statuses == {429: AT_ONCE - admitted}
            for other in EVERYTHING:
                assert neighbour.http.get(other).status_code == 200
            for watched in ("/healthz", "/readyz"):
                assert neighbour.http.get(watched).status_code == 200
            assert neighbour.collect(sample()).status_code == 202
            assert statuses == {429: AT_ONCE - admitted}, "all of this while the others still waited"
        finally:
            go_on.set()
        list(answers)
    assert sum(statuses.values()) == AT_ONCE
    assert statuses.keys() <= {200, 429, 503}


def test_events_that_are_refused_count_against_the_rate(caller: Caller) -> None:
    quotas.set_limits(caller.owner.tenant, events_per_second=10)
    wrong = [sample(country=7) for _ in range(200)]
    assert caller.collect(wrong).status_code == 422
    answer = caller.collect(sample())
    assert (answer.status_code, answer.json()["type"]) == (429, "urn:pulse:problem:rate-exceeded")
    assert int(answer.headers["retry-after"]) > 10


def test_an_address_that_guesses_keys_does_not_delay_others(
    api: Api, new_caller: Callable[..., Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lookup of an unknown tenant costs a transaction; one address has two at a time."""
    known, new = new_caller(), new_caller()
    assert known.collect(sample()).status_code == 202
    keys.issue_key(known.owner.tenant, "another", [KeyScope.READ])  # its view is read again, but not its key
    ours = {caller.owner.tenant.tenant_id for caller in (known, new)}
    reads, go_on, refused = Counter[uuid.UUID](), threading.Event(), threading.Semaphore(0)
    statuses = Counter[int]()

    def endless(tenant_id: uuid.UUID) -> TenantView | None:
        reads[tenant_id] += 1
        if tenant_id not in ours:
            go_on.wait(PATIENCE_S)
        return load_view(tenant_id)

    monkeypatch.setattr(views, "load_view", endless)

    def attempt(_: int) -> None:
        key = f"pulse_{uuid.uuid4().hex}_{'0' * 12}_{'A' * 43}"
        status = httpx.post(
            f"{api.url}/v1/collect",
            headers={"Authorization": f"Bearer {key}"},
            timeout=PATIENCE_S,
            verify=TLS,
        ).status_code
        statuses[status] += 1
        if status == 429:
            refused.release()

    admitted = 2 + load_settings().api.max_waiting
    with ThreadPoolExecutor(AT_ONCE) as threads:
        try:
            attempts = threads.map(attempt, range(AT_ONCE))
            for _ in range(AT_ONCE - admitted):
                assert refused.acquire(timeout=PATIENCE_S)
            assert reads.total() <= 2
            assert known.collect(sample()).status_code == 202
            elsewhere = httpx.HTTPTransport(local_address="127.0.0.2")
            with httpx.Client(base_url=api.url, transport=elsewhere, timeout=PATIENCE_S) as client:
                headers = {"Authorization": f"Bearer {new.key.text}"}
                assert client.post("/v1/collect", json=sample(), headers=headers).status_code == 202
        finally:
            go_on.set()
        list(attempts)
    assert statuses.keys() <= {401, 429, 503}


def test_requests_of_one_key_share_a_read_of_its_tenant(
    new_caller: Callable[..., Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sends over many connections is not refused because the tenant was changed just now."""
    caller = new_caller()
    tenant, reads = caller.owner.tenant.tenant_id, Counter[uuid.UUID]()
    beginning, go_on = threading.Semaphore(0), threading.Event()

    def slow(tenant_id: uuid.UUID) -> TenantView | None:
        reads[tenant_id] += 1
        if tenant_id == tenant:
            beginning.release()
            go_on.wait(PATIENCE_S)
        return load_view(tenant_id)

    monkeypatch.setattr(views, "load_view", slow)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        try:
            requests = [threads.submit(caller.collect, sample()) for _ in range(AT_ONCE)]
            assert beginning.acquire(timeout=PATIENCE_S)
            time.sleep(1)  # all have come, and a refusal would have been there at once
            assert [request.result().status_code for request in requests if request.done()] == []
        finally:
            go_on.set()
        statuses = Counter(request.result().status_code for request in requests)
    assert statuses == {202: AT_ONCE}
    assert reads[tenant] <= 2, "one look, and one more for who came while it was kept"


@pytest.mark.parametrize(("path", "most"), [("/v1/schemas", 1024 * 1024), ("/v1/collect", 8 * 1024 * 1024)])
def test_a_body_is_read_up_to_its_limit(caller: Caller, path: str, most: int) -> None:
    """With its length said, and in chunks that go on for ever."""

    def chunks(read: list[int]) -> Iterator[bytes]:
        while len(read) < 1_000:
            read.append(1)
            yield b" " * 262_144

    read: list[int] = []
    for content in (b" " * (most + 1), chunks(read)):
        answer = caller.http.post(path, content=content, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:pulse:problem:too-large")
    assert len(read) < 1_000, "the server has closed long before"


def test_the_openapi_document_is_built_before_the_first_request(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a second of the event loop, and needs no key: it is there before the first request."""
    with served() as fresh:
        monkeypatch.setattr(openapi, "get_openapi", None)
        assert httpx.get(f"{fresh.url}/openapi.json", timeout=PATIENCE_S, verify=TLS).status_code == 200
        assert httpx.patch(f"{fresh.url}/v1/datasets", verify=TLS).status_code == 405
