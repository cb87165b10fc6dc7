"""What the console says in a browser, by answers in the form of the API's: no service runs."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from console.conftest import BIG
from playwright.sync_api import Browser, Page, Route, expect

from pulse_api.console.pages import KINDS, release

pytestmark = pytest.mark.long  # each opens a page of a browser
ORIGIN = "http://pulse.test"
KEY = f"pulse_{'0' * 32}_{'1' * 12}_{'a' * 43}"
IDENTITY = {
    "tenant": "acme",
    "name": "tests",
    "key_id": "1" * 12,
    "scopes": ["read", "manage"],
    "topic": "pulse.1.events",
    "expires_at": None,
}
NOT_FOUND = {
    "type": "urn:pulse:problem:not-found",
    "detail": "no such dataset",
    "fix": "GET /openapi.json lists the paths; each list, such as GET /v1/datasets, says what there is",
    "request_id": "r-1",
}
INVALID = {
    "type": "urn:pulse:problem:invalid-request",
    "detail": "path.slug: string should match pattern '^[a-z][a-z0-9_]{0,62}$'",
    "errors": [{"at": "path.slug", "problem": "string should match pattern '^[a-z][a-z0-9_]{0,62}$'"}],
    "fix": "Correct the request: GET /openapi.json says what each path takes",
    "request_id": "r-1",
}
OF_DEVELOPERS = re.compile(r"openapi|pattern|GET /|/v1/|path\.|Retry-After|request_id|undefined|[{}]")
Answers = dict[str, Any]
"""JSON of the API by path; an integer with a document is a status, a function takes the parameters."""
Visit = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opens a page of the console whose API gives these answers, and by default that there is nothing."""
    with ExitStack() as tabs:

        def open_page(path: str, answers: Answers | None = None, fragment: str = f"#key={KEY}") -> Page:
            page = browser.new_page()
            tabs.callback(page.close)
            page.route("**/*", lambda route: answer(route, {"/v1/keys/current": IDENTITY} | (answers or {})))
            page.goto(f"{ORIGIN}/console{path}{fragment}")
            return page

        yield open_page


def answer(route: Route, answers: Answers) -> None:
    path = unquote(urlsplit(route.request.url).path)
    if path.startswith("/console/static/"):
        name = path.rpartition("/")[2]
        kind = KINDS[f".{name.rpartition('.')[2]}"]
        route.fulfill(body=release().files[name], content_type=kind)
    elif path.startswith("/console"):
        route.fulfill(body=release().page, content_type="text/html")
    else:
        status, document = 404, NOT_FOUND
        if path in answers:
            known = answers[path]
            if callable(known):
                known = known(parse_qs(urlsplit(route.request.url).query))
            status, document = known if isinstance(known, tuple) else (200, known)
        route.fulfill(status=status, json=document)


def alert(page: Page) -> str:
    """The one error that the page shows."""
    shown = page.get_by_role("alert")
    expect(shown).to_have_count(1)
    return shown.inner_text()


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("path", "words", "way_on"),
    [
        ("/datasets/absent", "There is no dataset absent.", "All datasets"),
        ("/datasets/__proto__", "There is no dataset __proto__.", "All datasets"),
        ("/datasets/%E0%A4%A", "There is no dataset %E0%A4%A.", "All datasets"),
        ("/pipes/__proto__", "There is no pipe __proto__.", "All pipes"),
        ("/dead-letters/0-1", "There is no dead letter 0-1.", "All dead letters"),
        ("/schemas/__proto__", "There is no schema __proto__.", "All schemas"),
        ("/trace?event=absent", "No such event was accepted", "Compare it with what the sender has sent"),
        ("/trace?event=.", "An address cannot have the name “.”", "command line"),
        ("/trace?event=..", "An address cannot have the name “..”", "command line"),
    ],
)
def test_an_absent_object_is_named_with_a_way_to_continue(
    path: str, words: str, way_on: str, visit: Visit
) -> None:
    invalid = {
        f"/v1/{kind}/{name}": (422, INVALID) for kind in ("datasets", "pipes") for name in ("__proto__",)
    }
    unknown = {**NOT_FOUND, "detail": "no such event was accepted, or it is older than what is remembered"}
    page = visit(path, {"/v1/schemas": {"schemas": []}, "/v1/events/absent": (404, unknown), **invalid})
    text = alert(page)
    assert words in text
    assert way_on in text
    assert not OF_DEVELOPERS.search(text), text


@pytest.mark.parametrize("path", ["/__proto__", "/constructor/x", "/%E0%A4%A"])
def test_an_address_of_no_page_leads_to_the_overview(path: str, visit: Visit) -> None:
    page = visit(path)
    expect(page.get_by_role("heading", name="No such page")).to_be_visible()
    expect(page.get_by_role("link", name="Go to the overview")).to_be_visible()


@pytest.mark.parametrize(
    ("status", "document", "words"),
    [
        (422, INVALID, "slug: "),
        (
            500,
            {
                "detail": "internal error of Pulse",
                "fix": "Report the request_id: the log",
                "request_id": "r-9",
            },
            "Internal error of Pulse",
        ),
        (409, {"detail": "it's gone", "fix": "Reload"}, "It's gone"),
        (409, {"detail": "my_set is gone", "fix": "Reload"}, "my_set is gone"),
        (413, None, "The answer is not one of Pulse"),
        (200, "{", "The answer is not one of Pulse"),
    ],
)
def test_an_error_is_for_readers_of_pages(status: int, document: Any, words: str, visit: Visit) -> None:
    page = visit("/usage")
    page.unroute_all()
    content = document if isinstance(document, str) else None

    def usage(route: Route) -> None:
        if content is None:
            answer(route, {"/v1/keys/current": IDENTITY, "/v1/usage": (status, document)})
        elif urlsplit(route.request.url).path == "/v1/usage":
            route.fulfill(status=status, body=content)
        else:
            answer(route, {"/v1/keys/current": IDENTITY})

    page.route("**/*", usage)
    page.reload()
    text = alert(page)
    assert words in text
    assert not re.search(r"GET /|request_id|path\.", text), text


def test_the_reasons_of_a_dry_run_add_up(visit: Visit) -> None:
    """Letters are grouped by place, not by the values in their details."""
    group = {
        "dataset": "orders", "reason": "schema_violation", "place": "/data/count", "count": 1_200,
        "oldest": "2026-11-28T09:00:00Z", "newest": "2026-11-28T09:00:00Z", "example_id": "0-1",
        "example_detail": "wrong", "advice": "Correct the sender",
    }  # fmt: skip

    def rejected(pointer: str, value: int) -> dict[str, Any]:
        detail = f"{value} is not of type text"
        return {
            "id": f"0-{value}", "outcome": "rejected", "dataset": "orders", "event_id": None,
            "reason": "schema_violation", "pointer": pointer, "detail": detail,
        }  # fmt: skip

    verdicts = [rejected(f"/data/items/{number}/price", number) for number in range(40)]
    verdicts += [rejected(f"/data/{name}", number) for name in "abcdefg" for number in range(10)]
    resolved = {
        "dry_run": True, "total": 1_200, "counts": {"would_land": 200, "rejected": 1_000},
        "verdicts": verdicts, "next_cursor": None,
    }  # fmt: skip
    groups = {"as_of": "2026-11-28T09:00:00Z", "groups": [group]}
    page = visit("/dead-letters", {"/v1/dead-letters/groups": groups, "/v1/dead-letters/replay": resolved})
    page.get_by_role("button", name="Dry run").click()
    lines = page.locator(".result li")
    expect(lines).to_have_count(7)
    texts = [line.replace("\u202f", "") for line in lines.all_inner_texts()]
    assert texts[0] == "40 × schema_violation at /data/items/*/price, such as: 0 is not of type text"
    assert texts[-2] == "… and 30 more in 3 groups"
    assert sum(int(re.search(r"\d+", line)[0]) for line in texts) == 1_000  # type: ignore[index]


@pytest.mark.parametrize("fragment", [f"#key={KEY}", f"#{KEY}", f"#{KEY}&x"])
def test_a_key_in_the_address_signs_in_and_leaves_it(fragment: str, visit: Visit) -> None:
    page = visit("/trace", fragment=fragment)
    expect(page.get_by_role("heading", level=1, name="Trace")).to_be_visible()
    assert page.url == f"{ORIGIN}/console/trace"
    assert page.evaluate("sessionStorage.getItem('pulse.key')") == KEY


def test_a_key_that_is_not_in_force_is_named_as_such(visit: Visit) -> None:
    refused = {"detail": "the key is not valid", "fix": "Send Authorization: Bearer <key>"}
    page = visit("/usage", {"/v1/keys/current": (401, refused)})
    text = alert(page)
    assert "This key is not in force." in text
    assert "It is mistyped, was revoked, or has expired." in text
    assert "Bearer" not in text
    assert page.evaluate("sessionStorage.getItem('pulse.key')") is None


def test_long_ids_of_events_are_shortened(visit: Visit) -> None:
    long = "\U0001f600" * 512
    letter = {
        "id": "0-1", "event_id": long, "detail": "wrong", "set_aside_at": "2026-11-28T09:00:00Z",
    }  # fmt: skip
    group = {
        "dataset": "orders", "reason": "schema_violation", "place": "/data", "count": 1,
        "oldest": "2026-11-28T09:00:00Z", "newest": "2026-11-28T09:00:00Z", "example_id": "0-1",
        "example_detail": "wrong", "advice": "Correct the sender",
    }  # fmt: skip
    answers = {
        "/v1/dead-letters/groups": {"as_of": "2026-11-28T09:00:00Z", "groups": [group]},
        "/v1/dead-letters": {"dead_letters": [letter], "next_cursor": None},
    }
    page = visit("/dead-letters?dataset=orders&reason=schema_violation&place=%2Fdata", answers)
    shown = page.get_by_role("region", name="Dead letters").locator("td").nth(1)
    expect(shown).to_have_text(f"{chr(0x1F600) * 60}…")
    assert shown.locator("bdi").get_attribute("title") == long


ORDERS = {
    "slug": "orders", "kind": "events", "table": "t.orders", "schema_uri": "pulse://acme/orders/1",
    "schema_version": 1, "on_invalid": "refuse", "created_at": "2026-11-28T09:00:00Z", "columns": [],
}  # fmt: skip
MEANING = {
    "fields": [],
    "rollups": [
        {"name": "daily", "table": "orders__daily", "description": "", "columns": {}},
        {"name": "behaviour", "table": "orders__behaviour", "description": "Actors", "columns": {}},
        {"name": "types", "table": "orders__types", "description": "<b>", "columns": {"n": "How many"}},
    ],
}
NO_STATE = (409, {"type": "urn:pulse:problem:conflict", "detail": "the dataset has no state"})


def summary_of(rollup: str | None) -> dict[str, Any]:
    rows: dict[str | None, list[dict[str, Any]]] = {
        None: [{"events": 5, "by_hour": [{"hour": 3, "events": 4}, {"hour": 22, "events": 1}]}],
        "behaviour": [{"actors": 3, "sessions": 9}],
        "types": [{"type": "<i>\u202e", "n": 7}, {"type": None, "n": 2}],
    }
    day = {
        "day": "2026-11-20", "computed_at": "2026-11-21T00:00:00Z", "changed_since": False, "error": None,
        "rows": rows[rollup],
    }  # fmt: skip
    grain = ["type"] if rollup == "types" else []
    return {"from": "2026-11-14", "to": "2026-11-20", "grain": grain, "days": [day]}


STATE_OF_ALL = {
    "latest_by": "plane", "keys": 2, "left_out": 0, "complete": True,
    "state": [{"key": "N/1", "timestamp": "2026-11-20T10:00:00Z", "event_id": "e", "data": {}}],
}  # fmt: skip
WINDOW = {"from": "2026-11-20T09:00:00Z", "events": 2, "sums": {"fare": 90}}
KEY_STATE = {
    "key": "N/1", "timestamp": "2026-11-20T10:00:00Z", "event_id": "e-1", "data": {"plane": "N/1"},
    "windows": {
        "to": "2026-11-20T10:01:00Z", "complete": True, "5m": WINDOW, "1h": WINDOW, "24h": None,
        "session": {
            "first": "2026-11-20T09:00:00Z", "last": "2026-11-20T10:00:00Z", "events": 2, "open": True,
            "complete": True,
        },
    },
}  # fmt: skip
OF_A_DATASET = {
    "/v1/datasets/orders": ORDERS,
    "/v1/datasets/orders/snapshots": {"snapshots": []},
    "/v1/datasets/orders/preview": {"rows": []},
    "/v1/datasets/orders/meaning": MEANING,
    "/v1/datasets/orders/summary": lambda query: summary_of(query.get("rollup", [None])[0]),
    "/v1/datasets/orders/state": STATE_OF_ALL,
    "/v1/datasets/orders/state/N/1": KEY_STATE,
    "/v1/dead-letters/groups": {"as_of": "2026-11-28T09:00:00Z", "groups": []},
    "/v1/schemas": {"schemas": []},
    "/v1/lake/connect": {"engines": [], "placeholder": "YOUR_KEY"},
}


def test_a_dataset_shows_hours_and_rollups(visit: Visit) -> None:
    page = visit("/datasets/orders", OF_A_DATASET)
    hours = page.get_by_role("img", name="Events by hour, from 2026-11-20 00:00 UTC to 2026-11-20 23:00 UTC")
    expect(hours.locator("rect")).to_have_count(24)
    expect(hours.locator("title").nth(3)).to_have_text("2026-11-20 03:00 UTC: 4 events")
    expect(page.get_by_role("img", name="actors by day")).to_be_visible()
    page.get_by_label("Measure").first.select_option("sessions")
    expect(page.get_by_role("img", name="sessions by day")).to_be_visible()
    types = page.get_by_role("img", name="n of types, 2 bars")
    expect(types.locator("title").first).to_have_text("<i>\\u{202e}: 7")
    expect(page.get_by_text("How many")).to_be_visible()


def test_a_key_has_its_newest_event_and_its_windows(visit: Visit) -> None:
    page = visit("/datasets/orders", OF_A_DATASET)
    page.get_by_label("Value of plane").fill("absent")
    page.keyboard.press("Enter")
    expect(page.get_by_text("There is no event with the key absent.")).to_be_visible()
    page.get_by_role("button", name="N/1").click()
    windows = page.get_by_role("region", name="Windows")
    expect(windows.get_by_role("row", name="1 hour")).to_contain_text("90")
    expect(windows.get_by_role("row", name="24 hours")).to_contain_text("not kept")
    expect(page.get_by_text("Latest session: 2 events")).to_contain_text("still open")


def test_without_a_state_the_page_teaches_to_declare_one(visit: Visit) -> None:
    page = visit("/datasets/orders", OF_A_DATASET | {"/v1/datasets/orders/state": NO_STATE})
    expect(page.get_by_text("pulse state declare acme orders COLUMN --windows")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_overview_has_a_small_line_of_the_last_day(visit: Visit) -> None:
    def hours(slug: str, events: list[int | None], computed: str | None) -> dict[str, Any]:
        parts = [{"from": f"2026-11-20T{at:02}:00:00Z", "events": count} for at, count in enumerate(events)]
        return {"dataset": slug, "hours": parts, "computed_at": computed, "changed_since": computed is None}

    listed = [
        {"dataset": slug, "rows": 7, "events_landed_last": None, "problem": None}
        for slug in ("orders", "young")
    ]
    answers = {
        "/v1/freshness": {"datasets": listed, "next_after": None},
        "/v1/dead-letters/groups": {"as_of": "2026-11-20T23:30:00Z", "groups": []},
        "/v1/hours": {
            "datasets": [
                hours("orders", [None, *[0] * 22, 1_200], "2026-11-20T23:00:00Z"),
                hours("young", [None] * 24, None),
            ]
        },
    }
    page = visit("", answers)
    line = page.get_by_role("img", name="1\u202f200 events from 2026-11-20 00:00:00 UTC until now, by hour")
    expect(line.locator("rect")).to_have_count(24)
    expect(page.get_by_role("row", name="young")).to_contain_text("being counted")


def test_a_schema_is_tried_on_a_day(visit: Visit) -> None:
    refused = {"event_id": "<b>", "reason": "schema_violation", "pointer": "/data/n", "detail": "wrong"}
    trial = {
        "day": "2026-11-19", "events": 10_000, "refused": 1_500, "refused_already": 2, "examples": [refused],
        "complete": False, "incompatibilities": [{"pointer": "/n", "change": "added", "reason": "narrower"}],
    }  # fmt: skip
    page = visit("/schemas", {"/v1/schemas": {"schemas": []}, "/v1/schemas/try": trial})
    page.get_by_label("JSON Schema").fill("{}")
    page.get_by_label("Dataset that is to follow it").fill("orders")
    page.get_by_label("Day (UTC)").fill("2026-11-19")
    page.get_by_role("button", name="Try on this day").click()
    sentence = "Of the first 10\u202f000 events of 2026-11-19, 1\u202f500 would be refused."
    expect(page.get_by_text(sentence)).to_be_visible()
    expect(page.get_by_text("The present schema refuses 2 more, too.")).to_be_visible()
    expect(page.get_by_role("region", name="Events that would be refused")).to_contain_text("<b>")
    expect(page.get_by_text("narrower")).to_be_visible()


def test_letters_are_replayed_as_the_chosen_version(visit: Visit) -> None:
    group = {
        "dataset": "orders", "reason": "schema_violation", "place": "/data", "count": 1,
        "oldest": "2026-11-28T09:00:00Z", "newest": "2026-11-28T09:00:00Z", "example_id": "0-1",
        "example_detail": "wrong", "advice": "Correct the sender",
    }  # fmt: skip
    answers = {
        "/v1/dead-letters/groups": {"as_of": "2026-11-28T09:00:00Z", "groups": [group]},
        "/v1/dead-letters": {"dead_letters": [], "next_cursor": None},
    }
    page = visit("/dead-letters?dataset=orders&reason=schema_violation&place=%2Fdata", answers)
    page.get_by_label("As schema version").fill("3")
    with page.expect_request("**/v1/dead-letters/replay") as sent:
        page.get_by_role("button", name="Dry run").click()
    body = sent.value.post_data_json
    assert (body["schema_version"], body["dry_run"]) == (3, True)


GROUP = {
    "dataset": "orders", "reason": "schema_violation", "place": "/data", "count": 14,
    "oldest": "2026-11-28T09:00:00Z", "newest": "2026-11-28T09:00:00Z", "example_id": "0-1",
    "example_detail": "wrong", "advice": "Fix the sender",
}  # fmt: skip
OF_LETTERS = {"as_of": "2026-11-28T09:00:00Z", "groups": [GROUP]}
LETTER = {
    "id": "0-1", "dataset": "orders", "event_id": "e-1", "reason": "schema_violation", "pointer": "/data",
    "detail": "'n' is a required property", "size": 20, "received_at": "2026-11-28T09:00:00Z",
    "set_aside_at": "2026-11-28T09:00:00Z", "batch_id": "b", "state": "open", "resolved_at": None,
    "payload": '{"data": {"country": "DE", "amount": 1}, "event_id": "e-1"}', "payload_base64": "",
}  # fmt: skip


def test_a_dead_letter_marks_its_fault_and_links_to_similar_ones(visit: Visit) -> None:
    """An object that lacks a member is marked as one box."""
    page = visit("/dead-letters/0-1", {"/v1/dead-letters/0-1": LETTER, "/v1/dead-letters/groups": OF_LETTERS})
    expect(page.get_by_text("What to do: Fix the sender.")).to_be_visible()
    query = parse_qs(
        urlsplit(page.get_by_role("link", name="Look at all like it").get_attribute("href")).query
    )
    assert query == {"dataset": ["orders"], "reason": ["schema_violation"], "place": ["/data"]}
    assert page.locator("mark").evaluate("mark => mark.getClientRects().length") == 1


def test_a_replay_without_landing_events_offers_only_to_close(visit: Visit) -> None:
    verdict = {
        "id": "0-1", "outcome": "rejected", "dataset": "orders", "event_id": None,
        "reason": "schema_violation", "pointer": "/data", "detail": "wrong",
    }  # fmt: skip
    trial = {
        "dry_run": True,
        "total": 1,
        "counts": {"rejected": 1},
        "verdicts": [verdict],
        "next_cursor": None,
    }
    page = visit("/dead-letters", {"/v1/dead-letters/groups": OF_LETTERS, "/v1/dead-letters/replay": trial})
    page.get_by_role("button", name="Replay …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("No event would land")
    expect(dialog.get_by_role("button")).to_have_text(["Close"])


def test_a_dataset_leads_to_its_dead_letters_and_to_a_newer_schema(visit: Visit) -> None:
    versions = [
        {"name": name, "version": version, "schema_uri": f"pulse://acme/{name}/{version}"}
        for name, version in (("orders", 1), ("orders", 2), ("other", 9))
    ]
    answers = {
        "/v1/keys/current": IDENTITY | {"scopes": ["read"]},
        "/v1/dead-letters/groups": OF_LETTERS,
        "/v1/schemas": {"schemas": versions},
        "/v1/datasets/orders/moves": {"moves": []},
    }
    page = visit("/datasets/orders", OF_A_DATASET | answers)
    letters = page.get_by_role("link", name="14", exact=True)
    expect(letters).to_have_attribute("href", "/console/dead-letters?dataset=orders")
    expect(page.get_by_text("pulse dataset move acme orders pulse://acme/orders/2")).to_be_visible()
    differences = page.get_by_role("link", name="See the differences")
    expect(differences).to_have_attribute("href", "/console/schemas/orders?from=1&version=2")


def test_a_move_names_its_consequences_and_shows_its_progress(visit: Visit) -> None:
    following = {"name": "orders", "version": 2, "schema_uri": "pulse://acme/orders/2"}
    integer = {"name": "amount", "type": "integer"}
    number, coupon = integer | {"type": "number"}, {"name": "coupon", "type": "string"}
    trial = {"columns": [number, coupon], "incompatibilities": []}
    pending_move = {
        "move_id": "m-1", "schema_uri": following["schema_uri"], "state": "running", "attempt": 1,
        "files": 1_200, "files_written": 3, "error": None, "ended_at": None,
    }  # fmt: skip
    listed: list[Any] = []

    def move(_: Any) -> tuple[int, Any]:
        listed.append(pending_move)
        return 202, pending_move

    answers = {
        "/v1/datasets/orders": ORDERS | {"columns": [integer]},
        "/v1/schemas": {"schemas": [following]},
        "/v1/schemas/orders/2": following | {"schema": {"maximum": BIG}},
        "/v1/schemas/check": trial,
        "/v1/datasets/orders/moves": lambda _: {"moves": listed},
        "/v1/datasets/orders/moves/m-1": pending_move | {"files_written": 4},
        "/v1/datasets/orders/schema": move,
    }
    page = visit("/datasets/orders", OF_A_DATASET | answers)
    page.clock.install()
    with page.expect_request("**/v1/schemas/check*") as sent:
        page.get_by_role("button", name="Move …").click()
    assert str(BIG) in (sent.value.post_data or ""), "the check is of the whole document"
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("It adds columns to the table: coupon (string).")
    expect(dialog).to_contain_text("amount (integer to number)")
    expect(dialog).to_contain_text("cannot move back")
    assert not listed, "nothing happens before the answer"
    dialog.get_by_role("button", name="Move", exact=True).click()
    expect(dialog).to_contain_text("A run will write the data files again.")
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_text("3 of 1\u202f200 data files are written")).to_be_visible()
    page.clock.fast_forward(3_000)
    expect(page.get_by_text("4 of 1\u202f200 data files are written")).to_be_visible()
    trial["incompatibilities"] = [{"pointer": "/n", "change": "property removed", "reason": "rows have it"}]
    listed.clear()
    page.reload()
    page.get_by_role("button", name="Move …").click()
    expect(dialog).to_contain_text("/n: property removed: rows have it", ignore_case=True)
    expect(dialog.get_by_role("button")).to_have_text(["Close"])


def test_a_dataset_of_entities_shows_its_syncs_and_latest_state(visit: Visit) -> None:
    sync = {
        "sync_id": 9_001, "sequence_id": "5e0", "is_full": True, "state": "rolled_back", "parts": 77,
        "created": 5, "changed": 0, "unchanged": 0, "deleted": 0, "refused": 0, "reason": "too many",
        "begun_at": "2026-11-28T09:00:00Z", "ended_at": None,
    }  # fmt: skip
    answers = {
        "/v1/datasets/orders": ORDERS | {"kind": "entities"},
        "/v1/datasets/orders/syncs": {"syncs": [sync]},
    }
    page = visit("/datasets/orders", OF_A_DATASET | answers)
    row = page.get_by_role("region", name="Syncs").get_by_role("row").nth(1)
    expect(row).to_contain_text("done, without deletions")
    expect(row).to_contain_text("everything")
    assert not re.search("rolled_back|9001|5e0|77", row.inner_text())
    latest = page.get_by_role("link", name="Query its latest state")
    assert "orders__latest" in (latest.get_attribute("href") or "")
    headings = page.get_by_role("heading", level=2).all_inner_texts()
    assert headings == ["Newest rows", "Columns", "Syncs", "Snapshots", "Connect an engine"]


def test_the_examples_of_queries_are_of_ones_own_datasets(visit: Visit) -> None:
    text = {"name": "carrier", "type": "string"}
    datasets = [
        ORDERS | {"slug": "planes", "kind": "entities", "columns": [text]},
        ORDERS | {"slug": "long_flights", "columns": [{"name": "delay", "type": "number"}, text]},
    ]
    failure = "DuckDB fails at it: Binder Error: no column\n\nLINE 1: SELECT x FROM flights\n               ^"
    answers = {
        "/v1/datasets": {"datasets": datasets},
        "/v1/sql": (422, {"detail": failure, "fix": "DESCRIBE lists columns"}),
    }
    page = visit("/query", answers)
    expect(page.get_by_role("button", name="How many long flights were there by carrier?")).to_be_visible()
    page.get_by_role("button", name="planes", exact=True).click()
    field = page.get_by_label("A SELECT, or a question in English")
    expect(field).to_have_value("SELECT * FROM planes__latest ORDER BY timestamp DESC LIMIT 100")
    page.get_by_role("button", name="SELECT carrier, count(*) FROM long_flights GROUP BY ALL").click()
    page.get_by_role("button", name="Run").click()
    lines = page.get_by_role("alert").locator("pre")
    expect(lines).to_have_text("LINE 1: SELECT x FROM flights\n               ^", use_inner_text=True)
    assert lines.evaluate("pre => getComputedStyle(pre).whiteSpace") == "pre"
    assert "monospace" in lines.evaluate("pre => getComputedStyle(pre).fontFamily")
    expect(page.get_by_role("alert").locator("p").first).to_have_text(
        "DuckDB fails at it: Binder Error: no column"
    )


@pytest.mark.parametrize(
    ("scopes", "words"),
    [
        (["read", "manage"], "pulse key create acme --name first --scope manage --scope collect"),
        (["read", "manage", "collect"], "and yours is one"),
    ],
)
def test_the_first_steps_name_the_key_that_they_need(scopes: list[str], words: str, visit: Visit) -> None:
    answers = {
        "/v1/keys/current": IDENTITY | {"scopes": scopes},
        "/v1/freshness": {"datasets": [], "next_after": None},
        "/v1/dead-letters/groups": {"as_of": "2026-11-20T23:30:00Z", "groups": []},
    }
    page = visit("", answers)
    expect(page.get_by_text(words)).to_be_visible()
    expect(page.get_by_text("KEY=YOUR_KEY")).to_be_visible()


def test_one_of_many_datasets_is_opened_by_its_name(visit: Visit) -> None:
    listed = [{"dataset": "a", "rows": 7, "events_landed_last": None, "problem": None}]
    answers = {
        "/v1/freshness": {"datasets": listed, "next_after": "a"},
        "/v1/dead-letters/groups": {"as_of": "2026-11-20T23:30:00Z", "groups": []},
        "/v1/hours": {"datasets": []},
    }
    page = visit("", answers)
    expect(page.get_by_role("row", name="holds entities")).to_be_visible()
    page.get_by_label("Name of a dataset").fill("set_1999")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="set_1999")).to_be_visible()


def test_a_read_only_key_sees_which_scope_is_missing_for_keys(visit: Visit) -> None:
    page = visit("/keys", {"/v1/keys/current": IDENTITY | {"scopes": ["read", "lake:read"]}})
    expect(page.get_by_text("need a key with the scope manage. Yours has: read, lake:read.")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_scopes_are_explained_and_the_own_key_is_marked(visit: Visit) -> None:
    keys = [
        {
            "name": name, "key_id": key_id, "scopes": ["read"], "revoked_at": None, "expires_at": None,
            "last_used_at": None, "created_at": "2026-11-28T09:00:00Z",
        }
        for name, key_id in (("one", IDENTITY["key_id"]), ("other", "2" * 12))
    ]  # fmt: skip
    page = visit("/keys", {"/v1/keys": {"keys": keys}})
    expect(page.get_by_label("manage: change schemas and datasets, replay, issue keys")).to_be_visible()
    expect(page.get_by_role("row", name="one")).to_contain_text("(yours)")
    expect(page.get_by_role("row", name="other")).not_to_contain_text("(yours)")


def test_a_schema_names_the_datasets_that_follow_it(visit: Visit) -> None:
    version = {"schema_uri": "pulse://acme/orders/1", "name": "orders", "version": 1}
    published = version | {"published_at": "2026-11-28T09:00:00Z", "schema": {"type": "object"}}

    def list_page(query: dict[str, list[str]]) -> dict[str, Any]:
        assert query["schema"] == ["orders"]
        return {"datasets": [{"slug": "refunds", "schema_version": 1}], "next_after": following}

    following = None
    answers: Answers = {
        "/v1/schemas": {"schemas": [version]},
        "/v1/schemas/orders/1": published,
        "/v1/datasets": list_page,
    }
    page = visit("/schemas/orders", answers)
    expect(page.get_by_text("Followed by refunds (version 1).")).to_be_visible()
    expect(page.get_by_role("button", name="Copy this version")).to_be_visible()
    expect(page).to_have_title("orders · Schemas · acme · Pulse")
    following = "refunds"
    page.reload()
    expect(page.get_by_text("Followed by refunds (version 1) and more.")).to_be_visible()


def test_tables_beyond_a_page_are_in_the_overview(visit: Visit) -> None:
    def list_page(query: dict[str, list[str]]) -> dict[str, Any]:
        assert query["limit"] == ["100"]
        orders = {"slug": "orders", "kind": "events", "columns": []}
        return {"datasets": [orders], "next_after": "orders"}

    page = visit("/query", {"/v1/datasets": list_page})
    expect(page.get_by_role("link", name="the overview lists all")).to_be_visible()


@pytest.mark.parametrize("width", [390, 768])
def test_on_narrow_screens_nothing_lies_over_code_or_breaks_the_pages_names(width: int, visit: Visit) -> None:
    answers = {
        "/v1/freshness": {"datasets": [], "next_after": None},
        "/v1/dead-letters/groups": {"as_of": "2026-11-20T23:30:00Z", "groups": []},
    }
    page = visit("", answers)
    page.set_viewport_size({"width": width, "height": 800})
    code = page.get_by_label("First steps")
    expect(code).to_be_visible()
    places = (page.get_by_role("button", name="Copy"), code.locator("code"))
    boxes = [place.bounding_box() for place in places]
    button, text = [box for box in boxes if box]
    assert button["y"] + button["height"] <= text["y"] or text["x"] + text["width"] <= button["x"]
    tops = {link.evaluate("link => link.offsetTop") for link in page.locator("nav a").all()}
    assert len(tops) <= (2 if width < 640 else 1)


@pytest.mark.parametrize(
    ("many", "words"),
    [(1, "Of 1 event: 1 is on its way to land."), (2, "Of 2 events: 2 are on their way to land.")],
)
def test_a_replay_ends_with_its_result_alone(many: int, words: str, visit: Visit) -> None:
    trial = {
        "dry_run": True,
        "total": many,
        "counts": {"would_land": many},
        "verdicts": [],
        "next_cursor": None,
    }
    done = trial | {"counts": {"published": many}}
    answers = iter((trial, done))
    replies = {"/v1/dead-letters/replay": lambda _: next(answers)}
    page = visit("/dead-letters", {"/v1/dead-letters/groups": OF_LETTERS} | replies)
    page.get_by_role("button", name="Replay …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=f"Replay {many}").click()
    expect(dialog).to_contain_text(words)
    expect(dialog).not_to_contain_text("would land")
