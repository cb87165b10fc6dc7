"""What the console asks of the API: groups of dead letters, freshness, the key that asks, offsets, checks."""

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime
from typing import Any

import pytest
from support.here import ingest_here as ingest
from support.http import Api, Caller
from support.ingest import Owner, event, make_owner

from chaos.surroundings import superuser
from pulse_pipelines import registry
from pulse_pipelines.backfill import try_schema
from pulse_pipelines.curated.hours import last_hours
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.monitoring.dataset_states import dataset_states
from pulse_pipelines.registry import keys
from pulse_resources import postgres

ITEMS = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "items": {"type": "object", "properties": {"price": {"type": "number"}}},
        }
    },
}


@pytest.fixture(scope="module")
def letters(api: Api) -> Iterator[Caller]:
    """A tenant with dead letters of three kinds, and a row."""
    owner = make_owner()
    uri = registry.publish_schema(owner.tenant, "baskets", json.dumps(ITEMS)).schema_uri
    registry.create_dataset(owner.tenant, "baskets", uri)
    owner.send(
        event("row"),
        *(event(f"b-{n}", dataset="baskets", items=[{"price": 1}] * n + [{"price": "x"}]) for n in range(3)),
        b"neither JSON",
        event("count", count="seven"),
        event("other-count", count=[]),
    )
    ingest(owner)
    key = keys.issue_key(owner.tenant, "endpoints", tuple(KeyScope))
    with api.client(key.text) as client:
        yield Caller(owner, key, client)


def groups(caller: Caller, **parameters: str) -> list[dict[str, Any]]:
    answer = caller.http.get("/v1/dead-letters/groups", params=parameters)
    assert answer.status_code == 200, answer.text
    listed: list[dict[str, Any]] = answer.json()["groups"]
    return listed


def test_dead_letters_are_grouped_by_reason_and_place(letters: Caller) -> None:
    counts = {
        (group["dataset"], group["reason"], group["place"]): group["count"] for group in groups(letters)
    }
    assert counts == {
        ("baskets", "schema_violation", "/data/items/*/price"): 3,
        ("orders", "schema_violation", "/data/count"): 2,
        (None, "undecodable", ""): 1,
    }
    first = groups(letters)[0]
    assert first["oldest"] <= first["newest"]
    assert first["example_id"] in {"0-1", "0-2", "0-3"}
    assert first["example_detail"]
    assert first["advice"] == Reason.SCHEMA_VIOLATION.advice


@pytest.mark.parametrize(
    ("chosen", "total"),
    [
        ({"dataset": "baskets", "reason": "schema_violation", "place": "/data/items/*/price"}, 3),
        ({"dataset": "orders", "reason": "schema_violation", "place": "/data/count"}, 2),
        ({"dataset": "", "reason": "undecodable", "place": ""}, 1),
        ({"place": "/data/items/1/price"}, 0),
        ({"dataset": ""}, 1),
        ({}, 6),
    ],
)
def test_a_filter_selects_a_group(letters: Caller, chosen: dict[str, str], total: int) -> None:
    listed = letters.http.get("/v1/dead-letters", params=chosen).json()["dead_letters"]
    summary = letters.http.get("/v1/dead-letters/summary", params=chosen).json()
    body = {"filter": chosen, "dry_run": True}
    tried = letters.http.post("/v1/dead-letters/replay", json=body).json()
    assert (len(listed), summary["total"], tried["total"]) == (total, total, total)
    assert sum(group["count"] for group in groups(letters, **chosen)) == total


def test_a_list_of_datasets_comes_in_pages(letters: Caller) -> None:
    def list_page(**parameters: str) -> tuple[list[str], str | None]:
        answer = letters.http.get("/v1/datasets", params=parameters)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        return [dataset["slug"] for dataset in page["datasets"]], page["next_after"]

    assert list_page() == (["baskets", "orders"], None)
    assert list_page(limit="1") == (["baskets"], "baskets")
    assert list_page(limit="1", after="baskets") == (["orders"], None)
    assert list_page(schema="orders") == (["orders"], None)
    assert list_page(schema="order") == ([], None)
    assert letters.http.get("/v1/datasets", params={"schema": "%"}).status_code == 422


def test_freshness_comes_in_pages(letters: Caller) -> None:
    first = letters.http.get("/v1/freshness", params={"limit": 1}).json()
    (baskets,) = first["datasets"]
    assert (baskets["dataset"], baskets["rows"], baskets["snapshot_id"]) == ("baskets", 0, None)
    assert baskets["events_landed_last"] is None
    assert first["next_after"] == "baskets"
    last = letters.http.get("/v1/freshness", params={"after": "baskets"}).json()
    (orders,) = last["datasets"]
    newest = letters.http.get("/v1/datasets/orders/snapshots").json()["snapshots"][0]
    assert (
        (orders["rows"], orders["snapshot_id"]) == (newest["total_rows"], newest["snapshot_id"]) != (0, None)
    )
    assert orders["events_landed_last"]
    assert last["next_after"] is None


def test_states_of_many_datasets_take_no_more_transactions_than_one(
    letters: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = []
    begin = postgres.tenant_transaction

    def count(*arguments: Any, **options: Any) -> Any:
        transactions.append(arguments)
        return begin(*arguments, **options)

    monkeypatch.setattr(postgres, "tenant_transaction", count)
    tenant, numbers = letters.owner.tenant, []
    for slugs in (["orders"], ["orders", "baskets"]):
        transactions.clear()
        states = dataset_states(tenant, slugs)
        assert [(state.dataset, state.problem) for state in states] == [(slug, None) for slug in slugs]
        numbers.append(len(transactions))
    assert numbers[0] == numbers[1]
    assert [bool(state.problem) for state in dataset_states(tenant, ["absent", "orders"])] == [True, False]


def test_slugs_come_in_the_order_of_their_characters(letters: Caller) -> None:
    tenant = letters.owner.tenant
    uri = registry.find_dataset(tenant, "baskets").schema_uri
    for slug in ("zz", "z_1", "z1"):
        registry.create_dataset(tenant, slug, uri)
    assert registry.list_slugs(tenant, "y", 9) == ["z1", "z_1", "zz"] == sorted(["zz", "z_1", "z1"])
    assert registry.list_slugs(tenant, "z1", 1) == ["z_1"]
    for slug in ("zz", "z_1", "z1"):
        registry.delete_dataset(tenant, slug)


def test_a_key_reads_its_own_tenant(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller([KeyScope.READ])
    answer = caller.http.get("/v1/keys/current").json()
    assert (answer["tenant"], answer["topic"]) == (caller.owner.tenant.slug, caller.owner.tenant.topic)
    assert (answer["key_id"], answer["scopes"]) == (caller.key.stored.key_id, ["read"])
    assert "key" not in answer


def test_engines_connect_with_a_key_in_the_place_of_a_placeholder(letters: Caller) -> None:
    answer = letters.http.get("/v1/lake/connect").json()
    assert {text["engine"] for text in answer["engines"]} == {"duckdb", "pyiceberg", "spark", "trino"}
    for text in answer["engines"]:
        assert answer["placeholder"] in text["paste"]
        assert answer["catalog"] in text["paste"]
        assert letters.key.text not in text["paste"]


def test_an_offset_is_traced(letters: Caller) -> None:
    landed = letters.http.get("/v1/offsets/0/0").json()
    assert (landed["event_id"], landed["state"], landed["settled"]) == ("row", "landed", True)
    assert letters.http.get("/v1/offsets/0/4").json()["state"] == "dead_lettered"
    assert letters.http.get("/v1/offsets/0/9999").status_code == 404
    assert letters.http.get("/v1/offsets/77/0").status_code == 404


def test_a_schema_is_checked_and_not_published(letters: Caller) -> None:
    body = {"name": "orders", "fields": {"country": "string", "amount": "integer"}}
    answer = letters.http.post("/v1/schemas/check?dataset=orders", json=body).json()
    assert [(c["name"], c["type"]) for c in answer["columns"]] == [("country", "string"), ("amount", "long")]
    assert 0 < answer["largest_event_seconds"] <= answer["limit_seconds"]
    assert "/properties/amount" in str(answer["incompatibilities"])
    assert letters.http.post("/v1/schemas/check", json=body).json()["incompatibilities"] is None
    wrong = letters.http.post("/v1/schemas/check", json={"name": "a", "schema": {"type": 7}})
    assert (wrong.status_code, wrong.json()["type"]) == (422, "urn:pulse:problem:invalid-request")
    assert letters.http.post("/v1/schemas/check?dataset=absent", json=body).status_code == 404
    listed = letters.http.get("/v1/schemas").json()["schemas"]
    assert [(one["name"], one["version"]) for one in listed] == [("baskets", 1), ("orders", 1)]


DAILY = """
INSERT INTO summaries (tenant_id, dataset_id, rollup, day, definition, landed_at, grain, rows, snapshot_id,
    computed_at)
SELECT tenant_id, dataset_id, 'daily', %s, '', %s, '{}', %s, 1, now() FROM pdm_datasets
WHERE tenant_id = %s AND slug = 'orders'
"""


def summarise(owner: Owner, day: str, landed_at: str, hours: dict[int, int]) -> None:
    """What a run of Spark would note of a day."""
    row = {
        "by_type": [{"type": "\u0000", "events": 1}],
        "by_hour": [{"hour": hour, "events": events} for hour, events in hours.items()],
    }
    with superuser() as connection:
        connection.execute(DAILY, [day, landed_at, json.dumps([row]), owner.tenant.tenant_id])


def test_hours_are_those_of_the_summaries(owner: Owner) -> None:
    owner.send(event("row"))  # of 2026-11-19
    ingest(owner)
    now = datetime.fromisoformat("2026-11-19T02:59:59+00:00")
    (before,) = last_hours(owner.tenant, ["orders", "absent"], now)
    assert [hour.events for hour in before.hours] == [0] * 21 + [None] * 3
    assert (before.computed_at, before.changed_since) == (None, True)
    summarise(owner, "2026-11-18", "2100-01-01T00:00:00Z", {2: 9, 3: 4, 23: 1})
    summarise(owner, "2026-11-19", "2100-01-01T00:00:00Z", {1: 7})
    (after,) = last_hours(owner.tenant, ["orders"], now)
    assert [hour.events for hour in after.hours] == [4, *[0] * 19, 1, 0, 7, 0]
    assert after.hours[0].start == datetime.fromisoformat("2026-11-18T03:00:00+00:00")
    assert after.computed_at is not None
    assert not after.changed_since


def test_hours_come_in_pages(letters: Caller) -> None:
    first = letters.http.get("/v1/hours", params={"limit": 1}).json()
    (baskets,) = first["datasets"]
    assert (baskets["dataset"], len(baskets["hours"]), first["next_after"]) == ("baskets", 24, "baskets")
    last = letters.http.get("/v1/hours", params={"after": "baskets"}).json()
    assert ([one["dataset"] for one in last["datasets"]], last["next_after"]) == (["orders"], None)


def test_a_schema_is_tried_on_a_day(letters: Caller, new_caller: Callable[..., Caller]) -> None:
    body = {"name": "orders", "fields": {"country": "integer"}}
    address, day = "/v1/schemas/try?dataset=orders&day=2026-11-19", date(2026, 11, 19)
    tenant, document = (
        letters.owner.tenant,
        '{"type": "object", "properties": {"country": {"type": "integer"}}}',
    )
    trial = letters.http.post(address, json=body).json()
    of_command = try_schema(tenant, "orders", document, day, 100)
    assert (trial["events"], trial["refused"]) == (of_command.events, of_command.refused)
    assert (trial["refused"], trial["complete"]) == (1, True)
    (example,) = trial["examples"]
    assert (example["event_id"], example["pointer"]) == ("row", "/data/country")
    assert "/properties/country" in str(trial["incompatibilities"])
    assert new_caller().http.post(address.replace("orders", "baskets"), json=body).status_code == 404
    ended = try_schema(tenant, "orders", document, day, 100, seconds=0)
    assert (ended.events, ended.complete) == (0, False)
