"""Dead letters as people and programs meet them: `pulse dlq` and /v1/dead-letters."""

import base64
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import orjson
import pytest
import typer
from support.here import ingest_here as ingest
from support.http import Api
from support.ingest import SCHEMA, Owner, event, make_owner
from typer.testing import CliRunner, Result

from pulse_api import cli
from pulse_api.cli import dlq as command
from pulse_pipelines import dead_letters, registry
from pulse_pipelines.dead_letters import DeadLetterOutcome, Verdict, verdicts
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.requests import LetterState
from pulse_pipelines.registry import keys

pytestmark = pytest.mark.usefixtures("stack")
HOSTILE = '{"event_id": "\\u001b[31m", "dataset": "no\u009bpe"}'.encode()


def add_dataset(owner: Owner, slug: str) -> None:
    uri = registry.publish_schema(owner.tenant, slug, orjson.dumps(SCHEMA).decode()).schema_uri
    registry.create_dataset(owner.tenant, slug, uri)


@pytest.fixture
def letters() -> Owner:
    """Dead letters at 0 to 3: two for a dataset that there is by now, one broken, one not Unicode."""
    owner = make_owner()
    owner.send(event("a", dataset="late"), event("b", dataset="late"), HOSTILE, b"\xff\x00")
    ingest(owner)
    add_dataset(owner, "late")
    return owner


@pytest.fixture(scope="module")
def read_only(stack: object) -> Owner:
    """Dead letters at 0 and 1 that nobody changes."""
    owner = make_owner()
    owner.send(HOSTILE, b"\xff\x00")
    ingest(owner)
    return owner


# pulse dlq -------------------------------------------------------------------------------------


def dlq(owner: Owner, command: str, *arguments: object, code: int = 0) -> Result:
    words = ["dlq", command, owner.tenant.slug, *(str(argument) for argument in arguments)]
    result = CliRunner().invoke(cli.app, words, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def as_json(owner: Owner, command: str, *arguments: object, code: int = 0) -> Any:
    return json.loads(dlq(owner, command, *arguments, "--json", code=code).stdout)


def test_list_and_summary(letters: Owner) -> None:
    listing = as_json(letters, "list", "--dataset", "late")
    assert [letter["id"] for letter in listing["dead_letters"]] == ["0-1", "0-0"]
    assert listing["next_cursor"] is None
    first = as_json(letters, "list", "--limit", 3)
    (last,) = as_json(letters, "list", "--after", first["next_cursor"])["dead_letters"]
    assert last["id"] == "0-0"
    assert f"--after {first['next_cursor']}" in dlq(letters, "list", "--limit", 3).stderr
    assert as_json(letters, "list", "--since", "1h", "--until", "2126-11-19")["dead_letters"]
    assert not as_json(letters, "list", "--until", "1h")["dead_letters"]
    assert "No such dead letters" in dlq(letters, "list", "--state", "discarded").stderr
    counts = {entry["reason"]: entry["count"] for entry in as_json(letters, "summary")}
    assert counts == {"unknown_dataset": 3, "undecodable": 1}
    assert "unknown_dataset" in dlq(letters, "summary", "--since", "2026-01-01").stdout


@pytest.mark.parametrize("words", [("list", "--since", "soon"), ("list", "--reason", "bad luck"),
                                   ("list", "--limit", "0"), ("list", "--after", "x"), ("replay",),
                                   ("replay", "0-0", "--all"), ("discard", "0-0", "--dataset", "late"),
                                   ("discard", "--all"), ("show", "9-9")], ids=" ".join)  # fmt: skip
def test_wrong_requests(read_only: Owner, words: tuple[str, ...]) -> None:
    assert dlq(read_only, *words, code=2).stderr


def test_show_gives_the_bytes_and_keeps_the_terminal(read_only: Owner) -> None:
    assert dlq(read_only, "show", "0-1", "--raw").stdout_bytes == b"\xff\x00"
    shown = as_json(read_only, "show", "0-1")
    assert (shown["payload"], base64.b64decode(shown["payload_base64"])) == (None, b"\xff\x00")
    assert as_json(read_only, "show", "0-0")["payload"].encode() == HOSTILE
    for result in (dlq(read_only, "show", "0-0"), dlq(read_only, "list")):
        assert "\x1b[31m" not in result.stdout
        assert "\x9b" not in result.stdout


def test_an_event_is_shown_on_the_lines_that_its_sender_wrote(letters: Owner) -> None:
    letters.send(b'{"event_id": "lines",\r "dataset": "none",\r\n\t"data": {}}')
    ingest(letters)
    assert '{"event_id": "lines",\n "dataset": "none",\n    "data": {}}' in dlq(letters, "show", "0-4").stdout
    shown = CliRunner().invoke(cli.app, ["trace", letters.tenant.slug, "lines"])
    assert f"What to do: pulse dlq show {letters.tenant.slug} 0-4" in shown.stderr
    dlq(letters, "discard", "0-4")
    assert "What to do" not in CliRunner().invoke(cli.app, ["trace", letters.tenant.slug, "lines"]).output


def test_letters_beyond_those_that_are_listed_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    tally = verdicts.Tally()
    tally.add(Verdict(f"0-{number}", DeadLetterOutcome.REJECTED) for number in range(verdicts.SHOWN + 500))
    with pytest.raises(typer.Exit):
        command._show(tally.result(None, dry_run=True), as_json=False)
    shown = capsys.readouterr()
    assert "1,500 still cannot land" in shown.out
    assert "… and 500 more, beyond the first 1,000 letters" in shown.err


def test_replay_and_discard(letters: Owner) -> None:
    tried = as_json(letters, "replay", "--all", "--dry-run", code=1)
    assert (tried["dry_run"], tried["counts"]) == (True, {"would_land": 2, "rejected": 2})
    assert "would land" in dlq(letters, "replay", "--dataset", "late", "--dry-run").stdout
    assert as_json(letters, "replay", "0-0", "7-7", code=1)["counts"] == {"published": 1, "not_found": 1}
    output = dlq(letters, "replay", "--all", code=1).stdout
    assert "1 published again" in output
    assert "2 still cannot land" in output
    assert "0-3" in output, "which"
    assert as_json(letters, "discard", "--all", "--dry-run")["counts"] == {"discarded": 2}
    assert as_json(letters, "discard", "--reason", "undecodable", "--yes")["counts"] == {"discarded": 1}
    assert as_json(letters, "discard", "0-0", "0-2", code=1)["counts"] == {
        "already_replayed": 1,
        "discarded": 1,
    }
    assert "No such open dead letters" in dlq(letters, "replay", "--all").stderr
    ingest(letters)
    assert sorted(row["id"] for row in letters.rows("late")) == ["a", "b"]


# /v1/dead-letters ------------------------------------------------------------------------------

URL = "/v1/dead-letters"


@pytest.fixture
def http(api: Api) -> Iterator[httpx.Client]:
    with api.client() as client:
        yield client


@cache
def keyring(owner: Owner) -> dict[tuple[KeyScope, ...], str]:
    """Keys of the owner, issued before it is first seen over HTTP."""
    scope_sets = [(KeyScope.COLLECT,), (KeyScope.READ,), (KeyScope.MANAGE,), (KeyScope.READ, KeyScope.MANAGE)]
    return {scopes: keys.issue_key(owner.tenant, "test", scopes).text for scopes in scope_sets}


def key(owner: Owner, *scopes: KeyScope) -> dict[str, str]:
    return {"Authorization": f"Bearer {keyring(owner)[scopes or (KeyScope.READ, KeyScope.MANAGE)]}"}


def test_listing_over_http(http: httpx.Client, letters: Owner) -> None:
    mine = key(letters, KeyScope.READ)
    page = http.get(URL, headers=mine, params={"limit": 3}).json()
    assert [letter["id"] for letter in page["dead_letters"]] == ["0-3", "0-2", "0-1"]
    assert {letter["state"] for letter in page["dead_letters"]} == {"open"}
    page = http.get(URL, headers=mine, params={"cursor": page["next_cursor"]}).json()
    assert ([letter["id"] for letter in page["dead_letters"]], page["next_cursor"]) == (["0-0"], None)
    listing = http.get(URL, headers=mine, params={"dataset": "late", "since": "2026-01-01T00:00:00Z"}).json()
    assert len(listing["dead_letters"]) == 2
    total = http.get(f"{URL}/summary", headers=mine, params={"reason": "unknown_dataset"}).json()
    assert (total["total"], [entry["reason"] for entry in total["reasons"]]) == (3, ["unknown_dataset"])


@pytest.mark.parametrize(
    "query",
    [{"limit": 0}, {"limit": 1001}, {"since": "2026-01-01T00:00:00"}, {"reason": "x"},
     {"state": "x"}, {"dataset": "\0"}, {"other": 1}],
    ids=str,
)  # fmt: skip
def test_wrong_queries(http: httpx.Client, read_only: Owner, query: dict[str, Any]) -> None:
    answer = http.get(URL, headers=key(read_only), params=query)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")


def test_an_unknown_cursor_is_answered_with_404(http: httpx.Client, read_only: Owner) -> None:
    mine = key(read_only)
    assert http.get(URL, headers=mine, params={"cursor": "x"}).status_code == 404
    for action in ("replay", "discard"):
        body = {"filter": {}, "cursor": "x"}
        assert http.post(f"{URL}/{action}", headers=mine, json=body).status_code == 404


def test_one_as_json_or_as_its_bytes(http: httpx.Client, read_only: Owner) -> None:
    mine = key(read_only, KeyScope.READ)
    body = http.get(f"{URL}/0-1", headers=mine).json()
    assert (body["payload"], base64.b64decode(body["payload_base64"])) == (None, b"\xff\x00")
    assert http.get(f"{URL}/0-0", headers=mine).json()["payload"].encode() == HOSTILE
    raw = http.get(f"{URL}/0-1", headers=mine | {"Accept": "application/octet-stream"})
    assert (raw.content, raw.headers["content-type"]) == (b"\xff\x00", "application/octet-stream")
    assert http.get(f"{URL}/0-1", headers=mine | {"Accept": "text/html"}).status_code == 406
    for lost in ("0-9", "x", "0-1%00"):
        assert http.get(f"{URL}/{lost}", headers=mine).status_code == 404


def test_replay_and_discard_over_http(http: httpx.Client, letters: Owner) -> None:
    mine = key(letters, KeyScope.MANAGE)
    tried = http.post(f"{URL}/replay", headers=mine, json={"filter": {}, "dry_run": True}).json()
    assert (tried["total"], tried["counts"]) == (4, {"would_land": 2, "rejected": 2})
    step = http.post(f"{URL}/replay", headers=mine, json={"filter": {"dataset": "late"}, "limit": 1}).json()
    assert (step["counts"], step["verdicts"][0]["id"]) == ({"published": 1}, "0-0")
    request = {"filter": {"dataset": "late"}, "cursor": step["next_cursor"], "schema_version": 1}
    done = http.post(f"{URL}/replay", headers=mine, json=request).json()
    assert (done["counts"], done["next_cursor"]) == ({"published": 1}, None)
    named = http.post(f"{URL}/discard", headers=mine, json={"ids": ["0-0", "0-3", "5-5"]}).json()
    assert {v["id"]: v["outcome"] for v in named["verdicts"]} == {
        "0-0": "already_replayed",
        "0-3": "discarded",
        "5-5": "not_found",
    }
    assert [letter.letter_id for letter in dead_letters.list_dead_letters(letters.tenant).letters] == ["0-2"]
    ingest(letters)
    assert sorted(row["id"] for row in letters.rows("late")) == ["a", "b"]


@pytest.mark.parametrize(
    "body",
    [{}, {"ids": []}, {"ids": ["0-0"], "filter": {}}, {"ids": ["x"]}, {"ids": ["0-0"] * 1001},
     {"filter": {"x": 1}},
     {"filter": {}, "limit": 0}, {"filter": {"reason": "x"}}, {"ids": "0-0"},
     {"filter": {"dataset": "a\0"}}, {"filter": {"since": "today"}}, [], None],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("action", ["replay", "discard"])
def test_wrong_bodies(http: httpx.Client, read_only: Owner, action: str, body: Any) -> None:
    answer = http.post(f"{URL}/{action}", headers=key(read_only), json=body)
    assert answer.status_code == 422, answer.text
    assert len(dead_letters.list_dead_letters(read_only.tenant).letters) == 2


def test_reads_and_changes_of_dead_letters_need_a_scope_of_the_tenant(
    http: httpx.Client, read_only: Owner
) -> None:
    other = make_owner()
    reads = [("GET", URL), ("GET", f"{URL}/summary"), ("GET", f"{URL}/0-0")]
    changes = [("POST", f"{URL}/replay"), ("POST", f"{URL}/discard")]
    for method, url in reads + changes:
        body = {"ids": ["0-0"]} if method == "POST" else None
        assert http.request(method, url, json=body).status_code == 401
        assert (
            http.request(method, url, json=body, headers=key(read_only, KeyScope.COLLECT)).status_code == 403
        )
    for method, url in changes:
        answer = http.request(method, url, json={"ids": ["0-0"]}, headers=key(read_only, KeyScope.READ))
        assert answer.status_code == 403
        theirs = http.request(method, url, json={"ids": ["0-0"]}, headers=key(other)).json()
        assert theirs["counts"] == {"not_found": 1}
        assert http.request(method, url, json={"filter": {}}, headers=key(other)).json()["total"] == 0
    assert http.get(URL, headers=key(other)).json()["dead_letters"] == []
    assert http.get(f"{URL}/summary", headers=key(other)).json()["total"] == 0
    assert http.get(f"{URL}/0-0", headers=key(other)).status_code == 404
    open_letters = dead_letters.list_dead_letters(read_only.tenant, state=LetterState.OPEN).letters
    assert len(open_letters) == 2
