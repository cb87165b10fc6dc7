"""Two processes of the API: what one of them did, the other knows; neither needs to be the same one again."""

import asyncio
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import httpx
import pytest
from support.here import ingest_here as ingest
from support.http import Api, Caller, sample
from support.ingest import Owner

from chaos.waiting import wait
from pulse_api.http.views import CachedTenant, Views
from pulse_pipelines import registry
from pulse_pipelines.registry.tenant_view import load_view

pytestmark = pytest.mark.stack
TIMES = 10
ENDLESS = "SELECT sum(a.range * b.range) AS n FROM range(1000000) a, range(1000000) b"


class Pair(NamedTuple):
    """A client at each of two processes, with one key."""

    one: httpx.Client
    other: httpx.Client


@pytest.fixture
def pair(caller: Caller, api_service: str) -> Iterator[Pair]:
    with Api(api_service).client(caller.key.text) as other:
        yield Pair(caller.http, other)


@pytest.fixture(params=["there and here", "here and there"])
def either(request: pytest.FixtureRequest, pair: Pair) -> Pair:
    return pair if request.param == "there and here" else Pair(pair.other, pair.one)


def test_a_dataset_takes_events_at_the_other_at_once(either: Pair) -> None:
    for _ in range(TIMES):
        slug = f"d{uuid.uuid4().hex[:8]}"
        published = either.one.post("/v1/schemas", json={"name": slug, "schema": {"type": "object"}})
        assert published.status_code == 201, published.text
        definition = {"slug": slug, "schema_uri": published.json()["schema_uri"]}
        assert either.one.post("/v1/datasets", json=definition).status_code == 201
        answer = either.other.post("/v1/collect", json=sample() | {"dataset": slug})
        assert answer.status_code == 202, answer.text


@pytest.mark.parametrize("kind", ["events", "entities"])
def test_a_dataset_takes_records_at_the_other_before_it_is_announced(
    kind: str, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was kept of the tenant: the news is on the way for as long as this test runs."""
    assert pair.one.post("/v1/collect", json=sample()).status_code == 202  # now the tenant is kept
    monkeypatch.setattr(Views, "forget", lambda *_: None)
    slug = f"d{uuid.uuid4().hex[:8]}"
    published = pair.other.post("/v1/schemas", json={"name": slug, "schema": {"type": "object"}})
    definition = {"slug": slug, "schema_uri": published.json()["schema_uri"], "kind": kind}
    assert pair.other.post("/v1/datasets", json=definition).status_code == 201
    if kind == "events":
        batch = [sample() | {"dataset": slug}, sample(), sample() | {"dataset": f"{slug}2"}]
        answer = pair.one.post("/v1/collect", json=batch)
        assert answer.status_code == 207, answer.text
        assert answer.json()["accepted"] == 2
        (refused,) = answer.json()["verdicts"]
        assert (refused["index"], refused["reason"]) == (2, "unknown_dataset")
    else:
        answer = pair.one.post(f"/v1/datasets/{slug}/entities", json=[{"_id": "a"}])
        assert answer.status_code == 202, answer.text


def test_a_tenant_is_read_again_only_if_its_datasets_have_changed(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sends unknown names without end must not have all datasets read each time."""
    tenant, views = owner.tenant, Views()
    view = load_view(tenant.tenant_id)
    assert view is not None
    cached = CachedTenant(view)

    async def get(tenant_id: uuid.UUID, *, afresh: bool) -> str:
        assert (tenant_id, afresh) == (tenant.tenant_id, True)
        return "read again"

    monkeypatch.setattr(views._tenants, "get", get)
    assert asyncio.run(views.changed(cached)) is None
    registry.create_dataset(tenant, "others", view.datasets[0].schema_uri)
    assert asyncio.run(views.changed(cached)) == "read again"
    registry.delete_dataset(tenant, "others")
    assert asyncio.run(views.changed(cached)) is None


def test_a_key_opens_the_other_at_once_and_once_it_is_revoked_does_not(either: Pair) -> None:
    for _ in range(TIMES):
        issued = either.one.post("/v1/keys", json={"name": "short", "scopes": ["read"]}).json()
        headers = {"Authorization": f"Bearer {issued['key']}"}
        assert either.other.get("/v1/datasets", headers=headers).status_code == 200
        assert either.one.delete(f"/v1/keys/{issued['key_id']}").status_code == 200
        opens = partial(either.other.get, "/v1/datasets", headers=headers)
        wait(lambda opens=opens: opens().status_code == 401, "it opens the other")


def test_a_page_of_one_is_followed_by_a_page_of_the_other(caller: Caller, either: Pair) -> None:
    caller.owner.send(*(b"no json %d" % number for number in range(5)))
    ingest(caller.owner)
    first = either.one.get("/v1/dead-letters", params={"limit": 2}).json()
    second = either.other.get("/v1/dead-letters", params={"limit": 2, "cursor": first["next_cursor"]})
    assert second.status_code == 200, second.text
    both = first["dead_letters"] + second.json()["dead_letters"]
    assert len({letter["id"] for letter in both}) == 4


def test_a_query_of_one_is_cancelled_at_the_other(either: Pair) -> None:
    query, answers = uuid.uuid4().hex, list[httpx.Response]()
    asking = threading.Thread(
        target=lambda: answers.append(either.one.post("/v1/sql", json={"sql": ENDLESS, "query_id": query}))
    )
    asking.start()
    wait(lambda: query in either.other.get("/v1/sql").text, "it is not listed")
    again = either.other.post("/v1/sql", json={"sql": "SELECT 1", "query_id": query})
    assert again.status_code == 409, again.text
    assert either.other.delete(f"/v1/sql/{query}").status_code in (200, 202)
    asking.join()
    assert answers[0].status_code == 409, answers[0].text
