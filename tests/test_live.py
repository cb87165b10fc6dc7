"""The whole stack with Dagster: the demo, and recovery without a hand from what kills a run."""

import json
import os
import re
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from playwright.sync_api import Page, expect
from support.browser import Picture
from support.ingest import Owner, event, make_owner
from support.lake import DAY
from support.stack import choose_ports, stop

from chaos.surroundings import forget_connections, pulse
from chaos.waiting import PATIENCE_S
from pulse_api.demo import operations, source
from pulse_api.demo.operations import TABLES
from pulse_pipelines import registry
from pulse_pipelines.curated.summary import summary
from pulse_pipelines.ingest import attempts
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.query import duckdb_pool
from pulse_resources import postgres
from pulse_resources.errors import NotFound
from pulse_resources.local import dagster
from pulse_resources.settings import load_settings

SETTINGS = {
    "PULSE_INGEST__FLUSH_SECONDS": "3",
    "PULSE_CURATED__QUIET_SECONDS": "10",
    "PULSE_CURATED__ROLLUPS_DIR": str(Path(__file__).parent.parent / "docs" / "examples" / "rollups"),
}
DAYS = 2
EVENTS = 30_000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A stack of its own: here the sensor plans, not the test."""
    before = os.environ.get("PULSE_HOME")
    folder = tmp_path_factory.mktemp("live")
    choose_ports(folder)
    os.environ["PULSE_HOME"] = str(folder)
    os.environ |= SETTINGS
    try:
        yield folder
    finally:
        stop()
        for name in ("PULSE_HOME", *SETTINGS):
            del os.environ[name]
        if before is not None:
            os.environ["PULSE_HOME"] = before
        forget_connections()


@pytest.fixture(scope="module")
def demo(home: Path) -> dict[str, object]:
    """The report of a short demo, which also starts the stack."""
    pulse("demo", "--days", str(DAYS))
    forget_connections()
    report: dict[str, object] = json.loads((home / "demo-report.json").read_text())
    return report


def test_the_demo_accounts_for_every_event_of_the_source(demo: dict[str, object]) -> None:
    events = source.events(DAYS, keep_dates=False)
    totals = demo["totals"]
    assert demo["balanced"] is True
    assert totals["landed"] == len({(e.tenant, e.event_id) for e in events if e.valid})
    assert totals["dead_letters"] == sum(not e.valid for e in events) > 0
    assert totals["duplicates"] > 0
    assert totals["sent"] == totals["landed"] + totals["duplicates"] + totals["dead_letters"]
    assert set(demo["tenants"]) == set(source.tenants())
    assert demo["events_per_second"] > 0 < demo["freshness_p95_s"]
    assert demo["collect_events_per_second"] > 0


def test_the_demo_brings_a_database_as_it_is_before_and_after_changes(demo: dict[str, Any]) -> None:
    tables = demo["tables"]
    assert {name: table["balanced"] for name, table in tables.items()} == dict.fromkeys(TABLES, True)
    assert (
        tables["planes"].items() >= {"rows": 3_312, "created": 3_347, "deleted": 35, "differing": 0}.items()
    )
    assert tables["airports"]["changed"] == 38
    assert tables["airlines"]["unchanged"] == tables["airlines"]["rows"] == 16
    assert demo["manufacturers"]["largest"][0]["departures"] > 0
    assert demo["manufacturers"]["differing"] == 0
    with psycopg.connect(load_settings().postgres.superuser_url(operations.DATABASE)) as source:
        source.execute("UPDATE planes SET year = 1903 WHERE tailnum = 'N10156'")
        source.execute("DELETE FROM airlines WHERE carrier = 'UA'")
        source.commit()
    differing = operations.compare(registry.find_tenant(operations.TENANT))
    assert {name: count for name, (_, count) in differing.items()} == {
        "planes": 2,
        "airlines": 1,
        "airports": 0,
    }


@pytest.mark.slow
def test_a_second_demo_is_nothing_but_redelivery(demo: dict[str, object], home: Path) -> None:
    pulse("demo", "--days", str(DAYS))
    again = json.loads((home / "demo-report.json").read_text())
    assert again["balanced"] is True
    assert again["totals"]["landed"] == 0
    assert again["totals"]["duplicates"] == demo["totals"]["landed"] + demo["totals"]["duplicates"]


def send_many() -> Owner:
    """A tenant whose batch takes long enough to be killed."""
    owner = make_owner()
    owner.send(*(event(f"e{n}", count=n) for n in range(EVENTS)), b"not json")
    return owner


@pytest.fixture(scope="module")
def many(demo: dict[str, object]) -> Owner:
    return send_many()


@pytest.mark.parametrize("victim", ["run", pytest.param("spark", marks=pytest.mark.slow)])
def test_pulse_recovers_from_a_kill_in_the_middle_of_a_batch(victim: str, many: Owner) -> None:
    owner = many if victim == "run" else send_many()
    run = wait_for_run()
    os.kill(run if victim == "run" else spark_pid(), signal.SIGKILL)
    wait_until_settled(owner, EVENTS + 1)
    report = reconcile_tenant(owner.tenant)
    assert (report.landed, report.duplicates, report.dead_letters) == (EVENTS, 0, 1)
    assert report.balanced, report.problems


def test_days_are_computed_automatically(many: Owner) -> None:
    """Of the events whose run was killed, too."""
    wait_until_settled(many, EVENTS + 1)
    deadline = time.monotonic() + PATIENCE_S
    while not computed(many, "by_country"):
        assert time.monotonic() < deadline, "the day was not computed"
        time.sleep(1)
    (day,) = summary(many.tenant, "orders", "by_country", DAY, DAY).days
    assert day.rows == [{"country": "DE", "events": EVENTS, "amount": None}]


def test_assets_follow_the_registry_within_a_minute(demo: dict[str, object]) -> None:
    owner, slug = make_owner(), f"d{uuid.uuid4().hex[:10]}"
    registry.create_dataset(owner.tenant, slug, f"pulse://{owner.tenant.slug}/orders/1")
    wait_for_asset(slug, [owner.tenant.slug])
    query = """query Op($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
        op { name } type { displayName } requiredResources { resourceKey }
        targetingInstigators { ... on Sensor { name } }
        configField { configType { ... on CompositeConfigType { fields { name } } } } } } }"""
    node = graphql(query, {"key": {"path": ["lake", slug]}})["assetNodeOrError"]
    assert {"catalog", "pyspark"} <= {needed["resourceKey"] for needed in node["requiredResources"]}
    assert [field["name"] for field in node["configField"]["configType"]["fields"]] == ["schema_version"]
    assert node["targetingInstigators"] == [{"name": "ingest_lag"}]
    curated = graphql(query, {"key": {"path": ["curated", slug, "daily"]}})["assetNodeOrError"]
    assert curated["targetingInstigators"] == [{"name": "curated_due"}]
    registry.delete_dataset(owner.tenant, slug)
    wait_for_asset(slug, None)


def wait_for_asset(slug: str, tenants: list[str] | None) -> None:
    """Until the UI shows the asset of a slug with these tenants as partitions; None: until it is gone."""
    query = """query Asset($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
        partitionKeysByDimension { name partitionKeys } } } }"""
    deadline, shown = time.monotonic() + PATIENCE_S, None
    while time.monotonic() < deadline:
        node = graphql(query, {"key": {"path": ["lake", slug]}})["assetNodeOrError"]
        keys = {d["name"]: d["partitionKeys"] for d in node.get("partitionKeysByDimension", ())}
        if (shown := keys.get("tenant")) == tenants:
            return
        time.sleep(0.5)
    raise AssertionError(f"the UI shows {shown}, not {tenants}")


def graphql(query: str, variables: dict[str, object]) -> dict[str, Any]:
    return dagster.ask(load_settings(), query, variables, timeout=PATIENCE_S)


@pytest.mark.slow  # tests/defs works in a browser, and tests/backfill rebuilds by the UI's mutations
def test_a_person_rebuilds_a_day_in_the_browser(demo: dict[str, Any], page: Page, picture: Picture) -> None:
    """From the asset graph to a verified backfill of one tenant and day, with nothing but the mouse."""
    ui, (tenant, day) = dagster.url(load_settings()), largest_day("departures")
    before = rows_of(tenant, "departures", day)
    page.goto(str(dagster.login_url(load_settings())))
    page.wait_for_url(f"{ui}/**/overview/**")
    page.goto(f"{ui}/locations/pulse/asset-groups/shared/lineage")
    expect(page.get_by_text("departures", exact=True).first).to_be_visible()
    expect(page.get_by_text("daily", exact=True).first).to_be_visible()
    expect(page.get_by_text("partitions").first).to_be_visible()
    picture("1-graph")

    open_partition(page, f"{ui}/assets/lake/departures", tenant, day)
    expect(page.get_by_text("freshness_seconds")).to_be_visible()
    picture("2-partition")

    page.get_by_role("button", name="Materialize…").click()
    expect(page.get_by_text("1 partition", exact=True)).to_be_visible()
    picture("3-launch")
    page.get_by_role("button", name="Launch 1 run").click()
    expect(page.get_by_text("1 partition", exact=True)).to_be_hidden()

    page.goto(f"{ui}/runs?{urlencode({'q[0]': f'tag:dagster/partition/tenant={tenant}'})}")
    page.get_by_role("link", name="View", exact=True).first.click()
    expect(page.get_by_text("Success", exact=True).first).to_be_visible(timeout=600_000)
    picture("4-run")

    open_partition(page, f"{ui}/assets/lake/departures", tenant, day)
    expect(page.get_by_text(re.compile("^backfill-[0-9a-f]{12}$"))).to_be_visible()
    picture("5-verified")
    assert rows_of(tenant, "departures", day) == before

    page.get_by_text("Checks", exact=True).first.click()
    for name in ("tenant_isolation", "schema_conformance", "reconciled", "freshness", "file_health"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    expect(page.get_by_role("button", name="Execute all")).to_be_enabled()
    picture("6-checks")
    page.goto(f"{ui}/automation")
    for name in ("ingest_lag", "upkeep_needed", "curated_due", "alert_watch", "check_lake_hourly"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    picture("7-automation")

    page.goto(f"{ui}/assets/pipes/planes?view=partitions")
    page.get_by_text(operations.TENANT, exact=True).first.click()
    expect(page.get_by_text("rows", exact=True)).to_be_visible()
    expect(page.get_by_text(str(demo["tables"]["planes"]["rows"]), exact=True)).to_be_visible()
    picture("8-pipe")


def computed(owner: Owner, rollup: str) -> bool:
    """Whether the day has been computed since it changed last."""
    try:
        days = summary(owner.tenant, "orders", rollup, DAY, DAY).days
    except NotFound:
        return False
    return bool(days) and not days[0].changed_since


def open_partition(page: Page, asset: str, tenant: str, day: str) -> None:
    page.goto(f"{asset}?view=partitions")
    page.get_by_text(day, exact=True).first.click()
    page.get_by_text(tenant, exact=True).first.click()
    expect(page.get_by_text(f"{day}|{tenant}").first).to_be_visible()
    expect(page.get_by_text("dagster/partition_row_count")).to_be_visible()


def largest_day(slug: str) -> tuple[str, str]:
    """The tenant and the day of a dataset with most rows."""
    query = (
        "SELECT t.slug, l.day::text FROM landings l JOIN pdm_tenants t USING (tenant_id)"
        " WHERE l.slug = %s GROUP BY 1, 2 ORDER BY sum(rows) DESC, 1, 2 LIMIT 1"
    )
    with postgres.transaction("pulse_pipeline") as connection:
        (day,) = connection.execute(query, [slug]).fetchall()
    return day


def rows_of(tenant: str, slug: str, day: str) -> list[dict[str, object]]:
    location = registry.current_table(registry.find_tenant(tenant), slug).metadata_location
    query = (
        f"SELECT * FROM {duckdb_pool.SCAN} WHERE timestamp::date::text = ? ORDER BY _kafka_partition, _offset"
    )
    with duckdb_pool.connect() as connection:
        return connection.execute(query, [location, day]).to_arrow_table().to_pylist()


def wait_for_run() -> int:
    """The process that runs a batch, as soon as one does."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for batch in attempts.open_batches():
            if batch.state == "running" and (pid := run_pid(batch.batch_id)) is not None:
                return pid
        time.sleep(0.05)
    raise AssertionError("the sensor launched nothing")


def wait_until_settled(owner: Owner, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if reconcile_tenant(owner.tenant).drained == count:
            return
        time.sleep(1)
    raise AssertionError(f"not settled: {attempts.open_batches()}")


def run_pid(batch: str) -> int | None:
    """The process that holds the batch's lease, by the port of its connection; None: none does now."""
    server = load_settings().postgres
    with psycopg.connect(server.superuser_url()) as connection:
        row = connection.execute(
            "SELECT client_port FROM pg_stat_activity WHERE application_name = %s",
            [f"pulse-batch/{batch}"],
        ).fetchone()
    if row is None:
        return None
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = (f"{row[0]:04X}", f"{server.port:04X}")  # a port of a client may have connections to others, too
    names = {
        f"socket:[{inode}]"
        for _, own, other, state, *_, inode in (entry[:10] for entry in sockets)
        if (own[-4:], other[-4:], state) == (*ends, "01")
    }
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(descriptor.readlink()) in names:
                return int(descriptor.parts[2])
        except OSError:
            continue
    return None


def spark_pid() -> int:
    status = json.loads(pulse("status", "--json", check=False).stdout)
    (pid,) = (s["pid"] for s in status["services"] if s["service"] == "spark")
    return int(pid)
