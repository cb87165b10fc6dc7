"""Pictures of the console, for people to look at: `PULSE_PICTURES=folder pytest tests/console -m slow`.

With `PULSE_PICTURES=docs/pictures` and `-k docs` it takes those of README and docs/console.md.
"""

import json
import os
import random
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from console.conftest import OpenTab, Shop
from console.test_console import PAGES, wait_until_loaded
from pyspark.sql.connect.session import SparkSession
from support.curated import Zone
from support.here import ingest_here
from support.ingest import Owner

from pulse_pipelines import registry
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.moments import utc_text
from pulse_pipelines.registry import keys

OF_THE_DOCS = {"1-overview": "", "2-dead-letters": "/dead-letters", "3-dataset": "/datasets/orders"}
MOST_BYTES = 150_000
SIZES = [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")]
ORDER = {
    "type": "object",
    "required": ["country", "amount"],
    "properties": {
        "country": {"type": "string", "description": "ISO 3166 code of the buyer's country"},
        "amount": {"type": "number", "x-pulse-unit": "EUR"},
        "items": {"type": "integer"},
        "coupon": {"type": "string"},
    },
}
COUNTRIES = ("DE", "FR", "NL", "PL", "ES")
EVENTS = {"orders": 3_000, "payments": 2_800, "refunds": 90}


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_every_page_has_its_picture(
    shop: Shop, open_tab: OpenTab, tmp_path: Path, width: int, scheme: str
) -> None:
    folder = Path(os.environ.get("PULSE_PICTURES", tmp_path))
    tab, key = open_tab(width, scheme), shop.key()
    for number, path in enumerate(PAGES):
        page = tab.open(path, key)
        wait_until_loaded(page)
        if path.startswith("/query"):
            page.get_by_role("button", name="Run").click()
            page.get_by_role("button", name="CSV", exact=True).wait_for()
        name = path.partition("?")[0].strip("/").replace("/", "-") or "overview"
        picture = folder / f"{number:02}-{name}-{width}-{scheme}.png"
        page.screenshot(path=picture, full_page=True)
        assert picture.stat().st_size > 1_000


@pytest.fixture
def store(spark_session: SparkSession, tmp_path: Path) -> Owner:
    """A tenant whose events are of the last day, more by day than by night; four could not land."""
    owner, rng = Owner(registry.create_tenant(f"nordwind{uuid.uuid4().hex[:3]}")), random.Random(1)  # noqa: S311
    uri = registry.publish_schema(owner.tenant, "orders", json.dumps(ORDER)).schema_uri
    for slug, count in EVENTS.items():
        registry.create_dataset(owner.tenant, slug, uri)
        owner.send(*(_order(slug, number, rng) for number in range(count)))
    owner.send(
        _order("orders", 4_001, rng, amount="12,50"),
        _order("orders", 4_002, rng, amount="8,90"),
        _order("payments", 4_003, rng, country=None),
        _order("shipments", 1, rng),
    )
    ingest_here(owner)
    Zone(owner, spark_session, tmp_path).curate()
    return owner


def _order(slug: str, number: int, rng: random.Random, **data: object) -> bytes:
    at = datetime.now(UTC) - timedelta(minutes=5 + rng.triangular(0, 1_430, 500))
    order = {
        "country": rng.choices(COUNTRIES, (5, 3, 2, 1, 1))[0],
        "amount": round(rng.lognormvariate(3.4, 0.6), 2),
        "items": rng.randint(1, 6),
    }
    event_id = f"{slug[:-1]}-{number:05}"
    event = {"event_id": event_id, "dataset": slug, "timestamp": utc_text(at), "data": order | data}
    return json.dumps(event).encode()


@pytest.mark.slow
def test_pictures_of_the_docs_are_small(store: Owner, open_tab: OpenTab, tmp_path: Path) -> None:
    folder = Path(os.environ.get("PULSE_PICTURES", tmp_path))
    tab, key = open_tab(1100), keys.issue_key(store.tenant, "console", tuple(KeyScope)).text
    for name, path in OF_THE_DOCS.items():
        page = tab.open(path, key)
        wait_until_loaded(page)
        picture = folder / f"console-{name}.png"
        page.screenshot(path=picture, full_page=False, clip={"x": 0, "y": 0, "width": 1100, "height": 640})
        assert picture.stat().st_size <= MOST_BYTES
