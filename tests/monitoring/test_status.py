"""Status say what is so: lag, freshness, open dead letters, latencies, and what does not answer."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import httpx
import pytest
from confluent_kafka import KafkaError, KafkaException
from prometheus_client.parser import text_string_to_metric_families
from support.here import ingest_here as ingest
from support.http import Api
from support.ingest import Owner, event, make_owner, next_attempt, plan_batch, run_batch, start_attempt

from chaos.surroundings import superuser
from chaos.waiting import PATIENCE_S
from pulse_api.cli.ingestion import ingestion
from pulse_api.http import pipeline_metrics
from pulse_pipelines import dead_letters, pipes, registry
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.ingest import attempts, plan
from pulse_pipelines.monitoring import issues
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.monitoring.status import Status, TenantStatus, gather
from pulse_pipelines.registry import keys
from pulse_resources import postgres
from pulse_resources.settings import load_settings

pytestmark = pytest.mark.usefixtures("stack")


def of(owner: Owner, measures: Status | None = None) -> TenantStatus:
    (measured,) = [m for m in (measures or gather()).tenants if m.tenant == owner.tenant]
    return measured


def columns(query: str, *values: object) -> tuple[object, ...]:
    with superuser() as connection:
        (row,) = connection.execute(query, values).fetchall()
    return row


def test_a_tenant_without_events(owner: Owner) -> None:
    assert of(owner) == TenantStatus(owner.tenant, 0, 0, 0, None, None, {}, 0)


def test_dead_letters_are_counted_for_tenants_that_had_some(
    new_owner: Callable[[], Owner], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_some, without = new_owner(), new_owner()
    with_some.send(b"no event")
    ingest(with_some)
    counted: list[UUID] = []
    set_tenant = postgres.set_tenant
    monkeypatch.setattr(
        postgres,
        "set_tenant",
        lambda connection, tenant_id: (counted.append(tenant_id), set_tenant(connection, tenant_id))[1],
    )
    measures = gather()
    assert sum(of(with_some, measures).dead_letters_open.values()) == 1
    assert with_some.tenant.tenant_id in counted
    assert without.tenant.tenant_id not in counted


def test_a_search_for_issues_reads_the_pipes_once(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    list_all_pipes = pipes.list_all_pipes
    monkeypatch.setattr(pipes, "list_all_pipes", lambda: (read.append(1), list_all_pipes())[1])
    issues.find_issues({}, time.time())
    assert len(read) == 1


def test_lag_counts_unsettled_events_planned_or_not(owner: Owner) -> None:
    owner.send(event("a"), event("b"), event("c"))
    assert (of(owner).lag_events, of(owner).waiting_seconds) == (3, None)
    before, waiting = gather().batches["planned"], ingestion().waiting_events
    batch = plan_batch([owner])
    measures = gather()
    assert ingestion().waiting_events == waiting, "it counts events of a planned batch, too"
    assert measures.batches["planned"] == before + 1
    assert (of(owner, measures).lag_events, of(owner, measures).freshness_seconds) == (3, None)
    assert 0 <= (of(owner, measures).waiting_seconds or -1) < 3_600
    run_batch(batch)
    measured = of(owner)
    assert (measured.lag_events, measured.waiting_seconds, measured.landed) == (0, None, 3)


def test_freshness_is_of_the_oldest_event_of_the_latest_batch(owner: Owner) -> None:
    owner.send(event("a"), b"no json")
    began = time.monotonic()
    batch = ingest(owner)
    lasted = time.monotonic() - began
    age, settle, commit = columns(
        "SELECT extract(epoch FROM r.settled_at - oldest_received)::float8, settle_seconds, commit_seconds"
        " FROM ingest_ranges r JOIN ingest_batches USING (batch_id) WHERE batch_id = %s",
        batch,
    )
    (appended,) = columns("SELECT received_at FROM dead_letters WHERE batch_id = %s", batch)
    (oldest,) = columns("SELECT oldest_received FROM ingest_ranges WHERE batch_id = %s", batch)
    assert oldest <= appended, "the first event is older than the second"
    assert of(owner).freshness_seconds == pytest.approx(age)
    assert 0 < commit <= settle < lasted
    before = of(owner).freshness_seconds
    with superuser() as connection:
        connection.execute(
            "UPDATE ingest_ranges SET oldest_received = oldest_received - interval '1 hour'"
            " WHERE batch_id = %s",
            [batch],
        )
    assert of(owner).freshness_seconds == pytest.approx(before + 3600)
    owner.send(event("b"))
    ingest(owner)
    assert of(owner).freshness_seconds < 3_600, "of the second batch"


def test_totals_are_those_of_the_ledger(owner: Owner) -> None:
    owner.send(event("a"), event("a"), b"no json", event("b"))
    ingest(owner)
    owner.send(event("a"), event("c"), event("d", dataset="nope"))
    ingest(owner)
    measured, report = of(owner), reconcile_tenant(owner.tenant)
    assert report.balanced
    assert (measured.landed, measured.duplicates, measured.dead_letters) == (3, 2, 2)
    assert (report.landed, report.duplicates, report.dead_letters) == (3, 2, 2)


def test_dead_letters_are_counted_while_they_are_open(owner: Owner) -> None:
    owner.send(b"1", b"{", event("x", dataset="nope"))
    ingest(owner)
    assert of(owner).dead_letters_open == {"undecodable": 1, "invalid_envelope": 1, "unknown_dataset": 1}
    dead_letters.discard(owner.tenant, ["0-0", "0-1"])
    measured = of(owner)
    assert (measured.dead_letters_open, measured.dead_letters) == ({"unknown_dataset": 1}, 3)


def test_latencies_are_quantiles_of_recent_batches(owner: Owner) -> None:
    owner.send(event("a"))
    ingest(owner)
    measured = gather()
    for seconds in (measured.settle_seconds, measured.commit_seconds):
        assert list(seconds) == [0.5, 0.95, 0.99]
        assert 0 < seconds[0.5] <= seconds[0.95] <= seconds[0.99]
    assert measured.commit_seconds[0.5] <= measured.settle_seconds[0.5]


def test_stuck_batches_alarms_and_an_unpaid_outbox_are_there(owner: Owner) -> None:
    before = gather()
    owner.send(event("a"), b"no json")
    batch = plan_batch([owner])
    for attempt in range(1, load_settings().ingest.max_attempts + 1):
        attempts.next_attempt(batch, attempt, "no luck")
    assert gather().batches["stuck"] == before.batches["stuck"] + 1
    attempts.unstick(batch)
    number = load_settings().ingest.max_attempts + 1
    dying = start_attempt(batch, number, PULSE_FAIL_POINT="after.settle")
    dying.killed()
    owed = gather()
    assert owed.outbox_batches == before.outbox_batches + 1
    assert owed.outbox_seconds > 0
    with superuser() as connection:
        mine = [owner.tenant.tenant_id]
        moved = "UPDATE ingest_positions SET planned_offset = 9, settled_offset = 9 WHERE tenant_id = %s"
        connection.execute(f"{moved} AND partition = 0", mine)
        (alarm,) = [alarm for alarm in gather().alarms if alarm.tenant == owner.tenant]
        connection.execute("UPDATE ingest_positions SET planned_offset = 2, settled_offset = 2"
                           " WHERE tenant_id = %s AND partition = 0", mine)  # fmt: skip
    assert "recreated" in alarm.problem


def test_a_broker_that_does_not_answer_is_named(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent() -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr(plan, "ingest_status", silent)
    status = gather()
    assert list(status.unreachable) == ["kafka"]
    assert of(owner, status).lag_events is None
    assert set(status.batches) == {"planned", "running", "stuck"}


def test_a_postgres_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_POSTGRES__PORT", "9")
    postgres.close_pools()
    load_settings.cache_clear()
    try:
        status = gather()
    finally:
        monkeypatch.undo()
        postgres.close_pools()
        load_settings.cache_clear()
    assert list(status.unreachable) == ["postgres"]
    assert status.tenants == ()


def test_a_dead_letter_keeps_no_claim_of_an_attempt_that_judged_it_valid(owner: Owner) -> None:
    """Or the event could never land: whoever sends it again would be its copy."""
    owner.send(event("a"))
    batch = plan_batch([owner])
    dying = start_attempt(batch, PULSE_FAIL_POINT="after.dedup_gate")
    dying.killed()
    assert owner.claims() == 0
    document = '{"type": "object", "required": ["amount"], "properties": {}}'
    stricter = registry.publish_schema(owner.tenant, "orders", document).schema_uri
    with superuser() as connection:
        change = "UPDATE pdm_datasets SET schema_uri = %s WHERE tenant_id = %s RETURNING schema_uri"
        connection.execute(change, [stricter, owner.tenant.tenant_id])
    run_batch(batch, next_attempt(batch))
    assert [letter["reason"] for letter in owner.dead_letters()] == ["schema_violation"]
    assert owner.claims() == 0
    with superuser() as connection:
        connection.execute(change, [stricter.replace("/2", "/1"), owner.tenant.tenant_id])
    assert dead_letters.replay(owner.tenant, dead_letters.Filter()).total == 1
    ingest(owner)
    assert [row["id"] for row in owner.rows()] == ["a"]
    assert reconcile_tenant(owner.tenant).balanced


def test_tenants_are_measured_apart_and_listed_by_slug(owner: Owner) -> None:
    other = make_owner()
    status = gather()
    assert {of(owner, status).tenant, of(other, status).tenant} == {owner.tenant, other.tenant}
    assert [m.tenant.slug for m in status.tenants] == sorted(m.tenant.slug for m in status.tenants)


# /metrics --------------------------------------------------------------------------------------


def metrics(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Samples of Prometheus' text format, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def sample(samples: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept between scrapes."""
    monkeypatch.setattr(pipeline_metrics, "KEEP_S", 0.0)


def test_prometheus_gets_the_measures(owner: Owner, operator: httpx.Client, now: None) -> None:
    owner.send(event("a"), event("a"), b"no json")
    ingest(owner)
    owner.send(event("b"))
    answer = operator.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples, slug = metrics(answer.text), owner.tenant.slug
    assert sample(samples, "pulse_lag_events", tenant=slug) == 1
    assert 0 <= sample(samples, "pulse_freshness_seconds", tenant=slug) < 3_600
    assert sample(samples, "pulse_waiting_seconds", tenant=slug) == 0
    assert sample(samples, "pulse_dead_letters_open", tenant=slug, reason="undecodable") == 1
    for outcome in ("landed", "duplicate", "dead_letter"):
        assert sample(samples, "pulse_events_total", tenant=slug, outcome=outcome) == 1
    assert (
        sample(samples, "pulse_up", service="kafka") == sample(samples, "pulse_up", service="postgres") == 1
    )
    assert {labels for name, labels in samples if name == "pulse_batches"} == {
        frozenset({("state", state)}) for state in ("planned", "running", "stuck")
    }
    for name in ("pulse_settle_seconds", "pulse_commit_seconds"):
        assert sample(samples, name, quantile="0.5") > 0
    assert ("pulse_collect_events_in_flight", frozenset()) in samples, "what this process counts, too"


def test_metrics_name_all_tenants_so_they_need_an_operators_key(
    owner: Owner, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = keys.issue_key(owner.tenant, "test", tuple(KeyScope)).text
    for key in (None, "garbage", mine):
        with api.client(key) as client:
            assert client.get("/metrics").status_code == 401
    monkeypatch.setenv("PULSE_API__OPEN_METRICS", "true")
    load_settings.cache_clear()
    try:
        with api.client() as client:
            assert client.get("/metrics").status_code == 200
    finally:
        monkeypatch.undo()
        load_settings.cache_clear()


def test_concurrent_scrapes_share_one_gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(pipeline_metrics, "gather", lambda: calls.append(1) or Status())
    gatherer = pipeline_metrics.Gatherer()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: gatherer.latest()[0], range(32)))
    assert answers == [Status()] * 32
    assert len(calls) == 1


def test_a_slow_or_failed_gathering_leaves_the_last_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_metrics, "KEEP_S", 0.0)
    monkeypatch.setattr(pipeline_metrics, "PATIENCE_S", PATIENCE_S)
    gatherer, first, answered = pipeline_metrics.Gatherer(), Status(outbox_batches=1), threading.Event()
    monkeypatch.setattr(pipeline_metrics, "gather", lambda: first)
    assert gatherer.latest()[0] is first

    def broken() -> Status:
        raise RuntimeError("broken")

    monkeypatch.setattr(pipeline_metrics, "gather", broken)
    assert gatherer.latest()[0] is first
    monkeypatch.setattr(pipeline_metrics, "gather", lambda: answered.wait(PATIENCE_S) and Status())
    monkeypatch.setattr(pipeline_metrics, "PATIENCE_S", 0.5)
    measures, age = gatherer.latest()
    answered.set()
    assert measures is first
    assert age >= 0.5


def test_without_postgres_no_number_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    down = Status(unreachable={"postgres": "refused"})
    monkeypatch.setattr(pipeline_metrics, "gather", lambda: down)
    names = {family.name for family in pipeline_metrics.PipelineCollector().collect()}
    assert names == {"pulse_measures_age_seconds", "pulse_up"}
