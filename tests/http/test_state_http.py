"""States over HTTP: declared, read by key and page by page, dropped; another tenant's are not there."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from support.docs import blocks, run
from support.here import ingest_here as ingest
from support.http import Api, Caller, sample
from support.ingest import make_owner

from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.registry import keys as registered

PATH = "/v1/datasets/orders/state"


@pytest.fixture
def caller(new_caller: Callable[..., Caller]) -> Caller:
    caller = new_caller()
    declared = caller.http.put(PATH, json={"latest_by": "country", "max_keys": 50})
    assert declared.status_code == 200, declared.text
    assert declared.json()["complete"]
    return caller


def keys(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [row["key"] for row in answer.json()["state"]]


def test_the_latest_event_is_read_by_its_key(caller: Caller) -> None:
    late = sample("late", country="DE", count=1) | {"timestamp": "2026-11-18T10:00:00Z"}
    events = [sample("a", country="DE", count=2), sample("b", country="a/b c", count=3), late]
    assert caller.collect(events).json()["accepted"] == 3
    ingest(caller.owner)
    answer = caller.http.get(f"{PATH}/DE")
    assert answer.json() == {
        "key": "DE",
        "timestamp": "2026-11-19T10:00:00Z",
        "event_id": "a",
        "data": {"country": "DE", "count": 2},
    }
    assert caller.http.get(f"{PATH}/a%2Fb%20c").json()["event_id"] == "b"
    first = caller.http.get(PATH, params={"limit": 1})
    assert keys(first) == ["DE"]
    assert (first.json()["keys"], first.json()["left_out"], first.json()["max_keys"]) == (2, 0, 50)
    assert keys(caller.http.get(PATH, params={"after": "DE"})) == ["a/b c"]
    assert keys(caller.http.get(PATH, params={"after": "a/b c"})) == []


def test_windows_are_those_of_the_moment_asked_for(caller: Caller) -> None:
    windows = {"sums": ["count"], "session_gap_s": 600}
    declared = caller.http.put(PATH, json={"latest_by": "country", "windows": windows}).json()
    assert declared["windows"]["complete"]
    events = [sample("a", country="DE", count=2**53), sample("b", country="DE", count=2**53 - 1)]
    assert caller.collect(events).json()["accepted"] == 2
    ingest(caller.owner)
    state = caller.http.get(f"{PATH}/DE", params={"as_of": "2026-11-19T10:04:59.5Z"}).json()
    assert state["event_id"] == "b"
    assert state["windows"] == {
        "to": "2026-11-19T10:05:00Z",
        "complete": True,
        "5m": {"from": "2026-11-19T10:00:00Z", "events": 2, "sums": {"count": 2**54 - 1}},
        "1h": {"from": "2026-11-19T09:05:00Z", "events": 2, "sums": {"count": 2**54 - 1}},
        "24h": {"from": "2026-11-18T10:05:00Z", "events": 2, "sums": {"count": 2**54 - 1}},
        "session": {
            "first": "2026-11-19T10:00:00Z",
            "last": "2026-11-19T10:00:00Z",
            "events": 2,
            "open": True,
            "complete": True,
        },
    }
    now = caller.http.get(f"{PATH}/DE").json()["windows"]
    assert (now["24h"]["events"], now["session"]["open"]) == (0, False), "long ago"
    long_ago = caller.http.get(f"{PATH}/DE", params={"as_of": "2026-11-01T10:00:00Z"}).json()["windows"]
    assert (long_ago["5m"], long_ago["session"]) == (None, None)
    about = caller.http.get(PATH).json()["windows"]
    assert (about["buckets"], about["kept_from"], about["full"]) == (1, "2026-11-18T09:01:00Z", False)


def test_a_newline_belongs_to_the_key(caller: Caller) -> None:
    assert caller.collect([sample("a", country="DE"), sample("b", country="D\nE\n")]).json()["accepted"] == 2
    ingest(caller.owner)
    assert caller.http.get(f"{PATH}/D%0AE%0A").json()["event_id"] == "b"
    assert caller.http.get(f"{PATH}/DE").json()["event_id"] == "a"
    assert [caller.http.get(f"{PATH}/{key}").status_code for key in ("DE%0A", "D%0AE")] == [404, 404]


def test_a_state_key_of_another_tenant_is_answered_like_an_absent_one(
    caller: Caller, new_caller: Callable[..., Caller]
) -> None:
    caller.collect(sample("a", country="secret"))
    ingest(caller.owner)
    other = new_caller()
    assert other.http.put(PATH, json={"latest_by": "country"}).status_code == 200
    foreign, unknown = (other.http.get(f"{PATH}/{key}") for key in ("secret", "unknown"))
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.json()["detail"] == unknown.json()["detail"]
    assert keys(other.http.get(PATH)) == []
    assert caller.http.get(f"{PATH}/secret").status_code == 200


def test_missing_and_wrong_states_are_refused(caller: Caller) -> None:
    assert caller.http.get("/v1/datasets/nobody/state/DE").status_code == 404
    assert caller.http.put(PATH, json={"latest_by": "count"}).status_code == 409
    assert caller.http.put(PATH, json={"latest_by": "address"}).status_code == 422
    assert caller.http.put(PATH, json={"latest_by": "country", "max_keys": 10**9}).status_code == 422
    for windows in ({"sums": ["country"]}, {"session_gap_s": 1}, {"max_buckets": 10**9}, {"sum": "count"}):
        refused = caller.http.put(PATH, json={"latest_by": "country", "windows": windows})
        assert refused.status_code == 422, windows
    assert caller.http.get(f"{PATH}/DE", params={"as_of": "yesterday"}).status_code == 422
    assert caller.http.get(f"{PATH}/DE", params={"as_of": "9999-12-31T23:59:59Z"}).status_code == 422
    assert caller.http.get(f"{PATH}/%00").status_code == 404
    assert caller.http.get(PATH, params={"after": "\0"}).status_code == 200
    assert caller.http.delete(PATH).json() == {"dropped": "country"}
    for answer in (caller.http.get(PATH), caller.http.get(f"{PATH}/DE"), caller.http.delete(PATH)):
        assert answer.status_code == 409
        assert "no state" in answer.text


@pytest.mark.skipif(not shutil.which("curl"), reason="commands of the page")
def test_every_command_of_the_page_works(api: Api, tmp_path: Path) -> None:
    owner = make_owner()
    key = registered.issue_key(owner.tenant, "docs", list(KeyScope)).text
    first, second, third = (re.sub(r"\bacme\b", owner.tenant.slug, block) for block in blocks("state.md"))
    run(first, tmp_path, KEY=key, PULSE=api.url)
    ingest(owner)
    output = run(second, tmp_path, KEY=key, PULSE=api.url)
    assert output.count('"event_id":"p-2"') == 2, "by its key, and in the page"
    assert output.strip().endswith('"state":[]}'), "after the last key"
    *_, answer = run(third, tmp_path, KEY=key, PULSE=api.url).partition('{"key"')
    (expected,) = blocks("state.md", "json")
    assert json.loads('{"key"' + answer)["windows"] == json.loads(expected)["windows"], "as the page says"
