"""The console in a real browser: each page with data, with nothing, with little rights, with hostile data."""

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from console.conftest import BIG, HOSTILE, OpenTab, Shop, Tab
from playwright.sync_api import Page, Route, expect

from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.registry import keys

AXE = Path(__file__).with_name("vendor") / "axe.min.js"
SHOWN_HOSTILE = HOSTILE.replace("\u202e", "\\u{202e}").replace("\u0007", "\\u{7}")
PAGES = {
    "": "Overview",
    "/datasets/orders": "orders",
    "/dead-letters": "Dead letters",
    "/dead-letters/0-43": "Dead letter 0-43",
    "/trace?event=o-1": "Trace",
    "/query?q=SELECT%201": "Query",
    "/schemas": "Schemas",
    "/schemas/orders": "orders",
    "/pipes": "Pipes",
    "/keys": "Keys",
    "/usage": "Usage",
}
OF_NEWCOMERS = {
    "": "There are no datasets yet",
    "/dead-letters": "No open dead letters",
    "/schemas": "No schema is published yet",
    "/pipes": "There are no pipes yet",
    "/usage": "Nothing has landed yet",
    "/query": "There are no datasets yet",
    "/nowhere": "No such page",
}
SERIOUS = ("serious", "critical")
IS_CUT = "region => region.scrollWidth > region.clientWidth"


def wait_until_loaded(page: Page) -> None:
    expect(page.locator("[aria-busy]")).to_have_count(0)


def violations(page: Page, rules: list[str] | None = None) -> list[str]:
    """What keeps people from using the page, by axe-core."""
    page.evaluate(AXE.read_text())
    result = page.evaluate("rules => axe.run(document, rules ? {runOnly: rules} : {})", rules)
    return [
        f"{violation['id']}: {node['target']} {node['failureSummary']}"
        for violation in result["violations"]
        if violation["impact"] in SERIOUS
        for node in violation["nodes"][:3]
    ]


def test_the_key_leaves_the_address_and_stays_in_the_tab(shop: Shop, tab: Tab) -> None:
    key = shop.key()
    page = tab.open("/datasets/orders", key)
    expect(page.get_by_role("heading", name="orders", exact=True)).to_be_visible()
    assert page.url == f"{shop.api.url}/console/datasets/orders"
    assert page.evaluate("document.cookie + JSON.stringify(localStorage)") == "{}"
    assert page.evaluate("sessionStorage.getItem('pulse.key')") == key
    page.reload()
    expect(page.get_by_role("heading", name="orders", exact=True)).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Key of your tenant")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_key_is_typed_and_a_wrong_one_is_refused(shop: Shop, tab: Tab) -> None:
    page = tab.open("/usage")
    field, sign_in = page.get_by_label("Key of your tenant"), page.get_by_role("button", name="Sign in")
    for text, answer in (("hello", "not a tenant's key"), (shop.key()[:-4] + "AAAA", "not in force")):
        field.fill(text)
        sign_in.click()
        expect(page.get_by_role("alert")).to_contain_text(answer)
    issued = keys.issue_key(shop.owner.tenant, "typed", [KeyScope.READ])
    field.fill(issued.text)
    sign_in.click()
    expect(page.get_by_role("heading", name="Usage", exact=True)).to_be_visible()
    keys.revoke_key(shop.owner.tenant, issued.stored.key_id)
    page.get_by_role("link", name="Schemas").click()
    expect(page.get_by_role("alert")).to_contain_text("not in force")
    assert page.url.endswith("/console/schemas"), "where the next key leads"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_each_page_shows_data_to_everybody(shop: Shop, open_tab: OpenTab, width: int, scheme: str) -> None:
    tab = open_tab(width, scheme)
    key = shop.key()
    for path, heading in PAGES.items():
        page = tab.open(path, key)
        expect(page.get_by_role("heading", level=1, name=heading)).to_be_visible()
        wait_until_loaded(page)
        assert page.locator(".notice.error").all_text_contents() == [], path
        is_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.evaluate(is_wide), f"{path} is wider than {width} px"
        cut = [
            region.get_attribute("aria-label")
            for region in page.locator(".scroll:not(.grid)").all()
            if region.evaluate(IS_CUT)
        ]
        assert cut == [], f"{path} cuts columns at {width} px"
        rules = ["color-contrast", "target-size"] if scheme == "dark" else None
        assert violations(page, rules) == [], path


def test_a_newcomer_learns_the_first_step(shop: Shop, tab: Tab) -> None:
    key = shop.key(owner=shop.newcomer)
    for path, text in OF_NEWCOMERS.items():
        page = tab.open(path, key)
        expect(page.get_by_text(text)).to_be_visible()
        wait_until_loaded(page)
        assert page.locator(".notice.error").all_text_contents() == [], path


def test_the_overview_lists_issues_first(shop: Shop, tab: Tab) -> None:
    page = tab.open("", shop.key())
    first = page.locator(".issues li").first
    expect(first).to_contain_text("2 events of orders could not land:")
    expect(first).to_contain_text('is not of type "integer" (/data/count)')
    expect(page.get_by_role("row", name="orders 42")).to_be_visible()
    first.get_by_role("link", name="Look at them").click()
    expect(page.get_by_role("row", name="text-count")).to_have_count(2)
    assert "place=%2Fdata%2Fcount" in page.url
    page.get_by_role("link", name="0-43").first.click()
    expect(page.locator("mark")).to_have_text('"seven"')


def test_hostile_data_is_text_with_all_digits(shop: Shop, tab: Tab) -> None:
    page = tab.open("/datasets/orders", shop.key())
    grid = page.get_by_role("region", name="Newest rows of orders")
    expect(grid.get_by_text(SHOWN_HOSTILE)).to_be_visible()
    expect(grid.get_by_text(f"{BIG:,}".replace(",", "\u202f"))).to_be_visible()
    grid.get_by_role("row", name="hostile").get_by_title("Open _extra").click()
    tree = page.locator(".cell-detail .tree")
    expect(tree.first).to_contain_text("<b>name</b>")
    assert [name.strip() for name in tree.locator(".member").all_text_contents()][-2:] == ["10", "2"]
    page = tab.open("/dead-letters/0-43")
    expect(page.locator(".json")).to_contain_text('onerror=\\"document.title=1\\">\\u{202e}gnp.exe\\u0007')
    assert page.locator("main img").count() == 0
    assert "Dead letter" in (page.locator("h1").text_content() or "")


def test_a_replay_names_its_numbers_first(shop: Shop, tab: Tab) -> None:
    page = tab.open("/dead-letters?dataset=absent&reason=unknown_dataset&place=%2Fdataset", shop.key())
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator(".result")).to_contain_text("Of 1 event: 1 still cannot land.")
    page.get_by_role("button", name="Replay …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("No event would land")
    page.keyboard.press("Escape")
    page = tab.open("/dead-letters/0-46")
    page.get_by_role("button", name="Discard …").click()
    expect(dialog).to_contain_text("Discard 1 dead letter?")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    dialog.get_by_role("button", name="Discard 1").click()
    expect(dialog).to_contain_text("Of 1 event: 1 is discarded.")
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_text("It was discarded")).to_be_visible()


def test_a_key_that_only_reads_changes_nothing(shop: Shop, tab: Tab) -> None:
    page = tab.open("/dead-letters", shop.key(KeyScope.READ))
    expect(page.get_by_text("need a key with the scope manage").first).to_be_visible()
    assert page.get_by_role("button", name=re.compile("Replay|Discard")).count() == 0
    page = tab.open("/keys")
    expect(page.get_by_text("issuing and revoking keys need a key with the scope manage")).to_be_visible()


def test_sql_and_questions(shop: Shop, tab: Tab) -> None:
    page = tab.open("/query", shop.key())
    field = page.get_by_label("A SELECT, or a question in English")
    field.fill("SELECT country, max(count) AS most FROM orders GROUP BY ALL ORDER BY most DESC")
    field.press("Control+Enter")
    result = page.get_by_role("region", name="Result")
    expect(result.get_by_role("row").nth(1)).to_contain_text(f"{BIG:,}".replace(",", "\u202f"))
    expect(page.get_by_text("orders at snapshot")).to_be_visible()
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV", exact=True).click()
    assert f"DE,{BIG}" in Path(saved.value.path()).read_text()
    field.fill("SELECT country, count(*) AS orders FROM orders GROUP BY ALL ORDER BY ALL")
    field.press("Control+Enter")
    chart = page.get_by_role("img", name="orders by country, 2 bars")
    expect(chart.locator("rect")).to_have_count(2)
    expect(chart.locator("title").first).to_have_text(f"{SHOWN_HOSTILE}: 1")
    field.fill(
        "SELECT day::date::text AS day, n FROM (VALUES ('2026-11-19', 3), ('2026-11-20', 1)) t(day, n)"
    )
    field.press("Control+Enter")
    expect(page.get_by_role("img", name="n by day, from 2026-11-19 to 2026-11-20")).to_be_visible()
    field.fill("How many orders were there by country?")
    field.press("Control+Enter")
    expect(page.get_by_text("Understood:")).to_be_visible()
    expect(page.locator(".history li")).to_have_count(4)
    field.fill("SELECT nothing FROM orders")
    field.press("Control+Enter")
    expect(page.get_by_role("alert")).to_contain_text("DESCRIBE")


def test_an_event_is_traced_by_its_id_and_by_its_place(shop: Shop, tab: Tab) -> None:
    page = tab.open("/trace", shop.key())
    field = page.get_by_label("Event id, or its place")
    for text, end in (
        ("o-1", "Landed"),
        (f"{shop.owner.tenant.topic}:0:43", "Dead letter"),
        ("absent", None),
    ):
        field.fill(text)
        field.press("Enter")
        if end is None:
            expect(page.get_by_role("alert")).to_be_visible()
        else:
            expect(page.locator(".card h2")).to_contain_text(end)
            expect(page.locator(".steps")).to_contain_text("Received")


def test_a_key_is_shown_once_and_revoked(shop: Shop, tab: Tab) -> None:
    page = tab.open("/keys", shop.key())
    page.get_by_label("Name of the person or service").fill(HOSTILE.strip("\u0007\u202e")[:20])
    page.get_by_role("button", name="Issue").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("code")).to_have_text(re.compile(r"^pulse_[0-9a-f]{32}_[0-9a-f]{12}_.{43}$"))
    dialog.get_by_role("button", name="Close").click()
    row = page.get_by_role("row", name="<img")
    row.get_by_role("button", name="Revoke …").click()
    dialog.get_by_role("button", name="Revoke", exact=True).click()
    expect(dialog).to_contain_text("Revoked.")
    dialog.get_by_role("button", name="Close").click()
    expect(row).to_have_count(0)
    page.get_by_text("revoked or expired").click()
    expect(row).to_contain_text("revoked")


def test_the_console_waits_until_the_api_is_back(shop: Shop, tab: Tab) -> None:
    page = tab.open("/usage", shop.key())
    expect(page.get_by_role("heading", name="Limits")).to_be_visible()

    def away(route: Route) -> None:
        route.abort("connectionrefused")

    page.route("**/v1/**", away)
    page.get_by_role("link", name="Schemas").click()
    expect(page.get_by_role("status")).to_contain_text("The API does not answer")
    page.unroute("**/v1/**", away)
    expect(page.get_by_role("row", name="orders")).to_be_visible()
    expect(page.get_by_text("The API does not answer")).to_have_count(0)


def test_schemas_stand_side_by_side(shop: Shop, tab: Tab) -> None:
    page = tab.open("/schemas/orders", shop.key())
    expect(page.locator("td.added").filter(has_text='"note"')).to_be_visible()
    page.get_by_label("From version").select_option("2")
    expect(page.locator("td.added")).to_have_count(0)
    page = tab.open("/schemas")
    page.get_by_label("JSON Schema").fill('{"properties": {"count": {"type": "integer", "minimum": 10}}}')
    page.get_by_label("Dataset that is to follow it").fill("orders")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("values that it refuses were accepted before")).to_be_visible()
    expect(page.get_by_role("region", name="Columns").get_by_role("row", name="count")).to_be_visible()
    page.get_by_label("JSON Schema").fill("{")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("alert")).to_contain_text("not JSON")


NUMBERS = {
    "1": "1",
    "1.0": "1.0",
    "9007199254740993": str(BIG),
    "-0": "-0",
    "1e400": "1e400",
    "0.10": "0.10",
    '{"10": 1, "2": [], "__proto__": {}}': '{\n"10": 1,\n"2": [],\n"__proto__": {}\n}',
    '"\\ud83d\\ude00"': '"\U0001f600"',
    "[1,": None,
    "01": None,
    '"\n"': None,
    "[] 1": None,
    "": None,
}
READ = """async ([url, texts]) => {
    const { readJson, writeJson } = await import(url);
    const rewrite = (text) => writeJson(readJson(text, true), "", "");
    return texts.map((text) => { try { return rewrite(text); } catch { return null; } });
}"""


def test_json_is_read_without_losing_digits_or_order(shop: Shop, tab: Tab) -> None:
    page = tab.open()
    url = page.locator("script[src$='app.js']").get_attribute("src") or ""
    result = page.evaluate(READ, [url.replace("app.js", "json.js"), list(NUMBERS)])
    assert dict(zip(NUMBERS, result, strict=True)) == NUMBERS


PIPE = {
    "pipe": "planes",
    "direction": "in",
    "other_end": "planes of fleet <b>",
    "dataset": "orders",
    "mode": "full",
    "every_seconds": 60,
    "state": "active",
    "behind": None,
    "begun_at": "2026-11-28T09:00:00Z",
    "settled_at": "2026-11-28T09:00:07Z",
    "error": "the source does not answer",
}
DETAILS = PIPE | {
    "last_day": {"created": 1200, "changed": 3, "unchanged": 9, "deleted": 1, "refused": 0},
    "deliveries": [],
    "syncs": [
        {
            "sync_id": 7,
            "sequence_id": "planes/7",
            "state": "sent",
            "is_full": True,
            "parts": 1,
            "created": 1213,
            "changed": 0,
            "unchanged": 0,
            "deleted": 0,
            "refused": 0,
            "reason": None,
            "begun_at": "2026-11-28T09:00:00Z",
            "ended_at": None,
        }
    ],
}
STATE = {
    "events_landed_last": None,
    "snapshot_id": None,
    "committed_at": None,
    "rows": 0,
    "problem": None,
}
SUMMARY = {
    "from": "2026-11-19",
    "to": "2026-11-20",
    "days": [
        {"day": f"2026-11-{day}", "computed_at": "2026-11-28T09:00:00Z", "changed_since": False, "rows": rows}
        for day, rows in ((19, [{"events": 1500}]), (20, [{"events": 20}]))
    ],
}


def test_pipes_and_days(shop: Shop, tab: Tab) -> None:
    """By answers in the form of the API's: pipes need a source, and summaries a run of Spark."""
    tab.page.route("**/v1/pipes", lambda route: route.fulfill(json={"pipes": [PIPE]}))
    tab.page.route("**/v1/pipes/planes", lambda route: route.fulfill(json=DETAILS))
    tab.page.route("**/v1/datasets/orders/summary", lambda route: route.fulfill(json=SUMMARY))
    page = tab.open("", shop.key())
    expect(page.locator(".issues")).to_contain_text("The last run of the pipe planes failed")
    page.get_by_role("link", name="Look at the pipe").click()
    expect(page.get_by_role("alert")).to_contain_text("the source does not answer")
    expect(page.get_by_text("planes of fleet <b>")).to_be_visible()
    runs = page.get_by_role("region", name="Last runs")
    expect(runs).to_contain_text("1\u202f213")
    expect(runs).to_contain_text("landing")
    expect(page.get_by_text("every minute")).to_be_visible()
    page = tab.open("/datasets/orders")
    days = page.get_by_role("img", name="Events by day, from 2026-11-19 to 2026-11-20")
    expect(days.locator("rect")).to_have_count(2)
    assert violations(page) == []


def test_two_thousand_datasets_are_read_by_page(shop: Shop, tab: Tab) -> None:
    """By answers in the form of the API's."""
    slugs = [f"set_{number:04}" for number in range(2_000)]

    def answer(route: Route) -> None:
        parameters = parse_qs(urlsplit(route.request.url).query)
        after, limit = parameters.get("after", [""])[0], int(parameters.get("limit", ["50"])[0])
        later = [slug for slug in slugs if slug > after]
        states = [STATE | {"dataset": slug} for slug in later[:limit]]
        following = later[limit - 1] if len(later) > limit else None
        route.fulfill(json={"as_of": "2026-11-28T09:00:00Z", "datasets": states, "next_after": following})

    tab.page.route("**/v1/freshness*", answer)
    page = tab.open("", shop.key())
    rows = page.get_by_role("region", name="Datasets").get_by_role("row")
    expect(rows).to_have_count(51)
    page.get_by_role("button", name="More datasets").click()
    expect(rows).to_have_count(151)
    expect(page.get_by_role("link", name="set_0149")).to_be_visible()
