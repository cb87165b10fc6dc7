"""One browser and one tenant with rows, dead letters and hostile data, for all tests of the console."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page
from support.browser import PATIENCE_MS, chromium
from support.here import ingest_here
from support.http import Api
from support.ingest import Owner, event, make_owner

from pulse_pipelines import moves, registry
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.registry import keys

ALL = tuple(KeyScope)
HOSTILE = '<img src=x onerror="document.title=1">\u202egnp.exe\u0007'
BIG = 9_007_199_254_740_993
"""The first integer that a double does not hold."""
SECOND = """{"type": "object", "required": ["country"], "properties": {
    "country": {"type": "string", "title": "Land", "description": "Where <b>the order</b> came from"},
    "amount": {"type": "number", "x-pulse-unit": "EUR"}, "count": {"type": "integer"},
    "active": {"type": "boolean"}, "signup_at": {"type": "string", "format": "date-time"},
    "address": {"type": "object", "properties": {"zip": {"type": "string"}}}, "note": {"type": "string"}}}"""


@dataclass(frozen=True)
class Shop:
    """A tenant that has everything the console shows, and one that has nothing."""

    api: Api
    owner: Owner
    newcomer: Owner

    def key(self, *scopes: KeyScope, owner: Owner | None = None) -> str:
        """A new key; of all scopes by default."""
        return keys.issue_key((owner or self.owner).tenant, "the console's tests", scopes or ALL).text


@pytest.fixture(scope="session")
def shop(api: Api) -> Shop:
    owner, newcomer = make_owner(), Owner(registry.create_tenant(f"t{uuid.uuid4().hex[:10]}"))
    uri = registry.publish_schema(owner.tenant, "orders", SECOND).schema_uri
    registry.create_dataset(owner.tenant, "refunds", uri)
    assert isinstance(moves.ask(owner.tenant, "orders", uri), Dataset), "it moves at once"
    owner.send(
        *(event(f"o-{number}", count=number, amount=12.5 * number, country="DE") for number in range(40)),
        event("big", count=BIG, address={"zip": "10115", "street": "Lange Straße " * 9}),
        event("hostile", country=HOSTILE, deep={"<b>name</b>": [1, {"10": "x", "2": HOSTILE}]}),
        event("no-country", country=None),
        event("text-count", count="seven", country=HOSTILE),
        event("other-text-count", count="eight"),
        event("nowhere", dataset="absent"),
        b'{"event_id": "half',
    )
    ingest_here(owner)
    return Shop(api, owner, newcomer)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for one file: while it is open, no other test can run an event loop."""
    with chromium() as browser:
        yield browser


@dataclass
class Tab:
    """A tab of the console, with what its scripts complained of."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str = "", key: str | None = None) -> Page:
        """Go to a page of the console, with a key in the fragment if one is given."""
        self.page.goto(f"{self.url}/console{path}" + (f"#key={key}" if key else ""))
        return self.page

    def notice(self, message: ConsoleMessage) -> None:
        """Note errors and warnings, without answers of the API that are errors: tests look for those."""
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)


OpenTab = Callable[..., Tab]


@pytest.fixture
def open_tab(browser: Browser, shop: Shop) -> Iterator[OpenTab]:
    """Opens tabs, each in a session of its own; none may complain."""
    with _tabs(browser, shop.api.url) as open_one:
        yield open_one


@contextmanager
def _tabs(browser: Browser, url: str) -> Iterator[OpenTab]:
    tabs: list[Tab] = []

    def open_one(width: int = 1280, scheme: Any = "light") -> Tab:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        tab = Tab(context.new_page(), url)
        tab.page.set_default_timeout(PATIENCE_MS)
        tab.page.on("console", tab.notice)
        tab.page.on("pageerror", lambda error: tab.complaints.append(str(error)))
        tabs.append(tab)
        return tab

    yield open_one
    for tab in tabs:
        tab.page.context.close()
    assert [tab.complaints for tab in tabs if tab.complaints] == []


@pytest.fixture
def tab(open_tab: OpenTab) -> Tab:
    return open_tab()
