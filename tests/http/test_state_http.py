"""States over HTTP: declared, read by key and page by page, dropped; another tenant's are not there."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from support.docs import blocks, run
from support.http import Api, Caller, sample
from support.ingest import ingest, make_owner

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
    return [each["key"] for each in answer.json()["state"]]


def test_what_was_sent_last_is_read_by_its_key(caller: Caller) -> None:
    late = sample("late", country="DE", count=1) | {"timestamp": "2026-11-18T10:00:00Z"}
    events = [sample("a", country="DE", count=2), sample("b", country="a/b c", count=3), late]
    assert caller.collect(events).json()["accepted"] == 3
    ingest(caller.owner)
    found = caller.http.get(f"{PATH}/DE")
    assert found.json() == {
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


def test_another_tenants_key_is_as_one_that_there_is_not(
    caller: Caller, new_caller: Callable[..., Caller]
) -> None:
    caller.collect(sample("a", country="secret"))
    ingest(caller.owner)
    other = new_caller()
    assert other.http.put(PATH, json={"latest_by": "country"}).status_code == 200
    theirs, unknown = (other.http.get(f"{PATH}/{key}") for key in ("secret", "unknown"))
    assert theirs.status_code == unknown.status_code == 404
    assert theirs.json()["detail"] == unknown.json()["detail"]
    assert keys(other.http.get(PATH)) == []
    assert caller.http.get(f"{PATH}/secret").status_code == 200


def test_what_is_not_there_is_said(caller: Caller) -> None:
    assert caller.http.get("/v1/datasets/nobody/state/DE").status_code == 404
    assert caller.http.put(PATH, json={"latest_by": "count"}).status_code == 409
    assert caller.http.put(PATH, json={"latest_by": "address"}).status_code == 422
    assert caller.http.put(PATH, json={"latest_by": "country", "max_keys": 10**9}).status_code == 422
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
    first, second = (re.sub(r"\bacme\b", owner.tenant.slug, each) for each in blocks("state.md"))
    run(first, tmp_path, KEY=key, PULSE=api.url)
    ingest(owner)
    said = run(second, tmp_path, KEY=key, PULSE=api.url)
    assert said.count('"event_id":"p-2"') == 2, "by its key, and in the page"
    assert said.strip().endswith('"state":[]}'), "after the last key"
