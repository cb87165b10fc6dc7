"""Entities over HTTP: pushed, refused with words, read page by page, and told when a log begins anew."""

import gzip
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from support.entities import SCHEMA, SLUG, make_entities
from support.here import ingest_here as ingest
from support.http import Caller

from pulse_pipelines import registry
from pulse_pipelines.registry import quotas

PATH = f"/v1/datasets/{SLUG}/entities"


@pytest.fixture
def caller(new_caller: Callable[..., Caller]) -> Caller:
    caller = new_caller()
    make_entities(caller.owner)
    return caller


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_pushed_entities_are_read_page_by_page(caller: Caller) -> None:
    pushed = [{"_id": str(n), "name": "x" * n, "area": n / 2, "_ts": "not kept"} for n in range(5)]
    assert caller.http.post(PATH, json=pushed).json()["accepted"] == 5
    more = b"\n".join(json.dumps(entity).encode() for entity in (pushed[4], {"_id": "0", "_deleted": True}))
    headers = {"content-type": "application/x-ndjson", "content-encoding": "gzip"}
    assert caller.http.post(PATH, content=gzip.compress(more), headers=headers).status_code == 202
    ingest(caller.owner)
    first = caller.http.get(PATH, params={"limit": 4})
    assert first.headers["content-encoding"] == "gzip"
    second = caller.http.get(PATH, params={"since": first.headers["pulse-since"]})
    entities = lines(first) + lines(second)
    assert sorted(entity["_updated"] for entity in entities) == list(range(1, 7))
    newest = {entity["_id"]: entity for entity in entities}
    assert newest["0"].items() >= {"_deleted": True, "_hash": None}.items()
    assert "name" not in newest["0"]
    assert newest["3"].items() >= {"name": "xxx", "area": 1.5, "_deleted": False}.items()
    end = caller.http.get(PATH, params={"since": second.headers["pulse-since"]})
    assert (lines(end), end.headers["pulse-since"]) == ([], second.headers["pulse-since"])
    generation = end.headers["pulse-since"].partition("-")[0]
    beyond = caller.http.get(PATH, params={"since": f"{generation}-7"})  # one more than there are
    assert beyond.status_code == 409, beyond.text
    assert beyond.json()["since"] == f"{generation}-0"
    columns = {"columns": "id,_updated,_hash,ingested_at"}
    preview = caller.http.get(f"/v1/datasets/{SLUG}/preview", params=columns).json()
    accepted = {row["_updated"]: row["ingested_at"] for row in preview["rows"]}
    assert accepted == {entity["_updated"]: entity["_ts"] for entity in entities}, (
        "one form, wherever it is read"
    )
    answer = caller.http.post("/v1/sql", json={"sql": f"SELECT _updated, ingested_at FROM {SLUG}"}).json()
    assert {row["_updated"]: row["ingested_at"] for row in answer["rows"]} == accepted


def test_an_invalid_entity_is_refused_with_a_reason(caller: Caller) -> None:
    sent = [{"name": "nobody"}, {"_id": "a", "name": 5}, {"_id": "b", "_deleted": 1}, "c", {"_id": "good"}]
    answer = caller.http.post(PATH, json=sent)
    assert answer.status_code == 207
    actual = {
        verdict["index"]: (verdict["reason"], verdict["pointer"]) for verdict in answer.json()["verdicts"]
    }
    assert actual == {
        0: ("invalid_envelope", "/_id"),
        1: ("schema_violation", "/name"),
        2: ("invalid_envelope", "/_deleted"),
        3: ("invalid_envelope", ""),
    }
    assert "_id must be a string" in answer.json()["verdicts"][0]["detail"]
    body = b'{"_id": "a", "people": 123456789012345678901234567890}\nnot JSON\n'
    body += b'{"_id": "deep", "name": ' + b"[" * 1_000 + b"]" * 1_000 + b"}"
    headers = {"content-type": "application/x-ndjson"}
    answer = caller.http.post(PATH, content=body, headers=headers)
    assert answer.status_code == 422
    reasons = [verdict["reason"] for verdict in answer.json()["verdicts"]]
    assert reasons == ["integer_out_of_range", "undecodable", "too_deep"]
    cloud = {"content-type": "application/cloudevents+json"}
    assert caller.http.post(PATH, content=b"{}", headers=cloud).status_code == 415


def test_events_and_entities_keep_to_their_datasets(
    caller: Caller, new_caller: Callable[..., Caller]
) -> None:
    assert caller.http.post("/v1/datasets/orders/entities", json={"_id": "a"}).status_code == 409
    assert caller.http.get("/v1/datasets/orders/entities").status_code == 409
    event = {"event_id": "a", "dataset": SLUG, "timestamp": "2026-11-19T10:00:00Z", "data": {}}
    large = event | {"context": "x" * 100_000}  # validated in another process
    for sent in (event, large):
        refused = caller.http.post("/v1/collect", json=sent)
        (verdict,) = refused.json()["verdicts"]
        assert (refused.status_code, verdict["reason"]) == (422, "unknown_dataset")
        assert verdict["detail"] == f"{SLUG!r} holds entities: send them with POST {PATH}"
    foreign = new_caller().http.post("/v1/collect", json=event)
    (verdict,) = foreign.json()["verdicts"]
    assert (foreign.status_code, verdict["detail"]) == (422, f"the tenant has no dataset {SLUG!r}")


def test_a_restarted_log_answers_old_cursors_with_a_conflict(caller: Caller) -> None:
    before = caller.http.get(PATH)
    assert (before.text, before.headers["pulse-since"].endswith("-0")) == ("", True)
    assert caller.http.delete(f"/v1/datasets/{SLUG}").status_code == 200
    uri = f"pulse://{caller.owner.tenant.slug}/{SLUG}/1"
    again = caller.http.post("/v1/datasets", json={"slug": SLUG, "schema_uri": uri, "kind": "entities"})
    assert (again.status_code, again.json()["kind"]) == (201, "entities")
    conflict = caller.http.get(PATH, params={"since": before.headers["pulse-since"]})
    assert conflict.status_code == 409
    assert caller.http.get(PATH, params={"since": conflict.json()["since"]}).status_code == 200
    beyond = conflict.json()["since"].removesuffix("0") + "7"
    assert caller.http.get(PATH, params={"since": beyond}).status_code == 409
    assert caller.http.get(PATH, params={"since": "yesterday"}).status_code == 422


def test_datasets_of_entities_have_a_quota_of_their_own(caller: Caller) -> None:
    tenant = caller.owner.tenant
    quotas.set_limits(tenant, max_datasets=1, max_entity_datasets=2)
    uri = f"pulse://{tenant.slug}/{SLUG}/1"

    def create(slug: str, kind: str) -> int:
        return caller.http.post(
            "/v1/datasets", json={"slug": slug, "schema_uri": uri, "kind": kind}
        ).status_code

    assert [create("more", "entities"), create("most", "entities"), create("more_events", "events")] == [
        201,
        429,
        429,
    ]
    assert caller.http.get("/v1/usage").json()["limits"]["maxEntityDatasets"] == 2
    quotas.set_limits(tenant, max_records_per_month=1)  # of events
    assert caller.http.post(PATH, json=[{"_id": "a"}, {"_id": "b"}]).status_code == 202


def test_a_schema_of_entities_declares_nothing_that_is_not_stored(caller: Caller) -> None:
    schema = SCHEMA | {"properties": SCHEMA["properties"] | {"_rank": {"type": "integer"}}}
    uri = registry.publish_schema(caller.owner.tenant, "ranked", json.dumps(schema)).schema_uri
    body = {"slug": "ranked", "schema_uri": uri, "kind": "entities"}
    refused = caller.http.post("/v1/datasets", json=body)
    assert refused.status_code == 422
    assert "_rank" in refused.json()["detail"]
    assert caller.http.post("/v1/datasets", json=body | {"kind": "events"}).status_code == 201


INDEXES = f"/v1/datasets/{SLUG}/indexes"


def test_a_subset_is_read_by_an_index_of_one_s_own(new_caller: Callable[..., Caller]) -> None:
    mine, neighbour = new_caller(), new_caller()
    for caller, name in ((mine, "x"), (neighbour, "y")):
        make_entities(caller.owner)
        refused = caller.http.get(PATH, params={"subset": "lower(name)=x"})
        assert (refused.status_code, "no index by lower(name)" in refused.json()["detail"]) == (409, True)
        caller.http.post(PATH, json=[{"_id": name, "name": name.upper()}, {"_id": "z", "name": "x"}])
    ingest(mine.owner, neighbour.owner)
    answer = mine.http.post(INDEXES, json={"expression": "lower( name )"})
    assert answer.status_code == 201, answer.text
    assert answer.json().items() >= {"expression": "lower(name)", "behind": 0, "entries": 2}.items()
    assert neighbour.http.post(INDEXES, json={"expression": "lower(name)"}).status_code == 201
    whole = {entity["_updated"]: entity for entity in lines(mine.http.get(PATH))}
    within = lines(mine.http.get(PATH, params={"subset": "lower(name)=x"}))
    assert [whole[entity["_updated"]] for entity in within] == within
    assert len(within) == 2
    assert [
        entity["_id"] for entity in lines(neighbour.http.get(PATH, params={"subset": "lower(name)=x"}))
    ] == ["z"]
    (index,) = mine.http.get(INDEXES).json()["indexes"]
    assert (len(index["readers"]), index["orphaned"], index["read_at"] is None) == (1, False, False)
    preview = mine.http.get(
        f"/v1/datasets/{SLUG}/preview", params={"subset": "lower(name)=x", "columns": "id"}
    )
    assert sorted(row["id"] for row in preview.json()["rows"]) == ["x", "z"]
    drop = f"{INDEXES}/{index['index_id']}"
    assert neighbour.http.delete(drop).status_code == 404, "it is another tenant's"
    assert len(mine.http.get(INDEXES).json()["indexes"]) == 1
    assert mine.http.delete(drop).json() == {"dropped": "lower(name)"}
    assert [mine.http.delete(drop).status_code, mine.http.get(INDEXES).json()] == [404, {"indexes": []}]
    for wrong in ("nam", "name; DROP TABLE entity_logs", "x" * 501):
        assert mine.http.post(INDEXES, json={"expression": wrong}).status_code == 422
    for wrong in ("name", "=x", "name=x&limit=0"):
        assert mine.http.get(f"{PATH}?subset={wrong}").status_code == 422


def test_a_part_that_is_sent_again_takes_nothing_back(caller: Caller) -> None:
    params = {"sequence_id": "s", "request_id": "a", "is_full": True, "is_first": True}
    body = [{"_id": "DE", "name": "old"}, {"_id": "x", "name": 5}]
    first = caller.http.post(PATH, params=params, json=body)
    ingest(caller.owner)
    caller.http.post(PATH, json=[{"_id": "DE", "name": "new"}])
    ingest(caller.owner)
    again = caller.http.post(PATH, params=params, json=body)
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    caller.http.post(PATH, json=[{"_id": "FR"}])
    ingest(caller.owner)
    assert [entity.get("name") for entity in lines(caller.http.get(PATH)) if entity["_id"] == "DE"] == [
        "old",
        "new",
    ]


LONG = b"[" + b" " * 300_000 + b"]"
"""An empty array that is read by a worker process."""


def test_a_part_is_empty_however_its_request_is_framed(caller: Caller) -> None:
    """Clients that stream send chunks, also of nothing."""
    bodies: dict[str, dict[str, Any]] = {
        "length 0": {"content": b""},
        "chunks": {"content": iter([])},
        "lines": {"content": iter([b"\n"]), "headers": {"content-type": "application/x-ndjson"}},
        "array": {"json": []},
        "array with white space": {"content": b"\n[ \r\n\t]\n"},
        "array after a byte order mark": {"content": b"\xef\xbb\xbf[]"},
        "gzip": {"content": gzip.compress(b""), "headers": {"content-encoding": "gzip"}},
        "gzip, long": {"content": gzip.compress(LONG, 0), "headers": {"content-encoding": "gzip"}},
    }
    for name, body in bodies.items():
        params = {"sequence_id": name, "is_full": True}
        first = caller.http.post(
            PATH, params=params | {"request_id": 1, "is_first": True}, json=[{"_id": "1"}]
        )
        chain = {"request_id": 2, "previous_request_id": 1, "is_last": True}
        answer = caller.http.post(PATH, params=params | chain, **body)
        assert (first.status_code, answer.status_code, answer.json()["accepted"]) == (202, 202, 0), name
    assert caller.http.post(PATH, json=[]).status_code == 400, "it is not a part"
    states = {
        sync["sequence_id"]: sync["parts"]
        for sync in caller.http.get(f"/v1/datasets/{SLUG}/syncs").json()["syncs"]
    }
    assert states == dict.fromkeys(bodies, 2)


def test_a_refused_first_part_overtakes_no_other_sync(caller: Caller) -> None:
    """What was not accepted has no effect: the sync before it still deletes."""
    alone = {"request_id": 1, "is_full": True, "is_first": True, "is_last": True}
    caller.http.post(PATH, json=[{"_id": str(n)} for n in range(10)])
    ingest(caller.owner)
    nine = [{"_id": str(n)} for n in range(9)]
    assert caller.http.post(PATH, params=alone | {"sequence_id": "good"}, json=nine).status_code == 202
    for body, status in ((b"{", 400), (b'{"_id": "1", "name": 5}', 422)):
        answer = caller.http.post(PATH, params=alone | {"sequence_id": "bad"}, content=body)
        assert answer.status_code == status, answer.text
    ingest(caller.owner)
    ingest(caller.owner)  # what it deletes
    states = {
        sync["sequence_id"]: sync["state"] for sync in caller.http.get(f"{PATH[:-8]}syncs").json()["syncs"]
    }
    assert states == {"good": "done", "bad": "open"}
    assert [entity["_id"] for entity in lines(caller.http.get(PATH)) if entity["_deleted"]] == ["9"]
    assert caller.http.post(PATH, params=alone | {"sequence_id": "bad"}, json=nine).status_code == 202


def test_a_full_sync_of_several_requests(caller: Caller) -> None:
    def part(request: str, after: str | None = None, *, last: bool = False, **content: Any) -> httpx.Response:
        params = {"sequence_id": "s", "request_id": request, "is_full": True, "is_first": after is None}
        chain = {} if after is None else {"previous_request_id": after}
        return caller.http.post(PATH, params=params | {"is_last": last} | chain, **content)

    caller.http.post(PATH, json=[{"_id": str(n)} for n in range(10)])
    ingest(caller.owner)
    assert part("a", json=[{"_id": str(n)} for n in range(8)]).status_code == 202
    assert part("a", json=[{"_id": str(n)} for n in range(8)]).status_code == 202, "its answer was lost"
    broken = part("c", "b", json=[{"_id": "8"}])
    assert (broken.status_code, broken.json()["type"]) == (409, "urn:pulse:problem:conflict")
    assert part("b", "a", json=[{"_id": "8", "name": 5}]).status_code == 422, "this part was not taken"
    assert part("b", "a", json=[{"_id": "8"}, {"_id": "x", "name": 5}]).status_code == 207
    assert part("c", "b", last=True).json()["accepted"] == 0
    for params in ({"is_full": "yes", "sequence_id": "s", "request_id": "r"}, {"is_full": "true"}):
        assert caller.http.post(PATH, json=[{"_id": "1"}], params=params).status_code == 422
    ingest(caller.owner)
    ingest(caller.owner)  # what it deletes
    (sync,) = caller.http.get(f"/v1/datasets/{SLUG}/syncs").json()["syncs"]
    assert sync.items() >= {"state": "done", "parts": 3, "refused": 1, "deleted": 1, "absent": 1}.items()
    deletions = {entity["_id"]: entity["_deleted"] for entity in lines(caller.http.get(PATH))}
    assert [key for key, deleted in deletions.items() if deleted] == ["9"]
    refused = caller.http.post(f"/v1/datasets/{SLUG}/syncs/{sync['sync_id']}/commit")
    assert refused.status_code == 409
